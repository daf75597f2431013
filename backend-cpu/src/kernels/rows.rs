//! Rows and words moved.

use super::{RawMat, RawMatMut, same};
use engraft_core::Result;

/// `out[i] = x[rows[i]]`, bytes copied; a row number beyond `x` gives zeros.
pub fn gather(x: RawMat, rows: &[u32], out: RawMatMut) -> Result<()> {
    same("gather_rows", "rows", rows.len(), out.rows)?;
    same("gather_rows", "columns", out.cols, x.cols)?;
    same("gather_rows", "element bytes", out.dtype.bytes(), x.dtype.bytes())?;
    if out.as_raw().is_empty() {
        return Ok(());
    }
    let bytes = x.cols * x.dtype.bytes();
    for (i, row) in rows.iter().enumerate() {
        // SAFETY: both rows exist and have so many bytes; the views do not overlap.
        unsafe {
            match (*row as usize) < x.rows {
                true => std::ptr::copy_nonoverlapping(x.row(*row as usize), out.row(i), bytes),
                false => std::ptr::write_bytes(out.row(i), 0, bytes),
            }
        }
    }
    Ok(())
}

/// `dst[index] = value` for every `(index, value)`, in order; indices beyond `dst` do nothing.
pub fn scatter(pairs: &[u32], dst: &mut [u32]) {
    for [index, value] in pairs.as_chunks().0 {
        if let Some(word) = dst.get_mut(*index as usize) {
            *word = *value;
        }
    }
}
