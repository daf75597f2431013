//! The model that is served: loaded, watched, and loaded again when its engine is lost.

use crate::config::ServerConfig;
use crate::error::ApiError;
use engraft::{ChatTemplate, EmbedOptions, Error, Result, TextGenerator};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Opens the model; called again after each loss of its engine.
pub type Loader = dyn Fn() -> Result<TextGenerator> + Send + Sync;

/// Losses of the engine after which a request that was running each time is refused.
const MOST_LOSSES: u32 = 2;
/// Requests that were running at a loss, of which that is remembered.
const SUSPECTS: usize = 1024;
/// The longest wait before a failed engine is loaded again.
const MOST_BACKOFF: Duration = Duration::from_secs(30);
/// How long an engine may take to show that it runs.
const PROBE: Duration = Duration::from_secs(60);

/// A model that runs, with what the server adds to it.
#[derive(Debug)]
pub struct Served {
    /// The model.
    pub generator: Arc<TextGenerator>,
    /// The same model as it hears, or why it does not.
    #[cfg(feature = "speech")]
    pub speech: std::result::Result<engraft::Transcriber, ApiError>,
    /// The template that was given in the place of its own.
    own_template: Option<ChatTemplate>,
    /// How often the model has been loaded before.
    pub generation: u64,
}

impl Served {
    /// The template of conversations.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.own_template.as_ref().or(self.generator.chat_template())
    }
}

/// The model of a server, or why there is none at the moment.
pub struct Models {
    load: Box<Loader>,
    template: Option<String>,
    backoff: Duration,
    slot: Mutex<std::result::Result<Arc<Served>, String>>,
    wake: Notify,
    suspects: Mutex<BTreeMap<u64, u32>>,
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Models").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Models {
    /// Loads the model for the first time.
    ///
    /// # Errors
    /// Those of the loader, and `Text` for a chat template that does not compile.
    pub fn open(load: Box<Loader>, config: &ServerConfig) -> Result<Self> {
        let template = config.chat_template.clone();
        let served = serve(load()?, template.as_deref(), 0)?;
        Ok(Self {
            load,
            template,
            backoff: config.restart_backoff,
            slot: Mutex::new(Ok(Arc::new(served))),
            wake: Notify::new(),
            suspects: Mutex::default(),
        })
    }

    /// The model.
    ///
    /// # Errors
    /// 503 while it is being loaded again.
    pub fn current(&self) -> std::result::Result<Arc<Served>, ApiError> {
        let slot = self.slot();
        slot.clone().map_err(|why| ApiError::unavailable(format!("the engine starts anew: {why}"), 1))
    }

    /// Takes an error of a request that ran on `served`: one that may mean that the engine is lost wakes the
    /// supervisor, and counts against the request `fingerprint`.
    pub fn report(&self, served: &Served, error: &Error, fingerprint: u64) {
        if !matches!(error, Error::DeviceLost { .. } | Error::Comm { .. } | Error::Internal { .. }) {
            return;
        }
        tracing::error!("a request failed: {error}");
        let mut suspects = self.suspects();
        if suspects.len() >= SUSPECTS && !suspects.contains_key(&fingerprint) {
            suspects.pop_first();
        }
        *suspects.entry(fingerprint).or_default() += 1;
        let mut slot = self.slot();
        let same = slot.as_ref().is_ok_and(|now| now.generation == served.generation);
        if same && !matches!(error, Error::Internal { .. }) {
            *slot = Err(error.to_string());
        }
        if same {
            self.wake.notify_one();
        }
    }

    /// Refuses a request that was running at two losses of the engine.
    ///
    /// # Errors
    /// 500.
    pub fn admit(&self, fingerprint: u64) -> std::result::Result<(), ApiError> {
        match self.suspects().get(&fingerprint) {
            Some(losses) if *losses >= MOST_LOSSES => Err(ApiError::internal(format!(
                "the engine was lost {losses} times while this request ran; it is not run again"
            ))),
            _ => Ok(()),
        }
    }

    /// Loads the model again whenever its engine is lost; never ends.
    pub async fn supervise(self: Arc<Self>) {
        let mut generation = 0;
        loop {
            self.wake.notified().await;
            let suspected = self.slot().clone();
            if let Ok(served) = suspected {
                if alive(served).await {
                    continue;
                }
                *self.slot() = Err("the engine's thread has ended".into());
            }
            generation += 1;
            self.reload(generation).await;
        }
    }

