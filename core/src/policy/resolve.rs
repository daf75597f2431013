//! A policy's table against a checkpoint's names: which tensor fills which role, or what does not match.
//!
//! Every role of the model is filled by exactly one binding, every source by exactly one tensor of the shape
//! that the model has there, and no tensor is left over unless the policy knows it to be unused. Only headers
//! are read; the loader ([`crate::weights`]) takes the result and reads the bytes.

use super::{Binding, Catalog, InjectionPolicy, ModelSpec, Role, RowOrder, Slot};
use crate::checkpoint::TensorInfo;
use crate::config::ModelConfig;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::ops::Range;

/// A binding and the tensors that were found for it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Resolved<'a> {
    /// The binding.
    pub binding: Binding,
    /// One tensor per source, in the order of the sources.
    pub tensors: Vec<&'a TensorInfo>,
}

/// Matmuls of a block, however they are fused: from hidden states to heads and back, to the MLP and back.
const MATMULS: usize = 4;
/// Layers whose missing tensors are listed by name in any case.
const LISTED: usize = 128;

/// Finds the tensors of every role of `spec`, in the order of [`ModelSpec::roles`].
///
/// # Errors
/// `Config` for more layers than the file's tensors can be. `Binding`, listing names: a role bound twice,
/// bound but not the model's, or left open; a source without a tensor or with several; a tensor left over.
/// `Tensor`: a shape that is not the model's (tables are never padded).
pub fn resolve<'a>(
    policy: &dyn InjectionPolicy,
    spec: &ModelSpec,
    config: &ModelConfig,
    catalog: Catalog<'a>,
) -> Result<Vec<Resolved<'a>>> {
    let fail = |what: &str, names: Vec<String>| match names.is_empty() {
        true => Ok(()),
        false => Err(Error::Binding { policy: policy.name().to_string(), what: what.to_string(), names }),
    };
    // Every block has four matmuls at least: a number of layers that the file cannot hold is reported as
    // such, not as a list of thousands of names.
    let own_of = |spec: &ModelSpec| (0..spec.blocks.len()).filter(|l| spec.owner(*l) == *l).count();
    let own = own_of(spec) + spec.encoder.as_ref().map_or(0, |encoder| own_of(&encoder.stack));
    let most = (catalog.tensors().len() / MATMULS).max(LISTED);
    if own > most {
        let allowed = format!("at most {most}, since the file has {} tensors", catalog.tensors().len());
        return Err(Error::config("layers", own, allowed));
    }
    let bindings = policy.bindings(spec, config, catalog);
    let roles = spec.roles();
    let (twice, foreign, open) = match_roles(&bindings, &roles);
    fail("roles bound twice", twice)?;
    fail("roles bound that the model does not have", foreign)?;
    fail("roles left open", open)?;

    let (mut found, mut missing, mut several) = (Vec::new(), Vec::new(), Vec::new());
    for binding in bindings {
        let mut tensors = Vec::new();
        if binding.sources.is_empty() {
            missing.push(format!("{} (no names)", binding.role));
        }
        for source in &binding.sources {
            let names: BTreeSet<&str> = source.names.iter().map(String::as_str).collect();
            let there: Vec<&TensorInfo> = names.iter().filter_map(|n| catalog.find(n)).collect();
            match there[..] {
                [one] => tensors.push(one),
                [] => missing.push(format!("{} ({})", binding.role, source.names.join(" or "))),
                _ => several.extend(there.iter().map(|t| t.name.clone())),
            }
        }
        found.push(Resolved { binding, tensors });
    }
    fail("tensors missing for roles", missing)?;
    fail("several tensors for the same place", several)?;

    let used: BTreeSet<&str> = found.iter().flat_map(|r| &r.tensors).map(|t| t.name.as_str()).collect();
    let drafting = drafting_blocks(spec, config)?;
    let drafts = |name: &str| block_of(name).is_some_and(|block| drafting.contains(&block));
    let unread = |name: &str| policy.ignores(name) || drafts(name) || is_of_identity(spec, name);
    let known = |name: &str| used.contains(name) || unread(name);
    let left = catalog.tensors().iter().map(|t| &t.name).filter(|n| !known(n));
    fail("tensors left over", left.cloned().collect())?;
    for resolved in &found {
        check_shapes(spec, resolved)?;
    }
    let place = |role: &Role| roles.iter().position(|r| r == role);
    found.sort_by_cached_key(|r| place(&r.binding.role));
    Ok(found)
}

/// The number of the block whose tensor this is, as folders name it and as GGUF files do.
fn block_of(name: &str) -> Option<usize> {
    number_behind("layers", name).or_else(|| number_behind("blk", name))
}

/// Blocks behind the model's own that predict further tokens for speculation: they are not run.
fn drafting_blocks(spec: &ModelSpec, config: &ModelConfig) -> Result<Range<usize>> {
    let of_text = "text_config.num_nextn_predict_layers";
    let count = config.index(&["num_nextn_predict_layers", "num_mtp_modules", of_text], 0)?;
    let first = spec.blocks.len();
    Ok(first..first.saturating_add(count))
}

/// Adds to what a user reads that such blocks are left out.
///
/// # Errors
/// `Config` for a number that is none.
pub(super) fn say_what_drafts(spec: &mut ModelSpec, config: &ModelConfig) -> Result<()> {
    let count = drafting_blocks(spec, config)?.len();
    if count > 0 {
        spec.assumed.push(format!("{count} blocks that predict further tokens are not run"));
    }
    Ok(())
}

