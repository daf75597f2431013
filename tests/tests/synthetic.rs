//! Families that have no golden: a golden of a relative is rewritten into their form (names, row orders, fusions, experts
//! that are copies), and must give the relative's numbers.
#![allow(clippy::unwrap_used, clippy::panic)]

// Reason: shared with the tests of GGUF files, which use other parts of it.
#[allow(dead_code)]
mod rewritten;

use conformance::golden::Case;
use rewritten::{Tensor, Tensors, below, golden, logits, same};
use serde_json::{Value, json};

/// LLaMA's golden with its names replaced; `fuse` makes what stands in the place of q, k and v.
fn llama(pairs: &[(&str, &str)]) -> (Case, Value, Tensors) {
    let (case, config, tensors) = golden("llama");
    let renamed = |name: String| pairs.iter().fold(name, |n, (from, to)| n.replace(from, to));
    (case, config, tensors.into_iter().map(|(n, t)| (renamed(n), t)).collect())
}

/// Takes three tensors out and puts them back as one.
fn fuse(tensors: &mut Tensors, layer: usize, from: [String; 3], to: &str) {
    let name = |n: &str| n.replace("{}", &layer.to_string());
    let parts = from.map(|n| tensors.remove(&name(&n)).unwrap());
    tensors.insert(name(to), below(&[&parts[0], &parts[1], &parts[2]]));
}

