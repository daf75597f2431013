//! Requests saved by one engine and continued by another one: the same tokens, and the same keys and values,
//! bit for bit, on the same backend or on another one that follows the same order.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::{Types, engine};
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::named;
use conformance::trials::Named;
use engraft_core::Error;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Output, Request, Want};
use engraft_core::inject::inject;
use engraft_core::mem::{Float, KvFormat};
use engraft_core::numerics::{Madd, Mode};
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use std::path::Path;
use std::sync::Arc;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    a_restored_request_goes_on_as_it_would_have,
    a_request_keeps_its_priority_and_its_tenant,
    what_would_give_other_bits_is_refused_by_name,
    what_keeps_more_than_tokens_is_not_saved,
    damaged_bytes_are_an_error_and_never_more,
    a_model_of_another_configuration_refuses_a_saved_request,
    bytes_that_are_restored_change_no_other_answer,
];
pub const ON_CUDA: &[Named] = &named![a_request_moves_between_the_cpu_and_cuda];
pub const ON_WGPU: &[Named] = &named![a_request_moves_between_the_cpu_and_wgpu];

const NEW: usize = 9;

fn cpu(madd: Madd) -> Arc<Cpu> {
    Cpu::new(CpuConfig { threads: 2, madd, ..CpuConfig::default() }).unwrap()
}

fn sizes(page_size: usize, types: impl Into<Types>) -> EngineConfig {
    let (page_seed, Types { dtype, kv_dtype }) = (Some(page_size as u64), types.into());
    EngineConfig {
        dtype,
        kv_dtype,
        max_context: 64,
        max_seqs: 3,
        max_step_tokens: 7,
        page_size,
        page_seed,
        ..EngineConfig::default()
    }
}

fn request(len: usize) -> Request {
    let sampling = SamplingParams {
        temperature: 1.2,
        repetition_penalty: 1.2,
        seed: Some(9),
        ..SamplingParams::default()
    };
    let prompt = (0..len as u32).map(|i| 3 + (i * 7 + i * i) % 50).collect();
    Request { prompt, max_new_tokens: NEW, sampling, stop_ids: vec![2], ..Request::default() }
}

/// Steps until so many tokens of a request are reported, or it ends; the tokens.
fn steps<B: Backend>(engine: &mut Engine<B>, id: u64, count: usize) -> Vec<u32> {
    let (mut out, mut tokens): (Vec<Output>, Vec<u32>) = (Vec::new(), Vec::new());
    while tokens.len() < count && !engine.is_idle() {
        engine.step(&mut out).unwrap();
        tokens.extend(out.iter().filter(|o| o.id == id).filter_map(|o| o.token));
    }
    tokens
}

fn caches<B: Backend>(engine: &mut Engine<B>, id: u64) -> Vec<[Vec<f32>; 2]> {
    (0..engine.model().blocks.len()).map(|layer| engine.cached(id, layer).unwrap()).collect()
}

/// Whether two engines' keys and values are the same as far as both have them: all but a position.
fn agree(a: &[[Vec<f32>; 2]], b: &[[Vec<f32>; 2]]) -> bool {
    let mut pairs = a.iter().flatten().zip(b.iter().flatten());
    let same = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
        long.starts_with(short) && 10 * short.len() > 8 * long.len()
    };
    a.len() == b.len() && pairs.all(same)
}

