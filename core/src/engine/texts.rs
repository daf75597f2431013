//! Texts of one call as requests: checked, queued, taken when they have ended.

use super::api::Engine;
use super::coordinator::{Coordinator, Live, Wanted};
use super::input::{EncoderInput, ForwardWant, Pick};
use super::kept::Kept;
use super::order::lost;
use super::request::{Caller, Layers, Request, Want};
use crate::backend::Backend;
use crate::policy::{Family, HeadSpec, PoolSource};
use crate::{Error, Result};
use std::ops::Range;

/// The texts of one call, each a request of its own that rides in ordinary steps. They are done once a step
/// has reported the end of every one.
#[derive(Debug, Clone, Default)]
pub struct Texts {
    ids: Vec<u64>,
    tokens: Vec<usize>,
    want: ForwardWant,
}

impl Texts {
    /// Their requests, in order.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Whether a request is among them.
    pub fn has(&self, id: u64) -> bool {
        // Requests are numbered as they are queued.
        self.ids.binary_search(&id).is_ok()
    }

    /// Tokens of every text.
    pub(super) fn tokens(&self) -> &[usize] {
        &self.tokens
    }

    /// What was asked for.
    pub(super) fn want(&self) -> &ForwardWant {
        &self.want
    }
}

impl<B: Backend> Engine<B> {
    /// Queues texts and images for this caller from now on. Requests say themselves who they are for.
    pub fn set_caller(&mut self, caller: Caller) {
        self.coordinator.caller = caller;
    }

    /// Queues texts for [`Engine::take_forwarded`].
    ///
    /// # Errors
    /// As [`Engine::forward`]; nothing is queued then.
    pub fn submit_texts(&mut self, texts: &[EncoderInput], want: &ForwardWant) -> Result<Texts> {
        let spec = &self.coordinator.spec;
        for (i, text) in texts.iter().enumerate() {
            self.check_text(i as u64, text)?;
            want.hidden.among(spec.blocks.len() + 1, i, "layer")?;
            want.logits.among(self.coordinator.rows_of(text), i, "token")?;
        }
        match spec.family {
            Family::Encoder => {
                let sound: Vec<EncoderInput> =
                    texts.iter().map(|text| self.coordinator.rows_as_ids(text)).collect();
                let values = texts.iter().map(|text| text.features.to_vec());
                self.enqueue_whole(sound.iter().zip(values), want)
            }
            Family::Decoder => self.enqueue_prompts(texts, want),
        }
    }

    /// What requests that have ended kept, in their order.
    ///
    /// # Errors
    /// `Internal` where one has not ended; `Request`, numbered as the texts are, where the model computed
    /// something that is no number.
    pub(super) fn take_texts(&mut self, texts: Texts) -> Result<Vec<Kept>> {
        let kept = texts.ids.iter().map(|id| self.take_kept(*id).ok_or_else(|| lost("a text's result")));
        let kept: Vec<Kept> = kept.collect::<Result<_>>()?;
        match kept.iter().position(Kept::has_nan) {
            Some(i) => Err(Error::Request { id: i as u64, what: "the model computed NaN for it".into() }),
            None => Ok(kept),
        }
    }

