//! Graphs: their structure.

use super::arg::{In, Out};
use super::entries;
use crate::abi::{EdgeData, Handle};
use crate::code::{Code, Result};
use crate::graph::{self, Edge, Job};
use crate::state::{Driver, Held, Id};
use crate::work::Work;

/// The edge type of programmatic dependencies.
const PROGRAMMATIC: u8 = 1;

/// Dependencies as nodes add them.
pub fn dependencies(nodes: In<Handle>, count: usize) -> Result<Vec<Edge>> {
    let edge = |handle| Edge { from: Id::of(handle), programmatic: false };
    Ok(nodes.list(count)?.into_iter().map(edge).collect())
}

/// Answers with a list: the count when there is no array, else as many as fit, and how many those were.
fn give<T>(values: Vec<T>, array: Out<T>, count: Out<usize>) -> Result {
    if array.is_null() {
        return count.set(values.len());
    }
    let room = count.get()?;
    count.set(values.len().min(room))?;
    array.fill(values.into_iter().take(room));
    Ok(())
}

fn handles(ids: Vec<Id>) -> Vec<Handle> {
    ids.into_iter().map(Id::handle).collect()
}

fn edge_data(programmatic: bool) -> EdgeData {
    EdgeData {
        from_port: u8::from(programmatic),
        kind: if programmatic { PROGRAMMATIC } else { 0 },
        ..EdgeData::default()
    }
}

fn edges(
    d: &Driver,
    g: Handle,
    from: Out<Handle>,
    to: Out<Handle>,
    data: Out<EdgeData>,
    count: Out<usize>,
) -> Result {
    let edges = graph::get(d, Id::of(g))?.edges();
    if from.is_null() && to.is_null() {
        return count.set(edges.len());
    }
    if from.is_null() || to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let room = count.get()?;
    count.set(edges.len().min(room))?;
    from.fill(edges.iter().take(room).map(|e| e.0.handle()));
    to.fill(edges.iter().take(room).map(|e| e.1.handle()));
    if !data.is_null() {
        data.fill(edges.iter().take(room).map(|e| edge_data(e.2)));
    }
    Ok(())
}

fn connect(
    d: &mut Held,
    g: Handle,
    from: In<Handle>,
    to: In<Handle>,
    data: In<EdgeData>,
    count: usize,
) -> Result {
    let data = if data.is_null() { vec![EdgeData::default(); count] } else { data.list(count)? };
    let ends = from.list(count)?.into_iter().zip(to.list(count)?).zip(data);
    let edges: Vec<_> = ends.map(|((f, t), e)| (Id::of(f), Id::of(t), e.kind == PROGRAMMATIC)).collect();
    graph::connect(d, Id::of(g), &edges)
}

fn disconnect(d: &mut Held, g: Handle, from: In<Handle>, to: In<Handle>, count: usize) -> Result {
    let edges: Vec<_> =
        from.list(count)?.into_iter().zip(to.list(count)?).map(|(f, t)| (Id::of(f), Id::of(t))).collect();
    graph::disconnect(d, Id::of(g), &edges)
}

fn before(d: &Driver, node: Handle, nodes: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) -> Result {
    let after = graph::node(d, Id::of(node))?.after.clone();
    if !data.is_null() {
        data.fill(after.iter().take(count.get()?).map(|e| edge_data(e.programmatic)));
    }
    give(after.iter().map(|e| e.from.handle()).collect(), nodes, count)
}

fn behind(d: &Driver, node: Handle, nodes: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) -> Result {
    let dependents = graph::dependents(d, Id::of(node))?;
    if !data.is_null() {
        data.fill(dependents.iter().take(count.get()?).map(|_| EdgeData::default()));
    }
    give(handles(dependents), nodes, count)
}

