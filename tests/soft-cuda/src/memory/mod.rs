//! Memory of devices: who owns which allocation, and when it is gone.
//!
//! The bytes live in the machine's memory ([`ptx_vm::Memory`]), which never gives an address twice and knows
//! freed ranges. Here is what a driver knows of them besides: context, pool, and whether a release is in
//! flight. `cuMemFree` waits for the context's work first, as real drivers do; `cuMemFreeAsync` takes the
//! memory away when its turn in the stream comes, and who touches it later, in whatever order ran, meets a
//! fault.

mod host;
mod pointer;
mod pool;

use std::collections::BTreeMap;

use crate::capture;
use crate::code::{Code, Result};
use crate::graph::Job;
use crate::queue;
use crate::state::{Driver, Held, Id};
use crate::stream;
use crate::work::Work;

pub use host::{
    allocate as allocate_host, allocate_managed, free as free_host, get as pinned, managed, register,
    unregister,
};
pub use pointer::{Attribute, attribute};
pub use pool::{
    Pool, access, create as create_pool, destroy as destroy_pool, get_attribute, set_access, set_attribute,
    trim,
};

/// An allocation of device memory.
#[derive(Debug, Clone)]
pub struct Block {
    /// Size in bytes.
    pub bytes: u64,
    /// Its device.
    pub device: u32,
    /// Its context.
    pub context: Id,
    /// The pool it came from.
    pub pool: Option<Id>,
    /// It is a graph's allocation node: how many graphs and executables hold it.
    pub graph: u32,
    /// A release is on its way.
    pub freeing: bool,
    /// A number that no other allocation has.
    pub serial: u64,
}

/// Pinned host memory.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// Size in bytes.
    pub bytes: usize,
    /// The context it was made in.
    pub context: Id,
    /// Flags.
    pub flags: u32,
    /// The driver allocated it (else the program registered its own).
    pub ours: bool,
    /// It is managed memory: of the program and of every device.
    pub managed: bool,
}

/// All that is known of allocations.
#[derive(Debug, Default)]
pub struct Table {
    /// Device memory by first address.
    pub blocks: BTreeMap<u64, Block>,
    /// Pinned host memory by first address.
    pub pinned: BTreeMap<u64, Pinned>,
    serial: u64,
}

impl Table {
    /// The block that holds an address.
    pub fn block(&self, address: u64) -> Option<(u64, &Block)> {
        let (&base, block) = self.blocks.range(..=address).next_back()?;
        (address - base < block.bytes.max(1)).then_some((base, block))
    }

    /// The pinned range that holds an address.
    pub fn host(&self, address: u64) -> Option<(u64, &Pinned)> {
        let (&base, pinned) = self.pinned.range(..=address).next_back()?;
        (address - base < pinned.bytes as u64).then_some((base, pinned))
    }
}

/// Free and total bytes of a device; memory that pools hold back is not free.
pub fn info(d: &Driver, device: u32) -> (u64, u64) {
    let held: u64 = d.pools.values().filter(|p| p.device == device).map(Pool::idle).sum();
    let total = d.memory.capacity(device);
    (total.saturating_sub(d.memory.used(device)).saturating_sub(held), total)
}

/// Takes memory of a device, from idle pools if it must.
fn take(d: &mut Driver, device: u32, bytes: u64) -> Result<u64> {
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if bytes > info(d, device).0 {
        d.pools.values_mut().filter(|p| p.device == device).for_each(|p| p.trim(0));
    }
    d.memory.allocate(device, bytes).map_err(|_| Code::OUT_OF_MEMORY)
}

fn insert(d: &mut Driver, address: u64, bytes: u64, device: u32, context: Id, pool: Option<Id>) {
    d.table.serial += 1;
    let serial = d.table.serial;
    d.table.blocks.insert(address, Block { bytes, device, context, pool, graph: 0, freeing: false, serial });
}

/// `cuMemAlloc`.
pub fn allocate(d: &mut Driver, bytes: usize) -> Result<u64> {
    capture::refuse_unsafe(d)?;
    let context = d.here()?;
    let device = d.here_device()?;
    let address = take(d, device, bytes as u64)?;
    insert(d, address, bytes as u64, device, context, None);
    Ok(address)
}

/// `cuMemFree`: after all the context's work.
pub fn free(d: &mut Held, address: u64) -> Result {
    capture::refuse_unsafe(d)?;
    if address == 0 {
        return Ok(());
    }
    if let Some(context) = d.table.pinned.get(&address).filter(|p| p.managed).map(|p| p.context) {
        queue::finish_context(d, context)?;
        host::remove(d, address);
        return Ok(());
    }
    let block = d.table.blocks.get(&address).ok_or(Code::INVALID_VALUE)?;
    let (context, graph) = (block.context, block.graph);
    if block.freeing {
        return Err(Code::INVALID_VALUE);
    }
    queue::finish_context(d, context)?;
    if graph == 0 {
        release(d, address);
    }
    Ok(())
}

