//! The queue: launches, copies through pinned memory, capture and replay.
//!
//! The driver's stream does not wait for the null stream; whatever goes through that one (allocation,
//! weights) waits for itself. Whatever is enqueued here follows what other streams of the device have
//! enqueued ([`crate::stream_order`]). A capture takes up launches alone. What was launched since it was last
//! waited for is noted in the device's trail.

use crate::blaslt::{Matmul, Operands, Shape};
use crate::device::Cuda;
use crate::driver::check;
use crate::graph::{Capture, CudaGraph};
use crate::mem::CudaMem;
use crate::modules::Function;
use crate::pinned::{CudaEvent, Pinned, Ring};
use crate::quantized::QuantizedOutput;
use crate::trail::Running;
use bytemuck::Pod;
use cudarc::driver::sys::{self, CUstream_flags_enum, CUstreamCaptureMode_enum};
use engraft_core::backend::{Backend, Stream};
use engraft_core::mem::{BufMut, BufRef, DeviceMem, StepShape};
use engraft_core::{Error, Result};
use engraft_kernels::Launch;
use engraft_kernels::params::int8::Codes;
use engraft_kernels::params::{Elem, MatView};
use std::ffi::c_void;
use std::future::Future;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bounds of the steps that an attention schedule serves; grids follow the step's own sizes.
#[derive(Debug, Clone, Copy)]
pub struct CudaPlan {
    pub(crate) bound: StepShape,
}

/// The queue of one rank.
#[derive(Debug)]
pub struct CudaStream {
    /// Goes before the device's context.
    matmul: Option<Matmul>,
    gpu: Arc<Cuda>,
    raw: sys::CUstream,
    ring: Ring,
    spare: Vec<Pinned>,
    capture: Option<Capture>,
    /// The largest scratch so far.
    scratch: Option<CudaMem>,
    /// What the last launch left in scratch next to its output.
    quantized: Option<QuantizedOutput>,
}

/// A read in flight.
#[derive(Debug)]
pub struct Ticket {
    pinned: Pinned,
    bytes: usize,
}

impl CudaStream {
    pub(crate) fn new(gpu: Arc<Cuda>) -> Result<Self> {
        gpu.bind()?;
        // Before the stream, which nothing would destroy if this failed.
        let matmul = gpu.blaslt.as_ref().map(|blas| Matmul::new(blas, |bytes| gpu.alloc(bytes)));
        let matmul = matmul.transpose()?;
        let mut raw = null_mut();
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the pointer is to a local.
        check(unsafe { sys::cuStreamCreate(&mut raw, flags) }, "cuStreamCreate").map_err(|e| gpu.lose(e))?;
        let ring = Ring::new(&gpu);
        Ok(Self { gpu, raw, ring, spare: Vec::new(), capture: None, scratch: None, quantized: None, matmul })
    }

    pub(crate) fn gpu(&self) -> &Arc<Cuda> {
        &self.gpu
    }

