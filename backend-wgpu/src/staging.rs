//! Packed weights on their way to their buffers, a piece at a time.
//!
//! A piece is packed by several threads into the host's memory and handed to the queue, which copies it. What
//! the queue holds is waited for before it would be more than a piece, so that loading never takes more than
//! two: one that is packed, one that is copied. In the browser, where no thread may wait, the queue frees
//! them when it gets to it.
//!
//! Where the device's memory is the host's, buffers are mapped while they are filled: the queue copies
//! nothing, and there is one piece. It is packed in memory of its own there, too, since what is mapped may be
//! slow to read, and packing adds bits to words.

use crate::WgpuMem;
use crate::adapter::IN_BROWSER;
use crate::device::{Gpu, Uploads};
use engraft_core::{Error, Result};
use std::sync::atomic::Ordering;

/// Bytes of a piece, unless a single panel takes more.
const PIECE: usize = 32 << 20;
/// Bytes that are worth a thread.
const WORTH_A_THREAD: usize = 1 << 20;

/// A buffer that is filled panel by panel, and unmapped then.
#[derive(Debug)]
pub(crate) struct Room {
    pub mem: WgpuMem,
    mapped: bool,
}

/// A room and how much of it a panel takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plane<'m> {
    /// None where panels have no words of this kind.
    pub to: Option<&'m Room>,
    /// Words of a panel.
    pub words: usize,
}

/// Writes the words of a panel to both planes.
pub(crate) type Pack<'p> = dyn Fn(usize, &mut [u32], &mut [u32]) + Sync + 'p;

impl Gpu {
    /// A buffer of `bytes` to fill.
    ///
    /// # Errors
    /// As [`Gpu::alloc`].
    pub fn room(&self, what: &str, bytes: usize) -> Result<Room> {
        if self.shared_memory {
            match self.alloc_mapped(what, bytes) {
                Ok(mem) => return Ok(Room { mem, mapped: true }),
                // An adapter may have little memory of the sort that is mapped.
                Err(Error::OutOfMemory { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Room { mem: self.alloc(what, bytes)?, mapped: false })
    }

    /// Fills both planes with `panels` panels; `pack` writes one's words, which are 0 before.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub fn fill(
        &self,
        queue: &dyn Uploads,
        planes: [Plane<'_>; 2],
        panels: usize,
        pack: &Pack<'_>,
    ) -> Result<()> {
        let [codes, scales] = planes.map(|plane| plane.words);
        let at_once = (PIECE / (4 * (codes + scales)).max(1)).clamp(1, panels.max(1));
        let mut piece = vec![0u32; at_once * (codes + scales)];
        let size = size_of_val(&piece[..]) as u64;
        for first in (0..panels).step_by(at_once) {
            let count = at_once.min(panels - first);
            let words = &mut piece[..count * (codes + scales)];
            words.fill(0);
            let (of_codes, of_scales) = words.split_at_mut(count * codes);
            in_parallel(first, (of_codes, codes), (of_scales, scales), pack);
            for (plane, words) in planes.iter().zip([&*of_codes, &*of_scales]) {
                let Some(to) = plane.to.filter(|_| !words.is_empty()) else { continue };
                let (at, bytes) = (first * plane.words * 4, bytemuck::cast_slice(words));
                match to.mapped {
                    true => self.write_mapped(to, at, bytes, size)?,
                    false => self.write(queue, (&to.mem, at), bytes, size)?,
                }
            }
        }
        let mapped = planes.iter().filter_map(|plane| plane.to).filter(|to| to.mapped);
        mapped.for_each(|to| to.mem.buffer().unmap());
        self.faults.check()
    }

    /// Copies bytes into the buffer's own memory, out of the `packed` bytes that they are in.
    fn write_mapped(&self, to: &Room, at: usize, bytes: &[u8], packed: u64) -> Result<()> {
        self.tally.count(|c| c.staged = c.staged.max(packed));
        let range = at as u64..(at + bytes.len()) as u64;
        let view = to.mem.buffer().get_mapped_range_mut(range);
        let mut view = view.map_err(|e| Error::internal(format!("a weight is not mapped: {e}")))?;
        view.slice(..).copy_from_slice(bytes);
        Ok(())
    }

    /// Hands bytes to the queue, which holds at most a piece, next to the `packed` bytes that they are in.
    fn write(
        &self,
        queue: &dyn Uploads,
        (to, at): (&WgpuMem, usize),
        bytes: &[u8],
        packed: u64,
    ) -> Result<()> {
        let size = bytes.len() as u64;
        let held = self.staged.fetch_add(size, Ordering::Relaxed);
        if held + size > PIECE as u64 && held > 0 {
            queue.hand_over(self)?;
            if !IN_BROWSER {
                self.poll()?;
            }
            self.staged.store(size, Ordering::Relaxed);
        }
        let now = self.staged.load(Ordering::Relaxed) + packed;
        self.tally.count(|c| c.staged = c.staged.max(now));
        queue.upload(self, to.buffer(), at as u64, bytes)
    }
}

/// Packs panels from `first` on; which thread takes one makes no difference.
fn in_parallel(
    first: usize,
    (codes, of_codes): (&mut [u32], usize),
    (scales, of_scales): (&mut [u32], usize),
    pack: &Pack<'_>,
) {
    let panels = codes.len() / of_codes.max(1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(4 * (codes.len() + scales.len()) / WORTH_A_THREAD).max(1);
    let share = panels.div_ceil(threads).max(1);
    let some = |first: usize, codes: &mut [u32], mut scales: &mut [u32]| {
        for (i, codes) in codes.chunks_exact_mut(of_codes.max(1)).enumerate() {
            let (own, rest) = std::mem::take(&mut scales).split_at_mut(of_scales);
            scales = rest;
            pack(first + i, codes, own);
        }
    };
    if threads == 1 {
        return some(first, codes, scales);
    }
    std::thread::scope(|scope| {
        let mut rest = scales;
        for (i, codes) in codes.chunks_mut(share * of_codes).enumerate() {
            let count = codes.len() / of_codes;
            let (scales, others) = std::mem::take(&mut rest).split_at_mut(count * of_scales);
            rest = others;
            scope.spawn(move || some(first + i * share, codes, scales));
        }
    });
}
