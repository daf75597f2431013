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

/// The local folder of repository `id` (`organisation/name`, or with `@revision`): from the cache, else
/// downloaded into it.
///
/// # Errors
/// `Io` with what the hub's client says (no such repository, no network, no permission).
pub fn fetch(id: &str) -> Result<PathBuf> {
    let failed = |e: hf_hub::HFError| Error::io(format!("hub:{id}"), std::io::Error::other(e));
    let (repository, revision) = id.split_once('@').map_or((id, None), |(id, revision)| (id, Some(revision)));
    let (owner, name) = repository.split_once('/').unwrap_or(("", repository));
    let client = HFClientSync::new().map_err(failed)?;
    let repository = client.model(owner, name);
    let wanted = || repository.snapshot_download().maybe_revision(revision.map(str::to_owned));
    if let Ok(folder) = wanted().local_files_only(true).send()
        && complete(&folder)
    {
        return Ok(folder);
    }
    let fetch = |patterns: &[&str]| {
        let patterns = patterns.iter().map(|p| p.to_string()).collect::<Vec<_>>();
        wanted().allow_patterns(patterns).send().map_err(failed)
    };
    let folder = fetch(&WANTED)?;
    // Older repositories have PyTorch's files only.
    if complete(&folder) { Ok(folder) } else { fetch(&OLDER) }
}
