//! Rotation, pages of keys and values, attention over them and without them.

use super::class::{Built, Entry, Size, Work, rows_of, send};
use super::maker::{Maker, Step};
use engraft::engraft_core::backend::{Backend, Mem, Stream};
use engraft::engraft_core::mem::{Buf, KvLayout, Table};
use engraft::engraft_core::ops::{
    Attend, AttendDense, AttendDisentangled, AttentionOpKind, KvAppend, KvCopyPages, KvOpKind, KvRead,
    QkvRopeAppend, Rope, RopeOpKind, RopeView, Sequences,
};
use engraft::engraft_core::params::{Heads, RopeStyle, Scores};
use engraft::{Float, Result};

/// What is rotated, kept or attended to.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    Rope,
    QkvRopeAppend,
    Append,
    CopyPages,
    Read,
    /// One query or a whole prompt, activations, keys and values.
    Attend {
        prompt: bool,
        x: Float,
        kv: Float,
    },
    Dense,
    Disentangled,
}

pub fn all() -> Vec<Entry<Of>> {
    let attend = |rank, prompt, x: Float, kv: Float| {
        let queries = if prompt { "a prompt" } else { "one query" };
        let name = format!("attention over pages, {x} activations, {kv} keys and values, {queries}");
        Entry::new(rank, name, AttentionOpKind::Attend, Of::Attend { prompt, x, kv })
    };
    let mut all = vec![
        Entry::new(0, "rotation and append, fused", RopeOpKind::QkvRopeAppend, Of::QkvRopeAppend),
        Entry::new(1, "rotation", RopeOpKind::Rope, Of::Rope),
        Entry::new(1, "append of keys and values", KvOpKind::KvAppend, Of::Append),
        Entry::new(1, "copies of pages", KvOpKind::KvCopyPages, Of::CopyPages),
        Entry::new(1, "keys and values read back", KvOpKind::KvRead, Of::Read),
        Entry::new(1, "attention without pages", AttentionOpKind::AttendDense, Of::Dense),
        Entry::new(1, "disentangled attention", AttentionOpKind::AttendDisentangled, Of::Disentangled),
    ];
    for prompt in [false, true] {
        all.push(attend(0, prompt, Float::F32, Float::F32));
        all.push(attend(0, prompt, Float::F32, Float::F16));
        all.push(attend(1, prompt, Float::F16, Float::F16));
    }
    all
}

pub fn build<B: Backend>(of: Of, maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    match of {
        Of::Rope => rope(maker, size),
        Of::QkvRopeAppend => qkv_rope_append(maker, size),
        Of::Append => append(maker, size),
        Of::CopyPages => copy_pages(maker, size),
        Of::Read => read(maker, size),
        Of::Attend { prompt, x, kv } => attend(maker, size, prompt, (x, kv)),
        Of::Dense => dense(maker, size),
        Of::Disentangled => disentangled(maker, size),
    }
}

/// Positions of a page.
const PAGE: usize = 16;

fn heads(size: Size) -> Heads {
    let (heads, kv_heads, dim) = (size.pick([8, 16, 32]), size.pick([2, 4, 8]), size.pick([64, 128, 128]));
    Heads { heads, kv_heads, k_dim: dim, v_dim: dim }
}

fn tokens(size: Size) -> usize {
    size.pick([16, 64, 256])
}

/// Pages for so many positions.
fn layout(heads: Heads, positions: usize, dtype: Float) -> KvLayout {
    let Heads { kv_heads, k_dim, v_dim, .. } = heads;
    KvLayout {
        pages: positions.div_ceil(PAGE),
        page_size: PAGE,
        kv_heads,
        k_dim,
        v_dim,
        format: dtype.into(),
    }
}

/// A page table of one sequence.
fn pages<B: Backend>(maker: &mut Maker<'_, B>, layout: KvLayout) -> Result<Buf<Mem<B>, u32>> {
    maker.words(&(0..layout.pages as u32).collect::<Vec<_>>())
}

/// Cosines and sines of `pairs` pairs at so many positions.
fn angles(positions: usize, pairs: usize) -> Vec<f32> {
    let angle = |i: usize| (i / pairs) as f32 * 0.5f32.powi((i % pairs) as i32);
    let all = 0..positions * pairs;
    all.clone().map(|i| angle(i).cos()).chain(all.map(|i| angle(i).sin())).collect()
}

fn said(heads: Heads, what: &str) -> String {
    format!("{what}, {} heads of {} columns, {} of keys", heads.heads, heads.k_dim, heads.kv_heads)
}

