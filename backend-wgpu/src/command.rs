//! One dispatch: a kernel, what it binds, its parameters, its grid.
//!
//! Ops describe a [`Call`]; the stream turns it into a [`Dispatch`] (bind groups are cached by the buffers
//! they hold) and encodes or captures it. Offsets and sizes of views are parameters: a binding spans its
//! whole buffer, or, where a buffer is larger than the device lets a binding be, the window that the
//! view needs.

use crate::WgpuMem;
use crate::device::Gpu;
use crate::limits::{Limits, MIB};
use crate::pipeline::Pipeline;
use engraft_core::mem::{BufRef, Float, KvCode, KvFormat, MatRef};
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use engraft_shaders::{Elem, Kernel, KvElem, PARAM_WORDS};
use std::collections::HashMap;
use std::sync::Arc;

/// Bindings of a kernel at most.
const BINDINGS: usize = 8;
/// Offsets of bindings are multiples of this everywhere.
const ALIGN: u64 = 256;

/// A buffer to bind: all of it, or a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot<'a> {
    mem: &'a WgpuMem,
    offset: u64,
    size: u64,
}

/// A view's place: what to bind and where its first element lies in that binding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub slot: Slot<'a>,
    pub offset: u32,
}

impl<'a> Slot<'a> {
    /// The whole buffer.
    pub fn whole(limits: &Limits, mem: &'a WgpuMem, what: &str) -> Result<Self> {
        let size = mem.buffer().size();
        if size > limits.binding {
            return Err(too_large(limits, size, what));
        }
        Ok(Self { mem, offset: 0, size })
    }
}

fn too_large(limits: &Limits, size: u64, what: &str) -> Error {
    let mib = |n: u64| n.div_ceil(MIB);
    Error::Unsupported {
        op: format!("binding {} MiB of {what}", mib(size)),
        backend: "wgpu".into(),
        reason: format!("the adapter's max_storage_buffer_binding_size is {} MiB", mib(limits.binding)),
    }
}

/// Binds `count` elements of `size` bytes from element `first` on.
fn place<'a>(
    limits: &Limits,
    mem: &'a WgpuMem,
    first: usize,
    count: usize,
    size: usize,
    what: &str,
) -> Result<Place<'a>> {
    let whole = mem.buffer().size();
    if whole <= limits.binding {
        return Ok(Place { slot: Slot { mem, offset: 0, size: whole }, offset: word(first)? });
    }
    if count == 0 {
        // Nothing is read or written; a window at the buffer's end would reach beyond it.
        return Ok(Place { slot: Slot { mem, offset: 0, size: 16 }, offset: 0 });
    }
    let (from, to, inside) = window(first, count, size, whole);
    if to - from > limits.binding {
        return Err(too_large(limits, to - from, what));
    }
    Ok(Place { slot: Slot { mem, offset: from, size: (to - from).max(16) }, offset: word(inside)? })
}

/// Bytes `from..to` to bind for `count` elements of `size` bytes from element `first` on, and where among the
/// elements of that window the first one lies: windows begin at a multiple of [`ALIGN`] and at a whole
/// element.
fn window(first: usize, count: usize, size: usize, whole: u64) -> (u64, u64, usize) {
    let align = ALIGN as usize;
    let step = (1..=align).find(|n| (n * size).is_multiple_of(align)).unwrap_or(align);
    let inside = first % step;
    let to = (((first + count) * size) as u64).next_multiple_of(16).min(whole);
    (((first - inside) * size) as u64, to, inside)
}

/// Binds a matrix.
pub(crate) fn matrix<'a>(limits: &Limits, m: MatRef<'a, WgpuMem>, what: &str) -> Result<Place<'a>> {
    let count = if m.rows() == 0 { 0 } else { (m.rows() - 1) * m.pitch() + m.cols() };
    place(limits, m.mem(), m.offset(), count, m.dtype().bytes(), what)
}

/// Binds a buffer of typed elements; the offset is in elements.
pub(crate) fn buffer<'a, T>(limits: &Limits, b: BufRef<'a, WgpuMem, T>, what: &str) -> Result<Place<'a>> {
    place(limits, b.mem(), b.offset(), b.len(), size_of::<T>(), what)
}

/// A number as a parameter.
pub(crate) fn word(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::internal(format!("{n} does not fit a kernel's parameter")))
}

/// A shader's name of an element type.
pub(crate) fn elem(dtype: Float) -> Elem {
    match dtype {
        Float::F32 => Elem::F32,
        Float::F16 => Elem::F16,
        Float::Bf16 => Elem::Bf16,
    }
}

/// A shader's name of what pages keep.
pub(crate) fn kv_elem(format: KvFormat) -> KvElem {
    match format {
        KvFormat::Plain(dtype) => elem(dtype).into(),
        KvFormat::Coded(KvCode::Int8) => KvElem::Int8,
        KvFormat::Coded(KvCode::Fp8) => KvElem::Fp8,
    }
}

/// The number by which shaders know an activation (`act_of` in `math.wgsl`).
pub(crate) fn activation(act: Act) -> Result<u32> {
    Ok(match act {
        Act::Relu => 0,
        Act::Silu => 1,
        Act::Gelu => 2,
        Act::GeluTanh => 3,
        Act::QuickGelu => 4,
        Act::Tanh => 5,
        Act::ReluSquared => 6,
        Act::Sigmoid => 7,
        Act::Softplus => 8,
        other => {
            return Err(Error::Unsupported {
                op: format!("activation {other:?}"),
                backend: "wgpu".into(),
                reason: "no kernel".into(),
            });
        }
    })
}

