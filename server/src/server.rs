//! A server from its start to its end.

use crate::app::router;
use crate::config::ServerConfig;
use crate::drain::{Life, Phase};
use crate::listen::{Address, Listener};
use crate::model::Model;
use crate::state::State;
use crate::supervise::{Loader, Models};
use engraft::{Error, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

/// Threads of HTTP: one for so many cores.
const CORES_PER_THREAD: usize = 4;
/// Threads for templates, long texts and calls that wait for the engine: more than as many as may wait for it
/// at once (`state`), so that templates always have some.
const BLOCKING: usize = 128;
/// How often the end of the last request is looked for.
const TICK: Duration = Duration::from_millis(20);
/// Time for work that nothing waits for any more.
const LEFT: Duration = Duration::from_secs(1);

/// A model behind HTTP, bound to its address and not yet serving.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft_server::{Server, ServerConfig};
///
/// let config = ServerConfig { port: 0, ..ServerConfig::default() };
/// let server = Server::bind(config, engraft::demo)?;
/// println!("{}", server.address());
/// let stop = server.stop();
/// let serving = std::thread::spawn(move || server.run());
/// // Lets running requests end, then ends.
/// stop.drain();
/// # assert!(serving.join().is_ok_and(|ended| ended.is_ok()));
/// # Ok(())
/// # }
/// ```
pub struct Server {
    runtime: Runtime,
    listener: Listener,
    state: Arc<State>,
}

/// Ends a server from another thread.
#[derive(Debug, Clone)]
pub struct Stop(Life);

impl Stop {
    /// Takes no more requests, and ends once those that run have ended or the drain's time is over.
    pub fn drain(&self) {
        self.0.advance(Phase::Draining);
    }

    /// Ends now; requests that run end with an error.
    pub fn end(&self) {
        self.0.advance(Phase::Ended);
    }
}

impl Server {
    /// Opens the model by `load`, and listens; `load` is called again when the engine is lost. What it gives
    /// is a `TextGenerator`, or (feature `images`) an `ImageHandle`.
    ///
    /// # Errors
    /// Those of `load`; `Config` for settings with which no request could be served; `Io` for an address that
    /// cannot be had; `Text` for a chat template that does not compile; `Format` for certificates; of a
    /// pipeline `Config` for a chat template, and `Architecture` where it needs more than a text.
    pub fn bind<M: Into<Model>>(
        config: ServerConfig,
        load: impl Fn() -> Result<M> + Send + Sync + 'static,
    ) -> Result<Self> {
        config.check()?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(cores.div_ceil(CORES_PER_THREAD))
            .thread_name("engraft-http")
            .max_blocking_threads(BLOCKING)
            .enable_all()
            .build()
            .map_err(|source| Error::Io { path: "the threads of HTTP".into(), source })?;
        // First the address: it is what fails at once.
        let listener = runtime.block_on(Listener::bind(&config))?;
        let load: Box<Loader> = Box::new(move || load().map(Into::into));
        let models = Arc::new(Models::open(load, &config)?);
        let state = Arc::new(State::new(config, models, &listener.address)?);
        Ok(Self { runtime, listener, state })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.listener.address
    }

    /// The names that requests may call the model by.
    pub fn names(&self) -> &[String] {
        &self.state.names
    }

    /// Whether conversations can be answered.
    pub fn has_chat_template(&self) -> bool {
        self.state.models.text().is_ok_and(|served| served.template().is_some())
    }

    /// Whether the model makes pictures, and no text.
    pub fn makes_pictures(&self) -> bool {
        !self.picture_routes().is_empty()
    }

    /// The routes that a pipeline answers; none of a model of texts.
    pub fn picture_routes(&self) -> Vec<&'static str> {
        self.state.models.loaded().map(|loaded| loaded.picture_routes()).unwrap_or_default()
    }

    /// What ends it from another thread.
    pub fn stop(&self) -> Stop {
        Stop(self.state.life.clone())
    }

    /// Serves until it is ended by [`Server::stop`].
    ///
    /// # Errors
    /// None at present.
    pub fn run(self) -> Result<()> {
        let Self { runtime, listener, state } = self;
        runtime.block_on(serve(&listener, state));
        runtime.shutdown_timeout(LEFT);
        Ok(())
    }

    /// Serves until a signal to end comes: the first one drains, a second one ends at once. Gives whether it
    /// was drained: whether every request had its answer, or its error when the time to drain was over.
    ///
    /// # Errors
    /// `Io` where signals cannot be waited for.
    pub fn run_until_signal(self) -> Result<bool> {
        let Self { runtime, listener, state } = self;
        let life = state.life.clone();
        let drained = runtime.block_on(async {
            let mut signals = Signals::new()?;
            let drained = tokio::select! {
                () = serve(&listener, state) => true,
                () = async {
                    signals.next().await;
                    tracing::warn!("no more requests are taken; those that run go on; a second signal ends them");
                    life.advance(Phase::Draining);
                    signals.next().await;
                } => false,
            };
            Ok::<bool, Error>(drained)
        })?;
        listener.address.leave();
        runtime.shutdown_background();
        Ok(drained)
    }
}

async fn serve(listener: &Listener, state: Arc<State>) {
    let supervisor = tokio::spawn(state.models.clone().supervise());
    let drained = async {
        state.life.reached(Phase::Draining).await;
        let idle = async {
            while state.admission.requests() > 0 && state.life.phase() < Phase::Ended {
                sleep(TICK).await;
            }
        };
        if timeout(state.config.drain_timeout, idle).await.is_err() {
            tracing::warn!(
                "requests still run after {:?}; they end with an error",
                state.config.drain_timeout
            );
        }
        state.life.advance(Phase::Ended);
    };
    let serving = listener.serve(router(state.clone()), &state.config, &state.life);
    tokio::join!(serving, drained);
    supervisor.abort();
}

/// Signals that end the process.
struct Signals {
    #[cfg(unix)]
    all: [tokio::signal::unix::Signal; 2],
}

#[cfg(unix)]
impl Signals {
    fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let of = |kind| signal(kind).map_err(|source| Error::Io { path: "signals".into(), source });
        Ok(Self { all: [of(SignalKind::terminate())?, of(SignalKind::interrupt())?] })
    }

    async fn next(&mut self) {
        let [terminate, interrupt] = &mut self.all;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

#[cfg(not(unix))]
impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {})
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
