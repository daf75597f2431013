//! Ranks as processes, of one machine or several.
//!
//! Rank 0 has the engine, and sends its orders to the others over a link each; every other process reads its
//! part of the model, takes the engine's checked configuration, and carries out orders until rank 0 says that
//! the engine is gone. A rank that ends, fails or is not heard of is named to all.

use crate::fate::{Fate, State};
use crate::link::Link;
use crate::place::Place;
use crate::rendezvous::{self, Joined};
use crate::watch::{Speaker, Watch, lost};
use crate::wire::{MOST_FRAME, MOST_HELLO, ToFollower, ToLeader, frame, receive};
use engraft_core::backend::Backend;
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Followers, Runner, StepOrder};
use engraft_core::model::Model;
use engraft_core::numerics::check_rank;
use engraft_core::policy::Rank;
use engraft_core::{Error, Result};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long rank 0 sleeps between two looks at whether the group still runs.
const NAP: Duration = Duration::from_millis(20);

/// Joins a group as rank 0, and makes its engine: `load` reads what rank 0 has of the model. `given_up` is
/// asked while others have not joined: an error of it ends the waiting; it is dropped once the group has
/// ended. The other processes end when the engine is dropped.
///
/// # Errors
/// `Comm` with the rank that has not joined, does not fit, or failed; those of `given_up`, `load`,
/// [`Engine::of_group`] and [`Runner::new`] on any rank; `Config` for a degree that is not 1, 2, 4 or 8.
pub fn lead<B: Backend>(
    place: &Place,
    mut given_up: impl FnMut() -> Result<()> + Send + 'static,
    config: EngineConfig,
    load: impl FnOnce(Rank) -> Result<(Arc<B>, Model<B::Device>)>,
) -> Result<Engine<B>> {
    check_rank(place.rank, place.world)?;
    let Joined { fate, board, links, file } = rendezvous::lead(place, &mut given_up)?;
    let mut group = Processes::start(place, &fate, links)?;
    group._given_up = Some(Box::new(given_up));
    group.until_all(ToLeader::Placed)?;
    drop(file);
    let (backend, model) = match load(Rank::new(0, place.world)?) {
        Ok(loaded) => loaded,
        Err(error) => {
            fate.fail(0, &error.to_string());
            return Err(error);
        }
    };
    group.until_all(ToLeader::Loaded)?;
    let comm = backend.group(board)?;
    Engine::of_group(backend, model, config, comm, Box::new(group))
}

/// Joins a group as another rank than 0, and carries out its orders until the engine is gone. `given_up` is
/// asked while rank 0 does not answer; `abandon` is called where the group has failed and this process has
/// not returned from here some seconds later.
///
/// # Errors
/// `Comm` with the rank that is missing; those of `load` and of this rank's own steps.
pub fn follow<B: Backend>(
    place: &Place,
    mut given_up: impl FnMut() -> Result<()>,
    load: impl FnOnce(Rank) -> Result<(Arc<B>, Model<B::Device>)>,
    abandon: impl Fn() + Send + 'static,
) -> Result<()> {
    let rank = Rank::new(place.rank, place.world)?;
    let Joined { fate, board, mut links, .. } = rendezvous::join(place, &mut given_up)?;
    let link = links.pop().ok_or_else(|| Error::internal("no link to rank 0"))?;
    let leader = Leader::start(place, &fate, link, Box::new(abandon))?;
    let outcome = carry_out::<B>(&leader, rank, board, load);
    if let Err(error) = &outcome {
        // Another rank's failure is kept: it came first.
        fate.fail(place.rank, &error.to_string());
    }
    outcome
}

