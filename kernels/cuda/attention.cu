// Strict attention, over pages and over plain rows, in the order of docs/numerics.md, 3:
//
//   s_j = (chain over d of madd(q_d, k_jd, acc)) * scale    capped: s = cap tanh(s (1 / cap))    slopes: s = madd(slope, j - p, s)
//   per chunk of 64 absolute positions: m = max s, e_j = exp(s_j - m), l = chain of l + e_j, o_d = chain of madd(e_j, v_jd, o_d)
//   merged ascending: M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = madd(L, a, l b), O = madd(O, a, o b); at the end O / L
//
// q [tokens, heads * k_dim], out [tokens, heads * v_dim]; keys and values in pages (paged.cuh), or as rows of matrices
// (dense: sequence s has rows bounds[s]..bounds[s + 1] of q, k and v). A row that sees nothing is zero; rows outside every
// sequence are not written.
//
// 64 threads serve a query row and head: thread t forms the score of key t of a chunk, then carries value columns t, t + 64,
// ... through it. The heads that share a key head sit in one block, up to 4 of them, and meet each other's keys in L1.
// Bytes: keys and values once per query row and block of heads.
//
// One launch: blocks of 64 * (heads of a block), grid [tokens, key heads * blocks of heads]: `whole`.
// Few rows and long sequences: chunks go over blocks in z, each leaves (m, l, o) of its chunks in scratch (`split`), and a
// second launch merges them in ascending order (`merge`): the same operations in the same order, so the same bits.
#include "paged.cuh"

constexpr u32 CHUNK = 64;
constexpr u32 CAUSAL = 1;
constexpr u32 WINDOW = 2;
constexpr u32 CAPPED = 4;

struct Scores {
    // [heads] f32, or 0.
    u64 slopes;
    float scale;
    float cap;
    u32 window;
    u32 flags;
};

// Where the parts of a split walk meet: per (token, head, chunk) m and l, and o [v_dim], f32.
struct Split {
    u64 parts;
    // Chunks that a token has room for.
    u32 chunks;
    // Chunks of a block.
    u32 share;
};

struct Paged {
    MatView q;
    MatView out;
    KvView kv;
    Scores scores;
    u64 bounds;
    u64 table_rows;
    u64 kv_lens;
    u64 pages;
    Split split;
    u32 table_stride;
    u32 seqs;
    u32 heads;
    u32 elem;
};

struct Dense {
    MatView q;
    MatView out;
    MatView k;
    MatView v;
    Scores scores;
    u64 bounds;
    u32 seqs;
    u32 heads;
    u32 kv_heads;
    u32 k_dim;
    u32 v_dim;
    u32 elem;
};

// A query row: where it stands, and what it sees.
struct Row {
    bool is_in;
    u32 seq;
    u32 first;
    u32 position;
    u32 lo;
    u32 hi;
};

// The last sequence that begins at or before a token's row, and the keys lo..hi that the row sees.
DEVICE Row place(const u32 *bounds, const u32 *lens, u32 seqs, const Scores &s, u32 token) {
    u32 lo = 0, hi = seqs;
    while (lo + 1 < hi) {
        u32 mid = (lo + hi) / 2;
        if (bounds[mid] <= token) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    Row row;
    row.seq = lo;
    row.first = bounds[lo];
    u32 end = bounds[lo + 1];
    row.is_in = token >= row.first && token < end;
    u32 len = lens ? lens[lo] : end - row.first;
    row.position = len - (end - token);
    row.hi = s.flags & CAUSAL ? least(row.position + 1, len) : len;
    row.lo = 0;
    if (s.flags & WINDOW) row.lo = least(row.position + 1 - least(s.window, row.position + 1), row.hi);
    return row;
}

// What a chunk gives: its maximum, its sum of weights, and this thread's columns.
template <u32 COLUMNS>
struct Result {
    float m;
    float l;
    float o[COLUMNS];
};

// Shared memory of one head: the query row first, then these.
struct Shared {
    float s[CHUNK];
    float e[CHUNK];
    u32 rows[CHUNK];
    float top[2];
};

template <u32 COLUMNS, typename T, typename R>
DEVICE Result<COLUMNS> chunk_of(const Scores &scores, const Row &row, u32 chunk, const float *q, Shared &sh, const T *keys,
                                u64 k_pitch, u32 k_dim, const T *values, u64 v_pitch, u32 v_dim, float slope, R row_number) {
    u32 t = threadIdx.x;
    u32 a = most(row.lo, chunk) - chunk, b = least(row.hi - chunk, CHUNK);
    float score = -3.40282347e38f;
    if (t >= a && t < b) {
        u32 number = row_number(chunk + t);
        sh.rows[t] = number;
        const T *key = keys + number * k_pitch;
        float acc = 0.0f;
        u32 d = 0;
        constexpr u32 N = Wide<T>::N;
        if ((((u64)keys | k_pitch * sizeof(T)) & 15) == 0) {
            for (; d + N <= k_dim; d += N) {
                float v[N];
                load_wide(key + d, v);
#pragma unroll
                for (u32 i = 0; i < N; i++) acc = madd(q[d + i], v[i], acc);
            }
        }
        for (; d < k_dim; d++) acc = madd(q[d], widen(key[d]), acc);
        score = mul(acc, scores.scale);
        if (scores.flags & CAPPED) score = mul(scores.cap, tanh_of(mul(score, div(1.0f, scores.cap))));
        if (scores.slopes) score = madd(slope, sub((float)(chunk + t), (float)row.position), score);
    }
    // The largest, NaN left out; the sign of a zero does not matter behind the subtraction.
    float top = score > -3.40282347e38f ? score : -3.40282347e38f;
#pragma unroll
    for (u32 span = 16; span > 0; span /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, top, span);
        top = other > top ? other : top;
    }
    if (t % 32 == 0) sh.top[t / 32] = top;
    __syncthreads();
    Result<COLUMNS> r;
    r.m = sh.top[1] > sh.top[0] ? sh.top[1] : sh.top[0];
    if (t >= a && t < b) sh.e[t] = exp_of(sub(score, r.m));
    __syncthreads();
    r.l = 0.0f;
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) r.o[c] = 0.0f;
#pragma unroll 4
    for (u32 i = a; i < b; i++) {
        float e = sh.e[i];
        r.l = add(r.l, e);
        const T *value = values + sh.rows[i] * v_pitch;
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
            u32 d = c * 64 + t;
            if (d < v_dim) r.o[c] = madd(e, widen(value[d]), r.o[c]);
        }
    }
    __syncthreads();
    return r;
}

