//! `SD3Transformer2DModel`, of Stable Diffusion 3 and 3.5: two streams of tokens with weights of their own
//! that share attention.
//!
//! Source: arXiv 2403.03206.

use super::adaptive::{Chunks, EPS, Heads, TIME_WIDTH, conditions};
use super::unet::Conditions;
use crate::config;
use crate::graph::{Builder, Graph, Grid, Picture, Stride, Tensors, Value};
use engraft_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// What `config.json` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Sd3Spec {
    /// Lines and columns of the latents that it was trained with.
    pub sample_size: usize,
    /// Lines and columns of latents that are a token.
    pub patch_size: usize,
    /// Channels of samples.
    pub in_channels: usize,
    /// Channels of what comes out.
    pub out_channels: usize,
    num_layers: usize,
    attention_head_dim: usize,
    num_attention_heads: usize,
    /// Columns of a text's rows.
    pub joint_attention_dim: usize,
    caption_projection_dim: usize,
    /// Columns of a text as one row.
    pub pooled_projection_dim: usize,
    /// Lines and columns of the table of positions.
    pos_embed_max_size: usize,
    dual_attention_layers: Vec<usize>,
    qk_norm: Option<String>,
    #[serde(flatten)]
    others: Map<String, Json>,
}

impl Default for Sd3Spec {
    fn default() -> Self {
        Self {
            sample_size: 128,
            patch_size: 2,
            in_channels: 16,
            out_channels: 16,
            num_layers: 18,
            attention_head_dim: 64,
            num_attention_heads: 18,
            joint_attention_dim: 4096,
            caption_projection_dim: 1152,
            pooled_projection_dim: 2048,
            pos_embed_max_size: 96,
            dual_attention_layers: Vec::new(),
            qk_norm: None,
            others: Map::new(),
        }
    }
}

