//! Names of backends: what users write, and whether this build can run it.

use engraft_core::backend::Exchange;
use engraft_core::numerics::Mode;
use engraft_core::{Error, Result};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const CPU: bool = cfg!(feature = "cpu");
const CUDA: bool = cfg!(feature = "cuda");
const WGPU: bool = cfg!(feature = "wgpu");

/// The name by which NCCL is looked for: in the process, in the system's folders, in Python's wheels.
pub const NCCL: &str = "libnccl.so.2";

/// A backend as users name it.
///
/// ```
/// use engraft::backends::BackendName;
///
/// let name: BackendName = "cuda:1".parse()?;
/// assert_eq!(name.to_string(), "cuda:1");
/// assert!("tpu".parse::<BackendName>().is_err());
/// # Ok::<(), engraft::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendName {
    /// `cpu`.
    Cpu,
    /// `cuda` or `cuda:1`.
    Cuda(CudaOptions),
    /// `wgpu`, or `wgpu:` and a part of an adapter's name, an API, or both (`wgpu:vulkan:radeon`);
    /// `#1` behind it is the second of those that fit.
    Wgpu(WgpuOptions),
}

/// Which CUDA device runs a model, and how.
///
/// ```
/// use engraft::Mode;
/// use engraft::backends::{BackendName, CudaOptions};
///
/// let second = CudaOptions::new().index(1).mode(Mode::Reference).kernel_cache("cache/kernels");
/// assert_eq!(BackendName::from(second).to_string(), "cuda:1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// From 0.
    pub index: u16,
    /// Another driver library than the system's.
    pub driver: Option<PathBuf>,
    /// Folder that keeps compiled kernels from start to start; none: every start compiles. By default
    /// `engraft/kernels` in the user's cache folder, where there is one.
    pub kernel_cache: Option<PathBuf>,
    /// What is promised about bits.
    pub mode: Mode,
    /// NVIDIA's cuBLASLt for matmuls of many rows in mode `Fast`.
    pub cublaslt: Option<PathBuf>,
    /// NVIDIA's NCCL for exchanges of ranks, each on a device of its own: a path with a folder is that file,
    /// a bare name such as [`NCCL`] is looked for.
    pub nccl: Option<PathBuf>,
    /// What ranks exchange by without NCCL.
    pub exchange: Exchange,
    /// Let no kernel begin before the one before it has ended (no dependent launch).
    pub in_order: bool,
    /// Wait for every kernel, so that a fault names the one that caused it; steps are then not captured.
    pub blocking: bool,
    /// How long one wait for the device may take before it counts as lost; none: two minutes.
    pub wait_limit: Option<Duration>,
}

impl Default for CudaOptions {
    /// The first device, by the system's driver, kernels kept in the user's cache folder.
    fn default() -> Self {
        Self {
            index: 0,
            driver: None,
            kernel_cache: super::cache::kernel_cache(),
            mode: Mode::default(),
            cublaslt: None,
            nccl: None,
            exchange: Exchange::Auto,
            in_order: false,
            blocking: false,
            wait_limit: None,
        }
    }
}

impl CudaOptions {
    /// The first device, by the system's driver, kernels kept in the user's cache folder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes another device than the first; from 0.
    pub fn index(mut self, index: u16) -> Self {
        self.index = index;
        self
    }

    /// Takes another driver library than the system's.
    pub fn driver(mut self, library: impl Into<PathBuf>) -> Self {
        self.driver = Some(library.into());
        self
    }

