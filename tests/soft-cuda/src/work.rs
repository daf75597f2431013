//! One operation of the queue or of a graph, and how it is done.
//!
//! Addresses of device memory and of pinned host memory live in one space (the machine's memory); pageable
//! host memory is a raw pointer whose validity the program promised until the operation is done.

use std::ffi::c_void;
use std::sync::Arc;

use ptx_vm::{Instance, Launch, Standing, Step};

use crate::code::Code;
use crate::context;
use crate::fault;
use crate::hazard::{self, Access};
use crate::memory;
use crate::settings;
use crate::state::{Driver, Id, Written};
use crate::stream::Stream;

/// An operation.
#[derive(Debug, Clone)]
pub enum Work {
    /// A point in a stream, an empty node.
    Nothing,
    /// The record of an event.
    Record(Id),
    /// A kernel.
    Kernel(Box<KernelWork>),
    /// A copy.
    Copy(Box<Transfer>),
    /// A memset.
    Fill(Fill),
    /// The allocation of memory in stream order, which is there for what is ordered behind it.
    Alloc(u64),
    /// The release of memory in stream order.
    Free(u64),
    /// A function of the program.
    Call(HostCall),
}

/// A kernel with its arguments.
#[derive(Debug, Clone)]
pub struct KernelWork {
    /// The function it was launched by.
    pub function: Id,
    /// Its module on the device.
    pub instance: Arc<Instance>,
    /// Its name.
    pub name: Arc<str>,
    /// It calls `malloc` or `free`.
    pub heap: bool,
    /// Grid, block, arguments.
    pub launch: Launch,
    /// What it will have written.
    pub written: Written,
    /// It may start before the previous kernel of its stream has ended (programmatic stream serialization).
    pub programmatic: bool,
    /// What that kernel writes: off limits until `griddepcontrol.wait`.
    pub unfinished: Option<Written>,
}

/// A host pointer that the program promised to keep valid until the operation is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPointer(pub *mut u8);

// SAFETY: the pointer is only dereferenced while the operation runs, when the program has promised that it is
// valid from any thread (the real driver reads and writes it from its own threads).
unsafe impl Send for HostPointer {}
// SAFETY: as above; shared access reads the address only.
unsafe impl Sync for HostPointer {}

/// Where bytes come from or go to.
#[derive(Debug, Clone)]
pub enum Place {
    /// Device memory or pinned host memory, by address.
    Address(u64),
    /// Pageable host memory.
    Host(HostPointer),
    /// Bytes that were taken when the copy was submitted.
    Staged(Arc<[u8]>),
}

/// A place with the distance between rows and slices in bytes.
#[derive(Debug, Clone)]
pub struct Plane {
    /// The first byte.
    pub place: Place,
    /// Bytes from row to row.
    pub pitch: usize,
    /// Bytes from slice to slice.
    pub slice: usize,
}

/// A copy of `[depth, height, width]` bytes.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// Source.
    pub from: Plane,
    /// Destination.
    pub to: Plane,
    /// Bytes per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Slices.
    pub depth: usize,
}

/// A memset of `[height, width]` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Destination.
    pub address: u64,
    /// Bytes from row to row.
    pub pitch: usize,
    /// The element; the low `element` bytes count.
    pub value: u32,
    /// Bytes per element: 1, 2 or 4.
    pub element: u32,
    /// Elements per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// A host function or stream callback.
#[derive(Debug, Clone, Copy)]
pub enum HostCall {
    /// `cuLaunchHostFunc`: not called after an error.
    Function(unsafe extern "C" fn(*mut c_void), HostPointer),
    /// `cuStreamAddCallback`: told the stream (its handle as a number) and the error.
    Callback(unsafe extern "C" fn(*mut c_void, u32, *mut c_void), Id, HostPointer),
}

impl HostCall {
    /// Calls the program.
    pub fn call(&self, error: Option<Code>) {
        match (self, error) {
            // SAFETY: the program handed in the function with this argument to be called once its turn has
            // come.
            (HostCall::Function(function, data), None) => unsafe { function(data.0.cast()) },
            (HostCall::Function(..), Some(_)) => {}
            (HostCall::Callback(function, stream, data), error) => {
                let status = error.unwrap_or(Code::SUCCESS).0;
                // SAFETY: as above.
                unsafe { function(stream.handle(), status, data.0.cast()) }
            }
        }
    }
}