    async fn reload(self: &Arc<Self>, generation: u64) {
        let mut wait = self.backoff;
        loop {
            tokio::time::sleep(wait).await;
            let models = self.clone();
            let loaded = tokio::task::spawn_blocking(move || {
                (models.load)().and_then(|model| serve(model, models.template.as_deref(), generation))
            });
            let loaded =
                loaded.await.unwrap_or_else(|_| Err(Error::Internal { what: "loading panicked".into() }));
            match loaded {
                Ok(served) => {
                    tracing::warn!("the engine was lost and runs again");
                    *self.slot() = Ok(Arc::new(served));
                    return;
                }
                Err(error) => {
                    wait = (wait * 2).min(MOST_BACKOFF);
                    tracing::error!("the engine cannot be started again: {error}; next attempt in {wait:?}");
                    *self.slot() = Err(error.to_string());
                }
            }
        }
    }

    fn slot(&self) -> MutexGuard<'_, std::result::Result<Arc<Served>, String>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn suspects(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(generator: TextGenerator, template: Option<&str>, generation: u64) -> Result<Served> {
    let tokenizer = generator.tokenizer();
    let compile = |source: &str| ChatTemplate::new(source, tokenizer.bos_token(), tokenizer.eos_token());
    let own_template = template.map(compile).transpose()?;
    let generator = Arc::new(generator);
    #[cfg(feature = "speech")]
    let speech = engraft::Transcriber::new(generator.clone()).map_err(ApiError::from);
    Ok(Served {
        generator,
        #[cfg(feature = "speech")]
        speech,
        own_template,
        generation,
    })
}

/// Whether an engine still runs something.
async fn alive(served: Arc<Served>) -> bool {
    let probe = tokio::task::spawn_blocking(move || {
        served.generator.handle().embed([vec![0]], &EmbedOptions::new()).map(drop)
    });
    match tokio::time::timeout(PROBE, probe).await {
        Ok(Ok(probed)) => {
            !matches!(probed, Err(Error::DeviceLost { .. } | Error::Comm { .. } | Error::Internal { .. }))
        }
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn lost() -> Error {
        Error::DeviceLost { what: "planted".into() }
    }

    fn config() -> ServerConfig {
        ServerConfig { restart_backoff: Duration::from_millis(5), ..ServerConfig::default() }
    }

    async fn eventually(models: &Models, generation: u64) -> Arc<Served> {
        for _ in 0..2000 {
            if let Ok(served) = models.current()
                && served.generation == generation
            {
                return served;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        unreachable!("generation {generation} does not come: {models:?}")
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .unwrap()
            .block_on(work)
    }

    #[test]
    fn a_lost_device_is_loaded_again_and_a_request_that_loses_it_twice_is_refused() {
        run(async {
            let loads = Arc::new(AtomicUsize::new(0));
            let counted = loads.clone();
            // The second load fails, and is tried again.
            let load = move || match counted.fetch_add(1, Ordering::Relaxed) {
                1 => Err(lost()),
                _ => engraft::demo(),
            };
            let models = Arc::new(Models::open(Box::new(load), &config()).unwrap());
            let supervisor = tokio::spawn(models.clone().supervise());
            let first = models.current().unwrap();
            models.report(&first, &lost(), 7);
            assert_eq!(models.current().map(drop).unwrap_err().status, 503);
            let second = eventually(&models, 1).await;
            assert_eq!(loads.load(Ordering::Relaxed), 3);
            assert_eq!(models.admit(7), Ok(()));
            // What ran on the first engine says nothing of the second one, but counts against its request.
            models.report(&first, &lost(), 8);
            assert!(models.current().is_ok());
            models.report(&second, &lost(), 7);
            assert_eq!(models.admit(7).unwrap_err().status, 500);
            assert_eq!(models.admit(8), Ok(()));
            eventually(&models, 2).await;
            supervisor.abort();
        });
    }

    #[test]
    fn an_engine_that_answers_is_kept() {
        run(async {
            let models = Arc::new(Models::open(Box::new(engraft::demo), &config()).unwrap());
            let supervisor = tokio::spawn(models.clone().supervise());
            let served = models.current().unwrap();
            models.report(&served, &Error::Internal { what: "one step failed".into() }, 1);
            models.report(&served, &Error::text("a bad text"), 2);
            assert!(alive(served.clone()).await);
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(models.current().unwrap().generation, 0);
            supervisor.abort();
        });
    }
}
