//! Work that a driver gives up without a word, wherever the host looks next; on whatever adapter there is.
#![allow(clippy::unwrap_used)]

use crate::limits::Way;
use crate::pipelines::Pipelines;
use crate::tests::{broken, on_driver, opened, opened_as, with};
use crate::{Wgpu, WgpuConfig, WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::{Block, Buf, Float, HostWeight, Mat, WeightFormat, WeightInfo, WeightUse};
use engraft_core::ops::{Add, Checked, Run};
use engraft_core::{Error, Result};
use engraft_shaders::{Elem, Kernel, Norm, Reduce};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Two rows, and the sum of both in the second.
struct Sums {
    x: Mat<WgpuMem>,
    acc: Mat<WgpuMem>,
}

impl Sums {
    fn new(gpu: &Arc<Wgpu>) -> Self {
        let row = || Mat::<WgpuMem>::new(gpu.alloc(4096).unwrap(), 1, 1024, Float::F32).unwrap();
        Self { x: row(), acc: row() }
    }

    fn run(&mut self, stream: &mut WgpuStream) {
        let (x, acc) = (self.x.view(1).unwrap(), self.acc.view_mut(1).unwrap());
        stream.run(Checked::new(Add { acc, x }).unwrap()).unwrap();
    }
}

fn is_lost(ended: &Result<impl std::fmt::Debug>) -> bool {
    matches!(ended, Err(Error::DeviceLost { what }) if what.contains("command buffer"))
}

/// A wait alone: what a report times, and what ends before memory goes.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_wait_sees_that_work_was_given_up() {
    for uniform_parameters in [false, true] {
        let gpu = opened_as(WgpuConfig { uniform_parameters, ..WgpuConfig::default() });
        let (mut stream, mut sums) = (gpu.stream().unwrap(), Sums::new(&gpu));
        for _ in 0..3 {
            sums.run(&mut stream);
            stream.sync().unwrap();
        }
        // Nothing to see, nothing to submit.
        let before = gpu.counters().submits;
        stream.sync().unwrap();
        assert_eq!(gpu.counters().submits, before);
        gpu.lose_command_buffer(0);
        sums.run(&mut stream);
        for _ in 0..2 {
            let ended = stream.sync();
            assert!(is_lost(&ended), "{ended:?}");
        }
        // What was submitted before the wait, and what was uploaded, too.
        let gpu = opened_as(WgpuConfig { uniform_parameters, ..WgpuConfig::default() });
        let (mut stream, mut sums) = (gpu.stream().unwrap(), Sums::new(&gpu));
        gpu.lose_command_buffer(0);
        sums.run(&mut stream);
        stream.submit().unwrap();
        assert!(is_lost(&stream.sync()));
        let gpu = opened_as(WgpuConfig { uniform_parameters, ..WgpuConfig::default() });
        let (mut stream, mut words) = (gpu.stream().unwrap(), Buf::new(gpu.alloc(16).unwrap(), 4).unwrap());
        stream.upload(&[1u32; 4], words.view_mut()).unwrap();
        stream.sync().unwrap();
        gpu.lose_upload(0);
        stream.upload(&[2u32; 4], words.view_mut()).unwrap();
        assert!(is_lost(&stream.sync()));
    }
}

/// Each pass is a command buffer of Metal's: one between two points in time may be given up alone.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_pass_that_was_given_up_between_two_times_is_a_lost_device() {
    for way in [Way::Passes, Way::Commands] {
        for lost in 0..4 {
            let mut gpu = Arc::try_unwrap(opened()).unwrap();
            assert!(gpu.has_clock(), "an adapter without timestamps");
            gpu.gpu.clock = way;
            let gpu = Arc::new(gpu);
            let (mut stream, mut sums) = (gpu.stream().unwrap(), Sums::new(&gpu));
            stream.sync().unwrap();
            gpu.lose_pass(lost);
            let mut points = vec![stream.record().unwrap()];
            for _ in 0..4 {
                sums.run(&mut stream);
                points.push(stream.record().unwrap());
            }
            let ended = stream.elapsed_us(&points[0], &points[4]);
            assert!(is_lost(&ended), "pass {lost}, {way:?}: {ended:?}");
            assert!(is_lost(&stream.sync()));
        }
    }
}

