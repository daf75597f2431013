//! A pipeline by its class: with a UNet or with a transformer.

use super::defaults::Defaults;
use super::folder::Folder;
use super::kind::Kind;
use super::noise::Noise;
use super::options::PipelineOptions;
use super::outline::{Ahead, Outline};
use super::request::{ImageRequest, Images, Progress};
use super::stable::{ONE_TEXT, Stable, TWO_TEXTS};
use super::transformers::Transformed;
use crate::run::StepCounts;
use engraft_core::backend::Backend;
use engraft_core::{Error, Result};
use engraft_image::SchedulerConfig;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// A pipeline on a backend.
pub struct Pipeline<B: Backend>(Model<B>);

enum Model<B: Backend> {
    Stable(Box<Stable<B>>),
    Transformed(Box<Transformed<B>>),
}

impl<B: Backend> Pipeline<B> {
    /// Loads a folder with `model_index.json`. All files are opened before a weight is read.
    ///
    /// # Errors
    /// `Config` for a class of pipeline or component that is not known, naming it; `Format` for a component
    /// that is absent; what its parts raise.
    pub fn load(backend: &Arc<B>, path: &Path, options: &PipelineOptions) -> Result<Self> {
        Self::load_for(backend, path, options, &mut |_| Ok(()))
    }

    /// The same, with a look at what is known before a weight is read, for whatever can be refused by then:
    /// an error of `ahead` ends it.
    ///
    /// # Errors
    /// As [`Pipeline::load`]; that of `ahead`.
    pub fn load_for(
        backend: &Arc<B>,
        path: &Path,
        options: &PipelineOptions,
        ahead: &mut dyn FnMut(&Outline) -> Result<()>,
    ) -> Result<Self> {
        let ahead: Ahead<'_> = ahead;
        let mut folder = Folder::open(path)?;
        options.without.iter().try_for_each(|component| folder.leave_out(component))?;
        let with_unet: Vec<&str> = ONE_TEXT.into_iter().chain(TWO_TEXTS).collect();
        let model = match (Kind::of(folder.class()), with_unet.contains(&folder.class())) {
            (Some(kind), _) => {
                Model::Transformed(Box::new(Transformed::load(backend, (&folder, kind), options, ahead)?))
            }
            (None, true) => Model::Stable(Box::new(Stable::load(backend, &folder, options, ahead)?)),
            (None, false) => {
                let known: Vec<&str> =
                    with_unet.into_iter().chain(Kind::CLASSES.map(|(class, _)| class)).collect();
                return Err(Error::config("_class_name", folder.class(), known.join(", ")));
            }
        };
        Ok(Self(model))
    }

    /// What its files say of it.
    pub fn outline(&self) -> &Outline {
        match &self.0 {
            Model::Stable(model) => model.outline(),
            Model::Transformed(model) => model.outline(),
        }
    }

    /// The folder's scheduler.
    pub fn scheduler(&self) -> &SchedulerConfig {
        &self.outline().scheduler
    }

    /// What pictures are a multiple of, in pixels along a line: those of a latent, or of a token.
    pub fn factor(&self) -> usize {
        self.outline().factor
    }

    /// The side of the pictures that it was trained with, where that is known.
    pub fn side(&self) -> Option<usize> {
        self.outline().side
    }

    /// What it takes where a request does not say.
    pub fn defaults(&self) -> Defaults {
        self.outline().defaults
    }

    /// What became of the steps of its UNet and ControlNet, or of its transformer.
    pub fn step_counts(&self) -> StepCounts {
        match &self.0 {
            Model::Stable(model) => model.step_counts(),
            Model::Transformed(model) => model.step_counts(),
        }
    }

    /// Whether it can run such a request, as far as that is known before its texts are read and its steps are
    /// counted.
    ///
    /// # Errors
    /// `Config`, naming the field.
    pub fn check(&self, request: &ImageRequest) -> Result<()> {
        match &self.0 {
            Model::Stable(model) => model.check(request).map(drop),
            Model::Transformed(model) => model.check(request),
        }
    }

    /// Runs a request; `watch` is called after every step and may end the run, which gives nothing then.
    ///
    /// # Errors
    /// `Config`, naming the field, for what cannot be done; what the backend raises. The pipeline can run
    /// again after any of them.
    pub async fn run(
        &mut self,
        request: &ImageRequest,
        noise: &mut dyn Noise,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<Images>> {
        match &mut self.0 {
            Model::Stable(model) => model.run(request, noise, watch).await,
            Model::Transformed(model) => model.run(request, noise, watch).await,
        }
    }
}
