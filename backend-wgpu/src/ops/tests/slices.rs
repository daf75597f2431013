//! One dispatch in several command buffers gives the bits that it gives as a whole.

use super::{Bench, HEADS, layout};
use crate::budget::{of_attention, of_matmul};
use crate::slices::{groups_of, slices};
use crate::tests::opened_as;
use crate::{WgpuConfig, WgpuMem, WgpuWeight};
use engraft_core::backend::{Backend, Stream};
use engraft_core::mem::{Float, HostWeight, Mat, StepShape, Table, WeightFormat, WeightInfo, WeightUse};
use engraft_core::numerics::Mode;
use engraft_core::ops::*;
use engraft_core::params::Scores;
use engraft_shaders::{Elem, Kernel, PANEL, Packing, Reduce};

/// Numbers of which no two sums are alike.
fn noise(count: usize) -> Vec<f32> {
    let mut state = 0x2545_f491u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

impl Bench {
    pub(super) fn noise(&mut self, rows: usize, cols: usize) -> Mat<WgpuMem> {
        let mut mat = Mat::new(self.gpu.alloc(rows * cols * 4).unwrap(), rows, cols, Float::F32).unwrap();
        self.stream.upload(&noise(rows * cols), mat.view_mut(rows).unwrap().into_f32().unwrap()).unwrap();
        mat
    }

    pub(super) fn noisy_weight(&self, rows: usize, cols: usize, used_for: WeightUse) -> WgpuWeight {
        let format = WeightFormat::Plain(Float::F32);
        let info = WeightInfo { name: "w".into(), rows, cols, format, used_for };
        let parts = vec![bytemuck::cast_slice(&noise(rows * cols)).to_vec().into()];
        self.gpu.prepare_weight(HostWeight::new(info, parts).unwrap(), &[]).unwrap()
    }

    /// Runs `op`, whose only dispatch has `grid`, whole and in slices: what it writes.
    fn in_slices(&mut self, what: &str, grid: [u32; 3], op: &dyn Fn(&mut Bench) -> Vec<u32>) -> Vec<u32> {
        let longest = u64::from(grid.into_iter().max().unwrap());
        let others = groups_of(grid) / longest;
        let one_of = |parts: u64| others * longest.div_ceil(parts);
        let all = [
            (u64::MAX, 1),
            (one_of(1), 1),
            (one_of(2), 2),
            (one_of(3), 3),
            (2 * others, longest.div_ceil(2)),
            (1, longest),
        ];
        let mut whole = None;
        for (most, count) in all {
            assert_eq!(slices(grid, most).count() as u64, count, "{what}: {grid:?} by {most}");
            self.stream.sync().unwrap();
            self.gpu.encoding().limit(Some(most));
            let before = self.gpu.counters();
            let got = op(self);
            let after = self.gpu.counters();
            let done = (after.dispatches - before.dispatches, after.submits - before.submits);
            assert_eq!(done, (1, count), "{what}: dispatches and command buffers of {most} workgroups");
            let want = whole.get_or_insert_with(|| got.clone());
            assert_eq!(got, *want, "{what} in {count} slices");
        }
        self.gpu.encoding().limit(Some(u64::MAX));
        whole.unwrap()
    }

    pub(super) fn matmul_in_slices(
        &mut self,
        what: &str,
        rows: usize,
        outputs: usize,
        grid: [u32; 3],
    ) -> Vec<u32> {
        let weight = self.noisy_weight(outputs, 64, WeightUse::Linear { grain: 1, group: 1 });
        let x = self.noise(rows, 64);
        self.in_slices(what, grid, &|bench| {
            let mut out = bench.guarded(rows * outputs);
            bench.run(Linear::new(x.view(rows).unwrap(), &weight, None, out.mat(rows, outputs)));
            bench.inside(&out)
        })
    }

    /// Slot `s` goes to expert `s * s` modulo their number: some have several, some none.
    pub(super) fn experts_in_slices(&mut self, slots: usize) -> Vec<u32> {
        let (count, outputs) = (5, 40);
        let weight = self.noisy_weight(count * outputs, 64, WeightUse::Experts { count, grain: 1 });
        let x = self.noise(slots, 64);
        let of: Vec<u32> = (0..slots).map(|slot| (slot * slot % count) as u32).collect();
        let mut order: Vec<u32> = (0..slots as u32).collect();
        order.sort_by_key(|slot| of[*slot as usize]);
        let below = |expert: u32| of.iter().filter(|own| **own < expert).count() as u32;
        let bounds: Vec<u32> = (0..=count as u32).map(below).collect();
        let (experts, groups) = (self.words(&of), self.words(&[bounds, order].concat()));
        let share = slots.div_ceil(count);
        let (rows, elem) = (self.gpu.select.tile_rows(share), Elem::F32);
        let (weight_as, vector, grouped) = (Packing::F32, true, rows > 1);
        let kernel = Kernel::Experts { weight: weight_as, x: elem, out: elem, rows, vector, grouped };
        let stands_in = self.gpu.runs(kernel).unwrap() != kernel;
        let rows = if stands_in { 1 } else { rows as usize };
        let (tiles, all) = if rows == 1 { (slots, 1) } else { (share.div_ceil(rows), count) };
        let grid = [outputs.div_ceil(PANEL), tiles, all].map(|n| n as u32);
        self.in_slices(&format!("experts of {slots} slots"), grid, &|bench| {
            let mut out = bench.guarded(slots * outputs);
            let groups = Groups { experts: experts.view(), groups: groups.view(), count };
            let (x, out_mat) = (x.view(slots).unwrap(), out.mat(slots, outputs));
            bench.run(ExpertLinear { x, weight: &weight, bias: None, groups, first: 0, out: out_mat });
            bench.inside(&out)
        })
    }

    /// Nine rows at the end of thirty positions, with sinks.
    pub(super) fn attention_in_slices(&mut self, what: &str, grid: [u32; 3]) -> Vec<u32> {
        let (rows, keys, cols) = (9, 30, HEADS.heads * HEADS.k_dim);
        let sinks = self.noisy_weight(1, HEADS.heads, WeightUse::Vector);
        let q = self.noise(rows, cols);
        let (slab, mut both) = self.slab(layout());
        for half in &mut both {
            let words: Vec<u32> = noise(half.len).iter().map(|v| v.to_bits()).collect();
            self.stream.upload(&words, half.words()).unwrap();
        }
        let shape =
            StepShape { tokens: rows, seqs: 1, rows: 0, table_edits: 0, max_query: rows, max_keys: keys };
        let plan = self.gpu.attention_plan(shape).unwrap();
        let (pages, step) = (self.words(&[3, 1, 0, 2, 7, 5, 6, 4]), self.words(&[0, 9, 0, 30]));
        let scores = Scores::causal(0.7);
        self.in_slices(what, grid, &|bench| {
            let part = |range| step.view().slice(range).unwrap();
            let (bounds, table_rows, kv_lens) = (part(0..2), part(2..3), part(3..4));
            let mut out = bench.guarded(rows * cols);
            bench.run(Attend {
                plan: &plan,
                q: q.view(rows).unwrap(),
                kv: slab.view(),
                heads: HEADS,
                scores: &scores,
                sinks: Some(&sinks),
                bias: None,
                seqs: Sequences { bounds, table_rows, kv_lens, max_query: rows, max_keys: keys },
                table: Table { pages: pages.view(), stride: 8 },
                out: out.mat(rows, cols),
            });
            bench.inside(&out)
        })
    }

    /// Nine rows at the end of 330 positions, each of which chooses two keys.
    fn scores_in_slices(&mut self) {
        let (rows, keys, slots, heads, low, high) = (9, 330, 336, 3, 24, 8);
        let (q, factors) = (self.noise(rows, heads * (low + high)), self.noise(rows, heads));
        let (low, high) = (self.noise(slots, low), self.noise(slots, high));
        let numbers: Vec<u32> = (0..42).rev().collect();
        let (pages, step) = (self.words(&numbers), self.words(&[0, 9, 0, 330]));
        self.in_slices("scores of an index", [6, 9, 1], &|bench| {
            let part = |range| step.view().slice(range).unwrap();
            let (bounds, table_rows, kv_lens) = (part(0..2), part(2..3), part(3..4));
            let mut out = bench.guarded(rows * keys);
            bench.run(IndexScores {
                q: q.view(rows).unwrap(),
                factors: factors.view(rows).unwrap(),
                low: low.view(slots).unwrap(),
                high: high.view(slots).unwrap(),
                heads,
                scale: 0.7,
                seqs: Sequences { bounds, table_rows, kv_lens, max_query: rows, max_keys: keys },
                table: Table { pages: pages.view(), stride: 42 },
                page_size: 8,
                first: 0,
                count: 2,
                out: out.mat(rows, keys),
            });
            let scores = bench.inside(&out);
            assert!(scores.iter().filter(|bits| **bits != 0).count() > rows * keys / 2);
            scores
        });
    }

    fn dense_in_slices(&mut self) {
        let (rows, cols) = (9, HEADS.heads * HEADS.k_dim);
        let sinks = self.noisy_weight(1, HEADS.heads, WeightUse::Vector);
        let (q, kv) = (self.noise(rows, cols), self.noise(rows, HEADS.k_dim));
        let (bounds, scores) = (self.words(&[0, 4, 9]), Scores::causal(0.7));
        self.in_slices("attention over rows", [9, 2, 1], &|bench| {
            let mut out = bench.guarded(rows * cols);
            bench.run(AttendDense {
                q: q.view(rows).unwrap(),
                k: kv.view(rows).unwrap(),
                v: kv.view(rows).unwrap(),
                bounds: bounds.view(),
                max_rows: 5,
                heads: HEADS,
                scores: &scores,
                sinks: Some(&sinks),
                bias: None,
                out: out.mat(rows, cols),
            });
            bench.inside(&out)
        });
    }
}

/// Along rows, along outputs, along experts, along queries.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_dispatch_in_slices_gives_its_bits() {
    let mut bench = Bench::on(opened_as(WgpuConfig { mode: Mode::Reference, ..WgpuConfig::default() }));
    let tiles = |rows: usize| rows.div_ceil(bench.gpu.select.tile_rows(rows) as usize) as u32;
    let [many, few] = [37, 3].map(tiles);
    bench.matmul_in_slices("many rows", 37, 70, [3, many, 1]);
    bench.matmul_in_slices("many outputs", 3, 330, [11, few, 1]);
    bench.experts_in_slices(5);
    bench.experts_in_slices(26);
    bench.attention_in_slices("attention over pages", [9, 2, 1]);
    bench.dense_in_slices();
    bench.scores_in_slices();
}

