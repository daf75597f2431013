//! Matmuls on tensor cores with packed weights ([`crate::pack`]): `cuda/gemm.cuh`, `gemm.cu`, `gemmq.cu`.
//!
//! Mode `Invariant`: a row's bits depend on x, the weight, where the leaves begin and whether ranks could
//! share the sum ([`Sum`]), never on the number of rows. Who asks [`supports`] before anything else gets a
//! launch for every number of rows.
//!
//! Hopper alone: more than 8 rows take `cuda/gemmw.90a.cu` (16-bit weights) or `cuda/gemmwq.90a.cu`
//! (quantized ones) where [`Gemm::boxed`] gives a launch, with the same bits ([`Hopper`]). The weight is
//! packed alike; operands are read through tensor maps, which the driver's host code encodes from
//! [`TileMap`]s.

use super::{Activation, Elem, Format, Leaves, MatView};
use crate::Launch;
use crate::pack::{Encoding, Layout, UNIT};
use bytemuck::{Pod, Zeroable};

/// What follows the sum and the bias; the sum is rounded to the output's type in between, as separate ops
/// would.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Then {
    /// The sum itself.
    Nothing,
    /// `act(sum)`.
    Act(Activation),
    /// `out + sum`.
    Add,
    /// `act(gate) * up`, gated weights alone; out has half as many columns as the weight has rows.
    Gate(Activation),
}

/// `out = x w^T + bias`, and what follows.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Gemm {
    /// `[rows, k]`.
    pub x: MatView,
    /// `[rows, n]`, or `[rows, n / 2]` with a gate.
    pub out: MatView,
    /// Packed codes, at a multiple of 16.
    pub weight: u64,
    /// Packed scales, at a multiple of 16; 0 for plain weights.
    pub scales: u64,
    /// `[n]` f32, or 0.
    pub bias: u64,
    pub(super) n: u32,
    k: u32,
    units: u32,
    group_units: u32,
    groups: u32,
    pub(super) encoding: u32,
    pub(super) elem: Elem,
    elem_out: Elem,
    gated: u32,
    then: u32,
    act: Activation,
    own: u32,
    tree: u32,
    leaves: [u32; 9],
}

/// How a sum is divided into leaves of whole units, and how these are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    leaves: [u32; 9],
    own: u32,
    tree: bool,
}

impl Sum {
    /// Leaves of whole grains, added from the first to the last (see [`leaves`]).
    pub fn folded(k: usize, grain: usize) -> Self {
        Self { leaves: leaves(k, grain), own: 0xff, tree: false }
    }

    /// The same leaves, added by the tree: what ranks could share, but for where leaves begin.
    pub fn by_tree(k: usize, grain: usize) -> Self {
        Self { tree: true, ..Self::folded(k, grain) }
    }

    /// The leaves of a sum that ranks share, added by the tree; none where one begins inside a unit.
    pub fn shared(leaves: &Leaves) -> Option<Self> {
        let (bounds, unit) = (leaves.bounds(), UNIT as u32);
        let end = bounds[8];
        let whole = bounds.iter().all(|at| at.is_multiple_of(unit) || *at == end);
        whole.then(|| Self { leaves: bounds.map(|at| at.div_ceil(unit)), own: leaves.own(), tree: true })
    }
}

const NOTHING: u32 = 0;
const ACT: u32 = 1;
const ADD: u32 = 2;
const GATE: u32 = 3;

/// The encodings by number, and their names in entries.
const ENCODINGS: [(Encoding, &str); 13] = [
    (Encoding::Plain, ""),
    (Encoding::Bytes { offset: false }, "int8"),
    (Encoding::Bytes { offset: true }, "int8a"),
    (Encoding::Nibbles { offset: false }, "int4"),
    (Encoding::Nibbles { offset: true }, "int4a"),
    (Encoding::FiveBits { offset: false }, "int5"),
    (Encoding::FiveBits { offset: true }, "int5a"),
    (Encoding::E4m3, "fp8"),
    (Encoding::E2m1, "fp4"),
    (Encoding::Mx, "mxfp4"),
    (Encoding::LargeFourBits, "q4_k"),
    (Encoding::LargeFiveBits, "q5_k"),
    (Encoding::LargeSixBits, "q6_k"),
];

