//! The far end of the channel: loads the model, then steps the engine while there is work and sleeps while
//! not.

use super::message::{Command, EngineStats, Event, Limits, ModelInfo, Ready, Reply, SharedStats, TimedEvent};
use crate::backends::Visitor;
use crate::embed::EmbedOptions;
use crate::load::load_engine;
use crate::options::Progress;
use engraft_core::backend::{Backend, Composed};
use engraft_core::checkpoint::{ModelFiles, stored_float};
use engraft_core::config::EngineConfig;
use engraft_core::config::deepspeed::Warning;
use engraft_core::engine::{Engine, Finish, Output, Pooling, Request, Texts, Want};
use engraft_core::inject::{GroupPlan, InjectionPlan, describe};
use engraft_core::policy::{Family, ModelSpec, Registry};
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use futures_channel::mpsc::UnboundedSender;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

/// All that the thread owns before it knows its backend.
pub(super) struct Job {
    pub files: ModelFiles,
    pub engine: EngineConfig,
    /// Whether activations take the element type of most weights.
    pub stored_dtype: bool,
    /// Whether the context was asked for by name.
    pub own_context: bool,
    pub load: LoadOptions,
    pub registry: Registry,
    pub progress: Progress,
    pub inbox: Receiver<Command>,
    pub ready: Sender<Result<Ready>>,
    pub stats: SharedStats,
}

impl Visitor for Job {
    type Output = ();

    fn visit<B: Backend>(mut self, backend: Arc<B>) -> Result<()> {
        let stored =
            stored_float(self.files.source.tensors()).filter(|dtype| backend.caps().dtypes.contains(dtype));
        if let (true, Some(dtype)) = (self.stored_dtype, stored) {
            (self.engine.dtype, self.engine.kv_dtype) = (dtype, dtype);
        }
        // Before anything is read.
        self.engine.possible(backend.name(), &backend.caps().dtypes)?;
        self.load.dtype = Some(self.engine.dtype);
        let name = self.files.path.display().to_string();
        let parameters = self.files.source.tensors().iter().map(|t| t.elements() as u64).sum();
        let (spec, ..) = describe(&self.files, &self.registry)?;
        // Nothing but whole texts reaches an encoder: its head answers for every token.
        self.engine.all_logits |= spec.family == Family::Encoder && spec.head.is_per_token();
        let (positions, own_context) = (self.engine.max_context, self.own_context);
        let Self { files, registry, load, progress, ready, inbox, stats, .. } = self;
        let (dtype, kv_dtype) = (self.engine.dtype, self.engine.kv_dtype);
        let no_experts = without_experts(&spec, load);
        let group = (load.world > 1).then(|| GroupPlan::new(&files, &registry, load, dtype, kv_dtype));
        let group = group.transpose()?;
        let engine = load_engine(backend, files, registry, load, self.engine, progress)?;
        let context = engine.config().max_context;
        if own_context && context < positions {
            tracing::warn!("`max_context` is {positions}; the model's own limit of {context} counts");
        }
        let spec = &engine.model().spec;
        let info = ModelInfo {
            name,
            arch: spec.arch.clone(),
            family: spec.family,
            parameters,
            vocab: spec.vocab,
            hidden: spec.hidden,
            layers: spec.blocks.len(),
            max_context: engine.config().max_context,
            device: engine.backend().caps().device.clone(),
            load_seconds: 0.0,
            memory: *engine.memory(),
            group,
            warnings: engine.warnings().iter().cloned().chain(no_experts).collect(),
            plan: InjectionPlan::new(
                engine.backend().as_ref(),
                engine.model(),
                engine.config().dtype,
                engine.config().kv_dtype,
            )?,
        };
        log_loaded(&info);
        let limits = Limits { spec: spec.clone(), config: engine.config().clone() };
        if ready.send(Ok((info, limits))).is_ok() {
            let worker =
                Worker { engine, clients: BTreeMap::new(), calls: Vec::new(), broken: None, steps: 0, stats };
            worker.serve(&inbox);
        }
        Ok(())
    }
}

/// A setting about experts has no effect on a model that has none.
fn without_experts(spec: &ModelSpec, load: LoadOptions) -> Option<Warning> {
    let ep = load.ep.filter(|_| spec.blocks.iter().all(|block| block.moe.is_none()))?;
    let warning = Warning::new("ep", format!("{ep} has no effect: the model has no experts"));
    tracing::warn!("{warning}");
    Some(warning)
}

fn log_loaded(info: &ModelInfo) {
    tracing::info!(
        arch = info.arch,
        policy = info.plan.origin.as_ref().map(|origin| origin.policy.as_str()),
        device = info.device,
        dtype = %info.plan.dtype,
        weights = info.memory.weights,
        context = info.max_context,
        "{} is loaded",
        info.name
    );
}

