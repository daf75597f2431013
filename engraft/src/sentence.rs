//! How the files of an embedding model want the vector of a text to be made.

use engraft_core::engine::Pooling;
use engraft_core::{Error, Result};
use serde_json::Value;

/// What sentence-transformers' files, or GGUF's metadata, say; nothing for other models.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sentence {
    /// In the words of sentence-transformers; several are put one after the other.
    pooling: Vec<String>,
    /// Modules behind the pooling.
    modules: Vec<String>,
    /// Tokens of a text at most, those that the tokenizer adds included.
    pub max_tokens: Option<usize>,
    pub lower_case: bool,
    /// What stands before every text.
    pub prompt: String,
    /// Whether the prompt's tokens are left out of the pooling.
    prompt_apart: bool,
}

impl Sentence {
    /// Reads it from a model's configuration.
    ///
    /// # Errors
    /// `Config` for a limit that is no number above zero.
    pub fn of(config: &Value) -> Result<Self> {
        let Some(said) = config.get("engraft_sentence") else { return Ok(Self::default()) };
        let words = |field: &str| {
            let list = said.get(field).and_then(Value::as_array).into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        };
        let is = |field: &str| said.get(field) == Some(&Value::Bool(true));
        let max_tokens = match said.get("max_tokens") {
            None | Some(Value::Null) => None,
            Some(value) => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(n) if n > 0 => Some(n),
                _ => {
                    let field = "max_seq_length (sentence_bert_config.json)";
                    return Err(Error::config(field, value, "a whole number above 0"));
                }
            },
        };
        Ok(Self {
            pooling: words("pooling"),
            modules: words("modules"),
            max_tokens,
            lower_case: is("lower_case"),
            prompt: said.get("prompt").and_then(Value::as_str).unwrap_or_default().to_string(),
            prompt_apart: is("prompt_apart"),
        })
    }

    /// How tokens' states become one; the mean where the files do not say.
    ///
    /// # Errors
    /// `Config`, naming what the files ask for, where that is not there.
    pub fn pooling(&self) -> Result<Pooling> {
        let instead = "name a pooling (`--pooling`, `EmbedOptions::pooling`) to go without";
        if let Some(module) = self.modules.first() {
            let allowed = format!("Transformer, Pooling and Normalize; {instead}");
            return Err(Error::config("modules.json", format!("{module} among its modules"), allowed));
        }
        if self.prompt_apart {
            return Err(Error::config(
                "include_prompt",
                "false with a default prompt",
                format!("true; {instead}"),
            ));
        }
        match &self.pooling.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] | ["mean"] => Ok(Pooling::Mean),
            ["cls"] => Ok(Pooling::First),
            ["lasttoken"] => Ok(Pooling::Last),
            other => {
                let allowed = format!("one of cls, mean, lasttoken; {instead}");
                Err(Error::config("pooling_mode", other.join(" and "), allowed))
            }
        }
    }

    /// A text as the model was trained to read it.
    pub fn text(&self, text: &str) -> String {
        let whole = format!("{}{text}", self.prompt);
        if self.lower_case { whole.to_lowercase() } else { whole }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_files_say_is_honoured_or_refused_by_name() {
        let of = |said: Value| Sentence::of(&json!({ "engraft_sentence": said }));
        let pooling = |said: Value| of(said).unwrap().pooling();
        assert_eq!(Sentence::of(&json!({})).unwrap().pooling().unwrap(), Pooling::Mean);
        for (word, want) in [("mean", Pooling::Mean), ("cls", Pooling::First), ("lasttoken", Pooling::Last)] {
            assert_eq!(pooling(json!({ "pooling": [word] })).unwrap(), want);
        }
        for (said, words) in [
            (json!({"pooling": ["max"]}), "`pooling_mode` is max"),
            (json!({"pooling": ["cls", "mean"]}), "cls and mean"),
            (json!({"pooling": ["mean"], "modules": ["Dense"]}), "`modules.json` is Dense"),
            (json!({"pooling": ["mean"], "prompt_apart": true}), "include_prompt"),
        ] {
            let error = pooling(said).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("--pooling"), "{error}");
        }
        let all = of(json!({"max_tokens": 9, "lower_case": true, "prompt": "Query: "})).unwrap();
        assert_eq!((all.max_tokens, all.text("Wide STREETS").as_str()), (Some(9), "query: wide streets"));
        for wrong in [json!(0), json!(-3), json!("many")] {
            let error = of(json!({ "max_tokens": wrong })).unwrap_err().to_string();
            assert!(error.contains("max_seq_length"), "{error}");
        }
    }
}
