//! Schedulers against the reference's float64 results: every case of `tests/golden-image/schedulers`, every
//! run, every tensor. Nothing is skipped: what `golden.json` lists and no comparison has looked at is a
//! failure.
#![allow(clippy::unwrap_used, clippy::panic)]

mod golden;

use engraft_image::{Scheduler, SchedulerConfig, Settings, Steps};
use golden::{Case, Tensor};
use serde_json::Value;

/// Cases and runs of the folder.
const CASES: usize = 49;
const RUNS: usize = 155;

/// The arguments of a run: of `set_timesteps` (`set`) and of `step`.
struct Arguments {
    values: Option<Vec<f64>>,
    sigmas: bool,
    count: usize,
    settings: Settings,
}

impl Arguments {
    fn of(run: &Value, images: usize) -> Self {
        let list = |name: &str| {
            let list = run["set"][name].as_array()?;
            Some(list.iter().map(|x| x.as_f64().unwrap()).collect::<Vec<f64>>())
        };
        for (group, known) in [
            ("set", &["timesteps", "sigmas", "mu", "strength"][..]),
            ("step", &["eta", "use_clipped_model_output"]),
        ] {
            let names = run[group].as_object().into_iter().flat_map(|map| map.keys());
            names.for_each(|name| assert!(known.contains(&name.as_str()), "an argument {name}"));
        }
        let settings = Settings {
            mu: run["set"]["mu"].as_f64(),
            strength: run["set"]["strength"].as_f64().unwrap_or(1.0),
            eta: run["step"]["eta"].as_f64().unwrap_or(0.0),
            use_clipped_model_output: run["step"]["use_clipped_model_output"] == true,
            images,
        };
        let count = run["steps"].as_u64().unwrap_or(0) as usize;
        let (timesteps, sigmas) = (list("timesteps"), list("sigmas"));
        Self { sigmas: sigmas.is_some(), values: timesteps.or(sigmas), count, settings }
    }

    fn steps(&self) -> Steps<'_> {
        match (&self.values, self.sigmas) {
            (Some(values), true) => Steps::Sigmas(values),
            (Some(values), false) => Steps::Timesteps(values),
            (None, _) => Steps::Count(self.count),
        }
    }
}

fn config(case: &Case) -> SchedulerConfig {
    SchedulerConfig::from_json(&case.text("scheduler_config.json")).unwrap()
}

/// One run: its plan, its beginning, every step.
fn replay(case: &mut Case, name: &str) {
    let run = case.runs()[name].clone();
    let noise = case.tensor(name, "in.noise");
    let images = noise.shape[0];
    let arguments = Arguments::of(&run, images);
    let mut scheduler = Scheduler::new(&config(case), arguments.steps(), arguments.settings).unwrap();
    case.compare(name, "timesteps", scheduler.timesteps());
    // What is not listed does not exist for the class; `unseen` fails where something listed was left out.
    if case.has(name, "sigmas") {
        case.compare(name, "sigmas", scheduler.sigmas());
    }
    if case.has(name, "init_noise_sigma") {
        case.compare(name, "init_noise_sigma", &[scheduler.init_noise_sigma()]);
    }
    let begin = run["begin"].as_u64().unwrap_or(0) as usize;
    let mut sample: Vec<f32> = match begin {
        0 => {
            let factor = scheduler.init_noise_sigma();
            noise.values.iter().map(|x| (x * factor) as f32).collect()
        }
        _ => {
            let original = case.tensor(name, "in.original").narrow();
            scheduler.begin_at(begin).unwrap();
            scheduler.add_noise(&original, &noise.narrow()).unwrap()
        }
    };
    case.compare(name, "initial", &golden::wide(&sample));
    let outputs = case.tensor(name, "in.model_output");
    let used =
        case.has(name, "drawn").then(|| (case.tensor(name, "in.step_noise"), case.tensor(name, "drawn")));
    let (mut inputs, mut samples, mut originals) = (Vec::new(), Vec::new(), Vec::new());
    assert_eq!(scheduler.timesteps().len() - begin, outputs.shape[0], "{name}: calls of the model");
    for step in 0..outputs.shape[0] {
        let mut input = sample.clone();
        scheduler.scale_input(&mut input);
        inputs.extend(golden::wide(&input));
        let noise = used.as_ref().filter(|(_, used)| used.values[step] != 0.0);
        assert_eq!(scheduler.needs_noise(), noise.is_some(), "{} {name}: noise of step {step}", case.name);
        let noise = noise.map(|(noise, _)| noise.row(step));
        scheduler.step(&outputs.row(step), &mut sample, noise.as_deref()).unwrap();
        samples.extend(golden::wide(&sample));
        originals.extend(scheduler.predicted_original().into_iter().flat_map(golden::wide));
    }
    case.compare(name, "samples", &samples);
    match case.has(name, "scaled_inputs") {
        true => case.compare(name, "scaled_inputs", &inputs),
        false => assert_eq!(inputs[..noise.values.len()], golden::wide(&first(case, name)), "{name}"),
    }
    if case.has(name, "x0") {
        case.compare(name, "x0", &originals);
    }
    assert!(scheduler.step(&outputs.row(0), &mut sample, None).is_err(), "a step after the last");
}

