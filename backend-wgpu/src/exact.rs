//! Vulkan's drivers are asked to contract and reassociate nothing: shaders with every product and sum marked
//! `NoContraction`, which naga does not write.
//!
//! A marked module is handed over as it is, so what wgpu would find out about the device is found out here:
//! the version of SPIR-V, capabilities, and whether the hardware keeps accesses inside bindings. The writer's
//! options are those of wgpu's own, of which `engraft-shaders` writes and validates every variant.

use ash::{ext, khr, vk};
use engraft_shaders::{Carrier, Strictness, uncontracted};
use std::borrow::Cow;
use std::collections::BTreeMap;
use wgpu::naga::back::spv::{self, Capability};
use wgpu::naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use wgpu::naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use wgpu::naga::{self, ResourceBinding, ShaderStage};

/// Why what is written here is not handed over; wgpu's own way then says what is wrong, if anything is.
type Outcome<T> = Result<T, String>;

/// Where every kernel begins.
const ENTRY: &str = "main";

/// What a device takes.
#[derive(Debug, Clone)]
pub(crate) struct Exact {
    version: (u8, u8),
    f16: bool,
    subgroups: bool,
    /// Products of four bytes.
    dot: bool,
    /// The hardware keeps accesses inside bindings; else the shader does.
    robust: bool,
    /// What modules ask of floats of 32 bits besides.
    strict: Strictness,
}

/// What a device can be asked of floats of 32 bits alone, of those of other widths nothing.
fn strictness(says: &vk::PhysicalDeviceFloatControlsProperties<'_>) -> Strictness {
    let alone = |by: vk::ShaderFloatControlsIndependence| by != vk::ShaderFloatControlsIndependence::NONE;
    let has = |says: vk::Bool32| says == vk::TRUE;
    Strictness {
        special: has(says.shader_signed_zero_inf_nan_preserve_float32),
        nearest: has(says.shader_rounding_mode_rte_float32) && alone(says.rounding_mode_independence),
        subnormals: has(says.shader_denorm_preserve_float32) && alone(says.denorm_behavior_independence),
    }
}

/// The newest SPIR-V of a version of Vulkan.
fn spirv_of(version: u32) -> Option<(u8, u8)> {
    match (vk::api_version_major(version), vk::api_version_minor(version)) {
        (1, 1) => Some((1, 3)),
        (1, 2) => Some((1, 5)),
        (1, 3..) | (2.., _) => Some((1, 6)),
        _ => None,
    }
}

