//! `docs/from_deepspeed.md`: its JSON blocks are configurations that pass, and that a model is opened and run
//! with. Its Rust blocks run as documentation tests; the one that names models of the hub, which no such test
//! has, runs here. `cli/tests/program/from_deepspeed.rs` has the program's part.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../cli/tests/support/shards.rs"]
mod shards;

use engraft::{
    DeepSpeedConfig, DeepSpeedConfigBuilder, ForwardWant, GenerateOptions, ModelSource, Options, Pick,
};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGE: &str = include_str!("../../docs/from_deepspeed.md");

fn blocks(language: &str) -> Vec<&'static str> {
    let opening = format!("```{language}\n");
    PAGE.split(opening.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

fn config(text: &str) -> DeepSpeedConfig {
    let (config, warnings) =
        DeepSpeedConfigBuilder::new().json("from_deepspeed.md", text).unwrap().check().unwrap();
    assert!(warnings.is_empty(), "{text}: {warnings:?}");
    config
}

/// Logits of a prompt, as bits, by a model that is opened as the configuration says.
fn logits(config: &DeepSpeedConfig, model: ModelSource) -> Vec<u32> {
    let options = Options::new().logit_rows(usize::MAX).deepspeed(config).unwrap();
    let model = options.open(model).unwrap();
    let want = ForwardWant { logits: Pick::All, ..ForwardWant::default() };
    let answer = model.handle().forward([vec![3, 5, 8, 13]], want).unwrap();
    assert!(!answer[0].logits.is_empty());
    answer[0].logits.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_json_block_is_a_configuration_that_passes() {
    let configs: Vec<DeepSpeedConfig> = blocks("json").into_iter().map(config).collect();
    assert_eq!(configs.len(), 4);
    assert_eq!(configs[0].quantize.unwrap().to_string(), "int8:128");
    assert_eq!(configs[1].engine().max_step_tokens, 768);
    assert!(configs[2].checkpoint.is_some() && configs[2].base_dir == "shards");
}

#[test]
fn a_model_runs_with_every_json_block_about_it() {
    for text in &blocks("json")[..2] {
        let model = Options::new().deepspeed(&config(text)).unwrap().open(ModelSource::Demo).unwrap();
        let options = GenerateOptions::new().max_new_tokens(3).greedy().ignore_end(true);
        let text = model.generate("This package provides", &options).unwrap().text().unwrap();
        assert!(!text.is_empty());
    }
}

#[test]
fn the_description_of_the_page_opens_shards_of_two_ranks() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/llama");
    let folder = std::env::temp_dir().join(format!("engraft-from-deepspeed-{}", std::process::id()));
    shards::write_shards(&golden, &folder);
    let text = blocks("json")[2];
    assert!(text.contains("\"base_dir\": \"shards\""), "{text}");
    let there = folder.to_str().unwrap();
    let config = config(&text.replace("\"base_dir\": \"shards\"", &format!("\"base_dir\": {there:?}")));
    let sharded = ModelSource::configured(&config).unwrap().unwrap();
    let (got, want) = (logits(&config, sharded), logits(&config, ModelSource::Path(golden)));
    fs::remove_dir_all(&folder).unwrap();
    // Logits as bits.
    assert_eq!(got, want);
}

/// Says that the program of this test was started by itself, to run the block below.
const INNER: &str = "ENGRAFT_TEST_OF_THE_HUB_BLOCK";

/// The page's block about models of the hub, word by word.
fn from_text_to_text() -> engraft::Result<()> {
    use engraft::{GenerateOptions, Options};

    let t5 = Options::new().open("google/flan-t5-small")?;
    let options = GenerateOptions::new().max_new_tokens(32).greedy();
    println!("{}", t5.generate("translate English to German: The house is wonderful.", &options)?.text()?);

    // A model that is told its target language by the decoder's first token (mBART 50, M2M-100, NLLB).
    let nllb = Options::new().open("facebook/nllb-200-distilled-600M")?;
    let french = options.clone().decoder_prompt("fra_Latn");
    println!("{}", nllb.generate("The house is wonderful.", &french)?.text()?);
    Ok(())
}

/// Lines of Rust that do something.
fn statements(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| !line.starts_with("# ")).map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("//")).collect()
}

