//! Families that have no golden: a golden of a relative is rewritten into their form (names, row orders, fusions, experts
//! that are copies), and must give the relative's numbers.
#![allow(clippy::unwrap_used, clippy::panic)]

use conformance::golden::Case;
use engraft_core::checkpoint::{Access, TokenizerFiles, open, open_bytes};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, Engine, ForwardWant, Pick};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

/// A matrix or vector, row by row.
#[derive(Clone)]
struct Tensor {
    shape: Vec<usize>,
    values: Vec<f32>,
}

type Tensors = BTreeMap<String, Tensor>;

impl Tensor {
    fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Rows (of a vector: elements) in another order.
    fn ordered(&self, order: &[usize]) -> Tensor {
        let cols = self.cols();
        let values = order.iter().flat_map(|r| self.values[r * cols..(r + 1) * cols].to_vec()).collect();
        Tensor { shape: [&[order.len()], &self.shape[1..]].concat(), values }
    }

    fn transposed(&self) -> Tensor {
        let (rows, cols) = (self.shape[0], self.shape[1]);
        let values = (0..rows * cols).map(|i| self.values[i % rows * cols + i / rows]).collect();
        Tensor { shape: vec![cols, rows], values }
    }
}

fn below(parts: &[&Tensor]) -> Tensor {
    let rows = parts.iter().map(|p| p.shape[0]).sum();
    let values = parts.iter().flat_map(|p| p.values.clone()).collect();
    Tensor { shape: [&[rows], &parts[0].shape[1..]].concat(), values }
}

/// A golden of f32 weights.
fn golden(name: &str) -> (Case, Value, Tensors) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    let files = open(&dir, Access::Read).unwrap();
    let tensor = |info: &engraft_core::checkpoint::TensorInfo| {
        let bytes = files.source.bytes(&info.name).unwrap();
        let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        (info.name.clone(), Tensor { shape: info.shape.clone(), values })
    };
    let tensors = files.source.tensors().iter().map(tensor).collect();
    (Case::read(&dir).unwrap(), files.config.clone(), tensors)
}

/// The logits of every prompt of `case` by a model made of these tensors.
fn logits(case: &Case, config: &Value, tensors: &Tensors) -> Vec<Vec<f32>> {
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(n, t)| (n.clone(), t.shape.clone(), t.values.iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let views = bytes.iter().map(|(n, s, b)| (n, TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
    let file = serialize(views, None).unwrap();
    let tokenizer = TokenizerFiles::from_bytes(None, None, None).unwrap();
    let config = serde_json::to_vec(config).unwrap();
    let files = open_bytes(&config, None, Cow::Owned(file), tokenizer).unwrap();
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    let options = LoadOptions::default();
    let model = inject(&backend, &files, &Registry::default(), 64, options, &mut |_, _| {}).unwrap();
    let engine = EngineConfig { max_context: 32, all_logits: true, ..EngineConfig::default() };
    let mut engine = Engine::new(backend, model, engine).unwrap();
    let ids: Vec<Vec<u32>> = case.prompts.iter().map(|p| p.ids.clone()).collect();
    let want = ForwardWant { logits: Pick::All, hidden: Pick::None };
    engine.forward(Batch::Ragged(&ids), &want).unwrap().into_iter().map(|f| f.logits).collect()
}

/// Compares with the golden's logits, column by column divided by `divisors` where there are any.
fn same(what: &str, case: &Case, got: &[Vec<f32>], divisors: Option<&[f64]>) {
    let want = &case.tensors["logits"];
    let scale = want.values.iter().fold(1f64, |m, v| m.max(f64::from(*v).abs()));
    for (rows, got) in case.rows().into_iter().zip(got) {
        for (i, (got, want)) in got.iter().zip(want.rows(rows)).enumerate() {
            let by = divisors.map_or(1.0, |d| d[i % want_cols(case)]);
            let off = (f64::from(*got) - f64::from(*want) / by).abs();
            assert!(off <= 2e-5 * scale, "{what}: logit {i} is off by {off}");
        }
    }
}

fn want_cols(case: &Case) -> usize {
    case.tensors["logits"].cols()
}

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
