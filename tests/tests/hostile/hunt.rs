//! The part that may crash: a process of its own changes the op of one spec, and says before each change what
//! it is about to try, so that a fault has a name.

use super::backend::{Hostile, Outcome, Todo, Witness};
use super::change::Change;
use super::ground::{Checks, Ground, Guarded};
use super::plants;
use conformance::backends;
use conformance::device::Device;
use conformance::dice::Dice;
use conformance::lawful::{Field, Lawful};
use conformance::registry::{self, OpSpec, Visitor};
use engraft_core::Result;
use engraft_core::mem::Float;
use engraft_core::numerics::{Madd, Mode};
use engraft_core::ops::OpKind;
use engraft_cpu::{Cpu, CpuConfig};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Says which backend and spec this process is for: `cpu/linear`, or `cuda:soft/` for all specs.
pub const VARIABLE: &str = "ENGRAFT_HOSTILE";

/// The backend of processes that commit a fault.
pub const PLANT: &str = "plant";

/// Cases of a spec and element type.
const CASES: usize = 6;
/// Bytes that the operands of a case may have: changes are many, so cases are small.
const LARGEST: usize = 64 << 10;
/// Seconds that a change may take.
const PATIENCE: u64 = 60;

/// Lines of what this process says: what is about to be tried, what came of it, what is wrong.
pub const TRIES: &str = "> ";
/// See [`TRIES`].
pub const SAW: &str = "= ";
/// See [`TRIES`].
pub const WRONG: &str = "! ";

/// Changes tried so far.
static TRIED: AtomicU64 = AtomicU64::new(0);

/// Says a line to the parent.
pub fn say(mark: &str, text: std::fmt::Arguments<'_>) {
    // A parent that is gone needs no report.
    let _ = writeln!(std::io::stdout().lock(), "{mark}{text}");
}

/// Tells the parent.
struct Teller {
    case: String,
}

/// The rule that an op may take a change by, by its number.
fn rule(op: OpKind, change: &Change) -> Option<usize> {
    let fits = |r: &Lawful| (r.op, r.operand, r.field) == (op.name(), change.operand, change.field);
    registry::lawful().position(fits)
}

impl Witness for Teller {
    fn case(&mut self, case: String) {
        self.case = case;
    }
    fn tries(&mut self, op: OpKind, change: &Change) {
        TRIED.fetch_add(1, Ordering::Relaxed);
        say(TRIES, format_args!("{op}, {}: {change}", self.case));
    }
    fn saw(&mut self, op: OpKind, change: &Change, outcome: Outcome) {
        let data = change.field == Field::Content;
        match outcome {
            Outcome::Constructor => say(SAW, format_args!("constructor")),
            Outcome::Check => say(SAW, format_args!("check")),
            Outcome::Refused(why) => say(SAW, format_args!("backend {why}")),
            Outcome::Ran if data => say(SAW, format_args!("data")),
            Outcome::Ran => match rule(op, change) {
                Some(rule) => say(SAW, format_args!("ran {rule}")),
                None if Lawful::always(change.field) => say(SAW, format_args!("ran")),
                None => say(WRONG, format_args!("an error was expected, and it ran")),
            },
            Outcome::Stray(what) => say(WRONG, format_args!("{what}")),
        }
    }
}

/// Cases of specs on a ground.
struct Hunt<'a, G: Ground> {
    ground: &'a dyn Fn() -> Result<G>,
    spec: &'a str,
    cases: usize,
    every_dtype: bool,
    /// Whether the backend has kernels for caches of codes.
    codes: bool,
}

impl<G: Ground> Hunt<'_, G> {
    /// Changes the op of one case until nothing is left; whether the case was small enough.
    fn case<S: OpSpec>(
        &self,
        hostile: &std::sync::Arc<Hostile<G>>,
        spec: S,
        dtype: Float,
        seed: u64,
    ) -> Result<bool> {
        let case = spec.sample(dtype, &mut Dice::new(seed));
        let run = || {
            // The error is that it was enough.
            let _ = Device::new(hostile, true).and_then(|mut dev| spec.run(&mut dev, &case));
        };
        hostile.work().todo = Todo::List;
        hostile.work().witness.case(format!("{}, {dtype}, case seed {seed}", spec.name()));
        run();
        let left = || match &hostile.work().todo {
            Todo::List => usize::MAX,
            Todo::Make(changes) => changes.len(),
        };
        if left() == usize::MAX {
            say(WRONG, format_args!("{}, {dtype}, case seed {seed}: its op never came", spec.name()));
            return Ok(true);
        }
        if hostile.work().bytes > LARGEST {
            return Ok(false);
        }
        while left() > 0 {
            let before = left();
            run();
            if left() == before {
                say(WRONG, format_args!("{}, {dtype}, case seed {seed}: it did not run", spec.name()));
                break;
            }
        }
        Ok(true)
    }
}

impl<G: Ground> Visitor for Hunt<'_, G> {
    fn visit<S: OpSpec>(&mut self, spec: S) {
        if !self.spec.is_empty() && spec.name() != self.spec || spec.codes() && !self.codes {
            return;
        }
        let dtypes = if self.every_dtype { spec.dtypes() } else { &spec.dtypes()[..1] };
        for dtype in dtypes {
            let mut taken = 0;
            for seed in 0..64 {
                let made = (self.ground)().and_then(|ground| {
                    ground.turn(taken % 2 == 0);
                    let hostile = Hostile::new(ground, Box::new(Teller { case: String::new() }));
                    self.case(&hostile, spec, *dtype, seed)
                });
                match made {
                    Ok(small) => taken += usize::from(small),
                    Err(e) => say(WRONG, format_args!("{}: {e}", spec.name())),
                }
                if taken == self.cases {
                    break;
                }
            }
        }
    }
}

/// Ends the process when a change takes too long.
fn watch() {
    std::thread::spawn(|| {
        let (mut last, mut since) = (0, 0);
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = TRIED.load(Ordering::Relaxed);
            (last, since) = if now == last { (last, since + 1) } else { (now, 0) };
            if since > PATIENCE {
                say(WRONG, format_args!("a change takes more than {PATIENCE} seconds"));
                std::process::exit(1);
            }
        }
    });
}

/// What this process is for, where it is one of these.
///
/// # Errors
/// What starting the backend raises.
pub fn child(task: &str) -> Result<()> {
    watch();
    let (backend, spec) = task.split_once('/').unwrap_or((task, ""));
    if backend == PLANT {
        return plants::commit(spec);
    }
    if backend == "cpu" {
        let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Fused, isa: None })?;
        let ground = || Ok(Guarded::new(cpu.clone()));
        registry::each(&mut Hunt { ground: &ground, spec, cases: CASES, every_dtype: true, codes: true });
    } else if backend.starts_with("cuda") {
        let gpu = backends::cuda(backend, Mode::Reference)?;
        let ground = || Ok(Checks(gpu.clone()));
        registry::each(&mut Hunt { ground: &ground, spec, cases: 1, every_dtype: false, codes: false });
    } else {
        let gpu = backends::wgpu(Some(backend), false)?;
        let ground = || Ok(Checks(gpu.clone()));
        registry::each(&mut Hunt { ground: &ground, spec, cases: 1, every_dtype: false, codes: false });
    }
    Ok(())
}
