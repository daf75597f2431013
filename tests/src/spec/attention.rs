//! `attend` over pages and `attend_dense` over plain rows, with every mask and bias.
//!
//! Pages are handed out in random order, and every slot that no sequence owns holds NaN: stale keys of other
//! requests must not leak in, not even multiplied by zero. Rows of `out` beyond the last sequence must stay
//! untouched.

pub use super::attention_bugs::BUGS;
use super::kv::SlabCase;
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::oracle::attention as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::{Backend, Mem, Stream};
use engraft_core::mem::{Buf, Float, KvFormat, KvLayout, SKIP, Slab, StepShape, StepView, StepWords, Table};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, AttentionOpKind, OpKind, Sequences};
use engraft_core::params::{Heads, Relative, Scores};
use std::sync::Arc;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Attend);
    visitor.visit(AttendDense);
}

/// One sequence.
#[derive(Debug, Clone)]
pub struct Seq {
    /// Query rows in this step: the last ones.
    pub queries: usize,
    /// Keys, this step's included.
    pub len: usize,
    /// `[queries, heads * k_dim]`.
    pub q: Vec<f32>,
    /// `[len, kv_heads * k_dim]`, representable in the cache's type.
    pub k: Vec<f32>,
    /// `[len, kv_heads * v_dim]`.
    pub v: Vec<f32>,
}

/// Sequences and what their queries see.
#[derive(Debug, Clone)]
pub struct Case {
    /// Heads.
    pub heads: Heads,
    /// Masks and biases.
    pub scores: Scores,
    /// A score without a key or a value for every head.
    pub sinks: Option<Vec<f32>>,
    /// `[heads, span]`: a bias for every distance that the scores tell apart.
    pub bias: Option<Vec<f32>>,
    /// The sequences.
    pub seqs: Vec<Seq>,
    dtype: Float,
    /// What the cache is.
    pub kv_format: KvFormat,
    page_size: usize,
    page_seed: u64,
    padding: usize,
    lays: [Lay; 4],
}

fn lays(dice: &mut Dice) -> [Lay; 4] {
    std::array::from_fn(|_| Lay::random(dice))
}

/// What a case for tensor cores is about.
#[derive(Debug, Clone, Copy)]
struct Wide {
    group: usize,
    width: usize,
    seqs: usize,
    /// Queries of the first sequence over pages: the most.
    queries: usize,
}

const fn wide(group: usize, width: usize, seqs: usize, queries: usize) -> Option<Wide> {
    Some(Wide { group, width, seqs, queries })
}

/// Heads as tensor cores take them, with several queries to a key, by turn: every width that there are
/// kernels for, in the types that they take. Queries lie around those that are split over blocks: four of up
/// to eight sequences, one of more. The one head of 512 columns is that of autoencoders of pictures, which
/// has no such kernel.
const WIDE: [Option<Wide>; 10] = [
    None,
    wide(4, 64, 9, 2),
    wide(2, 80, 2, 5),
    wide(3, 96, 2, 4),
    wide(1, 512, 1, 3),
    None,
    wide(2, 112, 1, 40),
    wide(2, 128, 9, 1),
    wide(2, 192, 2, 3),
    wide(2, 256, 1, 7),
];

fn for_tensor_cores(dtype: Float, dice: &Dice) -> Option<Wide> {
    let few = [None, wide(4, 64, 2, 7), None, wide(1, 512, 1, 3), wide(2, 128, 1, 40), None];
    if dtype == Float::F32 { dice.turn(&few) } else { dice.turn(&WIDE) }
}

fn turns(dtype: Float) -> u64 {
    if dtype == Float::F32 { 6 } else { WIDE.len() as u64 }
}

fn heads(dice: &mut Dice) -> Heads {
    let (kv_heads, group) = (dice.pick(&[1, 2, 3]), dice.pick(&[1, 2, 4]));
    let k_dim = dice.pick(&[1, 8, 16, 33, 64]);
    let v_dim = if dice.once_in(3) { dice.pick(&[1, 16, 31]) } else { k_dim };
    Heads { heads: kv_heads * group, kv_heads, k_dim, v_dim }
}

/// Reaches that most keys lie beyond, and some that none does.
fn relative(dice: &mut Dice) -> Relative {
    Relative { behind: dice.pick(&[0, 1, 5, 31, 200]), ahead: dice.pick(&[0, 1, 7, 64]) }
}

fn biases(dice: &mut Dice, heads: Heads, scores: &Scores) -> Option<Vec<f32>> {
    scores.relative.map(|relative| dice.values(heads.heads * relative.span(), 2.0, Float::F32))
}

