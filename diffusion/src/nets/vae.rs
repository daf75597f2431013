//! `AutoencoderKL`: pictures to the mean and variance of latents, and latents to pictures (arXiv 2112.10752);
//! and what stands in for it, [`TinySpec`] and [`DcSpec`].

use super::attention::of_pixels;
use super::dc::DcSpec;
use super::resnet::{MOST_LEVELS, Resnet, downsample, upsample};
use super::tiny::TinySpec;
use crate::config;
use crate::graph::{Builder, Graph, Grid, Picture, Tensors};
use crate::tiles::{Seams, Tiles};
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;

/// Variance floor of its norms.
const EPS: f32 = 1e-6;

/// Pixels of a tile along a line, and how many of them overlap, of classes that say nothing of it.
const TILE: (usize, usize) = (512, 64);

/// What `config.json` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct VaeSpec {
    /// Channels of pictures that are read.
    pub in_channels: usize,
    /// Channels of pictures that are made.
    pub out_channels: usize,
    down_block_types: Vec<String>,
    up_block_types: Vec<String>,
    block_out_channels: Vec<usize>,
    layers_per_block: usize,
    act_fn: String,
    /// Channels of latents.
    pub latent_channels: usize,
    norm_num_groups: usize,
    /// Factor of latents in front of a UNet.
    pub scaling_factor: f64,
    /// Taken from latents first.
    pub shift_factor: Option<f64>,
    mid_block_add_attention: bool,
    use_quant_conv: bool,
    use_post_quant_conv: bool,
    /// The side of the pictures that it was trained with: that of tiles.
    sample_size: Json,
    /// Of class `AutoencoderTiny`, whose graphs are its own.
    #[serde(skip)]
    pub tiny: Option<TinySpec>,
    /// Of class `AutoencoderDC`, the same.
    #[serde(skip)]
    pub deep: Option<DcSpec>,
    #[serde(flatten)]
    others: Map<String, Json>,
}

impl Default for VaeSpec {
    fn default() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            down_block_types: vec!["DownEncoderBlock2D".into()],
            up_block_types: vec!["UpDecoderBlock2D".into()],
            block_out_channels: vec![64],
            layers_per_block: 1,
            act_fn: "silu".into(),
            latent_channels: 4,
            norm_num_groups: 32,
            scaling_factor: 0.18215,
            shift_factor: None,
            mid_block_add_attention: true,
            use_quant_conv: true,
            use_post_quant_conv: true,
            sample_size: json!(32),
            tiny: None,
            deep: None,
            others: Map::new(),
        }
    }
}

