//! Rows and words moved: integers, written out.

use crate::compare::Want;
use crate::spec::rows::{GatherCase, WordsCase};

/// `gather_rows`: a row number beyond the matrix gives zeros.
pub fn gather_rows(case: &GatherCase) -> Want {
    let row = |r: &u32| match (*r as usize) < case.x.rows {
        true => case.x.row(*r as usize).to_vec(),
        false => vec![0.0; case.x.cols],
    };
    Want::Exact(case.rows.iter().flat_map(row).collect())
}

/// `scatter`: pairs one after the other; an index beyond the words does nothing.
pub fn scatter(case: &WordsCase) -> Want {
    let mut words = case.words.clone();
    for pair in case.changes.chunks(2) {
        if let Some(word) = words.get_mut(pair[0] as usize) {
            *word = pair[1];
        }
    }
    Want::Words(words)
}

/// `mark_seen`: the row's bits are those of the ids alone; other rows stay.
pub fn mark_seen(case: &WordsCase) -> Want {
    let mut words = case.words.clone();
    let row = &mut words[case.slot * case.width..(case.slot + 1) * case.width];
    row.fill(0);
    for id in &case.changes {
        if let Some(word) = row.get_mut(*id as usize / 32) {
            *word |= 1 << (id % 32);
        }
    }
    Want::Words(words)
}