/// What the queue writes lies in a command buffer of Metal's own: without it work runs to its end, on what
/// was there before.
#[test]
#[ignore = "needs a wgpu adapter"]
fn an_upload_that_was_given_up_is_a_lost_device() {
    for uniform_parameters in [false, true] {
        for others in 0..3 {
            let gpu = opened_as(WgpuConfig { uniform_parameters, ..WgpuConfig::default() });
            let mut stream = gpu.stream().unwrap();
            let mut words: Buf<WgpuMem, u32> = Buf::new(gpu.alloc(16).unwrap(), 4).unwrap();
            let mut got = [u32::MAX; 4];
            gpu.lose_upload(others);
            for step in 0..4 {
                stream.upload(&[step; 4], words.view_mut()).unwrap();
                let read = stream.download(words.view());
                let ended = read.and_then(|read| block_on(stream.collect(read, &mut got)));
                match u64::from(step) < others {
                    true => assert_eq!((ended.is_ok(), got), (true, [step; 4]), "{others}"),
                    false => assert!(is_lost(&ended), "{others}, {step}: {ended:?}"),
                }
            }
        }
        // Before work that the host does not read, and with others in front.
        let gpu = opened_as(WgpuConfig { uniform_parameters, ..WgpuConfig::default() });
        let (mut stream, mut sums) = (gpu.stream().unwrap(), Sums::new(&gpu));
        let mut words: Buf<WgpuMem, u32> = Buf::new(gpu.alloc(16).unwrap(), 4).unwrap();
        gpu.lose_upload(2);
        (0..3).for_each(|step| stream.upload(&[step; 4], words.view_mut()).unwrap());
        sums.run(&mut stream);
        assert!(is_lost(&stream.sync()));
    }
}

/// A table of 64 rows in q8_0, two uploads, and a vector, one.
fn load(gpu: &Arc<Wgpu>, format: WeightFormat, used_for: WeightUse) -> WgpuWeight {
    let (rows, cols) = if used_for == WeightUse::Vector { (1, 64) } else { (64, 64) };
    let raw = vec![1u8; format.bytes(rows, cols)];
    let info = WeightInfo { name: "a weight".into(), rows, cols, format, used_for };
    gpu.prepare_weight(HostWeight::new(info, vec![Cow::Owned(raw)]).unwrap(), &[]).unwrap()
}

/// Whether the last one of a submission or one before it, and whoever submits it.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_weight_that_was_given_up_on_its_way_is_a_lost_device() {
    let (table, vector) = (WeightFormat::Block(Block::Q8_0), WeightFormat::Plain(Float::F32));
    for uniform_parameters in [false, true] {
        for lost in 0..8 {
            let gpu = opened_as(WgpuConfig { uniform_parameters, ..WgpuConfig::default() });
            let mut gpu = Arc::try_unwrap(gpu).unwrap();
            // By the queue.
            gpu.gpu.shared_memory = false;
            let gpu = Arc::new(gpu);
            gpu.lose_upload(lost);
            let first = load(&gpu, vector, WeightUse::Vector);
            // As a trial does.
            gpu.gpu.submit([]);
            let second = load(&gpu, table, WeightUse::Embedding);
            // As a weight of several pieces does.
            gpu.uploads().hand_over(&gpu.gpu).unwrap();
            let third = load(&gpu, table, WeightUse::Embedding);
            let fourth = load(&gpu, vector, WeightUse::Vector);
            let (mut stream, mut sums) = (gpu.stream().unwrap(), Sums::new(&gpu));
            if lost % 2 == 0 {
                sums.run(&mut stream);
            }
            let ended = stream.sync();
            match lost < 6 {
                true => assert!(is_lost(&ended), "upload {lost}: {ended:?}"),
                false => ended.unwrap(),
            }
            drop((first, second, third, fourth));
        }
    }
}

