//! Checkpoints: what is in a published model, and where its bytes lie.
//!
//! Here: finding a model's files ([`open`]), reading the headers of safetensors and GGUF, and handing out each
//! tensor's bytes as they are stored. Not here: what the names mean (`policy`), widening and packing (`quant`,
//! `weights`), building a tokenizer (`text`).
//!
//! Invariant: after `open` has returned, every tensor's name is unique, its shape times its element size is exactly
//! the length of its byte range, ranges lie inside their file (and, but for PyTorch's shared storages, do not overlap). A header is never trusted: nothing
//! is allocated by a number found in a file before that number has been compared with the file's length.
//!
//! Tensor bytes are mapped, read on demand or embedded in the program; only headers and tokenizers are kept in memory.
//! Bytes have no alignment: readers must not cast them to wider types.

mod deepspeed;
mod folder;
pub mod gguf;
pub mod index;
mod json;
#[cfg_attr(feature = "mmap", path = "mapping/enabled.rs")]
#[cfg_attr(not(feature = "mmap"), path = "mapping/disabled.rs")]
mod mapping;
pub mod ready;
pub mod safetensors;
mod storage;
mod tensors;
mod torch;

use crate::Result;
use crate::mem::{Stored, WeightFormat};
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

/// One tensor of a checkpoint, as its header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Dimensions, outermost first (`[rows, cols]` as in PyTorch; GGUF's order is reversed to this).
    pub shape: Vec<usize>,
    /// Element type.
    pub stored: Stored,
}

impl TensorInfo {
    /// Number of elements; `open` has checked that it does not overflow.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The tensors of one checkpoint: names, shapes and bytes.
pub trait Source: Send + Sync {
    /// The file or folder, for messages.
    fn file(&self) -> &str;

    /// All tensors, sorted by name.
    fn tensors(&self) -> &[TensorInfo];

    /// The tensor of this name, by binary search.
    fn find(&self, name: &str) -> Option<&TensorInfo> {
        let tensors = self.tensors();
        tensors.binary_search_by(|t| t.name.as_str().cmp(name)).ok().map(|i| &tensors[i])
    }

    /// The tensor's bytes as stored, without alignment: borrowed when mapped or embedded, else read now.
    ///
    /// # Errors
    /// `Error::Tensor` for an unknown name, `Error::Io` if reading fails.
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>>;

    /// The caller is done with this tensor: its mapped pages may leave memory. They come back by themselves if
    /// `bytes` is used again. Nothing happens where there is no mapping.
    fn release(&self, name: &str);

    /// Bytes of all tensors together.
    fn total_bytes(&self) -> u64;

    /// The operand of a role as every rank of a converted model has it ([`ready`]); none where there are tensors to
    /// make it from.
    ///
    /// # Errors
    /// `Error::Tensor` for a role that a converted model lacks, `Error::Io` if reading fails.
    fn ready(&self, role: &str) -> Result<Option<Vec<ready::ReadyOperand<'_>>>> {
        let _ = role;
        Ok(None)
    }

    /// The format of [`Source::ready`]'s operand, without reading it.
    fn ready_format(&self, role: &str) -> Option<WeightFormat> {
        let _ = role;
        None
    }

    /// The caller is done with this operand.
    fn release_ready(&self, role: &str) {
        let _ = role;
    }
}

/// How tensor bytes are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The files are mapped; pages are read when touched. Only in builds with the feature `mmap`. A file that another
    /// process truncates while it is mapped ends the program (SIGBUS): use [`Access::Read`] where that can happen.
    Map,
    /// Each tensor is read into memory when it is asked for.
    Read,
}

impl Default for Access {
    /// `Map` where the build has it.
    fn default() -> Self {
        if mapping::AVAILABLE { Access::Map } else { Access::Read }
    }
}

/// Whose conventions names and row orders follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Hugging Face transformers.
    HuggingFace,
    /// llama.cpp: own tensor names, and permuted q and k rows in Llama models.
    Gguf,
}

