//! The processes of a group: started, watched, and ended whatever happens.

use super::harm::Harm;
use super::rank::{Asked, Point};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The variable that says what a process is asked to be.
pub const ASKED: &str = "ENGRAFT_TEST_RANK";
/// How long a group may take from its harm to its end.
pub const HANG: Duration = Duration::from_secs(10);
/// How long a run may take until then.
const LONG: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_millis(2);

/// What is tried.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub world: usize,
    pub linked: bool,
    /// Who does harm.
    pub rank: usize,
    pub harm: Harm,
    pub point: Point,
}

impl Case {
    /// Ranks wait for a stopped one; where another failure is noticed by waiting alone, it is not in time.
    fn patience(&self) -> Duration {
        Duration::from_secs(if matches!(self.harm, Harm::Stop | Harm::Hang) { 2 } else { 30 })
    }
}

type Lines = Arc<Mutex<Vec<(Instant, String)>>>;

/// A process of a group.
struct Member {
    child: Child,
    lines: Lines,
    readers: Vec<JoinHandle<()>>,
    status: Option<ExitStatus>,
}

/// What a process has left behind.
#[derive(Debug)]
pub struct Left {
    pub status: ExitStatus,
    pub lines: Vec<(Instant, String)>,
}

impl Left {
    /// What follows a word at the beginning of a line, of all such lines.
    pub fn said(&self, word: &str) -> Vec<&str> {
        let all = self.lines.iter();
        all.filter_map(|(_, line)| line.strip_prefix(word)?.strip_prefix(' ')).collect()
    }
}

/// What a group has left behind.
#[derive(Debug)]
pub struct Ended {
    /// By rank.
    pub ranks: Vec<Left>,
    /// When the harm was done.
    pub struck: Option<Instant>,
    /// From the harm to the end of all others.
    pub took: Duration,
}

fn reader(stream: impl Read + Send + 'static, lines: &Lines) -> JoinHandle<()> {
    let lines = lines.clone();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            lines.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), line));
        }
    })
}

impl Member {
    fn start(asked: &Asked) -> Self {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.env(ASKED, asked.words()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The system ends all of a group in which one is stopped when nothing is left that could continue it.
        program.process_group(0);
        let mut child = program.spawn().unwrap();
        let lines = Lines::default();
        let readers =
            vec![reader(child.stdout.take().unwrap(), &lines), reader(child.stderr.take().unwrap(), &lines)];
        Self { child, lines, readers, status: None }
    }

    /// When it said this line, if it has.
    fn said(&self, line: &str) -> Option<Instant> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().find(|(_, said)| said == line).map(|(at, _)| *at)
    }

    fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap();
        }
        self.status.is_some()
    }

    fn signal(&self, number: i32) {
        // SAFETY: sends a signal to a process that this one has started and not waited for.
        unsafe { libc::kill(self.child.id() as i32, number) };
    }

    fn left(mut self) -> Left {
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        let lines = std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner));
        Left { status: self.status.take().unwrap_or_else(|| ExitStatus::from_raw(libc::SIGKILL)), lines }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a group to its end.
///
/// # Errors
/// Which processes did not end in time, and what all have said.
pub fn run(case: Case) -> Result<Ended, String> {
    let folder = tempfile::tempdir().unwrap();
    let meeting = format!("unix:{}", folder.path().join("group").display());
    let asked = |rank: usize| Asked {
        rank,
        world: case.world,
        linked: case.linked,
        patience: case.patience(),
        meeting: meeting.clone(),
        harm: if rank == case.rank && case.point != Point::Idle { case.harm } else { Harm::None },
        point: if rank == case.rank || rank == 0 { case.point } else { Point::Exchange(0) },
    };
    let mut all: Vec<Member> = (0..case.world).map(|rank| Member::start(&asked(rank))).collect();
    let (began, mut struck, mut late) = (Instant::now(), None, None);
    loop {
        if struck.is_none() {
            struck = strike(case, &mut all);
        }
        let alive: Vec<usize> = (0..case.world).filter(|rank| !all[*rank].has_ended()).collect();
        if alive.is_empty() {
            break;
        }
        if matches!(case.harm, Harm::Stop | Harm::Hang) && alive == [case.rank] && late.is_none() {
            late = Some(Instant::now());
            // One that is stopped goes on, and finds its group gone.
            all[case.rank].signal(if case.harm == Harm::Stop { libc::SIGCONT } else { 0 });
        }
        let limit = late.or(struck).map_or(began + LONG, |at| at + HANG);
        if Instant::now() > limit {
            all.iter().for_each(|member| member.signal(libc::SIGKILL));
            all.iter_mut().for_each(|member| drop(member.child.wait()));
            let said: Vec<Left> = all.into_iter().map(Member::left).collect();
            return Err(format!("ranks {alive:?} did not end: {said:#?}"));
        }
        thread::sleep(NAP);
    }
    let end = late.unwrap_or_else(Instant::now);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    let ranks: Vec<Left> = all.into_iter().map(Member::left).collect();
    // All may have ended before it was read.
    let said = || ranks[case.rank].lines.iter().find(|(_, line)| line == "struck").map(|(at, _)| *at);
    let struck = struck.or_else(said);
    let took = struck.map_or(Duration::ZERO, |at| end.saturating_duration_since(at));
    match left {
        0 => Ok(Ended { ranks, struck, took }),
        _ => Err(format!("{left} files are left where the ranks met")),
    }
}

/// When the harm was done; where nothing is computed, this does it.
fn strike(case: Case, all: &mut [Member]) -> Option<Instant> {
    if case.point != Point::Idle {
        return all[case.rank].said("struck");
    }
    all[0].said("idle")?;
    all[case.rank].signal(if case.harm == Harm::Stop { libc::SIGSTOP } else { libc::SIGKILL });
    let struck = Instant::now();
    if let Some(mut stdin) = all[0].child.stdin.take() {
        let _ = stdin.write_all(b"\n");
    }
    Some(struck)
}
