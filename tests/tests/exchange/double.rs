//! That the double names misuse where NCCL hangs or returns a number: called as a program calls NCCL.

use super::{Double, device, double};
use engraft_core::backend::Backend;
use engraft_core::numerics::Mode;
use engraft_cuda::Cuda;
use soft_nccl::ffi::{Config, Status, UniqueId};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

type Handle = *mut c_void;
type Make = unsafe extern "C" fn(*mut Handle, i32, UniqueId, i32, *const Config) -> Status;
type Gather = unsafe extern "C" fn(u64, u64, usize, i32, Handle, Handle) -> Status;
type Reduce = unsafe extern "C" fn(u64, u64, usize, i32, i32, Handle, Handle) -> Status;
type Of = unsafe extern "C" fn(Handle) -> Status;
type Bare = unsafe extern "C" fn() -> Status;

const F32: i32 = 7;
const U8: i32 = 1;

/// A stream of the calling thread's context. Ranks that share a device share the one that has no handle:
/// there one would wait behind the other, which waits for it.
fn stream() -> Handle {
    type Create = unsafe extern "C" fn(*mut Handle, u32) -> u32;
    let mut stream = null_mut();
    // SAFETY: the driver's function of this name; the pointer is to a local.
    let code =
        unsafe { std::mem::transmute::<*mut c_void, Create>(of_driver(c"cuStreamCreate"))(&mut stream, 1) };
    assert_eq!(code, 0);
    stream
}

/// Asks whether a stream has done all: only who asks lets the software driver go on.
fn query(stream: Handle) {
    type Query = unsafe extern "C" fn(Handle) -> u32;
    // SAFETY: the driver's function of this name; the stream lives.
    unsafe { std::mem::transmute::<*mut c_void, Query>(of_driver(c"cuStreamQuery"))(stream) };
}

fn of_driver(name: &CStr) -> *mut c_void {
    // SAFETY: looks a name up.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!function.is_null(), "no driver is loaded");
    function
}

/// Its functions, called on the calling thread.
#[derive(Clone, Copy)]
struct Calls<'a>(&'a Double);

/// What a rank calls with: memory, a stream and a communicator.
#[derive(Clone, Copy)]
struct With {
    at: u64,
    stream: Handle,
    handle: usize,
}

impl Calls<'_> {
    fn get<F: Copy>(&self, name: &str) -> F {
        // SAFETY: types of NCCL's header.
        unsafe { self.0.0.function(name) }.unwrap()
    }

    fn id(&self) -> UniqueId {
        let mut id = UniqueId([0; 128]);
        let make: unsafe extern "C" fn(*mut UniqueId) -> Status = self.get("ncclGetUniqueId");
        // SAFETY: the pointer is to a local.
        assert_eq!(unsafe { make(&mut id) }, 0);
        id
    }

    /// Joins as a program that waits does.
    fn join(&self, id: UniqueId, world: i32, rank: i32) -> (Status, usize) {
        let mut handle = null_mut();
        // SAFETY: the pointer is to a local.
        let status =
            unsafe { self.get::<Make>("ncclCommInitRankConfig")(&mut handle, world, id, rank, null()) };
        (status, handle as usize)
    }

    fn gather(&self, with: With, count: usize, dtype: i32) -> Status {
        let With { at, stream, handle } = with;
        // SAFETY: the memory has room for what the ranks send.
        unsafe { self.get::<Gather>("ncclAllGather")(at, at + 512, count, dtype, handle as Handle, stream) }
    }

    fn reduce(&self, with: With, count: usize, op: i32) -> Status {
        let With { at, stream, handle } = with;
        // SAFETY: as above.
        unsafe { self.get::<Reduce>("ncclAllReduce")(at, at, count, F32, op, handle as Handle, stream) }
    }

    fn of(&self, name: &str, handle: usize) -> Status {
        // SAFETY: handles are numbers to the double.
        unsafe { self.get::<Of>(name)(handle as Handle) }
    }

    fn bare(&self, name: &str) -> Status {
        // SAFETY: takes nothing.
        unsafe { self.get::<Bare>(name)() }
    }

    fn state(&self, handle: usize) -> Status {
        let ask: unsafe extern "C" fn(Handle, *mut Status) -> Status = self.get("ncclCommGetAsyncError");
        let mut state = 0;
        // SAFETY: the pointer is to a local.
        let asked = unsafe { ask(handle as Handle, &mut state) };
        if asked == 0 { state } else { asked }
    }

    fn said(&self) -> String {
        let said: unsafe extern "C" fn(Handle) -> *const c_char = self.get("ncclGetLastError");
        // SAFETY: a text that lives as long as the process.
        unsafe { CStr::from_ptr(said(null_mut())) }.to_string_lossy().into_owned()
    }
}

