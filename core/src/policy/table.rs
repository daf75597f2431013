//! A policy from a file: an architecture described as a table, without a line of Rust.
//!
//! A table names the built-in family it is `like`, says where the configuration keeps its sizes, what is
//! changed, and how the tensors are called, in the notation of `names`. `docs/add_a_policy.md` has the format
//! and an example; data flows from here into the same [`Described`] families that the engine brings along.

use super::describe::Described;
use super::families::FAMILIES;
use super::names::OwnedNames;
use super::*;
use crate::config::unique;
use crate::file;
use crate::params::NormKind;
use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Largest file of a table.
const MOST_FILE: u64 = 4 << 20;
/// Bytes that a compiled pattern may take, and patterns of a table: a table is input like any other file.
const PATTERN_BYTES: usize = 1 << 16;
/// Bytes of a pattern as it is written: before it is compiled, a parser keeps some 500 for each.
const MOST_PATTERN: usize = 1024;
const MOST_RULES: usize = 64;

/// A policy that was read from a table.
#[derive(Debug, Clone)]
pub struct TablePolicy {
    table: Table,
    like: Described,
    names: OwnedNames,
    /// Names where the encoder of a family with a decoder is alone.
    alone: Option<OwnedNames>,
    ignored: Vec<String>,
    rules: Vec<Asked>,
    /// Fields of the configuration that the user lets pass unread.
    accepted: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Name for messages.
    name: String,
    /// Values of `model_type` that it describes.
    model_types: Vec<String>,
    /// The built-in family that it resembles.
    like: String,
    /// Field of that family: field of this configuration (nested ones by dots).
    #[serde(default)]
    rename: BTreeMap<String, String>,
    /// Fields that this configuration leaves out.
    #[serde(default)]
    set: Map<String, Value>,
    /// What is different about the blocks.
    #[serde(default)]
    change: Change,
    /// What stands before every name.
    prefixes: Option<Vec<String>>,
    /// Before names inside blocks; `{}` is the layer.
    block: Option<String>,
    /// Slot: names.
    #[serde(default)]
    names: BTreeMap<String, String>,
    /// How a fused q|k|v lies in the file.
    qkv: Option<Fused>,
    /// Whether linear weights are stored `[inputs, outputs]`.
    transposed: Option<bool>,
    /// Patterns of unused tensors.
    #[serde(default)]
    ignored: Vec<String>,
    /// How tensors are sharded for tensor parallelism: a regular expression and a word.
    #[serde(default)]
    partition: Vec<Rule>,
    /// The same as Hugging Face writes it: module pattern and word.
    #[serde(default)]
    tp_plan: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    placement: Option<PlacementWord>,
    norm: Option<NormWord>,
    gated: Option<bool>,
    bias: Option<[bool; 4]>,
    head_bias: Option<bool>,
    qk_norm: Option<bool>,
    embed_scale: Option<f32>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PlacementWord {
    Pre,
    Post,
    Parallel,
    ParallelOneNorm,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NormWord {
    Rms,
    Layer,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fused {
    Concat,
    PerHead,
    PerKvHead,
    PerRow,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// A regular expression over whole tensor names.
    pattern: String,
    /// `column`, `row`, `replicated`, or the words of a Hugging Face `tp_plan`.
    style: String,
}

/// A rule that was checked.
#[derive(Debug, Clone)]
struct Asked {
    /// Over whole tensor names.
    regex: Regex,
    /// Where it stands, as the user wrote it.
    field: &'static str,
    pattern: String,
    word: String,
    style: Style,
}

/// What a rule asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Outputs,
    /// Outputs that every rank gathers: as good as having the whole on every rank.
    Gathered,
    Inputs,
    Whole,
    /// A word about a module, not about its tensors.
    Any,
}

/// The words that a rule may use.
const STYLES: [(Style, &[&str]); 5] = [
    (
        Style::Outputs,
        &[
            "column",
            "colwise",
            "packed_colwise",
            "local_colwise",
            "embedding_rowwise",
            "vocab_parallel_rowwise",
        ],
    ),
    (Style::Gathered, &["colwise_rep", "colwise_gather_output"]),
    (
        Style::Inputs,
        &["row", "rowwise", "rowwise_rep", "rowwise_split_input", "packed_rowwise", "local_rowwise"],
    ),
    (
        Style::Whole,
        &["replicated", "replicate", "skip", "replicated_with_grad_allreduce", "sequence_parallel"],
    ),
    (Style::Any, &["local", "gather", "ep_router", "grouped_gemm", "moe_tp_experts"]),
];

impl Style {
    fn read(field: &str, word: &str) -> Result<Self> {
        let found = STYLES.iter().find(|(_, words)| words.contains(&word));
        found.map(|(style, _)| *style).ok_or_else(|| {
            let known: Vec<&str> = STYLES.iter().flat_map(|(_, words)| words.iter().copied()).collect();
            Error::config(field, format!("\"{word}\""), known.join(", "))
        })
    }

    /// Whether an operand of `slot` that the engine shards as `shard` is what the rule asks for.
    fn allows(self, slot: Slot, shard: Shard) -> bool {
        // To a table of embeddings, Hugging Face's `rowwise` means its rows, which are the vocabulary.
        let table = slot == Slot::TokenEmbed && self == Style::Inputs;
        match shard {
            Shard::Columns { .. } | Shard::Vocab => {
                matches!(self, Style::Outputs | Style::Gathered | Style::Any) || table
            }
            Shard::Rows { .. } => matches!(self, Style::Inputs | Style::Any),
            Shard::Replicated => matches!(self, Style::Whole | Style::Gathered | Style::Any),
        }
    }
}

impl Asked {
    fn new(field: &'static str, pattern: &str, expression: &str, word: &str) -> Result<Self> {
        let style = Style::read(field, word)?;
        if expression.len() > MOST_PATTERN {
            let field = field.replace(".style", ".pattern");
            let allowed = format!("at most {MOST_PATTERN} bytes; it has {}", expression.len());
            return Err(Error::config(field, pattern, allowed));
        }
        let regex = RegexBuilder::new(&format!("^(?:{expression})$"))
            .size_limit(PATTERN_BYTES)
            .dfa_size_limit(PATTERN_BYTES)
            .build()
            .map_err(|e| Error::config(field.replace(".style", ".pattern"), pattern, e.to_string()))?;
        Ok(Self { regex, field, pattern: pattern.into(), word: word.into(), style })
    }

    fn rule(rule: &Rule) -> Result<Self> {
        Self::new("partition.style", &rule.pattern, &rule.pattern, &rule.style)
    }

    /// An entry of a `tp_plan`: `*` is one part of a module's name, and `model.` may stand before it.
    fn module(pattern: &str, word: &str) -> Result<Self> {
        let name = pattern.strip_prefix("model.").unwrap_or(pattern);
        let parts: Vec<String> = name.split('*').map(regex::escape).collect();
        let expression = format!(r"(?:model\.)?{}\.(?:weight|bias)", parts.join("[^.]+"));
        Self::new("tp_plan", pattern, &expression, word)
    }
}

impl Table {
    /// A family's names with those of the table in their place.
    fn names_over(&self, like: Names<'_>) -> Result<OwnedNames> {
        let mut slots: BTreeMap<Slot, String> =
            like.base.iter().chain(like.slots).map(|(slot, n)| (*slot, n.to_string())).collect();
        for (name, names) in &self.names {
            let slot = Slot::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| {
                let known: Vec<&str> = Slot::ALL.iter().map(|s| s.name()).collect();
                Error::config(format!("names.{name}"), "no slot", known.join(", "))
            })?;
            slots.insert(slot, names.clone());
        }
        let prefixes = || like.prefixes.iter().map(ToString::to_string).collect();
        Ok(OwnedNames {
            prefixes: self.prefixes.clone().unwrap_or_else(prefixes),
            block: self.block.clone().unwrap_or_else(|| like.block.to_string()),
            slots: slots.into_iter().collect(),
            transposed: self.transposed.unwrap_or(like.transposed),
            experts: like.experts,
            gate_behind: like.gate_behind,
        })
    }
}

/// What is wrong with a table, with its file's name.
fn in_file(path: &Path, error: Error) -> Error {
    match error {
        Error::Format { what, .. } => Error::format(path.display().to_string(), what),
        other => Error::format(path.display().to_string(), other.to_string()),
    }
}

impl TablePolicy {
    /// Reads a table from a file, `.json` or `.toml`.
    ///
    /// # Errors
    /// `Io`, `Config` for another ending, `Format` naming the file for one that is not regular or has more
    /// than 4 MiB, and for what is wrong with the table.
    pub fn read(path: &Path) -> Result<Self> {
        let text = || file::text(path, MOST_FILE);
        match path.extension().and_then(|e| e.to_str()) {
            Some("json") => Self::from_json(&text()?).map_err(|e| in_file(path, e)),
            Some("toml") => Self::from_toml(&text()?).map_err(|e| in_file(path, e)),
            _ => {
                Err(Error::config("policy", path.display().to_string(), "a file that ends in .json or .toml"))
            }
        }
    }

