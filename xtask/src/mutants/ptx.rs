//! Places in PTX where one line can be changed into a plausible bug.

use super::{Operator, Site};
use std::collections::BTreeSet;

/// What is waited for, published or fenced; each may be left out. `launch_dependents` is not among them: it
/// only says when the next kernel may begin.
const DROPPED: [(&str, Operator); 13] = [
    ("bar.", Operator::Barrier),
    ("barrier.", Operator::Barrier),
    ("fence.", Operator::Fence),
    ("membar.", Operator::Fence),
    ("wgmma.fence", Operator::Fence),
    ("cp.async.wait", Operator::Wait),
    ("cp.async.bulk.wait", Operator::Wait),
    ("wgmma.wait_group", Operator::Wait),
    ("griddepcontrol.wait", Operator::Wait),
    ("cp.async.commit_group", Operator::Commit),
    ("wgmma.commit_group", Operator::Commit),
    ("mbarrier.arrive", Operator::Commit),
    ("shfl.sync", Operator::Exchange),
];
/// Relations and the nearest wrong one.
const RELATIONS: [(&str, &str); 8] = [
    ("setp.lt.", "setp.le."),
    ("setp.le.", "setp.lt."),
    ("setp.gt.", "setp.ge."),
    ("setp.ge.", "setp.gt."),
    ("setp.eq.", "setp.ne."),
    ("setp.ne.", "setp.eq."),
    ("setp.ltu.", "setp.geu."),
    ("setp.gtu.", "setp.leu."),
];
/// Operations taken for another.
const OPERATIONS: [(&str, &str); 7] = [
    ("min.", "max."),
    ("max.", "min."),
    ("add.rn.f32", "sub.rn.f32"),
    ("sub.rn.f32", "add.rn.f32"),
    ("and.pred", "or.pred"),
    ("or.pred", "and.pred"),
    ("cvt.rn.bf16.f32", "cvt.rz.bf16.f32"),
];
/// Operations whose operands differ in what they do, and the two that are swapped.
const SWAPPED: [(&str, usize, usize); 7] = [
    ("sub.", 1, 2),
    ("div.", 1, 2),
    ("rem.", 1, 2),
    ("selp.", 1, 2),
    ("fma.rn.f32", 2, 3),
    ("mad.lo.", 2, 3),
    ("prmt.", 1, 2),
];

/// Every place of a text that can be changed, in order.
pub fn sites(text: &str) -> Vec<Site> {
    let mut sites = Vec::new();
    let mut kernel: Option<(&str, usize)> = None;
    let mut own = OwnLane::default();
    let lines: Vec<&str> = text.lines().collect();
    for (i, &line) in lines.iter().enumerate() {
        if let Some(name) = ptx_vm::mutant::name(line) {
            (kernel, own) = (Some((name, i)), OwnLane::default());
        }
        let Some((name, first)) = kernel else { continue };
        let Some(instruction) = Instruction::of(line) else { continue };
        let mut changed = instruction.changed();
        // What a lane takes from itself is the same without an exchange.
        if own.reads(&instruction) {
            changed.retain(|(operator, _)| *operator != Operator::Exchange);
        }
        if limits(&instruction, &lines[i + 1..]) {
            changed.retain(|(operator, _)| *operator != Operator::Bound);
        }
        sites.extend(changed.into_iter().map(|(operator, new)| Site {
            unit: name.to_owned(),
            line: i - first,
            operator,
            old: line.to_owned(),
            new: format!("\t{new}"),
        }));
    }
    sites
}

/// Whether a relation chooses between a value and the constant that it is compared with: equal, both are
/// the same. Zero is none such, which has a sign; nor is a relation that chooses something else, too, as that
/// of an exponential which is zero below its limit.
fn limits(relation: &Instruction<'_>, following: &[&str]) -> bool {
    /// Lines among which the choice stands.
    const NEAR: usize = 8;
    let ("setp.lt.f32" | "setp.gt.f32", &[holds, value, limit]) = (relation.opcode, &relation.operands[..])
    else {
        return false;
    };
    let near = following.iter().take(NEAR).filter_map(|line| Instruction::of(line));
    let mut chosen = near.filter(|next| next.opcode == "selp.f32").map(|next| next.operands);
    !matches!(limit, "0f00000000" | "0f80000000")
        && limit.starts_with("0f")
        && chosen.any(|operands| operands.get(1..) == Some(&[limit, value, holds]))
        && uses(following, holds) == 1
}

