//! Goldens of text-to-image in the table of all others: a scheduler, a single model, each run of a pipeline.

use super::judge::weigh;
use super::{Expectations, Outcome, Report, Types, Verdict};
use engraft_core::backend::Backend;
use engraft_core::mem::Float;

use image_goldens::{Kind, Plan, Runs, class, component, kind, name, scheduler, tokenizers};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The row of a pipeline's tokenizers among those of its runs.
const TOKENIZERS: &str = "tokenizers";

/// The rows of one folder.
pub struct Pictures<'a, B: Backend> {
    backend: &'a Arc<B>,
    folder: &'a Path,
    kind: Kind,
    types: Types,
    /// Of a pipeline that could be opened.
    runs: Option<Runs<'a, B>>,
    /// Of a single model that ran.
    plan: Option<Plan>,
}

impl<'a, B: Backend> Pictures<'a, B> {
    /// Those of a folder; none where it is no case of text-to-image.
    pub fn open(backend: &'a Arc<B>, folder: &'a Path, types: Types) -> Option<Self> {
        Some(Self { backend, folder, kind: kind(folder)?, types, runs: None, plan: None })
    }

    /// Their names below the folder's; one without a name where it is all one case.
    pub fn rows(&mut self) -> Vec<Option<String>> {
        if self.kind != Kind::Pipeline {
            return vec![None];
        }
        // A folder that cannot be read has one row, which says why.
        self.runs = Runs::open(self.backend, self.folder).ok();
        let Some(runs) = &self.runs else { return vec![None] };
        let tokenizers = self.folder.join("tokenizer_golden.json").is_file().then(|| TOKENIZERS.to_string());
        runs.names().into_iter().chain(tokenizers).map(Some).collect()
    }

    /// A row's name in the table.
    pub fn name(&self, row: Option<&str>) -> String {
        let own = name(self.folder);
        row.map_or(own.clone(), |row| format!("{own}/{row}"))
    }

    /// Why this run has no such row.
    fn left_out(&self, row: Option<&str>) -> Option<&'static str> {
        let models = self.kind != Kind::Scheduler && row != Some(TOKENIZERS);
        match self.types {
            Types { tp: 2.., .. } if models => Some("models of pictures are not shared by ranks"),
            Types { kv: Some(_), .. } if models => Some("models of pictures keep no keys and values"),
            Types { weights: Some(_), .. } if models => Some("weights of pictures stay as they are stored"),
            Types { dtype: Float::F16 | Float::Bf16, .. } if models && self.kind == Kind::Pipeline => {
                Some("errors of a pipeline's steps add up: compared in f32 alone")
            }
            _ => None,
        }
    }

    /// Runs a row and judges it.
    pub fn judge(&mut self, row: Option<&str>, expect: &Expectations) -> Report {
        let (start, case) = (Instant::now(), self.name(row));
        let report = |outcome, verdict, reason| {
            let seconds = start.elapsed().as_secs_f64();
            Report { case: case.clone(), outcome, verdict, seconds, reason }
        };
        if let Some(reason) = self.left_out(row) {
            return report(Outcome::Skipped, None, reason.into());
        }
        let dtype = self.types.dtype;
        let result = match (self.kind, row) {
            (Kind::Scheduler, _) => scheduler(self.folder),
            (Kind::Component, _) => component(self.backend, self.folder, dtype).map(|ran| {
                self.plan = Some(ran.plan);
                ran.verdict
            }),
            (Kind::Pipeline, Some(TOKENIZERS)) => tokenizers(self.folder).map(|texts| {
                let tensor = format!("{texts} texts");
                image_goldens::Verdict { worst: 0.0, tensor }
            }),
            (Kind::Pipeline, Some(run)) => self.run(run),
            (Kind::Pipeline, None) => self.run(""),
        };
        let verdict = result.map(|v| Verdict::of_share(v.worst, v.tensor, dtype));
        let class = class(self.folder).unwrap_or_default();
        let listed = expect.reason_of_picture(&class, &case);
        let (outcome, verdict, reason) = weigh(verdict, listed, dtype);
        report(outcome, verdict, reason)
    }

    /// How the model that ran last was to run; none of pipelines and schedulers.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    fn run(&mut self, run: &str) -> image_goldens::Result<image_goldens::Verdict> {
        match &mut self.runs {
            Some(runs) => runs.run(run),
            None => Runs::open(self.backend, self.folder)?.run(run),
        }
    }
}
