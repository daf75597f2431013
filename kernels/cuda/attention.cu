// Strict attention, over pages and over plain rows, in the order of docs/numerics.md, 3:
//
//   s_j = (chain over d of madd(q_d, k_jd, acc)) * scale
//   capped: s = cap tanh(s (1 / cap))    slopes: s = madd(slope, j - p, s)
//   biases by distance: s = s + bias[head][clamp(j - p, -behind, ahead) + behind]
//   with rows of distances (disentangled), before the scale: the chain + (chain of q_d, K_ed), then
//   + (chain of k_jd, Q_ed), e = clamp(j - p, -reach, reach) + reach
//   per chunk of 64 absolute positions:
//     m = max s, e_j = exp(s_j - m), l = chain of l + e_j, o_d = chain of madd(e_j, v_jd, o_d)
//   merged ascending:
//     M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = madd(L, a, l b), O = madd(O, a, o b)
//   at the end O / L; with a sink M' = max(M, sink), a = exp(M - M'), O a / madd(L, a, exp(sink - M'))
//
// q [tokens, heads * k_dim], out [tokens, heads * v_dim]; keys and values in pages (paged.cuh), or as rows of
// matrices (dense: sequence s has rows bounds[s]..bounds[s + 1] of q, k and v). A row that sees nothing is
// zero; rows outside every sequence are not written.
//
// 64 threads serve a query row and head: thread t computes the score of key t of a chunk, then carries value
// columns t, t + 64, ... through it. The heads that share a key head sit in one block, up to 4 of them, and
// share the keys and values, which are brought to shared memory in slices of 64 columns. Codes (codes.cuh)
// are widened to f32 on their way there, which is exact: the bits are those over pages of f32 with their
// values.
// Bytes: keys and values once per query row and block of heads.
//
// One launch: blocks of 64 * (heads of a block), grid [tokens, key heads * blocks of heads]: `whole`.
// Few rows and long sequences: chunks go over blocks in z, each leaves (m, l, o) of its chunks in scratch
// (`split`), and a second launch merges them in ascending order (`merge`): the same operations in the same
// order, so the same bits.
#include "codes.cuh"

constexpr u32 CHUNK = 64;
constexpr u32 WINDOW = 2;
constexpr u32 CAPPED = 4;
constexpr u32 CHUNKED = 8;

struct Scores {
    // [heads] f32, or 0.
    u64 slopes;
    float scale;
    float cap;
    u32 window;
    u32 flags;
    // [heads] f32: scores without a key or a value; or 0.
    u64 sinks;
    u32 ahead;
    // How far behind a query and ahead of it distances have a bias of their own.
    u32 bias_behind;
    // [heads, bias_behind + 1 + bias_ahead] f32, or 0.
    u64 bias;
    u32 bias_ahead;
    u32 reserved;
};

// Where the parts of a split walk are merged: per (token, head, chunk) m and l, and o [v_dim], f32.
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
    PageTable table;
    Split split;
    u32 seqs;
    u32 heads;
    u32 elem;
    u32 reserved;
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

