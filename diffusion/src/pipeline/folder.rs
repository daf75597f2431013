//! The folder of a pipeline: which components `model_index.json` names, and their files.

use engraft_core::checkpoint::{self, Access, ModelFiles};
use engraft_core::text::Tokenizer;
use engraft_core::{Error, Result};
use engraft_image::SchedulerConfig;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Largest `model_index.json` and scheduler configuration.
const MAX_JSON: u64 = 1 << 20;

/// Components that pictures do not depend on: what judges a picture, or reads one for a component that is
/// not there.
const NOT_NEEDED: [&str; 3] = ["safety_checker", "feature_extractor", "watermark"];

/// A pipeline's folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    index: Map<String, Value>,
}

impl Folder {
    /// Reads `model_index.json`.
    ///
    /// # Errors
    /// `Io`; `Format` for a file that is no JSON object or names no class.
    pub fn open(path: &Path) -> Result<Self> {
        let file = path.join("model_index.json");
        let text = read(&file)?;
        let no = |what: String| Error::format(file.display().to_string(), what);
        match serde_json::from_str(&text).map_err(|e| no(e.to_string()))? {
            Value::Object(index) => Ok(Self { path: path.to_owned(), index }),
            other => Err(no(format!("{other} where the components of a pipeline are expected"))),
        }
    }

    /// The class of the pipeline.
    pub fn class(&self) -> &str {
        self.index.get("_class_name").and_then(Value::as_str).unwrap_or("none")
    }

    /// A setting that is true or false.
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.index.get(name).and_then(Value::as_bool)
    }

    /// The class of a component; none where it is absent.
    pub fn class_of(&self, component: &str) -> Option<&str> {
        self.index.get(component)?.as_array()?.get(1)?.as_str()
    }

    /// Names of all components that are there.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str).filter(|name| self.class_of(name).is_some())
    }

    /// Leaves a component out, as if `model_index.json` had none.
    ///
    /// # Errors
    /// `Config` for one that is not there.
    pub fn leave_out(&mut self, component: &str) -> Result<()> {
        match self.class_of(component) {
            Some(_) => {
                self.index.remove(component);
                Ok(())
            }
            None => {
                let names: Vec<&str> = self.components().collect();
                Err(Error::config("without", component, names.join(", ")))
            }
        }
    }

    /// Refuses components besides these, and those that pictures do not depend on.
    ///
    /// # Errors
    /// `Config`, naming it.
    pub(super) fn check_components(&self, known: &[&str]) -> Result<()> {
        let parts: Vec<&str> = known.iter().copied().chain(NOT_NEEDED).collect();
        match self.components().find(|name| !parts.contains(name)) {
            Some(other) => Err(Error::config("model_index.json", other, parts.join(", "))),
            None => Ok(()),
        }
    }

    fn place(&self, component: &str) -> Result<PathBuf> {
        let path = self.path.join(component);
        match (self.class_of(component), path.is_dir()) {
            (Some(_), true) => Ok(path),
            (None, _) => {
                let file = self.path.join("model_index.json").display().to_string();
                Err(Error::format(file, format!("has no `{component}`, which a {} needs", self.class())))
            }
            (_, false) => {
                let what = format!("has no folder `{component}`, which model_index.json names");
                Err(Error::format(self.path.display().to_string(), what))
            }
        }
    }

    /// The files of a component with weights.
    ///
    /// # Errors
    /// `Format` where it is absent; what opening it raises.
    pub fn model(&self, component: &str, access: Access) -> Result<ModelFiles> {
        checkpoint::open(&self.place(component)?, access)
    }

    /// A tokenizer, with what `tokenizer_config.json` says.
    ///
    /// # Errors
    /// As [`Folder::model`].
    pub fn tokenizer(&self, component: &str) -> Result<(Tokenizer, Value)> {
        let place = self.place(component)?;
        let files = checkpoint::open_tokenizer(&place)?;
        let config = match &files {
            checkpoint::TokenizerFiles::HuggingFace { tokenizer_config, .. } => tokenizer_config.clone(),
            _ => Value::Null,
        };
        Ok((Tokenizer::from_files(&place.display().to_string(), files)?, config))
    }

    /// The scheduler's configuration.
    ///
    /// # Errors
    /// As [`Folder::model`]; `Config` for what it says.
    pub fn scheduler(&self) -> Result<SchedulerConfig> {
        let text = read(&self.place("scheduler")?.join("scheduler_config.json"))?;
        SchedulerConfig::from_json(&text).map_err(of_image)
    }
}

/// Reads a small text file.
fn read(path: &Path) -> Result<String> {
    engraft_core::file::text(path, MAX_JSON)
}

/// What the host's part of pipelines says, as the engine's error.
pub(crate) fn of_image(error: engraft_image::Error) -> Error {
    use engraft_image::Error as Host;
    match error {
        Host::Config { field, got, allowed } => Error::config(field, got, allowed),
        Host::Argument { what, got, allowed } => Error::config(what, got, allowed),
        other => Error::config("picture", other, "a PNG or JPEG file within the limits"),
    }
}
