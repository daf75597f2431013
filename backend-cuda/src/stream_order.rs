//! The order of work among the streams of one device.
//!
//! A stream runs its work in order by itself. Whatever is enqueued on another stream than the work before it
//! first waits, on the device, for that work: so whoever uses memory on two streams, one after the other,
//! gets what a single stream would give. With one stream nothing waits: the last stream is remembered, and
//! one event serves every change. The event may be recorded anew although a stream still waits for it: a wait
//! is for what was recorded when it was enqueued.
//!
//! A stream that captures cannot be recorded on, nor one that is gone: both leave the event behind their
//! work.

use crate::driver::check;
use crate::mem::lock;
use cudarc::driver::sys::{self, CUevent_flags_enum, CUstream};
use engraft_core::Result;
use std::ptr::null_mut;
use std::sync::Mutex;

/// Whose work is the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Last {
    /// There was none.
    #[default]
    None,
    /// That of a stream which lives and does not capture.
    Of(CUstream),
    /// The event lies behind it.
    Marked,
}

#[derive(Debug, Default)]
struct State {
    last: Last,
    /// Made when it is first needed; goes with the context.
    event: Option<sys::CUevent>,
}

/// Who has enqueued last. The context has to be current where a method is called.
#[derive(Debug, Default)]
pub(crate) struct StreamOrder(Mutex<State>);

impl State {
    fn event(&mut self) -> Result<sys::CUevent> {
        if let Some(event) = self.event {
            return Ok(event);
        }
        let (mut event, flags) = (null_mut(), CUevent_flags_enum::CU_EVENT_DISABLE_TIMING);
        // SAFETY: the context is current; the pointer is to a local.
        check(unsafe { sys::cuEventCreate(&mut event, flags as u32) }, "cuEventCreate")?;
        self.event = Some(event);
        Ok(event)
    }

    /// Puts the event behind all work.
    fn mark(&mut self) -> Result<()> {
        if let Last::Of(stream) = self.last {
            let event = self.event()?;
            // SAFETY: both live: a stream that goes marks before.
            check(unsafe { sys::cuEventRecord(event, stream) }, "cuEventRecord")?;
            self.last = Last::Marked;
        }
        Ok(())
    }

    /// Has `stream` wait for the work of others.
    fn follow(&mut self, stream: CUstream) -> Result<()> {
        if self.last == Last::Of(stream) {
            return Ok(());
        }
        self.mark()?;
        if self.last == Last::Marked {
            let event = self.event()?;
            // SAFETY: both live.
            check(unsafe { sys::cuStreamWaitEvent(stream, event, 0) }, "cuStreamWaitEvent")?;
        }
        self.last = Last::Of(stream);
        Ok(())
    }
}

impl StreamOrder {
    /// Enqueues `work` on `stream` behind all that other streams have enqueued.
    pub fn enqueue<T>(&self, stream: CUstream, work: impl FnOnce() -> T) -> Result<T> {
        // Held while work is enqueued, so that no other stream's work comes between.
        let mut state = lock(&self.0);
        state.follow(stream)?;
        Ok(work())
    }

    /// The event, behind all work that was enqueued so far, if there was any. The last stream stays the last.
    pub fn behind(&self) -> Result<Option<sys::CUevent>> {
        let mut state = lock(&self.0);
        let last = state.last;
        state.mark()?;
        let event = state.event.filter(|_| state.last == Last::Marked);
        state.last = last;
        Ok(event)
    }

    /// Whether no other stream has enqueued anything since `stream` did.
    pub fn is_last(&self, stream: CUstream) -> bool {
        lock(&self.0).last == Last::Of(stream)
    }

    /// To be called before `stream` captures or goes.
    pub fn leave(&self, stream: CUstream) -> Result<()> {
        let mut state = lock(&self.0);
        if state.last == Last::Of(stream) { state.mark() } else { Ok(()) }
    }

    /// To be called where [`StreamOrder::leave`] failed, once `stream` has been waited for.
    pub fn forget(&self, stream: CUstream) {
        let mut state = lock(&self.0);
        if state.last == Last::Of(stream) {
            state.last = Last::None;
        }
    }
}
