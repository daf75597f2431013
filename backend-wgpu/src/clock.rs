//! Points in a stream's time: the device's own clock where encoders may write it, else the host's behind a
//! wait.
//!
//! A timestamp is a place in a set of queries. A set is read as a whole when a time between two of its places
//! is first asked for, and takes no more then. Writing one ends the compute pass, so what is measured runs in
//! passes of its own.

use crate::device::Gpu;
use engraft_core::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Places of a set.
const PLACES: u32 = 512;
/// What encoders need to write timestamps; browsers have them in passes alone.
const NEEDED: wgpu::Features =
    wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);

/// A point in a stream's time.
#[derive(Debug, Clone)]
pub struct WgpuEvent(At);

#[derive(Debug, Clone)]
enum At {
    Device(Arc<Set>, u32),
    Host(Instant),
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

    /// Whether the device's clock gave it.
    pub fn is_of_device(&self) -> bool {
        matches!(self.0, At::Device(..))
    }

    /// The set that has to be read before its time is known.
    pub(crate) fn unread(&self) -> Option<Arc<Set>> {
        match &self.0 {
            At::Device(set, _) if set.ticks.get().is_none() => Some(set.clone()),
            _ => None,
        }
    }

    /// Microseconds to a later point, with ticks of `period` nanoseconds.
    ///
    /// # Errors
    /// `Internal` for points of different clocks.
    pub(crate) fn until_us(&self, to: &Self, period: f64) -> Result<f64> {
        let tick = |set: &Set, at: u32| set.ticks.get().and_then(|ticks| ticks.get(at as usize)).copied();
        match (&self.0, &to.0) {
            (At::Host(from), At::Host(to)) => Ok(to.duration_since(*from).as_secs_f64() * 1e6),
            (At::Device(a, from), At::Device(b, to)) => match (tick(a, *from), tick(b, *to)) {
                (Some(from), Some(to)) => Ok(to.wrapping_sub(from) as i64 as f64 * period / 1e3),
                _ => Err(Error::internal("a timestamp that was not read")),
            },
            _ => Err(Error::internal("times of two clocks")),
        }
    }
}

/// Whether the device's clock gives points in its streams' time.
pub(crate) fn is_of_device(gpu: &Gpu) -> bool {
    gpu.device.features().contains(NEEDED)
}

/// Hands out places.
#[derive(Debug)]
pub(crate) struct Clock {
    of_device: bool,
    open: Option<Arc<Set>>,
}

impl Clock {
    pub fn new(gpu: &Gpu) -> Self {
        Self { of_device: is_of_device(gpu), open: None }
    }

    /// Writes a timestamp; none where encoders cannot.
    pub fn stamp(&mut self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Option<WgpuEvent> {
        if !self.of_device {
            return None;
        }
        let set = match self.open.take().filter(|set| set.used() < PLACES) {
            Some(set) => set,
            None => Arc::new(Set::new(gpu)),
        };
        let at = set.used.fetch_add(1, Ordering::Relaxed);
        encoder.write_timestamp(&set.queries, at);
        self.open = Some(set.clone());
        Some(WgpuEvent(At::Device(set, at)))
    }

    /// A set that is read takes no more.
    pub fn close(&mut self, set: &Arc<Set>) {
        self.open = self.open.take().filter(|open| !Arc::ptr_eq(open, set));
    }
}
