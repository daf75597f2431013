//! The host layer on the software driver: what real code does, in orders that a GPU seldom takes.

use crate::compile::{compile, load_text};
use crate::cubins::{Cubins, Target};
use crate::quantized::QuantizedOutput;
use crate::{Cuda, CudaConfig, CudaMem, Kernel, Loads, order};
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::{Buf, DeviceMem, Float, HostWeight, Mat, WeightFormat, WeightInfo, WeightUse};
use engraft_core::ops::{Add, Checked, Run};
use engraft_core::{Error, Result};
use engraft_kernels::pack::Encoding;
use engraft_kernels::params::gemm::Hopper;
use engraft_kernels::params::int8::Codes;
use engraft_kernels::params::kv::KvView;
use engraft_kernels::params::{Elem, Format, MatView, elementwise, flash, gemm};
use soft_cuda::preload::{self, Linker, Order};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

mod codes;
mod experts;
mod loading;

fn config() -> CudaConfig {
    let soft = preload::load().expect("Cargo builds the software driver next to this program");
    CudaConfig { driver: Some(soft.path().into()), ..CudaConfig::default() }
}

fn open() -> Arc<Cuda> {
    Cuda::new(config()).unwrap()
}

fn words(gpu: &Cuda, n: usize) -> Buf<CudaMem, u32> {
    Buf::new(gpu.alloc(4 * n).unwrap(), n).unwrap()
}

fn round_trip(gpu: &Arc<Cuda>, values: &[u32]) -> Vec<u32> {
    let mut stream = gpu.stream().unwrap();
    let mut buffer = words(gpu, values.len());
    let mut copy = values.to_vec();
    stream.upload(&copy, buffer.view_mut()).unwrap();
    // The source may be reused at once.
    copy.fill(0xdead);
    let ticket = stream.download(buffer.view()).unwrap();
    // What comes later is not what was read.
    stream.upload(&copy, buffer.view_mut()).unwrap();
    let mut out = vec![0; values.len()];
    block_on(stream.collect(ticket, &mut out)).unwrap();
    out
}

/// `x += x`, `times` times, on a stream that may be capturing.
fn double(
    stream: &mut crate::CudaStream,
    x: &mut Mat<CudaMem>,
    y: &Mat<CudaMem>,
    times: usize,
) -> Result<()> {
    (0..times).try_for_each(|_| stream.run(Checked::new(Add { acc: x.view_mut(1)?, x: y.view(1)? })?))
}

fn floats(gpu: &Cuda, n: usize) -> Mat<CudaMem> {
    Mat::new(gpu.alloc(4 * n).unwrap(), 1, n, Float::F32).unwrap()
}

fn read(stream: &mut crate::CudaStream, x: &Mat<CudaMem>) -> Vec<f32> {
    let ticket = stream.download(x.view(1).unwrap().as_f32().unwrap()).unwrap();
    let mut out = vec![0.0; x.cols()];
    block_on(stream.collect(ticket, &mut out)).unwrap();
    out
}

#[test]
fn copies_are_in_order_whatever_the_driver_does() {
    let gpu = open();
    let soft = preload::load().unwrap();
    for order in Order::all(3) {
        soft.set_order(order).unwrap();
        // Smaller than a slot of the ring, and around the ring twice.
        for n in [1, 5, 600_000] {
            let values: Vec<u32> = (0..n).map(|i| i as u32 * 7 + 1).collect();
            assert!(round_trip(&gpu, &values) == values, "{n} words, {order:?}");
        }
    }
}

#[test]
fn memory_is_zeroed_also_when_it_is_used_again() {
    let gpu = open();
    let first = {
        let mut stream = gpu.stream().unwrap();
        let mut buffer = words(&gpu, 77);
        stream.upload(&[7u32; 77], buffer.view_mut()).unwrap();
        // Dropped while the copy is on its way.
        drop(buffer);
        gpu.alloc(4 * 77).unwrap()
    };
    assert_eq!(first.bytes(), 308);
    let again: Buf<CudaMem, u32> = Buf::new(first, 77).unwrap();
    let mut stream = gpu.stream().unwrap();
    let ticket = stream.download(again.view()).unwrap();
    let mut out = [1u32; 77];
    block_on(stream.collect(ticket, &mut out)).unwrap();
    assert_eq!(out, [0; 77]);
}

