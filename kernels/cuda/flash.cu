// Attention on tensor cores, over pages and over plain rows. Mode `Invariant`.
//
//   s_j = scale (q . k_j)    capped: s = cap tanh(s (1 / cap))    slopes: s = madd(slope, j - p, s)
//   biases by distance: s = s + bias[head][clamp(j - p, -behind, ahead) + behind]
//   per chunk of 64 absolute positions, within a span of 256, ascending, from m = lowest, l = o = 0:
//     m' = max(m, max s)   a = exp(m - m')   e_j = exp(s_j - m')   l = l a + sum e_j   o = o a + sum e_j v_j
//   per span, ascending: the first that a row sees as it is, then
//     M' = max(M, m)   a = exp(M - M')   b = exp(m - M')   L = madd(L, a, l b)   O = madd(O, a, o b)
//   at the end O (1 / L); with a sink the first span that a row sees begins from m = sink, l = 1
//
// q . k is a chain of mma.sync m16n8k16 over d, 16 at a time, ascending; the sums over j are chains of mma
// over 16 positions each, ascending, of e in two 16-bit parts, the nearest and what it leaves: together 16
// (bf16) or 22 (f16) bits, so that weights cost no more than f32 arithmetic does. exp(x) is ex2.approx of x
// log2 e. f16 ends at 2^-24, in the middle of what a softmax needs: there e is 2^15 exp(s_j - m'), at most
// 2^15 and in both parts exact to 2^-40 of the largest weight: for values near 1 a 2^16th of the least
// distance of two f16 outputs. l and o carry the factor alike, O (1 / L) has none. A chunk of which a row
// sees nothing changes no bit of it. So chunked prefill, paging, prefix hits and batch mates cannot change a
// bit, nor can it matter which of the two kernels takes a sequence: `split` leaves the spans of a row apart
// and `merge` joins them. Nor can values that a row does not see, infinities and NaN among them: where a
// chunk has such values and not every row sees all of it, each row is multiplied by itself, with what it does
// not see as zeros.
//
// q [tokens, heads * k_dim], out [tokens, heads * v_dim], keys and values in pages (paged.cuh) or as rows of
// matrices (page_size 0: sequence s has rows bounds[s]..bounds[s + 1] of q, k and v). A row that sees nothing
// is zero; rows outside every sequence are not written. A row of work is a (query, head of a group) pair: r =
// query * group + head, so that one read of a key serves all heads of its group.
//
// | entry | block | grid | shared memory (width 128) | registers at most |
// | --- | --- | --- | --- | --- |
// | whole | 4 warps of 16 rows | [tiles of 64 rows, kv heads x halves, sequences] | q, 2 x (keys, values) of a chunk: 85 KiB | 255 |
// | split | 4 warps, 16 rows | [spans, kv heads x tiles x halves, sequences] | the same, q of 16 rows: 78 KiB | 128 |
// | merge | a thread per column | [heads, queries, sequences] | none | 64 |
//
// Sequences of at most `few` queries belong to `split` and `merge`, the others to `whole` (few = 0: all).
// Width 256 takes two halves of the value columns. Bytes: `split` reads keys and values once per group,
// writes and reads 2 + v_dim floats per row and span; `whole` reads keys and values once per 64 rows, from
// L2.
#include "flash.cuh"

constexpr u32 WARPS = 4, THREADS = WARPS * 32;

extern __shared__ __align__(128) u8 memory[];

// KD: width of keys; VD: value columns of a block.
template <typename T, u32 KD, u32 VD>
struct Tiles {
    // Bytes of a row: an odd number of 16-byte pieces, so that 8 rows at one column lie in different banks.
    static constexpr u32 K_PITCH = KD * 2 + 16, V_PITCH = VD * 2 + 16;
    static constexpr u32 STAGE = CHUNK * (K_PITCH + V_PITCH);

