//! Nodes: adding them, reading and changing what they do.

use std::ffi::c_void;

use super::arg::{In, Out};
use super::copy::three_sides;
use super::entries;
use super::graph::dependencies;
use super::launch::{arguments, attributes};
use crate::abi::{
    AllocNode, AttributeValue, Copy3d, Handle, HostNode, KernelNode, LaunchAttribute, MemsetNode,
};
use crate::code::{Code, Result};
use crate::copy;
use crate::graph::{self, Job};
use crate::launch::{self, Config};
use crate::module;
use crate::refusal::unsupported;
use crate::state::{Driver, Held, Id};
use crate::work::{Fill, HostCall, HostPointer, KernelWork, Place, Plane, Transfer, Work};

/// A kernel job of a node's parameters; `old` lends its attributes.
pub fn kernel_job(d: &mut Driver, p: &KernelNode, old: Option<&KernelWork>) -> Result<Job> {
    let function = module::get(d, Id::of(if p.function.is_null() { p.kernel } else { p.function }))?;
    let params = arguments(d, function, p.params, p.extra)?;
    let mut config = Config::new(p.grid, p.block, p.shared);
    if let Some(old) = old {
        config.cooperative = old.launch.cooperative;
        config.programmatic = old.programmatic;
        config.cluster = (old.launch.cluster != [1; 3]).then_some(old.launch.cluster);
    }
    let work = launch::prepare(d, function, &config, params)?;
    Ok(Job::Work(Work::Kernel(Box::new(work))))
}

/// A copy job of a node's parameters.
pub fn copy_job(d: &Driver, p: &Copy3d) -> Result<Job> {
    let (to, from, extent) = three_sides(p)?;
    let transfer = copy::transfer(d, to, from, extent)?.ok_or(Code::INVALID_VALUE)?;
    Ok(Job::Work(Work::Copy(Box::new(transfer))))
}

/// A memset job of a node's parameters.
pub fn fill_job(d: &Driver, p: &MemsetNode) -> Result<Job> {
    if !matches!(p.element, 1 | 2 | 4) {
        return Err(Code::INVALID_VALUE);
    }
    let fill = Fill {
        address: p.dst,
        pitch: p.pitch,
        value: p.value,
        element: p.element,
        width: p.width,
        height: p.height,
    };
    if copy::check_fill(d, &fill)? { Ok(Job::Work(Work::Fill(fill))) } else { Err(Code::INVALID_VALUE) }
}

/// A host job of a node's parameters.
pub fn host_job(p: &HostNode) -> Result<Job> {
    let function = p.function.ok_or(Code::INVALID_VALUE)?;
    Ok(Job::Work(Work::Call(HostCall::Function(function, HostPointer(p.data.cast())))))
}

fn add(d: &mut Held, node: Out<Handle>, g: Handle, after: In<Handle>, count: usize, job: Job) -> Result {
    if node.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    node.set(graph::add(d, Id::of(g), job, dependencies(after, count)?)?.handle())
}

/// Replaces a node's job by one of the same kind.
fn set(d: &mut Driver, node: Handle, job: Job) -> Result {
    let node = graph::node_mut(d, Id::of(node))?;
    if node.job.kind() != job.kind() {
        return Err(Code::INVALID_VALUE);
    }
    node.job = job;
    Ok(())
}