fn rope<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (tokens, heads) = (tokens(size), heads(size));
    let (width, pairs) = (heads.k_dim, heads.k_dim / 2);
    let mut x = maker.mat(tokens, heads.q_cols(), Float::F32)?;
    let table = maker.floats(&angles(tokens, pairs))?;
    let step = maker.step(tokens, tokens)?;
    let work = Work::moves(8 * tokens * heads.q_cols());
    Ok(Built::new(said(heads, &rows_of(tokens)), work, move |to| {
        let rope = RopeView { table: table.view(), positions: tokens, pairs, style: RopeStyle::Half };
        send(to, Rope { x: x.view_mut(tokens)?, width, positions: step.view()?.positions, rope })
    }))
}

fn qkv_rope_append<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (tokens, heads) = (tokens(size), heads(size));
    let pairs = heads.k_dim / 2;
    let mut qkv = maker.mat(tokens, heads.qkv_cols(), Float::F32)?;
    let mut slab = maker.slab(layout(heads, tokens, Float::F16))?;
    let table = maker.floats(&angles(tokens, pairs))?;
    let step = maker.step(tokens, tokens)?;
    let appended = heads.k_cols() + heads.v_cols();
    let turned = heads.q_cols() + heads.k_cols();
    let work = Work::moves(tokens * (8 * turned + 4 * heads.v_cols() + 2 * appended));
    Ok(Built::new(said(heads, &rows_of(tokens)), work, move |to| {
        let (view, kv) = (step.view()?, slab.view_mut());
        let rope = Some(RopeView { table: table.view(), positions: tokens, pairs, style: RopeStyle::Half });
        let (positions, slots, qkv) = (view.positions, view.slots, qkv.view_mut(tokens)?);
        send(to, QkvRopeAppend { qkv, heads, q_norm: None, k_norm: None, rope, positions, slots, kv })
    }))
}

fn append<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (tokens, heads) = (tokens(size), heads(size));
    let (k, v) =
        (maker.mat(tokens, heads.k_cols(), Float::F32)?, maker.mat(tokens, heads.v_cols(), Float::F32)?);
    let (mut slab, step) = (maker.slab(layout(heads, tokens, Float::F16))?, maker.step(tokens, tokens)?);
    let work = Work::moves(6 * tokens * (heads.k_cols() + heads.v_cols()));
    Ok(Built::new(said(heads, &rows_of(tokens)), work, move |to| {
        let (slots, kv) = (step.view()?.slots, slab.view_mut());
        send(to, KvAppend { k: k.view(tokens)?, v: v.view(tokens)?, slots, kv })
    }))
}

fn copy_pages<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (heads, copies) = (heads(size), size.pick([2, 8, 32]));
    let mut slab = maker.slab(layout(heads, 2 * copies * PAGE, Float::F16))?;
    let pairs: Vec<u32> = (0..copies as u32).flat_map(|page| [page, page + copies as u32]).collect();
    let pairs = maker.words(&pairs)?;
    let work = Work::moves(4 * copies * PAGE * (heads.k_cols() + heads.v_cols()));
    Ok(Built::new(said(heads, &format!("{copies} pages of {PAGE}")), work, move |to| {
        send(to, KvCopyPages { pairs: pairs.view(), kv: slab.view_mut() })
    }))
}

fn read<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (tokens, heads) = (tokens(size), heads(size));
    let layout = layout(heads, tokens, Float::F16);
    let (slab, table) = (maker.slab(layout)?, pages(maker, layout)?);
    let (mut k, mut v) =
        (maker.blank(tokens, heads.k_cols(), Float::F16)?, maker.blank(tokens, heads.v_cols(), Float::F16)?);
    let work = Work::moves(4 * tokens * (heads.k_cols() + heads.v_cols()));
    Ok(Built::new(said(heads, &rows_of(tokens)), work, move |to| {
        let table = Table { pages: table.view(), stride: layout.pages };
        let (k, v) = (k.view_mut(tokens)?, v.view_mut(tokens)?);
        send(to, KvRead { kv: slab.view(), table, row: 0, k, v })
    }))
}

/// Queries and keys of a size.
fn lengths(size: Size, prompt: bool) -> (usize, usize) {
    match prompt {
        true => (size.pick([64, 256, 512]), size.pick([64, 256, 512])),
        false => (1, size.pick([128, 1024, 4096])),
    }
}

