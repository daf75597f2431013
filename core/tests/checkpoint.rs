//! Models on disk: folders, shards, GGUF files; mapped and read access give the same bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/samples.rs"]
mod samples;

use engraft_core::{
    Error,
    checkpoint::{self, Access, Layout, ModelFiles, TokenizerFiles, gguf},
    mem::{Block, Stored},
};
use gguf::{Array, Numbers, Strings, Value, write::Writer};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A fresh folder with these files.
fn folder(name: &str, files: &[(&str, &[u8])]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("checkpoint-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    for (file, bytes) in files {
        fs::write(path.join(file), bytes).unwrap();
    }
    path
}

fn refusal(path: &Path, words: &[&str]) {
    let message = checkpoint::open(path, Access::Read).unwrap_err().to_string();
    for word in words {
        assert!(message.contains(word), "\"{message}\" does not say \"{word}\"");
    }
}

fn tensor(name: &str, value: f32) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
    samples::safetensors(&header, &value.to_le_bytes())
}

const BOTH: &[u8] = br#"{"weight_map":{"a":"one.safetensors","b":"two.safetensors"}}"#;
const INDEX: &str = "model.safetensors.index.json";

/// Every tensor's bytes by both ways of access, before and after the pages were let go.
fn same_bytes(path: &Path) -> ModelFiles {
    let read = checkpoint::open(path, Access::Read).unwrap();
    let other = checkpoint::open(path, Access::default()).unwrap();
    assert_eq!(read.source.tensors(), other.source.tensors());
    let mut total = 0;
    for t in read.source.tensors() {
        let bytes = read.source.bytes(&t.name).unwrap();
        assert_eq!(t.stored.bytes(t.elements()), Some(bytes.len()));
        assert_eq!(other.source.bytes(&t.name).unwrap(), bytes, "{}", t.name);
        other.source.release(&t.name);
        assert_eq!(other.source.bytes(&t.name).unwrap(), bytes, "{} after release", t.name);
        total += bytes.len() as u64;
    }
    assert_eq!((read.source.total_bytes(), other.source.total_bytes()), (total, total));
    read
}