impl Sd3Spec {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Config` for what is not known, naming the field.
    pub fn new(config: &Json) -> Result<Self> {
        let spec: Self = config::read(config)?;
        config::check_others(&spec.others, &[])?;
        let norms: Vec<String> = spec.qk_norm.iter().cloned().collect();
        config::all_are("qk_norm", &norms, &["rms_norm"])?;
        let one = ("patch_size", spec.patch_size);
        let counts =
            [one, ("num_layers", spec.num_layers), ("num_attention_heads", spec.num_attention_heads)];
        config::at_least_one(&counts)?;
        match spec.dual_attention_layers.iter().find(|layer| **layer >= spec.num_layers) {
            Some(layer) => {
                let allowed = format!("layers below {}", spec.num_layers);
                Err(Error::config("dual_attention_layers", layer, allowed))
            }
            None => Ok(spec),
        }
    }

    fn heads(&self) -> Heads {
        let (count, width) = (self.num_attention_heads, self.attention_head_dim);
        Heads { count, width, normed: self.qk_norm.is_some(), angles: None }
    }

    /// The table's rows for latents of this size: those in its middle.
    fn positions(&self, size: Grid) -> Result<Vec<u32>> {
        let most = self.pos_embed_max_size;
        for (field, tokens) in [("height", size.height), ("width", size.width)] {
            if tokens > most {
                let got = format!("{} latents", tokens * self.patch_size);
                return Err(Error::config(field, got, format!("at most {}", most * self.patch_size)));
            }
        }
        let (top, left) = ((most - size.height) / 2, (most - size.width) / 2);
        let lines = (0..size.height).map(|y| (top + y) * most + left);
        Ok(lines.flat_map(|first| (first..first + size.width).map(|n| n as u32)).collect())
    }

    /// From the inputs `sample` `[items * latents, channels]`, `text` `[items * tokens, width]`, `pooled`
    /// `[items, width]` and `time` to `[items * latents, channels]`.
    ///
    /// # Errors
    /// `Tensor` for those that are missing or have other shapes; `Config` for latents of a size that it has
    /// no positions for.
    pub fn graph(&self, tensors: &mut Tensors, at: Conditions) -> Result<Graph> {
        let mut builder = Builder::new(tensors, at.items);
        let b = &mut builder;
        let (time, mut picture, grid) =
            (self.time(b)?, self.patches(b, at.size)?.value, self.tokens(at.size));
        let rows = b.input("text", at.tokens, self.joint_attention_dim, true);
        let mut text = b.linear(rows, "context_embedder", None)?;
        for layer in 0..self.num_layers {
            let p = format!("transformer_blocks.{layer}");
            let dual = self.dual_attention_layers.contains(&layer);
            (picture, text) = match layer + 1 == self.num_layers {
                true => (self.last(b, (picture, text, time), dual, &p)?, text),
                false => self.block(b, (picture, text, time), dual, &p)?,
            };
        }
        let by = Chunks::new(b, time, "norm_out.linear")?;
        let normed = by.normed(b, picture, (1, 0))?;
        let out = b.linear(normed, "proj_out", None)?;
        let out = b.unfold(out, (grid, self.patch_size), "proj_out")?;
        config::columns("out_channels", b.cols(out.value), self.out_channels)?;
        Ok(builder.finish(&[out.value]))
    }

    /// Tokens of latents.
    fn tokens(&self, size: Grid) -> Grid {
        Grid { height: size.height / self.patch_size, width: size.width / self.patch_size }
    }

    fn time(&self, b: &mut Builder<'_>) -> Result<Value> {
        let time = b.input("time", 1, TIME_WIDTH, false);
        let pooled = b.input("pooled", 1, self.pooled_projection_dim, true);
        let parts = [(time, "timestep_embedder"), (pooled, "text_embedder")];
        conditions(b, &parts, "time_text_embed")
    }

    /// The sample as tokens, with their positions.
    fn patches(&self, b: &mut Builder<'_>, size: Grid) -> Result<Picture> {
        let value = b.input("sample", size.pixels(), self.in_channels, false);
        let stride = Stride { step: self.patch_size, before: 0, after: 0 };
        let sample = Picture { value, grid: size };
        let x = b.conv(sample, "pos_embed.proj", (self.patch_size, stride, size), None)?;
        let table = (self.pos_embed_max_size.saturating_mul(self.pos_embed_max_size), b.cols(x.value));
        let places = b.look_up("pos_embed.pos_embed", table, &self.positions(x.grid)?)?;
        Ok(Picture { value: b.add(x.value, places, "pos_embed.pos_embed")?, ..x })
    }

    /// Both streams, of which the text's is as the picture's without the second attention.
    fn block(
        &self,
        b: &mut Builder<'_>,
        (picture, text, time): (Value, Value, Value),
        dual: bool,
        p: &str,
    ) -> Result<(Value, Value)> {
        let name = format!("{p}.norm1_context.linear");
        let other = Chunks::new(b, time, &name)?;
        let hidden = other.normed(b, text, (0, 1))?;
        let (picture, mixed) = self.picture(b, (picture, hidden, time), dual, p)?;
        let mixed = b.linear(mixed, &format!("{p}.attn.to_add_out"), None)?;
        Ok((picture, other.ended(b, (text, mixed), &format!("{p}.ff_context"))?))
    }

    /// The last block, behind which nothing reads the text; its norm has the scale first.
    fn last(
        &self,
        b: &mut Builder<'_>,
        (picture, text, time): (Value, Value, Value),
        dual: bool,
        p: &str,
    ) -> Result<Value> {
        let name = format!("{p}.norm1_context.linear");
        let other = Chunks::new(b, time, &name)?;
        let hidden = other.normed(b, text, (1, 0))?;
        Ok(self.picture(b, (picture, hidden, time), dual, p)?.0)
    }

    /// The picture's stream of a block, and what the text's rows get of attention; the text is normed
    /// already.
    fn picture(
        &self,
        b: &mut Builder<'_>,
        (mut x, text, time): (Value, Value, Value),
        dual: bool,
        p: &str,
    ) -> Result<(Value, Value)> {
        let name = format!("{p}.norm1.linear");
        let by = Chunks::new(b, time, &name)?;
        config::columns(&name, b.cols(by.value), if dual { 9 } else { 6 } * b.cols(x))?;
        let normed = b.plain_norm(x, EPS);
        let hidden = by.moved(b, normed, (0, 1))?;
        let [mixed, of_text] = self.heads().joint(b, (hidden, text), &format!("{p}.attn"))?;
        if dual {
            let hidden = by.moved(b, normed, (6, 7))?;
            let second = self.heads().own(b, hidden, &format!("{p}.attn2"))?;
            x = by.gated(b, x, second, 8)?;
        }
        Ok((by.ended(b, (x, mixed), &format!("{p}.ff"))?, of_text))
    }
}
