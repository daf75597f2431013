//! Which of the legal orders unordered work runs in.
//!
//! A real device runs the work of two streams in whatever order its engines find it, mostly the one that
//! hides a missing event. Here a rule picks, and a program that is right under every rule has its events.

/// The rule that picks the next operation among those whose dependencies are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Everything at once when it is submitted: the order of an infinitely fast device.
    Eager,
    /// Nothing before somebody waits for it, and then only what that needs, the latest submitted first.
    Latest,
    /// When somebody waits, everything else that may run goes first, the latest submitted first.
    OthersFirst,
    /// A coin for each step: now or later, this stream or that one.
    Seeded(u64),
    /// Nothing runs: a device that hangs. Questions are answered with "not ready"; whoever waits without a
    /// limit hangs too.
    Never,
}

impl Order {
    /// The rule of a number (0 eager, 1 latest, 2 others first, 3 seeded, 4 never).
    pub fn from_number(number: u32, seed: u64) -> Option<Order> {
        match number {
            0 => Some(Order::Eager),
            1 => Some(Order::Latest),
            2 => Some(Order::OthersFirst),
            3 => Some(Order::Seeded(seed)),
            4 => Some(Order::Never),
            _ => None,
        }
    }
}

/// A small generator (xorshift64*): any order will do, as long as a seed repeats it.
#[derive(Debug, Clone, Copy)]
pub struct Coins(u64);

impl Coins {
    /// Coins of a seed.
    pub fn new(seed: u64) -> Self {
        // A multiplicative hash first, so that seeds 0, 1, 2 are not alike.
        Coins(seed.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9) | 1)
    }

    /// A number below `n` (0 for `n == 0`).
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize;
        high.checked_rem(n).unwrap_or(0)
    }
}
