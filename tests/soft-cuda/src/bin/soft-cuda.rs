//! The program `soft-cuda`: run a CUDA program on the software driver, and be told what is wrong with it.
//!
//! ```text
//! soft-cuda run [OPTION...] -- PROGRAM [ARGUMENT...]
//! ```
//!
//! The driver itself, `libsoft_cuda.so`, is where Cargo built it, in `../lib` of the folder of this program,
//! or where `SOFT_CUDA_LIBRARY` says. The program finds the driver as `libcuda.so.1`, and an assembler that
//! passes PTX on as it is: Triton's compiler calls `ptxas` and loads what that gives. Nothing of the program
//! is changed. It goes on behind a fault; at the end there is a summary on standard error. The exit status is
//! the program's own if that is not 0; else 1 if there was a fault, 3 if the program has not started the
//! driver at all or has left work behind that could not be checked, 0 otherwise. A signal that is meant to
//! end this program goes on to the other one, and the summary comes when that has ended.

use std::collections::hash_map::RandomState;
use std::ffi::{OsString, c_int, c_void};
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

use soft_cuda::{preload, settings};

const USAGE: &str = "usage: soft-cuda run [OPTION...] -- PROGRAM [ARGUMENT...]
  --schedule forward|reverse|randomN   order of warps and blocks in kernels
  --order eager|latest|others-first|seededN   order of operations that nothing orders
  --check races,streams,bounds,init,equal-stores   what is checked (all but the last); bounds always are
  --barriers ended|ended-warps|nobody  which threads may be absent from a barrier (ended-warps)
  --faults N     distinct faults after which a kernel ends (20)
  --stop         a fault is an error of the driver, as on a GPU, instead of going on
  --devices N    number of devices (1)
  --memory BYTES of each (8589934592)
  --capability 80|90   what they are: as an A100, as an H200 (90)
  --threads N    threads that run a kernel (all)
  --nvjitlink    the program finds nvJitLink too (it links PTX; numba prefers LTO-IR where it is found)";

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let called = words.first().map(|name| Path::new(name).file_name().unwrap_or_default().to_owned());
    let outcome = match called {
        Some(name) if name.to_string_lossy().starts_with("ptxas") => assemble(&words[1..]),
        _ => command(&words[1.min(words.len())..]),
    };
    outcome.unwrap_or_else(|what| {
        eprintln!("soft-cuda: {what}");
        ExitCode::from(2)
    })
}

/// Names under which programs look for nvJitLink.
const NVJITLINK: [&str; 3] = ["libnvJitLink.so", "libnvJitLink.so.12", "libnvJitLink.so.13"];

/// What is asked for.
struct Asked<'w> {
    /// The settings of the driver.
    settings: String,
    /// Names of the library.
    names: Vec<&'static str>,
    /// The program with its arguments.
    program: &'w [OsString],
}

fn options(words: &[OsString]) -> Result<Asked<'_>, String> {
    // Compilers have several warps store the same tile: races of equal stores are told to those who ask.
    let defaults = ["faults=20", "go-on=yes", "check=races,streams,bounds,init"];
    let mut settings: Vec<String> = defaults.map(str::to_owned).into();
    let (mut at, mut names) = (0, vec!["libcuda.so", "libcuda.so.1"]);
    while let Some(word) = words.get(at) {
        let word = word.to_string_lossy();
        at += 1;
        match &*word {
            "--" => {
                let text = settings.join(";");
                settings::check(&text)?;
                let program = &words[at..];
                return if program.is_empty() {
                    Err(format!("no program\n{USAGE}"))
                } else {
                    Ok(Asked { settings: text, names, program })
                };
            }
            "--nvjitlink" => names.extend(NVJITLINK),
            "--stop" => settings.push("go-on=no".into()),
            "--schedule" | "--order" | "--check" | "--barriers" | "--faults" | "--devices" | "--memory"
            | "--capability" | "--threads" => {
                let value = words.get(at).ok_or(format!("{word} needs a value"))?.to_string_lossy();
                at += 1;
                settings.push(format!("{}={value}", &word[2..]));
            }
            _ => return Err(format!("`{word}` is no option\n{USAGE}")),
        }
    }
    Err(format!("`--` and a program are missing\n{USAGE}"))
}

