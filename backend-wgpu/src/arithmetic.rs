//! What a driver does to arithmetic, and what may be promised for it.

use engraft_core::numerics::Mode;

/// Which operations give the host's bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arithmetic {
    /// Division.
    pub division: bool,
    /// Square root.
    pub square_root: bool,
    /// Guarded products and sums, and chains of them, are rounded one by one, in order.
    pub order: bool,
    /// exp, tanh and erf.
    pub functions: bool,
    /// Numbers below 2^-126 are kept, not flushed.
    pub subnormals: bool,
}

impl Arithmetic {
    /// Whether the contract's order is kept bit for bit; results below 2^-126 count as zero there.
    pub fn strict(&self) -> bool {
        self.division && self.square_root && self.order && self.functions
    }

    /// Why `wanted` is not promised where sums follow the contract's order (`leaves`) or the wide one; none
    /// where it is.
    pub fn withheld(&self, wanted: Mode, leaves: bool) -> Option<String> {
        match (wanted, self.promise(leaves)) {
            (Mode::Fast, _) | (Mode::Reference, Mode::Reference) => None,
            (Mode::Invariant, Mode::Reference | Mode::Invariant) => None,
            (Mode::Reference, _) if !leaves => Some("sums follow the wide order".into()),
            (Mode::Reference, _) => {
                let all = [
                    ("division", self.division),
                    ("square root", self.square_root),
                    ("order of guarded products and sums", self.order),
                    ("exp, tanh and erf", self.functions),
                ];
                let other: Vec<&str> = all.iter().filter(|(_, same)| !same).map(|(name, _)| *name).collect();
                Some(format!("not the host's bits: {}", other.join(", ")))
            }
            (Mode::Invariant, _) => Some("the driver contracts or reassociates guarded sums".into()),
        }
    }

    /// What may be promised where sums follow the contract's order (`leaves`) or the wide one.
    ///
    /// A driver that contracts or reassociates decides so kernel by kernel, and the number of rows decides
    /// which kernel runs: bits could depend on the batch, so nothing is promised.
    pub fn promise(&self, leaves: bool) -> Mode {
        match self.order {
            false => Mode::Fast,
            true if leaves && self.strict() => Mode::Reference,
            true => Mode::Invariant,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_promised_than_the_probe_found() {
        let all =
            Arithmetic { division: true, square_root: true, order: true, functions: true, subnormals: false };
        assert_eq!(all.promise(true), Mode::Reference);
        assert_eq!(all.promise(false), Mode::Invariant);
        for less in [
            Arithmetic { division: false, ..all },
            Arithmetic { square_root: false, ..all },
            Arithmetic { functions: false, ..all },
        ] {
            assert_eq!([true, false].map(|leaves| less.promise(leaves)), [Mode::Invariant; 2], "{less:?}");
        }
        let none = Arithmetic { order: false, ..all };
        assert_eq!([true, false].map(|leaves| none.promise(leaves)), [Mode::Fast; 2]);
        let why = |of: Arithmetic, wanted| of.withheld(wanted, true).unwrap_or_default();
        assert_eq!([Mode::Reference, Mode::Invariant, Mode::Fast].map(|mode| why(all, mode)), [""; 3]);
        assert!(all.withheld(Mode::Reference, false).is_some());
        let rough = Arithmetic { division: false, functions: false, ..all };
        assert_eq!(why(rough, Mode::Reference), "not the host's bits: division, exp, tanh and erf");
        assert_eq!(why(rough, Mode::Invariant), "");
        assert!(why(none, Mode::Invariant).contains("reassociates") && why(none, Mode::Fast).is_empty());
        // A device that was not probed yet.
        assert_eq!(Arithmetic::default().promise(true), Mode::Fast);
    }
}
