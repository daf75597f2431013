//! The other ranks of an engine's group.

use super::order::StepOrder;
use crate::Result;
use crate::config::EngineConfig;

/// Hands the engine's orders to the ranks that follow; each carries them out by a
/// [`Runner`](super::Runner) of its own, in order.
pub trait Followers {
    /// Makes their runners; `config` is the engine's checked one.
    ///
    /// # Errors
    /// Those of a [`Runner`](super::Runner) on any rank.
    fn start(&mut self, config: &EngineConfig) -> Result<()>;

    /// Hands over a step before the engine's own rank launches it.
    ///
    /// # Errors
    /// `Comm`, naming a rank that is gone.
    fn order(&mut self, order: &StepOrder) -> Result<()>;

    /// The engine's own rank could not launch a step that was handed over: it is not waited for any more.
    fn fail(&mut self, why: &str);
}
