//! Experts' matmuls by the ops of the contract: the bits of the matmul of every slot's row alone, also of a
//! rank's experts and of its part of their sums, whenever the weight is packed.

use super::{config, open, words};
use crate::{Cuda, CudaMem, CudaStream, CudaWeight};
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::{Float, HostWeight, Mat, MatLayout, MatRef, WeightFormat, WeightInfo, WeightUse};
use engraft_core::numerics::{Mode, Share, leaf_bounds};
use engraft_core::ops::{Checked, ExpertLinear, Groups, Linear, MoeOpKind, OpKind, Run, Signature, Then};
use std::ops::Range;
use std::sync::Arc;

const COUNT: usize = 5;
const TOP_K: usize = 2;
/// The expert of every slot; expert 3 has none.
const EXPERTS: [u32; 22] = [0, 1, 1, 2, 1, 2, 0, 1, 1, 4, 1, 2, 1, 2, 1, 4, 0, 1, 1, 2, 1, 4];

/// Numbers without a pattern, as bits of bf16.
fn values(range: Range<usize>) -> Vec<u16> {
    let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    range.map(|i| (value(i).to_bits() >> 16) as u16).collect()
}

/// A weight whose values are those numbers.
fn weight(gpu: &Cuda, n: usize, k: usize, first: usize, used_for: WeightUse, packed: bool) -> CudaWeight {
    let format = WeightFormat::Plain(Float::Bf16);
    let info = WeightInfo { name: "w".into(), rows: n, cols: k, format, used_for };
    let all = values(first..first + n * k);
    let host = HostWeight::new(info, vec![bytemuck::cast_slice::<u16, u8>(&all).to_vec().into()]).unwrap();
    let uses = Signature {
        weight: Some(format),
        ..Signature::new(OpKind::Moe(MoeOpKind::ExpertLinear), Float::Bf16, k, n)
    };
    gpu.prepare_weight(host, if packed { std::slice::from_ref(&uses) } else { &[] }).unwrap()
}

fn bias(gpu: &Cuda, n: usize, first: usize) -> CudaWeight {
    let (format, used_for) = (WeightFormat::Plain(Float::Bf16), WeightUse::Vector);
    let info = WeightInfo { name: "b".into(), rows: 1, cols: n, format, used_for };
    let all = values(first..first + n);
    let host = HostWeight::new(info, vec![bytemuck::cast_slice::<u16, u8>(&all).to_vec().into()]).unwrap();
    gpu.prepare_weight(host, &[]).unwrap()
}

fn rows(gpu: &Cuda, rows: usize, cols: usize, dtype: Float) -> Mat<CudaMem> {
    Mat::new(gpu.alloc(rows * cols * dtype.bytes()).unwrap(), rows, cols, dtype).unwrap()
}

/// The bytes of a matrix, when the stream has come so far.
fn read(gpu: &Cuda, stream: &mut CudaStream, from: &Mat<CudaMem>) -> Vec<u8> {
    let ticket = stream.download(words(gpu, 1).view()).unwrap();
    block_on(stream.collect(ticket, &mut [0u32])).unwrap();
    gpu.read(from.view(1).unwrap().mem()).unwrap()
}

/// What experts are used for.
struct Case {
    n: usize,
    k: usize,
    grain: usize,
    own: Range<usize>,
    share: Option<Share>,
    per_row: usize,
    packed: bool,
}

impl Case {
    fn out(&self) -> Float {
        if self.share.is_some() { Float::F32 } else { Float::Bf16 }
    }

    fn uses(&self) -> (WeightUse, WeightUse) {
        let count = self.own.len();
        match self.share {
            Some(share) => (WeightUse::ExpertsShare { count, share }, WeightUse::LinearShare { share }),
            None => (
                WeightUse::Experts { count, grain: self.grain },
                WeightUse::Linear { grain: self.grain, group: 1 },
            ),
        }
    }

    fn x(&self, gpu: &Cuda) -> Mat<CudaMem> {
        let count = EXPERTS.len() / self.per_row;
        let all = values(7..7 + count * self.k);
        let bytes: &[u8] = bytemuck::cast_slice(&all);
        Mat::new(gpu.alloc_filled([bytes], bytes.len()).unwrap(), count, self.k, Float::Bf16).unwrap()
    }

