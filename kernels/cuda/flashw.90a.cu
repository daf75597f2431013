// Attention over many queries on Hopper: producer and consumer warps, wgmma. Mode `Fast` alone; flash.cu has
// the rest.
//
//   s_j = scale (q . k_j)    capped, with slopes, with biases by distance: as flash.cu
//   per chunk of 64 absolute positions, ascending, from m = lowest, l = o = 0:
//     m' = max(m, max s)   a = exp(m - m')   e_j = exp(s_j - m')   l = l a + sum e_j   o = o a + sum e_j v_j
//   at the end o (1 / l)
//
// q . k is a chain of wgmma over d, the sums over j are chains of wgmma of e in the two 16-bit parts of
// flash.cu (times 2^15 in f16), so results stay within the budgets of flash.cu. The order is another: no
// spans, and l adds e itself. Infinities and NaN among values that a row does not see do not reach it, as in
// flash.cu; such a chunk's values are added by FMA.
//
// q [tokens, heads * D], out [tokens, heads * D], keys and values in pages or as rows, masks, empty rows,
// rows of work: as flash.cu. Sequences of at most `few` queries are left to its `split` and `merge`.
//
// A block has 128 rows of work of one key head. Warps 0-3 and 4-7 are two warpgroups that multiply, each its
// 64 rows by every chunk; while one computes weights the other has the tensor cores. Warps 8-11 copy: each 16
// positions of every chunk, whose rows its lanes know, by 16-byte cp.async from wherever pages lie (a page
// may have any size and a position any page, which no tensor map describes), two chunks on their way while a
// third is handed over. A ring of 4 stages, a barrier full (4 copying warps) and one empty (8 multiplying
// warps) each. Registers go from those that copy to those that multiply.
//
// In shared memory q, keys and values lie in tiles of 64 rows by 64 columns, 128 bytes a row, 16-byte pieces
// swizzled by the row: K-major operands for q . k, and for the values the same bytes read along their
// columns.
//
// | entry | block | grid | shared memory (width 128) | registers at entry at most |
// | --- | --- | --- | --- | --- |
// | whole | 12 warps, 2 x 64 rows | [tiles of 128 rows, kv heads, sequences] | q, 4 x (keys, values) of a chunk: 161 KiB | 168 |
//
// Bytes: keys and values once per 128 rows, from L2; q and out once.
#include "flash.cuh"
#include "wgmma.cuh"

extern __shared__ __align__(1024) u8 memory[];

template <typename T, u32 D>
struct Block {
    static constexpr u32 ROWS = 128, THREADS = 384, COPIERS = 256, STAGES = 4, AHEAD = 2;
    // Bytes of 64 rows.
    static constexpr u32 TILE = 64 * D * 2, STAGE = 2 * TILE, RING = STAGES * STAGE;

    const Flash &p;
    Seq seq;
    u32 s, kv_head, group, first, count_rows;
    // Keys that any row of the block sees, from the beginning of a chunk on; chunks.
    u32 lo, hi, chunks;
    u32 q, ring, full, empty;

    DEVICE Block(const Flash &p, u32 at) : p(p) {
        s = blockIdx.z, kv_head = blockIdx.y, first = blockIdx.x * ROWS;
        q = (at + 1023) / 1024 * 1024, ring = q + 2 * TILE, full = ring + RING, empty = full + STAGES * 8;
        seq = sequence(p, s), group = p.heads / p.kv.kv_heads, count_rows = seq.queries * group;
    }

    // Where 8 columns from c on of a row lie.
    DEVICE static u32 place(u32 row, u32 c) { return c / 64 * 8192 + row * 128 + (c / 8 % 8 ^ row % 8) * 16; }

