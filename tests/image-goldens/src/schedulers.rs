//! Schedulers: every run of a case, every tensor of it. What the file holds and no comparison has looked at
//! is a failure.

use super::golden::{Golden, Result, Tensor, Verdict, json};
use engraft_image::{Scheduler, SchedulerConfig, Settings, Steps};
use serde_json::Value;
use std::path::Path;

/// A scheduler's case.
pub struct Case {
    /// Its tensors.
    pub golden: Golden,
    config: SchedulerConfig,
}

/// The arguments of a run: of `set_timesteps` (`set`) and of `step`.
struct Arguments {
    values: Option<Vec<f64>>,
    sigmas: bool,
    count: usize,
    settings: Settings,
}

impl Arguments {
    fn of(run: &Value, images: usize) -> Result<Self> {
        let list = |name: &str| {
            let list = run["set"][name].as_array()?;
            Some(list.iter().map(|x| x.as_f64().unwrap_or(f64::NAN)).collect::<Vec<f64>>())
        };
        for (group, known) in [
            ("set", &["timesteps", "sigmas", "mu", "strength"][..]),
            ("step", &["eta", "use_clipped_model_output"]),
        ] {
            let mut names = run[group].as_object().into_iter().flat_map(|map| map.keys());
            if let Some(other) = names.find(|name| !known.contains(&name.as_str())) {
                return Err(format!("an argument `{other}` of `{group}`"));
            }
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
        Ok(Self { sigmas: sigmas.is_some(), values: timesteps.or(sigmas), count, settings })
    }

    fn steps(&self) -> Steps<'_> {
        match (&self.values, self.sigmas) {
            (Some(values), true) => Steps::Sigmas(values),
            (Some(values), false) => Steps::Timesteps(values),
            (None, _) => Steps::Count(self.count),
        }
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

fn said(error: engraft_image::Error) -> String {
    error.to_string()
}

impl Case {
    /// Reads a folder.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn open(folder: &Path) -> Result<Self> {
        // Not as JSON: published ones have infinities, which that lacks.
        let file = folder.join("scheduler_config.json");
        let config = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let golden =
            Golden::open(&folder.join("golden.safetensors"), json(&folder.join("golden.json"))?, 2e-5)?;
        Ok(Self { golden, config: SchedulerConfig::from_json(&config).map_err(said)? })
    }

    /// Names of its runs.
    pub fn runs(&self) -> Vec<String> {
        self.golden.said()["runs"].as_object().into_iter().flat_map(|runs| runs.keys().cloned()).collect()
    }

    /// A run's scheduler, and the step that it begins at.
    ///
    /// # Errors
    /// For arguments that are not known; what the scheduler refuses.
    fn begin(&self, run: &str, images: usize) -> Result<(Scheduler, usize)> {
        let run = &self.golden.said()["runs"][run];
        let arguments = Arguments::of(run, images)?;
        let scheduler = Scheduler::new(&self.config, arguments.steps(), arguments.settings).map_err(said)?;
        Ok((scheduler, run["begin"].as_u64().unwrap_or(0) as usize))
    }

    /// One run: its plan, its beginning, every step.
    ///
    /// # Errors
    /// What is missing, and what the scheduler refuses or asks for.
    pub fn replay(&mut self, run: &str) -> Result<()> {
        let name = |tensor: &str| format!("{run}.{tensor}");
        let noise = self.golden.get(&name("in.noise"))?.clone();
        let (mut scheduler, begin) = self.begin(run, noise.shape.first().copied().unwrap_or(1))?;
        let golden = &mut self.golden;
        golden.compare(&name("timesteps"), scheduler.timesteps())?;
        // What is not in the file does not exist for the class; `unseen` finds what was left out.
        if golden.find(&name("sigmas")).is_some() {
            golden.compare(&name("sigmas"), scheduler.sigmas())?;
        }
        if golden.find(&name("init_noise_sigma")).is_some() {
            golden.compare(&name("init_noise_sigma"), &[scheduler.init_noise_sigma()])?;
        }
        let factor = scheduler.init_noise_sigma();
        let first: Vec<f32> = match begin {
            0 => noise.values.iter().map(|x| (x * factor) as f32).collect(),
            _ => {
                let original = golden.get(&name("in.original"))?.narrow();
                scheduler.begin_at(begin).map_err(said)?;
                scheduler.add_noise(&original, &noise.narrow()).map_err(said)?
            }
        };
        golden.compare(&name("initial"), &wide(&first))?;
        let Trace { inputs, samples, originals } = self.trace(run, scheduler, first.clone())?;
        let golden = &mut self.golden;
        golden.compare(&name("samples"), &samples)?;
        match golden.find(&name("scaled_inputs")).is_some() {
            true => golden.compare(&name("scaled_inputs"), &inputs)?,
            false if inputs.starts_with(&wide(&first)) => {}
            false => return Err(format!("{run}: the first input is scaled")),
        }
        if golden.find(&name("x0")).is_some() {
            golden.compare(&name("x0"), &originals)?;
        }
        Ok(())
    }

    /// All steps of a run.
    fn trace(&self, run: &str, mut scheduler: Scheduler, mut sample: Vec<f32>) -> Result<Trace> {
        let tensor = |tensor: &str| self.golden.find(&format!("{run}.{tensor}"));
        let outputs = self.golden.get(&format!("{run}.in.model_output"))?;
        let (noise, used) = (tensor("in.step_noise"), tensor("drawn"));
        let calls = outputs.shape.first().copied().unwrap_or(0);
        let (planned, mut trace) = (scheduler.timesteps().len() - scheduler.position(), Trace::default());
        if planned != calls {
            return Err(format!("{run}: {planned} calls of the model, not {calls}"));
        }
        for step in 0..calls {
            let mut input = sample.clone();
            scheduler.scale_input(&mut input);
            trace.inputs.extend(wide(&input));
            let is_used = used.is_some_and(|used| used.values.get(step).is_some_and(|x| *x != 0.0));
            if scheduler.needs_noise() != is_used {
                return Err(format!("{run}: noise of step {step}: {}, not {is_used}", !is_used));
            }
            let noise = noise.filter(|_| is_used).map(|noise| noise.row(step).narrow());
            scheduler.step(&outputs.row(step).narrow(), &mut sample, noise.as_deref()).map_err(said)?;
            trace.samples.extend(wide(&sample));
            trace.originals.extend(scheduler.predicted_original().into_iter().flat_map(wide));
        }
        match scheduler.step(&outputs.row(0).narrow(), &mut sample, None) {
            Ok(()) => Err(format!("{run}: a step after the last is taken")),
            Err(_) => Ok(trace),
        }
    }

    /// Samples of all steps of a run that begins with its noise, of one image or of all.
    ///
    /// # Errors
    /// As [`Case::replay`].
    pub fn pictures(&self, run: &str, image: Option<usize>) -> Result<Vec<Vec<f32>>> {
        let tensor = |tensor: &str| format!("{run}.{tensor}");
        let start = self.golden.get(&tensor("in.noise"))?;
        let images = start.shape.first().copied().unwrap_or(1);
        let pick = |values: &Tensor| match image {
            Some(image) => values.row(image).narrow(),
            None => values.narrow(),
        };
        let (mut scheduler, begin) = self.begin(run, if image.is_some() { 1 } else { images })?;
        scheduler.begin_at(begin).map_err(said)?;
        let outputs = self.golden.get(&tensor("in.model_output"))?;
        let noises = self.golden.find(&tensor("drawn")).and(self.golden.find(&tensor("in.step_noise")));
        let mut sample = pick(start);
        let steps = (0..outputs.shape.first().copied().unwrap_or(0)).map(|step| {
            let noise = noises.map(|noises| pick(&noises.row(step)));
            scheduler.step(&pick(&outputs.row(step)), &mut sample, noise.as_deref()).map_err(said)?;
            Ok(sample.clone())
        });
        steps.collect()
    }
}

/// What the steps of a run gave.
#[derive(Default)]
struct Trace {
    inputs: Vec<f64>,
    samples: Vec<f64>,
    originals: Vec<f64>,
}

/// All runs of a scheduler.
///
/// # Errors
/// What is wrong with the case's files; what the scheduler refuses; tensors that nothing has compared.
pub fn scheduler(folder: &Path) -> Result<Verdict> {
    let mut case = Case::open(folder)?;
    for run in case.runs() {
        case.replay(&run)?;
    }
    match &case.golden.unseen("")[..] {
        [] => Ok(case.golden.verdict),
        left => Err(format!("nothing compares {}", left.join(", "))),
    }
}
