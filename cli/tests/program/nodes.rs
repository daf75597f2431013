//! Two nodes: processes that see a network, and memory, of their own, with a wire between them. They give the
//! text of one rank, and end where the wire is taken away.
//!
//! Nodes are namespaces of Linux. Where they cannot be had, the tests say so and pass.

use super::processes::{ASKED, alone, error};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Makes the nodes, starts ranks on both, and waits for them. `$FOLDER` has what they say; `$HERE` and
/// `$THERE` are ranks of the first node, which has rank 0, and of the second; `variables N` is the
/// environment that the launcher gives a rank.
const NODES: &str = r#"
set -e
unshare --net --mount sh -c 'mount -t tmpfs none /dev/shm && ip link set lo up && echo up && exec sleep 120' \
  > "$FOLDER/up" &
other=$!
trap 'kill $other' EXIT
until [ -s "$FOLDER/up" ]; do kill -0 $other; sleep 0.01; done
ip link add wire0 type veth peer name wire1 netns $other
ip addr add 10.29.0.1/24 dev wire0
ip link set lo up
ip link set wire0 up
there() { nsenter --target $other --net --mount "$@"; }
there ip addr add 10.29.0.2/24 dev wire1
there ip link set wire1 up
echo made > "$FOLDER/made"
variables() {
  case $LAUNCHER in
    lws) echo LWS_WORKER_INDEX=$1 LWS_GROUP_SIZE=$WORLD LWS_LEADER_ADDRESS=10.29.0.1 ;;
    torchrun) echo RANK=$1 WORLD_SIZE=$WORLD LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.29.0.1 MASTER_PORT=29500 ;;
  esac
}
started=
for rank in $THERE; do
  there env $(variables $rank) "$@" > "$FOLDER/$rank.out" 2> "$FOLDER/$rank.err" < /dev/null &
  started="$started $rank:$!"
done
for rank in $HERE; do
  env $(variables $rank) "$@" > "$FOLDER/$rank.out" 2> "$FOLDER/$rank.err" < /dev/null &
  started="$started $rank:$!"
done
if [ -n "$WITHOUT_WIRE" ]; then
  until [ -s "$FOLDER/0.out" ]; do sleep 0.01; done
  ip link set wire0 down
  touch "$FOLDER/down"
fi
for one in $started; do
  status=0
  wait ${one#*:} || status=$?
  echo $status > "$FOLDER/${one%:*}.status"
done
grep wire0: /proc/net/dev > "$FOLDER/bytes"
"#;

/// What a rank has left behind.
struct Left {
    status: String,
    out: String,
    err: String,
}

/// Ranks on two nodes, and the bytes that came over the wire; none where there can be no nodes.
fn nodes(
    launcher: &str,
    here: &str,
    there: &str,
    lost: bool,
    args: &[&str],
) -> Option<(Vec<Left>, u64, Duration)> {
    let folder = tempfile::tempdir().unwrap();
    let world = here.split(' ').chain(there.split(' ')).count();
    let mut script = Command::new("unshare");
    script.args(["--user", "--map-root-user", "--net", "--mount", "sh", "-c", NODES, "nodes"]);
    script.arg(env!("CARGO_BIN_EXE_engraft")).args(args);
    script.env("FOLDER", folder.path()).env("LAUNCHER", launcher).env("WORLD", world.to_string());
    script.env("HERE", here).env("THERE", there).env("WITHOUT_WIRE", if lost { "1" } else { "" });
    script.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let began = Instant::now();
    let said = match script.output() {
        Ok(output) => error(&output),
        Err(missing) => missing.to_string(),
    };
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    if read("made").is_empty() {
        // Past the capture of tests.
        let said = format!("left out: this machine makes no nodes: {}\n", said.trim());
        std::io::stderr().write_all(said.as_bytes()).unwrap();
        return None;
    }
    let left = (0..world).map(|rank| Left {
        status: read(&format!("{rank}.status")).trim().to_string(),
        out: read(&format!("{rank}.out")),
        err: read(&format!("{rank}.err")),
    });
    // Received bytes are the first number.
    let bytes = read("bytes")
        .split_once(':')
        .and_then(|(_, numbers)| numbers.split_whitespace().next()?.parse().ok());
    let down = fs::metadata(folder.path().join("down")).and_then(|about| about.modified()).ok();
    let took = down.and_then(|at| at.elapsed().ok()).unwrap_or_else(|| began.elapsed());
    Some((left.collect(), bytes.unwrap_or(0), took))
}

#[test]
fn ranks_on_two_nodes_give_the_text_of_one() {
    let want = alone();
    for (launcher, here, there) in [("lws", "0", "1"), ("torchrun", "0 1", "2 3")] {
        let Some((ranks, bytes, _)) = nodes(launcher, here, there, false, &ASKED) else { return };
        for (rank, left) in ranks.iter().enumerate() {
            assert_eq!(left.status, "0", "{launcher}, rank {rank}: {}", left.err);
            let said = if rank == 0 { want.as_str() } else { "" };
            assert_eq!(left.out, said, "{launcher}, rank {rank}");
        }
        // Parts of sums went over it, not by memory.
        assert!(bytes > 20_000, "{launcher}: {bytes} bytes over the wire");
    }
}

/// No process ends and no link is closed: what is missing is known by waiting alone.
#[test]
fn nodes_that_lose_each_other_end() {
    let args = ["generate", "a b", "-n", "8000", "--temperature", "1", "--step-timeout", "2"];
    let Some((ranks, _, took)) = nodes("lws", "0", "1", true, &args) else { return };
    for (rank, left) in ranks.iter().enumerate() {
        assert_eq!(left.status, "75", "rank {rank}: {}", left.err);
        let other = format!("rank {} of 2", 1 - rank);
        assert!(left.err.contains(&other), "rank {rank}: {}", left.err);
    }
    assert!(took < Duration::from_secs(10), "{took:?}");
}
