//! What can be tested on this machine, and what the run was told to require.
//!
//! `ENGRAFT_REQUIRE` is a list such as `cuda:soft,wgpu:llvmpipe`: what it names must be there, or the run
//! fails. What is absent otherwise is left out, and the summary says so (`trials`): tests that are marked by
//! `#[test]` alone pass whatever they ran on, and do not ask here.
//!
//! `cuda:soft` is the software driver; a process has one driver, so it is used only where it is named, and
//! then instead of a real one. `cuda:soft:reverse` and `cuda:soft:random7` run the warps and blocks of
//! kernels in another order. Of a real driver's devices the first is tested, or those that are named
//! (`cuda:1`).

use crate::laws::{Lab, TWIN};
pub use crate::rerun::{AS_HARDWARE, BLOCKING, FULL, REQUIRE, WAIT_LIMIT};
use engraft_core::backend::Backend;
use engraft_core::numerics::{Madd, Mode};
use engraft_core::{Error, Result};
use engraft_cpu::{Cpu, CpuConfig, Isa};
use engraft_cuda::{Cuda, CudaConfig};
use engraft_wgpu::{Reduce, Wgpu, WgpuConfig};
use sample::Sample;
use soft_cuda::preload::{self, Schedule};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The folder `tests` of the project: where `ENGRAFT_TESTS` says, below the current folder (programs that
/// were built elsewhere), or where this was built.
pub fn folder() -> PathBuf {
    let named = std::env::var_os("ENGRAFT_TESTS").filter(|named| !named.is_empty()).map(PathBuf::from);
    let below = || Some(PathBuf::from("tests")).filter(|here| here.join("golden").is_dir());
    named.or_else(below).unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).into())
}

/// Is shown a backend that is there.
pub trait LabVisitor {
    /// Sees one backend with its twins.
    fn visit<B: Backend>(&mut self, lab: Lab<B>);
}

fn cpu(threads: usize, madd: Madd, isa: Option<Isa>) -> Result<Arc<Cpu>> {
    Cpu::new(CpuConfig { threads, madd, isa })
}

/// The CPU in one kind of multiply-add: one thread and the best instructions, with everything that must equal
/// it.
pub fn cpu_lab(madd: Madd) -> Result<Lab<Cpu>> {
    let name = match madd {
        Madd::Fused => "cpu",
        Madd::Separate => "cpu-separate",
    };
    let mut twins = vec![
        (TWIN, cpu(2, madd, None)?),
        ("5 threads against 1", cpu(5, madd, None)?),
        ("portable against the best instructions", cpu(1, madd, Some(Isa::Portable))?),
    ];
    if Isa::detect() == Isa::Avx512 {
        twins.push(("AVX2 against AVX-512", cpu(1, madd, Some(Isa::Avx2))?));
    }
    Ok(Lab { name: name.into(), subject: cpu(1, madd, None)?, twins })
}

/// Adapters of this machine by the first word of their name, software ones too.
pub fn adapters() -> Vec<String> {
    let all = engraft_wgpu::list().unwrap_or_default();
    let first = |name: &str| name.split_whitespace().next().map(str::to_lowercase);
    all.iter().filter_map(|a| first(&a.name)).collect()
}

/// Those of them that the run names.
pub fn required_adapters() -> Vec<String> {
    let required = std::env::var(REQUIRE).unwrap_or_default().to_lowercase();
    adapters().into_iter().filter(|name| required.contains(name.as_str())).collect()
}

/// An adapter, software ones too; in the browsers' way of passing parameters when `uniform_parameters`.
pub fn wgpu(adapter: Option<&str>, uniform_parameters: bool) -> Result<Arc<Wgpu>> {
    let adapter = adapter.map(str::to_string);
    Wgpu::new(WgpuConfig { adapter, software: true, uniform_parameters, ..WgpuConfig::default() })
}

/// An adapter whose sums are brought together as `reduce` says, software ones too.
///
/// # Errors
/// `Unsupported` where it cannot do that.
pub fn wgpu_reduced(adapter: &str, reduce: Reduce) -> Result<Arc<Wgpu>> {
    let (adapter, reduce) = (Some(adapter.to_string()), Some(reduce));
    Wgpu::new(WgpuConfig { adapter, software: true, reduce, ..WgpuConfig::default() })
}

