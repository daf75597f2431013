//! Flags that say which model runs, where and how, and what they become in the library.

use super::super::failure::Failure;
use super::super::output::{Loading, note};
use super::super::values::{backend, degree, dtype, kv_format, positive, threads, weight_format};
#[cfg(unix)]
use super::group::GroupArgs;
use clap::Args as ClapArgs;
use engraft::backends::{BackendName, NCCL};
use engraft::engraft_core::backend::Exchange;
use engraft::engraft_core::checkpoint::Access;
use engraft::engraft_core::mem::Groups;
use engraft::engraft_core::numerics::Mode;
use engraft::engraft_core::policy::TablePolicy;
use engraft::{
    DeepSpeedConfig, DeepSpeedConfigBuilder, Error, Float, KvFormat, ModelSource, Options, Registry,
    TextGenerator, WeightFormat,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Which model, where and how.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Folder of a checkpoint, .gguf file, or a model of the Hugging Face hub: org/name, org/name@revision,
    /// hf:org/name, or its page's address (found in the shared cache; downloaded by builds with the cargo
    /// feature `hub`); default: the demo model
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// Take element type, sizes, quantization, policy and checkpoint from a DeepSpeed configuration, .json or
    /// .toml (no pipe); it stands in the place of --dtype and --quantize
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dtype", "quantize"])]
    pub config: Option<PathBuf>,
    /// Read tensors from their files instead of mapping them; where another program may truncate a file
    /// while it is in use
    #[arg(long)]
    pub no_mmap: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Where and how to compute.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Device and engine")]
pub struct DeviceArgs {
    /// Backend: cpu, cuda[:index], wgpu[:vulkan|metal|dx12][:part of an adapter's name]
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = backend)]
    pub backend: BackendName,
    /// Take the driver from this file instead of the system's (a software driver, say)
    #[arg(help_heading = "CUDA", long, value_name = "PATH")]
    pub cuda_driver: Option<PathBuf>,
    /// cuda, wgpu on Vulkan: keep compiled kernels in this folder, `off` for none; default: engraft/kernels
    /// in the user's cache folder
    #[arg(long, value_name = "FOLDER")]
    pub kernel_cache: Option<PathBuf>,
    /// cuda, wgpu: what is promised about bits: reference (the CPU's), invariant (the same whatever the
    /// batch; the default), fast
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// Take matmuls of many rows from NVIDIA's cuBLASLt, the file libcublasLt.so.12 or .13; goes with
    /// --mode fast
    #[arg(help_heading = "CUDA", long, value_name = "PATH")]
    pub cublaslt: Option<PathBuf>,
    /// Exchange between ranks by NVIDIA's NCCL, each on a device of its own, from the named one on: the file
    /// libnccl.so.2, or `auto`: where it is found; default: ENGRAFT_NCCL, else as --exchange says
    #[arg(help_heading = "CUDA", long, value_name = "PATH")]
    pub nccl: Option<PathBuf>,
    /// What ranks exchange by without NCCL: peers (kernels over memory that all reach; ranks that are
    /// threads, each on a device of its own, from the named one on), host, auto (peers where that can be; the
    /// default)
    #[arg(help_heading = "CUDA", long, value_name = "WAY", conflicts_with = "nccl")]
    pub exchange: Option<Exchange>,
    /// Element type of activations: f32, f16, bf16; default: on GPUs the checkpoint's own where its weights
    /// have 16 bits (not with --mode reference), else f32
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    pub dtype: Option<Float>,
    /// Element type of keys and values: f32, f16, bf16, int8, fp8 (codes, with a scale for each head of each
    /// position); default: as --dtype where that is given, else the checkpoint's own where
    /// its weights have 16 bits, else f32
    #[arg(long, value_name = "TYPE", value_parser = kv_format)]
    pub kv_dtype: Option<KvFormat>,
    /// Quantize weights while loading: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl, q2_k, q3_k,
    /// q4_k, q5_k, q6_k, iq4_xs (from q2_k on in blocks of 256 values; matrices of other columns take blocks
    /// of 32), w8a8 (activations as well), mxfp4, int8, int8a, int4, int4a, fp8, fp8-e5m2, fp6, fp4, nf4
    /// (from int8 on also with the values of a group, int8:64; int4 and int4a alone are int4a:32); default:
    /// as stored
    #[arg(long, value_name = "FORMAT", value_parser = weight_format)]
    pub quantize: Option<WeightFormat>,
    /// Quantize the table of tokens, too, and with it a head that shares it: a small model reads less for a
    /// token, and loses some accuracy
    #[arg(long, requires = "quantize")]
    pub quantize_embeddings: bool,
    /// Threads of the CPU backend; 0 is one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = threads)]
    pub threads: usize,
    /// Let no kernel begin before the one before it has ended (no programmatic dependent launch)
    #[arg(help_heading = "CUDA", long)]
    pub in_order: bool,
    /// Wait for every kernel, so that a fault names the one that caused it; slow
    #[arg(help_heading = "CUDA", long)]
    pub blocking: bool,
    /// Seconds that one wait may take before the device counts as lost; default: 120
    #[arg(help_heading = "CUDA", long, value_name = "SECONDS", value_parser = positive)]
    pub wait_limit: Option<usize>,
    /// Ranks that share the model, a thread each unless --processes is given: 1, 2, 4 or 8; the result does
    /// not depend on it (cuda with 16-bit activations: in --mode reference)
    #[arg(long, alias = "tensor-parallel-size", value_name = "N", value_parser = degree)]
    pub tp: Option<usize>,
    #[cfg(unix)]
    #[command(flatten)]
    pub group: GroupArgs,
    /// Groups of ranks that whole experts are shared among: as many as --tp (the default), 1: every rank has
    /// a part of each expert, or between: a group's ranks have parts of its experts
    #[arg(long, value_name = "N", value_parser = degree)]
    pub ep: Option<usize>,
    /// Run every decode step, or step of a picture, anew instead of capturing and replaying it
    #[arg(long)]
    pub no_graphs: bool,
    /// Compute every prompt as a whole instead of taking the keys and values of a beginning that was computed
    /// before
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// MiB of host memory for keys and values that the cache has no room for
    #[arg(long, value_name = "MIB", value_parser = positive, conflicts_with = "no_prefix_cache")]
    pub host_cache: Option<usize>,
    /// Milliseconds that a step may take while texts are generated: prompts of others are read in shorter
    /// chunks where it would take longer; default: 60 on the CPU, any on GPUs
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub max_step_ms: Option<usize>,
    /// Steps that are launched before the one before is collected; default: 1 on GPUs, 0 on the CPU
    #[arg(long, value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1))]
    pub steps_ahead: Option<u8>,
    /// Tokens of one step: the budget that prompts are split by; default: 512
    #[arg(long, visible_alias = "step-tokens", alias = "max-num-batched-tokens", value_name = "N", value_parser = positive)]
    pub max_step_tokens: Option<usize>,
    /// Longest sequence, prompt and continuation, where the model can; default: 8192, of bench what it runs
    #[arg(long, alias = "max-model-len", value_name = "N", value_parser = positive)]
    pub max_context: Option<usize>,
}

