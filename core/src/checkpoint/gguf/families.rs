//! What single architectures say in words of their own, what llama.cpp knows by an architecture's name alone,
//! and what only the tensors of a file say.
//!
//! Source: llama.cpp's converters (`conversion/`) and what it computes such files with (`src/models/`).

use super::Metadata;
use super::encoders::pooling;
use super::translation::{Seen, Translation};
use super::words::{EXPERTS_NORM, KV_HEADS, ROUTING, SCALING, SCALING_FACTOR, Words};
use crate::checkpoint::Source;
use crate::mem::Stored;
use crate::{Error, Result};
use serde_json::{Value, json};

/// Numbers that some architectures have.
const NUMBERS: &[(&[&str], &Words)] = &[
    (
        &["granite", "granitemoe"],
        &[
            ("attention.scale", "attention_multiplier"),
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ],
    ),
    (&["command-r", "cohere2", "cohere2moe"], &[("logit_scale", "logit_scale")]),
    (&["olmo"], &[("attention.clamp_kqv", "clip_qkv")]),
];

/// Sizes of latent attention.
const LATENT: &Words =
    &[("attention.kv_lora_rank", "kv_lora_rank"), ("attention.q_lora_rank", "q_lora_rank")];

/// Architectures whose experts are chosen as the file says, in the blocks that have a router.
const ROUTED: &[&str] = &[
    "afmoe",
    "cohere2moe",
    "deepseek2",
    "deepseek32",
    "dots1",
    "ernie4_5-moe",
    "exaone-moe",
    "glm-dsa",
    "glm4moe",
    "gpt-oss",
    "granitemoe",
    "hunyuan-moe",
    "hy_v3",
    "minimax-m2",
    "olmoe",
];

/// Most blocks that are looked at: what a file says of them is not checked yet.
pub(super) const MOST_BLOCKS: u64 = 1 << 16;

/// Switches that configurations name.
pub(super) fn family(to: &mut Translation, seen: &Seen) -> Result<()> {
    let arch = to.arch;
    for (_, words) in NUMBERS.iter().filter(|(archs, _)| archs.contains(&arch)) {
        to.numbers(words)?;
    }
    windows(to);
    if ROUTED.contains(&to.arch) {
        routed(to, seen)?;
    }
    match to.arch {
        "qwen2moe" | "qwen3moe" => {
            let norm = to.flag(EXPERTS_NORM.0)?.unwrap_or(to.arch == "qwen3moe");
            to.put(EXPERTS_NORM.1, json!(norm));
            let blocks = to.count("block_count")?.unwrap_or(0).min(MOST_BLOCKS);
            let dense: Vec<u64> = (0..blocks).filter(|b| !seen.routed.contains(b)).collect();
            to.put("mlp_only_layers", json!(dense));
        }
        "gemma2" | "gemma3" => gemma(to)?,
        "gemma-embedding" => {
            gemma(to)?;
            to.put("architectures", json!(["Gemma3TextModel"]));
            to.put("use_bidirectional_attention", json!(true));
            pooling(to, seen)?;
        }
        "eurobert" => {
            to.put("architectures", json!(["EuroBertModel"]));
            pooling(to, seen)?;
        }
        "stablelm" | "gptneox" => {
            let parallel = to.flag("use_parallel_residual")?.unwrap_or(to.arch == "gptneox");
            to.put("use_parallel_residual", json!(parallel));
            to.put("use_qkv_bias", json!(seen.qkv_bias));
            rotated_part(to)?;
        }
        "phi2" | "nemotron" => rotated_part(to)?,
        "falcon" => {
            let kv = to.count("attention.head_count_kv")?.unwrap_or(1);
            to.put("new_decoder_architecture", json!(kv > 1));
            to.put("num_kv_heads", json!(kv));
            to.put("num_ln_in_parallel_attn", json!(1 + u64::from(seen.second_norm)));
        }
        "seed_oss" => to.put("attention_bias", json!(seen.qkv_bias)),
        "ernie4_5" | "ernie4_5-moe" => to.put("use_bias", json!(seen.qkv_bias)),
        "glm4moe" | "command-r" | "cohere2" => to.put("use_qk_norm", json!(seen.qk_norm)),
        "gpt-oss" => untruncated(to),
        "deepseek2" => deepseek(to, seen)?,
        "deepseek32" | "glm-dsa" => indexed(to, seen)?,
        "hunyuan-moe" => hunyuan(to)?,
        "mistral3" => growing(to)?,
        "llama4" => chunked(to)?,
        // All published models of the family: llama.cpp computes every file so.
        "afmoe" => to.put("mup_enabled", json!(true)),
        _ => {}
    }
    Ok(())
}

