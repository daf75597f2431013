//! What kernels have printed and the host has not yet taken, as the device's buffer for `printf` holds it.

use std::collections::VecDeque;

use super::Memory;

/// A circular buffer of whole calls: a new one takes the place of the oldest.
#[derive(Debug, Default)]
pub(super) struct Printed {
    calls: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Printed {
    fn add(&mut self, call: Vec<u8>, most: usize) {
        self.bytes += call.len();
        self.calls.push_back(call);
        while self.bytes > most
            && let Some(oldest) = self.calls.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }
}

impl Memory {
    /// Adds what a call has printed to a buffer of so many bytes.
    pub(crate) fn print(&mut self, call: Vec<u8>, most: usize) {
        self.printed.add(call, most);
    }

    /// What kernels have printed since it was last taken, call by call in the order they came. Where it is
    /// more than [`Options::print_bytes`](crate::Options::print_bytes), the oldest calls are gone, as on a
    /// GPU. It is there after a fault too.
    pub fn take_printed(&mut self) -> Vec<u8> {
        let Printed { calls, .. } = std::mem::take(&mut self.printed);
        calls.into_iter().flatten().collect()
    }
}
