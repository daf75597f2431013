//! Instantiated graphs.

use std::ffi::{c_char, c_void};

use super::arg::{In, Out};
use super::entries;
use super::node::{KernelNodeV1, copy_job, fill_job, host_job, kernel_job, kernel_of};
use crate::abi::{Copy3d, Handle, HostNode, InstantiateParams, KernelNode, MemsetNode, UpdateInfo};
use crate::code::{Code, Result};
use crate::graph::{self, Job};
use crate::state::{Held, Id};
use crate::stream;
use crate::work::Work;

fn instantiate(d: &mut Held, exec: Out<Handle>, g: Handle, flags: u64) -> Result {
    if exec.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    exec.set(graph::instantiate(d, Id::of(g), flags)?.handle())
}

fn set_kernel(d: &mut Held, exec: Handle, node: Handle, params: &KernelNode) -> Result {
    let old = kernel_of(d, node)?.clone();
    let job = kernel_job(d, params, Some(&old))?;
    graph::set_job(d, Id::of(exec), Id::of(node), job)
}

fn update(d: &mut Held, exec: Handle, g: Handle) -> Result<(u32, Handle)> {
    let nothing = std::ptr::null_mut();
    Ok(match graph::update(d, Id::of(exec), Id::of(g))? {
        Ok(()) => (0, nothing),
        Err(mismatch) => (mismatch.result, mismatch.node.map_or(nothing, Id::handle)),
    })
}

entries! {
    /// Makes a graph executable.
    live fn cuGraphInstantiateWithFlags(d, exec: Out<Handle>, graph: Handle, flags: u64) {
        instantiate(d, exec, graph, flags)
    }

    /// Makes a graph executable, the old way.
    live fn cuGraphInstantiate_v2(d, exec: Out<Handle>, graph: Handle, node: Out<Handle>, _log: *mut c_char, _bytes: usize) {
        node.set_if_wanted(std::ptr::null_mut());
        instantiate(d, exec, graph, 0)
    }

    /// Makes a graph executable and says how that went.
    live fn cuGraphInstantiateWithParams(d, exec: Out<Handle>, graph: Handle, params: Out<InstantiateParams>) {
        const UPLOAD: u64 = 2;
        const FAILED: u32 = 1;
        let mut asked = params.get()?;
        if asked.flags & UPLOAD != 0 {
            stream::resolve(d, asked.upload_stream)?;
        }
        let made = instantiate(d, exec, graph, asked.flags);
        asked.error_node = std::ptr::null_mut();
        asked.result = if made.is_ok() { 0 } else { FAILED };
        params.set(asked)?;
        made
    }

    /// Its flags.
    live fn cuGraphExecGetFlags(d, exec: Handle, flags: Out<u64>) {
        flags.set(d.execs.get(&Id::of(exec)).ok_or(Code::INVALID_VALUE)?.flags)
    }

    /// Launches it.
    live fn cuGraphLaunch(d, exec: Handle, stream: Handle) {
        let stream = stream::resolve(d, stream)?;
        graph::launch(d, Id::of(exec), stream)
    }

    /// There is nothing to upload.
    live fn cuGraphUpload(d, exec: Handle, stream: Handle) {
        stream::resolve(d, stream)?;
        d.execs.get(&Id::of(exec)).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    /// Destroys it.
    ready fn cuGraphExecDestroy(d, exec: Handle) {
        graph::destroy_exec(d, Id::of(exec))
    }

    /// Takes over the parameters of a graph of the same shape.
    live fn cuGraphExecUpdate(d, exec: Handle, graph: Handle, node: Out<Handle>, result: Out<u32>) {
        let (why, at) = update(d, exec, graph)?;
        node.set_if_wanted(at);
        result.set_if_wanted(why);
        if why == 0 { Ok(()) } else { Err(Code::GRAPH_EXEC_UPDATE_FAILURE) }
    }

    /// Takes over the parameters of a graph of the same shape.
    live fn cuGraphExecUpdate_v2(d, exec: Handle, graph: Handle, info: Out<UpdateInfo>) {
        let (result, node) = update(d, exec, graph)?;
        info.set_if_wanted(UpdateInfo { result, node, from: std::ptr::null_mut() });
        if result == 0 { Ok(()) } else { Err(Code::GRAPH_EXEC_UPDATE_FAILURE) }
    }

    /// Changes a kernel.
    live fn cuGraphExecKernelNodeSetParams(d, exec: Handle, node: Handle, params: In<KernelNodeV1>) {
        set_kernel(d, exec, node, &params.get()?.widen())
    }

    /// Changes a kernel.
    live fn cuGraphExecKernelNodeSetParams_v2(d, exec: Handle, node: Handle, params: In<KernelNode>) {
        set_kernel(d, exec, node, &params.get()?)
    }

    /// Changes a copy.
    live fn cuGraphExecMemcpyNodeSetParams(d, exec: Handle, node: Handle, params: In<Copy3d>, _context: *mut c_void) {
        let job = copy_job(d, &params.get()?)?;
        graph::set_job(d, Id::of(exec), Id::of(node), job)
    }

    /// Changes a memset.
    live fn cuGraphExecMemsetNodeSetParams(d, exec: Handle, node: Handle, params: In<MemsetNode>, _context: *mut c_void) {
        let job = fill_job(d, &params.get()?)?;
        graph::set_job(d, Id::of(exec), Id::of(node), job)
    }

    /// Changes a host function.
    live fn cuGraphExecHostNodeSetParams(d, exec: Handle, node: Handle, params: In<HostNode>) {
        graph::set_job(d, Id::of(exec), Id::of(node), host_job(&params.get()?)?)
    }

    /// Changes the event of a record.
    live fn cuGraphExecEventRecordNodeSetEvent(d, exec: Handle, node: Handle, event: Handle) {
        crate::event::get(d, Id::of(event))?;
        graph::set_job(d, Id::of(exec), Id::of(node), Work::Record(Id::of(event)).into())
    }

    /// Changes the event of a wait.
    live fn cuGraphExecEventWaitNodeSetEvent(d, exec: Handle, node: Handle, event: Handle) {
        crate::event::get(d, Id::of(event))?;
        graph::set_job(d, Id::of(exec), Id::of(node), Job::Wait(Id::of(event)))
    }

    /// Switches a node on or off.
    live fn cuGraphNodeSetEnabled(d, exec: Handle, node: Handle, enabled: u32) {
        graph::set_enabled(d, Id::of(exec), Id::of(node), Some(enabled != 0)).map(|_| ())
    }

    /// Whether a node is on.
    live fn cuGraphNodeGetEnabled(d, exec: Handle, node: Handle, enabled: Out<u32>) {
        enabled.set(graph::set_enabled(d, Id::of(exec), Id::of(node), None)?.into())
    }
}