/// The kernel of a node.
pub fn kernel_of(d: &Driver, node: Handle) -> Result<&KernelWork> {
    match &graph::node(d, Id::of(node))?.job {
        Job::Work(Work::Kernel(kernel)) => Ok(kernel),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn kernel_params(d: &mut Driver, handle: Handle) -> Result<KernelNode> {
    let kernel = kernel_of(d, handle)?;
    let offsets: Vec<usize> = match d.functions.get(&kernel.function) {
        Some(function) => function.kernel.parameters.iter().map(|p| p.offset as usize).collect(),
        None => return Err(Code::INVALID_HANDLE),
    };
    let (function, launch) = (kernel.function, &kernel.launch);
    let (grid, block, shared) = (launch.grid, launch.block, launch.dynamic_shared);
    // The arguments live in the node until its parameters change, which is as long as the interface promises.
    let base = launch.params.as_ptr() as usize;
    let node = graph::node_mut(d, Id::of(handle))?;
    node.pointers = offsets.into_iter().map(|o| base + o).collect();
    let params = node.pointers.as_mut_ptr().cast::<Handle>();
    let nothing = std::ptr::null_mut();
    let (extra, kernel, context) = (std::ptr::null_mut(), nothing, nothing);
    Ok(KernelNode { function: function.handle(), grid, block, shared, params, extra, kernel, context })
}

/// One side as the structure names it: type, host pointer, device address.
fn side(plane: &Plane) -> (u32, *mut c_void, u64) {
    match &plane.place {
        Place::Address(address) => (4, std::ptr::null_mut(), *address),
        Place::Host(pointer) => (1, pointer.0.cast(), 0),
        Place::Staged(bytes) => (1, bytes.as_ptr() as *mut c_void, 0),
    }
}

fn copy_params(transfer: &Transfer) -> Copy3d {
    let (src_type, src_host, src_device) = side(&transfer.from);
    let (dst_type, dst_host, dst_device) = side(&transfer.to);
    let rows = |p: &Plane| p.slice.checked_div(p.pitch).unwrap_or(0);
    let nothing = std::ptr::null_mut();
    Copy3d {
        src_x: 0,
        src_y: 0,
        src_z: 0,
        src_lod: 0,
        src_type,
        src_host,
        src_device,
        src_array: nothing,
        src_context: nothing,
        src_pitch: transfer.from.pitch,
        src_height: rows(&transfer.from),
        dst_x: 0,
        dst_y: 0,
        dst_z: 0,
        dst_lod: 0,
        dst_type,
        dst_host,
        dst_device,
        dst_array: nothing,
        dst_context: nothing,
        dst_pitch: transfer.to.pitch,
        dst_height: rows(&transfer.to),
        width: transfer.width,
        height: transfer.height,
        depth: transfer.depth,
    }
}

/// The first fields, which are all of version 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNodeV1([usize; 7]);

const _: () = assert!(std::mem::size_of::<KernelNodeV1>() == std::mem::offset_of!(KernelNode, kernel));

impl KernelNodeV1 {
    /// As version 2, without kernel and context.
    pub fn widen(self) -> KernelNode {
        let nothing = std::ptr::null_mut();
        let low = |i: usize| (self.0[i] & 0xFFFF_FFFF) as u32;
        let high = |i: usize| (self.0[i] >> 32) as u32;
        KernelNode {
            function: self.0[0] as Handle,
            grid: [low(1), high(1), low(2)],
            block: [high(2), low(3), high(3)],
            shared: low(4),
            params: self.0[5] as *mut Handle,
            extra: self.0[6] as *mut Handle,
            kernel: nothing,
            context: nothing,
        }
    }

    fn narrow(p: &KernelNode) -> Self {
        let pair = |a: u32, b: u32| a as usize | (b as usize) << 32;
        let [gx, gy, gz] = p.grid;
        let [bx, by, bz] = p.block;
        let words = [pair(gx, gy), pair(gz, bx), pair(by, bz), pair(p.shared, 0)];
        KernelNodeV1([
            p.function as usize,
            words[0],
            words[1],
            words[2],
            words[3],
            p.params as usize,
            p.extra as usize,
        ])
    }
}

entries! {
    /// Adds a kernel.
    live fn cuGraphAddKernelNode(
        d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<KernelNodeV1>,
    ) {
        let job = kernel_job(d, &params.get()?.widen(), None)?;
        add(d, node, graph, after, count, job)
    }

    /// Adds a kernel, also one of a library.
    live fn cuGraphAddKernelNode_v2(
        d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<KernelNode>,
    ) {
        let job = kernel_job(d, &params.get()?, None)?;
        add(d, node, graph, after, count, job)
    }

    /// Its parameters.
    live fn cuGraphKernelNodeGetParams(d, node: Handle, params: Out<KernelNodeV1>) {
        params.set(KernelNodeV1::narrow(&kernel_params(d, node)?))
    }

    /// Its parameters.
    live fn cuGraphKernelNodeGetParams_v2(d, node: Handle, params: Out<KernelNode>) {
        params.set(kernel_params(d, node)?)
    }

    /// Changes them.
    live fn cuGraphKernelNodeSetParams(d, node: Handle, params: In<KernelNodeV1>) {
        let old = kernel_of(d, node)?.clone();
        let job = kernel_job(d, &params.get()?.widen(), Some(&old))?;
        set(d, node, job)
    }

    /// Changes them.
    live fn cuGraphKernelNodeSetParams_v2(d, node: Handle, params: In<KernelNode>) {
        let old = kernel_of(d, node)?.clone();
        let job = kernel_job(d, &params.get()?, Some(&old))?;
        set(d, node, job)
    }

    /// A launch attribute of a kernel node: cooperative (2), cluster (4), programmatic (6).
    live fn cuGraphKernelNodeGetAttribute(d, node: Handle, attribute: u32, value: Out<AttributeValue>) {
        let kernel = kernel_of(d, node)?;
        let mut words = [0; 16];
        match attribute {
            2 => words[0] = kernel.launch.cooperative.into(),
            4 => words[..3].copy_from_slice(&kernel.launch.cluster),
            6 => words[0] = kernel.programmatic.into(),
            1 | 8 => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        value.set(AttributeValue(words))
    }

    /// Sets one.
    live fn cuGraphKernelNodeSetAttribute(d, node: Handle, attribute: u32, value: In<AttributeValue>) {
        let old = kernel_of(d, node)?.clone();
        let mut config = Config::new(old.launch.grid, old.launch.block, old.launch.dynamic_shared);
        config.cooperative = old.launch.cooperative;
        config.programmatic = old.programmatic;
        config.cluster = (old.launch.cluster != [1; 3]).then_some(old.launch.cluster);
        attributes(&mut config, &[LaunchAttribute { id: attribute, pad: 0, value: value.get()? }])?;
        let work = launch::prepare(d, old.function, &config, old.launch.params)?;
        set(d, node, Job::Work(Work::Kernel(Box::new(work))))
    }

    /// Adds a copy.
    live fn cuGraphAddMemcpyNode(
        d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<Copy3d>, _context: Handle,
    ) {
        let job = copy_job(d, &params.get()?)?;
        add(d, node, graph, after, count, job)
    }

    /// Its parameters; addresses come back as unified ones with the offsets applied.
    live fn cuGraphMemcpyNodeGetParams(d, node: Handle, params: Out<Copy3d>) {
        match &graph::node(d, Id::of(node))?.job {
            Job::Work(Work::Copy(transfer)) => params.set(copy_params(transfer)),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Changes them.
    live fn cuGraphMemcpyNodeSetParams(d, node: Handle, params: In<Copy3d>) {
        let job = copy_job(d, &params.get()?)?;
        set(d, node, job)
    }

    /// Adds a memset.
    live fn cuGraphAddMemsetNode(
        d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<MemsetNode>, _context: Handle,
    ) {
        let job = fill_job(d, &params.get()?)?;
        add(d, node, graph, after, count, job)
    }

    /// Its parameters.
    live fn cuGraphMemsetNodeGetParams(d, node: Handle, params: Out<MemsetNode>) {
        match graph::node(d, Id::of(node))?.job {
            Job::Work(Work::Fill(f)) => {
                let (dst, pitch, value, element) = (f.address, f.pitch, f.value, f.element);
                params.set(MemsetNode { dst, pitch, value, element, width: f.width, height: f.height })
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Changes them.
    live fn cuGraphMemsetNodeSetParams(d, node: Handle, params: In<MemsetNode>) {
        let job = fill_job(d, &params.get()?)?;
        set(d, node, job)
    }

    /// Adds a function of the program.
    live fn cuGraphAddHostNode(d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<HostNode>) {
        add(d, node, graph, after, count, host_job(&params.get()?)?)
    }

    /// Its parameters.
    live fn cuGraphHostNodeGetParams(d, node: Handle, params: Out<HostNode>) {
        match graph::node(d, Id::of(node))?.job {
            Job::Work(Work::Call(HostCall::Function(function, data))) => {
                params.set(HostNode { function: Some(function), data: data.0.cast() })
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Changes them.
    live fn cuGraphHostNodeSetParams(d, node: Handle, params: In<HostNode>) {
        set(d, node, host_job(&params.get()?)?)
    }

    /// Adds the record of an event.
    live fn cuGraphAddEventRecordNode(d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle) {
        crate::event::get(d, Id::of(event))?;
        add(d, node, graph, after, count, Work::Record(Id::of(event)).into())
    }

    /// Its event.
    live fn cuGraphEventRecordNodeGetEvent(d, node: Handle, event: Out<Handle>) {
        match graph::node(d, Id::of(node))?.job {
            Job::Work(Work::Record(id)) => event.set(id.handle()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Changes it.
    live fn cuGraphEventRecordNodeSetEvent(d, node: Handle, event: Handle) {
        crate::event::get(d, Id::of(event))?;
        set(d, node, Work::Record(Id::of(event)).into())
    }

    /// Adds a wait for an event.
    live fn cuGraphAddEventWaitNode(d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle) {
        crate::event::get(d, Id::of(event))?;
        add(d, node, graph, after, count, Job::Wait(Id::of(event)))
    }

    /// Its event.
    live fn cuGraphEventWaitNodeGetEvent(d, node: Handle, event: Out<Handle>) {
        match graph::node(d, Id::of(node))?.job {
            Job::Wait(id) => event.set(id.handle()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Changes it.
    live fn cuGraphEventWaitNodeSetEvent(d, node: Handle, event: Handle) {
        crate::event::get(d, Id::of(event))?;
        set(d, node, Job::Wait(Id::of(event)))
    }

    /// Adds an allocation; the address is fixed from now on.
    live fn cuGraphAddMemAllocNode(
        d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: Out<AllocNode>,
    ) {
        let mut asked = params.get()?;
        let device = d.device(asked.props.location.id)?;
        if asked.props.location.kind != 1 || device != d.here_device()? {
            return Err(unsupported("an allocation node for another device than the current one"));
        }
        asked.address = crate::memory::allocate_for_graph(d, asked.bytes)?;
        add(d, node, graph, after, count, Job::Alloc(asked.address))?;
        params.set(asked)
    }

    /// Adds the end of an allocation.
    live fn cuGraphAddMemFreeNode(d, node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, address: u64) {
        if d.table.blocks.get(&address).is_none_or(|b| b.graph == 0) {
            return Err(Code::INVALID_VALUE);
        }
        add(d, node, graph, after, count, Job::Free(address))
    }

    /// The address that such a node frees.
    live fn cuGraphMemFreeNodeGetParams(d, node: Handle, address: Out<u64>) {
        match graph::node(d, Id::of(node))?.job {
            Job::Free(at) => address.set(at),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
