//! How byte-level BPE of a GGUF file splits texts into words: `tokenizer.ggml.pre` has a name for it.
//!
//! The names are llama.cpp's. The expressions are those of the models' own `tokenizer.json`, which
//! llama.cpp's stand for.

use serde_json::{Value, json};

use super::pieces::LLAMA3;
use crate::{Error, Result};

/// How byte-level BPE prepares a text.
pub(super) struct Splitting {
    /// Pre-tokenizers as `tokenizer.json` writes them.
    pub steps: Vec<Value>,
    /// A word that is a token needs no merges; and a `<s>` goes in front unless the file says otherwise.
    pub whole_words: bool,
    /// Unicode is composed (NFC) first.
    pub compose: bool,
}

/// The ways of splitting that GGUF names.
pub(super) const SPLITTINGS: &str = "default, gpt-2, mpt, olmo, phi-2, jina-v2-en, mellum, a.x-4.0, smollm, starcoder, \
    refact, command-r, codeshell, llama-bpe, falcon3, pixtral, dbrx, smaug-bpe, qwen2, deepseek-r1-qwen, \
    megrez, stablelm2, tekken, gpt-4o, llama4, seed-coder, deepseek-coder, falcon";

/// A word is capitals before small letters; `CONTRACTION` and `DIGITS` are what may follow it and how many
/// digits stay together.
const BY_CASE: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+CONTRACTION",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*CONTRACTION",
    r"|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const CONTRACTION: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
/// As Qwen 2, but an end of a line is apart from the signs before it.
const SEED_CODER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// One after the other: ends of lines, words, signs, runs of Chinese, Japanese and Korean.
const DEEPSEEK_CODER: [&str; 4] = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{D7FF}]+"];

/// What a name stands for.
///
/// # Errors
/// [`Error::Text`] with the name and those that are known.
pub(super) fn splitting(pre: &str) -> Result<Splitting> {
    let by_words = |digits: &str| split(&LLAMA3.replace("DIGITS", digits));
    let by_case =
        |behind: &str, digits: &str| split(&BY_CASE.replace("CONTRACTION", behind).replace("DIGITS", digits));
    let (steps, whole_words, compose) = match pre {
        "" | "default" | "gpt-2" | "gpt2" | "mpt" | "olmo" | "phi-2" | "jina-v2-en" | "mellum"
        | "a.x-4.0" => (vec![bytes(true)], false, false),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => {
            (vec![digits(true), bytes(true)], false, false)
        }
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" => {
            (vec![by_words("{1,3}"), bytes(false)], true, false)
        }
        "dbrx" | "smaug-bpe" => (vec![by_words("{1,3}"), bytes(false)], false, false),
        "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" => {
            (vec![by_words(""), bytes(false)], false, true)
        }
        "tekken" => (vec![by_case("", ""), bytes(false)], true, false),
        "gpt-4o" | "llama4" => (vec![by_case(CONTRACTION, "{1,3}"), bytes(false)], false, false),
        "seed-coder" => (vec![split(SEED_CODER), bytes(false)], false, false),
        "deepseek-coder" => {
            let steps = DEEPSEEK_CODER.map(split).into_iter();
            (steps.chain([digits(true), bytes(false)]).collect(), false, false)
        }
        "falcon" => {
            let signs = json!({"type": "Punctuation", "behavior": "Contiguous"});
            (vec![signs, bytes(true), digits(false), split("[0-9][0-9][0-9]")], false, false)
        }
        other => return Err(unsupported("pre", other, SPLITTINGS)),
    };
    Ok(Splitting { steps, whole_words, compose })
}

/// The first name that stands for these steps; `default` is none, which llama.cpp warns of.
pub(super) fn named(steps: &[&Value], whole_words: bool, compose: bool) -> Option<&'static str> {
    let same = |known: &Value, step: &Value| {
        // Where tokens begin in a text changes none of them.
        let plain = |step: &Value| {
            let mut step = step.clone();
            step.as_object_mut().map(|step| step.remove("trim_offsets"));
            step
        };
        plain(known) == plain(step)
    };
    SPLITTINGS.split(", ").filter(|name| *name != "default").find(|name| {
        let known = splitting(name).ok().filter(|known| {
            (known.whole_words, known.compose, known.steps.len()) == (whole_words, compose, steps.len())
        });
        known.is_some_and(|known| known.steps.iter().zip(steps).all(|(known, step)| same(known, step)))
    })
}

/// A field of a GGUF file's tokenizer that has a value which is not known.
pub(super) fn unsupported(field: &str, got: &str, known: &str) -> Error {
    Error::text(format!("tokenizer.ggml.{field} is `{got}`; known are {known}"))
}

