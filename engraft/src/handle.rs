//! The engine from outside: a channel to the thread that owns it.
//!
//! An engine stays on one thread (streams and graphs of a device may not move). [`EngineHandle`] is the near
//! end of a channel to that thread: `Send`, `Clone`, without type parameters. Requests of all clones run as
//! one ragged batch.
//!
//! The invariants: what is wrong with a request is said before it is sent; a request that was taken ends
//! exactly once, with `Finished` or with an error; dropping its [`Tokens`] cancels it and frees its pages
//! within a step; the thread sleeps on the channel while nothing runs, and ends when the last handle and the
//! last stream are gone.

mod message;
mod over;
mod protocol;
mod reason;
mod tokens;
mod verbs;
mod worker;

pub use message::{CancelToken, EngineStats, Event, ModelInfo, Saved};
pub use tokens::Tokens;

use crate::backends::with_backend;
use crate::embed::EmbedOptions;
use crate::options::Options;
use engraft_core::checkpoint::ModelFiles;
use engraft_core::engine::{
    Caller, Encoded, EncoderInput, ForwardWant, Forwarded, Layers, MAX_CONTINUATIONS, Pick, Request,
};
use engraft_core::policy::HeadSpec;
use engraft_core::profile::Profile;
use engraft_core::{Error, Result};
use message::{Begin, Command, Limits, Near, Post, Ready, Reply, SharedStats, gone};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

/// A running engine; clones share it, from any thread.
///
/// [`EngineHandle::submit`] returns at once. Every other call that gives results blocks its thread until they
/// are there: an async program makes such calls in its runtime's `spawn_blocking`.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::{EmbedOptions, ModelSource, Options};
///
/// let handle = Options::new().start(ModelSource::Demo)?;
/// assert_eq!(handle.info().vocab, 2048);
/// // Token ids in, one vector per sequence out, of length 1.
/// let vectors = handle.embed([vec![1, 2, 3], vec![4, 5]], &EmbedOptions::new())?;
/// assert_eq!((vectors.len(), vectors[0].len()), (2, handle.info().hidden));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EngineHandle {
    submitter: Near,
    info: Arc<ModelInfo>,
    limits: Arc<Limits>,
    stats: SharedStats,
    cancel: CancelToken,
    caller: Caller,
}

impl std::fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineHandle").field("info", &self.info).finish_non_exhaustive()
    }
}

impl EngineHandle {
    /// The model.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// What the engine has to do and has done, as of its last step; takes no part in its queue.
    pub fn stats(&self) -> EngineStats {
        self.stats.get()
    }

    /// Whether requests can be served: not once the engine has panicked, has lost its device, or its thread
    /// has ended. An error of a step alone is no such end. Takes no part in the engine's queue.
    ///
    /// ```
    /// assert!(engraft::demo()?.handle().is_alive());
    /// # Ok::<(), engraft::Error>(())
    /// ```
    pub fn is_alive(&self) -> bool {
        !self.stats.has_ended()
    }

