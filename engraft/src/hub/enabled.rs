//! Models from the Hugging Face hub, through its cache: what is there is used without a question to the
//! network.

use crate::hub_cache::complete;
use engraft_core::checkpoint::VocabularyFiles;
use engraft_core::{Error, Result};
use hf_hub::HFClientSync;
use hf_hub::progress::{DownloadEvent, FileProgress, Progress, ProgressEvent, ProgressHandler};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What is fetched of a repository: weights, configuration, tokenizer, template. Nothing that runs code.
const WANTED: [&str; 12] = [
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer*.json",
    "chat_template.jinja",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "*_Pooling/config.json",
];

/// What is fetched where there are no safetensors.
const OLDER: [&str; 2] = ["pytorch_model*.bin", "pytorch_model.bin.index.json"];

/// The local folder of repository `id` (`organisation/name`, or with `@revision`): from the cache, else
/// downloaded into it, while `progress` is called with the bytes so far and in all.
///
/// # Errors
/// `Io` with what the hub's client says (no such repository, no network, no permission).
pub fn fetch(id: &str, progress: impl FnMut(u64, u64) + Send + 'static) -> Result<PathBuf> {
    let failed = |e: hf_hub::HFError| Error::io(format!("hub:{id}"), std::io::Error::other(e));
    let (repository, revision) = id.split_once('@').map_or((id, None), |(id, revision)| (id, Some(revision)));
    let (owner, name) = repository.split_once('/').unwrap_or(("", repository));
    let client = HFClientSync::new().map_err(failed)?;
    let repository = client.model(owner, name);
    let wanted = || repository.snapshot_download().maybe_revision(revision.map(str::to_owned));
    let local = wanted().local_files_only(true).send().ok().filter(|folder| complete(folder));
    if let Some(folder) = local.as_ref().filter(|folder| has_tokenizer(folder)) {
        return Ok(folder.clone());
    }
    let progress = Progress::new(Download::new(progress));
    let fetch = |patterns: &[&str]| {
        let patterns = patterns.iter().map(|p| p.to_string()).collect::<Vec<_>>();
        wanted().allow_patterns(patterns).progress(progress.clone()).send().map_err(failed)
    };
    let fetched = || {
        let mut folder = fetch(&WANTED)?;
        // Older repositories have a tokenizer in the files of its kind only, and PyTorch's weights.
        if !has_tokenizer(&folder) {
            folder = fetch(&vocabulary().collect::<Vec<_>>())?;
        }
        if complete(&folder) { Ok(folder) } else { fetch(&OLDER) }
    };
    // What another program has fetched may lack a tokenizer; a model may have none.
    match (fetched(), local) {
        (Err(_), Some(folder)) => Ok(folder),
        (fetched, _) => fetched,
    }
}

/// Files of tokenizers without a `tokenizer.json`.
fn vocabulary() -> impl Iterator<Item = &'static str> {
    VocabularyFiles::names()
}

fn has_tokenizer(folder: &Path) -> bool {
    std::iter::once("tokenizer.json").chain(vocabulary()).any(|name| folder.join(name).exists())
}

/// What the client says of a download's files, as bytes so far and in all.
struct Download<F>(Mutex<Bytes<F>>);

struct Bytes<F> {
    progress: F,
    /// By file.
    files: HashMap<String, u64>,
    /// Of files that are on their way together, which the client counts as one.
    in_flight: u64,
    total: u64,
    shown: u64,
}

impl<F: FnMut(u64, u64) + Send> Download<F> {
    fn new(progress: F) -> Self {
        Self(Mutex::new(Bytes { progress, files: HashMap::new(), in_flight: 0, total: 0, shown: 0 }))
    }
}

impl<F: FnMut(u64, u64) + Send> Bytes<F> {
    fn files(&mut self, files: &[FileProgress]) {
        for file in files {
            // They are counted by themselves once they are there.
            self.in_flight = 0;
            self.files.insert(file.filename.clone(), file.bytes_completed);
        }
    }

    fn show(&mut self) {
        let now = (self.files.values().sum::<u64>() + self.in_flight).min(self.total);
        // What is counted in two ways must not go back.
        self.shown = self.shown.max(now);
        if self.total > 0 {
            (self.progress)(self.shown, self.total);
        }
    }
}

impl<F: FnMut(u64, u64) + Send> ProgressHandler for Download<F> {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(event) = event else { return };
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            DownloadEvent::Start { total_bytes, .. } => {
                (bytes.total, bytes.shown, bytes.in_flight) = (*total_bytes, 0, 0);
                bytes.files.clear();
            }
            DownloadEvent::Progress { files } => bytes.files(files),
            DownloadEvent::AggregateProgress { bytes_completed, .. } => bytes.in_flight = *bytes_completed,
            DownloadEvent::Complete => bytes.shown = bytes.total,
        }
        bytes.show();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hf_hub::progress::FileStatus;
    use std::sync::Arc;

    #[test]
    fn a_download_goes_from_nothing_to_all_and_never_back() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        let download = Download::new(move |done, total| seen.lock().unwrap().push((done, total)));
        let file = |name: &str, done, status| {
            let files =
                vec![FileProgress { filename: name.into(), bytes_completed: done, total_bytes: 0, status }];
            DownloadEvent::Progress { files }
        };
        let batch = |done| DownloadEvent::AggregateProgress {
            bytes_completed: done,
            total_bytes: 90,
            bytes_per_sec: None,
        };
        for event in [
            DownloadEvent::Complete,
            DownloadEvent::Start { total_files: 2, total_bytes: 100 },
            file("a", 4, FileStatus::InProgress),
            batch(50),
            file("a", 10, FileStatus::Complete),
            batch(80),
            file("b", 90, FileStatus::Complete),
            DownloadEvent::Complete,
        ] {
            download.on_progress(&ProgressEvent::Download(event));
        }
        let want = [0, 4, 54, 54, 90, 100, 100].map(|done| (done, 100));
        assert_eq!(*calls.lock().unwrap(), want);
    }
}
