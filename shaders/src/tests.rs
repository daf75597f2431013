//! Every variant parses, validates, and binds what it says it binds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{AddressSpace, BinaryOperator, Expression, Literal, MathFunction, ScalarKind, StorageAccess};

mod chains;
mod cost;
mod writers;

use chains::open_chains;

/// Value columns that the variants under test carry.
const COLUMNS: u32 = 8;

/// Every dialect in which the kernel has a text of its own; halves by their type as native devices take them,
/// in the example `variants` as browsers do.
fn dialects(kernel: &Kernel) -> Vec<Dialect> {
    let [plain, uniform] = [Carrier::Immediate, Carrier::Uniform].map(|carrier| Dialect {
        carrier,
        f16: false,
        dot: true,
        strict: true,
    });
    let mut all = vec![plain, uniform];
    if kernel.label().replace("bf16", "").contains("f16") {
        all.push(Dialect { f16: true, ..plain });
        all.push(Dialect { f16: true, dot: false, ..uniform });
    }
    if kernel.of_bytes() {
        all.push(Dialect { dot: false, ..plain });
        // DX12 has halves and no products of four bytes.
        if all.iter().any(|dialect| dialect.f16) {
            all.push(Dialect { f16: true, dot: false, ..plain });
        }
    }
    all
}

/// The dialect of mode `Fast`, where the kernel has another text there.
fn fast(kernel: &Kernel) -> Option<Dialect> {
    let [strict, fast] = [true, false].map(|strict| Dialect { strict, ..dialects(kernel)[0] });
    let text = |dialect| source(kernel, dialect).unwrap().text;
    (text(strict) != text(fast)).then_some(fast)
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
    // Variables that hold open chains, and the last kernel that has each.
    let mut open = std::collections::BTreeMap::new();
    for kernel in sample::some(Kernel::all(COLUMNS)) {
        for dialect in dialects(&kernel) {
            let said = source(&kernel, dialect).unwrap();
            let (module, info) = module(&kernel, dialect, &said.text);
            portable(&kernel, &said, &module);
            assert!(!of_driver(&module, &info), "{} divides by the driver's rule", kernel.label());
            assert!(!has_infinity(&module), "{} makes an infinity", kernel.label());
            // What measures multiply-adds may have them in any order.
            if dialect.strict && !matches!(kernel, Kernel::Limit(_)) {
                open.extend(open_chains(&module).into_iter().map(|name| (name, kernel.label())));
            }
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
    assert!(open.is_empty(), "{open:?}");
}

/// Whether a dispatch may be split: those of matmuls, of an index's scores, and of attention but for that
/// with terms by distance, whose parameters are full.
fn is_sliced(kernel: &Kernel) -> bool {
    match kernel {
        Kernel::Linear { .. } | Kernel::LinearLanes { .. } | Kernel::Experts { .. } => true,
        Kernel::Attention(how, ..) => !how.distances,
        Kernel::AttentionTile(..) | Kernel::Index(Index::Scores, ..) => true,
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
    let dialect = Dialect { carrier: Carrier::Uniform, f16: false, dot: true, strict: true };
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
fn chains_are_open_in_mode_fast_alone() {
    let (x, kv) = (Elem::F32, Elem::F32);
    let how = Attention { dense: false, columns: 1, capped: false, subgroups: false, distances: false };
    let linear =
        Kernel::Linear { weight: Packing::Q4K, x, out: x, rows: 4, gate: false, vector: true, act: false };
    let over = [kv.into(), KvElem::Int8].into_iter();
    let over = over.flat_map(|kv| [Kernel::Attention(how, x, kv), Kernel::AttentionTile(1, false, x, kv)]);
    for kernel in over.chain([linear]) {
        let of = |strict| {
            let dialect = Dialect { strict, ..dialects(&kernel)[0] };
            let said = source(&kernel, dialect).unwrap();
            open_chains(&module(&kernel, dialect, &said.text).0)
        };
        assert_eq!(of(true), [""; 0]);
        assert!(of(false).iter().any(|name| name.starts_with("acc")), "{}: {:?}", kernel.label(), of(false));
    }
}

/// Whether any float is made of the bits of an infinity, guarded or not: compilers may take it that there are
/// none.
fn has_infinity(module: &naga::Module) -> bool {
    let infinite = |literal: &Literal| match literal {
        Literal::U32(bits) => bits & 0x7fff_ffff == 0x7f80_0000,
        Literal::F32(v) => v.is_infinite(),
        _ => false,
    };
    let entries = module.entry_points.iter().map(|entry| &entry.function);
    entries.chain(module.functions.iter().map(|(_, function)| function)).any(|function| {
        let of = |handle: naga::Handle<Expression>| match &function.expressions[handle] {
            Expression::Literal(literal) => infinite(literal),
            Expression::Constant(constant) => {
                let init = module.constants[*constant].init;
                matches!(&module.global_expressions[init], Expression::Literal(literal) if infinite(literal))
            }
            _ => false,
        };
        function.expressions.iter().any(|(_, expression)| match expression {
            Expression::As { expr, kind: ScalarKind::Float, convert: None } => {
                match function.expressions[*expr] {
                    Expression::Binary { left, right, .. } => of(left) || of(right),
                    _ => of(*expr),
                }
            }
            _ => false,
        })
    })
}

#[test]
fn an_infinity_is_seen() {
    let of = |body: &str| {
        let text = format!(
            "const INFINITE = 0xff800000u; @compute @workgroup_size(1) fn main() {{ var n = 7u; var a = 3.0; {body} }}"
        );
        has_infinity(&module(&Kernel::Sample, dialects(&Kernel::Sample)[0], &text).0)
    };
    assert_eq!(["a = bitcast<f32>(0x7f800000u ^ n);", "a = bitcast<f32>(INFINITE ^ n);"].map(of), [true; 2]);
    assert_eq!(["n = INFINITE;", "a = bitcast<f32>(0xff7fffffu ^ n);"].map(of), [false; 2]);
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
