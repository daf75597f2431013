//! The kernels: each variant says what its template needs and what a dispatch has to bring.

use crate::{Elem, Packing};

/// One variant of one template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kernel {
    /// Rows of a packed table.
    Embed {
        /// Of the table.
        weight: Packing,
        /// Of the output.
        out: Elem,
        /// Added to what the output holds.
        add: bool,
    },
    /// A product with its epilogue.
    Linear {
        /// Of the weight.
        weight: Packing,
        /// Of the input.
        x: Elem,
        /// Of the output.
        out: Elem,
        /// Rows of a tile, at most 8.
        rows: u32,
        /// A gate weight: gate and up panels alternate.
        gate: bool,
        /// Input rows begin at multiples of four elements.
        vector: bool,
        /// An activation follows; of a gate weight `act(g) * u`, else `[g | u]`.
        act: bool,
    },
    /// A product of few rows in the wide order, with its epilogue; input rows begin at multiples of four elements.
    LinearLanes {
        /// Of the weight.
        weight: Packing,
        /// Of the input.
        x: Elem,
        /// Of the output.
        out: Elem,
        /// Rows of a tile, 1 or 4.
        rows: u32,
        /// As for `Linear`.
        gate: bool,
        /// As for `Linear`.
        act: bool,
        /// Parts of a sum meet within subgroups.
        subgroups: bool,
    },
    /// Every slot's product with its expert's weight; one row: looked up slot by slot, else by groups.
    Experts {
        /// Of the weight.
        weight: Packing,
        /// Of input and output.
        x: Elem,
        /// Rows of a tile, at most 8.
        rows: u32,
        /// Input rows begin at multiples of four elements.
        vector: bool,
    },
    /// Experts chosen, sorted and summed.
    Moe(Moe, Elem),
    /// Rows to bytes, for weights of [`Packing::W8A8`].
    Quantize(Elem),
    /// A row norm.
    Norm(Norm, Elem, Reduce),
    /// Element by element, from `x` to `out`.
    Elementwise(Elementwise, Elem, Elem),
    /// Rotary embedding in place.
    Rope(Elem),
    /// Rotary embedding in place, and keys and values into their pages: rows, slab.
    RopeAppend(Elem, Elem),
    /// The same with a norm of every query and key head before it.
    RopeAppendNorm(Elem, Elem, Reduce),
    /// Paged keys and values: rows, slab.
    Kv(Kv, Elem, Elem),
    /// Attention: queries and outputs, keys and values.
    Attention(Attention, Elem, Elem),
    /// Attention over pages for `ATTENTION_SLOTS` queries that read the same keys: units of value columns, whether scores are
    /// capped; queries and outputs, keys and values.
    AttentionTile(u32, bool, Elem, Elem),
    /// Words and rows moved.
    Rows(Rows, Elem),
    /// From logits to tokens.
    Sample(Sample, Elem),
    /// Arithmetic as this device does it.
    Probe,
    /// How a workgroup falls into subgroups.
    Lanes,
    /// What this device can do at most.
    Limit(Limit),
}

/// How a workgroup's invocations bring a sum together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reduce {
    /// The contract's order: eight chains.
    Leaves,
    /// The wide order, through workgroup memory.
    Shared,
    /// The wide order, within subgroups as far as they reach: the same bits.
    Subgroups,
}

impl Reduce {
    /// All of them.
    pub const ALL: [Reduce; 3] = [Reduce::Leaves, Reduce::Shared, Reduce::Subgroups];

    /// Name in templates and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Reduce::Leaves => "leaves",
            Reduce::Shared => "shared",
            Reduce::Subgroups => "subgroups",
        }
    }
}

/// Where a norm reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: the names are those of the ops.
pub enum Norm {
    Alone,
    Add,
    Heads,
}

/// What is done to an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: the names are those of the ops.
pub enum Elementwise {
    Add,
    Activate,
    Gate,
    Scale,
    Convert,
}

/// What is done with experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: the names are those of the ops; `Group` is the second half of `route`.
pub enum Moe {
    Route,
    Group,
    Combine,
}

/// What is done to a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: the names are those of the ops.
pub enum Kv {
    Append,
    Copy,
    Read,
}

/// Where keys lie, how many value columns (in units of 64) an invocation carries, whether scores are capped, whether the
/// largest score is found within subgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: see above.
pub struct Attention {
    pub dense: bool,
    pub columns: u32,
    pub capped: bool,
    pub subgroups: bool,
}

