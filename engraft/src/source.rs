//! Where a model comes from, as users name it.

use crate::{demo, hub, hub_cache};
use engraft_core::checkpoint::{self, Access, ModelFiles};
use engraft_core::config::deepspeed::{CheckpointRef, DeepSpeedConfig};
use engraft_core::{Error, Result};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// A model by the place of its files.
///
/// ```
/// use engraft::ModelSource;
///
/// assert!(matches!(ModelSource::parse("models/llama.gguf"), ModelSource::Path(_)));
/// assert!(matches!(ModelSource::parse("organisation/name"), ModelSource::Hub(_)));
/// // Wherever a source is asked for, a text, an argument or a path will do.
/// let found: ModelSource = std::path::Path::new("models").into();
/// assert!(matches!(found, ModelSource::Path(_)));
/// assert!(matches!(std::env::args_os().next().map(ModelSource::from), Some(ModelSource::Path(_))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ModelSource {
    /// The model embedded in this crate.
    Demo,
    /// A folder with `config.json`, a `.gguf` file, a `.safetensors` or PyTorch file next to its
    /// `config.json`, or DeepSpeed's JSON description.
    Path(PathBuf),
    /// A repository of the Hugging Face hub, `organisation/name` or `organisation/name@revision`: taken from
    /// the cache that Hugging Face's programs share. To download what is not there needs the feature `hub`
    /// (and Rust 1.95, which its client asks for).
    Hub(String),
    /// Files that are open already (in memory, or by an own [`checkpoint::Source`]).
    Files(Box<ModelFiles>),
}

impl ModelSource {
    /// Reads what a user wrote: what exists is a path; `organisation/name`, the same with `@revision` behind
    /// it or `hf:` before it, and the address of a page on `huggingface.co` are hub ids; all else is a path
    /// that the next step will miss by name.
    pub fn parse(text: &str) -> Self {
        match hub_id(text).filter(|_| !Path::new(text).exists()) {
            Some(id) => ModelSource::Hub(id),
            None => ModelSource::Path(text.into()),
        }
    }

    /// A hub id whose files lie in `cache` (the folder that holds `models--ORG--NAME`) becomes their path;
    /// all else stays as it is. Needs neither the feature `hub` nor the network.
    pub fn cached(self, cache: &Path) -> Self {
        match self {
            ModelSource::Hub(id) => match hub_cache::snapshot(cache, &id) {
                Some(folder) => ModelSource::Path(folder),
                None => ModelSource::Hub(id),
            },
            other => other,
        }
    }

    /// A hub id becomes the path of its files: in the cache that Hugging Face's programs share
    /// (`HF_HUB_CACHE`, `HF_HOME`), else downloaded into it, while `progress` is called with the bytes so
    /// far and in all. All else stays as it is. [`open`](Self::open) does so silently.
    ///
    /// # Errors
    /// Those of the hub, or `Config` where the files are not there and the feature `hub` is missing, and for
    /// an id whose parts are no plain names.
    ///
    /// ```
    /// use engraft::ModelSource;
    ///
    /// let source = ModelSource::parse("models/llama.gguf");
    /// let here = source.fetch(|done, total| println!("{done} of {total}"))?;
    /// assert!(matches!(here, ModelSource::Path(_)));
    /// # Ok::<(), engraft::Error>(())
    /// ```
    pub fn fetch(self, progress: impl FnMut(u64, u64) + Send + 'static) -> Result<Self> {
        if let ModelSource::Hub(id) = &self {
            hub_cache::check(id)?;
        }
        let source = match hub_cache::folder(|name| std::env::var_os(name)) {
            Some(cache) => self.cached(&cache),
            None => self,
        };
        match source {
            ModelSource::Hub(id) => Ok(ModelSource::Path(hub::fetch(&id, progress)?)),
            other => Ok(other),
        }
    }

    /// The checkpoint of a DeepSpeed configuration: a path or a description, joined to its `base_dir`, with
    /// the model configuration that it may put in the place of `config.json`. None if the configuration names
    /// no checkpoint.
    ///
    /// # Errors
    /// Those of [`checkpoint::open`]; `Config` if the stored degree is not the one that the configuration
    /// states.
    pub fn configured(config: &DeepSpeedConfig) -> Result<Option<Self>> {
        let access = Access::default();
        let here = Path::new(".");
        let mut files = match &config.checkpoint {
            None => return Ok(None),
            Some(CheckpointRef::Description(value)) => {
                checkpoint::open_description(value, here, &config.base_dir, access)?
            }
            Some(CheckpointRef::Path(path)) if path.extension().is_some_and(|e| e == "json") => {
                let value = checkpoint::read_description(path)?;
                let degree =
                    value.get("tp_size").or(value.get("mp_size")).and_then(serde_json::Value::as_u64);
                if let (Some(stated), Some(stored)) = (config.training_mp_size, degree)
                    && stated as u64 != stored
                {
                    let both = format!("training_mp_size` and `tp_size` of `{}", path.display());
                    let allowed = "one value: both are the degree of the stored checkpoint";
                    return Err(Error::config(both, format!("{stated} with {stored}"), allowed));
                }
                checkpoint::open_description(&value, path.parent().unwrap_or(here), &config.base_dir, access)?
            }
            Some(CheckpointRef::Path(path)) => {
                checkpoint::open(&Path::new(&config.base_dir).join(path), access)?
            }
            Some(other) => {
                return Err(Error::internal(format!("a checkpoint of a kind that nothing opens: {other:?}")));
            }
        };
        if let Some(model) = &config.model_config {
            files.config = replaced(&files.config, model)?;
        }
        Ok(Some(ModelSource::Files(Box::new(files))))
    }

