//! `engraft plan`: the injection plan of a model.

use super::args::PlanArgs;
use super::failure::Outcome;
use super::output::{emit, json};
use engraft::Error;
use serde_json::Value;

pub fn run(args: &PlanArgs) -> Outcome {
    let (source, options) = args.model.read(args.path.as_deref())?;
    let mut loading = super::output::Loading::default();
    let handle = options.progress(move |done, total| loading.show(done, total)).start(source)?;
    let (plan, memory) = (&handle.info().plan, &handle.info().memory);
    if args.json {
        let value = |part: serde_json::Result<Value>| part.map_err(|e| Error::internal(e.to_string()));
        let mut all = value(serde_json::to_value(plan))?;
        all["memory"] = value(serde_json::to_value(memory))?;
        all["group"] = value(serde_json::to_value(&handle.info().group))?;
        return json(&all);
    }
    // The plan and the memory of a group's engine are rank 0's.
    match &handle.info().group {
        Some(group) => emit(&format!("{plan}\nrank 0: {memory}\n\n{group}\n"))?,
        None => emit(&format!("{plan}\n{memory}\n"))?,
    }
    match plan.origin.as_ref().filter(|_| args.tensors) {
        Some(origin) => emit(&format!("\n{origin}\n")),
        None => Ok(()),
    }
}
