//! BART, mBART, Pegasus, Marian, M2M-100 and NLLB: an encoder and a decoder with LayerNorm, biases
//! everywhere, heads that share the token table, and a bias of the logits that files store with it.
//!
//! They differ in where norms stand, in positions (learned from row 2 on, or sines and cosines), in a norm
//! over the embeddings, and in whether these are scaled.

use crate::params::{Act, NormKind};
use crate::policy::describe::{Described, refuse_gguf};
use crate::policy::*;

const ENCODER: Names<'_> = Names {
    prefixes: &["model.encoder.", "encoder."],
    block: "layers.{}.",
    slots: &[
        (Slot::TokenEmbed, "/model.shared, /shared > /model.decoder.embed_tokens > embed_tokens"),
        (Slot::PositionEmbed, "embed_positions"),
        (Slot::EmbedNorm, "layernorm_embedding"),
        (Slot::AttnNorm, "self_attn_layer_norm"),
        (Slot::Qkv, "self_attn.q_proj + self_attn.k_proj + self_attn.v_proj"),
        (Slot::AttnOut, "self_attn.out_proj"),
        (Slot::MlpNorm, "final_layer_norm"),
        (Slot::Up, "fc1"),
        (Slot::Down, "fc2"),
        (Slot::FinalNorm, "layer_norm"),
    ],
    ..Names::NONE
};

const DECODER: Names<'_> = Names {
    prefixes: &["model.decoder.", "decoder."],
    slots: &[
        (Slot::CrossNorm, "encoder_attn_layer_norm"),
        (Slot::CrossQuery, "encoder_attn.q_proj"),
        (Slot::CrossKeyValue, "encoder_attn.k_proj + encoder_attn.v_proj"),
        (Slot::CrossOut, "encoder_attn.out_proj"),
        (Slot::Head, "/lm_head!w, =/final_logits_bias!b"),
    ],
    base: ENCODER.slots,
    // The table under further names, and tables that are computed.
    ignored: &[
        "*encoder.embed_tokens.weight",
        "*decoder.embed_tokens.weight",
        "lm_head.weight",
        "*embed_positions.weight*",
    ],
    ..ENCODER
};

/// `model_type` bart.
pub const BART: Described = Described::new(&["bart"], DECODER, bart).encoder(ENCODER);
/// `model_type` mbart.
pub const MBART: Described = Described::new(&["mbart"], DECODER, mbart).encoder(ENCODER);
/// `model_type` pegasus.
pub const PEGASUS: Described = Described::new(&["pegasus"], DECODER, pegasus).encoder(ENCODER);
/// `model_type` marian.
pub const MARIAN: Described = Described::new(&["marian"], DECODER, marian).encoder(ENCODER);
/// `model_type` m2m_100, which NLLB has, too.
pub const M2M_100: Described = Described::new(&["m2m_100"], DECODER, m2m_100).encoder(ENCODER);

/// What a family does with positions.
#[derive(Clone, Copy)]
enum Positions {
    /// Rows of a table from 2 on.
    Learned,
    Sinusoids(Sinusoids),
}

/// What differs between the families.
struct Family {
    placement: Placement,
    positions: Positions,
    embed_norm: bool,
    act: Act,
}

/// Sines and cosines from position 0 on.
const PLAIN: Positions = Positions::Sinusoids(Sinusoids { offset: 0, short: false });

fn bart(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    ["normalize_before", "add_final_layer_norm", "static_position_embeddings", "extra_pos_embeddings"]
        .into_iter()
        .filter(|field| config.get(field).is_some_and(serde_json::Value::is_boolean))
        .try_for_each(|field| refuse(config, field))?;
    let (placement, positions) = (Placement::Post, Positions::Learned);
    of_stacks(config, catalog, Family { placement, positions, embed_norm: true, act: Act::Gelu })
}

fn mbart(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let (placement, positions) = (Placement::Pre, Positions::Learned);
    of_stacks(config, catalog, Family { placement, positions, embed_norm: true, act: Act::Gelu })
}

