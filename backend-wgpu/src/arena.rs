//! Parameters where they cannot be immediates (browsers): one slot of a uniform buffer per dispatch.

use crate::device::Gpu;

/// Parameters of the dispatches of one submit, where there are no immediates.
#[derive(Debug)]
pub(crate) struct Arena {
    buffer: wgpu::Buffer,
    pub group: wgpu::BindGroup,
    host: Vec<u8>,
    /// What the buffer holds.
    there: Vec<u8>,
}

impl Arena {
    const STRIDE: usize = 256;
    const SLOTS: usize = 1024;

    pub fn new(gpu: &Gpu) -> Self {
        let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("parameters"),
            size: (Self::STRIDE * Self::SLOTS) as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("parameters"),
            layout: &crate::pipeline::arena_layout(&gpu.device),
            entries: &[wgpu::BindGroupEntry {
                binding: 0,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: &buffer,
                    offset: 0,
                    size: wgpu::BufferSize::new(Self::STRIDE as u64),
                }),
            }],
        });
        let room = || Vec::with_capacity(Self::STRIDE * Self::SLOTS);
        Self { buffer, group, host: room(), there: room() }
    }

    /// Whether no dispatch has room but the mark of the end.
    pub fn is_full(&self) -> bool {
        self.host.len() >= Self::STRIDE * (Self::SLOTS - 1)
    }

    /// Keeps a dispatch's parameters; where they will lie.
    pub fn push(&mut self, words: &[u32]) -> u32 {
        let at = self.host.len();
        self.host.extend_from_slice(bytemuck::cast_slice(words));
        self.host.resize(at + Self::STRIDE, 0);
        at as u32
    }

    /// Writes what differs from what lies there: steps repeat themselves but for a few words. Bytes written.
    pub fn flush(&mut self, queue: &wgpu::Queue) -> u64 {
        let same = |(at, slot): &(usize, &[u8])| self.there.get(*at..at + Self::STRIDE) == Some(*slot);
        let mut slots =
            self.host.chunks_exact(Self::STRIDE).enumerate().map(|(i, s)| (i * Self::STRIDE, s)).peekable();
        let mut written = 0;
        while let Some((from, slot)) = slots.next() {
            if same(&(from, slot)) {
                continue;
            }
            // Neighbours go together.
            let mut to = from + Self::STRIDE;
            while slots.next_if(|next| !same(next)).is_some() {
                to += Self::STRIDE;
            }
            queue.write_buffer(&self.buffer, from as u64, &self.host[from..to]);
            written += (to - from) as u64;
        }
        let known = self.there.len().max(self.host.len());
        self.there.resize(known, 0);
        self.there[..self.host.len()].copy_from_slice(&self.host);
        self.host.clear();
        written
    }
}
