//! What the driver says about a pointer.

use crate::code::{Code, Result};
use crate::state::Driver;

/// The value of a pointer attribute, in the width that the interface gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// A handle, an address or a size.
    Wide(u64),
    /// An `int` or an enumeration.
    Narrow(u32),
    /// A `bool` (one byte).
    Flag(bool),
}

const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// A pointer attribute by its `CUpointer_attribute` number.
pub fn attribute(d: &Driver, number: u32, address: u64) -> Result<Attribute> {
    use Attribute::{Flag, Narrow, Wide};
    let place = d.memory.place(address).filter(|_| !d.memory.in_heap(address));
    let place = place.ok_or(Code::INVALID_VALUE)?;
    let host = d.table.host(address);
    let block = d.table.block(address);
    let context = match (host, block) {
        (Some((_, pinned)), _) => Some(pinned.context),
        (_, Some((_, block))) => Some(block.context),
        // A module's variable.
        _ => d.contexts.iter().find(|(_, c)| Some(c.device) == place.device).map(|(&id, _)| id),
    };
    let device =
        place.device.or_else(|| context.and_then(|c| d.contexts.get(&c)).map(|c| c.device)).unwrap_or(0);
    let managed = host.is_some_and(|(_, pinned)| pinned.managed);
    Ok(match number {
        1 => Wide(context.map_or(0, |c| c.0)),
        2 => Narrow(if place.device.is_some() || managed { DEVICE } else { HOST }),
        3 => Wide(address),
        4 if place.device.is_none() => Wide(address),
        8 => Flag(managed),
        // Neither interprocess handles nor remote direct access.
        6 | 10 | 15 | 21 => Flag(false),
        7 => Wide(block.map_or(place.base, |(_, b)| b.serial)),
        9 => Narrow(device),
        11 => Wide(place.base),
        12 => Wide(place.bytes),
        13 => Flag(true),
        14 => Wide(0),
        16 => Narrow(3),
        17 => Wide(block.and_then(|(_, b)| b.pool).map_or(0, |p| p.0)),
        18 => Wide(place.bytes),
        19 => Wide(place.base),
        20 => Wide(block.map_or(place.base, |(_, b)| b.serial)),
        _ => return Err(Code::INVALID_VALUE),
    })
}
