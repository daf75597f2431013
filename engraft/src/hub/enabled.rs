//! Models from the Hugging Face hub, through its cache: what is there is used without a question to the
//! network.

use crate::hub_cache::complete;
use engraft_core::{Error, Result};
use hf_hub::HFClientSync;
use std::path::PathBuf;

/// What is fetched of a repository: weights, configuration, tokenizer, template. Nothing that runs code.
const WANTED: [&str; 6] = [
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "chat_template.jinja",
];

/// What is fetched where there are no safetensors.
const OLDER: [&str; 2] = ["pytorch_model*.bin", "pytorch_model.bin.index.json"];

/// The local folder of repository `id` (`organisation/name`): from the cache, else downloaded into it.
///
/// # Errors
/// `Io` with what the hub's client says (no such repository, no network, no permission).
pub fn fetch(id: &str) -> Result<PathBuf> {
    let failed = |e: hf_hub::HFError| Error::io(format!("hub:{id}"), std::io::Error::other(e));
    let (owner, name) = id.split_once('/').unwrap_or(("", id));
    let client = HFClientSync::new().map_err(failed)?;
    let repository = client.model(owner, name);
    if let Ok(folder) = repository.snapshot_download().local_files_only(true).send()
        && complete(&folder)
    {
        return Ok(folder);
    }
    let fetch = |patterns: &[&str]| {
        let patterns = patterns.iter().map(|p| p.to_string()).collect::<Vec<_>>();
        repository.snapshot_download().allow_patterns(patterns).send().map_err(failed)
    };
    let folder = fetch(&WANTED)?;
    // Older repositories have PyTorch's files only.
    if complete(&folder) { Ok(folder) } else { fetch(&OLDER) }
}