/// Lines up to the next unit's that have a register.
fn uses(lines: &[&str], register: &str) -> usize {
    let names =
        |line: &&&str| line.split(|c: char| !c.is_alphanumeric() && c != '%').any(|word| word == register);
    lines.iter().take_while(|line| ptx_vm::mutant::name(line).is_none()).filter(names).count()
}

/// Registers that hold the thread's number and its lane's, in the kernel at hand.
#[derive(Default)]
struct OwnLane<'a> {
    threads: BTreeSet<&'a str>,
    lanes: BTreeSet<&'a str>,
}

impl<'a> OwnLane<'a> {
    /// Takes note of what an instruction defines; whether it is an exchange of each lane with itself.
    fn reads(&mut self, instruction: &Instruction<'a>) -> bool {
        match (instruction.opcode, &instruction.operands[..]) {
            ("mov.u32", [to, "%tid.x"]) => _ = self.threads.insert(*to),
            ("and.b32", [to, of, "31"]) if self.threads.contains(of) => _ = self.lanes.insert(*to),
            ("shfl.sync.idx.b32", [_, _, lane, ..]) => return self.lanes.contains(lane),
            _ => {}
        }
        false
    }
}

/// One instruction on a line of its own.
struct Instruction<'a> {
    /// `@%p1`, or nothing.
    guard: &'a str,
    opcode: &'a str,
    operands: Vec<&'a str>,
    /// What follows the semicolon: an inline block may end there.
    rest: &'a str,
}