/// Saved by `one` behind any number of tokens, continued by `other`, whose pages have other sizes.
fn law<A: Backend, B: Backend>(
    one: &Arc<A>,
    other: &Arc<B>,
    case: &str,
    len: usize,
    types: impl Into<Types>,
) {
    let types = types.into();
    let mut alone = engine(one, case, sizes(5, types));
    let id = alone.put(request(len)).unwrap();
    // A token more may be in flight.
    let mut want = steps(&mut alone, id, NEW - 2);
    let keys = caches(&mut alone, id);
    want.extend(steps(&mut alone, id, 2));
    for sampled in 0..NEW - 1 {
        let (mut from, mut to) = (engine(one, case, sizes(5, types)), engine(other, case, sizes(3, types)));
        let id = from.put(request(len)).unwrap();
        let mut tokens = steps(&mut from, id, sampled);
        let saved = from.save(id).unwrap();
        // What was in flight is saved, and reported here.
        tokens.extend(steps(&mut from, id, NEW));
        assert_eq!(tokens, want, "{case}: saving changed what follows");
        let id = to.restore(&saved).unwrap();
        assert!(to.free_pages().0 == to.free_pages().1, "{case}: pages that nobody runs are taken");
        let all = steps(&mut to, id, NEW);
        let known = want.len() - all.len();
        assert!(known == sampled || known == sampled + one.caps().asynchronous as usize, "{case}: {known}");
        assert_eq!(all, want[known..], "{case}: restored behind {sampled} tokens");
        let positions = (len + known).saturating_sub(1) / 3 * 3;
        let hit = to.prefix_stats().hit as usize;
        assert!(known == 0 || hit >= positions, "{case}: {hit} of {positions} positions were not computed");
        if all.len() > 2 {
            // The keys that were imported are read once more, by the same prefix.
            let id = to.restore(&saved).unwrap();
            steps(&mut to, id, all.len() - 2);
            let same = agree(&caches(&mut to, id), &keys);
            assert!(same, "{case}: keys and values of what was restored behind {sampled} tokens differ");
        }
    }
}

fn a_restored_request_goes_on_as_it_would_have() {
    let cpu = cpu(Madd::Fused);
    for (case, len) in [
        ("llama_gqa_llama3", 17),
        ("gemma2", 12),
        ("gpt2", 5),
        ("phi3_longrope", 40),
        // Its text passes the length from which longer prompts are rotated otherwise.
        ("phi3_longrope", 28),
        ("mixtral", 9),
        ("gpt_oss", 13),
        ("deepseek_v3", 14),
        ("deepseek_v32", 12),
    ] {
        law(&cpu, &cpu, case, len, Float::F32);
        law(&cpu, &cpu, case, len, Float::Bf16);
        law(&cpu, &cpu, case, len, (Float::F32, KvFormat::INT8));
    }
    law(&cpu, &cpu, "llama_gqa_llama3", 17, (Float::Bf16, KvFormat::FP8));
}

fn a_request_moves_between_the_cpu_and_cuda() {
    let (fused, separate) = (cpu(Madd::Fused), cpu(Madd::Separate));
    for name in cuda_names() {
        let gpu = cuda(&name, Mode::Reference).unwrap();
        law(&fused, &gpu, "llama_gqa_llama3", 11, Float::F32);
        law(&gpu, &fused, "llama_gqa_llama3", 11, Float::Bf16);
        law(&fused, &gpu, "llama_gqa_llama3", 11, (Float::F32, KvFormat::INT8));
        law(&gpu, &fused, "gemma2", 11, (Float::Bf16, KvFormat::FP8));
        is_refused(&separate, &gpu, "multiply-add");
        is_refused(&fused, &cuda(&name, Mode::Invariant).unwrap(), "mode");
    }
}

fn a_request_moves_between_the_cpu_and_wgpu() {
    let (fused, separate) = (cpu(Madd::Fused), cpu(Madd::Separate));
    for name in adapters() {
        let gpu = wgpu(Some(&name), false).unwrap();
        if gpu.numerics().mode == Mode::Reference {
            law(&separate, &gpu, "llama_gqa_llama3", 11, Float::F32);
            law(&gpu, &separate, "gpt2", 6, Float::F32);
            law(&separate, &gpu, "llama_gqa_llama3", 11, (Float::F32, KvFormat::INT8));
            law(&gpu, &separate, "llama_gqa_llama3", 11, (Float::F32, KvFormat::FP8));
        }
        law(&gpu, &gpu, "gemma2", 11, Float::F32);
        law(&gpu, &gpu, "gemma2", 11, (Float::F32, KvFormat::INT8));
        let differs = if gpu.numerics().mode == Mode::Reference { "multiply-add" } else { "mode" };
        is_refused(&fused, &gpu, differs);
    }
}

