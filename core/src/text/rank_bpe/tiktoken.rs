//! Files of ranks as tiktoken reads them: a line for each token, which is base 64, a blank and the rank.
//!
//! The file has nothing but ranks: how texts are split and which special tokens there are is the family's,
//! which `tokenizer_config.json` names, or the model's type.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::plan::{Plan, Special};
use super::table::{MOST_TOKENS, Ranks};
use crate::text::pieces::LLAMA3;
use crate::text::settings::Settings;
use crate::{Error, Result};

/// A tokenizer class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Qwen,
    Kimi,
}

const CLASSES: [(&str, Class); 2] = [("QWenTokenizer", Class::Qwen), ("TikTokenTokenizer", Class::Kimi)];

/// The class of models whose configuration of the tokenizer names none, by `model_type`.
const MODEL_TYPES: [(&str, Class); 4] = [
    ("qwen", Class::Qwen),
    ("kimi_k2", Class::Kimi),
    ("kimi_k25", Class::Kimi),
    ("kimi_linear", Class::Kimi),
];

/// Modules of code that come with files of the class `TikTokenTokenizer`, whose name others use, too.
const KIMI_MODULES: [&str; 2] = ["tokenization_kimi", "tokenization_moonshot"];

/// Runs of Chinese characters apart, words with the ending of a contraction, and no more than three digits.
const KIMI: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Special tokens behind Qwen's, besides its three named ones.
const QWEN_EXTRA: u32 = 205;
/// Special tokens behind Kimi's.
const KIMI_RESERVED: u32 = 256;

impl Class {
    /// The class that a folder's files name.
    fn of(settings: &Settings<'_>) -> Result<Self> {
        let class = settings.choose(&CLASSES, &MODEL_TYPES)?;
        let code = settings.config.get("auto_map").and_then(|map| map.get("AutoTokenizer"));
        if let (Self::Kimi, Some(code)) = (class, code) {
            let code = code.to_string();
            if !KIMI_MODULES.iter().any(|module| code.contains(module)) {
                return Err(settings.broken(format!(
                    "tokenizer_class is `TikTokenTokenizer` of {code}; files of ranks are read of {}",
                    KIMI_MODULES.join(", ")
                )));
            }
        }
        Ok(class)
    }

    /// The name of its file.
    fn file(self) -> &'static str {
        match self {
            Class::Qwen => "qwen.tiktoken",
            Class::Kimi => "tiktoken.model",
        }
    }
}

/// What the files of a known class say.
///
/// # Errors
/// [`Error::Format`] with the file, the line, what is found and what is allowed.
pub(super) fn read(settings: &Settings<'_>) -> Result<Plan> {
    let class = Class::of(settings)?;
    let name = settings.place(class.file());
    let Some(bytes) = settings.files.bytes(class.file()) else {
        return Err(Error::format(name, "is missing; this tokenizer's ranks are in it"));
    };
    let ranks = parse(&name, bytes)?;
    match class {
        Class::Qwen => Ok(qwen(ranks)),
        Class::Kimi => kimi(ranks, settings),
    }
}

/// The table of a file.
pub(super) fn parse(name: &str, bytes: &[u8]) -> Result<Ranks> {
    let text = std::str::from_utf8(bytes).map_err(|e| Error::format(name, e.to_string()))?;
    let mut entries = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let broken = |what: &str| Error::format(name, format!("line {} {what}", at + 1));
        if entries.len() == MOST_TOKENS {
            return Err(Error::format(name, format!("more than {MOST_TOKENS} tokens")));
        }
        let (token, rank) =
            line.split_once(' ').ok_or_else(|| broken("is not a token, a blank and a rank"))?;
        let token = STANDARD.decode(token).map_err(|_| broken("has a token that is not base 64"))?;
        let rank: u64 = rank.parse().map_err(|_| broken("has a rank that is no whole number below 2^64"))?;
        entries.push((rank, token));
    }
    Ranks::new(name, entries)
}

/// Qwen 1: special tokens behind the ranks, texts composed before they are split.
fn qwen(ranks: Ranks) -> Plan {
    let names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let extra = (0..QWEN_EXTRA).map(|i| format!("<|extra_{i}|>"));
    let all = names.iter().map(|name| (*name).to_owned()).chain(extra);
    let behind = ranks.tokens.len() as u32;
    let special = (behind..).zip(all).map(|(id, text)| Special { id, text, special: true }).collect();
    Plan {
        ranks,
        offset: 0,
        special,
        pattern: LLAMA3.replace("DIGITS", ""),
        compose: true,
        bos: None,
        around: false,
        eos: names[0].into(),
        ends: vec![names[0].into(), names[2].into()],
    }
}

/// Kimi: special tokens behind the ranks, those that `added_tokens_decoder` names and others.
fn kimi(ranks: Ranks, settings: &Settings<'_>) -> Result<Plan> {
    let behind = ranks.tokens.len() as u32;
    let mut special: Vec<Special> = (behind..behind + KIMI_RESERVED)
        .map(|id| Special { id, text: format!("<|reserved_token_{id}|>"), special: true })
        .collect();
    rename(&mut special, settings)?;
    let eos = settings.token("eos_token", "[EOS]");
    let mut ends = vec![eos.clone()];
    let turn = "<|im_end|>";
    if eos != turn && special.iter().any(|token| token.text == turn) {
        ends.push(turn.into());
    }
    Ok(Plan {
        ranks,
        offset: 0,
        special,
        pattern: KIMI.into(),
        compose: false,
        bos: Some(settings.token("bos_token", "[BOS]")),
        around: false,
        eos,
        ends,
    })
}

/// Gives special tokens, whose ids follow each other, the names that `added_tokens_decoder` has for them.
///
/// # Errors
/// [`Error::Format`] for an id that is none of theirs, and a token without a name.
pub(super) fn rename(special: &mut [Special], settings: &Settings<'_>) -> Result<()> {
    let named = settings.config.get("added_tokens_decoder").and_then(|tokens| tokens.as_object());
    let (first, last) =
        (special.first().map_or(0, |token| token.id), special.last().map_or(0, |token| token.id));
    for (id, token) in named.into_iter().flatten() {
        let place = id.parse::<u32>().ok().filter(|id| (first..=last).contains(id));
        let Some(place) = place.and_then(|id| special.get_mut((id - first) as usize)) else {
            return Err(settings.broken(format!(
                "`{id}` in added_tokens_decoder is no special token's id; those are {first} to {last}"
            )));
        };
        let Some(text) = token.get("content").and_then(|text| text.as_str()) else {
            return Err(settings.broken(format!("token {id} of added_tokens_decoder has no `content`")));
        };
        place.text = text.to_owned();
        place.special = token.get("special").and_then(|special| special.as_bool()).unwrap_or(true);
    }
    Ok(())
}