    /// Keeps compiled kernels in this folder from start to start.
    pub fn kernel_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.kernel_cache = Some(folder.into());
        self
    }

    /// Keeps no compiled kernels: every start compiles.
    pub fn no_kernel_cache(mut self) -> Self {
        self.kernel_cache = None;
        self
    }

    /// What is promised about bits.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Takes matmuls of many rows from this cuBLASLt library in mode `Fast`.
    pub fn cublaslt(mut self, library: impl Into<PathBuf>) -> Self {
        self.cublaslt = Some(library.into());
        self
    }

    /// Has ranks exchange by this NCCL, each on a device of its own.
    pub fn nccl(mut self, library: impl Into<PathBuf>) -> Self {
        self.nccl = Some(library.into());
        self
    }

    /// What ranks exchange by without NCCL.
    pub fn exchange(mut self, by: Exchange) -> Self {
        self.exchange = by;
        self
    }

    /// Lets no kernel begin before the one before it has ended.
    pub fn in_order(mut self, on: bool) -> Self {
        self.in_order = on;
        self
    }

    /// Waits for every kernel, so that a fault names the one that caused it.
    pub fn blocking(mut self, on: bool) -> Self {
        self.blocking = on;
        self
    }

    /// How long one wait for the device may take before it counts as lost.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = Some(limit);
        self
    }
}

impl std::fmt::Display for CudaOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.index {
            0 => f.write_str("cuda"),
            index => write!(f, "cuda:{index}"),
        }
    }
}

impl From<CudaOptions> for BackendName {
    fn from(name: CudaOptions) -> Self {
        BackendName::Cuda(name)
    }
}

/// Which wgpu adapter runs a model, and how.
///
/// ```
/// use engraft::backends::{BackendName, WgpuOptions};
///
/// let radeon = WgpuOptions::new().adapter("radeon");
/// assert_eq!(BackendName::from(radeon).to_string(), "wgpu:radeon");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WgpuOptions {
    /// A part of its name, behind the name of an API and a colon where that matters (`vulkan`, `metal`,
    /// `dx12`; also alone); none: the strongest one that is hardware.
    pub adapter: Option<String>,
    /// Folder that keeps compiled pipelines from start to start, where the API lets a program have them
    /// (Vulkan); none: nothing is kept. By default `engraft/kernels` in the user's cache folder, where there
    /// is one.
    pub kernel_cache: Option<PathBuf>,
    /// What is promised about bits.
    pub mode: Mode,
}

impl Default for WgpuOptions {
    /// The strongest adapter that is hardware, pipelines kept in the user's cache folder.
    fn default() -> Self {
        Self { adapter: None, kernel_cache: super::cache::kernel_cache(), mode: Mode::default() }
    }
}

impl WgpuOptions {
    /// The strongest adapter that is hardware, pipelines kept in the user's cache folder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the adapter with this part in its name, of the API before a colon if there is one.
    pub fn adapter(mut self, part: impl Into<String>) -> Self {
        self.adapter = Some(part.into());
        self
    }

    /// Keeps compiled pipelines in this folder from start to start.
    pub fn kernel_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.kernel_cache = Some(folder.into());
        self
    }

    /// Keeps no compiled pipelines.
    pub fn no_kernel_cache(mut self) -> Self {
        self.kernel_cache = None;
        self
    }

    /// What is promised about bits.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }
}

impl std::fmt::Display for WgpuOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.adapter {
            None => f.write_str("wgpu"),
            Some(part) => write!(f, "wgpu:{part}"),
        }
    }
}

impl From<WgpuOptions> for BackendName {
    fn from(name: WgpuOptions) -> Self {
        BackendName::Wgpu(name)
    }
}

/// The names that exist, for messages.
pub const KNOWN: &str = "cpu, cuda, cuda:<index>, wgpu, wgpu:<part of an adapter's name>, \
                         wgpu:<vulkan, metal or dx12>[:<part of an adapter's name>]; #<index> behind \
                         it for one of several adapters that fit";

impl FromStr for BackendName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, which) = text.split_once(':').map_or((text, None), |(kind, which)| (kind, Some(which)));
        match (kind, which) {
            ("cpu", None) => Ok(BackendName::Cpu),
            ("cuda", None) => Ok(BackendName::Cuda(CudaOptions::default())),
            ("cuda", Some(n)) => match n.parse() {
                Ok(index) => Ok(BackendName::Cuda(CudaOptions { index, ..CudaOptions::default() })),
                Err(_) => Err(Error::config("backend", format!("\"{text}\""), KNOWN)),
            },
            ("wgpu", None) => Ok(WgpuOptions::default().into()),
            ("wgpu", Some(part)) if !part.is_empty() => {
                Ok(WgpuOptions { adapter: Some(part.into()), ..WgpuOptions::default() }.into())
            }
            _ => Err(Error::config("backend", format!("\"{text}\""), KNOWN)),
        }
    }
}

