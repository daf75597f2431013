//! Rows of a table, each value rounded once.

use super::{added, weight};
use crate::compare::Want;
use crate::dice::round;
use crate::spec::embed::Case;

/// The rows that are looked up; an id beyond the table gives zeros.
fn rows(case: &Case) -> Vec<f32> {
    let (values, cols) = (weight::values(&case.table), case.table.cols);
    let row = |id: &u32| match values.chunks(cols).nth(*id as usize) {
        Some(row) => row.iter().map(|v| round(*v, case.acc.dtype)).collect(),
        None => vec![0.0; cols],
    };
    case.ids.iter().flat_map(row).collect()
}

/// `embed`.
pub fn embed(case: &Case) -> Want {
    Want::Exact(rows(case))
}

/// `embed_add`: the rounded rows on top of what is there.
pub fn embed_add(case: &Case) -> Want {
    let rows = rows(case);
    let sums = case.acc.values.iter().zip(&rows).map(|(a, v)| added(*a, *v, case.acc.dtype));
    Want::Exact(sums.collect())
}
