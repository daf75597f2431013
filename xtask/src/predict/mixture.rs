//! The launches of a decode step of a model of experts: routing, the matmuls of those that are chosen, and
//! latent attention where it has that.
//!
//! Which experts are chosen is known on the device alone. Here a step reads as many as it is expected to
//! ([`share_read`]), and slots fall evenly on them.

use super::attended::Heads;
use super::build::{Builder, ELEM, Matmul, view};
use super::expected::share_read;
use super::operands::{Arena, Outcome};
use super::step::{Axis, Item, Shape, Step};
use engraft_kernels::params::elementwise::{Add, Convert, Gate};
use engraft_kernels::params::gemm::{Gemm, Sum, Then};
use engraft_kernels::params::grouped::Grouped;
use engraft_kernels::params::moe::{Combine, Group, Route};
use engraft_kernels::params::{Activation, Elem, Format, MatView};
use std::collections::BTreeMap;

/// The sizes of a model of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mixture {
    /// What it has in common with others; `inner` is that of blocks without experts.
    pub shape: Shape,
    /// Columns of a head, where attention is not latent.
    pub width: usize,
    /// Latent attention.
    pub latent: Option<Latent>,
    /// Positions that queries of every other block see; none: all.
    pub window: Option<usize>,
    /// Whether matmuls have biases and attention has scores without a key; gates are within limits, then.
    pub biases: bool,
    /// Blocks without experts, which come first.
    pub dense: usize,
    /// Experts of a block.
    pub experts: usize,
    /// Of them, those of a token.
    pub top_k: usize,
    /// Columns of an expert.
    pub inner: usize,
    /// Columns of the dense part next to experts; 0: none.
    pub shared: usize,
    /// How experts' weights are stored; all others are bf16.
    pub format: Format,
}

/// What latent attention keeps of a position, and what heads make of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    /// Columns of the row that is kept.
    pub rank: usize,
    /// Columns that rotate, which all heads share.
    pub rotated: usize,
    /// Columns of a query that do not.
    pub plain: usize,
    /// Columns of a value.
    pub value: usize,
    /// Columns between the two matmuls of queries; none: there is one.
    pub query_rank: Option<usize>,
}

/// The published shapes that have a name: gpt-oss-20b as published in MXFP4, DeepSeek-V2-Lite in bf16.
pub const MIXTURES: [Mixture; 2] = [
    Mixture {
        shape: Shape {
            name: "gpt-oss-20b",
            hidden: 2880,
            layers: 24,
            heads: 64,
            kv_heads: 8,
            inner: 0,
            vocab: 201_088,
            tied: false,
        },
        width: 64,
        latent: None,
        window: Some(128),
        biases: true,
        dense: 0,
        experts: 32,
        top_k: 4,
        inner: 2880,
        shared: 0,
        format: Format::Q5_0,
    },
    Mixture {
        shape: Shape {
            name: "deepseek-v2-lite",
            hidden: 2048,
            layers: 27,
            heads: 16,
            kv_heads: 1,
            inner: 10_944,
            vocab: 102_400,
            tied: false,
        },
        width: 0,
        latent: Some(Latent { rank: 512, rotated: 64, plain: 128, value: 128, query_rank: None }),
        window: None,
        biases: false,
        dense: 1,
        experts: 64,
        top_k: 6,
        inner: 1408,
        shared: 2816,
        format: Format::Bf16,
    },
];

impl Mixture {
    /// Experts of a block that a step of so many tokens is expected to read, at least those of one token.
    pub fn distinct(&self, tokens: usize) -> usize {
        let share = share_read(self.top_k as f64 / self.experts as f64, tokens);
        ((share * self.experts as f64).round() as usize).clamp(self.top_k, self.experts)
    }

    fn heads(&self, window: Option<usize>) -> Heads {
        let (Shape { heads, kv_heads, .. }, width) = (self.shape, self.width);
        let plain = Heads {
            heads,
            kv_heads,
            k_dim: width,
            v_dim: width,
            rotated: width,
            interleaved: false,
            window,
            sinks: self.biases,
        };
        match self.latent {
            Some(Latent { rank, rotated, .. }) => {
                Heads { k_dim: rank + rotated, v_dim: rank, rotated, interleaved: true, ..plain }
            }
            None => plain,
        }
    }

    /// Values of all weights.
    pub fn weights(&self) -> usize {
        let Shape { hidden, layers, heads, inner, vocab, .. } = self.shape;
        let attention = match self.latent {
            Some(Latent { rank, rotated, plain, value, query_rank }) => {
                let queries = heads * (plain + rotated);
                let queries = query_rank.map_or(hidden * queries, |low| low * (hidden + queries));
                queries + hidden * (rank + rotated) + heads * (rank * (plain + value) + value * hidden)
            }
            None => hidden * (self.heads(None).qkv_cols() + heads * self.width),
        };
        let (with, columns) = (layers - self.dense, self.experts * self.inner + self.shared);
        2 * vocab * hidden + layers * attention + 3 * hidden * (self.dense * inner + with * columns)
    }