#[test]
fn every_rust_block_is_executed() {
    let fences: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("```")).collect();
    let of = |kind: &str| fences.iter().filter(|fence| **fence == kind).count();
    // As documentation tests, and here.
    assert_eq!((of("rust"), of("rust,no_run")), (4, 1));
    let rust = fences.iter().filter(|fence| fence.starts_with("rust")).count();
    assert_eq!(rust, 5, "another kind of block: {fences:?}");
    let (block, here) = (statements(blocks("rust,no_run")[0]), statements(include_str!("from_deepspeed.rs")));
    assert!(block.len() >= 7, "{block:?}");
    let stands = here.windows(block.len()).any(|window| window == block);
    assert!(stands, "`from_text_to_text` is not the page's block: {block:#?}");
}

/// A golden model where the hub's client would put one of this name, with a tokenizer of words: `words` are
/// tokens of their own, and every text ends with the model's end token.
fn cached(cache: &Path, id: &str, golden: &str, words: &[&str]) {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(golden);
    let home = cache.join(format!("models--{}", id.replace('/', "--")));
    let folder = home.join("snapshots/0a1b");
    fs::create_dir_all(&folder).unwrap();
    fs::create_dir_all(home.join("refs")).unwrap();
    fs::write(home.join("refs/main"), "0a1b").unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(golden.join(name), folder.join(name)).unwrap();
    }
    let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let (size, end) = (config["vocab_size"].as_u64().unwrap(), config["eos_token_id"].as_u64().unwrap());
    let word = |id: u64| match id {
        3 => "unknown".to_string(),
        5 => "fra_Latn".to_string(),
        id if id == end => "</s>".to_string(),
        id => match id.checked_sub(10).and_then(|at| words.get(at as usize)) {
            Some(word) => word.to_string(),
            None => format!("w{id}"),
        },
    };
    let vocab: Map<String, Value> = (0..size).map(|id| (word(id), json!(id))).collect();
    let special = |id: u64| {
        json!({"id": id, "content": word(id), "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
        "added_tokens": [special(end), special(5)],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing", "pair": [text],
            "single": [text, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [end], "tokens": ["</s>"]}},
        },
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "unknown"},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

/// The block runs as it stands: the models that it names lie in the hub's cache, which the environment of a
/// process of its own names.
#[test]
fn the_block_about_models_of_the_hub_runs() {
    if std::env::var_os(INNER).is_some() {
        from_text_to_text().unwrap();
        return;
    }
    let cache = std::env::temp_dir().join(format!("engraft-hub-block-{}", std::process::id()));
    let (t5, nllb) = ("google/flan-t5-small", "facebook/nllb-200-distilled-600M");
    let (english, sentence) = ("translate English to German:", "The house is wonderful.");
    cached(&cache, t5, "t5", &["translate", "English", "German", "The", "house", "is", "wonderful"]);
    cached(&cache, nllb, "m2m_100", &["The", "house", "is", "wonderful", "."]);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_block_about_models_of_the_hub_runs", "--nocapture"])
        .env("HF_HUB_CACHE", &cache)
        .env(INNER, "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    let greedy = GenerateOptions::new().max_new_tokens(32).greedy();
    let written = |id: &str, prompt: &str, options: &GenerateOptions| {
        let model = Options::new().open(ModelSource::parse(id).cached(&cache)).unwrap();
        model.generate(prompt, options).unwrap().text().unwrap()
    };
    let german = written(t5, &format!("{english} {sentence}"), &greedy);
    let french = written(nllb, sentence, &greedy.clone().decoder_prompt("fra_Latn"));
    fs::remove_dir_all(&cache).unwrap();
    assert!(output.status.success(), "{said}");
    for text in [german, french] {
        assert!(text.trim().len() > 8 && said.contains(&text), "{text:?} is not in {said}");
    }
}
