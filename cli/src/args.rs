//! All flags, and how they become options of the library.

use super::output::{Loading, note};
use clap::{Args as ClapArgs, Parser, Subcommand};
use engraft::backends::BackendName;
use engraft::core::checkpoint::Access;
use engraft::core::mem::GroupBits;
use engraft::core::numerics::Mode;
use engraft::core::policy::TablePolicy;
use engraft::{
    DeepSpeedConfigBuilder, Float, GenerateOptions, ModelSource, Options, Pooling, Registry, TextGenerator,
    WeightFormat,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::failure::Failure;
use super::values::{
    backend, degree, dtype, min_p, positive, repetition_penalty, seed, stop, temperature, threads, top_p,
    weight_format,
};

/// Values of a group of four-bit weights that keep the accuracy of the stored ones in most models.
const FINE_GROUP: u32 = 32;

/// What stands below the list of commands.
const AFTER: &str = "Exit status: 0 done, 1 failed, 2 wrong usage. Results go to standard output, all else \
    to standard error.\nENGRAFT_LOG=debug logs more, NO_COLOR=1 takes colours off.";

/// Run pretrained transformers. Without --model, a small embedded demo model answers.
#[derive(Debug, Parser)]
#[command(name = "engraft", version, propagate_version = true, max_term_width = 100, after_help = AFTER)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a prompt; the continuation goes to standard output as it is sampled
    Generate(GenerateArgs),
    /// Talk with a model
    Chat(ChatArgs),
    /// Show how a model runs: per slot the op, the kernel or why there is none, format and bytes
    Plan(PlanArgs),
    /// Measure speed and memory, against what the machine can do
    Bench(BenchArgs),
    /// Turn texts into vectors: JSON lines in, JSON lines out
    Embed(EmbedArgs),
    /// Log-probabilities of texts: JSON lines in, JSON lines out
    Score(ScoreArgs),
    /// Label texts by a sequence classifier: JSON lines in, JSON lines out
    Classify(ClassifyArgs),
    /// Find answers to questions in texts: JSON lines in, JSON lines out
    Answer(AnswerArgs),
    /// Show what this build and this machine have, and what to install
    Doctor(DoctorArgs),
    /// Write a model as it will be loaded: sharded for tensor-parallel ranks, quantized, or merged
    Convert(ConvertArgs),
    /// Print a script that completes commands and flags in a shell
    Completions(CompletionsArgs),
    /// Write a checkpoint of random weights (used by bench, in a process of its own)
    #[command(hide = true)]
    WriteShape(WriteShapeArgs),
}

/// Which model, where and how.
#[derive(Debug, ClapArgs)]
pub struct ModelArgs {
    /// Folder of a checkpoint, .gguf file, or a model of the Hugging Face hub: org/name, org/name@revision,
    /// hf:org/name, or its page's address (found in the shared cache; downloaded by builds with the cargo
    /// feature `hub`); default: the demo model
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// Take element type, sizes, quantization, policy and checkpoint from a DeepSpeed configuration, .json or
    /// .toml; it stands in the place of --dtype and --quantize
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
#[derive(Debug, ClapArgs)]
pub struct DeviceArgs {
    /// Backend: cpu, cuda[:index], wgpu[:part of an adapter's name]
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = backend)]
    pub backend: BackendName,
    /// cuda: take the driver from this file instead of the system's (a software driver, say)
    #[arg(long, value_name = "PATH")]
    pub cuda_driver: Option<PathBuf>,
    /// cuda: keep compiled kernels in this folder, `off` for none; default: engraft/kernels in the user's
    /// cache folder
    #[arg(long, value_name = "FOLDER")]
    pub kernel_cache: Option<PathBuf>,
    /// cuda, wgpu: what is promised about bits: reference (the CPU's), invariant (the same whatever the
    /// batch; the default), fast
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// cuda: take matmuls of many rows from NVIDIA's cuBLASLt, the file libcublasLt.so.12 or .13; goes with
    /// --mode fast
    #[arg(long, value_name = "PATH")]
    pub cublaslt: Option<PathBuf>,
    /// Element type of activations and KV cache: f32, f16, bf16; default: on GPUs the checkpoint's own where
    /// its weights have 16 bits (not with --mode reference), else f32
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    pub dtype: Option<Float>,
    /// Quantize weights while loading: int8, int8a (per row, or with a group, int8:64), int4 (the same as
    /// int4a:32), int4:N, int4a:N, q8_0, q4_0, q4_1, q5_0, q5_1, f16, bf16; w8a8 also quantizes activations;
    /// default: as stored
    #[arg(long, value_name = "FORMAT", value_parser = weight_format)]
    pub quantize: Option<WeightFormat>,
    /// Threads of the CPU backend; 0 is one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = threads)]
    pub threads: usize,
    /// cuda: let no kernel begin before the one before it has ended (no programmatic dependent launch)
    #[arg(long)]
    pub in_order: bool,
    /// cuda: wait for every kernel, so that a fault names the one that caused it; slow
    #[arg(long)]
    pub blocking: bool,
    /// cuda: seconds that one wait may take before the device counts as lost; default: 120
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub wait_limit: Option<usize>,
    /// Ranks that share the model, a thread each: 1, 2, 4 or 8; the result does not depend on
    /// it (cuda with 16-bit activations: in --mode reference)
    #[arg(long, value_name = "N", value_parser = positive)]
    pub tp: Option<usize>,
    /// Ranks that whole experts are shared among: as many as --tp (the default), or 1: every rank
    /// has a part of each expert
    #[arg(long, value_name = "N", value_parser = positive)]
    pub ep: Option<usize>,
    /// Run every decode step anew instead of capturing and replaying it
    #[arg(long)]
    pub no_graphs: bool,
    /// Steps that are launched before the one before is collected; default: 1 on GPUs, 0 on the CPU
    #[arg(long, value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1))]
    pub steps_ahead: Option<u8>,
    /// Tokens of one step: the budget that prompts are split by; default: 512
    #[arg(long, visible_alias = "step-tokens", value_name = "N", value_parser = positive)]
    pub max_step_tokens: Option<usize>,
    /// Longest sequence, prompt and continuation, where the model can; default: 8192, of bench what it runs
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_context: Option<usize>,
}

