//! Temporary.
use crate::{Result, mem::Stored};
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
}
