//! The automatic policy: what names and shapes tell about a model that no family describes.
//!
//! The rules are those of DeepSpeed's AutoTP, made explicit: blocks are numbered modules; inside one, the
//! linear layer that ends attention and the one that ends the feed-forward part are summed over ranks (known
//! by name, or given by the user, DeepSpeed's `injection_policy`), all others are sharded by outputs. What
//! cannot be read from a file (which columns rotate together, the kind of a norm) is assumed, and every
//! assumption is listed by [`Automatic::assumptions`]. A tensor that no rule places is a refusal that names
//! it, and so are a field of the configuration that is not known (`fields`) and what the files leave open
//! although models differ in it (`doubts`: how a fused q|k|v lies, whether positions count by rotation).

use super::describe::{GPT_LIKE, LLAMA_LIKE, Switches, decoder};
use super::names::OwnedNames;
use super::*;
use super::{doubts, fields};
use crate::params::NormKind;
use std::collections::BTreeMap;

/// The automatic policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Automatic {
    /// Ends of the names of linear layers that are summed over ranks; empty: the built-in ones.
    row_parallel: Vec<String>,
    /// Fields of the configuration, and what the files leave open, that the user lets pass.
    accepted: Vec<String>,
}

/// What a part of a block is called, by the last words of its module's name. The first rule that fits counts.
const MATMULS: [(Slot, &[&str]); 4] = [
    (
        Slot::AttnOut,
        &[
            "attn.out_proj",
            "attention.out_proj",
            "self_attn.o_proj",
            "attn.o_proj",
            "attention.o_proj",
            "attention.dense",
            "self_attention.dense",
            "self_attn.dense",
            "attn.c_proj",
            "attn.proj",
            "attention.wo",
            "out_proj",
            "o_proj",
        ],
    ),
    (
        Slot::Down,
        &[
            "down_proj",
            "dense_4h_to_h",
            "mlp.c_proj",
            "fc_out",
            "fc2",
            "w2",
            "lin2",
            "mlp.proj",
            "ffn.output",
            "wo",
        ],
    ),
    (Slot::Qkv, &["qkv_proj", "query_key_value", "Wqkv", "W_pack", "c_attn", "in_proj", "wqkv", "qkv"]),
    (Slot::Up, &["gate_up_proj", "dense_h_to_4h", "c_fc", "fc_in", "fc1", "lin1", "mlp.fc", "wi"]),
];

/// q, k and v of their own.
const SPLIT_QKV: [[&str; 3]; 6] = [
    ["q_proj", "k_proj", "v_proj"],
    ["wq", "wk", "wv"],
    ["query", "key", "value"],
    ["q_lin", "k_lin", "v_lin"],
    ["q", "k", "v"],
    ["query_proj", "key_proj", "value_proj"],
];

/// Gate and up of their own.
const SPLIT_UP: [[&str; 2]; 3] = [["gate_proj", "up_proj"], ["w1", "w3"], ["gate", "up"]];

/// Norms of a block.
const NORMS: [(Slot, &[&str]); 4] = [
    (Slot::QNorm, &["q_norm", "q_layernorm", "query_norm"]),
    (Slot::KNorm, &["k_norm", "k_layernorm", "key_norm"]),
    (
        Slot::AttnNorm,
        &[
            "input_layernorm",
            "ln_1",
            "ln1",
            "norm1",
            "norm_1",
            "attention_norm",
            "attn_norm",
            "ln_attn",
            "layer_norm1",
            "self_attn_layer_norm",
        ],
    ),
    (
        Slot::MlpNorm,
        &[
            "post_attention_layernorm",
            "ln_2",
            "ln2",
            "norm2",
            "norm_2",
            "ffn_norm",
            "mlp_norm",
            "ln_mlp",
            "layer_norm2",
            "final_layer_norm",
        ],
    ),
];