impl Exact {
    /// What the adapter takes, opened with `features`.
    ///
    /// # Errors
    /// Why its driver cannot be asked.
    pub fn of(adapter: &wgpu::Adapter, features: wgpu::Features) -> Outcome<Self> {
        if !features.contains(wgpu::Features::PASSTHROUGH_SHADERS) {
            return Err("sums need not keep an order, or wgpu hands no SPIR-V over".into());
        }
        // SAFETY: it is asked, and nothing of it is kept or destroyed.
        let Some(own) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else {
            return Err("the API has no mark for it".into());
        };
        let (about, instance) = (own.physical_device_capabilities(), own.shared_instance());
        let api = about.properties().api_version;
        let version = spirv_of(api).filter(|_| instance.instance_api_version() >= vk::API_VERSION_1_1);
        let version = version.ok_or("Vulkan 1.0 says too little of the device")?;
        let mut robust = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        let mut all = vk::PhysicalDeviceFeatures2::default();
        if about.supports_extension(ext::robustness2::NAME) {
            all = all.push_next(&mut robust);
        }
        if api >= vk::API_VERSION_1_3 || about.supports_extension(khr::shader_integer_dot_product::NAME) {
            all = all.push_next(&mut dot);
        }
        // SAFETY: the physical device is the instance's, and what is chained is known to it.
        unsafe {
            instance.raw_instance().get_physical_device_features2(own.raw_physical_device(), &mut all);
        }
        let mut floats = vk::PhysicalDeviceFloatControlsProperties::default();
        // Of older devices an extension says it, which wgpu does not ask for.
        let modes = api >= vk::API_VERSION_1_2 && instance.instance_api_version() >= vk::API_VERSION_1_2;
        if modes {
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut floats);
            // SAFETY: as above; what is chained is known to every device of Vulkan 1.2.
            unsafe {
                let (instance, device) = (instance.raw_instance(), own.raw_physical_device());
                instance.get_physical_device_properties2(device, &mut properties);
            }
        }
        Ok(Self {
            version,
            strict: if modes { strictness(&floats) } else { Strictness::default() },
            f16: features.contains(wgpu::Features::SHADER_F16),
            subgroups: features.contains(wgpu::Features::SUBGROUP),
            dot: dot.shader_integer_dot_product == vk::TRUE,
            robust: robust.robust_buffer_access2 == vk::TRUE,
        })
    }

    /// For tests: of a device whose hardware keeps nothing inside bindings.
    #[cfg(test)]
    pub fn without_robustness(self) -> Self {
        Self { robust: false, ..self }
    }

    /// What is asked of floats besides, for people.
    pub fn asked(&self) -> String {
        let Strictness { special, nearest, subnormals } = self.strict;
        let all = [
            (special, "signs of zeros, infinities and NaN"),
            (nearest, "rounding to nearest"),
            (subnormals, "numbers below 2^-126"),
        ];
        let which: Vec<&str> = all.iter().filter(|(asked, _)| *asked).map(|(_, what)| *what).collect();
        match which.is_empty() {
            true => "nothing else of IEEE 754 can be asked for".into(),
            false => format!("of IEEE 754 is asked for: {}", which.join(", ")),
        }
    }

    /// For tests: with other demands on floats.
    #[cfg(test)]
    pub fn with(self, strict: Strictness) -> Self {
        Self { strict, ..self }
    }

    fn capabilities(&self) -> impl Iterator<Item = Capability> {
        let subgroups = [
            Capability::GroupNonUniform,
            Capability::GroupNonUniformVote,
            Capability::GroupNonUniformArithmetic,
            Capability::GroupNonUniformBallot,
            Capability::GroupNonUniformShuffle,
            Capability::GroupNonUniformShuffleRelative,
            Capability::GroupNonUniformQuad,
        ];
        let dot = [
            Capability::DotProductInputAllKHR,
            Capability::DotProductInput4x8BitKHR,
            Capability::DotProductInput4x8BitPackedKHR,
            Capability::DotProductKHR,
        ];
        let (of_subgroups, of_dot) = (self.subgroups, self.dot);
        [Capability::Shader, Capability::Matrix]
            .into_iter()
            .chain(self.f16.then_some(Capability::Float16))
            .chain(subgroups.into_iter().filter(move |_| of_subgroups))
            .chain(dot.into_iter().filter(move |_| of_dot))
    }

    /// A text with `bindings` storage bindings, as words, and the size of its workgroups.
    pub fn words(
        &self,
        text: &str,
        (bindings, carrier): (usize, Carrier),
        bounds_loops: bool,
    ) -> Outcome<(Vec<u32>, [u32; 3])> {
        let module = naga::front::wgsl::parse_str(text).map_err(|e| e.to_string())?;
        let mut may = Capabilities::IMMEDIATES | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        may.set(Capabilities::SHADER_FLOAT16, self.f16);
        may.set(Capabilities::SUBGROUP, self.subgroups);
        let mut validator = Validator::new(ValidationFlags::all(), may);
        if self.subgroups {
            validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
        }
        let info = validator.validate(&module).map_err(|e| e.to_string())?;
        let [entry] = &module.entry_points[..] else { return Err("one entry point is wanted".into()) };
        if entry.name != ENTRY {
            // A driver that is asked for what is not there may lose the device.
            return Err(format!("the entry point is {}, {ENTRY} is wanted", entry.name));
        }
        let options = self.options((bindings, carrier), bounds_loops);
        let which =
            spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: entry.name.clone() };
        let bare = spv::write_vec(&module, &info, &options, Some(&which)).map_err(|e| e.to_string())?;
        let words = uncontracted(&bare, self.strict).ok_or("naga wrote no module of SPIR-V")?;
        Ok((words, entry.workgroup_size))
    }

    /// As wgpu has them for a pipeline whose bindings are numbered without gaps.
    fn options(&self, (bindings, carrier): (usize, Carrier), bounds_loops: bool) -> spv::Options<'static> {
        let storage = (0..bindings as u32).map(|binding| ResourceBinding { group: 0, binding });
        let arena = (carrier == Carrier::Uniform).then_some(ResourceBinding { group: 1, binding: 0 });
        let to = |from: ResourceBinding| spv::BindingInfo {
            descriptor_set: from.group,
            binding: from.binding,
            binding_array_size: None,
        };
        let binding_map: BTreeMap<_, _> = storage.chain(arena).map(|from| (from, to(from))).collect();
        spv::Options {
            lang_version: self.version,
            flags: spv::WriterFlags::empty(),
            fake_missing_bindings: false,
            binding_map,
            capabilities: Some(self.capabilities().collect()),
            bounds_check_policies: BoundsCheckPolicies {
                index: BoundsCheckPolicy::Restrict,
                buffer: if self.robust { BoundsCheckPolicy::Unchecked } else { BoundsCheckPolicy::Restrict },
                image_load: BoundsCheckPolicy::Restrict,
                binding_array: BoundsCheckPolicy::Unchecked,
            },
            zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
            force_loop_bounding: bounds_loops,
            emit_int_div_checks: true,
            ..spv::Options::default()
        }
    }

    /// A module of the text.
    ///
    /// # Errors
    /// What naga refuses.
    pub fn module(
        &self,
        device: &wgpu::Device,
        (label, text): (&str, &str),
        of: (usize, Carrier),
        bounds_loops: bool,
    ) -> Outcome<wgpu::ShaderModule> {
        let (words, [x, y, z]) = self.words(text, of, bounds_loops)?;
        let entry = wgpu::PassthroughShaderEntryPoint { name: ENTRY.into(), workgroup_size: (x, y, z) };
        let descriptor = wgpu::ShaderModuleDescriptorPassthrough {
            label: Some(label),
            entry_points: Cow::Borrowed(std::slice::from_ref(&entry)),
            spirv: Some(words.into()),
            ..Default::default()
        };
        // SAFETY: naga wrote the module from a text that it validated, with the checks that wgpu asks for,
        // and what was added marks instructions alone.
        Ok(unsafe { device.create_shader_module_passthrough(descriptor) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{spirv_of, strictness, vk};
    use crate::pipeline::{Pipeline, compile, rendered};
    use crate::tests::classes::{attention_tile, experts, lanes, tile};
    use crate::tests::{opened, opened_as};
    use crate::{Wgpu, WgpuConfig, expected, twins};
    use engraft_core::numerics::Mode;
    use engraft_shaders::{Elem, Kernel, Limit, Norm, Packing, Reduce, Strictness};
    use std::sync::Arc;

    #[test]
    fn a_version_of_vulkan_takes_one_of_spirv() {
        let patched = vk::make_api_version(0, 1, 3, 299);
        let all = [vk::API_VERSION_1_0, vk::API_VERSION_1_1, vk::API_VERSION_1_2, patched];
        assert_eq!(all.map(spirv_of), [None, Some((1, 3)), Some((1, 5)), Some((1, 6))]);
    }

    #[test]
    fn floats_of_one_width_are_asked_for_where_they_can_be_alone() {
        let all = vk::PhysicalDeviceFloatControlsProperties {
            shader_signed_zero_inf_nan_preserve_float32: vk::TRUE,
            shader_rounding_mode_rte_float32: vk::TRUE,
            shader_denorm_preserve_float32: vk::TRUE,
            ..Default::default()
        };
        let whole = Strictness { special: true, nearest: true, subnormals: true };
        assert_eq!(strictness(&all), whole);
        let (none, only) = (vk::ShaderFloatControlsIndependence::NONE, Strictness::default());
        let tied = vk::PhysicalDeviceFloatControlsProperties { denorm_behavior_independence: none, ..all };
        assert_eq!(strictness(&tied), Strictness { subnormals: false, ..whole });
        let tied = vk::PhysicalDeviceFloatControlsProperties { rounding_mode_independence: none, ..all };
        assert_eq!(strictness(&tied), Strictness { nearest: false, ..whole });
        let of_halves = vk::PhysicalDeviceFloatControlsProperties {
            shader_rounding_mode_rte_float16: vk::TRUE,
            shader_denorm_preserve_float64: vk::TRUE,
            ..Default::default()
        };
        assert_eq!(strictness(&of_halves), only);
    }

    fn made(gpu: &Wgpu, kernel: Kernel) -> Pipeline {
        let dialect = gpu.pipelines.dialect;
        compile(&gpu.gpu, None, (kernel, dialect.carrier), rendered(&kernel, dialect).unwrap()).unwrap()
    }

    fn contraction(gpu: &Wgpu) -> Option<bool> {
        gpu.probes().iter().find(|probe| probe.name == "contraction").unwrap().passed
    }

    /// But for what measures multiply-adds, and where no order of sums is promised.
    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn drivers_of_vulkan_are_asked_to_contract_nothing() {
        for (mode, asked) in [(Mode::Reference, true), (Mode::Invariant, true), (Mode::Fast, false)] {
            for uniform_parameters in [false, true] {
                let gpu = opened_as(WgpuConfig { mode, uniform_parameters, ..WgpuConfig::default() });
                assert_eq!(gpu.gpu.exact.is_ok(), asked, "{mode:?}: {:?}", gpu.gpu.exact);
                assert_eq!(contraction(&gpu), asked.then_some(true), "{mode:?}");
                for kernel in [lanes(1), Kernel::Norm(Norm::Alone, Elem::F32, Reduce::Shared), Kernel::Sample]
                {
                    assert_eq!(made(&gpu, kernel).exact, asked, "{mode:?}, {}", kernel.label());
                }
                assert!(!made(&gpu, Kernel::Limit(Limit::Multiply)).exact);
            }
        }
    }

    /// One that takes the shader as wgpu makes it runs it so, and the probe says which.
    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn a_marked_shader_that_the_driver_refuses_is_compiled_without_marks() {
        let mut gpu = Arc::try_unwrap(opened()).unwrap();
        let found = gpu.contraction().unwrap();
        assert!(found.passed == Some(true) && found.found.contains("IEEE 754"), "{found:?}");
        gpu.gpu.refuses_marked = Some(tile(4));
        assert!(!made(&gpu, tile(4)).exact && made(&gpu, tile(8)).exact);
        let found = gpu.contraction().unwrap();
        assert!(found.passed == Some(false) && found.found.contains(&tile(4).label()), "{found:?}");
        assert!(found.found.contains("takes no marks"), "{found:?}");
    }

    /// A driver that keeps to the text by itself gives the same bits for it, wherever accesses are checked.
    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn what_is_marked_gives_the_bits_of_what_is_not() {
        let mut gpu = Arc::try_unwrap(opened()).unwrap();
        let exact = gpu.gpu.exact.clone().unwrap();
        println!("{}: {exact:?}", gpu.gpu.name);
        let packed = Kernel::Linear {
            weight: Packing::Q4K,
            x: Elem::F16,
            out: Elem::F32,
            rows: 4,
            gate: true,
            vector: true,
            act: true,
        };
        let norm = Kernel::Norm(Norm::Add, Elem::Bf16, Reduce::Leaves);
        let all = [lanes(4), tile(4), experts(4), attention_tile(), packed, norm];
        for kernel in all.into_iter().chain(expected::lone(true)) {
            let bare = exact.clone().with(Strictness::default());
            let ways =
                [Ok(exact.clone()), Ok(exact.clone().without_robustness()), Ok(bare), Err(String::new())];
            let [marked, checked, without_modes, bare] = ways.map(|way| {
                let asked = way.is_ok();
                gpu.gpu.exact = way;
                let pipeline = made(&gpu, kernel);
                assert_eq!(pipeline.exact, asked, "{}", kernel.label());
                let carrier = gpu.pipelines.dialect.carrier;
                let mark = gpu.pipelines.get(&gpu.gpu, Kernel::Mark).unwrap();
                twins::run(&gpu.gpu, carrier, [&mark, &pipeline], &expected::trial(&kernel, true).unwrap())
                    .unwrap()
            });
            assert!([marked, checked, without_modes].iter().all(|one| *one == bare), "{}", kernel.label());
        }
    }
}
