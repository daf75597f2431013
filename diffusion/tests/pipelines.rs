//! Whole pipelines against what the reference computes in f64, step by step, with the noise that it drew.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden;

use engraft_core::backend::block_on;
use engraft_core::checkpoint::Access;
use engraft_core::mem::Float;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::engraft_image::SchedulerConfig;
use engraft_diffusion::{
    Folder, ImageRequest, Images, Init, Lora, Noise, Pipeline, PipelineOptions, Progress, Purpose, Seeded,
    Sizes,
};
use golden::{Golden, folder, rows};
use serde_json::Value;
use std::ops::ControlFlow;

/// Pipelines and their runs that are run here.
const RUNS: [(&str, &[&str]); 11] = [
    (
        "sd1",
        &[
            "txt2img",
            "ddim",
            "euler",
            "euler_a",
            "dpmpp_2m_karras",
            "no_guidance",
            "clip_skip",
            "batch",
            "img2img",
            "img2img_ddim",
            "img2img_euler",
            "inpaint_blend",
        ],
    ),
    ("sd2", &["txt2img", "zero_snr_rescale", "euler_v"]),
    ("sd1_lora", &["base", "kohya_alphas", "kohya", "kohya_scaled", "peft", "old_diffusers"]),
    ("sd1_inpaint", &["inpaint", "inpaint_strength"]),
    ("lcm", &["txt2img"]),
    (
        "sdxl",
        &[
            "txt2img",
            "no_negative",
            "two_prompts",
            "no_guidance",
            "batch_dpmpp_sde",
            "img2img",
            "lora_kohya_sgm",
        ],
    ),
    ("sd3", &["txt2img", "no_t5", "no_guidance", "three_prompts"]),
    ("sd35", &["txt2img", "no_t5"]),
    ("flux", &["txt2img", "batch", "true_cfg"]),
    ("flux_schnell", &["txt2img", "batch"]),
    ("pixart_sigma", &["txt2img"]),
];

/// The noise of a golden.
struct Given<'a>(&'a Golden);

impl Noise for Given<'_> {
    fn fill(&mut self, what: Purpose, item: usize, into: &mut [f32]) {
        let Given(golden) = self;
        let names: [String; 2] = match what {
            Purpose::Latents => ["in.latents".into(), "in.noise.latents.0".into()],
            Purpose::Posterior(k) => [format!("in.noise.posterior.{k}"), String::new()],
            Purpose::Step(_) => ["in.step_noise".into(), String::new()],
        };
        let name = names.iter().find(|name| golden.find(name).is_some()).unwrap();
        let (mut shape, mut values) = golden.get(name);
        if let Purpose::Step(step) = what {
            let each = values.len() / shape[0];
            values = values[step * each..(step + 1) * each].to_vec();
            shape.remove(0);
        }
        let all = match shape[..] {
            [items, channels, height, width] => rows(&values, items, channels, height * width),
            // FLUX: rows already.
            _ => values.into_iter().map(|x| x as f32).collect(),
        };
        into.copy_from_slice(&all[item * into.len()..(item + 1) * into.len()]);
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(all) => Some(all.iter().map(|text| text.as_str().unwrap().to_string()).collect()),
        _ => None,
    }
}