// Dense with a key head for every query head, and queries and keys of distances [2 reach + 1, heads * k_dim];
// a pointer of 0: there are none.
struct Disentangled {
    Dense dense;
    MatView distance_q;
    MatView distance_k;
    u32 reach;
    u32 reserved;
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

// The last sequence that begins at or before a token's row, and the keys lo..hi that the row sees. Sequences
// end at `rows` and have at most `room` keys, whatever bounds and lengths say.
DEVICE Row place(const u32 *bounds, const u32 *lens, u32 seqs, const Scores &s, u32 token, u32 rows, u32 room) {
    u32 lo = 0, hi = seqs;
    // While every sequence has one row, its number is the row's.
    if (token < seqs && bounds[token] == token && bounds[token + 1] > token) {
        lo = token;
        hi = token + 1;
    }
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
    u32 end = least(bounds[lo + 1], rows);
    row.is_in = token >= row.first && token < end;
    u32 len = least(lens ? lens[lo] : end - row.first, room);
    // The position behind the row's; 0 where there are fewer keys than queries.
    u32 next = most(len + token + 1, end) - end;
    row.position = next - 1;
    // 0 keys ahead for a causal mask.
    row.hi = next + least(s.ahead, len - next);
    row.lo = 0;
    if (s.flags & WINDOW) row.lo = least(next - least(s.window, next), row.hi);
    // The chunk's first position; of a row without a position 0.
    if (s.flags & CHUNKED) row.lo = least((next - least(next, 1u)) / s.window * s.window, row.hi);
    return row;
}

// Behind the other parts of a score: the bias of a head for the distance of key j. Any j and any position
// have one.
DEVICE float with_bias(const Scores &s, u32 head, u32 j, u32 position, float score) {
    int distance = most(least((int)(j - position), (int)s.bias_ahead), -(int)s.bias_behind);
    u64 first = (u64)head * (s.bias_behind + 1 + s.bias_ahead) + s.bias_behind;
    return add(score, reinterpret_cast<const float *>(s.bias)[(long long)first + distance]);
}

// What a chunk gives: its maximum, its sum of weights, and this thread's columns.
template <u32 COLUMNS>
struct Result {
    float m;
    float l;
    float o[COLUMNS];
};

// Elements of a key or value that are staged at a time.
constexpr u32 SLICE = 64;

// Shared memory of a block: rows of a chunk in their own element type (codes: f32), a slice of their columns
// at a time.
// Rows lie 16 bytes more than a slice apart, so that eight neighbours' 16 bytes meet no bank twice.
template <typename T>
struct Staged {
    static constexpr u32 PITCH = SLICE + 16 / sizeof(T);
    T rows[CHUNK][PITCH];
    // Row numbers of the chunk's keys and values.
    u32 numbers[CHUNK];
};

// Shared memory of one head; its query row, [k_dim] f32, lies behind.
struct OfHead {
    float e[CHUNK];
    float top[4];
};

// Rows of keys or values as they are kept, `pitch` apart; what they are staged as.
template <typename T>
struct Plain {
    using Staging = T;
    const T *at;
    u64 pitch;
};
template <u32 ELEM>
struct Coded {
    using Staging = float;
    const u8 *at;
    u64 pitch;
    const float *scales;
};

// Brings columns of rows a..b of a chunk: `n` of them from `first` on. By the whole block.
template <typename T>
DEVICE void stage(Staged<T> &to, const Plain<T> &kept, u32 first, u32 n, u32 a, u32 b) {
    u32 thread = threadIdx.y * 64 + threadIdx.x, threads = blockDim.y * 64;
    constexpr u32 N = Wide<T>::N;
    const T *from = kept.at + first;
    u64 pitch = kept.pitch;
    if ((((u64)from | pitch * sizeof(T)) & 15) == 0 && n % N == 0) {
        u32 units = n / N;
#pragma unroll 2
        for (u32 u = thread; u < (b - a) * units; u += threads) {
            u32 r = a + u / units, c = u % units * N;
            *reinterpret_cast<uint4 *>(&to.rows[r][c]) = *reinterpret_cast<const uint4 *>(from + to.numbers[r] * pitch + c);
        }
    } else {
        for (u32 u = thread; u < (b - a) * n; u += threads) {
            u32 r = a + u / n, c = u % n;
            to.rows[r][c] = from[to.numbers[r] * pitch + c];
        }
    }
}
template <u32 ELEM>
DEVICE void stage(Staged<float> &to, const Coded<ELEM> &kept, u32 first, u32 n, u32 a, u32 b) {
    u32 thread = threadIdx.y * 64 + threadIdx.x, threads = blockDim.y * 64;
    constexpr u32 N = 16;
    const u8 *from = kept.at + first;
    if ((((u64)from | kept.pitch) & 15) == 0 && n % N == 0) {
        u32 units = n / N;
        for (u32 u = thread; u < (b - a) * units; u += threads) {
            u32 r = a + u / units, c = u % units * N, row = to.numbers[r];
            uint4 codes = *reinterpret_cast<const uint4 *>(from + row * kept.pitch + c);
            u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
            float scale = kept.scales[row], v[N];
#pragma unroll
            for (u32 i = 0; i < N; i++) v[i] = mul(code_value<ELEM>(words[i / 4], i % 4), scale);
            store_wide(&to.rows[r][c], v);
        }
    } else {
        for (u32 u = thread; u < (b - a) * n; u += threads) {
            u32 r = a + u / n, c = u % n, row = to.numbers[r];
            to.rows[r][c] = mul(code_value<ELEM>(from[row * kept.pitch + c], 0), kept.scales[row]);
        }
    }
}

template <u32 COLUMNS, typename T, typename K, typename R, typename M>
DEVICE Result<COLUMNS> chunk_of(const Scores &scores, const Row &row, u32 chunk, const float *q, OfHead &own, Staged<T> &staged,
                                const K &keys, u32 k_dim, const K &values, u32 v_dim, u32 head, float slope, R row_number, M more) {
    constexpr u32 N = Wide<T>::N;
    constexpr float SMALLEST = -3.40282347e38f;
    u32 t = threadIdx.x;
    u32 a = most(row.lo, chunk) - chunk, b = least(row.hi - chunk, CHUNK);
    bool sees = t >= a && t < b;
    if (sees && threadIdx.y == 0) staged.numbers[t] = row_number(chunk + t);
    __syncthreads();
    float acc = 0.0f;
    for (u32 first = 0; first < k_dim; first += SLICE) {
        u32 n = least(k_dim - first, SLICE);
        stage(staged, keys, first, n, a, b);
        __syncthreads();
        if (sees) {
            u32 d = 0;
#pragma unroll 2
            for (; d + N <= n; d += N) {
                float v[N], w[N];
                load_wide(&staged.rows[t][d], v);
                load_wide(q + first + d, w);
#pragma unroll
                for (u32 i = 0; i < N; i++) acc = madd(w[i], v[i], acc);
            }
            for (; d < n; d++) acc = madd(q[first + d], widen(staged.rows[t][d]), acc);
        }
        __syncthreads();
    }
    float score = SMALLEST;
    if (sees) {
        score = mul(more(acc, chunk + t, q), scores.scale);
        if (scores.flags & CAPPED) score = mul(scores.cap, tanh_of(mul(score, div(1.0f, scores.cap))));
        if (scores.slopes) score = madd(slope, sub((float)(chunk + t), (float)row.position), score);
        if (scores.bias) score = with_bias(scores, head, chunk + t, row.position, score);
    }
    // The largest, NaN left out; the sign of a zero does not matter behind the subtraction.
    float top = score > SMALLEST ? score : SMALLEST;
#pragma unroll
    for (u32 span = 16; span > 0; span /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, top, span);
        top = other > top ? other : top;
    }
    if (t % 32 == 0) own.top[t / 32] = top;
    __syncthreads();
    Result<COLUMNS> r;
    r.m = own.top[1] > own.top[0] ? own.top[1] : own.top[0];
    if (sees) own.e[t] = exp_of(sub(score, r.m));
    r.l = 0.0f;
    // One loop for all columns; results walk past in registers.
#pragma unroll 1
    for (u32 c = 0; c < COLUMNS; c++) {
        float o = 0.0f;
        if (c * SLICE < v_dim) {
            stage(staged, values, c * SLICE, least(v_dim - c * SLICE, SLICE), a, b);
            __syncthreads();
            if (c * SLICE + t < v_dim) {
                float l = 0.0f;
#pragma unroll 4
                for (u32 i = a; i < b; i++) {
                    float e = own.e[i];
                    l = add(l, e);
                    o = madd(e, widen(staged.rows[i][t]), o);
                }
                r.l = l;
            }
            __syncthreads();
        }
#pragma unroll
        for (u32 j = 0; j + 1 < COLUMNS; j++) r.o[j] = r.o[j + 1];
        r.o[COLUMNS - 1] = o;
    }
    return r;
}

