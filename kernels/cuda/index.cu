// An index of keys: scores of the keys that a query sees, and the choice of the best.
//
//   scores  out[r, j] = sum over h of factors[h] max(scale (q[h] . key[j]), 0): both sums are one chain of
//           madd from 0, by columns and by heads; a key is the row of `low`, then that of `high`, at its slot
//   choose  the slots of the `count` largest scores of a row in ascending order of positions, of equal ones
//           the earlier; NaN is the smallest. Behind them 0, and how many there are
//
// Token row `first + r` sees the keys up to its position; a row outside every sequence sees none. Of rows
// that see no more than `count` keys no score is computed, and all of them are chosen.
//
// scores: a block of 128 threads takes 128 keys of a row, a thread a key; the row's queries lie in shared
// memory in f32, eight heads at a time read them while the key passes by once. Grid [rows, keys / 128].
// choose: a block of 256 threads takes a row. The least chosen score is found by its bits, 8 at a time, from
// counts of scores by their next byte; then keys go by in the order of positions. Grid [rows].
#include "device.cuh"

struct Lists {
    u64 bounds;
    u64 table_rows;
    u64 kv_lens;
    // Page numbers [rows, stride].
    u64 table;
    u32 seqs;
    u32 rows;
    u32 stride;
    u32 page_size;
    u32 first;
    u32 count;
};

struct Scores {
    MatView q;
    MatView factors;
    MatView low;
    MatView high;
    MatView out;
    Lists lists;
    u32 heads;
    float scale;
    u32 elem;
    u32 kv_elem;
};

struct Choose {
    MatView scores;
    Lists lists;
    u64 chosen;
    u64 counts;
};

constexpr u32 KEYS = 128;
constexpr u32 HEADS = 8;
constexpr u32 THREADS = 256;

// The keys of a query: its row of the page table, and how many there are.
struct Own {
    const u32 *pages;
    u32 page_size;
    u32 keys;
};

DEVICE u32 slot_of(const Own &own, u32 key) { return own.pages[key / own.page_size] * own.page_size + key % own.page_size; }