/// What two ranks say at the end of calls of their own.
fn two(double: &Double, body: impl Fn(Calls<'_>, usize, With) + Sync) -> String {
    let (gpu, calls) = (device(double, Mode::Reference), Calls(double));
    let (id, body) = (calls.id(), &body);
    let one = |rank: usize| {
        let gpu: Arc<Cuda> = gpu.of_rank(rank, 2).unwrap();
        let mem = gpu.alloc(4096).unwrap();
        let (status, handle) = calls.join(id, 2, rank as i32);
        assert_eq!(status, 0, "{}", calls.said());
        let with = With { at: mem.address(), stream: stream(), handle };
        body(calls, rank, with);
        // Asked until it is known.
        let state = (0..2000).find_map(|_| {
            query(with.stream);
            thread::sleep(Duration::from_millis(1));
            Some(calls.state(handle)).filter(|state| *state != 0)
        });
        let said = if state.is_some() { calls.said() } else { "nothing".into() };
        calls.of("ncclCommAbort", handle);
        said
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| one(1));
        let said = one(0);
        other.join().unwrap();
        said
    })
}

#[test]
fn calls_that_do_not_go_together_are_named() {
    let double = double();
    let said = two(&double, |calls, rank, with| {
        calls.gather(with, 4 + rank, F32);
    });
    assert!(said.contains("ncclAllGather of 4 elements") && said.contains("ncclAllGather of 5"), "{said}");
    let said = two(&double, |calls, rank, with| {
        calls.gather(with, 4, [F32, U8][rank]);
    });
    assert!(said.contains("of type 7") && said.contains("of type 1"), "{said}");
    let said = two(&double, |calls, rank, with| {
        if rank == 0 {
            calls.gather(with, 4, F32);
        }
        calls.reduce(with, 4, 0);
        if rank == 1 {
            calls.gather(with, 4, F32);
        }
    });
    assert!(said.starts_with("collective 0") && said.contains("ncclAllReduce"), "{said}");
    // What goes together is no fault.
    let said = two(&double, |calls, _, with| {
        assert_eq!(calls.gather(with, 4, F32), 0);
        assert_eq!(calls.reduce(with, 4, 0), 0);
    });
    assert_eq!(said, "nothing");
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let double = double();
    double.0.patience(Duration::from_millis(200));
    let said = two(&double, |calls, rank, with| {
        if rank == 0 {
            calls.reduce(with, 4, 0);
        }
    });
    assert!(said.contains("rank 1 never came") && said.contains("rank 0 calls ncclAllReduce"), "{said}");
}

#[test]
fn a_group_of_calls_that_is_not_ended_is_named() {
    let double = double();
    two(&double, |calls, _, with| {
        assert_eq!(calls.bare("ncclGroupStart"), 0);
        calls.reduce(with, 4, 0);
        assert_eq!(calls.bare("ncclGroupEnd"), 0);
        // Submitted at the end alone.
        assert_eq!(calls.bare("ncclGroupStart"), 0);
        calls.reduce(with, 4, 0);
        assert_ne!(calls.of("ncclCommDestroy", with.handle), 0);
        let said = calls.said();
        assert!(said.contains("1 calls of rank") && said.contains("ncclGroupEnd"), "{said}");
        assert_eq!(calls.bare("ncclGroupEnd"), 0);
    });
    let calls = Calls(&double);
    assert_ne!(calls.bare("ncclGroupEnd"), 0);
    assert!(calls.said().contains("without a ncclGroupStart"), "{}", calls.said());
}

#[test]
fn communicators_that_are_none_or_no_longer_are_named() {
    let double = double();
    two(&double, |calls, _, with| {
        assert_eq!(calls.of("ncclCommAbort", with.handle), 0);
        assert_ne!(calls.gather(with, 4, F32), 0);
        assert!(calls.said().contains("aborted or destroyed"), "{}", calls.said());
        assert_ne!(calls.reduce(With { handle: 4711, ..with }, 4, 0), 0);
    });
    let (calls, gpu) = (Calls(&double), device(&double, Mode::Reference));
    let mem = gpu.alloc(4096).unwrap();
    let none = With { at: mem.address(), stream: null_mut(), handle: 4711 };
    assert_ne!(calls.reduce(none, 4, 0), 0);
    assert!(calls.said().contains("what is no communicator"), "{}", calls.said());
    // Sums alone.
    assert_ne!(calls.reduce(none, 4, 2), 0);
    assert!(calls.said().contains("operation 2"), "{}", calls.said());
}

#[test]
fn ids_and_ranks_that_are_wrong_are_named() {
    let double = double();
    let (calls, gpu) = (Calls(&double), device(&double, Mode::Reference));
    let _context = gpu.alloc(16).unwrap();
    let id = calls.id();
    assert_eq!(calls.join(id, 1, 0).0, 0);
    assert_ne!(calls.join(id, 1, 0).0, 0);
    assert!(calls.said().contains("rank 0 has joined already"), "{}", calls.said());
    assert_ne!(calls.join(id, 2, 1).0, 0);
    assert!(calls.said().contains("2 ranks in a group of 1"), "{}", calls.said());
    // A byte that was lost on its way to the other ranks.
    let mut other = calls.id();
    other.0[127] ^= 1;
    assert_ne!(calls.join(other, 1, 0).0, 0);
    assert!(calls.said().contains("did not give"), "{}", calls.said());
    assert_ne!(calls.join(calls.id(), 2, 2).0, 0);
    assert!(calls.said().contains("rank 2 of 2"), "{}", calls.said());
}
