//! `docs/from_deepspeed.md`: its JSON blocks are configurations that pass, and that a model is opened and run
//! with (its Rust blocks run as documentation tests).
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../core/tests/support/torch.rs"]
mod torch;

use engraft::{
    DeepSpeedConfig, DeepSpeedConfigBuilder, ForwardWant, GenerateOptions, ModelSource, Options, Pick,
};
use safetensors::SafeTensors;
use std::fs;
use std::path::{Path, PathBuf};
use torch::{Tensor, archive, floats, state_dict};

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
    assert_eq!(configs.len(), 3);
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

/// A file of tensors as PyTorch writes it.
fn file(tensors: &[(String, Vec<usize>, Vec<f32>)]) -> Vec<u8> {
    let keys: Vec<String> = (0..tensors.len()).map(|i| i.to_string()).collect();
    let of = |values: &[usize]| values.iter().map(|n| *n as i64).collect::<Vec<_>>();
    let shapes: Vec<Vec<i64>> = tensors.iter().map(|(_, shape, _)| of(shape)).collect();
    let strides: Vec<Vec<i64>> =
        shapes.iter().map(|s| (0..s.len()).map(|i| s[i + 1..].iter().product()).collect()).collect();
    let all: Vec<Tensor> =
        (0..tensors.len()).map(|i| Tensor::f32(&tensors[i].0, &keys[i], &shapes[i], &strides[i])).collect();
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, _, v)| floats(v.iter().copied())).collect();
    let storages: Vec<(&str, &[u8])> =
        keys.iter().map(String::as_str).zip(data.iter().map(Vec::as_slice)).collect();
    archive(&state_dict(torch::Pickler::new(), &all).end(), &storages)
}

/// Writes the model of `from` as the files that the page's description names, for two ranks.
fn write_shards(from: &Path, to: &Path) {
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let [mut whole, mut first, mut second] = [Vec::new(), Vec::new(), Vec::new()];
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let values: Vec<f32> =
            view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let shape = view.shape().to_vec();
        let ends = |suffixes: &[&str]| suffixes.iter().any(|s| name.ends_with(&format!("{s}.weight")));
        if ends(&["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]) {
            let half = vec![shape[0] / 2, shape[1]];
            let (a, b) = values.split_at(values.len() / 2);
            first.push((name.clone(), half.clone(), a.to_vec()));
            second.push((name, half, b.to_vec()));
        } else if ends(&["o_proj", "down_proj"]) {
            let half = shape[1] / 2;
            let part =
                |at: usize| values.chunks(shape[1]).flat_map(|row| row[at..at + half].to_vec()).collect();
            first.push((name.clone(), vec![shape[0], half], part(0)));
            second.push((name, vec![shape[0], half], part(half)));
        } else {
            whole.push((name, shape, values));
        }
    }
    for (name, tensors) in [("non-tp.pt", whole), ("tp_00_00.pt", first), ("tp_01_00.pt", second)] {
        fs::write(to.join(name), file(&tensors)).unwrap();
    }
}

#[test]
fn the_description_of_the_page_opens_shards_of_two_ranks() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/llama");
    let folder = std::env::temp_dir().join(format!("engraft-from-deepspeed-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    write_shards(&golden, &folder);
    let text = blocks("json")[2];
    assert!(text.contains("\"base_dir\": \"shards\""), "{text}");
    let there = folder.to_str().unwrap();
    let config = config(&text.replace("\"base_dir\": \"shards\"", &format!("\"base_dir\": {there:?}")));
    let sharded = ModelSource::configured(&config).unwrap().unwrap();
    let same = logits(&config, sharded) == logits(&config, ModelSource::Path(golden));
    fs::remove_dir_all(&folder).unwrap();
    assert!(same);
}

#[test]
fn there_are_rust_blocks() {
    assert_eq!(blocks("rust").len(), 4);
}
