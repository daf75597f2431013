//! Tests on whatever adapter there is. They are ignored unless they are asked for, and fail without one.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::arithmetic::Arithmetic;
use crate::{Wgpu, WgpuConfig, WgpuMem};
use engraft_core::Error;
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::{Buf, Float, HostWeight, Mat, WeightFormat, WeightInfo, WeightUse};
use engraft_core::numerics::Mode;
use engraft_core::ops::{Checked, Embed, Run};
use std::borrow::Cow;
use std::sync::Arc;

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
        assert_eq!(gpu.probes().len(), 11, "{:?}", gpu.probes());
        let [reference, invariant, fast] = gpu.withheld();
        assert_eq!(reference.1.is_none(), found.promise(true) == Mode::Reference, "{reference:?}");
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
    let of_device = gpu.gpu.device.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);
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

/// A weight of several pieces is what its rows were, and takes no more of the host's memory than two pieces.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_large_weight_is_packed_piece_by_piece() {
    let gpu = opened();
    const ROWS: usize = 20_001;
    const COLS: usize = 1060;
    let value = |row: usize, col: usize| (row * 31 + col) as f32;
    let values: Vec<f32> = (0..ROWS).flat_map(|row| (0..COLS).map(move |col| value(row, col))).collect();
    let (format, used_for) = (WeightFormat::Plain(Float::F32), WeightUse::Embedding);
    let info = WeightInfo { name: "table".into(), rows: ROWS, cols: COLS, format, used_for };
    let (first, second) = values.split_at(7_000 * COLS);
    let parts = [first, second].map(|part| Cow::Borrowed(bytemuck::cast_slice(part)));
    let table = gpu.prepare_weight(HostWeight::new(info, parts.into()).unwrap(), &[]).unwrap();
    let staged = gpu.counters().staged;
    assert!((1 << 20..=64 << 20).contains(&staged), "{staged} bytes");

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
