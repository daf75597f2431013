//! Instantiated graphs: flat lists of steps, launched into a stream as operations of the queue.
//!
//! Branches of a graph are as unordered as two streams: the queue runs them in any order that the edges
//! allow. A launch comes after the stream's work and after the previous launch of the same executable.

use std::collections::BTreeMap;

use crate::capture;
use crate::code::{Code, Result};
use crate::event::{self, Recorded};
use crate::memory;
use crate::queue::{self, Ticket};
use crate::refusal::unsupported;
use crate::state::{Driver, Held, Id, Written};
use crate::stream;
use crate::user;
use crate::work::Work;

use super::{Edge, Graph, Job};

/// A node of an executable, behind all it depends on.
#[derive(Debug, Clone)]
struct Step {
    node: Id,
    job: Job,
    /// Positions of steps, and whether only their trigger is waited for.
    after: Vec<(usize, bool)>,
    enabled: bool,
}

/// An executable graph.
#[derive(Debug, Clone)]
pub struct Exec {
    /// Its context.
    pub context: Id,
    /// Instantiation flags.
    pub flags: u64,
    steps: Vec<Step>,
    last: Option<Ticket>,
    memory: Vec<u64>,
    objects: user::Held,
}

/// Why an executable cannot take a graph's parameters: `CUgraphExecUpdateResult`, the node, the other end of
/// an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// 2 topology, 3 node type, 4 function, 5 parameters.
    pub result: u32,
    /// The node of the new graph.
    pub node: Option<Id>,
}

/// Turns a graph into steps, children in place; `None` for a cycle.
fn flatten(d: &Driver, graph: &Graph, after: &[(usize, bool)], steps: &mut Vec<Step>) -> Result {
    let mut at: BTreeMap<Id, usize> = BTreeMap::new();
    let mut open: Vec<Id> = graph.nodes.keys().copied().collect();
    while !open.is_empty() {
        let before = open.len();
        let mut blocked = Vec::new();
        for id in open {
            let node = &graph.nodes[&id];
            let edges: Option<Vec<_>> =
                node.after.iter().map(|e| at.get(&e.from).map(|&i| (i, e.programmatic))).collect();
            let Some(mut edges) = edges else {
                blocked.push(id);
                continue;
            };
            if edges.is_empty() {
                edges = after.to_vec();
            }
            if let Job::Child(child) = &node.job {
                let first = steps.len();
                flatten(d, super::get(d, *child)?, &edges, steps)?;
                edges.extend((first..steps.len()).map(|i| (i, false)));
            }
            at.insert(id, steps.len());
            let job =
                if matches!(node.job, Job::Child(_)) { Job::Work(Work::Nothing) } else { node.job.clone() };
            steps.push(Step { node: id, job, after: edges, enabled: true });
        }
        if blocked.len() == before {
            return Err(Code::INVALID_VALUE);
        }
        open = blocked;
    }
    Ok(())
}

/// `cuGraphInstantiate`.
pub fn instantiate(d: &mut Driver, graph: Id, flags: u64) -> Result<Id> {
    const AUTO_FREE: u64 = 1;
    const DEVICE_LAUNCH: u64 = 4;
    const KNOWN: u64 = 0xF;
    if flags & !KNOWN != 0 || flags & (AUTO_FREE | DEVICE_LAUNCH) == AUTO_FREE | DEVICE_LAUNCH {
        return Err(Code::INVALID_VALUE);
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(unsupported("CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH"));
    }
    let here = d.here()?;
    let source = super::get(d, graph)?;
    let context = source.context.unwrap_or(here);
    let mut steps = Vec::new();
    flatten(d, source, &[], &mut steps)?;
    let memory: Vec<u64> =
        steps.iter().filter_map(|s| if let Job::Alloc(a) = s.job { Some(a) } else { None }).collect();
    let objects = source.objects.clone();
    memory.iter().for_each(|&a| memory::hold_graph_memory(d, a));
    user::share(d, &objects);
    let id = d.id();
    d.execs.insert(id, Exec { context, flags, steps, last: None, memory, objects });
    Ok(id)
}

/// `cuGraphExecDestroy`; a launch in flight goes on, and so long what the executable holds is kept.
pub fn destroy(d: &mut Driver, id: Id) -> Result {
    let exec = d.execs.remove(&id).ok_or(Code::INVALID_VALUE)?;
    d.retired.push(exec);
    sweep(d);
    Ok(())
}

/// Lets go of what destroyed executables hold, as far as their last launch has ended.
pub fn sweep(d: &mut Driver) {
    if d.retired.is_empty() {
        return;
    }
    let all = std::mem::take(&mut d.retired);
    let (ended, open) = all.into_iter().partition(|e: &Exec| e.last.is_none_or(|t| d.queue.done(t)));
    d.retired = open;
    ended.into_iter().for_each(|exec| release(d, exec));
}

fn release(d: &mut Driver, exec: Exec) {
    exec.memory.iter().for_each(|&a| memory::drop_graph_memory(d, a));
    user::drop_all(d, exec.objects);
}

/// Takes an executable out of the table.
pub fn remove(d: &mut Driver, id: Id) {
    if let Some(exec) = d.execs.remove(&id) {
        release(d, exec);
    }
}

