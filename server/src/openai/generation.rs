//! What the two ways to continue text have in common: how to sample, how long, how often, where to stop.

use crate::choice::Stops;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::fields::{Fields, ids};
use crate::render::plain;
use crate::supervise::Served;
use engraft::SamplingParams;
use serde_json::Value;

/// A prompt as it was given.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

impl Input {
    /// The prompts of a field: a string, strings, token ids, or lists of token ids.
    ///
    /// # Errors
    /// 400 for anything else, and for none.
    pub fn of(fields: &Fields, name: &str) -> Result<Vec<Self>, ApiError> {
        let Some(value) = fields.get(name) else { return Err(ApiError::field(name, "is missing")) };
        let one = |value: &Value| match value {
            Value::String(text) => Some(Input::Text(text.clone())),
            _ => ids(value).filter(|ids| !ids.is_empty()).map(Input::Ids),
        };
        let all = match (one(value), value) {
            (Some(one), _) => Some(vec![one]),
            (None, Value::Array(all)) if !all.is_empty() => all.iter().map(one).collect(),
            _ => None,
        };
        let allowed =
            "a string, a list of strings, a list of token ids, or a list of such lists; none of them empty";
        all.ok_or_else(|| ApiError::field(name, format!("is not understood; allowed: {allowed}")))
    }

    /// Its token ids; `shield`: a text becomes no control token. Ids are what they are.
    ///
    /// # Errors
    /// Those of the tokenizer, for a text of more than `most` tokens among them.
    pub fn tokens(
        &self,
        served: &Served,
        special: bool,
        most: usize,
        shield: bool,
    ) -> engraft::Result<Vec<u32>> {
        match self {
            Input::Ids(ids) => Ok(ids.clone()),
            Input::Text(text) => plain(served.generator.tokenizer(), text, special, most, shield),
        }
    }
}

/// How a request wants its continuations.
#[derive(Debug, Clone)]
pub struct Generation {
    /// How tokens are sampled, with the seed that was taken.
    pub sampling: SamplingParams,
    /// Tokens at most; none: what the route takes for it, up to `limit`.
    pub max_tokens: Option<usize>,
    /// Tokens that the server allows; none: the context's.
    pub limit: Option<usize>,
    /// Continuations of each prompt.
    pub n: usize,
    /// What ends them.
    pub stops: Stops,
    /// Whether control tokens are left out of the text.
    pub skip_special: bool,
    /// Tokens that are kept of a prompt's end.
    pub truncate: Option<usize>,
    /// Whether the tokenizer adds what the model wants around a text.
    pub add_special: Option<bool>,
    /// What the prefix cache is divided by.
    pub salt: String,
    /// Smaller numbers are served first.
    pub priority: i32,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether a streamed answer ends with its usage.
    pub include_usage: bool,
    /// Whether every chunk has the usage so far.
    pub continuous_usage: bool,
    /// Whether the answer has token ids, too.
    pub return_ids: bool,
    /// The client's name of the request.
    pub request_id: Option<String>,
}

/// Bytes of all stop strings of a request: every continuation has a matcher of them, of some hundred bytes
/// for each.
const MOST_STOP_BYTES: usize = 2048;
/// Token ids that end a text: each sampled token is looked up among them.
const MOST_STOP_IDS: usize = 1024;
/// Bytes of a salt, which every sequence carries.
const MOST_SALT_BYTES: usize = 1024;
/// The largest whole number that JSON carries exactly everywhere.
const MOST: i64 = (1 << 53) - 1;

impl Generation {
    /// What the fields of a request of `key` say.
    ///
    /// # Errors
    /// 400 for the first field that has no possible value.
    pub fn of(fields: &Fields, served: &Served, config: &ServerConfig, key: &str) -> Result<Self, ApiError> {
        let size = |name: &str, least: i64| -> Result<Option<usize>, ApiError> {
            Ok(fields.whole(name, least..=MOST)?.and_then(|n| usize::try_from(n).ok()))
        };
        let (max_tokens, newer) = (size("max_tokens", 0)?, size("max_completion_tokens", 0)?);
        if let (Some(old), Some(new)) = (max_tokens, newer)
            && old != new
        {
            let both = format!("is {old}, but `max_completion_tokens` is {new}; give one");
            return Err(ApiError::field("max_tokens", both));
        }
        let max_tokens = newer.or(max_tokens);
        if let (Some(asked), Some(most)) = (max_tokens, config.max_output_tokens)
            && asked > most
        {
            return Err(ApiError::field("max_tokens", format!("is {asked}; this server allows {most}")));
        }
        let n = size("n", 1)?.unwrap_or(1);
        if n > config.max_n {
            return Err(ApiError::field("n", format!("is {n}; this server allows {}", config.max_n)));
        }
        let stream = fields.flag("stream", false)?;
        let (include_usage, continuous_usage) = stream_options(fields, stream)?;
        let truncate = fields.whole("truncate_prompt_tokens", -1..=MOST)?;
        let truncate =
            truncate.map(|n| usize::try_from(n).unwrap_or(served.generator.info().max_context - 1));
        let salt = fields.text("cache_salt")?.unwrap_or_default();
        within("cache_salt", "bytes", salt.len(), MOST_SALT_BYTES)?;
        let of_key = if config.share_prefixes { "" } else { key };
        let request_id = fields.text("request_id")?.map(str::to_owned);
        let possible =
            |id: &String| (1..=128).contains(&id.len()) && id.chars().all(|c| c.is_ascii_graphic());
        if request_id.as_ref().is_some_and(|id| !possible(id)) {
            return Err(ApiError::field("request_id", "has to be 1 to 128 visible ASCII characters"));
        }
        Ok(Self {
            sampling: sampling(fields, served.generator.sampling())?,
            max_tokens,
            limit: config.max_output_tokens,
            n,
            stops: stops(fields, served, config)?,
            skip_special: fields.flag("skip_special_tokens", true)?,
            truncate,
            add_special: match fields.get("add_special_tokens") {
                Some(_) => Some(fields.flag("add_special_tokens", true)?),
                None => None,
            },
            salt: if of_key.is_empty() && salt.is_empty() {
                String::new()
            } else {
                format!("{of_key}\n{salt}")
            },
            priority: fields.priority()?,
            stream,
            include_usage,
            continuous_usage,
            return_ids: fields.flag("return_token_ids", false)?,
            request_id,
        })
    }

