//! Experts' matmuls: every slot has the bits of the matmul of its row with its expert's weight, whatever the
//! other slots are; near f64.

use crate::gemm::{Case, QUANTIZED, case, of, of_both_types};
use crate::machine::{Device, Dice, Type, schedules};
use crate::weights::{Weight, random, whole};
use engraft_core::numerics::leaf_bounds;
use engraft_kernels::Launch;
use engraft_kernels::file_rows::FileRows;
use engraft_kernels::pack::Layout;
use engraft_kernels::params::gemm::{Gemm, Sum, Then, supports};
use engraft_kernels::params::grouped::Grouped;
use engraft_kernels::params::{Activation, Format, Leaves, MatView};
use ptx_vm::{Options, Schedule};
use sample::some;
use std::ops::Range;

const OLD: f32 = 0.375;

/// Slots on their way to experts.
pub struct Slots {
    pub ty: Type,
    pub out: Type,
    pub w: Weight,
    /// Experts, and those whose weights are here.
    pub count: usize,
    pub own: Range<usize>,
    /// The expert of every slot.
    pub experts: Vec<u32>,
    /// Slots that read one row of x.
    pub per_row: usize,
    pub x: Vec<f32>,
    /// Elements from row to row, and before the first.
    pub pitch: usize,
    pub skip: usize,
    pub bias: Option<Vec<f32>>,
    pub sum: Sum,
    pub then: Then,
    /// Whether an expert's rows are [gate | up], in pairs in its tiles.
    pub gated: bool,
}

/// Slots in no order, so many of each expert and of the last as many more as whole tokens of `top_k` take.
pub fn slots(
    ty: Type,
    (format, group): (Format, usize),
    (n, k): (usize, usize),
    each: &[usize],
    top_k: usize,
) -> Slots {
    let (count, mut dice) = (each.len(), Dice(n as u64 * 31 + k as u64 * 7 + top_k as u64));
    let mut experts: Vec<u32> =
        each.iter().enumerate().flat_map(|(e, slots)| vec![e as u32; *slots]).collect();
    experts.resize(experts.len().next_multiple_of(top_k), count as u32 - 1);
    for i in (1..experts.len()).rev() {
        experts.swap(i, dice.bits() as usize % (i + 1));
    }
    let w = random(format, group, count * n, k, &mut dice);
    let x = (0..experts.len() / top_k * k).map(|_| ty.round(dice.unit())).collect();
    let (pitch, sum) = (k.next_multiple_of(8), Sum::folded(k, 1));
    let (own, out, then) = (0..count, Type::F32, Then::Nothing);
    Slots {
        ty,
        out,
        w,
        count,
        own,
        experts,
        per_row: top_k,
        x,
        pitch,
        skip: 0,
        bias: None,
        sum,
        then,
        gated: false,
    }
}

/// The sizes that sit on both sides of a tile of eight, and no slot at all.
const EACH: [usize; 6] = [0, 1, 7, 8, 9, 17];

/// Slots by expert, as the device groups them.
fn grouped(experts: &[u32], count: usize) -> Vec<u8> {
    let (mut bounds, mut order) = (vec![0], Vec::new());
    for e in 0..count as u32 {
        order.extend((0..experts.len()).filter(|s| experts[*s] == e).map(|s| s as u32));
        bounds.push(order.len() as u32);
    }
    bounds.iter().chain(&order).flat_map(|word| word.to_le_bytes()).collect()
}

impl Slots {
    fn n(&self) -> usize {
        self.w.n / self.count
    }

    /// Outputs of a slot.
    fn columns(&self) -> usize {
        if matches!(self.then, Then::Gate(_)) { self.n() / 2 } else { self.n() }
    }

