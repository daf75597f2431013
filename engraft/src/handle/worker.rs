//! The far end of the channel: loads the model, then steps the engine while there is work and sleeps while
//! not.

use super::message::{Command, Event, Limits, ModelInfo, Ready, Reply, TimedEvent};
use crate::backends::Visitor;
use crate::options::Progress;
use engraft_core::backend::{Backend, Composed};
use engraft_core::checkpoint::{ModelFiles, TensorInfo};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Output, Request, Want};
use engraft_core::inject::{InjectionPlan, inject};
use engraft_core::mem::{Float, Stored};
use engraft_core::policy::{Family, Registry};
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use futures_channel::mpsc::UnboundedSender;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

/// All that the thread owns before it knows its backend.
pub(super) struct Job {
    pub files: ModelFiles,
    pub engine: EngineConfig,
    /// Whether activations take the element type of most weights.
    pub stored_dtype: bool,
    pub load: LoadOptions,
    pub registry: Registry,
    pub progress: Progress,
    pub inbox: Receiver<Command>,
    pub ready: Sender<Result<Ready>>,
}

impl Visitor for Job {
    type Output = ();

    fn visit<B: Backend>(mut self, backend: Arc<B>) -> Result<()> {
        let stored =
            most_of(self.files.source.tensors()).filter(|dtype| backend.caps().dtypes.contains(dtype));
        if let (true, Some(dtype)) = (self.stored_dtype, stored) {
            (self.engine.dtype, self.engine.kv_dtype) = (dtype, dtype);
        }
        // Before anything is read.
        self.engine.possible(backend.name(), &backend.caps().dtypes)?;
        let positions = self.engine.max_context;
        let name = self.files.path.display().to_string();
        let parameters = self.files.source.tensors().iter().map(|t| t.elements() as u64).sum();
        let model = inject(&backend, &self.files, &self.registry, positions, self.load, &mut self.progress)?;
        // The mapping is not needed any more.
        drop(self.files);
        // Nothing but whole texts reaches an encoder: its head answers for every token.
        let per_token = model.spec.head.is_per_token();
        self.engine.all_logits |= model.spec.family == Family::Encoder && per_token;
        let engine = Engine::new(backend, model, self.engine)?;
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
            plan: InjectionPlan::new(
                engine.backend().as_ref(),
                engine.model(),
                engine.config().dtype,
                engine.config().kv_dtype,
            )?,
        };
        let limits = Limits { spec: spec.clone(), config: engine.config().clone() };
        if self.ready.send(Ok((info, limits))).is_ok() {
            Worker { engine, clients: BTreeMap::new(), pending: VecDeque::new(), broken: None }
                .serve(&self.inbox);
        }
        Ok(())
    }
}

/// The 16-bit type that most elements of the matrices are stored in; none where most are in another.
fn most_of(tensors: &[TensorInfo]) -> Option<Float> {
    let of = |wanted: &dyn Fn(Stored) -> bool| -> u64 {
        let matrices = tensors.iter().filter(|t| t.shape.len() > 1 && wanted(t.stored));
        matrices.map(|t| t.elements() as u64).sum()
    };
    let (f16, bf16) = (of(&|s| s == Stored::F16), of(&|s| s == Stored::Bf16));
    let (most, dtype) = if f16 > bf16 { (f16, Float::F16) } else { (bf16, Float::Bf16) };
    (2 * most > of(&|_| true)).then_some(dtype)
}

/// The same with every fused op left to its composed default.
pub(super) struct UnfusedJob(pub Job);

impl Visitor for UnfusedJob {
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

/// Owns the engine, runs its steps and handles commands in between.
struct Worker<B: Backend> {
    engine: Engine<B>,
    /// By the engine's number of the request.
    clients: BTreeMap<u64, Client>,
    /// Commands in their order, from the first on that must wait until the engine is idle.
    pending: VecDeque<Command>,
    /// Why no request can be served any more.
    broken: Option<String>,
}

impl<B: Backend> Worker<B> {
    /// Until every handle and every stream is gone.
    fn serve(mut self, inbox: &Receiver<Command>) {
        let mut outputs = Vec::new();
        loop {
            self.run_pending();
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
            match self.engine.step(&mut outputs) {
                Ok(()) => outputs.iter().for_each(|output| self.deliver(output)),
                Err(error) => self.fail_all(error),
            }
        }
    }