DEVICE Own keys_of(const Lists &l, u32 token, u32 room) {
    const u32 *bounds = reinterpret_cast<const u32 *>(l.bounds);
    Own own = {reinterpret_cast<const u32 *>(l.table), l.page_size, 0};
    if (l.seqs == 0 || l.rows == 0) return own;
    u32 lo = 0, hi = l.seqs;
    while (lo + 1 < hi) {
        u32 mid = (lo + hi) / 2;
        if (bounds[mid] <= token) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    u32 end = bounds[lo + 1];
    if (token < bounds[lo] || token >= end) return own;
    u32 len = reinterpret_cast<const u32 *>(l.kv_lens)[lo];
    u32 row = least(reinterpret_cast<const u32 *>(l.table_rows)[lo], l.rows - 1);
    // The last of the sequence's queries sees all of its keys.
    u32 hidden = end - token - 1;
    own.keys = least(least(len - least(len, hidden), room), l.stride * l.page_size);
    own.pages += (u64)row * l.stride;
    return own;
}

// Columns from..from + part.cols of the products of eight heads with a key.
DEVICE void pass(float (&sums)[HEADS], const float *queries, u32 width, const MatView &part, u32 slot, u32 from, u32 elem) {
    u64 at = (u64)slot * part.pitch;
    for (u32 d = 0; d < part.cols; d++) {
        float k = load_any(part.ptr, at + d, elem);
#pragma unroll
        for (u32 i = 0; i < HEADS; i++) sums[i] = madd(queries[i * width + from + d], k, sums[i]);
    }
}

extern "C" __global__ void __launch_bounds__(128) index_scores(const __grid_constant__ Scores p) {
    extern __shared__ float queries[];
    begin();
    u32 r = blockIdx.x, token = p.lists.first + r, width = p.low.cols + p.high.cols;
    Own own = keys_of(p.lists, token, p.out.cols);
    u32 base = blockIdx.y * KEYS;
    if (own.keys <= p.lists.count || base >= own.keys) return;
    u32 all = over(p.heads, HEADS) * HEADS * width;
    for (u32 i = threadIdx.x; i < all; i += KEYS) {
        queries[i] = i < p.q.cols ? load_any(p.q.ptr, token * p.q.pitch + i, p.elem) : 0.0f;
    }
    __syncthreads();
    u32 j = base + threadIdx.x;
    if (j >= own.keys) return;
    u32 slot = slot_of(own, j);
    float score = 0.0f;
    if (slot < p.low.rows) {
        for (u32 h = 0; h < p.heads; h += HEADS) {
            float sums[HEADS] = {};
            pass(sums, queries + h * width, width, p.low, slot, 0, p.kv_elem);
            pass(sums, queries + h * width, width, p.high, slot, p.low.cols, p.kv_elem);
#pragma unroll
            for (u32 i = 0; i < HEADS; i++) {
                if (h + i >= p.heads) break;
                float factor = load_any(p.factors.ptr, token * p.factors.pitch + h + i, p.elem);
                score = madd(factor, relu_of(mul(sums[i], p.scale)), score);
            }
        }
    }
    row_of<float>(p.out, r)[j] = score;
}

// Numbers in the order of scores; NaN is 0, zeros are one number.
DEVICE u32 ordered(float score) {
    if (is_nan(score)) return 0;
    u32 bits = bits_of(add(score, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Of 256 flags those before this thread's, and all; `sums` are shared by the block.
DEVICE u32 before(u32 flag, u32 (&sums)[THREADS / 32], u32 &all) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 ballot = __ballot_sync(0xffffffffu, flag);
    if (lane == 0) sums[warp] = __popc(ballot);
    __syncthreads();
    u32 sum = 0;
    all = 0;
    for (u32 w = 0; w < THREADS / 32; w++) {
        if (w < warp) sum += sums[w];
        all += sums[w];
    }
    __syncthreads();
    return sum + __popc(ballot & ((1u << lane) - 1));
}

// The least of the `count` largest scores, and how many that equal it are among them.
DEVICE u32 least_chosen(const float *scores, u32 keys, u32 count, u32 (&bins)[256], u32 (&found)[2], u32 &equals) {
    u32 known = 0, left = count;
    for (u32 shift = 24;; shift -= 8) {
        bins[threadIdx.x] = 0;
        __syncthreads();
        for (u32 j = threadIdx.x; j < keys; j += THREADS) {
            u32 number = ordered(scores[j]);
            // All bits above those that are looked at.
            if (shift == 24 || number >> (shift + 8) == known >> (shift + 8)) atomicAdd(&bins[number >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 above = 0, bin = 255;
            while (bin > 0 && above + bins[bin] < left) above += bins[bin--];
            found[0] = known | bin << shift;
            found[1] = left - above;
        }
        __syncthreads();
        known = found[0];
        left = found[1];
        if (shift == 0) break;
    }
    equals = left;
    return known;
}

extern "C" __global__ void __launch_bounds__(256) index_choose(const __grid_constant__ Choose p) {
    __shared__ u32 bins[256];
    __shared__ u32 sums[THREADS / 32];
    __shared__ u32 found[2];
    begin();
    u32 r = blockIdx.x, count = p.lists.count;
    Own own = keys_of(p.lists, p.lists.first + r, p.scores.cols);
    u32 *chosen = reinterpret_cast<u32 *>(p.chosen) + (u64)r * count;
    u32 taken = least(own.keys, count);
    if (threadIdx.x == 0) reinterpret_cast<u32 *>(p.counts)[r] = taken;
    for (u32 i = taken + threadIdx.x; i < count; i += THREADS) chosen[i] = 0;
    if (own.keys <= count) {
        for (u32 i = threadIdx.x; i < taken; i += THREADS) chosen[i] = slot_of(own, i);
        return;
    }
    const float *scores = row_of<float>(p.scores, r);
    u32 equals;
    u32 lowest = least_chosen(scores, own.keys, count, bins, found, equals);
    u32 place = 0, passed = 0;
    for (u32 base = 0; base < own.keys; base += THREADS) {
        u32 j = base + threadIdx.x;
        u32 number = j < own.keys ? ordered(scores[j]) : 0;
        u32 all, same = j < own.keys && number == lowest;
        u32 rank = passed + before(same, sums, all);
        passed += all;
        u32 is = (j < own.keys && number > lowest) || (same && rank < equals);
        u32 at = place + before(is, sums, all);
        place += all;
        if (is) chosen[at] = slot_of(own, j);
    }
}