    static DEVICE void eight(u32 to, const T *from, bool there, bool wide) {
        if (wide) {
            copy16_or_zero(to, from, there);
        } else {
#pragma unroll 1
            for (u32 i = 0; i < 8; i++) {
                u16 v = there ? from[i].raw : 0;
                asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + i * 2), "h"(v) : "memory");
            }
        }
    }

    // What this thread has written is there for wgmma, once others know of it.
    template <int LEFT>
    static DEVICE void written() {
        copy_wait<LEFT>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }

    // ---- Copying warps

    // Which row of the slabs (or matrices) holds a position; ~0 outside lo..hi.
    DEVICE u32 row_number(u32 position) const {
        if (position < lo || position >= hi) return ~0u;
        if (p.kv.page_size == 0) return seq.first + position;
        u32 page = page_of(p.kv, p.table, reinterpret_cast<const u32 *>(p.table_rows)[s], position);
        return (page * p.kv.kv_heads + kv_head) * p.kv.page_size + position % p.kv.page_size;
    }

    // This warp's 16 rows: row r is number `number` of lane r; ~0 is a row of zeros.
    static DEVICE void rows(const T *from, u64 pitch, u32 number, u32 to) {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        bool wide = (((u64)from | pitch * 2) & 15) == 0;
#pragma unroll 4
        for (u32 i = lane; i < 16 * (D / 8); i += 32) {
            u32 r = i / (D / 8), c = i % (D / 8) * 8, row = __shfl_sync(0xffffffffu, number, r);
            eight(to + place(warp * 16 + r, c), from + (row == ~0u ? 0 : row * pitch + c), row != ~0u, wide);
        }
    }

    DEVICE void hand_over(u32 slot) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(full + slot * 8);
    }

    DEVICE void copy() {
        bool dense = p.kv.page_size == 0;
        const T *k = reinterpret_cast<const T *>(p.kv.keys) + (dense ? kv_head * D : 0);
        const T *v = reinterpret_cast<const T *>(p.kv.values) + (dense ? kv_head * D : 0);
        u64 k_pitch = dense ? p.k_pitch : D, v_pitch = dense ? p.v_pitch : D;
        u32 position = lo / CHUNK * CHUNK + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 16;
        u32 slot = 0, phase = 1, ready = 0;
#pragma unroll 1
        for (u32 chunk = 0; chunk < chunks; chunk++, position += CHUNK) {
            u32 number = row_number(position);
            barrier_wait(empty + slot * 8, phase);
            rows(k, k_pitch, number, ring + slot * STAGE);
            rows(v, v_pitch, number, ring + slot * STAGE + TILE);
            copy_commit();
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            phase ^= slot == 0;
            if (chunk >= AHEAD) {
                written<AHEAD>();
                hand_over(ready);
                ready = ready + 1 == STAGES ? 0 : ready + 1;
            }
        }
        written<0>();
#pragma unroll 1
        for (u32 i = least(AHEAD, chunks); i > 0; i--) {
            hand_over(ready);
            ready = ready + 1 == STAGES ? 0 : ready + 1;
        }
    }

    // ---- Multiplying warps

    DEVICE void queries(u32 half) {
        bool wide = aligned<T>(p.q);
#pragma unroll 1
        for (u32 i = threadIdx.x % 128; i < 64 * (D / 8); i += 128) {
            u32 r = i / (D / 8), c = i % (D / 8) * 8, at = first + half * 64 + r;
            bool there = at < count_rows;
            u32 query = there ? at / group : 0, head = kv_head * group + (there ? at % group : 0);
            eight(q + half * TILE + place(r, c), row_of<T>(p.q, seq.first + query) + head * D + c, there, wide);
        }
        copy_commit();
        written<0>();
        asm volatile("bar.sync %0, 128;" ::"r"(1 + half) : "memory");
    }

    // o += e v for a chunk's weights e of scores w, key by key, each row what it sees: where values that some
    // row does not see are infinite or NaN. Lane t of four has the scores of keys 8 n + 2 t and the next.
    DEVICE void weigh_apart(float (&o)[D / 2], const float (&w)[32], const float (&m)[2], const Row (&row)[2], u32 begin, u32 v) {
        float e[2][32];
#pragma unroll
        for (u32 i = 0; i < 32; i++) e[i / 2 % 2][i / 4 * 2 + i % 2] = weight<T>(w[i], m[i / 2 % 2]);
        u32 lane = threadIdx.x % 32;
#pragma unroll 1
        for (u32 j = 0; j < CHUNK; j++) {
            u32 from = lane / 4 * 4 + j % 8 / 2, at = j / 8 * 2 + j % 2, key = begin + j;
            float a = __shfl_sync(0xffffffffu, e[0][at], from), b = __shfl_sync(0xffffffffu, e[1][at], from);
            bool upper = key >= row[0].lo && key < row[0].hi, lower = key >= row[1].lo && key < row[1].hi;
#pragma unroll
            for (u32 n = 0; n < D / 8; n++) {
                u32 two = load4(v + place(j, n * 8) + lane % 4 * 4);
                float left = Half<T>::low(two), right = Half<T>::high(two);
                if (upper) o[n * 4] = madd(a, left, o[n * 4]), o[n * 4 + 1] = madd(a, right, o[n * 4 + 1]);
                if (lower) o[n * 4 + 2] = madd(b, left, o[n * 4 + 2]), o[n * 4 + 3] = madd(b, right, o[n * 4 + 3]);
            }
        }
        __syncwarp();
    }

    DEVICE void attend(u32 half) {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        queries(half);
        Row row[2];
        float slope[2], m[2], l[2];
        u32 head[2];
        bool there[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 r = first + half * 64 + warp * 16 + i * 8 + lane / 4;
            there[i] = r < count_rows;
            row[i] = row_at(p, seq, r / group);
            if (!there[i]) row[i].hi = row[i].lo = 0;
            head[i] = kv_head * group + r % group;
            slope[i] = p.scores.slopes && there[i] ? reinterpret_cast<const float *>(p.scores.slopes)[head[i]] : 0.0f;
            m[i] = LOWEST, l[i] = 0.0f;
            if (p.scores.sinks && row[i].lo < row[i].hi) sink_of<T>(p.scores, head[i], m[i], l[i]);
            // Each of a quad counts some of the keys; the sink counts once.
            if (lane % 4 != 0) l[i] = 0.0f;
        }
        u32 tile = first + half * 64;
        Common common = common_of(p, seq, group, tile, least(tile + 64, count_rows));
        float o[D / 2];
#pragma unroll
        for (u32 i = 0; i < D / 2; i++) o[i] = 0.0f;
        u64 queries = operand<16, 1024, 1>(q + half * TILE);
        u32 slot = 0, phase = 0;
#pragma unroll 1
        for (u32 chunk = 0; chunk < chunks; chunk++) {
            barrier_wait(full + slot * 8, phase);
            u64 keys = operand<16, 1024, 1>(ring + slot * STAGE);
            u64 values = operand<8192, 1024, 1>(ring + slot * STAGE + TILE);
            float w[32], top[2];
            wgmma_fence();
            multiply_first<T, 64>(w, queries, keys);
#pragma unroll
            for (u32 d = 1; d < D / 16; d++) {
                u32 at = (d / 4 * 8192 + d % 4 * 32) / 16;
                multiply<T, 64>(w, queries + at, keys + at);
            }
            wgmma_commit();
            wgmma_wait<0>();
            settled(w);
            score(p, reinterpret_cast<float(&)[8][4]>(w), row, head, slope, (lo / CHUNK + chunk) * CHUNK, top);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float next = fmaxf(m[i], top[i]), a = exp_fast(sub(m[i], next));
                m[i] = next, l[i] = mul(l[i], a);
#pragma unroll
                for (u32 n = 0; n < D / 8; n++) o[n * 4 + 2 * i] = mul(o[n * 4 + 2 * i], a), o[n * 4 + 2 * i + 1] = mul(o[n * 4 + 2 * i + 1], a);
            }
            u32 high[4][4], low[4][4];
#pragma unroll
            for (u32 i = 0; i < 16; i++) {
                // Columns 16 (i / 4) + 8 (i / 2 % 2) on, row i % 2.
                const float *two = &w[(2 * (i / 4) + i / 2 % 2) * 4 + i % 2 * 2];
                float a = weight<T>(two[0], m[i % 2]), b = weight<T>(two[1], m[i % 2]);
                l[i % 2] = add(l[i % 2], add(a, b));
                parts_of<T>(a, b, high[i / 4][i % 4], low[i / 4][i % 4]);
            }
            // The same for all warps of the half.
            u32 begin = (lo / CHUNK + chunk) * CHUNK, v = ring + slot * STAGE + TILE;
            if (is_partial(common, begin, lo, hi) && any_wild<T, D / 8, D * 2>(v)) {
                weigh_apart(o, w, m, row, begin, v);
            } else {
                wgmma_fence();
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    multiply_transposed<T, D>(o, high[i], values + i * 2048 / 16);
                    multiply_transposed<T, D>(o, low[i], values + i * 2048 / 16);
                }
                wgmma_commit();
                wgmma_wait<0>();
                settled(o);
            }
            if (lane == 0) barrier_arrive(empty + slot * 8);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            phase ^= slot == 0;
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            l[i] = add(l[i], __shfl_xor_sync(0xffffffffu, l[i], 1));
            l[i] = add(l[i], __shfl_xor_sync(0xffffffffu, l[i], 2));
            if (!there[i]) continue;
            float by = row[i].lo >= row[i].hi ? 0.0f : div(1.0f, l[i]);
            u32 col = head[i] * D + lane % 4 * 2;
