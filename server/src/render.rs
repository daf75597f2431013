//! Conversations and plain texts to the token ids of a prompt.

use crate::error::ApiError;
use crate::fields::{Fields, short};
use crate::supervise::Served;
use engraft::Tokenizer;
use engraft::engraft_core::text::Data;
use serde_json::{Map, Value};

/// Messages of one conversation.
const MOST_MESSAGES: usize = 4096;

/// Roles of OpenAI's API that the server reads; those of tools are refused before.
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// A conversation, as its request gave it.
#[derive(Debug)]
pub struct Conversation {
    messages: Vec<Map<String, Value>>,
    answer: bool,
    continues: bool,
    variables: Map<String, Value>,
}

impl Conversation {
    /// The conversation of a request.
    ///
    /// # Errors
    /// 400 for what is no conversation of texts.
    pub fn of(fields: &Fields) -> Result<Self, ApiError> {
        let messages = match fields.get("messages") {
            Some(Value::Array(messages)) if (1..=MOST_MESSAGES).contains(&messages.len()) => messages,
            Some(Value::Array(other)) => {
                let found = format!("has {} entries; allowed: 1 to {MOST_MESSAGES}", other.len());
                return Err(ApiError::field("messages", found));
            }
            Some(_) => return Err(ApiError::field("messages", "is no list")),
            None => return Err(ApiError::field("messages", "is missing")),
        };
        let messages = messages.iter().enumerate().map(|(at, message)| one(at, message));
        let continues = fields.flag("continue_final_message", false)?;
        let answer = fields.flag("add_generation_prompt", !continues)?;
        if continues && answer {
            let both = "goes with `add_generation_prompt`: false";
            return Err(ApiError::field("continue_final_message", both));
        }
        let mut variables = match fields.get("chat_template_kwargs") {
            None => Map::new(),
            Some(Value::Object(variables)) => variables.clone(),
            Some(_) => return Err(ApiError::field("chat_template_kwargs", "is no object")),
        };
        match fields.get("documents") {
            None => {}
            Some(documents @ Value::Array(_)) => {
                variables.insert("documents".into(), documents.clone());
            }
            Some(_) => return Err(ApiError::field("documents", "is no list")),
        }
        Ok(Self { messages: messages.collect::<Result<_, _>>()?, answer, continues, variables })
    }

    /// The token ids of the prompt, at most `most`; `shield`: no text of the request becomes a control token.
    /// The template may take long: not for a thread that others wait for.
    ///
    /// # Errors
    /// 400 where the model has no template, where that fails, with `shield` for a role that the API does not
    /// know, and for more tokens than `most`.
    pub fn tokens(
        &self,
        served: &Served,
        shield: bool,
        special: bool,
        most: usize,
    ) -> Result<Vec<u32>, ApiError> {
        let Some(template) = served.template() else {
            let why = "the model has no chat template; the server takes one by --chat-template, and \
                /v1/completions continues plain text";
            return Err(ApiError::field("messages", format!("cannot be read: {why}")));
        };
        let tokenizer = served.generator.tokenizer();
        let (mut messages, mut variables) = (self.messages.clone(), self.variables.clone());
        if shield {
            for (at, message) in messages.iter_mut().enumerate() {
                known_role(at, message)?;
                // Names of a message's fields, and roles, are the API's own.
                for (_, value) in message.iter_mut().filter(|(name, _)| *name != "role") {
                    *value = shielded(tokenizer, value)?;
                }
            }
            variables = shielded_fields(tokenizer, &variables)?;
        }
        let last = messages.last().and_then(|m| m.get("content")?.as_str()).unwrap_or_default().to_owned();
        let messages = Value::Array(messages.into_iter().map(Value::Object).collect());
        let variables = Value::Object(variables);
        let mut text = template.render_data(&Data::from(&messages), self.answer, &Data::from(&variables))?;
        if self.continues {
            let last = last.trim();
            let Some(at) = text.rfind(last) else {
                let why = "is not possible: the template does not write the final message as it is";
                return Err(ApiError::field("continue_final_message", why));
            };
            text.truncate(at + last.len());
        }
        let ids = match shield {
            true => tokenizer.encode_shielded(&text, special, most),
            false => tokenizer.encode_at_most(&text, special, most),
        };
        ids.map_err(|error| ApiError { param: Some("messages".into()), ..ApiError::from(error) })
    }
}

