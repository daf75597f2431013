//! Whole inputs through the model at once: hidden states, logits, embeddings, scores. Decoders and encoders
//! alike.
//!
//! `forward` is what all of it stands on; inputs are ragged, or padded on either side with a mask. Results
//! are ragged: rows of real tokens only, in the order of the input. Pooling and log-probabilities are
//! computed on the host in f64.

use super::api::Engine;
use super::input::{EncoderInput, ForwardWant, Pick};
use super::texts::Texts;
use crate::backend::Backend;
use crate::policy::Family;
use crate::{Error, Result};

/// Token ids of several sequences.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Batch<'a> {
    /// Each by itself.
    Ragged(&'a [Vec<u32>]),
    /// `[sequences, width]` ids and a mask of the same shape, 0 where there is padding, on the left or on the
    /// right.
    Padded {
        /// `[sequences * width]`.
        ids: &'a [u32],
        /// `[sequences * width]`.
        mask: &'a [u8],
        /// Columns.
        width: usize,
    },
}

/// What the model says of one sequence; absent parts are empty.
///
/// The library's `EngineHandle::forward` gives it, and has an example.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Forwarded {
    /// `[tokens, hidden]` of the layers asked for, in their order.
    pub hidden: Vec<Vec<f32>>,
    /// `[tokens asked for, vocab]`; of a model that labels texts `[labels]`.
    pub logits: Vec<f32>,
    /// The pooled row, of models that pool.
    pub pooled: Vec<f32>,
}

/// How the hidden states of a text, a row per token, become one.
///
/// The library's `TextGenerator::embed` takes it, and has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// The mean of all rows.
    Mean,
    /// The first row (BERT's class token).
    First,
    /// The last row (decoders).
    Last,
    /// What the model's own pooler gives (BERT's dense layer, CLIP's projection).
    Model,
}

impl Batch<'_> {
    /// The sequences without padding.
    ///
    /// # Errors
    /// `Request`, numbered by sequence: nothing but padding, or a mask with a hole; `Config` for sizes that
    /// do not go together.
    fn sequences(&self) -> Result<Vec<Vec<u32>>> {
        let (ids, mask, width) = match self {
            Batch::Ragged(all) => return Ok(all.to_vec()),
            Batch::Padded { ids, mask, width } => (ids, mask, *width),
        };
        if width == 0 || !ids.len().is_multiple_of(width) || mask.len() != ids.len() {
            let got = format!("{} ids, {} of the mask, width {width}", ids.len(), mask.len());
            return Err(Error::config("padded batch", got, "ids and mask of the same whole rows"));
        }
        let mut all = Vec::new();
        for (i, (row, mask)) in ids.chunks(width).zip(mask.chunks(width)).enumerate() {
            let real = |m: &u8| *m != 0;
            let no = |what: &str| Err(Error::Request { id: i as u64, what: what.into() });
            let (Some(from), Some(last)) = (mask.iter().position(real), mask.iter().rposition(real)) else {
                return no("the mask leaves nothing of it");
            };
            if !mask[from..=last].iter().all(real) {
                return no("the mask has a hole; padding may stand on the left or on the right only");
            }
            all.push(row[from..=last].to_vec());
        }
        Ok(all)
    }
}

/// Rows `rows` of `[_, cols]`.
fn rows_of(values: &[f32], cols: usize, rows: &[usize]) -> Vec<f32> {
    rows.iter().flat_map(|r| values[r * cols..(r + 1) * cols].iter().copied()).collect()
}

impl<B: Backend> Engine<B> {
    /// Runs sequences through the model and returns what `want` asks for; they ride in the same steps as
    /// requests that are running.
    ///
    /// # Errors
    /// `Request`, numbered by sequence, for empty or too long ones, ids beyond the vocabulary, layers or
    /// tokens that are not there.
    pub fn forward(&mut self, batch: Batch<'_>, want: &ForwardWant) -> Result<Vec<Forwarded>> {
        let sequences = batch.sequences()?;
        let texts: Vec<EncoderInput> = sequences.into_iter().map(EncoderInput::from).collect();
        self.forward_texts(&texts, want)
    }

    /// The same for texts with token types.
    ///
    /// # Errors
    /// As [`Engine::forward`].
    pub fn forward_texts(&mut self, texts: &[EncoderInput], want: &ForwardWant) -> Result<Vec<Forwarded>> {
        let queued = self.submit_texts(texts, want)?;
        self.run_until(queued.ids())?;
        self.take_forwarded(queued)
    }