/// How tokens are sampled. What is not given comes from the model's generation_config.json.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Sampling (default: what the model's generation_config.json says)")]
pub struct SamplingArgs {
    /// Divides logits; 0 is greedy
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = temperature)]
    pub temperature: Option<f32>,
    /// Keep only the K best tokens; 0 is off
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<u32>,
    /// Keep the best tokens that reach this share of the probability; 1 is off
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = top_p)]
    pub top_p: Option<f32>,
    /// Keep tokens with at least this share of the best one's probability; 0 is off
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = min_p)]
    pub min_p: Option<f32>,
    /// Make tokens seen so far less likely; 1 is off
    #[arg(long, value_name = "R", allow_negative_numbers = true, value_parser = repetition_penalty)]
    pub repetition_penalty: Option<f32>,
    /// Random seed; the same seed samples the same text. Default: a new one every time
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<u64>,
}

#[derive(Debug, ClapArgs)]
pub struct GenerateArgs {
    /// Text to continue; without one, standard input is read
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "prompt_file"])]
    pub text: Option<String>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Text to continue, as an option
    #[arg(short, long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// File with the text to continue; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// Tokens to generate at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, allow_negative_numbers = true)]
    pub max_new_tokens: usize,
    /// End before this text appears (can be given several times)
    #[arg(long, value_name = "TEXT", value_parser = stop)]
    pub stop: Vec<String>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
    /// Never take what a user writes for control tokens, even where it spells them (`<|im_end|>`)
    #[arg(long)]
    pub no_special_in_user_text: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

#[derive(Debug, ClapArgs)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Tokens of an answer at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 512, allow_negative_numbers = true)]
    pub max_new_tokens: usize,
    /// Never take what a user writes for control tokens, even where it spells them (`<|im_end|>`)
    #[arg(long)]
    pub no_special_in_user_text: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

#[derive(Debug, ClapArgs)]
pub struct PlanArgs {
    /// The model, as with --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub path: Option<String>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Also list which tensors of the checkpoint fill each operand, and how they are fused and sharded (JSON
    /// always does)
    #[arg(long)]
    pub tensors: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct ConvertArgs {
    /// The model: a folder, a file, or DeepSpeed's JSON description
    #[arg(value_name = "MODEL")]
    pub model: String,
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// Folder to write to; it must be empty or absent
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
    /// Tensor-parallel ranks to shard for: 1, 2, 4 or 8
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = degree)]
    pub tp: usize,
    /// Quantize weights, as with --quantize of the other commands
    #[arg(long, value_name = "FORMAT", value_parser = weight_format)]
    pub quantize: Option<WeightFormat>,
}

/// Where texts come from.
#[derive(Debug, ClapArgs)]
pub struct LinesArgs {
    /// File of texts, a line of JSON each: "a text" or {"text": "...", "id": ...}; without one, or with -,
    /// standard input
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Take lines as the texts themselves, not as JSON
    #[arg(long)]
    pub plain: bool,
}

