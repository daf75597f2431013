//! Every format, variant, instruction set, row count and epilogue against `sum::dot_ref`, bit for bit.

mod conv;
mod packed;
mod w8a8;

use crate::testing::{aligned, bits, bytes, loaded, machines, stored, values};
use engraft_core::math::{self, FusedMadd, MulAdd, SeparateMadd};
use engraft_core::mem::{Block, Float, Stored, WeightFormat};
use engraft_core::numerics::{Madd, leaf_bounds};
use engraft_core::quant;
use engraft_cpu::kernels::embed::unpack;
use engraft_cpu::kernels::linear::{After, Epilogue, Layout, Packed, linear};
use engraft_cpu::kernels::{Activation, Machine, RawMat, RawMatMut};
use engraft_cpu::sum::dot_ref;

const FORMATS: [(WeightFormat, Stored); 8] = [
    (WeightFormat::Plain(Float::F32), Stored::F32),
    (WeightFormat::Plain(Float::F16), Stored::F16),
    (WeightFormat::Plain(Float::Bf16), Stored::Bf16),
    (WeightFormat::Block(Block::Q8_0), Stored::Block(Block::Q8_0)),
    (WeightFormat::Block(Block::Q4_0), Stored::Block(Block::Q4_0)),
    (WeightFormat::Block(Block::Q4_1), Stored::Block(Block::Q4_1)),
    (WeightFormat::Block(Block::Q5_0), Stored::Block(Block::Q5_0)),
    (WeightFormat::Block(Block::Q5_1), Stored::Block(Block::Q5_1)),
];

/// Stored bytes of random rows.
fn rows(format: WeightFormat, n: usize, k: usize) -> Vec<u8> {
    let b = match format {
        WeightFormat::Plain(f) => return stored(&values(n * k, 7), f),
        WeightFormat::Block(b) => b,
        _ => panic!("no such format"),
    };
    let mut s = 99u64;
    (0..n * k.div_ceil(32))
        .flat_map(|i| {
            let mut block: Vec<u8> = (0..b.bytes())
                .map(|_| {
                    s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (s >> 56) as u8
                })
                .collect();
            let d = half::f16::from_f32(0.013 * (i % 7 + 1) as f32 * if i % 3 == 0 { -1.0 } else { 1.0 });
            block[..2].copy_from_slice(&d.to_le_bytes());
            if matches!(b, Block::Q4_1 | Block::Q5_1) {
                block[2..4].copy_from_slice(&half::f16::from_f32(-0.3 + 0.01 * i as f32).to_le_bytes());
            }
            block
        })
        .collect()
}

/// Dequantized rows.
fn weights(format: WeightFormat, stored: &[u8], n: usize, k: usize) -> Vec<f32> {
    // The last block of a row may have more values than the row.
    let whole = if matches!(format, WeightFormat::Block(_)) { k.next_multiple_of(32) } else { k };
    let row = |raw: &[u8]| {
        let mut values = vec![f32::NAN; whole];
        quant::decode_rows(format, whole, raw, &mut values).unwrap();
        values.truncate(k);
        values
    };
    stored.chunks_exact(format.bytes(1, k)).take(n).flat_map(row).collect()
}

fn dot(madd: Madd, x: &[f32], w: &[f32], grain: usize) -> f32 {
    let b = leaf_bounds(x.len(), grain);
    match madd {
        Madd::Fused => dot_ref::<FusedMadd>(x, w, &b),
        Madd::Separate => dot_ref::<SeparateMadd>(x, w, &b),
    }
}

