//! ELECTRA: BERT with a narrow embedding, trained to tell replaced tokens.

use crate::params::Act;
use crate::policy::describe::Described;
use crate::policy::task::{Task, first_token, narrow, set_task, task, token_types};
use crate::policy::*;

/// `model_type` electra.
pub const ELECTRA: Described = Described::new(
    &["electra"],
    Names {
        prefixes: &["electra.", ""],
        block: "encoder.layer.{}.",
        slots: &[
            (Slot::ProjectIn, "embeddings_project"),
            (Slot::Pooler, "/classifier.dense"),
            (Slot::HeadDense, "/discriminator_predictions.dense ; /generator_predictions.dense"),
            (Slot::HeadNorm, "/generator_predictions.LayerNorm"),
            (
                Slot::Head,
                "/discriminator_predictions.dense_prediction ; /generator_lm_head ; /classifier.out_proj ; /classifier ; /qa_outputs",
            ),
        ],
        base: super::bert::NAMES.slots,
        ignored: &["*position_ids", "generator_lm_head.weight"],
        ..Names::NONE
    },
    electra,
);

fn electra(config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = narrow(config)?;
    spec.embed.token_types = token_types(config)?;
    let task = task(config, Task::Detect)?;
    let masked = match task {
        Task::Detect => {
            let act = spec.blocks.first().map_or(Act::Gelu, |b| b.mlp.act);
            HeadTransform { act, norm: None, width: spec.hidden, bias: true }
        }
        _ => HeadTransform { act: Act::Gelu, norm: spec.embed.norm, width: spec.embed.width, bias: true },
    };
    let pool = first_token(spec.hidden, Act::Gelu);
    set_task(config, &mut spec, task, masked, pool)?;
    Ok(spec)
}