fn carry_out<B: Backend>(
    leader: &Leader,
    rank: Rank,
    board: Box<dyn engraft_core::backend::Board>,
    load: impl FnOnce(Rank) -> Result<(Arc<B>, Model<B::Device>)>,
) -> Result<()> {
    leader.say(&ToLeader::Placed)?;
    let (backend, model) = load(rank)?;
    leader.say(&ToLeader::Loaded)?;
    // Some groups come together when they are made: rank 0 waits there before it has an engine.
    let comm = backend.group(board)?;
    let config = match leader.next()? {
        Some(ToFollower::Config(config)) => config,
        // Without an engine there is nothing to follow.
        None => return Ok(()),
        Some(_) => return Err(leader.fate.comm(0, "sent an order before its configuration")),
    };
    let mut runner = Runner::new(backend, model, &config, comm)?;
    leader.say(&ToLeader::Ready)?;
    while let Some(message) = leader.next()? {
        match message {
            ToFollower::Order(order) => runner.follow(&order)?,
            _ => return Err(leader.fate.comm(0, "sent what is no order")),
        }
    }
    Ok(())
}

/// Rank 0, seen from another.
struct Leader {
    fate: Arc<Fate>,
    to: Speaker,
    from: Receiver<ToFollower<'static>>,
    _watch: Watch,
}

impl Leader {
    fn start(place: &Place, fate: &Arc<Fate>, link: Link, abandon: Box<dyn Fn() + Send>) -> Result<Self> {
        let patience = place.step_within;
        let failed = |error| Error::io("the link to rank 0", error);
        link.patience(Some(patience), Some(patience)).map_err(failed)?;
        let from = link.another().map_err(failed)?;
        let (to, (say, orders)) = (Speaker::new(link), channel());
        let (heard, named) = (fate.clone(), thread::Builder::new().name("engraft orders".into()));
        // Ends with its link, at the latest with the process.
        named.spawn(move || listen(from, &say, &heard, patience)).map_err(failed)?;
        let own = place.rank;
        let ping = frame(&ToLeader::Ping).map_err(failed)?;
        // Rank 0, too, that it is the one: by the end of this link it would take this rank for it.
        let say = move |rank: usize, what: &str| {
            frame(&ToLeader::Failed { rank, what: of_rank(own, rank, what) }).ok()
        };
        let watch = Watch::start(fate.clone(), vec![to.clone()], patience, ping, say, abandon)?;
        Ok(Self { fate: fate.clone(), to, from: orders, _watch: watch })
    }

    fn say(&self, message: &ToLeader) -> Result<()> {
        let frame = frame(message).map_err(|error| Error::io("a message", error))?;
        self.to.say(&frame).map_err(|_| self.missing())
    }

    /// The next order; none once the engine is gone.
    fn next(&self) -> Result<Option<ToFollower<'static>>> {
        match (self.from.recv(), self.fate.state()) {
            (Ok(message), _) => Ok(Some(message)),
            (Err(_), State::Ended) => Ok(None),
            (Err(_), _) => Err(self.missing()),
        }
    }

    fn missing(&self) -> Error {
        self.fate.error().unwrap_or_else(|| self.fate.comm(0, "its process has ended"))
    }
}

/// A failure as it is passed on: of the rank itself as it says it, of another as this rank sees it.
fn of_rank(own: usize, rank: usize, what: &str) -> String {
    if own == rank { what.to_string() } else { format!("{what} (seen by rank {own})") }
}

/// Takes what rank 0 sends until it has ended.
fn listen(mut from: Link, say: &Sender<ToFollower<'static>>, fate: &Fate, patience: Duration) {
    loop {
        match receive(&mut from, MOST_FRAME) {
            Ok(ToFollower::Ping) => {}
            Ok(ToFollower::End) => return fate.end(),
            Ok(ToFollower::Failed { rank, what }) => return fate.fail(rank, &what),
            Ok(message) => drop(say.send(message)),
            Err(error) => return fate.fail(0, &lost(&error, patience)),
        }
    }
}

/// A process that follows, seen from rank 0.
struct Follower {
    to: Speaker,
    events: Receiver<ToLeader>,
    /// Reads its link.
    thread: Option<JoinHandle<()>>,
}