/// Whatever an expression matches is a word, and what is between two of them.
fn split(expression: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false})
}

/// Digits are apart from all else, and where `each`, from each other.
fn digits(each: bool) -> Value {
    json!({"type": "Digits", "individual_digits": each})
}

/// GPT-2's visible alphabet, with or without GPT-2's own way of splitting words.
pub(super) fn bytes(regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex})
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::text::settings::part;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper,
    };

    /// The words of a text, one for each name.
    fn words<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
        let steps = splitting(pre).unwrap().steps;
        let steps: PreTokenizerWrapper = part(json!({"type": "Sequence", "pretokenizers": steps})).unwrap();
        let mut split = PreTokenizedString::from(text);
        steps.pre_tokenize(&mut split).unwrap();
        let found = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        found.into_iter().map(|(_, (from, to), _)| &text[from..to]).collect()
    }

    const TEXT: &str = "HelloWorld I'LL x 12345 a,b+c ://\n";

    #[test]
    fn each_name_splits_as_its_models_do() {
        let same = |text: &str, pres: &[&str], want: &[&str]| {
            for pre in pres {
                assert_eq!(words(pre, text), want, "{pre}");
            }
        };
        let digits = [" ", "1", "2", "3", "4", "5"];
        let by_three = [" ", "123", "45"];
        let behind = [" a", ",b", "+c", " ://\n"];
        let llama = ["HelloWorld", " I", "'LL", " x"];
        same(TEXT, &["llama-bpe", "falcon3", "pixtral", "dbrx"], &[&llama[..], &by_three, &behind].concat());
        same(TEXT, &["qwen2", "megrez", "stablelm2"], &[&llama[..], &digits, &behind].concat());
        // Signs and the end of a line behind them are two words.
        let line = [" a", ",b", "+c", " ://", "\n"];
        same(TEXT, &["seed-coder"], &[&llama[..], &digits, &line].concat());
        // Small letters end a word before a capital.
        let cased = ["Hello", "World", " I", "'LL", " x"];
        same(TEXT, &["tekken"], &[&cased[..], &digits, &behind].concat());
        let contracted = ["Hello", "World", " I'LL", " x"];
        same(TEXT, &["gpt-4o", "llama4"], &[&contracted[..], &by_three, &behind].concat());
        let signs = [" a", ",", "b", "+", "c", " ://", "\n"];
        let gpt2 = ["HelloWorld", " I", "'", "LL", " x"];
        same(TEXT, &["", "gpt-2", "mellum", "a.x-4.0"], &[&gpt2[..], &[" 12345"], &signs].concat());
        let apart = [" ", "1", "2", "3", "4", "5"];
        same(TEXT, &["smollm", "refact"], &[&gpt2[..], &apart, &signs].concat());
    }

    #[test]
    fn rules_that_follow_each_other() {
        // A plus is a sign of mathematics and no punctuation: it is what is left between words.
        let want = ["Hello", " I", "'", "LL", " ", "1", "2", " a", "+", "c", " ://", "\n", "\n"];
        assert_eq!(words("deepseek-coder", "Hello I'LL 12 a+c ://\n\n"), want);
        assert_eq!(words("deepseek-coder", "你好ab 漢 字"), ["你好", "ab", " ", "漢", " ", "字"]);
        assert_eq!(words("qwen2", "你好ab 漢 字"), ["你好ab", " 漢", " 字"]);
        // Punctuation first, so that no contraction is left, then digits by three.
        let want = ["I", "'", "LL", " x", " ", "123", "45", " a", ",", "b", " ", "://", "\n"];
        assert_eq!(words("falcon", "I'LL x 12345 a,b ://\n"), want);
        // Marks of accents are parts of words by case, and of none else.
        let text = "De\u{301}ja VU";
        assert_eq!(words("tekken", text), ["De\u{301}ja", " VU"]);
        assert_eq!(words("qwen2", text), ["De", "\u{301}ja", " VU"]);
        // Slashes behind signs are with them where words are by case.
        assert_eq!(words("tekken", "\\\n/x"), ["\\\n/", "x"]);
        assert_eq!(words("qwen2", "\\\n/x"), ["\\\n", "/x"]);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let text = splitting("klingon").map(drop).unwrap_err().to_string();
        assert!(text.contains("klingon"), "{text}");
        for pre in SPLITTINGS.split(", ") {
            assert!(splitting(pre).is_ok(), "{pre}");
        }
    }

    #[test]
    fn models_whose_words_are_tokens_say_so() {
        for (pre, whole) in [("tekken", true), ("falcon3", true), ("gpt-4o", false), ("dbrx", false)] {
            assert_eq!(splitting(pre).unwrap().whole_words, whole, "{pre}");
        }
    }
}
