//! `SanaTransformer2DModel`: blocks of attention that is linear in the picture's tokens, of attention to the
//! text, and of gated convolutions; tokens have no positions, but for those of the largest pictures.
//!
//! Source: arXiv 2410.10629.

use super::adaptive::{Chunks, EPS, TIME_WIDTH};
use super::gated_conv::gated_conv;
use super::time::{embedding, waves_of_places};
use super::unet::Conditions;
use crate::config;
use crate::graph::{Builder, Columns, Graph, Grid, LinearHeads, Picture, Stride, Tensors, Value};
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

/// Added to what divides in linear attention.
pub(super) const LINEAR_EPS: f32 = 1e-15;
/// Added to mean squares of the text, and of queries and keys.
const RMS_EPS: f32 = 1e-5;
/// The norm of queries and keys that there is.
const ACROSS_HEADS: &str = "rms_norm_across_heads";

/// What `config.json` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct SanaSpec {
    /// Channels of samples.
    pub in_channels: usize,
    out_channels: Option<usize>,
    num_attention_heads: usize,
    attention_head_dim: usize,
    num_layers: usize,
    num_cross_attention_heads: usize,
    cross_attention_head_dim: usize,
    cross_attention_dim: usize,
    /// Columns of a text's rows.
    pub caption_channels: usize,
    /// Lines and columns of the latents that it was trained with.
    pub sample_size: usize,
    /// Lines and columns of latents that are a token.
    pub patch_size: usize,
    qk_norm: Option<String>,
    /// Whether it reads a scale of guidance.
    pub guidance_embeds: bool,
    /// By what pipelines multiply that scale.
    pub guidance_embeds_scale: f64,
    /// Tokens have positions where there is one, closer by it.
    interpolation_scale: Option<f64>,
    #[serde(flatten)]
    others: Map<String, Json>,
}

impl Default for SanaSpec {
    fn default() -> Self {
        Self {
            in_channels: 32,
            out_channels: None,
            num_attention_heads: 70,
            attention_head_dim: 32,
            num_layers: 20,
            num_cross_attention_heads: 20,
            cross_attention_head_dim: 112,
            cross_attention_dim: 2240,
            caption_channels: 2304,
            sample_size: 32,
            patch_size: 1,
            qk_norm: None,
            guidance_embeds: false,
            guidance_embeds_scale: 0.1,
            interpolation_scale: None,
            others: Map::new(),
        }
    }
}

/// What blocks read besides the picture.
#[derive(Clone, Copy)]
struct Given {
    text: Value,
    by: Value,
}

