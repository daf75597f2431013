//! CLIP: a causal text encoder pooled at its end token and an image encoder over patches of pixels, each with
//! an optional projection. In files of both (`model_type` clip) each tower is a model of its own:
//! [`Clip::Text`] describes such a file by default, [`Clip::Vision`] when it is asked for alone.

use crate::params::Act;
use crate::policy::describe::{GPT_LIKE, Switches, decoder};
use crate::policy::*;

/// A tower of CLIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clip {
    /// Texts; also `model_type` clip_text_model.
    Text,
    /// Images; also `model_type` clip_vision_model.
    Vision,
    /// Images, of a file that has both towers.
    VisionOfBoth,
}

macro_rules! slots {
    ($($more:expr),* $(,)?) => {
        &[
            (Slot::AttnNorm, "layer_norm1"),
            (Slot::Qkv, "self_attn.q_proj + self_attn.k_proj + self_attn.v_proj"),
            (Slot::AttnOut, "self_attn.out_proj"),
            (Slot::MlpNorm, "layer_norm2"),
            (Slot::Up, "mlp.fc1"),
            (Slot::Down, "mlp.fc2"),
            $($more),*
        ]
    };
}

const TEXT: Names<'_> = Names {
    prefixes: &["text_model.", ""],
    block: "encoder.layers.{}.",
    slots: slots![
        (Slot::TokenEmbed, "embeddings.token_embedding"),
        (Slot::PositionEmbed, "embeddings.position_embedding"),
        (Slot::FinalNorm, "final_layer_norm"),
        (Slot::Pooler, "/text_projection"),
    ],
    ignored: &["*position_ids", "vision_model.*", "visual_projection.*", "text_projection.*", "logit_scale"],
    ..Names::NONE
};

const VISION: Names<'_> = Names {
    prefixes: &["vision_model.", ""],
    slots: slots![
        (Slot::PatchEmbed, "embeddings.patch_embedding"),
        (Slot::TokenTypeEmbed, "=embeddings.class_embedding"),
        (Slot::PositionEmbed, "embeddings.position_embedding"),
        // The published files spell it so.
        (Slot::EmbedNorm, "pre_layrnorm, pre_layernorm"),
        (Slot::PoolNorm, "post_layernorm"),
        (Slot::Pooler, "/visual_projection"),
    ],
    ignored: &["*position_ids", "text_model.*", "text_projection.*", "visual_projection.*", "logit_scale"],
    ..TEXT
};

const CLIP_LIKE: Switches =
    Switches { act: Act::QuickGelu, placement: Placement::Pre, positions: 77, ..GPT_LIKE };

impl Clip {
    fn names(self) -> Names<'static> {
        if self == Clip::Text { TEXT } else { VISION }
    }

    /// The tower's own configuration. Files of both towers leave out what is as in the first published model.
    fn config(self, config: &ModelConfig) -> Result<ModelConfig> {
        const TEXT: &[(&str, u64)] = &[
            ("hidden_size", 512),
            ("intermediate_size", 2048),
            ("num_attention_heads", 8),
            ("num_hidden_layers", 12),
            ("vocab_size", 49408),
            ("eos_token_id", 49407),
        ];
        const VISION: &[(&str, u64)] = &[
            ("hidden_size", 768),
            ("intermediate_size", 3072),
            ("num_attention_heads", 12),
            ("num_hidden_layers", 12),
        ];
        let (section, defaults) =
            if self == Clip::Text { ("text_config", TEXT) } else { ("vision_config", VISION) };
        if config.model_type() != "clip" {
            return Ok(config.clone());
        }
        let own = config.section(section)?;
        let missing = defaults.iter().filter(|(field, _)| own.get(field).is_none());
        Ok(missing.fold(own.clone(), |filled, (field, value)| filled.with(field, *value)))
    }

    /// Columns of the projection, where the checkpoint's class has one.
    fn projection(self, config: &ModelConfig) -> Result<Option<(usize, bool)>> {
        let both = config.model_type() == "clip";
        if !both && !config.architecture().ends_with("WithProjection") {
            return Ok(None);
        }
        Ok(Some((config.size_opt(&["projection_dim"])?.unwrap_or(512), false)))
    }
}

impl InjectionPolicy for Clip {
    fn name(&self) -> &str {
        if *self == Clip::Text { "clip_text" } else { "clip_vision" }
    }

    fn fit(&self, config: &ModelConfig, _: Catalog<'_>) -> Fit {
        fit_by_type(
            config,
            match self {
                Clip::Text => &["clip", "clip_text_model"],
                Clip::Vision => &["clip_vision_model"],
                Clip::VisionOfBoth => &["clip", "clip_vision_model"],
            },
        )
    }

    fn spec(&self, config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
        let (own, dense) = (self.config(config)?, self.projection(config)?);
        let mut spec = match self {
            Clip::Text => text(&own, dense)?,
            _ => vision(&own, dense)?,
        };
        spec.arch = self.name().into();
        (spec.family, spec.head) = (Family::Encoder, HeadSpec::None);
        Ok(spec)
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        self.names().bind(spec, config, catalog, QkvLayout::Concat)
    }

    fn ignored(&self) -> &[&str] {
        self.names().ignored
    }
}

fn text(config: &ModelConfig, dense: Option<(usize, bool)>) -> Result<ModelSpec> {
    let mut spec = decoder(config, CLIP_LIKE)?;
    spec.learn_positions();
    // The published files name 2, which is not the end token: the reference then takes the largest id.
    let from = match config.ids("eos_token_id")?.first() {
        Some(2) => PoolSource::LargestToken,
        Some(id) => PoolSource::Token(*id),
        None => PoolSource::Token(49407),
    };
    spec.pooler = Some(PoolSpec { from, norm: None, dense, act: None });
    Ok(spec)
}

fn vision(config: &ModelConfig, dense: Option<(usize, bool)>) -> Result<ModelSpec> {
    let patches = PatchSpec {
        channels: config.size_opt(&["num_channels"])?.unwrap_or(3),
        image: config.size_opt(&["image_size"])?.unwrap_or(224),
        patch: config.size_opt(&["patch_size"])?.unwrap_or(32),
    };
    if patches.patch > patches.image || patches.image > 1 << 14 || patches.channels > 1 << 10 {
        let got = format!("{} of {}", patches.patch, patches.image);
        return Err(Error::config("patch_size", got, "at most the image's side, at most 16384"));
    }
    // Images have no vocabulary; the ids of their rows are not read.
    let mut spec = decoder(&config.with("vocab_size", 1), CLIP_LIKE)?;
    spec.max_positions = patches.count() + 1;
    spec.learn_positions();
    spec.each(|_, b| b.scores.causal = false);
    let norm = spec.final_norm.take();
    (spec.embed.norm, spec.embed.token_types, spec.embed.patches) = (norm, Some(1), Some(patches));
    spec.pooler = Some(PoolSpec { from: PoolSource::First, norm, dense, act: None });
    Ok(spec)
}
