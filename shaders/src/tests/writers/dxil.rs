//! What a compiler may still do with the sums of a program in DXIL, found in DXC's own text of it.
//!
//! DXC marks every operation on floats `fast`: whoever compiles DXIL may contract a product and a sum, and
//! may sum in another order. It cannot where an or in integers stands between the two: the guard.

use std::collections::{BTreeMap, BTreeSet};

/// Values by their names.
pub(super) struct Program<'a> {
    values: BTreeMap<&'a str, Value<'a>>,
    /// Of an array that an invocation has for itself, what is written into it.
    stored: BTreeMap<&'a str, Vec<&'a str>>,
}

struct Value<'a> {
    /// `fmul`, `call` and the like.
    op: &'a str,
    /// What follows it.
    rest: &'a str,
}

impl Value<'_> {
    fn operands(&self) -> impl Iterator<Item = &str> {
        names(self.rest)
    }

    fn is_sum(&self) -> bool {
        matches!(self.op, "fadd" | "fsub") && !self.is_negation()
    }

    fn is_call(&self, functions: &[&str]) -> bool {
        self.op == "call" && functions.iter().any(|name| self.rest.contains(name))
    }

    /// A product with a power of two is exact: a sum with itself is one, too.
    fn is_scaling(&self) -> bool {
        let factor = self.rest.rsplit(", ").next().and_then(constant);
        self.op == "fmul" && factor.is_some_and(|f| f.to_bits() << 12 == 0)
    }

    fn is_negation(&self) -> bool {
        let from = self.rest.split([' ', ',']).find_map(constant);
        self.op == "fsub" && from.is_some_and(|f| f == 0.0 && f.is_sign_negative())
    }

    /// Whether compilers see a value's operands in it: nothing is rounded, and no bit is hidden.
    fn is_transparent(&self) -> bool {
        const ONE_OF: [&str; 4] = [
            "@dx.op.unary.f32(i32 6,",
            "@dx.op.unary.f32(i32 7,",
            "@dx.op.binary.f32(i32 35,",
            "@dx.op.binary.f32(i32 36,",
        ];
        let moves = matches!(self.op, "phi" | "select" | "bitcast") || self.is_call(&ONE_OF);
        moves || self.is_scaling() || self.is_negation()
    }
}

/// A number as LLVM prints it: in decimals, or the bits of an f64.
fn constant(word: &str) -> Option<f64> {
    match word.strip_prefix("0x") {
        Some(bits) => u64::from_str_radix(bits, 16).ok().map(f64::from_bits),
        None => word.parse().ok(),
    }
}

/// Words that may be names of values.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', ',', '(', ')', '[', ']']).filter(|word| word.starts_with('%'))
}

impl<'a> Program<'a> {
    /// Reads what DXC's disassembler says.
    pub(super) fn read(text: &'a str) -> Self {
        let lines = text.lines().map(|line| line.split("  ;").next().unwrap_or(line).trim());
        let (mut values, mut stores) = (BTreeMap::new(), Vec::new());
        for line in lines {
            if let Some((name, said)) = line.split_once(" = ").filter(|(name, _)| name.starts_with('%')) {
                let (op, rest) = said.split_once(' ').unwrap_or((said, ""));
                // Types have such names, too.
                if op != "type" {
                    values.insert(name, Value { op, rest });
                }
            } else if let Some(said) = line.strip_prefix("store ") {
                stores.push(said);
            }
        }
        let mut program = Self { values, stored: BTreeMap::new() };
        for said in stores {
            let mut operands = names(said);
            if let (Some(value), Some(place)) = (operands.next(), operands.next())
                && let Some(array) = program.array(place)
            {
                program.stored.entry(array).or_default().push(value);
            }
        }
        program
    }

