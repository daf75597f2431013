//! OPT: LayerNorm before or after, learned positions from row 2, a plain ReLU feed-forward part. Also Galactica's
//! models whose norms have weights.
//!
//! Forms: `model.decoder.` (causal) and `decoder.` (bare) prefixes. OPT-350m has post-norms, a narrow token table and
//! no final norm.

use super::*;
use crate::ops::{Act, NormKind, Scores};
use crate::{Error, Result};

/// The policy of `model_type` opt.
#[derive(Debug, Clone, Copy)]
pub struct Opt;

/// Slot and the published names that fill its rows, for what every block has.
const BLOCK: [(Slot, &[&str]); 6] = [
    (Slot::AttnNorm, &["self_attn_layer_norm"]),
    (Slot::Qkv, &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    (Slot::AttnOut, &["self_attn.out_proj"]),
    (Slot::MlpNorm, &["final_layer_norm"]),
    (Slot::Up, &["fc1"]),
    (Slot::Down, &["fc2"]),
];

/// The same outside the blocks.
const OUTSIDE: [(Slot, &str); 5] = [
    (Slot::TokenEmbed, "embed_tokens"),
    (Slot::PositionEmbed, "embed_positions"),
    (Slot::ProjectIn, "project_in"),
    (Slot::FinalNorm, "final_layer_norm"),
    (Slot::ProjectOut, "project_out"),
];

impl InjectionPolicy for Opt {
    fn name(&self) -> &str {
        "opt"
    }

    fn fit(&self, config: &ModelConfig, _: Catalog<'_>) -> Fit {
        fit_by_type(config, &["opt"])
    }

    fn spec(&self, config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
        if !config.flag(&["layer_norm_elementwise_affine"], true)? {
            return Err(Error::config("layer_norm_elementwise_affine", false, "true (norms with a weight)"));
        }
        let hidden = config.size(&["hidden_size"])?;
        let heads = even_heads(config, &["num_attention_heads"], hidden)?;
        let max_positions = config.size(&["max_position_embeddings"])?;
        let width = config.size_opt(&["word_embed_proj_dim"])?.unwrap_or(hidden);
        let before = config.flag(&["do_layer_norm_before"], true)?;
        // The reference never reads an epsilon: torch's own default.
        let norm = NormSpec { kind: NormKind::Layer, eps: 1e-5, bias: true, plus_one: false };
        let block = BlockSpec {
            heads,
            scores: Scores {
                scale: (1.0 / (heads.k_dim as f64).sqrt()) as f32,
                causal: true,
                window: None,
                soft_cap: None,
                alibi: None,
            },
            qk_norm: None,
            rope: None,
            attn_norm: norm,
            mlp_norm: norm,
            mlp: MlpSpec {
                inner: config.size(&["ffn_dim"])?,
                act: config.act(&["activation_function"], Act::Relu)?,
                gated: false,
            },
            bias: [config.flag(&["enable_bias"], true)?; 4],
        };
        let final_norm = before && !config.flag(&["_remove_final_layer_norm"], false)?;
        let tied = config.flag(&["tie_word_embeddings"], true)?;
        let positions = Some(LearnedPositions { rows: max_positions + 2, offset: 2 });
        Ok(ModelSpec {
            arch: "opt".into(),
            family: Family::Decoder,
            hidden,
            vocab: config.size(&["vocab_size"])?,
            max_positions,
            embed: EmbedSpec { width, positions, kinds: None, norm: None },
            ropes: Vec::new(),
            placement: if before { Placement::Pre } else { Placement::Post },
            blocks: vec![block; layers(config, &["num_hidden_layers"])?],
            final_norm: final_norm.then_some(norm),
            project_out: (width != hidden).then_some(width),
            pooler: false,
            head: HeadSpec::Tokens { tied, bias: false, transform: None },
        })
    }

    fn bindings(&self, spec: &ModelSpec, _: &ModelConfig, _: Catalog<'_>) -> Vec<Binding> {
        let mut all = vec![Binding::single(
            Role::of(Slot::Head, Part::Weight),
            vec!["lm_head.weight".into()],
            Shard::Vocab,
        )];
        for part in [Part::Weight, Part::Bias] {
            let names = |of: String| {
                let p = part.suffix();
                vec![format!("model.decoder.{of}.{p}"), format!("decoder.{of}.{p}")]
            };
            for (slot, hf) in OUTSIDE {
                let shard = if slot == Slot::TokenEmbed { Shard::Vocab } else { Shard::Replicated };
                all.push(Binding::single(Role::of(slot, part), names(hf.into()), shard));
            }
            for (layer, block) in spec.blocks.iter().enumerate() {
                for (slot, rows) in BLOCK {
                    let source = |hf: &&str| TensorSource::plain(names(format!("layers.{layer}.{hf}")));
                    let sources = rows.iter().map(source).collect();
                    all.push(Binding::rows(
                        Role::block(layer, slot, part),
                        sources,
                        block_shard(slot, block),
                    ));
                }
            }
        }
        bound_roles(spec, all)
    }

    fn ignored(&self) -> &[&str] {
        &["lm_head.weight"]
    }
}
