//! Contexts: which device, which errors stick, and the stack of each thread.
//!
//! An error of a kernel poisons its context: from then on every call that needs the context returns that
//! error, until the context is destroyed or the primary context reset. Destroying a context takes its
//! streams, events, modules, graphs and memory along.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::code::{Code, Result};
use crate::queue::Ticket;
use crate::state::{Driver, Held, Id};
use crate::{memory, module, queue, stream};

thread_local! {
    /// The calling thread's context stack, the current one last. `None` is "no context", which can be pushed
    /// too.
    static STACK: RefCell<Vec<Option<Id>>> = const { RefCell::new(Vec::new()) };
}

/// A context.
#[derive(Debug)]
pub struct Context {
    /// Its device.
    pub device: u32,
    /// It is the device's primary context.
    pub primary: bool,
    /// Flags it was created with.
    pub flags: u32,
    /// The error that sticks to it.
    pub poison: Option<Code>,
    /// Devices whose memory its kernels may touch.
    pub peers: BTreeSet<u32>,
    /// Its legacy default stream.
    pub legacy: Id,
    /// The last operations of blocking streams that were destroyed, until the legacy stream is behind them.
    pub left: Vec<Ticket>,
    /// `cuCtxSetLimit`.
    pub limits: BTreeMap<u32, usize>,
    /// A kernel that uses the heap has run.
    pub heap_used: bool,
    /// `cuCtxSetCacheConfig`.
    pub cache: u32,
    /// The version `cuCtxGetApiVersion` reports.
    pub api: u32,
}

/// All scheduling and mapping flags that 12.8 knows.
const FLAGS: u32 = 0xFF;

/// Stack size, printf buffer and heap in bytes, sync depth, pending launches, L2 fetch granularity,
/// persisting L2.
const LIMITS: [usize; 7] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];

/// `CU_LIMIT_PRINTF_FIFO_SIZE`.
const PRINT: u32 = 1;

/// `CU_LIMIT_MALLOC_HEAP_SIZE`.
pub const HEAP: u32 = 2;

/// A kernel that uses the heap of a context begins: the bytes that the heap has.
pub fn heap(d: &mut Driver, context: u64) -> u64 {
    let Some(context) = d.contexts.get_mut(&Id(context)) else { return 0 };
    context.heap_used = true;
    context.limits.get(&HEAP).copied().unwrap_or(LIMITS[HEAP as usize]) as u64
}

/// Sets a limit of the current context. That of the heap holds from the first kernel on that uses it.
pub fn set_limit(d: &mut Driver, limit: u32, value: usize) -> Result {
    let here = d.here()?;
    let waits = limit == HEAP && d.queue.uses_heap(here);
    let context = d.contexts.get_mut(&here).ok_or(Code::INVALID_CONTEXT)?;
    let set = context.limits.get_mut(&limit).ok_or(Code::UNSUPPORTED_LIMIT)?;
    if limit == HEAP && (context.heap_used || waits) {
        return Err(Code::INVALID_VALUE);
    }
    *set = value;
    Ok(())
}

/// Bytes that a kernel may print: the limit of its function's context.
pub fn print_bytes(d: &Driver, function: Id) -> usize {
    let context = d.functions.get(&function).and_then(|f| d.contexts.get(&f.context));
    context.and_then(|c| c.limits.get(&PRINT)).copied().unwrap_or(LIMITS[PRINT as usize])
}

/// Creates a context on a device.
pub fn create(d: &mut Driver, device: u32, flags: u32, primary: bool) -> Result<Id> {
    if flags & !FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let id = d.id();
    let legacy = stream::default(d, id);
    let limits = LIMITS.iter().enumerate().map(|(i, &v)| (i as u32, v)).collect();
    let peers = BTreeSet::new();
    d.contexts.insert(
        id,
        Context {
            device,
            primary,
            flags,
            poison: None,
            peers,
            legacy,
            left: Vec::new(),
            limits,
            heap_used: false,
            cache: 0,
            api: 3020,
        },
    );
    Ok(id)
}

/// Takes a context and all it owns away, after its work is done (unless it is poisoned: then the work is
/// dropped).
pub fn destroy(d: &mut Held, id: Id) -> Result {
    let context = d.contexts.get(&id).ok_or(Code::INVALID_CONTEXT)?;
    let peers: Vec<u32> = context.peers.iter().copied().collect();
    let device = context.device;
    // What the work itself ran into belongs to a context that is about to be gone.
    let _ = queue::finish_context(d, id);
    queue::drop_context(d, id);
    crate::capture::drop_context(d, id);
    module::drop_context(d, id);
    crate::graph::drop_context(d, id);
    memory::drop_context(d, id);
    d.memory.drop_heap(device, id.0);
    d.streams.retain(|_, s| s.context != id);
    d.thread_streams.retain(|(context, _), _| *context != id);
    d.events.retain(|_, e| e.context != id);
    d.contexts.remove(&id);
    for peer in peers {
        let still = d.contexts.values().any(|c| c.device == device && c.peers.contains(&peer));
        if !still {
            d.memory.disable_peer(device, peer);
        }
    }
    Ok(())
}

