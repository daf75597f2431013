//! What the assembler makes of a PTX text: registers, spills and shared memory of every entry, and the gate
//! on them.

use super::Outcome;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// What one entry takes on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes stored and loaded by spills, also of the functions that it calls.
    pub spills: u32,
    /// Bytes of stack: arrays that are indexed by what is not known, which lie in local memory.
    pub stack: u32,
    /// Static shared memory of a block, in bytes.
    pub shared: u32,
}

/// Resources by entry.
pub type Report = BTreeMap<String, Resources>;

/// What the assembler says of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assembled {
    /// What every entry takes.
    pub entries: Report,
    /// Its warnings: among them that wgmma is serialized, or `setmaxnreg` ignored. Such a text computes the
    /// same, slowly.
    pub warnings: Vec<String>,
}

/// Assembles `ptx`, called `name`, and reads the report.
pub fn resources(tool: &Path, name: &str, ptx: &str, arch: &str) -> Outcome<Assembled> {
    let folder = std::env::temp_dir().join(format!("engraft-ptxas-{}-{name}-{arch}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let (input, output) = (folder.join("in.ptx"), folder.join("out.cubin"));
    std::fs::write(&input, ptx).map_err(|e| e.to_string())?;
    let run = Command::new(tool)
        .args(["-v", &format!("-arch={}", arch.replace("compute", "sm")), "-o"])
        .args([&output, &input])
        .output()
        .map_err(|e| format!("{}: {e}", tool.display()));
    let _ = std::fs::remove_dir_all(&folder);
    let run = run?;
    let log = String::from_utf8_lossy(&run.stderr).into_owned();
    match run.status.success() {
        true => Ok(parse(&log)),
        false => Err(log),
    }
}

/// The number before `unit` in a line such as `Used 32 registers, used 1 barriers, 4096 bytes smem`.
fn before(line: &str, unit: &str) -> u32 {
    let head = line.split(unit).next().unwrap_or_default();
    match line.contains(unit) {
        true => head.trim_end().rsplit([' ', ',']).next().and_then(|n| n.parse().ok()).unwrap_or(0),
        false => 0,
    }
}

fn parse(log: &str) -> Assembled {
    let (mut report, mut warnings) = (Report::new(), Vec::new());
    let mut entry = String::new();
    for line in log.lines() {
        if line.contains("Potential Performance Loss") || line.starts_with("ptxas warning") {
            warnings.push(line.split_once(": ").map_or(line, |(_, said)| said).into());
        }
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            entry = rest.split('\'').next().unwrap_or_default().to_string();
        }
        if line.contains("bytes stack frame") && !entry.is_empty() {
            let of = report.entry(entry.clone()).or_default();
            of.stack = of.stack.max(before(line, " bytes stack frame"));
            of.spills += before(line, " bytes spill stores") + before(line, " bytes spill loads");
        }
        if line.contains("Used ") && line.contains(" registers") && !entry.is_empty() {
            let of = report.entry(entry.clone()).or_default();
            of.registers = before(line, " registers");
            of.shared = before(line, " bytes smem");
            of.stack = of.stack.max(before(line, " bytes cumulative stack size"));
        }
    }
    Assembled { entries: report, warnings }
}

/// Limits of the entries whose name begins with a prefix.
pub struct Limit {
    prefix: String,
    registers: u32,
    shared: u32,
    stack: u32,
}

/// Reads `prefix registers shared-bytes stack-bytes` lines, the last 0 where it is not there; `#` begins a
/// comment. The longest prefix counts.
pub fn limits(table: &str) -> Outcome<Vec<Limit>> {
    let mut limits = Vec::new();
    for (at, line) in table.lines().enumerate() {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let number = |word: &str| word.parse().map_err(|_| format!("limits.txt:{}: '{word}'", at + 1));
        match words[..] {
            [] => {}
            [prefix, registers, shared, ref stack @ ..] if stack.len() < 2 => limits.push(Limit {
                prefix: prefix.trim_end_matches('*').into(),
                registers: number(registers)?,
                shared: number(shared)?,
                stack: stack.first().map_or(Ok(0), |word| number(word))?,
            }),
            _ => return Err(format!("limits.txt:{}: 'prefix registers shared [stack]' expected", at + 1)),
        }
    }
    Ok(limits)
}

/// What of a report is over its limits. Spills and warnings are never allowed.
pub fn over(assembled: &Assembled, arch: &str, limits: &[Limit]) -> Vec<String> {
    let mut over: Vec<String> = assembled.warnings.iter().map(|said| format!("{arch}: {said}")).collect();
    for (entry, has) in &assembled.entries {
        let limit = limits.iter().filter(|l| entry.starts_with(&l.prefix)).max_by_key(|l| l.prefix.len());
        let Some(limit) = limit else {
            over.push(format!("{entry}: no line in kernels/limits.txt"));
            continue;
        };
        let figures = [
            ("bytes of spills", has.spills, 0),
            ("registers", has.registers, limit.registers),
            ("bytes of static shared memory", has.shared, limit.shared),
            ("bytes of stack", has.stack, limit.stack),
        ];
        for (what, got, most) in figures {
            if got > most {
                over.push(format!("{entry} ({arch}): {got} {what}, at most {most}"));
            }
        }
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 0 bytes gmem\n\
        ptxas info    : Compiling entry function 'norm_rms_f32' for 'sm_80'\n\
        ptxas info    : Function properties for norm_rms_f32\n\
        \x20   0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
        ptxas info    : Used 32 registers, used 1 barriers, 4096 bytes smem, 400 bytes cmem[0]\n";

    #[test]
    fn a_report_is_read_and_held_to_its_limits() {
        let report = parse(LOG);
        let want = Resources { registers: 32, spills: 12, stack: 0, shared: 4096 };
        assert_eq!(report.entries.get("norm_rms_f32"), Some(&want));
        let limits = limits("* 255 1024\nnorm_ 31 8192 # tight\n").unwrap_or_default();
        let over = over(&report, "compute_80", &limits);
        assert_eq!(over.len(), 2, "{over:?}");
        assert!(over[0].contains("spills") && over[1].contains("32 registers, at most 31"), "{over:?}");
    }

    /// What a function that is not inlined takes is its caller's; ptxas names the caller first.
    #[test]
    fn stacks_and_spills_of_called_functions_count() {
        let called = LOG.replace(
            "ptxas info    : Used",
            "ptxas info    : Function properties for act\n    16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n\
             ptxas info    : Function properties for other\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
             ptxas info    : Used",
        );
        let report = parse(&called);
        let want = Resources { registers: 32, spills: 20, stack: 16, shared: 4096 };
        assert_eq!(report.entries.get("norm_rms_f32"), Some(&want));
        let over = |table: &str| over(&report, "compute_80", &limits(table).unwrap_or_default());
        assert!(over("* 255 8192 15").iter().any(|said| said.contains("16 bytes of stack, at most 15")));
        assert!(!over("* 255 8192 16").iter().any(|said| said.contains("stack")));
        assert!(limits("* 255 8192 16 1").is_err());
    }

    /// As ptxas 13.0 says it of a kernel without its `wgmma.fence`, and of one without its number of threads.
    #[test]
    fn what_is_serialized_or_ignored_is_never_within_limits() {
        let serialized = "ptxas info    : (C7520) Potential Performance Loss: wgmma.mma_async instructions are serialized \
                          due to program dependence on compiler-inserted WG.AR in divergent path in the function 'f'\n";
        let ignored = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine \
                       register count at entry.\n";
        let all = limits("* 255 8192\n").unwrap_or_default();
        let clean = LOG.replace("8 bytes spill stores, 4", "0 bytes spill stores, 0");
        assert!(over(&parse(&clean), "compute_90a", &all).is_empty());
        for (said, word) in
            [(serialized, "serialized"), (ignored, "setmaxnreg"), ("ptxas warning : w\n", "w")]
        {
            let over = over(&parse(&format!("{said}{clean}")), "compute_90a", &all);
            assert!(over.len() == 1 && over[0].contains(word), "{over:?}");
        }
    }
}
