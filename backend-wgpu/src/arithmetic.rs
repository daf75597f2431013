//! What a driver does to arithmetic.

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
}
