//! `scheduler_config.json`: what is accepted has a run, whose values are numbers.

use engraft_core::{Error, Result};
use engraft_image::{Scheduler, SchedulerConfig, Settings, Steps};
use std::path::Path;

/// Steps of a run at most.
const STEPS: usize = 8;

pub const WORDS: &[&str] = &[
    "\"_class_name\": \"DDIMScheduler\"",
    "\"_class_name\": \"PNDMScheduler\"",
    "\"_class_name\": \"EulerDiscreteScheduler\"",
    "\"_class_name\": \"DPMSolverMultistepScheduler\"",
    "\"_class_name\": \"UniPCMultistepScheduler\"",
    "\"_class_name\": \"LCMScheduler\"",
    "\"_class_name\": \"FlowMatchEulerDiscreteScheduler\"",
    "\"_class_name\": \"SCMScheduler\"",
    "\"num_train_timesteps\": ",
    "\"beta_start\": ",
    "\"beta_end\": ",
    "\"beta_schedule\": \"squaredcos_cap_v2\"",
    "\"trained_betas\": [",
    "\"prediction_type\": \"v_prediction\"",
    "\"timestep_spacing\": \"trailing\"",
    "\"steps_offset\": ",
    "\"clip_sample_range\": ",
    "\"thresholding\": true",
    "\"use_karras_sigmas\": true",
    "\"use_beta_sigmas\": true",
    "\"use_flow_sigmas\": true",
    "\"sigma_min\": ",
    "\"solver_order\": ",
    "\"algorithm_type\": \"sde-dpmsolver++\"",
    "\"solver_type\": \"bh2\"",
    "\"use_dynamic_shifting\": true",
    "\"shift\": ",
    "\"base_shift\": ",
    "\"original_inference_steps\": ",
    "\"lambda_min_clipped\": -Infinity",
    "Infinity",
    "NaN",
    "null",
    "1e300",
    "1e-300",
    "-1",
    "[]",
    "{}",
    ",",
    ":",
    "\"",
];

/// Configurations of published pipelines, and one for each class.
pub fn seeds() -> Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden-image/pipelines");
    let read = |name: &str| {
        let path = folder.join(name).join("scheduler/scheduler_config.json");
        std::fs::read(&path).map_err(|e| Error::io(&path, e))
    };
    let mut all = ["sd1", "sdxl", "sd3", "flux", "lcm"].into_iter().map(read).collect::<Result<Vec<_>>>()?;
    for class in ["DDIM", "EulerAncestralDiscrete", "DPMSolverMultistep", "UniPCMultistep", "DDPM", "SCM"] {
        all.push(
            format!(r#"{{"_class_name": "{class}Scheduler", "num_train_timesteps": 100}}"#).into_bytes(),
        );
    }
    Ok(all)
}

/// Tables of the largest sizes, values that are no values, names that are whole files.
pub fn hostile() -> Vec<Vec<u8>> {
    let of = |class: &str, rest: &str| format!(r#"{{"_class_name": "{class}Scheduler", {rest}}}"#);
    let long = "x".repeat(200_000);
    let many = r#""num_train_timesteps": 1000000, "beta_start": 1e-9, "beta_end": 1e-6"#;
    [
        of("DDIM", many),
        of("EulerDiscrete", &format!(r#"{many}, "use_beta_sigmas": true"#)),
        of("UniPCMultistep", &format!(r#"{many}, "solver_order": 3"#)),
        of("DDIM", r#""num_train_timesteps": 18446744073709551615"#),
        of("DDIM", &format!(r#""trained_betas": [{}0.5]"#, "0.5,".repeat(50_000))),
        of("DPMSolverMultistep", r#""solver_order": 4294967296"#),
        of("UniPCMultistep", r#""disable_corrector": [18446744073709551615]"#),
        of(
            "FlowMatchEulerDiscrete",
            r#""use_dynamic_shifting": true, "base_shift": 1e300, "max_shift": -1e300"#,
        ),
        of("LCM", r#""original_inference_steps": 0"#),
        of(&long, r#""a": 1"#),
        of("DDIM", &format!(r#""beta_schedule": "{long}""#)),
        format!(r#"{{"_class_name": {}"#, "[".repeat(100_000)),
        format!("{}{}", r#"{"a":"#.repeat(50_000), "}".repeat(50_000)),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect()
}

pub fn read(input: Vec<u8>) -> bool {
    let Ok(text) = std::str::from_utf8(&input) else { return false };
    let count = 1 + input.len() % STEPS;
    match run(text, count, input.len() % 3 % count) {
        Ok(sample) => {
            assert!(sample.iter().all(|x| !x.is_nan()), "{sample:?} in {count} steps");
            true
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("; allowed: "), "{}", said.chars().take(400).collect::<String>());
            false
        }
    }
}

/// A run of so many steps, from one of them on, of small values.
fn run(text: &str, count: usize, begin: usize) -> engraft_image::Result<Vec<f32>> {
    let config = SchedulerConfig::from_json(text)?;
    let mu = if config.needs_mu() { Some(config.mu(16)?) } else { None };
    let mut scheduler = Scheduler::new(&config, Steps::Count(count), Settings { mu, ..Settings::default() })?;
    scheduler.begin_at(begin)?;
    let mut sample = scheduler.add_noise(&[0.5, -0.25], &[0.1, 1.0])?;
    let (output, noise) = ([0.3, -0.2, 0.1, -0.4], Some(&[0.7f32, -0.7][..]));
    for _ in scheduler.position()..scheduler.timesteps().len() {
        let mut input = sample.clone();
        scheduler.scale_input(&mut input);
        // A learned variance lies behind the prediction.
        let plain = scheduler.step(&output[..2], &mut sample, noise);
        plain.or_else(|_| scheduler.step(&output, &mut sample, noise))?;
    }
    Ok(sample)
}
