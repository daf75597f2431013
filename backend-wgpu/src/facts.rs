//! What adapters say of themselves before they are opened: for reports.

use crate::adapter::{Listed, sorted};
use crate::limits;
use engraft_core::Result;
use engraft_core::backend::block_on;

/// An adapter and what it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterFacts {
    /// Name, kind, API, what shaders may use.
    pub listed: Listed,
    /// Of PCI, or a number of the API's own.
    pub vendor: u32,
    /// The vendor's number of the device.
    pub device: u32,
    /// The driver's name.
    pub driver: String,
    /// Its version, as it writes it.
    pub driver_version: String,
    /// All features, by wgpu's names.
    pub features: Vec<&'static str>,
    /// The limits that the engine reads.
    pub limits: Vec<(&'static str, u64)>,
}

/// Every adapter of this machine, in the order of [`list`](crate::list).
///
/// # Errors
/// As [`list`](crate::list).
pub fn facts() -> Result<Vec<AdapterFacts>> {
    let all = block_on(async { Ok(sorted(false).await) })?;
    Ok(all.into_iter().map(|(listed, adapter)| of(listed, &adapter)).collect())
}

fn of(listed: Listed, adapter: &wgpu::Adapter) -> AdapterFacts {
    let info = adapter.get_info();
    AdapterFacts {
        listed,
        vendor: info.vendor,
        device: info.device,
        driver: info.driver,
        driver_version: info.driver_info,
        features: adapter.features().iter_names().map(|(name, _)| name).collect(),
        limits: limits::named(&adapter.limits()).into(),
    }
}
