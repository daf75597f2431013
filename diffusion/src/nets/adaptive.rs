//! What the blocks of diffusion transformers have in common (arXiv 2212.09748): norms whose scale and shift
//! come of the time, sums whose second part has a gate of the time, attention of one or two streams of
//! tokens.

use crate::graph::{Builder, Columns, Modulation, Value};
use engraft_core::Result;
use engraft_core::params::Act;

/// Variance floor of norms, and what is added to mean squares of queries and keys.
pub(super) const EPS: f32 = 1e-6;
/// Columns of the sines and cosines of a time.
pub(super) const TIME_WIDTH: usize = 256;

/// Rows of parameters of an item, in chunks as wide as the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunks<'a> {
    /// `[items, chunks * width]`.
    pub value: Value,
    /// Who makes them, for messages.
    pub name: &'a str,
}

impl<'a> Chunks<'a> {
    /// `linear(time)`, of the activated embedding of the time.
    pub fn new(b: &mut Builder<'_>, time: Value, name: &'a str) -> Result<Self> {
        Ok(Self { value: b.linear(time, name, None)?, name })
    }

    /// `norm(x) * (1 + scale) + shift`.
    pub fn normed(self, b: &mut Builder<'_>, x: Value, (shift, scale): (usize, usize)) -> Result<Value> {
        let normed = b.plain_norm(x, EPS);
        self.moved(b, normed, (shift, scale))
    }

    /// `x * (1 + scale) + shift`.
    pub fn moved(self, b: &mut Builder<'_>, x: Value, (shift, scale): (usize, usize)) -> Result<Value> {
        let cols = b.cols(x);
        let by = Modulation { scale: scale * cols, shift: Some(shift * cols), plus_one: true };
        b.modulate(x, self.value, by, self.name)
    }

    /// `sum + gate * x`.
    pub fn gated(self, b: &mut Builder<'_>, sum: Value, x: Value, gate: usize) -> Result<Value> {
        let by = Modulation { scale: gate * b.cols(x), shift: None, plus_one: false };
        let x = b.modulate(x, self.value, by, self.name)?;
        b.add(sum, x, self.name)
    }

    /// What follows attention, of six chunks: its sum, then the feed-forward part's.
    pub fn ended(self, b: &mut Builder<'_>, (x, mixed): (Value, Value), p: &str) -> Result<Value> {
        let x = self.gated(b, x, mixed, 2)?;
        self.fed(b, x, p)
    }

    /// Of six chunks the feed-forward part's sum.
    pub fn fed(self, b: &mut Builder<'_>, x: Value, p: &str) -> Result<Value> {
        let hidden = self.normed(b, x, (3, 4))?;
        let made = feed_forward(b, hidden, p)?;
        self.gated(b, x, made, 5)
    }
}

/// Heads of attention, and what is done to queries and keys in front of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    /// How many.
    pub count: usize,
    /// Columns of one.
    pub width: usize,
    /// Whether queries and keys are normed, head by head.
    pub normed: bool,
    /// By what queries and keys turn.
    pub angles: Option<usize>,
}

/// Names of a stream's projections and of its norms of queries and keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    projections: [&'static str; 3],
    norms: [&'static str; 2],
}

/// The stream of the picture.
pub(super) const PICTURE: Stream =
    Stream { projections: ["to_q", "to_k", "to_v"], norms: ["norm_q", "norm_k"] };
/// The stream of the text, where the two have weights of their own.
pub(super) const TEXT: Stream = Stream {
    projections: ["add_q_proj", "add_k_proj", "add_v_proj"],
    norms: ["norm_added_q", "norm_added_k"],
};

impl Heads {
    fn columns(self) -> usize {
        self.count.saturating_mul(self.width)
    }

    /// Queries, keys and values of a stream.
    pub fn project(self, b: &mut Builder<'_>, x: Value, stream: Stream, p: &str) -> Result<Value> {
        let mut qkv = b.linears(x, &stream.projections.map(|name| format!("{p}.{name}")), None)?;
        crate::config::columns("num_attention_heads", b.cols(qkv) / 3, self.columns())?;
        for (norm, first) in stream.norms.iter().zip([0, self.columns()]).filter(|_| self.normed) {
            let columns = Columns { first, count: self.columns() };
            qkv = b.head_norm(qkv, &format!("{p}.{norm}"), (columns, self.width), EPS)?;
        }
        Ok(qkv)
    }

    /// Attention of every item's rows to each other.
    pub fn attend(self, b: &mut Builder<'_>, mut qkv: Value, p: &str) -> Result<Value> {
        if let Some(angles) = self.angles {
            qkv = b.turn(qkv, angles, Columns { first: 0, count: 2 * self.columns() }, self.width);
        }
        b.attend(qkv, self.count, p)
    }

    /// Attention of one stream to itself, projected.
    pub fn own(self, b: &mut Builder<'_>, x: Value, p: &str) -> Result<Value> {
        let qkv = self.project(b, x, PICTURE, p)?;
        let mixed = self.attend(b, qkv, p)?;
        b.linear(mixed, &format!("{p}.to_out.0"), None)
    }

    /// Attention of both streams' rows to all of both, the text's first: of the picture's rows projected,
    /// and of the text's as they are.
    pub fn joint(self, b: &mut Builder<'_>, (picture, text): (Value, Value), p: &str) -> Result<[Value; 2]> {
        let own = self.project(b, picture, PICTURE, p)?;
        let other = self.project(b, text, TEXT, p)?;
        let (tokens, pixels) = (b.rows_of_item(text), b.rows_of_item(picture));
        let both = b.join_rows(&[other, own], p)?;
        let mixed = self.attend(b, both, p)?;
        let (text, picture) = (b.take_rows(mixed, 0, tokens), b.take_rows(mixed, tokens, pixels));
        Ok([b.linear(picture, &format!("{p}.to_out.0"), None)?, text])
    }
}

/// `linear(gelu(linear(x)))`, the GELU by tanh.
fn feed_forward(b: &mut Builder<'_>, x: Value, p: &str) -> Result<Value> {
    let inner = b.linear(x, &format!("{p}.net.0.proj"), Some(Act::GeluTanh))?;
    b.linear(inner, &format!("{p}.net.2"), None)
}

/// The sum of what time, guidance and text are embedded as, then the activation: what all parameters come of.
pub(super) fn conditions(b: &mut Builder<'_>, parts: &[(Value, &str)], p: &str) -> Result<Value> {
    let mut sum = None;
    for (value, name) in parts {
        let name = format!("{p}.{name}");
        let row = super::time::embedding(b, *value, &name, Act::Silu)?;
        sum = Some(sum.map_or(Ok(row), |sum| b.add(sum, row, &name))?);
    }
    let sum = sum.ok_or_else(|| engraft_core::Error::internal("nothing to embed"))?;
    Ok(b.activate(sum, Act::Silu))
}
