//! The kernels: each is one variant of one template.

use crate::{Elem, KvElem, Packing};

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
    /// A matmul with its epilogue.
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
    /// A matmul of few rows in the wide order, with its epilogue; input rows begin at multiples of four
    /// elements.
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
        /// Parts of a sum are added within subgroups.
        subgroups: bool,
    },
    /// Every slot's matmul with its expert's weight.
    Experts {
        /// Of the weight.
        weight: Packing,
        /// Of the input.
        x: Elem,
        /// Of the output: the same, or f32.
        out: Elem,
        /// Rows of a tile, at most 8.
        rows: u32,
        /// Input rows begin at multiples of four elements.
        vector: bool,
        /// Tiles are of the slots of one expert; else of one row, whose expert is looked up.
        grouped: bool,
    },
    /// Experts chosen, sorted and summed.
    Moe(Moe, Elem),
    /// Rows to bytes, for weights of [`Packing::W8A8`].
    Quantize(Elem),
    /// Norms of groups of columns over all rows.
    NormGroups(Elem),
    /// A row norm.
    Norm(Norm, Elem, Reduce),
    /// Rows by their own moments.
    Rescale(Rescale, Elem, Reduce),
    /// Element by element, from `x` to `out`.
    Elementwise(Elementwise, Elem, Elem),
    /// Convolutions in groups, attention without a softmax.
    Picture(Picture, Elem),
    /// Rotary embedding in place.
    Rope(Elem),
    /// Rotary embedding in place, and keys and values into their pages: rows, slab.
    RopeAppend(Elem, Elem),
    /// The same with a norm of every query and key head before it.
    RopeAppendNorm(Elem, Elem, Reduce),
    /// Paged keys and values: rows, slab.
    Kv(Kv, Elem, KvElem),
    /// An index of keys: queries, keys.
    Index(Index, Elem, Elem),
    /// Attention: queries and outputs, keys and values.
    Attention(Attention, Elem, KvElem),
    /// Attention over pages for `ATTENTION_SLOTS` queries that read the same keys: units of value columns,
    /// whether scores are capped; queries and outputs, keys and values.
    AttentionTile(u32, bool, Elem, KvElem),
    /// Words and rows moved: a macro of `rows.wgsl` by its name ([`crate::moves`]), of this element type
    /// where it has one.
    Rows(&'static str, Elem),
    /// From logits to tokens.
    Sample,
    /// A number behind work that ran, and behind all that ran before it.
    Mark,
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

/// Entries of a template by the names that it compares `how` with.
macro_rules! entries {
    ($(#[$meta:meta])* $enum:ident: $($entry:ident = $name:literal),+) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)] // Reason: the names are those of the ops.
        pub enum $enum {
            $($entry),+
        }

        impl $enum {
            /// Name in templates and labels.
            pub const fn name(self) -> &'static str {
                match self { $($enum::$entry => $name),+ }
            }
        }
    };
}

entries! {
    /// Where a norm reads and writes.
    Norm: Alone = "alone", Add = "add", Heads = "heads"
}
entries! {
    /// What rows get by their own moments: what exceeds a cutoff, or other rows' root of the mean square.
    Rescale: Topk = "topk", Match = "match"
}
entries! {
    /// What is done to an element.
    Elementwise: Add = "add", Activate = "activate", Xielu = "xielu", Gate = "gate",
    Modulate = "modulate", Limit = "limit", Scale = "scale", Convert = "convert", AddBias = "add_bias"
}
entries! {
    /// A convolution; sums of keys and values, and what queries make of them.
    Picture: Conv = "conv", Sums = "sums", Read = "read"
}
entries! {
    /// What is done with experts; `Group` is the second half of `route`.
    Moe: Route = "route", RouteByScore = "route_by_score", Group = "group", Combine = "combine", CombineNode = "combine_node"
}
entries! {
    /// What is done to a slab.
    Kv: Append = "append", Copy = "copy", Read = "read"
}
entries! {
    /// What is done with an index of keys.
    Index: Scores = "scores", Choose = "choose"
}
entries! {
    /// What is measured: memory read, multiply-adds.
    Limit: Read = "read", Multiply = "multiply"
}

/// Where keys lie, how many value columns (in units of 64) an invocation carries, whether scores are capped,
/// whether the largest score is found within subgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: see above.
pub struct Attention {
    pub dense: bool,
    pub columns: u32,
    pub capped: bool,
    pub subgroups: bool,
    /// Of dense keys: with score terms by distance.
    pub distances: bool,
}

impl Kernel {
    /// The template's name.
    pub fn stem(&self) -> &'static str {
        match self {
            Kernel::Embed { .. } => "embed",
            Kernel::Linear { .. } | Kernel::Experts { .. } => "linear",
            Kernel::LinearLanes { .. } => "linear_lanes",
            Kernel::Moe(..) => "moe",
            Kernel::Quantize(_) => "quantize",
            Kernel::NormGroups(_) => "norm_groups",
            Kernel::Norm(..) => "norm",
            Kernel::Rescale(..) => "rescale",
            Kernel::Elementwise(..) => "elementwise",
            Kernel::Picture(..) => "picture",
            Kernel::Rope(_) => "rope",
            Kernel::RopeAppend(..) => "rope_append",
            Kernel::RopeAppendNorm(..) => "rope_append_norm",
            Kernel::Kv(..) => "kv",
            Kernel::Index(..) => "index",
            Kernel::Attention(..) => "attention",
            Kernel::AttentionTile(..) => "attention_tile",
            Kernel::Rows(..) => "rows",
            Kernel::Sample => "sample",
            Kernel::Mark => "mark",
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
            Kernel::Rescale(.., reduce) => reduce == Reduce::Subgroups,
            Kernel::Lanes => true,
            _ => false,
        }
    }

    /// The plainer kernel that takes the same operands and gives the same bits: without subgroups, row by
    /// row, without lanes (in the wide order), query by query, slot by slot. Grids differ, and of experts
    /// what says which slots are whose.
    pub fn twin(&self) -> Option<Kernel> {
        let same = |reduce| if reduce == Reduce::Subgroups { Reduce::Shared } else { reduce };
        let twin = match *self {
            Kernel::LinearLanes { weight, x, out, rows: 1, gate, act, subgroups: false } => {
                Kernel::Linear { weight, x, out, rows: 1, gate, vector: true, act }
            }
            Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups } => {
                let rows = if subgroups { rows } else { 1 };
                Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups: false }
            }
            Kernel::Linear { weight, x, out, gate, vector, act, .. } => {
                Kernel::Linear { weight, x, out, rows: 1, gate, vector, act }
            }
            Kernel::Experts { weight, x, out, vector, .. } => {
                Kernel::Experts { weight, x, out, rows: 1, vector, grouped: false }
            }
            Kernel::AttentionTile(columns, capped, x, kv) => {
                let how = Attention { dense: false, columns, capped, subgroups: false, distances: false };
                Kernel::Attention(how, x, kv)
            }
            Kernel::Attention(how, x, kv) => Kernel::Attention(Attention { subgroups: false, ..how }, x, kv),
            Kernel::Norm(how, x, reduce) => Kernel::Norm(how, x, same(reduce)),
            Kernel::Rescale(how, x, reduce) => Kernel::Rescale(how, x, same(reduce)),
            Kernel::RopeAppendNorm(x, kv, reduce) => Kernel::RopeAppendNorm(x, kv, same(reduce)),
            other => other,
        };
        (twin != *self).then_some(twin)
    }

    /// A name for reports and error messages.
    pub fn label(&self) -> String {
        let stem = self.stem();
        match *self {
            Kernel::Embed { weight, out, add } => {
                format!("embed{}_{}_{}", if add { "_add" } else { "" }, weight.name(), out.name())
            }
            Kernel::Linear { weight, x, out, rows, gate, vector, act } => {
                let vector = if vector { "_v" } else { "" };
                format!("{}_x{rows}{vector}", linear_label((gate, act), weight, x, out))
            }
            Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups } => {
                let lanes = if subgroups { "subgroups" } else { "shared" };
                format!("{}_x{rows}_{lanes}", linear_label((gate, act), weight, x, out))
            }
            Kernel::Experts { weight, x, out, rows, vector, grouped } => {
                let (v, node) = (if vector { "_v" } else { "" }, if x == out { "" } else { "_f32" });
                let by = if grouped { "_grouped" } else { "" };
                format!("expert_linear_{}_{}{node}_x{rows}{v}{by}", weight.name(), x.name())
            }
            Kernel::Norm(how, x, reduce) => format!("norm_{}_{}_{}", how.name(), x.name(), reduce.name()),
            Kernel::Rescale(how, x, reduce) => {
                format!("rescale_{}_{}_{}", how.name(), x.name(), reduce.name())
            }
            Kernel::Elementwise(how, x, out) => format!("{}_{}_{}", how.name(), x.name(), out.name()),
            Kernel::RopeAppend(x, kv) => format!("rope_append_{}_{}", x.name(), kv.name()),
            Kernel::RopeAppendNorm(x, kv, reduce) => {
                format!("rope_append_norm_{}_{}_{}", x.name(), kv.name(), reduce.name())
            }
            Kernel::Index(how, x, kv) => format!("index_{}_{}_{}", how.name(), x.name(), kv.name()),
            Kernel::Kv(how, x, kv) => {
                let codes = if kv.plain().is_none() { "_codes" } else { "" };
                format!("kv_{}{codes}_{}_{}", how.name(), x.name(), kv.name())
            }
            Kernel::Attention(how, x, kv) => {
                let Attention { dense, columns, capped, subgroups, distances } = how;
                let keys = match (dense, distances, kv.plain()) {
                    (_, true, _) => "disentangled",
                    (true, false, _) => "dense",
                    (false, false, Some(_)) => "paged",
                    (false, false, None) => "codes",
                };
                let capped = if capped { "_capped" } else { "" };
                let largest = if subgroups { "_subgroups" } else { "" };
                format!("attention_{keys}{capped}_{}_{}_c{columns}{largest}", x.name(), kv.name())
            }
            Kernel::AttentionTile(columns, capped, x, kv) => {
                let capped = if capped { "_capped" } else { "" };
                let codes = if kv.plain().is_none() { "_codes" } else { "" };
                format!("attention_tile{codes}{capped}_{}_{}_c{columns}", x.name(), kv.name())
            }
            Kernel::Picture(how, x) => format!("picture_{}_{}", how.name(), x.name()),
            Kernel::Moe(how, x) => format!("moe_{}_{}", how.name(), x.name()),
            Kernel::Rows(how, x) => format!("rows_{how}_{}", x.name()),
            Kernel::Quantize(x) | Kernel::NormGroups(x) | Kernel::Rope(x) => format!("{stem}_{}", x.name()),
            Kernel::Limit(how) => format!("limit_{}", how.name()),
            Kernel::Sample | Kernel::Mark | Kernel::Probe | Kernel::Lanes => stem.into(),
        }
    }
}

fn linear_label((gate, act): (bool, bool), weight: Packing, x: Elem, out: Elem) -> String {
    let (gated, act) = (if gate { "gated_" } else { "" }, if act { "_act" } else { "" });
    format!("{gated}linear{act}_{}_{}_{}", weight.name(), x.name(), out.name())
}
