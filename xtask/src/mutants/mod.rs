//! `cargo xtask mutants`: plants bugs at random and says which ones the tests catch.
//!
//! A mutant is one changed line of a kernel: a barrier, fence or wait left out, a count or constant one
//! off, a parity flipped, a bound shifted, operands swapped, a branch negated. No mutant needs a build:
//! programs on the PTX machine read it from a file (`ptx_vm::mutant`), shaders from a folder of templates
//! (the feature `folder` of `engraft-shaders`). Per mutant the test programs run in the order given, the
//! quickest first, and the first test that fails ends it. What can be changed in Rust `cargo-mutants` says;
//! `weave` puts a sample of it into one build of a copy of the repository, where a number switches each on.
//!
//! A sample takes a text, then a kernel of it, then an operator, then a place, each evenly: what stands in
//! the texts a thousand times (moves of fragments) must not crowd out the waits. A seed gives the same
//! sample. `tests/mutants.txt` lists places whose change alters nothing that a caller could see, each with
//! its reason; they are no part of the score. `--reached` says which places nothing has executed, by a file
//! that test programs wrote.

mod args;
mod ptx;
mod reached;
mod suite;
mod texts;
mod weave;
mod wgsl;
mod woven;

use args::{Args, Language};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use suite::{Limits, Tests, Verdict};
use texts::Text;

pub use args::USAGE;
pub use woven::USAGE as WEAVE;

/// A failure, for people.
type Outcome<T> = Result<T, String>;

/// What is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// A barrier left out.
    Barrier,
    /// A fence left out.
    Fence,
    /// A wait left out.
    Wait,
    /// A commit or an arrival left out.
    Commit,
    /// A value from another lane taken from the own one.
    Exchange,
    /// A count of groups, arrivals or bytes that is one off.
    Count,
    /// The other phase of an mbarrier awaited.
    Parity,
    /// A relation taken for its neighbour.
    Bound,
    /// A branch or a condition turned round.
    Branch,
    /// An operation taken for another.
    Operation,
    /// Operands swapped.
    Swap,
    /// A constant or an address one off.
    Constant,
}

/// A line that can be changed into a bug.
#[derive(Debug, Clone)]
pub struct Site {
    /// The kernel of a PTX text, or the template.
    pub unit: String,
    /// The line, counted from the unit's first.
    pub line: usize,
    /// What the change is.
    pub operator: Operator,
    /// The line as it is.
    pub old: String,
    /// The line that replaces it.
    pub new: String,
}

impl Site {
    /// The change as the PTX machine reads it.
    pub fn mutant(&self) -> ptx_vm::mutant::Mutant {
        let Self { unit, line, old, new, .. } = self.clone();
        ptx_vm::mutant::Mutant { kernel: unit, line, old, new }
    }
}

/// A mutant that is to be judged.
#[derive(Debug, Clone)]
struct Mutant<'a> {
    /// How `--only` and the list of equivalent mutants name it.
    key: String,
    /// Whose tests run first.
    stem: &'a str,
    /// What is changed into what.
    change: String,
    how: How<'a>,
}

/// How tests come to run against a mutant.
#[derive(Debug, Clone)]
enum How<'a> {
    /// They read a text with another line.
    Line(&'a Text, &'a Site),
    /// They were built with it, and a number switches it on.
    Number(u32),
}

impl<'a> Mutant<'a> {
    fn of(text: &'a Text, site: &'a Site) -> Self {
        let change = format!("{} -> {}", site.old.trim(), site.new.trim());
        Self { key: text.key(site), stem: &text.stem, change, how: How::Line(text, site) }
    }

    fn numbered(woven::Numbered { number, package, name }: &'a woven::Numbered) -> Self {
        // A colon and a space end a name in the list of equivalent ones.
        let key = name.replacen(": ", " ", 1);
        Self { key, stem: package, change: String::new(), how: How::Number(*number) }
    }
}

/// Runs the chore.
pub fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let mut args = args.peekable();
    let ran = match args.next_if(|first| first == "weave") {
        Some(_) => woven::main(args).map(|()| true),
        None => args::read(args).and_then(|args| run(&args)),
    };
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

/// Places whose change alters nothing, with the reason.
fn equivalent(path: &Path) -> Outcome<BTreeMap<String, String>> {
    let text = match std::fs::read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read.map_err(|e| format!("{}: {e}", path.display()))?,
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (key, reason) = line.split_once(": ").ok_or_else(|| {
                format!(
                    "{}: `{line}` has no reason; allowed: TEXT UNIT:LINE OPERATOR: REASON",
                    path.display()
                )
            })?;
            Ok((key.to_owned(), reason.to_owned()))
        })
        .collect()
}

/// What became of the mutants.
#[derive(Debug, Default)]
struct Score {
    caught: usize,
    equivalent: usize,
    invalid: usize,
    survived: Vec<String>,
    left: usize,
}

