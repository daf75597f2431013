//! Points in a stream's time: the device's own clock, else the host's behind a wait.
//!
//! A timestamp is a place in a set of queries. A set is read as a whole when a time between two of its places
//! is first asked for, and takes no more then. Writing one ends the compute pass, so what is measured runs in
//! passes of its own.
//!
//! Some devices write their clock where a pass begins and where it ends, and nowhere else (Apple's). There a
//! point is what lies between two passes: times from it count from where the next pass begins, times up to
//! it to where the one before has ended. Passes are timed while any such point is kept.

use crate::device::Gpu;
use engraft_core::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

/// Places of a set.
const PLACES: u32 = 512;

/// A point in a stream's time.
#[derive(Debug, Clone)]
pub struct WgpuEvent(At);

#[derive(Debug, Clone)]
enum At {
    Device(Place),
    Passes(Arc<Between>),
    Host(Instant),
}

/// A place of a set.
#[derive(Debug, Clone)]
struct Place(Arc<Set>, u32);

impl Place {
    fn ticks(&self) -> Option<u64> {
        self.0.ticks.get()?.get(self.1 as usize).copied()
    }
}

/// A point between two passes.
#[derive(Debug)]
pub(crate) struct Between {
    /// Where the pass before it ended.
    ended: Option<Place>,
    /// Where the pass behind it begins, once there is one.
    begins: OnceLock<Place>,
    /// As long as one is kept passes are timed.
    _kept: Arc<()>,
}

/// A set of queries.
#[derive(Debug)]
pub(crate) struct Set {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    used: AtomicU32,
    /// The device's ticks, once read.
    ticks: OnceLock<Vec<u64>>,
}

impl Set {
    fn new(gpu: &Gpu) -> Self {
        let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("timestamps"),
            ty: wgpu::QueryType::Timestamp,
            count: PLACES,
        });
        let resolved = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("timestamps"),
            size: u64::from(PLACES) * 8,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        Self { queries, resolved, used: AtomicU32::new(0), ticks: OnceLock::new() }
    }

    fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes of its places.
    pub fn bytes(&self) -> u64 {
        u64::from(self.used()) * 8
    }

    /// Copies its places to where the host can read them.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder, to: &wgpu::Buffer) {
        encoder.resolve_query_set(&self.queries, 0..self.used(), &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, to, 0, self.bytes());
    }

    /// Keeps what was read.
    pub fn keep(&self, ticks: Vec<u64>) {
        // A second reader has read the same.
        let _ = self.ticks.set(ticks);
    }
}

impl WgpuEvent {
    /// The host's clock.
    pub(crate) fn now() -> Self {
        Self(At::Host(Instant::now()))
    }

    pub(crate) fn between(passes: Arc<Between>) -> Self {
        Self(At::Passes(passes))
    }

    /// Whether the device's clock gave it.
    pub fn is_of_device(&self) -> bool {
        !matches!(self.0, At::Host(_))
    }

    /// Where times from it begin, or where times up to it end.
    fn place(&self, from: bool) -> Option<&Place> {
        match &self.0 {
            At::Device(place) => Some(place),
            At::Passes(between) if from => between.begins.get(),
            At::Passes(between) => between.ended.as_ref(),
            At::Host(_) => None,
        }
    }

    /// The sets that have to be read before the time to a later point is known.
    pub(crate) fn unread(&self, to: &Self) -> Vec<Arc<Set>> {
        let places = [self.place(true), to.place(false)].into_iter().flatten();
        let mut unread: Vec<Arc<Set>> = Vec::new();
        for Place(set, _) in places.filter(|Place(set, _)| set.ticks.get().is_none()) {
            if !unread.iter().any(|one| Arc::ptr_eq(one, set)) {
                unread.push(set.clone());
            }
        }
        unread
    }

