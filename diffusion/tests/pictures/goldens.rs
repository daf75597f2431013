//! Models of pictures against what the reference computes in f64.

use engraft_core::backend::block_on;
use engraft_core::checkpoint::{Access, open};
use engraft_core::mem::Float;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::graph::Grid;
use engraft_diffusion::nets::Conditions;
use engraft_diffusion::{Unet, UnetInput};
use image_goldens::{Golden, cases, class, component, folder, json, name};
use std::path::{Path, PathBuf};

fn holds(folder: &Path, dtype: Float) {
    let (cpu, case) = (Cpu::new(CpuConfig::default()).unwrap(), name(folder));
    let verdict = component(&cpu, folder, dtype).unwrap_or_else(|e| panic!("{case}: {e}")).verdict;
    println!("{case} in {dtype}: {:.3} of the tolerance ({})", verdict.worst, verdict.tensor);
    assert!(
        verdict.passes(),
        "{case} in {dtype}: {} is {:.3} of its tolerance",
        verdict.tensor,
        verdict.worst
    );
}

#[test]
fn every_model_is_the_reference() {
    let mut count = 0;
    // Text encoders are models of the engine.
    let models = |folder: &PathBuf| class(folder).is_some();
    for folder in cases("components").unwrap().into_iter().filter(models) {
        holds(&folder, Float::F32);
        count += 1;
    }
    assert_eq!(count, 18);
}

/// The weights of a case with positions, which 4096 pixels have: what the reference makes of them is in a
/// file of its own.
#[test]
fn positions_of_sana_are_the_reference() {
    let (from, place) = (folder("components").join("sana_transformer"), tempfile::tempdir().unwrap());
    let to = |name: &str| place.path().join(name);
    let mut config = json(&from.join("config.json")).unwrap();
    config["interpolation_scale"] = 2.into();
    std::fs::write(to("config.json"), config.to_string()).unwrap();
    for (file, name) in [
        ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors"),
        ("golden.json", "golden.json"),
        ("golden.interpolation.safetensors", "golden.safetensors"),
    ] {
        std::fs::copy(from.join(file), to(name)).unwrap();
    }
    holds(place.path(), Float::F32);
    config["interpolation_scale"] = 1.into();
    std::fs::write(to("config.json"), config.to_string()).unwrap();
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    assert!(!component(&cpu, place.path(), Float::F32).unwrap().verdict.passes(), "another scale");
}

#[test]
fn sixteen_bits() {
    for dtype in [Float::F16, Float::Bf16] {
        for case in [
            "unet_sdxl",
            "vae_sd3",
            "sd35_transformer",
            "flux_transformer_schnell",
            "pixart_alpha_transformer",
            "sana_transformer",
            "vae_dc",
            "unet_all_blocks",
        ] {
            holds(&folder("components").join(case), dtype);
        }
    }
}

/// A UNet's golden, to run in parts.
struct Parts {
    model: Unet<Cpu>,
    sample: Vec<f32>,
    times: Vec<f64>,
    text: Vec<f32>,
    items: usize,
    size: Grid,
    tokens: usize,
}

impl Parts {
    fn open(name: &str) -> Self {
        let place = folder("components").join(name);
        let said = json(&place.join("golden.json")).unwrap();
        let golden = Golden::open(&place.join("golden.safetensors"), said, 2e-5).unwrap();
        let files = open(&place, Access::default()).unwrap();
        let model = Unet::load(Cpu::new(CpuConfig::default()).unwrap(), &files, Float::F32).unwrap();
        let (sample, items, (height, width)) = golden.get("in.sample").unwrap().pictures();
        let text = golden.get("in.encoder_hidden_states").unwrap();
        let (tokens, text, size) = (text.shape[1], text.narrow(), Grid { height, width });
        let times = golden.get("in.timestep").unwrap().values.clone();
        Self { model, sample, times, text, items, size, tokens }
    }

    /// What comes out for some of the pictures, of texts as they are given.
    fn run(&mut self, items: std::ops::Range<usize>, text: &[f32], mask: Option<&[bool]>) -> Vec<f32> {
        let each = self.sample.len() / self.items;
        let tokens = text.len() / items.len() / self.model.spec().text_width().unwrap();
        let input = UnetInput { text, mask, ..UnetInput::default() };
        self.model.begin(Conditions { items: items.len(), size: self.size, tokens }, &input).unwrap();
        let sample = &self.sample[items.start * each..items.end * each];
        block_on(self.model.step(sample, &self.times[items])).unwrap()
    }
}

#[test]
fn pictures_of_a_batch_are_those_that_they_are_alone() {
    let mut parts = Parts::open("unet_sd1");
    let (text, items) = (parts.text.clone(), parts.items);
    let both = parts.run(0..items, &text, None);
    for item in 0..items {
        let (own, out) = (text.len() / items, both.len() / items);
        let alone = parts.run(item..item + 1, &text[item * own..(item + 1) * own], None);
        assert_eq!(alone, both[item * out..(item + 1) * out], "picture {item}");
    }
    assert_eq!(parts.run(0..items, &text, None), both, "after other sizes");
}

#[test]
fn hidden_tokens_do_not_matter_wherever_they_are() {
    let mut parts = Parts::open("unet_sd1");
    let (tokens, width) = (parts.tokens, parts.text.len() / parts.items / parts.tokens);
    let text = parts.text[..tokens * width].to_vec();
    let mask: Vec<bool> = (0..tokens).map(|token| token % 3 != 1).collect();
    let seen: Vec<f32> =
        text.chunks(width).zip(&mask).filter(|(_, seen)| **seen).flat_map(|(row, _)| row.to_vec()).collect();
    let mut odd = text.clone();
    odd.chunks_mut(width).zip(&mask).filter(|(_, seen)| !**seen).for_each(|(row, _)| row.fill(9.0));
    let want = parts.run(0..1, &seen, None);
    assert_eq!(parts.run(0..1, &text, Some(&mask)), want);
    assert_eq!(parts.run(0..1, &odd, Some(&mask)), want);
    assert_ne!(parts.run(0..1, &text, None), want);
    let error = parts.model.begin(
        Conditions { items: 1, size: parts.size, tokens },
        &UnetInput { text: &text, mask: Some(&mask[1..]), ..UnetInput::default() },
    );
    assert!(error.unwrap_err().to_string().contains("encoder_attention_mask"));
}
