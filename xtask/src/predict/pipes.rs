//! What a line of PTX costs which pipe of an SM.
//!
//! PTX is not machine code: `ptxas` folds moves and conversions of widths, makes two instructions of one on
//! 64-bit integers, and keeps the rest about one to one. So moves are free here, 64-bit integers count twice
//! (a multiplication four times). Shared memory is counted in wavefronts of 128 bytes as if no banks were in
//! conflict, tensor cores in floating-point operations.

use ptx_vm::LineCount;
use std::collections::BTreeMap;

/// Work of warps on the pipes of an SM.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pipes {
    /// Issue slots.
    pub slots: f64,
    /// Wavefronts of shared memory.
    pub wavefronts: f64,
    /// Warp instructions of the special function units.
    pub special: f64,
    /// Operations of `mma.sync` on 16-bit operands; on bytes half as many.
    pub mma: f64,
    /// The same of `wgmma`.
    pub wgmma: f64,
    /// Waits for a load whose value is used, summed over warps.
    pub waits: f64,
    /// Warp instructions that copy to shared memory without waiting.
    pub copies: f64,
}

impl Pipes {
    /// Adds `by` times others.
    pub fn add(&mut self, other: &Pipes, by: f64) {
        self.slots += by * other.slots;
        self.wavefronts += by * other.wavefronts;
        self.special += by * other.special;
        self.mma += by * other.mma;
        self.wgmma += by * other.wgmma;
        self.waits += by * other.waits;
        self.copies += by * other.copies;
    }
}

/// The opcode of a line, behind a guard.
fn opcode(text: &str) -> &str {
    let mut words = text.split_whitespace();
    match words.next() {
        Some(guard) if guard.starts_with('@') => words.next().unwrap_or_default(),
        word => word.unwrap_or_default(),
    }
    .trim_end_matches(';')
}

/// Bytes of a lane's access: element times vector.
fn lane_bytes(opcode: &str) -> f64 {
    let bits = opcode
        .rsplit('.')
        .next()
        .and_then(|ty| ty.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<f64>().ok());
    let count = ["v2", "v4", "v8"].iter().find(|v| opcode.split('.').any(|part| part == **v));
    bits.unwrap_or(32.0) / 8.0 * count.map_or(1.0, |v| v[1..].parse().unwrap_or(1.0))
}

/// Operations of a matrix multiply-add of `m x n x k`, halved for bytes.
fn operations(opcode: &str) -> f64 {
    let shape =
        opcode.split('.').find(|part| part.starts_with('m') && part.contains('n') && part.contains('k'));
    let sizes =
        shape.unwrap_or_default().split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<f64>().ok());
    let bytes = ["s8", "u8", "e4m3", "e5m2"].iter().any(|ty| opcode.split('.').any(|part| part == *ty));
    2.0 * sizes.product::<f64>() / if bytes { 2.0 } else { 1.0 }
}

/// What one execution by a warp costs.
fn cost(text: &str) -> Pipes {
    let opcode = opcode(text);
    let parts: Vec<&str> = opcode.split('.').collect();
    let has = |name: &str| parts.contains(&name);
    let one = Pipes { slots: 1.0, ..Pipes::default() };
    let wide = matches!(parts.last(), Some(&("s64" | "u64" | "b64" | "f64")));
    match parts[0] {
        "mov" | "cvta" => Pipes::default(),
        "cvt" if wide => Pipes::default(),
        "ld" | "st" if has("param") => Pipes::default(),
        "ld" | "st" if has("shared") || has("shared::cta") => {
            Pipes { wavefronts: (lane_bytes(opcode) * 32.0 / 128.0).max(1.0), ..one }
        }
        "ldmatrix" | "stmatrix" => {
            let count = ["x4", "x2"].iter().find(|x| has(x)).map_or(1.0, |x| x[1..].parse().unwrap_or(1.0));
            Pipes { wavefronts: count, ..one }
        }
        // Data arrives in shared memory by the same port.
        "cp" if has("async") && has("global") && !has("bulk") => {
            Pipes { wavefronts: 4.0, copies: 1.0, ..one }
        }
        "cp" if has("bulk") => Pipes { copies: 1.0, ..one },
        "mma" => Pipes { mma: operations(opcode), ..one },
        // A warpgroup of four executes it together.
        "wgmma" if has("mma_async") => Pipes { wgmma: operations(opcode) / 4.0, ..one },
        "ex2" | "lg2" | "rcp" | "rsqrt" | "sqrt" | "sin" | "cos" | "tanh" => Pipes { special: 1.0, ..one },
        "mul" if wide && has("lo") => Pipes { slots: 4.0, ..one },
        "mad" if wide && has("lo") => Pipes { slots: 5.0, ..one },
        "add" | "sub" | "shl" | "shr" | "and" | "or" | "xor" | "setp" | "selp" | "min" | "max" if wide => {
            Pipes { slots: 2.0, ..one }
        }
        _ => one,
    }
}

