//! The state of the driver: tables of plain data, and the lock around them.
//!
//! Handles that C sees are numbers ([`Id`]) dressed as pointers. They are never dereferenced and never given
//! twice, so a stale or made-up handle is an error code here where a real driver would crash.
//! Every entry holds the lock from its first line to its last, except while it waits for a host function of
//! the program ([`crate::queue`]): those run on threads of the driver with the lock open, since they may wait
//! for threads that call it.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use ptx_vm::{Memory, Options};

use crate::capture::Capture;
use crate::code::{Code, Result};
use crate::context::Context;
use crate::device::Device;
use crate::event::Event;
use crate::fault::Faults;
use crate::graph::{Exec, Graph};
use crate::link::{Link, Linker};
use crate::memory::{Pool, Table};
use crate::module::{Function, Library, LoadedModule};
use crate::order::Order;
use crate::queue::Queue;
use crate::settings;
use crate::statistics::Statistics;
use crate::stream::Stream;
use crate::user::UserObject;

/// A handle: unique over all kinds and for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64);

impl Id {
    /// The handle that C holds.
    pub fn handle(self) -> *mut c_void {
        self.0 as *mut c_void
    }

    /// What C handed in.
    pub fn of(handle: *mut c_void) -> Id {
        Id(handle as u64)
    }
}

/// Ranges of device memory that a kernel has written, known when it has run.
pub type Written = std::sync::Arc<Mutex<Vec<Range<u64>>>>;

/// What can be chosen before `cuInit`, and partly later.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Virtual devices.
    pub devices: u32,
    /// Memory per device in bytes.
    pub memory: u64,
    /// Compute capability times ten.
    pub capability: u32,
    /// The order of unordered work.
    pub order: Order,
    /// Which texts the linker compiles.
    pub linker: Linker,
    /// How many more allocations of pinned memory are granted.
    pub pinned: u64,
    /// What the machine checks in kernels, and how it runs them.
    pub machine: Options,
    /// Report operations without order that touch the same bytes.
    pub stream_races: bool,
    /// A fault is told and spoils no context: the program goes on.
    pub go_on: bool,
    /// How long kernels that wait for each other wait for work that a thread of the program may bring.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let machine = Options { track_writes: true, threads, ..Options::default() };
        let (order, linker, pinned) = (Order::Latest, Linker::All, u64::MAX);
        let (stream_races, go_on, patience) = (true, false, Duration::from_secs(10));
        Settings {
            devices: 1,
            memory: 8 << 30,
            capability: crate::device::capability(),
            order,
            linker,
            pinned,
            machine,
            stream_races,
            go_on,
            patience,
        }
    }
}

/// Everything the driver knows.
pub struct Driver {
    /// Choices.
    pub settings: Settings,
    /// What the environment chooses and is no choice: `cuInit` fails.
    pub refused: bool,
    /// `cuInit` has succeeded.
    pub initialised: bool,
    /// In which process: one that was forked from it has no driver, as on a GPU.
    pub process: u32,
    /// By ordinal.
    pub devices: Vec<Device>,
    /// Live contexts.
    pub contexts: BTreeMap<Id, Context>,
    /// Live streams, the default ones included.
    pub streams: BTreeMap<Id, Stream>,
    /// The per-thread default streams.
    pub thread_streams: BTreeMap<(Id, u64), Id>,
    /// Numbers of the threads that have such streams.
    pub threads: Vec<ThreadId>,
    /// Live events.
    pub events: BTreeMap<Id, Event>,
    /// Loaded modules.
    pub modules: BTreeMap<Id, LoadedModule>,
    /// Their kernels.
    pub functions: BTreeMap<Id, Function>,
    /// Loaded libraries.
    pub libraries: BTreeMap<Id, Library>,
    /// Kernels of libraries: library and name.
    pub kernels: BTreeMap<Id, (Id, String)>,
    /// Memory pools.
    pub pools: BTreeMap<Id, Pool>,
    /// Allocations and pinned ranges.
    pub table: Table,
    /// The bytes.
    pub memory: Memory,
    /// Graphs under construction.
    pub graphs: BTreeMap<Id, Graph>,
    /// The graph of each node.
    pub nodes: BTreeMap<Id, Id>,
    /// Instantiated graphs.
    pub execs: BTreeMap<Id, Exec>,
    /// Destroyed ones whose last launch may not have ended.
    pub retired: Vec<Exec>,
    /// Captures that have not ended.
    pub captures: BTreeMap<Id, Capture>,
    /// User objects.
    pub objects: BTreeMap<Id, UserObject>,
    /// Linker states.
    pub links: BTreeMap<Id, Link>,
    /// Work to be done.
    pub queue: Queue,
    /// Signalled when a host function has returned; it lives as long as the process, like the threads that
    /// signal it.
    pub returned: &'static Condvar,
    /// The last fault in words.
    pub last_fault: Option<String>,
    /// All distinct ones, without their threads.
    pub faults: Faults,
    /// What has run.
    pub statistics: Statistics,
    next: u64,
}

