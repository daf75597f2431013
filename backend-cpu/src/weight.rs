//! Prepared weights: packed panels, plain tables, vectors.

use crate::Cpu;
use crate::kernels::linear::{Layout, Packed};
use engraft_core::mem::{AT_ONCE, HostWeight, Release, Weight, WeightFormat, WeightInfo, WeightUse};
use engraft_core::{Error, Result, quant};
use std::borrow::Cow;
use std::sync::Arc;

/// A prepared weight.
#[derive(Debug)]
pub struct CpuWeight {
    info: WeightInfo,
    storage: Storage,
}

impl Weight for CpuWeight {
    fn info(&self) -> &WeightInfo {
        &self.info
    }
}

/// How a weight lies in memory; clones share it, so that captured steps keep it alive.
#[derive(Debug, Clone)]
pub(crate) enum Storage {
    /// Panels of 16 outputs: matmuls, and tied embeddings, whose rows are read back out of the panels.
    Panels(Arc<Packed>),
    /// The panels of every expert.
    Experts(Arc<[Packed]>),
    /// Rows as stored: embeddings.
    Table(Arc<Table>),
    /// f32 values: norms and biases.
    Vector(Arc<[f32]>),
}

/// Rows in a format's file layout.
#[derive(Debug)]
pub(crate) struct Table {
    pub rows: usize,
    pub cols: usize,
    format: WeightFormat,
    bytes: Vec<u8>,
}

impl Table {
    /// Row `row` as f32.
    pub fn row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        let size = self.bytes.len() / self.rows.max(1);
        quant::decode_rows(self.format, self.cols, &self.bytes[row * size..(row + 1) * size], out)
    }
}

impl CpuWeight {
    /// Where it lies.
    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The panels of a matmul's weight.
    pub(crate) fn panels(&self) -> Result<Arc<Packed>> {
        match &self.storage {
            Storage::Panels(packed) => Ok(packed.clone()),
            other => Err(wrong("a matmul's weight", other)),
        }
    }

    /// The panels of every expert.
    pub(crate) fn experts(&self) -> Result<Arc<[Packed]>> {
        match &self.storage {
            Storage::Experts(packed) => Ok(packed.clone()),
            other => Err(wrong("the weight of experts", other)),
        }
    }

    /// The values of a norm or bias.
    pub(crate) fn vector(&self) -> Result<Arc<[f32]>> {
        match &self.storage {
            Storage::Vector(values) => Ok(values.clone()),
            other => Err(wrong("a vector", other)),
        }
    }
}

fn wrong(wanted: &str, found: &Storage) -> Error {
    let found = match found {
        Storage::Panels(_) => "packed for a matmul",
        Storage::Experts(_) => "packed for experts",
        Storage::Table(_) => "packed as a table",
        Storage::Vector(_) => "packed as a vector",
    };
    Error::internal(format!("{wanted} was wanted, the weight is {found}"))
}

/// Packs a host weight for its use.
pub(crate) fn prepare(cpu: &Cpu, weight: HostWeight<'_>) -> Result<CpuWeight> {
    let release = weight.release();
    let (info, parts) = weight.into_parts();
    let parts = Parts { parts: &parts, release };
    let WeightInfo { rows, cols, format, used_for, .. } = info;
    let storage = match used_for {
        WeightUse::Vector => {
            let mut values = vec![0.0; rows * cols];
            quant::decode_rows(format, cols, &parts.parts.concat(), &mut values)?;
            Storage::Vector(values.into())
        }
        WeightUse::Embedding => {
            let mut bytes = Vec::with_capacity(format.bytes(rows, cols));
            parts.each(1, &mut |some| {
                bytes.extend_from_slice(some);
                Ok(())
            })?;
            Storage::Table(Arc::new(Table { rows, cols, format, bytes }))
        }
        WeightUse::Linear { grain, group } => panels(cpu, &info, (grain, group), Layout::Plain, parts)?,
        WeightUse::LinearShare { share } => {
            let packed = Packed::of_share(format, rows, share)?;
            filled(cpu, &info, packed, parts)?
        }
        WeightUse::Experts { count, grain } => {
            experts(cpu, &info, count, parts, &|each| Packed::new(format, each, cols, grain, Layout::Plain))?
        }
        WeightUse::ExpertsShare { count, share } => {
            experts(cpu, &info, count, parts, &|each| Packed::of_share(format, each, share))?
        }
        WeightUse::GatedLinear { grain } => panels(cpu, &info, (grain, 1), Layout::Gate, parts)?,
        WeightUse::EmbeddingAndLinear => panels(cpu, &info, (1, 1), Layout::Plain, parts)?,
    };
    tracing::trace!(name = info.name, rows, cols, %format, "prepared");
    Ok(CpuWeight { info, storage })
}