// A running result takes in the next chunk's.
template <u32 COLUMNS>
DEVICE void merge(Result<COLUMNS> &all, bool &any, const Result<COLUMNS> &next) {
    if (!any) {
        all = next;
        any = true;
        return;
    }
    float top = next.m > all.m ? next.m : all.m;
    float keep = exp_of(sub(all.m, top)), take = exp_of(sub(next.m, top));
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) all.o[c] = madd(all.o[c], keep, mul(next.o[c], take));
    all.l = madd(all.l, keep, mul(next.l, take));
    all.m = top;
}

template <u32 COLUMNS>
DEVICE void finish(const Result<COLUMNS> &all, bool any, const MatView &out, u32 token, u32 head, u32 v_dim, u32 elem) {
    u64 to = (u64)token * out.pitch + (u64)head * v_dim;
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
        u32 d = c * 64 + threadIdx.x;
        if (d < v_dim) store_any(out.ptr, to + d, elem, any ? div(all.o[c], all.l) : 0.0f);
    }
}

// A chunk's place in the scratch: m, l, then o.
DEVICE float *part_of(const Split &split, u32 token, u32 heads, u32 head, u32 chunk, u32 v_dim) {
    return reinterpret_cast<float *>(split.parts) + (((u64)token * heads + head) * split.chunks + chunk) * (v_dim + 2);
}

// The walk of one query row and head. SPLIT: only this block's chunks, into the scratch.
template <u32 COLUMNS, bool SPLIT, typename T, typename R>
DEVICE void walk_keys(const MatView &q, const MatView &out, const Scores &scores, const Split &split, const Row &row, u32 token,
                      u32 heads, u32 kv_heads, u32 k_dim, u32 v_dim, u32 elem, const T *keys, u64 k_pitch, const T *values,
                      u64 v_pitch, R row_number) {
    extern __shared__ __align__(16) float dynamic[];
    u32 room = k_dim + sizeof(Shared) / 4;
    float *query = dynamic + threadIdx.y * room;
    Shared &sh = *reinterpret_cast<Shared *>(query + k_dim);
    u32 group = heads / kv_heads;
    u32 per_block = blockDim.y;
    u32 blocks = over(group, per_block);
    u32 kv_head = blockIdx.y / blocks;
    u32 within = blockIdx.y % blocks * per_block + threadIdx.y;
    // A place beyond the group's heads repeats the last and writes nothing: barriers are for all.
    bool writes = within < group;
    u32 head = kv_head * group + least(within, group - 1);
    for (u32 d = threadIdx.x; d < k_dim; d += 64) query[d] = load_any(q.ptr, (u64)token * q.pitch + (u64)head * k_dim + d, elem);
    __syncthreads();
    float slope = scores.slopes ? reinterpret_cast<const float *>(scores.slopes)[head] : 0.0f;
    u32 begin = row.lo / CHUNK, end = over(row.hi, CHUNK);
    if (SPLIT) {
        begin = most(begin, blockIdx.z * split.share);
        end = least(end, (blockIdx.z + 1) * split.share);
    }
    Result<COLUMNS> all;
    bool any = false;
    for (u32 chunk = begin; chunk < end; chunk++) {
        Result<COLUMNS> r = chunk_of<COLUMNS>(scores, row, chunk * CHUNK, query, sh, keys, k_pitch, k_dim, values, v_pitch, v_dim,
                                              slope, row_number);
        if (SPLIT) {
            if (writes) {
                float *to = part_of(split, token, heads, head, chunk, v_dim);
                if (threadIdx.x == 0) {
                    to[0] = r.m;
                    to[1] = r.l;
                }
#pragma unroll
                for (u32 c = 0; c < COLUMNS; c++) {
                    u32 d = c * 64 + threadIdx.x;
                    if (d < v_dim) to[2 + d] = r.o[c];
                }
            }
        } else {
            merge(all, any, r);
        }
    }
    if (!SPLIT && writes) finish(all, any, out, token, head, v_dim, elem);
}