/// The driver, locked.
pub type Held = MutexGuard<'static, Driver>;

impl Driver {
    /// A driver that is not initialised.
    pub fn new() -> Self {
        Driver {
            settings: Settings::default(),
            refused: false,
            initialised: false,
            process: 0,
            devices: Vec::new(),
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            thread_streams: BTreeMap::new(),
            threads: Vec::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            libraries: BTreeMap::new(),
            kernels: BTreeMap::new(),
            pools: BTreeMap::new(),
            table: Table::default(),
            memory: Memory::new(),
            graphs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            execs: BTreeMap::new(),
            retired: Vec::new(),
            captures: BTreeMap::new(),
            objects: BTreeMap::new(),
            links: BTreeMap::new(),
            queue: Queue::default(),
            returned: Box::leak(Box::default()),
            last_fault: None,
            faults: Faults::default(),
            statistics: Statistics::default(),
            next: 0x5C00_0000_0000,
        }
    }

    /// A new handle.
    pub fn id(&mut self) -> Id {
        self.next += 0x40;
        Id(self.next)
    }

    /// Starts the devices that the settings name; a second call changes nothing.
    pub fn initialise(&mut self) -> Result {
        if self.initialised {
            return if self.is_here() { Ok(()) } else { Err(Code::NOT_INITIALIZED) };
        }
        if self.refused {
            return Err(Code::INVALID_VALUE);
        }
        if self.settings.devices == 0 {
            return Err(Code::NO_DEVICE);
        }
        for ordinal in 0..self.settings.devices {
            self.memory.set_capacity(ordinal, self.settings.memory);
            let pool = self.id();
            self.pools.insert(pool, Pool::new(ordinal, 0));
            self.devices.push(Device::new(pool));
        }
        (self.initialised, self.process) = (true, std::process::id());
        Ok(())
    }

    /// Whether `cuInit` has succeeded in this process.
    pub fn is_here(&self) -> bool {
        self.initialised && self.process == std::process::id()
    }

    /// A small number for the calling thread.
    pub fn thread(&mut self) -> u64 {
        let id = std::thread::current().id();
        let at = self.threads.iter().position(|&t| t == id);
        at.unwrap_or_else(|| {
            self.threads.push(id);
            self.threads.len() - 1
        }) as u64
    }
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| {
    let mut driver = Driver::new();
    settings::from_environment(&mut driver);
    Mutex::new(driver)
});

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// A thread of the program that has called the driver.
struct Known;

impl Drop for Known {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

thread_local! {
    static KNOWN: Known = {
        THREADS.fetch_add(1, Ordering::Relaxed);
        Known
    };
}

/// The calling thread uses the driver, until it ends.
pub fn enter() {
    // A thread that is about to end, and whose marks are gone, brings no more work.
    let _ = KNOWN.try_with(|_| ());
}

/// Threads that have called the driver and have not ended.
pub fn threads() -> usize {
    THREADS.load(Ordering::Relaxed)
}

/// Locks the process's driver.
pub fn lock() -> Held {
    enter();
    DRIVER.lock()
}

/// Locks it if nobody else has it.
pub fn try_lock() -> Option<Held> {
    DRIVER.try_lock()
}
