//! SPIR-V whose arithmetic no compiler may contract or reassociate.
//!
//! Without a decoration a Vulkan driver may round a product and the sum that takes it once, and reorder sums.
//! `NoContraction` forbids both, instruction by instruction. naga does not write it; here it is added to what
//! naga wrote. So are execution modes by which a module says what floats of 32 bits have to be, where a
//! device has them ([`Strictness`]).

/// Words in front of the first instruction.
const HEADER: usize = 5;
/// What a module begins with.
const MAGIC: u32 = 0x0723_0203;

/// Opcodes.
const DECORATE: u32 = 71;
const CAPABILITY: u32 = 17;
const ENTRY_POINT: u32 = 15;
const EXECUTION_MODE: u32 = 16;
/// The width of floats that modes are of.
const WIDTH: u32 = 32;
/// The first version of SPIR-V that has such modes without an extension, as modules write it.
const WITH_MODES: u32 = 0x0001_0400;
/// The first and the last of types, which follow all decorations.
const TYPES: std::ops::RangeInclusive<u32> = 19..=39;

/// The decoration.
const NO_CONTRACTION: u32 = 42;

/// Whether an opcode is arithmetic of floats: `OpFNegate`, `OpFAdd`, `OpFSub`, `OpFMul`, `OpFDiv`, `OpFRem`,
/// `OpFMod`, and those of vectors and matrices from `OpVectorTimesScalar` to `OpDot`.
const fn is_arithmetic(opcode: u32) -> bool {
    matches!(opcode, 127 | 129 | 131 | 133 | 136 | 140 | 141 | 142..=148)
}

/// What a module asks of arithmetic with floats of 32 bits, where a device can be asked (from Vulkan 1.2 on
/// it says so); SPIR-V before 1.4 has no place for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Strictness {
    /// The sign of zero, infinities and NaN are what IEEE 754 says (`SignedZeroInfNanPreserve`).
    pub special: bool,
    /// Results are rounded to nearest, ties to even (`RoundingModeRTE`).
    pub nearest: bool,
    /// Numbers below 2^-126 are kept (`DenormPreserve`).
    pub subnormals: bool,
}

impl Strictness {
    /// Capabilities and execution modes.
    fn modes(self) -> impl Iterator<Item = (u32, u32)> {
        let all = [(self.special, 4466, 4461), (self.nearest, 4467, 4462), (self.subnormals, 4464, 4459)];
        all.into_iter().filter(|(asked, ..)| *asked).map(|(_, capability, mode)| (capability, mode))
    }
}

/// A module of SPIR-V with `NoContraction` on every arithmetic instruction of floats that has none, and with
/// the modes that are asked for and that it has not; none where `words` are no module in this machine's byte
/// order, or one that is cut off, or too old for the modes.
///
/// ```
/// # use engraft_shaders::{Strictness, uncontracted};
/// assert_eq!(uncontracted(&[7, 7, 7], Strictness::default()), None);
/// ```
pub fn uncontracted(words: &[u32], strict: Strictness) -> Option<Vec<u32>> {
    if words.first() != Some(&MAGIC) || strict != Strictness::default() && *words.get(1)? < WITH_MODES {
        return None;
    }
    // Capabilities come first, modes behind entry points: where what is added to them goes.
    let (mut capabilities, mut modes, mut entry, mut has) = (HEADER, None, None, Vec::new());
    let (mut at, mut types, mut results) = (HEADER, None, Vec::new());
    let mut decorated = std::collections::BTreeSet::new();
    while at < words.len() {
        let (length, opcode) = ((words[at] >> 16) as usize, words[at] & 0xffff);
        let instruction = words.get(at..at + length).filter(|all| !all.is_empty())?;
        match (opcode, instruction) {
            (CAPABILITY, [_, capability]) => {
                has.push(*capability);
                capabilities = at + length;
            }
            (ENTRY_POINT, [_, _, number, ..]) => {
                entry = entry.or(Some(*number));
                modes = Some(at + length);
            }
            (EXECUTION_MODE, _) => modes = Some(at + length),
            (DECORATE, [_, target, NO_CONTRACTION, ..]) => _ = decorated.insert(*target),
            (opcode, _) if TYPES.contains(&opcode) => _ = types.get_or_insert(at),
            // The type of the result, then its number.
            (opcode, [_, _, result, ..]) if is_arithmetic(opcode) => results.push(*result),
            _ => {}
        }
        at += length;
    }
    let (before, behind) = words.split_at_checked(types?)?;
    let missing: Vec<(u32, u32)> = strict.modes().filter(|(needs, _)| !has.contains(needs)).collect();
    let (mut start, mut rest) = (before.to_vec(), &before[..0]);
    if !missing.is_empty() {
        let (to_modes, behind_modes) = before.split_at_checked(modes?)?;
        let (head, middle) = to_modes.split_at_checked(capabilities)?;
        let entry = entry?;
        let needs = missing.iter().flat_map(|(needs, _)| [2 << 16 | CAPABILITY, *needs]);
        let asks = missing.iter().flat_map(|(_, mode)| [4 << 16 | EXECUTION_MODE, entry, *mode, WIDTH]);
        start = head.iter().copied().chain(needs).chain(middle.iter().copied()).chain(asks).collect();
        rest = behind_modes;
    }
    let decorations = results
        .into_iter()
        .filter(|result| !decorated.contains(result))
        .flat_map(|result| [3 << 16 | DECORATE, result, NO_CONTRACTION]);
    let rest = rest.iter().copied();
    Some(start.into_iter().chain(rest).chain(decorations).chain(behind.iter().copied()).collect())
}
