//! Weights on their way to the device, on the software driver whose copies take place as late as may be.

use super::{config, open, read};
use crate::mem::lock;
use crate::upload::Plane;
use crate::{Cuda, CudaMem, CudaStream, CudaWeight};
use engraft_core::backend::{Backend, Stream};
use engraft_core::mem::{DeviceMem, Float, HostWeight, Mat, Weight, WeightFormat, WeightInfo, WeightUse};
use engraft_core::numerics::Mode;
use engraft_core::ops::{Checked, Convert, EmbedOpKind, Linear, LinearOpKind, OpKind, Run, Signature};
use engraft_core::{Error, Result};
use soft_cuda::preload::{self, Order};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a piece, and pieces of 8 MiB: several fills for each of eight readers.
const PIECE: usize = 4096;
const PIECES: usize = 2048;

/// Whether this process is the test's own: the driver's settings are the process's. Otherwise one is made.
fn alone(name: &str) -> bool {
    const ALONE: &str = "ENGRAFT_LOADING_ALONE";
    if std::env::var_os(ALONE).is_some() {
        preload::load().unwrap().set_order(Order::Latest).unwrap();
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let name = format!("tests::loading::{name}");
    let run = std::process::Command::new(program).args(["--exact", &name]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// The bytes of a piece.
fn pattern(piece: usize) -> [u8; PIECE] {
    let mut bytes = [(piece % 251) as u8; PIECE];
    bytes[..8].copy_from_slice(&(piece as u64 + 1).to_le_bytes());
    bytes
}

/// Uploads all pieces; `ends` says whether filling ends at one of them.
fn upload(gpu: &Cuda, to: &CudaMem, ends: impl Fn(usize) -> bool + Sync) -> (Result<()>, usize) {
    let fills = AtomicUsize::new(0);
    let plane = Plane { address: to.address(), bytes: PIECE };
    let done = gpu.upload([plane, Plane::default()], PIECES, &|pieces, bytes, _| {
        fills.fetch_add(1, Ordering::Relaxed);
        if pieces.clone().any(&ends) {
            return false;
        }
        pieces.zip(bytes.chunks_exact_mut(PIECE)).for_each(|(piece, to)| to.copy_from_slice(&pattern(piece)));
        true
    });
    (done, fills.into_inner())
}

fn assert_landed(gpu: &Cuda, mem: &CudaMem) {
    let bytes = gpu.read(mem).unwrap();
    let wrong = bytes.chunks_exact(PIECE).enumerate().find(|(piece, bytes)| **bytes != pattern(*piece));
    assert!(wrong.is_none(), "piece {:?} is another one's", wrong.map(|(piece, _)| piece));
}

#[test]
fn a_slot_is_filled_again_only_behind_its_copy() {
    if !alone("a_slot_is_filled_again_only_behind_its_copy") {
        return;
    }
    let gpu = open();
    let mem = gpu.allocate(PIECE * PIECES).unwrap();
    let (done, fills) = upload(&gpu, &mem, |_| false);
    done.unwrap();
    let readers = lock(&gpu.staging.readers).len();
    assert!(fills >= 3 * readers, "{fills} fills by {readers} readers: none packs while it copies");
    assert!(preload::load().unwrap().pending().unwrap() > 0, "the last copies are waited for");
    assert_landed(&gpu, &mem);
}

#[test]
fn an_upload_that_fails_leaves_no_copy_behind() {
    if !alone("an_upload_that_fails_leaves_no_copy_behind") {
        return;
    }
    for panics in [false, true] {
        let gpu = open();
        let mem = gpu.allocate(PIECE * PIECES).unwrap();
        let address = mem.address();
        // What is filled before is on its way.
        let (done, fills) = upload(&gpu, &mem, |piece| {
            assert!(!panics || piece != PIECES - 1, "planned");
            piece == PIECES - 1
        });
        let error = done.unwrap_err();
        assert!(fills > 1 && matches!(error, Error::Internal { .. }), "{error}");
        drop(mem);
        let again = gpu.alloc(PIECE * PIECES).unwrap();
        assert_eq!(again.address(), address, "the memory is not given out again, so nothing is tested");
        gpu.release_staging().unwrap();
        assert!(gpu.read(&again).unwrap().iter().all(|byte| *byte == 0), "a copy came late");
    }
}

#[test]
fn weights_are_loaded_where_pinned_memory_is_refused() {
    if !alone("weights_are_loaded_where_pinned_memory_is_refused") {
        return;
    }
    let soft = preload::load().unwrap();
    for granted in [0, 1, 3] {
        let gpu = open();
        let mem = gpu.allocate(PIECE * PIECES).unwrap();
        soft.set_pinned(Some(granted)).unwrap();
        upload(&gpu, &mem, |_| false).0.unwrap();
        soft.set_pinned(None).unwrap();
        assert_landed(&gpu, &mem);
        let pinned = lock(&gpu.staging.readers).iter().flat_map(|r| &r.slots).filter(|s| s.pinned).count();
        assert!(pinned as u64 <= granted);
        gpu.release_staging().unwrap();
    }
}

#[test]
fn free_bytes_are_what_is_left() {
    if !alone("free_bytes_are_what_is_left") {
        return;
    }
    let gpu = open();
    let before = gpu.free_bytes().unwrap();
    let mem = gpu.alloc(64 << 20).unwrap();
    let after = gpu.free_bytes().unwrap();
    assert!(before - after >= mem.bytes() as u64 && before <= gpu.device().memory_bytes, "{before}, {after}");
}

/// A small whole number for each place: sums of so few are exact in every type.
fn value(row: usize, col: usize) -> f32 {
    ((row * 7 + col * 3) % 5) as f32 - 2.0
}

fn host(rows: usize, cols: usize, dtype: Float, used_for: WeightUse) -> HostWeight<'static> {
    let bytes = (0..rows * cols).flat_map(|i| {
        let bits = value(i / cols, i % cols).to_bits().to_le_bytes();
        // The upper half of an f32 is a bf16.
        if dtype == Float::F32 { bits.to_vec() } else { bits[2..].to_vec() }
    });
    let format = WeightFormat::Plain(dtype);
    let info = WeightInfo { name: "one".into(), rows, cols, format, used_for };
    HostWeight::new(info, vec![bytes.collect::<Vec<u8>>().into()]).unwrap()
}

fn linear(x: Float, weight: WeightFormat, rows: usize, cols: usize) -> Signature {
    let op = OpKind::Linear(LinearOpKind::Linear);
    Signature { weight: Some(weight), ..Signature::new(op, x, cols, rows) }
}

/// `w x` for an x of ones in bf16.
fn row_sums(gpu: &Arc<Cuda>, stream: &mut CudaStream, weight: &CudaWeight) -> Vec<f32> {
    let mat = |cols: usize, dtype: Float| {
        Mat::new(gpu.alloc(cols * dtype.bytes()).unwrap(), 1, cols, dtype).unwrap()
    };
    let (rows, cols) = (weight.info().rows, weight.info().cols);
    let (mut wide, mut x) = (mat(cols, Float::F32), mat(cols, Float::Bf16));
    let (mut out, mut sums) = (mat(rows, Float::Bf16), mat(rows, Float::F32));
    stream.upload(&vec![1.0f32; cols], wide.view_mut(1).unwrap().into_f32().unwrap()).unwrap();
    let widened = Convert { x: wide.view(1).unwrap(), bias: None, out: x.view_mut(1).unwrap() };
    stream.run(Checked::new(widened).unwrap()).unwrap();
    let op = Linear::new(x.view(1).unwrap(), weight, None, out.view_mut(1).unwrap());
    stream.run(Checked::new(op).unwrap()).unwrap();
    let back = Convert { x: out.view(1).unwrap(), bias: None, out: sums.view_mut(1).unwrap() };
    stream.run(Checked::new(back).unwrap()).unwrap();
    read(stream, &sums)
}

fn want(rows: usize, cols: usize) -> Vec<f32> {
    (0..rows).map(|row| (0..cols).map(|col| value(row, col)).sum()).collect()
}

/// Rows that were made f32 where the header says bf16 (a head of rows of length 1), a rank's share.
#[test]
fn a_weight_is_packed_for_what_it_is_whatever_its_uses_say() {
    let (bf16, f32) = (WeightFormat::Plain(Float::Bf16), WeightFormat::Plain(Float::F32));
    let used_for = WeightUse::Linear { grain: 32, group: 1 };
    for mode in [Mode::Reference, Mode::Invariant, Mode::Fast] {
        let gpu = Cuda::new(crate::CudaConfig { mode, ..config() }).unwrap();
        let mut stream = gpu.stream().unwrap();
        for (dtype, said, rows, cols) in [
            (Float::F32, bf16, 32, 64),
            (Float::Bf16, f32, 32, 64),
            (Float::Bf16, bf16, 64, 64),
            (Float::Bf16, bf16, 32, 128),
        ] {
            let uses = [linear(Float::Bf16, said, rows, cols)];
            let weight = gpu.prepare_weight(host(32, 64, dtype, used_for), &uses).unwrap();
            let sums = row_sums(&gpu, &mut stream, &weight);
            assert_eq!(sums, want(32, 64), "{dtype} said to be {said} of {rows} x {cols} in {mode:?}");
            assert_eq!(gpu.packing(), std::time::Duration::ZERO, "it was packed twice");
        }
    }
}

#[test]
fn a_weight_says_how_many_layouts_it_has() {
    let gpu = Cuda::new(crate::CudaConfig { mode: Mode::Invariant, ..config() }).unwrap();
    let format = WeightFormat::Plain(Float::Bf16);
    let looked_up = Signature {
        weight: Some(format),
        ..Signature::new(OpKind::Embed(EmbedOpKind::Embed), Float::Bf16, 64, 64)
    };
    let multiplied = linear(Float::Bf16, format, 32, 64);
    let tied = WeightUse::EmbeddingAndLinear;
    for (uses, layouts) in [(&[looked_up][..], 1), (&[multiplied], 1), (&[looked_up, multiplied], 2)] {
        let weight = gpu.prepare_weight(host(32, 64, Float::Bf16, tied), uses).unwrap();
        assert_eq!(weight.layouts(), layouts, "{:?}", weight.buffers());
    }
    // Rows that fill a part of a tile are one, whatever bytes they take.
    let few = host(3, 64, Float::Bf16, WeightUse::Linear { grain: 32, group: 1 });
    let few = gpu.prepare_weight(few, &[multiplied]).unwrap();
    let buffers = few.buffers();
    assert!(few.device_bytes() > 3 * few.info().bytes() / 2 && few.layouts() == 1, "{buffers:?}");
}

#[test]
fn what_packing_behind_the_load_took_is_given_back() {
    let gpu = Cuda::new(crate::CudaConfig { mode: Mode::Invariant, ..config() }).unwrap();
    let weight = gpu
        .prepare_weight(host(32, 64, Float::Bf16, WeightUse::Linear { grain: 32, group: 1 }), &[])
        .unwrap();
    gpu.ready(&[]).unwrap();
    assert!(lock(&gpu.staging.readers).is_empty());
    let mut stream = gpu.stream().unwrap();
    assert_eq!(row_sums(&gpu, &mut stream, &weight), want(32, 64));
    assert!(gpu.packing() > std::time::Duration::ZERO, "nothing was packed behind the load");
    assert!(lock(&gpu.staging.readers).is_empty(), "pinned memory stays");
}
