//! Bugs that are planted in attention over pages and over plain rows.

use crate::bug::{Bug, Strike};
use crate::laws::{ALONE, ORACLE, UNSEEN};
use engraft_core::Result;
use engraft_core::ops::{self, AttentionOp, Op};
use engraft_core::params::{Relative, Scores};
use engraft_cpu::Cpu;

/// Planted in attention.
pub const BUGS: &[Bug] = &[
    Bug::new("AttendScaleOnePercent", "attend", ORACLE, scale_one_percent),
    Bug::new("AttendIgnoresChunks", "attend", ORACLE, ignores_chunks),
    Bug::new("AttendIgnoresWindow", "attend", ORACLE, ignores_window),
    Bug::new("AttendNotCausal", "attend", ORACLE, not_causal),
    Bug::new("AttendIgnoresSlopes", "attend", ORACLE, ignores_slopes),
    Bug::new("AttendIgnoresCap", "attend", ORACLE, ignores_cap),
    Bug::new("AttendIgnoresSinks", "attend", ORACLE, ignores_sinks),
    Bug::new("AttendIgnoresBias", "attend", ORACLE, ignores_bias),
    Bug::new("AttendBitsDependOnBatch", "attend", ALONE, bits_depend_on_batch),
    Bug::new("DenseUnseenValuesCount", "attend_dense", UNSEEN, unseen_values_count),
    Bug::new("DenseWindowOneWider", "attend_dense", ORACLE, window_one_wider),
    Bug::new("DenseSeesAllAhead", "attend_dense", ORACLE, sees_all_ahead),
    Bug::new("DenseBiasOneFurther", "attend_dense", ORACLE, bias_one_further),
];

/// Attention over pages with other scores.
fn scored(s: &mut Strike<'_>, op: Op<'_, Cpu>, wrong: impl Fn(&mut Scores)) -> Result<()> {
    let Op::Attention(AttentionOp::Attend(op)) = op else { return s.run(op) };
    let mut scores = op.scores.clone();
    wrong(&mut scores);
    s.run(ops::Attend { scores: &scores, ..op })
}

pub(super) fn scale_one_percent(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    scored(s, op, |scores| scores.scale *= 1.01)
}

fn ignores_chunks(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    scored(s, op, |scores| scores.chunk = None)
}

fn ignores_window(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    scored(s, op, |scores| scores.window = None)
}

fn not_causal(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    scored(s, op, |scores| scores.causal = false)
}

fn ignores_slopes(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    scored(s, op, |scores| scores.alibi = None)
}

fn ignores_cap(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    scored(s, op, |scores| scores.soft_cap = None)
}

fn ignores_sinks(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::Attend(op)) = op else { return s.run(op) };
    s.run(ops::Attend { sinks: None, ..op })
}

fn ignores_bias(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::Attend(op)) = op else { return s.run(op) };
    let scores = Scores { relative: None, ..op.scores.clone() };
    s.run(ops::Attend { scores: &scores, bias: None, ..op })
}

fn bits_depend_on_batch(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::Attend(op)) = op else { return s.run(op) };
    let (mut out, bounds) = (s.spot(op.out.as_ref())?, s.words(op.seqs.bounds)?);
    s.run(op)?;
    // More than one sequence; the rows behind the last bound belong to none.
    match bounds.last() {
        Some(live) if bounds.len() > 2 => s.nudge(&mut out, *live as usize),
        _ => Ok(()),
    }
}

/// As where values are multiplied by the weight 0: NaN in the first row.
fn unseen_values_count(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::AttendDense(op)) = op else { return s.run(op) };
    let (v, mut out) = (s.spot(op.v)?, s.spot(op.out.as_ref())?);
    s.run(op)?;
    match s.values(&v)?.iter().all(|v| v.is_finite()) {
        true => Ok(()),
        false => s.set(&mut out, 0, 0, f32::NAN),
    }
}

fn window_one_wider(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::AttendDense(op)) = op else { return s.run(op) };
    let mut scores = op.scores.clone();
    scores.window = scores.window.map(|w| w + 1);
    s.run(ops::AttendDense { scores: &scores, ..op })
}

fn sees_all_ahead(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::AttendDense(op)) = op else { return s.run(op) };
    let scores = Scores { ahead: None, ..op.scores.clone() };
    s.run(ops::AttendDense { scores: &scores, ..op })
}

/// As many biases, a position further ahead.
fn bias_one_further(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::AttendDense(op)) = op else { return s.run(op) };
    let mut scores = op.scores.clone();
    if let Some(Relative { behind, ahead }) = scores.relative.as_mut().filter(|r| r.ahead > 0) {
        (*behind, *ahead) = (*behind + 1, *ahead - 1);
    }
    s.run(ops::AttendDense { scores: &scores, ..op })
}