/// Where a sum is split over lanes, and queries share their keys.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_dispatch_in_slices_gives_its_bits_in_the_wide_order() {
    let config = WgpuConfig { reduce: Some(Reduce::Shared), ..WgpuConfig::default() };
    let mut bench = Bench::on(opened_as(config));
    bench.matmul_in_slices("lanes", 3, 70, [12, 1, 1]);
    bench.matmul_in_slices("lanes of one row", 1, 200, [28, 1, 1]);
    bench.attention_in_slices("attention in tiles", [5, 1, 1]);
}

/// Attention over many keys counts for what it takes: as many command buffers as its work needs.
#[test]
#[ignore = "needs a wgpu adapter"]
fn workgroups_over_many_keys_count_for_more() {
    let mut bench = Bench::on(opened_as(WgpuConfig { mode: Mode::Reference, ..WgpuConfig::default() }));
    let (rows, cols) = (6, HEADS.heads * HEADS.k_dim);
    let (q, kv) = (bench.noise(rows, cols), bench.noise(rows, HEADS.k_dim));
    let (bounds, scores) = (bench.words(&[0, 6]), Scores::causal(0.7));
    let mut submits = |max_rows| {
        bench.stream.sync().unwrap();
        // Of twelve workgroups over 4096 keys.
        bench.gpu.encoding().limit_work(12 * of_attention(1, 4096, 2 * HEADS.k_dim));
        let (before, mut out) = (bench.gpu.counters().submits, bench.guarded(rows * cols));
        let (q, k) = (q.view(rows).unwrap(), kv.view(rows).unwrap());
        let (sinks, bias, out_mat) = (None, None, out.mat(rows, cols));
        bench.run(AttendDense {
            q,
            k,
            v: k,
            bounds: bounds.view(),
            max_rows,
            heads: HEADS,
            scores: &scores,
            sinks,
            bias,
            out: out_mat,
        });
        bench.inside(&out);
        bench.gpu.counters().submits - before
    };
    assert_eq!([6, 4096, 8192, 3 * 4096].map(&mut submits), [1, 1, 2, 3]);
}