/// `cuGraphLaunch`; in a capturing stream the executable's nodes become a child graph.
pub fn launch(d: &mut Held, id: Id, stream_id: Id) -> Result {
    let exec = d.execs.get(&id).ok_or(Code::INVALID_VALUE)?.clone();
    if let Some(capture) = capture::active(d, stream_id)? {
        return capture_launch(d, &exec, capture, stream_id);
    }
    capture::refuse_legacy(d, stream_id)?;
    let context = stream::get(d, stream_id)?.context;
    let start = stream::enqueue(d, stream_id, Work::Nothing, exec.last.as_slice())?;
    d.statistics.graphs.0 += 1;
    let mut tickets: Vec<Ticket> = Vec::new();
    let mut writes: Vec<Option<Written>> = Vec::new();
    for step in &exec.steps {
        let mut after: Vec<Ticket> = step.after.iter().map(|&(i, _)| tickets[i]).collect();
        after.push(start);
        let (work, written) = step_work(d, step, &writes, &mut after);
        let owner = match &work {
            Work::Kernel(k) => {
                d.statistics.graphs.1 += 1;
                d.functions.get(&k.function).map_or(context, |f| f.context)
            }
            _ => context,
        };
        let record = if let Work::Record(event) = work { Some(event) } else { None };
        let ticket = d.queue.insert(owner, stream_id, work, &after);
        if let Some(event) = record {
            event::submitted(d, event, ticket);
        }
        tickets.push(ticket);
        writes.push(written);
    }
    let end = stream::enqueue(d, stream_id, Work::Nothing, &tickets)?;
    if let Some(exec) = d.execs.get_mut(&id) {
        exec.last = Some(end);
    }
    queue::pump(d);
    Ok(())
}

/// The operation of a step in this launch, and what it will have written.
fn step_work(
    d: &Driver,
    step: &Step,
    writes: &[Option<Written>],
    after: &mut Vec<Ticket>,
) -> (Work, Option<Written>) {
    if !step.enabled {
        return (Work::Nothing, None);
    }
    match &step.job {
        Job::Work(Work::Kernel(kernel)) => {
            let mut kernel = kernel.clone();
            kernel.written = Written::default();
            let overlapped = step.after.iter().find(|(_, programmatic)| *programmatic);
            kernel.unfinished = overlapped.and_then(|&(i, _)| writes[i].clone());
            let written = kernel.written.clone();
            (Work::Kernel(kernel), Some(written))
        }
        Job::Work(work) => (work.clone(), None),
        Job::Wait(event) => {
            if let Some(Recorded::At(ticket)) = d.events.get(event).map(|e| &e.recorded) {
                after.push(*ticket);
            }
            (Work::Nothing, None)
        }
        Job::Child(_) | Job::Alloc(_) | Job::Free(_) => (Work::Nothing, None),
    }
}

fn capture_launch(d: &mut Held, exec: &Exec, capture: Id, stream_id: Id) -> Result {
    let child = super::create(d, Some(exec.context));
    let mut made = Vec::new();
    for step in exec.steps.iter() {
        let after =
            step.after.iter().map(|&(i, programmatic)| Edge { from: made[i], programmatic }).collect();
        let job = if step.enabled { step.job.clone() } else { Job::Work(Work::Nothing) };
        made.push(super::add(d, child, job, after)?);
    }
    if let Some(child) = d.graphs.get_mut(&child) {
        child.owned = true;
    }
    debug_assert!(d.captures.contains_key(&capture));
    capture::add(d, stream_id, Job::Child(child)).map(|_| ())
}

/// `cuGraphExecUpdate`: the parameters of a graph of the same shape.
pub fn update(d: &mut Driver, id: Id, graph: Id) -> Result<std::result::Result<(), Mismatch>> {
    let mut new = Vec::new();
    flatten(d, super::get(d, graph)?, &[], &mut new)?;
    let exec = d.execs.get_mut(&id).ok_or(Code::INVALID_VALUE)?;
    let differs = |result, node| Ok(Err(Mismatch { result, node }));
    if new.len() != exec.steps.len() {
        return differs(2, None);
    }
    for (old, new) in exec.steps.iter().zip(&new) {
        if old.job.kind() != new.job.kind() {
            return differs(3, Some(new.node));
        }
        if old.after != new.after {
            return differs(2, Some(new.node));
        }
        if let (Job::Alloc(a), Job::Alloc(b)) | (Job::Free(a), Job::Free(b)) = (&old.job, &new.job)
            && a != b
        {
            return differs(5, Some(new.node));
        }
        if let (Job::Work(Work::Kernel(a)), Job::Work(Work::Kernel(b))) = (&old.job, &new.job)
            && a.launch.device != b.launch.device
        {
            return differs(7, Some(new.node));
        }
    }
    for (old, new) in exec.steps.iter_mut().zip(new) {
        old.job = new.job;
    }
    Ok(Ok(()))
}

/// Replaces what one node of an executable does; its kind stays.
pub fn set_job(d: &mut Driver, id: Id, node: Id, job: Job) -> Result {
    let exec = d.execs.get_mut(&id).ok_or(Code::INVALID_VALUE)?;
    let step = exec.steps.iter_mut().find(|s| s.node == node).ok_or(Code::INVALID_VALUE)?;
    if step.job.kind() != job.kind() {
        return Err(Code::INVALID_VALUE);
    }
    step.job = job;
    Ok(())
}

/// Switches a kernel, copy or memset node of an executable on or off; without a value tells which it is.
pub fn set_enabled(d: &mut Driver, id: Id, node: Id, enabled: Option<bool>) -> Result<bool> {
    let exec = d.execs.get_mut(&id).ok_or(Code::INVALID_VALUE)?;
    let step = exec.steps.iter_mut().find(|s| s.node == node).ok_or(Code::INVALID_VALUE)?;
    if step.job.kind() > 2 {
        return Err(Code::INVALID_VALUE);
    }
    step.enabled = enabled.unwrap_or(step.enabled);
    Ok(step.enabled)
}
