//! Words that are numbers or names of spaces.

use super::syntax::{Operand, Space};

/// The space a declaration's first word names.
pub(crate) fn space(word: &str) -> Option<Space> {
    Some(match word {
        ".global" => Space::Global,
        ".const" => Space::Const,
        ".shared" => Space::Shared,
        ".local" => Space::Local,
        ".param" => Space::Param,
        _ => return None,
    })
}

/// Whether a word names the space a pointer parameter points to.
pub(crate) fn space_of_pointer(word: &str) -> bool {
    matches!(word, ".global" | ".const" | ".shared" | ".local" | ".generic" | ".param")
}

/// A decimal, hexadecimal, octal or binary integer, with or without the `U` suffix.
pub(crate) fn integer(word: &str) -> Option<u64> {
    let word = word.strip_suffix('U').unwrap_or(word);
    match word.as_bytes() {
        [b'0', b'x' | b'X', ..] => u64::from_str_radix(&word[2..], 16).ok(),
        [b'0', b'b' | b'B', ..] => u64::from_str_radix(&word[2..], 2).ok(),
        [b'0', b'0'..=b'7', ..] => u64::from_str_radix(&word[1..], 8).ok(),
        [b'0'..=b'9', ..] => word.parse().ok(),
        _ => None,
    }
}

/// A number, or nothing when the word is a name.
pub(crate) fn literal(word: &str) -> Option<Operand> {
    match word.as_bytes() {
        [b'0', b'f' | b'F', ..] if word.len() == 10 => {
            u32::from_str_radix(&word[2..], 16).ok().map(Operand::F32)
        }
        [b'0', b'd' | b'D', ..] if word.len() == 18 => {
            u64::from_str_radix(&word[2..], 16).ok().map(Operand::F64)
        }
        [b'0'..=b'9', ..] => match integer(word) {
            Some(n) => Some(Operand::Integer(n)),
            None => word.parse::<f64>().ok().map(|x| Operand::F64(x.to_bits())),
        },
        _ => None,
    }
}
