//! Families that have no golden: a golden of a relative is rewritten into their format (names, row orders,
//! fusions, experts that share the work of one), and must give the relative's numbers.

use crate::rewritten::{Tensor, Tensors, below, golden, logits, logits_of_ranks, run, same};
use crate::torch;
use conformance::golden::Case;
use engraft_core::checkpoint::{Access, open};
use engraft_core::mem::Float;
use serde_json::{Value, json};
use std::path::Path;

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

/// LLaMA's golden in Meta's names, with Meta's parameters.
fn meta() -> (Case, Value, Tensors) {
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
    (case, params, tensors)
}

#[test]
fn llama_in_metas_format() {
    let (case, params, tensors) = meta();
    same("meta", &case, &logits(&case, &params, &tensors), None);
}

/// What `torch.save` writes of tensors.
fn saved(tensors: &Tensors) -> Vec<u8> {
    let keys: Vec<String> = (0..tensors.len()).map(|i| i.to_string()).collect();
    let shape = |t: &Tensor| -> Vec<i64> { t.shape.iter().map(|d| *d as i64).collect() };
    let strides = |t: &Tensor| -> Vec<i64> {
        (1..=t.shape.len()).map(|i| t.shape[i..].iter().product::<usize>() as i64).collect()
    };
    let dims: Vec<[Vec<i64>; 2]> = tensors.values().map(|t| [shape(t), strides(t)]).collect();
    let bytes: Vec<Vec<u8>> = tensors.values().map(|t| torch::floats(t.values.iter().copied())).collect();
    let listed = tensors.keys().zip(&keys).zip(&dims);
    let listed: Vec<torch::Tensor<'_>> =
        listed.map(|((name, key), [shape, strides])| torch::Tensor::f32(name, key, shape, strides)).collect();
    let pickle = torch::state_dict(torch::Pickler::new(), &listed).end();
    let storages: Vec<(&str, &[u8])> =
        keys.iter().map(String::as_str).zip(bytes.iter().map(Vec::as_slice)).collect();
    torch::archive(&pickle, &storages)
}

/// One of `ranks` pieces of a tensor's rows.
fn rows_of(tensor: &Tensor, rank: usize, ranks: usize) -> Tensor {
    let rows = tensor.shape[0] / ranks;
    tensor.ordered(&(rank * rows..(rank + 1) * rows).collect::<Vec<usize>>())
}

/// One of `ranks` pieces of a tensor's columns.
fn columns_of(tensor: &Tensor, rank: usize, ranks: usize) -> Tensor {
    rows_of(&tensor.transposed(), rank, ranks).transposed()
}

/// Writes a folder as Meta publishes it, of one file per rank.
fn published(folder: &Path, params: &Value, ranks: &[Tensors]) {
    std::fs::write(folder.join("params.json"), params.to_string()).unwrap();
    for (rank, tensors) in ranks.iter().enumerate() {
        std::fs::write(folder.join(format!("consolidated.{rank:02}.pth")), saved(tensors)).unwrap();
    }
}

/// One file, and several: the token table is split by columns up to LLaMA 2, by rows from 3 on.
#[test]
fn metas_folder_as_published() {
    let (case, params, tensors) = meta();
    let by_input = |n: &str| n.contains("attention.wo") || n.contains("feed_forward.w2");
    let whole = |n: &str| n.contains("norm") || n == "rope.freqs";
    for (ranks, by_rows) in [(1, true), (2, false), (2, true)] {
        let piece = |name: &str, tensor: &Tensor, rank| match name {
            n if whole(n) => tensor.clone(),
            "tok_embeddings.weight" if !by_rows => columns_of(tensor, rank, ranks),
            n if by_input(n) => columns_of(tensor, rank, ranks),
            _ => rows_of(tensor, rank, ranks),
        };
        let of_rank =
            |rank| -> Tensors { tensors.iter().map(|(n, t)| (n.clone(), piece(n, t, rank))).collect() };
        let sharded: Vec<Tensors> = (0..ranks).map(of_rank).collect();
        let folder = tempfile::tempdir().unwrap();
        published(folder.path(), &params, &sharded);
        let what = format!("{ranks} files, the token table by rows: {by_rows}");
        let files = open(folder.path(), Access::Read).unwrap_or_else(|e| panic!("{what}: {e}"));
        let head = files.source.find("output.weight").unwrap();
        assert_eq!(head.shape, tensors["output.weight"].shape, "{what}");
        same(&what, &case, &run(&case, &files), None);
    }
}

