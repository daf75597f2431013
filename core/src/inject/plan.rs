//! The visible result of injection: every op of a step, how it runs and why, with operand, format and bytes.
//! A dry run of the model's own `forward`, so that what it says is what runs.

use super::survey::{Seen, survey};
use crate::Result;
use crate::backend::{Backend, Coverage};
use crate::error::shown_on_a_line;
use crate::mem::{Float, KvFormat, WeightUse};
use crate::model::{Model, Sizes, State};
use crate::ops::Signature;
use crate::policy::Origin;
use std::fmt;

/// One op of the plan.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct PlanRow {
    /// The block; none outside.
    pub layer: Option<usize>,
    /// The operand that it reads as a weight; of other ops their name.
    pub slot: String,
    /// The op.
    pub op: &'static str,
    /// The kernel, when the backend has one of its own.
    pub kernel: Option<String>,
    /// Why the composed default runs, when it does.
    pub composed: Option<String>,
    /// Why nothing runs here, when the backend cannot.
    pub missing: Option<String>,
    /// The operand's shape `[rows, cols]`, if it has one.
    pub shape: Option<[usize; 2]>,
    /// The operand's format.
    pub format: Option<String>,
    /// The operand's bytes.
    pub bytes: usize,
    /// What they are on the device: more where kernels take it in two layouts, or in whole tiles.
    pub device_bytes: usize,
    /// Layouts that it is kept in there; 0 where it is counted in another row, or the op has no operand.
    pub layouts: usize,
    /// How tensor parallelism shards the operand: `column`, `row`, `replicated`.
    pub shard: String,
}

/// How a model runs on a backend.
///
/// `ModelInfo::plan` of the library has the one of a running model, and an example that prints it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct InjectionPlan {
    /// The architecture.
    pub arch: String,
    /// The backend.
    pub backend: String,
    /// Element type of activations.
    pub dtype: Float,
    /// Element type of keys and values.
    pub kv_dtype: KvFormat,
    /// Ops in the order in which they run.
    pub rows: Vec<PlanRow>,
    /// What the policy assumed beyond what the checkpoint says.
    pub assumed: Vec<String>,
    /// The policy, why it was chosen, and the tensors that fill each operand; none for a model built without
    /// a checkpoint.
    pub origin: Option<Origin>,
}

impl InjectionPlan {
    /// A plan without ops, which tests fill.
    #[doc(hidden)]
    pub fn empty(arch: &str, backend: &str, dtype: Float) -> Self {
        let (arch, backend) = (arch.into(), backend.into());
        Self {
            arch,
            backend,
            dtype,
            kv_dtype: dtype.into(),
            rows: Vec::new(),
            assumed: Vec::new(),
            origin: None,
        }
    }

    /// The plan of a model with activations in `dtype` and a cache in `kv_dtype`: a dry run of its own step,
    /// every op with how the very backend that runs it would run it.
    ///
    /// # Errors
    /// Those of the model's `forward`, and of the backend where it has no room for one token.
    pub fn new<B: Backend>(
        backend: &B,
        model: &Model<B::Device>,
        dtype: Float,
        kv_dtype: impl Into<KvFormat>,
    ) -> Result<Self> {
        let kv_dtype = kv_dtype.into();
        let mut rows = Vec::new();
        let mut layer = None;
        for seen in ops(backend, model, dtype, kv_dtype)?.into_iter().filter(|seen| !seen.part) {
            if seen.layer != layer {
                layer = seen.layer;
                let own = layer.and_then(|layer| model.own_block(layer));
                rows.extend(own.map(|name| PlanRow::own(layer, name)));
            }
            rows.push(PlanRow::new(&seen, backend.coverage(&seen.signature), model.origin.as_ref()));
        }
        Ok(Self {
            arch: model.spec.arch.clone(),
            backend: backend.name().into(),
            dtype,
            kv_dtype,
            rows,
            assumed: model.spec.assumed.clone(),
            origin: model.origin.clone(),
        })
    }

    /// Bytes of all operands in the plan.
    pub fn bytes(&self) -> usize {
        self.rows.iter().map(|r| r.bytes).sum()
    }

    /// Rows that the backend runs by the composed default.
    pub fn composed(&self) -> impl Iterator<Item = &PlanRow> {
        self.rows.iter().filter(|r| r.composed.is_some())
    }

    /// Rows that the backend cannot run.
    pub fn missing(&self) -> impl Iterator<Item = &PlanRow> {
        self.rows.iter().filter(|r| r.missing.is_some())
    }
}

/// The ops of one step on a backend's own memory.
fn ops<B: Backend>(
    backend: &B,
    model: &Model<B::Device>,
    dtype: Float,
    kv_dtype: KvFormat,
) -> Result<Vec<Seen>> {
    let sizes = Sizes::smallest(model.spec.family, dtype, kv_dtype, backend.caps().asynchronous);
    let alloc = |bytes| backend.alloc(bytes);
    let state = State::new::<B::Device>(&model.spec, &sizes, &alloc, &|_| Ok(()))?;
    let composed = |signature: &Signature| matches!(backend.coverage(signature), Coverage::Composed(_));
    Ok(survey(model, state, &sizes, &alloc, &backend.attention_plan(sizes.step)?, &composed)?.ops)
}

