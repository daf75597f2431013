//! CLIP's byte-level BPE out of `vocab.json` and `merges.txt`: small letters, blanks between words dropped,
//! ends of words marked.

use std::collections::HashSet;

use serde_json::json;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::byte_level::merges;
use super::settings::{Settings, add, part};
use super::tokenizer::{Marks, Tokenizer};
use crate::{Error, Result};

/// The class, and the types of models whose configuration of the tokenizer names none.
const CLASSES: [&str; 2] = ["CLIPTokenizer", "CLIPTokenizerFast"];
const MODEL_TYPES: [&str; 2] = ["clip", "clip_text_model"];

/// What a piece is: endings of English words, letters, one digit, other signs.
const PIECES: &str = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
/// The mark at the end of words.
const END: &str = "</w>";

/// Whether the files are of this class.
pub(super) fn is(settings: &Settings<'_>) -> bool {
    let of_type = || MODEL_TYPES.contains(&settings.files.model_type.as_str());
    settings.class().map_or_else(of_type, |class| CLASSES.contains(&class))
}

/// The tokenizer of a vocabulary and its merges.
///
/// # Errors
/// [`Error::Format`] with the file, what is found in it and what is allowed.
pub(super) fn read(settings: &Settings<'_>) -> Result<Tokenizer> {
    let ids: Vocab = settings.vocab_json()?.into_iter().collect();
    let [bos, eos] = [("bos_token", "<|startoftext|>"), ("eos_token", "<|endoftext|>")]
        .map(|(name, usual)| settings.token(name, usual));
    let [unk, pad] = ["unk_token", "pad_token"].map(|name| settings.token(name, &eos));
    let bpe = BPE::builder().vocab_and_merges::<Vocab>(ids, merges(settings)?);
    let bpe = bpe.end_of_word_suffix(END.into()).unk_token(unk.clone()).build();
    let bpe = bpe.map_err(|e| Error::format(settings.place("merges.txt"), e.to_string()))?;
    let mut built = tokenizers::Tokenizer::new(bpe);
    let normalizer = json!({"type": "Sequence", "normalizers": [
        {"type": "NFC"},
        {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
        {"type": "Lowercase"},
    ]});
    let replaced = built.with_normalizer(Some(part::<NormalizerWrapper>(normalizer)?));
    replaced.map_err(|e| settings.broken(e.to_string()))?;
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let split = json!({"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Removed", "invert": true});
    let pieces = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
    built.with_pre_tokenizer(Some(part::<PreTokenizerWrapper>(pieces)?));
    let ends = json!({"type": "Replace", "pattern": {"String": END}, "content": " "});
    let decoder = json!({"type": "Sequence", "decoders": [ends, {"type": "ByteLevel",
        "add_prefix_space": true, "trim_offsets": true, "use_regex": true}]});
    built.with_decoder(Some(part::<DecoderWrapper>(decoder)?));
    let tokens = [&bos, &eos, &unk, &pad];
    let special = tokens.map(|token| AddedToken::from(token.clone(), true).normalized(false));
    add(&mut built, special).map_err(|what| settings.broken(what))?;
    let known: HashSet<&str> = tokens.iter().map(|token| token.as_str()).collect();
    settings.add_tokens(&mut built, &known)?;
    let id = |token: &str| {
        let found = built.token_to_id(token);
        found.ok_or_else(|| Error::format(settings.place("vocab.json"), format!("has no `{token}`")))
    };
    let (first, last) = (id(&bos)?, id(&eos)?);
    let around = json!({"type": "RobertaProcessing", "sep": [eos, last], "cls": [bos, first],
        "trim_offsets": false, "add_prefix_space": false});
    built.with_post_processor(Some(part::<PostProcessorWrapper>(around)?));
    Tokenizer::assemble(
        built,
        Marks { bos: Some(bos), eos: Some(eos), eos_ids: vec![last], ..settings.marks() },
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::checkpoint::VocabularyFiles;
    use serde_json::Value;

    fn tokenizer(config: Value) -> Result<Tokenizer> {
        let vocab = json!({"a": 0, "b": 1, "a</w>": 2, "b</w>": 3, "ab</w>": 4, "1</w>": 5, "!</w>": 6, "Ã": 7, "¤</w>": 8,
            "<|startoftext|>": 9, "<|endoftext|>": 10});
        let files = [
            ("vocab.json", vocab.to_string().into_bytes()),
            ("merges.txt", b"#version: 0.2\na b</w>\n".to_vec()),
        ];
        Tokenizer::from_vocabulary(&VocabularyFiles::new("m/", "clip_text_model", files).unwrap(), &config)
    }

    #[test]
    fn words_are_small_and_end() {
        for config in [Value::Null, json!({"tokenizer_class": "CLIPTokenizer", "pad_token": "!</w>"})] {
            let tokenizer = tokenizer(config).unwrap();
            assert_eq!(tokenizer.encode(" AB\n ba 11!ä", true).unwrap(), [9, 4, 1, 2, 5, 5, 6, 7, 8, 10]);
            assert_eq!(tokenizer.encode("ab", false).unwrap(), [4]);
            assert_eq!(tokenizer.encode("", true).unwrap(), [9, 10]);
            assert_eq!(tokenizer.decode(&[9, 4, 1, 2, 10], true).unwrap().trim(), "ab ba");
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let files = [("vocab.json", b"{\"a</w>\": 0}".to_vec())];
        let files = VocabularyFiles::new("m/", "clip_text_model", files).unwrap();
        let error = Tokenizer::from_vocabulary(&files, &Value::Null).unwrap_err().to_string();
        assert!(error.contains("m/merges.txt") && error.contains("missing"), "{error}");
    }

    #[test]
    fn an_end_that_the_vocabulary_lacks_is_behind_it() {
        let other = tokenizer(json!({"tokenizer_class": "CLIPTokenizer", "eos_token": "<end>"})).unwrap();
        assert_eq!(other.encode("ab", true).unwrap(), [9, 4, 11]);
    }
}
