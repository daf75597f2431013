//! Steps that are captured and replayed: the bits of the same steps op by op.

use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::{Control, ImageRequest};
use image_goldens::{Change, captured_steps, folder};

/// A request of this size; of a ControlNet with a picture to follow.
fn request(case: &str, (width, height): (usize, usize)) -> ImageRequest {
    let edges = || (0..width * height).flat_map(|at| [if at % width < 9 { 1.0 } else { 0.1 }; 3]);
    let control = (case == "sd1_controlnet").then(|| Control::new(edges().collect()));
    let transformer = !case.starts_with("sd1") && case != "sdxl";
    ImageRequest {
        negative: Some(vec!["rain".into()]),
        true_guidance: (case == "flux").then_some(2.0),
        text_tokens: transformer.then_some(9),
        steps: Some(3),
        width,
        height,
        control,
        ..ImageRequest::new("a fox in the snow")
    }
}

/// Texts, scales, numbers of pictures, guidance and sizes change between runs: nothing of one gets into the
/// next.
#[test]
fn pictures_have_the_bits_of_steps_op_by_op() {
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    for case in ["sd1", "sdxl", "sd1_controlnet", "sd3", "flux", "pixart_sigma"] {
        let of = |size| request(case, size);
        let path = folder("pipelines").join(case);
        let ran = captured_steps(&cpu, &path, (&of, (24, 16)), &Change::ALL);
        let (steps, captured) = ran.unwrap_or_else(|e| panic!("{case}: {e}"));
        println!("{case}: {steps} steps, {captured} of them captured");
        let models = if case == "sd1_controlnet" { 2 } else { 1 };
        assert!(captured == 5 * models && steps >= 24 * models, "{case}: {steps} steps, {captured} captured");
    }
}