fn run(args: &Args) -> Outcome<bool> {
    let texts = texts::texts(args.language)?;
    if let Some(path) = &args.reached {
        reached::print(&texts, path)?;
        return Ok(true);
    }
    let equivalent = equivalent(&args.equivalent)?;
    let numbered = args.woven.as_deref().map(woven::read).transpose()?.unwrap_or_default();
    let all = || numbered.iter().map(Mutant::numbered);
    let sampled: Vec<Mutant<'_>> = match (args.language, args.only.is_empty()) {
        (Language::Rust, true) => all().collect(),
        (Language::Rust, false) => all().filter(|mutant| args.only.contains(&mutant.key)).collect(),
        (_, true) => texts::sample(&texts, args),
        (_, false) => texts::named(&texts, &args.only)?,
    };
    println!("# {} mutants of {}, seed {}", sampled.len(), args.language.name(), args.seed);
    let end = Instant::now() + Duration::from_secs(60 * args.minutes);
    let mut score = Score::default();
    // What all tests have to run against costs minutes, and the tests of a stem catch most.
    let run = Pass { args, equivalent: &equivalent, end };
    let has_stems = Tests::OfStem.among(args).next().is_some();
    let (lives, left) = match has_stems {
        true => {
            let (lives, left) = run.over(sampled, (Tests::OfStem, &Limits::new()), &mut score)?;
            println!("# {} live so far", lives.len());
            (lives, left)
        }
        false => (sampled, Vec::new()),
    };
    score.left = left.len();
    let unseen = match Tests::Others.among(args).next() {
        Some(_) if !lives.is_empty() && Instant::now() < end => {
            let limits = suite::baseline(args)?;
            let (lives, left) = run.over(lives, (Tests::Others, &limits), &mut score)?;
            // What the tests of its stem have let live is no mutant that nothing was run against.
            match has_stems {
                true => lives.into_iter().chain(left).collect(),
                false => {
                    score.left = left.len();
                    lives
                }
            }
        }
        _ => lives,
    };
    score.survived.extend(unseen.into_iter().map(|mutant| format!("{}\n    {}", mutant.key, mutant.change)));
    Ok(summary(&score, args))
}

/// Some mutants.
type Mutants<'a> = Vec<Mutant<'a>>;

/// What a run has that goes over mutants with some of the tests.
struct Pass<'a> {
    args: &'a Args,
    equivalent: &'a BTreeMap<String, String>,
    end: Instant,
}

impl Pass<'_> {
    /// Judges mutants, several at a time. Those that live, and those that no time was left for.
    fn over<'m>(
        &self,
        mutants: Mutants<'m>,
        tests: (Tests, &Limits),
        score: &mut Score,
    ) -> Outcome<(Mutants<'m>, Mutants<'m>)> {
        let waiting: Mutex<VecDeque<_>> = Mutex::new(mutants.into());
        let (lives, shared) = (Mutex::new(Vec::new()), Mutex::new(score));
        let failed: Mutex<Option<String>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for worker in 0..self.args.jobs {
                let (waiting, lives, shared, failed) = (&waiting, &lives, &shared, &failed);
                scope.spawn(move || {
                    while Instant::now() < self.end && locked(failed).is_none() {
                        let Some(mutant) = locked(waiting).pop_front() else { break };
                        let verdict = match self.equivalent.get(&mutant.key) {
                            Some(reason) => Ok(Verdict::Equivalent(reason.clone())),
                            None => suite::judge(self.args, tests, worker, &mutant),
                        };
                        match verdict {
                            Ok(verdict) => {
                                let survived = matches!(verdict, Verdict::Survived { .. });
                                report(&mutant, verdict, &mut locked(shared));
                                if survived {
                                    locked(lives).push(mutant);
                                }
                            }
                            Err(why) => *locked(failed) = Some(why),
                        }
                    }
                });
            }
        });
        match locked(&failed).take() {
            Some(why) => Err(why),
            None => {
                let left = std::mem::take(&mut *locked(&waiting)).into();
                Ok((std::mem::take(&mut *locked(&lives)), left))
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report(Mutant { key, change, .. }: &Mutant<'_>, verdict: Verdict, score: &mut Score) {
    let said = match verdict {
        Verdict::Caught { by, seconds } => {
            score.caught += 1;
            format!("caught     {seconds:6.1} s  {key}  by {by}")
        }
        Verdict::Survived { seconds } => {
            format!("lives      {seconds:6.1} s  {key}  {change}")
        }
        Verdict::Equivalent(reason) => {
            score.equivalent += 1;
            format!("equivalent           {key}  {reason}")
        }
        Verdict::Invalid(why) => {
            score.invalid += 1;
            format!("invalid              {key}  {change}: {why}")
        }
    };
    println!("{said}");
}

/// Prints the score and the survivors; whether the score is as demanded.
fn summary(score: &Score, args: &Args) -> bool {
    let of = score.caught + score.survived.len();
    let share = 100.0 * score.caught as f64 / of.max(1) as f64;
    println!(
        "# {}: caught {} of {of} ({share:.1} %; at least {} %), {} equivalent, {} invalid, {} not reached in {} min",
        args.language.name(),
        score.caught,
        args.least,
        score.equivalent,
        score.invalid,
        score.left,
        args.minutes
    );
    for survivor in &score.survived {
        println!("# survived: {survivor}");
    }
    of > 0 && share >= args.least as f64
}