/// Operations of queries that see the keys up to their own.
fn operations(heads: Heads, queries: usize, keys: usize) -> usize {
    let seen = queries * (keys - queries) + queries * (queries + 1) / 2;
    2 * heads.heads * (heads.k_dim + heads.v_dim) * seen
}

fn attend<B: Backend>(
    maker: &mut Maker<'_, B>,
    size: Size,
    prompt: bool,
    (dtype, kv): (Float, Float),
) -> Result<Built<B>> {
    let (heads, (queries, keys)) = (heads(size), lengths(size, prompt));
    let layout = layout(heads, keys, kv);
    let step: Step<Mem<B>> = maker.step(queries, keys)?;
    let mut plan = maker.backend.attention_plan(step.shape)?;
    maker.stream.plan_attention(step.shape, &mut plan)?;
    let (q, mut out) =
        (maker.mat(queries, heads.q_cols(), dtype)?, maker.blank(queries, heads.out_cols(), dtype)?);
    let (slab, table) = (maker.slab(layout)?, pages(maker, layout)?);
    let scores = Scores::causal(1.0 / (heads.k_dim as f64).sqrt());
    let bytes = keys * (heads.k_cols() + heads.v_cols()) * kv.bytes()
        + queries * (heads.q_cols() + heads.out_cols()) * dtype.bytes();
    let work = Work::computes(bytes, operations(heads, queries, keys));
    let shape = said(heads, &format!("{queries} queries, {keys} keys"));
    Ok(Built::new(shape, work, move |to| {
        let (plan, scores, seqs) = (&plan, &scores, Sequences::from(step.view()?));
        let table = Table { pages: table.view(), stride: layout.pages };
        let (q, kv, out) = (q.view(queries)?, slab.view(), out.view_mut(queries)?);
        send(to, Attend { plan, q, kv, heads, scores, sinks: None, bias: None, seqs, table, out })
    }))
}

fn dense<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, heads) = (size.pick([64, 256, 512]), heads(size));
    let q = maker.mat(rows, heads.q_cols(), Float::F32)?;
    let (k, v) = (maker.mat(rows, heads.k_cols(), Float::F32)?, maker.mat(rows, heads.v_cols(), Float::F32)?);
    let (mut out, bounds) =
        (maker.blank(rows, heads.out_cols(), Float::F32)?, maker.words(&[0, rows as u32])?);
    let scores = Scores { causal: false, ..Scores::causal(1.0 / (heads.k_dim as f64).sqrt()) };
    let bytes = 4 * rows * (heads.qkv_cols() + heads.out_cols());
    let work = Work::computes(bytes, 2 * heads.heads * (heads.k_dim + heads.v_dim) * rows * rows);
    Ok(Built::new(said(heads, &rows_of(rows)), work, move |to| {
        let (q, k, v, out) = (q.view(rows)?, k.view(rows)?, v.view(rows)?, out.view_mut(rows)?);
        let (bounds, scores) = (bounds.view(), &scores);
        send(to, AttendDense { q, k, v, bounds, max_rows: rows, heads, scores, sinks: None, bias: None, out })
    }))
}

fn disentangled<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (rows, count) = (size.pick([64, 256, 512]), size.pick([8, 12, 12]));
    let heads = Heads { heads: count, kv_heads: count, k_dim: 64, v_dim: 64 };
    let cols = heads.q_cols();
    let distances = 2 * rows - 1;
    let mut mat = |rows: usize| maker.mat(rows, cols, Float::F32);
    let (q, k, v, of_q, of_k) = (mat(rows)?, mat(rows)?, mat(rows)?, mat(distances)?, mat(distances)?);
    let (mut out, bounds) = (maker.blank(rows, cols, Float::F32)?, maker.words(&[0, rows as u32])?);
    let scores = Scores { causal: false, ..Scores::causal(1.0 / (3.0 * heads.k_dim as f64).sqrt()) };
    let bytes = 4 * cols * (4 * rows + 2 * distances);
    // Three chains of a score, one of its value.
    let work = Work::computes(bytes, 2 * count * (3 * heads.k_dim + heads.v_dim) * rows * rows);
    Ok(Built::new(said(heads, &rows_of(rows)), work, move |to| {
        let (q, k, v, out) = (q.view(rows)?, k.view(rows)?, v.view(rows)?, out.view_mut(rows)?);
        let (distance_q, distance_k) = (Some(of_q.view(distances)?), Some(of_k.view(distances)?));
        let (bounds, scores, max_rows) = (bounds.view(), &scores, rows);
        send(to, AttendDisentangled { q, k, v, distance_q, distance_k, bounds, max_rows, heads, scores, out })
    }))
}