    /// What the model says of texts whose requests have ended.
    ///
    /// # Errors
    /// `Internal` where one has not.
    pub fn take_forwarded(&mut self, texts: Texts) -> Result<Vec<Forwarded>> {
        let (layers, cols) = (self.model().blocks.len() + 1, self.model().spec.logit_cols());
        let per_token = self.model().spec.head.is_per_token();
        // Of a decoder's prompt the rows from the first that is asked for on are kept.
        let decodes = self.model().spec.family == Family::Decoder;
        let (want, tokens) = (texts.want().clone(), texts.tokens().to_vec());
        let whole = self.take_texts(texts)?;
        let mut all = Vec::with_capacity(whole.len());
        for (i, (mut one, count)) in whole.into_iter().zip(tokens).enumerate() {
            let picked = want.hidden.among(layers, i, "layer")?;
            let hidden = match one.hidden.len() {
                // The last layer alone was kept.
                1 if layers > 1 => picked.iter().map(|_| std::mem::take(&mut one.hidden[0])).collect(),
                _ => picked.iter().filter_map(|layer| one.hidden.get(*layer).cloned()).collect(),
            };
            let mut tokens = want.logits.among(count, i, "token")?;
            let before = if decodes { want.logits.first(count) } else { 0 };
            tokens.iter_mut().for_each(|token| *token -= before);
            let logits = match (per_token, tokens.is_empty()) {
                (true, _) => rows_of(&one.logits, cols, &tokens),
                (false, true) => Vec::new(),
                (false, false) => one.logits,
            };
            all.push(Forwarded { hidden, logits, pooled: one.pooled });
        }
        Ok(all)
    }

    /// One row per text: the last hidden states pooled, of length 1 where `normalize` asks for it.
    ///
    /// # Errors
    /// As [`Engine::forward`]; `Architecture` for the pooler of a model that has none.
    pub fn embed(
        &mut self,
        texts: &[EncoderInput],
        pooling: Pooling,
        normalize: bool,
    ) -> Result<Vec<Vec<f32>>> {
        let queued = self.submit_embed(texts, pooling)?;
        self.run_until(queued.ids())?;
        self.take_embedded(queued, pooling, normalize)
    }

    /// Queues texts to embed.
    ///
    /// # Errors
    /// As [`Engine::embed`].
    pub fn submit_embed(&mut self, texts: &[EncoderInput], pooling: Pooling) -> Result<Texts> {
        let spec = &self.model().spec;
        if spec.encoder.is_some() {
            return Err(Error::Architecture {
                op: "embed".into(),
                arch: spec.arch.clone(),
                reason: "its hidden states are those of its decoder's tokens: `forward` gives them".into(),
            });
        }
        if pooling == Pooling::Model && (spec.pooler.is_none() || spec.family == Family::Decoder) {
            return Err(Error::Architecture {
                op: "embed".into(),
                arch: spec.arch.clone(),
                reason: "this model has no pooler: choose mean, first or last".into(),
            });
        }
        self.submit_texts(texts, &ForwardWant { hidden: Pick::Last, logits: Pick::None })
    }

    /// The rows of texts whose requests have ended.
    ///
    /// # Errors
    /// As [`Engine::take_forwarded`].
    pub fn take_embedded(
        &mut self,
        texts: Texts,
        pooling: Pooling,
        normalize: bool,
    ) -> Result<Vec<Vec<f32>>> {
        let (all, width) = (self.take_forwarded(texts)?, self.model().spec.out_width());
        Ok(all.into_iter().map(|one| pool(&one, width, pooling, normalize)).collect())
    }

    /// Log-probabilities (base e) of every token but the first, given those before it, by a decoder. Of a
    /// model with an encoder those of [`EncoderInput::decoder`], all of them, given what the encoder reads,
    /// the decoder's own first token and those before.
    ///
    /// # Errors
    /// As [`Engine::forward`]; `Architecture` for encoders; `Request`, numbered by sequence, for one without
    /// anything to score next to what an encoder reads.
    pub fn score<T: Into<EncoderInput> + Clone>(&mut self, sequences: &[T]) -> Result<Vec<Vec<f32>>> {
        let sequences: Vec<EncoderInput> = sequences.iter().cloned().map(Into::into).collect();
        let queued = self.submit_score(&sequences)?;
        self.run_until(queued.ids())?;
        self.take_scored(queued, &sequences)
    }