/// `layer_types`, where a file lists which blocks have a window.
fn windows(to: &mut Translation) {
    let key = format!("{}.attention.sliding_window_pattern", to.arch);
    let Some(list) = to.metadata.bools(&key) else { return };
    if to.arch == "olmo2" {
        // Version 3 has windows, version 2 none; llama.cpp has one name for both.
        to.put("model_type", json!("olmo3"));
    }
    to.layer_types(&list);
}

/// How experts are chosen, and which blocks have some.
pub(super) fn routed(to: &mut Translation, seen: &Seen) -> Result<()> {
    to.counts(ROUTING)?;
    if let Some(norm) = to.flag(EXPERTS_NORM.0)? {
        to.put(EXPERTS_NORM.1, json!(norm));
    }
    // llama.cpp takes no factor and a factor of 0 for 1.
    if let Some(scale) = to.number("expert_weights_scale")?.filter(|scale| *scale != 0.0) {
        to.put("routed_scaling_factor", json!(scale));
    }
    match to.count("expert_gating_func")? {
        None | Some(0) => {}
        Some(1) => to.put("scoring_func", json!("softmax")),
        Some(2) => to.put("scoring_func", json!("sigmoid")),
        // Its name is not known; the number says enough.
        Some(other) => to.put("scoring_func", json!(format!("expert_gating_func {other}"))),
    }
    // Some files give the columns of the part that all tokens share, and not the experts that it stands for.
    let columns = (to.count("expert_shared_feed_forward_length")?, to.count("expert_feed_forward_length")?);
    if let (None, (Some(shared), Some(own))) = (to.count("expert_shared_count")?, columns)
        && own > 0
    {
        to.put("n_shared_experts", json!(shared / own));
    }
    let blocks = to.count("block_count")?.unwrap_or(0).min(MOST_BLOCKS);
    let drafting = to.count("nextn_predict_layers")?.unwrap_or(0).min(blocks);
    if drafting > 0 {
        // Counted among the blocks, they stand behind the others.
        to.put("num_hidden_layers", json!(blocks - drafting));
        to.put("num_nextn_predict_layers", json!(drafting));
    }
    let word = |block| if seen.routed.contains(&block) { "sparse" } else { "dense" };
    to.put("mlp_layer_types", json!((0..blocks - drafting).map(word).collect::<Vec<_>>()));
    Ok(())
}

/// Published models of gpt-oss do not round the ends of YaRN's ramp; no key says so.
fn untruncated(to: &mut Translation) {
    if let Some(Value::Object(scaling)) = to.out.get_mut("rope_scaling") {
        scaling.insert("truncate".into(), json!(false));
    }
}

/// YaRN's factors of scores, of which one is `times` what the file says; the other is the same in all models.
fn stretched(to: &mut Translation, times: f64) -> Result<()> {
    let said = to.number("rope.scaling.yarn_log_multiplier")?;
    if let (Some(said), Some(Value::Object(scaling))) = (said, to.out.get_mut("rope_scaling")) {
        for field in ["mscale", "mscale_all_dim"] {
            scaling.insert(field.into(), json!(said / times));
        }
    }
    Ok(())
}

/// Ministral 3, whose queries grow with their position.
fn growing(to: &mut Translation) -> Result<()> {
    stretched(to, 1.0)?;
    let beta = to.number("attention.temperature_scale")?;
    if let (Some(beta), Some(Value::Object(scaling))) = (beta, to.out.get_mut("rope_scaling")) {
        scaling.insert("llama_4_scaling_beta".into(), json!(beta));
    }
    Ok(())
}

