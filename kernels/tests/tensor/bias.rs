//! Biases of attention scores by distance.

use crate::machine::{Device, Dice, Type};

/// Biases by distance: positions before and after a query that have one of their own, `[heads, distances]`.
#[derive(Clone)]
pub struct Bias {
    behind: u32,
    ahead: u32,
    values: Vec<f32>,
}

impl Bias {
    pub fn new(heads: usize, behind: u32, ahead: u32) -> Option<Self> {
        let (mut dice, span) = (Dice(17), (behind + 1 + ahead) as usize);
        Some(Self { behind, ahead, values: (0..heads * span).map(|_| dice.unit() * 2.0).collect() })
    }

    pub fn of(&self, head: usize, distance: i64) -> f32 {
        let (behind, ahead) = (i64::from(self.behind), i64::from(self.ahead));
        let span = behind + 1 + ahead;
        self.values[head * span as usize + (distance.clamp(-behind, ahead) + behind) as usize]
    }

    /// Its values on the device, positions behind and ahead.
    pub fn put(&self, device: &mut Device) -> (u64, u32, u32) {
        (device.put(&Type::F32.write(&self.values)), self.behind, self.ahead)
    }
}