impl ModelArgs {
    /// Whether the embedded model is meant.
    pub fn is_demo(&self) -> bool {
        self.model.is_none() && self.config.is_none()
    }

    /// The id of a model of the hub, whose files' own folder is named by a hash.
    pub fn hub_id(&self) -> Option<String> {
        match ModelSource::parse(self.model.as_deref()?) {
            ModelSource::Hub(id) => Some(id),
            _ => None,
        }
    }

    /// How files are read.
    pub fn access(&self) -> Access {
        if self.no_mmap { Access::Read } else { Access::default() }
    }

    /// The model, `path` or that of the flags, and how to open it: for one sequence at a time, with the
    /// policies that were named.
    pub fn read(&self, path: Option<&str>) -> Result<(ModelSource, Options), Failure> {
        let mut options = self.device.options()?.registry(self.policies.registry()?);
        let mut source = path.or(self.model.as_deref()).map(named_text).transpose()?;
        if let Some(file) = &self.config {
            (options, source) = self.configured(file, options, source)?;
        }
        let mut source = source.unwrap_or(ModelSource::Demo);
        if self.no_mmap {
            source = source.open_by(Access::Read)?.into();
        }
        let options = self.device.sized(options.max_seqs(1));
        #[cfg(unix)]
        let options = super::super::group::placed(&self.device.group, self.device.way_of_ranks(), options)?;
        Ok((source, options))
    }

