//! Requests whose every token is known before they are sent.

use crate::client::{Answer, post};
use engraft::{EngineConfig, Finish, Request, SamplingParams, TextGenerator};
use null_backend::{Null, Oracle, PLANNED};
use serde_json::{Value, json};
use serve_http::Dice;

/// Positions of a sequence.
pub const CONTEXT: usize = 256;

/// What gives a request its answer.
pub struct World {
    model: TextGenerator,
    oracle: Oracle,
}

/// A request and its answer.
pub struct Case {
    pub body: Value,
    /// Token ids of each continuation, and how it ends.
    want: Vec<(Vec<u32>, &'static str)>,
}

/// What came of a request.
#[derive(Debug, PartialEq)]
pub enum Came {
    /// What the oracle says.
    Right,
    /// An error that an engine's failure explains.
    Failed(String),
    /// Anything else.
    Wrong(String),
}

impl World {
    pub fn new() -> Self {
        let engine = EngineConfig { max_context: CONTEXT, max_seqs: 1, ..EngineConfig::default() };
        let (model, oracle) = serve_http::over(&Null::new(), engine).unwrap();
        Self { model, oracle }
    }

    /// A request of these sizes.
    pub fn case(&self, prompt: Vec<u32>, tokens: usize, n: u32, dice: &mut Dice) -> Option<Case> {
        let seed = dice.below(1 << 20) as u64;
        let (penalty, ignore) = (dice.pick(&[1.0, 1.0, 1.3]), dice.once_in(2));
        let sampling = SamplingParams {
            temperature: 0.8,
            seed: Some(seed),
            repetition_penalty: penalty,
            ..SamplingParams::default()
        };
        let body = json!({"prompt": prompt, "max_tokens": tokens, "n": n, "seed": seed, "temperature": 0.8,
            "repetition_penalty": penalty, "ignore_eos": ignore, "return_token_ids": true,
            "cache_salt": dice.pick(&["", "", "a"]), "priority": dice.below(3)});
        let stop_ids = if ignore { Vec::new() } else { self.model.stop_ids().to_vec() };
        let request = Request { prompt, max_new_tokens: tokens, sampling, stop_ids, ..Request::default() };
        let want = (0..n).map(|subsequence| {
            let (ids, finish) = self.oracle.answer(&Request { subsequence, ..request.clone() });
            match finish {
                Finish::Length => Some((ids, "length")),
                Finish::Stop => Some((ids, "stop")),
                _ => None,
            }
        });
        Some(Case { want: want.collect::<Option<_>>()?, body })
    }

    /// One of so many tokens.
    pub fn lasting(&self, tokens: usize) -> Case {
        let cases = (0..1000).filter_map(|seed| self.case(vec![3; 20], tokens, 1, &mut Dice::new(seed)));
        cases.into_iter().find(|case| case.want[0].0.len() == tokens).expect("a case of so many tokens")
    }

    /// One whose prompt begins as others do.
    pub fn any(&self, dice: &mut Dice) -> Case {
        let vocab = self.model.handle().info().vocab;
        loop {
            let (stem, length) = (dice.below(6), 2 + dice.below(40));
            let mut prompt: Vec<u32> =
                (0..length).map(|at| ((stem * 977 + at * 31) % vocab) as u32).collect();
            prompt.extend((0..dice.below(12)).map(|_| dice.below(vocab) as u32));
            let n = if dice.once_in(6) { 2 + dice.below(3) as u32 } else { 1 };
            let tokens = 1 + dice.below(40);
            if let Some(case) = self.case(prompt, tokens, n, dice) {
                return case;
            }
        }
    }
}

impl Case {
    /// Its bytes; `name` is a word of its own, so that no two requests are the same.
    pub fn bytes(&self, stream: bool, name: &str) -> String {
        let mut body = self.body.clone();
        (body["stream"], body["request_id"]) = (json!(stream), json!(name));
        post("/v1/completions", &body.to_string())
    }

    /// Holds an answer against the oracle.
    pub fn judge(&self, stream: bool, answer: &Answer) -> Came {
        match answer.status {
            200 if stream => self.judge_events(&answer.text()),
            200 => match serde_json::from_slice::<Value>(&answer.body) {
                Ok(value) => self.judge_choices(&gathered(&[value])),
                Err(error) => Came::Wrong(format!("{error}: {}", answer.text())),
            },
            503 if !answer.has_header("retry-after") => Came::Wrong("503 without Retry-After".into()),
            500 | 503 if is_planned(&answer.error()) => Came::Failed(answer.error()),
            status => Came::Wrong(format!("{status}: {}", answer.text())),
        }
    }

    fn judge_events(&self, text: &str) -> Came {
        let Some(body) = text.strip_suffix("\n\n") else { return Came::Wrong(format!("no end: {text}")) };
        let events: Vec<&str> = body.split("\n\n").filter(|event| !event.starts_with(':')).collect();
        let data: Option<Vec<&str>> = events.iter().map(|event| event.strip_prefix("data: ")).collect();
        let Some((last, before)) = data.as_deref().and_then(<[_]>::split_last) else {
            return Came::Wrong(format!("no events: {text}"));
        };
        let parsed = |events: &[&str]| -> Option<Vec<Value>> {
            events.iter().map(|event| serde_json::from_str(event).ok()).collect()
        };
        if *last != "[DONE]" {
            let said = parsed(&[last]).map(|all| all[0]["error"]["message"].as_str().map(str::to_owned));
            return match said.flatten() {
                Some(said) if is_planned(&said) => Came::Failed(said),
                _ => Came::Wrong(format!("ended without [DONE]: {text}")),
            };
        }
        match parsed(before) {
            Some(chunks) => self.judge_choices(&gathered(&chunks)),
            None => Came::Wrong(format!("no JSON: {text}")),
        }
    }

    fn judge_choices(&self, came: &[(Vec<u32>, Vec<String>)]) -> Came {
        let right = came.len() == self.want.len()
            && came.iter().zip(&self.want).all(|((ids, ends), (want, end))| ids == want && ends == &[*end]);
        match right {
            true => Came::Right,
            false => Came::Wrong(format!("{}\n  came {came:?}\n  want {:?}", self.body, self.want)),
        }
    }
}

/// Token ids and ends of each continuation.
fn gathered(chunks: &[Value]) -> Vec<(Vec<u32>, Vec<String>)> {
    let mut all: Vec<(Vec<u32>, Vec<String>)> = Vec::new();
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().cloned().unwrap_or_default()) {
        let at = choice["index"].as_u64().unwrap_or(99) as usize;
        if all.len() <= at {
            all.resize(at + 1, Default::default());
        }
        let ids = choice["token_ids"].as_array().cloned().unwrap_or_default();
        all[at].0.extend(ids.iter().filter_map(Value::as_u64).map(|id| id as u32));
        all[at].1.extend(choice["finish_reason"].as_str().map(str::to_owned));
    }
    all
}

/// Whether the server says so where an engine failed.
fn is_planned(said: &str) -> bool {
    [PLANNED, "starts anew", "panicked", "is gone", "engine"].iter().any(|word| said.contains(word))
}