/// What an op wants done.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub kernel: Kernel,
    pub slots: &'a [Slot<'a>],
    /// Parameters after the leading zero.
    pub words: &'a [u32],
    /// Workgroups.
    pub grid: [u32; 3],
}

/// Invocations of a workgroup of kernels that go over elements.
pub(crate) const FLAT: usize = 256;

/// Workgroups of `size` for `total` items; kernels stride over what is beyond the limit.
pub(crate) fn groups(limits: &Limits, total: usize, size: usize) -> [u32; 3] {
    [total.div_ceil(size).clamp(1, limits.groups as usize) as u32, 1, 1]
}

/// A call with everything bound.
#[derive(Debug, Clone)]
pub(crate) struct Dispatch {
    pub pipeline: Arc<Pipeline>,
    pub group: wgpu::BindGroup,
    pub words: [u32; PARAM_WORDS],
    pub grid: [u32; 3],
    /// Work of one of its workgroups (`budget`).
    pub each: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct GroupKey {
    kernel: Kernel,
    /// Buffer, offset, size.
    bound: [(u64, u64, u64); BINDINGS],
}

/// The places of a key. One that a key had no place for would not tell two groups apart: the second call
/// would run with the first one's memory.
fn bound(slots: impl ExactSizeIterator<Item = (u64, u64, u64)>) -> Result<[(u64, u64, u64); BINDINGS]> {
    if slots.len() > BINDINGS {
        return Err(Error::internal(format!("a call has {} bindings; a key {BINDINGS}", slots.len())));
    }
    let mut all = [(0, 0, 0); BINDINGS];
    all.iter_mut().zip(slots).for_each(|(place, slot)| *place = slot);
    Ok(all)
}

/// Bind groups by what they hold.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    made: HashMap<GroupKey, wgpu::BindGroup>,
    dead: Vec<u64>,
}

impl Groups {
    /// Binds a call of a kernel that is compiled.
    pub fn dispatch(&mut self, gpu: &Gpu, pipeline: Arc<Pipeline>, call: &Call<'_>) -> Result<Dispatch> {
        if call.words.len() + 1 != pipeline.words || call.slots.len() != pipeline.bindings.len() {
            return Err(Error::internal(format!(
                "{}: {} parameters and {} bindings given",
                call.kernel.label(),
                call.words.len(),
                call.slots.len()
            )));
        }
        let mut words = [0; PARAM_WORDS];
        words[1..=call.words.len()].copy_from_slice(call.words);
        let group = self.group(gpu, &pipeline, call)?;
        Ok(Dispatch { pipeline, group, words, grid: call.grid, each: 1 })
    }

    fn group(&mut self, gpu: &Gpu, pipeline: &Pipeline, call: &Call<'_>) -> Result<wgpu::BindGroup> {
        let bound = bound(call.slots.iter().map(|slot| (slot.mem.id(), slot.offset, slot.size)))?;
        let key = GroupKey { kernel: pipeline.kernel, bound };
        if let Some(made) = self.made.get(&key) {
            return Ok(made.clone());
        }
        let entries: Vec<_> = call
            .slots
            .iter()
            .enumerate()
            .map(|(i, slot)| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: slot.mem.buffer(),
                    offset: slot.offset,
                    size: wgpu::BufferSize::new(slot.size),
                }),
            })
            .collect();
        let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        });
        gpu.tally.count(|c| c.made += 1);
        self.made.insert(key, group.clone());
        Ok(group)
    }

    /// Forgets groups that hold buffers which are gone.
    pub fn bury(&mut self, gpu: &Gpu) {
        gpu.graveyard.drain_into(&mut self.dead);
        if !self.dead.is_empty() {
            let dead = std::mem::take(&mut self.dead);
            self.made.retain(|key, _| !key.bound.iter().any(|b| dead.contains(&b.0)));
            self.dead = dead;
            self.dead.clear();
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::{ALIGN, BINDINGS, bound, place, window};
    use crate::limits::Limits;
    use engraft_core::backend::Backend;

    #[test]
    fn a_key_names_every_binding_or_there_is_none() {
        let slots = |n: usize| vec![(7, 0, 16); n].into_iter();
        assert_eq!(bound(slots(BINDINGS)).expect("as many as there are places"), [(7, 0, 16); BINDINGS]);
        assert!(bound(slots(BINDINGS + 1)).is_err());
    }

    /// An empty view at the end of a buffer larger than a binding binds bytes that are there.
    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn empty_views_bind_inside_their_buffer() {
        let gpu = crate::tests::opened();
        let limits = Limits { binding: 512, ..*gpu.limits() };
        let mem = gpu.alloc(1024).expect("1 KiB");
        for (first, count) in [(256, 0), (0, 0), (192, 64)] {
            let placed = place(&limits, &mem, first, count, 4, "words").expect("a window");
            assert!(placed.slot.offset + placed.slot.size <= 1024, "{count} words from {first} on");
        }
    }

    /// Elements whose size divides the alignment, and rows of the sampling table, of which it is no multiple.
    #[test]
    fn windows_begin_at_whole_elements() {
        let whole = 1 << 20;
        for size in [1, 2, 4, 8, 16, 48] {
            for first in [0, 1, 5, 15, 16, 17, 63, 64, 65, 1000, 4097] {
                let (from, to, inside) = window(first, 3, size, whole);
                assert_eq!(from % ALIGN, 0, "{first} of {size} bytes");
                assert_eq!(from as usize + inside * size, first * size, "{first} of {size} bytes");
                assert!(to as usize >= (first + 3) * size && to % 16 == 0, "{first} of {size} bytes");
                assert!(inside * size < 16 * ALIGN as usize, "{first} of {size} bytes: a window too wide");
            }
        }
        assert_eq!(window(30, 2, 48, 32 * 48), (768, 1536, 14));
    }
}
