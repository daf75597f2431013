//! The K-quants and the own integer formats: matmuls equal those of decoded weights, bit for bit.

use crate::testing::{bits, machines, values};
use engraft_core::math::{FusedMadd, SeparateMadd};
use engraft_core::mem::{Block, Float, GroupBits, Groups, WeightFormat};
use engraft_core::numerics::{Madd, leaf_bounds};
use engraft_core::quant;
use engraft_cpu::kernels::embed::unpack;
use engraft_cpu::kernels::linear::{Epilogue, Layout, Packed, linear};
use engraft_cpu::kernels::{RawMat, RawMatMut};
use engraft_cpu::sum::dot_ref;

/// Formats, and a number of columns that has blocks, tails or neither.
fn cases() -> Vec<(WeightFormat, usize)> {
    let large = [Block::Q2K, Block::Q3K, Block::Q4K, Block::Q5K, Block::Q6K, Block::Iq4Xs, Block::Iq4Nl];
    let mut all: Vec<_> = large.into_iter().map(|b| (WeightFormat::Block(b), 768)).collect();
    for bits in [GroupBits::Eight, GroupBits::Four] {
        for asymmetric in [false, true] {
            for (size, k) in [(0, 77), (32, 77), (64, 300), (128, 64), (256, 1)] {
                all.push((WeightFormat::Group(Groups { bits, size, asymmetric }), k));
            }
        }
    }
    let sizes = |bits: GroupBits| match bits {
        GroupBits::Mx => &[(32, 77), (32, 64)][..],
        GroupBits::E2m1 => &[(0, 77), (16, 77), (16, 48), (32, 77), (64, 300)],
        _ => &[(0, 77), (32, 77), (64, 300), (128, 64), (256, 1)],
    };
    use GroupBits::{E2m1, E3m2, E4m3, E5m2, Mx, Nf4};
    for bits in [E4m3, E5m2, E3m2, E2m1, Mx, Nf4] {
        all.extend(
            sizes(bits).iter().map(|(size, k)| (WeightFormat::Group(Groups::floats(bits, *size)), *k)),
        );
    }
    all
}

/// Every finite code in every column, with the largest and the least scale.
#[test]
fn every_code_of_small_floats_at_extreme_scales() {
    use GroupBits::{E2m1, E3m2, E4m3, E5m2, Mx, Nf4};
    for (bits, size) in [(E4m3, 32), (E5m2, 32), (E3m2, 32), (E2m1, 16), (E2m1, 64), (Mx, 32), (Nf4, 32)] {
        let (groups, k) = (Groups::floats(bits, size), 64);
        let format = WeightFormat::Group(groups);
        let codes = 1usize << bits.count();
        let mut raw = vec![0u8; format.bytes(codes, k)];
        let whole = groups.group_bytes(size as usize);
        for (row, bytes) in raw.chunks_exact_mut(format.bytes(1, k)).enumerate() {
            for (g, group) in bytes.chunks_exact_mut(whole).enumerate() {
                let d = quant::float_group::SCALES[g % 2];
                match bits {
                    Mx => group[0] = (d.to_bits() >> 23) as u8,
                    _ => group[..4].copy_from_slice(&d.to_le_bytes()),
                }
                for i in 0..size as usize {
                    quant::float_group::put(groups, group, i, ((row + i) % codes) as u8);
                }
            }
        }
        let mut want = vec![f32::NAN; codes * k];
        quant::decode_rows(format, k, &raw, &mut want).unwrap();
        let m = &machines(Madd::Fused)[0];
        let mut p = Packed::new(format, codes, k, 1, Layout::Plain).unwrap();
        p.fill_rows(&m.pool, format, 0..codes, &raw).unwrap();
        for (row, want) in want.chunks_exact(k).enumerate() {
            let mut got = vec![f32::NAN; k];
            unpack(m, &p, row, &mut got);
            for (got, want) in got.iter().zip(want).filter(|(_, want)| want.is_finite()) {
                assert_eq!(got.to_bits(), want.to_bits(), "{format} row {row}");
            }
        }
    }
}

