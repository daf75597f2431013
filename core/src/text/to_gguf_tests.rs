//! Tokenizers of goldens as GGUF's lists, and what is refused.

use super::*;
use serde_json::json;
use std::path::PathBuf;

fn golden(model: &str) -> (Value, Value) {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden")).join(model);
    let file = |name: &str| serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap();
    (file("tokenizer.json"), file("tokenizer_config.json"))
}

fn tokenizer((file, config): &(Value, Value)) -> Tokenizer {
    Tokenizer::from_json(file.to_string().as_bytes(), config).unwrap()
}

fn lists(files: &(Value, Value), rows: usize) -> Result<Lists> {
    tokenizer(files).to_gguf(rows, (&Value::Null, &Value::Null), None)
}

#[test]
fn goldens_have_the_same_ids() {
    for (model, rows, pre) in
        [("llama", 442, None), ("qwen2", 340, Some("qwen2")), ("llama_gqa_llama3", 352, Some("dbrx"))]
    {
        let files = golden(model);
        let own = tokenizer(&files);
        let found = lists(&files, rows).unwrap();
        assert_eq!((found.tokens.len(), found.pre.as_deref()), (rows, pre), "{model}");
        let written = Tokenizer::from_gguf(&GgufVocab::from(found.clone())).unwrap();
        for text in ["A test, of 12 words!\n\nAnd  more", "é ü 你 <|im_end|> <s> x", "", " ", "don't"] {
            for special in [true, false] {
                assert_eq!(
                    own.encode(text, special).unwrap(),
                    written.encode(text, special).unwrap(),
                    "{model}"
                );
            }
        }
        let ids = own.encode("Some words of text", true).unwrap();
        assert_eq!(own.decode(&ids, true).unwrap(), written.decode(&ids, true).unwrap(), "{model}");
        assert_eq!((own.bos_token(), own.eos_token()), (written.bos_token(), written.eos_token()), "{model}");
        // Rows without a token.
        let unused = found.token_type.iter().filter(|kind| **kind == UNUSED).count();
        assert_eq!(unused, rows - own.vocab_size(), "{model}");
    }
}

#[test]
fn ids_of_special_tokens_and_the_template_are_kept() {
    let files = golden("qwen2");
    let (config, generation) =
        (json!({"bos_token_id": 0, "eos_token_id": 0}), json!({"eos_token_id": [0, 2]}));
    let found = tokenizer(&files).to_gguf(345, (&config, &generation), Some("{{ x }}")).unwrap();
    assert_eq!((found.bos, found.eos, found.eot), (Some(0), Some(0), Some(2)));
    assert_eq!((found.add_bos, found.chat_template.as_deref()), (Some(false), Some("{{ x }}")));
    assert_eq!(found.tokens.get(344), Some("[PAD344]"));
    assert_eq!(found.token_type[..3], [CONTROL; 3]);
}

#[test]
fn what_has_no_place_is_refused_by_name() {
    let llama = golden("llama");
    let qwen = golden("qwen2");
    let error = |files: &(Value, Value), rows| lists(files, rows).unwrap_err().to_string();
    let with = |files: &(Value, Value), change: &dyn Fn(&mut Value)| {
        let mut files = files.clone();
        change(&mut files.0);
        files
    };
    assert!(error(&qwen, 339).contains("behind the 339 rows"), "{}", error(&qwen, 339));
    let split =
        with(&qwen, &|file| file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("x|y"));
    let said = error(&split, 340);
    assert!(said.contains("x|y") && said.contains("llama-bpe"), "{said}");
    let lower = with(&qwen, &|file| file["normalizer"] = json!({"type": "Lowercase"}));
    assert!(error(&lower, 340).contains("Lowercase"));
    let swapped = with(&llama, &|file| {
        let merges = file["model"]["merges"].as_array_mut().unwrap();
        merges.remove(3);
    });
    assert!(error(&swapped, 442).contains("merge"), "{}", error(&swapped, 442));
    let around = with(&llama, &|file| {
        let two = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
        file["post_processor"]["single"].as_array_mut().unwrap().insert(0, two);
    });
    assert!(error(&around, 442).contains("in front of a text"), "{}", error(&around, 442));
    let words = json!({"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"});
    let words = with(&qwen, &|file| {
        (file["model"], file["added_tokens"]) = (words.clone(), json!([]));
        (file["pre_tokenizer"], file["post_processor"], file["decoder"]) =
            (Value::Null, Value::Null, Value::Null);
    });
    assert!(error(&words, 2).contains("WordLevel"), "{}", error(&words, 2));
}
