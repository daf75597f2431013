//! A rank's place in NCCL: how it is taken, and how it is left when another rank is missing.
//!
//! Whoever waits for the device looks here ([`Watched`]): NCCL is asked for asynchronous errors, the group
//! for a rank that is missing ([`Roll`]). Then the communicator is aborted: exchanges in flight end, and with
//! them the wait; what they leave is no result.

use super::nccl::{Config, Handle, IN_PROGRESS, Nccl, SUCCESS, Status, UniqueId, words};
use super::roll::{Roll, roll};
use super::watch::Watched;
use crate::mem::lock;
use engraft_core::backend::Board;
use engraft_core::{Error, Result};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long ranks that leave wait for each other.
const LEAVING: Duration = Duration::from_millis(200);
/// How long after NCCL's error the group may name the rank that caused it.
const GRACE: Duration = Duration::from_millis(600);
const NAP: Duration = Duration::from_millis(1);

/// The communicator of this rank.
#[derive(Debug)]
struct Comm(Handle);

// SAFETY: NCCL's calls may come from any thread, one at a time: the handle lies in a lock.
unsafe impl Send for Comm {}

/// A rank's place.
pub(crate) struct Link {
    nccl: Arc<Nccl>,
    /// None once it has been aborted.
    comm: Mutex<Option<Comm>>,
    roll: Roll,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Roll { rank, world, .. } = &self.roll;
        f.debug_struct("Link").field("rank", rank).field("world", world).finish_non_exhaustive()
    }
}

impl Link {
    /// Takes the place of the rank whose place on `board` this is, with the device's context current, for
    /// which no wait may last longer than `wait_limit`.
    ///
    /// # Errors
    /// `Comm` for a rank that is missing or has another version of NCCL, and with NCCL's own reason.
    pub fn new(nccl: &Arc<Nccl>, board: Box<dyn Board>, wait_limit: Duration) -> Result<Arc<Self>> {
        let (rank, world) = (board.rank(), board.world());
        let failed = |rank: usize, what: String| Error::Comm { rank, world, what };
        let own = nccl.version_code();
        let versions = roll(board.as_ref(), own as u64)?;
        if let Some(other) = versions.iter().position(|version| *version != versions[0]) {
            let [its, first] = [versions[other], versions[0]].map(|version| words(version as i32));
            let what = format!("its NCCL is {its}, that of rank 0 is {first}");
            return Err(failed(other, what));
        }
        let id = share_id(nccl, board.as_ref())?;
        let (mut handle, config) = (null_mut(), Config::without_waits());
        // SAFETY: pointers are to locals; the context is current by the caller's promise.
        let status =
            unsafe { (nccl.functions.init)(&mut handle, world as i32, UniqueId(id), rank as i32, &config) };
        if handle.is_null() || (status != SUCCESS && status != IN_PROGRESS) {
            let what = format!("ncclCommInitRankConfig: {}", nccl.explain(status));
            return Err(failed(rank, what));
        }
        let link = Arc::new(Self {
            nccl: nccl.clone(),
            comm: Mutex::new(Some(Comm(handle))),
            roll: Roll::new(board, wait_limit),
        });
        link.settle(status, "ncclCommInitRankConfig")?;
        Ok(link)
    }

    pub fn rank(&self) -> usize {
        self.roll.rank
    }

    pub fn world(&self) -> usize {
        self.roll.world
    }

    /// Calls NCCL for an exchange, and waits until it has taken the call; it runs later.
    ///
    /// # Errors
    /// `Comm` with the rank that is missing, or this one and NCCL's reason.
    pub fn call(&self, what: &str, call: impl FnOnce(Handle) -> Status) -> Result<()> {
        self.sound()?;
        // What a rank that is gone has left would pass for its part.
        if let Err(error) = self.roll.check() {
            self.fail(error);
            return self.sound();
        }
        self.roll.begin();
        let status = lock(&self.comm).as_ref().map(|comm| call(comm.0));
        match status {
            Some(status) => self.settle(status, what),
            None => self.sound(),
        }
    }

