//! Tests on whatever adapter there is. They are ignored unless they are asked for, and fail without one.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::arithmetic::{Arithmetic, Sums};
use crate::kernel::{Variant, WgpuKernel};
use crate::limits::Way;
use crate::pipelines::Pipelines;
use crate::{AdapterKind, Wgpu, WgpuConfig, WgpuMem, WgpuStream, probe};
use engraft_core::Error;
use engraft_core::backend::{Backend, Coverage, Stream, block_on};
use engraft_core::mem::{Buf, Float, HostWeight, Mat, WeightFormat, WeightInfo, WeightUse};
use engraft_core::numerics::Mode;
use engraft_core::ops::{Add, AttentionOpKind, Checked, Embed, Linear, LinearOpKind, OpKind, Run};
use engraft_shaders::{Attention, Elem, Kernel, Norm, Packing, Reduce};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) mod classes;

/// The adapter that a test runs on: the one that ENGRAFT_REQUIRE asks for, as the lanes do, or the first.
pub(crate) fn opened() -> Arc<Wgpu> {
    opened_as(WgpuConfig::default())
}

/// The same with more to ask for.
pub(crate) fn opened_as(config: WgpuConfig) -> Arc<Wgpu> {
    let required = std::env::var("ENGRAFT_REQUIRE").ok();
    let adapter = required.as_deref().and_then(|name| name.strip_prefix("wgpu:")).map(str::to_string);
    let opened = Wgpu::new(WgpuConfig { adapter, software: true, ..config });
    opened.unwrap_or_else(|e| panic!("needs a wgpu adapter: {e}"))
}

/// None of them passes over nothing.
#[cfg(target_os = "linux")]
#[test]
fn without_an_adapter_every_test_that_needs_one_fails() {
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.arg("--ignored").env("VK_DRIVER_FILES", "/nonexistent").env_remove("ENGRAFT_REQUIRE");
    let output = program.env_remove("RUST_BACKTRACE").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("needs a wgpu adapter: "), "{said}");
    assert!(said.contains("test result: FAILED. 0 passed; "), "{said}");
}

#[test]
#[ignore = "needs a wgpu adapter"]
fn a_lost_device_is_an_error_everywhere_and_stays_one() {
    let gpu = opened();
    let mut stream = gpu.stream().unwrap();
    let words: Buf<WgpuMem, u32> = Buf::new(gpu.alloc(256).unwrap(), 4).unwrap();
    stream.sync().unwrap();
    gpu.gpu.device.destroy();
    for _ in 0..2 {
        let e = stream.sync().unwrap_err();
        assert!(matches!(e, Error::DeviceLost { .. }), "{e}");
    }
    let read = stream.download(words.view());
    let ended = read.and_then(|ticket| block_on(stream.collect(ticket, &mut [0u32; 4])));
    assert!(matches!(ended, Err(Error::DeviceLost { .. })), "{ended:?}");
}

/// What Metal's watchdog does: no error, and whatever the buffers held before. Parameters as native devices
/// and as browsers take them.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_command_buffer_that_was_given_up_is_a_lost_device() {
    for uniform_parameters in [false, true] {
        let config = || WgpuConfig { uniform_parameters, ..WgpuConfig::default() };
        let gpu = opened_as(config());
        let mut stream = gpu.stream().unwrap();
        let mut words = words_of(&gpu);
        let mut got = [0u32; 4];
        // More than once: the numbers go on, and read-back buffers are used again.
        for first in [1, 2, 3] {
            stream.upload(&[first; 4], words.view_mut()).unwrap();
            let read = stream.download(words.view()).unwrap();
            block_on(stream.collect(read, &mut got)).unwrap();
            assert_eq!(got, [first; 4]);
        }
        gpu.lose_command_buffer(0);
        stream.upload(&[4; 4], words.view_mut()).unwrap();
        for _ in 0..2 {
            let read = stream.download(words.view());
            let e = read.and_then(|read| block_on(stream.collect(read, &mut got))).unwrap_err();
            assert!(matches!(&e, Error::DeviceLost { what } if what.contains("command buffer")), "{e}");
            assert_eq!(got, [3; 4], "what was lost was taken for a result");
        }
        // One whose results nobody reads, before one that ends.
        let gpu = opened_as(config());
        let mut stream = gpu.stream().unwrap();
        gpu.lose_command_buffer(0);
        let _unread = stream.download(words_of(&gpu).view()).unwrap();
        stream.submit().unwrap();
        let words = words_of(&gpu);
        let read = stream.download(words.view()).unwrap();
        let e = block_on(stream.collect(read, &mut got)).unwrap_err();
        assert!(matches!(e, Error::DeviceLost { .. }), "{e}");
    }
}