/// What went wrong, for the code and for people.
pub type Failure = (Code, String);

/// What the machine says of a kernel that has ended.
pub type Outcome = Result<ptx_vm::Report, Vec<ptx_vm::Fault>>;

/// Does an operation that touches nothing but the driver's own state.
pub fn perform(d: &mut Driver, work: &Work) -> Result<(), Failure> {
    match work {
        // The queue does these itself: they need the lock or the ticket, or may wait for each other.
        Work::Nothing | Work::Record(_) | Work::Call(_) | Work::Kernel(_) => Ok(()),
        // Its address was given out when it was submitted.
        Work::Alloc(_) => Ok(()),
        Work::Copy(transfer) => {
            d.statistics.copied += transfer.bytes();
            transfer.run(d).map_err(|e| (Code::ILLEGAL_ADDRESS, format!("copy: {e}")))
        }
        Work::Fill(fill) => {
            d.statistics.filled += fill.row_bytes() * fill.height as u64;
            fill.run(d).map_err(|e| (Code::ILLEGAL_ADDRESS, format!("memset: {e}")))
        }
        Work::Free(address) => {
            memory::release(d, *address);
            Ok(())
        }
    }
}

/// What an operation is about to read and write of the devices' memory, when that matters.
pub fn touches(d: &Driver, work: &Work) -> Vec<Access> {
    if watches(d) { work.touches(d) } else { Vec::new() }
}

impl Work {
    /// What it is, in words.
    pub fn name(&self) -> String {
        match self {
            Work::Kernel(k) => hazard::kernel(&k.name),
            Work::Copy(_) => "a copy".into(),
            Work::Fill(_) => "a memset".into(),
            Work::Alloc(_) => "the allocation".into(),
            Work::Free(_) => "the release of an allocation".into(),
            Work::Nothing | Work::Record(_) | Work::Call(_) => "an operation".into(),
        }
    }