    /// Microseconds that a copy of a whole buffer takes.
    pub(crate) fn timed_copy(&mut self, from: &CudaMem, to: &CudaMem) -> Result<f64> {
        let (bytes, begin) = (from.bytes().min(to.bytes()), self.record()?);
        let (from, to) = (self.gpu.address(from)?, self.gpu.address(to)?);
        self.quantized = None;
        let code = self.in_turn(|| {
            // SAFETY: inside both allocations, which outlive the wait below.
            unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw) }
        })?;
        self.noted(check(code, "a copy"))?;
        let end = self.record()?;
        self.wait()?;
        self.noted(begin.until_us(&end))
    }

    /// Keeps memory that no view owns alive as long as the step that is being captured, if one is.
    pub(crate) fn keep(&mut self, mem: &CudaMem) {
        if let Some(capture) = &mut self.capture {
            capture.kept.push(mem.share());
        }
    }

    /// Address of scratch for kernels that follow each other: what one leaves there is the next one's to
    /// overwrite, and forgotten here.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<u64> {
        self.quantized = None;
        let mem = match self.scratch.take() {
            Some(mem) if mem.bytes() >= bytes => mem,
            // What is given up may be in use still: its memory is given out again only after a wait.
            _ => {
                let room = bytes.checked_next_power_of_two();
                let what = || Error::OutOfMemory { what: "scratch".into(), wanted: bytes as u64, free: 0 };
                self.gpu.alloc(room.ok_or_else(what)?)?
            }
        };
        self.keep(&mem);
        let address = mem.address();
        self.scratch = Some(mem);
        Ok(address)
    }

    /// Notes what the launch just made left in scratch: until the next launch, copy, wait, use of scratch, or
    /// end of a capture.
    pub(crate) fn remember(&mut self, quantized: QuantizedOutput) {
        self.quantized = Some(quantized);
    }

    /// Codes of these rows, where the last launch left them in scratch and no other stream has enqueued
    /// anything since.
    pub(crate) fn quantized(&self, rows: MatView, elem: Elem) -> Option<Codes> {
        self.quantized
            .as_ref()
            .filter(|quantized| (quantized.of, quantized.elem) == (rows, elem))
            .filter(|_| self.capture.is_some() || self.gpu.stream_order.is_last(self.raw))
            .map(|quantized| quantized.codes)
    }

    /// Enqueues `work` behind that of other streams; a capture takes it up as it is, and waits when it is
    /// replayed.
    fn in_turn<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        match self.capture {
            Some(_) => Ok(work()),
            None => self.noted(self.gpu.stream_order.enqueue(self.raw, work)),
        }
    }

    /// Whether cuBLASLt would run this matmul of operands at these addresses; not where it is not there or
    /// has no kernel, and never inside a captured step, whatever its rows: a graph counts and names own
    /// kernels alone.
    pub(crate) fn blaslt_takes(&mut self, shape: Shape, x: u64, out: u64) -> Result<bool> {
        let at = Operands { x, w: 0, out };
        let (Some(matmul), None, true) = (&mut self.matmul, &self.capture, at.aligned()) else {
            return Ok(false);
        };
        self.gpu.bind()?;
        let takes = matmul.takes(shape);
        self.noted(takes)
    }

    /// A matmul by cuBLASLt; false where [`CudaStream::blaslt_takes`] says so, or the weight is not aligned.
    pub(crate) fn run_blaslt(&mut self, shape: Shape, at: Operands) -> Result<bool> {
        let (Some(matmul), None, true) = (&mut self.matmul, &self.capture, at.aligned()) else {
            return Ok(false);
        };
        self.quantized = None;
        self.gpu.bind()?;
        let enqueued = self.gpu.stream_order.enqueue(self.raw, || matmul.run(self.raw, shape, at));
        let ran = enqueued.and_then(|ran| ran);
        if !matches!(ran, Ok(false)) {
            self.gpu.trail.push(self.raw, Running::Library("cublasLtMatmul"));
        }
        let ran = self.noted(ran)?;
        if ran {
            self.gpu.blaslt_matmuls.fetch_add(1, Ordering::Relaxed);
            if self.gpu.blocking() {
                self.wait()?;
            }
        }
        Ok(ran)
    }

    /// Enqueues what is no kernel of this package: a copy, or a call of a library. `name` is what a fault is
    /// blamed on.
    pub(crate) fn library(
        &mut self,
        name: &'static str,
        call: impl FnOnce(sys::CUstream) -> Result<()>,
    ) -> Result<()> {
        self.quantized = None;
        self.gpu.bind()?;
        let raw = self.raw;
        let enqueued = self.in_turn(|| call(raw))?;
        self.gpu.trail.push(raw, Running::Library(name));
        self.noted(enqueued)
    }

    /// Launches a kernel with its parameters, or captures the launch.
    pub(crate) fn launch<P: Pod>(&mut self, launch: &Launch, params: &P) -> Result<()> {
        if launch.is_empty() {
            return Ok(());
        }
        self.quantized = None;
        self.gpu.bind()?;
        let function = self.noted(self.gpu.modules.function(&launch.entry))?;
        if function.param_bytes != size_of::<P>() {
            let (got, want) = (size_of::<P>(), function.param_bytes);
            return Err(Error::internal(format!("`{}` takes {want} bytes, given {got}", launch.entry)));
        }
        function.has_room(launch.shared_bytes)?;
        let code = self.in_turn(|| self.enqueue(&function, launch, params))?;
        self.gpu.trail.push(self.raw, Running::Kernel(function.clone()));
        let outcome = check(code, &launch.entry);
        self.noted(outcome)?;
        match &mut self.capture {
            Some(capture) => capture.kernels.push(function),
            None => {
                function.count(1);
                if self.gpu.blocking() {
                    self.wait()?;
                }
            }
        }
        Ok(())
    }

    fn enqueue<P: Pod>(&self, function: &Function, launch: &Launch, params: &P) -> sys::CUresult {
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        // The only attribute: this launch may begin before the one before it has ended.
        let overlap = function.waits && !self.gpu.in_order();
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.programmaticStreamSerializationAllowed = 1;
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.raw,
            attrs: &mut attribute,
            numAttrs: u32::from(overlap),
        };
        let mut args = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        // SAFETY: the function belongs to the current context and takes one struct of this size, which the
        // driver copies before it returns; what the addresses inside point to is the caller's affair (views,
        // which lie inside memory that lives). A kernel that may overlap waits for its predecessors before it
        // touches memory.
        unsafe { sys::cuLaunchKernelEx(&config, function.raw, args.as_mut_ptr(), null_mut()) }
    }

    /// Waits for everything enqueued here.
    fn wait(&mut self) -> Result<()> {
        // Another stream may write from now on what this one quantized.
        self.quantized = None;
        // SAFETY: the stream lives.
        unsafe { self.gpu.wait_for_stream("a step", self.raw) }?;
        self.gpu.trail.clear(self.raw);
        self.gpu.tidy()
    }

    /// Gives a loss of the device the names of what was running.
    fn noted<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|e| self.gpu.lose(e))
    }

    pub(crate) fn not_while_capturing(&self, what: &str) -> Result<()> {
        match self.capture {
            Some(_) => Err(Error::internal(format!("{what} inside a captured region"))),
            None => self.gpu.bind(),
        }
    }

    /// A read-back buffer of at least `bytes`.
    fn read_back(&mut self, bytes: usize) -> Result<Pinned> {
        let fit = |p: &Pinned| p.len() >= bytes && p.len() <= bytes.max(4096) * 4;
        match self.spare.iter().position(fit) {
            Some(at) => Ok(self.spare.swap_remove(at)),
            None => Pinned::new(&self.gpu, bytes.next_power_of_two().max(4096)),
        }
    }

    fn finish(&mut self, ticket: Ticket, out: &mut [u8]) -> Result<()> {
        if out.len() < ticket.bytes {
            return Err(Error::Shape { op: "collect", what: "bytes", got: out.len(), want: ticket.bytes });
        }
        // As in `wait`.
        self.quantized = None;
        self.gpu.bind()?;
        self.noted(ticket.pinned.event.wait())?;
        // SAFETY: the copy of `bytes` was waited for.
        unsafe { ticket.pinned.read(&mut out[..ticket.bytes]) };
        let tidied = self.gpu.tidy();
        // One that another device's stream made goes with it.
        if ticket.pinned.is_of(&self.gpu) {
            self.spare.push(ticket.pinned);
        }
        self.noted(tidied)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // Before the handle may be another stream's.
        self.gpu.trail.clear(self.raw);
        if self.gpu.bind().is_ok() {
            if self.gpu.stream_order.leave(self.raw).is_err() {
                // SAFETY: the stream lives.
                let _ = unsafe { self.gpu.wait_for_stream("a step", self.raw) };
                self.gpu.stream_order.forget(self.raw);
            }
            // SAFETY: created here, destroyed once; the driver lets enqueued work end.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
        if self.capture.is_some() {
            self.gpu.capture_ends();
        }
    }
}

