//! Matrices that become the own groups of small floats (`quant::float_group`): codes and scales move, and
//! nothing is rounded.

use crate::mem::{GroupBits, Groups, Stored};
use crate::quant::float_group::{self, SCALES};
use crate::quant::small_float;
use crate::{Error, Result};

/// What a matrix of `cols` columns becomes, whose scales belong to runs of `run` of them; none where groups
/// have no such size, or the scales are none that groups have.
pub(super) fn target(bits: GroupBits, cols: usize, run: usize, scales: &[f32]) -> Option<Stored> {
    let size = if run >= cols { 0 } else { u32::try_from(run).ok()? };
    // What a group of MXFP4 or NVFP4 is has a size of its own.
    let size = if size == 0 && bits == GroupBits::E2m1 { u32::try_from(run).ok()? } else { size };
    let groups = Groups::floats(bits, size);
    let fits = |d: &f32| *d == 0.0 || (SCALES[0]..=SCALES[1]).contains(&d.abs());
    let is = cols > 0 && groups.is_allowed() && scales.iter().all(fits);
    is.then_some(Stored::Group(groups, u32::try_from(cols).ok()?))
}

/// The rows of a matrix: `scale(row, group)` and `code(row, column)` say what is in them.
///
/// # Errors
/// `Tensor` naming `name` for a code of eight bits that is no number.
pub(super) fn rows(
    name: &str,
    (groups, rows, cols): (Groups, usize, usize),
    scale: impl Fn(usize, usize) -> f32,
    code: impl Fn(usize, usize) -> u8,
) -> Result<Vec<u8>> {
    let (size, mut out) = (groups.group(cols), Vec::with_capacity(rows * groups.row_bytes(cols)));
    for row in 0..rows {
        for (g, first) in (0..cols).step_by(size).enumerate() {
            let (count, begin) = (size.min(cols - first), out.len());
            out.extend_from_slice(&scale(row, g).to_le_bytes());
            out.resize(begin + groups.group_bytes(count), 0);
            let group = &mut out[begin..];
            for i in 0..count {
                let code = code(row, first + i);
                if groups.bits.count() == 8 {
                    group[4 + i] = code;
                } else {
                    float_group::put(groups, group, i, code);
                }
            }
            if let Some(i) = (0..count).find(|i| !is_number(groups.bits, group, *i)) {
                let what =
                    format!("row {row}, column {}: not a number; finite codes are expected", first + i);
                return Err(Error::tensor(name, what));
            }
        }
    }
    Ok(out)
}

/// Whether byte `i` of a group is a finite float; codes of fewer bits are.
fn is_number(bits: GroupBits, group: &[u8], i: usize) -> bool {
    match bits {
        GroupBits::E4m3 => group[4 + i] & 127 != 127,
        GroupBits::E5m2 => small_float::e5m2(group[4 + i]).is_finite(),
        _ => true,
    }
}