    /// Microseconds to a later point, with ticks of `period` nanoseconds.
    ///
    /// # Errors
    /// `Internal` for points of different clocks.
    pub(crate) fn until_us(&self, to: &Self, period: f64) -> Result<f64> {
        match (&self.0, &to.0) {
            (At::Host(from), At::Host(to)) => return Ok(to.duration_since(*from).as_secs_f64() * 1e6),
            (At::Passes(from), At::Passes(to)) if Arc::ptr_eq(from, to) => return Ok(0.0),
            (At::Passes(_), At::Passes(_)) | (At::Device(_), At::Device(_)) => {}
            _ => return Err(Error::internal("times of two clocks")),
        }
        let ticks = |place: Option<&Place>| place.and_then(Place::ticks);
        match (ticks(self.place(true)), ticks(to.place(false))) {
            (Some(from), Some(to)) => Ok(to.wrapping_sub(from) as i64 as f64 * period / 1e3),
            _ => Err(Error::internal("a timestamp that was not read")),
        }
    }
}

/// Hands out places.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    open: Option<Arc<Set>>,
}

impl Clock {
    /// `count` places side by side, the first one's.
    fn places(&mut self, gpu: &Gpu, count: u32) -> Place {
        let set = match self.open.take().filter(|set| set.used() + count <= PLACES) {
            Some(set) => set,
            None => Arc::new(Set::new(gpu)),
        };
        let at = set.used.fetch_add(count, Ordering::Relaxed);
        self.open = Some(set.clone());
        Place(set, at)
    }

    /// Writes a timestamp, where commands may.
    pub fn stamp(&mut self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> WgpuEvent {
        let place = self.places(gpu, 1);
        encoder.write_timestamp(&place.0.queries, place.1);
        WgpuEvent(At::Device(place))
    }

    /// A set that is read takes no more.
    pub fn close(&mut self, set: &Arc<Set>) {
        self.open = self.open.take().filter(|open| !Arc::ptr_eq(open, set));
    }
}

/// Times passes, as long as a point between two of them is kept.
#[derive(Debug, Default)]
pub(crate) struct PassClock {
    clock: Clock,
    kept: Weak<()>,
    /// The point that the next pass begins behind.
    next: Option<Arc<Between>>,
    /// Where the last pass ended.
    ended: Option<Place>,
}

impl PassClock {
    /// The point where a pass has ended and none has begun. Two of them without a pass between are one.
    pub fn point(&mut self) -> Arc<Between> {
        let (kept, ended) = match self.kept.upgrade() {
            Some(kept) => (kept, self.ended.clone()),
            // What was timed for points that are gone is not known to be the last pass.
            None => (Arc::new(()), None),
        };
        self.kept = Arc::downgrade(&kept);
        let fresh = || Arc::new(Between { ended, begins: OnceLock::new(), _kept: kept });
        self.next.get_or_insert_with(fresh).clone()
    }

    /// The places that a pass which begins now writes; none where no point is kept.
    pub fn pass(&mut self, gpu: &Gpu) -> Option<PassTimes> {
        // The one that waits here is not kept by being here.
        let waits = self.next.take();
        let others = |next: &Arc<Between>| Arc::strong_count(next) > 1;
        let waits = waits.filter(others);
        if self.kept.strong_count() == 0 {
            (self.ended, self.clock.open) = (None, None);
            return None;
        }
        let begin = self.clock.places(gpu, 2);
        if let Some(next) = waits {
            // It is taken here alone, once.
            let _ = next.begins.set(begin.clone());
        }
        self.ended = Some(Place(begin.0.clone(), begin.1 + 1));
        Some(PassTimes(begin))
    }

    /// A set that is read takes no more.
    pub fn close(&mut self, set: &Arc<Set>) {
        self.clock.close(set);
    }

    /// Whether passes are timed now.
    #[cfg(test)]
    pub fn is_kept(&self) -> bool {
        self.kept.strong_count() > 0
    }
}

/// Where a pass writes its times.
#[derive(Debug)]
pub(crate) struct PassTimes(Place);

impl PassTimes {
    pub fn writes(&self) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.0.0.queries,
            beginning_of_pass_write_index: Some(self.0.1),
            end_of_pass_write_index: Some(self.0.1 + 1),
        }
    }
}