/// Random bytes whose scales are small and finite.
fn rows(format: WeightFormat, n: usize, k: usize) -> Vec<u8> {
    if let WeightFormat::Group(groups) = format {
        let mut raw = vec![0; format.bytes(n, k)];
        quant::group::encode(groups, k, &values(n * k, 5), &mut raw);
        return raw;
    }
    let WeightFormat::Block(b) = format else { panic!("a packed format") };
    let mut s = 17u64;
    let mut raw: Vec<u8> = (0..format.bytes(n, k))
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (s >> 56) as u8
        })
        .collect();
    for (i, block) in raw.chunks_exact_mut(b.bytes()).enumerate() {
        let places: &[usize] = match b {
            Block::Q2K => &[80, 82],
            Block::Q3K => &[108],
            Block::Q6K => &[208],
            Block::Iq4Nl | Block::Iq4Xs => &[0],
            _ => &[0, 2],
        };
        for at in places {
            let d = half::f16::from_f32(0.001 * (i % 5 + 1) as f32 * if i % 2 == 0 { 1.0 } else { -1.0 });
            block[*at..*at + 2].copy_from_slice(&d.to_le_bytes());
        }
    }
    raw
}

#[test]
fn matmuls_equal_those_of_decoded_weights() {
    for madd in [Madd::Fused, Madd::Separate] {
        let machines = machines(madd);
        for (format, k) in cases() {
            for (n, grain) in [(17, 1), (70, 64)] {
                let raw = rows(format, n, k);
                let mut w = vec![f32::NAN; n * k];
                quant::decode_rows(format, k, &raw, &mut w).unwrap();
                let bounds = leaf_bounds(k, grain);
                for m in &machines {
                    let mut p = Packed::new(format, n, k, grain, Layout::Plain).unwrap();
                    p.fill_rows(&m.pool, format, 0..n, &raw).unwrap();
                    for t in [1, 3, 9] {
                        let x = values(t * k, t as u64);
                        let mut y = vec![f32::NAN; t * n];
                        // SAFETY: the slices outlive the call.
                        let (xv, yv) = unsafe { (RawMat::of(&x, k), RawMatMut::of(&mut y, n)) };
                        linear(m, xv, &p, yv, &Epilogue::NONE).unwrap();
                        let dot = |i: usize| {
                            let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
                            match madd {
                                Madd::Fused => dot_ref::<FusedMadd>(x, w, &bounds),
                                Madd::Separate => dot_ref::<SeparateMadd>(x, w, &bounds),
                            }
                        };
                        let want: Vec<f32> = (0..t * n).map(dot).collect();
                        assert_eq!(bits(&y), bits(&want), "{format} {madd:?} {n}x{k} t={t} {:?}", m.isa);
                    }
                }
            }
        }
    }
}

/// Sums that end a value or a block behind 4,096, of as many rows as kernels take one by one, and more; then
/// thousands of outputs of a row, of one format by the seed or, in a full run, of each.
#[test]
fn matmuls_of_the_sizes_of_models() {
    let seed = std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1usize);
    let full = std::env::var_os("ENGRAFT_FULL").is_some();
    let mut formats: Vec<_> = cases().into_iter().map(|(format, _)| format).collect();
    formats.dedup();
    let chosen = seed % formats.len();
    for (at, format) in formats.into_iter().enumerate() {
        let k = format.block().map_or(4097, |block| 4096 + block.values());
        of_size(format, (33, k), &[1, 4, 5], 1);
        if full || at == chosen {
            of_size(format, (4097, k), &[1], 97);
        }
    }
}

