//! A compiled kernel, and how one is compiled.

use crate::adapter::IN_BROWSER;
use crate::cache::Cache;
use crate::device::Gpu;
use engraft_core::backend::block_on;
use engraft_core::{Error, Result};
use engraft_shaders::{Access, Carrier, Dialect, Kernel, Source};
use std::sync::PoisonError;

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
    /// Whether the driver is asked to contract no product and no sum of it.
    pub exact: bool,
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

/// A shader whose accesses stay inside their bindings, whatever the data say: naga writes a check where an
/// API has none of its own. Loops are counted in builds with debug assertions alone: all of them end. With
/// it comes whether its products and sums are marked.
fn module(
    gpu: &Gpu,
    label: &str,
    text: &str,
    of: (usize, Carrier),
    marked: bool,
) -> (wgpu::ShaderModule, bool) {
    if let Ok(exact) = &gpu.exact
        && marked
    {
        match exact.module(&gpu.device, (label, text), of, gpu.bounds_loops) {
            Ok(module) => return (module, true),
            Err(why) => tracing::warn!("{}: {label} may be contracted: {why}", gpu.name),
        }
    }
    let checks = wgpu::ShaderRuntimeChecks {
        force_loop_bounding: gpu.bounds_loops,
        ..wgpu::ShaderRuntimeChecks::checked()
    };
    let (label, source) = (Some(label), wgpu::ShaderSource::Wgsl(text.to_string().into()));
    // SAFETY: what is left out alone is the bound of loops, and every loop of a template ends: a test reads
    // them (`every_loop_ends`).
    let module = unsafe {
        gpu.device.create_shader_module_trusted(wgpu::ShaderModuleDescriptor { label, source }, checks)
    };
    (module, false)
}

/// Compiles a text, with `cache` by what it has: as a marked module where the driver can be asked, and where
/// it refuses that one as wgpu makes one.
///
/// # Errors
/// `Unsupported` naming the kernel when the driver does not take it.
pub(crate) fn compile(
    gpu: &Gpu,
    cache: Option<&Cache>,
    of: (Kernel, Carrier),
    source: Source,
) -> Result<Pipeline> {
    // What measures multiply-adds may contract them.
    let marked = gpu.exact.is_ok() && !matches!(of.0, Kernel::Limit(_));
    let made = attempt(gpu, cache, of, &source, marked);
    let Err(Error::Unsupported { reason, .. }) = &made else { return made };
    if !marked {
        return made;
    }
    let unmarked = attempt(gpu, cache, of, &source, false)?;
    let label = of.0.label();
    tracing::warn!("{}: {label} may be contracted: the driver refuses it otherwise: {reason}", gpu.name);
    gpu.unmarked.lock().unwrap_or_else(PoisonError::into_inner).push((label, reason.clone()));
    Ok(unmarked)
}

