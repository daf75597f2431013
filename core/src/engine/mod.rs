//! The loop: requests in, tokens out.
//!
//! [`Engine::step`] plans a batch, fills the step's buffer, uploads it once, runs or replays the model,
//! samples tokens on the device and reads back only those. After warm-up a step allocates nothing.
//!
//! One engine stays on one thread; whoever wants to share it holds a channel (the facade's handle).

mod build;
mod encode;
mod executor;
mod fork;
mod forward;
mod kept;
mod request;
mod step;

pub use encode::{Encoded, EncoderInput};
pub use forward::{Batch, ForwardWant, Forwarded, Pick, Pooling};
pub use kept::Kept;
pub use request::{Finish, Layers, Output, Request, Want};

use crate::backend::{AttnPlan, Backend, Mem, Stream};
use crate::config::EngineConfig;
use crate::graph::GraphSet;
use crate::kv::{PagePool, PageTables, PagedKv};
use crate::mem::{Buf, Mat, StepBuffers};
use crate::model::{Model, State};
use crate::profile::{Probe, Profile};
use crate::schedule::{Scheduler, Sequence, StepBatch};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model that runs on a backend.
pub struct Engine<B: Backend> {
    backend: Arc<B>,
    model: Model<B::Device>,
    config: EngineConfig,
    stream: B::Stream,
    comm: B::Comm,
    host: HostState,
    state: State<Mem<B>>,
    eager: Eager<B>,
    graphs: GraphSet<B>,
    requests: BTreeMap<u64, Live>,
    kept: BTreeMap<u64, Kept>,
    next_id: u64,
    profile: Option<Profile>,
}

/// What the host keeps of sequences and pages.
struct HostState {
    scheduler: Scheduler,
    tables: PageTables,
    pool: PagePool,
    batch: StepBatch,
    tokens: Vec<u32>,
    ended: Vec<usize>,
}

/// Buffers of steps that run op by op.
struct Eager<B: Backend> {
    step: StepBuffers<Mem<B>>,
    plan: AttnPlan<B>,
    /// f32 copies of hidden states; made when first asked for.
    wide: Option<Mat<Mem<B>>>,
}

/// What the engine keeps of a request besides its sequence.
struct Live {
    stop_ids: Vec<u32>,
    sampling: crate::sample::SamplingParams,
    subsequence: u32,
    want: Want,
}

impl<B: Backend> Engine<B> {
    /// Queues a request and returns its number.
    ///
    /// # Errors
    /// `Request` for an empty prompt, one longer than the context, or token ids beyond the vocabulary;
    /// `Config` for sampling parameters out of range; `KvFull` when the pool could never hold it;
    /// `Architecture` for encoders.
    pub fn put(&mut self, request: Request) -> Result<u64> {
        let id = self.next_id;
        request.check(id, &self.model.spec, &self.config)?;
        let room = self.config.max_context - request.prompt.len();
        let sequence = Sequence::new(id, request.prompt, request.max_new_tokens.min(room));
        self.host.scheduler.submit(sequence, &self.host.tables, &self.host.pool)?;
        self.next_id += 1;
        if request.want != Want::default() {
            self.kept.insert(id, Kept::default());
        }
        let live = Live {
            stop_ids: request.stop_ids,
            sampling: request.sampling,
            subsequence: request.subsequence,
            want: request.want,
        };
        self.requests.insert(id, live);
        Ok(id)
    }

    /// Ends a request wherever it stands and frees its pages; whether it was there.
    pub fn cancel(&mut self, id: u64) -> Result<bool> {
        self.requests.remove(&id);
        self.kept.remove(&id);
        self.host.scheduler.cancel(id, &mut self.host.tables, &mut self.host.pool)
    }

    /// Whether nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.host.scheduler.is_idle()
    }

    /// KV pages without an owner, of all.
    pub fn free_pages(&self) -> (usize, usize) {
        (self.host.pool.free(), self.host.pool.total())
    }

    /// Keys and values of all layers, for whoever measures what a step reads.
    pub fn kv(&self) -> &PagedKv<Mem<B>> {
        &self.state.kv
    }

    /// What a finished request asked to keep.
    pub fn take_kept(&mut self, id: u64) -> Option<Kept> {
        self.kept.remove(&id)
    }

    /// The model.
    pub fn model(&self) -> &Model<B::Device> {
        &self.model
    }

    /// The checked configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// Sizes of the decode buckets captured so far.
    pub fn captured_graphs(&self) -> Vec<usize> {
        self.graphs.captured()
    }

    /// Sizes of the decode buckets whose capture failed, and why: their steps run op by op.
    pub fn refused_graphs(&self) -> Vec<(usize, &str)> {
        self.graphs.refused()
    }

    /// Measures ops from the next step on (steps then run eagerly), or stops.
    pub fn set_profiling(&mut self, on: bool) {
        self.profile = on.then(Profile::default);
    }

    /// The spans measured since profiling began or since the last call.
    pub fn take_profile(&mut self) -> Option<Profile> {
        self.profile.as_mut().map(std::mem::take)
    }

    /// Milliseconds of every profiled step so far, in order (DeepSpeed's `model_times`).
    pub fn model_times(&self) -> Vec<f64> {
        self.profile.as_ref().map(|p| p.steps_ms().to_vec()).unwrap_or_default()
    }

    /// Runs steps until nothing is left, and returns every sampled token in order, by request.
    pub fn run(&mut self) -> Result<BTreeMap<u64, Vec<u32>>> {
        let (mut out, mut sampled) = (Vec::new(), BTreeMap::<u64, Vec<u32>>::new());
        while !self.is_idle() {
            self.step(&mut out)?;
            for o in &out {
                sampled.entry(o.id).or_default().extend(o.token);
            }
        }
        Ok(sampled)
    }

    fn new_probe(&self) -> Option<Probe<<B::Stream as Stream<B>>::Event>> {
        self.profile.as_ref().map(|_| Probe::default())
    }
}

/// An internal error for state that must be there.
fn lost(what: &str) -> Error {
    Error::internal(format!("{what} is missing"))
}
