//! What a program that knows nothing of this driver chooses by its environment: `SOFT_CUDA`.
//!
//! The variable holds `key=value` pairs with `;` between them; `soft-cuda run` writes it. It is read once,
//! before the first call of the driver. A pair that is none fails `cuInit`, with a line on standard error.
//!
//! | key | value |
//! | --- | --- |
//! | `devices` | number of devices, 1 to 64 |
//! | `memory` | bytes of each |
//! | `capability` | compute capability times ten: `90`, as an H200, or `80`, as an A100 |
//! | `order` | of operations: `eager`, `latest`, `others-first`, `seeded` with a number behind it |
//! | `schedule` | of warps and blocks: `forward`, `reverse`, `random` with a number behind it |
//! | `check` | any of `races`, `streams`, `bounds`, `init`, `equal-stores`, with `,` between; bounds are always checked |
//! | `barriers` | who may be absent: `ended`, `ended-warps`, `nobody` |
//! | `faults` | distinct faults after which a kernel ends |
//! | `go-on` | `yes`: a fault is told and the program goes on; `no`: it spoils the context |
//! | `threads`, `budget` | of a kernel: threads that run it, warp instructions at most |
//! | `patience` | milliseconds for which kernels that wait may hope for more work from a thread |
//! | `report` | path of a file to which faults, and counts at the end, are appended |

use std::path::PathBuf;
use std::time::Duration;

use ptx_vm::{Barriers, Schedule};

use crate::device::{CAPABILITIES, set_capability};
use crate::order::Order;
use crate::state::{Driver, Settings};

/// The name of the variable.
pub const VARIABLE: &str = "SOFT_CUDA";

/// Whether a text is one that [`VARIABLE`] may hold.
///
/// # Errors
/// The pair that is none, and what is allowed.
///
/// ```
/// assert!(soft_cuda::settings::check("schedule=random7;check=races,init;go-on=yes").is_ok());
/// assert!(soft_cuda::settings::check("schedule=sideways").unwrap_err().contains("forward"));
/// ```
pub fn check(text: &str) -> Result<(), String> {
    read(text, &mut Settings::default()).map(|_| ())
}

/// The variable with which warps, blocks and operations have the same order once more.
pub(crate) fn again(settings: &Settings) -> String {
    let order = match settings.order {
        Order::Eager => ";order=eager".into(),
        Order::OthersFirst => ";order=others-first".into(),
        Order::Seeded(seed) => format!(";order=seeded{seed}"),
        // What a program has that says nothing; a test's own, which no program can ask for.
        Order::Latest | Order::Never => String::new(),
    };
    format!("{VARIABLE}='schedule={}{order}'", settings.machine.schedule)
}

/// A word with a number behind it: `random7`.
fn numbered(value: &str, word: &str) -> Option<u64> {
    value.strip_prefix(word)?.parse().ok()
}

/// Reads the pairs; the path of a report.
fn read(text: &str, settings: &mut Settings) -> Result<Option<PathBuf>, String> {
    let mut report = None;
    for pair in text.split(';').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or(format!("`{pair}` is no `key=value`"))?;
        let wants = |allowed: &str| format!("{key} `{value}`: {allowed} is allowed");
        let number = || value.parse::<u64>().map_err(|_| wants("a number"));
        match key {
            "devices" => {
                let count = number()?;
                settings.devices =
                    u32::try_from(count).ok().filter(|n| (1..=64).contains(n)).ok_or(wants("1 to 64"))?;
            }
            "memory" => settings.memory = number()?,
            "capability" => {
                let known = |n: &u32| CAPABILITIES.contains(n);
                settings.capability =
                    value.parse().ok().filter(known).ok_or(wants(&format!("{CAPABILITIES:?}")))?;
            }
            "order" => {
                settings.order = match value {
                    "eager" => Order::Eager,
                    "latest" => Order::Latest,
                    "others-first" => Order::OthersFirst,
                    _ => numbered(value, "seeded")
                        .map(Order::Seeded)
                        .ok_or(wants("eager, latest, others-first or seeded7"))?,
                };
            }
            "schedule" => {
                settings.machine.schedule = match value {
                    "forward" => Schedule::Forward,
                    "reverse" => Schedule::Reverse,
                    _ => numbered(value, "random")
                        .map(Schedule::Random)
                        .ok_or(wants("forward, reverse or random7"))?,
                };
            }
            "check" => checks(value, settings)?,
            "barriers" => {
                settings.machine.barriers = match value {
                    "ended" => Barriers::Ended,
                    "ended-warps" => Barriers::EndedWarps,
                    "nobody" => Barriers::NoLane,
                    _ => return Err(wants("ended, ended-warps or nobody")),
                };
            }
            "faults" => settings.machine.faults = number()?.clamp(1, 1 << 20) as usize,
            "go-on" => {
                settings.go_on = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(wants("yes or no")),
                };
            }
            "threads" => settings.machine.threads = number()?.clamp(1, 256) as usize,
            "budget" => settings.machine.budget = number()?,
            "patience" => settings.patience = Duration::from_millis(number()?),
            "report" => report = Some(value.into()),
            _ => return Err(format!("`{key}` is no setting")),
        }
    }
    Ok(report)
}