/// What is copied from buffer to buffer between two passes.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_copy_that_was_given_up_is_a_lost_device() {
    for lost in [None, Some(0), Some(1), Some(2)] {
        let gpu = opened();
        let part = |value: u32| {
            let words = bytemuck::cast_slice(&[value; 4]).to_vec();
            gpu.gpu.alloc_filled("a test", &words, gpu.uploads()).unwrap()
        };
        lost.into_iter().for_each(|lost| gpu.lose_upload(lost));
        let parts = [part(7), part(9)];
        let joined = gpu.of_heads.get(&gpu.gpu, &gpu.encoding, parts.each_ref()).unwrap();
        let (mut stream, mut got) = (gpu.stream().unwrap(), [0u32; 8]);
        let both: Buf<WgpuMem, u32> = Buf::new(joined, 8).unwrap();
        let read = stream.download(both.view()).unwrap();
        let ended = block_on(stream.collect(read, &mut got));
        match lost {
            Some(lost) => assert!(is_lost(&ended), "{lost}: {ended:?}"),
            None => assert_eq!((ended.is_ok(), got), (true, [7, 7, 7, 7, 9, 9, 9, 9])),
        }
    }
}

/// A kernel that `ready` did not foresee: other streams of the device encode while it is compiled.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_kernel_that_is_compiled_keeps_no_other_from_encoding() {
    static COMPILES: AtomicBool = AtomicBool::new(false);
    static ENCODED: AtomicBool = AtomicBool::new(false);
    static WAS_KEPT: AtomicBool = AtomicBool::new(false);
    let until = |flag: &AtomicBool| {
        let start = Instant::now();
        while !flag.load(Ordering::SeqCst) && start.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
    };
    let gpu = Arc::new(on_driver(WgpuConfig::default(), |kernel, text| {
        if matches!(kernel, Kernel::Elementwise(..)) {
            COMPILES.store(true, Ordering::SeqCst);
            let start = Instant::now();
            while !ENCODED.load(Ordering::SeqCst) && !WAS_KEPT.load(Ordering::SeqCst) {
                WAS_KEPT.fetch_or(start.elapsed().as_secs() > 10, Ordering::SeqCst);
            }
        }
        text
    }));
    let (mut stream, mut sums) = (gpu.stream().unwrap(), Sums::new(&gpu));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until(&COMPILES);
            let mut other = gpu.stream().unwrap();
            other.submit().unwrap();
            ENCODED.store(true, Ordering::SeqCst);
        });
        sums.run(&mut stream);
    });
    stream.sync().unwrap();
    assert!(COMPILES.load(Ordering::SeqCst) && !WAS_KEPT.load(Ordering::SeqCst));
}

/// Parameters where there are no immediates: marks have room at any number of dispatches.
#[test]
#[ignore = "needs a wgpu adapter"]
fn marks_have_room_for_their_numbers() {
    let gpu = opened_as(WgpuConfig { uniform_parameters: true, ..WgpuConfig::default() });
    let (mut stream, mut sums) = (gpu.stream().unwrap(), Sums::new(&gpu));
    for count in [1, 510, 511, 512, 1022, 1023, 1024, 1025] {
        for _ in 0..count {
            sums.run(&mut stream);
            // A place of its own for the mark of each pass.
            if count < 1022 {
                stream.record().unwrap();
            }
        }
        stream.sync().unwrap();
    }
}

