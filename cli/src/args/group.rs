//! Flags of ranks that are processes.

use super::super::values::positive;
use clap::Args as ClapArgs;
use engraft::engraft_ranks::{Meeting, Place};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Groups that this process leads: each ends its channel once all others know that it has ended.
pub type Led = Arc<Mutex<Vec<std::sync::mpsc::Receiver<()>>>>;

/// Ranks as processes.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Ranks as processes")]
pub struct GroupArgs {
    /// Run the ranks of --tp as processes of this machine, which this one starts, instead of threads
    #[arg(long, conflicts_with_all = ["rank", "leader"])]
    pub processes: bool,
    /// This process is rank N of --tp, started by hand; launchers say so by the environment (torchrun, srun,
    /// mpirun, LeaderWorkerSet)
    #[arg(long, value_name = "N")]
    pub rank: Option<usize>,
    /// Where rank 0 listens: host:port, or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    pub leader: Option<Meeting>,
    /// Seconds that ranks wait until all have joined; default: 300
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub join_timeout: Option<usize>,
    /// Seconds that ranks wait for each other in a step; default: 60
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub step_timeout: Option<usize>,
    /// Exchange over sockets even where all ranks are on one machine
    #[arg(long)]
    pub sockets: bool,
    /// The groups that this process leads.
    #[arg(skip)]
    pub led: Led,
}

impl GroupArgs {
    /// A flag that was given, if any: it says nothing to a process that is in no group.
    pub fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--processes", self.processes),
            ("--rank", self.rank.is_some()),
            ("--leader", self.leader.is_some()),
            ("--join-timeout", self.join_timeout.is_some()),
            ("--step-timeout", self.step_timeout.is_some()),
            ("--sockets", self.sockets),
        ];
        flags.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// The place with the patience and the way of exchange that were asked for.
    pub fn applied(&self, place: Place) -> Place {
        let seconds = |given: Option<usize>| given.map(|seconds| Duration::from_secs(seconds as u64));
        Place {
            join_within: seconds(self.join_timeout).unwrap_or(place.join_within),
            step_within: seconds(self.step_timeout).unwrap_or(place.step_within),
            linked: self.sockets,
            ..place
        }
    }
}
