//! What a configuration says about how weights are packed.

use crate::{Error, Result};
use serde_json::{Map, Value};

/// Where a configuration says it; the second is what older files of compressed-tensors have, the third what
/// models that see images may have.
pub(super) const FIELDS: [&str; 3] =
    ["quantization_config", "compression_config", "text_config.quantization_config"];

/// The formats of compressed-tensors that are read: their tensors say which of them they are in.
const FORMATS: [&str; 6] = [
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "dense",
];

/// What a configuration has in one of these places.
pub(super) fn at<'a>(config: &'a Value, place: &str) -> Option<&'a Value> {
    let there = place.split('.').try_fold(config, |object, field| object.get(field));
    there.filter(|value| !value.is_null())
}

/// Takes what a configuration says of packing out of it.
pub(super) fn forget(config: &mut Value) {
    for place in FIELDS {
        let (object, field) =
            place.split_once('.').map_or((None, place), |(object, field)| (Some(object), field));
        let fields = match object {
            Some(object) => config.get_mut(object),
            None => Some(&mut *config),
        };
        if let Some(fields) = fields.and_then(Value::as_object_mut) {
            fields.remove(field);
        }
    }
}

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
    /// Four-bit floats in blocks of 32 with a power of two each, of all experts.
    Mxfp4,
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
            Method::Mxfp4 => "mxfp4",
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

/// An object of a configuration, with its place there.
struct Fields<'a> {
    place: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name).and_then(Value::as_str)
    }

    fn refuse<T>(&self, name: &str, allowed: &str) -> Result<T> {
        let got = self.get(name).map_or_else(|| "missing".to_string(), Value::to_string);
        Err(Error::config(format!("{}.{name}", self.place), got, allowed))
    }

    /// The bits of a code, where it is one of `allowed`.
    fn bits(&self, allowed: &[u32]) -> Result<u32> {
        let bits = self.get("bits").and_then(Value::as_u64);
        match allowed.iter().find(|n| bits == Some(u64::from(**n))) {
            Some(bits) => Ok(*bits),
            None => self.refuse("bits", &allowed.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
        }
    }
}

/// Reads a configuration; none where it says nothing about packed weights.
///
/// # Errors
/// `Config`, naming the field, for a method or a variant that cannot be read.
pub(super) fn read(config: &Value) -> Result<Option<Said>> {
    let found = FIELDS.iter().find_map(|place| Some((*place, at(config, place)?)));
    let Some((place, value)) = found else { return Ok(None) };
    let Some(map) = value.as_object() else { return Err(Error::config(place, value, "an object, or null")) };
    if map.is_empty() {
        return Ok(None);
    }
    let said = Fields { place, map };
    let method = match said.text("quant_method") {
        Some("gptq") => {
            let minus_one = match said.text("checkpoint_format") {
                None | Some("gptq") => true,
                Some("gptq_v2") => false,
                Some(_) => return said.refuse("checkpoint_format", "gptq, gptq_v2"),
            };
            Method::Gptq { bits: said.bits(&[2, 4, 8])?, minus_one }
        }
        Some("auto-round" | "intel/auto-round" | "auto_round") => auto_round(&said)?,
        Some("awq") => awq(&said)?,
        Some("compressed-tensors") => compressed(&said)?,
        Some("fp8" | "fbgemm_fp8") => Method::Fp8,
        Some("mxfp4") => Method::Mxfp4,
        Some("bitsandbytes") if said.get("load_in_8bit") != Some(&Value::Bool(true)) => Method::Bitsandbytes,
        Some("bitsandbytes") => {
            return said.refuse("load_in_8bit", "false: of bitsandbytes, four bits are read");
        }
        _ => {
            let known = "gptq, awq, auto-round, compressed-tensors, fp8, mxfp4, bitsandbytes";
            return said.refuse("quant_method", known);
        }
    };
    Ok(Some(Said { method, not_done: not_done(method, map) }))
}

/// GPTQ's or AWQ's tensors by another writer.
fn auto_round(said: &Fields<'_>) -> Result<Method> {
    let packing = said.text("packing_format").or(said.text("backend")).unwrap_or("auto_gptq");
    if packing.contains("awq") {
        return said.bits(&[4]).map(|_| Method::Awq);
    }
    match packing.contains("gptq") {
        true => Ok(Method::Gptq { bits: said.bits(&[2, 4, 8])?, minus_one: true }),
        false => said.refuse("packing_format", "one of gptq's or awq's"),
    }
}