/// The number of experts of Llama 4's larger model, whose queries and keys have no norms.
const WITHOUT_NORMS: u64 = 128;

/// Llama 4, whose configurations call the columns of experts what others call those of dense parts. No key
/// says anything of norms, and none of chunks and of how queries grow but that there is neither.
fn chunked(to: &mut Translation) -> Result<()> {
    to.counts(&[
        ("feed_forward_length", "intermediate_size_mlp"),
        ("expert_feed_forward_length", "intermediate_size"),
        ("interleave_moe_layer_step", "interleave_moe_layer_step"),
    ])?;
    to.put("use_qk_norm", json!(to.count("expert_count")? != Some(WITHOUT_NORMS)));
    to.out.remove("sliding_window");
    match to.count("attention.sliding_window")? {
        Some(0) => {
            let blocks = to.count("block_count")?.unwrap_or(0).min(MOST_BLOCKS);
            to.put("attention_chunk_size", Value::Null);
            to.put("no_rope_layers", json!(vec![1; blocks as usize]));
        }
        _ => to.counts(&[("attention.sliding_window_pattern", "no_rope_layer_interval")])?,
    }
    Ok(())
}

/// Sizes of the index that chooses keys.
const INDEX: &Words = &[
    ("attention.indexer.head_count", "index_n_heads"),
    ("attention.indexer.key_length", "index_head_dim"),
    ("attention.indexer.top_k", "index_topk"),
];

/// DeepSeek 3.2 and GLM 5, whose queries read the keys that an index chooses, in GLM's that of an earlier
/// block.
fn indexed(to: &mut Translation, seen: &Seen) -> Result<()> {
    latent(to, seen)?;
    to.counts(INDEX)?;
    if let Some(list) = to.metadata.bools(&format!("{}.attention.indexer.types", to.arch)) {
        let word = |full: &bool| if *full { "full" } else { "shared" };
        to.put("indexer_types", json!(list.iter().map(word).collect::<Vec<_>>()));
    }
    Ok(())
}

/// HunYuan 1 with experts, whose configurations have the columns that all tokens share in the place of those
/// of dense parts.
fn hunyuan(to: &mut Translation) -> Result<()> {
    to.counts(&[
        ("expert_used_count", "moe_topk"),
        ("expert_shared_feed_forward_length", "intermediate_size"),
    ])?;
    to.put("num_shared_expert", json!(1));
    Ok(())
}

/// Latent attention. One row of a position is one head of keys there; configurations say what becomes of it.
fn latent(to: &mut Translation, seen: &Seen) -> Result<()> {
    to.counts(LATENT)?;
    let sizes = ["attention.key_length_mla", "attention.value_length_mla", "rope.dimension_count"];
    let mut found = [0; 3];
    for (key, found) in sizes.iter().zip(&mut found) {
        let missing = || Error::format("", format!("metadata `{}.{key}` is missing", to.arch));
        *found = to.count(key)?.ok_or_else(missing)?;
    }
    let [key, value, rotated] = found;
    let plain = key.checked_sub(rotated).ok_or_else(|| {
        let what = format!("at least {rotated}, the columns that are rotated");
        Error::config(format!("{}.{}", to.arch, sizes[0]), key, what)
    })?;
    to.out.remove("partial_rotary_factor");
    to.put("head_dim", json!(key));
    to.put("qk_nope_head_dim", json!(plain));
    to.put("qk_rope_head_dim", json!(rotated));
    to.put("v_head_dim", json!(value));
    to.put("attention_bias", json!(seen.latent_bias));
    if let Some(heads) = to.count("attention.head_count")? {
        to.put(KV_HEADS.1, json!(heads));
    }
    // Written tenfold smaller than other architectures have it.
    stretched(to, 0.1)
}