    /// What a DeepSpeed configuration makes of the options and of the model that was named.
    fn configured(
        &self,
        file: &Path,
        options: Options,
        source: Option<ModelSource>,
    ) -> Result<(Options, Option<ModelSource>), Failure> {
        let read = DeepSpeedConfigBuilder::new().file(file).and_then(DeepSpeedConfigBuilder::check);
        let (config, warnings) = read.map_err(|e| in_file(file, e))?;
        warnings.iter().for_each(|warning| note(&format!("warning: {warning}")));
        self.warn_of_configuration(file, &config);
        let options = options.deepspeed(&config).map_err(|e| in_file(file, e))?;
        let source = match (source, config.checkpoint.is_some()) {
            (Some(_), true) => {
                let both = "a model is named on the command line and by `checkpoint` in";
                return Err(Failure::Usage(format!("{both} {}: give one", file.display())));
            }
            (None, true) if self.no_mmap => {
                let both = "--no-mmap does not go with the `checkpoint` of a configuration:";
                return Err(Failure::Usage(format!("{both} name the model on the command line")));
            }
            (None, true) => ModelSource::configured(&config)
                .map_err(|e| Error::format(file.display().to_string(), format!("`checkpoint`: {e}")))?,
            (source, false) => source,
        };
        Ok((options, source))
    }

    /// Says what of a configuration is slow, and what of it counts for nothing because of a flag.
    fn warn_of_configuration(&self, file: &Path, config: &DeepSpeedConfig) {
        let file = file.display();
        match (config.kernel_inject, &config.injection_policy) {
            (true, _) => {}
            (false, None) => note(&format!(
                "warning: `replace_with_kernel_inject` is not set in {file}: no fused kernel is used"
            )),
            (false, Some(_)) => note(&format!(
                "warning: `injection_policy` in {file} runs without fused kernels; \
                 `replace_with_kernel_inject` in its place uses them for models of a known family"
            )),
        }
        let over = |flag: &str, given: Option<usize>, setting: &str, value: usize| {
            if let Some(given) = given.filter(|given| *given != value) {
                note(&format!("warning: {flag} {given} counts before `{setting}` {value} of {file}"));
            }
        };
        if config.tp_size > 1 {
            over("--tp", self.device.tp, "tp_size", config.tp_size);
        }
        if config.own_context {
            over("--max-context", self.device.max_context, "max_out_tokens", config.max_out_tokens);
        }
    }

    /// A flag that was given and says nothing to a pipeline that makes pictures.
    #[cfg(all(feature = "image", feature = "serve"))]
    pub fn of_texts(&self) -> Option<&'static str> {
        let (policies, device) = (&self.policies, &self.device);
        let flags = [
            ("--config", self.config.is_some()),
            ("--policy", !policies.policy.is_empty()),
            ("--accept-unknown", !policies.accept_unknown.is_empty()),
            ("--ignore-tensors", !policies.ignore_tensors.is_empty()),
            ("--kv-dtype", device.kv_dtype.is_some()),
            ("--quantize", device.quantize.is_some()),
            ("--nccl", device.nccl.is_some()),
            ("--exchange", device.exchange.is_some()),
            ("--tp", device.tp.is_some()),
            ("--ep", device.ep.is_some()),
            ("--no-prefix-cache", device.no_prefix_cache),
            ("--host-cache", device.host_cache.is_some()),
            ("--max-step-ms", device.max_step_ms.is_some()),
            ("--steps-ahead", device.steps_ahead.is_some()),
            ("--max-step-tokens", device.max_step_tokens.is_some()),
            ("--max-context", device.max_context.is_some()),
        ];
        let given = flags.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag);
        #[cfg(unix)]
        let given = given.or(device.group.given());
        given
    }

    /// Loads the model for one sequence at a time, with a progress bar.
    pub fn open(&self) -> Result<TextGenerator, Failure> {
        let mut loading = Loading::default();
        let (source, options) = self.read(None)?;
        Ok(options.progress(move |done, total| loading.show(done, total)).open(source)?)
    }
}

