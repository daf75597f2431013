//! Chat templates: messages to the one text that the model was trained on.
//!
//! Templates come from checkpoints, in Jinja as Python's library runs it: blocks trim their newline and their
//! indentation, methods of `str`, `dict` and `list` exist, `tojson` writes as Python's `json.dumps` does,
//! `raise_exception` and `strftime_now` (UTC) are there. A template is input like any other file: it has a budget of
//! steps, of nesting and of output. What a budget cannot stop is a template that doubles one string again and again;
//! that ends at the memory limit of the process, as it does in Python.

use std::io::Write;

use minijinja::value::{Kwargs, Serde, Value as Jinja};
use minijinja::{Environment, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::clock;
use crate::{Error, Result};

/// Instructions a rendering may take: about 50 000 messages of a usual template.
const FUEL: u64 = 5_000_000;
/// Nesting of macro calls (each costs a few) that a rendering may reach.
const DEPTH: usize = 200;
/// Bytes a rendering may give.
const MAX_OUTPUT: usize = 64 << 20;
/// Lines, and bytes of a line, that a template may have: the template engine counts both in 16 bits.
const MOST_LINES: usize = 60_000;
/// Bytes that a template may have, several times the longest that is published.
const MOST_BYTES: usize = 256 << 10;
/// Bytes outside of strings that a tag may have: the template engine's time for an expression grows with the square of its
/// terms.
const MOST_TAG: usize = 4096;
const NAME: &str = "chat_template";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Compiles `source`; `bos_token` and `eos_token` are the spellings that the template may print.
    ///
    /// # Errors
    /// [`Error::Text`] with the line where the syntax breaks, or for too many or too long lines, too long a tag, too long a
    /// text.
    pub fn new(source: &str, bos_token: Option<&str>, eos_token: Option<&str>) -> Result<Self> {
        let (lines, longest) = source.split('\n').fold((0, 0), |(n, most), l| (n + 1, most.max(l.len())));
        if lines.max(longest) > MOST_LINES {
            let found = format!("a chat template of {lines} lines, the longest of {longest} bytes");
            return Err(Error::text(format!("{found}; at most {MOST_LINES} of each are allowed")));
        }
        let (bytes, tag) = (source.len(), longest_tag(source));
        if bytes > MOST_BYTES || tag > MOST_TAG {
            let found =
                format!("a chat template of {bytes} bytes, its longest tag of {tag} without its strings");
            return Err(Error::text(format!("{found}; at most {MOST_BYTES} and {MOST_TAG} are allowed")));
        }
        let mut environment = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| explain(&e))?);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |what: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, what))
        });
        if clock::unix_seconds().is_some() {
            environment.add_function("strftime_now", strftime_now);
        }
        environment.add_template_owned(NAME, without_generation_marks(source)).map_err(|e| explain(&e))?;
        let text = |token: Option<&str>| token.unwrap_or_default().to_owned();
        Ok(ChatTemplate { environment, bos_token: text(bos_token), eos_token: text(eos_token) })
    }

    /// The prompt for `messages`; `add_generation_prompt` ends it where the assistant's answer begins.
    ///
    /// `extra` is an object whose fields the template sees as variables (`tools`, `documents`, `enable_thinking`).
    ///
    /// # Errors
    /// [`Error::Text`] with the template's line: its own `raise_exception`, a type error, a budget used up.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: Option<&Value>,
    ) -> Result<String> {
        let mut variables = Map::new();
        // Python's caller passes these two always, and templates compare them with none.
        variables.insert("tools".into(), Value::Null);
        variables.insert("documents".into(), Value::Null);
        match extra {
            None | Some(Value::Null) => {}
            Some(Value::Object(fields)) => {
                variables.extend(fields.iter().map(|(k, v)| (k.clone(), v.clone())))
            }
            Some(other) => {
                return Err(Error::text(format!(
                    "variables of a chat template must be an object, not {other}"
                )));
            }
        }
        variables.insert("messages".into(), json!(messages));
        variables.insert("add_generation_prompt".into(), json!(add_generation_prompt));
        variables.insert("bos_token".into(), json!(self.bos_token));
        variables.insert("eos_token".into(), json!(self.eos_token));
        let template = self.environment.get_template(NAME).map_err(|e| explain(&e))?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(Serde(&variables), &mut out).map_err(|e| explain(&e))?;
        String::from_utf8(out.0).map_err(|e| Error::internal(format!("chat template output: {e}")))
    }
}

