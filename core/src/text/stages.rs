//! The steps of a tokenizer file's decoder, each a small machine that holds back what is uncertain.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

/// Steps of a decoder; published ones have at most five.
const MAX_STAGES: usize = 32;
const REPLACEMENT: &str = "\u{FFFD}";
/// SentencePiece's mark of a blank.
const BLANK: char = '\u{2581}';

/// Sends a piece through all stages.
pub(super) fn feed(stages: &mut [Stage], piece: String, out: &mut String) {
    match stages.split_first_mut() {
        None => out.push_str(&piece),
        Some((stage, rest)) => stage.feed(piece, &mut |piece| feed(rest, piece, out)),
    }
}

/// One step of a decoder with what it holds back.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// A literal text for another, within a piece.
    Replace { from: String, to: String },
    /// `<0xE2>` tokens to the characters their bytes make.
    ByteFallback { held: Vec<u8> },
    /// GPT-2's alphabet of visible characters back to bytes.
    ByteLevel { held: Vec<u8> },
    /// Splits `content` at both ends of each piece.
    StripPiece { content: char, start: usize, stop: usize },
    /// Splits `content` at both ends of the text; `held` of them have come last.
    StripText { content: char, start: usize, stop: usize, held: usize },
    /// SentencePiece's blank; the first piece loses its own if `trim`.
    Metaspace { blank: char, trim: bool },
    /// Words apart, continuations (`##`) together; `first` until a piece has come.
    WordPiece { prefix: String, cleanup: bool, first: bool },
    /// End-of-word marks to blanks, but not the last piece's.
    Suffix { suffix: String, last: Option<String> },
    /// A blank between pieces: what no decoder at all means.
    Blanks { first: bool },
    /// A literal text for another, wherever it stands; `held` may be its beginning.
    ReplaceText { from: &'static str, to: &'static str, held: String },
    /// SentencePiece's decoder, run apart for the pieces between `marks`: as long as it has no text, pieces
    /// lose the blank in front of them. `behind` follows each mark.
    Segments { marks: Arc<HashSet<String>>, behind: &'static str, empty: bool },
}

/// The stages of tokenizers that call SentencePiece for what is between special tokens; the text as a whole
/// has no blanks around it.
pub(super) fn segments(marks: HashSet<String>, behind: &'static str) -> Vec<Stage> {
    let strip = Stage::StripText { content: ' ', start: usize::MAX, stop: usize::MAX, held: 0 };
    vec![Stage::Segments { marks: Arc::new(marks), behind, empty: true }, strip]
}

/// The clean-up of English punctuation in whole texts that `tokenizer_config.json` may ask for: each rule is
/// applied to what the one before it has left.
pub(super) fn clean_up() -> impl Iterator<Item = Stage> {
    const RULES: [(&str, &str); 10] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    RULES.into_iter().map(|(from, to)| Stage::ReplaceText { from, to, held: String::new() })
}

/// The stages of a decoder as `tokenizer.json` states it; `Err` says what cannot be streamed.
pub(super) fn compile(decoder: &Value) -> Result<Vec<Stage>, String> {
    if decoder.is_null() {
        return Ok(vec![Stage::Blanks { first: true }]);
    }
    let (mut stages, mut fused) = (Vec::new(), false);
    compile_into(decoder, &mut fused, &mut stages)?;
    Ok(stages)
}

