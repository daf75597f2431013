//! Copies and memsets of every shape.

use std::ffi::c_void;

use super::arg::In;
use super::entries;
use crate::abi::{Copy2d, Copy3d, Handle};
use crate::code::{Code, Result};
use crate::copy::{End, Extent, Side, copy, fill};
use crate::refusal::unsupported;
use crate::state::{Held, Id};
use crate::stream;
use crate::work::Fill;

type Stream = Option<Handle>;

fn resolve(d: &mut Held, stream: Stream) -> Result<Option<Id>> {
    stream.map(|handle| stream::resolve(d, handle)).transpose()
}

fn linear(d: &mut Held, to: End, from: End, bytes: usize, stream: Stream) -> Result {
    let stream = resolve(d, stream)?;
    copy(d, Side::row(to), Side::row(from), Extent::row(bytes), stream)
}

fn host(pointer: *const c_void) -> End {
    End::Host(pointer as *mut u8)
}

/// One side of a structured copy: memory type, host pointer, device address, then the offset in bytes.
pub fn end(kind: u32, pointer: *const c_void, address: u64, offset: Option<usize>) -> Result<End> {
    let offset = offset.ok_or(Code::INVALID_VALUE)?;
    Ok(match kind {
        1 => End::Host((pointer as *mut u8).wrapping_add(offset)),
        2 => End::Device(address + offset as u64),
        4 => End::Unified(address + offset as u64),
        3 => return Err(unsupported("CU_MEMORYTYPE_ARRAY")),
        _ => return Err(Code::INVALID_VALUE),
    })
}

fn offset(x: usize, y: usize, z: usize, pitch: usize, slice: usize) -> Option<usize> {
    x.checked_add(y.checked_mul(pitch)?)?.checked_add(z.checked_mul(slice)?)
}

fn two(d: &mut Held, c: Copy2d, stream: Stream) -> Result {
    let (from_pitch, to_pitch) = (pitch(c.src_pitch, c.width), pitch(c.dst_pitch, c.width));
    let from = end(c.src_type, c.src_host, c.src_device, offset(c.src_x, c.src_y, 0, from_pitch, 0))?;
    let to = end(c.dst_type, c.dst_host, c.dst_device, offset(c.dst_x, c.dst_y, 0, to_pitch, 0))?;
    let (from, to) =
        (Side { end: from, pitch: from_pitch, slice: 0 }, Side { end: to, pitch: to_pitch, slice: 0 });
    let stream = resolve(d, stream)?;
    copy(d, to, from, Extent { width: c.width, height: c.height, depth: 1 }, stream)
}

fn pitch(given: usize, width: usize) -> usize {
    if given == 0 { width } else { given }
}

/// The sides and the extent of a three-dimensional copy.
pub fn three_sides(c: &Copy3d) -> Result<(Side, Side, Extent)> {
    let sides = [
        (c.src_type, c.src_host, c.src_device, [c.src_x, c.src_y, c.src_z], c.src_pitch, c.src_height),
        (
            c.dst_type,
            c.dst_host.cast_const(),
            c.dst_device,
            [c.dst_x, c.dst_y, c.dst_z],
            c.dst_pitch,
            c.dst_height,
        ),
    ];
    let mut made = Vec::with_capacity(2);
    for (kind, pointer, address, [x, y, z], row, rows) in sides {
        let pitch = pitch(row, c.width);
        let slice = pitch.checked_mul(if rows == 0 { c.height } else { rows }).ok_or(Code::INVALID_VALUE)?;
        made.push(Side { end: end(kind, pointer, address, offset(x, y, z, pitch, slice))?, pitch, slice });
    }
    Ok((made[1], made[0], Extent { width: c.width, height: c.height, depth: c.depth }))
}

fn three(d: &mut Held, c: Copy3d, stream: Stream) -> Result {
    let (to, from, extent) = three_sides(&c)?;
    let stream = resolve(d, stream)?;
    copy(d, to, from, extent, stream)
}

fn set(d: &mut Held, address: u64, value: u32, element: u32, width: usize, stream: Stream) -> Result {
    rows(d, address, 0, value, element, (width, 1), stream)
}

fn rows(
    d: &mut Held,
    address: u64,
    pitch: usize,
    value: u32,
    element: u32,
    (width, height): (usize, usize),
    s: Stream,
) -> Result {
    let stream = resolve(d, s)?;
    fill(d, Fill { address, pitch, value, element, width, height }, stream)
}

