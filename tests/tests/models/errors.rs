//! Bad input at the level of models and of the engine: every mistake is an error that names the thing, the
//! value found and what is allowed; nothing panics, and an engine that refused a request serves the next one.
//!
//! The broken models are goldens with one thing changed, written to a folder of their own. Hostile bytes
//! inside files are the business of `core/tests/hostile.rs` and of the fuzz targets; here they only go
//! through a whole load once.

use engraft_core::Error;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{EncoderInput, Engine, Layers, Request};
use engraft_core::inject::inject;
use engraft_core::mem::Float;
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

fn cpu() -> Arc<Cpu> {
    Cpu::new(CpuConfig { threads: 1, ..Default::default() }).unwrap()
}

/// An engine for a good model.
fn open(backend: &Arc<Cpu>, dir: &Path, sizes: EngineConfig) -> Result<Engine<Cpu>, Error> {
    let files = checkpoint::open(dir, Access::default())?;
    let options = LoadOptions::default();
    // Rotary tables only reach as far as the model; absurd contexts are the engine's to refuse.
    let model = inject(backend, &files, &Registry::default(), sizes.max_context, options, &mut |_, _| {})?;
    Engine::new(backend.clone(), model, sizes)
}

/// A folder that goes away at the end of its test, failed or not.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let own = format!("engraft-errors-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(own);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left over in a temporary folder is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A golden in memory, to be changed.
struct Draft {
    config: Value,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Draft {
    fn of(name: &str) -> Self {
        let bytes = fs::read(golden(name).join("model.safetensors")).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let own = |t: &TensorView<'_>| (t.dtype(), t.shape().to_vec(), t.data().to_vec());
        let tensors = read.tensors().iter().map(|(n, t)| (n.clone(), own(t))).collect();
        let config = serde_json::from_slice(&fs::read(golden(name).join("config.json")).unwrap()).unwrap();
        Self { config, tensors }
    }

    /// Zeros of another element type or shape in place of a tensor, or a new one.
    fn put(&mut self, name: &str, dtype: Dtype, shape: &[usize]) {
        let len = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        self.tensors.insert(name.into(), (dtype, shape.to_vec(), vec![0; len]));
    }

    fn remove(&mut self, name: &str) {
        assert!(self.tensors.remove(name).is_some(), "the golden has no {name}");
    }

    fn weights(&self) -> Vec<u8> {
        let view = |(d, s, b)| TensorView::new(d, s, b).unwrap();
        let all = self.tensors.iter().map(|(n, (d, s, b))| (n.as_str(), view((*d, s.clone(), b.as_slice()))));
        safetensors::serialize(all, None).unwrap()
    }

    fn save(&self) -> Folder {
        let folder = Folder::new();
        folder.write("model.safetensors", &self.weights());
        folder.write("config.json", &serde_json::to_vec(&self.config).unwrap());
        folder
    }
}

/// Opens and loads a model.
fn load(path: &Path, access: Access) -> Result<(), Error> {
    let files = checkpoint::open(path, access)?;
    inject(&cpu(), &files, &Registry::default(), 64, LoadOptions::default(), &mut |_, _| {}).map(|_| ())
}

/// The text of an error, which has to be the user's and to contain all `parts`.
#[track_caller]
fn says<T>(what: &str, result: Result<T, Error>, parts: &[&str]) {
    let Err(error) = result else { panic!("{what}: no error") };
    assert!(!matches!(error, Error::Internal { .. }), "{what}: {error}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{what}: \"{text}\" does not say \"{part}\"");
    }
}

/// A golden with one change must be refused with a text that contains `parts`.
#[track_caller]
fn refused(model: &str, change: impl FnOnce(&mut Draft), parts: &[&str]) {
    let mut draft = Draft::of(model);
    change(&mut draft);
    let folder = draft.save();
    says(&format!("{model} with {parts:?}"), load(&folder.0, Access::default()), parts);
}