/// The kernels of a model's step, those of composed ops' parts too, each once.
///
/// # Errors
/// As [`InjectionPlan::new`].
pub fn kernels<B: Backend>(
    backend: &B,
    model: &Model<B::Device>,
    dtype: Float,
    kv_dtype: impl Into<KvFormat>,
) -> Result<Vec<B::Kernel>> {
    let mut all = Vec::new();
    for seen in ops(backend, model, dtype, kv_dtype.into())? {
        if let Coverage::Native(kernel) = backend.coverage(&seen.signature)
            && !all.contains(&kernel)
        {
            all.push(kernel);
        }
    }
    Ok(all)
}

/// How tensor parallelism shards the operand `qkv.weight`: `column`, `row` or `replicated`; empty for a model
/// built without a checkpoint.
fn shard_of(origin: Option<&Origin>, operand: &str) -> String {
    let filled = origin.and_then(|origin| origin.filled.iter().find(|one| one.operand == operand));
    let shard = filled.map_or("", |one| one.shard.as_str());
    shard.split(',').next().unwrap_or_default().to_string()
}

/// `qkv.weight` of `layer 3 qkv.weight`.
fn without_layer(name: &str) -> &str {
    match name.strip_prefix("layer ").and_then(|rest| rest.split_once(' ')) {
        Some((_, operand)) => operand,
        None => name,
    }
}

impl PlanRow {
    pub(super) fn new<K: fmt::Display>(seen: &Seen, coverage: Coverage<K>, origin: Option<&Origin>) -> Self {
        let op = seen.signature.op.name();
        let (kernel, composed, missing) = match coverage {
            Coverage::Native(kernel) => (Some(kernel.to_string()), None, None),
            Coverage::Composed(reason) => (None, Some(reason), None),
            Coverage::Missing(reason) => (None, None, Some(reason)),
        };
        let plain = Self { kernel, composed, missing, ..Self::named(seen.layer, op, op) };
        let Some(weight) = &seen.weight else { return plain };
        let info = &weight.info;
        let operand = without_layer(&info.name);
        let slot = match (info.used_for, weight.first) {
            (WeightUse::EmbeddingAndLinear, false) => "head (tied)",
            _ => operand.trim_end_matches(".weight"),
        };
        Self {
            slot: slot.to_string(),
            shape: Some([info.rows, info.cols]),
            format: Some(info.format.to_string()),
            // Counted where it is read first.
            bytes: if weight.first { info.bytes() } else { 0 },
            device_bytes: if weight.first { weight.device_bytes } else { 0 },
            layouts: if weight.first { weight.layouts } else { 0 },
            shard: shard_of(origin, operand),
            ..plain
        }
    }

    /// A user's own block; the rows below it are what it runs.
    fn own(layer: Option<usize>, name: &str) -> Self {
        Self { kernel: Some(name.to_string()), ..Self::named(layer, "block", "own") }
    }

    fn named(layer: Option<usize>, slot: &str, op: &'static str) -> Self {
        Self {
            layer,
            slot: slot.to_string(),
            op,
            kernel: None,
            composed: None,
            missing: None,
            shape: None,
            format: None,
            bytes: 0,
            device_bytes: 0,
            layouts: 0,
            shard: String::new(),
        }
    }
}

impl fmt::Display for InjectionPlan {
    /// A table; consecutive layers with the same rows are shown once. What a model's or a policy's files say
    /// is shown without control characters, and of a long part its beginning and its end; the fields have all
    /// of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}, activations {}", shown_on_a_line(&self.arch), self.backend, self.dtype)?;
        if self.kv_dtype != self.dtype.into() {
            write!(f, ", keys and values {}", self.kv_dtype)?;
        }
        writeln!(f)?;
        if let Some(Origin { policy, why, .. }) = &self.origin {
            writeln!(f, "policy {}: {}", shown_on_a_line(policy), shown_on_a_line(why))?;
        }
        for assumed in &self.assumed {
            writeln!(f, "assumed: {}", shown_on_a_line(assumed))?;
        }
        writeln!(
            f,
            "{:<9} {:<16} {:<16} {:<9} {:>13} {:>10}  {:<10} kernel",
            "layer", "slot", "op", "format", "shape", "bytes", "shard"
        )?;
        for (label, rows) in self.groups() {
            for row in rows {
                let shape = row.shape.map_or(String::new(), |[r, c]| format!("{r}x{c}"));
                let how = match (&row.kernel, &row.composed, &row.missing) {
                    (Some(kernel), ..) => kernel.clone(),
                    (None, Some(reason), _) => format!("composed: {reason}"),
                    (None, None, Some(reason)) => format!("missing: {reason}"),
                    (None, None, None) => String::new(),
                };
                let how = shown_on_a_line(&how);
                let how = if row.layouts > 1 { format!("{how} (kept in two layouts)") } else { how };
                let bytes = if row.bytes == 0 { String::new() } else { bytes_text(row.bytes) };
                writeln!(
                    f,
                    "{label:<9} {:<16} {:<16} {:<9} {shape:>13} {bytes:>10}  {:<10} {how}",
                    shown_on_a_line(&row.slot),
                    row.op,
                    row.format.as_deref().unwrap_or(""),
                    row.shard,
                )?;
            }
        }
        let (composed, missing) = (self.composed().count(), self.missing().count());
        let native = self.rows.len() - composed - missing;
        write!(f, "{native} slots native, {composed} composed, ")?;
        if missing > 0 {
            write!(f, "{missing} missing, ")?;
        }
        let on_device: usize = self.rows.iter().map(|row| row.device_bytes).sum();
        write!(f, "{} of weights", bytes_text(self.bytes()))?;
        match on_device == self.bytes() {
            true => Ok(()),
            false => write!(f, ", {} on the device", bytes_text(on_device)),
        }
    }
}

