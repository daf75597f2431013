//! Which changes of an op's operands leave an op that still means something: rules for
//! `tests/hostile_views.rs`, which expects an error after every other change.

/// A change that an op may take: it runs, or is refused, but touches nothing outside its outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lawful {
    /// The op by name.
    pub op: &'static str,
    /// The operand, as `Op::operands` calls it.
    pub operand: &'static str,
    /// What of it is changed.
    pub field: Field,
    /// Why that is still this op.
    pub why: &'static str,
}

/// What of an operand is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: the names are those of the fields of views, layouts and weights.
pub enum Field {
    Offset,
    Rows,
    Cols,
    Pitch,
    /// Rows and columns exchanged.
    Transposed,
    Dtype,
    Len,
    Pages,
    PageSize,
    KvHeads,
    KDim,
    VDim,
    KvDtype,
    /// A size that the host gives.
    Size,
    WeightRows,
    WeightCols,
    WeightFormat,
    WeightUse,
    WeightGrain,
    /// What the view's words or values are.
    Content,
}

impl Lawful {
    /// A rule.
    pub const fn new(op: &'static str, operand: &'static str, field: Field, why: &'static str) -> Self {
        Self { op, operand, field, why }
    }

    /// Whether any op takes this change of any operand: a view elsewhere in its memory, or with rows further
    /// apart, is as good as it was; a weight is what it is for, whatever it was packed from.
    pub fn always(field: Field) -> bool {
        matches!(
            field,
            Field::Offset | Field::Pitch | Field::Content | Field::WeightFormat | Field::WeightGrain
        )
    }
}
