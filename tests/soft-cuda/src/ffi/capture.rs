//! Stream capture.

use super::arg::{In, Out};
use super::entries;
use crate::abi::{EdgeData, Handle};
use crate::capture::{self, Info};
use crate::code::{Code, Result};
use crate::state::{Held, Id};
use crate::stream;

/// Capture states: none, active, invalidated.
const STATES: [u32; 3] = [0, 1, 2];

struct Answer {
    state: Out<u32>,
    id: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<*const usize>,
    edges: Out<*const EdgeData>,
    count: Out<usize>,
}

fn info(d: &mut Held, handle: Handle, to: &Answer) -> Result {
    let stream = stream::resolve(d, handle)?;
    let Some(Info { invalid, id, graph, frontier }) = capture::info(d, stream)? else {
        return to.state.set(STATES[0]);
    };
    to.state.set(if invalid { STATES[2] } else { STATES[1] })?;
    to.id.set_if_wanted(id.0);
    if invalid {
        return Ok(());
    }
    to.graph.set_if_wanted(graph.handle());
    to.count.set_if_wanted(frontier.len());
    if to.dependencies.is_null() && to.edges.is_null() {
        return Ok(());
    }
    let edges = vec![EdgeData::default(); frontier.len()];
    let stream = stream::get_mut(d, stream)?;
    stream.shown = (frontier.iter().map(|n| n.0 as usize).collect(), edges);
    to.dependencies.set_if_wanted(stream.shown.0.as_ptr());
    to.edges.set_if_wanted(stream.shown.1.as_ptr());
    Ok(())
}

fn update(d: &mut Held, handle: Handle, nodes: In<Handle>, count: usize, flags: u32) -> Result {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let stream = stream::resolve(d, handle)?;
    let nodes = nodes.list(count)?.into_iter().map(Id::of).collect();
    capture::set_dependencies(d, stream, nodes, flags == 1)
}

entries! {
    /// Begins a capture.
    live fn cuStreamBeginCapture_v2(d, handle: Handle, mode: u32) {
        let stream = stream::resolve(d, handle)?;
        capture::begin(d, stream, mode, None)
    }

    /// Begins a capture into a graph of the program's.
    live fn cuStreamBeginCaptureToGraph(
        d, handle: Handle, graph: Handle, nodes: In<Handle>, _edges: In<EdgeData>, count: usize, mode: u32,
    ) {
        let stream = stream::resolve(d, handle)?;
        let nodes = nodes.list(count)?.into_iter().map(Id::of).collect();
        capture::begin(d, stream, mode, Some((Id::of(graph), nodes)))
    }

    /// Ends a capture: its graph, or null and the reason.
    live fn cuStreamEndCapture(d, handle: Handle, graph: Out<Handle>) {
        let stream = stream::resolve(d, handle)?;
        graph.set_if_wanted(std::ptr::null_mut());
        let made = capture::end(d, stream)?;
        graph.set(made.handle())
    }

    /// Whether a stream captures.
    live fn cuStreamIsCapturing(d, handle: Handle, state: Out<u32>) {
        let stream = stream::resolve(d, handle)?;
        state.set(match capture::info(d, stream)? {
            None => STATES[0],
            Some(info) => STATES[1 + usize::from(info.invalid)],
        })
    }

    /// State and number.
    live fn cuStreamGetCaptureInfo(d, handle: Handle, state: Out<u32>, id: Out<u64>) {
        let stream = stream::resolve(d, handle)?;
        match capture::info(d, stream)? {
            None => state.set(STATES[0]),
            Some(info) => {
                id.set_if_wanted(info.id.0);
                state.set(STATES[1 + usize::from(info.invalid)])
            }
        }
    }

    /// State, number, graph, frontier.
    live fn cuStreamGetCaptureInfo_v2(
        d, handle: Handle, state: Out<u32>, id: Out<u64>, graph: Out<Handle>, dependencies: Out<*const usize>, count: Out<usize>,
    ) {
        // A null place, since this variant does not ask for edges.
        let edges = super::arg::nowhere();
        info(d, handle, &Answer { state, id, graph, dependencies, edges, count })
    }

    /// State, number, graph, frontier with edges.
    live fn cuStreamGetCaptureInfo_v3(
        d, handle: Handle, state: Out<u32>, id: Out<u64>, graph: Out<Handle>, dependencies: Out<*const usize>,
        edges: Out<*const EdgeData>, count: Out<usize>,
    ) {
        info(d, handle, &Answer { state, id, graph, dependencies, edges, count })
    }

    /// Changes what the next captured operation depends on.
    live fn cuStreamUpdateCaptureDependencies(d, handle: Handle, nodes: In<Handle>, count: usize, flags: u32) {
        update(d, handle, nodes, count, flags)
    }

    /// The same with edges (all plain).
    live fn cuStreamUpdateCaptureDependencies_v2(
        d, handle: Handle, nodes: In<Handle>, _edges: In<EdgeData>, count: usize, flags: u32,
    ) {
        update(d, handle, nodes, count, flags)
    }

    /// Exchanges how the calling thread takes part in captures.
    ready fn cuThreadExchangeStreamCaptureMode(_, mode: Out<u32>) {
        mode.set(capture::exchange(mode.get()?)?)
    }
}
