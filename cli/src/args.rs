//! All flags, and how they become options of the library.

#[cfg(unix)]
mod group;
#[cfg(feature = "image")]
mod image;
mod model;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "serve")]
mod settings;
#[cfg(all(test, feature = "serve"))]
mod settings_tests;
mod texts;
#[cfg(feature = "speech")]
mod transcribe;

#[cfg(unix)]
pub use group::{GroupArgs, Led};
#[cfg(feature = "image")]
pub use image::ImageArgs;
pub use model::{DeviceArgs, ModelArgs, PolicyArgs, named, named_text, warn_of_coarse_groups};
#[cfg(feature = "serve")]
pub use serve::{LimitArgs, ServeArgs};
#[cfg(feature = "fuzzing")]
pub use settings::{SERVE, SETTINGS};
pub use texts::{AnswerArgs, ClassifyArgs, EmbedArgs, LinesArgs, ScoreArgs};
#[cfg(feature = "speech")]
pub use transcribe::{Threshold, TranscribeArgs, TranscribeTask};

use super::values::{
    degree, gguf_format, min_p, new_tokens, positive, repetition_penalty, report_seconds, seed, stop,
    temperature, threads, top_k, top_p, weight_format,
};
use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand};
use engraft::backends::Place;
use engraft::engraft_core::weights::gguf::GgufFormat;
use engraft::{GenerateOptions, WeightFormat};
use std::ffi::OsString;
use std::path::PathBuf;

/// What stands below the list of commands.
const AFTER: &str = "Exit status: 0 done, 1 failed, 2 wrong usage, 75 a rank is missing. Results go to standard output, all else \
    to standard error.\nENGRAFT_LOG=debug logs more, NO_COLOR=1 takes colours off.";

/// What stands below the flags of `generate`.
const EXAMPLES: &str = "Examples:\n  engraft generate \"This package provides\" -n 32
  engraft generate -m path/to/model --prompt-file question.txt --temperature 0
  echo \"This package\" | engraft generate -m org/name --json";

/// Run pretrained transformers. Without --model, a small embedded demo model answers.
#[derive(Debug, Parser)]
#[command(name = "engraft", version, propagate_version = true, max_term_width = 80, after_help = AFTER)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

impl Args {
    /// The arguments of this process.
    ///
    /// # Errors
    /// Help and versions, which are asked for in the place of a command, and what is wrong with the
    /// arguments.
    pub fn of_process() -> Result<Self, clap::Error> {
        Self::of(std::env::args_os())
    }

    /// These arguments, the name of the program in front.
    ///
    /// # Errors
    /// As [`Args::of_process`].
    pub fn of(given: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        #[cfg(feature = "serve")]
        let matches = settings::matches(Self::whole(), given);
        #[cfg(not(feature = "serve"))]
        let matches = Self::whole().try_get_matches_from(given);
        matches.and_then(|matches| Self::from_arg_matches(&matches))
    }

    /// All commands, as the program takes them.
    fn whole() -> clap::Command {
        Self::command().mut_subcommands(|command| {
            // `engraft serve -V` names the program. A negative number is a value, so that a flag can say
            // which are allowed.
            command.display_name("engraft").mut_args(|arg| match arg.is_positional() {
                false if arg.get_action().takes_values() => arg.allow_negative_numbers(true),
                _ => arg,
            })
        })
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a prompt; the continuation goes to standard output as it is sampled
    Generate(GenerateArgs),
    /// Talk with a model
    Chat(ChatArgs),
    /// Answer over HTTP as OpenAI's API does
    #[cfg(feature = "serve")]
    Serve(Box<ServeArgs>),
    /// Write down what is said in a file of sound, by a model like Whisper
    #[cfg(feature = "speech")]
    Transcribe(Box<TranscribeArgs>),
    /// Make pictures of a text, by a pipeline of diffusers
    #[cfg(feature = "image")]
    Image(Box<ImageArgs>),
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
    /// List devices, or time the kernels of one (used by doctor, in a process of its own)
    #[command(hide = true)]
    ReportDevice(ReportDeviceArgs),
}

impl Command {
    /// The model that ranks of a group can share, and its name where that is no flag.
    #[cfg(unix)]
    pub fn model(&self) -> Option<(&ModelArgs, Option<&str>)> {
        match self {
            Self::Generate(args) => Some((&args.model, None)),
            Self::Chat(args) => Some((&args.model, None)),
            #[cfg(feature = "serve")]
            Self::Serve(args) => Some((&args.model, args.path.as_deref())),
            #[cfg(feature = "speech")]
            Self::Transcribe(args) => Some((&args.model, None)),
            Self::Embed(args) => Some((&args.model, None)),
            Self::Score(args) => Some((&args.model, None)),
            Self::Classify(args) => Some((&args.model, None)),
            Self::Answer(args) => Some((&args.model, None)),
            _ => None,
        }
    }