/// Modules outside the blocks.
const OUTSIDE: [(Slot, &[&str]); 5] = [
    (Slot::Head, &["lm_head", "embed_out", "output_layer", "output"]),
    (
        Slot::EmbedNorm,
        &["word_embeddings_layernorm", "embed_layer_norm", "embed_norm", "embeddings.LayerNorm"],
    ),
    (
        Slot::PositionEmbed,
        &["wpe", "position_embeddings", "position_embedding", "embed_positions", "pos_emb"],
    ),
    (
        Slot::TokenEmbed,
        &[
            "embed_tokens",
            "wte",
            "word_embeddings",
            "tok_embeddings",
            "embed_in",
            "token_embedding",
            "embedding",
            "embeddings",
            "embed",
            "tokens",
        ],
    ),
    (
        Slot::FinalNorm,
        &["norm", "ln_f", "final_layernorm", "final_layer_norm", "norm_f", "final_norm", "ln_out"],
    ),
];

/// Buffers that are no operands.
const IGNORED: [&str; 6] =
    ["*rotary_emb.inv_freq", "*inv_freq", "*position_ids", "*masked_bias", "*.attn.bias", "*causal_mask"];

/// What is assumed of every model.
const ALWAYS: [&str; 2] = [
    "no token attends to a later one, and every one to all before it",
    "norms multiply by their weights as they are stored, scores are divided by the root of a head's width, and \
     nothing else is scaled",
];

/// What was found.
struct Found {
    names: OwnedNames,
    spec: ModelSpec,
    layout: QkvLayout,
    assumed: Vec<String>,
}

/// A module of a block: the shape of its weight, and whether it has a bias.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Module {
    shape: Vec<usize>,
    bias: bool,
}

impl Automatic {
    /// DeepSpeed's `injection_policy`: a block's class, and the linear layers in it whose outputs are summed
    /// over ranks. Only the layers are read; the class names nothing in a file.
    ///
    /// # Errors
    /// `Config` for anything but an object of names or lists of names.
    pub fn from_injection_policy(dictionary: &serde_json::Value) -> Result<Self> {
        let allowed = "{\"BlockClass\": [\"self_attn.o_proj\", \"mlp.down_proj\"], ...}";
        let bad = || Error::config("injection_policy", dictionary, allowed);
        let mut row_parallel = Vec::new();
        for names in dictionary.as_object().ok_or_else(bad)?.values() {
            match names {
                serde_json::Value::String(name) => row_parallel.push(name.clone()),
                serde_json::Value::Array(list) => {
                    for name in list {
                        row_parallel.push(name.as_str().ok_or_else(bad)?.to_string());
                    }
                }
                _ => return Err(bad()),
            }
        }
        row_parallel.iter_mut().for_each(|n| *n = n.trim_start_matches('.').to_string());
        match row_parallel.is_empty() {
            true => Err(bad()),
            false => Ok(Self { row_parallel, accepted: Vec::new() }),
        }
    }

    /// The same, with fields of the configuration that may say what they will: nothing reads them. What the
    /// files leave open is accepted by its name, such as `attention.wqkv`.
    pub fn accepting(self, fields: impl IntoIterator<Item = String>) -> Self {
        Self { accepted: self.accepted.into_iter().chain(fields).collect(), ..self }
    }

    /// The first of the given ends of names that no module of the file has.
    pub(super) fn unmatched(&self, catalog: Catalog<'_>) -> Option<&str> {
        let modules =
            || catalog.tensors().iter().filter_map(|t| t.name.rsplit_once('.')).map(|(module, _)| module);
        let there = |end: &&String| modules().any(|m| ends_with(m, end));
        self.row_parallel.iter().find(|end| !there(end)).map(String::as_str)
    }

