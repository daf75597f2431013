//! Values of heads that are not what a matmul gives: keys before their norm and rotation, normed, or times
//! a factor.

use super::{Block, Exec, Scratch};
use crate::Result;
use crate::mem::Device;
use crate::ops::{Convert, HeadNorm, Scale};

impl<D: Device> Block<D> {
    /// Finishes the values in `scratch.workspace`, whose keys are as the matmul gave them.
    pub(super) fn values(&self, x: &mut Exec<'_, D>, tokens: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let (heads, Scratch { workspace: qkv, attn, .. }) = (self.spec.heads, s);
        if self.spec.kv_from.is_some() {
            return Ok(());
        }
        let (cols, k, v) = (heads.qkv_cols(), heads.q_cols(), heads.q_cols() + heads.k_cols());
        if self.spec.keys_are_values {
            // An op reads one buffer and writes another: by way of attention's, which is free until then.
            let keys = qkv.shaped(tokens, cols)?.columns(k..v)?;
            x.run(Convert { x: keys, bias: None, out: attn.shaped_mut(tokens, v - k)? })?;
            let out = qkv.shaped_mut(tokens, cols)?.columns(v..cols)?;
            x.run(Convert { x: attn.shaped(tokens, v - k)?, bias: None, out })?;
        }
        if let Some(norm) = &self.value_norm {
            let values = qkv.shaped_mut(tokens, cols)?.columns(v..cols)?;
            x.run(HeadNorm { x: values, width: heads.v_dim, norm: norm.weights() })?;
        }
        match self.spec.value_factor {
            Some(factor) => {
                x.run(Scale { x: qkv.shaped_mut(tokens, cols)?.columns(v..cols)?, factor, cap: None })
            }
            None => Ok(()),
        }
    }
}
