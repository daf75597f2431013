//! The C layouts of `cuda.h` 12.8 that this driver reads and writes.
//!
//! Enumerations are plain integers here: a caller may pass any number, and a Rust enum with an unknown number
//! in it would be undefined behaviour before a line of ours had run. A test holds sizes and offsets against
//! cudarc's bindings.

use std::ffi::c_void;

/// An opaque handle or a host pointer.
pub type Handle = *mut c_void;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Copy2d {
    /// First byte in the row of the source.
    pub src_x: usize,
    /// First row of the source.
    pub src_y: usize,
    /// `CUmemorytype` of the source.
    pub src_type: u32,
    /// Host source.
    pub src_host: *const c_void,
    /// Device source.
    pub src_device: u64,
    /// Array source (not supported).
    pub src_array: Handle,
    /// Bytes per row of the source.
    pub src_pitch: usize,
    /// First byte in the row of the destination.
    pub dst_x: usize,
    /// First row of the destination.
    pub dst_y: usize,
    /// `CUmemorytype` of the destination.
    pub dst_type: u32,
    /// Host destination.
    pub dst_host: *mut c_void,
    /// Device destination.
    pub dst_device: u64,
    /// Array destination (not supported).
    pub dst_array: Handle,
    /// Bytes per row of the destination.
    pub dst_pitch: usize,
    /// Bytes to copy per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// `CUDA_MEMCPY3D` and, with contexts in the reserved places, `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Copy3d {
    /// First byte in the row of the source.
    pub src_x: usize,
    /// First row of the source.
    pub src_y: usize,
    /// First slice of the source.
    pub src_z: usize,
    /// Mip level of an array.
    pub src_lod: usize,
    /// `CUmemorytype` of the source.
    pub src_type: u32,
    /// Host source.
    pub src_host: *const c_void,
    /// Device source.
    pub src_device: u64,
    /// Array source (not supported).
    pub src_array: Handle,
    /// Reserved, or the source's context.
    pub src_context: Handle,
    /// Bytes per row of the source.
    pub src_pitch: usize,
    /// Rows per slice of the source.
    pub src_height: usize,
    /// First byte in the row of the destination.
    pub dst_x: usize,
    /// First row of the destination.
    pub dst_y: usize,
    /// First slice of the destination.
    pub dst_z: usize,
    /// Mip level of an array.
    pub dst_lod: usize,
    /// `CUmemorytype` of the destination.
    pub dst_type: u32,
    /// Host destination.
    pub dst_host: *mut c_void,
    /// Device destination.
    pub dst_device: u64,
    /// Array destination (not supported).
    pub dst_array: Handle,
    /// Reserved, or the destination's context.
    pub dst_context: Handle,
    /// Bytes per row of the destination.
    pub dst_pitch: usize,
    /// Rows per slice of the destination.
    pub dst_height: usize,
    /// Bytes to copy per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Slices.
    pub depth: usize,
}

/// `CUlaunchAttribute`: a number and 64 bytes that mean something else for each number.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LaunchAttribute {
    /// `CUlaunchAttributeID`.
    pub id: u32,
    /// Padding.
    pub pad: u32,
    /// The union, as 32-bit words.
    pub value: AttributeValue,
}

