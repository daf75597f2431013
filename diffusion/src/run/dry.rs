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
use engraft_core::inject::{InjectionPlan, PlanRow};
use engraft_core::mem::{
    BufMut, BufRef, DryDevice, DryMem, DryWeight, Float, HostWeight, StepShape, WeightInfo,
};
use engraft_core::numerics::Numerics;
use engraft_core::ops::{Checked, Operand, Run, Signature};
use engraft_core::weights::Uses;
use engraft_core::{Error, Result};
use std::collections::BTreeSet;
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
    seen: Mutex<Seen>,
}

/// What ran so far.
#[derive(Default)]
struct Seen {
    /// The ops that read each operand.
    uses: Uses,
    rows: Vec<PlanRow>,
    parts: BTreeSet<String>,
    /// How many composed ops it is in.
    depth: usize,
}

impl Seen {
    /// An op as a row of the plan, or as a part of the composed one that it is in.
    fn note(&mut self, signature: Signature, weight: Option<&WeightInfo>, coverage: Coverage<String>) {
        let mut row = PlanRow::default();
        let name = signature.op.name();
        (row.op, row.slot) = (name, weight.map_or(name.into(), |info| info.name.clone()));
        if let Some(info) = weight {
            row.shape = Some([info.rows, info.cols]);
            row.format = Some(info.format.to_string());
            row.bytes = info.bytes();
        }
        match coverage {
            Coverage::Native(kernel) if self.depth > 0 => {
                self.parts.insert(kernel);
                return;
            }
            Coverage::Native(kernel) => row.kernel = Some(kernel),
            Coverage::Composed(reason) => row.composed = Some(reason),
            Coverage::Missing(reason) => row.missing = Some(reason),
        }
        if self.depth == 0 {
            self.rows.push(row);
        }
    }
}

/// How a model of pictures runs on a backend: a dry run of its own graph of ops, every op with the kernel
/// that the backend has for it, at any size of pictures.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// Ops in the order in which they run; nothing of keys, values and pages counts there.
    pub ops: InjectionPlan,
    /// Kernels of what composed ops consist of.
    pub parts: Vec<String>,
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
        let Dry { asked, class, seen } = &*self.0;
        let mut op = op.into_op();
        let signature = op.signature();
        let weight = op.operands().into_iter().find_map(|(_, operand)| match operand {
            Operand::Weight(weight) => Some(&weight.0),
            _ => None,
        });
        let weight = weight.filter(|_| signature.weight.is_some());
        let coverage = (asked.coverage)(&signature);
        if let Coverage::Missing(reason) = coverage {
            let place = weight.map_or_else(|| class.clone(), |info| format!("`{}` of {class}", info.name));
            return Err(asked.lacks(format!("{} in {} of {place}", signature.op, signature.x), reason));
        }
        let composed = matches!(coverage, Coverage::Composed(_));
        if let Some(info) = weight.filter(|_| !composed) {
            let name = info.name.clone();
            seen.lock().map_err(ended)?.uses.add(&name, signature);
        }
        seen.lock().map_err(ended)?.note(signature, weight, coverage);
        if composed {
            seen.lock().map_err(ended)?.depth += 1;
            Checked::new(op)?.compose(self)?;
            self.0.seen.lock().map_err(ended)?.depth -= 1;
        }
        Ok(())
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