impl<'a> Instruction<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (text, rest) = line.trim().split_once(';')?;
        let (guard, text) = match text.strip_prefix('@') {
            Some(_) => text.split_once(char::is_whitespace)?,
            None => ("", text),
        };
        let text = text.trim();
        let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let known = opcode.starts_with(|c: char| c.is_ascii_lowercase());
        known.then(|| Self { guard, opcode, operands: split(operands), rest })
    }

    /// The instruction with other operands.
    fn with(&self, opcode: &str, operands: &[String]) -> String {
        let space = if self.guard.is_empty() { "" } else { " " };
        format!("{}{space}{opcode} {};{}", self.guard, operands.join(", "), self.rest)
    }

    fn owned(&self) -> Vec<String> {
        self.operands.iter().map(|&operand| operand.to_owned()).collect()
    }

    /// The last operand changed by an instruction in front, in a block of their own.
    fn last(&self, change: &str) -> Option<String> {
        let mut operands = self.owned();
        let last = operands.last_mut().filter(|last| !last.starts_with('['))?;
        let front = format!(".reg .b32 changed; {}", change.replace("LAST", last));
        *last = "changed".into();
        let plain = Instruction { rest: "", guard: self.guard, opcode: self.opcode, operands: vec![] };
        Some(format!("{{ {front} {} }}{}", plain.with(self.opcode, &operands), self.rest))
    }

    /// Every change of this instruction.
    fn changed(&self) -> Vec<(Operator, String)> {
        let mut all = Vec::new();
        let op = self.opcode;
        let dropped = DROPPED.iter().find(|(prefix, _)| op.starts_with(prefix));
        if let Some(&(_, operator)) = dropped {
            match operator {
                // A value from another lane: its own instead.
                Operator::Exchange => all.extend(self.own_value().map(|new| (operator, new))),
                _ => all.push((operator, format!("//;{}", self.rest))),
            }
        }
        if op.contains("wait_group") {
            let more = self.operands.first().and_then(|n| n.parse::<u32>().ok());
            all.extend(more.map(|n| (Operator::Count, self.with(op, &[(n + 1).to_string()]))));
        }
        if op.starts_with("mbarrier.init") || op.contains("expect_tx") {
            all.extend(self.last("add.u32 changed, LAST, 1;").map(|new| (Operator::Count, new)));
        }
        if op.contains("wait.parity") {
            all.extend(self.last("xor.b32 changed, LAST, 1;").map(|new| (Operator::Parity, new)));
        }
        all.extend(self.replaced(&RELATIONS).map(|new| (Operator::Bound, new)));
        all.extend(self.replaced(&OPERATIONS).map(|new| (Operator::Operation, new)));
        all.extend(self.swapped().map(|new| (Operator::Swap, new)));
        all.extend(self.constant().map(|new| (Operator::Constant, new)));
        if !self.guard.is_empty() {
            let negated = match self.guard.strip_prefix("@!") {
                Some(predicate) => format!("@{predicate}"),
                None => self.guard.replacen('@', "@!", 1),
            };
            let operands = self.operands.join(", ");
            all.push((Operator::Branch, format!("{negated} {op} {operands};{}", self.rest)));
        }
        all
    }

    fn replaced(&self, table: &[(&str, &str)]) -> Option<String> {
        let (from, to) = table.iter().find(|(from, _)| self.opcode.starts_with(from))?;
        Some(self.with(&self.opcode.replacen(from, to, 1), &self.owned()))
    }

    fn swapped(&self) -> Option<String> {
        let &(_, a, b) = SWAPPED.iter().find(|(prefix, ..)| self.opcode.starts_with(prefix))?;
        let mut operands = self.owned();
        if b >= operands.len() || operands[a] == operands[b] {
            return None;
        }
        operands.swap(a, b);
        Some(self.with(self.opcode, &operands))
    }

    /// The own lane's value for an exchange's: `shfl.sync.idx.b32 to|p, from, ..`.
    fn own_value(&self) -> Option<String> {
        let [to, from] = self.operands.get(..2)? else { return None };
        let to = to.split('|').next()?;
        Some(self.with("mov.b32", &[to.to_owned(), (*from).to_owned()]))
    }

    /// One more than an integer that is added, shifted or masked by, or an address that is one element off.
    fn constant(&self) -> Option<String> {
        const WITH: [&str; 5] = ["add.s", "shl.b", "shr.", "and.b", "mad.lo."];
        let mut operands = self.owned();
        if WITH.iter().any(|prefix| self.opcode.starts_with(prefix)) {
            let number = operands.iter_mut().skip(2).find(|o| o.parse::<i64>().is_ok())?;
            *number = (number.parse::<i64>().ok()? + 1).to_string();
            return Some(self.with(self.opcode, &operands));
        }
        let memory = ["ld.global", "ld.shared", "st.global", "st.shared"];
        if !memory.iter().any(|prefix| self.opcode.starts_with(prefix)) {
            return None;
        }
        let bytes = self.opcode.rsplit('.').next()?.get(1..)?.parse::<i64>().ok()? / 8;
        let address = operands.iter_mut().find(|o| o.starts_with('['))?;
        let inner = address.trim_matches(['[', ']']).to_owned();
        let (base, offset) = inner.split_once('+').unwrap_or((&inner, "0"));
        *address = format!("[{base}+{}]", offset.parse::<i64>().ok()? + bytes);
        Some(self.with(self.opcode, &operands))
    }
}

