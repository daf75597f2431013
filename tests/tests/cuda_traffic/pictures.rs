//! Steps of pictures on CUDA: captured and replayed they have the bits of the same steps op by op, and take a
//! launch each where they took hundreds.

use super::{COUNTERS, counting_driver};
use conformance::backends::{cuda, cuda_names};
use engraft_core::backend::block_on;
use engraft_core::checkpoint::{Access, open};
use engraft_core::mem::Float;
use engraft_core::numerics::Mode;
use engraft_cuda::Cuda;
use engraft_diffusion::graph::Grid;
use engraft_diffusion::nets::Conditions;
use engraft_diffusion::{ImageRequest, Unet, UnetInput};
use image_goldens::{Change, captured_steps, folder};
use soft_cuda::preload;
use std::sync::{Arc, PoisonError};

/// A small picture of few steps.
fn request(case: &str, (width, height): (usize, usize)) -> ImageRequest {
    ImageRequest {
        negative: Some(vec!["rain".into()]),
        text_tokens: (case == "flux").then_some(5),
        true_guidance: (case == "flux").then_some(2.0),
        steps: Some(2),
        width,
        height,
        ..ImageRequest::new("a fox in the snow")
    }
}

#[test]
fn captured_steps_of_pictures_have_the_bits_of_those_op_by_op() {
    let _alone = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    // A run that asks for a driver which is not there fails.
    counting_driver();
    for name in &cuda_names() {
        let gpu = cuda(name, Mode::Invariant).unwrap();
        for (case, changes) in sample::some([
            ("sd1", &[Change::Texts, Change::Unguided][..]),
            ("flux", &[Change::Texts, Change::Scale][..]),
            ("sdxl", &[Change::Texts][..]),
        ]) {
            let of = |size| request(case, size);
            let ran = captured_steps(&gpu, &folder("pipelines").join(case), (&of, (16, 16)), changes);
            let (steps, captured) = ran.unwrap_or_else(|e| panic!("{name}: {case}: {e}"));
            println!("{name}: {case}: {steps} steps, {captured} of them captured");
        }
    }
}

/// Runs steps of a UNet: its output.
fn steps(gpu: &Arc<Cuda>, graphs: bool, count: usize) -> Vec<f32> {
    let files = open(&folder("components").join("unet_sd1"), Access::default()).unwrap();
    let mut unet = Unet::load(gpu.clone(), &files, Float::F32).unwrap();
    unet.set_graphs(graphs);
    let (items, size, tokens) = (1, Grid { height: 8, width: 8 }, 4);
    let ramp = |count: usize| (0..count).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect::<Vec<f32>>();
    let text = ramp(items * tokens * unet.spec().text_width().unwrap());
    let input = UnetInput { text: &text, ..UnetInput::default() };
    unet.begin(Conditions { items, size, tokens }, &input).unwrap();
    let mut sample = ramp(items * size.pixels() * unet.spec().in_channels);
    for step in 0..count {
        sample = block_on(unet.step(&sample, &vec![900.0 - 100.0 * step as f64; items])).unwrap();
    }
    sample
}

/// Counted by the software driver; a real one counts nothing.
#[test]
fn a_step_of_a_unet_is_one_launch() {
    let _alone = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(name) = counting_driver() else { return };
    let (gpu, soft) = (cuda(&name, Mode::Invariant).unwrap(), preload::load().unwrap());
    // Launches by the host for so many steps: kernels that are in no graph, and graphs.
    let launched = |graphs: bool, count: usize| {
        soft.clear_counts().unwrap();
        let out = steps(&gpu, graphs, count);
        let (kernels, (launches, within)) = (soft.counts().unwrap().0, soft.graphs().unwrap());
        (kernels - within + launches, launches, within, out)
    };
    let ((few, none, _, _), (many, _, _, want)) = (launched(false, 1), launched(false, 3));
    let ((first, one, kernels, _), (last, three, all, got)) = (launched(true, 1), launched(true, 3));
    assert_eq!((none, one, three), (0, 1, 3), "launches of graphs");
    assert!(got == want, "other bits");
    let (before, after) = ((many - few) / 2, (last - first) / 2);
    println!("{before} launches of a step op by op, {after} of a captured one of {kernels} kernels");
    // Sample and time are converted behind their copies, and so is the output before its own: a kernel each.
    assert_eq!((after, before, all), (4, kernels + 3, 3 * kernels));
    assert!(kernels > 100, "{kernels} kernels");
}
