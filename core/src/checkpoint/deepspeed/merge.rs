//! Shards of several ranks as one checkpoint of whole tensors, merged when their bytes are asked for.
//!
//! A tensor is sharded by rows where its layer splits outputs, by columns where it splits inputs, and is the
//! same on every rank otherwise; which, its name says ([`Split::of`]). What should be the same is compared
//! when it is read, so a layer that the table does not know is reported by name instead of being loaded
//! wrongly. Memory: one merged tensor at a time.

use crate::checkpoint::{Source, TensorInfo, tensors::Tensors};
use crate::{Error, Result};
use std::borrow::Cow;

/// Row order of fused q, k, v, by Megatron's checkpoint version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QkvOrder {
    /// 0: all q, all k, all v of each shard, `[3, heads, width]`.
    Thirds,
    /// 1: `[heads, width, 3]`, and 2: `[heads, 3, width]`: whole heads lie together.
    Heads,
}

impl QkvOrder {
    pub(super) fn of(place: &str, version: f64) -> Result<Self> {
        match version {
            0.0 => Ok(QkvOrder::Thirds),
            1.0 | 2.0 | 3.0 => Ok(QkvOrder::Heads),
            v => Err(Error::format(place, format!("checkpoint version is {v}; allowed: 0, 1, 2, 3"))),
        }
    }
}

/// How a tensor is spread over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Split {
    /// Every rank has the same.
    Same,
    /// By the first dimension.
    Rows,
    /// By the second dimension.
    Columns,
    /// By the first dimension, in each of three equal parts.
    Thirds,
}

/// Layers whose inputs are split: their weights are sharded by columns, their biases are whole.
const BY_INPUT: [&str; 14] = [
    "attention.dense",
    "self_attention.dense",
    "self_attn.dense",
    "attn.dense",
    "dense_4h_to_h",
    "o_proj",
    "out_proj",
    "down_proj",
    "fc2",
    "fc_out",
    "wo",
    "w2",
    "attention.output.dense",
    "linear_proj",
];

/// Layers whose outputs are split, and tables that are split by token.
const BY_OUTPUT: [&str; 24] = [
    "query_key_value",
    "query",
    "key",
    "value",
    "key_value",
    "qkv_proj",
    "q_proj",
    "k_proj",
    "v_proj",
    "dense_h_to_4h",
    "gate_proj",
    "up_proj",
    "fc1",
    "fc_in",
    "w1",
    "w3",
    "wq",
    "wk",
    "wv",
    "word_embeddings",
    "embed_tokens",
    "wte",
    "lm_head",
    "final_linear",
];

impl Split {
    /// The two tables at the ends of Meta's models, by the first rank's tensors: the head is split by rows,
    /// the token table by columns up to LLaMA 2 and by rows from 3 on, which shows in whether its rows are as
    /// long as the head's.
    fn of_meta(info: &TensorInfo, first: &[TensorInfo]) -> Option<Self> {
        const TABLES: [&str; 2] = ["tok_embeddings.weight", "output.weight"];
        let at = TABLES.iter().position(|name| *name == info.name)?;
        let columns = |name: &str| match first.iter().find(|t| t.name == name)?.shape[..] {
            [_, columns] => Some(columns),
            _ => None,
        };
        let (table, head) = (columns(TABLES[0])?, columns(TABLES[1])?);
        Some(if at == 1 || table == head { Split::Rows } else { Split::Columns })
    }

    fn of(name: &str, rank: usize, order: QkvOrder) -> Self {
        if rank == 0 {
            return Split::Same;
        }
        let (layer, weight) = match name.rsplit_once('.') {
            Some((layer, "weight")) => (layer, true),
            Some((layer, "bias")) => (layer, false),
            _ => return Split::Same,
        };
        let is = |known: &str| {
            layer.strip_suffix(known).is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        if BY_INPUT.iter().any(|k| is(k)) {
            return if weight && rank == 2 { Split::Columns } else { Split::Same };
        }
        if is("query_key_value") && order == QkvOrder::Thirds {
            return Split::Thirds;
        }
        if BY_OUTPUT.iter().any(|k| is(k)) { Split::Rows } else { Split::Same }
    }
}

/// Whole tensors and shards.
pub(super) struct Merged {
    file: String,
    whole: Tensors,
    ranks: Vec<Tensors>,
    infos: Vec<TensorInfo>,
    /// Parallel to `infos`; none for whole tensors.
    splits: Vec<Option<Split>>,
}

impl Merged {
    /// Checks that all ranks have the same names and shapes that go together.
    pub(super) fn new(file: String, whole: Tensors, ranks: Vec<Tensors>, order: QkvOrder) -> Result<Self> {
        let mut all: Vec<(TensorInfo, Option<Split>)> =
            whole.tensors().iter().map(|t| (t.clone(), None)).collect();
        let (first, others) = ranks.split_first().map_or((&[][..], &[][..]), |(f, o)| (f.tensors(), o));
        for info in first {
            if whole.find(&info.name).is_some() {
                return Err(Error::tensor(&info.name, format!("is both whole and in shards (in {file})")));
            }
            let split = match others {
                [] => Split::Same,
                _ => Split::of_meta(info, first)
                    .unwrap_or_else(|| Split::of(&info.name, info.shape.len(), order)),
            };
            let merged = merged(&file, info, others, split)?;
            let shards = std::iter::once(info).chain(others.iter().filter_map(|t| t.find(&info.name)));
            let mut odd = shards.filter(|t| split == Split::Thirds && !t.shape[0].is_multiple_of(3));
            if let Some(odd) = odd.next() {
                return Err(Error::tensor(&info.name, format!("{} rows are no q, k and v", odd.shape[0])));
            }
            all.push((merged, Some(split)));
        }
        for (rank, tensors) in others.iter().enumerate() {
            let extra =
                tensors.tensors().iter().find(|t| first.binary_search_by(|f| f.name.cmp(&t.name)).is_err());
            if let Some(t) = extra {
                let what = format!("is on rank {}, but not on rank 0 (in {file})", rank + 1);
                return Err(Error::tensor(&t.name, what));
            }
        }
        all.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        let (infos, splits) = all.into_iter().unzip();
        Ok(Self { file, whole, ranks, infos, splits })
    }

