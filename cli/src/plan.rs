//! `engraft plan`: the injection plan of a model.

use super::args::PlanArgs;
use super::failure::Outcome;
use super::output::{emit, json};
use engraft::Error;

pub fn run(args: &PlanArgs) -> Outcome {
    let (source, options) = args.model.read(args.path.as_deref())?;
    let mut loading = super::output::Loading::default();
    let handle = options.progress(move |done, total| loading.show(done, total)).start(source)?;
    let plan = &handle.info().plan;
    if args.json {
        return json(&serde_json::to_value(plan).map_err(|e| Error::internal(e.to_string()))?);
    }
    emit(&format!("{plan}\n"))?;
    match plan.origin.as_ref().filter(|_| args.tensors) {
        Some(origin) => emit(&format!("\n{origin}\n")),
        None => Ok(()),
    }
}
