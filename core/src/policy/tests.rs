//! Policies against the headers of real files: `fixtures/CASE.json` is a configuration, `fixtures/CASE.txt`
//! has a line
//! `name dtype dims` per tensor.

use super::*;
use crate::params::Act;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A configuration and a header that tests may change.
pub(super) struct Case {
    pub config: Value,
    pub tensors: Vec<TensorInfo>,
}

macro_rules! cases {
    ($($name:literal),* $(,)?) => {
        const CASES: &[(&str, &str, &str)] = &[$((
            $name,
            include_str!(concat!("fixtures/", $name, ".json")),
            include_str!(concat!("fixtures/", $name, ".txt")),
        )),*];
    };
}

cases! {
    "llama", "llama_gqa_llama3", "llama_head_dim", "llama_linear", "llama_sharded", "llama_yarn",
    "internlm_like", "gpt2", "gpt2_bin", "opt", "opt_bin_sharded", "opt_postln_proj", "bert",
    "bert_classifier", "bert_model", "bert_old_names", "gpt_neo", "gptj", "gpt_neox",
    "gpt_neox_sequential", "codegen", "gpt_bigcode", "bloom", "bloom_sharded", "mpt", "mistral",
    "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "falcon_7b", "falcon_alibi", "falcon_new",
    "phi", "phi3", "phi3_longrope", "gemma", "gemma2", "gemma3", "stablelm", "starcoder2", "olmo2",
    "exaone4", "smollm3", "glm", "glm4", "ernie4_5", "seed_oss", "olmo3", "cohere", "cohere2",
    "granite", "granitemoe", "hunyuan_v1_dense", "eurobert", "nomic_bert", "roberta", "distilbert",
    "electra", "albert", "clip_text", "clip_vision", "clip", "dots1", "glm4_moe", "minimax_m2",
    "ernie4_5_moe", "exaone_moe", "hy_v3", "hunyuan_v1_moe", "gpt_oss", "arcee", "nemotron",
    "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "olmo", "modernbert", "modernbert_embed", "afmoe",
    "embeddinggemma", "ministral3", "mistral4", "t5", "t5_encoder", "umt5", "bart", "mbart", "pegasus",
    "marian", "m2m_100", "whisper", "mpnet", "moonshine", "wav2vec2",
    "wav2vec2_base", "deberta_v3", "deberta_v2_conv", "deberta_v3_base",
    "apertus", "olmoe", "cohere2_moe", "phimoe", "laguna", "llama4_text", "gemma4", "gemma4_moe", "gemma3n",
    "mimo_v2_flash", "gte", "deepseek_v32", "glm_moe_dsa", "internlm2", "internlm3", "longcat_flash",
}

fn tensor(name: impl Into<String>, shape: &[usize]) -> TensorInfo {
    TensorInfo { name: name.into(), shape: shape.to_vec(), stored: crate::mem::Stored::F32 }
}

impl Case {
    pub fn load(name: &str) -> Self {
        let (_, config, names) = CASES.iter().find(|c| c.0 == name).unwrap();
        let line = |l: &str| {
            let mut words = l.split(' ');
            let (name, _, dims) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            let sizes = dims.split('x').filter(|d| *d != "scalar");
            tensor(name, &sizes.map(|d| d.parse().unwrap()).collect::<Vec<usize>>())
        };
        Self { config: serde_json::from_str(config).unwrap(), tensors: names.lines().map(line).collect() }
    }

    /// All of them, with their names.
    pub fn all() -> impl Iterator<Item = (&'static str, Self)> {
        CASES.iter().map(|(name, ..)| (*name, Self::load(name)))
    }

    pub fn set(mut self, field: &str, value: Value) -> Self {
        self.config[field] = value;
        self
    }

    pub fn get(&self, field: &str) -> Value {
        self.config[field].clone()
    }

    pub fn unset(mut self, field: &str) -> Self {
        self.config.as_object_mut().unwrap().remove(field).unwrap();
        self
    }

    pub fn add(mut self, name: &str, shape: &[usize]) -> Self {
        self.tensors.push(tensor(name, shape));
        self
    }

