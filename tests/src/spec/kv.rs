//! The paged cache: `kv_append`, `kv_copy_pages`, and `kv_read`, through which both are looked at.
//!
//! Every slot of a slab first gets values of its own, so that a write to the wrong slot, a page that slips
//! and a skipped row that was written after all show in the comparison of the whole slab.

use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::laws::ORACLE;
use crate::oracle::{kv as oracle, kv_row};
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::{Backend, Mem};
use engraft_core::mem::{Float, KvFormat, KvLayout, SKIP, Slab, Table};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, KvOp, KvOpKind, Op, OpKind};
use engraft_core::params::Heads;
use engraft_cpu::Cpu;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(KvAppend);
    visitor.visit(KvCopyPages);
    visitor.visit(KvRead);
}

/// A slab: its layout, and what it holds at first.
#[derive(Debug, Clone, Copy)]
pub struct SlabCase {
    /// Shape.
    pub layout: KvLayout,
}

impl SlabCase {
    /// Room for `tokens` slots and some more.
    pub fn random(dice: &mut Dice, heads: Heads, tokens: usize, format: impl Into<KvFormat>) -> Self {
        let page_size = dice.pick(&[1, 3, 16, 64]);
        let pages = (tokens + dice.below(20)).div_ceil(page_size) + 1;
        let Heads { kv_heads, k_dim, v_dim, .. } = heads;
        let format = format.into();
        Self { layout: KvLayout { pages, page_size, kv_heads, k_dim, v_dim, format } }
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.layout.pages * self.layout.page_size
    }

    /// The slot that a device word names, where there is such a one.
    pub fn slot(&self, word: i32) -> Option<usize> {
        usize::try_from(word).ok().filter(|slot| *slot < self.slots())
    }

    /// What the format makes of these values.
    fn pattern(&self, width: usize, salt: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 37 + salt) % 1021) as f32 / 8.0 - 64.0;
        let values: Vec<f32> = (0..self.slots() * self.layout.kv_heads * width).map(value).collect();
        kv_row::rounded(self.layout.format, width, &values)
    }

    /// Keys of all slots at first.
    pub fn keys(&self) -> Vec<f64> {
        self.key_pattern().iter().map(|v| f64::from(*v)).collect()
    }

    fn key_pattern(&self) -> Vec<f32> {
        self.pattern(self.layout.k_dim, 5)
    }

    /// Values of all slots at first.
    pub fn values(&self) -> Vec<f32> {
        self.pattern(self.layout.v_dim, 600)
    }

    /// Allocates it and writes the pattern.
    pub fn place<B: Backend>(&self, dev: &mut Device<B>) -> Result<Slab<Mem<B>>> {
        self.place_with(dev, self.key_pattern(), self.values())
    }

    /// Allocates it and writes these keys and values, slot after slot.
    pub fn place_with<B: Backend>(
        &self,
        dev: &mut Device<B>,
        k: Vec<f32>,
        v: Vec<f32>,
    ) -> Result<Slab<Mem<B>>> {
        let layout = self.layout;
        let (k_bytes, v_bytes) = Slab::bytes::<B::Device>(&layout)?;
        let (k_mem, v_mem) = (dev.backend.alloc(k_bytes)?, dev.backend.alloc(v_bytes)?);
        let mut slab = Slab::new::<B::Device>(k_mem, v_mem, layout)?;
        let rows = self.slots();
        let dtype = layout.format.widened();
        let grid = |cols, values| Grid { rows, cols, dtype, values, lay: Lay::default() };
        let k = dev.grid(&grid(layout.kv_heads * layout.k_dim, k))?;
        let v = dev.grid(&grid(layout.kv_heads * layout.v_dim, v))?;
        let slots: Vec<i32> = (0..rows as i32).collect();
        let slots = dev.buffer(&slots)?;
        dev.run(ops::KvAppend { k: k.view()?, v: v.view()?, slots: slots.view(), kv: slab.view_mut() })?;
        Ok(slab)
    }
}

/// Keys and values of every slot, through a table that lists all pages in order.
pub fn read_all<B: Backend>(dev: &mut Device<B>, slab: &Slab<Mem<B>>) -> Result<[Output; 2]> {
    let KvLayout { pages, page_size, kv_heads, k_dim, v_dim, format } = slab.view().layout();
    let dtype = format.widened();
    // Row 1 of the table, so that a row that is mixed up shows.
    let mut table = vec![0; pages];
    table.extend(0..pages as u32);
    let table = dev.buffer(&table)?;
    let rows = pages * page_size;
    let mut k = dev.output(rows, kv_heads * k_dim, dtype, Lay { lead: 3, gap: 5 })?;
    let mut v = dev.output(rows, kv_heads * v_dim, dtype, Lay { lead: 1, gap: 2 })?;
    let table = Table { pages: table.view(), stride: pages };
    dev.run(ops::KvRead { kv: slab.view(), table, row: 1, k: k.view_mut()?, v: v.view_mut()? })?;
    Ok([dev.read(&k, "keys")?, dev.read(&v, "values")?])
}