    /// Flags of processes that a command has and that say nothing to it.
    #[cfg(unix)]
    pub fn threads_alone(&self) -> Option<&GroupArgs> {
        match self {
            Self::Bench(args) => Some(&args.model.device.group),
            Self::Plan(args) => Some(&args.model.device.group),
            Self::Doctor(args) => Some(&args.device.group),
            _ => None,
        }
    }
}

/// How tokens are sampled. What is not given comes from the model's generation_config.json.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Sampling (default: as the model's generation_config.json says)")]
pub struct SamplingArgs {
    /// Divides logits; 0 is greedy
    #[arg(long, value_name = "T", value_parser = temperature)]
    pub temperature: Option<f32>,
    /// Keep only the K best tokens; 0 is off
    #[arg(long, value_name = "K", value_parser = top_k)]
    pub top_k: Option<u32>,
    /// Keep the best tokens that reach this share of the probability; 1 is off
    #[arg(long, value_name = "P", value_parser = top_p)]
    pub top_p: Option<f32>,
    /// Keep tokens with at least this share of the best one's probability; 0 is off
    #[arg(long, value_name = "P", value_parser = min_p)]
    pub min_p: Option<f32>,
    /// Make tokens seen so far less likely; 1 is off
    #[arg(long, value_name = "R", value_parser = repetition_penalty)]
    pub repetition_penalty: Option<f32>,
    /// Random seed; the same seed samples the same text. Default: a new one every time
    #[arg(long, value_name = "N", value_parser = seed)]
    pub seed: Option<u64>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct GenerateArgs {
    /// Text to continue; without one, standard input is read
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "prompt_file"])]
    pub text: Option<String>,
    /// Text to continue, as an option
    #[arg(short, long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// File with the text to continue, at most 64 MiB; a pipe will do (a shell's <(...), say); - reads
    /// standard input
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// Tokens to generate at most; -1: until the context is full
    #[arg(short = 'n', long, value_name = "N", default_value = "128",
        value_parser = new_tokens)]
    pub max_new_tokens: usize,
    /// End before this text appears (can be given several times)
    #[arg(long, value_name = "TEXT", value_parser = stop)]
    pub stop: Vec<String>,
    /// What the decoder of a model with an encoder begins with: the language to translate to, say
    #[arg(long, value_name = "TEXT")]
    pub decoder_prompt: Option<String>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
    /// Never take what a user writes for control tokens, even where it spells them (`<|im_end|>`)
    #[arg(long)]
    pub no_special_in_user_text: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
pub struct ChatArgs {
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Tokens of an answer at most; -1: until the context is full
    #[arg(short = 'n', long, value_name = "N", default_value = "512",
        value_parser = new_tokens)]
    pub max_new_tokens: usize,
    /// Never take what a user writes for control tokens, even where it spells them (`<|im_end|>`)
    #[arg(long)]
    pub no_special_in_user_text: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
pub struct PlanArgs {
    /// The model, as with --model; or a model's config.json alone, whose weights need not be there
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub path: Option<String>,
    /// Also list which tensors of the checkpoint fill each operand, and how they are fused and sharded (JSON
    /// always does)
    #[arg(long)]
    pub tensors: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
pub struct ConvertArgs {
    /// The model: a folder, a file, or DeepSpeed's JSON description
    #[arg(value_name = "MODEL")]
    pub model: String,
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// Folder to write to, which must be empty or absent; or a GGUF file (a name that ends in .gguf), which
    /// must be absent
    #[arg(long, value_name = "PLACE")]
    pub out: PathBuf,
    /// What to write: folder (loads without transformation) or gguf (llama.cpp's format, of LLaMA and
    /// families like it; from GGUF to GGUF of any); default: as the end of --out says
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub format: Option<ConvertFormat>,
    /// Tensor-parallel ranks to shard for: 1, 2, 4 or 8; a GGUF file is for one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = degree)]
    pub tp: usize,
    /// Quantize weights, as with --quantize of the other commands; a GGUF file has f32, f16, bf16, q4_0,
    /// q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl and iq4_xs, and llama.cpp's mixes:
    /// q3_k_s, q3_k_m, q3_k_l, q4_k_s, q4_k_m, q5_k_s and q5_k_m
    #[arg(long, value_name = "FORMAT", value_parser = gguf_format)]
    pub quantize: Option<GgufFormat>,
    /// Quantize the table of tokens, too
    #[arg(long, requires = "quantize")]
    pub quantize_embeddings: bool,
    /// Format of a GGUF file's token table, which --quantize leaves as it is
    #[arg(long, value_name = "FORMAT", value_parser = weight_format, conflicts_with = "quantize_embeddings")]
    pub token_embedding_type: Option<WeightFormat>,
    /// Print the mean log-probability of this text's tokens and its perplexity, before and after: in windows
    /// of 512 tokens, fewer where the model has fewer positions
    #[arg(long, value_name = "FILE")]
    pub score: Option<PathBuf>,
}

/// What `convert` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ConvertFormat {
    Folder,
    Gguf,
}

