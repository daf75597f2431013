//! LLaMA as Meta publishes it: `params.json` in the place of a configuration, rotary pairs side by side.

use super::describe::{LLAMA_LIKE, Switches, decoder};
use super::*;

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
    transposed: false,
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
        let mut spec = decoder(config, Switches { eps: 1e-5, ..LLAMA_LIKE })?;
        spec.arch = "llama".into();
        if config.flag(&["use_scaled_rope"], false)? {
            return Err(Error::config("use_scaled_rope", true, "false, or the file in the library's layout"));
        }
        spec.rotate(config, catalog, RopeStyle::Interleaved, None)?;
        Ok(spec)
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        META.bind(spec, config, catalog, QkvLayout::Concat)
    }

    fn ignored(&self) -> &[&str] {
        META.ignored
    }
}
