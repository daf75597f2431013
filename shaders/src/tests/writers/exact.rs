//! That all arithmetic of floats is marked, and nothing else was changed, read back from the words.

use super::*;
use crate::{Elem, Norm, Packing, Reduce, Strictness};
use std::collections::BTreeSet;

/// `OpDecorate` of three words, and what it decorates with.
const DECORATE: u32 = 3 << 16 | 71;
const NO_CONTRACTION: u32 = 42;
/// `OpFNegate`, `OpFAdd`, `OpFSub`, `OpFMul`, `OpFDiv`, `OpFRem`, `OpFMod`, and those of vectors and matrices
/// up to `OpDot`.
const ARITHMETIC: [u32; 14] = [127, 129, 131, 133, 136, 140, 141, 142, 143, 144, 145, 146, 147, 148];

/// All that a module can ask of floats.
pub(super) const ALL: Strictness = Strictness { special: true, nearest: true, subnormals: true };
/// `OpCapability` and `OpExecutionMode` of floats, and the numbers of what they ask for.
const CAPABILITY: u32 = 2 << 16 | 17;
const MODE: u32 = 4 << 16 | 16;
const CAPABILITIES: [u32; 3] = [4466, 4467, 4464];
const MODES: [u32; 3] = [4461, 4462, 4459];

/// Instructions of a module behind its header.
fn instructions(words: &[u32]) -> Vec<&[u32]> {
    let (mut all, mut rest) = (Vec::new(), words.get(5..).unwrap_or_default());
    while let Some(first) = rest.first() {
        let (instruction, behind) = rest.split_at((first >> 16) as usize);
        all.push(instruction);
        rest = behind;
    }
    all
}

fn is_mark(instruction: &[u32]) -> bool {
    matches!(instruction, [DECORATE, _, NO_CONTRACTION])
}

/// How many instructions are marked.
pub(super) fn count(words: &[u32]) -> usize {
    instructions(words).into_iter().filter(|one| is_mark(one)).count()
}

/// Compares a module with what it was before: every arithmetic instruction of floats is marked once, nothing
/// else is, the modes that are asked for stand where they belong, and all the rest is there in its order.
pub(super) fn marked(bare: &[u32], exact: &[u32], strict: Strictness) -> Result<(), String> {
    let all = instructions(exact);
    let asked = |numbers: [u32; 3]| {
        let all = [strict.special, strict.nearest, strict.subnormals].into_iter().zip(numbers);
        all.filter(|(asked, _)| *asked).map(|(_, number)| number).collect::<Vec<u32>>()
    };
    let number = |one: &&[u32]| match **one {
        [CAPABILITY, number] if CAPABILITIES.contains(&number) => Some(number),
        [MODE, _, number, 32] if MODES.contains(&number) => Some(number),
        _ => None,
    };
    // Capabilities, entry points, modes: nothing else between, in this order.
    let of = |opcode: u32| all.iter().rposition(|one| one[0] & 0xffff == opcode);
    let first = all.iter().position(|one| one[0] & 0xffff != 17);
    if first <= of(17) || of(15) >= of(16) {
        return Err("capabilities or modes stand where they do not belong".into());
    }
    let found: Vec<u32> = all.iter().filter_map(number).collect();
    if found != [asked(CAPABILITIES), asked(MODES)].concat() {
        return Err(format!("modes {found:?}"));
    }
    let all: Vec<&[u32]> = all.into_iter().filter(|one| number(one).is_none()).collect();
    let types = all.iter().position(|one| (19..=39).contains(&(one[0] & 0xffff)));
    if all.iter().rposition(|one| is_mark(one)) > types {
        return Err("marks stand behind types".into());
    }
    let (marks, rest): (Vec<&[u32]>, Vec<&[u32]>) = all.into_iter().partition(|one| is_mark(one));
    if exact[..5] != bare[..5] || rest != instructions(bare) {
        return Err("more than marks was changed".into());
    }
    let arithmetic = rest.iter().filter(|one| ARITHMETIC.contains(&(one[0] & 0xffff)));
    let wanted: BTreeSet<u32> = arithmetic.map(|one| one[2]).collect();
    let found: BTreeSet<u32> = marks.iter().map(|mark| mark[1]).collect();
    match found == wanted && marks.len() == wanted.len() {
        true => Ok(()),
        false => Err(format!("{} marks for {} instructions", marks.len(), wanted.len())),
    }
}

/// A module that is marked already gets no second mark, and what is no module is refused.
#[test]
fn all_arithmetic_of_floats_is_marked() {
    let dialect = Dialect { carrier: Carrier::Immediate, f16: true, dot: true, strict: true };
    let (x, out) = (Elem::F32, Elem::F16);
    for kernel in [
        Kernel::Linear { weight: Packing::Q4K, x, out, rows: 8, gate: true, vector: true, act: true },
        Kernel::AttentionTile(1, false, Elem::F16, x.into()),
        Kernel::Norm(Norm::Alone, x, Reduce::Subgroups),
        Kernel::Probe,
    ] {
        for newest in [false, true] {
            let bare = Variant::read(kernel, dialect).spirv(newest).unwrap();
            let strict = if newest { ALL } else { Strictness::default() };
            let exact = uncontracted(&bare, strict).unwrap();
            marked(&bare, &exact, strict).unwrap();
            let other = Strictness { nearest: !strict.nearest, ..strict };
            assert!(marked(&bare, &exact, other).is_err(), "{}", kernel.label());
            // Older ones have no place for modes.
            assert_eq!(uncontracted(&bare, ALL).is_some(), newest);
            assert!(count(&bare) == 0 && count(&exact) > 10, "{}: {}", kernel.label(), count(&exact));
            assert_eq!(uncontracted(&exact, strict).as_ref(), Some(&exact), "{}", kernel.label());
            println!("{}, {newest}: {} instructions are marked", kernel.label(), count(&exact));
            // In the middle of the first instruction.
            assert_eq!(uncontracted(&exact[..6], strict), None);
            let swapped: Vec<u32> = bare.iter().map(|word| word.swap_bytes()).collect();
            assert_eq!(uncontracted(&swapped, strict), None);
            // One mark less, one more, or on another instruction is seen.
            let first = (5..exact.len() - 2).find(|at| is_mark(&exact[*at..at + 3])).unwrap();
            let less = [&exact[..first], &exact[first + 3..]].concat();
            let more = [&exact[..first + 3], &exact[first..]].concat();
            let mut other = exact.clone();
            other[first + 1] += 1;
            assert!(
                [less, more, other].iter().all(|all| marked(&bare, all, strict).is_err()),
                "{}",
                kernel.label()
            );
        }
    }
    assert_eq!(uncontracted(&[], Strictness::default()), None);
}
