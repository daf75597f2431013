//! Whisper: an encoder of sound, two convolutions over log-mel energies in front, and a decoder of text. Keys
//! have no bias; the head is the decoder's token table.

use crate::params::{Act, NormKind};
use crate::policy::describe::{Described, refuse_gguf};
use crate::policy::*;

const ENCODER: Names<'_> = Names {
    prefixes: &["model.encoder.", "encoder."],
    block: "layers.{}.",
    slots: &[
        (Slot::Conv, "conv{+1}"),
        (Slot::PositionEmbed, "embed_positions"),
        (Slot::AttnNorm, "self_attn_layer_norm"),
        (Slot::Qkv, "self_attn.q_proj + self_attn.k_proj!w + self_attn.v_proj"),
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
        (Slot::TokenEmbed, "embed_tokens"),
        (Slot::CrossNorm, "encoder_attn_layer_norm"),
        (Slot::CrossQuery, "encoder_attn.q_proj"),
        (Slot::CrossKeyValue, "encoder_attn.k_proj!w + encoder_attn.v_proj"),
        (Slot::CrossOut, "encoder_attn.out_proj"),
        (Slot::Head, "/proj_out"),
    ],
    base: ENCODER.slots,
    // The table once more.
    ignored: &["proj_out.weight"],
    ..ENCODER
};

/// `model_type` whisper.
pub const WHISPER: Described = Described::new(&["whisper"], DECODER, whisper).encoder(ENCODER);

fn whisper(config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    encoder_decoder::check_task(config, &["ForConditionalGeneration"], "...ForConditionalGeneration")?;
    let mut encoder = encoder(config)?;
    encoder.family = Family::Encoder;
    let heads = even_heads(config, &["decoder_attention_heads"], encoder.hidden)?;
    let inner = config.size(&["decoder_ffn_dim"])?;
    let mut spec = stack(config, heads, inner, config.size(&["decoder_layers"])?)?;
    spec.max_positions = config.size(&["max_target_positions"])?;
    spec.learn_positions();
    spec.embed.scale =
        config.flag(&["scale_embedding"], false)?.then_some((spec.hidden as f64).sqrt() as f32);
    spec.each(|_, b| b.cross = Some(CrossSpec::new(b.attn_norm, b.scores.scale, true)));
    spec.head = HeadSpec::tokens(spec.vocab, config.flag(&["tie_word_embeddings"], true)?, false);
    spec.encoder = Some(Box::new(EncoderSpec { stack: encoder, start: encoder_decoder::start(config)? }));
    Ok(spec)
}

/// The encoder: two convolutions of three taps, of which the second halves the rows.
fn encoder(config: &ModelConfig) -> Result<ModelSpec> {
    let hidden = config.size(&["d_model"])?;
    let heads = even_heads(config, &["encoder_attention_heads"], hidden)?;
    let inner = config.size(&["encoder_ffn_dim"])?;
    let mut spec = stack(config, heads, inner, config.size(&["encoder_layers"])?)?;
    let rows = config.size(&["max_source_positions"])?;
    encoder_decoder::check_positions(rows)?;
    spec.max_positions = rows;
    spec.learn_positions();
    spec.each(|_, b| b.scores.causal = false);
    let conv =
        |stride| ConvSpec { pad: 1, bias: true, act: Some(Act::Gelu), ..ConvSpec::new(hidden, 3, stride) };
    let columns = config.size(&["num_mel_bins"])?;
    let convs = vec![conv(1), conv(2)];
    spec.embed.stem = Some(StemSpec { columns, frames: 2 * rows, exact: true, convs, positions: None });
    Ok(spec)
}

/// What both stacks have in common.
fn stack(config: &ModelConfig, heads: Heads, inner: usize, layers: usize) -> Result<ModelSpec> {
    let norm = NormSpec { kind: NormKind::Layer, eps: 1e-5, bias: true, plus_one: false, weighted: true };
    let mlp = MlpSpec::new(inner, config.act(&["activation_function"], Act::Gelu)?, false);
    let block = BlockSpec { bias: [true; 4], ..BlockSpec::new(heads, norm, mlp) };
    let mut spec = encoder_decoder::stack(config, config.size(&["d_model"])?, block, layers)?;
    spec.final_norm = Some(norm);
    Ok(spec)
}