/// What is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: the names are those of the ops.
pub enum Rows {
    Gather,
    Patch,
    MarkSeen,
}

/// What is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: the names are those of the ops.
pub enum Sample {
    Argmax,
    Draw,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    /// Memory read.
    Read,
    /// Multiply-adds.
    Multiply,
}

/// How a binding is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

use Access::{Read as R, Write as W};

impl Kernel {
    /// The template's name.
    pub fn stem(&self) -> &'static str {
        match self {
            Kernel::Embed { .. } => "embed",
            Kernel::Linear { .. } | Kernel::Experts { .. } => "linear",
            Kernel::LinearLanes { .. } => "linear_lanes",
            Kernel::Moe(..) => "moe",
            Kernel::Quantize(_) => "quantize",
            Kernel::Norm(..) => "norm",
            Kernel::Elementwise(..) => "elementwise",
            Kernel::Rope(_) => "rope",
            Kernel::RopeAppend(..) => "rope_append",
            Kernel::RopeAppendNorm(..) => "rope_append_norm",
            Kernel::Kv(..) => "kv",
            Kernel::Attention(..) => "attention",
            Kernel::AttentionTile(..) => "attention_tile",
            Kernel::Rows(..) => "rows",
            Kernel::Sample(..) => "sample",
            Kernel::Probe => "probe",
            Kernel::Lanes => "lanes",
            Kernel::Limit(_) => "limit",
        }
    }

    /// Whether the kernel multiplies bytes.
    pub fn of_bytes(&self) -> bool {
        match *self {
            Kernel::Linear { weight, .. } | Kernel::Experts { weight, .. } => weight == Packing::W8A8,
            _ => false,
        }
    }

    /// Whether the kernel needs subgroups.
    pub fn subgroups(&self) -> bool {
        match *self {
            Kernel::LinearLanes { subgroups, .. } | Kernel::Attention(Attention { subgroups, .. }, ..) => {
                subgroups
            }
            Kernel::Norm(.., reduce) | Kernel::RopeAppendNorm(.., reduce) => reduce == Reduce::Subgroups,
            Kernel::Lanes => true,
            _ => false,
        }
    }

    /// A name for reports and error messages.
    pub fn label(&self) -> String {
        let lower = |v: &dyn std::fmt::Debug| format!("{v:?}").to_lowercase();
        match *self {
            Kernel::Embed { weight, out, add } => {
                format!("embed{}_{}_{}", if add { "_add" } else { "" }, weight.name(), out.name())
            }
            Kernel::Linear { weight, x, out, rows, gate, vector, act } => format!(
                "{}linear{}_{}_{}_{}_x{rows}{}",
                if gate { "gated_" } else { "" },
                if act { "_act" } else { "" },
                weight.name(),
                x.name(),
                out.name(),
                if vector { "_v" } else { "" }
            ),
            Kernel::Experts { weight, x, rows, vector } => {
                let v = if vector { "_v" } else { "" };
                format!("expert_linear_{}_{}_x{rows}{v}", weight.name(), x.name())
            }
            Kernel::Moe(how, x) => format!("moe_{}_{}", lower(&how), x.name()),
            Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups } => format!(
                "{}linear{}_{}_{}_{}_x{rows}_{}",
                if gate { "gated_" } else { "" },
                if act { "_act" } else { "" },
                weight.name(),
                x.name(),
                out.name(),
                if subgroups { "subgroups" } else { "shared" }
            ),
            Kernel::Quantize(x) => format!("quantize_{}", x.name()),
            Kernel::Norm(how, x, reduce) => format!("norm_{}_{}_{}", lower(&how), x.name(), reduce.name()),
            Kernel::Elementwise(how, x, out) => format!("{}_{}_{}", lower(&how), x.name(), out.name()),
            Kernel::Rope(x) => format!("rope_{}", x.name()),
            Kernel::RopeAppend(x, kv) => format!("rope_append_{}_{}", x.name(), kv.name()),
            Kernel::RopeAppendNorm(x, kv, reduce) => {
                format!("rope_append_norm_{}_{}_{}", x.name(), kv.name(), reduce.name())
            }
            Kernel::Kv(how, x, kv) => format!("kv_{}_{}_{}", lower(&how), x.name(), kv.name()),
            Kernel::Attention(how, x, kv) => format!(
                "attention_{}{}_{}_{}_c{}{}",
                if how.dense { "dense" } else { "paged" },
                if how.capped { "_capped" } else { "" },
                x.name(),
                kv.name(),
                how.columns,
                if how.subgroups { "_subgroups" } else { "" }
            ),
            Kernel::AttentionTile(columns, capped, x, kv) => {
                let capped = if capped { "_capped" } else { "" };
                format!("attention_tile{capped}_{}_{}_c{columns}", x.name(), kv.name())
            }
            Kernel::Rows(how, x) => format!("rows_{}_{}", lower(&how), x.name()),
            Kernel::Sample(how, x) => format!("sample_{}_{}", lower(&how), x.name()),
            Kernel::Probe => "probe".into(),
            Kernel::Lanes => "lanes".into(),
            Kernel::Limit(how) => format!("limit_{}", lower(&how)),
        }
    }

    /// Storage bindings of group 0, in order.
    pub fn bindings(&self) -> &'static [Access] {
        match self {
            Kernel::Embed { .. } => &[R, R, R, W],
            Kernel::Linear { .. } | Kernel::LinearLanes { .. } => &[R, R, R, R, W],
            Kernel::Experts { .. } => &[R, R, R, R, W, R],
            Kernel::Moe(Moe::Route, _) => &[R, W, W],
            Kernel::Moe(Moe::Group, _) => &[R, W],
            Kernel::Moe(Moe::Combine, _) => &[R, R, W],
            Kernel::Quantize(_) => &[R, W],
            Kernel::Norm(Norm::Alone, ..) => &[R, R, W, R],
            Kernel::Norm(Norm::Add, ..) => &[R, R, W, R, W],
            Kernel::Norm(Norm::Heads, ..) => &[R, R, W],
            Kernel::Elementwise(Elementwise::Activate | Elementwise::Scale, ..) => &[W],
            Kernel::Elementwise(..) => &[R, W],
            Kernel::Rope(_) => &[W, R, R],
            Kernel::RopeAppend(..) => &[W, R, R, R, W, W],
            Kernel::RopeAppendNorm(..) => &[W, R, R, R, W, W, R, R],
            Kernel::Kv(Kv::Append, ..) => &[R, R, R, W, W],
            Kernel::Kv(Kv::Copy, ..) => &[R, W, W],
            Kernel::Kv(Kv::Read, ..) => &[R, R, R, W, W],
            Kernel::Attention(Attention { dense: true, .. }, ..) => &[R, R, R, R, R, W],
            Kernel::Attention(..) | Kernel::AttentionTile(..) => &[R, R, R, R, R, W, R],
            Kernel::Rows(Rows::Gather, _) => &[R, R, W],
            Kernel::Rows(..) => &[R, W],
            Kernel::Sample(Sample::Argmax, _) => &[R, W],
            Kernel::Sample(Sample::Draw, _) => &[R, R, R, R, W, W],
            Kernel::Probe => &[R, W],
            Kernel::Lanes | Kernel::Limit(Limit::Multiply) => &[W],
            Kernel::Limit(Limit::Read) => &[R, W],
        }
    }

    /// Parameters after the leading zero, in order; `eps`, `factor`, `cap` and `inverse` are f32, all others are
    /// u32.
    pub fn fields(&self) -> &'static [&'static str] {
        match self {
            Kernel::Embed { .. } => &[
                "tokens",
                "cols",
                "ids_offset",
                "out_offset",
                "out_pitch",
                "first_row",
                "end_row",
                "all_rows",
                "block",
            ],
            Kernel::Linear { .. } | Kernel::LinearLanes { .. } => &[
                "rows",
                "cols",
                "grain",
                "x_offset",
                "x_pitch",
                "out_offset",
                "out_pitch",
                "first_out",
                "end_out",
                "inner",
                "flags",
                "add",
                "act",
                "block",
            ],
            Kernel::Experts { .. } => &[
                "rows",
                "cols",
                "grain",
                "x_offset",
                "x_pitch",
                "out_offset",
                "out_pitch",
                "inner",
                "has_bias",
                "block",
                "per_row",
                "which_offset",
                "count",
                "first_panel",
                "end_panel",
            ],
            Kernel::Moe(Moe::Route, _) => &[
                "tokens",
                "experts",
                "top_k",
                "flags",
                "factor",
                "x_offset",
                "x_pitch",
                "experts_offset",
                "weights_offset",
                "weights_pitch",
            ],
            Kernel::Moe(Moe::Group, _) => &["slots", "count", "experts_offset", "groups_offset"],
            Kernel::Moe(Moe::Combine, _) => &[
                "rows",
                "cols",
                "top_k",
                "add",
                "y_offset",
                "y_pitch",
                "weights_offset",
                "weights_pitch",
                "out_offset",
                "out_pitch",
            ],
            Kernel::Quantize(_) => &["rows", "blocks", "x_offset", "x_pitch"],
            Kernel::Norm(..) => &[
                "rows",
                "parts",
                "width",
                "x_offset",
                "x_pitch",
                "out_offset",
                "out_pitch",
                "add_offset",
                "add_pitch",
                "flags",
                "eps",
            ],
            Kernel::Elementwise(Elementwise::Scale, ..) => {
                &["rows", "cols", "out_offset", "out_pitch", "factor", "capped", "cap", "inverse"]
            }
            Kernel::Elementwise(..) => {
                &["rows", "cols", "x_offset", "x_pitch", "out_offset", "out_pitch", "act"]
            }
            Kernel::Rope(_) => &[
                "tokens",
                "heads",
                "width",
                "pairs",
                "x_offset",
                "x_pitch",
                "positions_offset",
                "table_offset",
                "table_positions",
                "interleaved",
            ],
            Kernel::RopeAppend(..) => &[
                "tokens",
                "heads",
                "kv_heads",
                "k_dim",
                "v_dim",
                "pairs",
                "x_offset",
                "x_pitch",
                "positions_offset",
                "table_offset",
                "table_positions",
                "interleaved",
                "slots_offset",
                "page_size",
                "pages",
            ],
            Kernel::RopeAppendNorm(..) => &[
                "tokens",
                "heads",
                "kv_heads",
                "dims",
                "pairs",
                "x_offset",
                "x_pitch",
                "positions_offset",
                "table_offset",
                "table_positions",
                "flags",
                "eps",
                "slots_offset",
                "page_size",
                "pages",
            ],
            Kernel::Kv(Kv::Append, ..) => &[
                "tokens",
                "kv_heads",
                "k_dim",
                "v_dim",
                "page_size",
                "pages",
                "k_offset",
                "k_pitch",
                "v_offset",
                "v_pitch",
                "slots_offset",
            ],
            Kernel::Kv(Kv::Copy, ..) => &["pairs", "pairs_offset", "page_keys", "page_values", "pages"],
            Kernel::Kv(Kv::Read, ..) => &[
                "tokens",
                "kv_heads",
                "k_dim",
                "v_dim",
                "page_size",
                "pages_offset",
                "k_offset",
                "k_pitch",
                "v_offset",
                "v_pitch",
            ],
            Kernel::Attention(Attention { dense: true, .. }, ..) => &[
                "tokens",
                "seqs",
                "dims",
                "heads",
                "q_offset",
                "q_pitch",
                "out_offset",
                "out_pitch",
                "bounds_offset",
                "k_offset",
                "k_pitch",
                "v_offset",
                "v_pitch",
            ],
            Kernel::AttentionTile(..) => &[
                "tokens",
                "seqs",
                "dims",
                "heads",
                "q_offset",
                "q_pitch",
                "out_offset",
                "out_pitch",
                "bounds_offset",
                "rows_offset",
                "lens_offset",
                "table_offset",
                "table_stride",
                "page_size",
                "tile_heads",
            ],
            Kernel::Attention(..) => &[
                "tokens",
                "seqs",
                "dims",
                "heads",
                "q_offset",
                "q_pitch",
                "out_offset",
                "out_pitch",
                "bounds_offset",
                "rows_offset",
                "lens_offset",
                "table_offset",
                "table_stride",
                "page_size",
            ],
            Kernel::Rows(Rows::Gather, _) => {
                &["rows", "cols", "x_rows", "x_offset", "x_pitch", "rows_offset", "out_offset", "out_pitch"]
            }
            Kernel::Rows(Rows::Patch, _) => &["pairs", "pairs_offset", "table_offset", "len"],
            Kernel::Rows(Rows::MarkSeen, _) => &["ids", "ids_offset", "seen_offset", "words"],
            Kernel::Sample(Sample::Argmax, _) => &["rows", "cols", "x_offset", "x_pitch", "out_offset"],
            Kernel::Sample(Sample::Draw, _) => &[
                "rows",
                "cols",
                "x_offset",
                "x_pitch",
                "out_offset",
                "table_offset",
                "table_rows",
                "slots_offset",
                "positions_offset",
                "seen_offset",
                "seen_words",
            ],
            Kernel::Probe | Kernel::Lanes => &["count"],
            Kernel::Limit(_) => &["count", "invocations"],
        }
    }
}
