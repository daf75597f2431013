//! Published configurations, without weights: which policy takes them, how large they are, what they keep of
//! a token and what of their step has no kernel of its own on the CPU; or what they need that is not there.
//!
//! `published/NAME.json` has the fields of a model's `config.json` that say something about its shape. They
//! were put together from what is publicly known, not copied from the pages: those of Mistral Small 4,
//! Nemotron 3 and Qwen 3.5 are the least certain. Sizes are the published ones, in billions; of models that
//! come with blocks that predict further tokens, without those. They hold the configurations that plan.
#![allow(clippy::unwrap_used, clippy::panic)]

use engraft::{Error, Float, Options, Sketch};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A model that runs.
struct Runs {
    name: &'static str,
    policy: &'static str,
    /// Billions of parameters, as published.
    billions: f64,
    /// Bytes of the keys and values of a token, in 16 bits.
    kv_bytes: usize,
    /// Ops that run as the composition of others, each once.
    composed: &'static [&'static str],
    /// A format of its matrices.
    format: &'static str,
}

const fn runs(name: &'static str, policy: &'static str, billions: f64, kv_bytes: usize) -> Runs {
    Runs { name, policy, billions, kv_bytes, composed: &["qkv_rope_append"], format: "bf16" }
}

/// A row of latent attention is kept as a key and, without its rotated columns, as a value.
const LATENT: usize = (512 + 64) + 512;

const MODELS: [Runs; 19] = [
    Runs { format: "Q5_0", ..runs("gpt_oss_20b", "gpt_oss", 20.9, 24 * 2 * 8 * 64 * 2) },
    Runs { format: "Q5_0", ..runs("gpt_oss_120b", "gpt_oss", 116.8, 36 * 2 * 8 * 64 * 2) },
    Runs { format: "fp8:128", ..runs("deepseek_v3", "deepseek_v3", 671.0, 61 * LATENT * 2) },
    Runs { format: "fp8:128", ..runs("kimi_k2", "deepseek_v3", 1040.0, 61 * LATENT * 2) },
    // Ten of the blocks have wide heads, few of them.
    runs("gemma_4_31b", "gemma4", 30.7, (50 * 2 * 16 * 256 + 10 * 2 * 4 * 512) * 2),
    runs("glm_4_5_air", "glm4_moe", 106.0, 46 * 2 * 8 * 128 * 2),
    Runs { format: "fp8:128", ..runs("minimax_m2", "minimax_m2", 230.0, 62 * 2 * 8 * 128 * 2) },
    runs("glm_4_7_flash", "glm4_moe_lite", 30.0, 47 * LATENT * 2),
    // An index keeps a key of its own.
    runs("glm_5", "glm_moe_dsa", 744.0, 78 * (LATENT + 128) * 2),
    Runs { format: "fp8:128", ..runs("deepseek_v3_2", "deepseek_v32", 671.0, 61 * (LATENT + 128) * 2) },
    Runs { format: "fp8", ..runs("devstral_2_123b", "ministral3", 123.0, 88 * 2 * 8 * 128 * 2) },
    runs("mistral_small_4_text", "mistral4", 119.0, 36 * ((256 + 64) + 256) * 2),
    runs("granite_3_3_8b", "granite", 8.17, 40 * 2 * 8 * 128 * 2),
    runs("llama_4_scout_text", "llama4_text", 109.0, 48 * 2 * 8 * 128 * 2),
    runs("seed_oss_36b", "seed_oss", 36.0, 64 * 2 * 8 * 128 * 2),
    // The text part of models that see images.
    runs("kimi_k2_5", "deepseek_v3", 1040.0, 61 * LATENT * 2),
    runs("mistral_small_4", "mistral4", 119.0, 36 * ((256 + 64) + 256) * 2),
    runs("llama_4_scout", "llama4_text", 109.0, 48 * 2 * 8 * 128 * 2),
    runs("smollm3_3b", "smollm3", 3.08, 36 * 2 * 4 * 128 * 2),
];

/// Models that need what is not there, with its name.
const REFUSED: [(&str, &str); 5] = [
    ("qwen3_5_27b", "a recurrent state next to keys and values"),
    ("qwen3_5_35b_a3b", "a recurrent state next to keys and values"),
    ("qwen3_next_80b_a3b", "a recurrent state next to keys and values"),
    ("nemotron_3_nano_30b", "a recurrent state next to keys and values"),
    ("granite_4_h_tiny", "a recurrent state next to keys and values"),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/published")
}

fn sketch(name: &str) -> Result<Sketch, Error> {
    let options = Options::new().threads(1).kv_dtype(Float::Bf16);
    options.sketch(&folder().join(format!("{name}.json"))).map(|(sketch, _)| sketch)
}

/// Names of the ops that run as others, without repetition.
fn composed(sketch: &Sketch) -> BTreeSet<&str> {
    sketch.plan.composed().map(|row| row.op).collect()
}

