//! Contexts, their stack, limits, peers.

use std::ffi::c_void;

use super::arg::Out;
use super::entries;
use crate::abi::Handle;
use crate::code::{Code, Result};
use crate::context;
use crate::refusal::unsupported;
use crate::state::{Driver, Held, Id};
use crate::stream::{self, GREATEST_PRIORITY};

fn create(d: &mut Held, handle: Out<Handle>, flags: u32, ordinal: i32, api: u32) -> Result {
    let device = d.device(ordinal)?;
    if handle.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let id = context::create(d, device, flags, false)?;
    if let Some(context) = d.contexts.get_mut(&id) {
        context.api = api;
    }
    context::push(d, id)?;
    handle.set(id.handle())
}

/// A context by handle, the current one for null.
fn named(d: &Driver, handle: Handle) -> Result<Id> {
    let id = if handle.is_null() { context::current().ok_or(Code::INVALID_CONTEXT)? } else { Id::of(handle) };
    if d.contexts.contains_key(&id) { Ok(id) } else { Err(Code::INVALID_CONTEXT) }
}

entries! {
    /// Creates a context and makes it current.
    ready fn cuCtxCreate_v2(d, handle: Out<Handle>, flags: u32, ordinal: i32) {
        create(d, handle, flags, ordinal, 3020)
    }

    /// The same; execution affinity is not supported.
    ready fn cuCtxCreate_v3(d, handle: Out<Handle>, _affinity: *const c_void, count: i32, flags: u32, ordinal: i32) {
        if count != 0 {
            return Err(unsupported("execution affinity (CUexecAffinityParam)"));
        }
        create(d, handle, flags, ordinal, 3020)
    }

    /// The same; parameters (affinity, graphics) are not supported.
    ready fn cuCtxCreate_v4(d, handle: Out<Handle>, params: *const c_void, flags: u32, ordinal: i32) {
        if !params.is_null() {
            return Err(unsupported("CUctxCreateParams"));
        }
        create(d, handle, flags, ordinal, 3020)
    }

    /// Destroys a context that is not a primary one.
    ready fn cuCtxDestroy_v2(d, handle: Handle) {
        let id = Id::of(handle);
        if d.contexts.get(&id).ok_or(Code::INVALID_CONTEXT)?.primary {
            return Err(Code::INVALID_CONTEXT);
        }
        context::destroy(d, id)?;
        context::forget(id);
        Ok(())
    }

    /// Pushes a context.
    ready fn cuCtxPushCurrent_v2(d, handle: Handle) {
        context::push(d, Id::of(handle))
    }

    /// Pops the current context.
    ready fn cuCtxPopCurrent_v2(_, handle: Out<Handle>) {
        handle.set_if_wanted(context::pop()?.handle());
        Ok(())
    }

    /// Replaces the current context.
    ready fn cuCtxSetCurrent(d, handle: Handle) {
        context::set_current(d, (!handle.is_null()).then(|| Id::of(handle)))
    }

    /// The current context, or null.
    ready fn cuCtxGetCurrent(_, handle: Out<Handle>) {
        handle.set(context::current().map_or(std::ptr::null_mut(), Id::handle))
    }

    /// Its device.
    ready fn cuCtxGetDevice(d, ordinal: Out<i32>) {
        let id = named(d, std::ptr::null_mut())?;
        ordinal.set(d.contexts[&id].device as i32)
    }

    /// A context's device.
    ready fn cuCtxGetDevice_v2(d, ordinal: Out<i32>, handle: Handle) {
        let id = named(d, handle)?;
        ordinal.set(d.contexts[&id].device as i32)
    }

    /// Its flags.
    ready fn cuCtxGetFlags(d, flags: Out<u32>) {
        let id = named(d, std::ptr::null_mut())?;
        flags.set(d.contexts[&id].flags)
    }

    /// Sets its flags.
    live fn cuCtxSetFlags(d, flags: u32) {
        let id = d.here()?;
        if let Some(context) = d.contexts.get_mut(&id) {
            context.flags = flags;
        }
        Ok(())
    }

    /// A number for it.
    ready fn cuCtxGetId(d, handle: Handle, number: Out<u64>) {
        number.set(named(d, handle)?.0)
    }

    /// The interface version it was made for.
    ready fn cuCtxGetApiVersion(d, handle: Handle, version: Out<u32>) {
        let id = named(d, handle)?;
        version.set(d.contexts[&id].api)
    }

    /// Waits for all its work.
    live fn cuCtxSynchronize(d) {
        stream::synchronize_context(d)
    }

    /// Waits for all work of a context.
    ready fn cuCtxSynchronize_v2(d, handle: Handle) {
        let id = named(d, handle)?;
        d.healthy(id)?;
        crate::capture::refuse_context(d, id)?;
        crate::queue::finish_context(d, id)
    }

    /// A limit.
    live fn cuCtxGetLimit(d, value: Out<usize>, limit: u32) {
        let here = d.here()?;
        value.set(*d.contexts[&here].limits.get(&limit).ok_or(Code::UNSUPPORTED_LIMIT)?)
    }

    /// Sets a limit: those of `printf` and of the heap count, the others are remembered without effect.
    live fn cuCtxSetLimit(d, limit: u32, value: usize) {
        context::set_limit(d, limit, value)
    }

    /// The cache preference.
    live fn cuCtxGetCacheConfig(d, config: Out<u32>) {
        let here = d.here()?;
        config.set(d.contexts[&here].cache)
    }

    /// Sets it (remembered, without effect).
    live fn cuCtxSetCacheConfig(d, config: u32) {
        let here = d.here()?;
        if config > 3 {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(context) = d.contexts.get_mut(&here) {
            context.cache = config;
        }
        Ok(())
    }

    /// Shared memory banks have 4 bytes.
    live fn cuCtxGetSharedMemConfig(_, config: Out<u32>) {
        config.set(1)
    }

    /// Accepted, without effect.
    live fn cuCtxSetSharedMemConfig(_, config: u32) {
        if config > 2 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Nothing persists.
    live fn cuCtxResetPersistingL2Cache(_) {
        Ok(())
    }

    /// The range of stream priorities.
    live fn cuCtxGetStreamPriorityRange(_, least: Out<i32>, greatest: Out<i32>) {
        least.set_if_wanted(0);
        greatest.set_if_wanted(GREATEST_PRIORITY);
        Ok(())
    }

    /// Opens another context's device to this context's kernels.
    live fn cuCtxEnablePeerAccess(d, peer: Handle, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        context::enable_peer(d, Id::of(peer))
    }

    /// Closes it.
    live fn cuCtxDisablePeerAccess(d, peer: Handle) {
        context::disable_peer(d, Id::of(peer))
    }
}