fn command(words: &[OsString]) -> Result<ExitCode, String> {
    let Some((first, words)) = words.split_first() else { return Err(USAGE.into()) };
    if first != "run" {
        return Err(format!("`{}` is no command\n{USAGE}", first.to_string_lossy()));
    }
    let asked = options(words)?;
    let folder = Folder::new()?;
    let report = folder.0.join("report");
    let outcome = folder.command(&asked, &report).and_then(|mut command| {
        wait_for(&mut command).map_err(|e| format!("{}: {e}", asked.program[0].to_string_lossy()))
    })?;
    if let Some(signal) = outcome.signal() {
        eprintln!("soft-cuda: signal {signal} has ended the program");
    }
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    let (faults, whole) = summary(&text);
    // A program that a signal ended has the status that shells give it.
    let own = outcome.code().or(outcome.signal().map(|s| 128 + s)).unwrap_or(1);
    Ok(match (own, faults, whole) {
        (0, 0, true) => ExitCode::SUCCESS,
        (0, 0, false) => ExitCode::from(3),
        (0, _, _) => ExitCode::from(1),
        (own, ..) => ExitCode::from(own.clamp(1, 255) as u8),
    })
}

/// Prints what a report holds; the number of faults, and whether all that the program asked for was checked.
fn summary(report: &str) -> (usize, bool) {
    let lines = |kind: &'static str| {
        report.lines().filter_map(move |l| l.split_once('\t').filter(|l| l.0 == kind).map(|l| l.1))
    };
    let started = lines("started").next().is_some();
    if !started {
        eprintln!("soft-cuda: the program has not started the driver: nothing was checked");
        return (0, false);
    }
    let (mut ran, mut counted) = ([0u64; 3], false);
    for line in lines("ran") {
        counted = true;
        ran.iter_mut().zip(line.split(' ')).for_each(|(sum, n)| *sum += n.parse().unwrap_or(0));
    }
    let [kernels, launches, instructions] = ran;
    let mut faults: Vec<&str> = Vec::new();
    for fault in lines("fault") {
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    let what = match counted {
        true => format!(
            "{launches} launches of {kernels} kernels without a fault, {instructions} warp instructions"
        ),
        // Counts are written by a program that exits.
        false => "what has run was not counted".into(),
    };
    eprintln!("soft-cuda: {what}; {} distinct faults", faults.len());
    for (i, fault) in faults.iter().enumerate() {
        eprintln!("soft-cuda: {}. {fault}", i + 1);
    }
    let left: u64 = lines("left").filter_map(|n| n.parse::<u64>().ok()).sum();
    if left > 0 {
        eprintln!(
            "soft-cuda: {left} operations had not run when the program ended, and were not checked: wait for them"
        );
    }
    (faults.len(), left == 0)
}

