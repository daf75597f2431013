//! Checkpoints that were written in shards by DeepSpeed, Megatron and Meta.
//!
//! Five ways lead in: a JSON description (`description.rs`), a folder with `latest`, the folder of one tag,
//! one with Megatron's `latest_checkpointed_iteration.txt` (`folders.rs`), and one with Meta's
//! `consolidated.NN.pth` (found by `folder`). Each names, per tensor-parallel rank that wrote it, the files
//! of that rank; `merge.rs` presents all of them as one checkpoint of whole tensors, merged when they are
//! asked for. What degree the model then runs with is decided by the loader, which shards whole tensors:
//! any stored degree serves any other.
//!
//! Not here: names of injected kernels' own parameters (`attn_qkvw`, ...), which only DeepSpeed reads; ZeRO's
//! partitioned files, which its `zero_to_fp32.py` joins. Both are refused by name.

mod description;
mod files;
mod folders;
mod merge;
mod order;

pub(super) use description::{Description, is_description};
pub(super) use files::Files;
pub(super) use folders::{is_deepspeed, is_megatron, is_of_tag};
pub(super) use order::Order;

use super::{Access, contents, storage::Storage, tensors::Tensors};
use crate::{Error, Result};
use merge::{Merged, QkvOrder};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Most files of a checkpoint.
const MAX_FILES: usize = 1 << 16;

/// What was opened.
pub(super) struct Opened {
    pub(super) source: Box<dyn super::Source>,
    /// What the files say besides tensors: `checkpoint_version`, `args.num_layers`, ...
    pub(super) facts: Map<String, Value>,
    /// Version of the order that fused rows were merged by.
    pub(super) version: f64,
}

/// Opens all files; `order` is what is known of fused rows before the files are read.
pub(super) fn open(place: &str, files: &Files, order: Order, access: Access) -> Result<Opened> {
    let count = files.whole.len() + files.ranks.iter().map(Vec::len).sum::<usize>();
    if count > MAX_FILES || count == 0 {
        return Err(Error::format(place, format!("names {count} files; 1 to {MAX_FILES} are allowed")));
    }
    let mut facts = Map::new();
    let whole = join(place, &files.whole, access, &mut facts)?;
    let mut ranks = Vec::with_capacity(files.ranks.len());
    for paths in &files.ranks {
        let mut own = Map::new();
        ranks.push(join(place, paths, access, &mut own)?);
        let version = |f: &Map<String, Value>| f.get("checkpoint_version").and_then(Value::as_f64);
        if let (Some(first), Some(this)) = (version(&facts), version(&own))
            && first != this
        {
            let what = format!("ranks disagree on checkpoint_version: {first} and {this}");
            return Err(Error::format(place, what));
        }
        own.append(&mut facts);
        facts = own;
    }
    let version = order.version(facts.get("checkpoint_version").and_then(Value::as_f64));
    let order = QkvOrder::of(place, version)?;
    let source = Box::new(Merged::new(place.to_owned(), whole, ranks, order)?);
    Ok(Opened { source, facts, version })
}

/// Several files as one list of tensors.
fn join(place: &str, paths: &[PathBuf], access: Access, facts: &mut Map<String, Value>) -> Result<Tensors> {
    let (mut storages, mut placed) = (Vec::new(), Vec::new());
    for (number, path) in paths.iter().enumerate() {
        let storage = Storage::open(path, access)?;
        let mut contents = contents::contents(&storage, number)?;
        placed.append(&mut contents.tensors);
        contents.facts.append(facts);
        *facts = contents.facts;
        storages.push(storage);
    }
    if let Some(t) =
        placed.iter().find(|t| ["attn_qkvw", "inter_w", "attn_ow"].iter().any(|n| t.info.name.ends_with(n)))
    {
        let what = "is a parameter of DeepSpeed's injected kernels, which only DeepSpeed reads; save the model itself instead";
        return Err(Error::tensor(&t.info.name, what));
    }
    Tensors::new(place.to_owned(), storages, placed)
}

/// A configuration from what Megatron's files say of their model (`args`); none if they say nothing.
pub(super) fn config(facts: &Map<String, Value>) -> Option<Value> {
    const FIELDS: [(&str, &str); 12] = [
        ("hidden_size", "args.hidden_size"),
        ("num_hidden_layers", "args.num_layers"),
        ("num_attention_heads", "args.num_attention_heads"),
        ("intermediate_size", "args.ffn_hidden_size"),
        ("max_position_embeddings", "args.max_position_embeddings"),
        ("vocab_size", "args.padded_vocab_size"),
        ("layer_norm_epsilon", "args.layernorm_epsilon"),
        ("torch_dtype", "args.params_dtype"),
        ("num_experts", "args.num_experts"),
        ("topk", "args.topk"),
        ("mlp_type", "args.mlp_type"),
        ("expert_interval", "args.expert_interval"),
    ];
    facts.get("args.hidden_size")?;
    let mut config = Map::new();
    config.insert("model_type".into(), "megatron-gpt".into());
    config.insert("architectures".into(), serde_json::json!(["MegatronGPT"]));
    for (field, fact) in FIELDS {
        if let Some(value) = facts.get(fact) {
            config.insert(field.into(), value.clone());
        }
    }
    Some(Value::Object(config))
}
