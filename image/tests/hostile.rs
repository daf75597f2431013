//! Configurations at random: each is refused by name, or its run ends with numbers.
#![allow(clippy::unwrap_used)]

use engraft_image::{Scheduler, SchedulerConfig, Settings, Steps};
use proptest::prelude::*;
use proptest::sample::select;
use std::fmt::Write;

const CLASSES: [&str; 10] = [
    "DDIMScheduler",
    "PNDMScheduler",
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "UniPCMultistepScheduler",
    "LCMScheduler",
    "DDPMScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "SCMScheduler",
];

/// Fields with values of which most work for some class.
const FIELDS: &[(&str, &[&str])] = &[
    ("num_train_timesteps", &["1", "2", "3", "10", "100", "1000"]),
    ("beta_start", &["0.0001", "0.00085", "1e-300", "0.5"]),
    ("beta_end", &["0.02", "0.012", "1e-300", "0.9"]),
    ("beta_schedule", &["\"linear\"", "\"scaled_linear\"", "\"squaredcos_cap_v2\""]),
    ("trained_betas", &["[0.1]", "[0.1, 0.2]", "[0.3, 0.0001, 0.1]"]),
    (
        "prediction_type",
        &["\"epsilon\"", "\"v_prediction\"", "\"sample\"", "\"flow_prediction\"", "\"trigflow\""],
    ),
    ("rescale_betas_zero_snr", &["true", "false"]),
    ("timestep_spacing", &["\"linspace\"", "\"leading\"", "\"trailing\""]),
    ("steps_offset", &["0", "1", "5"]),
    ("clip_sample", &["true", "false"]),
    ("clip_sample_range", &["1.0", "1e-9"]),
    ("thresholding", &["true", "false"]),
    ("dynamic_thresholding_ratio", &["0", "0.5", "1"]),
    ("sample_max_value", &["0.5", "3"]),
    ("set_alpha_to_one", &["true", "false"]),
    ("skip_prk_steps", &["true", "false"]),
    ("use_karras_sigmas", &["true", "false"]),
    ("use_exponential_sigmas", &["true", "false", "false"]),
    ("use_beta_sigmas", &["true", "false", "false"]),
    ("use_lu_lambdas", &["true", "false", "false"]),
    ("use_flow_sigmas", &["true", "false"]),
    ("sigma_min", &["0.002", "80"]),
    ("sigma_max", &["0.002", "80"]),
    ("final_sigmas_type", &["\"zero\"", "\"sigma_min\""]),
    ("interpolation_type", &["\"linear\"", "\"log_linear\""]),
    ("timestep_type", &["\"discrete\"", "\"continuous\""]),
    ("shift", &["1", "3", "1e-9", "1e6"]),
    ("flow_shift", &["1", "3", "1e-9", "1e6"]),
    ("use_dynamic_shifting", &["true", "false"]),
    ("time_shift_type", &["\"exponential\"", "\"linear\""]),
    ("shift_terminal", &["0", "0.02", "0.9"]),
    ("invert_sigmas", &["true", "false"]),
    ("stochastic_sampling", &["true", "false"]),
    ("solver_order", &["1", "2", "3", "8"]),
    ("algorithm_type", &["\"dpmsolver++\"", "\"dpmsolver\"", "\"sde-dpmsolver++\"", "\"sde-dpmsolver\""]),
    ("solver_type", &["\"midpoint\"", "\"heun\"", "\"bh1\"", "\"bh2\""]),
    ("lower_order_final", &["true", "false"]),
    ("euler_at_final", &["true", "false"]),
    ("predict_x0", &["true", "false"]),
    ("disable_corrector", &["[]", "[0, 2]"]),
    ("lambda_min_clipped", &["-Infinity", "-5.1", "3"]),
    ("variance_type", &["\"fixed_small\"", "\"fixed_small_log\"", "\"fixed_large\"", "\"learned_range\""]),
    ("original_inference_steps", &["1", "5", "50"]),
    ("timestep_scaling", &["0", "10"]),
    ("sigma_data", &["0.5", "1", "1e-9", "80"]),
];

/// Values that fit hardly anything.
const ODD: [&str; 16] = [
    "null",
    "-1",
    "0",
    "1e300",
    "-0.5",
    "1000000",
    "1000001",
    "18446744073709551615",
    "NaN",
    "Infinity",
    "\"\"",
    "\"karras\"",
    "[]",
    "[null]",
    "{}",
    "[-1, 2]",
];

