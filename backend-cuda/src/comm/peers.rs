//! A rank whose exchanges are own kernels over memory that all ranks reach: threads of one process, each with
//! a device of its own, and peer access between any two of them.
//!
//! Sums are by the contract's tree in every mode, so the bits are those of every other way to exchange. A
//! step with its exchanges can be captured: what counts them lies on the device (`exchange.cu`).
//!
//! Memory that others reach lives until the last rank of the group is gone, and each waits for its own work
//! before it leaves. A kernel waits for a rank that is missing until the host sets a word that it looks at.

use super::roll::{Roll, roll};
use super::watch::Watched;
use super::widest;
use crate::device::Cuda;
use crate::driver::check;
use crate::mem::{CudaMem, lock};
use crate::pinned::Pinned;
use crate::stream::CudaStream;
use cudarc::driver::sys::{self, CUresult};
use engraft_core::backend::{Board, Communicator};
use engraft_core::mem::MatMut;
use engraft_core::{Error, Result};
use engraft_kernels::params::exchange::{COUNT_BYTES, ENTRIES, FLAG_BYTES, Gather, Peers, RANKS, Reduce};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long work may take to end that waits for nobody, where a rank has left in good order.
const GRACE: Duration = Duration::from_millis(500);
/// Values that a rank gives at once, at most; longer exchanges take several launches.
const HALF: usize = 1 << 20;
/// Bytes of a value.
const VALUE: usize = 4;
/// Where a rank's flags begin, behind its two halves, and its counts.
const FLAGS: usize = 2 * HALF * VALUE;
const COUNTS: usize = FLAGS + FLAG_BYTES;

/// Why these ranks do not reach each other's memory; none where they do. All ranks get the same answer, but
/// for its words.
///
/// # Errors
/// `Comm` for a rank that is missing.
pub(crate) fn apart(gpu: &Cuda, board: &dyn Board) -> Result<Option<String>> {
    let process = std::process::id();
    // Numbers on a board have 24 bits.
    let halves = [process >> 16, process & 0xffff].map(|half| roll(board, half.into()));
    let [high, low] = halves;
    let (high, low) = (high?, low?);
    let devices = roll(board, gpu.ordinal() as u64)?;
    let own = board.rank();
    let mut why = None;
    for (rank, device) in devices.iter().enumerate().filter(|(rank, _)| *rank != own) {
        why = match () {
            () if (high[rank], low[rank]) != (high[own], low[own]) => {
                Some(format!("rank {rank} is another process"))
            }
            () if *device == devices[own] => Some(format!("rank {rank} has the same device")),
            () if !gpu.reaches(*device as usize)? => {
                Some(format!("there is no peer access to the device of rank {rank}"))
            }
            () => continue,
        };
        break;
    }
    let all = roll(board, why.is_none().into())?;
    let other = all.iter().position(|reaches| *reaches == 0);
    Ok(why.or(other.map(|rank| format!("rank {rank} does not reach all others"))))
}

/// What a rank has that others reach.
#[derive(Debug)]
struct Place {
    mem: CudaMem,
    gpu: Arc<Cuda>,
}

/// Groups that come together, by a number that rank 0 gives: the places of their ranks.
static GATHERING: Mutex<BTreeMap<u32, Vec<Option<Arc<Place>>>>> = Mutex::new(BTreeMap::new());

/// Has all ranks of a group know each other's places.
fn introduce(own: Arc<Place>, board: &dyn Board) -> Result<Vec<Arc<Place>>> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (rank, world) = (board.rank(), board.world());
    // 24 bits, as numbers on a board have: groups that come together at a time are far fewer.
    let fresh = if rank == 0 { NEXT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff } else { 0 };
    let group = roll(board, fresh.into())?[0] as u32;
    lock(&GATHERING).entry(group).or_insert_with(|| vec![None; world])[rank] = Some(own);
    let came = roll(board, 1);
    let all =
        lock(&GATHERING).get(&group).and_then(|places| places.iter().cloned().collect::<Option<Vec<_>>>());
    let read = came.and_then(|_| roll(board, 1));
    lock(&GATHERING).remove(&group);
    read?;
    all.ok_or_else(|| Error::internal("ranks of a group have not found each other"))
}

/// The word that has kernels leave a wait.
#[derive(Debug)]
struct Stop(Pinned);

