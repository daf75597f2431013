//! Every variant through the writers of all native APIs, with the options that wgpu 30 gives them for the
//! modules of this backend: checked, workgroup memory left as it is, one entry point.
//!
//! Each API is written twice: for the oldest devices that the writer knows, loops counted as in builds with
//! debug assertions, and for the newest ones, loops as they are, as in optimised builds. SPIR-V is marked
//! `NoContraction` as devices get it, for the newest with all modes of floats, and goes through `spirv-val`
//! where it is installed. `ENGRAFT_REQUIRE=spirv-val`, which the wgpu lane sets, makes its absence a failure
//! and writes every variant; elsewhere one of 32 is, by `ENGRAFT_SEED`. To validate takes far longer than all
//! else: there one of eight is, and all of them under `ENGRAFT_FULL`. Of texts in mode `Fast`, which have
//! fewer guards and are the same else, one of eight is written where all others are.

use super::{COLUMNS, dialects, fast, module};
use crate::{Access, Carrier, Dialect, Kernel, Source, Strictness, source, uncontracted};
use naga::back::spv::Capability;
use naga::back::{hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::ModuleInfo;
use naga::{ResourceBinding, ShaderStage};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

mod com;
mod dxc;
mod dxil;
mod exact;

/// What a variant is written for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Target {
    /// Vulkan 1.1 without robustBufferAccess2 and without products of bytes.
    Spirv13,
    /// Vulkan 1.3 with both.
    Spirv16,
    /// macOS 10.14.
    Msl21,
    Msl40,
    /// FXC: no f16, no subgroups.
    Hlsl51,
    /// DXC.
    Hlsl66,
}

const TARGETS: [Target; 6] =
    [Target::Spirv13, Target::Spirv16, Target::Msl21, Target::Msl40, Target::Hlsl51, Target::Hlsl66];

const NEWEST_MSL: (u8, u8) = (4, 0);
const NEWEST_HLSL: hlsl::ShaderModel = hlsl::ShaderModel::V6_6;

/// Of so many variants one is validated, unless all are.
const VALIDATED: usize = 8;
/// Of so many one is written where no lane asks for all.
const WRITTEN: usize = 32;

/// A variant, read and validated.
struct Variant {
    kernel: Kernel,
    dialect: Dialect,
    said: Source,
    module: naga::Module,
    info: ModuleInfo,
}

impl Variant {
    fn read(kernel: Kernel, dialect: Dialect) -> Self {
        let said = source(&kernel, dialect).unwrap();
        let (module, info) = module(&kernel, dialect, &said.text);
        Self { kernel, dialect, said, module, info }
    }

    /// Where the arena is bound.
    fn arena(&self) -> Option<ResourceBinding> {
        (self.dialect.carrier == Carrier::Uniform).then_some(ResourceBinding { group: 1, binding: 0 })
    }

    fn storage(&self) -> impl Iterator<Item = (ResourceBinding, Access)> {
        (0..)
            .zip(&self.said.bindings)
            .map(|(binding, access)| (ResourceBinding { group: 0, binding }, *access))
    }

    /// Whether devices of this kind are asked for the variant.
    fn is_for(&self, target: Target) -> bool {
        target != Target::Hlsl51 || !self.dialect.f16 && !self.kernel.subgroups()
    }

    /// Writes the variant; words of SPIR-V come back.
    fn written(&self, target: Target) -> Result<Vec<u32>, String> {
        match target {
            Target::Spirv13 => self.exact(false),
            Target::Spirv16 => self.exact(true),
            Target::Msl21 => self.msl((2, 1)),
            Target::Msl40 => self.msl(NEWEST_MSL),
            Target::Hlsl51 => self.hlsl(hlsl::ShaderModel::V5_1).map(|_| Vec::new()),
            Target::Hlsl66 => self.hlsl(NEWEST_HLSL).map(|_| Vec::new()),
        }
    }

    /// As devices get it where an order of sums is promised.
    fn exact(&self, newest: bool) -> Result<Vec<u32>, String> {
        let bare = self.spirv(newest)?;
        // A device of Vulkan 1.1 is asked for nothing besides, one of 1.3 for all that there is.
        let strict = if newest { exact::ALL } else { Strictness::default() };
        let exact = uncontracted(&bare, strict).ok_or("no module of SPIR-V")?;
        exact::marked(&bare, &exact, strict).map(|_| exact)
    }

