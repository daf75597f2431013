//! Matmuls with packed weights on adapters: against the CPU, and rows against each other.

use conformance::backends::{FULL, wgpu, wgpu_reduced};
use conformance::compare::{Data, Output, Want, Worst, against, same_bits};
use conformance::device::{Device, Matrix};
use conformance::dice::Dice;
use conformance::oracle::moe;
use conformance::poison::{Grid, Lay};
use conformance::spec;
use engraft_core::backend::Backend;
use engraft_core::mem::{Block, Float, WeightFormat, WeightUse};
use engraft_core::numerics::{Madd, Mode};
use engraft_core::ops::{Embed, ExpertLinear, Groups, Linear};
use engraft_core::quant;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_wgpu::{Reduce, Wgpu, WgpuConfig};
use sample::Sample;
use std::sync::Arc;

/// A weight in `format`: own formats are encoded, K-quants are random bits under tame scales.
fn weight(dice: &mut Dice, rows: usize, cols: usize, format: WeightFormat) -> Matrix {
    let bytes = match format {
        WeightFormat::Group(variant) => {
            let mut bytes = vec![0; format.bytes(rows, cols)];
            quant::group::encode(variant, cols, &dice.values(rows * cols, 1.0, Float::F32), &mut bytes);
            bytes
        }
        WeightFormat::Plain(Float::F32) => {
            bytemuck::cast_slice(&dice.values(rows * cols, 1.0, Float::F32)).to_vec()
        }
        _ => {
            let mut bytes: Vec<u8> = (0..format.bytes(rows, cols)).map(|_| dice.bits() as u8).collect();
            let (each, scales): (usize, &[usize]) = match format {
                WeightFormat::W8A8 => (34, &[0]),
                WeightFormat::Block(Block::Q2K) => (84, &[80, 82]),
                WeightFormat::Block(Block::Q3K) => (110, &[108]),
                WeightFormat::Block(Block::Q6K) => (210, &[208]),
                WeightFormat::Block(block) => (block.bytes(), &[0, 2]),
                _ => panic!("{format} is not a format of blocks"),
            };
            // f16 from 2^-8 to 2^-4, either sign.
            let tame = |raw: &mut [u8]| scales.iter().for_each(|at| raw[at + 1] = raw[at + 1] & 0x8f | 0x20);
            bytes.chunks_mut(each).for_each(tame);
            bytes
        }
    };
    Matrix { rows, cols, format, bytes }
}

/// Columns of weights of few values.
pub fn short(format: WeightFormat) -> usize {
    if format.block().is_some() { 512 } else { 200 }
}

/// Matmuls of one and of several rows, rows looked up, and experts' matmuls.
pub fn matmuls<B: Backend>(backend: &Arc<B>, format: WeightFormat, cols: usize) -> Vec<Output> {
    let dice = &mut Dice::new(7);
    let mut dev = Device::new(backend, false).unwrap();
    let (n, experts, grain) = (45, vec![0, 2, 1, 2, 2, 1], 1);
    let w = weight(dice, n, cols, format);
    let of_experts = weight(dice, 3 * n, cols, format);
    let x = Grid::random(dice, 3, cols, Float::F32, 1.0);
    let (one, ids) = (dev.grid(&x.only(1)).unwrap(), dev.buffer(&[7u32, 44, 0, 31]).unwrap());
    let x = dev.grid(&x).unwrap();
    let w = dev.weight(&w, WeightUse::EmbeddingAndLinear, 2).unwrap();
    let of_experts = dev.weight(&of_experts, WeightUse::Experts { count: 3, grain }, 2).unwrap();
    let groups = dev.buffer(&moe::groups(&experts, 3)).unwrap();
    let experts = dev.buffer(&experts).unwrap();
    let mut out = [1, 3, 4, 6].map(|rows| {
        let cols = if rows == 4 { cols } else { n };
        dev.output(rows, cols, Float::F32, Lay::default()).unwrap()
    });
    let [alone, several, looked_up, by_expert] = &mut out;
    dev.launch(|to| {
        to.run(Linear::new(one.view()?, &w, None, alone.view_mut()?))?;
        to.run(Linear::new(x.view()?, &w, None, several.view_mut()?))?;
        to.run(Embed { ids: ids.view(), table: &w, add: None, out: looked_up.view_mut()? })?;
        let groups = Groups { experts: experts.view(), groups: groups.view(), count: 3 };
        let (x, out) = (x.view()?, by_expert.view_mut()?);
        to.run(ExpertLinear { x, weight: &of_experts, bias: None, groups, first: 0, out })
    })
    .unwrap();
    out.iter().map(|o| dev.read(o, "out").unwrap()).collect()
}

/// Where the adapter promises no bits: to about 2^-13 of the largest value.
fn near(want: &Output) -> Want {
    let Data::Floats { values, .. } = &want.data else { panic!("matmuls give floats") };
    let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let slack = vec![f64::from(largest) / 8192.0; values.len()];
    Want::Near { values: values.iter().map(|v| f64::from(*v)).collect(), slack }
}

