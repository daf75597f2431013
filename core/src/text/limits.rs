//! What a `tokenizer.json` may ask for.
//!
//! Its steps rewrite the text before it is split into tokens, and a few of them in a row turn a short text
//! into gigabytes. So their number, the strings that they put in and how much all of them together can
//! lengthen a text are bounded before anything is built; the last of these is kept, and bounds the texts that
//! are taken. So are the lengths of the vocabulary's tokens: Unigram keeps its pieces in a tree as deep as
//! the longest one, and BPE spells a token that shares its id with a long one by that.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tokenizers::ModelWrapper;

use crate::{Error, Result};

/// Values of JSON in each part of the description. Published files have a hundred.
const MOST_VALUES: usize = 4096;
/// Steps of each part of the description, those of sequences counted. Published files have eight at most.
const MOST_STEPS: usize = 32;
/// Bytes of a string that a step puts into a text.
const MOST_STRING: usize = 256;
/// How much longer all steps together may make a text.
const MOST_GROWTH: usize = 256;
/// Bytes of a table of replacements. That of NFKC with case folding has 0.3 million.
const MOST_CHARSMAP: usize = 8 << 20;
/// Ids that special tokens of a template stand for, and places of a template.
const MOST_TEMPLATE: usize = 64;
/// Characters of a word that WordPiece looks up; its time grows with the square. Published files have 100.
const MOST_WORD: u64 = 256;
/// Bytes of a token, of the vocabulary or added to it.
const MOST_TOKEN: usize = 4096;
/// Bytes of what stands before or behind the pieces of a word, and of the unknown token: each of a text's
/// tokens may have it.
const MOST_AFFIX: usize = 64;
/// Bytes of a piece of Unigram, and of all of them: each byte is a node of the tree. Published ones have 48
/// and 11 million.
const MOST_PIECE: usize = 512;
const MOST_SPELLED: usize = 16 << 20;
/// What looking up a piece costs besides its bytes, in bytes.
const LOOKUP: usize = 512;
/// What Unigram may look up at a place of a text: 16 pieces that begin one another, as published ones have,
/// take a quarter.
const MOST_LOOKED_UP: usize = 32 << 10;
/// Bytes of all of them, each lengthened as a text is.
const MOST_ADDED: usize = 64 << 20;
/// Bytes of a regular expression.
const MOST_REGEX: usize = 4096;

/// The parts of the file that are bounded; vocabulary and merges are read past.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    normalizer: Part,
    #[serde(default)]
    pre_tokenizer: Part,
    #[serde(default)]
    post_processor: Part,
    #[serde(default)]
    decoder: Part,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    model: Model,
}

/// JSON of a bounded number of values: as values it takes thirty times its text.
#[derive(Default)]
struct Part(Value);

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Counted(&Cell::new(MOST_VALUES)).deserialize(deserializer).map(Part)
    }
}

/// Reads JSON as long as there are values left.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Counted<'_> {
    fn count<E: serde::de::Error>(self) -> std::result::Result<(), E> {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.ok_or_else(|| E::custom(format!("a part of more than {MOST_VALUES} values")))?);
        Ok(())
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> std::result::Result<Value, E> {
        Ok(b.into())
    }

    fn visit_i64<E>(self, n: i64) -> std::result::Result<Value, E> {
        Ok(n.into())
    }

    fn visit_u64<E>(self, n: u64) -> std::result::Result<Value, E> {
        Ok(n.into())
    }

    fn visit_f64<E>(self, x: f64) -> std::result::Result<Value, E> {
        Ok(x.into())
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            self.count()?;
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        let mut fields = serde_json::Map::new();
        while let Some(name) = map.next_key::<String>()? {
            self.count()?;
            let value = map.next_value_seed(self)?;
            if fields.insert(name.clone(), value).is_some() {
                return Err(A::Error::custom(format!("field `{name}` twice")));
            }
        }
        Ok(fields.into())
    }
}

#[derive(Deserialize)]
struct Added {
    #[serde(default)]
    content: String,
}

#[derive(Deserialize, Default)]
struct Model {
    max_input_chars_per_word: Option<u64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    unk_token: Option<String>,
    #[serde(default)]
    vocab: Spelled,
}

/// Lengths of the vocabulary's tokens, which are not kept.
#[derive(Default)]
struct Spelled {
    /// Whether it is a list, as Unigram has it.
    listed: bool,
    longest: usize,
    all: usize,
}

