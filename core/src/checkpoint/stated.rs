//! A model of which only the configuration is there: its tensors have names, shapes and types, and no bytes.

use super::packed::StatedPacking;
use super::{Layout, ModelFiles, Source, TensorInfo, TokenizerFiles, json};
use crate::mem::Stored;
use crate::{Error, Result};
use serde_json::Value;
use std::borrow::Cow;
use std::path::Path;

/// Where a configuration says in which type weights are stored; the first is newer.
const TYPES: [&str; 2] = ["dtype", "torch_dtype"];
/// Parts of a configuration that say it, where the whole does not.
const PARTS: [&str; 2] = ["text_config", "llm_config"];

/// The element types of a model's tensors, as its configuration says.
#[derive(Debug, Clone)]
pub(crate) struct StatedTypes {
    plain: Stored,
    packing: Option<StatedPacking>,
    notes: Vec<String>,
}

impl StatedTypes {
    /// Reads them, and takes what is said of packing out of the configuration.
    ///
    /// # Errors
    /// `Config` for a type that no matrix is multiplied in, and for packing whose formats it does not say.
    pub(crate) fn take(config: &mut Value) -> Result<Self> {
        let packing = StatedPacking::take(config)?;
        let of = |config: &Value| {
            let there = |field: &&'static str| config.get(field).filter(|value| !value.is_null());
            TYPES.iter().find_map(|field| Some((*field, there(field)?.clone())))
        };
        let of_parts = || PARTS.iter().find_map(|part| of(config.get(part)?));
        let said = of(config).or_else(of_parts);
        let (field, value) = said.unwrap_or((TYPES[0], Value::Null));
        let name = value.as_str().map(|name| name.strip_prefix("torch.").unwrap_or(name));
        let plain = match name {
            // As the reference takes it where nothing is said.
            None if value.is_null() => Stored::F32,
            Some("float32" | "float") => Stored::F32,
            Some("float16" | "half") => Stored::F16,
            Some("bfloat16") => Stored::Bf16,
            _ => return Err(Error::config(field, &value, "float32, float16, bfloat16")),
        };
        let how = match (&packing, value.is_null()) {
            (Some(packing), _) => format!("`quantization_config` ({}) and `{field}` say", packing.name()),
            (None, false) => format!("`{field}` says"),
            (None, true) => format!("nothing says: f32, where `{field}` is missing"),
        };
        let mut notes = vec![format!(
            "sizes come from the configuration alone: no tensor was looked at, and weights are as {how}"
        )];
        notes.extend(packing.iter().flat_map(|packing| packing.notes.iter().cloned()));
        Ok(Self { plain, packing, notes })
    }

    /// The type of a tensor. `matrix`: the columns of one that is multiplied with inside a block, and whether
    /// it holds the matrices of experts.
    pub(crate) fn of(&self, name: &str, matrix: Option<(usize, bool)>) -> Stored {
        let packed = matrix.and_then(|(cols, experts)| self.packing.as_ref()?.stored(name, cols, experts));
        packed.unwrap_or(self.plain)
    }
}

/// Tensors without bytes.
#[derive(Debug)]
struct Headers {
    file: String,
    tensors: Vec<TensorInfo>,
    notes: Vec<String>,
}

impl Source for Headers {
    fn file(&self) -> &str {
        &self.file
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        Err(Error::tensor(name, format!("{} is a configuration alone, without weights", self.file)))
    }

    fn release(&self, _: &str) {}

    fn total_bytes(&self) -> u64 {
        0
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// A model of these tensors, sorted here, whose bytes nothing can read.
pub(crate) fn without_bytes(
    path: &Path,
    config: Value,
    types: StatedTypes,
    mut tensors: Vec<TensorInfo>,
) -> ModelFiles {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let source = Headers { file: path.display().to_string(), tensors, notes: types.notes };
    ModelFiles {
        path: path.to_owned(),
        layout: Layout::HuggingFace,
        config,
        generation: json::empty(),
        tokenizer: TokenizerFiles::none(),
        source: Box::new(source),
    }
}

/// A model's configuration in a file of its own; none if the file is something else, as DeepSpeed's
/// description of a checkpoint.
///
/// # Errors
/// `Error::Io` and `Error::Format` for a file of JSON that cannot be read.
pub fn read_configuration(path: &Path) -> Result<Option<Value>> {
    if path.extension().is_none_or(|end| end != "json") || !path.is_file() {
        return Ok(None);
    }
    let bytes = crate::file::whole(path, json::MAX_CONFIG as u64)?;
    let config = json::object(&path.display().to_string(), &bytes, json::MAX_CONFIG)?;
    let is = config.get("model_type").is_some_and(Value::is_string)
        || config.get("architectures").is_some_and(Value::is_array);
    Ok(is.then_some(config))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plain(mut config: Value) -> Result<Stored> {
        StatedTypes::take(&mut config).map(|types| types.of("x.weight", Some((64, false))))
    }

    #[test]
    fn the_type_is_the_configurations() {
        assert_eq!(plain(json!({"torch_dtype": "bfloat16"})).unwrap(), Stored::Bf16);
        assert_eq!(plain(json!({"dtype": "float16", "torch_dtype": "bfloat16"})).unwrap(), Stored::F16);
        assert_eq!(plain(json!({"torch_dtype": "torch.float16"})).unwrap(), Stored::F16);
        assert_eq!(plain(json!({"text_config": {"dtype": "bfloat16"}})).unwrap(), Stored::Bf16);
        assert_eq!(plain(json!({})).unwrap(), Stored::F32);
        let text = plain(json!({"torch_dtype": "complex64"})).unwrap_err().to_string();
        assert!(
            text.contains("torch_dtype") && text.contains("complex64") && text.contains("bfloat16"),
            "{text}"
        );
    }

    #[test]
    fn tensors_have_no_bytes() {
        let types = StatedTypes::take(&mut json!({"dtype": "float16"})).unwrap();
        let tensors =
            ["b", "a"].map(|name| TensorInfo { name: name.into(), shape: vec![2], stored: Stored::F16 });
        let files = without_bytes(Path::new("c.json"), json!({}), types, tensors.into());
        assert_eq!(files.source.tensors()[0].name, "a");
        assert!(files.source.find("b").is_some() && files.source.find("c").is_none());
        let text = files.source.bytes("a").unwrap_err().to_string();
        assert!(text.contains("c.json is a configuration alone"), "{text}");
        assert!(files.source.notes()[0].contains("`dtype` says"));
    }

    #[test]
    fn what_is_a_configuration_its_fields_say() {
        let path = std::env::temp_dir().join(format!("engraft-stated-{}.json", std::process::id()));
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_configuration(&path).map(|found| found.is_some())
        };
        assert!(of("{\"model_type\": \"llama\"}").unwrap());
        assert!(of("{\"architectures\": [\"LlamaForCausalLM\"]}").unwrap());
        assert!(!of("{\"type\": \"Megatron\", \"checkpoints\": []}").unwrap());
        assert!(of("[").is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(read_configuration(&path).unwrap().is_none());
        assert!(read_configuration(Path::new("model.gguf")).unwrap().is_none());
    }
}
