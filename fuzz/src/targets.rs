//! What is fuzzed: seeds, dictionary and body of each target.

use crate::{folder, hostile_text, model, packed, pieces, ranks, samples, session, torch, words};
use engraft_core::{
    Result,
    checkpoint::{self, Source, TokenizerFiles, gguf, index, ready::Manifest, safetensors},
    config::{ModelConfig, deepspeed::DeepSpeedConfigBuilder},
    inject::describe,
    mem::Stored,
    policy::{Automatic, Catalog, InjectionPolicy, TablePolicy, resolve},
    quant::plain,
    text::{ChatTemplate, GgufVocab, Message, Tokenizer},
};

/// A target.
pub struct Target {
    /// Name on the command line.
    pub name: &'static str,
    /// Valid files.
    pub seeds: fn() -> Result<Vec<Vec<u8>>>,
    /// Words of the format.
    pub words: &'static [&'static str],
    /// Whether files begin with the length of a text header.
    pub text_header: bool,
    /// Reads an input to the end; returns whether it was accepted.
    pub body: fn(Vec<u8>) -> bool,
}

const TARGETS: [Target; 15] = [
    Target {
        name: "safetensors",
        seeds: safetensors_seeds,
        words: words::SAFETENSORS,
        text_header: true,
        body: read_safetensors,
    },
    Target { name: "gguf", seeds: gguf_seeds, words: words::GGUF, text_header: false, body: read_gguf },
    Target { name: "torch", seeds: torch_seeds, words: words::TORCH, text_header: false, body: read_torch },
    Target { name: "json", seeds: json_seeds, words: words::JSON, text_header: false, body: read_json },
    Target {
        name: "config",
        seeds: config_seeds,
        words: words::CONFIG,
        text_header: false,
        body: read_config,
    },
    Target { name: "table", seeds: table_seeds, words: words::TABLE, text_header: false, body: read_table },
    Target {
        name: "template",
        seeds: template_seeds,
        words: words::TEMPLATE,
        text_header: false,
        body: read_template,
    },
    Target {
        name: "render",
        seeds: template_seeds,
        words: words::TEMPLATE,
        text_header: false,
        body: render,
    },
    Target {
        name: "tokenizer",
        seeds: tokenizer_seeds,
        words: words::TOKENIZER,
        text_header: false,
        body: read_tokenizer,
    },
    Target {
        name: "pieces",
        seeds: pieces::seeds,
        words: words::PIECES,
        text_header: false,
        body: pieces::read,
    },
    Target { name: "ranks", seeds: ranks::seeds, words: words::RANKS, text_header: false, body: ranks::read },
    Target { name: "model", seeds: model::seeds, words: words::MODEL, text_header: true, body: model::read },
    Target {
        name: "folder",
        seeds: folder::seeds,
        words: words::FOLDER,
        text_header: false,
        body: folder::read,
    },
    Target {
        name: "packed",
        seeds: packed::seeds,
        words: words::PACKED,
        text_header: true,
        body: packed::read,
    },
    Target {
        name: "session",
        seeds: session::seeds,
        words: words::SESSION,
        text_header: true,
        body: session::read,
    },
];

impl Target {
    /// The target of this name, or all.
    pub fn named(name: &str) -> Option<Vec<Target>> {
        if name == "all" {
            return Some(TARGETS.into());
        }
        TARGETS.into_iter().find(|t| t.name == name).map(|t| vec![t])
    }

    /// Inputs that ask for too much: they may be refused, and are mutated as the valid files are.
    pub fn hostile(&self) -> Vec<Vec<u8>> {
        match self.name {
            "template" | "render" => hostile_text::TEMPLATES.iter().map(|s| s.as_bytes().to_vec()).collect(),
            "tokenizer" => {
                let refused = hostile_text::tokenizers().into_iter().map(|(_, json, _)| json);
                let long = hostile_text::long_prompts().into_iter().map(|(_, json, _, _)| json);
                refused.chain(long).map(String::into_bytes).collect()
            }
            "pieces" => pieces::hostile(),
            "ranks" => ranks::hostile(),
            "folder" => folder::hostile(),
            "config" => hostile_configs(),
            "table" => hostile_tables(),
            _ => Vec::new(),
        }
    }

