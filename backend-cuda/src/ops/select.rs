//! Which kernel an op takes: the one place that the ops and the report both ask.
//!
//! A report names entries as the driver knows them; `*` stands for what depends on the number of rows.

use super::elem;
use crate::weight::format_of;
use engraft_core::backend::{Coverage, Op, Signature};
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::numerics::Mode;
use engraft_kernels::bytes::Bytes;
use engraft_kernels::columns::Columns;
use engraft_kernels::pack::{Form, Layout};
use engraft_kernels::params::{Format, MatView, attention as strict, flash, gemm, norm};

/// What a choice depends on beside the op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The promise about bits.
    pub mode: Mode,
    /// Shared memory that a block may have on the device, in bytes.
    pub shared_bytes: u32,
    /// Whether the device has wgmma and bulk copies (compute capability 9.0).
    pub hopper: bool,
    /// Whether cuBLASLt is there.
    pub blaslt: bool,
}

/// How a product runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Product {
    /// In the contract's order: weights as stored.
    Strict,
    /// The same, f32 weights with the outputs of a warp side by side.
    Columns(Columns),
    /// In the contract's order, too: quantized activations, products of bytes.
    Integers(Bytes),
    /// On tensor cores: weights packed.
    Tensor {
        /// How they are packed.
        layout: Layout,
        /// Whether many rows take the kernel that only Hopper runs, in an order of its own.
        boxed: bool,
        /// Whether many rows are offered to cuBLASLt first.
        blaslt: bool,
    },
}

/// What the choice of a product depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProductOf {
    pub x: Float,
    pub out: Float,
    pub format: Format,
    /// Values of a group, own formats alone.
    pub group: usize,
    pub rows: usize,
    pub cols: usize,
    pub gated: bool,
    /// Activations are quantized.
    pub integers: bool,
}

/// The kernel of a product.
pub(super) fn product(terms: Terms, p: ProductOf) -> Product {
    if p.integers {
        return Product::Integers(Bytes { n: p.rows, k: p.cols });
    }
    if terms.mode == Mode::Reference {
        return Product::Strict;
    }
    match gemm::supports(elem(p.x), elem(p.out), p.format, p.group, p.rows, p.cols, p.gated) {
        Ok(layout) => {
            let fast = terms.mode == Mode::Fast && layout.form == Form::Plain;
            Product::Tensor { layout, boxed: fast && terms.hopper, blaslt: fast && terms.blaslt }
        }
        Err(_) if p.format == Format::F32 => Product::Columns(Columns { n: p.rows, k: p.cols }),
        Err(_) => Product::Strict,
    }
}