#[test]
fn every_format_and_shape_equals_the_reference() {
    for madd in [Madd::Fused, Madd::Separate] {
        let machines = machines(madd);
        for (format, source) in FORMATS {
            for (n, k, grain) in
                [(1, 1, 1), (17, 33, 1), (70, 96, 12), (81, 300, 7), (16, 2400, 1), (129, 64, 64)]
            {
                let raw = rows(format, n, k);
                let w = weights(format, &raw, n, k);
                for m in &machines {
                    let p = Packed::new(format, n, k, grain, Layout::Plain)
                        .and_then(|p| p.filled(&m.pool, source, &raw))
                        .unwrap();
                    for t in [1, 2, 3, 5, 7, 8, 19] {
                        let x = values(t * k, t as u64);
                        let mut y = vec![f32::NAN; t * n];
                        // SAFETY: the slices outlive the call.
                        let (xv, yv) = unsafe { (RawMat::of(&x, k), RawMatMut::of(&mut y, n)) };
                        linear(m, xv, &p, yv, &Epilogue::NONE).unwrap();
                        let want: Vec<f32> = (0..t * n)
                            .map(|i| dot(madd, &x[i / n * k..][..k], &w[i % n * k..][..k], grain))
                            .collect();
                        assert_eq!(bits(&y), bits(&want), "{format} {madd:?} {n}x{k} t={t} {:?}", m.isa);
                    }
                }
            }
        }
    }
}

#[test]
fn long_sums_cross_pieces_and_row_blocks() {
    // Leaves of more than 2048 k, so that pieces of f32 panels split them, too.
    let (n, k, t) = (20, 17_000, 150);
    let w = values(n * k, 3);
    let x = values(t * k, 4);
    let m = Machine::new(2, Madd::Fused);
    for (format, source) in &FORMATS[..2] {
        let raw = rows(*format, n, k);
        let w = if *source == Stored::F32 { w.clone() } else { weights(*format, &raw, n, k) };
        let WeightFormat::Plain(f) = *format else { panic!("plain") };
        let p = Packed::new(*format, n, k, 1, Layout::Plain)
            .and_then(|p| p.filled(&m.pool, *source, &stored(&w, f)))
            .unwrap();
        for m in machines(Madd::Fused) {
            let mut y = vec![0f32; t * n];
            // SAFETY: the slices outlive the call.
            let (xv, yv) = unsafe { (RawMat::of(&x, k), RawMatMut::of(&mut y, n)) };
            linear(&m, xv, &p, yv, &Epilogue::NONE).unwrap();
            for i in (0..t * n).step_by(37) {
                let want = dot(Madd::Fused, &x[i / n * k..][..k], &w[i % n * k..][..k], 1);
                assert_eq!(y[i].to_bits(), want.to_bits(), "{format} output {i} {:?}", m.isa);
            }
        }
    }
}

/// Two panels at once with leaves that end inside a piece, more rows than a block, and every bound of
/// `gemm.rs` with one less and one more.
#[test]
fn sizes_of_models_and_around_every_bound() {
    let around = |bound: usize| [bound - 1, bound, bound + 1];
    let rows_around = around(132).map(|t| (36, 40, t));
    let wide = around(512).map(|k| (36, k, 9));
    let direct = around(2048).map(|k| (36, k, 9));
    let large = [(512, 5000, 40), (4112, 4096, 3)];
    let shapes: Vec<_> = rows_around.into_iter().chain(wide).chain(direct).chain(large).collect();
    let machines = machines(Madd::Fused);
    for (format, source) in FORMATS {
        for &(n, k, t) in &shapes {
            let raw = rows(format, n, k);
            let w = weights(format, &raw, n, k);
            let x = values(t * k, t as u64);
            // Every output of small matmuls, some of large ones: the reference is scalar.
            let some = (0..t * n).step_by(if n * k > 1 << 20 { 61 } else { 1 });
            let want: Vec<(usize, f32)> =
                some.map(|i| (i, dot(Madd::Fused, &x[i / n * k..][..k], &w[i % n * k..][..k], 1))).collect();
            for m in &machines {
                let p = Packed::new(format, n, k, 1, Layout::Plain)
                    .and_then(|p| p.filled(&m.pool, source, &raw))
                    .unwrap();
                let mut y = vec![f32::NAN; t * n];
                // SAFETY: the slices outlive the call.
                let (xv, yv) = unsafe { (RawMat::of(&x, k), RawMatMut::of(&mut y, n)) };
                linear(m, xv, &p, yv, &Epilogue::NONE).unwrap();
                for &(i, want) in &want {
                    assert_eq!(
                        y[i].to_bits(),
                        want.to_bits(),
                        "{format} {n}x{k} t={t} output {i} {:?}",
                        m.isa
                    );
                }
            }
        }
    }
}

