//! What LoRA files of current diffusers say of their scale: the fields of PEFT's `LoraConfig`, by component,
//! as JSON in the metadata of a safetensors header (`{"transformer.r": 16, "transformer.lora_alpha": 4}`).

use engraft_core::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Its key in the metadata.
pub(super) const KEY: &str = "lora_adapter_metadata";
/// Most bytes of its JSON.
const MAX_BYTES: usize = 1 << 20;
/// Components that a field may begin with.
const COMPONENTS: [&str; 5] = ["unet", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3"];
/// Rank and alpha of a `LoraConfig` that names none.
const DEFAULT: f64 = 8.0;
/// Flags that change what a file adds and that are not computed.
const REFUSED: [&str; 4] = ["use_dora", "use_qalora", "fan_in_fan_out", "lora_bias"];
/// Ways to begin training that leave the weights of the model as they are; others change them.
const PLAIN_INIT: [&str; 3] = ["gaussian", "eva", "orthogonal"];
/// Characters that a name of modules in a regular expression does not have. A dot is taken as it is.
const REGEX: &str = "\\*+?()[]{}|^$";

/// The scales of a file.
#[derive(Debug, Default)]
pub(super) struct Header(BTreeMap<&'static str, Config>);

/// The scales of a component.
#[derive(Debug)]
struct Config {
    rank: f64,
    alpha: f64,
    /// Those of single modules.
    ranks: Vec<Pattern>,
    alphas: Vec<Pattern>,
    /// Whether alpha is divided by the square root of the rank.
    stabilized: bool,
}

/// A value of the modules whose name is this one, or ends with it behind a dot.
#[derive(Debug)]
struct Pattern {
    name: String,
    /// Whether nothing may stand in front of it.
    whole: bool,
    value: f64,
}

impl Header {
    /// Reads the JSON of a file.
    ///
    /// # Errors
    /// `Format` for text that is too long or no JSON object; `Config`, with the field, for what is not
    /// understood.
    pub fn of(file: &str, text: &str) -> Result<Self> {
        if text.len() > MAX_BYTES {
            let what = format!("{KEY} has {} bytes; at most {MAX_BYTES} are allowed", text.len());
            return Err(Error::format(file, what));
        }
        let all: Map<String, Value> = serde_json::from_str(text)
            .map_err(|e| Error::format(file, format!("{KEY} is no JSON object: {e}")))?;
        let mut fields: BTreeMap<&'static str, Map<String, Value>> = BTreeMap::new();
        for (name, value) in all {
            let of = name.split_once('.').and_then(|(of, field)| {
                Some((*COMPONENTS.iter().find(|component| **component == of)?, field))
            });
            let Some((component, field)) = of else {
                let allowed = format!("a component ({}), a dot and a field", COMPONENTS.join(", "));
                return Err(Error::config(KEY, &name, allowed));
            };
            fields.entry(component).or_default().insert(field.to_string(), value);
        }
        let mut configs = BTreeMap::new();
        for (component, fields) in fields {
            configs.insert(component, Config::of(component, &fields)?);
        }
        Ok(Self(configs))
    }

    /// What the matrices of a module are multiplied by: `alpha / rank`, of rsLoRA `alpha / sqrt(rank)`; none
    /// where the file says nothing of the component.
    ///
    /// # Errors
    /// `Config` for matrices of another rank than the file says.
    pub fn factor(&self, component: &str, module: &str, rank: usize) -> Result<Option<f64>> {
        let Some(config) = self.0.get(component) else { return Ok(None) };
        let of = |patterns: &[Pattern], other: f64| {
            patterns.iter().find(|pattern| pattern.matches(module)).map_or(other, |pattern| pattern.value)
        };
        let said = of(&config.ranks, config.rank);
        if said != rank as f64 {
            let allowed = format!("{rank}, the rank of the matrices of {module}");
            return Err(Error::config(format!("{KEY}: {component}.r"), said, allowed));
        }
        let alpha = of(&config.alphas, config.alpha);
        Ok(Some(if config.stabilized { alpha / said.sqrt() } else { alpha / said }))
    }
}

impl Config {
    fn of(component: &str, fields: &Map<String, Value>) -> Result<Self> {
        let name = |field: &str| format!("{KEY}: {component}.{field}");
        let no = |field: &str, got: &Value, allowed: &str| Err(Error::config(name(field), got, allowed));
        let given = |field: &str| fields.get(field).filter(|value| !value.is_null());
        for field in REFUSED {
            if let Some(got) = given(field).filter(|got| **got != Value::Bool(false)) {
                return no(field, got, "false: nothing else is computed");
            }
        }
        if let Some(got) = given("layer_replication") {
            return no("layer_replication", got, "null: no layers are repeated");
        }
        if let Some(got) = given("peft_type").filter(|got| **got != "LORA") {
            return no("peft_type", got, "\"LORA\"");
        }
        let changes = |got: &&Value| got.as_str().is_some_and(|init| !PLAIN_INIT.contains(&init));
        if let Some(got) = given("init_lora_weights").filter(changes) {
            return no("init_lora_weights", got, "one that leaves the model's own weights as they are");
        }
        let value = |field: &str, positive: bool| match given(field) {
            None => Ok(DEFAULT),
            Some(got) => number(&name(field), got, positive),
        };
        let patterns = |field: &str, positive: bool| match given(field) {
            None => Ok(Vec::new()),
            Some(Value::Object(all)) => all
                .iter()
                .map(|(key, value)| Pattern::of(&name(field), key, value, positive))
                .collect::<Result<Vec<_>>>(),
            Some(got) => Err(Error::config(name(field), got, "an object from modules to numbers")),
        };
        let stabilized = match given("use_rslora") {
            None => false,
            Some(Value::Bool(stabilized)) => *stabilized,
            Some(got) => return no("use_rslora", got, "true or false"),
        };
        Ok(Self {
            rank: value("r", true)?,
            alpha: value("lora_alpha", false)?,
            ranks: patterns("rank_pattern", true)?,
            alphas: patterns("alpha_pattern", false)?,
            stabilized,
        })
    }
}

impl Pattern {
    /// PEFT reads a name as a regular expression; of those, names alone are understood.
    fn of(field: &str, key: &str, value: &Value, positive: bool) -> Result<Self> {
        let (whole, name) = key.strip_prefix('^').map_or((false, key), |name| (true, name));
        if name.is_empty() || name.contains(|c: char| REGEX.contains(c)) {
            return Err(Error::config(field, key, "names of modules: regular expressions are not computed"));
        }
        let value = number(&format!("{field}: {key}"), value, positive)?;
        Ok(Self { name: name.to_string(), whole, value })
    }

    fn matches(&self, module: &str) -> bool {
        let front = module.strip_suffix(self.name.as_str());
        front.is_some_and(|front| front.is_empty() || !self.whole && front.ends_with('.'))
    }
}

/// A rank, which is positive, or another number.
fn number(field: &str, got: &Value, positive: bool) -> Result<f64> {
    let number = got.as_f64().filter(|n| n.is_finite() && (!positive || *n >= 1.0 && n.fract() == 0.0));
    let allowed = if positive { "a whole number above 0" } else { "a number" };
    number.ok_or_else(|| Error::config(field, got, allowed))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_those_of_peft() {
        let text = r#"{"transformer.r": 16, "transformer.lora_alpha": 4, "transformer.use_dora": false,
            "transformer.rank_pattern": {"to_k": 4, "^proj": 2}, "transformer.init_lora_weights": "gaussian",
            "transformer.alpha_pattern": {"attn.to_q": 32.0}, "unet.use_rslora": true, "unet.r": 4}"#;
        let header = Header::of("a file", text).unwrap();
        let factor = |of: &str, module: &str, rank: usize| header.factor(of, module, rank).unwrap();
        assert_eq!(factor("transformer", "blocks.0.attn.to_v", 16), Some(0.25));
        assert_eq!(factor("transformer", "blocks.0.attn.to_q", 16), Some(2.0));
        // Behind a dot alone; of a rank of its own.
        assert_eq!(factor("transformer", "blocks.0.cross_attn.to_q", 16), Some(0.25));
        assert_eq!(factor("transformer", "blocks.0.attn.to_k", 4), Some(1.0));
        assert_eq!(factor("transformer", "proj", 2), Some(2.0));
        assert_eq!(factor("transformer", "blocks.0.proj", 16), Some(0.25));
        // The default alpha, by the square root of the rank.
        assert_eq!(factor("unet", "down", 4), Some(4.0));
        assert_eq!(factor("text_encoder", "down", 4), None);
        let error = header.factor("transformer", "blocks.0.attn.to_v", 8).unwrap_err().to_string();
        assert!(error.contains("transformer.r") && error.contains("16"), "{error}");
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (text, what) in [
            ("[]", "no JSON object"),
            ("{", "no JSON object"),
            (r#"{"r": 4}"#, "a component"),
            (r#"{"vae.r": 4}"#, "vae.r"),
            (r#"{"unet.use_dora": true}"#, "unet.use_dora"),
            (r#"{"unet.use_rslora": 1}"#, "unet.use_rslora"),
            (r#"{"unet.r": 0}"#, "unet.r"),
            (r#"{"unet.lora_alpha": "4"}"#, "unet.lora_alpha"),
            (r#"{"unet.alpha_pattern": {"to_(q|k)": 4}}"#, "to_(q|k)"),
            (r#"{"unet.rank_pattern": {"to_q": 0.5}}"#, "unet.rank_pattern"),
            (r#"{"unet.rank_pattern": [4]}"#, "unet.rank_pattern"),
            (r#"{"unet.init_lora_weights": "pissa"}"#, "pissa"),
            (r#"{"unet.peft_type": "LOHA"}"#, "LOHA"),
            (r#"{"unet.layer_replication": [[0, 4]]}"#, "layer_replication"),
        ] {
            let error = Header::of("a file", text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
        let long = format!("{{\"unet.revision\": \"{}\"}}", "a".repeat(MAX_BYTES));
        assert!(Header::of("a file", &long).unwrap_err().to_string().contains("bytes"));
    }
}
