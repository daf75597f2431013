//! Keys and values as codes by the ops of the contract: what is read back is what the host makes of a row,
//! and attention has the bits of one over f32 with these values, in every mode.

use super::config;
use crate::{Cuda, CudaConfig, CudaMem, CudaStream};
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::{Buf, Float, KvCode, KvFormat, KvLayout, Mat, Slab, StepShape, Table};
use engraft_core::numerics::Mode;
use engraft_core::ops::{Attend, Checked, KvAppend, KvCopyPages, KvRead, Op, Run, Sequences};
use engraft_core::params::{Heads, Scores};
use engraft_core::quant::kv_row;
use std::sync::Arc;

/// Heads that have kernels for tensor cores, too.
const HEADS: Heads = Heads { heads: 4, kv_heads: 2, k_dim: 64, v_dim: 64 };
/// Two chunks.
const KEYS: usize = 70;
const QUERIES: usize = 3;
const PAGE: usize = 16;
const PAGES: usize = 8;

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let value = |i: u32| (i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(0x9e37_79b9)) >> 8;
    (0..n as u32).map(|i| value(i + 1) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn filled<T: bytemuck::Pod>(gpu: &Cuda, values: &[T]) -> CudaMem {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    gpu.alloc_filled([bytes], bytes.len()).unwrap()
}

fn mat(gpu: &Cuda, values: &[f32], rows: usize) -> Mat<CudaMem> {
    Mat::new(filled(gpu, values), rows, values.len() / rows, Float::F32).unwrap()
}

fn run<'a>(stream: &mut CudaStream, op: impl Into<Op<'a, Cuda>>) {
    stream.run(Checked::new(op).unwrap()).unwrap();
}

/// The bytes of matrices, when the stream has come so far.
fn read<const N: usize>(gpu: &Cuda, stream: &mut CudaStream, of: [&Mat<CudaMem>; N]) -> [Vec<u8>; N] {
    let word = Buf::<_, u32>::new(filled(gpu, &[7u32]), 1).unwrap();
    let ticket = stream.download(word.view()).unwrap();
    block_on(stream.collect(ticket, &mut [0u32])).unwrap();
    of.map(|mat| gpu.read(mat.view(mat.rows()).unwrap().mem()).unwrap())
}

/// Appends keys and values, moves a page, reads both back and attends: keys, values, out.
fn served(gpu: &Arc<Cuda>, format: KvFormat, [k, v]: [&[f32]; 2]) -> [Vec<u8>; 3] {
    let Heads { kv_heads, k_dim, v_dim, .. } = HEADS;
    let layout = KvLayout { pages: PAGES, page_size: PAGE, kv_heads, k_dim, v_dim, format };
    let (k_bytes, v_bytes) = Slab::<CudaMem>::bytes::<Cuda>(&layout).unwrap();
    let (k_mem, v_mem) = (gpu.alloc(k_bytes).unwrap(), gpu.alloc(v_bytes).unwrap());
    let mut slab = Slab::new::<Cuda>(k_mem, v_mem, layout).unwrap();
    let mut stream = gpu.stream().unwrap();
    // Pages 5, 4, 3, 2, 1; the second is moved to 7 then.
    let slots: Vec<i32> = (0..KEYS).map(|i| ((5 - i / PAGE) * PAGE + i % PAGE) as i32).collect();
    let slots = Buf::new(filled(gpu, &slots), KEYS).unwrap();
    let (k, v) = (mat(gpu, k, KEYS), mat(gpu, v, KEYS));
    let (rows_k, rows_v) = (k.view(KEYS).unwrap(), v.view(KEYS).unwrap());
    run(&mut stream, KvAppend { k: rows_k, v: rows_v, slots: slots.view(), kv: slab.view_mut() });
    let pairs = Buf::new(filled(gpu, &[4u32, 7, 0, 4]), 4).unwrap();
    run(&mut stream, KvCopyPages { pairs: pairs.view(), kv: slab.view_mut() });
    let pages = Buf::new(filled(gpu, &[5u32, 7, 3, 2, 1]), 5).unwrap();
    let table = Table { pages: pages.view(), stride: 5 };
    let [mut out_k, mut out_v] = [k_dim, v_dim].map(|dim| mat(gpu, &vec![9.0; KEYS * kv_heads * dim], KEYS));
    let (to_k, to_v) = (out_k.view_mut(KEYS).unwrap(), out_v.view_mut(KEYS).unwrap());
    run(&mut stream, KvRead { kv: slab.view(), table, row: 0, k: to_k, v: to_v });
    // Activations of 16 bits: the upper halves of numbers.
    let q: Vec<u16> =
        numbers(QUERIES * HEADS.q_cols(), 3).iter().map(|v| (v.to_bits() >> 16) as u16).collect();
    let q = Mat::new(filled(gpu, &q), QUERIES, HEADS.q_cols(), Float::Bf16).unwrap();
    let mut out =
        Mat::new(gpu.alloc(2 * QUERIES * HEADS.out_cols()).unwrap(), QUERIES, HEADS.out_cols(), Float::Bf16)
            .unwrap();
    let [bounds, rows, lens] = [&[0u32, QUERIES as u32][..], &[0], &[KEYS as u32]]
        .map(|of| Buf::new(filled(gpu, of), of.len()).unwrap());
    let shape =
        StepShape { tokens: QUERIES, seqs: 1, max_query: QUERIES, max_keys: KEYS, ..StepShape::default() };
    let plan = gpu.attention_plan(shape).unwrap();
    run(
        &mut stream,
        Attend {
            plan: &plan,
            q: q.view(QUERIES).unwrap(),
            kv: slab.view(),
            heads: HEADS,
            scores: &Scores::causal(0.125),
            sinks: None,
            bias: None,
            seqs: Sequences {
                bounds: bounds.view(),
                table_rows: rows.view(),
                kv_lens: lens.view(),
                max_query: QUERIES,
                max_keys: KEYS,
            },
            table,
            out: out.view_mut(QUERIES).unwrap(),
        },
    );
    read(gpu, &mut stream, [&out_k, &out_v, &out])
}

#[test]
fn codes_are_the_hosts_and_attended_to_as_their_values() {
    let (k, v) = (numbers(KEYS * 2 * 64, 1), numbers(KEYS * 2 * 64, 2));
    for mode in [Mode::Reference, Mode::Invariant, Mode::Fast] {
        let gpu = Cuda::new(CudaConfig { mode, ..config() }).unwrap();
        let plain = served(&gpu, Float::F32.into(), [&k, &v]);
        assert_eq!(plain[0], bytemuck::cast_slice::<f32, u8>(&k));
        for (format, code) in [(KvFormat::INT8, KvCode::Int8), (KvFormat::FP8, KvCode::Fp8)] {
            let rounded = [&k, &v].map(|rows| kv_row::unpack(code, 64, &kv_row::pack(code, 64, rows)));
            let [keys, values, out] = served(&gpu, format, [&k, &v]);
            assert!(keys == bytemuck::cast_slice::<f32, u8>(&rounded[0]), "{format}, {mode:?}: keys");
            assert!(values == bytemuck::cast_slice::<f32, u8>(&rounded[1]), "{format}, {mode:?}: values");
            let want = served(&gpu, Float::F32.into(), [&rounded[0], &rounded[1]]);
            assert!(out == want[2] && out != plain[2], "{format}, {mode:?}: attention");
        }
    }
}