/// The same of a slab that is plain rows, by `gather_rows`.
fn gather_all<B: Backend>(dev: &mut Device<B>, slab: &Slab<Mem<B>>) -> Result<[Output; 2]> {
    let [keys, values] = slab.view().rows()?;
    let numbers: Vec<u32> = (0..keys.rows() as u32).collect();
    let numbers = dev.buffer(&numbers)?;
    let mut k = dev.output(keys.rows(), keys.cols(), keys.dtype(), Lay { lead: 2, gap: 3 })?;
    let mut v = dev.output(values.rows(), values.cols(), values.dtype(), Lay::default())?;
    dev.run(ops::GatherRows { x: keys, rows: numbers.view(), out: k.view_mut()? })?;
    dev.run(ops::GatherRows { x: values, rows: numbers.view(), out: v.view_mut()? })?;
    Ok([dev.read(&k, "rows of keys")?, dev.read(&v, "rows of values")?])
}

/// A slot of its own for every token; some write nothing, some lie beyond the slab.
pub fn distinct_slots(dice: &mut Dice, tokens: usize, slab: &SlabCase) -> Vec<i32> {
    let (order, count) = (dice.shuffled(slab.slots()), slab.slots() as i32);
    let slot = |s: &usize| match dice.below(12) {
        0 | 1 => SKIP,
        2 => dice.pick(&[count, count + 3, i32::MAX - 1, i32::MIN]),
        _ => *s as i32,
    };
    order[..tokens].iter().map(slot).collect()
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
        let layout = self.slab.layout;
        (layout.kv_heads, layout.page_size) == (1, 1) && layout.format.float().is_some()
    }
}

/// `kv_append`.
#[derive(Debug, Clone, Copy)]
pub struct KvAppend;