    /// Columns of keys and values of a position, all blocks.
    pub fn kept_cols(&self) -> usize {
        self.shape.layers * self.heads(None).kept_cols()
    }

    fn weight(&self) -> Matmul {
        let (format, then) = ((Format::Bf16, 0), Then::Nothing);
        Matmul { format, then, out_elem: ELEM, bias: self.biases, ranks: 1 }
    }
}

/// The launches of a decode step; `step.shape` is the model's.
///
/// # Errors
/// Operands without room, sizes that no kernel takes.
pub fn launches(step: Step, m: &Mixture, arena: &mut Arena) -> Outcome<Vec<Item>> {
    let mut b = Builder { step, arena, items: Vec::new() };
    let Shape { hidden, inner, layers, .. } = m.shape;
    let (residual, normed, partial) = (b.rows(hidden)?, b.rows(hidden)?, b.rows(hidden)?);
    b.inputs(residual)?;
    b.norm("norm", 1, residual, None, normed)?;
    match m.latent {
        Some(latent) => b.latent(m, latent, normed, partial)?,
        None => b.heads(m, normed, partial)?,
    }
    b.norm("add_norm", 2 * layers, residual, Some(partial), normed)?;
    if m.dense > 0 {
        b.dense(m.dense, inner, normed, partial)?;
    }
    if m.shared > 0 {
        b.dense(layers - m.dense, m.shared, normed, partial)?;
    }
    b.experts(m, normed, partial)?;
    b.tokens_of(normed)?;
    Ok(b.items)
}

/// Which expert every slot has.
struct Choice {
    /// Of every slot, ascending within a token.
    experts: Vec<u32>,
    /// What [`Group`] leaves: the first place of every expert's slots, the end, slots by expert.
    groups: Vec<u32>,
    /// Slots of every expert that has some.
    sizes: Vec<u32>,
}

impl Choice {
    fn new(m: &Mixture, tokens: usize) -> Choice {
        let distinct = m.distinct(tokens);
        let expert = |slot: usize| (slot % distinct * m.experts / distinct) as u32;
        let mut experts: Vec<u32> = (0..tokens * m.top_k).map(expert).collect();
        experts.chunks_mut(m.top_k).for_each(<[u32]>::sort_unstable);
        let of = |e: u32| experts.iter().filter(|own| **own == e).count() as u32;
        let all: Vec<u32> = (0..m.experts as u32).map(of).collect();
        let ends = all.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        });
        let mut groups: Vec<u32> = std::iter::once(0).chain(ends).collect();
        let mut slots: Vec<u32> = (0..experts.len() as u32).collect();
        slots.sort_by_key(|slot| experts[*slot as usize]);
        groups.extend(slots);
        Choice { experts, groups, sizes: all.into_iter().filter(|size| *size > 0).collect() }
    }

    /// Tiles of at most `rows` slots among `count` blocks, those that have as many together.
    fn tiles(&self, rows: u32, count: u32) -> Axis {
        let tiles = self
            .sizes
            .iter()
            .flat_map(|size| (0..size.div_ceil(rows)).map(move |tile| (size - tile * rows).min(rows)));
        alike(tiles.chain(std::iter::repeat(0)).take(count as usize))
    }

    /// Blocks of `rows` tokens by the leaves of a sum in which their last experts are: what is behind them is
    /// not looked at.
    fn sums(&self, m: &Mixture, rows: usize) -> Axis {
        let leaf = |e: &u32| (1..9).filter(|leaf| first_of(m, *leaf) <= *e).count();
        let last = |token: &[u32]| token.last().map(leaf);
        let blocks = self.experts.chunks(rows * m.top_k);
        alike(blocks.map(|block| block.chunks(m.top_k).map(last).collect::<Vec<_>>()))
    }

    /// Experts by the words of 32 slots in which they have some, the last apart.
    fn hits(&self, count: usize) -> Axis {
        let hit = |e: u32| self.experts.chunks(32).filter(|word| word.contains(&e)).count();
        alike((0..count).map(|e| (hit(e as u32), e + 1 == count)))
    }
}

/// The first expert of a leaf of a sum over all of them.
fn first_of(m: &Mixture, leaf: usize) -> u32 {
    (leaf * m.experts / 8) as u32
}

/// Blocks of which those with the same key do alike.
fn alike<K: Ord>(keys: impl Iterator<Item = K>) -> Axis {
    let mut all: BTreeMap<K, (u32, u32)> = BTreeMap::new();
    for (block, key) in keys.enumerate() {
        all.entry(key).or_insert((block as u32, 0)).1 += 1;
    }
    Axis::Picked(all.into_values().collect())
}