#[test]
fn a_captured_step_runs_when_it_is_replayed_and_is_counted() {
    let gpu = open();
    let (mut x, mut y) = (floats(&gpu, 9), floats(&gpu, 9));
    let mut stream = gpu.stream().unwrap();
    stream.upload(&[1.0f32; 9], x.view_mut(1).unwrap().into_f32().unwrap()).unwrap();
    stream.upload(&[2.0f32; 9], y.view_mut(1).unwrap().into_f32().unwrap()).unwrap();
    let graph = stream.capture(|s| double(s, &mut x, &y, 3)).unwrap();
    assert_eq!(graph.len(), 3);
    assert_eq!(read(&mut stream, &x), [1.0; 9], "a capture runs nothing");
    for times in 1..=2u8 {
        // SAFETY: x and y live.
        unsafe { stream.replay(&graph).unwrap() };
        assert_eq!(read(&mut stream, &x), [1.0 + 6.0 * f32::from(times); 9]);
    }
    assert_eq!(gpu.launches().values().sum::<u64>(), 6, "{:?}", gpu.launches());
    let inside = stream.capture(|s| s.sync()).unwrap_err().to_string();
    assert!(inside.contains("captured region"), "{inside}");
    // The stream goes on after a capture that failed, or whose body panicked.
    stream.sync().unwrap();
    let body = AssertUnwindSafe(|| stream.capture(|_| panic!("in a captured region")));
    assert!(catch_unwind(body).is_err());
    stream.sync().unwrap();
    assert_eq!(stream.capture(|s| double(s, &mut x, &y, 2)).unwrap().len(), 2);
}

#[test]
fn events_measure_what_lies_between() {
    let gpu = open();
    let (mut x, y) = (floats(&gpu, 4096), floats(&gpu, 4096));
    let mut stream = gpu.stream().unwrap();
    let from = stream.record().unwrap();
    double(&mut stream, &mut x, &y, 5).unwrap();
    let to = stream.record().unwrap();
    stream.sync().unwrap();
    let us = stream.elapsed_us(&from, &to).unwrap();
    assert!(us > 0.0 && us < 1e8, "{us}");
}

#[test]
fn a_fault_ends_one_engine_by_the_name_of_its_kernel_and_no_other() {
    for blocking in [false, true] {
        let (gpu, other) = (Cuda::new(CudaConfig { blocking, ..config() }).unwrap(), open());
        let mut stream = gpu.stream().unwrap();
        let launched = add_nowhere(&mut stream);
        let error = launched.and_then(|()| stream.sync()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::DeviceLost { .. }) && text.contains("elementwise_add_f32"), "{text}");
        // It stays lost, by the same words.
        assert_eq!(gpu.alloc(4).unwrap_err().to_string(), text);
        assert_eq!(stream.sync().unwrap_err().to_string(), text);
        assert_eq!(round_trip(&other, &[1, 2, 3]), [1, 2, 3], "the other engine lives");
    }
}

type Waits = fn(&Cuda, &mut crate::CudaStream, &mut Buf<CudaMem, u32>) -> Result<()>;

/// Everything that waits for work.
const WAITS: [(&str, Waits); 4] = [
    ("a wait", |_, stream, _| stream.sync()),
    ("an allocation", |gpu, _, _| gpu.alloc(64).map(drop)),
    ("a read", |_, stream, words| {
        let ticket = stream.download(words.view())?;
        block_on(stream.collect(ticket, &mut [0u32]))
    }),
    ("uploads around the ring", |_, stream, words| {
        (0..64u32).try_for_each(|i| stream.upload(&[i], words.view_mut()))
    }),
];