    // 8 elements; zero where `there` is false.
    static DEVICE void single(u32 to, const T *from, bool there) {
#pragma unroll 1
        for (u32 i = 0; i < 8; i++) {
            u16 v = there ? from[i].raw : 0;
            asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + i * 2), "h"(v) : "memory");
        }
    }

    // Query rows first..first + rows of (sequence, key head) to shared memory; those beyond are zero.
    static DEVICE void queries(const Flash &p, const Seq &seq, u32 kv_head, u32 first, u32 rows, u32 to) {
        u32 group = p.heads / p.kv.kv_heads;
        bool wide = aligned<T>(p.q);
#pragma unroll 1
        for (u32 i = threadIdx.x; i < rows * (KD / 8); i += THREADS) {
            u32 r = i / (KD / 8), c = i % (KD / 8) * 8, at = first + r;
            bool there = at < seq.queries * group;
            u32 query = there ? at / group : 0, head = kv_head * group + (there ? at % group : 0);
            const T *from = row_of<T>(p.q, seq.first + query) + head * KD + c;
            if (wide) {
                copy16_or_zero(to + r * K_PITCH + c * 2, from, there);
            } else {
                single(to + r * K_PITCH + c * 2, from, there);
            }
        }
    }

    // Which row of the slabs (or matrices) holds position chunk + 16 warp + lane % 16; ~0 outside lo..hi.
    static DEVICE u32 row_number(const Flash &p, const Seq &seq, u32 s, u32 kv_head, u32 chunk, u32 lo, u32 hi) {
        u32 position = chunk + threadIdx.x / 32 * 16 + threadIdx.x % 16;
        if (position < lo || position >= hi) return ~0u;
        if (p.kv.page_size == 0) return seq.first + position;
        u32 page = page_of(p.kv, p.table, reinterpret_cast<const u32 *>(p.table_rows)[s], position);
        return (page * p.kv.kv_heads + kv_head) * p.kv.page_size + position % p.kv.page_size;
    }

    // D columns of 16 rows to rows of D * 2 + 16 bytes: row r is number `number` of lane r; ~0 is a row of
    // zeros.
    template <u32 D>
    static DEVICE void rows(const T *from, u64 pitch, u32 number, u32 to) {
        u32 lane = threadIdx.x % 32;
        if ((((u64)from | pitch * 2) & 15) == 0) {
#pragma unroll
            for (u32 i = 0; i < 16 * (D / 8); i += 32) {
                u32 r = (i + lane) / (D / 8), c = (i + lane) % (D / 8) * 8;
                u32 row = __shfl_sync(0xffffffffu, number, r);
                copy16_or_zero(to + r * (D * 2 + 16) + c * 2, from + (row == ~0u ? 0 : row * pitch + c), row != ~0u);
            }
        } else {
#pragma unroll 1
            for (u32 i = 0; i < 16 * (D / 8); i += 32) {
                u32 r = (i + lane) / (D / 8), c = (i + lane) % (D / 8) * 8;
                u32 row = __shfl_sync(0xffffffffu, number, r);
                single(to + r * (D * 2 + 16) + c * 2, from + (row == ~0u ? 0 : row * pitch + c), row != ~0u);
            }
        }
    }

    // A chunk's keys and values: each warp copies 16 positions, whose rows its lanes know.
    static DEVICE void chunk(const Flash &p, u32 kv_head, u32 half, u32 number, u32 to) {
        bool dense = p.kv.page_size == 0;
        const T *k = reinterpret_cast<const T *>(p.kv.keys) + (dense ? kv_head * KD : 0);
        const T *v = reinterpret_cast<const T *>(p.kv.values) + (dense ? kv_head * p.kv.v_dim : 0) + half * VD;
        u32 warp = threadIdx.x / 32;
        rows<KD>(k, dense ? p.k_pitch : KD, number, to + warp * 16 * K_PITCH);
        rows<VD>(v, dense ? p.v_pitch : p.kv.v_dim, number, to + CHUNK * K_PITCH + warp * 16 * V_PITCH);
    }

    // Dot products of 16 query rows at `q` with the keys of N tiles of 8 positions (N even) at `k`.
    template <u32 N>
    static DEVICE void dot(float (&s)[N][4], u32 q, u32 k) {
        u32 lane = threadIdx.x % 32;
        q += lane % 16 * K_PITCH + lane / 16 * 16;
        k += (lane / 16 * 8 + lane % 8) * K_PITCH + lane / 8 % 2 * 16;
#pragma unroll
        for (u32 n = 0; n < N; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
        for (u32 d = 0; d < KD / 16; d++) {
            u32 a[4];
            load_matrices(a, q + d * 32);
#pragma unroll
            for (u32 n = 0; n < N; n += 2) {
                u32 b[4];
                load_matrices(b, k + n * 8 * K_PITCH + d * 32);
                Half<T>::mma(s[n], a, b[0], b[1]);
                Half<T>::mma(s[n + 1], a, b[2], b[3]);
            }
        }
    }
};

