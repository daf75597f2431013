//! A tokenizer as the lists of a GGUF file: what `gguf.rs` reads, the other way round.
//!
//! GGUF has a name for a few ways of splitting, not the way itself, and scores in the place of merges. So
//! what is written is built again and compared: lists, and ids of texts that differ wherever two ways of
//! splitting do. What has no place in GGUF is refused by name.

use serde_json::Value;

use super::gguf::{GgufVocab, merges_by_score};
use super::splitting::{SPLITTINGS, named};
use super::tokenizer::Tokenizer;
use crate::checkpoint::gguf::{Strings, Tokenizer as Lists};
use crate::config::ModelConfig;
use crate::{Error, Result};

/// Types of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Score of a token that no merge makes.
const NO_MERGE: f32 = -1e9;

/// Texts in which ways of splitting differ: case, contractions, digits, blanks, ends of lines, signs,
/// scripts.
const TEXTS: [&str; 6] = [
    "Hello World, it's 2024! I'LL pay 1234567.89 (3,5 %) for x2 = y_1 + z;",
    " \t two  blanks   three\n\n\nlines\r\n\r\n\ttab\t\tend ",
    "Straße Äpfel naïve De\u{301}ja VU ΑΒΓ кириллица עברית العربية हिन्दी ไทย",
    "你好世界 日本語テスト 한국어 ½ ² Ⅷ 🚀 👩\u{200d}👩\u{200d}👧 ✅ \u{feff}",
    "<div class=\"a\">https://example.com/a?b=c&d#e</div> // ''' \"\"\" \\\\ --- ... !!!? ===>",
    "camelCaseWord HTTPServer2Go snake_case CONSTANT 'quoted' don't DON'T we've ``` \u{a0}\u{3000}x",
];

impl Tokenizer {
    /// The lists of GGUF for a model with `rows` rows in its token table; ids that no token has become unused
    /// ones. `config` and `generation` are the model's, for the ids of special tokens; `template` is the chat
    /// template.
    ///
    /// # Errors
    /// `Text`, naming what GGUF has no place for: a model that is no byte-pair encoding, a way of splitting
    /// without a name, merges that no scores give, tokens behind the table, other tokens around a text than
    /// one at each end; and a text that would have other ids.
    pub fn to_gguf(
        &self,
        rows: usize,
        (config, generation): (&Value, &Value),
        template: Option<&str>,
    ) -> Result<Lists> {
        let vocabulary = self.vocabulary();
        if vocabulary.outside.is_some() || !vocabulary.twins.is_empty() {
            return Err(none("a vocabulary next to that of its model"));
        }
        let file = serde_json::to_value(&vocabulary.model).map_err(|e| Error::internal(e.to_string()))?;
        let bpe = &file["model"];
        if bpe["type"] != "BPE" {
            return Err(none(&format!("a model of type {}", bpe["type"])));
        }
        let mut lists = Lists { chat_template: template.map(str::to_owned), ..Lists::default() };
        let merges = merges(bpe)?;
        match bpe["byte_fallback"] == true {
            true => {
                lists.model = "llama".into();
                lists.add_space_prefix = Some(prefixed(&file)?);
            }
            false => {
                lists.model = "gpt2".into();
                lists.pre = Some(splitting_of(&file)?);
                let spelled = merges.iter().map(|(left, right)| format!("{left} {right}"));
                lists.merges = spelled.collect();
            }
        }
        self.tokens(&file, rows, &mut lists)?;
        if lists.model == "llama" {
            scores(&mut lists, merges)?;
        }
        self.marks(&file, (config, generation), &mut lists)?;
        self.same_ids(&file, &lists)?;
        Ok(lists)
    }