/// The composed ops, one rounding each.
fn composed(
    after: &str,
    sums: &[f32],
    bias: &[f32],
    n: usize,
    res: &[f32],
    dtype: Float,
    madd: Madd,
) -> Vec<f32> {
    let round = |v: f32| loaded(&stored(&[v], dtype), dtype)[0];
    let act = |v: f32| match madd {
        Madd::Fused => math::silu::<FusedMadd>(v),
        Madd::Separate => math::silu::<SeparateMadd>(v),
    };
    let y: Vec<f32> = sums.iter().enumerate().map(|(i, s)| round(s + bias[i % n])).collect();
    match after {
        "none" => y,
        "act" => y.iter().map(|v| round(act(*v))).collect(),
        "add" => y.iter().zip(res).map(|(v, r)| round(v + r)).collect(),
        _ => y
            .chunks(n)
            .flat_map(|row| (0..n / 2).map(|i| round(act(row[i]) * row[n / 2 + i])).collect::<Vec<_>>())
            .collect(),
    }
}

fn epilogues_of<M: MulAdd>() {
    let (n, k) = (58, 45);
    let w = values(n * k, 1);
    let bias = values(n, 2);
    for dtype in [Float::F32, Float::F16, Float::Bf16] {
        for m in machines(M::KIND) {
            for t in [1, 4, 9] {
                let xs = aligned(&stored(&values(t * k, 5), dtype));
                let x = loaded(bytes(&xs), dtype);
                let b = leaf_bounds(k, 1);
                let sums: Vec<f32> = (0..t * n)
                    .map(|i| dot_ref::<M>(&x[i / n * k..][..k], &w[i % n * k..][..k], &b))
                    .collect();
                for after in ["none", "act", "add", "gate"] {
                    let (layout, out) =
                        if after == "gate" { (Layout::Gate, n / 2) } else { (Layout::Plain, n) };
                    let f32w = WeightFormat::Plain(Float::F32);
                    let p = Packed::new(f32w, n, k, 1, layout)
                        .and_then(|p| p.filled(&m.pool, Stored::F32, &stored(&w, Float::F32)))
                        .unwrap();
                    let res = stored(&values(t * out, 6), dtype);
                    let mut ys = aligned(&res);
                    let at = ys.as_mut_ptr();
                    // SAFETY: both outlive the call; the residual is the output, which `Add` allows.
                    let (xv, yv, residual) = unsafe {
                        (
                            RawMat::new(xs.as_ptr(), dtype, t, k, k),
                            RawMatMut::new(at, dtype, t, out, out),
                            RawMat::new(at, dtype, t, out, out),
                        )
                    };
                    let last = match after {
                        "none" => After::Nothing,
                        "act" => After::Activate(Activation::Silu),
                        "add" => After::Add(residual),
                        _ => After::Gate(Activation::Silu),
                    };
                    linear(&m, xv, &p, yv, &Epilogue { bias: Some(&bias), after: last }).unwrap();
                    let want = composed(after, &sums, &bias, n, &loaded(&res, dtype), dtype, M::KIND);
                    let got = loaded(bytes(&ys), dtype);
                    assert_eq!(bits(&got), bits(&want), "{after} {dtype} t={t} {:?}", m.isa);
                }
            }
        }
    }
}

