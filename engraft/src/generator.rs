//! Prompts to text: what most users hold.

use crate::handle::{EngineHandle, ModelInfo};
use crate::labels::Labels;
use crate::sentence::Sentence;
use crate::text::TextProcessor;
use crate::text_stream::TextStream;
use engraft_core::engine::Request;
use engraft_core::sample::{FileRules, SamplingParams};
use engraft_core::text::{ChatTemplate, Message, Tokenizer};
use engraft_core::{Error, Result};
use std::sync::Arc;

/// What a text may look like.
///
/// What is not given here comes from the model's `generation_config.json`; the seed is a new one for every
/// text.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::GenerateOptions;
///
/// let model = engraft::demo()?;
/// let options = GenerateOptions::new().max_new_tokens(24).temperature(0.8).top_k(40).seed(7).stop("\n\n");
/// let mut text = model.generate("This package provides", &options)?;
/// let first = text.text()?;
/// assert_eq!(text.sampling().temperature, 0.8);
/// // The same seed gives the same text.
/// assert_eq!(model.generate("This package provides", &options)?.text()?, first);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Tokens to generate at most.
    pub max_new_tokens: usize,
    /// How tokens are sampled; none: as the model's `generation_config.json` says.
    pub sampling: Option<SamplingParams>,
    /// In place of the temperature that `sampling` or the model has; 0 is greedy.
    pub temperature: Option<f32>,
    /// In place of their `top_k`; 0 is off.
    pub top_k: Option<u32>,
    /// In place of their `top_p`; 1 is off.
    pub top_p: Option<f32>,
    /// In place of their `min_p`; 0 is off.
    pub min_p: Option<f32>,
    /// In place of their `repetition_penalty`; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// In place of the seed of `sampling`; with neither, every text has a new one.
    pub seed: Option<u64>,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Go on after the model's own end tokens (benchmarks).
    pub ignore_end: bool,
    /// Of a model with an encoder: what the decoder begins with, behind its own first token, in the place of
    /// what the model's files say; special tokens are spelled (`fra_Latn`, say, a language).
    pub decoder_prompt: Option<String>,
    /// Texts of users never become control tokens: those that a prompt or a message (of any role but
    /// `system`) spells are taken as text.
    pub no_special_in_user_text: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            sampling: None,
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            seed: None,
            stop: Vec::new(),
            ignore_end: false,
            decoder_prompt: None,
            no_special_in_user_text: false,
        }
    }
}

impl GenerateOptions {
    /// At most 128 tokens, sampled as the model wants.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens to generate at most.
    pub fn max_new_tokens(mut self, tokens: usize) -> Self {
        self.max_new_tokens = tokens;
        self
    }

    /// Always the most probable token, with no penalty.
    pub fn greedy(self) -> Self {
        self.sampling(SamplingParams::default())
    }

    /// Texts of users never become control tokens.
    pub fn no_special_in_user_text(mut self) -> Self {
        self.no_special_in_user_text = true;
        self
    }

    /// How tokens are sampled, all of it: fields that were set one by one are forgotten.
    pub fn sampling(self, params: SamplingParams) -> Self {
        let Self { max_new_tokens, stop, ignore_end, decoder_prompt, no_special_in_user_text, .. } = self;
        let kept = Self { max_new_tokens, stop, ignore_end, ..Self::default() };
        let kept = Self { decoder_prompt, no_special_in_user_text, ..kept };
        Self { sampling: Some(params), ..kept }
    }

    /// Divides logits; 0 is greedy.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Keeps only the `k` best tokens; 0 is off.
    pub fn top_k(mut self, k: u32) -> Self {
        self.top_k = Some(k);
        self
    }

    /// Keeps the best tokens that reach this share of the probability; 1 is off.
    pub fn top_p(mut self, share: f32) -> Self {
        self.top_p = Some(share);
        self
    }

    /// Keeps tokens with at least this share of the best one's probability; 0 is off.
    pub fn min_p(mut self, share: f32) -> Self {
        self.min_p = Some(share);
        self
    }

    /// Makes tokens seen so far less likely; 1 is off.
    pub fn repetition_penalty(mut self, penalty: f32) -> Self {
        self.repetition_penalty = Some(penalty);
        self
    }

    /// The same seed samples the same text; without one, every text has its own.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Goes on after the model's own end tokens (benchmarks).
    pub fn ignore_end(mut self, on: bool) -> Self {
        self.ignore_end = on;
        self
    }

    /// What the decoder of a model with an encoder begins with, behind its own first token.
    pub fn decoder_prompt(mut self, text: impl Into<String>) -> Self {
        self.decoder_prompt = Some(text.into());
        self
    }

    /// What a request is sampled by, where `model` is how the model wants it.
    fn params(&self, model: SamplingParams) -> SamplingParams {
        let base = self.sampling.unwrap_or(model);
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            seed: self.seed.or(base.seed),
        };
        params.seeded()
    }

    /// Adds a string that ends the text.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }
}

