//! The paged cache: `kv_append`, `kv_copy_pages`, and `kv_read`, through which both are looked at.
//!
//! Every slot of a slab first gets values of its own, so that a write to the wrong slot, a page that slips and a skipped
//! row that was written after all show in the comparison of the whole slab.

use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::{Dice, round};
use crate::oracle::kv as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::OpSpec;
use engraft_core::Result;
use engraft_core::backend::{Backend, KvLayout, KvView, PrimitiveOps, Table};
use engraft_core::mem::{Float, SKIP};
use engraft_core::numerics::Madd;
use engraft_core::params::Heads;

/// A slab: its layout, and what it holds at first.
#[derive(Debug, Clone, Copy)]
pub struct SlabCase {
    /// Shape.
    pub layout: KvLayout,
}

/// A slab on a device.
#[derive(Debug)]
pub struct Slab<M> {
    k: M,
    v: M,
    layout: KvLayout,
}

impl SlabCase {
    /// Room for `tokens` slots and some more.
    pub fn random(dice: &mut Dice, heads: Heads, tokens: usize, dtype: Float) -> Self {
        let page_size = dice.pick(&[1, 3, 16, 64]);
        let pages = (tokens + dice.below(20)).div_ceil(page_size) + 1;
        let Heads { kv_heads, k_dim, v_dim, .. } = heads;
        Self { layout: KvLayout { pages, page_size, kv_heads, k_dim, v_dim, dtype } }
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.layout.pages * self.layout.page_size
    }

    fn pattern(&self, cols: usize, salt: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 37 + salt) % 1021) as f32 / 8.0 - 64.0;
        (0..self.slots() * cols).map(|i| round(value(i), self.layout.dtype)).collect()
    }

    /// Keys of all slots at first.
    pub fn keys(&self) -> Vec<f64> {
        self.key_pattern().iter().map(|v| f64::from(*v)).collect()
    }

    fn key_pattern(&self) -> Vec<f32> {
        self.pattern(self.layout.kv_heads * self.layout.k_dim, 5)
    }

    /// Values of all slots at first.
    pub fn values(&self) -> Vec<f32> {
        self.pattern(self.layout.kv_heads * self.layout.v_dim, 600)
    }

    /// Allocates it and writes the pattern.
    pub fn place<B: Backend>(&self, dev: &mut Device<B>) -> Result<Slab<B::Mem>> {
        self.place_with(dev, self.key_pattern(), self.values())
    }

    /// Allocates it and writes these keys and values, slot after slot.
    pub fn place_with<B: Backend>(
        &self,
        dev: &mut Device<B>,
        k: Vec<f32>,
        v: Vec<f32>,
    ) -> Result<Slab<B::Mem>> {
        let layout = self.layout;
        let (k_bytes, v_bytes) = dev.backend.kv_bytes(&layout);
        let slab = Slab { k: dev.backend.alloc(k_bytes)?, v: dev.backend.alloc(v_bytes)?, layout };
        let rows = self.slots();
        let grid = |cols, values| Grid { rows, cols, dtype: layout.dtype, values, lay: Lay::default() };
        let k = dev.grid(&grid(layout.kv_heads * layout.k_dim, k))?;
        let v = dev.grid(&grid(layout.kv_heads * layout.v_dim, v))?;
        let slots: Vec<i32> = (0..rows as i32).collect();
        let slots = dev.buffer(&slots)?;
        dev.stream.kv_append(k.view(), v.view(), slots.view(), slab.view())?;
        Ok(slab)
    }
}

impl<M: engraft_core::mem::DeviceMem> Slab<M> {
    /// What ops take.
    pub fn view(&self) -> KvView<'_, M> {
        KvView { k: &self.k, v: &self.v, layout: self.layout }
    }

    /// Keys and values of every slot, through a table that lists all pages in order.
    pub fn read_all<B: Backend<Mem = M>>(&self, dev: &mut Device<B>) -> Result<[Output; 2]> {
        let KvLayout { pages, page_size, kv_heads, k_dim, v_dim, dtype } = self.layout;
        // Row 1 of the table, so that a row that is mixed up shows.
        let mut table = vec![0; pages];
        table.extend(0..pages as u32);
        let table = dev.buffer(&table)?;
        let rows = pages * page_size;
        let mut k = dev.output(rows, kv_heads * k_dim, dtype, Lay { lead: 3, gap: 5 })?;
        let mut v = dev.output(rows, kv_heads * v_dim, dtype, Lay { lead: 1, gap: 2 })?;
        let table = Table { pages: table.view(), stride: pages };
        dev.stream.kv_read(self.view(), table, 1, k.view_mut(), v.view_mut())?;
        Ok([dev.read(&k, "keys")?, dev.read(&v, "values")?])
    }
}

impl<M: engraft_core::mem::DeviceMem> Slab<M> {
    /// The same of a slab that is plain rows, by `gather_rows`.
    fn gather_all<B: Backend<Mem = M>>(&self, dev: &mut Device<B>) -> Result<[Output; 2]> {
        let [keys, values] = self.view().rows()?;
        let numbers: Vec<u32> = (0..keys.rows as u32).collect();
        let numbers = dev.buffer(&numbers)?;
        let mut k = dev.output(keys.rows, keys.cols, keys.dtype, Lay { lead: 2, gap: 3 })?;
        let mut v = dev.output(values.rows, values.cols, values.dtype, Lay::default())?;
        dev.stream.gather_rows(keys, numbers.view(), k.view_mut())?;
        dev.stream.gather_rows(values, numbers.view(), v.view_mut())?;
        Ok([dev.read(&k, "rows of keys")?, dev.read(&v, "rows of values")?])
    }
}