    /// The same handle, whose calls that wait (all but requests, which end with their [`Tokens`]) end with a
    /// `Request` error within a step once `cancel` says so.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{CancelToken, EmbedOptions, ModelSource, Options};
    ///
    /// let handle = Options::new().start(ModelSource::Demo)?;
    /// let cancel = CancelToken::default();
    /// let cancelled = handle.cancelled_by(&cancel);
    /// cancel.cancel(); // From any thread, while the call waits.
    /// assert!(cancelled.embed([vec![1, 2, 3]], &EmbedOptions::new()).is_err());
    /// assert!(handle.embed([vec![1, 2, 3]], &EmbedOptions::new()).is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancelled_by(&self, cancel: &CancelToken) -> Self {
        Self { cancel: cancel.clone(), ..self.clone() }
    }

    /// The same handle, whose calls are this caller's: they share the engine as the requests of the same
    /// tenant and priority do. Requests say themselves who they are for.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{Caller, EmbedOptions, ModelSource, Options};
    ///
    /// let handle = Options::new().start(ModelSource::Demo)?;
    /// // Behind all that is more urgent, and charged to this tenant.
    /// let nightly = handle.on_behalf_of(Caller { tenant: "index".into(), priority: 10 });
    /// assert_eq!(nightly.embed([vec![1, 2, 3]], &EmbedOptions::new())?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_behalf_of(&self, caller: Caller) -> Self {
        Self { caller, ..self.clone() }
    }

    /// Hands a request in, without waiting for anything.
    ///
    /// # Errors
    /// `Request`, numbered by this handle, for an empty or too long prompt or token ids beyond the
    /// vocabulary; `Config` for sampling parameters out of range; `KvFull` when the cache could never hold
    /// it; `Architecture` for encoders; `Internal` when the engine's thread has ended.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{Event, ModelSource, Options, Request};
    ///
    /// let handle = Options::new().start(ModelSource::Demo)?;
    /// let request = Request { prompt: vec![1, 2, 3], max_new_tokens: 4, ..Request::default() };
    /// let mut sampled = Vec::new();
    /// for event in handle.submit(request)? {
    ///     if let Event::Token(id) = event? {
    ///         sampled.push(id);
    ///     }
    /// }
    /// assert_eq!(sampled.len(), 4);
    /// assert!(handle.submit(Request::default()).is_err(), "a prompt is never empty");
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&self, request: Request) -> Result<Tokens> {
        self.submit_several(request, 1)?.pop().ok_or_else(gone)
    }

    /// Hands in `count` continuations of one prompt, which runs once; they give what as many requests would
    /// whose [`Request::subsequence`] is counted up.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`]; `Request` for none, or for several that want to keep logits or hidden
    /// states.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{Event, ModelSource, Options, Request, SamplingParams};
    ///
    /// let handle = Options::new().start(ModelSource::Demo)?;
    /// let sampling = SamplingParams { temperature: 1.0, seed: Some(7), ..SamplingParams::default() };
    /// let request = Request { prompt: vec![1, 2, 3], max_new_tokens: 4, sampling, ..Request::default() };
    /// let several = handle.submit_several(request.clone(), 3)?;
    /// let tokens = |events: engraft::Tokens| events.filter(|e| matches!(e, Ok(Event::Token(_)))).collect();
    /// let texts: Vec<Vec<_>> = several.into_iter().map(tokens).collect();
    /// let alone = |subsequence| handle.submit(Request { subsequence, ..request.clone() }).map(tokens);
    /// # assert_eq!(format!("{:?}", texts[2]), format!("{:?}", alone(2)?));
    /// assert_eq!((texts.len(), texts[0].len()), (3, 4));
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit_several(&self, request: Request, count: usize) -> Result<Vec<Tokens>> {
        let first = self.submitter.keys(count.min(MAX_CONTINUATIONS));
        request.check(first, &self.limits.spec, &self.limits.config)?;
        request.check_several(first, count)?;
        request.fits(&self.limits.spec, &self.limits.config)?;
        Tokens::begin(&self.submitter, first, count, Begin::Put(request))
    }

    /// Continues a request that [`Tokens::save`] has saved, of this handle's engine or of another one with
    /// the same weights. Its first event is a token that was not sampled yet.
    ///
    /// What is wrong with the bytes is the only event: `Format` where they are damaged or of another version,
    /// `Config` naming what differs for those of other weights, element types or numerics, `Request` or
    /// `KvFull` for a request that this engine could never serve.
    ///
    /// # Errors
    /// `Internal` when the engine's thread has ended.
    pub fn restore(&self, saved: impl Into<Vec<u8>>) -> Result<Tokens> {
        let first = self.submitter.keys(1);
        let tokens = Tokens::begin(&self.submitter, first, 1, Begin::Restore(saved.into()))?;
        tokens.into_iter().next().ok_or_else(gone)
    }

    /// Encodes texts (models without a causal direction) and keeps the hidden states of `layers`. Blocks
    /// until all are done.
    ///
    /// # Errors
    /// `Architecture` for decoders; `Request` (numbered by text) for empty or too long texts.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{Layers, Options};
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/bert");
    /// let handle = Options::new().start(folder)?; // a folder with a BERT
    /// let texts = [vec![2, 17, 45, 3], vec![2, 88, 3]];
    /// let all = handle.encode(texts, Layers::Last)?;
    /// // A row per token.
    /// assert_eq!(all[0].hidden.len(), 1);
    /// assert_eq!(all[0].hidden[0].len(), 4 * handle.info().hidden);
    /// # Ok(())
    /// # }
    /// ```
    pub fn encode<T: Into<EncoderInput>>(
        &self,
        texts: impl IntoIterator<Item = T>,
        layers: Layers,
    ) -> Result<Vec<Encoded>> {
        let texts = texts.into_iter().map(Into::into).collect();
        self.ask(|reply| Command::Encode { texts, layers, reply })
    }

    /// Encodes images, each `[channels, side, side]` normalized pixels, by models that read them, and keeps
    /// the hidden states of `layers`. Blocks until all are done.
    ///
    /// # Errors
    /// `Architecture` for models of texts; `Request` (numbered by image) for another number of pixels than
    /// the model's.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{Layers, Options};
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/clip_vision");
    /// let handle = Options::new().start(folder)?; // CLIP's tower for images of 24 by 24 pixels
    /// let gray = vec![0.0; 3 * 24 * 24];
    /// let all = handle.encode_images([gray], Layers::Last)?;
    /// // The vector to compare with those of texts, after its projection.
    /// println!("{:?}", &all[0].pooled);
    /// # assert_eq!(all[0].pooled.len(), 24);
    /// # Ok(())
    /// # }
    /// ```
    pub fn encode_images(
        &self,
        images: impl IntoIterator<Item = Vec<f32>>,
        layers: Layers,
    ) -> Result<Vec<Encoded>> {
        let images = images.into_iter().collect();
        self.ask(|reply| Command::EncodeImages { images, layers, reply })
    }

    /// Runs sequences of token ids (or encoder's texts) of any lengths once, sampling nothing, and returns
    /// the hidden states and logits that `want` names. They ride in the same steps as requests that are
    /// running. Blocks until all are done.
    ///
    /// # Errors
    /// `Request`, numbered by sequence, for empty or too long ones, ids beyond the vocabulary, layers or
    /// tokens that are not there.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{ForwardWant, ModelSource, Options, Pick};
    ///
    /// let handle = Options::new().logit_rows(usize::MAX).start(ModelSource::Demo)?;
    /// let want = ForwardWant { hidden: Pick::Last, logits: Pick::Last };
    /// let all = handle.forward([vec![1, 2, 3], vec![4, 5]], want)?;
    /// assert_eq!(all[0].hidden[0].len(), 3 * handle.info().hidden);
    /// assert_eq!(all[1].logits.len(), handle.info().vocab);
    /// # Ok(())
    /// # }
    /// ```
    pub fn forward<T: Into<EncoderInput>>(
        &self,
        sequences: impl IntoIterator<Item = T>,
        want: ForwardWant,
    ) -> Result<Vec<Forwarded>> {
        let texts = sequences.into_iter().map(Into::into).collect();
        self.ask(|reply| Command::Forward { texts, want, reply })
    }

    /// One vector per sequence: its last hidden states pooled, as `options` say; their mean where these name
    /// no pooling. Blocks until all are done.
    ///
    /// # Errors
    /// As [`EngineHandle::forward`]; `Architecture` for the pooler of a model that has none.
    pub fn embed<T: Into<EncoderInput>>(
        &self,
        sequences: impl IntoIterator<Item = T>,
        options: &EmbedOptions,
    ) -> Result<Vec<Vec<f32>>> {
        let (texts, options) = (sequences.into_iter().map(Into::into).collect(), *options);
        self.ask(|reply| Command::Embed { texts, options, reply })
    }

    /// Log-probabilities (base e) of every token but the first, given those before it, by a decoder; of a
    /// model with an encoder those of [`EncoderInput::decoder`], given what the encoder reads. Blocks until
    /// all are done.
    ///
    /// # Errors
    /// As [`EngineHandle::forward`]; `Architecture` for encoders; `Request` for nothing to score.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{ModelSource, Options};
    ///
    /// let handle = Options::new().logit_rows(usize::MAX).start(ModelSource::Demo)?;
    /// let scores = handle.score([vec![1, 2, 3], vec![4, 5]])?;
    /// assert_eq!((scores[0].len(), scores[1].len()), (2, 1));
    /// assert!(scores[0].iter().all(|logprob| *logprob <= 0.0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn score<T: Into<EncoderInput>>(
        &self,
        sequences: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Vec<f32>>> {
        let sequences = sequences.into_iter().map(Into::into).collect();
        self.ask(|reply| Command::Score { sequences, reply })
    }

    /// Logits of the labels of every sequence, by a sequence classifier (encoder or decoder). Blocks until
    /// all are done.
    ///
    /// # Errors
    /// As [`EngineHandle::forward`]; `Architecture` for models that do not label texts.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::Options;
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/bert_classifier");
    /// let handle = Options::new().start(folder)?; // a ...ForSequenceClassification
    /// let logits = handle.classify([vec![2, 17, 45, 3], vec![2, 88, 3]])?;
    /// // A row of as many logits as there are labels for each text.
    /// assert_eq!((logits.len(), logits[0].len()), (2, logits[1].len()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn classify<T: Into<EncoderInput>>(
        &self,
        sequences: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Vec<f32>>> {
        if !matches!(self.head(), HeadSpec::Labels { .. }) {
            return Err(Error::Architecture {
                op: "classify".into(),
                arch: self.info.arch.clone(),
                reason: "the model has no classification head (expected ...ForSequenceClassification)".into(),
            });
        }
        let all = self.forward(sequences, ForwardWant { hidden: Pick::None, logits: Pick::Last })?;
        Ok(all.into_iter().map(|one| one.logits).collect())
    }

    /// Measures every op of the steps from now on, by the device's own clock, or stops and forgets what was
    /// measured (DeepSpeed's `profile_model_time`). Steps then run op by op, none is captured: they take
    /// longer.
    ///
    /// # Errors
    /// `Internal` when the engine's thread has ended.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::GenerateOptions;
    ///
    /// let model = engraft::demo()?;
    /// model.handle().set_profiling(true)?;
    /// model.generate("This package", &GenerateOptions::new().max_new_tokens(4))?.text()?;
    /// let profile = model.handle().take_profile()?;
    /// println!("steps: {:?} ms", profile.steps_ms());
    /// for (op, us, calls) in profile.by_op() {
    ///     println!("{:<20} {calls:>6} {us:>9.1} us", op.name());
    /// }
    /// for (layer, us) in profile.by_layer() {
    ///     println!("{layer:?}: {us:.1} us");
    /// }
    /// # assert_eq!(profile.steps_ms().len(), 4);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "profile_model_time")]
    pub fn set_profiling(&self, on: bool) -> Result<()> {
        self.submitter.call(Command::SetProfiling { on }).map_err(|_| gone())
    }

    /// The times of ops, layers and steps since profiling began or since the last call, and forgets them.
    ///
    /// # Errors
    /// `Config` while profiling is off; `Internal` when the engine's thread has ended.
    pub fn take_profile(&self) -> Result<Profile> {
        let profiles = self.ask(|reply| Command::TakeProfile { reply })?;
        profiles.into_iter().next().ok_or_else(gone)
    }

    /// Milliseconds of every step since profiling began or since the last call, from its first op's start to
    /// its last one's end (DeepSpeed's `model_times`); forgets them with the times of ops and layers.
    ///
    /// # Errors
    /// As [`EngineHandle::take_profile`].
    pub fn model_times(&self) -> Result<Vec<f64>> {
        Ok(self.take_profile()?.steps_ms().to_vec())
    }

    /// What reads the last hidden state.
    pub(crate) fn head(&self) -> HeadSpec {
        self.limits.spec.head
    }

    /// Tokens that an encoder takes at once.
    pub(crate) fn longest_text(&self) -> usize {
        self.limits.config.text_tokens()
    }

    /// The longest sequence, with whose limit it is.
    pub(crate) fn context_limit(&self) -> String {
        self.limits.config.context_limit(self.limits.spec.max_positions)
    }

    /// Token types that the model knows; with one, an [`EncoderInput`] names none.
    pub fn token_types(&self) -> usize {
        self.limits.spec.embed.token_types.unwrap_or(1)
    }

    /// Sends a command and waits for its reply.
    fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<Vec<T>> {
        let (sender, received) = channel();
        let reply = Reply { sender, cancel: self.cancel.clone(), caller: self.caller.clone() };
        // A thread that is gone drops `reply`, and `recv` says so.
        let _ = self.submitter.call(command(reply));
        received.recv().unwrap_or_else(|_| Err(gone()))
    }
}