#[test]
fn metas_folder_with_a_file_missing_is_refused() {
    let (_, params, tensors) = meta();
    let folder = tempfile::tempdir().unwrap();
    published(folder.path(), &params, &[tensors.clone(), tensors.clone(), tensors]);
    std::fs::remove_file(folder.path().join("consolidated.01.pth")).unwrap();
    let e = open(folder.path(), Access::Read).err().unwrap().to_string();
    assert!(e.contains("several PyTorch files (consolidated.00.pth, consolidated.02.pth)"), "{e}");
}

/// Small numbers without a pattern that a rotation would keep.
fn odd(i: usize) -> f32 {
    ((i * 37 % 23) as f32 - 11.0) / 20.0
}

/// Heads twice as high: their own rows, for ChatGLM's rotation `in_pairs` (row i of the first half and row i
/// of the second become neighbours), then as many rows of `more`.
fn heads_with_more(tensor: &Tensor, width: usize, in_pairs: bool, more: impl Fn(usize) -> f32) -> Tensor {
    let cols = tensor.cols();
    let mut values = Vec::with_capacity(2 * tensor.values.len());
    for head in tensor.values.chunks(width * cols) {
        for row in 0..width {
            let from = if in_pairs { row / 2 + row % 2 * width / 2 } else { row };
            values.extend_from_slice(&head[from * cols..(from + 1) * cols]);
        }
        values.extend((0..width * cols).map(&more));
    }
    Tensor { shape: [&[2 * tensor.shape[0]], &tensor.shape[1..]].concat(), values }
}

/// An operand of attention with twice as many columns per head; others as they are.
fn widened(name: &str, tensor: Tensor, width: usize) -> Tensor {
    let bias = tensor.shape.len() == 1;
    if name.contains("q_proj") {
        // Wider heads divide scores by the root of twice the width.
        let mut new = heads_with_more(&tensor, width, true, |i| odd(i) / 10.0);
        let own = width * tensor.cols();
        let first = |i: usize| i % (2 * own) < own;
        new.values.iter_mut().enumerate().filter(|(i, _)| first(*i)).for_each(|(_, v)| {
            *v *= std::f32::consts::SQRT_2;
        });
        new
    } else if name.contains("k_proj") {
        heads_with_more(&tensor, width, true, |i| if bias { odd(i) } else { 0.0 })
    } else if name.contains("v_proj") {
        heads_with_more(&tensor, width, false, odd)
    } else if name.contains("self_attention.dense") {
        heads_with_more(&tensor.transposed(), width, false, |_| 0.0).transposed()
    } else {
        tensor
    }
}

/// A golden that rotates whole heads, as a ChatGLM: its heads are the first halves, which ChatGLM rotates, of
/// heads twice as wide. Behind them queries have rows of their own and keys a bias at most, so that all
/// scores of a query grow alike, which softmax takes away again, unless these columns were rotated, too;
/// values have rows that no output reads.
fn chatglm(name: &str) -> (Case, Value, Tensors) {
    let (case, config, old) = golden(name);
    let number = |field: &str| config[field].as_u64().unwrap() as usize;
    let (heads, groups, layers) =
        (number("num_attention_heads"), number("num_key_value_heads"), number("num_hidden_layers"));
    let width = number("hidden_size") / heads;
    let pairs = [
        ("model.embed_tokens", "transformer.embedding.word_embeddings"),
        ("model.layers", "transformer.encoder.layers"),
        ("model.norm", "transformer.encoder.final_layernorm"),
        ("lm_head", "transformer.output_layer"),
        ("self_attn.", "self_attention."),
        ("self_attention.o_proj", "self_attention.dense"),
        ("mlp.down_proj", "mlp.dense_4h_to_h"),
    ];
    let mut tensors = Tensors::new();
    let mut biased = false;
    for (old, tensor) in old {
        let name = pairs.iter().fold(old, |n, (from, to)| n.replace(from, to));
        let bias = tensor.shape.len() == 1;
        biased |= bias && name.contains("k_proj");
        let new = widened(&name, tensor, width);
        tensors.insert(name, new);
    }
    for layer in 0..layers {
        let block = format!("transformer.encoder.layers.{layer}.");
        for part in if biased { &["weight", "bias"][..] } else { &["weight"][..] } {
            let from = ["q", "k", "v"].map(|p| format!("{block}self_attention.{p}_proj.{part}"));
            fuse(&mut tensors, layer, from, &format!("{block}self_attention.query_key_value.{part}"));
        }
        let [gate, up] =
            ["gate", "up"].map(|p| tensors.remove(&format!("{block}mlp.{p}_proj.weight")).unwrap());
        tensors.insert(format!("{block}mlp.dense_h_to_4h.weight"), below(&[&gate, &up]));
    }
    let inv_freq = Tensor { shape: vec![width / 2], values: vec![f32::NAN; width / 2] };
    tensors.insert("transformer.rotary_pos_emb.inv_freq".into(), inv_freq);
    let config = json!({
        "model_type": "chatglm", "architectures": ["ChatGLMModel"], "hidden_size": config["hidden_size"],
        "num_layers": layers, "num_attention_heads": heads, "kv_channels": 2 * width,
        "multi_query_attention": groups < heads, "multi_query_group_num": groups,
        "ffn_hidden_size": config["intermediate_size"], "layernorm_epsilon": config["rms_norm_eps"],
        "rmsnorm": true, "post_layer_norm": true, "padded_vocab_size": config["vocab_size"],
        "vocab_size": number("vocab_size") - 3, "seq_length": 64, "add_qkv_bias": biased,
        "add_bias_linear": false, "original_rope": true,
        "rope_ratio": config["rope_theta"].as_f64().unwrap() / 10_000.0,
        "apply_residual_connection_post_layernorm": false,
    });
    (case, config, tensors)
}