impl Stream<Cuda> for CudaStream {
    type Event = CudaEvent;
    type Ticket = Ticket;

    fn upload<T: Pod>(&mut self, src: &[T], dst: BufMut<'_, CudaMem, T>) -> Result<()> {
        self.not_while_capturing("upload")?;
        self.quantized = None;
        if src.len() > dst.len() {
            return Err(Error::Shape { op: "upload", what: "elements", got: src.len(), want: dst.len() });
        }
        let to = self.buffer_mut(&dst)?;
        let Self { ring, raw, gpu, .. } = self;
        let enqueued = gpu.stream_order.enqueue(*raw, || ring.upload(*raw, bytemuck::cast_slice(src), to));
        self.noted(enqueued.and_then(|uploaded| uploaded))
    }

    fn download<T: Pod>(&mut self, src: BufRef<'_, CudaMem, T>) -> Result<Ticket> {
        self.not_while_capturing("download")?;
        self.quantized = None;
        let (from, bytes) = (self.buffer(src)?, src.len() * size_of::<T>());
        let pinned = self.read_back(bytes);
        let pinned = self.noted(pinned)?;
        if bytes > 0 {
            let code = self.in_turn(|| {
                // SAFETY: inside the allocation; the destination lives in the ticket, which waits for the
                // event.
                unsafe { sys::cuMemcpyDtoHAsync_v2(pinned.start().cast(), from, bytes, self.raw) }
            })?;
            self.noted(check(code, "a download"))?;
        }
        self.noted(pinned.mark(self.raw))?;
        Ok(Ticket { pinned, bytes })
    }

