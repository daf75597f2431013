//! Requests and what comes back.

use crate::config::EngineConfig;
use crate::policy::{EncoderSpec, Family, ModelSpec, StemSpec};
use crate::sample::{Rules, SamplingParams};
use crate::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// Continuations of one prompt that are taken at once: each holds a copy of it while it waits.
pub const MAX_CONTINUATIONS: usize = 16_384;

/// Layers whose hidden states are kept.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
#[non_exhaustive]
pub enum Layers {
    /// None.
    #[default]
    None,
    /// What the head reads: one matrix.
    Last,
    /// Every layer's, and what enters the first block: a matrix more than there are layers.
    All,
}

impl Layers {
    /// The place of hidden state `layer` (0: what enters the first block) among those that are kept; `last`
    /// is the number of blocks.
    pub(super) fn place(self, layer: usize, last: usize) -> Option<usize> {
        match self {
            Layers::None => None,
            Layers::Last => (layer == last).then_some(0),
            Layers::All => Some(layer),
        }
    }
}

/// What a request wants to keep besides its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Want {
    /// Logits that follow every prompt token and every sampled token but the last, which no step reads.
    pub logits: bool,
    /// Hidden states of every position, of these layers.
    pub hidden: Layers,
    /// The log-probability of every sampled token.
    pub logprobs: bool,
}

/// Who calls are for (texts to embed, to score, to classify): they share what there is with the requests of
/// the same [`Request::tenant`] and [`Request::priority`].
///
/// The library's `EngineHandle::on_behalf_of` takes it, and has an example.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// Whose the calls are; those of one tenant take turns.
    pub tenant: String,
    /// Smaller numbers are served first.
    pub priority: i32,
}

/// A prompt to continue.
///
/// ```
/// use engraft_core::engine::Request;
/// use engraft_core::sample::SamplingParams;
///
/// let sampling = SamplingParams { temperature: 0.8, seed: Some(7), ..SamplingParams::default() };
/// let request = Request { prompt: vec![1, 2, 3], max_new_tokens: 16, sampling, ..Request::default() };
/// assert!(request.stop_ids.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// Token ids; of a model with an encoder what the encoder reads.
    pub prompt: Vec<u32>,
    /// What the decoder of a model with an encoder begins with, behind its own first token; of a translation
    /// the target language, say. Empty: what the model's files say.
    pub decoder_prompt: Vec<u32>,
    /// What an encoder of sound reads in the place of a prompt: `[frames, columns]`, log-mel energies of
    /// Whisper.
    pub features: Arc<[f32]>,
    /// Tokens to generate at most; the context's end may come first. 0 only runs the prompt.
    pub max_new_tokens: usize,
    /// How tokens are sampled; a seed that is not given is a new one.
    pub sampling: SamplingParams,
    /// Which tokens may follow which; the host applies them, and with them a repetition penalty, to the
    /// logits that a step brings back.
    pub rules: Option<Arc<Rules>>,
    /// Tokens that end the continuation (sampled, reported, then it ends).
    pub stop_ids: Vec<u32>,
    /// Distinguishes several continuations of one prompt with one seed.
    pub subsequence: u32,
    /// What to keep.
    pub want: Want,
    /// Requests take the keys and values of a prompt's beginning from those of the same salt alone, so that
    /// the time that one takes shows nothing of the prompts of others.
    pub cache_salt: String,
    /// Compute the whole prompt, whatever the prefix cache has of it. Results do not depend on it in modes
    /// that promise results independent of chunks.
    pub skip_prefix_cache: bool,
    /// Smaller numbers are served first; a priority that has waited for 32 others has its turn.
    pub priority: i32,
    /// Whose it is: tenants of one priority share what there is by the tokens they are served, however many
    /// requests each has.
    pub tenant: String,
    /// How long it may wait to be begun; it then ends with [`Finish::Expired`] and has not run. Of one
    /// tenant's requests the one with the least time left is begun first. Needs a clock
    /// ([`Engine::set_clock`](super::Engine::set_clock)).
    pub start_within: Option<Duration>,
}

