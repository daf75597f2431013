//! Which kernel an op takes: the one place that the ops and the report both ask.
//!
//! A report names entries as the driver knows them; `*` stands for what depends on the number of rows.

use super::elem;
use crate::weight::format_of;
use engraft_core::backend::{Coverage, Op, Signature};
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::numerics::Mode;
use engraft_kernels::pack::Layout;
use engraft_kernels::params::{Format, MatView, flash, gemm, norm};

/// How a product runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Product {
    /// In the contract's order: weights as stored.
    Strict,
    /// On tensor cores: weights packed.
    Tensor(Layout),
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
}

/// The kernel of a product.
pub(super) fn product(mode: Mode, p: ProductOf) -> Product {
    if mode == Mode::Reference {
        return Product::Strict;
    }
    match gemm::supports(elem(p.x), elem(p.out), p.format, p.group, p.rows, p.cols, p.gated) {
        Ok(layout) => Product::Tensor(layout),
        Err(_) => Product::Strict,
    }
}

fn product_name(mode: Mode, signature: &Signature, weight: WeightFormat, gated: bool) -> Option<String> {
    let format = format_of(weight)?;
    let group = match weight {
        WeightFormat::Group(groups) => groups.group(signature.inner),
        _ => 0,
    };
    let (x, out) = (signature.dtype, signature.dtype);
    let of = ProductOf { x, out, format, group, rows: signature.outer, cols: signature.inner, gated };
    Some(match product(mode, of) {
        Product::Strict => format!("linear_strict*_{}", format.name()),
        Product::Tensor(layout) => {
            let entry = gemm::Gemm::new(&layout, 1, elem(x), elem(out), gemm::Then::Nothing).launch().entry;
            // `gemm_n8_bf16`: the second part is the tile for the rows at hand.
            let mut parts = entry.splitn(3, '_');
            let (stem, _, rest) = (parts.next()?, parts.next()?, parts.next()?);
            format!("{stem}_*_{rest}")
        }
    })
}

/// How attention runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attention {
    /// In the contract's order.
    Strict,
    /// On tensor cores.
    Tensor,
}

/// The kernel of attention over queries and keys of these types, and heads of these widths (of keys, of values).
pub(super) fn attention(mode: Mode, q: Float, kv: Float, (k_dim, v_dim): (usize, usize)) -> Attention {
    let width = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    // Weights of a softmax below 2^-14 lose bits as f16 operands: such sums leave the budget of `tests/src/budget.rs`.
    if q == Float::F16 {
        return Attention::Strict;
    }
    match flash::supports(elem(q), elem(kv), width(k_dim), width(v_dim)) {
        Ok(()) if mode != Mode::Reference => Attention::Tensor,
        _ => Attention::Strict,
    }
}

/// The report takes the cache to have the activations' type and values the width of keys: neither is in a signature.
fn attention_name(mode: Mode, signature: &Signature, strict: String) -> String {
    let (dtype, width) = (signature.dtype, signature.inner);
    match attention(mode, dtype, dtype, (width, width)) {
        Attention::Strict => strict,
        Attention::Tensor => format!("flash_*_{dtype}_{width}"),
    }
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
pub(crate) fn coverage(mode: Mode, op: Op, signature: &Signature) -> Coverage {
    match name(mode, op, signature) {
        Some(kernel) => Coverage::Native(kernel),
        None => {
            let format = signature.weight.map_or("none".into(), |format| format.to_string());
            Coverage::Missing(format!("no kernel for {} with weights in format {format}", op.name()))
        }
    }
}

fn name(mode: Mode, op: Op, signature: &Signature) -> Option<String> {
    let dtype = signature.dtype;
    Some(match op {
        Op::Embed | Op::EmbedAdd => format!("embed_rows_{}", format_of(signature.weight?)?.name()),
        Op::Linear | Op::LinearAct | Op::LinearAdd => {
            return product_name(mode, signature, signature.weight?, false);
        }
        Op::GatedLinear => return product_name(mode, signature, signature.weight?, true),
        // The default reduces over a group of one and calls `add_norm`.
        Op::Norm | Op::AddNorm | Op::ReduceAddNorm => norm_name(mode, dtype, signature.outer),
        Op::HeadNorm => norm_name(mode, dtype, signature.inner),
        Op::Add | Op::Activate | Op::Gate | Op::Scale => format!("elementwise_{}_{dtype}", op.name()),
        Op::Convert => format!("elementwise_convert_{dtype}_*"),
        Op::Rope => format!("rope_heads_{dtype}"),
        Op::QkvRopeAppend => format!("kv_turned_{dtype}"),
        Op::Route => "moe_route".into(),
        Op::ExpertLinear => format!("moe_linear*_{}", format_of(signature.weight?)?.name()),
        Op::Combine => format!("moe_combine_{dtype}"),
        Op::KvAppend => "kv_append".into(),
        Op::KvCopyPages => "kv_copy_*".into(),
        Op::Attend => attention_name(mode, signature, "attention_paged_*".into()),
        Op::AttendDense => attention_name(mode, signature, format!("attention_dense_whole_{dtype}_*")),
        Op::GatherRows => "rows_gather_*".into(),
        Op::Patch => "rows_patch".into(),
        Op::MarkSeen => "rows_seen".into(),
        Op::Argmax => format!("sample_argmax_{dtype}"),
        Op::Sample => "sample_draw".into(),
        // Ops that the contract gains are missing until they stand here.
        _ => return None,
    })
}
