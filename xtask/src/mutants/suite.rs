//! Runs test programs against one mutant, until a test fails.

use super::args::Args;
use super::{How, Mutant, Outcome, Site, woven};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Where templates lie.
pub const TEMPLATES: &str = "shaders/wgsl";
/// What stands for the stem of a mutant's text.
const STEM: &str = "{stem}";
/// The variable by which shaders take templates from a folder.
const FOLDER: &str = "ENGRAFT_WGSL";
/// A test that takes so many times what the slowest of its program took without a mutant does not end: load
/// on the machine alone makes none so slow.
const SLOWER: u32 = 20;

/// What became of a mutant.
#[derive(Debug)]
pub enum Verdict {
    /// A test failed, a program died, or a test does not end.
    Caught {
        /// The test.
        by: String,
        /// How long it took.
        seconds: f64,
    },
    /// Every test passed.
    Survived {
        /// How long they took.
        seconds: f64,
    },
    /// The change alters nothing, for this reason.
    Equivalent(String),
    /// The change is no valid text: it says nothing about tests.
    Invalid(String),
}

/// Which programs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tests {
    /// Those of the stem.
    OfStem,
    /// The others.
    Others,
}

impl Tests {
    fn has(self, program: &str) -> bool {
        program.contains(STEM) == (self == Self::OfStem)
    }

    /// Those among the programs.
    pub fn among(self, args: &Args) -> impl Iterator<Item = &String> {
        args.run.iter().filter(move |program| self.has(program))
    }
}

/// Plants the mutant and runs programs. Whether its text is valid is looked at with those of its stem.
///
/// # Errors
/// Files that cannot be written and programs that cannot be started.
pub fn judge(
    args: &Args,
    (tests, limits): (Tests, &Limits),
    worker: usize,
    mutant: &Mutant<'_>,
) -> Outcome<Verdict> {
    let planted = match plant(worker, mutant)? {
        Ok(planted) => planted,
        Err(why) => return Ok(Verdict::Invalid(why)),
    };
    let run = |program: &str, name: &str| -> Outcome<Option<String>> {
        if program.contains(STEM) && !has_tests(command(program, name, args.jobs)?, called(program))? {
            return Ok(None);
        }
        let mut command = command(program, name, args.jobs)?;
        command.env(planted.0, &planted.1);
        let limit = limits.get(program).copied().unwrap_or(Duration::from_secs(args.limit));
        Ok(failure(command, called(program), limit)?.0)
    };
    let start = Instant::now();
    let valid = args.valid.as_deref().filter(|_| tests == Tests::OfStem);
    if let Some(by) = valid.map(|program| run(program, "")).transpose()?.flatten() {
        return Ok(Verdict::Invalid(by));
    }
    let names = args.tests_of(mutant.stem).take(if tests == Tests::OfStem { usize::MAX } else { 1 });
    for name in names {
        for program in tests.among(args) {
            if let Some(by) = run(program, name)? {
                return Ok(Verdict::Caught { by, seconds: start.elapsed().as_secs_f64() });
            }
        }
    }
    Ok(Verdict::Survived { seconds: start.elapsed().as_secs_f64() })
}

/// How long one test of a program may take.
pub type Limits = BTreeMap<String, Duration>;

/// Runs the programs that are of no stem without a mutant: a test that fails by itself would catch
/// everything. What their tests may take from now on.
///
/// # Errors
/// The test.
pub fn baseline(args: &Args) -> Outcome<Limits> {
    let mut limits = Limits::new();
    let least = Duration::from_secs(args.limit);
    for program in Tests::Others.among(args) {
        let (failed, slowest) = failure(command(program, "", args.jobs)?, called(program), least)?;
        if let Some(by) = failed {
            return Err(format!("without any mutant: {by}"));
        }
        limits.insert(program.clone(), least.max(SLOWER * slowest));
    }
    Ok(limits)
}

