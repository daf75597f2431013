//! Where pages go that the pool has no room for: host memory, or whatever implements [`PageStore`].
//!
//! A page is bytes in the layout of [`Engine::save`](crate::engine::Engine::save), under a number that is
//! never used twice. The prefix tree knows which pages are here; what the store gives up it names, and the
//! tree forgets it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps pages of keys and values.
///
/// It is asked on the engine's thread: one that is slow keeps steps waiting. A page that does not come back
/// as it was given counts as lost.
///
/// ```
/// use engraft_core::kv::{HostPages, PageStore};
///
/// let (mut pages, mut dropped) = (HostPages::new(10), Vec::new());
/// pages.put(1, vec![7; 6], &mut dropped);
/// pages.put(2, vec![8; 4], &mut dropped);
/// assert_eq!(pages.get(1).as_deref(), Some(&[7; 6][..]));
/// // What was used longest ago makes room.
/// pages.put(3, vec![9; 3], &mut dropped);
/// assert_eq!((pages.get(2), dropped), (None, vec![2]));
/// ```
pub trait PageStore: Send {
    /// Keeps a page; adds the numbers of those that it gives up to `dropped`, its own where it has no room.
    fn put(&mut self, number: u64, page: Vec<u8>, dropped: &mut Vec<u64>);

    /// A page; none where it has been lost.
    fn get(&mut self, number: u64) -> Option<Vec<u8>>;

    /// Forgets a page, where it is there.
    fn remove(&mut self, number: u64);
}

/// Pages in the memory of this process, up to so many bytes.
#[derive(Debug, Default)]
pub struct HostPages {
    room: usize,
    used: usize,
    /// When each was used last, and its bytes.
    pages: HashMap<u64, (u64, Vec<u8>)>,
    /// By when they were used.
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl HostPages {
    /// With room for so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { room: bytes, ..Self::default() }
    }

    /// Bytes of the pages that are here.
    pub fn used(&self) -> usize {
        self.used
    }
}

impl PageStore for HostPages {
    fn put(&mut self, number: u64, page: Vec<u8>, dropped: &mut Vec<u64>) {
        self.remove(number);
        if page.len() > self.room {
            dropped.push(number);
            return;
        }
        while self.used + page.len() > self.room {
            let Some((_, oldest)) = self.order.first_key_value().map(|(at, oldest)| (*at, *oldest)) else {
                break;
            };
            self.remove(oldest);
            dropped.push(oldest);
        }
        self.clock += 1;
        self.used += page.len();
        self.order.insert(self.clock, number);
        self.pages.insert(number, (self.clock, page));
    }

    fn get(&mut self, number: u64) -> Option<Vec<u8>> {
        let (at, page) = self.pages.get_mut(&number)?;
        self.clock += 1;
        self.order.remove(at);
        self.order.insert(self.clock, number);
        *at = self.clock;
        Some(page.clone())
    }

    fn remove(&mut self, number: u64) {
        if let Some((at, page)) = self.pages.remove(&number) {
            self.order.remove(&at);
            self.used -= page.len();
        }
    }
}

/// A store that the pages of an engine go to.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<dyn PageStore>>);

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a page store")
    }
}

impl Shared {
    pub(super) fn new(store: impl PageStore + 'static) -> Self {
        Self(Arc::new(Mutex::new(store)))
    }

    pub(super) fn with<T>(&self, act: impl FnOnce(&mut dyn PageStore) -> T) -> T {
        // A store that panicked answers for itself: what it lost is not found.
        act(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
