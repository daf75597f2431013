//! Tensor maps: the machine's own encoding of 128 bytes, which only its kernels can read.

use std::ffi::c_void;

use ptx_vm::tensor::{DataType, Interleave, MapError, OobFill, Promotion, Swizzle, TensorMap};

use super::arg::{In, Out};
use super::entries;
use crate::code::{Code, Result};
use crate::device;

/// `CUtensorMap`.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Bytes([u8; 128]);

/// What is wrong with a map is said on standard error: the interface has only `INVALID_VALUE` for it.
fn refused(error: MapError) -> Code {
    eprintln!("[{}] {error}", device::NAME);
    match error {
        MapError::Unsupported(_) => Code::NOT_SUPPORTED,
        _ => Code::INVALID_VALUE,
    }
}

fn array<T: Copy, const N: usize>(values: In<T>, count: usize, rest: T) -> Result<[T; N]> {
    let values = values.list(count)?;
    Ok(std::array::from_fn(|i| values.get(i).copied().unwrap_or(rest)))
}

entries! {
    /// Encodes a tiled map.
    ready fn cuTensorMapEncodeTiled(
        _, map: Out<Bytes>, data_type: u32, rank: u32, address: *const c_void, dims: In<u64>, strides: In<u64>, boxes: In<u32>,
        steps: In<u32>, interleave: u32, swizzle: u32, promotion: u32, fill: u32,
    ) {
        if !(1..=5).contains(&rank) || !(map.address() as u64).is_multiple_of(64) {
            return Err(Code::INVALID_VALUE);
        }
        let count = rank as usize;
        let made = TensorMap {
            data_type: DataType::from_code(data_type).map_err(refused)?,
            rank,
            address: address as u64,
            dims: array(dims, count, 0)?,
            strides: array(strides, count - 1, 0)?,
            box_dims: array(boxes, count, 0)?,
            element_strides: array(steps, count, 1)?,
            interleave: Interleave::from_code(interleave).map_err(refused)?,
            swizzle: Swizzle::from_code(swizzle).map_err(refused)?,
            promotion: Promotion::from_code(promotion).map_err(refused)?,
            fill: OobFill::from_code(fill).map_err(refused)?,
        };
        map.set(Bytes(made.encode().map_err(refused)?))
    }

    /// Changes the address of a map.
    ready fn cuTensorMapReplaceAddress(_, map: Out<Bytes>, address: *const c_void) {
        let old = map.get()?;
        let made = TensorMap::decode(&old.0).map_err(refused)?;
        map.set(Bytes(TensorMap { address: address as u64, ..made }.encode().map_err(refused)?))
    }
}