/// All of them.
struct Processes {
    fate: Arc<Fate>,
    followers: Vec<Follower>,
    /// Whether all have a runner.
    started: bool,
    watch: Option<Watch>,
    /// Of the caller, who learns by its end that the others know of the group's.
    _given_up: Option<Box<dyn FnMut() -> Result<()> + Send>>,
}

impl Processes {
    fn start(place: &Place, fate: &Arc<Fate>, links: Vec<Link>) -> Result<Self> {
        let patience = place.step_within;
        let mut group =
            Self { fate: fate.clone(), followers: Vec::new(), started: false, watch: None, _given_up: None };
        for (i, link) in links.into_iter().enumerate() {
            let rank = i + 1;
            let failed = |error| Error::io(format!("the link to rank {rank}"), error);
            link.patience(Some(patience), Some(patience)).map_err(failed)?;
            let from = link.another().map_err(failed)?;
            let (say, events) = channel();
            let (fate, named) = (fate.clone(), thread::Builder::new().name(format!("engraft rank {rank}")));
            let thread = named.spawn(move || hear(from, rank, &say, &fate, patience)).map_err(failed)?;
            group.followers.push(Follower { to: Speaker::new(link), events, thread: Some(thread) });
        }
        let ping = frame(&ToFollower::Ping).map_err(|error| Error::io("a message", error))?;
        let to = group.followers.iter().map(|follower| follower.to.clone()).collect();
        let say = |rank, what: &str| frame(&ToFollower::Failed { rank, what: what.into() }).ok();
        group.watch = Some(Watch::start(fate.clone(), to, patience, ping, say, Box::new(|| {}))?);
        Ok(group)
    }

    /// Waits until every rank has sent this.
    fn until_all(&self, want: ToLeader) -> Result<()> {
        for (i, follower) in self.followers.iter().enumerate() {
            loop {
                match follower.events.recv_timeout(NAP) {
                    Ok(got) if got == want => break,
                    Ok(got) => {
                        let what = format!("says {got:?}, {want:?} expected");
                        self.fate.fail(i + 1, &what);
                    }
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
                }
                if let Some(error) = self.fate.error() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn send(&self, message: &ToFollower<'_>) -> Result<()> {
        let frame = frame(message).map_err(|error| Error::io("a message to the ranks", error))?;
        for (i, follower) in self.followers.iter().enumerate() {
            if follower.to.say(&frame).is_err() {
                self.fate.fail(i + 1, "its process has ended");
            }
        }
        self.fate.error().map_or(Ok(()), Err)
    }
}

/// Takes what a rank sends until its link ends.
fn hear(mut from: Link, rank: usize, say: &Sender<ToLeader>, fate: &Fate, patience: Duration) {
    loop {
        match receive(&mut from, MOST_HELLO) {
            Ok(ToLeader::Ping) => {}
            Ok(ToLeader::Failed { rank, what }) => fate.fail(rank, &what),
            Ok(event) => drop(say.send(event)),
            Err(error) => return fate.fail(rank, &lost(&error, patience)),
        }
    }
}

impl Followers for Processes {
    fn start(&mut self, config: &EngineConfig) -> Result<()> {
        self.send(&ToFollower::Config(Box::new(config.clone())))?;
        self.until_all(ToLeader::Ready)?;
        self.started = true;
        Ok(())
    }

    fn order(&mut self, order: &StepOrder) -> Result<()> {
        self.send(&ToFollower::Order(Box::new(Cow::Borrowed(order))))
    }

    fn fail(&mut self, why: &str) {
        self.fate.fail(0, why);
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        match self.started && !thread::panicking() {
            // A group that has failed does not end well by it.
            true => self.fate.end(),
            false => self.fate.fail(0, "it could not start the engine"),
        }
        if self.fate.state() == State::Ended
            && let Ok(end) = frame(&ToFollower::End)
        {
            self.followers.iter().for_each(|follower| drop(follower.to.say(&end)));
        }
        // What is to be said has been said: links end behind it.
        drop(self.watch.take());
        for follower in &mut self.followers {
            follower.to.shut();
            if let Some(thread) = follower.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
