//! Ops of few models: an index of keys, and what pictures have besides.

use super::class::{Built, Entry, Size, Work, rows_of, send};
use super::maker::Maker;
use engraft::engraft_core::backend::Backend;
use engraft::engraft_core::mem::{NO_ROW, Table, WeightFormat, WeightUse};
use engraft::engraft_core::ops::{
    Conv, GroupedConv, IndexChoose, IndexOpKind, IndexScores, LinearAttend, PictureOpKind, Sequences,
};
use engraft::{Float, Result};

/// What is computed.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    IndexScores,
    IndexChoose,
    Conv,
    GroupedConv,
    LinearAttend,
}

pub fn all() -> Vec<Entry<Of>> {
    vec![
        Entry::new(1, "scores of an index of keys", IndexOpKind::IndexScores, Of::IndexScores),
        Entry::new(1, "choice of keys", IndexOpKind::IndexChoose, Of::IndexChoose),
        Entry::new(1, "convolution", PictureOpKind::Conv, Of::Conv),
        Entry::new(1, "depthwise convolution", PictureOpKind::GroupedConv, Of::GroupedConv),
        Entry::new(1, "linear attention", PictureOpKind::LinearAttend, Of::LinearAttend),
    ]
}

pub fn build<B: Backend>(of: Of, maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    match of {
        Of::IndexScores => index_scores(maker, size),
        Of::IndexChoose => index_choose(maker, size),
        Of::Conv => conv(maker, size),
        Of::GroupedConv => grouped_conv(maker, size),
        Of::LinearAttend => linear_attend(maker, size),
    }
}

/// Positions of a page, and queries of a step.
const PAGE: usize = 16;
const QUERIES: usize = 4;

/// Keys, and how many of them a query chooses.
fn keys(size: Size) -> (usize, usize) {
    (size.pick([256, 1024, 4096]), size.pick([64, 256, 1024]))
}

fn index_scores<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let ((keys, count), heads, width) = (keys(size), size.pick([4, 16, 64]), 128);
    let (stride, scale) = (keys / PAGE, 0.088);
    let (q, factors) =
        (maker.mat(QUERIES, heads * width, Float::F32)?, maker.mat(QUERIES, heads, Float::F32)?);
    let (low, high) = (maker.mat(keys, width / 2, Float::F32)?, maker.mat(keys, width / 2, Float::F32)?);
    let (step, pages) = (maker.step(QUERIES, keys)?, maker.words(&(0..stride as u32).collect::<Vec<_>>())?);
    let mut out = maker.blank(QUERIES, keys, Float::F32)?;
    let bytes = 4 * (keys * width + QUERIES * (heads * (width + 1) + keys));
    let work = Work::computes(bytes, 2 * QUERIES * keys * heads * (width + 1));
    let shape = format!("{QUERIES} queries, {keys} keys, {heads} heads of {width} columns");
    Ok(Built::new(shape, work, move |to| {
        let (q, factors) = (q.view(QUERIES)?, factors.view(QUERIES)?);
        let (low, high) = (low.view(keys)?, high.view(keys)?);
        let (seqs, table) = (Sequences::from(step.view()?), Table { pages: pages.view(), stride });
        let (page_size, first, out) = (PAGE, 0, out.view_mut(QUERIES)?);
        send(
            to,
            IndexScores { q, factors, low, high, heads, scale, seqs, table, page_size, first, count, out },
        )
    }))
}

fn index_choose<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let ((keys, count), page_size) = (keys(size), PAGE);
    let stride = keys / PAGE;
    let scores = maker.mat(QUERIES, keys, Float::F32)?;
    let (step, pages) = (maker.step(QUERIES, keys)?, maker.words(&(0..stride as u32).collect::<Vec<_>>())?);
    let (mut chosen, mut counts) = (maker.words(&vec![0; QUERIES * count])?, maker.words(&[0; QUERIES])?);
    let work = Work::moves(4 * QUERIES * (keys + count + 1));
    Ok(Built::new(format!("{QUERIES} queries, {count} of {keys} keys"), work, move |to| {
        let (seqs, table) = (Sequences::from(step.view()?), Table { pages: pages.view(), stride });
        let (scores, chosen, counts) = (scores.view(QUERIES)?, chosen.view_mut(), counts.view_mut());
        send(to, IndexChoose { scores, seqs, table, page_size, first: 0, count, chosen, counts })
    }))
}