    /// The matmul of one expert's rows alone: those slots, and it.
    fn of_expert(&self, e: usize) -> (Vec<usize>, Case) {
        let (n, k) = (self.n(), self.w.k);
        let own: Vec<usize> = (0..self.experts.len()).filter(|s| self.experts[*s] as usize == e).collect();
        let mut case = case(self.ty, self.w.format, self.w.group, own.len(), n, k);
        let part = self.w.file.len() / self.count;
        case.w.file = self.w.file[e * part..(e + 1) * part].to_vec();
        case.w.values = self.w.values[e * n * k..(e + 1) * n * k].to_vec();
        case.x = own.iter().flat_map(|s| self.x[s / self.per_row * k..][..k].to_vec()).collect();
        case.bias = self.bias.as_ref().map(|bias| bias[e * n..(e + 1) * n].to_vec());
        (case.out, case.sum, case.then, case.gated) = (self.out, self.sum, self.then, self.gated);
        (own, case)
    }

    /// The outputs of every slot by matmuls of single experts; what is there where the expert is not.
    fn want(&self, options: &Options) -> Vec<f32> {
        let n = self.columns();
        let mut want = vec![OLD; self.experts.len() * n];
        for e in self.own.clone() {
            let (own, case) = self.of_expert(e);
            if own.is_empty() {
                continue;
            }
            let rows = case.run(0..own.len(), options);
            // The oracle knows one activation.
            if !matches!(self.then, Then::Act(act) | Then::Gate(act) if act != Activation::SILU) {
                case.check(&rows);
            }
            own.iter().zip(rows.chunks(n)).for_each(|(s, row)| want[s * n..][..n].copy_from_slice(row));
        }
        want
    }

    /// The weights of the experts that are here. Those behind a gate, which no policy asks for, one by one.
    fn packed(&self) -> (Layout, Vec<u8>, Vec<u8>) {
        let (n, own, gated) = (self.n(), self.own.len(), self.gated);
        let (elem, out, each) = (self.ty.elem(), self.out.elem(), if gated { 1 } else { own });
        let layout = supports(elem, out, self.w.format, self.w.group, each * n, self.w.k, gated).unwrap();
        let layout = if gated { layout } else { layout.in_parts(own).unwrap() };
        let part = self.w.file.len() / self.count;
        let file = &self.w.file[self.own.start * part..self.own.end * part];
        let (mut all_codes, mut all_scales) = (Vec::new(), Vec::new());
        for file in file.chunks(each * part) {
            let (mut codes, mut scales) = (vec![0; layout.code_bytes()], vec![0; layout.scale_bytes()]);
            let file = FileRows::new([file], layout.row_bytes()).unwrap();
            assert!(layout.pack(0..layout.tiles(), &file, &mut codes, &mut scales));
            all_codes.extend(codes);
            all_scales.extend(scales);
        }
        (layout, all_codes, all_scales)
    }

    /// The parameters of a launch over these words of groups.
    fn params(&self, device: &mut Device, groups: &[u8]) -> Grouped {
        let (n, slots, own) = (self.n(), self.experts.len(), self.own.len());
        let (elem, out, cols) = (self.ty.elem(), self.out.elem(), self.columns());
        let (layout, codes, scales) = self.packed();
        let rows = slots / self.per_row;
        let mut x = vec![f32::NAN; self.skip + (rows - 1) * self.pitch + self.w.k];
        for (i, row) in self.x.chunks(self.w.k).enumerate() {
            x[self.skip + i * self.pitch..][..self.w.k].copy_from_slice(row);
        }
        let old = self.out.write(&vec![OLD; (slots - 1) * (cols + 3) + cols]);
        let mut gemm = Gemm::new(&layout, self.sum, elem, out, self.then);
        let view = |ptr, pitch: usize, rows: usize, cols: usize| MatView {
            ptr,
            pitch: pitch as u64,
            rows: rows as u32,
            cols: cols as u32,
        };
        let from = device.put(&self.ty.write(&x)) + (self.skip * 2) as u64;
        gemm.x = view(from, self.pitch, rows, self.w.k);
        gemm.out = view(device.put(&old), cols + 3, slots, cols);
        (gemm.weight, gemm.scales) = (device.put_weight(&codes), device.put_weight(&scales));
        let own_bias = |bias: &Vec<f32>| Type::F32.write(&bias[self.own.start * n..self.own.end * n]);
        gemm.bias = self.bias.as_ref().map_or(0, |bias| device.put(&own_bias(bias)));
        Grouped {
            gemm,
            groups: device.put(groups),
            count: self.count as u32,
            first: self.own.start as u32,
            own: own as u32,
            reserved: 0,
        }
    }

