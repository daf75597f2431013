//! Models with their weights on a backend, at any size of pictures.
//!
//! A graph is built for every size that is asked for and kept until another is; weights are loaded once.

use crate::graph::{Graph, Grid, Tensors};
use crate::load::Loaded;
use crate::nets::{Conditions, UnetSpec, VaeSpec, sinusoids};
use crate::run::Executable;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::ModelFiles;
use engraft_core::mem::Float;
use engraft_core::{Error, Result};
use std::sync::Arc;

/// Refuses a folder of another class.
fn check_class(files: &ModelFiles, class: &str) -> Result<()> {
    match files.config.get("_class_name").and_then(|name| name.as_str()) {
        Some(name) if name == class => Ok(()),
        other => Err(Error::config("_class_name", other.unwrap_or("none"), class)),
    }
}

/// A UNet.
pub struct Unet<B: Backend> {
    spec: UnetSpec,
    tensors: Tensors,
    loaded: Loaded<B>,
    dtype: Float,
    current: Option<(Conditions, Executable<B>)>,
}

/// What a UNet reads, row by row, and one picture after the other.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnetInput<'a> {
    /// `[items * height * width, channels]`.
    pub sample: &'a [f32],
    /// `[items]`.
    pub times: &'a [f64],
    /// `[items * tokens, width]`.
    pub text: &'a [f32],
    /// `[items * tokens]`: tokens that count; all where there is none.
    pub mask: Option<&'a [bool]>,
    /// `[items, width]`: of distilled models the guidance.
    pub guidance: Option<&'a [f32]>,
    /// `[items, width]`.
    pub class: Option<&'a [f32]>,
    /// `[items, width]`: the text as one row, and sizes.
    pub added: Option<&'a [f32]>,
}

impl<B: Backend> Unet<B> {
    /// Loads a folder of class `UNet2DConditionModel`.
    ///
    /// # Errors
    /// `Config` and `Tensor` for what is not known, is missing or has another shape, `Binding` for tensors
    /// that are left over; what the backend raises.
    pub fn load(backend: Arc<B>, files: &ModelFiles, dtype: Float) -> Result<Self> {
        let (spec, tensors) = Self::check(files)?;
        let loaded = Loaded::new(backend, files.source.as_ref(), &tensors)?;
        Ok(Self { spec, tensors, loaded, dtype, current: None })
    }

    /// What a folder has, before a weight is read.
    ///
    /// # Errors
    /// As [`Unet::load`], but for the backend's.
    pub(crate) fn check(files: &ModelFiles) -> Result<(UnetSpec, Tensors)> {
        check_class(files, "UNet2DConditionModel")?;
        let spec = UnetSpec::new(&files.config)?;
        let mut tensors = Tensors::new(files.source.file(), files.source.tensors());
        // Operands are the same at every size.
        let size = Grid { height: 64, width: 64 };
        spec.graph(&mut tensors, Conditions { items: 1, size, tokens: 1 })?;
        tensors.check_all_taken("UNet2DConditionModel", |_| false)?;
        Ok((spec, tensors))
    }

    /// Its description.
    pub fn spec(&self) -> &UnetSpec {
        &self.spec
    }

    /// Bytes of weights on the device, and of activations at the size that ran last.
    pub fn bytes(&self) -> (usize, usize) {
        (self.loaded.bytes(), self.current.as_ref().map_or(0, |(_, run)| run.bytes()))
    }

    /// Makes it ready for pictures and texts of these sizes, and gives it what stays the same from step to
    /// step: text, mask, guidance, class, what is added.
    ///
    /// # Errors
    /// `Config` for another number of values, naming the input; what the backend raises.
    pub fn begin(&mut self, conditions: Conditions, input: &UnetInput<'_>) -> Result<()> {
        if self.current.as_ref().is_none_or(|(known, _)| *known != conditions) {
            // Its memory goes before that of the next one comes.
            self.current = None;
            let graph = self.spec.graph(&mut self.tensors, conditions)?;
            self.current = Some((conditions, Executable::new(&self.loaded, graph, self.dtype)?));
        }
        let Some((_, run)) = &mut self.current else { return Err(Error::internal("no graph")) };
        run.mask_texts(input.mask)?;
        run.give("text", input.text)?;
        let widths = [self.spec.time_cond_proj_dim, self.spec.class_width(), self.spec.added_width()];
        let given = [("guidance", input.guidance), ("class", input.class), ("added", input.added)];
        for ((name, values), width) in given.into_iter().zip(widths) {
            match (values, width) {
                (Some(values), Some(_)) => run.give(name, values)?,
                (None, None) => {}
                (Some(_), None) => return Err(Error::config(name, "values", "none: this model reads none")),
                (None, Some(width)) => {
                    return Err(Error::config(name, "none", format!("{width} values for each picture")));
                }
            }
        }
        run.prepare(&self.loaded)
    }

