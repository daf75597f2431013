//! What a device allows, as far as it matters here.

use crate::adapter::IN_BROWSER;
use engraft_core::{Error, Result};

/// Mebibytes.
pub(crate) const MIB: u64 = 1 << 20;

/// Limits of an opened device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes that one storage binding may span.
    pub binding: u64,
    /// Bytes of one buffer.
    pub buffer: u64,
    /// Workgroups in one dimension of a dispatch.
    pub groups: u32,
}

impl From<&wgpu::Limits> for Limits {
    fn from(have: &wgpu::Limits) -> Self {
        Self {
            binding: have.max_storage_buffer_binding_size,
            buffer: have.max_buffer_size,
            groups: have.max_compute_workgroups_per_dimension,
        }
    }
}

/// Where a device writes its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Between any two commands.
    Commands,
    /// Where passes begin and end.
    Passes,
    /// Nowhere that this backend can read.
    Nowhere,
}

impl Way {
    /// Of a device with these features. Pages cannot wait for what was written.
    pub fn of(features: wgpu::Features) -> Self {
        let has = |feature| features.contains(feature);
        match has(wgpu::Features::TIMESTAMP_QUERY) && !IN_BROWSER {
            true if has(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS) => Self::Commands,
            true => Self::Passes,
            false => Self::Nowhere,
        }
    }
}

/// The limits of an adapter that the engine reads, by the names of WebGPU.
pub(crate) fn named(have: &wgpu::Limits) -> [(&'static str, u64); 8] {
    [
        ("max_compute_invocations_per_workgroup", have.max_compute_invocations_per_workgroup.into()),
        ("max_compute_workgroup_size_x", have.max_compute_workgroup_size_x.into()),
        ("max_compute_workgroup_storage_size", have.max_compute_workgroup_storage_size.into()),
        ("max_compute_workgroups_per_dimension", have.max_compute_workgroups_per_dimension.into()),
        ("max_storage_buffers_per_shader_stage", have.max_storage_buffers_per_shader_stage.into()),
        ("max_storage_buffer_binding_size", have.max_storage_buffer_binding_size),
        ("max_buffer_size", have.max_buffer_size),
        ("max_immediate_size", have.max_immediate_size.into()),
    ]
}

/// Kernels are written for the least that WebGPU promises; anything below is refused by name.
///
/// # Errors
/// `Unsupported` naming the limit.
pub(crate) fn check(adapter: &str, have: &wgpu::Limits) -> Result<()> {
    let needs = [
        ("max_compute_invocations_per_workgroup", u64::from(have.max_compute_invocations_per_workgroup), 256),
        ("max_compute_workgroup_size_x", u64::from(have.max_compute_workgroup_size_x), 256),
        ("max_compute_workgroup_storage_size", u64::from(have.max_compute_workgroup_storage_size), 16 << 10),
        ("max_storage_buffers_per_shader_stage", u64::from(have.max_storage_buffers_per_shader_stage), 8),
        ("max_storage_buffer_binding_size", have.max_storage_buffer_binding_size, 16 * MIB),
    ];
    for (limit, got, want) in needs {
        if got < want {
            return Err(Error::Unsupported {
                op: "opening an adapter".into(),
                backend: format!("wgpu:{adapter}"),
                reason: format!("{limit} is {got}, at least {want} is needed"),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_read_where_it_is_written() {
        use wgpu::Features;
        let within = Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
        let ways = [Features::empty(), within, Features::TIMESTAMP_QUERY, Features::TIMESTAMP_QUERY | within];
        assert_eq!(ways.map(Way::of), [Way::Nowhere, Way::Nowhere, Way::Passes, Way::Commands]);
    }

    #[test]
    fn an_adapter_that_is_too_small_is_refused_by_its_limit() {
        let have = wgpu::Limits { max_compute_workgroup_storage_size: 8 << 10, ..wgpu::Limits::defaults() };
        let text = check("tiny", &have).unwrap_err().to_string();
        assert!(text.contains("max_compute_workgroup_storage_size is 8192"), "{text}");
        assert!(check("tiny", &wgpu::Limits::defaults()).is_ok());
    }
}
