//! What the files around a vocabulary say of a tokenizer that has no `tokenizer.json`.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;
use tokenizers::AddedToken;

use super::tokenizer::{Marks, template_field};
use super::vocabulary::guarded;
use crate::checkpoint::VocabularyFiles;
use crate::{Error, Result};

/// Ids of `vocab.json` are below this.
const MOST_ENTRIES: u32 = 1 << 21;

/// `tokenizer_config.json` and the other files of a folder.
pub(super) struct Settings<'a> {
    pub files: &'a VocabularyFiles,
    pub config: &'a Value,
}

/// A part of a tokenizer, from its description in JSON.
pub(super) fn part<T: serde::de::DeserializeOwned>(description: Value) -> Result<T> {
    serde_json::from_value(description).map_err(|e| Error::internal(format!("tokenizer part: {e}")))
}

/// Adds tokens to a tokenizer, all at once: each call looks at all tokens again. Those that are looked for in
/// the normalized text are normalized, and a table of replacements may lead nowhere.
pub(super) fn add(
    built: &mut tokenizers::Tokenizer,
    tokens: impl IntoIterator<Item = AddedToken>,
) -> Result<(), String> {
    guarded(|| built.add_tokens(tokens).map(drop).map_err(|e| e.to_string()))
}

impl Settings<'_> {
    /// The tokenizer class that is named.
    pub fn class(&self) -> Option<&str> {
        self.config.get("tokenizer_class").and_then(Value::as_str)
    }

    /// The one of `classes` that is named, else that of the model's type.
    ///
    /// # Errors
    /// [`Error::Format`] with the name and those that are known.
    pub fn choose<T: Copy>(&self, classes: &[(&str, T)], model_types: &[(&str, T)]) -> Result<T> {
        let (list, name) = match self.class() {
            Some(name) => (classes, name.strip_suffix("Fast").unwrap_or(name)),
            None => (model_types, self.files.model_type.as_str()),
        };
        let found = list.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        let names = || list.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| match self.class() {
            Some(class) => self.broken(format!(
                "tokenizer_class is `{class}`; without a tokenizer.json the files here are read as {}",
                names()
            )),
            None => self.broken(format!(
                "there is no tokenizer_class, and model_type is `{name}`; without both and a tokenizer.json the \
                 files here are read for {}",
                names()
            )),
        })
    }

    /// A special token: a string, or an object with `content`.
    pub fn token(&self, name: &str, usual: &str) -> String {
        self.named(name).unwrap_or(usual).to_owned()
    }

    fn named(&self, name: &str) -> Option<&str> {
        let value = self.config.get(name)?;
        value.as_str().or_else(|| value.get("content")?.as_str())
    }

    /// A setting that is true or false.
    pub fn flag(&self, name: &str, usual: bool) -> bool {
        self.config.get(name).and_then(Value::as_bool).unwrap_or(usual)
    }

    /// An error of `tokenizer_config.json`.
    pub fn broken(&self, what: impl Into<String>) -> Error {
        Error::format(self.place("tokenizer_config.json"), what)
    }

    /// A file's name in messages.
    pub fn place(&self, name: &str) -> String {
        format!("{}{name}", self.files.place)
    }

    /// What the files say that is the same for all classes.
    pub fn marks(&self) -> Marks {
        let clean_up = self.flag("clean_up_tokenization_spaces", false);
        Marks { chat_template: template_field(self.config), clean_up, ..Marks::default() }
    }

    /// Ids by spelling as `vocab.json` has them.
    pub fn vocab_json(&self) -> Result<BTreeMap<String, u32>> {
        let name = self.place("vocab.json");
        let Some(bytes) = self.files.bytes("vocab.json") else {
            return Err(Error::format(name, "is missing; this tokenizer's ids are in it"));
        };
        let vocab: BTreeMap<String, u32> =
            serde_json::from_slice(bytes).map_err(|e| Error::format(&name, e.to_string()))?;
        match vocab.iter().find(|(_, id)| **id >= MOST_ENTRIES) {
            Some((token, id)) => {
                let what = format!("`{token}` has the id {id}; allowed are ids below {MOST_ENTRIES}");
                Err(Error::format(name, what))
            }
            None => Ok(vocab),
        }
    }

    /// Adds what other files name: `added_tokens.json`, and three fields of `tokenizer_config.json`.
    pub fn add_tokens(&self, built: &mut tokenizers::Tokenizer, known: &HashSet<&str>) -> Result<()> {
        let mut added: BTreeMap<u64, (AddedToken, &str)> = BTreeMap::new();
        if let Some(bytes) = self.files.bytes("added_tokens.json") {
            let name = "added_tokens.json";
            let tokens: BTreeMap<String, u64> =
                serde_json::from_slice(bytes).map_err(|e| Error::format(self.place(name), e.to_string()))?;
            added.extend(tokens.into_iter().map(|(text, id)| (id, (AddedToken::from(text, false), name))));
        }
        let decoder = self.config.get("added_tokens_decoder").and_then(Value::as_object);
        for (id, token) in decoder.into_iter().flatten() {
            let id =
                id.parse().map_err(|_| self.broken(format!("`{id}` in added_tokens_decoder is no id")))?;
            let token = serde_json::from_value(token.clone())
                .map_err(|e| self.broken(format!("added_tokens_decoder, token {id}: {e}")))?;
            added.insert(id, (token, "tokenizer_config.json"));
        }
        let tokens: Vec<AddedToken> = added.values().map(|(token, _)| token.clone()).collect();
        add(built, tokens).map_err(|what| self.broken(what))?;
        for (id, (AddedToken { content: text, .. }, name)) in added {
            let found = built.token_to_id(&text);
            if found.map(u64::from) != Some(id) {
                let found = found.map_or("none".into(), |id| id.to_string());
                let what = format!("token `{text}` has the id {id}; behind the vocabulary its id is {found}");
                return Err(Error::format(self.place(name), what));
            }
        }
        let lists = ["additional_special_tokens", "extra_special_tokens"];
        let listed = lists.into_iter().filter_map(|list| self.config.get(list)?.as_array()).flatten();
        let texts = listed.filter_map(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
        let more = texts.filter(|text| !text.is_empty() && !known.contains(text));
        add(built, more.map(|text| AddedToken::from(text, true).normalized(false)))
            .map_err(|what| self.broken(what))
    }
}
