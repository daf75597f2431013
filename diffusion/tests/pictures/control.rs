//! Runs that follow a picture, and autoencoders without a variance, beyond the reference's cases.

use engraft_core::Error;
use engraft_core::backend::block_on;
use engraft_core::checkpoint::{Access, open};
use engraft_core::mem::Float;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::graph::Grid;
use engraft_diffusion::{Control, ImageRequest, Images, Init, Pipeline, PipelineOptions, Seeded, Vae};
use image_goldens::folder;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

const SIZE: (usize, usize) = (24, 32);

fn load(path: &Path, options: &PipelineOptions) -> Result<Pipeline<Cpu>, Error> {
    Pipeline::load(&Cpu::new(CpuConfig::default()).unwrap(), path, options)
}

fn own(case: &str) -> Pipeline<Cpu> {
    load(&folder("pipelines").join(case), &PipelineOptions::default()).unwrap()
}

fn run(pipeline: &mut Pipeline<Cpu>, request: &ImageRequest, seed: u64) -> Result<Images, Error> {
    block_on(pipeline.run(request, &mut Seeded(seed), &mut |_| ControlFlow::Continue(()))).map(Option::unwrap)
}

/// A picture with edges.
fn edges() -> Vec<f32> {
    let (width, height) = SIZE;
    (0..width * height).flat_map(|at| [if at % width < 9 { 1.0 } else { 0.1 }; 3]).collect()
}

fn request(prompts: &[&str], control: Option<Control>) -> ImageRequest {
    ImageRequest {
        prompts: prompts.iter().map(|prompt| prompt.to_string()).collect(),
        negative: Some(vec!["rain".into()]),
        steps: Some(2),
        width: SIZE.0,
        height: SIZE.1,
        control,
        ..ImageRequest::new("")
    }
}

#[test]
fn pictures_that_follow_one_are_those_that_they_are_alone() {
    let mut pipeline = own("sd1_controlnet");
    for guess in [false, true] {
        let control = Some(Control { guess, scale: 0.7, ..Control::new(edges()) });
        let both = run(&mut pipeline, &request(&["a fox", "a dog"], control.clone()), 4).unwrap();
        let alone = run(&mut pipeline, &request(&["a dog"], control), 5).unwrap();
        assert_eq!(both.rgb[1], alone.rgb[0], "guess {guess}");
        assert_ne!(both.rgb[0], both.rgb[1]);
    }
}

#[test]
fn what_adds_nothing_changes_nothing() {
    let mut pipeline = own("sd1_controlnet");
    let mut latents = |control| run(&mut pipeline, &request(&["a fox"], Some(control)), 4).unwrap().latents;
    let plain = Control::new(edges());
    let zero = latents(Control { scale: 0.0, ..plain.clone() });
    // No step of two lies within the range.
    let never = latents(Control { start: 0.1, end: 0.9, ..plain.clone() });
    assert_eq!(zero, never);
    // The first alone, and both.
    let (first, all) = (latents(Control { end: 0.5, ..plain.clone() }), latents(plain.clone()));
    let guessed = latents(Control { guess: true, ..plain });
    let different = [&zero, &first, &all, &guessed];
    for (i, one) in different.iter().enumerate() {
        assert!(different[..i].iter().all(|other| other != one), "{i}");
    }
}

#[test]
fn a_controlnet_of_another_folder_has_to_fit() {
    let place = folder("pipelines").join("sd1_controlnet");
    let mut with = load(
        &place,
        &PipelineOptions { controlnet: Some(place.join("controlnet")), ..PipelineOptions::default() },
    )
    .unwrap();
    let asked = request(&["a fox"], Some(Control::new(edges())));
    let want = run(&mut own("sd1_controlnet"), &asked, 4).unwrap();
    assert_eq!(run(&mut with, &asked, 4).unwrap().latents, want.latents);
    let options =
        |from: &Path| PipelineOptions { controlnet: Some(from.into()), ..PipelineOptions::default() };
    let sd1 = folder("pipelines").join("sd1");
    for (from, words) in [
        (place.join("controlnet"), &["block_out_channels", "residuals"][..]),
        (place.join("unet"), &["_class_name", "ControlNetModel"]),
    ] {
        let error = load(&sd1, &options(&from)).err().unwrap().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn what_cannot_be_followed_is_refused_by_name() {
    let (mut with, mut without) = (own("sd1_controlnet"), own("sd1"));
    let plain = Control::new(edges());
    let cases = [
        (None, "control", "has a ControlNet"),
        (Some(Control::new(vec![0.5; 12])), "control", "24 x 32 x 3"),
        (Some(Control { scale: f64::NAN, ..plain.clone() }), "control.scale", "NaN"),
        (Some(Control { start: 0.5, end: 0.5, ..plain.clone() }), "control.start", "0.5 to 0.5"),
        (Some(Control { end: 1.5, ..plain.clone() }), "control.start", "0 to 1.5"),
    ];
    for (control, field, what) in cases {
        let error = run(&mut with, &request(&["a fox"], control), 1).unwrap_err().to_string();
        assert!(error.contains(field) && error.contains(what), "{error}");
    }
    let error = run(&mut without, &request(&["a fox"], Some(plain)), 1).unwrap_err().to_string();
    assert!(error.contains("control") && error.contains("no ControlNet"), "{error}");
}

#[test]
fn what_counts_for_nothing_is_named() {
    let mut pipeline = own("sd1");
    let with = run(&mut pipeline, &request(&["a fox"], None), 1).unwrap();
    assert!(with.unused.is_empty());
    let without = ImageRequest { guidance: Some(1.0), guidance_rescale: 0.3, ..request(&["a fox"], None) };
    let without = run(&mut pipeline, &without, 1).unwrap();
    assert_eq!(without.unused, ["negative_prompt", "guidance_rescale"]);
}

/// All files of a folder.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[test]
fn a_pipeline_takes_an_autoencoder_without_a_variance() {
    let place = tempfile::tempdir().unwrap();
    let (tiny, vae) = (folder("components").join("vae_tiny"), place.path().join("vae"));
    copy(&folder("pipelines").join("sd1"), place.path());
    fs::remove_dir_all(&vae).unwrap();
    copy(&tiny, &vae);
    let mut pipeline = load(place.path(), &PipelineOptions::default()).unwrap();
    assert_eq!(pipeline.factor(), 8);
    let files = open(&tiny, Access::default()).unwrap();
    let mut vae = Vae::load(Cpu::new(CpuConfig::default()).unwrap(), &files, Float::F32).unwrap();
    let plain = request(&["a fox"], None);
    let images = run(&mut pipeline, &plain, 3).unwrap();
    let size = Grid { height: SIZE.1 / 8, width: SIZE.0 / 8 };
    let decoded = block_on(vae.decode(&images.latents, 1, size)).unwrap();
    assert_eq!(images.decoded, decoded);
    // Where nothing may change, the latents of the picture stay.
    let init = Some(Init { rgb: edges(), strength: 0.8, mask: Some(vec![0.0; SIZE.0 * SIZE.1]) });
    let kept = run(&mut pipeline, &ImageRequest { init, steps: Some(4), ..plain }, 3).unwrap().latents;
    let pixels: Vec<f32> = edges().iter().map(|x| 2.0 * x - 1.0).collect();
    let own = block_on(vae.encode(&pixels, 1, Grid { height: SIZE.1, width: SIZE.0 })).unwrap();
    assert_eq!(kept, own);
}