/// At whichever step: what was read before it is right, and nothing is read from then on.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_device_that_is_lost_at_a_step_ends_that_step() {
    for others in 0..4 {
        let gpu = opened();
        let mut stream = gpu.stream().unwrap();
        let mut words = words_of(&gpu);
        let mut got = [u32::MAX; 4];
        gpu.lose_device(others);
        for step in 0..6 {
            let wrote = stream.upload(&[step; 4], words.view_mut());
            let read = wrote.and_then(|()| stream.download(words.view()));
            let ended = read.and_then(|read| block_on(stream.collect(read, &mut got)));
            match u64::from(step) < others {
                true => assert_eq!((ended.is_ok(), got), (true, [step; 4]), "{others}"),
                false => {
                    assert!(matches!(ended, Err(Error::DeviceLost { .. })), "{others}, {step}: {ended:?}")
                }
            }
        }
        assert_eq!(got, [others.wrapping_sub(1) as u32; 4], "what was lost was taken for a result");
    }
}

fn words_of(gpu: &Wgpu) -> Buf<WgpuMem, u32> {
    Buf::new(gpu.alloc(16).unwrap(), 4).unwrap()
}

/// A driver that contracts or reassociates, as the probe would find it.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_probe_that_fails_withholds_the_promise() {
    let gpu = opened();
    let found = |order| Arithmetic { order, ..Arithmetic::default() };
    let config = WgpuConfig::default();
    let gpu = Arc::try_unwrap(gpu).unwrap().probed(&config, found(true), None, None).unwrap();
    assert_eq!(gpu.numerics().mode, Mode::Invariant);
    let gpu = gpu.probed(&config, found(false), None, None).unwrap();
    assert_eq!(gpu.numerics().mode, Mode::Fast);
}

/// A device on a driver that makes something else of some kernels' text.
pub(crate) fn on_driver(config: WgpuConfig, driver: fn(&Kernel, String) -> String) -> Wgpu {
    let mut gpu = Arc::try_unwrap(opened_as(config)).unwrap();
    gpu.pipelines = Pipelines::new(gpu.pipelines.dialect, None, true);
    gpu.pipelines.driver = Some(driver);
    gpu
}

/// `text` with `new` in the place of `old`, which it has.
pub(crate) fn with(text: String, old: &str, new: &str) -> String {
    assert!(text.contains(old), "no {old} in {text}");
    text.replace(old, new)
}

/// A text without what a pipeline begins with.
pub(crate) fn broken(text: String) -> String {
    with(text, "fn main(", "fn no_entry(")
}

/// Which kernels stand in for `all`.
pub(crate) fn stand_in(gpu: &Wgpu, all: &[Kernel]) -> Vec<Kernel> {
    assert!(gpu.pipelines.ready(&gpu.gpu, all).unwrap().is_empty());
    all.iter().map(|kernel| gpu.pipelines.get(&gpu.gpu, *kernel).unwrap().kernel).collect()
}

