//! Configurations, policy tables, chat templates and tokenizers.

use crate::{files::no_tokenizer, folder, hostile_text, samples};
use engraft_core::{
    Result,
    checkpoint::{self, ready::Manifest},
    config::{ModelConfig, deepspeed::DeepSpeedConfigBuilder},
    policy::{Automatic, Catalog, InjectionPolicy, TablePolicy, resolve},
    text::{ChatTemplate, Message, Tokenizer},
};

pub fn config_seeds() -> Result<Vec<Vec<u8>>> {
    let deepspeed = r#"{"dtype":"half","tp":{"tp_size":2},"quant":{"weight":{"num_bits":4,"group_size":64}},"moe":{"num_experts":[4]},
"state_manager":{"max_context":100,"memory_config":{"mode":"allocate","size":9}},"checkpoint":{"checkpoints":["a"]},"max_tokens":100}"#;
    let toml = "dtype = 'bf16'\nmp_size = 2\n[quantization]\nquantization_mode = 'int4a:64'\n";
    let mii = r#"{"model_config":{"tensor_parallel":2,"max_length":512,"replica_num":1,"model_name_or_path":"org/name",
"inference_engine_config":{"state_manager":{"max_context":512}}},"enable_restful_api":false}"#;
    let policy = r#"{"injection_policy":{"Block":["self_attn.o_proj",".mlp.down_proj"]},"tensor_parallel":{"tp_size":2}}"#;
    let manifest = r#"{"engraft":1,"world":2,"gguf":false,"tensors":[["a",[2,3],"f32"],["b",[256],"Q4_K"]],
"ranks":[{"final_norm.weight":[1,64,"f32"],"head.weight":[4,64,"int4:32"]},{"final_norm.weight":[1,64,"f32"],"head.weight":[4,64,"int4:32"]}]}"#;
    Ok([deepspeed, toml, mii, policy, manifest].iter().map(|s| s.as_bytes().to_vec()).collect())
}

/// Settings that stand in each other, without end or out of range; names and values that are whole files.
pub fn hostile_configs() -> Vec<Vec<u8>> {
    let long = "x".repeat(200_000);
    let nested = |key: &str, times: usize| format!("{{\"{key}\":").repeat(times) + "{}" + &"}".repeat(times);
    [
        nested("model_config", 100),
        nested("inference_engine_config", 9_000),
        nested("tensor_parallel", 100),
        format!("{{\"{long}\":1}}"),
        format!("{{\"dtype\":\"{long}\"}}"),
        format!("{{\"injection_policy\":{{\"{long}\":[\"{long}\"]}}}}"),
        format!("{{{}}}", (0..9_000).map(|i| format!("\"k{i}\":0")).collect::<Vec<_>>().join(",")),
        format!("a = {}{}", "[".repeat(9_000), "]".repeat(9_000)),
        format!("{} = 1", vec!["a"; 90_000].join(".")),
        format!("{{\"moe\":{{\"num_experts\":[{}]}}}}", vec!["1"; 50_000].join(",")),
        r#"{"tensor_parallel":-1,"tp":{"tp_size":1e300},"max_tokens":18446744073709551616}"#.into(),
        r#"{"\u001b[31m":1,"dtype":"\u0007"}"#.into(),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect()
}

pub fn table_seeds() -> Result<Vec<Vec<u8>>> {
    let json = r#"{"name":"acme","model_types":["acme"],"like":"llama","rename":{"hidden_size":"width"},"set":{"rope_theta":10000.0},
"change":{"norm":"layer","gated":true,"bias":[true,false,true,false]},"prefixes":["acme."],"block":"stack.{}.",
"names":{"attn_norm":"n1","qkv":"att.q + att.k + att.v","head":"/out"},"qkv":"concat","ignored":["acme.cache.*"],
"partition":[{"pattern":".*att\\.o\\.weight","style":"rowwise"}]}"#;
    let toml = "name = 'acme'\nmodel_types = ['acme']\nlike = 'gpt2'\n[names]\nup = 'ff.u'\n";
    let dictionary = r#"{"Block":["self_attn.o_proj",".mlp.down_proj"],"Other":"out"}"#;
    Ok([json, toml, dictionary].iter().map(|s| s.as_bytes().to_vec()).collect())
}

