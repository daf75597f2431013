//! The tensors of a checkpoint as readers of every format hand them out.

use crate::Result;
use crate::mem::{Float, Stored, WeightFormat};
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

/// The 16-bit type that most elements of the matrices are stored in; none where most are in another.
pub fn stored_float(tensors: &[TensorInfo]) -> Option<Float> {
    let of = |wanted: &dyn Fn(Stored) -> bool| -> u64 {
        let matrices = tensors.iter().filter(|t| t.shape.len() > 1 && wanted(t.stored));
        matrices.map(|t| t.elements() as u64).sum()
    };
    let (f16, bf16) = (of(&|s| s == Stored::F16), of(&|s| s == Stored::Bf16));
    let (most, dtype) = if f16 > bf16 { (f16, Float::F16) } else { (bf16, Float::Bf16) };
    (2 * most > of(&|_| true)).then_some(dtype)
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

    /// The same for some bytes of what [`Source::bytes`] has lent: a tensor need not be in memory as a whole
    /// while it is packed. Nothing happens for bytes from elsewhere.
    fn release_bytes(&self, bytes: &[u8]) {
        let _ = bytes;
    }

    /// Bytes of all tensors together.
    fn total_bytes(&self) -> u64;

    /// What became of tensors that are not stored as they are handed out, one sentence each; for reports.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// The operand of a role as every rank of a converted model has it ([`ready`](super::ready)); none where
    /// there are tensors to make it from.
    ///
    /// # Errors
    /// `Error::Tensor` for a role that a converted model lacks, `Error::Io` if reading fails.
    fn ready(&self, role: &str) -> Result<Option<Vec<ReadyOperand<'_>>>> {
        let _ = role;
        Ok(None)
    }

    /// Whether [`Source::ready`]'s operands are sharded by the leaves of sums; else outputs near-evenly.
    fn is_sharded_by_leaves(&self) -> bool {
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_most_elements_of_matrices_counts() {
        let tensor = |shape: &[usize], stored| TensorInfo { name: "t".into(), shape: shape.to_vec(), stored };
        let (norm, table) = (tensor(&[900], Stored::F32), tensor(&[10, 10], Stored::F32));
        assert_eq!(stored_float(&[norm.clone(), tensor(&[4, 4], Stored::Bf16)]), Some(Float::Bf16));
        assert_eq!(
            stored_float(&[tensor(&[4, 4], Stored::F16), tensor(&[3, 4], Stored::Bf16)]),
            Some(Float::F16)
        );
        assert_eq!(stored_float(&[table, tensor(&[10, 10], Stored::F16)]), None);
        assert_eq!(stored_float(&[norm]), None);
        assert_eq!(stored_float(&[]), None);
    }
}
