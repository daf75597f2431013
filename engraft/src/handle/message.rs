//! What goes through the channel between handles and the engine's thread.

use super::protocol::{Line, Message, Said, Submitter};
use crate::embed::EmbedOptions;
use engraft_core::config::EngineConfig;
use engraft_core::config::deepspeed::Warning;
use engraft_core::engine::{
    Caller, Encoded, EncoderInput, Finish, ForwardWant, Forwarded, Kept, Layers, Memory, Request, StepTokens,
    Want,
};
use engraft_core::inject::{GroupPlan, InjectionPlan};
use engraft_core::policy::{Family, ModelSpec, StemSpec};
use engraft_core::profile::Profile;
use engraft_core::sample::SamplingParams;
use engraft_core::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What is known of a running model.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// let model = engraft::demo()?;
/// let info = model.info();
/// println!("{}: {}, {} layers, {} tokens of context", info.name, info.arch, info.layers, info.max_context);
/// // How every op runs, as `engraft plan` prints it.
/// println!("{}", info.plan);
/// # assert_eq!((info.arch.as_str(), info.layers), ("llama", 5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The path it was opened by.
    pub name: String,
    /// The architecture: `llama`.
    pub arch: String,
    /// Whether it continues text (or encodes it).
    pub family: Family,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Columns of the hidden state.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Blocks of the encoder next to its decoder; 0 where there is none.
    pub encoder_layers: usize,
    /// What its decoder begins with, where an encoder is next to it.
    pub decoder_start: Vec<u32>,
    /// The convolutions that its encoder begins with, where it reads sound; frames are those that this engine
    /// reads at once.
    pub sound: Option<StemSpec>,
    /// Longest sequence, prompt and continuation.
    pub max_context: usize,
    /// The device, for people.
    pub device: String,
    /// Seconds from opening the files to being ready.
    pub load_seconds: f64,
    /// What the engine takes of the device's memory.
    pub memory: Memory,
    /// Settings of the engine that have no effect on this device.
    pub warnings: Vec<Warning>,
    /// How every slot runs; of several ranks on the first.
    pub plan: InjectionPlan,
    /// How ranks share the model, where there are several.
    pub group: Option<GroupPlan>,
}

/// What an engine has to do and has done, as of its last step; made by
/// [`EngineHandle::stats`](crate::EngineHandle::stats).
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::GenerateOptions;
///
/// let model = engraft::demo()?;
/// model.generate("This package", &GenerateOptions::new().max_new_tokens(4))?.text()?;
/// let stats = model.handle().stats();
/// assert!(stats.steps >= 4 && stats.total_pages > 0);
/// println!("{} run, {} wait", stats.running, stats.waiting);
/// println!("{} of {} pages are free", stats.free_pages, stats.total_pages);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait for a place or for pages.
    pub waiting: usize,
    /// KV pages that requests can have.
    pub free_pages: usize,
    /// KV pages in all.
    pub total_pages: usize,
    /// Positions of a page.
    pub page_size: usize,
    /// Steps so far.
    pub steps: u64,
    /// How many tokens each of them has computed.
    pub step_tokens: StepTokens,
    /// Prompt tokens that were looked up in the prefix cache.
    pub prefix_queried: u64,
    /// Those of them that were found.
    pub prefix_hit: u64,
    /// Pages that the prefix cache has given up: to the store, where there is one.
    pub prefix_evicted: u64,
    /// Pages in the store for which there was no room on the device
    /// ([`Options::host_cache`](crate::Options::host_cache)).
    pub stored_pages: usize,
    /// Pages that have come back from it.
    pub restored_pages: u64,
    /// How often a request has given its pages up, to go on later.
    pub preemptions: u64,
    /// Requests that ended because none of their logits was a number above -infinity.
    pub corrupted: u64,
}

/// Something that happened to a request; [`EngineHandle::submit`](crate::EngineHandle::submit) has an
/// example.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A token was sampled.
    Token(u32),
    /// What the request's [`engraft_core::engine::Want`] asked to keep; comes before `Finished`.
    Kept(Box<Kept>),
    /// The last event.
    Finished(Finish),
}

/// What a request is held against before it goes through the channel.
#[derive(Debug)]
pub(super) struct Limits {
    pub spec: ModelSpec,
    pub config: EngineConfig,
}

/// Where the engine's thread leaves its [`EngineStats`], and whether it serves no request any more.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedStats(Arc<(Mutex<EngineStats>, AtomicBool)>);

