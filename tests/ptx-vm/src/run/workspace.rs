//! What the blocks of a cooperative launch wait for each other in.

use crate::{Launch, Memory};

/// Its size: the counter of `grid.sync()` lies in it, which starts at zero.
const BYTES: u32 = 64;

/// Makes the workspace of a launch of a kernel that may want one; its address, 0 where there is none.
pub(crate) fn make(launch: &Launch, wanted: bool, memory: &mut Memory) -> Result<u64, crate::Error> {
    if !launch.cooperative || !wanted {
        return Ok(0);
    }
    let at = memory.allocate(launch.device, BYTES.into())?;
    memory.fill(at, BYTES.into(), &[0])?;
    memory.write(at, &BYTES.to_le_bytes())?;
    Ok(at)
}
