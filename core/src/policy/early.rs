//! Families whose code came before the libraries that others share: Qwen 1, Baichuan, ChatGLM 2 and 3, and LLaMA as Meta
//! publishes it. Sources: their published configurations and modelling files.

use super::describe::{Described, LLAMA_LIKE, Switches, concat, decoder, kv_heads};
use super::llama::NAMES;
use super::*;

/// `model_type` qwen.
pub const QWEN: Described = Described {
    name: "qwen",
    types: &["qwen"],
    names: Names {
        prefixes: &["transformer.", ""],
        block: "h.{}.",
        slots: &[
            (Slot::TokenEmbed, "wte"),
            (Slot::AttnNorm, "ln_1"),
            (Slot::Qkv, "attn.c_attn"),
            (Slot::AttnOut, "attn.c_proj"),
            (Slot::MlpNorm, "ln_2"),
            // The activation is on the second one.
            (Slot::Up, "mlp.w2 + mlp.w1"),
            (Slot::Down, "mlp.c_proj"),
            (Slot::FinalNorm, "ln_f"),
            (Slot::Head, "/lm_head"),
        ],
        ignored: &["*rotary_emb.inv_freq", "*.attn.masked_bias", "lm_head.weight"],
        transposed: false,
    },
    layout: concat,
    spec: qwen,
};

/// `model_type` baichuan.
pub const BAICHUAN: Described = Described {
    name: "baichuan",
    types: &["baichuan"],
    names: Names {
        slots: &[
            (Slot::TokenEmbed, "embed_tokens"),
            (Slot::AttnNorm, "input_layernorm"),
            (Slot::Qkv, "self_attn.W_pack"),
            (Slot::AttnOut, "self_attn.o_proj"),
            (Slot::MlpNorm, "post_attention_layernorm"),
            (Slot::Up, "mlp.gate_proj + mlp.up_proj"),
            (Slot::Down, "mlp.down_proj"),
            (Slot::FinalNorm, "norm"),
            (Slot::Head, "/lm_head"),
        ],
        ..NAMES
    },
    layout: concat,
    spec: baichuan,
};

/// `model_type` chatglm, of the second generation on.
pub const CHATGLM: Described = Described {
    name: "chatglm",
    types: &["chatglm"],
    names: Names {
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
        transposed: false,
    },
    layout: concat,
    spec: chatglm,
};

fn qwen(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = decoder(config, LLAMA_LIKE)?;
    // Half of what is configured; stretched frequencies and scores begin beyond the trained length, which is the limit.
    let inner = spec.blocks.first().map_or(0, |b| b.mlp.inner / 2);
    spec.max_positions =
        config.size_opt(&["seq_length"])?.unwrap_or(spec.max_positions).min(spec.max_positions);
    let other = !config.flag(&["no_bias"], true)?;
    spec.each(|_, b| {
        b.mlp.inner = inner;
        b.bias = [true, other, other, other];
    });
    spec.rotate_part(config, catalog, 1.0)?;
    Ok(spec)
}

/// 7B rotates; 13B, whose configuration has no `max_position_embeddings`, has the linear position bias. The second
/// generation (`z_loss_weight`) normalises the head's rows.
fn baichuan(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = decoder(config, LLAMA_LIKE)?;
    if config.get("max_position_embeddings").is_some() {
        spec.rotate(config, catalog, RopeStyle::Half, None)?;
    } else {
        spec.max_positions = config.size_opt(&["model_max_length"])?.unwrap_or(4096);
        spec.alibi(8.0, 1.0);
    }
    if config.get("z_loss_weight").is_some()
        && let HeadSpec::Tokens { unit_rows, .. } = &mut spec.head
    {
        *unit_rows = true;
    }
    Ok(spec)
}

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
