//! The arithmetic of the backend, on plain memory.
//!
//! One file per stem. Every kernel takes a [`Machine`] (threads, instruction set, kind of multiply-add,
//! scratch) and views ([`RawMat`], [`RawMatMut`]: 2-D, unit inner stride, row pitch, run-time dtype),
//! computes in f32 and rounds once on output. A view is safe to use once it exists, so every kernel that can
//! be called checks, once per call, that its operands go together; numbers that it finds in its operands
//! (ids, slots, pages, bounds) are checked where they are used. No load or store touches an element beyond a
//! row, not even within a vector, and none needs more alignment than its element's.
//!
//! Invariant: bits depend on operands and on the kind of multiply-add, and on nothing else; work is split
//! over outputs. After the first call of a shape, a kernel allocates nothing: scratch grows and stays.

pub mod attention;
pub(crate) mod choice;
pub mod elementwise;
pub mod embed;
pub mod experts;
pub mod index;
pub mod kv;
pub mod linear;
pub mod moe;
pub mod norm;
pub mod picture;
pub mod rope;
pub mod rows;

use crate::pool::Pool;
use crate::simd::{Isa, Lanes};
use engraft_core::math::{self, MulAdd};
use engraft_core::mem::Float;
use engraft_core::numerics::Madd;
use engraft_core::{Error, Result};
use std::sync::{Mutex, PoisonError};

/// Threads, instruction set, kind of multiply-add and scratch memory: what every kernel runs on.
#[derive(Debug)]
pub struct Machine {
    /// The threads.
    pub pool: Pool,
    /// The instruction set; never changes bits.
    pub isa: Isa,
    /// The kind of multiply-add; changes bits.
    pub madd: Madd,
    scratch: Mutex<AlignedBytes>,
}

impl Machine {
    /// A machine of `threads` threads with the best instruction set of this processor.
    pub fn new(threads: usize, madd: Madd) -> Machine {
        Machine {
            pool: Pool::new(threads),
            isa: Isa::detect(),
            madd,
            scratch: Mutex::new(AlignedBytes::zeroed(0)),
        }
    }

    /// The same on a chosen instruction set, or the best below it that there is (tests force each).
    pub fn with_isa(threads: usize, madd: Madd, isa: Isa) -> Machine {
        Machine { isa: isa.here(), ..Machine::new(threads, madd) }
    }

    /// Calls `f` with `floats` f32 of scratch, 64-byte aligned, contents arbitrary but initialised.
    fn with_scratch<R>(&self, floats: usize, f: impl FnOnce(Floats) -> R) -> R {
        let mut s = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if s.len() < floats * 4 {
            // A quarter more, so that slowly growing shapes do not reallocate each time.
            *s = AlignedBytes::zeroed((floats + floats / 4) * 4);
        }
        f(Floats(s.as_mut_ptr().cast()))
    }
}

/// A pointer into scratch that may travel to workers; each writes a part of its own.
#[derive(Clone, Copy)]
struct Floats(*mut f32);

// SAFETY: only a pointer; kernels give each chunk or thread a disjoint part.
unsafe impl Send for Floats {}
// SAFETY: as above.
unsafe impl Sync for Floats {}

impl Floats {
    /// The pointer `n` floats further on.
    ///
    /// # Safety
    /// Within the scratch that was asked for.
    #[inline(always)]
    unsafe fn at(self, n: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(n) }
    }
}

/// Zeroed bytes aligned to 64; large ones straight from the system on huge pages, and untouched until
/// written.
#[derive(Debug)]
pub struct AlignedBytes(Store);

#[derive(Debug)]
enum Store {
    /// On the heap, so many bytes of the lines.
    Heap(Vec<Line>, usize),
    Map(memmap2::MmapMut),
}

/// One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

impl AlignedBytes {
    /// From this size on memory is mapped.
    const LARGE: usize = 1 << 20;

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBytes {
        if len >= Self::LARGE
            && let Ok(map) = memmap2::MmapMut::map_anon(len)
        {
            // Only a hint: without huge pages everything works, with more TLB misses.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            return AlignedBytes(Store::Map(map));
        }
        AlignedBytes(Store::Heap(vec![Line([0; 64]); len.div_ceil(64)], len))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Store::Heap(_, len) => *len,
            Store::Map(m) => m.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// First byte.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.0 {
            Store::Heap(v, _) => v.as_ptr().cast(),
            Store::Map(m) => m.as_ptr(),
        }
    }

    /// First byte, to write.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        match &mut self.0 {
            Store::Heap(v, _) => v.as_mut_ptr().cast(),
            Store::Map(m) => m.as_mut_ptr(),
        }
    }
}

