//! Prepared weights: panels of 32 outputs in planes, split into bindings, and vectors.
//!
//! The layout is the shaders' (`wgsl/packed.wgsl`): `[panel][unit along k][output]`, scales of blocks in a
//! plane of their own. Gate weights alternate gate and up panels; experts have panels of their own, one after
//! the other. A weight that is larger than a binding may be becomes several chunks of whole panels, each with
//! a dispatch of its own.

use crate::WgpuMem;
use crate::device::{Gpu, Uploads};
use crate::staging::Plane;
use engraft_core::mem::{
    Block, DeviceMem, Float, GroupBits, Groups, HostWeight, Stored, Weight, WeightFormat, WeightInfo,
    WeightUse,
};
use engraft_core::numerics::{LEAVES, Share, whole_groups};
use engraft_core::{Error, Result, quant};
use engraft_shaders::{PANEL, Packing};
use std::borrow::Cow;

/// A prepared weight.
#[derive(Debug)]
pub struct WgpuWeight {
    info: WeightInfo,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    Panels(Panels),
    /// f32 values: norms and biases.
    Vector(WgpuMem),
}

impl Weight for WgpuWeight {
    fn info(&self) -> &WeightInfo {
        &self.info
    }
    fn device_bytes(&self) -> usize {
        match &self.storage {
            Storage::Vector(mem) => mem.bytes(),
            Storage::Panels(panels) => {
                let of =
                    |chunk: &Chunk| chunk.codes.bytes() + chunk.scales.as_ref().map_or(0, DeviceMem::bytes);
                panels.chunks.iter().map(of).sum::<usize>()
                    + panels.leaves.as_ref().map_or(0, DeviceMem::bytes)
            }
        }
    }
}

/// A matrix in panels.
#[derive(Debug)]
pub(crate) struct Panels {
    /// Outputs; of a gate weight those of both halves.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Grain of the sum's leaves.
    pub grain: usize,
    /// Grains of a group of leaves' ([`whole_groups`]).
    pub group: usize,
    /// Of a rank's part of a sum its leaves instead.
    pub leaves: Option<WgpuMem>,
    /// Format.
    pub packing: Packing,
    /// Values along k that share a scale.
    pub block: usize,
    /// Gate and up panels alternate.
    pub gate: bool,
    /// Experts, where outputs are theirs one after the other; else 0.
    pub experts: usize,
    /// In order.
    pub chunks: Vec<Chunk>,
}

/// Whole panels in one pair of bindings.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub codes: WgpuMem,
    /// None for plain formats.
    pub scales: Option<WgpuMem>,
    /// First panel, a gate panel and its up panel counted once.
    pub first: usize,
    /// Panels.
    pub count: usize,
}

impl Panels {
    /// Outputs side by side: all, those of the gate, or those of one expert.
    pub fn outputs(&self) -> usize {
        if self.gate { self.rows / 2 } else { self.rows / self.experts.max(1) }
    }

    /// Panels of one expert, or of all outputs.
    pub(crate) fn per_expert(&self) -> usize {
        self.outputs().div_ceil(PANEL)
    }

    /// Outputs of a chunk (of each half); not of experts.
    pub fn range(&self, chunk: &Chunk) -> std::ops::Range<usize> {
        chunk.first * PANEL..((chunk.first + chunk.count) * PANEL).min(self.outputs())
    }

    /// Rows of the host weight in panel `panel`, for half `half` of a gate weight.
    fn rows_of(&self, panel: usize, half: usize) -> std::ops::Range<usize> {
        let outputs = self.outputs();
        let (expert, within) = (panel / self.per_expert().max(1), panel % self.per_expert().max(1));
        let base = (expert + half) * outputs;
        base + within * PANEL..base + ((within + 1) * PANEL).min(outputs)
    }
}

impl WgpuWeight {
    pub(crate) fn panels(&self) -> Result<&Panels> {
        match &self.storage {
            Storage::Panels(panels) => Ok(panels),
            Storage::Vector(_) => Err(Error::internal(format!("`{}` is packed as a vector", self.info.name))),
        }
    }