    /// What is assumed about a model beyond what its file says, one sentence each.
    ///
    /// # Errors
    /// As [`InjectionPolicy::spec`].
    pub fn assumptions(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<Vec<String>> {
        Ok(self.read(config, catalog)?.assumed)
    }

    fn read(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<Found> {
        let (prefix, layers, first) =
            blocks(catalog).ok_or_else(|| refusal("no numbered blocks", Vec::new()))?;
        let mut slots = self.place_block(&first)?;
        let outside = outside(catalog, &prefix)?;
        let has = |slots: &[(Slot, String)], slot| slots.iter().any(|(s, _)| *s == slot);
        slots.extend(outside);
        for slot in [Slot::TokenEmbed, Slot::Qkv, Slot::AttnOut, Slot::Up, Slot::Down, Slot::AttnNorm] {
            if !has(&slots, slot) {
                return Err(refusal(&format!("nothing that could be the {}", slot.name()), Vec::new()));
            }
        }
        let mut said = Vec::from(ALWAYS.map(String::from));
        let spec = shape(config, catalog, &slots, &first, layers, &mut said)?;
        let mut open = doubts::of(config, catalog, !has(&slots, Slot::PositionEmbed), &spec);
        let fused = slots.iter().find(|(s, _)| *s == Slot::Qkv).map_or("", |(_, n)| n.as_str());
        let (layout, how) = match fused.ends_with("query_key_value") {
            true => (QkvLayout::PerKvHead, "for every key/value head its queries, its key, its value"),
            false => (QkvLayout::Concat, "all of q, of k, of v"),
        };
        // Matmuls whose fused q|k|v lies `[inputs, outputs]` all do (GPT-2's Conv1D).
        let qkv = spec.blocks.first().map_or(0, |b| b.heads.qkv_cols());
        let transposed = first.get(fused).is_some_and(|m| m.shape == [spec.hidden, qkv]);
        if !fused.contains(" + ") {
            said.push(format!("`{fused}` holds {how}, one after the other"));
            // `c_attn` that is stored by inputs is GPT-2's Conv1D, which has one layout.
            if !(transposed && ends_with(fused, "c_attn")) {
                open.push(doubts::fused(fused, how));
            }
        }
        if transposed {
            said.push("linear weights are stored by inputs, because the fused q, k, v is".into());
        }
        let assumed = [fields::check(config, &self.accepted, &open)?, said].concat();
        let block = format!("{prefix}{{}}.");
        let prefixes = vec![String::new()];
        let names = OwnedNames { prefixes, block, slots, transposed, ..OwnedNames::default() };
        Ok(Found { names, spec, layout, assumed })
    }

    /// Gives every module of a block its slot.
    fn place_block(&self, modules: &BTreeMap<String, Module>) -> Result<Vec<(Slot, String)>> {
        let mut left: Vec<&String> = modules.keys().collect();
        let mut slots = Vec::new();
        let mut take = |left: &mut Vec<&String>, slot: Slot, ends: &[&str]| {
            let found: Option<Vec<usize>> =
                ends.iter().map(|end| left.iter().position(|n| ends_with(n, end))).collect();
            let Some(found) = found else { return false };
            let names: Vec<String> = found.iter().map(|i| left[*i].clone()).collect();
            left.retain(|n| !names.contains(n));
            slots.push((slot, names.join(" + ")));
            true
        };
        let ended = |name: &str| match name.contains("att") || name.ends_with("o_proj") {
            true => Slot::AttnOut,
            false => Slot::Down,
        };
        let mut given = Vec::new();
        for name in &self.row_parallel {
            // The module's whole name tells what `out_proj` ends; what is nowhere is told by the name itself.
            let module = left.iter().find(|module| ends_with(module, name));
            let slot = ended(module.map_or(name.as_str(), |module| module.as_str()));
            take(&mut left, slot, &[name.as_str()]);
            given.push(slot);
        }
        for (slot, rules) in NORMS.iter().chain(&MATMULS) {
            if !given.contains(slot) {
                let _ = rules.iter().any(|end| take(&mut left, *slot, &[*end]));
            }
        }
        let _ = SPLIT_QKV.iter().any(|ends| take(&mut left, Slot::Qkv, ends));
        let _ = SPLIT_UP.iter().any(|ends| take(&mut left, Slot::Up, ends));
        if !slots.iter().any(|(s, _)| *s == Slot::Up) {
            // A plain feed-forward part may call its first layer what gated ones call their second half.
            let mut plain = left.iter().position(|n| ends_with(n, "up_proj"));
            if let Some(i) = plain.take() {
                slots.push((Slot::Up, left.remove(i).clone()));
            }
        }
        match left.is_empty() {
            true => Ok(slots),
            false => Err(refusal("no rule places these modules", left.into_iter().cloned().collect())),
        }
    }
}

impl InjectionPolicy for Automatic {
    fn name(&self) -> &str {
        "automatic"
    }

    fn fit(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Fit {
        match self.read(config, catalog) {
            // Below every family: it is asked when nobody else fits.
            Ok(_) => Fit::Yes { specificity: 1 },
            Err(e) => Fit::No(e.to_string()),
        }
    }

    fn why(&self, config: &ModelConfig) -> String {
        let (kind, class) = (config.model_type(), config.architecture());
        let summed = match self.row_parallel[..] {
            [] => String::new(),
            _ => format!(
                ", linear layers that are summed by injection_policy ({})",
                self.row_parallel.join(", ")
            ),
        };
        let none = format!("no family fits model_type \"{kind}\", architecture \"{class}\"");
        format!("{none}: tensors are placed by their names{summed}")
    }

    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        let found = self.read(config, catalog)?;
        Ok(ModelSpec { assumed: found.assumed, ..found.spec })
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        // Without a reading there are no names, and every role is reported open.
        let Ok(found) = self.read(config, catalog) else { return Vec::new() };
        found.names.with(|names| names.bind(spec, config, catalog, found.layout))
    }

    fn with_accepted(&self, fields: &[String]) -> Option<Arc<dyn InjectionPolicy>> {
        Some(Arc::new(self.clone().accepting(fields.iter().cloned())))
    }

    fn ignored(&self) -> &[&str] {
        &IGNORED
    }
}

fn refusal(what: &str, names: Vec<String>) -> Error {
    Error::Binding { policy: "automatic".into(), what: what.into(), names }
}

/// Whether a module's name ends with whole words `end`.
fn ends_with(name: &str, end: &str) -> bool {
    name == end || name.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'))
}

/// The prefix of the numbered modules that hold most tensors, how many there are, and the first one's
/// modules.
fn blocks(catalog: Catalog<'_>) -> Option<(String, usize, BTreeMap<String, Module>)> {
    let mut groups: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let split = |name: &str| -> Option<(String, usize, String)> {
        let mut at = 0;
        for word in name.split('.') {
            if let Ok(n) = word.parse::<usize>() {
                let rest = name.get(at + word.len() + 1..)?;
                return Some((name[..at].to_string(), n, rest.to_string()));
            }
            at += word.len() + 1;
        }
        None
    };
    for t in catalog.tensors() {
        if let Some((prefix, n, _)) = split(&t.name) {
            let group = groups.entry(prefix).or_default();
            *group = (group.0 + 1, group.1.max(n.saturating_add(1)));
        }
    }
    let (prefix, (_, layers)) = groups.into_iter().max_by_key(|(_, (tensors, _))| *tensors)?;
    let mut first: BTreeMap<String, Module> = BTreeMap::new();
    for t in catalog.tensors() {
        let Some((p, 0, rest)) = split(&t.name) else { continue };
        if p != prefix || IGNORED.iter().any(|i| glob(i, &t.name)) {
            continue;
        }
        match (rest.strip_suffix(".weight"), rest.strip_suffix(".bias")) {
            (Some(module), _) => first.entry(module.to_string()).or_default().shape = t.shape.clone(),
            (_, Some(module)) => first.entry(module.to_string()).or_default().bias = true,
            _ => {
                first.entry(rest).or_default();
            }
        }
    }
    Some((prefix, layers, first))
}

/// Slots of what is not inside a block; names as they are.
fn outside(catalog: Catalog<'_>, prefix: &str) -> Result<Vec<(Slot, String)>> {
    let (mut slots, mut unknown): (Vec<(Slot, String)>, Vec<String>) = (Vec::new(), Vec::new());
    for t in catalog.tensors() {
        let ignored = IGNORED.iter().any(|i| glob(i, &t.name));
        if t.name.starts_with(prefix) || ignored || t.name.ends_with(".bias") {
            continue;
        }
        let module = t.name.strip_suffix(".weight").unwrap_or(&t.name);
        let slot = OUTSIDE.iter().find(|(_, ends)| ends.iter().any(|end| ends_with(module, end)));
        match slot {
            Some((slot, _)) if !slots.iter().any(|(s, _)| s == slot) => {
                slots.push((*slot, format!("/{module}")))
            }
            _ => unknown.push(t.name.clone()),
        }
    }
    match unknown.is_empty() {
        true => Ok(slots),
        false => Err(refusal("no rule places these tensors outside the blocks", unknown)),
    }
}

/// The model's shape: sizes from the configuration, the rest from the names.
fn shape(
    config: &ModelConfig,
    catalog: Catalog<'_>,
    slots: &[(Slot, String)],
    first: &BTreeMap<String, Module>,
    layers: usize,
    assumed: &mut Vec<String>,
) -> Result<ModelSpec> {
    let name = |slot| slots.iter().find(|(s, _)| *s == slot).map(|(_, n)| n.as_str());
    let bias = |slot| {
        let module = name(slot).and_then(|n| n.split(" + ").next());
        module.and_then(|m| first.get(m)).is_some_and(|m| m.bias)
    };
    let up = name(Slot::Up).unwrap_or_default();
    let gated = up.contains(" + ") || up.ends_with("gate_up_proj");
    if gated && !up.contains(" + ") {
        assumed.push(format!("`{up}` holds the gate, then up"));
    }
    let norm_bias = bias(Slot::AttnNorm);
    let norm = if norm_bias { NormKind::Layer } else { NormKind::Rms };
    let (kind, has) = if norm_bias { ("LayerNorm", "a") } else { ("RMSNorm", "no") };
    assumed.push(format!("norms are {kind}, because they have {has} bias"));
    let base = if gated { LLAMA_LIKE } else { GPT_LIKE };
    let parallel = name(Slot::MlpNorm).is_none();
    if parallel {
        let why = "attention and the feed-forward part stand side by side, because a block has one norm";
        assumed.push(why.into());
    }
    let switches = Switches {
        norm,
        bias: [bias(Slot::Qkv), bias(Slot::AttnOut), bias(Slot::Up), bias(Slot::Down)],
        tied: name(Slot::Head).is_none(),
        placement: if parallel { Placement::Parallel } else { Placement::Pre },
        ..base
    };
    let mut spec = decoder(config, switches)?;
    if spec.blocks.len() != layers {
        let what = format!("{} blocks configured, {layers} in the file", spec.blocks.len());
        return Err(refusal(&what, Vec::new()));
    }
    let qk = name(Slot::QNorm).is_some() && name(Slot::KNorm).is_some();
    spec.each(|_, b| {
        b.mlp_norm = b.mlp_norm.filter(|_| !parallel);
        b.qk_norm = b.attn_norm.filter(|_| qk).map(|norm| QkNorm::new(norm, QkSpan::Head));
    });
    if let Some(head) = name(Slot::Head) {
        read_head(config, catalog, head, &mut spec.head)?;
    }
    spec.embed.norm = spec.final_norm.filter(|_| name(Slot::EmbedNorm).is_some());
    if name(Slot::FinalNorm).is_none() {
        spec.final_norm = None;
    }
    count_positions(config, catalog, &mut spec, name(Slot::PositionEmbed).is_some(), assumed)?;
    let act = spec.blocks.first().map_or("none", |b| b.mlp.act.name());
    assumed.push(format!("the activation between the feed-forward matmuls is {act}"));
    spec.arch = "automatic".into();
    Ok(spec)
}

/// Counts positions by their table where the file has one, else by rotation.
fn count_positions(
    config: &ModelConfig,
    catalog: Catalog<'_>,
    spec: &mut ModelSpec,
    table: bool,
    assumed: &mut Vec<String>,
) -> Result<()> {
    if table {
        assumed.push("positions are learned, from row 0 of their table".into());
        spec.learn_positions();
        return Ok(());
    }
    let why = "halves of every head rotate, because the file has no table of positions; a model whose \
               neighbouring columns rotate looks the same";
    assumed.push(why.into());
    spec.rotate_part(config, catalog, RopeStyle::Half, 1.0)
}

/// Whether the head shares the embedding's rows and has a bias, by the tensors of its module.
fn read_head(config: &ModelConfig, catalog: Catalog<'_>, module: &str, head: &mut HeadSpec) -> Result<()> {
    if let HeadSpec::Tokens { tied, bias, .. } = head {
        let module = module.trim_start_matches('/');
        *tied = config.flag(&["tie_word_embeddings"], false)?
            || catalog.find(&format!("{module}.weight")).is_none();
        *bias = catalog.find(&format!("{module}.bias")).is_some();
    }
    Ok(())
}
