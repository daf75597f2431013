//! From a text to pictures: a pipeline's folder, on any backend.

use crate::backends::{BackendName, Visitor, with_backend};
use engraft_core::Result;
use engraft_core::backend::{Backend, block_on};
use engraft_core::checkpoint::Access;
use engraft_core::mem::Float;
use engraft_diffusion::engraft_image::{self, SchedulerConfig};
use engraft_diffusion::{
    Defaults, ImageRequest, Images, Lora, Noise, Outline, Pipeline, PipelineOptions, Progress, Seeded,
    StepCounts,
};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Short names of schedulers, and the classes of diffusers that they stand for.
pub const SCHEDULERS: [(&str, &str); 9] = [
    ("ddim", "DDIMScheduler"),
    ("pndm", "PNDMScheduler"),
    ("euler", "EulerDiscreteScheduler"),
    ("euler-a", "EulerAncestralDiscreteScheduler"),
    ("dpm", "DPMSolverMultistepScheduler"),
    ("unipc", "UniPCMultistepScheduler"),
    ("lcm", "LCMScheduler"),
    ("ddpm", "DDPMScheduler"),
    ("flow", "FlowMatchEulerDiscreteScheduler"),
];

/// The scheduler of a short name or of a class of diffusers, with the settings of a folder's `own`.
///
/// # Errors
/// `Config` for an unknown name, and for settings that the other class cannot work with.
///
/// ```
/// use engraft::engraft_diffusion::engraft_image::SchedulerConfig;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let own = SchedulerConfig::from_json(r#"{"_class_name": "PNDMScheduler", "steps_offset": 1}"#)?;
/// assert_eq!(engraft::named_scheduler(&own, "ddim")?.class().name(), "DDIMScheduler");
/// assert!(engraft::named_scheduler(&own, "none").is_err());
/// # Ok(())
/// # }
/// ```
pub fn named_scheduler(own: &SchedulerConfig, name: &str) -> engraft_image::Result<SchedulerConfig> {
    let class = SCHEDULERS.iter().find(|(short, _)| *short == name).map_or(name, |(_, class)| class);
    own.with_class(class)
}

/// Where and how pictures are computed.
#[derive(Debug, Clone)]
pub struct ImageOptions {
    /// The backend.
    pub backend: BackendName,
    /// Threads of the CPU backend; 0 is one per core.
    pub threads: usize,
    /// Element type of activations.
    pub dtype: Float,
    /// How files are read.
    pub access: Access,
    /// LoRA files that are added to the weights.
    pub loras: Vec<Lora>,
    /// The folder of a ControlNet, instead of the pipeline's own where it has one.
    pub controlnet: Option<PathBuf>,
    /// Components that are left out, see [`PipelineOptions`].
    pub without: Vec<String>,
    /// Whether large pictures are encoded and decoded in tiles, which takes less memory and makes pictures
    /// that differ, see [`Vae::enable_tiling`](engraft_diffusion::Vae::enable_tiling).
    pub vae_tiling: bool,
    /// Whether steps are captured and replayed, where the backend can: no bit depends on it. With cuBLASLt,
    /// whose matmuls cannot be captured, they are not.
    pub graphs: bool,
}

impl Default for ImageOptions {
    /// The CPU, in f32; steps are captured.
    fn default() -> Self {
        let (dtype, access) = (Float::F32, Access::default());
        let (loras, controlnet, without) = (Vec::new(), None, Vec::new());
        let (backend, threads, vae_tiling, graphs) = (BackendName::Cpu, 0, false, true);
        Self { backend, threads, dtype, access, loras, controlnet, without, vae_tiling, graphs }
    }
}

impl ImageOptions {
    /// Whether steps are captured, by all that is said.
    fn captures(&self) -> bool {
        let vendors = matches!(&self.backend, BackendName::Cuda(cuda) if cuda.cublaslt.is_some());
        self.graphs && !vendors
    }
}

/// Makes pictures of texts: Stable Diffusion 1, 2, XL, 3 and 3.5, FLUX.1, PixArt and Sana as diffusers
/// publishes them.
///
/// ```no_run
/// use engraft::{ImageGenerator, ImageOptions, engraft_diffusion::ImageRequest};
///
/// # fn main() -> engraft::Result<()> {
/// let mut generator = ImageGenerator::open("path/to/folder", &ImageOptions::default())?;
/// let request = ImageRequest { steps: Some(20), ..ImageRequest::new("a fox in the snow") };
/// let pictures = generator.generate(&request, 7, |step| println!("{} of {}", step.done, step.of))?;
/// assert_eq!(pictures.rgb[0].len(), 512 * 512 * 3);
/// # Ok(())
/// # }
/// ```
pub struct ImageGenerator(Box<dyn AnyPipeline>);

