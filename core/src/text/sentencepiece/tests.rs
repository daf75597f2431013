//! The goldens of tokenizers as published for encoder-decoders, exactly; and files that are none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::checkpoint::VocabularyFiles;
use std::path::PathBuf;

const CASES: [&str; 5] = ["t5", "mbart", "nllb", "m2m_100", "marian"];

fn folder(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden-inputs").join(case)
}

fn value(case: &str, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder(case).join(name)).unwrap()).unwrap()
}

fn files(case: &str) -> Vec<(&'static str, Vec<u8>)> {
    let names = VocabularyFiles::MODELS.into_iter().chain(VocabularyFiles::OTHERS);
    names.filter_map(|name| Some((name, std::fs::read(folder(case).join(name)).ok()?))).collect()
}

fn config(case: &str) -> Value {
    value(case, "tokenizer_config.json")
}

fn read(files: Vec<(&'static str, Vec<u8>)>, config: &Value) -> Result<Tokenizer> {
    Tokenizer::from_vocabulary(&VocabularyFiles::new("m/", "", files).unwrap(), config)
}

fn published(case: &str) -> Tokenizer {
    read(files(case), &config(case)).unwrap()
}

fn with(case: &str, name: &str, setting: Value) -> Tokenizer {
    let mut config = config(case);
    config[name] = setting;
    read(files(case), &config).unwrap()
}

fn numbers(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

fn check(what: &str, tokenizer: &Tokenizer, rows: &Value) {
    let rows = rows.as_array().unwrap();
    assert!(rows.len() > 3);
    for row in rows {
        let (text, ids) = (row["text"].as_str().unwrap(), numbers(&row["ids"]));
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{what}: {text:?}");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), row["decoded"], "{what}: {text:?}");
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), row["decoded_skip_special"], "{what}: {text:?}");
    }
}

#[test]
fn t5_exactly() {
    let (golden, tokenizer) = (value("t5", "golden.json"), published("t5"));
    check("t5", &tokenizer, &golden["encode"]);
    for name in ["<extra_id_0>", "<extra_id_99>"] {
        assert_eq!(tokenizer.token_id(name).map(Value::from).as_ref(), Some(&golden["extra_ids"][name]));
    }
    let texts = golden["pair"]["texts"].as_array().unwrap();
    let (first, second) = (texts[0].as_str().unwrap(), texts[1].as_str().unwrap());
    let pair = tokenizer.encode_pair(first, second, 100, 0).unwrap();
    assert_eq!(pair[0].ids, numbers(&golden["pair"]["ids"]));
    assert_eq!(tokenizer.eos_ids(), [1]);
}

#[test]
fn languages_exactly() {
    for (case, mark) in [("mbart", ""), ("nllb", ""), ("m2m_100", "__")] {
        let (golden, tokenizer) = (value(case, "golden.json"), published(case));
        check(case, &tokenizer, &golden["encode_default"]);
        check(case, &with(case, "src_lang", golden["pair"][0].clone()), &golden["encode_source"]);
        check(case, &with(case, "src_lang", golden["pair"][1].clone()), &golden["encode_target"]);
        // What a decoder begins with is one token, by its spelling alone.
        for (code, id) in golden["language_ids"].as_object().unwrap() {
            let (code, id) = (format!("{mark}{code}{mark}"), id.as_u64().unwrap() as u32);
            assert_eq!(tokenizer.token_id(&code), Some(id), "{case}");
            assert_eq!(tokenizer.encode(&code, false).unwrap(), [id], "{case}");
        }
    }
    let golden = value("nllb", "golden.json");
    check("nllb", &with("nllb", "legacy_behaviour", json!(true)), &golden["encode_legacy"]);
    let mask = value("mbart", "golden.json")["mask"].as_u64().map(|id| id as u32);
    assert_eq!(published("mbart").token_id("<mask>"), mask);
}

