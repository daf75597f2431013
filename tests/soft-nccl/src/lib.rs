//! A double of `libnccl.so.2` for test programs without a GPU: the functions that the CUDA backend calls, and
//! groups of calls.
//!
//! It works on the memory and the streams of the driver that is in the process already (`soft-cuda`); ranks
//! are threads of one process, and may share a device. A collective is a copy into host memory, a host
//! function that waits for the other ranks, and a copy back: all of it on the caller's stream, as NCCL's
//! kernels are.
//!
//! Where NCCL hangs, this library says why: calls of ranks that do not go together, a rank that never comes,
//! a group of calls that is not ended, a communicator that is not one or no longer. What it says comes out of
//! `ncclGetLastError`, and the communicators of the group have failed from then on. Sums are added in one of
//! three orders ([`Order`]), as NCCL chooses among its algorithms.
//!
//! A test program links this library for [`Control`] alone, which loads the shared object next to it and
//! speaks to that one.

mod driver;
pub mod ffi;
mod group;
mod settings;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::path::PathBuf;
use std::time::Duration;

/// In which order the values of ranks are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As rings do: the vector has a part for each rank, which begins the sum of its part.
    Ring = 0,
    /// By a balanced binary tree, ranks 0 and 1 first.
    Tree = 1,
    /// Another one for every value.
    Random = 2,
}

impl Order {
    /// All of them.
    pub const ALL: [Order; 3] = [Order::Ring, Order::Tree, Order::Random];
}

/// Where the file is that Cargo built next to the running test program.
pub fn file() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folders = program.ancestors().skip(1).take(2);
    let name = "libsoft_nccl.so";
    folders.flat_map(|f| [f.join(name), f.join("deps").join(name)]).find(|p| p.is_file())
}

/// The loaded shared object.
#[derive(Debug)]
pub struct Control {
    library: Library,
    /// The file.
    pub path: PathBuf,
}

impl Control {
    /// Loads the shared object next to the running program; none where it is not there.
    pub fn load() -> Option<Self> {
        let path = file()?;
        // SAFETY: a library of this project, without initialisers.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }.ok()?;
        Some(Self { library, path })
    }

    /// A function of it.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function of this name.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller's promise.
        unsafe { self.library.get::<F>(name.as_bytes()) }.ok().map(|found| *found)
    }

    fn set(&self, name: &str, value: u64) {
        // SAFETY: all functions of this name take a word.
        if let Some(set) = unsafe { self.function::<unsafe extern "C" fn(u64)>(name) } {
            // SAFETY: it stores the word.
            unsafe { set(value) }
        }
    }

    /// The order of sums of groups that are made from now on.
    pub fn order(&self, order: Order) {
        self.set("softNcclOrder", order as u64);
    }

    /// How long ranks of groups that are made from now on wait for each other before the library names the
    /// one that is missing. NCCL waits for ever.
    pub fn patience(&self, patience: Duration) {
        self.set("softNcclPatience", patience.as_millis() as u64);
    }

    /// The version that it says it has, such as 22809.
    pub fn version(&self, version: u64) {
        self.set("softNcclVersion", version);
    }

    /// Has every group that exists fail as by a broken link, seen from all ranks.
    pub fn break_links(&self) {
        self.set("softNcclBreak", 0);
    }
}