    fn spirv(&self, newest: bool) -> Result<Vec<u32>, String> {
        let all = self.storage().map(|(from, _)| from).chain(self.arena());
        let to = |b: ResourceBinding| spv::BindingInfo {
            descriptor_set: b.group,
            binding: b.binding,
            binding_array_size: None,
        };
        let options = spv::Options {
            lang_version: if newest { (1, 6) } else { (1, 3) },
            flags: spv::WriterFlags::empty(),
            fake_missing_bindings: false,
            binding_map: all.map(|from| (from, to(from))).collect(),
            capabilities: Some(self.capabilities(newest).collect()),
            bounds_check_policies: BoundsCheckPolicies {
                index: BoundsCheckPolicy::Restrict,
                buffer: if newest { BoundsCheckPolicy::Unchecked } else { BoundsCheckPolicy::Restrict },
                image_load: BoundsCheckPolicy::Restrict,
                binding_array: BoundsCheckPolicy::Unchecked,
            },
            zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
            force_loop_bounding: !newest,
            emit_int_div_checks: true,
            ..spv::Options::default()
        };
        let entry = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".into() };
        spv::write_vec(&self.module, &self.info, &options, Some(&entry)).map_err(|e| e.to_string())
    }

    /// What a device that was opened for the variant may use.
    fn capabilities(&self, newest: bool) -> impl Iterator<Item = Capability> {
        let always = [Capability::Shader, Capability::Matrix];
        let f16 = self.dialect.f16.then_some(Capability::Float16);
        let subgroups = [
            Capability::GroupNonUniform,
            Capability::GroupNonUniformVote,
            Capability::GroupNonUniformArithmetic,
            Capability::GroupNonUniformBallot,
            Capability::GroupNonUniformShuffle,
            Capability::GroupNonUniformShuffleRelative,
            Capability::GroupNonUniformQuad,
        ];
        let dot = [
            Capability::DotProductInputAllKHR,
            Capability::DotProductInput4x8BitKHR,
            Capability::DotProductInput4x8BitPackedKHR,
            Capability::DotProductKHR,
        ];
        let subgroups = subgroups.into_iter().filter(|_| self.kernel.subgroups());
        always.into_iter().chain(f16).chain(subgroups).chain(dot.into_iter().filter(move |_| newest))
    }

    fn msl(&self, lang_version: (u8, u8)) -> Result<Vec<u32>, String> {
        let immediates_buffer = (self.dialect.carrier == Carrier::Immediate).then_some(0);
        let mut next = u8::from(immediates_buffer.is_some());
        let mut slot = |mutable| {
            next += 1;
            msl::BindTarget { buffer: Some(next - 1), mutable, ..Default::default() }
        };
        let mut resources: msl::BindingMap =
            self.storage().map(|(from, access)| (from, slot(access == Access::Write))).collect();
        resources.extend(self.arena().map(|from| (from, slot(false))));
        let sizes_buffer = slot(false).buffer;
        let resources = msl::EntryPointResources { immediates_buffer, sizes_buffer, resources };
        let options = msl::Options {
            lang_version,
            per_entry_point_map: [("main".to_string(), resources)].into(),
            fake_missing_bindings: false,
            bounds_check_policies: BoundsCheckPolicies {
                index: BoundsCheckPolicy::Restrict,
                buffer: BoundsCheckPolicy::Restrict,
                image_load: BoundsCheckPolicy::Restrict,
                binding_array: BoundsCheckPolicy::Unchecked,
            },
            zero_initialize_workgroup_memory: false,
            force_loop_bounding: lang_version < NEWEST_MSL,
            emit_int_div_checks: true,
            ..msl::Options::default()
        };
        let entry = msl::PipelineOptions {
            entry_point: Some((ShaderStage::Compute, "main".into())),
            ..msl::PipelineOptions::default()
        };
        let (_, said) =
            msl::write_string(&self.module, &self.info, &options, &entry).map_err(|e| e.to_string())?;
        one_entry(said.entry_point_names).map(|_| Vec::new())
    }