    /// Reads a table from JSON text.
    ///
    /// # Errors
    /// `Format` for broken JSON, `Config` naming the field for a family, slot or word that does not exist.
    pub fn from_json(text: &str) -> Result<Self> {
        Self::new(unique::from_str(text).map_err(|e| Error::format("policy table", e.to_string()))?)
    }

    /// Reads a table from TOML text.
    ///
    /// # Errors
    /// As [`TablePolicy::from_json`].
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::new(toml::from_str(text).map_err(|e| Error::format("policy table", e.to_string()))?)
    }

    /// Takes a parsed table.
    ///
    /// # Errors
    /// As [`TablePolicy::from_json`].
    pub fn new(value: Value) -> Result<Self> {
        let table: Table =
            serde_json::from_value(value).map_err(|e| Error::format("policy table", e.to_string()))?;
        let like = FAMILIES.iter().find(|d| d.name == table.like).copied().ok_or_else(|| {
            let known: Vec<&str> = FAMILIES.iter().map(|d| d.name).collect();
            Error::config("like", format!("\"{}\"", table.like), known.join(", "))
        })?;
        let names = table.names_over(like.names)?;
        let alone = like.encoder.map(|names| table.names_over(names)).transpose()?;
        let known = like.names.ignored.iter().map(ToString::to_string);
        let ignored = known.chain(table.ignored.iter().cloned()).collect();
        for (field, count) in [("partition", table.partition.len()), ("tp_plan", table.tp_plan.len())] {
            if count > MOST_RULES {
                return Err(Error::config(field, format!("{count} rules"), format!("at most {MOST_RULES}")));
            }
        }
        let modules = table.tp_plan.iter().map(|(pattern, word)| Asked::module(pattern, word));
        let rules = table.partition.iter().map(Asked::rule).chain(modules).collect::<Result<_>>()?;
        Ok(Self { table, like, names, alone, ignored, rules, accepted: Vec::new() })
    }

