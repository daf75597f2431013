//! What a rank does to its group.

use engraft_core::backend::Board;
use engraft_core::{Error, Result};
use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// How a rank fails at an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// Not at all.
    None,
    /// Its process ends at once.
    Kill,
    /// Its process is stopped.
    Stop,
    /// It never comes back from the exchange, as where a driver hangs.
    Hang,
    /// It ends as if all were well, and says nothing.
    Leave,
    /// It sends what is no message on all of its links, and then nothing more.
    Garbage,
    /// It writes what is no part into the file that all map, says that it is there, and then nothing more.
    Slot,
    /// Its part is longer than that of the others, or for another purpose.
    Longer,
}

impl Harm {
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Kill,
        Self::Stop,
        Self::Hang,
        Self::Leave,
        Self::Garbage,
        Self::Slot,
        Self::Longer,
    ];

    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|harm| harm.name() == name)
    }

    /// Does it; an error where the rank lives on and takes no further part.
    pub fn done(self, board: &dyn Board) -> Result<()> {
        match self {
            Self::None | Self::Longer => return Ok(()),
            _ => say(),
        }
        match self {
            Self::Garbage => {
                let mut links = links().map_err(|error| Error::io("/proc/self/fd", error))?;
                // Of three ways, by where in the run it is.
                let way = super::struck::EXCHANGES.load(SeqCst) % 3;
                links.iter_mut().for_each(|link| garbage(link, way));
                return until_named(board);
            }
            Self::Slot => {
                slots(board).map_err(|error| Error::io("/proc/self/maps", error))?;
                return until_named(board);
            }
            ends => ends.end(),
        }
        Ok(())
    }

    /// Does it where there is no board yet.
    pub fn alone(self) {
        if self != Self::None {
            say();
            self.end();
        }
    }

    fn end(self) {
        match self {
            Self::Kill => signal(libc::SIGKILL),
            Self::Stop => signal(libc::SIGSTOP),
            Self::Hang => loop {
                thread::sleep(Duration::from_secs(1));
            },
            Self::Leave => std::process::exit(0),
            _ => {}
        }
    }
}

/// Says that the harm is done now.
pub fn say() {
    println!("struck");
    let _ = io::stdout().flush();
}

fn signal(number: i32) {
    // SAFETY: sends a signal to this process; no memory is touched.
    unsafe { libc::kill(libc::getpid(), number) };
}

/// Waits until this rank hears that the group has failed.
fn until_named(board: &dyn Board) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        board.check()?;
        thread::sleep(Duration::from_millis(5));
    }
    Err(Error::internal("this rank does harm, and the others go on"))
}

/// The sockets of this process.
fn links() -> io::Result<Vec<fs::File>> {
    use std::os::fd::FromRawFd;
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_link = fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_string_lossy().parse::<i32>().unwrap_or(0);
        if is_link && number > 2 {
            // SAFETY: duplicates a handle of this process, which the file then owns.
            all.push(unsafe { fs::File::from_raw_fd(libc::dup(number)) });
        }
    }
    Ok(all)
}

/// Sends what no rank sends: other bytes, a message that is damaged, or one that says nothing.
fn garbage(link: &mut fs::File, way: usize) {
    let payload = [0xFFu8; 21];
    let sum = crc32fast::hash(&payload).wrapping_add(u32::from(way == 1));
    let mut bytes = match way {
        0 => b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        _ => [&b"EGR\x02"[..], &(payload.len() as u32).to_le_bytes(), &sum.to_le_bytes()].concat(),
    };
    bytes.extend(payload);
    // Some are closed already, or listen.
    let _ = link.write_all(&bytes);
}

/// Writes heads that no exchange has into both slots of this rank, and then that its part is there.
fn slots(board: &dyn Board) -> io::Result<()> {
    // The layout of the file: counters, and slots behind heads.
    const COUNTERS: usize = 8 * 128;
    const STRIDE: usize = 128 + 4 * (1 << 17);
    let maps = fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.contains("/dev/shm/engraft-"));
    let range = line.and_then(|line| line.split_whitespace().next()?.split_once('-'));
    let number = |text: &str| usize::from_str_radix(text, 16).map_err(io::Error::other);
    let (start, end) = range.ok_or_else(|| io::Error::other("no file of a board is mapped"))?;
    let (start, end) = (number(start)?, number(end)?);
    let (rank, world) = (board.rank(), board.world());
    if (COUNTERS + 2 * world * STRIDE).next_multiple_of(4096) != end - start {
        return Err(io::Error::other(format!("a board of {} bytes", end - start)));
    }
    for parity in 0..2 {
        let at = start + COUNTERS + (parity * world + rank) * STRIDE;
        // SAFETY: inside the map, which lives as long as the board, and aligned; the slot is this rank's.
        unsafe {
            (at as *mut u32).write_volatile(77);
            (at as *mut u32).add(1).write_volatile(u32::MAX);
        }
    }
    // SAFETY: as above; a counter of this rank, which others read as an atomic word.
    unsafe { (*((start + rank * 128) as *const AtomicU64)).store(u64::MAX / 2, SeqCst) };
    Ok(())
}