/// A read view `[rows, cols]`.
#[derive(Debug, Clone, Copy)]
pub struct RawMat {
    ptr: *const u8,
    /// Element type.
    pub(crate) dtype: Float,
    /// Rows.
    pub(crate) rows: usize,
    /// Elements of a row.
    pub(crate) cols: usize,
    /// Elements from one row to the next.
    pub(crate) pitch: usize,
}

/// A written view `[rows, cols]`.
#[derive(Debug, Clone, Copy)]
pub struct RawMatMut {
    ptr: *mut u8,
    /// Element type.
    pub(crate) dtype: Float,
    /// Rows.
    pub(crate) rows: usize,
    /// Elements of a row.
    pub(crate) cols: usize,
    /// Elements from one row to the next.
    pub(crate) pitch: usize,
}

// SAFETY: plain views; whoever makes one promises that the memory outlives and admits its use by the kernels'
// threads.
unsafe impl Send for RawMat {}
// SAFETY: as above.
unsafe impl Sync for RawMat {}
// SAFETY: as above; kernels give each row part to one chunk.
unsafe impl Send for RawMatMut {}
// SAFETY: as above.
unsafe impl Sync for RawMatMut {}

impl RawMat {
    /// Whether there are no elements; a matrix without rows may have more columns than memory, and the other
    /// way round.
    fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0
    }

    /// A view of memory.
    ///
    /// # Safety
    /// As long as the view or a copy of it is handed to kernels, `[rows, cols]` at `pitch` is readable,
    /// initialised, aligned to its element, and not written meanwhile (a kernel's own output may be the
    /// same memory where the kernel says so).
    pub unsafe fn new(ptr: *const u8, dtype: Float, rows: usize, cols: usize, pitch: usize) -> RawMat {
        RawMat { ptr, dtype, rows, cols, pitch }
    }

    /// A contiguous f32 view of a slice, which must stay borrowed while it is used (tests and benches).
    ///
    /// # Safety
    /// As [`RawMat::new`].
    pub unsafe fn of(v: &[f32], cols: usize) -> RawMat {
        RawMat { ptr: v.as_ptr().cast(), dtype: Float::F32, rows: v.len() / cols.max(1), cols, pitch: cols }
    }

    #[inline(always)]
    fn row(&self, r: usize) -> *const u8 {
        debug_assert!(r < self.rows);
        self.ptr.wrapping_add(r * self.pitch * self.dtype.bytes())
    }

    /// Copies `n` elements of row `r` from column `c` to f32.
    ///
    /// # Safety
    /// In range, and `out` has room for n.
    #[inline(always)]
    unsafe fn widen<V: Lanes>(&self, r: usize, c: usize, n: usize, out: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { widen::<V>(self.row(r).add(c * self.dtype.bytes()), self.dtype, n, out) }
    }
}

impl RawMatMut {
    /// A view of memory.
    ///
    /// # Safety
    /// As long as the view or a copy of it is handed to kernels, `[rows, cols]` at `pitch` is writable,
    /// initialised and aligned to its element; no two kernels run on it at a time, and nothing else uses it
    /// while one does.
    pub unsafe fn new(ptr: *mut u8, dtype: Float, rows: usize, cols: usize, pitch: usize) -> RawMatMut {
        RawMatMut { ptr, dtype, rows, cols, pitch }
    }

    /// A contiguous f32 view of a slice, which must stay borrowed while it is used (tests and benches).
    ///
    /// # Safety
    /// As [`RawMatMut::new`].
    pub unsafe fn of(v: &mut [f32], cols: usize) -> RawMatMut {
        let rows = v.len() / cols.max(1);
        RawMatMut { ptr: v.as_mut_ptr().cast(), dtype: Float::F32, rows, cols, pitch: cols }
    }

    /// Some of its rows, which it has.
    fn row_range(&self, rows: std::ops::Range<usize>) -> RawMatMut {
        debug_assert!(rows.end <= self.rows);
        RawMatMut { ptr: self.row(rows.start), rows: rows.len(), ..*self }
    }

    /// The same memory, to read.
    pub(crate) fn as_raw(&self) -> RawMat {
        RawMat { ptr: self.ptr, dtype: self.dtype, rows: self.rows, cols: self.cols, pitch: self.pitch }
    }

