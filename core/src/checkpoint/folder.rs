//! Finding a model's files: which weights a folder holds, its configuration and tokenizer.
//!
//! Order in a folder: `model.safetensors`, its index, the same two with the name that diffusers gives them, then the
//! only other safetensors file or index, then the only GGUF file. Anything ambiguous is an error that lists what is there.

use super::{
    Access, Layout, ModelFiles, Source, TokenizerFiles, gguf, index, json, safetensors, storage::Storage,
};
use crate::{Error, Result};
use serde_json::Value;
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// Largest `tokenizer.json`.
const MAX_TOKENIZER: usize = 256 << 20;
/// Largest `chat_template.jinja`.
const MAX_TEMPLATE: usize = 4 << 20;
const INDEX: &str = ".safetensors.index.json";

/// What a folder's weights are.
enum Weights {
    Single(PathBuf),
    Index(PathBuf),
    Gguf(PathBuf),
}

/// See [`super::open`].
pub(super) fn open(path: &Path, access: Access) -> Result<ModelFiles> {
    let meta = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
    if meta.is_dir() {
        return match find_weights(path)? {
            Weights::Gguf(file) => gguf::model(path.to_owned(), Storage::open(&file, access)?),
            Weights::Single(file) => {
                hugging_face(path, path, || Ok(Box::new(safetensors::single(Storage::open(&file, access)?)?)))
            }
            Weights::Index(file) => hugging_face(path, path, || {
                let bytes = read(&file, index::MAX_INDEX)?;
                Ok(Box::new(index::open(path, &file.display().to_string(), &bytes, access)?))
            }),
        };
    }
    let storage = Storage::open(path, access)?;
    if storage.range(0, storage.len().min(4))?.as_ref() == gguf::MAGIC {
        return gguf::model(path.to_owned(), storage);
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("safetensors") => {
            let folder = path.parent().unwrap_or(Path::new("."));
            hugging_face(path, folder, || Ok(Box::new(safetensors::single(storage)?)))
        }
        Some("gguf") => Err(Error::format(storage.name(), "does not begin with \"GGUF\"")),
        Some("bin" | "pt" | "pth" | "ckpt") => Err(pickled(storage.name())),
        _ => Err(Error::format(
            storage.name(),
            "is not a model that can be read; expected: a folder with config.json and safetensors, a .gguf file, \
             or a .safetensors file beside its config.json",
        )),
    }
}

/// Decides which weights of a folder are meant.
fn find_weights(folder: &Path) -> Result<Weights> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
        let entry = entry.map_err(|e| Error::io(folder, e))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    let there = |name: &str| names.binary_search_by(|n| n.as_str().cmp(name)).is_ok();
    for stem in ["model", "diffusion_pytorch_model"] {
        let (single, index) = (format!("{stem}.safetensors"), format!("{stem}{INDEX}"));
        if there(&single) {
            return Ok(Weights::Single(folder.join(single)));
        }
        if there(&index) {
            return Ok(Weights::Index(folder.join(index)));
        }
    }
    let ending =
        |end: &str| names.iter().filter(|n| n.ends_with(end)).map(String::as_str).collect::<Vec<_>>();
    let place = folder.display().to_string();
    let pickles = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
    if pickles.iter().any(|p| there(p)) {
        return Err(pickled(&place));
    }
    let (indexes, singles, ggufs) = (ending(INDEX), ending(".safetensors"), ending(".gguf"));
    match (indexes.as_slice(), singles.as_slice(), ggufs.as_slice()) {
        ([index], _, _) => Ok(Weights::Index(folder.join(index))),
        ([], [single], _) => Ok(Weights::Single(folder.join(single))),
        ([], [], [gguf]) => Ok(Weights::Gguf(folder.join(gguf))),
        ([], [], []) if [".bin", ".pt", ".pth"].iter().any(|e| !ending(e).is_empty()) => Err(pickled(&place)),
        ([], [], []) => Err(Error::format(
            place,
            "holds no weights; expected: model.safetensors, model.safetensors.index.json with its shards, or a .gguf file",
        )),
        ([], [], several) => Err(Error::format(
            place,
            format!("holds several GGUF files ({}); name the one that is meant", several.join(", ")),
        )),
        _ => {
            let all = [indexes, singles].concat();
            let what = format!(
                "holds several safetensors files ({}) and neither model.safetensors nor model{INDEX}; \
                 a sharded model needs its index, else name the file that is meant",
                shorten(&all)
            );
            Err(Error::format(place, what))
        }
    }
}

