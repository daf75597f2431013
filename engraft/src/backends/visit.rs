//! What is done with a backend once its type is known, and what is measured of it.

use engraft_core::Result;
use engraft_core::backend::Backend;
use std::sync::Arc;

/// Code that runs with any backend.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::backends::{BackendName, Visitor, with_backend};
/// use engraft::engraft_core::backend::Backend;
/// use std::sync::Arc;
///
/// struct Device;
///
/// impl Visitor for Device {
///     type Output = String;
///
///     fn visit<B: Backend>(self, backend: Arc<B>) -> engraft::Result<String> {
///         Ok(backend.caps().device.clone())
///     }
/// }
///
/// println!("{}", with_backend(&BackendName::Cpu, 1, Device)?);
/// # Ok(())
/// # }
/// ```
pub trait Visitor {
    /// What it gives back.
    type Output;
    /// Runs with `backend`.
    ///
    /// # Errors
    /// Its own.
    fn visit<B: Backend>(self, backend: Arc<B>) -> Result<Self::Output>;
}

/// What a device can do at most.
///
/// [`measure_limits`](super::measure_limits) takes them.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Limits {
    /// 10^9 bytes of memory read per second.
    pub read_gbs: f64,
    /// 10^9 floating-point operations per second; a multiply-add counts as two.
    pub fma_gflops: f64,
}
