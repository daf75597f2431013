//! InternLM 2 and 3, which have no golden, by goldens of relatives; and what the automatic policy makes of a
//! fused q, k, v under an unknown type.

use crate::rewritten::{Tensor, Tensors, below, files_of, golden, logits, same};
use conformance::golden::Case;
use engraft_core::inject::describe;
use engraft_core::policy::Registry;
use serde_json::{Value, json};

/// Rows of q, k and v in one tensor: for every key/value head its queries, its key, its value.
fn grouped(parts: [&Tensor; 3], (heads, groups, width): (usize, usize, usize)) -> Tensor {
    let each = heads / groups;
    let rows = |of: &Tensor, first: usize, count: usize| {
        of.ordered(&(first * width..(first + count) * width).collect::<Vec<_>>())
    };
    let of_group = |g: usize| [rows(parts[0], g * each, each), rows(parts[1], g, 1), rows(parts[2], g, 1)];
    let pieces: Vec<Tensor> = (0..groups).flat_map(of_group).collect();
    below(&pieces.iter().collect::<Vec<_>>())
}

/// Zeros where a golden has no bias of the attention's output.
fn zero_bias(tensors: &mut Tensors, layer: usize, columns: usize) {
    let zeros = Tensor { shape: vec![columns], values: vec![0.0; columns] };
    tensors.entry(format!("model.layers.{layer}.self_attn.o_proj.bias")).or_insert(zeros);
}

/// A golden in InternLM 2's names and layout, its configuration with the fields that are published.
fn internlm2(name: &str) -> (Case, Value, Tensors) {
    let (case, own, mut tensors) = golden(name);
    let number = |field: &str| own[field].as_u64().unwrap() as usize;
    let (hidden, heads) = (number("hidden_size"), number("num_attention_heads"));
    let sizes = (heads, number("num_key_value_heads"), hidden / heads);
    let mut biased = false;
    for layer in 0..number("num_hidden_layers") {
        for part in ["weight", "bias"] {
            let source = |p: &str| format!("model.layers.{layer}.self_attn.{p}_proj.{part}");
            let [Some(q), Some(k), Some(v)] = ["q", "k", "v"].map(|p| tensors.remove(&source(p))) else {
                continue;
            };
            let fused = grouped([&q, &k, &v], sizes);
            tensors.insert(format!("model.layers.{layer}.attention.wqkv.{part}"), fused);
            if part == "bias" {
                biased = true;
                zero_bias(&mut tensors, layer, hidden);
            }
        }
    }
    let pairs = [
        ("embed_tokens", "tok_embeddings"),
        ("self_attn.o_proj", "attention.wo"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("lm_head", "output"),
    ];
    let renamed = |name: String| pairs.iter().fold(name, |n, (from, to)| n.replace(from, to));
    let tensors = tensors.into_iter().map(|(n, t)| (renamed(n), t)).collect();
    let theta = own.pointer("/rope_parameters/rope_theta").unwrap_or(&own["rope_theta"]);
    let dynamic = json!({"type": "dynamic", "factor": 2.0});
    let scaling = if own["rope_scaling"].is_object() { own["rope_scaling"].clone() } else { dynamic };
    let config = json!({
        "architectures": ["InternLM2ForCausalLM"], "attn_implementation": "eager", "bias": biased,
        "hidden_act": own["hidden_act"], "hidden_size": hidden, "intermediate_size": own["intermediate_size"],
        "max_position_embeddings": own["max_position_embeddings"], "model_type": "internlm2",
        "num_attention_heads": heads, "num_hidden_layers": own["num_hidden_layers"],
        "num_key_value_heads": own["num_key_value_heads"], "pretraining_tp": 1,
        "rms_norm_eps": own["rms_norm_eps"], "rope_scaling": scaling, "rope_theta": theta,
        "tie_word_embeddings": false, "vocab_size": own["vocab_size"],
    });
    (case, config, tensors)
}

/// Groups of three and of two queries, stretched positions, biases of q, k and v alone and of all, as many
/// keys as queries.
#[test]
fn internlm2_by_goldens_of_relatives() {
    for (name, each, biased) in [
        ("llama_sharded", 3, false),
        ("llama_linear", 4, false),
        ("qwen2", 2, true),
        ("internlm_like", 1, true),
    ] {
        let (case, config, tensors) = internlm2(name);
        let number = |field: &str| config[field].as_u64().unwrap();
        assert_eq!(number("num_attention_heads") / number("num_key_value_heads"), each, "{name}");
        assert_eq!(config["bias"], biased, "{name}");
        same(&format!("internlm2 of {name}"), &case, &logits(&case, &config, &tensors), None);
    }
}

/// Biases of q, k and v by one switch, all others by another one.
#[test]
fn internlm3_by_goldens_of_relatives() {
    for (name, qkv, others) in [("qwen2", true, false), ("llama_head_dim", false, true)] {
        let (case, mut config, mut tensors) = golden(name);
        for layer in (0..config["num_hidden_layers"].as_u64().unwrap()).filter(|_| others) {
            zero_bias(&mut tensors, layer as usize, config["hidden_size"].as_u64().unwrap() as usize);
        }
        let fields = config.as_object_mut().unwrap();
        fields.retain(|field, _| !["attention_bias", "mlp_bias"].contains(&field.as_str()));
        fields.insert("model_type".into(), "internlm3".into());
        fields.insert("qkv_bias".into(), qkv.into());
        fields.insert("bias".into(), others.into());
        fields.insert("rope_scaling".into(), json!({"rope_type": "dynamic", "factor": 6.0}));
        same(&format!("internlm3 of {name}"), &case, &logits(&case, &config, &tensors), None);
    }
}

/// Under an unknown type nothing in the files distinguishes that layout from a concatenation: the model is
/// refused by the tensor's name until a user takes the risk, which the plan then names.
#[test]
fn a_fused_tensor_of_an_unknown_type_is_refused_by_name() {
    for name in ["llama_sharded", "internlm_like"] {
        let (_, mut config, tensors) = internlm2(name);
        config["model_type"] = "unheard of".into();
        config["architectures"] = json!(["UnheardOfForCausalLM"]);
        config["rope_scaling"] = Value::Null;
        let files = files_of(&config, &tensors);
        let refused = describe(&files, &Registry::default()).map(drop).unwrap_err().to_string();
        let expected = "`attention.wqkv` is \"q, k and v in one tensor\"";
        assert!(refused.contains(expected) && refused.contains("accept_unknown"), "{name}: {refused}");
        let mut registry = Registry::default();
        registry.accept_unknown(["attention.wqkv".to_string()]);
        let assumed = describe(&files, &registry).unwrap().0.assumed.join("\n");
        assert!(assumed.contains("`attention.wqkv` holds all of q, of k, of v"), "{name}: {assumed}");
    }
}
