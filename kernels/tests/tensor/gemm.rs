//! Matmuls: near f64, the same bits for every number of rows.

use crate::machine::{Device, Dice, Type, U, schedules};
use crate::weights::{Weight, random, whole};
use engraft_kernels::file_rows::FileRows;
use engraft_kernels::params::gemm::{Gemm, Sum, Then, leaves, supports};
use engraft_kernels::params::{Activation, Format, MatView};
use ptx_vm::Options;
use sample::some;

/// One matmul.
pub struct Case {
    pub ty: Type,
    pub out: Type,
    pub rows: usize,
    pub w: Weight,
    pub x: Vec<f32>,
    /// Elements from row to row, and before the first.
    pub pitch: usize,
    pub skip: usize,
    /// Elements between rows of the outputs; what stands at each element of them before.
    pub gap: usize,
    pub old: fn(usize) -> f32,
    pub bias: Option<Vec<f32>>,
    pub then: Then,
    pub sum: Sum,
    pub gated: bool,
}

pub fn case(ty: Type, format: Format, group: usize, rows: usize, n: usize, k: usize) -> Case {
    let mut dice = Dice(rows as u64 * 31 + n as u64 * 7 + k as u64);
    let w = random(format, group, n, k, &mut dice);
    let x = (0..rows * k).map(|_| ty.round(dice.unit())).collect();
    let pitch = k.next_multiple_of(8);
    let (sum, then) = (Sum::folded(k, 1), Then::Nothing);
    let old = |_| 0.375;
    Case { ty, out: ty, rows, w, x, pitch, skip: 0, gap: 3, old, bias: None, then, sum, gated: false }
}

pub fn of(ty: Type) -> Format {
    if ty == Type::F16 { Format::F16 } else { Format::Bf16 }
}

/// Old outputs that differ from their neighbours, exact in every type.
pub fn unlike(i: usize) -> f32 {
    (i * 37 % 101) as f32 / 64.0 - 0.75
}

impl Case {
    pub fn columns(&self) -> usize {
        if matches!(self.then, Then::Gate(_)) { self.w.n / 2 } else { self.w.n }
    }

    /// The outputs of rows `rows`, computed in the launch that is chosen for so many.
    pub fn run(&self, rows: std::ops::Range<usize>, options: &Options) -> Vec<f32> {
        self.run_by(rows, options, None)
    }

    /// The same by kernel number `choice`.
    fn run_by(&self, rows: std::ops::Range<usize>, options: &Options, choice: Option<usize>) -> Vec<f32> {
        self.run_with(rows, |device, p| {
            let launch = choice.map_or_else(|| p.launch(), |i| p.choices()[i].clone());
            device.run(&launch, bytemuck::bytes_of(p), options);
        })
    }

