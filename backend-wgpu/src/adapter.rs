//! Adapters: what this machine has, and which one a name means.
//!
//! Without a name the strongest hardware adapter is taken; software adapters (drivers that run on the CPU)
//! only when a part of their name is given or the caller allows them. The name of a kind (`integrated`: the
//! one that saves power) means the first of that kind. The name of an API, alone or before a colon, means the
//! adapters that it lists: two may list one GPU. Of several that fit, `#1` at the end means the second: equal
//! GPUs have equal names. Nothing is opened here.

use crate::config::WgpuConfig;
use engraft_core::backend::block_on;
use engraft_core::{Error, Result};

/// What kind of device an adapter is, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdapterKind {
    /// Its own memory.
    Discrete,
    /// Shares the processor's memory.
    Integrated,
    /// In a virtual machine, or unknown.
    Other,
    /// A driver that runs on the CPU.
    Software,
}

impl AdapterKind {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            AdapterKind::Discrete => "discrete",
            AdapterKind::Integrated => "integrated",
            AdapterKind::Other => "other",
            AdapterKind::Software => "software",
        }
    }
}

/// An adapter as `engraft doctor` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// As the driver says.
    pub name: String,
    /// Kind of device.
    pub kind: AdapterKind,
    /// Vulkan, Metal, Dx12.
    pub api: String,
    /// Driver and its version.
    pub driver: String,
    /// Whether shaders know the type f16; otherwise halves are unpacked by hand.
    pub f16: bool,
    /// The narrowest and the widest subgroups, where shaders may use them.
    pub subgroups: Option<(u32, u32)>,
}

impl Listed {
    fn of(adapter: &wgpu::Adapter) -> Self {
        let info = adapter.get_info();
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::Cpu => AdapterKind::Software,
            _ => AdapterKind::Other,
        };
        let driver = format!("{} {}", info.driver, info.driver_info).trim().to_string();
        // Browsers do not tell.
        let name = if info.name.is_empty() { "WebGPU".to_string() } else { info.name };
        let features = adapter.features();
        let widths = (info.subgroup_min_size, info.subgroup_max_size);
        Self {
            name,
            kind,
            api: format!("{:?}", info.backend),
            driver,
            f16: features.contains(wgpu::Features::SHADER_F16),
            subgroups: features.contains(wgpu::Features::SUBGROUP).then_some(widths),
        }
    }

    /// Whether every change is tested on this driver as a whole, by the bits of the CPU (`.ci/lane-wgpu`).
    /// Other drivers that run on the CPU (WARP) are not.
    pub(crate) fn is_tested(&self) -> bool {
        let name = self.name.to_lowercase();
        let is = |driver: &str| name.starts_with(driver);
        self.kind == AdapterKind::Software && self.api == "Vulkan" && TESTED.into_iter().any(is)
    }

    /// What shaders may use, and what stands in for the rest.
    pub fn abilities(&self) -> String {
        let f16 = if self.f16 { "f16" } else { "no f16: unpacked by hand" };
        let old = if self.lacks_dxc() { NO_DXC } else { "" };
        match self.subgroups {
            Some((least, most)) if least == most => format!("{f16}, subgroups of {least}"),
            Some((least, most)) => format!("{f16}, subgroups of {least} to {most}"),
            None => format!("{f16}, no subgroups: workgroup memory{old}"),
        }
    }

    /// Whether Direct3D's shaders are compiled by FXC, as it seems: wgpu looks for DXC (`dxcompiler.dll`) and
    /// does not say what it found, but without it there are neither subgroups nor f16. A GPU that is too old
    /// for both looks the same.
    pub fn lacks_dxc(&self) -> bool {
        self.api == "Dx12" && self.subgroups.is_none() && !self.f16
    }
}

/// What stands behind the abilities of an adapter whose shaders FXC compiles.
const NO_DXC: &str = "; no DXC, it seems (dxcompiler.dll of 2024 or later, next to the program or in PATH)";

/// Of what a driver says a process may have of the device's memory a rest stays free: buffers beyond it are
/// refused, where a driver would give them and move others to the host's memory, or end the device. Vulkan
/// with `VK_EXT_memory_budget` and DX12 say it.
const BUDGET: wgpu::MemoryBudgetThresholds =
    wgpu::MemoryBudgetThresholds { for_resource_creation: Some(95), for_device_loss: None };

