//! tmp
use super::*;
use crate::Result;
/// t
pub struct Resolved<'a> {
    /// b
    pub binding: Binding,
    /// t
    pub tensors: Vec<&'a TensorInfo>,
}
/// r
pub fn resolve<'a>(
    _p: &dyn InjectionPolicy,
    _s: &ModelSpec,
    _c: &ModelConfig,
    _cat: Catalog<'a>,
) -> Result<Vec<Resolved<'a>>> {
    Ok(vec![])
}