/// A driver whose subgroups are of another width in one pipeline: its exchanges reach other invocations.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_pipeline_whose_subgroups_are_others_is_not_used() {
    let of = |how, reduce| Kernel::Norm(how, Elem::F32, reduce);
    let gpu =
        on_driver(WgpuConfig { reduce: Some(Reduce::Subgroups), ..WgpuConfig::default() }, |kernel, text| {
            match *kernel == Kernel::Norm(Norm::Add, Elem::F32, Reduce::Subgroups) {
                true => with(text, "subgroupShuffleXor(squares, 2u)", "subgroupShuffleXor(squares, 1u)"),
                false => text,
            }
        });
    let [alone, add] = [Norm::Alone, Norm::Add].map(|how| of(how, Reduce::Subgroups));
    assert_eq!(stand_in(&gpu, &[alone, add]), [alone, of(Norm::Add, Reduce::Shared)]);
    let replaced = gpu.replaced_kernels();
    assert_eq!(replaced.len(), 1, "{replaced:?}");
    assert_eq!(replaced[0].0, add.label());
    assert!(replaced[0].1.contains("7200 words are not those of the plainer kernel"), "{replaced:?}");
}

/// A driver that reassociates one class of kernels: bits would depend on the number of rows.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_kernel_that_sums_in_another_order_is_not_used() {
    let tile = |weight, rows| {
        let (x, out) = (Elem::F32, Elem::F32);
        Kernel::Linear { weight, x, out, rows, gate: false, vector: weight != Packing::W8A8, act: false }
    };
    // Another one for every class, where none is wrong.
    let sound = on_driver(WgpuConfig::default(), |_, text| text).probe_kernels().unwrap();
    assert_eq!((sound.passed, sound.found.as_str()), (Some(true), "14 give the bits of plainer ones"));
    let gpu = on_driver(WgpuConfig::default(), |kernel, text| match kernel {
        Kernel::Linear { weight: Packing::Q4_0, rows: 4, .. }
        | Kernel::Experts { weight: Packing::F32 | Packing::W8A8, rows: 8, .. } => {
            with(text, "og(og(a + b) + og(c + d))", "og(og(a + c) + og(b + d))")
        }
        _ => text,
    });
    let all = [Packing::F32, Packing::W8A8, Packing::Q4_0].map(|weight| tile(weight, 4));
    let [plain, bytes, _] = all;
    assert_eq!(stand_in(&gpu, &all), [plain, bytes, tile(Packing::Q4_0, 1)]);
    let experts = |weight: Packing, rows| {
        let (x, out, vector) = (Elem::F32, Elem::F32, weight != Packing::W8A8);
        Kernel::Experts { weight, x, out, rows, vector, grouped: rows > 1 }
    };
    let all = [(Packing::F32, 4), (Packing::F32, 8), (Packing::W8A8, 4), (Packing::W8A8, 8)];
    let stood_in = stand_in(&gpu, &all.map(|(weight, rows)| experts(weight, rows)));
    let plainer = |(weight, rows): (Packing, u32)| experts(weight, if rows == 8 { 1 } else { rows });
    assert_eq!(stood_in, all.map(plainer));
    let found = gpu.probe_kernels().unwrap();
    for replaced in [tile(Packing::Q4_0, 4), experts(Packing::F32, 8)] {
        assert!(found.passed == Some(false) && found.found.contains(&replaced.label()), "{found:?}");
    }
}

/// A driver that sums the probe's chain from its other end.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_driver_that_reassociates_loses_the_promise() {
    let gpu = on_driver(WgpuConfig::default(), |kernel, text| match kernel {
        Kernel::Probe => with(text, "(i + k) % p.count", "(i + 7u - k) % p.count"),
        _ => text,
    });
    let gpu = Arc::new(gpu);
    let (found, _) = block_on(probe::run(&gpu)).unwrap();
    assert!(!found.order && found.division, "{found:?}");
    let gpu = Arc::try_unwrap(gpu).unwrap();
    let gpu = gpu.probed(&WgpuConfig::default(), found, None, None).unwrap();
    assert_eq!(gpu.numerics().mode, Mode::Fast);
}