/// Operands at the commas outside of braces and brackets.
fn split(operands: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let parts = operands.split(|c: char| {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn changes(line: &str) -> Vec<(Operator, String)> {
        Instruction::of(line).map(|i| i.changed()).unwrap_or_default()
    }

    #[test]
    fn each_operator_changes_one_instruction() {
        let one = |line: &str, operator: Operator, new: &str| {
            let all = changes(line);
            assert!(all.contains(&(operator, new.to_owned())), "{line}: {all:?}");
        };
        one("\tbar.sync \t0;", Operator::Barrier, "//;");
        one("\tcp.async.wait_group 1;", Operator::Wait, "//;");
        one("\tcp.async.wait_group 1;", Operator::Count, "cp.async.wait_group 2;");
        one("\tsetp.lt.u32 \t%p1, %r1, 7;", Operator::Bound, "setp.le.u32 %p1, %r1, 7;");
        one("\t@%p1 bra \t$L__BB0_3;", Operator::Branch, "@!%p1 bra $L__BB0_3;");
        one("\t@!%p1 bra \t$L__BB0_3;", Operator::Branch, "@%p1 bra $L__BB0_3;");
        one("\tsub.s32 \t%r1, %r2, %r3;", Operator::Swap, "sub.s32 %r1, %r3, %r2;");
        one("\tadd.s64 \t%rd1, %rd2, -8;", Operator::Constant, "add.s64 %rd1, %rd2, -7;");
        one("\tld.global.u16 \t%rs1, [%rd7];", Operator::Constant, "ld.global.u16 %rs1, [%rd7+2];");
        one(
            "\tst.global.v4.f32 [%rd7+16], {%f1, %f2, %f3, %f4};",
            Operator::Constant,
            "st.global.v4.f32 [%rd7+20], {%f1, %f2, %f3, %f4};",
        );
        one("shfl.sync.bfly.b32 %r1|%p1, %r2, %r3, 31, -1;", Operator::Exchange, "mov.b32 %r1, %r2;");
        one(
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%r1], %r2;",
            Operator::Parity,
            "{ .reg .b32 changed; xor.b32 changed, %r2, 1; mbarrier.try_wait.parity.shared::cta.b64 p, [%r1], changed; }",
        );
        assert_eq!(changes("\tgriddepcontrol.launch_dependents;"), []);
        assert_eq!(changes("$L__BB0_3:"), []);
        assert_eq!(changes("\tmov.u32 %r1, %tid.x;"), []);
    }

    #[test]
    fn a_limit_may_hold_its_equal_or_not() {
        let bounds = |limit: &str, other: &str| {
            let text = format!(
                ".entry k(\n)\n{{\n\tsetp.gt.f32 \t%p1, %f1, {limit};\n\tmov.f32 \t%f9, %f8;\n\
                 \tselp.f32 \t%f2, {other}, %f1, %p1;\n}}\n"
            );
            sites(&text).iter().filter(|site| site.operator == Operator::Bound).count()
        };
        assert_eq!(bounds("0f41200000", "0f41200000"), 0);
        // The relation has another use.
        assert_eq!(bounds("0f41200000", "0f41200000, %f1, %p1;\n\tselp.f32 \t%f3, 0f00000000"), 1);
        assert_eq!((bounds("0f41200000", "0f3F800000"), bounds("0f00000000", "0f00000000")), (1, 1));
    }

    #[test]
    fn an_exchange_with_itself_is_no_place() {
        let text = |lane: &str| {
            format!(
                ".entry k(\n)\n{{\n\tmov.u32 \t%r1, %tid.x;\n\tand.b32  \t%r2, %r1, 31;\n\
                 \tshfl.sync.idx.b32 \t%r4|%p1, %r3, {lane}, 31, -1;\n}}\n"
            )
        };
        let exchanges =
            |lane| sites(&text(lane)).iter().filter(|site| site.operator == Operator::Exchange).count();
        assert_eq!((exchanges("%r2"), exchanges("%r5")), (0, 1));
    }

    /// In the texts that are shipped: a thousand changes at random parse, and differ from the text.
    #[test]
    fn mutants_of_the_shipped_texts_are_ptx() {
        let mut dice = fastrand::Rng::with_seed(1);
        for module in engraft_kernels::MODULES.iter().filter(|module| module.stem != "flash") {
            let text = module.ptx().unwrap();
            let all = sites(text);
            assert!(all.len() > 50, "{}: {}", module.stem, all.len());
            for _ in 0..4 {
                let site = dice.choice(&all).unwrap();
                let changed = site.mutant().applied(text).unwrap();
                assert_ne!(changed, text);
                ptx_vm::Module::parse(&changed).unwrap_or_else(|e| panic!("{e}: {site:?}"));
            }
        }
    }
}
