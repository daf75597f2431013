//! `ControlNetModel`: what a UNet's way down is changed by, of the same sample, time and text and a picture
//! besides.
//!
//! Source: arXiv 2302.05543. Its blocks are those of a UNet up to the middle; every picture of the way down,
//! and the middle, gives a residual by a convolution of one pixel.

use super::unet::{Conditions, UnetSpec};
use crate::config;
use crate::graph::{Builder, Graph, Grid, Picture, Stride, Tensors};
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// What `config.json` says.
#[derive(Debug, Clone)]
pub struct ControlNetSpec {
    /// The way down, the middle, and what they read of time and text.
    pub unet: UnetSpec,
    /// Channels of the picture.
    pub conditioning_channels: usize,
    levels: usize,
}

#[derive(Deserialize)]
#[serde(default)]
struct Own {
    conditioning_channels: usize,
    conditioning_embedding_out_channels: Vec<usize>,
    controlnet_conditioning_channel_order: String,
    global_pool_conditions: bool,
    #[serde(flatten)]
    others: Map<String, Json>,
}

impl Default for Own {
    fn default() -> Self {
        Self {
            conditioning_channels: 3,
            conditioning_embedding_out_channels: vec![16, 32, 96, 256],
            controlnet_conditioning_channel_order: "rgb".into(),
            global_pool_conditions: false,
            others: Map::new(),
        }
    }
}

impl ControlNetSpec {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Config` for what is not known, naming the field.
    pub fn new(config: &Json) -> Result<Self> {
        let own: Own = config::read(config)?;
        let order = std::slice::from_ref(&own.controlnet_conditioning_channel_order);
        config::all_are("controlnet_conditioning_channel_order", order, &["rgb"])?;
        if own.global_pool_conditions {
            return Err(Error::config("global_pool_conditions", true, "false"));
        }
        let levels = own.conditioning_embedding_out_channels.len();
        // More halvings would make a picture of a few latents larger than memory.
        if !(1..=6).contains(&levels) {
            let field = "conditioning_embedding_out_channels";
            return Err(Error::config(field, format!("{levels} values"), "1 to 6"));
        }
        let unet = UnetSpec::way_down(&Json::Object(own.others))?;
        Ok(Self { unet, conditioning_channels: own.conditioning_channels, levels })
    }

    /// Pixels of the picture for every latent, along a line.
    pub fn factor(&self) -> usize {
        1 << (self.levels - 1)
    }

    /// The picture as a change of the first values: a convolution, one more for every size, and one that
    /// halves it.
    fn embedding(&self, b: &mut Builder<'_>, size: Grid) -> Result<Picture> {
        let (p, factor, silu) = ("controlnet_cond_embedding", self.factor(), Some(Act::Silu));
        let along = |latents: usize| latents.saturating_mul(factor);
        let grid = Grid { height: along(size.height), width: along(size.width) };
        let value = b.input("control", grid.pixels(), self.conditioning_channels, true);
        let same = |x: Picture| (3, Stride::same(3), x.grid);
        let mut h = Picture { value, grid };
        h = b.conv(h, &format!("{p}.conv_in"), same(h), silu)?;
        for level in 0..self.levels - 1 {
            h = b.conv(h, &format!("{p}.blocks.{}", 2 * level), same(h), silu)?;
            let halving = Stride { step: 2, before: 1, after: 1 };
            h = b.conv(h, &format!("{p}.blocks.{}", 2 * level + 1), (3, halving, h.grid), silu)?;
        }
        b.same(h, &format!("{p}.conv_out"), 3)
    }

    /// From the inputs of a UNet and `control` `[items * pixels, channels]` to the residuals of the way down,
    /// in order, and of the middle.
    ///
    /// # Errors
    /// As [`UnetSpec::graph`].
    pub fn graph(&self, tensors: &mut Tensors, conditions: Conditions) -> Result<Graph> {
        let mut builder = Builder::new(tensors, conditions.items);
        let b = &mut builder;
        let (sample, given) = self.unet.inputs(b, conditions)?;
        let embedding = self.embedding(b, conditions.size)?;
        let first = b.same(sample, "conv_in", 3)?;
        let first =
            Picture { value: b.add(first.value, embedding.value, "controlnet_cond_embedding")?, ..first };
        let mut skips = vec![first];
        let h = self.unet.down(b, first, given, &mut skips)?;
        let h = self.unet.middle(b, h, given)?;
        let mut residuals = Vec::with_capacity(skips.len() + 1);
        for (i, skip) in skips.into_iter().enumerate() {
            residuals.push(b.same(skip, &format!("controlnet_down_blocks.{i}"), 1)?.value);
        }
        residuals.push(b.same(h, "controlnet_mid_block", 1)?.value);
        Ok(builder.finish(&residuals))
    }
}