entries! {
    /// Copies between any addresses.
    live fn cuMemcpy(d, to: u64, from: u64, bytes: usize) {
        linear(d, End::Unified(to), End::Unified(from), bytes, None)
    }
    /// Copies between any addresses, in a stream.
    live fn cuMemcpyAsync(d, to: u64, from: u64, bytes: usize, stream: Handle) {
        linear(d, End::Unified(to), End::Unified(from), bytes, Some(stream))
    }
    /// Host to device.
    live fn cuMemcpyHtoD_v2(d, to: u64, from: *const c_void, bytes: usize) {
        linear(d, End::Device(to), host(from), bytes, None)
    }
    /// Host to device, in a stream.
    live fn cuMemcpyHtoDAsync_v2(d, to: u64, from: *const c_void, bytes: usize, stream: Handle) {
        linear(d, End::Device(to), host(from), bytes, Some(stream))
    }
    /// Device to host.
    live fn cuMemcpyDtoH_v2(d, to: *mut c_void, from: u64, bytes: usize) {
        linear(d, host(to), End::Device(from), bytes, None)
    }
    /// Device to host, in a stream.
    live fn cuMemcpyDtoHAsync_v2(d, to: *mut c_void, from: u64, bytes: usize, stream: Handle) {
        linear(d, host(to), End::Device(from), bytes, Some(stream))
    }
    /// Device to device.
    live fn cuMemcpyDtoD_v2(d, to: u64, from: u64, bytes: usize) {
        linear(d, End::Device(to), End::Device(from), bytes, None)
    }
    /// Device to device, in a stream.
    live fn cuMemcpyDtoDAsync_v2(d, to: u64, from: u64, bytes: usize, stream: Handle) {
        linear(d, End::Device(to), End::Device(from), bytes, Some(stream))
    }
    /// Between contexts; addresses are unique over all devices, so the contexts are only checked.
    live fn cuMemcpyPeer(d, to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize) {
        d.healthy(Id::of(to_context)).and(d.healthy(Id::of(from_context))).map_err(|_| Code::INVALID_CONTEXT)?;
        linear(d, End::Device(to), End::Device(from), bytes, None)
    }
    /// Between contexts, in a stream.
    live fn cuMemcpyPeerAsync(d, to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle) {
        d.healthy(Id::of(to_context)).and(d.healthy(Id::of(from_context))).map_err(|_| Code::INVALID_CONTEXT)?;
        linear(d, End::Device(to), End::Device(from), bytes, Some(stream))
    }
    /// Rows.
    live fn cuMemcpy2D_v2(d, copy: In<Copy2d>) {
        two(d, copy.get()?, None)
    }
    /// Rows at any distance.
    live fn cuMemcpy2DUnaligned_v2(d, copy: In<Copy2d>) {
        two(d, copy.get()?, None)
    }
    /// Rows, in a stream.
    live fn cuMemcpy2DAsync_v2(d, copy: In<Copy2d>, stream: Handle) {
        two(d, copy.get()?, Some(stream))
    }
    /// Slices.
    live fn cuMemcpy3D_v2(d, copy: In<Copy3d>) {
        three(d, copy.get()?, None)
    }
    /// Slices, in a stream.
    live fn cuMemcpy3DAsync_v2(d, copy: In<Copy3d>, stream: Handle) {
        three(d, copy.get()?, Some(stream))
    }
    /// Slices between contexts.
    live fn cuMemcpy3DPeer(d, copy: In<Copy3d>) {
        three(d, copy.get()?, None)
    }
    /// Slices between contexts, in a stream.
    live fn cuMemcpy3DPeerAsync(d, copy: In<Copy3d>, stream: Handle) {
        three(d, copy.get()?, Some(stream))
    }
    /// Sets bytes.
    live fn cuMemsetD8_v2(d, to: u64, value: u8, count: usize) {
        set(d, to, value.into(), 1, count, None)
    }
    /// Sets bytes, in a stream.
    live fn cuMemsetD8Async(d, to: u64, value: u8, count: usize, stream: Handle) {
        set(d, to, value.into(), 1, count, Some(stream))
    }
    /// Sets 16-bit values.
    live fn cuMemsetD16_v2(d, to: u64, value: u16, count: usize) {
        set(d, to, value.into(), 2, count, None)
    }
    /// Sets 16-bit values, in a stream.
    live fn cuMemsetD16Async(d, to: u64, value: u16, count: usize, stream: Handle) {
        set(d, to, value.into(), 2, count, Some(stream))
    }
    /// Sets 32-bit values.
    live fn cuMemsetD32_v2(d, to: u64, value: u32, count: usize) {
        set(d, to, value, 4, count, None)
    }
    /// Sets 32-bit values, in a stream.
    live fn cuMemsetD32Async(d, to: u64, value: u32, count: usize, stream: Handle) {
        set(d, to, value, 4, count, Some(stream))
    }
    /// Sets rows of bytes.
    live fn cuMemsetD2D8_v2(d, to: u64, pitch: usize, value: u8, width: usize, height: usize) {
        rows(d, to, pitch, value.into(), 1, (width, height), None)
    }
    /// Sets rows of bytes, in a stream.
    live fn cuMemsetD2D8Async(d, to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) {
        rows(d, to, pitch, value.into(), 1, (width, height), Some(stream))
    }
    /// Sets rows of 16-bit values.
    live fn cuMemsetD2D16_v2(d, to: u64, pitch: usize, value: u16, width: usize, height: usize) {
        rows(d, to, pitch, value.into(), 2, (width, height), None)
    }
    /// Sets rows of 16-bit values, in a stream.
    live fn cuMemsetD2D16Async(d, to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) {
        rows(d, to, pitch, value.into(), 2, (width, height), Some(stream))
    }
    /// Sets rows of 32-bit values.
    live fn cuMemsetD2D32_v2(d, to: u64, pitch: usize, value: u32, width: usize, height: usize) {
        rows(d, to, pitch, value, 4, (width, height), None)
    }
    /// Sets rows of 32-bit values, in a stream.
    live fn cuMemsetD2D32Async(d, to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) {
        rows(d, to, pitch, value, 4, (width, height), Some(stream))
    }
}