fn compile_into(d: &Value, fused: &mut bool, stages: &mut Vec<Stage>) -> Result<(), String> {
    let text = |field: &str| {
        d[field].as_str().map(str::to_owned).ok_or_else(|| format!("decoder without `{field}`"))
    };
    let symbol = |field: &str| {
        let one = |s: &str| s.chars().next().filter(|c| c.len_utf8() == s.len());
        d[field].as_str().and_then(one).ok_or_else(|| format!("decoder whose `{field}` is not one character"))
    };
    let count = |field: &str| d[field].as_u64().unwrap_or(0) as usize;
    let name = d["type"].as_str().unwrap_or_default();
    let stage = match name {
        "Sequence" => {
            for inner in d["decoders"].as_array().into_iter().flatten() {
                compile_into(inner, fused, stages)?;
            }
            return Ok(());
        }
        "Fuse" => {
            *fused = true;
            return Ok(());
        }
        "Replace" => {
            let from = d["pattern"]["String"].as_str().unwrap_or_default().to_owned();
            if from.is_empty() || (*fused && from.chars().count() > 1) {
                return Err(format!("decoder Replace with pattern {}", d["pattern"]));
            }
            Stage::Replace { from, to: text("content")? }
        }
        "Strip" => {
            let (content, start, stop) = (symbol("content")?, count("start"), count("stop"));
            match *fused {
                true => Stage::StripText { content, start, stop, held: 0 },
                false => Stage::StripPiece { content, start, stop },
            }
        }
        _ if *fused => return Err(format!("decoder {name} after Fuse")),
        "ByteFallback" => Stage::ByteFallback { held: Vec::new() },
        "ByteLevel" => {
            *fused = true;
            Stage::ByteLevel { held: Vec::new() }
        }
        "Metaspace" => {
            Stage::Metaspace { blank: symbol("replacement")?, trim: d["prepend_scheme"] != "never" }
        }
        "WordPiece" => {
            let cleanup = d["cleanup"].as_bool().unwrap_or(true);
            Stage::WordPiece { prefix: text("prefix")?, cleanup, first: true }
        }
        "BPEDecoder" => Stage::Suffix { suffix: text("suffix")?, last: None },
        other => return Err(format!("decoder {other}")),
    };
    if stages.len() == MAX_STAGES {
        return Err(format!("decoder of more than {MAX_STAGES} steps"));
    }
    stages.push(stage);
    Ok(())
}

impl Stage {
    /// Takes a piece, passes on what is certain.
    fn feed(&mut self, piece: String, next: &mut dyn FnMut(String)) {
        match self {
            Stage::Replace { from, to } => next(piece.replace(from.as_str(), to)),
            Stage::ByteFallback { held } => match byte_token(&piece) {
                Some(byte) => {
                    held.push(byte);
                    next(complete(held, Invalid::PerByte));
                }
                None => {
                    if !held.is_empty() {
                        next(REPLACEMENT.repeat(held.len()));
                        held.clear();
                    }
                    next(piece);
                }
            },
            Stage::ByteLevel { held } => {
                push_bytes(&piece, held);
                next(complete(held, Invalid::PerSequence));
            }
            Stage::StripPiece { content, start, stop } => {
                let rest = strip_start(&piece, *content, &mut start.clone());
                let tail = rest.chars().rev().take(*stop).take_while(|c| c == content).count();
                next(rest[..rest.len() - tail * content.len_utf8()].to_owned());
            }
            Stage::StripText { content, start, stop, held } => {
                let rest = strip_start(&piece, *content, start);
                next(hold_tail(rest, *content, *stop, held));
            }
            Stage::Metaspace { blank, trim } => {
                let kept = if std::mem::take(trim) { "" } else { " " };
                next(piece.replace(*blank, kept));
            }
            Stage::WordPiece { prefix, cleanup, first } => {
                let word = match (std::mem::take(first), piece.strip_prefix(prefix.as_str())) {
                    (true, _) => piece,
                    (false, Some(rest)) => rest.to_owned(),
                    (false, None) => format!(" {piece}"),
                };
                next(if *cleanup { tidy(&word) } else { word });
            }
            Stage::Suffix { suffix, last } => {
                if let Some(before) = last.replace(piece) {
                    next(before.replace(suffix.as_str(), " "));
                }
            }
            Stage::ReplaceText { from, to, held } => next(replace_held(piece, from, to, held)),
            Stage::Segments { marks, behind, empty } => match marks.contains(&piece) {
                true => {
                    *empty = true;
                    next(piece + behind);
                }
                false => next(within_segment(&piece, empty)),
            },
            Stage::Blanks { first } => {
                next(if std::mem::take(first) { piece } else { format!(" {piece}") });
            }
        }
    }

    /// Passes on what was held.
    pub(super) fn end(&mut self, next: &mut dyn FnMut(String)) {
        match self {
            Stage::ByteFallback { held } if !held.is_empty() => {
                next(REPLACEMENT.repeat(std::mem::take(held).len()));
            }
            Stage::ByteLevel { held } if !held.is_empty() => {
                held.clear();
                next(REPLACEMENT.to_owned());
            }
            Stage::ReplaceText { held, .. } => next(std::mem::take(held)),
            Stage::Suffix { suffix, last } => {
                if let Some(piece) = last.take() {
                    next(piece.replace(suffix.as_str(), ""));
                }
            }
            _ => {}
        }
    }
}

/// How invalid UTF-8 is shown.
#[derive(Clone, Copy, PartialEq)]
enum Invalid {
    /// One U+FFFD for each maximal invalid sequence (what Rust's and Python's lossy decoding do).
    PerSequence,
    /// One U+FFFD for each byte.
    PerByte,
}