    /// Cases that a second has at least; fewer where a case does what its input says, within limits of its
    /// own.
    pub fn least_cases(&self) -> u64 {
        match self.name {
            "render" => 20,
            "tokenizer" | "folder" | "session" | "packed" => 200,
            // Several tokenizers are built, with their search for special tokens.
            "pieces" | "ranks" => 20,
            // Files of 200 KB are among the seeds.
            "config" | "table" => 50,
            _ => 1000,
        }
    }

    /// Bytes that a case of `len` bytes may hold: a rendering may hold some of its own, and the TOML parser
    /// keeps about 240 bytes for every piece `a.` of a dotted key.
    pub fn memory(&self, len: usize) -> usize {
        match self.name {
            "render" | "tokenizer" | "pieces" | "ranks" => 2 * len + 100_000_000,
            "config" | "table" => 160 * len + (16 << 20),
            _ => 2 * len + (16 << 20),
        }
    }
}

fn safetensors_seeds() -> Result<Vec<Vec<u8>>> {
    let one = r#"{"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}"#;
    Ok(vec![
        samples::small_safetensors(),
        samples::safetensors(one, &[0; 8]),
        samples::safetensors("{}", &[]),
    ])
}

fn gguf_seeds() -> Result<Vec<Vec<u8>>> {
    use gguf::{Value, write::Writer};
    let bert = Writer::new()
        .text("general.architecture", "bert")
        .pair("bert.block_count", &Value::U32(2))
        .pair("bert.pooling_type", &Value::U32(1))
        .finish();
    let yarn = Writer::new()
        .text("general.architecture", "llama")
        .text("llama.rope.scaling.type", "yarn")
        .pair("llama.rope.scaling.factor", &Value::F32(4.0))
        .pair("llama.rope.scaling.attn_factor", &Value::F32(1.5))
        .finish();
    Ok(vec![samples::small_gguf()?, bert, yarn, t5_gguf()?])
}

/// A part of T5, with a vocabulary.
fn t5_gguf() -> Result<Vec<u8>> {
    use gguf::{Array, Numbers, Strings, Value, write::Writer};
    let mut file = Writer::new().text("general.architecture", "t5");
    for (key, value) in [
        ("block_count", 2),
        ("embedding_length", 4),
        ("feed_forward_length", 8),
        ("attention.head_count", 2),
        ("attention.key_length", 2),
        ("attention.value_length", 2),
        ("attention.relative_buckets_count", 8),
        ("decoder_start_token_id", 0),
    ] {
        file = file.pair(&format!("t5.{key}"), &Value::U32(value));
    }
    let tokens: Strings = ["<pad>", "</s>", "<unk>", "\u{2581}", "a", "b", "\u{2581}ab"].iter().collect();
    let (scores, types) = ([0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -4.0], [3, 3, 2, 1, 1, 1, 1]);
    let list = |numbers| Value::Array(Array::Numbers(numbers));
    // One unit of the array, and no texts.
    let charsmap = Numbers::new(gguf::Kind::U8, vec![4, 0, 0, 0, 0, 0, 0, 0]);
    file.text("tokenizer.ggml.model", "t5")
        .pair("tokenizer.ggml.tokens", &Value::Array(Array::Strings(tokens)))
        .pair("tokenizer.ggml.scores", &list(Numbers::from_f32(&scores)))
        .pair("tokenizer.ggml.token_type", &list(Numbers::from_i32(&types)))
        .pair("tokenizer.ggml.precompiled_charsmap", &list(charsmap))
        .tensor("token_embd.weight", &[7, 4], Stored::F32, &[0; 112])
        .map(Writer::finish)
}

