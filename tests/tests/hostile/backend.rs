//! `Hostile`: a backend whose recorded ops are not recorded, but changed and run.

use super::change::{Change, changes};
use super::ground::Ground;
use super::home::{Held, held, homes, move_in, outputs, refused};
use engraft_core::backend::{
    AttnPlan, Backend, Board, Caps, Communicator, Coverage, HostGroup, Mem, Stream, Weight,
};
use engraft_core::mem::{BufMut, BufRef, HostWeight, StepShape};
use engraft_core::numerics::Numerics;
use engraft_core::ops::{Checked, Op, OpKind, Run, Signature};
use engraft_core::{Error, Result};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What came of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The view, or the weight, could not be made.
    Constructor,
    /// The op's check said no.
    Check,
    /// The backend said no, for this reason.
    Refused(String),
    /// It ran and wrote its outputs alone.
    Ran,
    /// It wrote something else.
    Stray(String),
}

/// Is told about a change before it is tried, then what came of it.
pub trait Witness: Send {
    /// The case whose op is changed from here on.
    fn case(&mut self, case: String);
    /// A change of an op that is about to be tried.
    fn tries(&mut self, op: OpKind, change: &Change);
    /// What came of it.
    fn saw(&mut self, op: OpKind, change: &Change, outcome: Outcome);
}

/// What is still to be done to the op of a case.
pub enum Todo {
    /// Its changes are wanted.
    List,
    /// These changes.
    Make(VecDeque<Change>),
}

/// The state of a case.
pub struct Work {
    /// What is to be done.
    pub todo: Todo,
    /// Who watches.
    pub witness: Box<dyn Witness>,
    /// Bytes of all operands.
    pub bytes: usize,
}

/// A backend that changes ops.
pub struct Hostile<G: Ground> {
    ground: G,
    work: Mutex<Work>,
}

impl<G: Ground> Hostile<G> {
    /// Changes the ops of a ground's backend.
    pub fn new(ground: G, witness: Box<dyn Witness>) -> Arc<Self> {
        Arc::new(Self { ground, work: Mutex::new(Work { todo: Todo::List, witness, bytes: 0 }) })
    }

    /// The state of the case.
    pub fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stream of [`Hostile`].
pub struct HostileStream<G: Ground> {
    inner: <G::Inner as Backend>::Stream,
    backend: Arc<Hostile<G>>,
    armed: bool,
}

/// Ends a case after its op: what follows would look at outputs that were never written.
fn enough<T>() -> Result<T> {
    Err(Error::internal("the op was seen"))
}

impl<G: Ground> HostileStream<G> {
    /// Makes the changes that need no op, then one that does.
    fn strike(&mut self, op: Op<'_, <G::Inner as Backend>::Device>) -> Result<()> {
        let (mut given, backend) = (op, self.backend.clone());
        let (kind, ground, mut work) = (given.kind(), &backend.ground, backend.work());
        let all = held(ground, &mut given);
        let change = loop {
            let change = match &mut work.todo {
                Todo::List => {
                    work.bytes = all.iter().map(Held::bytes).sum();
                    work.todo = Todo::Make(changes(&mut given).into());
                    return enough();
                }
                Todo::Make(changes) => changes.pop_front(),
            };
            let Some(change) = change else { return enough() };
            work.witness.tries(kind, &change);
            match refused(ground, &all, &change)? {
                Some(_) => work.witness.saw(kind, &change, Outcome::Constructor),
                None => break change,
            }
        };
        let outcome = self.make(given, &all, &change)?;
        work.witness.saw(kind, &change, outcome);
        enough()
    }

