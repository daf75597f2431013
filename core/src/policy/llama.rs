//! LLaMA and its kin: RMSNorm, rotary embedding, grouped queries, gated SiLU. Also Vicuna, SmolLM, TinyLlama, Yi, ...
//!
//! Forms: `model.` prefix or none; GGUF's names with interleaved q and k rows; biases by `attention_bias` and
//! `mlp_bias`, or because the tensors are there (InternLM in LLaMA's names).

use super::*;
use crate::ops::{Act, Heads, NormKind, RopeStyle, Scores};
use crate::{Error, Result};

/// The policy of `model_type` llama.
#[derive(Debug, Clone, Copy)]
pub struct Llama;

/// Per slot: the published name and GGUF's, both inside a block.
const BLOCK: [(&str, &str); 9] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

fn names(layer: usize, row: usize, part: Part) -> Vec<String> {
    let (hf, gguf) = BLOCK[row];
    let part = if part == Part::Weight { "weight" } else { "bias" };
    vec![
        format!("model.layers.{layer}.{hf}.{part}"),
        format!("layers.{layer}.{hf}.{part}"),
        format!("blk.{layer}.{gguf}.{part}"),
    ]
}

fn has_bias(config: &ModelConfig, catalog: Catalog<'_>, field: &'static str, row: usize) -> Result<bool> {
    let there = names(0, row, Part::Bias).iter().any(|n| catalog.find(n).is_some());
    config.flag(&[field], there)
}

impl InjectionPolicy for Llama {
    fn name(&self) -> &str {
        "llama"
    }

    fn fit(&self, config: &ModelConfig, _: Catalog<'_>) -> Fit {
        fit_by_type(config, &["llama"])
    }

    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        let hidden = config.size(&["hidden_size"])?;
        let heads = config.size(&["num_attention_heads"])?;
        let kv_heads = config.size_opt(&["num_key_value_heads"])?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(Error::config("num_key_value_heads", kv_heads, format!("a divisor of {heads}")));
        }
        let k_dim = config.size_opt(&["head_dim"])?.unwrap_or(hidden / heads);
        let max_positions = config.size_opt(&["max_position_embeddings"])?.unwrap_or(2048);
        let eps = config.positive(&["rms_norm_eps"], 1e-6)? as f32;
        let norm = NormSpec { kind: NormKind::Rms, eps, bias: false, plus_one: false };
        let qkv_bias = has_bias(config, catalog, "attention_bias", 1)?;
        let out_bias = has_bias(config, catalog, "attention_bias", 4)?;
        let mlp_bias = has_bias(config, catalog, "mlp_bias", 6)?;
        let block = BlockSpec {
            heads: Heads { heads, kv_heads, k_dim, v_dim: k_dim },
            scores: Scores {
                scale: (1.0 / (k_dim as f64).sqrt()) as f32,
                causal: true,
                window: None,
                soft_cap: None,
                alibi: None,
            },
            qk_norm: None,
            rope: Some(0),
            attn_norm: norm,
            mlp_norm: norm,
            mlp: MlpSpec {
                inner: config.size(&["intermediate_size"])?,
                act: config.act(&["hidden_act"], Act::Silu)?,
                gated: true,
            },
            bias: [qkv_bias, out_bias, mlp_bias, mlp_bias],
        };
        let tied = config.flag(&["tie_word_embeddings"], false)?;
        Ok(ModelSpec {
            arch: "llama".into(),
            family: Family::Decoder,
            hidden,
            vocab: config.size(&["vocab_size"])?,
            max_positions,
            embed: EmbedSpec { width: hidden, positions: None, kinds: None, norm: None },
            ropes: vec![rope::read(config, catalog, RopeStyle::Half, k_dim, max_positions)?],
            placement: Placement::Pre,
            blocks: vec![block; layers(config, &["num_hidden_layers"])?],
            final_norm: Some(norm),
            project_out: None,
            pooler: false,
            head: HeadSpec::Tokens { tied, bias: false, transform: None },
        })
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, _: Catalog<'_>) -> Vec<Binding> {
        let of = |slot, hf: [&str; 2], gguf: &str, shard| {
            let names = hf.iter().chain([&gguf]).map(|n| format!("{n}.weight")).collect();
            Binding::single(Role::of(slot, Part::Weight), names, shard)
        };
        let mut all = vec![
            of(Slot::TokenEmbed, ["model.embed_tokens", "embed_tokens"], "token_embd", Shard::Vocab),
            of(Slot::FinalNorm, ["model.norm", "norm"], "output_norm", Shard::Replicated),
            of(Slot::Head, ["lm_head", "model.lm_head"], "output", Shard::Vocab),
            of(Slot::RopeFactors, ["rope_freqs", "rope_freqs"], "rope_freqs", Shard::Replicated),
        ];
        for (layer, block) in spec.blocks.iter().enumerate() {
            let h = block.heads;
            let order = |heads| match config.is_gguf() {
                true => RowOrder::PairsInterleaved { heads },
                false => RowOrder::Plain,
            };
            for part in [Part::Weight, Part::Bias] {
                let plain = |row| TensorSource { names: names(layer, row, part), order: RowOrder::Plain };
                let mut bind = |slot, sources, shard| {
                    all.push(Binding::rows(Role::block(layer, slot, part), sources, shard));
                };
                let q = TensorSource { order: order(h.heads), ..plain(1) };
                let k = TensorSource { order: order(h.kv_heads), ..plain(2) };
                bind(Slot::AttnNorm, vec![plain(0)], Shard::Replicated);
                bind(Slot::Qkv, vec![q, k, plain(3)], Shard::Columns { unit: h.k_dim });
                bind(Slot::AttnOut, vec![plain(4)], Shard::Rows { grain: h.v_dim });
                bind(Slot::MlpNorm, vec![plain(5)], Shard::Replicated);
                bind(Slot::Up, vec![plain(6), plain(7)], Shard::Columns { unit: 64 });
                bind(Slot::Down, vec![plain(8)], Shard::Rows { grain: 64 });
            }
        }
        bound_roles(spec, all)
    }

    fn ignored(&self) -> &[&str] {
        &["*rotary_emb.inv_freq", "*.attn_rot_embd", "lm_head.weight", "model.lm_head.weight"]
    }
}