    pub(crate) fn vector(&self) -> Result<&WgpuMem> {
        match &self.storage {
            Storage::Vector(mem) => Ok(mem),
            Storage::Panels(_) => Err(Error::internal(format!("`{}` is packed in panels", self.info.name))),
        }
    }
}

/// How a format is stored here, and how many values of a row of `cols` share a scale; none: no shader reads
/// it.
fn packing(format: WeightFormat, cols: usize) -> Option<(Packing, usize)> {
    Some(match format {
        WeightFormat::Plain(Float::F32) => (Packing::F32, Block::VALUES),
        WeightFormat::Plain(Float::F16) => (Packing::F16, Block::VALUES),
        WeightFormat::Plain(Float::Bf16) => (Packing::Bf16, Block::VALUES),
        WeightFormat::Block(block) => {
            let packing = match block {
                Block::Q4_0 => Packing::Q4_0,
                Block::Q4_1 => Packing::Q4_1,
                Block::Q5_0 => Packing::Q5_0,
                Block::Q5_1 => Packing::Q5_1,
                Block::Q8_0 => Packing::Q8_0,
                Block::Q2K => Packing::Q2K,
                Block::Q3K => Packing::Q3K,
                Block::Q4K => Packing::Q4K,
                Block::Q5K => Packing::Q5K,
                Block::Q6K => Packing::Q6K,
                Block::Iq4Nl | Block::Iq4Xs => Packing::Iq4,
            };
            (packing, if block.is_table() { Block::VALUES } else { block.values() })
        }
        WeightFormat::W8A8 => (Packing::W8A8, Block::VALUES),
        WeightFormat::Group(format) => {
            let packing = match (format.bits, format.asymmetric) {
                (GroupBits::Eight, false) => Packing::Q8_0,
                (GroupBits::Eight, true) => Packing::Q8_1,
                (GroupBits::Four, false) => Packing::Q4_0,
                (GroupBits::Four, true) => Packing::Q4_1,
                (GroupBits::E4m3, _) => Packing::E4m3,
                (GroupBits::E5m2, _) => Packing::E5m2,
                (GroupBits::E3m2, _) => Packing::E3m2,
                (GroupBits::E2m1 | GroupBits::Mx, _) => Packing::E2m1,
                (GroupBits::Nf4, _) => Packing::Nf4,
            };
            let size = format.group(cols);
            (packing, if format.size == 0 { size.next_multiple_of(Block::VALUES) } else { size })
        }
        _ => return None,
    })
}

/// How shaders read a format, if one does.
pub(crate) fn packing_of(format: WeightFormat) -> Option<Packing> {
    packing(format, Block::LARGE).map(|(packing, _)| packing)
}

/// Why no shader reads a format, if none does.
pub(crate) fn unreadable(format: WeightFormat) -> Option<String> {
    packing_of(format).is_none().then(|| format!("no shader reads {format}"))
}

/// A device, and what writes to its buffers.
type To<'a> = (&'a Gpu, &'a dyn Uploads);

fn vector((gpu, queue): To<'_>, info: &WeightInfo, parts: &[Cow<'_, [u8]>]) -> Result<Storage> {
    let stored = match info.format {
        WeightFormat::Plain(float) => Stored::from(float),
        WeightFormat::Block(block) => Stored::Block(block),
        other => return Err(Error::internal(format!("a vector in {other}"))),
    };
    let mut values = vec![0.0f32; info.cols];
    quant::plain::to_f32(stored, &parts.concat(), &mut values)?;
    Ok(Storage::Vector(gpu.alloc_filled(&info.name, bytemuck::cast_slice(&values), queue)?))
}