#[test]
fn a_folder_with_one_file() {
    let template = br#"{"chat_template":[{"name":"tool","template":"t"},{"name":"default","template":"d"}]}"#;
    let path = folder(
        "single",
        &[
            ("config.json", samples::CONFIG.as_bytes()),
            ("model.safetensors", &samples::small_safetensors()),
            ("golden.safetensors", b"not looked at"),
            ("tokenizer.json", b"{}"),
            ("tokenizer_config.json", template),
        ],
    );
    let model = same_bytes(&path);
    assert_eq!((model.layout, &model.config["hidden_size"]), (Layout::HuggingFace, &json!(64)));
    assert_eq!(model.generation, json!({}));
    let names: Vec<&str> = model.source.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(
        names,
        ["model.embed.weight", "model.ids", "model.norm.weight", "model.proj.weight", "model.scalar"]
    );
    let embed = model.source.find("model.embed.weight").unwrap();
    assert_eq!((embed.shape.as_slice(), embed.stored), (&[3, 4][..], Stored::F32));
    assert_eq!(model.source.bytes("model.scalar").unwrap().as_ref(), [88]);
    assert!(model.source.find("model.embed").is_none());
    let unknown = model.source.bytes("nope").unwrap_err();
    assert!(matches!(unknown, Error::Tensor { ref tensor, .. } if tensor == "nope"), "{unknown}");
    let TokenizerFiles::HuggingFace { tokenizer_json, chat_template, .. } = model.tokenizer else {
        panic!("not a Hugging Face tokenizer")
    };
    assert_eq!((tokenizer_json.as_deref(), chat_template.as_deref()), (Some(&b"{}"[..]), Some("d")));
    fs::write(path.join("chat_template.jinja"), "file").unwrap();
    fs::write(path.join("generation_config.json"), r#"{"eos_token_id":2}"#).unwrap();
    // One file by its own path takes the configuration next to it.
    let model = checkpoint::open(&path.join("model.safetensors"), Access::Read).unwrap();
    assert_eq!(model.generation["eos_token_id"], 2);
    let TokenizerFiles::HuggingFace { chat_template, .. } = model.tokenizer else { panic!() };
    assert_eq!(chat_template.as_deref(), Some("file"));
}

#[test]
fn a_folder_with_a_sentencepiece_model() {
    let files: [(&str, &[u8]); 5] = [
        ("config.json", br#"{"model_type": "marian"}"#),
        ("model.safetensors", &samples::small_safetensors()),
        ("source.spm", b"source"),
        ("target.spm", b"target"),
        ("vocab.json", b"{}"),
    ];
    let path = folder("pieces", &files);
    let model = same_bytes(&path);
    let copy = folder("pieces-copy", &[]);
    checkpoint::copy_companions(&model, &copy).unwrap();
    for (name, bytes) in &files[2..] {
        assert_eq!(&fs::read(copy.join(name)).unwrap(), bytes, "{name}");
    }
    let TokenizerFiles::HuggingFace { vocabulary: Some(found), .. } = model.tokenizer else { panic!() };
    assert_eq!(
        (found.model(), found.bytes("vocab.json")),
        (Some(("source.spm", &b"source"[..])), Some(&b"{}"[..]))
    );
    assert_eq!(found.model_type, "marian");
    // A folder with tokenizer.json needs no other file.
    fs::write(path.join("tokenizer.json"), "{}").unwrap();
    let TokenizerFiles::HuggingFace { vocabulary, .. } = same_bytes(&path).tokenizer else { panic!() };
    assert!(vocabulary.is_none());
}

#[test]
fn shards_and_their_faults() {
    let one = tensor("a", 1.0);
    let config: (&str, &[u8]) = ("config.json", b"{}");
    let index: (&str, &[u8]) = (INDEX, BOTH);
    let path =
        folder("shards", &[config, index, ("one.safetensors", &one), ("two.safetensors", &tensor("b", 2.0))]);
    let model = same_bytes(&path);
    assert_eq!(model.source.bytes("b").unwrap().as_ref(), 2f32.to_le_bytes());

    let path = folder("shard-missing", &[config, index, ("one.safetensors", &one)]);
    refusal(&path, &[INDEX, "two.safetensors is missing", "1 tensors"]);
    let path = folder(
        "shard-without",
        &[config, index, ("one.safetensors", &one), ("two.safetensors", &tensor("c", 2.0))],
    );
    refusal(&path, &["`b`", "two.safetensors"]);
    let both = samples::safetensors(
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
        &[1, 2],
    );
    let path = folder("shard-twice", &[config, index, ("one.safetensors", &one), ("two.safetensors", &both)]);
    refusal(&path, &["`a`", "two files", "one.safetensors", "two.safetensors"]);
    let path = folder(
        "shard-truncated",
        &[config, index, ("one.safetensors", &one[..20]), ("two.safetensors", &both)],
    );
    refusal(&path, &["one.safetensors", "truncated"]);
    let outside = br#"{"weight_map":{"a":"../shards/one.safetensors"}}"#;
    refusal(&folder("shard-outside", &[config, (INDEX, outside)]), &["../shards/one.safetensors", "plain"]);
}

#[test]
fn folders_that_are_no_model() {
    let config: (&str, &[u8]) = ("config.json", b"{}");
    let one = tensor("a", 1.0);
    refusal(&folder("empty", &[]), &["holds no weights", "expected"]);
    refusal(&folder("no-config", &[("model.safetensors", &one)]), &["config.json is missing"]);
    refusal(
        &folder("several", &[config, ("x.safetensors", &one), ("y.safetensors", &one)]),
        &["x.safetensors, y.safetensors", "index"],
    );
    for name in ["pytorch_model.bin", "weights.pth"] {
        refusal(&folder("pickle", &[config, (name, b"x")]), &[name, "no PyTorch file"]);
    }
    refusal(
        &folder("pickle-index", &[config, ("pytorch_model.bin.index.json", b"x")]),
        &["pytorch_model.bin.index.json", "not a valid index"],
    );
    refusal(&folder("pickles", &[config, ("a.pt", b"x"), ("b.pth", b"x")]), &["a.pt, b.pth", "several"]);
    let pickle = folder("pickle-file", &[config, ("a.bin", b"x"), ("b.txt", b"x"), ("c.gguf", b"GGML")]);
    refusal(&pickle.join("a.bin"), &["PyTorch"]);
    refusal(&pickle.join("b.txt"), &["b.txt", "expected"]);
    refusal(&pickle.join("c.gguf"), &["c.gguf", "GGUF"]);
    refusal(&pickle.join("absent"), &["absent"]);
    let old = folder("ggml", &[("ggml-tiny.bin", b"lmgg\x9a\xca\0\0")]);
    refusal(&old.join("ggml-tiny.bin"), &["ggml-tiny.bin", "before GGUF", "whisper.cpp"]);
    refusal(&folder("ggufs", &[("a.gguf", b"x"), ("b.gguf", b"x")]), &["a.gguf, b.gguf"]);
}

#[test]
fn a_gguf_file_with_a_header_longer_than_the_first_read() {
    let tokens: Strings = (0..150_000).map(|i| format!("token {i}")).collect();
    let values: Vec<u8> = (0..2 * Block::Q8_0.bytes()).map(|b| b as u8).collect();
    let bytes = Writer::new()
        .text("general.architecture", "llama")
        .text("tokenizer.ggml.model", "gpt2")
        .pair("tokenizer.ggml.tokens", &Value::Array(Array::Strings(tokens)))
        .pair("tokenizer.ggml.eos_token_id", &Value::U32(7))
        .pair("tokenizer.ggml.eot_token_id", &Value::U32(9))
        .pair("tokenizer.ggml.padding_token_id", &Value::U32(150_000))
        .tensor("token_embd.weight", &[2, 32], Stored::Block(Block::Q8_0), &values)
        .unwrap()
        .finish();
    assert!(bytes.len() > 2 << 20);
    let path = folder("gguf", &[("m.gguf", &bytes)]);
    let model = same_bytes(&path.join("m.gguf"));
    assert_eq!(model.layout, Layout::Gguf);
    assert_eq!(model.source.bytes("token_embd.weight").unwrap().as_ref(), values);
    assert_eq!(model.source.find("token_embd.weight").unwrap().shape, [2, 32]);
    let TokenizerFiles::Gguf(tokenizer) = &model.tokenizer else { panic!("not a GGUF tokenizer") };
    assert_eq!(tokenizer.tokens.get(149_999), Some("token 149999"));
    // The padding id lies behind the vocabulary and is left out.
    assert_eq!((tokenizer.eos, tokenizer.padding), (Some(7), None));
    assert_eq!(model.generation, json!({"eos_token_id": [7, 9]}));
    assert!(checkpoint::open(&path, Access::Read).is_ok(), "the only GGUF file of a folder is found");
}

#[test]
fn every_metadata_type_comes_back() {
    let numbers = |kind, bytes: &[u8]| Value::Array(Array::Numbers(Numbers::new(kind, bytes.to_vec())));
    let all = [
        Value::U8(255),
        Value::I8(-1),
        Value::U16(65535),
        Value::I16(-2),
        Value::U32(u32::MAX),
        Value::I32(i32::MIN),
        Value::F32(-0.5),
        Value::Bool(true),
        Value::String("grüß".into()),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(1e300),
        numbers(gguf::Kind::I16, &[1, 0, 255, 255]),
        numbers(gguf::Kind::Bool, &[1, 0]),
        numbers(gguf::Kind::F64, &[]),
        Value::Array(Array::Strings(["", "a", ""].into_iter().collect())),
    ];
    let mut writer = Writer::new();
    for (i, value) in all.iter().enumerate() {
        writer = writer.pair(&format!("k{i:02}"), value);
    }
    let mut bytes = writer.finish();
    for version in [3, 2] {
        bytes[4] = version;
        let header = gguf::parse("m", &bytes).unwrap();
        assert_eq!(header.version, u32::from(version));
        let found: Vec<Value> = header.metadata.iter().map(|(_, v)| v.clone()).collect();
        assert_eq!(found, all);
    }
}

fn config(writer: Writer) -> serde_json::Value {
    let bytes = writer.finish();
    checkpoint::open_gguf_bytes("m.gguf", bytes.into()).unwrap().config
}

fn with(arch: &str, counts: &[(&str, u32)], numbers: &[(&str, f32)]) -> Writer {
    let mut w = Writer::new().text("general.architecture", arch);
    for (key, n) in counts {
        w = w.pair(&format!("{arch}.{key}"), &Value::U32(*n));
    }
    for (key, n) in numbers {
        w = w.pair(&format!("{arch}.{key}"), &Value::F32(*n));
    }
    w
}

#[test]
fn llama_metadata_becomes_a_config() {
    let counts = [
        ("block_count", 2),
        ("embedding_length", 96),
        ("feed_forward_length", 256),
        ("attention.head_count", 3),
        ("attention.head_count_kv", 1),
        ("context_length", 512),
        ("rope.scaling.original_context_length", 128),
    ];
    let numbers = [
        ("attention.layer_norm_rms_epsilon", 0.5),
        ("rope.freq_base", 10000.0),
        ("rope.scaling.factor", 4.0),
        ("rope.scaling.attn_factor", 2.0),
    ];
    let f32s = |n: usize| vec![0u8; 4 * n];
    let writer = with("llama", &counts, &numbers)
        .text("llama.rope.scaling.type", "yarn")
        .tensor("token_embd.weight", &[10, 96], Stored::F32, &f32s(960))
        .unwrap();
    let mut want = json!({
        "engraft_layout": "gguf", "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 3,
        "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512,
        "rms_norm_eps": 0.5, "rope_theta": 10000.0, "vocab_size": 10, "tie_word_embeddings": true,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    });
    let mut got = config(writer.clone());
    let factor = got["rope_scaling"].as_object_mut().unwrap().remove("attention_factor").unwrap();
    assert!((factor.as_f64().unwrap() - 2.0 * (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12, "{factor}");
    assert_eq!(got, want);
    // An own head, factors of Llama 3, an explicit head width.
    let more = writer
        .pair("llama.attention.key_length", &Value::U32(16))
        .tensor("output.weight", &[10, 96], Stored::F32, &f32s(960))
        .unwrap()
        .tensor("rope_freqs.weight", &[8], Stored::F32, &f32s(8))
        .unwrap();
    let mut got = config(more);
    got["rope_scaling"].as_object_mut().unwrap().remove("attention_factor");
    want["tie_word_embeddings"] = json!(false);
    want["head_dim"] = json!(16);
    assert_eq!(got, want);
    let linear = config(with("llama", &[], &[("rope.scale_linear", 2.0)]));
    assert_eq!(linear["rope_scaling"], json!({"rope_type": "linear", "factor": 2.0}));
    assert_eq!(config(with("llama", &[("expert_count", 8)], &[]))["model_type"], "mixtral");
}

/// Llama's heads turn whole: another width would be passed over by its rule.
#[test]
fn a_part_of_a_head_is_rotated_where_the_architecture_has_one() {
    let widths = [("embedding_length", 96), ("attention.head_count", 3)];
    let of = |arch: &str, rotated: u32| {
        let bytes = with(arch, &[&widths[..], &[("rope.dimension_count", rotated)]].concat(), &[]).finish();
        checkpoint::open_gguf_bytes("m.gguf", bytes.into()).map(|files| files.config)
    };
    for arch in ["llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"] {
        assert!(of(arch, 32).unwrap().get("partial_rotary_factor").is_none(), "{arch}");
        for rotated in [0, 8, 999] {
            let e = of(arch, rotated).unwrap_err().to_string();
            assert!(e.contains(&format!("`{arch}.rope.dimension_count` is {rotated}; allowed: 32")), "{e}");
        }
    }
    assert_eq!(of("stablelm", 8).unwrap()["partial_rotary_factor"], 0.25);
}

#[test]
fn other_architectures_become_configs() {
    let common = [
        ("block_count", 2),
        ("embedding_length", 64),
        ("feed_forward_length", 256),
        ("attention.head_count", 4),
        ("context_length", 512),
    ];
    let epsilon = [("attention.layer_norm_epsilon", 0.25)];
    assert_eq!(
        config(with("gpt2", &common, &epsilon)),
        json!({
            "engraft_layout": "gguf", "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
            "activation_function": "gelu_new", "n_layer": 2, "n_embd": 64, "n_inner": 256, "n_head": 4,
            "n_positions": 512, "layer_norm_epsilon": 0.25, "tie_word_embeddings": true,
        })
    );
    let bert = with("bert", &common, &epsilon)
        .pair("bert.pooling_type", &Value::U32(1))
        .tensor("token_types.weight", &[2, 4], Stored::F32, &[0; 32])
        .unwrap();
    assert_eq!(
        config(bert),
        json!({
            "engraft_layout": "gguf", "model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu",
            "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4,
            "max_position_embeddings": 512, "layer_norm_eps": 0.25, "type_vocab_size": 2, "engraft_sentence": {"pooling": ["mean"], "modules": []},
            "tie_word_embeddings": true,
        })
    );
    assert_eq!(config(with("rwkv6", &common, &[]))["model_type"], "rwkv6");
}

#[test]
fn the_writer_refuses_what_does_not_fit() {
    let w = Writer::new;
    assert!(w().tensor("t", &[2], Stored::F32, &[0; 7]).is_err());
    assert!(w().tensor("t", &[usize::MAX, 2], Stored::F32, &[]).is_err());
    assert!(w().tensor("t", &[1], Stored::Bool, &[0]).is_err());
    assert!(w().alignment(24).is_err());
    assert!(w().tensor("t", &[1], Stored::F32, &[0; 4]).unwrap().alignment(64).is_err());
}

/// Opening a pipe would wait for a writer for ever; a link to nowhere is what a pruned cache leaves.
#[cfg(unix)]
#[test]
fn only_regular_files_are_opened() {
    let (config, weights) = (samples::CONFIG.as_bytes(), samples::small_safetensors());
    for pipe in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors",
    ] {
        let path =
            folder(&format!("pipe-{pipe}"), &[("config.json", config), ("model.safetensors", &weights)]);
        let _ = fs::remove_file(path.join(pipe));
        let made = std::process::Command::new("mkfifo").arg(path.join(pipe)).status().unwrap();
        assert!(made.success());
        refusal(&path, &[pipe, "not a regular file"]);
    }
    for link in ["config.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"] {
        let path =
            folder(&format!("link-{link}"), &[("config.json", config), ("model.safetensors", &weights)]);
        let _ = fs::remove_file(path.join(link));
        std::os::unix::fs::symlink("/nowhere/of/a/cache", path.join(link)).unwrap();
        refusal(&path, &[link, "a link that leads nowhere"]);
    }
    let path = folder("device", &[("config.json", config)]);
    std::os::unix::fs::symlink("/dev/zero", path.join("model.safetensors")).unwrap();
    refusal(&path, &["model.safetensors", "not a regular file"]);
}
