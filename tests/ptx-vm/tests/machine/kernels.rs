//! What NVRTC 12.8.93 makes of real kernels (`tests/ptx`), against f64 models and under every schedule.

use ptx_vm::tensor::{DataType, Swizzle, TensorMap};
use ptx_vm::{Launch, Options};

use crate::harness::{Arg, Bench, Dice, bf16, from_bf16, schedules};

macro_rules! ptx {
    ($name:literal) => {
        include_str!(concat!("../ptx/", $name, ".ptx"))
    };
}

fn close(got: f32, want: f64, relative: f64, absolute: f64) -> bool {
    (f64::from(got) - want).abs() <= relative * want.abs() + absolute
}

fn reals(seed: u64, n: usize, scale: f32) -> Vec<f32> {
    let mut dice = Dice(seed);
    (0..n).map(|_| dice.real() * scale).collect()
}

pub fn rmsnorm(ptx: &str, options: &Options) -> Result<(), ptx_vm::Fault> {
    let (rows, n) = (3, 200);
    let mut b = Bench::new(ptx);
    let x: Vec<u16> = reals(1, rows * n, 2.0).into_iter().map(bf16).collect();
    let w: Vec<u16> = reals(2, n, 1.0).into_iter().map(bf16).collect();
    let (dx, dw, dy) = (b.upload(&x), b.upload(&w), b.empty(rows * n * 2));
    let args = [Arg::U64(dx), Arg::U64(dw), Arg::U64(dy), Arg::U32(n as u32), Arg::F32(1e-5)];
    let launch = b.launch("rmsnorm_bf16", [rows as u32, 1, 1], [96, 1, 1], &args);
    b.run("rmsnorm_bf16", &launch, options)?;
    for (row, got) in b.download::<u16>(dy, rows * n).chunks(n).enumerate() {
        let v: Vec<f64> = x[row * n..][..n].iter().map(|&h| f64::from(from_bf16(h))).collect();
        let r = 1.0 / (v.iter().map(|x| x * x).sum::<f64>() / n as f64 + 1e-5).sqrt();
        for i in 0..n {
            assert!(close(from_bf16(got[i]), v[i] * r * f64::from(from_bf16(w[i])), 0.005, 1e-6));
        }
    }
    Ok(())
}

/// The GEMM of `gemm.cu`; false when the numbers are wrong.
pub fn gemm(ptx: &str, (m, n, k): (usize, usize, usize), options: &Options) -> Result<bool, ptx_vm::Fault> {
    let mut bench = Bench::new(ptx);
    let a: Vec<u16> = reals(1, m * k, 1.0).into_iter().map(bf16).collect();
    let b: Vec<u16> = reals(2, n * k, 1.0).into_iter().map(bf16).collect();
    let (da, db, dc) = (bench.upload(&a), bench.upload(&b), bench.empty(m * n * 2));
    let args = [
        Arg::U64(da),
        Arg::U64(db),
        Arg::U64(dc),
        Arg::U32(m as u32),
        Arg::U32(n as u32),
        Arg::U32(k as u32),
    ];
    let grid = [n.div_ceil(64) as u32, m.div_ceil(64) as u32, 1];
    let launch = bench.launch("gemm_bf16", grid, [128, 1, 1], &args);
    bench.run("gemm_bf16", &launch, options)?;
    let c = bench.download::<u16>(dc, m * n);
    let value = |v: &[u16], i: usize| f64::from(from_bf16(v[i]));
    Ok((0..m).all(|i| {
        (0..n).all(|j| {
            let want: f64 = (0..k).map(|q| value(&a, i * k + q) * value(&b, j * k + q)).sum();
            close(from_bf16(c[i * n + j]), want, 0.005, 1e-4)
        })
    }))
}

