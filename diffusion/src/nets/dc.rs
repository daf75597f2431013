//! `AutoencoderDC`, the deep-compression autoencoder: pictures become a 32nd and less as high and wide, in
//! steps that add what a mean, or a repetition, of the channels gives.
//!
//! Source: arXiv 2410.10733; attention without a softmax: arXiv 2205.14756.

use super::gated_conv::gated_conv;
use super::resnet::MOST_LEVELS;
use super::sana::LINEAR_EPS;
use crate::config::{self, PerBlock};
use crate::graph::{Builder, Graph, Grid, LinearHeads, Picture, Stride, Tensors};
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// Added to mean squares.
const EPS: f32 = 1e-5;

const RESIDUAL: &str = "ResBlock";
const ATTENTION: &str = "EfficientViTBlock";
const UNSHUFFLE: &str = "pixel_unshuffle";
const SHUFFLE: &str = "pixel_shuffle";
const RMS: &str = "rms_norm";
const BATCH: &str = "batch_norm";

/// What `config.json` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct DcSpec {
    pub(super) in_channels: usize,
    pub(super) latent_channels: usize,
    attention_head_dim: usize,
    encoder_block_types: PerBlock<String>,
    decoder_block_types: PerBlock<String>,
    encoder_block_out_channels: Vec<usize>,
    decoder_block_out_channels: Vec<usize>,
    encoder_layers_per_block: Vec<usize>,
    decoder_layers_per_block: Vec<usize>,
    encoder_qkv_multiscales: Vec<Vec<usize>>,
    decoder_qkv_multiscales: Vec<Vec<usize>>,
    upsample_block_type: String,
    downsample_block_type: String,
    decoder_norm_types: PerBlock<String>,
    decoder_act_fns: PerBlock<String>,
    encoder_out_shortcut: bool,
    decoder_in_shortcut: bool,
    decoder_conv_act_fn: String,
    pub(super) scaling_factor: f64,
    #[serde(flatten)]
    others: Map<String, Json>,
}

impl Default for DcSpec {
    fn default() -> Self {
        let scales = vec![vec![], vec![], vec![], vec![5], vec![5], vec![5]];
        let all = |value: &str| PerBlock::All(value.to_string());
        Self {
            in_channels: 3,
            latent_channels: 32,
            attention_head_dim: 32,
            encoder_block_types: all(RESIDUAL),
            decoder_block_types: all(RESIDUAL),
            encoder_block_out_channels: vec![128, 256, 512, 512, 1024, 1024],
            decoder_block_out_channels: vec![128, 256, 512, 512, 1024, 1024],
            encoder_layers_per_block: vec![2, 2, 2, 3, 3, 3],
            decoder_layers_per_block: vec![3; 6],
            encoder_qkv_multiscales: scales.clone(),
            decoder_qkv_multiscales: scales,
            upsample_block_type: SHUFFLE.into(),
            downsample_block_type: UNSHUFFLE.into(),
            decoder_norm_types: all(RMS),
            decoder_act_fns: all("silu"),
            encoder_out_shortcut: true,
            decoder_in_shortcut: true,
            decoder_conv_act_fn: "relu".into(),
            scaling_factor: 1.0,
            others: Map::new(),
        }
    }
}

/// What the blocks of one size have.
struct Level<'a> {
    attends: bool,
    channels: usize,
    layers: usize,
    act: Act,
    /// Whether its norms are those of batches.
    of_batches: bool,
    /// Kernels of the convolutions that queries, keys and values are taken of, too.
    scales: &'a [usize],
}

impl Level<'_> {
    /// The norm of residual blocks and of attention; gated convolutions have another.
    fn normed(&self, b: &mut Builder<'_>, x: Picture, name: &str) -> Result<Picture> {
        match self.of_batches {
            true => b.batch_norm(x, name),
            false => Ok(Picture { value: b.rms_norm(x.value, name, EPS)?, ..x }),
        }
    }
}

