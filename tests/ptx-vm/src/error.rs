//! Errors of loading and of the host side: text that is not PTX or not supported, addresses that are not
//! memory.
//!
//! What a *kernel* does wrong while it runs is not an [`Error`] but a [`Fault`](crate::Fault).

/// Why a module was refused or a host-side operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not well-formed PTX.
    #[error("line {line}: {what}")]
    Syntax {
        /// The line in the PTX text, from 1.
        line: u32,
        /// What was found and what was expected.
        what: String,
    },
    /// An instruction or directive that this machine does not execute.
    #[error("line {line}: `{text}` is not supported: {what}")]
    Unsupported {
        /// The line in the PTX text, from 1.
        line: u32,
        /// The instruction as written.
        text: String,
        /// Which part of it is unknown.
        what: String,
    },
    /// A name that the module does not have.
    #[error("no {kind} named `{name}` in the module")]
    Missing {
        /// `kernel`, `global` or `function`.
        kind: &'static str,
        /// The name asked for.
        name: String,
    },
    /// A text among several that is not well-formed PTX.
    #[error("`{name}`: {what}")]
    Input {
        /// The text's name.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// Texts that do not fit together.
    #[error("{0}")]
    Link(String),
    /// A range of addresses that is not inside one live allocation.
    #[error("{bytes} bytes at {address:#x} are not inside a live allocation{detail}")]
    Address {
        /// The first address.
        address: u64,
        /// The length in bytes.
        bytes: u64,
        /// The nearest allocation, or what became of it.
        detail: String,
    },
    /// A device has too little memory left.
    #[error("device {device} has {left} of {capacity} bytes left, {bytes} asked for")]
    OutOfMemory {
        /// The virtual device.
        device: u32,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes left.
        left: u64,
        /// The device's memory in bytes.
        capacity: u64,
    },
    /// An argument outside what is allowed.
    #[error("{0}")]
    Argument(String),
}
