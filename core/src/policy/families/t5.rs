//! T5, its version 1.1 and Flan-T5, mT5 and UMT5: an encoder and a decoder with RMSNorm before every part, no
//! biases, scores that are not scaled and that get a bias by distance, from one table for all blocks of a
//! stack (UMT5: one for each).
//!
//! Variants: ReLU or a gated feed-forward part; a head that shares the token table, whose input is scaled
//! then, or one of its own; the encoder alone (`T5EncoderModel`), as text encoder of image models; GGUF's
//! architectures `t5` and `t5encoder`.

use crate::params::{Act, NormKind};
use crate::policy::describe::Described;
use crate::policy::*;

const TABLE: &str = "/shared > /decoder.embed_tokens > /encoder.embed_tokens";
const HEAD: &str = "lm_head.weight";
/// The same in GGUF files.
const GGUF_HEAD: &str = "output.weight";
/// What no field of a GGUF file says; llama.cpp computes it so.
const UNSAID: &str = "gated feed-forward parts take GELU (tanh), others ReLU, and distances of 128 and more \
    share a bucket: GGUF files of T5 do not say otherwise";
/// Distances have a bias however long a text is: what files call positions is what tokenizers cut at.
const POSITIONS: usize = 1 << 15;

const ENCODER: Names<'_> = Names {
    prefixes: &["encoder."],
    block: "block.{}.",
    slots: &[
        (Slot::TokenEmbed, TABLE),
        (Slot::AttnNorm, "layer.0.layer_norm"),
        (Slot::Qkv, "layer.0.SelfAttention.q + layer.0.SelfAttention.k + layer.0.SelfAttention.v"),
        (Slot::PositionBias, "layer.0.SelfAttention.relative_attention_bias"),
        (Slot::AttnOut, "layer.0.SelfAttention.o"),
        (Slot::MlpNorm, "layer.1.layer_norm"),
        (Slot::Up, "layer.1.DenseReluDense.wi ; layer.1.DenseReluDense.wi_0 + layer.1.DenseReluDense.wi_1"),
        (Slot::Down, "layer.1.DenseReluDense.wo"),
        (Slot::FinalNorm, "final_layer_norm"),
    ],
    gguf: "enc.",
    ..Names::NONE
};

const DECODER: Names<'_> = Names {
    prefixes: &["decoder."],
    slots: &[
        (Slot::CrossNorm, "layer.1.layer_norm"),
        (Slot::CrossQuery, "layer.1.EncDecAttention.q"),
        (Slot::CrossKeyValue, "layer.1.EncDecAttention.k + layer.1.EncDecAttention.v"),
        (Slot::CrossOut, "layer.1.EncDecAttention.o"),
        (Slot::MlpNorm, "layer.2.layer_norm"),
        (Slot::Up, "layer.2.DenseReluDense.wi ; layer.2.DenseReluDense.wi_0 + layer.2.DenseReluDense.wi_1"),
        (Slot::Down, "layer.2.DenseReluDense.wo"),
        (Slot::Head, "/lm_head"),
    ],
    base: ENCODER.slots,
    // The table under further names; a bias that no published model uses.
    ignored: &[
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        GGUF_HEAD,
        "dec.blk.0.cross_attn_rel_b.weight",
    ],
    gguf: "dec.",
    ..ENCODER
};

/// `model_type` t5, mt5.
pub const T5: Described = Described::new(&["t5", "mt5"], DECODER, t5).encoder(ENCODER);

/// `model_type` umt5.
pub const UMT5: Described = Described::new(&["umt5"], DECODER, umt5).encoder(ENCODER);

fn t5(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    of_stacks(config, catalog, |_| 0)
}

fn umt5(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    of_stacks(config, catalog, |layer| layer)
}