/// The variable that names a mutant, and its value.
type Planted = (&'static str, OsString);

/// Writes the mutant; or why it is no valid text.
fn plant(worker: usize, mutant: &Mutant<'_>) -> Outcome<Result<Planted, String>> {
    let (from, site) = match mutant.how {
        How::Number(number) => return Ok(Ok((woven::SWITCH, number.to_string().into()))),
        How::Line(from, site) => (from, site),
    };
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    // Two runs side by side must not plant each other's mutants.
    let folder = target.join("mutants").join(format!("{}-{worker}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| wrong(&folder, &e))?;
    let folder = folder.canonicalize().map_err(|e| wrong(&folder, &e))?;
    match Path::new(&from.name).extension() {
        Some(wgsl) if wgsl == "wgsl" => templates(&folder, &from.text, site).map(Ok),
        _ => {
            let (ptx, path) = (site.mutant(), folder.join("mutant.txt"));
            let changed = ptx.applied(&from.text).ok_or_else(|| format!("{}: no such line", mutant.key))?;
            if let Err(e) = ptx_vm::Module::parse(&changed) {
                return Ok(Err(e.to_string()));
            }
            std::fs::write(&path, ptx.to_text()).map_err(|e| wrong(&path, &e))?;
            Ok(Ok((ptx_vm::mutant::FILE, path.into())))
        }
    }
}

/// A folder of all templates, one of them with the changed line.
fn templates(folder: &Path, text: &str, site: &Site) -> Outcome<Planted> {
    let entries = std::fs::read_dir(TEMPLATES).map_err(|e| wrong(Path::new(TEMPLATES), &e))?;
    for entry in entries.flatten() {
        let to = folder.join(entry.file_name());
        std::fs::copy(entry.path(), &to).map_err(|e| wrong(&to, &e))?;
    }
    let lines = text.lines().enumerate().map(|(i, line)| if i == site.line { &site.new } else { line });
    let changed: String = lines.flat_map(|line| [line, "\n"]).collect();
    let path = folder.join(&site.unit);
    std::fs::write(&path, changed).map_err(|e| wrong(&path, &e))?;
    Ok((FOLDER, folder.into()))
}

fn wrong(path: &Path, e: &std::io::Error) -> String {
    format!("{}: {e}", path.display())
}

/// What a program is called: variables and folders may stand in front of it, a number ends its file's name.
fn called(program: &str) -> &str {
    let built = program.split_whitespace().find(|word| word.contains("/deps/"));
    let path = built.or_else(|| program.split_whitespace().next()).unwrap_or(program);
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('-').map_or(name, |(name, _)| name)
}

/// A program and its arguments; it has its share of the processors.
fn command(program: &str, stem: &str, jobs: usize) -> Outcome<Command> {
    let mut words = program.split_whitespace();
    let mut command = Command::new(words.next().ok_or("--run names no program")?);
    command.args(words.map(|word| word.replace(STEM, stem)));
    let threads = std::thread::available_parallelism().map_or(1, |n| (n.get() / jobs).max(1));
    command.args(["--test-threads", &threads.to_string()]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Whether a program has tests of the name that its arguments ask for.
///
/// # Errors
/// A program that lists none because it cannot start.
fn has_tests(mut command: Command, name: &str) -> Outcome<bool> {
    let listed = command.arg("--list").stderr(Stdio::piped()).output().map_err(|e| format!("{name}: {e}"))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match listed.status.success() {
        true => Ok(said(&listed.stdout).lines().any(|line| line.ends_with(": test"))),
        false => Err(format!("{name} --list: {}: {}", listed.status, said(&listed.stderr))),
    }
}

/// The test that fails first, none where all pass; and the longest time between two results.
fn failure(mut command: Command, name: &str, limit: Duration) -> Outcome<(Option<String>, Duration)> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| format!("{name}: {e}"))?;
    let (result, slowest) = watched(&mut child, limit);
    // What has ended already is no error.
    let _ = child.kill();
    let status = child.wait().map_err(|e| format!("{name}: {e}"))?;
    let failed = match result {
        Watched::Failed(test) => Some(format!("{name} {test}")),
        Watched::Late => Some(format!("{name}: a test of over {} s", limit.as_secs())),
        Watched::Ended if status.success() => None,
        Watched::Ended => Some(format!("{name}: {status}")),
    };
    Ok((failed, slowest))
}

enum Watched {
    Failed(String),
    Late,
    Ended,
}

/// Reads what a test program prints until a test has failed, it ends, or no test ends within `limit`; and
/// the longest time between two lines.
fn watched(child: &mut Child, limit: Duration) -> (Watched, Duration) {
    let mut slowest = Duration::ZERO;
    let Some(out) = child.stdout.take() else { return (Watched::Ended, slowest) };
    let (sender, lines) = mpsc::channel();
    // It ends with the program's output.
    std::thread::spawn(move || forward(BufReader::new(out), &sender));
    let mut test = String::new();
    loop {
        let begin = Instant::now();
        let line = lines.recv_timeout(limit);
        slowest = slowest.max(begin.elapsed());
        match line {
            // What a test prints may stand between its name and its result.
            Ok(line) => {
                if let Some((name, _)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ...")) {
                    name.trim().clone_into(&mut test);
                }
                if line.trim_end().ends_with("FAILED") {
                    return (Watched::Failed(test), slowest);
                }
            }
            Err(RecvTimeoutError::Timeout) => return (Watched::Late, slowest),
            Err(RecvTimeoutError::Disconnected) => return (Watched::Ended, slowest),
        }
    }
}

fn forward(out: impl Read, sender: &mpsc::Sender<String>) {
    let lines = BufReader::new(out).split(b'\n').map_while(Result::ok);
    for line in lines {
        if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            break;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn script(text: &str) -> Command {
        let mut command = Command::new("sh");
        // What is put behind it are libtest's own arguments.
        command.args(["-c", text, "sh"]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    #[test]
    fn a_program_that_cannot_list_its_tests_is_an_error() {
        assert!(has_tests(script("echo a: test"), "sh").unwrap());
        assert!(!has_tests(script("echo 0 tests"), "sh").unwrap());
        let why = has_tests(script("echo no driver >&2; exit 3"), "sh").unwrap_err();
        assert!(why.contains("sh --list") && why.contains("no driver"), "{why}");
    }

    #[test]
    fn a_program_is_called_by_its_own_name() {
        let named =
            ["target/debug/deps/ops-60ddd72a cuda-soft::{stem}", "env A=b target/debug/deps/ops-1 cuda"];
        assert_eq!(named.map(called), ["ops", "ops"]);
        assert_eq!(called("true"), "true");
    }

    /// Many tests may take longer together than one may alone: a busy machine is no bug that was caught.
    #[test]
    fn time_is_counted_by_test() {
        let limit = Duration::from_secs(5);
        let slow = "for i in 1 2 3 4 5 6; do sleep 1; echo test $i ... ok; done";
        let (failed, slowest) = failure(script(slow), "sh", limit).unwrap();
        assert_eq!(failed, None);
        assert!(slowest >= Duration::from_millis(900) && slowest < limit, "{slowest:?}");
        let (failed, _) = failure(script("echo test a ... ok; exec sleep 60"), "sh", limit).unwrap();
        assert!(failed.unwrap().contains("a test of over"));
        let (failed, _) =
            failure(script("echo test a ... ok; echo test b ... FAILED; exec sleep 60"), "sh", limit)
                .unwrap();
        assert_eq!(failed.as_deref(), Some("sh b"));
        let (failed, _) = failure(script("exit 3"), "sh", limit).unwrap();
        assert!(failed.unwrap().contains('3'));
    }
}
