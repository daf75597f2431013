//! Pools of memory for allocation in stream order.
//!
//! A pool is bookkeeping: how much is used, how much it holds back from the device after a release (up to the
//! release threshold), and the highest marks of both. Memory is never reused at the same address (so that use
//! after release shows), but what a pool holds back counts as taken, so that a program that counts on free
//! memory sees what it would see on a device.

use crate::code::{Code, Result};
use crate::state::{Driver, Id};

/// A pool.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Its device.
    pub device: u32,
    /// Bytes allocated.
    pub used: u64,
    /// The most bytes allocated since the mark was reset.
    pub used_high: u64,
    /// Bytes taken from the device.
    pub reserved: u64,
    /// The most of those.
    pub reserved_high: u64,
    /// Bytes held back when idle.
    pub threshold: u64,
    /// Largest size, 0 for any.
    pub limit: u64,
    /// The three reuse policies (accepted, without effect).
    pub reuse: [i32; 3],
    /// `cuMemPoolDestroy` was called; it goes with its last allocation.
    pub destroyed: bool,
}

impl Pool {
    /// An empty pool.
    pub fn new(device: u32, limit: u64) -> Self {
        let (used, used_high, reserved, reserved_high, threshold) = (0, 0, 0, 0, 0);
        Pool {
            device,
            used,
            used_high,
            reserved,
            reserved_high,
            threshold,
            limit,
            reuse: [1; 3],
            destroyed: false,
        }
    }

    /// Bytes held back and not used.
    pub fn idle(&self) -> u64 {
        self.reserved - self.used
    }

    /// An allocation was made.
    pub fn took(&mut self, bytes: u64) {
        self.used += bytes;
        self.reserved = self.reserved.max(self.used);
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.reserved);
    }

    /// An allocation was released.
    pub fn gave_back(&mut self, bytes: u64) {
        self.used -= bytes;
        let keep = self.threshold;
        self.trim(keep);
    }

    /// Gives idle memory back down to `keep` bytes.
    pub fn trim(&mut self, keep: u64) {
        self.reserved = self.reserved.min(keep).max(self.used);
    }
}

/// `cuMemPoolCreate` for a device.
pub fn create(d: &mut Driver, device: u32, limit: u64) -> Id {
    let id = d.id();
    d.pools.insert(id, Pool::new(device, limit));
    id
}

fn live(d: &mut Driver, id: Id) -> Result<&mut Pool> {
    d.pools.get_mut(&id).filter(|p| !p.destroyed).ok_or(Code::INVALID_VALUE)
}

/// `cuMemPoolDestroy`: a device's default pool cannot go, and the current one falls back to it.
pub fn destroy(d: &mut Driver, id: Id) -> Result {
    let pool = live(d, id)?.clone();
    let device = &mut d.devices[pool.device as usize];
    if device.default_pool == id {
        return Err(Code::INVALID_VALUE);
    }
    if device.pool == id {
        device.pool = device.default_pool;
    }
    if pool.used == 0 {
        d.pools.remove(&id);
    } else {
        live(d, id)?.destroyed = true;
    }
    Ok(())
}

/// `cuMemPoolTrimTo`.
pub fn trim(d: &mut Driver, id: Id, keep: u64) -> Result {
    live(d, id)?.trim(keep);
    Ok(())
}

/// An attribute by its `CUmemPool_attribute` number: a value of 4 bytes for the first three, of 8 for the
/// rest.
pub fn get_attribute(d: &mut Driver, id: Id, number: u32) -> Result<u64> {
    let pool = live(d, id)?;
    Ok(match number {
        1..=3 => pool.reuse[number as usize - 1] as u64,
        4 => pool.threshold,
        5 => pool.reserved,
        6 => pool.reserved_high,
        7 => pool.used,
        8 => pool.used_high,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// Sets an attribute; the high marks can only be reset to 0.
pub fn set_attribute(d: &mut Driver, id: Id, number: u32, value: u64) -> Result {
    let pool = live(d, id)?;
    match number {
        1..=3 => pool.reuse[number as usize - 1] = i32::from(value != 0),
        4 => pool.threshold = value,
        6 if value == 0 => pool.reserved_high = pool.reserved,
        8 if value == 0 => pool.used_high = pool.used,
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

/// `cuMemPoolSetAccess` for one device. The machine knows permissions between devices, not between a device
/// and a pool: access to the pool opens the pool's device. Taking access back is remembered only for
/// [`access`]'s answer when no context enabled the peer.
pub fn set_access(d: &mut Driver, id: Id, device: u32, flags: u32) -> Result {
    let to = live(d, id)?.device;
    if device == to {
        return if flags == 3 { Ok(()) } else { Err(Code::INVALID_VALUE) };
    }
    match flags {
        3 | 1 => d.memory.enable_peer(device, to),
        0 => {
            let opened = d.contexts.values().any(|c| c.device == device && c.peers.contains(&to));
            if !opened {
                d.memory.disable_peer(device, to);
            }
        }
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

/// `cuMemPoolGetAccess` for one device: 3 is read and write, 0 nothing.
pub fn access(d: &mut Driver, id: Id, device: u32) -> Result<u32> {
    let to = live(d, id)?.device;
    Ok(if d.memory.peer(device, to) { 3 } else { 0 })
}