/// Registers named in a text.
fn registers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '%' || c == '_'))
        .filter(|word| word.starts_with('%'))
}

/// How many loads of a straight run of lines depend on each other at most: the rest is in flight at once.
fn depth(run: &[&LineCount]) -> f64 {
    let mut behind: BTreeMap<&str, u32> = BTreeMap::new();
    let mut deepest = 0;
    for line in run {
        let opcode = opcode(&line.text);
        let load = opcode.starts_with("ld.global")
            || opcode.starts_with("ld.volatile.global")
            || opcode.starts_with("atom");
        let operands = line.text.split_once(opcode).map_or("", |(_, rest)| rest);
        let (to, from) = operands
            .split_once(if operands.trim_start().starts_with('{') { "}" } else { "," })
            .unwrap_or((operands, ""));
        let depth =
            registers(from).filter_map(|r| behind.get(r)).max().copied().unwrap_or(0) + u32::from(load);
        if depth > 0 {
            registers(to).for_each(|r| {
                behind.insert(r, depth);
            });
        }
        deepest = deepest.max(depth);
    }
    f64::from(deepest)
}

/// The work of the lines of a kernel, all warps together.
pub fn pipes(lines: &[LineCount]) -> Pipes {
    let mut all = Pipes::default();
    let mut run: Vec<&LineCount> = Vec::new();
    let ended = |run: &mut Vec<&LineCount>| {
        let warps = run.iter().map(|line| line.warps).max().unwrap_or(0);
        let waits = depth(run) * warps as f64;
        run.clear();
        waits
    };
    for line in lines {
        all.add(&cost(&line.text), line.warps as f64);
        // Another count begins another run: a label, or the next line after a branch.
        if run.last().is_some_and(|last| last.warps != line.warps) {
            all.waits += ended(&mut run);
        }
        run.push(line);
        if opcode(&line.text).starts_with("bra") {
            all.waits += ended(&mut run);
        }
    }
    all.waits += ended(&mut run);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, warps: u64) -> LineCount {
        LineCount { line: 0, text: text.into(), warps }
    }

    #[test]
    fn lines_cost_their_pipes() {
        let lines = [
            line("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1,%r2,%r3,%r4}, [%r5];", 2),
            line("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f1};", 3),
            line("@%p1 mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r1}, {%r2}, {%r1};", 1),
            line(
                "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, p, 1, 1, 0, 0;",
                4,
            ),
            line("cp.async.cg.shared.global [%r154], [%rd128], 16;", 5),
            line("ex2.approx.ftz.f32 %f1, %f2;", 7),
            line("st.shared.v4.u32 [%r149], {%r153, %r153, %r153, %r153};", 1),
            line("mov.u32 %r1, %r2;", 100),
            line("add.s64 %rd1, %rd2, %rd3;", 10),
        ];
        let got = pipes(&lines);
        assert_eq!(got.slots, 2.0 + 3.0 + 1.0 + 4.0 + 5.0 + 7.0 + 1.0 + 20.0);
        assert_eq!(got.wavefronts, 8.0 + 20.0 + 4.0);
        assert_eq!(got.mma, 3.0 * 4096.0 + 4096.0);
        assert_eq!(got.wgmma, 2.0 * 64.0 * 256.0 * 16.0);
        assert_eq!((got.special, got.copies), (7.0, 5.0));
    }

    #[test]
    fn loads_that_wait_for_each_other_count_and_others_do_not() {
        let lines = [
            line("ld.global.u32 %r1, [%rd1];", 1),
            line("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+16];", 1),
            line("mul.wide.u32 %rd2, %r3, 4;", 1),
            line("ld.global.u32 %r6, [%rd2];", 1),
            line("bra $L1;", 1),
            line("ld.global.u32 %r7, [%rd3];", 9),
        ];
        assert_eq!(pipes(&lines).waits, 2.0 + 9.0);
    }
}
