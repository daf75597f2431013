//! `cargo xtask mutants`: plants bugs at random and says which ones the tests catch.
//!
//! A mutant is one changed line of a kernel: a barrier, fence or wait left out, a count or constant one
//! off, a parity flipped, a bound shifted, operands swapped, a branch negated. No mutant needs a build:
//! programs on the PTX machine read it from a file (`ptx_vm::mutant`), shaders from a folder of templates
//! (the feature `folder` of `engraft-shaders`). Per mutant the test programs run in the order given, the
//! quickest first, and the first test that fails ends it. Rust is left to `cargo-mutants`; `.ci/mutants`
//! runs both.
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
mod wgsl;

use args::{Args, Language};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use suite::{Limits, Tests, Verdict};

pub use args::USAGE;

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

/// A text that mutants are sampled from.
#[derive(Debug)]
struct Text {
    /// `norm.compute_90a` or `norm.wgsl`.
    name: String,
    stem: String,
    text: String,
    sites: Vec<Site>,
}

/// A mutant that was sampled.
#[derive(Debug)]
struct Sampled<'a> {
    from: &'a Text,
    site: &'a Site,
}

impl Sampled<'_> {
    /// How `--only` and the list of equivalent mutants name it.
    fn key(&self) -> String {
        self.from.key(self.site)
    }
}

impl Text {
    fn key(&self, site: &Site) -> String {
        format!("{} {}:{} {:?}", self.name, site.unit, site.line + 1, site.operator)
    }
}

/// Runs the chore.
pub fn main(args: impl Iterator<Item = String>) -> ExitCode {
    match args::read(args).and_then(|args| run(&args)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

fn texts(language: Language) -> Outcome<Vec<Text>> {
    let text = |name: String, stem: &str, text: String, sites| Text { name, stem: stem.into(), text, sites };
    match language {
        Language::Ptx => engraft_kernels::MODULES
            .iter()
            .map(|module| {
                let ptx = module.ptx().map_err(|e| e.to_string())?;
                let name = format!("{}.{}", module.stem, module.arch);
                Ok(text(name, module.stem, ptx.to_owned(), ptx::sites(ptx)))
            })
            .collect(),
        Language::Wgsl => {
            let folder = Path::new(suite::TEMPLATES);
            let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            let mut names: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            names.sort();
            names
                .into_iter()
                .filter_map(|path| {
                    let name = path.file_name()?.to_str()?.to_owned();
                    let stem = name.strip_suffix(".wgsl")?.split('_').next()?.to_owned();
                    let read = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()));
                    Some(read.map(|wgsl| text(name.clone(), &stem, wgsl.clone(), wgsl::sites(&name, &wgsl))))
                })
                .collect()
        }
    }
}

/// The mutants of these names.
fn named(texts: &[Text], names: &[String]) -> Outcome<Vec<(usize, usize)>> {
    let of = |t: usize, name: &str| {
        let places = texts[t].sites.iter().enumerate().filter(|(_, site)| texts[t].key(site) == name);
        places.map(|(s, _)| (t, s)).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for name in names {
        let found: Vec<_> = (0..texts.len()).flat_map(|t| of(t, name)).collect();
        if found.is_empty() {
            return Err(format!(
                "no place has the name `{name}`; allowed: TEXT UNIT:LINE OPERATOR as a run prints it"
            ));
        }
        all.extend(found);
    }
    Ok(all)
}

/// Mutants at random, none twice.
fn sample(texts: &[Text], args: &Args) -> Vec<(usize, usize)> {
    let mut dice = fastrand::Rng::with_seed(args.seed);
    let mut sampled = Vec::new();
    let texts: Vec<_> = texts.iter().enumerate().filter(|(_, text)| args.takes(&text.stem)).collect();
    let available: usize = texts.iter().map(|(_, text)| text.sites.len()).sum();
    while sampled.len() < args.count.min(available) {
        let Some(&(t, text)) = dice.choice(&texts) else { break };
        let mut units: BTreeMap<&str, BTreeMap<Operator, Vec<usize>>> = BTreeMap::new();
        for (s, site) in text.sites.iter().enumerate() {
            units.entry(&site.unit).or_default().entry(site.operator).or_default().push(s);
        }
        let operators = dice.choice(units.values());
        let places = operators.and_then(|operators| dice.choice(operators.values()));
        let Some(&s) = places.and_then(|places| dice.choice(places)) else { continue };
        if !sampled.contains(&(t, s)) {
            sampled.push((t, s));
        }
    }
    sampled
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
    let texts = texts(args.language)?;
    if let Some(path) = &args.reached {
        reached::print(&texts, path)?;
        return Ok(true);
    }
    let equivalent = equivalent(&args.equivalent)?;
    let sampled = if args.only.is_empty() { sample(&texts, args) } else { named(&texts, &args.only)? };
    println!("# {} mutants of {}, seed {}", sampled.len(), args.language.name(), args.seed);
    let end = Instant::now() + Duration::from_secs(60 * args.minutes);
    let mut score = Score::default();
    // What all tests have to run against costs minutes, and the tests of a stem catch most.
    let run = Pass { args, texts: &texts, equivalent: &equivalent, end };
    let (lives, left) = run.over(sampled, (Tests::OfStem, &Limits::new()), &mut score)?;
    score.left = left.len();
    let unseen = match Tests::Others.among(args).next() {
        Some(_) if !lives.is_empty() && Instant::now() < end => {
            println!("# {} live so far: all tests", lives.len());
            let limits = suite::baseline(args)?;
            let (lives, left) = run.over(lives, (Tests::Others, &limits), &mut score)?;
            lives.into_iter().chain(left).collect()
        }
        _ => lives,
    };
    for (t, s) in unseen {
        let site = &texts[t].sites[s];
        let change = format!("{} -> {}", site.old.trim(), site.new.trim());
        score.survived.push(format!("{}\n    {change}", texts[t].key(site)));
    }
    Ok(summary(&score, args))
}

/// Places: a text, and a site of it.
type Places = Vec<(usize, usize)>;

/// What a run has that goes over mutants with some of the tests.
struct Pass<'a> {
    args: &'a Args,
    texts: &'a [Text],
    equivalent: &'a BTreeMap<String, String>,
    end: Instant,
}

