//! Flags of ranks that are processes.

use super::super::values::positive;
use clap::Args as ClapArgs;
use engraft::engraft_ranks::Meeting;
use std::sync::{Arc, Mutex};

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
    /// Seconds that ranks wait until all have joined
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = positive)]
    pub join_timeout: usize,
    /// Seconds that ranks wait for each other in a step
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = positive)]
    pub step_timeout: usize,
    /// Exchange over sockets even where all ranks are on one machine
    #[arg(long)]
    pub sockets: bool,
    /// The groups that this process leads.
    #[arg(skip)]
    pub led: Led,
}