/// Everything found of one model, tensors unread.
pub struct ModelFiles {
    /// What `open` was given.
    pub path: PathBuf,
    /// Whose conventions the names follow.
    pub layout: Layout,
    /// `config.json`, or its equivalent made from GGUF metadata.
    pub config: serde_json::Value,
    /// `generation_config.json`; an empty object if there is none.
    pub generation: serde_json::Value,
    /// What the text stage builds a tokenizer from.
    pub tokenizer: TokenizerFiles,
    /// The tensors.
    pub source: Box<dyn Source>,
}

impl std::fmt::Debug for ModelFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFiles")
            .field("path", &self.path)
            .field("layout", &self.layout)
            .field("tensors", &self.source.tensors().len())
            .finish_non_exhaustive()
    }
}

/// The tokenizer as found, not yet built.
#[derive(Debug, Clone)]
pub enum TokenizerFiles {
    /// Files of the Hugging Face form.
    HuggingFace {
        /// `tokenizer.json`, if there is one.
        tokenizer_json: Option<Vec<u8>>,
        /// `tokenizer_config.json`; an empty object if there is none.
        tokenizer_config: serde_json::Value,
        /// `chat_template.jinja`, else the (default) template of `tokenizer_config.json`.
        chat_template: Option<String>,
    },
    /// The tokenizer part of GGUF metadata.
    Gguf(Box<gguf::Tokenizer>),
}

impl TokenizerFiles {
    /// From file contents: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`.
    ///
    /// # Errors
    /// `Error::Format` if `tokenizer_config` is not a JSON object or its chat template has an unknown form.
    pub fn from_bytes(
        tokenizer_json: Option<Vec<u8>>,
        tokenizer_config: Option<&[u8]>,
        chat_template: Option<String>,
    ) -> Result<Self> {
        folder::tokenizer_files("", tokenizer_json, tokenizer_config, chat_template)
    }
}

/// Opens a model: a folder (`config.json` beside safetensors or PyTorch files, single or with an index; a
/// converted model; DeepSpeed's with `latest`; Megatron's with its iteration), a `.gguf` file, one `.safetensors` or PyTorch file beside a
/// `config.json`, or DeepSpeed's JSON description. Reads headers and the tokenizer only.
///
/// # Errors
/// `Error::Io` when a file cannot be read, `Error::Format` and `Error::Tensor` when one breaks its format's rules;
/// the text names the file, the tensor or field, the value found and what is allowed.
pub fn open(path: &Path, access: Access) -> Result<ModelFiles> {
    folder::open(path, access)
}

/// Copies what a model needs beside its weights (configuration, generation settings, tokenizer, chat template) to the
/// folder `to`: the other half of a converted model.
///
/// # Errors
/// `Error::Io`; `Error::Format` for a tokenizer that is only in memory.
pub fn copy_companions(files: &ModelFiles, to: &Path) -> Result<()> {
    folder::copy_companions(files, to)
}

/// Reads a DeepSpeed description without opening its files.
///
/// # Errors
/// `Error::Io`; `Error::Format` if the file is no JSON object or no description.
pub fn read_description(path: &Path) -> Result<serde_json::Value> {
    folder::description(path)
}

/// Opens a checkpoint by DeepSpeed's description (`type`, `checkpoints`, `tp_size`, ...). File names are joined to
/// `base_dir` if it is not empty, else to the description's own, else to `folder`; `config.json` lies in one of these.
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
    let config = json::object("config.json", config, json::MAX_CONFIG)?;
    let generation = match generation {
        Some(bytes) => json::object("generation_config.json", bytes, json::MAX_CONFIG)?,
        None => json::empty(),
    };
    let file = "model.safetensors";
    let storage = storage::Storage::memory(file, safetensors);
    let source = Box::new(safetensors::single(storage)?);
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
    let config = json::object("config.json", config, json::MAX_CONFIG)?;
    let file = "pytorch_model.bin";
    let source = Box::new(folder::pytorch(storage::Storage::memory(file, weights))?);
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
