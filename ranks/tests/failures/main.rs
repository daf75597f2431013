//! A rank of a group of processes is killed, is stopped, hangs, leaves, or sends what is no part of an
//! exchange: while it reads its model, at every exchange of a short run, and while nothing is computed. Every
//! open request then ends with one error that names the rank, no process hangs or is left, no page is lost,
//! and no token is given that the run without a failure does not give.
//!
//! The processes are this program. Of the places in a run a few are taken, by the seed; under `ENGRAFT_FULL`
//! all of them.
#![allow(clippy::unwrap_used)]

mod group;
mod harm;
mod rank;
mod struck;

use group::{Case, Ended, Left};
use harm::Harm;
use libtest_mimic::{Arguments, Trial};
use rank::{Asked, FAILED, Point};
use sample::Sample;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Within which all is known that is noticed by other means than by waiting.
const SOON: Duration = Duration::from_secs(4);
/// Places in a run that a trial takes, of all.
const FEW: u64 = 3;

/// The run of a group in which no rank fails.
struct Whole {
    exchanges: usize,
    /// By request.
    tokens: BTreeMap<String, Vec<String>>,
}

/// The tokens of each request.
fn tokens(leader: &Left) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for (id, token) in leader.said("token").into_iter().filter_map(|said| said.split_once(' ')) {
        if token != "None" {
            all.entry(id.into()).or_default().push(token.into());
        }
    }
    all
}

fn whole(world: usize, linked: bool) -> Result<Whole, String> {
    let point = Point::Exchange(0);
    let ended = group::run(Case { world, linked, rank: 0, harm: Harm::None, point })?;
    let leader = &ended.ranks[0];
    let all_well = ended.ranks.iter().all(|rank| rank.status.success());
    let exchanges: BTreeSet<&str> = ended.ranks.iter().flat_map(|rank| rank.said("exchanges")).collect();
    let count = exchanges.first().and_then(|count| count.parse().ok());
    match count {
        Some(exchanges @ 10..) if all_well && leader.said("done").len() == 3 => {
            Ok(Whole { exchanges, tokens: tokens(leader) })
        }
        _ => Err(format!("a group without a failure: {ended:#?}")),
    }
}

/// The same, of 2 and 4 ranks, made once.
fn reference(world: usize) -> Result<&'static Whole, String> {
    static WHOLE: [OnceLock<Result<Whole, String>>; 2] = [OnceLock::new(), OnceLock::new()];
    WHOLE[world / 4].get_or_init(|| whole(world, false)).as_ref().map_err(Clone::clone)
}

fn said(left: &Left, line: &str) -> bool {
    left.lines.iter().any(|(_, said)| said == line)
}

/// What is wrong with how a group has ended.
fn judged(case: Case, ended: &Ended, whole: &Whole) -> Result<(), String> {
    let name = format!("rank {} of {}", case.rank, case.world);
    for (rank, left) in ended.ranks.iter().enumerate().filter(|(rank, _)| *rank != case.rank) {
        if left.status.code() != Some(FAILED) {
            return Err(format!("rank {rank} ends with {}", left.status));
        }
        if rank > 0 && !left.said("error").iter().any(|error| error.contains(&name)) {
            return Err(format!("rank {rank} does not name {name}"));
        }
    }
    if ended.struck.is_none() {
        return Err(format!("{name} has done no harm"));
    }
    let own = ended.ranks[case.rank].status;
    if case.rank == 0 && case.harm == Harm::Stop && case.point == Point::Exchange(whole.exchanges) {
        // All that the last exchange needs has been sent: rank 0 may finish before it hears that the others
        // have given it up.
        if own.code() == Some(0) {
            return match tokens(&ended.ranks[0]) == whole.tokens {
                true => Ok(()),
                false => Err(format!("{name} finishes with other tokens")),
            };
        }
    }
    let as_expected = match case.harm {
        Harm::Kill => own.signal() == Some(libc::SIGKILL),
        Harm::Leave => own.code() == Some(0),
        // It is ended some seconds after it has heard that the group has failed.
        Harm::Hang => own.code() == Some(FAILED) && said(&ended.ranks[case.rank], "abandoned"),
        _ => own.code() == Some(FAILED),
    };
    if !as_expected {
        return Err(format!("{name} itself ends with {own}"));
    }
    if !matches!(case.harm, Harm::Stop | Harm::Hang) && ended.took > SOON {
        return Err(format!("the others ended after {:?}", ended.took));
    }
    match case.rank == 0 && !matches!(case.harm, Harm::Garbage | Harm::Slot) {
        true => Ok(()),
        false => led(case, &ended.ranks[0], &name, whole),
    }
}

