//! The tensors of a checkpoint as readers of every format hand them out.

use crate::Result;
use crate::mem::{Stored, WeightFormat};
use std::borrow::Cow;

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

/// One operand of one rank: rows of one format.
#[derive(Debug)]
pub struct ReadyOperand<'a> {
    /// Rows (of a vector: 1).
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Format of the bytes.
    pub format: WeightFormat,
    /// The bytes in the format's file layout.
    pub bytes: Cow<'a, [u8]>,
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

    /// The caller is done with this tensor: its mapped pages may leave memory. They come back by themselves
    /// if `bytes` is used again. Nothing happens where there is no mapping.
    fn release(&self, name: &str);

    /// Bytes of all tensors together.
    fn total_bytes(&self) -> u64;

    /// The operand of a role as every rank of a converted model has it ([`ready`](super::ready)); none where
    /// there are tensors to make it from.
    ///
    /// # Errors
    /// `Error::Tensor` for a role that a converted model lacks, `Error::Io` if reading fails.
    fn ready(&self, role: &str) -> Result<Option<Vec<ReadyOperand<'_>>>> {
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