/// Takes all that is decided out of `held` and leaves an unfinished character's bytes there (at most three).
fn complete(held: &mut Vec<u8>, invalid: Invalid) -> String {
    let mut out = String::new();
    let mut done = 0;
    for chunk in held.utf8_chunks() {
        out.push_str(chunk.valid());
        done += chunk.valid().len();
        let bad = chunk.invalid();
        if done + bad.len() == held.len() && !bad.is_empty() && may_continue(bad) {
            break;
        }
        done += bad.len();
        match invalid {
            Invalid::PerByte => out.push_str(&REPLACEMENT.repeat(bad.len())),
            Invalid::PerSequence if !bad.is_empty() => out.push_str(REPLACEMENT),
            Invalid::PerSequence => {}
        }
    }
    held.drain(..done);
    out
}

/// True if more bytes could make a character of these.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

/// The byte that a token like `<0xE2>` stands for.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` alone would take `+A`, which the reference also does; no published token looks like
    // that.
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// Appends the bytes that a piece of GPT-2's alphabet stands for; a piece outside of it stands for itself.
fn push_bytes(piece: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for c in piece.chars() {
        match visible_to_byte(c) {
            Some(b) => bytes.push(b),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(piece.as_bytes());
                return;
            }
        }
    }
}

/// GPT-2's alphabet: visible Latin-1 characters are themselves, the 68 other bytes follow from U+0100 in byte
/// order.
pub(super) fn visible_to_byte(c: char) -> Option<u8> {
    match u32::from(c) {
        v @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(v as u8),
        v @ 0x100..=0x120 => Some((v - 0x100) as u8),
        v @ 0x121..=0x142 => Some((v - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The visible character of a byte: the inverse of [`visible_to_byte`].
pub(super) fn byte_to_visible(byte: u8) -> char {
    match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0..=0x20 => char::from_u32(0x100 + u32::from(byte)).unwrap_or_default(),
        0x7F..=0xA0 => char::from_u32(0x121 + u32::from(byte) - 0x7F).unwrap_or_default(),
        0xAD => '\u{143}',
    }
}

/// `text` without its first characters as long as they are `content`, at most `left` of them.
fn strip_start<'a>(text: &'a str, content: char, left: &mut usize) -> &'a str {
    let mut rest = text;
    while *left > 0 && !rest.is_empty() {
        match rest.strip_prefix(content) {
            Some(shorter) => (rest, *left) = (shorter, *left - 1),
            None => *left = 0,
        }
    }
    rest
}

/// `text` with the `held` characters before it, but without the last ones (at most `stop`) if they are
/// `content`: these may be the text's end and are held next.
fn hold_tail(text: &str, content: char, stop: usize, held: &mut usize) -> String {
    let body = text.trim_end_matches(content);
    let before = if body.is_empty() { 0 } else { std::mem::take(held) };
    let mut out: String = std::iter::repeat_n(content, before).collect();
    out.push_str(body);
    *held += (text.len() - body.len()) / content.len_utf8();
    out.extend(std::iter::repeat_n(content, held.saturating_sub(stop)));
    *held = (*held).min(stop);
    out
}

/// What was held and `piece` with `to` for `from`, but without an end that may be the beginning of `from`:
/// this is held next.
fn replace_held(piece: String, from: &str, to: &str, held: &mut String) -> String {
    held.push_str(&piece);
    let mut text = held.replace(from, to);
    // A match that was replaced is not the beginning of another.
    let last = held.match_indices(from).last();
    let rest = last.map_or(held.as_str(), |(at, _)| &held[at + from.len()..]);
    let begun = (1..from.len()).rev().find(|&n| rest.ends_with(&from[..n])).unwrap_or(0);
    *held = rest[rest.len() - begun..].to_owned();
    text.truncate(text.len() - begun);
    text
}

/// A piece's text; without the blank in front of it as long as its segment is empty.
fn within_segment(piece: &str, empty: &mut bool) -> String {
    let rest = piece.strip_prefix(BLANK).filter(|_| *empty).unwrap_or(piece);
    *empty &= rest.is_empty();
    rest.replace(BLANK, " ")
}

/// The reference decoder's clean-up of English punctuation, on one piece.
fn tidy(piece: &str) -> String {
    const RULES: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    RULES.iter().fold(piece.to_owned(), |text, (from, to)| text.replace(from, to))
}
