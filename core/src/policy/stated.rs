//! The tensors that a policy asks for: what a checkpoint would have, made from its configuration alone.
//!
//! Names are the first that the family's table has, shapes those that the model has there. They are resolved
//! like a file's afterwards, so a table that does not go with its own model is an error here, too.

use super::{Binding, Catalog, InjectionPolicy, ModelSpec, Role, RowOrder, Slot};
use crate::checkpoint::TensorInfo;
use crate::config::ModelConfig;
use crate::mem::Stored;
use crate::{Error, Result};
use std::collections::BTreeMap;

/// The element type of a tensor by its name; and of a matrix that is multiplied with inside a block its
/// columns, and whether it holds the matrices of experts.
type Types<'a> = &'a dyn Fn(&str, Option<(usize, bool)>) -> Stored;

/// The tensors of every role of `spec`, sorted by name; `types` says how they are stored.
///
/// # Errors
/// `Binding` for a role without a name; `Unsupported` by name for one whose tensors cannot be known.
pub(crate) fn stated_tensors(
    policy: &dyn InjectionPolicy,
    spec: &ModelSpec,
    config: &ModelConfig,
    types: Types<'_>,
) -> Result<Vec<TensorInfo>> {
    // Whether some matrices are transposed depends on what is there.
    let plain = of_catalog(policy, spec, (config, Catalog::new(&[])), types)?;
    of_catalog(policy, spec, (config, Catalog::new(&plain)), types)
}

fn of_catalog(
    policy: &dyn InjectionPolicy,
    spec: &ModelSpec,
    (config, catalog): (&ModelConfig, Catalog<'_>),
    types: Types<'_>,
) -> Result<Vec<TensorInfo>> {
    let mut all = BTreeMap::new();
    for binding in policy.bindings(spec, config, catalog) {
        let shapes = shapes(spec, &binding)?;
        for (source, shape) in binding.sources.iter().zip(shapes) {
            let Some(name) =
                source.names.iter().find(|name| catalog.find(name).is_some()).or(source.names.first())
            else {
                let (policy, names) = (policy.name().to_string(), vec![binding.role.to_string()]);
                return Err(Error::Binding { policy, what: "no names for".into(), names });
            };
            let cols = shape.last().copied().unwrap_or(0);
            let stored = types(name, of_matmuls(&binding).map(|experts| (cols, experts)));
            // Two roles may be parts of one tensor.
            all.insert(name.clone(), TensorInfo { name: name.clone(), shape, stored });
        }
    }
    Ok(all.into_values().collect())
}

/// Whether a binding is of matrices that are multiplied with inside a block, and whether of experts.
fn of_matmuls(binding: &Binding) -> Option<bool> {
    let Role { slot, .. } = binding.role;
    let others = [Slot::Router, Slot::Join, Slot::PositionBias, Slot::FilterIn, Slot::FilterOut];
    let is = slot.in_block() && !binding.role.is_vector() && !others.contains(&slot);
    is.then_some(matches!(slot, Slot::ExpertUp | Slot::ExpertDown))
}

/// The shapes of a binding's tensors.
fn shapes(spec: &ModelSpec, binding: &Binding) -> Result<Vec<Vec<usize>>> {
    let role = &binding.role;
    let (Some((stored, cols)), Some(parts)) = (spec.stored_shape(role), spec.parts(role)) else {
        return Err(Error::internal(format!("{role} has no shape")));
    };
    let one = matches!(role.slot, Slot::KeyUp | Slot::ValueUp | Slot::PositionBias);
    let parts = if one { vec![stored] } else { parts };
    let zeros = if let RowOrder::WithZeros { count, .. } = binding.order { count } else { 0 };
    let (whole, count) = (parts.iter().sum::<usize>() - zeros, binding.sources.len());
    let fused = count < parts.len();
    // Lengths of a convolution's taps stand next to it.
    let unlike = role.slot == Slot::PositionConv && count > 1;
    let rows = match count == parts.len() && zeros == 0 {
        true => parts,
        false if count > 0 && whole.is_multiple_of(count) && !unlike => vec![whole / count; count],
        false => {
            let op = format!("the {count} tensors of {role}");
            let reason = "their sizes do not follow from a configuration: give the folder".to_string();
            return Err(Error::Unsupported { op, backend: "a plan of a configuration".into(), reason });
        }
    };
    let experts = match role.slot {
        Slot::ExpertUp | Slot::ExpertDown if fused => spec.experts(role),
        _ => None,
    };
    let shape = |rows: usize| match (role.is_vector(), experts) {
        (true, Some(n)) => vec![n, rows / n],
        (true, None) => vec![rows],
        (false, Some(n)) if binding.transposed => vec![n, cols, rows / n],
        (false, Some(n)) => vec![n, rows / n, cols],
        (false, None) if binding.transposed => vec![cols, rows],
        (false, None) => vec![rows, cols],
    };
    Ok(rows.into_iter().map(shape).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::super::tests::Case;
    use super::super::{Registry, resolve};
    use super::*;
    use crate::checkpoint::StatedTypes;

    /// Of every fixture the tensors that its configuration asks for: they fill the same roles with as many
    /// elements as those that its file has.
    #[test]
    fn every_configuration_asks_for_what_its_file_has() {
        let mut seen = 0;
        for (name, mut case) in Case::all() {
            let config = case.config.clone();
            // What only files say.
            let Ok((of_file, found)) = case.resolve() else { panic!("{name}") };
            let want: usize = elements(&found);
            let model = ModelConfig::new(config.clone()).unwrap();
            let types = StatedTypes::take(&mut config.clone()).unwrap();
            let empty = Catalog::new(&[]);
            let Ok(policy) = Registry::default().choose(&model, empty) else { continue };
            let Ok(spec) = policy.spec(&model, empty) else { continue };
            if spec != of_file {
                continue;
            }
            let tensors =
                stated_tensors(policy.as_ref(), &spec, &model, &|name, matrix| types.of(name, matrix));
            let Ok(tensors) = tensors else { continue };
            let catalog = Catalog::new(&tensors);
            let again = policy.spec(&model, catalog).unwrap();
            let found =
                resolve(policy.as_ref(), &again, &model, catalog).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!((again, elements(&found)), (spec, want), "{name}");
            seen += 1;
        }
        assert!(seen > 60, "{seen} configurations");
    }

    fn elements(found: &[super::super::Resolved<'_>]) -> usize {
        let all: BTreeMap<&str, usize> =
            found.iter().flat_map(|one| &one.tensors).map(|t| (t.name.as_str(), t.elements())).collect();
        all.values().sum()
    }
}
