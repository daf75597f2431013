//! Lane-wise instructions in variants too rare for a loop of their own: a function of up to three register
//! contents, called for every active lane.

use std::fmt;
use std::sync::Arc;

use super::Decoder;
use crate::Error;
use crate::code::Op;
use crate::registers::{Registers, Slots};
use crate::run::lanes_of;
use crate::text::types::Type;

/// The function of one lane.
pub(crate) type Function = Arc<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

/// An instruction that calls a function per lane.
#[derive(Clone)]
pub(crate) struct General {
    pub(crate) f: Function,
    pub(crate) slots: Slots,
    /// Which of the slots have 64 bits.
    pub(crate) wide: [bool; 4],
    pub(crate) sources: usize,
}

impl fmt::Debug for General {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("General").field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl General {
    pub(crate) fn run(&self, r: &mut Registers, active: u32) {
        for lane in lanes_of(active) {
            let mut x = [0; 3];
            for (i, value) in x.iter_mut().enumerate().take(self.sources) {
                let slot = self.slots[i + 1];
                *value = if self.wide[i + 1] { r.wide(slot)[lane] } else { u64::from(r.row(slot)[lane]) };
            }
            let d = (self.f)(x[0], x[1], x[2]);
            if self.wide[0] {
                r.wide_mut(self.slots[0])[lane] = d;
            } else {
                r.row_mut(self.slots[0])[lane] = d as u32;
            }
        }
    }
}

/// The instruction with these types, all parts of its opcode being understood.
pub(crate) fn general(
    d: &mut Decoder<'_, '_>,
    to: Type,
    sources: &[Type],
    f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static,
) -> Result<Op, Error> {
    d.finish()?;
    d.count(1 + sources.len())?;
    let slots = d.slots(to, sources)?;
    let mut wide = [to.bits() > 32; 4];
    sources.iter().enumerate().for_each(|(i, t)| wide[i + 1] = t.bits() > 32);
    Ok(Op::General(Box::new(General { f: Arc::new(f), slots, wide, sources: sources.len() })))
}