fn scores(dice: &mut Dice, heads: Heads, causal: bool) -> Scores {
    let slopes = |dice: &mut Dice| (0..heads.heads).map(|_| dice.unit().abs() * 0.5).collect::<Arc<[f32]>>();
    let window = dice.once_in(3).then(|| dice.pick(&[0, 1, 2, 7, 33, 1000]));
    let chunk = (window.is_none() && dice.once_in(3)).then(|| dice.pick(&[1, 2, 7, 33, 64, 1000]));
    Scores {
        scale: dice.pick(&[1.0, 0.125, (1.0 / (heads.k_dim as f64).sqrt()) as f32]),
        causal,
        window,
        chunk,
        ahead: (!causal && dice.once_in(2)).then(|| dice.pick(&[0, 1, 7, 64, 1000])),
        soft_cap: dice.once_in(4).then(|| dice.pick(&[2.0, 30.0])),
        alibi: if dice.once_in(3) { Some(slopes(dice)) } else { None },
        relative: if dice.once_in(3) { Some(relative(dice)) } else { None },
    }
}

fn generate(dtype: Float, dice: &mut Dice, dense: bool) -> Case {
    let wide = for_tensor_cores(dtype, dice);
    let heads = match wide {
        Some(Wide { group, width, .. }) => Heads { heads: group, kv_heads: 1, k_dim: width, v_dim: width },
        None => heads(dice),
    };
    let causal = if dense { dice.once_in(2) } else { !dice.once_in(6) };
    let scores = scores(dice, heads, causal);
    let sinks = dice.once_in(3).then(|| dice.values(heads.heads, 4.0, Float::F32));
    let bias = biases(dice, heads, &scores);
    // They take keys of the queries' type alone.
    let kv_dtype = if !dense && wide.is_none() && dice.once_in(3) { Float::Bf16 } else { dtype };
    // Wide heads are many multiplications: fewer rows of them.
    let (counts, lengths): (&[usize], &[usize]) = match wide {
        Some(Wide { width: 512.., .. }) => (&[1], &[5, 33]),
        Some(_) if dense => (&[1, 2], &[1, 31, 33, 64, 65]),
        Some(w) if w.seqs > 2 => (&[w.seqs], &[1, 3, 33]),
        Some(w) => (&[w.seqs], &[1, 33, 64, 65, 130, 300]),
        None => (&[1, 2, 3, 5], &[0, 1, 2, 5, 31, 33, 64, 65, 130, 300]),
    };
    let seqs = (0..dice.pick(counts))
        .map(|s| {
            let (most, first) = (wide.filter(|_| !dense).map_or(40, |w| w.queries), s == 0 && wide.is_some());
            let is_long = first && !dense && wide.is_some_and(|w| w.width < 512);
            let len = if is_long { dice.pick(&[65, 130, 300]) } else { dice.pick(lengths) };
            let queries = match (dense, first) {
                (true, _) => len,
                (false, true) => most,
                (false, false) => dice.pick(&[0, 1, 1, 2, 7, 40]).min(len).min(most),
            };
            Seq {
                queries,
                len,
                q: dice.values(queries * heads.q_cols(), 2.0, dtype),
                k: dice.values(len * heads.k_cols(), 1.0, kv_dtype),
                v: dice.values(len * heads.v_cols(), 1.0, kv_dtype),
            }
        })
        .collect();
    Case {
        heads,
        scores,
        sinks,
        bias,
        seqs,
        dtype,
        kv_format: kv_dtype.into(),
        page_size: dice.pick(&[1, 3, 16, 64]),
        page_seed: dice.bits(),
        padding: dice.pick(&[0, 0, 1, 3]),
        lays: lays(dice),
    }
}

/// A long context with the heads of a model: decoding next to a chunk of a prompt; over plain rows one long
/// text.
fn large(dtype: Float, dice: &mut Dice, dense: bool) -> Case {
    let lengths: &[(usize, usize)] = if dense { &[(257, 257)] } else { &[(1, 4097), (1, 4096), (17, 4095)] };
    of_lengths(dtype, dice, dense, grouped(128), lengths)
}

/// Four queries of a width to a key.
fn grouped(dim: usize) -> Heads {
    Heads { heads: 8, kv_heads: 2, k_dim: dim, v_dim: dim }
}

/// Thousands of keys with the heads of models, latent ones too; a window that ends among them.
const SIZES: usize = 6;