    /// Queues sequences to score.
    ///
    /// # Errors
    /// As [`Engine::score`].
    pub fn submit_score(&mut self, sequences: &[EncoderInput]) -> Result<Texts> {
        let spec = &self.model().spec;
        let no = match (spec.family, spec.head.is_per_token()) {
            (Family::Encoder, _) => Some("an encoder does not continue texts"),
            (Family::Decoder, false) => {
                Some("a model that labels texts generates none; `classify` is for it")
            }
            (Family::Decoder, true) => None,
        };
        if let Some(reason) = no {
            let arch = spec.arch.clone();
            return Err(Error::Architecture { op: "score".into(), arch, reason: reason.into() });
        }
        let bare = |input: &EncoderInput| input.decoder.is_empty();
        if let (Some(_), Some(id)) = (&spec.encoder, sequences.iter().position(bare)) {
            let what = "no tokens to score; `decoder` has those that follow what the encoder reads".into();
            return Err(Error::Request { id: id as u64, what });
        }
        self.submit_texts(sequences, &ForwardWant { hidden: Pick::None, logits: Pick::All })
    }

    /// The log-probabilities of sequences whose requests have ended.
    ///
    /// # Errors
    /// As [`Engine::take_forwarded`].
    pub fn take_scored(&mut self, texts: Texts, sequences: &[EncoderInput]) -> Result<Vec<Vec<f32>>> {
        let (all, cols) = (self.take_forwarded(texts)?, self.model().spec.logit_cols());
        let of_encoder = self.model().spec.encoder.is_some();
        let score = |(input, one): (&EncoderInput, Forwarded)| {
            let scored = if of_encoder { &input.decoder } else { input.ids.get(1..).unwrap_or_default() };
            let next = scored.iter().zip(one.logits.chunks(cols));
            next.map(|(id, logits)| log_probability(logits, *id as usize)).collect()
        };
        Ok(sequences.iter().zip(all).map(score).collect())
    }
}

/// `logits[id] - log(sum of exp(logits))`.
fn log_probability(logits: &[f32], id: usize) -> f32 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    let sum: f64 = logits.iter().map(|v| libm::exp(f64::from(*v) - f64::from(max))).sum();
    (f64::from(logits[id]) - f64::from(max) - libm::log(sum)) as f32
}

/// The rows of a text as one.
fn pool(one: &Forwarded, cols: usize, pooling: Pooling, normalize: bool) -> Vec<f32> {
    let rows = one.hidden.first().map_or(&[] as &[f32], Vec::as_slice);
    let widen = |row: &[f32]| row.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
    let mut pooled = match pooling {
        Pooling::Model => widen(&one.pooled),
        Pooling::First => widen(rows.get(..cols).unwrap_or_default()),
        Pooling::Last => widen(rows.rchunks(cols).next().unwrap_or_default()),
        Pooling::Mean => {
            let count = (rows.len() / cols.max(1)).max(1) as f64;
            let mut sum = vec![0.0; cols];
            for row in rows.chunks_exact(cols.max(1)) {
                sum.iter_mut().zip(row).for_each(|(s, v)| *s += f64::from(*v));
            }
            sum.iter().map(|s| s / count).collect()
        }
    };
    let length = pooled.iter().map(|v| v * v).sum::<f64>().sqrt();
    if normalize && length > 0.0 {
        pooled.iter_mut().for_each(|v| *v /= length);
    }
    pooled.into_iter().map(|v| v as f32).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn padding_on_either_side_is_stripped_and_holes_are_refused() {
        let ids = [0, 0, 5, 6, 7, 8, 0, 0];
        let of = |mask: &[u8]| Batch::Padded { ids: &ids, mask, width: 4 }.sequences();
        assert_eq!(of(&[0, 0, 1, 1, 1, 1, 0, 0]).unwrap(), [[5, 6], [7, 8]]);
        assert!(
            of(&[0, 0, 1, 1, 1, 0, 1, 0]).unwrap_err().to_string().contains("request 1: the mask has a hole")
        );
        assert!(of(&[0, 0, 0, 0, 1, 0, 0, 0]).unwrap_err().to_string().contains("leaves nothing"));
        assert!(Batch::Padded { ids: &ids, mask: &[1; 8], width: 3 }.sequences().is_err());
    }

    #[test]
    fn rows_are_pooled_and_normed() {
        let one = Forwarded { hidden: vec![vec![1.0, 2.0, 5.0, 6.0]], ..Default::default() };
        assert_eq!(pool(&one, 2, Pooling::Mean, false), [3.0, 4.0]);
        assert_eq!(pool(&one, 2, Pooling::Mean, true), [0.6, 0.8]);
        assert_eq!(pool(&one, 2, Pooling::First, false), [1.0, 2.0]);
        assert_eq!(pool(&one, 2, Pooling::Last, false), [5.0, 6.0]);
    }

    #[test]
    fn log_probabilities_add_up_to_one() {
        let logits = [1.0, -2.0, 100.0, 99.0];
        let total: f64 = (0..4).map(|i| f64::from(log_probability(&logits, i)).exp()).sum();
        assert!((total - 1.0).abs() < 1e-6);
    }
}