    /// Changes an op and runs it.
    fn make(
        &mut self,
        given: Op<'_, <G::Inner as Backend>::Device>,
        all: &[Held],
        change: &Change,
    ) -> Result<Outcome> {
        let backend = self.backend.clone();
        let ground = &backend.ground;
        let mut homes = match homes(ground, &mut self.inner, all, change) {
            Ok(homes) => homes,
            Err(_) => return Ok(Outcome::Constructor),
        };
        let mut op = given;
        move_in(&mut op, &mut homes, all, change)?;
        let spans = outputs(ground, &mut op);
        let Ok(op) = Checked::new(op) else { return Ok(Outcome::Check) };
        Ok(match ground.run(&mut self.inner, op, &spans) {
            Ok(None) => Outcome::Ran,
            Ok(Some(stray)) => Outcome::Stray(stray),
            // No change may get that far; what a backend finds in data by itself is an internal error, too.
            Err(Error::Internal { what }) if what.contains("panicked") => Outcome::Stray(what),
            Err(e) => Outcome::Refused(e.to_string()),
        })
    }
}

impl<G: Ground> Run<<G::Inner as Backend>::Device> for HostileStream<G> {
    fn run(&mut self, op: Checked<'_, <G::Inner as Backend>::Device>) -> Result<()> {
        if self.armed { self.strike(op.into_op()) } else { self.inner.run(op) }
    }
}

impl<G: Ground> Backend for Hostile<G> {
    type Device = <G::Inner as Backend>::Device;
    type Kernel = <G::Inner as Backend>::Kernel;
    type Graph = ();
    type Stream = HostileStream<G>;

    fn name(&self) -> &str {
        "hostile"
    }
    fn caps(&self) -> &Caps {
        self.ground.inner().caps()
    }
    fn numerics(&self) -> Numerics {
        self.ground.inner().numerics()
    }
    fn alloc(&self, bytes: usize) -> Result<Mem<G::Inner>> {
        self.ground.inner().alloc(bytes)
    }
    fn stream(self: &Arc<Self>) -> Result<HostileStream<G>> {
        let inner = self.ground.inner().stream()?;
        Ok(HostileStream { inner, backend: self.clone(), armed: false })
    }
    fn group(self: &Arc<Self>, board: Box<dyn Board>) -> Result<Box<dyn Communicator<Self>>> {
        Ok(Box::new(HostGroup::new(board)))
    }
    fn prepare_weight(&self, weight: HostWeight<'_>, _: &[Signature]) -> Result<Weight<G::Inner>> {
        self.ground.pack(weight)
    }
    fn attention_plan(&self, bound: StepShape) -> Result<AttnPlan<G::Inner>> {
        self.ground.inner().attention_plan(bound)
    }
    fn coverage(&self, signature: &Signature) -> Coverage<Self::Kernel> {
        self.ground.inner().coverage(signature)
    }
}

impl<G: Ground> Stream<Hostile<G>> for HostileStream<G> {
    type Event = <<G::Inner as Backend>::Stream as Stream<G::Inner>>::Event;
    type Ticket = <<G::Inner as Backend>::Stream as Stream<G::Inner>>::Ticket;

    fn upload<T: bytemuck::Pod>(&mut self, src: &[T], dst: BufMut<'_, Mem<G::Inner>, T>) -> Result<()> {
        self.inner.upload(src, dst)
    }
    fn download<T: bytemuck::Pod>(&mut self, src: BufRef<'_, Mem<G::Inner>, T>) -> Result<Self::Ticket> {
        self.inner.download(src)
    }
    fn collect<T: bytemuck::Pod>(
        &mut self,
        ticket: Self::Ticket,
        out: &mut [T],
    ) -> impl Future<Output = Result<()>> {
        self.inner.collect(ticket, out)
    }
    fn plan_attention(&mut self, shape: StepShape, plan: &mut AttnPlan<G::Inner>) -> Result<()> {
        self.inner.plan_attention(shape, plan)
    }
    fn submit(&mut self) -> Result<()> {
        self.inner.submit()
    }
    fn sync(&mut self) -> Result<()> {
        self.inner.sync()
    }
    fn record(&mut self) -> Result<Self::Event> {
        self.inner.record()
    }
    fn elapsed_us(&mut self, from: &Self::Event, to: &Self::Event) -> Result<f64> {
        self.inner.elapsed_us(from, to)
    }
    fn begin_capture(&mut self) -> Result<()> {
        self.armed = true;
        Ok(())
    }
    fn end_capture(&mut self) -> Result<()> {
        self.armed = false;
        Ok(())
    }
    unsafe fn replay(&mut self, _: &()) -> Result<()> {
        Ok(())
    }
}
