//! Which rank of which group this process is: by its flags, or by what its launcher has set.
//!
//! Every launcher has names of its own for a rank and the number of ranks; one that is found must agree with
//! all others that are. A group of one rank is none.

use super::args::GroupArgs;
use super::failure::Failure;
use engraft::engraft_ranks::{Meeting, Place};
use std::ops::RangeInclusive;

/// Port of rank 0 where neither flags nor the launcher name one.
const PORT: u16 = 29_511;

/// How a launcher names things.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    world: &'static str,
    /// Ranks on this machine; none where they are not said.
    local: &'static str,
    /// Words that only ranks of one group have in common.
    group: &'static [&'static str],
}

/// `engraft` is this program where it starts its own ranks.
const LAUNCHERS: [Launcher; 6] = [
    Launcher {
        name: "engraft",
        rank: "ENGRAFT_RANK",
        world: "ENGRAFT_WORLD",
        local: "ENGRAFT_WORLD",
        group: &[],
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        world: "WORLD_SIZE",
        local: "LOCAL_WORLD_SIZE",
        group: &["TORCHELASTIC_RUN_ID"],
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        world: "SLURM_STEP_NUM_TASKS",
        local: "SLURM_STEP_TASKS_PER_NODE",
        group: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world: "OMPI_COMM_WORLD_SIZE",
        local: "OMPI_COMM_WORLD_LOCAL_SIZE",
        group: &["PMIX_NAMESPACE"],
    },
    Launcher {
        name: "MPICH",
        rank: "PMI_RANK",
        world: "PMI_SIZE",
        local: "MPI_LOCALNRANKS",
        group: &["PMI_JOBID"],
    },
    Launcher {
        name: "LeaderWorkerSet",
        rank: "LWS_WORKER_INDEX",
        world: "LWS_GROUP_SIZE",
        local: "",
        group: &["LWS_NAME", "LWS_GROUP_INDEX"],
    },
];

/// What was found.
struct Found {
    launcher: &'static str,
    rank: usize,
    world: usize,
    local: Option<usize>,
    group: Vec<String>,
}

/// This process's place in a group; none where it is in none. `env` has the environment; `parent` is the
/// process that has started this one.
///
/// # Errors
/// `Usage` for launchers that contradict each other or the flags, and for what is no number.
pub fn place(
    args: &GroupArgs,
    tp: Option<usize>,
    env: &dyn Fn(&str) -> Option<String>,
    parent: u32,
) -> Result<Option<(Place, &'static str)>, Failure> {
    let mut found = LAUNCHERS
        .iter()
        .filter_map(|launcher| launcher.find(env).transpose())
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(rank) = args.rank {
        let no = || Failure::Usage("--rank goes with --tp, the number of ranks, and --leader".into());
        let (world, _) = (tp.ok_or_else(no)?, args.leader.as_ref().ok_or_else(no)?);
        found.insert(0, Found { launcher: "--rank", rank, world, local: Some(1), group: Vec::new() });
    }
    found.retain(|found| found.world > 1);
    let Some(first) = found.first() else { return Ok(None) };
    if let Some(other) = found.iter().find(|other| (other.rank, other.world) != (first.rank, first.world)) {
        return Err(Failure::Usage(format!(
            "{} says rank {} of {}, {} says rank {} of {}: which one counts?",
            first.launcher, first.rank, first.world, other.launcher, other.rank, other.world
        )));
    }
    if let Some(tp) = tp.filter(|tp| *tp != first.world) {
        let (launcher, world) = (first.launcher, first.world);
        return Err(Failure::Usage(format!("--tp {tp}, but {launcher} has started {world} processes")));
    }
    if first.rank >= first.world {
        return Err(Failure::Usage(format!(
            "{} says rank {} of {}",
            first.launcher, first.rank, first.world
        )));
    }
    let meeting = meeting(args, first, env, parent)?;
    let token = env("ENGRAFT_GROUP_TOKEN").unwrap_or_else(|| format!("{} {meeting}", first.group.join(" ")));
    let place = Place {
        local: first.local.unwrap_or(1).clamp(1, first.world),
        ..Place::new(first.rank, first.world, meeting, token)
    };
    Ok(Some((args.applied(place), first.launcher)))
}

