//! Which version of Megatron's orders of fused rows a sharded checkpoint has: by its description, its
//! configuration, its files, or what its writer does where nothing says.

use crate::{Error, Result};
use serde_json::Value;

/// Types whose policies read fused rows head by head, whoever wrote the files.
const PER_HEAD: [&str; 3] = ["bloom", "gpt_neox", "falcon"];

/// What is known of the order of fused rows before the files are read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::checkpoint) struct Order {
    /// The version, if something says it.
    pub version: Option<f64>,
    /// Whether Megatron wrote the files, whose first order (version 0) its files do not name.
    pub megatron: bool,
}

impl Order {
    /// The same with what `config.json` says, which yields to a description.
    pub(in crate::checkpoint) fn with(self, place: &str, config: &Value) -> Result<Self> {
        let said = match config.get("checkpoint_version") {
            None | Some(Value::Null) => None,
            Some(v) => Some(v.as_f64().ok_or_else(|| {
                let what = format!("checkpoint_version in config.json is {v}; allowed: 0, 1, 2, 3");
                Error::format(place, what)
            })?),
        };
        let kind = config.get("model_type").and_then(Value::as_str).unwrap_or("");
        let megatron = match kind {
            "megatron_gpt" | "megatron-gpt" => true,
            kind => self.megatron && !PER_HEAD.contains(&kind),
        };
        Ok(Self { version: self.version.or(said), megatron })
    }

    /// The version, where the files say `found`.
    pub(super) fn version(self, found: Option<f64>) -> f64 {
        self.version.or(found).unwrap_or(if self.megatron { 0.0 } else { 2.0 })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_says_it_first() {
        let (latest, megatron) = (Order::default(), Order { version: None, megatron: true });
        let version = |order: Order, config: Value, found| order.with("x", &config).unwrap().version(found);
        assert_eq!(version(latest, json!({"model_type": "bloom"}), None), 2.0);
        assert_eq!(version(latest, json!({"model_type": "megatron_gpt"}), None), 0.0);
        assert_eq!(version(latest, json!({"model_type": "megatron_gpt"}), Some(3.0)), 3.0);
        assert_eq!(
            version(latest, json!({"model_type": "megatron_gpt", "checkpoint_version": 2}), None),
            2.0
        );
        assert_eq!(version(megatron, json!({"model_type": "x"}), None), 0.0);
        assert_eq!(version(megatron, json!({"model_type": "falcon"}), None), 2.0);
        let said = Order { version: Some(1.0), megatron: true };
        assert_eq!(version(said, json!({"checkpoint_version": 2}), Some(0.0)), 1.0);
        let text = latest.with("x", &json!({"checkpoint_version": "two"})).unwrap_err().to_string();
        assert!(text.contains("checkpoint_version") && text.contains("two"), "{text}");
    }
}