    /// The configuration in the words of the family that it is like.
    ///
    /// # Errors
    /// `Config` for a target inside a value that is no object.
    fn translated(&self, config: &ModelConfig) -> Result<ModelConfig> {
        let mut to = config.clone();
        for (ours, theirs) in &self.table.rename {
            if let Some(value) = config.get(theirs) {
                to = put(&to, "rename", ours, value)?;
            }
        }
        for (field, value) in &self.table.set {
            if to.get(field).is_none() {
                to = put(&to, "set", field, value)?;
            }
        }
        Ok(to.with("model_type", self.like.types[0]))
    }

    /// What the family makes of a configuration.
    fn read_by_family(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<(ModelSpec, QkvLayout)> {
        let config = self.translated(config)?;
        let mut spec = (self.like.spec)(&config, catalog)?;
        resolve::say_what_drafts(&mut spec, &config)?;
        Ok((spec, (self.like.layout)(&config)))
    }

    /// Whether the family reads a field: another value of it gives another model or an error, here or with
    /// another value of one of the others (of a setting under two names it reads one, some it reads at need).
    fn reads(&self, config: &ModelConfig, catalog: Catalog<'_>, field: &str) -> bool {
        let others = config.fields().filter(|(other, _)| *other != field);
        let mut changed =
            others.flat_map(|(other, _)| [config.with(other, Value::Null), changed(config, other)]);
        self.matters(config, catalog, field) || changed.any(|config| self.matters(&config, catalog, field))
    }

    /// Whether another value of a field gives another model, or an error.
    fn matters(&self, config: &ModelConfig, catalog: Catalog<'_>, field: &str) -> bool {
        let own = self.read_by_family(config, catalog).ok();
        let wrong = config.with(field, json!({ "?": [] }));
        [wrong, config.with(field, Value::Null), changed(config, field)]
            .iter()
            .any(|other| self.read_by_family(other, catalog).ok() != own)
    }

    /// Refuses fields of a configuration that the family does not read and that may change the model.
    ///
    /// # Errors
    /// `Config`, naming the field; for a field of `rename` or `set` that the family does not read as well.
    fn check_fields(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<Vec<String>> {
        let (who, translated) = (format!("{}'s table", self.table.name), self.translated(config)?);
        self.read_by_family(config, catalog).map_err(|e| match e {
            Error::Config { field, got, allowed } if got.starts_with("missing") => {
                let names = format!("{allowed}, or a field that `rename` of {who} names for {field}");
                Error::Config { field, got, allowed: names }
            }
            other => other,
        })?;
        let plain = Self {
            table: Table { rename: BTreeMap::new(), set: Map::new(), ..self.table.clone() },
            ..self.clone()
        };
        let given = self.table.rename.keys().map(|field| ("rename", field));
        for (key, field) in given.chain(self.table.set.keys().map(|field| ("set", field))) {
            if translated.get(field).is_some() && !plain.reads(&translated, catalog, field) {
                let allowed = format!("a field that {} reads", self.table.like);
                return Err(Error::config(key, format!("\"{field}\""), allowed));
            }
        }
        let renamed = |field: &str| self.table.rename.values().any(|from| from == field);
        let is_read = |field: &str| renamed(field) || self.reads(config, catalog, field);
        fields::accept(fields::unread(config, &is_read), &self.accepted, &who)
    }

    fn change(&self, spec: &mut ModelSpec) {
        let change = self.table.change;
        let norm = |norm: &mut Option<NormSpec>| {
            if let (Some(norm), Some(word)) = (norm, change.norm) {
                norm.kind = match word {
                    NormWord::Rms => NormKind::Rms,
                    NormWord::Layer => NormKind::Layer,
                };
                norm.bias = norm.kind == NormKind::Layer;
            }
        };
        let one_norm = matches!(change.placement, Some(PlacementWord::ParallelOneNorm));
        spec.each(|_, b| {
            norm(&mut b.attn_norm);
            norm(&mut b.mlp_norm);
            b.mlp_norm = b.mlp_norm.filter(|_| !one_norm);
            b.mlp.gated = change.gated.unwrap_or(b.mlp.gated);
            b.bias = change.bias.unwrap_or(b.bias);
            if let Some(on) = change.qk_norm {
                b.qk_norm = b.attn_norm.filter(|_| on).map(|norm| QkNorm::new(norm, QkSpan::Head));
            }
        });
        norm(&mut spec.final_norm);
        if let Some(word) = change.placement {
            spec.placement = match word {
                PlacementWord::Pre => Placement::Pre,
                PlacementWord::Post => Placement::Post,
                PlacementWord::Parallel | PlacementWord::ParallelOneNorm => Placement::Parallel,
            };
        }
        if let (HeadSpec::Tokens { bias, .. }, Some(with)) = (&mut spec.head, change.head_bias) {
            *bias = with;
        }
        spec.embed.scale = change.embed_scale.or(spec.embed.scale);
    }

    /// Compares the rules with how the engine shards: a slot has one way that the blocks' sums allow.
    fn check_rules(&self, bindings: &[Binding]) -> Result<()> {
        for binding in bindings.iter().filter(|b| b.role.part == Part::Weight) {
            let names = binding.sources.iter().flat_map(|s| &s.names);
            // Of every name the first rule that fits: q, k and v may have one each.
            let mut rules = names.filter_map(|name| self.rules.iter().find(|rule| rule.regex.is_match(name)));
            if let Some(rule) = rules.find(|rule| !rule.style.allows(binding.role.slot, binding.shard)) {
                let own = match binding.shard {
                    Shard::Columns { .. } | Shard::Vocab => "outputs",
                    Shard::Rows { .. } => "inputs",
                    Shard::Replicated => "whole",
                };
                let allowed = format!("{own} for {} (`{}`)", binding.role, rule.pattern);
                return Err(Error::config(rule.field, format!("\"{}\"", rule.word), allowed));
            }
        }
        Ok(())
    }

    fn bind(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        let layout = match self.table.qkv {
            None => (self.like.layout)(config),
            Some(Fused::Concat) => QkvLayout::Concat,
            Some(Fused::PerHead) => QkvLayout::PerHead,
            Some(Fused::PerKvHead) => QkvLayout::PerKvHead,
            Some(Fused::PerRow) => QkvLayout::PerRow,
        };
        if let (Some(names), Family::Encoder) = (&self.alone, spec.family) {
            return names.with(|names| names.bind(spec, config, catalog, layout));
        }
        let mut bindings = self.like.of_encoder(spec, config, catalog);
        bindings.extend(self.names.with(|names| names.bind(spec, config, catalog, layout)));
        bindings
    }
}

/// The configuration with another value of a switch or a number.
fn changed(config: &ModelConfig, field: &str) -> ModelConfig {
    match config.get(field) {
        Some(Value::Bool(on)) => config.with(field, !on),
        Some(Value::Number(n)) => match n.as_u64() {
            Some(n) => config.with(field, n.saturating_add(1)),
            None => config.with(field, n.as_f64().unwrap_or(0.0) + 1.0),
        },
        _ => config.clone(),
    }
}

/// A field of a configuration, set for `key` of a table.
fn put(config: &ModelConfig, key: &str, field: &str, value: &Value) -> Result<ModelConfig> {
    let changed = config.with(field, value.clone());
    match changed.get(field).is_some() || value.is_null() {
        true => Ok(changed),
        false => Err(Error::config(
            key,
            format!("\"{field}\" inside a value that is no object"),
            "fields of objects",
        )),
    }
}

impl InjectionPolicy for TablePolicy {
    fn name(&self) -> &str {
        &self.table.name
    }

    fn fit(&self, config: &ModelConfig, _: Catalog<'_>) -> Fit {
        let types: Vec<&str> = self.table.model_types.iter().map(String::as_str).collect();
        match fit_by_type(config, &types) {
            // A user's own table goes before what the engine brings along.
            Fit::Yes { .. } => Fit::Yes { specificity: 20 },
            no => no,
        }
    }

    fn why(&self, config: &ModelConfig) -> String {
        let (own, like) = (config.model_type(), &self.table.like);
        format!("a table given by the user describes model_type \"{own}\", like {like}")
    }

    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        let mut assumed = self.check_fields(config, catalog)?;
        let config = self.translated(config)?;
        let mut spec = (self.like.spec)(&config, catalog)?;
        resolve::say_what_drafts(&mut spec, &config)?;
        self.change(&mut spec);
        self.check_rules(&self.bind(&spec, &config, catalog))?;
        assumed.append(&mut spec.assumed);
        Ok(ModelSpec { arch: self.table.name.clone(), assumed, ..spec })
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        // Without a configuration there are no bindings, and every role is reported open; `spec` has said
        // why.
        self.translated(config).map_or_else(|_| Vec::new(), |config| self.bind(spec, &config, catalog))
    }

    fn with_accepted(&self, fields: &[String]) -> Option<Arc<dyn InjectionPolicy>> {
        let accepted = self.accepted.iter().chain(fields).cloned().collect();
        Some(Arc::new(Self { accepted, ..self.clone() }))
    }

    fn ignores(&self, name: &str) -> bool {
        self.ignored.iter().any(|pattern| glob(pattern, name))
    }
}
