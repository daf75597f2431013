//! Sana Sprint: its scheduler and its pipeline by the definition in f64, its transformer by the golden of the
//! one without guidance.
//!
//! No golden has them. Sources: arXiv 2410.11081, 2503.09641.

use super::sana::{INSTRUCTION, TOKENS, assembled, request, rows, run};
use super::tensors::{Tensors, configured, off, read, write};
use engraft_core::backend::block_on;
use engraft_core::checkpoint::{Access, open};
use engraft_core::mem::Float;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::graph::Grid;
use engraft_diffusion::nets::Conditions;
use engraft_diffusion::{
    GuidedBy, ImageRequest, Noise, Pipeline, PipelineOptions, Purpose, Seeded, Transformer, TransformerInput,
    Vae,
};
use engraft_image::{Scheduler, SchedulerConfig, Settings, Steps};
use image_goldens::{Golden, folder, json as read_json};
use serde_json::json;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// The first angle, 1.5708.
const FIRST: f64 = 15_708.0 / 10_000.0;
const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";
const SCM: &str = r#"{"_class_name": "SCMScheduler", "prediction_type": "trigflow", "sigma_data": 0.4}"#;

/// The embedder of the time as two, of time and guidance, whose last layers count by these shares.
fn with_guidance(tensors: Tensors, shares: [f32; 2]) -> Tensors {
    let mut all = Tensors::new();
    for (name, tensor) in tensors {
        let Some(part) = name.strip_prefix("time_embed.emb.timestep_embedder.") else {
            all.insert(name, tensor);
            continue;
        };
        for (own, share) in ["timestep_embedder", "guidance_embedder"].into_iter().zip(shares) {
            let mut tensor = tensor.clone();
            if part.starts_with("linear_2") {
                tensor.values.iter_mut().for_each(|x| *x *= share);
            }
            all.insert(format!("time_embed.{own}.{part}"), tensor);
        }
    }
    all
}

#[test]
fn angles_fall_and_noise_is_that_of_the_next_one() {
    let config = SchedulerConfig::from_json(SCM).unwrap();
    let given = [1.2, 0.7, 0.1];
    for (steps, angles) in [
        (Steps::Count(1), vec![FIRST, 0.0]),
        (Steps::Count(2), vec![FIRST, 1.3, 0.0]),
        (Steps::Count(3), vec![FIRST, FIRST * 2.0 / 3.0, FIRST / 3.0, 0.0]),
        (Steps::Timesteps(&given), given.to_vec()),
    ] {
        let mut scheduler = Scheduler::new(&config, steps, Settings::default()).unwrap();
        let (calls, want) = (scheduler.timesteps().to_vec(), &angles[..angles.len() - 1]);
        assert!(calls.len() == want.len() && calls.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12));
        assert_eq!(scheduler.init_noise_sigma(), 0.4);
        let (mut sample, noise) = ([0.3f32, -1.1], [0.7f32, -0.2]);
        let mut want = sample.map(f64::from);
        for (step, pair) in angles.windows(2).enumerate() {
            assert_eq!(scheduler.needs_noise(), pair[1] > 0.0, "{step} of {angles:?}");
            let output = [0.9f32 - step as f32, 0.25];
            let noised = scheduler.add_noise(&output, &noise).unwrap();
            let level = |x: f32, z: f32| pair[0].cos() * f64::from(x) + 0.4 * pair[0].sin() * f64::from(z);
            assert!((f64::from(noised[0]) - level(output[0], noise[0])).abs() < 1e-6);
            let original = |i: usize| pair[0].cos() * want[i] - pair[0].sin() * f64::from(output[i]);
            let originals = [0, 1].map(original);
            want = [0, 1].map(|i| pair[1].cos() * originals[i] + 0.4 * pair[1].sin() * f64::from(noise[i]));
            scheduler.step(&output, &mut sample, Some(&noise)).unwrap();
            let predicted = scheduler.predicted_original().unwrap();
            assert!(off(predicted, &originals) < 1e-6 && off(&sample, &want) < 1e-6, "{step} of {angles:?}");
        }
    }
}

