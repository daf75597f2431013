//! Transformers of diffusion by their class: what they read, and their graphs.

use super::adaptive::TIME_WIDTH;
use super::{Conditions, FluxSpec, PixArtSpec, SanaSpec, Sd3Spec, sinusoids};
use crate::graph::{Graph, Grid, Tensors};
use engraft_core::{Error, Result};
use serde_json::Value as Json;

/// How much larger FLUX's guidance is where it is embedded.
const GUIDANCE: f64 = 1000.0;

/// What `config.json` says, by its class.
#[derive(Debug, Clone)]
pub enum TransformerSpec {
    /// Stable Diffusion 3 and 3.5.
    Sd3(Sd3Spec),
    /// FLUX.1.
    Flux(FluxSpec),
    /// PixArt alpha and sigma.
    PixArt(PixArtSpec),
    /// Sana.
    Sana(SanaSpec),
}

impl TransformerSpec {
    /// The classes that are known.
    pub const CLASSES: [&str; 4] = [
        "SD3Transformer2DModel",
        "FluxTransformer2DModel",
        "PixArtTransformer2DModel",
        "SanaTransformer2DModel",
    ];

    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Config` for a class or what is not known of it, naming the field.
    pub fn new(config: &Json) -> Result<Self> {
        let field = |name: &str| config.get(name).and_then(Json::as_str).unwrap_or("none");
        match field("_class_name") {
            "SD3Transformer2DModel" => Sd3Spec::new(config).map(Self::Sd3),
            "FluxTransformer2DModel" => FluxSpec::new(config).map(Self::Flux),
            "PixArtTransformer2DModel" => PixArtSpec::new(config).map(Self::PixArt),
            "SanaTransformer2DModel" => SanaSpec::new(config).map(Self::Sana),
            // The name in published folders of PixArt, which are older than their class.
            "Transformer2DModel" if field("norm_type") == "ada_norm_single" => {
                PixArtSpec::new(config).map(Self::PixArt)
            }
            other => Err(Error::config("_class_name", other, Self::CLASSES.join(", "))),
        }
    }

    /// Its class.
    pub fn class(&self) -> &'static str {
        let [sd3, flux, pixart, sana] = Self::CLASSES;
        match self {
            Self::Sd3(_) => sd3,
            Self::Flux(_) => flux,
            Self::PixArt(_) => pixart,
            Self::Sana(_) => sana,
        }
    }

    /// Columns of a sample's rows, and of those that come out.
    pub fn channels(&self) -> (usize, usize) {
        match self {
            Self::Sd3(spec) => (spec.in_channels, spec.out_channels),
            Self::Flux(spec) => (spec.in_channels, spec.out_channels()),
            Self::PixArt(spec) => (spec.in_channels, spec.out_channels),
            Self::Sana(spec) => (spec.in_channels, spec.out_channels()),
        }
    }

    /// Columns of a text's rows.
    pub fn text_width(&self) -> usize {
        match self {
            Self::Sd3(spec) => spec.joint_attention_dim,
            Self::Flux(spec) => spec.joint_attention_dim,
            Self::PixArt(spec) => spec.text_width(),
            Self::Sana(spec) => spec.caption_channels,
        }
    }

    /// Columns of a text as one row, where it reads one.
    pub fn pooled_width(&self) -> Option<usize> {
        match self {
            Self::Sd3(spec) => Some(spec.pooled_projection_dim),
            Self::Flux(spec) => Some(spec.pooled_projection_dim),
            Self::PixArt(_) | Self::Sana(_) => None,
        }
    }

    /// Lines and columns of a sample that become one token.
    pub fn patch(&self) -> usize {
        match self {
            Self::Sd3(spec) => spec.patch_size,
            Self::Flux(_) => 1,
            Self::PixArt(spec) => spec.patch_size,
            Self::Sana(spec) => spec.patch_size,
        }
    }

    /// Lines and columns of the latents that it was trained with, where that is known.
    pub fn sample_size(&self) -> Option<usize> {
        match self {
            Self::Sd3(spec) => Some(spec.sample_size),
            Self::Flux(_) => None,
            Self::PixArt(spec) => Some(spec.sample_size),
            Self::Sana(spec) => Some(spec.sample_size),
        }
    }

    /// Whether it reads a scale of guidance.
    pub fn reads_guidance(&self) -> bool {
        match self {
            Self::Flux(spec) => spec.guidance_embeds,
            Self::Sana(spec) => spec.guidance_embeds,
            Self::Sd3(_) | Self::PixArt(_) => false,
        }
    }

    /// By what pipelines multiply a scale of guidance that it reads.
    pub fn guidance_embeds_scale(&self) -> f64 {
        match self {
            Self::Sana(spec) => spec.guidance_embeds_scale,
            Self::Sd3(_) | Self::Flux(_) | Self::PixArt(_) => 1.0,
        }
    }

    /// How much larger guidance is where it is embedded.
    pub(crate) fn guidance_unit(&self) -> f64 {
        if matches!(self, Self::Flux(_)) { GUIDANCE } else { 1.0 }
    }

    /// Whether tokens of a text can be hidden.
    pub fn reads_masks(&self) -> bool {
        matches!(self, Self::PixArt(_) | Self::Sana(_))
    }

    /// Whether it reads the size of the picture.
    pub fn reads_sizes(&self) -> bool {
        matches!(self, Self::PixArt(spec) if spec.reads_sizes())
    }

    /// Times, or other numbers that are embedded as they are.
    pub fn numbers(&self, values: &[f64]) -> Vec<f32> {
        sinusoids(values, TIME_WIDTH, true, 0.0)
    }

    /// Positions of an item's tokens, where they are given.
    pub fn positions(&self, size: Grid) -> Option<Vec<f32>> {
        match self {
            Self::PixArt(spec) => Some(spec.positions(size)),
            Self::Sana(spec) => spec.positions(size),
            Self::Sd3(_) | Self::Flux(_) => None,
        }
    }

    /// The graph for pictures and texts of these sizes.
    ///
    /// # Errors
    /// `Tensor` for those that are missing or have other shapes; `Config` for sizes that it has no tokens
    /// for.
    pub fn graph(&self, tensors: &mut Tensors, at: Conditions) -> Result<Graph> {
        let patch = self.patch();
        for (field, latents) in [("height", at.size.height), ("width", at.size.width)] {
            if latents % patch != 0 {
                return Err(Error::config(
                    field,
                    format!("{latents} latents"),
                    format!("a multiple of {patch}"),
                ));
            }
        }
        match self {
            Self::Sd3(spec) => spec.graph(tensors, at),
            Self::Flux(spec) => spec.graph(tensors, at),
            Self::PixArt(spec) => spec.graph(tensors, at),
            Self::Sana(spec) => spec.graph(tensors, at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pixart_has_an_older_name_and_other_classes_are_named() {
        let of = |class: &str, norm: &str| {
            TransformerSpec::new(&json!({ "_class_name": class, "norm_type": norm, "sample_size": 128 }))
        };
        for class in ["PixArtTransformer2DModel", "Transformer2DModel"] {
            let pixart = of(class, "ada_norm_single");
            assert!(pixart.as_ref().is_ok_and(TransformerSpec::reads_sizes), "{class}");
            assert!(pixart.is_ok_and(|spec| spec.class() == "PixArtTransformer2DModel"), "{class}");
        }
        for class in ["Transformer2DModel", "LuminaNextDiT2DModel"] {
            let error = of(class, "layer_norm").map(|_| ()).map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| error.contains(class)), "{class}");
        }
    }

    #[test]
    fn what_a_configuration_cannot_mean_is_refused_by_its_field() {
        for (class, field, value) in [
            ("SD3Transformer2DModel", "qk_norm", json!("layer_norm")),
            ("SD3Transformer2DModel", "dual_attention_layers", json!([18])),
            ("SD3Transformer2DModel", "patch_size", json!(0)),
            ("SD3Transformer2DModel", "unheard_of", json!(7)),
            ("FluxTransformer2DModel", "axes_dims_rope", json!([16, 56, 55])),
            ("FluxTransformer2DModel", "axes_dims_rope", json!([u64::MAX - 1, 2, 2])),
            ("FluxTransformer2DModel", "patch_size", json!(2)),
            ("PixArtTransformer2DModel", "cross_attention_dim", json!(1)),
            ("PixArtTransformer2DModel", "activation_fn", json!("geglu")),
            ("SanaTransformer2DModel", "qk_norm", json!("layer_norm")),
            ("SanaTransformer2DModel", "timestep_scale", json!(1000.0)),
            ("SanaTransformer2DModel", "interpolation_scale", json!(0)),
            ("SanaTransformer2DModel", "cross_attention_head_dim", json!(113)),
            ("SanaTransformer2DModel", "norm_elementwise_affine", json!(true)),
        ] {
            let error = TransformerSpec::new(&json!({ "_class_name": class, field: value }));
            let error = error.map(|_| ()).map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| error.contains(field)), "{class} {field}");
        }
    }
}