/// A step of many command buffers, with the next one handed over before the first is read: how long it took
/// is known all the same.
#[test]
#[ignore = "needs a wgpu adapter"]
fn what_is_read_is_timed_however_much_follows() {
    let gpu = opened();
    let (mut stream, mut sums) = (gpu.stream().unwrap(), Sums::new(&gpu));
    let words: Buf<WgpuMem, u32> = Buf::new(gpu.alloc(16).unwrap(), 4).unwrap();
    let mut step = |stream: &mut WgpuStream| {
        for _ in 0..20 {
            sums.run(stream);
            stream.submit().unwrap();
        }
        stream.download(words.view()).unwrap()
    };
    let mut before = step(&mut stream);
    for _ in 0..3 {
        let next = step(&mut stream);
        let (known, handed_over) = gpu.encoding().progress();
        block_on(stream.collect(std::mem::replace(&mut before, next), &mut [0u32; 4])).unwrap();
        let now = gpu.encoding().progress().0;
        assert!(known < now && now < handed_over, "{known} {now} {handed_over}");
    }
    block_on(stream.collect(before, &mut [0u32; 4])).unwrap();
    let (known, handed_over) = gpu.encoding().progress();
    assert_eq!(known, handed_over);
}

/// A driver that refuses a shader which is compared with others: a report has the rest of what was found.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_shader_that_is_refused_is_a_probe_that_failed() {
    let gpu = on_driver(WgpuConfig::default(), |kernel, text| match kernel {
        Kernel::Linear { rows: 1, .. } => broken(text),
        _ => text,
    });
    let found = gpu.probe_kernels().unwrap();
    assert_eq!(found.passed, Some(false));
    assert!(found.found.contains("linear_") && found.found.contains("refused"), "{found:?}");
}

/// Threads that compile one kernel at the same time find out the same.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_kernel_that_is_not_used_is_listed_once() {
    let kernel = Kernel::Norm(Norm::Add, Elem::F32, Reduce::Subgroups);
    let gpu =
        on_driver(WgpuConfig { reduce: Some(Reduce::Subgroups), ..WgpuConfig::default() }, |kernel, text| {
            match *kernel == Kernel::Norm(Norm::Add, Elem::F32, Reduce::Subgroups) {
                true => with(text, "subgroupShuffleXor(squares, 2u)", "subgroupShuffleXor(squares, 1u)"),
                false => text,
            }
        });
    let made = |pipelines: &Pipelines| pipelines.anew(&gpu.gpu, kernel).unwrap().kernel;
    assert_eq!(made(&gpu.pipelines), made(&gpu.pipelines));
    assert_eq!(gpu.replaced_kernels().len(), 1, "{:?}", gpu.replaced_kernels());
}

/// The queue takes whole words, and counts as an upload: nothing is mapped from the beginning.
#[test]
#[ignore = "needs a wgpu adapter"]
fn buffers_begin_with_what_they_are_filled_with() {
    let gpu = opened();
    let mut stream = gpu.stream().unwrap();
    for bytes in [1usize, 2, 3, 4, 5, 8, 15, 16, 17, 1001] {
        let values: Vec<u8> = (0..bytes).map(|i| i as u8 | 1).collect();
        let before = gpu.counters().uploaded;
        let mem = gpu.gpu.alloc_filled("a test", &values, gpu.uploads()).unwrap();
        assert_eq!(gpu.counters().uploaded - before, bytes as u64);
        let whole = bytes.next_multiple_of(16);
        let all: Buf<WgpuMem, u8> = Buf::new(gpu.alloc(whole).unwrap(), whole).unwrap();
        gpu.encoding().encoder(&gpu.gpu).unwrap().copy_buffer_to_buffer(
            mem.buffer(),
            0,
            all.view().mem().buffer(),
            0,
            whole as u64,
        );
        let mut got = vec![7u8; whole];
        let read = stream.download(all.view()).unwrap();
        block_on(stream.collect(read, &mut got)).unwrap();
        assert!(got[..bytes] == values && got[bytes..].iter().all(|byte| *byte == 0), "{bytes}: {got:?}");
    }
}