/// A slot of its own for every token; some write nothing.
pub fn distinct_slots(dice: &mut Dice, tokens: usize, slab: &SlabCase) -> Vec<i32> {
    let order = dice.shuffled(slab.slots());
    order[..tokens].iter().map(|s| if dice.once_in(6) { SKIP } else { *s as i32 }).collect()
}

fn heads(dice: &mut Dice) -> Heads {
    let kv_heads = dice.pick(&[1, 2, 5]);
    let (k_dim, v_dim) = (dice.pick(&[1, 16, 33, 64]), dice.pick(&[2, 16, 31, 64]));
    Heads { heads: kv_heads, kv_heads, k_dim, v_dim }
}

/// Rows to append.
#[derive(Debug, Clone)]
pub struct AppendCase {
    /// The slab.
    pub slab: SlabCase,
    /// `[tokens, kv_heads * k_dim]`.
    pub k: Grid,
    /// `[tokens, kv_heads * v_dim]`.
    pub v: Grid,
    /// `[tokens]`.
    pub slots: Vec<i32>,
}

impl AppendCase {
    /// Whether the slab is plain rows: one head, one position per page.
    fn is_rows(&self) -> bool {
        (self.slab.layout.kv_heads, self.slab.layout.page_size) == (1, 1)
    }
}

/// `kv_append`.
#[derive(Debug, Clone, Copy)]
pub struct KvAppend;

impl OpSpec for KvAppend {
    type Case = AppendCase;
    fn name(&self) -> &'static str {
        "kv_append"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> AppendCase {
        let (tokens, mut h) = (dice.rows(), heads(dice));
        let rows = dice.once_in(3);
        if rows {
            (h.heads, h.kv_heads) = (1, 1);
        }
        let kv_dtype =
            if dice.once_in(3) { dice.pick(&[Float::F32, Float::F16, Float::Bf16]) } else { dtype };
        let mut slab = SlabCase::random(dice, h, tokens, kv_dtype);
        if rows {
            (slab.layout.pages, slab.layout.page_size) = (slab.slots(), 1);
        }
        AppendCase {
            k: Grid::random(dice, tokens, h.k_cols(), dtype, 1.0),
            v: Grid::random(dice, tokens, h.v_cols(), dtype, 1.0),
            slots: distinct_slots(dice, tokens, &slab),
            slab,
        }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &AppendCase) -> Result<Vec<Output>> {
        let (k, v, slots) = (dev.grid(&case.k)?, dev.grid(&case.v)?, dev.buffer(&case.slots)?);
        let slab = case.slab.place(dev)?;
        dev.launch(|s, _| s.kv_append(k.view(), v.view(), slots.view(), slab.view()))?;
        let mut outputs: Vec<Output> = slab.read_all(dev)?.into();
        if case.is_rows() {
            outputs.extend(slab.gather_all(dev)?);
        }
        Ok(outputs)
    }
    fn oracle(&self, case: &AppendCase, _: Madd) -> Vec<Want> {
        let wants = oracle::append(case);
        let again = if case.is_rows() { wants.clone() } else { Vec::new() };
        wants.into_iter().chain(again).collect()
    }
    fn relaid(&self, case: &AppendCase, dice: &mut Dice) -> Option<AppendCase> {
        let mut case = case.clone();
        (case.k.lay, case.v.lay) = (Lay::random(dice), Lay::random(dice));
        Some(case)
    }
}

/// Pages to copy.
#[derive(Debug, Clone)]
pub struct CopyCase {
    /// The slab.
    pub slab: SlabCase,
    /// `[from, to, ...]`; no page is both a source and a target, but a page may be copied to itself.
    pub pairs: Vec<u32>,
}

/// `kv_copy_pages`.
#[derive(Debug, Clone, Copy)]
pub struct KvCopyPages;

impl OpSpec for KvCopyPages {
    type Case = CopyCase;
    fn name(&self) -> &'static str {
        "kv_copy_pages"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> CopyCase {
        let (h, tokens) = (heads(dice), dice.size());
        let slab = SlabCase::random(dice, h, tokens, dtype);
        let order = dice.shuffled(slab.layout.pages);
        let (from, to) = order.split_at(order.len() / 2);
        let mut pairs = Vec::new();
        for target in to {
            let source = if from.is_empty() || dice.once_in(5) { *target } else { dice.pick(from) };
            pairs.extend([source as u32, *target as u32]);
        }
        CopyCase { slab, pairs }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &CopyCase) -> Result<Vec<Output>> {
        let pairs = dev.buffer(&case.pairs)?;
        let slab = case.slab.place(dev)?;
        dev.launch(|s, _| s.kv_copy_pages(pairs.view(), slab.view()))?;
        Ok(slab.read_all(dev)?.into())
    }
    fn oracle(&self, case: &CopyCase, _: Madd) -> Vec<Want> {
        oracle::copy(case)
    }
}
