//! The model that is served: loaded, watched, and loaded again when its engine is lost.

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::model::Model;
#[cfg(feature = "images")]
use crate::pictures::Pictures;
use crate::suspects::Suspects;
use engraft::{ChatTemplate, EngineStats, Error, Result, TextGenerator};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Opens the model; called again after each loss of its engine.
pub type Loader = dyn Fn() -> Result<Model> + Send + Sync;

/// The longest wait before a failed engine is loaded again.
const MOST_BACKOFF: Duration = Duration::from_secs(30);
/// How often a request that has its turn looks for the pipeline.
#[cfg(feature = "images")]
const TICK: Duration = Duration::from_millis(20);

/// A model of texts that runs, with what the server adds to it.
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

/// What runs.
#[derive(Debug, Clone)]
pub enum Loaded {
    /// A model of texts.
    Text(Arc<Served>),
    /// A pipeline.
    #[cfg(feature = "images")]
    Pictures(Arc<Pictures>),
}

impl Loaded {
    /// The path that it was opened by.
    pub fn name(&self) -> &str {
        match self {
            Loaded::Text(served) => &served.generator.info().name,
            #[cfg(feature = "images")]
            Loaded::Pictures(pictures) => &pictures.model.info().name,
        }
    }

    /// What the engine of a model of texts has to do and has done.
    pub fn stats(&self) -> Option<EngineStats> {
        match self {
            Loaded::Text(served) => Some(served.generator.handle().stats()),
            #[cfg(feature = "images")]
            Loaded::Pictures(_) => None,
        }
    }

    /// The routes that a pipeline answers; none of a model of texts.
    pub fn picture_routes(&self) -> Vec<&'static str> {
        match self {
            Loaded::Text(_) => Vec::new(),
            #[cfg(feature = "images")]
            Loaded::Pictures(pictures) => pictures.routes(),
        }
    }

    /// The longest sequence of a model of texts.
    pub fn max_context(&self) -> Option<usize> {
        match self {
            Loaded::Text(served) => Some(served.generator.info().max_context),
            #[cfg(feature = "images")]
            Loaded::Pictures(_) => None,
        }
    }

    /// Whether its engine, or its thread, runs.
    fn is_alive(&self) -> bool {
        match self {
            Loaded::Text(served) => served.generator.handle().is_alive(),
            // A run ends with an error or a panic; what ends its thread is a panic.
            #[cfg(feature = "images")]
            Loaded::Pictures(pictures) => pictures.model.is_alive(),
        }
    }

    fn generation(&self) -> u64 {
        match self {
            Loaded::Text(served) => served.generation,
            #[cfg(feature = "images")]
            Loaded::Pictures(pictures) => pictures.generation,
        }
    }
}

/// Why there is no model at the moment.
#[derive(Debug, Clone)]
enum Lost {
    /// Its engine was lost, and it has not been loaded again yet.
    Engine(String),
    /// The last attempt to load it again failed.
    Reload(String),
}

/// The model of a server, or why there is none at the moment.
pub struct Models {
    load: Box<Loader>,
    template: Option<String>,
    backoff: Duration,
    slot: Mutex<std::result::Result<Loaded, Lost>>,
    wake: Notify,
    /// Requests that were running at losses.
    pub suspects: Suspects,
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
    /// Those of the loader; `Text` for a chat template that does not compile; of a pipeline `Config` for a
    /// chat template, and `Architecture` where it needs more than a text.
    pub fn open(load: Box<Loader>, config: &ServerConfig) -> Result<Self> {
        let template = config.chat_template.clone();
        let served = serve(load()?, template.as_deref(), 0)?;
        Ok(Self {
            load,
            template,
            backoff: config.restart_backoff,
            slot: Mutex::new(Ok(served)),
            wake: Notify::new(),
            suspects: Suspects::default(),
        })
    }

    /// The model.
    ///
    /// # Errors
    /// 503 while it is being loaded again.
    pub fn loaded(&self) -> std::result::Result<Loaded, ApiError> {
        let slot = self.slot();
        slot.clone().map_err(|lost| {
            let (Lost::Engine(why) | Lost::Reload(why)) = lost;
            ApiError::unavailable(format!("the engine starts anew: {why}"), 1)
        })
    }

    /// The model of texts.
    ///
    /// # Errors
    /// 503 while it is being loaded again; 400 where there is none.
    pub fn text(&self) -> std::result::Result<Arc<Served>, ApiError> {
        match self.loaded()? {
            Loaded::Text(served) => Ok(served),
            #[cfg(feature = "images")]
            Loaded::Pictures(pictures) => Err(ApiError::bad(format!(
                "the model makes pictures, and does nothing else: it answers {} alone",
                pictures.routes().join(" and ")
            ))),
        }
    }

    /// The pipeline.
    ///
    /// # Errors
    /// As [`Models::text`].
    #[cfg(feature = "images")]
    pub fn pictures(&self) -> std::result::Result<Arc<Pictures>, ApiError> {
        match self.loaded()? {
            Loaded::Pictures(pictures) => Ok(pictures),
            Loaded::Text(_) => Err(ApiError::bad(
                "the model makes no pictures: a pipeline of diffusers does, a folder with model_index.json",
            )),
        }
    }

