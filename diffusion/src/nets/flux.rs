//! `FluxTransformer2DModel`, of FLUX.1: blocks with two streams of tokens, then blocks over both as one,
//! whose positions turn queries and keys along three axes.
//!
//! Samples are rows already: the four latents of a square of two lines and columns are one.

use super::adaptive::{Chunks, Heads, PICTURE, TIME_WIDTH, conditions};
use super::unet::Conditions;
use crate::config;
use crate::graph::{Builder, Graph, Grid, Tensors, Value};
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

/// Angles of a position fall to this part from the first pair of an axis to the one behind its last.
const THETA: f64 = 10_000.0;

/// What `config.json` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct FluxSpec {
    /// Columns of a sample's rows.
    pub in_channels: usize,
    out_channels: Option<usize>,
    num_layers: usize,
    num_single_layers: usize,
    attention_head_dim: usize,
    num_attention_heads: usize,
    /// Columns of a text's rows.
    pub joint_attention_dim: usize,
    /// Columns of a text as one row.
    pub pooled_projection_dim: usize,
    /// Whether it reads a scale of guidance.
    pub guidance_embeds: bool,
    axes_dims_rope: Vec<usize>,
    #[serde(flatten)]
    others: Map<String, Json>,
}

impl Default for FluxSpec {
    fn default() -> Self {
        Self {
            in_channels: 64,
            out_channels: None,
            num_layers: 19,
            num_single_layers: 38,
            attention_head_dim: 128,
            num_attention_heads: 24,
            joint_attention_dim: 4096,
            pooled_projection_dim: 768,
            guidance_embeds: false,
            axes_dims_rope: vec![16, 56, 56],
            others: Map::new(),
        }
    }
}

impl FluxSpec {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Config` for what is not known, naming the field.
    pub fn new(config: &Json) -> Result<Self> {
        let spec: Self = config::read(config)?;
        config::check_others(&spec.others, &[("patch_size", json!(1))])?;
        config::at_least_one(&[("num_attention_heads", spec.num_attention_heads)])?;
        let axes = &spec.axes_dims_rope;
        let whole = axes.len() == 3 && axes.iter().all(|axis| axis % 2 == 0);
        match whole
            && axes.iter().fold(0usize, |sum, axis| sum.saturating_add(*axis)) == spec.attention_head_dim
        {
            true => Ok(spec),
            false => {
                let allowed = format!("three even numbers whose sum is {}", spec.attention_head_dim);
                Err(Error::config("axes_dims_rope", format!("{axes:?}"), allowed))
            }
        }
    }

    /// Columns of what comes out.
    pub fn out_channels(&self) -> usize {
        self.out_channels.unwrap_or(self.in_channels)
    }

    /// Angles of an item's rows: the text's are at the origin, the picture's at their line and column.
    fn angles(&self, tokens: usize, grid: Grid) -> Vec<f64> {
        let text = std::iter::repeat_n([0; 3], tokens);
        let pixels = (0..grid.height).flat_map(|y| (0..grid.width).map(move |x| [0, y, x]));
        let turns = |place: [usize; 3]| {
            place.into_iter().zip(&self.axes_dims_rope).flat_map(|(at, dims)| {
                let frequency = |i: usize| libm::pow(THETA, -((2 * i) as f64) / *dims as f64);
                (0..dims / 2).map(move |i| at as f64 * frequency(i))
            })
        };
        text.chain(pixels).flat_map(turns).collect()
    }

    fn heads(&self, angles: usize) -> Heads {
        let (count, width) = (self.num_attention_heads, self.attention_head_dim);
        Heads { count, width, normed: true, angles: Some(angles) }
    }

    /// From the inputs `sample` `[items * tokens of the picture, channels]`, `text` `[items * tokens,
    /// width]`, `pooled` `[items, width]`, `time` and, where it reads it, `guidance` to rows like the
    /// sample's.
    ///
    /// # Errors
    /// `Tensor` for those that are missing or have other shapes.
    pub fn graph(&self, tensors: &mut Tensors, at: Conditions) -> Result<Graph> {
        let mut builder = Builder::new(tensors, at.items);
        let b = &mut builder;
        let time = self.time(b)?;
        let sample = b.input("sample", at.size.pixels(), self.in_channels, false);
        let rows = b.input("text", at.tokens, self.joint_attention_dim, true);
        let mut picture = b.linear(sample, "x_embedder", None)?;
        let mut text = b.linear(rows, "context_embedder", None)?;
        let angles = b.angles(&self.angles(at.tokens, at.size), self.attention_head_dim / 2);
        let heads = self.heads(angles);
        for layer in 0..self.num_layers {
            let p = format!("transformer_blocks.{layer}");
            (picture, text) = double(b, heads, (picture, text, time), &p)?;
        }
        let mut all = b.join_rows(&[text, picture], "context_embedder")?;
        for layer in 0..self.num_single_layers {
            all = single(b, heads, (all, time), &format!("single_transformer_blocks.{layer}"))?;
        }
        let picture = b.take_rows(all, at.tokens, at.size.pixels());
        let by = Chunks::new(b, time, "norm_out.linear")?;
        let normed = by.normed(b, picture, (1, 0))?;
        let out = b.linear(normed, "proj_out", None)?;
        config::columns("out_channels", b.cols(out), self.out_channels())?;
        Ok(builder.finish(&[out]))
    }

    fn time(&self, b: &mut Builder<'_>) -> Result<Value> {
        let time = b.input("time", 1, TIME_WIDTH, false);
        let pooled = b.input("pooled", 1, self.pooled_projection_dim, true);
        let mut parts = vec![(time, "timestep_embedder")];
        if self.guidance_embeds {
            parts.push((b.input("guidance", 1, TIME_WIDTH, true), "guidance_embedder"));
        }
        parts.push((pooled, "text_embedder"));
        conditions(b, &parts, "time_text_embed")
    }
}

/// A block of two streams.
fn double(
    b: &mut Builder<'_>,
    heads: Heads,
    (picture, text, time): (Value, Value, Value),
    p: &str,
) -> Result<(Value, Value)> {
    let [name, other] = ["norm1", "norm1_context"].map(|norm| format!("{p}.{norm}.linear"));
    let (by, of_text) = (Chunks::new(b, time, &name)?, Chunks::new(b, time, &other)?);
    let (own, hidden) = (by.normed(b, picture, (0, 1))?, of_text.normed(b, text, (0, 1))?);
    let [mixed, rows] = heads.joint(b, (own, hidden), &format!("{p}.attn"))?;
    let rows = b.linear(rows, &format!("{p}.attn.to_add_out"), None)?;
    let picture = by.ended(b, (picture, mixed), &format!("{p}.ff"))?;
    Ok((picture, of_text.ended(b, (text, rows), &format!("{p}.ff_context"))?))
}

/// A block over all rows: attention and feed-forward of the same norm, projected as one.
fn single(b: &mut Builder<'_>, heads: Heads, (x, time): (Value, Value), p: &str) -> Result<Value> {
    let name = format!("{p}.norm.linear");
    let by = Chunks::new(b, time, &name)?;
    let hidden = by.normed(b, x, (0, 1))?;
    let inner = b.linear(hidden, &format!("{p}.proj_mlp"), Some(Act::GeluTanh))?;
    let attn = format!("{p}.attn");
    let qkv = heads.project(b, hidden, PICTURE, &attn)?;
    let mixed = heads.attend(b, qkv, &attn)?;
    let both = b.join_columns(&[mixed, inner]);
    let out = b.linear(both, &format!("{p}.proj_out"), None)?;
    by.gated(b, x, out, 2)
}
