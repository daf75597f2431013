//! Mixtral: LLaMA's blocks with experts in the feed-forward part.

use super::llama::{IGNORED, NAMES, llama_as, pairs};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::moe::{BY_LOGIT, Routing, routed};
use crate::policy::*;

/// Names of the router, and of experts with the numbers that LLaMA's own files give matrices.
pub(super) const EXPERTS: [(Slot, &str); 3] = [
    (Slot::Router, "block_sparse_moe.gate"),
    (Slot::ExpertUp, "block_sparse_moe.experts.{}.w1 + block_sparse_moe.experts.{}.w3"),
    (Slot::ExpertDown, "block_sparse_moe.experts.{}.w2"),
];

/// `model_type` mixtral.
pub const MIXTRAL: Described = Described::new(
    &["mixtral"],
    Names { slots: &EXPERTS, base: NAMES.slots, ignored: IGNORED, ..NAMES },
    mixtral,
)
// In GGUF files it is an architecture of LLaMA's.
.layout(pairs);

fn mixtral(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, ..LLAMA_LIKE })?;
    spec.slide(config, |_| true)?;
    routed(config, &mut spec, Routing { renormalise: true, ..BY_LOGIT })?;
    Ok(spec)
}