    /// The same by whatever `launch` does with it.
    pub fn run_with(
        &self,
        rows: std::ops::Range<usize>,
        launch: impl FnOnce(&mut Device, &Gemm),
    ) -> Vec<f32> {
        let mut device = Device::new();
        let layout = supports(
            self.ty.elem(),
            self.out.elem(),
            self.w.format,
            self.w.group,
            self.w.n,
            self.w.k,
            self.gated,
        )
        .unwrap();
        let mut codes = vec![0; layout.code_bytes()];
        let mut scales = vec![0; layout.scale_bytes()];
        let file = FileRows::new([&self.w.file[..]], layout.row_bytes()).unwrap();
        assert!(layout.pack(0..layout.tiles(), &file, &mut codes, &mut scales));
        let count = rows.len();
        // Rows end where the memory ends: what lies between them is poison, what lies behind a fault.
        let mut x = vec![f32::NAN; self.skip + (count - 1) * self.pitch + self.w.k];
        for (i, row) in rows.enumerate() {
            x[self.skip + i * self.pitch..][..self.w.k]
                .copy_from_slice(&self.x[row * self.w.k..][..self.w.k]);
        }
        let cols = self.columns();
        let out_pitch = cols + self.gap;
        let before: Vec<f32> = (0..(count - 1) * out_pitch + cols).map(self.old).collect();
        let before = self.out.write(&before);
        let mut p = Gemm::new(&layout, self.sum, self.ty.elem(), self.out.elem(), self.then);
        let view = |ptr, pitch: usize, cols: usize| MatView {
            ptr,
            pitch: pitch as u64,
            rows: count as u32,
            cols: cols as u32,
        };
        let from = device.put(&self.ty.write(&x)) + (self.skip * 2) as u64;
        p.x = view(from, self.pitch, self.w.k);
        p.out = view(device.put(&before), out_pitch, cols);
        (p.weight, p.scales) = (device.put_weight(&codes), device.put_weight(&scales));
        p.bias = self.bias.as_ref().map_or(0, |b| device.put(&Type::F32.write(b)));
        launch(&mut device, &p);
        let got = self.out.read(&device.get(p.out.ptr, before.len()));
        let kept = |(i, v): (usize, &f32)| i % out_pitch < cols || *v == (self.old)(i);
        assert!(got.iter().enumerate().all(kept), "columns beyond out");
        got.chunks(out_pitch).flat_map(|row| &row[..cols]).copied().collect()
    }

    /// `(value, what f32 may cost)` of sum and bias.
    fn sum(&self, row: usize, n: usize) -> (f64, f64) {
        let bias = self.bias.as_ref().map_or(0.0, |b| f64::from(b[n]));
        let (x, w) = (&self.x[row * self.w.k..][..self.w.k], &self.w.values[n * self.w.k..][..self.w.k]);
        let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * w);
        let (sum, condition) = terms.fold((bias, bias.abs()), |(s, c), t| (s + t, c + t.abs()));
        (sum, 8.0 * U * condition)
    }

    fn want(&self, row: usize, col: usize) -> (f64, f64) {
        let (v, slack) = self.sum(row, col);
        let off = slack + self.out.half_ulp(v);
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let act = |v: f64, off: f64| (silu(v), 1.13 * off + 8.0 * U * (v.abs() + silu(v).abs()));
        match self.then {
            Then::Nothing => (v, slack),
            Then::Add => (v + f64::from((self.old)(row * (self.columns() + self.gap) + col)), off + U),
            Then::Act(_) => act(v, off),
            Then::Gate(_) => {
                let (u, u_slack) = self.sum(row, col + self.columns());
                let (a, a_off) = act(v, off);
                let u_off = u_slack + self.out.half_ulp(u);
                (a * u, a.abs() * u_off + u.abs() * a_off + a_off * u_off + 2.0 * U * (a * u).abs())
            }
        }
    }

    pub fn check(&self, got: &[f32]) {
        let cols = self.columns();
        assert_eq!(got.len(), self.rows * cols);
        for (i, v) in got.iter().enumerate() {
            let (want, slack) = self.want(i / cols, i % cols);
            let most = slack + self.out.half_ulp(want);
            assert!(
                (f64::from(*v) - want).abs() <= most,
                "{:?} {} rows {} n {} k {}: row {} column {}: {v}, not {want} (within {most:e})",
                self.ty,
                self.w.format.name(),
                self.rows,
                self.w.n,
                self.w.k,
                i / cols,
                i % cols
            );
        }
    }

    /// Near f64, equal bits under all schedules (which differ in how they sum, so the last is only near).
    fn prove(&self) {
        let [forward, reverse, cores] = schedules();
        let got = self.run(0..self.rows, &forward);
        self.check(&got);
        assert_eq!(got, self.run(0..self.rows, &reverse));
        self.check(&self.run(0..self.rows, &cores));
    }
}

