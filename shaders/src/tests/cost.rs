//! What the guards of chains cost: instructions of SPIR-V as naga writes it, every call counted as what it
//! calls.

use super::{dialects, module};
use crate::{Attention, Dialect, Elem, Kernel, Packing, source};
use naga::ShaderStage;
use naga::back::spv;
use std::collections::HashMap;

/// Instructions of a function with those of what it calls.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Count {
    all: usize,
    multiplied: usize,
    added: usize,
    /// Ors.
    guards: usize,
}

impl Count {
    fn plus(self, other: Count) -> Count {
        Count {
            all: self.all + other.all,
            multiplied: self.multiplied + other.multiplied,
            added: self.added + other.added,
            guards: self.guards + other.guards,
        }
    }
}

/// Opcodes of SPIR-V.
const ENTRY_POINT: u32 = 15;
const FUNCTION: u32 = 54;
const FUNCTION_END: u32 = 56;
const FUNCTION_CALL: u32 = 57;
const F_ADD: u32 = 129;
const F_MUL: u32 = 133;
const BITWISE_OR: u32 = 197;

/// Of the entry point; functions stand before those that call them.
fn counted(words: &[u32]) -> Count {
    let (mut at, mut entry, mut within) = (5, 0, None);
    let mut of: HashMap<u32, Count> = HashMap::new();
    while at < words.len() {
        let (length, opcode) = ((words[at] >> 16) as usize, words[at] & 0xffff);
        let instruction = &words[at..at + length];
        match opcode {
            ENTRY_POINT => entry = instruction[2],
            FUNCTION => within = Some((instruction[2], Count::default())),
            FUNCTION_END => of.extend(within.take()),
            _ => {}
        }
        if let Some((_, count)) = &mut within {
            let own = Count {
                all: 1,
                multiplied: usize::from(opcode == F_MUL),
                added: usize::from(opcode == F_ADD),
                guards: usize::from(opcode == BITWISE_OR),
            };
            let called = if opcode == FUNCTION_CALL { of[&instruction[3]] } else { Count::default() };
            *count = count.plus(own).plus(called);
        }
        at += length;
    }
    of[&entry]
}

fn of(kernel: &Kernel, strict: bool) -> Count {
    let dialect = Dialect { strict, ..dialects(kernel)[0] };
    let text = source(kernel, dialect).unwrap().text;
    let (module, info) = module(kernel, dialect, &text);
    let entry = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".into() };
    let options =
        spv::Options { lang_version: (1, 3), fake_missing_bindings: true, ..spv::Options::default() };
    counted(&spv::write_vec(&module, &info, &options, Some(&entry)).unwrap())
}

/// One or for every sum of a chain, and nothing else.
#[test]
fn a_guarded_sum_is_one_or() {
    let (x, out, vector) = (Elem::F32, Elem::F32, true);
    let how = Attention { dense: false, columns: 1, capped: false, subgroups: false, distances: false };
    let tile = |weight, rows| Kernel::Linear { weight, x, out, rows, gate: false, vector, act: false };
    // Sums in the text: of a matmul one for each value of a unit and row, and one behind the last unit; of
    // attention those of scores and values, and the bias by slope.
    let all = [
        (tile(Packing::F32, 1), 5),
        (tile(Packing::F32, 8), 40),
        (tile(Packing::Q4K, 1), 9),
        (tile(Packing::Q4K, 8), 72),
        (Kernel::Experts { weight: Packing::F32, x, out, rows: 8, vector, grouped: true }, 40),
        (Kernel::Attention(how, x, x.into()), 3),
        (Kernel::AttentionTile(1, false, x, x.into()), 12),
    ];
    for (kernel, sums) in all {
        let [bare, strict] = [false, true].map(|strict| of(&kernel, strict));
        println!("{}: {bare:?}, guarded {strict:?}", kernel.label());
        assert_eq!(strict.guards - bare.guards, sums, "{}", kernel.label());
        assert_eq!((strict.multiplied, strict.added), (bare.multiplied, bare.added), "{}", kernel.label());
    }
}