/// Number of an encoding, as `launch` reads it.
pub(super) fn number(encoding: Encoding) -> u32 {
    ENCODINGS.iter().position(|(other, _)| *other == encoding).unwrap_or(0) as u32
}

/// The encoding of a number, and its name.
fn numbered(encoding: u32) -> (Encoding, &'static str) {
    ENCODINGS.get(encoding as usize).copied().unwrap_or(ENCODINGS[0])
}

/// Whether there is a kernel for x and outputs of these types, a weight `[n, k]` of this format, with groups
/// of `group` values (0: a row; only own formats), for every number of rows. Rows of x may begin anywhere;
/// they are read fastest where they begin at multiples of 16 bytes.
///
/// # Errors
/// Why not.
pub fn supports(
    elem: Elem,
    elem_out: Elem,
    format: Format,
    group: usize,
    n: usize,
    k: usize,
    gated: bool,
) -> Result<Layout, &'static str> {
    if elem == Elem::F32 {
        return Err("tensor cores round f32 to 10 bits: f32 activations take the strict kernel");
    }
    if elem_out != Elem::F32 && elem_out != elem {
        return Err("outputs are f32 or of x's type");
    }
    let layout = Layout::of(format, group, n, k, gated)?;
    let other = if elem == Elem::F16 { Format::Bf16 } else { Format::F16 };
    match () {
        _ if format == other => Err("16-bit weights have x's type"),
        // Offsets within the tiles of a block are 32 bits wide.
        _ if n > 1 << 28 || k > 1 << 24 => Err("more than 2^28 rows or 2^24 columns"),
        _ => Ok(layout),
    }
}

/// Numbers of rows of the tiles of the kernels, smallest first.
const PLAIN_TILINGS: [&str; 6] = ["n8", "n16", "n32", "n64", "small", "wide"];
const PACKED_TILINGS: [&str; 3] = ["n8", "n32", "wide"];

/// The entry of a kernel, by its tile.
fn entry(encoding: u32, tiling: &str, elem: Elem) -> String {
    entry_of(["gemm", "gemmq"], encoding, tiling, elem)
}

/// The same of these stems: that of plain, that of quantized weights.
pub(super) fn entry_of([plain, packed]: [&str; 2], encoding: u32, tiling: &str, elem: Elem) -> String {
    match encoding {
        0 => format!("{plain}_{tiling}_{}", elem.name()),
        encoding => format!("{packed}_{tiling}_{}_{}", elem.name(), numbered(encoding).1),
    }
}

/// The entries of weights of this encoding: one per tile, that of a launch by its rows.
pub fn entries(encoding: Encoding, elem: Elem) -> impl Iterator<Item = String> {
    let tilings: &[&str] = if encoding == Encoding::Plain { &PLAIN_TILINGS } else { &PACKED_TILINGS };
    tilings.iter().map(move |tiling| entry(number(encoding), tiling, elem))
}

/// The name that stands for all of [`entries`] in reports: `gemmq_*_bf16_int8`.
pub fn name(encoding: Encoding, elem: Elem) -> String {
    entry(number(encoding), "*", elem)
}

/// Which of Hopper's kernels a matmul may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hopper {
    /// None: another device.
    None,
    /// Those that add by leaves: they give the bits of all others.
    ByLeaves,
    /// Mode `Fast`: for many rows one chain over all of K, too.
    All,
}

/// How one of Hopper's kernels tiles: rows of a block, blocks of a cluster that share the leaves, stages of
/// its ring (0: as many as fit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BoxTile {
    rows: u32,
    split: u32,
    stages: u32,
}

/// Outputs of a block of Hopper's kernels, in tiles.
const BOX_TILES: u32 = 8;

