//! What a request gives on [`Null`](super::Null), as a function of the request alone: no engine, no page.

use super::ops::{mix, sampled_tag, token_of};
use engraft_core::engine::{Finish, Request};
use engraft_core::model::RopeShifts;
use engraft_core::policy::ModelSpec;
use engraft_core::sample::NO_TOKEN;

/// Tokens of a model whose blocks are those of LLaMA: attention behind a norm, then an MLP behind another,
/// each added to what it read; rotary positions, one head over the vocabulary.
#[derive(Debug, Clone)]
pub struct Oracle {
    layers: usize,
    vocab: usize,
    context: usize,
    /// Tokens of the longest prompt whose positions are not shifted, and by how much others are.
    shift: Option<(usize, u32)>,
}

/// A sequence so far.
struct Text {
    /// Tags of keys, by layer and position.
    keys: Vec<Vec<u32>>,
    shift: u32,
}

impl Text {
    /// Appends a token; the tag of its row of logits.
    fn append(&mut self, token: u32) -> u32 {
        let mut x = mix(1, token);
        for keys in &mut self.keys {
            let rotated = mix(x, keys.len() as u32 + self.shift);
            keys.push(rotated);
            x = mix(x, keys.iter().copied().fold(rotated, mix));
            // What the MLP passes on.
            x = mix(x, x);
        }
        x
    }
}

impl Oracle {
    /// Of an engine of this model with so many positions.
    pub fn new(spec: &ModelSpec, shifts: &RopeShifts, context: usize) -> Self {
        let shifted = (1..=context).find(|prompt| shifts.of(*prompt) > 0);
        Self {
            layers: spec.blocks.len(),
            vocab: spec.vocab,
            context,
            shift: shifted.map(|first| (first - 1, shifts.of(first))),
        }
    }

    /// All tokens of a request that is not disturbed, and how it ends.
    pub fn answer(&self, request: &Request) -> (Vec<u32>, Finish) {
        self.rest(request, &[])
    }

    /// The same of one that goes on behind tokens that count as its own: those that another request had
    /// sampled which it was forked from, say. The tokens behind them, and how it ends.
    pub fn rest(&self, request: &Request, begun: &[u32]) -> (Vec<u32>, Finish) {
        let prompt = &request.prompt;
        let shift = self.shift.filter(|(longest, _)| prompt.len() > *longest).map_or(0, |(_, shift)| shift);
        let mut text = Text { keys: vec![Vec::new(); self.layers], shift };
        let all = || prompt.iter().chain(begun).copied();
        let mut tag = all().fold(0, |_, token| text.append(token));
        let mut seen = (request.sampling.repetition_penalty != 1.0).then(|| Seen::new(all(), self.vocab));
        let most = request.max_new_tokens.min(self.context - prompt.len());
        let mut tokens = Vec::new();
        while begun.len() + tokens.len() < most {
            let position = (prompt.len() + begun.len() + tokens.len()) as u32;
            let seed = request.sampling.seed.unwrap_or(0) as u32;
            let sampled = sampled_tag(tag, seed, request.subsequence, position);
            let bits = seen.iter().flat_map(|seen| seen.0.iter().copied());
            let token = token_of(bits.fold(sampled, mix), self.vocab);
            if token == NO_TOKEN {
                return (tokens, Finish::NoToken);
            }
            tokens.push(token);
            if request.stop_ids.contains(&token) {
                return (tokens, Finish::Stop);
            }
            if let Some(seen) = &mut seen {
                seen.mark(token);
            }
            tag = text.append(token);
        }
        (tokens, Finish::Length)
    }
}

/// A bit for every token of the vocabulary.
struct Seen(Vec<u32>);

impl Seen {
    fn new(tokens: impl Iterator<Item = u32>, vocab: usize) -> Self {
        let mut seen = Self(vec![0; vocab.div_ceil(32)]);
        tokens.for_each(|token| seen.mark(token));
        seen
    }

    fn mark(&mut self, token: u32) {
        self.0[token as usize / 32] |= 1 << (token % 32);
    }
}
