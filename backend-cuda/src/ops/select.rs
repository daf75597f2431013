//! Which kernel a matmul, one of experts or an attention takes: one choice by the op's signature, which its
//! body and the report both ask.

use super::names::{elem, format, kept, no_format};
use crate::Kernel;
use crate::order::{Order, Taken};
use crate::terms::Terms;
use engraft_core::mem::{WeightFormat, WeightInfo, WeightUse};
use engraft_core::numerics::Mode;
use engraft_core::ops::{LinearOpKind, MoeOpKind, OpKind, Signature, SumPart};
use engraft_core::params::Heads;
use engraft_kernels::bytes::Bytes;
use engraft_kernels::columns::Columns;
use engraft_kernels::pack::{Encoding, Layout};
use engraft_kernels::params::gemm::Hopper;
use engraft_kernels::params::{Elem, Format, attention as strict, flash, gemm};

/// How a matmul runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matmul {
    /// In the contract's order: weights in this format as stored.
    Strict(Format),
    /// The same, f32 weights with the outputs of a warp side by side.
    Columns(Columns),
    /// In the contract's order, too: quantized activations, products of bytes.
    Integers(Bytes),
    /// On tensor cores: weights packed.
    Tensor {
        /// How they are packed, but for gated weights.
        layout: Layout,
        /// Which of the kernels that only Hopper runs more than a few rows take.
        hopper: Hopper,
        /// Whether many rows are offered to cuBLASLt first.
        blaslt: bool,
    },
}

impl Matmul {
    /// The key, for activations of the signature's type.
    pub fn kernel(self, signature: &Signature) -> Kernel {
        match self {
            Self::Strict(format) => Kernel::Strict(format),
            Self::Columns(_) => Kernel::Columns,
            Self::Integers(_) => Kernel::Integers,
            Self::Tensor { layout: Layout { encoding, .. }, hopper, blaslt } => {
                Kernel::Tensor { encoding, elem: elem(signature.x), hopper, blaslt }
            }
        }
    }
}

/// Whether cuBLASLt can say what this op is: no bias, and nothing behind it but a sum.
fn blaslt_says(s: &Signature) -> bool {
    let alone = OpKind::Linear(LinearOpKind::Linear);
    !s.bias && (s.op == alone || s.op == OpKind::Linear(LinearOpKind::LinearAdd))
}

/// The kernel of a matmul. Whether its weight is gated does not matter: such a weight has an even number of
/// rows.
///
/// # Errors
/// Why there is none.
pub(super) fn matmul(terms: Terms, s: &Signature) -> Result<Matmul, String> {
    let format = format(s)?;
    let (n, k) = (s.outer, s.inner);
    if s.weight == Some(WeightFormat::W8A8) {
        return Ok(Matmul::Integers(Bytes { n, k }));
    }
    if terms.mode == Mode::Reference {
        return Ok(Matmul::Strict(format));
    }
    // Tensor cores take whole units: where a leaf begins inside one, ranks share the contract's order.
    if s.part == SumPart::Any {
        return Ok(in_order(format, n, k));
    }
    let group = match s.weight {
        Some(WeightFormat::Group(groups)) => groups.group(k),
        _ => 0,
    };
    Ok(match gemm::supports(elem(s.x), elem(s.out), format, group, n, k, false) {
        Ok(layout) => {
            let plain = layout.encoding == Encoding::Plain;
            // A chain over all of K has no nodes of the tree.
            let fast = terms.mode == Mode::Fast && plain && s.part == SumPart::Whole;
            let hopper = match terms.hopper {
                false => Hopper::None,
                true if fast => Hopper::All,
                true => Hopper::ByLeaves,
            };
            Matmul::Tensor { layout, hopper, blaslt: fast && terms.blaslt && blaslt_says(s) }
        }
        Err(_) => in_order(format, n, k),
    })
}

/// How experts' matmuls run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Experts {
    /// In the contract's order: weights in this format as stored.
    Strict(Format),
    /// On tensor cores: weights packed, as one matrix that experts have parts of.
    Tensor(Layout),
}