/// The kernels of `gemmw.90a.cu`, as the table in its head.
const BOXES: [BoxTile; 10] = [
    BoxTile { rows: 16, split: 1, stages: 6 },
    BoxTile { rows: 16, split: 4, stages: 6 },
    BoxTile { rows: 32, split: 1, stages: 5 },
    BoxTile { rows: 32, split: 4, stages: 5 },
    BoxTile { rows: 32, split: 8, stages: 5 },
    BoxTile { rows: 64, split: 1, stages: 4 },
    BoxTile { rows: 64, split: 4, stages: 4 },
    BoxTile { rows: 64, split: 8, stages: 4 },
    BoxTile { rows: 128, split: 1, stages: 5 },
    BoxTile { rows: 256, split: 1, stages: 4 },
];

/// The kernels of `gemmwq.90a.cu`.
const PACKED_BOXES: [BoxTile; 3] = [
    BoxTile { rows: 64, split: 1, stages: 0 },
    BoxTile { rows: 64, split: 4, stages: 0 },
    BoxTile { rows: 128, split: 1, stages: 0 },
];

/// The kernels of weights of this encoding.
fn boxes(encoding: u32) -> &'static [BoxTile] {
    if encoding == 0 { &BOXES } else { &PACKED_BOXES }
}

impl BoxTile {
    fn entry(self, encoding: u32, elem: Elem) -> String {
        let split = if self.split > 1 { format!("_split{}", self.split) } else { String::new() };
        match encoding {
            0 => format!("gemmw_n{}{split}_{}", self.rows, elem.name()),
            _ => format!("gemmwq_n{}{split}_{}_{}", self.rows, elem.name(), numbered(encoding).1),
        }
    }

    /// Shared memory of a block: the ring, two barriers a stage, where scales are two sums of x for every
    /// row, and room to begin at a multiple of 1024. Figures as in the heads of the kernels.
    fn shared_bytes(self, encoding: u32) -> u32 {
        let (half, scales, _) = bytes_of(encoding);
        let stage = (self.rows * 128 + BOX_TILES * 2 * (half + scales)).next_multiple_of(1024);
        let (stages, sums) = match self.stages {
            0 => (if self.rows == 128 { 163_840 } else { 106_496 } / stage, 2 * self.rows * 4),
            stages => (stages, 0),
        };
        stages * (stage + 16) + sums + 1024
    }

    /// Whether it is one chain over all of K.
    fn chain(self) -> bool {
        self.rows == 256
    }
}

/// Bytes of 32 values in a tile, of a group's scales in a tile; halves of a stage of the kernels for few
/// rows.
fn bytes_of(encoding: u32) -> (u32, u32, u32) {
    let encoding = numbered(encoding).0;
    let halves = if encoding.in_nibbles() { 2 } else { 1 };
    (encoding.unit_bytes() as u32 / 2, encoding.scale_bytes() as u32, halves)
}

/// The entries of Hopper's kernels for weights of this encoding.
pub fn boxed_entries(encoding: Encoding, elem: Elem, hopper: Hopper) -> impl Iterator<Item = String> {
    let taken = move |tile: &&BoxTile| match hopper {
        Hopper::None => false,
        Hopper::ByLeaves => !tile.chain(),
        Hopper::All => true,
    };
    let encoding = number(encoding);
    boxes(encoding).iter().filter(taken).map(move |tile| tile.entry(encoding, elem))
}

/// The name that stands for all of [`boxed_entries`] in reports.
pub fn boxed_name(encoding: Encoding, elem: Elem) -> String {
    match number(encoding) {
        0 => format!("gemmw_*_{}", elem.name()),
        encoding => format!("gemmwq_*_{}_{}", elem.name(), numbered(encoding).1),
    }
}

/// First unit of every leaf of a sum over `k`, and the end: the contract's halving in grains of whole units.
/// A grain that is no multiple of 64 counts as 64.
pub fn leaves(k: usize, grain: usize) -> [u32; 9] {
    fn halve(
        start: usize,
        units: usize,
        leaf: usize,
        leaves: usize,
        to: &mut [u32; 9],
        step: usize,
        end: usize,
    ) {
        to[leaf] = (start * step).min(end) as u32;
        if leaves > 1 {
            let first = units.div_ceil(2);
            halve(start, first, leaf, leaves / 2, to, step, end);
            halve(start + first, units - first, leaf + leaves / 2, leaves / 2, to, step, end);
        }
    }
    let grain = if grain > 0 && grain.is_multiple_of(UNIT) { grain } else { UNIT };
    let end = k.div_ceil(UNIT);
    let mut to = [end as u32; 9];
    halve(0, k.div_ceil(grain), 0, 8, &mut to, grain / UNIT, end);
    to
}

