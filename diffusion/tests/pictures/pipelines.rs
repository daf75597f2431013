//! Whole pipelines against what the reference computes in f64, with the noise that it took.

use engraft_core::backend::block_on;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::{
    ImageRequest, Init, Lora, Noise as _, Pipeline, PipelineOptions, Progress, Purpose, Seeded, Sizes,
};
use image_goldens::{Runs, cases, folder, name, tokenizers};
use std::ops::ControlFlow;

/// Runs of all cases.
const RUNS: usize = 52;

#[test]
fn pictures_are_those_of_the_reference() {
    let mut count = 0;
    for folder in cases("pipelines").unwrap() {
        let (cpu, case) = (Cpu::new(CpuConfig::default()).unwrap(), name(&folder));
        let mut runs = Runs::open(&cpu, &folder).unwrap();
        for run in runs.names() {
            let verdict = runs.run(&run).unwrap_or_else(|e| panic!("{case} {run}: {e}"));
            println!("{case} {run}: {:.3} of the tolerance ({})", verdict.worst, verdict.tensor);
            assert!(
                verdict.passes(),
                "{case} {run}: {} is {:.3} of its tolerance",
                verdict.tensor,
                verdict.worst
            );
            count += 1;
        }
    }
    assert_eq!(count, RUNS);
}