/// Refuses graphs of a model that the backend has no kernels for, and gives the ops that read each operand,
/// and all of them.
///
/// # Errors
/// `Unsupported`, naming op, operand, model, backend and reason; what describing the operands raises.
pub(crate) fn check(
    asked: Asked,
    source: &dyn Source,
    tensors: &Tensors,
    (class, graphs): (&str, Vec<Graph>),
    dtype: Float,
) -> Result<(Uses, Plan)> {
    if !asked.caps.dtypes.contains(&dtype) {
        return Err(asked.lacks(format!("activations of {class} in {dtype}"), "the device has no such type"));
    }
    let mut ops = InjectionPlan::empty(class, &asked.name, dtype);
    let dry = Arc::new(Dry { asked, class: class.to_string(), seen: Mutex::default() });
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
    let mut seen = dry.seen.lock().map_err(ended)?;
    let Seen { uses, rows, parts, .. } = std::mem::take(&mut *seen);
    ops.rows = rows;
    Ok((uses, Plan { ops, parts: parts.into_iter().collect() }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::graph::{Builder, Grid, Picture};
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
        asked_by(move |signature| match signature.heads {
            Some(heads) if heads.k_dim > most => Coverage::Missing(format!("at most {most} columns")),
            _ => Coverage::Native("some".to_string()),
        })
    }

    fn asked_by(coverage: impl Fn(&Signature) -> Coverage<String> + Send + Sync + 'static) -> Asked {
        let caps = Caps {
            device: "none".into(),
            dtypes: vec![Float::F32, Float::F16],
            kv_formats: vec![Float::F32.into(), Float::F16.into()],
            graphs: false,
            asynchronous: false,
            memory_bytes: None,
            slab_bytes: None,
        };
        let numerics = Numerics { madd: Madd::Fused, mode: Mode::Reference };
        Asked { name: "test".into(), caps, numerics, coverage: Box::new(coverage) }
    }

    fn info(name: &str, shape: &[usize]) -> TensorInfo {
        TensorInfo { name: name.into(), shape: shape.to_vec(), stored: Stored::F16 }
    }

    fn checked(most: usize, dtype: Float) -> Result<Uses> {
        let source = Headers(vec![info("qkv.weight", &[24, 5])]);
        let mut tensors = Tensors::new("headers", source.tensors());
        let mut builder = Builder::new(&mut tensors, 2);
        let x = builder.input("x", 3, 5, false);
        let qkv = builder.linear(x, "qkv", None)?;
        let mixed = builder.attend(qkv, 1, "heads")?;
        let graph = builder.finish(&[mixed]);
        check(asked(most), &source, &tensors, ("Model", vec![graph]), dtype).map(|(uses, _)| uses)
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

    #[test]
    fn a_plan_has_every_op_and_apart_the_kernels_of_composed_ones() {
        let source = Headers(vec![info("conv.weight", &[6, 5, 3, 3]), info("to.weight", &[4, 6])]);
        let mut tensors = Tensors::new("headers", source.tensors());
        let mut builder = Builder::new(&mut tensors, 1);
        let (value, grid) = (builder.input("x", 4, 5, false), Grid { height: 2, width: 2 });
        let picture = builder.same(Picture { value, grid }, "conv", 3).unwrap();
        let out = builder.linear(picture.value, "to", None).unwrap();
        let graph = builder.finish(&[out]);
        let asked = asked_by(|signature| match signature.op.name() {
            "conv" => Coverage::Composed("of others".into()),
            other => Coverage::Native(format!("{other}_kernel")),
        });
        let (uses, plan) = check(asked, &source, &tensors, ("Model", vec![graph]), Float::F16).unwrap();
        assert!(uses.of("conv.weight").len() == 1 && uses.of("to.weight").len() == 1, "{uses:?}");
        let named = |slot: &str| plan.ops.rows.iter().filter(|row| row.slot == slot).collect::<Vec<_>>();
        let (convs, linears) = (named("conv.weight"), named("to.weight"));
        assert_eq!((convs.len(), linears.len()), (1, 1), "{plan:?}");
        let (conv, linear) = (convs[0], linears[0]);
        assert_eq!((conv.op, conv.composed.as_deref(), &conv.kernel), ("conv", Some("of others"), &None));
        assert_eq!((linear.op, linear.kernel.as_deref()), ("linear", Some("linear_kernel")));
        assert_eq!((linear.shape, linear.format.as_deref(), linear.bytes), (Some([4, 6]), Some("f16"), 48));
        assert!(plan.parts.iter().any(|part| part == "linear_kernel") && plan.parts.len() > 1, "{plan:?}");
        assert_eq!((plan.ops.arch.as_str(), plan.ops.backend.as_str()), ("Model", "test"));
    }
}
