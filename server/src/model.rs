//! What a server may serve.

use engraft::TextGenerator;
use std::sync::Arc;

/// A model that a server may serve; what loaders give becomes one.
///
/// ```
/// use engraft_server::Model;
///
/// let model: Model = engraft::demo()?.into();
/// assert!(matches!(model, Model::Text(_)));
/// # Ok::<(), engraft::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Model {
    /// One that the engine runs: of texts, of vectors, of sound.
    Text(Arc<TextGenerator>),
    /// A pipeline that makes pictures of texts.
    #[cfg(feature = "images")]
    Images(engraft::ImageHandle),
}

impl From<TextGenerator> for Model {
    fn from(model: TextGenerator) -> Self {
        Model::Text(Arc::new(model))
    }
}

#[cfg(feature = "images")]
impl From<engraft::ImageHandle> for Model {
    fn from(model: engraft::ImageHandle) -> Self {
        Model::Images(model)
    }
}