#[test]
fn the_drafts_are_good_before_they_are_changed() {
    for model in ["llama", "gpt2", "bert"] {
        let folder = Draft::of(model).save();
        load(&folder.0, Access::Map).unwrap();
        load(&folder.0, Access::Read).unwrap();
        assert!(folder.0.exists());
        let path = folder.0.clone();
        drop(folder);
        assert!(!path.exists(), "{} was left behind", path.display());
    }
}

#[test]
fn tensors_of_the_wrong_shape_are_named_with_both_shapes() {
    for (model, name, shape, want) in [
        ("llama", "model.layers.1.self_attn.q_proj.weight", vec![64, 65], "[64, 64]"),
        ("llama", "model.layers.0.mlp.down_proj.weight", vec![172, 64], "[64, 172]"),
        ("llama", "model.norm.weight", vec![63], "[64]"),
        ("llama", "lm_head.weight", vec![441, 64], "[442, 64]"),
        ("gpt2", "transformer.h.2.attn.c_attn.weight", vec![192, 64], "[64, 192]"),
        ("gpt2", "transformer.wpe.weight", vec![63, 64], "[64, 64]"),
        ("bert", "bert.embeddings.token_type_embeddings.weight", vec![3, 96], "[2, 96]"),
        ("bert", "bert.encoder.layer.1.output.dense.bias", vec![1, 2, 48], "[96]"),
    ] {
        let found = format!("{shape:?}");
        refused(model, |d| d.put(name, Dtype::F32, &shape), &[name, &found, want]);
    }
}

#[test]
fn unknown_architectures_are_named_with_every_policys_reason() {
    // Without a tensor that no rule places, the automatic policy would read it.
    let mystery = ["model.layers.0.mystery.weight", "transformer.h.0.mystery.weight", "bert.mystery.weight"];
    for (model, mystery) in ["llama", "gpt2", "bert"].into_iter().zip(mystery) {
        let martian = |d: &mut Draft| {
            d.config["model_type"] = json!("martian");
            d.put(mystery, Dtype::F32, &[3]);
        };
        refused(model, martian, &["martian", "llama", "gpt2", "opt", "bert", "automatic"]);
    }
    let headless = |d: &mut Draft| {
        d.config.as_object_mut().unwrap().remove("model_type");
        d.put("mystery", Dtype::F32, &[3]);
    };
    refused("llama", headless, &["model_type \"\"", "LlamaForCausalLM"]);
    let other = |d: &mut Draft| d.config["architectures"] = json!(["BertForMars"]);
    refused("bert", other, &["architectures", "BertForMars", "ForMaskedLM"]);
    refused("llama", |d| d.config = json!([1]), &["config.json", "object"]);
}

#[test]
fn tensors_left_over_and_missing_are_listed() {
    for (model, extra) in [
        ("llama", "model.layers.2.mlp.up_proj.weight"),
        ("gpt2", "transformer.h.0.crossattention.c_attn.weight"),
        ("bert", "bert.encoder.layer.7.output.dense.bias"),
    ] {
        refused(model, |d| d.put(extra, Dtype::F32, &[4]), &[model, "left over", extra]);
    }
    for (model, gone) in [
        ("llama", "model.layers.1.mlp.up_proj.weight"),
        ("llama", "lm_head.weight"),
        ("gpt2", "transformer.h.2.ln_2.bias"),
        ("bert", "bert.embeddings.word_embeddings.weight"),
    ] {
        refused(model, |d| d.remove(gone), &[model, "missing", gone]);
    }
    refused(
        "llama",
        |d| d.config["num_hidden_layers"] = json!(3),
        &["missing", "model.layers.2.input_layernorm"],
    );
    refused("llama", |d| d.config["num_hidden_layers"] = json!(1), &["left over", "model.layers.1."]);
    refused("llama", |d| d.tensors.clear(), &["missing", "embed_tokens"]);
}