/// A tokenizer's ids of all texts of a golden.
#[test]
fn tokenizers_give_the_ids_of_the_reference() {
    let all = cases("pipelines").unwrap();
    let texts: usize =
        all.iter().map(|folder| tokenizers(folder).unwrap_or_else(|e| panic!("{}: {e}", name(folder)))).sum();
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

#[test]
fn pictures_that_begin_with_one_have_the_bits_that_they_have_alone() {
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    let rgb: Vec<f32> = (0..24 * 16 * 3).map(|i| (i % 97) as f32 / 97.0).collect();
    let mask: Vec<f32> = (0..24 * 16).map(|i| if i % 24 < 12 { 1.0 } else { 0.0 }).collect();
    for (case, masked) in [("sd1", false), ("sd1", true), ("sd1_inpaint", true)] {
        let mut pipeline =
            Pipeline::load(&cpu, &folder("pipelines").join(case), &PipelineOptions::default()).unwrap();
        let mut run = |prompts: &[&str], seed| {
            let mask = masked.then(|| mask.clone());
            let init = Some(Init { rgb: rgb.clone(), strength: 0.6, mask });
            let request = ImageRequest { steps: Some(4), text_tokens: None, init, ..small(prompts) };
            let all = &mut |_: Progress| ControlFlow::Continue(());
            block_on(pipeline.run(&request, &mut Seeded(seed), all)).unwrap().unwrap()
        };
        let both = run(&["a fox", "a fox"], 5);
        let (first, second) = both.latents.split_at(both.latents.len() / 2);
        assert_ne!(first, second, "{case}");
        let alone = run(&["a fox"], 6);
        assert!(alone.decoded == both.decoded[alone.decoded.len()..], "{case}, masked: {masked}");
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
    let short = Some(Init { rgb: vec![0.5; 24 * 16 * 3], strength: 0.1, mask: None });
    let none = Some(Init { rgb: vec![0.5; 24 * 16 * 3], strength: 0.0, mask: None });
    let large = Some(Init { rgb: vec![0.5; 24 * 24 * 3], strength: 0.5, mask: None });
    let requests = [
        ("strength", ImageRequest { init: none, ..small(&["a"]) }),
        ("init", ImageRequest { init: large, ..small(&["a"]) }),
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
    // The reference has no pipeline of PixArt that begins with a picture or reads LoRA files.
    let mut pixart = load("pixart_sigma", &PipelineOptions::default()).unwrap();
    let all = &mut |_: Progress| ControlFlow::Continue(());
    let request = ImageRequest { init: short, text_tokens: None, ..small(&["a"]) };
    let error = block_on(pixart.run(&request, &mut Seeded(1), all)).unwrap_err().to_string();
    assert!(error.contains("init") && error.contains("reads none"), "{error}");
    for (case, file, what) in [
        ("pixart_sigma", "sd3/lora_peft.safetensors", "none for a PixArtTransformer2DModel"),
        ("sd35", "sdxl/lora_kohya_sgm.safetensors", "lora_kohya_sgm.safetensors"),
        ("flux", "sd3/lora_kohya.safetensors", "context_embedder"),
        ("sd3", "flux/lora_kohya.safetensors", "final_layer_linear"),
    ] {
        let error = load(case, &with_lora(file)).err().unwrap();
        assert!(error.contains("lora") && error.contains(what), "{case} with {file}: {error}");
    }
}

/// With a LoRA file of a case.
fn with_lora(file: &str) -> PipelineOptions {
    let lora = Lora { file: folder("pipelines").join(file), scale: 1.0 };
    PipelineOptions { loras: vec![lora], ..PipelineOptions::default() }
}

/// The same weights are added by the names of two programs, of which one has queries, keys and values as one
/// module and shifts before scales.
#[test]
fn loras_of_transformers_mean_the_same_by_either_name() {
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    let run = |options: &PipelineOptions| {
        let mut pipeline = Pipeline::load(&cpu, &folder("pipelines").join("sd3"), options).unwrap();
        let all = &mut |_: Progress| ControlFlow::Continue(());
        block_on(pipeline.run(&small(&["a fox"]), &mut Seeded(3), all)).unwrap().unwrap().latents
    };
    let peft = run(&with_lora("sd3/lora_peft.safetensors"));
    let kohya = run(&with_lora("sd3/lora_kohya.safetensors"));
    let plain = run(&PipelineOptions::default());
    let differ = |a: &[f32]| a.iter().zip(&peft).fold(0.0f32, |most, (x, y)| most.max((x - y).abs()));
    assert!(differ(&kohya) < 1e-4 && differ(&plain) > 0.1, "{} {}", differ(&kohya), differ(&plain));
}

/// A shape without values has any rank: what the rank is multiplied by would overflow.
#[test]
fn loras_without_values_are_refused() {
    let (cpu, temporary) = (Cpu::new(CpuConfig::default()).unwrap(), tempfile::tempdir().unwrap());
    let file = temporary.path().join("empty.safetensors");
    let (module, most) = ("unet.down_blocks.0.attentions.0.proj_in", i64::MAX);
    let tensor = |end: &str, shape: [i64; 2]| {
        let shape = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [0, 0]});
        format!("\"{module}.{end}.weight\": {shape}")
    };
    let header = format!("{{{}, {}}}", tensor("lora_A", [most, 0]), tensor("lora_B", [0, most]));
    std::fs::write(&file, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    let options = PipelineOptions { loras: vec![Lora { file, scale: 1.0 }], ..PipelineOptions::default() };
    let error = Pipeline::load(&cpu, &folder("pipelines").join("sd1_lora"), &options).map(drop).unwrap_err();
    let said = error.to_string();
    assert!(said.contains(module) && said.contains("has no values"), "{said}");
}

/// A LoRA file of a case with this JSON in its header, where diffusers has the fields of PEFT.
fn with_fields(folder: &std::path::Path, fields: &str) -> PipelineOptions {
    let bytes = std::fs::read(image_goldens::folder("pipelines").join("sd3/lora_peft.safetensors")).unwrap();
    let length = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..length]).unwrap();
    header["__metadata__"] = serde_json::json!({"format": "pt", "lora_adapter_metadata": fields});
    let header = header.to_string();
    let parts = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[length..]];
    let file = folder.join("fields.safetensors");
    std::fs::write(&file, parts.concat()).unwrap();
    PipelineOptions { loras: vec![Lora { file, scale: 1.0 }], ..PipelineOptions::default() }
}