    /// Tokens that a prompt may have: one that is truncated may be longer than the context.
    pub fn most_prompt(&self, served: &Served) -> usize {
        if self.truncate.is_some() { usize::MAX } else { served.generator.info().max_context }
    }

    /// The end of a prompt, where it is to be truncated.
    pub fn truncated(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(most) = self.truncate.filter(|most| ids.len() > *most) {
            ids.drain(..ids.len() - most);
        }
        ids
    }
}

/// Refuses more of something than a request may have.
fn within(name: &str, of: &str, found: usize, most: usize) -> Result<(), ApiError> {
    match found > most {
        true => Err(ApiError::field(name, format!("has {found} {of}; this server allows {most}"))),
        false => Ok(()),
    }
}

fn stops(fields: &Fields, served: &Served, config: &ServerConfig) -> Result<Stops, ApiError> {
    let strings = fields.texts("stop")?;
    within("stop", "strings", strings.len(), config.max_stop)?;
    within("stop", "bytes", strings.iter().map(String::len).sum(), MOST_STOP_BYTES)?;
    if strings.iter().any(String::is_empty) {
        return Err(ApiError::field("stop", "has an empty string, which would end every text at once"));
    }
    let own_ids = match fields.flag("ignore_eos", false)? {
        true => Vec::new(),
        false => served.generator.stop_ids().to_vec(),
    };
    let keep = fields.flag("include_stop_str_in_output", false)?;
    let ids = fields.ids_below("stop_token_ids", served.generator.info().vocab)?;
    within("stop_token_ids", "ids", ids.len(), MOST_STOP_IDS)?;
    Ok(Stops { strings, keep, ids, own_ids })
}

/// Whether the usage comes at the end of a stream, and with every chunk.
fn stream_options(fields: &Fields, stream: bool) -> Result<(bool, bool), ApiError> {
    let Some(options) = fields.get("stream_options") else { return Ok((false, false)) };
    let Value::Object(options) = options else {
        return Err(ApiError::field("stream_options", "is no object"));
    };
    if !stream {
        return Err(ApiError::field("stream_options", "goes with `stream`: true"));
    }
    let (mut usage, mut continuous) = (false, false);
    for (name, value) in options.iter().filter(|(_, value)| !value.is_null()) {
        let path = format!("stream_options.{name}");
        let Some(on) = value.as_bool() else {
            return Err(ApiError::field(&path, "has to be true or false"));
        };
        match name.as_str() {
            "include_usage" => usage = on,
            "continuous_usage_stats" => continuous = on,
            // Padding against guesses by length; TLS is the place for it.
            "include_obfuscation" => {}
            _ => return Err(ApiError::unknown(&path)),
        }
    }
    Ok((usage, continuous && usage))
}

fn sampling(fields: &Fields, own: SamplingParams) -> Result<SamplingParams, ApiError> {
    let top_k = fields.whole("top_k", -1..=i64::from(u32::MAX))?;
    let seed = fields.whole("seed", -MOST..=MOST)?;
    let params = SamplingParams {
        temperature: fields.number("temperature")?.unwrap_or(own.temperature),
        // vLLM's -1 is off, too.
        top_k: top_k.map_or(own.top_k, |k| u32::try_from(k).unwrap_or(0)),
        top_p: fields.number("top_p")?.unwrap_or(own.top_p),
        min_p: fields.number("min_p")?.unwrap_or(own.min_p),
        repetition_penalty: fields.number("repetition_penalty")?.unwrap_or(own.repetition_penalty),
        seed: seed.map(i64::cast_unsigned),
    };
    params.validate()?;
    Ok(params.seeded())
}