#[test]
fn guidance_is_embedded_as_the_time_is_and_added_to_it() {
    let from = folder("components").join("sana_transformer");
    for (shares, [time, guidance]) in
        [([1.0, 0.0], [None, Some(7.0)]), ([0.0, 1.0], [Some(3.0), None]), ([0.25, 0.75], [None, None])]
    {
        let place = tempfile::tempdir().unwrap();
        fs::copy(from.join("config.json"), place.path().join("config.json")).unwrap();
        configured(&place.path().join("config.json"), &[("guidance_embeds", json!(true))]);
        write(&place.path().join(WEIGHTS), &with_guidance(read(&from.join(WEIGHTS)), shares));
        let said = read_json(&from.join("golden.json")).unwrap();
        let mut golden = Golden::open(&from.join("golden.safetensors"), said, 2e-5).unwrap();
        let files = open(place.path(), Access::default()).unwrap();
        let cpu = Cpu::new(CpuConfig::default()).unwrap();
        let mut model = Transformer::load(cpu, &files, Float::F32).unwrap();
        let (sample, items, (height, width)) = golden.get("in.hidden_states").unwrap().pictures();
        let text = golden.get("in.encoder_hidden_states").unwrap();
        let (tokens, text) = (text.shape[1], text.narrow());
        let mask = golden.find("in.encoder_attention_mask");
        let mask = mask.map(|mask| mask.values.iter().map(|seen| *seen != 0.0).collect::<Vec<_>>());
        let own = golden.get("in.timestep").unwrap().values.clone();
        let values = |other: Option<f64>| other.map_or(own.clone(), |other| vec![other; items]);
        let guidance = values(guidance);
        let input = TransformerInput {
            text: &text,
            mask: mask.as_deref(),
            guidance: Some(&guidance),
            ..TransformerInput::default()
        };
        let size = Grid { height, width };
        model.begin(Conditions { items, size, tokens }, &input).unwrap();
        let got = block_on(model.step(&sample, &values(time))).unwrap();
        golden.compare_rows("out.out", &got).unwrap();
        assert!(golden.verdict.passes(), "{shares:?}: {:?}", golden.verdict);
        let without = TransformerInput { guidance: None, ..input };
        let error = model.begin(Conditions { items, size, tokens }, &without).unwrap_err().to_string();
        assert!(error.contains("guidance"), "{error}");
    }
}

/// A pipeline of class `SanaSprintPipeline`, of the parts of Sana's.
fn sprint() -> TempDir {
    let place = assembled();
    let transformer = place.path().join("transformer");
    let weights = with_guidance(read(&transformer.join(WEIGHTS)), [0.75, 0.5]);
    write(&transformer.join(WEIGHTS), &weights);
    let guidance = [("guidance_embeds", json!(true)), ("guidance_embeds_scale", json!(0.2))];
    configured(&transformer.join("config.json"), &guidance);
    fs::write(place.path().join("scheduler/scheduler_config.json"), SCM).unwrap();
    named(place.path(), "SanaSprintPipeline");
    place
}

fn named(place: &Path, class: &str) {
    configured(&place.join("model_index.json"), &[("_class_name", json!(class))]);
}

