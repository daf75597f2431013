//! The backend through its contract: device words of any value, operands at the edge of their memory,
//! transfers.

mod edges;
mod memory;
mod stream;
mod words;

use crate::testing::stored;
use bytemuck::Pod;
use engraft_core::Result;
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::{
    Buf, BufRef, Device, DeviceMem, Float, HostWeight, KvLayout, Mat, Slab, WeightFormat, WeightInfo,
    WeightUse,
};
use engraft_core::ops::{Checked, Op, Run};
use engraft_cpu::{Cpu, CpuConfig, CpuMem, CpuStream, CpuWeight, Isa};
use std::ptr::NonNull;
use std::sync::Arc;

/// A backend with a stream.
pub struct Bench {
    cpu: Arc<Cpu>,
    stream: CpuStream,
    /// Whether memory ends at a page that faults.
    guarded: bool,
}

impl Bench {
    pub fn new(isa: Isa, guarded: bool) -> Self {
        let cpu = Cpu::new(CpuConfig { threads: 2, isa: Some(isa), ..CpuConfig::default() }).unwrap();
        let stream = cpu.stream().unwrap();
        Self { cpu, stream, guarded }
    }

    pub fn run<'o>(&mut self, op: impl Into<Op<'o, Cpu>>) -> Result<()> {
        self.stream.run(Checked::new(op)?)
    }

    /// Memory that holds these bytes.
    pub fn memory(&self, bytes: &[u8]) -> CpuMem {
        if self.guarded {
            return guarded(bytes);
        }
        let mem = CpuMem::new(bytes.len()).unwrap();
        // SAFETY: as many bytes, not used elsewhere yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), mem.start(), bytes.len()) };
        mem
    }

    pub fn buf<T: Pod>(&self, values: &[T]) -> Buf<CpuMem, T> {
        Buf::new(self.memory(bytemuck::cast_slice(values)), values.len()).unwrap()
    }

    pub fn mat(&self, values: &[f32], cols: usize, dtype: Float) -> Mat<CpuMem> {
        Mat::new(self.memory(&stored(values, dtype)), values.len() / cols, cols, dtype).unwrap()
    }

    /// A weight from f32 rows, or from bytes of another format.
    pub fn weight(
        &self,
        bytes: &[u8],
        (rows, cols): (usize, usize),
        format: WeightFormat,
        used_for: WeightUse,
    ) -> CpuWeight {
        let info = WeightInfo { name: "w".into(), rows, cols, format, used_for };
        self.cpu.prepare_weight(HostWeight::new(info, vec![bytes.into()]).unwrap(), &[]).unwrap()
    }

    pub fn f32s(&self, values: &[f32], cols: usize, used_for: WeightUse) -> CpuWeight {
        let shape = (values.len() / cols, cols);
        self.weight(bytemuck::cast_slice(values), shape, WeightFormat::Plain(Float::F32), used_for)
    }

    pub fn slab(&self, layout: KvLayout) -> Slab<CpuMem> {
        let (k, v) = Cpu::kv_bytes(&layout);
        Slab::new::<Cpu>(self.memory(&vec![0; k]), self.memory(&vec![0; v]), layout).unwrap()
    }

    pub fn read<T: Pod>(&mut self, buf: BufRef<'_, CpuMem, T>) -> Vec<T> {
        let mut out = vec![T::zeroed(); buf.len()];
        let ticket = self.stream.download(buf).unwrap();
        block_on(self.stream.collect(ticket, &mut out)).unwrap();
        out
    }

    pub fn rows(&mut self, mat: &Mat<CpuMem>) -> Vec<f32> {
        self.read(mat.view(mat.rows()).unwrap().as_f32().unwrap())
    }
}

/// Bytes of a matrix of any type.
pub fn bytes_of(mat: &Mat<CpuMem>) -> Vec<u8> {
    let view = mat.view(mat.rows()).unwrap();
    let mem = view.mem();
    // SAFETY: the whole allocation, which nothing writes while the view is borrowed.
    unsafe { std::slice::from_raw_parts(mem.start(), mem.bytes()) }.to_vec()
}

/// A multiple of every page size.
const GUARD: usize = 1 << 16;

/// Memory whose last word lies in front of a page that may not be touched.
fn guarded(bytes: &[u8]) -> CpuMem {
    let room = bytes.len().next_multiple_of(GUARD);
    let mut map = memmap2::MmapMut::map_anon(room + GUARD).unwrap();
    let guard = map.as_mut_ptr().wrapping_add(room);
    forbid(guard);
    let start = guard.wrapping_sub(bytes.len().next_multiple_of(4));
    // SAFETY: the bytes in front of the guard belong to the map, which the memory alone keeps.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
        CpuMem::from_raw(NonNull::new(start).unwrap(), bytes.len(), Box::new(map))
    }
}

#[cfg(unix)]
fn forbid(page: *mut u8) {
    unsafe extern "C" {
        fn mprotect(start: *mut std::ffi::c_void, bytes: usize, allowed: i32) -> i32;
    }
    // SAFETY: whole pages of a map that `guarded` owns and never looks at.
    assert_eq!(unsafe { mprotect(page.cast(), GUARD, 0) }, 0);
}

#[cfg(not(unix))]
fn forbid(_: *mut u8) {}