#[test]
fn a_kernel_that_does_not_end_is_an_error_of_whoever_waits() {
    // A process of its own: other tests wait for the same driver.
    const ALONE: &str = "ENGRAFT_HANGS_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "tests::a_kernel_that_does_not_end_is_an_error_of_whoever_waits";
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && said.contains("4 waits ended"), "{said}");
        return;
    }
    let soft = preload::load().unwrap();
    let limit = Some(Duration::from_millis(30));
    for (what, waits) in WAITS {
        soft.set_order(Order::Latest).unwrap();
        let gpu = Cuda::new(CudaConfig { wait_limit: limit, ..config() }).unwrap();
        let (mut x, y) = (floats(&gpu, 9), floats(&gpu, 9));
        let (mut words, spare) = (words(&gpu, 1), gpu.alloc(64).unwrap());
        let mut stream = gpu.stream().unwrap();
        double(&mut stream, &mut x, &y, 1).unwrap();
        soft.set_order(Order::Never).unwrap();
        // Memory that was given up makes the next allocation wait.
        drop(spare);
        let error = waits(&gpu, &mut stream, &mut words).unwrap_err();
        let text = error.to_string();
        let named = text.contains("within 30ms") && text.contains("elementwise_add_f32");
        assert!(matches!(error, Error::DeviceLost { .. }) && named, "{what}: {text}");
        assert_eq!(gpu.alloc(4).unwrap_err().to_string(), text, "{what}: it stays lost");
        // Dropping waits for nothing.
        drop((x, y, words, stream, gpu));
        soft.set_order(Order::Latest).unwrap();
        assert_eq!(round_trip(&open(), &[1, 2, 3]), [1, 2, 3], "{what}: another engine lives");
    }
    println!("4 waits ended");
}

#[test]
fn what_a_launch_quantized_is_forgotten_before_it_can_be_stale() {
    let gpu = open();
    let mut stream = gpu.stream().unwrap();
    let mut words: Buf<CudaMem, u32> = words(&gpu, 1);
    let (mut x, y) = (floats(&gpu, 9), floats(&gpu, 9));
    let graph = stream.capture(|s| double(s, &mut x, &y, 1)).unwrap();
    for forgets in ["nothing", "a wait", "a use of scratch", "a read", "an upload", "a replay", "a launch"] {
        let out = gpu.alloc(64).unwrap();
        let of = MatView { ptr: out.address(), pitch: 16, rows: 1, cols: 16 };
        let codes = Codes::at(stream.scratch(4096).unwrap(), 16, 32);
        double(&mut stream, &mut x, &y, 1).unwrap();
        stream.remember(QuantizedOutput { of, _mem: out, elem: Elem::F32, codes });
        assert_ne!(gpu.alloc(64).unwrap().address(), of.ptr, "the rows' address was given out again");
        match forgets {
            "nothing" => {}
            "a wait" => stream.sync().unwrap(),
            "a use of scratch" => assert_ne!(stream.scratch(8192).unwrap(), 0),
            "a read" => drop(stream.download(words.view()).unwrap()),
            "an upload" => stream.upload(&[1u32], words.view_mut()).unwrap(),
            // SAFETY: x and y live.
            "a replay" => unsafe { stream.replay(&graph) }.unwrap(),
            _ => double(&mut stream, &mut x, &y, 1).unwrap(),
        }
        assert_eq!(stream.quantized(of, Elem::F32).is_some(), forgets == "nothing", "{forgets}");
        assert!(stream.quantized(of, Elem::F16).is_none());
    }
}

