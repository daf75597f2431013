//! Tables for people and for programs.

use super::device::H200;
use super::step::Weights;
use super::{Line, Table};
use serde_json::{Value, json};

/// The name of a weight format.
pub fn weights(weights: Weights) -> &'static str {
    Weights::ALL.into_iter().find(|(other, _)| *other == weights).map_or("", |(_, name)| name)
}

/// The part of a name that says how many ranks share the model.
pub fn ranks(ranks: usize) -> String {
    if ranks > 1 { format!(", one of {ranks} ranks") } else { String::new() }
}

impl Table {
    fn sum(&self, f: impl Fn(&Line) -> f64) -> f64 {
        self.lines.iter().map(|line| line.item.times as f64 * f(line)).sum()
    }

    /// Time of the step, s.
    pub fn seconds(&self) -> f64 {
        self.host + self.sum(|line| line.time.seconds)
    }

    /// The least that its bytes and operations allow, s.
    pub fn floor(&self) -> f64 {
        self.sum(|line| line.time.floor)
    }

    /// Whether weights (as 16 bits), keys and values of a rank are more than the device holds.
    fn is_too_large(&self) -> bool {
        let ([weights, kv], s) = (self.model.values(), &self.step);
        2.0 * (weights + s.seqs * s.context * kv) as f64 / s.ranks as f64 > H200.memory
    }
}

/// Prints all tables.
pub fn tables(tables: &[Table], summary: bool, as_json: bool) {
    if as_json {
        println!("{}", Value::from(tables.iter().map(json).collect::<Vec<_>>()));
        return;
    }
    if summary {
        println!("{:<44} {:>8} {:>9} {:>9}", "step", "launches", "ms", "floor ms");
    }
    for table in tables {
        let note = if table.is_too_large() { "  (more than the device holds)" } else { "" };
        let (launches, ms, floor) = (table.sum(|_| 1.0), table.seconds() * 1e3, table.floor() * 1e3);
        if summary {
            println!("{:<44} {launches:>8} {ms:>9.3} {floor:>9.3}{note}", table.name);
        } else {
            println!("\n{}: {ms:.3} ms, floor {floor:.3} ms{note}", table.name);
            rows(table);
        }
    }
}

fn rows(table: &Table) {
    println!(
        "{:<17} {:<26} {:>5} {:>9} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9}  limit",
        "", "kernel", "times", "blocks", "an SM", "dram MB", "l2 MB", "instr M", "us", "floor us"
    );
    for line in &table.lines {
        let blocks: u64 = line.item.launch.grid.iter().map(|n| u64::from(*n)).product();
        println!(
            "{:<17} {:<26} {:>5} {blocks:>9} {:>5} {:>9.3} {:>9.3} {:>9.3} {:>9.2} {:>9.2}  {}",
            line.item.role,
            line.item.launch.entry,
            line.item.times,
            line.time.resident,
            line.counts.dram_bytes / 1e6,
            line.counts.l2_bytes / 1e6,
            line.counts.pipes.slots / 1e6,
            line.time.seconds * 1e6,
            line.time.floor * 1e6,
            line.time.limit.name()
        );
    }
    println!("{:<17} {:<26} {:>5} {:>61.2}", "host", "", "", table.host * 1e6);
}

fn json(table: &Table) -> Value {
    let line = |line: &Line| {
        let p = &line.counts.pipes;
        json!({
            "role": line.item.role, "kernel": line.item.launch.entry, "times": line.item.times,
            "grid": line.item.launch.grid, "block": line.item.launch.block, "resident": line.time.resident,
            "waves": line.time.waves, "dram_bytes": line.counts.dram_bytes, "l2_bytes": line.counts.l2_bytes,
            "slots": p.slots, "wavefronts": p.wavefronts, "special": p.special, "mma_ops": p.mma, "wgmma_ops": p.wgmma,
            "longest_warp": line.counts.longest_warp, "us": line.time.seconds * 1e6, "floor_us": line.time.floor * 1e6,
            "limit": line.time.limit.name(),
        })
    };
    json!({
        "step": table.name, "ms": table.seconds() * 1e3, "floor_ms": table.floor() * 1e3, "host_us": table.host * 1e6,
        "launches": table.lines.iter().map(line).collect::<Vec<_>>(),
    })
}
