//! `vprintf`, the function that the compiler calls for `printf`: a format, and the address of the arguments,
//! each at a multiple of its size. The text goes to the buffer that
//! [`Memory::take_printed`](crate::Memory::take_printed) empties.

use super::data::{fetch_bytes, local};
use super::{Done, Flow};
use crate::FaultKind;
use crate::print::{Arguments, text};
use crate::run::{Stop, Turn, lanes_of};

/// Bytes of a format, or of a string, at most: one that does not end is a mistake.
const LONGEST: usize = 1 << 16;

/// A call: where in local memory its parameters are.
#[derive(Debug, Clone)]
pub(crate) struct Print {
    pub(crate) format: u64,
    pub(crate) arguments: u64,
    /// Where the number of arguments goes.
    pub(crate) result: Option<u64>,
}

/// The arguments of one lane's call.
struct Reader<'t, 'a, 'g> {
    turn: &'t mut Turn<'a, 'g>,
    lane: usize,
    at: u64,
}

impl Arguments for Reader<'_, '_, '_> {
    type Error = Stop;

    fn next(&mut self, bytes: u32) -> Done<u64> {
        let at = self.at.next_multiple_of(u64::from(bytes));
        self.at = at + u64::from(bytes);
        let mut value = [0; 8];
        fetch_bytes(self.turn, at, self.lane, &mut value[..bytes as usize])?;
        Ok(u64::from_le_bytes(value))
    }

    fn string(&mut self, address: u64, most: usize) -> Done<Vec<u8>> {
        string(self.turn, self.lane, address, most)
    }
}

/// The bytes up to a zero, or so many of them.
fn string(t: &mut Turn<'_, '_>, lane: usize, address: u64, most: usize) -> Done<Vec<u8>> {
    let mut out = Vec::new();
    while out.len() < most {
        let mut byte = [0];
        fetch_bytes(t, address.wrapping_add(out.len() as u64), lane, &mut byte)?;
        if byte == [0] {
            break;
        }
        out.extend(byte);
        if out.len() > LONGEST {
            let detail = format!("the string of `printf` at {address:#x} has no end in {LONGEST} bytes");
            return Err(Stop::new(FaultKind::OutOfBounds, detail));
        }
    }
    Ok(out)
}

fn parameter(t: &Turn<'_, '_>, address: u64, lane: usize) -> Done<u64> {
    let at = local(t, address, 8, lane)?;
    Ok(super::data::little(&t.warp.local[at..at + 8]))
}

/// Prints for one lane; the number of arguments, -1 without a format.
fn print(t: &mut Turn<'_, '_>, p: &Print, lane: usize) -> Done<i32> {
    let (format, at) = (parameter(t, p.format, lane)?, parameter(t, p.arguments, lane)?);
    if format == 0 {
        return Ok(-1);
    }
    let format = string(t, lane, format, usize::MAX)?;
    let (said, taken) = text(&format, &mut Reader { turn: t, lane, at })?;
    t.grid.print(said);
    Ok(taken as i32)
}

/// Executes `vprintf`, lane after lane.
#[cold]
pub(crate) fn execute(t: &mut Turn<'_, '_>, p: &Print, active: u32) -> Done<Flow> {
    for lane in lanes_of(active) {
        let taken = match print(t, p, lane) {
            Ok(taken) => taken,
            Err(stop) => {
                super::data::note(t, stop, lane);
                -2
            }
        };
        if let Some(result) = p.result {
            let at = local(t, result, 4, lane)?;
            t.warp.local[at..at + 4].copy_from_slice(&taken.to_le_bytes());
        }
    }
    Ok(Flow::Next)
}
