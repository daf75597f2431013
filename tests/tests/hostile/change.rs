//! Which changes are made: every field of every operand to values that somebody might pass.

use conformance::lawful::Field;
use engraft_core::mem::{
    Device, Float, KvFormat, KvLayout, MatLayout, Weight, WeightFormat, WeightInfo, WeightUse,
};
use engraft_core::ops::{AttentionOp, Op, Operand};
use engraft_core::params::Scores;

/// One change of one operand.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Which operand, as `Op::operands` counts them; behind them what it does not list.
    pub index: usize,
    /// Its name.
    pub operand: &'static str,
    /// What of it.
    pub field: Field,
    /// What it was.
    pub from: String,
    /// What it becomes.
    pub to: Value,
    /// Whether its allocation is larger than it needs, so that constructors refuse less and checks see more.
    pub loose: bool,
}

/// What a field becomes.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A number.
    Number(usize),
    /// An element type.
    Dtype(Float),
    /// The same.
    Mat(MatLayout),
    /// The same.
    Kv(KvLayout),
    /// Another weight.
    Weight(WeightInfo),
    /// Other data, by seed.
    Data(u64),
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { operand, field, from, loose, .. } = self;
        let room = if *loose { "with room behind it" } else { "tight" };
        match &self.to {
            Value::Number(n) => write!(f, "{field:?} of `{operand}` from {from} to {n}, {room}"),
            Value::Dtype(d) => write!(f, "{field:?} of `{operand}` from {from} to {d}, {room}"),
            Value::Mat(at) => write!(f, "{field:?} of `{operand}` from {from} to {at:?}, {room}"),
            Value::Kv(at) => write!(f, "{field:?} of `{operand}` from {from} to {at:?}, {room}"),
            Value::Weight(to) => write!(f, "{field:?} of `{operand}` from {from} to {to:?}"),
            Value::Data(seed) => write!(f, "{field:?} of `{operand}` to data {seed}"),
        }
    }
}

const FLOATS: [Float; 3] = [Float::F32, Float::F16, Float::Bf16];

/// Seeds of data for one operand, and for all of them at once.
const DATA: u64 = 16;

/// The index that means every operand with data.
pub const ALL: usize = usize::MAX;

/// Neighbours, multiples, nothing, too much, and what overflows when it is multiplied by `unit` or added to.
fn numbers(n: usize, unit: usize) -> Vec<usize> {
    let most = usize::MAX;
    let mut all = vec![
        n.wrapping_sub(1),
        n.wrapping_add(1),
        n.wrapping_mul(2),
        n / 2,
        n.wrapping_add(64),
        0,
        1,
        2,
        1 << 20,
        1 << 31,
        1 << 32,
        (1 << 32) + n,
        1 << 40,
        1 << 62,
        most / 2,
        most / 2 + 1,
        most - n,
        most - 1,
        most,
        most / unit.max(1),
        (most / unit.max(1)).wrapping_add(1),
        (most / unit.max(1)).wrapping_add(1).wrapping_add(n),
        most / 4 + 1,
        most / 2 / unit.max(1) + 1,
    ];
    all.sort_unstable();
    all.dedup();
    all.retain(|other| *other != n);
    all
}

/// Changes of one operand, collected.
struct List<'a> {
    all: &'a mut Vec<Change>,
    index: usize,
    operand: &'static str,
}

