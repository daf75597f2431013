//! Steps that are captured and replayed against the same steps op by op: equal bits, whatever changes from
//! one run to the next, and a step captured anew where steps change.

use super::golden::Result;
use engraft_core::backend::{Backend, block_on};
use engraft_diffusion::{ImageRequest, Images, Pipeline, PipelineOptions, Seeded, StepCounts};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// What is asked for at a size.
pub type Request<'a> = &'a dyn Fn((usize, usize)) -> ImageRequest;

/// What changes from one run of a pipeline to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing but the seed.
    Seed,
    /// The texts.
    Texts,
    /// How much they count.
    Scale,
    /// Two pictures at once.
    Pictures,
    /// No guidance, at half the pictures of a step.
    Unguided,
    /// A line of latents more.
    Size,
}

impl Change {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Texts, Self::Scale, Self::Pictures, Self::Unguided, Self::Size, Self::Seed];

    /// Whether steps are others.
    fn is_another_step(self) -> bool {
        matches!(self, Self::Pictures | Self::Unguided | Self::Size)
    }

    /// A request, `of` so many pixels, with this change.
    fn request(self, of: Request<'_>, (width, height): (usize, usize)) -> ImageRequest {
        let request = of(if self == Self::Size { (width, 2 * height) } else { (width, height) });
        let text = |text: &str| vec![text.to_string()];
        match self {
            Self::Seed | Self::Size => request,
            Self::Texts => ImageRequest { prompts: text("a stone bridge in the rain"), ..request },
            Self::Scale => {
                let (guidance, true_guidance) = (Some(3.0), request.true_guidance.map(|scale| scale + 1.0));
                ImageRequest { guidance, true_guidance, ..request }
            }
            Self::Pictures => ImageRequest { prompts: [text("a fox"), text("a dog")].concat(), ..request },
            Self::Unguided => ImageRequest { guidance: Some(1.0), true_guidance: None, ..request },
        }
    }
}

/// Two pipelines of a folder.
struct Both<B: Backend> {
    captured: Pipeline<B>,
    op_by_op: Pipeline<B>,
    /// Steps of a run, all together, and models that step.
    steps: u64,
    models: u64,
}

impl<B: Backend> Both<B> {
    /// Runs a request on both.
    fn run(&mut self, request: &ImageRequest, seed: u64) -> Result<()> {
        let mut steps = 0;
        let mut run = |pipeline: &mut Pipeline<B>| -> Result<Images> {
            let images = block_on(pipeline.run(request, &mut Seeded(seed), &mut |_| {
                steps += 1;
                ControlFlow::Continue(())
            }));
            images.map_err(|e| e.to_string())?.ok_or_else(|| "the run has ended early".into())
        };
        let (got, want) = (run(&mut self.captured)?, run(&mut self.op_by_op)?);
        self.steps += steps / 2 * self.models;
        match got.latents == want.latents && got.decoded == want.decoded {
            true => Ok(()),
            false => Err("captured steps give other bits than the same op by op".into()),
        }
    }

    /// Whether as many steps were captured and all of them replayed.
    fn check(&self, captured: u64) -> Result<()> {
        let counts =
            |captured, replayed, op_by_op| StepCounts { captured, replayed, op_by_op, refused: None };
        let pairs = [
            (self.captured.step_counts(), counts(captured, self.steps, 0)),
            (self.op_by_op.step_counts(), counts(0, 0, self.steps)),
        ];
        match pairs.iter().find(|(got, want)| got != want) {
            None => Ok(()),
            Some((got, want)) => Err(format!("{got:?}, not {want:?}")),
        }
    }
}

/// Runs a pipeline with captured steps and op by op: what `of` asks for, and that with each change, and at
/// last again as it was; gives how many steps there were, and how many of them were captured.
///
/// # Errors
/// For other bits, a step that is captured too often, not at all or run op by op; what loading and running
/// raise.
pub fn captured_steps<B: Backend>(
    backend: &Arc<B>,
    folder: &Path,
    (of, size): (Request<'_>, (usize, usize)),
    changes: &[Change],
) -> Result<(u64, u64)> {
    let load = |graphs| {
        let options = PipelineOptions { graphs, ..PipelineOptions::default() };
        Pipeline::load(backend, folder, &options).map_err(|e| e.to_string())
    };
    let models = if of(size).control.is_some() { 2 } else { 1 };
    let mut both = Both { captured: load(true)?, op_by_op: load(false)?, steps: 0, models };
    let (mut captured, mut changed) = (0, true);
    let runs = [&[Change::Seed][..], changes, &[Change::Seed][..]].concat();
    for (change, seed) in runs.into_iter().zip(7..) {
        // Steps are others where those of this run or of the one before are not as asked for.
        captured += u64::from(changed || change.is_another_step()) * models;
        changed = change.is_another_step();
        let run = both.run(&change.request(of, size), seed).and_then(|()| both.check(captured));
        run.map_err(|e| format!("{change:?}: {e}"))?;
    }
    Ok((both.steps, captured))
}
