//! Whole models on every adapter of this machine: the laws, bit for bit, the CPU's bits where the adapter's
//! arithmetic allows that promise, the tokens that the CPU samples, and what a decode step costs the host.
//!
//! Without an adapter they are listed as ignored; `ENGRAFT_REQUIRE=wgpu` makes that a failure.
#![allow(clippy::unwrap_used, clippy::panic)]

mod codes;
mod packed;
mod whole;

use conformance::backends::{adapters, required_adapters, wgpu, wgpu_reduced};
use conformance::compare::{Output, same_bits};
use conformance::device::Device;
use conformance::named;
use conformance::poison::{Grid, Lay};
use conformance::trials::{self, Named};
use engraft_core::Error;
use engraft_core::backend::{Backend, Coverage};
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request};
use engraft_core::inject::inject;
use engraft_core::mem::{Float, KvFormat};
use engraft_core::numerics::{Madd, Mode};
use engraft_core::ops::{Convert, NormOpKind, Signature};
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_wgpu::{Reduce, Wgpu, WgpuConfig};
use packed::{matmuls, short};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use whole::{CASES, config, golden, laws, laws_over, open, run, same};

/// Tests that need an adapter, and those of adapters that the run names.
const ON_ADAPTERS: &[Named] = &named![
    weights_of_every_packed_format_give_the_cpus_bits,
    lanes_and_tiles_multiply_every_format_alike,
    halves_are_the_same_by_type_and_by_hand,
    wide_sums_keep_the_laws,
    weights_that_no_binding_holds_are_split_and_keep_their_bits,
    keys_that_no_binding_holds_are_refused_when_the_engine_is_made,
    models_keep_the_laws_and_equal_the_cpu,
    rows_become_the_codes_that_the_cpu_makes_of_them,
    caches_of_codes_keep_the_laws_and_equal_the_cpu,
    command_buffers_that_a_watchdog_gives_up_end_the_requests,
    command_buffers_short_enough_for_any_watchdog_give_the_same_bits,
];
const ON_REQUIRED: &[Named] = &named![required_adapters_are_strict];

fn main() -> ExitCode {
    let groups = [(ON_ADAPTERS, trials::missing_wgpu()), (ON_REQUIRED, trials::missing_required_wgpu())];
    trials::run(&groups, std::env::args().collect())
}

/// Counts what this thread allocates: drivers have threads of their own. Where it is asked to it notes who
/// did.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static NOTING: Cell<bool> = const { Cell::new(false) };
    static NOTES: RefCell<Vec<Vec<usize>>> = const { RefCell::new(Vec::new()) };
}

/// Notes the stack: addresses alone, and not by the standard library, whose lock wgpu may hold (it takes
/// stacks, too).
fn note() {
    // A note allocates, too, and must not note that.
    if NOTING.try_with(|on| on.replace(false)) == Ok(true) {
        let mut stack = Vec::new();
        // SAFETY: the unwinder is safe on every thread; the lock that is left out is for symbols on other
        // systems.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                stack.push(frame.ip() as usize);
                true
            });
        }
        NOTES.with_borrow_mut(|notes| notes.push(stack));
        NOTING.set(true);
    }
}

// SAFETY: forwards to the system's allocator; a thread that ends is not counted any more.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        note();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Microseconds that this thread has computed, where the system says so.
fn thread_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e3
}

/// Allocations of `f`, and the stacks, once each, of those that were made outside wgpu's source files.
fn who_allocates(f: impl FnOnce()) -> (usize, Vec<String>) {
    NOTING.set(true);
    f();
    NOTING.set(false);
    let notes = NOTES.take();
    let mut own: Vec<String> = Vec::new();
    for stack in &notes {
        let (mut text, mut of_wgpu) = (String::new(), false);
        for ip in stack {
            backtrace::resolve(*ip as *mut _, |symbol| {
                let name = symbol.name().map_or(String::new(), |name| name.to_string());
                let file = symbol.filename().map_or(String::new(), |file| file.display().to_string());
                text.push_str(&format!("  {name} {file}\n"));
                // By name where only that is known; by file where it was inlined. This program is a crate
                // called `wgpu`, too.
                let name = name.trim_start_matches(['<', '&']);
                of_wgpu |= file.contains("/wgpu-")
                    || ["wgpu::api::", "wgpu_core::", "wgpu_hal::"].iter().any(|part| name.starts_with(part));
            });
        }
        if !of_wgpu && !own.contains(&text) {
            own.push(text);
        }
    }
    (notes.len(), own)
}

