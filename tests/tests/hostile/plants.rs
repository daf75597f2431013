//! Faults on purpose: the guards, and the look at what was written, have to see them.

use super::ground::{Ground, Guarded};
use super::heap;
use super::hunt::{TRIES, WRONG, say};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, MatLayout, MatMut};
use engraft_core::ops::{Activate, Checked};
use engraft_core::params::Act;
use engraft_cpu::{Cpu, CpuConfig};

/// Every planted fault.
pub const ALL: [&str; 5] = [
    "behind an operand",
    "before an operand",
    "behind a weight",
    "a weight that was freed",
    "a write that is no output",
];

fn touch(at: *const u8) {
    // SAFETY: none: a touch of memory outside every allocation, in a process that is there to end by it.
    let byte = unsafe { at.read_volatile() };
    println!("{byte} was read");
}

/// Commits a fault.
///
/// # Errors
/// What making the memory for it raises.
pub fn commit(fault: &str) -> Result<()> {
    say(TRIES, format_args!("planted: {fault}"));
    let ground = Guarded::new(Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() })?);
    match fault {
        "behind an operand" => touch(ground.room(12)?.start().wrapping_add(12)),
        "before an operand" => {
            ground.turn(false);
            touch(ground.room(12)?.start().wrapping_sub(1));
        }
        "behind a weight" => {
            let values = heap::guarded(|| vec![7u8; 33]);
            touch(values.as_ptr().wrapping_add(33));
        }
        "a weight that was freed" => {
            let freed = heap::guarded(|| {
                let values = vec![7u8; 33];
                let at = values.as_ptr();
                drop(values);
                at
            });
            touch(freed);
        }
        _ => {
            let mut mem = ground.room(4)?;
            ground.write(&mut mem, &[0, 0, 0x80, 0x3f]);
            let x = MatMut::new(&mut mem, MatLayout::dense(1, 1, Float::F32))?;
            let op = Checked::new(Activate { x, act: Act::Silu })?;
            let mut stream = ground.inner().stream()?;
            if let Some(what) = ground.run(&mut stream, op, &Vec::new())? {
                say(WRONG, format_args!("{what}"));
            }
        }
    }
    Ok(())
}
