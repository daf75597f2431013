//! `docs/from_deepspeed.md`: its JSON blocks are configurations that pass (its Rust blocks run as
//! documentation tests).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engraft::{DeepSpeedConfig, DeepSpeedConfigBuilder};

const PAGE: &str = include_str!("../../docs/from_deepspeed.md");

fn blocks(language: &str) -> Vec<&'static str> {
    let opening = format!("```{language}\n");
    PAGE.split(opening.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_json_block_is_a_configuration_that_passes() {
    let configs: Vec<DeepSpeedConfig> = blocks("json")
        .into_iter()
        .map(|text| {
            let (config, warnings) =
                DeepSpeedConfigBuilder::new().json("from_deepspeed.md", text).unwrap().check().unwrap();
            assert!(warnings.is_empty(), "{text}: {warnings:?}");
            config
        })
        .collect();
    assert_eq!(configs.len(), 3);
    assert_eq!(configs[0].quantize.unwrap().to_string(), "int8:128");
    assert_eq!(configs[1].engine().max_step_tokens, 768);
    assert!(configs[2].checkpoint.is_some() && configs[2].base_dir == "shards");
}

#[test]
fn there_are_rust_blocks() {
    assert_eq!(blocks("rust").len(), 4);
}
