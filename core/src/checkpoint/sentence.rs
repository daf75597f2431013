//! What sentence-transformers' files say about the vector of a text: which tokens' states count, how many
//! tokens a text may have, what stands before it.
//!
//! `modules.json` lists the parts; the pooling's folder has its settings, `sentence_bert_config.json` those
//! of the tokenizer, `config_sentence_transformers.json` the prompts. All of it becomes one object of the
//! model's configuration, [`FIELD`], so that a converted model keeps it. What cannot be honoured is kept by
//! name, and refused where vectors are asked for: the same model serves for other things.

use super::json::{self, MAX_CONFIG};
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::{Component, Path};

/// Field of a configuration that holds what the files say: `pooling` (a list of words), `modules` (those that
/// are none of transformer, pooling and norm), `max_tokens`, `lower_case`, `prompt`.
pub(super) const FIELD: &str = "engraft_sentence";

/// Switches of a pooling, and the words that newer files have in their place.
const MODES: [(&str, &str); 6] = [
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_lasttoken", "lasttoken"),
    ("pooling_mode_max_tokens", "max"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    ("pooling_mode_weightedmean_tokens", "weightedmean"),
];

/// Parts that every model of sentence-transformers may have.
const USUAL: [&str; 3] = ["Transformer", "Pooling", "Normalize"];

/// What the files of a folder say; none where it has no `modules.json`. `file` gives a file's bytes by its
/// path, if it is there.
///
/// # Errors
/// Those of `file`; `Format`, naming the file, for one that holds something else.
pub(super) fn read(folder: &Path, file: impl Fn(&Path) -> Result<Option<Vec<u8>>>) -> Result<Option<Value>> {
    let named = |name: &str| folder.join(name).display().to_string();
    let Some(bytes) = file(&folder.join("modules.json"))? else { return Ok(None) };
    let modules = modules(&named("modules.json"), &bytes)?;
    let object = |name: &str| -> Result<Value> {
        match file(&folder.join(name))? {
            Some(bytes) => json::object(&named(name), &bytes, MAX_CONFIG),
            None => Ok(json::empty()),
        }
    };
    let pooling = match modules.iter().find(|(kind, _)| kind == "Pooling") {
        Some((_, path)) => object(&format!("{path}/config.json"))?,
        None => json::empty(),
    };
    let settings = object("sentence_bert_config.json")?;
    let prompts = object("config_sentence_transformers.json")?;
    let kinds = modules.into_iter().map(|(kind, _)| kind);
    Ok(Some(put_together(kinds, &pooling, &settings, &prompts)))
}

/// The last word of every module's type, and its folder.
fn modules(file: &str, bytes: &[u8]) -> Result<Vec<(String, String)>> {
    let bad =
        |what: &str| Error::format(file, format!("{what}; a list of {{\"type\", \"path\"}} is expected"));
    let value: Value = serde_json::from_slice(bytes).map_err(|e| bad(&format!("is not valid JSON: {e}")))?;
    let list = value.as_array().ok_or_else(|| bad("holds no list"))?;
    let module = |one: &Value| {
        let text = |field: &str| one.get(field).and_then(Value::as_str);
        let kind = text("type").ok_or_else(|| bad("has a module without `type`"))?;
        let path = text("path").unwrap_or_default();
        let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        match inside {
            true => Ok((kind.rsplit('.').next().unwrap_or(kind).to_string(), path.to_string())),
            false => Err(bad(&format!("has the path \"{path}\", which leads out of the folder"))),
        }
    };
    list.iter().map(module).collect()
}

fn put_together(
    kinds: impl Iterator<Item = String>,
    pooling: &Value,
    settings: &Value,
    prompts: &Value,
) -> Value {
    let mut found = Map::new();
    let named = pooling.get("pooling_mode").map(|words| match words {
        Value::Array(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        other => other.as_str().map(str::to_owned).into_iter().collect::<Vec<String>>(),
    });
    let switched = || {
        let on = MODES.iter().filter(|(field, _)| pooling.get(field) == Some(&Value::Bool(true)));
        on.map(|(_, word)| word.to_string()).collect()
    };
    found.insert("pooling".into(), json!(named.unwrap_or_else(switched)));
    let others: Vec<String> = kinds.filter(|kind| !USUAL.contains(&kind.as_str())).collect();
    found.insert("modules".into(), json!(others));
    found.insert("max_tokens".into(), settings.get("max_seq_length").cloned().unwrap_or_default());
    found.insert("lower_case".into(), json!(settings.get("do_lower_case") == Some(&Value::Bool(true))));
    let name = prompts.get("default_prompt_name").and_then(Value::as_str);
    let prompt = name.and_then(|name| prompts.get("prompts")?.get(name)?.as_str());
    found.insert("prompt".into(), json!(prompt.unwrap_or_default()));
    // A prompt that is read but does not count in the mean.
    let apart = prompt.is_some() && pooling.get("include_prompt") == Some(&Value::Bool(false));
    found.insert("prompt_apart".into(), json!(apart));
    Value::Object(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    #[test]
    fn the_files_become_one_object_and_hostile_ones_are_refused_by_name() {
        let files = RefCell::new(BTreeMap::new());
        let write =
            |name: &str, text: &str| files.borrow_mut().insert(format!("model/{name}"), text.to_string());
        let file = |path: &Path| {
            let found = files.borrow().get(path.to_str().unwrap_or_default()).cloned();
            Ok(found.map(String::into_bytes))
        };
        let read = || super::read(Path::new("model"), file);
        assert_eq!(read().unwrap(), None);
        let kind = "sentence_transformers.models";
        let list = json!([
            {"idx": 0, "name": "0", "path": "", "type": format!("{kind}.Transformer")},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": format!("{kind}.Pooling")},
            {"idx": 2, "name": "2", "path": "2_Dense", "type": format!("{kind}.Dense")},
            {"idx": 3, "name": "3", "path": "3_Normalize", "type": format!("{kind}.Normalize")},
        ]);
        write("modules.json", &list.to_string());
        write(
            "1_Pooling/config.json",
            r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#,
        );
        write("sentence_bert_config.json", r#"{"max_seq_length": 256, "do_lower_case": true}"#);
        let prompts = r#"{"prompts": {"query": "search: "}, "default_prompt_name": "query"}"#;
        write("config_sentence_transformers.json", prompts);
        let want = json!({"pooling": ["cls"], "modules": ["Dense"], "max_tokens": 256, "lower_case": true,
            "prompt": "search: ", "prompt_apart": false});
        assert_eq!(read().unwrap(), Some(want));
        write("1_Pooling/config.json", r#"{"pooling_mode": "lasttoken", "include_prompt": false}"#);
        let newer = read().unwrap().unwrap();
        assert_eq!((&newer["pooling"], &newer["prompt_apart"]), (&json!(["lasttoken"]), &json!(true)));
        for (text, why) in [
            ("{}", "holds no list"),
            ("[3]", "without `type`"),
            (r#"[{"type": "a.Pooling", "path": "../x"}]"#, "leads out of the folder"),
            (r#"[{"type": "a.Pooling", "path": "/etc"}]"#, "leads out of the folder"),
            ("[", "not valid JSON"),
        ] {
            write("modules.json", text);
            let error = read().unwrap_err().to_string();
            assert!(error.contains("modules.json") && error.contains(why), "{error}");
        }
    }
}
