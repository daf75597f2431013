//! Rows of a table by id: `out = table[id]`, or `out = round(out + round(table[id]))`.

use super::linear::Packed;
use super::{Floats, Machine, RawMatMut, round_in_place, same};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::Result;

/// A table whose rows are read one at a time.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Widens a row that exists into as many values as there are columns.
    pub read: &'a dyn Fn(usize, &mut [f32]) -> Result<()>,
}

/// Looks rows up, or adds them with `add`. An id beyond the table counts as a row of zeros.
pub fn embed(machine: &Machine, ids: &[u32], table: Table<'_>, add: bool, out: RawMatMut) -> Result<()> {
    let cols = out.cols;
    same("embed", "rows", ids.len(), out.rows)?;
    same("embed", "columns", cols, table.cols)?;
    if out.as_raw().is_empty() {
        return Ok(());
    }
    let padded = cols.next_multiple_of(16);
    machine.with_scratch(2 * padded, |scratch| {
        for (r, id) in ids.iter().enumerate() {
            // SAFETY: two rows of scratch.
            let row = unsafe { std::slice::from_raw_parts_mut(scratch.at(0), cols) };
            match (*id as usize) < table.rows {
                true => (table.read)(*id as usize, row)?,
                false => row.fill(0.0),
            }
            // SAFETY: the second row.
            let other = Floats(unsafe { scratch.at(padded) });
            simd::run(machine.isa, machine.madd, Write { row, other, r, out, add });
        }
        Ok(())
    })
}

struct Write<'a> {
    row: &'a mut [f32],
    other: Floats,
    r: usize,
    out: RawMatMut,
    add: bool,
}

impl Kernel for Write<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let cols = self.out.cols;
        // SAFETY: a row of scratch; row `r` of the view exists, `embed` has checked that.
        unsafe {
            if self.add {
                round_in_place::<V>(self.row, self.out.dtype);
                self.out.as_raw().widen::<V>(self.r, 0, cols, self.other.at(0));
                let other = std::slice::from_raw_parts(self.other.at(0), cols);
                self.row.iter_mut().zip(other).for_each(|(v, o)| *v += o);
            }
            self.out.narrow::<V>(self.r, 0, cols, self.row.as_ptr());
        }
    }
}

/// Reads a row back out of packed panels.
pub fn unpack(machine: &Machine, packed: &Packed, row: usize, out: &mut [f32]) {
    struct Unpack<'a>(&'a Packed, usize, &'a mut [f32]);
    impl Kernel for Unpack<'_> {
        #[inline(always)]
        fn run<V: Lanes>(self) {
            self.0.unpack::<V>(self.1, self.2);
        }
    }
    simd::run(machine.isa, machine.madd, Unpack(packed, row, out));
}
