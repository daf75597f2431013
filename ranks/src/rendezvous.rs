//! How processes find each other: all dial rank 0, which looks at who they are before it lets any begin.

use crate::fate::Fate;
use crate::link::{Link, Listener, Meeting, random};
use crate::linked::LinkedBoard;
use crate::mapped::{self, MappedBoard};
use crate::place::Place;
use crate::wire::{Hello, Join, MOST_HELLO, ToFollower, Welcome, receive, send};
use engraft_core::backend::Board;
use engraft_core::{Error, Result};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long who dials may take to say who it is.
const HELLO: Duration = Duration::from_secs(5);
/// How long rank 0 sleeps between two looks at who has come.
const NAP: Duration = Duration::from_millis(2);
/// Strangers that are listened to at once.
const MOST_STRANGERS: usize = 64;

/// A place in a group that has met.
pub(crate) struct Joined {
    /// Whether the group still runs.
    pub fate: Arc<Fate>,
    /// Where parts are exchanged.
    pub board: Box<dyn Board>,
    /// Of rank 0: to the others, from rank 1 on; else to rank 0.
    pub links: Vec<Link>,
    /// The file that all map: it has a name until all have said that they do.
    pub file: Option<Named>,
}

/// A file whose name is removed when this is dropped.
pub(crate) struct Named(std::path::PathBuf);

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Who dials, once it has said who it is.
struct Incoming {
    listener: Listener,
    say: Sender<Option<(Hello, Link)>>,
    come: Receiver<Option<(Hello, Link)>>,
    /// Those that have not said it yet.
    strangers: usize,
}

impl Incoming {
    fn new(listener: Listener) -> Self {
        let (say, come) = channel();
        Self { listener, say, come, strangers: 0 }
    }