/// What a decode step costs the host: one submit, an upload within the bound, nothing made on the
/// device.
fn costs(gpu: &Arc<Wgpu>, model: &Path, sequences: u32) {
    let config = EngineConfig { max_context: 64, ..EngineConfig::default() };
    let mut engine = open(gpu, model, config);
    for p in 0..sequences {
        let prompt = vec![3 + p, 4, 5];
        engine.put(Request { prompt, max_new_tokens: 40, ..Request::default() }).unwrap();
    }
    let mut out = Vec::with_capacity(8);
    for _ in 0..8 {
        engine.step(&mut out).unwrap();
    }
    const STEPS: u64 = 20;
    let (before, start) = (gpu.counters(), std::time::Instant::now());
    let (allocations, busy) = (ALLOCATIONS.get(), thread_us());
    for _ in 0..STEPS {
        engine.step(&mut out).unwrap();
        assert_eq!(out.len(), sequences as usize);
    }
    let (busy, allocations) = (thread_us() - busy, ALLOCATIONS.get() - allocations);
    let after = gpu.counters();
    let per = |a: u64, b: u64| (b - a) / STEPS;
    let (dispatches, uploaded) =
        (per(before.dispatches, after.dispatches), per(before.uploaded, after.uploaded));
    let layers = engine.model().blocks.len() as u64;
    println!(
        "{}, {}: {dispatches} dispatches ({layers} layers, {} each), {uploaded} bytes uploaded, {:.0} us of the host's \
         thread, {} allocations in wgpu, {:.2} ms per decode step of {sequences} sequences",
        gpu.name(),
        engine.model().spec.arch,
        dispatches / layers,
        busy / STEPS as f64,
        allocations / STEPS,
        start.elapsed().as_secs_f64() * 1e3 / STEPS as f64
    );
    let (_, planted) = who_allocates(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(planted.len(), 1, "an allocation is not seen");
    let (all, own) = who_allocates(|| {
        engine.step(&mut out).unwrap();
    });
    assert!(
        own.is_empty(),
        "{} of {all} allocations of a step are not wgpu's:\n{}",
        own.len(),
        own.join("\n")
    );
    assert_eq!(after.submits - before.submits, STEPS, "one submit per step");
    assert_eq!(after.made - before.made, 0, "buffers, bind groups and pipelines made in {STEPS} steps");
    assert!(uploaded <= 1024 + 64 * u64::from(sequences), "{uploaded} bytes per step");
}

fn weights_of_every_packed_format_give_the_cpus_bits() {
    packed::weights_of_every_packed_format_give_the_cpus_bits(&adapters());
}

fn lanes_and_tiles_multiply_every_format_alike() {
    packed::lanes_and_tiles_multiply_every_format_alike(&adapters());
}

/// Every finite half widened, and numbers at and next to the middle between two halves rounded.
fn halves<B: Backend>(backend: &Arc<B>) -> Vec<Output> {
    let finite = (0..0x7c00).chain(0x8000..0xfc00u16).map(|bits| half::f16::from_bits(bits).to_f32());
    let values: Vec<f32> = finite.collect();
    let between = |(i, v): (usize, &f32)| f32::from_bits((v.to_bits() | 0x1000) - 1 + i as u32 % 3);
    let middles = values.iter().enumerate().map(between).collect();
    let grid = |values, dtype| Grid { rows: 256, cols: 248, dtype, values, lay: Lay { lead: 3, gap: 5 } };
    let mut dev = Device::new(backend, false).unwrap();
    let narrow = dev.grid(&grid(values, Float::F16)).unwrap();
    let wide = dev.grid(&grid(middles, Float::F32)).unwrap();
    let [mut widened, mut rounded] =
        [Float::F32, Float::F16].map(|to| dev.output(256, 248, to, Lay::default()).unwrap());
    dev.launch(|to| {
        to.run(Convert { x: narrow.view()?, bias: None, out: widened.view_mut()? })?;
        to.run(Convert { x: wide.view()?, bias: None, out: rounded.view_mut()? })
    })
    .unwrap();
    vec![dev.read(&widened, "widened").unwrap(), dev.read(&rounded, "rounded").unwrap()]
}

/// Halves by their own type, where shaders know it, are those that are unpacked by hand; reports say which it
/// is.
fn halves_are_the_same_by_type_and_by_hand() {
    let cpu = Cpu::new(CpuConfig { threads: 1, madd: Madd::Separate, isa: None }).unwrap();
    let signature = Signature::new(NormOpKind::Norm.into(), Float::F16, 64, 64);
    let reported = |gpu: &Wgpu| match gpu.coverage(&signature) {
        Coverage::Native(kernel) => kernel.to_string(),
        other => panic!("{other:?}"),
    };
    for name in adapters() {
        let config_of = |f16_by_hand| WgpuConfig {
            adapter: Some(name.clone()),
            software: true,
            f16_by_hand,
            ..WgpuConfig::default()
        };
        let [usual, by_hand] = [false, true].map(|by_hand| Wgpu::new(config_of(by_hand)).unwrap());
        let want = halves(&cpu);
        for gpu in [&usual, &by_hand] {
            for (got, want) in halves(gpu).iter().zip(&want) {
                let worst = same_bits(got, want);
                assert!(worst.is_none(), "{name}: {worst:?}");
            }
        }
        assert!(reported(&by_hand).contains("f16 by hand: as configured"), "{}", reported(&by_hand));
        println!("{name}: {}, {}", usual.adapter().abilities(), reported(&usual));
        if !usual.adapter().f16 {
            assert!(reported(&usual).contains("f16 by hand: the adapter has no shader-f16"));
            continue;
        }
        assert!(!reported(&usual).contains("by hand"), "{}", reported(&usual));
        let config = EngineConfig { dtype: Float::F16, kv_dtype: Float::F16.into(), ..config() };
        let [a, b] =
            [&usual, &by_hand].map(|gpu| run(gpu, CASES[1], config.clone(), SamplingParams::default(), true));
        same(&format!("{name}: {} by type and by hand", CASES[1]), &a, &b, true);
    }
}

/// Sums that are split over the invocations of a workgroup keep the laws, and do not depend on how these are
/// added.
fn wide_sums_keep_the_laws() {
    let cpu = Cpu::new(CpuConfig { threads: 1, madd: Madd::Separate, isa: None }).unwrap();
    for name in adapters() {
        let shared = wgpu_reduced(&name, Reduce::Shared).unwrap();
        assert_eq!(shared.numerics().mode, Mode::Invariant);
        let subgroups = match wgpu_reduced(&name, Reduce::Subgroups) {
            Ok(gpu) => gpu,
            Err(e) => {
                println!("{name}: skipped: {e}");
                continue;
            }
        };
        let greedy = SamplingParams::default();
        laws(&subgroups, &cpu, CASES[0], Float::F32);
        let [a, b] = [&subgroups, &shared].map(|gpu| run(gpu, CASES[0], config(), greedy, true));
        same(&format!("{name}: within subgroups and through workgroup memory"), &a, &b, true);
        let of_cpu = run(&cpu, CASES[0], config(), greedy, false);
        let tokens = run(&subgroups, CASES[0], config(), greedy, false);
        same(&format!("{name}: tokens as the CPU chooses them"), &tokens, &of_cpu, false);
        println!("{name}: {}", subgroups.adapter().abilities());
    }
}

fn rows_become_the_codes_that_the_cpu_makes_of_them() {
    let cpu = Cpu::new(CpuConfig { threads: 1, madd: Madd::Separate, isa: None }).unwrap();
    for name in adapters() {
        codes::equal(&wgpu(Some(&name), false).unwrap(), &cpu);
    }
}

/// Keys and values of eight bits, query by query, in tiles of queries and within subgroups.
fn caches_of_codes_keep_the_laws_and_equal_the_cpu() {
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Separate, isa: None }).unwrap();
    for name in adapters() {
        let gpu = wgpu(Some(&name), false).unwrap();
        laws_over(&gpu, &cpu, CASES[0], (Float::F32, KvFormat::INT8));
        laws_over(&gpu, &cpu, CASES[1], (Float::Bf16, KvFormat::FP8));
        let greedy = SamplingParams::default();
        for (case, kv_dtype) in
            [("gemma2", KvFormat::FP8), ("deepseek_v3", KvFormat::INT8), ("qwen3", KvFormat::INT8)]
        {
            let sizes = EngineConfig { kv_dtype, ..config() };
            let plain = run(&gpu, case, config(), greedy, true);
            let got = run(&gpu, case, sizes.clone(), greedy, true);
            assert!(
                got[0].1.logits != plain[0].1.logits,
                "{name}, {case}: nothing was rounded to {kv_dtype}"
            );
            if gpu.numerics().mode == Mode::Reference {
                same(
                    &format!("{name}: {case} over {kv_dtype}"),
                    &got,
                    &run(&cpu, case, sizes, greedy, true),
                    true,
                );
            }
        }
        let Ok(wide) = wgpu_reduced(&name, Reduce::Subgroups) else { continue };
        laws_over(&wide, &cpu, CASES[0], (Float::F32, KvFormat::INT8));
        assert!(wide.replaced_kernels().is_empty(), "{:?}", wide.replaced_kernels());
    }
}

