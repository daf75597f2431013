//! What a driver does to arithmetic, and what may be promised for it.

use engraft_core::numerics::Mode;

/// How a device's kernels sum, as far as promises depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums {
    /// In the contract's order, not the wide one.
    pub leaves: bool,
    /// Every sum of a chain is guarded, as in all modes but `Fast`.
    pub guarded: bool,
    /// Kernels between which the number of rows decides are compared when they are compiled, or are those of
    /// a driver that whole tests run on. Pages cannot wait for that.
    pub compared: bool,
}

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
    /// Kernels of which there is one for any number of rows: rotation, gated activations, routing and sums of
    /// experts, sampling, rows that become bytes.
    pub alone: bool,
    /// Numbers below 2^-126 are kept, not flushed.
    pub subnormals: bool,
}

impl Arithmetic {
    /// Whether the contract's order is kept bit for bit; results below 2^-126 count as zero there.
    pub fn strict(&self) -> bool {
        self.division && self.square_root && self.order && self.functions && self.alone
    }

    /// Why `wanted` is not promised for such sums; none where it is.
    pub fn withheld(&self, wanted: Mode, sums: Sums) -> Option<String> {
        match (wanted, self.promise(sums)) {
            (Mode::Fast, _) | (Mode::Reference, Mode::Reference) => None,
            (Mode::Invariant, Mode::Reference | Mode::Invariant) => None,
            (_, Mode::Fast) if self.order && !sums.guarded => {
                Some("sums are not guarded in mode fast".into())
            }
            (_, Mode::Fast) if self.order => {
                Some("pages cannot compare kernels of several rows with others".into())
            }
            (Mode::Reference, _) if !sums.leaves => Some("sums follow the wide order".into()),
            (Mode::Reference, _) => {
                let all = [
                    ("division", self.division),
                    ("square root", self.square_root),
                    ("order of guarded products and sums", self.order),
                    ("exp, tanh and erf", self.functions),
                    ("kernels that there is one of for any number of rows", self.alone),
                ];
                let other: Vec<&str> = all.iter().filter(|(_, same)| !same).map(|(name, _)| *name).collect();
                Some(format!("not the host's bits: {}", other.join(", ")))
            }
            (Mode::Invariant, _) => Some("the driver contracts or reassociates guarded sums".into()),
        }
    }

    /// What may be promised for such sums.
    ///
    /// A driver that contracts or reassociates decides so kernel by kernel, and the number of rows decides
    /// which kernel runs: bits could depend on the batch, so nothing is promised. Nor is it where kernels are
    /// compared with no other, whatever order they have: which ones the driver changes is not known then.
    pub fn promise(&self, sums: Sums) -> Mode {
        match self.order && sums.guarded && sums.compared {
            false => Mode::Fast,
            true if sums.leaves && self.strict() => Mode::Reference,
            true => Mode::Invariant,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_promised_than_the_probe_found() {
        let all = Arithmetic {
            division: true,
            square_root: true,
            order: true,
            functions: true,
            alone: true,
            subnormals: false,
        };
        let sums = |leaves| Sums { leaves, guarded: true, compared: true };
        assert_eq!(all.promise(sums(true)), Mode::Reference);
        assert_eq!(all.promise(sums(false)), Mode::Invariant);
        // A page: nothing is compared there, neither order.
        let page = [true, false].map(|leaves| Sums { compared: false, ..sums(leaves) });
        assert_eq!(page.map(|sums| all.promise(sums)), [Mode::Fast; 2]);
        for (mode, sums) in [(Mode::Reference, page[0]), (Mode::Invariant, page[1])] {
            assert!(all.withheld(mode, sums).is_some_and(|why| why.contains("pages")), "{mode:?}");
        }
        // Mode fast.
        let bare = [true, false].map(|leaves| Sums { guarded: false, ..sums(leaves) });
        assert_eq!(bare.map(|sums| all.promise(sums)), [Mode::Fast; 2]);
        assert!(all.withheld(Mode::Reference, bare[0]).is_some_and(|why| why.contains("guarded")));
        for less in [
            Arithmetic { division: false, ..all },
            Arithmetic { square_root: false, ..all },
            Arithmetic { functions: false, ..all },
            Arithmetic { alone: false, ..all },
        ] {
            assert_eq!(
                [true, false].map(|leaves| less.promise(sums(leaves))),
                [Mode::Invariant; 2],
                "{less:?}"
            );
        }
        let none = Arithmetic { order: false, ..all };
        assert_eq!([true, false].map(|leaves| none.promise(sums(leaves))), [Mode::Fast; 2]);
        let why = |of: Arithmetic, wanted| of.withheld(wanted, sums(true)).unwrap_or_default();
        assert_eq!([Mode::Reference, Mode::Invariant, Mode::Fast].map(|mode| why(all, mode)), [""; 3]);
        assert!(all.withheld(Mode::Reference, sums(false)).is_some());
        let rough = Arithmetic { division: false, functions: false, ..all };
        assert_eq!(why(rough, Mode::Reference), "not the host's bits: division, exp, tanh and erf");
        assert_eq!(why(rough, Mode::Invariant), "");
        assert!(why(none, Mode::Invariant).contains("reassociates") && why(none, Mode::Fast).is_empty());
        // A device that was not probed yet.
        assert_eq!(Arithmetic::default().promise(sums(true)), Mode::Fast);
    }
}