#[test]
fn models_of_the_first_ranks_plan() {
    let mut wrong = Vec::new();
    for model in &MODELS {
        let sketch = match sketch(model.name) {
            Ok(sketch) => sketch,
            Err(error) => {
                wrong.push(format!("{}: {error}", model.name));
                continue;
            }
        };
        let (plan, billions) = (&sketch.plan, sketch.parameters as f64 / 1e9);
        let policy = plan.origin.as_ref().unwrap().policy.as_str();
        let mut check = |what: &str, is: bool, found: String| {
            if !is {
                wrong.push(format!("{}: {what} {found}", model.name));
            }
        };
        check("policy", policy == model.policy, policy.into());
        let off = (billions / model.billions - 1.0).abs();
        check("billions of parameters", off < 0.02, billions.to_string());
        check("bytes of a token", sketch.kv_bytes == model.kv_bytes, sketch.kv_bytes.to_string());
        check(
            "ops without a way to run",
            plan.missing().count() == 0,
            format!("{:?}", plan.missing().next()),
        );
        let found = composed(&sketch);
        check("composed ops", found == model.composed.iter().copied().collect(), format!("{found:?}"));
        let why = plan.composed().all(|row| row.composed.as_ref().is_some_and(|reason| !reason.is_empty()));
        check("reasons", why, "are missing".into());
        let formats: BTreeSet<&str> = plan.rows.iter().filter_map(|row| row.format.as_deref()).collect();
        check("format", formats.contains(model.format), format!("{formats:?}"));
        check(
            "note",
            plan.assumed.iter().any(|said| said.contains("configuration alone")),
            "is missing".into(),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn models_that_need_more_are_refused_by_the_word() {
    for (name, word) in REFUSED {
        let text = sketch(name).map(|sketch| sketch.to_string()).unwrap_err().to_string();
        assert!(text.contains(&format!("it needs what is not there yet: {word}")), "{name}: {text}");
    }
}

#[test]
fn every_configuration_is_tested() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let files: BTreeSet<String> =
        files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    let tested = MODELS.iter().map(|model| model.name).chain(REFUSED.iter().map(|(name, _)| *name));
    assert_eq!(files, tested.map(str::to_owned).collect());
}

#[test]
fn a_plan_says_what_it_is_made_of() {
    let text = sketch("gpt_oss_20b").unwrap().to_string();
    for part in [
        "policy gpt_oss: it is the family of model_type \"gpt_oss\"",
        "assumed: sizes come from the configuration alone",
        "`quantization_config` (mxfp4) and `dtype` say",
        "20.91 billion parameters, weights ",
        "keys and values 49.2 kB for a token, 6.44 GB for 131072 tokens",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// The published configuration of a model that sees images gives the plan of its text part, and says so.
#[test]
fn a_text_part_is_planned_as_a_model_of_its_own() {
    for (whole, text) in
        [("mistral_small_4", "mistral_small_4_text"), ("llama_4_scout", "llama_4_scout_text")]
    {
        let (of_whole, of_text) = (sketch(whole).unwrap(), sketch(text).unwrap());
        assert_eq!((of_whole.parameters, of_whole.weights), (of_text.parameters, of_text.weights), "{whole}");
        let said = of_whole.to_string();
        for part in ["of the text part of model_type", "towers of images and sound are left out; token"] {
            assert!(said.contains(part), "{whole}: no {part:?} in {said}");
        }
        assert!(!of_text.to_string().contains("towers"), "{text}");
    }
}

#[test]
fn ranks_are_planned_without_weights() {
    let path = folder().join("granite_3_3_8b.json");
    let (whole, none) = Options::new().threads(1).sketch(&path).unwrap();
    let (_, group) = Options::new().threads(1).tp(2).sketch(&path).unwrap();
    let group = group.unwrap();
    assert!(none.is_none() && group.ranks.len() == 2);
    let of_ranks: usize = group.ranks.iter().map(|rank| rank.kv_bytes).sum();
    assert_eq!(of_ranks, whole.kv_bytes);
    let bytes: usize = group.ranks.iter().map(|rank| rank.bytes).sum();
    let more: usize = group.replicated.iter().map(|one| one.bytes).sum();
    assert_eq!((bytes - more) as u64, whole.weights);
}

#[test]
fn what_is_no_configuration_is_refused_by_name() {
    let text = Options::new().sketch(&folder().join("no.json")).map(drop).unwrap_err().to_string();
    assert!(text.contains("no.json") && text.contains("model_type"), "{text}");
    let path = std::env::temp_dir().join(format!("engraft-published-{}.json", std::process::id()));
    let refused = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Options::new().sketch(&path).map(drop).unwrap_err().to_string()
    };
    let text = refused("{\"model_type\": \"llama\", \"torch_dtype\": \"bfloat16\"}");
    assert!(text.contains("hidden_size"), "{text}");
    let text = refused(
        "{\"model_type\": \"llama\", \"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4}}",
    );
    assert!(text.contains("quant_method") && text.contains("awq"), "{text}");
    let text = refused("{\"model_type\": \"no_such_family\"}");
    assert!(text.contains("no_such_family"), "{text}");
    std::fs::remove_file(&path).unwrap();
}
