//! tmp naive
use crate::Cpu;
use engraft_core::backend::{HostWeight, WeightUse};
use engraft_core::mem::WeightFormat;
use engraft_core::{Result, quant};
use std::sync::Arc;

/// A prepared weight.
#[derive(Debug, Clone)]
pub struct CpuWeight(pub(crate) Arc<Naive>);

#[derive(Debug)]
pub(crate) struct Naive { pub rows: usize, pub cols: usize, pub grain: usize, pub w: Vec<f32> }

pub(crate) fn prepare(_cpu: &Cpu, weight: HostWeight<'_>) -> Result<CpuWeight> {
    let mut w = vec![0.0; weight.rows * weight.cols];
    let all = weight.parts.concat();
    match weight.format {
        WeightFormat::Plain(d) => quant::plain::to_f32(d.into(), &all, &mut w)?,
        WeightFormat::Block(b) => quant::block::decode(b, &all, &mut w),
        _ => {}
    }
    let grain = match weight.used_for { WeightUse::Linear { grain } => grain, _ => 1 };
    Ok(CpuWeight(Arc::new(Naive { rows: weight.rows, cols: weight.cols, grain, w })))
}
