//! Where a process stands in its group.

use crate::link::Meeting;
use std::time::Duration;

/// A process's place in a group, and where the group meets.
#[derive(Debug, Clone)]
pub struct Place {
    /// This rank, from 0.
    pub rank: usize,
    /// Ranks in the group: 1, 2, 4 or 8.
    pub world: usize,
    /// Ranks on this machine, which share its cores.
    pub local: usize,
    /// Where rank 0 listens.
    pub meeting: Meeting,
    /// What only ranks of this group know.
    pub token: String,
    /// Name and value of all that must be the same on every rank.
    pub facts: Vec<(String, String)>,
    /// How long ranks wait until all have joined.
    pub join_within: Duration,
    /// How long ranks wait for each other in a step.
    pub step_within: Duration,
    /// Exchange over sockets even where all can map one file.
    pub linked: bool,
}

impl Place {
    /// A place beside all others on one machine, with the usual patience: 300 s to join, 60 s for a step.
    pub fn new(rank: usize, world: usize, meeting: Meeting, token: impl Into<String>) -> Self {
        Self {
            rank,
            world,
            local: world,
            meeting,
            token: token.into(),
            facts: Vec::new(),
            join_within: Duration::from_secs(300),
            step_within: crate::board::PATIENCE,
            linked: false,
        }
    }
}
