//! NCCL's functions.
#![allow(
    non_snake_case,
    missing_docs,
    clippy::missing_safety_doc,
    reason = "NVIDIA's header names and documents them"
)]

use crate::driver::driver;
use crate::group::{Call, F32, Group};
use crate::settings;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// `ncclResult_t`.
pub type Status = i32;
const SUCCESS: Status = 0;
const UNHANDLED_CUDA: Status = 1;
const INTERNAL: Status = 3;
const INVALID_ARGUMENT: Status = 4;
const INVALID_USAGE: Status = 5;
const IN_PROGRESS: Status = 7;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

/// The part of `ncclConfig_t` that every version from 2.19 on has.
#[repr(C)]
pub struct Config {
    pub size: usize,
    pub magic: u32,
    pub version: u32,
    pub blocking: i32,
    pub others: [i32; 3],
    pub net: *const c_char,
    pub split_share: i32,
}

/// A communicator: handles are numbers, and are not given out again.
struct Comm {
    rank: usize,
    group: Arc<Group>,
    /// Collectives so far, counted as they run.
    done: AtomicU64,
    /// Calls inside a group that has not ended.
    waiting: AtomicU64,
}

struct State {
    ids: BTreeMap<[u8; 16], Option<Arc<Group>>>,
    live: BTreeMap<usize, Arc<Comm>>,
    ended: BTreeSet<usize>,
    made: usize,
}

fn state() -> MutexGuard<'static, State> {
    static STATE: Mutex<State> =
        Mutex::new(State { ids: BTreeMap::new(), live: BTreeMap::new(), ended: BTreeSet::new(), made: 0 });
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// What was said to this thread last.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
    static QUEUED: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
}

/// A collective on its way to a stream.
struct Job {
    comm: Arc<Comm>,
    call: Call,
    send: u64,
    receive: u64,
    bytes: usize,
    bytes_back: usize,
    stream: usize,
}

fn refuse(status: Status, why: impl Into<String>) -> Status {
    SAID.set(why.into());
    status
}

