//! The rendezvous of ranks in host memory.

use crate::{Error, Result};
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

/// What ranks on one machine exchange by, where nothing else is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Exchange {
    /// Kernels over memory that all ranks reach, where they do; else the host's memory.
    #[default]
    Auto,
    /// The host's memory.
    Host,
    /// Kernels; an error where ranks do not reach each other.
    Peers,
}

impl FromStr for Exchange {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "host" => Ok(Self::Host),
            "peers" => Ok(Self::Peers),
            _ => Err(Error::config("exchange", format!("\"{text}\""), "auto, host, peers")),
        }
    }
}

/// A rendezvous of the ranks of a group: each has one of its own, for the same group. Every rank makes the
/// same calls in the same order, and each returns when all have made it.
pub trait Board: Send {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Ranks in the group: 1, 2, 4 or 8.
    fn world(&self) -> usize;

    /// `x = sum over ranks of x`, by [`tree_of_ranks`](crate::numerics::tree_of_ranks). A rank that adds
    /// nothing has zeros, whatever its x holds.
    ///
    /// # Errors
    /// `Comm`, naming the rank that is missing.
    fn all_reduce(&self, x: &mut [f32], adds: bool) -> Result<()>;

    /// Gives every rank the columns of all: of x, rows of `cols` values, rank `r` has written `columns[r]`.
    ///
    /// # Errors
    /// As [`Board::all_reduce`].
    fn all_gather(&self, x: &mut [f32], cols: usize, columns: &[Range<usize>]) -> Result<()>;

    /// Whether the group still runs, without a wait: for who exchanges by other means than this board, and
    /// learns here that a rank is missing.
    ///
    /// # Errors
    /// `Comm`, naming the rank that is missing.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// How long ranks wait for each other before one counts as missing.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }
}
