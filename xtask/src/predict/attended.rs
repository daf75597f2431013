//! Rotation, append and attention over pages: the launches of a block, by the widths of its heads.

use super::build::{Builder, ELEM, view};
use super::operands::Outcome;
use super::step::{Axis, Shape, Step};
use engraft_kernels::params::MatView;
use engraft_kernels::params::attention::{CHUNK, Paged, Scores, Split};
use engraft_kernels::params::flash::{Flash, SPAN, supports};
use engraft_kernels::params::kv::{KvView, PageTable, RotateAppend};

/// Positions of a page, as engines have by default.
const PAGE: usize = 16;

/// The heads of a block: what they read and what they see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Columns of a query and key head.
    pub k_dim: usize,
    /// Columns of a value head.
    pub v_dim: usize,
    /// Columns that rotate.
    pub rotated: usize,
    /// Whether pairs of them are neighbours.
    pub interleaved: bool,
    /// Positions that a query sees; none: all.
    pub window: Option<usize>,
    /// Whether there are scores without a key.
    pub sinks: bool,
}

impl Heads {
    /// Those of a LLaMA that a rank has.
    pub fn of(step: &Step) -> Heads {
        let (Shape { heads, kv_heads, .. }, width) = (step.share(), step.width());
        Heads {
            heads,
            kv_heads,
            k_dim: width,
            v_dim: width,
            rotated: width,
            interleaved: false,
            window: None,
            sinks: false,
        }
    }

    /// Columns of `q | k | v`.
    pub fn qkv_cols(&self) -> usize {
        self.heads * self.k_dim + self.kv_heads * (self.k_dim + self.v_dim)
    }

    /// Columns of keys and values of a position.
    pub fn kept_cols(&self) -> usize {
        self.kv_heads * (self.k_dim + self.v_dim)
    }
}

