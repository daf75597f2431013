//! The fault of a launch that cannot go on, and where it stands.

use super::{Runner, refuse};
use crate::run::step::Blame;
use crate::run::warp::{Wait, Warp};
use crate::run::{Cluster, Grid, Stop, notes};
use crate::{Fault, FaultKind};

impl Runner<'_> {
    /// The report of a launch that cannot go on.
    pub(super) fn stuck(&self, kind: FaultKind, what: &str) -> Fault {
        let a = &self.blocks.active[0];
        let mut lines = Vec::new();
        let mut first = None;
        for w in a.warps.iter().filter(|w| !w.done) {
            let Some(g) = w.groups.first() else { continue };
            // A waiting warp stands behind the instruction it waits at.
            let pc = if w.wait == Wait::Nothing { g.pc } else { g.pc.saturating_sub(1) };
            let at = &self.grid.program.lines[self.grid.program.code[pc as usize].line as usize];
            if lines.len() < 8 {
                let source = at.source.as_ref().map(|s| format!(" ({s})")).unwrap_or_default();
                let looked =
                    if w.looked == 0 { String::new() } else { format!(", looking at {:#x}", w.looked) };
                lines.push(format!(
                    "warp {} of block {} at line {}: {}{source}{looked}",
                    w.index, w.rank, at.line, at.text
                ));
            }
            if first.is_none_or(|(other, _): (&Warp, u32)| other.looked == 0 && w.looked != 0) {
                first = Some((w, pc));
            }
        }
        let detail = format!("{what}; {}", lines.join("; "));
        match first {
            Some((w, pc)) => {
                let lane = w.groups[0].mask.trailing_zeros();
                fault(&self.grid, &a.cluster, w, Blame { stop: Stop::new(kind, detail), pc, lane })
            }
            None => refuse(&self.plan.kernel.name, detail),
        }
    }
}

/// Blames the instruction a waiting warp waits at.
pub(super) fn here(warp: &Warp, stop: Stop) -> Blame {
    let group = warp.groups.first();
    Blame {
        stop,
        pc: group.map_or(0, |g| g.pc.saturating_sub(1)),
        lane: group.map_or(0, |g| g.mask.trailing_zeros()),
    }
}

pub(super) fn fault(grid: &Grid<'_>, cluster: &Cluster, warp: &Warp, blame: Blame) -> Fault {
    let line = grid.program.code[blame.pc as usize].line;
    notes::fault(grid, cluster, warp, line, blame.lane, &blame.stop)
}