/// Something that continues text; object-safe, so that programs can hold any. [`TextGenerator`] has the same
/// methods without this trait. Sealed: only this library implements it, so that it may have more methods.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::{GenerateOptions, Generator};
///
/// let models: Vec<Box<dyn Generator>> = vec![Box::new(engraft::demo()?)];
/// let options = GenerateOptions::new().max_new_tokens(4).greedy();
/// for model in &models {
///     println!("{}: {}", model.info().name, model.generate("This package", &options)?.text()?);
/// }
/// # Ok(())
/// # }
/// ```
pub trait Generator: Send + Sync + sealed::Sealed {
    /// Continues `prompt`.
    ///
    /// # Errors
    /// `Text` for what the tokenizer cannot express, `TextTooLong` for more tokens than the context holds,
    /// `Config` for options out of range, `Request` for an empty or too long prompt, `KvFull` where the cache
    /// could never hold it, `Architecture` for encoders.
    fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<TextStream>;

    /// Answers the last of `messages` by the model's chat template.
    ///
    /// # Errors
    /// As [`Generator::generate`]; `Text` when the model has no template.
    fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<TextStream>;

    /// The model.
    fn info(&self) -> &ModelInfo;
}

/// A model with its text side. Threads share it by reference; their requests run as one batch.
///
/// [`generate`](Self::generate) and [`chat`](Self::chat) return at once; the text's iterator blocks, its
/// stream does not. [`embed`](Self::embed), [`score`](Self::score), [`classify`](Self::classify) and
/// [`answer`](Self::answer) block until all is done: an async program calls them in its runtime's
/// `spawn_blocking`.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::GenerateOptions;
///
/// let model = engraft::demo()?;
/// let options = GenerateOptions::new().max_new_tokens(6).greedy();
/// let texts: Vec<String> = std::thread::scope(|scope| {
///     let prompts = ["This package", "A library for"];
///     let each = prompts.map(|prompt| scope.spawn(|| model.generate(prompt, &options)?.text()));
///     each.into_iter().map(|thread| thread.join().expect("no panic")).collect::<engraft::Result<_>>()
/// })?;
/// assert_eq!(texts.len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TextGenerator {
    handle: EngineHandle,
    processor: TextProcessor,
    pub(crate) labels: Option<Labels>,
    pub(crate) sentence: Sentence,
    pub(crate) truncate: bool,
    /// What its files say of sound.
    #[cfg(feature = "speech")]
    pub(crate) speech: crate::speech_files::SpeechFiles,
}

impl TextGenerator {
    pub(crate) fn new(
        handle: EngineHandle,
        processor: TextProcessor,
        labels: Option<Labels>,
        sentence: Sentence,
        truncate: bool,
    ) -> Self {
        Self {
            handle,
            processor,
            labels,
            sentence,
            truncate,
            #[cfg(feature = "speech")]
            speech: crate::speech_files::SpeechFiles::default(),
        }
    }

    /// The same with what its files say of sound.
    #[cfg(feature = "speech")]
    pub(crate) fn with_speech(self, speech: crate::speech_files::SpeechFiles) -> Self {
        Self { speech, ..self }
    }

