//! A configuration that is being filled from metadata, and what the list of tensors says next to it.

use super::Metadata;
use super::words::TOKEN_IDS;
use crate::Result;
use crate::checkpoint::TensorInfo;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// What the list of tensors says.
#[derive(Default)]
pub(super) struct Seen {
    pub vocabulary: Option<usize>,
    pub token_types: Option<usize>,
    pub head: bool,
    /// Biases of q, k and v.
    pub qkv_bias: bool,
    /// Biases of the row that latent attention keeps.
    pub latent_bias: bool,
    /// Norms of queries and keys.
    pub qk_norm: bool,
    /// A second norm before attention (Falcon 40B).
    pub second_norm: bool,
    /// A gate in the encoder's feed-forward part (T5 1.1).
    pub gated_encoder: bool,
    /// Biases by distance of the second block's own (UMT5).
    pub bias_of_each: bool,
    /// Blocks with a router.
    pub routed: BTreeSet<u64>,
    /// Blocks with keys, and those with values, of their own.
    pub keys: BTreeSet<u64>,
    pub values: BTreeSet<u64>,
    /// A bias of the embeddings' norm.
    pub norm_bias: bool,
    /// A dense part behind the pooling.
    pub dense: bool,
    /// Rows of the first block's gate of what its heads give.
    pub gate_rows: Option<usize>,
    /// Rows of the table of every block's own inputs.
    pub layer_rows: Option<usize>,
}

impl Seen {
    pub fn among<'a>(tensors: impl IntoIterator<Item = &'a TensorInfo>) -> Self {
        let mut seen = Self::default();
        for t in tensors {
            match t.name.as_str() {
                "token_embd.weight" => seen.vocabulary = t.shape.first().copied(),
                "token_types.weight" => seen.token_types = t.shape.first().copied(),
                "output.weight" => seen.head = true,
                "blk.0.attn_q.bias" | "blk.0.attn_qkv.bias" => seen.qkv_bias = true,
                "blk.0.attn_kv_a_mqa.bias" => seen.latent_bias = true,
                "token_embd_norm.bias" => seen.norm_bias = true,
                "dense_2.weight" | "dense_3.weight" => seen.dense = true,
                "blk.0.attn_gate.weight" => seen.gate_rows = t.shape.first().copied(),
                "blk.0.attn_q_norm.weight" => seen.qk_norm = true,
                "blk.0.attn_norm_2.weight" => seen.second_norm = true,
                "per_layer_token_embd.weight" => seen.layer_rows = t.shape.first().copied(),
                "enc.blk.0.ffn_gate.weight" => seen.gated_encoder = true,
                "enc.blk.1.attn_rel_b.weight" => seen.bias_of_each = true,
                other => {
                    seen.routed.extend(block_of(other, ".ffn_gate_inp.weight"));
                    seen.keys.extend(block_of(other, ".attn_k.weight"));
                    seen.values.extend(block_of(other, ".attn_v.weight"));
                }
            }
        }
        seen
    }
}

/// The number of the block that a tensor is in, where its name ends so.
fn block_of(name: &str, ending: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.strip_suffix(ending)?.parse().ok()
}

/// A config being filled.
pub(super) struct Translation<'m> {
    pub metadata: &'m Metadata,
    pub arch: &'m str,
    pub out: Map<String, Value>,
}

impl Translation<'_> {
    pub fn put(&mut self, name: &str, value: Value) {
        self.out.insert(name.into(), value);
    }

    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        self.metadata.uniform_u64(&format!("{}.{key}", self.arch))
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.metadata.f64(&format!("{}.{key}", self.arch))
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.metadata.bool(&format!("{}.{key}", self.arch))
    }

    /// Copies integers: pairs of GGUF key (without the architecture) and config name.
    pub fn counts(&mut self, pairs: &[(&str, &str)]) -> Result<()> {
        for (key, name) in pairs {
            if let Some(n) = self.count(key)? {
                self.put(name, json!(n));
            }
        }
        Ok(())
    }

    /// Copies numbers.
    pub fn numbers(&mut self, pairs: &[(&str, &str)]) -> Result<()> {
        for (key, name) in pairs {
            if let Some(n) = self.number(key)? {
                self.put(name, json!(n));
            }
        }
        Ok(())
    }

    /// Which blocks have a window.
    pub fn layer_types(&mut self, slides: &[bool]) {
        let word = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
        self.put("layer_types", json!(slides.iter().map(word).collect::<Vec<_>>()));
    }

    pub fn token_ids(&mut self) -> Result<()> {
        for (key, name) in TOKEN_IDS {
            if let Some(id) = self.metadata.u64(key)? {
                self.put(name, json!(id));
            }
        }
        Ok(())
    }
}
