//! Where there is no Vulkan of wgpu's no driver can be asked to contract nothing.

use engraft_shaders::Carrier;

/// There is none.
#[derive(Debug, Clone)]
pub(crate) enum Exact {}

impl Exact {
    /// # Errors
    /// Always.
    pub fn of(_: &wgpu::Adapter, _: wgpu::Features) -> Result<Self, String> {
        Err("the API has no mark for it".into())
    }

    /// There is none to ask.
    pub fn asked(&self) -> String {
        match *self {}
    }

    /// There is none to have a module.
    ///
    /// # Errors
    /// None.
    pub fn module(
        &self,
        _: &wgpu::Device,
        _: (&str, &str),
        _: (usize, Carrier),
        _: bool,
    ) -> Result<wgpu::ShaderModule, String> {
        match *self {}
    }
}