    fn collect<T: Pod>(&mut self, ticket: Ticket, out: &mut [T]) -> impl Future<Output = Result<()>> {
        std::future::ready(self.finish(ticket, bytemuck::cast_slice_mut(out)))
    }

    fn plan_attention(&mut self, shape: StepShape, plan: &mut CudaPlan) -> Result<()> {
        match shape.fits(&plan.bound) {
            true => Ok(()),
            false => Err(Error::internal(format!("a step of {shape:?} in a schedule for {:?}", plan.bound))),
        }
    }

    fn submit(&mut self) -> Result<()> {
        self.not_while_capturing("a submit")
    }

    fn sync(&mut self) -> Result<()> {
        self.not_while_capturing("a wait")?;
        self.wait()
    }

    fn record(&mut self) -> Result<CudaEvent> {
        self.not_while_capturing("a timestamp")?;
        let event = self.noted(CudaEvent::new(&self.gpu, true))?;
        self.noted(event.record(self.raw))?;
        Ok(event)
    }

    fn elapsed_us(&mut self, from: &CudaEvent, to: &CudaEvent) -> Result<f64> {
        self.gpu.bind()?;
        self.noted(from.until_us(to))
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.not_while_capturing("a capture")?;
        self.quantized = None;
        // Relaxed: loading a kernel for the first time, or a table of slopes, is allowed meanwhile; neither
        // touches this stream.
        let mode = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.noted(self.gpu.stream_order.leave(self.raw))?;
        self.gpu.capture_begins();
        // SAFETY: the stream lives and captures nothing yet.
        let code = unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) };
        if let Err(e) = self.noted(check(code, "beginning a capture")) {
            self.gpu.capture_ends();
            return Err(e);
        }
        self.capture = Some(Capture::default());
        Ok(())
    }

    fn end_capture(&mut self) -> Result<CudaGraph> {
        self.quantized = None;
        let Some(capture) = self.capture.take() else {
            return Err(Error::internal("a capture ended that had not begun"));
        };
        let bound = self.gpu.bind();
        let mut graph = null_mut();
        // SAFETY: the stream captures; the pointer is to a local.
        let code = unsafe { sys::cuStreamEndCapture(self.raw, &mut graph) };
        self.gpu.capture_ends();
        bound?;
        self.noted(check(code, "ending a capture"))?;
        self.noted(CudaGraph::new(&self.gpu, graph, capture))
    }

    unsafe fn replay(&mut self, graph: &CudaGraph) -> Result<()> {
        self.not_while_capturing("a replay")?;
        self.quantized = None;
        if !graph.is_of(&self.gpu) {
            return Err(Error::internal("a step that was captured on another device"));
        }
        if graph.is_empty() {
            return Ok(());
        }
        let code = self.in_turn(|| {
            // SAFETY: both live; what the kernels touch is alive by the caller's promise.
            unsafe { sys::cuGraphLaunch(graph.raw(), self.raw) }
        })?;
        for function in graph.kernels() {
            function.count(1);
            self.gpu.trail.push(self.raw, Running::Kernel(function.clone()));
        }
        self.noted(check(code, "a replay"))?;
        // An engine on such a device captures nothing (`Caps::graphs`); other callers may.
        if self.gpu.blocking() {
            self.wait()?;
        }
        Ok(())
    }
}
