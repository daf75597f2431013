// Paged keys and values (layout: paged.cuh): append, copy of pages, read.
//
//   append  row t of k and v, [tokens, kv_heads * dim], to slot slots[t] = page * page_size + offset;
//           negative slots, and slots beyond the slab, are left out. Element types of rows and slab may
//           differ: rounded once.
//           append_codes: the same where the slab is of codes (codes.cuh)
//   copy    pages from[i] to to[i] of pairs [from, to, ...], one pair after the other, scales with codes
//   read    positions 0.. of a row of the page table, as plain rows
//   rotated rows of q | k | v: every head of q and k is normed (where asked), rotated by its row's position
//           (where asked) and stored in place, k and v are appended. Rounds where norm, rope and append one
//           after the other would.
//
// Bytes: every element read once and written once (rotated: k twice; append_codes: read twice, the largest
// first). Launch: a thread takes 8 elements of one head where both widths are multiples of 8, one otherwise
// (copy: 16, 4, 2 bytes or 1, the most that all its parts are multiples of); blocks of [units of a row,
// rows]. rotated: a warp per token and head, which lies in shared memory as f32 between the steps;
// append_codes: a warp per token and head; both blocks of 4 heads, grid [heads / 4, tokens].
#include "codes.cuh"
#include "rotate.cuh"

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

// Which part of a row a thread moves: `unit` elements of a key or value head, at column `column` of the row
// of k or v.
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
    begin();
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

extern "C" __global__ void __launch_bounds__(128) kv_append_codes(const __grid_constant__ Append p) {
    begin();
    const KvView &kv = p.kv;
    u32 head = blockIdx.x * 4 + threadIdx.x / 32;
    if (head >= 2 * kv.kv_heads) return;
    bool is_key = head < kv.kv_heads;
    if (!is_key) head -= kv.kv_heads;
    u32 width = is_key ? kv.k_dim : kv.v_dim;
    const MatView &x = is_key ? p.k : p.v;
    u64 slab = is_key ? kv.keys : kv.values, scales = scales_of(kv, is_key);
    const int *slots = reinterpret_cast<const int *>(p.slots);
    for (u32 t = blockIdx.y; t < p.k.rows; t += gridDim.y) {
        int slot = slots[t];
        if (slot < 0) continue;
        u32 page = (u32)slot / kv.page_size, offset = (u32)slot % kv.page_size;
        if (page >= kv.pages) continue;
        u64 row = row_number(kv, page, head, offset), from = (u64)t * x.pitch + (u64)head * width;
        put_codes(kv.elem, slab + row * width, reinterpret_cast<float *>(scales) + row, width,
                  [&](u32 d) { return load_any(x.ptr, from + d, p.elem); });
    }
}

// The value of a part's code, or of eight.
DEVICE void read_codes(u32 unit, bool wide, const KvView &kv, const Part &part, u64 row, u64 out, u64 out_at, u32 out_elem) {
    u64 codes = (part.is_key ? kv.keys + row * kv.k_dim : kv.values + row * kv.v_dim) + part.d;
    float scale = reinterpret_cast<const float *>(scales_of(kv, part.is_key))[row];
    if (unit == 1) return store_any(out, out_at, out_elem, mul(code_value(kv.elem, *reinterpret_cast<const u8 *>(codes), 0), scale));
    uint2 words = *reinterpret_cast<const uint2 *>(codes);
    float v[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) v[i] = mul(code_value(kv.elem, i < 4 ? words.x : words.y, i % 4), scale);
    store_any_part(out, out_at, 8, wide, out_elem, v);
}

extern "C" __global__ void __launch_bounds__(256) kv_read(const __grid_constant__ Read p) {
    begin();
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
        u64 to = (u64)t * out.pitch + part.column;
        if (is_coded(p.kv.elem)) {
            read_codes(unit, wide, p.kv, part, row_number(p.kv, page, part.head, offset), out.ptr, to, p.elem);
        } else {
            move(unit, wide, slab, index_of(p.kv, part, page, offset), p.kv.elem, out.ptr, to, p.elem);
        }
    }
}