/// The first sample, which is the first input where none is listed.
fn first(case: &mut Case, name: &str) -> Vec<f32> {
    case.tensor(name, "initial").narrow()
}

#[test]
fn every_case_and_every_run() {
    let (mut cases, mut runs, mut worst) = (0, 0, (0.0, String::new()));
    for mut case in golden::cases("schedulers") {
        let names: Vec<String> = case.runs().keys().cloned().collect();
        for name in &names {
            replay(&mut case, name);
            runs += 1;
        }
        let unseen = case.unseen();
        assert!(unseen.is_empty(), "{}: nothing compares {unseen:?}", case.name);
        if case.worst.0 > worst.0 {
            worst = case.worst.clone();
        }
        cases += 1;
    }
    println!("{cases} cases, {runs} runs; worst {:.3} of the tolerance: {}", worst.0, worst.1);
    assert_eq!((cases, runs), (CASES, RUNS));
}

/// Every run again, its pictures one by one: the same bits.
#[test]
fn a_batch_is_its_pictures() {
    for mut case in golden::cases("schedulers") {
        let names: Vec<String> = case.runs().keys().cloned().collect();
        for name in &names {
            let all = pictures(&mut case, name, None);
            let images = case.tensor(name, "in.noise").shape[0];
            let single: Vec<_> = (0..images).map(|image| pictures(&mut case, name, Some(image))).collect();
            for (step, batch) in all.iter().enumerate() {
                let parts: Vec<f32> = single.iter().flat_map(|steps| steps[step].clone()).collect();
                let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(batch), bits(&parts), "{} {name} step {step}", case.name);
            }
        }
    }
}

/// Samples of all steps, of one image or of all.
fn pictures(case: &mut Case, name: &str, image: Option<usize>) -> Vec<Vec<f32>> {
    let run = case.runs()[name].clone();
    let start = case.tensor(name, "in.noise");
    let images = start.shape[0];
    let pick = |values: &[f32]| match image {
        Some(image) => values[values.len() / images * image..][..values.len() / images].to_vec(),
        None => values.to_vec(),
    };
    let arguments = Arguments::of(&run, if image.is_some() { 1 } else { images });
    let mut scheduler = Scheduler::new(&config(case), arguments.steps(), arguments.settings).unwrap();
    scheduler.begin_at(run["begin"].as_u64().unwrap_or(0) as usize).unwrap();
    let outputs = case.tensor(name, "in.model_output");
    let noises = case.has(name, "drawn").then(|| case.tensor(name, "in.step_noise"));
    let mut sample = pick(&start.narrow());
    let steps = (0..outputs.shape[0]).map(|step| {
        let noise = noises.as_ref().map(|noises: &Tensor| pick(&noises.row(step)));
        scheduler.step(&pick(&outputs.row(step)), &mut sample, noise.as_deref()).unwrap();
        sample.clone()
    });
    steps.collect()
}