/// What `ready` was given compiles nothing when it first runs, in steps of one row, a few and many.
#[test]
#[ignore = "needs a wgpu adapter"]
fn what_is_ready_compiles_nothing_in_its_first_step() {
    let gpu = opened();
    let (rows, cols) = (40, 64);
    let info = |format| WeightInfo {
        name: "w".into(),
        rows,
        cols,
        format,
        used_for: WeightUse::Linear { grain: 1, group: 1 },
    };
    for format in [WeightFormat::Plain(Float::F16), WeightFormat::W8A8] {
        let bytes = vec![0u8; format.bytes(rows, cols)];
        let parts = vec![Cow::Borrowed(&bytes[..])];
        let weight = gpu.prepare_weight(HostWeight::new(info(format), parts).unwrap(), &[]).unwrap();
        let x = Mat::<WgpuMem>::new(gpu.alloc(4 * 9 * cols).unwrap(), 9, cols, Float::F32).unwrap();
        let mut out = Mat::new(gpu.alloc(4 * 9 * rows).unwrap(), 9, rows, Float::F32).unwrap();
        let mut stream = gpu.stream().unwrap();
        let mut seen = None;
        for count in [1, 3, 9] {
            let to = out.view_mut(count).unwrap();
            let op = Checked::new(Linear::new(x.view(count).unwrap(), &weight, None, to)).unwrap();
            let compiled = *seen.get_or_insert_with(|| {
                let Coverage::Native(kernel) = gpu.coverage(&op.op().signature()) else {
                    panic!("no matmul")
                };
                gpu.ready(&[kernel]).unwrap();
                gpu.counters().compiled
            });
            stream.run(op).unwrap();
            stream.sync().unwrap();
            assert_eq!(gpu.counters().compiled, compiled, "{format} in a step of {count} rows");
        }
    }
}

/// Whether scores are capped a key does not say: a driver that refuses one of both takes a model that needs
/// the other. One that refuses all, or one that every step needs, does not.
#[test]
#[ignore = "needs a wgpu adapter"]
fn what_a_model_may_never_ask_for_is_no_reason_to_refuse_it() {
    let key = |op| WgpuKernel {
        op,
        weight: Some(WeightFormat::Plain(Float::F32)),
        x: Float::F32,
        out: Float::F32,
        kv: Some(Float::F32.into()),
        inner: 64,
        columns: 1,
        variant: Variant::Plain,
        reasons: Vec::new(),
    };
    let attend = key(OpKind::Attention(AttentionOpKind::AttendDense));
    let linear = key(OpKind::Linear(LinearOpKind::Linear));
    let gpu = on_driver(WgpuConfig::default(), |kernel, text| match kernel {
        Kernel::Attention(how, ..) if how.capped => broken(text),
        Kernel::Linear { rows: 1, .. } => broken(text),
        _ => text,
    });
    gpu.ready(std::slice::from_ref(&attend)).unwrap();
    let capped = Attention { dense: true, columns: 1, capped: true, subgroups: false, distances: false };
    let e = gpu.pipelines.get(&gpu.gpu, Kernel::Attention(capped, Elem::F32, Elem::F32.into())).unwrap_err();
    assert!(matches!(e, Error::Unsupported { .. }), "{e}");
    let e = gpu.ready(&[attend.clone(), linear]).unwrap_err();
    assert!(matches!(&e, Error::Unsupported { op, .. } if op.contains("linear_")), "{e}");
    let gpu = on_driver(WgpuConfig::default(), |kernel, text| match kernel {
        Kernel::Attention(..) => broken(text),
        _ => text,
    });
    let e = gpu.ready(&[attend]).unwrap_err();
    assert!(matches!(&e, Error::Unsupported { op, .. } if op.contains("attention_")), "{e}");
}

