//! `tekken.json`, as Mistral publishes its tokenizers: tokens in base 64 by rank, an expression that splits
//! texts, and special tokens in front of all others.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::plan::{MOST_SPECIAL, Plan, Special};
use super::table::Ranks;
use crate::text::settings::Settings;
use crate::{Error, Result};

/// The file's name.
pub(super) const NAME: &str = "tekken.json";
/// The values of `config.version` that are published, as mistral-common 1.13 knows them. They differ in how
/// conversations are written, not in how a text is split; v1 and v2 are SentencePiece models, and what a
/// later one means by these fields is not known. A file without the field is read as v3, the first one.
const VERSIONS: [&str; 5] = ["v3", "v7", "v11", "v13", "v15"];
/// The first special tokens of files that list none.
const USUAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

#[derive(Deserialize)]
struct File<'a> {
    config: Config,
    #[serde(borrow)]
    vocab: Vec<Entry<'a>>,
    special_tokens: Option<Vec<Listed>>,
}

#[derive(Deserialize)]
struct Config {
    version: Option<Value>,
    pattern: String,
    default_vocab_size: u64,
    default_num_special_tokens: u64,
}

#[derive(Deserialize)]
struct Entry<'a> {
    rank: u64,
    #[serde(borrow)]
    token_bytes: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Listed {
    rank: u64,
    token_str: String,
    #[serde(default = "yes")]
    is_control: bool,
}

fn yes() -> bool {
    true
}

/// What the file says.
///
/// # Errors
/// [`Error::Format`] with the field, what is found and what is allowed.
pub(super) fn read(settings: &Settings<'_>) -> Result<Plan> {
    let name = settings.place(NAME);
    let broken = |what: String| Error::format(&name, what);
    let bytes = settings.files.bytes(NAME).ok_or_else(|| broken("is missing".into()))?;
    let File { config, mut vocab, special_tokens } =
        serde_json::from_slice(bytes).map_err(|e| broken(e.to_string()))?;
    let version = config.version.as_ref().map_or(Some("v3"), Value::as_str);
    if !version.is_some_and(|version| VERSIONS.contains(&version)) {
        let found = config.version.unwrap_or_default().to_string();
        let shown: String = found.chars().take(40).collect();
        return Err(broken(format!("config.version is {shown}; allowed are {}", VERSIONS.join(", "))));
    }
    let (size, front) = (config.default_vocab_size, config.default_num_special_tokens);
    let most = front.saturating_add(vocab.len() as u64);
    if front > MOST_SPECIAL as u64 || size <= front || size > most {
        return Err(broken(format!(
            "default_vocab_size is {size} and default_num_special_tokens {front}; allowed are {} to {most}, of \
             which at most {MOST_SPECIAL} are special",
            front.saturating_add(1)
        )));
    }
    // The file has more tokens than the model.
    vocab.truncate((size - front) as usize);
    let mut entries = Vec::with_capacity(vocab.len());
    for (at, entry) in vocab.iter().enumerate() {
        if entry.rank != at as u64 {
            return Err(broken(format!("token {at} of `vocab` has rank {}; allowed is {at}", entry.rank)));
        }
        let token = STANDARD.decode(entry.token_bytes.as_bytes());
        let token = token.map_err(|_| broken(format!("token_bytes of rank {at} is not base 64")))?;
        entries.push((entry.rank, token));
    }
    let special = special(&name, special_tokens, front)?;
    Ok(Plan {
        ranks: Ranks::new(&name, entries)?,
        offset: front as u32,
        special,
        pattern: config.pattern,
        compose: false,
        bos: Some("<s>".into()),
        around: true,
        eos: "</s>".into(),
        ends: vec!["</s>".into()],
    })
}

/// The special tokens that are listed, and names for the other ids in front of the tokens.
fn special(name: &str, listed: Option<Vec<Listed>>, front: u64) -> Result<Vec<Special>> {
    let usual = || {
        let tokens = USUAL.iter().zip(0..front);
        tokens.map(|(text, rank)| Listed { rank, token_str: (*text).into(), is_control: true }).collect()
    };
    let mut places: Vec<Option<Special>> = (0..front).map(|_| None).collect();
    for Listed { rank, token_str, is_control } in listed.unwrap_or_else(usual) {
        let place = usize::try_from(rank).ok().and_then(|rank| places.get_mut(rank));
        let Some(place) = place else {
            let what =
                format!("special token `{token_str}` has rank {rank}; allowed are those below {front}");
            return Err(Error::format(name, what));
        };
        if place.is_some() {
            return Err(Error::format(name, format!("rank {rank} is that of two special tokens")));
        }
        *place = Some(Special { id: rank as u32, text: token_str, special: is_control });
    }
    let named = |(id, place): (u32, Option<Special>)| {
        place.unwrap_or_else(|| Special { id, text: format!("<SPECIAL_{id}>"), special: true })
    };
    Ok((0..).zip(places).map(named).collect())
}