/// The arguments of a call that are understood here; any other fails the test.
fn request(golden: &Golden, run: &Value) -> ImageRequest {
    let mut request = ImageRequest::new("");
    for (name, value) in run["call"].as_object().unwrap() {
        let number = || value.as_f64().unwrap();
        match name.as_str() {
            "prompt" => request.prompts = texts(value).unwrap(),
            "prompt_2" => request.second_prompts = texts(value),
            "prompt_3" => request.third_prompts = texts(value),
            "negative_prompt_3" => request.third_negative = texts(value),
            "max_sequence_length" => request.text_tokens = Some(number() as usize),
            "true_cfg_scale" => request.true_guidance = Some(number()),
            "use_resolution_binning" => assert_eq!(value, false),
            "negative_prompt" => request.negative = texts(value),
            "negative_prompt_2" => request.second_negative = texts(value),
            "height" => request.height = number() as usize,
            "width" => request.width = number() as usize,
            "num_inference_steps" => request.steps = Some(number() as usize),
            "guidance_scale" => request.guidance = Some(number()),
            "guidance_rescale" => request.guidance_rescale = number(),
            "clip_skip" => request.clip_skip = value.as_u64().unwrap_or(0) as usize,
            "eta" => request.eta = number(),
            // Read below.
            "strength" | "cross_attention_kwargs" => {}
            "crops_coords_top_left" | "original_size" | "target_size" => {}
            "negative_crops_coords_top_left" | "negative_original_size" | "negative_target_size" => {}
            other => panic!("{}: {other} = {value}", golden.name),
        }
    }
    if let Some((shape, values)) = golden.find("in.image") {
        let strength = run["call"]["strength"].as_f64().unwrap_or(0.8);
        let mask = golden.find("in.mask_image").map(|(_, mask)| mask.into_iter().map(|x| x as f32).collect());
        request.init = Some(Init { rgb: rows(&values, 1, 3, shape[2] * shape[3]), strength, mask });
        (request.height, request.width) = (shape[2], shape[3]);
    }
    if !run["scheduler"].is_null() {
        request.scheduler = Some(SchedulerConfig::from_json(&run["scheduler"].to_string()).unwrap());
    }
    let pair = |name: &str| {
        let pair = run["call"][name].as_array()?;
        Some((pair[0].as_u64()? as usize, pair[1].as_u64()? as usize))
    };
    let sizes = |prefix: &str| {
        let [original, crop, target] = ["original_size", "crops_coords_top_left", "target_size"]
            .map(|name| pair(&format!("{prefix}{name}")));
        Some(Sizes { original: original?, crop: crop?, target: target? })
    };
    (request.sizes, request.negative_sizes) = (sizes(""), sizes("negative_"));
    let count = request.prompts.len();
    for texts in [&mut request.negative, &mut request.second_negative].into_iter().flatten() {
        if texts.len() == 1 {
            *texts = vec![texts[0].clone(); count];
        }
    }
    request
}

fn run(pipeline: &mut Pipeline<Cpu>, golden: &Golden, said: &Value) -> Images {
    let request = request(golden, said);
    let mut steps = Vec::new();
    let images = block_on(pipeline.run(&request, &mut Given(golden), &mut |progress| {
        steps.push(progress.done);
        ControlFlow::Continue(())
    }));
    let images = images.unwrap_or_else(|e| panic!("{}: {e}", golden.name)).unwrap();
    let (_, times) = golden.get("timesteps");
    assert_eq!(steps, (1..=times.len()).collect::<Vec<_>>(), "{}", golden.name);
    images
}

#[test]
fn pictures_are_those_of_the_reference() {
    for (case, runs) in RUNS {
        let path = folder("pipelines").join(case);
        let said: Value =
            serde_json::from_str(&std::fs::read_to_string(path.join("golden.json")).unwrap()).unwrap();
        let cpu = Cpu::new(CpuConfig::default()).unwrap();
        let load = |loras: Vec<Lora>, without: Vec<String>| {
            let options = PipelineOptions { access: Access::default(), dtype: Float::F32, loras, without };
            Pipeline::load(&cpu, &path, &options).unwrap()
        };
        let mut plain = load(Vec::new(), Vec::new());
        for name in runs {
            let own = &said["runs"][*name];
            let scale = own["call"]["cross_attention_kwargs"]["scale"].as_f64().unwrap_or(1.0);
            let lora = own["lora"].as_str().map(|file| Lora { file: path.join(file), scale });
            let dropped = own["dropped"].as_array().into_iter().flatten();
            let dropped: Vec<String> = dropped.map(|name| name.as_str().unwrap().to_string()).collect();
            let another = lora.is_some() || !dropped.is_empty();
            let mut with = another.then(|| load(lora.into_iter().collect(), dropped));
            let pipeline = with.as_mut().unwrap_or(&mut plain);
            let golden = Golden::run(&path, case, name, own);
            let images = run(pipeline, &golden, own);
            let last = golden.last_latents();
            golden.judge("latents", &images.latents, &last, 2e-5);
            golden.judge("decoded", &images.decoded, &golden.wanted("decoded"), 2e-5);
            let want = golden.bytes_of("image");
            let got: Vec<u8> = images.rgb.concat();
            let worst = got.iter().zip(&want).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(got.len() == want.len() && worst <= Some(1), "{case} {name}: bytes differ by {worst:?}");
        }
    }
}