/// A square's rows that each of its points reads, 3 x 3, nothing outside.
fn neighbours(side: usize) -> Vec<u32> {
    let mut rows = Vec::with_capacity(9 * side * side);
    for (y, x) in (0..side).flat_map(|y| (0..side).map(move |x| (y, x))) {
        for (dy, dx) in (0..3).flat_map(|dy| (0..3).map(move |dx| (dy, dx))) {
            let (y, x) = ((y + dy).wrapping_sub(1), (x + dx).wrapping_sub(1));
            rows.push(if y < side && x < side { (y * side + x) as u32 } else { NO_ROW });
        }
    }
    rows
}

fn conv<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (side, cols, taps) = (size.pick([8, 16, 32]), size.pick([32, 128, 320]), 9);
    let (count, window) = (side * side, taps * cols);
    let (x, rows) = (maker.mat(count, cols, Float::F32)?, maker.words(&neighbours(side))?);
    let weight = maker.weight(cols, window, WeightFormat::Plain(Float::F32), WeightUse::MATMUL)?;
    let (mut scratch, mut out) =
        (maker.blank(count, window, Float::F32)?, maker.blank(count, cols, Float::F32)?);
    let work =
        Work::computes(4 * (2 * count * cols + window * cols + taps * count), 2 * count * cols * window);
    Ok(Built::new(format!("{side} x {side}, {cols} to {cols} channels, 3 x 3"), work, move |to| {
        let (x, rows, weight) = (x.view(count)?, rows.view(), &weight);
        let (scratch, out) = (scratch.view_mut(count)?, out.view_mut(count)?);
        send(to, Conv { x, rows, taps, weight, bias: None, act: None, scratch, out })
    }))
}

fn grouped_conv<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (side, cols, taps) = (size.pick([8, 16, 32]), size.pick([64, 256, 512]), 9);
    let count = side * side;
    let (x, rows) = (maker.mat(count, cols, Float::F32)?, maker.words(&neighbours(side))?);
    let (weight, mut out) = (maker.vector(taps * cols)?, maker.blank(count, cols, Float::F32)?);
    let work = Work::computes(4 * (2 * count * cols + taps * (cols + count)), 2 * count * cols * taps);
    Ok(Built::new(format!("{side} x {side}, {cols} channels, 3 x 3"), work, move |to| {
        let (x, rows, out) = (x.view(count)?, rows.view(), out.view_mut(count)?);
        let (inputs, outputs) = (1, 1);
        send(to, GroupedConv { x, rows, taps, inputs, outputs, weight: &weight, bias: None, out })
    }))
}

fn linear_attend<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, heads, width) = (size.pick([64, 256, 1024]), size.pick([4, 16, 32]), 32);
    let cols = heads * width;
    let q = maker.mat(rows, cols, Float::F32)?;
    let (k, v) = (maker.mat(rows, cols, Float::F32)?, maker.mat(rows, cols, Float::F32)?);
    let (mut sums, mut out) =
        (maker.blank(cols, width + 1, Float::F32)?, maker.blank(rows, cols, Float::F32)?);
    let bounds = maker.words(&[0, rows as u32])?;
    let work = Work::computes(4 * cols * (4 * rows + width + 1), 4 * rows * cols * (width + 1));
    let shape = format!("{}, {heads} heads of {width} columns", rows_of(rows));
    Ok(Built::new(shape, work, move |to| {
        let (q, k, v, bounds) = (q.view(rows)?, k.view(rows)?, v.view(rows)?, bounds.view());
        let (max_rows, step, eps) = (rows, width, 1e-15);
        let (sums, out) = (sums.view_mut(cols)?, out.view_mut(rows)?);
        send(to, LinearAttend { q, k, v, bounds, max_rows, heads, width, step, eps, sums, out })
    }))
}