/// What a tensor map says: 16-bit elements, inner dimension first, zeros outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TileMap {
    /// First element, at a multiple of 16.
    pub address: u64,
    /// Sizes, two or four.
    pub dims: Vec<u64>,
    /// Bytes from one to the next of every dimension but the first, multiples of 16.
    pub strides: Vec<u64>,
    /// Sizes of a box.
    pub box_dims: Vec<u32>,
    /// Whether a box lies in a 128-byte swizzle.
    pub swizzled: bool,
    /// Element type.
    pub elem: Elem,
}

/// A matmul by Hopper's kernel: parameters without their maps yet, what these say, the launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxedLaunch {
    /// Parameters; `maps` are to be filled in.
    pub params: Boxed,
    /// What `maps` have to say: of x, of the weight, of its scales where it has some.
    pub maps: Vec<TileMap>,
    /// The launch.
    pub launch: Launch,
    /// Blocks of a cluster along x, which the kernel itself asks for.
    pub cluster: u32,
    /// Blocks of rows.
    pub rows: u32,
}

impl BoxedLaunch {
    /// Clusters that stand for all, each with how many: the last of the outputs and of the rows may have less
    /// to do than the others. Rows go before columns, in groups of eight.
    pub fn alike(&self) -> Vec<(u32, u32)> {
        const GROUP: u32 = 8;
        let (rows, columns) = (self.rows, self.launch.grid[0] / self.cluster / self.rows.max(1));
        let at = |row: u32, column: u32| {
            let group = row / GROUP;
            group * GROUP * columns + column * GROUP.min(rows - group * GROUP) + row % GROUP
        };
        let ends = |n: u32| [(0, n.saturating_sub(1)), (n.saturating_sub(1), 1)];
        let all = ends(rows).into_iter().flat_map(|row| ends(columns).map(|column| (row, column)));
        all.filter(|((_, r), (_, c))| r * c > 0)
            .map(|((row, r), (column, c))| (at(row, column), r * c))
            .collect()
    }
}

/// Parameters of Hopper's kernel.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Boxed {
    /// The tensor maps of x, of the weight and of its scales, as the driver encodes them.
    pub maps: [[u64; 16]; 3],
    gemm: Gemm,
    reserved: [u64; 4],
}

/// Rows up to which the weight's bytes are all that counts: Hopper's kernels are not faster there.
const BOXED_ABOVE: u32 = 8;
/// Blocks that give most SMs of a large device work.
const MANY: u32 = 96;

/// How a launch tiles the outputs: tiles of 16 and rows of a block, threads, shared memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiling {
    pub name: &'static str,
    pub tiles: u32,
    pub rows: u32,
    pub threads: u32,
    pub shared: u32,
}

impl Gemm {
    /// A matmul; `layout` as [`supports`] gave it.
    pub fn new(layout: &Layout, sum: Sum, elem: Elem, elem_out: Elem, then: Then) -> Self {
        let (then, act) = match then {
            Then::Nothing => (NOTHING, Activation::NONE),
            Then::Act(act) => (ACT, act),
            Then::Add => (ADD, Activation::NONE),
            Then::Gate(act) => (GATE, act),
        };
        Gemm {
            n: layout.n as u32,
            k: layout.k as u32,
            units: layout.units() as u32,
            group_units: layout.group_units() as u32,
            groups: layout.groups() as u32,
            encoding: number(layout.encoding),
            elem,
            elem_out,
            gated: u32::from(layout.gated),
            then,
            act,
            own: sum.own,
            tree: u32::from(sum.tree),
            leaves: sum.leaves,
            ..Gemm::zeroed()
        }
    }

