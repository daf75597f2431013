//! A compiled kernel, and how one is compiled.

use crate::adapter::IN_BROWSER;
use crate::cache::Cache;
use crate::device::Gpu;
use engraft_core::backend::block_on;
use engraft_core::{Error, Result};
use engraft_shaders::{Access, Carrier, Dialect, Kernel, Source};

/// A compiled kernel.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub kernel: Kernel,
    pub compiled: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
    /// Storage bindings.
    pub bindings: Vec<Access>,
    /// Words of parameters, the leading zero counted.
    pub words: usize,
    /// The word that says which slice of the workgroups a dispatch has, where there is one.
    pub slice: Option<usize>,
}

/// Layout of the group that holds the uniform arena.
pub(crate) fn arena_layout(device: &wgpu::Device) -> wgpu::BindGroupLayout {
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: Some("parameters"),
        entries: &[wgpu::BindGroupLayoutEntry {
            binding: 0,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Uniform,
                has_dynamic_offset: true,
                min_binding_size: None,
            },
            count: None,
        }],
    })
}

/// The kernel's text and what a dispatch of it brings.
///
/// # Errors
/// `Internal` for a template that cannot be rendered.
pub(crate) fn rendered(kernel: &Kernel, dialect: Dialect) -> Result<Source> {
    engraft_shaders::source(kernel, dialect).map_err(|e| Error::internal(e.to_string()))
}

/// The error for a kernel that something on the way to the device refuses.
fn refused(gpu: &Gpu, label: &str, reason: String) -> Error {
    Error::Unsupported { op: format!("shader {label}"), backend: gpu.name.clone(), reason }
}

/// The layout of a kernel's storage bindings.
fn storage_layout(device: &wgpu::Device, label: &str, bindings: &[Access]) -> wgpu::BindGroupLayout {
    let entries: Vec<_> = bindings
        .iter()
        .enumerate()
        .map(|(i, access)| wgpu::BindGroupLayoutEntry {
            binding: i as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: *access == Access::Read },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect();
    device
        .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(label), entries: &entries })
}

/// Compiles a text, with `cache` by what it has.
///
/// # Errors
/// `Unsupported` naming the kernel when the driver does not take it.
pub(crate) fn compile(
    gpu: &Gpu,
    cache: Option<&Cache>,
    (kernel, carrier): (Kernel, Carrier),
    source: Source,
) -> Result<Pipeline> {
    let (label, device) = (kernel.label(), &gpu.device);
    let Source { text, bindings, words, slice } = source;
    // The front end complains as validation, a driver as an internal error. In browsers `faults` gets
    // both, later.
    let scopes = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation]
        .map(|filter| (!IN_BROWSER).then(|| device.push_error_scope(filter)));
    let layout = storage_layout(device, &label, &bindings);
    let arena = (carrier == Carrier::Uniform).then(|| arena_layout(device));
    let groups: &[_] = if arena.is_some() { &[Some(&layout), arena.as_ref()] } else { &[Some(&layout)] };
    let whole = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(&label),
        bind_group_layouts: groups,
        immediate_size: if carrier == Carrier::Immediate { 4 * words as u32 } else { 0 },
    });
    // Checked: every access is kept inside its binding by the shader itself, whatever the data say.
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some(&label),
        source: wgpu::ShaderSource::Wgsl(text.into()),
    });
    let compiled = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(&label),
        layout: Some(&whole),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: cache.map(|cache| &cache.pipelines),
    });
    let mut found = None;
    for scope in scopes.into_iter().rev().flatten() {
        found = found.or(block_on(async { Ok(scope.pop().await) })?);
    }
    if let Some(e) = found {
        return Err(refused(gpu, &label, e.to_string()));
    }
    gpu.faults.check().map_err(|e| match e {
        Error::DeviceLost { .. } | Error::OutOfMemory { .. } => e,
        other => refused(gpu, &label, other.to_string()),
    })?;
    gpu.tally.count(|c| (c.made, c.compiled) = (c.made + 1, c.compiled + 1));
    if let Some(cache) = cache {
        cache.grew();
    }
    tracing::debug!(label, "compiled");
    Ok(Pipeline { kernel, compiled, layout, bindings, words, slice })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::compile;
    use crate::command::{Call, Slot};
    use crate::tests::opened;
    use crate::{Wgpu, WgpuConfig, WgpuStream};
    use engraft_core::backend::Stream;
    use engraft_shaders::{Elem, Kernel, Reduce, Source, source};
    use std::time::Instant;

    /// Other packings differ in their decoders alone, which whole matmuls test; `linear` compiles slowly.
    const LEFT_OUT: [&str; 12] = [
        "f16",
        "q2",
        "q3",
        "q4",
        "q5",
        "q6",
        "q8",
        "w8a8",
        "_x8",
        "_x4_s",
        "gated_linear_act",
        "c1_subgroups",
    ];

    /// One kernel of every kind, in f32: drivers compile when a kernel first runs, here with nothing to do.
    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn kernels_run_with_nothing_to_do() {
        let with_subgroups =
            WgpuConfig { software: true, reduce: Some(Reduce::Subgroups), ..WgpuConfig::default() };
        let gpu = Wgpu::new(with_subgroups).unwrap_or_else(|_| opened());
        let subgroups = gpu.select.subgroups();
        let mut stream = WgpuStream::new(gpu.clone());
        let buffers: Vec<_> = (0..8).map(|_| gpu.gpu.alloc("a test", 1024).unwrap()).collect();
        let f32_only =
            |k: &Kernel| (subgroups || !k.subgroups()) && !LEFT_OUT.iter().any(|t| k.label().contains(t));
        for kernel in Kernel::all(1).into_iter().filter(f32_only) {
            let start = Instant::now();
            let said = source(&kernel, gpu.pipelines.dialect).unwrap();
            let slots: Vec<_> = buffers[..said.bindings.len()]
                .iter()
                .map(|b| Slot::whole(gpu.limits(), b, "a test").unwrap())
                .collect();
            let words = vec![0; said.words - 1];
            stream.call(&Call { kernel, slots: &slots, words: &words, grid: [1, 1, 1] }).unwrap();
            stream.sync().unwrap();
            println!("{:>8.0} ms {}", start.elapsed().as_secs_f64() * 1e3, kernel.label());
        }
    }

    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn a_shader_that_is_refused_is_named() {
        let gpu = opened();
        let kernel = Kernel::Sample;
        let text = "@compute @workgroup_size(1) fn main() { nothing(); }".to_string();
        let broken = Source { text, bindings: Vec::new(), words: 1, slice: None };
        let refused = compile(&gpu.gpu, None, (kernel, gpu.pipelines.dialect.carrier), broken);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(&kernel.label()) && text.contains("nothing"), "{text}");
        // The device goes on.
        let mut stream = WgpuStream::new(gpu.clone());
        stream.sync().unwrap();
    }

    /// A call that brings other parameters or bindings than its template has is refused, not run.
    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn a_call_that_does_not_fit_its_template_is_refused() {
        let gpu = opened();
        let mut stream = WgpuStream::new(gpu.clone());
        let mem = gpu.gpu.alloc("a test", 64).unwrap();
        let slot = Slot::whole(gpu.limits(), &mem, "a test").unwrap();
        let kernel = Kernel::Rows("scatter", Elem::F32);
        for (slots, words) in [(&[slot][..], &[0; 4][..]), (&[slot; 2], &[0; 3])] {
            let refused = stream.call(&Call { kernel, slots, words, grid: [1, 1, 1] }).unwrap_err();
            assert!(refused.to_string().contains("rows_scatter_f32"), "{refused}");
        }
    }
}
