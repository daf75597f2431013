//! Kernels compiled once per device.

use crate::Wgpu;
use crate::adapter::IN_BROWSER;
use engraft_core::backend::block_on;
use engraft_core::{Error, Result};
use engraft_shaders::{Access, Carrier, Dialect, Kernel};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A compiled kernel.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub kernel: Kernel,
    pub compiled: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
    /// Words of parameters, the leading zero counted.
    pub words: usize,
}

/// The compiled kernels of a device.
#[derive(Debug)]
pub(crate) struct Pipelines {
    pub dialect: Dialect,
    compiled: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
}

impl Pipelines {
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, compiled: Mutex::new(HashMap::new()) }
    }

    /// The pipeline of `kernel`, compiled when first asked for.
    ///
    /// # Errors
    /// `Unsupported` naming the kernel when the driver does not take it.
    pub fn get(&self, gpu: &Wgpu, kernel: Kernel) -> Result<Arc<Pipeline>> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = compiled.get(&kernel) {
            return Ok(found.clone());
        }
        let pipeline = Arc::new(compile(gpu, kernel, self.dialect)?);
        compiled.insert(kernel, pipeline.clone());
        Ok(pipeline)
    }
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

fn compile(gpu: &Wgpu, kernel: Kernel, dialect: Dialect) -> Result<Pipeline> {
    let text = engraft_shaders::source(&kernel, dialect)
        .map_err(|e| Error::internal(format!("shader {}: {e}", kernel.label())))?;
    compile_text(gpu, kernel, dialect.carrier, text)
}

/// The error for a kernel that something on the way to the device refuses.
fn refused(gpu: &Wgpu, label: &str, reason: String) -> Error {
    let backend = engraft_core::backend::Backend::name(gpu).to_string();
    Error::Unsupported { op: format!("shader {label}"), backend, reason }
}

fn compile_text(gpu: &Wgpu, kernel: Kernel, carrier: Carrier, text: String) -> Result<Pipeline> {
    let (label, device) = (kernel.label(), &gpu.device);
    // The front end complains as validation, a driver as an internal error. In browsers `faults` hears of both, later.
    let scopes = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation]
        .map(|filter| (!IN_BROWSER).then(|| device.push_error_scope(filter)));
    let entries: Vec<_> = kernel
        .bindings()
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
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: Some(&label),
        entries: &entries,
    });
    let words = kernel.fields().len() + 1;
    let arena = (carrier == Carrier::Uniform).then(|| arena_layout(device));
    let groups: &[_] = if arena.is_some() { &[Some(&layout), arena.as_ref()] } else { &[Some(&layout)] };
    let whole = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(&label),
        bind_group_layouts: groups,
        immediate_size: if carrier == Carrier::Immediate { 4 * words as u32 } else { 0 },
    });
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
        cache: None,
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
    gpu.tally.count(|c| c.made += 1);
    tracing::debug!(label, "compiled");
    Ok(Pipeline { kernel, compiled, layout, words })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use crate::command::{Call, Slot};
    use crate::{Wgpu, WgpuConfig, WgpuStream};
    use engraft_core::backend::{Backend, Stream};
    use engraft_shaders::{Kernel, Reduce};
    use std::time::Instant;

    /// One kernel of every kind, in f32: drivers compile when a kernel first runs, here with nothing to do.
    #[test]
    fn kernels_run_with_nothing_to_do() {
        let config = WgpuConfig { software: true, ..WgpuConfig::default() };
        let with_subgroups = WgpuConfig { reduce: Some(Reduce::Subgroups), ..config.clone() };
        let gpu = match Wgpu::new(with_subgroups).or_else(|_| Wgpu::new(config)) {
            Ok(gpu) => gpu,
            Err(e) => {
                let required = std::env::var("ENGRAFT_REQUIRE").unwrap_or_default();
                assert!(!required.contains("wgpu"), "{e}");
                println!("skipped: {e}");
                return;
            }
        };
        let subgroups = gpu.select.subgroups();
        let mut stream = WgpuStream::new(gpu.clone()).unwrap();
        let buffers: Vec<_> = (0..8).map(|_| gpu.alloc(1024).unwrap()).collect();
        // Other packings differ in their decoders alone, which whole products test; `linear` compiles slowly.
        let left_out = [
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
        let f32_only =
            |k: &Kernel| (subgroups || !k.subgroups()) && !left_out.iter().any(|t| k.label().contains(t));
        for kernel in Kernel::all(1).into_iter().filter(f32_only) {
            let start = Instant::now();
            let slots: Vec<_> = buffers[..kernel.bindings().len()]
                .iter()
                .map(|b| Slot::whole(&gpu.limits, b, "a test").unwrap())
                .collect();
            let words = vec![0; kernel.fields().len()];
            stream.run(&Call { kernel, slots: &slots, words: &words, grid: [1, 1, 1] }).unwrap();
            stream.sync().unwrap();
            println!("{:>8.0} ms {}", start.elapsed().as_secs_f64() * 1e3, kernel.label());
        }
    }
    #[test]
    fn a_shader_that_is_refused_is_named() {
        let required = std::env::var("ENGRAFT_REQUIRE").unwrap_or_default();
        let Ok(gpu) = Wgpu::new(WgpuConfig { software: true, ..WgpuConfig::default() }) else {
            assert!(!required.contains("wgpu"), "no adapter");
            println!("skipped: no adapter on this machine");
            return;
        };
        let kernel = Kernel::all(1)[0];
        let broken = "@compute @workgroup_size(1) fn main() { nothing(); }".to_string();
        let text =
            super::compile_text(&gpu, kernel, gpu.pipelines.dialect.carrier, broken).unwrap_err().to_string();
        assert!(text.contains(&kernel.label()) && text.contains("nothing"), "{text}");
        // The device goes on.
        let mut stream = WgpuStream::new(gpu.clone()).unwrap();
        stream.sync().unwrap();
    }
}
