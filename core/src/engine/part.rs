//! Slices of sequences as a step has them.

use super::request::Want;
use crate::schedule::{Slice, Token};

/// What a step has of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub id: u64,
    pub slice: Slice,
    /// Token rows that the head reads.
    pub rows: usize,
    pub want: Want,
    /// Whether its row of logits is looked at where a token is sampled.
    pub looks: bool,
    pub keeps: bool,
    /// Tokens in front that an encoder reads, and positions that they take.
    pub source: [usize; 2],
    /// Where it is one token that samples the next: that token. Most parts are such, and what is to be
    /// written of them is looked up once.
    pub lone: Option<Lone>,
}

/// The one token of a part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lone {
    pub token: Token,
    /// How far its row of the rotary tables lies behind its position.
    pub shift: u32,
}
