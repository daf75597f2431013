//! Strict attention, over pages and over plain rows: `cuda/attention.cu`.

use super::kv::{KvView, PageTable};
use super::{Elem, MatView, launch};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// Positions of a chunk of keys.
pub const CHUNK: u32 = 64;
/// Widest value head that there is a kernel for.
pub const MOST_COLUMNS: u32 = 512;
/// Query heads of one block.
const HEADS: u32 = 4;
/// Bytes of shared memory of a head next to its query row (`OfHead`).
const OF_HEAD: u32 = (CHUNK + 4) * 4;

/// Bytes of shared memory that the heads of a block share (`Staged`).
fn staged(elem: Elem) -> u32 {
    /// Columns of a key or value that are staged at a time.
    const SLICE: u32 = 64;
    // Codes are widened on their way there.
    let bytes = if elem.is_coded() { Elem::F32.bytes() } else { elem.bytes() };
    CHUNK * (SLICE * bytes + 16) + CHUNK * 4
}

/// Shared memory that a block of these kernels has at most for keys of this type and width, in bytes.
pub fn most_shared(kv_elem: Elem, k_dim: u32) -> u64 {
    let rows = u64::from(HEADS) * (u64::from(OF_HEAD) + u64::from(k_dim.div_ceil(4)) * 16);
    u64::from(staged(kv_elem)) + rows
}

/// How scores are computed and what is seen.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct Scores {
    /// `[heads]` f32 slopes of the position bias, or 0.
    pub slopes: u64,
    /// Factor of the dot product.
    pub scale: f32,
    /// Soft cap, where [`Scores::CAPPED`].
    pub cap: f32,
    /// Keys at `query - window` and before are hidden, where [`Scores::WINDOW`]; positions of a chunk, above
    /// 0, where [`Scores::CHUNKED`].
    pub window: u32,
    /// Which of these hold.
    pub flags: u32,
    /// `[heads]` f32: scores without a key or a value, or 0.
    pub sinks: u64,
    /// Keys behind `query + ahead` are hidden: 0 where the mask is causal, [`Scores::ALL`] for none.
    pub ahead: u32,
    /// Positions before a query that have a bias of their own.
    pub bias_behind: u32,
    /// `[heads, bias_behind + 1 + bias_ahead]` f32 biases by distance, the sum below 2^31; or 0.
    pub bias: u64,
    /// Positions after a query that have a bias of their own.
    pub bias_ahead: u32,
    /// Zero.
    pub reserved: u32,
}

impl Scores {
    /// There is a window.
    pub const WINDOW: u32 = 2;
    /// There is a soft cap.
    pub const CAPPED: u32 = 4;
    /// Keys before the query's chunk are hidden.
    pub const CHUNKED: u32 = 8;
    /// Further ahead than there are keys.
    pub const ALL: u32 = u32::MAX;
}

/// Scratch of a walk that is split over blocks: per (token, head, chunk) the chunk's maximum, sum and output,
/// f32.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Split {
    /// `[tokens, heads, chunks, 2 + v_dim]` f32; 0: one block walks all chunks.
    pub parts: u64,
    /// Chunks that a token has room for: `max_keys / 64` rounded up.
    pub chunks: u32,
    /// Chunks that a block walks.
    pub share: u32,
}

impl Split {
    /// Bytes of `parts`.
    pub fn bytes(tokens: u32, heads: u32, max_keys: u32, v_dim: u32) -> u64 {
        let sizes = [heads, max_keys.div_ceil(CHUNK), v_dim.saturating_add(2), 4];
        sizes.iter().fold(u64::from(tokens), |all, size| all.saturating_mul(u64::from(*size)))
    }

    /// How a step of `tokens` rows of up to `max_keys` keys is split (no bit depends on it); none where rows
    /// and heads fill a large device anyway, or where there is little to split.
    pub fn plan(tokens: u32, kv_heads: u32, max_keys: u32, parts: u64) -> Split {
        /// Blocks that fill a large device a few times over.
        const BLOCKS: u32 = 1024;
        let chunks = max_keys.div_ceil(CHUNK);
        let rows = tokens.saturating_mul(kv_heads).max(1);
        if chunks < 4 || rows >= BLOCKS / 2 {
            return Split::default();
        }
        let share = chunks.div_ceil((BLOCKS / rows).clamp(1, chunks)).max(1);
        Split { parts, chunks, share }
    }
}

/// The suffix of entries for a value width.
fn columns(v_dim: u32) -> usize {
    usize::from(v_dim > 128)
}

/// Blocks of `[64, heads]`: `(grid y, block y, shared bytes)`.
fn heads_of(heads: u32, kv_heads: u32, k_dim: u32, elem: Elem) -> (u32, u32, u32) {
    let group = heads / kv_heads.max(1);
    let per_block = group.clamp(1, HEADS);
    (
        kv_heads * group.div_ceil(per_block),
        per_block,
        staged(elem) + per_block * (OF_HEAD + k_dim.div_ceil(4) * 16),
    )
}

/// Attention over pages.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Paged {
    /// `[tokens, heads * k_dim]`.
    pub q: MatView,
    /// `[tokens, heads * v_dim]`.
    pub out: MatView,
    /// Keys and values.
    pub kv: KvView,
    /// Scores and masks.
    pub scores: Scores,
    /// `[seqs + 1]` u32: sequence `s` has query rows `bounds[s]..bounds[s + 1]`.
    pub bounds: u64,
    /// `[seqs]` u32: rows of the page table.
    pub table_rows: u64,
    /// `[seqs]` u32: keys, this step's included.
    pub kv_lens: u64,
    /// The page table.
    pub table: PageTable,
    /// Whether chunks go over blocks.
    pub split: Split,
    /// Sequences.
    pub seqs: u32,
    /// Query heads.
    pub heads: u32,
    /// Element type of `q` and `out`.
    pub elem: Elem,
    /// Zero.
    pub reserved: u32,
}