    #[inline(always)]
    fn row(&self, r: usize) -> *mut u8 {
        debug_assert!(r < self.rows);
        self.ptr.wrapping_add(r * self.pitch * self.dtype.bytes())
    }

    /// Rounds `n` values into row `r` from column `c`.
    ///
    /// # Safety
    /// In range, and `v` has n values.
    #[inline(always)]
    unsafe fn narrow<V: Lanes>(&self, r: usize, c: usize, n: usize, v: *const f32) {
        // SAFETY: the caller's promise.
        unsafe { narrow::<V>(v, n, self.row(r).add(c * self.dtype.bytes()), self.dtype) }
    }
}

/// Copies `n` values, most often few: a call would cost more than the copy.
///
/// # Safety
/// Both have `n` elements; they do not overlap.
#[inline(always)]
unsafe fn copy<V: Lanes>(from: *const f32, to: *mut f32, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let whole = n / 8 * 8;
        for i in (0..whole).step_by(8) {
            V::load(from.add(i)).store(to.add(i));
        }
        if whole < n {
            std::ptr::copy_nonoverlapping(from.add(whole), to.add(whole), n - whole);
        }
    }
}

/// Widens `n` elements of `dtype` at `p` into `out`.
///
/// # Safety
/// Both have `n` elements; they do not overlap.
#[inline(always)]
unsafe fn widen<V: Lanes>(p: *const u8, dtype: Float, n: usize, out: *mut f32) {
    // SAFETY: the caller's promise; the tail goes through arrays of 8.
    unsafe {
        match dtype {
            Float::F32 => copy::<V>(p.cast(), out, n),
            Float::F16 => widen16::<V, false>(p.cast(), n, out),
            Float::Bf16 => widen16::<V, true>(p.cast(), n, out),
        }
    }
}

/// Of bfloat16 or binary16. No closures here or in [`narrow16`]: the optimiser may leave them as calls, with
/// every instruction in them a call, too (a closure has not the target features of the kernel around it).
#[inline(always)]
unsafe fn widen16<V: Lanes, const BRAIN: bool>(p: *const u16, n: usize, out: *mut f32) {
    // SAFETY: as `widen`.
    unsafe {
        let mut i = 0;
        while i + 8 <= n {
            eight::<V, BRAIN>(p.add(i)).store(out.add(i));
            i += 8;
        }
        if i < n {
            let (mut a, mut b) = ([0u16; 8], [0f32; 8]);
            std::ptr::copy_nonoverlapping(p.add(i), a.as_mut_ptr(), n - i);
            eight::<V, BRAIN>(a.as_ptr()).store(b.as_mut_ptr());
            std::ptr::copy_nonoverlapping(b.as_ptr(), out.add(i), n - i);
        }
    }
}

#[inline(always)]
unsafe fn eight<V: Lanes, const BRAIN: bool>(p: *const u16) -> V {
    // SAFETY: 8 elements, the caller's promise.
    unsafe { if BRAIN { V::load_bf16(p) } else { V::load_f16(p) } }
}

/// Rounds `n` values to `dtype` at `p`.
///
/// # Safety
/// Both have `n` elements; they do not overlap.
#[inline(always)]
unsafe fn narrow<V: Lanes>(v: *const f32, n: usize, p: *mut u8, dtype: Float) {
    // SAFETY: the caller's promise; the tail goes through arrays of 8.
    unsafe {
        match dtype {
            Float::F32 => copy::<V>(v, p.cast(), n),
            Float::F16 => narrow16::<V, false>(v, n, p.cast()),
            Float::Bf16 => narrow16::<V, true>(v, n, p.cast()),
        }
    }
}

#[inline(always)]
unsafe fn narrow16<V: Lanes, const BRAIN: bool>(v: *const f32, n: usize, p: *mut u16) {
    // SAFETY: as `narrow`.
    unsafe {
        let mut i = 0;
        while i + 8 <= n {
            store_eight::<V, BRAIN>(V::load(v.add(i)), p.add(i));
            i += 8;
        }
        if i < n {
            let (mut a, mut b) = ([0f32; 8], [0u16; 8]);
            std::ptr::copy_nonoverlapping(v.add(i), a.as_mut_ptr(), n - i);
            store_eight::<V, BRAIN>(V::load(a.as_ptr()), b.as_mut_ptr());
            std::ptr::copy_nonoverlapping(b.as_ptr(), p.add(i), n - i);
        }
    }
}

