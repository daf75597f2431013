//! Text parts of models with towers against the headers of the same models alone; Granite 4's models of
//! attention alone; and what is refused by a word.

use super::lacking::{RECURRENT, words};
use super::tests::Case;
use super::*;
use serde_json::{Value, json};

/// A text part's names in a file with towers.
type Renamed = fn(&str) -> String;

const OLDER: Renamed = |name| format!("language_model.{name}");
const NEWER: Renamed = |name| name.replace("model.", "model.language_model.");

/// The fixture `text` as the text part of a model of type `whole`, with these tensors of towers.
fn part(whole: &str, text: &str, rename: Renamed, towers: &[&str]) -> Case {
    let mut case = Case::load(text).renamed(rename);
    let config = json!({
        "model_type": whole, "architectures": ["AnyForConditionalGeneration"], "image_token_id": 5,
        "text_config": case.config.take(), "vision_config": {"hidden_size": 8},
    });
    case.config = config;
    towers.iter().fold(case, |case, name| case.add(name, &[8]))
}

/// What is taken, from which part of a family, in which names, with which towers.
const TAKEN: [(&str, &str, Renamed, &[&str]); 12] = [
    ("mistral3", "mistral", OLDER, &["vision_tower.ln_pre.weight", "multi_modal_projector.norm.weight"]),
    ("mistral3", "ministral3", OLDER, &["vision_tower.ln_pre.weight"]),
    ("mistral3", "mistral4", NEWER, &["model.vision_tower.ln_pre.weight"]),
    (
        "llama4",
        "llama4_text",
        OLDER,
        &["vision_model.class_embedding", "multi_modal_projector.linear_1.weight"],
    ),
    ("kimi_k25", "deepseek_v3", OLDER, &["vision_tower.patch_embed.proj.bias", "mm_projector.pre_norm.bias"]),
    ("llava", "llama", OLDER, &["vision_tower.vision_model.post_layernorm.bias", "image_newline"]),
    (
        "llava",
        "mistral",
        NEWER,
        &["model.vision_tower.ln_pre.weight", "model.multi_modal_projector.linear_1.bias"],
    ),
    ("internvl", "qwen3", OLDER, &["vision_tower.embeddings.cls_token"]),
    ("qwen2_vl", "qwen2", |name| name.to_string(), &["visual.patch_embed.proj.weight"]),
    ("qwen2_5_vl", "qwen2", NEWER, &["model.visual.merger.ln_q.weight"]),
    ("qwen3_vl", "qwen3", NEWER, &["model.visual.pos_embed.weight"]),
    (
        "smolvlm",
        "llama",
        |name| name.replace("model.", "model.text_model."),
        &["model.vision_model.post_layernorm.bias", "model.connector.modality_projection.proj.weight"],
    ),
];

#[test]
fn a_text_part_is_the_model_of_its_own_family() {
    for (whole, text, rename, towers) in TAKEN {
        let mut case = part(whole, text, rename, towers);
        let own = Case::load(text).spec().unwrap();
        let (spec, found) = case.resolve().unwrap_or_else(|e| panic!("{whole} of {text}: {e}"));
        let said = format!(
            "the text part of {whole} alone: towers of images and sound are left out; token 5, their place in a \
             prompt, is read as a text's"
        );
        assert_eq!(spec.assumed.last(), Some(&said));
        assert_eq!(ModelSpec { assumed: own.assumed.clone(), ..spec }, own, "{whole} of {text}");
        let read: usize = found.iter().map(|r| r.tensors.len()).sum();
        let mut again = Case::load(text);
        let of_text: usize = again.resolve().unwrap().1.iter().map(|r| r.tensors.len()).sum();
        assert_eq!(read, of_text, "{whole} of {text}");
        let odd = part(whole, text, rename, towers).add("language_model.model.norm2.weight", &[8]);
        assert!(odd.error().contains("left over"), "{whole} of {text}");
    }
}