/// `cuMemAllocAsync`, from a pool or the device's current one. The address is known at once; the memory may
/// be used by what comes later in the stream. In a capture it becomes an allocation node.
pub fn allocate_async(d: &mut Held, bytes: usize, pool: Option<Id>, stream_id: Id) -> Result<u64> {
    let context = stream::get(d, stream_id)?.context;
    let device = d.healthy(context)?.device;
    let capturing = capture::active(d, stream_id)?;
    let pool = pool.unwrap_or(d.devices[device as usize].pool);
    let (target, limit) = {
        let pool = d.pools.get(&pool).ok_or(Code::INVALID_VALUE)?;
        (pool.device, pool.limit)
    };
    if capturing.is_some() {
        let address = take(d, device, bytes as u64)?;
        insert(d, address, bytes as u64, device, context, None);
        capture::add(d, stream_id, Job::Alloc(address))?;
        return Ok(address);
    }
    capture::refuse_legacy(d, stream_id)?;
    let used = d.pools.get(&pool).map_or(0, |p| p.used);
    if limit != 0 && used + bytes as u64 > limit {
        return Err(Code::OUT_OF_MEMORY);
    }
    let address = take(d, target, bytes as u64)?;
    insert(d, address, bytes as u64, target, context, Some(pool));
    if let Some(pool) = d.pools.get_mut(&pool) {
        pool.took(bytes as u64);
    }
    stream::enqueue(d, stream_id, Work::Alloc(address), &[])?;
    queue::pump(d);
    Ok(address)
}

/// Memory of an allocation node; the node that is added next holds it.
pub fn allocate_for_graph(d: &mut Driver, bytes: usize) -> Result<u64> {
    let context = d.here()?;
    let device = d.here_device()?;
    let address = take(d, device, bytes as u64)?;
    insert(d, address, bytes as u64, device, context, None);
    Ok(address)
}

/// `cuMemFreeAsync`: in stream order.
pub fn free_async(d: &mut Held, address: u64, stream_id: Id) -> Result {
    if address == 0 {
        return Ok(());
    }
    let capturing = capture::active(d, stream_id)?;
    let block = d.table.blocks.get_mut(&address).ok_or(Code::INVALID_VALUE)?;
    if block.freeing {
        return Err(Code::INVALID_VALUE);
    }
    // Memory of a graph keeps its address for the next launch; releasing it only orders.
    let of_graph = block.graph > 0;
    if capturing.is_some() {
        let job = if of_graph { Job::Free(address) } else { return Err(Code::INVALID_VALUE) };
        return capture::add(d, stream_id, job).map(|_| ());
    }
    block.freeing = !of_graph;
    let work = if of_graph { Work::Nothing } else { Work::Free(address) };
    let submitted = stream::submit(d, stream_id, work);
    if let (Err(_), Some(block)) = (&submitted, d.table.blocks.get_mut(&address)) {
        block.freeing = false;
    }
    submitted.map(|_| ())
}

/// Takes an allocation away for good.
pub fn release(d: &mut Driver, address: u64) {
    let Some(block) = d.table.blocks.remove(&address) else { return };
    // The machine knows the block: `allocate` put it there, and only this function takes it away.
    let _ = d.memory.free(address);
    if let Some(pool) = block.pool.and_then(|id| d.pools.get_mut(&id)) {
        pool.gave_back(block.bytes);
    }
    let gone = block.pool.filter(|id| d.pools.get(id).is_some_and(|p| p.destroyed && p.used == 0));
    if let Some(id) = gone {
        d.pools.remove(&id);
    }
}

/// Another graph or executable holds an allocation node's memory.
pub fn hold_graph_memory(d: &mut Driver, address: u64) {
    if let Some(block) = d.table.blocks.get_mut(&address) {
        block.graph += 1;
    }
}

/// One of them is gone; the last one takes the memory along.
pub fn drop_graph_memory(d: &mut Driver, address: u64) {
    let Some(block) = d.table.blocks.get_mut(&address) else { return };
    block.graph = block.graph.saturating_sub(1);
    if block.graph == 0 {
        release(d, address);
    }
}

/// Releases all that a context allocated.
pub fn drop_context(d: &mut Driver, context: Id) {
    let blocks: Vec<u64> =
        d.table.blocks.iter().filter(|(_, b)| b.context == context).map(|(&a, _)| a).collect();
    for address in blocks {
        release(d, address);
    }
    let pinned: Vec<u64> =
        d.table.pinned.iter().filter(|(_, p)| p.context == context).map(|(&a, _)| a).collect();
    for address in pinned {
        host::remove(d, address);
    }
}