    /// Tokens and their types.
    fn tokens(&self, file: &Value, rows: usize, lists: &mut Lists) -> Result<()> {
        let mut tokens: Vec<Option<(String, i32)>> = vec![None; rows];
        let mut put = |text: &str, id: &Value, kind: i32| {
            let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
            match id.and_then(|id| tokens.get_mut(id)) {
                Some(place) => {
                    *place = Some((text.to_owned(), kind));
                    Ok(())
                }
                None => Err(none(&format!("token `{text}` behind the {rows} rows of the model's table"))),
            }
        };
        let unknown = file["model"]["unk_token"].as_str().unwrap_or_default();
        let bytes = lists.model == "llama";
        for (text, id) in file["model"]["vocab"].as_object().into_iter().flatten() {
            let kind = match text.as_str() {
                text if text == unknown && !unknown.is_empty() => UNKNOWN,
                text if bytes && is_byte(text) => BYTE,
                _ => NORMAL,
            };
            put(text, id, kind)?;
        }
        for added in file["added_tokens"].as_array().into_iter().flatten() {
            let text = added["content"].as_str().unwrap_or_default();
            let kind = match added["special"] == true {
                _ if bytes && text == unknown => UNKNOWN,
                true => CONTROL,
                false => USER_DEFINED,
            };
            put(text, &added["id"], kind)?;
        }
        let filled = tokens.into_iter().enumerate();
        let all: Vec<(String, i32)> =
            filled.map(|(id, token)| token.unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED))).collect();
        lists.tokens = all.iter().map(|(text, _)| text).collect::<Strings>();
        lists.token_type = all.iter().map(|(_, kind)| *kind).collect();
        Ok(())
    }

    /// Special tokens, and which stand around a text.
    fn marks(&self, file: &Value, (config, generation): (&Value, &Value), lists: &mut Lists) -> Result<()> {
        let ids = |field: &'static str| -> Result<Vec<u32>> {
            let mut all = Vec::new();
            for source in [generation, config].into_iter().filter(|source| source.is_object()) {
                all.extend(ModelConfig::new(source.clone())?.ids(field)?);
            }
            all.retain(|id| (*id as usize) < lists.tokens.len());
            Ok(all)
        };
        let spelled = |text: Option<&str>| text.and_then(|text| self.token_id(text));
        let ends = ids("eos_token_id")?;
        lists.bos = spelled(self.bos_token()).or(ids("bos_token_id")?.first().copied());
        lists.eos = spelled(self.eos_token()).or(ends.first().copied());
        lists.eot = ends.into_iter().find(|id| Some(*id) != lists.eos);
        lists.padding = ids("pad_token_id")?.first().copied();
        lists.unknown = spelled(file["model"]["unk_token"].as_str());
        let Some((before, behind)) = self.frame() else {
            return Err(none("tokens around a text that depend on the text"));
        };
        let side = |found: &[u32], id: &mut Option<u32>, what: &str| match found {
            [] => Ok(Some(false)),
            [one] if id.is_none_or(|id| id == *one) => {
                *id = Some(*one);
                Ok(Some(true))
            }
            other => Err(none(&format!("tokens {other:?} {what} a text, whose own is {id:?}"))),
        };
        lists.add_bos = side(before, &mut lists.bos, "in front of")?;
        lists.add_eos = side(behind, &mut lists.eos, "behind")?;
        Ok(())
    }

    /// Compares ids of texts with those that the lists give.
    fn same_ids(&self, file: &Value, lists: &Lists) -> Result<()> {
        let written = Tokenizer::from_gguf(&GgufVocab::from(lists.clone()))?;
        let added = file["added_tokens"].as_array().into_iter().flatten();
        let added = added.filter_map(|token| token["content"].as_str());
        // A blank that stands at a text's beginning alone: GGUF has it behind every special token.
        let once = first_alone(file);
        let among = added.filter(|_| !once).map(|token| format!("a {token} b{token}c"));
        // All tokens, each next to others.
        let normal = lists.tokens.iter().zip(&lists.token_type).filter(|(_, kind)| **kind == NORMAL);
        let normal: Vec<String> = normal.map(|(token, _)| token.replace('\u{2581}', " ")).collect();
        let spelled = normal.chunks(64).filter(|_| lists.model == "llama").map(|tokens| tokens.concat());
        for text in TEXTS.iter().map(|text| (*text).to_string()).chain(among).chain(spelled) {
            // What it cannot express has no tokens to compare.
            let Ok(own) = self.encode(&text, true) else { continue };
            let found = written.encode(&text, true)?;
            if own != found {
                return Err(none(&format!("{text:?}, which has tokens {own:?} and would have {found:?}")));
            }
        }
        Ok(())
    }
}

/// What cannot be written.
fn none(what: &str) -> Error {
    Error::text(format!("GGUF has no place for the tokenizer: {what}"))
}

fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Pairs, best first.
fn merges(bpe: &Value) -> Result<Vec<(String, String)>> {
    let pair = |merge: &Value| {
        let pair = match merge {
            Value::String(text) => text.split_once(' ').map(|(l, r)| (l.to_owned(), r.to_owned())),
            other => Some((other[0].as_str()?.to_owned(), other[1].as_str()?.to_owned())),
        };
        pair.filter(|(left, right)| !left.contains(' ') && !right.contains(' '))
    };
    let all = bpe["merges"].as_array().into_iter().flatten();
    all.map(|merge| pair(merge).ok_or_else(|| none(&format!("merge {merge}, which is no pair of tokens"))))
        .collect()
}

