//! Where time goes: spans per op and layer, per-layer sums, a Chrome trace.
//!
//! A [`Probe`] collects pairs of stream events while a step runs; [`Probe::resolve`] turns them into a
//! [`Profile`] after the stream has been synchronised, so that a GPU's own clock is what counts. Probing
//! switches replay off (a replayed step has no ops to put events between) and allocates; production steps run
//! without.

use crate::Result;
use crate::backend::{Backend, Stream};
use crate::ops::OpKind;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Events around the ops of a step.
#[doc(hidden)]
#[derive(Debug)]
pub struct Probe<E> {
    layer: Option<usize>,
    spans: Vec<(OpKind, Option<usize>, E, E)>,
}

impl<E> Default for Probe<E> {
    fn default() -> Self {
        Self { layer: None, spans: Vec::new() }
    }
}

impl<E> Probe<E> {
    /// Ops from here on belong to `layer` (none: before the first or after the last).
    pub fn enter(&mut self, layer: Option<usize>) {
        self.layer = layer;
    }

    pub(crate) fn push(&mut self, op: OpKind, from: E, to: E) {
        self.spans.push((op, self.layer, from, to));
    }

    /// Reads the clock of every span; times are relative to the first. The stream must be synchronised.
    pub fn resolve<B>(self, stream: &mut B::Stream) -> Result<Profile>
    where
        B: Backend,
        B::Stream: Stream<B, Event = E>,
    {
        let mut spans = Vec::with_capacity(self.spans.len());
        if let Some((_, _, origin, _)) = self.spans.first() {
            for (op, layer, from, to) in &self.spans {
                let start_us = stream.elapsed_us(origin, from)?;
                spans.push(Span { op: *op, layer: *layer, start_us, us: stream.elapsed_us(from, to)? });
            }
        }
        let mut profile = Profile { spans, steps_ms: Vec::new() };
        profile.steps_ms.push(profile.total_us() / 1e3);
        Ok(profile)
    }
}

/// One op's time.
///
/// ```
/// use engraft_core::profile::Profile;
///
/// // The library's `EngineHandle::take_profile` gives one with spans.
/// let profile = Profile::default();
/// let longest = profile.spans.iter().max_by(|a, b| a.us.total_cmp(&b.us));
/// if let Some(span) = longest {
///     println!("{} of layer {:?} took {:.1} us", span.op.name(), span.layer, span.us);
/// }
/// # assert!(longest.is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Span {
    /// The op.
    pub op: OpKind,
    /// Its layer; none for embedding, head and sampling.
    pub layer: Option<usize>,
    /// Start, microseconds after the first op's.
    pub start_us: f64,
    /// Duration in microseconds.
    pub us: f64,
}

/// The times of one or more steps.
///
/// The library's `EngineHandle::set_profiling` has an example that prints one.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// In the order of execution.
    pub spans: Vec<Span>,
    steps_ms: Vec<f64>,
}

impl Profile {
    /// Adds a later step's spans behind this one's.
    #[doc(hidden)]
    pub fn append(&mut self, later: Profile) {
        let shift = self.spans.last().map_or(0.0, |s| s.start_us + s.us);
        self.steps_ms.extend(later.steps_ms);
        self.spans.extend(later.spans.into_iter().map(|s| Span { start_us: s.start_us + shift, ..s }));
    }

    /// Milliseconds of every step, in order.
    pub fn steps_ms(&self) -> &[f64] {
        &self.steps_ms
    }

    /// Total microseconds and calls per op, the longest first.
    pub fn by_op(&self) -> Vec<(OpKind, f64, usize)> {
        let mut sums: BTreeMap<OpKind, (f64, usize)> = BTreeMap::new();
        for s in &self.spans {
            let entry = sums.entry(s.op).or_default();
            entry.0 += s.us;
            entry.1 += 1;
        }
        let mut rows: Vec<_> = sums.into_iter().map(|(op, (us, n))| (op, us, n)).collect();
        rows.sort_by(|a, b| b.1.total_cmp(&a.1));
        rows
    }

    /// Microseconds per layer, in order; `None` first (embedding, head, sampling).
    pub fn by_layer(&self) -> Vec<(Option<usize>, f64)> {
        let mut sums: BTreeMap<Option<usize>, f64> = BTreeMap::new();
        for s in &self.spans {
            *sums.entry(s.layer).or_default() += s.us;
        }
        sums.into_iter().collect()
    }

    /// Microseconds from the first op's start to the last one's end.
    pub fn total_us(&self) -> f64 {
        self.spans.iter().map(|s| s.start_us + s.us).fold(0.0, f64::max)
    }

    /// The spans in Chrome's trace format (`chrome://tracing`, Perfetto).
    pub fn chrome_trace(&self) -> String {
        let mut text = String::from("{\"traceEvents\":[");
        for (i, s) in self.spans.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let layer = s.layer.map_or(-1, |l| l as i64);
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "{comma}\n{{\"name\":\"{}\",\"cat\":\"op\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":{:.3},\"dur\":{:.3},\"args\":{{\"layer\":{layer}}}}}",
                s.op.name(),
                s.start_us,
                s.us
            );
        }
        text.push_str("\n],\"displayTimeUnit\":\"ms\"}\n");
        text
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ops::{EmbedOpKind, LinearOpKind};

    fn span(op: impl Into<OpKind>, layer: Option<usize>, start_us: f64, us: f64) -> Span {
        Span { op: op.into(), layer, start_us, us }
    }

    #[test]
    fn sums_by_op_and_layer_and_a_trace_that_parses() {
        let p = Profile {
            spans: vec![
                span(EmbedOpKind::Embed, None, 0.0, 1.0),
                span(LinearOpKind::Linear, Some(0), 1.0, 4.0),
                span(LinearOpKind::Linear, Some(1), 5.0, 6.0),
            ],
            steps_ms: vec![],
        };
        assert_eq!(
            p.by_op(),
            vec![(LinearOpKind::Linear.into(), 10.0, 2), (EmbedOpKind::Embed.into(), 1.0, 1)]
        );
        assert_eq!(p.by_layer(), vec![(None, 1.0), (Some(0), 4.0), (Some(1), 6.0)]);
        assert_eq!(p.total_us(), 11.0);
        let trace: serde_json::Value = serde_json::from_str(&p.chrome_trace()).unwrap();
        assert_eq!(trace["traceEvents"].as_array().unwrap().len(), 3);
        assert_eq!(trace["traceEvents"][2]["args"]["layer"], 1);
    }
}