fn awq(said: &Fields<'_>) -> Result<Method> {
    said.bits(&[4])?;
    let layout = ["version", "checkpoint_format", "format"].into_iter().find(|name| said.get(name).is_some());
    match layout.map(|name| (name, said.text(name))) {
        None | Some((_, Some("gemm" | "GEMM"))) => Ok(Method::Awq),
        Some((name, _)) => said.refuse(name, "gemm"),
    }
}

fn compressed(said: &Fields<'_>) -> Result<Method> {
    let sparsity = said.get("sparsity_config").and_then(|s| s.get("format")).and_then(Value::as_str);
    if sparsity.is_some_and(|format| format != "dense") {
        return said.refuse("sparsity_config", "none, or the format dense");
    }
    let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    if said.get("transform_config").is_some_and(|value| !is_empty(value)) {
        return said.refuse("transform_config", "none: rotations of activations are not there");
    }
    let groups = said.get("config_groups").and_then(Value::as_object);
    let of_groups = groups
        .into_iter()
        .flatten()
        .map(|(name, group)| (format!("config_groups.{name}.format"), group.get("format")));
    let whole = said.get("format").filter(|format| format.as_str() != Some("mixed-precision"));
    for (field, format) in [("format".to_string(), whole)].into_iter().chain(of_groups) {
        let Some(format) = format.filter(|format| !format.is_null()) else { continue };
        if !format.as_str().is_some_and(|format| FORMATS.contains(&format)) {
            return Err(Error::config(format!("{}.{field}", said.place), format, FORMATS.join(", ")));
        }
    }
    let bits = |group: &Value| group.pointer("/weights/num_bits").and_then(Value::as_u64);
    if groups.is_some_and(|all| all.values().filter_map(bits).any(|bits| !matches!(bits, 4 | 8))) {
        return said.refuse("config_groups", "groups whose weights have a num_bits of 4 or 8");
    }
    Ok(Method::CompressedTensors)
}

/// What the configuration asks for beyond packed weights.
fn not_done(method: Method, said: &Map<String, Value>) -> Vec<String> {
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
    fn every_method_has_fields_of_its_own() {
        for (said, want) in [
            (json!({"quant_method": "gptq", "bits": 4}), Method::Gptq { bits: 4, minus_one: true }),
            (
                json!({"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}),
                Method::Gptq { bits: 8, minus_one: false },
            ),
            (json!({"quant_method": "awq", "bits": 4, "version": "GEMM"}), Method::Awq),
            (json!({"quant_method": "auto-round", "bits": 4}), Method::Gptq { bits: 4, minus_one: true }),
            (
                json!({"quant_method": "intel/auto-round", "bits": 4, "packing_format": "auto_round:auto_awq"}),
                Method::Awq,
            ),
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
        // As Kimi K2.5 is published.
        let mut of_text = json!({"model_type": "any", "text_config": {"model_type": "any",
            "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"format": null, "weights": {"num_bits": 4}}}}}});
        assert_eq!(read(&of_text).unwrap().unwrap().method, Method::CompressedTensors);
        forget(&mut of_text);
        assert_eq!(of_text, json!({"model_type": "any", "text_config": {"model_type": "any"}}));
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
        let seven = json!({"weights": {"num_bits": 7}});
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
            (json!({"quant_method": "awq", "bits": 4, "format": "gemv_fast"}), "format", "gemv_fast"),
            (json!({"quant_method": "auto-round", "bits": 3}), "bits", "3"),
            (
                json!({"quant_method": "compressed-tensors", "transform_config": {"config_groups": 1}}),
                "transform_config",
                "config_groups",
            ),
            (
                json!({"quant_method": "compressed-tensors", "config_groups": {"a": seven}}),
                "config_groups",
                "7",
            ),
            (json!({"quant_method": "bitsandbytes", "load_in_8bit": true}), "load_in_8bit", "true"),
            (
                json!({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}),
                "format",
                "\"mxfp4-pack-quantized\"; allowed: pack-quantized, int-quantized",
            ),
            (
                json!({"quant_method": "compressed-tensors", "format": "mixed-precision",
                    "config_groups": {"group_1": {"format": "mxfp8-quantized", "weights": {"num_bits": 8}}}}),
                "config_groups.group_1.format",
                "\"mxfp8-quantized\"",
            ),
            (json!({"quant_method": "compressed-tensors", "format": 4}), "format", "is 4"),
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
