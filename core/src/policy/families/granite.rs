//! Granite 3 and 4's dense models, and the 3 with experts: LLaMA's blocks with four factors, of embeddings,
//! of scores, of what each part adds to the residual stream, and (a divisor) of logits.

use super::llama::{NAMES, llama_as};
use crate::policy::describe::{Described, LLAMA_LIKE, refuse_gguf};
use crate::policy::moe::{BY_LOGIT, Routing, routed};
use crate::policy::*;

/// `model_type` granite.
pub const GRANITE: Described = Described::new(&["granite"], NAMES, granite);

/// All experts lie in one tensor: gate and up of the first, of the second, ...
const MOE_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::Router, "block_sparse_moe.router.layer"),
        (Slot::ExpertUp, "block_sparse_moe.input_linear"),
        (Slot::ExpertDown, "block_sparse_moe.output_linear"),
    ],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` granitemoe.
pub const GRANITE_MOE: Described = Described::new(&["granitemoe"], MOE_NAMES, granite_moe);

fn granite(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let mut spec = llama_as(config, catalog, LLAMA_LIKE)?;
    let factor = |field| config.positive(&[field], 1.0).map(|factor| factor as f32);
    let (embeddings, scores) = (factor("embedding_multiplier")?, factor("attention_multiplier")?);
    let (branches, logits) = (factor("residual_multiplier")?, config.positive(&["logits_scaling"], 1.0)?);
    spec.embed.scale = Some(embeddings).filter(|factor| *factor != 1.0);
    spec.each(|_, b| {
        b.scores.scale = scores;
        b.branch_factor = Some(branches).filter(|factor| *factor != 1.0);
    });
    if let HeadSpec::Tokens { scale, .. } = &mut spec.head {
        *scale = (1.0 / logits) as f32;
    }
    Ok(spec)
}

fn granite_moe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = granite(config, catalog)?;
    routed(config, &mut spec, Routing { renormalise: true, ..BY_LOGIT })?;
    Ok(spec)
}