/// A matmul's work is that of its rows, outputs and inner size, padded as its tiles are; of experts that of
/// all slots, in whichever tiles.
#[test]
#[ignore = "needs a wgpu adapter"]
fn work_is_that_of_rows_and_outputs() {
    let mut bench = Bench::on(opened_as(WgpuConfig { mode: Mode::Reference, ..WgpuConfig::default() }));
    let of = |bench: &mut Bench, op: &dyn Fn(&mut Bench)| {
        bench.stream.sync().unwrap();
        let before = bench.gpu.encoding().progress().1;
        op(bench);
        bench.stream.sync().unwrap();
        bench.gpu.encoding().progress().1 - before
    };
    let (outputs, padded, inner) = (40, 64, 96);
    let dense = bench.noisy_weight(outputs, inner, WeightUse::Linear { grain: 1, group: 1 });
    let experts = bench.noisy_weight(3 * outputs, inner, WeightUse::Experts { count: 3, grain: 1 });
    let x = bench.noise(40, inner);
    let to_experts = bench.words(&[0; 40]);
    let grouped =
        bench.words(&[&[0, 40, 40, 40][..], &std::array::from_fn::<u32, 40, _>(|s| s as u32)].concat());
    for rows in [1, 3, 9, 40] {
        let tile = bench.gpu.select.tile_rows(rows) as usize;
        let got = of(&mut bench, &|bench| {
            let mut out = bench.guarded(rows * outputs);
            bench.run(Linear::new(x.view(rows).unwrap(), &dense, None, out.mat(rows, outputs)));
        });
        assert_eq!(got, rows.div_ceil(tile) as u64 * of_matmul(tile, padded, inner), "{rows} rows");
        let tile = bench.gpu.select.tile_rows(rows.div_ceil(3)) as usize;
        let got = of(&mut bench, &|bench| {
            let mut out = bench.guarded(rows * outputs);
            let groups = Groups {
                experts: to_experts.view().slice(0..rows).unwrap(),
                groups: grouped.view().slice(0..4 + rows).unwrap(),
                count: 3,
            };
            let (x, out_mat) = (x.view(rows).unwrap(), out.mat(rows, outputs));
            bench.run(ExpertLinear { x, weight: &experts, bias: None, groups, first: 0, out: out_mat });
        });
        let least = of_matmul(rows, outputs, inner);
        assert!((least..=40 * least).contains(&got), "{rows} slots in tiles of {tile}: {got} for {least}");
    }
}