fn text() -> impl Strategy<Value = String> {
    let field = (select(FIELDS), any::<prop::sample::Index>(), 0..20u32, select(&ODD[..]));
    let fields = prop::collection::vec(field, 0..14);
    (select(&CLASSES[..]), fields).prop_map(|(class, fields)| {
        let mut text = format!("{{\"_class_name\": \"{class}\"");
        for ((name, values), which, odd, other) in fields {
            let value = if odd == 0 { other } else { values[which.index(values.len())] };
            write!(text, ", \"{name}\": {value}").unwrap();
        }
        text + "}"
    })
}

/// Plans and runs a configuration with small values; what it says if it refuses.
fn run(text: &str, steps: Steps<'_>, settings: Settings, begin: usize) -> Result<Vec<f32>, String> {
    let said = |e: engraft_image::Error| e.to_string();
    let config = SchedulerConfig::from_json(text).map_err(said)?;
    let mut scheduler = Scheduler::new(&config, steps, settings).map_err(said)?;
    scheduler.begin_at(begin).map_err(said)?;
    let mut sample = scheduler.add_noise(&[0.5, -0.25], &[0.1, 1.0]).map_err(said)?;
    for step in scheduler.position()..scheduler.timesteps().len() {
        let mut input = sample.clone();
        scheduler.scale_input(&mut input);
        let output = [0.3, -0.2 + step as f32 * 0.01, 0.1, -0.4];
        let length = if text.contains("learned_range") && text.contains("DDPM") { 4 } else { 2 };
        let done = scheduler.step(&output[..length], &mut sample, Some(&[0.7, -0.7]));
        done.or_else(|_| scheduler.step(&output[..6 - length], &mut sample, Some(&[0.7, -0.7])))
            .map_err(said)?;
    }
    Ok(sample)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_accepted_ends_with_numbers(
        text in text(),
        count in 0usize..40,
        mu in prop::option::of(-3.0f64..3.0),
        begin in 0usize..3,
        given in prop::collection::vec(0.0f64..30.0, 0..6),
        kind in 0..8,
    ) {
        let given = { let mut given = given; given.sort_by(|a, b| b.total_cmp(a)); given };
        let whole: Vec<f64> = given.iter().map(|x| x.floor()).collect();
        let steps = match kind {
            0 => Steps::Sigmas(&given),
            1 => Steps::Timesteps(&whole),
            _ => Steps::Count(count),
        };
        let settings = Settings { mu, ..Settings::default() };
        match run(&text, steps, settings, begin) {
            Ok(sample) => prop_assert!(sample.iter().all(|x| !x.is_nan()), "{text}: {sample:?}"),
            Err(said) => prop_assert!(said.contains("; allowed: "), "{said}"),
        }
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,60}", at in 0usize..200) {
        let _ = SchedulerConfig::from_json(&text);
        let whole = r#"{"_class_name": "DDIMScheduler", "beta_start": -Infinity, "x": "\"\\u0041"}"#;
        let damaged: String = whole.chars().take(at).chain(text.chars()).collect();
        let _ = SchedulerConfig::from_json(&damaged);
    }
}

/// How many of the generated configurations run, of each class some: a test that refuses everything shows
/// nothing.
#[test]
fn many_configurations_run() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut ran = [0; CLASSES.len()];
    for _ in 0..1000 {
        let text = text().new_tree(&mut runner).unwrap().current();
        let class = CLASSES.iter().position(|class| text.contains(&format!("\"{class}\""))).unwrap();
        ran[class] += usize::from(run(&text, Steps::Count(5), Settings::default(), 0).is_ok());
    }
    let all: usize = ran.iter().sum();
    assert!(all > 200 && ran.iter().all(|count| *count > 0), "{all} of 1000: {ran:?}");
}

/// The largest sizes take no long time.
#[test]
fn the_largest_sizes_end() {
    for class in CLASSES {
        let text = format!(
            r#"{{"_class_name": "{class}", "num_train_timesteps": 1000000, "beta_start": 1e-9, "beta_end": 1e-6}}"#
        );
        let config = SchedulerConfig::from_json(&text).unwrap();
        let count = if class == "LCMScheduler" { 50 } else { 10_000 };
        Scheduler::new(&config, Steps::Count(count), Settings::default()).unwrap();
        let error = Scheduler::new(&config, Steps::Count(10_001), Settings::default()).unwrap_err();
        assert!(error.to_string().contains("10001"), "{error}");
    }
    let text = r#"{"_class_name": "EulerDiscreteScheduler", "use_beta_sigmas": true}"#;
    let config = SchedulerConfig::from_json(text).unwrap();
    assert!(Scheduler::new(&config, Steps::Count(10_000), Settings::default()).is_ok());
}
