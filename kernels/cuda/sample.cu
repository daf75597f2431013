// From a row of logits to a token: engraft_core::sample::reference, bit for bit.
//
// Weights are integers of at most 2^30, so sums have no order: no sort, no fixed reduction. A block of 1024
// threads serves a row of logits [vocab] f32 in a handful of passes over it (from L2: 512 KB for 128 k
// tokens). A thread asks for four or eight logits before it looks at the first: one by one a pass took 64 us
// on an H200, all of it waiting.
//
//   1. the largest scaled logit (greedy ends here);
//   2. top-k and top-p, where asked, each: tokens are counted and weighed in 256 bins of equal width in z
//      (ties share a bin, bins ascend in rank), a scan finds the bin in which the last kept token lies, the
//      tokens of that bin (finer and finer digits of the ranking key where they are many) are listed, and
//      each listed token ranks itself among them;
//   3. the sum of what is kept, per warp's stretch of the vocabulary; the warp whose stretch holds the target
//      walks it.
//
// Nothing here depends on other rows. seen [slots, words] bits: read for the repetition penalty, the sampled
// token is added.
#include "device.cuh"

// Of the largest block; small vocabularies take smaller ones, of 256 threads at least.
constexpr u32 WARPS = 32;
constexpr u32 BINS = 256;
// Tokens that are ranked among each other.
constexpr u32 LISTED = 1024;
constexpr u32 TOP_P_OFF = 1 << 24;
// Ascending keys of -infinity and of the largest finite number.
constexpr u32 LOWEST = 0x007fffff;
constexpr u32 LARGEST = 0xff7fffff;

struct Sample {
    MatView logits;
    u64 table;
    u64 slots;
    u64 positions;
    u64 seen;
    u64 out;
    u32 table_rows;
    u32 seen_rows;
    u32 seen_words;
    u32 reserved;
};

// A float's place in ascending order; NaN counts as -infinity, -0 as +0.
DEVICE u32 ascending(float v) {
    u32 bits = bits_of(v);
    if (is_nan(v)) bits = 0xff800000u;
    if (bits == 0x80000000u) bits = 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEVICE float from_ascending(u32 key) { return float_of(key >> 31 ? key & 0x7fffffffu : ~key); }

// Largest over the block of a 64-bit number; every thread gets it. `room` [WARPS + 1].
DEVICE u64 largest(u64 v, u64 *room) {
#pragma unroll
    for (u32 span = 16; span > 0; span /= 2) v = most(v, __shfl_xor_sync(0xffffffffu, v, span));
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? room[threadIdx.x] : 0;
#pragma unroll
        for (u32 span = 16; span > 0; span /= 2) v = most(v, __shfl_xor_sync(0xffffffffu, v, span));
        if (threadIdx.x == 0) room[WARPS] = v;
    }
    __syncthreads();
    u64 all = room[WARPS];
    __syncthreads();
    return all;
}

// (key, index) as one number whose largest is the largest key and, among equals, the lowest index.
DEVICE u64 pair(u32 key, u32 index) { return (u64)key << 32 | (u32)~index; }

// What a row of the sampling table says (engraft_core::sample::SampleRow).
struct Row {
    float inv_temperature;
    float penalty;
    float inv_penalty;
    u32 top_k;
    u32 top_p;
    u32 min_weight;
    u32 seed[2];
    u32 subsequence;
    u32 position;
    u32 index;
    int seen_slot;
};

// A row of logits as the rule sees it.
struct Logits {
    const float *values;
    const u32 *seen;
    u32 words;
    float inv_temperature;
    float penalty;
    float inv_penalty;
    float zmax;

    DEVICE float penalised(float l, bool was_seen) const {
        if (is_nan(l)) l = float_of(0xff800000u);
        return was_seen ? mul(l, l > 0.0f ? inv_penalty : penalty) : l;
    }
    DEVICE bool has_seen(u32 i) const { return i / 32 < words && (seen[i / 32] >> i % 32 & 1); }
    // The place of z in ascending order, of a penalised logit.
    DEVICE u32 place(float l) const { return least(ascending(mul(l, inv_temperature)), LARGEST); }
    DEVICE u32 weight(u32 place) const {
        if (place <= LOWEST) return 0;
        float d = sub(from_ascending(place), zmax);
        return d >= -21.0f ? (u32)mul(exp_of(d), 1073741824.0f) : 0;
    }
    // Bins of equal width in z, the best first.
    DEVICE u32 bin(u32 place) const {
        float d = sub(from_ascending(place), zmax);
        return least((u32)mul(-d, 12.0f), BINS - 1);
    }
};

// Logits of a thread that are on their way at one time: those at first, first + step and so on, below `end`.
template <u32 SIZE>
struct Batch {
    float l[SIZE];
    // Bits of those that were seen.
    u32 seen;