#[test]
fn element_types_that_cannot_be_multiplied_are_named() {
    for (model, name, dtype, shape, found) in [
        ("llama", "model.layers.0.self_attn.q_proj.weight", Dtype::I64, vec![64, 64], "i64"),
        ("llama", "model.norm.weight", Dtype::I32, vec![64], "i32"),
        ("gpt2", "transformer.wte.weight", Dtype::I64, vec![353, 64], "i64"),
        ("bert", "bert.embeddings.position_embeddings.weight", Dtype::U8, vec![40, 96], "u8"),
    ] {
        let mut draft = Draft::of(model);
        draft.put(name, dtype, &shape);
        let folder = draft.save();
        let Err(error) = load(&folder.0, Access::default()) else { panic!("{name}: no error") };
        let text = error.to_string().to_lowercase();
        for part in [name, found, "f32", "bf16"] {
            assert!(text.contains(&part.to_lowercase()), "{name}: \"{text}\" does not say \"{part}\"");
        }
    }
}

#[test]
fn impossible_fields_of_a_configuration_are_named_with_value_and_range() {
    let gone = Value::Null;
    for (model, field, value, parts) in [
        ("llama", "hidden_size", json!(0), vec!["`hidden_size` is 0", "1 to"]),
        ("llama", "hidden_size", json!(-64), vec!["`hidden_size` is -64", "1 to"]),
        ("llama", "hidden_size", json!("64"), vec!["`hidden_size` is \"64\"", "1 to"]),
        ("llama", "hidden_size", json!(64.5), vec!["`hidden_size` is 64.5", "1 to"]),
        ("llama", "hidden_size", json!(1u64 << 63), vec!["hidden_size", "9223372036854775808", "1 to"]),
        ("llama", "hidden_size", gone.clone(), vec!["hidden_size", "missing"]),
        ("gpt2", "n_embd", json!(0), vec!["`n_embd` is 0", "1 to"]),
        ("gpt2", "n_embd", gone.clone(), vec!["n_embd", "hidden_size", "missing"]),
        ("bert", "hidden_size", json!(-1), vec!["`hidden_size` is -1", "1 to"]),
        ("llama", "num_key_value_heads", json!(3), vec!["`num_key_value_heads` is 3", "divisor of 4"]),
        ("llama", "num_key_value_heads", json!(8), vec!["`num_key_value_heads` is 8", "divisor of 4"]),
        ("llama", "num_key_value_heads", json!(0), vec!["`num_key_value_heads` is 0", "1 to"]),
        ("gpt2", "n_head", json!(5), vec!["n_head", "is 5", "divisor of 64"]),
        ("bert", "num_attention_heads", json!(7), vec!["num_attention_heads", "is 7", "divisor of 96"]),
        ("llama", "num_hidden_layers", json!(5000), vec!["num_hidden_layers", "5000", "at most"]),
        ("llama", "num_hidden_layers", json!(0), vec!["num_hidden_layers", "is 0", "1 to"]),
        (
            "llama",
            "rope_scaling",
            json!({"rope_type": "spiral"}),
            vec!["rope_type", "\"spiral\"", "llama3, yarn"],
        ),
        ("llama", "rope_scaling", json!({"type": 7}), vec!["rope_scaling.type", "7", "string"]),
        (
            "llama",
            "rope_scaling",
            json!({"rope_type": "linear", "factor": 0.25}),
            vec!["factor", "0.25", "at least 1"],
        ),
        ("llama", "rope_theta", json!(-1.0), vec!["rope_theta", "-1", "above 0"]),
        ("llama", "rms_norm_eps", json!(0.0), vec!["rms_norm_eps", "0", "above 0"]),
        ("llama", "hidden_act", json!("swish9"), vec!["hidden_act", "\"swish9\"", "silu"]),
        ("gpt2", "activation_function", json!("step"), vec!["activation_function", "\"step\"", "gelu_new"]),
        ("bert", "hidden_act", json!(3), vec!["`hidden_act` is 3", "string"]),
        ("llama", "vocab_size", json!(0), vec!["`vocab_size` is 0", "1 to"]),
        ("llama", "tie_word_embeddings", json!("no"), vec!["tie_word_embeddings", "\"no\"", "true or false"]),
    ] {
        refused(model, |d| d.config[field] = value, &parts);
    }
}

