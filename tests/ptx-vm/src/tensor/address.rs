//! Where the bytes of a box lie, in global and in shared memory.
//!
//! The box's rows (dimension 0) follow each other in shared memory without gaps, dimension 1 next, and so on;
//! with a swizzle wider than a row, rows lie one swizzle width apart. The swizzle then moves 16-byte chunks
//! by the bits of their final address, so a box that starts off the pattern's boundary is swizzled as the
//! pattern lies, not as the box does.

use super::map::{DataType, Interleave, MapError, OobFill, Swizzle, TensorMap};
use crate::number::{BF16, F16, F32, F64};

/// Alignment of a box in shared memory, in bytes.
pub const SHARED_ALIGNMENT: u32 = 128;

/// A stretch of bytes that is contiguous in global and in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Global address; `None` where the box is outside the tensor: a load fills, a store writes nothing.
    pub global: Option<u64>,
    /// Shared address.
    pub shared: u32,
    /// Length in bytes.
    pub bytes: u32,
}

impl TensorMap {
    /// Elements along dimension `i` of the box in shared memory: the box dimension over its step, rounded up.
    pub fn box_count(&self, i: usize) -> u32 {
        let step =
            if i == 0 && self.interleave == Interleave::None { 1 } else { self.element_strides[i].max(1) };
        self.box_dims[i].div_ceil(step)
    }

    /// Bytes of a box: what the mbarrier counts, and what a load writes.
    pub fn box_bytes(&self) -> u32 {
        (0..self.rank as usize).map(|i| self.box_count(i)).product::<u32>() * self.data_type.bytes()
    }

    /// Bytes of shared memory from the first to the last byte of a box, gaps included.
    pub fn shared_bytes(&self) -> u32 {
        let rows = (1..self.rank as usize).map(|i| self.box_count(i)).product::<u32>();
        rows * self.row_pitch()
    }

    fn row_pitch(&self) -> u32 {
        let row = self.box_dims[0] * self.data_type.bytes();
        if self.swizzle == Swizzle::None { row } else { row.max(self.swizzle.width()) }
    }

    /// The element that fills a box outside the tensor, in its first [`DataType::bytes`] bytes.
    ///
    /// The value of the NaN is not documented; it is the canonical one of the type here.
    pub fn fill_element(&self) -> [u8; 8] {
        if self.fill == OobFill::Zeros {
            return [0; 8];
        }
        let format = match self.data_type {
            DataType::F16 => F16,
            DataType::Bf16 => BF16,
            DataType::F64 => F64,
            _ => F32,
        };
        format.nan_bits().to_le_bytes()
    }

    /// The runs of a box, in ascending order of its elements.
    ///
    /// # Arguments
    /// - `coordinates`: the box's first element, one per dimension, innermost first; may lie outside the
    ///   tensor.
    /// - `shared`: where the box starts in shared memory, a multiple of [`SHARED_ALIGNMENT`].
    ///
    /// # Errors
    /// A wrong number of coordinates, a misaligned shared address, or a map this machine cannot copy through.
    pub fn runs(&self, coordinates: &[i32], shared: u32) -> Result<Vec<Run>, MapError> {
        self.check_copy(coordinates, shared)?;
        let rank = self.rank as usize;
        let counts: [u32; 5] = std::array::from_fn(|i| if i < rank { self.box_count(i) } else { 1 });
        let rows: u32 = counts[1..].iter().product();
        let mut runs = Runs { list: Vec::with_capacity(rows as usize), swizzle: self.swizzle };
        let pitch = self.row_pitch();
        for row in 0..rows {
            let global = self.row_address(coordinates, &counts, row);
            self.row(global, i64::from(coordinates[0]), shared.wrapping_add(row * pitch), &mut runs);
        }
        Ok(runs.list)
    }

    fn check_copy(&self, coordinates: &[i32], shared: u32) -> Result<(), MapError> {
        if coordinates.len() != self.rank as usize {
            return Err(MapError::Argument {
                what: "number of coordinates".into(),
                found: coordinates.len().to_string(),
                allowed: format!("the map's rank, {}", self.rank),
            });
        }
        if !shared.is_multiple_of(SHARED_ALIGNMENT) {
            return Err(MapError::Argument {
                what: "shared address".into(),
                found: format!("{shared:#x}"),
                allowed: format!("a multiple of {SHARED_ALIGNMENT}"),
            });
        }
        if self.interleave != Interleave::None {
            return Err(MapError::Unsupported("an interleaved layout".into()));
        }
        if matches!(self.data_type, DataType::Tf32 | DataType::Tf32Flush) {
            return Err(MapError::Unsupported("a copy that rounds to tf32".into()));
        }
        if self.data_type == DataType::F32Flush {
            return Err(MapError::Unsupported("a copy that flushes subnormals".into()));
        }
        Ok(())
    }

    /// Global address of element 0 of dimension 0 in the box's row `row`, `None` when the row is outside the
    /// tensor.
    fn row_address(&self, coordinates: &[i32], counts: &[u32; 5], row: u32) -> Option<u64> {
        let mut rest = row;
        let mut address = self.address;
        for (i, &coordinate) in coordinates.iter().enumerate().skip(1) {
            let index = rest % counts[i];
            rest /= counts[i];
            let at = i64::from(coordinate) + i64::from(index * self.element_strides[i]);
            let at = u64::try_from(at).ok().filter(|&at| at < self.dims[i])?;
            address = address.wrapping_add(at.wrapping_mul(self.strides[i - 1]));
        }
        Some(address)
    }

    /// The runs of one row: what lies before the tensor, in it, and behind it.
    fn row(&self, global: Option<u64>, first: i64, shared: u32, runs: &mut Runs) {
        let size = self.data_type.bytes();
        let count = i64::from(self.box_dims[0]);
        let inside = match global {
            // A dimension of up to 2^32 and a coordinate of 32 bits leave plenty of room in 64.
            Some(_) => (-first).clamp(0, count)..(self.dims[0] as i64 - first).clamp(0, count),
            None => count..count,
        };
        let start = inside.start.min(inside.end);
        let bytes = |elements: i64| elements as u32 * size;
        runs.push(None, shared, bytes(start));
        let address =
            global.map(|global| global.wrapping_add_signed((first + start).wrapping_mul(i64::from(size))));
        runs.push(address, shared + bytes(start), bytes(inside.end - start));
        runs.push(None, shared + bytes(inside.end), bytes(count - inside.end));
    }
}

/// Collects runs, splitting them where the swizzle moves chunks apart and joining what stays together.
struct Runs {
    list: Vec<Run>,
    swizzle: Swizzle,
}

impl Runs {
    fn push(&mut self, global: Option<u64>, shared: u32, bytes: u32) {
        if self.swizzle == Swizzle::None {
            return self.join(Run { global, shared, bytes });
        }
        let mut done = 0;
        while done < bytes {
            let at = shared + done;
            let piece = (16 - at % 16).min(bytes - done);
            let global = global.map(|global| global.wrapping_add(u64::from(done)));
            self.join(Run { global, shared: self.swizzle.apply(at), bytes: piece });
            done += piece;
        }
    }

    fn join(&mut self, run: Run) {
        if run.bytes == 0 {
            return;
        }
        if let Some(last) = self.list.last_mut() {
            let behind = last.shared + last.bytes == run.shared;
            let follows = match (last.global, run.global) {
                (None, None) => true,
                (Some(a), Some(b)) => a.wrapping_add(u64::from(last.bytes)) == b,
                _ => false,
            };
            if behind && follows {
                last.bytes += run.bytes;
                return;
            }
        }
        self.list.push(run);
    }
}
