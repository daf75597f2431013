//! Buffers of the rows of distances (disentangled attention).

use crate::Result;
use crate::mem::{Buf, DeviceMem, Float, Mat};
use crate::params::Heads;
use crate::policy::{ModelSpec, RelativeTable};

/// Buffers of the rows of distances, and of what a block makes of them.
#[derive(Debug)]
pub struct RelativeScratch<M> {
    pub(super) spec: RelativeTable,
    /// Tokens of the longest text.
    pub(super) longest: usize,
    /// Rows of the table, the nearest first; then which of them every distance has.
    pub(super) words: Buf<M, u32>,
    /// Rows as they are stored `[rows, hidden]`.
    pub(super) stored: Mat<M>,
    /// Rows as blocks read them.
    pub(super) rows: Mat<M>,
    /// What a block makes of them `[rows, q | k | v]`.
    pub(super) qkv: Mat<M>,
    /// Its queries and keys, a row for every distance `[2 * longest - 1, q | k]`.
    pub(super) by_distance: Mat<M>,
}

impl<M: DeviceMem> RelativeScratch<M> {
    /// Buffers for texts of up to `tokens` rows; none for models without such a table.
    pub(super) fn new(
        spec: &ModelSpec,
        tokens: usize,
        dtype: Float,
        alloc: &mut dyn FnMut(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        let Some(table) = spec.embed.relative else { return Ok(None) };
        let longest = tokens.min(spec.max_positions).max(1);
        let (rows, distances) = (table.needed(longest), 2 * longest - 1);
        let most = |f: &dyn Fn(Heads) -> usize| spec.blocks.iter().map(|b| f(b.heads)).max().unwrap_or(0);
        let mut mat = |rows: usize, cols: usize| {
            let cols = cols.max(1);
            Mat::new(alloc(rows * cols * dtype.bytes())?, rows, cols, dtype)
        };
        let (stored, own) = (mat(rows, spec.hidden)?, mat(rows, spec.hidden)?);
        let qkv = mat(rows, most(&|heads| heads.qkv_cols()))?;
        let by_distance = mat(distances, most(&|heads| heads.q_cols() + heads.k_cols()))?;
        let words = table.rows() + distances;
        let words = Buf::new(alloc(4 * words)?, words)?;
        Ok(Some(Self { spec: table, longest, words, stored, rows: own, qkv, by_distance }))
    }

    /// What the words are from the first step on.
    pub(crate) fn first_words(&mut self) -> (Vec<u32>, &mut Buf<M, u32>) {
        let mut words = self.spec.nearest_first();
        words.extend(self.spec.by_distance(self.longest));
        (words, &mut self.words)
    }
}