impl List<'_> {
    fn push(&mut self, field: Field, from: impl ToString, to: Value, loose: bool) {
        let (index, operand, from) = (self.index, self.operand, from.to_string());
        self.all.push(Change { index, operand, field, from, to, loose });
    }

    fn numbers(&mut self, field: Field, from: usize, unit: usize, rooms: &[bool]) {
        for loose in rooms {
            for to in numbers(from, unit) {
                self.push(field, from, Value::Number(to), *loose);
            }
        }
    }

    fn mat(&mut self, at: MatLayout) {
        let (size, both) = (at.dtype.bytes(), [false, true]);
        self.numbers(Field::Offset, 0, size, &both);
        self.numbers(Field::Rows, at.rows, at.pitch * size, &both);
        self.numbers(Field::Cols, at.cols, size, &both);
        self.numbers(Field::Pitch, at.pitch, at.rows * size, &both);
        let dense = MatLayout { pitch: at.cols, offset: 0, ..at };
        for loose in both {
            for dtype in FLOATS.into_iter().filter(|d| *d != at.dtype) {
                self.push(Field::Dtype, at.dtype, Value::Dtype(dtype), loose);
            }
            // More columns than the pitch has are refused at once: these have a pitch of their own.
            for cols in [at.cols + 1, 2 * at.cols, at.cols.saturating_sub(1)] {
                let wide = MatLayout { cols, pitch: cols, ..dense };
                self.push(Field::Cols, format!("{at:?}"), Value::Mat(wide), loose);
            }
            if at.rows != at.cols {
                let turned = MatLayout { rows: at.cols, cols: at.rows, pitch: at.rows, ..dense };
                self.push(Field::Transposed, format!("{at:?}"), Value::Mat(turned), loose);
            }
        }
    }

    fn buffer(&mut self, len: usize, size: usize) {
        self.numbers(Field::Offset, 0, size, &[false, true]);
        self.numbers(Field::Len, len, size, &[false, true]);
    }

    fn data(&mut self) {
        for seed in 0..DATA {
            self.push(Field::Content, "", Value::Data(seed), false);
        }
    }

    fn kv(&mut self, at: KvLayout) {
        type Get = fn(&mut KvLayout) -> &mut usize;
        let fields: [(Field, Get); 5] = [
            (Field::Pages, |at| &mut at.pages),
            (Field::PageSize, |at| &mut at.page_size),
            (Field::KvHeads, |at| &mut at.kv_heads),
            (Field::KDim, |at| &mut at.k_dim),
            (Field::VDim, |at| &mut at.v_dim),
        ];
        for loose in [false, true] {
            for (field, get) in fields {
                let from = *get(&mut at.clone());
                for to in numbers(from, at.format.widened().bytes()) {
                    let mut other = at;
                    *get(&mut other) = to;
                    self.push(field, from, Value::Kv(other), loose);
                }
            }
            for format in KvFormat::ALL.into_iter().filter(|f| *f != at.format) {
                self.push(Field::KvDtype, at.format, Value::Kv(KvLayout { format, ..at }), loose);
            }
        }
    }

    fn weight(&mut self, info: &WeightInfo) {
        let mut other = |field, to: WeightInfo| {
            if to != *info {
                self.push(field, format!("{info:?}"), Value::Weight(to), false);
            }
        };
        let WeightInfo { rows, cols, used_for, .. } = *info;
        for to in [rows + 1, rows.saturating_sub(1), 2 * rows, rows / 2, rows + 64, 0, usize::MAX] {
            other(Field::WeightRows, WeightInfo { rows: to, ..info.clone() });
        }
        let unit = info.format.block().map_or(1, |block| block.values());
        for to in [cols + unit, cols.saturating_sub(unit), 2 * cols, cols + 16 * unit, 0, usize::MAX] {
            other(Field::WeightCols, WeightInfo { cols: to, ..info.clone() });
        }
        for format in ["f32", "f16", "bf16", "q4_0", "q8_0", "q4_k", "int8:32", "int4a:64", "w8a8"] {
            // Those that are formats of this program, which is what its tests of formats see to.
            let Ok(format) = format.parse::<WeightFormat>() else { continue };
            other(Field::WeightFormat, WeightInfo { format, ..info.clone() });
        }
        let kind = std::mem::discriminant(&used_for);
        let experts = |used_for| match used_for {
            WeightUse::Experts { count, .. } => count,
            _ => 0,
        };
        // Another grain alone is a change of its own.
        let differs =
            |other: &WeightUse| std::mem::discriminant(other) != kind || experts(*other) != experts(used_for);
        for used_for in uses(rows).into_iter().filter(differs) {
            other(Field::WeightUse, WeightInfo { used_for, ..info.clone() });
        }
        for grain in [0, 1, 32, cols + 1, usize::MAX] {
            let used_for = match used_for {
                WeightUse::Linear { .. } => WeightUse::Linear { grain, group: 1 },
                WeightUse::GatedLinear { .. } => WeightUse::GatedLinear { grain },
                WeightUse::Experts { count, .. } => WeightUse::Experts { count, grain },
                _ => continue,
            };
            other(Field::WeightGrain, WeightInfo { used_for, ..info.clone() });
        }
    }
}

