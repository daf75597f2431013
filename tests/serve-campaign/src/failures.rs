//! Whom planned failures may end.

use conformance::null::{Failure, Name};
use std::collections::BTreeMap;

/// A request that a planned failure has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub name: Name,
    /// A fork or a restored request of which nothing was heard before: what was to begin it may have failed.
    pub at_once: bool,
    /// The request, and what was said.
    pub what: String,
}

/// How many requests the failures may have ended that have happened.
///
/// A step that fails ends its own sequences, which are known by name. Where its words were not there yet they
/// are not, and are as many as run at most. Forking and restoring collect what is in flight: where that
/// fails, one request more has not begun.
///
/// # Errors
/// A request that none of them may have ended.
pub(crate) fn judge(failures: &[Failure], mut ended: Vec<Ended>, max_seqs: usize) -> Result<u64, String> {
    let (mut named, mut unnamed, mut not_begun) = (BTreeMap::<Name, u64>::new(), 0, 0);
    for failure in failures {
        match failure {
            Failure::Launch(names) | Failure::Collect(names) => {
                names.iter().for_each(|name| *named.entry(*name).or_default() += 1);
            }
            Failure::Elsewhere => unnamed += max_seqs as u64,
            Failure::Capture => {}
        }
        not_begun += u64::from(matches!(failure, Failure::Collect(_)));
    }
    let most = named.values().sum::<u64>() + unnamed + not_begun;
    // A restored request has the name of the one that was saved, which comes first.
    ended.sort_by_key(|one| one.at_once);
    for Ended { name, at_once, what } in &ended {
        let left = match named.get_mut(name) {
            Some(left) if *left > 0 => left,
            _ if *at_once && not_begun > 0 => &mut not_begun,
            _ => &mut unnamed,
        };
        let no = || format!("a failure ended a request that had no part in it: {what}\n  {failures:?}");
        *left = left.checked_sub(1).ok_or_else(no)?;
    }
    Ok(most)
}