    /// All slots at once.
    fn grouped(&self, gpu: &Arc<Cuda>, stream: &mut CudaStream) -> Vec<u8> {
        let (n, k, slots) = (self.n, self.k, EXPERTS.len());
        let (of_experts, _) = self.uses();
        let count = self.own.len();
        let weight = weight(gpu, count * n, k, 1000 + self.own.start * n * k, of_experts, self.packed);
        let bias = self.share.is_none().then(|| bias(gpu, count * n, 100 + self.own.start * n));
        let (mut bounds, mut order) = (vec![0], Vec::new());
        for e in 0..COUNT as u32 {
            order.extend((0..slots as u32).filter(|s| EXPERTS[*s as usize] == e));
            bounds.push(order.len() as u32);
        }
        let (mut experts, mut groups) = (words(gpu, slots), words(gpu, COUNT + 1 + slots));
        stream.upload(&EXPERTS, experts.view_mut()).unwrap();
        stream.upload(&[bounds, order].concat(), groups.view_mut()).unwrap();
        let (x, mut out) = (self.x(gpu), rows(gpu, slots, n, self.out()));
        stream
            .run(
                Checked::new(ExpertLinear {
                    x: x.view(slots / self.per_row).unwrap(),
                    weight: &weight,
                    bias: bias.as_ref(),
                    groups: Groups { experts: experts.view(), groups: groups.view(), count: COUNT },
                    first: self.own.start,
                    out: out.view_mut(slots).unwrap(),
                })
                .unwrap(),
            )
            .unwrap();
        read(gpu, stream, &out)
    }

    /// One slot by the matmul of its row.
    fn alone(&self, gpu: &Arc<Cuda>, stream: &mut CudaStream, slot: usize) -> Vec<u8> {
        let (n, k, e) = (self.n, self.k, EXPERTS[slot] as usize);
        let mut out = rows(gpu, 1, n, self.out());
        if !self.own.contains(&e) {
            return read(gpu, stream, &out);
        }
        let weight = weight(gpu, n, k, 1000 + e * n * k, self.uses().1, false);
        let bias = self.share.is_none().then(|| bias(gpu, n, 100 + e * n));
        let x = self.x(gpu);
        let whole = x.view(EXPERTS.len() / self.per_row).unwrap();
        let at = MatLayout { offset: slot / self.per_row * k, ..MatLayout::dense(1, k, Float::Bf16) };
        let x = MatRef::new(whole.mem(), at).unwrap();
        let (out_view, then) = (out.view_mut(1).unwrap(), Then::Nothing);
        stream
            .run(
                Checked::new(Linear { x, weight: &weight, bias: bias.as_ref(), then, out: out_view })
                    .unwrap(),
            )
            .unwrap();
        read(gpu, stream, &out)
    }
}

#[test]
fn a_slot_has_the_bits_of_its_row_with_its_expert() {
    let bounds = leaf_bounds(192, 64);
    let share = Share::new(&bounds, 0, 2).unwrap();
    for mode in [Mode::Invariant, Mode::Fast, Mode::Reference] {
        let gpu = Cuda::new(crate::CudaConfig { mode, ..config() }).unwrap();
        let mut stream = gpu.stream().unwrap();
        for (grain, own, share, per_row, packed) in [
            (1, 0..COUNT, None, TOP_K, false),
            (64, 0..COUNT, None, 1, true),
            (64, 1..3, None, TOP_K, true),
            (64, 0..COUNT, Some(share), 1, true),
        ] {
            let k = share.map_or(200, |share| share.bounds()[8]);
            let case = Case { n: 18, k, grain, own, share, per_row, packed };
            let got = case.grouped(&gpu, &mut stream);
            let bytes = case.n * case.out().bytes();
            for slot in 0..EXPERTS.len() {
                let want = case.alone(&gpu, &mut stream, slot);
                let got = &got[slot * bytes..][..bytes];
                assert_eq!(got, want, "{mode:?}, slot {slot}, grain {grain}, experts {:?}", case.own);
            }
            let tensor = gpu.launches().keys().any(|entry| entry.starts_with("grouped_"));
            assert_eq!(tensor, mode != Mode::Reference);
        }
    }
}

#[test]
fn experts_that_are_packed_while_they_are_loaded_are_not_packed_again() {
    let gpu = open();
    let mut stream = gpu.stream().unwrap();
    let case = Case { n: 18, k: 64, grain: 1, own: 0..COUNT, share: None, per_row: 1, packed: true };
    case.grouped(&gpu, &mut stream);
    assert_eq!(gpu.packing(), std::time::Duration::ZERO);
    Case { packed: false, ..case }.grouped(&gpu, &mut stream);
    assert!(gpu.packing() > std::time::Duration::ZERO);
}

/// Rounded to 16 bits, other orders of the same sums seldom show.
#[test]
fn sums_of_experts_have_the_order_of_those_of_a_matmul() {
    let gpu = open();
    let k = 832;
    let share = Share::new(&leaf_bounds(k, 64), 1, 2).unwrap();
    for (grain, share) in [(1, None), (64, None), (192, None), (64, Some(share))] {
        let case = Case { n: 16, k, grain, own: 0..2, share, per_row: 1, packed: true };
        let cols = share.map_or(k, |share| share.bounds()[8]);
        let (of_experts, alone) = case.uses();
        let experts = weight(&gpu, 32, cols, 0, of_experts, true);
        let alone = weight(&gpu, 16, cols, 0, alone, true);
        assert_eq!(experts.rows().unwrap().sum, alone.rows().unwrap().sum, "grain {grain}, {share:?}");
    }
}
