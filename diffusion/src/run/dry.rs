//! Whether a backend can run a graph, asked before a weight is read: the graph's own nodes run on a device
//! without memory, and every op that comes out is looked at and not run.
//!
//! Kernels depend on columns and element types, never on how many rows there are: the answer for a small
//! picture holds for all.

use super::Executable;
use crate::graph::{Graph, Tensors};
use crate::load::{Loaded, described};
use engraft_core::backend::{Backend, Board, Caps, Communicator, Coverage, Stream};
use engraft_core::checkpoint::Source;
use engraft_core::mem::{BufMut, BufRef, DryDevice, DryMem, DryWeight, Float, HostWeight, StepShape};
use engraft_core::numerics::Numerics;
use engraft_core::ops::{Checked, Operand, Run, Signature};
use engraft_core::weights::Uses;
use engraft_core::{Error, Result};
use std::sync::{Arc, Mutex};

/// How an op of this signature would run.
type Answer = dyn Fn(&Signature) -> Coverage<String> + Send + Sync;

/// A backend that is asked and not used.
pub(crate) struct Asked {
    name: String,
    caps: Caps,
    numerics: Numerics,
    /// Whether it has a kernel of its own, or why it lacks one: one that is composed of others is none.
    coverage: Box<Answer>,
}

impl Asked {
    /// This one.
    pub fn of<B: Backend>(backend: &Arc<B>) -> Self {
        let (name, caps, numerics) = (backend.name().to_string(), backend.caps().clone(), backend.numerics());
        let backend = backend.clone();
        let coverage = move |signature: &Signature| match backend.coverage(signature) {
            Coverage::Native(kernel) => Coverage::Native(kernel.to_string()),
            Coverage::Composed(reason) => Coverage::Composed(reason),
            Coverage::Missing(reason) => Coverage::Missing(reason),
        };
        Self { name, caps, numerics, coverage: Box::new(coverage) }
    }

    fn lacks(&self, op: String, reason: impl Into<String>) -> Error {
        Error::Unsupported { op, backend: self.name.clone(), reason: reason.into() }
    }
}

/// What stands in for it.
struct Dry {
    asked: Asked,
    /// The model, for messages.
    class: String,
    /// The ops that read each operand.
    uses: Mutex<Uses>,
}

/// Its stream.
struct DryStream(Arc<Dry>);

fn not_here<T>() -> Result<T> {
    Err(Error::internal("a dry run has no values"))
}

fn ended<E>(_: E) -> Error {
    Error::internal("a dry run that has ended")
}

impl Backend for Dry {
    type Device = DryDevice;
    type Kernel = String;
    type Graph = ();
    type Stream = DryStream;

    fn name(&self) -> &str {
        &self.asked.name
    }
    fn caps(&self) -> &Caps {
        &self.asked.caps
    }
    fn numerics(&self) -> Numerics {
        self.asked.numerics
    }
    fn alloc(&self, bytes: usize) -> Result<DryMem> {
        Ok(DryMem(bytes))
    }
    fn stream(self: &Arc<Self>) -> Result<DryStream> {
        Ok(DryStream(self.clone()))
    }
    fn group(self: &Arc<Self>, _: Box<dyn Board>) -> Result<Box<dyn Communicator<Self>>> {
        not_here()
    }
    fn prepare_weight(&self, _: HostWeight<'_>, _: &[Signature]) -> Result<DryWeight> {
        not_here()
    }
    fn attention_plan(&self, _: StepShape) -> Result<()> {
        Ok(())
    }
    fn coverage(&self, signature: &Signature) -> Coverage<String> {
        (self.asked.coverage)(signature)
    }
}

impl Run<DryDevice> for DryStream {
    fn run(&mut self, op: Checked<'_, DryDevice>) -> Result<()> {
        let Dry { asked, class, uses } = &*self.0;
        let mut op = op.into_op();
        let signature = op.signature();
        let weight = op.operands().into_iter().find_map(|(_, operand)| match operand {
            Operand::Weight(weight) => Some(weight.0.name.clone()),
            _ => None,
        });
        let weight = weight.filter(|_| signature.weight.is_some());
        match ((asked.coverage)(&signature), weight) {
            (Coverage::Missing(reason), weight) => {
                let place = weight.map_or_else(|| class.clone(), |name| format!("`{name}` of {class}"));
                Err(asked.lacks(format!("{} in {} of {place}", signature.op, signature.x), reason))
            }
            (Coverage::Composed(_), _) => Checked::new(op)?.compose(self),
            (Coverage::Native(_), Some(name)) => {
                uses.lock().map_err(ended)?.add(&name, signature);
                Ok(())
            }
            (Coverage::Native(_), None) => Ok(()),
        }
    }
}

impl Stream<Dry> for DryStream {
    type Event = ();
    type Ticket = ();