impl DeviceArgs {
    /// The backend, with the driver and the folder that were named for it.
    pub fn backend(&self) -> Result<BackendName, Failure> {
        let of_cuda = [
            ("--cuda-driver", self.cuda_driver.is_some()),
            ("--cublaslt", self.cublaslt.is_some()),
            ("--nccl", self.nccl.is_some()),
            ("--exchange", self.exchange.is_some()),
            ("--in-order", self.in_order),
            ("--blocking", self.blocking),
            ("--wait-limit", self.wait_limit.is_some()),
        ];
        self.regular_libraries()?;
        let given = of_cuda.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
        let mut name = self.backend.clone();
        let kept = self.kernel_cache.as_ref();
        let kept = kept.map(|folder| (folder.as_os_str() != "off").then(|| folder.clone()));
        match (&mut name, given) {
            (BackendName::Cuda(cuda), _) => {
                cuda.driver.clone_from(&self.cuda_driver);
                if let Some(folder) = kept {
                    cuda.kernel_cache = folder;
                }
                cuda.mode = self.mode.unwrap_or_default();
                cuda.cublaslt.clone_from(&self.cublaslt);
                cuda.nccl = self.nccl();
                cuda.exchange = self.exchange.unwrap_or_default();
                (cuda.in_order, cuda.blocking) = (self.in_order, self.blocking);
                cuda.wait_limit = self.wait_limit.map(|seconds| Duration::from_secs(seconds as u64));
            }
            (_, Some(flag)) => return Err(Failure::Usage(format!("{flag} goes with --backend cuda"))),
            (BackendName::Wgpu(wgpu), None) => {
                wgpu.mode = self.mode.unwrap_or_default();
                if let Some(folder) = kept {
                    wgpu.kernel_cache = folder;
                }
            }
            (_, None) if kept.is_some() => {
                return Err(Failure::Usage("--kernel-cache goes with --backend cuda or wgpu".into()));
            }
            (_, None) if self.mode.is_some() => {
                return Err(Failure::Usage("--mode goes with --backend cuda or wgpu".into()));
            }
            (_, None) => {}
        }
        Ok(name)
    }

    /// A flag that was given and says nothing to `bench`.
    pub fn not_of_bench(&self) -> Option<&'static str> {
        let flags =
            [("--host-cache", self.host_cache.is_some()), ("--max-step-ms", self.max_step_ms.is_some())];
        flags.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// The flag that says what ranks exchange by, where one was given.
    #[cfg(unix)]
    fn way_of_ranks(&self) -> Option<&'static str> {
        match (&self.nccl, self.exchange) {
            (Some(_), _) => Some("--nccl"),
            (None, Some(_)) => Some("--exchange"),
            (None, None) => None,
        }
    }

    /// NCCL where it was asked for, by the flag or the environment: what launchers pass on to all ranks.
    pub fn nccl(&self) -> Option<PathBuf> {
        let named = std::env::var_os("ENGRAFT_NCCL").filter(|name| !name.is_empty()).map(PathBuf::from);
        let path = self.nccl.clone().or(named)?;
        Some(if path.as_os_str() == "auto" { NCCL.into() } else { path })
    }

    /// Refuses libraries that are no regular files: to load a pipe waits for a writer.
    pub fn regular_libraries(&self) -> Result<(), Failure> {
        let named =
            [("--cuda-driver", &self.cuda_driver), ("--cublaslt", &self.cublaslt), ("--nccl", &self.nccl)];
        for (flag, library) in named {
            if let Some(path) = library.as_deref()
                && path.metadata().is_ok_and(|meta| !meta.is_file())
            {
                return Err(Failure::Usage(format!("{flag} {}: is not a regular file", path.display())));
            }
        }
        Ok(())
    }

    pub fn options(&self) -> Result<Options, Failure> {
        warn_of_coarse_groups(self.quantize);
        let mut options = Options::new().backend(self.backend()?);
        if let Some(dtype) = self.dtype {
            options = options.dtype(dtype);
        }
        let options = options.quantize(self.quantize).quantize_embeddings(self.quantize_embeddings);
        Ok(self.sized(options.threads(self.threads)))
    }

    /// The sizes and switches of the engine that were given; a configuration's others stay.
    fn sized(&self, mut options: Options) -> Options {
        if let Some(format) = self.kv_dtype {
            options = options.kv_dtype(format);
        }
        if let Some(steps) = self.steps_ahead {
            options = options.steps_ahead(steps.into());
        }
        if let Some(ranks) = self.tp {
            options = options.tp(ranks);
        }
        if let Some(ranks) = self.ep {
            options = options.ep(ranks);
        }
        if let Some(tokens) = self.max_step_tokens {
            options = options.max_step_tokens(tokens);
        }
        if let Some(tokens) = self.max_context {
            options = options.max_context(tokens);
        }
        if let Some(mib) = self.host_cache {
            options = options.host_cache(mib.saturating_mul(1 << 20));
        }
        if let Some(ms) = self.max_step_ms {
            options = options.max_step_ms(ms as f64);
        }
        if self.no_prefix_cache {
            options = options.prefix_cache(false);
        }
        if self.no_graphs { options.graphs(false) } else { options }
    }
}

