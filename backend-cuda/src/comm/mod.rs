//! Ranks on devices of their own: exchanges on the device.
//!
//! `peers` is the communicator of ranks that reach each other's memory, by own kernels. By NVIDIA's NCCL, an
//! option that nothing ever needs: `nccl` finds the library and has its functions, `nccl_group` is a rank's
//! communicator, `nccl_link` holds its place in NCCL. `roll` is how either learns that a rank is missing,
//! `watch` how waits for the device look at that.

pub(crate) mod nccl;
pub(crate) mod nccl_group;
mod nccl_link;
pub(crate) mod peers;
mod roll;
pub(crate) mod watch;

use engraft_core::{Error, Result};
use std::ops::Range;

/// The width of the widest of the ranks' columns.
///
/// # Errors
/// `Internal` for columns that a matrix of `cols` does not have, or of another number of ranks.
fn widest(columns: &[Range<usize>], world: usize, cols: usize) -> Result<usize> {
    let inside = |range: &Range<usize>| range.start <= range.end && range.end <= cols;
    if columns.len() != world || !columns.iter().all(inside) {
        return Err(Error::internal(format!("columns {columns:?} of {cols}, of {world} ranks")));
    }
    Ok(columns.iter().map(Range::len).max().unwrap_or(0))
}