#[test]
fn scratch_that_a_captured_step_knows_is_given_to_no_one_else() {
    let gpu = open();
    let mut stream = gpu.stream().unwrap();
    stream.begin_capture().unwrap();
    let known = stream.scratch(4096).unwrap();
    let view = MatView { ptr: known, pitch: 8, rows: 1, cols: 8 };
    let p = elementwise::Add { acc: view, x: view, elem: Elem::F32, reserved: 0 };
    stream.launch(&p.launch(), &p).unwrap();
    let graph = stream.end_capture().unwrap();
    // The stream takes larger scratch: of the first only the graph is left.
    assert_ne!(stream.scratch(8192).unwrap(), known);
    let others: Vec<CudaMem> = (0..4).map(|_| gpu.alloc(4096).unwrap()).collect();
    assert!(others.iter().all(|mem| mem.address() != known), "scratch of a captured step was given out");
    drop((graph, others));
    let freed: Vec<CudaMem> = (0..6).map(|_| gpu.alloc(4096).unwrap()).collect();
    assert!(freed.iter().any(|mem| mem.address() == known), "it is kept no longer than its graph");
}

#[test]
fn a_stored_weight_whose_address_is_known_stays_when_it_is_packed() {
    let gpu = open();
    let layout = gemm::supports(Elem::BF16, Elem::BF16, Format::Bf16, 0, 32, 64, false).unwrap();
    for looked_up in [true, false] {
        let used_for = WeightUse::EmbeddingAndLinear;
        let format = WeightFormat::Plain(Float::Bf16);
        let info = WeightInfo { name: "tied".into(), rows: 32, cols: 64, format, used_for };
        let host = HostWeight::new(info, vec![vec![0u8; 32 * 64 * 2].into()]).unwrap();
        let weight = gpu.prepare_weight(host, &[]).unwrap();
        let rows = weight.rows().unwrap();
        let known = looked_up.then(|| rows.view(&gpu).unwrap().ptr);
        rows.packed(&gpu, order::Order::Tensor(layout)).unwrap();
        let lies: Vec<(&str, u64)> = weight.buffers().iter().map(|(name, at, _)| (*name, *at)).collect();
        let stored = lies.iter().find(|(name, _)| *name == "stored").map(|(_, at)| *at);
        assert_eq!(stored, known, "{lies:?}");
        assert!(lies.iter().any(|(name, _)| *name == "packed"), "{lies:?}");
        assert!(gpu.packing() > Duration::ZERO);
    }
}

/// Adds where nothing is; the fault may come out only later.
fn add_nowhere(stream: &mut crate::CudaStream) -> Result<()> {
    let nowhere = MatView { ptr: 64, pitch: 8, rows: 1, cols: 8 };
    let p = elementwise::Add { acc: nowhere, x: nowhere, elem: Elem::F32, reserved: 0 };
    stream.launch(&p.launch(), &p)
}

#[test]
fn a_fault_that_comes_out_in_an_allocation_or_a_read_names_its_kernel_too() {
    for reads in [false, true] {
        let gpu = open();
        let (kept, spare) = (gpu.alloc(64).unwrap(), gpu.alloc(64).unwrap());
        let mut stream = gpu.stream().unwrap();
        // Whether the launch itself says so already is the driver's affair.
        let _ = add_nowhere(&mut stream);
        // Memory that was given up makes the next allocation wait for the whole context.
        drop(spare);
        let outcome = match reads {
            true => gpu.read(&kept).map(|_| ()).and_then(|()| gpu.alloc(64).map(|_| ())),
            false => gpu.alloc(64).map(|_| ()),
        };
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("elementwise_add_f32"), "{text}");
        assert_eq!(stream.sync().unwrap_err().to_string(), text);
    }
}

#[test]
fn a_device_that_waits_for_every_kernel_offers_no_captured_steps() {
    assert!(open().caps().graphs);
    let gpu = Cuda::new(CudaConfig { blocking: true, ..config() }).unwrap();
    assert!(!gpu.caps().graphs);
    // Who captures by hand still waits after each replay, and the words name what ran.
    let mut stream = gpu.stream().unwrap();
    let graph = stream.capture(add_nowhere).unwrap();
    // SAFETY: nothing is alive at the address, which is the test: the driver reports it.
    let text = unsafe { stream.replay(&graph) }.unwrap_err().to_string();
    assert!(text.contains("elementwise_add_f32"), "{text}");
}

