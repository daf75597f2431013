//! The program with files that describe more than a model: policy tables and DeepSpeed's configurations.

use crate::support::{demo_copy, engraft, fails, folder, manifest, misused, stderr, stdout};
use serde_json::Value;
use std::fs;

const PROMPT: &str = "This package provides";

#[test]
fn an_unknown_architecture_runs_by_a_table() {
    let model = demo_copy("acme");
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["model_type"] = "acme".into();
    config["architectures"] = serde_json::json!(["AcmeForCausalLM"]);
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    let table = model.join("acme.toml");
    fs::write(&table, "name = 'acme'\nmodel_types = ['acme']\nlike = 'llama'\n").unwrap();
    let (model, table) = (model.to_str().unwrap(), table.to_str().unwrap());
    let want = stdout(&engraft(&["generate", "--prompt", PROMPT, "--temperature", "0"]));
    let by_table = ["--model", model, "--policy", table];
    let run = ["generate", "--prompt", PROMPT, "--temperature", "0"];
    assert_eq!(stdout(&engraft(&[&run[..], &by_table[..]].concat())), want);
    let plan = stdout(&engraft(&[&["plan"][..], &by_table[..]].concat()));
    let why = "policy acme: a table given by the user describes model_type \"acme\", like llama";
    assert!(plan.contains(why), "{plan}");
    let out = folder("acme-converted");
    let out = out.to_str().unwrap();
    let said = stdout(&engraft(&["convert", model, "--out", out, "--policy", table]));
    assert!(said.contains("1 rank"), "{said}");
    let converted = ["--model", out, "--policy", table];
    assert_eq!(stdout(&engraft(&[&run[..], &converted[..]].concat())), want);
    fails(&["plan", "--model", model, "--policy", "table.yaml"], &["table.yaml", ".json or .toml"]);
    fails(&["convert", model, "--out", out, "--policy", "/no/such/table.toml"], &["/no/such/table.toml"]);
    fails(&["plan", "--model", model, "--policy", "/no/such/table.toml"], &["/no/such/table.toml"]);
}

#[test]
fn a_deepspeed_configuration_is_taken_as_a_file() {
    let dir = folder("configured");
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let run = ["generate", "--prompt", PROMPT, "--temperature", "0"];
    let want = stdout(&engraft(&run));

    let plain = file("plain.json", r#"{"dtype": "fp32", "replace_with_kernel_inject": true}"#);
    // All but the last line: the sizes of an engine are the configuration's.
    let slots = |args: &[&str]| {
        let plan = stdout(&engraft(args));
        plan.trim_end().rsplit_once('\n').map(|(slots, _)| slots.to_string())
    };
    // Which is a choice of the element type of keys and values, too, unless that is named.
    assert_eq!(slots(&["plan", "--config", &plain]), slots(&["plan", "--dtype", "f32"]));
    assert_eq!(slots(&["plan", "--config", &plain, "--kv-dtype", "bf16"]), slots(&["plan"]));
    let half = file("half.toml", "dtype = 'bf16'\nreplace_with_kernel_inject = true\n");
    let plan = stdout(&engraft(&["plan", "--config", &half]));
    assert!(plan.contains("activations bf16\n"), "{plan}");
    let plan = stdout(&engraft(&["plan", "--config", &half, "--kv-dtype", "f16"]));
    assert!(plan.contains("activations bf16, keys and values f16\n"), "{plan}");

    let demo = manifest().join("../engraft/demo-model");
    let own = serde_json::json!({
        "dtype": "fp32", "replace_with_kernel_inject": true, "checkpoint": demo.to_str().unwrap(),
    });
    let own = file("own.json", &own.to_string());
    assert_eq!(stdout(&engraft(&[&run[..], &["--config", &own]].concat())), want);
    misused(&["plan", "--config", &own, "--model", demo.to_str().unwrap()], &["`checkpoint`", "give one"]);
    misused(&["plan", "--config", &plain, "--dtype", "f16"], &["cannot be used with", "--dtype"]);
    misused(&["bench", "--config", &plain], &["bench takes no --config"]);
    misused(&["generate", "x", "-n", "-2"], &["--max-new-tokens", "-2", "0 to 1048576", "-1: until"]);
    misused(&["generate", "x", "--top-k", "-1"], &["--top-k", "-1", "0 to 4294967295"]);
    misused(&["generate", "x", "--threads", "-1"], &["--threads", "0 to 1024"]);
    misused(&["generate", "x", "--wait-limit", "9"], &["--wait-limit goes with --backend cuda"]);
    let typo = file("typo.json", r#"{"max_out_token": 64}"#);
    fails(&["plan", "--config", &typo], &["typo.json: `max_out_token`", "`max_out_tokens`"]);
    fails(&["plan", "--config", "/no/such/ds.json"], &["/no/such/ds.json"]);
}

#[test]
fn what_a_configuration_cannot_have_is_said_with_its_name() {
    let dir = folder("configured-in-vain");
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let away = file("away.json", r#"{"checkpoint": "no-such-folder", "replace_with_kernel_inject": true}"#);
    fails(&["plan", "--config", &away], &["away.json", "`checkpoint`", "no-such-folder"]);
    let long = file("long.json", r#"{"max_tokens": 100000, "replace_with_kernel_inject": true}"#);
    let said = stderr(&engraft(&["generate", "--config", &long, "--prompt", "a", "-n", "1"]));
    assert!(said.contains("100000") && said.contains("own limit of 512"), "{said}");
    let two = file(
        "two.json",
        r#"{"tensor_parallel": {"tp_size": 2}, "max_tokens": 64, "injection_policy": {"A": "o_proj"}}"#,
    );
    let said = stderr(&engraft(&["plan", "--config", &two, "--tp", "1", "--max-context", "32"]));
    for warning in
        ["--tp 1 counts before `tp_size` 2", "--max-context 32 counts before", "without fused kernels"]
    {
        assert!(said.contains(warning), "{said}");
    }
}

/// A configuration alone: what is there is planned, what is not is refused by what it needs.
#[test]
fn a_configuration_plans_without_weights() {
    let published = |name: &str| {
        let path = manifest().join(format!("../engraft/tests/published/{name}.json"));
        path.to_str().unwrap().to_owned()
    };
    let path = published("granite_3_3_8b");
    let plan = stdout(&engraft(&["plan", &path, "--kv-dtype", "bf16", "--tp", "2"]));
    for part in [
        "policy granite: ",
        "assumed: sizes come from the configuration alone",
        "8.17 billion parameters",
        "keys and values 163.8 kB for a token",
        "2 ranks, ",
    ] {
        assert!(plan.contains(part), "no {part:?} in {plan}");
    }
    assert!(!plan.contains("model.layers.0.self_attn.q_proj.weight"));
    let listed = stdout(&engraft(&["plan", "--model", &path, "--tensors"]));
    assert!(listed.contains("model.layers.{}.self_attn.q_proj.weight"), "{listed}");
    let text = stdout(&engraft(&["plan", &path, "--kv-dtype", "bf16", "--json"]));
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plan["kv_bytes"], 163_840);
    assert_eq!(plan["arch"], "granite");
    assert_eq!(plan["parameters"].as_u64().unwrap() / 1_000_000, 8170);
    fails(&["plan", &published("nemotron_3_nano_30b")], &["not there yet", "recurrent state"]);
    fails(&["generate", "-p", "a", "--model", &path], &[&path, "configuration alone"]);
}
