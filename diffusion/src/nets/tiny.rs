//! `AutoencoderTiny`: a small network that stands in for the autoencoder of a UNet, without a variance.
//!
//! Pictures are -1 to 1 outside and 0 to 1 inside, and latents are held within three of their deviations in
//! front of the decoder, smoothly; both are done on the host.

use super::resnet::MOST_LEVELS;
use crate::config;
use crate::graph::{Builder, Graph, Grid, Picture, Stride, Tensors};
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// Bound of latents in front of the decoder.
const BOUND: f64 = 3.0;

/// What `config.json` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct TinySpec {
    pub(super) in_channels: usize,
    pub(super) out_channels: usize,
    pub(super) encoder_block_out_channels: Vec<usize>,
    decoder_block_out_channels: Vec<usize>,
    num_encoder_blocks: Vec<usize>,
    num_decoder_blocks: Vec<usize>,
    act_fn: String,
    pub(super) latent_channels: usize,
    upsampling_scaling_factor: usize,
    upsample_fn: String,
    latent_magnitude: f64,
    latent_shift: f64,
    pub(super) scaling_factor: f64,
    pub(super) shift_factor: f64,
    #[serde(flatten)]
    others: Map<String, Json>,
}

impl Default for TinySpec {
    fn default() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            encoder_block_out_channels: vec![64; 4],
            decoder_block_out_channels: vec![64; 4],
            num_encoder_blocks: vec![1, 3, 3, 3],
            num_decoder_blocks: vec![3, 3, 3, 1],
            act_fn: "relu".into(),
            latent_channels: 4,
            upsampling_scaling_factor: 2,
            upsample_fn: "nearest".into(),
            latent_magnitude: 3.0,
            latent_shift: 0.5,
            scaling_factor: 1.0,
            shift_factor: 0.0,
            others: Map::new(),
        }
    }
}

