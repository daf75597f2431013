//! Sana's pipeline, of parts that are each held to the reference: what it makes of them is what they make by
//! hand.

use engraft_core::backend::block_on;
use engraft_core::checkpoint::{Access, open, open_tokenizer};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, Engine, ForwardWant, Pick};
use engraft_core::inject::inject;
use engraft_core::mem::Float;
use engraft_core::policy::Registry;
use engraft_core::text::Tokenizer;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::graph::Grid;
use engraft_diffusion::nets::Conditions;
use engraft_diffusion::{
    ImageRequest, Images, Noise, Pipeline, PipelineOptions, Progress, Purpose, Seeded, Transformer,
    TransformerInput, Vae,
};
use engraft_image::{Scheduler, SchedulerConfig, Settings, Steps, guide};
use image_goldens::folder;
use serde_json::{Map, Value, json};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

/// Tokens of a text.
pub const TOKENS: usize = 11;
/// What prompts stand behind.
pub const INSTRUCTION: &str = "the model is trained on the corner ";

/// A file of tensors with another one in the place of `name`, of f16 values that repeat.
fn exchanged(from: &Path, to: &Path, name: &str, shape: [usize; 2]) {
    let all = fs::read(from).unwrap();
    let len = u64::from_le_bytes(all[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&all[8..8 + len]).unwrap();
    let (old, mut values, mut made) = (&all[8 + len..], Vec::new(), Map::new());
    for (tensor, said) in header.iter().filter(|(tensor, _)| *tensor != "__metadata__") {
        let (start, mut said) = (values.len(), said.clone());
        if tensor == name {
            said = json!({ "dtype": "F16", "shape": shape });
            // 0.25, -0.125, 0.0625 and zero.
            let numbers = (0..shape[0] * shape[1]).map(|i| [0x3400u16, 0xB000, 0x2C00, 0][i * 7 % 11 % 4]);
            values.extend(numbers.flat_map(u16::to_le_bytes));
        } else {
            let at = |end: usize| said["data_offsets"][end].as_u64().unwrap() as usize;
            values.extend(&old[at(0)..at(1)]);
        }
        said["data_offsets"] = json!([start, values.len()]);
        made.insert(tensor.clone(), said);
    }
    let text = serde_json::to_vec(&made).unwrap();
    fs::write(to, [&(text.len() as u64).to_le_bytes()[..], &text, &values].concat()).unwrap();
}

fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap().map(|file| file.unwrap().path()) {
        if !file.file_name().unwrap().to_string_lossy().starts_with("golden") {
            fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
}

/// A pipeline of the goldens of its parts; the transformer reads the width of the text encoder.
pub fn assembled() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let (components, pixart) = (folder("components"), folder("pipelines").join("pixart_sigma"));
    let sana = components.join("sana_transformer");
    copied(&components.parent().unwrap().with_file_name("golden").join("gemma2"), &at("text_encoder"));
    copied(&pixart.join("tokenizer"), &at("tokenizer"));
    copied(&components.join("vae_dc"), &at("vae"));
    copied(&folder("schedulers").join("dpmpp_2m_flow"), &at("scheduler"));
    fs::create_dir_all(at("transformer")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(sana.join("config.json")).unwrap()).unwrap();
    config["caption_channels"] = json!(80);
    fs::write(at("transformer/config.json"), config.to_string()).unwrap();
    let weights = "diffusion_pytorch_model.safetensors";
    let name = "caption_projection.linear_1.weight";
    exchanged(&sana.join(weights), &at("transformer").join(weights), name, [32, 80]);
    let of = |library: &str, class: &str| json!([library, class]);
    let index = json!({
        "_class_name": "SanaPipeline",
        "scheduler": of("diffusers", "DPMSolverMultistepScheduler"),
        "text_encoder": of("transformers", "Gemma2ForCausalLM"),
        "tokenizer": of("transformers", "T5TokenizerFast"),
        "transformer": of("diffusers", "SanaTransformer2DModel"),
        "vae": of("diffusers", "AutoencoderDC"),
    });
    fs::write(at("model_index.json"), index.to_string()).unwrap();
    place
}

pub fn request(prompts: &[&str], instruction: Option<&str>) -> ImageRequest {
    ImageRequest {
        prompts: prompts.iter().map(|prompt| prompt.to_string()).collect(),
        negative: Some(vec!["A Dog".to_string()]),
        text_tokens: Some(TOKENS),
        instruction: instruction.map(str::to_string),
        width: 24,
        height: 16,
        steps: Some(2),
        ..ImageRequest::new("")
    }
}

pub fn run(pipeline: &mut Pipeline<Cpu>, request: &ImageRequest, seed: u64) -> Images {
    let all = &mut |_: Progress| ControlFlow::Continue(());
    block_on(pipeline.run(request, &mut Seeded(seed), all)).unwrap().unwrap()
}

#[test]
fn pictures_are_those_that_they_are_alone() {
    let (place, cpu) = (assembled(), Cpu::new(CpuConfig::default()).unwrap());
    let mut pipeline = Pipeline::load(&cpu, place.path(), &PipelineOptions::default()).unwrap();
    let (one, other) = ("a fox", "coffee, the trained model is on the corner of the street");
    let both = run(&mut pipeline, &request(&[one, other], Some(INSTRUCTION)), 5);
    assert_eq!(both.rgb[0].len(), 24 * 16 * 3);
    assert_eq!(run(&mut pipeline, &request(&[other], Some(INSTRUCTION)), 6).rgb[0], both.rgb[1]);
    assert_eq!(run(&mut pipeline, &request(&[one], Some(INSTRUCTION)), 5).rgb[0], both.rgb[0]);
    let plain = run(&mut pipeline, &request(&[one], None), 5);
    assert_ne!(plain.decoded, both.decoded[..plain.decoded.len()], "without the instruction");
    assert_eq!(both.shortened.len(), 1, "{:?}", both.shortened);
    let long = request(&["a"], Some(&INSTRUCTION.repeat(9)));
    let all = &mut |_: Progress| ControlFlow::Continue(());
    let error = block_on(pipeline.run(&long, &mut Seeded(1), all)).unwrap_err().to_string();
    assert!(error.contains("max_sequence_length") && error.contains("instruction"), "{error}");
}

/// Rows and mask of texts: those of the first token, and from the instruction's last on.
pub fn rows(place: &Path, cpu: &std::sync::Arc<Cpu>, texts: &[(&str, &str)]) -> (Vec<f32>, Vec<bool>) {
    let files = open(&place.join("text_encoder"), Access::default()).unwrap();
    let tokenizer = open_tokenizer(&place.join("tokenizer")).unwrap();
    let tokenizer = Tokenizer::from_files("tokenizer", tokenizer).unwrap();
    let options = LoadOptions { dtype: Some(Float::F32), ..LoadOptions::default() };
    let model = inject(cpu, &files, &Registry::default(), 64, options, &mut |_, _| {}).unwrap();
    let config =
        EngineConfig { max_context: 64, max_step_tokens: 128, max_seqs: 2, ..EngineConfig::default() };
    let mut engine = Engine::new(cpu.clone(), model, config).unwrap();
    let (mut all, mut mask) = (Vec::new(), Vec::new());
    for (instruction, text) in texts {
        let mut ids = tokenizer.encode(&format!("{instruction}{text}"), true).unwrap();
        let before =
            if instruction.is_empty() { 2 } else { tokenizer.encode(instruction, true).unwrap().len() };
        let most = before + TOKENS - 2;
        if ids.len() > most {
            let end = ids[ids.len() - 1];
            ids.truncate(most - 1);
            ids.push(end);
        }
        let want = ForwardWant { hidden: Pick::Last, logits: Pick::None };
        let hidden =
            engine.forward(Batch::Ragged(std::slice::from_ref(&ids)), &want).unwrap().remove(0).hidden;
        let kept = (0..ids.len()).filter(|token| *token == 0 || *token + 1 >= before);
        let mut own: Vec<f32> =
            kept.flat_map(|token| hidden[0][token * 80..(token + 1) * 80].to_vec()).collect();
        mask.extend((0..TOKENS).map(|token| token * 80 < own.len()));
        own.resize(TOKENS * 80, 0.0);
        all.extend(own);
    }
    (all, mask)
}

#[test]
fn a_picture_is_what_its_parts_make_by_hand() {
    let (place, cpu) = (assembled(), Cpu::new(CpuConfig::default()).unwrap());
    let mut pipeline = Pipeline::load(&cpu, place.path(), &PipelineOptions::default()).unwrap();
    let got = run(&mut pipeline, &request(&["  A Fox "], Some(INSTRUCTION)), 3);
    let (text, mask) = rows(place.path(), &cpu, &[("", "a dog"), (INSTRUCTION, "a fox")]);
    let files = |name: &str| open(&place.path().join(name), Access::default()).unwrap();
    let mut transformer = Transformer::load(cpu.clone(), &files("transformer"), Float::F32).unwrap();
    let mut vae = Vae::load(cpu.clone(), &files("vae"), Float::F32).unwrap();
    let size = Grid { height: 4, width: 6 };
    let input = TransformerInput { text: &text, mask: Some(&mask), ..TransformerInput::default() };
    transformer.begin(Conditions { items: 2, size, tokens: TOKENS }, &input).unwrap();
    let said = fs::read_to_string(place.path().join("scheduler/scheduler_config.json")).unwrap();
    let config = SchedulerConfig::from_json(&said).unwrap();
    let mut scheduler = Scheduler::new(&config, Steps::Count(2), Settings::default()).unwrap();
    let mut latents = vec![0.0; size.pixels() * 8];
    Seeded(3).fill(Purpose::Latents, 0, &mut latents).unwrap();
    for time in scheduler.timesteps().to_vec() {
        let made = block_on(transformer.step(&latents.repeat(2), &[time; 2])).unwrap();
        let (without, with) = made.split_at(made.len() / 2);
        let output = guide(without, with, 4.5).unwrap();
        scheduler.step(&output, &mut latents, None).unwrap();
    }
    assert_eq!(got.latents, latents);
    let scaled: Vec<f32> = latents.iter().map(|x| (f64::from(*x) / 0.41407) as f32).collect();
    assert_eq!(got.decoded, block_on(vae.decode(&scaled, 1, size)).unwrap());
}