/// Drivers that the lane of this backend runs whole tests on, as their adapters' names begin.
const TESTED: [&str; 2] = ["llvmpipe", "swiftshader"];

/// APIs as users name them.
const APIS: [&str; 3] = ["vulkan", "metal", "dx12"];

async fn adapters(saves_power: bool) -> Vec<wgpu::Adapter> {
    let mut what = wgpu::InstanceDescriptor::new_without_display_handle();
    what.backends = wgpu::Backends::VULKAN
        | wgpu::Backends::METAL
        | wgpu::Backends::DX12
        | wgpu::Backends::BROWSER_WEBGPU;
    // Debug flags would load validation layers where they are installed; those of old distributions refuse
    // naga's output.
    what.flags = wgpu::InstanceFlags::empty();
    what.memory_budget_thresholds = BUDGET;
    let instance = wgpu::Instance::new(what);
    if IN_BROWSER {
        // Pages are shown one adapter, the browser's choice.
        let options = wgpu::RequestAdapterOptions {
            power_preference: match saves_power {
                true => wgpu::PowerPreference::LowPower,
                false => wgpu::PowerPreference::HighPerformance,
            },
            ..Default::default()
        };
        return instance.request_adapter(&options).await.into_iter().collect();
    }
    instance.enumerate_adapters(wgpu::Backends::all()).await
}

/// Whether futures of the device only end when the page's event loop turns.
pub(crate) const IN_BROWSER: bool = cfg!(target_arch = "wasm32");

/// Every adapter with what is listed of it, the strongest first.
pub(crate) async fn sorted(saves_power: bool) -> Vec<(Listed, wgpu::Adapter)> {
    let mut all: Vec<_> = adapters(saves_power).await.into_iter().map(|a| (Listed::of(&a), a)).collect();
    all.sort_by_key(|(l, _)| l.kind);
    all
}

/// Every adapter of this machine, the strongest first.
///
/// # Errors
/// `Internal` where listing needs an executor (the browser).
pub fn list() -> Result<Vec<Listed>> {
    let found = block_on(async { Ok(sorted(false).await) })?;
    Ok(found.into_iter().map(|(listed, _)| listed).collect())
}

/// The adapter that a configuration means: by its place, by a part of its name, or the strongest.
pub(crate) async fn choose(config: &WgpuConfig) -> Result<(wgpu::Adapter, Listed)> {
    let part = config.adapter.as_deref();
    let saves_power = Wanted::of(part).part == Some(AdapterKind::Integrated.name());
    let mut all = sorted(saves_power).await;
    let listed: Vec<Listed> = all.iter().map(|(l, _)| l.clone()).collect();
    // A browser shows one, which it chose by power and need not say what kind that is.
    let part = part.filter(|_| !(IN_BROWSER && saves_power));
    let at = match config.index {
        Some(index) => placed(&listed, index)?,
        None => pick(&listed, part, config.software)?,
    };
    let (listed, adapter) = all.swap_remove(at);
    Ok((adapter, listed))
}

/// The adapter at a place, where there is one.
fn placed(listed: &[Listed], index: usize) -> Result<usize> {
    match index < listed.len() {
        true => Ok(index),
        false => Err(Error::config("index of the adapter", index, format!("below {}", listed.len()))),
    }
}

/// What users write of an adapter: `vulkan`, `radeon`, `vulkan:radeon`, `radeon#1`.
#[derive(Debug, Default, PartialEq)]
struct Wanted<'a> {
    api: Option<&'static str>,
    /// A part of its name, or what kind of device it is.
    part: Option<&'a str>,
    /// Which of those that fit, from 0 on.
    place: usize,
}

impl<'a> Wanted<'a> {
    fn of(written: Option<&'a str>) -> Self {
        let api_of = |text: &str| APIS.into_iter().find(|api| text.eq_ignore_ascii_case(api));
        let Some(written) = written else { return Self::default() };
        let (written, place) = match written.rsplit_once('#') {
            Some((rest, place)) if !place.is_empty() && place.bytes().all(|b| b.is_ascii_digit()) => {
                (rest.trim_end(), place.parse().unwrap_or(usize::MAX))
            }
            _ => (written, 0),
        };
        let (first, rest) = written.split_once(':').unwrap_or((written, ""));
        let (api, part) = match api_of(first) {
            Some(api) => (Some(api), rest),
            None => (None, written),
        };
        Self { api, part: Some(part).filter(|part| !part.is_empty()), place }
    }

