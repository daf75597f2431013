//! LLaMA as Meta publishes it: `params.json` in the place of a configuration, rotary pairs side by side.

use crate::policy::describe::{LLAMA_LIKE, Switches, decoder};
use crate::policy::*;
use serde_json::json;

/// Positions that LLaMA 3 and 3.1 are made for, which the parameters do not say.
const POSITIONS: [usize; 2] = [8192, 131_072];

/// LLaMA as Meta publishes it: `params.json` in the place of a configuration, rotary pairs side by side.
#[derive(Debug, Clone, Copy)]
pub struct MetaLlama;

const META: Names<'_> = Names {
    prefixes: &["", "model."],
    block: "layers.{}.",
    slots: &[
        (Slot::TokenEmbed, "tok_embeddings"),
        (Slot::AttnNorm, "attention_norm"),
        (Slot::Qkv, "attention.wq + attention.wk + attention.wv"),
        (Slot::AttnOut, "attention.wo"),
        (Slot::MlpNorm, "ffn_norm"),
        (Slot::Up, "feed_forward.w1 + feed_forward.w3"),
        (Slot::Down, "feed_forward.w2"),
        (Slot::FinalNorm, "norm"),
        (Slot::Head, "output"),
    ],
    ignored: &["*rope.freqs"],
    ..Names::NONE
};

impl InjectionPolicy for MetaLlama {
    fn name(&self) -> &str {
        "llama (Meta's names)"
    }

    fn fit(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Fit {
        let params = config.get("dim").is_some() && config.get("n_layers").is_some();
        if params && META.has(config, catalog, Slot::TokenEmbed, Part::Weight) {
            return Fit::Yes { specificity: 10 };
        }
        Fit::No("no `dim` and `n_layers`, or no `tok_embeddings`".into())
    }

    fn why(&self, _: &ModelConfig) -> String {
        "the configuration has `dim` and `n_layers`, the file `tok_embeddings`".into()
    }

    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        // Rows that the parameters leave open (-1) or give by a rule of their own are those of the tensors.
        let rows = |name: &str| {
            let both = [name.to_string(), format!("model.{name}")];
            let tensor = both.iter().find_map(|n| catalog.find(n));
            tensor.and_then(|t| t.shape.first().copied()).ok_or_else(|| Error::tensor(name, "missing"))
        };
        let (vocab, inner) = (rows("tok_embeddings.weight")?, rows("layers.0.feed_forward.w1.weight")?);
        let config = &config.with("vocab_size", vocab).with("intermediate_size", inner);
        let scaled = config.flag(&["use_scaled_rope"], false)?;
        let positions = match (scaled, config.number(&["rope_theta"], 0.0)? >= 500_000.0) {
            (true, _) => POSITIONS[1],
            (false, true) => POSITIONS[0],
            (false, false) => LLAMA_LIKE.positions,
        };
        let mut spec = decoder(config, Switches { eps: 1e-5, positions, ..LLAMA_LIKE })?;
        spec.arch = "llama".into();
        let config = &match scaled {
            true => config.with("rope_scaling", scaling(config)?),
            false => config.clone(),
        };
        spec.rotate(config, catalog, RopeStyle::Interleaved, None)?;
        // Mistral's first models are published in the same format.
        spec.slide(config, |_| true)?;
        Ok(spec)
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        META.bind(spec, config, catalog, QkvLayout::Concat)
    }

    fn ignored(&self) -> &[&str] {
        META.ignored
    }
}

/// LLaMA 3.1's stretched rotation, whose numbers stand in Meta's code and, later on, partly in the
/// parameters.
fn scaling(config: &ModelConfig) -> Result<serde_json::Value> {
    Ok(json!({
        "rope_type": "llama3",
        "factor": config.positive(&["rope_scaling_factor"], 8.0)?,
        "low_freq_factor": 1.0,
        "high_freq_factor": config.positive(&["rope_high_freq_factor"], 4.0)?,
        "original_max_position_embeddings": POSITIONS[0],
    }))
}
