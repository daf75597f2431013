//! The objects of answers: whole ones, and chunks of streams.

use crate::choice::{End, Piece};
use serde_json::{Value, json};

/// Which of the two routes an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// What the objects of one answer have in common.
#[derive(Debug, Clone)]
pub struct Frames {
    /// The route.
    pub kind: Kind,
    /// Its name.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model, as the request called it.
    pub model: String,
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Those of them that came from the prefix cache, as far as known.
    pub cached_tokens: usize,
    /// Whether a stream ends with its usage.
    pub include_usage: bool,
    /// Whether every chunk has it.
    pub continuous_usage: bool,
    /// Token ids of the prompts, where they are asked for.
    pub prompt_ids: Option<Vec<Vec<u32>>>,
    /// What stands in front of each text.
    pub echoes: Vec<String>,
    /// Continuations of each prompt.
    pub n: usize,
    /// Which continuations have begun.
    pub begun: Vec<bool>,
}

impl Frames {
    /// The usage after `tokens` of the continuations.
    fn usage(&self, tokens: usize) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }

    fn object(&self, streamed: bool, choices: Value) -> Value {
        let object = match (self.kind, streamed) {
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Chat, false) => "chat.completion",
            (Kind::Text, _) => "text_completion",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("engraft-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }

    /// A chunk, with its usage where one is wanted.
    fn chunk(&self, choice: Value, tokens: usize) -> Value {
        let mut chunk = self.object(true, json!([choice]));
        if self.include_usage {
            chunk["usage"] = if self.continuous_usage { self.usage(tokens) } else { Value::Null };
        }
        chunk
    }

    /// The chunks of a piece of continuation `index`, after `tokens` of all of them.
    pub fn piece(&mut self, index: usize, piece: Piece, tokens: usize) -> Vec<Value> {
        let mut chunks = Vec::new();
        let first = !std::mem::replace(&mut self.begun[index], true);
        let mut text = piece.text;
        if first {
            match self.kind {
                Kind::Chat => {
                    let role = json!({"role": "assistant", "content": ""});
                    let mut choice =
                        json!({"index": index, "delta": role, "logprobs": null, "finish_reason": null});
                    self.add_prompt_ids(&mut choice, index);
                    chunks.push(self.chunk(choice, tokens));
                }
                Kind::Text => {
                    if let Some(echo) = self.echoes.get(index / self.n) {
                        text = format!("{echo}{text}");
                    }
                }
            }
        }
        let reason = piece.end.as_ref().map(|end| end.reason);
        let mut choice = match self.kind {
            Kind::Chat => {
                let delta = if text.is_empty() { json!({}) } else { json!({"content": text}) };
                json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": reason})
            }
            Kind::Text => json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason}),
        };
        if let Some(End { stop_reason, .. }) = &piece.end {
            choice["stop_reason"] = stop_reason.clone();
        }
        if self.prompt_ids.is_some() {
            choice["token_ids"] = json!(piece.tokens);
            if first && self.kind == Kind::Text {
                self.add_prompt_ids(&mut choice, index);
            }
        }
        chunks.push(self.chunk(choice, tokens));
        chunks
    }

    /// The chunk behind the last one.
    pub fn last(&self, tokens: usize) -> Option<Value> {
        self.include_usage.then(|| {
            let mut chunk = self.object(true, json!([]));
            chunk["usage"] = self.usage(tokens);
            chunk
        })
    }

    fn add_prompt_ids(&self, choice: &mut Value, index: usize) {
        if let Some(ids) = self.prompt_ids.as_ref().and_then(|all| all.get(index / self.n)) {
            choice["prompt_token_ids"] = json!(ids);
        }
    }

    /// The whole answer of continuations that are gathered in `pieces`.
    pub fn whole(&self, pieces: Vec<Piece>, tokens: usize) -> Value {
        let choices = pieces.into_iter().enumerate().map(|(index, piece)| {
            let (reason, stop_reason) =
                piece.end.map_or((Value::Null, Value::Null), |end| (json!(end.reason), end.stop_reason));
            let mut choice = match self.kind {
                Kind::Chat => json!({
                    "index": index,
                    "message": {"role": "assistant", "content": piece.text, "refusal": null},
                }),
                Kind::Text => {
                    let echo = self.echoes.get(index / self.n).map_or("", String::as_str);
                    json!({"index": index, "text": format!("{echo}{}", piece.text)})
                }
            };
            choice["logprobs"] = Value::Null;
            choice["finish_reason"] = reason;
            choice["stop_reason"] = stop_reason;
            if self.prompt_ids.is_some() {
                choice["token_ids"] = json!(piece.tokens);
                self.add_prompt_ids(&mut choice, index);
            }
            choice
        });
        let choices: Vec<Value> = choices.collect();
        let mut whole = self.object(false, json!(choices));
        whole["usage"] = self.usage(tokens);
        whole
    }
}
