//! What configurations mean beyond the reference's cases: defaults, other classes, errors by name, curves
//! that no case has.
#![allow(clippy::unwrap_used)]

use engraft_image::{Class, Scheduler, SchedulerConfig, Settings, Steps};

fn config(class: &str, fields: &str) -> Result<SchedulerConfig, String> {
    let text = format!("{{\"_class_name\": \"{class}\"{fields}}}");
    SchedulerConfig::from_json(&text).map_err(|e| e.to_string())
}

fn plan(class: &str, fields: &str, steps: Steps<'_>) -> Result<Scheduler, String> {
    Scheduler::new(&config(class, fields)?, steps, Settings::default()).map_err(|e| e.to_string())
}

#[test]
fn fields_that_cannot_work_are_named_with_what_is_allowed() {
    let (ddim, dpm, unipc) = ("DDIMScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler");
    for (class, fields, all) in [
        ("HeunDiscreteScheduler", "", ["_class_name", "\"HeunDiscreteScheduler\"", "DDIMScheduler, PNDM"]),
        (ddim, r#", "prediction_type": "x""#, ["prediction_type", "\"x\"", "epsilon, sample, v_prediction"]),
        (ddim, r#", "timestep_spacing": 3"#, ["timestep_spacing", "3", "linspace, leading, trailing"]),
        (ddim, r#", "num_train_timesteps": 0"#, ["num_train_timesteps", "0", "1 to 1000000"]),
        (ddim, r#", "num_train_timesteps": 1e7"#, ["num_train_timesteps", "10000000", "1 to 1000000"]),
        (ddim, r#", "beta_start": -0.1"#, ["beta_start", "-0.1", "a number from"]),
        (ddim, r#", "beta_end": NaN"#, ["beta_end", "NaN", "a number from"]),
        (ddim, r#", "beta_schedule": "sigmoid""#, ["beta_schedule", "sigmoid", "linear, scaled_linear"]),
        (dpm, r#", "algorithm_type": "x""#, ["algorithm_type", "\"x\"", "dpmsolver++, sde-dpmsolver++"]),
        (dpm, r#", "algorithm_type": "dpmsolver""#, ["final_sigmas_type", "zero", "sigma_min"]),
        (dpm, r#", "solver_order": 4"#, ["solver_order", "4", "1 to 3"]),
        (
            dpm,
            r#", "use_karras_sigmas": true, "use_lu_lambdas": true"#,
            ["use_lu_lambdas", "true", "one curve"],
        ),
        (unipc, r#", "solver_type": "bh1""#, ["final_sigmas_type", "zero", "sigma_min"]),
        (unipc, r#", "predict_x0": false"#, ["final_sigmas_type", "zero", "sigma_min"]),
        (unipc, r#", "solver_p": {}"#, ["solver_p", "{}", "null"]),
        (
            "LCMScheduler",
            r#", "original_inference_steps": 2000"#,
            ["original_inference_steps", "2000", "1000"],
        ),
        ("DDPMScheduler", r#", "variance_type": "learned""#, ["variance_type", "learned", "learned_range"]),
        ("SCMScheduler", r#", "prediction_type": "epsilon""#, ["prediction_type", "epsilon", "trigflow"]),
        ("SCMScheduler", r#", "sigma_data": 0"#, ["sigma_data", "0", "a number from"]),
    ] {
        let error = config(class, fields).unwrap_err();
        assert!(all.iter().all(|part| error.contains(part)), "{class}{fields}: {error}");
    }
    for text in ["", "[]", "{}", r#"{"_class_name": null}"#, r#"{"_class_name": 5}"#] {
        let error = SchedulerConfig::from_json(text).unwrap_err().to_string();
        assert!(error.contains("_class_name") || error.contains("scheduler_config.json"), "{error}");
    }
}

#[test]
fn steps_that_cannot_be_are_refused() {
    for (class, fields, steps, what) in [
        ("DDIMScheduler", "", Steps::Count(0), "number of steps is 0"),
        ("DDIMScheduler", "", Steps::Count(1001), "at most num_train_timesteps, 1000"),
        ("DDIMScheduler", r#", "steps_offset": 5"#, Steps::Count(1000), "steps_offset"),
        ("DDIMScheduler", "", Steps::Sigmas(&[1.0]), "is sigmas"),
        ("PNDMScheduler", "", Steps::Count(3), "at least 4 without skip_prk_steps"),
        ("LCMScheduler", "", Steps::Count(51), "original_inference_steps x strength, 50"),
        ("DDPMScheduler", "", Steps::Timesteps(&[5.0, 5.0]), "falling"),
        ("DDPMScheduler", "", Steps::Timesteps(&[1000.0]), "up to 999"),
        ("DDPMScheduler", "", Steps::Timesteps(&[0.5]), "whole"),
        ("EulerDiscreteScheduler", "", Steps::Sigmas(&[3.0]), "at least 2"),
        ("EulerDiscreteScheduler", "", Steps::Sigmas(&[3.0, f64::NAN]), "finite"),
        ("EulerDiscreteScheduler", "", Steps::Sigmas(&[3.0, 0.0, 0.0]), "more than 0"),
        ("DPMSolverMultistepScheduler", "", Steps::Count(1000), "falling sigmas"),
        ("SCMScheduler", "", Steps::Sigmas(&[1.0]), "is sigmas"),
        ("SCMScheduler", "", Steps::Timesteps(&[1.3]), "at least 2"),
        ("SCMScheduler", "", Steps::Timesteps(&[1.6, 0.0]), "at most 1.5708"),
        ("SCMScheduler", "", Steps::Timesteps(&[1.3, 1.3]), "fall"),
        (
            "DDIMScheduler",
            r#", "rescale_betas_zero_snr": true, "timestep_spacing": "trailing""#,
            Steps::Count(5),
            "v_prediction",
        ),
        (
            "FlowMatchEulerDiscreteScheduler",
            r#", "use_dynamic_shifting": true"#,
            Steps::Count(5),
            "mu is missing",
        ),
    ] {
        let error = plan(class, fields, steps).unwrap_err();
        assert!(error.contains(what), "{class}{fields}: {error}");
    }
    for (class, settings, what) in [
        ("DDIMScheduler", Settings { eta: 1.5, ..Settings::default() }, "eta is 1.5"),
        ("PNDMScheduler", Settings { eta: 0.5, ..Settings::default() }, "all but DDIM"),
        ("PNDMScheduler", Settings { mu: Some(0.5), ..Settings::default() }, "none for this class"),
        ("DDIMScheduler", Settings { strength: 0.5, ..Settings::default() }, "all but LCM"),
        ("LCMScheduler", Settings { strength: 0.0, ..Settings::default() }, "strength is 0"),
        ("DDIMScheduler", Settings { images: 0, ..Settings::default() }, "number of images is 0"),
    ] {
        let config = config(class, "").unwrap();
        let error = Scheduler::new(&config, Steps::Count(5), settings).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_step_that_cannot_be_leaves_the_run_as_it_was() {
    let mut run = plan("EulerAncestralDiscreteScheduler", "", Steps::Count(2)).unwrap();
    let mut sample = [1.0f32, 2.0];
    for (output, noise, what) in [
        (&[0.0f32; 3][..], Some(&[0.0f32; 2][..]), "output is 3"),
        (&[0.0; 2], None, "noise is missing"),
        (&[0.0; 2], Some(&[0.0; 1]), "noise is 1"),
    ] {
        let error = run.step(output, &mut sample, noise).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    assert_eq!((run.position(), sample), (0, [1.0, 2.0]));
    assert!(run.begin_at(2).unwrap_err().to_string().contains("less than 2"));
    run.step(&[0.0; 2], &mut sample, Some(&[0.0; 2])).unwrap();
    assert!(run.begin_at(1).unwrap_err().to_string().contains("before the first step"));
    let error = run.step(&[0.0; 4], &mut [0.0; 4], Some(&[0.0; 4])).unwrap_err().to_string();
    assert!(error.contains("sample is 4"), "{error}");
    assert!(run.add_noise(&[0.0; 2], &[0.0; 3]).is_err());
}

#[test]
fn another_class_keeps_the_fields_and_has_its_own_defaults() {
    let euler = r#", "steps_offset": 1, "timestep_spacing": "leading", "set_alpha_to_one": "ignored""#;
    let euler = config("EulerDiscreteScheduler", euler).unwrap();
    let dpm = euler.with_class("DPMSolverMultistepScheduler").unwrap();
    assert_eq!((dpm.class(), dpm.class().name()), (Class::DpmSolverMultistep, "DPMSolverMultistepScheduler"));
    let run = Scheduler::new(&dpm, Steps::Count(4), Settings::default()).unwrap();
    assert_eq!(run.timesteps(), [801.0, 601.0, 401.0, 201.0]);
    // The new class knows the field, and its value is wrong.
    assert!(euler.with_class("DDIMScheduler").unwrap_err().to_string().contains("set_alpha_to_one"));
    // LCM has betas of its own where the text has none, and solvers have each other's names.
    let lcm = config("DDIMScheduler", "").unwrap().with_class("LCMScheduler").unwrap();
    assert_eq!(lcm, config("LCMScheduler", "").unwrap());
    let unipc = config("DPMSolverMultistepScheduler", r#", "solver_type": "heun""#).unwrap();
    assert!(unipc.with_class("UniPCMultistepScheduler").is_ok());
}

#[test]
fn mu_is_a_line_over_the_number_of_tokens() {
    let flux = config("FlowMatchEulerDiscreteScheduler", r#", "use_dynamic_shifting": true"#).unwrap();
    assert!(flux.needs_mu());
    for (tokens, want) in [(256, 0.5), (4096, 1.15), (2176, 0.825), (0, 0.5 - 0.65 / 15.0)] {
        assert!((flux.mu(tokens).unwrap() - want).abs() < 1e-12, "{tokens}");
    }
    let other = r#", "base_shift": 1, "max_shift": 3, "base_image_seq_len": 10, "max_image_seq_len": 20"#;
    assert_eq!(config("FlowMatchEulerDiscreteScheduler", other).unwrap().mu(15).unwrap(), 2.0);
    let equal = config("FlowMatchEulerDiscreteScheduler", r#", "max_image_seq_len": 256"#).unwrap();
    assert!(equal.mu(5).unwrap_err().to_string().contains("max_image_seq_len"));
    // FLUX.1-schnell is given one, and does not use it.
    let schnell = config("FlowMatchEulerDiscreteScheduler", "").unwrap();
    let settings = Settings { mu: Some(0.9), ..Settings::default() };
    let [with, without] = [settings, Settings::default()]
        .map(|settings| Scheduler::new(&schnell, Steps::Sigmas(&[1.0, 0.5]), settings).unwrap());
    assert_eq!(with.sigmas(), without.sigmas());
}

/// What the definitions say where no case of the reference is at hand.
#[test]
fn curves_and_spacings_without_a_case() {
    let ends = |run: &Scheduler| (run.sigmas()[0], run.sigmas()[run.timesteps().len() - 1]);
    let plain = plan("EulerDiscreteScheduler", "", Steps::Count(9)).unwrap();
    let beta = plan("EulerDiscreteScheduler", r#", "use_beta_sigmas": true"#, Steps::Count(9)).unwrap();
    let ((a, b), (c, d)) = (ends(&plain), ends(&beta));
    assert!((a - c).abs() < 1e-9 && (b - d).abs() < 1e-9, "{a} {c}, {b} {d}");
    // A symmetric distribution has its middle in the middle.
    assert!((beta.sigmas()[4] - (a + b) / 2.0).abs() < 1e-9, "{:?}", beta.sigmas());
    let log =
        plan("EulerDiscreteScheduler", r#", "interpolation_type": "log_linear""#, Steps::Count(4)).unwrap();
    let ratios: Vec<f64> = log.sigmas()[..5].windows(2).map(|pair| pair[1] / pair[0]).collect();
    assert!(ratios.iter().all(|ratio| (ratio - ratios[0]).abs() < 1e-12), "{ratios:?}");
    assert_eq!(log.sigmas().len(), 6);
    let fields =
        r#", "use_flow_sigmas": true, "use_karras_sigmas": true, "sigma_max": 99, "sigma_min": 0.01"#;
    let karras = plan("UniPCMultistepScheduler", fields, Steps::Count(5)).unwrap();
    assert!((karras.sigmas()[0] - 0.99).abs() < 1e-12);
    assert_eq!(karras.timesteps()[0], (karras.sigmas()[0] * 1000.0).trunc());
    let given = plan("UniPCMultistepScheduler", r#", "use_flow_sigmas": true"#, Steps::Sigmas(&[1.0, 0.5]));
    assert_eq!(given.unwrap().sigmas(), [1.0 - 1e-6, 0.5, 0.0]);
    let inverted =
        plan("FlowMatchEulerDiscreteScheduler", r#", "invert_sigmas": true"#, Steps::Sigmas(&[1.0, 0.25]));
    assert_eq!(inverted.unwrap().sigmas(), [0.0, 0.75, 1.0]);
    let exact = plan("FlowMatchEulerDiscreteScheduler", "", Steps::Timesteps(&[900.0, 300.0])).unwrap();
    assert_eq!((exact.timesteps(), exact.sigmas()), (&[900.0, 300.0][..], &[0.9, 0.3, 0.0][..]));
}
