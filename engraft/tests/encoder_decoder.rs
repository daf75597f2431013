//! An encoder with a decoder through the library: texts in, texts out.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::panic)]

use engraft::{EncoderInput, Event, ForwardWant, GenerateOptions, Options, Pick, Request, TextFinish};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A tokenizer of words with an end token behind every text, as T5's has.
const WORDS: &str = r##"{
  "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
  "added_tokens": [
    {"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
    {"id": 5, "content": "xx_Yyyy", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
  ],
  "pre_tokenizer": {"type": "Whitespace"},
  "post_processor": {
    "type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
    "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}
  },
  "model": {"type": "WordLevel", "unk_token": "unk", "vocab": VOCAB}
}"##;

/// The reference's T5 with a word for every token.
fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // An earlier run may have left its files.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/t5");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.join(file), dir.join(file)).unwrap();
    }
    let word = |id: u32| match id {
        1 => "</s>".to_string(),
        2 => "unk".to_string(),
        5 => "xx_Yyyy".to_string(),
        _ => format!("w{id}"),
    };
    let words: Vec<String> = (0..307).map(|id| format!("\"{}\": {id}", word(id))).collect();
    let tokenizer = WORDS.replace("VOCAB", &format!("{{{}}}", words.join(", ")));
    std::fs::write(dir.join("tokenizer.json"), tokenizer).unwrap();
    dir
}

/// Words that a model's files forbid are not said, also under a repetition penalty, and what has not ended at
/// the length that was asked for is ended.
#[test]
fn rules_of_a_models_files_are_kept() {
    let dir = folder("rules_of_files");
    let options = GenerateOptions::new().max_new_tokens(6).greedy();
    let said = |options: &GenerateOptions| {
        let model = Options::new().threads(2).open(dir.as_path()).unwrap();
        let mut stream = model.generate("w103 w89 w174", options).unwrap();
        let text = stream.text().unwrap();
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        (words, stream.stats().finish.clone().unwrap())
    };
    let (plain, end) = said(&options);
    assert_eq!((plain.len(), end), (6, TextFinish::Length));
    let first: u32 = plain[0][1..].parse().unwrap();
    let rules =
        format!(r#"{{"bad_words_ids": [[{first}], [1]], "forced_eos_token_id": 1, "eos_token_id": 1}}"#);
    std::fs::write(dir.join("generation_config.json"), rules).unwrap();
    let (ruled, end) = said(&options);
    assert_eq!((ruled.len(), end), (5, TextFinish::EndOfText), "{ruled:?}");
    assert!(!ruled.contains(&plain[0]), "{ruled:?} without {}", plain[0]);
    let (unlike, _) = said(&options.clone().repetition_penalty(5.0));
    let once: BTreeSet<&String> = unlike.iter().collect();
    assert!(once.len() == unlike.len() && !unlike.contains(&plain[0]), "{unlike:?}");
    let (all, end) = said(&options.ignore_end(true));
    assert_eq!((all.len(), end), (6, TextFinish::Length));
}

/// From text to text: the encoder reads the prompt with its end token, the decoder begins anew.
#[test]
fn a_text_becomes_a_text() {
    let dir = folder("encoder_decoder");
    let model = Options::new().threads(2).logit_rows(usize::MAX).open(dir.as_path()).unwrap();
    assert_eq!((model.info().encoder_layers, model.info().layers), (2, 2));
    let options = GenerateOptions::new().max_new_tokens(6).greedy().ignore_end(true);
    let ids = |decoder_prompt: &[u32]| {
        let (prompt, decoder_prompt) = (vec![103, 89, 174, 1], decoder_prompt.to_vec());
        let plain = Request { prompt, decoder_prompt, max_new_tokens: 6, ..Request::default() };
        let events = model.handle().submit(plain).unwrap();
        let token = |event| match event {
            Ok(Event::Token(id)) => Some(id),
            _ => None,
        };
        events.filter_map(token).collect::<Vec<u32>>()
    };
    let text = |ids: &[u32]| ids.iter().map(|id| format!("w{id}")).collect::<Vec<_>>().join(" ");
    let said = model.generate("w103 w89 w174", &options).unwrap().text().unwrap();
    assert_eq!(said.trim(), text(&ids(&[])));
    let begun = model.generate("w103 w89 w174", &options.clone().decoder_prompt("xx_Yyyy w7")).unwrap();
    assert_eq!(begun.collect::<Result<String, _>>().unwrap().trim(), text(&ids(&[5, 7])));
    let demo = engraft::demo().unwrap();
    let refused = demo.generate("This", &options.decoder_prompt("x")).unwrap_err().to_string();
    assert!(refused.contains("no encoder"), "{refused}");

    // A target's tokens, its end among them, each by the logits of the row before.
    let scores = model.score_pairs(&[("w103 w89 w174", "xx_Yyyy w7"), ("w9", "w8 w300 w8")]).unwrap();
    let input =
        EncoderInput { ids: vec![103, 89, 174, 1], decoder: vec![5, 7, 1], ..EncoderInput::default() };
    let want = ForwardWant { hidden: Pick::None, logits: Pick::All };
    let logits = model.handle().forward([input], want).unwrap().remove(0).logits;
    assert_eq!((scores[0].len(), scores[1].len()), (3, 4));
    for (score, (id, row)) in scores[0].iter().zip([5usize, 7, 1].into_iter().zip(logits.chunks(307))) {
        let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
        assert!((f64::from(*score) - f64::from(row[id]) + sum.ln()).abs() < 1e-4, "{score}");
    }
    let refused = demo.score_pairs(&[("a", "b")]).unwrap_err().to_string();
    assert!(refused.contains("no encoder of texts"), "{refused}");
    let refused = model.score(&["w9"]).unwrap_err().to_string();
    assert!(refused.contains("no tokens to score"), "{refused}");
}

/// Marian's targets are split by `target.spm`, what it reads by `source.spm`.
#[test]
fn targets_with_pieces_of_their_own() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("marian");
    std::fs::create_dir_all(&dir).unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let copy = |folder: &str, file: &str| {
        std::fs::copy(tests.join(folder).join("marian").join(file), dir.join(file)).unwrap();
    };
    for file in ["config.json", "model.safetensors"] {
        copy("golden", file);
    }
    for file in ["source.spm", "target.spm", "vocab.json", "tokenizer_config.json"] {
        copy("golden-inputs", file);
    }
    let golden = std::fs::read(tests.join("golden-inputs/marian/golden.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
    let model = engraft::open(dir.to_str().unwrap()).unwrap();
    let ids = |row: &serde_json::Value| -> Vec<u32> { serde_json::from_value(row["ids"].clone()).unwrap() };
    let text = |row: &serde_json::Value| row["text"].as_str().unwrap().to_string();
    let (source, target) = (&golden["encode_source"][0], &golden["encode_target"][0]);
    let pair = model.tokenize_pair(&text(source), &text(target)).unwrap();
    assert_eq!((pair.ids, pair.decoder), (ids(source), ids(target)));
    std::fs::remove_file(dir.join("target.spm")).unwrap();
    let model = engraft::open(dir.to_str().unwrap()).unwrap();
    let refused = model.tokenize_pair("a", "b").unwrap_err().to_string();
    assert!(refused.contains("target.spm"), "{refused}");
}
