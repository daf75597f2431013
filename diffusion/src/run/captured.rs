//! Steps that are captured once and replayed from then on.
//!
//! A step runs the same ops at the same addresses as the one before. What differs between steps (sample,
//! times, residuals of a ControlNet) is copied into the graph's buffers before a replay; what a run begins
//! with (texts, masks, guidance, sizes) lies in buffers that steps only read. So a captured step depends on
//! two things: on the graph, which is made anew for other sizes, other numbers of pictures or texts and where
//! residuals are read, and on the operands, which differ between models and with a LoRA. It is held by the
//! graph that it is a step of, and knows its operands: those of another model are captured anew. As a model
//! keeps one graph, it keeps one captured step.
//!
//! Replay is safe because of who owns what: an [`Executable`] allocates its buffers once and never moves them,
//! and a captured step holds the operands.

use super::Executable;
use crate::load::{Loaded, Operands};
use engraft_core::Result;
use engraft_core::backend::{Backend, Stream};
use engraft_core::graph::Captured;
use std::sync::Arc;

/// What became of a model's steps so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Steps that were captured: the first one of every size, and of all else that steps depend on.
    pub captured: u64,
    /// Steps that were replayed, those just captured among them.
    pub replayed: u64,
    /// Steps that ran op by op.
    pub op_by_op: u64,
    /// Why a step could not be captured, the last one of them; such steps run op by op.
    pub refused: Option<String>,
}

impl StepCounts {
    /// Those of two models.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            captured: self.captured + other.captured,
            replayed: self.replayed + other.replayed,
            op_by_op: self.op_by_op + other.op_by_op,
            refused: self.refused.or(other.refused),
        }
    }
}

/// Whether a model captures its steps, and what became of them.
#[derive(Debug, Clone)]
pub(crate) struct Graphs {
    on: bool,
    /// Of steps so far.
    pub counts: StepCounts,
}

impl Graphs {
    /// On, where the backend can capture.
    pub fn of<B: Backend>(backend: &B) -> Self {
        Self { on: backend.caps().graphs, counts: StepCounts::default() }
    }

    /// On or off; never on where the backend cannot capture.
    pub fn set<B: Backend>(&mut self, backend: &B, on: bool) {
        self.on = on && backend.caps().graphs;
    }
}

/// A step captured with these operands.
pub(super) struct StepOf<B: Backend> {
    /// Goes before what it knows the addresses of.
    step: Captured<B>,
    operands: Operands<B>,
}

impl<B: Backend> StepOf<B> {
    /// One of these operands, not captured yet.
    fn new(operands: &Operands<B>) -> Self {
        Self { step: Captured::default(), operands: operands.clone() }
    }

    fn is_of(&self, operands: &Operands<B>) -> bool {
        Arc::ptr_eq(&self.operands, operands)
    }

    /// Captures `run` where that was not tried, and replays it; where it cannot be captured it runs op by op.
    ///
    /// # Safety
    /// All that `run` enqueues works on memory that lives at its address as long as this, and on the
    /// operands.
    unsafe fn step(
        &mut self,
        stream: &mut B::Stream,
        counts: &mut StepCounts,
        mut run: impl FnMut(&mut B::Stream) -> Result<()>,
    ) -> Result<()> {
        if self.step.is_untried() {
            self.step.keep(stream.capture(&mut run), || "a step of pictures".into())?;
            counts.captured += u64::from(self.step.is_captured());
            counts.refused = self.step.refused().map(String::from).or(counts.refused.take());
        }
        // SAFETY: the caller's promise; the operands are held.
        if unsafe { self.step.replay(stream)? } {
            counts.replayed += 1;
            return Ok(());
        }
        counts.op_by_op += 1;
        run(stream)
    }
}

