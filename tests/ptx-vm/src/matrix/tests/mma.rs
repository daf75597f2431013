//! `mma.sync`, all shapes.

use super::*;
use crate::Row;
use crate::matrix::mma::Mma;
use crate::matrix::sum::Summation;

/// Row and column of element `i` of A in a lane (groupID `g`, threadID_in_group `t`), as the manual's section
/// on the shape says it.
fn manual_a(mma: &Mma, i: usize, g: usize, t: usize) -> (usize, usize) {
    let either = |first: bool| if first { g } else { g + 8 };
    match (mma.a, mma.m, mma.k) {
        (Element::F16 | Element::Bf16, 16, 8) => (either(i < 2), 2 * t + (i & 1)),
        (Element::F16 | Element::Bf16, 16, 16) => {
            let first = i < 2 || (4..6).contains(&i);
            (either(first), 2 * t + (i & 1) + if i < 4 { 0 } else { 8 })
        }
        (Element::Tf32, 16, 4) => (either(i == 0), t),
        (Element::Tf32, 16, 8) => (either(i == 0 || i == 2), if i < 2 { t } else { t + 4 }),
        (Element::F64, 8, 4) => (g, t),
        (Element::F64, 16, 4) => (either(i == 0), t),
        (Element::F64, 16, 8) => (either(i == 0 || i == 2), if i < 2 { t } else { t + 4 }),
        (Element::F64, 16, 16) => (either(i.is_multiple_of(2)), i * 2 - 2 * (i % 2) + t),
        (Element::S8 | Element::U8, 8, 16) => (g, 4 * t + i),
        (Element::S8 | Element::U8 | Element::E4m3 | Element::E5m2, 16, 16) => {
            (either(i < 4), 4 * t + (i & 3))
        }
        (Element::S8 | Element::U8 | Element::E4m3 | Element::E5m2, 16, 32) => {
            let first = i < 4 || (8..12).contains(&i);
            (either(first), 4 * t + (i & 3) + if i < 8 { 0 } else { 16 })
        }
        (Element::S4 | Element::U4, 8, 32) => (g, 8 * t + i),
        (Element::S4 | Element::U4, 16, 32) => (either(i < 8), 8 * t + (i & 7)),
        (Element::S4 | Element::U4, 16, 64) => {
            let first = i < 8 || (16..24).contains(&i);
            (either(first), 8 * t + (i & 7) + if i < 16 { 0 } else { 32 })
        }
        _ => panic!("no formula for {mma:?}"),
    }
}

/// Row of element `i` of B; its column is `g`.
fn manual_b(mma: &Mma, i: usize, t: usize) -> usize {
    match (mma.a.bits(), mma.k) {
        (16, 8) => 2 * t + i,
        (16, 16) => 2 * t + (i & 1) + if i < 2 { 0 } else { 8 },
        (32 | 64, 4) => t,
        (32 | 64, 8) => {
            if i == 0 {
                t
            } else {
                t + 4
            }
        }
        (64, 16) => t + 4 * i,
        (8, 16) => 4 * t + i,
        (8, 32) => 4 * t + (i & 3) + if i < 4 { 0 } else { 16 },
        (4, 32) => 8 * t + i,
        (4, 64) => 8 * t + (i & 7) + if i < 8 { 0 } else { 32 },
        _ => panic!("no formula for {mma:?}"),
    }
}

/// Row and column of element `i` of C or D.
fn manual_c(mma: &Mma, i: usize, g: usize, t: usize) -> (usize, usize) {
    match mma.m {
        8 => (g, 2 * t + i),
        _ => (if i < 2 { g } else { g + 8 }, 2 * t + (i & 1)),
    }
}

/// Packs elements of `bits` bits, lowest first, into registers of 32.
fn pack(codes: &[u64], bits: usize) -> Vec<u32> {
    let per = 32 / bits;
    codes
        .chunks(per)
        .map(|c| c.iter().enumerate().fold(0, |w, (i, &x)| w | (x as u32) << (i * bits)))
        .collect()
}

pub struct Fragments {
    pub a: Vec<Row>,
    pub b: Vec<Row>,
    pub c: Vec<Row>,
}

fn accumulator_bits(kind: Accumulator) -> usize {
    if kind == Accumulator::F16 { 16 } else { 32 }
}