#[inline(always)]
unsafe fn store_eight<V: Lanes, const BRAIN: bool>(v: V, p: *mut u16) {
    // SAFETY: 8 elements, the caller's promise.
    unsafe { if BRAIN { v.store_bf16(p) } else { v.store_f16(p) } }
}

/// Rounds values in place to what `dtype` can hold.
#[inline(always)]
fn round_in_place<V: Lanes>(v: &mut [f32], dtype: Float) {
    if dtype == Float::F32 {
        return;
    }
    let mut h = [0u16; 16];
    for part in v.chunks_mut(16) {
        // SAFETY: at most 16 elements each way.
        unsafe {
            narrow::<V>(part.as_ptr(), part.len(), h.as_mut_ptr().cast(), dtype);
            widen::<V>(h.as_ptr().cast(), dtype, part.len(), part.as_mut_ptr());
        }
    }
}

/// An elementwise function (`engraft_core::math` has the formulas).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x`.
    Identity,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `x / (1 + e^-x)`.
    Silu,
    /// `0.5 x (1 + erf(x / sqrt 2))`.
    GeluErf,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// `x sigmoid(1.702 x)`.
    QuickGelu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `ln(1 + e^x)`.
    Softplus,
}

impl Activation {
    /// Applies it to all values.
    #[inline(always)]
    fn apply<M: MulAdd>(self, v: &mut [f32]) {
        #[inline(always)]
        fn each(v: &mut [f32], f: impl Fn(f32) -> f32) {
            v.iter_mut().for_each(|x| *x = f(*x));
        }
        match self {
            Activation::Identity => {}
            Activation::Relu => each(v, math::relu),
            Activation::ReluSquared => each(v, math::relu_squared),
            Activation::Silu => each(v, math::silu::<M>),
            Activation::GeluErf => each(v, math::gelu_erf::<M>),
            Activation::GeluTanh => each(v, math::gelu_tanh::<M>),
            Activation::QuickGelu => each(v, math::quick_gelu::<M>),
            Activation::Tanh => each(v, math::tanh::<M>),
            Activation::Sigmoid => each(v, math::sigmoid::<M>),
            Activation::Softplus => each(v, math::softplus::<M>),
        }
    }
}

/// Two sizes of operands that go together.
fn same(op: &'static str, what: &'static str, got: usize, want: usize) -> Result<()> {
    if got == want { Ok(()) } else { Err(Error::Shape { op, what, got, want }) }
}

/// A size that is the product of two others, which may be too large for a number.
fn check_factors(op: &'static str, what: &'static str, got: usize, a: usize, b: usize) -> Result<()> {
    match a.checked_mul(b) {
        Some(want) => same(op, what, got, want),
        None => Err(Error::Shape { op, what, got, want: usize::MAX }),
    }
}

/// Two matrices of one shape.
fn same_shape(op: &'static str, got: RawMat, want: RawMat) -> Result<()> {
    same(op, "rows", got.rows, want.rows)?;
    same(op, "columns", got.cols, want.cols)
}

/// Parts of `width` columns, without a rest.
fn whole_parts(op: &'static str, cols: usize, width: usize) -> Result<()> {
    match cols.checked_rem(width) {
        Some(rest) => same(op, "columns beyond whole parts", rest, 0),
        None => Err(Error::Shape { op, what: "columns of a part", got: 0, want: 1 }),
    }
}

/// Splits `0..n` into chunks of `step` and runs `f(range, thread)` over the pool.
fn over(
    machine: &Machine,
    n: usize,
    step: usize,
    f: impl Fn(std::ops::Range<usize>, usize) + Sync,
) -> Result<()> {
    let step = step.max(1);
    machine.pool.run(n.div_ceil(step), |c, t| f(c * step..((c + 1) * step).min(n), t))
}

/// `f` over `rows` rows of `cols` columns, about `values` values at a time: a row of a small model is done in
/// less time than a thread needs to wake. `f` gets scratch of its thread's own, `scratch` padded rows.
fn over_rows(
    machine: &Machine,
    [rows, cols]: [usize; 2],
    values: usize,
    scratch: usize,
    f: impl Fn(std::ops::Range<usize>, Floats) + Sync,
) -> Result<()> {
    let per_thread = scratch * cols.next_multiple_of(16);
    machine.with_scratch(per_thread * machine.pool.threads(), |floats| {
        over(machine, rows, (values / cols.max(1)).clamp(1, 64), |range, thread| {
            // SAFETY: a part of what was asked for; each thread has its own.
            f(range, Floats(unsafe { floats.at(thread * per_thread) }));
        })
    })
}