/// Whether an op is tested in a lab: where sums are split over lanes only ops that have such a variant.
pub fn concerns(lab: &str, op: &str) -> bool {
    let reduced = [
        "norm",
        "add_norm",
        "head_norm",
        "qkv_rope_append",
        "attend",
        "attend_codes",
        "attend_dense",
        "attend_disentangled",
    ];
    !lab.ends_with("-subgroups")
        || reduced.contains(&op)
        || ["linear", "linear_act", "gated_linear", "linear_add"].contains(&op)
}

/// The order of warps and blocks that a name such as `cuda:soft:reverse` asks for; none where it is no such
/// name.
fn soft_schedule(name: &str) -> Option<Schedule> {
    let rest = name.strip_prefix("cuda:soft")?;
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some(Schedule::Forward),
        Some("forward") => Some(Schedule::Forward),
        Some("reverse") => Some(Schedule::Reverse),
        Some(random) => random.strip_prefix("random")?.parse().ok().map(Schedule::Random),
        None => None,
    }
}

/// A CUDA device by name: `cuda`, `cuda:1`, or the software driver's (`cuda:soft`, `cuda:soft:reverse`, ...),
/// which Cargo built next to this program. Every check of the software driver is on.
///
/// # Errors
/// `Config` for another name; `Unsupported` where the driver is not there.
pub fn cuda(name: &str, mode: Mode) -> Result<Arc<Cuda>> {
    cuda_with(name, CudaConfig { mode, ..CudaConfig::default() })
}

/// The same with more to say; `name` decides about device and driver.
///
/// # Errors
/// As [`cuda`].
pub fn cuda_with(name: &str, config: CudaConfig) -> Result<Arc<Cuda>> {
    let blocking = config.blocking || std::env::var_os(BLOCKING).is_some();
    let config = CudaConfig { wait_limit: config.wait_limit.or(wait_limit()?), blocking, ..config };
    let unknown =
        || Error::config("backend", format!("\"{name}\""), "cuda, cuda:<index>, cuda:soft[:<schedule>]");
    if let Some(schedule) = soft_schedule(name) {
        let refused = |e: preload::LoadError| Error::Unsupported {
            op: "loading the software driver".into(),
            backend: name.into(),
            reason: e.to_string(),
        };
        let soft = preload::load().map_err(refused)?;
        soft.set_schedule(schedule).map_err(refused)?;
        soft.set_checks(preload::Checks::default()).map_err(refused)?;
        return Cuda::new(CudaConfig { driver: Some(soft.path().into()), ..config });
    }
    let device = index(name).ok_or_else(unknown)?;
    Cuda::new(CudaConfig { device, ..config })
}

/// Seconds that a wait for a device may take, where the run says: a hang has to end before the step's limit.
fn wait_limit() -> Result<Option<Duration>> {
    let Ok(text) = std::env::var(WAIT_LIMIT) else { return Ok(None) };
    match text.parse::<u64>() {
        Ok(seconds @ 1..) => Ok(Some(Duration::from_secs(seconds))),
        _ => Err(Error::config(WAIT_LIMIT, text, "seconds, from 1")),
    }
}

/// The number of a real driver's device.
fn index(name: &str) -> Option<usize> {
    match name.split_once(':') {
        None => (name == "cuda").then_some(0),
        Some(("cuda", index)) => index.parse().ok(),
        Some(_) => None,
    }
}

/// Of so many devices of a real driver those that are named, or the first.
fn real(required: &str, devices: usize) -> Vec<String> {
    let there = |name: &&str| index(name).is_some_and(|at| at < devices);
    let named: Vec<String> = required.split(',').map(str::trim).filter(there).map(str::to_string).collect();
    let first = (named.is_empty() && devices > 0).then(|| "cuda".to_string());
    named.into_iter().chain(first).collect()
}

/// The CUDA devices to test, by name: the software driver's where the run names it, else those of a real
/// driver.
pub fn cuda_names() -> Vec<String> {
    let required = std::env::var(REQUIRE).unwrap_or_default();
    let soft: Vec<String> = required
        .split(',')
        .map(str::trim)
        .filter(|n| soft_schedule(n).is_some())
        .map(str::to_string)
        .collect();
    match soft.is_empty() {
        false => soft,
        true => real(&required, engraft_cuda::list(None).map_or(0, |all| all.len())),
    }
}