#[test]
fn marian_exactly() {
    let (golden, tokenizer) = (value("marian", "golden.json"), published("marian"));
    check("marian", &tokenizer, &golden["encode_source"]);
    let targets = |case: &str| VocabularyFiles::new("m/", "", files(case)).unwrap().of_targets();
    let target = Tokenizer::from_vocabulary(&targets("marian").unwrap(), &config("marian")).unwrap();
    check("marian", &target, &golden["encode_target"]);
    assert_eq!(targets("t5"), None);
    assert_eq!(tokenizer.encode(">>fra<<", false).unwrap(), [tokenizer.token_id(">>fra<<").unwrap()]);
    assert_eq!(tokenizer.eos_ids(), [0]);
    assert_eq!(tokenizer.vocab_size(), 279);
}

#[test]
fn a_folder_without_a_class_goes_by_its_model_type() {
    for (case, model_type) in
        [("t5", "t5"), ("mbart", "mbart"), ("m2m_100", "m2m_100"), ("nllb", "m2m_100"), ("marian", "marian")]
    {
        let mut config = config(case);
        config.as_object_mut().unwrap().remove("tokenizer_class");
        let files = VocabularyFiles::new("", model_type, files(case)).unwrap();
        let tokenizer = Tokenizer::from_vocabulary(&files, &config).unwrap();
        let text = "Hello, world!";
        assert_eq!(tokenizer.encode(text, true).unwrap(), published(case).encode(text, true).unwrap());
    }
}

/// A model file written field by field.
#[derive(Default)]
struct Written(Vec<u8>);

impl Written {
    fn varint(&mut self, mut value: u64) {
        while value > 0x7F {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn piece(self, text: &str, score: f32, role: u64) -> Self {
        let mut piece = Written::default().bytes(1, text.as_bytes());
        piece.varint(2 << 3 | 5);
        piece.0.extend_from_slice(&score.to_le_bytes());
        self.bytes(1, &piece.number(3, role).0)
    }

    fn base() -> Self {
        Written::default().piece("<unk>", 0.0, 2).piece("<s>", 0.0, 3).piece("</s>", 0.0, 3)
    }
}

fn llama(model: Written, config: Value) -> Result<Tokenizer> {
    let mut config = config;
    config["tokenizer_class"] = json!("LlamaTokenizer");
    read(vec![("tokenizer.model", model.0)], &config)
}

/// The golden `llama` as its SentencePiece model would have it: pieces in their order, scores by it.
#[test]
fn llama_as_its_tokenizer_json() {
    use crate::text::tokenizer::tests::{examples, golden, numbers, raw_json};
    let vocab = raw_json("llama")["model"]["vocab"].clone();
    let mut pieces: Vec<(u64, &str)> =
        vocab.as_object().unwrap().iter().map(|(text, id)| (id.as_u64().unwrap(), text.as_str())).collect();
    pieces.sort_unstable();
    let mut model = Written::default();
    for (id, text) in pieces {
        let role = match text {
            "<unk>" => 2,
            "<s>" | "</s>" => 3,
            byte if byte.starts_with("<0x") => 6,
            _ => 1,
        };
        model = model.piece(text, -(id as f32), role);
    }
    let model = model.bytes(2, &Written::default().number(3, 2).number(35, 1).0);
    let tokenizer = llama(model, json!({})).unwrap();
    for example in examples("llama") {
        let (text, ids) = (example["text"].as_str().unwrap(), numbers(&example["ids"]));
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), example["decoded_skip_special"], "{text:?}");
    }
    assert_eq!(tokenizer.bos_token(), golden("llama").bos_token());
}

#[test]
fn a_model_says_which_pieces_begin_and_end_a_text() {
    let pieces = Written::default().piece("<unk>", 0.0, 2).piece("<end>", 0.0, 3).piece("<begin>", 0.0, 3);
    let model = pieces.piece("\u{2581}", -1.0, 1).piece("a", -2.0, 1);
    let said = Written::default().number(3, 2).number(41, 2).number(42, 1);
    let tokenizer = llama(model.bytes(2, &said.0), json!({})).unwrap();
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("<begin>"), Some("<end>")));
    assert_eq!(tokenizer.encode("a", true).unwrap(), [2, 3, 4]);
}

