//! Whether a backend can run a model at all, asked before a weight is read.
//!
//! Only descriptions are looked at: the spec, the bindings, the formats that headers name. A backend answers with
//! [`Coverage::Missing`] for what it has no way to run; the first such answer refuses the model, by op, slot, backend and
//! reason. What runs and how is the plan's business (`plan.rs`).

use crate::backend::{Coverage, Op, Signature};
use crate::checkpoint::Source;
use crate::mem::WeightFormat;
use crate::policy::{BlockSpec, Family, HeadSpec, ModelSpec, Resolved, Role, Slot};
use crate::weights::{LoadOptions, format_of};
use crate::{Error, Result};

/// Refuses a model that needs what the backend called `name` does not have; `coverage` is the backend's.
///
/// # Errors
/// `Unsupported`, naming op, slot, backend and reason.
pub fn check(
    name: &str,
    coverage: &dyn Fn(Op, &Signature) -> Coverage,
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    options: LoadOptions,
) -> Result<()> {
    let ask = |slot: &str, op: Op, signature: Signature| match coverage(op, &signature) {
        Coverage::Missing(reason) => Err(Error::Unsupported {
            op: format!("{} of {slot}", op.name()),
            backend: name.to_string(),
            reason,
        }),
        Coverage::Native(_) | Coverage::Composed(_) => Ok(()),
    };
    for one in resolved {
        let role = one.binding.role;
        let Some((outer, inner)) = spec.shape(&role) else { continue };
        for op in ops_of(spec, &role) {
            for weight in formats(source, one, options)? {
                let signature = Signature { weight: Some(weight), inner, outer, ..Signature::default() };
                ask(&role.to_string(), op, signature)?;
            }
        }
    }
    for (i, block) in spec.blocks.iter().enumerate() {
        for (op, inner, outer) in plain_ops(spec, block) {
            ask(&format!("layer {i}"), op, Signature { inner, outer, ..Signature::default() })?;
        }
    }
    if matches!(spec.head, HeadSpec::Tokens { scale, cap, .. } if scale != 1.0 || cap.is_some()) {
        let signature = Signature { inner: spec.logit_cols(), outer: 1, ..Signature::default() };
        ask("the logits", Op::Scale, signature)?;
    }
    Ok(())
}

/// Ops that read a role's operand as a weight.
fn ops_of(spec: &ModelSpec, role: &Role) -> Vec<Op> {
    if role.is_vector() {
        return Vec::new();
    }
    let gated = role.layer.and_then(|l| spec.blocks.get(l)).is_some_and(|b| b.mlp.gated);
    match role.slot {
        Slot::TokenEmbed if spec.head.is_tied() => vec![Op::Embed, Op::Linear],
        Slot::TokenEmbed => vec![Op::Embed],
        Slot::PositionEmbed | Slot::KindEmbed => vec![Op::EmbedAdd],
        Slot::ExpertUp | Slot::ExpertDown => vec![Op::ExpertLinear],
        Slot::Up if gated => vec![Op::GatedLinear],
        Slot::Up | Slot::Pooler | Slot::HeadDense => vec![Op::LinearAct],
        _ => vec![Op::Linear],
    }
}

/// Ops of a block without a weight in blocks: `(op, inner, outer)`.
fn plain_ops(spec: &ModelSpec, block: &BlockSpec) -> Vec<(Op, usize, usize)> {
    let heads = block.heads;
    let paged = spec.family == Family::Decoder || !spec.ropes.is_empty();
    let attend = if paged { Op::Attend } else { Op::AttendDense };
    let mut ops = vec![(attend, heads.k_dim, heads.heads), (Op::ReduceAddNorm, spec.hidden, spec.hidden)];
    if block.filter.is_some() {
        ops.push((Op::KvAppend, spec.hidden, 1));
        ops.push((Op::GatherRows, spec.hidden, spec.hidden));
    }
    if let Some(moe) = block.moe {
        ops.push((Op::Route, moe.router.top_k, moe.router.experts));
        ops.push((Op::Combine, moe.router.top_k, spec.hidden));
    }
    ops
}

/// The formats that an operand will be multiplied from.
fn formats(source: &dyn Source, one: &Resolved<'_>, options: LoadOptions) -> Result<Vec<WeightFormat>> {
    if let Some(format) = options.quantize.filter(|_| one.binding.quantize) {
        return Ok(vec![format]);
    }
    if let Some(format) = source.ready_format(&one.binding.role.to_string()) {
        return Ok(vec![format]);
    }
    let mut all = Vec::new();
    for tensor in &one.tensors {
        let format = format_of(&tensor.name, tensor.stored)?;
        if !all.contains(&format) {
            all.push(format);
        }
    }
    Ok(all)
}
