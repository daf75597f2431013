//! SentencePiece models: read as each tokenizer class does, and used.

use engraft_core::{Result, checkpoint::VocabularyFiles, text::Tokenizer};
use serde_json::json;

/// A unigram model and one of BPE, each with a table of replacements.
const UNIGRAM: &[u8] = include_bytes!("../../tests/golden-inputs/marian/source.spm");
const BPE: &[u8] = include_bytes!("../../tests/golden-inputs/nllb/sentencepiece.bpe.model");
const VOCAB: &[u8] = br#"{"</s>": 0, "<unk>": 1, "a": 2, "<pad>": 3, ">>deu<<": 4}"#;
const CLASSES: [&str; 7] = [
    "T5Tokenizer",
    "LlamaTokenizer",
    "MBartTokenizer",
    "NllbTokenizer",
    "PegasusTokenizer",
    "M2M100Tokenizer",
    "MarianTokenizer",
];

pub fn seeds() -> Result<Vec<Vec<u8>>> {
    Ok(vec![UNIGRAM.to_vec(), BPE.to_vec()])
}

/// Makes ids of a text and a text of the ids.
pub fn read(input: Vec<u8>) -> bool {
    let text = ">>deu<< The ferry　leaves  </s> ﬁve “x” \u{2581}a ".repeat(5);
    let mut accepted = false;
    for class in CLASSES {
        let files = [("tokenizer.model", input.clone()), ("vocab.json", VOCAB.to_vec())];
        let files = VocabularyFiles::new("", "", files);
        let config = json!({"tokenizer_class": class, "clean_up_tokenization_spaces": true, "extra_ids": 3});
        let tokenizer = files.and_then(|files| Tokenizer::from_vocabulary(&files, &config).ok());
        let Some(tokenizer) = tokenizer else { continue };
        accepted = true;
        if let Ok(ids) = tokenizer.encode_at_most(&text, true, 10_000) {
            assert!(ids.len() <= 10_000, "a limit on tokens holds");
            let _ = tokenizer.decode(&ids, false);
        }
        let _ = tokenizer.shield(&text).map(|text| tokenizer.encode_shielded(&text, true, 1000));
    }
    accepted
}
