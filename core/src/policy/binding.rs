//! Roles and the names that fill them.

use super::slot::Slot;
use std::fmt;

/// Weight or bias of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The matrix, the table or the norm's factor.
    Weight,
    /// What is added.
    Bias,
}

impl Part {
    /// `weight` or `bias`, as names end.
    pub fn suffix(self) -> &'static str {
        match self {
            Part::Weight => "weight",
            Part::Bias => "bias",
        }
    }
}

/// One operand of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Role {
    /// Whether it is of the encoder next to a decoder.
    pub encoder: bool,
    /// The block, for slots inside one; the number of a convolution.
    pub layer: Option<usize>,
    /// The slot.
    pub slot: Slot,
    /// Weight or bias.
    pub part: Part,
}

impl Role {
    /// A slot outside the blocks.
    pub fn of(slot: Slot, part: Part) -> Self {
        Self { encoder: false, layer: None, slot, part }
    }

    /// A slot of block `layer`.
    pub fn block(layer: usize, slot: Slot, part: Part) -> Self {
        Self { encoder: false, layer: Some(layer), slot, part }
    }

    /// The same of the encoder next to a decoder.
    pub fn in_encoder(self) -> Self {
        Self { encoder: true, ..self }
    }

    /// Name of the operand in all layers: `qkv.weight`, of an encoder next to a decoder `encoder_qkv.weight`.
    pub fn operand(&self) -> String {
        let stack = if self.encoder { "encoder_" } else { "" };
        format!("{stack}{}.{}", self.slot.name(), self.part.suffix())
    }

    /// Whether the operand is a vector: a bias, what a norm multiplies with, or divisors of frequencies.
    pub fn is_vector(&self) -> bool {
        let vectors = [Slot::RopeFactors, Slot::Sinks, Slot::ChoiceBias, Slot::ActConstants, Slot::EndFactor];
        self.slot.is_norm() || vectors.contains(&self.slot) || self.part == Part::Bias
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = self.layer.filter(|_| self.slot.in_block()) {
            write!(f, "layer {layer} ")?;
        }
        if let Some(number) = self.layer.filter(|_| !self.slot.in_block()) {
            write!(f, "number {number} ")?;
        }
        f.write_str(&self.operand())
    }
}

/// How the rows of a source are ordered in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowOrder {
    /// As they are used.
    Plain,
    /// Row `2 i + j` of a head is used as row `i + j * width / 2`: within every head of GGUF's LLaMA files
    /// the halves of a rotary pair were interleaved, within every expert of gpt-oss gate and up.
    PairsInterleaved {
        /// Heads (experts) that the rows hold.
        heads: usize,
    },
    /// `groups` times one after the other, pieces of `widths` rows; they are used as piece `take[0]` of all
    /// groups, then piece `take[1]` of all groups, then piece `take[2]`. Fused q|k|v of many families: one
    /// group per head (BLOOM, GPT-NeoX), per key/value head (Falcon), per block of heads (CodeGen), per row
    /// of a head (Megatron 1).
    Grouped {
        /// Groups.
        groups: usize,
        /// Rows of the pieces of a group, in the file.
        widths: [usize; 3],
        /// The pieces that become q, k and v.
        take: [usize; 3],
    },
    /// `parts` equal runs one after the other, each of `pieces` equal pieces; used are the first pieces of
    /// all parts, then the second ones, and so on. GGUF's experts: all gates, then all ups, where every
    /// expert's gate and up are wanted.
    Spread {
        /// Runs.
        parts: usize,
        /// Pieces of a run.
        pieces: usize,
    },
    /// As they are used, but for zeros in front of row `at` that no file has: biases of queries, keys and
    /// values of which keys have none (Whisper).
    WithZeros {
        /// The row.
        at: usize,
        /// How many.
        count: usize,
    },
}

/// A tensor of the checkpoint, by any of the names it is published under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSource {
    /// Alternatives; exactly one must be there.
    pub names: Vec<String>,
    /// Row order in the file.
    pub order: RowOrder,
}

impl TensorSource {
    /// A tensor whose rows are in the order of their use.
    pub fn plain(names: Vec<String>) -> Self {
        Self { names, order: RowOrder::Plain }
    }
}

/// How an operand is sharded for tensor parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shard {
    /// Every rank has all of it.
    Replicated,
    /// Ranks own rows (outputs), whole units of them in every part of the operand
    /// ([`ModelSpec::parts`](super::ModelSpec::parts)), however many tensors the file has for it.
    Columns {
        /// Rows of a unit (a head's width).
        unit: usize,
    },
    /// Ranks own columns (inputs): whole leaves of the sum, made of whole grains.
    Rows {
        /// See [`crate::numerics::leaf_bounds`].
        grain: usize,
    },
    /// Ranks own rows of the vocabulary.
    Vocab,
}

/// How tensors fill a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The role.
    pub role: Role,
    /// Tensors whose rows stand one after the other in the operand.
    pub sources: Vec<TensorSource>,
    /// Row order of all sources together, each in its own order first.
    pub order: RowOrder,
    /// Stored `[inputs, outputs]` (GPT-2's Conv1D).
    pub transposed: bool,
    /// Tensor-parallel sharding.
    pub shard: Shard,
    /// May be quantized while loading.
    pub quantize: bool,
}

impl Binding {
    /// A role filled by one tensor, in plain order.
    pub fn single(role: Role, names: Vec<String>, shard: Shard) -> Self {
        Self::rows(role, vec![TensorSource::plain(names)], shard)
    }

    /// A role filled by the rows of several tensors.
    ///
    /// The bias of a linear layer that is sharded by its inputs is replicated: it is added once, after the
    /// sum over ranks.
    pub fn rows(role: Role, sources: Vec<TensorSource>, shard: Shard) -> Self {
        let shard = match (shard, role.part) {
            (Shard::Rows { .. }, Part::Bias) => Shard::Replicated,
            _ => shard,
        };
        let matmul = matches!(
            role.slot,
            Slot::Qkv
                | Slot::Value
                | Slot::QueryDown
                | Slot::QueryUp
                | Slot::LatentDown
                | Slot::AttnGate
                | Slot::AttnOut
                | Slot::CrossQuery
                | Slot::CrossKeyValue
                | Slot::CrossOut
                | Slot::LayerGate
                | Slot::LayerOut
                | Slot::Up
                | Slot::Down
                | Slot::ExpertUp
                | Slot::ExpertDown
                | Slot::Head
        );
        Self {
            role,
            sources,
            order: RowOrder::Plain,
            transposed: false,
            shard,
            quantize: matmul && role.part == Part::Weight,
        }
    }

    /// The same, stored `[inputs, outputs]`.
    pub fn transposed(mut self) -> Self {
        self.transposed = true;
        self
    }
}

/// Whether `name` matches `pattern`, where `*` stands for any characters.
pub fn glob(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            // What `find` has consumed cannot match twice.
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::glob;

    #[test]
    fn globs() {
        assert!(glob("*.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"));
        assert!(glob("h.*.attn.bias", "h.11.attn.bias"));
        assert!(!glob("h.*.attn.bias", "h.11.attn.bias2"));
        assert!(glob("cls.seq_relationship.*", "cls.seq_relationship.weight"));
        assert!(glob("a", "a") && !glob("a", "ab") && glob("a*", "ab") && glob("*", ""));
        assert!(!glob("ab*ba", "aba"));
    }
}
