//! Moonshine (arXiv 2410.15608): an encoder of samples, three convolutions and a norm over all of a sound in
//! front, and a decoder of text. Both rotate neighbours in a part of every head; norms have no bias, the
//! decoder's feed-forward part is gated, with the gate behind what it multiplies.

use super::super::stem::MOST_SAMPLES;
use crate::params::{Act, NormKind};
use crate::policy::describe::{Described, kv_heads, refuse_gguf};
use crate::policy::*;

const ENCODER: Names<'_> = Names {
    prefixes: &["model.encoder.", "encoder."],
    block: "layers.{}.",
    slots: &[
        (Slot::Conv, "conv{+1}"),
        (Slot::ConvNorm, "groupnorm"),
        (Slot::AttnNorm, "input_layernorm"),
        (Slot::Qkv, "self_attn.q_proj + self_attn.k_proj + self_attn.v_proj"),
        (Slot::AttnOut, "self_attn.o_proj"),
        (Slot::MlpNorm, "post_attention_layernorm"),
        (Slot::Up, "mlp.fc1"),
        (Slot::Down, "mlp.fc2"),
        (Slot::FinalNorm, "layer_norm"),
    ],
    ..Names::NONE
};

const DECODER: Names<'_> = Names {
    prefixes: &["model.decoder.", "decoder."],
    slots: &[
        (Slot::TokenEmbed, "embed_tokens"),
        (Slot::CrossNorm, "post_attention_layernorm"),
        (Slot::CrossQuery, "encoder_attn.q_proj"),
        (Slot::CrossKeyValue, "encoder_attn.k_proj + encoder_attn.v_proj"),
        (Slot::CrossOut, "encoder_attn.o_proj"),
        (Slot::MlpNorm, "final_layernorm"),
        (Slot::FinalNorm, "norm"),
        (Slot::Head, "/proj_out"),
    ],
    base: ENCODER.slots,
    // The table once more.
    ignored: &["proj_out.weight"],
    gate_behind: true,
    ..ENCODER
};

/// `model_type` moonshine.
pub const MOONSHINE: Described = Described::new(&["moonshine"], DECODER, moonshine).encoder(ENCODER);

const NORM: NormSpec =
    NormSpec { kind: NormKind::Layer, eps: 1e-5, bias: false, plus_one: false, weighted: true };

/// Names of a stack's settings.
struct Fields {
    layers: &'static [&'static str],
    heads: &'static [&'static str],
    kv_heads: &'static [&'static str],
    act: &'static [&'static str],
}

const OF_ENCODER: Fields = Fields {
    layers: &["encoder_num_hidden_layers"],
    heads: &["encoder_num_attention_heads"],
    kv_heads: &["encoder_num_key_value_heads"],
    act: &["encoder_hidden_act"],
};

const OF_DECODER: Fields = Fields {
    layers: &["decoder_num_hidden_layers"],
    heads: &["decoder_num_attention_heads"],
    kv_heads: &["decoder_num_key_value_heads"],
    act: &["decoder_hidden_act"],
};

fn moonshine(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    encoder_decoder::check_task(config, &["ForConditionalGeneration"], "...ForConditionalGeneration")?;
    let mut encoder = stack(config, OF_ENCODER, Act::Gelu, false)?;
    encoder.family = Family::Encoder;
    encoder.embed.stem = Some(stem(encoder.hidden));
    encoder.max_positions = encoder.stem().map_or(0, StemSpec::tokens);
    encoder.each(|_, b| b.scores.causal = false);
    encoder.rotate_part(config, catalog, RopeStyle::Interleaved, 0.9)?;

    let mut spec = stack(config, OF_DECODER, Act::Silu, true)?;
    spec.max_positions = config.size(&["max_position_embeddings"])?;
    spec.rotate_part(config, catalog, RopeStyle::Interleaved, 0.9)?;
    let width = |spec: &ModelSpec| spec.blocks.first().map(|block| block.heads.k_dim);
    if width(&spec) != width(&encoder) {
        // One rotation is described for both.
        let (got, heads) = (config.size(OF_DECODER.heads)?, config.size(OF_ENCODER.heads)?);
        return Err(Error::config("decoder_num_attention_heads", got, format!("{heads}, as the encoder")));
    }
    spec.each(|_, b| {
        let bias = [b.bias[0], b.bias[0], false];
        b.cross = Some(CrossSpec { bias, ..CrossSpec::new(b.attn_norm, b.scores.scale, false) });
    });
    spec.head = HeadSpec::tokens(spec.vocab, config.flag(&["tie_word_embeddings"], true)?, false);
    spec.encoder = Some(Box::new(EncoderSpec { stack: encoder, start: encoder_decoder::start(config)? }));
    Ok(spec)
}

/// Three convolutions of samples, which leave every 384th: the first through tanh and a norm over the whole
/// sound.
fn stem(hidden: usize) -> StemSpec {
    let act = Some(Act::Gelu);
    let norm = Some(ConvNorm { norm: NormSpec { bias: true, ..NORM }, groups: Some(1), act: None });
    let first = ConvSpec { act: Some(Act::Tanh), norm, ..ConvSpec::new(hidden, 127, 64) };
    let second = ConvSpec { bias: true, act, ..ConvSpec::new(2 * hidden, 7, 3) };
    let third = ConvSpec { bias: true, act, ..ConvSpec::new(hidden, 3, 2) };
    let convs = vec![first, second, third];
    StemSpec { columns: 1, frames: MOST_SAMPLES, exact: false, convs, positions: None }
}

/// What both stacks have in common.
fn stack(config: &ModelConfig, fields: Fields, act: Act, gated: bool) -> Result<ModelSpec> {
    let hidden = config.size(&["hidden_size"])?;
    let heads = even_heads(config, fields.heads, hidden)?;
    let kv_heads = kv_heads(heads.heads, config.size_opt(fields.kv_heads)?.unwrap_or(heads.heads))?;
    let inner = config.size_opt(&["intermediate_size"])?.unwrap_or(4 * hidden);
    let mlp = MlpSpec::new(inner, config.act(fields.act, act)?, gated);
    let bias = [config.flag(&["attention_bias"], false)?, false, true, true];
    let block = BlockSpec { bias, ..BlockSpec::new(Heads { kv_heads, ..heads }, NORM, mlp) };
    let mut spec = encoder_decoder::stack(config, hidden, block, config.size(fields.layers)?)?;
    spec.final_norm = Some(NORM);
    Ok(spec)
}
