//! The first stage: settings by canonical name, wherever they came from.

use super::fields::{Becomes, find, nearest};
use super::taker::{Entry, kind};
use super::{DataType, DeepSpeedConfig, Warning, check};
use crate::config::unique;
use crate::file;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// Keys by which a configuration of training is recognised.
const OF_TRAINING: &[&str] = &[
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "optimizer",
    "scheduler",
    "zero_optimization",
];

/// Largest configuration file.
const MAX_FILE: u64 = 16 << 20;

/// Settings that have been named, not yet checked.
///
/// ```
/// use engraft_core::config::deepspeed::DeepSpeedConfigBuilder;
/// use serde_json::json;
///
/// let file = json!({"dtype": "fp16", "tensor_parallel": {"tp_size": 1}, "mp_size": 1});
/// let error = DeepSpeedConfigBuilder::new().dictionary(&file).map(drop).unwrap_err();
/// assert!(error.to_string().contains("given twice"));
/// let (config, warnings) = DeepSpeedConfigBuilder::new().set("mp_size", 1)?.max_out_tokens(256).check()?;
/// assert_eq!((config.tp_size, config.max_out_tokens), (1, 256));
/// assert!(warnings[0].to_string().contains("deprecated"));
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeepSpeedConfigBuilder {
    entries: BTreeMap<String, Entry>,
    warnings: Vec<Warning>,
    /// Dictionaries, files and option lists that were read so far; setters are one more.
    sources: usize,
    /// Names that two sources give different values, and the values.
    conflicts: Vec<(String, String)>,
    /// Keys that are not known, and the nearest known one.
    unknown: Vec<(String, Option<&'static str>)>,
}

impl DeepSpeedConfig {
    /// Starts from nothing: DeepSpeed's defaults, to be changed by [`DeepSpeedConfigBuilder`]'s setters.
    pub fn builder() -> DeepSpeedConfigBuilder {
        DeepSpeedConfigBuilder::new()
    }
}

impl DeepSpeedConfigBuilder {
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// DeepSpeed's `init_inference(model, config, **kwargs)`: nothing, a dictionary, the path of a JSON (or
    /// TOML) file, options, or a dictionary or file and options.
    ///
    /// # Errors
    /// As [`DeepSpeedConfigBuilder::dictionary`] and [`DeepSpeedConfigBuilder::file`]; a `config` that is
    /// neither an object nor a text.
    pub fn from_call(config: &Value, options: &Map<String, Value>) -> Result<Self> {
        let raw = match config {
            Value::Null => Self::new(),
            Value::Object(_) => Self::new().dictionary(config)?,
            Value::String(path) => Self::new().file(Path::new(path))?,
            other => return Err(Error::config("config", kind(other), "an object or the path of a file")),
        };
        if options.is_empty() { Ok(raw) } else { raw.options(options) }
    }

    /// Adds a dictionary.
    ///
    /// # Errors
    /// `Config`: an unknown key (with the nearest known one), a setting given twice under two names, an
    /// object of a Python program.
    pub fn dictionary(self, config: &Value) -> Result<Self> {
        match config {
            Value::Object(map) => self.options(map),
            other => Err(Error::config("config", kind(other), "an object")),
        }
    }

    /// Adds named options, as keyword arguments are. Where options and what was there before differ,
    /// [`Self::check`] refuses both; equal duplicates are fine.
    ///
    /// # Errors
    /// As [`DeepSpeedConfigBuilder::dictionary`].
    pub fn options(mut self, options: &Map<String, Value>) -> Result<Self> {
        self.sources += 1;
        self.walk("", "", options)?;
        self.known()
    }

    /// Adds a JSON text.
    ///
    /// # Errors
    /// `Format` naming `file`; as [`DeepSpeedConfigBuilder::dictionary`].
    pub fn json(self, file: &str, text: &str) -> Result<Self> {
        let value =
            unique::from_str(text).map_err(|e| Error::format(file, format!("is not valid JSON: {e}")))?;
        self.dictionary(&value)
    }

    /// Adds a TOML text.
    ///
    /// # Errors
    /// As [`DeepSpeedConfigBuilder::json`].
    pub fn toml(self, file: &str, text: &str) -> Result<Self> {
        let value: Value = toml::from_str(text)
            .map_err(|e| Error::format(file, format!("is not valid TOML: {}", e.message())))?;
        self.dictionary(&value)
    }

    /// Adds a file: TOML if its name ends in `.toml`, else JSON.
    ///
    /// # Errors
    /// `Io`; `Format` for what is no regular file; as [`DeepSpeedConfigBuilder::json`].
    pub fn file(self, path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = file::text(path, MAX_FILE)?;
        if path.extension().is_some_and(|e| e == "toml") {
            self.toml(&name, &text)
        } else {
            self.json(&name, &text)
        }
    }

    /// Sets one field by its canonical dotted name, an alias or a deprecated name.
    ///
    /// # Errors
    /// As [`DeepSpeedConfigBuilder::dictionary`].
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Result<Self> {
        self.sources += 1;
        let mut map = Map::new();
        let (sections, name) = field.rsplit_once('.').unwrap_or(("", field));
        map.insert(name.to_owned(), value.into());
        for section in sections.rsplit('.').filter(|s| !s.is_empty()) {
            map = Map::from_iter([(section.to_owned(), Value::Object(map))]);
        }
        self.walk("", "", &map)?;
        self.known()
    }

    /// Element type.
    pub fn dtype(self, dtype: impl Into<DataType>) -> Self {
        self.typed("dtype", dtype.into().name().into())
    }

    /// Fused kernels.
    pub fn kernel_inject(self, on: bool) -> Self {
        self.typed("replace_with_kernel_inject", on.into())
    }

    /// Tensor-parallel degree.
    pub fn tp_size(self, ranks: usize) -> Self {
        self.typed("tensor_parallel.tp_size", ranks.into())
    }

    /// Capture of decode steps.
    pub fn graphs(self, on: bool) -> Self {
        self.typed("enable_cuda_graph", on.into())
    }

    /// Longest sequence, prompt and continuation.
    pub fn max_out_tokens(self, tokens: usize) -> Self {
        self.typed("max_out_tokens", tokens.into())
    }

    /// The checkpoint: a folder, a file, or a JSON description.
    pub fn checkpoint(self, path: impl AsRef<Path>) -> Self {
        self.typed("checkpoint", path.as_ref().display().to_string().into())
    }

    /// Weights in `bits` (8 or 4), in groups of `group` values along the inputs (0: one group per row).
    pub fn quantize(self, bits: u32, group: usize, symmetric: bool) -> Self {
        let kind = if symmetric { "symmetric" } else { "asymmetric" };
        self.typed("quant.enabled", true.into())
            .typed("quant.weight.num_bits", bits.into())
            .typed("quant.weight.group_size", group.into())
            .typed("quant.weight.q_type", kind.into())
    }

    /// The second stage: types, ranges and combinations.
    ///
    /// # Errors
    /// `Config`, naming the field as the user spelled it, and for combinations both sides.
    pub fn check(self) -> Result<(DeepSpeedConfig, Vec<Warning>)> {
        if !self.conflicts.is_empty() {
            let (names, values): (Vec<_>, Vec<_>) = self.conflicts.iter().cloned().unzip();
            let got = format!("given twice with different values ({})", values.join("; "));
            return Err(Error::config(names.join("`, `"), got, "one value each"));
        }
        check::check(self.entries, self.warnings)
    }

    /// A typed setter wins over nothing and conflicts with everything else, like any other source.
    fn typed(mut self, path: &str, value: Value) -> Self {
        self.sources += 1;
        let source = self.sources;
        self.put(path.to_owned(), Entry { spelled: path.to_owned(), source, value });
        self
    }

    fn walk(&mut self, section: &str, spelled: &str, map: &Map<String, Value>) -> Result<()> {
        for (key, value) in map {
            let full = if spelled.is_empty() { key.clone() } else { format!("{spelled}.{key}") };
            let Some(field) = find(section, key) else {
                self.unknown.push((full, nearest(section, key)));
                continue;
            };
            let path =
                if section.is_empty() { field.name.to_owned() } else { format!("{section}.{}", field.name) };
            // "auto" leaves the default, as if the key were not there; so does null.
            if value.is_null() || value.as_str() == Some("auto") {
                continue;
            }
            match (field.becomes, value) {
                (Becomes::Section, Value::Object(inner)) => self.walk(&path, &full, inner)?,
                // `moe: true` is short for its `enabled`.
                (Becomes::Section, Value::Bool(_)) if path == "moe" => {
                    self.add("moe.enabled".into(), full, value.clone())?;
                }
                // MII's `tensor_parallel` is the number of ranks.
                (Becomes::Section, Value::Number(_)) if path == "tensor_parallel" => {
                    self.add("tensor_parallel.tp_size".into(), full, value.clone())?;
                }
                (Becomes::Inlined, Value::Object(inner)) => self.walk("", &full, inner)?,
                (Becomes::Section | Becomes::Inlined, other) => {
                    return Err(Error::config(full, kind(other), "an object"));
                }
                (Becomes::Value, _) => self.add(path, full, value.clone())?,
                (Becomes::Object, _) => {
                    let allowed = "null: groups of ranks are made when the engine starts";
                    return Err(Error::config(full, kind(value), allowed));
                }
                (Becomes::Also(place), _) => self.add(place.to_owned(), full, value.clone())?,
                (Becomes::Ignored(why), _) => self.warn(full, format!("{why}; it is ignored")),
                (Becomes::Moved(to), _) => {
                    let object =
                        find(to.rsplit_once('.').map_or("", |(s, _)| s), to.rsplit('.').next().unwrap_or(to));
                    if object.is_some_and(|f| f.becomes == Becomes::Object) {
                        return Err(Error::config(
                            full,
                            kind(value),
                            "null: groups of ranks are made when the engine starts",
                        ));
                    }
                    self.warn(full.clone(), format!("is deprecated; write `{to}`"));
                    self.add(to.to_owned(), full, value.clone())?;
                }
            }
        }
        Ok(())
    }

    /// Refuses all keys that are not known at once.
    fn known(self) -> Result<Self> {
        const PAGE: &str = "those of docs/from_deepspeed.md";
        match &self.unknown[..] {
            [] => Ok(self),
            [(key, None)] => Err(Error::config(key, "an unknown key", PAGE)),
            [(key, Some(name))] => {
                let allowed = format!("`{name}`, which is the nearest, and {PAGE}");
                Err(Error::config(key, "an unknown key", allowed))
            }
            several => {
                let is = |names: &[&str]| several.iter().any(|(key, _)| names.contains(&key.as_str()));
                let training = if is(OF_TRAINING) { "; this is a configuration of training" } else { "" };
                let near =
                    several.iter().filter_map(|(key, name)| Some(format!("`{}` for `{key}`", (*name)?)));
                let near: String = near.map(|pair| format!("{pair}, ")).collect();
                let keys: Vec<&str> = several.iter().map(|(key, _)| key.as_str()).collect();
                Err(Error::config(keys.join("`, `"), "unknown keys", format!("{near}{PAGE}{training}")))
            }
        }
    }

    fn warn(&mut self, field: String, what: String) {
        self.warnings.push(Warning { field, what });
    }

    /// Within one source a setting may be named once only, under whichever name.
    fn add(&mut self, path: String, spelled: String, value: Value) -> Result<()> {
        let source = self.sources;
        if let Some(there) = self.entries.get(&path).filter(|e| e.source == source) {
            let both = format!("{}` and `{spelled}", there.spelled);
            return Err(Error::config(both, "given twice", format!("one of them: both are `{path}`")));
        }
        self.put(path, Entry { spelled, source, value });
        Ok(())
    }

    fn put(&mut self, path: String, entry: Entry) {
        match self.entries.get(&path) {
            Some(there) if same(&there.value, &entry.value) => {}
            Some(there) => {
                let both = if there.spelled == entry.spelled {
                    there.spelled.clone()
                } else {
                    format!("{}` and `{}", there.spelled, entry.spelled)
                };
                self.conflicts.push((both, format!("{} and {}", there.value, entry.value)));
            }
            None => {
                self.entries.insert(path, entry);
            }
        }
    }
}

/// Equal in meaning: 1 and 1.0, "fp16" and "half".
fn same(a: &Value, b: &Value) -> bool {
    let dtype = |v: &Value| v.as_str().and_then(|s| s.parse::<DataType>().ok());
    a == b || (a.is_number() && a.as_f64() == b.as_f64()) || (dtype(a).is_some() && dtype(a) == dtype(b))
}
