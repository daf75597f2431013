//! Encoders of sound alone: what a sound gives depends on nothing but itself.

use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::named;
use conformance::trials::Named;
use engraft_core::backend::{Backend, Composed};
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Encoded, EncoderInput, Engine, Layers};
use engraft_core::inject::inject;
use engraft_core::numerics::Mode;
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use std::path::Path;
use std::sync::Arc;

/// The laws, by name.
pub const TESTS: &[Named] =
    &named![mates_threads_and_composed_ops_change_nothing, what_is_no_sound_is_refused_by_name,];
pub const ON_CUDA: &[Named] = &named![mates_on_cuda];
pub const ON_WGPU: &[Named] = &named![mates_on_wgpu];

/// One with norms of rows and norms before parts; one with a norm over a whole sound, and norms behind parts.
const CASES: [&str; 2] = ["wav2vec2", "wav2vec2_base"];

fn cpu(threads: usize) -> Arc<Cpu> {
    Cpu::new(CpuConfig { threads, ..CpuConfig::default() }).unwrap()
}

fn engine<B: Backend>(backend: &Arc<B>, case: &str, max_seqs: usize) -> Engine<B> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    let files = checkpoint::open(&dir, Access::Map).unwrap();
    let (registry, options) = (Registry::default(), LoadOptions::default());
    let model = inject(backend, &files, &registry, 64, options, &mut |_, _| {}).unwrap();
    let config = EngineConfig { max_context: 64, max_seqs, ..EngineConfig::default() };
    Engine::new(backend.clone(), model, config).unwrap()
}

fn sound(seed: u32, len: usize) -> EncoderInput {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    EncoderInput { features: (0..len).map(next).collect(), ..EncoderInput::default() }
}

fn bits(all: &[Encoded]) -> Vec<Vec<u32>> {
    let lists = all.iter().flat_map(|one| one.hidden.iter().chain([&one.logits]));
    lists.map(|list| list.iter().map(|v| v.to_bits()).collect()).collect()
}

/// Sounds of several lengths by themselves, together, and the other way round.
fn mates<B: Backend>(backend: &Arc<B>, case: &str) -> Vec<Vec<u32>> {
    let mut engine = engine(backend, case, 4);
    let least = engine.model().spec.stem().unwrap().least();
    let sounds = [(1, least), (2, 1600), (3, least + 77), (4, 1231)].map(|(seed, len)| sound(seed, len));
    let mut alone = Vec::new();
    for one in &sounds {
        alone.extend(engine.encode(std::slice::from_ref(one), Layers::All).unwrap());
    }
    let together = engine.encode(&sounds, Layers::All).unwrap();
    assert_eq!(bits(&together), bits(&alone), "{case}");
    let mut backwards =
        engine.encode(&sounds.clone().into_iter().rev().collect::<Vec<_>>(), Layers::All).unwrap();
    backwards.reverse();
    assert_eq!(bits(&backwards), bits(&alone), "{case}");
    bits(&alone)
}

fn mates_threads_and_composed_ops_change_nothing() {
    for case in CASES {
        let want = mates(&cpu(2), case);
        assert_eq!(mates(&cpu(1), case), want, "{case}");
        assert_eq!(mates(&Arc::new(Composed::new(cpu(2))), case), want, "{case}");
    }
}

fn mates_on_cuda() {
    for name in cuda_names() {
        for case in CASES {
            mates(&cuda(&name, Mode::Invariant).unwrap(), case);
        }
    }
}

fn mates_on_wgpu() {
    for name in adapters() {
        for case in CASES {
            mates(&wgpu(Some(&name), false).unwrap(), case);
        }
    }
}

fn what_is_no_sound_is_refused_by_name() {
    let mut engine = engine(&cpu(1), "wav2vec2", 2);
    let with = |len: usize, at: usize, value: f32| {
        let mut features = sound(1, len).features.to_vec();
        if let Some(v) = features.get_mut(at) {
            *v = value;
        }
        EncoderInput { features: features.into(), ..EncoderInput::default() }
    };
    let text = EncoderInput::from(vec![1, 2, 3]);
    for (bad, what) in [
        (text, "a prompt of 3 tokens; the encoder reads sound"),
        (with(0, 0, 0.0), "0 features; the encoder reads 85 to 480000 frames of 1"),
        (with(84, 0, 0.0), "84 features"),
        (with(480_001, 0, 0.0), "480001 features"),
        (with(400, 7, f32::INFINITY), "feature 7 is inf"),
    ] {
        let error = engine.encode(&[sound(1, 400), bad], Layers::Last).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    assert_eq!(engine.encode(&[sound(1, 400)], Layers::Last).unwrap().len(), 1);
}
