//! Steps of a graph, by a captured one where there is one.

use super::Executable;
use super::captured::{Graphs, StepOf};
use crate::load::Loaded;
use engraft_core::Result;
use engraft_core::backend::Backend;

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
    use super::super::captured::StepCounts;
    use super::*;
    use crate::graph::{Builder, Tensors};
    use engraft_core::Error;
    use engraft_core::backend::{Stream, block_on};
    use engraft_core::checkpoint::{Source, TensorInfo};
    use engraft_core::mem::{Buf, Float, Stored};
    use engraft_core::weights::Uses;
    use engraft_cpu::{Cpu, CpuConfig};
    use std::borrow::Cow;
    use std::sync::Arc;

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