#[test]
fn fused_epilogues_equal_composed_ops() {
    epilogues_of::<FusedMadd>();
    epilogues_of::<SeparateMadd>();
}

#[test]
fn filling_in_ranges_equals_one_call_and_rows_read_back() {
    let m = Machine::new(2, Madd::Fused);
    for (format, source) in FORMATS {
        for layout in [Layout::Plain, Layout::Gate] {
            let (n, k) = (74, 64);
            let raw = rows(format, n, k);
            let size = format.bytes(1, k);
            let mut p = Packed::new(format, n, k, 1, layout).unwrap();
            for r in [30..61, 0..1, 1..30, 61..74] {
                p.fill(&m.pool, source, r.clone(), &raw[r.start * size..r.end * size]).unwrap();
            }
            let whole =
                Packed::new(format, n, k, 1, layout).and_then(|p| p.filled(&m.pool, source, &raw)).unwrap();
            let w = weights(format, &raw, n, k);
            for r in 0..n {
                let (mut a, mut b) = (vec![0f32; k], vec![0f32; k]);
                unpack(&m, &p, r, &mut a);
                unpack(&m, &whole, r, &mut b);
                assert_eq!(bits(&a), bits(&w[r * k..][..k]), "{format} {layout:?} row {r}");
                assert_eq!(bits(&b), bits(&a));
            }
        }
    }
}

#[test]
fn sources_convert_to_plain_formats() {
    let m = Machine::new(1, Madd::Fused);
    let (n, k) = (5, 32);
    for (format, source) in FORMATS {
        let raw = rows(format, n, k);
        let w = weights(format, &raw, n, k);
        let to = WeightFormat::Plain(Float::F32);
        let p =
            Packed::new(to, n, k, 1, Layout::Plain).and_then(|p| p.filled(&m.pool, source, &raw)).unwrap();
        let mut x = vec![0f32; k];
        x[3] = 1.0;
        let mut y = vec![0f32; n];
        // SAFETY: the slices outlive the call.
        let (xv, yv) = unsafe { (RawMat::of(&x, k), RawMatMut::of(&mut y, n)) };
        linear(&m, xv, &p, yv, &Epilogue::NONE).unwrap();
        assert!((0..n).all(|r| y[r] == w[r * k + 3]), "{format}");
    }
}

#[test]
fn mistakes_are_errors() {
    let m = Machine::new(1, Madd::Fused);
    let f = WeightFormat::Plain(Float::F32);
    assert!(Packed::new(f, 3, 4, 1, Layout::Gate).is_err());
    assert!(Packed::new(f, usize::MAX / 2, usize::MAX / 2, 1, Layout::Plain).is_err());
    let mut p = Packed::new(f, 3, 4, 1, Layout::Plain).unwrap();
    assert!(p.fill(&m.pool, Stored::F32, 0..4, &[0; 64]).is_err());
    assert!(p.fill(&m.pool, Stored::F32, 0..2, &[0; 31]).is_err());
    assert!(p.fill(&m.pool, Stored::I32, 0..2, &[0; 32]).is_err());
    let mut q = Packed::new(WeightFormat::Block(Block::Q4_0), 3, 32, 1, Layout::Plain).unwrap();
    assert!(q.fill(&m.pool, Stored::F32, 0..1, &[0; 128]).is_err());
    let (x, mut y) = (vec![0f32; 8], vec![0f32; 6]);
    // SAFETY: the slices outlive the calls.
    let (xv, yv) = unsafe { (RawMat::of(&x, 4), RawMatMut::of(&mut y, 3)) };
    linear(&m, xv, &p, yv, &Epilogue::NONE).unwrap();
    let gate = Epilogue { bias: None, after: After::Gate(Activation::Silu) };
    assert!(linear(&m, xv, &p, yv, &gate).is_err());
    assert!(linear(&m, xv, &p, yv, &Epilogue { bias: Some(&[0.0]), after: After::Nothing }).is_err());
}