/// What a report says of an adapter, and the adapter that is opened by its place.
#[test]
#[ignore = "needs a wgpu adapter"]
fn an_adapter_is_opened_by_its_place_and_says_what_its_probes_found() {
    opened();
    let all = crate::facts().unwrap();
    assert_eq!(all.iter().map(|a| a.listed.clone()).collect::<Vec<_>>(), crate::list().unwrap());
    for (index, facts) in all.iter().enumerate() {
        let gpu = Wgpu::new(WgpuConfig { index: Some(index), ..WgpuConfig::default() }).unwrap();
        assert_eq!(*gpu.adapter(), facts.listed);
        assert!(
            facts.limits.iter().all(|(name, value)| *value > 0 || *name == "max_immediate_size"),
            "{facts:?}"
        );
        let passed = |name: &str| gpu.probes().iter().find(|probe| probe.name == name).unwrap().passed;
        let found = gpu.arithmetic();
        assert_eq!(
            (passed("division"), passed("subnormals")),
            (Some(found.division), Some(found.subnormals))
        );
        assert_eq!(gpu.probes().len(), 14, "{:?}", gpu.probes());
        let [reference, invariant, fast] = gpu.withheld();
        let sums = Sums { leaves: true, guarded: true, compared: true };
        assert_eq!(reference.1.is_none(), found.promise(sums) == Mode::Reference, "{reference:?}");
        assert_eq!((invariant.1.is_none(), fast.1.is_none()), (found.order, true));
    }
    assert!(Wgpu::new(WgpuConfig { index: Some(all.len()), ..WgpuConfig::default() }).is_err());
}

#[test]
#[ignore = "needs a wgpu adapter"]
fn times_are_the_devices_and_move_on() {
    let gpu = opened();
    let mut stream = gpu.stream().unwrap();
    // More than a set of queries holds.
    let events: Vec<_> = (0..600).map(|_| stream.record().unwrap()).collect();
    stream.sync().unwrap();
    let of_device = gpu.has_clock();
    assert!(events.iter().all(|e| e.is_of_device() == of_device));
    let mut sum = 0.0;
    for pair in events.windows(2) {
        let us = stream.elapsed_us(&pair[0], &pair[1]).unwrap();
        assert!((0.0..1e7).contains(&us), "{us}");
        sum += us;
    }
    let whole = stream.elapsed_us(&events[0], &events[599]).unwrap();
    assert!((whole - sum).abs() <= 1e-6 * whole.max(1.0), "{whole} {sum}");
    println!("{}: by the {} clock, {whole:.1} us", gpu.name(), if of_device { "device's" } else { "host's" });
}

/// Where a device writes its clock in passes alone, as Apple's do: times are of the passes between.
#[test]
#[ignore = "needs a wgpu adapter"]
fn passes_are_timed_where_nothing_else_is() {
    let mut gpu = Arc::try_unwrap(opened()).unwrap();
    assert!(gpu.has_clock(), "an adapter without timestamps");
    gpu.gpu.clock = Way::Passes;
    let gpu = Arc::new(gpu);
    let mut stream = gpu.stream().unwrap();
    let mat = |rows| Mat::<WgpuMem>::new(gpu.alloc(rows * 4096).unwrap(), rows, 1024, Float::F32).unwrap();
    let (x, mut acc) = (mat(512), mat(512));
    let mut add = |stream: &mut WgpuStream, rows: usize, count: usize| {
        for _ in 0..count {
            let acc = acc.view_mut(rows).unwrap();
            stream.run(Checked::new(Add { acc, x: x.view(rows).unwrap() }).unwrap()).unwrap();
        }
    };
    add(&mut stream, 512, 1);
    stream.sync().unwrap();
    // More passes than a set of queries has places for, of which those between two points that are one.
    let begin = stream.record().unwrap();
    let same = stream.record().unwrap();
    let mut points = vec![begin];
    for i in 0..300 {
        let long = i == 299;
        add(&mut stream, if long { 512 } else { 1 }, if long { 20 } else { 1 });
        points.push(stream.record().unwrap());
    }
    assert!(points.iter().all(|point| point.is_of_device()));
    assert_eq!(stream.elapsed_us(&points[0], &same).unwrap(), 0.0);
    let each: Vec<f64> =
        points.windows(2).map(|pair| stream.elapsed_us(&pair[0], &pair[1]).unwrap()).collect();
    assert!(each.iter().all(|us| (0.0..1e7).contains(us)), "{each:?}");
    let short = each[..299].iter().copied().fold(0.0, f64::max).min(each[..299].iter().sum::<f64>() / 100.0);
    assert!(each[299] > short, "{} against {short}", each[299]);
    let whole = stream.elapsed_us(&points[0], &points[300]).unwrap();
    assert!(whole >= each.iter().sum::<f64>(), "{whole} {}", each.iter().sum::<f64>());
    // Times of points that are gone cost nothing any more.
    drop((points, same));
    add(&mut stream, 1, 1);
    stream.sync().unwrap();
    assert!(!gpu.encoding().passes.is_kept());
}

