//! Models from the Hugging Face hub, through its cache: what is there is used without a question to the network.

use engraft_core::{Error, Result};
use hf_hub::HFClientSync;
use std::path::{Path, PathBuf};

/// What is fetched of a repository: weights, configuration, tokenizer, template. Nothing that runs code.
const WANTED: [&str; 6] = [
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "chat_template.jinja",
];

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
    let wanted = WANTED.map(String::from).to_vec();
    repository.snapshot_download().allow_patterns(wanted).send().map_err(failed)
}

/// Whether a cached snapshot has weights and a configuration; another program may have fetched only parts.
fn complete(folder: &Path) -> bool {
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    folder.join("config.json").exists() && weights.iter().any(|w| folder.join(w).exists())
}