impl TinySpec {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Config` for what is not known, naming the field.
    pub fn new(config: &Json) -> Result<Self> {
        let spec: Self = config::read(config)?;
        // The decoder's channels once more, and how half precision is kept from overflowing.
        config::check_others(
            &spec.others,
            &[("block_out_channels", Json::Null), ("force_upcast", Json::Null)],
        )?;
        config::all_are("upsample_fn", std::slice::from_ref(&spec.upsample_fn), &["nearest"])?;
        config::act("act_fn", &spec.act_fn)?;
        for (field, value, allowed) in [
            ("upsampling_scaling_factor", spec.upsampling_scaling_factor, 2),
            ("decoder_block_out_channels", spec.decoder_block_out_channels.len(), spec.levels()),
            ("num_encoder_blocks", spec.num_encoder_blocks.len(), spec.levels()),
            ("num_decoder_blocks", spec.num_decoder_blocks.len(), spec.levels()),
        ] {
            if value != allowed {
                return Err(Error::config(field, value, allowed.to_string()));
            }
        }
        match spec.levels() {
            1..=MOST_LEVELS => Ok(spec),
            other => {
                let (field, got) = ("encoder_block_out_channels", format!("{other} values"));
                Err(Error::config(field, got, format!("1 to {MOST_LEVELS}")))
            }
        }
    }

    pub(super) fn levels(&self) -> usize {
        self.encoder_block_out_channels.len()
    }

    /// `relu(conv4(act(conv2(act(conv0(x))))) + x)`, x by a convolution where channels change.
    fn block(&self, b: &mut Builder<'_>, x: Picture, p: &str) -> Result<Picture> {
        let act = Some(config::act("act_fn", &self.act_fn)?);
        let same = (3, Stride::same(3), x.grid);
        let h = b.conv(x, &format!("{p}.conv.0"), same, act)?;
        let h = b.conv(h, &format!("{p}.conv.2"), same, act)?;
        let name = format!("{p}.conv.4");
        let h = b.conv(h, &name, same, None)?;
        let skip = format!("{p}.skip");
        let x = if b.tensors().has(&format!("{skip}.weight")) { b.same(x, &skip, 1)? } else { x };
        let sum = b.add(h.value, x.value, &name)?;
        Ok(Picture { value: b.activate(sum, Act::Relu), ..h })
    }

    /// From `image` `[items * pixels, channels]`, 0 to 1, to `[items * latents, channels]`.
    ///
    /// # Errors
    /// `Tensor` for those that are missing or have other shapes; `Config` for a picture that is too small.
    pub(super) fn encoder(&self, tensors: &mut Tensors, items: usize, size: Grid) -> Result<Graph> {
        let mut builder = Builder::new(tensors, items);
        let b = &mut builder;
        let value = b.input("image", size.pixels(), self.in_channels, false);
        let mut h = Picture { value, grid: size };
        // Layers are counted without a gap.
        let mut names = (0..).map(|layer| format!("encoder.layers.{layer}"));
        let mut name = || names.next().unwrap_or_default();
        for (level, blocks) in self.num_encoder_blocks.iter().enumerate() {
            let step = if level == 0 { 1 } else { 2 };
            h = b.conv(h, &name(), (3, Stride { step, before: 1, after: 1 }, h.grid), None)?;
            for _ in 0..*blocks {
                h = self.block(b, h, &name())?;
            }
        }
        h = b.same(h, &name(), 3)?;
        config::columns("latent_channels", b.cols(h.value), self.latent_channels)?;
        Ok(builder.finish(&[h.value]))
    }

    /// From `latents` `[items * latents, channels]`, within their bound, to `[items * pixels, channels]`, 0
    /// to 1.
    ///
    /// # Errors
    /// As [`TinySpec::encoder`].
    pub(super) fn decoder(&self, tensors: &mut Tensors, items: usize, size: Grid) -> Result<Graph> {
        let mut builder = Builder::new(tensors, items);
        let b = &mut builder;
        let value = b.input("latents", size.pixels(), self.latent_channels, false);
        let mut h = Picture { value, grid: size };
        let mut names = (0..).map(|layer| format!("decoder.layers.{layer}"));
        let mut name = || names.next().unwrap_or_default();
        let act = Some(config::act("act_fn", &self.act_fn)?);
        h = b.conv(h, &name(), (3, Stride::same(3), h.grid), act)?;
        // The activation and what doubles a picture are counted, too.
        name();
        for (level, blocks) in self.num_decoder_blocks.iter().enumerate() {
            for _ in 0..*blocks {
                h = self.block(b, h, &name())?;
            }
            let mut seen = h.grid;
            if level + 1 < self.levels() {
                name();
                seen = seen.doubled();
            }
            h = b.conv(h, &name(), (3, Stride::same(3), seen), None)?;
        }
        config::columns("out_channels", b.cols(h.value), self.out_channels)?;
        Ok(builder.finish(&[h.value]))
    }

    /// A picture as the encoder reads it.
    pub(super) fn inside(&self, picture: &[f32]) -> Vec<f32> {
        picture.iter().map(|x| ((f64::from(*x) + 1.0) / 2.0) as f32).collect()
    }

    /// A picture that the decoder gave.
    pub(super) fn outside(&self, picture: &[f32]) -> Vec<f32> {
        picture.iter().map(|x| (2.0 * f64::from(*x) - 1.0) as f32).collect()
    }

    /// Latents within their bound.
    pub(super) fn bounded(&self, latents: &[f32]) -> Vec<f32> {
        latents.iter().map(|x| (BOUND * libm::tanh(f64::from(*x) / BOUND)) as f32).collect()
    }

    /// Latents as values in 0 to 1, which a picture of bytes can hold.
    pub fn scaled(&self, latents: &[f32]) -> Vec<f32> {
        let one = |x: f64| (x / (2.0 * self.latent_magnitude) + self.latent_shift).clamp(0.0, 1.0);
        latents.iter().map(|x| one(f64::from(*x)) as f32).collect()
    }

    /// Latents of such values.
    pub fn unscaled(&self, values: &[f32]) -> Vec<f32> {
        let one = |x: f64| (x - self.latent_shift) * 2.0 * self.latent_magnitude;
        values.iter().map(|x| one(f64::from(*x)) as f32).collect()
    }
}