impl Experts {
    /// The key, for activations of the signature's type.
    pub fn kernel(self, signature: &Signature) -> Kernel {
        match self {
            Self::Strict(format) => Kernel::Experts(format),
            Self::Tensor(Layout { encoding, .. }) => Kernel::Grouped { encoding, elem: elem(signature.x) },
        }
    }
}

/// The kernel of experts' matmuls: on tensor cores where a matmul with all of their rows is.
///
/// # Errors
/// Why there is none.
pub(super) fn experts(terms: Terms, s: &Signature) -> Result<Experts, String> {
    Ok(match matmul(terms, s)? {
        Matmul::Tensor { layout, .. } => Experts::Tensor(layout),
        Matmul::Strict(_) | Matmul::Columns(_) => Experts::Strict(format(s)?),
        Matmul::Integers(_) => return Err(no_format(s)),
    })
}

/// Without tensor cores.
fn in_order(format: Format, n: usize, k: usize) -> Matmul {
    match format {
        Format::F32 => Matmul::Columns(Columns { n, k }),
        _ => Matmul::Strict(format),
    }
}

/// What an op with this signature takes of a weight, but for whether that one is gated. Format and sizes are
/// those that the weight has: the signature may state others, of a model that is not sharded, or of rows
/// before they were divided.
pub(crate) fn taken(terms: Terms, s: &Signature, weight: &WeightInfo) -> Taken {
    let part = SumPart::of(weight.used_for);
    let real = Signature { weight: Some(weight.format), inner: weight.cols, outer: weight.rows, part, ..*s };
    let packed = |order| Taken { stored: false, packed: Some(order) };
    let chosen = match s.op {
        OpKind::Linear(_) => matmul(terms, &real),
        OpKind::Moe(MoeOpKind::ExpertLinear) => {
            let parts = match (experts(terms, &real), weight.used_for) {
                (
                    Ok(Experts::Tensor(layout)),
                    WeightUse::Experts { count, .. } | WeightUse::ExpertsShare { count, .. },
                ) => layout.in_parts(count).ok(),
                _ => None,
            };
            return parts.map_or(Taken::STORED, |layout| packed(Order::Tensor(layout)));
        }
        _ => return Taken::STORED,
    };
    match chosen {
        Ok(Matmul::Strict(_)) | Err(_) => Taken::STORED,
        Ok(Matmul::Columns(columns)) => packed(Order::Columns(columns)),
        Ok(Matmul::Integers(bytes)) => packed(Order::Bytes(bytes)),
        Ok(Matmul::Tensor { layout, blaslt, .. }) => {
            Taken { stored: blaslt, packed: Some(Order::Tensor(layout)) }
        }
    }
}

/// How attention runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attention {
    /// In the contract's order.
    Strict,
    /// On tensor cores.
    Tensor {
        /// Whether many queries take the kernel that only Hopper runs, in an order of its own.
        hopper: bool,
    },
}

/// Widths of a key and of a value head.
pub(super) fn widths(s: &Signature) -> (u32, u32) {
    let width = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let Heads { k_dim, v_dim, .. } =
        s.heads.unwrap_or(Heads { heads: s.outer, kv_heads: s.outer, k_dim: s.inner, v_dim: s.inner });
    (width(k_dim), width(v_dim))
}

/// What keys and values are kept in.
pub(super) fn cached(s: &Signature) -> Elem {
    kept(s.kv.unwrap_or(s.x.into()))
}

/// The kernel of attention.
///
/// # Errors
/// Why there is none, with the numbers.
pub(super) fn attention(terms: Terms, s: &Signature) -> Result<Attention, String> {
    let ((k, v), room, kv) = (widths(s), u64::from(terms.shared_bytes), cached(s));
    let tensor = terms.mode != Mode::Reference && flash::supports(elem(s.x), kv, k, v).is_ok();
    if tensor && u64::from(flash::most_shared(k)) <= room {
        let hopper = terms.mode == Mode::Fast && terms.hopper && flash::has_hopper(k);
        return Ok(Attention::Tensor { hopper });
    }
    strict_attention(terms, s)
}

