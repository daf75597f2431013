//! Matmuls: every format of weights, what follows a matmul, experts.

use super::class::{Built, Entry, Size, Work, rows_of, send};
use super::maker::Maker;
use engraft::engraft_core::backend::Backend;
use engraft::engraft_core::mem::{Block, GroupBits, Groups as Codes, WeightFormat, WeightUse};
use engraft::engraft_core::ops::{Combine, ExpertLinear, Groups, Linear, LinearOpKind, MoeOpKind, Route};
use engraft::engraft_core::params::{Act, Router, RouterScore};
use engraft::{Float, OpKind, Result};

/// What is multiplied.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    /// Rows of this type by a weight.
    Linear {
        many: bool,
        x: Float,
        format: WeightFormat,
    },
    Act,
    Gated,
    Added,
    Route,
    Experts,
    Combine,
}

/// What ops behind a matmul, and experts, multiply by.
const USUAL: WeightFormat = WeightFormat::Block(Block::Q8_0);

/// Formats that models are mostly in, and all others that have kernels.
fn formats() -> (Vec<WeightFormat>, Vec<WeightFormat>) {
    let plain = [Float::F32, Float::F16, Float::Bf16].map(WeightFormat::Plain);
    let usual = [Block::Q8_0, Block::Q4_0, Block::Q4K, Block::Q6K];
    let rest = Block::ALL.into_iter().filter(|block| !usual.contains(block));
    let integers = |bits, asymmetric| Codes { bits, size: if asymmetric { 32 } else { 0 }, asymmetric };
    let groups = [
        integers(GroupBits::Eight, false),
        integers(GroupBits::Eight, true),
        integers(GroupBits::Four, false),
        Codes::FINE,
        Codes::floats(GroupBits::E4m3, 0),
        Codes::floats(GroupBits::E5m2, 0),
        Codes::floats(GroupBits::E3m2, 0),
        Codes::floats(GroupBits::E2m1, 16),
        Codes::floats(GroupBits::Mx, 32),
        Codes::floats(GroupBits::Nf4, 64),
    ];
    let first = plain.into_iter().chain(usual.map(WeightFormat::Block)).chain([WeightFormat::W8A8]);
    (first.collect(), rest.map(WeightFormat::Block).chain(groups.map(WeightFormat::Group)).collect())
}

/// A matmul of one row, or of many.
fn linear(rank: u8, many: bool, x: Float, format: WeightFormat) -> Entry<Of> {
    let rows = if many { "many rows" } else { "one row" };
    let name = format!("linear, {format} weights, {x} activations, {rows}");
    Entry::new(rank, name, LinearOpKind::Linear, Of::Linear { many, x, format })
}

pub fn all() -> Vec<Entry<Of>> {
    let (usual, rest) = formats();
    let mut all: Vec<Entry<Of>> = usual.iter().map(|format| linear(0, false, Float::F32, *format)).collect();
    all.extend(usual.iter().map(|format| linear(0, true, Float::F32, *format)));
    for x in [Float::F16, Float::Bf16] {
        for format in [WeightFormat::Plain(x), USUAL, WeightFormat::Block(Block::Q4K)] {
            all.extend([false, true].map(|many| linear(1, many, x, format)));
        }
    }
    all.extend(rest.iter().map(|format| linear(2, false, Float::F32, *format)));
    let others: [(&str, OpKind, Of); 6] = [
        ("a matmul and an activation", LinearOpKind::LinearAct.into(), Of::Act),
        ("a matmul and a gate", LinearOpKind::GatedLinear.into(), Of::Gated),
        ("a matmul added to the residual stream", LinearOpKind::LinearAdd.into(), Of::Added),
        ("choice of experts", MoeOpKind::Route.into(), Of::Route),
        ("matmuls of experts", MoeOpKind::ExpertLinear.into(), Of::Experts),
        ("sum over experts", MoeOpKind::Combine.into(), Of::Combine),
    ];
    all.extend(others.map(|(name, op, of)| Entry::new(1, name, op, of)));
    all
}

pub fn build<B: Backend>(of: Of, maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    match of {
        Of::Linear { many, x, format } => plain(maker, size, many, x, format),
        Of::Act => act(maker, size),
        Of::Gated => gated(maker, size),
        Of::Added => added(maker, size),
        Of::Route => route(maker, size),
        Of::Experts => experts(maker, size),
        Of::Combine => combine(maker, size),
    }
}

/// Of `rows` rows: `[n, k]` is read, `k` columns are read and `n` written.
fn work(rows: usize, [n, k]: [usize; 2], format: WeightFormat, x: Float) -> (String, Work) {
    let bytes = format.bytes(n, k) + rows * (n + k) * x.bytes();
    (format!("{}, {k} to {n} columns", rows_of(rows)), Work::computes(bytes, 2 * rows * n * k))
}

fn plain<B: Backend>(
    maker: &mut Maker<'_, B>,
    size: Size,
    many: bool,
    x: Float,
    format: WeightFormat,
) -> Result<Built<B>> {
    let (k, n) = (size.width(), size.width());
    let rows = if many { size.pick([32, 128, 256]) } else { 1 };
    let weight = maker.weight(n, k, format, WeightUse::MATMUL)?;
    let (input, mut out) = (maker.mat(rows, k, x)?, maker.blank(rows, n, x)?);
    let (shape, work) = work(rows, [n, k], format, x);
    Ok(Built::new(shape, work, move |to| {
        send(to, Linear::new(input.view(rows)?, &weight, None, out.view_mut(rows)?))
    }))
}

