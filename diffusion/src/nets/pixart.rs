//! `PixArtTransformer2DModel`, of PixArt alpha and sigma: blocks of attention among the picture's tokens and
//! to the text, which share what comes of the time but for a table each.
//!
//! Source: arXiv 2310.00426, 2403.04692.

use super::adaptive::{Chunks, TIME_WIDTH};
use super::attention::{cross, own};
use super::time::{embedding, waves_of_places};
use super::unet::Conditions;
use crate::config;
use crate::graph::{Builder, Graph, Grid, Picture, Stride, Tensors, Value};
use engraft_core::Result;
use engraft_core::params::Act;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

/// What `config.json` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct PixArtSpec {
    /// Lines and columns of the latents that it was trained with.
    pub sample_size: usize,
    /// Lines and columns of latents that are a token.
    pub patch_size: usize,
    /// Channels of samples.
    pub in_channels: usize,
    /// Channels of what comes out: twice those of samples where it predicts variances, too.
    pub out_channels: usize,
    num_layers: usize,
    attention_head_dim: usize,
    num_attention_heads: usize,
    caption_channels: Option<usize>,
    cross_attention_dim: usize,
    interpolation_scale: Option<f64>,
    use_additional_conditions: Option<bool>,
    #[serde(flatten)]
    others: Map<String, Json>,
}

impl Default for PixArtSpec {
    fn default() -> Self {
        Self {
            sample_size: 128,
            patch_size: 2,
            in_channels: 4,
            out_channels: 8,
            num_layers: 28,
            attention_head_dim: 72,
            num_attention_heads: 16,
            caption_channels: None,
            cross_attention_dim: 1152,
            interpolation_scale: None,
            use_additional_conditions: None,
            others: Map::new(),
        }
    }
}