impl Spelled {
    fn count(&mut self, bytes: usize) {
        self.longest = self.longest.max(bytes);
        self.all = self.all.saturating_add(bytes);
    }
}

impl<'de> Deserialize<'de> for Spelled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(Tokens)
    }
}

/// Reads tokens with their ids, or pieces with their scores.
struct Tokens;

impl<'de> Visitor<'de> for Tokens {
    type Value = Spelled;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tokens with their ids, or pieces with their scores")
    }

    fn visit_unit<E>(self) -> std::result::Result<Spelled, E> {
        Ok(Spelled::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Spelled, A::Error> {
        let mut spelled = Spelled::default();
        while let Some((Length(bytes), _)) = map.next_entry::<Length, IgnoredAny>()? {
            spelled.count(bytes);
        }
        Ok(spelled)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Spelled, A::Error> {
        let mut spelled = Spelled { listed: true, ..Spelled::default() };
        while let Some((Length(bytes), _)) = seq.next_element::<(Length, IgnoredAny)>()? {
            spelled.count(bytes);
        }
        Ok(spelled)
    }
}

/// The length of a string.
struct Length(usize);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_str(Text)
    }
}

struct Text;

impl Visitor<'_> for Text {
    type Value = Length;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Length, E> {
        Ok(Length(text.len()))
    }
}

/// Refuses a description that asks for too much.
///
/// # Errors
/// [`Error::Format`] if the bytes are no JSON object, or with the field, what it asks for and what is
/// allowed.
pub(super) fn check(text: &str) -> Result<()> {
    let file: File =
        serde_json::from_str(text).map_err(|e| Error::format("tokenizer.json", e.to_string()))?;
    for (part, value) in [
        ("normalizer", &file.normalizer.0),
        ("pre_tokenizer", &file.pre_tokenizer.0),
        ("post_processor", &file.post_processor.0),
        ("decoder", &file.decoder.0),
    ] {
        let (mut steps, mut template) = (0, 0);
        walk(part, value, &mut steps, &mut template)?;
        within(&format!("steps of `{part}`"), steps, MOST_STEPS)?;
        within(&format!("places and ids in templates of `{part}`"), template, MOST_TEMPLATE)?;
    }
    for part in [&[&file.normalizer.0, &file.pre_tokenizer.0][..], &[&file.decoder.0]] {
        let growth = part.iter().copied().map(growth).fold(1, usize::saturating_mul);
        within("times by which its steps can lengthen a text", growth, MOST_GROWTH)?;
    }
    let added = file.added_tokens.iter().map(|t| t.content.len()).fold(0, usize::saturating_add);
    let lengthened = added.saturating_mul(growth(&file.normalizer.0));
    within("bytes of added tokens that steps have lengthened", lengthened, MOST_ADDED)?;
    let longest = file.added_tokens.iter().map(|t| t.content.len()).max().unwrap_or(0);
    within("bytes in an added token", longest, MOST_TOKEN)?;
    check_model(&file.model)
}

fn check_model(model: &Model) -> Result<()> {
    if let Some(chars) = model.max_input_chars_per_word.filter(|&n| n > MOST_WORD) {
        return refuse("max_input_chars_per_word", chars, MOST_WORD);
    }
    let Model { continuing_subword_prefix, end_of_word_suffix, unk_token, vocab, .. } = model;
    for affix in [continuing_subword_prefix, end_of_word_suffix, unk_token].into_iter().flatten() {
        within("bytes in a prefix, a suffix or the unknown token of `model`", affix.len(), MOST_AFFIX)?;
    }
    if vocab.listed {
        within("bytes in a piece of Unigram", vocab.longest, MOST_PIECE)?;
        return within("bytes in all pieces of Unigram", vocab.all, MOST_SPELLED);
    }
    within("bytes in a token of `model`", vocab.longest, MOST_TOKEN)
}

