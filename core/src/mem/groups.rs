//! The own formats of weights: groups of values along K with one scale each.

/// What a code of the group formats is, and with it the type of the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupBits {
    /// Signed bytes; scales in f16.
    Eight,
    /// Nibbles; scales in f16.
    Four,
    /// FP8 with four bits of exponent; scales in f32.
    E4m3,
    /// FP8 with five bits of exponent; scales in f32.
    E5m2,
    /// FP6 with three bits of exponent, four codes in three bytes; scales in f32.
    E3m2,
    /// FP4, nibbles; scales in f32.
    E2m1,
    /// FP4 as MXFP4 has it: scales are powers of two of one byte, 2^(byte - 127).
    Mx,
    /// Places in the table of NF4, nibbles; scales in f32.
    Nf4,
}

impl GroupBits {
    /// Bits of a code.
    pub const fn count(self) -> usize {
        match self {
            GroupBits::Eight | GroupBits::E4m3 | GroupBits::E5m2 => 8,
            GroupBits::E3m2 => 6,
            GroupBits::Four | GroupBits::E2m1 | GroupBits::Mx | GroupBits::Nf4 => 4,
        }
    }

    /// Whether codes are integers; else floats or places in a table.
    pub const fn is_integer(self) -> bool {
        matches!(self, GroupBits::Eight | GroupBits::Four)
    }

    /// Bytes of a scale.
    pub const fn scale_bytes(self) -> usize {
        match self {
            GroupBits::Eight | GroupBits::Four => 2,
            GroupBits::Mx => 1,
            _ => 4,
        }
    }

    /// Codes that begin at a byte again.
    pub const fn per_bytes(self) -> usize {
        match self.count() {
            8 => 1,
            6 => 4,
            _ => 2,
        }
    }
}

/// Own formats (`quant::group`): values along K in groups that share a scale and perhaps an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Groups {
    /// What a code is.
    pub bits: GroupBits,
    /// Values of a group: a multiple of 32, or 16 ([`GroupBits::E2m1`]); 32 ([`GroupBits::Mx`]); 0: the whole
    /// row. The last group of a row may be shorter.
    pub size: u32,
    /// `d * q + m` instead of `d * q`; of integers only.
    pub asymmetric: bool,
}

/// Largest group that is not a row.
const MOST: u32 = 1 << 16;

impl Groups {
    /// What four bits mean where no more is said: the format that costs least accuracy.
    pub const FINE: Groups = Groups { bits: GroupBits::Four, size: 32, asymmetric: true };

    /// Every format, with the size where a name says none: of integers, FP8 and FP6 the row, of the others
    /// what is published.
    pub const ALL: [Groups; 10] = [
        Groups::floats(GroupBits::Mx, 32),
        Groups { bits: GroupBits::Eight, size: 0, asymmetric: false },
        Groups { bits: GroupBits::Eight, size: 0, asymmetric: true },
        Groups { bits: GroupBits::Four, size: 0, asymmetric: false },
        Groups { bits: GroupBits::Four, size: 0, asymmetric: true },
        Groups::floats(GroupBits::E4m3, 0),
        Groups::floats(GroupBits::E5m2, 0),
        Groups::floats(GroupBits::E3m2, 0),
        Groups::floats(GroupBits::Nf4, 64),
        Groups::floats(GroupBits::E2m1, 16),
    ];

    /// Groups of floats.
    pub const fn floats(bits: GroupBits, size: u32) -> Groups {
        Groups { bits, size, asymmetric: false }
    }

    /// Whether codes of four bits share a scale over more values than they should (32, of NF4 64): it costs
    /// accuracy that a user should know of.
    pub const fn is_coarse(self) -> bool {
        let most = if matches!(self.bits, GroupBits::Nf4) { 64 } else { Self::FINE.size };
        self.bits.count() == 4 && (self.size == 0 || self.size > most)
    }

    /// Whether kernels read groups of this size.
    pub const fn is_allowed(self) -> bool {
        match self.bits {
            GroupBits::Mx => self.size == 32 && !self.asymmetric,
            GroupBits::E2m1 if self.size == 16 => !self.asymmetric,
            bits => self.size.is_multiple_of(32) && (bits.is_integer() || !self.asymmetric),
        }
    }

    /// Values of a whole group of a row of `cols`.
    pub const fn group(self, cols: usize) -> usize {
        let size = if self.size == 0 { cols } else { self.size as usize };
        if size == 0 { 1 } else { size }
    }

    /// Bytes before the codes.
    pub const fn head(self) -> usize {
        self.bits.scale_bytes() * if self.asymmetric { 2 } else { 1 }
    }

    /// Bytes of a group of `n` values.
    pub const fn group_bytes(self, n: usize) -> usize {
        // Without a product that could overflow: seven bits are left over at most.
        self.head() + n / 8 * self.bits.count() + (n % 8 * self.bits.count()).div_ceil(8)
    }

    /// Bytes of a row of `cols` values.
    pub const fn row_bytes(self, cols: usize) -> usize {
        let size = self.group(cols);
        let tail = cols % size;
        cols / size * self.group_bytes(size) + if tail > 0 { self.group_bytes(tail) } else { 0 }
    }

    /// Name without the size.
    pub const fn name(self) -> &'static str {
        match (self.bits, self.asymmetric) {
            (GroupBits::Eight, false) => "int8",
            (GroupBits::Eight, true) => "int8a",
            (GroupBits::Four, false) => "int4",
            (GroupBits::Four, true) => "int4a",
            (GroupBits::E4m3, _) => "fp8",
            (GroupBits::E5m2, _) => "fp8-e5m2",
            (GroupBits::E3m2, _) => "fp6",
            (GroupBits::E2m1, _) => "fp4",
            (GroupBits::Mx, _) => "mxfp4",
            (GroupBits::Nf4, _) => "nf4",
        }
    }

    /// A name, with a size or without.
    pub(super) fn parse(s: &str) -> Option<Groups> {
        let (name, size) = match s.split_once(':') {
            Some((name, size)) => (name, Some(size.parse::<u32>().ok().filter(|n| (1..=MOST).contains(n))?)),
            None => (s, None),
        };
        let name = if name == "fp8-e4m3" { "fp8" } else { name };
        let usual = Self::ALL.into_iter().find(|groups| groups.name() == name)?;
        let groups = Groups { size: size.unwrap_or(usual.size), ..usual };
        groups.is_allowed().then_some(groups)
    }
}

impl std::fmt::Display for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())?;
        match self.size {
            0 => Ok(()),
            _ if self.bits == GroupBits::Mx => Ok(()),
            size => write!(f, ":{size}"),
        }
    }
}