/// Tables whose names multiply, and what DeepSpeed's dictionaries cannot be.
pub fn hostile_tables() -> Vec<Vec<u8>> {
    let long = "x".repeat(200_000);
    [
        format!(r#"{{"name":"{long}","like":5}}"#),
        format!(r#"{{"name":"a","like":"{long}"}}"#),
        format!(r#"{{"name":"a","like":"llama","names":{{"{long}":"b"}}}}"#),
        format!(r#"{{"name":"a","like":"llama","names":{{"qkv":"{}"}}}}"#, vec!["q"; 50_000].join(" + ")),
        format!(r#"{{"name":"a","like":"llama","block":"{}"}}"#, "{}".repeat(50_000)),
        format!(r#"{{"name":"a","like":"llama","ignored":["{}b"]}}"#, "*a".repeat(50_000)),
        format!(
            r#"{{"name":"a","like":"llama","partition":[{{"pattern":"{}","style":"rowwise"}}]}}"#,
            "(a{99}){99}{99}"
        ),
        format!(
            r#"{{"name":"a","like":"llama","partition":[{{"pattern":"{}","style":"rowwise"}}]}}"#,
            "(".repeat(50_000)
        ),
        format!(r#"{{"Block":["{long}"],"Other":"\u001b[31m"}}"#),
        format!(r#"{{"Block":[{}]}}"#, vec![r#""o""#; 50_000].join(",")),
        format!(r#"{{"Block":[{{"{long}":3}}]}}"#),
        // Two long parts in one message, of characters that have several bytes.
        format!(
            r#"{{"name":"{0}","like":"llama","partition":[{{"pattern":".*|{0}","style":"rowwise"}}]}}"#,
            "é".repeat(4_000)
        ),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect()
}

pub fn template_seeds() -> Result<Vec<Vec<u8>>> {
    let chat = "{%- for m in messages %}{% if loop.first and m.role != 'system' %}{{ bos_token }}{% endif %}\
                <|{{ m['role'] }}|>\n{{ m.content | trim }}{{ eos_token }}\n{% endfor %}\
                {% if add_generation_prompt %}<|assistant|>\n{% endif %}";
    let wide = "{% macro f(a) %}{{ a | tojson }}{% endmacro %}{% set ns = namespace(x=0) %}{% generation %}{{ f(ns.x) }}{% endgeneration %}";
    Ok([chat, wide].iter().map(|s| s.as_bytes().to_vec()).collect())
}

/// Templates that asked for too much elsewhere.
pub fn hostile_templates() -> Vec<Vec<u8>> {
    hostile_text::TEMPLATES.iter().map(|template| template.as_bytes().to_vec()).collect()
}

pub fn tokenizer_seeds() -> Result<Vec<Vec<u8>>> {
    Ok(vec![hostile_text::honest_tokenizer().into_bytes()])
}

/// Tokenizers that made gigabytes or minutes of a short text elsewhere.
pub fn hostile_tokenizers() -> Vec<Vec<u8>> {
    let refused = hostile_text::tokenizers().into_iter().map(|(_, json, _)| json);
    let long = hostile_text::long_prompts().into_iter().map(|(_, json, _, _)| json);
    refused.chain(long).map(String::into_bytes).collect()
}

pub fn read_config(input: Vec<u8>) -> bool {
    let Ok(text) = std::str::from_utf8(&input) else { return false };
    let json = DeepSpeedConfigBuilder::new().json("c.json", text).and_then(DeepSpeedConfigBuilder::check);
    let toml = DeepSpeedConfigBuilder::new().toml("c.toml", text).and_then(DeepSpeedConfigBuilder::check);
    for error in [&json, &toml].into_iter().filter_map(|read| read.as_ref().err()) {
        folder::plain(&error.to_string());
    }
    for (config, warnings) in [&json, &toml].into_iter().flatten() {
        warnings.iter().for_each(|warning| folder::plain(&warning.to_string()));
        if let Some(policy) = &config.injection_policy {
            let _ = policy_of(&serde_json::json!(policy));
        }
        let engine = config.engine();
        assert!([1, 2, 4, 8].contains(&config.tp_size) && engine.max_context > 0 && engine.max_seqs > 0);
    }
    let manifest = Manifest::parse("m.json", &input);
    if let Ok(m) = &manifest {
        assert_eq!(m.operands.len(), m.world);
        let again = Manifest::parse("again", m.to_json().to_string().as_bytes());
        assert!(again.is_ok_and(|again| again == *m), "a manifest that was read can be written");
    }
    json.is_ok() || toml.is_ok() || manifest.is_ok()
}

/// Reads a table, or DeepSpeed's dictionary, and lets it describe a small model: what it promises must hold
/// or be refused.
pub fn read_table(input: Vec<u8>) -> bool {
    let Ok(text) = std::str::from_utf8(&input) else { return false };
    if let Ok(value) = serde_json::from_str(text)
        && policy_of(&value)
    {
        return true;
    }
    match TablePolicy::from_json(text).or_else(|_| TablePolicy::from_toml(text)) {
        Ok(table) => describe_by(&table),
        Err(error) => {
            folder::plain(&error.to_string());
            return false;
        }
    }
    true
}

/// The automatic policy by DeepSpeed's dictionary; whether it is one.
fn policy_of(dictionary: &serde_json::Value) -> bool {
    match Automatic::from_injection_policy(dictionary) {
        Ok(policy) => describe_by(&policy),
        Err(error) => {
            folder::plain(&error.to_string());
            return false;
        }
    }
    true
}

fn describe_by(policy: &dyn InjectionPolicy) {
    let source = checkpoint::open_bytes(
        samples::CONFIG.as_bytes(),
        None,
        samples::small_safetensors().into(),
        no_tokenizer(),
    );
    let model = source.unwrap_or_else(|e| panic!("the sample opens: {e}"));
    let config =
        ModelConfig::new(model.config.clone()).unwrap_or_else(|e| panic!("the sample's configuration: {e}"));
    let catalog = Catalog::new(model.source.tensors());
    match policy.spec(&config, catalog) {
        Ok(spec) => {
            let bindings = policy.bindings(&spec, &config, catalog);
            assert!(bindings.iter().all(|b| !b.sources.is_empty()), "a role without a source");
            if let Err(error) = resolve(policy, &spec, &config, catalog) {
                folder::plain(&error.to_string());
            }
        }
        Err(error) => folder::plain(&error.to_string()),
    }
}

/// What there is; a panic of the engine of templates, which is an error to all others, fails here.
fn calm<T>(result: Result<T>) -> Option<T> {
    if let Err(error) = &result {
        assert!(!error.to_string().contains("a panic of the engine"), "{error}");
    }
    result.ok()
}

/// Compiles a template.
pub fn read_template(input: Vec<u8>) -> bool {
    std::str::from_utf8(&input).is_ok_and(|text| calm(ChatTemplate::new(text, Some("<s>"), None)).is_some())
}

/// Renders a conversation, whose limits are the template's own.
pub fn render(input: Vec<u8>) -> bool {
    let Ok(text) = std::str::from_utf8(&input) else { return false };
    let Some(template) = calm(ChatTemplate::new(text, Some("<s>"), Some("</s>"))) else { return false };
    let messages = [Message::new("system", "Be brief."), Message::new("user", " Héllo <b>\n{{ x }} ")];
    let tools =
        serde_json::json!({"tools": [{"function": {"name": "f", "parameters": {"a": [1, 2.5, null]}}}]});
    calm(template.render(&messages, true, Some(&tools)));
    true
}

/// Reads a tokenizer, and makes ids of a text and a text of the ids.
pub fn read_tokenizer(input: Vec<u8>) -> bool {
    let config = serde_json::json!({"eos_token": "b"});
    let Ok(tokenizer) = Tokenizer::from_json(&input, &config) else { return false };
    let text = "ab a  bab <b> b aab\n".repeat(10);
    if let Ok(ids) = tokenizer.encode_at_most(&text, true, 100_000) {
        assert!(ids.len() <= 100_000, "a limit on tokens holds");
        let _ = tokenizer.decode(&ids, false);
    }
    let _ = tokenizer.shield(&text).map(|text| tokenizer.encode_shielded(&text, true, 1000));
    // Long enough that what the steps make of it counts.
    let _ = tokenizer.encode_truncated(&text.repeat(40), true, 1000);
    true
}
