// Paged keys and values (layout: paged.cuh): append, copy of pages, read.
//
//   append  row t of k and v, [tokens, kv_heads * dim], to slot slots[t] = page * page_size + offset; negative slots, and
//           slots beyond the slab, are left out. Element types of rows and slab may differ: rounded once.
//   copy    pages from[i] to to[i] of pairs [from, to, ...], one pair after the other
//   read    positions 0.. of a row of the page table, as plain rows
//
// Bytes: every element read once and written once. Launch: a thread takes 8 elements of one head where both widths are
// multiples of 8, one otherwise (copy: 16 bytes, or 2); blocks of [units of a row, rows].
#include "paged.cuh"

struct Append {
    MatView k;
    MatView v;
    KvView kv;
    u64 slots;
    u32 elem;
    u32 reserved;
};

struct Read {
    MatView k;
    MatView v;
    KvView kv;
    u64 pages;
    u32 elem;
    u32 reserved;
};

struct Copy {
    KvView kv;
    u64 pairs;
    u32 count;
    u32 reserved;
};

// Which part of a row a thread moves: `unit` elements of a key or value head, at column `column` of the row of k or v.
struct Part {
    bool is_key;
    u32 head;
    u32 d;
    u32 column;
};

DEVICE u32 unit_of(const KvView &kv) { return ((kv.k_dim | kv.v_dim) & 7) == 0 ? 8 : 1; }

DEVICE Part part_of(const KvView &kv, u32 at) {
    u32 k_cols = kv.kv_heads * kv.k_dim;
    bool is_key = at < k_cols;
    u32 column = is_key ? at : at - k_cols;
    u32 dim = is_key ? kv.k_dim : kv.v_dim;
    return Part{is_key, column / dim, column % dim, column};
}

DEVICE u64 index_of(const KvView &kv, const Part &part, u32 page, u32 offset) {
    return (part.is_key ? key_index(kv, page, part.head, offset) : value_index(kv, page, part.head, offset)) + part.d;
}

// Moves one unit, rounding once.
DEVICE void move(u32 unit, bool wide, u64 from, u64 from_at, u32 from_elem, u64 to, u64 to_at, u32 to_elem) {
    if (unit == 1) return store_any(to, to_at, to_elem, load_any(from, from_at, from_elem));
    float v[8];
    load_any_part(from, from_at, 8, wide, from_elem, v);
    store_any_part(to, to_at, 8, wide, to_elem, v);
}

extern "C" __global__ void __launch_bounds__(256) kv_append(const __grid_constant__ Append p) {
    after_others();
    u32 unit = unit_of(p.kv);
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * unit;
    if (at >= p.kv.kv_heads * (p.kv.k_dim + p.kv.v_dim)) return;
    Part part = part_of(p.kv, at);
    const MatView &x = part.is_key ? p.k : p.v;
    u64 slab = part.is_key ? p.kv.keys : p.kv.values;
    bool wide = aligned_any(x, p.elem) && (slab & 15) == 0;
    const int *slots = reinterpret_cast<const int *>(p.slots);
    for (u32 t = blockIdx.y * blockDim.y + threadIdx.y; t < p.k.rows; t += gridDim.y * blockDim.y) {
        int slot = slots[t];
        if (slot < 0) continue;
        u32 page = (u32)slot / p.kv.page_size, offset = (u32)slot % p.kv.page_size;
        if (page >= p.kv.pages) continue;
        move(unit, wide, x.ptr, (u64)t * x.pitch + part.column, p.elem, slab, index_of(p.kv, part, page, offset), p.kv.elem);
    }
}

extern "C" __global__ void __launch_bounds__(256) kv_read(const __grid_constant__ Read p) {
    after_others();
    u32 unit = unit_of(p.kv);
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * unit;
    if (at >= p.kv.kv_heads * (p.kv.k_dim + p.kv.v_dim)) return;
    Part part = part_of(p.kv, at);
    const MatView &out = part.is_key ? p.k : p.v;
    u64 slab = part.is_key ? p.kv.keys : p.kv.values;
    bool wide = aligned_any(out, p.elem) && (slab & 15) == 0;
    const u32 *pages = reinterpret_cast<const u32 *>(p.pages);
    for (u32 t = blockIdx.y * blockDim.y + threadIdx.y; t < p.k.rows; t += gridDim.y * blockDim.y) {
        u32 page = pages[t / p.kv.page_size], offset = t % p.kv.page_size;
        if (page >= p.kv.pages) continue;
        move(unit, wide, slab, index_of(p.kv, part, page, offset), p.kv.elem, out.ptr, (u64)t * out.pitch + part.column, p.elem);
    }
}

// Units side by side, pairs in order within one unit: a page may be copied on in the same call.
template <typename U>
DEVICE void copy(const Copy &p) {
    after_others();
    u64 positions = (u64)p.kv.kv_heads * p.kv.page_size * elem_bytes(p.kv.elem);
    u64 key_units = positions * p.kv.k_dim / sizeof(U), value_units = positions * p.kv.v_dim / sizeof(U);
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= key_units + value_units) return;
    bool is_key = at < key_units;
    U *slab = reinterpret_cast<U *>(is_key ? p.kv.keys : p.kv.values);
    u64 page_units = is_key ? key_units : value_units;
    u64 within = is_key ? at : at - key_units;
    const u32 *pairs = reinterpret_cast<const u32 *>(p.pairs);
    for (u32 i = 0; i < p.count; i++) {
        u32 from = pairs[2 * i], to = pairs[2 * i + 1];
        if (from == to || from >= p.kv.pages || to >= p.kv.pages) continue;
        slab[to * page_units + within] = slab[from * page_units + within];
    }
}

extern "C" __global__ void __launch_bounds__(256) kv_copy_wide(const __grid_constant__ Copy p) { copy<uint4>(p); }
extern "C" __global__ void __launch_bounds__(256) kv_copy_narrow(const __grid_constant__ Copy p) { copy<u16>(p); }