#[test]
fn what_files_leave_out_is_the_librarys() {
    let spec = |config: Value| {
        let config = ModelConfig::new(config).unwrap();
        let catalog = Catalog::new(&[]);
        Registry::default().choose(&config, catalog).and_then(|policy| policy.spec(&config, catalog))
    };
    // LLaVA 1.5 as published.
    let llava = spec(json!({"model_type": "llava", "image_token_index": 32000, "tie_word_embeddings": false,
        "text_config": {"max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-5,
            "vocab_size": 32064}, "vision_config": {}}))
    .unwrap();
    let block = &llava.blocks[0];
    assert_eq!((llava.vocab, llava.hidden, llava.blocks.len(), block.mlp.inner), (32_064, 4096, 32, 11_008));
    assert_eq!((block.heads.kv_heads, block.heads.k_dim, llava.max_positions), (32, 128, 4096));
    // Pixtral: null says that there is no window.
    let pixtral = spec(json!({"model_type": "llava", "text_config": {"head_dim": 128, "hidden_size": 5120,
        "intermediate_size": 14336, "model_type": "mistral", "num_hidden_layers": 40, "num_key_value_heads": 8,
        "rope_theta": 1e9, "sliding_window": null, "vocab_size": 131072}}))
    .unwrap();
    assert_eq!((pixtral.blocks[0].heads.heads, pixtral.blocks[0].scores.window), (32, None));
    // Qwen 2.5 VL's first files have no field for the text part, and positions of three sections.
    let qwen = json!({"model_type": "qwen2_5_vl", "hidden_size": 2048, "intermediate_size": 11008,
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 2, "vocab_size": 151936,
        "max_position_embeddings": 128000, "tie_word_embeddings": true, "use_sliding_window": false,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "rope_theta": 1e6});
    let flat = spec(qwen).unwrap();
    assert_eq!((flat.ropes[0].theta, &flat.ropes[0].scaling), (1e6, &RopeScaling::None));
    assert!(flat.head.is_tied() && flat.assumed.iter().any(|said| said.contains("qwen2_5_vl alone")));
    let error = spec(json!({"model_type": "mistral3"})).map(drop).unwrap_err().to_string();
    assert!(error.contains("`text_config` is missing"), "{error}");
    let error = spec(json!({"model_type": "internvl", "text_config": {"model_type": "qwen3_next"}}));
    let error = error.map(drop).unwrap_err().to_string();
    assert!(error.contains("the text part of model_type \"internvl\""), "{error}");
    assert!(error.contains("it needs what is not there yet: a recurrent state"), "{error}");
}

/// What the whole model says of its head and of blocks for speculation counts for its text part.
#[test]
fn a_text_part_has_the_whole_models_head() {
    let mut case = part("mistral3", "mistral", OLDER, &[]);
    case.config["architectures"] = json!(["Mistral3ForSequenceClassification"]);
    case.config["num_labels"] = json!(3);
    assert!(matches!(case.spec().unwrap().head, HeadSpec::Labels { count: 3, .. }));
    let mut tied = part("llava", "llama", OLDER, &[]);
    tied.config["text_config"].as_object_mut().unwrap().remove("tie_word_embeddings").unwrap();
    assert!(!tied.spec().unwrap().head.is_tied());
    tied.config["tie_word_embeddings"] = json!(true);
    assert!(tied.spec().unwrap().head.is_tied());
    let mut kimi = part("kimi_k25", "deepseek_v3", OLDER, &[]);
    let layers = kimi.config["text_config"]["num_hidden_layers"].as_u64().unwrap();
    kimi.config["text_config"]["num_nextn_predict_layers"] = json!(1);
    let drafts = format!("language_model.model.layers.{layers}.eh_proj.weight");
    let mut kimi = kimi.add(&drafts, &[8, 8]);
    let (spec, _) = kimi.resolve().unwrap();
    assert!(spec.assumed.iter().any(|said| said.contains("predict further tokens")), "{:?}", spec.assumed);
    let bare = part("kimi_k25", "deepseek_v3", OLDER, &[]);
    let mut bare = bare.add(&drafts, &[8, 8]);
    bare.config["text_config"]["num_nextn_predict_layers"] = json!(0);
    assert!(bare.error().contains(&drafts));
}