/// The TMA and wgmma GEMM of `wgmma.cu`; false when the numbers are wrong.
pub fn wgmma(ptx: &str, (m, n, k): (usize, usize, usize), options: &Options) -> Result<bool, ptx_vm::Fault> {
    let mut bench = Bench::new(ptx);
    let a: Vec<u16> = reals(1, m * k, 1.0).into_iter().map(bf16).collect();
    let b: Vec<u16> = reals(2, n * k, 1.0).into_iter().map(bf16).collect();
    let (da, db, dc) = (bench.upload(&a), bench.upload(&b), bench.empty(m * n * 4));
    let map = |at: u64, rows: usize| {
        let mut map =
            TensorMap::tiled(DataType::Bf16, at, &[k as u64, rows as u64], &[k as u64 * 2], &[64, 64]);
        map.swizzle = Swizzle::Bytes128;
        Arg::Bytes(map.encode().unwrap().to_vec())
    };
    let args = [map(da, m), map(db, n), Arg::U64(dc), Arg::U32(n as u32), Arg::U32(k as u32)];
    let grid = [(n / 64) as u32, (m / 64) as u32, 1];
    let launch = Launch { dynamic_shared: 32768, ..bench.launch("gemm_wgmma", grid, [128, 1, 1], &args) };
    bench.run("gemm_wgmma", &launch, options)?;
    let c = bench.download::<f32>(dc, m * n);
    let value = |v: &[u16], i: usize| f64::from(from_bf16(v[i]));
    Ok((0..m).all(|i| {
        (0..n).all(|j| {
            let want: f64 = (0..k).map(|q| value(&a, i * k + q) * value(&b, j * k + q)).sum();
            close(c[i * n + j], want, 1e-5, 1e-4)
        })
    }))
}

#[test]
fn rmsnorm_and_gemms_under_every_schedule() {
    for options in schedules(6) {
        rmsnorm(ptx!("rmsnorm"), &options).unwrap();
        assert!(gemm(ptx!("gemm"), (70, 66, 72), &options).unwrap());
        assert!(wgmma(ptx!("wgmma"), (64, 128, 192), &options).unwrap());
    }
}

pub fn layers(options: &Options) {
    let mut b = Bench::new(ptx!("layers"));
    let (rows, n) = (3, 130);
    let x = reals(3, rows * n, 6.0);
    let (dx, dy) = (b.upload(&x), b.empty(rows * n * 4));
    let launch = b.launch(
        "softmax",
        [rows as u32, 1, 1],
        [64, 1, 1],
        &[Arg::U64(dx), Arg::U64(dy), Arg::U32(n as u32)],
    );
    b.run("softmax", &launch, options).unwrap();
    for (got, x) in b.download::<f32>(dy, rows * n).chunks(n).zip(x.chunks(n)) {
        let top = x.iter().copied().fold(f32::MIN, f32::max);
        let e: Vec<f64> = x.iter().map(|v| f64::from(v - top).exp()).collect();
        let sum: f64 = e.iter().sum();
        assert!(got.iter().zip(e).all(|(g, e)| close(*g, e / sum, 1e-5, 1e-9)));
    }
    let (tokens, heads, dim) = (4usize, 2usize, 16usize);
    let x = reals(4, tokens * heads * dim, 1.0);
    let positions = [0i32, 3, 1000, 70_000];
    let (dx, dp) = (b.upload(&x), b.upload(&positions));
    let args = [Arg::U64(dx), Arg::U64(dp), Arg::U32(heads as u32), Arg::U32(dim as u32), Arg::F32(10000.0)];
    let launch = b.launch("rope", [1, tokens as u32, 1], [32, 1, 1], &args);
    b.run("rope", &launch, options).unwrap();
    let got = b.download::<f32>(dx, x.len());
    for (at, _) in x.iter().enumerate().filter(|(at, _)| at % dim < dim / 2) {
        let (token, i) = (at / (heads * dim), at % dim);
        // The kernel's angle is an f32: its rounding is the kernel's, not the machine's.
        let angle = f64::from(positions[token] as f32 * (10000f64.powf(-2.0 * i as f64 / dim as f64) as f32));
        let (p, q) = (f64::from(x[at]), f64::from(x[at + dim / 2]));
        let slack = 1e-6 + angle.abs() * 3e-7;
        assert!(close(got[at], p * angle.cos() - q * angle.sin(), 1e-5, slack), "token {token} pair {i}");
        assert!(close(got[at + dim / 2], p * angle.sin() + q * angle.cos(), 1e-5, slack));
    }
    let n = 200;
    let x = reals(5, n, 8.0);
    let (dx, dy) = (b.upload(&x), b.empty(5 * n * 4));
    let launch =
        b.launch("activations", [4, 1, 1], [64, 1, 1], &[Arg::U64(dx), Arg::U64(dy), Arg::U32(n as u32)]);
    b.run("activations", &launch, options).unwrap();
    let got = b.download::<f32>(dy, 5 * n);
    for (i, &x) in x.iter().enumerate() {
        let v = f64::from(x);
        let erf = erf(v * f64::from(std::f32::consts::FRAC_1_SQRT_2));
        let tanh = (0.797_884_560_8 * (v + 0.044715 * v * v * v)).tanh();
        let models = [
            v / (1.0 + (-v).exp()),
            0.5 * v * (1.0 + erf),
            0.5 * v * (1.0 + tanh),
            (-v.abs()).exp().ln_1p() + v.max(0.0),
            v.exp() / (1.0 + v * v) + 1.0 / (1.0 + v * v).sqrt(),
        ];
        for (row, want) in models.into_iter().enumerate() {
            assert!(
                close(got[row * n + i], want, 3e-6, 2e-6),
                "function {row} of {x}: {} {want}",
                got[row * n + i]
            );
        }
    }
    let x: Vec<f64> = reals(6, 100, 1.0).into_iter().map(f64::from).collect();
    let (dx, dy) = (b.upload(&x), b.empty(8));
    let launch = b.launch("double_sum", [1, 1, 1], [32, 1, 1], &[Arg::U64(dx), Arg::U64(dy), Arg::U32(100)]);
    b.run("double_sum", &launch, options).unwrap();
    let want: f64 = x.iter().map(|v| v.exp() * (v + 2.0).sqrt()).sum();
    assert!((b.download::<f64>(dy, 1)[0] - want).abs() < 1e-11 * want);
}