fn sized(dtype: Float, dice: &mut Dice, at: usize) -> Case {
    let latent = Heads { heads: 4, kv_heads: 1, k_dim: 576, v_dim: 512 };
    let pair = Heads { heads: 2, kv_heads: 2, k_dim: 96, v_dim: 96 };
    let (heads, lengths): (Heads, &[(usize, usize)]) = match at {
        0 => (grouped(64), &[(1, 4097), (5, 4096)]),
        1 => (Heads { heads: 4, ..grouped(256) }, &[(1, 4097), (3, 4095)]),
        2 => (latent, &[(1, 4097), (2, 4096)]),
        3 => (pair, &[(1, 4096), (3, 4098)]),
        // A column less than wgpu's kernels have room for.
        4 => (Heads { heads: 1, kv_heads: 1, k_dim: 33, v_dim: 511 }, &[(2, 4095)]),
        _ => (grouped(80), &[(2, 4097)]),
    };
    let mut case = of_lengths(dtype, dice, false, heads, lengths);
    case.scores.window = (at == 3).then_some(4095);
    case.scores.chunk = (at == 5).then_some(4096);
    case
}

/// Texts of thousands of tokens, which see all before them or some: few columns, since every token is a
/// query.
const DENSE_SIZES: usize = 2;

fn sized_dense(dtype: Float, dice: &mut Dice, at: usize) -> Case {
    let (count, dim, window) = [(1, 8, None), (2, 64, Some(65))][at % DENSE_SIZES];
    let heads = Heads { heads: count, kv_heads: 1, k_dim: dim, v_dim: dim };
    let mut case = of_lengths(dtype, dice, true, heads, &[(4097, 4097)]);
    (case.scores.causal, case.scores.window) = (true, window);
    case
}

/// Prompts of hundreds of tokens: several tiles of queries, keys that go round a ring.
fn prompts(dtype: Float, dice: &mut Dice, dense: bool) -> Vec<Case> {
    let lengths: &[(usize, usize)] = if dense { &[(700, 700)] } else { &[(700, 700), (129, 900)] };
    [64, 128].map(|dim| of_lengths(dtype, dice, dense, grouped(dim), lengths)).into()
}

fn of_lengths(dtype: Float, dice: &mut Dice, dense: bool, heads: Heads, lengths: &[(usize, usize)]) -> Case {
    let seqs = lengths.iter().map(|&(queries, len)| Seq {
        queries,
        len,
        q: dice.values(queries * heads.q_cols(), 2.0, dtype),
        k: dice.values(len * heads.k_cols(), 1.0, dtype),
        v: dice.values(len * heads.v_cols(), 1.0, dtype),
    });
    let seqs = seqs.collect();
    // T5's reach, next to heads without biases by distance.
    let relative = (heads.k_dim == 128).then_some(Relative { behind: 128, ahead: 128 });
    let scores = Scores { causal: !dense, relative, ..Scores::causal(0.088_388_346) };
    let (page_size, page_seed, padding) = (16, dice.bits(), 0);
    let sinks = Some(dice.values(heads.heads, 4.0, Float::F32));
    let bias = biases(dice, heads, &scores);
    Case {
        heads,
        scores,
        sinks,
        bias,
        seqs,
        dtype,
        kv_format: dtype.into(),
        page_size,
        page_seed,
        padding,
        lays: lays(dice),
    }
}

impl Case {
    fn rows(&self) -> usize {
        self.seqs.iter().map(|s| s.queries).sum()
    }

    /// Sizes of the step.
    fn shape(&self) -> StepShape {
        StepShape {
            tokens: self.rows() + self.padding,
            seqs: self.seqs.len() + self.padding,
            max_query: self.seqs.iter().map(|s| s.queries).max().unwrap_or(0),
            max_keys: self.seqs.iter().map(|s| s.len).max().unwrap_or(0),
            ..Default::default()
        }
    }

    /// The step's buffer on the device.
    fn step<B: Backend>(&self, dev: &mut Device<B>, shape: StepShape) -> Result<Buf<Mem<B>, u32>> {
        let mut step = StepWords::default();
        let mut fill = step.begin(shape);
        let mut end = 0;
        for (s, seq) in self.seqs.iter().enumerate() {
            for i in 0..seq.queries {
                fill.token(end + i, 0, (seq.len - seq.queries + i) as u32, SKIP, 0);
            }
            end += seq.queries;
            fill.seq(s, end, s as u32, seq.len as u32);
        }
        fill.pad_behind(self.seqs.len() - 1);
        dev.buffer(step.words())
    }

    /// One column block of all sequences as a matrix; padding rows hold zeros.
    fn stacked(&self, part: impl Fn(&Seq) -> &[f32], cols: usize, padding: usize, lay: usize) -> Grid {
        let mut values: Vec<f32> = self.seqs.iter().flat_map(|s| part(s).to_vec()).collect();
        values.resize(values.len() + padding * cols, 0.0);
        Grid { rows: values.len() / cols, cols, dtype: self.dtype, values, lay: self.lays[lay] }
    }