/// Granite's dense blocks in the names of Granite 4.
fn granite_4() -> Case {
    let mut case = Case::load("granite");
    case.tensors.retain(|t| !t.name.contains("mlp.gate_proj"));
    let mut case = case.renamed(|name| {
        let name = name.replace("mlp.up_proj", "shared_mlp.input_linear");
        name.replace("mlp.down_proj", "shared_mlp.output_linear")
    });
    for tensor in case.tensors.iter_mut().filter(|t| t.name.contains("input_linear")) {
        tensor.shape[0] *= 2;
    }
    let inner = case.get("intermediate_size");
    case.set("model_type", json!("granitemoehybrid"))
        .set("shared_intermediate_size", inner)
        .set("intermediate_size", json!(24))
        .set("num_local_experts", json!(0))
        .set("position_embedding_type", json!("rope"))
        .set("layer_types", json!(["attention", "attention"]))
}

#[test]
fn granite_4_with_attention_alone_is_granite() {
    let granite = Case::load("granite").spec().unwrap();
    let spec = granite_4().resolve().unwrap().0;
    assert_eq!(ModelSpec { arch: granite.arch.clone(), ..spec }, granite);
    let none = granite_4().set("position_embedding_type", json!("nope")).spec().unwrap();
    assert!(none.ropes.is_empty() && none.blocks.iter().all(|b| b.rope.is_none()));
    // With experts next to the dense part.
    let mut case = granite_4().set("num_local_experts", json!(5)).set("num_experts_per_tok", json!(3));
    for layer in 0..2 {
        let moe = format!("model.layers.{layer}.block_sparse_moe");
        case = case
            .add(&format!("{moe}.input_linear.weight"), &[5, 48, 32])
            .add(&format!("{moe}.output_linear.weight"), &[5, 32, 24])
            .add(&format!("{moe}.router.layer.weight"), &[5, 32]);
    }
    let (spec, _) = case.resolve().unwrap();
    let experts = Case::load("granitemoe").spec().unwrap().blocks[0].moe.unwrap();
    assert_eq!((spec.blocks[1].moe, spec.blocks[1].mlp.inner), (Some(experts), 36));
}

#[test]
fn granite_4_with_a_recurrent_state_is_refused_by_the_word() {
    let word = "it needs what is not there yet: a recurrent state";
    assert!(granite_4().set("layer_types", json!(["mamba", "attention"])).error().contains(word));
    assert!(granite_4().unset("layer_types").error().contains(word));
    let older = granite_4().unset("layer_types").set("layers_block_type", json!(["attention", "attention"]));
    assert!({ older }.spec().is_ok());
    for (field, wrong) in [
        ("layer_types", json!(["attention"])),
        ("layer_types", json!(["attention", "full_attention"])),
        ("position_embedding_type", json!("alibi")),
        ("shared_intermediate_size", json!(0)),
    ] {
        let error = granite_4().set(field, wrong).error();
        assert!(error.contains(&format!("`{field}` is")), "{error}");
    }
}

/// Types that have a policy, which refuses what it lacks a word for.
const BY_POLICY: (&str, &[&str]) = (RECURRENT, &["granitemoehybrid"]);

/// Every type that is refused says what it needs, in the error that a user reads.
#[test]
fn models_that_need_more_are_refused_by_the_word() {
    for (word, types) in words().chain([&BY_POLICY]) {
        for name in *types {
            let sizes = json!({"model_type": name, "architectures": ["AnyModel"], "vocab_size": 64, "hidden_size": 32,
                "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "text_config": {}});
            let config = ModelConfig::new(sizes).unwrap();
            let catalog = Catalog::new(&[]);
            let chosen = Registry::default().choose(&config, catalog);
            let error = chosen.and_then(|policy| policy.spec(&config, catalog)).map(drop).unwrap_err();
            assert!(matches!(error, Error::NoPolicy { .. }), "{name}: {error}");
            let said = format!("it needs what is not there yet: {word}");
            assert!(error.to_string().contains(&said), "{name}: {error}");
        }
    }
}