/// Columns behind 4,096: by a block, or by as few as rows that begin at multiples of four elements may have.
fn long(format: WeightFormat) -> usize {
    4096 + format.block().map_or(4, Block::values)
}

fn formats() -> Vec<WeightFormat> {
    let large = Block::ALL.into_iter().filter(|b| b.is_large()).map(WeightFormat::Block);
    let own = [
        "int8:32",
        "int8a:64",
        "int4",
        "int4a:64",
        "int8a",
        "int4:128",
        "w8a8",
        "fp8",
        "fp8:128",
        "fp8-e5m2:32",
        "IQ4_NL",
        "fp6",
        "fp6:64",
        "fp4",
        "fp4:32",
        "mxfp4",
        "nf4",
    ];
    large.chain(own.map(|f| f.parse().unwrap())).collect()
}

/// The formats of quantized weights of which `ops` has few: a driver compiles every shader of every format.
/// Sums as long as models have them.
pub fn weights_of_every_packed_format_give_the_cpus_bits(adapters: &[String]) {
    let formats = formats();
    let cpu = Cpu::new(CpuConfig { threads: 1, madd: Madd::Separate, isa: None }).unwrap();
    for name in adapters {
        let gpu = wgpu(Some(name), false).unwrap();
        for format in &formats {
            let cols = long(*format);
            let (got, want) = (matmuls(&gpu, *format, cols), matmuls(&cpu, *format, cols));
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let worst = match gpu.numerics().mode {
                    Mode::Reference => same_bits(got, want),
                    _ => against(got, &near(want)),
                };
                assert!(worst.as_ref().is_none_or(Worst::passes), "{name}: {format}, output {i}: {worst:?}");
            }
        }
        println!("{name}: {} formats of packed weights", formats.len());
        // Bytes multiplied one by one, as in browsers.
        let (adapter, bytes_by_hand) = (Some(name.clone()), true);
        let by_hand = WgpuConfig { adapter, software: true, bytes_by_hand, ..WgpuConfig::default() };
        let by_hand = Wgpu::new(by_hand).unwrap();
        let cols = long(WeightFormat::W8A8);
        let [a, b] = [&gpu, &by_hand].map(|gpu| matmuls(gpu, WeightFormat::W8A8, cols));
        for (a, b) in a.iter().zip(&b) {
            let worst = same_bits(a, b);
            assert!(worst.is_none(), "{name}: four bytes at a time and one by one: {worst:?}");
        }
    }
}

/// Matmuls of the first five, four, three and one of the same rows, which lie where lanes can read them.
fn of_rows(gpu: &Arc<Wgpu>, format: WeightFormat) -> [Output; 4] {
    let (dice, cols, n) = (&mut Dice::new(11), long(format), 66);
    let mut dev = Device::new(gpu, false).unwrap();
    let w = spec::weight::random(dice, n, cols, format, 1.0);
    let x = Grid::random(dice, 5, cols, Float::F32, 1.0);
    let w = dev.weight(&w, WeightUse::Linear { grain: 1, group: 1 }, 1).unwrap();
    [5, 4, 3, 1].map(|rows| {
        let x = dev.grid(&x.slice(0..rows)).unwrap();
        let mut out = dev.output(rows, n, Float::F32, Lay::default()).unwrap();
        dev.launch(|to| to.run(Linear::new(x.view()?, &w, None, out.view_mut()?))).unwrap();
        dev.read(&out, "out").unwrap()
    })
}

/// Up to four rows are multiplied by lanes, one and several, and more in tiles: no bit of a row depends on
/// it. Three shaders of a format: one format of eight by the seed, all in a full run.
pub fn lanes_and_tiles_multiply_every_format_alike(adapters: &[String]) {
    let all = [Float::F32, Float::F16, Float::Bf16].map(WeightFormat::Plain).into_iter();
    let small = Block::ALL.into_iter().filter(|b| !b.is_large() && *b != Block::Iq4Nl);
    let small = small.map(WeightFormat::Block);
    let all: Vec<_> = all.chain(small).chain(formats()).collect();
    let count = if std::env::var_os(FULL).is_some() { 1 } else { 8 };
    let some = Sample::one_of(count).of_list("lanes and tiles", all);
    for name in adapters {
        for reduce in [Reduce::Shared, Reduce::Subgroups] {
            let gpu = match wgpu_reduced(name, reduce) {
                Ok(gpu) => gpu,
                Err(e) => {
                    println!("{name}: skipped: {e}");
                    continue;
                }
            };
            for format in &some {
                let [five, fewer @ ..] = of_rows(&gpu, *format);
                for fewer in &fewer {
                    let worst = same_bits(fewer, &five.part(0..fewer.rows));
                    assert!(worst.is_none(), "{name}: {format}, {} of five rows: {worst:?}", fewer.rows);
                }
            }
            println!("{name}: {} formats by lanes and in tiles, {reduce:?}", some.len());
        }
    }
}