    /// The invocation's own array that an address lies in.
    fn array(&self, place: &'a str) -> Option<&'a str> {
        let (name, value) = self.values.get_key_value(place)?;
        match value.op {
            "alloca" => Some(*name),
            "getelementptr" | "bitcast" => names(value.rest).find_map(|from| self.array(from)),
            _ => None,
        }
    }

    /// The sums and products that a compiler can see a value to be, by their names.
    fn sources(&self, name: &'a str) -> BTreeSet<&'a str> {
        let (mut found, mut seen, mut next) = (BTreeSet::new(), BTreeSet::new(), vec![name]);
        while let Some(name) = next.pop() {
            let Some((name, value)) = self.values.get_key_value(name).filter(|_| seen.insert(name)) else {
                continue;
            };
            if value.is_transparent() {
                next.extend(names(value.rest));
            } else if value.op == "load" {
                let arrays = names(value.rest).filter_map(|place| self.array(place));
                next.extend(arrays.filter_map(|array| self.stored.get(array)).flatten());
            } else if value.is_sum() || value.op == "fmul" {
                found.insert(*name);
            }
        }
        found
    }

    /// How many products and sums are guarded by the first word of the parameters.
    pub(super) fn guards(&self) -> usize {
        let of_float = |name: &str| {
            self.values.get(name).is_some_and(|v| v.op == "bitcast" && v.rest.starts_with("float"))
        };
        let is_guard = |value: &&Value<'_>| {
            let operands: Vec<&str> = value.operands().collect();
            value.op == "or"
                && operands.iter().any(|name| of_float(name))
                && operands.iter().any(|name| self.is_zero(name))
        };
        self.values.values().filter(is_guard).count()
    }

    /// Whether a value is the first word of a buffer of constants.
    fn is_zero(&self, name: &str) -> bool {
        let Some(value) = self.values.get(name).filter(|v| v.op == "extractvalue") else { return false };
        let loaded = value.operands().find_map(|from| self.values.get(from));
        value.rest.ends_with(", 0")
            && loaded
                .is_some_and(|v| v.is_call(&["@dx.op.cbufferLoadLegacy"]) && v.rest.ends_with(", i32 0)"))
    }

    /// What may lose its roundings or its order: products that sums take as they are, operations that are
    /// both, sums of two sums.
    pub(super) fn faults(&self) -> Vec<String> {
        const FUSED: [&str; 5] =
            ["@dx.op.tertiary.f", "@dx.op.dot2.f", "@dx.op.dot3.f", "@dx.op.dot4.f", "@dx.op.dot2AddHalf"];
        let mut faults = Vec::new();
        for (name, value) in &self.values {
            let said = |what: &str| format!("{what}: {name} = {} {}", value.op, value.rest);
            if value.is_call(&FUSED) {
                faults.push(said("fused"));
            }
            if !value.is_sum() {
                continue;
            }
            let of: Vec<_> = names(value.rest).map(|operand| self.sources(operand)).collect();
            let multiplied = of.iter().flatten().find(|source| self.values[**source].op == "fmul");
            if let Some(multiplied) = multiplied {
                faults.push(format!("{}, of the product {multiplied}", said("may be contracted")));
            }
            if of.len() == 2 && of.iter().all(|sources| sources.iter().any(|s| self.values[*s].is_sum())) {
                faults.push(said("a sum of two sums"));
            }
        }
        faults
    }

    /// How many sums take another sum as it is: chains, whose order drivers are asked to keep by nothing but
    /// the text.
    pub(super) fn chained(&self) -> usize {
        let of_sum = |name: &'a str| self.sources(name).iter().any(|source| self.values[*source].is_sum());
        self.values.values().filter(|v| v.is_sum() && names(v.rest).any(of_sum)).count()
    }
}

/// A product and a sum, with what stands between them.
fn said(between: &str) -> String {
    format!(
        "%dx.types.CBufRet.i32 = type {{ i32, i32, i32, i32 }}
define void @main() {{
  %1 = call %dx.types.CBufRet.i32 @dx.op.cbufferLoadLegacy.i32(i32 59, %dx.types.Handle %0, i32 0)  ; CBuf(h,i)
  %2 = extractvalue %dx.types.CBufRet.i32 %1, 0
  %5 = fmul fast float %3, %4
  {between}
  %10 = fadd fast float %9, %6
}}"
    )
}

#[test]
fn what_may_be_contracted_is_seen() {
    let guarded = "%7 = bitcast float %5 to i32
  %8 = or i32 %7, %2
  %9 = bitcast i32 %8 to float";
    let text = said(guarded);
    let program = Program::read(&text);
    assert_eq!((program.faults(), program.guards(), program.chained()), (vec![], 1, 0));
    let unguarded = [
        "%9 = select i1 %7, float %5, float 0.000000e+00",
        "%9 = phi float [ %6, %1 ], [ %5, %2 ]",
        "%9 = fmul fast float %5, 2.000000e+00",
        "%9 = fmul fast float %5, 0x3EF0000000000000",
        "%9 = fsub fast float -0.000000e+00, %5",
        "%9 = call float @dx.op.binary.f32(i32 35, float %5, float 0.000000e+00)  ; FMax(a,b)",
        "%7 = alloca [2 x float], align 4
  %8 = getelementptr [2 x float], [2 x float]* %7, i32 0, i32 %2
  store float %5, float* %8, align 4
  %9 = load float, float* %8, align 4",
    ];
    for between in unguarded {
        let text = said(between);
        let faults = Program::read(&text).faults();
        assert!(
            matches!(&faults[..], [one] if one.contains("%10") && one.ends_with("the product %5")),
            "{faults:?}"
        );
    }
    // Guarded by a word that is no parameter, or not at all.
    for (from, to) in [("%1, 0", "%1, 1"), ("i32 0)", "i32 1)"), ("= or", "= xor")] {
        assert_eq!(Program::read(&said(guarded).replace(from, to)).guards(), 0, "{to}");
    }
    let fused =
        said("%9 = call float @dx.op.tertiary.f32(i32 46, float %3, float %4, float %6)  ; FMad(a,b,c)");
    assert!(Program::read(&fused).faults()[0].starts_with("fused"));
    let tree = said("%6 = fadd fast float %3, %4\n  %9 = fadd fast float %3, %11");
    let program = Program::read(&tree);
    assert_eq!((program.faults().len(), program.chained()), (1, 1));
    assert!(program.faults()[0].starts_with("a sum of two sums"));
}