#[test]
fn a_picture_is_what_its_parts_make_by_hand() {
    let (place, cpu) = (sprint(), Cpu::new(CpuConfig::default()).unwrap());
    let mut pipeline = Pipeline::load(&cpu, place.path(), &PipelineOptions::default()).unwrap();
    assert_eq!((pipeline.defaults().steps, pipeline.defaults().guided_by), (2, GuidedBy::Nothing));
    let asked = ImageRequest { steps: None, ..request(&["  A Fox "], Some(INSTRUCTION)) };
    let got = run(&mut pipeline, &asked, 3);
    assert_eq!(got.unused, ["negative_prompt"]);
    let (text, mask) = rows(place.path(), &cpu, &[(INSTRUCTION, "a fox")]);
    let files = |name: &str| open(&place.path().join(name), Access::default()).unwrap();
    let mut transformer = Transformer::load(cpu.clone(), &files("transformer"), Float::F32).unwrap();
    let mut vae = Vae::load(cpu.clone(), &files("vae"), Float::F32).unwrap();
    let size = Grid { height: 4, width: 6 };
    let scales = [4.5 * 0.2];
    let input = TransformerInput {
        text: &text,
        mask: Some(&mask),
        guidance: Some(&scales),
        ..TransformerInput::default()
    };
    transformer.begin(Conditions { items: 1, size, tokens: TOKENS }, &input).unwrap();
    let noise = |what: Purpose| {
        let mut values = vec![0.0f32; size.pixels() * 8];
        Seeded(3).fill(what, 0, &mut values).unwrap();
        values.into_iter().map(|x| 0.4 * f64::from(x)).collect::<Vec<f64>>()
    };
    let mut latents = noise(Purpose::Latents);
    for (step, (t, next)) in [(FIRST, 1.3f64), (1.3, 0.0)].into_iter().enumerate() {
        let s = t.sin() / (t.cos() + t.sin());
        let r = (s * s + (1.0 - s) * (1.0 - s)).sqrt();
        let read: Vec<f64> = latents.iter().map(|x| x / 0.4 * r).collect();
        let narrow: Vec<f32> = read.iter().map(|x| *x as f32).collect();
        let made = block_on(transformer.step(&narrow, &[s])).unwrap();
        let z = noise(Purpose::Step(step));
        for (i, x) in latents.iter_mut().enumerate() {
            let mixed = (1.0 - 2.0 * s) * read[i] + (1.0 - 2.0 * s + 2.0 * s * s) * f64::from(made[i]);
            let original = t.cos() * *x - t.sin() * (0.4 * mixed / r);
            *x = next.cos() * original + next.sin() * z[i];
        }
    }
    let of_latents = off(&got.latents, &latents);
    assert!(of_latents < 1e-4, "{of_latents}");
    let scaled: Vec<f32> = got.latents.iter().map(|x| (f64::from(*x) / 0.4 / 0.41407) as f32).collect();
    let decoded = block_on(vae.decode(&scaled, 1, size)).unwrap();
    let of_picture = off(&got.decoded, &decoded.into_iter().map(f64::from).collect::<Vec<_>>());
    assert!(of_picture < 1e-4, "{of_picture}");
}

#[test]
fn pictures_are_those_that_they_are_alone() {
    let (place, cpu) = (sprint(), Cpu::new(CpuConfig::default()).unwrap());
    let mut pipeline = Pipeline::load(&cpu, place.path(), &PipelineOptions::default()).unwrap();
    let mut made = |prompts: &[&str], guidance: f64, seed: u64| {
        let asked = ImageRequest { guidance: Some(guidance), ..request(prompts, None) };
        run(&mut pipeline, &asked, seed).latents
    };
    let both = made(&["a fox", "a street"], 3.0, 5);
    let (first, second) = both.split_at(both.len() / 2);
    assert_eq!(made(&["a fox"], 3.0, 5), first);
    assert_eq!(made(&["a street"], 3.0, 6), second);
    assert_ne!(made(&["a fox"], 0.5, 5), first);
}

#[test]
fn parts_that_do_not_belong_together_are_refused_by_name() {
    let (place, cpu) = (sprint(), Cpu::new(CpuConfig::default()).unwrap());
    let load = |path: &Path| Pipeline::load(&cpu, path, &PipelineOptions::default());
    let refused = |path: &Path| load(path).err().unwrap().to_string();
    let flow = SchedulerConfig::from_json(r#"{"_class_name": "FlowMatchEulerDiscreteScheduler"}"#).unwrap();
    let scm = SchedulerConfig::from_json(SCM).unwrap();
    let checked = |pipeline: &Pipeline<Cpu>, scheduler: SchedulerConfig| {
        let asked = ImageRequest { scheduler: Some(scheduler), ..request(&["a fox"], None) };
        pipeline.check(&asked).unwrap_err().to_string()
    };
    let error = checked(&load(place.path()).unwrap(), flow);
    assert!(error.contains("scheduler") && error.contains("SCMScheduler: this model"), "{error}");
    named(place.path(), "SanaPipeline");
    let error = refused(place.path());
    assert!(error.contains("scheduler") && error.contains("no trigonometric flow"), "{error}");
    let other = folder("schedulers").join("dpmpp_2m_flow/scheduler_config.json");
    fs::copy(other, place.path().join("scheduler/scheduler_config.json")).unwrap();
    let error = refused(place.path());
    assert!(error.contains("guidance_embeds") && error.contains("false, which this class"), "{error}");
    let plain = assembled();
    let error = checked(&load(plain.path()).unwrap(), scm);
    assert!(error.contains("scheduler") && error.contains("no trigonometric flow"), "{error}");
    fs::write(plain.path().join("scheduler/scheduler_config.json"), SCM).unwrap();
    named(plain.path(), "SanaSprintPipeline");
    let error = refused(plain.path());
    assert!(error.contains("guidance_embeds") && error.contains("true, which this class"), "{error}");
}