/// The bytes of a weight on their way into panels.
#[derive(Clone, Copy)]
struct Parts<'a> {
    parts: &'a [Cow<'a, [u8]>],
    release: Release<'a>,
}

impl Parts<'_> {
    /// Takes whole rows of so many bytes, some at a time, and lets them go.
    fn each(&self, row_bytes: usize, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        /// Rows at once, at least: enough panels for all threads.
        const ROWS: usize = 64;
        let most = (AT_ONCE / row_bytes).next_multiple_of(ROWS).max(ROWS) * row_bytes;
        for some in self.parts.iter().flat_map(|part| part.chunks(most)) {
            take(some)?;
            self.release.bytes(some);
        }
        Ok(())
    }
}

fn panels(
    cpu: &Cpu,
    info: &WeightInfo,
    (grain, group): (usize, usize),
    layout: Layout,
    parts: Parts<'_>,
) -> Result<Storage> {
    let WeightInfo { rows, cols, format, .. } = *info;
    filled(cpu, info, Packed::new(format, rows, cols, grain, layout)?.in_groups(grain, group), parts)
}

fn filled(cpu: &Cpu, info: &WeightInfo, mut packed: Packed, parts: Parts<'_>) -> Result<Storage> {
    let WeightInfo { rows, cols, format, .. } = *info;
    let row_bytes = format.bytes(1, cols).max(1);
    let mut row = 0;
    parts.each(row_bytes, &mut |some| {
        let count = some.len() / row_bytes;
        packed.fill_rows(&cpu.machine().pool, format, row..row + count, some)?;
        row += count;
        Ok(())
    })?;
    if row != rows {
        return Err(Error::Shape { op: "prepare_weight", what: "rows", got: row, want: rows });
    }
    Ok(Storage::Panels(Arc::new(packed)))
}

/// One set of panels per expert; a part may end anywhere.
fn experts(
    cpu: &Cpu,
    info: &WeightInfo,
    count: usize,
    parts: Parts<'_>,
    room: &dyn Fn(usize) -> Result<Packed>,
) -> Result<Storage> {
    let WeightInfo { rows, cols, format, .. } = *info;
    // `HostWeight` has seen to it that there are experts and that they share the rows evenly.
    let each = rows / count;
    let packed = (0..count).map(|_| room(each));
    let mut packed = packed.collect::<Result<Vec<Packed>>>()?;
    let row_bytes = format.bytes(1, cols).max(1);
    let mut row = 0;
    parts.each(row_bytes, &mut |some| {
        let mut rest = some;
        while rest.len() >= row_bytes && row < rows {
            let within = row % each;
            let now = (each - within).min(rest.len() / row_bytes);
            let (bytes, later) = rest.split_at(now * row_bytes);
            packed[row / each].fill_rows(&cpu.machine().pool, format, within..within + now, bytes)?;
            (row, rest) = (row + now, later);
        }
        Ok(())
    })?;
    if row != rows {
        return Err(Error::Shape { op: "prepare_weight", what: "rows", got: row, want: rows });
    }
    Ok(Storage::Experts(packed.into()))
}