/// A model that is being loaded on its thread.
pub(crate) struct Start {
    ready: Receiver<Result<Ready>>,
    submitter: Near,
    began: Instant,
}

impl Start {
    /// Starts the thread; it loads the model and then serves until no handle is left.
    pub fn spawn(files: ModelFiles, options: Options) -> Result<Self> {
        options.load_options()?;
        Self::run(move |inbox, ready| work(files, options, inbox, ready))
    }

    /// Starts a thread that says when its engine is ready, and serves then.
    fn run(
        body: impl FnOnce(Receiver<Post>, Sender<Result<Ready>>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let began = Instant::now();
        let (submitter, inbox) = Near::new();
        let (started, ready) = channel();
        let body = move || {
            if let Err(error) = body(inbox, started.clone()) {
                // The receiver is gone when the error came after the start.
                let _ = started.send(Err(error));
            }
        };
        thread::Builder::new()
            .name("engraft-engine".into())
            .spawn(body)
            .map_err(|e| Error::io("the engine's thread", e))?;
        Ok(Self { ready, submitter, began })
    }

    /// Waits until the model is ready.
    pub fn wait(self) -> Result<EngineHandle> {
        let (mut info, limits, stats) = self.ready.recv().unwrap_or_else(|_| Err(gone()))?;
        info.load_seconds = self.began.elapsed().as_secs_f64();
        let (info, limits) = (Arc::new(info), Arc::new(limits));
        let (cancel, caller) = (CancelToken::default(), Caller::default());
        Ok(EngineHandle { submitter: self.submitter, info, limits, stats, cancel, caller })
    }
}

/// Carries out the orders of another process, on the calling thread.
#[cfg(unix)]
pub(crate) fn follow(files: ModelFiles, options: Options) -> Result<()> {
    options.load_options()?;
    // Nobody asks a rank that follows.
    let ((_, inbox), (ready, _)) = (Near::new(), channel());
    work(files, options, inbox, ready)
}

/// Loads a model, and serves until no handle is left.
fn work(
    files: ModelFiles,
    options: Options,
    inbox: Receiver<Post>,
    ready: Sender<Result<Ready>>,
) -> Result<()> {
    let Options { backend, threads, engine, kernel_inject, progress, .. } = options;
    let asked = (options.own_dtype.then_some(engine.dtype), options.kv_dtype);
    let job = worker::Job {
        files,
        engine,
        asked,
        stored_dtype: backend.takes_stored_dtype(),
        own_context: options.own_context,
        load: options.load,
        registry: options.registry,
        host_cache: options.host_cache,
        progress: progress.unwrap_or_else(|| Box::new(|_, _| {})),
        processes: options.processes,
        inbox,
        ready,
    };
    match kernel_inject {
        true => with_backend(&backend, threads, job),
        false => with_backend(&backend, threads, worker::ComposedJob(job)),
    }
}
