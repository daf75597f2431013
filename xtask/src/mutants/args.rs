//! How the chore is called.

use super::Outcome;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How it is called.
pub const USAGE: &str = "cargo xtask mutants ptx|wgsl --run 'PROGRAM [ARGS]'... [--valid 'PROGRAM [ARGS]']
                           [--seed N] [--count N] [--stem STEM] [--minutes N] [--limit SECONDS] [--jobs N]
                           [--least PERCENT] [--equivalent FILE] [--only 'TEXT UNIT:LINE OPERATOR']...
                           [--tests STEM=NAME,...]...
       cargo xtask mutants rust --woven FOLDER --run 'PROGRAM [ARGS]'... [--minutes N] ...
       cargo xtask mutants ptx --reached FILE
       ({stem} in ARGS is the text's stem, then each NAME of other tests of it; programs are run as libtest's are)";

/// What is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// The checked-in texts of CUDA kernels.
    Ptx,
    /// Templates of shaders.
    Wgsl,
    /// Sources, in a copy that has many changes.
    Rust,
}

impl Language {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ptx => "PTX",
            Self::Wgsl => "WGSL",
            Self::Rust => "Rust",
        }
    }
}

/// The settings of a run.
#[derive(Debug)]
pub struct Args {
    /// What is changed.
    pub language: Language,
    /// Test programs, the quickest first.
    pub run: Vec<String>,
    /// A program that fails where a mutant is no valid text.
    pub valid: Option<String>,
    /// Of the sample.
    pub seed: u64,
    /// Mutants.
    pub count: usize,
    /// Only texts of these stems; all where none is named.
    pub stems: Vec<String>,
    /// What tests of a stem are called that do not have its name.
    pub tests: BTreeMap<String, Vec<String>>,
    /// Mutants by name, as a run prints them, in place of a sample.
    pub only: Vec<String>,
    /// The copy of the repository that has Rust's changes.
    pub woven: Option<PathBuf>,
    /// For the whole run.
    pub minutes: u64,
    /// Seconds for one test at least; more where tests take long without a mutant.
    pub limit: u64,
    /// Mutants at a time.
    pub jobs: usize,
    /// The share of mutants that must be caught, in percent.
    pub least: u64,
    /// The reviewed list.
    pub equivalent: PathBuf,
    /// In place of a run: what launches have executed, as `ptx_vm::reached` notes it.
    pub reached: Option<PathBuf>,
}

impl Args {
    /// Whether texts of a stem are sampled from.
    pub fn takes(&self, stem: &str) -> bool {
        self.stems.is_empty() || self.stems.iter().any(|known| known == stem)
    }

    /// What tests of a stem are called.
    pub fn tests_of<'a>(&'a self, stem: &'a str) -> impl Iterator<Item = &'a str> {
        let others = self.tests.get(stem).into_iter().flatten();
        std::iter::once(stem).chain(others.map(String::as_str))
    }
}

/// Reads the arguments.
///
/// # Errors
/// An option that is unknown, lacks its value, or has one that is no number.
pub fn read(mut args: impl Iterator<Item = String>) -> Outcome<Args> {
    let usage = |why: String| format!("{why}\nusage: {USAGE}");
    let language = match args.next().as_deref() {
        Some("ptx") => Language::Ptx,
        Some("wgsl") => Language::Wgsl,
        Some("rust") => Language::Rust,
        other => {
            return Err(usage(format!(
                "what to change is {}; allowed: ptx, wgsl, rust",
                other.unwrap_or("missing")
            )));
        }
    };
    let mut all = Args {
        language,
        run: Vec::new(),
        valid: None,
        seed: 1,
        count: 100,
        stems: Vec::new(),
        tests: BTreeMap::new(),
        only: Vec::new(),
        woven: None,
        minutes: 60,
        limit: 300,
        jobs: 2,
        least: 90,
        equivalent: "tests/mutants.txt".into(),
        reached: None,
    };
    options(args, |option, value| set(&mut all, option, value)).map_err(usage)?;
    let demanded = match all.language {
        Language::Rust if all.woven.is_none() => Some("no --woven names a copy with changes"),
        Language::Ptx | Language::Wgsl if all.woven.is_some() => Some("--woven is of rust alone"),
        Language::Rust | Language::Wgsl if all.reached.is_some() => Some("--reached is of ptx alone"),
        _ if all.run.is_empty() && all.reached.is_none() => Some("no --run names a test program"),
        _ => None,
    };
    demanded.map_or(Ok(all), |why| Err(usage(why.into())))
}

/// Calls `set` with every option and its value.
///
/// # Errors
/// An option without a value, and those of `set`.
pub fn options(
    mut args: impl Iterator<Item = String>,
    mut set: impl FnMut(&str, String) -> Outcome<()>,
) -> Outcome<()> {
    while let Some(option) = args.next() {
        let value = args.next().ok_or_else(|| format!("{option} has no value"))?;
        set(&option, value)?;
    }
    Ok(())
}

/// The value of an option as a number.
///
/// # Errors
/// Any other text.
pub fn number(option: &str, value: &str) -> Outcome<u64> {
    value.parse().map_err(|_| format!("{option} is `{value}`; allowed: a number"))
}

fn set(all: &mut Args, option: &str, value: String) -> Outcome<()> {
    let number = || number(option, &value);
    match option {
        "--run" => all.run.push(value),
        "--valid" => all.valid = Some(value),
        "--stem" => all.stems.push(value),
        "--tests" => {
            let (stem, name) = value
                .split_once('=')
                .ok_or_else(|| format!("{option} is `{value}`; allowed: STEM=NAME,..."))?;
            all.tests.entry(stem.into()).or_default().extend(name.split(',').map(String::from));
        }
        "--only" => all.only.push(value),
        "--woven" => all.woven = Some(value.into()),
        "--equivalent" => all.equivalent = value.into(),
        "--reached" => all.reached = Some(value.into()),
        "--seed" => all.seed = number()?,
        "--count" => all.count = number()? as usize,
        "--minutes" => all.minutes = number()?,
        "--limit" => all.limit = number()?,
        "--jobs" => all.jobs = number()?.max(1) as usize,
        "--least" => all.least = number()?,
        _ => return Err(format!("unknown option `{option}`")),
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_stem_has_its_own_tests_and_those_that_are_named() {
        let words = ["ptx", "--run", "p {stem}", "--tests", "kv=codes,qkv", "--tests", "kv=rope"];
        let args = read(words.map(String::from).into_iter()).unwrap();
        let of = |stem| args.tests_of(stem).collect::<Vec<_>>();
        assert_eq!((of("kv"), of("norm")), (vec!["kv", "codes", "qkv", "rope"], vec!["norm"]));
        let words = ["ptx", "--run", "p", "--tests", "kv"];
        let why = read(words.map(String::from).into_iter()).unwrap_err();
        assert!(why.contains("--tests is `kv`"), "{why}");
        for (words, said) in [
            (["ptx", "--run", "p", "--woven", "f"], "--woven is of rust alone"),
            (["wgsl", "--run", "p", "--reached", "f"], "--reached is of ptx alone"),
            (["rust", "--run", "p", "--seed", "1"], "no --woven"),
        ] {
            let why = read(words.map(String::from).into_iter()).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }
}