fn torch_seeds() -> Result<Vec<Vec<u8>>> {
    use torch::{Pickler, Tensor, archive, legacy, state_dict};
    let t = [Tensor::f32("layer.weight", "0", &[2, 2], &[1, 2])];
    let old = legacy(&state_dict(Pickler::new(), &t).end(), &[("0", 4, &[1; 16])]);
    let wrapped = state_dict(Pickler::new().op(b"}(").text("model"), &t).text("args");
    let wrapped =
        wrapped.global("argparse", "Namespace").op(b")\x81}(").text("hidden_size").int(64).op(b"ub");
    let wrapped = wrapped.text("shape").global("torch", "Size").tuple(&[1, 2]).op(&[0x85]).op(b"Ru").end();
    Ok(vec![torch::small(), old, archive(&wrapped, &[("0", &[0; 16])])])
}

fn config_seeds() -> Result<Vec<Vec<u8>>> {
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
fn hostile_configs() -> Vec<Vec<u8>> {
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

/// Tables whose names multiply, and what DeepSpeed's dictionaries cannot be.
fn hostile_tables() -> Vec<Vec<u8>> {
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

fn table_seeds() -> Result<Vec<Vec<u8>>> {
    let json = r#"{"name":"acme","model_types":["acme"],"like":"llama","rename":{"hidden_size":"width"},"set":{"rope_theta":10000.0},
"change":{"norm":"layer","gated":true,"bias":[true,false,true,false]},"prefixes":["acme."],"block":"stack.{}.",
"names":{"attn_norm":"n1","qkv":"att.q + att.k + att.v","head":"/out"},"qkv":"concat","ignored":["acme.cache.*"],
"partition":[{"pattern":".*att\\.o\\.weight","style":"rowwise"}]}"#;
    let toml = "name = 'acme'\nmodel_types = ['acme']\nlike = 'gpt2'\n[names]\nup = 'ff.u'\n";
    let dictionary = r#"{"Block":["self_attn.o_proj",".mlp.down_proj"],"Other":"out"}"#;
    Ok([json, toml, dictionary].iter().map(|s| s.as_bytes().to_vec()).collect())
}

fn template_seeds() -> Result<Vec<Vec<u8>>> {
    let chat = "{%- for m in messages %}{% if loop.first and m.role != 'system' %}{{ bos_token }}{% endif %}\
                <|{{ m['role'] }}|>\n{{ m.content | trim }}{{ eos_token }}\n{% endfor %}\
                {% if add_generation_prompt %}<|assistant|>\n{% endif %}";
    let wide = "{% macro f(a) %}{{ a | tojson }}{% endmacro %}{% set ns = namespace(x=0) %}{% generation %}{{ f(ns.x) }}{% endgeneration %}";
    Ok([chat, wide].iter().map(|s| s.as_bytes().to_vec()).collect())
}

fn tokenizer_seeds() -> Result<Vec<Vec<u8>>> {
    Ok(vec![hostile_text::honest_tokenizer().into_bytes()])
}

fn json_seeds() -> Result<Vec<Vec<u8>>> {
    let template =
        r#"{"chat_template":[{"name":"default","template":"{{ x }}"},{"name":"tool","template":""}]}"#;
    let description = r#"{"type":"ds_model","checkpoints":{"non_tp":["a"],"tp":["b","c"]},"version":1.0,"parallelization":"tp","tp_size":2,"base_dir":""}"#;
    Ok([samples::CONFIG, samples::INDEX, template, description]
        .iter()
        .map(|s| s.as_bytes().to_vec())
        .collect())
}

/// Reads and decodes every tensor. What the header promised must hold: a refusal here is a bug.
fn touch(source: &dyn Source) {
    for t in source.tensors() {
        let found = source.find(&t.name);
        assert_eq!(found, Some(t), "a listed tensor is found");
        let bytes = source.bytes(&t.name).unwrap_or_else(|e| panic!("bytes of a listed tensor: {e}"));
        let mut out = vec![0.0; t.elements()];
        plain::to_f32(t.stored, &bytes, &mut out).unwrap_or_else(|e| panic!("decoding a listed tensor: {e}"));
        source.release(&t.name);
    }
}

fn no_tokenizer() -> TokenizerFiles {
    TokenizerFiles::HuggingFace {
        tokenizer_json: None,
        tokenizer_config: serde_json::Value::Null,
        chat_template: None,
        vocabulary: None,
    }
}

fn read_safetensors(input: Vec<u8>) -> bool {
    let parsed = safetensors::parse("m.safetensors", &input).is_ok();
    let opened = checkpoint::open_bytes(b"{}", None, input.into(), no_tokenizer());
    assert_eq!(parsed, opened.is_ok(), "parse and open agree");
    opened.is_ok_and(|model| {
        touch(&*model.source);
        true
    })
}

fn read_torch(input: Vec<u8>) -> bool {
    checkpoint::open_torch_bytes(b"{}", input.into(), no_tokenizer()).is_ok_and(|model| {
        touch(&*model.source);
        true
    })
}

fn read_config(input: Vec<u8>) -> bool {
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
fn read_table(input: Vec<u8>) -> bool {
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

/// Renders a conversation, whose limits are the template's own.
fn render(input: Vec<u8>) -> bool {
    let Ok(text) = std::str::from_utf8(&input) else { return false };
    let Some(template) = calm(ChatTemplate::new(text, Some("<s>"), Some("</s>"))) else { return false };
    let messages = [Message::new("system", "Be brief."), Message::new("user", " Héllo <b>\n{{ x }} ")];
    let tools =
        serde_json::json!({"tools": [{"function": {"name": "f", "parameters": {"a": [1, 2.5, null]}}}]});
    calm(template.render(&messages, true, Some(&tools)));
    true
}

/// Reads a tokenizer, and makes ids of a text and a text of the ids.
fn read_tokenizer(input: Vec<u8>) -> bool {
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

/// Compiles a template.
fn read_template(input: Vec<u8>) -> bool {
    std::str::from_utf8(&input).is_ok_and(|text| calm(ChatTemplate::new(text, Some("<s>"), None)).is_some())
}

/// Reads a file to the end, tokens too, and lets a policy describe its model.
fn read_gguf(input: Vec<u8>) -> bool {
    if let Ok(header) = gguf::parse("m.gguf", &input) {
        let lists = header.metadata.iter().map(|(key, value)| key.len() + value.to_string().len());
        assert!(lists.sum::<usize>() < usize::MAX);
    }
    checkpoint::open_gguf_bytes("m.gguf", input.into()).is_ok_and(|file| {
        touch(&*file.source);
        let _ = describe(&file, &model::REGISTRY);
        if let TokenizerFiles::Gguf(tokenizer) = &file.tokenizer {
            assert_eq!(tokenizer.tokens.iter().count(), tokenizer.tokens.len(), "every token is readable");
            if tokenizer.model == "t5" {
                use_unigram(&(**tokenizer).clone().into());
            }
        }
        true
    })
}

/// Makes ids of a text and a text of the ids.
fn use_unigram(vocab: &GgufVocab) {
    let Ok(tokenizer) = Tokenizer::from_gguf(vocab) else { return };
    if let Ok(ids) = tokenizer.encode_at_most("ab a</s> \u{2581}b ﬁ", true, 100) {
        let _ = tokenizer.decode(&ids, false);
    }
}

fn read_json(input: Vec<u8>) -> bool {
    let config =
        checkpoint::open_bytes(&input, Some(&input), samples::safetensors("{}", &[]).into(), no_tokenizer());
    let index = index::parse("i.json", &input);
    if let Ok(index) = &index {
        let escapes = |s: &String| s.contains(['/', '\\']) || s == ".." || s.is_empty();
        assert!(!index.shards.iter().any(escapes), "a shard leads out of its folder");
        assert!(index.tensors.iter().all(|(_, shard)| *shard < index.shards.len()));
    }
    let tokenizer = TokenizerFiles::from_bytes(None, Some(&input), None);
    if let Ok(value) = serde_json::from_slice(&input) {
        // Names no file that exists: the description itself is what is read.
        let _ = checkpoint::open_description(&value, "/nonexistent".as_ref(), "", Default::default());
    }
    config.is_ok() || index.is_ok() || tokenizer.is_ok()
}
