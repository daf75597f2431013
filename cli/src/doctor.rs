//! `engraft doctor`: what this build and this machine have, and whether the demo model runs on the device and
//! with the switches that were named. Measures nothing, unless a report is asked for (`report.rs`).

mod classes;
mod clean;
mod device;
mod process;
mod report;
mod system;
mod timing;

pub use device::run as report_device;

use super::args::{DeviceArgs, DoctorArgs};
use super::failure::{Failure, Outcome};
use super::output::{bytes, emit, json};
use engraft::backends::{BackendName, CudaOptions, NCCL, WgpuOptions, adapters, cuda_devices, nccl};
use engraft::{GenerateOptions, ModelSource};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use system::{cpu_features, cpu_model, memory};

/// A driver library of a GPU: its file, what it serves, what to install.
const LIBRARIES: [(&str, &str, &str); 3] = [
    ("libcuda.so.1", "cuda", "NVIDIA's driver (Debian: nvidia-driver; containers: run with --gpus all)"),
    ("libvulkan.so.1", "wgpu", "the Vulkan loader (Debian: libvulkan1)"),
    ("libvulkan_lvp.so", "wgpu without a GPU", "Mesa's software Vulkan (Debian: mesa-vulkan-drivers)"),
];

const FOLDERS: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/wsl/lib",
];

/// What was found on this machine.
struct Findings {
    features: Vec<&'static str>,
    threads: usize,
    /// Bytes of memory, all and available.
    memory: (Option<u64>, Option<u64>),
    /// Where each of [`LIBRARIES`] lies.
    libraries: Vec<Option<PathBuf>>,
    /// Version and file of NCCL, or why there is none; none where this build has no use for it.
    nccl: Option<String>,
}

pub fn run(args: &DoctorArgs) -> Outcome {
    if let Some(file) = &args.report {
        return report::run(args, file);
    }
    let cache = linker_cache();
    let found = Findings {
        features: cpu_features(),
        threads: system::threads(),
        memory: memory(),
        libraries: LIBRARIES.iter().map(|(file, ..)| find(file, &cache)).collect(),
        nccl: cuda().then(|| {
            let library = args.device.nccl().unwrap_or_else(|| NCCL.into());
            nccl(&library).unwrap_or_else(|error| error.to_string())
        }),
    };
    let trial = trial(&args.device);
    let said = match &trial {
        Ok(trial) => trial.clone(),
        Err(e) => format!("failed: {e}"),
    };
    if args.json {
        json(&as_json(&found, &said))?
    } else {
        emit(&as_text(&found, &said))?
    }
    // What was found is printed in any case; that the trial failed is the program's answer.
    trial.map(drop)
}

/// A few tokens of the demo model on the named device, with all switches.
fn trial(device: &DeviceArgs) -> Result<String, Failure> {
    const TOKENS: usize = 8;
    let backend = device.backend()?;
    if backend == BackendName::Cpu && !backend.compiled_in() {
        return Ok("none: this build has no backend for it".into());
    }
    let began = Instant::now();
    let model = device.options()?.max_seqs(1).open(ModelSource::Demo)?;
    let loaded = began.elapsed().as_secs_f64();
    let options = GenerateOptions::new().max_new_tokens(TOKENS).greedy();
    let mut stream = model.generate("This package provides", &options)?;
    stream.text()?;
    let (tokens, seconds) = (stream.stats().tokens.len(), began.elapsed().as_secs_f64() - loaded);
    Ok(format!("demo model on {backend}: loaded in {loaded:.2} s, {tokens} tokens in {seconds:.2} s"))
}

fn as_json(found: &Findings, trial: &str) -> Value {
    let libraries = LIBRARIES.iter().zip(&found.libraries).map(|((file, serves, install), path)| {
        json!({"file": file, "for": serves, "path": path, "install": install})
    });
    let (total, free) = found.memory;
    let cpu = json!({
        "model": cpu_model(),
        "threads": found.threads,
        "features": found.features,
        "arch": std::env::consts::ARCH,
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "backends": {"cpu": BackendName::Cpu.compiled_in(), "cuda": cuda(), "wgpu": wgpu()},
        "cuda_devices": cuda_devices().unwrap_or_default(),
        "adapters": adapters(),
        "hub": cfg!(feature = "hub"),
        "cpu": cpu,
        "memory": {"total_bytes": total, "available_bytes": free},
        "libraries": libraries.collect::<Vec<_>>(),
        "nccl": found.nccl,
        "trial": trial,
    })
}