impl PixArtSpec {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Config` for what is not known, naming the field.
    pub fn new(config: &Json) -> Result<Self> {
        let harmless = [
            ("dropout", Json::Null),
            ("activation_fn", json!("gelu-approximate")),
            ("attention_bias", json!(true)),
            ("attention_type", json!("default")),
            ("norm_type", json!("ada_norm_single")),
            ("norm_eps", json!(1e-6)),
            // Of norms and tables that this class has not.
            ("norm_num_groups", Json::Null),
            ("num_embeds_ada_norm", Json::Null),
            // f32 does not overflow.
            ("upcast_attention", json!(true)),
        ];
        let spec: Self = config::read(config)?;
        config::check_others(&spec.others, &harmless)?;
        let heads = ("num_attention_heads", spec.num_attention_heads);
        config::at_least_one(&[("patch_size", spec.patch_size), ("num_layers", spec.num_layers), heads])?;
        config::columns("cross_attention_dim", spec.columns(), spec.cross_attention_dim)?;
        Ok(spec)
    }

    fn columns(&self) -> usize {
        self.num_attention_heads.saturating_mul(self.attention_head_dim)
    }

    /// Columns of a text's rows.
    pub fn text_width(&self) -> usize {
        self.caption_channels.unwrap_or(self.cross_attention_dim)
    }

    /// Whether it reads the size of the picture.
    pub fn reads_sizes(&self) -> bool {
        self.use_additional_conditions.unwrap_or(self.sample_size == 128)
    }

    fn tokens(&self, size: Grid) -> Grid {
        Grid { height: size.height / self.patch_size, width: size.width / self.patch_size }
    }

    /// Positions of an item's tokens as sines and cosines of their column and line `[tokens, columns]`; a
    /// picture of any size spans what those of training did.
    pub fn positions(&self, size: Grid) -> Vec<f32> {
        let (grid, base) = (self.tokens(size), (self.sample_size / self.patch_size) as f64);
        let factor = self.interpolation_scale.unwrap_or((self.sample_size / 64).max(1) as f64);
        waves_of_places(grid, base, factor, self.columns())
    }

    /// From the inputs `sample` `[items * latents, channels]`, `positions` `[items * tokens, columns]`,
    /// `text` `[items * tokens, width]`, `time` and, where it reads them, `resolution` (two rows an item)
    /// and `aspect` to `[items * latents, channels]`.
    ///
    /// # Errors
    /// `Tensor` for those that are missing or have other shapes; `Config` for latents that are too small.
    pub fn graph(&self, tensors: &mut Tensors, at: Conditions) -> Result<Graph> {
        let mut builder = Builder::new(tensors, at.items);
        let b = &mut builder;
        let time = self.time(b)?;
        let activated = b.activate(time, Act::Silu);
        let by = b.linear(activated, "adaln_single.linear", None)?;
        let Picture { value: mut x, grid } = self.patches(b, at.size)?;
        let rows = b.input("text", at.tokens, self.text_width(), true);
        let text = match self.caption_channels {
            Some(_) => embedding(b, rows, "caption_projection", Act::GeluTanh)?,
            None => rows,
        };
        for layer in 0..self.num_layers {
            x = self.block(b, (x, text, by), &format!("transformer_blocks.{layer}"))?;
        }
        let twice = b.join_columns(&[time, time]);
        let name = "scale_shift_table";
        let by = Chunks { value: b.add_vector(twice, name)?, name };
        let normed = by.normed(b, x, (0, 1))?;
        let out = b.linear(normed, "proj_out", None)?;
        let out = b.unfold(out, (grid, self.patch_size), "proj_out")?;
        config::columns("out_channels", b.cols(out.value), self.out_channels)?;
        Ok(builder.finish(&[out.value]))
    }

    /// What the time is embedded as, and the picture's size where the model reads it.
    fn time(&self, b: &mut Builder<'_>) -> Result<Value> {
        let p = "adaln_single.emb";
        let time = b.input("time", 1, TIME_WIDTH, false);
        let time = embedding(b, time, &format!("{p}.timestep_embedder"), Act::Silu)?;
        if !self.reads_sizes() {
            return Ok(time);
        }
        let (resolution, aspect) =
            (b.input("resolution", 2, TIME_WIDTH, true), b.input("aspect", 1, TIME_WIDTH, true));
        let rows = embedding(b, resolution, &format!("{p}.resolution_embedder"), Act::Silu)?;
        let resolution = b.fold_rows(rows, 2);
        let name = format!("{p}.aspect_ratio_embedder");
        let aspect = embedding(b, aspect, &name, Act::Silu)?;
        let sizes = b.join_columns(&[resolution, aspect]);
        b.add(time, sizes, &name)
    }

    /// The sample as tokens, with their positions.
    fn patches(&self, b: &mut Builder<'_>, size: Grid) -> Result<Picture> {
        let value = b.input("sample", size.pixels(), self.in_channels, false);
        let stride = Stride { step: self.patch_size, before: 0, after: 0 };
        let sample = Picture { value, grid: size };
        let x = b.conv(sample, "pos_embed.proj", (self.patch_size, stride, size), None)?;
        config::columns("num_attention_heads", b.cols(x.value), self.columns())?;
        let places = b.input("positions", x.grid.pixels(), self.columns(), true);
        Ok(Picture { value: b.add(x.value, places, "positions")?, ..x })
    }

    /// Attention among the picture's tokens, to the text (without a norm in front), and a feed-forward part.
    fn block(&self, b: &mut Builder<'_>, (x, text, by): (Value, Value, Value), p: &str) -> Result<Value> {
        let name = format!("{p}.scale_shift_table");
        let by = Chunks { value: b.add_vector(by, &name)?, name: &name };
        let hidden = by.normed(b, x, (0, 1))?;
        let mixed = own(b, hidden, self.num_attention_heads, &format!("{p}.attn1"))?;
        let x = by.gated(b, x, mixed, 2)?;
        let attn2 = format!("{p}.attn2");
        let seen = cross(b, x, text, (self.num_attention_heads, true), &attn2)?;
        let x = b.add(x, seen, &attn2)?;
        by.fed(b, x, &format!("{p}.ff"))
    }
}
