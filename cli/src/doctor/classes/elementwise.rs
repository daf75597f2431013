//! Norms, and what runs element by element.

use super::class::{Built, Entry, Size, Work, rows_of, send};
use super::maker::Maker;
use engraft::engraft_core::backend::{Backend, Weight};
use engraft::engraft_core::ops::{
    Activate, Add, AddNorm, Convert, ElementwiseOpKind, Gate, GaussianTopk, GroupNorm, HeadNorm, Limit,
    MatchRms, Modulate, Norm, NormOpKind, NormWeights, Scale, Xielu,
};
use engraft::engraft_core::params::{Act, NormKind};
use engraft::{Float, Result};

/// What is computed.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    /// Rows of this type.
    Norm(Float),
    AddNorm,
    HeadNorm,
    GroupNorm,
    GaussianTopk,
    MatchRms,
    Add,
    Activate,
    Xielu,
    Gate,
    Modulate,
    Limit,
    Scale,
    Convert,
}

pub fn all() -> Vec<Entry<Of>> {
    use ElementwiseOpKind as E;
    use NormOpKind as N;
    vec![
        Entry::new(0, "norm, f32", N::Norm, Of::Norm(Float::F32)),
        Entry::new(1, "norm, f16", N::Norm, Of::Norm(Float::F16)),
        Entry::new(0, "a sum with the residual stream and its norm", N::AddNorm, Of::AddNorm),
        Entry::new(1, "norm of heads", N::HeadNorm, Of::HeadNorm),
        Entry::new(1, "norm of groups of columns", N::GroupNorm, Of::GroupNorm),
        Entry::new(1, "cutoff by a row's deviation", N::GaussianTopk, Of::GaussianTopk),
        Entry::new(1, "rows at the size of others", N::MatchRms, Of::MatchRms),
        Entry::new(1, "sum", E::Add, Of::Add),
        Entry::new(1, "activation, sigmoid", E::Activate, Of::Activate),
        Entry::new(1, "xielu", E::Xielu, Of::Xielu),
        Entry::new(0, "gate", E::Gate, Of::Gate),
        Entry::new(1, "modulation", E::Modulate, Of::Modulate),
        Entry::new(1, "limit", E::Limit, Of::Limit),
        Entry::new(1, "scale", E::Scale, Of::Scale),
        Entry::new(1, "conversion of f32 to f16", E::Convert, Of::Convert),
    ]
}

/// Rows of an op: as many as a prompt has.
fn rows(size: Size) -> usize {
    size.pick([16, 64, 256])
}

/// Columns of a head.
const HEAD: usize = 128;

pub fn build<B: Backend>(of: Of, maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    match of {
        Of::Norm(dtype) => norm(maker, size, dtype),
        Of::AddNorm => add_norm(maker, size),
        Of::HeadNorm => head_norm(maker, size),
        Of::GroupNorm => group_norm(maker, size),
        Of::GaussianTopk => gaussian_topk(maker, size),
        Of::MatchRms => match_rms(maker, size),
        Of::Gate => gate(maker, size),
        Of::Modulate => modulate(maker, size),
        Of::Convert => convert(maker, size),
        Of::Add => add(maker, size),
        Of::Activate | Of::Xielu | Of::Limit | Of::Scale => in_place(of, maker, size),
    }
}

/// Sizes for people, and the bytes of so many matrices of `[rows, cols]`.
fn moved(rows: usize, cols: usize, matrices: usize, dtype: Float) -> (String, Work) {
    (format!("{}, {cols} columns", rows_of(rows)), Work::moves(matrices * rows * cols * dtype.bytes()))
}

fn rms<B: Backend>(weight: &Weight<B>) -> NormWeights<'_, B::Device> {
    NormWeights { kind: NormKind::Rms, eps: 1e-5, weight: Some(weight), bias: None, plus_one: false }
}

fn norm<B: Backend>(maker: &mut Maker<'_, B>, size: Size, dtype: Float) -> Result<Built<B>> {
    let (rows, cols) = (rows(size), size.width());
    let (x, weight) = (maker.mat(rows, cols, dtype)?, maker.vector(cols)?);
    let mut out = maker.blank(rows, cols, dtype)?;
    let (shape, work) = moved(rows, cols, 2, dtype);
    Ok(Built::new(shape, work, move |to| {
        send(to, Norm { x: x.view(rows)?, norm: rms::<B>(&weight), out: out.view_mut(rows)? })
    }))
}

fn add_norm<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, cols) = (rows(size), size.width());
    let (x, weight) = (maker.blank(rows, cols, Float::F32)?, maker.vector(cols)?);
    let (mut residual, mut out) = (maker.mat(rows, cols, Float::F32)?, maker.blank(rows, cols, Float::F32)?);
    let (shape, work) = moved(rows, cols, 4, Float::F32);
    Ok(Built::new(shape, work, move |to| {
        let (residual, out) = (residual.view_mut(rows)?, out.view_mut(rows)?);
        send(to, AddNorm { residual, x: x.view(rows)?, norm: rms::<B>(&weight), out })
    }))
}