/// Refuses a vocabulary that makes much of every byte of a text; returns what Unigram looks up at each of its
/// places at most, 0 for other models. `vocabulary` has the model's tokens and those added to it, `file` is
/// the name for messages.
///
/// # Errors
/// [`Error::Format`] with what the vocabulary asks for and what is allowed.
pub(super) fn check_vocabulary(
    file: &str,
    model: &tokenizers::Tokenizer,
    vocabulary: &HashMap<String, u32>,
) -> Result<usize> {
    // BPE spells every token that it finds by its id.
    if matches!(model.get_model(), ModelWrapper::BPE(_)) {
        let mut lengths: Vec<(u32, usize)> =
            vocabulary.iter().map(|(token, &id)| (id, token.len())).collect();
        lengths.sort_unstable();
        let mut by_id = lengths.chunk_by(|one, other| one.0 == other.0);
        let twins = by_id.find_map(|same| match same {
            [(id, short), .., (_, long)] if *long > short + MOST_AFFIX => Some((id, short, long)),
            _ => None,
        });
        if let Some((id, short, long)) = twins {
            return Err(Error::format(
                file,
                format!("id {id} is that of tokens of {short} and of {long} bytes; it must be one token's"),
            ));
        }
    }
    let found = looked_up(model);
    match found > MOST_LOOKED_UP {
        true => Err(Error::format(
            file,
            format!(
                "pieces of Unigram that begin one another, with {LOOKUP} bytes more for each: {found} bytes; \
                 at most {MOST_LOOKED_UP} are allowed"
            ),
        )),
        false => Ok(found),
    }
}

/// What Unigram looks up at a place of a text at most: it copies every piece that the rest of the text begins
/// with.
pub(super) fn looked_up(model: &tokenizers::Tokenizer) -> usize {
    let ModelWrapper::Unigram(unigram) = model.get_model() else { return 0 };
    let mut pieces: Vec<&str> = unigram.iter().map(|(piece, _)| piece.as_str()).collect();
    pieces.sort_unstable();
    pieces.dedup();
    let mut most = 0;
    // Pieces that the current one begins with, each with what it and those before it cost.
    let mut shorter: Vec<(&str, usize)> = Vec::new();
    for piece in pieces {
        while shorter.last().is_some_and(|&(before, _)| !piece.starts_with(before)) {
            shorter.pop();
        }
        let cost = shorter.last().map_or(0, |&(_, cost)| cost) + LOOKUP + piece.len();
        most = most.max(cost);
        shorter.push((piece, cost));
    }
    most
}

/// Refuses a tokenizer that was built of other files if its steps would lengthen a text by too much.
///
/// # Errors
/// [`Error::Format`] with `file`, how much they do and what is allowed.
pub(super) fn check_steps(file: &str, model: &tokenizers::Tokenizer) -> Result<()> {
    let as_json = |part: serde_json::Result<Value>| part.map_err(|e| Error::internal(e.to_string()));
    let before = growth(&as_json(serde_json::to_value(model.get_normalizer()))?);
    let words = growth(&as_json(serde_json::to_value(model.get_pre_tokenizer()))?);
    match before.saturating_mul(words) {
        0..=MOST_GROWTH => Ok(()),
        found => {
            let what = "times by which its steps can lengthen a text";
            Err(Error::format(file, format!("{what}: {found}; at most {MOST_GROWTH} are allowed")))
        }
    }
}

fn within(what: &str, found: usize, most: usize) -> Result<()> {
    if found > most { refuse(what, found as u64, most as u64) } else { Ok(()) }
}

fn refuse<T>(what: &str, found: u64, most: u64) -> Result<T> {
    Err(Error::format("tokenizer.json", format!("{what}: {found}; at most {most} are allowed")))
}

/// Counts steps, and places and ids of templates; bounds the strings.
fn walk(part: &str, value: &Value, steps: &mut usize, template: &mut usize) -> Result<()> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| walk(part, item, steps, template)),
        Value::Object(fields) => {
            // Typed or not: patterns and the pieces of templates are no steps.
            let is_step =
                fields.keys().any(|key| !["String", "Regex", "id", "type_id"].contains(&key.as_str()));
            *steps += usize::from(is_step && !fields.contains_key("ids") && !is_piece(value));
            for (name, value) in fields {
                match name.as_str() {
                    "single" | "pair" => *template += places(part, value)?,
                    "special_tokens" => *template += ids(value),
                    "Regex" => within(
                        &format!("bytes in a regular expression of `{part}`"),
                        value.as_str().unwrap_or_default().len(),
                        MOST_REGEX,
                    )?,
                    "precompiled_charsmap" => check_charsmap(&base64(value.as_str().unwrap_or_default()))
                        .map_err(|what| Error::format("tokenizer.json", what))?,
                    _ => walk(part, value, steps, template)?,
                }
            }
            Ok(())
        }
        Value::String(text) => within(&format!("bytes in a string of `{part}`"), text.len(), MOST_STRING),
        _ => Ok(()),
    }
}