    /// Finds and opens the files; reads headers and the tokenizer only.
    ///
    /// # Errors
    /// Those of [`checkpoint::open`]; for hub ids those of [`fetch`](Self::fetch).
    pub fn open(self) -> Result<ModelFiles> {
        self.open_by(Access::default())
    }

    /// [`open`](Self::open), reaching tensors by `access`; what is open already stays as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_by(self, access: Access) -> Result<ModelFiles> {
        match self.fetch(|_, _| {})? {
            ModelSource::Demo => demo::demo_files(),
            ModelSource::Path(path) => {
                no_hub_id(&path)?;
                let files = checkpoint::open(&path, access)?;
                let tensors = files.source.tensors().len();
                tracing::info!(path = %path.display(), layout = ?files.layout, tensors, "headers are read");
                Ok(files)
            }
            ModelSource::Hub(id) => Err(Error::internal(format!("{id} was fetched and has no path"))),
            ModelSource::Files(files) => Ok(*files),
        }
    }
}

impl From<&str> for ModelSource {
    fn from(text: &str) -> Self {
        ModelSource::parse(text)
    }
}

impl From<&Path> for ModelSource {
    fn from(path: &Path) -> Self {
        ModelSource::Path(path.into())
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> Self {
        ModelSource::Path(path)
    }
}

impl From<&PathBuf> for ModelSource {
    fn from(path: &PathBuf) -> Self {
        ModelSource::Path(path.clone())
    }
}

impl From<String> for ModelSource {
    fn from(text: String) -> Self {
        ModelSource::parse(&text)
    }
}

impl From<&String> for ModelSource {
    fn from(text: &String) -> Self {
        ModelSource::parse(text)
    }
}

/// As text where it is some, so that an argument of a program may name a model of the hub; else as a path.
impl From<&OsStr> for ModelSource {
    fn from(text: &OsStr) -> Self {
        text.to_str().map_or_else(|| ModelSource::Path(text.into()), ModelSource::parse)
    }
}

impl From<OsString> for ModelSource {
    fn from(text: OsString) -> Self {
        text.as_os_str().into()
    }
}

impl From<ModelFiles> for ModelSource {
    fn from(files: ModelFiles) -> Self {
        ModelSource::Files(Box::new(files))
    }
}

/// A user's configuration in the place of the files' own, with what only the files know: in which layout
/// their tensors are, and in which order fused rows were merged.
fn replaced(found: &Value, given: &Value) -> Result<Value> {
    let mut config = given.clone();
    let Some(map) = config.as_object_mut() else { return Ok(given.clone()) };
    for field in ["engraft_layout", "engraft_sentence", "checkpoint_version"] {
        let Some(known) = found.get(field) else { continue };
        let same = |said: &Value| match (said.as_f64(), known.as_f64()) {
            (Some(a), Some(b)) => a == b,
            _ => said == known,
        };
        let said = map.get(field).filter(|said| !said.is_null());
        if let Some(said) = said.filter(|&said| !same(said)) {
            let allowed = format!("{known}, which the checkpoint has, or no `{field}`");
            return Err(Error::config(format!("config.{field}"), said, allowed));
        }
        map.insert(field.into(), known.clone());
    }
    Ok(config)
}

/// Addresses of the hub's pages.
const PAGES: [&str; 4] =
    ["https://huggingface.co/", "http://huggingface.co/", "https://hf.co/", "https://www.huggingface.co/"];

/// What names the hub but no repository there is no file either.
fn no_hub_id(path: &Path) -> Result<()> {
    let text = path.to_string_lossy();
    let meant = text.starts_with("hf:") || PAGES.iter().any(|page| text.starts_with(page));
    if !meant || path.exists() {
        return Ok(());
    }
    let allowed = "hf:organisation/name, hf:organisation/name@revision, or the address of a model's page; \
        a repository without an organisation has one by now (gpt2: hf:openai-community/gpt2)";
    Err(Error::config("model", format!("\"{text}\""), allowed))
}

/// `organisation/name` or `organisation/name@revision`, where a text is one of them, has `hf:` before it, or
/// is the address of a repository's page.
fn hub_id(text: &str) -> Option<String> {
    if let Some(page) = PAGES.iter().find_map(|page| text.strip_prefix(page)) {
        let page = page.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        let mut parts = page.splitn(4, '/');
        let (organisation, name) = (parts.next()?, parts.next()?);
        let revision = match (parts.next(), parts.next()) {
            (None, _) => String::new(),
            (Some("tree"), Some(revision)) => format!("@{revision}"),
            // A file of the repository: the revision is one part of its address.
            (Some("blob" | "resolve"), Some(file)) => format!("@{}", file.split('/').next()?),
            _ => return None,
        };
        return hub_id(&format!("hf:{organisation}/{name}{revision}"));
    }
    let named = text.strip_prefix("hf://").or_else(|| text.strip_prefix("hf:"));
    let id = named.unwrap_or(text);
    let (repository, revision) = id.split_once('@').map_or((id, None), |(id, revision)| (id, Some(revision)));
    let name = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphanumeric())
            && s.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let is_revision = |s: &str| s.split('/').all(name) && !s.contains("..");
    // A file that is not there is no repository.
    let file = [".gguf", ".safetensors", ".json", ".bin"].iter().any(|end| text.ends_with(end));
    let known = repository.split_once('/').is_some_and(|(org, model)| name(org) && name(model));
    (known && revision.is_none_or(is_revision) && (named.is_some() || !file)).then(|| id.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_given_configuration_keeps_what_only_the_files_know() {
        let found = json!({"model_type": "x", "engraft_layout": "gguf", "checkpoint_version": 2.0});
        let whole = json!({"model_type": "y", "engraft_layout": "gguf", "checkpoint_version": 2.0});
        assert_eq!(replaced(&found, &json!({"model_type": "y"})).unwrap(), whole);
        assert_eq!(replaced(&found, &json!({"model_type": "y", "checkpoint_version": 2})).unwrap(), whole);
        let text = replaced(&found, &json!({"checkpoint_version": 0})).unwrap_err().to_string();
        assert!(text.contains("config.checkpoint_version") && text.contains("2.0"), "{text}");
        let own = json!({"model_type": "y", "checkpoint_version": 1});
        assert_eq!(replaced(&json!({"model_type": "x"}), &own).unwrap(), own);
    }

    #[test]
    fn a_hub_id_without_an_organisation_says_what_is_missing() {
        for text in ["hf:gpt2", "https://huggingface.co/gpt2", "hf:a/b/c"] {
            let error = ModelSource::parse(text).open().map(drop).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("hf:organisation/name"), "{error}");
        }
        let error = ModelSource::parse("gpt2").open().map(drop).unwrap_err().to_string();
        assert!(error.contains("gpt2") && !error.contains("organisation"), "{error}");
    }