/// A weight of several pieces is what its rows were, and takes no more of the host's memory than two pieces.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_large_weight_is_packed_piece_by_piece() {
    for shared_memory in [true, false] {
        let mut gpu = Arc::try_unwrap(opened()).unwrap();
        // Drivers that run on the CPU have no other memory.
        assert!(gpu.gpu.shared_memory || gpu.adapter().kind != AdapterKind::Software);
        gpu.gpu.shared_memory &= shared_memory;
        packs_piece_by_piece(&Arc::new(gpu));
    }
}

/// By the queue, or, where memory is the host's, without it.
fn packs_piece_by_piece(gpu: &Arc<Wgpu>) {
    const ROWS: usize = 20_001;
    const COLS: usize = 1060;
    let value = |row: usize, col: usize| (row * 31 + col) as f32;
    let values: Vec<f32> = (0..ROWS).flat_map(|row| (0..COLS).map(move |col| value(row, col))).collect();
    let (format, used_for) = (WeightFormat::Plain(Float::F32), WeightUse::Embedding);
    let info = WeightInfo { name: "table".into(), rows: ROWS, cols: COLS, format, used_for };
    let (first, second) = values.split_at(7_000 * COLS);
    let parts = [first, second].map(|part| Cow::Borrowed(bytemuck::cast_slice(part)));
    let table = gpu.prepare_weight(HostWeight::new(info, parts.into()).unwrap(), &[]).unwrap();
    let (staged, queued) = (gpu.counters().staged, gpu.gpu.staged.load(Ordering::Relaxed));
    let way = if gpu.gpu.shared_memory { "without" } else { "by" };
    println!(
        "{}: a weight of {} MiB took at most {} KiB of the host's memory on its way, {way} the queue",
        gpu.gpu.name,
        (4 * ROWS * COLS) >> 20,
        staged >> 10
    );
    match gpu.gpu.shared_memory {
        true => {
            assert!((1 << 20..=32 << 20).contains(&staged) && queued == 0, "{staged} bytes, {queued} queued")
        }
        false => {
            assert!((1 << 20..=64 << 20).contains(&staged) && queued > 0, "{staged} bytes, {queued} queued")
        }
    }

    let mut rows: Vec<u32> = (0..ROWS as u32).step_by(97).chain([6_999, 7_000, ROWS as u32 - 1]).collect();
    rows.extend((1..3).flat_map(|piece| {
        let border = (piece * (32 << 20) / (COLS * 4 * 32) * 32) as u32;
        [border - 1, border]
    }));
    let mut stream = gpu.stream().unwrap();
    let mut ids: Buf<WgpuMem, u32> = Buf::new(gpu.alloc(4 * rows.len()).unwrap(), rows.len()).unwrap();
    stream.upload(&rows, ids.view_mut()).unwrap();
    let mut out = Mat::new(gpu.alloc(4 * rows.len() * COLS).unwrap(), rows.len(), COLS, Float::F32).unwrap();
    let to = out.view_mut(rows.len()).unwrap();
    stream.run(Checked::new(Embed { ids: ids.view(), table: &table, add: None, out: to }).unwrap()).unwrap();
    let read = stream.download(out.view(rows.len()).unwrap().as_f32().unwrap()).unwrap();
    let mut got = vec![0.0f32; rows.len() * COLS];
    block_on(stream.collect(read, &mut got)).unwrap();
    for (row, got) in rows.iter().zip(got.chunks(COLS)) {
        let wrong = got.iter().enumerate().find(|(col, v)| **v != value(*row as usize, *col));
        assert!(wrong.is_none(), "row {row}: {wrong:?}");
    }
}