    /// What it will read and write of the devices' memory; a kernel tells afterwards.
    fn touches(&self, d: &Driver) -> Vec<Access> {
        match self {
            Work::Copy(transfer) => transfer.touches(),
            Work::Fill(fill) => {
                let row =
                    |y: usize| Access::plain(fill.address + (y * fill.pitch) as u64, fill.row_bytes(), true);
                (0..fill.height).map(row).collect()
            }
            Work::Alloc(address) | Work::Free(address) => {
                let place = d.memory.place(*address);
                place.map(|p| Access::plain(p.base, p.bytes, true)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Whether it matters what operations touch: not while all there is are the default stream of one context and
/// a stream that waits for it.
fn watches(d: &Driver) -> bool {
    let apart = || {
        d.contexts.len() > 1 || d.streams.len() > d.contexts.len() + 1 || d.streams.values().any(Stream::free)
    };
    d.settings.stream_races && (d.queue.hazards.watch() || apart())
}

/// Begins a kernel, which ends or waits for another one.
pub fn begin(d: &mut Driver, kernel: &KernelWork, standing: Standing) -> Result<Step, Failure> {
    if let Some(text) = fault::planted(&kernel.name) {
        return Err((Code::LAUNCH_FAILED, text));
    }
    let mut launch = kernel.launch.clone();
    if let Some(earlier) = &kernel.unfinished {
        launch.pending = earlier.lock().clone();
    }
    let print_bytes = context::print_bytes(d, kernel.function);
    let heap_bytes = if kernel.heap { context::heap(d, kernel.launch.heap) } else { 0 };
    let options =
        ptx_vm::Options { track_accesses: watches(d), print_bytes, heap_bytes, ..d.settings.machine };
    let Driver { queue, memory, .. } = d;
    Ok(queue.company.begin(&kernel.instance, &kernel.name, launch, standing, memory, &options))
}

/// What a kernel that has ended has read and written, `touched` where its outcome is faults; and what was
/// wrong with it.
pub fn end(
    d: &mut Driver,
    kernel: &KernelWork,
    outcome: Outcome,
    touched: Vec<ptx_vm::Touched>,
) -> (Vec<Access>, Option<Failure>) {
    let (touched, failure) = match outcome {
        Ok(report) => {
            d.statistics.ran(&kernel.name, &report);
            *kernel.written.lock() = report.written;
            (report.accesses, None)
        }
        Err(mut faults) => {
            let again = settings::again(&d.settings);
            let said = |fault: &ptx_vm::Fault| format!("{fault}; {again} repeats it");
            let last = faults.pop().map(|last| (fault::code(last.kind), said(&last)));
            faults.iter().for_each(|f| fault::report(d, said(f)));
            (touched, Some(last.unwrap_or((Code::UNKNOWN, String::new()))))
        }
    };
    let access = |t: ptx_vm::Touched| Access {
        range: t.range,
        write: t.write,
        strong: t.strong,
        late: t.late,
        by: t.by,
    };
    (touched.into_iter().map(access).collect(), failure)
}

impl Transfer {
    /// Bytes of all rows.
    fn bytes(&self) -> u64 {
        (self.width * self.height * self.depth) as u64
    }

    /// The rows that lie in the devices' memory.
    fn touches(&self) -> Vec<Access> {
        let mut out = Vec::new();
        for (from, to, bytes) in self.rows() {
            for (place, offset, write) in [(&self.from.place, from, false), (&self.to.place, to, true)] {
                if let Place::Address(a) = place {
                    out.push(Access::plain(a + offset as u64, bytes as u64, write));
                }
            }
        }
        out
    }

    /// The rows as `(offset in source, offset in destination, bytes)`, one row when all are contiguous.
    fn rows(&self) -> Vec<(usize, usize, usize)> {
        let whole = |p: &Plane| {
            (self.height <= 1 || p.pitch == self.width)
                && (self.depth <= 1 || p.slice == self.width * self.height)
        };
        if whole(&self.from) && whole(&self.to) {
            return vec![(0, 0, self.width * self.height * self.depth)];
        }
        let mut rows = Vec::with_capacity(self.height * self.depth);
        for z in 0..self.depth {
            for y in 0..self.height {
                let at = |p: &Plane| z * p.slice + y * p.pitch;
                rows.push((at(&self.from), at(&self.to), self.width));
            }
        }
        rows
    }

    fn run(&self, d: &mut Driver) -> Result<(), ptx_vm::Error> {
        let mut buffer = Vec::new();
        for (from, to, bytes) in self.rows() {
            match (&self.from.place, &self.to.place) {
                (Place::Address(a), Place::Address(b)) => {
                    d.memory.copy(b + to as u64, a + from as u64, bytes as u64)?;
                    continue;
                }
                (Place::Address(a), _) => {
                    buffer.resize(bytes, 0);
                    d.memory.read(a + from as u64, &mut buffer)?;
                }
                (Place::Host(p), _) => {
                    // SAFETY: the program promised these bytes until the operation is done, which is now.
                    buffer = unsafe { std::slice::from_raw_parts(p.0.wrapping_add(from), bytes) }.to_vec();
                }
                (Place::Staged(all), _) => buffer = all[from..from + bytes].to_vec(),
            }
            match &self.to.place {
                Place::Address(b) => d.memory.write(b + to as u64, &buffer)?,
                // SAFETY: as above, for writing; the buffer is the driver's own and does not overlap.
                Place::Host(p) => unsafe {
                    std::ptr::copy_nonoverlapping(buffer.as_ptr(), p.0.wrapping_add(to), bytes);
                },
                Place::Staged(_) => {}
            }
        }
        Ok(())
    }
}

impl Fill {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.width as u64 * u64::from(self.element)
    }

    fn run(&self, d: &mut Driver) -> Result<(), ptx_vm::Error> {
        let pattern = self.value.to_le_bytes();
        for y in 0..self.height {
            let row = self.address + (y * self.pitch) as u64;
            d.memory.fill(row, self.row_bytes(), &pattern[..self.element as usize])?;
        }
        Ok(())
    }
}