fn head_norm<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, cols) = (rows(size), size.width());
    let (mut x, weight) = (maker.mat(rows, cols, Float::F32)?, maker.vector(HEAD)?);
    let (shape, work) = moved(rows, cols, 2, Float::F32);
    Ok(Built::new(shape, work, move |to| {
        send(to, HeadNorm { x: x.view_mut(rows)?, width: HEAD, norm: rms::<B>(&weight) })
    }))
}

fn group_norm<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, cols) = (rows(size), size.width() / 4);
    let (x, weight) = (maker.mat(rows, cols, Float::F32)?, maker.vector(cols)?);
    let mut out = maker.blank(rows, cols, Float::F32)?;
    let (shape, work) = moved(rows, cols, 2, Float::F32);
    Ok(Built::new(shape, work, move |to| {
        let norm = NormWeights { kind: NormKind::Layer, ..rms::<B>(&weight) };
        send(to, GroupNorm { x: x.view(rows)?, groups: 32, norm, out: out.view_mut(rows)? })
    }))
}

fn gaussian_topk<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, cols) = (rows(size), size.width());
    let mut x = maker.mat(rows, cols, Float::F32)?;
    let (shape, work) = moved(rows, cols, 2, Float::F32);
    // Below the mean, so that some values stay however often it runs.
    Ok(Built::new(shape, work, move |to| send(to, GaussianTopk { x: x.view_mut(rows)?, deviations: -4.0 })))
}

fn match_rms<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, cols) = (rows(size), size.width());
    let (mut x, like) = (maker.mat(rows, cols, Float::F32)?, maker.mat(rows, cols, Float::F32)?);
    let (shape, work) = moved(rows, cols, 3, Float::F32);
    Ok(Built::new(shape, work, move |to| {
        send(to, MatchRms { x: x.view_mut(rows)?, like: like.view(rows)?, floor: 1e-5 })
    }))
}

fn add<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, cols) = (rows(size), size.width());
    let (x, mut acc) = (maker.blank(rows, cols, Float::F32)?, maker.mat(rows, cols, Float::F32)?);
    let (shape, work) = moved(rows, cols, 3, Float::F32);
    Ok(Built::new(shape, work, move |to| send(to, Add { acc: acc.view_mut(rows)?, x: x.view(rows)? })))
}

/// Ops of one matrix, which run on what they wrote: none leads to numbers that are slow for being tiny.
fn in_place<B: Backend>(of: Of, maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, cols) = (rows(size), size.width());
    let (mut x, constants) = (maker.mat(rows, cols, Float::F32)?, maker.vector(4)?);
    let (shape, work) = moved(rows, cols, 2, Float::F32);
    Ok(Built::new(shape, work, move |to| {
        let x = x.view_mut(rows)?;
        match of {
            Of::Xielu => send(to, Xielu { x, constants: &constants }),
            Of::Limit => send(to, Limit { x, limit: 1.0 }),
            Of::Scale => send(to, Scale { x, factor: 1.0, cap: Some(30.0) }),
            _ => send(to, Activate { x, act: Act::Sigmoid }),
        }
    }))
}

fn gate<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, inner) = (rows(size), size.width());
    let (gate_up, mut out) = (maker.mat(rows, 2 * inner, Float::F32)?, maker.blank(rows, inner, Float::F32)?);
    let (shape, work) = moved(rows, inner, 3, Float::F32);
    Ok(Built::new(shape, work, move |to| {
        let (gate_up, out) = (gate_up.view(rows)?, out.view_mut(rows)?);
        send(to, Gate { gate_up, act: Act::Silu, clamp: None, out })
    }))
}

fn modulate<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, cols) = (rows(size), size.width());
    let (mut x, scale) = (maker.mat(rows, cols, Float::F32)?, maker.mat(1, cols, Float::F32)?);
    let (shift, of_rows) = (maker.mat(1, cols, Float::F32)?, maker.words(&vec![0; rows])?);
    let (shape, work) = moved(rows, cols, 2, Float::F32);
    Ok(Built::new(shape, work, move |to| {
        let (x, scale, shift) = (x.view_mut(rows)?, scale.view(1)?, Some(shift.view(1)?));
        send(to, Modulate { x, scale, shift, rows: of_rows.view(), plus_one: false })
    }))
}

fn convert<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, cols) = (rows(size), size.width());
    let (x, mut out) = (maker.mat(rows, cols, Float::F32)?, maker.blank(rows, cols, Float::F16)?);
    let (shape, Work { bytes, .. }) = moved(rows, cols, 1, Float::F32);
    Ok(Built::new(shape, Work::moves(bytes + bytes / 2), move |to| {
        send(to, Convert { x: x.view(rows)?, bias: None, out: out.view_mut(rows)? })
    }))
}