/// Sizes that each pass their check but whose products would overflow, divide to 0 or ask for absurd memory:
/// the first tensor that cannot have them is named, and nothing was allocated by then.
#[test]
fn rotary_heads_have_an_even_width() {
    for (heads, width) in [(1000, json!(null)), (4, json!(15))] {
        refused(
            "llama",
            |d| {
                d.config["num_attention_heads"] = json!(heads);
                d.config["num_key_value_heads"] = json!(heads);
                d.config["head_dim"] = width;
            },
            &["head_dim", "an even number above 0"],
        );
    }
}

#[test]
fn more_heads_than_any_model_has_are_refused_by_the_field() {
    refused(
        "llama",
        |d| d.config["num_attention_heads"] = json!(1u64 << 31),
        &["num_attention_heads", "at most 65536"],
    );
}

#[test]
fn sizes_that_only_fail_together_are_refused() {
    let most = json!(1u64 << 31);
    // As many heads as any model may have.
    let heads = json!(1u64 << 16);
    for (model, fields) in [
        (
            "llama",
            vec![
                ("num_attention_heads", heads.clone()),
                ("num_key_value_heads", heads.clone()),
                ("head_dim", most.clone()),
            ],
        ),
        (
            "llama",
            vec![
                ("hidden_size", most.clone()),
                ("intermediate_size", most.clone()),
                ("vocab_size", most.clone()),
            ],
        ),
        ("gpt2", vec![("n_embd", most.clone()), ("n_inner", json!(null))]),
        ("gpt2", vec![("n_positions", most.clone())]),
        ("bert", vec![("type_vocab_size", most.clone()), ("intermediate_size", most.clone())]),
    ] {
        refused(
            model,
            |d| fields.into_iter().for_each(|(f, v)| d.config[f] = v),
            &["tensor `", "shape is", "expected"],
        );
    }
}

#[test]
fn truncated_weights_are_refused_at_every_length() {
    let draft = Draft::of("llama");
    let (folder, whole) = (draft.save(), draft.weights());
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize + 8;
    for len in [0, 1, 7, 8, 9, header / 2, header - 1, header, header + 1, whole.len() / 2, whole.len() - 1] {
        folder.write("model.safetensors", &whole[..len]);
        // Without a header the file is named; with one the first tensor that lies beyond the end.
        let lengths = format!("the file has {} bytes of tensors", len.saturating_sub(header));
        let parts: &[&str] =
            if len < header { &["model.safetensors"] } else { &["tensor `", "data_offsets are", &lengths] };
        for access in [Access::Map, Access::Read] {
            says(&format!("{len} bytes"), load(&folder.0, access), parts);
        }
    }
    folder.write("model.safetensors", &whole);
    load(&folder.0, Access::Read).unwrap();
    fs::remove_file(folder.0.join("model.safetensors")).unwrap();
    says("no weights", load(&folder.0, Access::Read), &["holds no weights", "model.safetensors"]);
    says("no folder", load(&folder.0.join("nowhere"), Access::Read), &["nowhere"]);
}

/// Every flip either still gives a model or an error of the user's; the last bit of the header is as good as
/// the first.
#[test]
fn flipped_bits_of_header_and_configuration_never_panic() {
    let draft = Draft::of("gpt2");
    let (folder, whole) = (draft.save(), draft.weights());
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize + 8;
    let config = serde_json::to_vec(&draft.config).unwrap();
    let mut refusals = 0;
    let mut flip = |name: &str, good: &[u8], to: usize| {
        // A stride that is prime to 8 goes through all places of a byte.
        for bit in (0..to * 8).step_by(to / 25 * 8 + 3) {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            folder.write(name, &bad);
            if let Err(error) = load(&folder.0, Access::Read) {
                assert!(!matches!(error, Error::Internal { .. }), "{name}, bit {bit}: {error}");
                refusals += 1;
            }
        }
        folder.write(name, good);
    };
    flip("model.safetensors", &whole, 8);
    flip("model.safetensors", &whole, header);
    flip("config.json", &config, config.len());
    assert!(refusals > 20, "only {refusals} flips were noticed");
}