impl SharedStats {
    pub fn get(&self) -> EngineStats {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, stats: EngineStats) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// No request can be served any more; said before the errors that follow from it.
    pub fn end(&self) {
        self.0.1.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.0.1.load(Ordering::Acquire)
    }
}

/// Says that a thread serves no request, however it ends.
pub(super) struct Ending(pub SharedStats);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What the thread says once the model is loaded.
pub(super) type Ready = (ModelInfo, Limits, SharedStats);

/// Ends calls that wait in another thread: [`EngineHandle::cancelled_by`](crate::EngineHandle::cancelled_by).
/// Clones share it.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Ends the calls; those that have ended are as they were.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether they are to end.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where the results of a call go.
#[derive(Debug)]
pub(super) struct Reply<T> {
    /// One result per text, image or sequence.
    pub sender: Sender<Result<Vec<T>>>,
    /// Set once nobody waits any more.
    pub cancel: CancelToken,
    /// Who asks.
    pub caller: Caller,
}

impl<T> Reply<T> {
    /// Whoever asked may be gone.
    pub fn send(self, results: Result<Vec<T>>) {
        let _ = self.sender.send(results);
    }
}

impl<T> Reply<T> {
    /// A reply to nobody by name, who waits for it in any case; the end where it arrives.
    pub fn plain() -> (Self, Receiver<Result<Vec<T>>>) {
        let (sender, received) = channel();
        (Self { sender, cancel: CancelToken::default(), caller: Caller::default() }, received)
    }
}

/// What begins a request.
#[derive(Debug)]
pub(super) enum Begin {
    /// A prompt.
    Put(Request),
    /// What a request has come to that was saved.
    Restore(Vec<u8>),
    /// What a running request, known by its key, has come to.
    Fork { of: u64, sampling: SamplingParams, subsequence: u32 },
}

/// Requests that have begun.
pub(super) struct Opened {
    /// The engine's numbers.
    pub ids: Vec<u64>,
    pub want: Want,
    /// Tokens that each had already.
    pub before: usize,
}

/// What goes through the channel.
pub(super) type Post = Message<Begin, TimedEvent, Command>;
/// The near end of the channel.
pub(super) type Near = Submitter<Begin, TimedEvent, Command>;
/// The near end of one request.
pub(super) type Events = Line<Begin, TimedEvent, Command>;

/// What a handle asks of the engine's thread besides requests.
#[derive(Debug)]
pub(super) enum Command {
    Encode { texts: Vec<EncoderInput>, layers: Layers, reply: Reply<Encoded> },
    EncodeImages { images: Vec<Vec<f32>>, layers: Layers, reply: Reply<Encoded> },
    Forward { texts: Vec<EncoderInput>, want: ForwardWant, reply: Reply<Forwarded> },
    Embed { texts: Vec<EncoderInput>, options: EmbedOptions, reply: Reply<Vec<f32>> },
    Score { sequences: Vec<EncoderInput>, reply: Reply<Vec<f32>> },
    Save { key: u64, reply: Reply<Saved> },
    Preempt { key: u64, reply: Reply<bool> },
    SetProfiling { on: bool },
    TakeProfile { reply: Reply<Profile> },
}

/// How a request was begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    pub at: Instant,
    /// Prompt tokens from the prefix cache.
    pub cached: usize,
}

/// An event with the time at which the engine sent it: the reader may be late.
#[derive(Debug)]
pub(super) struct TimedEvent {
    pub at: Instant,
    /// With the first event of a request that has run.
    pub begun: Option<Begun>,
    pub event: Result<Event>,
}

impl TimedEvent {
    pub fn now(event: Result<Event>) -> Self {
        Self { at: Instant::now(), begun: None, event }
    }
}

impl Said for TimedEvent {
    fn is_last(&self) -> bool {
        matches!(self.event, Err(_) | Ok(Event::Finished(_)))
    }

    fn gone() -> Self {
        Self::now(Err(gone()))
    }
}

/// A request as it stood, made by [`Tokens::save`](crate::Tokens::save), which has an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// What [`EngineHandle::restore`](crate::EngineHandle::restore) takes.
    pub bytes: Vec<u8>,
    /// Tokens sampled so far: as many of the request's events say those that the bytes have already.
    pub sampled: usize,
}

/// What is left to say when the thread no longer answers.
pub(super) fn gone() -> Error {
    Error::internal("the engine's thread has ended")
}