    /// The launch for this number of rows. What it gives does not depend on which kernel it takes.
    pub fn launch(&self) -> Launch {
        let rows = self.x.rows;
        // The large tile only where it gives most SMs of a large device a block.
        let large = u64::from(self.n.div_ceil(128)) * u64::from(rows.div_ceil(128)) >= 96;
        let name = match (self.encoding > 0, rows) {
            (_, 0..=8) => "n8",
            (false, 9..=16) => "n16",
            (_, 9..=32) => "n32",
            (false, 33..=64) => "n64",
            (false, _) if !large => "small",
            _ => "wide",
        };
        let tilings = self.tilings();
        self.launch_by(tilings.iter().find(|tiling| tiling.name == name).unwrap_or(&tilings[0]))
    }

    /// The launches of all kernels that this matmul can take: all give the same bits, at different speed.
    pub fn choices(&self) -> Vec<Launch> {
        self.tilings().iter().map(|tiling| self.launch_by(tiling)).collect()
    }

    /// The same matmul by one of Hopper's kernels; none where those of [`Gemm::launch`] are as fast, and
    /// where rows of x do not begin at multiples of 16 bytes.
    pub fn boxed(&self, hopper: Hopper) -> Option<BoxedLaunch> {
        let fits = (self.x.ptr | (self.x.pitch * 2)).is_multiple_of(16);
        if !fits || hopper == Hopper::None || self.x.rows <= BOXED_ABOVE {
            return None;
        }
        self.best_box(hopper).map(|tile| self.boxed_by(tile))
    }

    /// What was fastest on an H200 (`bench/runs/2026-11-26-h200/matmuls.txt`; n16_split4, n32 and eight
    /// blocks of a cluster were measured with bulk copies of the weight alone; quantized weights:
    /// `bench/runs/2026-11-27-h200/packed.txt`, whole models).
    fn best_box(&self, hopper: Hopper) -> Option<BoxTile> {
        let (rows, columns) = (self.x.rows, self.n.div_ceil(16 * BOX_TILES));
        let blocks = |of: u32| columns * rows.div_ceil(of);
        if self.encoding > 0 {
            // Steps of up to 32 rows were slower than by gemmq.cu, and so were those of 256.
            let tile = match rows {
                0..=32 | 129..=1023 => return None,
                _ if rows > 64 && blocks(128) >= MANY => 128,
                _ => 64,
            };
            let split = if tile < 128 && blocks(tile) < MANY { 4 } else { 1 };
            return PACKED_BOXES.into_iter().find(|other| (other.rows, other.split) == (tile, split));
        }
        let tile = match rows {
            _ if hopper == Hopper::All && blocks(256) >= MANY && rows > 128 => 256,
            0..=16 => 16,
            17..=32 => 32,
            33..=64 => 64,
            _ if blocks(128) >= MANY => 128,
            _ => 64,
        };
        // Few blocks share their leaves with others where those are long. For up to 32 rows gemm.cu has more
        // and smaller ones.
        let split = match (tile, blocks(tile)) {
            (128 | 256, _) | (_, MANY..) => 1,
            (16, 0..=32) => return None,
            (_, 0..=24) => 8,
            (32, 25..=64) => 4,
            (_, 25..=32) if self.units >= 64 => 4,
            (_, 33..=64) if self.units >= if tile == 16 { 64 } else { 128 } => 4,
            (64, _) => 1,
            _ => return None,
        };
        BOXES.into_iter().find(|other| (other.rows, other.split) == (tile, split))
    }

    /// The launches of all of Hopper's kernels, for any number of rows; whether each adds by leaves.
    pub fn boxed_choices(&self) -> Vec<(BoxedLaunch, bool)> {
        boxes(self.encoding).iter().map(|tile| (self.boxed_by(*tile), !tile.chain())).collect()
    }