impl Request {
    /// Refuses what an engine of this model and configuration could never serve; errors number the request
    /// `id`.
    ///
    /// # Errors
    /// Those of [`Engine::put`](super::Engine::put).
    pub fn check(&self, id: u64, spec: &ModelSpec, config: &EngineConfig) -> Result<()> {
        let no = |what: String| Err(Error::Request { id, what });
        if spec.family != Family::Decoder {
            return Err(Error::Architecture {
                op: "generation".into(),
                arch: spec.arch.clone(),
                reason: "an encoder generates no text; `embed`, `classify` and `answer` are for such models"
                    .into(),
            });
        }
        let per_token = spec.head.is_per_token();
        if !per_token && self.max_new_tokens > 0 {
            return Err(Error::Architecture {
                op: "generation".into(),
                arch: spec.arch.clone(),
                reason: "a model that labels texts generates none; `classify` is for it".into(),
            });
        }
        self.sampling.validate()?;
        if let Some(rules) = &self.rules {
            rules.check(spec.vocab)?;
        }
        let stem = spec.stem();
        match stem {
            Some(stem) => self.check_features(id, stem, usize::MAX)?,
            None if !self.features.is_empty() => {
                return no("features of sound; this model reads tokens".into());
            }
            None => {}
        }
        let len = self.prompt.len();
        if len == 0 && stem.is_none() {
            return no("the prompt is empty; at least one token is needed".into());
        }
        if let Some(bad) = self.prompt.iter().chain(&self.decoder_prompt).find(|t| **t as usize >= spec.vocab)
        {
            return no(format!("token {bad} is beyond the vocabulary of {}", spec.vocab));
        }
        match &spec.encoder {
            Some(encoder) => return self.check_source(id, encoder, (spec, config)),
            None if !self.decoder_prompt.is_empty() => {
                return no(
                    "a prompt for a decoder; this model has no encoder, `prompt` is what it continues".into(),
                );
            }
            None => {}
        }
        if len > config.max_context || (len == config.max_context && self.max_new_tokens > 0) {
            let limit = config.context_limit(spec.max_positions);
            return no(format!("the prompt has {len} tokens; the context holds {limit}"));
        }
        Ok(())
    }

    /// Refuses features of another size, of more than `most` tokens, or that are no numbers.
    pub(super) fn check_features(&self, id: u64, stem: &StemSpec, most: usize) -> Result<()> {
        let no = |what: String| Err(Error::Request { id, what });
        let (StemSpec { frames, columns, exact, .. }, got) = (stem, self.features.len());
        if !self.prompt.is_empty() {
            let len = self.prompt.len();
            return no(format!("a prompt of {len} tokens; the encoder reads sound, `features` has it"));
        }
        let allowed = if *exact { *frames } else { stem.least() }..=*frames;
        if !allowed.contains(&stem.frames_of(got)) || got % columns != 0 {
            let least = if *exact { String::new() } else { format!("{} to ", allowed.start()) };
            return no(format!("{got} features; the encoder reads {least}{frames} frames of {columns}"));
        }
        let tokens = stem.tokens_of(stem.frames_of(got));
        if tokens > most {
            return no(format!("{got} features are {tokens} tokens; a step of this engine has {most}"));
        }
        match self.features.iter().position(|value| !value.is_finite()) {
            Some(at) => no(format!("feature {at} is {}; finite numbers are allowed", self.features[at])),
            None => Ok(()),
        }
    }

    /// Positions of an encoder's rows.
    fn source_len(&self, encoder: &EncoderSpec) -> usize {
        let sound = |stem: &StemSpec| stem.tokens_of(stem.frames_of(self.features.len()));
        encoder.stem().map_or(self.prompt.len(), sound)
    }

    /// What an encoder reads: tokens, or the bits of features.
    pub(super) fn source(&self, spec: &ModelSpec) -> Arc<[u32]> {
        match spec.encoder.as_ref().map(|encoder| encoder.stem()) {
            None => Arc::default(),
            Some(None) => self.prompt.as_slice().into(),
            Some(Some(_)) => self.features.iter().map(|value| value.to_bits()).collect(),
        }
    }

