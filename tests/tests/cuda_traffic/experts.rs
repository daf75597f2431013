//! Decode steps of models of experts: the launches are those that `cargo xtask predict` makes of the same
//! sizes, and of experts' weights a step reads those of the chosen ones, each once.

use super::mixture::{self, Latent, Mixture};
use super::step::{Shape, Step, Weights};
use super::{COUNTERS, MOST, SHORT, counting_driver, differing, engine, judge_kv, measured_step, operands};
use conformance::backends::cuda;
use conformance::named;
use conformance::trials::Named;
use engraft_core::checkpoint::{Access, open};
use engraft_core::engine::Engine;
use engraft_core::numerics::Mode;
use engraft_core::params::Heads;
use engraft_core::policy::ModelSpec;
use engraft_cuda::Cuda;
use engraft_kernels::params::Format;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use soft_cuda::preload::{self, SoftCuda};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::PoisonError;

/// Tests that have the software driver count.
pub const COUNTED: &[Named] = &named![steps_of_experts_launch_what_is_predicted_and_read_those_chosen];

type Tensors = Vec<(String, Vec<usize>)>;

/// A gpt-oss as published in MXFP4, of heads that kernels on tensor cores take.
fn gpt_oss() -> (Value, Tensors) {
    let (h, n, e, q, kv) = (256, 128, 8, 256, 128);
    let config = json!({
        "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "attention_bias": true, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": h, "intermediate_size": n, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 96,
        "layer_types": ["sliding_attention", "full_attention"], "num_experts_per_tok": 2, "num_local_experts": e,
        "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "swiglu_limit": 7.0, "tie_word_embeddings": false,
        "vocab_size": 512,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    });
    let mut all = outside(h);
    for i in 0..2 {
        let mut add =
            |name: &str, shape: &[usize]| all.push((format!("model.layers.{i}.{name}"), shape.into()));
        add("input_layernorm.weight", &[h]);
        add("post_attention_layernorm.weight", &[h]);
        for (name, rows, cols) in [("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)] {
            add(&format!("self_attn.{name}_proj.weight"), &[rows, cols]);
            add(&format!("self_attn.{name}_proj.bias"), &[rows]);
        }
        add("self_attn.sinks", &[4]);
        add("mlp.router.weight", &[e, h]);
        add("mlp.router.bias", &[e]);
        for (name, rows, cols) in [("gate_up", 2 * n, h), ("down", h, n)] {
            add(&format!("mlp.experts.{name}_proj_blocks"), &[e, rows, cols / 32, 16]);
            add(&format!("mlp.experts.{name}_proj_scales"), &[e, rows, cols / 32]);
            add(&format!("mlp.experts.{name}_proj_bias"), &[e, rows]);
        }
    }
    (config, all)
}

/// A DeepSeek-V2: latent attention, a block without experts, a dense part next to the experts of the others.
fn deepseek() -> (Value, Tensors) {
    let (h, heads, rank, rope, nope, value, inner, e) = (256, 4, 128, 32, 64, 64, 128, 8);
    let config = json!({
        "model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false,
        "hidden_act": "silu", "first_k_dense_replace": 1, "hidden_size": h, "intermediate_size": 384,
        "kv_lora_rank": rank, "q_lora_rank": null, "moe_intermediate_size": inner, "n_routed_experts": e,
        "n_shared_experts": 2, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
        "norm_topk_prob": false, "routed_scaling_factor": 1.0, "num_attention_heads": heads,
        "num_key_value_heads": heads, "num_hidden_layers": 3, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope,
        "v_head_dim": value, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "vocab_size": 512,
    });
    let mut all = outside(h);
    for i in 0..3 {
        let mut add =
            |name: &str, shape: &[usize]| all.push((format!("model.layers.{i}.{name}"), shape.into()));
        add("input_layernorm.weight", &[h]);
        add("post_attention_layernorm.weight", &[h]);
        add("self_attn.q_proj.weight", &[heads * (nope + rope), h]);
        add("self_attn.kv_a_proj_with_mqa.weight", &[rank + rope, h]);
        add("self_attn.kv_a_layernorm.weight", &[rank]);
        add("self_attn.kv_b_proj.weight", &[heads * (nope + value), rank]);
        add("self_attn.o_proj.weight", &[h, heads * value]);
        let mut dense = |at: &str, inner: usize| {
            add(&format!("{at}.gate_proj.weight"), &[inner, h]);
            add(&format!("{at}.up_proj.weight"), &[inner, h]);
            add(&format!("{at}.down_proj.weight"), &[h, inner]);
        };
        if i == 0 {
            dense("mlp", 384);
            continue;
        }
        dense("mlp.shared_experts", 2 * inner);
        (0..e).for_each(|expert| dense(&format!("mlp.experts.{expert}"), inner));
        add("mlp.gate.weight", &[e, h]);
    }
    (config, all)
}

fn outside(h: usize) -> Tensors {
    let all = [("model.embed_tokens.weight", vec![512, h]), ("lm_head.weight", vec![512, h])];
    all.into_iter()
        .chain([("model.norm.weight", vec![h])])
        .map(|(name, shape)| (name.into(), shape))
        .collect()
}

/// Writes a checkpoint of these tensors: random values, norms of 1, scales of MXFP4 near 2^-8.
fn write(folder: &Path, (config, tensors): (Value, Tensors)) {
    let mut state = 1u64;
    let mut dice = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    let mut made: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, shape) in tensors {
        let count: usize = shape.iter().product();
        let scale = 1.0 / shape.last().copied().map_or(1.0, |n| (n as f32).sqrt());
        let (dtype, bytes) = match () {
            _ if name.ends_with("_blocks") => (Dtype::U8, (0..count).map(|_| dice()).collect()),
            _ if name.ends_with("_scales") => (Dtype::U8, (0..count).map(|_| 118 + dice() % 3).collect()),
            _ => {
                let mut value =
                    || if name.contains("norm") { 1.0 } else { (dice() as i8) as f32 / 64.0 * scale };
                let values = (0..count).flat_map(|_| half::bf16::from_f32(value()).to_le_bytes());
                (Dtype::BF16, values.collect())
            }
        };
        made.push((name, dtype, shape, bytes));
    }
    let views = made.iter().map(|(name, dtype, shape, bytes)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

/// The sizes that are predicted, of a model's description.
fn sizes(spec: &ModelSpec, format: Format) -> Mixture {
    let (first, last) = (&spec.blocks[0], spec.blocks.last().unwrap());
    let (moe, Heads { heads, kv_heads, k_dim, v_dim }) = (last.moe.unwrap(), last.heads);
    let (layers, hidden, vocab) = (spec.blocks.len(), spec.hidden, spec.vocab);
    let inner = first.mlp.inner;
    Mixture {
        shape: Shape { name: "small", hidden, layers, heads, kv_heads, inner, vocab, tied: false },
        width: k_dim,
        latent: last.latent.map(|of| Latent {
            rank: v_dim,
            rotated: k_dim - v_dim,
            plain: of.plain,
            value: of.value,
            query_rank: of.query_rank,
        }),
        window: spec.blocks.iter().find_map(|block| block.scores.window).map(|keys| keys as usize),
        biases: last.sinks,
        dense: spec.blocks.iter().filter(|block| block.moe.is_none()).count(),
        experts: moe.router.experts,
        top_k: moe.router.top_k,
        inner: moe.inner,
        shared: last.mlp.inner,
        format,
    }
}

/// How a step's launches differ from those that are predicted.
fn judge_launches(engine: &Engine<Cuda>, soft: &SoftCuda, rows: usize, of: &Mixture) -> Vec<String> {
    let max_keys = engine.config().max_context;
    let step = Step {
        shape: of.shape,
        weights: Weights::Bf16,
        fast: false,
        seqs: rows,
        queries: 1,
        context: max_keys / 2,
        max_keys,
        table_edits: rows,
        wanted: rows,
        ranks: 1,
    };
    differing(mixture::launches(step, of, &mut operands::Arena::new(u64::MAX)).unwrap(), soft)
}

/// What is wrong with the reads of experts' weights: of every block whole experts, as many of both matmuls;
/// of one row those of a token, which is what is predicted.
fn judge_experts(engine: &Engine<Cuda>, soft: &SoftCuda, rows: usize, of: &Mixture) -> Vec<String> {
    let mut wrong = Vec::new();
    for (layer, block) in engine.model().blocks.iter().enumerate() {
        let Some(experts) = &block.experts else { continue };
        let mut seen = BTreeSet::new();
        for (name, weight) in [("up", &experts.up), ("down", &experts.down)] {
            for (part, address, bytes) in weight.as_ref().unwrap().weight.buffers() {
                let (read, each) = (soft.traffic(address, bytes as u64).unwrap().read, bytes / of.experts);
                let (distinct, warps) =
                    (read.distinct as f64 / each as f64, read.transferred as f64 / each as f64);
                println!(
                    "layer {layer} {name} {part}: {distinct:.3} of {} experts, {warps:.3} by warps",
                    of.experts
                );
                seen.insert(read.distinct.is_multiple_of(each as u64).then_some(distinct as usize));
                if warps > MOST * distinct {
                    wrong.push(format!("layer {layer} {name} {part}: {warps} experts read for {distinct}"));
                }
            }
        }
        match (seen.len(), seen.first().copied().flatten()) {
            (1, Some(n)) if rows == 1 && n == of.distinct(1) => {}
            (1, Some(n)) if rows > 1 && (of.top_k..=of.experts).contains(&n) => {}
            _ => wrong.push(format!("layer {layer}: {seen:?} experts, {} predicted", of.distinct(rows))),
        }
    }
    wrong
}

fn steps_of_experts_launch_what_is_predicted_and_read_those_chosen() {
    let _alone = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let name = counting_driver();
    let (gpu, soft) = (cuda(&name, Mode::Invariant).unwrap(), preload::load().unwrap());
    for (case, written, format) in
        [("gpt-oss", gpt_oss(), Format::Q5_0), ("deepseek", deepseek(), Format::Bf16)]
    {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), written);
        let files = open(folder.path(), Access::default()).unwrap();
        for prompts in [&[70][..], &SHORT] {
            let (mut engine, rows) = (engine(&gpu, &files, None), prompts.len());
            let positions = measured_step(&mut engine, soft, prompts);
            println!("\n{case}, {rows} rows, {positions} live positions");
            let of = sizes(&engine.model().spec, format);
            let mut wrong = judge_launches(&engine, soft, rows, &of);
            wrong.extend(judge_experts(&engine, soft, rows, &of));
            // A window ends within a chunk of keys, which is read whole.
            if of.window.is_none() {
                wrong.extend(judge_kv(&engine, soft, positions));
            }
            assert!(wrong.is_empty(), "{case}, {rows} rows:\n  {}", wrong.join("\n  "));
        }
    }
}
