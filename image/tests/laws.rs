//! Laws of solvers that need no reference: a sure model is followed, and solvers of one equation agree in the
//! limit of many steps, at the rate of their order.
#![allow(clippy::unwrap_used)]

use engraft_image::{Scheduler, SchedulerConfig, Settings, Steps};

fn plan(class: &str, fields: &str, steps: Steps<'_>) -> Result<Scheduler, String> {
    let text = format!("{{\"_class_name\": \"{class}\"{fields}}}");
    let config = SchedulerConfig::from_json(&text).map_err(|e| e.to_string())?;
    Scheduler::new(&config, steps, Settings::default()).map_err(|e| e.to_string())
}

/// The sample that a smooth model leads to, without noise. The model is the noise of data that is normal with
/// a mean that bends with the sample.
fn led(class: &str, fields: &str, count: usize) -> f64 {
    let fields = format!(
        "{fields}, \"final_sigmas_type\": \"sigma_min\", \"use_exponential_sigmas\": true, \
         \"beta_schedule\": \"scaled_linear\", \"lower_order_final\": false"
    );
    let mut run = plan(class, &fields, Steps::Count(count)).unwrap();
    let mut sample = [0.8f32];
    for step in 0..count {
        let sigma = run.sigmas()[step];
        let alpha = 1.0 / (sigma * sigma + 1.0).sqrt();
        let x = f64::from(sample[0]);
        // Of the variance-preserving sample, with data of deviation 1 / 2 around 0.3 + 0.2 sin x.
        let spread = (alpha * alpha * 0.25 + sigma * sigma * alpha * alpha).sqrt();
        let noise = sigma * alpha * (x - alpha * (0.3 + 0.2 * x.sin())) / (spread * spread);
        run.step(&[noise as f32], &mut sample, Some(&[0.0])).unwrap();
    }
    f64::from(sample[0])
}

const DPM: &str = "DPMSolverMultistepScheduler";

#[test]
fn solvers_of_one_equation_agree() {
    let best = led(DPM, r#", "solver_order": 3"#, 400);
    for algorithm in ["dpmsolver", "dpmsolver++"] {
        for (order, solver, near) in
            [(1, "midpoint", 2e-2), (2, "midpoint", 2e-4), (2, "heun", 2e-4), (3, "heun", 2e-5)]
        {
            let fields = format!(
                r#", "algorithm_type": "{algorithm}", "solver_order": {order}, "solver_type": "{solver}""#
            );
            let off = [100, 200].map(|count| (led(DPM, &fields, count) - best).abs());
            assert!(off[1] < near, "{algorithm} {order} {solver}: {off:?}");
            // Twice the steps: half of the error to the order's power, until f32 ends it.
            let rate = off[1] < 2e-6 || off[0] > off[1] * 0.8 * f64::from(1 << order.min(2));
            assert!(rate, "{algorithm} {order} {solver}: {off:?}");
        }
    }
    for fields in [r#", "solver_order": 2"#, r#", "solver_order": 3"#, r#", "predict_x0": false"#] {
        let off = (led("UniPCMultistepScheduler", fields, 200) - best).abs();
        assert!(off < 2e-4, "UniPC{fields}: {off}");
    }
}

/// Without their noise, the stochastic solvers follow one other equation.
#[test]
fn stochastic_solvers_agree_without_noise() {
    let of = |algorithm: &str, order: usize, solver: &str, count| {
        let fields = format!(
            r#", "algorithm_type": "sde-{algorithm}", "solver_order": {order}, "solver_type": "{solver}""#
        );
        led(DPM, &fields, count)
    };
    let best = of("dpmsolver++", 2, "heun", 800);
    for (algorithm, order, solver, near) in [
        ("dpmsolver++", 1, "midpoint", 2e-4),
        ("dpmsolver++", 2, "midpoint", 5e-6),
        // The reference's third order has an error of the first, see there.
        ("dpmsolver++", 3, "midpoint", 1e-4),
        ("dpmsolver", 1, "midpoint", 1e-3),
        ("dpmsolver", 2, "midpoint", 5e-6),
        ("dpmsolver", 2, "heun", 5e-6),
    ] {
        let off = (of(algorithm, order, solver, 800) - best).abs();
        assert!(off < near, "{algorithm} {order} {solver}: {off}");
    }
}

/// A model that always predicts the same original leads there, whatever the class.
#[test]
fn a_sure_model_is_followed() {
    for (class, fields) in [
        ("DDIMScheduler", r#", "prediction_type": "sample", "clip_sample": false"#),
        ("DDPMScheduler", r#", "prediction_type": "sample", "clip_sample": false"#),
        ("EulerDiscreteScheduler", r#", "prediction_type": "sample""#),
        ("DPMSolverMultistepScheduler", r#", "prediction_type": "sample", "use_beta_sigmas": true"#),
        (
            "DPMSolverMultistepScheduler",
            r#", "prediction_type": "sample", "algorithm_type": "sde-dpmsolver++""#,
        ),
        ("DPMSolverMultistepScheduler", r#", "prediction_type": "sample", "solver_order": 3"#),
        ("UniPCMultistepScheduler", r#", "prediction_type": "sample", "use_exponential_sigmas": true"#),
        ("UniPCMultistepScheduler", r#", "prediction_type": "sample", "solver_order": 4"#),
        ("LCMScheduler", r#", "prediction_type": "sample""#),
    ] {
        let mut run = plan(class, fields, Steps::Count(12)).unwrap();
        let mut sample = [0.4f32, -3.0];
        for _ in 0..run.timesteps().len() {
            run.step(&[0.25, -0.5], &mut sample, Some(&[0.3, -0.1])).unwrap();
        }
        let near = (sample[0] - 0.25).abs() + (sample[1] + 0.5).abs();
        assert!(near < 1e-4, "{class}{fields}: {sample:?}");
    }
}