/// The primary context of a device, retained once more.
pub fn retain_primary(d: &mut Driver, device: u32) -> Result<Id> {
    let slot = &d.devices[device as usize];
    let (active, flags) = (slot.primary, slot.flags);
    let id = match active {
        Some(id) => id,
        None => create(d, device, flags, true)?,
    };
    let slot = &mut d.devices[device as usize];
    slot.primary = Some(id);
    slot.retained += 1;
    Ok(id)
}

/// Gives one retain back; the last one destroys the context.
pub fn release_primary(d: &mut Held, device: u32) -> Result {
    let slot = &mut d.devices[device as usize];
    let Some(id) = slot.primary else { return Err(Code::INVALID_CONTEXT) };
    slot.retained -= 1;
    if slot.retained > 0 {
        return Ok(());
    }
    slot.primary = None;
    destroy(d, id)
}

/// Destroys the primary context's resources whoever holds it; the holders keep a handle that is no context
/// any more.
pub fn reset_primary(d: &mut Held, device: u32) -> Result {
    let slot = &mut d.devices[device as usize];
    slot.retained = 0;
    match slot.primary.take() {
        Some(id) => destroy(d, id),
        None => Ok(()),
    }
}

/// The current context of the calling thread.
pub fn current() -> Option<Id> {
    STACK.with_borrow(|s| s.last().copied().flatten())
}

/// Replaces the top of the stack.
pub fn set_current(d: &Driver, id: Option<Id>) -> Result {
    check(d, id)?;
    STACK.with_borrow_mut(|s| {
        s.pop();
        if id.is_some() || !s.is_empty() {
            s.push(id);
        }
    });
    Ok(())
}

/// Pushes a context.
pub fn push(d: &Driver, id: Id) -> Result {
    check(d, Some(id))?;
    STACK.with_borrow_mut(|s| s.push(Some(id)));
    Ok(())
}

/// Pops the current context.
pub fn pop() -> Result<Id> {
    STACK.with_borrow_mut(|s| s.pop()).flatten().ok_or(Code::INVALID_CONTEXT)
}

/// Takes a destroyed context off the calling thread's stack when it is the current one.
pub fn forget(id: Id) {
    STACK.with_borrow_mut(|s| {
        if s.last() == Some(&Some(id)) {
            s.pop();
        }
    });
}

fn check(d: &Driver, id: Option<Id>) -> Result {
    match id {
        Some(id) if !d.contexts.contains_key(&id) => Err(Code::INVALID_CONTEXT),
        _ => Ok(()),
    }
}

impl Driver {
    /// The current context, alive and not poisoned.
    pub fn here(&self) -> Result<Id> {
        let id = current().ok_or(Code::INVALID_CONTEXT)?;
        self.healthy(id)?;
        Ok(id)
    }

    /// A context that exists and has no sticky error.
    pub fn healthy(&self, id: Id) -> Result<&Context> {
        let context = self.contexts.get(&id).ok_or(Code::CONTEXT_IS_DESTROYED)?;
        match context.poison {
            Some(code) => Err(code),
            None => Ok(context),
        }
    }

    /// The device of the current context.
    pub fn here_device(&self) -> Result<u32> {
        let id = self.here()?;
        Ok(self.healthy(id)?.device)
    }
}

/// Lets kernels of the current context touch memory of another context's device.
pub fn enable_peer(d: &mut Driver, peer: Id) -> Result {
    let here = d.here()?;
    let to = d.contexts.get(&peer).ok_or(Code::INVALID_CONTEXT)?.device;
    let Some(context) = d.contexts.get_mut(&here) else { return Err(Code::INVALID_CONTEXT) };
    let from = context.device;
    if from == to {
        return Err(Code::INVALID_DEVICE);
    }
    if !context.peers.insert(to) {
        return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
    }
    d.memory.enable_peer(from, to);
    Ok(())
}

/// Takes that permission back.
pub fn disable_peer(d: &mut Driver, peer: Id) -> Result {
    let here = d.here()?;
    let to = d.contexts.get(&peer).ok_or(Code::INVALID_CONTEXT)?.device;
    let Some(context) = d.contexts.get_mut(&here) else { return Err(Code::INVALID_CONTEXT) };
    let from = context.device;
    if !context.peers.remove(&to) {
        return Err(Code::PEER_ACCESS_NOT_ENABLED);
    }
    if !d.contexts.values().any(|c| c.device == from && c.peers.contains(&to)) {
        d.memory.disable_peer(from, to);
    }
    Ok(())
}