/// The lists of one direction, and the names of their fields.
struct Lists<'a> {
    types: (&'static str, &'a PerBlock<String>),
    channels: (&'static str, &'a [usize]),
    layers: (&'static str, &'a [usize]),
    scales: (&'static str, &'a [Vec<usize>]),
    acts: (&'static str, PerBlock<String>),
    norms: (&'static str, PerBlock<String>),
}

impl<'a> Lists<'a> {
    fn levels(&self) -> Result<Vec<Level<'a>>> {
        let count = self.channels.1.len();
        if !(2..=MOST_LEVELS).contains(&count) {
            return Err(Error::config(
                self.channels.0,
                format!("{count} values"),
                format!("2 to {MOST_LEVELS}"),
            ));
        }
        for (field, got) in [(self.layers.0, self.layers.1.len()), (self.scales.0, self.scales.1.len())] {
            if got != count {
                return Err(Error::config(
                    field,
                    format!("{got} values"),
                    format!("{count}, one for each size"),
                ));
            }
        }
        // The first size may have none, and only that: what changes the size is part of its blocks.
        if self.layers.1.iter().skip(1).any(|layers| *layers == 0) {
            return Err(Error::config(
                self.layers.0,
                format!("{:?}", self.layers.1),
                "0 for the first size alone",
            ));
        }
        let (types, acts) =
            (self.types.1.spread(self.types.0, count)?, self.acts.1.spread(self.acts.0, count)?);
        config::all_are(self.types.0, &types, &[RESIDUAL, ATTENTION])?;
        let norms = self.norms.1.spread(self.norms.0, count)?;
        config::all_are(self.norms.0, &norms, &[RMS, BATCH])?;
        let odd = |kernel: &&usize| kernel.is_multiple_of(2);
        if let Some(even) = self.scales.1.iter().flatten().find(odd) {
            return Err(Error::config(self.scales.0, even, "odd kernels"));
        }
        let level = |i: usize| {
            Ok(Level {
                attends: types[i] == ATTENTION,
                channels: self.channels.1[i],
                layers: self.layers.1[i],
                act: config::act(self.acts.0, &acts[i])?,
                of_batches: norms[i] == BATCH,
                scales: &self.scales.1[i],
            })
        };
        (0..count).map(level).collect()
    }
}