impl Pass<'_> {
    /// Judges mutants, several at a time. Those that live, and those that no time was left for.
    fn over(&self, mutants: Places, tests: (Tests, &Limits), score: &mut Score) -> Outcome<(Places, Places)> {
        let waiting: Mutex<VecDeque<_>> = Mutex::new(mutants.into());
        let (lives, shared) = (Mutex::new(Vec::new()), Mutex::new(score));
        let failed: Mutex<Option<String>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for worker in 0..self.args.jobs {
                let (waiting, lives, shared, failed) = (&waiting, &lives, &shared, &failed);
                scope.spawn(move || {
                    while Instant::now() < self.end && locked(failed).is_none() {
                        let Some((t, s)) = locked(waiting).pop_front() else { break };
                        let from = &self.texts[t];
                        let mutant = Sampled { from, site: &from.sites[s] };
                        let verdict = match self.equivalent.get(&mutant.key()) {
                            Some(reason) => Ok(Verdict::Equivalent(reason.clone())),
                            None => suite::judge(self.args, tests, worker, &mutant),
                        };
                        match verdict {
                            Ok(verdict) => {
                                if matches!(verdict, Verdict::Survived { .. }) {
                                    locked(lives).push((t, s));
                                }
                                report(&mutant, verdict, &mut locked(shared));
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

fn report(mutant: &Sampled<'_>, verdict: Verdict, score: &mut Score) {
    let change = format!("{} -> {}", mutant.site.old.trim(), mutant.site.new.trim());
    let said = match verdict {
        Verdict::Caught { by, seconds } => {
            score.caught += 1;
            format!("caught     {seconds:6.1} s  {}  by {by}", mutant.key())
        }
        Verdict::Survived { seconds } => {
            format!("lives      {seconds:6.1} s  {}  {change}", mutant.key())
        }
        Verdict::Equivalent(reason) => {
            score.equivalent += 1;
            format!("equivalent           {}  {reason}", mutant.key())
        }
        Verdict::Invalid(why) => {
            score.invalid += 1;
            format!("invalid              {}  {change}: {why}", mutant.key())
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_sample_and_no_place_twice() {
        let site = |unit: &str, line, operator| Site {
            unit: unit.into(),
            line,
            operator,
            old: String::new(),
            new: String::new(),
        };
        let rare = site("a", 0, Operator::Wait);
        let often = (1..100).map(|line| site("b", line, Operator::Swap));
        let text = |stem: &str| Text {
            name: stem.into(),
            stem: stem.into(),
            text: String::new(),
            sites: std::iter::once(rare.clone()).chain(often.clone()).collect(),
        };
        let texts = [text("x"), text("y")];
        let args = |seed, stem: &str| {
            args::read(
                ["ptx", "--seed", seed, "--count", "40", "--stem", stem, "--run", "true"]
                    .map(String::from)
                    .into_iter(),
            )
            .unwrap()
        };
        let sampled = sample(&texts, &args("5", "x"));
        assert_eq!(sampled, sample(&texts, &args("5", "x")));
        assert_ne!(sampled, sample(&texts, &args("6", "x")));
        assert_eq!(sampled.len(), 40);
        // Of one text, and the one wait among a hundred places is sampled: units come first.
        assert!(sampled.iter().all(|(t, _)| *t == 0) && sampled.contains(&(0, 0)));
        let mut places = sampled.clone();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 40);
    }
}