impl SanaSpec {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Config` for what is not known, naming the field.
    pub fn new(config: &Json) -> Result<Self> {
        let harmless = [
            ("dropout", Json::Null),
            // The tensors say these two.
            ("mlp_ratio", Json::Null),
            ("attention_bias", json!(true)),
            ("norm_eps", json!(1e-6)),
            ("timestep_scale", json!(1.0)),
        ];
        let spec: Self = config::read(config)?;
        config::check_others(&spec.others, &harmless)?;
        let norms: Vec<String> = spec.qk_norm.iter().cloned().collect();
        config::all_are("qk_norm", &norms, &[ACROSS_HEADS])?;
        config::at_least_one(&[
            ("patch_size", spec.patch_size),
            ("num_layers", spec.num_layers),
            ("num_attention_heads", spec.num_attention_heads),
            ("attention_head_dim", spec.attention_head_dim),
            ("num_cross_attention_heads", spec.num_cross_attention_heads),
        ])?;
        if let Some(scale) = spec.interpolation_scale.filter(|scale| !(scale.is_finite() && *scale > 0.0)) {
            return Err(Error::config("interpolation_scale", scale, "a number above 0, or none"));
        }
        let all = spec.num_cross_attention_heads.saturating_mul(spec.cross_attention_head_dim);
        for (field, got) in
            [("cross_attention_dim", spec.cross_attention_dim), ("cross_attention_head_dim", all)]
        {
            if got != spec.columns() {
                let allowed = format!("{} in all, as attention among tokens has", spec.columns());
                return Err(Error::config(field, format!("{got} columns"), allowed));
            }
        }
        Ok(spec)
    }

    /// Positions of an item's tokens `[tokens, columns]`, where there are some.
    pub fn positions(&self, size: Grid) -> Option<Vec<f32>> {
        let (factor, patch) = (self.interpolation_scale?, self.patch_size);
        let grid = Grid { height: size.height / patch, width: size.width / patch };
        Some(waves_of_places(grid, (self.sample_size / patch) as f64, factor, self.columns()))
    }

    fn columns(&self) -> usize {
        self.num_attention_heads.saturating_mul(self.attention_head_dim)
    }

    /// Channels of what comes out.
    pub fn out_channels(&self) -> usize {
        self.out_channels.unwrap_or(self.in_channels)
    }

    /// What the time is embedded as, plus what guidance is where it reads it.
    fn time(&self, b: &mut Builder<'_>) -> Result<Value> {
        let time = b.input("time", 1, TIME_WIDTH, false);
        if !self.guidance_embeds {
            return embedding(b, time, "time_embed.emb.timestep_embedder", Act::Silu);
        }
        let time = embedding(b, time, "time_embed.timestep_embedder", Act::Silu)?;
        let (guidance, name) = (b.input("guidance", 1, TIME_WIDTH, true), "time_embed.guidance_embedder");
        let guidance = embedding(b, guidance, name, Act::Silu)?;
        b.add(time, guidance, name)
    }

    /// From the inputs `sample` `[items * latents, channels]`, `text` `[items * tokens, width]`, `time` and,
    /// where it reads them, `guidance` and `positions` `[items * tokens, columns]` to `[items * latents,
    /// channels]`.
    ///
    /// # Errors
    /// `Tensor` for those that are missing or have other shapes; `Config` for latents that are too small.
    pub fn graph(&self, tensors: &mut Tensors, at: Conditions) -> Result<Graph> {
        let mut builder = Builder::new(tensors, at.items);
        let b = &mut builder;
        let time = self.time(b)?;
        let activated = b.activate(time, Act::Silu);
        let by = b.linear(activated, "time_embed.linear", None)?;
        let value = b.input("sample", at.size.pixels(), self.in_channels, false);
        let (sample, patch) = (Picture { value, grid: at.size }, self.patch_size);
        let stride = Stride { step: patch, before: 0, after: 0 };
        let mut x = b.conv(sample, "patch_embed.proj", (patch, stride, at.size), None)?;
        config::columns("num_attention_heads", b.cols(x.value), self.columns())?;
        if self.interpolation_scale.is_some() {
            let places = b.input("positions", x.grid.pixels(), self.columns(), true);
            x.value = b.add(x.value, places, "positions")?;
        }
        let rows = b.input("text", at.tokens, self.caption_channels, true);
        let text = embedding(b, rows, "caption_projection", Act::GeluTanh)?;
        let given = Given { text: b.rms_norm(text, "caption_norm", RMS_EPS)?, by };
        for layer in 0..self.num_layers {
            x = self.block(b, x, given, &format!("transformer_blocks.{layer}"))?;
        }
        let twice = b.join_columns(&[time, time]);
        let name = "scale_shift_table";
        let by = Chunks { value: b.add_vector(twice, name)?, name };
        let normed = by.normed(b, x.value, (0, 1))?;
        let out = b.linear(normed, "proj_out", None)?;
        let out = b.unfold(out, (x.grid, patch), "proj_out")?;
        config::columns("out_channels", b.cols(out.value), self.out_channels())?;
        Ok(builder.finish(&[out.value]))
    }

    /// Attention among the picture's tokens, to the text (without a norm in front), and a gated convolution.
    fn block(&self, b: &mut Builder<'_>, x: Picture, given: Given, p: &str) -> Result<Picture> {
        let name = format!("{p}.scale_shift_table");
        let by = Chunks { value: b.add_vector(given.by, &name)?, name: &name };
        let hidden = by.normed(b, x.value, (0, 1))?;
        let mixed = self.own(b, hidden, &format!("{p}.attn1"))?;
        let h = by.gated(b, x.value, mixed, 2)?;
        let attn2 = format!("{p}.attn2");
        let seen = self.cross(b, h, given.text, &attn2)?;
        let h = b.add(h, seen, &attn2)?;
        let normed = b.plain_norm(h, EPS);
        let hidden = Picture { value: by.moved(b, normed, (3, 4))?, ..x };
        let made = gated_conv(b, hidden, &format!("{p}.ff"))?;
        Ok(Picture { value: by.gated(b, h, made.value, 5)?, ..x })
    }

    /// A norm of queries or keys in the first columns of `x`, over all heads at once, where there is one.
    fn normed(&self, b: &mut Builder<'_>, x: Value, first: usize, name: &str) -> Result<Value> {
        let columns = Columns { first, count: self.columns() };
        match self.qk_norm {
            Some(_) => b.head_norm(x, name, (columns, self.columns()), RMS_EPS),
            None => Ok(x),
        }
    }

    fn own(&self, b: &mut Builder<'_>, x: Value, p: &str) -> Result<Value> {
        let names = ["to_q", "to_k", "to_v"].map(|name| format!("{p}.{name}"));
        let mut qkv = b.linears(x, &names, None)?;
        qkv = self.normed(b, qkv, 0, &format!("{p}.norm_q"))?;
        qkv = self.normed(b, qkv, self.columns(), &format!("{p}.norm_k"))?;
        let (heads, width) = (self.num_attention_heads, self.attention_head_dim);
        let heads = LinearHeads { heads, width, step: width, apart: self.columns(), eps: LINEAR_EPS };
        let mixed = b.linear_attend(qkv, heads, p)?;
        b.linear(mixed, &format!("{p}.to_out.0"), None)
    }

    fn cross(&self, b: &mut Builder<'_>, x: Value, text: Value, p: &str) -> Result<Value> {
        let q = b.linear(x, &format!("{p}.to_q"), None)?;
        let q = self.normed(b, q, 0, &format!("{p}.norm_q"))?;
        let kv = b.linears(text, &["to_k", "to_v"].map(|name| format!("{p}.{name}")), None)?;
        let kv = self.normed(b, kv, 0, &format!("{p}.norm_k"))?;
        let mixed = b.cross(q, kv, (self.num_cross_attention_heads, true), p)?;
        b.linear(mixed, &format!("{p}.to_out.0"), None)
    }
}
