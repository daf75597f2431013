//! A ControlNet with its weights on a backend: it steps next to a UNet, which reads what it gives.

use crate::graph::{Graph, Grid, Tensors};
use crate::load::Loaded;
use crate::model::{Known, UnetInput, check_class, give_conditions, give_step};
use crate::nets::{Conditions, ControlNetSpec, UnetSpec};
use crate::run::{Executable, Graphs, StepCounts};
use engraft_core::backend::Backend;
use engraft_core::checkpoint::ModelFiles;
use engraft_core::mem::Float;
use engraft_core::{Error, Result};
use std::sync::Arc;

/// A size at which graphs are looked at: operands and kernels are the same at every other. Its picture is
/// many times as large.
const ANY: Conditions = Conditions { items: 1, size: Grid { height: 16, width: 16 }, tokens: 1 };

/// A model of class `ControlNetModel`.
pub struct ControlNet<B: Backend> {
    spec: ControlNetSpec,
    tensors: Tensors,
    loaded: Loaded<B>,
    dtype: Float,
    current: Option<(Conditions, Executable<B>)>,
    graphs: Graphs,
}

impl<B: Backend> ControlNet<B> {
    /// Loads a folder.
    ///
    /// # Errors
    /// As [`Unet::load`](crate::Unet::load).
    pub fn load(backend: Arc<B>, files: &ModelFiles, dtype: Float) -> Result<Self> {
        let Known { spec, tensors, uses, .. } = Self::check(&backend, files, dtype)?;
        let graphs = Graphs::of(backend.as_ref());
        let loaded = Loaded::new(backend, files.source.as_ref(), &tensors, &uses)?;
        Ok(Self { spec, tensors, loaded, dtype, current: None, graphs })
    }

    /// What a folder has, and whether the backend can run it, before a weight is read.
    ///
    /// # Errors
    /// As [`ControlNet::load`].
    pub(crate) fn check(backend: &Arc<B>, files: &ModelFiles, dtype: Float) -> Result<Known<ControlNetSpec>> {
        let class = check_class(files, &["ControlNetModel"])?;
        let graphs = |spec: &ControlNetSpec, tensors: &mut Tensors| Ok(vec![spec.graph(tensors, ANY)?]);
        Known::new((backend, dtype), files, (class, &[]), ControlNetSpec::new(&files.config)?, graphs)
    }

    /// Its description.
    pub fn spec(&self) -> &ControlNetSpec {
        &self.spec
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
    /// step: what a UNet is given, and `picture` `[items * pixels, channels]`, 0 to 1.
    ///
    /// # Errors
    /// As [`Unet::begin`](crate::Unet::begin).
    pub fn begin(&mut self, conditions: Conditions, input: &UnetInput<'_>, picture: &[f32]) -> Result<()> {
        if self.current.as_ref().is_none_or(|(known, _)| *known != conditions) {
            // Its memory goes before that of the next one comes.
            self.current = None;
            let graph = self.spec.graph(&mut self.tensors, conditions)?;
            self.current = Some((conditions, Executable::new(&self.loaded, graph, self.dtype)?));
        }
        let Some((_, run)) = &mut self.current else { return Err(Error::internal("no graph")) };
        give_conditions(run, &self.spec.unet, input)?;
        run.give("control", picture)?;
        run.prepare(&self.loaded)
    }

    /// One step: the residuals of the way down in order, that of the middle last, each
    /// `[items * pixels, channels]`.
    ///
    /// # Errors
    /// As [`ControlNet::begin`], which comes first.
    pub async fn step(&mut self, sample: &[f32], times: &[f64]) -> Result<Vec<Vec<f32>>> {
        let Some((_, run)) = &mut self.current else {
            return Err(Error::internal("a step before the first call of `begin`"));
        };
        give_step(run, &self.spec.unet, sample, times)?;
        run.step_by(&self.loaded, &mut self.graphs)?;
        let mut residuals = Vec::new();
        for number in 0..run.outputs().len() {
            residuals.push(run.read(number).await?);
        }
        Ok(residuals)
    }

    /// Values of each residual, at the sizes that it was made ready for.
    pub fn sizes(&self) -> Vec<usize> {
        self.current.as_ref().map_or(Vec::new(), |(_, run)| run.outputs())
    }
}

/// Refuses a ControlNet whose residuals do not fit a UNet, or that reads other texts.
///
/// # Errors
/// `Config`, with the sizes of both.
pub(crate) fn check_fits(unet: &Known<UnetSpec>, control: &Known<ControlNetSpec>) -> Result<()> {
    let (got, want) = (control.spec.unet.text_width()?, unet.spec.text_width()?);
    if got != want {
        return Err(Error::config("cross_attention_dim", got, format!("{want}, which the UNet has")));
    }
    let size = |graph: &Graph, value| (graph.size(value).rows, graph.size(value).cols);
    let read = unet.spec.controlled_graph(&mut unet.tensors.clone(), ANY)?;
    let inputs = read.inputs.iter().filter(|(name, _)| *name == "control");
    let inputs: Vec<_> = inputs.map(|(_, value)| size(&read, *value)).collect();
    let given = control.spec.graph(&mut control.tensors.clone(), ANY)?;
    let outputs: Vec<_> = given.outputs.iter().map(|value| size(&given, *value)).collect();
    match inputs == outputs {
        true => Ok(()),
        false => {
            let columns = |sizes: &[(usize, usize)]| {
                let all: Vec<String> = sizes.iter().map(|(_, cols)| cols.to_string()).collect();
                format!("residuals of {} channels", all.join(", "))
            };
            let allowed = format!("{}, which the UNet reads", columns(&inputs));
            Err(Error::config("block_out_channels", columns(&outputs), allowed))
        }
    }
}