    /// The same for what an encoder reads, and the decoder begins with.
    fn check_source(
        &self,
        id: u64,
        encoder: &EncoderSpec,
        (spec, config): (&ModelSpec, &EngineConfig),
    ) -> Result<()> {
        let no = |what: String| Err(Error::Request { id, what });
        let (len, positions) = (self.source_len(encoder), encoder.stack.max_positions);
        if len > config.text_tokens().min(positions) {
            let limit = match config.text_tokens() < positions {
                true => config.text_limit(positions),
                false => format!("{positions}, the encoder's own limit"),
            };
            return no(format!("the prompt has {len} tokens; the encoder reads {limit} at most"));
        }
        let (begins, most) =
            (encoder.prompt(&self.decoder_prompt).len(), decoder_positions(len, spec, config));
        if begins > most || (begins == most && self.max_new_tokens > 0) {
            let what =
                format!("the decoder begins with {begins} tokens; behind {len} of the encoder it has {most}");
            return no(what);
        }
        Ok(())
    }

    /// The tokens of a request, encoder's first, in whole pages; how many an encoder reads, positions that
    /// they take, and how many more may be sampled.
    pub(super) fn tokens(&self, spec: &ModelSpec, config: &EngineConfig) -> (Vec<u32>, [usize; 2], usize) {
        let Some(encoder) = &spec.encoder else {
            let new = self.max_new_tokens.min(config.max_context - self.prompt.len());
            return (self.prompt.clone(), [0, 0], new);
        };
        let source = self.source_len(encoder);
        let positions = source.next_multiple_of(config.page_size);
        let begins = encoder.prompt(&self.decoder_prompt);
        let room = decoder_positions(source, spec, config).saturating_sub(begins.len());
        let mut tokens = self.prompt.clone();
        tokens.resize(positions, 0);
        tokens.extend(begins);
        (tokens, [source, positions], self.max_new_tokens.min(room))
    }

    /// Refuses what [`Engine::put_several`](super::Engine::put_several) cannot do; errors number the request
    /// `id`.
    ///
    /// # Errors
    /// `Request`.
    pub fn check_several(&self, id: u64, count: usize) -> Result<()> {
        let no = |what: String| Err(Error::Request { id, what });
        match count {
            0 => no("0 continuations; at least 1 is needed".into()),
            1 => Ok(()),
            _ if self.want != Want::default() => {
                no("several continuations of a prompt keep no logits, hidden states or probabilities".into())
            }
            2..=MAX_CONTINUATIONS => Ok(()),
            _ => no(format!("{count} continuations; at most {MAX_CONTINUATIONS} are taken")),
        }
    }

    /// Refuses what the cache of such an engine could never hold, were all of it free; for a request that
    /// [`Request::check`] lets through.
    ///
    /// # Errors
    /// `KvFull`.
    pub fn fits(&self, spec: &ModelSpec, config: &EngineConfig) -> Result<()> {
        let (tokens, _, new) = self.tokens(spec, config);
        let positions = tokens.len().saturating_add(new);
        let (wanted, total) = (positions.div_ceil(config.page_size), config.pool_pages());
        match wanted <= total {
            true => Ok(()),
            false => Err(Error::KvFull { wanted, free: total, total }),
        }
    }
}

/// Positions that the decoder of a model with an encoder has, behind so many that the encoder reads.
fn decoder_positions(source: usize, spec: &ModelSpec, config: &EngineConfig) -> usize {
    let source = source.next_multiple_of(config.page_size);
    spec.max_positions.min(config.max_context.saturating_sub(source))
}

/// Why a continuation ended.
///
/// The last event of the library's `EngineHandle::submit`, which has an example.
///
/// ```
/// use engraft_core::engine::Finish;
///
/// fn reason(finish: Finish) -> &'static str {
///     match finish {
///         Finish::Stop => "the model ended the text",
///         Finish::Length => "there is no room, or as many tokens as were asked for",
///         // More may come.
///         _ => "there was no token to sample",
///     }
/// }
/// assert_eq!(reason(Finish::NoToken), "there was no token to sample");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// A stop token was sampled.
    Stop,
    /// All tokens asked for were sampled, or the context is full.
    Length,
    /// No logit was above -infinity (all were NaN, say): there was no token to sample.
    NoToken,
    /// It waited longer than [`Request::start_within`] and has not run.
    Expired,
}

/// What a step did for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// The request.
    pub id: u64,
    /// The token sampled; none when only a prompt was run.
    pub token: Option<u32>,
    /// Set with the last output of a request.
    pub finish: Option<Finish>,
}