    pub fn renamed(mut self, rename: impl Fn(&str) -> String) -> Self {
        self.tensors.iter_mut().for_each(|t| t.name = rename(&t.name));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|t| t.name != name);
        assert_eq!(self.tensors.len() + 1, before, "{name} was not there");
        self
    }

    pub fn spec(&mut self) -> Result<ModelSpec> {
        self.tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let config = ModelConfig::new(self.config.clone())?;
        let catalog = Catalog::new(&self.tensors);
        Registry::default().choose(&config, catalog)?.spec(&config, catalog)
    }

    pub fn resolve(&mut self) -> Result<(ModelSpec, Vec<Resolved<'_>>)> {
        let spec = self.spec()?;
        let config = ModelConfig::new(self.config.clone())?;
        let catalog = Catalog::new(&self.tensors);
        let policy = Registry::default().choose(&config, catalog)?;
        let found = resolve(policy.as_ref(), &spec, &config, catalog)?;
        Ok((spec, found))
    }

    pub fn error(mut self) -> String {
        self.resolve().map(|_| ()).expect_err("an error").to_string()
    }
}

fn names(found: &[Resolved<'_>]) -> BTreeSet<String> {
    found.iter().flat_map(|r| &r.tensors).map(|t| t.name.clone()).collect()
}

#[test]
fn every_published_header_resolves() {
    for (name, ..) in CASES {
        let mut case = Case::load(name);
        let all: BTreeSet<String> = case.tensors.iter().map(|t| t.name.clone()).collect();
        let (spec, found) = case.resolve().unwrap_or_else(|e| panic!("{name}: {e}"));
        let roles: Vec<Role> = found.iter().map(|r| r.binding.role).collect();
        assert_eq!(roles, spec.roles(), "{name}");
        // Elements add up independently of the shape rules: nothing is read in part or twice.
        for r in &found {
            let (rows, cols) = spec.shape(&r.binding.role).unwrap();
            let (stored, of_stored) = spec.stored_shape(&r.binding.role).unwrap();
            let mut elements: usize = r.tensors.iter().map(|t| t.elements()).sum();
            if let RowOrder::WithZeros { count, .. } = r.binding.order {
                elements += count;
            }
            // Lengths of a convolution's taps stand beside it.
            if let (Slot::PositionConv, [lengths, _]) = (r.binding.role.slot, &r.tensors[..]) {
                elements -= lengths.elements();
            }
            assert_eq!(elements, stored * of_stored, "{name}: {}", r.binding.role);
            assert_eq!(
                spec.parts(&r.binding.role).unwrap().iter().sum::<usize>(),
                if r.binding.role.is_vector() { cols } else { rows }
            );
        }
        let unused: Vec<String> = all.difference(&names(&found)).cloned().collect();
        let expected: &[&str] = match *name {
            "gpt2_bin" => &["lm_head.weight"],
            "bert_old_names" => {
                &["bert.embeddings.position_ids", "cls.seq_relationship.bias", "cls.seq_relationship.weight"]
            }
            "clip_text" => &["text_model.embeddings.position_ids"],
            "deberta_v3_base" => {
                let pretraining = |n: &String| n.contains("_predictions.");
                assert!(unused.iter().all(pretraining) && unused.len() == 11, "{unused:?}");
                continue;
            }
            "wav2vec2" | "wav2vec2_base" => &["wav2vec2.masked_spec_embed"],
            "clip" => {
                let other =
                    |n: &String| n.starts_with("vision") || n.starts_with("visual") || n == "logit_scale";
                assert!(unused.iter().all(other) && unused.len() > 30, "{unused:?}");
                continue;
            }
            "llama_linear" => {
                assert!(unused.iter().all(|n| n.ends_with("rotary_emb.inv_freq")) && !unused.is_empty());
                continue;
            }
            "longcat_flash" => {
                let weightless = |n: &String| n.contains("experts.4.") || n.contains("experts.5.");
                assert!(unused.iter().all(weightless) && unused.len() == 8, "{unused:?}");
                continue;
            }
            _ => &[],
        };
        assert_eq!(unused, expected, "{name}");
    }
}

#[test]
fn gpt2_has_other_layouts() {
    let bare = Case::load("gpt2").renamed(|n| n.trim_start_matches("transformer.").to_string());
    bare.add("h.0.attn.bias", &[1, 1, 64, 64]).add("h.2.attn.masked_bias", &[]).resolve().unwrap();

    let gguf = |n: &str| {
        let pairs = [
            ("transformer.h.", "blk."),
            ("transformer.wte", "token_embd"),
            ("transformer.wpe", "position_embd"),
            ("transformer.ln_f", "output_norm"),
            ("ln_1", "attn_norm"),
            ("ln_2", "ffn_norm"),
            ("attn.c_attn", "attn_qkv"),
            ("attn.c_proj", "attn_output"),
            ("mlp.c_fc", "ffn_up"),
            ("mlp.c_proj", "ffn_down"),
        ];
        pairs.iter().fold(n.to_string(), |n, (from, to)| n.replace(from, to))
    };
    let mut case = Case::load("gpt2").renamed(gguf).set("engraft_layout", json!("gguf"));
    for t in case.tensors.iter_mut().filter(|t| t.name.starts_with("blk.")) {
        t.shape.reverse();
    }
    let mut case = case.add("output.weight", &[353, 64]).set("tie_word_embeddings", json!(false));
    let (_, found) = case.resolve().unwrap();
    assert!(found.iter().all(|r| !r.binding.transposed));
    assert!(names(&found).contains("output.weight"));
}

#[test]
fn gpt2_scales_scores_as_configured() {
    let scales = |case: Case| -> Vec<f32> {
        let mut case = case;
        case.spec().unwrap().blocks.iter().map(|b| b.scores.scale).collect()
    };
    assert_eq!(scales(Case::load("gpt2")), [0.25, 0.125, (0.25f64 / 3.0) as f32]);
    assert_eq!(scales(Case::load("gpt2_bin")), [0.25, 0.25]);
    assert_eq!(scales(Case::load("gpt2_bin").set("scale_attn_weights", json!(false))), [1.0, 1.0]);
    let mut case = Case::load("gpt2").set("n_inner", Value::Null);
    assert_eq!(case.spec().unwrap().blocks[0].mlp.inner, 256);
}

#[test]
fn conv1d_weights_alone_are_transposed() {
    let mut case = Case::load("gpt2");
    let (_, found) = case.resolve().unwrap();
    for r in &found {
        let conv = matches!(r.binding.role.slot, Slot::Qkv | Slot::AttnOut | Slot::Up | Slot::Down);
        assert_eq!(r.binding.transposed, conv && r.binding.role.part == Part::Weight, "{}", r.binding.role);
    }
}

#[test]
fn opt_variants() {
    let mut plain = Case::load("opt")
        .renamed(|n| n.replace("model.decoder.", "decoder."))
        .add("lm_head.weight", &[257, 64]);
    let (spec, _) = plain.resolve().unwrap();
    assert_eq!(spec.embed.positions, Some(LearnedPositions { rows: 64, offset: 2 }));
    assert_eq!((spec.placement, spec.blocks[0].mlp.act), (Placement::Pre, Act::Relu));
    assert!(spec.final_norm.is_some() && spec.project_out.is_none());
    let spec = Case::load("opt_postln_proj").spec().unwrap();
    assert_eq!((spec.placement, spec.embed.width, spec.project_out), (Placement::Post, 32, Some(32)));
    assert!(spec.final_norm.is_none());
    assert!(Case::load("opt").set("_remove_final_layer_norm", json!(true)).error().contains("left over"));
    let e = Case::load("opt").set("layer_norm_elementwise_affine", json!(false)).error();
    assert!(e.contains("`layer_norm_elementwise_affine` is false"), "{e}");
    let mut bare = Case::load("opt").set("enable_bias", json!(false));
    bare.tensors.retain(|t| t.name.contains("norm") || !t.name.ends_with(".bias"));
    bare.resolve().unwrap();
}

#[test]
fn bert_heads_go_by_architecture() {
    let mut case = Case::load("bert")
        .add("bert.pooler.dense.weight", &[96, 96])
        .add("bert.pooler.dense.bias", &[96])
        .add("cls.predictions.decoder.weight", &[341, 96])
        .add("cls.predictions.decoder.bias", &[341]);
    let (spec, found) = case.resolve().unwrap();
    assert!(spec.pooler.is_none() && !names(&found).contains("cls.predictions.decoder.bias"));
    assert!(matches!(
        spec.head,
        HeadSpec::Tokens {
            tied: true,
            bias: true,
            transform: Some(HeadTransform { act: Act::GeluTanh, .. }),
            ..
        }
    ));
    let mut only =
        Case::load("bert").without("cls.predictions.bias").add("cls.predictions.decoder.bias", &[341]);
    assert!(names(&only.resolve().unwrap().1).contains("cls.predictions.decoder.bias"));
    let spec = Case::load("bert_classifier").spec().unwrap();
    assert!(spec.pooler.is_some() && spec.head == HeadSpec::Labels { count: 3, bias: true });
    let spec = Case::load("bert_model").spec().unwrap();
    assert!(spec.pooler.is_some() && spec.head == HeadSpec::None && !spec.blocks[0].scores.causal);
    let mut bare = Case::load("bert_model").without("pooler.dense.weight").without("pooler.dense.bias");
    assert!(bare.resolve().unwrap().0.pooler.is_none());
}

/// A classifier: the fixture and the class, its labels, the tensors of its head, what old files have next to
/// them, and the pooler's activation where it has one.
type Classifier = (&'static str, &'static str, usize, Header, Header, Option<Act>);

/// Names and shapes.
type Header = &'static [(&'static str, &'static [usize])];

const CLASSIFIERS: [Classifier; 8] = [
    (
        "bert",
        "BertForTokenClassification",
        3,
        &[("classifier.weight", &[3, 96]), ("classifier.bias", &[3])],
        &[("bert.pooler.dense.weight", &[96, 96]), ("bert.pooler.dense.bias", &[96])],
        None,
    ),
    (
        "roberta",
        "RobertaForSequenceClassification",
        3,
        &[
            ("classifier.dense.weight", &[96, 96]),
            ("classifier.dense.bias", &[96]),
            ("classifier.out_proj.weight", &[3, 96]),
            ("classifier.out_proj.bias", &[3]),
        ],
        &[
            ("roberta.embeddings.position_ids", &[1, 42]),
            ("roberta.pooler.dense.weight", &[96, 96]),
            ("roberta.pooler.dense.bias", &[96]),
        ],
        Some(Act::Tanh),
    ),
    (
        "roberta",
        "XLMRobertaForSequenceClassification",
        1,
        &[
            ("classifier.dense.weight", &[96, 96]),
            ("classifier.dense.bias", &[96]),
            ("classifier.out_proj.weight", &[1, 96]),
            ("classifier.out_proj.bias", &[1]),
        ],
        &[],
        Some(Act::Tanh),
    ),
    (
        "roberta",
        "RobertaForTokenClassification",
        3,
        &[("classifier.weight", &[3, 96]), ("classifier.bias", &[3])],
        &[("roberta.embeddings.position_ids", &[1, 42])],
        None,
    ),
    (
        "distilbert",
        "DistilBertForSequenceClassification",
        2,
        &[
            ("pre_classifier.weight", &[96, 96]),
            ("pre_classifier.bias", &[96]),
            ("classifier.weight", &[2, 96]),
            ("classifier.bias", &[2]),
        ],
        &[],
        Some(Act::Relu),
    ),
    (
        "distilbert",
        "DistilBertForTokenClassification",
        3,
        &[("classifier.weight", &[3, 96]), ("classifier.bias", &[3])],
        &[],
        None,
    ),
    (
        "electra",
        "ElectraForSequenceClassification",
        3,
        &[
            ("classifier.dense.weight", &[64, 64]),
            ("classifier.dense.bias", &[64]),
            ("classifier.out_proj.weight", &[3, 64]),
            ("classifier.out_proj.bias", &[3]),
        ],
        &[("electra.embeddings.position_ids", &[1, 33])],
        Some(Act::Gelu),
    ),
    (
        "electra",
        "ElectraForTokenClassification",
        3,
        &[("classifier.weight", &[3, 64]), ("classifier.bias", &[3])],
        &[],
        None,
    ),
];

#[test]
fn classifiers_of_encoders_bind_their_heads() {
    for (name, class, labels, head, extra, act) in CLASSIFIERS {
        let listed = (0..labels).map(|i| (i.to_string(), json!(format!("LABEL_{i}")))).collect();
        let case = Case::load(name).set("architectures", json!([class]));
        let mut case = case.set("id2label", Value::Object(listed));
        case.tensors.retain(|t| t.name.starts_with(&format!("{name}.")));
        let encoder = case.tensors.len();
        let mut case = head.iter().chain(extra).fold(case, |c, (name, shape)| c.add(name, shape));
        let (spec, found) = case.resolve().unwrap_or_else(|e| panic!("{class}: {e}"));
        let used = names(&found);
        assert!(head.iter().all(|(name, _)| used.contains(*name)), "{class}: {used:?}");
        assert_eq!(used.len(), encoder + head.len(), "{class}");
        assert_eq!(spec.pooler.and_then(|p| p.act), act, "{class}");
        match &spec.head {
            HeadSpec::Labels { count, bias: true } => assert!(act.is_some() && *count == labels, "{class}"),
            HeadSpec::Tokens { count, tied: false, bias: true, transform: None, .. } => {
                assert!(act.is_none() && spec.pooler.is_none() && *count == labels, "{class}");
            }
            other => panic!("{class}: {other:?}"),
        }
    }
}

#[test]
fn bert_has_gguf_names() {
    let gguf = |n: &str| {
        let pairs = [
            ("encoder.layer.", "blk."),
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.position_embeddings", "position_embd"),
            ("embeddings.token_type_embeddings", "token_types"),
            ("embeddings.LayerNorm", "token_embd_norm"),
            ("attention.self.query", "attn_q"),
            ("attention.self.key", "attn_k"),
            ("attention.self.value", "attn_v"),
            ("attention.output.LayerNorm", "attn_output_norm"),
            ("attention.output.dense", "attn_output"),
            ("intermediate.dense", "ffn_up"),
            ("output.LayerNorm", "layer_output_norm"),
            ("output.dense", "ffn_down"),
        ];
        pairs.iter().fold(n.to_string(), |n, (from, to)| n.replace(from, to))
    };
    let case = Case::load("bert_model").without("pooler.dense.weight").without("pooler.dense.bias");
    let mut case = case.renamed(gguf).set("engraft_layout", json!("gguf"));
    assert!(case.tensors.iter().all(|t| !t.name.contains("encoder") && !t.name.contains("embeddings")));
    let all = case.tensors.len();
    assert_eq!(names(&case.resolve().unwrap().1).len(), all);
}

#[test]
fn refusals_name_the_field() {
    for (case, field, value) in [
        ("bert", "is_decoder", json!(true)),
        ("bert", "add_cross_attention", json!(true)),
        ("bert", "position_embedding_type", json!("relative_key")),
        ("bert", "architectures", json!(["BertForMultipleChoice"])),
        ("bert", "num_attention_heads", json!(7)),
        ("gpt2", "add_cross_attention", json!(true)),
        ("gpt2", "activation_function", json!("mish")),
        ("llama", "num_hidden_layers", json!(2_000_000_000u32)),
    ] {
        let e = Case::load(case).set(field, value).error();
        assert!(e.starts_with(&format!("`{field}")), "{e}");
    }
}

#[test]
fn mismatches_list_names() {
    let e = Case::load("llama").without("model.norm.weight").error();
    assert!(e.contains("final_norm.weight (model.norm.weight or norm.weight"), "{e}");
    let e = Case::load("llama").add("model.layers.1.adapter.weight", &[1]).error();
    assert!(e.contains("left over: model.layers.1.adapter.weight"), "{e}");
    let e = Case::load("llama").add("norm.weight", &[64]).error();
    assert!(e.contains("same place: model.norm.weight, norm.weight"), "{e}");
    let e = Case::load("llama").without("lm_head.weight").add("lm_head.weight", &[448, 64]).error();
    assert!(e.contains("`lm_head.weight`: shape is [448, 64], expected [442, 64]"), "{e}");
    let k = "model.layers.0.self_attn.k_proj.weight";
    let e = Case::load("llama").without(k).add(k, &[32, 64]).error();
    assert!(e.contains(k) && e.contains("expected [64, 64]"), "{e}");
    let q = "transformer.h.0.attn.c_attn.weight";
    let e = Case::load("gpt2").without(q).add(q, &[192, 64]).error();
    assert!(e.contains("shape is [192, 64], expected [64, 192]"), "{e}");
}

/// What is done to a table.
type Change = fn(&mut Vec<Binding>);

/// GPT-2 with one table row repeated, taken out or made up.
struct Broken(Change);

impl InjectionPolicy for Broken {
    fn name(&self) -> &str {
        "broken"
    }
    fn fit(&self, _: &ModelConfig, _: Catalog<'_>) -> Fit {
        Fit::Yes { specificity: 20 }
    }
    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        GPT2.spec(config, catalog)
    }
    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        let mut all = GPT2.bindings(spec, config, catalog);
        (self.0)(&mut all);
        all
    }
}