#[test]
fn a_shard_that_is_not_there_is_named() {
    let (folder, from) = (Folder::new(), golden("llama_sharded"));
    for entry in fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.0.join(entry.file_name())).unwrap();
    }
    // The golden's own outputs are no part of the model.
    fs::remove_file(folder.0.join("golden.safetensors")).unwrap();
    load(&folder.0, Access::default()).unwrap();
    let shard = "model-00003-of-00005.safetensors";
    fs::remove_file(folder.0.join(shard)).unwrap();
    says("shard", load(&folder.0, Access::default()), &[shard, "missing", "tensors"]);
    fs::copy(from.join(shard), folder.0.join(shard)).unwrap();
    let index = "model.safetensors.index.json";
    let mut value: Value = serde_json::from_slice(&fs::read(from.join(index)).unwrap()).unwrap();
    value["weight_map"]["lm_head.weight"] = json!("model-00001-of-00005.safetensors");
    folder.write(index, &serde_json::to_vec(&value).unwrap());
    says(
        "wrong shard",
        load(&folder.0, Access::default()),
        &["lm_head.weight", "model-00001-of-00005.safetensors"],
    );
    value["weight_map"]["lm_head.weight"] = json!("../model.safetensors");
    folder.write(index, &serde_json::to_vec(&value).unwrap());
    says("foreign shard", load(&folder.0, Access::default()), &["../model.safetensors", "plain file names"]);
}

/// A small pool: three pages of four positions for each of two sequences.
fn config() -> EngineConfig {
    EngineConfig {
        max_seqs: 2,
        max_step_tokens: 8,
        page_size: 4,
        max_context: 64,
        kv_pages: Some(6),
        ..Default::default()
    }
}

fn request(prompt: &[u32]) -> Request {
    Request { prompt: prompt.to_vec(), max_new_tokens: 6, ..Default::default() }
}

/// Runs a good request to its end on an otherwise idle engine; every page must be free again.
#[track_caller]
fn serves(engine: &mut Engine<Cpu>) -> Vec<u32> {
    let id = engine.put(request(&[1, 5, 9])).unwrap();
    let tokens = engine.run().unwrap().remove(&id).unwrap();
    assert_eq!(tokens.len(), 6);
    let (free, total) = engine.free_pages();
    assert_eq!((free, total), (6, 6), "pages are lost");
    tokens
}

#[test]
fn bad_requests_are_refused_and_the_engine_goes_on() {
    let mut engine = open(&cpu(), &golden("llama"), config()).unwrap();
    let good = serves(&mut engine);
    let sampling = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        change(&mut params);
        Request { sampling: params, ..request(&[1]) }
    };
    let long: Vec<u32> = vec![3; 65];
    let bad: Vec<(&str, Request, &[&str])> = vec![
        ("empty", request(&[]), &["prompt is empty", "at least one token"]),
        ("long", request(&long), &["prompt has 65 tokens", "64"]),
        ("no room", request(&long[..64]), &["prompt has 64 tokens", "64"]),
        ("word", request(&[1, 442]), &["token 442", "vocabulary of 442"]),
        ("last word", request(&[u32::MAX]), &["token 4294967295", "vocabulary of 442"]),
        ("negative", sampling(|s| s.temperature = -1.0), &["temperature", "-1", "0 (greedy)"]),
        ("nan", sampling(|s| s.temperature = f32::NAN), &["temperature", "NaN", "0 (greedy)"]),
        ("top_p", sampling(|s| s.top_p = 0.0), &["top_p", "0", "at most 1"]),
        ("top_p", sampling(|s| s.top_p = 1.5), &["top_p", "1.5", "at most 1"]),
        ("min_p", sampling(|s| s.min_p = 1.0), &["min_p", "1", "less than 1"]),
        ("penalty", sampling(|s| s.repetition_penalty = 0.0), &["repetition_penalty", "0", "1e-5"]),
        ("penalty", sampling(|s| s.repetition_penalty = f32::INFINITY), &["repetition_penalty", "inf"]),
        ("pool", request(&long[..30]), &["KV pool is full", "9 pages wanted", "6 of 6 free", "`kv_pages`"]),
        (
            "pool",
            Request { max_new_tokens: usize::MAX, ..request(&[1]) },
            &["16 pages wanted", "6 of 6 free"],
        ),
    ];
    for (what, request, parts) in bad {
        says(what, engine.put(request), parts);
        assert!(engine.is_idle(), "{what}: the refused request waits");
        assert_eq!(serves(&mut engine), good, "after {what}");
    }
    let texts = [EncoderInput { ids: vec![1], token_type_ids: vec![], ..EncoderInput::default() }];
    says("encode", engine.encode(&texts, Layers::Last), &["encode", "llama", "decoder"]);
    assert!(!engine.cancel(1 << 40).unwrap(), "a request that never was");
    assert_eq!(serves(&mut engine), good);
}