/// The token ids of a plain text; `shield`: it becomes no control token.
///
/// # Errors
/// Those of the tokenizer, for a text of more than `most` tokens among them.
pub fn plain(
    tokenizer: &Tokenizer,
    text: &str,
    special: bool,
    most: usize,
    shield: bool,
) -> engraft::Result<Vec<u32>> {
    // As it is first: a text that is too long is refused before all of it is read.
    let ids = tokenizer.encode_at_most(text, special, most)?;
    if !shield {
        return Ok(ids);
    }
    let marked = tokenizer.shield(text)?;
    if marked == text { Ok(ids) } else { tokenizer.encode_shielded(&marked, special, most) }
}

/// A value none of whose texts becomes a control token; names of fields neither, which templates print, too.
fn shielded(tokenizer: &Tokenizer, value: &Value) -> Result<Value, ApiError> {
    Ok(match value {
        Value::String(text) => Value::String(tokenizer.shield(text)?),
        Value::Array(values) => {
            Value::Array(values.iter().map(|value| shielded(tokenizer, value)).collect::<Result<_, _>>()?)
        }
        Value::Object(fields) => Value::Object(shielded_fields(tokenizer, fields)?),
        other => other.clone(),
    })
}

fn shielded_fields(
    tokenizer: &Tokenizer,
    fields: &Map<String, Value>,
) -> Result<Map<String, Value>, ApiError> {
    let mut all = Map::new();
    for (name, value) in fields {
        all.insert(tokenizer.shield(name)?, shielded(tokenizer, value)?);
    }
    Ok(all)
}

/// Templates write a message's role next to their control tokens: it is no text of the user's own.
fn known_role(at: usize, message: &Map<String, Value>) -> Result<(), ApiError> {
    let role = message.get("role").unwrap_or(&Value::Null);
    if role.as_str().is_some_and(|role| ROLES.contains(&role)) {
        return Ok(());
    }
    let why = format!("is {}; allowed: {}", short(role), ROLES.join(", "));
    Err(ApiError::field(&format!("messages[{at}].role"), why))
}

/// A message whose content is one text.
fn one(at: usize, message: &Value) -> Result<Map<String, Value>, ApiError> {
    let place = |field: &str| format!("messages[{at}]{field}");
    let Value::Object(given) = message else {
        return Err(ApiError::field(&place(""), format!("is {}; allowed: an object", short(message))));
    };
    let mut kept = Map::new();
    for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "role" => match value.as_str() {
                Some("tool" | "function") => {
                    let why = "this version of the server calls no tools";
                    return Err(ApiError::unsupported(&place(".role"), why));
                }
                Some(_) => {}
                None => return Err(ApiError::field(&place(".role"), "is no string")),
            },
            "content" => {
                kept.insert("content".into(), Value::String(content(&place(".content"), value)?));
                continue;
            }
            "name" | "reasoning_content" | "reasoning" | "thinking" | "refusal" => {
                if !value.is_string() {
                    return Err(ApiError::field(&place(&format!(".{name}")), "is no string"));
                }
            }
            "tool_calls" | "function_call" | "tool_call_id" => {
                if value.as_array().is_some_and(Vec::is_empty) {
                    continue;
                }
                let why = "this version of the server calls no tools";
                return Err(ApiError::unsupported(&place(&format!(".{name}")), why));
            }
            "audio" => return Err(ApiError::unsupported(&place(".audio"), "the model reads text alone")),
            // What clients send back of an answer.
            "annotations" | "provider_specific_fields" => continue,
            _ => return Err(ApiError::unknown(&place(&format!(".{name}")))),
        }
        kept.insert(name.clone(), value.clone());
    }
    for needed in ["role", "content"] {
        if !kept.contains_key(needed) {
            return Err(ApiError::field(&place(&format!(".{needed}")), "is missing"));
        }
    }
    Ok(kept)
}

/// The text of a message, whose parts are put together by line ends.
fn content(place: &str, value: &Value) -> Result<String, ApiError> {
    let parts = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::field(place, format!("is {}; allowed: a string or parts", short(value)))),
    };
    let mut texts = Vec::new();
    for part in parts {
        let kind = part.get("type").and_then(Value::as_str);
        match (part, kind, part.get("text").and_then(Value::as_str)) {
            (Value::String(text), _, _) => texts.push(text.as_str()),
            (_, Some("text" | "input_text") | None, Some(text)) => texts.push(text),
            (_, Some("text" | "input_text"), None) => {
                let why = format!("has the part {}; allowed: a string as its `text`", short(part));
                return Err(ApiError::field(place, why));
            }
            (_, Some(kind), _) => {
                let why = format!("parts of type {} are not read, text alone is", short(&kind.into()));
                return Err(ApiError::unsupported(place, &why));
            }
            _ => return Err(ApiError::field(place, format!("has the part {}", short(part)))),
        }
    }
    Ok(texts.join("\n"))
}