    /// Waits until a call that was begun has been taken.
    fn settle(&self, mut status: Status, what: &str) -> Result<()> {
        let began = Instant::now();
        while status == IN_PROGRESS {
            std::thread::sleep(NAP);
            if self.look(Duration::ZERO) {
                return self.sound();
            }
            if began.elapsed() > self.roll.patience {
                self.fail(self.roll.call(what));
                return self.sound();
            }
            status = self.state();
        }
        if status != SUCCESS {
            self.broken(what, status);
        }
        self.sound()
    }

    /// NCCL's state of the communicator.
    fn state(&self) -> Status {
        let comm = lock(&self.comm);
        let Some(comm) = comm.as_ref() else { return SUCCESS };
        let mut state = SUCCESS;
        // SAFETY: the communicator lives; the pointer is to a local.
        let asked = unsafe { (self.nccl.functions.async_error)(comm.0, &mut state) };
        if asked == SUCCESS { state } else { asked }
    }

    /// NCCL says that something is wrong: the rank that the group misses is the reason, else what NCCL says.
    fn broken(&self, what: &str, status: Status) {
        let said = format!("{what}: {}", self.nccl.explain(status));
        let began = Instant::now();
        while began.elapsed() < GRACE {
            if let Err(error) = self.roll.check() {
                return self.fail(error);
            }
            std::thread::sleep(NAP);
        }
        self.fail(self.roll.error(self.roll.rank, said));
    }

    /// Keeps the first reason, and ends what is in flight.
    fn fail(&self, error: Error) {
        self.roll.fail(error);
        self.abort();
    }

    fn abort(&self) {
        if let Some(comm) = lock(&self.comm).take() {
            // SAFETY: the communicator lives, and is not used afterwards.
            unsafe { (self.nccl.functions.abort)(comm.0) };
        }
    }
}

impl Watched for Link {
    fn look(&self, waited: Duration) -> bool {
        if self.roll.failed().is_some() {
            return true;
        }
        match (self.state(), self.roll.check()) {
            (SUCCESS | IN_PROGRESS, Ok(())) if waited > self.roll.patience => {
                self.fail(self.roll.call("a step"))
            }
            (SUCCESS | IN_PROGRESS, Ok(())) => return false,
            (_, Err(error)) => self.fail(error),
            (status, Ok(())) => self.broken("an exchange", status),
        }
        true
    }

    fn sound(&self) -> Result<()> {
        match (self.roll.failed(), self.state()) {
            (Some(error), _) => return Err(error),
            (None, SUCCESS | IN_PROGRESS) => return Ok(()),
            (None, _) => {}
        }
        self.broken("an exchange", self.state());
        self.roll.failed().map_or(Ok(()), Err)
    }
}

impl Drop for Link {
    /// In good order where the others leave, too: they may still read what this rank has sent. NCCL itself
    /// would wait for ranks that are gone.
    fn drop(&mut self) {
        let live = self.roll.failed().is_none();
        let handle = lock(&self.comm).as_ref().filter(|_| live).map(|comm| comm.0);
        let Some(handle) = handle else { return self.abort() };
        // SAFETY: the communicator lives.
        unsafe { (self.nccl.functions.finalize)(handle) };
        let began = Instant::now();
        while self.state() == IN_PROGRESS && began.elapsed() < LEAVING && self.roll.check().is_ok() {
            std::thread::sleep(NAP);
        }
        if self.state() == SUCCESS && lock(&self.comm).take().is_some() {
            // SAFETY: the communicator lives, and is not used afterwards.
            unsafe { (self.nccl.functions.destroy)(handle) };
        }
        self.abort();
    }
}

/// The id by which ranks find each other: rank 0 makes it, the board takes it to the others, a byte in each
/// value.
fn share_id(nccl: &Nccl, board: &dyn Board) -> Result<[u8; 128]> {
    let mut id = UniqueId([0; 128]);
    if board.rank() == 0 {
        // SAFETY: the pointer is to a local.
        let status = unsafe { (nccl.functions.unique_id)(&mut id) };
        if status != SUCCESS {
            let what = format!("ncclGetUniqueId: {}", nccl.explain(status));
            return Err(Error::Comm { rank: 0, world: board.world(), what });
        }
    }
    let mut values = id.0.map(f32::from);
    let mut columns = vec![128..128; board.world()];
    columns[0] = 0..128;
    board.all_gather(&mut values, 128, &columns)?;
    Ok(values.map(|value| value as u8))
}
