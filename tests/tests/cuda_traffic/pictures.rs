//! Steps of pictures on CUDA: captured and replayed they have the bits of the same steps op by op, and take a
//! launch each where they took hundreds; matmuls of UNets run on tensor cores, as often as planned.

use super::{COUNTERS, counting_driver};
use conformance::backends::{cuda, cuda_names};
use conformance::golden::{complaints, since};
use conformance::named;
use conformance::trials::Named;
use engraft_core::backend::block_on;
use engraft_core::checkpoint::{Access, open};
use engraft_core::mem::Float;
use engraft_core::numerics::Mode;
use engraft_cuda::Cuda;
use engraft_diffusion::graph::Grid;
use engraft_diffusion::nets::Conditions;
use engraft_diffusion::{ImageRequest, Unet, UnetInput, Vae};
use image_goldens::{Change, captured_steps, folder};
use soft_cuda::preload;
use std::sync::{Arc, PoisonError};

/// Tests that have the software driver count.
pub const COUNTED: &[Named] = &named![a_step_of_a_unet_is_one_launch, decoding_a_picture_is_one_launch];
/// Those that any device runs.
pub const ON_CUDA: &[Named] = &named![
    captured_steps_of_pictures_have_the_bits_of_those_op_by_op,
    matmuls_of_unets_run_on_tensor_cores_as_often_as_planned,
];

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

fn captured_steps_of_pictures_have_the_bits_of_those_op_by_op() {
    let _alone = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Counted by the software driver.
fn a_step_of_a_unet_is_one_launch() {
    let _alone = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let name = counting_driver();
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
    assert!(got == want, "{}", sample::difference(&got, &want));
    let (before, after) = ((many - few) / 2, (last - first) / 2);
    println!("{before} launches of a step op by op, {after} of a captured one of {kernels} kernels");
    // Sample and time are converted behind their copies, and so is the output before its own: a kernel each.
    assert_eq!((after, before, all), (4, kernels + 3, 3 * kernels));
    assert!(kernels > 100, "{kernels} kernels");
}

/// In f16 with weights of f16, as pictures are made on GPUs: every matmul and every convolution of a step is
/// planned on tensor cores, and so many launches of their kernels, and of no other matmul, are counted.
fn matmuls_of_unets_run_on_tensor_cores_as_often_as_planned() {
    let _alone = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    for name in &cuda_names() {
        let gpu = cuda(name, Mode::Invariant).unwrap();
        let files = open(&folder("components").join("unet_sd1"), Access::default()).unwrap();
        let mut unet = Unet::load(gpu.clone(), &files, Float::F16).unwrap();
        unet.set_graphs(false);
        let (items, size, tokens) = (1, Grid { height: 8, width: 8 }, 4);
        let ramp = |count: usize| (0..count).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect::<Vec<f32>>();
        let text = ramp(items * tokens * unet.spec().text_width().unwrap());
        let sample = ramp(items * size.pixels() * unet.spec().in_channels);
        let before = gpu.launches();
        let input = UnetInput { text: &text, ..UnetInput::default() };
        unet.begin(Conditions { items, size, tokens }, &input).unwrap();
        block_on(unet.step(&sample, &[700.0])).unwrap();
        let ran = since(&before, &gpu.launches());

        let plan = unet.plan();
        let rows = &plan.ops.rows;
        let of_op = |op: &str| rows.iter().filter(|row| row.op == op).count();
        let is_matmul = |op: &str| matches!(op, "linear" | "linear_act" | "linear_add" | "gated_linear");
        let matmuls: Vec<_> = rows.iter().filter(|row| is_matmul(row.op)).collect();
        let windows = of_op("conv");
        for row in &matmuls {
            let kernel = row.kernel.as_deref().unwrap_or("none");
            assert!(kernel.starts_with("gemm"), "{name}: {} ({}) is planned by {kernel}", row.slot, row.op);
        }
        let of_parts: Vec<_> = plan.parts.iter().filter(|part| part.starts_with("gemm")).collect();
        assert!(
            !of_parts.is_empty() && !plan.parts.iter().any(|part| part.starts_with("linear")),
            "{plan:?}"
        );
        let launched = |start: &str| -> u64 {
            ran.iter().filter(|(entry, _)| entry.starts_with(start)).map(|(_, count)| count).sum()
        };
        let (tensor, others) =
            (launched("gemm"), launched("linear") + launched("moe_") + launched("grouped"));
        println!(
            "{name}: {} matmuls and {windows} convolutions are planned; {tensor} launches of gemm, {others} of others",
            matmuls.len()
        );
        assert!(matmuls.len() > 40 && windows > 10, "{} matmuls, {windows} convolutions", matmuls.len());
        assert_eq!((tensor, others), ((matmuls.len() + windows) as u64, 0), "{ran:?}");
        assert!(complaints(&plan.ops, &plan.parts, &ran).is_empty());
    }
}

/// The last of so many pictures of one size.
fn decoded(gpu: &Arc<Cuda>, graphs: bool, count: usize) -> Vec<f32> {
    let files = open(&folder("components").join("vae_odd_size"), Access::default()).unwrap();
    let mut vae = Vae::load(gpu.clone(), &files, Float::F32).unwrap();
    vae.set_graphs(graphs);
    let size = Grid { height: 2, width: 2 };
    let each = size.pixels() * vae.spec().latent_channels;
    let of = |picture: usize| (0..each).map(|i| ((i + picture) % 7) as f32 / 3.0 - 1.0).collect::<Vec<f32>>();
    let mut last = Vec::new();
    for picture in 0..count {
        last = block_on(vae.decode(&of(picture), 1, size)).unwrap();
    }
    last
}

/// DeepSpeed captures an autoencoder, too. Counted by the software driver.
fn decoding_a_picture_is_one_launch() {
    let _alone = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let name = counting_driver();
    let (gpu, soft) = (cuda(&name, Mode::Invariant).unwrap(), preload::load().unwrap());
    let launched = |graphs: bool, count: usize| {
        soft.clear_counts().unwrap();
        let out = decoded(&gpu, graphs, count);
        let (kernels, (launches, within)) = (soft.counts().unwrap().0, soft.graphs().unwrap());
        (kernels - within + launches, launches, out)
    };
    let ((few, none, _), (many, _, want)) = (launched(false, 1), launched(false, 2));
    let ((first, one, _), (last, two, got)) = (launched(true, 1), launched(true, 2));
    assert!(got == want, "{}", sample::difference(&got, &want));
    assert_eq!((none, one, two), (0, 1, 2), "launches of graphs");
    println!("{} launches of a picture op by op, {} of a captured one", many - few, last - first);
    // Latents and the picture are converted next to their copies: a kernel each.
    assert!(last - first == 3 && many - few > 20, "{} and {}", last - first, many - few);
}