/// That in the contract's order.
///
/// # Errors
/// Why there is none, with the numbers.
pub(super) fn strict_attention(terms: Terms, s: &Signature) -> Result<Attention, String> {
    let ((k, v), room, kv) = (widths(s), u64::from(terms.shared_bytes), cached(s));
    let needed = strict::most_shared(kv, k);
    match () {
        _ if v > strict::MOST_COLUMNS => {
            Err(format!("value heads of {v} columns; at most {}", strict::MOST_COLUMNS))
        }
        _ if needed > room => {
            Err(format!("key heads of {k} columns take {needed} bytes of shared memory; a block has {room}"))
        }
        _ => Ok(Attention::Strict),
    }
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;
    use crate::ops::coverage;
    use engraft_core::backend::Coverage;
    use engraft_core::mem::{Block, Float, GroupBits, Groups, KvFormat};
    use engraft_core::ops::{AttentionOpKind, KvOpKind};

    /// Hopper, and what consumers' cards have (compute capabilities 8.6, 8.9 and 12.0).
    const LARGE: Terms =
        Terms { mode: Mode::Invariant, shared_bytes: 227 << 10, hopper: true, blaslt: false };
    const SMALL: Terms = Terms { shared_bytes: 99 << 10, hopper: false, ..LARGE };

    const PAGED: OpKind = OpKind::Attention(AttentionOpKind::Attend);
    const DENSE: OpKind = OpKind::Attention(AttentionOpKind::AttendDense);
    const LINEAR: OpKind = OpKind::Linear(LinearOpKind::Linear);

    fn heads(op: OpKind, q: Float, kv: Float, (k_dim, v_dim): (usize, usize)) -> Signature {
        let heads = Heads { heads: 8, kv_heads: 8, k_dim, v_dim };
        Signature { heads: Some(heads), kv: Some(kv.into()), ..Signature::new(op, q, k_dim, 8) }
    }

    /// What a plan shows.
    fn shown(terms: Terms, signature: &Signature) -> String {
        match coverage(terms, signature) {
            Coverage::Native(kernel) => kernel.to_string(),
            other => panic!("{signature:?}: {other:?}"),
        }
    }

    fn ask(terms: Terms, op: OpKind, dtype: Float, width: usize) -> String {
        shown(terms, &heads(op, dtype, dtype, (width, width)))
    }

    #[test]
    fn a_ranks_part_of_a_sum_is_added_in_order() {
        let plain = WeightFormat::Plain(Float::Bf16);
        let op = OpKind::Linear(LinearOpKind::Linear);
        let whole =
            Signature { weight: Some(plain), out: Float::F32, ..Signature::new(op, Float::Bf16, 4096, 4096) };
        assert!(matches!(matmul(LARGE, &whole), Ok(Matmul::Tensor { .. })));
        let fast = Terms { mode: Mode::Fast, blaslt: true, ..LARGE };
        let units = Signature { part: SumPart::Units, ..whole };
        assert_eq!(matmul(LARGE, &units), matmul(LARGE, &whole));
        assert_ne!(matmul(fast, &units), matmul(fast, &whole));
        assert_eq!(matmul(fast, &units), matmul(LARGE, &whole));
        let part = Signature { part: SumPart::Any, ..whole };
        assert_eq!(matmul(LARGE, &part), Ok(Matmul::Strict(Format::Bf16)));
        let part = Signature { x: Float::F32, weight: Some(WeightFormat::Plain(Float::F32)), ..part };
        assert_eq!(matmul(LARGE, &part), Ok(Matmul::Columns(Columns { n: 4096, k: 4096 })));
    }

    #[test]
    fn experts_take_tensor_cores_where_a_matmul_does() {
        let plain = Signature::new(OpKind::Moe(MoeOpKind::ExpertLinear), Float::Bf16, 64, 8 * 40);
        let name = |terms, weight| shown(terms, &Signature { weight: Some(weight), ..plain });
        let bf16 = WeightFormat::Plain(Float::Bf16);
        let fast = Terms { mode: Mode::Fast, blaslt: true, ..LARGE };
        assert_eq!(name(LARGE, bf16), "grouped_*_bf16");
        assert_eq!(name(fast, bf16), "grouped_*_bf16");
        assert_eq!(name(SMALL, WeightFormat::Block(Block::Q8_0)), "groupedq_*_bf16_int8");
        let wide = Signature { weight: Some(WeightFormat::Block(Block::Q4K)), inner: 256, ..plain };
        assert_eq!(shown(LARGE, &wide), "groupedq_*_bf16_q4_k");
        assert_eq!(
            name(LARGE, WeightFormat::Group(Groups::floats(GroupBits::Mx, 32))),
            "groupedq_*_bf16_mxfp4"
        );
        assert_eq!(name(LARGE, WeightFormat::Block(Block::Q3K)), "moe_linear*_q3_k");
        assert_eq!(name(Terms { mode: Mode::Reference, ..LARGE }, bf16), "moe_linear*_bf16");
        let rank = Signature { weight: Some(bf16), out: Float::F32, ..plain };
        assert_eq!(shown(LARGE, &Signature { part: SumPart::Units, ..rank }), "grouped_*_bf16");
        assert_eq!(shown(LARGE, &Signature { part: SumPart::Any, ..rank }), "moe_linear*_bf16");
        let full = Signature { x: Float::F32, weight: Some(WeightFormat::Plain(Float::F32)), ..rank };
        assert_eq!(shown(LARGE, &full), "moe_linear*_f32");
        // Tiles begin anew with every expert.
        let used_for = WeightUse::Experts { count: 8, grain: 1 };
        let info = WeightInfo { name: "w".into(), rows: 320, cols: 64, format: bf16, used_for };
        let packed = taken(LARGE, &Signature { weight: Some(bf16), ..plain }, &info).packed;
        assert!(
            matches!(packed, Some(Order::Tensor(layout)) if (layout.parts, layout.n, layout.tiles()) == (8, 40, 24)),
            "{packed:?}"
        );
    }

    #[test]
    fn wide_heads_take_the_kernel_that_the_device_has_room_for() {
        for (op, strict) in [(PAGED, "attention_paged_*"), (DENSE, "attention_dense_whole_bf16_*")] {
            assert_eq!(ask(LARGE, op, Float::Bf16, 256), "flash_*_bf16_256");
            assert_eq!(ask(SMALL, op, Float::Bf16, 256), strict);
            assert_eq!(ask(SMALL, op, Float::Bf16, 128), "flash_*_bf16_128");
            assert_eq!(ask(SMALL, op, Float::F16, 64), "flash_*_f16_64");
            assert_eq!(ask(SMALL, op, Float::Bf16, 112), "flash_*_bf16_112");
            assert_eq!(ask(LARGE, op, Float::Bf16, 192), "flash_*_bf16_192");
            assert_eq!(ask(SMALL, op, Float::Bf16, 192), strict);
            let reference = Terms { mode: Mode::Reference, ..LARGE };
            let strict = strict.replace("bf16", "f16");
            assert_eq!(ask(reference, op, Float::F16, 64), strict);
        }
        assert!(
            flash::WIDTHS.iter().filter(|w| **w <= 128).all(|w| flash::most_shared(*w) <= SMALL.shared_bytes)
        );
        assert_eq!(flash::most_shared(256), 136_192);
    }

    /// Over codes attention is that of the contract, in every mode.
    #[test]
    fn codes_take_the_strict_kernel() {
        let fast = Terms { mode: Mode::Fast, ..LARGE };
        for (format, name) in [(KvFormat::INT8, "int8"), (KvFormat::FP8, "fp8")] {
            for (terms, dtype, width) in
                [(LARGE, Float::Bf16, 128), (fast, Float::F16, 64), (SMALL, Float::F32, 256)]
            {
                let of = |op| Signature { kv: Some(format), ..heads(op, dtype, dtype, (width, width)) };
                let Coverage::Native(kernel) = coverage(terms, &of(PAGED)) else { panic!("{format}") };
                let suffix = if width > 128 { "512" } else { "128" };
                assert!(matches!(kernel, Kernel::StrictPaged { .. }), "{format}: {kernel}");
                assert!(
                    kernel.covers(&format!("attention_paged_split_{name}_{suffix}")),
                    "{:?}",
                    kernel.entries()
                );
                for (op, entry) in [
                    (OpKind::Kv(KvOpKind::KvAppend), "kv_append_codes"),
                    (OpKind::Kv(KvOpKind::KvRead), "kv_read"),
                    (OpKind::Kv(KvOpKind::KvCopyPages), "kv_copy_*"),
                ] {
                    assert_eq!(shown(terms, &of(op)), entry);
                }
            }
        }
        assert_eq!(
            shown(LARGE, &heads(OpKind::Kv(KvOpKind::KvAppend), Float::F32, Float::F32, (64, 64))),
            "kv_append"
        );
    }

    #[test]
    fn attention_is_chosen_by_the_cache_and_the_width_of_values_too() {
        for (kv, widths, tensor) in [
            (Float::Bf16, (64, 64), true),
            (Float::F16, (64, 64), false),
            (Float::F32, (64, 64), false),
            (Float::Bf16, (64, 128), false),
            (Float::Bf16, (72, 72), false),
        ] {
            let kernel = coverage(LARGE, &heads(PAGED, Float::Bf16, kv, widths));
            let Coverage::Native(kernel) = kernel else { panic!("{kernel:?}") };
            assert_eq!(matches!(kernel, Kernel::Flash { .. }), tensor, "{kv} {widths:?}");
            let suffix = if widths.1 > 128 { "512" } else { "128" };
            assert_eq!(kernel.covers(&format!("attention_paged_split_{kv}_{suffix}")), !tensor);
            assert_eq!(kernel.covers("flash_split_bf16_64"), tensor);
            assert!(!kernel.covers("flash_split_bf16_80") && !kernel.covers("attention_paged_*"));
        }
    }

    #[test]
    fn hopper_alone_has_kernels_of_its_own_in_fast_mode() {
        let of = |op: LinearOpKind, terms, weight| {
            let plain = Signature::new(OpKind::Linear(op), Float::Bf16, 64, 128);
            shown(terms, &Signature { weight: Some(weight), ..plain })
        };
        let name = |terms, weight| of(LinearOpKind::Linear, terms, weight);
        let fast = Terms { mode: Mode::Fast, ..LARGE };
        let bf16 = WeightFormat::Plain(Float::Bf16);
        let f32 = WeightFormat::Plain(Float::F32);
        assert_eq!(name(LARGE, f32), "linear_columns*_f32");
        assert_eq!(name(Terms { mode: Mode::Reference, ..LARGE }, f32), "linear_strict*_f32");
        assert_eq!(name(fast, bf16), "gemm_*_bf16 | gemmw_*_bf16");
        assert_eq!(name(LARGE, bf16), "gemm_*_bf16 | gemmw_*_bf16");
        assert_eq!(name(Terms { hopper: false, ..LARGE }, bf16), "gemm_*_bf16");
        assert_eq!(name(Terms { hopper: false, ..fast }, bf16), "gemm_*_bf16");
        let both = Terms { hopper: false, blaslt: true, ..fast };
        assert_eq!(name(both, bf16), "gemm_*_bf16 | cublasLtMatmul");
        assert_eq!(of(LinearOpKind::LinearAdd, both, bf16), "gemm_*_bf16 | cublasLtMatmul");
        assert_eq!(of(LinearOpKind::LinearAct, both, bf16), "gemm_*_bf16");
        assert_eq!(of(LinearOpKind::GatedLinear, both, bf16), "gemm_*_bf16");
        assert_eq!(name(fast, WeightFormat::Block(Block::Q8_0)), "gemmq_*_bf16_int8 | gemmwq_*_bf16_int8");
        assert_eq!(name(LARGE, WeightFormat::Block(Block::Q5_1)), "gemmq_*_bf16_int5a | gemmwq_*_bf16_int5a");
        for (block, encoding) in [(Block::Q4K, "q4_k"), (Block::Q5K, "q5_k"), (Block::Q6K, "q6_k")] {
            let wide = Signature { inner: 512, ..Signature::new(LINEAR, Float::F16, 512, 128) };
            let both = format!("gemmq_*_f16_{encoding} | gemmwq_*_f16_{encoding}");
            assert_eq!(shown(LARGE, &Signature { weight: Some(WeightFormat::Block(block)), ..wide }), both);
        }
        for (bits, size, kernel) in [
            (GroupBits::E4m3, 0, "gemmq_*_bf16_fp8 | gemmwq_*_bf16_fp8"),
            (GroupBits::E4m3, 128, "gemmq_*_bf16_fp8 | gemmwq_*_bf16_fp8"),
            (GroupBits::E2m1, 16, "gemmq_*_bf16_fp4 | gemmwq_*_bf16_fp4"),
            (GroupBits::E2m1, 32, "linear_strict*_fp4"),
            (GroupBits::Mx, 32, "gemmq_*_bf16_mxfp4 | gemmwq_*_bf16_mxfp4"),
            (GroupBits::Nf4, 64, "linear_strict*_nf4"),
            (GroupBits::E5m2, 0, "linear_strict*_fp8_e5m2"),
        ] {
            assert_eq!(name(LARGE, WeightFormat::Group(Groups::floats(bits, size))), kernel);
        }
        let older = Terms { hopper: false, ..fast };
        assert_eq!(name(older, WeightFormat::Block(Block::Q5_1)), "gemmq_*_bf16_int5a");
        for op in [PAGED, DENSE] {
            assert_eq!(ask(fast, op, Float::F16, 64), "flash_*_f16_64 | flashw_*_f16_64");
            assert_eq!(ask(fast, op, Float::F16, 96), "flash_*_f16_96");
            assert_eq!(ask(Terms { hopper: false, ..fast }, op, Float::F16, 64), "flash_*_f16_64");
        }
    }

    #[test]
    fn a_bias_or_another_output_type_changes_what_is_reported() {
        let plain = Signature {
            weight: Some(WeightFormat::Plain(Float::Bf16)),
            ..Signature::new(LINEAR, Float::Bf16, 64, 128)
        };
        let terms = Terms { mode: Mode::Fast, blaslt: true, hopper: false, ..LARGE };
        assert_eq!(shown(terms, &Signature { bias: true, ..plain }), "gemm_*_bf16");
        assert_eq!(shown(terms, &Signature { out: Float::F32, ..plain }), "gemm_*_bf16 | cublasLtMatmul");
        // No kernel for tensor cores writes another 16-bit type.
        assert_eq!(shown(terms, &Signature { out: Float::F16, ..plain }), "linear_strict*_bf16");
    }

    #[test]
    fn heads_that_no_kernel_has_room_for_are_missing_with_numbers() {
        let of = |terms, width| coverage(terms, &heads(PAGED, Float::F32, Float::F32, (width, width)));
        let reason = |terms, width| match of(terms, width) {
            Coverage::Missing(reason) => reason,
            other => panic!("{width}: {other:?}"),
        };
        let text = reason(LARGE, 513);
        assert!(text.contains("513") && text.contains("at most 512"), "{text}");
        let little = Terms { shared_bytes: 20_000, ..LARGE };
        let text = reason(little, 512);
        assert!(text.contains("20000") && text.contains("512 columns take 26944 bytes"), "{text}");
        assert_eq!(ask(LARGE, PAGED, Float::F32, 512), "attention_paged_*");
    }
}
