//! The far end of the channel: loads the model, then steps the engine while there is work and sleeps while
//! not.
//!
//! An engine or a backend that panics is never touched again: whoever waits is told, and so is whoever comes.

use super::message::{
    Begin, Begun, CancelToken, Command, Ending, EngineStats, Event, Limits, ModelInfo, Opened, Post, Ready,
    Reply, SharedStats, TimedEvent,
};
use super::protocol::{Clients, Message, Work, serve};
use super::reason::{Reason, numbered};
use crate::backends::Visitor;
use crate::embed::EmbedOptions;
use crate::load::{load_engine, share_engine};
use crate::options::Progress;
use crate::processes::Processes;
use crate::sync::UnboundedSender;
use engraft_core::backend::{Backend, Composed};
use engraft_core::checkpoint::{ModelFiles, stored_float};
use engraft_core::config::deepspeed::Warning;
use engraft_core::config::{EngineConfig, element_types};
use engraft_core::engine::{Caller, Engine, Finish, Output, Pooling, Texts, Want};
use engraft_core::inject::{GroupPlan, InjectionPlan, describe};
use engraft_core::kv::HostPages;
use engraft_core::mem::{Float, KvFormat};
use engraft_core::policy::{Family, ModelSpec, Registry, StemSpec};
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

/// Milliseconds of a step on the CPU with sequences that decode: about as long as one of them alone takes
/// with a model of a few billion weights.
const STEP_MS: f64 = 60.0;

/// All that the thread owns before it knows its backend.
pub(super) struct Job {
    pub files: ModelFiles,
    pub engine: EngineConfig,
    /// Element types of activations and of keys and values that were asked for.
    pub asked: (Option<Float>, Option<KvFormat>),
    /// Whether activations take the element type of most weights where none was asked for.
    pub stored_dtype: bool,
    /// Whether the context was asked for by name.
    pub own_context: bool,
    pub load: LoadOptions,
    pub registry: Registry,
    /// Bytes of host memory for pages of keys and values that the pool has no room for.
    pub host_cache: usize,
    pub progress: Progress,
    /// The group of processes that this one is a rank of.
    pub processes: Option<Processes>,
    pub inbox: Receiver<Post>,
    pub ready: Sender<Result<Ready>>,
}

impl Visitor for Job {
    type Output = ();

    fn visit<B: Backend>(mut self, backend: Arc<B>) -> Result<()> {
        let stored =
            stored_float(self.files.source.tensors()).filter(|dtype| backend.caps().dtypes.contains(dtype));
        let types = element_types(self.asked, stored, self.stored_dtype);
        (self.engine.dtype, self.engine.kv_dtype) = types;
        // Before anything is read.
        self.engine.possible(backend.name(), &backend.caps().dtypes, &backend.caps().kv_formats)?;
        self.load.dtype = Some(self.engine.dtype);
        let name = self.files.path.display().to_string();
        let parameters = self.files.source.tensors().iter().map(|t| t.elements() as u64).sum();
        let (spec, ..) = describe(&self.files, &self.registry)?;
        let (positions, own_context) = (self.engine.max_context, self.own_context);
        // A step of a device that does not work on its own is as slow as it is long.
        let limit = (!backend.caps().asynchronous && spec.family == Family::Decoder).then_some(STEP_MS);
        self.engine.max_step_ms = self.engine.max_step_ms.or(limit);
        let Self { files, registry, load, progress, host_cache, processes, .. } = self;
        let (dtype, kv_dtype) = (self.engine.dtype, self.engine.kv_dtype);
        let no_experts = without_experts(&spec, load);
        let group = (load.world > 1).then(|| GroupPlan::new(&files, &registry, load, dtype, kv_dtype));
        let group = group.transpose()?;
        let mut engine = match processes {
            None => load_engine(backend, files, registry, load, self.engine, progress)?,
            Some(group) => {
                let shared = share_engine(backend, files, registry, load, self.engine, progress, group)?;
                // The engine is another process's, and gone.
                let Some(engine) = shared else { return Ok(()) };
                engine
            }
        };
        if host_cache > 0 {
            engine.set_page_store(HostPages::new(host_cache))?;
        }
        let context = engine.config().max_context;
        if own_context && context < positions {
            tracing::warn!("`max_context` is {positions}; the model's own limit of {context} counts");
        }
        let warnings = engine.warnings().iter().cloned().chain(no_experts).collect();
        let info = ModelInfo { parameters, group, warnings, ..info(&engine, name)? };
        log_loaded(&info);
        Worker::new(engine).start(info, &self.inbox, &self.ready);
        Ok(())
    }
}

