//! ChatGLM 2 and 3: grouped keys and values in one fused q|k|v, half of every head rotated in neighbouring
//! pairs, gate and up in one tensor. Source: its published configuration and modelling file.

use crate::policy::describe::{Described, LLAMA_LIKE, Switches, decoder, kv_heads};
use crate::policy::*;

/// `model_type` chatglm, of the second generation on.
pub const CHATGLM: Described = Described::new(
    &["chatglm"],
    Names {
        prefixes: &["transformer."],
        block: "encoder.layers.{}.",
        slots: &[
            (Slot::TokenEmbed, "embedding.word_embeddings"),
            (Slot::AttnNorm, "input_layernorm"),
            (Slot::Qkv, "self_attention.query_key_value"),
            (Slot::AttnOut, "self_attention.dense"),
            (Slot::MlpNorm, "post_attention_layernorm"),
            (Slot::Up, "mlp.dense_h_to_4h"),
            (Slot::Down, "mlp.dense_4h_to_h"),
            (Slot::FinalNorm, "encoder.final_layernorm"),
            (Slot::Head, "output_layer"),
        ],
        ignored: &["*rotary_pos_emb.inv_freq", "transformer.output_layer.weight"],
        ..Names::NONE
    },
    chatglm,
);

fn chatglm(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    for (field, must) in [("rmsnorm", true), ("post_layer_norm", true), ("original_rope", true)] {
        if config.flag(&[field], must)? != must {
            return Err(Error::config(field, !must, must.to_string()));
        }
    }
    refuse(config, "apply_residual_connection_post_layernorm")?;
    if config.get("padded_vocab_size").is_none() {
        let allowed = "a size: the first generation of this family is another architecture";
        return Err(Error::config("padded_vocab_size", "missing", allowed));
    }
    let vocab = config.size(&["padded_vocab_size"])?;
    let base = 10_000.0 * config.positive(&["rope_ratio"], 1.0)?;
    let config = &config.with("vocab_size", vocab).with("rope_theta", base);
    let inner = config.size(&["ffn_hidden_size"])?;
    let mut spec = decoder(config, Switches { eps: 1e-5, ..LLAMA_LIKE })?;
    let heads = spec.blocks.first().map_or(1, |b| b.heads.heads);
    let groups = match config.flag(&["multi_query_attention"], false)? {
        true => config.size(&["multi_query_group_num"])?,
        false => heads,
    };
    let (kv_heads, width) = (kv_heads(heads, groups)?, config.size_opt(&["kv_channels"])?);
    let other = config.flag(&["add_bias_linear"], false)?;
    let qkv = other || config.flag(&["add_qkv_bias"], false)?;
    spec.each(|_, b| {
        b.heads.kv_heads = kv_heads;
        if let Some(width) = width {
            (b.heads.k_dim, b.heads.v_dim) = (width, width);
            b.scores.scale = (1.0 / (width as f64).sqrt()) as f32;
        }
        b.mlp.inner = inner;
        b.bias = [qkv, other, other, other];
    });
    let half = spec.blocks.first().map_or(0, |b| b.heads.k_dim / 2);
    spec.rotate(config, catalog, RopeStyle::Interleaved, Some(half))?;
    Ok(spec)
}
