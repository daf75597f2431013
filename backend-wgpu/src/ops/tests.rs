//! Data that no step has: nothing outside an op's operands is written, and loops end.
#![allow(clippy::unwrap_used)]

use crate::tests::{opened, opened_as};
use crate::{Wgpu, WgpuConfig, WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::{
    Buf, BufMut, Device, Float, HostWeight, KvLayout, Mat, MatLayout, MatMut, MatRef, Slab, StepShape, Table,
    WeightFormat, WeightInfo, WeightUse,
};
use engraft_core::numerics::Mode;
use engraft_core::ops::*;
use engraft_core::params::{Heads, NormKind, Scores};
use std::sync::Arc;

mod slices;
mod stand_ins;

/// What lies around operands.
const GUARD: u32 = 0x7f80_5aa5;
/// Words of it on either side.
const AROUND: usize = 64;
/// Numbers that no step has, and the largest ones.
const HOSTILE: [u32; 6] = [u32::MAX, u32::MAX - 63, 1 << 31, 1 << 16, 77, 5];

struct Bench {
    gpu: Arc<Wgpu>,
    stream: WgpuStream,
}

/// An operand between guards, a slab before one.
struct Guarded {
    mem: WgpuMem,
    before: usize,
    len: usize,
}

impl Guarded {
    fn whole(&self) -> Buf<WgpuMem, u32> {
        Buf::new(self.mem.share(), self.before + self.len + AROUND).unwrap()
    }

    fn words(&mut self) -> BufMut<'_, WgpuMem, u32> {
        let (from, to) = (self.before, self.before + self.len);
        let inside = self.mat(1, self.len).into_f32().unwrap();
        inside.of_allocation(from..to).unwrap()
    }

    fn mat(&mut self, rows: usize, cols: usize) -> MatMut<'_, WgpuMem> {
        let at = MatLayout { offset: self.before, ..MatLayout::dense(rows, cols, Float::F32) };
        MatMut::new(&mut self.mem, at).unwrap()
    }
}

impl Bench {
    fn new() -> Self {
        Self::on(opened())
    }

    fn on(gpu: Arc<Wgpu>) -> Self {
        let stream = gpu.stream().unwrap();
        Self { gpu, stream }
    }

    fn words(&mut self, values: &[u32]) -> Buf<WgpuMem, u32> {
        let mut buf = Buf::new(self.gpu.alloc(values.len() * 4).unwrap(), values.len()).unwrap();
        self.stream.upload(values, buf.view_mut()).unwrap();
        buf
    }

    fn guarded(&mut self, len: usize) -> Guarded {
        self.guarded_from(AROUND, len)
    }

    fn guarded_from(&mut self, before: usize, len: usize) -> Guarded {
        let mem = self.gpu.alloc((before + len + AROUND) * 4).unwrap();
        let guarded = Guarded { mem, before, len };
        let image = [&vec![GUARD; before][..], &vec![0; len], &[GUARD; AROUND]].concat();
        self.stream.upload(&image, guarded.whole().view_mut()).unwrap();
        guarded
    }

    fn ones(&mut self, rows: usize, cols: usize) -> Mat<WgpuMem> {
        let mut mat = Mat::new(self.gpu.alloc(rows * cols * 4).unwrap(), rows, cols, Float::F32).unwrap();
        let ones = vec![1.0f32; rows * cols];
        self.stream.upload(&ones, mat.view_mut(rows).unwrap().into_f32().unwrap()).unwrap();
        mat
    }

    fn weight(&self, rows: usize, cols: usize, used_for: WeightUse) -> WgpuWeight {
        let format = WeightFormat::Plain(Float::F32);
        let info = WeightInfo { name: "w".into(), rows, cols, format, used_for };
        let ones = vec![1.0f32; rows * cols];
        let parts = vec![bytemuck::cast_slice(&ones).to_vec().into()];
        self.gpu.prepare_weight(HostWeight::new(info, parts).unwrap(), &[]).unwrap()
    }

    fn slab(&mut self, layout: KvLayout) -> (Slab<WgpuMem>, [Guarded; 2]) {
        let (k, v) = Wgpu::kv_bytes(&layout);
        let guarded = [k, v].map(|bytes| self.guarded_from(0, bytes / 4));
        let [k, v] = guarded.each_ref().map(|g| g.mem.share());
        (Slab::new::<Wgpu>(k, v, layout).unwrap(), guarded)
    }

    fn run<'a>(&mut self, op: impl Into<Op<'a, Wgpu>>) {
        self.stream.run(Checked::new(op).unwrap()).unwrap();
    }

    /// The words inside; the guards are whole.
    fn inside(&mut self, guarded: &Guarded) -> Vec<u32> {
        let (whole, mut all) = (guarded.whole(), vec![0; guarded.before + guarded.len + AROUND]);
        let ticket = self.stream.download(whole.view()).unwrap();
        block_on(self.stream.collect(ticket, &mut all)).unwrap();
        let (before, rest) = all.split_at(guarded.before);
        let (inside, behind) = rest.split_at(guarded.len);
        assert!(before.iter().chain(behind).all(|w| *w == GUARD), "written outside: {all:x?}");
        inside.to_vec()
    }
}