/// The steps that a part of the file is made of.
fn steps<'f>(part: &'f Value, list: &str) -> Vec<&'f Value> {
    match part[list].as_array() {
        Some(all) => all.iter().flat_map(|step| steps(step, list)).collect(),
        None if part.is_null() => Vec::new(),
        None => vec![part],
    }
}

/// GGUF's name of how byte-level BPE splits texts.
fn splitting_of(file: &Value) -> Result<String> {
    let normalizers = steps(&file["normalizer"], "normalizers");
    let splits = steps(&file["pre_tokenizer"], "pretokenizers");
    let compose = match normalizers[..] {
        [] => false,
        [one] if one["type"] == "NFC" => true,
        _ => return Err(none(&format!("normalizer {}", file["normalizer"]))),
    };
    let whole_words = file["model"]["ignore_merges"] == true;
    named(&splits, whole_words, compose).map(str::to_owned).ok_or_else(|| {
        let how =
            format!("pre_tokenizer {}, NFC {compose}, ignore_merges {whole_words}", file["pre_tokenizer"]);
        none(&format!("{how}; known are {SPLITTINGS}"))
    })
}

/// Whether SentencePiece's BPE puts a blank in front of a text.
fn prefixed(file: &Value) -> Result<bool> {
    let normalizers = steps(&file["normalizer"], "normalizers");
    let splits = steps(&file["pre_tokenizer"], "pretokenizers");
    let replaces = |step: &Value| {
        step["type"] == "Replace" && step["pattern"]["String"] == " " && step["content"] == "\u{2581}"
    };
    let prepends = |step: &Value| step["type"] == "Prepend" && step["prepend"] == "\u{2581}";
    match (&normalizers[..], &splits[..]) {
        ([one], []) if replaces(one) => Ok(false),
        ([first, second], []) if prepends(first) && replaces(second) => Ok(true),
        ([], [one]) if one["type"] == "Metaspace" && one["split"] == false => {
            Ok(one["prepend_scheme"] != "never")
        }
        _ => {
            let what = format!("normalizer {}, pre_tokenizer {}", file["normalizer"], file["pre_tokenizer"]);
            Err(none(&format!("{what}; SentencePiece's own are known")))
        }
    }
}

/// Whether that blank is at a text's beginning alone.
fn first_alone(file: &Value) -> bool {
    steps(&file["pre_tokenizer"], "pretokenizers").iter().any(|step| step["prepend_scheme"] == "first")
}

/// Scores by which the reader finds the same merges.
fn scores(lists: &mut Lists, merges: Vec<(String, String)>) -> Result<()> {
    let mut ranks = std::collections::HashMap::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(-(rank as f32));
    }
    let score = |text: &str| ranks.get(text).copied().unwrap_or(NO_MERGE);
    lists.scores = lists.tokens.iter().map(score).collect();
    let found = by_token(merges_by_score(&GgufVocab::from(lists.clone()))?);
    let own = by_token(merges);
    // The reader merges any two tokens that are a third one, where a file may have but one way to it; whether
    // that shows in ids is what `same_ids` asks.
    let among = |found: &Merges, own: &Merges| own.iter().all(|merge| found.contains(merge));
    let differs = found.iter().zip(&own).find(|(found, own)| !among(found, own));
    match (differs, found.len() == own.len()) {
        (None, true) => Ok(()),
        (Some((found, own)), _) => {
            Err(none(&format!("merges {own:?}, in whose place the tokens' scores put {found:?}")))
        }
        (None, false) => Err(none(&format!("merges of {} tokens, scores give {}", own.len(), found.len()))),
    }
}

/// Pairs of tokens.
type Merges = Vec<(String, String)>;

/// Merges that make the same token one after the other are one step, in any order: none of them makes what
/// another one takes. (In runs of one letter they compete; there llama.cpp goes by place.)
fn by_token(merges: Merges) -> Vec<Merges> {
    let made = |(left, right): &(String, String)| format!("{left}{right}");
    merges.chunk_by(|a, b| made(a) == made(b)).map(<[_]>::to_vec).collect()
}

#[cfg(test)]
#[path = "to_gguf_tests.rs"]
#[allow(clippy::unwrap_used)]
mod tests;