impl std::fmt::Display for BackendName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BackendName::Cpu => f.write_str("cpu"),
            BackendName::Cuda(name) => name.fmt(f),
            BackendName::Wgpu(name) => name.fmt(f),
        }
    }
}

impl BackendName {
    /// Whether activations take the element type of the checkpoint's weights unless the user names one: on
    /// devices that multiply 16-bit numbers faster, where bits need not be the CPU's.
    pub fn takes_stored_dtype(&self) -> bool {
        match self {
            BackendName::Cpu => false,
            BackendName::Cuda(name) => name.mode != Mode::Reference,
            BackendName::Wgpu(name) => name.mode != Mode::Reference,
        }
    }

    /// Whether this build can run it.
    pub fn compiled_in(&self) -> bool {
        match self {
            BackendName::Cpu => CPU,
            BackendName::Cuda(_) => CUDA,
            BackendName::Wgpu(_) => WGPU,
        }
    }
}

/// The error for a backend that this build was made without.
#[cfg(not(all(feature = "cpu", feature = "cuda", feature = "wgpu")))]
pub(super) fn absent(name: &BackendName) -> Error {
    let all = [("cpu", CPU), ("cuda", CUDA), ("wgpu", WGPU)];
    let have: Vec<&str> = all.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
    let have = if have.is_empty() { "nothing".into() } else { have.join(", ") };
    let kind = name.to_string();
    let kind = kind.split(':').next().unwrap_or_default();
    Error::config(
        "backend",
        format!("\"{name}\""),
        format!("{have}; this build has no {kind} backend (cargo feature `{kind}`: --features {kind})"),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_kept_in_the_users_cache_folder_by_default() {
        let Ok(BackendName::Cuda(cuda)) = "cuda:1".parse() else { panic!("cuda:1 is no CUDA device") };
        assert_eq!(cuda.kernel_cache, CudaOptions::default().kernel_cache);
        let home = std::env::var_os("HOME").is_some_and(|home| !home.is_empty());
        assert_eq!(WgpuOptions::default().kernel_cache, cuda.kernel_cache);
        assert_eq!(WgpuOptions::new().no_kernel_cache().kernel_cache, None);
        let compiles = CUDA || WGPU;
        match (compiles && home, cuda.kernel_cache) {
            (true, folder) => assert!(folder.unwrap().ends_with("engraft/kernels")),
            (false, folder) if !compiles => assert_eq!(folder, None),
            _ => {}
        }
    }

    #[test]
    fn names() {
        assert_eq!("cpu".parse::<BackendName>().unwrap(), BackendName::Cpu);
        assert_eq!("cuda:1".parse::<BackendName>().unwrap().to_string(), "cuda:1");
        let adapter = Some("llvmpipe".to_string());
        let named = BackendName::from(WgpuOptions { adapter, ..WgpuOptions::default() });
        assert_eq!("wgpu:llvmpipe".parse::<BackendName>().unwrap(), named);
        assert_eq!(named.to_string(), "wgpu:llvmpipe");
        let of_api: BackendName = "wgpu:dx12:radeon".parse().unwrap();
        assert_eq!(of_api, WgpuOptions::default().adapter("dx12:radeon").into());
        assert_eq!(of_api.to_string(), "wgpu:dx12:radeon");
        for bad in ["", "CPU", "cpu:0", "cuda:", "cuda:x", "wgpu:", "tpu"] {
            let text = bad.parse::<BackendName>().unwrap_err().to_string();
            assert!(text.contains("wgpu") && text.contains(bad), "{text}");
        }
    }
}
