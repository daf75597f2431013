//! A rendezvous of processes of several machines: a link between any two.
//!
//! A thread a link reads parts as they come, so that no two ranks wait for each other's reads; a rank sends
//! its part to all, then takes theirs. No rank is ahead by more than an exchange, so a link holds at most two
//! parts that nobody has taken. Rank 0 may say that the group has ended while a part of the last exchange is
//! still on its way between two others: so a part is waited for until its link has ended, too, and who leaves
//! a group that has ended says so on every link by an empty part.

use crate::exchange::{Carrier, Kind, MOST_RANKS, Part, all_gather, all_reduce};
use crate::fate::{Fate, State};
use crate::link::Link;
use crate::watch::lost;
use crate::wire::{MOST_FRAME, receive_bytes, send_bytes};
use engraft_core::backend::Board;
use engraft_core::{Error, Result};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

/// Values that are sent at once.
const MOST: usize = 1 << 20;
/// How long after the end of a link its reason may come by another.
const GRACE: Duration = Duration::from_millis(300);

/// A rank's place among linked processes.
pub(crate) struct LinkedBoard {
    fate: Arc<Fate>,
    rank: usize,
    patience: Duration,
    /// Exchanges so far.
    done: Cell<u64>,
    /// By rank; none at its own place.
    peers: Vec<Option<Peer>>,
    own: RefCell<Sent>,
}

/// What is sent: the number of the exchange, its kind, and values.
#[derive(Default)]
struct Sent {
    values: Vec<f32>,
    bytes: Vec<u8>,
}

/// Bytes before the values.
const HEAD: usize = 12;

struct Peer {
    to: RefCell<Link>,
    from: Receiver<Vec<u8>>,
    /// The part that was taken last.
    part: RefCell<Vec<f32>>,
}

impl LinkedBoard {
    /// Over links to all other ranks, by rank.
    pub fn new(rank: usize, links: Vec<Option<Link>>, fate: Arc<Fate>, patience: Duration) -> Result<Self> {
        let mut board = Self {
            fate: fate.clone(),
            rank,
            patience,
            done: Cell::new(0),
            peers: Vec::new(),
            own: RefCell::default(),
        };
        for (peer, link) in links.into_iter().enumerate() {
            let made = link.map(|link| Peer::new(rank, peer, link, fate.clone(), patience)).transpose()?;
            board.peers.push(made);
        }
        Ok(board)
    }

    /// Sends `own` to all.
    fn send(&self, own: &[u8]) -> Result<()> {
        for (rank, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            if let Err(error) = send_bytes(&mut *peer.to.borrow_mut(), own) {
                let what = lost(&error, self.patience);
                self.fate.suspect(rank, &what, GRACE.min(self.patience / 2));
                return Err(self.fate.error().unwrap_or_else(|| self.fate.comm(rank, what)));
            }
        }
        Ok(())
    }

    /// Takes the part of a rank.
    fn take(&self, rank: usize, peer: &Peer, number: u64) -> Result<Kind> {
        let came = RefCell::new(Err(TryRecvError::Empty));
        let missing = || {
            let mut came = came.borrow_mut();
            if came.is_err() {
                *came = peer.from.try_recv();
            }
            came.is_err().then_some(rank)
        };
        let gone = |_| matches!(*came.borrow(), Err(TryRecvError::Disconnected));
        self.fate.wait(self.patience, Duration::MAX, || format!("exchange {}", number + 1), missing, gone)?;
        let bytes = came.into_inner().unwrap_or_default();
        let wrong = |what: String| {
            self.fate.fail(rank, &what);
            Err(self.fate.comm(rank, what))
        };
        let Some((head, values)) = bytes.split_at_checked(HEAD).filter(|(_, values)| values.len() % 4 == 0)
        else {
            return wrong(format!("sent {} bytes, which are no part of an exchange", bytes.len()));
        };
        let (sent, kind) = head.split_at(8);
        let (sent, kind) = (bytemuck::pod_read_unaligned::<u64>(sent), bytemuck::pod_read_unaligned(kind));
        let Some(kind) = Kind::of_word(kind).filter(|_| sent == number) else {
            return wrong(format!("sent kind {kind} of exchange {sent}, exchange {number} expected"));
        };
        let mut part = peer.part.borrow_mut();
        part.clear();
        part.extend(values.chunks_exact(4).map(bytemuck::pod_read_unaligned::<f32>));
        Ok(kind)
    }
}

impl Peer {
    fn new(own: usize, rank: usize, link: Link, fate: Arc<Fate>, patience: Duration) -> Result<Self> {
        let failed = |error| Error::io(format!("the link of ranks {own} and {rank}"), error);
        // What is read may be waited for without an end: nothing is sent between steps.
        link.patience(None, Some(patience)).map_err(failed)?;
        let from = link.another().map_err(failed)?;
        let (say, parts) = sync_channel(2);
        let named = thread::Builder::new().name(format!("engraft link {rank}"));
        named.spawn(move || listen(from, rank, &say, &fate, patience)).map_err(failed)?;
        Ok(Self { to: RefCell::new(link), from: parts, part: RefCell::default() })
    }
}

/// Reads parts until the link ends.
fn listen(mut from: Link, rank: usize, say: &SyncSender<Vec<u8>>, fate: &Fate, patience: Duration) {
    loop {
        let mut part = Vec::new();
        if let Err(error) = receive_bytes(&mut from, MOST_FRAME, &mut part) {
            // A group that ends well, or for another reason, says so elsewhere at the same time.
            return fate.suspect(rank, &lost(&error, patience), GRACE);
        }
        if part.is_empty() || say.send(part).is_err() {
            return;
        }
        fate.wake();
    }
}

impl Drop for LinkedBoard {
    fn drop(&mut self) {
        let ended = self.fate.state() == State::Ended;
        for peer in self.peers.iter().flatten() {
            let mut link = peer.to.borrow_mut();
            if ended {
                // Who is gone already need not hear it.
                let _ = send_bytes(&mut *link, &[]);
            }
            // The threads end with their links; a wait for them would hold up the message that all ends well.
            link.shut();
        }
    }
}

impl Carrier for LinkedBoard {
    fn fate(&self) -> &Fate {
        &self.fate
    }

    fn most(&self) -> usize {
        MOST
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
        let number = self.done.get();
        let mut own = self.own.borrow_mut();
        let Sent { values, bytes } = &mut *own;
        values.clear();
        fill(values);
        bytes.clear();
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&(kind as u32).to_le_bytes());
        bytes.extend_from_slice(bytemuck::cast_slice(values));
        self.send(bytes)?;
        self.done.set(number + 1);
        let mut kinds = [kind; MOST_RANKS];
        for (rank, peer) in self.peers.iter().enumerate() {
            if let Some(peer) = peer {
                kinds[rank] = self.take(rank, peer, number)?;
            }
        }
        let taken: [_; MOST_RANKS] =
            std::array::from_fn(|rank| Some(self.peers.get(rank)?.as_ref()?.part.borrow()));
        let parts: [Part<'_>; MOST_RANKS] = std::array::from_fn(|rank| match &taken[rank] {
            Some(values) => Part { kind: kinds[rank], values },
            None => Part { kind, values },
        });
        read(&parts[..self.peers.len()])
    }
}

impl Board for LinkedBoard {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.peers.len()
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