// Two rows' sums over columns in tiles of 8: of a span, or of all.
template <u32 N>
struct Output {
    float m[2];
    float l[4];
    float o[N][4];

    DEVICE void clear() {
        m[0] = m[1] = LOWEST;
#pragma unroll
        for (u32 e = 0; e < 4; e++) l[e] = 0.0f;
#pragma unroll
        for (u32 n = 0; n < N; n++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) o[n][e] = 0.0f;
        }
    }
    // Nothing yet of a span, but for the sinks of rows whose first it is.
    template <typename T>
    DEVICE void open(const Scores &scores, const Row (&rows)[2], const u32 (&head)[2], u32 span) {
        clear();
        if (!scores.sinks) return;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (rows[i].lo >= rows[i].hi || rows[i].lo / SPAN != span) continue;
            sink_of<T>(scores, head[i], m[i], l[2 * i]);
            l[2 * i + 1] = l[2 * i];
        }
    }
    // Room for a chunk whose largest scores are `top`.
    DEVICE void rise(const float (&top)[2]) {
        float a[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float next = fmaxf(m[i], top[i]);
            a[i] = exp_fast(sub(m[i], next));
            m[i] = next;
        }
#pragma unroll
        for (u32 e = 0; e < 4; e++) l[e] = mul(l[e], a[e / 2]);
#pragma unroll
        for (u32 n = 0; n < N; n++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) o[n][e] = mul(o[n][e], a[e / 2]);
        }
    }
    DEVICE void take(const Output &span) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            bool first = l[2 * i] == 0.0f, none = span.l[2 * i] == 0.0f;
            float next = fmaxf(m[i], span.m[i]);
            float a = first ? 0.0f : none ? 1.0f : exp_fast(sub(m[i], next));
            float b = first ? 1.0f : none ? 0.0f : exp_fast(sub(span.m[i], next));
            m[i] = next;
#pragma unroll
            for (u32 e = 2 * i; e < 2 * i + 2; e++) {
                l[e] = madd(l[e], a, mul(span.l[e], b));
#pragma unroll
                for (u32 n = 0; n < N; n++) o[n][e] = madd(o[n][e], a, mul(span.o[n][e], b));
            }
        }
    }
};

// 16 positions' weights (A, two parts) times values of one pair of column tiles at `v`.
template <typename T, u32 PITCH>
DEVICE void weigh(float (&left)[4], float (&right)[4], const u32 (&high)[4], const u32 (&low)[4], u32 v) {
    u32 lane = threadIdx.x % 32, b[4];
    load_matrices_transposed(b, v + lane % 16 * PITCH + lane / 16 * 16);
    Half<T>::mma(left, high, b[0], b[1]);
    Half<T>::mma(left, low, b[0], b[1]);
    Half<T>::mma(right, high, b[2], b[3]);
    Half<T>::mma(right, low, b[2], b[3]);
}
template <typename T>
DEVICE void count(float (&l)[4], const u32 (&high)[4], const u32 (&low)[4]) {
    Half<T>::mma(l, high, Half<T>::ONES, Half<T>::ONES);
    Half<T>::mma(l, low, Half<T>::ONES, Half<T>::ONES);
}

// Both elements of a pair of positions that a row sees.
DEVICE u32 seen_mask(u32 position, u32 lo, u32 hi) {
    u32 low = position >= lo && position < hi ? 0xffffu : 0u;
    return position + 1 >= lo && position + 1 < hi ? low | 0xffff0000u : low;
}