/// The same, with its products and sums marked or not.
fn attempt(
    gpu: &Gpu,
    cache: Option<&Cache>,
    (kernel, carrier): (Kernel, Carrier),
    Source { text, bindings, words, slice }: &Source,
    marked: bool,
) -> Result<Pipeline> {
    let (label, device) = (kernel.label(), &gpu.device);
    // The front end complains as validation, a driver as an internal error. In browsers `faults` gets
    // both, later.
    let scopes = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation]
        .map(|filter| (!IN_BROWSER).then(|| device.push_error_scope(filter)));
    let layout = storage_layout(device, &label, bindings);
    let arena = (carrier == Carrier::Uniform).then(|| arena_layout(device));
    let groups: &[_] = if arena.is_some() { &[Some(&layout), arena.as_ref()] } else { &[Some(&layout)] };
    let whole = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(&label),
        bind_group_layouts: groups,
        immediate_size: if carrier == Carrier::Immediate { 4 * *words as u32 } else { 0 },
    });
    let (module, exact) = module(gpu, &label, text, (bindings.len(), carrier), marked);
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
    #[cfg(test)]
    if exact && gpu.refuses_marked == Some(kernel) {
        return Err(refused(gpu, &label, "a driver of a test takes no marks".into()));
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
    let (bindings, words, slice) = (bindings.clone(), *words, *slice);
    Ok(Pipeline { kernel, compiled, layout, bindings, words, slice, exact })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::{compile, rendered};
    use crate::command::{Call, Slot};
    use crate::tests::opened;
    use crate::trial::Trial;
    use crate::{Wgpu, WgpuConfig, WgpuStream, twins};
    use engraft_core::backend::Stream;
    use engraft_shaders::{Carrier, Dialect, Elem, Kernel, Norm, Packing, Reduce, Source, source};
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

    /// How far a counter goes in a round: never by nothing. Numbers of workgroups, slices and chunks are 1 at
    /// least, as are invocations of a measurement.
    const STEPS: [&str; 15] = [
        "1u",
        "8u",
        "64u",
        "256u",
        "groups.x",
        "groups.y",
        "groups.x * 64u",
        "groups.x * BINS",
        "groups.x * 256u",
        "groups.x * slice_step(0u)",
        "groups.y * slice_step(1u)",
        "across * 64u",
        "tile_step",
        "token_step",
        "CHUNK",
    ];

    /// Other loops: the counter of a measurement; those that halve or double a counter; searches that halve
    /// what is left, and walks, of which each round moves on by one row, key, bin or unit at least.
    const OTHERS: [&str; 9] = [
        "for (var i = id.x; i < p.count; i += p.invocations) {",
        "for (var bit = 4u; bit > 0u; bit = bit >> 1u) {",
        "for (var span = 128u; span > 0u; span = span >> 1u) {",
        "for (var reach = 1u; reach < 256u; reach = reach * 2u) {",
        "while (lo + 1u < hi) {",
        "while (item + 1u < beyond) {",
        "while (bin > 0u && above + atomicLoad(&bins[bin]) < left) {",
        "while (token < tile_end) {",
        "while (k < to_k) {",
    ];

    /// The variable that a header counts up to a bound; none where it does another thing.
    fn counted(header: &str) -> Option<&str> {
        let inside = header.strip_prefix("for (")?.strip_suffix(") {")?;
        let parts: Vec<&str> = inside.split(';').map(str::trim).collect();
        let [_, until, step] = parts[..] else { return None };
        let (counter, by) = step.split_once(" += ")?;
        let bounded = until.split(" && ").any(|part| {
            let (left, _) = part.split_once(" < ").or_else(|| part.split_once(" <= ")).unwrap_or_default();
            left.split([' ', '+', '*']).any(|word| word == counter)
        });
        (bounded && STEPS.contains(&by)).then_some(counter)
    }

    /// What `module` relies on. A counter is a counter where nothing else writes it.
    #[test]
    fn every_loop_ends() {
        let mut headers = std::collections::BTreeSet::new();
        let (mut stems, mut kernels) = (std::collections::HashSet::new(), 0);
        for kernel in Kernel::all(1) {
            // One of each stem and way of sums: types and packings change what stands in loops.
            let label = kernel.label();
            let sort = format!("{} {:?}", label.split('_').take(3).collect::<String>(), kernel.subgroups());
            if !stems.insert(sort) {
                continue;
            }
            kernels += 1;
            let dialect = Dialect { carrier: Carrier::Immediate, f16: true, dot: true, strict: false };
            let text = rendered(&kernel, dialect).unwrap().text;
            assert!(!text.contains("loop {") && !text.contains("loop{"), "{label}");
            for line in text.lines().map(str::trim).filter(|l| l.contains("for (") || l.contains("while (")) {
                let known = OTHERS.contains(&line);
                match counted(line) {
                    Some(counter) => {
                        let writes = [" = ", " -= ", " *= ", " /= "].map(|how| format!("{counter}{how}"));
                        let other = text
                            .lines()
                            .map(str::trim)
                            .find(|l| writes.iter().any(|write| l.starts_with(write.as_str())) && !known);
                        assert_eq!(other, None, "{label}: {line}");
                    }
                    None => assert!(known, "{label}: does this loop end? {line}"),
                }
                headers.insert(line.to_string());
            }
        }
        println!("{} headers of loops in {kernels} shaders", headers.len());
        assert!(headers.len() > 60, "{headers:?}");
        let unused: Vec<_> = OTHERS.iter().filter(|line| !headers.contains(**line)).collect();
        assert!(unused.is_empty(), "{unused:?}");
        for endless in
            ["for (var i = 0u; i < n; i += step) {", "for (;;) {", "for (var i = 0u; j < n; i += 1u) {"]
        {
            assert_eq!(counted(endless), None);
        }
    }

    /// Shaders as they are shipped, and as tests have them.
    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn uncounted_loops_give_the_same_bits() {
        let kernels = [
            Kernel::Norm(Norm::Add, Elem::F32, Reduce::Shared),
            Kernel::Linear {
                weight: Packing::F32,
                x: Elem::F32,
                out: Elem::F32,
                rows: 4,
                gate: false,
                vector: true,
                act: false,
            },
        ];
        for kernel in kernels {
            let [counted, free] = [true, false].map(|bounds_loops| {
                let mut gpu = std::sync::Arc::try_unwrap(opened()).unwrap();
                assert_eq!(gpu.gpu.bounds_loops, cfg!(debug_assertions));
                gpu.gpu.bounds_loops = bounds_loops;
                let carrier = gpu.pipelines.dialect.carrier;
                let text = rendered(&kernel, gpu.pipelines.dialect).unwrap();
                let made = compile(&gpu.gpu, None, (kernel, carrier), text).unwrap();
                let mark = gpu.pipelines.get(&gpu.gpu, Kernel::Mark).unwrap();
                twins::run(&gpu.gpu, carrier, [&mark, &made], &Trial::of(&kernel).unwrap()).unwrap()
            });
            assert!(counted == free && counted.iter().flatten().any(|word| *word != 0), "{}", kernel.label());
        }
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
