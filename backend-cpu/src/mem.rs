//! Host memory as device memory: reference-counted, 64-byte aligned, written behind shared references.
//!
//! A recorded step keeps clones of what it touches, so its memory lives as long as the recording. Data races are ruled
//! out one level up: one stream runs its ops one after the other, and an op's kernels write disjoint parts.

use engraft_core::mem::{BufMut, BufRef, DeviceMem, Float, MatMut, MatRef};
use engraft_core::{Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

/// Every allocation begins at a cache line.
const ALIGN: usize = 64;

/// One allocation; clones share it.
#[derive(Debug, Clone)]
pub struct CpuMem(Arc<Block>);

#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block is plain bytes; who may touch them when is the stream's affair (see the module's head).
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `CpuMem::new`, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl CpuMem {
    /// Allocates zeroed bytes.
    ///
    /// # Errors
    /// `OutOfMemory` when the allocator refuses.
    pub fn new(bytes: usize) -> Result<Self> {
        let refuse = || Error::OutOfMemory { what: "a buffer".into(), wanted: bytes as u64, free: 0 };
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).map_err(|_| refuse())?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refuse)?;
        Ok(Self(Arc::new(Block { start, layout })))
    }

    /// First byte.
    pub fn start(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }
}

impl DeviceMem for CpuMem {
    fn bytes(&self) -> usize {
        self.0.layout.size()
    }
}

/// A matrix that keeps its memory alive: what kernels and recordings hold.
#[derive(Debug, Clone)]
pub struct Rows {
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

impl From<MatRef<'_, CpuMem>> for Rows {
    fn from(m: MatRef<'_, CpuMem>) -> Self {
        let MatRef { mem, offset, rows, cols, pitch, dtype } = m;
        Self { mem: mem.clone(), offset, rows, cols, pitch, dtype }
    }
}

impl From<MatMut<'_, CpuMem>> for Rows {
    fn from(m: MatMut<'_, CpuMem>) -> Self {
        Self::from(m.as_ref())
    }
}

impl Rows {
    /// Address of row `r`'s first element; `Exec` has checked that all rows lie inside the allocation.
    pub fn row(&self, r: usize) -> *mut u8 {
        let at = (self.offset + r * self.pitch) * self.dtype.bytes();
        debug_assert!(at <= self.mem.bytes());
        // SAFETY: inside the allocation, by the check named above.
        unsafe { self.mem.start().add(at) }
    }
}

/// A typed buffer that keeps its memory alive.
#[derive(Debug, Clone)]
pub struct Words<T> {
    mem: CpuMem,
    offset: usize,
    /// Elements.
    pub len: usize,
    element: std::marker::PhantomData<fn() -> T>,
}

impl<T> From<BufRef<'_, CpuMem, T>> for Words<T> {
    fn from(b: BufRef<'_, CpuMem, T>) -> Self {
        Self { mem: b.mem.clone(), offset: b.offset, len: b.len, element: std::marker::PhantomData }
    }
}

impl<T> From<BufMut<'_, CpuMem, T>> for Words<T> {
    fn from(b: BufMut<'_, CpuMem, T>) -> Self {
        Self::from(b.as_ref())
    }
}

impl<T: bytemuck::Pod> Words<T> {
    /// First element.
    pub fn start(&self) -> *mut T {
        debug_assert!((self.offset + self.len) * size_of::<T>() <= self.mem.bytes());
        // SAFETY: owners check at construction that their elements lie inside the allocation.
        unsafe { self.mem.start().cast::<T>().add(self.offset) }
    }

    /// The elements, to read.
    ///
    /// # Safety
    /// Nothing writes them meanwhile: the stream runs one op at a time.
    pub unsafe fn slice(&self) -> &[T] {
        // SAFETY: inside the allocation, 64-byte aligned plus whole elements, initialised; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    /// The elements, to write.
    ///
    /// # Safety
    /// Nothing else touches them meanwhile.
    #[allow(clippy::mut_from_ref)] // Reason: the view came from an exclusive borrow; the allocation is shared bytes.
    pub unsafe fn slice_mut(&self) -> &mut [T] {
        // SAFETY: as in `slice`; the caller rules out any other access.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}