/// Every use of a weight of so many rows.
fn uses(rows: usize) -> Vec<WeightUse> {
    let grain = 1;
    let experts = [1, 2, 3, rows, rows + 1, 0].map(|count| WeightUse::Experts { count, grain });
    let one = [
        WeightUse::Linear { grain, group: 1 },
        WeightUse::Linear { grain, group: 3 },
        WeightUse::GatedLinear { grain },
        WeightUse::Embedding,
        WeightUse::EmbeddingAndLinear,
        WeightUse::Vector,
    ];
    one.into_iter().chain(experts).collect()
}

/// Every change of an op.
pub fn changes<D: Device>(op: &mut Op<'_, D>) -> Vec<Change> {
    let mut all = Vec::new();
    let operands = op.operands();
    let count = operands.len();
    for (index, (operand, mut what)) in operands.into_iter().enumerate() {
        let mut list = List { all: &mut all, index, operand };
        match &mut what {
            Operand::Mat(m) => {
                list.mat(m.layout());
                list.data();
            }
            Operand::MatMut(m) => list.mat(m.layout()),
            Operand::Words(w) => {
                list.buffer(w.len(), 4);
                list.data();
            }
            Operand::Slots(w) => {
                list.buffer(w.len(), 4);
                list.data();
            }
            Operand::Floats(w) => {
                list.buffer(w.len(), 4);
                list.data();
            }
            Operand::Samples(w) => {
                list.buffer(w.len(), size_of::<engraft_core::sample::SampleRow>());
                list.data();
            }
            Operand::WordsMut(w) => {
                list.buffer(w.len(), 4);
                list.data();
            }
            Operand::Kv(kv) => {
                list.kv(kv.layout());
                list.data();
            }
            Operand::KvMut(kv) => list.kv(kv.layout()),
            Operand::Weight(w) => list.weight(w.info()),
            Operand::Size(n) => list.numbers(Field::Size, **n, 4, &[false]),
        }
    }
    unlisted(op, count, &mut all);
    let mut list = List { all: &mut all, index: ALL, operand: "all data" };
    (0..4 * DATA).for_each(|seed| list.push(Field::Content, "", Value::Data(seed), false));
    all
}

/// What is no view and no size, but could be wrong: schedules, slopes, distances with a bias.
fn unlisted<D: Device>(op: &Op<'_, D>, count: usize, all: &mut Vec<Change>) {
    let mut sizes = |at: usize, operand, from: usize| {
        List { all, index: count + at, operand }.numbers(Field::Size, from, 4, &[false]);
    };
    let span = |scores: &Scores| scores.relative.map_or(0, |relative| relative.span());
    match op {
        Op::Attention(AttentionOp::Attend(op)) => {
            sizes(0, PLAN, op.seqs.kv_lens.len());
            sizes(1, SLOPES, op.scores.alibi.as_ref().map_or(0, |slopes| slopes.len()));
            sizes(2, SPAN, span(op.scores));
        }
        Op::Attention(AttentionOp::AttendDense(op)) => {
            sizes(0, SLOPES, op.scores.alibi.as_ref().map_or(0, |slopes| slopes.len()));
            sizes(1, SPAN, span(op.scores));
        }
        Op::Attention(AttentionOp::AttendDisentangled(op)) => {
            sizes(0, SLOPES, op.scores.alibi.as_ref().map_or(0, |slopes| slopes.len()));
            sizes(1, SPAN, span(op.scores));
        }
        _ => {}
    }
}

/// The schedule of attention.
pub const PLAN: &str = "schedule";
/// Of linear position biases.
pub const SLOPES: &str = "slopes";
/// Of biases by distance.
pub const SPAN: &str = "distances";
