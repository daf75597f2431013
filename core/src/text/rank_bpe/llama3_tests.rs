//! Llama 3's file of ranks: which of two sorts of file it is, its special tokens, and files of other models.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::tests::{Random, by_token, joined, lines, table, text};
use super::*;
use serde_json::Map;

const FILE: &str = "tokenizer.model";

/// A tokenizer of a file next to the configuration of a model.
fn of_model(bytes: Vec<u8>, model: &Value, tokenizer_config: &Value) -> Result<Tokenizer> {
    let model_type = model["model_type"].as_str().unwrap_or_default();
    let files = VocabularyFiles::new("m/", model_type, [(FILE, bytes)]).expect("a tokenizer").of_model(model);
    Tokenizer::from_vocabulary(&files, tokenizer_config)
}

/// Meta's parameters for so many ranks.
fn params(ranks: usize, stretched: bool) -> Value {
    json!({"dim": 64, "n_layers": 2, "vocab_size": ranks + 256, "use_scaled_rope": stretched})
}

#[test]
fn ids_are_those_of_joining_by_rank() {
    let mut random = Random(21);
    for round in 0..8 {
        let tokens = table(&mut random, 20 + 30 * round);
        let ranks = by_token(&tokens);
        let model = params(tokens.len(), round % 2 == 0);
        let tokenizer = of_model(lines(&tokens), &model, &Value::Null).unwrap();
        let begin = tokens.len() as u32;
        for _ in 0..60 {
            let (text, ids) = text(&mut random, &ranks);
            assert_eq!(tokenizer.encode(&text, false).unwrap(), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
            assert_eq!(tokenizer.encode(&text, true).unwrap(), [&[begin][..], &ids].concat());
        }
        // Up to three digits are a word, and contractions of any case.
        let words = ["I", "'LL", " pay", " ", "123", "456", "7", "!\n\n", "Now"];
        let ids: Vec<u32> = words.iter().flat_map(|word| joined(&ranks, word)).collect();
        assert_eq!(tokenizer.encode(&words.concat(), false).unwrap(), ids);
    }
}

#[test]
fn special_tokens_are_those_of_3_and_of_3_1() {
    let tokens = table(&mut Random(22), 10);
    let n = tokens.len() as u32;
    let of = |stretched: bool, config: &Value| {
        of_model(lines(&tokens), &params(tokens.len(), stretched), config).unwrap()
    };
    let (three, later) = (of(false, &Value::Null), of(true, &Value::Null));
    for tokenizer in [&three, &later] {
        let marks = ["begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id"];
        let ids = marks.map(|name| tokenizer.token_id(&format!("<|{name}|>")).unwrap());
        assert_eq!(ids, [n, n + 1, n + 6, n + 7, n + 9]);
        assert_eq!(
            (tokenizer.bos_token(), tokenizer.eos_token()),
            (Some("<|begin_of_text|>"), Some("<|end_of_text|>"))
        );
        assert_eq!(tokenizer.vocab_size() as u32, n + 256);
        assert_eq!(tokenizer.encode("<|eot_id|>ab", false).unwrap()[0], n + 9);
        assert_eq!(tokenizer.decode(&[n, n + 255, n + 9], true).unwrap(), "");
    }
    let reserved = |tokenizer: &Tokenizer, number: u32| {
        tokenizer.token_id(&format!("<|reserved_special_token_{number}|>")).map(|id| id - n)
    };
    let of_three = [0, 1, 2, 3, 4, 5, 250].map(|number| reserved(&three, number).unwrap());
    assert_eq!(of_three, [2, 3, 4, 5, 8, 10, 255]);
    assert_eq!((three.token_id("<|eom_id|>"), reserved(&three, 251)), (None, None));
    let of_later = [0, 1, 2, 3, 246].map(|number| reserved(&later, number).unwrap());
    assert_eq!(of_later, [2, 3, 11, 12, 255]);
    let new = ["finetune_right_pad_id", "step_id", "eom_id", "python_tag"];
    let new = new.map(|name| later.token_id(&format!("<|{name}|>")).unwrap() - n);
    assert_eq!(new, [4, 5, 8, 10]);
    assert_eq!((three.eos_ids(), later.eos_ids()), (&[n + 1, n + 9][..], &[n + 1, n + 9, n + 8][..]));
    // Names of the folder go before both.
    let mut named = Map::new();
    named.insert((n + 8).to_string(), json!({"content": "<|call|>", "special": false}));
    let config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": named});
    let own = of(true, &config);
    assert_eq!((own.token_id("<|call|>"), own.token_id("<|eom_id|>")), (Some(n + 8), None));
    assert_eq!(own.decode(&[n + 8], true).unwrap(), "<|call|>");
    assert_eq!(own.eos_ids(), [n + 1, n + 9]);
}

#[test]
fn the_layout_is_that_of_the_models_rotation() {
    let tokens = table(&mut Random(23), 5);
    let size = tokens.len() + 256;
    let later = |model: Value| {
        let tokenizer = of_model(lines(&tokens), &model, &Value::Null).unwrap();
        tokenizer.token_id("<|eom_id|>").is_some()
    };
    let of_type = |field: &str, name: &str| json!({"model_type": "llama", "vocab_size": size, (field): {(name): "llama3"}});
    assert!(later(of_type("rope_scaling", "rope_type")));
    assert!(later(of_type("rope_scaling", "type")));
    assert!(later(of_type("rope_parameters", "rope_type")));
    assert!(!later(json!({"model_type": "llama", "vocab_size": size, "rope_scaling": null})));
    assert!(!later(json!({"model_type": "llama", "vocab_size": size, "rope_scaling": {"type": "dynamic"}})));
    assert!(!later(params(tokens.len(), false)));
}

#[test]
fn files_of_other_models_are_refused_by_name() {
    let tokens = table(&mut Random(24), 10);
    let n = tokens.len();
    let refused = |model: &Value, config: &Value| {
        of_model(lines(&tokens), model, config).map(drop).unwrap_err().to_string()
    };
    let text = refused(&json!({"dim": 64, "vocab_size": 1000}), &Value::Null);
    assert!(text.contains("m/tokenizer.model") && text.contains("266 ranks"), "{text}");
    assert!(text.contains("522 tokens") && text.contains("vocab_size of the model is 1000"), "{text}");
    // Meta's older parameters say -1.
    let text = refused(&json!({"dim": 64, "vocab_size": -1}), &Value::Null);
    assert!(text.contains("Llama 3's are 128256"), "{text}");
    let text = refused(&json!({"model_type": "llama4_text", "vocab_size": n + 256}), &Value::Null);
    assert!(text.contains("llama4_text") && text.contains("llama"), "{text}");
    let text = refused(&params(n, true), &json!({"tokenizer_class": "GemmaTokenizer"}));
    assert!(text.contains("GemmaTokenizer") && text.contains("PreTrainedTokenizer"), "{text}");
    let mut bad = Map::new();
    bad.insert((n + 256).to_string(), json!({"content": "x"}));
    let text = refused(&params(n, true), &json!({"added_tokens_decoder": bad}));
    assert!(text.contains("`522` in added_tokens_decoder") && text.contains("266 to 521"), "{text}");
    let mut broken = lines(&tokens);
    broken.extend(b"YWJjYWJj\n");
    let text = of_model(broken, &params(n, true), &Value::Null).map(drop).unwrap_err().to_string();
    assert!(text.contains("line 267 is not a token"), "{text}");
}

#[test]
fn what_is_a_file_of_ranks_its_content_says() {
    let files = |bytes: &[u8]| VocabularyFiles::new("", "", [(FILE, bytes.to_vec())]).unwrap();
    for bytes in [&b"IQ== 0"[..], b"IQ== 0\n", b"IQ== 0\r\nIg== 1\r\n", b"+/+/ 17\n\0\xFF"] {
        let files = files(bytes);
        assert!(files.ranks().is_some() && files.model().is_none(), "{bytes:?}");
    }
    // Protobufs and others, which the reader of SentencePiece models refuses or takes.
    let long = [vec![b'a'; 5000], b" 1\n".to_vec()].concat();
    let others = [
        &b""[..],
        b"\n\x0E\n\x05<unk>\x15\0\0\0\0\x18\x02",
        b"\x12\x03IQ= 0",
        b"IQ==",
        b" 0",
        b"IQ== ",
        b"IQ== 0x",
        &long[..],
    ];
    for bytes in others {
        let files = files(bytes);
        assert!(files.ranks().is_none() && files.model().is_some(), "{bytes:?}");
    }
    // Other models' files of that name stay theirs, next to files of ranks too.
    let both = [("qwen.tiktoken", b"IQ== 0".to_vec()), (FILE, b"\n\x0E".to_vec())];
    let both = VocabularyFiles::new("", "", both).unwrap();
    assert_eq!((both.ranks().unwrap().0, both.model().unwrap().0), ("qwen.tiktoken", FILE));
}

#[test]
fn a_folder_of_metas_opens() {
    let tokens = table(&mut Random(25), 10);
    let folder = std::env::temp_dir().join(format!("engraft-llama3-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(FILE), lines(&tokens)).unwrap();
    std::fs::write(folder.join("params.json"), params(tokens.len(), true).to_string()).unwrap();
    let empty = [&2u64.to_le_bytes()[..], b"{}"].concat();
    std::fs::write(folder.join("model.safetensors"), empty).unwrap();
    let files = crate::checkpoint::open(&folder, crate::checkpoint::Access::default()).unwrap();
    let tokenizer = Tokenizer::from_files("m", files.tokenizer).unwrap();
    assert_eq!(tokenizer.encode("<|python_tag|>", false).unwrap(), [tokens.len() as u32 + 10]);
    std::fs::remove_dir_all(&folder).unwrap();
}