/// Every format with a group size of each kind.
pub const QUANTIZED: [(Format, usize); 21] = [
    (Format::Q8_0, 0),
    (Format::Q4_0, 0),
    (Format::Q4_1, 0),
    (Format::Q5_0, 0),
    (Format::Q5_1, 0),
    (Format::Int8, 0),
    (Format::Int8, 32),
    (Format::Int8a, 64),
    (Format::Int8a, 32),
    (Format::Int4, 128),
    (Format::Int4, 0),
    (Format::Int4a, 32),
    (Format::Int4a, 192),
    (Format::Fp8, 128),
    (Format::Fp8, 32),
    (Format::Fp8, 0),
    (Format::Fp4, 16),
    (Format::Mxfp4, 32),
    (Format::Q4K, 0),
    (Format::Q5K, 0),
    (Format::Q6K, 0),
];

/// Each of them with both types.
pub fn of_both_types() -> impl Iterator<Item = ((Format, usize), Type)> {
    QUANTIZED.into_iter().flat_map(|format| [Type::Bf16, Type::F16].map(|ty| (format, ty)))
}

/// All kernels of a case give the bits of the first under all schedules, near f64.
pub fn all_kernels(mut case: Case, kernels: usize) {
    // f32 shows every bit of a sum.
    case.out = Type::F32;
    let [forward, reverse, cores] = schedules();
    let first = case.run_by(0..case.rows, &forward, Some(0));
    case.check(&first);
    for kernel in 0..kernels {
        assert_eq!(first, case.run_by(0..case.rows, &reverse, Some(kernel)), "kernel {kernel}");
        if kernel > 0 {
            assert_eq!(first, case.run_by(0..case.rows, &forward, Some(kernel)), "kernel {kernel}, forward");
        }
    }
    let first = case.run_by(0..case.rows, &cores, Some(0));
    case.check(&first);
    for kernel in 1..kernels {
        assert_eq!(first, case.run_by(0..case.rows, &cores, Some(kernel)), "kernel {kernel}");
    }
}

#[test]
fn all_kernels_give_the_same_bits_near_f64() {
    for (ty, n, k) in [(Type::Bf16, 40, 600), (Type::F16, 130, 136)] {
        all_kernels(case(ty, of(ty), 0, 21, n, k), 6);
    }
}

#[test]
fn quantized_kernels_give_the_same_bits_near_f64() {
    for ((format, group), ty) in some(of_both_types()) {
        let k = 587usize.next_multiple_of(whole(format));
        all_kernels(case(ty, format, group, 19, 40, k), 3);
    }
}

#[test]
fn quantized_kernels_of_both_types() {
    for (format, group) in QUANTIZED {
        for ty in [Type::Bf16, Type::F16] {
            let mut case = case(ty, format, group, 3, 18, 96usize.next_multiple_of(whole(format)));
            (case.gated, case.then, case.out) = (true, Then::Gate(Activation::SILU), Type::F32);
            case.check(&case.run(0..3, &schedules()[0]));
        }
    }
}

#[test]
fn every_kernel_is_near_f64() {
    for ty in [Type::Bf16, Type::F16] {
        for rows in [1, 9, 20, 40, 65] {
            case(ty, of(ty), 0, rows, 40, 136).prove();
        }
    }
}

#[test]
fn odd_sizes_pitches_and_addresses() {
    for (n, k, skip, pitch) in
        [(1, 1, 0, 1), (17, 7, 3, 9), (33, 65, 0, 65), (15, 200, 8, 208), (16, 129, 1, 130)]
    {
        for rows in [1, 3, 10] {
            let mut case = case(Type::Bf16, Format::Bf16, 0, rows, n, k);
            (case.skip, case.pitch) = (skip, pitch);
            case.prove();
        }
    }
}