/// Refused while others run: those are not disturbed.
#[test]
fn a_request_beyond_the_pool_disturbs_no_other() {
    let mut engine = open(&cpu(), &golden("llama"), config()).unwrap();
    let good = serves(&mut engine);
    let id = engine.put(request(&[1, 5, 9])).unwrap();
    let (mut out, mut sampled) = (Vec::new(), Vec::new());
    engine.step(&mut out).unwrap();
    sampled.extend(out.iter().filter_map(|o| o.token));
    let free = engine.free_pages().0;
    assert!(free < 6);
    let refusal = engine.put(Request { max_new_tokens: 30, ..request(&[1]) });
    says("pool", refusal, &["8 pages wanted", &format!("{free} of 6 free")]);
    sampled.extend(engine.run().unwrap().remove(&id).unwrap());
    assert_eq!(sampled, good);
    assert_eq!(engine.free_pages(), (6, 6));
}

#[test]
fn a_full_pool_makes_requests_wait_until_all_are_served() {
    let prompts: Vec<Vec<u32>> = (0..7).map(|i| vec![1 + i, 40 + i, 9]).collect();
    let mut served = Vec::new();
    // Pages of the pool and how many sequences then run side by side at first: of three pages each, of which
    // one is needed at once and another one set aside. Later on less is set aside, as nothing is preempted.
    for (pages, abreast) in [(3, 1), (6, 3), (8, 4), (100, 4)] {
        let sizes = EngineConfig { max_seqs: 4, max_step_tokens: 16, kv_pages: Some(pages), ..config() };
        let mut engine = open(&cpu(), &golden("llama"), sizes).unwrap();
        let ids: Vec<u64> = prompts.iter().map(|p| engine.put(request(p)).unwrap()).collect();
        let (mut out, mut at_once) = (Vec::new(), Vec::new());
        let mut sampled = BTreeMap::<u64, Vec<u32>>::new();
        while !engine.is_idle() {
            engine.step(&mut out).unwrap();
            at_once.push(out.iter().map(|o| o.id).collect::<BTreeSet<_>>().len());
            out.iter().for_each(|o| sampled.entry(o.id).or_default().extend(o.token));
        }
        assert_eq!(at_once[0], abreast, "{pages} pages");
        assert!(at_once.iter().all(|count| *count <= pages.min(4)), "{pages} pages: {at_once:?}");
        assert_eq!(engine.free_pages(), (pages, pages));
        let tokens: Vec<Vec<u32>> = ids.iter().map(|id| sampled.remove(id).unwrap()).collect();
        assert!(tokens.iter().all(|t| t.len() == 6), "{pages} pages: {tokens:?}");
        served.push(tokens);
    }
    assert!(served.windows(2).all(|pair| pair[0] == pair[1]), "waiting changed the tokens");
}