#[derive(Debug, ClapArgs)]
pub struct EmbedArgs {
    #[command(flatten)]
    pub lines: LinesArgs,
    /// How the vectors of a text's tokens become one; model is the model's own pooler
    #[arg(long, value_name = "HOW", value_enum, default_value_t = PoolingArg::Mean)]
    pub pooling: PoolingArg,
    /// Leave vectors at their own length; else it is made 1
    #[arg(long, visible_alias = "raw")]
    pub no_normalize: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Names of [`Pooling`].
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum PoolingArg {
    Mean,
    First,
    Last,
    Model,
}

impl From<PoolingArg> for Pooling {
    fn from(arg: PoolingArg) -> Self {
        match arg {
            PoolingArg::Mean => Pooling::Mean,
            PoolingArg::First => Pooling::First,
            PoolingArg::Last => Pooling::Last,
            PoolingArg::Model => Pooling::Model,
        }
    }
}

#[derive(Debug, ClapArgs)]
pub struct ScoreArgs {
    #[command(flatten)]
    pub lines: LinesArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
pub struct ClassifyArgs {
    #[command(flatten)]
    pub lines: LinesArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
pub struct AnswerArgs {
    /// File of lines, each {"question": "...", "context": "...", "id": ...}; without one, or with -, standard
    /// input
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Answers to a question at most; with more than one, a line has all of them under `answers`
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = positive)]
    pub top_k: usize,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = positive)]
    pub max_answer_len: usize,
    /// Let the empty answer win where the context does not say (models trained for that, as on SQuAD 2)
    #[arg(long, visible_alias = "impossible")]
    pub handle_impossible_answer: bool,
    /// Tokens of a window over a long context, the question included; less where the model cannot
    #[arg(long, value_name = "N", default_value_t = 384, value_parser = positive)]
    pub max_seq_len: usize,
    /// Tokens that two windows share; default: half a window, at most 128
    #[arg(long, value_name = "N")]
    pub doc_stride: Option<usize>,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, ClapArgs)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Random weights of a named shape: tiny, narrow, S, M, llama-1b, llama-8b
    #[arg(long, value_name = "NAME", conflicts_with = "model", value_parser = super::bench::shape)]
    pub shape: Option<super::bench::Shape>,
    /// Format of a shape's weights: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k,
    /// q6_k
    #[arg(long, value_name = "FORMAT", default_value = "f32", value_parser = super::bench::weights)]
    pub weights: engraft::core::mem::Stored,
    /// Sequences at once, a list
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = positive)]
    pub batch: Vec<usize>,
    /// Tokens per prompt, or per text of an encoder
    #[arg(long, visible_alias = "prompt", value_name = "N", default_value_t = 512, value_parser = positive)]
    pub prompt_tokens: usize,
    /// Tokens to generate per sequence
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = positive)]
    pub decode: usize,
    /// Tokens before the sampled ones, whose steps are timed; default: those of a prompt, at most 128
    #[arg(long, value_name = "N", value_parser = positive)]
    pub context: Option<usize>,
    /// Repetitions; medians are reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = positive)]
    pub repeat: usize,
    /// Show time per op (after the measured runs)
    #[arg(long)]
    pub profile: bool,
    /// Write a Chrome trace of a few steps (after the measured runs)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct WriteShapeArgs {
    /// Name of the shape
    #[arg(long, value_parser = super::bench::shape)]
    pub shape: super::bench::Shape,
    /// Format
    #[arg(long, value_parser = super::bench::weights)]
    pub weights: engraft::core::mem::Stored,
    /// Folder to write to
    #[arg(long)]
    pub out: PathBuf,
}

impl ModelArgs {
    /// Whether the embedded model is meant.
    pub fn is_demo(&self) -> bool {
        self.model.is_none() && self.config.is_none()
    }

    /// How files are read.
    pub fn access(&self) -> Access {
        if self.no_mmap { Access::Read } else { Access::default() }
    }