/// Packs a host weight for its use.
pub(crate) fn prepare(to: To<'_>, weight: HostWeight<'_>) -> Result<WgpuWeight> {
    let (info, parts) = weight.into_parts();
    let matrix = |layout| panels(to, &info, &parts, layout);
    let storage = match info.used_for {
        WeightUse::Vector => vector(to, &info, &parts)?,
        WeightUse::LinearShare { share } => {
            let leaves = leaves(to, &info, share)?;
            Storage::Panels(Panels { leaves: Some(leaves), ..matrix((1, false, 0))? })
        }
        WeightUse::Linear { grain, group } => {
            let panels = matrix((grain, false, 0))?;
            Storage::Panels(Panels { group: whole_groups(panels.cols, panels.grain, group), ..panels })
        }
        WeightUse::GatedLinear { grain } => Storage::Panels(matrix((grain, true, 0))?),
        WeightUse::Experts { count, grain } => Storage::Panels(matrix((grain, false, count.max(1)))?),
        WeightUse::ExpertsShare { count, share } => {
            let leaves = leaves(to, &info, share)?;
            Storage::Panels(Panels { leaves: Some(leaves), ..matrix((1, false, count.max(1)))? })
        }
        WeightUse::Embedding | WeightUse::EmbeddingAndLinear => Storage::Panels(matrix((1, false, 0))?),
    };
    Ok(WgpuWeight { info, storage })
}

fn panels(
    (gpu, queue): To<'_>,
    info: &WeightInfo,
    parts: &[Cow<'_, [u8]>],
    (grain, gate, experts): (usize, bool, usize),
) -> Result<Panels> {
    let WeightInfo { rows, cols, format, ref name, .. } = *info;
    let unsupported = |op: String, reason: String| Error::Unsupported { op, backend: "wgpu".into(), reason };
    let (packing, block) = packing(format, cols)
        .ok_or_else(|| unsupported(format!("weight `{name}`"), format!("no shader reads {format}")))?;
    let source = Source::new(parts, rows, format.bytes(1, cols))?;
    let (grain, chunks) = (format.grain(grain).max(1), Vec::new());
    let mut panels =
        Panels { rows, cols, grain, group: 1, leaves: None, packing, block, gate, experts, chunks };
    let halves = if gate { 2 } else { 1 };
    let code_words = cols.div_ceil(packing.unit()) * packing.unit_words() * PANEL;
    let scale_words = cols.div_ceil(block) * packing.scale_words() * PANEL;
    let most = gpu.limits.binding.min(gpu.limits.buffer) as usize / 4;
    let per_chunk = most / (code_words.max(scale_words) * halves).max(1);
    if per_chunk == 0 {
        let reason = format!("the adapter's max_storage_buffer_binding_size is {}", gpu.limits.binding);
        return Err(unsupported(format!("weight `{name}` with {cols} inputs"), reason));
    }
    let all = (panels.per_expert() * experts.max(1)).max(1);
    for first in (0..all).step_by(per_chunk) {
        let count = per_chunk.min(all - first);
        let room = |words: usize| gpu.room(name, count * halves * words * 4);
        let codes = room(code_words)?;
        let scales = if scale_words == 0 { None } else { Some(room(scale_words)?) };
        let planes = [
            Plane { to: Some(&codes), words: code_words },
            Plane { to: scales.as_ref(), words: scale_words },
        ];
        gpu.fill(queue, planes, count * halves, &|panel, codes, shared| {
            for (lane, row) in panels.rows_of(first + panel / halves, panel % halves).enumerate() {
                let (codes, shared) = (&mut *codes, &mut *shared);
                let words = packing.scale_words();
                Lane { codes, shared, words, lane }.pack(format, cols, source.row(row));
            }
        })?;
        panels.chunks.push(Chunk { codes: codes.mem, scales: scales.map(|scales| scales.mem), first, count });
    }
    tracing::trace!(name, rows, cols, %format, chunks = panels.chunks.len(), "prepared");
    Ok(panels)
}

/// Where the leaves of a rank's columns begin, as shaders read it: in f32, which is exact below 2^24.
fn leaves((gpu, queue): To<'_>, info: &WeightInfo, share: Share) -> Result<WgpuMem> {
    let most = 1 << f32::MANTISSA_DIGITS;
    if info.cols > most {
        return Err(Error::Unsupported {
            op: format!("`{}`, a rank's part of a matmul,", info.name),
            backend: "wgpu".into(),
            reason: format!("{} columns; at most {most} are possible", info.cols),
        });
    }
    let own = (0..LEAVES).map(|leaf| f32::from(u8::from(share.has(leaf))));
    let words: Vec<f32> = share.bounds().iter().map(|at| *at as f32).chain(own).collect();
    gpu.alloc_filled(&info.name, bytemuck::cast_slice(&words), queue)
}

/// Rows of a weight that comes in parts of whole rows.
struct Source<'a> {
    rows: Vec<&'a [u8]>,
}

