//! `engraft plan`: the injection plan of a model, or of a model's configuration alone.

use super::args::PlanArgs;
use super::failure::Outcome;
use super::output::{emit, json};
use engraft::engraft_core::policy::Origin;
use engraft::{Error, ModelSource, Options, is_configuration};
use serde_json::Value;
use std::path::Path;

pub fn run(args: &PlanArgs) -> Outcome {
    let (source, options) = args.model.read(args.path.as_deref())?;
    if let ModelSource::Path(path) = &source
        && is_configuration(path)?
    {
        return of_configuration(args, path, options);
    }
    let mut loading = super::output::Loading::default();
    let handle = options.progress(move |done, total| loading.show(done, total)).start(source)?;
    let (plan, memory) = (&handle.info().plan, &handle.info().memory);
    if args.json {
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
    tensors(args, plan.origin.as_ref())
}

/// The plan of a model without weights.
fn of_configuration(args: &PlanArgs, path: &Path, options: Options) -> Outcome {
    let (sketch, group) = options.sketch(path)?;
    if args.json {
        let mut all = value(serde_json::to_value(&sketch.plan))?;
        let sizes = [("parameters", sketch.parameters), ("weights", sketch.weights)];
        for (name, size) in sizes.into_iter().chain([("kv_bytes", sketch.kv_bytes as u64)]) {
            all[name] = size.into();
        }
        all["group"] = value(serde_json::to_value(&group))?;
        return json(&all);
    }
    match &group {
        Some(group) => emit(&format!("{sketch}\n\n{group}\n"))?,
        None => emit(&format!("{sketch}\n"))?,
    }
    tensors(args, sketch.plan.origin.as_ref())
}

/// Which tensors fill the operands, where that was asked for.
fn tensors(args: &PlanArgs, origin: Option<&Origin>) -> Outcome {
    match origin.filter(|_| args.tensors) {
        Some(origin) => emit(&format!("\n{origin}\n")),
        None => Ok(()),
    }
}

fn value(part: serde_json::Result<Value>) -> Result<Value, Error> {
    part.map_err(|e| Error::internal(e.to_string()))
}
