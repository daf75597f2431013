//! Weights in PyTorch's files, as older pipelines are published: single, next to one in half precision, and
//! in several files with an index.

use super::control::copy;
use super::tensors::{self, Tensors};
use super::torch::{Pickler, Tensor, archive, floats, state_dict};
use engraft_core::backend::block_on;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::{ImageRequest, Pipeline, PipelineOptions, Progress, Seeded};
use image_goldens::folder;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

const STEM: &str = "diffusion_pytorch_model";

/// A file as `torch.save` writes it.
fn saved(tensors: &Tensors) -> Vec<u8> {
    let keys: Vec<String> = (0..tensors.len()).map(|number| number.to_string()).collect();
    let shapes: Vec<(Vec<i64>, Vec<i64>)> = tensors
        .values()
        .map(|tensor| {
            let shape: Vec<i64> = tensor.shape.iter().map(|size| *size as i64).collect();
            let strides = (0..shape.len()).map(|i| shape[i + 1..].iter().product()).collect();
            (shape, strides)
        })
        .collect();
    let all = tensors.keys().zip(&keys).zip(&shapes);
    let all: Vec<Tensor<'_>> =
        all.map(|((name, key), (shape, strides))| Tensor::f32(name, key, shape, strides)).collect();
    let values: Vec<Vec<u8>> = tensors.values().map(|tensor| floats(tensor.values.iter().copied())).collect();
    let storages: Vec<(&str, &[u8])> =
        keys.iter().zip(&values).map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
    archive(&state_dict(Pickler::new(), &all).end(), &storages)
}

/// Takes the weights of a component out of its folder.
fn taken(place: &Path, component: &str) -> Tensors {
    let file = place.join(component).join(format!("{STEM}.safetensors"));
    let all = tensors::read(&file);
    fs::remove_file(file).unwrap();
    all
}

fn latents_and_picture(place: &Path) -> (Vec<f32>, Vec<f32>) {
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    let mut pipeline = Pipeline::load(&cpu, place, &PipelineOptions::default()).unwrap();
    let request = ImageRequest { width: 24, height: 16, steps: Some(2), ..ImageRequest::new("a fox") };
    let all = &mut |_: Progress| ControlFlow::Continue(());
    let images = block_on(pipeline.run(&request, &mut Seeded(3), all)).unwrap().unwrap();
    (images.latents, images.decoded)
}

#[test]
fn weights_of_pytorch_files_give_the_bits_of_the_others() {
    let (plain, pickled) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for place in [plain.path(), pickled.path()] {
        copy(&folder("pipelines").join("sd1"), place);
        for component in ["unet", "vae"] {
            let all = taken(place, component);
            let to = |name: &str| place.join(component).join(name);
            if place == plain.path() {
                tensors::write(&to(&format!("{STEM}.safetensors")), &all);
            } else if component == "vae" {
                fs::write(to(&format!("{STEM}.bin")), saved(&all)).unwrap();
                fs::write(to(&format!("{STEM}.fp16.bin")), "another one, which is not read").unwrap();
            } else {
                let (mut first, mut second) = (all.clone(), all.clone());
                let middle = all.keys().nth(all.len() / 2).unwrap();
                first.retain(|name, _| name < middle);
                second.retain(|name, _| name >= middle);
                let files = [1, 2].map(|number| format!("{STEM}-0000{number}-of-00002.bin"));
                let of = |name: &String| files[usize::from(name >= middle)].clone();
                let map: serde_json::Map<_, _> =
                    all.keys().map(|name| (name.clone(), of(name).into())).collect();
                let index = serde_json::json!({"metadata": {}, "weight_map": map});
                fs::write(to(&format!("{STEM}.bin.index.json")), index.to_string()).unwrap();
                for (file, part) in files.iter().zip([first, second]) {
                    fs::write(to(file), saved(&part)).unwrap();
                }
            }
        }
    }
    assert_eq!(latents_and_picture(plain.path()), latents_and_picture(pickled.path()));
}
