//! wav2vec 2.0 (arXiv 2006.11477): an encoder of samples, convolutions in front, positions by a convolution
//! in groups, and labels of characters for every row (CTC) or none.
//!
//! Variants: norms behind their parts, or before them (`do_stable_layer_norm`); a norm of every channel of
//! the first convolution over all of a sound, or of every row of all of them; weights behind their lengths
//! under torch's older or newer names.

use super::super::stem::MOST_SAMPLES;
use crate::params::{Act, NormKind};
use crate::policy::describe::{Described, refuse_gguf};
use crate::policy::*;

const NAMES: Names<'_> = Names {
    prefixes: &["wav2vec2.", ""],
    block: "encoder.layers.{}.",
    slots: &[
        (Slot::Conv, "feature_extractor.conv_layers.{}.conv"),
        (Slot::ConvNorm, "feature_extractor.conv_layers.{}.layer_norm"),
        (Slot::EmbedNorm, "feature_projection.layer_norm"),
        (Slot::ProjectIn, "feature_projection.projection"),
        (
            Slot::PositionConv,
            "=encoder.pos_conv_embed.conv.parametrizations.weight.original0!w, encoder.pos_conv_embed.conv!b + \
             =encoder.pos_conv_embed.conv.parametrizations.weight.original1!w ; \
             =encoder.pos_conv_embed.conv.weight_g!w, encoder.pos_conv_embed.conv!b + \
             =encoder.pos_conv_embed.conv.weight_v!w ; encoder.pos_conv_embed.conv",
        ),
        (Slot::PositionNorm, "encoder.layer_norm"),
        (Slot::Qkv, "attention.q_proj + attention.k_proj + attention.v_proj"),
        (Slot::AttnOut, "attention.out_proj"),
        (Slot::AttnNorm, "layer_norm"),
        (Slot::Up, "feed_forward.intermediate_dense"),
        (Slot::Down, "feed_forward.output_dense"),
        (Slot::MlpNorm, "final_layer_norm"),
        (Slot::FinalNorm, "encoder.layer_norm"),
        (Slot::Head, "/lm_head"),
    ],
    // Of training: what stands for masked rows, and what a row is to be told from.
    ignored: &["*masked_spec_embed", "quantizer.*", "project_hid.*", "project_q.*"],
    ..Names::NONE
};

/// `model_type` wav2vec2.
pub const WAV2VEC2: Described = Described::new(&["wav2vec2"], NAMES, wav2vec2);

fn wav2vec2(config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    refuse(config, "add_adapter")?;
    if let Some(size) = config.size_opt(&["adapter_attn_dim"])? {
        return Err(Error::config("adapter_attn_dim", size, "none: adapters of languages are not read"));
    }
    let hidden = config.size(&["hidden_size"])?;
    let heads = even_heads(config, &["num_attention_heads"], hidden)?;
    let mlp =
        MlpSpec::new(config.size(&["intermediate_size"])?, config.act(&["hidden_act"], Act::Gelu)?, false);
    let norm = norm(config.positive(&["layer_norm_eps"], 1e-5)? as f32);
    let mut block = BlockSpec { bias: [true; 4], ..BlockSpec::new(heads, norm, mlp) };
    block.scores.causal = false;
    let layers = config.size(&["num_hidden_layers"])?;
    let mut spec = encoder_decoder::stack(config, hidden, block, layers)?;
    spec.family = Family::Encoder;
    let stable = config.flag(&["do_stable_layer_norm"], false)?;
    spec.placement = if stable { Placement::Pre } else { Placement::Post };
    spec.final_norm = stable.then_some(norm);
    let positions = positions(config, hidden, if stable { None } else { Some(norm) })?;
    let stem = StemSpec { positions: Some(positions), ..stem(config)? };
    spec.embed.width = stem.convs.last().map_or(hidden, |conv| conv.outputs);
    (spec.embed.project, spec.embed.norm) = (Project::Sum, Some(norm));
    if spec.embed.width > hidden {
        return Err(Error::config(
            "conv_dim",
            spec.embed.width,
            format!("at most {hidden} in the last place"),
        ));
    }
    spec.max_positions = stem.tokens();
    spec.embed.stem = Some(stem);
    spec.head = match config.architecture() {
        name if name.ends_with("ForCTC") => HeadSpec::tokens(spec.vocab, false, true),
        "" | "Wav2Vec2Model" | "Wav2Vec2ForPreTraining" => HeadSpec::None,
        name => {
            let allowed = "Wav2Vec2ForCTC, Wav2Vec2Model or Wav2Vec2ForPreTraining";
            return Err(Error::config("architectures", format!("\"{name}\""), allowed));
        }
    };
    Ok(spec)
}

fn norm(eps: f32) -> NormSpec {
    NormSpec { kind: NormKind::Layer, eps, bias: true, plus_one: false, weighted: true }
}

fn positions(config: &ModelConfig, hidden: usize, norm: Option<NormSpec>) -> Result<PositionConv> {
    let kernel = config.size_opt(&["num_conv_pos_embeddings"])?.unwrap_or(128);
    let groups = config.size_opt(&["num_conv_pos_embedding_groups"])?.unwrap_or(16);
    if !hidden.is_multiple_of(groups) {
        let allowed = format!("a divisor of {hidden}");
        return Err(Error::config("num_conv_pos_embedding_groups", groups, allowed));
    }
    let act = config.act(&["feat_extract_activation"], Act::Gelu)?;
    Ok(PositionConv { kernel, groups, act, norm })
}

fn stem(config: &ModelConfig) -> Result<StemSpec> {
    let [sizes, kernels, strides] =
        ["conv_dim", "conv_kernel", "conv_stride"].map(|field| config.sizes(field));
    let (sizes, kernels, strides) = (sizes?, kernels?, strides?);
    for (field, list) in [("conv_kernel", &kernels), ("conv_stride", &strides)] {
        if list.len() != sizes.len() {
            let allowed = format!("{} numbers, as many as conv_dim has", sizes.len());
            return Err(Error::config(field, list.len(), allowed));
        }
    }
    let count = config.size_opt(&["num_feat_extract_layers"])?.unwrap_or(sizes.len());
    if count != sizes.len() {
        return Err(Error::config(
            "num_feat_extract_layers",
            count,
            format!("{}, as conv_dim has", sizes.len()),
        ));
    }
    let act = Some(config.act(&["feat_extract_activation"], Act::Gelu)?);
    let by_channel = match config.text_opt(&["feat_extract_norm"])?.unwrap_or("group") {
        "group" => true,
        "layer" => false,
        other => return Err(Error::config("feat_extract_norm", format!("\"{other}\""), "group, layer")),
    };
    let bias = config.flag(&["conv_bias"], false)?;
    let conv = |(i, outputs): (usize, &usize)| {
        let plain = ConvSpec { bias, ..ConvSpec::new(*outputs, kernels[i], strides[i]) };
        let groups = by_channel.then_some(*outputs);
        match by_channel && i > 0 {
            true => ConvSpec { act, ..plain },
            false => ConvSpec { norm: Some(ConvNorm { norm: norm(1e-5), groups, act }), ..plain },
        }
    };
    let convs = sizes.iter().enumerate().map(conv).collect();
    let stem = StemSpec { columns: 1, frames: MOST_SAMPLES, exact: false, convs, positions: None };
    match stem.least() <= MOST_SAMPLES {
        true => Ok(stem),
        false => {
            let allowed = format!("convolutions that make a row of {MOST_SAMPLES} samples");
            Err(Error::config("conv_stride", stem.least(), allowed))
        }
    }
}