/// Weights, tables and experts that are split into many bindings give what whole ones give.
fn weights_that_no_binding_holds_are_split_and_keep_their_bits() {
    for name in adapters() {
        let config = WgpuConfig { adapter: Some(name.clone()), software: true, ..WgpuConfig::default() };
        let whole = Wgpu::new(config.clone()).unwrap();
        // Panels of 32 outputs: by 224 inputs in f32 28,672 bytes, by 512 in bytes 16,384. Two do not go into
        // one binding.
        for (format, bytes) in [("f32", 30 << 10), ("q8_0", 20 << 10)] {
            let format = format.parse().unwrap();
            let split = Wgpu::new(WgpuConfig { binding_bytes: Some(bytes), ..config.clone() }).unwrap();
            let made = [&whole, &split].map(|gpu| {
                let before = gpu.counters().dispatches;
                let out = matmuls(gpu, format, short(format));
                (out, gpu.counters().dispatches - before)
            });
            let [(a, few), (b, many)] = made;
            for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                let worst = same_bits(a, b);
                assert!(worst.is_none(), "{name}: {format}, output {i}: {worst:?}");
            }
            println!("{name}: {format} in {few} dispatches whole, {many} split");
            assert!(many > few, "{name}: {format} was not split");
        }
    }
}

fn keys_that_no_binding_holds_are_refused_when_the_engine_is_made() {
    for name in adapters() {
        let config = WgpuConfig { adapter: Some(name), software: true, ..WgpuConfig::default() };
        let gpu = Wgpu::new(WgpuConfig { binding_bytes: Some(1 << 20), ..config }).unwrap();
        let files = checkpoint::open(&golden("llama"), Access::default()).unwrap();
        let (registry, options) = (Registry::default(), LoadOptions::default());
        let model = inject(&gpu, &files, &registry, 1 << 16, options, &mut |_, _| {}).unwrap();
        let sizes = EngineConfig { max_seqs: 64, kv_pages: Some(1 << 16), ..EngineConfig::default() };
        let text = Engine::new(gpu, model, sizes).map(|_| ()).unwrap_err().to_string();
        assert!(text.contains("keys or values in a layer") && text.contains("see 1 MiB"), "{text}");
    }
}

