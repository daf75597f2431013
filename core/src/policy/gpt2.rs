//! GPT-2: LayerNorm, learned positions, one fused `c_attn`, a plain feed-forward part. Also DistilGPT-2, DialoGPT, ...
//!
//! Forms: `transformer.` prefix or none, with Conv1D weights stored `[inputs, outputs]`; GGUF's names with plain
//! `[outputs, inputs]` weights. The causal-mask buffers of old files are ignored.

use super::*;
use crate::Result;
use crate::ops::{Act, NormKind, Scores};

/// The policy of `model_type` gpt2.
#[derive(Debug, Clone, Copy)]
pub struct Gpt2;

/// Slot, published name, GGUF's name, and whether it is a Conv1D, for what every block has.
const BLOCK: [(Slot, &str, &str, bool); 6] = [
    (Slot::AttnNorm, "ln_1", "attn_norm", false),
    (Slot::Qkv, "attn.c_attn", "attn_qkv", true),
    (Slot::AttnOut, "attn.c_proj", "attn_output", true),
    (Slot::MlpNorm, "ln_2", "ffn_norm", false),
    (Slot::Up, "mlp.c_fc", "ffn_up", true),
    (Slot::Down, "mlp.c_proj", "ffn_down", true),
];

/// The same outside the blocks.
const OUTSIDE: [(Slot, &str, &str); 3] = [
    (Slot::TokenEmbed, "wte", "token_embd"),
    (Slot::PositionEmbed, "wpe", "position_embd"),
    (Slot::FinalNorm, "ln_f", "output_norm"),
];

impl InjectionPolicy for Gpt2 {
    fn name(&self) -> &str {
        "gpt2"
    }

    fn fit(&self, config: &ModelConfig, _: Catalog<'_>) -> Fit {
        fit_by_type(config, &["gpt2"])
    }

    fn spec(&self, config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
        refuse(config, "add_cross_attention")?;
        let hidden = config.size(&["n_embd", "hidden_size"])?;
        let heads = even_heads(config, &["n_head", "num_attention_heads"], hidden)?;
        let rows = config.size(&["n_positions", "max_position_embeddings", "n_ctx"])?;
        let eps = config.positive(&["layer_norm_epsilon"], 1e-5)? as f32;
        let norm = NormSpec { kind: NormKind::Layer, eps, bias: true, plus_one: false };
        let scaled = config.flag(&["scale_attn_weights"], true)?;
        let by_layer = config.flag(&["scale_attn_by_inverse_layer_idx"], false)?;
        let root = if scaled { (heads.k_dim as f64).sqrt() } else { 1.0 };
        let inner = config.size_opt(&["n_inner"])?.unwrap_or(4 * hidden);
        let act = config.act(&["activation_function"], Act::GeluTanh)?;
        let block = |layer: usize| BlockSpec {
            heads,
            scores: Scores {
                scale: (1.0 / root / if by_layer { (layer + 1) as f64 } else { 1.0 }) as f32,
                causal: true,
                window: None,
                soft_cap: None,
                alibi: None,
            },
            qk_norm: None,
            rope: None,
            attn_norm: norm,
            mlp_norm: norm,
            mlp: MlpSpec { inner, act, gated: false },
            bias: [true; 4],
        };
        let tied = config.flag(&["tie_word_embeddings"], true)?;
        let positions = Some(LearnedPositions { rows, offset: 0 });
        Ok(ModelSpec {
            arch: "gpt2".into(),
            family: Family::Decoder,
            hidden,
            vocab: config.size(&["vocab_size"])?,
            max_positions: rows,
            embed: EmbedSpec { width: hidden, positions, kinds: None, norm: None },
            ropes: Vec::new(),
            placement: Placement::Pre,
            blocks: (0..layers(config, &["n_layer", "num_hidden_layers"])?).map(block).collect(),
            final_norm: Some(norm),
            project_out: None,
            pooler: false,
            head: HeadSpec::Tokens { tied, bias: false, transform: None },
        })
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, _: Catalog<'_>) -> Vec<Binding> {
        let mut all = Vec::new();
        for part in [Part::Weight, Part::Bias] {
            let p = part.suffix();
            for (slot, hf, gguf) in OUTSIDE {
                let names = vec![format!("transformer.{hf}.{p}"), format!("{hf}.{p}"), format!("{gguf}.{p}")];
                let shard = if slot == Slot::TokenEmbed { Shard::Vocab } else { Shard::Replicated };
                all.push(Binding::single(Role::of(slot, part), names, shard));
            }
            let head = vec![format!("lm_head.{p}"), format!("output.{p}")];
            all.push(Binding::single(Role::of(Slot::Head, part), head, Shard::Vocab));
            for (layer, block) in spec.blocks.iter().enumerate() {
                for (slot, hf, gguf, conv) in BLOCK {
                    let names = vec![
                        format!("transformer.h.{layer}.{hf}.{p}"),
                        format!("h.{layer}.{hf}.{p}"),
                        format!("blk.{layer}.{gguf}.{p}"),
                    ];
                    let shard = block_shard(slot, block);
                    let binding = Binding::single(Role::block(layer, slot, part), names, shard);
                    let swap = conv && part == Part::Weight && !config.is_gguf();
                    all.push(if swap { binding.transposed() } else { binding });
                }
            }
        }
        bound_roles(spec, all)
    }

    fn ignored(&self) -> &[&str] {
        &["*h.*.attn.bias", "*h.*.attn.masked_bias", "lm_head.weight"]
    }
}