/// `CUlaunchAttributeValue` as words (pointers inside it make it 8-aligned).
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
pub struct AttributeValue(pub [u32; 16]);

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// The stream.
    pub stream: Handle,
    /// The attributes.
    pub attributes: *const LaunchAttribute,
    /// How many.
    pub attribute_count: u32,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`; its first fields are those of version 1.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KernelNode {
    /// The function.
    pub function: Handle,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Pointers to the arguments.
    pub params: *mut Handle,
    /// Or a packed parameter block.
    pub extra: *mut Handle,
    /// A kernel of a library, when `function` is null.
    pub kernel: Handle,
    /// The context for such a kernel.
    pub context: Handle,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MemsetNode {
    /// Destination.
    pub dst: u64,
    /// Bytes per row (unused with one row).
    pub pitch: usize,
    /// The element.
    pub value: u32,
    /// 1, 2 or 4 bytes.
    pub element: u32,
    /// Elements per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct HostNode {
    /// The function.
    pub function: Option<unsafe extern "C" fn(*mut c_void)>,
    /// What it is given.
    pub data: *mut c_void,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UpdateInfo {
    /// `CUgraphExecUpdateResult`.
    pub result: u32,
    /// The node of the new graph that does not fit.
    pub node: Handle,
    /// The other end of an edge that does not fit.
    pub from: Handle,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct InstantiateParams {
    /// Flags.
    pub flags: u64,
    /// Stream to upload in.
    pub upload_stream: Handle,
    /// Out: the node to blame.
    pub error_node: Handle,
    /// Out: `CUgraphInstantiateResult`.
    pub result: u32,
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MemLocation {
    /// 1 is a device.
    pub kind: u32,
    /// Its ordinal.
    pub id: i32,
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PoolProps {
    /// 1 is pinned.
    pub alloc_type: u32,
    /// Handle types for export (none supported).
    pub handle_types: u32,
    /// Where the memory is.
    pub location: MemLocation,
    /// Not on this system.
    pub security: *mut c_void,
    /// Largest size of the pool, 0 for any.
    pub max_size: usize,
    /// Usage flags.
    pub usage: u16,
    /// Reserved.
    pub reserved: [u8; 54],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AccessDesc {
    /// Who.
    pub location: MemLocation,
    /// 0 nothing, 1 read, 3 read and write.
    pub flags: u32,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AllocNode {
    /// Where.
    pub props: PoolProps,
    /// Peers that may access it.
    pub access: *const AccessDesc,
    /// How many.
    pub access_count: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Out: the address.
    pub address: u64,
}

/// `CUgraphEdgeData`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EdgeData {
    /// 1: the downstream kernel may start when the upstream one triggers.
    pub from_port: u8,
    /// Always 0.
    pub to_port: u8,
    /// 1 is programmatic.
    pub kind: u8,
    /// Reserved.
    pub reserved: [u8; 5],
}

/// `CUdevprop`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DeviceProperties {
    /// Threads per block, its three extents, the grid's three extents, shared memory per block, constant
    /// memory, warp width, pitch, registers per block, clock rate, texture alignment.
    pub values: [i32; 14],
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys;
    use std::mem::{align_of, offset_of, size_of};

    macro_rules! same {
        ($ours:ty, $theirs:ty; $($field:ident = $other:ident),*) => {
            assert_eq!(size_of::<$ours>(), size_of::<$theirs>(), stringify!($ours));
            assert_eq!(align_of::<$ours>(), align_of::<$theirs>(), stringify!($ours));
            $(assert_eq!(offset_of!($ours, $field), offset_of!($theirs, $other), stringify!($ours::$field));)*
        };
    }

    #[test]
    fn layouts_are_those_of_the_bindings() {
        same!(Copy2d, sys::CUDA_MEMCPY2D_st; src_host = srcHost, src_pitch = srcPitch, dst_type = dstMemoryType, height = Height);
        same!(Copy3d, sys::CUDA_MEMCPY3D_st; src_context = reserved0, dst_x = dstXInBytes, dst_device = dstDevice, depth = Depth);
        same!(Copy3d, sys::CUDA_MEMCPY3D_PEER_st; src_context = srcContext, dst_context = dstContext, width = WidthInBytes);
        same!(LaunchAttribute, sys::CUlaunchAttribute_st; id = id, value = value);
        same!(LaunchConfig, sys::CUlaunchConfig_st; shared = sharedMemBytes, stream = hStream, attribute_count = numAttrs);
        same!(KernelNode, sys::CUDA_KERNEL_NODE_PARAMS_v2_st; grid = gridDimX, params = kernelParams, kernel = kern, context = ctx);
        same!(MemsetNode, sys::CUDA_MEMSET_NODE_PARAMS_st; value = value, element = elementSize, height = height);
        same!(HostNode, sys::CUDA_HOST_NODE_PARAMS_st; data = userData);
        same!(UpdateInfo, sys::CUgraphExecUpdateResultInfo_st; node = errorNode, from = errorFromNode);
        same!(InstantiateParams, sys::CUDA_GRAPH_INSTANTIATE_PARAMS_st; error_node = hErrNode_out, result = result_out);
        same!(PoolProps, sys::CUmemPoolProps_st; location = location, max_size = maxSize, usage = usage);
        same!(AccessDesc, sys::CUmemAccessDesc_st; flags = flags);
        same!(AllocNode, sys::CUDA_MEM_ALLOC_NODE_PARAMS_v1_st; access = accessDescs, address = dptr);
        same!(EdgeData, sys::CUgraphEdgeData_st; kind = type_);
        same!(DeviceProperties, sys::CUdevprop_st;);
    }
}