impl Builder<'_> {
    /// Rotation, append, attention.
    pub fn attention(&mut self, layers: usize, heads: Heads, qkv: u64, attended: u64) -> Outcome<()> {
        let (step, tokens) = (self.step, self.tokens());
        let pages = step.max_keys.div_ceil(PAGE);
        // A step reads every position that a query sees.
        let seen = heads.window.unwrap_or(step.context).min(step.context);
        let bytes = |positions: usize, width: usize| (positions * heads.kv_heads * width * 2) as u64;
        let mut slab =
            |width: usize| self.arena.pages(bytes(pages * PAGE, width), bytes(step.seqs * seen, width));
        let kv = KvView {
            keys: slab(heads.k_dim)?,
            values: slab(heads.v_dim)?,
            pages: pages as u32,
            page_size: PAGE as u32,
            kv_heads: heads.kv_heads as u32,
            k_dim: heads.k_dim as u32,
            v_dim: heads.v_dim as u32,
            elem: ELEM,
        };
        let first = step.context - step.queries;
        let positions: Vec<u32> = (0..tokens).map(|t| (first + t % step.queries) as u32).collect();
        let positions = self.arena.words(&positions)?;
        let mut p: RotateAppend = bytemuck::Zeroable::zeroed();
        p.qkv = view(qkv, tokens, heads.qkv_cols());
        (p.kv, p.positions, p.slots) = (kv, positions, positions);
        p.table = self.arena.activation((step.max_keys * heads.rotated * 4) as u64)?;
        (p.table_positions, p.pairs) = (step.max_keys as u32, heads.rotated as u32 / 2);
        (p.heads, p.elem, p.interleaved) = (heads.heads as u32, ELEM, u32::from(heads.interleaved));
        self.add("rope_append", layers, p.launch(), &p);
        match supports(ELEM, ELEM, kv.k_dim, kv.v_dim) {
            Ok(()) => {
                let mut p = self.flash(heads, kv, qkv, attended)?;
                p.parts = self.arena.activation(p.parts_bytes())?;
                self.walk(layers, heads, &p);
                Ok(())
            }
            Err(_) => self.strict(layers, heads, kv, qkv, attended),
        }
    }

    /// What both kernels of attention read next to queries, keys and values: scores, bounds, rows of the
    /// table, numbers of keys, the table.
    fn read(&mut self, heads: Heads, kv: &KvView) -> Outcome<(Scores, [u64; 3], PageTable)> {
        let step = self.step;
        let each = |f: &dyn Fn(usize) -> u32, n: usize| (0..n).map(f).collect::<Vec<u32>>();
        let pages = kv.pages as usize;
        // Sequences share pages: only the bytes of distinct positions would tell.
        let numbers = each(&|i| (i % pages) as u32, step.seqs * pages);
        let numbers = self.arena.words(&numbers)?;
        let sinks = if heads.sinks { self.arena.weight(heads.heads as u64 * 4)? } else { 0 };
        let scores = Scores {
            scale: 1.0,
            cap: 1.0,
            window: heads.window.unwrap_or(0) as u32,
            flags: if heads.window.is_some() { Scores::WINDOW } else { 0 },
            sinks,
            ..bytemuck::Zeroable::zeroed()
        };
        let words = [
            self.arena.words(&each(&|s| (s * step.queries) as u32, step.seqs + 1))?,
            self.arena.words(&each(&|s| s as u32, step.seqs))?,
            self.arena.words(&vec![step.context as u32; step.seqs])?,
        ];
        Ok((scores, words, PageTable::new(numbers, step.seqs as u32, pages as u32, kv)))
    }

    /// Parameters of attention on tensor cores.
    fn flash(&mut self, heads: Heads, kv: KvView, qkv: u64, attended: u64) -> Outcome<Flash> {
        let (step, tokens) = (self.step, self.tokens());
        let (scores, [bounds, table_rows, kv_lens], table) = self.read(heads, &kv)?;
        let mut p: Flash = bytemuck::Zeroable::zeroed();
        let q = view(qkv, tokens, heads.heads * heads.k_dim);
        p.q = MatView { pitch: heads.qkv_cols() as u64, ..q };
        p.out = view(attended, tokens, heads.heads * heads.v_dim);
        (p.kv, p.table, p.scores) = (kv, table, scores);
        (p.bounds, p.table_rows, p.kv_lens) = (bounds, table_rows, kv_lens);
        (p.seqs, p.heads, p.elem) = (step.seqs as u32, heads.heads as u32, ELEM);
        let few = step.queries.min(if step.seqs <= 8 { 4 } else { 1 });
        Ok(p.with_few(few as u32, step.max_keys as u32))
    }

    /// Blocks of `unit` positions along an axis of `count`, those that do alike together: none that is seen,
    /// the first that is, whole ones, the last of the sequence, none that there is.
    fn spans(&self, heads: Heads, unit: usize, count: u32) -> Axis {
        let keys = self.step.context;
        // The first that is seen begins from the sink, if there is one.
        let window = heads.window.or(heads.sinks.then_some(keys));
        let first = window.map(|window| keys.saturating_sub(window) / unit);
        let hidden = first.into_iter().flat_map(|first| [first, first + 1]);
        let mut bounds: Vec<u32> = Vec::new();
        for bound in hidden.chain([keys / unit, keys.div_ceil(unit), count as usize]) {
            let least = bounds.last().copied().unwrap_or(0);
            bounds.push((bound as u32).clamp(least, count.max(least)));
        }
        Axis::Alike(bounds)
    }

    /// Operations of attention: pairs of a query and a key that it sees.
    fn pairs(&self, heads: Heads) -> f64 {
        let step = self.step;
        let causal = step.queries as f64 * (step.context as f64 - (step.queries as f64 - 1.0) / 2.0);
        let seen = heads.window.map_or(causal, |window| causal.min((step.queries * window) as f64));
        2.0 * seen * (step.seqs * heads.heads * (heads.k_dim + heads.v_dim)) as f64
    }

    /// The launches of attention.
    fn walk(&mut self, layers: usize, heads: Heads, p: &Flash) {
        let (step, flops) = (self.step, self.pairs(heads));
        let split = step.queries <= p.few as usize;
        if !split {
            let hopper = p.whole_on_hopper(step.queries as u32).filter(|_| step.fast);
            let launch = hopper.unwrap_or_else(|| p.whole(step.queries as u32));
            self.add("attention", layers, launch, p);
            if let Some(item) = self.items.last_mut() {
                item.axes = [
                    Axis::Grows(item.launch.grid[0]),
                    Axis::Alike(vec![item.launch.grid[1]]),
                    item.axes[2].clone(),
                ];
                item.flops = flops;
            }
        }
        let spans = self.spans(heads, SPAN as usize, p.spans);
        self.add("attention, split", layers, p.split(), p);
        if let Some(item) = self.items.last_mut() {
            item.axes = [spans, Axis::Alike(vec![item.launch.grid[1]]), item.axes[2].clone()];
            item.flops = if split { flops } else { 0.0 };
        }
        if let Some(merge) = p.merge() {
            self.add("attention, merge", layers, merge, p);
        }
    }

    /// Attention in the contract's order, for heads that no kernel on tensor cores takes.
    fn strict(&mut self, layers: usize, heads: Heads, kv: KvView, qkv: u64, attended: u64) -> Outcome<()> {
        let (step, tokens) = (self.step, self.tokens());
        let (scores, [bounds, table_rows, kv_lens], table) = self.read(heads, &kv)?;
        let q = view(qkv, tokens, heads.heads * heads.k_dim);
        let (rows, keys) = (tokens as u32, step.max_keys as u32);
        let mut split = Split::plan(rows, kv.kv_heads, keys, 1);
        if split.parts > 0 {
            let bytes = Split::bytes(rows, heads.heads as u32, keys, kv.v_dim);
            split.parts = self.arena.activation(bytes)?;
        }
        let p = Paged {
            q: MatView { pitch: heads.qkv_cols() as u64, ..q },
            out: view(attended, tokens, heads.heads * heads.v_dim),
            kv,
            scores,
            bounds,
            table_rows,
            kv_lens,
            table,
            split,
            seqs: step.seqs as u32,
            heads: heads.heads as u32,
            elem: ELEM,
            reserved: 0,
        };
        let launch = p.launch();
        let of_split = self.spans(heads, (split.share.max(1) * CHUNK) as usize, launch.grid[2]);
        let flops = self.pairs(heads);
        self.add("attention, strict", layers, launch, &p);
        if let Some(item) = self.items.last_mut() {
            if split.parts > 0 {
                item.axes[2] = of_split;
            }
            item.axes[0] = Axis::Alike(vec![item.launch.grid[0]]);
            item.flops = flops;
        }
        if let Some(merge) = p.merge() {
            self.add("attention, merge", layers, merge, &p);
        }
        Ok(())
    }
}
