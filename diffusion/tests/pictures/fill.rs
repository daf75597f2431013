//! FLUX.1 Fill: what its transformer reads next to a sample lies where the definition has it.
//!
//! No golden has it. Its first layer is linear: where weights of mask and picture are those of the sample,
//! by known factors, it gives what FLUX.1 gives of the sum, and that is held to the reference.

use super::control::copy;
use super::tensors::{Tensor, configured, off, read, write};
use engraft_core::Error;
use engraft_core::backend::block_on;
use engraft_core::checkpoint::{Access, open};
use engraft_core::mem::Float;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::graph::Grid;
use engraft_diffusion::{
    GuidedBy, ImageRequest, Images, Init, Noise, Pipeline, PipelineOptions, Progress, Purpose, Seeded, Vae,
};
use image_goldens::folder;
use serde_json::json;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use tempfile::TempDir;

/// Pixels, which are six by four latents.
const SIZE: Grid = Grid { height: 16, width: 24 };
const LATENTS: Grid = Grid { height: 4, width: 6 };
/// Channels of latents, and pixels of one along a line.
const CHANNELS: usize = 4;
const FACTOR: usize = 4;

/// The column of the sample whose weights a column of the mask has, and their factor.
fn share(column: usize) -> (usize, f32) {
    (column * 7 % 16, [1.0, 0.5, 0.25, 0.125][column / 16])
}

/// A pipeline of class `FluxFillPipeline`, with the weights of another.
fn assembled() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    copy(&folder("pipelines").join("flux"), place.path());
    let transformer = place.path().join("transformer");
    configured(&place.path().join("model_index.json"), &[("_class_name", json!("FluxFillPipeline"))]);
    let wide = [("in_channels", json!(16 + 16 + 64)), ("out_channels", json!(16))];
    configured(&transformer.join("config.json"), &wide);
    let mut changed = 0;
    for file in fs::read_dir(&transformer).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|end| end == "safetensors") {
            let mut all = read(&file);
            let Some(own) = all.get("x_embedder.weight") else { continue };
            let row = |row: &[f32]| {
                let of_mask: Vec<f32> =
                    (0..64).map(share).map(|(column, factor)| factor * row[column]).collect();
                [row, row, &of_mask].concat()
            };
            let values = own.values.chunks(16).flat_map(row).collect();
            let shape = vec![own.shape[0], 96];
            all.insert("x_embedder.weight".into(), Tensor { shape, values });
            write(&file, &all);
            changed += 1;
        }
    }
    assert_eq!(changed, 1);
    place
}

fn load(path: &Path) -> Result<Pipeline<Cpu>, Error> {
    Pipeline::load(&Cpu::new(CpuConfig::default()).unwrap(), path, &PipelineOptions::default())
}

fn picture() -> Vec<f32> {
    (0..SIZE.pixels() * 3).map(|i| (i * 37 % 97) as f32 / 97.0).collect()
}

/// Values on both sides of one half, and that itself.
fn mask() -> Vec<f32> {
    let value = |i: usize| [0.0, 0.49, 0.5, 1.0][(i % SIZE.width * 5 + i / SIZE.width * 3) % 7 % 4];
    (0..SIZE.pixels()).map(value).collect()
}

fn request(prompts: &[&str], init: Option<Init>) -> ImageRequest {
    ImageRequest {
        prompts: prompts.iter().map(|prompt| prompt.to_string()).collect(),
        text_tokens: Some(9),
        width: SIZE.width,
        height: SIZE.height,
        steps: Some(1),
        init,
        ..ImageRequest::new("")
    }
}

/// Noise of a seed, and what a run begins with where that is given.
struct Given(Option<Vec<f32>>);

impl Noise for Given {
    fn fill(&mut self, what: Purpose, item: usize, into: &mut [f32]) -> Result<(), Error> {
        match (&self.0, what) {
            (Some(first), Purpose::Latents) => into.copy_from_slice(first),
            _ => Seeded(3).fill(what, item, into)?,
        }
        Ok(())
    }
}

fn run(pipeline: &mut Pipeline<Cpu>, request: &ImageRequest, noise: &mut dyn Noise) -> Result<Images, Error> {
    let all = &mut |_: Progress| ControlFlow::Continue(());
    block_on(pipeline.run(request, noise, all)).map(Option::unwrap)
}

/// Noise of the seed for all latents.
fn unit(what: Purpose) -> Vec<f64> {
    let mut values = vec![0.0f32; LATENTS.pixels() * CHANNELS];
    Seeded(3).fill(what, 0, &mut values).unwrap();
    values.into_iter().map(f64::from).collect()
}

/// Latents of the picture in whose place nothing is where it may change.
fn hidden_latents() -> Vec<f64> {
    let seen = |i: usize, x: f32| if mask()[i / 3] < 0.5 { 2.0 * x - 1.0 } else { 0.0 };
    let pixels: Vec<f32> = picture().into_iter().enumerate().map(|(i, x)| seen(i, x)).collect();
    let files = open(&folder("pipelines").join("flux/vae"), Access::default()).unwrap();
    let mut vae = Vae::load(Cpu::new(CpuConfig::default()).unwrap(), &files, Float::F32).unwrap();
    let moments = block_on(vae.encode(&pixels, 1, SIZE)).unwrap();
    let at = |latent: usize, column: usize| f64::from(moments[latent * 2 * CHANNELS + column]);
    let one = |(i, unit): (usize, f64)| {
        let (latent, channel) = (i / CHANNELS, i % CHANNELS);
        let deviation = (0.5 * at(latent, CHANNELS + channel).clamp(-30.0, 20.0)).exp();
        0.3611 * (at(latent, channel) + deviation * unit - 0.1159)
    };
    unit(Purpose::Posterior(0)).into_iter().enumerate().map(one).collect()
}