    fn run(&self, options: &Options, launch: impl FnOnce(&Grouped) -> Launch) -> Vec<f32> {
        let (mut device, n) = (Device::new(), self.columns());
        let p = self.params(&mut device, &grouped(&self.experts, self.count));
        device.run(&launch(&p), bytemuck::bytes_of(&p), options);
        let values = (self.experts.len() - 1) * (n + 3) + n;
        let got = self.out.read(&device.get(p.gemm.out.ptr, values * self.out.elem().bytes() as usize));
        assert!(got.iter().enumerate().all(|(i, v)| i % (n + 3) < n || *v == OLD), "columns beyond out");
        got.chunks(n + 3).flat_map(|row| &row[..n]).copied().collect()
    }

    /// The bits of single matmuls by every kernel, under these schedules.
    fn prove(&self, options: &[Options]) {
        for options in options {
            self.prove_against(&self.want(options), std::slice::from_ref(options));
        }
    }

    /// The same by both texts, against single matmuls by one of them.
    pub fn prove_both(&self) {
        let [forward, reverse, _] = schedules();
        self.prove_against(&self.want(&forward), &[forward, reverse]);
    }

    fn prove_against(&self, want: &[f32], options: &[Options]) {
        let (n, format) = (self.columns(), self.w.format);
        for options in options {
            for choice in 0..if format == of(self.ty) { 5 } else { 3 } {
                let got = self.run(options, |p| p.choices()[choice].clone());
                let at = got.iter().zip(want).position(|(got, want)| got.to_bits() != want.to_bits());
                let place = at.map(|at| (at / n, at % n, got[at], want[at]));
                assert_eq!(place, None, "kernel {choice} of {}, {:?}, {options:?}", format.name(), self.then);
            }
        }
    }
}

#[test]
fn a_slot_has_the_bits_of_its_row_alone_by_every_kernel() {
    for (ty, n, k, top_k) in [(Type::Bf16, 40, 600, 2), (Type::F16, 130, 136, 3)] {
        let mut slots = slots(ty, (of(ty), 0), (n, k), &EACH, top_k);
        slots.bias = Some((0..slots.w.n).map(|i| (i % 37) as f32 / 16.0 - 1.0).collect());
        slots.prove(&schedules());
    }
}

#[test]
fn rows_and_columns_that_no_tile_divides() {
    for (n, k, skip, pitch) in
        [(1, 1, 0, 1), (17, 7, 3, 9), (33, 65, 0, 65), (15, 200, 8, 208), (16, 129, 1, 130)]
    {
        let mut slots = slots(Type::Bf16, (Format::Bf16, 0), (n, k), &EACH, 2);
        (slots.skip, slots.pitch, slots.out) = (skip, pitch, Type::Bf16);
        slots.prove(&schedules()[1..]);
    }
}

#[test]
fn tokens_with_one_to_eight_experts_by_the_launch_that_is_chosen() {
    for top_k in 1..=8 {
        let mut slots = slots(Type::F16, (Format::F16, 0), (24, 330), &[3, 0, 9, 1, 2, 0, 5, 8, 1], top_k);
        slots.out = Type::F16;
        if top_k % 2 == 0 {
            // A row of its own for every slot, as the second matmul of an expert has.
            let x = slots.experts.iter().enumerate().flat_map(|(s, _)| {
                slots.x[s / top_k * 330..][..330].iter().map(move |v| *v / (1 + s % 3) as f32)
            });
            let x = x.map(|v| Type::F16.round(v)).collect();
            (slots.x, slots.per_row) = (x, 1);
        }
        let options = schedules()[top_k % 3];
        assert_eq!(slots.run(&options, Grouped::launch), slots.want(&options), "{top_k}");
    }
}

