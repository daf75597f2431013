//! What strong accesses release and acquire. Source: PTX ISA 8.7, chapter 8.
//!
//! Any strong read acquires at its scope, as if a fence stood behind it. A relaxed write releases what the
//! last fence of its scope or a wider one stands behind.

use std::sync::Arc;

use super::data::{Order, little};
use crate::memory::clock::Clock;
use crate::memory::flag::{Scope, Seat};
use crate::run::cluster::SharedPlace;
use crate::run::{Turn, Warp};

/// Looks of a warp that are remembered.
const REMEMBERED: usize = 4096;

fn seat(t: &Turn<'_, '_>) -> Seat {
    Seat { device: t.grid.launch.device, cluster: t.cluster.id, rank: t.warp.rank }
}

/// A strong read orders the warp after what was released there.
pub(crate) fn acquire_global(t: &mut Turn<'_, '_>, address: u64, scope: Scope) {
    t.grid.looks += 1;
    let seat = seat(t);
    t.grid.acquire(address & !3, &seat, scope, &mut t.warp.clock);
}

/// A strong read that has changed nothing: the warp learns something where it has not looked before, or where
/// something else stands now. A warp that learns nothing waits for others.
pub(crate) fn look(t: &mut Turn<'_, '_>, address: u64, found: &[u8]) {
    if t.grid.company.is_none() {
        return;
    }
    t.warp.looked = address;
    t.grid.global_looks += 1;
    if t.warp.seen.len() >= REMEMBERED {
        t.warp.seen.clear();
    }
    let value = little(found);
    if t.warp.seen.insert(address, value) != Some(value) {
        t.cluster.progress += 1;
    }
}

/// See [`acquire_global`].
pub(crate) fn acquire_shared(t: &mut Turn<'_, '_>, at: SharedPlace) {
    t.grid.looks += 1;
    if let Some(clock) = t.cluster.flags.get(&(at.rank, at.offset & !3)) {
        t.warp.clock.join(clock);
    }
}

/// What a strong write of that order publishes to threads of a scope: everything (release), or what the last
/// fence covered (relaxed).
fn published(warp: &Warp, order: Order, scope: Scope) -> Option<&Clock> {
    match order {
        Order::Release | Order::Both => Some(&warp.clock),
        _ => warp.fenced[scope as usize].as_deref(),
    }
}

/// A strong write releases what comes before it.
pub(crate) fn release_global(t: &mut Turn<'_, '_>, address: u64, order: Order, scope: Scope) {
    let (seat, warp) = (seat(t), &*t.warp);
    let mut last: Option<&Clock> = None;
    for scope in Scope::ALL.into_iter().rev().filter(|&s| s <= scope) {
        let Some(clock) = published(warp, order, scope) else { continue };
        // Whoever sees the wider release sees this one.
        if last.is_none_or(|last| !std::ptr::eq(last, clock)) {
            t.grid.release(address & !3, &seat, scope, clock);
        }
        last = Some(clock);
    }
    t.warp.clock.tick_flag(t.warp.id, order);
}

/// See [`release_global`]. All of a cluster's threads are near enough.
pub(crate) fn release_shared(t: &mut Turn<'_, '_>, at: SharedPlace, order: Order) {
    if let Some(clock) = published(t.warp, order, Scope::Block) {
        t.cluster.flags.entry((at.rank, at.offset & !3)).or_default().join(clock);
    }
    t.warp.clock.tick_flag(t.warp.id, order);
}

/// A fence: what the warp knows now is what its relaxed writes publish, to threads of the scope.
pub(crate) fn fence(warp: &mut Warp, scope: Scope) {
    let known = Arc::new(warp.clock.clone());
    for at in 0..=scope as usize {
        warp.fenced[at] = Some(known.clone());
    }
    warp.clock.tick(warp.id);
}