#[test]
fn llama_in_metas_form() {
    let (case, config, mut tensors) = llama(&[
        ("model.embed_tokens", "tok_embeddings"),
        ("model.layers", "layers"),
        ("self_attn.q_proj", "attention.wq"),
        ("self_attn.k_proj", "attention.wk"),
        ("self_attn.v_proj", "attention.wv"),
        ("self_attn.o_proj", "attention.wo"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("model.norm", "norm"),
        ("lm_head", "output"),
    ]);
    let heads = config["num_attention_heads"].as_u64().unwrap() as usize;
    for (name, tensor) in &mut tensors {
        if name.contains("attention.wq") || name.contains("attention.wk") {
            let width = tensor.shape[0] / heads;
            // Row i of the first half and row i of the second become neighbours.
            let order: Vec<usize> =
                (0..tensor.shape[0]).map(|r| r / width * width + r % width / 2 + r % 2 * width / 2).collect();
            *tensor = tensor.ordered(&order);
        }
    }
    tensors.insert("rope.freqs".into(), Tensor { shape: vec![8], values: vec![f32::NAN; 8] });
    let params = json!({
        "dim": config["hidden_size"], "n_layers": config["num_hidden_layers"], "n_heads": heads, "vocab_size": -1,
        "norm_eps": config["rms_norm_eps"], "multiple_of": 256, "rope_theta": config["rope_theta"],
    });
    same("meta", &case, &logits(&case, &params, &tensors), None);
}

#[test]
fn the_first_qwen() {
    let (case, mut config, mut tensors) = llama(&[
        ("model.embed_tokens", "transformer.wte"),
        ("model.layers", "transformer.h"),
        ("self_attn.o_proj", "attn.c_proj"),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("mlp.gate_proj", "mlp.w2"),
        ("mlp.up_proj", "mlp.w1"),
        ("mlp.down_proj", "mlp.c_proj"),
        ("model.norm", "transformer.ln_f"),
    ]);
    for layer in 0..config["num_hidden_layers"].as_u64().unwrap() as usize {
        let part = |p: &str| format!("transformer.h.{{}}.self_attn.{p}_proj.weight");
        fuse(&mut tensors, layer, ["q", "k", "v"].map(part), "transformer.h.{}.attn.c_attn.weight");
        let rows = tensors[&format!("transformer.h.{layer}.attn.c_attn.weight")].shape[0];
        let bias = Tensor { shape: vec![rows], values: vec![0.0; rows] };
        tensors.insert(format!("transformer.h.{layer}.attn.c_attn.bias"), bias);
    }
    config["model_type"] = "qwen".into();
    config["intermediate_size"] = (2 * config["intermediate_size"].as_u64().unwrap()).into();
    config["layer_norm_epsilon"] = config["rms_norm_eps"].take();
    config["rotary_emb_base"] = config["rope_theta"].take();
    config["seq_length"] = 64.into();
    same("qwen", &case, &logits(&case, &config, &tensors), None);
}

#[test]
fn baichuan_of_both_generations() {
    let (case, mut config, mut tensors) = llama(&[]);
    for layer in 0..config["num_hidden_layers"].as_u64().unwrap() as usize {
        let part = |p: &str| format!("model.layers.{{}}.self_attn.{p}_proj.weight");
        fuse(&mut tensors, layer, ["q", "k", "v"].map(part), "model.layers.{}.self_attn.W_pack.weight");
    }
    config["model_type"] = "baichuan".into();
    same("baichuan", &case, &logits(&case, &config, &tensors), None);
    config["z_loss_weight"] = 0.into();
    let head = &tensors["lm_head.weight"];
    let length = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let lengths: Vec<f64> = head.values.chunks(head.cols()).map(length).collect();
    same("baichuan 2", &case, &logits(&case, &config, &tensors), Some(&lengths));
}

/// Models that nobody described, under a type that nobody knows.
#[test]
fn the_automatic_policy_runs_unknown_models() {
    let (case, mut config, tensors) = golden("llama");
    config["model_type"] = "unheard of".into();
    same("an unknown LLaMA", &case, &logits(&case, &config, &tensors), None);
    // This golden scales scores by the layer's number, which no name tells: its queries take the factor.
    let (case, mut config, mut tensors) = golden("gpt2");
    config["model_type"] = "unheard of".into();
    for (name, tensor) in &mut tensors {
        if name.contains("attn.c_attn") {
            let layer: usize = name.split('.').nth(2).unwrap().parse().unwrap();
            // Stored by inputs: a third of every row, and of the bias, makes queries.
            let cols = *tensor.shape.last().unwrap();
            for (i, v) in tensor.values.iter_mut().enumerate() {
                *v /= if i % cols < cols / 3 { (layer + 1) as f32 } else { 1.0 };
            }
        }
    }
    same("an unknown GPT", &case, &logits(&case, &config, &tensors), None);
}

/// GPT-2's golden in Megatron's names, one version's row order of q, k and v.
fn megatron(version: usize) -> (Case, Value, Tensors) {
    let (case, config, gpt2) = golden("gpt2");
    let pairs = [
        ("transformer.h.", "language_model.encoder.layers."),
        ("transformer.wte", "language_model.embedding.word_embeddings"),
        ("transformer.wpe", "language_model.embedding.position_embeddings"),
        ("transformer.ln_f", "language_model.encoder.final_layernorm"),
        ("ln_1", "input_layernorm"),
        ("ln_2", "post_attention_layernorm"),
        ("attn.c_attn", "self_attention.query_key_value"),
        ("attn.c_proj", "self_attention.dense"),
        ("mlp.c_fc", "mlp.dense_h_to_4h"),
        ("mlp.c_proj", "mlp.dense_4h_to_h"),
    ];
    let heads = config["n_head"].as_u64().unwrap() as usize;
    let mut tensors = Tensors::new();
    for (old, mut tensor) in gpt2 {
        let name = pairs.iter().fold(old.clone(), |n, (from, to)| n.replace(from, to));
        if old.contains(".c_") && old.ends_with(".weight") {
            tensor = tensor.transposed();
        }
        if old.contains("c_attn") {
            let (rows, cols) = (tensor.shape[0], tensor.cols());
            let (hidden, width) = (rows / 3, rows / 3 / heads);
            // This golden scales scores by the layer's number; Megatron does not: the queries take the factor.
            let layer: usize = old.split('.').nth(2).unwrap().parse().unwrap();
            tensor.values[..hidden * cols].iter_mut().for_each(|v| *v /= (layer + 1) as f32);
            let order: Vec<usize> = match version {
                0 => (0..rows).collect(),
                // [heads, width, 3] and [heads, 3, width].
                1 => (0..rows).map(|r| r % 3 * hidden + r / 3).collect(),
                _ => (0..rows)
                    .map(|r| r % (3 * width) / width * hidden + r / (3 * width) * width + r % width)
                    .collect(),
            };
            tensor = tensor.ordered(&order);
        }
        tensors.insert(name, tensor);
    }
    let field = |name: &str| config[name].clone();
    let config = json!({
        "model_type": "megatron_gpt", "checkpoint_version": version, "hidden_size": field("n_embd"),
        "num_layers": field("n_layer"), "num_attention_heads": heads, "vocab_size": field("vocab_size"),
        "max_position_embeddings": field("n_positions"), "ffn_hidden_size": field("n_inner"),
        "layernorm_epsilon": field("layer_norm_epsilon"), "hidden_act": field("activation_function"),
    });
    (case, config, tensors)
}

#[test]
fn megatron_in_all_row_orders() {
    for version in [0, 1, 2, 3] {
        let (case, config, tensors) = megatron(version);
        same(&format!("version {version}"), &case, &logits(&case, &config, &tensors), None);
    }
}

/// Experts that are all alike give what one dense part gives, whoever is chosen, as their weights add up to one; in the
/// residual form so do the two coefficients.
#[test]
fn megatron_with_experts() {
    for (moe, experts, topk) in [("standard", 1, 1), ("standard", 3, 2), ("residual", 4, 2)] {
        let (case, mut config, dense) = megatron(2);
        let hidden = config["hidden_size"].as_u64().unwrap() as usize;
        let odd = |n: usize| (0..n).map(|i| ((i * 37 % 23) as f32 - 11.0) / 20.0).collect::<Vec<f32>>();
        let mut tensors = Tensors::new();
        for (name, tensor) in dense {
            let Some((block, rest)) = name.split_once("mlp.") else {
                tensors.insert(name, tensor);
                continue;
            };
            for e in 0..experts {
                let expert = format!("{block}mlp.deepspeed_moe.experts.deepspeed_experts.{e}.{rest}");
                tensors.insert(expert, tensor.clone());
            }
            let gate = Tensor { shape: vec![experts, hidden], values: odd(experts * hidden) };
            tensors.insert(format!("{block}mlp.deepspeed_moe.gate.wg.weight"), gate);
            if moe == "residual" {
                tensors.insert(format!("{block}mlp.mlp.{rest}"), tensor);
                let weight = Tensor { shape: vec![2, hidden], values: odd(2 * hidden) };
                tensors.insert(format!("{block}mlp.coefficient.weight"), weight);
                let bias = Tensor { shape: vec![2], values: vec![0.3, -0.2] };
                tensors.insert(format!("{block}mlp.coefficient.bias"), bias);
            }
        }
        config["num_experts"] = experts.into();
        config["moe_type"] = moe.into();
        config["topk"] = topk.into();
        same(&format!("{moe}, {experts} experts"), &case, &logits(&case, &config, &tensors), None);
    }
}
