//! How vectors of texts are made.

use engraft_core::engine::Pooling;

/// How the hidden states of a text's tokens become one vector.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::{EmbedOptions, Pooling};
///
/// let model = engraft::demo()?;
/// let options = EmbedOptions::new().pooling(Pooling::Last).normalize(false);
/// let vectors = model.embed(&["a library for images"], &options)?;
/// assert_eq!(vectors[0].len(), model.info().hidden);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmbedOptions {
    /// Which tokens' states count; none: as the model's files say (sentence-transformers' `modules.json`,
    /// GGUF's metadata), else the mean.
    pub pooling: Option<Pooling>,
    /// Whether a vector is divided by its length.
    pub normalize: bool,
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self { pooling: None, normalize: true }
    }
}

impl EmbedOptions {
    /// As the model's files say, of length 1.
    pub fn new() -> Self {
        Self::default()
    }

    /// Which tokens' states count.
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = Some(pooling);
        self
    }

    /// Whether a vector is divided by its length.
    pub fn normalize(mut self, on: bool) -> Self {
        self.normalize = on;
        self
    }
}