    /// The slab with every sequence in its pages, and the table `[seqs, stride]`.
    fn slab<B: Backend>(&self, dev: &mut Device<B>) -> Result<(Slab<Mem<B>>, Vec<u32>, usize)> {
        let size = self.page_size;
        let stride = self.seqs.iter().map(|s| s.len.div_ceil(size)).max().unwrap_or(0).max(1);
        let pages = self.seqs.iter().map(|s| s.len.div_ceil(size)).sum::<usize>() + 2;
        let Heads { kv_heads, k_dim, v_dim, .. } = self.heads;
        let layout = KvLayout { pages, page_size: size, kv_heads, k_dim, v_dim, format: self.kv_format };
        let slab = SlabCase { layout };
        let mut free = Dice::new(self.page_seed).shuffled(pages).into_iter();
        let (k_cols, v_cols) = (self.heads.k_cols(), self.heads.v_cols());
        let mut k = vec![f32::NAN; slab.slots() * k_cols];
        let mut v = vec![f32::NAN; slab.slots() * v_cols];
        // Entries behind a sequence's last page name a page that does not exist.
        let mut table = vec![u32::MAX; self.seqs.len() * stride];
        for (s, seq) in self.seqs.iter().enumerate() {
            for first in (0..seq.len).step_by(size) {
                let page = free.next().unwrap_or(0);
                table[s * stride + first / size] = page as u32;
                for p in first..(first + size).min(seq.len) {
                    let slot = page * size + p % size;
                    k[slot * k_cols..][..k_cols].copy_from_slice(&seq.k[p * k_cols..][..k_cols]);
                    v[slot * v_cols..][..v_cols].copy_from_slice(&seq.v[p * v_cols..][..v_cols]);
                }
            }
        }
        Ok((slab.place_with(dev, k, v)?, table, stride))
    }

