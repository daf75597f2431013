//! Races between streams, through unmodified cudarc: reported under every order, with both places; and
//! nothing is reported of programs that have their events.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;

use common::*;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result};
use soft_cuda::preload::{Checks, Order, SoftCuda};

const N: usize = 64;

fn address<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> u64 {
    slice.device_ptr(stream).0
}

/// The faults of a program under every order.
fn faults(soft: &SoftCuda, program: impl Fn() -> Result<(), DriverError>) -> Vec<Option<String>> {
    let run = |order| {
        soft.set_order(order).unwrap();
        soft.clear_fault().unwrap();
        let outcome = program();
        let fault = soft.last_fault().unwrap();
        assert_eq!(outcome.is_err(), fault.is_some(), "{order:?}: {outcome:?} {fault:?}");
        fault
    };
    Order::all(12).map(run).collect()
}

struct Two {
    context: Arc<CudaContext>,
    a: Arc<CudaStream>,
    b: Arc<CudaStream>,
    x: CudaSlice<f32>,
    module: Module,
}

/// Two streams, and a buffer that both may use.
fn two() -> Result<Two, DriverError> {
    let context = bare_context(0);
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let x = a.clone_htod(&[1.0f32; N])?;
    a.synchronize()?;
    let module = Module::load(&context);
    Ok(Two { context, a, b, x, module })
}

impl Two {
    fn scale(&self, stream: &CudaStream, first: usize, count: u32) -> Result<(), DriverError> {
        let at = address(&self.x, stream) + 4 * first as u64;
        launch(stream, self.module.function("scale")?, 1, count, 0, args([&at, &count, &2.0f32]))
    }

    fn done(self) -> Result<(), DriverError> {
        self.b.synchronize()?;
        self.a.synchronize()?;
        self.context.synchronize()
    }
}

#[test]
fn two_kernels_that_write_one_buffer() {
    let (soft, _alone) = soft();
    let program = || {
        let t = two()?;
        t.scale(&t.a, 0, 64)?;
        t.scale(&t.b, 32, 32)?;
        t.done()
    };
    for fault in faults(soft, program) {
        let fault = fault.expect("a race under every order");
        assert!(fault.starts_with("StreamRace: kernel `scale`, line "), "{fault}");
        assert_eq!(fault.matches("st.global.f32").count(), 2, "both places: {fault}");
        assert!(fault.contains("128 bytes at") && fault.matches("in stream 0x").count() == 2, "{fault}");
    }
    // The same blocks side by side on several threads, and without the check.
    soft.set_checks(Checks { stream_races: false, ..Checks::default() }).unwrap();
    assert!(faults(soft, program).iter().all(Option::is_none));
}

#[test]
fn a_copy_and_a_kernel_and_a_memset() {
    let (soft, _alone) = soft();
    let copy = || {
        let t = two()?;
        t.scale(&t.a, 0, 64)?;
        let mut out = [0f32; N];
        // SAFETY: the buffer outlives the copy, which the stream has done below.
        unsafe { result::memcpy_dtoh_async(&mut out, address(&t.x, &t.b), t.b.cu_stream()) }?;
        t.done()
    };
    let fill = || {
        let t = two()?;
        t.scale(&t.a, 0, 64)?;
        // SAFETY: live memory.
        unsafe { result::memset_d8_async(address(&t.x, &t.b), 0, 4 * N, t.b.cu_stream()) }?;
        t.done()
    };
    for (fault, other) in faults(soft, copy)
        .into_iter()
        .map(|f| (f, "a copy in"))
        .chain(faults(soft, fill).into_iter().map(|f| (f, "a memset in")))
    {
        let fault = fault.expect("a race under every order");
        assert!(fault.contains("kernel `scale`") && fault.contains(other), "{fault}");
    }
}

#[test]
fn order_by_events_waits_and_graphs_is_no_race() {
    let (soft, _alone) = soft();
    // An event; halves of one buffer; a wait of the host, by a stream, an event or a question.
    let event = || {
        let t = two()?;
        t.scale(&t.a, 0, 64)?;
        t.b.join(&t.a)?;
        t.scale(&t.b, 0, 64)?;
        t.a.join(&t.b)?;
        t.scale(&t.a, 0, 64)?;
        t.done()
    };
    let halves = || {
        let t = two()?;
        t.scale(&t.a, 0, 32)?;
        t.scale(&t.b, 32, 32)?;
        t.scale(&t.a, 0, 32)?;
        t.done()
    };
    let host = || {
        let t = two()?;
        t.scale(&t.a, 0, 64)?;
        t.a.synchronize()?;
        t.scale(&t.b, 0, 64)?;
        let event = t.b.record_event(None)?;
        event.synchronize()?;
        t.scale(&t.a, 0, 64)?;
        let event = t.a.record_event(None)?;
        while !event.is_complete() {}
        t.scale(&t.b, 0, 64)?;
        t.done()
    };
    let released = || {
        let t = two()?;
        // SAFETY: allocated and freed in stream order, with an event between the streams.
        unsafe {
            let y = result::malloc_async(t.a.cu_stream(), 4 * N)?;
            result::memset_d8_async(y, 0, 4 * N, t.a.cu_stream())?;
            t.b.join(&t.a)?;
            result::memset_d8_async(y, 1, 4 * N, t.b.cu_stream())?;
            t.a.join(&t.b)?;
            result::free_async(y, t.a.cu_stream())?;
        }
        t.done()
    };
    let programs: [&dyn Fn() -> Result<(), DriverError>; 4] = [&event, &halves, &host, &released];
    for program in programs {
        let seen = faults(soft, program);
        assert!(seen.iter().all(Option::is_none), "{seen:?}");
    }
}
