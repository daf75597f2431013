//! `config.json` in the words of GGUF's metadata: what `config.rs` reads, the other way round. Of LLaMA and
//! families like it.

use super::words::{
    COUNTS, EXPERTS, EXPERTS_NORM, HEAD, KV_HEADS, NUMBERS, ROTATED, SCALING, SCALING_FACTOR, VOCABULARY,
    WRITTEN, YARN, architecture, yarn_factor,
};
use super::{Metadata, Value};
use crate::{Error, Result};
use serde_json::Value as Json;

/// The metadata of a model that `config` describes in the fields that [`config`](super::config) gives:
/// `general.architecture` and the architecture's own keys, integers as `u32`, numbers as `f32`.
///
/// # Errors
/// `Config` for a `model_type` whose files are not written here, and for an integer beyond 32 bits.
pub fn describe(config: &Json) -> Result<Metadata> {
    let model = config.get("model_type").and_then(Json::as_str).unwrap_or_default();
    let arch = written(model)?;
    let mut to = Description { config, arch, out: Metadata::default() };
    to.out.insert("general.architecture".into(), Value::String(arch.into()));
    to.out.insert("general.type".into(), Value::String("model".into()));
    if let Some(name) = config.get("_name_or_path").and_then(Json::as_str).filter(|name| !name.is_empty()) {
        to.out.insert("general.name".into(), Value::String(name.into()));
    }
    to.counts(config, COUNTS)?;
    to.counts(config, EXPERTS)?;
    to.counts(config, &[KV_HEADS, VOCABULARY, HEAD[0], (HEAD[1].0, HEAD[0].1), (ROTATED, HEAD[0].1)])?;
    to.counts(config, &[HEAD[1]])?;
    to.numbers(config, NUMBERS);
    if let Some(on) = config.get(EXPERTS_NORM.1).and_then(Json::as_bool) {
        to.put(EXPERTS_NORM.0, Value::Bool(on));
    }
    to.scaling()?;
    Ok(to.out)
}

/// The architecture in whose files a model of this type is written.
///
/// # Errors
/// `Config` for another type.
pub(crate) fn written(model_type: &str) -> Result<&str> {
    let arch = architecture(model_type);
    match WRITTEN.contains(&arch) {
        true => Ok(arch),
        false => {
            let allowed = format!("a model of GGUF's architectures {}", WRITTEN.join(", "));
            Err(Error::config("model_type", format!("\"{model_type}\""), allowed))
        }
    }
}

/// Metadata being filled.
struct Description<'c> {
    config: &'c Json,
    arch: &'c str,
    out: Metadata,
}

impl Description<'_> {
    fn put(&mut self, key: &str, value: Value) {
        self.out.insert(format!("{}.{key}", self.arch), value);
    }

    fn counts(&mut self, from: &Json, words: &[(&str, &str)]) -> Result<()> {
        for (key, name) in words {
            let Some(n) = from.get(name).and_then(Json::as_u64) else { continue };
            let n = u32::try_from(n).map_err(|_| Error::config(*name, n, format!("at most {}", u32::MAX)))?;
            self.put(key, Value::U32(n));
        }
        Ok(())
    }

    fn numbers(&mut self, from: &Json, words: &[(&str, &str)]) {
        for (key, name) in words {
            if let Some(n) = from.get(name).and_then(Json::as_f64) {
                self.put(key, Value::F32(n as f32));
            }
        }
    }

    /// `rope_scaling`, of the types that metadata has.
    fn scaling(&mut self) -> Result<()> {
        let Some(scaling) = self.config.get("rope_scaling").filter(|scaling| scaling.is_object()) else {
            return Ok(());
        };
        let [kind, factor, original] = SCALING;
        let name = scaling.get(kind.1).and_then(Json::as_str).unwrap_or_default();
        if !["linear", "yarn"].contains(&name) {
            return Err(Error::config(
                "rope_scaling.rope_type",
                format!("\"{name}\""),
                "linear, yarn, llama3",
            ));
        }
        self.put(kind.0, Value::String(name.into()));
        self.numbers(scaling, &[factor]);
        self.counts(scaling, &[original])?;
        self.numbers(scaling, YARN);
        let number = |name: &str| scaling.get(name).and_then(Json::as_f64);
        if let (Some(whole), Some(by)) = (number(SCALING_FACTOR.1), number(factor.1)) {
            let extra = whole / yarn_factor(name, by);
            // The usual factor is left out, as llama.cpp does.
            if (extra - 1.0).abs() > 1e-9 {
                self.put(SCALING_FACTOR.0, Value::F32(extra as f32));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::config;
    use super::*;
    use serde_json::json;

    /// What is written is what is read: the reader's own fields come back.
    #[test]
    fn what_the_reader_gives_comes_back() {
        let base = json!({
            "model_type": "llama", "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 160,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 99,
            "max_position_embeddings": 128, "rms_norm_eps": 0.5, "rope_theta": 10000.0,
        });
        let scaled = [
            json!(null),
            json!({"rope_type": "linear", "factor": 4.0}),
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                "beta_fast": 16.0, "beta_slow": 2.0}),
        ];
        for (model, scaling) in
            ["llama", "qwen2", "qwen3", "qwen2_moe"].into_iter().zip(scaled.iter().cycle())
        {
            let mut said = base.clone();
            (said["model_type"], said["rope_scaling"]) = (json!(model), scaling.clone());
            let metadata = describe(&said).unwrap();
            let read = config(&metadata, []).unwrap();
            for (field, value) in said.as_object().unwrap() {
                if !value.is_null() {
                    assert_eq!(&read[field], value, "{model}: {field}");
                }
            }
        }
        let mut mistral = base.clone();
        mistral["model_type"] = json!("mistral");
        assert_eq!(describe(&mistral).unwrap().str("general.architecture").unwrap(), Some("llama"));
    }

    #[test]
    fn what_metadata_has_no_word_for_is_refused_by_name() {
        let error = describe(&json!({"model_type": "bloom"})).unwrap_err().to_string();
        assert!(error.contains("bloom") && error.contains("qwen3moe"), "{error}");
        let far = json!({"model_type": "llama", "vocab_size": 1u64 << 40});
        let error = describe(&far).unwrap_err().to_string();
        assert!(error.contains("vocab_size") && error.contains("4294967295"), "{error}");
        let long = json!({"model_type": "llama", "rope_scaling": {"rope_type": "longrope"}});
        let error = describe(&long).unwrap_err().to_string();
        assert!(error.contains("longrope") && error.contains("yarn"), "{error}");
    }
}
