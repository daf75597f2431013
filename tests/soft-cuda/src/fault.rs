//! From what the machine found to what the driver answers.
//!
//! A GPU reports an illegal address, a misaligned one, an illegal instruction, a timeout, and for the rest
//! "launch failed". The machine knows more (races, unwritten memory, missing waits); those become
//! `LAUNCH_FAILED`, and the words go to standard error and to `engraftSoftCudaLastFault`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;

use ptx_vm::FaultKind;

use crate::code::Code;
use crate::exit;
use crate::state::{Driver, Id};

/// The code a real driver would give, or `LAUNCH_FAILED` for what it would not have noticed.
pub fn code(kind: FaultKind) -> Code {
    match kind {
        FaultKind::OutOfBounds | FaultKind::UseAfterFree | FaultKind::PeerAccess | FaultKind::ReadOnly => {
            Code::ILLEGAL_ADDRESS
        }
        FaultKind::Misaligned => Code::MISALIGNED_ADDRESS,
        FaultKind::Operand => Code::ILLEGAL_INSTRUCTION,
        FaultKind::Call => Code::INVALID_PC,
        FaultKind::Deadlock | FaultKind::Budget => Code::LAUNCH_TIMEOUT,
        _ => Code::LAUNCH_FAILED,
    }
}

/// Names the kernel that faults whenever it is launched: for programs that prove what a fault costs them.
const PLANTED: &str = "ENGRAFT_SOFT_CUDA_FAULT";

static FAULTY: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(PLANTED).ok());

/// What to say of a kernel that is to fault; none for all others.
pub fn planted(kernel: &str) -> Option<String> {
    let faulty = FAULTY.as_deref() == Some(kernel);
    faulty.then(|| format!("a fault planted in kernel `{kernel}` by {PLANTED}"))
}

/// The distinct faults of the process.
#[derive(Debug, Default)]
pub struct Faults {
    /// Each without what differs from one occurrence to the next.
    pub seen: BTreeSet<String>,
    /// Where each is written down as well.
    report: Option<File>,
}

impl Faults {
    /// Writes every fault from now on into a file, a line each, and what has run when the process ends.
    pub fn report_to(&mut self, path: &Path) -> std::io::Result<()> {
        unsafe extern "C" {
            fn atexit(call: extern "C" fn()) -> i32;
        }
        self.report = Some(File::options().create(true).append(true).open(path)?);
        // SAFETY: a function without arguments that stays where it is; the driver is never unloaded.
        unsafe { atexit(exit::at_exit) };
        Ok(())
    }

    /// Appends a line of the report. One that cannot be written is not worth the program: standard error has
    /// the faults.
    pub fn note(&mut self, kind: &str, text: &str) {
        if let Some(file) = &mut self.report {
            let _ = file.write_all(format!("{kind}\t{text}\n").as_bytes());
        }
    }
}

/// A fault without what differs from one occurrence to the next: of a kernel's its instruction and the other
/// one, of operations all but addresses and handles.
fn essence(text: &str) -> String {
    if let Some((instruction, rest)) = text.split_once(", block (") {
        let other = rest.split_once("; the other access is ").map_or("", |(_, other)| other);
        return format!("{instruction};{other}");
    }
    let mut out = String::new();
    let mut digits = false;
    for c in text.chars() {
        digits = c.is_ascii_hexdigit() && (digits || out.ends_with("0x"));
        if !digits {
            out.push(c);
        }
    }
    out
}

/// Says what is wrong, once.
pub fn report(d: &mut Driver, text: String) {
    if d.faults.seen.insert(essence(&text)) {
        eprintln!("[Engraft software CUDA] {text}");
        d.faults.note("fault", &text);
    }
    d.last_fault = Some(text);
}

/// Poisons a context (its first error stays) and says why.
pub fn poison(d: &mut Driver, context: Id, code: Code, text: String) {
    report(d, text);
    if d.settings.go_on {
        return;
    }
    if let Some(context) = d.contexts.get_mut(&context)
        && context.poison.is_none()
    {
        context.poison = Some(code);
    }
}

#[cfg(test)]
mod tests {
    use super::essence;

    #[test]
    fn one_mistake_is_one_fault_wherever_it_shows() {
        let race = |block: u32, warp: u32, line: u32| {
            format!(
                "SharedRace in kernel `k`, line {line} `st;` (k.py:7), block ({block},0,0), thread (0,0,0): write at shared offset \
                 {warp} is not ordered after the write by warp {warp}; the other access is line 9 `ld;`"
            )
        };
        assert_eq!(essence(&race(0, 1, 5)), essence(&race(3, 2, 5)));
        assert_ne!(essence(&race(0, 1, 5)), essence(&race(0, 1, 6)));
        let streams =
            |handle: &str, bytes: u32| format!("StreamRace: a copy in stream {handle} reads {bytes} bytes");
        assert_eq!(essence(&streams("0x5c00", 4)), essence(&streams("0x71f0", 4)));
        assert_ne!(essence(&streams("0x5c00", 4)), essence(&streams("0x5c00", 8)));
    }
}