/// A weight of this size and so many rows; of the outputs one of `step` is compared.
fn of_size(format: WeightFormat, (n, k): (usize, usize), counts: &[usize], step: usize) {
    let raw = rows(format, n, k);
    let mut w = vec![f32::NAN; n * k];
    quant::decode_rows(format, k, &raw, &mut w).unwrap();
    let bounds = leaf_bounds(k, 1);
    for m in &machines(Madd::Fused) {
        let mut p = Packed::new(format, n, k, 1, Layout::Plain).unwrap();
        p.fill_rows(&m.pool, format, 0..n, &raw).unwrap();
        for &t in counts {
            let x = values(t * k, t as u64);
            let mut y = vec![f32::NAN; t * n];
            // SAFETY: the slices outlive the call.
            let (xv, yv) = unsafe { (RawMat::of(&x, k), RawMatMut::of(&mut y, n)) };
            linear(m, xv, &p, yv, &Epilogue::NONE).unwrap();
            for i in (0..t * n).step_by(step).chain([t * n - 1]) {
                let want = dot_ref::<FusedMadd>(&x[i / n * k..][..k], &w[i % n * k..][..k], &bounds);
                assert_eq!(
                    y[i].to_bits(),
                    want.to_bits(),
                    "{format} {n}x{k} t={t} output {i} {:?}: {} for {want}",
                    m.isa,
                    y[i]
                );
            }
        }
    }
}

/// Leaves of whole heads begin and end anywhere among values that share a scale: whole runs of them, parts of
/// one, and runs that a leaf's end cuts.
#[test]
fn leaves_that_end_among_shared_scales() {
    for madd in [Madd::Fused, Madd::Separate] {
        for (format, k) in cases() {
            let (n, k) = (37, if k == 768 { 512 } else { k });
            let raw = rows(format, n, k);
            let mut w = vec![f32::NAN; n * k];
            quant::decode_rows(format, k, &raw, &mut w).unwrap();
            for grain in [5, 24, 40, 100] {
                let bounds = leaf_bounds(k, grain);
                for m in &machines(madd) {
                    let mut p = Packed::new(format, n, k, grain, Layout::Plain).unwrap();
                    p.fill_rows(&m.pool, format, 0..n, &raw).unwrap();
                    for t in [1, 2] {
                        let x = values(t * k, 3);
                        let mut y = vec![f32::NAN; t * n];
                        // SAFETY: the slices outlive the call.
                        let (xv, yv) = unsafe { (RawMat::of(&x, k), RawMatMut::of(&mut y, n)) };
                        linear(m, xv, &p, yv, &Epilogue::NONE).unwrap();
                        for (i, got) in y.iter().enumerate() {
                            let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
                            let want = match madd {
                                Madd::Fused => dot_ref::<FusedMadd>(x, w, &bounds),
                                Madd::Separate => dot_ref::<SeparateMadd>(x, w, &bounds),
                            };
                            let same = got.to_bits() == want.to_bits();
                            let what = format!("{format} {madd:?} grain {grain} t={t} {:?}", m.isa);
                            assert!(same, "{what}, output {i}: {got:e}, not {want:e}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rows_in_pieces_gate_layouts_and_conversions() {
    let m = &machines(Madd::Fused)[0];
    for (format, k) in cases() {
        let n = 36;
        let raw = rows(format, n, k);
        let mut w = vec![f32::NAN; n * k];
        quant::decode_rows(format, k, &raw, &mut w).unwrap();
        let size = format.bytes(1, k);
        for layout in [Layout::Plain, Layout::Gate] {
            let mut p = Packed::new(format, n, k, 1, layout).unwrap();
            for part in [0..5usize, 5..6, 6..21, 21..36] {
                p.fill_rows(&m.pool, format, part.clone(), &raw[part.start * size..part.end * size]).unwrap();
            }
            for row in 0..n {
                let mut got = vec![f32::NAN; k];
                unpack(m, &p, row, &mut got);
                assert_eq!(bits(&got), bits(&w[row * k..][..k]), "{format} {layout:?} row {row}");
            }
        }
        let mut plain = Packed::new(WeightFormat::Plain(Float::F32), n, k, 1, Layout::Plain).unwrap();
        plain.fill_rows(&m.pool, format, 0..n, &raw).unwrap();
        let mut got = vec![f32::NAN; k];
        unpack(m, &plain, 7, &mut got);
        assert_eq!(bits(&got), bits(&w[7 * k..][..k]), "{format} as f32");
        let other = WeightFormat::Block(Block::Q8_0);
        assert!(
            Packed::new(format, n, k, 1, Layout::Plain)
                .unwrap()
                .fill_rows(&m.pool, other, 0..1, &[0; 34])
                .is_err()
        );
    }
}