/// Sums go through uploads, launches, replays and a stream that comes and goes.
#[test]
fn streams_of_a_device_follow_each_other() {
    let gpu = open();
    let soft = preload::load().unwrap();
    for order in Order::all(3) {
        soft.set_order(order).unwrap();
        let (mut x, mut y) = (floats(&gpu, 300), floats(&gpu, 300));
        let mut streams = [gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap()];
        let graph = streams[2].capture(|s| double(s, &mut x, &y, 2)).unwrap();
        let mut want = 0.0;
        for round in 0..7u8 {
            let [a, b, c] = &mut streams;
            let add = f32::from(round) + 1.0;
            a.upload(&[add; 300], y.view_mut(1).unwrap().into_f32().unwrap()).unwrap();
            double(b, &mut x, &y, 1).unwrap();
            // SAFETY: x and y live.
            unsafe { c.replay(&graph).unwrap() };
            // One that comes and goes.
            double(&mut gpu.stream().unwrap(), &mut x, &y, 1).unwrap();
            want += 4.0 * add;
            // A capture puts nothing between, and does not end the order.
            let unused = a.capture(|s| double(s, &mut x, &y, 1)).unwrap();
            assert_eq!(unused.len(), 1);
            assert_eq!(read(if round % 2 == 0 { a } else { b }, &x), [want; 300], "round {round}, {order:?}");
        }
    }
}

#[test]
fn what_one_stream_quantized_is_forgotten_when_another_enqueues_something() {
    let gpu = open();
    let (mut stream, mut other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (mut x, y) = (floats(&gpu, 9), floats(&gpu, 9));
    for others in [0, 1] {
        double(&mut stream, &mut x, &y, 1).unwrap();
        let out = gpu.alloc(64).unwrap();
        let of = MatView { ptr: out.address(), pitch: 16, rows: 1, cols: 16 };
        let codes = Codes::at(64, 16, 32);
        stream.remember(QuantizedOutput { of, _mem: out, elem: Elem::F32, codes });
        double(&mut other, &mut x, &y, others).unwrap();
        assert_eq!(stream.quantized(of, Elem::F32).is_some(), others == 0);
        // An allocation that waits for all work enqueues nothing.
        drop(gpu.alloc(4096).unwrap());
        drop(gpu.alloc(128).unwrap());
        assert_eq!(stream.quantized(of, Elem::F32).is_some(), others == 0);
    }
}

#[test]
fn memory_steps_and_weights_of_another_device_are_refused() {
    let (gpu, other) = (open(), open());
    let mut stream = gpu.stream().unwrap();
    let (mut mine, mut theirs) = (floats(&gpu, 9), floats(&other, 9));
    for refused in [double(&mut stream, &mut mine, &theirs, 1), double(&mut stream, &mut theirs, &mine, 1)] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("another device"), "{text}");
    }
    let buffer = words(&other, 5);
    assert!(stream.download(buffer.view()).is_err());
    let graph = other.stream().unwrap().capture(|s| double(s, &mut theirs, &floats(&other, 9), 1)).unwrap();
    // SAFETY: nothing runs.
    let text = unsafe { stream.replay(&graph) }.unwrap_err().to_string();
    assert!(text.contains("another device"), "{text}");
    // A read of another device's ends where it is collected, and its buffer is not kept.
    let ticket = other.stream().unwrap().download(buffer.view()).unwrap();
    let mut out = [1u32; 5];
    block_on(stream.collect(ticket, &mut out)).unwrap();
    assert_eq!(out, [0; 5]);
}