/// The same with every fused op left to its composed default.
pub(super) struct ComposedJob(pub Job);

impl Visitor for ComposedJob {
    type Output = ();

    fn visit<B: Backend>(self, backend: Arc<B>) -> Result<()> {
        self.0.visit(Arc::new(Composed::new(backend)))
    }
}

/// Where the events of a running request go.
struct Client {
    key: u64,
    want: Want,
    events: UnboundedSender<TimedEvent>,
}

/// A call whose texts ride in ordinary steps.
struct Call<B: Backend> {
    texts: Texts,
    /// Texts that have not ended.
    left: usize,
    /// Replies with what the engine made of the texts, or with why it could not.
    reply: Finisher<B>,
}

type Finisher<B> = Box<dyn FnOnce(&mut Engine<B>, Result<Texts>)>;

/// Owns the engine, runs its steps and handles commands in between.
struct Worker<B: Backend> {
    engine: Engine<B>,
    /// By the engine's number of the request.
    clients: BTreeMap<u64, Client>,
    /// Calls whose texts ride in the steps.
    calls: Vec<Call<B>>,
    /// Why no request can be served any more.
    broken: Option<String>,
    /// Steps so far.
    steps: u64,
    stats: SharedStats,
}

impl<B: Backend> Worker<B> {
    /// Until every handle and every stream is gone.
    fn serve(mut self, inbox: &Receiver<Command>) {
        let mut outputs = Vec::new();
        loop {
            self.publish();
            if self.engine.is_idle() {
                match inbox.recv() {
                    Ok(command) => self.handle_command(command),
                    Err(_) => return,
                }
            }
            loop {
                match inbox.try_recv() {
                    Ok(command) => self.handle_command(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.steps += u64::from(!self.engine.is_idle());
            match self.engine.step(&mut outputs) {
                Ok(()) => outputs.iter().for_each(|output| self.deliver(output)),
                Err(error) => self.fail(error),
            }
        }
    }

    /// What other threads see of the engine.
    fn publish(&self) {
        let (running, waiting) = self.engine.counts();
        let (free_pages, total_pages) = self.engine.free_pages();
        let prefix = self.engine.prefix_stats();
        self.stats.set(EngineStats {
            running,
            waiting,
            free_pages,
            total_pages,
            page_size: self.engine.config().page_size,
            steps: self.steps,
            prefix_queried: prefix.queried,
            prefix_hit: prefix.hit,
            preemptions: self.engine.preemptions(),
        });
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Submit { key, request, events } => self.submit(key, request, events),
            Command::Cancel { key } => {
                let found = self.clients.iter().find(|(_, c)| c.key == key).map(|(id, _)| *id);
                if let Some(id) = found {
                    self.clients.remove(&id);
                    self.cancel(id);
                }
            }
            Command::Encode { texts, layers, reply } => {
                self.call(reply, |engine| engine.submit_encode(&texts, layers), Engine::take_encoded);
            }
            Command::EncodeImages { images, layers, reply } => {
                let images: Vec<&[f32]> = images.iter().map(Vec::as_slice).collect();
                self.call(reply, |engine| engine.submit_images(&images, layers), Engine::take_encoded);
            }
            Command::Forward { texts, want, reply } => {
                self.call(reply, |engine| engine.submit_texts(&texts, &want), Engine::take_forwarded);
            }
            Command::Embed { texts, options: EmbedOptions { pooling, normalize }, reply } => {
                let pooling = pooling.unwrap_or(Pooling::Mean);
                let submit = |engine: &mut Engine<B>| engine.submit_embed(&texts, pooling);
                self.call(reply, submit, move |engine, texts| {
                    engine.take_embedded(texts, pooling, normalize)
                });
            }
            Command::Score { sequences, reply } => {
                let queued = self.serving().and_then(|engine| engine.submit_score(&sequences));
                self.queue(queued, reply, move |engine, texts| engine.take_scored(texts, &sequences));
            }
            Command::SetProfiling { on } => self.engine.set_profiling(on),
            Command::TakeProfile { reply } => {
                let off =
                    || Error::config("profiling", "off", "on, before times are taken: set_profiling(true)");
                let profile = self.engine.take_profile().map(|profile| vec![profile]);
                let _ = reply.send(profile.ok_or_else(off));
            }
        }
    }

    /// The engine, unless it is broken.
    fn serving(&mut self) -> Result<&mut Engine<B>> {
        match &self.broken {
            None => Ok(&mut self.engine),
            Some(what) => Err(Error::DeviceLost { what: what.clone() }),
        }
    }

    /// Queues the texts of a call.
    fn call<T: 'static>(
        &mut self,
        reply: Reply<T>,
        submit: impl FnOnce(&mut Engine<B>) -> Result<Texts>,
        take: impl FnOnce(&mut Engine<B>, Texts) -> Result<Vec<T>> + 'static,
    ) {
        let queued = self.serving().and_then(submit);
        self.queue(queued, reply, take);
    }

    /// Waits for the texts of a call; whoever asked may be gone.
    fn queue<T: 'static>(
        &mut self,
        queued: Result<Texts>,
        reply: Reply<T>,
        take: impl FnOnce(&mut Engine<B>, Texts) -> Result<Vec<T>> + 'static,
    ) {
        let finish = move |engine: &mut Engine<B>, texts: Result<Texts>| {
            let _ = reply.send(texts.and_then(|texts| take(engine, texts)));
        };
        match queued {
            Ok(texts) if !texts.ids().is_empty() => {
                self.calls.push(Call { left: texts.ids().len(), texts, reply: Box::new(finish) });
            }
            ended => finish(&mut self.engine, ended),
        }
    }