impl VaeSpec {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Config` for what is not known, naming the field.
    pub fn new(config: &Json) -> Result<Self> {
        // How half precision is kept from overflowing, which f32 does not.
        let harmless = [("force_upcast", json!(true))];
        let spec: Self = config::read(config)?;
        config::check_others(&spec.others, &harmless)?;
        config::all_are("down_block_types", &spec.down_block_types, &["DownEncoderBlock2D"])?;
        config::all_are("up_block_types", &spec.up_block_types, &["UpDecoderBlock2D"])?;
        let levels = spec.block_out_channels.len();
        for (field, count) in
            [("down_block_types", spec.down_block_types.len()), ("up_block_types", spec.up_block_types.len())]
        {
            if count != levels || !(1..=MOST_LEVELS).contains(&levels) {
                let allowed = format!("{levels}, 1 to {MOST_LEVELS}");
                return Err(Error::config(field, format!("{count} blocks"), allowed));
            }
        }
        spec.resnet()?;
        Ok(spec)
    }

    /// Reads the `config.json` of class `AutoencoderTiny`.
    ///
    /// # Errors
    /// As [`VaeSpec::new`].
    pub fn of_tiny(config: &Json) -> Result<Self> {
        let tiny = TinySpec::new(config)?;
        Ok(Self {
            in_channels: tiny.in_channels,
            out_channels: tiny.out_channels,
            block_out_channels: tiny.encoder_block_out_channels.clone(),
            latent_channels: tiny.latent_channels,
            scaling_factor: tiny.scaling_factor,
            shift_factor: Some(tiny.shift_factor),
            tiny: Some(tiny),
            ..Self::default()
        })
    }

    /// Reads the `config.json` of class `AutoencoderDC`.
    ///
    /// # Errors
    /// As [`VaeSpec::new`].
    pub fn of_deep(config: &Json) -> Result<Self> {
        let deep = DcSpec::new(config)?;
        Ok(Self {
            in_channels: deep.in_channels,
            out_channels: deep.in_channels,
            block_out_channels: vec![0; deep.levels()],
            latent_channels: deep.latent_channels,
            scaling_factor: deep.scaling_factor,
            deep: Some(deep),
            ..Self::default()
        })
    }

    /// Whether its encoder gives mean and variance, not latents.
    pub fn has_variance(&self) -> bool {
        self.tiny.is_none() && self.deep.is_none()
    }

    /// Pixels of a picture for every latent, along a line.
    pub fn factor(&self) -> usize {
        1 << (self.block_out_channels.len() - 1)
    }

    /// The size of latents of a picture of this size: halved, and rounded down, at every level but the last.
    pub fn latents_of(&self, size: Grid) -> Grid {
        let halve = |n: usize| (1..self.block_out_channels.len()).fold(n, |n, _| n / 2);
        Grid { height: halve(size.height), width: halve(size.width) }
    }

    /// The size of a picture of latents of this size.
    pub fn pixels_of(&self, latents: Grid) -> Grid {
        let pixels = |n: usize| n.saturating_mul(self.factor());
        Grid { height: pixels(latents.height), width: pixels(latents.width) }
    }

    /// The tiles of large pictures, of encoding and of decoding.
    ///
    /// # Errors
    /// `Config` where no whole latents overlap.
    pub(crate) fn tiles(&self) -> Result<(Tiles, Tiles)> {
        let factor = self.factor();
        let ((side, overlap), seams) = match (&self.tiny, &self.deep) {
            (Some(_), _) => (TILE, Seams::Ramp),
            (None, Some(_)) => (TILE, Seams::Neighbours),
            (None, None) => {
                let side = self.sample_size.as_u64().map_or(0, |side| side as usize);
                let overlap = if side.is_multiple_of(4) { side / 4 } else { 0 };
                ((side, overlap), Seams::Neighbours)
            }
        };
        let field = if self.has_variance() { "sample_size" } else { "block_out_channels" };
        Tiles::both(side, overlap, factor, seams).ok_or_else(|| {
            let got = if self.has_variance() { self.sample_size.to_string() } else { factor.to_string() };
            let allowed = format!("for tiles, a side whose overlap is whole latents of {factor} pixels");
            Error::config(field, got, allowed)
        })
    }

    /// A picture, -1 to 1, as the encoder reads it.
    pub(crate) fn encoder_input<'a>(&self, picture: &'a [f32]) -> Cow<'a, [f32]> {
        self.tiny.as_ref().map_or(Cow::Borrowed(picture), |tiny| Cow::Owned(tiny.inside(picture)))
    }

    /// Latents as the decoder reads them.
    pub(crate) fn decoder_input<'a>(&self, latents: &'a [f32]) -> Cow<'a, [f32]> {
        self.tiny.as_ref().map_or(Cow::Borrowed(latents), |tiny| Cow::Owned(tiny.bounded(latents)))
    }

    /// A picture, -1 to 1, of what the decoder gave.
    pub(crate) fn picture_of(&self, decoded: Vec<f32>) -> Vec<f32> {
        match &self.tiny {
            Some(tiny) => tiny.outside(&decoded),
            None => decoded,
        }
    }

    fn resnet(&self) -> Result<Resnet> {
        let act = config::act("act_fn", &self.act_fn)?;
        Ok(Resnet { groups: self.norm_num_groups, eps: EPS, act, divisor: 1.0, by_time: false })
    }

    fn middle(&self, b: &mut Builder<'_>, x: Picture, p: &str) -> Result<Picture> {
        let resnet = self.resnet()?;
        let mut h = resnet.build(b, x, None, &format!("{p}.mid_block.resnets.0"))?;
        if self.mid_block_add_attention {
            h = of_pixels(b, h, &resnet, &format!("{p}.mid_block.attentions.0"))?;
        }
        resnet.build(b, h, None, &format!("{p}.mid_block.resnets.1"))
    }

    fn ends(&self, b: &mut Builder<'_>, h: Picture, p: &str) -> Result<Picture> {
        let norm = (self.norm_num_groups, EPS);
        let h = b.group_norm(h, &format!("{p}.conv_norm_out"), norm, Some(Act::Silu))?;
        b.same(h, &format!("{p}.conv_out"), 3)
    }

    /// From `image` `[items * pixels, channels]` to `[items * latents, mean | logarithm of the variance]`, or
    /// to latents alone.
    ///
    /// # Errors
    /// `Tensor` for those that are missing or have other shapes; `Config` for a picture that is too small.
    pub fn encoder(&self, tensors: &mut Tensors, items: usize, size: Grid) -> Result<Graph> {
        if let Some(tiny) = &self.tiny {
            return tiny.encoder(tensors, items, size);
        }
        if let Some(deep) = &self.deep {
            return deep.encoder(tensors, items, size);
        }
        let (mut builder, resnet) = (Builder::new(tensors, items), self.resnet()?);
        let b = &mut builder;
        let value = b.input("image", size.pixels(), self.in_channels, false);
        let mut h = b.same(Picture { value, grid: size }, "encoder.conv_in", 3)?;
        let levels = self.block_out_channels.len();
        for level in 0..levels {
            let p = format!("encoder.down_blocks.{level}");
            for layer in 0..self.layers_per_block {
                h = resnet.build(b, h, None, &format!("{p}.resnets.{layer}"))?;
            }
            if level + 1 < levels {
                h = downsample(b, h, 0, &p)?;
            }
        }
        h = self.middle(b, h, "encoder")?;
        h = self.ends(b, h, "encoder")?;
        if self.use_quant_conv {
            h = b.same(h, "quant_conv", 1)?;
        }
        config::columns("latent_channels", b.cols(h.value), 2 * self.latent_channels)?;
        Ok(builder.finish(&[h.value]))
    }

    /// From `latents` `[items * latents, channels]` to `[items * pixels, channels]`.
    ///
    /// # Errors
    /// As [`VaeSpec::encoder`].
    pub fn decoder(&self, tensors: &mut Tensors, items: usize, size: Grid) -> Result<Graph> {
        if let Some(tiny) = &self.tiny {
            return tiny.decoder(tensors, items, size);
        }
        if let Some(deep) = &self.deep {
            return deep.decoder(tensors, items, size);
        }
        let (mut builder, resnet) = (Builder::new(tensors, items), self.resnet()?);
        let b = &mut builder;
        let value = b.input("latents", size.pixels(), self.latent_channels, false);
        let mut h = Picture { value, grid: size };
        if self.use_post_quant_conv {
            h = b.same(h, "post_quant_conv", 1)?;
        }
        h = b.same(h, "decoder.conv_in", 3)?;
        h = self.middle(b, h, "decoder")?;
        let levels = self.block_out_channels.len();
        for level in 0..levels {
            let p = format!("decoder.up_blocks.{level}");
            for layer in 0..=self.layers_per_block {
                h = resnet.build(b, h, None, &format!("{p}.resnets.{layer}"))?;
            }
            if level + 1 < levels {
                h = upsample(b, h, h.grid.doubled(), &p)?;
            }
        }
        h = self.ends(b, h, "decoder")?;
        config::columns("out_channels", b.cols(h.value), self.out_channels)?;
        Ok(builder.finish(&[h.value]))
    }
}
