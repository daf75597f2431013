//! Mixes: formats that differ from matrix to matrix, as `llama-quantize` mixes them.
//!
//! Values and outputs of attention, the feed-forward part's last matrix and the head lose most by rounding:
//! files that people share have a wider format there, in some blocks or in all. Which one is a matter of
//! experience. These are llama.cpp's choices (its `llama-quant.cpp`, build 11434, without an importance
//! matrix), so that a file has the types that people expect of its name.

use crate::checkpoint::gguf::{Array, Metadata, Value};
use crate::mem::{Block, WeightFormat};
use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A mix of blocks of 256 values, by llama.cpp's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Q3_K alone.
    Q3KSmall,
    /// Q3_K; values, outputs and last matrices Q4_K, some Q5_K.
    Q3KMedium,
    /// Q3_K; values, outputs and last matrices Q5_K.
    Q3KLarge,
    /// Q4_K; values and last matrices of the first blocks Q5_K.
    Q4KSmall,
    /// Q4_K; half of the values and last matrices Q6_K.
    Q4KMedium,
    /// Q5_K alone.
    Q5KSmall,
    /// Q5_K; half of the values and last matrices Q6_K.
    Q5KMedium,
}

use Mix::{Q3KLarge, Q3KMedium, Q3KSmall, Q4KMedium, Q4KSmall, Q5KMedium, Q5KSmall};

impl Mix {
    /// Every mix.
    pub const ALL: [Mix; 7] = [Q3KSmall, Q3KMedium, Q3KLarge, Q4KSmall, Q4KMedium, Q5KSmall, Q5KMedium];

    /// Name, llama.cpp's number of such a file, and what most matrices have.
    fn described(self) -> (&'static str, u32, Block) {
        match self {
            Q3KSmall => ("q3_k_s", 11, Block::Q3K),
            Q3KMedium => ("q3_k_m", 12, Block::Q3K),
            Q3KLarge => ("q3_k_l", 13, Block::Q3K),
            Q4KSmall => ("q4_k_s", 14, Block::Q4K),
            Q4KMedium => ("q4_k_m", 15, Block::Q4K),
            Q5KSmall => ("q5_k_s", 16, Block::Q5K),
            Q5KMedium => ("q5_k_m", 17, Block::Q5K),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.described().0
    }

    /// llama.cpp's number of a file in this mix.
    pub(super) fn file_type(self) -> u32 {
        self.described().1
    }

    /// The format of most matrices.
    pub fn base(self) -> WeightFormat {
        WeightFormat::Block(self.described().2)
    }

    /// What values of attention have; `at` counts them among `count`.
    fn values(self, at: usize, count: usize, model: &Facts) -> Block {
        let base = self.described().2;
        let block = match self {
            Q3KMedium if at < 2 => Block::Q5K,
            Q3KMedium => Block::Q4K,
            Q3KLarge => Block::Q5K,
            Q4KSmall if at < 4 => Block::Q5K,
            Q4KMedium | Q5KMedium if wider(at, count) => Block::Q6K,
            _ => base,
        };
        match block {
            _ if model.experts == 8 => Block::Q8_0,
            // There they are small.
            Block::Q3K | Block::Q4K if model.is_70b => Block::Q5K,
            block => block,
        }
    }

    /// What the last matrix of the feed-forward part of block `at` has.
    fn down(self, at: usize, model: &Facts) -> Block {
        let (count, base) = (model.blocks, self.described().2);
        match self {
            Q3KMedium if at < count / 16 => Block::Q5K,
            Q3KMedium if !model.is_falcon || wider(at, count) => Block::Q4K,
            Q3KLarge if model.is_falcon => Block::Q4K,
            Q3KLarge => Block::Q5K,
            Q4KSmall if !model.is_falcon && at < count / 8 => Block::Q5K,
            Q4KMedium if model.is_falcon && at >= count / 16 => match wider(at, count) {
                true => Block::Q5K,
                false => base,
            },
            Q4KMedium if model.is_falcon => Block::Q6K,
            Q4KMedium | Q5KMedium if wider(at, count) => Block::Q6K,
            _ => base,
        }
    }

    /// What outputs of attention have.
    fn outputs(self, model: &Facts) -> Block {
        let base = self.described().2;
        match self {
            Q3KLarge if model.is_falcon => Block::Q4K,
            _ if model.is_falcon => base,
            Q3KSmall | Q3KMedium | Q4KSmall | Q4KMedium if model.experts == 8 => Block::Q5K,
            _ if model.experts == 8 => base,
            Q3KMedium => Block::Q4K,
            Q3KLarge => Block::Q5K,
            _ => base,
        }
    }
}

/// The first and the last eighth, and every third between.
fn wider(at: usize, count: usize) -> bool {
    at < count / 8 || at >= 7 * count / 8 || (at - count / 8) % 3 == 2
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mix {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|mix| name.eq_ignore_ascii_case(mix.name()));
        found.ok_or_else(|| Error::config("mix", name, mixes()))
    }
}