    /// The text, and the name of its entry point.
    fn hlsl(&self, shader_model: hlsl::ShaderModel) -> Result<(String, String), String> {
        let target = |space, register| hlsl::BindTarget { space, register, ..Default::default() };
        let immediates = self.dialect.carrier == Carrier::Immediate;
        // Read-only and writable buffers have registers of their own.
        let (mut read, mut write) = (0.., 0..);
        let mut register = |access| match access {
            Access::Read => read.next().unwrap_or(u32::MAX),
            Access::Write => write.next().unwrap_or(u32::MAX),
        };
        let mut binding_map: hlsl::BindingMap =
            self.storage().map(|(from, access)| (from, target(0, register(access)))).collect();
        let arena = hlsl::BindTarget { restrict_indexing: true, ..target(0, 0) };
        binding_map.extend(self.arena().map(|from| (from, arena)));
        let options = hlsl::Options {
            shader_model,
            binding_map,
            fake_missing_bindings: false,
            immediates_target: immediates.then(|| target(0, 0)),
            // How many workgroups there are, which DX12 does not say.
            special_constants_binding: Some(target(u8::from(immediates), 1)),
            zero_initialize_workgroup_memory: false,
            restrict_indexing: true,
            force_loop_bounding: shader_model < NEWEST_HLSL,
            ..hlsl::Options::default()
        };
        let entry = hlsl::PipelineOptions { entry_point: Some((ShaderStage::Compute, "main".into())) };
        let mut text = String::new();
        let said = hlsl::Writer::new(&mut text, &options, &entry)
            .write(&self.module, &self.info, None)
            .map_err(|e| e.to_string())?;
        Ok((text, one_entry(said.entry_point_names)?))
    }
}

/// The one entry point that was asked for.
fn one_entry<E: ToString>(names: Vec<Result<String, E>>) -> Result<String, String> {
    match &names[..] {
        [Ok(name)] => Ok(name.clone()),
        [Err(e)] => Err(e.to_string()),
        all => Err(format!("{} entry points, 1 is wanted", all.len())),
    }
}

/// Whether a check may not be left out: SPIR-V's by `spirv-val`, HLSL's by `dxc`.
fn required(check: &str) -> bool {
    let required = std::env::var("ENGRAFT_REQUIRE").unwrap_or_default();
    required.split(',').any(|name| name == check)
}

/// Whether SPIR-V can be validated here. Said past the capture of tests where it cannot.
fn validator() -> bool {
    let there =
        Command::new("spirv-val").arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success());
    assert!(there || !required("spirv-val"), "spirv-val is required and not installed");
    if !there {
        let said = "SPIR-V was written but not validated: spirv-val is not installed (Debian: spirv-tools)";
        writeln!(std::io::stderr(), "{said}").unwrap();
    }
    there
}

/// What spirv-val says against a module.
fn validated(target: Target, words: &[u32]) -> Result<(), String> {
    let environment = if target == Target::Spirv16 { "vulkan1.3" } else { "vulkan1.1" };
    let mut child = Command::new("spirv-val")
        .args(["--target-env", environment, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).map_err(|e| e.to_string())?;
    let said = child.wait_with_output().map_err(|e| e.to_string())?;
    match said.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).trim().to_string()),
    }
}

/// What was done for a target, by one thread or by all.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    variants: usize,
    validated: usize,
    /// Instructions of SPIR-V that may not be contracted.
    marked: usize,
    writing: Duration,
    validating: Duration,
}

/// Writes a variant for all targets; what is refused is named with the variant and the target.
fn write(variant: &Variant, validate: bool, done: &mut [Done; TARGETS.len()]) -> Result<(), String> {
    for (target, done) in TARGETS.into_iter().zip(done).filter(|(target, _)| variant.is_for(*target)) {
        let refused = |what: &str, why: String| {
            format!("{} ({:?}), {target:?}, {what}: {why}", variant.kernel.label(), variant.dialect)
        };
        let start = Instant::now();
        let words = variant.written(target).map_err(|why| refused("naga's writer", why))?;
        done.writing += start.elapsed();
        done.marked += exact::count(&words);
        if validate && !words.is_empty() {
            let start = Instant::now();
            validated(target, &words).map_err(|why| refused("spirv-val", why))?;
            done.validating += start.elapsed();
            done.validated += 1;
        }
        done.variants += 1;
    }
    Ok(())
}