    DEVICE Batch(const Logits &logits, u32 first, u32 end, u32 step) {
#pragma unroll
        for (u32 j = 0; j < SIZE; j++) l[j] = first + j * step < end ? logits.values[first + j * step] : 0.0f;
        seen = 0;
        if (!logits.seen) return;
#pragma unroll
        for (u32 j = 0; j < SIZE; j++) {
            seen |= (u32)(first + j * step < end && logits.has_seen(first + j * step)) << j;
        }
    }
    // The first, penalised; the others move up.
    DEVICE float next(const Logits &logits) {
        float first = logits.penalised(l[0], seen & 1);
#pragma unroll
        for (u32 j = 0; j + 1 < SIZE; j++) l[j] = l[j + 1];
        seen >>= 1;
        return first;
    }
};

// f(i, penalised logit i) for every i from `first` by `step` below `end`.
template <u32 SIZE, typename F>
DEVICE void each(const Logits &logits, u32 first, u32 end, u32 step, F f) {
    for (u32 at = first; at < end; at += step * SIZE) {
        Batch<SIZE> batch(logits, at, end, step);
#pragma unroll 1
        for (u32 j = 0; j < SIZE && at + j * step < end; j++) f(at + j * step, batch.next(logits));
    }
}

// A token's place in the ranking: ascending keys are z descending, then the index ascending.
DEVICE u64 ranking(u32 place, u32 index) { return (u64)(u32)~place << 32 | index; }

struct Shared {
    u64 room[WARPS + 1];
    u64 sums[BINS];
    u32 counts[BINS];
    // Weights of a bin in parts of 10 bits: 2^21 tokens cannot overflow one.
    u32 parts[3][BINS];
    u64 keys[LISTED];
    u32 weights[LISTED];
    u32 listed;
    u32 chosen;
    u32 token;
    u64 all;
};

// What is kept of a bin's start: fewer than `count` tokens before it (count > 0), or a share below `top_p` of
// `total`.
struct Bound {
    u32 count;
    u64 high;
    u64 low;

    DEVICE bool holds(u64 tokens, u64 weight) const {
        if (count > 0) return tokens < count;
        u64 h = weight >> 40, l = weight << 24;
        return h < high || (h == high && l < low);
    }
};

// Sums over the bins before each bin, by the first 256 threads; all take part. `counts` and `sums` become
// exclusive.
DEVICE void scan(Shared &s) {
    u32 t = threadIdx.x;
    u32 n = t < BINS ? s.counts[t] : 0;
    u64 w = t < BINS ? s.sums[t] : 0;
    u32 own_n = n;
    u64 own_w = w;
    for (u32 span = 1; span < BINS; span *= 2) {
        u32 other_n = t < BINS && t >= span ? s.counts[t - span] : 0;
        u64 other_w = t < BINS && t >= span ? s.sums[t - span] : 0;
        __syncthreads();
        n += other_n;
        w += other_w;
        if (t < BINS) {
            s.counts[t] = n;
            s.sums[t] = w;
        }
        __syncthreads();
    }
    if (t < BINS) {
        s.counts[t] = n - own_n;
        s.sums[t] = w - own_w;
    }
    __syncthreads();
}

// Where the search for the last kept token stands. Level 0 distinguishes bins in z; levels 1 to 8 digits of
// the key, 8 bits each, among the tokens of bin `bin` whose higher digits are those of `prefix`.
struct Search {
    Bound bound;
    // Keys beyond this one are out already.
    u64 last;
    u32 level;
    u32 bin;
    u64 prefix;
    // What lies before the tokens that are looked at.
    u64 tokens;
    u64 weight;

    DEVICE u32 shift() const { return 64 - 8 * level; }
    // Whether a token of weight above 0 is looked at.
    DEVICE bool takes(const Logits &logits, u32 place, u64 key) const {
        if (key > last) return false;
        if (level == 0) return true;
        return logits.bin(place) == bin && (level == 1 || key >> (shift() + 8) == prefix >> (shift() + 8));
    }
    DEVICE u32 bin_of(const Logits &logits, u32 place, u64 key) const {
        return level == 0 ? logits.bin(place) : (u32)(key >> shift()) & 255;
    }
};

