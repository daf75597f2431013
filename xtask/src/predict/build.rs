//! Launches of a step one after the other, with operands of their real sizes, as the CUDA backend makes them
//! of the ops that all models have.

use super::operands::{Arena, Outcome};
use super::step::{Axis, Exchange, Item, Shape, Step};
use engraft_kernels::Launch;
use engraft_kernels::pack::{Layout, UNIT};
use engraft_kernels::params::elementwise::Convert;
use engraft_kernels::params::exchange;
use engraft_kernels::params::gemm::{Gemm, Hopper, Sum, Then, supports};
use engraft_kernels::params::{
    Activation, Elem, Format, Leaves, MatView, WeightView, embed::Embed, norm::Norm, rows::Feed,
    rows::Gather, rows::Scatter, sample::Sample,
};

/// Words of a row of the sampler's table, greedy.
const GREEDY: [u32; 12] = [0, 0x3F80_0000, 0x3F80_0000, 0, 1 << 24, 0, 0, 0, 0, 0, 0, u32::MAX];
/// Element type of activations, keys and values.
pub(super) const ELEM: Elem = Elem::BF16;
/// Values of an exchange's launch at most.
const HALF: usize = 1 << 20;

/// A matmul's weight, and what is done with its sums.
pub(super) struct Matmul {
    /// How the weight is stored, and values of a group of it.
    pub format: (Format, usize),
    /// What follows.
    pub then: Then,
    /// Element type of the results.
    pub out_elem: Elem,
    /// Whether a bias is added.
    pub bias: bool,
    /// Ranks that share its sums; 1: they are whole.
    pub ranks: usize,
}

impl Matmul {
    /// How a weight of `n` rows of `k` values lies, for the kernels on tensor cores.
    pub fn layout(&self, n: usize, k: usize) -> Outcome<Layout> {
        let (format, group) = self.format;
        let own = !matches!(format, Format::Bf16 | Format::Q5_0);
        let group = if group == 0 && own { k } else { group };
        Ok(supports(ELEM, self.out_elem, format, group, n, k, matches!(self.then, Then::Gate(_)))?)
    }

    /// The leaves of its sums over `k` values: of sums that ranks share those of one rank.
    fn sum(&self, k: usize) -> Sum {
        if self.ranks == 1 {
            return Sum::folded(k, 1);
        }
        let (own, units) = (8 / self.ranks, k.div_ceil(UNIT));
        let at = std::array::from_fn(|leaf| (UNIT * (units * leaf).div_ceil(own)).min(k) as u32);
        Sum::shared(&Leaves::new(at, |leaf| leaf < own)).unwrap_or(Sum::by_tree(k, 1))
    }
}

/// Makes the launches one after the other.
pub(super) struct Builder<'a> {
    pub step: Step,
    pub arena: &'a mut Arena,
    pub items: Vec<Item>,
}

/// A matrix without room between rows.
pub(super) fn view(ptr: u64, rows: usize, cols: usize) -> MatView {
    MatView { ptr, pitch: cols as u64, rows: rows as u32, cols: cols as u32 }
}