/// Every variant, and behind as many as come back those of mode `Fast`, one of `every` by the seed.
fn texts(seed: usize, every: usize) -> (Vec<(Kernel, Dialect)>, usize) {
    let kernels = Kernel::all(COLUMNS);
    let in_all = |kernel: &Kernel| dialects(kernel).into_iter().map(|d| (*kernel, d)).collect::<Vec<_>>();
    let mut all: Vec<_> = kernels.iter().flat_map(in_all).collect();
    let strict = all.len();
    let some = kernels.iter().skip(seed % every).step_by(every);
    all.extend(some.filter_map(|kernel| Some((*kernel, fast(kernel)?))));
    (all, strict)
}

#[test]
fn writers_of_all_apis_take_the_variants() {
    let (validator, full) = (validator(), std::env::var_os("ENGRAFT_FULL").is_some());
    let seed = std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0usize);
    let (whole, next) = (full || required("spirv-val"), AtomicUsize::new(0));
    let every = match whole {
        true if full => 1,
        true => VALIDATED,
        false => WRITTEN,
    };
    let (all, strict) = texts(seed, every);
    let sums = Mutex::new(([Done::default(); TARGETS.len()], Vec::new()));
    let work = || {
        let (mut done, mut refused) = ([Done::default(); TARGETS.len()], Vec::new());
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((kernel, dialect)) = all.get(at) else { break };
            let one_of = |count: usize| full || at % count == seed % count;
            if whole || at >= strict || one_of(WRITTEN) {
                let validated = validator && (!whole || one_of(VALIDATED));
                refused.extend(write(&Variant::read(*kernel, *dialect), validated, &mut done).err());
            }
        }
        let mut sums = sums.lock().unwrap();
        for (sum, own) in sums.0.iter_mut().zip(done) {
            sum.variants += own.variants;
            sum.validated += own.validated;
            sum.marked += own.marked;
            sum.writing += own.writing;
            sum.validating += own.validating;
        }
        sums.1.extend(refused);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (done, refused) = sums.into_inner().unwrap();
    for (target, done) in TARGETS.into_iter().zip(done) {
        let [writing, validating] = [done.writing, done.validating].map(|time| time.as_secs_f64());
        println!(
            "{target:?}: {} variants written in {writing:.1} s, {} validated in {validating:.1} s, {} instructions \
             marked NoContraction",
            done.variants, done.validated, done.marked
        );
    }
    assert!(
        refused.is_empty(),
        "{} are refused, such as {}",
        refused.len(),
        refused[..refused.len().min(5)].join("\n")
    );
    let least = |every: usize, all: bool| if all { every } else { every / WRITTEN };
    let in_fast = all.len() - strict;
    assert!(in_fast > 1000 / every, "{in_fast} texts of mode fast");
    assert!(done[0].variants >= least(strict, whole) + in_fast, "{done:?}");
    assert!(done.iter().all(|done| done.variants > least(3000, whole)), "{done:?}");
    let validated = |done: &Done| done.validated >= least(strict, full);
    assert!(!validator || done[..2].iter().all(validated), "{done:?}");
}

/// What a writer or spirv-val refuses fails by the names of the variant and the target.
#[test]
fn what_is_refused_is_named() {
    let dialect = Dialect { carrier: Carrier::Immediate, f16: false, dot: true, strict: true };
    let mut done = [Done::default(); TARGETS.len()];
    let mut variant = Variant::read(Kernel::Sample, dialect);
    write(&variant, false, &mut done).unwrap();
    variant.said.bindings.pop();
    let refused = write(&variant, false, &mut done).unwrap_err();
    assert!(refused.contains("sample") && refused.contains("Spirv13, naga's writer"), "{refused}");
    if validator() {
        let variant = Variant::read(Kernel::Sample, dialect);
        let words = variant.written(Target::Spirv13).unwrap();
        validated(Target::Spirv13, &words).unwrap();
        let refused = validated(Target::Spirv13, &words[..words.len() - 1]).unwrap_err();
        assert!(refused.contains("error"), "{refused}");
    }
}