/// Says that four bits in long groups cost accuracy.
pub fn warn_of_coarse_groups(format: Option<WeightFormat>) {
    if let Some(WeightFormat::Group(groups)) = format
        && groups.is_coarse()
    {
        note(&format!("warning: {groups} is coarse and costs accuracy; {} is the default", Groups::FINE));
    }
}

/// What is wrong with a setting, with the name of the file that it is in.
fn in_file(file: &Path, error: Error) -> Error {
    match error {
        Error::Config { .. } => Error::format(file.display().to_string(), error.to_string()),
        other => other,
    }
}

/// How a model's architecture is recognised.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct PolicyArgs {
    /// Describe an architecture that is not built in: a policy table, .json or .toml, no pipe (can be given
    /// several times)
    #[arg(long, value_name = "FILE")]
    pub policy: Vec<PathBuf>,
    /// Run a model of no known family although its config.json has this field, which the automatic policy
    /// does not read (can be given several times); what the field says is not computed
    #[arg(long, value_name = "FIELD")]
    pub accept_unknown: Vec<String>,
    /// Run a model although nothing takes the tensors whose names match this: `*` stands for any letters (can
    /// be given several times); DeepSpeed's load_module_strict=False is '*'
    #[arg(long, value_name = "PATTERN")]
    pub ignore_tensors: Vec<String>,
}

impl PolicyArgs {
    /// The built-in policies and those of the tables.
    pub fn registry(&self) -> Result<Registry, Failure> {
        let mut registry = Registry::default();
        for table in &self.policy {
            registry.register(Arc::new(TablePolicy::read(table)?));
        }
        registry.accept_unknown(self.accept_unknown.iter().cloned());
        registry.ignore_tensors(self.ignore_tensors.iter().cloned());
        Ok(registry)
    }
}

/// The same of a model of texts.
///
/// # Errors
/// `Usage` for a pipeline of diffusers, and those of [`named`].
pub fn named_text(text: &str) -> Result<ModelSource, Failure> {
    let source = named(text)?;
    if let ModelSource::Path(folder) = &source
        && folder.join("model_index.json").is_file()
        && !folder.join("config.json").exists()
    {
        let what = "is a pipeline that makes pictures; engraft image -m and engraft serve take it";
        return Err(Failure::Usage(format!("{text} {what}")));
    }
    Ok(source)
}

/// A model as users name it; what is on the hub alone is downloaded, with a progress bar.
pub fn named(text: &str) -> Result<ModelSource, Failure> {
    let mut loading = Loading::of("downloading");
    Ok(ModelSource::parse(text).fetch(move |done, total| loading.show(done, total))?)
}
