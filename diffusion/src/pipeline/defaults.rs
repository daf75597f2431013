//! What a pipeline takes where a request does not say, and whether a run is guided.

use super::request::ImageRequest;

/// What guides a run away from what is not to be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuidedBy {
    /// [`ImageRequest::guidance`] above 1.
    Guidance,
    /// [`ImageRequest::true_guidance`] above 1, next to a negative prompt: FLUX, which reads `guidance`.
    TrueGuidance,
    /// Nothing: distilled models read `guidance`, and no negative prompt.
    Nothing,
}

/// What a pipeline takes where a request does not say.
///
/// ```
/// use engraft_diffusion::{Defaults, GuidedBy, ImageRequest};
///
/// let own = Defaults { steps: 50, guidance: 7.5, guided_by: GuidedBy::Guidance };
/// let plain = ImageRequest { negative: Some(vec!["fog".into()]), ..ImageRequest::new("a fox") };
/// assert_eq!((own.scale(&plain), own.unused(&plain)), (Some(7.5), vec![]));
/// let without = ImageRequest { guidance: Some(1.0), ..plain };
/// assert_eq!((own.scale(&without), own.unused(&without)), (None, vec!["negative_prompt"]));
/// // FLUX is guided where both are given.
/// let flux = Defaults { guided_by: GuidedBy::TrueGuidance, ..own };
/// let alone = ImageRequest { true_guidance: Some(4.0), ..ImageRequest::new("a fox") };
/// assert_eq!((flux.scale(&alone), flux.unused(&alone)), (None, vec!["true_guidance"]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    /// Steps of the scheduler.
    pub steps: usize,
    /// Scale of guidance by the prompt.
    pub guidance: f64,
    /// What guides a run.
    pub guided_by: GuidedBy,
}

impl Defaults {
    /// The scale by which a run is guided away from what is not to be seen; none without guidance.
    pub fn scale(&self, request: &ImageRequest) -> Option<f64> {
        let scale = match self.guided_by {
            GuidedBy::Guidance => request.guidance.unwrap_or(self.guidance),
            GuidedBy::TrueGuidance => request.negative.as_ref().and(request.true_guidance)?,
            GuidedBy::Nothing => return None,
        };
        (scale > 1.0).then_some(scale)
    }

    /// Fields of a request that count for nothing, since there is no guidance.
    pub fn unused(&self, request: &ImageRequest) -> Vec<&'static str> {
        request.unused(self.scale(request).is_some())
    }
}
