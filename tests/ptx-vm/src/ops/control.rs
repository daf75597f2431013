//! Branches, ends, sleeps, clocks, and what has no effect here. Source: PTX ISA 8.7, 9.7.12.

use super::{Decoder, Done, Flow};
use crate::Error;
use crate::code::Op;
use crate::registers::Slot;
use crate::run::{Stop, Turn, lanes_of};
use crate::text::syntax::Operand;
use crate::text::types::Type;

/// Decodes the control instructions.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    d.variant.take("uni");
    Ok(match d.variant.base {
        "bra" => {
            d.finish()?;
            d.count(1)?;
            match d.operand(0)? {
                Operand::Name(name, 0) => Op::Branch(d.l.label(name)?),
                _ => return d.refuse("a label is needed"),
            }
        }
        "brx" => {
            if !d.variant.take("idx") {
                return d.refuse("`brx.idx` is the only variant");
            }
            d.finish()?;
            d.count(2)?;
            let index = d.l.source(d.operand(0)?, Type::Unsigned(32))?;
            match d.operand(1)? {
                Operand::Name(name, 0) => Op::BranchTable(index, d.l.table(name)?),
                _ => return d.refuse("a list of branch targets is needed"),
            }
        }
        "ret" => {
            d.finish()?;
            d.l.return_op()
        }
        "exit" => {
            d.finish()?;
            Op::Exit
        }
        "trap" => Op::Trap("the kernel executed `trap`"),
        "brkpt" | "pmevent" => Op::Nop,
        "nanosleep" => {
            d.ty()?;
            d.finish()?;
            Op::Sleep
        }
        "griddepcontrol" => match d.variant.one_of(&["launch_dependents", "wait"]) {
            Some("wait") => Op::GridWait,
            Some(_) => Op::Nop,
            None => return d.refuse("`griddepcontrol` has .launch_dependents and .wait"),
        },
        "setmaxnreg" => {
            let known = d.variant.one_of(&["inc", "dec"]).is_some()
                && d.variant.take("sync")
                && d.variant.take("aligned");
            d.ty()?;
            d.finish()?;
            let n = d.immediate(0)?;
            if !known || n % 8 != 0 || !(24..=256).contains(&n) {
                return d.refuse("`setmaxnreg` takes a multiple of 8 from 24 to 256");
            }
            Op::Nop
        }
        _ => return d.refuse("this opcode is unknown"),
    })
}

/// `brx.idx`: the lanes go where their index says; the first target's lanes branch, the rest come again.
pub(crate) fn table(t: &mut Turn<'_, '_>, index: Slot, targets: &[u32], active: u32) -> Done<Flow> {
    let row = *t.warp.registers.row(index);
    let first = active.trailing_zeros() as usize;
    let Some(&to) = targets.get(row[first] as usize) else {
        let detail = format!("branch index {} of {} targets", row[first], targets.len());
        return Err(Stop::new(crate::FaultKind::Operand, detail).at(first as u32));
    };
    let same = lanes_of(active).filter(|&l| row[l] == row[first]).fold(0, |m, l| m | 1 << l);
    if same == active {
        return Ok(Flow::Branch(active, to));
    }
    Ok(Flow::Peel(same, to))
}

/// A function that an indirect call may reach.
#[derive(Debug, Clone)]
pub(crate) struct CallTarget {
    /// What a pointer to it holds.
    pub(crate) address: u64,
    /// Where its body stands.
    pub(crate) to: u32,
    /// Why this call cannot call it.
    pub(crate) refused: Option<Box<str>>,
}

/// A call through a pointer: the lanes of the first one's function go there, the rest come again.
#[cold]
pub(crate) fn call(t: &mut Turn<'_, '_>, pointer: Slot, targets: &[CallTarget], active: u32) -> Done<Flow> {
    let row = *t.warp.registers.wide(pointer);
    let first = active.trailing_zeros() as usize;
    let to = match targets.iter().find(|target| target.address == row[first]) {
        Some(CallTarget { refused: None, to, .. }) => *to,
        found => {
            let detail = match found.and_then(|target| target.refused.as_deref()) {
                Some(why) => format!("an indirect call: {why}"),
                None => format!("an indirect call of {:#x}, which is no function of this module", row[first]),
            };
            return Err(Stop::new(crate::FaultKind::Call, detail).at(first as u32));
        }
    };
    let same = lanes_of(active).filter(|&l| row[l] == row[first]).fold(0, |m, l| m | 1 << l);
    Ok(if same == active { Flow::Branch(active, to) } else { Flow::Peel(same, to) })
}

/// `%clock`, `%clock64`, `%globaltimer`: instructions executed, so that time never stands still.
pub(crate) fn clock(t: &mut Turn<'_, '_>, d: Slot, wide: bool, active: u32) -> Done<Flow> {
    let now = t.grid.instructions + t.warp.count;
    if wide {
        t.warp.registers.put_wide(d, &[now; 32], active);
    } else {
        t.warp.registers.put(d, &[now as u32; 32], active);
    }
    Ok(Flow::Next)
}