#pragma unroll
            for (u32 n = 0; n < D / 8; n++) {
                write<T>(p, seq.first + row[i].query, col + n * 8, mul(o[n * 4 + 2 * i], by), mul(o[n * 4 + 2 * i + 1], by));
            }
        }
    }

    DEVICE void run() {
        if (first >= count_rows || seq.queries <= p.few) return;
        u32 last = least(first + ROWS, count_rows) - 1;
        lo = row_at(p, seq, first / group).lo, hi = row_at(p, seq, last / group).hi;
        chunks = hi > lo ? over(hi - lo / CHUNK * CHUNK, CHUNK) : 0;
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < STAGES; i++) barrier_init(full + i * 8, 4), barrier_init(empty + i * 8, 8);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
        if (threadIdx.x >= COPIERS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            copy();
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            attend(threadIdx.x / 128);
        }
    }
};

// An entry; a launch's shared memory is that of q, RING, the barriers, and 1 KiB to begin at a multiple of
// one.
#define WHOLE(T, NAME, D)                                                                                              \
    extern "C" __global__ void __launch_bounds__(384, 1) flashw_whole_##NAME##_##D(const __grid_constant__ Flash p) {  \
        begin();                                                                                                       \
        Block<T, D> block(p, shared_address(memory));                                                                  \
        block.run();                                                                                                   \
    }
WHOLE(bf16, bf16, 64)
WHOLE(bf16, bf16, 128)
WHOLE(f16, f16, 64)
WHOLE(f16, f16, 128)