impl<B: Backend> Executable<B> {
    /// Runs a step, by a captured one where `graphs` are on.
    ///
    /// # Errors
    /// What its ops raise; what cannot be captured is no error.
    pub fn step_by(&mut self, loaded: &Loaded<B>, graphs: &mut Graphs) -> Result<()> {
        let Self { captured, stream, nodes } = self;
        if !graphs.on {
            *captured = None;
            graphs.counts.op_by_op += 1;
            return nodes.step(stream, loaded);
        }
        let known = captured.take().filter(|step| step.is_of(loaded.operands()));
        let step = captured.insert(known.unwrap_or_else(|| StepOf::new(loaded.operands())));
        // SAFETY: nodes work on buffers of this executable, which are allocated once and go after the step,
        // and on operands of `loaded`.
        unsafe { step.step(stream, &mut graphs.counts, |stream| nodes.step(stream, loaded)) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::graph::{Builder, Tensors};
    use engraft_core::Error;
    use engraft_core::backend::block_on;
    use engraft_core::checkpoint::{Source, TensorInfo};
    use engraft_core::mem::{Buf, Float, Stored};
    use engraft_core::weights::Uses;
    use engraft_cpu::{Cpu, CpuConfig};
    use std::borrow::Cow;

    /// One matrix of a row.
    struct One {
        tensors: [TensorInfo; 1],
        bytes: Vec<u8>,
    }

    impl One {
        fn new(values: [f32; 2]) -> Self {
            let info = TensorInfo { name: "one.weight".into(), shape: vec![1, 2], stored: Stored::F32 };
            Self { tensors: [info], bytes: values.into_iter().flat_map(f32::to_le_bytes).collect() }
        }
    }

    impl Source for One {
        fn file(&self) -> &str {
            "one"
        }
        fn tensors(&self) -> &[TensorInfo] {
            &self.tensors
        }
        fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
            match name == self.tensors[0].name {
                true => Ok(Cow::Borrowed(&self.bytes)),
                false => Err(Error::tensor(name, "is not there")),
            }
        }
        fn release(&self, _: &str) {}
        fn total_bytes(&self) -> u64 {
            self.bytes.len() as u64
        }
    }

    fn cpu() -> Arc<Cpu> {
        Cpu::new(CpuConfig::default()).unwrap()
    }

    /// A graph of one matmul, and two models that have it.
    fn models(cpu: &Arc<Cpu>) -> (Executable<Cpu>, [Loaded<Cpu>; 2]) {
        let (one, other) = (One::new([1.0, 2.0]), One::new([3.0, 5.0]));
        let mut tensors = Tensors::new("one", one.tensors());
        let mut builder = Builder::new(&mut tensors, 1);
        let x = builder.input("x", 1, 2, false);
        let out = builder.linear(x, "one", None).unwrap();
        let graph = builder.finish(&[out]);
        let load = |source: &One| Loaded::new(cpu.clone(), source, &tensors, &Uses::default()).unwrap();
        let loaded = [load(&one), load(&other)];
        (Executable::new(&loaded[0], graph, Float::F32).unwrap(), loaded)
    }

    #[test]
    fn a_step_is_captured_once_for_each_models_operands() {
        let cpu = cpu();
        let (mut run, [one, other]) = models(&cpu);
        let mut graphs = Graphs::of(cpu.as_ref());
        let mut step = |loaded: &Loaded<Cpu>, x: [f32; 2], graphs: &mut Graphs| {
            run.give("x", &x).unwrap();
            run.step_by(loaded, graphs).unwrap();
            let StepCounts { captured, replayed, op_by_op, refused } = graphs.counts.clone();
            assert_eq!(refused, None);
            (block_on(run.read(0)).unwrap()[0], (captured, replayed, op_by_op))
        };
        assert_eq!(step(&one, [1.0, 1.0], &mut graphs), (3.0, (1, 1, 0)));
        assert_eq!(step(&one, [1.0, 2.0], &mut graphs), (5.0, (1, 2, 0)));
        assert_eq!(step(&other, [1.0, 1.0], &mut graphs), (8.0, (2, 3, 0)));
        assert_eq!(step(&one, [1.0, 0.0], &mut graphs), (1.0, (3, 4, 0)));
        graphs.set(cpu.as_ref(), false);
        assert_eq!(step(&one, [0.0, 1.0], &mut graphs), (2.0, (3, 4, 1)));
        graphs.set(cpu.as_ref(), true);
        assert_eq!(step(&one, [2.0, 0.0], &mut graphs), (2.0, (4, 5, 1)));
    }

    /// A step that copies from the host: it runs, and is said.
    #[test]
    fn what_cannot_be_captured_runs_op_by_op_and_is_said() {
        let cpu = cpu();
        let (_, [one, _]) = models(&cpu);
        let (mut stream, mut counts) = (cpu.stream().unwrap(), StepCounts::default());
        let mut words = Buf::new(cpu.alloc(4).unwrap(), 1).unwrap();
        let (mut step, mut tried) = (StepOf::<Cpu>::new(one.operands()), 0u32);
        for (steps, all) in [(1, 2), (2, 3)] {
            // SAFETY: nothing is captured.
            let ran = unsafe {
                step.step(&mut stream, &mut counts, |stream| {
                    tried += 1;
                    stream.upload(&[tried], words.view_mut())
                })
            };
            ran.unwrap();
            // The first time it is tried to be captured, too.
            assert_eq!((counts.captured, counts.replayed, counts.op_by_op, tried), (0, 0, steps, all));
            assert!(counts.refused.as_ref().is_some_and(|why| why.contains("captured region")), "{counts:?}");
            let mut read = [0u32];
            let ticket = stream.download(words.view()).unwrap();
            block_on(stream.collect(ticket, &mut read)).unwrap();
            assert_eq!(read, [all]);
        }
    }
}