// The end of the chunks that a row walks: none of a row that sees nothing, whose hi may lie inside a chunk.
DEVICE u32 end_of_chunks(const Row &row) { return row.lo < row.hi ? over(row.hi, CHUNK) : 0; }

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

// The outputs of a row; a sink joins its sum as a key without a value.
template <u32 COLUMNS>
DEVICE void finish(const Result<COLUMNS> &all, bool any, const Scores &scores, const MatView &out, u32 token, u32 head, u32 v_dim,
                   u32 elem) {
    u64 to = (u64)token * out.pitch + (u64)head * v_dim;
    float keep = 1.0f, l = all.l;
    if (any && scores.sinks) {
        float sink = reinterpret_cast<const float *>(scores.sinks)[head];
        float top = sink > all.m ? sink : all.m;
        keep = exp_of(sub(all.m, top));
        l = madd(l, keep, exp_of(sub(sink, top)));
    }
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
        u32 d = c * 64 + threadIdx.x;
        if (d < v_dim) store_any(out.ptr, to + d, elem, any ? div(mul(all.o[c], keep), l) : 0.0f);
    }
}

// A chunk's place in the scratch: m, l, then o.
DEVICE float *part_of(const Split &split, u32 token, u32 heads, u32 head, u32 chunk, u32 v_dim) {
    return reinterpret_cast<float *>(split.parts) + (((u64)token * heads + head) * split.chunks + chunk) * (v_dim + 2);
}