/// No token is made up where a driver drops work without a word, or loses the device: whichever step it was,
/// the run ends.
fn command_buffers_that_a_watchdog_gives_up_end_the_requests() {
    for name in adapters() {
        for lose in [Wgpu::lose_command_buffer, Wgpu::lose_device] {
            for others in 0..6 {
                let gpu = wgpu(Some(&name), false).unwrap();
                let mut engine = open(&gpu, &golden(CASES[0]), config());
                let request = Request { prompt: vec![5; 9], max_new_tokens: 8, ..Request::default() };
                engine.put(request).unwrap();
                lose(&gpu, others);
                let ended = engine.run().map(|_| ()).unwrap_err();
                assert!(matches!(ended, Error::DeviceLost { .. }), "{name}, {others} before: {ended}");
            }
        }
    }
}

/// Every dispatch in a command buffer of its own.
fn command_buffers_short_enough_for_any_watchdog_give_the_same_bits() {
    for name in adapters() {
        let config_of = |submit_groups| WgpuConfig {
            adapter: Some(name.clone()),
            software: true,
            submit_groups,
            ..WgpuConfig::default()
        };
        let [few, many] = [Some(u64::MAX), Some(1)].map(|groups| Wgpu::new(config_of(groups)).unwrap());
        let greedy = SamplingParams::default();
        let [a, b] = [&few, &many].map(|gpu| run(gpu, CASES[0], config(), greedy, true));
        same(&format!("{name}: {} in short command buffers", CASES[0]), &a, &b, true);
        let [few, many] = [few, many].map(|gpu| gpu.counters());
        assert_eq!(few.dispatches, many.dispatches);
        assert!(many.submits >= many.dispatches && few.submits * 5 < few.dispatches, "{few:?}, {many:?}");
    }
}