    /// The level below: token ids in, token ids out.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.processor.tokenizer
    }

    /// The tokenizer of what its decoder writes: Marian's targets have pieces of their own; none where
    /// nothing says how they are split.
    pub(crate) fn target_tokenizer(&self) -> Option<&Tokenizer> {
        match self.info().arch == "marian" {
            true => self.processor.target.as_ref(),
            false => Some(&self.processor.tokenizer),
        }
    }

    /// How the model likes to be sampled (`generation_config.json`).
    pub fn sampling(&self) -> SamplingParams {
        self.processor.sampling
    }

    /// Whether the model can chat.
    pub fn has_chat_template(&self) -> bool {
        self.processor.template.is_some()
    }

    /// The model's chat template; none where it has none.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.processor.template.as_ref()
    }

    /// Tokens that end a text of this model, in ascending order.
    pub fn stop_ids(&self) -> &[u32] {
        &self.processor.stop_ids
    }

    fn stream(&self, ids: Vec<u32>, options: &GenerateOptions, continues: bool) -> Result<TextStream> {
        let tokenizer = &self.processor.tokenizer;
        let mut detokenizer = tokenizer.decode_stream();
        let decoder_prompt = match &options.decoder_prompt {
            Some(text) => {
                let written = self.target_tokenizer().unwrap_or(tokenizer);
                written.encode_at_most(text, false, self.info().max_context)?
            }
            None => Vec::new(),
        };
        // What an encoder reads is not what its decoder continues.
        if continues && self.info().encoder_layers == 0 {
            // The continuation's first word keeps its blank.
            detokenizer.prime(&ids)?;
        }
        let prompt_tokens = ids.len();
        let stop_ids = if options.ignore_end { Vec::new() } else { self.processor.stop_ids.clone() };
        let sampling = options.params(self.processor.sampling);
        let rules = FileRules {
            // What a text may not end with it is not forced to end with.
            forced_end: self.processor.rules.forced_end.filter(|_| !options.ignore_end),
            ..self.processor.rules.clone()
        };
        let tokens = self.handle.submit(Request {
            prompt: ids,
            max_new_tokens: options.max_new_tokens,
            sampling,
            rules: rules.of_request(options.max_new_tokens).map(Arc::new),
            stop_ids: stop_ids.clone(),
            decoder_prompt,
            ..Request::default()
        })?;
        TextStream::new(tokens, sampling, prompt_tokens, detokenizer, options.stop.clone(), stop_ids)
    }

    /// Continues `prompt`.
    ///
    /// # Errors
    /// Those of [`Generator::generate`].
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<TextStream> {
        let (tokenizer, most) = (&self.processor.tokenizer, self.info().max_context);
        let ids = match options.no_special_in_user_text {
            true => tokenizer.encode_shielded(&tokenizer.shield(prompt)?, true, most),
            false => tokenizer.encode_at_most(prompt, true, most),
        };
        self.stream(ids.map_err(|e| self.whose_limit(e))?, options, true)
    }

    /// Answers the last of `messages` by the model's chat template.
    ///
    /// # Errors
    /// Those of [`Generator::chat`].
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{GenerateOptions, Message};
    ///
    /// let model = engraft::demo()?;
    /// let asked = model.chat(&[Message::new("user", "Hello")], &GenerateOptions::new());
    /// // The demo model only continues text.
    /// assert!(!model.has_chat_template() && asked.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<TextStream> {
        let Some(template) = &self.processor.template else {
            return Err(Error::text(format!(
                "{} has no chat template; generate continues plain text",
                self.handle.info().name
            )));
        };
        // The template writes the special tokens itself.
        let (tokenizer, most) = (&self.processor.tokenizer, self.info().max_context);
        let ids = if options.no_special_in_user_text {
            let shield = |m: &Message| match m.role.as_str() {
                "system" => Ok(m.clone()),
                role => Ok(Message::new(role, tokenizer.shield(&m.content)?)),
            };
            let messages = messages.iter().map(shield).collect::<Result<Vec<_>>>()?;
            tokenizer.encode_shielded(&template.render(&messages, true, None)?, false, most)
        } else {
            tokenizer.encode_at_most(&template.render(messages, true, None)?, false, most)
        };
        self.stream(ids.map_err(|e| self.whose_limit(e))?, options, false)
    }

    /// The tokenizer knows how many tokens are allowed, but not by whom.
    pub(crate) fn whose_limit(&self, error: Error) -> Error {
        match error {
            Error::TextTooLong { bytes, tokens, .. } => {
                Error::TextTooLong { bytes, tokens, allowed: self.handle.context_limit() }
            }
            other => other,
        }
    }

    /// The model.
    pub fn info(&self) -> &ModelInfo {
        self.handle.info()
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::TextGenerator {}
}

impl Generator for TextGenerator {
    fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<TextStream> {
        self.generate(prompt, options)
    }

    fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<TextStream> {
        self.chat(messages, options)
    }

    fn info(&self) -> &ModelInfo {
        self.info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_before_the_models_way_and_seeds_are_fresh() {
        let model = SamplingParams { temperature: 0.7, top_k: 5, ..SamplingParams::default() };
        let (one, two) = (GenerateOptions::new().params(model), GenerateOptions::new().params(model));
        assert_eq!((one.temperature, one.top_k), (0.7, 5));
        assert_ne!(one.seed, two.seed);
        let own = GenerateOptions::new()
            .temperature(0.1)
            .top_k(2)
            .top_p(0.3)
            .min_p(0.4)
            .repetition_penalty(1.5)
            .seed(6);
        let all = SamplingParams {
            temperature: 0.1,
            top_k: 2,
            top_p: 0.3,
            min_p: 0.4,
            repetition_penalty: 1.5,
            seed: Some(6),
        };
        assert_eq!(own.params(model), all);
        // Parameters that are given as a whole without a seed have a new one, too.
        let hot = SamplingParams { seed: None, ..all };
        let seeds = [0, 1].map(|_| GenerateOptions::new().sampling(hot).params(model).seed);
        assert!(seeds[0].is_some() && seeds[0] != seeds[1], "{seeds:?}");
        // What is given as a whole counts with its seed, and is changed by fields after it alone.
        assert_eq!(own.clone().greedy().params(model), SamplingParams::default());
        assert_eq!(
            GenerateOptions::new().sampling(all).seed(9).params(model),
            SamplingParams { seed: Some(9), ..all }
        );
    }
}