impl<'a> Source<'a> {
    fn new(parts: &'a [Cow<'_, [u8]>], rows: usize, row_bytes: usize) -> Result<Self> {
        let all: Vec<&[u8]> = parts.iter().flat_map(|p| p.chunks_exact(row_bytes.max(1))).collect();
        if all.len() != rows {
            return Err(Error::Shape { op: "prepare_weight", what: "rows", got: all.len(), want: rows });
        }
        Ok(Self { rows: all })
    }

    fn row(&self, r: usize) -> &'a [u8] {
        self.rows[r]
    }
}

/// One output of a panel: its words in both planes.
struct Lane<'a> {
    /// `[unit][output]`.
    codes: &'a mut [u32],
    /// `[block][word][output]`.
    shared: &'a mut [u32],
    /// Words per block.
    words: usize,
    lane: usize,
}

impl Lane<'_> {
    fn pack(&mut self, format: WeightFormat, cols: usize, raw: &[u8]) {
        match format {
            WeightFormat::Plain(Float::F32) => {
                for (k, v) in raw.as_chunks::<4>().0.iter().enumerate() {
                    self.codes[(k / 4 * PANEL + self.lane) * 4 + k % 4] = u32::from_le_bytes(*v);
                }
            }
            WeightFormat::Plain(_) => {
                for (k, v) in raw.as_chunks::<2>().0.iter().enumerate() {
                    let at = (k / 4 * PANEL + self.lane) * 2 + k % 4 / 2;
                    self.codes[at] |= u32::from(u16::from_le_bytes(*v)) << (k % 2 * 16);
                }
            }
            WeightFormat::W8A8 => self.pack(WeightFormat::Block(Block::Q8_0), cols, raw),
            WeightFormat::Block(block) if block.is_table() => {
                let runs = block.values() / Block::VALUES;
                for (b, raw) in raw.chunks_exact(block.bytes()).enumerate() {
                    (0..runs)
                        .for_each(|run| self.places(b * runs + run, quant::block::places(block, raw, run)));
                }
            }
            WeightFormat::Block(block) if block.is_large() => {
                for (b, raw) in raw.chunks_exact(block.bytes()).enumerate() {
                    self.large(block, b, raw);
                }
            }
            WeightFormat::Block(block) => {
                for (b, raw) in raw.chunks_exact(block.bytes()).enumerate() {
                    self.small(block, b, raw);
                }
            }
            WeightFormat::Group(format) if !format.bits.is_integer() => self.floats(format, cols, raw),
            WeightFormat::Group(format) => self.groups(format, cols, raw),
            // `packing` has refused every other format.
            _ => {}
        }
    }

    /// Word `word` of block `b`.
    fn share(&mut self, b: usize, word: usize, bits: u32) {
        self.shared[(b * self.words + word) * PANEL + self.lane] |= bits;
    }

    /// The low four bits of the code of value `k`.
    fn nibble(&mut self, k: usize, code: u32) {
        self.codes[k / 8 * PANEL + self.lane] |= (code & 15) << (k % 8 * 4);
    }

    fn byte(&mut self, k: usize, code: u32) {
        self.codes[k / 4 * PANEL + self.lane] |= (code & 255) << (k % 4 * 8);
    }

    /// GGUF's formats of 32 values: d, perhaps m, perhaps fifth bits, codes.
    fn small(&mut self, block: Block, b: usize, raw: &[u8]) {
        let minimum = matches!(block, Block::Q4_1 | Block::Q5_1);
        self.share(b, 0, half(raw, 0) | if minimum { half(raw, 2) << 16 } else { 0 });
        if matches!(block, Block::Q5_0 | Block::Q5_1) {
            let from = if minimum { 4 } else { 2 };
            self.share(b, 1, half(raw, from) | half(raw, from + 2) << 16);
        }
        let zero = match block {
            Block::Q4_0 => 8,
            Block::Q5_0 => 16,
            _ => 0,
        };
        for (j, code) in quant::block::codes(block, raw).into_iter().enumerate() {
            let k = b * Block::VALUES + j;
            match block {
                Block::Q8_0 => self.byte(k, code as u32),
                _ => self.nibble(k, (code + zero) as u32),
            }
        }
    }

    /// The K-quants: d and e, sixteen bytes of small scales, upper bits, codes.
    fn large(&mut self, block: Block, b: usize, raw: &[u8]) {
        let (d, e) = match block {
            Block::Q2K => (80, Some(82)),
            Block::Q3K => (108, None),
            Block::Q6K => (208, None),
            _ => (0, Some(2)),
        };
        self.share(b, 0, half(raw, d) | e.map_or(0, |e| half(raw, e) << 16));
        for p in 0..Block::LARGE / quant::large::PART {
            let (s, t) = quant::large::scale_codes(block, raw, p);
            let (s, t) = (u32::from(s as u8), u32::from(t as u8));
            let mut put = |byte: usize, value: u32| self.share(b, 1 + byte / 4, value << (byte % 4 * 8));
            match block {
                Block::Q2K => put(p, s | t << 4),
                Block::Q4K | Block::Q5K if p % 2 == 0 => {
                    put(p / 2, s);
                    put(8 + p / 2, t);
                }
                Block::Q4K | Block::Q5K => {}
                _ => put(p, s),
            }
        }
        for i in 0..Block::LARGE {
            let code = (quant::large::code(block, raw, i) + quant::large::zero(block)) as u32;
            self.nibble(b * Block::LARGE + i, code);
            match block {
                Block::Q5K => self.share(b, 5 + i / 32, (code >> 4) << (i % 32)),
                Block::Q6K => self.share(b, 5 + i / 16, (code >> 4) << (i % 16 * 2)),
                _ => {}
            }
        }
    }

    /// The own integer formats; the last group of a row may be shorter.
    fn groups(&mut self, format: Groups, cols: usize, raw: &[u8]) {
        let size = format.group(cols);
        let mut raw = raw;
        for (g, first) in (0..cols).step_by(size).enumerate() {
            let count = size.min(cols - first);
            let (group, rest) = raw.split_at(format.group_bytes(count));
            self.share(g, 0, half(group, 0) | if format.asymmetric { half(group, 2) << 16 } else { 0 });
            let zero = if format.asymmetric { 0 } else { 8 };
            for i in 0..count {
                let code = quant::group::code(format, group, i);
                match format.bits {
                    GroupBits::Eight => self.byte(first + i, code as u32),
                    _ => self.nibble(first + i, (code + zero) as u32),
                }
            }
            raw = rest;
        }
    }

    /// A run of 32 places in a table.
    fn places(&mut self, b: usize, (d, codes): (f32, [u8; Block::VALUES])) {
        self.share(b, 0, d.to_bits());
        for (i, code) in codes.into_iter().enumerate() {
            self.nibble(b * Block::VALUES + i, u32::from(code));
        }
    }

    /// The own formats of small floats and tables.
    fn floats(&mut self, format: Groups, cols: usize, raw: &[u8]) {
        let (size, mut raw) = (format.group(cols), raw);
        for (g, first) in (0..cols).step_by(size).enumerate() {
            let count = size.min(cols - first);
            let (group, rest) = raw.split_at(format.group_bytes(count));
            self.share(g, 0, quant::float_group::scale(format, group).to_bits());
            for i in 0..count {
                let code = u32::from(quant::float_group::code(format, group, i));
                match format.bits.count() {
                    4 => self.nibble(first + i, code),
                    _ => self.byte(first + i, code),
                }
            }
            raw = rest;
        }
    }
}

fn half(raw: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([raw[at], raw[at + 1]]))
}