impl InjectionPlan {
    /// Runs of layers with the same rows, as `("0-29", rows of the first)`.
    fn groups(&self) -> Vec<(String, Vec<&PlanRow>)> {
        let mut groups: Vec<(Option<usize>, Option<usize>, Vec<&PlanRow>)> = Vec::new();
        for row in &self.rows {
            match groups.last_mut() {
                Some((first, _, rows)) if *first == row.layer => rows.push(row),
                _ => groups.push((row.layer, row.layer, vec![row])),
            }
        }
        let alike = |a: &[&PlanRow], b: &[&PlanRow]| {
            a.len() == b.len()
                && a.iter().zip(b).all(|(x, y)| {
                    PlanRow { layer: None, ..(*x).clone() } == PlanRow { layer: None, ..(*y).clone() }
                })
        };
        let mut merged: Vec<(Option<usize>, Option<usize>, Vec<&PlanRow>)> = Vec::new();
        for (first, last, rows) in groups {
            match merged.last_mut() {
                Some((from, to, have)) if from.is_some() && first.is_some() && alike(have, &rows) => {
                    *to = last
                }
                _ => merged.push((first, last, rows)),
            }
        }
        let label = |first: Option<usize>, last: Option<usize>| match (first, last) {
            (Some(a), Some(b)) if a != b => format!("{a}-{b}"),
            (Some(a), _) => a.to_string(),
            _ => String::new(),
        };
        merged.into_iter().map(|(first, last, rows)| (label(first, last), rows)).collect()
    }
}

/// `1.2 MB`.
pub(crate) fn bytes_text(bytes: usize) -> String {
    match bytes as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_largest_unit_that_they_fill() {
        let shown = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (1_000_000, "1.0 MB"),
            (999_949_999, "999.9 MB"),
            (1_000_000_000, "1.00 GB"),
            (80_000_000_000, "80.00 GB"),
        ];
        for (bytes, text) in shown {
            assert_eq!(bytes_text(bytes), text);
        }
    }

    #[test]
    fn a_row_that_cannot_run_is_shown_with_its_reason() {
        let row = |kernel: Option<&str>, missing: Option<&str>| PlanRow {
            layer: Some(0),
            slot: "up".into(),
            op: "linear",
            kernel: kernel.map(str::to_string),
            composed: None,
            missing: missing.map(str::to_string),
            shape: None,
            format: None,
            bytes: 0,
            device_bytes: 0,
            layouts: 0,
            shard: String::new(),
        };
        let rows = vec![row(Some("linear_f32"), None), row(None, Some("no kernel reads Q9"))];
        let plan = InjectionPlan {
            arch: "Any".into(),
            backend: "some".into(),
            dtype: Float::F32,
            kv_dtype: Float::F32.into(),
            rows,
            assumed: Vec::new(),
            origin: None,
        };
        let text = plan.to_string();
        assert!(text.contains("missing: no kernel reads Q9"), "{text}");
        assert!(text.contains("1 slots native, 0 composed, 1 missing"), "{text}");
        assert_eq!(plan.missing().count(), 1);
    }

    #[test]
    fn what_files_say_stays_on_its_line_and_is_bounded() {
        let hostile = format!("a\u{1b}]0;b\u{7}\npolicy {}", "x".repeat(400_000));
        let mut plan = InjectionPlan::empty(&hostile, "some", Float::F32);
        plan.assumed.push(hostile.clone());
        let row = PlanRow::named(None, &hostile, "linear");
        plan.rows.push(PlanRow { missing: Some(hostile.clone()), ..row });
        plan.origin = Some(Origin { policy: hostile.clone(), why: hostile.clone(), filled: Vec::new() });
        let text = plan.to_string();
        assert!(text.len() < 12_000, "{} bytes", text.len());
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{text:?}");
        assert!(text.lines().all(|line| !line.starts_with("policy x")), "{text}");
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.starts_with("a\\u{1b}]0;b\\u{7}\\npolicy xxx"), "{text}");
    }
}