/// LLaMA's golden has a base of its own (a ratio of 0.17) and as many keys as queries, Qwen 2's two groups
/// and biases.
#[test]
fn chatglm_by_llama_and_qwen2() {
    for (name, ratio, groups) in [("llama", 0.17, 4), ("qwen2", 1.0, 2)] {
        let (case, config, tensors) = chatglm(name);
        assert_eq!(
            (config["rope_ratio"].as_f64(), config["multi_query_group_num"].as_u64()),
            (Some(ratio), Some(groups))
        );
        assert_eq!(config["add_qkv_bias"], name == "qwen2");
        same(&format!("chatglm of {name}"), &case, &logits(&case, &config, &tensors), None);
    }
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

/// Models that no policy describes, under an unknown type.
#[test]
fn the_automatic_policy_runs_unknown_models() {
    let (case, mut config, tensors) = golden("llama");
    config["model_type"] = "unheard of".into();
    same("an unknown LLaMA", &case, &logits(&case, &config, &tensors), None);
    // This golden scales scores by the layer's number, which no name tells: its queries take the factor.
    let (case, mut config, mut tensors) = golden("gpt2");
    config["model_type"] = "unheard of".into();
    config["scale_attn_by_inverse_layer_idx"] = false.into();
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
            // This golden scales scores by the layer's number; Megatron does not: the queries take the
            // factor.
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

/// Scores of experts that do not depend on the token: rows of the gate that undo a LayerNorm's weight, whose
/// rows sum to 0 before its bias, so that bias alone is left.
fn gate(norm: (&Tensor, &Tensor), scores: &[f32]) -> Tensor {
    let (weight, bias) = (&norm.0.values, &norm.1.values);
    let left: f32 = bias.iter().zip(weight).map(|(b, w)| b / w).sum();
    let values = scores.iter().flat_map(|score| weight.iter().map(move |w| score / left / w)).collect();
    Tensor { shape: vec![scores.len(), weight.len()], values }
}

/// What the results of experts with these scores are multiplied by: 0 where one is not chosen.
fn weights_of(scores: &[f32], topk: usize) -> Vec<f32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let chosen = &order[..topk];
    let all: f32 = scores.iter().map(|s| s.exp()).sum();
    let total = if topk > 1 { chosen.iter().map(|e| scores[*e].exp()).sum() } else { all };
    (0..scores.len()).map(|e| if chosen.contains(&e) { scores[e].exp() / total } else { 0.0 }).collect()
}

/// Experts that all differ: each gives a multiple of what the dense part gave, such that those that are
/// chosen, weighed, add up to it; the others give something else. Whom a layer chooses differs by layer.
fn with_experts(moe: &str, experts: usize, topk: usize) -> (Case, Value, Tensors) {
    let (case, mut config, dense) = megatron(2);
    let hidden = config["hidden_size"].as_u64().unwrap() as usize;
    let odd = |n: usize| (0..n).map(odd).collect::<Vec<f32>>();
    let mut tensors = Tensors::new();
    for (name, tensor) in &dense {
        let Some((block, rest)) = name.split_once("mlp.") else {
            tensors.insert(name.clone(), tensor.clone());
            continue;
        };
        let layer: usize = block.split('.').rev().nth(1).unwrap().parse().unwrap();
        let scores: Vec<f32> = (0..experts).map(|e| ((e + layer) * 7 % 5) as f32 * 0.4 - 0.5).collect();
        let weights = weights_of(&scores, topk);
        for (e, weight) in weights.iter().enumerate() {
            let expert = format!("{block}mlp.deepspeed_moe.experts.deepspeed_experts.{e}.{rest}");
            let mut tensor = tensor.clone();
            if *weight == 0.0 {
                tensor.values.iter_mut().for_each(|v| *v = 3.0 - 2.0 * *v);
            } else if rest.starts_with("dense_4h_to_h") {
                // Of those that are chosen, one after the other gives more.
                let place = weights[..e].iter().filter(|w| **w > 0.0).count() + 1;
                let share = place as f32 / (topk * (topk + 1) / 2) as f32;
                tensor.values.iter_mut().for_each(|v| *v *= share / weight);
            }
            tensors.insert(expert, tensor);
        }
        let norm = |part: &str| &dense[&format!("{block}post_attention_layernorm.{part}")];
        let gate = gate((norm("weight"), norm("bias")), &scores);
        tensors.insert(format!("{block}mlp.deepspeed_moe.gate.wg.weight"), gate);
        if moe == "residual" {
            tensors.insert(format!("{block}mlp.mlp.{rest}"), tensor.clone());
            let weight = Tensor { shape: vec![2, hidden], values: odd(2 * hidden) };
            tensors.insert(format!("{block}mlp.coefficient.weight"), weight);
            let bias = Tensor { shape: vec![2], values: vec![0.3, -0.2] };
            tensors.insert(format!("{block}mlp.coefficient.bias"), bias);
        }
    }
    config["num_experts"] = experts.into();
    config["moe_type"] = moe.into();
    config["topk"] = topk.into();
    (case, config, tensors)
}

const EXPERTS: [(&str, usize, usize); 6] = [
    ("standard", 1, 1),
    ("standard", 3, 1),
    ("standard", 3, 2),
    ("standard", 5, 3),
    ("residual", 4, 2),
    ("residual", 3, 1),
];

#[test]
fn megatron_with_experts() {
    for (moe, experts, topk) in EXPERTS {
        let (case, config, tensors) = with_experts(moe, experts, topk);
        same(&format!("{moe}, {topk} of {experts} experts"), &case, &logits(&case, &config, &tensors), None);
    }
}

/// Biases of experts are added to whole sums, however experts are shared: the bits of one rank.
#[test]
fn ranks_share_experts_with_biases() {
    for (moe, experts, topk) in EXPERTS {
        let (case, config, tensors) = with_experts(moe, experts, topk);
        for dtype in [Float::F32, Float::Bf16] {
            let of = |ranks| {
                let rows = logits_of_ranks(&case, &config, &tensors, ranks, dtype);
                rows.iter().map(|row| row.iter().map(|v| v.to_bits()).collect()).collect::<Vec<Vec<u32>>>()
            };
            let one = of((1, None));
            for (world, ep) in [(2, None), (2, Some(1)), (4, Some(2)), (8, Some(1)), (8, Some(4))] {
                let got = of((world, ep));
                let what = format!("{moe}, {topk} of {experts}, {dtype}, {world} ranks, ep {ep:?}");
                assert!(got == one, "{what}: {}", sample::difference(&got, &one));
            }
        }
    }
}

/// An index that may choose every key changes no bit: the model is the one without it. One that may not does.
#[test]
fn an_index_that_chooses_every_key_changes_nothing() {
    let (case, mut config, mut tensors) = golden("deepseek_v32");
    let bits = |config: &Value, tensors: &Tensors| {
        let rows = logits(&case, config, tensors);
        rows.into_iter().flatten().map(f32::to_bits).collect::<Vec<_>>()
    };
    let few = bits(&config, &tensors);
    config["index_topk"] = json!(1000);
    let all = bits(&config, &tensors);
    let fields = config.as_object_mut().unwrap();
    fields.retain(|field, _| !field.starts_with("index_") && field != "layer_types");
    config["model_type"] = json!("deepseek_v3");
    config["architectures"] = json!(["DeepseekV3ForCausalLM"]);
    tensors.retain(|name, _| !name.contains(".indexer."));
    let plain = bits(&config, &tensors);
    assert!(all == plain, "an index that chooses every key: {}", sample::difference(&all, &plain));
    assert!(all != few, "an index that chooses four keys");
}