#[test]
fn what_cannot_be_had_is_refused_with_numbers() {
    let gpu = open();
    let much = gpu.alloc(1 << 45).unwrap_err();
    assert!(
        matches!(much, Error::OutOfMemory { wanted, free, .. } if wanted == 1 << 45 && free > 0),
        "{much}"
    );
    let none = Cuda::new(CudaConfig { device: 7, ..config() }).unwrap_err().to_string();
    assert!(none.contains("cuda:7") && none.contains("cuda to cuda:"), "{none}");
    let (p, mut stream) = ([0u64; 3], gpu.stream().unwrap());
    let add = elementwise::Add {
        acc: MatView { rows: 1, cols: 1, ..MatView::NONE },
        x: MatView::NONE,
        elem: Elem::F32,
        reserved: 0,
    };
    let wrong = stream.launch(&add.launch(), &p).unwrap_err().to_string();
    assert!(wrong.contains("elementwise_add_f32") && wrong.contains("24"), "{wrong}");
}

/// Kernels of a plan: one, one and six.
const KERNELS: [Kernel; 3] = [
    Kernel::Entry("elementwise_add_f32"),
    Kernel::Entry("rows_scatter"),
    Kernel::Tensor { encoding: Encoding::Plain, elem: Elem::BF16, hopper: Hopper::None, blaslt: false },
];
const ENTRIES: u64 = 8;

/// A device whose kernels of [`KERNELS`] are ready, and the file of one of them.
fn ready(folder: &Path) -> (Arc<Cuda>, PathBuf) {
    let gpu = Cuda::new(CudaConfig { kernel_cache: Some(folder.into()), ..config() }).unwrap();
    gpu.ready(&KERNELS).unwrap();
    let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    let of_add = |p: &PathBuf| p.file_name().unwrap().to_str().unwrap().starts_with("elementwise_add_f32-");
    let found: Vec<PathBuf> = files.filter(of_add).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    (gpu, found[0].clone())
}

#[test]
fn a_second_start_compiles_nothing_unless_a_file_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let loads = |gpu: &Cuda| (gpu.loads().compiled, gpu.loads().read);
    let (first, file) = ready(folder.path());
    assert_eq!(loads(&first), (ENTRIES, 0));
    first.ready(&KERNELS).unwrap();
    assert_eq!(loads(&first), (ENTRIES, 0), "what is there is not loaded again");
    let whole = std::fs::read(&file).unwrap();
    let (second, _) = ready(folder.path());
    assert_eq!(loads(&second), (0, ENTRIES));
    for damaged in [&whole[..0], &whole[..whole.len() / 2], &[&whole[..], b"more"].concat()] {
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(loads(&ready(folder.path()).0), (1, ENTRIES - 1), "{} bytes", damaged.len());
        let again = std::fs::read(&file).unwrap();
        let (len, want) = (again.len(), whole.len());
        assert!(again == whole, "the file is not whole again: {len} bytes of {want}, or other ones");
    }
    // A whole file that the driver refuses.
    let (driver, about) = (crate::driver::version().unwrap(), second.device());
    let target = Target { device: about.name.clone(), capability: about.capability, driver };
    let source = engraft_kernels::module("elementwise", about.capability).unwrap();
    let text = engraft_kernels::single(source.ptx().unwrap(), "elementwise_add_f32").unwrap();
    Cubins::new(folder.path().into(), target).keep(
        "elementwise_add_f32",
        &text,
        b"\x7fELF of another machine",
    );
    assert!(std::fs::read(&file).unwrap() != whole);
    let (last, _) = ready(folder.path());
    assert_eq!(loads(&last), (1, ENTRIES - 1));
    // What was read computes.
    let mut stream = second.stream().unwrap();
    let (mut x, y) = (floats(&second, 5), floats(&second, 5));
    stream.upload(&[3.0f32; 5], x.view_mut(1).unwrap().into_f32().unwrap()).unwrap();
    double(&mut stream, &mut x, &y, 1).unwrap();
    assert_eq!(read(&mut stream, &x), [3.0; 5]);
    assert_eq!(loads(&second), (0, ENTRIES));
}