    fn boxed_by(&self, tile: BoxTile) -> BoxedLaunch {
        let rows = self.x.rows.div_ceil(tile.rows);
        let blocks = self.n.div_ceil(16).div_ceil(BOX_TILES) * rows;
        let mut maps = vec![TileMap {
            address: self.x.ptr,
            dims: vec![u64::from(self.k), u64::from(self.x.rows)],
            strides: vec![self.x.pitch * 2],
            box_dims: vec![UNIT as u32, tile.rows],
            swizzled: true,
            elem: self.elem,
        }];
        let (half, scales, _) = bytes_of(self.encoding);
        // A unit of a tile is 0.5 to 2 KiB, here in rows of 128 bytes.
        maps.push(self.tile_map(self.weight, 64, half / 64, self.units, 1));
        if scales > 0 {
            let groups = if self.group_units == 0 { 2 } else { 1 };
            maps.push(self.tile_map(self.scales, scales / 2, 1, self.groups, groups));
        }
        let launch = Launch {
            entry: tile.entry(self.encoding, self.elem),
            grid: [blocks * tile.split, 1, 1],
            block: [if self.encoding == 0 { 288 } else { 256 }, 1, 1],
            shared_bytes: tile.shared_bytes(self.encoding),
        };
        let params = Boxed { gemm: *self, ..Boxed::zeroed() };
        BoxedLaunch { params, maps, launch, cluster: tile.split, rows }
    }

    /// `count` pieces of `rows` times `values` elements for every tile; a box has `taken` pieces of a block's
    /// tiles.
    fn tile_map(&self, address: u64, values: u32, rows: u32, count: u32, taken: u32) -> TileMap {
        let (row, piece) = (u64::from(values) * 2, u64::from(values * rows) * 2);
        TileMap {
            address,
            dims: vec![values.into(), rows.into(), count.into(), u64::from(self.n.div_ceil(16))],
            strides: vec![row, piece, u64::from(count) * piece],
            box_dims: vec![values, rows, taken, BOX_TILES],
            swizzled: false,
            elem: self.elem,
        }
    }

    fn launch_by(&self, tiling: &Tiling) -> Launch {
        let entry = entry(self.encoding, tiling.name, self.elem);
        let grid = [self.n.div_ceil(16).div_ceil(tiling.tiles), self.x.rows.div_ceil(tiling.rows), 1];
        Launch { entry, grid, block: [tiling.threads, 1, 1], shared_bytes: tiling.shared }
    }

    /// The kernels of this encoding; figures as in the tables of `gemm.cu` and `gemmq.cu`.
    pub(super) fn tilings(&self) -> Vec<Tiling> {
        let (half, scales, halves) = bytes_of(self.encoding);
        // The board: f32 sums of all leaves (of one, in the dense kernels), 4 more columns than outputs.
        let board = |tiles: u32, rows: u32| rows * (16 * tiles + 4) * 4;
        let skinny = |name: &'static str, warps: u32, tiles: u32, rows: u32, stages: u32| {
            let ring = stages * warps * halves * (tiles * (half + scales) + rows * 64);
            Tiling { name, tiles, rows, threads: 32 * warps, shared: ring.max(8 * board(tiles, rows)) }
        };
        let dense = |name: &'static str, warps: u32, tiles: u32, rows: u32, stages: u32| {
            let ring = stages * (2 * tiles * (half + scales) + rows * 128);
            Tiling { name, tiles, rows, threads: 32 * warps, shared: ring.max(board(tiles, rows)) }
        };
        match self.encoding {
            0 => vec![
                skinny(PLAIN_TILINGS[0], 8, 1, 8, 8),
                skinny(PLAIN_TILINGS[1], 8, 1, 16, 6),
                skinny(PLAIN_TILINGS[2], 4, 2, 32, 6),
                skinny(PLAIN_TILINGS[3], 4, 2, 64, 4),
                dense(PLAIN_TILINGS[4], 4, 4, 64, 4),
                dense(PLAIN_TILINGS[5], 8, 8, 128, 3),
            ],
            _ => vec![
                skinny(PACKED_TILINGS[0], 8, 1, 8, if halves == 2 { 6 } else { 8 }),
                skinny(PACKED_TILINGS[1], 4, 2, 32, if halves == 2 { 4 } else { 6 }),
                dense(PACKED_TILINGS[2], 8, 8, 64, 4),
            ],
        }
    }
}