impl Paged {
    /// The entries for keys and values of this type and values of this width: whole walks, split ones, their
    /// merge.
    pub fn entries(kv_elem: Elem, v_dim: u32) -> [&'static str; 3] {
        const WHOLE: [[&str; 2]; 5] = [
            ["attention_paged_whole_f32_128", "attention_paged_whole_f32_512"],
            ["attention_paged_whole_f16_128", "attention_paged_whole_f16_512"],
            ["attention_paged_whole_bf16_128", "attention_paged_whole_bf16_512"],
            ["attention_paged_whole_int8_128", "attention_paged_whole_int8_512"],
            ["attention_paged_whole_fp8_128", "attention_paged_whole_fp8_512"],
        ];
        const SPLIT: [[&str; 2]; 5] = [
            ["attention_paged_split_f32_128", "attention_paged_split_f32_512"],
            ["attention_paged_split_f16_128", "attention_paged_split_f16_512"],
            ["attention_paged_split_bf16_128", "attention_paged_split_bf16_512"],
            ["attention_paged_split_int8_128", "attention_paged_split_int8_512"],
            ["attention_paged_split_fp8_128", "attention_paged_split_fp8_512"],
        ];
        const MERGE: [&str; 2] = ["attention_merge_128", "attention_merge_512"];
        let (elem, columns) = (kv_elem.index(), columns(v_dim));
        [WHOLE[elem][columns], SPLIT[elem][columns], MERGE[columns]]
    }

    /// The walk; where it is split, [`Paged::merge`] follows.
    pub fn launch(&self) -> Launch {
        let [whole, split, _] = Self::entries(self.kv.elem, self.kv.v_dim);
        let entry = if self.split.parts == 0 { whole } else { split };
        let (y, heads, shared) = heads_of(self.heads, self.kv.kv_heads, self.kv.k_dim, self.kv.elem);
        let z = match self.split.parts {
            0 => 1,
            _ => self.split.chunks.div_ceil(self.split.share.max(1)),
        };
        let rows = if self.seqs == 0 { 0 } else { self.q.rows };
        Launch { shared_bytes: shared, ..launch(entry, [rows, y, z], [64, heads, 1]) }
    }

    /// The second launch of a split walk.
    pub fn merge(&self) -> Option<Launch> {
        let [.., entry] = Self::entries(self.kv.elem, self.kv.v_dim);
        let rows = if self.seqs == 0 { 0 } else { self.q.rows };
        (self.split.parts != 0).then(|| launch(entry, [rows, self.heads, 1], [64, 1, 1]))
    }
}

/// Attention without pages: sequence `s` has rows `bounds[s]..bounds[s + 1]` of q, k and v.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Dense {
    /// `[tokens, heads * k_dim]`.
    pub q: MatView,
    /// `[tokens, heads * v_dim]`.
    pub out: MatView,
    /// `[tokens, kv_heads * k_dim]`.
    pub k: MatView,
    /// `[tokens, kv_heads * v_dim]`.
    pub v: MatView,
    /// Scores and masks.
    pub scores: Scores,
    /// `[seqs + 1]` u32.
    pub bounds: u64,
    /// Sequences.
    pub seqs: u32,
    /// Query heads.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Width of a query and key head.
    pub k_dim: u32,
    /// Width of a value head.
    pub v_dim: u32,
    /// Element type of all four.
    pub elem: Elem,
}

impl Dense {
    /// The entry for operands of this type and values of this width.
    pub fn entry(elem: Elem, v_dim: u32) -> &'static str {
        const WHOLE: [[&str; 2]; 3] = [
            ["attention_dense_whole_f32_128", "attention_dense_whole_f32_512"],
            ["attention_dense_whole_f16_128", "attention_dense_whole_f16_512"],
            ["attention_dense_whole_bf16_128", "attention_dense_whole_bf16_512"],
        ];
        WHOLE[elem.index()][columns(v_dim)]
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let entry = Self::entry(self.elem, self.v_dim);
        let (y, heads, shared) = heads_of(self.heads, self.kv_heads, self.k_dim, self.elem);
        let rows = if self.seqs == 0 { 0 } else { self.q.rows };
        Launch { shared_bytes: shared, ..launch(entry, [rows, y, 1], [64, heads, 1]) }
    }
}

/// Attention without pages whose scores have terms by distance: a key head for every query head.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Disentangled {
    /// What it is without them.
    pub dense: Dense,
    /// Queries of distances `[2 * reach + 1, heads * k_dim]`; all zero where there are none.
    pub distance_q: MatView,
    /// Keys of distances, likewise.
    pub distance_k: MatView,
    /// Distances on a side that have rows of their own; below 2^31.
    pub reach: u32,
    /// Zero.
    pub reserved: u32,
}

impl Disentangled {
    /// The entry for operands of this type and values of this width.
    pub fn entry(elem: Elem, v_dim: u32) -> &'static str {
        const ALL: [[&str; 2]; 3] = [
            ["attention_disentangled_f32_128", "attention_disentangled_f32_512"],
            ["attention_disentangled_f16_128", "attention_disentangled_f16_512"],
            ["attention_disentangled_bf16_128", "attention_disentangled_bf16_512"],
        ];
        ALL[elem.index()][columns(v_dim)]
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        Launch { entry: Self::entry(self.dense.elem, self.dense.v_dim).into(), ..self.dense.launch() }
    }
}