/// What is known of an engine's model.
pub(super) fn info<B: Backend>(engine: &Engine<B>, name: String) -> Result<ModelInfo> {
    let (spec, config) = (&engine.model().spec, engine.config());
    let info = ModelInfo {
        name,
        arch: spec.arch.clone(),
        family: spec.family,
        parameters: 0,
        vocab: spec.vocab,
        hidden: spec.hidden,
        layers: spec.blocks.len(),
        encoder_layers: spec.encoder.as_ref().map_or(0, |encoder| encoder.stack.blocks.len()),
        decoder_start: spec.encoder.as_ref().map_or(Vec::new(), |encoder| encoder.start.clone()),
        sound: spec.stem().map(|stem| heard(stem, config)),
        max_context: config.max_context,
        device: engine.backend().caps().device.clone(),
        load_seconds: 0.0,
        memory: *engine.memory(),
        group: None,
        warnings: engine.warnings().to_vec(),
        plan: InjectionPlan::new(engine.backend().as_ref(), engine.model(), config.dtype, config.kv_dtype)?,
    };
    Ok(ModelInfo { parameters: elements(&info.plan), ..info })
}

/// What an engine reads of sounds: of those of any length at most what a step and the context hold.
fn heard(stem: &StemSpec, config: &EngineConfig) -> StemSpec {
    let most = if stem.exact { stem.frames } else { stem.frames_for(config.text_tokens()) };
    StemSpec { frames: stem.frames.min(most), ..stem.clone() }
}