fn of_stacks(config: &ModelConfig, catalog: Catalog<'_>, owner: fn(usize) -> usize) -> Result<ModelSpec> {
    let encoder = stack(config, config.size(&["num_layers"])?, true, owner)?;
    // The decoder's settings are held to what they may be where the encoder is alone, too.
    let layers = config.size_opt(&["num_decoder_layers"])?.unwrap_or(encoder.blocks.len());
    let shared = config.flag(&["tie_word_embeddings"], true)?;
    // No published mT5 shares its table, and the reference scales none.
    let scaled = config.flag(&["scale_decoder_outputs"], shared && config.model_type() != "mt5")?;
    if config.architecture().ends_with("EncoderModel") {
        return Ok(ModelSpec { embed: EmbedSpec { shared: false, ..encoder.embed }, ..encoder });
    }
    let allowed = "...ForConditionalGeneration, ...EncoderModel";
    encoder_decoder::check_task(config, &["ForConditionalGeneration"], allowed)?;
    let mut spec = stack(config, layers, false, owner)?;
    let norm = spec.final_norm;
    spec.each(|_, b| b.cross = Some(CrossSpec::new(norm, 1.0, false)));
    // Older files of T5 repeat the table as a head. Any other head in a file is one of its own, whatever the
    // configuration says: the reference does not tie what it finds apart.
    let repeats = config.model_type() == "t5" && scaled;
    let head = if config.is_gguf() { GGUF_HEAD } else { HEAD };
    let tied = shared && (repeats || catalog.find(head).is_none());
    spec.head = HeadSpec::tokens(spec.vocab, tied, false);
    if let (HeadSpec::Tokens { scale, .. }, true) = (&mut spec.head, scaled) {
        *scale = (1.0 / (spec.hidden as f64).sqrt()) as f32;
    }
    spec.encoder = Some(Box::new(EncoderSpec { stack: encoder, start: encoder_decoder::start(config)? }));
    if config.is_gguf() {
        spec.assumed.push(UNSAID.into());
    }
    Ok(spec)
}

/// One of the stacks, without a head.
fn stack(config: &ModelConfig, layers: usize, both: bool, owner: fn(usize) -> usize) -> Result<ModelSpec> {
    let (hidden, width) = (config.size(&["d_model"])?, config.size(&["d_kv"])?);
    let heads = head_count(config, &["num_heads"])?;
    let heads = Heads { heads, kv_heads: heads, k_dim: width, v_dim: width };
    let eps = config.positive(&["layer_norm_epsilon"], 1e-6)? as f32;
    let norm = NormSpec { kind: NormKind::Rms, eps, bias: false, plus_one: false, weighted: true };
    let block = BlockSpec::new(heads, norm, feed_forward(config)?);
    let mut spec = encoder_decoder::stack(config, hidden, block, layers)?;
    let tables = (0..layers).filter(|layer| owner(*layer) == *layer).count();
    let buckets = buckets(config, both, (heads.heads, tables))?;
    spec.each(|layer, b| {
        let buckets = BucketSpec { owner: owner(layer), ..buckets };
        b.buckets = Some(buckets);
        (b.scores.scale, b.scores.causal, b.scores.relative) = (1.0, !both, Some(buckets.relative()));
    });
    spec.max_positions = POSITIONS;
    spec.final_norm = Some(norm);
    (spec.family, spec.embed.shared) = (if both { Family::Encoder } else { Family::Decoder }, both);
    Ok(spec)
}

/// As `feed_forward_proj` says: `relu`, `gated-gelu` (which is the tanh form), `gated-silu`.
fn feed_forward(config: &ModelConfig) -> Result<MlpSpec> {
    let words = config.text_opt(&["feed_forward_proj"])?.unwrap_or("relu");
    let (gated, name) = words.strip_prefix("gated-").map_or((false, words), |name| (true, name));
    let name = if words == "gated-gelu" { "gelu_new" } else { name };
    let act = Act::from_name(name).ok_or_else(|| {
        Error::config("feed_forward_proj", format!("\"{words}\""), "an activation, or gated- and one")
    })?;
    // Newer files say the same a second time.
    if config.flag(&["is_gated_act"], gated)? != gated || config.act(&["dense_act_fn"], act)? != act {
        let own = ["is_gated_act", "dense_act_fn"].map(|field| config.get(field).map(ToString::to_string));
        let own = own.map(|value| value.unwrap_or_default()).join(" and ");
        let allowed = format!("what `feed_forward_proj` says, \"{words}\"");
        return Err(Error::config("is_gated_act and dense_act_fn", own, allowed));
    }
    Ok(MlpSpec::new(config.size(&["d_ff"])?, act, gated))
}

/// The buckets of distances of a stack that sees to both sides, or behind alone.
fn buckets(config: &ModelConfig, both: bool, (heads, tables): (usize, usize)) -> Result<BucketSpec> {
    let size = |field, default| Ok::<_, Error>(config.size_opt(&[field])?.unwrap_or(default));
    let buckets = size("relative_attention_num_buckets", 32)?;
    let most = size("relative_attention_max_distance", 128)?;
    let buckets = BucketSpec { buckets, most, both, owner: 0 };
    encoder_decoder::check_buckets(buckets, heads, tables).map(|()| buckets)
}
