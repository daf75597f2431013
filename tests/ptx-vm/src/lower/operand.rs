//! Operands: constants and registers that are read, registers that are written, addresses.

use super::{Lowering, Register};
use crate::Error;
use crate::code::{Address, Constant, Special, Test, special};
use crate::registers::{Pred, Slot};
use crate::text::syntax::{Operand, Space};
use crate::text::types::Type;

impl Lowering<'_> {
    /// The slot that holds a constant.
    pub(crate) fn constant(&mut self, value: Constant, wide: bool) -> Slot {
        if let Some(&slot) = self.constants.get(&(value, wide)) {
            return slot;
        }
        let slot = self.units(wide);
        self.constants.insert((value, wide), slot);
        slot
    }

    pub(super) fn register(&self, name: &str) -> Option<Register> {
        self.find(|s| s.registers.get(name).copied())
    }

    /// A source operand of a type. A register must have at least the type's width (`exact`: exactly, counting
    /// 8 and 16 bits as one width).
    pub(crate) fn source(&mut self, operand: &Operand, ty: Type) -> Result<Slot, Error> {
        let wide = ty.bits() > 32;
        let bits = match operand {
            Operand::Name(name, offset) => {
                match self.register(name) {
                    Some(Register::Value(slot, declared)) if *offset == 0 => {
                        if (declared.bits() > 32) != wide {
                            return self.unsupported(format!(
                                "`{name}` has {} bits, the instruction wants {}",
                                declared.bits(),
                                ty.bits()
                            ));
                        }
                        return Ok(slot);
                    }
                    Some(_) => return self.unsupported(format!("`{name}` is a predicate or has an offset")),
                    None => {}
                }
                if let Some(special) = special(name) {
                    self.program.workspace |= matches!(special, Special::Environment(_));
                    return Ok(self.constant(Constant::Special(special), wide));
                }
                if name == "WARP_SZ" {
                    return Ok(self.constant(Constant::Bits(32), wide));
                }
                let value = match (self.lookup(name)?, self.context.functions.get(name)) {
                    (Some(place), _) => place.value,
                    (None, Some(index)) => Constant::Bits(self.context.functions.address(index)),
                    _ => return self.unsupported(format!("nothing is called `{name}`")),
                };
                return Ok(self.constant(add(value, *offset), wide));
            }
            Operand::Integer(n) => match ty {
                Type::F32 | Type::F64 => {
                    return self.unsupported("an integer literal where a floating-point one belongs");
                }
                _ => *n,
            },
            Operand::F32(b) if ty == Type::F64 => f64::from(f32::from_bits(*b)).to_bits(),
            Operand::F32(b) => u64::from(*b),
            Operand::F64(b) if ty == Type::F32 => u64::from((f64::from_bits(*b) as f32).to_bits()),
            Operand::F64(b) => *b,
            _ => return self.unsupported("this operand cannot be a value"),
        };
        let bits = match ty.bits() {
            64 => bits,
            n => bits & ((1 << n) - 1),
        };
        Ok(self.constant(Constant::Bits(bits), wide))
    }

    /// Width of the register an operand names, if it is one.
    pub(crate) fn width(&self, operand: &Operand) -> Option<u32> {
        match operand {
            Operand::Name(name, _) => match self.register(name) {
                Some(Register::Value(_, ty)) => Some(ty.bits()),
                _ => None,
            },
            _ => None,
        }
    }

    /// A source whose register may be wider than the type (`st`, `cvt`): slot and whether it has 64 bits.
    pub(crate) fn source_any(&mut self, operand: &Operand, ty: Type) -> Result<(Slot, bool), Error> {
        match self.width(operand) {
            Some(64) => Ok((self.source(operand, Type::Bits(64))?, true)),
            Some(_) if ty.bits() <= 32 => Ok((self.source(operand, Type::Bits(32))?, false)),
            _ => Ok((self.source(operand, ty)?, ty.bits() > 32)),
        }
    }

    /// A destination of a type; `_` is a register that is not read.
    pub(crate) fn destination(&mut self, operand: &Operand, ty: Type) -> Result<Slot, Error> {
        let wide = ty.bits() > 32;
        match operand {
            Operand::Name(name, 0) if name == "_" => Ok(self.units(wide)),
            Operand::Name(name, 0) => match self.register(name) {
                Some(Register::Value(slot, declared)) if (declared.bits() > 32) == wide => Ok(slot),
                Some(Register::Value(_, declared)) => self.unsupported(format!(
                    "`{name}` has {} bits, the result {}",
                    declared.bits(),
                    ty.bits()
                )),
                _ => self.unsupported(format!("`{name}` is no register for a result")),
            },
            _ => self.unsupported("the result needs a register"),
        }
    }

    /// A destination whose register may be wider than the type (`ld`, `cvt`).
    pub(crate) fn destination_any(&mut self, operand: &Operand, ty: Type) -> Result<(Slot, bool), Error> {
        let wide = self.width(operand).unwrap_or(ty.bits()) > 32;
        let ty = if wide { Type::Bits(64) } else { Type::Bits(32) };
        Ok((self.destination(operand, ty)?, wide))
    }

    /// A predicate that is written.
    pub(crate) fn pred(&mut self, operand: &Operand) -> Result<Pred, Error> {
        match operand {
            Operand::Name(name, 0) if name == "_" => Ok(self.new_pred()),
            Operand::Name(name, 0) => match self.register(name) {
                Some(Register::Pred(p)) => Ok(p),
                _ => self.unsupported(format!("`{name}` is no predicate")),
            },
            _ => self.unsupported("a predicate is needed here"),
        }
    }

    /// A predicate that is read, perhaps negated, or a literal 0 or 1.
    pub(crate) fn test(&mut self, operand: &Operand) -> Result<Test, Error> {
        match operand {
            Operand::Not(inner) => {
                let t = self.test(inner)?;
                Ok(Test { negated: !t.negated, ..t })
            }
            // A predicate that is not written is false.
            Operand::Integer(n) => Ok(Test { pred: self.new_pred(), negated: *n != 0 }),
            _ => Ok(Test { pred: self.pred(operand)?, negated: false }),
        }
    }

    /// The parts of `{a, b}`, or the operand itself.
    pub(crate) fn parts<'b>(&self, operand: &'b Operand) -> &'b [Operand] {
        match operand {
            Operand::Vector(list) => list,
            other => std::slice::from_ref(other),
        }
    }

    pub(crate) fn sources(&mut self, operand: &Operand, ty: Type) -> Result<Vec<Slot>, Error> {
        self.parts(operand).iter().map(|o| self.source(o, ty)).collect()
    }

    pub(crate) fn destinations(&mut self, operand: &Operand, ty: Type) -> Result<Vec<Slot>, Error> {
        self.parts(operand).iter().map(|o| self.destination(o, ty)).collect()
    }

    /// `[base+offset]`, with the space of the variable when the base is one.
    pub(crate) fn address(&mut self, operand: &Operand) -> Result<(Address, Option<Space>), Error> {
        let Operand::Address { base, offset, .. } = operand else {
            return self.unsupported("an address in brackets is needed here");
        };
        match &**base {
            Operand::Name(name, _) => {
                if let Some(Register::Value(slot, ty)) = self.register(name) {
                    return Ok((Address { base: slot, wide: ty.bits() > 32, offset: *offset }, None));
                }
                let Some(place) = self.lookup(name)? else {
                    return self.unsupported(format!("nothing is called `{name}`"));
                };
                let base = self.constant(add(place.value, *offset), true);
                Ok((Address { base, wide: true, offset: 0 }, Some(place.space)))
            }
            Operand::Integer(n) => {
                let base = self.constant(Constant::Bits(n.wrapping_add_signed(*offset)), true);
                Ok((Address { base, wide: true, offset: 0 }, None))
            }
            _ => self.unsupported("this is no address"),
        }
    }
}

fn add(value: Constant, offset: i64) -> Constant {
    match value {
        Constant::Bits(n) => Constant::Bits(n.wrapping_add_signed(offset)),
        Constant::Global(g, o) => Constant::Global(g, o.wrapping_add(offset)),
        Constant::Dynamic(o) => Constant::Dynamic(o.wrapping_add(offset)),
        Constant::Special(_) => value,
    }
}