pub fn fragments(mma: &Mma, a: &[Vec<f64>], b: &[Vec<f64>], c: &[Vec<f64>]) -> Fragments {
    let mut f = Fragments {
        a: vec![[0; 32]; mma.a_registers()],
        b: vec![[0; 32]; mma.b_registers()],
        c: vec![[0; 32]; mma.c_registers()],
    };
    for lane in 0..32 {
        let (g, t) = (lane / 4, lane % 4);
        let each = |count: usize, f: &dyn Fn(usize) -> u64| (0..count).map(f).collect::<Vec<_>>();
        let codes = each(mma.m * mma.k / 32, &|i| {
            let (row, column) = manual_a(mma, i, g, t);
            encode(mma.a, a[row][column])
        });
        let b_codes = each(8 * mma.k / 32, &|i| encode(mma.b, b[manual_b(mma, i, t)][g]));
        let c_codes = each(mma.m * 8 / 32, &|i| {
            let (row, column) = manual_c(mma, i, g, t);
            encode_sum(mma.accumulator, c[row][column])
        });
        for (rows, words) in [
            (&mut f.a, pack(&codes, mma.a.bits())),
            (&mut f.b, pack(&b_codes, mma.b.bits())),
            (&mut f.c, pack(&c_codes, accumulator_bits(mma.accumulator))),
        ] {
            assert_eq!(rows.len(), words.len(), "registers of {mma:?}");
            for (row, word) in rows.iter_mut().zip(words) {
                row[lane] = word;
            }
        }
    }
    f
}

/// Takes D apart by the manual's formula.
pub fn result(mma: &Mma, d: &[Row]) -> Vec<Vec<f64>> {
    let mut out = vec![vec![f64::NAN; 8]; mma.m];
    let bits = accumulator_bits(mma.accumulator);
    for i in 0..mma.m * 8 / 32 {
        for (lane, &word) in d[i * bits / 32].iter().enumerate() {
            let (row, column) = manual_c(mma, i, lane / 4, lane % 4);
            let code = u64::from(word) >> (i * bits % 32) & (u64::MAX >> (64 - bits));
            out[row][column] = decode_sum(mma.accumulator, code);
        }
    }
    out
}

