//! Pipelines with a transformer by their class: what each reads, and what it takes where a request does not
//! say.

use super::defaults::GuidedBy;
use super::lora::Spelled;

/// What a pipeline does with its texts and samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Stable Diffusion 3 and 3.5.
    Sd3,
    /// FLUX.1.
    Flux,
    /// FLUX.1 Fill, whose transformer reads a mask and a picture next to its sample.
    FluxFill,
    /// PixArt, with this many tokens of a text where none is said.
    PixArt(usize),
    /// Sana.
    Sana,
    /// Sana Sprint, whose transformer reads its guidance and whose steps are angles.
    SanaSprint,
}

impl Kind {
    /// The classes that are known.
    pub const CLASSES: [(&str, Kind); 11] = [
        ("StableDiffusion3Pipeline", Kind::Sd3),
        ("StableDiffusion3Img2ImgPipeline", Kind::Sd3),
        ("StableDiffusion3InpaintPipeline", Kind::Sd3),
        ("FluxPipeline", Kind::Flux),
        ("FluxImg2ImgPipeline", Kind::Flux),
        ("FluxInpaintPipeline", Kind::Flux),
        ("FluxFillPipeline", Kind::FluxFill),
        ("PixArtAlphaPipeline", Kind::PixArt(120)),
        ("PixArtSigmaPipeline", Kind::PixArt(300)),
        ("SanaPipeline", Kind::Sana),
        ("SanaSprintPipeline", Kind::SanaSprint),
    ];

    /// That of a class.
    pub fn of(class: &str) -> Option<Self> {
        Self::CLASSES.into_iter().find(|(known, _)| *known == class).map(|(_, kind)| kind)
    }

    /// Text encoders, of which so many have to be there.
    pub fn encoders(self) -> (usize, usize) {
        match self {
            Kind::Sd3 => (3, 2),
            Kind::Flux | Kind::FluxFill => (2, 2),
            Kind::PixArt(_) | Kind::Sana | Kind::SanaSprint => (1, 1),
        }
    }

    /// The class of its transformer.
    pub fn transformer(self) -> &'static str {
        match self {
            Kind::Sd3 => "SD3Transformer2DModel",
            Kind::Flux | Kind::FluxFill => "FluxTransformer2DModel",
            Kind::PixArt(_) => "PixArtTransformer2DModel",
            Kind::Sana | Kind::SanaSprint => "SanaTransformer2DModel",
        }
    }

    /// Whether the four latents of a square are one row of its samples.
    pub fn is_packed(self) -> bool {
        matches!(self, Kind::Flux | Kind::FluxFill)
    }

    /// Whether its texts are those of Sana.
    pub fn is_sana(self) -> bool {
        matches!(self, Kind::Sana | Kind::SanaSprint)
    }

    /// Whether the reference has such a pipeline that begins with a picture.
    pub fn reads_pictures(self) -> bool {
        matches!(self, Kind::Sd3 | Kind::Flux | Kind::FluxFill)
    }

    /// Columns of a sample's row, and of what is read next to it, for latents of so many channels that have
    /// `factor` pixels along a line.
    pub fn columns(self, channels: usize, factor: usize) -> (usize, usize) {
        let own = if self.is_packed() { channels.saturating_mul(4) } else { channels };
        let pixels = factor.saturating_mul(factor).saturating_mul(4);
        (own, if self == Kind::FluxFill { own.saturating_add(pixels) } else { 0 })
    }

    /// The components that LoRA files have one name for; none where the reference reads no such files.
    pub fn spelled(self) -> Option<Spelled> {
        let t5 = match self {
            Kind::Sd3 => "text_encoder_3",
            Kind::Flux | Kind::FluxFill => "text_encoder_2",
            // A Gemma, which kohya's files have no name for.
            Kind::Sana | Kind::SanaSprint => "T5",
            Kind::PixArt(_) => return None,
        };
        Some(Spelled { model: "transformer", t5 })
    }

    /// Steps, scale of guidance and tokens of a text where none are said.
    pub fn defaults(self) -> (usize, f64, usize) {
        match self {
            Kind::Sd3 => (28, 7.0, 256),
            Kind::Flux => (28, 3.5, 512),
            Kind::FluxFill => (50, 30.0, 512),
            Kind::PixArt(tokens) => (20, 4.5, tokens),
            Kind::Sana => (20, 4.5, 300),
            Kind::SanaSprint => (2, 4.5, 300),
        }
    }

    /// What guides its runs. FLUX reads its guidance, and has another one where there is a negative prompt.
    pub fn guided_by(self) -> GuidedBy {
        match self {
            Kind::Flux => GuidedBy::TrueGuidance,
            Kind::FluxFill | Kind::SanaSprint => GuidedBy::Nothing,
            Kind::Sd3 | Kind::PixArt(_) | Kind::Sana => GuidedBy::Guidance,
        }
    }
}
