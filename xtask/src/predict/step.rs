//! The launches of one step of a LLaMA, with operands of their real sizes: what the CUDA backend makes of the
//! model's ops.
//!
//! A test of the conformance suite holds this list to the launches that an engine makes, by kernel, number
//! and grid.

use super::operands::{Arena, Outcome};
pub use super::shapes::{SHAPES, Shape};
use engraft_kernels::Launch;
use engraft_kernels::params::attention::Scores;
use engraft_kernels::params::flash::{Flash, SPAN};
use engraft_kernels::params::gemm::{Gemm, Hopper, Sum, Then, TileMap, supports};
use engraft_kernels::params::kv::{KvView, PageTable, RotateAppend};
use engraft_kernels::params::{
    Activation, Elem, Format, MatView, WeightView, embed::Embed, norm::Norm, rows::Feed, rows::Gather,
    rows::Scatter, sample::Sample,
};

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// bf16.
    Bf16,
    /// int8, a scale a row.
    Int8,
    /// int4, a scale every 64 values.
    Int4,
}

impl Weights {
    /// The kernels' number and the size of a group.
    fn format(self) -> (Format, usize) {
        match self {
            Weights::Bf16 => (Format::Bf16, 0),
            Weights::Int8 => (Format::Int8, 0),
            Weights::Int4 => (Format::Int4, 64),
        }
    }
}

/// A step to predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The model.
    pub shape: Shape,
    /// How its matrices are stored.
    pub weights: Weights,
    /// Mode `Fast` instead of `Invariant`.
    pub fast: bool,
    /// Sequences.
    pub seqs: usize,
    /// New tokens of each sequence: 1 in a decode step.
    pub queries: usize,
    /// Positions of each sequence, those of this step included.
    pub context: usize,
    /// Positions that the launches have room for: of a captured step the engine's `max_context`.
    pub max_keys: usize,
    /// Sequences whose table of pages changes.
    pub table_edits: usize,
    /// Rows that get logits and a token.
    pub wanted: usize,
}

/// How the work of blocks differs along one axis of a grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Axis {
    /// Blocks between these bounds do alike.
    Alike(Vec<u32>),
    /// Work grows evenly from the first block to the last.
    Grows(u32),
    /// These blocks, each with how many it stands for.
    Picked(Vec<(u32, u32)>),
}

impl Axis {
    /// All but the last do alike.
    pub fn edge(n: u32) -> Axis {
        Axis::Alike(vec![n.saturating_sub(1), n])
    }

    /// Blocks to run along this axis, each with how many it stands for.
    pub fn sampled(&self) -> Vec<(u32, f64)> {
        match self {
            Axis::Alike(bounds) => {
                let begins = std::iter::once(0).chain(bounds.iter().copied());
                let some = begins.zip(bounds).filter(|(begin, end)| begin < end);
                some.map(|(begin, end)| (begin, f64::from(end - begin))).collect()
            }
            Axis::Picked(some) => some.iter().map(|(block, n)| (*block, f64::from(*n))).collect(),
            Axis::Grows(n @ 0..=GROWING) => (0..*n).map(|i| (i, 1.0)).collect(),
            // Blocks walk whole chunks of keys, so work grows in steps: four neighbours hold a step of each
            // kernel.
            Axis::Grows(n) => {
                (0..4).chain(n - 4..*n).map(|i| (i, f64::from(*n) / f64::from(GROWING))).collect()
            }
        }
    }
}

/// Blocks that stand for an axis along which work grows.
const GROWING: u32 = 8;

/// One launch, and how often a step makes it.
#[derive(Debug, Clone)]
pub struct Item {
    /// What it is for.
    pub role: &'static str,
    /// Its kernel and grid.
    pub launch: Launch,
    /// Parameters.
    pub params: Vec<u8>,
    /// The tensor maps that the driver would encode into the parameters.
    pub maps: Vec<TileMap>,
    /// Launches of a step.
    pub times: usize,
    /// How blocks differ along x, y and z.
    pub axes: [Axis; 3],
    /// Blocks of a cluster along x; the first axis counts clusters.
    pub cluster: u32,
    /// Operations that the result needs, padding and recomputation left out.
    pub flops: f64,
}

/// Positions of a page, as engines have by default.
const PAGE: usize = 16;
/// Words of a row of the sampler's table, greedy.
const GREEDY: [u32; 12] = [0, 0x3F80_0000, 0x3F80_0000, 0, 1 << 24, 0, 0, 0, 0, 0, 0, u32::MAX];
const ELEM: Elem = Elem::BF16;

