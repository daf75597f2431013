//! Host memory as device memory: reference-counted, written behind shared references.
//!
//! A captured step keeps what it touches alive by shares of it. Data races are ruled out one level up: views
//! to write borrow their owner exclusively, a stream runs its ops one after the other, and an op's kernels
//! write disjoint parts.

use engraft_core::mem::{BufMut, BufRef, DeviceMem, Float, MatMut, MatRef};
use engraft_core::{Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

/// Every own allocation begins at a cache line.
const ALIGN: usize = 64;
/// What every allocator gives without being asked.
const OWN_ALIGN: usize = 8;

/// One allocation. Not `Clone`: who owns a `CpuMem` owns its bytes.
#[derive(Debug)]
pub struct CpuMem(Arc<Block>);

struct Block {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

/// Who frees a block.
enum Owner {
    /// The block itself: what was allocated, and as what.
    Heap(NonNull<u8>, Layout),
    /// Whatever this is, when it is dropped.
    Other { _keep: Box<dyn Any + Send + Sync> },
}

// SAFETY: the block is plain bytes; who may touch them when is the stream's affair (see the module's head).
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block").field("start", &self.start).field("bytes", &self.bytes).finish()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Owner::Heap(allocated, layout) = self.owner {
            // SAFETY: allocated with this layout in `CpuMem::new`, freed once.
            unsafe { dealloc(allocated.as_ptr(), layout) }
        }
    }
}

impl CpuMem {
    /// Allocates zeroed bytes. Large ones take memory when they are touched: pages of a cache that no
    /// sequence has come to cost nothing.
    ///
    /// # Errors
    /// `OutOfMemory` when the allocator refuses.
    pub fn new(bytes: usize) -> Result<Self> {
        let refuse = || Error::OutOfMemory { what: "a buffer".into(), wanted: bytes as u64, free: 0 };
        // By the allocator's own alignment: for more, it would write the zeros itself and touch every page.
        let room = bytes.checked_add(ALIGN).ok_or_else(refuse)?;
        let layout = Layout::from_size_align(room, OWN_ALIGN).map_err(|_| refuse())?;
        // SAFETY: the layout's size is not zero.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refuse)?;
        // SAFETY: at most `ALIGN - 1` bytes on, which there are.
        let start = unsafe { allocated.add(allocated.align_offset(ALIGN).min(ALIGN)) };
        Ok(Self(Arc::new(Block { start, bytes, owner: Owner::Heap(allocated, layout) })))
    }

    /// Memory that something else owns: `keep` is dropped with the last use of the memory.
    ///
    /// # Safety
    /// - `start` is aligned to 4 bytes, and the `bytes` from there on are initialised, readable and writable
    ///   for as long as `keep` lives.
    /// - Nothing else reads or writes them while a view of this memory is borrowed for writing, nor writes
    ///   them while one is borrowed for reading.
    pub unsafe fn from_raw(start: NonNull<u8>, bytes: usize, keep: Box<dyn Any + Send + Sync>) -> Self {
        Self(Arc::new(Block { start, bytes, owner: Owner::Other { _keep: keep } }))
    }

    /// A second owner of the same bytes, for tests that look at memory from outside.
    ///
    /// # Safety
    /// While a view of one is borrowed for writing, no view of the other is used: neither by an op, nor by an
    /// upload or download, nor by [`CpuMem::start`], on any thread.
    pub unsafe fn alias(&self) -> Self {
        self.share()
    }

    /// Keeps the memory alive for an op or a graph.
    pub(crate) fn share(&self) -> Self {
        Self(self.0.clone())
    }

    /// First byte.
    pub fn start(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }
}

impl DeviceMem for CpuMem {
    fn bytes(&self) -> usize {
        self.0.bytes
    }
}

/// A matrix that keeps its memory alive: what kernels and graphs hold.
#[derive(Debug)]
pub(crate) struct SharedMat {
    mem: CpuMem,
    offset: usize,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Elements from one row to the next.
    pub pitch: usize,
    /// Element type.
    pub dtype: Float,
}

impl From<MatRef<'_, CpuMem>> for SharedMat {
    fn from(m: MatRef<'_, CpuMem>) -> Self {
        let mem = m.mem().share();
        Self { mem, offset: m.offset(), rows: m.rows(), cols: m.cols(), pitch: m.pitch(), dtype: m.dtype() }
    }
}

impl From<MatMut<'_, CpuMem>> for SharedMat {
    fn from(m: MatMut<'_, CpuMem>) -> Self {
        Self::from(m.as_ref())
    }
}

impl SharedMat {
    /// Address of row `r`'s first element; a view that exists lies inside its allocation.
    pub(crate) fn row(&self, r: usize) -> *mut u8 {
        let at = (self.offset + r * self.pitch) * self.dtype.bytes();
        debug_assert!(at <= self.mem.bytes());
        // SAFETY: inside the allocation, for `r` below `rows` and for row 0 of none.
        unsafe { self.mem.start().add(at) }
    }
}

/// A typed buffer that keeps its memory alive.
#[derive(Debug)]
pub(crate) struct Words<T> {
    mem: CpuMem,
    offset: usize,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> From<BufRef<'_, CpuMem, T>> for Words<T> {
    fn from(b: BufRef<'_, CpuMem, T>) -> Self {
        Self { mem: b.mem().share(), offset: b.offset(), len: b.len(), element: PhantomData }
    }
}

impl<T> From<BufMut<'_, CpuMem, T>> for Words<T> {
    fn from(b: BufMut<'_, CpuMem, T>) -> Self {
        Self::from(b.into_ref())
    }
}

impl<T: bytemuck::Pod> Words<T> {
    /// What ops take has elements of 4 bytes and no stricter alignment than memory has
    /// ([`CpuMem::from_raw`]).
    const ALIGNED: () = assert!(align_of::<T>() <= 4);

    /// First element.
    pub(crate) fn start(&self) -> *mut T {
        let () = Self::ALIGNED;
        debug_assert!((self.offset + self.len) * size_of::<T>() <= self.mem.bytes());
        // SAFETY: a view that exists lies inside its allocation.
        unsafe { self.mem.start().cast::<T>().add(self.offset) }
    }

    /// The elements, to read.
    ///
    /// # Safety
    /// Nothing writes them meanwhile: the stream runs one op at a time.
    pub(crate) unsafe fn slice(&self) -> &[T] {
        // SAFETY: inside the allocation, aligned, initialised; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    /// The elements, to write.
    ///
    /// # Safety
    /// Nothing else touches them meanwhile.
    // Reason: the view came from an exclusive borrow; the allocation is shared bytes.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice_mut(&self) -> &mut [T] {
        // SAFETY: as in `slice`; the caller rules out any other access.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}