// Counts and weighs the bins of a level; behind it `counts` and `sums` hold what lies before each bin.
// Gives this thread's bin's own count, and the weight of all.
DEVICE u32 fill_bins(Shared &s, const Logits &logits, u32 vocab, const Search &at, u64 &total) {
    u32 t = threadIdx.x;
    if (t < BINS) s.counts[t] = s.parts[0][t] = s.parts[1][t] = s.parts[2][t] = 0;
    __syncthreads();
    bool weighs = at.bound.count == 0;
    each<4>(logits, t, vocab, blockDim.x, [&](u32 i, float l) {
        u32 place = logits.place(l);
        u32 w = logits.weight(place);
        u64 key = ranking(place, i);
        if (w > 0 && at.takes(logits, place, key)) {
            u32 b = at.bin_of(logits, place, key);
            atomicAdd(&s.counts[b], 1u);
            if (weighs) {
                atomicAdd(&s.parts[0][b], w & 1023);
                atomicAdd(&s.parts[1][b], w >> 10 & 1023);
                atomicAdd(&s.parts[2][b], w >> 20);
            }
        }
    });
    __syncthreads();
    u32 own = t < BINS ? s.counts[t] : 0;
    u64 weight = t < BINS ? (u64)s.parts[0][t] + ((u64)s.parts[1][t] << 10) + ((u64)s.parts[2][t] << 20) : 0;
    if (t < BINS) s.sums[t] = weight;
    __syncthreads();
    scan(s);
    // The whole weight is the last bin's start and its own.
    if (t == BINS - 1) s.all = s.sums[t] + weight;
    __syncthreads();
    total = s.all;
    return own;
}

// Takes the last bin that is not empty and whose start is inside the bound: starts ascend, so the bins inside
// are the first ones. Gives the tokens in it; 0 where there is none.
DEVICE u32 enter_bin(Shared &s, Search &at, u32 own) {
    u32 t = threadIdx.x;
    bool inside = t < BINS && own > 0 && at.bound.holds(at.tokens + s.counts[t], at.weight + s.sums[t]);
    u64 best = largest(inside ? t + 1 : 0, s.room);
    if (best == 0) return 0;
    u32 here = (u32)best - 1;
    if (t == here) s.chosen = own;
    if (t == 0) s.listed = 0;
    at.tokens += s.counts[here];
    at.weight += s.sums[here];
    if (at.level == 0) {
        at.bin = here;
    } else {
        at.prefix |= (u64)here << at.shift();
    }
    __syncthreads();
    return s.chosen;
}

// Lists the tokens under the search's bin and prefix, at most LISTED; each ranks itself among them. Gives the
// key of the last that is inside the bound.
DEVICE u64 rank_few(Shared &s, const Logits &logits, u32 vocab, Search at) {
    u32 t = threadIdx.x;
    at.level++;
    each<4>(logits, t, vocab, blockDim.x, [&](u32 i, float l) {
        u32 place = logits.place(l);
        u32 w = logits.weight(place);
        u64 key = ranking(place, i);
        if (w > 0 && at.takes(logits, place, key)) {
            u32 n = atomicAdd(&s.listed, 1u);
            // More than were counted where another row samples into the same seen bits meanwhile.
            if (n < LISTED) {
                s.keys[n] = key;
                s.weights[n] = w;
            }
        }
    });
    __syncthreads();
    u64 found = 0;
    u32 n = least(s.listed, LISTED);
    for (u32 i = t; i < n; i += blockDim.x) {
        u64 key = s.keys[i], tokens = at.tokens, weight = at.weight;
        for (u32 j = 0; j < n; j++) {
            if (s.keys[j] < key) {
                tokens++;
                weight += s.weights[j];
            }
        }
        if (at.bound.holds(tokens, weight)) found = most(found, key + 1);
    }
    found = largest(found, s.room);
    return found == 0 ? at.last : found - 1;
}

// The key of the last token that is kept: the k-th, or the last one before which less than the share `top_p`
// of the weight lies. Only tokens of weight above 0 whose key is at most `last` take part; without any,
// `last`.
DEVICE u64 last_kept(Shared &s, const Logits &logits, u32 vocab, u64 last, u32 count, u32 top_p) {
    Search at{};
    at.last = last;
    at.bound.count = count;
    for (;; at.level++) {
        u64 total;
        u32 own = fill_bins(s, logits, vocab, at, total);
        if (at.level == 0) {
            at.bound.low = total * top_p;
            at.bound.high = __umul64hi(total, top_p);
        }
        u32 tokens = enter_bin(s, at, own);
        if (tokens == 0) return last;
        if (tokens <= LISTED) return rank_few(s, logits, vocab, at);
        __syncthreads();
    }
}