#[test]
fn wrong_tables_are_found() {
    let case = Case::load("gpt2");
    let config = ModelConfig::new(case.config).unwrap();
    let catalog = Catalog::new(&case.tensors);
    let breaks: [(Change, &str); 4] = [
        (|b| b.push(b[0].clone()), "roles bound twice: token_embed.weight"),
        (|b| drop(b.remove(0)), "roles left open: token_embed.weight"),
        (|b| b[0].role = Role::of(Slot::Pooler, Part::Weight), "does not have: pooler.weight"),
        (|b| b[0].sources.clear(), "missing for roles: token_embed.weight (no names)"),
    ];
    for (change, want) in breaks {
        let policy = Broken(change);
        let spec = policy.spec(&config, catalog).unwrap();
        let e = resolve(&policy, &spec, &config, catalog).unwrap_err().to_string();
        assert!(e.contains(want), "{e}");
    }
}

#[test]
fn biases_of_row_parallel_matmuls_are_replicated() {
    for name in ["internlm_like", "llama_head_dim", "gpt2", "opt", "bert"] {
        let mut case = Case::load(name);
        let (_, found) = case.resolve().unwrap();
        for b in
            found.iter().map(|r| &r.binding).filter(|b| matches!(b.role.slot, Slot::AttnOut | Slot::Down))
        {
            let row_parallel = matches!(b.shard, Shard::Rows { .. });
            assert_eq!(row_parallel, b.role.part == Part::Weight, "{name}: {}", b.role);
        }
    }
}