// What `weigh` does for a chunk's weights (parts[i]: high, low of 16 positions) and column tiles begin + j *
// STEP of PAIRS, row by row: values that a row does not see are zeros, whatever lies there. To the bit what
// that row gives alone.
template <typename T, u32 PITCH, u32 PAIRS, u32 STEP, u32 N>
DEVICE void weigh_apart(float (&o)[N][4], const u32 (&parts)[4][8], const Row (&rows)[2], u32 chunk, u32 v, u32 begin) {
    u32 lane = threadIdx.x % 32;
    v += lane % 16 * PITCH + lane / 16 * 16;
#pragma unroll 1
    for (u32 r = 0; r < 16; r++) {
        u32 lo = __shfl_sync(0xffffffffu, r < 8 ? rows[0].lo : rows[1].lo, r % 8 * 4);
        u32 hi = __shfl_sync(0xffffffffu, r < 8 ? rows[0].hi : rows[1].hi, r % 8 * 4);
        bool upper = r < 8 && lane / 4 == r, lower = r >= 8 && lane / 4 == r - 8;
#pragma unroll 1
        for (u32 i = 0; i < 4; i++) {
            u32 position = chunk + i * 16 + lane % 4 * 2;
            u32 first = seen_mask(position, lo, hi), second = seen_mask(position + 8, lo, hi);
            u32 high[4], low[4];
#pragma unroll
            for (u32 e = 0; e < 4; e++) high[e] = parts[i][e], low[e] = parts[i][4 + e];
#pragma unroll
            for (u32 j = 0; j < N / 2; j++) {
                u32 pair = begin + j * STEP, b[4];
                if (pair >= PAIRS) continue;
                load_matrices_transposed(b, v + i * 16 * PITCH + pair * 32);
#pragma unroll
                for (u32 side = 0; side < 2; side++) {
                    float (&to)[4] = o[2 * j + side];
                    float c[4] = {to[0], to[1], to[2], to[3]};
                    Half<T>::mma(c, high, b[2 * side] & first, b[2 * side + 1] & second);
                    Half<T>::mma(c, low, b[2 * side] & first, b[2 * side + 1] & second);
                    to[0] = upper ? c[0] : to[0], to[1] = upper ? c[1] : to[1];
                    to[2] = lower ? c[2] : to[2], to[3] = lower ? c[3] : to[3];
                }
            }
        }
    }
}

template <typename T, u32 KD, u32 VD, u32 HALVES>
DEVICE void whole(const Flash &p) {
    using Tile = Tiles<T, KD, VD>;
    constexpr u32 ROWS = WARPS * 16, N = VD / 8;
    wait_for_dependencies();
    u32 s = blockIdx.z, kv_head = blockIdx.y / HALVES, half = blockIdx.y % HALVES;
    Seq seq = sequence(p, s);
    u32 group = p.heads / p.kv.kv_heads, count_rows = seq.queries * group, first = blockIdx.x * ROWS;
    if (first >= count_rows || seq.queries <= p.few) return;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 q = shared_address(memory), ring = q + ROWS * Tile::K_PITCH;
    Tile::queries(p, seq, kv_head, first, ROWS, q);
    u32 lo = row_at(p, seq, first / group).lo;
    u32 hi = row_at(p, seq, least(first + ROWS, count_rows) / group - (least(first + ROWS, count_rows) % group == 0)).hi;
    Row rows[2];
    float slope[2];
    u32 head[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 r = first + warp * 16 + i * 8 + lane / 4;
        rows[i] = row_at(p, seq, r / group);
        if (r >= count_rows) rows[i].hi = rows[i].lo = 0;
        head[i] = kv_head * group + r % group;
        slope[i] = p.scores.slopes && r < count_rows ? reinterpret_cast<const float *>(p.scores.slopes)[head[i]] : 0.0f;
    }
    u32 tile = first + warp * 16;
    Common common = common_of(p, seq, group, tile, least(tile + 16, count_rows));
    Output<N> span, all;
    u32 chunk = lo / CHUNK * CHUNK;
    span.template open<T>(p.scores, rows, head, chunk / SPAN);
    all.clear();
    u32 number = Tile::row_number(p, seq, s, kv_head, chunk, lo, hi);
    // The first turn only copies; each turn copies the chunk after the one that it works on.
    u32 stage = 1, next = chunk;
#pragma unroll 1
    for (bool begun = false; next < hi || begun; begun = next < hi, next += CHUNK, stage ^= 1) {
        copy_wait<0>();
        __syncthreads();
        if (next < hi) {
            Tile::chunk(p, kv_head, half, number, ring + (stage ^ 1) * Tile::STAGE);
            number = Tile::row_number(p, seq, s, kv_head, next + CHUNK, lo, hi);
        }
        copy_commit();
        if (!begun) continue;
        chunk = next - CHUNK;
        u32 k = ring + stage * Tile::STAGE, v = k + CHUNK * Tile::K_PITCH;
        float w[8][4], top[2];
        Tile::dot(w, q + warp * 16 * Tile::K_PITCH, k);
        score(p, w, rows, head, slope, chunk, top);
        span.rise(top);
        bool apart = is_partial(common, chunk, lo, hi) && any_wild<T, VD / 8, Tile::V_PITCH>(v);
        u32 parts[4][8];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 high[4], low[4];
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                float m = span.m[e % 2];
                const float *two = &w[2 * i + e / 2][e % 2 * 2];
                parts_of<T>(weight<T>(two[0], m), weight<T>(two[1], m), high[e], low[e]);
            }
            count<T>(span.l, high, low);
            if (apart) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) parts[i][e] = high[e], parts[i][4 + e] = low[e];
                continue;
            }