/// More than a warp looks at at once, and tiles in every part of them.
#[test]
fn a_hundred_experts() {
    let each: Vec<usize> = (0..100).map(|e| [0, 0, 1, 2, 0, 9][e * 7 % 6]).collect();
    let mut slots = slots(Type::Bf16, (Format::Bf16, 0), (16, 64), &each, 4);
    let options = schedules()[1];
    for own in [0..100, 31..33, 64..97, 99..100] {
        slots.own = own;
        assert_eq!(slots.run(&options, Grouped::launch), slots.want(&options), "{:?}", slots.own);
    }
}

#[test]
fn ranks_have_some_experts_and_some_leaves() {
    let k = 832;
    for (ty, format) in [(Type::Bf16, (Format::Bf16, 0)), (Type::F16, (Format::Int4, 64))] {
        let mut slots = slots(ty, format, (24, k), &EACH, 1);
        slots.own = 2..5;
        let bounds = leaf_bounds(k, 64).map(|at| at as u32);
        for own in [0xffu8, 0x0c] {
            slots.sum = Sum::shared(&Leaves::new(bounds, |leaf| own >> leaf & 1 == 1)).unwrap();
            if own == 0xff {
                slots.prove(&schedules()[..1]);
                continue;
            }
            // What is not in these leaves is another rank's: the bits alone.
            let options = schedules()[0];
            let (listed, case) = slots.of_expert(4);
            let want = case.run(0..listed.len(), &options);
            let got = slots.run(&options, Grouped::launch);
            for (s, want) in listed.iter().zip(want.chunks(24)) {
                assert_eq!(&got[s * 24..][..24], want, "slot {s}");
            }
        }
    }
}

#[test]
fn quantized_weights_of_every_format() {
    for ((format, group), ty) in some(of_both_types()) {
        let k = 587usize.next_multiple_of(whole(format));
        slots(ty, (format, group), (40, k), &EACH, 2).prove(&schedules()[1..]);
    }
}

#[test]
fn every_quantized_kernel_runs() {
    for (format, group) in QUANTIZED {
        for ty in [Type::Bf16, Type::F16] {
            slots(ty, (format, group), (18, 96usize.next_multiple_of(whole(format))), &[2, 0, 9], 1)
                .prove(&schedules()[..1]);
        }
    }
}

/// As matmuls of single rows bend theirs, which the ops hold against f64.
#[test]
fn sums_are_bent_by_every_activation() {
    let acts = [
        Activation::RELU,
        Activation::SILU,
        Activation::GELU,
        Activation::GELU_TANH,
        Activation::QUICK_GELU,
        Activation::TANH,
        Activation::RELU_SQUARED,
        Activation::SIGMOID,
        Activation::SOFTPLUS,
    ];
    for act in some(acts) {
        for format in [(Format::Bf16, 0), (Format::Int4, 32)] {
            let mut slots = slots(Type::Bf16, format, (18, 96), &[2, 9, 17], 1);
            slots.then = Then::Act(act);
            slots.prove_both();
        }
    }
}

/// Sums as models have them: rings that go round many times, several groups to a leaf.
#[test]
fn long_sums() {
    for (format, group, k) in [(Format::Bf16, 0, 65 * 64), (Format::Int4, 128, 43 * 64)] {
        slots(Type::Bf16, (format, group), (17, k), &[1, 9], 1).prove(&schedules()[1..2]);
    }
}

/// The entry that is chosen for so many slots of eight experts.
fn chosen(format: Format, n: usize, slots: u32) -> String {
    let elem = Type::Bf16.elem();
    let layout = supports(elem, elem, format, 0, 8 * n, 4096, false).unwrap().in_parts(8).unwrap();
    let mut gemm = Gemm::new(&layout, Sum::folded(4096, 1), elem, elem, Then::Nothing);
    gemm.x = MatView { ptr: 4096, pitch: 4096, rows: slots, cols: 4096 };
    gemm.out = MatView { ptr: 4096, pitch: n as u64, rows: slots, cols: n as u32 };
    Grouped { gemm, groups: 4096, count: 8, first: 0, own: 8, reserved: 0 }.launch().entry
}

