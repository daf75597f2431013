//! `UNet2DConditionModel`: what a scheduler takes of a noisy sample, a time and a text.
//!
//! Source: arXiv 2112.10752, 2307.01952.

use super::attention::Transformer;
use super::resnet::{Resnet, downsample, upsample};
use super::time::{embedding, sinusoids};
use crate::config::{self, PerBlock};
use crate::graph::{Builder, Graph, Grid, Picture, Tensors, Value};
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

/// What `config.json` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct UnetSpec {
    /// Channels of samples.
    pub in_channels: usize,
    /// Channels of what comes out.
    pub out_channels: usize,
    /// Lines and columns of the latents that it was trained with.
    pub sample_size: Option<usize>,
    down_block_types: Vec<String>,
    up_block_types: Vec<String>,
    mid_block_type: String,
    block_out_channels: Vec<usize>,
    layers_per_block: PerBlock<usize>,
    transformer_layers_per_block: PerBlock<usize>,
    reverse_transformer_layers_per_block: Option<Vec<usize>>,
    /// The number of heads, by an old mistake.
    attention_head_dim: PerBlock<usize>,
    num_attention_heads: Option<PerBlock<usize>>,
    only_cross_attention: PerBlock<bool>,
    cross_attention_dim: PerBlock<usize>,
    norm_num_groups: usize,
    norm_eps: f32,
    act_fn: String,
    downsample_padding: usize,
    mid_block_scale_factor: f32,
    resnet_time_scale_shift: String,
    /// Whether cosines of the time come before sines.
    pub flip_sin_to_cos: bool,
    /// See [`super::sinusoids`].
    pub freq_shift: f64,
    addition_embed_type: Option<String>,
    /// Columns of each size that is added to the time.
    pub addition_time_embed_dim: Option<usize>,
    class_embed_type: Option<String>,
    projection_class_embeddings_input_dim: Option<usize>,
    /// Columns of the guidance that distilled models read.
    pub time_cond_proj_dim: Option<usize>,
    #[serde(flatten)]
    others: Map<String, Json>,
}

impl Default for UnetSpec {
    fn default() -> Self {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
        Self {
            in_channels: 4,
            out_channels: 4,
            sample_size: None,
            down_block_types: names(&[CROSS_DOWN, CROSS_DOWN, CROSS_DOWN, DOWN]),
            up_block_types: names(&[UP, CROSS_UP, CROSS_UP, CROSS_UP]),
            mid_block_type: MIDDLE.into(),
            block_out_channels: vec![320, 640, 1280, 1280],
            layers_per_block: PerBlock::All(2),
            transformer_layers_per_block: PerBlock::All(1),
            reverse_transformer_layers_per_block: None,
            attention_head_dim: PerBlock::All(8),
            num_attention_heads: None,
            only_cross_attention: PerBlock::All(false),
            cross_attention_dim: PerBlock::All(1280),
            norm_num_groups: 32,
            norm_eps: 1e-5,
            act_fn: "silu".into(),
            downsample_padding: 1,
            mid_block_scale_factor: 1.0,
            resnet_time_scale_shift: "default".into(),
            flip_sin_to_cos: true,
            freq_shift: 0.0,
            addition_embed_type: None,
            addition_time_embed_dim: None,
            class_embed_type: None,
            projection_class_embeddings_input_dim: None,
            time_cond_proj_dim: None,
            others: Map::new(),
        }
    }
}

const DOWN: &str = "DownBlock2D";
const CROSS_DOWN: &str = "CrossAttnDownBlock2D";
const UP: &str = "UpBlock2D";
const CROSS_UP: &str = "CrossAttnUpBlock2D";
const MIDDLE: &str = "UNetMidBlock2DCrossAttn";
const SCALE_SHIFT: &str = "scale_shift";

/// Sizes of what a UNet is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conditions {
    /// Pictures of a batch.
    pub items: usize,
    /// Latents.
    pub size: Grid,
    /// Tokens of every text.
    pub tokens: usize,
}

/// What the blocks of one size have.
#[derive(Debug, Clone)]
struct Level {
    layers: usize,
    /// Counts where the type of the block has attention.
    transformer: Transformer,
}

