//! A step that was captured, or the reason why it was not.

use crate::backend::{Backend, Stream};
use crate::{Error, Result};

/// What capturing a step gave. Where it fails, the reason is kept, and the step runs op by op.
pub struct Captured<B: Backend> {
    graph: Option<B::Graph>,
    refused: Option<String>,
}

impl<B: Backend> Default for Captured<B> {
    fn default() -> Self {
        Self { graph: None, refused: None }
    }
}

impl<B: Backend> Captured<B> {
    /// Whether nothing was tried yet.
    pub fn is_untried(&self) -> bool {
        self.graph.is_none() && self.refused.is_none()
    }

    /// Whether there is something to replay.
    pub fn is_captured(&self) -> bool {
        self.graph.is_some()
    }

    /// Why there is not, once that was tried in vain.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Takes in what capturing gave; `what` names the step for the log.
    ///
    /// # Errors
    /// `DeviceLost` alone: any other failure is kept as the reason why this step runs op by op.
    pub fn keep(&mut self, captured: Result<B::Graph>, what: impl FnOnce() -> String) -> Result<()> {
        match captured {
            Ok(graph) => self.graph = Some(graph),
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
            Err(e) => {
                tracing::warn!("{} cannot be captured and runs op by op: {e}", what());
                self.refused = Some(e.to_string());
            }
        }
        Ok(())
    }

    /// Replays the captured step; false where there is none.
    ///
    /// # Safety
    /// What was touched while capturing is alive and at the same address.
    pub unsafe fn replay(&self, stream: &mut B::Stream) -> Result<bool> {
        let Some(graph) = &self.graph else { return Ok(false) };
        // SAFETY: the caller's promise.
        unsafe { stream.replay(graph)? };
        Ok(true)
    }
}