    /// One step: `[items * height * width, channels]`.
    ///
    /// # Errors
    /// As [`Unet::begin`], which comes first.
    pub async fn step(&mut self, sample: &[f32], times: &[f64]) -> Result<Vec<f32>> {
        let first = self.spec.time_width();
        let rows = sinusoids(times, first, self.spec.flip_sin_to_cos, self.spec.freq_shift);
        let Some((_, run)) = &mut self.current else {
            return Err(Error::internal("a step before the first call of `begin`"));
        };
        run.give("sample", sample)?;
        run.give("time", &rows)?;
        run.step(&self.loaded)?;
        run.read(0).await
    }
}

/// An autoencoder of pictures.
pub struct Vae<B: Backend> {
    spec: VaeSpec,
    tensors: Tensors,
    loaded: Loaded<B>,
    dtype: Float,
    encoder: Option<At<B>>,
    decoder: Option<At<B>>,
}

impl<B: Backend> Vae<B> {
    /// Loads a folder of class `AutoencoderKL`.
    ///
    /// # Errors
    /// As [`Unet::load`].
    pub fn load(backend: Arc<B>, files: &ModelFiles, dtype: Float) -> Result<Self> {
        let (spec, tensors) = Self::check(files)?;
        let loaded = Loaded::new(backend, files.source.as_ref(), &tensors)?;
        Ok(Self { spec, tensors, loaded, dtype, encoder: None, decoder: None })
    }

    /// What a folder has, before a weight is read.
    ///
    /// # Errors
    /// As [`Unet::load`], but for the backend's.
    pub(crate) fn check(files: &ModelFiles) -> Result<(VaeSpec, Tensors)> {
        check_class(files, "AutoencoderKL")?;
        let spec = VaeSpec::new(&files.config)?;
        let mut tensors = Tensors::new(files.source.file(), files.source.tensors());
        let side = 2 * spec.factor();
        spec.encoder(&mut tensors, 1, Grid { height: side, width: side })?;
        spec.decoder(&mut tensors, 1, Grid { height: 1, width: 1 })?;
        tensors.check_all_taken("AutoencoderKL", |_| false)?;
        Ok((spec, tensors))
    }

    /// Its description.
    pub fn spec(&self) -> &VaeSpec {
        &self.spec
    }

    /// Mean and logarithm of the variance, as it is stored (the reference holds it within -30 and 20): of
    /// `[items * height * width, channels]` the rows `[items * latents, mean | logarithm]`.
    ///
    /// # Errors
    /// `Config` for another number of values and a picture that is too small; what the backend raises.
    pub async fn encode(&mut self, image: &[f32], items: usize, size: Grid) -> Result<Vec<f32>> {
        let Self { spec, tensors, loaded, encoder, dtype, .. } = self;
        let graph = || spec.encoder(tensors, items, size);
        run_at(encoder, (loaded, *dtype), (items, size), graph, ("image", image)).await
    }

    /// Pictures of latents `[items * height * width, channels]`: `[items * pixels, channels]`.
    ///
    /// # Errors
    /// As [`Vae::encode`].
    pub async fn decode(&mut self, latents: &[f32], items: usize, size: Grid) -> Result<Vec<f32>> {
        let Self { spec, tensors, loaded, decoder, dtype, .. } = self;
        let graph = || spec.decoder(tensors, items, size);
        run_at(decoder, (loaded, *dtype), (items, size), graph, ("latents", latents)).await
    }
}

/// A graph at the size that it was made for.
type At<B> = ((usize, Grid), Executable<B>);

/// What a graph of one input and one output gives, made anew where the one that is kept has another size.
async fn run_at<B: Backend>(
    kept: &mut Option<At<B>>,
    (loaded, dtype): (&Loaded<B>, Float),
    at: (usize, Grid),
    graph: impl FnOnce() -> Result<Graph>,
    (name, values): (&'static str, &[f32]),
) -> Result<Vec<f32>> {
    if kept.as_ref().is_none_or(|(known, _)| *known != at) {
        // Its memory goes before that of the next one comes.
        *kept = None;
        *kept = Some((at, Executable::new(loaded, graph()?, dtype)?));
    }
    let Some((_, run)) = kept else { return Err(Error::internal("no graph")) };
    run.give(name, values)?;
    run.step(loaded)?;
    run.read(0).await
}