/// Some columns of a matrix.
fn columns(of: MatView, from: usize, cols: usize) -> MatView {
    MatView { ptr: of.ptr + from as u64 * u64::from(ELEM.bytes()), cols: cols as u32, ..of }
}

impl Builder<'_> {
    /// Attention with keys and values of its own for every head.
    fn heads(&mut self, m: &Mixture, normed: u64, partial: u64) -> Outcome<()> {
        let (Shape { hidden, layers, .. }, tokens) = (m.shape, self.tokens());
        let (all, rows) = (m.heads(None), m.shape.heads * m.width);
        let (qkv, attended) = (self.rows(all.qkv_cols())?, self.rows(rows)?);
        self.matmul("qkv", layers, (normed, hidden), (qkv, all.qkv_cols()), m.weight(), tokens)?;
        let within = if m.window.is_some() { layers.div_ceil(2) } else { 0 };
        if within > 0 {
            self.attention(within, m.heads(m.window), qkv, attended)?;
        }
        self.attention(layers - within, all, qkv, attended)?;
        self.matmul("attn_out", layers, (attended, rows), (partial, hidden), m.weight(), tokens)
    }

    /// Attention over the row that is kept of a position: every head has two matmuls of its own.
    fn latent(&mut self, m: &Mixture, of: Latent, normed: u64, partial: u64) -> Outcome<()> {
        let (Shape { hidden, layers, heads, .. }, tokens) = (m.shape, self.tokens());
        let Latent { rank, rotated, plain, value, query_rank } = of;
        let (all, width) = (m.heads(None), plain + rotated);
        let queries = view(self.rows(heads * width)?, tokens, heads * width);
        let kept = view(self.rows(rank + rotated)?, tokens, rank + rotated);
        let input = view(normed, tokens, hidden);
        let from = match query_rank {
            Some(low) => {
                let rows = view(self.rows(low)?, tokens, low);
                self.matmul_of("query_down", layers, input, rows, m.weight())?;
                self.norm_of("latent norm", layers, [rows, MatView::NONE, rows])?;
                rows
            }
            None => input,
        };
        self.matmul_of("query_up", layers, from, queries, m.weight())?;
        self.matmul_of("latent_down", layers, input, kept, m.weight())?;
        let row = columns(kept, 0, rank);
        self.norm_of("latent norm", layers, [row, MatView::NONE, row])?;
        let qkv = view(self.rows(all.qkv_cols())?, tokens, all.qkv_cols());
        let (k, v) = (heads * all.k_dim, heads * all.k_dim + all.k_dim);
        self.convert(layers, columns(kept, rank, rotated), columns(qkv, k, rotated));
        self.convert(2 * layers, row, columns(qkv, v, rank));
        self.convert(layers * heads, columns(queries, plain, rotated), columns(qkv, 0, rotated));
        let key = (columns(queries, 0, plain), columns(qkv, rotated, rank));
        self.matmul_of("key_up", layers * heads, key.0, key.1, m.weight())?;
        let attended = view(self.rows(heads * rank)?, tokens, heads * rank);
        self.attention(layers, all, qkv.ptr, attended.ptr)?;
        let values = view(self.rows(heads * value)?, tokens, heads * value);
        let (from, to) = (columns(attended, 0, rank), columns(values, 0, value));
        self.matmul_of("value_up", layers * heads, from, to, m.weight())?;
        self.matmul_of("attn_out", layers, values, view(partial, tokens, hidden), m.weight())
    }

    fn convert(&mut self, times: usize, x: MatView, out: MatView) {
        let p = Convert { x, out, bias: 0, from: ELEM, to: ELEM };
        self.add("convert", times, p.launch(), &p);
    }

    fn dense(&mut self, times: usize, inner: usize, normed: u64, partial: u64) -> Outcome<()> {
        let (hidden, tokens, gated) = (self.step.shape.hidden, self.tokens(), self.rows(inner)?);
        self.matmul("gate_up", times, (normed, hidden), (gated, 2 * inner), self.gated(), tokens)?;
        self.matmul("down", times, (gated, inner), (partial, hidden), self.plain(), tokens)
    }

    /// Scores, the choice, the matmuls of those that are chosen, their sum.
    fn experts(&mut self, m: &Mixture, normed: u64, partial: u64) -> Outcome<()> {
        let (Shape { hidden, layers, .. }, tokens) = (m.shape, self.tokens());
        let (times, slots) = (layers - m.dense, tokens * m.top_k);
        let choice = Choice::new(m, tokens);
        self.route(m, times, normed, &choice)?;
        let groups = self.arena.words(&choice.groups)?;
        let mut rows = |cols: usize| self.arena.activation((slots * cols * 2) as u64);
        let (gate_up, inner, out) = (rows(2 * m.inner)?, rows(m.inner)?, rows(hidden)?);
        let (gate_up, inner, out) =
            (view(gate_up, slots, 2 * m.inner), view(inner, slots, m.inner), view(out, slots, hidden));
        let input = view(normed, tokens, hidden);
        self.grouped("experts, up", m, times, (input, gate_up), (groups, &choice))?;
        let (slope, limit, shift) = if m.biases { (1.702, 7.0, 1.0) } else { (0.0, 0.0, 0.0) };
        let p =
            Gate { gate_up, out: inner, elem: ELEM, act: Activation::SILU, slope, limit, shift, reserved: 0 };
        self.add("gate", times, p.launch(), &p);
        self.grouped("experts, down", m, times, (inner, out), (groups, &choice))?;
        let sum = if m.shared > 0 { self.rows(hidden)? } else { partial };
        let p = Combine {
            y: out,
            weights: view(self.arena.activation((slots * 4) as u64)?, tokens, m.top_k),
            out: view(sum, tokens, hidden),
            experts: self.arena.words(&choice.experts)?,
            leaves: std::array::from_fn(|leaf| first_of(m, leaf)),
            own: 0xff,
            elem: ELEM,
            elem_out: ELEM,
            add: 0,
            reserved: 0,
        };
        self.add("experts, sum", times, p.launch(), &p);
        if let Some(item) = self.items.last_mut() {
            item.axes[1] = choice.sums(m, item.launch.block[1] as usize);
        }
        if m.shared > 0 {
            let (acc, x) = (view(partial, tokens, hidden), view(sum, tokens, hidden));
            let p = Add { acc, x, elem: ELEM, reserved: 0 };
            self.add("add", times, p.launch(), &p);
        }
        Ok(())
    }

    fn route(&mut self, m: &Mixture, times: usize, normed: u64, choice: &Choice) -> Outcome<()> {
        let (hidden, tokens, slots) = (m.shape.hidden, self.tokens(), choice.experts.len());
        let logits = self.arena.activation((tokens * m.experts * 4) as u64)?;
        let scores = Matmul { out_elem: Elem::F32, ..m.weight() };
        self.matmul("router", times, (normed, hidden), (logits, m.experts), scores, tokens)?;
        let p = Route {
            logits: view(logits, tokens, m.experts),
            weights: view(self.arena.activation((slots * 4) as u64)?, tokens, m.top_k),
            experts: self.arena.activation((slots * 4) as u64)?,
            top_k: m.top_k as u32,
            scale: 1.0,
            ..bytemuck::Zeroable::zeroed()
        };
        self.add("route", times, p.launch(), &p);
        let p = Group {
            experts: self.arena.words(&choice.experts)?,
            groups: self.arena.activation(choice.groups.len() as u64 * 4)?,
            count: m.experts as u32,
            slots: slots as u32,
        };
        self.add("group", times, p.launch(), &p);
        if let Some(item) = self.items.last_mut() {
            item.axes[0] = choice.hits(m.experts);
        }
        Ok(())
    }

    /// The matmul of every slot with its expert's weight.
    fn grouped(
        &mut self,
        role: &'static str,
        m: &Mixture,
        times: usize,
        (x, out): (MatView, MatView),
        (groups, choice): (u64, &Choice),
    ) -> Outcome<()> {
        let (n, k, all) = (out.cols as usize, x.cols as usize, m.experts);
        let of = Matmul { format: (m.format, 0), ..m.weight() };
        let layout = of.layout(all * n, k)?.in_parts(all)?;
        let mut gemm = Gemm::new(&layout, Sum::folded(k, 1), ELEM, ELEM, Then::Nothing);
        let live = |bytes: usize| (bytes / all * choice.sizes.len()) as u64;
        (gemm.x, gemm.out) = (x, out);
        let codes = layout.code_bytes();
        gemm.weight = self.arena.pages(codes as u64, live(codes))?;
        if layout.scale_bytes() > 0 {
            let scales = layout.scale_bytes();
            gemm.scales = self.arena.pages(scales as u64, live(scales))?;
        }
        if m.biases {
            gemm.bias = self.arena.pages((all * n * 4) as u64, live(all * n * 4))?;
        }
        let p = Grouped { gemm, groups, count: all as u32, first: 0, own: all as u32, reserved: 0 };
        self.add(role, times, p.launch(), &p);
        if let Some(item) = self.items.last_mut() {
            item.axes[1] = choice.tiles(p.tile_rows(), item.launch.grid[1]);
            item.flops = 2.0 * f64::from(out.rows) * n as f64 * k as f64;
        }
        Ok(())
    }
}
