//! Characters out of `vocab.json`, as models that label rows of sound are published (wav2vec 2.0).

use std::collections::HashSet;

use serde_json::json;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper};

use super::settings::{Settings, add, part};
use super::tokenizer::{Marks, Tokenizer};
use crate::{Error, Result};

/// The class, and the type of models whose configuration of the tokenizer names none.
const CLASS: &str = "Wav2Vec2CTCTokenizer";
const MODEL_TYPE: &str = "wav2vec2";

/// Whether the files are of this class.
pub(super) fn is(settings: &Settings<'_>) -> bool {
    settings.class().map_or(settings.files.model_type == MODEL_TYPE, |class| class == CLASS)
}

/// The tokenizer of a vocabulary of characters, with a sign between words.
///
/// # Errors
/// [`Error::Format`] with the file, what is found in it and what is allowed: also for texts that would have
/// to be put into capitals first.
pub(super) fn read(settings: &Settings<'_>) -> Result<Tokenizer> {
    if settings.flag("do_lower_case", false) {
        return Err(settings.broken("do_lower_case is true; texts are taken as they are written"));
    }
    let ids: Vocab = settings.vocab_json()?.into_iter().collect();
    let usual = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")];
    let tokens = usual.map(|(name, usual)| settings.token(name, usual));
    let [bos, eos, unk, _] = &tokens;
    // Without merges a text falls apart into its characters.
    let bpe = BPE::builder().vocab_and_merges::<Vocab>(ids, Vec::new()).unk_token(unk.clone());
    let bpe = bpe.build().map_err(|e| Error::format(settings.place("vocab.json"), e.to_string()))?;
    let mut built = tokenizers::Tokenizer::new(bpe);
    let between = settings.token("word_delimiter_token", "|");
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let replaced = built.with_normalizer(Some(part::<NormalizerWrapper>(replace(" ", &between))?));
    replaced.map_err(|e| settings.broken(e.to_string()))?;
    let decoder = json!({"type": "Sequence", "decoders": [replace(&between, " "), {"type": "Fuse"}]});
    built.with_decoder(Some(part::<DecoderWrapper>(decoder)?));
    let special = tokens.iter().map(|token| AddedToken::from(token.clone(), true).normalized(false));
    add(&mut built, special).map_err(|what| settings.broken(what))?;
    let known: HashSet<&str> = tokens.iter().map(String::as_str).collect();
    settings.add_tokens(&mut built, &known)?;
    let eos_ids = built.token_to_id(eos).into_iter().collect();
    Tokenizer::assemble(
        built,
        Marks { bos: Some(bos.clone()), eos: Some(eos.clone()), eos_ids, ..settings.marks() },
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::checkpoint::VocabularyFiles;
    use serde_json::Value;

    fn read_files(vocab: Value, config: Value) -> Result<Tokenizer> {
        let files = [("vocab.json", vocab.to_string().into_bytes())];
        Tokenizer::from_vocabulary(&VocabularyFiles::new("m/", "wav2vec2", files).unwrap(), &config)
    }

    fn vocab() -> Value {
        json!({"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "E": 5, "T": 6, "'": 7, "Ä": 8})
    }

    #[test]
    fn characters_and_words() {
        let class = json!({"tokenizer_class": CLASS, "word_delimiter_token": "|", "do_lower_case": false});
        for config in [Value::Null, class] {
            let tokenizer = read_files(vocab(), config).unwrap();
            assert_eq!(tokenizer.encode("TE 'Ä", true).unwrap(), [6, 5, 4, 7, 8]);
            assert_eq!(tokenizer.encode("TxE", true).unwrap(), [6, 3, 5]);
            assert_eq!(tokenizer.decode(&[6, 5, 4, 4, 7, 0, 8], true).unwrap(), "TE  'Ä");
            assert_eq!(tokenizer.token_id("<pad>"), Some(0));
        }
        let other = read_files(
            json!({"a": 0, "_": 1, "[UNK]": 2}),
            json!({"word_delimiter_token": "_", "unk_token": "[UNK]"}),
        );
        assert_eq!(other.unwrap().decode(&[0, 1, 0], true).unwrap(), "a a");
    }

    #[test]
    fn what_it_cannot_do_is_said() {
        let refused = |vocab: Value, config: Value| read_files(vocab, config).unwrap_err().to_string();
        assert!(refused(vocab(), json!({"do_lower_case": true})).contains("do_lower_case is true"));
        assert!(refused(json!({"eng": {"A": 0}}), Value::Null).contains("m/vocab.json"));
        assert!(refused(vocab(), json!({"tokenizer_class": "Other"})).contains("`Other`"));
    }
}