fn a_request_keeps_its_priority_and_its_tenant() {
    let mut engine = engine(&cpu(Madd::Fused), "llama", sizes(4, Float::F32));
    let header = |bytes: &[u8]| -> serde_json::Value {
        let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
        serde_json::from_slice(&bytes[12..12 + len]).unwrap()
    };
    let id = engine.put(Request { priority: -3, tenant: "acme".into(), ..request(6) }).unwrap();
    let saved = engine.save(id).unwrap();
    assert!(engine.cancel(id).unwrap());
    let id = engine.restore(&saved).unwrap();
    let again = header(&engine.save(id).unwrap());
    assert_eq!(again["priority"], -3);
    assert_ne!(again["owner"], 0);
    assert_eq!(again["owner"], header(&saved)["owner"]);
}

/// A saved request of the model `llama` with some tokens.
fn saved() -> Vec<u8> {
    let mut engine = engine(&cpu(Madd::Fused), "llama", sizes(4, Float::F32));
    let id = engine.put(request(6)).unwrap();
    steps(&mut engine, id, 3);
    engine.save(id).unwrap()
}

fn refused<B: Backend>(engine: &mut Engine<B>, bytes: &[u8]) -> String {
    let error = engine.restore(bytes).unwrap_err();
    assert!(engine.is_idle(), "{error}: something is left of it");
    error.to_string()
}

/// A request of one backend that another one would go on with in other bits, for want of the same `what`.
fn is_refused<A: Backend, B: Backend>(one: &Arc<A>, other: &Arc<B>, what: &str) {
    let (case, sizes) = ("llama_gqa_llama3", sizes(5, Float::F32));
    let (mut from, mut to) = (engine(one, case, sizes.clone()), engine(other, case, sizes));
    let id = from.put(request(11)).unwrap();
    steps(&mut from, id, 3);
    let said = refused(&mut to, &from.save(id).unwrap());
    assert!(said.contains(&format!("{what} of a saved request")), "{said}");
}

fn what_would_give_other_bits_is_refused_by_name() {
    let (cpu, saved) = (cpu(Madd::Fused), saved());
    let here = |case: &str, config: EngineConfig| engine(&cpu, case, config);
    let said = refused(&mut here("llama_gqa_llama3", sizes(4, Float::F32)), &saved);
    assert!(said.contains("configuration"), "{said}");
    let said = refused(&mut here("gpt2", sizes(4, Float::F32)), &saved);
    assert!(said.contains("architecture") && said.contains("gpt2") && said.contains("llama"), "{said}");
    let said = refused(&mut here("llama", sizes(4, Float::Bf16)), &saved);
    assert!(said.contains("dtype") && said.contains("bf16") && said.contains("f32"), "{said}");
    let separate = self::cpu(Madd::Separate);
    let said = refused(&mut engine(&separate, "llama", sizes(4, Float::F32)), &saved);
    assert!(said.contains("multiply-add") && said.contains("separate"), "{said}");
    let short = EngineConfig { max_context: 12, ..sizes(4, Float::F32) };
    let said = refused(&mut here("llama", short), &saved);
    assert!(said.contains("15 tokens") && said.contains("12"), "{said}");
    let small = EngineConfig { kv_pages: Some(3), ..sizes(4, Float::F32) };
    assert!(matches!(here("llama", small).restore(&saved), Err(Error::KvFull { wanted: 4, total: 3, .. })));
}

fn what_keeps_more_than_tokens_is_not_saved() {
    let mut engine = engine(&cpu(Madd::Fused), "llama", sizes(4, Float::F32));
    let want = Want { logits: true, ..Want::default() };
    let config = EngineConfig { logit_rows: Some(usize::MAX), ..sizes(4, Float::F32) };
    let mut logits = self::engine(&cpu(Madd::Fused), "llama", config);
    let id = logits.put(Request { want, ..request(5) }).unwrap();
    let said = logits.save(id).unwrap_err().to_string();
    assert!(said.contains("logits"), "{said}");
    let said = engine.save(7).unwrap_err().to_string();
    assert!(said.contains('7') && said.contains("neither running nor waiting"), "{said}");
}

