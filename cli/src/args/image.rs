//! Flags of `image`.

use super::super::values::{backend, dtype, lora, number, positive, seed, share, size, threads};
use clap::Args as ClapArgs;
use engraft::Float;
use engraft::backends::BackendName;
use engraft::engraft_diffusion::Lora;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
pub struct ImageArgs {
    /// Folder of a pipeline as diffusers publishes it, with model_index.json: Stable Diffusion 1, 2, XL, also
    /// those that fill in or follow pictures, 3 and 3.5, FLUX.1, PixArt, Sana
    #[arg(short, long, value_name = "FOLDER")]
    pub model: PathBuf,
    /// What is to be seen; given several times, a picture each
    #[arg(short, long, value_name = "TEXT", required = true)]
    pub prompt: Vec<String>,
    /// What is not to be seen; given several times, one for each --prompt
    #[arg(long, value_name = "TEXT", alias = "negative-prompt")]
    pub negative: Vec<String>,
    /// A PNG file to write; of several pictures NAME-1.png, NAME-2.png, ...; - writes one picture to standard
    /// output
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Width and height in pixels; default: those that the model was trained with, of --init and --control
    /// the picture's
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub size: Option<(usize, usize)>,
    /// Steps from noise to picture; default: 50, of Stable Diffusion 3 and FLUX 28 (Fill: 50), of
    /// PixArt and Sana 20 (Sprint: 2)
    #[arg(long, value_name = "N", value_parser = positive)]
    pub steps: Option<usize>,
    /// How much the prompt counts; 1 and below: what is not to be seen counts for nothing; default: 7.5, of
    /// XL 5, of Stable Diffusion 3 7, of FLUX, which reads it, 3.5 (Fill: 30), of PixArt and
    /// Sana 4.5
    #[arg(long, value_name = "G", value_parser = number)]
    pub guidance: Option<f64>,
    /// FLUX: how much the prompt counts against --negative, at twice the cost
    #[arg(long, value_name = "G", value_parser = number)]
    pub true_guidance: Option<f64>,
    /// Tokens of a text that T5 reads, at most 512; default: 256, of FLUX 512, of PixArt 300 (alpha: 120), of
    /// Sana, which has a Gemma instead, 300
    #[arg(long, value_name = "N", value_parser = positive)]
    pub text_tokens: Option<usize>,
    /// Sana: what prompts stand behind, as the model was trained with
    #[arg(long, value_name = "TEXT")]
    pub instruction: Option<String>,
    /// Share of guided outputs that is brought back to the deviation of those by the prompt, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub guidance_rescale: f64,
    /// Layers at the end of text encoders to leave out
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub clip_skip: usize,
    /// Another scheduler with the folder's settings: ddim, pndm, euler, euler-a, dpm, unipc, lcm, ddpm, flow,
    /// or a class of diffusers
    #[arg(long, value_name = "NAME")]
    pub scheduler: Option<String>,
    /// Seed of the noise; picture i has the seed plus i; default: a new one, which is shown
    #[arg(long, value_name = "SEED", value_parser = seed)]
    pub seed: Option<u64>,
    /// A safetensors file with noise, as another program has taken it, instead of a seed: latents
    /// [pictures, channels, lines, columns], posterior.0 for --init, step with one of them for each step
    #[arg(long, value_name = "FILE", conflicts_with = "seed")]
    pub noise: Option<PathBuf>,
    /// A PNG or JPEG file to begin with
    #[arg(long, value_name = "IMAGE")]
    pub init: Option<PathBuf>,
    /// A PNG or JPEG file as large as --init: what is white may change, the rest stays; of a file with
    /// transparent pixels those may change
    #[arg(long, value_name = "IMAGE", requires = "init")]
    pub mask: Option<PathBuf>,
    /// How much of --init may change, 0 to 1
    #[arg(long, value_name = "X", default_value_t = 0.8, value_parser = share, requires = "init")]
    pub strength: f64,
    /// A PNG or JPEG file to follow (edges, depths, poses, ...), for models with a ControlNet
    #[arg(long, value_name = "IMAGE")]
    pub control: Option<PathBuf>,
    /// How much --control counts
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = number, requires = "control")]
    pub control_scale: f64,
    /// Folder of a ControlNet, instead of the model's own where it has one
    #[arg(long, value_name = "FOLDER", requires = "control")]
    pub controlnet: Option<PathBuf>,
    /// A LoRA file to add to the weights, and how much of it, FILE@0.6; default: all (can be given several
    /// times)
    #[arg(long, value_name = "FILE[@SCALE]", value_parser = lora)]
    pub lora: Vec<Lora>,
    /// A component to leave out: text_encoder_3 of Stable Diffusion 3, the largest of all (can be given
    /// several times)
    #[arg(long, value_name = "NAME")]
    pub without: Vec<String>,
    /// Encode and decode large pictures in tiles that overlap: less memory, and a picture that differs
    #[arg(long)]
    pub vae_tiling: bool,
    /// Decode the pictures of a batch one after the other, which is done anyway: for scripts that say so
    #[arg(long)]
    pub vae_slicing: bool,
    /// Backend: cpu, cuda[:index], wgpu[:vulkan|metal|dx12][:part of an adapter's name]
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = backend)]
    pub backend: BackendName,
    /// Element type of activations: f32, f16, bf16; default: f32, or what --config says
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    pub dtype: Option<Float>,
    /// A configuration of DeepSpeed (JSON or TOML), of which the element type counts and whether steps are
    /// captured
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Threads of the CPU backend; 0 is one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = threads)]
    pub threads: usize,
    /// Run every step anew instead of capturing the first one and replaying it, which changes no bit
    #[arg(long)]
    pub no_graphs: bool,
    /// Read tensors from their files instead of mapping them
    #[arg(long)]
    pub no_mmap: bool,
}
