//! ModernBERT: a pre-norm encoder that rotates, with a gated feed-forward part; most blocks have a window to
//! both sides and a rotation of their own, and the first has no norm before attention.

use super::rotary_encoder::only;
use crate::params::{Act, NormKind};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, decoder, sliding_layers};
use crate::policy::task::{Task, first_token, set_task};
use crate::policy::*;

/// `model_type` modernbert.
pub const MODERNBERT: Described = Described::new(
    &["modernbert"],
    Names {
        prefixes: &["model.", ""],
        block: "layers.{}.",
        slots: &[
            (Slot::TokenEmbed, "embeddings.tok_embeddings"),
            (Slot::EmbedNorm, "embeddings.norm"),
            (Slot::AttnNorm, "attn_norm"),
            (Slot::Qkv, "attn.Wqkv"),
            (Slot::AttnOut, "attn.Wo"),
            (Slot::MlpNorm, "mlp_norm"),
            (Slot::Up, "mlp.Wi"),
            (Slot::Down, "mlp.Wo"),
            (Slot::FinalNorm, "final_norm"),
            (Slot::HeadDense, "/head.dense"),
            (Slot::HeadNorm, "/head.norm"),
            (Slot::Head, "/decoder"),
        ],
        ignored: &["decoder.weight"],
        ..Names::NONE
    },
    modernbert,
);

fn modernbert(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let task = only(config, &[Task::Bare, Task::Masked])?;
    let flag = |field| config.flag(&[field], false);
    let (attention, mlp) = (flag("attention_bias")?, flag("mlp_bias")?);
    let switches = Switches {
        norm: NormKind::Layer,
        eps: 1e-5,
        act: Act::Gelu,
        bias: [attention, attention, mlp, mlp],
        tied: true,
        positions: 8192,
        ..LLAMA_LIKE
    };
    let mut spec = decoder(config, switches)?;
    let biased = flag("norm_bias")?;
    let of_model = |norm: Option<NormSpec>| norm.map(|norm| NormSpec { bias: biased, ..norm });
    spec.family = Family::Encoder;
    spec.final_norm = of_model(spec.final_norm);
    spec.embed.norm = spec.final_norm;
    spec.each(|i, b| {
        b.scores.causal = false;
        (b.attn_norm, b.mlp_norm) = (of_model(b.attn_norm).filter(|_| i > 0), of_model(b.mlp_norm));
    });
    windows(config, catalog, &mut spec)?;
    let act = config.act(&["classifier_activation"], Act::Gelu)?;
    let bias = flag("classifier_bias")?;
    let head = HeadTransform { act, norm: spec.final_norm, width: spec.hidden, bias };
    let pool = first_token(spec.hidden, act);
    set_task(config, &mut spec, task, head, pool)?;
    if let HeadSpec::Tokens { bias, .. } = &mut spec.head {
        *bias = config.flag(&["decoder_bias"], true)?;
    }
    Ok(spec)
}

/// Windows of half of `local_attention` to both sides, in all blocks but every so many, and two rotations.
fn windows(config: &ModelConfig, catalog: Catalog<'_>, spec: &mut ModelSpec) -> Result<()> {
    let every = config.size_opt(&["global_attn_every_n_layers"])?.unwrap_or(3);
    let half = config.size_opt(&["local_attention"])?.unwrap_or(128) / 2;
    let half = u32::try_from(half).map_err(|_| Error::config("local_attention", half, "below 2^32"))?;
    let listed = sliding_layers(config, spec.blocks.len())?;
    let local = |i: usize| listed.as_ref().map_or(!i.is_multiple_of(every), |listed| listed[i]);
    spec.each(|i, b| {
        if local(i) {
            (b.scores.window, b.scores.ahead) = (Some(half.saturating_add(1)), Some(half));
        }
    });
    let theta = |field, default| config.positive(&[field], default);
    let config = &config
        .with("rope_local_base_freq", theta("local_rope_theta", 10_000.0)?)
        .with("rope_theta", theta("global_rope_theta", 160_000.0)?);
    let width = spec.blocks.first().map_or(0, |b| b.heads.k_dim);
    spec.ropes = rope::local_and_global(config, catalog, [width; 2], spec.max_positions)?;
    spec.each(|_, b| b.rope = Some(usize::from(b.scores.window.is_none())));
    Ok(())
}
