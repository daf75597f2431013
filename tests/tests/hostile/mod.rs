//! Every operand of every op, changed: see `hostile_views.rs`.

pub mod backend;
pub mod change;
pub mod ground;
pub mod heap;
pub mod home;
pub mod hunt;
pub mod pages;
pub mod plants;