struct Builder<'a> {
    step: Step,
    arena: &'a mut Arena,
    items: Vec<Item>,
}

/// The launches of a step.
///
/// # Errors
/// Operands without room, sizes that no kernel takes.
pub fn launches(step: Step, arena: &mut Arena) -> Outcome<Vec<Item>> {
    let mut b = Builder { step, arena, items: Vec::new() };
    let Shape { hidden, heads, kv_heads, inner, layers, vocab, .. } = step.shape;
    let (tokens, width) = (step.seqs * step.queries, hidden / heads);
    let row = |cols: usize| (tokens * cols * 2) as u64;
    let (residual, normed, qkv, attended, gated) = (
        b.arena.activation(row(hidden))?,
        b.arena.activation(row(hidden))?,
        b.arena.activation(row((heads + 2 * kv_heads) * width))?,
        b.arena.activation(row(heads * width))?,
        b.arena.activation(row(inner))?,
    );
    let partial = b.arena.activation(row(hidden))?;
    b.inputs(residual)?;
    b.norm("norm", 1, residual, None, normed)?;
    b.matmul("qkv", layers, (normed, hidden), (qkv, (heads + 2 * kv_heads) * width), Then::Nothing, tokens)?;
    b.attention(qkv, attended)?;
    b.matmul("attn_out", layers, (attended, heads * width), (partial, hidden), Then::Nothing, tokens)?;
    b.norm("add_norm", 2 * layers, residual, Some(partial), normed)?;
    b.matmul("gate_up", layers, (normed, hidden), (gated, 2 * inner), Then::Gate(Activation::SILU), tokens)?;
    b.matmul("down", layers, (gated, inner), (partial, hidden), Then::Nothing, tokens)?;
    if step.wanted > 0 {
        let head_in = b.arena.activation((step.wanted * hidden * 2) as u64)?;
        let logits = b.arena.activation((step.wanted * vocab * 4) as u64)?;
        b.gather(normed, head_in)?;
        b.matmul("head", 1, (head_in, hidden), (logits, vocab), Then::Nothing, step.wanted)?;
        b.sample(logits)?;
    }
    Ok(b.items)
}

fn view(ptr: u64, rows: usize, cols: usize) -> MatView {
    MatView { ptr, pitch: cols as u64, rows: rows as u32, cols: cols as u32 }
}