/// The names of all mixes.
fn mixes() -> String {
    Mix::ALL.map(Mix::name).join(", ")
}

/// What matrices of a file are brought into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufFormat {
    /// One format for all.
    All(WeightFormat),
    /// By a rule.
    Mix(Mix),
}

impl GgufFormat {
    /// The format of all; none of a mix.
    pub fn one(self) -> Option<WeightFormat> {
        match self {
            Self::All(format) => Some(format),
            Self::Mix(_) => None,
        }
    }
}

impl From<WeightFormat> for GgufFormat {
    fn from(format: WeightFormat) -> Self {
        Self::All(format)
    }
}

impl FromStr for GgufFormat {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if let Ok(mix) = name.parse() {
            return Ok(Self::Mix(mix));
        }
        name.parse().map(Self::All).map_err(|error| match error {
            Error::Config { field, got, allowed } => {
                Error::config(field, got, format!("{allowed}; mixes: {}", mixes()))
            }
            other => other,
        })
    }
}

impl fmt::Display for GgufFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(format) => format.fmt(f),
            Self::Mix(mix) => mix.fmt(f),
        }
    }
}

/// What the choice looks at.
struct Facts {
    is_falcon: bool,
    is_70b: bool,
    blocks: usize,
    experts: usize,
    has_head: bool,
}

/// A mix for one file.
pub(super) struct Mixed {
    mix: Mix,
    facts: Facts,
    /// Names of tensors that hold values of attention, and of last matrices, block by block.
    values: Vec<String>,
    downs: Vec<String>,
}

impl Mixed {
    /// For a file that will say this and have these tensors.
    pub(super) fn new(mix: Mix, metadata: &Metadata, names: &[&str]) -> Result<Self> {
        let arch = metadata.str("general.architecture")?.unwrap_or_default();
        let count = |key: &str| {
            let key = format!("{arch}.{key}");
            let first = match metadata.get(&key) {
                // Of block after block.
                Some(Value::Array(Array::Numbers(list))) => list.first(),
                one => one.cloned(),
            };
            first.and_then(|n| n.as_u64()).map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX))
        };
        let (blocks, heads) = (count("block_count"), count("attention.head_count"));
        let keys = match count("attention.head_count_kv") {
            0 => heads,
            keys => keys,
        };
        let ordered = |parts: &[&str]| {
            let mut found: Vec<String> = names
                .iter()
                .filter(|name| parts.iter().any(|part| name.contains(part)))
                .map(|name| (*name).to_owned())
                .collect();
            found.sort_by(|a, b| block_of(a).cmp(&block_of(b)));
            found
        };
        let facts = Facts {
            is_falcon: arch == "falcon",
            is_70b: blocks == 80 && (arch == "qwen2" || arch == "llama" && keys != heads),
            blocks,
            experts: count("expert_count"),
            has_head: names.contains(&"output.weight"),
        };
        let values = ordered(&["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"]);
        Ok(Self { mix, facts, values, downs: ordered(&["ffn_down"]) })
    }

    /// What a matrix of that name has.
    pub(super) fn format(&self, name: &str, cols: usize) -> WeightFormat {
        let (mix, facts) = (self.mix, &self.facts);
        let place = |names: &[String]| names.iter().position(|known| known == name);
        let is_table = name == "token_embd.weight";
        let block = if name == "output.weight" || is_table && !facts.has_head {
            match facts.is_falcon || !cols.is_multiple_of(Block::LARGE) {
                true => Block::Q8_0,
                false => Block::Q6K,
            }
        } else if let Some(at) = place(&self.values) {
            mix.values(at, self.values.len(), facts)
        } else if let Some(at) = place(&self.downs) {
            // Experts' matrices are several of one block.
            let own = block_of(name).filter(|_| facts.experts > 1);
            mix.down(own.map_or(at, |(_, block)| block), facts)
        } else if name.contains("attn_k.weight") && facts.experts == 8 {
            Block::Q8_0
        } else if name.contains("attn_output.weight") {
            mix.outputs(facts)
        } else {
            return mix.base();
        };
        WeightFormat::Block(block)
    }
}

/// What stands before `blk`, and the block's number.
fn block_of(name: &str) -> Option<(&str, usize)> {
    let (stack, rest) = name.split_once("blk.")?;
    Some((stack, rest.split_once('.')?.0.parse().ok()?))
}

#[cfg(test)]
#[path = "mix_tests.rs"]
mod tests;