    fn submit(&mut self, key: u64, request: Request, events: UnboundedSender<TimedEvent>) {
        let want = request.want;
        match self.serving().and_then(|engine| engine.put(request)) {
            Ok(id) => {
                self.clients.insert(id, Client { key, want, events });
            }
            Err(error) => {
                let _ = events.unbounded_send(TimedEvent::now(Err(error)));
            }
        }
    }

    fn deliver(&mut self, output: &Output) {
        let Some(client) = self.clients.get(&output.id) else { return self.end_text(output) };
        let mut listening = true;
        if let Some(token) = output.token {
            listening &= client.events.unbounded_send(TimedEvent::now(Ok(Event::Token(token)))).is_ok();
        }
        if output.finish == Some(Finish::NoToken) {
            let what = "none of the logits is above -infinity: the model's numbers overflowed".into();
            let error = Error::Request { id: client.key, what };
            let _ = client.events.unbounded_send(TimedEvent::now(Err(error)));
            self.engine.take_kept(output.id);
            self.clients.remove(&output.id);
        } else if let Some(finish) = output.finish {
            if client.want != Want::default()
                && let Some(kept) = self.engine.take_kept(output.id)
            {
                let _ = client.events.unbounded_send(TimedEvent::now(Ok(Event::Kept(Box::new(kept)))));
            }
            let _ = client.events.unbounded_send(TimedEvent::now(Ok(Event::Finished(finish))));
            self.clients.remove(&output.id);
        } else if !listening {
            self.clients.remove(&output.id);
            self.cancel(output.id);
        }
    }

    /// Ends a request in the engine; failing at that means that its bookkeeping is inconsistent.
    fn cancel(&mut self, id: u64) {
        if let Err(error) = self.engine.cancel(id) {
            self.broken.get_or_insert(error.to_string());
        }
    }

    /// Counts the end of a call's text; replies behind the last one.
    fn end_text(&mut self, output: &Output) {
        let of = |call: &Call<B>| call.texts.ids().contains(&output.id);
        let Some(at) = self.calls.iter().position(of).filter(|_| output.finish.is_some()) else { return };
        self.calls[at].left -= 1;
        if self.calls[at].left == 0 {
            let Call { texts, reply, .. } = self.calls.swap_remove(at);
            reply(&mut self.engine, Ok(texts));
        }
    }

    /// A failed step fails the requests that were in it, and a broken engine all: the first gets the error
    /// itself, the others its text.
    fn fail(&mut self, error: Error) {
        let text = error.to_string();
        // What is left of a group runs nothing.
        let lost = matches!(error, Error::DeviceLost { .. } | Error::Comm { .. });
        let broken = lost || matches!(error, Error::Internal { .. });
        let mut failed = self.engine.take_failed();
        if broken {
            self.broken.get_or_insert(text.clone());
            failed = self.clients.keys().copied().collect();
            failed.extend(self.calls.iter().flat_map(|call| call.texts.ids()));
        }
        let mut first = Some(error);
        let mut next = || match (first.take(), lost) {
            (Some(error), _) => error,
            (None, true) => Error::DeviceLost { what: text.clone() },
            (None, false) => Error::internal(format!("a step failed that this request was in: {text}")),
        };
        for id in failed {
            if let Some(client) = self.clients.remove(&id) {
                let _ = client.events.unbounded_send(TimedEvent::now(Err(next())));
                self.cancel(id);
            } else if let Some(at) = self.calls.iter().position(|call| call.texts.ids().contains(&id)) {
                let Call { texts, reply, .. } = self.calls.swap_remove(at);
                texts.ids().iter().for_each(|id| self.cancel(*id));
                reply(&mut self.engine, Err(next()));
            }
        }
    }
}

#[cfg(all(test, feature = "cpu"))]
#[path = "worker_tests.rs"]
mod tests;