    /// The pipeline, for a request that has its turn: one that was lost is waited for.
    ///
    /// # Errors
    /// As [`Models::pictures`], but 503 only once an attempt to load it again has failed.
    #[cfg(feature = "images")]
    pub async fn pictures_again(&self) -> std::result::Result<Arc<Pictures>, ApiError> {
        while self.is_reloading() {
            // The thread may have ended without a report of it.
            self.wake.notify_one();
            tokio::time::sleep(TICK).await;
        }
        self.pictures()
    }

    #[cfg(feature = "images")]
    fn is_reloading(&self) -> bool {
        match &*self.slot() {
            Ok(Loaded::Pictures(pictures)) => !pictures.model.is_alive(),
            Ok(Loaded::Text(_)) | Err(Lost::Reload(_)) => false,
            Err(Lost::Engine(_)) => true,
        }
    }

    /// As [`Models::report_of`], of a request that ran on `served`.
    pub fn report(&self, served: &Served, error: &Error, fingerprint: u64) {
        self.report_of(served.generation, served.generator.handle().is_alive(), error, fingerprint);
    }

    /// Takes an error of a request that ran on the model of this generation, which runs still or does not:
    /// one that may mean that the engine is lost wakes the supervisor, and a loss counts against the request
    /// `fingerprint`.
    pub fn report_of(&self, generation: u64, alive: bool, error: &Error, fingerprint: u64) {
        let lost = matches!(error, Error::DeviceLost { .. } | Error::Comm { .. });
        if !lost && !matches!(error, Error::Internal { .. }) {
            return;
        }
        tracing::error!("a request failed: {error}");
        if lost || !alive {
            self.suspects.lost(fingerprint, generation);
        }
        let mut slot = self.slot();
        let same = slot.as_ref().is_ok_and(|now| now.generation() == generation);
        if same && lost {
            *slot = Err(Lost::Engine(error.to_string()));
        }
        if same {
            self.wake.notify_one();
        }
    }

    /// Loads the model again whenever its engine is lost; never ends.
    pub async fn supervise(self: Arc<Self>) {
        let mut generation = 0;
        loop {
            self.wake.notified().await;
            let suspected = self.slot().clone();
            if let Ok(loaded) = suspected {
                if loaded.is_alive() {
                    continue;
                }
                *self.slot() = Err(Lost::Engine("the engine's thread has ended".into()));
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
                    *self.slot() = Ok(served);
                    return;
                }
                Err(error) => {
                    wait = (wait * 2).min(MOST_BACKOFF);
                    tracing::error!("the engine cannot be started again: {error}; next attempt in {wait:?}");
                    *self.slot() = Err(Lost::Reload(error.to_string()));
                }
            }
        }
    }

    fn slot(&self) -> MutexGuard<'_, std::result::Result<Loaded, Lost>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(model: Model, template: Option<&str>, generation: u64) -> Result<Loaded> {
    match model {
        Model::Text(generator) => text(generator, template, generation),
        #[cfg(feature = "images")]
        Model::Images(model) => pictures(model, template, generation),
    }
}

/// A pipeline that takes requests.
#[cfg(feature = "images")]
fn pictures(model: engraft::ImageHandle, template: Option<&str>, generation: u64) -> Result<Loaded> {
    if template.is_some() {
        return Err(Error::config("chat-template", "given", "none: the model makes pictures"));
    }
    Ok(Loaded::Pictures(Arc::new(Pictures::of(model, generation)?)))
}

