//! Granite 4 with attention in every block is Granite in other names, dense and with experts next to a dense
//! part: the goldens of Granite 3, rewritten.

use super::rewritten::{Tensor, Tensors, below, golden, logits, same};
use serde_json::{Value, json};

/// A configuration as Granite 4's files have it; a dense part of so many columns.
fn of_granite_4(mut config: Value, shared: usize) -> Value {
    config["model_type"] = json!("granitemoehybrid");
    config["architectures"] = json!(["GraniteMoeHybridForCausalLM"]);
    config["shared_intermediate_size"] = json!(shared);
    config["position_embedding_type"] = json!("rope");
    let layers = config["num_hidden_layers"].as_u64().unwrap() as usize;
    config["layer_types"] = json!(vec!["attention"; layers]);
    config
}

#[test]
fn the_dense_part_is_granites_own() {
    let (case, config, tensors) = golden("granite");
    let inner = config["intermediate_size"].as_u64().unwrap() as usize;
    let mut config = of_granite_4(config, inner);
    config["num_local_experts"] = json!(0);
    config["intermediate_size"] = json!(inner + 1);
    let mut renamed = Tensors::new();
    for (name, tensor) in &tensors {
        let (name, tensor) = match name.strip_suffix("mlp.gate_proj.weight") {
            Some(block) => {
                let up = &tensors[&format!("{block}mlp.up_proj.weight")];
                (format!("{block}shared_mlp.input_linear.weight"), below(&[tensor, up]))
            }
            None if name.contains("mlp.up_proj") => continue,
            None => (name.replace("mlp.down_proj", "shared_mlp.output_linear"), tensor.clone()),
        };
        renamed.insert(name, tensor);
    }
    same("dense", &case, &logits(&case, &config, &renamed), None);
}

/// A dense part that gives nothing changes nothing about experts; one that gives something does.
#[test]
fn experts_stand_next_to_the_dense_part() {
    let (case, config, mut tensors) = golden("granitemoe");
    let (hidden, layers) =
        (config["hidden_size"].as_u64().unwrap() as usize, config["num_hidden_layers"].as_u64());
    let config = of_granite_4(config, 7);
    let filled = |rows: usize, cols: usize, value: f32| Tensor {
        shape: vec![rows, cols],
        values: vec![value; rows * cols],
    };
    let mut with = |value: f32| {
        for layer in 0..layers.unwrap() {
            let part = format!("model.layers.{layer}.shared_mlp");
            tensors.insert(format!("{part}.input_linear.weight"), filled(14, hidden, 0.5));
            tensors.insert(format!("{part}.output_linear.weight"), filled(hidden, 7, value));
        }
        logits(&case, &config, &tensors)
    };
    let (none, some) = (with(0.0), with(0.5));
    same("experts", &case, &none, None);
    assert!(none != some, "the dense part is not read");
}