/// With the checksum mended, too: a header may say anything.
fn damaged_bytes_are_an_error_and_never_more() {
    let (cpu, saved) = (cpu(Madd::Fused), saved());
    let mut engine = engine(&cpu, "llama", sizes(4, Float::F32));
    let body = saved.len() - 4;
    for at in 0..saved.len().min(1200) {
        let mut bad = saved.clone();
        bad[at] ^= 1 << (at % 8);
        refused(&mut engine, &bad);
        refused(&mut engine, &saved[..at]);
        if at < body {
            let sum = crc32(&bad[..body]);
            bad[body..].copy_from_slice(&sum.to_le_bytes());
            if let Ok(id) = engine.restore(&bad) {
                assert!(engine.cancel(id).unwrap());
            }
            assert!(engine.is_idle());
        }
    }
    let (free, total) = engine.free_pages();
    assert_eq!(free, total);
    engine.restore(&saved).unwrap();
}

/// Bit by bit, as the format has it.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// What the configuration says belongs to the model: the same weights under another norm are another one.
fn a_model_of_another_configuration_refuses_a_saved_request() {
    let cpu = cpu(Madd::Fused);
    let mut first = engine(&cpu, "llama", sizes(4, Float::F32));
    let id = first.put(request(13)).unwrap();
    steps(&mut first, id, 3);
    let saved = first.save(id).unwrap();
    let open = |change: fn(&mut serde_json::Value)| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/llama");
        let mut files = checkpoint::open(&dir, Access::Map).unwrap();
        change(&mut files.config);
        let options = LoadOptions { dtype: Some(Float::F32), ..LoadOptions::default() };
        let model = inject(&cpu, &files, &Registry::default(), 128, options, &mut |_, _| {}).unwrap();
        Engine::new(cpu.clone(), model, sizes(4, Float::F32)).unwrap()
    };
    open(|_| {}).restore(&saved).unwrap();
    let other = |config: &mut serde_json::Value| config["rms_norm_eps"] = 0.5.into();
    let said = open(other).restore(&saved).unwrap_err().to_string();
    assert!(said.contains("configuration of a saved request"), "{said}");
}

/// Bytes that somebody made up: their checksum is right, their keys and values are not.
fn bytes_that_are_restored_change_no_other_answer() {
    let cpu = cpu(Madd::Fused);
    let mut engine = engine(&cpu, "llama", sizes(4, Float::F32));
    let id = engine.put(request(13)).unwrap();
    let want = engine.run().unwrap().remove(&id).unwrap();
    let id = engine.put(request(13)).unwrap();
    steps(&mut engine, id, 2);
    let mut forged = engine.save(id).unwrap();
    let end = forged.len() - 4;
    let header = 12 + u32::from_le_bytes(forged[8..12].try_into().unwrap()) as usize;
    forged[header..end].as_chunks_mut::<4>().0.fill(7.5f32.to_le_bytes());
    let sum = crc32fast::hash(&forged[..end]).to_le_bytes();
    forged[end..].copy_from_slice(&sum);
    // An engine that has not seen the prompt, and one that has.
    for seen in [false, true] {
        let mut victim = self::engine(&cpu, "llama", sizes(4, Float::F32));
        if seen {
            victim.put(request(13)).unwrap();
            victim.run().unwrap();
        }
        let restored = victim.restore(&forged).unwrap();
        let during = victim.put(request(13)).unwrap();
        let mut got = victim.run().unwrap();
        assert_eq!(got.remove(&during).unwrap(), want);
        assert_ne!(got.remove(&restored).unwrap(), want, "the forged keys are read by whoever brought them");
        let behind = victim.put(request(13)).unwrap();
        assert_eq!(victim.run().unwrap().remove(&behind).unwrap(), want);
    }
}