// SAFETY: its word is an atomic, and it is owned by one group.
unsafe impl Send for Stop {}
// SAFETY: as above.
unsafe impl Sync for Stop {}

impl Stop {
    fn new(gpu: &Arc<Cuda>) -> Result<Self> {
        let stop = Self(Pinned::new(gpu, size_of::<u32>())?);
        stop.word().store(0, Ordering::Release);
        Ok(stop)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: pinned memory of a word, aligned to a page, which lives as long as this.
        unsafe { AtomicU32::from_ptr(self.0.start().cast()) }
    }

    /// Its address on the device: pinned memory is at the same one there.
    fn address(&self) -> u64 {
        self.0.start() as u64
    }
}

/// A rank's link to the others: who is missing, and how its own kernels learn that.
struct PeerLink {
    roll: Roll,
    stop: Stop,
    /// When a rank was first seen to be gone.
    gone: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for PeerLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Roll { rank, world, .. } = &self.roll;
        f.debug_struct("PeerLink").field("rank", rank).field("world", world).finish_non_exhaustive()
    }
}

impl PeerLink {
    fn fail(&self, error: Error) {
        self.roll.fail(error);
        self.stop.word().store(1, Ordering::Release);
    }
}

impl Watched for PeerLink {
    fn look(&self, waited: Duration) -> bool {
        if self.roll.failed().is_some() {
            return true;
        }
        match self.roll.check() {
            // One that is done has given all that others need of it.
            Err(_) if lock(&self.gone).get_or_insert_with(Instant::now).elapsed() < GRACE => return false,
            Err(error) => self.fail(error),
            Ok(()) if waited > self.roll.patience => self.fail(self.roll.call("a step")),
            Ok(()) => return false,
        }
        true
    }

    fn sound(&self) -> Result<()> {
        self.roll.failed().map_or(Ok(()), Err)
    }
}

/// The communicator of a rank.
#[derive(Debug)]
pub(crate) struct PeerGroup {
    link: Arc<PeerLink>,
    peers: Peers,
    gpu: Arc<Cuda>,
    /// Of all ranks.
    _places: Vec<Arc<Place>>,
}

impl PeerGroup {
    /// The rank whose place on `board` this is; `gpu` is its own, and reaches all others ([`apart`]).
    ///
    /// # Errors
    /// `Comm` for a rank that is missing, `OutOfMemory`, what the driver says; `Internal` for a device that
    /// another rank of this process has already.
    pub fn new(gpu: &Arc<Cuda>, board: Box<dyn Board>) -> Result<Self> {
        gpu.bind()?;
        let world = board.world();
        for entry in
            ENTRIES.iter().filter(|entry| !entry.contains("_w") || entry.ends_with(&format!("_w{world}")))
        {
            // Loading one later might wait for the device, which waits for other ranks then.
            gpu.modules.function(entry)?;
        }
        let mem = gpu.allocate(COUNTS + COUNT_BYTES)?;
        gpu.clear(&mem, FLAGS)?;
        let places = introduce(Arc::new(Place { mem, gpu: gpu.clone() }), board.as_ref())?;
        let mut peers = Peers {
            half: HALF as u32,
            rank: board.rank() as u32,
            world: world as u32,
            ..bytemuck::Zeroable::zeroed()
        };
        for (rank, place) in places.iter().enumerate().take(RANKS) {
            if rank != board.rank() {
                gpu.reach(&place.gpu)?;
            }
            let at = place.mem.address();
            (peers.parts[rank], peers.flags[rank]) = (at, at + FLAGS as u64);
        }
        peers.counts = places[board.rank()].mem.address() + COUNTS as u64;
        // Nobody writes before all can be written to.
        roll(board.as_ref(), 1)?;
        let stop = Stop::new(gpu)?;
        peers.stop = stop.address();
        let link =
            Arc::new(PeerLink { roll: Roll::new(board, gpu.wait_limit()), stop, gone: Mutex::default() });
        let watched: Weak<PeerLink> = Arc::downgrade(&link);
        match gpu.watch.set(watched) {
            true => Ok(Self { link, peers, gpu: gpu.clone(), _places: places }),
            false => Err(Error::internal("ranks on the device need one each: Backend::of_rank gives it")),
        }
    }

