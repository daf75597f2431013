//! Every variant parses, validates, and binds what it says it binds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{AddressSpace, StorageAccess};

/// Value columns that the variants under test carry.
const COLUMNS: u32 = 8;

/// Every dialect in which the kernel has a text of its own; halves by their type as native devices take them, in the example
/// `variants` as browsers do.
fn dialects(kernel: &Kernel) -> Vec<Dialect> {
    let [plain, uniform] =
        [Carrier::Immediate, Carrier::Uniform].map(|carrier| Dialect { carrier, f16: false, dot: true });
    let mut all = vec![plain, uniform];
    if kernel.label().replace("bf16", "").contains("f16") {
        all.push(Dialect { f16: true, ..plain });
        all.push(Dialect { f16: true, dot: false, ..uniform });
    }
    if kernel.of_bytes() {
        all.push(Dialect { dot: false, ..plain });
    }
    all
}

fn module(kernel: &Kernel, dialect: Dialect) -> naga::Module {
    let text = source(kernel, dialect).unwrap();
    let fail = |what: String| -> ! { panic!("{} ({dialect:?}): {what}\n{text}", kernel.label()) };
    let module = naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| fail(e.emit_to_string(&text)));
    let mut capabilities = Capabilities::IMMEDIATES | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if dialect.f16 {
        capabilities |= Capabilities::SHADER_FLOAT16;
    }
    let (capabilities, subgroups) = match kernel.subgroups() {
        true => (capabilities | Capabilities::SUBGROUP, SubgroupOperationSet::all()),
        false => (capabilities, SubgroupOperationSet::empty()),
    };
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(subgroups);
    if let Err(e) = validator.validate(&module) {
        fail(e.emit_to_string(&text));
    }
    module
}

#[test]
fn every_variant_is_valid_portable_and_binds_what_it_says() {
    for kernel in Kernel::all(COLUMNS) {
        for dialect in dialects(&kernel) {
            let module = module(&kernel, dialect);
            portable(&kernel, &module);
            let mut found = Vec::new();
            for (_, global) in module.global_variables.iter() {
                let Some(binding) = global.binding else { continue };
                if let AddressSpace::Storage { access } = global.space {
                    let access = match access.contains(StorageAccess::STORE) {
                        true => Access::Write,
                        false => Access::Read,
                    };
                    found.push((binding.group, binding.binding, access));
                }
            }
            found.sort_by_key(|f| f.1);
            let want: Vec<_> = kernel.bindings().iter().enumerate().map(|(i, a)| (0, i as u32, *a)).collect();
            assert_eq!(found, want, "{}", kernel.label());
        }
    }
}

/// What the least device that WebGPU promises can do.
fn portable(kernel: &Kernel, module: &naga::Module) {
    assert!(kernel.bindings().len() <= 8, "{}", kernel.label());
    assert!(kernel.fields().len() < PARAM_WORDS, "{}", kernel.label());
    let size = module.entry_points[0].workgroup_size;
    assert!(size.iter().product::<u32>() <= 256, "{}", kernel.label());
    let shared = module
        .global_variables
        .iter()
        .filter(|(_, g)| g.space == AddressSpace::WorkGroup)
        .map(|(_, g)| module.types[g.ty].inner.size(module.to_ctx()))
        .sum::<u32>();
    assert!(shared <= 16 << 10, "{} takes {shared} bytes of workgroup memory", kernel.label());
}

#[test]
fn labels_tell_variants_apart() {
    let mut labels: Vec<String> = Kernel::all(COLUMNS).iter().map(Kernel::label).collect();
    let all = labels.len();
    labels.sort();
    labels.dedup();
    assert_eq!(labels.len(), all);
}