fn pegasus(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let (placement, positions) = (Placement::Pre, PLAIN);
    of_stacks(config, catalog, Family { placement, positions, embed_norm: false, act: Act::Gelu })
}

fn marian(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    if !config.flag(&["share_encoder_decoder_embeddings"], true)? {
        return Err(Error::config("share_encoder_decoder_embeddings", false, "true: one table for both"));
    }
    let vocab = config.size(&["vocab_size"])?;
    match config.size_opt(&["decoder_vocab_size"])? {
        Some(own) if own != vocab => {
            return Err(Error::config("decoder_vocab_size", own, format!("{vocab}, as `vocab_size`")));
        }
        _ => {}
    }
    let (placement, positions) = (Placement::Post, PLAIN);
    of_stacks(config, catalog, Family { placement, positions, embed_norm: false, act: Act::Gelu })
}

/// Positions begin behind the padding token's number, and skip it.
fn m2m_100(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let offset = config.index(&["pad_token_id"], 1)?.saturating_add(1);
    let (placement, positions) = (Placement::Pre, Positions::Sinusoids(Sinusoids { offset, short: true }));
    of_stacks(config, catalog, Family { placement, positions, embed_norm: false, act: Act::Relu })
}

fn of_stacks(config: &ModelConfig, catalog: Catalog<'_>, family: Family) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let ends = ["ForConditionalGeneration", "MTModel"];
    encoder_decoder::check_task(config, &ends, "...ForConditionalGeneration, ...MTModel")?;
    let fields = |stack: &'static [&'static str; 3]| *stack;
    let encoder = fields(&["encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"]);
    let decoder = fields(&["decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"]);
    let mut encoder = stack(config, encoder, &family)?;
    encoder.family = crate::policy::Family::Encoder;
    encoder.embed.shared = true;
    encoder.each(|_, b| b.scores.causal = false);
    let mut spec = stack(config, decoder, &family)?;
    spec.each(|_, b| b.cross = Some(CrossSpec::new(b.attn_norm, b.scores.scale, true)));
    let tied = config.flag(&["tie_word_embeddings"], true)?;
    let bias = catalog.find("final_logits_bias").is_some();
    spec.head = HeadSpec::tokens(spec.vocab, tied, bias);
    spec.encoder = Some(Box::new(EncoderSpec { stack: encoder, start: encoder_decoder::start(config)? }));
    Ok(spec)
}

/// One of the stacks, without a head: `[layers, heads, inner]` are the names of its fields.
fn stack(
    config: &ModelConfig,
    [layers, heads, inner]: [&'static str; 3],
    family: &Family,
) -> Result<ModelSpec> {
    let hidden = config.size(&["d_model"])?;
    let norm = NormSpec { kind: NormKind::Layer, eps: 1e-5, bias: true, plus_one: false, weighted: true };
    let act = config.act(&["activation_function"], family.act)?;
    let mlp = MlpSpec::new(config.size(&[inner])?, act, false);
    let heads = match heads {
        "encoder_attention_heads" => even_heads(config, &["encoder_attention_heads"], hidden)?,
        _ => even_heads(config, &["decoder_attention_heads"], hidden)?,
    };
    let block = BlockSpec { bias: [true; 4], ..BlockSpec::new(heads, norm, mlp) };
    let mut spec = encoder_decoder::stack(config, hidden, block, config.size(&[layers])?)?;
    let rows = config.size(&["max_position_embeddings"])?;
    spec.max_positions = rows;
    match family.positions {
        Positions::Learned => {
            spec.embed.positions = Some(LearnedPositions { rows: rows.saturating_add(2), offset: 2 })
        }
        Positions::Sinusoids(sinusoids) => {
            encoder_decoder::check_positions(rows.saturating_add(sinusoids.offset))?;
            spec.embed.sinusoids = Some(sinusoids);
        }
    }
    spec.embed.norm = family.embed_norm.then_some(norm);
    spec.embed.scale = config.flag(&["scale_embedding"], false)?.then_some((hidden as f64).sqrt() as f32);
    spec.placement = family.placement;
    spec.final_norm = (family.placement == Placement::Pre).then_some(norm);
    Ok(spec)
}
