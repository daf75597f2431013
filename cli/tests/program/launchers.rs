//! The commands of `docs/ranks.md` for launchers, by stand-ins that set what each launcher sets.

use super::processes::{alone, error, text};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Starts all processes on this machine, and ends with the status of one that has failed.
const START: &str = r#"
world=$((nodes * each)) rank=0 all=
while [ $rank -lt $world ]; do
  variables "$@" &
  all="$all $!" rank=$((rank + 1))
done
status=0
for one in $all; do wait $one || status=$?; done
exit $status
"#;

const SRUN: &str = r#"#!/bin/sh
while :; do
  case $1 in
    --nodes=*) nodes=${1#*=} ;;
    --ntasks-per-node=*) each=${1#*=} ;;
    -*) echo "srun: $1 is not known here" >&2; exit 64 ;;
    *) break ;;
  esac
  shift
done
variables() {
  SLURM_PROCID=$rank SLURM_STEP_NUM_TASKS=$world SLURM_STEP_TASKS_PER_NODE="$each(x$nodes)" \
    SLURM_STEP_NODELIST=localhost SLURM_JOB_ID=$JOB SLURM_STEP_ID=0 "$@"
}
"#;

/// Is asked once for each node; here once for all.
const TORCHRUN: &str = r#"#!/bin/sh
while :; do
  case $1 in
    --no-python) ;;
    --nnodes=*) nodes=${1#*=} ;;
    --nproc-per-node=*) each=${1#*=} ;;
    --rdzv-backend=c10d | --rdzv-endpoint=*:*) ;;
    -*) echo "torchrun: $1 is not known here" >&2; exit 64 ;;
    *) break ;;
  esac
  shift
done
variables() {
  RANK=$rank WORLD_SIZE=$world LOCAL_WORLD_SIZE=$each MASTER_ADDR=127.0.0.1 MASTER_PORT=$STORE \
    TORCHELASTIC_RUN_ID=none "$@"
}
"#;

const PAGE: &str = include_str!("../../../docs/ranks.md");

/// A program of this text.
fn program(folder: &Path, name: &str, text: &str) {
    let file = folder.join(name);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).unwrap();
}

/// A job whose port nothing has: ports are 20,000 and a part of the number.
fn job() -> u16 {
    let free = |job: &u16| TcpListener::bind(("127.0.0.1", 20_000 + job)).is_ok();
    let first = (std::process::id() % 5000) as u16;
    (first..first + 5000).find(free).unwrap()
}

/// Runs the page's command.
fn run(folder: &Path, command: &str) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let store = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port() - 1;
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", format!("{}:{path}", folder.display()));
    shell.env("JOB", job().to_string()).env("STORE", store.to_string());
    shell.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_commands_of_the_page_give_the_text_of_one_rank() {
    let folder = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_engraft"), folder.path().join("engraft")).unwrap();
    let want = alone();
    for (launcher, text_of) in [("srun", SRUN), ("torchrun", TORCHRUN)] {
        program(folder.path(), launcher, &format!("{text_of}{START}"));
        let line = PAGE.lines().find_map(|line| line.strip_prefix(&format!("$ {launcher} ")));
        let command = format!("{launcher} {}", line.unwrap_or_else(|| panic!("no {launcher} on the page")));
        let output = run(folder.path(), &command);
        assert!(output.status.success(), "{command}: {}", error(&output));
        assert_eq!(text(&output), want, "{command}: {}", error(&output));
        assert!(error(&output).contains("rank 1 of 2 by "), "{command}: {}", error(&output));
    }
}

/// What Kubernetes starts is a command of this program, and a failed group is made anew.
#[test]
fn the_pods_of_the_page_run_what_there_is() {
    let said = |key: &str| {
        let line = PAGE.lines().find_map(|line| line.trim().strip_prefix(&format!("{key}: ")));
        line.unwrap_or_else(|| panic!("no {key} on the page"))
    };
    assert_eq!(said("restartPolicy"), "RecreateGroupOnPodRestart");
    let command: Vec<&str> = said("command").trim_matches(['[', ']']).split(", ").collect();
    let [name, serve, flags @ ..] = &command[..] else { panic!("{command:?}") };
    assert_eq!([*name, *serve], ["engraft", "serve"]);
    let help = Command::new(env!("CARGO_BIN_EXE_engraft")).args(["serve", "--help"]).output().unwrap();
    let (help, asked) = (text(&help), flags.iter().filter(|flag| flag.starts_with("--")));
    assert!(asked.clone().count() >= 2, "{command:?}");
    for flag in asked {
        assert!(help.contains(&format!("{flag} ")), "{flag} is no flag of engraft serve");
    }
}