fn checks(value: &str, settings: &mut Settings) -> Result<(), String> {
    let machine = &mut settings.machine;
    (machine.shared_races, machine.global_races, machine.uninitialised) = (false, false, false);
    (machine.equal_stores, settings.stream_races) = (false, false);
    for word in value.split(',').filter(|word| !word.is_empty()) {
        match word {
            "races" => (machine.shared_races, machine.global_races) = (true, true),
            "streams" => settings.stream_races = true,
            "init" => machine.uninitialised = true,
            "equal-stores" => machine.equal_stores = true,
            "bounds" => {}
            _ => {
                return Err(format!(
                    "check `{word}`: races, streams, bounds, init and equal-stores are allowed"
                ));
            }
        }
    }
    // Accesses of kernels are known by the shadow that finds their races.
    if settings.stream_races && !machine.global_races {
        return Err("check `streams` needs `races`".into());
    }
    Ok(())
}

/// Applies the variable to a new driver.
pub(crate) fn from_environment(driver: &mut Driver) {
    let Some(text) = std::env::var_os(VARIABLE) else { return };
    let outcome = text.to_str().ok_or("not UTF-8".into()).and_then(|text| {
        let report = read(text, &mut driver.settings)?;
        set_capability(driver.settings.capability);
        let Some(path) = report else { return Ok(()) };
        let opened = driver.faults.report_to(&path);
        opened.map_err(|e| format!("report `{}`: {e}", path.display()))
    });
    if let Err(what) = outcome {
        eprintln!("[{}] {VARIABLE}: {what}", crate::device::NAME);
        driver.refused = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_a_fault_is_what_the_variable_takes() {
        for text in ["schedule=random7;order=seeded3", "schedule=reverse", "schedule=forward;order=eager"] {
            let mut settings = Settings::default();
            assert_eq!(read(text, &mut settings), Ok(None));
            assert_eq!(again(&settings), format!("SOFT_CUDA='{text}'"));
        }
    }

    #[test]
    fn pairs_are_read_or_refused_by_name() {
        let mut settings = Settings::default();
        assert_eq!(read("capability=80", &mut settings), Ok(None));
        assert_eq!(settings.capability, 80);
        for refused in ["capability=75", "capability=a"] {
            let what = read(refused, &mut settings);
            assert!(what.as_ref().is_err_and(|what| what.contains("[80, 90]")), "{what:?}");
        }
        let text = "devices=2;order=seeded9;schedule=random7;check=races,bounds;barriers=nobody;faults=50;go-on=yes;report=/r";
        assert_eq!(read(text, &mut settings), Ok(Some("/r".into())));
        let machine = settings.machine;
        assert_eq!((settings.devices, settings.order, settings.go_on), (2, Order::Seeded(9), true));
        assert_eq!(
            (machine.schedule, machine.barriers, machine.faults),
            (Schedule::Random(7), Barriers::NoLane, 50)
        );
        assert!(
            machine.global_races && !machine.uninitialised && !settings.stream_races && !machine.equal_stores
        );
        for bad in [
            "devices=0",
            "devices",
            "order=first",
            "check=speed",
            "check=streams",
            "barriers=all",
            "go-on=1",
            "x=1",
        ] {
            let said = check(bad).err().unwrap_or_default();
            assert!(
                said.contains(bad.rsplit(['=', ',']).next().unwrap_or(bad)) || said.contains("`x`"),
                "{said}"
            );
        }
    }
}