/// Bytes of the longest tag, its strings not counted. What is in doubt counts as part of a tag.
fn longest_tag(source: &str) -> usize {
    let (mut at, mut longest) = (0, 0);
    while let Some(open) = source[at..].find('{') {
        let begin = at + open + 2;
        match source.as_bytes().get(begin - 1) {
            Some(b'#') => at = source[begin..].find("#}").map_or(source.len(), |end| begin + end + 2),
            Some(b'{' | b'%') => {
                let (length, end) = tag(&source.as_bytes()[begin..]);
                longest = longest.max(length);
                at = begin + end;
                let words = source[begin..at].trim_matches(|c: char| c.is_whitespace() || "-+%}".contains(c));
                if words == "raw" {
                    at = source[at..].find("endraw").map_or(source.len(), |end| at + end);
                }
            }
            _ => at = begin - 1,
        }
    }
    longest
}

/// The length of a tag outside of its strings, and where it ends.
fn tag(bytes: &[u8]) -> (usize, usize) {
    let (mut at, mut length, mut depth, mut quote) = (0, 0, 0usize, None);
    while let Some(byte) = bytes.get(at) {
        let ends = bytes.get(at + 1) == Some(&b'}') && depth == 0;
        match (quote, byte) {
            (Some(_), b'\\') => at += 1,
            (Some(q), _) if q == byte => quote = None,
            (Some(_), _) => {}
            (None, b'%' | b'}') if ends => return (length, at + 2),
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        length += usize::from(quote.is_none());
        at += 1;
    }
    (length, bytes.len())
}

/// A buffer that refuses to grow beyond [`MAX_OUTPUT`].
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(std::io::Error::other(format!("output of more than {MAX_OUTPUT} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Our error of a template's: the line, the kind, what is wrong.
fn explain(error: &minijinja::Error) -> Error {
    let line = error.line().map(|l| format!(", line {l}")).unwrap_or_default();
    let detail = error.detail().map(|d| format!(": {d}")).unwrap_or_default();
    let source = std::error::Error::source(error).map(|s| format!(" ({s})")).unwrap_or_default();
    Error::text(format!("chat template{line}: {}{detail}{source}", error.kind()))
}

fn strftime_now(format: String) -> Result<String, minijinja::Error> {
    let fail = |what: String| minijinja::Error::new(ErrorKind::InvalidOperation, what);
    let now = clock::unix_seconds().ok_or_else(|| fail("strftime_now: no clock".into()))?;
    clock::strftime(&format, now).map_err(|e| fail(e.to_string()))
}

/// `tojson` as `json.dumps(ensure_ascii=False)` writes: blanks after commas and colons, no escapes for HTML.
fn to_json(value: &Jinja, indent: Option<Jinja>, options: Kwargs) -> Result<Jinja, minijinja::Error> {
    let html_safe = minijinja::filters::tojson(value, indent, options)?;
    let escaped = html_safe.as_str().unwrap_or_default();
    let mut out = String::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (plain, len) = match rest.get(..6) {
            Some("\\u003c") => ("<", 6),
            Some("\\u003e") => (">", 6),
            Some("\\u0026") => ("&", 6),
            Some("\\u0027") => ("'", 6),
            // Any other escape is two ASCII characters as far as this scan is concerned, an escaped backslash too.
            _ => (rest.get(..2).unwrap_or(rest), 2),
        };
        out.push_str(plain);
        rest = rest.get(len..).unwrap_or_default();
    }
    out.push_str(rest);
    Ok(Jinja::from(out))
}

/// `{% generation %}` marks what is trained on; here its blocks are plain text.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(end) = rest[at..].find("%}").map(|e| at + e + 2) else { break };
        let tag = &rest[at..end];
        let word = tag.trim_matches(['{', '}', '%', '-', '+', ' ']);
        out.push_str(&rest[..at]);
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out + rest
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