#pragma unroll
            for (u32 n = 0; n < N; n += 2) {
                weigh<T, Tile::V_PITCH>(span.o[n], span.o[n + 1], high, low, v + i * 16 * Tile::V_PITCH + n * 16);
            }
        }
        if (apart) weigh_apart<T, Tile::V_PITCH, N / 2, 1>(span.o, parts, rows, chunk, v, 0);
        if ((chunk + CHUNK) % SPAN == 0 || chunk + CHUNK >= hi) {
            all.take(span);
            span.template open<T>(p.scores, rows, head, chunk / SPAN + 1);
        }
    }
    copy_wait<0>();
    launch_dependents();
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        if (first + warp * 16 + i * 8 + lane / 4 >= count_rows) continue;
        bool none = rows[i].lo >= rows[i].hi;
        float by = none ? 0.0f : div(1.0f, all.l[2 * i]);
        u32 col = head[i] * p.kv.v_dim + half * VD + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < N; n++) {
            write<T>(p, seq.first + rows[i].query, col + n * 8, mul(all.o[n][2 * i], by), mul(all.o[n][2 * i + 1], by));
        }
    }
}

// Floats of one part: m, l, o [v_dim].
DEVICE float *part_of(const Flash &p, u32 s, u32 head, u32 query, u32 span) {
    u64 at = (((u64)s * p.heads + head) * p.few + query) * p.spans + span;
    return reinterpret_cast<float *>(p.parts) + at * (p.kv.v_dim + 2);
}

