//! Bounds, lengths and page numbers that no step would hold: no kernel of attention touches anything outside
//! its operands. The machine ends a test that does; what comes out means nothing.

use crate::machine::{Device, Dice, Type};
use engraft_kernels::params::MatView;
use engraft_kernels::params::attention::Scores;
use engraft_kernels::params::flash::Flash;
use engraft_kernels::params::kv::{KvView, PageTable};
use ptx_vm::{Options, Schedule};

const WIDTH: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const TOKENS: usize = 9;
const SEQS: usize = 3;

fn wild(dice: &mut Dice) -> u32 {
    const SOME: [u32; 16] =
        [0, 1, 2, 3, 4, 6, 8, 9, 10, 64, 80, 300, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX];
    let word = dice.bits();
    if word & 64 == 0 { SOME[word as usize % 16] } else { word }
}

fn words(device: &mut Device, dice: &mut Dice, n: usize) -> u64 {
    let bytes: Vec<u8> = (0..n).flat_map(|_| wild(dice).to_le_bytes()).collect();
    device.put(&bytes)
}

fn values(device: &mut Device, dice: &mut Dice, n: usize) -> u64 {
    let all: Vec<f32> = (0..n).map(|_| dice.unit()).collect();
    device.put(&Type::Bf16.write(&all))
}

/// What both kinds share; blocks may write the same rows.
fn params(device: &mut Device, dice: &mut Dice, seed: u64) -> Flash {
    let cols = HEADS * WIDTH;
    let view = |ptr| MatView { ptr, pitch: (HEADS * WIDTH) as u64, rows: TOKENS as u32, cols: cols as u32 };
    let flags = [0, 0, Scores::WINDOW, Scores::WINDOW];
    let ahead = [Scores::ALL, 0, 0, 3];
    Flash {
        q: view(values(device, dice, TOKENS * cols)),
        out: view(values(device, dice, TOKENS * cols)),
        scores: Scores {
            sinks: if seed.is_multiple_of(2) { 0 } else { values(device, dice, 2 * HEADS) },
            ahead: ahead[seed as usize % 4],
            bias: if seed.is_multiple_of(3) { 0 } else { values(device, dice, 2 * HEADS * 4) },
            bias_behind: 1,
            bias_ahead: 2,
            scale: 0.2,
            cap: 1.0,
            window: 70,
            flags: flags[seed as usize % 4],
            ..bytemuck::Zeroable::zeroed()
        },
        bounds: words(device, dice, SEQS + 1),
        seqs: SEQS as u32,
        heads: HEADS as u32,
        elem: Type::Bf16.elem(),
        ..bytemuck::Zeroable::zeroed()
    }
}

fn options(seed: u64) -> Options {
    let schedule = if seed.is_multiple_of(2) { Schedule::Forward } else { Schedule::Reverse };
    Options { schedule, global_races: false, ..Options::default() }
}

fn kv_view(keys: u64, values: u64, pages: u32, page_size: u32) -> KvView {
    let (width, elem) = (WIDTH as u32, Type::Bf16.elem());
    KvView { keys, values, pages, page_size, kv_heads: KV_HEADS as u32, k_dim: width, v_dim: width, elem }
}

#[test]
fn over_pages() {
    let (pages, page_size, stride, rows) = (5usize, 16usize, 20usize, 2usize);
    for seed in 0..24 {
        let (mut device, mut dice) = (Device::new(), Dice(seed));
        let slab = pages * page_size * KV_HEADS * WIDTH;
        let (k, v) = (values(&mut device, &mut dice, slab), values(&mut device, &mut dice, slab));
        let kv = kv_view(k, v, if seed == 0 { 0 } else { pages as u32 }, page_size as u32);
        let mut p = params(&mut device, &mut dice, seed / 4);
        p.kv = kv;
        p.kv_lens = words(&mut device, &mut dice, SEQS);
        p.table_rows = words(&mut device, &mut dice, SEQS);
        let numbers = words(&mut device, &mut dice, rows * stride);
        p.table = PageTable::new(numbers, rows as u32, stride as u32, &kv);
        // Scratch for one span or two of a table that reaches further, or none.
        let mut p = p.with_few([0, 1, 4][seed as usize % 3], [100, 300][seed as usize / 2 % 2]);
        p.parts = device.put(&vec![0; p.parts_bytes() as usize]);
        let (bytes, options) = (bytemuck::bytes_of(&p).to_vec(), options(seed));
        device.run(&p.whole(TOKENS as u32), &bytes, &options);
        device.run(&p.whole_on_hopper(TOKENS as u32).unwrap(), &bytes, &options);
        if p.few > 0 {
            device.run(&p.split(), &bytes, &options);
            p.merge().iter().for_each(|merge| device.run(merge, &bytes, &options));
        }
    }
}

#[test]
fn over_rows() {
    for seed in 0..12 {
        let (mut device, mut dice) = (Device::new(), Dice(seed));
        let slab = TOKENS * KV_HEADS * WIDTH;
        let (k, v) = (values(&mut device, &mut dice, slab), values(&mut device, &mut dice, slab));
        let pitch = (KV_HEADS * WIDTH) as u64;
        let plain = params(&mut device, &mut dice, seed);
        let p = Flash { kv: kv_view(k, v, 0, 0), k_pitch: pitch, v_pitch: pitch, ..plain };
        let (bytes, options) = (bytemuck::bytes_of(&p).to_vec(), options(seed));
        device.run(&p.whole(TOKENS as u32), &bytes, &options);
        device.run(&p.whole_on_hopper(TOKENS as u32).unwrap(), &bytes, &options);
    }
}