#[test]
fn softmax_rope_activations() {
    schedules(1).iter().for_each(layers);
}

/// The error function: its series near zero, the continued fraction of its complement further out.
fn erf(x: f64) -> f64 {
    if x.abs() > 2.0 {
        let a = x.abs();
        let fraction = (1..80).rev().fold(a, |f, k| a + 0.5 * f64::from(k) / f);
        return (1.0 - (-a * a).exp() / (std::f64::consts::PI.sqrt() * fraction)).copysign(x);
    }
    let (mut sum, mut term) = (0.0, x);
    for n in 0..60 {
        sum += term / f64::from(2 * n + 1);
        term *= -x * x / f64::from(n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

pub fn integers(options: &Options) {
    let mut dice = Dice(8);
    let mut b = Bench::new(ptx!("integers"));
    let (rows, blocks) = (4, 40);
    let x = reals(9, blocks * 32, 1.0);
    let mut w = Vec::new();
    let mut want = vec![0f64; rows];
    for sum in &mut want {
        for block in 0..blocks {
            let scale = 0.25 * (1 + dice.below(7)) as f32;
            w.extend(ptx_vm::number::half::f16_from_f32(scale).to_le_bytes());
            for i in 0..16 {
                let q = dice.below(256) as u8;
                w.push(q);
                let at = |j: usize| f64::from(x[block * 32 + j]);
                *sum += f64::from(scale)
                    * (f64::from(i32::from(q & 15) - 8) * at(i)
                        + f64::from(i32::from(q >> 4) - 8) * at(i + 16));
            }
        }
    }
    let (dw, dx, dy) = (b.upload(&w), b.upload(&x), b.empty(rows * 4));
    let args = [Arg::U64(dw), Arg::U64(dx), Arg::U64(dy), Arg::U32(blocks as u32)];
    let launch = b.launch("q4_dot", [2, 1, 1], [64, 1, 1], &args);
    b.run("q4_dot", &launch, options).unwrap();
    assert!(b.download::<f32>(dy, rows).iter().zip(want).all(|(g, w)| close(*g, w, 1e-4, 1e-2)));

    let n = 70;
    let a: Vec<u32> = (0..3 * n).map(|_| dice.next() as u32).collect();
    let c: Vec<u32> = (0..n).map(|_| dice.next() as u32).collect();
    let (da, dc, dy) = (b.upload(&a), b.upload(&c), b.empty(12));
    let launch = b.launch(
        "i8_dot",
        [3, 1, 1],
        [32, 1, 1],
        &[Arg::U64(da), Arg::U64(dc), Arg::U64(dy), Arg::U32(n as u32)],
    );
    b.run("i8_dot", &launch, options).unwrap();
    let bytes = |v: u32| v.to_le_bytes().map(|x| i32::from(x as i8));
    for (row, got) in b.download::<i32>(dy, 3).into_iter().enumerate() {
        let want: i32 =
            (0..n).flat_map(|i| bytes(a[row * n + i]).into_iter().zip(bytes(c[i]))).map(|(x, y)| x * y).sum();
        assert_eq!(got, want);
    }

    let x: Vec<i32> = (0..100).map(|_| dice.below(1000) as i32).collect();
    let (dx, dy, count) = (b.upload(&x), b.empty(400), b.upload(&[0i32]));
    let launch = b.launch(
        "compact",
        [2, 1, 1],
        [64, 1, 1],
        &[Arg::U64(dx), Arg::U64(dy), Arg::U64(count), Arg::U32(100)],
    );
    b.run("compact", &launch, options).unwrap();
    let mut want: Vec<i32> = x.iter().copied().filter(|v| v % 3 == 0).collect();
    assert_eq!(b.download::<i32>(count, 1)[0] as usize, want.len());
    let mut got = b.download::<i32>(dy, want.len());
    want.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, want);

    let x: Vec<u8> = (0..500).map(|_| dice.next() as u8).collect();
    let (dx, bins) = (b.upload(&x), b.upload(&[0u32; 64]));
    let launch = b.launch("histogram", [3, 1, 1], [64, 1, 1], &[Arg::U64(dx), Arg::U64(bins), Arg::U32(500)]);
    b.run("histogram", &launch, options).unwrap();
    let want: Vec<u32> = (0..64).map(|i| x.iter().filter(|v| **v & 63 == i).count() as u32).collect();
    assert_eq!(b.download::<u32>(bins, 64), want);

    let x = reals(10, 64, 300.0);
    let (dx, codes, back) = (b.upload(&x), b.empty(64), b.empty(256));
    let launch = b.launch(
        "fp8",
        [1, 1, 1],
        [32, 1, 1],
        &[Arg::U64(dx), Arg::U64(codes), Arg::U64(back), Arg::U32(64)],
    );
    b.run("fp8", &launch, options).unwrap();
    assert!(b.download::<f32>(back, 64).iter().zip(&x).all(|(g, x)| (g - x).abs() <= x.abs() / 16.0 + 0.001));

    let v: Vec<i32> = (0..64).map(|_| dice.below(9) as i32 - 4).collect();
    let (dx, dy) = (b.upload(&v), b.empty(256));
    let launch = b.launch("block_votes", [1, 1, 1], [64, 1, 1], &[Arg::U64(dx), Arg::U64(dy)]);
    b.run("block_votes", &launch, options).unwrap();
    let want = v.iter().filter(|v| **v > 0).count() as i32 * 4 + 2;
    assert_eq!(b.download::<i32>(dy, 64), vec![want; 64]);

    let dy = b.empty(64 * 8);
    let launch = b.launch("calls", [2, 1, 1], [32, 1, 1], &[Arg::U64(dy)]);
    b.run("calls", &launch, options).unwrap();
    let steps = |mut n: u32| {
        let mut s = 0;
        while n != 1 {
            n = if n % 2 == 1 { 3 * n + 1 } else { n / 2 };
            s += 1;
        }
        s
    };
    for (i, got) in b.download::<u32>(dy, 128).chunks(2).enumerate() {
        let (p, q) = (steps(i as u32 + 1), steps(2 * i as u32 + 1));
        assert_eq!(got, [p + q, p.max(q).max(5)]);
    }
}

#[test]
fn integers_votes_and_calls() {
    schedules(2).iter().for_each(integers);
}

pub fn stencil(ptx: &str, options: &Options, cooperative: bool) -> Result<(), ptx_vm::Fault> {
    let (n, steps) = (200, 5);
    let mut b = Bench::new(ptx);
    let mut a = reals(12, n, 1.0);
    let (da, db, counter) = (b.upload(&a), b.upload(&vec![0f32; n]), b.upload(&[0u32]));
    let args = [Arg::U64(da), Arg::U64(db), Arg::U64(counter), Arg::U32(n as u32), Arg::U32(steps)];
    let launch = Launch { cooperative, ..b.launch("stencil", [4, 1, 1], [64, 1, 1], &args) };
    b.run("stencil", &launch, options)?;
    for _ in 0..steps {
        a = (0..n)
            .map(|i| {
                0.25f32.mul_add(a[(i + 1).min(n - 1)], 0.25f32.mul_add(a[i.saturating_sub(1)], 0.5 * a[i]))
            })
            .collect();
    }
    assert!(b.download::<f32>(db, n).iter().zip(a).all(|(g, w)| close(*g, w.into(), 1e-5, 1e-6)));
    Ok(())
}

pub fn last_block(ptx: &str, options: &Options) -> Result<(), ptx_vm::Fault> {
    let mut b = Bench::new(ptx);
    let x = reals(13, 1000, 1.0);
    let (dx, partial, dy, counter) = (b.upload(&x), b.empty(20), b.empty(4), b.upload(&[0u32]));
    let args = [Arg::U64(dx), Arg::U64(partial), Arg::U64(dy), Arg::U64(counter), Arg::U32(1000)];
    let launch = b.launch("last_block_sum", [5, 1, 1], [64, 1, 1], &args);
    b.run("last_block_sum", &launch, options)?;
    assert!(close(b.download::<f32>(dy, 1)[0], x.iter().map(|v| f64::from(*v)).sum(), 1e-5, 1e-4));
    Ok(())
}

#[test]
fn blocks_that_wait_for_each_other() {
    for options in schedules(4) {
        stencil(ptx!("grid"), &options, true).unwrap();
        // Without the attribute the blocks are admitted when the first ones spin.
        stencil(ptx!("grid"), &options, false).unwrap();
        last_block(ptx!("grid"), &options).unwrap();
    }
}

pub fn cluster_sum(ptx: &str, options: &Options) -> Result<(), ptx_vm::Fault> {
    let mut b = Bench::new(ptx);
    let x = reals(14, 256, 1.0);
    let (dx, dy) = (b.upload(&x), b.empty(1024));
    let launch = Launch {
        cluster: [4, 1, 1],
        ..b.launch("cluster_sum", [8, 1, 1], [32, 1, 1], &[Arg::U64(dx), Arg::U64(dy)])
    };
    b.run("cluster_sum", &launch, options)?;
    for (i, got) in b.download::<f32>(dy, 256).into_iter().enumerate() {
        let base = i / 128 * 128 + i % 32;
        let want: f64 = (0..4).map(|r| f64::from(x[base + 32 * r])).sum();
        assert!(close(got, want, 1e-6, 1e-6));
    }
    Ok(())
}

pub fn pipeline(ptx: &str, options: &Options) -> Result<(), ptx_vm::Fault> {
    let (blocks, tiles) = (2, 5);
    let mut b = Bench::new(ptx);
    let x = reals(15, blocks * tiles * 512, 1.0);
    let (dx, dy) = (b.upload(&x), b.empty(blocks * 512));
    let args = [Arg::U64(dx), Arg::U64(dy), Arg::U32(tiles as u32), Arg::F32(0.5)];
    let launch = b.launch("pipeline", [blocks as u32, 1, 1], [160, 1, 1], &args);
    b.run("pipeline", &launch, options)?;
    for (i, got) in b.download::<f32>(dy, blocks * 128).into_iter().enumerate() {
        let (block, t) = (i / 128, i % 128);
        let want: f64 = (0..tiles * 4).map(|j| 0.5 * f64::from(x[block * tiles * 512 + j * 128 + t])).sum();
        assert!(close(got, want, 1e-5, 1e-6));
    }
    Ok(())
}

#[test]
fn clusters_and_pipelines() {
    for options in schedules(6) {
        cluster_sum(ptx!("cluster"), &options).unwrap();
        pipeline(ptx!("cluster"), &options).unwrap();
    }
}

/// Correct kernels under many schedules; run by hand.
#[test]
#[ignore = "long: 100 schedules of every correct kernel; run with --ignored --nocapture"]
fn a_hundred_schedules_without_a_false_alarm() {
    type Kernel = fn(&Options);
    let kernels: [(usize, Kernel); 9] = [
        (1, |o| rmsnorm(ptx!("rmsnorm"), o).unwrap()),
        (1, |o| assert!(gemm(ptx!("gemm"), (70, 66, 72), o).unwrap())),
        (1, |o| assert!(wgmma(ptx!("wgmma"), (64, 128, 192), o).unwrap())),
        (2, |o| [true, false].iter().for_each(|c| stencil(ptx!("grid"), o, *c).unwrap())),
        (1, |o| last_block(ptx!("grid"), o).unwrap()),
        (1, |o| cluster_sum(ptx!("cluster"), o).unwrap()),
        (1, |o| pipeline(ptx!("cluster"), o).unwrap()),
        (4, layers),
        (7, integers),
    ];
    let schedules = schedules(98);
    for options in &schedules {
        kernels.iter().for_each(|(_, run)| run(options));
    }
    let launches: usize = kernels.iter().map(|(n, _)| n * schedules.len()).sum();
    println!("{launches} launches of correct kernels under {} schedules, and no alarm", schedules.len());
}