impl Launcher {
    fn find(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Found>, Failure> {
        let number = |name: &str| -> Result<Option<usize>, Failure> {
            let Some(text) = env(name).filter(|text| !text.is_empty()) else { return Ok(None) };
            let no = || Failure::Usage(format!("{name} is {text:?}, a number was expected ({})", self.name));
            text.parse().map(Some).map_err(|_| no())
        };
        // Both, or it is no launcher: a script that Slurm runs has the one and is no rank.
        let (Some(rank), Some(world)) = (number(self.rank)?, number(self.world)?) else { return Ok(None) };
        // Slurm says `2(x3)` for three machines of two.
        let local = env(self.local).and_then(|text| text.split(['(', ',']).next()?.parse().ok());
        let group = self.group.iter().filter_map(|name| env(name)).collect();
        Ok(Some(Found { launcher: self.name, rank, world, local, group }))
    }
}

/// Where the group meets.
fn meeting(
    args: &GroupArgs,
    found: &Found,
    env: &dyn Fn(&str) -> Option<String>,
    parent: u32,
) -> Result<Meeting, Failure> {
    let parse = |text: String| text.parse::<Meeting>().map_err(|e| Failure::Usage(e.to_string()));
    if let Some(leader) = &args.leader {
        return Ok(leader.clone());
    }
    let known = match found.launcher {
        "engraft" => env("ENGRAFT_MEETING"),
        // The port itself may be that of torchrun's own store.
        "torchrun" => match env("MASTER_ADDR") {
            Some(host) => {
                let port = number(env, "MASTER_PORT", "torchrun", 1..=u64::from(u16::MAX) - 1)?;
                Some(format!("{host}:{}", port.map_or(u64::from(PORT), |port| port + 1)))
            }
            None => None,
        },
        "Slurm" => match env("SLURM_STEP_NODELIST") {
            Some(nodes) => {
                // Without it all jobs would have one port.
                let job = number(env, "SLURM_JOB_ID", "Slurm", 0..=u64::MAX)?.ok_or_else(|| {
                    Failure::Usage(
                        "Slurm says no SLURM_JOB_ID: --leader host:port says where rank 0 is".into(),
                    )
                })?;
                Some(format!("{}:{}", first_node(&nodes), 20_000 + job % 10_000))
            }
            None => None,
        },
        "LeaderWorkerSet" => env("LWS_LEADER_ADDRESS").map(|host| format!("{host}:{PORT}")),
        _ => None,
    };
    match known {
        Some(known) => parse(known),
        // All have the same parent.
        None if found.local == Some(found.world) => {
            let path = std::env::temp_dir().join(format!("engraft-group-{parent}"));
            Ok(Meeting::Unix(path))
        }
        None => Err(Failure::Usage(format!(
            "{} says rank {} of {}, but not where rank 0 is: --leader host:port does",
            found.launcher, found.rank, found.world
        ))),
    }
}

/// A number that a launcher has set; none where it is not set.
fn number(
    env: &dyn Fn(&str) -> Option<String>,
    name: &str,
    launcher: &str,
    range: RangeInclusive<u64>,
) -> Result<Option<u64>, Failure> {
    let Some(text) = env(name) else { return Ok(None) };
    let value = text.parse::<u64>().ok().filter(|value| range.contains(value));
    value.map(Some).ok_or_else(|| {
        let (least, most) = range.into_inner();
        Failure::Usage(format!(
            "{name} is {text:?}, a number from {least} to {most} was expected ({launcher})"
        ))
    })
}

/// The first of Slurm's nodes: `gpu[07-09,12],login1` begins with `gpu07`.
fn first_node(nodes: &str) -> String {
    match nodes.split_once('[') {
        Some((name, rest)) if !name.contains(',') => {
            let number = rest.split([',', '-', ']']).next().unwrap_or_default();
            format!("{name}{number}")
        }
        _ => nodes.split(',').next().unwrap_or_default().to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn args() -> GroupArgs {
        GroupArgs {
            rank: None,
            leader: None,
            processes: false,
            sockets: false,
            join_timeout: None,
            step_timeout: None,
            led: Default::default(),
        }
    }

    /// Rank, world, ranks of this machine, launcher, and where it meets; or why not.
    fn found(tp: Option<usize>, args: &GroupArgs, env: &[(&str, &str)]) -> Result<String, String> {
        let env =
            |name: &str| env.iter().find(|(given, _)| *given == name).map(|(_, value)| value.to_string());
        match place(args, tp, &env, 77) {
            Ok(None) => Ok("none".into()),
            Ok(Some((place, launcher))) => {
                let Place { rank, world, local, meeting, .. } = place;
                Ok(format!("{launcher} {rank}/{world}/{local} {meeting}"))
            }
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn every_launcher_is_understood() {
        let torchrun = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node-a"),
            ("MASTER_PORT", "29500"),
        ];
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
            ("SLURM_STEP_NODELIST", "gpu[07-09,12],login1"),
            ("SLURM_JOB_ID", "123456"),
        ];
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let lws = [("LWS_WORKER_INDEX", "1"), ("LWS_GROUP_SIZE", "2"), ("LWS_LEADER_ADDRESS", "lws-0.lws")];
        let own = [("ENGRAFT_RANK", "1"), ("ENGRAFT_WORLD", "2"), ("ENGRAFT_MEETING", "unix:/x")];
        let get = |env: &[(&str, &str)]| found(None, &args(), env).unwrap();
        assert_eq!(get(&torchrun), "torchrun 3/4/2 node-a:29501");
        assert_eq!(get(&slurm), "Slurm 1/4/2 gpu07:23456");
        assert!(get(&mpi).starts_with("Open MPI 0/2/2 unix:") && get(&mpi).ends_with("engraft-group-77"));
        assert_eq!(get(&lws), "LeaderWorkerSet 1/2/1 lws-0.lws:29511");
        assert_eq!(get(&own), "engraft 1/2/2 unix:/x");
        // A batch script of Slurm is no rank, and one process is no group.
        assert_eq!(get(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]), "none");
        assert_eq!(get(&[("RANK", "0"), ("WORLD_SIZE", "1")]), "none");
        let flags = GroupArgs { rank: Some(1), leader: Some("a:5".parse().unwrap()), ..args() };
        assert_eq!(found(Some(2), &flags, &[]).unwrap(), "--rank 1/2/1 a:5");
    }

    #[test]
    fn contradictions_are_named() {
        let no = |tp, env: &[(&str, &str)]| found(tp, &args(), env).unwrap_err();
        let both = [("RANK", "0"), ("WORLD_SIZE", "2"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        let said = "torchrun says rank 0 of 2, MPICH says rank 1 of 2: which one counts?";
        assert_eq!(no(None, &both), said);
        assert_eq!(no(Some(4), &both[..2]), "--tp 4, but torchrun has started 2 processes");
        assert_eq!(
            no(None, &[("RANK", "x"), ("WORLD_SIZE", "2")]),
            "RANK is \"x\", a number was expected (torchrun)"
        );
        assert_eq!(no(None, &[("RANK", "2"), ("WORLD_SIZE", "2")]), "torchrun says rank 2 of 2");
        let nowhere = "MPICH says rank 0 of 2, but not where rank 0 is: --leader host:port does";
        assert_eq!(
            no(
                None,
                &both[2..].iter().map(|(n, v)| (*n, if *v == "1" { "0" } else { v })).collect::<Vec<_>>()
            ),
            nowhere
        );
        let alone = GroupArgs { rank: Some(1), ..args() };
        assert_eq!(
            found(Some(2), &alone, &[]).unwrap_err(),
            "--rank goes with --tp, the number of ranks, and --leader"
        );
    }

    /// All ranks would go to one port that none of them was given.
    #[test]
    fn ports_and_jobs_that_are_none_are_refused() {
        let torchrun =
            |port| [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", port)];
        for port in ["70000", "65535", "0", "abc", "-1", ""] {
            let error = found(None, &args(), &torchrun(port)).unwrap_err();
            let said = format!("MASTER_PORT is {port:?}, a number from 1 to 65534 was expected (torchrun)");
            assert_eq!(error, said);
        }
        assert_eq!(found(None, &args(), &torchrun("29500")).unwrap(), "torchrun 0/2/1 a:29501");
        assert_eq!(found(None, &args(), &torchrun("x")[..3]).unwrap(), "torchrun 0/2/1 a:29511");
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_NODELIST", "a")];
        let job = |id| [&slurm[..], &[("SLURM_JOB_ID", id)]].concat();
        let error = |env: &[(&str, &str)]| found(None, &args(), env).unwrap_err();
        assert!(error(&job("7a")).starts_with("SLURM_JOB_ID is \"7a\", a number"), "{}", error(&job("7a")));
        assert!(error(&slurm).contains("no SLURM_JOB_ID: --leader"), "{}", error(&slurm));
    }

    #[test]
    fn the_first_of_slurms_nodes() {
        for (nodes, first) in [("a", "a"), ("a,b[1-2]", "a"), ("b[01-03,7]", "b01"), ("c[5]", "c5")] {
            assert_eq!(first_node(nodes), first);
        }
    }
}
