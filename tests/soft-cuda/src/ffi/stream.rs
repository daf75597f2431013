//! Streams and host functions.

use std::ffi::c_void;

use super::arg::{In, Out};
use super::entries;
use crate::abi::{AttributeValue, Handle};
use crate::code::Code;
use crate::launch;
use crate::state::Id;
use crate::stream;
use crate::work::{HostCall, HostPointer};

entries! {
    /// Creates a stream.
    live fn cuStreamCreate(d, handle: Out<Handle>, flags: u32) {
        if handle.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        handle.set(stream::create(d, flags, 0)?.handle())
    }

    /// Creates a stream with a priority (which changes nothing here).
    live fn cuStreamCreateWithPriority(d, handle: Out<Handle>, flags: u32, priority: i32) {
        if handle.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        handle.set(stream::create(d, flags, priority)?.handle())
    }

    /// Destroys a stream; its work goes on.
    live fn cuStreamDestroy_v2(d, handle: Handle) {
        stream::destroy(d, handle)
    }

    /// Waits for a stream.
    live fn cuStreamSynchronize(d, handle: Handle) {
        let id = stream::resolve(d, handle)?;
        stream::synchronize(d, id)
    }

    /// Whether a stream is idle.
    live fn cuStreamQuery(d, handle: Handle) {
        let id = stream::resolve(d, handle)?;
        stream::query(d, id)
    }

    /// Makes a stream wait for an event.
    live fn cuStreamWaitEvent(d, handle: Handle, event: Handle, flags: u32) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let id = stream::resolve(d, handle)?;
        crate::event::wait(d, id, Id::of(event), flags == 1)
    }

    /// Its flags.
    live fn cuStreamGetFlags(d, handle: Handle, flags: Out<u32>) {
        let id = stream::resolve(d, handle)?;
        flags.set(stream::get(d, id)?.flags)
    }

    /// Its priority.
    live fn cuStreamGetPriority(d, handle: Handle, priority: Out<i32>) {
        let id = stream::resolve(d, handle)?;
        priority.set(stream::get(d, id)?.priority)
    }

    /// A number for it.
    live fn cuStreamGetId(d, handle: Handle, number: Out<u64>) {
        number.set(stream::resolve(d, handle)?.0)
    }

    /// Its context.
    live fn cuStreamGetCtx(d, handle: Handle, context: Out<Handle>) {
        let id = stream::resolve(d, handle)?;
        context.set(stream::get(d, id)?.context.handle())
    }

    /// Its context; there are no green ones.
    live fn cuStreamGetCtx_v2(d, handle: Handle, context: Out<Handle>, green: Out<Handle>) {
        let id = stream::resolve(d, handle)?;
        green.set_if_wanted(std::ptr::null_mut());
        context.set(stream::get(d, id)?.context.handle())
    }

    /// Its device.
    live fn cuStreamGetDevice(d, handle: Handle, ordinal: Out<i32>) {
        let id = stream::resolve(d, handle)?;
        let context = stream::get(d, id)?.context;
        ordinal.set(d.healthy(context)?.device as i32)
    }

    /// Copies attributes (none has an effect).
    live fn cuStreamCopyAttributes(d, to: Handle, from: Handle) {
        stream::resolve(d, to)?;
        stream::resolve(d, from).map(|_| ())
    }

    /// Attributes: an access window or synchronisation policy is accepted without effect, the priority is the
    /// stream's.
    live fn cuStreamSetAttribute(d, handle: Handle, attribute: u32, _value: In<AttributeValue>) {
        stream::resolve(d, handle)?;
        if matches!(attribute, 1 | 3 | 9 | 10) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    /// The priority can be asked for.
    live fn cuStreamGetAttribute(d, handle: Handle, attribute: u32, value: Out<AttributeValue>) {
        let id = stream::resolve(d, handle)?;
        let mut words = [0; 16];
        match attribute {
            8 => words[0] = stream::get(d, id)?.priority as u32,
            1 | 3 | 9 | 10 => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        value.set(AttributeValue(words))
    }

    /// Calls a function of the program when its turn comes.
    live fn cuLaunchHostFunc(d, handle: Handle, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) {
        let id = stream::resolve(d, handle)?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        launch::host_call(d, id, HostCall::Function(function, HostPointer(data.cast())))
    }

    /// Calls a function of the program when its turn comes, with the error if there was one.
    live fn cuStreamAddCallback(
        d,
        handle: Handle,
        function: Option<unsafe extern "C" fn(*mut c_void, u32, *mut c_void)>,
        data: *mut c_void,
        flags: u32,
    ) {
        let id = stream::resolve(d, handle)?;
        let function = function.filter(|_| flags == 0).ok_or(Code::INVALID_VALUE)?;
        crate::capture::refuse_captured(d, id)?;
        launch::host_call(d, id, HostCall::Callback(function, Id::of(handle), HostPointer(data.cast())))
    }
}