/// A norm's epsilon that a configuration does not state is that of the reference's configuration class.
#[test]
fn epsilons_that_are_not_stated_are_the_references() {
    let families = [
        (1e-12, &["bert", "roberta", "electra", "albert", "distilbert", "nomic_bert"][..]),
        (
            1e-6,
            &[
                "llama",
                "mistral",
                "qwen2",
                "qwen3",
                "qwen2_moe",
                "qwen3_moe",
                "gemma",
                "gemma2",
                "gemma3",
                "granite",
                "granitemoe",
                "smollm3",
                "seed_oss",
            ],
        ),
        (1.5625e-7, &["glm", "glm4"]),
        (
            1e-5,
            &[
                "ernie4_5",
                "hunyuan_v1_dense",
                "eurobert",
                "olmo3",
                "cohere",
                "cohere2",
                "phi3",
                "mixtral",
                "olmo2",
                "exaone4",
                "phi",
                "starcoder2",
                "stablelm",
                "gpt2",
                "gpt_neo",
                "gpt_neox",
                "gptj",
                "gpt_bigcode",
                "codegen",
                "bloom",
                "falcon_7b",
                "mpt",
                "opt",
                "clip_text",
            ],
        ),
    ];
    let mut wrong = Vec::new();
    for (want, names) in families {
        for name in names {
            let mut case = Case::load(name);
            let nested = ["text_config", "vision_config"];
            let objects = case.config.as_object_mut().unwrap();
            objects.retain(|field, _| !field.contains("eps"));
            for field in nested {
                if let Some(inner) = objects.get_mut(field).and_then(Value::as_object_mut) {
                    inner.retain(|field, _| !field.contains("eps"));
                }
            }
            let spec = case.spec().unwrap();
            let block = &spec.blocks[0];
            let norm = block.attn_norm.or(block.mlp_norm).or(spec.final_norm);
            let eps = norm.map(|norm| norm.eps);
            if eps != Some(want) {
                wrong.push(format!("{name}: {eps:?}, not {want:e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(", "));
}
