//! Prompts to text: what most users hold.

use crate::handle::{EngineHandle, ModelInfo};
use crate::stream::TextStream;
use crate::text::Voice;
use engraft_core::engine::Request;
use engraft_core::sample::SamplingParams;
use engraft_core::text::{Message, Tokenizer};
use engraft_core::{Error, Result};

/// What a text may look like.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Tokens to draw at most.
    pub max_new_tokens: usize,
    /// How tokens are drawn; none: as the model's `generation_config.json` says, seed 0.
    pub sampling: Option<SamplingParams>,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Go on after the model's own end tokens (benchmarks).
    pub ignore_end: bool,
    /// Texts of users never become control tokens: those that a prompt or a message (of any role but
    /// `system`) spells are taken as text.
    pub no_special_in_user_text: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            sampling: None,
            stop: Vec::new(),
            ignore_end: false,
            no_special_in_user_text: false,
        }
    }
}

impl GenerateOptions {
    /// At most 128 tokens, drawn as the model wants.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens to draw at most.
    pub fn max_new_tokens(mut self, tokens: usize) -> Self {
        self.max_new_tokens = tokens;
        self
    }

    /// Always the most probable token.
    pub fn greedy(self) -> Self {
        self.sampling(SamplingParams::default())
    }

    /// Texts of users never become control tokens.
    pub fn no_special_in_user_text(mut self) -> Self {
        self.no_special_in_user_text = true;
        self
    }

    /// How tokens are drawn.
    pub fn sampling(mut self, params: SamplingParams) -> Self {
        self.sampling = Some(params);
        self
    }

    /// Adds a string that ends the text.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }
}

/// Something that continues text; object-safe, so that programs can hold any.
pub trait Generator: Send + Sync {
    /// Continues `prompt`.
    ///
    /// # Errors
    /// `Text` for what the tokenizer cannot express and for more tokens than the context holds, `Config` for
    /// options out of range; what else is wrong with the request itself (no room) comes as the stream's item.
    fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<TextStream>;

    /// Answers the last of `messages` by the model's chat template.
    ///
    /// # Errors
    /// As [`Generator::generate`]; `Text` when the model has no template.
    fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<TextStream>;

    /// The model.
    fn info(&self) -> &ModelInfo;
}

/// A model with its text side.
#[derive(Debug)]
pub struct TextGenerator {
    handle: EngineHandle,
    voice: Voice,
}

impl TextGenerator {
    pub(crate) fn new(handle: EngineHandle, voice: Voice) -> Self {
        Self { handle, voice }
    }

    /// The level below: token ids in, token ids out.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.voice.tokenizer
    }

    /// How the model likes to be sampled (`generation_config.json`).
    pub fn sampling(&self) -> SamplingParams {
        self.voice.sampling
    }

    /// Whether the model can chat.
    pub fn has_chat_template(&self) -> bool {
        self.voice.template.is_some()
    }

    fn stream(&self, ids: Vec<u32>, options: &GenerateOptions, continues: bool) -> Result<TextStream> {
        let mut detokenizer = self.voice.tokenizer.stream();
        if continues {
            // The continuation's first word keeps its blank.
            detokenizer.prime(&ids)?;
        }
        let prompt_tokens = ids.len();
        let stop_ids = if options.ignore_end { Vec::new() } else { self.voice.stop_ids.clone() };
        let tokens = self.handle.submit(Request {
            prompt: ids,
            max_new_tokens: options.max_new_tokens,
            sampling: options.sampling.unwrap_or(self.voice.sampling),
            stop_ids: stop_ids.clone(),
            ..Request::default()
        });
        TextStream::new(tokens, prompt_tokens, detokenizer, options.stop.clone(), stop_ids)
    }
}

impl Generator for TextGenerator {
    fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<TextStream> {
        let (tokenizer, most) = (&self.voice.tokenizer, self.info().max_context);
        let ids = match options.no_special_in_user_text {
            true => tokenizer.encode_shielded(&tokenizer.shield(prompt)?, true, most)?,
            false => tokenizer.encode_at_most(prompt, true, most)?,
        };
        self.stream(ids, options, true)
    }

    fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<TextStream> {
        let Some(template) = &self.voice.template else {
            return Err(Error::text(format!(
                "{} has no chat template; generate continues plain text",
                self.handle.info().name
            )));
        };
        // The template writes the special tokens itself.
        let (tokenizer, most) = (&self.voice.tokenizer, self.info().max_context);
        let ids = if options.no_special_in_user_text {
            let shield = |m: &Message| match m.role.as_str() {
                "system" => Ok(m.clone()),
                role => Ok(Message::new(role, tokenizer.shield(&m.content)?)),
            };
            let messages = messages.iter().map(shield).collect::<Result<Vec<_>>>()?;
            tokenizer.encode_shielded(&template.render(&messages, true, None)?, false, most)?
        } else {
            tokenizer.encode_at_most(&template.render(messages, true, None)?, false, most)?
        };
        self.stream(ids, options, false)
    }

    fn info(&self) -> &ModelInfo {
        self.handle.info()
    }
}
