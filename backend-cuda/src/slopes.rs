//! Slopes of position biases on the device, one small buffer for each set that a model uses.

use crate::mem::{CudaMem, lock};
use engraft_core::Result;
use std::sync::{Arc, Mutex};

/// Sets kept at most. Models have a handful; a caller that never repeats itself must not fill memory.
/// Captured steps keep theirs.
const MOST: usize = 64;

/// The sets made so far.
#[derive(Debug, Default)]
pub(crate) struct Slopes(Mutex<Vec<(Arc<[f32]>, CudaMem)>>);

impl Slopes {
    /// A set's memory; `fill` makes it when it is first asked for.
    pub fn get(&self, slopes: &Arc<[f32]>, fill: impl FnOnce(&[f32]) -> Result<CudaMem>) -> Result<CudaMem> {
        let mut made = lock(&self.0);
        if let Some((_, mem)) = made.iter().find(|(s, _)| s == slopes) {
            return Ok(mem.share());
        }
        let mem = fill(slopes)?;
        if made.len() >= MOST {
            made.remove(0);
        }
        made.push((slopes.clone(), mem.share()));
        Ok(mem)
    }
}