/// The communicator of a handle, or why it is none.
fn find(handle: *mut c_void, name: &str) -> Result<Arc<Comm>, Status> {
    let state = state();
    if let Some(comm) = state.live.get(&(handle as usize)) {
        return Ok(comm.clone());
    }
    let (status, why) = match state.ended.contains(&(handle as usize)) {
        true => (INVALID_USAGE, "of a communicator that has been aborted or destroyed"),
        false => (INVALID_ARGUMENT, "of what is no communicator"),
    };
    Err(refuse(status, format!("{name} {why}")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut i32) -> Status {
    if version.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's promise.
    unsafe { *version = settings::version() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Status {
    let mut state = state();
    state.made += 1;
    let mut words = [0; 128];
    words[..8].copy_from_slice(b"softnccl");
    words[8..16].copy_from_slice(&state.made.to_le_bytes());
    // What no rank may lose on its way.
    (16..128).for_each(|i| words[i] = (i * 151 % 256) as u8);
    let key = key(&words);
    state.ids.insert(key, None);
    // SAFETY: the caller's promise: room for an id.
    unsafe { *id = UniqueId(words) };
    SUCCESS
}

fn key(words: &[u8; 128]) -> [u8; 16] {
    std::array::from_fn(|i| words[i])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    to: *mut *mut c_void,
    world: i32,
    id: UniqueId,
    rank: i32,
    config: *const Config,
) -> Status {
    // SAFETY: the caller's promise: null, or a configuration.
    let config = unsafe { config.as_ref() };
    let fits = |c: &Config| c.size >= size_of::<Config>() && c.magic == 0xcafe_beef && c.version >= 21_900;
    if to.is_null() || world < 1 || !(0..world).contains(&rank) || !config.is_none_or(fits) {
        return refuse(INVALID_ARGUMENT, format!("ncclCommInitRankConfig of rank {rank} of {world}"));
    }
    if !driver().is_some_and(|driver| driver.has_context()) {
        return refuse(UNHANDLED_CUDA, "ncclCommInitRankConfig without a current context");
    }
    let whole = (16..128).all(|i| id.0[i] == (i * 151 % 256) as u8);
    let group = {
        let mut state = state();
        match state.ids.get_mut(&key(&id.0)).filter(|_| whole) {
            Some(group) => group.get_or_insert_with(|| Group::new(world as usize)).clone(),
            None => {
                let why = "ncclCommInitRankConfig by an id that ncclGetUniqueId did not give";
                return refuse(INVALID_ARGUMENT, why);
            }
        }
    };
    if group.world != world as usize {
        return refuse(INVALID_ARGUMENT, format!("{world} ranks in a group of {}", group.world));
    }
    if let Err(why) = group.join(rank as usize) {
        return refuse(INVALID_USAGE, why);
    }
    let comm = Arc::new(Comm {
        rank: rank as usize,
        group: group.clone(),
        done: AtomicU64::new(0),
        waiting: AtomicU64::new(0),
    });
    let handle = {
        let mut state = state();
        state.made += 1;
        let handle = 0x6e63_0000 + 64 * state.made;
        state.live.insert(handle, comm);
        handle
    };
    // SAFETY: the caller's promise: room for a handle.
    unsafe { *to = handle as *mut c_void };
    if config.is_some_and(|config| config.blocking == 0) {
        return IN_PROGRESS;
    }
    while group.health() == Ok(false) {
        std::thread::sleep(Duration::from_millis(1));
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(handle: *mut c_void, to: *mut Status) -> Status {
    let comm = match find(handle, "ncclCommGetAsyncError") {
        Ok(comm) => comm,
        Err(status) => return status,
    };
    let status = match comm.group.health() {
        Ok(true) => SUCCESS,
        Ok(false) => IN_PROGRESS,
        Err(why) => refuse(INTERNAL, why),
    };
    // SAFETY: the caller's promise: room for a status.
    unsafe { *to = status };
    SUCCESS
}

fn end(handle: *mut c_void, name: &str) -> Status {
    let comm = match find(handle, name) {
        Ok(comm) => comm,
        Err(status) => return status,
    };
    comm.group.leave(comm.rank);
    let mut state = state();
    state.live.remove(&(handle as usize));
    state.ended.insert(handle as usize);
    match comm.waiting.load(SeqCst) {
        0 => SUCCESS,
        calls => {
            refuse(INVALID_USAGE, format!("{calls} calls of rank {} wait for a ncclGroupEnd", comm.rank))
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(handle: *mut c_void) -> Status {
    match find(handle, "ncclCommFinalize") {
        Ok(comm) => comm.group.finalize(comm.rank),
        Err(status) => return status,
    }
    IN_PROGRESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(handle: *mut c_void) -> Status {
    end(handle, "ncclCommAbort")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(handle: *mut c_void) -> Status {
    end(handle, "ncclCommDestroy")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> Status {
    DEPTH.set(DEPTH.get() + 1);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> Status {
    match DEPTH.get() {
        0 => return refuse(INVALID_USAGE, "ncclGroupEnd without a ncclGroupStart"),
        depth => DEPTH.set(depth - 1),
    }
    if DEPTH.get() > 0 {
        return SUCCESS;
    }
    let jobs = QUEUED.take();
    jobs.into_iter()
        .map(|job| {
            job.comm.waiting.fetch_sub(1, SeqCst);
            job.submit()
        })
        .find(|status| *status != SUCCESS)
        .unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    send: u64,
    receive: u64,
    count: usize,
    dtype: i32,
    handle: *mut c_void,
    stream: *mut c_void,
) -> Status {
    collective(Call { name: "ncclAllGather", count, dtype, op: 0 }, send, receive, handle, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    send: u64,
    receive: u64,
    count: usize,
    dtype: i32,
    op: i32,
    handle: *mut c_void,
    stream: *mut c_void,
) -> Status {
    if (dtype, op) != (F32, 0) {
        return refuse(
            INVALID_ARGUMENT,
            format!("ncclAllReduce of type {dtype} by operation {op}: sums of f32 alone"),
        );
    }
    collective(Call { name: "ncclAllReduce", count, dtype, op }, send, receive, handle, stream)
}

/// Bytes of an element of a type.
fn bytes(dtype: i32) -> Option<usize> {
    match dtype {
        0 | 1 => Some(1),
        2 | 3 | F32 => Some(4),
        4 | 5 | 8 => Some(8),
        6 | 9 => Some(2),
        _ => None,
    }
}

fn collective(call: Call, send: u64, receive: u64, handle: *mut c_void, stream: *mut c_void) -> Status {
    let comm = match find(handle, call.name) {
        Ok(comm) => comm,
        Err(status) => return status,
    };
    if let Err(why) = comm.group.health() {
        return refuse(INTERNAL, why);
    }
    if !comm.group.all_joined() {
        return refuse(INVALID_USAGE, format!("{} before all ranks have joined", call.name));
    }
    let Some(element) = bytes(call.dtype) else {
        return refuse(INVALID_ARGUMENT, format!("{} of type {}", call.name, call.dtype));
    };
    let bytes = call.count * element;
    let bytes_back = if call.name == "ncclAllGather" { bytes * comm.group.world } else { bytes };
    let job = Job { comm, call, send, receive, bytes, bytes_back, stream: stream as usize };
    if DEPTH.get() > 0 {
        job.comm.waiting.fetch_add(1, SeqCst);
        QUEUED.with_borrow_mut(|queued| queued.push(job));
        return SUCCESS;
    }
    job.submit()
}

/// What the host function is given; it lives as long as the process, as graphs may be replayed.
struct Turn {
    comm: Arc<Comm>,
    call: Call,
    sent: (*const u8, usize),
    received: (*mut u8, usize),
}

impl Job {
    fn submit(self) -> Status {
        let Job { comm, call, send, receive, bytes, bytes_back, stream } = self;
        let Some(driver) = driver() else { return UNHANDLED_CUDA };
        let (Some(sent), Some(received)) = (driver.pinned(bytes), driver.pinned(bytes_back)) else {
            return refuse(UNHANDLED_CUDA, "no host memory");
        };
        let turn = Turn { comm, call, sent: (sent, bytes), received: (received, bytes_back) };
        let data = Box::into_raw(Box::new(turn)).cast();
        // SAFETY: pinned memory of these sizes, and a turn, all of which live on.
        let done = unsafe {
            driver.enqueue(
                stream as *mut c_void,
                (send, sent, bytes),
                (take_turn, data),
                (receive, received, bytes_back),
            )
        };
        if done { SUCCESS } else { refuse(UNHANDLED_CUDA, format!("{}: the driver refuses", call.name)) }
    }
}

unsafe extern "C" fn take_turn(data: *mut c_void) {
    // SAFETY: made by `submit`, and alive.
    let turn = unsafe { &*data.cast::<Turn>() };
    // SAFETY: memory of these sizes, which this turn alone has now.
    let (sent, received) = unsafe {
        let sent = std::slice::from_raw_parts(turn.sent.0, turn.sent.1);
        (sent, std::slice::from_raw_parts_mut(turn.received.0, turn.received.1))
    };
    let number = turn.comm.done.fetch_add(1, SeqCst);
    turn.comm.group.come(number, turn.comm.rank, turn.call, sent, received);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(status: Status) -> *const c_char {
    let text: &std::ffi::CStr = match status {
        SUCCESS => c"no error",
        UNHANDLED_CUDA => c"unhandled cuda error",
        INTERNAL => c"internal error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// What was said last; the text lives as long as the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLastError(_: *mut c_void) -> *const c_char {
    let said = SAID.with_borrow(|said| said.replace('\0', " "));
    CString::new(said).map_or(c"".as_ptr(), |text| text.into_raw().cast_const())
}