    fn fits(&self, l: &Listed) -> bool {
        self.api.is_none_or(|api| l.api.eq_ignore_ascii_case(api))
            && self.part.is_none_or(|p| {
                l.kind.name() == p.to_lowercase() || l.name.to_lowercase().contains(&p.to_lowercase())
            })
    }

    /// Why there is none.
    fn lacks(&self, listed: &[Listed], allowed: usize) -> String {
        let one = |l: &Listed| format!("{} ({}, {})", l.name, l.kind.name(), l.api);
        let here = listed.iter().map(one).collect::<Vec<_>>().join(", ");
        if listed.is_empty() && IN_BROWSER {
            return "the browser offers no WebGPU adapter".to_string();
        }
        if listed.is_empty() {
            return "no adapter was found: a Vulkan loader and driver are needed (Debian: libvulkan1 and, \
                    without a GPU, mesa-vulkan-drivers)"
                .to_string();
        }
        if allowed > 0 {
            return format!("#0 to #{} fit; found: {here}", allowed - 1);
        }
        if listed.iter().any(|l| self.fits(l)) {
            return format!("only software adapters, which must be named: {here}");
        }
        match (self.api, self.part) {
            (Some(api), None) => format!("no adapter is of {api}; found: {here}"),
            (Some(api), _) => format!("no adapter of {api} has this in its name; found: {here}"),
            _ => format!("no adapter has this in its name; found: {here}"),
        }
    }
}

