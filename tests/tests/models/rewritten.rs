//! Goldens rewritten into another format: names, row orders, fusions. Used by the tests of formats that have
//! no golden.

use conformance::golden::Case;
use engraft_core::checkpoint::{Access, ModelFiles, TokenizerFiles, open, open_bytes};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, Engine, ForwardWant, Forwarded, Pick};
use engraft_core::inject::inject;
use engraft_core::mem::Float;
use engraft_core::policy::{HeadSpec, Rank, Registry};
use engraft_core::quant::plain;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A matrix or vector, row by row.
#[derive(Clone)]
pub struct Tensor {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Elements.
    pub values: Vec<f32>,
}

/// By name.
pub type Tensors = BTreeMap<String, Tensor>;

impl Tensor {
    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Rows (of a vector: elements) in another order.
    pub fn ordered(&self, order: &[usize]) -> Tensor {
        let cols = self.cols();
        let values = order.iter().flat_map(|r| self.values[r * cols..(r + 1) * cols].to_vec()).collect();
        Tensor { shape: [&[order.len()], &self.shape[1..]].concat(), values }
    }

    /// Columns as rows.
    pub fn transposed(&self) -> Tensor {
        let (rows, cols) = (self.shape[0], self.shape[1]);
        let values = (0..rows * cols).map(|i| self.values[i % rows * cols + i / rows]).collect();
        Tensor { shape: vec![cols, rows], values }
    }
}

/// Rows one below the other.
pub fn below(parts: &[&Tensor]) -> Tensor {
    let rows = parts.iter().map(|p| p.shape[0]).sum();
    let values = parts.iter().flat_map(|p| p.values.clone()).collect();
    Tensor { shape: [&[rows], &parts[0].shape[1..]].concat(), values }
}

/// A golden, its weights widened.
pub fn golden(name: &str) -> (Case, Value, Tensors) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    let files = open(&dir, Access::Read).unwrap();
    let tensor = |info: &engraft_core::checkpoint::TensorInfo| {
        let bytes = files.source.bytes(&info.name).unwrap();
        let mut values = vec![0.0; info.elements()];
        plain::to_f32(info.stored, &bytes, &mut values).unwrap();
        (info.name.clone(), Tensor { shape: info.shape.clone(), values })
    };
    let tensors = files.source.tensors().iter().map(tensor).collect();
    (Case::read(&dir).unwrap(), files.config.clone(), tensors)
}

/// The logits of every prompt of `case` by a model made of these tensors.
pub fn logits(case: &Case, config: &Value, tensors: &Tensors) -> Vec<Vec<f32>> {
    run(case, &files_of(config, tensors))
}

/// The same by so many ranks, whole experts of which so many groups share; in `dtype`.
pub fn logits_of_ranks(
    case: &Case,
    config: &Value,
    tensors: &Tensors,
    (world, ep): (usize, Option<usize>),
    dtype: Float,
) -> Vec<Vec<f32>> {
    let files = files_of(config, tensors);
    let load = move |Rank { index: rank, world }: Rank| {
        let options = LoadOptions { rank, world, ep, dtype: Some(dtype), ..LoadOptions::default() };
        let backend = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() })?;
        let model = inject(&backend, &files, &Registry::default(), 64, options, &mut |_, _| {})?;
        Ok((backend, model))
    };
    let config = EngineConfig { max_context: 64, logit_rows: Some(usize::MAX), ..EngineConfig::default() };
    let config = EngineConfig { dtype, kv_dtype: dtype.into(), ..config };
    all_logits(case, engraft_ranks::spawn(world, config, Arc::new(load)).unwrap())
}

/// A model in memory.
pub fn files_of(config: &Value, tensors: &Tensors) -> ModelFiles {
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(n, t)| (n.clone(), t.shape.clone(), t.values.iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let views = bytes.iter().map(|(n, s, b)| (n, TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
    let file = serialize(views, None).unwrap();
    let tokenizer = TokenizerFiles::from_bytes(None, None, None).unwrap();
    let config = serde_json::to_vec(config).unwrap();
    open_bytes(&config, None, Cow::Owned(file), tokenizer).unwrap()
}

/// The logits of every prompt of `case` by the model in `files`.
pub fn run(case: &Case, files: &ModelFiles) -> Vec<Vec<f32>> {
    run_loaded(case, files, LoadOptions::default())
}

/// The same, loaded with these options.
pub fn run_loaded(case: &Case, files: &ModelFiles, options: LoadOptions) -> Vec<Vec<f32>> {
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    let model = inject(&backend, files, &Registry::default(), 64, options, &mut |_, _| {}).unwrap();
    let engine = EngineConfig { max_context: 64, logit_rows: Some(usize::MAX), ..EngineConfig::default() };
    all_logits(case, Engine::new(backend, model, engine).unwrap())
}

/// Rows of all tokens: logits, or, without a head, what the last block gives.
fn all_logits(case: &Case, mut engine: Engine<Cpu>) -> Vec<Vec<f32>> {
    let ids: Vec<Vec<u32>> = case.prompts.iter().map(|p| p.ids.clone()).collect();
    let headless = matches!(engine.model().spec.head, HeadSpec::None);
    let (logits, hidden) = if headless { (Pick::None, Pick::All) } else { (Pick::All, Pick::None) };
    let rows = engine.forward(Batch::Ragged(&ids), &ForwardWant { logits, hidden }).unwrap();
    let of =
        |f: Forwarded| if headless { f.hidden.into_iter().next_back().unwrap_or_default() } else { f.logits };
    rows.into_iter().map(of).collect()
}

/// What a golden has for those rows.
fn rows_of(case: &Case) -> &conformance::golden::Tensor {
    let layers = case.tensors.keys().filter(|name| name.starts_with("hidden_states.")).count();
    let last = format!("hidden_states.{}", layers.saturating_sub(1));
    case.tensors.get("logits").unwrap_or_else(|| &case.tensors[&last])
}

/// Compares with the golden's logits, column by column divided by `divisors` where there are any.
pub fn same(what: &str, case: &Case, got: &[Vec<f32>], divisors: Option<&[f64]>) {
    let want = rows_of(case);
    let scale = want.values.iter().fold(1f64, |m, v| m.max(f64::from(*v).abs()));
    for (rows, got) in case.rows().into_iter().zip(got) {
        for (i, (got, want)) in got.iter().zip(want.rows(rows)).enumerate() {
            let by = divisors.map_or(1.0, |d| d[i % want_cols(case)]);
            let off = (f64::from(*got) - f64::from(*want) / by).abs();
            assert!(off <= 2e-5 * scale, "{what}: logit {i} is off by {off}");
        }
    }
}

/// Columns of the logits.
pub fn want_cols(case: &Case) -> usize {
    rows_of(case).cols()
}

/// A golden with its name.
pub struct Named {
    /// Its folder.
    pub name: &'static str,
    /// Prompts and what the reference says.
    pub case: Case,
}