// Words 0 and 1 of Philox4x32-10 at (subsequence, position, index, 0).
DEVICE u64 random_bits(const u32 *seed, u32 subsequence, u32 position, u32 index) {
    u32 c0 = subsequence, c1 = position, c2 = index, c3 = 0, k0 = seed[0], k1 = seed[1];
#pragma unroll
    for (u32 round = 0; round < 10; round++) {
        u64 p0 = (u64)0xd2511f53u * c0, p1 = (u64)0xcd9e8d57u * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c3 = (u32)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (u64)c1 << 32 | c0;
}

// Samples among the tokens up to `last` that weigh at least `floor`; `best` where nothing weighs enough.
DEVICE u32 picked(Shared &s, const Logits &logits, u32 vocab, u64 last, u32 floor, u64 bits, u32 best) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Stretches of whole 32s, ascending over the warps.
    u32 warps = blockDim.x / 32;
    u32 stretch = over(over(vocab, warps), 32) * 32;
    u32 from = least(warp * stretch, vocab), to = least(from + stretch, vocab);
    auto kept = [&](u32 i, float l) {
        u32 place = logits.place(l);
        u32 w = logits.weight(place);
        return w >= floor && ranking(place, i) <= last ? w : 0u;
    };
    u64 own = 0;
    each<4>(logits, from + lane, to, 32, [&](u32 i, float l) { own += kept(i, l); });
#pragma unroll
    for (u32 span = 16; span > 0; span /= 2) own += __shfl_xor_sync(0xffffffffu, own, span);
    if (lane == 0) s.room[warp] = own;
    if (threadIdx.x == 0) s.token = best;
    __syncthreads();
    u64 before = 0, total = 0;
    for (u32 w = 0; w < warps; w++) {
        if (w == warp) before = total;
        total += s.room[w];
    }
    u64 target = __umul64hi(bits, total);
    if (target >= before && target < before + own) {
        Batch<4> batch(logits, from + lane, to, 32);
        for (u32 at = from; at < to; at += 32) {
            u32 i = at + lane;
            if (at > from && (at - from) % (32 * 4) == 0) batch = Batch<4>(logits, i, to, 32);
            float l = batch.next(logits);
            u64 w = i < to ? kept(i, l) : 0;
            u64 sum = w;
#pragma unroll
            for (u32 span = 1; span < 32; span *= 2) {
                u64 other = __shfl_up_sync(0xffffffffu, sum, span);
                if (lane >= span) sum += other;
            }
            u32 hits = __ballot_sync(0xffffffffu, before + sum > target);
            if (hits) {
                if (lane == __ffs(hits) - 1) s.token = i;
                break;
            }
            before += __shfl_sync(0xffffffffu, sum, 31);
        }
    }
    __syncthreads();
    return s.token;
}

extern "C" __global__ void __launch_bounds__(1024) sample_tokens(const __grid_constant__ Sample p) {
    __shared__ Shared s;
    begin();
    u32 r = blockIdx.x, vocab = p.logits.cols;
    u32 *out = reinterpret_cast<u32 *>(p.out);
    u32 slot = reinterpret_cast<const u32 *>(p.slots)[r];
    if (slot >= p.table_rows) {
        if (threadIdx.x == 0) out[r] = 0xffffffffu;
        return;
    }
    const Row &row = reinterpret_cast<const Row *>(p.table)[slot];
    bool has_seen = row.seen_slot >= 0 && (u32)row.seen_slot < p.seen_rows;
    u32 *seen = has_seen ? reinterpret_cast<u32 *>(p.seen) + (u64)row.seen_slot * p.seen_words : nullptr;
    Logits logits;
    logits.values = row_of<float>(p.logits, r);
    logits.seen = row.penalty == 1.0f && row.inv_penalty == 1.0f ? nullptr : seen;
    logits.words = p.seen_words;
    logits.inv_temperature = row.inv_temperature;
    logits.penalty = row.penalty;
    logits.inv_penalty = row.inv_penalty;
    bool greedy = row.inv_temperature == 0.0f;
    // Nothing above -infinity: no token.
    u64 top = pair(LOWEST, 0xffffffffu);
    each<8>(logits, threadIdx.x, vocab, blockDim.x, [&](u32 i, float l) {
        u32 place = greedy ? ascending(l) : logits.place(l);
        if (place > LOWEST) top = most(top, pair(place, i));
    });
    top = largest(top, s.room);
    u32 best = ~(u32)top, token = best;
    u32 highest = (u32)(top >> 32);
    if (!greedy && highest > LOWEST) {
        logits.zmax = from_ascending(highest);
        u64 last = ~0ull;
        if (row.top_k > 0) last = last_kept(s, logits, vocab, last, row.top_k, 0);
        if (row.top_p < TOP_P_OFF) last = last_kept(s, logits, vocab, last, 0, row.top_p);
        u64 bits = random_bits(row.seed, row.subsequence, reinterpret_cast<const u32 *>(p.positions)[r], row.index);
        token = picked(s, logits, vocab, last, most(row.min_weight, 1u), bits, best);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        out[r] = token;
        if (seen && token / 32 < p.seen_words) atomicOr(seen + token / 32, 1u << token % 32);
    }
}
