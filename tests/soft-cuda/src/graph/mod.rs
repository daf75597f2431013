//! Graphs: operations with explicit dependencies, made by capture or node by node.
//!
//! A graph is a recipe; [`Exec`] is what is launched. Nodes are handles of their own kind, unique over all
//! graphs, and a graph holds them in the order of their creation, which is also what `cuGraphExecUpdate`
//! compares.

mod exec;

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{Code, Result};
use crate::memory;
use crate::state::{Driver, Id};
use crate::user;
use crate::work::Work;

pub use exec::{Exec, destroy as destroy_exec, instantiate, launch, set_enabled, set_job, sweep, update};

/// What a node does.
#[derive(Debug, Clone)]
pub enum Job {
    /// An operation of the queue.
    Work(Work),
    /// Waits for an event of outside the graph.
    Wait(Id),
    /// A graph inside the graph: its handle (the node owns it).
    Child(Id),
    /// Memory that is there from this node on.
    Alloc(u64),
    /// The end of such memory's use.
    Free(u64),
}

impl From<Work> for Job {
    fn from(work: Work) -> Self {
        Job::Work(work)
    }
}

impl Job {
    /// Its `CUgraphNodeType`.
    pub fn kind(&self) -> u32 {
        match self {
            Job::Work(Work::Kernel(_)) => 0,
            Job::Work(Work::Copy(_)) => 1,
            Job::Work(Work::Fill(_)) => 2,
            Job::Work(Work::Call(_)) => 3,
            Job::Child(_) => 4,
            Job::Work(Work::Nothing | Work::Alloc(_) | Work::Free(_)) => 5,
            Job::Wait(_) => 6,
            Job::Work(Work::Record(_)) => 7,
            Job::Alloc(_) => 10,
            Job::Free(_) => 11,
        }
    }
}

/// A dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// The node to wait for.
    pub from: Id,
    /// Only its programmatic trigger is waited for (kernel to kernel).
    pub programmatic: bool,
}

/// A node.
#[derive(Debug, Clone)]
pub struct Node {
    /// What it does.
    pub job: Job,
    /// What it waits for.
    pub after: Vec<Edge>,
    /// Pointers to its kernel's arguments, for whoever asked for them.
    pub pointers: Vec<usize>,
}

/// A graph.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// The context it was captured in.
    pub context: Option<Id>,
    /// Its nodes.
    pub nodes: BTreeMap<Id, Node>,
    /// In a clone: the node each node was made from.
    pub origin: BTreeMap<Id, Id>,
    /// It is a node's child and goes with that.
    pub owned: bool,
    /// User objects it holds.
    pub objects: user::Held,
}

impl Graph {
    /// These nodes and all before them.
    pub fn ancestors(&self, nodes: &[Id]) -> BTreeSet<Id> {
        let mut seen = BTreeSet::new();
        let mut open: Vec<Id> = nodes.to_vec();
        while let Some(id) = open.pop() {
            if seen.insert(id)
                && let Some(node) = self.nodes.get(&id)
            {
                open.extend(node.after.iter().map(|e| e.from));
            }
        }
        seen
    }