entries! {
    /// An empty graph.
    live fn cuGraphCreate(d, graph: Out<Handle>, flags: u32) {
        if flags != 0 || graph.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let here = d.here()?;
        graph.set(graph::create(d, Some(here)).handle())
    }

    /// Destroys a graph.
    ready fn cuGraphDestroy(d, graph: Handle) {
        let id = Id::of(graph);
        if graph::get(d, id)?.owned {
            return Err(Code::INVALID_VALUE);
        }
        graph::destroy(d, id)
    }

    /// Copies a graph.
    live fn cuGraphClone(d, clone: Out<Handle>, graph: Handle) {
        clone.set(graph::clone(d, Id::of(graph))?.handle())
    }

    /// The node of a clone that was made from a node.
    live fn cuGraphNodeFindInClone(d, found: Out<Handle>, node: Handle, clone: Handle) {
        let graph = graph::get(d, Id::of(clone))?;
        let made = graph.origin.iter().find(|(_, from)| **from == Id::of(node)).map(|(made, _)| *made);
        found.set(made.ok_or(Code::INVALID_VALUE)?.handle())
    }

    /// Adds a node that does nothing.
    live fn cuGraphAddEmptyNode(d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize) {
        node.set(graph::add(d, Id::of(graph), Work::Nothing.into(), dependencies(after, count)?)?.handle())
    }

    /// Adds a graph as a node.
    live fn cuGraphAddChildGraphNode(d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, child: Handle) {
        node.set(graph::add_child(d, Id::of(graph), Id::of(child), dependencies(after, count)?)?.handle())
    }

    /// The graph inside such a node.
    live fn cuGraphChildGraphNodeGetGraph(d, node: Handle, child: Out<Handle>) {
        match graph::node(d, Id::of(node))?.job {
            Job::Child(id) => child.set(id.handle()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Removes a node.
    live fn cuGraphDestroyNode(d, node: Handle) {
        graph::destroy_node(d, Id::of(node))
    }

    /// Its type.
    live fn cuGraphNodeGetType(d, node: Handle, kind: Out<u32>) {
        kind.set(graph::node(d, Id::of(node))?.job.kind())
    }

    /// Nodes, in the order of their creation.
    live fn cuGraphGetNodes(d, graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        give(handles(graph::get(d, Id::of(graph))?.nodes.keys().copied().collect()), nodes, count)
    }

    /// Nodes that depend on nothing.
    live fn cuGraphGetRootNodes(d, graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        give(handles(graph::get(d, Id::of(graph))?.roots()), nodes, count)
    }

    /// Dependencies of the whole graph.
    live fn cuGraphGetEdges(d, graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>) {
        edges(d, graph, from, to, super::arg::nowhere(), count)
    }

    /// The same with their kind.
    live fn cuGraphGetEdges_v2(d, graph: Handle, from: Out<Handle>, to: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) {
        edges(d, graph, from, to, data, count)
    }

    /// What a node depends on.
    live fn cuGraphNodeGetDependencies(d, node: Handle, nodes: Out<Handle>, count: Out<usize>) {
        before(d, node, nodes, super::arg::nowhere(), count)
    }

    /// The same with the kind.
    live fn cuGraphNodeGetDependencies_v2(d, node: Handle, nodes: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) {
        before(d, node, nodes, data, count)
    }

    /// What depends on a node.
    live fn cuGraphNodeGetDependentNodes(d, node: Handle, nodes: Out<Handle>, count: Out<usize>) {
        behind(d, node, nodes, super::arg::nowhere(), count)
    }

    /// The same with the kind.
    live fn cuGraphNodeGetDependentNodes_v2(d, node: Handle, nodes: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) {
        behind(d, node, nodes, data, count)
    }

    /// Adds dependencies.
    live fn cuGraphAddDependencies(d, graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) {
        connect(d, graph, from, to, super::arg::nothing(), count)
    }

    /// The same with their kind.
    live fn cuGraphAddDependencies_v2(d, graph: Handle, from: In<Handle>, to: In<Handle>, data: In<EdgeData>, count: usize) {
        connect(d, graph, from, to, data, count)
    }

    /// Removes dependencies.
    live fn cuGraphRemoveDependencies(d, graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) {
        disconnect(d, graph, from, to, count)
    }

    /// The same.
    live fn cuGraphRemoveDependencies_v2(d, graph: Handle, from: In<Handle>, to: In<Handle>, _data: In<EdgeData>, count: usize) {
        disconnect(d, graph, from, to, count)
    }
}