    /// Whoever makes one by hand is not asked by `parse`.
    #[test]
    fn a_hub_id_with_a_revision_that_is_a_path_is_refused_by_name() {
        for id in ["org/name@../../x", "org/name@/etc/passwd"] {
            let error = ModelSource::Hub(id.into()).open().map(drop).unwrap_err().to_string();
            assert!(error.contains(id) && error.contains("a plain name"), "{error}");
        }
    }

    #[test]
    fn paths_and_hub_ids_are_distinguished() {
        assert!(matches!(ModelSource::parse("org/some-model_1.5"), ModelSource::Hub(_)));
        let id = |text: &str| match ModelSource::parse(text) {
            ModelSource::Hub(id) => id,
            other => format!("{other:?}"),
        };
        for (text, want) in [
            ("hf:org/name", "org/name"),
            ("hf://org/name@v1.0", "org/name@v1.0"),
            ("org/name@refs/pr/3", "org/name@refs/pr/3"),
            ("hf:org/odd.json", "org/odd.json"),
            ("https://huggingface.co/org/name", "org/name"),
            ("https://huggingface.co/org/name/?library=x#top", "org/name"),
            ("https://huggingface.co/org/name/tree/v2/", "org/name@v2"),
            ("https://hf.co/org/name/resolve/main/model.safetensors?download=true", "org/name@main"),
        ] {
            assert_eq!(id(text), want, "{text}");
        }
        let none = ["org/name@", "org/name@../x", "hf:name", "org/name@a//b", "https://huggingface.co/org"];
        for path in
            none.into_iter().chain(["https://huggingface.co/datasets/org/name", "https://example.com/a/b"])
        {
            assert!(matches!(ModelSource::parse(path), ModelSource::Path(_)), "{path}");
        }
        for path in ["./model", "/models/x", "model", "a/b/c", "../b", "dir/model.gguf", "src/lib.rs", "a/"] {
            assert!(matches!(ModelSource::parse(path), ModelSource::Path(_)), "{path}");
        }
    }
}
