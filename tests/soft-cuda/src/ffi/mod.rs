//! The C interface: one thin function per symbol, one file per group.
//!
//! Every function runs in one of the wrappers below: `bare` (may be called at any time), `early` (needs the
//! lock), `ready` (after `cuInit`), `live` (with a healthy current context). A wrapper takes the lock, keeps
//! panics in, and turns the result into a code. What a function does is in the modules of this crate; here
//! are the interface's names and types.

// The interface's own spelling.
#![allow(non_snake_case)]

pub mod arg;
mod capture;
mod context;
mod copy;
mod device;
mod engraft;
mod event;
mod exec;
mod graph;
mod init;
mod jitlink;
mod launch;
mod library;
mod link;
mod managed;
mod memory;
mod module;
mod node;
mod occupancy;
mod pool;
mod stream;
mod tensor;
mod unsupported;
mod user;
mod versions;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::called;
use crate::code::{Code, Result};
use crate::state::{Held, lock};

/// A symbol.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Its address.
    pub address: *const (),
    /// The address of the same call with the calling thread's own default stream.
    pub per_thread: *const (),
}

/// Defines entries: a wrapper, a name, the lock's name inside, the arguments, the body.
macro_rules! entries {
    ($($(#[$meta:meta])* $wrapper:ident fn $name:ident($d:tt $(, $arg:ident : $type:ty)* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $crate::code::Code {
                $crate::ffi::$wrapper(stringify!($name), |$d| $body)
            }
        )*

        /// The symbols of this file.
        pub fn table() -> Vec<$crate::ffi::Entry> {
            vec![$({
                unsafe extern "C" fn per_thread($($arg: $type),*) -> $crate::code::Code {
                    // SAFETY: the caller's promises are those of the plain call.
                    $crate::per_thread::within(|| unsafe { $name($($arg),*) })
                }
                $crate::ffi::Entry {
                    name: stringify!($name),
                    address: $name as *const (),
                    per_thread: per_thread as *const (),
                }
            }),*]
        }
    };
}
use entries;

fn answer(name: &str, call: impl FnOnce() -> Result) -> Code {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            eprintln!("[Engraft software CUDA] {name} panicked: this is a bug of the driver");
            Code::UNKNOWN
        }
    }
}

/// The wrapper of calls that need no driver state.
fn bare(name: &str, call: impl FnOnce(()) -> Result) -> Code {
    answer(name, || call(()))
}

/// The wrapper of calls that need the lock but no initialised driver.
fn early(name: &str, call: impl FnOnce(&mut Held) -> Result) -> Code {
    answer(name, || {
        if called::inside_host_function() {
            return Err(Code::NOT_PERMITTED);
        }
        let mut d = lock();
        let result = call(&mut d);
        crate::graph::sweep(&mut d);
        result
    })
}

/// The wrapper of calls that need `cuInit`.
fn ready(name: &str, call: impl FnOnce(&mut Held) -> Result) -> Code {
    early(name, |d| if d.is_here() { call(d) } else { Err(Code::NOT_INITIALIZED) })
}

/// The wrapper of calls that need a healthy current context.
fn live(name: &str, call: impl FnOnce(&mut Held) -> Result) -> Code {
    ready(name, |d| {
        d.here()?;
        call(d)
    })
}

/// All implemented symbols.
pub fn symbols() -> Vec<Entry> {
    let tables = [
        init::table(),
        device::table(),
        context::table(),
        memory::table(),
        managed::table(),
        pool::table(),
        copy::table(),
        stream::table(),
        event::table(),
        capture::table(),
        module::table(),
        library::table(),
        link::table(),
        launch::table(),
        engraft::table(),
        occupancy::table(),
        tensor::table(),
        graph::table(),
        node::table(),
        exec::table(),
        user::table(),
    ];
    tables.concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn a_symbol_is_implemented_or_refused_and_never_both() {
        let done: BTreeSet<&str> = super::symbols().into_iter().map(|e| e.name).collect();
        assert_eq!(done.len(), super::symbols().len(), "a symbol is defined twice");
        let refused: BTreeSet<&str> = super::unsupported::NAMES.iter().copied().collect();
        assert!(done.is_disjoint(&refused));
        let driver = done.iter().filter(|n| n.starts_with("cu")).count();
        assert_eq!(
            driver + refused.len(),
            include_str!("../../tests/common/symbols.txt").split_whitespace().count()
        );
    }
}