// The walk of one query row and head. SPLIT: only this block's chunks, into the scratch.
template <u32 COLUMNS, bool SPLIT, typename K, typename R, typename M>
DEVICE void walk_keys(const MatView &q, const MatView &out, const Scores &scores, const Split &split, const Row &row, u32 token,
                      u32 heads, u32 kv_heads, u32 k_dim, u32 v_dim, u32 elem, const K &keys, const K &values, R row_number, M more) {
    extern __shared__ __align__(16) u8 dynamic[];
    using T = typename K::Staging;
    Staged<T> &staged = *reinterpret_cast<Staged<T> *>(dynamic);
    u32 room = sizeof(OfHead) + over(k_dim, 4) * 16;
    OfHead &own = *reinterpret_cast<OfHead *>(dynamic + sizeof(Staged<T>) + threadIdx.y * room);
    float *query = reinterpret_cast<float *>(&own + 1);
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
    u32 begin = row.lo / CHUNK, end = end_of_chunks(row);
    if (SPLIT) {
        begin = most(begin, blockIdx.z * split.share);
        end = least(end, (blockIdx.z + 1) * split.share);
    }
    Result<COLUMNS> all;
    bool any = false;
    for (u32 chunk = begin; chunk < end; chunk++) {
        Result<COLUMNS> r = chunk_of<COLUMNS>(scores, row, chunk * CHUNK, query, own, staged, keys, k_dim, values, v_dim, head, slope,
                                              row_number, more);
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
    if (!SPLIT && writes) finish(all, any, scores, out, token, head, v_dim, elem);
}

// The first term of a score is all of it.
struct Alone {
    DEVICE float operator()(float acc, u32, const float *) const { return acc; }
};

// Where a row stands in its pages: as far as there are pages and, in a split walk, scratch.
DEVICE Row place(const Paged &p, u32 token) {
    u32 room = p.split.parts ? least(p.table.keys, p.split.chunks * CHUNK) : p.table.keys;
    return place(reinterpret_cast<const u32 *>(p.bounds), reinterpret_cast<const u32 *>(p.kv_lens), p.seqs, p.scores, token, p.q.rows,
                 room);
}

// A slab's rows, of elements and of codes.
template <typename T>
struct Kept {
    static DEVICE Plain<T> rows(const KvView &kv, bool is_key) {
        return Plain<T>{reinterpret_cast<const T *>(is_key ? kv.keys : kv.values), is_key ? kv.k_dim : kv.v_dim};
    }
};
template <u32 ELEM>
struct Kept<Coded<ELEM>> {
    static DEVICE Coded<ELEM> rows(const KvView &kv, bool is_key) {
        return Coded<ELEM>{reinterpret_cast<const u8 *>(is_key ? kv.keys : kv.values), is_key ? kv.k_dim : kv.v_dim,
                           reinterpret_cast<const float *>(scales_of(kv, is_key))};
    }
};

template <u32 COLUMNS, bool SPLIT, typename T>
DEVICE void paged(const Paged &p) {
    begin();
    u32 token = blockIdx.x;
    const KvView &kv = p.kv;
    Row row = place(p, token);
    if (!row.is_in) return;
    u32 kv_head = blockIdx.y / over(p.heads / kv.kv_heads, blockDim.y);
    u32 entry = reinterpret_cast<const u32 *>(p.table_rows)[row.seq];
    walk_keys<COLUMNS, SPLIT>(p.q, p.out, p.scores, p.split, row, token, p.heads, kv.kv_heads, kv.k_dim, kv.v_dim, p.elem,
                              Kept<T>::rows(kv, true), Kept<T>::rows(kv, false),
                              [=](u32 j) {
                                  u32 page = page_of(kv, p.table, entry, j);
                                  return (page * kv.kv_heads + kv_head) * kv.page_size + j % kv.page_size;
                              },
                              Alone{});
}

template <u32 COLUMNS, typename T>
DEVICE void dense(const Dense &p) {
    begin();
    u32 token = blockIdx.x;
    Row row = place(reinterpret_cast<const u32 *>(p.bounds), nullptr, p.seqs, p.scores, token, p.k.rows, p.k.rows);
    if (!row.is_in) return;
    u32 kv_head = blockIdx.y / over(p.heads / p.kv_heads, blockDim.y);
    u32 first = row.first;
    walk_keys<COLUMNS, false>(p.q, p.out, p.scores, Split{}, row, token, p.heads, p.kv_heads, p.k_dim, p.v_dim, p.elem,
                              Plain<T>{reinterpret_cast<const T *>(p.k.ptr) + (u64)kv_head * p.k_dim, p.k.pitch},
                              Plain<T>{reinterpret_cast<const T *>(p.v.ptr) + (u64)kv_head * p.v_dim, p.v.pitch},
                              [=](u32 j) { return first + j; }, Alone{});
}

// The chain of n products behind zero.
template <typename A, typename T>
DEVICE float chain_of(const A *a, const T *b, u32 n) {
    float acc = 0.0f;
    for (u32 d = 0; d < n; d++) acc = madd(widen(a[d]), widen(b[d]), acc);
    return acc;
}

template <u32 COLUMNS, typename T>
DEVICE void disentangled(const Disentangled &all) {
    begin();
    const Dense &p = all.dense;
    u32 token = blockIdx.x, head = blockIdx.y, k_dim = p.k_dim;
    Row row = place(reinterpret_cast<const u32 *>(p.bounds), nullptr, p.seqs, p.scores, token, p.k.rows, p.k.rows);
    if (!row.is_in) return;
    u32 first = row.first, position = row.position;
    int reach = (int)all.reach;
    const T *keys = reinterpret_cast<const T *>(p.k.ptr) + (u64)head * k_dim;
    const T *of_q = reinterpret_cast<const T *>(all.distance_q.ptr), *of_k = reinterpret_cast<const T *>(all.distance_k.ptr);
    u64 k_pitch = p.k.pitch, q_pitch = all.distance_q.pitch, of_k_pitch = all.distance_k.pitch;
    walk_keys<COLUMNS, false>(p.q, p.out, p.scores, Split{}, row, token, p.heads, p.kv_heads, k_dim, p.v_dim, p.elem,
                              Plain<T>{keys, k_pitch}, Plain<T>{reinterpret_cast<const T *>(p.v.ptr) + (u64)head * p.v_dim, p.v.pitch},
                              [=](u32 j) { return first + j; },
                              [=](float acc, u32 j, const float *q) {
                                  u64 at = (u64)(most(least((int)(j - position), reach), -reach) + reach);
                                  if (of_k) acc = add(acc, chain_of(q, of_k + at * of_k_pitch + (u64)head * k_dim, k_dim));
                                  if (of_q) {
                                      const T *of_distance = of_q + at * q_pitch + (u64)head * k_dim;
                                      acc = add(acc, chain_of(keys + (u64)(first + j) * k_pitch, of_distance, k_dim));
                                  }
                                  return acc;
                              });
}

// Merges what a split walk left, 64 threads per (token, head). Maxima run ahead: of 64 chunks at a time every
// thread finds the running maximum and both factors of one, so that the ordered part is a multiply-add per
// chunk and column.
template <u32 COLUMNS>
DEVICE void merged(const Paged &p) {
    __shared__ float keeps[CHUNK], takes[CHUNK], sums[CHUNK], tops[2];
    begin();
    u32 token = blockIdx.x, head = blockIdx.y, v_dim = p.kv.v_dim, t = threadIdx.x;
    Row row = place(p, token);
    if (!row.is_in) return;
    Result<COLUMNS> all;
    bool any = false;
    u32 end = end_of_chunks(row);
    float before = -3.40282347e38f;
    for (u32 first = row.lo / CHUNK; first < end; first += CHUNK) {
        u32 count = least(end - first, CHUNK);
        const float *parts = part_of(p.split, token, p.heads, head, first, v_dim);
        u32 stride = v_dim + 2;
        float m = -3.40282347e38f;
        if (t < count) {
            m = parts[t * stride];
            sums[t] = parts[t * stride + 1];
        }
        float top = m;
#pragma unroll
        for (u32 span = 1; span < 32; span *= 2) {
            float other = __shfl_up_sync(0xffffffffu, top, span);
            if (t % 32 >= span) top = other > top ? other : top;
        }
        if (t % 32 == 31) tops[t / 32] = top;
        __syncthreads();
        float carry = before;
        if (t >= 32) carry = tops[0] > carry ? tops[0] : carry;
        float previous = __shfl_up_sync(0xffffffffu, top, 1);
        previous = t % 32 == 0 || carry > previous ? carry : previous;
        top = carry > top ? carry : top;
        keeps[t] = exp_of(sub(previous, top));
        takes[t] = exp_of(sub(m, top));
        before = tops[0] > before ? tops[0] : before;
        before = tops[1] > before ? tops[1] : before;
        __syncthreads();
#pragma unroll 4
        for (u32 i = 0; i < count; i++) {
            const float *from = parts + (u64)i * stride + 2;
            float keep = keeps[i], take = takes[i];
            all.l = any ? madd(all.l, keep, mul(sums[i], take)) : sums[i];
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) {
                u32 d = c * 64 + t;
                if (d < v_dim) all.o[c] = any ? madd(all.o[c], keep, mul(from[d], take)) : from[d];
            }
            any = true;
        }
        __syncthreads();
    }
    all.m = before;
    finish(all, any, p.scores, p.out, token, head, v_dim, p.elem);
}