/// All instructions that `parse` takes, without f64.
pub fn all() -> Vec<Mma> {
    let types = ["f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "s4", "u4"];
    let mut out = Vec::new();
    for m in [8, 16] {
        for k in [4, 8, 16, 32, 64] {
            for a in types {
                for b in types {
                    for d in ["f16", "f32", "s32"] {
                        let shape = format!("m{m}n8k{k}");
                        out.extend(Mma::parse(&["sync", "aligned", &shape, "row", "col", d, a, b, d]));
                    }
                }
            }
        }
    }
    out
}

#[test]
fn every_shape_is_the_plain_matmul() {
    let all = all();
    // 2 f16 x 2 accumulators, 2 bf16, 2 tf32, 2 fp8 shapes x 4 pairs x 2 accumulators, 3 shapes x 4 pairs of
    // s8 and of s4.
    assert_eq!(all.len(), 4 + 2 + 2 + 16 + 12 + 12);
    let mut numbers = Numbers(1);
    for mma in all {
        let (a, b) = (numbers.integers(mma.a, mma.m, mma.k), numbers.integers(mma.b, mma.k, 8));
        let c = numbers.integers(Element::S4, mma.m, 8);
        let f = fragments(&mma, &a, &b, &c);
        let mut d = vec![[0xdead_beef; 32]; mma.c_registers()];
        for summation in [Summation::Plain, Summation::Ampere, Summation::Hopper] {
            mma.run(&mut d, &f.a, &f.b, &f.c, summation);
            assert_eq!(result(&mma, &d), matmul(&a, &b, &c), "{mma:?} {summation:?}");
        }
    }
}

#[test]
fn real_numbers_are_summed_in_ascending_k_from_the_accumulator() {
    let mut numbers = Numbers(2);
    for mma in all().into_iter().filter(|mma| !mma.a.is_integer()) {
        for _ in 0..20 {
            let (a, b) = (numbers.reals(mma.a, mma.m, mma.k), numbers.reals(mma.b, mma.k, 8));
            let c: Vec<Vec<f64>> = (0..mma.m)
                .map(|_| {
                    (0..8)
                        .map(|_| decode_sum(mma.accumulator, encode_sum(mma.accumulator, numbers.real())))
                        .collect()
                })
                .collect();
            let f = fragments(&mma, &a, &b, &c);
            let mut d = f.c.clone();
            mma.run(&mut d, &f.a, &f.b, &f.c, Summation::Plain);
            let mut want = chain(&a, &b, &c);
            want.iter_mut()
                .flatten()
                .for_each(|x| *x = decode_sum(mma.accumulator, encode_sum(mma.accumulator, *x)));
            assert_eq!(result(&mma, &d), want, "{mma:?}");
            // The hardware's order differs by what it truncates: bounded by a unit per term at the largest
            // exponent.
            let exact = matmul(&a, &b, &c);
            let unit = if mma.accumulator == Accumulator::F16 { 2f64.powi(-9) } else { 2f64.powi(-23) };
            for summation in [Summation::Ampere, Summation::Hopper] {
                mma.run(&mut d, &f.a, &f.b, &f.c, summation);
                for (got, want) in result(&mma, &d).iter().flatten().zip(exact.iter().flatten()) {
                    assert!(
                        (got - want).abs() <= mma.k as f64 * 4.0 * unit,
                        "{mma:?} {summation:?}: {got} {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn integer_accumulators_wrap_or_clamp() {
    let parts = |more: &[&'static str]| {
        [&["sync", "aligned", "m16n8k32", "row", "col"], more, &["s32", "s8", "s8", "s32"]].concat()
    };
    let (wrap, clamp) = (Mma::parse(&parts(&[])).unwrap(), Mma::parse(&parts(&["satfinite"])).unwrap());
    let ones = [[0x7f7f_7f7f; 32]; 4];
    let c = [[i32::MAX as u32 - 5; 32]; 4];
    let mut d = [[0; 32]; 4];
    let sum = 127 * 127 * 32;
    wrap.run(&mut d, &ones, &ones[..2], &c, Summation::Plain);
    assert_eq!(d, [[(i32::MAX - 5).wrapping_add(sum) as u32; 32]; 4]);
    clamp.run(&mut d, &ones, &ones[..2], &c, Summation::Plain);
    assert_eq!(d, [[i32::MAX as u32; 32]; 4]);
}

#[test]
fn special_values_pass_unchanged() {
    let mma = Mma::parse(&["m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"]).unwrap();
    let mut a = vec![vec![0.0; 16]; 16];
    let mut b = vec![vec![1.0; 8]; 16];
    let c = vec![vec![-0.0; 8]; 16];
    a[0][3] = f64::INFINITY;
    a[1][0] = f64::INFINITY;
    b[0][2] = -1.0;
    a[1][1] = f64::INFINITY;
    a[2][0] = f64::NAN;
    let f = fragments(&mma, &a, &b, &c);
    let mut d = f.c.clone();
    for summation in [Summation::Plain, Summation::Hopper] {
        mma.run(&mut d, &f.a, &f.b, &f.c, summation);
        let got = result(&mma, &d);
        assert_eq!(got[0][0], f64::INFINITY);
        assert!(got[1][2].is_nan() && got[1][1] == f64::INFINITY && got[2][0].is_nan());
        assert!(d.iter().flatten().all(|&bits| !f32::from_bits(bits).is_nan() || bits == 0x7fff_ffff));
    }
}

#[test]
fn f64_shapes_are_fused_chains() {
    let mut numbers = Numbers(3);
    for shape in ["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"] {
        let mma = Mma::parse(&["sync", "aligned", shape, "row", "col", "f64", "f64", "f64", "f64"]).unwrap();
        let matrix = |numbers: &mut Numbers, rows: usize, columns: usize| -> Vec<Vec<f64>> {
            (0..rows).map(|_| (0..columns).map(|_| numbers.real()).collect()).collect()
        };
        let (a, b, c) = (
            matrix(&mut numbers, mma.m, mma.k),
            matrix(&mut numbers, mma.k, 8),
            matrix(&mut numbers, mma.m, 8),
        );
        let mut fa = vec![[0u64; 32]; mma.a_registers()];
        let mut fb = vec![[0u64; 32]; mma.b_registers()];
        let mut fc = vec![[0u64; 32]; mma.c_registers()];
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            for (i, row) in fa.iter_mut().enumerate() {
                let (m, k) = manual_a(&mma, i, g, t);
                row[lane] = a[m][k].to_bits();
            }
            for (i, row) in fb.iter_mut().enumerate() {
                row[lane] = b[manual_b(&mma, i, t)][g].to_bits();
            }
            for (i, row) in fc.iter_mut().enumerate() {
                let (m, n) = manual_c(&mma, i, g, t);
                row[lane] = c[m][n].to_bits();
            }
        }
        let mut d = vec![[0u64; 32]; mma.c_registers()];
        mma.run_f64(&mut d, &fa, &fb, &fc);
        for lane in 0..32 {
            for (i, d) in d.iter().enumerate() {
                let (m, n) = manual_c(&mma, i, lane / 4, lane % 4);
                let want = (0..mma.k).fold(c[m][n], |sum, k| a[m][k].mul_add(b[k][n], sum));
                assert_eq!(f64::from_bits(d[lane]), want, "{shape} element ({m}, {n})");
            }
        }
    }
}

#[test]
fn impossible_instructions_are_refused_by_name() {
    let refuse = |parts: &[&str]| Mma::parse(parts).unwrap_err();
    assert!(refuse(&["m16n8k32", "row", "col", "f32", "bf16", "bf16", "f32"]).contains("not an instruction"));
    assert!(refuse(&["m16n8k16", "row", "col", "f32", "f16", "bf16", "f32"]).contains("not an instruction"));
    assert!(refuse(&["m16n8k16", "row", "col", "f32", "e2m1", "e2m1", "f32"]).contains("`e2m1`"));
    assert!(refuse(&["m17", "f32", "f16", "f16", "f32"]).contains("`m17`"));
    assert!(refuse(&["m16n8k16", "f32", "f16", "f16"]).contains("types"));
    assert!(refuse(&["m16n8k16", "f32", "f16", "f16", "f16"]).contains("accumulator type `f16`"));
    assert!(refuse(&["m16n8k16", "satfinite", "f32", "f16", "f16", "f32"]).contains("not an instruction"));
}
