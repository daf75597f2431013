//! Checkpoints: what is in a published model, and where its bytes lie.
//!
//! Here: finding a model's files ([`open`]), reading the headers of safetensors and GGUF, and handing out
//! each tensor's bytes as they are stored. Not here: what the names mean (`policy`), widening and packing
//! (`quant`,
//! `weights`), building a tokenizer (`text`).
//!
//! Invariant: after `open` has returned, every tensor's name is unique, its shape times its element size is
//! exactly the length of its byte range, ranges lie inside their file (and, but for PyTorch's shared
//! storages, do not overlap). A header is never trusted: nothing is allocated by a number found in a file
//! before that number has been compared with the file's length.
//!
//! What is published quantized in several tensors a matrix is handed out as plain ones (`packed`).
//!
//! Tensor bytes are mapped, read on demand or embedded in the program; only headers and tokenizers are kept
//! in memory. Bytes have no alignment: readers must not cast them to wider types.

mod access;
mod contents;
mod deepspeed;
mod files;
mod folder;
pub mod gguf;
pub mod index;
mod json;
#[cfg_attr(feature = "mmap", path = "mapping/enabled.rs")]
#[cfg_attr(not(feature = "mmap"), path = "mapping/disabled.rs")]
mod mapping;
mod packed;
pub mod ready;
pub mod safetensors;
mod sentence;
mod source;
mod stated;
mod storage;
mod tensors;
mod torch;

pub use access::Access;
pub use files::{Layout, ModelFiles, TokenizerFiles, VocabularyFiles};
pub use source::{Source, TensorInfo, stored_float};
pub use stated::read_configuration;
pub(crate) use stated::{StatedTypes, without_bytes};

use crate::Result;
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

/// Opens a model: a folder (`config.json` next to safetensors or PyTorch files, single or with an index; a
/// converted model; DeepSpeed's with `latest`; Megatron's with its iteration), a `.gguf` file, one
/// `.safetensors` or PyTorch file next to a
/// `config.json`, or DeepSpeed's JSON description. Reads headers and the tokenizer only.
///
/// # Errors
/// `Error::Io` when a file cannot be read, `Error::Format` and `Error::Tensor` when one breaks its format's
/// rules; the text names the file, the tensor or field, the value found and what is allowed.
pub fn open(path: &Path, access: Access) -> Result<ModelFiles> {
    folder::open(path, access)
}

/// The tokenizer of a folder that has no weights, as the folders of pipelines are: `tokenizer.json`, or the
/// files of older tokenizers with what `tokenizer_config.json` says of them.
///
/// # Errors
/// As [`open`].
pub fn open_tokenizer(folder: &Path) -> Result<TokenizerFiles> {
    folder::tokenizer_files(folder, &json::empty())
}

/// Copies what a model needs besides its weights (configuration, generation settings, tokenizer, chat
/// template) to the folder `to`: the other half of a converted model.
///
/// # Errors
/// `Error::Io`; `Error::Format` for a tokenizer that is only in memory.
pub fn copy_companions(files: &ModelFiles, to: &Path) -> Result<()> {
    folder::copy_companions(files, to)
}

/// All metadata of a model that is a GGUF file, or was one, as it stands in the file.
///
/// # Errors
/// `Error::Io`, also for a file that is only in memory; `Error::Format`.
pub fn gguf_metadata(files: &ModelFiles) -> Result<gguf::Metadata> {
    folder::gguf_metadata(files)
}

/// Reads a DeepSpeed description without opening its files.
///
/// # Errors
/// `Error::Io`; `Error::Format` if the file is no JSON object or no description.
pub fn read_description(path: &Path) -> Result<serde_json::Value> {
    folder::description(path)
}

/// Opens a checkpoint by DeepSpeed's description (`type`, `checkpoints`, `tp_size`, ...). File names are
/// joined to
/// `base_dir` if it is not empty, else to the description's own, else to `folder`; `config.json` lies in one
/// of these.
///
/// # Errors
/// As [`open`]; `Error::Format` for keys and values that a description cannot have.
pub fn open_description(
    description: &serde_json::Value,
    folder: &Path,
    base_dir: &str,
    access: Access,
) -> Result<ModelFiles> {
    folder::described("checkpoint", description, folder, Some(base_dir), access)
}

/// Opens a model whose files are in memory (embedded in the program, or fetched by a browser).
/// `config` and `generation` are `config.json` and `generation_config.json`.
///
/// # Errors
/// As [`open`].
pub fn open_bytes(
    config: &[u8],
    generation: Option<&[u8]>,
    safetensors: Cow<'static, [u8]>,
    tokenizer: TokenizerFiles,
) -> Result<ModelFiles> {
    let mut config = json::object("config.json", config, json::MAX_CONFIG)?;
    let generation = match generation {
        Some(bytes) => json::object("generation_config.json", bytes, json::MAX_CONFIG)?,
        None => json::empty(),
    };
    let file = "model.safetensors";
    let storage = storage::Storage::memory(file, safetensors);
    let source = packed::unpacked(&mut config, Box::new(safetensors::single(storage)?))?;
    Ok(ModelFiles { path: file.into(), layout: Layout::HuggingFace, config, generation, tokenizer, source })
}

/// Opens a model whose weights are one PyTorch file in memory; `config` is `config.json`.
///
/// # Errors
/// As [`open`].
pub fn open_torch_bytes(
    config: &[u8],
    weights: Cow<'static, [u8]>,
    tokenizer: TokenizerFiles,
) -> Result<ModelFiles> {
    let mut config = json::object("config.json", config, json::MAX_CONFIG)?;
    let file = "pytorch_model.bin";
    let source = Box::new(contents::pytorch(storage::Storage::memory(file, weights))?);
    let source = packed::unpacked(&mut config, source)?;
    let generation = json::empty();
    Ok(ModelFiles { path: file.into(), layout: Layout::HuggingFace, config, generation, tokenizer, source })
}

/// Opens a GGUF model that is in memory.
///
/// # Errors
/// As [`open`].
pub fn open_gguf_bytes(file: &str, bytes: Cow<'static, [u8]>) -> Result<ModelFiles> {
    gguf::model(PathBuf::from(file), storage::Storage::memory(file, bytes))
}