/// What is wrong with what rank 0 says.
fn led(case: Case, leader: &Left, name: &str, whole: &Whole) -> Result<(), String> {
    if case.point == Point::Load {
        return match leader.said("error")[..] {
            [error] if error.contains(name) => Ok(()),
            ref said => Err(format!("the engine's error is {said:?}")),
        };
    }
    let failed: Vec<&str> = leader.said("failed");
    let ids: Vec<&str> = failed.iter().filter_map(|said| Some(said.split_once(' ')?.0)).collect();
    let ended: BTreeSet<&str> = leader.said("done").into_iter().chain(ids.iter().copied()).collect();
    if ids.is_empty() || ended.len() != ids.len() + leader.said("done").len() {
        return Err("requests have no error, or more than one end".into());
    }
    if let Some(other) = failed.iter().find(|said| !said.contains(name)) {
        return Err(format!("an open request gets {other:?}"));
    }
    if leader.said("open") != ["0"] || !leader.said("refused").is_empty() {
        return Err(format!("{:?} requests are open", leader.said("open")));
    }
    match leader.said("pages")[..] {
        [pages] if pages.split_once(' ').is_some_and(|(free, all)| free == all) => {}
        ref pages => return Err(format!("free pages of all: {pages:?}")),
    }
    for (id, given) in tokens(leader) {
        // Behind a pause the same requests come again, by other numbers, and fail.
        let all = whole.tokens.get(&id);
        if !all.is_some_and(|all| all.starts_with(&given)) {
            return Err(format!("request {id} is given {given:?}, {all:?} without a failure"));
        }
    }
    Ok(())
}

/// Places in a run where a harm can be done.
fn points(harm: Harm, exchanges: usize) -> Vec<Point> {
    let mut all: Vec<Point> = (1..=exchanges).map(Point::Exchange).collect();
    if matches!(harm, Harm::Kill | Harm::Stop | Harm::Leave) {
        all.insert(0, Point::Load);
    }
    if matches!(harm, Harm::Kill | Harm::Stop) {
        all.push(Point::Idle);
    }
    all
}

/// The longest time from a harm to the end of all others, and how many runs there were, of a name.
static TIMES: Mutex<BTreeMap<String, (Duration, usize)>> = Mutex::new(BTreeMap::new());

fn tried(world: usize, linked: bool, rank: usize, harm: Harm) -> Result<(), String> {
    let whole = reference(world)?;
    let all = points(harm, whole.exchanges);
    let name = format!("{harm:?} {world} {linked} {rank}");
    let count = match (harm, std::env::var_os("ENGRAFT_FULL")) {
        // Takes seven seconds, wherever it is.
        (Harm::Hang, _) => all.len() as u64,
        (_, Some(_)) => 1,
        _ => all.len() as u64 / FEW,
    };
    let seed = std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for point in Sample::of(count, seed).of_list(&name, all) {
        let case = Case { world, linked, rank, harm, point };
        let ended = group::run(case).map_err(|what| format!("{case:?}: {what}"))?;
        judged(case, &ended, whole).map_err(|what| format!("{case:?}: {what}: {ended:#?}"))?;
        let mut times = TIMES.lock().unwrap();
        let (longest, runs) = times.entry(harm.name()).or_default();
        (*longest, *runs) = ((*longest).max(ended.took), *runs + 1);
    }
    Ok(())
}

/// Every degree and way to carry parts gives the same tokens.
fn alike() -> Result<(), String> {
    let two = reference(2)?;
    for (world, linked) in [(2, true), (4, false), (4, true)] {
        let other = whole(world, linked)?;
        if other.tokens != two.tokens {
            return Err(format!("{world} ranks, linked {linked}: {:?}, {:?}", other.tokens, two.tokens));
        }
    }
    Ok(())
}

fn trials() -> Vec<Trial> {
    let mut all = vec![Trial::test("groups_without_a_failure_give_the_same", || Ok(alike()?))];
    for (world, rank) in [(2, 0), (2, 1), (4, 0), (4, 2)] {
        for linked in [false, true] {
            for harm in Harm::ALL {
                let not_here = match harm {
                    Harm::None => true,
                    Harm::Slot => linked,
                    // Others are compared with rank 0, and its process is its caller's to end.
                    Harm::Longer | Harm::Hang => rank == 0,
                    _ => false,
                };
                if not_here {
                    continue;
                }
                let carried = if linked { "linked" } else { "mapped" };
                let name = format!("{}::rank_{rank}_of_{world}::{carried}", harm.name());
                all.push(Trial::test(name, move || Ok(tried(world, linked, rank, harm)?)));
            }
        }
    }
    all
}

fn main() {
    if let Ok(words) = std::env::var(group::ASKED) {
        let status = Asked::of_words(&words).map_or(2, |asked| asked.run());
        std::process::exit(status);
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials());
    for (harm, (longest, runs)) in TIMES.lock().unwrap().iter() {
        println!("{harm}: {runs} runs, the others end within {longest:?}");
    }
    conclusion.exit();
}