/// `lora_alpha` over the rank counts where it stands in the header, as a factor of the command line does.
#[test]
fn the_alpha_of_a_header_counts() {
    let (cpu, temporary) = (Cpu::new(CpuConfig::default()).unwrap(), tempfile::tempdir().unwrap());
    let load = |options: &PipelineOptions| Pipeline::load(&cpu, &folder("pipelines").join("sd3"), options);
    let run = |options: &PipelineOptions| {
        let (mut pipeline, request) = (load(options).unwrap(), small(&["a fox"]));
        let all = &mut |_: Progress| ControlFlow::Continue(());
        block_on(pipeline.run(&request, &mut Seeded(3), all)).unwrap().unwrap().latents
    };
    let peft = |scale: f64| {
        let file = folder("pipelines").join("sd3/lora_peft.safetensors");
        run(&PipelineOptions { loras: vec![Lora { file, scale }], ..PipelineOptions::default() })
    };
    let fields = r#"{"transformer.r": 2, "transformer.lora_alpha": 1, "transformer.use_dora": false}"#;
    let header = run(&with_fields(temporary.path(), fields));
    assert_eq!(header, peft(0.5));
    assert_ne!(header, peft(1.0));
    for (fields, what) in [
        (r#"{"transformer.r": 2, "transformer.use_dora": true}"#, "transformer.use_dora"),
        (r#"{"transformer.r": 4}"#, "transformer.r"),
        ("2", "lora_adapter_metadata"),
    ] {
        let error = load(&with_fields(temporary.path(), fields)).err().unwrap().to_string();
        assert!(error.contains(what), "{fields}: {error}");
    }
}

/// What stays where a mask is black is the picture's own latents, at any strength and in a batch.
#[test]
fn transformers_keep_what_a_mask_hides() {
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    let mut rgb = vec![0.0; 24 * 16 * 3];
    Seeded(4).fill(Purpose::Latents, 0, &mut rgb).unwrap();
    let mask: Vec<f32> = (0..16 * 24).map(|at| if at % 24 < 8 { 1.0 } else { 0.0 }).collect();
    for case in ["sd35", "flux"] {
        let path = folder("pipelines").join(case);
        let mut pipeline = Pipeline::load(&cpu, &path, &PipelineOptions::default()).unwrap();
        let mut run = |prompts: &[&str], seed: u64, strength: f64, mask: Option<&Vec<f32>>| {
            let init = Some(Init { rgb: rgb.clone(), strength, mask: mask.cloned() });
            let request = ImageRequest { init, steps: Some(4), ..small(prompts) };
            let mut seen = Vec::new();
            let watch = &mut |progress: Progress| {
                seen.push((progress.done, progress.of));
                ControlFlow::Continue(())
            };
            let images = block_on(pipeline.run(&request, &mut Seeded(seed), watch)).unwrap().unwrap();
            (images, seen)
        };
        let (both, seen) = run(&["a fox", "lamps"], 5, 0.6, Some(&mask));
        assert_eq!(seen, [(1, 3), (2, 3), (3, 3)], "{case}: 4 - 2.4 steps are left out, rounded down");
        let (free, _) = run(&["a fox"], 5, 0.6, None);
        let (whole, seen) = run(&["lamps"], 5, 1.0, Some(&mask));
        assert_eq!(seen.len(), 4, "{case}");
        // Rows of latents, of FLUX of squares: those of the last columns stay.
        let across = if case == "flux" { 3 } else { 6 };
        let width = free.latents.len() / (across * if case == "flux" { 2 } else { 4 });
        let kept = |latents: &[f32]| -> Vec<f32> {
            let rows = latents.chunks(width).enumerate();
            rows.filter(|(at, _)| 3 * (at % across) >= across).flat_map(|(_, row)| row.to_vec()).collect()
        };
        let [first, second] =
            [0, 1].map(|item| kept(both.latents.chunks(free.latents.len()).nth(item).unwrap()));
        // What is put back is the picture as its encoder's noise has it, which is the item's own.
        let (other, _) = run(&["a fox"], 6, 1.0, Some(&mask));
        assert!(first == kept(&whole.latents), "{case}: the first of two is another than alone");
        assert!(second == kept(&other.latents), "{case}: the second of two is another than alone");
        assert_ne!(first, kept(&free.latents), "{case}");
        assert_ne!(both.rgb[0], both.rgb[1], "{case}");
    }
}
