//! The state machine without C: modules called directly, on a driver of the test's own.

mod capturing;
mod graphs;
mod order;
mod races;
mod resources;

use parking_lot::Mutex;

use crate::context;
use crate::order::Order;
use crate::state::{Driver, Held, Id};
use crate::{copy, memory, stream};

/// Every rule, some seeds.
pub fn orders() -> Vec<Order> {
    let fixed = [Order::Eager, Order::Latest, Order::OthersFirst];
    fixed.into_iter().chain((0..20).map(Order::Seeded)).collect()
}

/// An initialised driver with two devices, and a current context on the first.
pub fn driver(order: Order) -> (&'static Mutex<Driver>, Id) {
    let mut driver = Driver::new();
    driver.settings.devices = 2;
    driver.settings.memory = 1 << 20;
    driver.settings.order = order;
    // What wrong programs compute is what many of these tests are about.
    driver.settings.stream_races = false;
    if let Order::Seeded(seed) = order {
        driver.queue.seed(seed);
    }
    driver.initialise().expect("devices");
    let context = context::retain_primary(&mut driver, 0).expect("a context");
    context::set_current(&driver, Some(context)).expect("it is alive");
    (Box::leak(Box::new(Mutex::new(driver))), context)
}

/// Locks it.
pub fn lock(driver: &'static Mutex<Driver>) -> Held {
    Mutex::lock(driver)
}

/// A non-blocking stream.
pub fn free_stream(d: &mut Driver) -> Id {
    stream::create(d, stream::NON_BLOCKING, 0).expect("a stream")
}

/// Device memory that holds one byte value.
pub fn filled(d: &mut Held, bytes: usize, value: u8) -> u64 {
    let address = memory::allocate(d, bytes).expect("memory");
    d.memory.fill(address, bytes as u64, &[value]).expect("live memory");
    address
}

/// Sets bytes in a stream.
pub fn set(d: &mut Held, address: u64, value: u8, bytes: usize, stream: Id) -> crate::code::Result {
    let fill =
        crate::work::Fill { address, pitch: 0, value: value.into(), element: 1, width: bytes, height: 1 };
    copy::fill(d, fill, Some(stream))
}

/// Copies device memory in a stream.
pub fn duplicate(d: &mut Held, to: u64, from: u64, bytes: usize, stream: Id) -> crate::code::Result {
    let side = |a| copy::Side::row(copy::End::Device(a));
    copy::copy(d, side(to), side(from), copy::Extent::row(bytes), Some(stream))
}

/// The first byte of device memory, as it is now.
pub fn peek(d: &Held, address: u64) -> u8 {
    let mut byte = [0];
    d.memory.read(address, &mut byte).expect("live memory");
    byte[0]
}