    fn shards(&self, name: &str) -> Result<Vec<Cow<'_, [u8]>>> {
        self.ranks.iter().map(|tensors| tensors.bytes(name)).collect()
    }
}

/// The header of a whole tensor from those of its shards, which must go together.
fn merged(file: &str, info: &TensorInfo, others: &[Tensors], split: Split) -> Result<TensorInfo> {
    let mut merged = info.clone();
    let at = match split {
        Split::Same => None,
        Split::Rows | Split::Thirds => Some(0),
        Split::Columns => Some(1),
    };
    for (rank, tensors) in others.iter().enumerate().map(|(i, t)| (i + 1, t)) {
        let Some(shard) = tensors.find(&info.name) else {
            let what = format!("is on rank 0, but not on rank {rank} (in {file})");
            return Err(Error::tensor(&info.name, what));
        };
        let mut dims = shard.shape.iter().zip(&info.shape).enumerate();
        let fits = shard.stored == info.stored
            && shard.shape.len() == info.shape.len()
            && dims.all(|(i, (a, b))| Some(i) == at || a == b);
        if !fits {
            let what = format!(
                "is {:?} of {} on rank 0 and {:?} of {} on rank {rank} (in {file})",
                info.shape, info.stored, shard.shape, shard.stored
            );
            return Err(Error::tensor(&info.name, what));
        }
        if let Some(at) = at {
            let sum = merged.shape[at].checked_add(shard.shape[at]);
            merged.shape[at] = sum.ok_or_else(|| Error::tensor(&info.name, "its shards' sizes overflow"))?;
        }
    }
    Ok(merged)
}

/// Every shard in `times` pieces: the first pieces of all shards, then the second ones, ...
fn interleave(shards: &[Cow<'_, [u8]>], times: usize) -> Vec<u8> {
    let mut to = Vec::with_capacity(shards.iter().map(|b| b.len()).sum());
    for i in 0..times {
        for bytes in shards {
            let piece = bytes.len() / times.max(1);
            to.extend_from_slice(&bytes[i * piece..(i + 1) * piece]);
        }
    }
    to
}

impl Source for Merged {
    fn file(&self) -> &str {
        &self.file
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let at = self.infos.binary_search_by(|t| t.name.as_str().cmp(name));
        let Ok(at) = at else { return Err(Error::tensor(name, format!("is not in {}", self.file))) };
        let Some(split) = self.splits[at] else { return self.whole.bytes(name) };
        let mut shards = self.shards(name)?;
        Ok(match split {
            Split::Rows => Cow::Owned(interleave(&shards, 1)),
            Split::Thirds => Cow::Owned(interleave(&shards, 3)),
            Split::Columns => Cow::Owned(interleave(&shards, self.infos[at].shape[0])),
            Split::Same => {
                if let Some(rank) = shards.iter().position(|b| *b != shards[0]) {
                    let what = format!(
                        "differs between rank 0 and rank {rank} of {}, but is no layer that is known to be split",
                        self.file
                    );
                    return Err(Error::tensor(name, what));
                }
                shards.swap_remove(0)
            }
        })
    }

    fn release(&self, name: &str) {
        self.whole.release(name);
        self.ranks.iter().for_each(|r| r.release(name));
    }

    fn release_bytes(&self, bytes: &[u8]) {
        self.whole.release_bytes(bytes);
        self.ranks.iter().for_each(|r| r.release_bytes(bytes));
    }

    fn total_bytes(&self) -> u64 {
        let bytes = |t: &TensorInfo| t.stored.bytes(t.elements()).unwrap_or(0) as u64;
        self.infos.iter().map(bytes).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One layer of each kind of name, and the last of the table: the head of models that call it so.
    #[test]
    fn layers_are_merged_as_those_who_saved_them_sharded_them() {
        let by_output = ["query_key_value", "q_proj", "w1", "word_embeddings", "lm_head", "final_linear"];
        let by_input = ["attention.dense", "attention.output.dense", "o_proj", "w2", "linear_proj"];
        for (names, weight, bias) in
            [(&by_output[..], Split::Rows, Split::Rows), (&by_input, Split::Columns, Split::Same)]
        {
            for name in names {
                let of = |suffix, rank| {
                    Split::of(&format!("model.layers.0.{name}.{suffix}"), rank, QkvOrder::Heads)
                };
                assert_eq!((of("weight", 2), of("bias", 1)), (weight, bias), "{name}");
            }
        }
        for whole in ["model.norm.weight", "model.layers.0.my_o_proj2.weight", "model.layers.0.o_proj.scale"]
        {
            assert_eq!(Split::of(whole, 2, QkvOrder::Heads), Split::Same, "{whole}");
        }
    }
}