fn act<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (k, n) = (size.width(), size.width());
    let weight = maker.weight(n, k, USUAL, WeightUse::MATMUL)?;
    let (input, mut out) = (maker.mat(1, k, Float::F32)?, maker.blank(1, n, Float::F32)?);
    let (shape, work) = work(1, [n, k], USUAL, Float::F32);
    Ok(Built::new(shape, work, move |to| {
        send(to, Linear::new(input.view(1)?, &weight, None, out.view_mut(1)?).act(Act::GeluTanh))
    }))
}

fn gated<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (k, n) = (size.width(), size.width());
    let weight = maker.weight(n, k, USUAL, WeightUse::GatedLinear { grain: 1 })?;
    let (input, mut out) = (maker.mat(1, k, Float::F32)?, maker.blank(1, n / 2, Float::F32)?);
    let mut scratch = maker.blank(1, n, Float::F32)?;
    let (shape, work) = work(1, [n, k], USUAL, Float::F32);
    Ok(Built::new(shape, work, move |to| {
        let linear = Linear::new(input.view(1)?, &weight, None, out.view_mut(1)?);
        send(to, linear.gate(Act::Silu, scratch.view_mut(1)?))
    }))
}

fn added<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (k, n) = (size.width(), size.width());
    let weight = maker.weight(n, k, USUAL, WeightUse::MATMUL)?;
    let (input, mut out) = (maker.mat(1, k, Float::F32)?, maker.blank(1, n, Float::F32)?);
    let mut scratch = maker.blank(1, n, Float::F32)?;
    let (shape, work) = work(1, [n, k], USUAL, Float::F32);
    Ok(Built::new(shape, work, move |to| {
        let linear = Linear::new(input.view(1)?, &weight, None, out.view_mut(1)?);
        send(to, linear.add_to(scratch.view_mut(1)?))
    }))
}

/// Experts, and how many a token has.
const EXPERTS: (usize, usize) = (8, 2);

fn route<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (tokens, experts, top_k) = (size.pick([16, 64, 256]), 64, 8);
    let slots = tokens * top_k;
    let logits = maker.mat(tokens, experts, Float::F32)?;
    let (mut chosen, mut groups) =
        (maker.words(&vec![0; slots])?, maker.words(&vec![0; experts + 1 + slots])?);
    let mut weights = maker.blank(tokens, top_k, Float::F32)?;
    let router = Router::new(experts, top_k, RouterScore::Softmax);
    let work = Work::moves(4 * (tokens * experts + 3 * slots + experts + 1));
    Ok(Built::new(format!("{}, {top_k} of {experts} experts", rows_of(tokens)), work, move |to| {
        let (experts, groups) = (chosen.view_mut(), groups.view_mut());
        let (logits, weights) = (logits.view(tokens)?, weights.view_mut(tokens)?);
        send(to, Route { logits, router, choice_bias: None, experts, weights, groups })
    }))
}

/// The experts of every slot, and the slots of every expert: see [`Route`].
fn choices(tokens: usize) -> (Vec<u32>, Vec<u32>) {
    let (count, top_k) = EXPERTS;
    let of_token = |token: usize| {
        let mut own: Vec<u32> = (0..top_k).map(|j| ((token + j * count / top_k) % count) as u32).collect();
        own.sort_unstable();
        own
    };
    let experts: Vec<u32> = (0..tokens).flat_map(of_token).collect();
    let (mut bounds, mut slots) = (vec![0], Vec::new());
    for expert in 0..count as u32 {
        slots.extend(experts.iter().zip(0..).filter(|(e, _)| **e == expert).map(|(_, slot): (_, u32)| slot));
        bounds.push(slots.len() as u32);
    }
    bounds.extend(slots);
    (experts, bounds)
}

fn experts<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let ((count, top_k), tokens, width) = (EXPERTS, 4, size.width() / 2);
    let (chosen, groups) = choices(tokens);
    let slots = tokens * top_k;
    let weight = maker.weight(count * width, width, USUAL, WeightUse::Experts { count, grain: 1 })?;
    let (input, mut out) = (maker.mat(tokens, width, Float::F32)?, maker.blank(slots, width, Float::F32)?);
    let (chosen, groups) = (maker.words(&chosen)?, maker.words(&groups)?);
    let bytes = USUAL.bytes(count * width, width) + 4 * width * (tokens + slots);
    let shape = format!("{}, {top_k} of {count} experts, {width} to {width} columns", rows_of(tokens));
    Ok(Built::new(shape, Work::computes(bytes, 2 * slots * width * width), move |to| {
        let groups = Groups { experts: chosen.view(), groups: groups.view(), count };
        let (x, out) = (input.view(tokens)?, out.view_mut(slots)?);
        send(to, ExpertLinear { x, weight: &weight, bias: None, groups, first: 0, out })
    }))
}

fn combine<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (tokens, top_k, cols) = (size.pick([4, 32, 128]), EXPERTS.1, size.width());
    let (y, weights) = (maker.mat(tokens * top_k, cols, Float::F32)?, maker.mat(tokens, top_k, Float::F32)?);
    let mut out = maker.blank(tokens, cols, Float::F32)?;
    let work = Work::moves(4 * tokens * (cols * (top_k + 1) + top_k));
    Ok(Built::new(format!("{}, {cols} columns", rows_of(tokens)), work, move |to| {
        let (y, weights, out) = (y.view(tokens * top_k)?, weights.view(tokens)?, out.view_mut(tokens)?);
        send(to, Combine::chain(y, weights, false, out))
    }))
}
