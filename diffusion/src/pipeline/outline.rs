//! What is known of a pipeline before a weight is read.

use super::angles::check_scheduler;
use super::defaults::Defaults;
use super::request::ImageRequest;
use engraft_core::Result;
use engraft_image::SchedulerConfig;

/// What a pipeline's files say of it before a weight is read.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Outline {
    /// Sizes of pictures are multiples of this: the pixels of a latent, or of a token, along a line.
    pub factor: usize,
    /// The side of the pictures that it was trained with, where its files say so.
    pub side: Option<usize>,
    /// The scheduler that runs take unless they name another.
    pub scheduler: SchedulerConfig,
    /// What runs take where a request does not say.
    pub defaults: Defaults,
    /// Whether steps are angles.
    pub(super) by_angles: bool,
}

impl Outline {
    /// Refuses sizes that the pipeline has no pictures of, pictures that are given in another size, and a
    /// scheduler that it has no steps of.
    ///
    /// # Errors
    /// `Config`, naming the field.
    pub fn check(&self, request: &ImageRequest) -> Result<()> {
        request.check(self.factor)?;
        check_scheduler(request.scheduler.as_ref().unwrap_or(&self.scheduler), self.by_angles)
    }
}

/// Looks at the outline of a pipeline that is about to be loaded; an error ends that.
pub(super) type Ahead<'a> = &'a mut dyn FnMut(&Outline) -> Result<()>;
