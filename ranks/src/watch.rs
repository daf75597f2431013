//! Who looks at the other processes of a group while a rank computes.

use crate::fate::{Fate, State};
use crate::link::Link;
use engraft_core::{Error, Result};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a rank says that it lives, at most.
const PING: Duration = Duration::from_secs(5);
/// How long a failure may take to be sent to a rank.
const LAST: Duration = Duration::from_secs(1);
/// How long a rank of a group that has failed has to end by itself.
const ENDING: Duration = Duration::from_secs(5);

/// The sending side of a link, of several threads.
#[derive(Debug, Clone)]
pub(crate) struct Speaker(Arc<Mutex<Link>>);

impl Speaker {
    /// Speaks on a link.
    pub fn new(link: Link) -> Self {
        Self(Arc::new(Mutex::new(link)))
    }

    /// Sends a frame.
    pub fn say(&self, frame: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut *self.link(), frame)
    }

    /// Ends the link.
    pub fn shut(&self) {
        self.link().shut();
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a link has ended, in words.
pub(crate) fn lost(error: &io::Error, patience: Duration) -> String {
    match error.kind() {
        io::ErrorKind::InvalidData => error.to_string(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("nothing was heard of it within {patience:?}")
        }
        _ => "its process has ended".into(),
    }
}

/// Says to the others that this rank lives, and what the first failure was.
pub(crate) struct Watch {
    end: Arc<Mutex<bool>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches over a group. `ping` is sent often enough that nobody loses patience; what `failed` makes of a
    /// failure is sent once. `abandon` is called where the process has not ended some seconds after that.
    pub fn start(
        fate: Arc<Fate>,
        to: Vec<Speaker>,
        patience: Duration,
        ping: Vec<u8>,
        failed: impl Fn(usize, &str) -> Option<Vec<u8>> + Send + 'static,
        abandon: Box<dyn Fn() + Send>,
    ) -> Result<Self> {
        let end = Arc::new(Mutex::new(false));
        let ended = end.clone();
        let body = move || {
            let State::Failed(rank, what) = alive(&fate, &to, &ping, PING.min(patience / 4)) else { return };
            if let Some(frame) = failed(rank, &what) {
                for speaker in &to {
                    let _ = speaker.link().patience(None, Some(LAST));
                    let _ = speaker.say(&frame);
                }
            }
            let began = Instant::now();
            while began.elapsed() < ENDING {
                if *ended.lock().unwrap_or_else(PoisonError::into_inner) {
                    return;
                }
                thread::sleep(LAST / 20);
            }
            abandon();
        };
        let thread = thread::Builder::new().name("engraft watch".into()).spawn(body);
        let thread = thread.map_err(|error| Error::io("the thread that watches over the group", error))?;
        Ok(Self { end, thread: Some(thread) })
    }
}

/// Pings until the group has ended, and says how it did.
fn alive(fate: &Fate, to: &[Speaker], ping: &[u8], every: Duration) -> State {
    let mut last = Instant::now();
    loop {
        let state = fate.watch(every);
        if state != State::Running {
            return state;
        }
        if last.elapsed() >= every {
            last = Instant::now();
            // Who does not take it is missed by who reads its link.
            to.iter().for_each(|speaker| drop(speaker.say(ping)));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = true;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