#[test]
fn kernels_are_ready_without_a_folder_and_with_one_that_cannot_be() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for kernel_cache in [None, Some(file.path().join("kernels"))] {
        let gpu = Cuda::new(CudaConfig { kernel_cache, ..config() }).unwrap();
        let text = gpu.ready(&[Kernel::Entry("rows_nothing")]).unwrap_err().to_string();
        assert!(text.contains("rows_nothing"), "{text}");
        assert_eq!(gpu.loads(), Loads::default());
        gpu.ready(&KERNELS).unwrap();
        assert_eq!(gpu.loads(), Loads { compiled: ENTRIES, read: 0 });
    }
}

/// 48 KiB are what a driver gives unasked, static and dynamic together: `flash_split` with heads of 80 is
/// just above.
#[test]
fn a_kernel_has_the_shared_memory_that_its_device_has() {
    let gpu = open();
    gpu.bind().unwrap();
    let split = gpu.modules.function("flash_split_bf16_80").unwrap();
    let zeroed = flash::Flash { seqs: 1, heads: 1, elem: Elem::BF16, ..bytemuck::Zeroable::zeroed() };
    let kv =
        KvView { kv_heads: 1, k_dim: 80, v_dim: 80, page_size: 1, elem: Elem::BF16, ..KvView::default() };
    let bounds = gpu.alloc(64).unwrap();
    // A sequence without queries: the launch is what is tested.
    let p = flash::Flash { kv, bounds: bounds.address(), kv_lens: bounds.address(), ..zeroed }.with_few(1, 1);
    let launch = p.split();
    assert!(launch.shared_bytes < 48 << 10 && launch.shared_bytes + 4864 > 48 << 10, "{launch:?}");
    let mut stream = gpu.stream().unwrap();
    stream.launch(&launch, &p).unwrap();
    stream.sync().unwrap();
    split.has_room((227 << 10) - 4864).unwrap();
    let text = split.has_room((227 << 10) - 4863).unwrap_err().to_string();
    assert!(
        text.contains("`flash_split_bf16_80` wants 4864 + 227585 bytes") && text.contains("232448"),
        "{text}"
    );
}

/// What drivers' linkers may refuse. No other test links meanwhile: the driver is the process's.
#[test]
fn compiled_kernels_are_kept_also_where_the_linker_wants_the_target_named() {
    const ALONE: &str = "ENGRAFT_LINKER_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "tests::compiled_kernels_are_kept_also_where_the_linker_wants_the_target_named";
        let program = std::env::current_exe().unwrap();
        let run =
            std::process::Command::new(program).args(["--exact", name]).env(ALONE, "1").output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
        return;
    }
    let soft = preload::load().unwrap();
    for (linker, kept) in [(Linker::OwnTargetNamed, true), (Linker::Nothing, false)] {
        soft.set_linker(linker).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let loads: Vec<(Loads, bool)> = (0..2)
            .map(|_| {
                let kernel_cache = Some(folder.path().into());
                let gpu = Cuda::new(CudaConfig { kernel_cache, ..config() }).unwrap();
                gpu.ready(&KERNELS).unwrap();
                (gpu.loads(), gpu.modules.complained())
            })
            .collect();
        let compiled = Loads { compiled: ENTRIES, read: 0 };
        let second = if kept { Loads { compiled: 0, read: ENTRIES } } else { compiled };
        assert_eq!(loads, [(compiled, !kept), (second, !kept)], "{linker:?}");
    }
}

#[test]
fn a_text_that_the_compiler_refuses_is_refused_by_the_name_of_its_kernel() {
    let gpu = open();
    gpu.bind().unwrap();
    for text in
        ["not PTX", ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry norm_x() { nonsense; }"]
    {
        for error in [compile("norm_x", text, None).unwrap_err(), load_text("norm_x", text).unwrap_err()] {
            assert!(matches!(&error, Error::Internal { what } if what.contains("`norm_x`")), "{error}");
        }
    }
}
