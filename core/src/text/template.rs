//! Chat templates: messages to the one text that the model was trained on.
//!
//! Templates come from checkpoints, in Jinja as Python's library runs it: blocks trim their newline and their
//! indentation, methods of `str`, `dict` and `list` exist, `tojson` writes as Python's `json.dumps` does,
//! `raise_exception` and `strftime_now` (UTC) are there. A template is input like any other file: rendering
//! it is bounded in time, memory and stack, whatever it says (`jinja`): less than a second and 100 MB, in a
//! debug build too. So a conversation of more than about ten megabytes may be refused. A panic is an error
//! wherever the platform can unwind; a browser cannot.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::clock;
use super::jinja::{Data, Fail, Template};
use crate::{Error, Result};

/// Bytes that a template may have, several times the longest that is published.
const MOST_BYTES: usize = 256 << 10;

/// Characters of a message about a failure: a template may raise its own.
const MOST_MESSAGE: usize = 2000;

/// One message of a conversation.
///
/// ```
/// use engraft_core::text::Message;
///
/// let talk = [Message::new("system", "Be brief."), Message::new("user", "Hello")];
/// assert_eq!(talk[1].role, "user");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message of `role` with `content`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// A compiled chat template.
///
/// ```
/// use engraft_core::text::{ChatTemplate, Message};
///
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}\
///               {% if add_generation_prompt %}<assistant>{% endif %}";
/// let template = ChatTemplate::new(source, None, Some("</s>"))?;
/// let text = template.render(&[Message::new("user", "Hello")], true, None)?;
/// assert_eq!(text, "<user>Hello</s><assistant>");
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    template: Template,
    bos_token: Data,
    eos_token: Data,
}

impl ChatTemplate {
    /// Compiles `source`; `bos_token` and `eos_token` are the spellings that the template may print.
    ///
    /// # Errors
    /// [`Error::Text`] with the line where the syntax breaks, or for a text of more than 256 KiB.
    pub fn new(source: &str, bos_token: Option<&str>, eos_token: Option<&str>) -> Result<Self> {
        if source.len() > MOST_BYTES {
            let found = source.len();
            return Err(Error::text(format!(
                "a chat template of {found} bytes; at most {MOST_BYTES} are allowed"
            )));
        }
        let token = |token: Option<&str>| Data::from(token.unwrap_or_default());
        Ok(ChatTemplate {
            template: caught(|| Template::new(source))?,
            bos_token: token(bos_token),
            eos_token: token(eos_token),
        })
    }

    /// The prompt for `messages`; `add_generation_prompt` ends it where the assistant's answer begins.
    ///
    /// `extra` is an object whose fields the template sees as variables (`tools`, `documents`,
    /// `enable_thinking`).
    ///
    /// # Errors
    /// [`Error::Text`] with the template's line: its own `raise_exception`, a type error, a limit of time or
    /// memory.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: Option<&Value>,
    ) -> Result<String> {
        let field = |name: &str, text: &str| (name.to_owned(), Data::from(text));
        let one = |m: &Message| Data::Object(vec![field("role", &m.role), field("content", &m.content)]);
        let messages = Data::List(messages.iter().map(one).collect());
        self.render_data(&messages, add_generation_prompt, &extra.map_or(Data::Null, Data::from))
    }

    /// [`render`](Self::render) with messages of any fields, and with `tools` whose keys keep their order.
    ///
    /// # Errors
    /// As [`render`](Self::render); also if `messages` is no list or empty, or `extra` neither an object nor
    /// null.
    pub fn render_data(&self, messages: &Data, add_generation_prompt: bool, extra: &Data) -> Result<String> {
        self.render_at(messages, add_generation_prompt, extra, clock::unix_seconds())
    }

    fn render_at(
        &self,
        messages: &Data,
        add_generation_prompt: bool,
        extra: &Data,
        now: Option<i64>,
    ) -> Result<String> {
        let Data::List(given) = messages else {
            return Err(Error::text("messages of a chat template must be a list"));
        };
        if given.is_empty() {
            return Err(Error::text("a conversation without messages; at least one is needed"));
        }
        let messages = &Data::List(given.iter().map(with_reasoning).collect());
        let given = match extra {
            Data::Null => &[][..],
            Data::Object(fields) => fields,
            _ => return Err(Error::text("variables of a chat template must be an object")),
        };
        let prompt = Data::Bool(add_generation_prompt);
        let mut variables = vec![
            ("messages", messages),
            ("add_generation_prompt", &prompt),
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
        ];
        let own = variables.len();
        for (name, value) in given {
            if !variables[..own].iter().any(|(taken, _)| taken == name) {
                variables.push((name, value));
            }
        }
        // Python's caller passes these two always, and templates compare them with none.
        for name in ["tools", "documents"] {
            if !variables.iter().any(|(taken, _)| *taken == name) {
                variables.push((name, &Data::Null));
            }
        }
        caught(|| self.template.render(&variables, now))
    }
}

/// Runs the compiler or the renderer. A panic of theirs ends the template, not the process, wherever the
/// platform can unwind. Rendering does not change a template, so that nothing is left half done.
fn caught<T>(work: impl FnOnce() -> Result<T, Fail>) -> Result<T> {
    let panicked = "a panic of the engine, which is a fault of its own: please report the template";
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Err(Fail::new(panicked))).map_err(|e| explain(&e))
}

/// A message whose reasoning is there under both of the names that templates ask for.
fn with_reasoning(message: &Data) -> Data {
    let mut message = message.clone();
    if let Data::Object(fields) = &mut message {
        for (name, other) in [("reasoning_content", "thinking"), ("thinking", "reasoning_content")] {
            let find =
                |wanted: &str| fields.iter().find(|(known, _)| known == wanted).map(|(_, v)| v.clone());
            if let (Some(reasoning), None) = (find(name), find(other)) {
                fields.push((other.to_owned(), reasoning));
            }
        }
    }
    message
}

/// Our error of a template's: the line, and what is wrong.
fn explain(fail: &Fail) -> Error {
    let line = fail.line.map(|l| format!(", line {l}")).unwrap_or_default();
    let what: String = fail.text.chars().take(MOST_MESSAGE).collect();
    Error::text(format!("chat template{line}: {what}"))
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
