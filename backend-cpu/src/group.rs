//! Ranks on the CPU: exchanges are ops like any other, and are captured.

use crate::mem::Words;
use crate::{Cpu, CpuMem, CpuStream};
use engraft_core::Result;
use engraft_core::backend::{Board, Communicator};
use engraft_core::mem::MatMut;
use std::ops::Range;
use std::rc::Rc;

/// A rank whose board lies in host memory, as its operands do.
pub(crate) struct CpuGroup(Rc<dyn Board>);

impl CpuGroup {
    /// The rank whose place on the board this is.
    pub(crate) fn new(board: Box<dyn Board>) -> Self {
        Self(board.into())
    }
}

impl Communicator<Cpu> for CpuGroup {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn world(&self) -> usize {
        self.0.world()
    }
    fn all_reduce(&mut self, stream: &mut CpuStream, x: MatMut<'_, CpuMem>, adds: bool) -> Result<()> {
        let (board, x) = (self.0.clone(), Words::from(x.into_f32()?));
        // SAFETY: the stream runs one op at a time; the view was borrowed to write.
        stream.enqueue(move |_| board.all_reduce(unsafe { x.slice_mut() }, adds))
    }
    fn all_gather(
        &mut self,
        stream: &mut CpuStream,
        x: MatMut<'_, CpuMem>,
        columns: &[Range<usize>],
    ) -> Result<()> {
        let (board, cols, columns) = (self.0.clone(), x.cols(), columns.to_vec());
        let x = Words::from(x.into_f32()?);
        // SAFETY: as above.
        stream.enqueue(move |_| board.all_gather(unsafe { x.slice_mut() }, cols, &columns))
    }
}