fn text(generator: Arc<TextGenerator>, template: Option<&str>, generation: u64) -> Result<Loaded> {
    let tokenizer = generator.tokenizer();
    let compile = |source: &str| ChatTemplate::new(source, tokenizer.bos_token(), tokenizer.eos_token());
    let own_template = template.map(compile).transpose()?;
    #[cfg(feature = "speech")]
    let speech = engraft::Transcriber::new(generator.clone()).map_err(ApiError::from);
    Ok(Loaded::Text(Arc::new(Served {
        generator,
        #[cfg(feature = "speech")]
        speech,
        own_template,
        generation,
    })))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    #[cfg(feature = "images")]
    use engraft::{ImageHandle, engraft_diffusion::ImageRequest};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn lost() -> Error {
        Error::DeviceLost { what: "planted".into() }
    }

    fn demo() -> Result<Model> {
        engraft::demo().map(Model::from)
    }

    fn config() -> ServerConfig {
        ServerConfig { restart_backoff: Duration::from_millis(5), ..ServerConfig::default() }
    }

    async fn eventually(models: &Models, generation: u64) -> Loaded {
        for _ in 0..2000 {
            if let Ok(loaded) = models.loaded()
                && loaded.generation() == generation
            {
                return loaded;
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
                _ => demo(),
            };
            let models = Arc::new(Models::open(Box::new(load), &config()).unwrap());
            let supervisor = tokio::spawn(models.clone().supervise());
            let first = models.text().unwrap();
            models.report(&first, &lost(), 7);
            assert_eq!(models.loaded().map(drop).unwrap_err().status, 503);
            let second = eventually(&models, 1).await.generation();
            assert_eq!(loads.load(Ordering::Relaxed), 3);
            assert_eq!(models.suspects.admit(7), Ok(()));
            // What ran on the first engine says nothing of the second one, but counts against its request.
            models.report(&first, &lost(), 8);
            assert!(models.loaded().is_ok());
            models.report_of(second, true, &lost(), 7);
            assert_eq!(models.suspects.admit(7).unwrap_err().status, 500);
            assert_eq!(models.suspects.admit(8), Ok(()));
            eventually(&models, 2).await;
            supervisor.abort();
        });
    }

    #[test]
    fn an_engine_that_answers_is_kept() {
        run(async {
            let models = Arc::new(Models::open(Box::new(demo), &config()).unwrap());
            let supervisor = tokio::spawn(models.clone().supervise());
            let served = models.text().unwrap();
            models.report(&served, &Error::Internal { what: "one step failed".into() }, 1);
            models.report(&served, &Error::text("a bad text"), 2);
            models.report(&served, &Error::Internal { what: "another step failed".into() }, 1);
            // Nothing was lost, so nothing counts against the request.
            assert_eq!(models.suspects.admit(1), Ok(()));
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(models.loaded().unwrap().generation(), 0);
            supervisor.abort();
        });
    }

    /// However full its queue is: an engine that is thrown away while it works is there twice.
    #[test]
    fn an_engine_that_is_busy_is_kept_and_seen_at_once() {
        run(async {
            let one =
                || engraft::Options::new().max_seqs(1).open(engraft::ModelSource::Demo).map(Model::from);
            let models = Arc::new(Models::open(Box::new(one), &config()).unwrap());
            let served = models.text().unwrap();
            let long = engraft::Request { prompt: vec![5, 6, 7], max_new_tokens: 4000, ..Default::default() };
            let handle = served.generator.handle();
            let queue: Vec<_> = (0..64).map(|_| handle.submit(long.clone()).unwrap()).collect();
            let began = std::time::Instant::now();
            assert!(models.loaded().unwrap().is_alive());
            assert!(began.elapsed() < Duration::from_millis(200), "it waited in the queue");
            drop(queue);
        });
    }

    #[cfg(feature = "images")]
    #[test]
    fn a_pipeline_whose_run_panicked_is_loaded_again() {
        use std::ops::ControlFlow;
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden-image/pipelines/sd1");
        let load = move || ImageHandle::open(folder, &engraft::ImageOptions::default()).map(Model::from);
        let small = ImageRequest { width: 16, height: 16, steps: Some(1), ..ImageRequest::new("a fox") };
        run(async {
            let models = Arc::new(Models::open(Box::new(load), &config()).unwrap());
            let supervisor = tokio::spawn(models.clone().supervise());
            let first = models.pictures().unwrap();
            // An error of a run alone is no loss.
            models.report_of(0, true, &Error::Internal { what: "one run failed".into() }, 1);
            assert!(models.loaded().unwrap().is_alive());
            let error = first.model.generate(small.clone(), 1, |_| unreachable!("planted")).unwrap_err();
            models.report_of(first.generation, first.model.is_alive(), &error, 2);
            assert!(matches!(&error, Error::Internal { what } if what.contains("panicked")), "{error}");
            eventually(&models, 1).await;
            let second = models.pictures().unwrap();
            assert!(second.model.generate(small, 1, |_| ControlFlow::Continue(())).unwrap().is_some());
            supervisor.abort();
        });
    }

    #[cfg(feature = "images")]
    #[test]
    fn a_request_that_has_its_turn_waits_for_a_pipeline_that_is_lost() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden-image/pipelines/sd1");
        let small = ImageRequest { width: 16, height: 16, steps: Some(1), ..ImageRequest::new("a fox") };
        // So many loads succeed.
        for good in [2, 1] {
            let loads = AtomicUsize::new(0);
            let load = move || match loads.fetch_add(1, Ordering::Relaxed) < good {
                true => ImageHandle::open(folder, &engraft::ImageOptions::default()).map(Model::from),
                false => Err(lost()),
            };
            run(async {
                let models = Arc::new(Models::open(Box::new(load), &config()).unwrap());
                let supervisor = tokio::spawn(models.clone().supervise());
                let first = models.pictures_again().await.unwrap();
                assert_eq!(first.generation, 0);
                // Its end is found without a report of it.
                first.model.generate(small.clone(), 1, |_| unreachable!("planted")).unwrap_err();
                let again = models.pictures_again().await;
                match good {
                    1 => assert_eq!(again.unwrap_err().status, 503),
                    _ => {
                        let second = again.unwrap();
                        assert_eq!((second.generation, second.model.is_alive()), (1, true));
                    }
                }
                assert!(models.suspects.is_empty());
                supervisor.abort();
            });
        }
    }
}