#[test]
fn every_ending() {
    let silu = Activation::SILU;
    for (then, gated) in
        [(Then::Nothing, true), (Then::Act(silu), false), (Then::Add, false), (Then::Gate(silu), true)]
    {
        for (rows, out) in [(2, Type::F16), (30, Type::F16), (70, Type::F16), (5, Type::F32), (70, Type::F32)]
        {
            let mut case = case(Type::F16, Format::F16, 0, rows, 36, 72);
            (case.then, case.gated, case.out, case.old) = (then, gated, out, unlike);
            case.bias = Some((0..36).map(|i| i as f32 / 16.0 - 1.0).collect());
            case.prove();
        }
    }
}

/// Rows 0..count at once give the bits that each gives alone.
fn alone(mut case: Case, counts: &[usize]) {
    case.out = Type::F32;
    let options = schedules()[2];
    let cols = case.columns();
    let one: Vec<Vec<f32>> = (0..case.rows).map(|r| case.run(r..r + 1, &options)).collect();
    for &count in counts {
        let all = case.run(0..count, &options);
        for (r, row) in all.chunks(cols).enumerate() {
            assert_eq!(row, one[r], "row {r} of {count}, {}", case.w.format.name());
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_any_batch() {
    let counts: Vec<usize> = (1..=70).collect();
    for (case, counts) in some([
        (case(Type::Bf16, Format::Bf16, 0, 70, 16, 590), &counts[..]),
        (case(Type::Bf16, Format::Q4_1, 0, 40, 16, 320), &[2, 8, 9, 32, 33, 40]),
        (case(Type::F16, Format::Int8, 128, 40, 16, 400), &[2, 8, 9, 32, 33, 40]),
        (case(Type::F16, Format::F16, 0, 130, 24, 330), &[2, 9, 17, 33, 65, 130]),
    ]) {
        alone(case, counts);
    }
}

#[test]
fn leaves_are_the_contracts_in_whole_units() {
    assert_eq!(leaves(512, 1), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(leaves(100, 64), [0, 1, 1, 1, 1, 2, 2, 2, 2]);
    // 12 heads of 128: 2, 1, 2, 1, ..
    assert_eq!(leaves(1536, 128), [0, 4, 6, 10, 12, 16, 18, 22, 24]);
    assert_eq!(leaves(4096, 80), leaves(4096, 64));
    for k in (1..5000).step_by(37) {
        let all = leaves(k, 1);
        assert!(all.is_sorted() && all[0] == 0 && all[8] as usize == k.div_ceil(64));
    }
}

#[test]
fn what_cannot_be_taken_is_refused_with_a_reason() {
    let (half, brain, full) = (Type::F16.elem(), Type::Bf16.elem(), Type::F32.elem());
    let why = |x, out, format, k| supports(x, out, format, 0, 32, k, false).unwrap_err();
    assert!(why(full, full, Format::F32, 64).contains("f32 activations"));
    assert!(why(half, brain, Format::F16, 64).contains("outputs"));
    assert!(why(half, half, Format::Bf16, 64).contains("x's type"));
    assert!(why(half, half, Format::Q3K, 256).contains("K-quants of 2"));
    assert!(why(half, half, Format::F16, (1 << 24) + 1).contains("2^24"));
    assert!(supports(half, full, Format::F16, 0, 32, 64, false).is_ok());
}

/// Scales of MXFP4 from the smallest on, which is 2^-127 and not zero, to the largest that files may have.
#[test]
fn powers_of_two_of_every_size() {
    for ty in [Type::Bf16, Type::F16] {
        for byte in [0u8, 1, 27, 126, 227] {
            let mut case = case(ty, Format::Mxfp4, 32, 3, 16, 64);
            (case.out, case.gap) = (Type::F32, 0);
            case.x.fill(1.0);
            // 64 codes of 2 each.
            case.w.file.chunks_mut(17).for_each(|group| {
                group.fill(0x44);
                group[0] = byte;
            });
            let want = 2f32.powi(7 + i32::from(byte) - 127);
            let got = case.run(0..3, &schedules()[0]);
            assert!(got.iter().all(|v| *v == want), "{ty:?}, {byte}: {got:?}, not {want:e}");
        }
    }
}
