//! The model inside the program, so that the first command works offline on a fresh machine.

use engraft_core::Result;
use engraft_core::checkpoint::{ModelFiles, TokenizerFiles, open_bytes};
use std::borrow::Cow;
use std::path::PathBuf;

const CONFIG: &[u8] = include_bytes!("../demo-model/config.json");
const GENERATION: &[u8] = include_bytes!("../demo-model/generation_config.json");
const WEIGHTS: &[u8] = include_bytes!("../demo-model/model.safetensors");
const TOKENIZER: &[u8] = include_bytes!("../demo-model/tokenizer.json");
const TOKENIZER_CONFIG: &[u8] = include_bytes!("../demo-model/tokenizer_config.json");

/// The embedded demo model's files, opened; see `demo-model/README.md` for what it is and how it was trained.
///
/// # Errors
/// None for an intact build; those of [`open_bytes`].
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// // Any opened files are a model, also those of an own format.
/// let model = engraft::Options::new().open(engraft::demo_files()?)?;
/// assert_eq!(model.info().name, "demo-model");
/// # Ok(())
/// # }
/// ```
pub fn demo_files() -> Result<ModelFiles> {
    let tokenizer = TokenizerFiles::from_bytes(Some(TOKENIZER.to_vec()), Some(TOKENIZER_CONFIG), None)?;
    let mut files = open_bytes(CONFIG, Some(GENERATION), Cow::Borrowed(WEIGHTS), tokenizer)?;
    files.path = PathBuf::from("demo-model");
    Ok(files)
}
