//! Runs one warp until it must wait, has ended, or has used its slice.

use super::warp::{Group, Wait};
use super::{Done, Flow, Stop, Turn};
use crate::code::Op;
use crate::{FaultKind, ops};

/// Looks at global memory in one turn that are enough to know that it waits.
const LOOKS: u64 = 64;

/// How a turn of a warp ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turned {
    /// The warp has ended.
    Ended,
    /// It waits for others.
    Waits,
    /// It polled or slept and would do so again.
    Polled,
    /// Its slice is over.
    Sliced,
}

/// A fault's place in the program.
pub(crate) struct Blame {
    pub(crate) stop: Stop,
    pub(crate) pc: u32,
    /// A lane of the group that executed it.
    pub(crate) lane: u32,
}

impl Turn<'_, '_> {
    /// Runs the warp for at most `slice` instructions.
    pub(crate) fn run(&mut self, slice: u64) -> Result<Turned, Blame> {
        let end = self.warp.count + slice;
        self.grid.turn = (self.grid.global_looks, self.cluster.progress);
        loop {
            self.warp.merge();
            let Some(at) = self.choose() else {
                if self.warp.groups.is_empty() {
                    self.warp.done = true;
                    return Ok(Turned::Ended);
                }
                if self.release_warp_barriers() {
                    continue;
                }
                let g = self.warp.groups[0];
                let detail = "lanes of the warp wait for each other at different places";
                return Err(Blame {
                    stop: Stop::new(FaultKind::Divergence, detail),
                    pc: g.pc,
                    lane: g.mask.trailing_zeros(),
                });
            };
            if let Some(turned) = self.run_group(at, end)? {
                return Ok(turned);
            }
        }
    }

    /// The group to run: the first that is neither blocked nor parked; if all that are not blocked are
    /// parked, they are woken.
    fn choose(&mut self) -> Option<usize> {
        let groups = &mut self.warp.groups;
        if let Some(at) = groups.iter().position(|g| !g.blocked && !g.parked) {
            return Some(at);
        }
        groups.iter_mut().for_each(|g| g.parked = false);
        groups.iter().position(|g| !g.blocked)
    }

    /// A loop that has looked at memory often in this turn, found nothing new and changed nothing: the turn
    /// is over, as nothing can come of it before others have run.
    fn learns_nothing(&self) -> bool {
        let (looks, progress) = self.grid.turn;
        self.grid.global_looks - looks > LOOKS && self.cluster.progress == progress
    }

    /// Groups at different `bar.warp.sync` instructions meet as well: the manual asks for the same mask, not
    /// the same place.
    fn release_warp_barriers(&mut self) -> bool {
        let program = self.grid.program;
        let mut waiting = 0;
        for g in &self.warp.groups {
            if matches!(program.code[g.pc as usize].op, Op::WarpBarrier(_)) {
                waiting |= g.mask;
            }
        }
        if waiting == 0 || self.warp.live() & !waiting != 0 {
            return false;
        }
        self.warp.clock.tick(self.warp.id);
        self.warp.groups.iter_mut().for_each(|g| {
            g.pc += 1;
            g.blocked = false;
        });
        true
    }

