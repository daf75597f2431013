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

/// A field of a message, of at most 16,383 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = [bytes.len() as u8 | 0x80, (bytes.len() >> 7) as u8];
    [&[number << 3 | 2][..], &length, bytes].concat()
}

/// Pieces that begin one another: each place of a text looks all of them up. As many as are allowed, and
/// more; the same for BPE.
pub fn hostile() -> Vec<Vec<u8>> {
    let piece = |text: &str, role: u8| field(1, &[field(1, text.as_bytes()), vec![0x18, role]].concat());
    let runs = |longest: usize| -> Vec<u8> {
        let runs = (1..=longest).flat_map(|n| piece(&"a".repeat(n), 1));
        piece("<unk>", 2).into_iter().chain(runs).collect()
    };
    let bpe = [0x12, 2, 0x18, 2];
    vec![runs(55), runs(500), [runs(100), bpe.to_vec()].concat()]
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