impl Builder<'_> {
    /// New tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.step.seqs * self.step.queries
    }

    /// Activations `[tokens, cols]`.
    pub fn rows(&mut self, cols: usize) -> Outcome<u64> {
        self.arena.activation((self.tokens() * cols * 2) as u64)
    }

    /// A matmul that nothing follows.
    pub fn plain(&self) -> Matmul {
        let format = self.step.weights.format();
        Matmul { format, then: Then::Nothing, out_elem: ELEM, bias: false, ranks: 1 }
    }

    /// That of gate and up, of a weight that has both.
    pub fn gated(&self) -> Matmul {
        Matmul { then: Then::Gate(Activation::SILU), ..self.plain() }
    }

    /// What follows the blocks: the rows that get logits, these, a token.
    pub fn tokens_of(&mut self, normed: u64) -> Outcome<()> {
        let (Shape { hidden, vocab, .. }, wanted) = (self.step.share(), self.step.wanted);
        if wanted == 0 {
            return Ok(());
        }
        let head_in = self.arena.activation((wanted * hidden * 2) as u64)?;
        let logits = self.arena.activation((wanted * self.step.shape.vocab * 4) as u64)?;
        self.gather(normed, head_in)?;
        let head = Matmul { out_elem: Elem::F32, ..self.plain() };
        self.matmul("head", 1, (head_in, hidden), (logits, vocab), head, wanted)?;
        if self.step.ranks > 1 {
            self.columns(logits, vocab);
        }
        self.sample(logits)
    }

    /// A matmul whose sums ranks share, and behind it their exchange and the rounding of the sums.
    pub fn summed(&mut self, role: &'static str, x: (u64, usize), out: u64) -> Outcome<()> {
        let (tokens, Shape { hidden, layers, .. }) = (self.tokens(), self.step.shape);
        if self.step.ranks == 1 {
            return self.matmul(role, layers, x, (out, hidden), self.plain(), tokens);
        }
        let (ranks, count) = (self.step.ranks, tokens * hidden);
        let nodes = self.arena.activation(4 * count as u64)?;
        let of = Matmul { out_elem: Elem::F32, ranks, ..self.plain() };
        self.matmul(role, layers, x, (nodes, hidden), of, tokens)?;
        // The longest launch: larger exchanges take several.
        for first in (0..count).step_by(HALF) {
            let part = HALF.min(count - first);
            let mut p: exchange::Reduce = bytemuck::Zeroable::zeroed();
            (p.x, p.count, p.peers.world) = (nodes, part as u32, ranks as u32);
            let shared = p.count >= exchange::Reduce::shared_from(p.peers.world);
            let parts = if shared { 2.0 / ranks as f64 } else { 1.0 };
            let bytes = parts * 4.0 * ((ranks - 1) * part) as f64;
            self.add("exchange", layers, p.launch(), &p);
            self.exchanged(Exchange { ranks, shared, bytes });
        }
        let (x, out) = (view(nodes, tokens, hidden), view(out, tokens, hidden));
        let p = Convert { x, out, bias: 0, from: Elem::F32, to: ELEM };
        self.add("round", layers, p.launch(), &p);
        Ok(())
    }

    /// The columns of all ranks, of which this one has `own`.
    fn columns(&mut self, logits: u64, own: usize) {
        let (ranks, rows) = (self.step.ranks, self.step.wanted);
        let mut p: exchange::Gather = bytemuck::Zeroable::zeroed();
        (p.x, p.rows, p.cols, p.peers.world) = (logits, rows as u32, (ranks * own) as u32, ranks as u32);
        p.width[..ranks].fill(own as u32);
        let bytes = 4.0 * (rows * own * (ranks - 1)) as f64;
        self.add("exchange, head", 1, p.launch(), &p);
        self.exchanged(Exchange { ranks, shared: false, bytes });
    }

    fn exchanged(&mut self, exchange: Exchange) {
        if let Some(item) = self.items.last_mut() {
            item.exchange = Some(exchange);
        }
    }

    /// Adds a launch whose blocks do alike but for the last of a row and of a column.
    pub fn add<P: bytemuck::Pod>(&mut self, role: &'static str, times: usize, launch: Launch, params: &P) {
        let [x, y, z] = launch.grid;
        let axes = [Axis::edge(x), Axis::edge(y), Axis::Alike(vec![z])];
        let params = bytemuck::bytes_of(params).to_vec();
        let (maps, exchange) = (Vec::new(), None);
        self.items.push(Item { role, launch, params, maps, times, axes, cluster: 1, flops: 0.0, exchange });
    }

    /// Ids of tokens, their rows of the table in `residual`.
    pub fn inputs(&mut self, residual: u64) -> Outcome<()> {
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

    /// `out = norm(x)`, behind `x += add`.
    pub fn norm(
        &mut self,
        role: &'static str,
        times: usize,
        x: u64,
        add: Option<u64>,
        out: u64,
    ) -> Outcome<()> {
        let (tokens, hidden) = (self.tokens(), self.step.shape.hidden);
        let at = |ptr| view(ptr, tokens, hidden);
        self.norm_of(role, times, [at(x), add.map_or(MatView::NONE, at), at(out)])
    }

    /// The same of these rows: `x`, `add`, `out`.
    pub fn norm_of(&mut self, role: &'static str, times: usize, [x, add, out]: [MatView; 3]) -> Outcome<()> {
        let mut p: Norm = bytemuck::Zeroable::zeroed();
        (p.x, p.add, p.out) = (x, add, out);
        (p.width, p.parts, p.eps, p.elem) = (x.cols, 1, 1e-5, ELEM);
        p.weight = self.arena.weight(u64::from(x.cols) * 4)?;
        self.add(role, times, p.launch(), &p);
        Ok(())
    }

    /// `out = x w^T`, `n` rows of the weight in `out.1`.
    pub fn matmul(
        &mut self,
        role: &'static str,
        times: usize,
        (x, k): (u64, usize),
        (out, n): (u64, usize),
        of: Matmul,
        rows: usize,
    ) -> Outcome<()> {
        let cols = if matches!(of.then, Then::Gate(_)) { n / 2 } else { n };
        self.matmul_of(role, times, view(x, rows, k), view(out, rows, cols), of)
    }

    /// The same of rows that lie within others.
    pub fn matmul_of(
        &mut self,
        role: &'static str,
        times: usize,
        x: MatView,
        out: MatView,
        of: Matmul,
    ) -> Outcome<()> {
        let gated = matches!(of.then, Then::Gate(_));
        let (k, n) = (x.cols as usize, out.cols as usize * if gated { 2 } else { 1 });
        let layout = of.layout(n, k)?;
        let mut p = Gemm::new(&layout, of.sum(layout.k), ELEM, of.out_elem, of.then);
        (p.x, p.out) = (x, out);
        p.weight = self.arena.weight(layout.code_bytes() as u64)?;
        if layout.scale_bytes() > 0 {
            p.scales = self.arena.weight(layout.scale_bytes() as u64)?;
        }
        if of.bias {
            p.bias = self.arena.weight(n as u64 * 4)?;
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
            item.flops = 2.0 * f64::from(x.rows) * n as f64 * k as f64;
        }
        Ok(())
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
