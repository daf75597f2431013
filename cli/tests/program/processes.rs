//! Ranks as processes: the text of one rank, whoever starts them, and an end of all where one is missing.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const ASKED: [&str; 7] = ["generate", "--prompt", "This package provides", "--seed", "1", "-n", "24"];

/// The program with these arguments and variables; its streams are kept.
fn start(args: &[&str], variables: &[(&str, String)]) -> Child {
    let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
    program.args(args).envs(variables.iter().map(|(name, value)| (name, value)));
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The text of one rank.
pub fn alone() -> String {
    let output = start(&ASKED, &[]).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", error(&output));
    text(&output)
}

/// Variables and further arguments of a rank.
type Rank = (Vec<(&'static str, String)>, Vec<String>);

/// The outputs of all ranks of a group.
fn group(ranks: Vec<Rank>) -> Vec<Output> {
    let all: Vec<Child> = ranks
        .iter()
        .map(|(variables, more)| {
            let args: Vec<&str> = ASKED.into_iter().chain(more.iter().map(String::as_str)).collect();
            start(&args, variables)
        })
        .collect();
    all.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

/// A port of this machine that is free.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn ranks_that_the_program_starts_give_the_text_of_one() {
    let want = alone();
    for more in [&["--tp", "2", "--processes"][..], &["--tp", "4", "--processes", "--sockets"]] {
        let output = start(&[&ASKED, more].concat(), &[]).wait_with_output().unwrap();
        assert!(output.status.success(), "{more:?}: {}", error(&output));
        assert_eq!(text(&output), want, "{more:?}");
        assert!(!error(&output).contains("error"), "{more:?}: {}", error(&output));
    }
}

#[test]
fn every_launcher_starts_a_group() {
    let want = alone();
    let of = |names: [&'static str; 2], rank: usize, more: &[(&'static str, String)]| {
        let own = [(names[0], rank.to_string()), (names[1], "2".to_string())];
        own.into_iter().chain(more.iter().cloned()).collect::<Vec<_>>()
    };
    let (store, job) = (port(), u64::from(std::process::id() % 10_000));
    let local = |name| (name, "2".to_string());
    let torchrun = [("MASTER_ADDR", "127.0.0.1".into()), ("MASTER_PORT", (store - 1).to_string())];
    let slurm = [("SLURM_STEP_NODELIST", "localhost".to_string()), ("SLURM_JOB_ID", job.to_string())];
    let mpi = [local("OMPI_COMM_WORLD_LOCAL_SIZE")];
    let mpich = [local("MPI_LOCALNRANKS")];
    for (names, more) in [
        (["RANK", "WORLD_SIZE"], &torchrun[..]),
        (["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"], &slurm),
        (["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], &mpi),
        (["PMI_RANK", "PMI_SIZE"], &mpich),
    ] {
        // Their order is any.
        let ranks = [1, 0].map(|rank| (of(names, rank, more), Vec::new()));
        let outputs = group(ranks.into());
        for output in &outputs {
            assert!(output.status.success(), "{names:?}: {}", error(output));
        }
        assert_eq!((text(&outputs[0]), text(&outputs[1])), (String::new(), want.clone()), "{names:?}");
    }
}

#[test]
fn ranks_that_are_unlike_end_with_what_differs() {
    let leader = format!("127.0.0.1:{}", port());
    let rank = |rank: &str, more: &[&str]| {
        let flags = ["--tp", "2", "--leader", &leader, "--rank", rank];
        (Vec::new(), flags.iter().chain(more).map(|arg| arg.to_string()).collect::<Vec<_>>())
    };
    let outputs = group(vec![rank("0", &[]), rank("1", &["--quantize", "int8"])]);
    for output in outputs {
        assert_eq!(output.status.code(), Some(75), "{}", error(&output));
        assert!(error(&output).contains("its quantize is int8, that of rank 0 none"), "{}", error(&output));
    }
}

/// A rank is killed while a text is made: rank 0 names it within a second, and all end with the status that a
/// launcher starts a group anew for.
#[test]
fn a_killed_rank_is_named_and_ends_all() {
    for sockets in [false, true] {
        let leader = format!("127.0.0.1:{}", port());
        let rank = |rank: &str| {
            let mut args =
                vec!["generate", "a b", "-n", "8000", "--temperature", "1", "--tp", "4", "--leader", &leader];
            args.extend(["--rank", rank]);
            if sockets {
                args.push("--sockets");
            }
            start(&args, &[])
        };
        let mut all: Vec<Child> = ["0", "1", "2", "3"].map(rank).into();
        // The first of the text is there: steps run.
        let mut first = [0u8; 1];
        std::io::Read::read_exact(all[0].stdout.as_mut().unwrap(), &mut first).unwrap();
        all[2].kill().unwrap();
        let killed = Instant::now();
        let outputs: Vec<Output> = all.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
        let took = killed.elapsed();
        for (rank, output) in outputs.iter().enumerate().filter(|(rank, _)| *rank != 2) {
            assert_eq!(output.status.code(), Some(75), "rank {rank}: {}", error(output));
            assert!(error(output).contains("rank 2 of 4"), "rank {rank}: {}", error(output));
        }
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}

#[test]
fn flags_that_would_say_nothing_are_refused() {
    for (args, what) in [
        (&["generate", "a", "--processes"][..], "--processes goes with ranks that are processes"),
        (&["generate", "a", "--tp", "2", "--sockets"], "--sockets goes with ranks that are processes"),
        (&["bench", "--tp", "2", "--processes"], "--processes does not go with this command"),
        (&["plan", "--tp", "2", "--step-timeout", "3"], "--step-timeout does not go with this command"),
    ] {
        let output = start(args, &[]).wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", error(&output));
        assert!(error(&output).contains(what), "{args:?}: {}", error(&output));
    }
}

/// Ranks that the program has started end with it, whatever ended it.
#[test]
#[cfg(target_os = "linux")]
fn ranks_that_the_program_started_do_not_outlive_it() {
    let args = ["generate", "a b", "-n", "8000", "--temperature", "1", "--tp", "4", "--processes"];
    let mut leader = start(&args, &[]);
    let mut first = [0u8; 1];
    std::io::Read::read_exact(leader.stdout.as_mut().unwrap(), &mut first).unwrap();
    let children = children(&leader);
    assert_eq!(children.len(), 3, "{children:?}");
    leader.kill().unwrap();
    leader.wait().unwrap();
    let began = Instant::now();
    while children.iter().any(|child| lives(*child)) {
        assert!(began.elapsed() < Duration::from_secs(5), "{children:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The processes that one of a program's threads has started.
#[cfg(target_os = "linux")]
fn children(program: &Child) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", program.id())).unwrap();
    tasks
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap())
        .flat_map(|line| line.split_whitespace().map(|child| child.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

#[cfg(target_os = "linux")]
fn lives(process: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// A rank that is stopped cannot end by itself: the program has it go on, and waits for its end.
#[test]
#[cfg(target_os = "linux")]
fn a_stopped_rank_is_named_and_does_not_outlive_the_program() {
    for more in [&[][..], &["--sockets"]] {
        let args = ["generate", "a b", "-n", "8000", "--temperature", "1", "--tp", "2", "--processes"];
        let mut leader = start(&[&args[..], &["--step-timeout", "2"], more].concat(), &[]);
        let mut first = [0u8; 1];
        std::io::Read::read_exact(leader.stdout.as_mut().unwrap(), &mut first).unwrap();
        let [child] = children(&leader)[..] else { panic!("one child was expected") };
        // SAFETY: sends a signal to a process that a child of this one has started and not waited for.
        unsafe { libc::kill(child, libc::SIGSTOP) };
        let stopped = Instant::now();
        let output = leader.wait_with_output().unwrap();
        let took = stopped.elapsed();
        let left = lives(child);
        // SAFETY: as above, where it is still there.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert!(!left, "{more:?}: the stopped rank is left");
        assert_eq!(output.status.code(), Some(75), "{more:?}: {}", error(&output));
        assert!(error(&output).contains("rank 1 of 2"), "{more:?}: {}", error(&output));
        assert!(took < Duration::from_secs(6), "{more:?}: {took:?}");
    }
}
