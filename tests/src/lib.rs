//! The project's proof: every op against an f64 oracle, every law bit for bit, whole models against goldens.
//!
//! - [`registry`] lists the ops; `spec/<stem>.rs` makes and runs their cases, `oracle/<stem>.rs` says what
//!   they give.
//! - [`laws`] puts a case through all comparisons; [`compare`] is their one verdict, [`budget`] their one
//!   list of tolerances; [`poison`] catches stray writes.
//! - [`backends`] says what can be tested here; [`trials`] is the program that does it, [`alone`] keeps a
//!   lost device from costing other trials, [`rerun`] says how a failed case runs again; `tests/meta` plants
//!   bugs that the suite must catch ([`mod@bug`]).
//! - [`lawful`] says which changes of its operands an op may take; `tests/hostile_views.rs` makes all others.
//! - [`null`] computes nothing and knows whose every page is: schedules of the engine run on it; [`pressure`]
//!   asks what few pages cost.
//! - [`golden`] runs whole models against outputs of the reference implementation; [`goldens`] is the program
//!   that does it.
//!
//! Nothing here is imported by the engine. Failures are values: a check never panics, so one wrong element
//! cannot hide the next.

pub mod alone;
pub mod backends;
pub mod budget;
pub mod bug;
pub mod compare;
pub mod device;
pub mod dice;
pub mod golden;
pub mod goldens;
pub mod lawful;
pub mod laws;
pub use null_backend as null;
pub mod oracle;
pub mod poison;
pub mod pressure;
pub mod registry;
pub mod rerun;
pub mod sources;
pub mod spec;
pub mod trials;

/// The Rust of `docs/add_a_backend.md`, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/add_a_backend.md")]
pub struct AddABackend;