/// DeepSeek 2 and 3, Kimi 2 and GLM 4.7 Flash.
fn deepseek(to: &mut Translation, seen: &Seen) -> Result<()> {
    latent(to, seen)?;
    // As llama.cpp has it: files that say nothing are of version 2.
    let third = to.count("expert_gating_func")? == Some(2);
    to.put("model_type", json!(if third { "deepseek_v3" } else { "deepseek_v2" }));
    let groups = to.count("expert_group_count")?;
    if !third && groups.is_some_and(|groups| groups > 1) {
        to.put("topk_method", json!("group_limited_greedy"));
    }
    // Older files of version 3 leave its eight groups out; those of others have none.
    if third && groups.is_none() && to.count("expert_count")? != Some(256) {
        to.put("n_group", json!(1));
        to.put("topk_group", json!(1));
    }
    if to.flag(EXPERTS_NORM.0)?.is_none() {
        to.put(EXPERTS_NORM.1, json!(false));
    }
    Ok(())
}

/// Families that rotate a part of a head where nothing is said.
fn rotated_part(to: &mut Translation) -> Result<()> {
    let width = to.out.get("head_dim").and_then(Value::as_u64).filter(|w| *w > 0);
    if let (Some(rotated), Some(width)) = (to.count("rope.dimension_count")?, width) {
        to.put("partial_rotary_factor", json!(rotated as f64 / width as f64));
    }
    Ok(())
}

/// Caps, and the scale of scores: by the width of a head, in the models of 27 billion weights by that of an
/// even share.
fn gemma(to: &mut Translation) -> Result<()> {
    to.numbers(&[
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("rope.freq_base_swa", "rope_local_base_freq"),
    ])?;
    if !to.out.contains_key("layer_types") {
        to.counts(&[("attention.sliding_window_pattern", "sliding_window_pattern")])?;
    }
    let even = matches!((to.arch, to.count("block_count")?), ("gemma2", Some(46)) | ("gemma3", Some(62)));
    let share = match (to.count("embedding_length")?, to.count("attention.head_count")?) {
        (Some(width), Some(heads)) if even && heads > 0 => Some(width / heads),
        _ => to.count("attention.key_length")?,
    };
    if let Some(share) = share {
        to.put("query_pre_attn_scalar", json!(share));
    }
    Ok(())
}

/// LongRoPE's divisors for short and for long prompts, and the fields of `rope_scaling` that they are.
const DIVISORS: [(&str, &str); 2] =
    [("rope_factors_short.weight", "short_factor"), ("rope_factors_long.weight", "long_factor")];
/// Most divisors: half of the columns of a head.
const MOST_DIVISORS: usize = 1 << 12;

/// Puts LongRoPE's divisors, which lie among the tensors, where configurations have them.
///
/// # Errors
/// `Tensor` for divisors of another type, or of which one list is missing; what reading raises.
pub(super) fn long_rope(config: &mut Value, metadata: &Metadata, source: &dyn Source) -> Result<()> {
    let found: Vec<_> = DIVISORS.iter().filter_map(|(name, _)| source.find(name)).collect();
    let [_, _] = found[..] else {
        return match found[..] {
            [one] => Err(Error::tensor(&one.name, "is there without its counterpart for other prompts")),
            _ => Ok(()),
        };
    };
    let mut scaling = json!({ "rope_type": "longrope" });
    for (name, field) in DIVISORS {
        let bytes = source.bytes(name)?;
        let divisors = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        match source.find(name) {
            Some(info) if info.stored == Stored::F32 && info.elements() <= MOST_DIVISORS => {
                scaling[field] = divisors.map(f64::from).collect();
            }
            _ => {
                let what = format!("at most {MOST_DIVISORS} numbers in f32 are expected");
                return Err(Error::tensor(name, what));
            }
        }
    }
    let arch = metadata.str("general.architecture")?.unwrap_or_default();
    let (original, factor) = (SCALING[2], SCALING_FACTOR);
    if let Some(n) = metadata.u64(&format!("{arch}.{}", original.0))? {
        scaling[original.1] = json!(n);
    }
    if let Some(n) = metadata.f64(&format!("{arch}.{}", factor.0))? {
        scaling[factor.1] = json!(n);
    }
    config["rope_scaling"] = scaling;
    Ok(())
}
