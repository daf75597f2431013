//! A rendezvous of processes of one machine: a file that all map.
//!
//! The rules of [`crate::ThreadBoard`] with counters and slots in the file. Slots are as long as the file was
//! made; longer exchanges take several. The file lies in memory where the system has such a folder, its pages
//! are written when it is made (so that memory that is lacking is an error there and no signal later), and
//! its name is removed as soon as all have mapped it: nothing is left behind, however the processes end.

use crate::exchange::{Carrier, Kind, MOST_RANKS, Part, all_gather, all_reduce};
use crate::fate::Fate;
use engraft_core::backend::Board;
use engraft_core::{Error, Result};
use memmap2::{MmapOptions, MmapRaw};
use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Where files lie in memory.
const MEMORY: &str = "/dev/shm";
/// Values of a slot.
const SLOT: usize = 1 << 17;
/// Bytes between counters, and before the values of a slot: no two ranks write one cache line.
const LINE: usize = 128;
/// How long a rank looks at the counters without a pause, and then lets others run in between.
const SPIN: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];
/// How long it sleeps between two looks after that.
const NAP: Duration = Duration::from_micros(200);

/// A rank's place on a board in a mapped file.
pub(crate) struct MappedBoard {
    map: MmapRaw,
    fate: Arc<Fate>,
    rank: usize,
    world: usize,
    patience: Duration,
    /// Exchanges so far.
    done: Cell<u64>,
    /// What is sent next.
    own: RefCell<Vec<f32>>,
}

/// What is alike on ranks that can map one file: the machine as it was started, and the folder.
pub(crate) fn memory() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    match std::fs::metadata(MEMORY) {
        Ok(about) if !boot.is_empty() => format!("{} {}:{}", boot.trim(), about.dev(), about.ino()),
        // Like no other's.
        _ => String::new(),
    }
}

/// Bytes of a board's file.
fn size(world: usize) -> usize {
    MOST_RANKS * LINE + 2 * world * stride()
}

/// Bytes of a slot.
fn stride() -> usize {
    LINE + SLOT * size_of::<f32>()
}

/// A new file for the ranks of a group, whose name nobody can guess.
pub(crate) fn create(world: usize, name: &str) -> Result<PathBuf> {
    let path = Path::new(MEMORY).join(format!("engraft-{name}"));
    let failed = |error| Error::io(&path, error);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    let zeros = vec![0; size(world)];
    if let Err(error) = file.write_all(&zeros) {
        let _ = std::fs::remove_file(&path);
        return Err(failed(error));
    }
    Ok(path)
}

impl MappedBoard {
    /// Maps the file of a group.
    pub fn open(path: &Path, rank: usize, world: usize, fate: Arc<Fate>, patience: Duration) -> Result<Self> {
        let failed = |error| Error::io(path, error);
        let file: File = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        if len != size(world) as u64 {
            return Err(Error::format(
                path.display().to_string(),
                format!("{len} bytes, {} expected", size(world)),
            ));
        }
        let map = MmapOptions::new().map_raw(&file).map_err(failed)?;
        Ok(Self { map, fate, rank, world, patience, done: Cell::new(0), own: RefCell::default() })
    }

    /// Exchanges that a rank has sent its part to.
    fn arrived(&self, rank: usize) -> &AtomicU64 {
        // SAFETY: `rank` is below MOST_RANKS, so the word lies in the map, which is page-aligned and lives as
        // long as self; all processes take it for an atomic word.
        unsafe { &*self.map.as_mut_ptr().add(rank * LINE).cast::<AtomicU64>() }
    }

    /// The slot of a rank for exchange `number`: its head of two words, and its values.
    fn slot(&self, number: u64, rank: usize) -> (*mut u32, *mut f32) {
        let at = MOST_RANKS * LINE + ((number % 2) as usize * self.world + rank) * stride();
        // SAFETY: `rank` is below `world`, so the slot ends inside the map.
        let head = unsafe { self.map.as_mut_ptr().add(at) };
        // SAFETY: the same slot; LINE is a multiple of a value's size.
        (head.cast(), unsafe { head.add(LINE).cast() })
    }

    fn missing(&self, number: u64) -> Option<usize> {
        (0..self.world).find(|rank| self.arrived(*rank).load(SeqCst) < number)
    }

    fn wait(&self, number: u64) -> Result<()> {
        let began = Instant::now();
        loop {
            if self.missing(number).is_none() {
                return Ok(());
            }
            match began.elapsed() {
                past if past < SPIN[0] => std::hint::spin_loop(),
                past if past < SPIN[1] => std::thread::yield_now(),
                _ => break,
            }
        }
        let (what, missing) = (|| format!("exchange {number}"), || self.missing(number));
        // What is written is seen by all at once.
        self.fate.wait(self.patience, NAP, what, missing, |_| true)
    }

    /// What a rank has sent to exchange `number`, which all have reached.
    fn part(&self, number: u64, rank: usize) -> Result<Part<'_>> {
        let (head, values) = self.slot(number, rank);
        // SAFETY: inside the map and aligned; who wrote them said so by `arrived` before, and writes this
        // slot again only after this rank has sent its part of the next exchange.
        let (kind, len) = unsafe { (head.read(), head.add(1).read()) };
        match (Kind::of_word(kind), len as usize) {
            (Some(kind), len) if len <= SLOT => {
                // SAFETY: as above; a slot has SLOT values, and every pattern of bits is an f32.
                let values = unsafe { std::slice::from_raw_parts(values, len) };
                Ok(Part { kind, values })
            }
            _ => {
                let what = format!("wrote {kind} and {len} where an exchange and its length belong");
                self.fate.fail(rank, &what);
                Err(self.fate.comm(rank, what))
            }
        }
    }
}

impl Carrier for MappedBoard {
    fn fate(&self) -> &Fate {
        &self.fate
    }

    fn most(&self) -> usize {
        SLOT
    }

    fn swap(
        &self,
        kind: Kind,
        fill: &mut dyn FnMut(&mut Vec<f32>),
        read: &mut dyn FnMut(&[Part<'_>]) -> Result<()>,
    ) -> Result<()> {
        if let Some(error) = self.fate.error() {
            return Err(error);
        }
        let (mut own, number) = (self.own.borrow_mut(), self.done.get());
        own.clear();
        fill(&mut own);
        let (head, values) = self.slot(number, self.rank);
        let len = own.len().min(SLOT);
        // SAFETY: inside the map and aligned, and of this rank alone until `arrived` says that it is written;
        // who read it for exchange `number - 2` has sent its part of `number - 1`, which this rank has seen.
        unsafe {
            head.write(kind as u32);
            head.add(1).write(len as u32);
            values.copy_from_nonoverlapping(own.as_ptr(), len);
        }
        self.done.set(number + 1);
        self.arrived(self.rank).store(number + 1, SeqCst);
        self.wait(number + 1)?;
        let mut parts = [Part::default(); MOST_RANKS];
        for (rank, part) in parts[..self.world].iter_mut().enumerate() {
            *part = self.part(number, rank)?;
        }
        read(&parts[..self.world])
    }
}

impl Board for MappedBoard {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn all_reduce(&self, x: &mut [f32], adds: bool) -> Result<()> {
        all_reduce(self, x, adds)
    }

    fn all_gather(&self, x: &mut [f32], cols: usize, columns: &[Range<usize>]) -> Result<()> {
        all_gather(self, x, cols, columns)
    }

    fn check(&self) -> Result<()> {
        self.fate.error().map_or(Ok(()), Err)
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}