fn pick(listed: &[Listed], written: Option<&str>, software: bool) -> Result<usize> {
    let wanted = Wanted::of(written);
    let allowed = |l: &Listed| software || wanted.part.is_some() || l.kind != AdapterKind::Software;
    let fit = || (0..listed.len()).filter(|i| wanted.fits(&listed[*i]) && allowed(&listed[*i]));
    fit().nth(wanted.place).ok_or_else(|| Error::Unavailable {
        backend: written.map_or("wgpu".to_string(), |p| format!("wgpu:{p}")),
        reason: wanted.lacks(listed, fit().count()),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn one(name: &str, kind: AdapterKind) -> Listed {
        let (api, driver) = ("Vulkan".into(), String::new());
        Listed { name: name.into(), kind, api, driver, f16: false, subgroups: None }
    }

    #[test]
    fn abilities_name_what_stands_in_for_them() {
        let plain = one("old", AdapterKind::Integrated);
        assert_eq!(plain.abilities(), "no f16: unpacked by hand, no subgroups: workgroup memory");
        let able = Listed { f16: true, subgroups: Some((8, 32)), ..plain };
        assert_eq!(able.abilities(), "f16, subgroups of 8 to 32");
    }

    #[test]
    fn a_gpu_that_two_apis_list_is_named_by_the_api() {
        let by = |api: &str, l: Listed| Listed { api: api.into(), ..l };
        let radeon = || one("Radeon", AdapterKind::Discrete);
        let all = [
            by("Vulkan", radeon()),
            by("Dx12", radeon()),
            by("Dx12", one("Arc", AdapterKind::Integrated)),
            by("Dx12", one("Basic Render Driver", AdapterKind::Software)),
            by("Vulkan", one("llvmpipe", AdapterKind::Software)),
        ];
        let at = |part| pick(&all, Some(part), false).unwrap();
        assert_eq!(["vulkan", "dx12", "DX12:radeon", "vulkan:"].map(at), [0, 1, 1, 0]);
        assert_eq!(["dx12:integrated", "dx12:basic", "Vulkan:LLVM", "arc"].map(at), [2, 3, 4, 2]);
        let why = |part| pick(&all, Some(part), true).unwrap_err().to_string();
        assert!(why("metal").contains("no adapter is of metal; found: Radeon (discrete, Vulkan)"));
        assert!(why("vulkan:arc").contains("no adapter of vulkan has this in its name"));
        // A name that only looks like one with an API.
        assert!(why("cuda:arc").contains("no adapter has this in its name"));
        // The API alone does not ask for a driver that runs on the CPU.
        let text = pick(&all[4..], Some("vulkan"), false).unwrap_err().to_string();
        assert!(text.contains("only software adapters"), "{text}");
        assert_eq!(pick(&all[4..], Some("vulkan"), true).unwrap(), 0);
        let wanted = Wanted { api: Some("vulkan"), part: Some("integrated"), place: 0 };
        assert_eq!(Wanted::of(Some("vulkan:integrated")), wanted);
    }

    #[test]
    fn of_equal_gpus_each_can_be_named() {
        let arc = || one("Arc", AdapterKind::Discrete);
        let all = [arc(), arc(), one("llvmpipe", AdapterKind::Software), one("odd#name", AdapterKind::Other)];
        let at = |part: &str| pick(&all, Some(part), false).unwrap();
        assert_eq!(["arc#0", "arc#1", "#1", "vulkan:arc#1", "vulkan#1"].map(at), [0, 1, 1, 1, 1]);
        assert_eq!([at("discrete#1"), at("#2"), at("odd#name")], [1, 3, 3]);
        let why = |part| pick(&all, Some(part), false).unwrap_err().to_string();
        assert!(why("arc#2").contains("#0 to #1 fit; found: Arc"), "{}", why("arc#2"));
        assert!(why("arc#99999999999999999999").contains("#0 to #1 fit"));
        assert!(why("radeon#1").contains("no adapter has this in its name"), "{}", why("radeon#1"));
    }

    #[test]
    fn a_missing_compiler_of_direct3d_is_seen_by_what_is_missing() {
        let dx12 = Listed { api: "Dx12".into(), ..one("RTX", AdapterKind::Discrete) };
        assert!(dx12.lacks_dxc() && dx12.abilities().contains("dxcompiler.dll"), "{}", dx12.abilities());
        for other in [
            Listed { subgroups: Some((32, 32)), ..dx12.clone() },
            Listed { f16: true, ..dx12.clone() },
            Listed { api: "Vulkan".into(), ..dx12.clone() },
        ] {
            assert!(!other.lacks_dxc() && !other.abilities().contains("DXC"), "{}", other.abilities());
        }
    }

    #[test]
    fn only_drivers_that_whole_tests_run_on_are_exempt_from_comparisons() {
        let by = |api: &str, name: &str, kind| Listed { api: api.into(), ..one(name, kind) }.is_tested();
        assert!(by("Vulkan", "llvmpipe (LLVM 15.0.6, 256 bits)", AdapterKind::Software));
        assert!(by("Vulkan", "SwiftShader Device (LLVM 16.0.0)", AdapterKind::Software));
        assert!(!by("Dx12", "Microsoft Basic Render Driver", AdapterKind::Software));
        assert!(!by("Vulkan", "Microsoft Direct3D12 (Basic Render Driver)", AdapterKind::Software));
        assert!(!by("Vulkan", "llvmpipe", AdapterKind::Discrete));
        assert!(!by("BrowserWebGpu", "SwiftShader Device", AdapterKind::Software));
    }

    #[test]
    fn software_is_taken_only_when_asked_for() {
        let all = [one("Arc", AdapterKind::Integrated), one("llvmpipe (LLVM 15)", AdapterKind::Software)];
        assert_eq!(pick(&all, None, false).unwrap(), 0);
        assert_eq!(pick(&all, Some("LLVMpipe"), false).unwrap(), 1);
        assert_eq!(pick(&all[1..], None, true).unwrap(), 0);
        let three = [one("RTX", AdapterKind::Discrete), all[0].clone(), all[1].clone()];
        assert_eq!(
            ["integrated", "discrete", "software"].map(|p| pick(&three, Some(p), false).unwrap()),
            [1, 0, 2]
        );
        let refused = pick(&all[1..], None, false).unwrap_err().to_string();
        assert!(refused.contains("llvmpipe") && refused.contains("software"), "{refused}");
        let unknown = pick(&all, Some("radeon"), true).unwrap_err().to_string();
        assert!(unknown.contains("wgpu:radeon") && unknown.contains("Arc"), "{unknown}");
        assert!(pick(&[], None, true).unwrap_err().to_string().contains("mesa-vulkan-drivers"));
    }

    #[test]
    fn a_place_means_one_adapter_of_several_with_one_name() {
        let all = [one("RTX", AdapterKind::Discrete), one("RTX", AdapterKind::Discrete)];
        assert_eq!([0, 1].map(|index| placed(&all, index).unwrap()), [0, 1]);
        let refused = placed(&all, 2).unwrap_err().to_string();
        assert!(refused.contains('2') && refused.contains("below 2"), "{refused}");
    }
}