impl OpSpec for KvAppend {
    type Case = AppendCase;
    fn kind(&self) -> OpKind {
        KvOpKind::KvAppend.into()
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
        let mut slab = case.slab.place(dev)?;
        dev.launch(|to| {
            to.run(ops::KvAppend { k: k.view()?, v: v.view()?, slots: slots.view(), kv: slab.view_mut() })
        })?;
        let mut outputs: Vec<Output> = read_all(dev, &slab)?.into();
        if case.is_rows() {
            outputs.extend(gather_all(dev, &slab)?);
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
    fn kind(&self) -> OpKind {
        KvOpKind::KvCopyPages.into()
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
            // Pairs with a page beyond the slab copy nothing.
            if dice.once_in(4) {
                let beyond = dice.pick(&[slab.layout.pages as u32, u32::MAX]);
                let pair = [beyond, *target as u32];
                pairs.extend(if dice.once_in(2) { pair } else { [pair[1], pair[0]] });
            }
        }
        CopyCase { slab, pairs }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &CopyCase) -> Result<Vec<Output>> {
        let pairs = dev.buffer(&case.pairs)?;
        let mut slab = case.slab.place(dev)?;
        dev.launch(|to| to.run(ops::KvCopyPages { pairs: pairs.view(), kv: slab.view_mut() }))?;
        Ok(read_all(dev, &slab)?.into())
    }
    fn oracle(&self, case: &CopyCase, _: Madd) -> Vec<Want> {
        oracle::copy(case)
    }
}

/// A sequence to read back.
#[derive(Debug, Clone)]
pub struct ReadCase {
    /// The slab.
    pub slab: SlabCase,
    /// `[rows, stride]` pages.
    pub table: Vec<u32>,
    /// Entries of a row.
    pub stride: usize,
    /// The row that is read.
    pub row: usize,
    /// Positions that are read.
    pub positions: usize,
    lays: [Lay; 2],
}

/// `kv_read`.
#[derive(Debug, Clone, Copy)]
pub struct KvRead;

impl OpSpec for KvRead {
    type Case = ReadCase;
    fn kind(&self) -> OpKind {
        KvOpKind::KvRead.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> ReadCase {
        let (h, tokens) = (heads(dice), dice.size());
        let slab = SlabCase::random(dice, h, tokens, dtype);
        let (rows, stride) = (dice.pick(&[1, 2, 5]), 1 + dice.below(slab.layout.pages));
        // Pages in any order, one perhaps in several places.
        let table = (0..rows * stride).map(|_| dice.below(slab.layout.pages) as u32).collect();
        let positions = 1 + dice.below(stride * slab.layout.page_size);
        let (row, lays) = (dice.below(rows), [Lay::random(dice), Lay::random(dice)]);
        ReadCase { slab, table, stride, row, positions, lays }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &ReadCase) -> Result<Vec<Output>> {
        let (slab, table) = (case.slab.place(dev)?, dev.buffer(&case.table)?);
        let KvLayout { kv_heads, k_dim, v_dim, format, .. } = case.slab.layout;
        let dtype = format.widened();
        let mut k = dev.output(case.positions, kv_heads * k_dim, dtype, case.lays[0])?;
        let mut v = dev.output(case.positions, kv_heads * v_dim, dtype, case.lays[1])?;
        dev.launch(|to| {
            let table = Table { pages: table.view(), stride: case.stride };
            let (kv, row, k, v) = (slab.view(), case.row, k.view_mut()?, v.view_mut()?);
            to.run(ops::KvRead { kv, table, row, k, v })
        })?;
        Ok(vec![dev.read(&k, "keys")?, dev.read(&v, "values")?])
    }
    fn oracle(&self, case: &ReadCase, _: Madd) -> Vec<Want> {
        oracle::read(case)
    }
    fn alone(&self, case: &ReadCase, dice: &mut Dice) -> Option<Part<ReadCase>> {
        let positions = 1 + dice.below(case.positions);
        Some((ReadCase { positions, ..case.clone() }, vec![0..positions, 0..positions]))
    }
    fn relaid(&self, case: &ReadCase, dice: &mut Dice) -> Option<ReadCase> {
        Some(ReadCase { lays: [Lay::random(dice), Lay::random(dice)], ..case.clone() })
    }
}

/// Planted in the paged cache.
pub const BUGS: &[Bug] = &[
    Bug::new("AppendSwapsKeysAndValues", "kv_append", ORACLE, swaps_keys_and_values),
    Bug::new("AppendNextSlot", "kv_append", ORACLE, next_slot),
    Bug::new("AppendWritesSkipped", "kv_append", ORACLE, writes_skipped),
    Bug::new("CopyPagesBackwards", "kv_copy_pages", ORACLE, copies_backwards),
    Bug::new("ReadFirstRowOfTable", "kv_read", ORACLE, first_row_of_table),
];

fn swaps_keys_and_values(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Kv(KvOp::KvAppend(mut op)) = op else { return s.run(op) };
    if op.k.cols() == op.v.cols() {
        (op.k, op.v) = (op.v, op.k);
    }
    s.run(op)
}

/// An append to other slots; the function gets their number.
fn to_slots(s: &mut Strike<'_>, op: Op<'_, Cpu>, other: impl Fn(i32, i32) -> i32) -> Result<()> {
    let Op::Kv(KvOp::KvAppend(op)) = op else { return s.run(op) };
    let count = op.kv.layout().slots() as i32;
    let slots = s.changed(op.slots, |slot| other(slot, count))?;
    s.run(ops::KvAppend { slots: slots.view(), ..op })
}

pub(super) fn next_slot(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    to_slots(s, op, |slot, count| if slot < 0 { slot } else { (slot + 1) % count })
}

fn writes_skipped(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    to_slots(s, op, |slot, count| if slot == SKIP { count - 1 } else { slot })
}

pub(super) fn copies_backwards(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Kv(KvOp::KvCopyPages(op)) = op else { return s.run(op) };
    let words = s.words(op.pairs)?;
    let swapped: Vec<u32> = words.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    let swapped = s.buffer(&swapped)?;
    s.run(ops::KvCopyPages { pairs: swapped.view(), ..op })
}

pub(super) fn first_row_of_table(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Kv(KvOp::KvRead(op)) = op else { return s.run(op) };
    s.run(ops::KvRead { row: 0, ..op })
}

/// Pages are named by data, and pages beyond the slab are skipped: it may have any.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("kv_append", "kv", Field::Pages, "slots beyond the slab write nothing"),
    Lawful::new("kv_append", "kv", Field::PageSize, "slots beyond the slab write nothing"),
    Lawful::new("kv_append", "kv", Field::KvDtype, "keys and values are rounded to any type"),
    Lawful::new("kv_copy_pages", "pairs", Field::Len, "any whole pairs"),
    Lawful::new("kv_copy_pages", "kv", Field::Pages, "pages beyond the slab are not copied"),
    Lawful::new("kv_copy_pages", "kv", Field::PageSize, "pages are copied whatever they hold"),
    Lawful::new("kv_copy_pages", "kv", Field::KvHeads, "pages are copied whatever they hold"),
    Lawful::new("kv_copy_pages", "kv", Field::KDim, "pages are copied whatever they hold"),
    Lawful::new("kv_copy_pages", "kv", Field::VDim, "pages are copied whatever they hold"),
    Lawful::new("kv_copy_pages", "kv", Field::KvDtype, "pages are copied whatever they hold"),
    Lawful::new("kv_read", "kv", Field::Pages, "rows of pages beyond the slab are not written"),
    Lawful::new("kv_read", "kv", Field::PageSize, "pages of another size with as many positions"),
    Lawful::new("kv_read", "kv", Field::KvDtype, "keys and values are read from any type"),
    Lawful::new("kv_read", "table", Field::Len, "more rows, or fewer behind the one that is read"),
    Lawful::new(
        "kv_read",
        "stride",
        Field::Size,
        "rows of another length that lie inside and have the positions",
    ),
    Lawful::new("kv_read", "row", Field::Size, "another row"),
];