// Units side by side, pairs in order within one unit: a page may be copied on in the same call. Keys, values,
// then the scales of both.
template <typename U>
DEVICE void copy(const Copy &p) {
    begin();
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x, positions = (u64)p.kv.kv_heads * p.kv.page_size;
    u64 base = 0, page_units = 0;
#pragma unroll 1
    for (u32 part = 0; part < 4; part++) {
        bool is_key = part % 2 == 0, is_scale = part >= 2;
        u32 width = is_key ? p.kv.k_dim : p.kv.v_dim;
        u32 bytes = !is_scale ? width * kept_bytes(p.kv.elem) : is_coded(p.kv.elem) && width != 0 ? sizeof(float) : 0;
        page_units = positions * bytes / sizeof(U);
        base = is_scale ? scales_of(p.kv, is_key) : is_key ? p.kv.keys : p.kv.values;
        if (at < page_units) break;
        at -= page_units;
        page_units = 0;
    }
    if (page_units == 0) return;
    U *slab = reinterpret_cast<U *>(base);
    const u32 *pairs = reinterpret_cast<const u32 *>(p.pairs);
    for (u32 i = 0; i < p.count; i++) {
        u32 from = pairs[2 * i], to = pairs[2 * i + 1];
        if (from == to || from >= p.kv.pages || to >= p.kv.pages) continue;
        slab[to * page_units + at] = slab[from * page_units + at];
    }
}

extern "C" __global__ void __launch_bounds__(256) kv_copy_wide(const __grid_constant__ Copy p) { copy<uint4>(p); }
extern "C" __global__ void __launch_bounds__(256) kv_copy_words(const __grid_constant__ Copy p) { copy<u32>(p); }
extern "C" __global__ void __launch_bounds__(256) kv_copy_narrow(const __grid_constant__ Copy p) { copy<u16>(p); }
extern "C" __global__ void __launch_bounds__(256) kv_copy_bytes(const __grid_constant__ Copy p) { copy<u8>(p); }

// The norm of a head; `flags` 0: none.
struct HeadNorm {
    u64 weight;
    u64 bias;
    float eps;
    u32 flags;
};
constexpr u32 NORM = 1;
constexpr u32 LAYER = 2;
constexpr u32 PLUS_ONE = 4;

struct RotateAppend {
    MatView qkv;
    KvView kv;
    HeadNorm q_norm;
    HeadNorm k_norm;
    // No table: nothing is rotated.
    u64 table;
    u64 positions;
    u64 slots;
    u32 table_positions;
    u32 pairs;
    u32 interleaved;
    u32 heads;
    u32 elem;
    u32 reserved;
};

// The sum over a head in shared memory, in the contract's order, in every lane.
template <typename F>
DEVICE float total(const float *x, u32 width, F step) {
    u32 lane = threadIdx.x % 32;
    float acc = 0.0f;
    if (lane < LEAVES) {
        u32 to = leaf_start(width, 1, lane + 1);
        for (u32 k = leaf_start(width, 1, lane); k < to; k++) acc = step(acc, x[k]);
    }
    return __shfl_sync(0xffffffffu, tree_of_lanes(acc), 0);
}

// Norms a head in shared memory, as norm.cu does, and rounds it.
template <typename T>
DEVICE void norm(const HeadNorm &norm, float *x, u32 width) {
    u32 lane = threadIdx.x % 32;
    const float *weight = reinterpret_cast<const float *>(norm.weight);
    const float *bias = reinterpret_cast<const float *>(norm.bias);
    bool layer = norm.flags & LAYER;
    float n = (float)width;
    float mean = layer ? div(total(x, width, [](float acc, float v) { return add(acc, v); }), n) : 0.0f;
    float squares = total(x, width, [=](float acc, float v) {
        float d = layer ? sub(v, mean) : v;
        return madd(d, d, acc);
    });
    float scale = rsqrt_of(add(div(squares, n), norm.eps));
    __syncwarp();
    for (u32 d = lane; d < width; d += 32) {
        float y = mul(layer ? sub(x[d], mean) : x[d], scale);
        float w = weight ? weight[d] : 1.0f;
        if (norm.flags & PLUS_ONE) w = add(1.0f, w);
        if (weight && bias) {
            y = madd(y, w, bias[d]);
        } else if (weight) {
            y = mul(y, w);
        } else if (bias) {
            y = add(y, bias[d]);
        }
        x[d] = rounded<T>(y);
    }
    __syncwarp();
}