impl ConvertArgs {
    /// What is to be written.
    pub fn written(&self) -> ConvertFormat {
        let ends = self.out.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
        self.format.unwrap_or(if ends { ConvertFormat::Gguf } else { ConvertFormat::Folder })
    }

    /// The one format that is asked for.
    pub fn one_format(&self) -> Option<WeightFormat> {
        self.quantize.and_then(GgufFormat::one)
    }
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
    /// Write a report that can be sent to others, one JSON file: the system and the processor, and of every
    /// device (CPU, CUDA, each adapter of wgpu) its driver, limits and features, what probes find and what is
    /// promised about bits, and how long each class of kernels takes. No names of users and machines, no
    /// paths, no variables. - is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = NOT_IN_REPORTS)]
    pub report: Option<PathBuf>,
    /// Seconds that a report may take, shared by all devices; what they do not reach is listed; default: 60
    #[arg(long, value_name = "N", requires = "report", value_parser = report_seconds)]
    pub seconds: Option<usize>,
}

/// Flags that say nothing to a report, which is of all devices and loads no model.
const NOT_IN_REPORTS: [&str; 21] = [
    "json",
    "backend",
    "mode",
    "cublaslt",
    "nccl",
    "exchange",
    "dtype",
    "kv_dtype",
    "quantize",
    "in_order",
    "blocking",
    "wait_limit",
    "tp",
    "ep",
    "no_graphs",
    "no_prefix_cache",
    "host_cache",
    "max_step_ms",
    "steps_ahead",
    "max_step_tokens",
    "max_context",
];

#[derive(Debug, ClapArgs)]
pub struct BenchArgs {
    /// Random weights of a named shape: tiny, narrow, S, M, llama-1b, llama-8b
    #[arg(long, value_name = "NAME", conflicts_with = "model", value_parser = super::bench::shape)]
    pub shape: Option<super::bench::Shape>,
    /// Format of a shape's weights: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k,
    /// q6_k; default: f32
    #[arg(long, value_name = "FORMAT", requires = "shape", conflicts_with = "model",
        value_parser = super::bench::weights)]
    pub weights: Option<engraft::engraft_core::mem::Stored>,
    /// Sequences at once, a list
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = positive)]
    pub batch: Vec<usize>,
    /// Tokens per prompt, or per text of an encoder; default: 512, less where the model cannot
    #[arg(long, value_name = "N", value_parser = positive)]
    pub prompt_tokens: Option<usize>,
    /// Tokens to generate per sequence; default: 128, less where the model cannot
    #[arg(long, value_name = "N", value_parser = positive)]
    pub decode: Option<usize>,
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
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
pub struct WriteShapeArgs {
    /// Name of the shape
    #[arg(long, value_parser = super::bench::shape)]
    pub shape: super::bench::Shape,
    /// Format
    #[arg(long, value_parser = super::bench::weights)]
    pub weights: engraft::engraft_core::mem::Stored,
    /// Folder to write to
    #[arg(long)]
    pub out: PathBuf,
}

#[derive(Debug, ClapArgs)]
pub struct ReportDeviceArgs {
    /// Which device; without it those of a backend are listed
    #[arg(long)]
    pub place: Option<Place>,
    /// Which backend's devices are listed
    #[arg(long, required_unless_present = "place")]
    pub backend: Option<String>,
    /// Time that there is
    #[arg(long)]
    pub milliseconds: u64,
    /// As of doctor
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub threads: usize,
    /// As of doctor
    #[arg(long)]
    pub cuda_driver: Option<PathBuf>,
    /// As of doctor
    #[arg(long)]
    pub kernel_cache: Option<PathBuf>,
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
