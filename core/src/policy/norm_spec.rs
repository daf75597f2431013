//! A norm, as models have it.

use crate::params::NormKind;

/// A norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Which.
    pub kind: NormKind,
    /// Epsilon.
    pub eps: f32,
    /// Whether it has a bias.
    pub bias: bool,
    /// Whether its weight is stored minus one (Gemma).
    pub plus_one: bool,
    /// Whether it has a weight; without one it multiplies by one (OLMo).
    pub weighted: bool,
}