template <typename T, u32 KD, u32 VD, u32 HALVES>
DEVICE void split(const Flash &p) {
    using Tile = Tiles<T, KD, VD>;
    // Pairs of column tiles, dealt to the warps in turn.
    constexpr u32 PAIRS = VD / 16, OWN = (PAIRS + WARPS - 1) / WARPS, W_PITCH = CHUNK * 2 + 16;
    __shared__ float tops[WARPS][16];
    __shared__ __align__(16) u8 weights[2][16 * W_PITCH];
    wait_for_dependencies();
    u32 s = blockIdx.z, half = blockIdx.y % HALVES, tile = blockIdx.y / HALVES % p.tiles;
    u32 kv_head = blockIdx.y / HALVES / p.tiles;
    Seq seq = sequence(p, s);
    u32 group = p.heads / p.kv.kv_heads, count_rows = seq.queries * group, first = tile * 16;
    if (first >= count_rows || seq.queries > p.few) return;
    u32 last_row = least(first + 16, count_rows) - 1;
    u32 lo = row_at(p, seq, first / group).lo, hi = row_at(p, seq, last_row / group).hi;
    u32 begin = blockIdx.x * SPAN;
    // Blocks of spans that no row sees; the first that might be seen stays for rows that see nothing, which
    // may begin where the keys end.
    u32 last_key = most(seq.len, 1u) - 1;
    if (begin + SPAN <= least(lo, last_key) / SPAN * SPAN || (begin >= hi && begin > lo)) return;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 q = shared_address(memory), ring = q + 16 * Tile::K_PITCH;
    u32 w_at = shared_address(weights);
    Tile::queries(p, seq, kv_head, first, 16, q);
    Row rows[2];
    float slope[2];
    u32 head[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 r = first + i * 8 + lane / 4;
        rows[i] = row_at(p, seq, r / group);
        if (r >= count_rows) rows[i].hi = rows[i].lo = 0;
        head[i] = kv_head * group + r % group;
        slope[i] = p.scores.slopes && r < count_rows ? reinterpret_cast<const float *>(p.scores.slopes)[head[i]] : 0.0f;
    }
    Common common = common_of(p, seq, group, first, last_row + 1);
    Output<2 * OWN> span;
    span.template open<T>(p.scores, rows, head, blockIdx.x);
    u32 chunk = most(begin, lo / CHUNK * CHUNK), end = least(begin + SPAN, hi);
    u32 number = Tile::row_number(p, seq, s, kv_head, chunk, lo, end);
    // As in `whole`.
    u32 stage = 1, next = chunk;
#pragma unroll 1
    for (bool begun = false; next < end || begun; begun = next < end, next += CHUNK, stage ^= 1) {
        copy_wait<0>();
        __syncthreads();
        if (next < end) {
            Tile::chunk(p, kv_head, half, number, ring + (stage ^ 1) * Tile::STAGE);
            number = Tile::row_number(p, seq, s, kv_head, next + CHUNK, lo, end);
        }
        copy_commit();
        if (!begun) continue;
        chunk = next - CHUNK;
        u32 k = ring + stage * Tile::STAGE, v = k + CHUNK * Tile::K_PITCH;
        // Each warp scores 16 positions; the largest of a row is everybody's.
        float w[2][4], top[2];
        Tile::dot(w, q, k + warp * 16 * Tile::K_PITCH);
        score(p, w, rows, head, slope, chunk + warp * 16, top);
        if (lane % 4 == 0) tops[warp][lane / 4] = top[0], tops[warp][lane / 4 + 8] = top[1];
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
#pragma unroll
            for (u32 other = 0; other < WARPS; other++) top[i] = fmaxf(top[i], tops[other][lane / 4 + i * 8]);
        }
        span.rise(top);
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                u32 high, low;
                parts_of<T>(weight<T>(w[n][2 * i], span.m[i]), weight<T>(w[n][2 * i + 1], span.m[i]), high, low);
                u32 at = (lane / 4 + i * 8) * W_PITCH + (warp * 16 + n * 8 + lane % 4 * 2) * 2;
                *reinterpret_cast<u32 *>(&weights[0][at]) = high;
                *reinterpret_cast<u32 *>(&weights[1][at]) = low;
            }
        }
        __syncthreads();
        bool apart = is_partial(common, chunk, lo, end) && any_wild<T, VD / 8, Tile::V_PITCH>(v);
        u32 parts[4][8];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 high[4], low[4], at = w_at + lane % 16 * W_PITCH + lane / 16 * 16 + i * 32;
            load_matrices(high, at);
            load_matrices(low, at + 16 * W_PITCH);
            count<T>(span.l, high, low);
            if (apart) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) parts[i][e] = high[e], parts[i][4 + e] = low[e];
                continue;
            }
