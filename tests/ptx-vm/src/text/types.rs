//! The types that PTX writes behind a dot.

/// A fundamental or packed type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    /// Untyped bits of 8, 16, 32, 64 or 128.
    Bits(u32),
    Unsigned(u32),
    Signed(u32),
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
    E4m3x2,
    E5m2x2,
}

impl Type {
    /// The type of that name, without its dot.
    pub(crate) fn parse(name: &str) -> Option<Type> {
        Some(match name {
            "pred" => Type::Pred,
            "f16" => Type::F16,
            "f16x2" => Type::F16x2,
            "bf16" => Type::Bf16,
            "bf16x2" => Type::Bf16x2,
            "tf32" => Type::Tf32,
            "f32" => Type::F32,
            "f64" => Type::F64,
            "e4m3x2" => Type::E4m3x2,
            "e5m2x2" => Type::E5m2x2,
            "b8" | "b16" | "b32" | "b64" | "b128" => Type::Bits(name[1..].parse().ok()?),
            "u8" | "u16" | "u32" | "u64" => Type::Unsigned(name[1..].parse().ok()?),
            "s8" | "s16" | "s32" | "s64" => Type::Signed(name[1..].parse().ok()?),
            _ => return None,
        })
    }

    /// Width in bits; a predicate has one.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Type::Pred => 1,
            Type::Bits(n) | Type::Unsigned(n) | Type::Signed(n) => n,
            Type::F16 | Type::Bf16 | Type::E4m3x2 | Type::E5m2x2 => 16,
            Type::F16x2 | Type::Bf16x2 | Type::Tf32 | Type::F32 => 32,
            Type::F64 => 64,
        }
    }

    /// Width in bytes.
    pub(crate) fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::Signed(_))
    }

    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Type::Bits(_) | Type::Unsigned(_) | Type::Signed(_))
    }
}