/// Refuses a table of replacements that is no such table: the length of a double array of 32-bit units, the
/// array, and the texts. Its reader makes room for the array before it looks at what is there.
pub(super) fn check_charsmap(map: &[u8]) -> std::result::Result<(), String> {
    if map.len() > MOST_CHARSMAP {
        let what = format!("precompiled_charsmap has {} bytes", map.len());
        return Err(format!("{what}; at most {MOST_CHARSMAP} are allowed"));
    }
    let Some((head, rest)) = map.split_first_chunk::<4>() else {
        return if map.is_empty() { Ok(()) } else { Err("precompiled_charsmap has no length".into()) };
    };
    let (array, most) = (u32::from_le_bytes(*head) as usize, rest.len());
    match array > most || array % 4 != 0 || array == 0 {
        true => Err(format!(
            "the array of precompiled_charsmap has {array} bytes; it must be a multiple of 4, of 4 to {most}"
        )),
        false => Ok(()),
    }
}

/// `{"Sequence": ..}` or `{"SpecialToken": ..}`.
fn is_piece(value: &Value) -> bool {
    value.get("Sequence").or(value.get("SpecialToken")).is_some()
}

/// Places of a template, whose text may stand in it once.
fn places(part: &str, value: &Value) -> Result<usize> {
    let (count, first) = match value {
        Value::Array(pieces) => {
            let is_first = |p: &&Value| {
                p.pointer("/Sequence/id").and_then(Value::as_str) == Some("A")
                    || p.as_str().is_some_and(|p| p.starts_with("$A") || p.starts_with("$0") || p == "$")
            };
            (pieces.len(), pieces.iter().filter(is_first).count())
        }
        other => {
            let text = other.as_str().unwrap_or_default();
            (
                text.split(' ').count(),
                text.matches('$').count() - text.matches("$B").count().min(text.matches('$').count()),
            )
        }
    };
    within(&format!("times the text stands in a template of `{part}`"), first, 1)?;
    Ok(count)
}

/// Ids in the special tokens of a template.
fn ids(value: &Value) -> usize {
    let list = |token: &Value| token.get("ids").and_then(Value::as_array).map_or(1, |ids| ids.len().max(1));
    match value {
        Value::Object(tokens) => tokens.values().map(list).sum(),
        Value::Array(tokens) => tokens.iter().map(list).sum(),
        _ => 0,
    }
}

/// How many times longer a text can become by the steps of `value`.
pub(super) fn growth(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(growth).fold(1, usize::saturating_mul),
        Value::Object(fields) => {
            let inner = fields.values().map(growth).fold(1, usize::saturating_mul);
            inner.saturating_mul(step_growth(value))
        }
        _ => 1,
    }
}

/// That of one step.
fn step_growth(step: &Value) -> usize {
    let text = |name: &str| step.get(name).and_then(Value::as_str);
    if let (Some(pattern), Some(content)) = (step.get("pattern"), text("content")) {
        // What an expression matches may be empty or one character.
        let least = pattern.get("String").and_then(Value::as_str).map_or(1, |p| p.len().max(1));
        return content.len().div_ceil(least).max(1);
    }
    if let Some(map) = text("precompiled_charsmap") {
        // A character's own bits, spread over the five bytes that are looked up at once.
        return longest_run(map).div_ceil(8).max(1);
    }
    // Bytes become visible characters, half of them of two bytes.
    if text("type") == Some("ByteLevel") || step.get("trim_offsets").is_some() {
        return 2;
    }
    text("replacement").map_or(1, |mark| mark.len().max(1))
}

/// The longest text between zeros in the second part of a table in base 64: what a character can become.
fn longest_run(map: &str) -> usize {
    let bytes = base64(map);
    let head = bytes.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes) as usize;
    let texts = bytes.get(head.saturating_add(4)..).unwrap_or_default();
    texts.split(|&b| b == 0).map(<[u8]>::len).max().unwrap_or(0)
}

fn base64(text: &str) -> Vec<u8> {
    let (mut out, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => continue,
        };
        (bits, count) = ((bits << 6 | u32::from(value)) & 0x00FF_FFFF, count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}