/// A pipeline on one of the backends.
trait AnyPipeline {
    fn run(
        &mut self,
        request: &ImageRequest,
        noise: &mut dyn Noise,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<Images>>;
    fn outline(&self) -> &Outline;
    fn check(&self, request: &ImageRequest) -> Result<()>;
    fn step_counts(&self) -> StepCounts;
}

impl<B: Backend> AnyPipeline for Pipeline<B> {
    fn run(
        &mut self,
        request: &ImageRequest,
        noise: &mut dyn Noise,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<Images>> {
        block_on(Pipeline::run(self, request, noise, watch))
    }

    fn outline(&self) -> &Outline {
        Pipeline::outline(self)
    }

    fn check(&self, request: &ImageRequest) -> Result<()> {
        Pipeline::check(self, request)
    }

    fn step_counts(&self) -> StepCounts {
        Pipeline::step_counts(self)
    }
}

/// Loads a pipeline on the backend that is visited.
struct Load<'a>(&'a Path, &'a ImageOptions, &'a mut dyn FnMut(&Outline) -> Result<()>);

impl Visitor for Load<'_> {
    type Output = ImageGenerator;

    fn visit<B: Backend>(self, backend: Arc<B>) -> Result<ImageGenerator> {
        let Load(path, options, ahead) = self;
        let graphs = options.captures();
        let ImageOptions { access, dtype, loras, controlnet, without, vae_tiling, .. } = options.clone();
        let options = PipelineOptions { access, dtype, loras, controlnet, without, vae_tiling, graphs };
        let pipeline = Pipeline::load_for(&backend, path, &options, ahead)?;
        Ok(ImageGenerator(Box::new(pipeline)))
    }
}

impl ImageGenerator {
    /// Loads a folder with `model_index.json`.
    ///
    /// # Errors
    /// `Config` for a class that is not known, `Format` for a component that is absent, both naming it; what
    /// loading and the backend raise.
    pub fn open(path: impl AsRef<Path>, options: &ImageOptions) -> Result<Self> {
        Self::open_for(path, options, |_| Ok(()))
    }

    /// The same, with a look at what is known before a weight is read, for whatever can be refused by then:
    /// sizes by [`Outline::check`], say. An error of `ahead` ends it.
    ///
    /// # Errors
    /// As [`ImageGenerator::open`]; that of `ahead`.
    ///
    /// ```
    /// use engraft::{ImageGenerator, ImageOptions, engraft_diffusion::ImageRequest};
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden-image/pipelines/sd1");
    /// let odd = ImageRequest { width: 41, ..ImageRequest::new("a fox") };
    /// let options = ImageOptions::default();
    /// let refused = ImageGenerator::open_for(folder, &options, |outline| outline.check(&odd)).err();
    /// assert!(refused.is_some_and(|error| error.to_string().contains("`width` is 41")));
    /// ```
    pub fn open_for(
        path: impl AsRef<Path>,
        options: &ImageOptions,
        mut ahead: impl FnMut(&Outline) -> Result<()>,
    ) -> Result<Self> {
        with_backend(&options.backend, options.threads, Load(path.as_ref(), options, &mut ahead))
    }

    /// Makes pictures of the prompts: picture `i` has the seed `seed + i`, and so the bits that it has alone.
    /// `watch` is called after every step.
    ///
    /// # Errors
    /// `Config`, naming the field, for what cannot be done; what the backend raises. It can be called again
    /// after any of them.
    pub fn generate(
        &mut self,
        request: &ImageRequest,
        seed: u64,
        mut watch: impl FnMut(Progress),
    ) -> Result<Images> {
        let all = self.generate_until(request, &mut Seeded(seed), |progress| {
            watch(progress);
            ControlFlow::Continue(())
        })?;
        Ok(all.unwrap_or_default())
    }

    /// The same with noise of one's own; `watch` may end the run, which gives nothing then.
    ///
    /// # Errors
    /// As [`ImageGenerator::generate`].
    pub fn generate_until(
        &mut self,
        request: &ImageRequest,
        noise: &mut dyn Noise,
        mut watch: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<Images>> {
        self.0.run(request, noise, &mut watch)
    }

    /// Sizes of pictures are multiples of this.
    pub fn factor(&self) -> usize {
        self.0.outline().factor
    }

    /// The side of the pictures that the model was trained with, where its files say so.
    pub fn side(&self) -> Option<usize> {
        self.0.outline().side
    }

    /// The scheduler that runs take unless they name another.
    pub fn scheduler(&self) -> &SchedulerConfig {
        &self.0.outline().scheduler
    }

    /// What runs take where a request does not say.
    pub fn defaults(&self) -> Defaults {
        self.0.outline().defaults
    }

    /// What became of its steps so far: captured, replayed, run op by op.
    pub fn step_counts(&self) -> StepCounts {
        self.0.step_counts()
    }

    /// Whether the pipeline can run such a request, as far as that is known before its texts are read and its
    /// steps are counted.
    ///
    /// # Errors
    /// `Config`, naming the field.
    pub fn check(&self, request: &ImageRequest) -> Result<()> {
        self.0.check(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::CudaOptions;

    #[test]
    fn graphs_are_on_unless_they_are_switched_off_or_matmuls_are_a_vendors() {
        let on = |backend: CudaOptions, graphs| {
            ImageOptions { backend: BackendName::from(backend), graphs, ..ImageOptions::default() }.captures()
        };
        let (own, vendors) = (CudaOptions::new(), CudaOptions::new().cublaslt("libcublasLt.so.13"));
        assert!(ImageOptions::default().captures() && on(own.clone(), true));
        assert!(!on(own, false) && !on(vendors, true));
    }
}
