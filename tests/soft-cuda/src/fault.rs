//! From what the machine found to what the driver answers.
//!
//! A GPU reports an illegal address, a misaligned one, an illegal instruction, a timeout, and for the rest
//! "launch failed". The machine knows more (races, unwritten memory, missing waits); those become
//! `LAUNCH_FAILED`, and the words go to standard error and to `engraftSoftCudaLastFault`.

use std::sync::LazyLock;

use ptx_vm::FaultKind;

use crate::code::Code;
use crate::state::{Driver, Id};

/// The code a real driver would give, or `LAUNCH_FAILED` for what it would not have noticed.
pub fn code(kind: FaultKind) -> Code {
    match kind {
        FaultKind::OutOfBounds | FaultKind::UseAfterFree | FaultKind::PeerAccess | FaultKind::ReadOnly => {
            Code::ILLEGAL_ADDRESS
        }
        FaultKind::Misaligned => Code::MISALIGNED_ADDRESS,
        FaultKind::Operand => Code::ILLEGAL_INSTRUCTION,
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

/// Poisons a context (its first error stays) and says why.
pub fn poison(d: &mut Driver, context: Id, code: Code, text: String) {
    eprintln!("[Engraft software CUDA] {text}");
    if let Some(context) = d.contexts.get_mut(&context)
        && context.poison.is_none()
    {
        context.poison = Some(code);
    }
    d.last_fault = Some(text);
}