/// Shows every backend that is there.
///
/// # Errors
/// When one of them does not start.
pub fn each(visitor: &mut impl LabVisitor) -> Result<()> {
    for madd in [Madd::Fused, Madd::Separate] {
        visitor.visit(cpu_lab(madd)?);
    }
    for name in cuda_names() {
        let label = name.replace(':', "-");
        for (mode, label) in
            [(Mode::Reference, label.clone()), (Mode::Invariant, format!("{label}-invariant"))]
        {
            visitor.visit(Lab { name: label, subject: cuda(&name, mode)?, twins: Vec::new() });
        }
        // Its own kernels take more rows than the software driver has time for.
        if takes_wide(&label) {
            let subject = cuda(&name, Mode::Fast)?;
            visitor.visit(Lab { name: format!("{label}-fast"), subject, twins: Vec::new() });
        }
    }
    for name in adapters() {
        // Drivers compile every kernel of every instance: no twins, except in `goldens --uniform-parameters`.
        let subject = wgpu(Some(&name), false)?;
        visitor.visit(Lab { name: format!("wgpu-{name}"), subject, twins: Vec::new() });
        match wgpu_reduced(&name, Reduce::Subgroups) {
            Ok(subject) => {
                let twins =
                    vec![("workgroup memory against subgroups", wgpu_reduced(&name, Reduce::Shared)?)];
                visitor.visit(Lab { name: format!("wgpu-{name}-subgroups"), subject, twins });
            }
            Err(Error::Unsupported { reason, .. }) => println!("wgpu-{name}-subgroups: skipped: {reason}"),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Cases per trial of a lab. A software driver interprets every instruction: it gets fewer; so does the
/// second adapter, which is there for its compiler. Packed formats have a shader each, and a test of their
/// own for adapters (`wgpu.rs`). On tensor cores an op has at least the cases that reach each of its kernels
/// (`turns`).
pub fn seeds(lab: &str, packed: bool, turns: u64) -> u64 {
    match lab {
        adapter if packed && adapter.starts_with("wgpu") => 3,
        soft if is_soft(soft) => {
            if soft.ends_with("-invariant") {
                turns.max(6)
            } else {
                6
            }
        }
        second if second.contains("swiftshader") || second.ends_with("-subgroups") => 6,
        _ => 24,
    }
}

/// Of an op's cases of the sizes that models have, how many a lab takes. On the software driver, kernels
/// have tests of their own for them (`kernels/tests`), but for those of an index. The second adapter and sums
/// that are split over lanes, which run slowly here, have one for each way to bring sums together: a norm, a
/// matmul, attention.
pub fn takes_large(lab: &str, op: &str) -> usize {
    let is_few = lab.contains("swiftshader") || lab.ends_with("-subgroups");
    match ["norm", "linear", "attend"].contains(&op) {
        _ if is_soft(lab) && op.starts_with("index_") => usize::MAX,
        _ if is_soft(lab) => 0,
        _ if !is_few => usize::MAX,
        true => 1,
        false => 0,
    }
}

/// Of so many further cases of such sizes (`OpSpec::sizes`) those that a run of a trial takes: two by the
/// seed, all where the run is a full one. Drivers compile every packed format: there it is always two, and
/// the test `wgpu` has all of them.
pub fn sizes(trial: &str, (lab, op): (&str, &str), packed: bool, count: usize) -> Vec<usize> {
    let full = std::env::var_os(FULL).is_some();
    let usual = !full || packed && lab.starts_with("wgpu");
    match takes_large(lab, op) {
        usize::MAX if usual => Sample::one_of(count.div_ceil(2) as u64).of_list(trial, 0..count),
        usize::MAX => (0..count).collect(),
        _ => Vec::new(),
    }
}

/// Whether a lab has cases of hundreds of rows, which take kernels of their own: real devices of CUDA.
pub fn takes_wide(lab: &str) -> bool {
    lab.starts_with("cuda") && !is_soft(lab)
}

/// Whether a lab is on the software driver, which has fewer and smaller cases. `ENGRAFT_AS_HARDWARE` gives it
/// those of a real device: what the first real device is to run has been run before (it takes hours; a filter
/// takes less).
fn is_soft(lab: &str) -> bool {
    lab.starts_with("cuda-soft") && std::env::var_os(AS_HARDWARE).is_none()
}

/// Names in `required` that are not among `here` (adapters of wgpu) and `cuda` (devices): `cpu` always is,
/// `wgpu` is any adapter, `wgpu:part` one whose name has that part.
pub fn missing(required: &str, here: &[String], cuda: &[String]) -> Vec<String> {
    let there = |name: &str| match name.split_once(':') {
        _ if cuda.iter().any(|c| c == name) => true,
        None => name == "cpu" || (name == "wgpu" && !here.is_empty()),
        Some((kind, part)) => kind == "wgpu" && here.iter().any(|a| a.contains(&part.to_lowercase())),
    };
    let names = required.split(',').map(str::trim).filter(|n| !n.is_empty());
    names.filter(|n| !there(n)).map(str::to_string).collect()
}

/// Names that `ENGRAFT_REQUIRE` asks for and that are not there.
pub fn missing_here() -> Vec<String> {
    std::env::var(REQUIRE).map(|list| missing(&list, &adapters(), &cuda_names())).unwrap_or_default()
}

/// Backends of the project that cannot be tested on this machine.
pub fn absent() -> Vec<&'static str> {
    let no_device = cuda_names().is_empty().then_some("cuda");
    let no_adapter = adapters().is_empty().then_some("wgpu");
    no_device.into_iter().chain(no_adapter).collect()
}

#[cfg(test)]
mod tests {
    use super::{folder, missing, real, sizes, soft_schedule, takes_large};
    use soft_cuda::preload::Schedule;

    #[test]
    fn what_is_required_must_be_there() {
        let none: &[String] = &[];
        assert!(missing("", none, none).is_empty() && missing("cpu, ", none, none).is_empty());
        let all = "cuda:soft,cpu,wgpu:llvmpipe,wgpu";
        assert_eq!(missing(all, none, none), ["cuda:soft", "wgpu:llvmpipe", "wgpu"]);
        let here = ["llvmpipe".to_string()];
        assert_eq!(missing("wgpu,wgpu:LLVM,wgpu:radeon", &here, none), ["wgpu:radeon"]);
        assert!(missing("cuda:soft", none, &["cuda:soft".to_string()]).is_empty());
    }

    #[test]
    fn devices_of_a_real_driver_are_tested_by_their_names() {
        assert_eq!(real("", 2), ["cuda"]);
        assert_eq!(real("cuda", 1), ["cuda"]);
        assert_eq!(real("cpu, cuda:1", 2), ["cuda:1"]);
        assert_eq!(real("cuda,cuda:1,wgpu", 2), ["cuda", "cuda:1"]);
        // What is not there is missing, not replaced.
        assert_eq!(missing("cuda:1", &[], &real("cuda:1", 1)), ["cuda:1"]);
        assert!(real("cuda:1", 0).is_empty());
    }

    #[test]
    fn labs_that_are_slow_have_a_case_for_each_way_to_add() {
        let slow = ["wgpu-swiftshader", "wgpu-llvmpipe-subgroups"];
        let large = |lab: &str| ["norm", "linear", "attend", "embed"].map(|op| takes_large(lab, op));
        assert_eq!(slow.map(large), [[1, 1, 1, 0]; 2]);
        assert_eq!(large("wgpu-llvmpipe"), [usize::MAX; 4]);
        // Neighbours by half their number: of 44 cases of 22 formats two of one format.
        let two = |seed: &str| sizes(seed, ("wgpu-llvmpipe", "linear_packed"), true, 44);
        let all: Vec<_> = (0..200).map(|seed| two(&seed.to_string())).collect();
        assert!(all.iter().all(|two| two.len() == 2 && two[0] + 22 == two[1]), "{all:?}");
        assert!((0..22).all(|first| all.iter().any(|two| two[0] == first)), "{all:?}");
        assert!(sizes("1", ("wgpu-swiftshader", "linear"), false, 16).is_empty());
    }

    #[test]
    fn the_goldens_are_found() {
        assert!(folder().join("golden/llama").is_dir(), "{}", folder().display());
    }

    #[test]
    fn the_software_driver_and_its_schedules_have_names() {
        assert_eq!(soft_schedule("cuda:soft"), Some(Schedule::Forward));
        assert_eq!(soft_schedule("cuda:soft:reverse"), Some(Schedule::Reverse));
        assert_eq!(soft_schedule("cuda:soft:random7"), Some(Schedule::Random(7)));
        for other in ["cuda", "cuda:1", "cuda:soft:", "cuda:softly", "cuda:soft:random"] {
            assert_eq!(soft_schedule(other), None, "{other}");
        }
    }
}