/// A tokenizer's ids of all texts of a golden.
#[test]
fn tokenizers_give_the_ids_of_the_reference() {
    let mut texts = 0;
    for (case, _) in RUNS {
        let path = folder("pipelines").join(case);
        let all: Value =
            serde_json::from_str(&std::fs::read_to_string(path.join("tokenizer_golden.json")).unwrap())
                .unwrap();
        let opened = Folder::open(&path).unwrap();
        for (name, rows) in all.as_object().unwrap() {
            let (tokenizer, _) = opened.tokenizer(name).unwrap();
            for row in rows.as_array().unwrap() {
                let ids = |field: &str| -> Vec<u32> {
                    row[field].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
                };
                let text = row["text"].as_str().unwrap();
                assert_eq!(tokenizer.encode(text, true).unwrap(), ids("ids"), "{case} {name}: {text:?}");
                let (padded, own) = (ids("padded_24"), tokenizer.encode_truncated(text, true, 24).unwrap());
                assert_eq!(own, padded[..own.len()], "{case} {name}: {text:?}");
                texts += 1;
            }
        }
    }
    assert!(texts >= 70, "{texts} texts");
}

#[test]
fn what_is_too_long_is_said_and_a_run_can_end() {
    let path = folder("pipelines").join("sd1");
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    let mut pipeline = Pipeline::load(&cpu, &path, &PipelineOptions::default()).unwrap();
    let (long, short) = ("a fox ".repeat(40), "a fox".to_string());
    let request = |prompts: &[&String]| ImageRequest {
        prompts: prompts.iter().map(|prompt| prompt.to_string()).collect(),
        width: 32,
        height: 32,
        steps: Some(3),
        ..ImageRequest::new("")
    };
    let mut run = |request: &ImageRequest, most: usize| {
        let until = |progress: Progress| {
            if progress.done < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        block_on(pipeline.run(request, &mut Seeded(1), &mut { until }))
    };
    let both = run(&request(&[&long, &short]), 9).unwrap().unwrap();
    assert_eq!(both.shortened, [(long.clone(), 24)]);
    assert!(run(&request(&[&short]), 2).unwrap().is_none(), "ended after two steps");
    let alone = run(&request(&[&long]), 9).unwrap().unwrap();
    assert_eq!(alone.rgb[0], both.rgb[0], "after a run that was ended");
    let again = run(&request(&[&short]), 9).unwrap().unwrap();
    assert!(again.shortened.is_empty() && again.rgb[0] != both.rgb[1], "another seed");
    let init = Some(Init { rgb: vec![0.5; 32 * 32 * 3], strength: 0.1, mask: None });
    let error = run(&ImageRequest { init, ..request(&[&short]) }, 9).unwrap_err().to_string();
    assert!(error.contains("strength") && error.contains("3 steps"), "{error}");
    let second = ImageRequest { second_prompts: Some(vec![short.clone()]), ..request(&[&short]) };
    let own = Sizes { original: (32, 32), crop: (0, 0), target: (32, 32) };
    for (field, request) in
        [("prompt_2", second), ("sizes", ImageRequest { sizes: Some(own), ..request(&[&short]) })]
    {
        let error = run(&request, 9).unwrap_err().to_string();
        assert!(error.contains(field) && error.contains("reads none"), "{error}");
    }
}

/// A request of small pictures that few steps make.
fn small(prompts: &[&str]) -> ImageRequest {
    ImageRequest {
        prompts: prompts.iter().map(|prompt| prompt.to_string()).collect(),
        negative: Some(vec!["a dog".to_string()]),
        width: 24,
        height: 16,
        steps: Some(2),
        text_tokens: Some(9),
        ..ImageRequest::new("")
    }
}

#[test]
fn pictures_of_transformers_are_those_that_they_are_alone() {
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    for case in ["sd3", "sd35", "flux", "pixart_sigma"] {
        let path = folder("pipelines").join(case);
        let mut pipeline = Pipeline::load(&cpu, &path, &PipelineOptions::default()).unwrap();
        let true_guidance = (case == "flux").then_some(2.0);
        let mut run = |prompts: &[&str], seed: u64| {
            let request = ImageRequest { true_guidance, ..small(prompts) };
            let all = &mut |_: Progress| ControlFlow::Continue(());
            block_on(pipeline.run(&request, &mut Seeded(seed), all)).unwrap().unwrap()
        };
        let both = run(&["a fox", "The model is trained; coffee on the corner"], 5);
        let alone = run(&["The model is trained; coffee on the corner"], 6);
        assert_eq!(alone.rgb[0].len(), 24 * 16 * 3, "{case}");
        assert_eq!(alone.rgb[0], both.rgb[1], "{case}");
        assert_ne!(both.rgb[0], both.rgb[1], "{case}");
        assert_eq!(run(&["a fox"], 5).rgb[0], both.rgb[0], "{case}");
    }
}

#[test]
fn what_transformers_do_not_read_is_refused() {
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    let load = |case: &str, options: &PipelineOptions| {
        Pipeline::load(&cpu, &folder("pipelines").join(case), options).map_err(|error| error.to_string())
    };
    let mut flux = load("flux_schnell", &PipelineOptions::default()).unwrap();
    let init = Some(Init { rgb: vec![0.5; 24 * 16 * 3], strength: 0.5, mask: None });
    let requests = [
        ("init", ImageRequest { init, ..small(&["a"]) }),
        ("guidance", ImageRequest { guidance: Some(3.5), ..small(&["a"]) }),
        ("guidance_rescale", ImageRequest { guidance_rescale: 0.7, ..small(&["a"]) }),
        ("clip_skip", ImageRequest { clip_skip: 1, ..small(&["a"]) }),
        ("prompt_3", ImageRequest { third_prompts: Some(vec!["a".to_string()]), ..small(&["a"]) }),
        ("max_sequence_length", ImageRequest { text_tokens: Some(513), ..small(&["a"]) }),
        ("true_guidance", ImageRequest { true_guidance: Some(f64::NAN), ..small(&["a"]) }),
        ("height", ImageRequest { height: 20, ..small(&["a"]) }),
    ];
    for (field, request) in requests {
        let all = &mut |_: Progress| ControlFlow::Continue(());
        let error = block_on(flux.run(&request, &mut Seeded(1), all)).unwrap_err().to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
    let without =
        |name: &str| PipelineOptions { without: vec![name.to_string()], ..PipelineOptions::default() };
    for (case, name, what) in [
        ("flux", "text_encoder_2", "has no `text_encoder_2`"),
        ("sd3", "text_encoder", "has no `text_encoder`"),
        ("sd3", "text_encoder_4", "text_encoder_4"),
        ("pixart_sigma", "transformer", "has no `transformer`"),
    ] {
        let error = load(case, &without(name)).err().unwrap();
        assert!(error.contains(what), "{case} without {name}: {error}");
    }
    let lora = Lora { file: folder("pipelines").join("sdxl/lora_kohya_sgm.safetensors"), scale: 1.0 };
    let error =
        load("sd35", &PipelineOptions { loras: vec![lora], ..PipelineOptions::default() }).err().unwrap();
    assert!(error.contains("lora"), "{error}");
}