/// Rows of squares of what every latent has: `[squares, columns * 4]`.
fn squares(columns: usize, value: impl Fn(usize, usize, usize) -> f64) -> Vec<f64> {
    let mut all = Vec::new();
    for (y, x) in (0..LATENTS.height / 2).flat_map(|y| (0..LATENTS.width / 2).map(move |x| (y, x))) {
        for column in 0..columns {
            for (line, place) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                all.push(value(2 * y + line, 2 * x + place, column));
            }
        }
    }
    all
}

#[test]
fn mask_and_picture_are_read_next_to_the_sample() {
    let (place, mask) = (assembled(), mask());
    let mut fill = load(place.path()).unwrap();
    assert_eq!((fill.defaults().steps, fill.defaults().guided_by), (50, GuidedBy::Nothing));
    let init = Some(Init { rgb: picture(), strength: 1.0, mask: Some(mask.clone()) });
    let got = run(&mut fill, &request(&["a fox"], init), &mut Given(None)).unwrap();
    let of = |values: Vec<f64>| {
        squares(CHANNELS, move |y, x, channel| values[(y * LATENTS.width + x) * CHANNELS + channel])
    };
    let (first, hidden) = (of(unit(Purpose::Latents)), of(hidden_latents()));
    let pixels = squares(FACTOR * FACTOR, |y, x, pixel| {
        let (line, column) = (y * FACTOR + pixel / FACTOR, x * FACTOR + pixel % FACTOR);
        if mask[line * SIZE.width + column] >= 0.5 { 1.0 } else { 0.0 }
    });
    let mut sum: Vec<f64> = first.iter().zip(&hidden).map(|(a, b)| a + b).collect();
    for (i, pixel) in pixels.iter().enumerate() {
        let (column, factor) = share(i % 64);
        sum[i / 64 * 16 + column] += f64::from(factor) * pixel;
    }
    // One step from noise alone: the sample less the velocity.
    let mut flux = load(&folder("pipelines").join("flux")).unwrap();
    let plain = ImageRequest { guidance: Some(30.0), ..request(&["a fox"], None) };
    let begun = sum.iter().map(|x| *x as f32).collect();
    let plain = run(&mut flux, &plain, &mut Given(Some(begun))).unwrap().latents;
    let moved = plain.iter().zip(&sum).map(|(end, start)| f64::from(*end) - start);
    let want: Vec<f64> = first.iter().zip(moved).map(|(x, moved)| x + moved).collect();
    let off = off(&got.latents, &want);
    assert!(off < 2e-4, "{off}");
}

#[test]
fn pictures_that_are_filled_in_have_the_bits_that_they_have_alone() {
    let mut fill = load(assembled().path()).unwrap();
    for strength in [1.0, 0.6] {
        let mut filled = |prompts: &[&str], mask: Vec<f32>, seed| {
            let init = Some(Init { rgb: picture(), strength, mask: Some(mask) });
            let request = ImageRequest { steps: Some(3), ..request(prompts, init) };
            run(&mut fill, &request, &mut Seeded(seed)).unwrap().latents
        };
        let both = filled(&["a fox", "lamps"], mask(), 5);
        let (first, second) = both.split_at(both.len() / 2);
        assert_eq!(filled(&["a fox"], mask(), 5), first, "{strength}");
        assert_eq!(filled(&["lamps"], mask(), 6), second, "{strength}");
        assert_ne!(filled(&["a fox"], vec![1.0; SIZE.pixels()], 5), first, "{strength}");
    }
}

#[test]
fn what_cannot_be_filled_in_is_refused_by_name() {
    let place = assembled();
    let mut fill = load(place.path()).unwrap();
    let init = |mask| Some(Init { rgb: picture(), strength: 1.0, mask });
    let masked = request(&["a fox"], init(Some(mask())));
    for (request, words) in [
        (request(&["a fox"], None), ["mask", "fills in pictures"]),
        (request(&["a fox"], init(None)), ["mask", "fills in pictures"]),
        (ImageRequest { true_guidance: Some(2.0), ..masked.clone() }, ["true_cfg_scale", "reads none"]),
    ] {
        let error = run(&mut fill, &request, &mut Seeded(1)).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let unread = ImageRequest { negative: Some(vec!["rain".into()]), ..masked };
    assert_eq!(run(&mut fill, &unread, &mut Seeded(1)).unwrap().unused, ["negative_prompt"]);
    let index = place.path().join("model_index.json");
    configured(&index, &[("_class_name", json!("FluxPipeline"))]);
    let error = load(place.path()).err().unwrap().to_string();
    assert!(error.contains("in_channels") && error.contains("16, of the autoencoder"), "{error}");
    let plain = tempfile::tempdir().unwrap();
    copy(&folder("pipelines").join("flux"), plain.path());
    configured(&plain.path().join("model_index.json"), &[("_class_name", json!("FluxFillPipeline"))]);
    let error = load(plain.path()).err().unwrap().to_string();
    assert!(error.contains("in_channels") && error.contains("96: 16 of the autoencoder"), "{error}");
}