template <u32 COLUMNS, bool SPLIT, typename T>
DEVICE void paged(const Paged &p) {
    after_others();
    u32 token = blockIdx.x;
    const KvView &kv = p.kv;
    Row row = place(reinterpret_cast<const u32 *>(p.bounds), reinterpret_cast<const u32 *>(p.kv_lens), p.seqs, p.scores, token);
    if (!row.is_in) return;
    u32 kv_head = blockIdx.y / over(p.heads / kv.kv_heads, blockDim.y);
    u32 entry = reinterpret_cast<const u32 *>(p.table_rows)[row.seq];
    const u32 *pages = reinterpret_cast<const u32 *>(p.pages) + (u64)entry * p.table_stride;
    walk_keys<COLUMNS, SPLIT>(p.q, p.out, p.scores, p.split, row, token, p.heads, kv.kv_heads, kv.k_dim, kv.v_dim, p.elem,
                              reinterpret_cast<const T *>(kv.keys), kv.k_dim, reinterpret_cast<const T *>(kv.values), kv.v_dim,
                              [=](u32 j) { return (pages[j / kv.page_size] * kv.kv_heads + kv_head) * kv.page_size + j % kv.page_size; });
}

template <u32 COLUMNS, typename T>
DEVICE void dense(const Dense &p) {
    after_others();
    u32 token = blockIdx.x;
    Row row = place(reinterpret_cast<const u32 *>(p.bounds), nullptr, p.seqs, p.scores, token);
    if (!row.is_in) return;
    u32 kv_head = blockIdx.y / over(p.heads / p.kv_heads, blockDim.y);
    u32 first = row.first;
    walk_keys<COLUMNS, false>(p.q, p.out, p.scores, Split{}, row, token, p.heads, p.kv_heads, p.k_dim, p.v_dim, p.elem,
                              reinterpret_cast<const T *>(p.k.ptr) + (u64)kv_head * p.k_dim, p.k.pitch,
                              reinterpret_cast<const T *>(p.v.ptr) + (u64)kv_head * p.v_dim, p.v.pitch,
                              [=](u32 j) { return first + j; });
}

// Merges what a split walk left, 64 threads per (token, head).
template <u32 COLUMNS>
DEVICE void merged(const Paged &p) {
    after_others();
    u32 token = blockIdx.x, head = blockIdx.y, v_dim = p.kv.v_dim;
    Row row = place(reinterpret_cast<const u32 *>(p.bounds), reinterpret_cast<const u32 *>(p.kv_lens), p.seqs, p.scores, token);
    if (!row.is_in) return;
    Result<COLUMNS> all;
    bool any = false;
    for (u32 chunk = row.lo / CHUNK; chunk < over(row.hi, CHUNK); chunk++) {
        const float *from = part_of(p.split, token, p.heads, head, chunk, v_dim);
        Result<COLUMNS> r;
        r.m = from[0];
        r.l = from[1];
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) {
            u32 d = c * 64 + threadIdx.x;
            r.o[c] = d < v_dim ? from[2 + d] : 0.0f;
        }
        merge(all, any, r);
    }
    finish(all, any, p.out, token, head, v_dim, p.elem);
}

#define ENTRIES(T, COLUMNS, NAME)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, 2) attention_paged_whole_##NAME(const __grid_constant__ Paged p) { \
        paged<COLUMNS, false, T>(p);                                                                                   \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) attention_paged_split_##NAME(const __grid_constant__ Paged p) { \
        paged<COLUMNS, true, T>(p);                                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) attention_dense_whole_##NAME(const __grid_constant__ Dense p) { \
        dense<COLUMNS, T>(p);                                                                                          \
    }
ENTRIES(float, 2, f32_128)
ENTRIES(float, 8, f32_512)
ENTRIES(f16, 2, f16_128)
ENTRIES(f16, 8, f16_512)
ENTRIES(bf16, 2, bf16_128)
ENTRIES(bf16, 8, bf16_512)
extern "C" __global__ void __launch_bounds__(64) attention_merge_128(const __grid_constant__ Paged p) { merged<2>(p); }
extern "C" __global__ void __launch_bounds__(64) attention_merge_512(const __grid_constant__ Paged p) { merged<8>(p); }
