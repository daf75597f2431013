//! Whether a backend can run a model at all, asked before a weight is read.
//!
//! Only descriptions are looked at: the spec, the bindings, the formats that headers name. A dry run of the
//! model's own `forward` gives its ops, and with them the uses of every weight; a backend answers with
//! [`Coverage::Missing`] for what it has no way to run, and the first such answer refuses the model, by op,
//! operand, backend and reason. What runs and how is the plan's business (`plan.rs`).

use super::dry;
use crate::backend::Coverage;
use crate::checkpoint::Source;
use crate::mem::Float;
use crate::ops::Signature;
use crate::policy::{ModelSpec, Resolved};
use crate::weights::{LoadOptions, Uses};
use crate::{Error, Result};

/// Refuses a model that needs what the backend called `name` does not have; `coverage` is the backend's.
/// Gives the ops that will read each weight: none where `options` do not say in which element type the model
/// runs.
///
/// # Errors
/// `Unsupported`, naming op, operand or place, backend and reason; what describing the operands raises.
pub fn check<K>(
    name: &str,
    coverage: &dyn Fn(&Signature) -> Coverage<K>,
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    options: LoadOptions,
) -> Result<Uses> {
    let (mut layered, mut uses) = (false, Uses::default());
    let dtype = options.dtype.unwrap_or(Float::F32);
    let composed = |signature: &Signature| matches!(coverage(signature), Coverage::Composed(_));
    for seen in dry::survey_of(source, spec, resolved, options, (dtype, dtype.into()), &composed)?.ops {
        layered |= seen.layer.is_some();
        let reason = match (coverage(&seen.signature), &seen.weight) {
            (Coverage::Missing(reason), _) => reason,
            (Coverage::Native(_), Some(weight)) if options.dtype.is_some() => {
                uses.add(&weight.info.name, seen.signature);
                continue;
            }
            _ => continue,
        };
        let place = match (&seen.weight, seen.layer) {
            (Some(weight), _) => weight.info.name.clone(),
            (None, Some(layer)) => format!("layer {layer}"),
            (None, None) if layered => "the head".into(),
            (None, None) => "the embedding".into(),
        };
        let op = format!("{} of {place}", seen.signature.op);
        return Err(Error::Unsupported { op, backend: name.to_string(), reason });
    }
    Ok(uses)
}