#define PAGED(T, COLUMNS, NAME)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 2) attention_paged_whole_##NAME(const __grid_constant__ Paged p) { \
        paged<COLUMNS, false, T>(p);                                                                                   \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) attention_paged_split_##NAME(const __grid_constant__ Paged p) { \
        paged<COLUMNS, true, T>(p);                                                                                    \
    }
#define ENTRIES(T, COLUMNS, NAME)                                                                                      \
    PAGED(T, COLUMNS, NAME)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, 2) attention_dense_whole_##NAME(const __grid_constant__ Dense p) { \
        dense<COLUMNS, T>(p);                                                                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        attention_disentangled_##NAME(const __grid_constant__ Disentangled p) {                                        \
        disentangled<COLUMNS, T>(p);                                                                                   \
    }
ENTRIES(float, 2, f32_128)
ENTRIES(float, 8, f32_512)
ENTRIES(f16, 2, f16_128)
ENTRIES(f16, 8, f16_512)
ENTRIES(bf16, 2, bf16_128)
ENTRIES(bf16, 8, bf16_512)
PAGED(Coded<ELEM_INT8>, 2, int8_128)
PAGED(Coded<ELEM_INT8>, 8, int8_512)
PAGED(Coded<ELEM_FP8>, 2, fp8_128)
PAGED(Coded<ELEM_FP8>, 8, fp8_512)
extern "C" __global__ void __launch_bounds__(64) attention_merge_128(const __grid_constant__ Paged p) { merged<2>(p); }
extern "C" __global__ void __launch_bounds__(64) attention_merge_512(const __grid_constant__ Paged p) { merged<8>(p); }