    /// All edges, by the node they lead to.
    pub fn edges(&self) -> Vec<(Id, Id, bool)> {
        let of = |(&to, node): (&Id, &Node)| {
            node.after.iter().map(|e| (e.from, to, e.programmatic)).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    /// Nodes without dependencies.
    pub fn roots(&self) -> Vec<Id> {
        self.nodes.iter().filter(|(_, n)| n.after.is_empty()).map(|(&id, _)| id).collect()
    }
}

/// An empty graph.
pub fn create(d: &mut Driver, context: Option<Id>) -> Id {
    let id = d.id();
    d.graphs.insert(id, Graph { context, ..Graph::default() });
    id
}

/// The graph itself.
pub fn get(d: &Driver, id: Id) -> Result<&Graph> {
    d.graphs.get(&id).ok_or(Code::INVALID_VALUE)
}

/// A node by its handle.
pub fn node(d: &Driver, id: Id) -> Result<&Node> {
    let graph = d.nodes.get(&id).ok_or(Code::INVALID_VALUE)?;
    get(d, *graph)?.nodes.get(&id).ok_or(Code::INVALID_VALUE)
}

/// A node by its handle, to change it.
pub fn node_mut(d: &mut Driver, id: Id) -> Result<&mut Node> {
    let graph = d.nodes.get(&id).ok_or(Code::INVALID_VALUE)?;
    d.graphs.get_mut(graph).and_then(|g| g.nodes.get_mut(&id)).ok_or(Code::INVALID_VALUE)
}

fn check_members(d: &Driver, graph: Id, nodes: impl IntoIterator<Item = Id>) -> Result {
    get(d, graph)?;
    if nodes.into_iter().all(|n| d.nodes.get(&n) == Some(&graph)) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// Adds a node.
pub fn add(d: &mut Driver, graph: Id, job: Job, after: Vec<Edge>) -> Result<Id> {
    check_members(d, graph, after.iter().map(|e| e.from))?;
    if let Job::Alloc(address) = job {
        memory::hold_graph_memory(d, address);
    }
    let id = d.id();
    d.nodes.insert(id, graph);
    if let Some(graph) = d.graphs.get_mut(&graph) {
        graph.nodes.insert(id, Node { job, after, pointers: Vec::new() });
    }
    Ok(id)
}

/// Adds a node that is a copy of another graph.
pub fn add_child(d: &mut Driver, graph: Id, child: Id, after: Vec<Edge>) -> Result<Id> {
    let copy = clone(d, child)?;
    if let Some(copy) = d.graphs.get_mut(&copy) {
        copy.owned = true;
    }
    add(d, graph, Job::Child(copy), after)
}

/// Adds dependencies.
pub fn connect(d: &mut Driver, graph: Id, edges: &[(Id, Id, bool)]) -> Result {
    check_members(d, graph, edges.iter().flat_map(|e| [e.0, e.1]))?;
    for &(from, to, programmatic) in edges {
        let ancestors = get(d, graph)?.ancestors(&[from]);
        if ancestors.contains(&to) {
            // A cycle.
            return Err(Code::INVALID_VALUE);
        }
        let node = node_mut(d, to)?;
        if node.after.iter().any(|e| e.from == from) {
            return Err(Code::INVALID_VALUE);
        }
        node.after.push(Edge { from, programmatic });
    }
    Ok(())
}

/// Removes dependencies.
pub fn disconnect(d: &mut Driver, graph: Id, edges: &[(Id, Id)]) -> Result {
    check_members(d, graph, edges.iter().flat_map(|e| [e.0, e.1]))?;
    for &(from, to) in edges {
        let node = node_mut(d, to)?;
        let before = node.after.len();
        node.after.retain(|e| e.from != from);
        if node.after.len() == before {
            return Err(Code::INVALID_VALUE);
        }
    }
    Ok(())
}

/// Nodes that depend on a node.
pub fn dependents(d: &Driver, id: Id) -> Result<Vec<Id>> {
    let graph = get(d, *d.nodes.get(&id).ok_or(Code::INVALID_VALUE)?)?;
    let after = |n: &Node| n.after.iter().any(|e| e.from == id);
    Ok(graph.nodes.iter().filter(|(_, n)| after(n)).map(|(&id, _)| id).collect())
}

/// Removes a node and its edges.
pub fn destroy_node(d: &mut Driver, id: Id) -> Result {
    let graph = d.nodes.remove(&id).ok_or(Code::INVALID_VALUE)?;
    let Some(graph) = d.graphs.get_mut(&graph) else { return Err(Code::INVALID_VALUE) };
    let gone = graph.nodes.remove(&id);
    for node in graph.nodes.values_mut() {
        node.after.retain(|e| e.from != id);
    }
    if let Some(node) = gone {
        release(d, &node.job);
    }
    Ok(())
}

fn release(d: &mut Driver, job: &Job) {
    match job {
        Job::Alloc(address) => memory::drop_graph_memory(d, *address),
        // The node was the child's only owner.
        Job::Child(child) => drop(destroy(d, *child)),
        _ => {}
    }
}

/// Destroys a graph with its nodes; what was instantiated from it lives on.
pub fn destroy(d: &mut Driver, id: Id) -> Result {
    let graph = d.graphs.remove(&id).ok_or(Code::INVALID_VALUE)?;
    for (node, content) in &graph.nodes {
        d.nodes.remove(node);
        release(d, &content.job);
    }
    user::drop_all(d, graph.objects);
    Ok(())
}

/// A copy with nodes of its own.
pub fn clone(d: &mut Driver, id: Id) -> Result<Id> {
    let original = get(d, id)?.clone();
    let copy = create(d, original.context);
    let mut made = BTreeMap::new();
    // Creation order need not be dependency order (edges can be added later): nodes first, then edges.
    for (&node, content) in &original.nodes {
        let new = match &content.job {
            Job::Child(child) => add_child(d, copy, *child, Vec::new())?,
            job => add(d, copy, job.clone(), Vec::new())?,
        };
        made.insert(node, new);
    }
    for (node, content) in &original.nodes {
        let edges = content.after.iter().filter_map(|e| made.get(&e.from).map(|&from| Edge { from, ..*e }));
        node_mut(d, made[node])?.after = edges.collect();
    }
    if let Some(graph) = d.graphs.get_mut(&copy) {
        graph.origin = made.iter().map(|(&from, &to)| (to, from)).collect();
        graph.objects.clone_from(&original.objects);
    }
    user::share(d, &original.objects);
    Ok(copy)
}

/// Destroys graphs and executables of a context that goes.
pub fn drop_context(d: &mut Driver, context: Id) {
    let execs: Vec<Id> = d.execs.iter().filter(|(_, e)| e.context == context).map(|(&id, _)| id).collect();
    for id in execs {
        exec::remove(d, id);
    }
    let graphs: Vec<Id> =
        d.graphs.iter().filter(|(_, g)| g.context == Some(context) && !g.owned).map(|(&id, _)| id).collect();
    for id in graphs {
        // It was in the table a moment ago; its children go with it.
        let _ = destroy(d, id);
    }
}