    /// What is no number in a sequence's last positions, and the rows before them.
    fn unseen(&self, dice: &mut Dice) -> Option<Part<Self>> {
        let at = dice.below(self.seqs.len());
        if !self.scores.causal || self.seqs[at].queries < 2 {
            return None;
        }
        let mut case = self.clone();
        let seq = &mut case.seqs[at];
        let kept = 1 + dice.below(seq.queries - 1);
        let from = seq.len - seq.queries + kept;
        let wild = dice.pick(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        seq.v[from * self.heads.v_cols()..].fill(wild);
        seq.k[from * self.heads.k_cols()..].fill(wild);
        let before: usize = self.seqs[..at].iter().map(|s| s.queries).sum();
        Some((case, vec![0..before + kept]))
    }

    /// One query alone (with the keys it can see when the mask is causal), else one sequence alone.
    fn part(&self, dice: &mut Dice, single_queries: bool) -> Option<Part<Self>> {
        let at = dice.below(self.seqs.len());
        let seq = &self.seqs[at];
        if seq.queries == 0 {
            return None;
        }
        let first: usize = self.seqs[..at].iter().map(|s| s.queries).sum();
        let mut seq = seq.clone();
        let mut rows = first..first + seq.queries;
        if single_queries && self.scores.causal {
            let i = dice.below(seq.queries);
            let (q, k, v) = (self.heads.q_cols(), self.heads.k_cols(), self.heads.v_cols());
            seq.len = seq.len - seq.queries + i + 1;
            seq.q = seq.q[i * q..(i + 1) * q].to_vec();
            seq.k.truncate(seq.len * k);
            seq.v.truncate(seq.len * v);
            seq.queries = 1;
            rows = first + i..first + i + 1;
        }
        Some((Case { seqs: vec![seq], padding: 0, ..self.clone() }, vec![rows]))
    }
}

/// `attend`.
#[derive(Debug, Clone, Copy)]
pub struct Attend;

impl OpSpec for Attend {
    type Case = Case;
    fn kind(&self) -> OpKind {
        AttentionOpKind::Attend.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        generate(dtype, dice, false)
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        vec![large(dtype, dice, false)]
    }
    fn sizes(&self) -> usize {
        SIZES
    }
    fn sized(&self, dtype: Float, dice: &mut Dice, at: usize) -> Case {
        sized(dtype, dice, at)
    }
    fn wide(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        prompts(dtype, dice, false)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (slab, table, stride) = case.slab(dev)?;
        let table = dev.buffer(&table)?;
        let shape = case.shape();
        let step = case.step(dev, shape)?;
        let mut plan = dev.backend.attention_plan(shape)?;
        dev.stream.plan_attention(shape, &mut plan)?;
        let q = dev.grid(&case.stacked(|s| &s.q, case.heads.q_cols(), case.padding, 0))?;
        let sinks = dev.vector_opt(case.sinks.as_ref())?;
        let bias = dev.vector_opt(case.bias.as_ref())?;
        let mut out = dev.output(shape.tokens, case.heads.out_cols(), case.dtype, case.lays[3])?;
        dev.launch(|to| {
            to.run(ops::Attend {
                plan: &plan,
                q: q.view()?,
                kv: slab.view(),
                heads: case.heads,
                scores: &case.scores,
                sinks: sinks.as_ref(),
                bias: bias.as_ref(),
                seqs: Sequences::from(StepView::new(step.view(), shape)?),
                table: Table { pages: table.view(), stride },
                out: out.view_mut()?,
            })
        })?;
        Ok(vec![dev.read_rows(&out, "out", case.rows())?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        oracle::attend(case)
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        case.part(dice, true)
    }
    fn turns(&self, dtype: Float) -> u64 {
        turns(dtype)
    }
    fn unseen(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        case.unseen(dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        let page_size = dice.pick(&[1, 2, 16, 64]);
        Some(Case { page_size, page_seed: dice.bits(), lays: lays(dice), ..case.clone() })
    }
}

/// `attend_dense`.
#[derive(Debug, Clone, Copy)]
pub struct AttendDense;

impl OpSpec for AttendDense {
    type Case = Case;
    fn kind(&self) -> OpKind {
        AttentionOpKind::AttendDense.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        generate(dtype, dice, true)
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        vec![large(dtype, dice, true)]
    }
    fn sizes(&self) -> usize {
        DENSE_SIZES
    }
    fn sized(&self, dtype: Float, dice: &mut Dice, at: usize) -> Case {
        sized_dense(dtype, dice, at)
    }
    fn wide(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        prompts(dtype, dice, true)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let h = case.heads;
        let q = dev.grid(&case.stacked(|s| &s.q, h.q_cols(), 0, 0))?;
        let k = dev.grid(&case.stacked(|s| &s.k, h.k_cols(), 0, 1))?;
        let v = dev.grid(&case.stacked(|s| &s.v, h.v_cols(), 0, 2))?;
        let mut bounds = vec![0u32];
        for seq in &case.seqs {
            bounds.push(bounds[bounds.len() - 1] + seq.len as u32);
        }
        let bounds = dev.buffer(&bounds)?;
        let longest = case.seqs.iter().map(|s| s.len).max().unwrap_or(0);
        let sinks = dev.vector_opt(case.sinks.as_ref())?;
        let bias = dev.vector_opt(case.bias.as_ref())?;
        let mut out = dev.output(case.rows(), h.out_cols(), case.dtype, case.lays[3])?;
        dev.launch(|to| {
            to.run(ops::AttendDense {
                q: q.view()?,
                k: k.view()?,
                v: v.view()?,
                bounds: bounds.view(),
                max_rows: longest,
                heads: h,
                scores: &case.scores,
                sinks: sinks.as_ref(),
                bias: bias.as_ref(),
                out: out.view_mut()?,
            })
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        oracle::attend(case)
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        case.part(dice, false)
    }
    fn turns(&self, dtype: Float) -> u64 {
        turns(dtype)
    }
    fn unseen(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        case.unseen(dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        Some(Case { lays: lays(dice), ..case.clone() })
    }
}

/// Sequences and pages are named by data, which may be anything.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("attend", "kv", Field::Pages, "pages beyond the slab give rows that mean nothing"),
    Lawful::new("attend", "kv", Field::PageSize, "pages of another size"),
    Lawful::new("attend", "kv", Field::KvDtype, "keys and values are read from any type"),
    Lawful::new("attend", "table", Field::Len, "any whole rows"),
    Lawful::new("attend", "stride", Field::Size, "rows of another length that fill the table"),
    Lawful::new("attend", "schedule", Field::Size, "another step's: rows that it leaves out mean nothing"),
    Lawful::new("attend", "most queries", Field::Size, "launches are sized by it, memory is not"),
    Lawful::new("attend", "most keys", Field::Size, "launches are sized by it, memory is not"),
    Lawful::new("attend", "slopes", Field::Size, "as many as heads, where there were none"),
    Lawful::new("attend_dense", "slopes", Field::Size, "as many as heads, where there were none"),
    Lawful::new("attend_dense", "max_rows", Field::Size, "launches are sized by it, memory is not"),
    Lawful::new("attend_dense", "bounds", Field::Len, "any number of sequences"),
];