impl Builder<'_> {
    fn tokens(&self) -> usize {
        self.step.seqs * self.step.queries
    }

    fn width(&self) -> usize {
        self.step.shape.hidden / self.step.shape.heads
    }

    fn add<P: bytemuck::Pod>(&mut self, role: &'static str, times: usize, launch: Launch, params: &P) {
        let [x, y, z] = launch.grid;
        let axes = [Axis::edge(x), Axis::edge(y), Axis::Alike(vec![z])];
        let params = bytemuck::bytes_of(params).to_vec();
        self.items.push(Item { role, launch, params, maps: Vec::new(), times, axes, cluster: 1, flops: 0.0 });
    }

    fn inputs(&mut self, residual: u64) -> Outcome<()> {
        let (tokens, hidden, vocab) = (self.tokens(), self.step.shape.hidden, self.step.shape.vocab);
        if self.step.table_edits > 0 {
            let count = self.step.table_edits as u32;
            let pairs: Vec<u32> = (0..count).flat_map(|i| [i, 0]).collect();
            let (pairs, dst) = (self.arena.words(&pairs)?, self.arena.words(&vec![0; count as usize])?);
            let p = Scatter { pairs, dst, count, len: count };
            self.add("scatter", 1, p.launch(), &p);
        }
        let ids: Vec<u32> = (0..tokens).map(|i| (i * 7919 % vocab) as u32).collect();
        // What decoding sequences sampled in the step before.
        let feeds: Vec<u32> = (0..tokens as u32).collect();
        let (uploaded, last, out) =
            (self.arena.words(&ids)?, self.arena.words(&ids)?, self.arena.words(&ids)?);
        let count = tokens as u32;
        let p = Feed { ids: uploaded, feeds: self.arena.words(&feeds)?, last, out, count, rows: count };
        self.add("feed", 1, p.launch(), &p);
        // The table stays as it is stored, whatever the matrices become.
        let row_bytes = hidden * 2;
        let table = self.arena.pages((vocab * row_bytes) as u64, (tokens * row_bytes) as u64)?;
        let table = WeightView {
            ptr: table,
            row_bytes: row_bytes as u64,
            rows: vocab as u32,
            cols: hidden as u32,
            group: 0,
            reserved: 0,
        };
        let p = Embed { ids: out, table, out: view(residual, tokens, hidden), elem: ELEM, add: 0 };
        self.add("embed", 1, p.launch(Format::Bf16), &p);
        Ok(())
    }

    fn norm(&mut self, role: &'static str, times: usize, x: u64, add: Option<u64>, out: u64) -> Outcome<()> {
        let (tokens, hidden) = (self.tokens(), self.step.shape.hidden);
        let at = |ptr| view(ptr, tokens, hidden);
        let mut p: Norm = bytemuck::Zeroable::zeroed();
        (p.x, p.add, p.out) = (at(x), add.map_or(MatView::NONE, at), at(out));
        (p.width, p.parts, p.eps, p.elem) = (hidden as u32, 1, 1e-5, ELEM);
        p.weight = self.arena.weight(hidden as u64 * 4)?;
        self.add(role, times, p.launch(), &p);
        Ok(())
    }

    /// `out = x w^T`, `n` rows of the weight in `out.1`.
    fn matmul(
        &mut self,
        role: &'static str,
        times: usize,
        (x, k): (u64, usize),
        (out, n): (u64, usize),
        then: Then,
        rows: usize,
    ) -> Outcome<()> {
        let (format, group) = self.step.weights.format();
        let gated = matches!(then, Then::Gate(_));
        let group = if group == 0 && format != Format::Bf16 { k } else { group };
        let out_elem = if role == "head" { Elem::F32 } else { ELEM };
        let layout = supports(ELEM, out_elem, format, group, n, k, gated)?;
        let mut p = Gemm::new(&layout, Sum::folded(layout.k, 1), ELEM, out_elem, then);
        p.x = view(x, rows, k);
        p.out = view(out, rows, if gated { n / 2 } else { n });
        p.weight = self.arena.weight(layout.code_bytes() as u64)?;
        if layout.scale_bytes() > 0 {
            p.scales = self.arena.weight(layout.scale_bytes() as u64)?;
        }
        match p.boxed(if self.step.fast { Hopper::All } else { Hopper::ByLeaves }) {
            Some(boxed) => {
                self.add(role, times, boxed.launch.clone(), &boxed.params);
                if let Some(item) = self.items.last_mut() {
                    item.axes[0] = Axis::Picked(boxed.alike());
                    item.cluster = boxed.cluster;
                    item.maps = boxed.maps;
                }
            }
            None => self.add(role, times, p.launch(), &p),
        }
        if let Some(item) = self.items.last_mut() {
            item.flops = 2.0 * rows as f64 * n as f64 * k as f64;
        }
        Ok(())
    }

    /// Rotation, append, attention.
    fn attention(&mut self, qkv: u64, attended: u64) -> Outcome<()> {
        let (step, tokens, width) = (self.step, self.tokens(), self.width());
        let Shape { heads, kv_heads, layers, .. } = step.shape;
        let cols = (heads + 2 * kv_heads) * width;
        let pages = step.max_keys.div_ceil(PAGE);
        let slab = (pages * PAGE * kv_heads * width * 2) as u64;
        // A causal step reads every position of every sequence.
        let live = (step.seqs * step.context * kv_heads * width * 2) as u64;
        let kv = KvView {
            keys: self.arena.pages(slab, live)?,
            values: self.arena.pages(slab, live)?,
            pages: pages as u32,
            page_size: PAGE as u32,
            kv_heads: kv_heads as u32,
            k_dim: width as u32,
            v_dim: width as u32,
            elem: ELEM,
        };
        let first = step.context - step.queries;
        let positions: Vec<u32> = (0..tokens).map(|t| (first + t % step.queries) as u32).collect();
        let positions = self.arena.words(&positions)?;
        let mut p: RotateAppend = bytemuck::Zeroable::zeroed();
        p.qkv = view(qkv, tokens, cols);
        (p.kv, p.positions, p.slots) = (kv, positions, positions);
        p.table = self.arena.activation((step.max_keys * width * 4) as u64)?;
        (p.table_positions, p.pairs) = (step.max_keys as u32, width as u32 / 2);
        (p.heads, p.elem) = (heads as u32, ELEM);
        self.add("rope_append", layers, p.launch(), &p);
        let mut p = self.flash(kv, qkv, attended)?;
        p.parts = self.arena.activation(p.parts_bytes())?;
        self.walk(&p);
        Ok(())
    }

    /// Parameters of attention.
    fn flash(&mut self, kv: KvView, qkv: u64, attended: u64) -> Outcome<Flash> {
        let (step, tokens, width, heads) = (self.step, self.tokens(), self.width(), self.step.shape.heads);
        let each = |f: &dyn Fn(usize) -> u32, n: usize| (0..n).map(f).collect::<Vec<u32>>();
        let pages = kv.pages as usize;
        // Sequences share pages: only the bytes of distinct positions would tell.
        let numbers = each(&|i| (i % pages) as u32, step.seqs * pages);
        let numbers = self.arena.words(&numbers)?;
        let mut p: Flash = bytemuck::Zeroable::zeroed();
        p.q = MatView { pitch: u64::from(p_pitch(step.shape)), ..view(qkv, tokens, heads * width) };
        p.out = view(attended, tokens, heads * width);
        p.kv = kv;
        p.table = PageTable::new(numbers, step.seqs as u32, pages as u32, &kv);
        p.scores = Scores { scale: 1.0, cap: 1.0, ..bytemuck::Zeroable::zeroed() };
        p.bounds = self.arena.words(&each(&|s| (s * step.queries) as u32, step.seqs + 1))?;
        p.table_rows = self.arena.words(&each(&|s| s as u32, step.seqs))?;
        p.kv_lens = self.arena.words(&vec![step.context as u32; step.seqs])?;
        (p.seqs, p.heads, p.elem) = (step.seqs as u32, heads as u32, ELEM);
        let few = step.queries.min(if step.seqs <= 8 { 4 } else { 1 });
        Ok(p.with_few(few as u32, step.max_keys as u32))
    }

    /// The launches of attention.
    fn walk(&mut self, p: &Flash) {
        let (step, layers) = (self.step, self.step.shape.layers);
        // Pairs of a query and a key that it sees.
        let seen = step.queries as f64 * (step.context as f64 - (step.queries as f64 - 1.0) / 2.0);
        let flops = 4.0 * seen * (step.seqs * step.shape.hidden) as f64;
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
        self.add("attention, split", layers, p.split(), p);
        let spans = p.spans;
        if let Some(item) = self.items.last_mut() {
            let keys = step.context as u32;
            // Whole spans, the last one of the sequence, spans that no sequence has keys in.
            let bounds = vec![keys / SPAN, keys.div_ceil(SPAN), spans];
            item.axes = [Axis::Alike(bounds), Axis::Alike(vec![item.launch.grid[1]]), item.axes[2].clone()];
            item.flops = if split { flops } else { 0.0 };
        }
        if let Some(merge) = p.merge() {
            self.add("attention, merge", layers, merge, p);
        }
    }

    fn gather(&mut self, x: u64, out: u64) -> Outcome<()> {
        let (tokens, hidden, wanted) = (self.tokens(), self.step.shape.hidden, self.step.wanted);
        let rows: Vec<u32> = (0..wanted).map(|i| (i * tokens / wanted) as u32).collect();
        let rows = self.arena.words(&rows)?;
        let p = Gather {
            x: view(x, tokens, hidden),
            out: view(out, wanted, hidden),
            rows,
            elem: ELEM,
            reserved: 0,
        };
        self.add("gather", 1, p.launch(), &p);
        Ok(())
    }

    fn sample(&mut self, logits: u64) -> Outcome<()> {
        let (wanted, vocab) = (self.step.wanted, self.step.shape.vocab);
        let seen_words = vocab.div_ceil(32) as u32;
        let p = Sample {
            logits: view(logits, wanted, vocab),
            table: self.arena.words(&GREEDY)?,
            slots: self.arena.words(&vec![0; wanted])?,
            positions: self.arena.words(&vec![self.step.context as u32; wanted])?,
            seen: self.arena.activation(u64::from(seen_words) * 4)?,
            out: self.arena.words(&vec![0; wanted])?,
            table_rows: 1,
            seen_rows: 1,
            seen_words,
            reserved: 0,
        };
        self.add("sample", 1, p.launch(), &p);
        Ok(())
    }
}

/// Elements from row to row of q | k | v.
fn p_pitch(shape: Shape) -> u32 {
    ((shape.heads + 2 * shape.kv_heads) * (shape.hidden / shape.heads)) as u32
}