impl UnetSpec {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Config` for what is not known, naming the field.
    pub fn new(config: &Json) -> Result<Self> {
        let spec = Self::way_down(config)?;
        config::all_are("up_block_types", &spec.up_block_types, &[UP, CROSS_UP])?;
        spec.check_blocks("up_block_types", spec.up_block_types.len())?;
        spec.levels_up()?;
        Ok(spec)
    }

    /// The same of a model that has a UNet's blocks up to the middle.
    ///
    /// # Errors
    /// As [`UnetSpec::new`].
    pub(super) fn way_down(config: &Json) -> Result<Self> {
        let harmless = [
            ("dropout", Json::Null),
            ("attention_type", json!("default")),
            ("conv_in_kernel", json!(3)),
            ("conv_out_kernel", json!(3)),
            ("resnet_out_scale_factor", json!(1.0)),
            ("time_embedding_type", json!("positional")),
            // Read where `addition_embed_type` is a kind that is refused.
            ("addition_embed_type_num_heads", Json::Null),
            // f32 does not overflow.
            ("upcast_attention", json!(true)),
            // Says how proj_in and proj_out are stored, which their shapes say, too.
            ("use_linear_projection", json!(true)),
        ];
        let spec: Self = config::read(config)?;
        config::check_others(&spec.others, &harmless)?;
        config::all_are("down_block_types", &spec.down_block_types, &[DOWN, CROSS_DOWN])?;
        config::all_are("mid_block_type", std::slice::from_ref(&spec.mid_block_type), &[MIDDLE])?;
        let shifts = std::slice::from_ref(&spec.resnet_time_scale_shift);
        config::all_are("resnet_time_scale_shift", shifts, &["default", SCALE_SHIFT])?;
        let kinds: Vec<String> = spec.addition_embed_type.iter().cloned().collect();
        config::all_are("addition_embed_type", &kinds, &["text_time"])?;
        let kinds: Vec<String> = spec.class_embed_type.iter().cloned().collect();
        config::all_are("class_embed_type", &kinds, &["projection"])?;
        spec.check_blocks("down_block_types", spec.down_block_types.len())?;
        spec.levels()?;
        spec.resnet(1.0)?;
        Ok(spec)
    }

    fn check_blocks(&self, field: &str, count: usize) -> Result<()> {
        let levels = self.block_out_channels.len();
        match count == levels && levels > 0 {
            true => Ok(()),
            false => Err(Error::config(field, format!("{count} blocks"), format!("{levels}, at least 1"))),
        }
    }

    /// Columns of a text's rows.
    pub fn text_width(&self) -> Result<usize> {
        let field = "cross_attention_dim";
        let all = self.cross_attention_dim.spread(field, self.block_out_channels.len())?;
        match &all[..] {
            [first, rest @ ..] if rest.iter().all(|one| one == first) => Ok(*first),
            _ => Err(Error::config(field, format!("{all:?}"), "the same for all blocks")),
        }
    }

    /// Columns of what is added to the time besides: the text as one row, and sizes; none without.
    pub fn added_width(&self) -> Option<usize> {
        self.addition_embed_type.as_ref().and(self.projection_class_embeddings_input_dim)
    }

    /// What is added to the time of every picture: its text as one row `[items, columns]`, then the sines and
    /// cosines of its sizes `[items, sizes]` (height and width before and after scaling, what was taken off).
    ///
    /// # Errors
    /// `Config` where the two do not make up the columns that the model reads.
    pub fn added(&self, items: usize, texts: &[f32], sizes: &[f64]) -> Result<Vec<f32>> {
        let (each, items) = (self.addition_time_embed_dim.unwrap_or(0), items.max(1));
        let (text, count) = (texts.len() / items, sizes.len() / items);
        let (got, want) = (text + count * each, self.added_width().unwrap_or(0));
        if got != want {
            return Err(Error::config(
                "projection_class_embeddings_input_dim",
                want,
                format!("{got} columns"),
            ));
        }
        let sizes = sinusoids(sizes, each, self.flip_sin_to_cos, self.freq_shift);
        let of = |item: usize| {
            let (own, others) =
                (item * text..(item + 1) * text, item * count * each..(item + 1) * count * each);
            [&texts[own], &sizes[others]].concat()
        };
        Ok((0..items).flat_map(of).collect())
    }

    /// Columns of a class, where there are classes.
    pub fn class_width(&self) -> Option<usize> {
        self.class_embed_type.as_ref().and(self.projection_class_embeddings_input_dim)
    }

    /// Columns of the sines and cosines of a time.
    pub fn time_width(&self) -> usize {
        self.block_out_channels.first().copied().unwrap_or(0)
    }

    fn resnet(&self, divisor: f32) -> Result<Resnet> {
        let act = config::act("act_fn", &self.act_fn)?;
        let by_time = self.resnet_time_scale_shift == SCALE_SHIFT;
        Ok(Resnet { groups: self.norm_num_groups, eps: self.norm_eps, act, divisor, by_time })
    }

    /// The blocks on the way down; the middle is like the last.
    fn levels(&self) -> Result<Vec<Level>> {
        let count = self.block_out_channels.len();
        let heads = self.num_attention_heads.as_ref().unwrap_or(&self.attention_head_dim);
        let heads = heads.spread("attention_head_dim", count)?;
        let layers = self.layers_per_block.spread("layers_per_block", count)?;
        let depths = self.transformer_layers_per_block.spread("transformer_layers_per_block", count)?;
        let only = self.only_cross_attention.spread("only_cross_attention", count)?;
        let of = |i: usize| {
            let (layers, heads, only_cross) = (depths[i], heads[i], only[i]);
            Transformer { layers, heads, groups: self.norm_num_groups, only_cross }
        };
        Ok((0..count).map(|i| Level { layers: layers[i], transformer: of(i) }).collect())
    }

    /// The blocks on the way up.
    fn levels_up(&self) -> Result<Vec<Level>> {
        let mut levels = self.levels()?;
        levels.reverse();
        if let Some(depths) = &self.reverse_transformer_layers_per_block {
            let field = "reverse_transformer_layers_per_block";
            let depths = PerBlock::Each(depths.clone()).spread(field, levels.len())?;
            levels.iter_mut().zip(depths).for_each(|(level, depth)| level.transformer.layers = depth);
        }
        Ok(levels)
    }

    /// `act(time)` `[items, dim]`: what every resnet reads, of the inputs `time` and, where the model has
    /// them, `guidance`, `class` and `added`.
    fn time(&self, b: &mut Builder<'_>) -> Result<Value> {
        let mut time = b.input("time", 1, self.time_width(), false);
        if let Some(width) = self.time_cond_proj_dim {
            let guidance = b.input("guidance", 1, width, true);
            let name = "time_embedding.cond_proj";
            let row = b.linear(guidance, name, None)?;
            time = b.add(time, row, name)?;
        }
        let mut sum = embedding(b, time, "time_embedding", Act::Silu)?;
        let others = [
            ("class", self.class_width(), "class_embedding"),
            ("added", self.added_width(), "add_embedding"),
        ];
        for (input, width, name) in others {
            if let Some(width) = width {
                let given = b.input(input, 1, width, true);
                let row = embedding(b, given, name, Act::Silu)?;
                sum = b.add(sum, row, name)?;
            }
        }
        Ok(b.activate(sum, Act::Silu))
    }

    /// The inputs `sample` `[items * latents, channels]`, `text` `[items * tokens, width]`, `time` and its
    /// companions: the sample, and what all blocks read of the others.
    pub(super) fn inputs(
        &self,
        b: &mut Builder<'_>,
        conditions: Conditions,
    ) -> Result<(Picture, (Value, Value))> {
        let value = b.input("sample", conditions.size.pixels(), self.in_channels, false);
        let text = b.input("text", conditions.tokens, self.text_width()?, true);
        Ok((Picture { value, grid: conditions.size }, (self.time(b)?, text)))
    }

    /// From the inputs `sample` `[items * latents, channels]`, `text` `[items * tokens, width]`, `time` and
    /// its companions to `[items * latents, channels]`.
    ///
    /// # Errors
    /// `Tensor` for those that are missing or have other shapes; `Config` for latents that are too small.
    pub fn graph(&self, tensors: &mut Tensors, conditions: Conditions) -> Result<Graph> {
        self.build(tensors, conditions, false)
    }

    /// The same with the residuals of a ControlNet, which are inputs `control`: those of the way down in
    /// order, that of the middle last.
    ///
    /// # Errors
    /// As [`UnetSpec::graph`].
    pub fn controlled_graph(&self, tensors: &mut Tensors, conditions: Conditions) -> Result<Graph> {
        self.build(tensors, conditions, true)
    }

    fn build(&self, tensors: &mut Tensors, conditions: Conditions, controlled: bool) -> Result<Graph> {
        let mut builder = Builder::new(tensors, conditions.items);
        let b = &mut builder;
        let (sample, given) = self.inputs(b, conditions)?;
        let h = b.same(sample, "conv_in", 3)?;
        let mut skips = vec![h];
        let h = self.down(b, h, given, &mut skips)?;
        let mut h = self.middle(b, h, given)?;
        if controlled {
            // The way down itself goes on without them.
            for picture in skips.iter_mut().chain([&mut h]) {
                let (pixels, cols) = (picture.grid.pixels(), b.cols(picture.value));
                let residual = b.input("control", pixels, cols, false);
                picture.value = b.add(picture.value, residual, "control")?;
            }
        }
        let h = self.up(b, h, given, skips)?;
        let norm = (self.norm_num_groups, self.norm_eps);
        let act = config::act("act_fn", &self.act_fn)?;
        let h = b.group_norm(h, "conv_norm_out", norm, Some(act))?;
        let h = b.same(h, "conv_out", 3)?;
        config::columns("out_channels", b.cols(h.value), self.out_channels)?;
        Ok(builder.finish(&[h.value]))
    }

    pub(super) fn down(
        &self,
        b: &mut Builder<'_>,
        mut h: Picture,
        (time, text): (Value, Value),
        skips: &mut Vec<Picture>,
    ) -> Result<Picture> {
        let (resnet, levels) = (self.resnet(1.0)?, self.levels()?);
        for (i, level) in levels.iter().enumerate() {
            let p = format!("down_blocks.{i}");
            for layer in 0..level.layers {
                h = resnet.build(b, h, Some(time), &format!("{p}.resnets.{layer}"))?;
                if self.down_block_types[i] == CROSS_DOWN {
                    h = level.transformer.build(b, h, text, &format!("{p}.attentions.{layer}"))?;
                }
                skips.push(h);
            }
            if i + 1 < levels.len() {
                h = downsample(b, h, self.downsample_padding, &p)?;
                skips.push(h);
            }
        }
        Ok(h)
    }

    pub(super) fn middle(
        &self,
        b: &mut Builder<'_>,
        h: Picture,
        (time, text): (Value, Value),
    ) -> Result<Picture> {
        let resnet = self.resnet(self.mid_block_scale_factor)?;
        let last = self.levels()?.pop().ok_or_else(|| Error::internal("a UNet without levels"))?;
        let h = resnet.build(b, h, Some(time), "mid_block.resnets.0")?;
        let transformer = Transformer { only_cross: false, ..last.transformer };
        let h = transformer.build(b, h, text, "mid_block.attentions.0")?;
        resnet.build(b, h, Some(time), "mid_block.resnets.1")
    }

    /// Every resnet reads a picture of the way down next to its input; the last of a level is as large as the
    /// level's output becomes.
    fn up(
        &self,
        b: &mut Builder<'_>,
        mut h: Picture,
        (time, text): (Value, Value),
        mut skips: Vec<Picture>,
    ) -> Result<Picture> {
        let (resnet, levels) = (self.resnet(1.0)?, self.levels_up()?);
        for (i, level) in levels.iter().enumerate() {
            let p = format!("up_blocks.{i}");
            for layer in 0..=level.layers {
                let name = format!("{p}.resnets.{layer}");
                let skip = skips.pop().ok_or_else(|| Error::internal("more blocks up than down"))?;
                let joined = b.join(h, skip, &name)?;
                h = resnet.build(b, joined, Some(time), &name)?;
                if self.up_block_types[i] == CROSS_UP {
                    h = level.transformer.build(b, h, text, &format!("{p}.attentions.{layer}"))?;
                }
            }
            if let Some(next) = skips.last().filter(|_| i + 1 < levels.len()) {
                h = upsample(b, h, next.grid, &p)?;
            }
        }
        Ok(h)
    }
}