    /// Runs one group; a result ends the warp's turn.
    fn run_group(&mut self, at: usize, end: u64) -> Result<Option<Turned>, Blame> {
        let program = self.grid.program;
        let Group { mut pc, mask, .. } = self.warp.groups[at];
        // Where the next group stands, this one waits for it.
        let reconverge = self.warp.groups.iter().map(|g| g.pc).filter(|&p| p > pc).min().unwrap_or(u32::MAX);
        loop {
            if pc >= reconverge {
                self.warp.groups[at].pc = pc;
                return Ok(None);
            }
            let code = &program.code[pc as usize];
            self.warp.count += 1;
            if let Some(executed) = &mut self.grid.executed {
                executed[pc as usize] += 1;
            }
            let active = match code.guard {
                None => mask,
                Some(t) => mask & (self.warp.registers.pred(t.pred) ^ if t.negated { !0 } else { 0 }),
            };
            // The fast path of arithmetic needs nothing but the registers.
            if let Op::Lanewise(f, slots) = &code.op {
                if active != 0 {
                    f(&mut self.warp.registers, slots, active);
                }
                pc += 1;
                continue;
            }
            self.grid.line = code.line;
            let flow = ops::execute(self, &code.op, active, mask).map_err(|stop| Blame {
                stop,
                pc,
                lane: mask.trailing_zeros(),
            })?;
            if !(self.grid.noted.is_empty() && self.cluster.noted.is_empty()) {
                self.report(pc, mask.trailing_zeros())?;
            }
            match flow {
                Flow::Next => pc += 1,
                Flow::Branch(taken, to) => {
                    if taken == mask {
                        if to <= pc && (self.warp.count >= end || self.learns_nothing()) {
                            self.warp.groups[at].pc = to;
                            self.warp.groups[at].parked = true;
                            return Ok(Some(Turned::Sliced));
                        }
                        let back = to <= pc;
                        pc = to;
                        if back || to >= reconverge {
                            self.warp.groups[at].pc = pc;
                            if self.warp.groups.len() > 1 {
                                return Ok(None);
                            }
                        }
                    } else if taken == 0 {
                        pc += 1;
                    } else {
                        self.warp.groups[at] =
                            Group { pc: pc + 1, mask: mask & !taken, blocked: false, parked: false };
                        self.warp.groups.push(Group { pc: to, mask: taken, blocked: false, parked: false });
                        return Ok(if self.warp.count >= end { Some(Turned::Sliced) } else { None });
                    }
                }
                Flow::Peel(taken, to) => {
                    self.warp.groups[at] = Group { pc, mask: mask & !taken, blocked: false, parked: false };
                    self.warp.groups.push(Group { pc: to, mask: taken, blocked: false, parked: false });
                    return Ok(if self.warp.count >= end { Some(Turned::Sliced) } else { None });
                }
                Flow::Exit(lanes) => {
                    self.leave(lanes).map_err(|stop| Blame { stop, pc, lane: lanes.trailing_zeros() })?;
                    self.cluster.progress += 1;
                    let g = &mut self.warp.groups[at];
                    g.mask &= !lanes;
                    g.pc = pc + 1;
                    if g.mask == 0 {
                        self.warp.groups.swap_remove(at);
                    }
                    // Whoever waited for lanes may find them gone.
                    self.warp.groups.iter_mut().for_each(|g| g.blocked = false);
                    return Ok(None);
                }
                Flow::Missing => {
                    self.warp.count -= 1;
                    if let Some(executed) = &mut self.grid.executed {
                        executed[pc as usize] -= 1;
                    }
                    let g = &mut self.warp.groups[at];
                    g.pc = pc;
                    g.blocked = true;
                    return Ok(None);
                }
                Flow::Yield => {
                    let g = &mut self.warp.groups[at];
                    g.pc = pc + 1;
                    g.parked = true;
                    return Ok(Some(Turned::Polled));
                }
                Flow::Wait => {
                    self.warp.groups[at].pc = pc + 1;
                    return Ok(if self.warp.wait == Wait::Nothing { None } else { Some(Turned::Waits) });
                }
            }
        }
    }

    /// Turns what an instruction has noted into faults of the launch; an error when the launch ends with
    /// them.
    #[cold]
    fn report(&mut self, pc: u32, lane: u32) -> Result<(), Blame> {
        let line = self.grid.program.code[pc as usize].line;
        match super::notes::collect(self.grid, self.cluster, self.warp, line, lane) {
            Some(stop) => Err(Blame { stop, pc, lane }),
            None => Ok(()),
        }
    }

    /// Lanes end: nothing of theirs may still read or write the block's shared memory.
    fn leave(&mut self, lanes: u32) -> Done {
        let line = |index: u32| self.grid.program.lines.get(index as usize).map_or(0, |l| l.line);
        if let Some(p) = self.warp.wgmmas.first() {
            let detail = format!("the thread ends while the wgmma of line {} is in flight", line(p.line()));
            return Err(Stop::new(FaultKind::MissingWait, detail));
        }
        let mine = |f: &&super::flight::Flight| {
            f.warp == self.warp.id && lanes >> f.lane & 1 != 0 && f.group.is_some() && f.taken.is_none()
        };
        if let Some(f) = self.cluster.flights.iter().find(mine) {
            let detail = format!(
                "the thread ends while the bulk store of line {} still reads shared memory",
                line(f.line)
            );
            return Err(Stop::new(FaultKind::MissingWait, detail).at(f.lane.into()));
        }
        Ok(())
    }
}