    /// Queues a command; only cancelling is done at once.
    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Cancel { .. } => self.execute(command),
            other => {
                self.pending.push_back(other);
                self.run_pending();
            }
        }
    }

    /// Executes what waits, up to a command that must have the engine for itself while requests are running:
    /// what came after it waits too, so that it has its turn.
    fn run_pending(&mut self) {
        while let Some(command) = self.pending.front() {
            let alone =
                matches!(command, Command::Forward { .. } | Command::Embed { .. } | Command::Score { .. });
            if alone && !self.engine.is_idle() {
                return;
            }
            if let Some(command) = self.pending.pop_front() {
                self.execute(command);
            }
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Submit { key, request, events } => self.submit(key, request, events),
            Command::Cancel { key } => {
                self.pending
                    .retain(|c| !matches!(c, Command::Submit { key: waiting, .. } if *waiting == key));
                let found = self.clients.iter().find(|(_, c)| c.key == key).map(|(id, _)| *id);
                if let Some(id) = found {
                    self.clients.remove(&id);
                    self.cancel(id);
                }
            }
            Command::Encode { texts, all_layers, reply } => {
                self.answer(&reply, |engine| engine.encode(&texts, all_layers));
            }
            Command::EncodeImages { images, all_layers, reply } => {
                let images: Vec<&[f32]> = images.iter().map(Vec::as_slice).collect();
                self.answer(&reply, |engine| engine.encode_images(&images, all_layers));
            }
            Command::Forward { texts, want, reply } => {
                self.answer(&reply, |engine| engine.forward_texts(&texts, &want));
            }
            Command::Embed { texts, pooling, normalise, reply } => {
                self.answer(&reply, |engine| engine.embed(&texts, pooling, normalise));
            }
            Command::Score { sequences, reply } => {
                self.answer(&reply, |engine| engine.score(&sequences));
            }
            Command::SetProfiling { on } => self.engine.set_profiling(on),
            Command::TakeProfile { reply } => self.answer(&reply, |engine| {
                let off =
                    || Error::config("profiling", "off", "on, before times are taken: set_profiling(true)");
                engine.take_profile().map(|profile| vec![profile]).ok_or_else(off)
            }),
        }
    }

    /// Sends what the engine makes of whole inputs; whoever asked may be gone.
    fn answer<T>(&mut self, reply: &Reply<T>, work: impl FnOnce(&mut Engine<B>) -> Result<Vec<T>>) {
        let result = match &self.broken {
            None => work(&mut self.engine),
            Some(what) => Err(Error::DeviceLost { what: what.clone() }),
        };
        let _ = reply.send(result);
    }

    fn submit(&mut self, key: u64, request: Request, events: UnboundedSender<TimedEvent>) {
        let want = request.want;
        let put = match &self.broken {
            None => self.engine.put(request),
            Some(what) => Err(Error::DeviceLost { what: what.clone() }),
        };
        match put {
            Ok(id) => {
                self.clients.insert(id, Client { key, want, events });
            }
            Err(error) => {
                let _ = events.unbounded_send(TimedEvent::now(Err(error)));
            }
        }
    }

    fn deliver(&mut self, output: &Output) {
        let Some(client) = self.clients.get(&output.id) else { return };
        let mut listening = true;
        if let Some(token) = output.token {
            listening &= client.events.unbounded_send(TimedEvent::now(Ok(Event::Token(token)))).is_ok();
        }
        if let Some(finish) = output.finish {
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

    /// Ends a request in the engine; failing at that means that its books are wrong.
    fn cancel(&mut self, id: u64) {
        if let Err(error) = self.engine.cancel(id) {
            self.broken.get_or_insert(error.to_string());
        }
    }

    /// A failed step fails every running request: the first gets the error itself, the others its text.
    fn fail_all(&mut self, error: Error) {
        let text = error.to_string();
        if matches!(error, Error::DeviceLost { .. } | Error::Internal { .. }) {
            self.broken.get_or_insert(text.clone());
        }
        let lost = matches!(error, Error::DeviceLost { .. });
        let mut first = Some(error);
        for (id, client) in std::mem::take(&mut self.clients) {
            let error = first.take().unwrap_or_else(|| match lost {
                true => Error::DeviceLost { what: text.clone() },
                false => Error::internal(format!("a step failed that this request was in: {text}")),
            });
            let _ = client.events.unbounded_send(TimedEvent::now(Err(error)));
            self.cancel(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_most_elements_of_matrices_counts() {
        let tensor = |shape: &[usize], stored| TensorInfo { name: "t".into(), shape: shape.to_vec(), stored };
        let (norm, table) = (tensor(&[900], Stored::F32), tensor(&[10, 10], Stored::F32));
        assert_eq!(most_of(&[norm.clone(), tensor(&[4, 4], Stored::Bf16)]), Some(Float::Bf16));
        assert_eq!(most_of(&[tensor(&[4, 4], Stored::F16), tensor(&[3, 4], Stored::Bf16)]), Some(Float::F16));
        assert_eq!(most_of(&[table, tensor(&[10, 10], Stored::F16)]), None);
        assert_eq!(most_of(&[norm]), None);
        assert_eq!(most_of(&[]), None);
    }
}