#[test]
fn the_choice_on_both_sides_of_every_threshold() {
    let at = |slots: u32| [slots, slots + 1].map(|slots| chosen(Format::Bf16, 4096, slots));
    let of = |kernels: [&str; 2]| kernels.map(|kernel| format!("grouped_{kernel}_bf16"));
    assert_eq!(at(8 * 16 / 3), of(["n8", "n16"]));
    assert_eq!(at(16 * 16 / 3), of(["n16", "n32"]));
    assert_eq!(at(32 * 16 / 3), of(["n32", "small"]));
    assert_eq!(at(255 * 16 / 3), of(["small", "wide"]));
    // 96 tiles of 128 x 128.
    assert_eq!(chosen(Format::Bf16, 8 * 128, 1400), "grouped_small_bf16");
    assert_eq!(chosen(Format::Bf16, 9 * 128, 1400), "grouped_wide_bf16");
    let at = |slots: u32| [slots, slots + 1].map(|slots| chosen(Format::Q8_0, 4096, slots));
    let of = |kernels: [&str; 2]| kernels.map(|kernel| format!("groupedq_{kernel}_bf16_int8"));
    assert_eq!(at(8 * 16 / 3), of(["n8", "n32"]));
    assert_eq!(at(32 * 16 / 3), of(["n32", "wide"]));
}

/// Bounds and slots that no route writes: nothing outside of the operands is touched.
#[test]
fn groups_that_no_route_wrote() {
    const SOME: [u32; 12] = [0, 1, 2, 7, 8, 9, 20, 42, 43, 0x8000_0000, u32::MAX - 1, u32::MAX];
    let (n, k) = (33, 72);
    for seed in 0..12 {
        let slots = slots(Type::F16, (Format::F16, 0), (n, k), &EACH, 2);
        let mut dice = Dice(seed);
        let mut words = || SOME[dice.bits() as usize % SOME.len()];
        let wild: Vec<u8> =
            (0..slots.count + 1 + slots.experts.len()).flat_map(|_| words().to_le_bytes()).collect();
        let schedule = if seed % 2 == 0 { Schedule::Forward } else { Schedule::Reverse };
        // Several blocks may write the same rows.
        let options = Options { schedule, global_races: false, ..Options::default() };
        for choice in 0..5 {
            let mut device = Device::new();
            let p = slots.params(&mut device, &wild);
            device.run(&p.choices()[choice], bytemuck::bytes_of(&p), &options);
        }
    }
}

/// Bytes read of every expert's weight: once for each tile of its slots, and of one without slots none.
#[test]
fn a_weight_is_read_once_for_eight_of_its_slots() {
    for (format, group, choice, tile) in [
        (Format::Bf16, 0, 0, 8),
        (Format::Int4, 128, 0, 8),
        (Format::Bf16, 0, 2, 32),
        (Format::Bf16, 0, 4, 128),
    ] {
        let slots = slots(Type::Bf16, (format, group), (128, 256), &EACH, 2);
        let mut device = Device::new();
        let p = slots.params(&mut device, &grouped(&slots.experts, slots.count));
        let options = Options { count_traffic: true, ..schedules()[0] };
        device.run(&p.choices()[choice], bytemuck::bytes_of(&p), &options);
        let part = if format == Format::Bf16 { 2 * 128 * 256 } else { 128 * 256 / 2 };
        for e in 0..slots.count {
            let read = device.memory.traffic(p.gemm.weight + (e * part) as u64, part as u64).read.requested;
            let own = slots.experts.iter().filter(|expert| **expert as usize == e).count();
            assert_eq!(read, (own.div_ceil(tile) * part) as u64, "{own} slots, {}", format.name());
        }
    }
}
