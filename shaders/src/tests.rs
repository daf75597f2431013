//! Every variant parses, validates, and binds what it says it binds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{AddressSpace, BinaryOperator, Expression, MathFunction, ScalarKind, StorageAccess};

mod writers;

/// Value columns that the variants under test carry.
const COLUMNS: u32 = 8;

/// Every dialect in which the kernel has a text of its own; halves by their type as native devices take them,
/// in the example `variants` as browsers do.
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

fn module(kernel: &Kernel, dialect: Dialect, text: &str) -> (naga::Module, ModuleInfo) {
    let fail = |what: String| -> ! { panic!("{} ({dialect:?}): {what}\n{text}", kernel.label()) };
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| fail(e.emit_to_string(text)));
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
    match validator.validate(&module) {
        Ok(info) => (module, info),
        Err(e) => fail(e.emit_to_string(text)),
    }
}

/// The reading of the text that backends bind by, besides naga's.
#[test]
fn every_variant_is_valid_portable_and_takes_what_its_text_says() {
    for kernel in sample::some(Kernel::all(COLUMNS)) {
        for dialect in dialects(&kernel) {
            let said = source(&kernel, dialect).unwrap();
            let (module, info) = module(&kernel, dialect, &said.text);
            portable(&kernel, &said, &module);
            assert!(!of_driver(&module, &info), "{} divides by the driver's rule", kernel.label());
            let mut found = Vec::new();
            let (mut words, mut slice) = (None, None);
            for (_, global) in module.global_variables.iter() {
                match global.space {
                    AddressSpace::Storage { access } => {
                        let access = match access.contains(StorageAccess::STORE) {
                            true => Access::Write,
                            false => Access::Read,
                        };
                        let binding = global.binding.unwrap();
                        assert_eq!(binding.group, 0, "{}", kernel.label());
                        found.push((binding.binding as usize, access));
                    }
                    AddressSpace::Immediate | AddressSpace::Uniform => {
                        let of = &module.types[global.ty].inner;
                        words = Some(of.size(module.to_ctx()) as usize / 4);
                        if let naga::TypeInner::Struct { members, .. } = of {
                            slice = members.iter().position(|member| member.name.as_deref() == Some("slice"));
                        }
                    }
                    _ => {}
                }
            }
            found.sort_by_key(|f| f.0);
            let want: Vec<_> = said.bindings.iter().copied().enumerate().collect();
            assert_eq!(found, want, "{}", kernel.label());
            assert_eq!(words, Some(said.words), "{}", kernel.label());
            assert_eq!((slice, slice.is_some()), (said.slice, is_sliced(&kernel)), "{}", kernel.label());
        }
    }
}

/// Whether a dispatch may be split: those of matmuls, and of attention but for that with terms by distance,
/// whose parameters are full.
fn is_sliced(kernel: &Kernel) -> bool {
    match kernel {
        Kernel::Linear { .. } | Kernel::LinearLanes { .. } | Kernel::Experts { .. } => true,
        Kernel::Attention(how, ..) => !how.distances,
        Kernel::AttentionTile(..) => true,
        _ => false,
    }
}

/// What moves rows is found in the template: nothing else names it.
#[test]
fn moves_are_the_macros_of_their_template() {
    let found: Vec<Move> = moves().collect();
    for (name, of_elements) in [("gather", true), ("scatter", false), ("mark_seen", false)] {
        assert!(found.contains(&Move { name, of_elements }), "{name}: {found:?}");
    }
    let dialect = Dialect { carrier: Carrier::Uniform, f16: false, dot: true };
    let refused = source(&Kernel::Rows("nothing", Elem::F32), dialect).unwrap_err().to_string();
    assert!(refused.contains("rows_nothing_f32"), "{refused}");
}

/// Whether any float is divided, or a root taken, by what WGSL leaves to drivers: but for `divide` and `root`
/// of `wgsl/division.wgsl`, which correct it.
fn of_driver(module: &naga::Module, info: &ModuleInfo) -> bool {
    let entries = module.entry_points.iter().enumerate();
    let entries = entries.map(|(i, entry)| (&entry.function, info.get_entry_point(i)));
    let corrects = |function: &naga::Function| matches!(function.name.as_deref(), Some("divide" | "root"));
    let functions = module.functions.iter().filter(|(_, function)| !corrects(function));
    let functions = functions.map(|(handle, function)| (function, &info[handle]));
    entries.chain(functions).any(|(function, about)| {
        function.expressions.iter().any(|(handle, expression)| match expression {
            Expression::Binary { op: BinaryOperator::Divide | BinaryOperator::Modulo, .. } => {
                about[handle].ty.inner_with(&module.types).scalar_kind() == Some(ScalarKind::Float)
            }
            Expression::Math { fun, .. } => matches!(fun, MathFunction::Sqrt | MathFunction::InverseSqrt),
            _ => false,
        })
    })
}

#[test]
fn a_division_of_the_driver_is_seen() {
    let of = |body: &str| {
        let text = format!("@compute @workgroup_size(1) fn main() {{ var a = 3.0; var n = 7u; {body} }}");
        let (module, info) = module(&Kernel::Sample, dialects(&Kernel::Sample)[0], &text);
        of_driver(&module, &info)
    };
    assert_eq!(["a = 2.0 / a;", "a = sqrt(a);", "a = inverseSqrt(a);"].map(of), [true; 3]);
    assert_eq!(["n = 9u / n;", "a = a * (1.0 / 3.0);"].map(of), [false; 2]);
}

/// What the least device that WebGPU promises can do.
fn portable(kernel: &Kernel, said: &Source, module: &naga::Module) {
    assert!(said.bindings.len() <= 8, "{}", kernel.label());
    assert!(said.words <= PARAM_WORDS, "{}", kernel.label());
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
fn labels_distinguish_variants() {
    let mut labels: Vec<String> = Kernel::all(COLUMNS).iter().map(Kernel::label).collect();
    let all = labels.len();
    labels.sort();
    labels.dedup();
    assert_eq!(labels.len(), all);
}
