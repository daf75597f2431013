//! A group of processes: what this one does in it, and the processes that it starts itself.

use super::args::{GroupArgs, Led};
use super::environment;
use super::failure::Failure;
use super::output::{dim, note};
use engraft::engraft_ranks::{Meeting, Place};
use engraft::{Error, Options};
use std::io;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Child, Command as Program, Stdio};
use std::sync::PoisonError;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// How long the other ranks of a group have to end.
const ENDING: Duration = Duration::from_secs(6);
/// How long the end of a group is waited for: those that have not ended by themselves are killed by then.
const ENDED: Duration = Duration::from_secs(8);

/// The environment of this process.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The same options for this process's rank of its group, where it is in one; `way`: the flag that says what
/// ranks exchange by, where there is one.
///
/// # Errors
/// `Usage` for flags of a group where this process is in none.
pub fn placed(args: &GroupArgs, way: Option<&str>, options: Options) -> Result<Options, Failure> {
    let (parent, world) = (parent_id(), options.load_options()?.world);
    let tp = (world > 1).then_some(world);
    if let Some((place, launcher)) = environment::place(args, tp, &variable, parent)? {
        if launcher != "engraft" {
            note(&dim(&format!(
                "rank {} of {} by {launcher}, which meet at {}",
                place.rank, place.world, place.meeting
            )));
        }
        // A rank that this program has started does not outlive it.
        let orphaned = move || match launcher == "engraft" && parent_id() != parent {
            true => Err(Error::Comm {
                rank: 0,
                world,
                what: "the process that started the ranks has ended".into(),
            }),
            false => Ok(()),
        };
        let end = led(args);
        return Ok(options.processes(place, move || {
            let _lives = &end;
            orphaned()
        }));
    }
    if let Some(flag) = args.given().filter(|_| tp.is_none() || !args.processes) {
        return Err(Failure::Usage(format!("{flag} goes with ranks that are processes: --tp N --processes")));
    }
    if let (Some(flag), None) = (way, tp) {
        return Err(Failure::Usage(format!("{flag} goes with ranks: --tp N")));
    }
    if !args.processes {
        return Ok(options);
    }
    let children = Children::new(world).map_err(|e| Error::io("a place where ranks meet", e))?;
    let place = Place::new(0, world, children.meeting.clone(), children.token.clone());
    let mut group = Started { children, _end: led(args) };
    Ok(options.processes(args.applied(place), move || group.all_live()))
}

/// A group that this program has started. Its end is noted once the children have ended, which is the order
/// of these fields: the program ends then, and a child that is stopped would stay.
struct Started {
    children: Children,
    _end: Sender<()>,
}

impl Started {
    fn all_live(&mut self) -> engraft::Result<()> {
        self.children.all_live()
    }
}

/// Notes a group; it has ended when what this returns is dropped.
fn led(args: &GroupArgs) -> Sender<()> {
    let (end, ended) = channel();
    args.led.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
    end
}

/// Waits until the other ranks know that the groups of this process have ended: they would take its end for a
/// failure.
pub fn wait(led: &Led) {
    for group in led.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let _ = group.recv_timeout(ENDED);
    }
}

/// The ranks that this program starts: itself, with the same arguments.
struct Children {
    world: usize,
    meeting: Meeting,
    token: String,
    /// Of this user alone; it goes with this.
    _folder: tempfile::TempDir,
    started: Vec<Child>,
}

impl Children {
    fn new(world: usize) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("engraft-").tempdir()?;
        let meeting = Meeting::Unix(folder.path().join("ranks"));
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let token = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { world, meeting, token, _folder: folder, started: Vec::new() })
    }

    /// Starts them when it is asked first; then, whether one has ended.
    fn all_live(&mut self) -> engraft::Result<()> {
        if self.started.is_empty() {
            for rank in 1..self.world {
                let child = self
                    .start(rank)
                    .map_err(|error| self.lost(rank, format!("could not be started: {error}")))?;
                self.started.push(child);
            }
        }
        let world = self.world;
        for (i, child) in self.started.iter_mut().enumerate() {
            if let Ok(Some(status)) = child.try_wait() {
                let what = format!("its process has ended before it joined: {status}");
                return Err(Error::Comm { rank: i + 1, world, what });
            }
        }
        Ok(())
    }

    fn start(&self, rank: usize) -> io::Result<Child> {
        Program::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env("ENGRAFT_RANK", rank.to_string())
            .env("ENGRAFT_WORLD", self.world.to_string())
            .env("ENGRAFT_MEETING", self.meeting.to_string())
            .env("ENGRAFT_GROUP_TOKEN", &self.token)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // A key that ends this process must not end them before it has said so.
            .process_group(0)
            .spawn()
    }

    /// Waits until they have ended by themselves, and kills those that do not.
    fn end(&mut self) {
        let began = Instant::now();
        for child in &mut self.started {
            if matches!(child.try_wait(), Ok(None)) {
                // One that is stopped goes on, and finds that its group is at an end.
                // SAFETY: sends a signal to a process that this one has started and not waited for.
                unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGCONT) };
            }
        }
        for child in &mut self.started {
            while matches!(child.try_wait(), Ok(None)) && began.elapsed() < ENDING {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn lost(&self, rank: usize, what: String) -> Error {
        Error::Comm { rank, world: self.world, what }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end();
    }
}