    /// Begins an exchange, unless the group has failed.
    fn begin(&self, stream: &CudaStream) -> Result<()> {
        stream.gpu().bind()?;
        self.link.sound()?;
        // What a rank that is gone has left would pass for its part.
        if let Err(error) = self.link.roll.check() {
            self.link.fail(error);
            return self.link.sound();
        }
        self.link.roll.begin();
        Ok(())
    }
}

impl Communicator<Cuda> for PeerGroup {
    fn rank(&self) -> usize {
        self.link.roll.rank
    }

    fn world(&self) -> usize {
        self.link.roll.world
    }

    fn all_reduce(&mut self, stream: &mut CudaStream, x: MatMut<'_, CudaMem>, adds: bool) -> Result<()> {
        self.begin(stream)?;
        let count = x.rows() * x.cols();
        if count == 0 {
            return Ok(());
        }
        let at = stream.buffer_mut(&x.into_f32()?)?;
        for first in (0..count).step_by(HALF) {
            let part = Reduce {
                x: at + (first * VALUE) as u64,
                count: HALF.min(count - first) as u32,
                adds_nothing: u32::from(!adds),
                peers: self.peers,
            };
            stream.launch(&part.launch(), &part)?;
        }
        Ok(())
    }

    fn all_gather(
        &mut self,
        stream: &mut CudaStream,
        x: MatMut<'_, CudaMem>,
        columns: &[Range<usize>],
    ) -> Result<()> {
        self.begin(stream)?;
        let (rows, cols) = (x.rows(), x.cols());
        let widest = widest(columns, self.link.roll.world, cols)?;
        if rows * widest == 0 {
            return Ok(());
        }
        let at = stream.buffer_mut(&x.into_f32()?)?;
        // Several rows at once, or a part of the columns of one.
        let (height, width) = ((HALF / widest).clamp(1, rows), widest.min(HALF));
        for row in (0..rows).step_by(height) {
            for from in (0..widest).step_by(width) {
                let mut part = Gather {
                    x: at + (row * cols * VALUE) as u64,
                    rows: height.min(rows - row) as u32,
                    cols: cols as u32,
                    first: [0; RANKS],
                    width: [0; RANKS],
                    peers: self.peers,
                };
                for (rank, range) in columns.iter().enumerate() {
                    let start = range.end.min(range.start + from);
                    part.first[rank] = start as u32;
                    part.width[rank] = width.min(range.end - start) as u32;
                }
                stream.launch(&part.launch(), &part)?;
            }
        }
        Ok(())
    }
}

impl Drop for PeerGroup {
    /// Others may still read what this rank has given, which lives on; what it has begun itself writes to
    /// them, and ends first.
    fn drop(&mut self) {
        let _ = self.gpu.finish();
        if self.gpu.hangs() {
            // Kernels that still wait look at the word, and leave; it stays where it is.
            self.link.stop.word().store(1, Ordering::Release);
            std::mem::forget(self.link.clone());
        }
    }
}

impl Cuda {
    /// Whether kernels here may touch memory of another device.
    fn reaches(&self, ordinal: usize) -> Result<bool> {
        let (mut own, mut other, mut can) = (0, 0, 0);
        // SAFETY: pointers are to locals.
        unsafe {
            check(sys::cuDeviceGet(&mut own, self.ordinal() as i32), "cuDeviceGet")?;
            check(sys::cuDeviceGet(&mut other, ordinal as i32), "cuDeviceGet")?;
            check(sys::cuDeviceCanAccessPeer(&mut can, own, other), "cuDeviceCanAccessPeer")?;
        }
        Ok(can != 0)
    }

    /// Lets kernels here touch memory of another device's context.
    fn reach(&self, other: &Self) -> Result<()> {
        self.bind()?;
        // SAFETY: both contexts live.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context(), 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => check(code, "peer access"),
        }
    }

    /// Zeros from byte `from` of an allocation on.
    fn clear(&self, mem: &CudaMem, from: usize) -> Result<()> {
        let bytes = engraft_core::mem::DeviceMem::bytes(mem).saturating_sub(from);
        // SAFETY: inside the allocation.
        check(unsafe { sys::cuMemsetD8_v2(mem.address() + from as u64, 0, bytes) }, "zeros")?;
        self.finish()
    }
}