/// The bits of the reference, on every adapter that a lane requires: were the probe to find less, this fails.
fn required_adapters_are_strict() {
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Separate, isa: None }).unwrap();
    for name in &required_adapters() {
        let gpu = wgpu(Some(name), false).unwrap();
        assert_eq!(gpu.numerics().mode, Mode::Reference, "{name}: {:?}", gpu.arithmetic());
        let greedy = SamplingParams::default();
        for case in ["llama", "gpt2", "opt"] {
            let [got, want] =
                [run(&gpu, case, config(), greedy, true), run(&cpu, case, config(), greedy, true)];
            same(&format!("{name}: {case}, strict"), &got, &want, true);
        }
        println!("{name}: the CPU's bits in three families");
    }
}

fn models_keep_the_laws_and_equal_the_cpu() {
    let here = adapters();
    println!("{} adapters: {}", here.len(), here.join(", "));
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Separate, isa: None }).unwrap();
    for name in &here {
        let gpu = wgpu(Some(name), false).unwrap();
        println!("{name}: {:?}", gpu.arithmetic());
        for case in CASES {
            laws(&gpu, &cpu, case, Float::F32);
        }
        laws(&gpu, &cpu, CASES[0], Float::Bf16);
        laws(&gpu, &cpu, CASES[1], Float::F16);
        println!("{name}: weights took at most {} bytes of the host's memory at once", gpu.counters().staged);
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engraft/demo-model");
        // How many submits a step has by its time is tested by itself: a busy machine would make them more.
        let whole_steps = WgpuConfig {
            adapter: Some(name.clone()),
            software: true,
            submit_groups: Some(u64::MAX),
            ..WgpuConfig::default()
        };
        let gpu = Wgpu::new(whole_steps).unwrap();
        costs(&gpu, &golden(CASES[0]), 4);
        costs(&gpu, &demo, 1);
        costs(&gpu, &demo, 8);
    }
}
