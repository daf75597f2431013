//! Logits and hidden states kept for requests that asked for them.

/// What a request asked to keep.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Kept {
    /// Rows of logits one after the other: those that follow every prompt token, then those that follow every
    /// sampled token but the last, which no step reads.
    pub logits: Vec<f32>,
    /// The rows of every position, of each layer that was asked for ([`super::Layers`]; 0 of all: what enters
    /// the first block).
    pub hidden: Vec<Vec<f32>>,
    /// The log-probability (base e) of every sampled token, by its row of logits as rules leave it, before
    /// temperature and penalty.
    pub logprobs: Vec<f32>,
    /// The pooled row, of models that pool.
    pub pooled: Vec<f32>,
}

impl Kept {
    /// Whether something in it is no number.
    pub(super) fn has_nan(&self) -> bool {
        let mut all = self.hidden.iter().chain([&self.logits, &self.pooled]).flatten();
        all.any(|v| v.is_nan())
    }

    /// Adds rows to hidden state `place` of those that are kept.
    pub(super) fn add_hidden(&mut self, place: usize, rows: &[f32]) {
        if self.hidden.len() <= place {
            self.hidden.resize(place + 1, Vec::new());
        }
        self.hidden[place].extend_from_slice(rows);
    }
}
