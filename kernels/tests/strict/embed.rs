//! Rows of a table, and the formats of weights that tables and matmuls share.

use crate::machine::{Machine, encode, numbers, round, rounded, same, words};
use engraft_core::mem::{Block, GroupBits, Groups};
use engraft_core::quant::{block, group};
use engraft_kernels::params::embed::Embed;
use engraft_kernels::params::{Elem, Format, WeightView};

/// A weight with what it decodes to.
pub struct Weight {
    pub format: Format,
    pub bytes: Vec<u8>,
    pub row_bytes: usize,
    pub group: usize,
    pub values: Vec<f32>,
    pub rows: usize,
    pub cols: usize,
}

impl Weight {
    /// On the device.
    pub fn view(&self, gpu: &mut Machine) -> WeightView {
        let row_bytes = self.row_bytes as u64;
        let ptr = gpu.put(&self.bytes);
        WeightView {
            ptr,
            row_bytes,
            rows: self.rows as u32,
            cols: self.cols as u32,
            group: self.group as u32,
            reserved: 0,
        }
    }
}

fn blocks(b: Block) -> Format {
    match b {
        Block::Q4_0 => Format::Q4_0,
        Block::Q4_1 => Format::Q4_1,
        Block::Q5_0 => Format::Q5_0,
        Block::Q5_1 => Format::Q5_1,
        Block::Q8_0 => Format::Q8_0,
        Block::Q2K => Format::Q2K,
        Block::Q3K => Format::Q3K,
        Block::Q4K => Format::Q4K,
        Block::Q5K => Format::Q5K,
        Block::Q6K => Format::Q6K,
        Block::Iq4Nl => Format::Iq4Nl,
        Block::Iq4Xs => Format::Iq4Xs,
    }
}

/// Where the f16 scales of a block are.
fn scales(b: Block) -> &'static [usize] {
    match b {
        Block::Q4_0 | Block::Q5_0 | Block::Q8_0 | Block::Iq4Nl | Block::Iq4Xs => &[0],
        Block::Q4_1 | Block::Q5_1 | Block::Q4K | Block::Q5K => &[0, 2],
        Block::Q2K => &[80, 82],
        Block::Q3K => &[108],
        Block::Q6K => &[208],
    }
}

/// Values as they are.
pub fn plain(elem: Elem, rows: usize, cols: usize) -> Weight {
    let format = match elem {
        Elem::F32 => Format::F32,
        Elem::F16 => Format::F16,
        _ => Format::Bf16,
    };
    let plain = numbers(rows * cols, 11);
    let (bytes, values) = (encode(&plain, elem), rounded(&plain, elem));
    Weight { format, bytes, row_bytes: cols * elem.bytes() as usize, group: 0, values, rows, cols }
}

/// Blocks: codes are random bytes, scales small numbers.
pub fn in_blocks(b: Block, rows: usize, cols: usize) -> Weight {
    let whole = cols.next_multiple_of(b.values());
    let row_bytes = whole / b.values() * b.bytes();
    let mut bytes: Vec<u8> = words(rows * row_bytes, 12).iter().map(|w| (w >> 9) as u8).collect();
    for (i, raw) in bytes.chunks_mut(b.bytes()).enumerate() {
        for (j, at) in scales(b).iter().enumerate() {
            let scale = half::f16::from_f32(0.01 * (i % 13) as f32 - 0.05 * j as f32);
            raw[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    let mut values = vec![0.0; rows * whole];
    block::decode(b, &bytes, &mut values);
    let values = values.chunks(whole).flat_map(|row| row[..cols].to_vec()).collect();
    Weight { format: blocks(b), bytes, row_bytes, group: 0, values, rows, cols }
}

/// Groups, of `size` columns or (0) of a whole row.
fn in_groups(format: Format, groups: Groups, rows: usize, cols: usize) -> Weight {
    let row_bytes = groups.row_bytes(cols);
    let mut bytes = vec![0; rows * row_bytes];
    group::encode(groups, cols, &numbers(rows * cols, 11), &mut bytes);
    let mut values = vec![0.0; rows * cols];
    group::decode(groups, cols, &bytes, &mut values);
    Weight { format, bytes, row_bytes, group: groups.group(cols), values, rows, cols }
}

/// A weight of every format.
pub fn every_weight(rows: usize, cols: usize) -> Vec<Weight> {
    let mut all: Vec<Weight> = Elem::ALL.map(|elem| plain(elem, rows, cols)).into();
    all.extend(Block::ALL.map(|b| in_blocks(b, rows, cols)));
    for (format, bits, asymmetric) in [
        (Format::Int8, GroupBits::Eight, false),
        (Format::Int8a, GroupBits::Eight, true),
        (Format::Int4, GroupBits::Four, false),
        (Format::Int4a, GroupBits::Four, true),
    ] {
        let of = |size| in_groups(format, Groups { bits, size, asymmetric }, rows, cols);
        all.extend([0, 32].map(of));
    }
    for (format, bits, sizes) in [
        (Format::Fp8, GroupBits::E4m3, [0, 32]),
        (Format::Fp8E5m2, GroupBits::E5m2, [0, 32]),
        (Format::Fp6, GroupBits::E3m2, [0, 32]),
        (Format::Fp4, GroupBits::E2m1, [0, 16]),
        (Format::Mxfp4, GroupBits::Mx, [32, 32]),
        (Format::Nf4, GroupBits::Nf4, [0, 64]),
    ] {
        all.extend(sizes.map(|size| in_groups(format, Groups::floats(bits, size), rows, cols)));
    }
    all
}

#[test]
fn rows_of_every_format() {
    // Whole eights, and single values in the first and in the second half of a block.
    for cols in [256, 45, 141] {
        for w in every_weight(6, cols) {
            Elem::ALL.into_iter().for_each(|elem| rows_of(&w, elem));
        }
    }
}

/// Rows as they are and added to others, rounded where the composed ops would.
fn rows_of(w: &Weight, elem: Elem) {
    let cols = w.cols;
    let ids = [5u32, 0, 6, 2, 5, u32::MAX, 3];
    let old = numbers(ids.len() * cols, 5);
    let row = |id: u32| match w.values.get(id as usize * cols..(id as usize + 1) * cols) {
        Some(row) if (id as usize) < w.rows => row.to_vec(),
        _ => vec![0.0; cols],
    };
    let plain: Vec<f32> = ids.iter().flat_map(|id| rounded(&row(*id), elem)).collect();
    let added: Vec<f32> = plain.iter().zip(rounded(&old, elem)).map(|(v, o)| round(o + v, elem)).collect();
    Machine::each(&mut |gpu| {
        let (ids_at, table) = (gpu.put(&ids), w.view(gpu));
        // Rows that begin at odd elements, and every second one at 8 bytes behind a multiple of 16.
        for (add, gap) in [(0, 3), (1, 3), (1, 4)] {
            let out = gpu.matrix(&old, cols, elem, cols + gap, 0);
            let p = Embed { ids: ids_at, table, out, elem, add };
            gpu.run(&p, &p.launch(w.format));
            let want = if add == 1 { &added } else { &plain };
            same(&gpu.values(out, elem), want, w.format.name());
        }
    });
}