template <typename T>
DEVICE void rotate_append(const RotateAppend &p) {
    extern __shared__ __align__(16) float heads[];
    constexpr u32 N = Wide<T>::N;
    begin();
    const KvView &kv = p.kv;
    u32 lane = threadIdx.x % 32, head = blockIdx.x * 4 + threadIdx.x / 32;
    if (head >= p.heads + 2 * kv.kv_heads) return;
    bool is_value = head >= p.heads + kv.kv_heads, is_key = head >= p.heads && !is_value;
    u32 width = is_value ? kv.v_dim : kv.k_dim;
    float *x = heads + threadIdx.x / 32 * most(kv.k_dim, kv.v_dim);
    u32 kv_head = is_value ? head - p.heads - kv.kv_heads : head - p.heads;
    u32 column = is_value ? (p.heads + kv.kv_heads) * kv.k_dim + kv_head * kv.v_dim : head * kv.k_dim;
    bool wide = aligned<T>(p.qkv) && (column % N | width % N) == 0;
    u64 slab = is_value ? kv.values : kv.keys;
    bool wide_slab = width % 8 == 0 && (slab & 15) == 0;
    // Heads in shared memory begin at multiples of 16 bytes, and parts are whole.
    bool even = ((kv.k_dim | kv.v_dim) & 7) == 0;
    for (u32 t = blockIdx.y; t < p.qkv.rows; t += gridDim.y) {
        T *row = row_of<T>(p.qkv, t) + column;
        for (u32 d = lane * N; d < width; d += 32 * N) {
            float v[N];
            load_part(row, d, width, wide, v);
            store_part(x, d, width, even, v);
        }
        __syncwarp();
        bool changed = false;
        if (!is_value) {
            const HeadNorm &by = is_key ? p.k_norm : p.q_norm;
            if (by.flags & NORM) {
                norm<T>(by, x, width);
                changed = true;
            }
            u32 position = p.table ? reinterpret_cast<const u32 *>(p.positions)[t] : 0;
            if (p.table && position < p.table_positions) {
                const float *cos = reinterpret_cast<const float *>(p.table) + (u64)position * p.pairs;
                const float *sin = cos + (u64)p.table_positions * p.pairs;
                for (u32 i = lane; i < p.pairs; i += 32) {
                    u32 first = p.interleaved ? 2 * i : i, second = p.interleaved ? first + 1 : i + p.pairs;
                    float a = x[first], b = x[second];
                    rotate(a, b, cos[i], sin[i]);
                    x[first] = rounded<T>(a);
                    x[second] = rounded<T>(b);
                }
                changed = true;
                __syncwarp();
            }
        }
        if (changed) {
            for (u32 d = lane * N; d < width; d += 32 * N) {
                float v[N];
                load_part(x, d, width, even, v);
                store_part(row, d, width, wide, v);
            }
        }
        int slot = head >= p.heads ? reinterpret_cast<const int *>(p.slots)[t] : -1;
        if (slot >= 0 && (u32)slot / kv.page_size < kv.pages) {
            u32 page = (u32)slot / kv.page_size, offset = (u32)slot % kv.page_size;
            u64 number = row_number(kv, page, kv_head, offset), to = number * width;
            if (is_coded(kv.elem)) {
                float *scale = reinterpret_cast<float *>(scales_of(kv, !is_value)) + number;
                put_codes(kv.elem, slab + to, scale, width, [&](u32 d) { return x[d]; });
                __syncwarp();
                continue;
            }
            for (u32 d = lane * 8; d < width; d += 256) {
                float v[8];
                load_part(x, d, width, even, v);
                store_any_part(slab, to + d, width - d, wide_slab, kv.elem, v);
            }
        }
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(128) kv_rotated_f32(const __grid_constant__ RotateAppend p) { rotate_append<float>(p); }
extern "C" __global__ void __launch_bounds__(128) kv_rotated_f16(const __grid_constant__ RotateAppend p) { rotate_append<f16>(p); }
extern "C" __global__ void __launch_bounds__(128) kv_rotated_bf16(const __grid_constant__ RotateAppend p) { rotate_append<bf16>(p); }