    /// The model, `path` or that of the flags, and how to open it: for one sequence at a time, with the
    /// policies that were named.
    pub fn read(&self, path: Option<&str>) -> Result<(ModelSource, Options), Failure> {
        let mut options = self.device.options()?.registry(self.policies.registry()?);
        let mut source = path.or(self.model.as_deref()).map(named).transpose()?;
        if let Some(file) = &self.config {
            let (config, warnings) = DeepSpeedConfigBuilder::new().file(file)?.check()?;
            warnings.iter().for_each(|warning| note(&format!("warning: {warning}")));
            options = options.config(&config)?;
            source = match (source, config.checkpoint.is_some()) {
                (Some(_), true) => {
                    let both = "a model is named on the command line and by `checkpoint` in";
                    return Err(Failure::Usage(format!("{both} {}: give one", file.display())));
                }
                (None, true) if self.no_mmap => {
                    let both = "--no-mmap does not go with the `checkpoint` of a configuration:";
                    return Err(Failure::Usage(format!("{both} name the model on the command line")));
                }
                (None, true) => ModelSource::configured(&config)?,
                (source, false) => source,
            };
        }
        let mut source = source.unwrap_or(ModelSource::Demo);
        if self.no_mmap {
            source = source.open_by(Access::Read)?.into();
        }
        Ok((source, self.device.sized(options.max_seqs(1))))
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
            ("--kernel-cache", self.kernel_cache.is_some()),
            ("--cublaslt", self.cublaslt.is_some()),
            ("--in-order", self.in_order),
            ("--blocking", self.blocking),
            ("--wait-limit", self.wait_limit.is_some()),
        ];
        let given = of_cuda.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
        let mut name = self.backend.clone();
        match (&mut name, given) {
            (BackendName::Cuda(cuda), _) => {
                cuda.driver.clone_from(&self.cuda_driver);
                if let Some(folder) = &self.kernel_cache {
                    cuda.kernel_cache = (folder.as_os_str() != "off").then(|| folder.clone());
                }
                cuda.mode = self.mode.unwrap_or_default();
                cuda.cublaslt.clone_from(&self.cublaslt);
                (cuda.in_order, cuda.blocking) = (self.in_order, self.blocking);
                cuda.wait_limit = self.wait_limit.map(|seconds| Duration::from_secs(seconds as u64));
            }
            (_, Some(flag)) => return Err(Failure::Usage(format!("{flag} goes with --backend cuda"))),
            (BackendName::Wgpu(wgpu), None) => wgpu.mode = self.mode.unwrap_or_default(),
            (_, None) if self.mode.is_some() => {
                return Err(Failure::Usage("--mode goes with --backend cuda or wgpu".into()));
            }
            (_, None) => {}
        }
        Ok(name)
    }

    pub fn options(&self) -> Result<Options, Failure> {
        warn_of_coarse_groups(self.quantize);
        let mut options = Options::new().backend(self.backend()?);
        if let Some(dtype) = self.dtype {
            options = options.dtype(dtype);
        }
        Ok(self.sized(options.threads(self.threads).quantize(self.quantize)))
    }

    /// The sizes and switches of the engine that were given; a configuration's others stay.
    fn sized(&self, mut options: Options) -> Options {
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
        if self.no_graphs { options.graphs(false) } else { options }
    }
}

/// Says what four bits in groups of more than 32 values cost.
pub fn warn_of_coarse_groups(format: Option<WeightFormat>) {
    if let Some(WeightFormat::Group(groups)) = format
        && groups.bits == GroupBits::Four
        && groups.size > FINE_GROUP
    {
        note(&format!("warning: {groups} is coarse and costs accuracy; int4a:{FINE_GROUP} is the default"));
    }
}

impl SamplingArgs {
    /// Options of a text of at most `tokens` tokens; what no flag names stays the model's.
    pub fn options(&self, tokens: usize) -> GenerateOptions {
        let mut options = GenerateOptions::new().max_new_tokens(tokens);
        options.temperature = self.temperature;
        options.top_k = self.top_k;
        options.top_p = self.top_p;
        options.min_p = self.min_p;
        options.repetition_penalty = self.repetition_penalty;
        options.seed = self.seed;
        options
    }
}

/// How a model's architecture is recognised.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct PolicyArgs {
    /// Describe an architecture that is not built in: a policy table, .json or .toml (can be given several
    /// times)
    #[arg(long, value_name = "FILE")]
    pub policy: Vec<PathBuf>,
    /// Run a model of no known family although its config.json has this field, which the automatic policy
    /// does not read (can be given several times); what the field says is not computed
    #[arg(long, value_name = "FIELD")]
    pub accept_unknown: Vec<String>,
}

impl PolicyArgs {
    /// The built-in policies and those of the tables.
    pub fn registry(&self) -> Result<Registry, Failure> {
        let mut registry = Registry::default();
        for table in &self.policy {
            registry.register(Arc::new(TablePolicy::read(table)?));
        }
        registry.accept_unknown(self.accept_unknown.iter().cloned());
        Ok(registry)
    }
}

/// A model as users name it; what is on the hub alone is downloaded, with a progress bar.
pub fn named(text: &str) -> Result<ModelSource, Failure> {
    let mut loading = Loading::of("downloading");
    Ok(ModelSource::parse(text).fetch(move |done, total| loading.show(done, total))?)
}
