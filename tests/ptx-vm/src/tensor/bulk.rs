//! Bulk copies without a map, and multicast.

/// Addresses and sizes of bulk copies are multiples of this many bytes.
pub const UNIT: u64 = 16;

/// Holds `cp.async.bulk` and `cp.reduce.async.bulk` to their rules.
///
/// # Errors
/// A sentence that names the operand, its value and what is allowed.
pub fn check(destination: u64, source: u64, bytes: u64) -> Result<(), String> {
    for (what, value) in [("destination", destination), ("source", source), ("size", bytes)] {
        if !value.is_multiple_of(UNIT) {
            return Err(format!("bulk copy {what} is {value:#x}, allowed is a multiple of {UNIT}"));
        }
    }
    Ok(())
}

/// The blocks of a cluster that a multicast writes to: the set bits of the mask.
///
/// Each of them receives the data, and the signal on its mbarrier, at the offsets that the instruction names
/// in the issuing block's window.
///
/// # Errors
/// A sentence when the mask names a block that the cluster does not have, or none.
pub fn multicast(mask: u16, cluster: u32) -> Result<Vec<u32>, String> {
    let ranks: Vec<u32> = (0..16).filter(|rank| mask >> rank & 1 != 0).collect();
    match ranks.last() {
        None => Err("multicast mask is 0, allowed are masks that name a block".into()),
        Some(&last) if last >= cluster => {
            Err(format!("multicast mask {mask:#x} names block {last}, the cluster has {cluster}"))
        }
        Some(_) => Ok(ranks),
    }
}