/// Elements of the operands of a plan, each counted once.
fn elements(plan: &InjectionPlan) -> u64 {
    let rows = plan.rows.iter().filter(|row| row.layouts > 0);
    rows.filter_map(|row| row.shape).map(|[rows, cols]| (rows * cols) as u64).sum()
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

/// A call whose texts ride in ordinary steps.
struct Call<B: Backend> {
    texts: Texts,
    /// Texts that have not ended.
    left: usize,
    /// Set once nobody waits for them.
    cancel: CancelToken,
    /// Replies with what the engine made of the texts, or with why it could not.
    reply: Finisher<B>,
}

type Finisher<B> = Box<dyn FnOnce(&mut Engine<B>, Result<Texts>)>;

/// What the thread keeps of a request.
pub(super) struct Asked {
    want: Want,
    /// Tokens that it had before its first event: those of the request that it continues.
    pub before: usize,
    /// How it was begun, until its first event takes it along.
    begun: Cell<Option<Begun>>,
}

/// Owns the engine, runs its steps and handles commands in between.
pub(super) struct Worker<B: Backend> {
    pub(super) engine: Engine<B>,
    outputs: Vec<Output>,
    /// By the engine's number of the request.
    pub(super) clients: Clients<TimedEvent, Asked>,
    /// Calls whose texts ride in the steps.
    calls: Vec<Call<B>>,
    /// Why no request can be served any more: the engine runs no step.
    broken: Option<String>,
    /// Steps so far.
    steps: u64,
    /// Requests that ended without a number among their logits.
    corrupted: u64,
    stats: SharedStats,
}

impl<B: Backend> Work for Worker<B> {
    type Message = Post;

    fn is_idle(&self) -> bool {
        self.broken.is_some() || self.engine.is_idle()
    }

    fn take(&mut self, message: Post) {
        match message {
            Message::Submit { request, lines } => self.submit(request, lines),
            Message::Cancel { key } => {
                if let Some(id) = self.clients.cancel(key) {
                    let _ = self.guarded(|worker| {
                        worker.cancel(id);
                        // The next step may take long.
                        worker.publish();
                        Ok(())
                    });
                }
            }
            Message::Call(command) => {
                let _ = self.guarded(|worker| {
                    worker.handle_command(command);
                    Ok(())
                });
            }
        }
    }

    fn step(&mut self) {
        if self.broken.is_some() {
            return;
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        self.steps += u64::from(!self.engine.is_idle());
        let _ = self.guarded(|worker| {
            worker.end_cancelled();
            // Planning is the first that it does; the rest may take long.
            let planned = Instant::now();
            let stepped = worker.engine.step(&mut outputs);
            worker.note_begun(planned);
            // Whoever gets an answer finds it in the counts; delivering may cancel requests.
            worker.publish();
            match stepped {
                Ok(()) => outputs.iter().for_each(|output| worker.deliver(output)),
                Err(error) => worker.fail(error),
            }
            worker.publish();
            Ok(())
        });
        self.outputs = outputs;
    }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}

impl<B: Backend> Worker<B> {
    pub(super) fn new(mut engine: Engine<B>) -> Self {
        let (outputs, calls) = (Vec::new(), Vec::new());
        let start = Instant::now();
        if !engine.has_clock() {
            engine.set_clock(move || start.elapsed());
        }
        Self {
            engine,
            outputs,
            clients: Clients::default(),
            calls,
            broken: None,
            steps: 0,
            corrupted: 0,
            stats: SharedStats::default(),
        }
    }

    /// Says that the engine is ready, and serves until every handle and every stream is gone.
    pub(super) fn start(mut self, info: ModelInfo, inbox: &Receiver<Post>, ready: &Sender<Result<Ready>>) {
        let engine = &self.engine;
        let limits = Limits { spec: engine.model().spec.clone(), config: engine.config().clone() };
        self.publish();
        let _ending = Ending(self.stats.clone());
        if ready.send(Ok((info, limits, self.stats.clone()))).is_ok() {
            serve(&mut self, inbox);
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
            step_tokens: *self.engine.step_tokens(),
            prefix_queried: prefix.queried,
            prefix_hit: prefix.hit,
            prefix_evicted: prefix.evicted,
            stored_pages: prefix.stored,
            restored_pages: prefix.restored,
            preemptions: self.engine.preemptions(),
            corrupted: self.corrupted,
        });
    }

    /// Does something of which a panic is the engine's end, not the thread's.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        // What a panic leaves of the engine is only dropped.
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        done.unwrap_or_else(|panic| {
            let what = format!("the engine panicked: {}", said(panic.as_ref()));
            self.end_all(&what);
            Err(Error::Internal { what })
        })
    }

    /// The engine serves no request any more; whoever hears of an error that follows finds that said.
    fn break_off(&mut self, what: &str) {
        self.broken.get_or_insert(what.into());
        self.stats.end();
    }

    /// Ends every request and every call without the engine.
    fn end_all(&mut self, what: &str) {
        self.break_off(what);
        let numbers: Vec<u64> = self.clients.numbers().collect();
        for client in numbers.into_iter().filter_map(|id| self.clients.take(id)) {
            client.end(TimedEvent::now(Err(Error::internal(what))));
        }
        for Call { reply, .. } in std::mem::take(&mut self.calls) {
            reply(&mut self.engine, Err(Error::internal(what)));
        }
    }

    fn submit(&mut self, begin: Begin, lines: Vec<(u64, UnboundedSender<TimedEvent>)>) {
        let count = lines.len();
        match self.guarded(|worker| worker.begin(begin, count)) {
            Ok(Opened { ids, want, before }) => {
                for (id, (key, events)) in ids.into_iter().zip(lines) {
                    self.clients.open(id, key, events, Asked { want, before, begun: Cell::new(None) });
                }
            }
            Err(error) => {
                let (text, mut first) = (error.to_string(), Some(error));
                for (key, events) in lines {
                    let error = first.take().unwrap_or_else(|| Error::internal(text.clone()));
                    let error = numbered(key, error);
                    let _ = events.unbounded_send(TimedEvent::now(Err(error)));
                }
            }
        }
    }

    fn handle_command(&mut self, command: Command) {
        match command {
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
                let queued = self.serving_for(&reply.caller).and_then(|e| e.submit_score(&sequences));
                self.queue(queued, reply, move |engine, texts| engine.take_scored(texts, &sequences));
            }
            Command::Save { key, reply } => {
                let saved = self.guarded(|worker| worker.save(key));
                reply.send(saved.map(|saved| vec![saved]));
            }
            Command::Preempt { key, reply } => {
                let ran = self.guarded(|worker| worker.preempt(key));
                self.publish();
                reply.send(ran.map(|ran| vec![ran]));
            }
            Command::SetProfiling { on } => {
                let _ = self.serving().map(|engine| engine.set_profiling(on));
            }
            Command::TakeProfile { reply } => {
                let off =
                    || Error::config("profiling", "off", "on, before times are taken: set_profiling(true)");
                let take = |engine: &mut Engine<B>| engine.take_profile().map(|profile| vec![profile]);
                reply.send(self.serving().and_then(|engine| take(engine).ok_or_else(off)));
            }
        }
    }

    /// The engine, unless it is broken.
    pub(super) fn serving(&mut self) -> Result<&mut Engine<B>> {
        match &self.broken {
            None => Ok(&mut self.engine),
            Some(what) => Err(Error::DeviceLost { what: what.clone() }),
        }
    }

    /// The same, whose next call is this caller's.
    fn serving_for(&mut self, caller: &Caller) -> Result<&mut Engine<B>> {
        let engine = self.serving()?;
        engine.set_caller(caller.clone());
        Ok(engine)
    }

    /// Queues the texts of a call.
    fn call<T: 'static>(
        &mut self,
        reply: Reply<T>,
        submit: impl FnOnce(&mut Engine<B>) -> Result<Texts>,
        take: impl FnOnce(&mut Engine<B>, Texts) -> Result<Vec<T>> + 'static,
    ) {
        let queued = self.serving_for(&reply.caller).and_then(submit);
        self.queue(queued, reply, take);
    }

    /// Waits for the texts of a call; whoever asked may be gone.
    fn queue<T: 'static>(
        &mut self,
        queued: Result<Texts>,
        reply: Reply<T>,
        take: impl FnOnce(&mut Engine<B>, Texts) -> Result<Vec<T>> + 'static,
    ) {
        let cancel = reply.cancel.clone();
        let finish = move |engine: &mut Engine<B>, texts: Result<Texts>| {
            reply.send(texts.and_then(|texts| take(engine, texts)));
        };
        match queued {
            Ok(texts) if !texts.ids().is_empty() => {
                self.calls.push(Call { left: texts.ids().len(), texts, cancel, reply: Box::new(finish) });
            }
            ended => finish(&mut self.engine, ended),
        }
    }

    /// Ends the calls for which nobody waits any more.
    fn end_cancelled(&mut self) {
        while let Some(at) = self.calls.iter().position(|call| call.cancel.is_cancelled()) {
            let Call { texts, reply, .. } = self.calls.swap_remove(at);
            if let Err(error) = self.engine.cancel_texts(&texts) {
                self.break_off(&error.to_string());
            }
            reply(&mut self.engine, Err(Error::Request { id: 0, what: "the call was cancelled".into() }));
        }
    }

    /// Remembers of the requests that the step has begun when that was, for their first events.
    fn note_begun(&self, at: Instant) {
        for (id, cached) in self.engine.begun() {
            if let Some(client) = self.clients.get(*id) {
                client.data.begun.set(Some(Begun { at, cached: *cached }));
            }
        }
    }

    fn deliver(&mut self, output: &Output) {
        let Some(client) = self.clients.get(output.id) else { return self.end_text(output) };
        let mut listening = true;
        if let Some(token) = output.token {
            let begun = client.data.begun.take();
            listening &= client.say(TimedEvent { begun, ..TimedEvent::now(Ok(Event::Token(token))) });
        }
        let Some(finish) = output.finish else {
            if !listening {
                self.clients.take(output.id);
                self.cancel(output.id);
            }
            return;
        };
        let kept = self.engine.take_kept(output.id);
        let Some(client) = self.clients.take(output.id) else { return };
        if finish == Finish::NoToken {
            self.corrupted += 1;
            self.publish();
            let what = "none of the logits is above -infinity: the model's numbers overflowed".into();
            let error = Error::Request { id: client.key(), what };
            return client.end(TimedEvent::now(Err(error)));
        }
        if let Some(kept) = kept.filter(|_| client.data.want != Want::default()) {
            client.say(TimedEvent::now(Ok(Event::Kept(Box::new(kept)))));
        }
        let begun = client.data.begun.take();
        client.end(TimedEvent { begun, ..TimedEvent::now(Ok(Event::Finished(finish))) });
    }

    /// Ends a request in the engine; failing at that means that its bookkeeping is inconsistent.
    fn cancel(&mut self, id: u64) {
        if let Err(error) = self.engine.cancel(id) {
            self.break_off(&error.to_string());
        }
    }

    /// Counts the end of a call's text; replies behind the last one.
    fn end_text(&mut self, output: &Output) {
        let of = |call: &Call<B>| call.texts.has(output.id);
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
        let failed = self.engine.take_failed();
        self.end_failed(failed, Reason::of(&error), Some(error));
    }

    /// Ends requests and calls for a reason, which the first of them gets itself where it is given.
    pub(super) fn end_failed(&mut self, mut failed: Vec<u64>, reason: Reason, mut first: Option<Error>) {
        let Reason { text, lost, broken } = reason;
        // Whoever learns of its end finds it in the counts.
        self.publish();
        if broken {
            self.break_off(&text);
            failed = self.clients.numbers().collect();
            failed.extend(self.calls.iter().flat_map(|call| call.texts.ids()));
        }
        let mut next = || match (first.take(), lost) {
            (Some(error), _) => error,
            (None, true) => Error::DeviceLost { what: text.clone() },
            (None, false) => Error::internal(format!("a step failed that this request was in: {text}")),
        };
        for id in failed {
            if let Some(client) = self.clients.take(id) {
                client.end(TimedEvent::now(Err(next())));
                self.cancel(id);
            } else if let Some(at) = self.calls.iter().position(|call| call.texts.has(id)) {
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