fn shorten(names: &[&str]) -> String {
    let more = names.len().saturating_sub(4);
    let shown = names[..names.len() - more].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

fn pickled(place: &str) -> Error {
    Error::format(
        place,
        "holds PyTorch weights (.bin, .pt, .pth), a format that is not supported yet; expected: safetensors or GGUF",
    )
}

/// Configuration and tokenizer of a folder, and the weights that `weights` opens.
fn hugging_face(
    path: &Path,
    folder: &Path,
    weights: impl FnOnce() -> Result<Box<dyn Source>>,
) -> Result<ModelFiles> {
    let Some(config) = read_optional(&folder.join("config.json"), json::MAX_CONFIG)? else {
        let what = "config.json is missing; it must lie beside the weights";
        return Err(Error::format(folder.display().to_string(), what));
    };
    let named = |name: &str| folder.join(name).display().to_string();
    let config = json::object(&named("config.json"), &config, json::MAX_CONFIG)?;
    let generation = match read_optional(&folder.join("generation_config.json"), json::MAX_CONFIG)? {
        Some(bytes) => json::object(&named("generation_config.json"), &bytes, json::MAX_CONFIG)?,
        None => json::empty(),
    };
    let template = match read_optional(&folder.join("chat_template.jinja"), MAX_TEMPLATE)? {
        Some(bytes) => Some(
            String::from_utf8(bytes)
                .map_err(|_| Error::format(named("chat_template.jinja"), "is not UTF-8"))?,
        ),
        None => None,
    };
    let tokenizer = tokenizer_files(
        &named(""),
        read_optional(&folder.join("tokenizer.json"), MAX_TOKENIZER)?,
        read_optional(&folder.join("tokenizer_config.json"), json::MAX_CONFIG)?.as_deref(),
        template,
    )?;
    let source = weights()?;
    Ok(ModelFiles {
        path: path.to_owned(),
        layout: Layout::HuggingFace,
        config,
        generation,
        tokenizer,
        source,
    })
}

/// Puts a tokenizer's files together; `place` is put before file names in messages.
pub(super) fn tokenizer_files(
    place: &str,
    tokenizer_json: Option<Vec<u8>>,
    tokenizer_config: Option<&[u8]>,
    chat_template: Option<String>,
) -> Result<TokenizerFiles> {
    let file = format!("{place}tokenizer_config.json");
    let tokenizer_config = match tokenizer_config {
        Some(bytes) => json::object(&file, bytes, json::MAX_CONFIG)?,
        None => json::empty(),
    };
    let chat_template = match chat_template {
        Some(text) => Some(text),
        None => template(&file, &tokenizer_config)?,
    };
    Ok(TokenizerFiles::HuggingFace { tokenizer_json, tokenizer_config, chat_template })
}

/// `chat_template` is a string, or a list of `{name, template}` of which "default" is meant.
fn template(file: &str, config: &Value) -> Result<Option<String>> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(list)) => Ok(list
            .iter()
            .find(|item| item.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|item| item.get("template"))
            .and_then(Value::as_str)
            .map(str::to_owned)),
        Some(_) => Err(Error::format(
            file,
            "chat_template must be a string or a list of objects with name and template",
        )),
    }
}

fn read_optional(path: &Path, limit: usize) -> Result<Option<Vec<u8>>> {
    if path.exists() { read(path, limit).map(Some) } else { Ok(None) }
}

/// Reads a whole file of at most `limit` bytes.
fn read(path: &Path, limit: usize) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    if bytes.len() > limit {
        let what = format!("is longer than {limit} bytes");
        return Err(Error::format(path.display().to_string(), what));
    }
    Ok(bytes)
}
