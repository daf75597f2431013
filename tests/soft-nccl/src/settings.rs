//! What a test program sets.

use crate::Order;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

static ORDER: AtomicU64 = AtomicU64::new(0);
static PATIENCE: AtomicU64 = AtomicU64::new(20_000);
static VERSION: AtomicU64 = AtomicU64::new(22_809);

pub fn order() -> Order {
    Order::ALL.into_iter().find(|order| *order as u64 == ORDER.load(SeqCst)).unwrap_or(Order::Ring)
}

pub fn patience() -> Duration {
    Duration::from_millis(PATIENCE.load(SeqCst))
}

pub fn version() -> i32 {
    VERSION.load(SeqCst) as i32
}

/// [`crate::Control::order`].
#[unsafe(no_mangle)]
pub extern "C" fn softNcclOrder(order: u64) {
    ORDER.store(order, SeqCst);
}

/// [`crate::Control::patience`].
#[unsafe(no_mangle)]
pub extern "C" fn softNcclPatience(milliseconds: u64) {
    PATIENCE.store(milliseconds, SeqCst);
}

/// [`crate::Control::version`].
#[unsafe(no_mangle)]
pub extern "C" fn softNcclVersion(version: u64) {
    VERSION.store(version, SeqCst);
}

/// [`crate::Control::break_links`].
#[unsafe(no_mangle)]
pub extern "C" fn softNcclBreak(_: u64) {
    crate::group::all().iter().for_each(|group| group.fail("a link of the network is broken"));
}