    /// Waits for the next until `deadline`; `given_up` is asked in between.
    fn next(
        &mut self,
        deadline: Instant,
        given_up: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<(Hello, Link)>> {
        let failed = |error| Error::io("the place where ranks meet", error);
        loop {
            while self.strangers < MOST_STRANGERS
                && let Some(mut link) = self.listener.accept().map_err(failed)?
            {
                let say = self.say.clone();
                self.strangers += 1;
                // Each by itself: one that says nothing holds up no other.
                thread::spawn(move || {
                    let hello = hello(&mut link);
                    if let Err(error) = &hello {
                        tracing::warn!("who dialled is no rank of this group: {error}");
                    }
                    let _ = say.send(hello.ok().map(|hello| (hello, link)));
                });
            }
            if let Ok(came) = self.come.recv_timeout(NAP) {
                self.strangers -= 1;
                if came.is_some() {
                    return Ok(came);
                }
            }
            given_up()?;
            if Instant::now() > deadline {
                return Ok(None);
            }
        }
    }
}

fn hello(link: &mut Link) -> io::Result<Hello> {
    link.patience(Some(HELLO), Some(HELLO))?;
    receive(link, MOST_HELLO)
}

/// Compares without an early end: how long it takes says nothing of where the first difference is.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Rank 0: waits for all others, and says how parts are exchanged. `given_up` is asked while it waits.
pub(crate) fn lead(place: &Place, given_up: &mut dyn FnMut() -> Result<()>) -> Result<Joined> {
    let deadline = Instant::now() + place.join_within;
    let listener =
        Listener::at(&place.meeting).map_err(|error| Error::io(place.meeting.to_string(), error))?;
    let mut incoming = Incoming::new(listener);
    let mut joined: Vec<Option<(Join, Link)>> = (1..place.world).map(|_| None).collect();
    while let Some(missing) = joined.iter().position(Option::is_none) {
        let Some((hello, link)) = incoming.next(deadline, given_up)? else {
            let absent: Vec<String> = (1..place.world)
                .filter(|rank| joined[rank - 1].is_none())
                .map(|rank| rank.to_string())
                .collect();
            let within = place.join_within;
            let what = format!("it did not join within {within:?}; missing: {}", absent.join(", "));
            let error = Error::Comm { rank: missing + 1, world: place.world, what };
            refuse(&mut joined, &error);
            return Err(error);
        };
        admit(place, &mut joined, hello, link)?;
    }
    let (joins, mut links): (Vec<Join>, Vec<Link>) = joined.into_iter().flatten().unzip();
    let fate = Arc::new(Fate::new(place.world));
    let (welcome, file) = exchange(place, &joins)?;
    for (i, link) in links.iter_mut().enumerate() {
        let gone = |error: io::Error| fate.comm(i + 1, format!("it has left: {error}"));
        link.patience(None, Some(place.step_within)).map_err(gone)?;
        send(link, &ToFollower::Welcome(welcome.clone())).map_err(gone)?;
    }
    let board: Box<dyn Board> = match &welcome {
        Welcome::Mapped(path) => {
            Box::new(MappedBoard::open(path, 0, place.world, fate.clone(), place.step_within)?)
        }
        Welcome::Linked(_) => {
            let mut peers: Vec<Option<Link>> = (0..place.world).map(|_| None).collect();
            take_peers(place, &mut incoming, deadline, &mut peers, given_up)?;
            Box::new(LinkedBoard::new(0, peers, fate.clone(), place.step_within)?)
        }
    };
    Ok(Joined { fate, board, links, file })
}

/// How the group exchanges parts: over one file where all can map it.
fn exchange(place: &Place, joins: &[Join]) -> Result<(Welcome, Option<Named>)> {
    let memory = mapped::memory();
    let shared = !memory.is_empty() && joins.iter().all(|join| join.memory == memory);
    if shared && !place.linked {
        match mapped::create(place.world, &format!("{:016x}{:016x}", random(), random())) {
            Ok(path) => return Ok((Welcome::Mapped(path.clone()), Some(Named(path)))),
            Err(error) => tracing::warn!("ranks exchange over sockets: {error}"),
        }
    }
    let own = place.meeting.to_string();
    let addresses = std::iter::once(own).chain(joins.iter().map(|join| join.listens.clone()));
    Ok((Welcome::Linked(addresses.collect()), None))
}

/// Takes a rank that joins.
///
/// # Errors
/// `Comm` for one that belongs to the group and cannot be in it; strangers are sent away.
fn admit(place: &Place, joined: &mut [Option<(Join, Link)>], hello: Hello, mut link: Link) -> Result<()> {
    let mut away = |what: &str| {
        tracing::warn!("who dialled is no rank of this group: {what}");
        let _ = send(&mut link, &ToFollower::Refused(what.to_string()));
    };
    let Hello::Join(join) = hello else {
        away("it has not joined");
        return Ok(());
    };
    if !same(&join.token, &place.token) {
        away("its token is another group's");
        return Ok(());
    }
    let Some(what) = refusal(place, &join, joined) else {
        let place = join.rank - 1;
        joined[place] = Some((join, link));
        return Ok(());
    };
    away(&what);
    let error = Error::Comm { rank: join.rank, world: place.world, what };
    refuse(joined, &error);
    Err(error)
}

/// Why a rank of this group cannot be in it.
fn refusal(place: &Place, join: &Join, joined: &[Option<(Join, Link)>]) -> Option<String> {
    let unlike =
        |name: &str, got: &str, own: &str| Some(format!("its {name} is {got}, that of rank 0 {own}"));
    if join.version != VERSION {
        return unlike("version", &join.version, VERSION);
    }
    if join.world != place.world {
        return Some(format!("it expects {} ranks, rank 0 {}", join.world, place.world));
    }
    if join.rank == 0 || join.rank >= place.world {
        return Some(format!("its rank is {}, 1 to {} allowed", join.rank, place.world - 1));
    }
    if joined[join.rank - 1].is_some() {
        return Some("two processes have this rank".into());
    }
    for ((name, own), (other, got)) in place.facts.iter().zip(&join.facts) {
        if name == other && own != got {
            return unlike(name, got, own);
        }
    }
    let names = |facts: &[(String, String)]| facts.iter().map(|fact| fact.0.clone()).collect::<Vec<_>>();
    (names(&place.facts) != names(&join.facts)).then(|| "it was built otherwise".into())
}

/// The version that all ranks must have.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Sends all that have joined away: the group does not come about.
fn refuse(joined: &mut [Option<(Join, Link)>], error: &Error) {
    for (_, link) in joined.iter_mut().flatten() {
        let _ = send(link, &ToFollower::Refused(error.to_string()));
    }
}

/// Takes the links of all higher ranks.
fn take_peers(
    place: &Place,
    incoming: &mut Incoming,
    deadline: Instant,
    peers: &mut [Option<Link>],
    given_up: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    while let Some(missing) = (place.rank + 1..place.world).find(|rank| peers[*rank].is_none()) {
        match incoming.next(deadline, given_up)? {
            Some((Hello::Peer { token, rank }, link)) if same(&token, &place.token) => {
                match peers.get_mut(rank) {
                    Some(peer) if rank > place.rank && peer.is_none() => *peer = Some(link),
                    _ => tracing::warn!("a second link of rank {rank} is not taken"),
                }
            }
            Some(_) => tracing::warn!("who dialled is no rank of this group"),
            None => {
                let what = format!("it did not link to rank {} within {:?}", place.rank, place.join_within);
                return Err(Error::Comm { rank: missing, world: place.world, what });
            }
        }
    }
    Ok(())
}

/// Any other rank: joins rank 0, and does what it says.
pub(crate) fn join(place: &Place, given_up: &mut dyn FnMut() -> Result<()>) -> Result<Joined> {
    let deadline = Instant::now() + place.join_within;
    let away = |what: String| Error::Comm { rank: 0, world: place.world, what };
    let mut link = Link::dial(&place.meeting, deadline, given_up)
        .map_err(|error| away(format!("it was not reached within {:?}: {error}", place.join_within)))?;
    let lost = |error: io::Error| away(format!("it does not answer: {error}"));
    link.patience(Some(place.join_within), Some(HELLO)).map_err(lost)?;
    let (listener, listens) = Listener::alongside(&link, &place.meeting, place.rank).map_err(lost)?;
    let join = Join {
        version: VERSION.into(),
        token: place.token.clone(),
        rank: place.rank,
        world: place.world,
        facts: place.facts.clone(),
        memory: mapped::memory(),
        listens: listens.to_string(),
    };
    send(&mut link, &Hello::Join(join)).map_err(lost)?;
    let welcome = match receive(&mut link, MOST_HELLO).map_err(lost)? {
        ToFollower::Welcome(welcome) => welcome,
        ToFollower::Refused(why) => return Err(away(format!("it refuses rank {}: {why}", place.rank))),
        _ => return Err(away("it says what does not belong here".into())),
    };
    let fate = Arc::new(Fate::new(place.world));
    let board: Box<dyn Board> = match welcome {
        Welcome::Mapped(path) => {
            Box::new(MappedBoard::open(&path, place.rank, place.world, fate.clone(), place.step_within)?)
        }
        Welcome::Linked(addresses) => {
            let peers = dial_peers(place, &addresses, listener, deadline)?;
            Box::new(LinkedBoard::new(place.rank, peers, fate.clone(), place.step_within)?)
        }
    };
    Ok(Joined { fate, board, links: vec![link], file: None })
}

/// Links to all others: dials lower ranks, is dialled by higher ones.
fn dial_peers(
    place: &Place,
    addresses: &[String],
    listener: Listener,
    deadline: Instant,
) -> Result<Vec<Option<Link>>> {
    let mut peers: Vec<Option<Link>> = (0..place.world).map(|_| None).collect();
    for (rank, peer) in peers.iter_mut().enumerate().take(place.rank) {
        let failed = |what: String| Error::Comm { rank, world: place.world, what };
        let address = addresses.get(rank).ok_or_else(|| failed("it has no address".into()))?;
        // Rank 0 is where it was found; it does not know its own name as others do.
        let meeting = if rank == 0 { place.meeting.clone() } else { address.parse::<Meeting>()? };
        let mut link =
            Link::dial(&meeting, deadline, &mut || Ok(())).map_err(|error| failed(error.to_string()))?;
        let hello = Hello::Peer { token: place.token.clone(), rank: place.rank };
        send(&mut link, &hello).map_err(|error| failed(error.to_string()))?;
        *peer = Some(link);
    }
    take_peers(place, &mut Incoming::new(listener), deadline, &mut peers, &mut || Ok(()))?;
    Ok(peers)
}
