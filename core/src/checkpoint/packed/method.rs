//! What a configuration says about how weights are packed.

use crate::{Error, Result};
use serde_json::Value;

/// Where a configuration says it; the second is what older files of compressed-tensors have.
pub(super) const FIELDS: [&str; 2] = ["quantization_config", "compression_config"];

/// A way of packing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// GPTQ: codes along the inputs, zero points along the outputs.
    Gptq {
        /// Bits of a code: 2, 4 or 8.
        bits: u32,
        /// Whether zero points are stored minus one (all but `gptq_v2`).
        minus_one: bool,
    },
    /// AWQ's `gemm` layout: four bits along the outputs, out of order.
    Awq,
    /// compressed-tensors: what a tensor is, its companions say.
    CompressedTensors,
    /// Eight-bit floats with factors of blocks, rows or the whole tensor.
    Fp8,
    /// bitsandbytes' tables of 16 values.
    Bitsandbytes,
}

impl Method {
    /// The name in configurations.
    pub(super) fn name(self) -> &'static str {
        match self {
            Method::Gptq { .. } => "gptq",
            Method::Awq => "awq",
            Method::CompressedTensors => "compressed-tensors",
            Method::Fp8 => "fp8",
            Method::Bitsandbytes => "bitsandbytes",
        }
    }
}

/// What a configuration says of its packed tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    /// How they are packed.
    pub(super) method: Method,
    /// What else it asks for, that is not done; one sentence each.
    pub(super) not_done: Vec<String>,
}

/// Reads a configuration; none where it says nothing about packed weights.
///
/// # Errors
/// `Config`, naming the field, for a method or a variant that cannot be read.
pub(super) fn read(config: &Value) -> Result<Option<Said>> {
    let found = FIELDS.iter().find_map(|field| Some((*field, config.get(field)?.as_object()?)));
    let Some((field, said)) = found.filter(|(_, said)| !said.is_empty()) else { return Ok(None) };
    let get = |name: &str| said.get(name).filter(|value| !value.is_null());
    let text = |name: &str| get(name).and_then(Value::as_str);
    let refuse = |name: &str, allowed: &str| {
        let got = get(name).map_or_else(|| "missing".to_string(), Value::to_string);
        Err(Error::config(format!("{field}.{name}"), got, allowed))
    };
    let method = match text("quant_method") {
        Some("gptq") => {
            let minus_one = match text("checkpoint_format") {
                None | Some("gptq") => true,
                Some("gptq_v2") => false,
                Some(_) => return refuse("checkpoint_format", "gptq, gptq_v2"),
            };
            match get("bits").and_then(Value::as_u64) {
                Some(bits @ (2 | 4 | 8)) => Method::Gptq { bits: bits as u32, minus_one },
                _ => return refuse("bits", "2, 4, 8"),
            }
        }
        Some("awq") => match (text("version"), get("bits").and_then(Value::as_u64)) {
            (None | Some("gemm" | "GEMM"), Some(4)) => Method::Awq,
            (_, Some(4)) => return refuse("version", "gemm"),
            _ => return refuse("bits", "4"),
        },
        Some("compressed-tensors") => {
            let sparsity = get("sparsity_config").and_then(|s| s.get("format")).and_then(Value::as_str);
            if sparsity.is_some_and(|format| format != "dense") {
                return refuse("sparsity_config", "none, or the format dense");
            }
            Method::CompressedTensors
        }
        Some("fp8" | "fbgemm_fp8") => Method::Fp8,
        Some("bitsandbytes") if get("load_in_8bit") != Some(&Value::Bool(true)) => Method::Bitsandbytes,
        Some("bitsandbytes") => return refuse("load_in_8bit", "false: of bitsandbytes, four bits are read"),
        _ => return refuse("quant_method", "gptq, awq, compressed-tensors, fp8, bitsandbytes"),
    };
    Ok(Some(Said { method, not_done: not_done(method, said) }))
}

/// What the configuration asks for beyond packed weights.
fn not_done(method: Method, said: &serde_json::Map<String, Value>) -> Vec<String> {
    let there = |value: Option<&Value>| value.is_some_and(|value| !value.is_null());
    let of_groups = said.get("config_groups").and_then(Value::as_object);
    let inputs = of_groups.is_some_and(|all| all.values().any(|one| there(one.get("input_activations"))));
    let mut not_done = Vec::new();
    if inputs || (method == Method::Fp8 && there(said.get("activation_scheme"))) {
        not_done.push("activations are not quantized, though the checkpoint was made for it".into());
    }
    if there(said.get("kv_cache_scheme")) {
        not_done.push("keys and values are not quantized, though the checkpoint was made for it".into());
    }
    not_done
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(said: Value) -> Result<Option<Said>> {
        read(&json!({"model_type": "llama", "quantization_config": said}))
    }

    #[test]
    fn every_method_is_told_by_its_fields() {
        for (said, want) in [
            (json!({"quant_method": "gptq", "bits": 4}), Method::Gptq { bits: 4, minus_one: true }),
            (
                json!({"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}),
                Method::Gptq { bits: 8, minus_one: false },
            ),
            (json!({"quant_method": "awq", "bits": 4, "version": "GEMM"}), Method::Awq),
            (
                json!({"quant_method": "compressed-tensors", "kv_cache_scheme": null}),
                Method::CompressedTensors,
            ),
            (json!({"quant_method": "fp8", "weight_block_size": [128, 128]}), Method::Fp8),
            (json!({"quant_method": "bitsandbytes", "load_in_8bit": false}), Method::Bitsandbytes),
        ] {
            let got = of(said).unwrap().unwrap();
            assert_eq!((got.method, got.not_done.len()), (want, 0));
        }
        assert_eq!(read(&json!({"model_type": "llama"})).unwrap(), None);
        let older = json!({"compression_config": {"quant_method": "compressed-tensors"}});
        assert_eq!(read(&older).unwrap().unwrap().method, Method::CompressedTensors);
    }

    #[test]
    fn what_is_not_done_is_said() {
        let scheme = json!({"num_bits": 8, "dynamic": true});
        let got = of(json!({"quant_method": "compressed-tensors", "kv_cache_scheme": scheme,
            "config_groups": {"group_0": {"input_activations": scheme}}}));
        let said = got.unwrap().unwrap().not_done;
        assert!(said[0].starts_with("activations are not") && said[1].starts_with("keys and values are not"));
        let fp8 = of(json!({"quant_method": "fp8", "activation_scheme": "dynamic"})).unwrap().unwrap();
        assert_eq!(fp8.not_done.len(), 1);
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        for (said, field, value) in [
            (json!({"quant_method": "hqq"}), "quant_method", "\"hqq\""),
            (json!({"bits": 4}), "quant_method", "missing"),
            (json!({"quant_method": "gptq", "bits": 3}), "bits", "3"),
            (json!({"quant_method": "gptq"}), "bits", "missing"),
            (
                json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
                "checkpoint_format",
                "marlin",
            ),
            (json!({"quant_method": "awq", "bits": 4, "version": "gemv"}), "version", "gemv"),
            (json!({"quant_method": "awq", "bits": 8}), "bits", "8"),
            (json!({"quant_method": "bitsandbytes", "load_in_8bit": true}), "load_in_8bit", "true"),
            (
                json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24"}}),
                "sparsity_config",
                "sparse-24",
            ),
        ] {
            let error = of(said).unwrap_err().to_string();
            assert!(
                error.contains(&format!("quantization_config.{field}")) && error.contains(value),
                "{error}"
            );
        }
    }
}
