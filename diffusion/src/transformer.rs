//! A transformer of diffusion with its weights on a backend, at any size of pictures.

use crate::graph::{Grid, Tensors};
use crate::load::Loaded;
use crate::model::Known;
use crate::nets::{Conditions, TransformerSpec};
use crate::run::{Executable, Graphs, Plan, StepCounts};
use engraft_core::backend::Backend;
use engraft_core::checkpoint::ModelFiles;
use engraft_core::mem::Float;
use engraft_core::{Error, Result};
use std::sync::Arc;

/// A transformer.
pub struct Transformer<B: Backend> {
    spec: TransformerSpec,
    tensors: Tensors,
    loaded: Loaded<B>,
    dtype: Float,
    current: Option<(Conditions, Executable<B>)>,
    graphs: Graphs,
    plan: Plan,
}

/// What a transformer reads that stays the same from step to step.
#[derive(Debug, Clone, Copy, Default)]
pub struct TransformerInput<'a> {
    /// `[items * tokens, width]`.
    pub text: &'a [f32],
    /// `[items * tokens]`: tokens that count, of models that attend to a text; all where there is none.
    pub mask: Option<&'a [bool]>,
    /// `[items, width]`: texts as one row each.
    pub pooled: Option<&'a [f32]>,
    /// `[items]`: scales of guidance, of distilled models; of Sana as they are embedded
    /// ([`TransformerSpec::guidance_embeds_scale`]).
    pub guidance: Option<&'a [f64]>,
    /// `[items]`: lines of the pictures, pixels of a line, and their ratio.
    pub sizes: Option<&'a [[f64; 3]]>,
}

impl<B: Backend> Transformer<B> {
    /// Loads a folder of one of [`TransformerSpec::CLASSES`].
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
    /// As [`Transformer::load`].
    pub(crate) fn check(
        backend: &Arc<B>,
        files: &ModelFiles,
        dtype: Float,
    ) -> Result<Known<TransformerSpec>> {
        let spec = TransformerSpec::new(&files.config)?;
        let class = spec.class();
        // A table of positions that is computed may be in a file, too.
        let computed: &[&str] = match spec {
            TransformerSpec::PixArt(_) => &["pos_embed.pos_embed"],
            TransformerSpec::Sana(_) => &["patch_embed.pos_embed"],
            _ => &[],
        };
        // Operands and kernels are the same at every size.
        let side = spec.patch();
        let conditions = Conditions { items: 1, size: Grid { height: side, width: side }, tokens: 1 };
        let graphs =
            |spec: &TransformerSpec, tensors: &mut Tensors| Ok(vec![spec.graph(tensors, conditions)?]);
        Known::new((backend, dtype), files, (class, computed), spec, graphs)
    }

    /// Its description.
    pub fn spec(&self) -> &TransformerSpec {
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
    /// step.
    ///
    /// # Errors
    /// `Config` for another number of values, naming the input; what the backend raises.
    pub fn begin(&mut self, conditions: Conditions, input: &TransformerInput<'_>) -> Result<()> {
        if self.current.as_ref().is_none_or(|(known, _)| *known != conditions) {
            // Its memory goes before that of the next one comes.
            self.current = None;
            let graph = self.spec.graph(&mut self.tensors, conditions)?;
            self.current = Some((conditions, Executable::new(&self.loaded, graph, self.dtype)?));
        }
        let spec = &self.spec;
        if input.mask.is_some() && !spec.reads_masks() {
            return Err(Error::config("encoder_attention_mask", "values", "none: this model reads none"));
        }
        let Some((_, run)) = &mut self.current else { return Err(Error::internal("no graph")) };
        run.mask_texts(input.mask)?;
        run.give("text", input.text)?;
        let unit = spec.guidance_unit();
        let scaled = |scales: &[f64]| spec.numbers(&scales.iter().map(|g| g * unit).collect::<Vec<_>>());
        let guidance = input.guidance.map(scaled);
        let of = |which: std::ops::Range<usize>| {
            let numbers = |size: &[f64; 3]| size[which.clone()].to_vec();
            input.sizes.map(|sizes| spec.numbers(&sizes.iter().flat_map(numbers).collect::<Vec<_>>()))
        };
        let (resolution, aspect) = (of(0..2), of(2..3));
        let inputs = [
            ("pooled", input.pooled.map(<[f32]>::to_vec), spec.pooled_width().is_some()),
            ("guidance", guidance, spec.reads_guidance()),
            ("resolution", resolution, spec.reads_sizes()),
            ("aspect", aspect, spec.reads_sizes()),
        ];
        for (name, values, read) in inputs {
            match (values, read) {
                (Some(values), true) => run.give(name, &values)?,
                (None, false) => {}
                (Some(_), false) => return Err(Error::config(name, "values", "none: this model reads none")),
                (None, true) => return Err(Error::config(name, "none", "values for each picture")),
            }
        }
        if let Some(positions) = spec.positions(conditions.size) {
            run.give("positions", &positions.repeat(conditions.items))?;
        }
        run.prepare(&self.loaded)
    }

    /// One step at these times of training, 0 to 1000: rows like the sample's.
    ///
    /// # Errors
    /// As [`Transformer::begin`], which comes first.
    pub async fn step(&mut self, sample: &[f32], times: &[f64]) -> Result<Vec<f32>> {
        let rows = self.spec.numbers(times);
        let Some((_, run)) = &mut self.current else {
            return Err(Error::internal("a step before the first call of `begin`"));
        };
        run.give("sample", sample)?;
        run.give("time", &rows)?;
        run.step_by(&self.loaded, &mut self.graphs)?;
        run.read(0).await
    }
}