    /// Ends the requests of texts that are not waited for any more.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub fn cancel_texts(&mut self, texts: &Texts) -> Result<()> {
        texts.ids.iter().try_for_each(|id| self.cancel(*id).map(|_| ()))
    }

    /// Texts of an encoder, or images with their pixels.
    pub(super) fn enqueue_whole<'t>(
        &mut self,
        texts: impl Iterator<Item = (&'t EncoderInput, Vec<f32>)>,
        want: &ForwardWant,
    ) -> Result<Texts> {
        let mut queued = Texts { want: want.clone(), ..Texts::default() };
        let standing = self.coordinator.call();
        self.runner.make_room(layers(&want.hidden))?;
        for (text, values) in texts {
            let asked = self.coordinator.head_rows(&text.ids);
            let logits = self.coordinator.spec.logit_cols() > 0 && !asked.is_empty();
            let keep = Want { logits, hidden: layers(&want.hidden), ..Want::default() };
            let token_type_ids = text.token_type_ids.clone();
            let live = Live { want: keep, keeps: true, token_type_ids, values, ..Live::default() };
            let wanted = Wanted { asked, ..Wanted::new(standing) };
            queued.ids.push(self.coordinator.enqueue(text.ids.clone(), wanted, live)?);
            queued.tokens.push(text.ids.len());
        }
        Ok(queued)
    }

    /// A decoder's prompts, nothing sampled.
    fn enqueue_prompts(&mut self, texts: &[EncoderInput], want: &ForwardWant) -> Result<Texts> {
        let labels = matches!(self.coordinator.spec.head, HeadSpec::Labels { .. });
        let (logits, hidden) = (want.logits != Pick::None, layers(&want.hidden));
        let keep = Want { logits, hidden, ..Want::default() };
        let mut queued = Texts { want: want.clone(), ..Texts::default() };
        let standing = self.coordinator.call();
        self.runner.make_room(keep.hidden)?;
        for text in texts {
            let (tokens, source) = self.coordinator.tokens_of(text);
            let rows = tokens.len() - source[1];
            let asked = match (keep.logits, labels) {
                (false, _) => 0..0,
                // What is before the first of them may come from the prefix cache.
                (true, false) => source[1] + want.logits.first(rows)..usize::MAX,
                (true, true) => self.coordinator.head_rows(&text.ids),
            };
            // Labels follow from the tokens up to the token row that the head reads.
            let read = if labels && keep.hidden == Layers::None { asked.end } else { tokens.len() };
            let (ids, token_type_ids) = (tokens[..read.max(1)].to_vec(), text.token_type_ids.clone());
            let of_encoder = as_request(text).source(&self.coordinator.spec);
            let live =
                Live { want: keep, keeps: true, token_type_ids, source: of_encoder, ..Live::default() };
            let wanted = Wanted { asked, source, ..Wanted::new(standing) };
            match self.coordinator.enqueue(ids, wanted, live) {
                Ok(id) => queued.ids.push(id),
                Err(error) => {
                    self.cancel_texts(&queued)?;
                    return Err(error);
                }
            }
            queued.tokens.push(rows);
        }
        Ok(queued)
    }

    fn check_text(&self, id: u64, text: &EncoderInput) -> Result<()> {
        let (spec, config, len) = (&self.coordinator.spec, self.config(), text.ids.len());
        let most = match spec.family {
            Family::Encoder => config.text_tokens(),
            Family::Decoder => config.max_context,
        };
        let no = |what: String| Err(Error::Request { id, what });
        if let (Family::Encoder, Some(stem)) = (spec.family, spec.stem()) {
            self.check_types(id, text)?;
            if !text.decoder.is_empty() {
                return no("a prompt for a decoder; this model is an encoder".into());
            }
            return as_request(text).check_features(id, stem, config.text_tokens());
        }
        if spec.encoder.is_some() || !text.decoder.is_empty() || !text.features.is_empty() {
            self.check_types(id, text)?;
            return as_request(text).check(id, spec, config);
        }
        if len == 0 || len > most {
            let limit = match spec.family {
                Family::Encoder => config.text_limit(spec.max_positions),
                Family::Decoder => config.context_limit(spec.max_positions),
            };
            return no(format!("the text has {len} tokens; allowed: 1 to {limit}"));
        }
        if let Some(bad) = text.ids.iter().find(|t| **t as usize >= spec.vocab) {
            return no(format!("token {bad} is beyond the vocabulary of {}", spec.vocab));
        }
        self.check_types(id, text)
    }

    fn check_types(&self, id: u64, text: &EncoderInput) -> Result<()> {
        let (spec, len) = (&self.coordinator.spec, text.ids.len());
        let no = |what: String| Err(Error::Request { id, what });
        if !text.token_type_ids.is_empty() && text.token_type_ids.len() != len {
            return no(format!("{} token types for {len} tokens", text.token_type_ids.len()));
        }
        let token_types = spec.embed.token_types.unwrap_or(1);
        if let Some(bad) = text.token_type_ids.iter().find(|k| **k as usize >= token_types) {
            return no(format!("token type {bad}; below {token_types} is possible"));
        }
        Ok(())
    }
}

/// A text as a request of which nothing is sampled.
fn as_request(text: &EncoderInput) -> Request {
    let EncoderInput { ids: prompt, decoder: decoder_prompt, features, .. } = text.clone();
    Request { prompt, decoder_prompt, features, ..Request::default() }
}

impl Coordinator {
    /// The tokens of a text as a sequence has them: see [`Request::tokens`].
    fn tokens_of(&self, text: &EncoderInput) -> (Vec<u32>, [usize; 2]) {
        let (tokens, source, _) = as_request(text).tokens(&self.spec, &self.config);
        (tokens, source)
    }

    /// Tokens of a text that have rows of logits and hidden states: all, what a decoder next to an encoder
    /// reads, or what an encoder makes of sound.
    fn rows_of(&self, text: &EncoderInput) -> usize {
        match (&self.spec.encoder, self.spec.stem()) {
            (Some(encoder), _) => encoder.prompt(&text.decoder).len(),
            (None, Some(stem)) => stem.tokens_of(stem.frames_of(text.features.len())),
            (None, None) => text.ids.len(),
        }
    }

    /// The text itself; of sound, which has no ids, as many zeros as it has rows.
    fn rows_as_ids(&self, text: &EncoderInput) -> EncoderInput {
        match self.spec.stem() {
            Some(_) => EncoderInput::from(vec![0; self.rows_of(text)]),
            None => EncoderInput { features: Default::default(), ..text.clone() },
        }
    }

    /// Positions of a whole text whose token rows the head reads: all, the pooled one, or none.
    pub(super) fn head_rows(&self, ids: &[u32]) -> Range<usize> {
        let (len, first) = (ids.len(), self.pooled_row(ids));
        match self.spec.head {
            HeadSpec::Tokens { .. } => 0..len,
            HeadSpec::Labels { .. } => first..first + 1,
            HeadSpec::None if self.spec.pooler.is_some() => first..first + 1,
            HeadSpec::None => 0..0,
        }
    }

    /// The position of the pooled row.
    fn pooled_row(&self, ids: &[u32]) -> usize {
        let last = ids.len() - 1;
        let find = |id: u32| ids.iter().position(|t| *t == id);
        let Some(pool) = self.spec.pooler else { return 0 };
        match pool.from {
            PoolSource::First => 0,
            PoolSource::Last => last,
            PoolSource::LastExcept(id) => ids.iter().rposition(|t| *t != id).unwrap_or(0),
            PoolSource::Token(id) => find(id).unwrap_or(last),
            PoolSource::LargestToken => ids.iter().max().and_then(|id| find(*id)).unwrap_or(last),
        }
    }
}

/// The layers to keep for those that are picked.
fn layers(picked: &Pick) -> Layers {
    match picked {
        Pick::None => Layers::None,
        Pick::Last => Layers::Last,
        Pick::Some(_) | Pick::All => Layers::All,
    }
}
