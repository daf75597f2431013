//! `malloc` and `free` of a launch: the shadows follow the list of allocations.

use super::grid::{Grid, Store};
use super::{Done, Stop};
use crate::FaultKind;
use crate::memory::Memory;
use crate::memory::global::{Freed, GlobalShadow};
use crate::memory::heap::HeapKey;
use crate::memory::shadow::{How, Party};

impl Grid<'_> {
    fn heap(&self) -> HeapKey {
        (self.launch.device, self.launch.heap)
    }

    /// The memory, which a launch with a heap has to itself.
    fn own_memory(&mut self) -> Option<&mut Memory> {
        // No place among the allocations is what it was.
        self.hint = (1, 0, 0);
        match &mut self.memory {
            Store::Own(memory) => Some(memory),
            Store::Shared { .. } => None,
        }
    }

    /// Shows the shadow of the launch and that of its company.
    fn shadows(&mut self, see: impl Fn(&mut GlobalShadow)) {
        see(&mut self.shadow);
        if let Some(shadow) = self.company.as_mut().and_then(|common| common.shadow.as_mut()) {
            see(shadow);
        }
    }

    /// The address of a new block, 0 where there is no room for it.
    pub(crate) fn malloc(&mut self, bytes: u64, place: String) -> u64 {
        let (heap, limit) = (self.heap(), self.options.heap_bytes);
        let Some(memory) = self.own_memory() else { return 0 };
        let Some(address) = memory.malloc(heap, bytes, limit, place) else { return 0 };
        if let Some(at) = memory.index(address) {
            self.shadows(|shadow| shadow.came(at));
        }
        address
    }

    /// Takes a block back, which has to be ordered behind all that touched it, as a write is.
    pub(crate) fn free(&mut self, address: u64, place: String, me: &Party<'_>) -> Done {
        let found = self.memory.get().block(self.heap(), address);
        let bytes = found.map_err(|what| Stop::new(FaultKind::Heap, what).at(me.lane.into()))?;
        if bytes > 0 {
            let found = self.locate(address, bytes, true)?;
            self.touch(found, bytes as usize, How::WRITE, me)?;
        }
        let at = self.own_memory().and_then(|memory| memory.take_back(address, place));
        if let Some(at) = at {
            self.shadows(|shadow| shadow.went(at));
            if self.options.track_accesses {
                let by = (me.cluster, me.warp, me.clock.now(me.warp));
                self.shadow.freed.push(Freed { range: address..address + bytes, line: me.line, by });
            }
        }
        Ok(())
    }
}