#[test]
fn tokens_of_other_files_are_added() {
    let model = || Written::base().piece("\u{2581}", -1.0, 1).piece("a", -2.0, 1);
    let added = |id: u64| {
        json!({"added_tokens_decoder": {id.to_string(): {
        "content": "<pad>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true}}, "additional_special_tokens": ["<turn>"]})
    };
    let tokenizer = llama(model(), added(5)).unwrap();
    assert_eq!(tokenizer.encode("a<turn><pad>", true).unwrap(), [1, 3, 4, 6, 5]);
    let error = llama(model(), added(7)).unwrap_err().to_string();
    assert!(error.contains("`<pad>` has the id 7") && error.contains("its id is 5"), "{error}");
    let files = vec![("tokenizer.model", model().0), ("added_tokens.json", br#"{"<pad>": 5}"#.to_vec())];
    let tokenizer = read(files, &json!({"tokenizer_class": "LlamaTokenizerFast"})).unwrap();
    assert_eq!(tokenizer.token_id("<pad>"), Some(5));
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    let spec = |field: u64, value: u64| Written::default().number(field, value).0;
    let cases: Vec<(Written, &str)> = vec![
        (Written::base().bytes(2, &spec(3, 3)), "model_type is 3"),
        (Written::base().bytes(2, &spec(24, 1)), "treat_whitespace_as_suffix is true"),
        (Written::base().bytes(3, &spec(5, 0)), "escape_whitespaces is false"),
        (Written::base().piece("<s>", 0.0, 1), "piece 3, `<s>`, stands twice"),
        (Written::base().piece("", 0.0, 1), "piece 3 is empty"),
        (Written::base().piece("a", f32::NAN, 1), "piece 3 has the score NaN"),
        (Written::base().piece("a", 0.0, 7), "type 7; allowed are 1 to 6"),
        (Written::base().piece("?", 0.0, 2), "not exactly one"),
        (Written::default().piece("a", 0.0, 1), "not exactly one"),
        (Written::base().piece(&"a".repeat(513), 0.0, 1), "513 bytes; at most 512"),
        (Written::base().number(1, 5), "wire type 0; it must be 2"),
        (Written::base().bytes(3, &Written::default().bytes(2, &[8, 0, 0, 0, 1]).0), "of 4 to 1"),
        (Written(vec![0x0B]), "wire type 3; allowed are 0, 1, 2, 5"),
        (Written(vec![0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F]), "4294967295 bytes are announced; 0 are left"),
        (Written(vec![0xFF; 11]), "more than 10 bytes"),
        (Written(vec![0x80]), "end within a number"),
    ];
    for (model, part) in cases {
        let error = llama(model, json!({})).unwrap_err().to_string();
        assert!(error.contains("m/tokenizer.model") && error.contains(part), "{part}: {error}");
    }
    for (case, setting, given, part) in [
        ("t5", "tokenizer_class", json!("AlbertTokenizer"), "`AlbertTokenizer`"),
        ("t5", "extra_ids", json!(1 << 20), "at most 4096"),
        ("mbart", "src_lang", json!("xx"), "src_lang is `xx`"),
        ("m2m_100", "language_codes", json!("all"), "known are m2m100, wmt21"),
        ("marian", "separate_vocabs", json!(true), "separate_vocabs"),
    ] {
        let mut config = config(case);
        config[setting] = given;
        let error = read(files(case), &config).unwrap_err().to_string();
        assert!(error.contains("m/tokenizer_config.json") && error.contains(part), "{part}: {error}");
    }
    let mut short = files("marian");
    short.retain(|(name, _)| *name != "vocab.json");
    assert!(read(short, &config("marian")).unwrap_err().to_string().contains("m/vocab.json"));
}

#[test]
fn truncated_and_mutated_models_never_panic() {
    for case in CASES {
        let (whole, config) = (files(case), config(case));
        let model = &whole[0].1;
        let with_model = |bytes: Vec<u8>| {
            let mut files = whole.clone();
            files[0].1 = bytes;
            read(files, &config)
        };
        for i in 0..60 {
            let _ = with_model(model[..model.len() * i / 60].to_vec());
            let mut flipped = model.clone();
            let at = (i * 7919 * 31) % model.len();
            flipped[at] ^= 1 << (i % 8);
            // Some flips are harmless; none may panic, neither here nor when used.
            if let Ok(tokenizer) = with_model(flipped) {
                let ids = tokenizer.encode("Hello world, 12 naïve 😀 ＡＢ", true);
                let _ = ids.map(|ids| tokenizer.decode(&ids, false));
            }
        }
    }
}

#[test]
fn classes_that_number_pieces_anew() {
    let model = || Written::base().piece("\u{2581}", -1.0, 1).piece("a", -2.0, 1);
    let class = |model: Written, name: &'static str, class: &str| {
        read(vec![(name, model.0)], &json!({"tokenizer_class": class})).unwrap()
    };
    let roberta = class(model(), "sentencepiece.bpe.model", "XLMRobertaTokenizer");
    assert_eq!(roberta.encode("a z<mask>", true).unwrap(), [0, 4, 5, 4, 3, 6, 2]);
    let pair = roberta.encode_pair("a", "a", 20, 0).unwrap();
    assert_eq!(pair[0].ids, [0, 4, 5, 2, 2, 4, 5, 2]);
    let fifty = class(model(), "sentencepiece.bpe.model", "MBart50Tokenizer");
    // Four of fairseq's, two pieces, then the languages: en_XX is the fourth.
    assert_eq!(fifty.encode("a", true).unwrap(), [9, 4, 5, 2]);
    assert_eq!(fifty.token_id("sl_SI"), Some(6 + 51));
    let pieces = Written::default().piece("<pad>", 0.0, 3).piece("</s>", 0.0, 3).piece("<unk>", 0.0, 2);
    let pegasus = pieces.piece("\u{2581}", -1.0, 1).piece("a", -2.0, 1);
    let pegasus = class(pegasus, "spiece.model", "PegasusTokenizer");
    assert_eq!(pegasus.encode("a z<mask_2><unk_102>", true).unwrap(), [106, 107, 106, 105, 3, 104, 1]);
}

/// A text as the reference cleans it up.
pub(in crate::text) fn cleaned_up(text: String) -> String {
    let rules = [
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
    rules.iter().fold(text, |text, (from, to)| text.replace(from, to))
}

#[test]
fn a_text_is_cleaned_up_as_a_whole() {
    let config = |clean: bool| {
        let mut config = config("t5");
        config["clean_up_tokenization_spaces"] = json!(clean);
        config
    };
    let (plain, clean) =
        (read(files("t5"), &config(false)).unwrap(), read(files("t5"), &config(true)).unwrap());
    for text in ["a ' ' . b", "it 's . . I 've , do n't ' m ' ' ' x ", "we 're 'm ' .' ' ?! . n't"] {
        let ids = plain.encode(text, false).unwrap();
        let whole = plain.decode(&ids, true).unwrap();
        assert_eq!(clean.decode(&ids, true).unwrap(), cleaned_up(whole), "{text:?}");
    }
}

#[test]
fn a_table_that_leads_nowhere_is_an_error() {
    let table = [&4u32.to_le_bytes()[..], &0x00FF_FC00u32.to_le_bytes(), b"a\0"].concat();
    let model = || {
        let model = Written::base().piece("\u{2581}", -1.0, 1).piece("a", -2.0, 1);
        vec![("sentencepiece.bpe.model", model.bytes(3, &Written::default().bytes(2, &table).0).0)]
    };
    // NLLB looks for its mask in normalized texts, and so normalizes it; mBART does not.
    let class = |name: &str| json!({"tokenizer_class": name});
    assert!(read(model(), &class("NllbTokenizer")).unwrap_err().to_string().contains("makes no sense"));
    assert!(read(model(), &class("MBartTokenizer")).unwrap().encode("a", true).is_err());
}
