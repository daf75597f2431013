//! Transfers, captures, plans.

use super::*;
use crate::simd;
use engraft_core::ops::{Add, Signature};
use engraft_core::params::Heads;

#[test]
fn a_read_sees_the_values_of_its_place_in_the_queue() {
    let mut b = Bench::new(Isa::detect(), false);
    let mut buf = b.buf(&[1u32, 2, 3]);
    let first = b.stream.download(buf.view()).unwrap();
    b.stream.upload(&[7u32, 8], buf.view_mut()).unwrap();
    let second = b.stream.download(buf.view().slice(1..3).unwrap()).unwrap();
    b.stream.upload(&[0u32; 3], buf.view_mut()).unwrap();
    drop(buf);
    let (mut one, mut two) = ([0u32; 3], [0u32; 3]);
    block_on(b.stream.collect(second, &mut two)).unwrap();
    block_on(b.stream.collect(first, &mut one)).unwrap();
    assert_eq!((one, two), ([1, 2, 3], [8, 3, 0]));
}

#[test]
fn reads_reuse_their_buffers_and_refuse_short_outputs() {
    let mut b = Bench::new(Isa::detect(), false);
    let (small, large) = (b.buf(&[1u32; 4]), b.buf(&[2u32; 4000]));
    let mut places = Vec::new();
    for _ in 0..3 {
        let (s, l) = (b.stream.download(small.view()).unwrap(), b.stream.download(large.view()).unwrap());
        places.push((s.start(), l.start()));
        assert!(block_on(b.stream.collect(s, &mut [0u32; 3])).is_err());
        block_on(b.stream.collect(l, &mut [0u32; 4000])).unwrap();
    }
    assert_eq!(places[1], places[0]);
    assert_eq!(places[2], places[0]);
}

#[test]
fn a_recording_keeps_its_memory() {
    let mut b = Bench::new(Isa::detect(), false);
    let mut acc = b.mat(&[1.0, 2.0], 2, Float::F32);
    let x = b.mat(&[10.0, 20.0], 2, Float::F32);
    let Bench { stream, .. } = &mut b;
    let graph =
        stream.capture(|s| s.run(Checked::new(Add { acc: acc.view_mut(1)?, x: x.view(1)? })?)).unwrap();
    drop(x);
    // SAFETY: what was captured is held by the graph, and nothing else borrows it.
    unsafe {
        stream.replay(&graph).unwrap();
        stream.replay(&graph).unwrap();
    }
    assert_eq!(b.rows(&acc), [21.0, 42.0]);
}

#[test]
fn plans_show_the_kernels_that_run() {
    use engraft_core::backend::Coverage;
    use engraft_core::mem::Block;
    use engraft_core::ops::{AttentionOpKind, LinearOpKind, NormOpKind, RopeOpKind, RowsOpKind};
    let b = Bench::new(Isa::detect(), false);
    let isa = b.cpu.machine().isa;
    let eight = if isa == Isa::Avx512 { Isa::Avx2 } else { isa }.name();
    let isa = isa.name();
    let shown = |signature: &Signature| match b.cpu.coverage(signature) {
        Coverage::Native(kernel) => kernel.to_string(),
        Coverage::Composed(reason) => format!("composed: {reason}"),
        Coverage::Missing(reason) => format!("missing: {reason}"),
    };
    let plain = |kind| Signature::new(kind, Float::F32, 64, 64);
    let of = |weight| Signature { weight: Some(weight), ..plain(LinearOpKind::LinearAdd.into()) };
    assert_eq!(shown(&of(WeightFormat::Block(Block::Q4_0))), format!("linear_add_q4_0_{isa}"));
    let bytes = simd::wide::for_bytes(simd::Isa::detect()).name();
    assert_eq!(shown(&of(WeightFormat::W8A8)), format!("linear_add_w8a8_{bytes}"));
    assert_eq!(shown(&plain(NormOpKind::AddNorm.into())), format!("add_norm_f32_{isa}"));
    assert_eq!(shown(&plain(RowsOpKind::GatherRows.into())), format!("gather_rows_f32_{eight}"));
    assert!(shown(&plain(RopeOpKind::QkvRopeAppend.into())).starts_with("composed: "));
    let heads = Some(Heads { heads: 257, kv_heads: 1, k_dim: 1, v_dim: 1 });
    let many = Signature { heads, ..plain(AttentionOpKind::Attend.into()) };
    assert!(shown(&many).starts_with("missing: "));
}
