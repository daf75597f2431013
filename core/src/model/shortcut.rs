//! Sums of experts that join the residual stream a block later: at the end of the next one.
//!
//! Which block's end is known while ops are enqueued, so recorded steps hold it. A block of a user's own may
//! leave out the one that would add the sum, or the one that makes it.

use super::Exec;
use crate::mem::{Device, DeviceMem, Float, Mat};
use crate::ops::Add;
use crate::policy::{BlockSpec, Join, ModelSpec, Placement};
use crate::{Error, Result};

/// The sum that waits for the end of a block.
#[derive(Debug)]
pub struct ShortcutScratch<M> {
    /// `[tokens, hidden]`.
    pub(super) sum: Mat<M>,
    /// The block at whose end it is added; none where nothing waits.
    pub(super) end_of: Option<usize>,
}

/// Whether the block's experts join at the end of the next one.
pub(super) fn leaves_sum(block: &BlockSpec) -> bool {
    block.moe.is_some_and(|moe| moe.join == Join::NextBlock)
}

/// Refuses a description with such a block where nothing would add its sum, or two would be in one buffer.
fn check(spec: &ModelSpec) -> Result<()> {
    let of_group = |i: usize| spec.group.as_ref().and_then(|group| group.blocks.get(i));
    for (i, block) in spec.blocks.iter().enumerate().filter(|(_, block)| leaves_sum(block)) {
        let dense = of_group(i).map_or(block.mlp.inner > 0, |group| group.dense);
        let plain = block.moe.is_some_and(|moe| moe.apart.is_none());
        let added = spec.blocks.get(i + 1).is_some_and(|next| !leaves_sum(next));
        if spec.placement != Placement::Pre || !dense || !plain || !added {
            let allowed =
                "a dense part next to them, norms before the parts, and a next block that adds their sum";
            return Err(Error::config(format!("experts of block {i}"), "joined a block later", allowed));
        }
    }
    Ok(())
}

impl<M: DeviceMem> ShortcutScratch<M> {
    /// Room for steps of up to `tokens` rows; none for models without such blocks.
    pub(super) fn new(
        spec: &ModelSpec,
        tokens: usize,
        dtype: Float,
        alloc: &mut impl FnMut(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        check(spec)?;
        if !spec.blocks.iter().any(leaves_sum) {
            return Ok(None);
        }
        let (rows, cols) = (tokens.max(1), spec.hidden);
        let sum = Mat::new(alloc(rows * cols * dtype.bytes())?, rows, cols, dtype)?;
        Ok(Some(Self { sum, end_of: None }))
    }

    /// Adds to the residual stream what waits for the end of block `layer`, if anything does.
    pub(super) fn add<D: Device<Mem = M>>(
        &mut self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        layer: usize,
        residual: &mut Mat<M>,
    ) -> Result<()> {
        if self.end_of != Some(layer) {
            return Ok(());
        }
        self.end_of = None;
        x.run(Add { acc: residual.view_mut(tokens)?, x: self.sum.view(tokens)? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem::DryMem;
    use crate::model::tests::{block, decoder};
    use crate::params::{Router, RouterScore};
    use crate::policy::MoeSpec;

    /// Two blocks, of which the first one's experts join at the end of the second.
    fn model() -> ModelSpec {
        let mut sparse = block();
        let moe = MoeSpec::new(Router::new(4, 2, RouterScore::Softmax), 8);
        sparse.moe = Some(MoeSpec { join: Join::NextBlock, identities: 1, ..moe });
        decoder(vec![sparse, block()])
    }

    fn room(spec: &ModelSpec) -> Result<Option<ShortcutScratch<DryMem>>> {
        ShortcutScratch::new(spec, 3, Float::F32, &mut |bytes: usize| Ok(DryMem(bytes)))
    }

    #[test]
    fn a_sum_that_no_block_would_add_is_refused() {
        let sum = room(&model()).unwrap().unwrap().sum;
        assert_eq!((sum.rows(), sum.cols()), (3, 16));
        let mut plain = model();
        plain.blocks.remove(0);
        assert!(room(&plain).unwrap().is_none());
        let changes: [fn(&mut ModelSpec); 4] = [
            |spec| spec.blocks.truncate(1),
            |spec| spec.blocks[1] = spec.blocks[0].clone(),
            |spec| spec.blocks[0].mlp.inner = 0,
            |spec| spec.placement = Placement::Parallel,
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let mut spec = model();
            change(&mut spec);
            let error = room(&spec).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("experts of block 0"), "change {i}: {error}");
        }
    }
}