impl DcSpec {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Config` for what is not known, naming the field.
    pub fn new(config: &Json) -> Result<Self> {
        let spec: Self = config::read(config)?;
        config::check_others(&spec.others, &[])?;
        let only = |field: &str, one: &String, known: &[&str]| {
            config::all_are(field, std::slice::from_ref(one), known)
        };
        only("downsample_block_type", &spec.downsample_block_type, &[UNSHUFFLE, "Conv", "conv"])?;
        only("upsample_block_type", &spec.upsample_block_type, &[SHUFFLE, "interpolate"])?;
        config::act("decoder_conv_act_fn", &spec.decoder_conv_act_fn)?;
        let (down, up) = (spec.down()?, spec.up()?);
        if down.len() != up.len() {
            let got = format!("{} values", up.len());
            return Err(Error::config("decoder_block_out_channels", got, format!("{}", down.len())));
        }
        config::at_least_one(&[
            ("attention_head_dim", spec.attention_head_dim),
            ("latent_channels", spec.latent_channels),
        ])?;
        Ok(spec)
    }

    fn down(&self) -> Result<Vec<Level<'_>>> {
        Lists {
            types: ("encoder_block_types", &self.encoder_block_types),
            channels: ("encoder_block_out_channels", &self.encoder_block_out_channels),
            layers: ("encoder_layers_per_block", &self.encoder_layers_per_block),
            scales: ("encoder_qkv_multiscales", &self.encoder_qkv_multiscales),
            acts: ("act_fn", PerBlock::All("silu".to_string())),
            norms: ("norm_type", PerBlock::All(RMS.to_string())),
        }
        .levels()
    }

    fn up(&self) -> Result<Vec<Level<'_>>> {
        Lists {
            types: ("decoder_block_types", &self.decoder_block_types),
            channels: ("decoder_block_out_channels", &self.decoder_block_out_channels),
            layers: ("decoder_layers_per_block", &self.decoder_layers_per_block),
            scales: ("decoder_qkv_multiscales", &self.decoder_qkv_multiscales),
            acts: ("decoder_act_fns", self.decoder_act_fns.clone()),
            norms: ("decoder_norm_types", self.decoder_norm_types.clone()),
        }
        .levels()
    }

    pub(super) fn levels(&self) -> usize {
        self.encoder_block_out_channels.len()
    }

    /// `x + norm(conv2(act(conv1(x))))`, or attention and a gated convolution.
    fn block(&self, b: &mut Builder<'_>, x: Picture, level: &Level<'_>, p: &str) -> Result<Picture> {
        if level.attends {
            let x = self.attention(b, x, level, &format!("{p}.attn"))?;
            let p = format!("{p}.conv_out");
            let made = gated_conv(b, x, &p)?;
            let made = b.rms_norm(made.value, &format!("{p}.norm"), EPS)?;
            return Ok(Picture { value: b.add(made, x.value, &p)?, ..x });
        }
        let same = (3, Stride::same(3), x.grid);
        let h = b.conv(x, &format!("{p}.conv1"), same, Some(level.act))?;
        let conv2 = format!("{p}.conv2");
        let h = b.conv(h, &conv2, same, None)?;
        let h = level.normed(b, h, &format!("{p}.norm"))?;
        Ok(Picture { value: b.add(h.value, x.value, &conv2)?, ..x })
    }

    /// `x + norm(out(attention of all scales))`: queries, keys and values as they are, and behind
    /// convolutions of several sizes. Heads lie one behind the other, each with its queries, keys and values.
    fn attention(&self, b: &mut Builder<'_>, x: Picture, level: &Level<'_>, p: &str) -> Result<Picture> {
        let names = ["to_q", "to_k", "to_v"].map(|name| format!("{p}.{name}"));
        let qkv = Picture { value: b.linears(x.value, &names, None)?, ..x };
        let width = self.attention_head_dim;
        let heads = b.cols(qkv.value) / (3 * width);
        let heads = LinearHeads { heads, width, step: 3 * width, apart: width, eps: LINEAR_EPS };
        let mut mixed = vec![b.linear_attend(qkv.value, heads, p)?];
        for (i, kernel) in level.scales.iter().enumerate() {
            let p = format!("{p}.to_qkv_multiscale.{i}");
            let h = b.grouped(qkv, &format!("{p}.proj_in"), *kernel, false)?;
            let h = b.grouped(h, &format!("{p}.proj_out"), 1, false)?;
            mixed.push(b.linear_attend(h.value, heads, &p)?);
        }
        let all = if mixed.len() == 1 { mixed[0] } else { b.join_columns(&mixed) };
        let out = b.linear(all, &format!("{p}.to_out"), None)?;
        let out = level.normed(b, Picture { value: out, ..x }, &format!("{p}.norm_out"))?;
        Ok(Picture { value: b.add(out.value, x.value, p)?, ..x })
    }

    /// Half as high and wide, of `channels`; without a `shortcut` nothing is added.
    fn halved(
        &self,
        b: &mut Builder<'_>,
        x: Picture,
        (channels, shortcut): (usize, bool),
        p: &str,
    ) -> Result<Picture> {
        let name = format!("{p}.conv");
        let h = match self.downsample_block_type == UNSHUFFLE {
            true => {
                let h = b.same(x, &name, 3)?;
                let cols = 4 * b.cols(h.value);
                b.regrouped(h, (2, cols), &name)?
            }
            false => b.conv(x, &name, (3, Stride { step: 2, before: 1, after: 1 }, x.grid), None)?,
        };
        config::columns("encoder_block_out_channels", b.cols(h.value), channels)?;
        if !shortcut {
            return Ok(h);
        }
        let mean = b.regrouped(x, (2, channels), &name)?;
        Ok(Picture { value: b.add(h.value, mean.value, &name)?, ..h })
    }

    /// Twice as high and wide, of `channels`; without a `shortcut` nothing is added.
    fn doubled(
        &self,
        b: &mut Builder<'_>,
        x: Picture,
        (channels, shortcut): (usize, bool),
        p: &str,
    ) -> Result<Picture> {
        let name = format!("{p}.conv");
        let h = match self.upsample_block_type == SHUFFLE {
            true => {
                let h = b.same(x, &name, 3)?;
                b.doubled(h, channels, &name)?
            }
            false => b.conv(x, &name, (3, Stride::same(3), x.grid.doubled()), None)?,
        };
        config::columns("decoder_block_out_channels", b.cols(h.value), channels)?;
        if !shortcut {
            return Ok(h);
        }
        let repeated = b.doubled(x, channels, &name)?;
        Ok(Picture { value: b.add(h.value, repeated.value, &name)?, ..h })
    }

    /// From `image` `[items * pixels, channels]` to `[items * latents, channels]`.
    ///
    /// # Errors
    /// `Tensor` for those that are missing or have other shapes; `Config` for a picture that is too small or
    /// does not halve.
    pub(super) fn encoder(&self, tensors: &mut Tensors, items: usize, size: Grid) -> Result<Graph> {
        let (mut builder, levels) = (Builder::new(tensors, items), self.down()?);
        let b = &mut builder;
        let value = b.input("image", size.pixels(), self.in_channels, false);
        let (image, p) = (Picture { value, grid: size }, "encoder.conv_in");
        let mut h = match levels[0].layers {
            0 => self.halved(b, image, (levels[1].channels, false), p)?,
            _ => b.same(image, p, 3)?,
        };
        for (i, level) in levels.iter().enumerate().filter(|(_, level)| level.layers > 0) {
            let p = format!("encoder.down_blocks.{i}");
            for layer in 0..level.layers {
                h = self.block(b, h, level, &format!("{p}.{layer}"))?;
            }
            if let Some(next) = levels.get(i + 1) {
                h = self.halved(b, h, (next.channels, true), &format!("{p}.{}", level.layers))?;
            }
        }
        let name = "encoder.conv_out";
        let mut out = b.same(h, name, 3)?;
        config::columns("latent_channels", b.cols(out.value), self.latent_channels)?;
        if self.encoder_out_shortcut {
            let mean = b.regrouped(h, (1, self.latent_channels), "latent_channels")?;
            out.value = b.add(out.value, mean.value, name)?;
        }
        Ok(builder.finish(&[out.value]))
    }

    /// From `latents` `[items * latents, channels]` to `[items * pixels, channels]`.
    ///
    /// # Errors
    /// As [`DcSpec::encoder`].
    pub(super) fn decoder(&self, tensors: &mut Tensors, items: usize, size: Grid) -> Result<Graph> {
        let (mut builder, levels) = (Builder::new(tensors, items), self.up()?);
        let b = &mut builder;
        let value = b.input("latents", size.pixels(), self.latent_channels, false);
        let (latents, name) = (Picture { value, grid: size }, "decoder.conv_in");
        let mut h = b.same(latents, name, 3)?;
        if self.decoder_in_shortcut {
            let repeated = b.regrouped(latents, (1, b.cols(h.value)), "decoder_block_out_channels")?;
            h.value = b.add(h.value, repeated.value, name)?;
        }
        for (i, level) in levels.iter().enumerate().rev().filter(|(_, level)| level.layers > 0) {
            let p = format!("decoder.up_blocks.{i}");
            let first = usize::from(i + 1 < levels.len());
            if first == 1 {
                h = self.doubled(b, h, (level.channels, true), &format!("{p}.0"))?;
            }
            for layer in first..first + level.layers {
                h = self.block(b, h, level, &format!("{p}.{layer}"))?;
            }
        }
        h.value = b.rms_norm(h.value, "decoder.norm_out", EPS)?;
        h.value = b.activate(h.value, config::act("decoder_conv_act_fn", &self.decoder_conv_act_fn)?);
        let p = "decoder.conv_out";
        h = match levels[0].layers {
            0 => self.doubled(b, h, (self.in_channels, false), p)?,
            _ => b.same(h, p, 3)?,
        };
        config::columns("in_channels", b.cols(h.value), self.in_channels)?;
        Ok(builder.finish(&[h.value]))
    }
}