/// Whether a tensor is of an expert without weights: there are files with matrices for it, which no model
/// reads. None of those leads back to the hidden size: with such a one it is an expert like others, and their
/// number is wrong.
fn is_of_identity(spec: &ModelSpec, name: &str) -> bool {
    if !name.contains(".gate_proj.") && !name.contains(".up_proj.") {
        return false;
    }
    let Some(expert) = number_behind("experts", name) else { return false };
    let mut all = spec.blocks.iter().filter_map(|block| block.moe);
    all.any(|moe| (moe.with_weights()..moe.router.experts).contains(&expert))
}

/// The number behind a part of a tensor's name.
fn number_behind(module: &str, name: &str) -> Option<usize> {
    let mut parts = name.split('.').skip_while(|part| *part != module).skip(1);
    parts.next()?.parse().ok()
}

/// Roles bound twice, bound without being the model's, and left open.
fn match_roles(bindings: &[Binding], roles: &[Role]) -> (Vec<String>, Vec<String>, Vec<String>) {
    let wanted: BTreeSet<&Role> = roles.iter().collect();
    let mut bound = BTreeSet::new();
    let twice = bindings.iter().filter(|b| !bound.insert(&b.role)).map(|b| b.role.to_string()).collect();
    let foreign = bound.iter().filter(|r| !wanted.contains(**r)).map(|r| r.to_string()).collect();
    let open = roles.iter().filter(|r| !bound.contains(r)).map(|r| r.to_string()).collect();
    (twice, foreign, open)
}

/// The tensors, without one of lengths that stands next to a convolution's taps: one for each of these.
fn without_lengths<'r, 'a>(spec: &ModelSpec, resolved: &'r Resolved<'a>) -> Result<&'r [&'a TensorInfo]> {
    let role = &resolved.binding.role;
    let (Slot::PositionConv, [lengths, taps @ ..]) = (role.slot, &resolved.tensors[..]) else {
        return Ok(&resolved.tensors);
    };
    if taps.is_empty() {
        return Ok(&resolved.tensors);
    }
    let stem = spec.stack_of(role).embed.stem.as_ref();
    let kernel = stem.and_then(|stem| stem.positions).map_or(0, |positions| positions.kernel);
    match lengths.elements() == kernel {
        true => Ok(taps),
        false => {
            let what = format!("shape is {:?}, expected {kernel} values, one for each tap", lengths.shape);
            Err(Error::tensor(lengths.name.clone(), what))
        }
    }
}

/// Compares what the tensors' headers say with what the model has at this place.
fn check_shapes(spec: &ModelSpec, resolved: &Resolved<'_>) -> Result<()> {
    let (binding, role) = (&resolved.binding, &resolved.binding.role);
    let tensors = without_lengths(spec, resolved)?;
    let (Some((stored, cols)), Some(parts)) = (spec.stored_shape(role), spec.parts(role)) else {
        return Err(Error::internal(format!("{role} has no shape")));
    };
    let of_heads = matches!(role.slot, Slot::KeyUp | Slot::ValueUp);
    let parts = if of_heads || role.slot == Slot::PositionBias { vec![stored] } else { parts };
    let zeros = if let RowOrder::WithZeros { count, .. } = binding.order { count } else { 0 };
    let whole = parts.iter().sum::<usize>() - zeros;
    let experts = match role.slot {
        Slot::ExpertUp | Slot::ExpertDown => spec.experts(role),
        _ => None,
    };
    let per_part = tensors.len() == parts.len() && zeros == 0;
    let mut rows = 0usize;
    for (i, tensor) in tensors.iter().enumerate() {
        let expected = if per_part { parts[i] } else { whole };
        let got = match (role.is_vector(), &tensor.shape[..]) {
            (true, [n] | [1, n]) => Some(*n),
            (true, []) => Some(1),
            (true, [count, n]) if experts == Some(*count) => count.checked_mul(*n),
            (false, [n]) if whole == 1 && *n == cols => Some(1),
            (false, [n]) if cols == 1 => Some(*n),
            (false, [k, n]) if binding.transposed => (*k == cols).then_some(*n),
            // All experts in one tensor.
            (false, [count, k, n]) if experts == Some(*count) && binding.transposed => {
                count.checked_mul(*n).filter(|_| *k == cols)
            }
            (false, [count, n, k]) if experts == Some(*count) && *k == cols => count.checked_mul(*n),
            // Keys or values of latent attention, of every head.
            (false, [count, n, k]) if of_heads && *k == cols => count.checked_mul(*n),
            // Patches of pixels have four dimensions, convolutions over time three.
            (false, [n, rest @ ..]) if !rest.is_empty() && rest.iter().product::<usize>() == cols => Some(*n),
            _ => None,
        };
        rows = rows.saturating_add(got.unwrap_or(0));
        // Without one tensor per part only the sum is known: no tensor may exceed it, and the last must
        // complete it.
        let last = i + 1 == tensors.len();
        let fits = |n: usize| if per_part { n == expected } else { n <= whole && (!last || rows == whole) };
        if !got.is_some_and(fits) {
            let want = match (role.is_vector(), binding.transposed) {
                (true, _) => format!("[{expected}]"),
                (false, false) => format!("[{expected}, {cols}]"),
                (false, true) => format!("[{cols}, {expected}]"),
            };
            let of = if tensors.len() > 1 && !per_part { " over all its tensors" } else { "" };
            let what = format!("shape is {:?}, expected {want}{of} for {role}", tensor.shape);
            return Err(Error::tensor(tensor.name.clone(), what));
        }
    }
    Ok(())
}
