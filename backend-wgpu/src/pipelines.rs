//! Kernels compiled once per device, and those that stand in for what a driver gets wrong.

use crate::adapter::IN_BROWSER;
use crate::cache::Cache;
use crate::device::Gpu;
use crate::pipeline::{Pipeline, compile, rendered};
use crate::trial::Trial;
use crate::twins;
use engraft_core::{Error, Result};
use engraft_shaders::{Dialect, Kernel};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a start that compiles says how far it is.
const SAID_EVERY: Duration = Duration::from_secs(2);

/// A kernel that the driver does not take, and the error that says so.
pub(crate) type Refused = (Kernel, Error);

/// The compiled kernels of a device.
#[derive(Debug)]
pub(crate) struct Pipelines {
    pub dialect: Dialect,
    cache: Option<Cache>,
    /// Whether matmuls of several rows can be compared with those of one, too. Drivers that whole tests run
    /// on are compared with the CPU by these, and compile slowly.
    pub tries_rows: bool,
    /// Whether a kernel has its twin's bits or is not used, because an order of sums is promised. Else only
    /// those within subgroups are compared, and their numbers must be near: what a driver makes of sums that
    /// are not guarded is as good, and plainer kernels are several times slower.
    pub by_bits: bool,
    compiled: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
    /// Kernels that are not used, and why.
    replaced: Mutex<Vec<(Kernel, String)>>,
    /// For tests: what a driver makes of a kernel's text.
    #[cfg(test)]
    pub driver: Option<fn(&Kernel, String) -> String>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pipelines {
    pub fn new(dialect: Dialect, cache: Option<Cache>, tries_rows: bool) -> Self {
        Self {
            dialect,
            cache,
            tries_rows,
            by_bits: dialect.strict,
            compiled: Mutex::default(),
            replaced: Mutex::default(),
            #[cfg(test)]
            driver: None,
        }
    }

    /// Without anything that was compiled, for shaders that unpack halves by hand.
    pub fn by_hand(self) -> Self {
        let by_bits = self.by_bits;
        let by_hand = Self::new(Dialect { f16: false, ..self.dialect }, self.cache, self.tries_rows);
        Self { by_bits, ..by_hand }
    }

    /// Whether matmuls of several rows are compared with those of one.
    pub fn compares_rows(&self) -> bool {
        self.tries_rows && self.by_bits
    }

    /// The pipeline of `kernel`, compiled when first asked for; of one that does not give its twin's bits,
    /// the twin's.
    ///
    /// # Errors
    /// `Unsupported` naming the kernel when the driver does not take it.
    pub fn get(&self, gpu: &Gpu, kernel: Kernel) -> Result<Arc<Pipeline>> {
        if let Some(found) = lock(&self.compiled).get(&kernel) {
            return Ok(found.clone());
        }
        let made = self.anew(gpu, kernel)?;
        // Another thread may have made it, too.
        Ok(lock(&self.compiled).entry(kernel).or_insert(made).clone())
    }

    /// The same, compiled now.
    pub(crate) fn anew(&self, gpu: &Gpu, kernel: Kernel) -> Result<Arc<Pipeline>> {
        let twin = kernel.twin().filter(|_| kernel.subgroups() || self.compares_rows());
        match (twin, Trial::of(&kernel)) {
            (Some(twin), Some(trial)) => self.checked(gpu, [kernel, twin], &trial),
            _ => Ok(Arc::new(self.compile(gpu, kernel)?)),
        }
    }

    fn compile(&self, gpu: &Gpu, kernel: Kernel) -> Result<Pipeline> {
        let source = rendered(&kernel, self.dialect)?;
        #[cfg(test)]
        let source = match self.driver {
            Some(driver) => engraft_shaders::Source { text: driver(&kernel, source.text), ..source },
            None => source,
        };
        compile(gpu, self.cache.as_ref(), (kernel, self.dialect.carrier), source)
    }

    /// The first of the two kernels, if the driver takes it and it gives the second one's bits, or numbers
    /// near them where no bits are promised.
    fn checked(&self, gpu: &Gpu, [kernel, twin]: [Kernel; 2], trial: &Trial) -> Result<Arc<Pipeline>> {
        let (own, other) = (self.compile(gpu, kernel), self.get(gpu, twin)?);
        let (own, mut why) = match own {
            Err(Error::Unsupported { reason, .. }) => (None, Some(reason)),
            own => (Some(own?), None),
        };
        if let Some(own) = &own {
            let mark = self.get(gpu, Kernel::Mark)?;
            let sharp = trial.sharp(&kernel).filter(|_| !self.by_bits);
            for trial in [Some(trial.clone()), trial.wide(&kernel), sharp].iter().flatten() {
                let (carrier, how) = (self.dialect.carrier, (trial, self.by_bits));
                let differs = twins::differ(gpu, carrier, [&mark, own, &other], how)?;
                why = why.or(differs);
            }
        }
        match (own, why) {
            (Some(own), None) => Ok(Arc::new(own)),
            (_, why) => {
                let why = why.unwrap_or_default();
                let mut replaced = lock(&self.replaced);
                // Another thread may have found the same.
                if !replaced.iter().any(|(known, _)| *known == kernel) {
                    tracing::warn!("{}: {} is not used: {why}", gpu.name, kernel.label());
                    replaced.push((kernel, why));
                }
                Ok(other)
            }
        }
    }

    /// Kernels that are not used because they did not give their twin's bits, and what was found.
    pub fn replaced(&self) -> Vec<(Kernel, String)> {
        lock(&self.replaced).clone()
    }

    /// Compiles what `wanted` has and is not there yet, on all cores, and keeps it on disk where there is a
    /// folder for that. How far it is goes to the log. What the driver does not take comes back, with the
    /// error that [`Pipelines::get`] has for it.
    ///
    /// # Errors
    /// As [`Pipelines::get`], but for what the driver does not take.
    pub fn ready(&self, gpu: &Gpu, wanted: &[Kernel]) -> Result<Vec<Refused>> {
        let missing: Vec<Kernel> = {
            let compiled = lock(&self.compiled);
            wanted.iter().copied().filter(|kernel| !compiled.contains_key(kernel)).collect()
        };
        let refused = Mutex::new(Vec::new());
        let compile = |kernel: Kernel| match self.get(gpu, kernel) {
            Ok(_) => Ok(()),
            Err(e @ Error::Unsupported { .. }) => {
                lock(&refused).push((kernel, e));
                Ok(())
            }
            Err(e) => Err(e),
        };
        if IN_BROWSER {
            // Pages have one thread, and the browser compiles on its own ones.
            missing.into_iter().try_for_each(compile)?;
            return Ok(refused.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
        let (next, said) = (AtomicUsize::new(0), Mutex::new((0, Instant::now())));
        let work = || -> Result<()> {
            while let Some(kernel) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                compile(*kernel)?;
                let mut said = lock(&said);
                said.0 += 1;
                if said.1.elapsed() > SAID_EVERY {
                    tracing::info!("{}: {} of {} shaders are compiled", gpu.name, said.0, missing.len());
                    said.1 = Instant::now();
                }
            }
            Ok(())
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let outcome = std::thread::scope(|scope| {
            let others: Vec<_> = (1..cores.min(missing.len())).map(|_| scope.spawn(work)).collect();
            let own = work();
            let joined = others.into_iter().map(|other| match other.join() {
                Ok(outcome) => outcome,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.fold(own, |so_far, other| so_far.and(other))
        });
        if let Some(cache) = &self.cache {
            cache.keep();
        }
        outcome?;
        Ok(refused.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}
