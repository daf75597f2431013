//! The visible result of injection: per layer and slot the op, how it runs and why, format, bytes.

use crate::backend::{Backend, Coverage, Op, Prepared, Signature};
use crate::mem::{Float, WeightFormat};
use crate::model::Model;
use crate::policy::{Family, HeadSpec, Origin, Placement};
use std::fmt;

/// One slot of the plan.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct PlanRow {
    /// The block; none outside.
    pub layer: Option<usize>,
    /// The slot.
    pub slot: String,
    /// The op that runs there.
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
    pub format: Option<&'static str>,
    /// The operand's bytes.
    pub bytes: usize,
    /// How tensor parallelism cuts the operand.
    pub shard: &'static str,
}

/// How a model runs on a backend.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct InjectionPlan {
    /// The family.
    pub arch: String,
    /// The backend.
    pub backend: String,
    /// Element type of activations.
    pub dtype: Float,
    /// Slots in the order in which they run.
    pub rows: Vec<PlanRow>,
    /// What the policy assumed beyond what the checkpoint says.
    pub assumed: Vec<String>,
    /// The policy, why it was chosen, and the tensors that fill each operand; none for a model built without a checkpoint.
    pub origin: Option<Origin>,
}

impl InjectionPlan {
    /// The plan of a model; `coverage` of the very backend that runs it.
    pub fn new<B: Backend>(backend: &B, model: &Model<B>, dtype: Float) -> Self {
        let mut p = Planner { backend, dtype, layer: None, again: false, rows: Vec::new() };
        let spec = &model.spec;
        if let Some(tokens) = &model.embed.tokens {
            p.weight("token_embed", Op::Embed, tokens, "vocab");
        }
        if let Some(patches) = &model.embed.patches {
            p.weight("patch_embed", Op::Linear, &patches.weight, "replicated");
        }
        if let Some(project) = &model.embed.project {
            p.weight("project_in", Op::Linear, &project.weight, "replicated");
        }
        for (name, table) in [("kind_embed", &model.embed.kinds), ("position_embed", &model.embed.positions)]
        {
            if let Some(table) = table {
                p.weight(name, Op::EmbedAdd, table, "replicated");
            }
        }
        for (i, block) in model.blocks.iter().enumerate() {
            p.layer = Some(i);
            p.again = spec.owner(i) != i;
            if let Some(name) = model.own_block(i) {
                p.own(name);
            }
            let heads = block.spec.heads;
            if let Some(filter) = &block.filter {
                p.op("filter_keep", Op::KvAppend, spec.hidden, 1);
                p.op("filter_before", Op::GatherRows, spec.hidden, spec.hidden);
                p.weight("filter_in", Op::Linear, &filter.first.weight, "replicated");
                p.weight("filter_out", Op::Linear, &filter.second.weight, "replicated");
                p.op("filter_norm", Op::AddNorm, spec.hidden, spec.hidden);
                p.weight("value", Op::Linear, &filter.value.weight, "columns");
            }
            p.weight("qkv", Op::Linear, &block.qkv.weight, "columns");
            if spec.ropes.is_empty() && spec.family == Family::Encoder {
                p.op("attention", Op::AttendDense, heads.k_dim, heads.heads);
            } else {
                p.op("qkv_rope_append", Op::QkvRopeAppend, heads.k_dim, heads.heads);
                p.op("attention", Op::Attend, heads.k_dim, heads.heads);
            }
            p.weight("attn_out", Op::Linear, &block.attn_out.weight, "rows");
            let parallel = spec.placement == Placement::Parallel;
            if !parallel {
                p.meet(block.attn_post.is_some(), spec.hidden);
            }
            if let Some(mlp) = &block.mlp {
                let up = if block.spec.mlp.gated { Op::GatedLinear } else { Op::LinearAct };
                p.weight("up", up, &mlp.up.weight, "columns");
                let down = if parallel { Op::LinearAdd } else { Op::Linear };
                p.weight("down", down, &mlp.down.weight, "rows");
            }
            if let Some(experts) = &block.experts {
                p.weight("router", Op::Linear, &experts.router.weight, "replicated");
                p.op("route", Op::Route, experts.spec.router.top_k, experts.spec.router.experts);
                p.weight("expert_up", Op::ExpertLinear, &experts.up.weight, "columns");
                p.weight("expert_down", Op::ExpertLinear, &experts.down.weight, "rows");
                p.op("combine", Op::Combine, experts.spec.router.top_k, spec.hidden);
                if let Some(join) = &experts.join {
                    p.weight("join", Op::Linear, &join.weight, "replicated");
                }
            }
            p.meet(block.mlp_post.is_some(), spec.hidden);
        }
        (p.layer, p.again) = (None, false);
        if let Some(project) = &model.project_out {
            p.weight("project_out", Op::Linear, &project.weight, "replicated");
        }
        if let Some(dense) = model.head.pooler.as_ref().and_then(|p| p.dense.as_ref()) {
            p.weight("pooler", Op::LinearAct, &dense.weight, "replicated");
        }
        if let Some(transform) = &model.head.transform {
            p.weight("head_dense", Op::LinearAct, &transform.dense.weight, "replicated");
        }
        match (&model.head.weight, &model.embed.tokens, spec.logit_cols()) {
            (Some(weight), ..) => p.weight("head", Op::Linear, weight, "vocab"),
            (None, Some(tokens), 1..) => {
                p.weight("head (tied)", Op::Linear, tokens, "vocab");
                if let Some(row) = p.rows.last_mut() {
                    // Counted where the table stands.
                    row.bytes = 0;
                }
            }
            _ => {}
        }
        if matches!(spec.head, HeadSpec::Tokens { scale, cap, .. } if scale != 1.0 || cap.is_some()) {
            p.op("cap", Op::Scale, spec.logit_cols(), 1);
        }
        if spec.family == Family::Decoder {
            p.op("sample", Op::Sample, spec.vocab, 1);
        }
        Self {
            arch: spec.arch.clone(),
            backend: backend.name().into(),
            dtype,
            rows: p.rows,
            assumed: spec.assumed.clone(),
            origin: model.origin.clone(),
        }
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

struct Planner<'a, B> {
    backend: &'a B,
    dtype: Float,
    layer: Option<usize>,
    /// The operands are an earlier block's, and counted there.
    again: bool,
    rows: Vec<PlanRow>,
}

impl<B: Backend> Planner<'_, B> {
    fn push(&mut self, slot: &str, op: Op, signature: Signature) -> &mut PlanRow {
        let (kernel, composed, missing) = match self.backend.coverage(op, &signature) {
            Coverage::Native(kernel) => (Some(kernel), None, None),
            Coverage::Composed(reason) => (None, Some(reason), None),
            Coverage::Missing(reason) => (None, None, Some(reason)),
        };
        self.rows.push(PlanRow {
            layer: self.layer,
            slot: slot.to_string(),
            op: op.name(),
            kernel,
            composed,
            missing,
            shape: None,
            format: None,
            bytes: 0,
            shard: "",
        });
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    /// A user's own block; the rows below it are what it may run and what it was given.
    fn own(&mut self, name: &str) {
        self.rows.push(PlanRow {
            layer: self.layer,
            slot: "block".into(),
            op: "own",
            kernel: Some(name.to_string()),
            composed: None,
            missing: None,
            shape: None,
            format: None,
            bytes: 0,
            shard: "",
        });
    }

    fn op(&mut self, slot: &str, op: Op, inner: usize, outer: usize) {
        let signature = Signature { dtype: self.dtype, weight: None, inner, outer };
        self.push(slot, op, signature);
    }

    /// What follows a part of a block: the sum with the residual stream and a norm, or (where the part itself is
    /// normed) a norm before.
    fn meet(&mut self, normed: bool, hidden: usize) {
        if normed {
            self.op("post_norm", Op::Norm, hidden, hidden);
            self.op("add_norm", Op::AddNorm, hidden, hidden);
        } else {
            self.op("add_norm", Op::ReduceAddNorm, hidden, hidden);
        }
    }

    fn weight(&mut self, slot: &str, op: Op, w: &Prepared<B::Weight>, shard: &'static str) {
        let weight: Option<WeightFormat> = Some(w.format);
        let signature = Signature { dtype: self.dtype, weight, inner: w.cols, outer: w.rows };
        let bytes = if self.again { 0 } else { w.bytes() };
        let row = self.push(slot, op, signature);
        row.shape = Some([w.rows, w.cols]);
        row.format = Some(w.format.name());
        row.bytes = bytes;
        row.shard = shard;
    }
}

impl fmt::Display for InjectionPlan {
    /// A table; consecutive layers with the same rows are shown once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}, activations {}", self.arch, self.backend, self.dtype)?;
        if let Some(Origin { policy, why, .. }) = &self.origin {
            writeln!(f, "policy {policy}: {why}")?;
        }
        for assumed in &self.assumed {
            writeln!(f, "assumed: {assumed}")?;
        }
        writeln!(
            f,
            "{:<9} {:<16} {:<16} {:<7} {:>13} {:>10}  {:<10} kernel",
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
                let bytes = if row.bytes == 0 { String::new() } else { bytes_text(row.bytes) };
                writeln!(
                    f,
                    "{label:<9} {:<16} {:<16} {:<7} {shape:>13} {bytes:>10}  {:<10} {how}",
                    row.slot,
                    row.op,
                    row.format.unwrap_or(""),
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
        write!(f, "{} of weights", bytes_text(self.bytes()))
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
fn bytes_text(bytes: usize) -> String {
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
            shard: "",
        };
        let rows = vec![row(Some("linear_f32"), None), row(None, Some("no kernel reads Q9"))];
        let plan = InjectionPlan {
            arch: "Any".into(),
            backend: "some".into(),
            dtype: Float::F32,
            rows,
            assumed: Vec::new(),
            origin: None,
        };
        let text = plan.to_string();
        assert!(text.contains("missing: no kernel reads Q9"), "{text}");
        assert!(text.contains("1 slots native, 0 composed, 1 missing"), "{text}");
        assert_eq!(plan.missing().count(), 1);
    }
}