    fn upload<T: bytemuck::Pod>(&mut self, _: &[T], _: BufMut<'_, DryMem, T>) -> Result<()> {
        Ok(())
    }
    fn download<T: bytemuck::Pod>(&mut self, _: BufRef<'_, DryMem, T>) -> Result<()> {
        Ok(())
    }
    async fn collect<T: bytemuck::Pod>(&mut self, (): (), _: &mut [T]) -> Result<()> {
        Ok(())
    }
    fn plan_attention(&mut self, _: StepShape, (): &mut ()) -> Result<()> {
        Ok(())
    }
    fn submit(&mut self) -> Result<()> {
        Ok(())
    }
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
    fn record(&mut self) -> Result<()> {
        Ok(())
    }
    fn elapsed_us(&mut self, (): &(), (): &()) -> Result<f64> {
        Ok(0.0)
    }
    fn begin_capture(&mut self) -> Result<()> {
        not_here()
    }
    fn end_capture(&mut self) -> Result<()> {
        not_here()
    }
    unsafe fn replay(&mut self, (): &()) -> Result<()> {
        not_here()
    }
}

/// Refuses graphs of a model that the backend has no kernels for, and gives the ops that read each operand.
///
/// # Errors
/// `Unsupported`, naming op, operand, model, backend and reason; what describing the operands raises.
pub(crate) fn check(
    asked: Asked,
    source: &dyn Source,
    tensors: &Tensors,
    (class, graphs): (&str, Vec<Graph>),
    dtype: Float,
) -> Result<Uses> {
    if !asked.caps.dtypes.contains(&dtype) {
        return Err(asked.lacks(format!("activations of {class} in {dtype}"), "the device has no such type"));
    }
    let dry = Arc::new(Dry { asked, class: class.to_string(), uses: Mutex::default() });
    let operands = described(source, tensors)?.into_iter().map(DryWeight);
    let loaded = Loaded::of(dry.clone(), operands.collect());
    for graph in graphs {
        let inputs = graph.inputs.iter().map(|(name, value)| (*name, graph.size(*value).elements()));
        let inputs: Vec<(&'static str, usize)> = inputs.collect();
        let mut run = Executable::new(&loaded, graph, dtype)?;
        run.mask_texts(None)?;
        inputs.into_iter().try_for_each(|(name, elements)| run.give(name, &vec![0.0; elements]))?;
        run.prepare(&loaded)?;
        run.step(&loaded)?;
    }
    let uses = dry.uses.lock().map_err(ended)?;
    Ok(uses.clone())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::graph::Builder;
    use engraft_core::checkpoint::TensorInfo;
    use engraft_core::mem::Stored;
    use engraft_core::numerics::{Madd, Mode};
    use std::borrow::Cow;

    /// Tensors that must not be read.
    struct Headers(Vec<TensorInfo>);

    impl Source for Headers {
        fn file(&self) -> &str {
            "headers"
        }
        fn tensors(&self) -> &[TensorInfo] {
            &self.0
        }
        fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
            Err(Error::tensor(name, "is read"))
        }
        fn release(&self, _: &str) {}
        fn total_bytes(&self) -> u64 {
            0
        }
    }

    /// A backend that lacks attention beyond so many columns of a head.
    fn asked(most: usize) -> Asked {
        let coverage = move |signature: &Signature| match signature.heads {
            Some(heads) if heads.k_dim > most => Coverage::Missing(format!("at most {most} columns")),
            _ => Coverage::Native("some".to_string()),
        };
        let caps = Caps {
            device: "none".into(),
            dtypes: vec![Float::F32],
            graphs: false,
            asynchronous: false,
            memory_bytes: None,
            slab_bytes: None,
        };
        let numerics = Numerics { madd: Madd::Fused, mode: Mode::Reference };
        Asked { name: "test".into(), caps, numerics, coverage: Box::new(coverage) }
    }

    fn checked(most: usize, dtype: Float) -> Result<Uses> {
        let info = |name: &str, shape: &[usize]| TensorInfo {
            name: name.into(),
            shape: shape.to_vec(),
            stored: Stored::F16,
        };
        let source = Headers(vec![info("qkv.weight", &[24, 5])]);
        let mut tensors = Tensors::new("headers", source.tensors());
        let mut builder = Builder::new(&mut tensors, 2);
        let x = builder.input("x", 3, 5, false);
        let qkv = builder.linear(x, "qkv", None)?;
        let mixed = builder.attend(qkv, 1, "heads")?;
        let graph = builder.finish(&[mixed]);
        check(asked(most), &source, &tensors, ("Model", vec![graph]), dtype)
    }

    #[test]
    fn what_a_backend_lacks_is_named_before_a_weight_is_read() {
        let uses = checked(8, Float::F32).unwrap();
        let [one] = uses.of("qkv.weight") else { panic!("{uses:?}") };
        assert_eq!((one.inner, one.outer), (5, 24));
        let error = checked(7, Float::F32).unwrap_err().to_string();
        for part in ["attend_dense", "Model", "test", "at most 7 columns"] {
            assert!(error.contains(part), "{error}");
        }
        let error = checked(8, Float::Bf16).unwrap_err().to_string();
        assert!(error.contains("Model in bf16") && error.contains("no such type"), "{error}");
    }
}