fn product_name(terms: Terms, op: Op, signature: &Signature, weight: WeightFormat) -> Option<String> {
    let gated = op == Op::GatedLinear;
    let format = format_of(weight)?;
    let group = match weight {
        WeightFormat::Group(groups) => groups.group(signature.inner),
        _ => 0,
    };
    let (x, out, integers) = (signature.dtype, signature.dtype, weight == WeightFormat::W8A8);
    let of =
        ProductOf { x, out, format, group, rows: signature.outer, cols: signature.inner, gated, integers };
    Some(match product(terms, of) {
        Product::Strict => format!("linear_strict*_{}", format.name()),
        Product::Columns(_) => "linear_columns*_f32".into(),
        Product::Integers(_) => "int8_*".into(),
        Product::Tensor { layout, boxed, blaslt } => {
            let entry = gemm::Gemm::new(&layout, 1, elem(x), elem(out), gemm::Then::Nothing).launch().entry;
            // `gemm_n8_bf16`: the second part is the tile for the rows at hand.
            let mut parts = entry.splitn(3, '_');
            let (stem, _, rest) = (parts.next()?, parts.next()?, parts.next()?);
            let mut name = format!("{stem}_*_{rest}");
            if boxed {
                name.push_str(&format!(" | gemmw_*_{rest}"));
            }
            // What else follows a product it cannot do. A bias neither, but that is not in a signature.
            if blaslt && matches!(op, Op::Linear | Op::LinearAdd) {
                name.push_str(" | cublasLtMatmul");
            }
            name
        }
    })
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

/// The kernel of attention over queries and keys of these types, and heads of these widths (of keys, of values).
///
/// # Errors
/// Why there is none, with the numbers.
pub(super) fn attention(
    terms: Terms,
    q: Float,
    kv: Float,
    (k_dim, v_dim): (usize, usize),
) -> Result<Attention, String> {
    let width = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (k, v, room) = (width(k_dim), width(v_dim), u64::from(terms.shared_bytes));
    let tensor = terms.mode != Mode::Reference && flash::supports(elem(q), elem(kv), k, v).is_ok();
    if tensor && u64::from(flash::most_shared(k)) <= room {
        let hopper = terms.mode == Mode::Fast && terms.hopper && flash::has_hopper(k);
        return Ok(Attention::Tensor { hopper });
    }
    let needed = strict::most_shared(elem(kv), k);
    match () {
        _ if v > strict::MOST_COLUMNS => {
            Err(format!("value heads of {v_dim} columns; at most {}", strict::MOST_COLUMNS))
        }
        _ if needed > room => Err(format!(
            "key heads of {k_dim} columns take {needed} bytes of shared memory; a block has {room}"
        )),
        _ => Ok(Attention::Strict),
    }
}

/// The report takes the cache to have the activations' type and values the width of keys: neither is in a signature.
fn attention_name(terms: Terms, signature: &Signature, strict: String) -> Result<String, String> {
    let (dtype, width) = (signature.dtype, signature.inner);
    Ok(match attention(terms, dtype, dtype, (width, width))? {
        Attention::Strict => strict,
        Attention::Tensor { hopper: false } => format!("flash_*_{dtype}_{width}"),
        Attention::Tensor { hopper: true } => format!("flash_*_{dtype}_{width} | flashw_*_{dtype}_{width}"),
    })
}

/// Whether a norm keeps the contract's order.
pub(super) fn norm_is_strict(mode: Mode) -> bool {
    mode == Mode::Reference
}

fn norm_name(mode: Mode, dtype: Float, width: usize) -> String {
    let p = norm::Norm {
        x: MatView { rows: 1, ..MatView::NONE },
        width: u32::try_from(width).unwrap_or(u32::MAX),
        parts: 1,
        elem: elem(dtype),
        strict: u32::from(norm_is_strict(mode)),
        ..bytemuck::Zeroable::zeroed()
    };
    p.launch().entry
}

/// How an op runs here.
pub(crate) fn coverage(terms: Terms, op: Op, signature: &Signature) -> Coverage {
    let name = match op {
        Op::Attend => attention_name(terms, signature, "attention_paged_*".into()),
        Op::AttendDense => {
            attention_name(terms, signature, format!("attention_dense_whole_{}_*", signature.dtype))
        }
        _ => name(terms, op, signature).ok_or_else(|| {
            let format = signature.weight.map_or("none".into(), |format| format.to_string());
            format!("no kernel for {} with weights in format {format}", op.name())
        }),
    };
    name.map_or_else(Coverage::Missing, Coverage::Native)
}

fn name(terms: Terms, op: Op, signature: &Signature) -> Option<String> {
    let dtype = signature.dtype;
    Some(match op {
        Op::Embed | Op::EmbedAdd => format!("embed_rows_{}", format_of(signature.weight?)?.name()),
        Op::Linear | Op::LinearAct | Op::LinearAdd | Op::GatedLinear => {
            return product_name(terms, op, signature, signature.weight?);
        }
        // The default reduces over a group of one and calls `add_norm`.
        Op::Norm | Op::AddNorm | Op::ReduceAddNorm => norm_name(terms.mode, dtype, signature.outer),
        Op::HeadNorm => norm_name(terms.mode, dtype, signature.inner),
        Op::Add | Op::Activate | Op::Gate | Op::Scale => format!("elementwise_{}_{dtype}", op.name()),
        Op::Convert => format!("elementwise_convert_{dtype}_*"),
        Op::Rope => format!("rope_heads_{dtype}"),
        Op::QkvRopeAppend => format!("kv_turned_{dtype}"),
        Op::Route => "moe_route".into(),
        Op::ExpertLinear if signature.weight == Some(WeightFormat::W8A8) => return None,
        Op::ExpertLinear => format!("moe_linear*_{}", format_of(signature.weight?)?.name()),
        Op::Combine => format!("moe_combine_{dtype}"),
        Op::KvAppend => "kv_append".into(),
        Op::KvCopyPages => "kv_copy_*".into(),
        Op::GatherRows => "rows_gather_*".into(),
        Op::Patch => "rows_patch".into(),
        Op::MarkSeen => "rows_seen".into(),
        Op::Argmax => format!("sample_argmax_{dtype}"),
        Op::Sample => "sample_draw".into(),
        // Ops that the contract gains are missing until they stand here.
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;
    use engraft_core::mem::Block;

    /// Hopper, and what consumers' cards have (compute capabilities 8.6, 8.9 and 12.0).
    const LARGE: Terms =
        Terms { mode: Mode::Invariant, shared_bytes: 227 << 10, hopper: true, blaslt: false };
    const SMALL: Terms = Terms { shared_bytes: 99 << 10, hopper: false, ..LARGE };

    fn ask(terms: Terms, op: Op, dtype: Float, inner: usize) -> Coverage {
        coverage(terms, op, &Signature { dtype, inner, outer: 8, ..Signature::default() })
    }

    #[test]
    fn wide_heads_take_the_kernel_that_the_device_has_room_for() {
        for (op, strict) in
            [(Op::Attend, "attention_paged_*"), (Op::AttendDense, "attention_dense_whole_bf16_*")]
        {
            let native = |name: &str| Coverage::Native(name.into());
            assert_eq!(ask(LARGE, op, Float::Bf16, 256), native("flash_*_bf16_256"));
            assert_eq!(ask(SMALL, op, Float::Bf16, 256), native(strict));
            assert_eq!(ask(SMALL, op, Float::Bf16, 128), native("flash_*_bf16_128"));
            assert_eq!(ask(SMALL, op, Float::F16, 64), native("flash_*_f16_64"));
            let reference = Terms { mode: Mode::Reference, ..LARGE };
            let strict = strict.replace("bf16", "f16");
            assert_eq!(ask(reference, op, Float::F16, 64), native(&strict));
        }
        assert!(
            flash::WIDTHS.iter().filter(|w| **w <= 128).all(|w| flash::most_shared(*w) <= SMALL.shared_bytes)
        );
        assert_eq!(flash::most_shared(256), 136_192);
    }

    #[test]
    fn hopper_alone_has_kernels_of_its_own_in_fast_mode() {
        let of = |op, terms, weight| {
            let signature = Signature { dtype: Float::Bf16, weight: Some(weight), inner: 64, outer: 128 };
            coverage(terms, op, &signature)
        };
        let name = |terms, weight| of(Op::Linear, terms, weight);
        let native = |name: &str| Coverage::Native(name.into());
        let fast = Terms { mode: Mode::Fast, ..LARGE };
        let bf16 = WeightFormat::Plain(Float::Bf16);
        let f32 = WeightFormat::Plain(Float::F32);
        assert_eq!(name(LARGE, f32), native("linear_columns*_f32"));
        assert_eq!(name(Terms { mode: Mode::Reference, ..LARGE }, f32), native("linear_strict*_f32"));
        assert_eq!(name(fast, bf16), native("gemm_*_bf16 | gemmw_*_bf16"));
        assert_eq!(name(LARGE, bf16), native("gemm_*_bf16"));
        assert_eq!(name(Terms { hopper: false, ..fast }, bf16), native("gemm_*_bf16"));
        let both = Terms { hopper: false, blaslt: true, ..fast };
        assert_eq!(name(both, bf16), native("gemm_*_bf16 | cublasLtMatmul"));
        assert_eq!(of(Op::LinearAdd, both, bf16), native("gemm_*_bf16 | cublasLtMatmul"));
        assert_eq!(of(Op::LinearAct, both, bf16), native("gemm_*_bf16"));
        let gated = of(Op::GatedLinear, both, bf16);
        assert!(matches!(&gated, Coverage::Native(n) if !n.contains("cublasLt")), "{gated:?}");
        assert_eq!(name(fast, WeightFormat::Block(Block::Q8_0)), native("gemmq_*_bf16_int8"));
        assert_eq!(name(LARGE, WeightFormat::Block(Block::Q5_1)), native("gemmq_*_bf16_int5a"));
        for op in [Op::Attend, Op::AttendDense] {
            assert_eq!(ask(fast, op, Float::F16, 64), native("flash_*_f16_64 | flashw_*_f16_64"));
            assert_eq!(ask(fast, op, Float::F16, 96), native("flash_*_f16_96"));
            assert_eq!(ask(Terms { hopper: false, ..fast }, op, Float::F16, 64), native("flash_*_f16_64"));
        }
    }

    #[test]
    fn heads_that_no_kernel_has_room_for_are_missing_with_numbers() {
        let reason = |terms, width| match ask(terms, Op::Attend, Float::F32, width) {
            Coverage::Missing(reason) => reason,
            other => panic!("{width}: {other:?}"),
        };
        let text = reason(LARGE, 513);
        assert!(text.contains("513") && text.contains("at most 512"), "{text}");
        let little = Terms { shared_bytes: 20_000, ..LARGE };
        let text = reason(little, 512);
        assert!(text.contains("20000") && text.contains("512 columns take 26944 bytes"), "{text}");
        assert_eq!(ask(LARGE, Op::Attend, Float::F32, 512), Coverage::Native("attention_paged_*".into()));
    }
}