#[test]
#[ignore = "needs a wgpu adapter"]
fn words_out_of_range_move_nothing() {
    let mut bench = Bench::new();
    let pairs: Vec<u32> = HOSTILE.into_iter().flat_map(|index| [index, 9]).collect();
    let (pairs, ids) = (bench.words(&pairs), bench.words(&HOSTILE));
    let mut dst = bench.guarded(6);
    bench.run(Scatter { pairs: pairs.view(), dst: dst.words() });
    assert_eq!(bench.inside(&dst), [0, 0, 0, 0, 0, 9]);
    let mut seen = bench.guarded(4);
    bench.run(MarkSeen { ids: ids.view(), slot: 1, words: 2, seen: seen.words() });
    assert_eq!(bench.inside(&seen), [0, 0, 1 << 5, 0]);
}

/// Two rows, one of whose seen bits lie beyond the table.
#[test]
#[ignore = "needs a wgpu adapter"]
fn seen_bits_that_are_not_there_are_not_set() {
    let mut bench = Bench::new();
    let logits = bench.ones(3, 40);
    let row = |seen: u32| [&[0u32; 11][..], &[seen]].concat();
    let table = bench.words(&[row(2), row(0)].concat());
    let table = table.view().of_allocation(0..2).unwrap();
    let (slots, positions) = (bench.words(&[0, 1, 9]), bench.words(&[0; 3]));
    let (mut seen, mut out) = (bench.guarded(4), bench.guarded(3));
    bench.run(Sample {
        logits: logits.view(3).unwrap(),
        table,
        slots: slots.view(),
        positions: positions.view(),
        seen: seen.words(),
        seen_words: 2,
        out: out.words(),
    });
    assert_eq!(bench.inside(&out), [0, 0, u32::MAX]);
    assert_eq!(bench.inside(&seen), [1, 0, 0, 0]);
}

const HEADS: Heads = Heads { heads: 2, kv_heads: 1, k_dim: 8, v_dim: 8 };

fn layout() -> KvLayout {
    KvLayout { pages: 8, page_size: 4, kv_heads: 1, k_dim: 8, v_dim: 8, format: Float::F32.into() }
}

fn ones(words: &[u32]) -> usize {
    words.iter().filter(|w| **w == 1.0f32.to_bits()).count()
}

#[test]
#[ignore = "needs a wgpu adapter"]
fn slots_and_pages_out_of_range_write_nothing() {
    let mut bench = Bench::new();
    // The last slot that there is, and the first two that there are not.
    let slots = [&HOSTILE[..], &[15, 16, 17]].concat();
    let (count, slots) = (slots.len(), bench.words(&slots));
    let rows = bench.ones(count, 8);
    let slots = slots.view().of_allocation::<i32>(0..count).unwrap();
    let (mut slab, [keys, values]) = bench.slab(KvLayout { pages: 4, ..layout() });
    let (k, v) = (rows.view(count).unwrap(), rows.view(count).unwrap());
    bench.run(KvAppend { k, v, slots, kv: slab.view_mut() });
    for slab in [&keys, &values] {
        assert_eq!(ones(&bench.inside(slab)), 16, "slots 5 and 15");
    }
    let pages = bench.words(&[u32::MAX, 1, 4]);
    let (mut k, mut v) = (bench.guarded(12 * 8), bench.guarded(12 * 8));
    let table = Table { pages: pages.view(), stride: 3 };
    bench.run(KvRead { kv: slab.view(), table, row: 0, k: k.mat(12, 8), v: v.mat(12, 8) });
    for out in [&k, &v] {
        let got = bench.inside(out);
        assert!(got[..4 * 8].iter().chain(&got[8 * 8..]).all(|w| *w == 0), "{got:x?}");
        assert_eq!(ones(&got), 8);
    }
}

/// More rows than workgroups, so that each takes a second one: what its invocations share of the first row
/// must not reach the second. Rows repeat with a period that the number of workgroups is no multiple of.
#[test]
#[ignore = "needs a wgpu adapter"]
fn norms_of_more_rows_than_workgroups_keep_rows_apart() {
    const PERIOD: usize = 7;
    for mode in [Mode::Reference, Mode::Invariant] {
        let gpu = opened_as(WgpuConfig { mode, ..WgpuConfig::default() });
        let groups = gpu.limits().groups as usize;
        assert_ne!(groups % PERIOD, 0);
        let (rows, cols, mut bench) = (2 * groups + 5, 24, Bench::on(gpu));
        let weight = bench.weight(1, cols, WeightUse::Vector);
        let values: Vec<f32> =
            (0..rows * cols).map(|i| ((i / cols % PERIOD) * 31 + i % cols) as f32 - 100.0).collect();
        let words: Vec<u32> = values.iter().map(|v| v.to_bits()).collect();
        let x = bench.words(&words);
        let x = MatRef::new(x.view().mem(), MatLayout::dense(rows, cols, Float::F32)).unwrap();
        let norm = NormWeights {
            kind: NormKind::Rms,
            eps: 1e-5,
            weight: Some(&weight),
            bias: None,
            plus_one: false,
        };
        let mut out = bench.guarded(rows * cols);
        bench.run(Norm { x, norm, out: out.mat(rows, cols) });
        let got = bench.inside(&out);
        for (row, got) in got.chunks(cols).enumerate() {
            let first = &values[row % PERIOD * cols..][..cols];
            let mean = first.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / cols as f64;
            for (got, x) in got.iter().zip(first) {
                let (got, want) = (f64::from(f32::from_bits(*got)), f64::from(*x) / (mean + 1e-5).sqrt());
                assert!((got - want).abs() < 1e-5, "row {row} of {rows}: {got}, not {want}");
            }
        }
    }
}