#pragma unroll
            for (u32 n = 0; n < OWN; n++) {
                u32 pair = warp + n * WARPS;
                if (pair < PAIRS) {
                    weigh<T, Tile::V_PITCH>(span.o[2 * n], span.o[2 * n + 1], high, low, v + i * 16 * Tile::V_PITCH + pair * 32);
                }
            }
        }
        if (apart) weigh_apart<T, Tile::V_PITCH, PAIRS, WARPS>(span.o, parts, rows, chunk, v, warp);
    }
    copy_wait<0>();
    launch_dependents();
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const Row &row = rows[i];
        if (first + i * 8 + lane / 4 >= count_rows) continue;
        bool none = row.lo >= row.hi;
        u32 first_span = least(row.lo, last_key) / SPAN, last_span = none ? first_span : (row.hi - 1) / SPAN;
        if (blockIdx.x < first_span || blockIdx.x > last_span) continue;
        bool alone = first_span == last_span;
        float by = none ? 0.0f : div(1.0f, span.l[2 * i]);
        float *part = alone ? nullptr : part_of(p, s, head[i], row.query, blockIdx.x);
        if (!alone && half == 0 && warp == 0 && lane % 4 == 0) part[0] = span.m[i], part[1] = span.l[2 * i];
#pragma unroll
        for (u32 n = 0; n < 2 * OWN; n++) {
            u32 pair = warp + n / 2 * WARPS;
            if (pair >= PAIRS) continue;
            u32 col = half * VD + pair * 16 + n % 2 * 8 + lane % 4 * 2;
            float a = span.o[n][2 * i], b = span.o[n][2 * i + 1];
            if (alone) {
                write<T>(p, seq.first + row.query, head[i] * p.kv.v_dim + col, mul(a, by), mul(b, by));
            } else {
                part[2 + col] = a, part[3 + col] = b;
            }
        }
    }
}

// Joins the spans of rows that have several: one thread a column.
template <typename T>
DEVICE void merge(const Flash &p) {
    wait_for_dependencies();
    launch_dependents();
    u32 head = blockIdx.x, query = blockIdx.y, s = blockIdx.z;
    Seq seq = sequence(p, s);
    if (query >= seq.queries || seq.queries > p.few) return;
    Row row = row_at(p, seq, query);
    if (row.lo >= row.hi) return;
    u32 from = row.lo / SPAN, to = (row.hi - 1) / SPAN;
    if (from == to) return;
    for (u32 col = threadIdx.x; col < p.kv.v_dim; col += blockDim.x) {
        float m = LOWEST, l = 0.0f, o = 0.0f;
        for (u32 span = from; span <= to; span++) {
            const float *part = part_of(p, s, head, query, span);
            float next = fmaxf(m, part[0]);
            bool first = l == 0.0f, none = part[1] == 0.0f;
            float a = first ? 0.0f : none ? 1.0f : exp_fast(sub(m, next));
            float b = first ? 1.0f : none ? 0.0f : exp_fast(sub(part[0], next));
            m = next;
            l = madd(l, a, mul(part[1], b));
            o = madd(o, a, mul(part[2 + col], b));
        }
        row_of<T>(p.out, seq.first + query)[head * p.kv.v_dim + col] = narrow<T>(mul(o, div(1.0f, l)));
    }
}

#define WIDTH(T, NAME, KD, VD, HALVES)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) flash_whole_##NAME##_##KD(const __grid_constant__ Flash p) { \
        whole<T, KD, VD, HALVES>(p);                                                                                   \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) flash_split_##NAME##_##KD(const __grid_constant__ Flash p) { \
        split<T, KD, VD, HALVES>(p);                                                                                   \
    }
#define EACH(T, NAME)                                                                                                  \
    WIDTH(T, NAME, 64, 64, 1)                                                                                          \
    WIDTH(T, NAME, 80, 80, 1)                                                                                          \
    WIDTH(T, NAME, 96, 96, 1)                                                                                          \
    WIDTH(T, NAME, 112, 112, 1)                                                                                        \
    WIDTH(T, NAME, 128, 128, 1)                                                                                        \
    WIDTH(T, NAME, 192, 96, 2)                                                                                         \
    WIDTH(T, NAME, 256, 128, 2)                                                                                        \
    extern "C" __global__ void __launch_bounds__(128) flash_merge_##NAME(const __grid_constant__ Flash p) { merge<T>(p); }
EACH(bf16, bf16)
EACH(f16, f16)