#[test]
fn impossible_sizes_of_an_engine_are_named() {
    let with = |change: fn(&mut EngineConfig)| {
        let mut sizes = config();
        change(&mut sizes);
        open(&cpu(), &golden("llama"), sizes).map(|_| ())
    };
    says("seqs", with(|c| c.max_seqs = 0), &["`max_seqs` is 0", "1 to"]);
    says("seqs", with(|c| c.max_seqs = usize::MAX), &["max_seqs", &usize::MAX.to_string(), "1 to"]);
    says("tokens", with(|c| c.max_step_tokens = 0), &["`max_step_tokens` is 0", "1 to"]);
    says("tokens", with(|c| c.max_step_tokens = usize::MAX), &["max_step_tokens", "1 to"]);
    says("page", with(|c| c.page_size = 0), &["`page_size` is 0", "1 to 256"]);
    says("page", with(|c| c.page_size = 257), &["`page_size` is 257", "1 to 256"]);
    says("context", with(|c| c.max_context = usize::MAX), &["max_context", "1 to"]);
    says("pages", with(|c| c.kv_pages = Some(0)), &["`kv_pages` is 0", "at least 1"]);
    says("pages", with(|c| c.kv_pages = Some(usize::MAX)), &["kv_pages", "at most"]);
    // What the machine's types lack is said with what it has.
    let all = [Float::F32, Float::F16, Float::Bf16];
    for dtype in
        all.into_iter().filter(|d| !engraft_core::backend::Backend::caps(cpu().as_ref()).dtypes.contains(d))
    {
        let sizes = EngineConfig { dtype, ..config() };
        says("dtype", open(&cpu(), &golden("llama"), sizes).map(|_| ()), &["dtype", dtype.name(), "f32"]);
    }
}

/// Sizes are clamped to the model's, not refused, where the default asks for more than a small model has.
#[test]
fn the_context_is_clamped_to_the_model() {
    let sizes = EngineConfig { max_context: 4096, kv_pages: None, ..config() };
    let engine = open(&cpu(), &golden("llama"), sizes).unwrap();
    assert_eq!(engine.config().max_context, 64);
}

#[test]
fn bad_texts_are_refused_and_the_encoder_goes_on() {
    let sizes = EngineConfig { max_step_tokens: 64, logit_rows: Some(usize::MAX), ..config() };
    let mut engine = open(&cpu(), &golden("bert"), sizes).unwrap();
    let text = |ids: Vec<u32>, token_type_ids: Vec<u32>| EncoderInput {
        ids,
        token_type_ids,
        ..EncoderInput::default()
    };
    let fine = [text(vec![1, 7, 9], vec![0, 1, 1])];
    let good = engine.encode(&fine, Layers::Last).unwrap();
    assert!(good[0].logits.len() == 3 * 341 && good[0].logits.iter().all(|v| v.is_finite()));
    let bad: Vec<(EncoderInput, &[&str])> = vec![
        (text(vec![], vec![]), &["text has 0 tokens", "1 to 40"]),
        (text(vec![1; 41], vec![]), &["text has 41 tokens", "1 to 40"]),
        (text(vec![1, 341], vec![]), &["token 341", "vocabulary of 341"]),
        (text(vec![1, 2], vec![0]), &["1 token types", "2 tokens"]),
        (text(vec![1, 2], vec![0, 2]), &["token type 2", "below 2"]),
    ];
    for (text, parts) in bad {
        // The good one stands before it: the number in the message is the bad one's.
        let texts = [fine[0].clone(), text];
        says("text", engine.encode(&texts, Layers::Last), &[parts, &["request 1"]].concat());
        assert_eq!(engine.encode(&fine, Layers::Last).unwrap(), good, "after {parts:?}");
    }
    says("put", engine.put(request(&[1])), &["generation", "bert", "encoder", "encode"]);
    assert!(engine.is_idle());
    assert_eq!(engine.encode(&fine, Layers::Last).unwrap(), good);
}