/// Bounds, lengths, table rows and pages that no step has: rows mean nothing, but the op ends and stays in
/// its output.
#[test]
#[ignore = "needs a wgpu adapter"]
fn attention_ends_whatever_the_step_says() {
    let mut bench = Bench::new();
    let (q, kv) = (bench.ones(3, 16), bench.ones(3, 8));
    let scores = Scores::causal(1.0);
    let (slab, _) = bench.slab(layout());
    let shape = StepShape { tokens: 3, seqs: 2, rows: 0, table_edits: 0, max_query: 2, max_keys: 9 };
    let plan = bench.gpu.attention_plan(shape).unwrap();
    let pages = bench.words(&HOSTILE);
    let table = Table { pages: pages.view(), stride: 3 };
    for hostile in HOSTILE {
        let step = bench.words(&[0, 1, hostile, 0, hostile, hostile, hostile]);
        let part = |range| step.view().slice(range).unwrap();
        let (bounds, table_rows, kv_lens) = (part(0..3), part(3..5), part(5..7));
        let seqs = Sequences { bounds, table_rows, kv_lens, max_query: 2, max_keys: 9 };
        let mut out = bench.guarded(3 * 16);
        let (q, kv, heads) = (q.view(3).unwrap(), kv.view(3).unwrap(), HEADS);
        let (scores, slab) = (&scores, slab.view());
        let (sinks, bias) = (None, None);
        bench.run(Attend {
            plan: &plan,
            q,
            kv: slab,
            heads,
            scores,
            sinks,
            bias,
            seqs,
            table,
            out: out.mat(3, 16),
        });
        bench.inside(&out);
        let mut out = bench.guarded(3 * 16);
        let (k, v) = (kv, kv);
        bench.run(AttendDense {
            q,
            k,
            v,
            bounds,
            max_rows: 3,
            heads,
            scores,
            sinks,
            bias,
            out: out.mat(3, 16),
        });
        bench.inside(&out);
    }
}

/// Few slots, looked up one by one, and many, by groups.
#[test]
#[ignore = "needs a wgpu adapter"]
fn experts_stay_in_their_rows() {
    let mut bench = Bench::new();
    let used_for = WeightUse::Experts { count: 2, grain: 1 };
    let weight = bench.weight(2 * 8, 16, used_for);
    for slots in [2, 12] {
        let x = bench.ones(slots, 16);
        for hostile in HOSTILE {
            let experts = bench.words(&vec![hostile; slots]);
            let groups = bench.words(&[&[0, hostile, u32::MAX][..], &vec![hostile; slots]].concat());
            let groups = Groups { experts: experts.view(), groups: groups.view(), count: 2 };
            let mut out = bench.guarded(slots * 8);
            let x = x.view(slots).unwrap();
            let op =
                ExpertLinear { x, weight: &weight, bias: None, groups, first: 0, out: out.mat(slots, 8) };
            bench.run(op);
            bench.inside(&out);
        }
    }
}

/// What one stream encoded and did not hand over comes before what another one does later.
#[test]
#[ignore = "needs a wgpu adapter"]
fn streams_of_a_device_keep_the_programs_order() {
    // With parameters as immediates where there are any, and as browsers take them.
    for uniform_parameters in [false, true] {
        let config = WgpuConfig { uniform_parameters, ..WgpuConfig::default() };
        let gpu = opened_as(config);
        keeps_the_order([Bench::on(gpu.clone()), Bench::on(gpu)]);
    }
}

fn keeps_the_order([mut bench, mut other]: [Bench; 2]) {
    let mut dst = bench.guarded(1);
    let changes = [bench.words(&[0, 1]), bench.words(&[0, 2]), bench.words(&[0, 3])];
    bench.run(Scatter { pairs: changes[0].view(), dst: dst.words() });
    other.run(Scatter { pairs: changes[1].view(), dst: dst.words() });
    bench.run(Scatter { pairs: changes[2].view(), dst: dst.words() });
    assert_eq!(other.inside(&dst), [3]);
    bench.run(Scatter { pairs: changes[0].view(), dst: dst.words() });
    other.stream.upload(&[7u32], dst.words()).unwrap();
    assert_eq!(bench.inside(&dst), [7]);
    other.run(Scatter { pairs: changes[1].view(), dst: dst.words() });
    drop(other);
    assert_eq!(bench.inside(&dst), [2]);
}