fn as_text(found: &Findings, trial: &str) -> String {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let mut text = format!("engraft {} on {os} {arch}\n\n", env!("CARGO_PKG_VERSION"));
    let mut line = |name: &str, value: String| text.push_str(&format!("{name:<10} {value}\n"));
    backends_as_text(&mut line);
    let hub = if cfg!(feature = "hub") { "yes: --model org/name" } else { "no (build with --features hub)" };
    line("hub", hub.into());
    line("cpu", format!("{}, {} threads", cpu_model(), found.threads));
    let none = "no vector instructions that are used";
    line("", if found.features.is_empty() { none.into() } else { found.features.join(" ") });
    let memory = |n: Option<u64>| n.map_or("unknown".to_string(), bytes);
    line("memory", format!("{}, {} available", memory(found.memory.0), memory(found.memory.1)));
    for ((file, serves, install), path) in LIBRARIES.iter().zip(&found.libraries) {
        let name = if *file == LIBRARIES[0].0 { "libraries" } else { "" };
        let where_from = match path {
            Some(path) => format!("{file} ({serves}): {}", path.display()),
            None => format!("{file} ({serves}): not found; it comes with {install}"),
        };
        line(name, where_from);
    }
    if let Some(nccl) = &found.nccl {
        text.push_str(&format!("{:<10} {nccl}\n", "nccl"));
    }
    text.push_str(&format!("{:<10} {trial}\n\n", "trial"));
    text.push_str(&verdict(&found.features));
    text
}

/// What this build has, and which devices it finds for it.
fn backends_as_text(line: &mut dyn FnMut(&str, String)) {
    let all = [("cpu", BackendName::Cpu.compiled_in()), ("cuda", cuda()), ("wgpu", wgpu())];
    let built: Vec<&str> = all.iter().filter(|b| b.1).map(|b| b.0).collect();
    line("backends", if built.is_empty() { "none".into() } else { built.join(", ") });
    for (name, there) in [("cuda", cuda()), ("wgpu", wgpu())] {
        if !there {
            line("", format!("{name}: build with --features {name}"));
        }
    }
    match cuda_devices() {
        Ok(devices) => devices.into_iter().for_each(|device| line("cuda", device)),
        Err(e) => line("cuda", e.to_string()),
    }
    for (i, adapter) in adapters().into_iter().enumerate() {
        line(if i == 0 { "adapters" } else { "" }, adapter);
    }
    if wgpu() && adapters().is_empty() {
        line("adapters", "none found: wgpu needs a Vulkan loader and driver".into());
    }
}

/// Whether this build has the CUDA backend.
fn cuda() -> bool {
    BackendName::from(CudaOptions::default()).compiled_in()
}

/// Whether this build has the wgpu backend.
fn wgpu() -> bool {
    BackendName::Wgpu(WgpuOptions::default()).compiled_in()
}

fn verdict(features: &[&str]) -> String {
    if !BackendName::Cpu.compiled_in() {
        return "This build has no backend: build with --features cpu.\n".into();
    }
    let fast = features.contains(&"avx2") && features.contains(&"fma");
    let how = if fast {
        "with vector instructions"
    } else {
        "on the portable path (slow): AVX2 and FMA are missing"
    };
    format!("Models run on the CPU {how}.\nTry: engraft generate --prompt \"This package provides\"\n")
}

/// What `ldconfig -p` lists; empty where there is none.
fn linker_cache() -> String {
    let run = |program: &str| Command::new(program).arg("-p").output().ok();
    let output = ["ldconfig", "/sbin/ldconfig"].iter().find_map(|p| run(p));
    output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
}

fn find(file: &str, cache: &str) -> Option<PathBuf> {
    let listed = cache
        .lines()
        .filter(|l| l.trim_start().starts_with(file))
        .find_map(|l| l.rsplit_once("=> ").map(|(_, path)| PathBuf::from(path.trim())));
    listed.or_else(|| FOLDERS.iter().map(|f| Path::new(f).join(file)).find(|p| p.exists()))
}
