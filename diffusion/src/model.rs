//! Models with their weights on a backend, at any size of pictures.
//!
//! A graph is built for every size that is asked for and kept until another is, and so is a step of it that
//! was captured; weights are loaded once.

use crate::graph::{Graph, Grid, Tensors};
use crate::load::Loaded;
use crate::nets::{Conditions, UnetSpec, sinusoids};
use crate::run::{self, Asked, Executable, Graphs, Plan, StepCounts};
use engraft_core::backend::Backend;
use engraft_core::checkpoint::ModelFiles;
use engraft_core::mem::Float;
use engraft_core::weights::Uses;
use engraft_core::{Error, Result};
use std::sync::Arc;

/// The class of a folder; any but these is refused.
pub(crate) fn check_class(files: &ModelFiles, classes: &[&'static str]) -> Result<&'static str> {
    let named = files.config.get("_class_name").and_then(|name| name.as_str()).unwrap_or("none");
    let known = classes.iter().find(|class| **class == named);
    known.copied().ok_or_else(|| Error::config("_class_name", named, classes.join(" or ")))
}

/// What is known of a model before a weight is read.
pub(crate) struct Known<S> {
    /// Its description.
    pub spec: S,
    /// Its tensors, and which operands its graphs make of them.
    pub tensors: Tensors,
    /// The ops that read each operand.
    pub uses: Uses,
    /// How its graphs run.
    pub plan: Plan,
}

impl<S> Known<S> {
    /// Of a model of this class, all of whose tensors its graphs take, but for what is `computed`.
    pub fn new<B: Backend>(
        (backend, dtype): (&Arc<B>, Float),
        files: &ModelFiles,
        (class, computed): (&str, &[&str]),
        spec: S,
        graphs: impl FnOnce(&S, &mut Tensors) -> Result<Vec<Graph>>,
    ) -> Result<Self> {
        let source = files.source.as_ref();
        let mut tensors = Tensors::new(source.file(), source.tensors());
        let graphs = graphs(&spec, &mut tensors)?;
        tensors.check_all_taken(class, |name| computed.contains(&name))?;
        let (uses, plan) = run::check(Asked::of(backend), source, &tensors, (class, graphs), dtype)?;
        Ok(Self { spec, tensors, uses, plan })
    }
}

/// A UNet.
pub struct Unet<B: Backend> {
    spec: UnetSpec,
    tensors: Tensors,
    loaded: Loaded<B>,
    dtype: Float,
    /// By sizes, and whether residuals of a ControlNet are read.
    current: Option<((Conditions, bool), Executable<B>)>,
    graphs: Graphs,
    plan: Plan,
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
    /// Whether steps read the residuals of a ControlNet ([`Unet::controlled_step`]).
    pub controlled: bool,
}

impl<B: Backend> Unet<B> {
    /// Loads a folder of class `UNet2DConditionModel`.
    ///
    /// # Errors
    /// `Config` and `Tensor` for what is not known, is missing or has another shape, `Binding` for tensors
    /// that are left over; what the backend raises.
    pub fn load(backend: Arc<B>, files: &ModelFiles, dtype: Float) -> Result<Self> {
        let Known { spec, tensors, uses, plan } = Self::check(&backend, files, dtype)?;
        let graphs = Graphs::of(backend.as_ref());
        let loaded = Loaded::new(backend, files.source.as_ref(), &tensors, &uses)?;
        Ok(Self { spec, tensors, loaded, dtype, current: None, graphs, plan })
    }

    /// What a folder has, and whether the backend can run it, before a weight is read.
    ///
    /// # Errors
    /// As [`Unet::load`].
    pub(crate) fn check(backend: &Arc<B>, files: &ModelFiles, dtype: Float) -> Result<Known<UnetSpec>> {
        let class = check_class(files, &["UNet2DConditionModel"])?;
        // Operands and kernels are the same at every size.
        let conditions = Conditions { items: 1, size: Grid { height: 64, width: 64 }, tokens: 1 };
        let graphs = |spec: &UnetSpec, tensors: &mut Tensors| Ok(vec![spec.graph(tensors, conditions)?]);
        Known::new((backend, dtype), files, (class, &[]), UnetSpec::new(&files.config)?, graphs)
    }

    /// Its description.
    pub fn spec(&self) -> &UnetSpec {
        &self.spec
    }

    /// How it runs on its backend: what is computed once for a run, then a step.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes of weights on the device, and of activations at the size that ran last.
    pub fn bytes(&self) -> (usize, usize) {
        (self.loaded.bytes(), self.current.as_ref().map_or(0, |(_, run)| run.bytes()))
    }

    /// Whether steps are captured and replayed, where the backend can; they are unless this says otherwise.
    /// No bit depends on it.
    pub fn set_graphs(&mut self, on: bool) {
        self.graphs.set(self.loaded.backend().as_ref(), on);
    }

    /// What became of its steps so far.
    pub fn step_counts(&self) -> &StepCounts {
        &self.graphs.counts
    }

    /// Makes it ready for pictures and texts of these sizes, and gives it what stays the same from step to
    /// step: text, mask, guidance, class, what is added.
    ///
    /// # Errors
    /// `Config` for another number of values, naming the input; what the backend raises.
    pub fn begin(&mut self, conditions: Conditions, input: &UnetInput<'_>) -> Result<()> {
        let at = (conditions, input.controlled);
        if self.current.as_ref().is_none_or(|(known, _)| *known != at) {
            // Its memory goes before that of the next one comes.
            self.current = None;
            let graph = match input.controlled {
                true => self.spec.controlled_graph(&mut self.tensors, conditions)?,
                false => self.spec.graph(&mut self.tensors, conditions)?,
            };
            self.current = Some((at, Executable::new(&self.loaded, graph, self.dtype)?));
        }
        let Some((_, run)) = &mut self.current else { return Err(Error::internal("no graph")) };
        give_conditions(run, &self.spec, input)?;
        run.prepare(&self.loaded)
    }

    /// One step: `[items * height * width, channels]`.
    ///
    /// # Errors
    /// As [`Unet::begin`], which comes first.
    pub async fn step(&mut self, sample: &[f32], times: &[f64]) -> Result<Vec<f32>> {
        self.controlled_step(sample, times, &[]).await
    }

    /// One step with the residuals of a ControlNet, as many as the way down has pictures and one for the
    /// middle.
    ///
    /// # Errors
    /// As [`Unet::begin`], which comes first and has said that there are some; `Config` for another number of
    /// them.
    pub async fn controlled_step(
        &mut self,
        sample: &[f32],
        times: &[f64],
        residuals: &[Vec<f32>],
    ) -> Result<Vec<f32>> {
        let Some((_, run)) = &mut self.current else {
            return Err(Error::internal("a step before the first call of `begin`"));
        };
        let expected = run.inputs("control");
        if residuals.len() != expected {
            return Err(Error::config(
                "control",
                format!("{} residuals", residuals.len()),
                expected.to_string(),
            ));
        }
        give_step(run, &self.spec, sample, times)?;
        for (number, residual) in residuals.iter().enumerate() {
            run.give_one_of("control", number, residual)?;
        }
        run.step_by(&self.loaded, &mut self.graphs)?;
        run.read(0).await
    }
}

/// Gives a graph of a UNet's inputs what stays the same from step to step.
pub(crate) fn give_conditions<B: Backend>(
    run: &mut Executable<B>,
    spec: &UnetSpec,
    input: &UnetInput<'_>,
) -> Result<()> {
    run.mask_texts(input.mask)?;
    run.give("text", input.text)?;
    let widths = [spec.time_cond_proj_dim, spec.class_width(), spec.added_width()];
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
    Ok(())
}

/// Gives it the sample and the time of a step.
pub(crate) fn give_step<B: Backend>(
    run: &mut Executable<B>,
    spec: &UnetSpec,
    sample: &[f32],
    times: &[f64],
) -> Result<()> {
    run.give("sample", sample)?;
    run.give("time", &sinusoids(times, spec.time_width(), spec.flip_sin_to_cos, spec.freq_shift))
}