/// A folder of the run's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, String> {
        loop {
            // Numbers of processes come again, in containers at once, and a run that was killed leaves its
            // folder.
            let number = RandomState::new().build_hasher().finish();
            let path = std::env::temp_dir().join(format!("soft-cuda-{number:016x}"));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Folder(path)),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(format!("{}: {e}", path.display())),
            }
        }
    }

    /// The program with the driver in its library path, and what compilers have to be told.
    fn command(&self, asked: &Asked<'_>, report: &Path) -> Result<Command, String> {
        let Asked { settings, names, program } = asked;
        let own = |e: std::io::Error| format!("{}: {e}", self.0.display());
        let library = preload::locate().map_err(|e| e.to_string())?;
        let library = library.canonicalize().map_err(|e| format!("{}: {e}", library.display()))?;
        for name in names {
            symlink(&library, self.0.join(name)).map_err(own)?;
        }
        let me = std::env::current_exe().map_err(own)?;
        let ptxas = self.0.join("ptxas");
        symlink(me, &ptxas).map_err(own)?;
        let mut path = OsString::from(&self.0);
        if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
            path.push(":");
            path.push(others);
        }
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).env("LD_LIBRARY_PATH", path);
        command.env(settings::VARIABLE, format!("{settings};report={}", report.display()));
        // Triton: where the driver is, what assembles, and no code from runs on a GPU.
        command.env("TRITON_LIBCUDA_PATH", &self.0).env("TRITON_CACHE_DIR", self.0.join("triton"));
        for name in ["TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"] {
            command.env(name, &ptxas);
        }
        Ok(command)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The process that signals go on to, once there is one.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// A signal that came before.
static EARLY: AtomicI32 = AtomicI32::new(0);

/// Runs the program to its end, with the signals that this one gets.
fn wait_for(command: &mut Command) -> std::io::Result<ExitStatus> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2] {
        hand_on(signal);
    }
    let mut program = command.spawn()?;
    PROGRAM.store(program.id() as i32, Ordering::SeqCst);
    let early = EARLY.swap(0, Ordering::SeqCst);
    if early != 0 {
        // SAFETY: the process has not been waited for.
        unsafe { libc::kill(program.id() as i32, early) };
    }
    let outcome = program.wait();
    PROGRAM.store(0, Ordering::SeqCst);
    outcome
}

/// Lets a signal go on to the program, unless it is ignored: so it is by the program then.
fn hand_on(signal: c_int) {
    // SAFETY: structures that the system fills or that are valid when zero; the handler only makes calls that
    // handlers may.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &mut old) != 0 || old.sa_sigaction == libc::SIG_IGN {
            return;
        }
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(signal, &new, std::ptr::null_mut());
    }
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    /// The system itself has sent it: a key of the terminal, which reaches the program as well.
    const SI_KERNEL: c_int = 0x80;
    // SAFETY: the system passes what it says of the signal; `kill` may be called in handlers, and its error
    // number is put back.
    unsafe {
        if (*info).si_code == SI_KERNEL {
            return;
        }
        let error = *libc::__errno_location();
        match PROGRAM.load(Ordering::SeqCst) {
            0 => EARLY.store(signal, Ordering::SeqCst),
            program => _ = libc::kill(program, signal),
        }
        *libc::__errno_location() = error;
    }
}

/// `ptxas` for compilers that call it: the PTX, once it has been read, is the image.
fn assemble(words: &[OsString]) -> Result<ExitCode, String> {
    if words.iter().any(|w| w == "--version" || w == "-V") {
        println!("ptxas: the PTX is the code\nCuda compilation tools, release 12.8, V12.8.93");
        return Ok(ExitCode::SUCCESS);
    }
    let (mut input, mut output) = (None, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        match &*text {
            "-o" | "--output-file" => output = words.next(),
            "--opt-level" | "-O" | "-arch" => drop(words.next()),
            _ if text.starts_with('-') => {}
            _ => input = Some(word),
        }
    }
    let (Some(input), Some(output)) = (input, output) else { return Err("ptxas: FILE -o FILE".into()) };
    let shown = |path: &OsString, e: std::io::Error| format!("{}: {e}", path.to_string_lossy());
    let text = std::fs::read_to_string(input).map_err(|e| shown(input, e))?;
    // A compiler is told of what the machine does not know as an assembler would tell it.
    if let Err(e) = ptx_vm::Module::parse(&text) {
        eprintln!("ptxas {}, {e}", input.to_string_lossy());
        return Ok(ExitCode::from(255));
    }
    std::fs::write(output, text).map_err(|e| shown(output, e))?;
    Ok(ExitCode::SUCCESS)
}
