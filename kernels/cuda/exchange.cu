// Exchanges of ranks, each on a device of its own, by memory that all of them reach.
//
//   reduce  x = sum over ranks of x, by the tree of ranks   one round of flags; reads n - 1 parts of others
//   shared  the same, where every rank sums 1/n of x        two rounds; reads 2 (n - 1) / n parts of others
//   gather  x[:, columns of r] = rank r's, for all others   one round
//
// A rank copies what it gives into its own buffer, raises its flag at every other rank, waits until theirs
// are raised at its own, and reads. Block b of every rank deals with the same elements and has flags of its
// own (flags[b][rank]), so there is no barrier over the grid; all ranks launch as many blocks, few enough
// that all are resident, as a block waits for its peers.
//
// Flags hold the number of the exchange, twice (a round in the middle is odd). It counts in device memory:
// replays of a captured step go on with it. It may wrap: numbers are compared by their difference.
//
// Two halves of the buffer alternate. A rank that is in exchange e + 2 has passed the wait of e + 1, so all
// have begun that, and so ended exchange e, which lay in the same half, with all its blocks.
//
// A rank that is missing never raises its flag. Who waits looks at a word that the host sets then, and
// leaves; what stands in x is no result.
// Launch: at most BLOCKS blocks of 256 threads.
#include "device.cuh"

constexpr u32 RANKS = 8;
constexpr u32 BLOCKS = 32;

struct Peers {
    // By rank: its buffer of two halves, and its flags [BLOCKS][RANKS].
    u64 parts[RANKS];
    u64 flags[RANKS];
    // This rank's exchanges so far, a count per block.
    u64 counts;
    // Not zero: a rank is missing.
    u64 stop;
    // Values of a half, a multiple of 4.
    u32 half;
    u32 rank;
    u32 world;
    u32 reserved;
};

DEVICE void raise(u64 flag, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

DEVICE u32 look(u64 flag) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

DEVICE bool stopped(u64 stop) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(stop) : "memory");
    return value != 0;
}

DEVICE u64 flag_at(u64 flags, u32 rank) { return flags + 4 * (u64)(blockIdx.x * RANKS + rank); }

// All threads of the block: what they have written reaches the peers' blocks, and theirs this one. Whether it
// has: else a rank is missing, and what it should have written may never have been.
DEVICE bool exchange_flags(const Peers &p, u32 value) {
    __syncthreads();
    u32 peer = threadIdx.x;
    bool missing = false;
    if (peer < p.world && peer != p.rank) {
        raise(flag_at(p.flags[peer], p.rank), value);
        u64 own = flag_at(p.flags[p.rank], peer);
        while (!missing && (int)(look(own) - value) < 0) missing = stopped(p.stop);
    }
    return !__syncthreads_or(missing);
}

// The number of this exchange, doubled: what flags hold at its end.
DEVICE u32 number(const Peers &p) {
    return 2 * (reinterpret_cast<const u32 *>(p.counts)[blockIdx.x] + 1);
}

DEVICE float *part(const Peers &p, u32 rank, u32 number) {
    return reinterpret_cast<float *>(p.parts[rank]) + (u64)(number / 2 & 1) * p.half;
}

// After the last use of the number; the first block counts for those that this launch does not have.
DEVICE void finish(const Peers &p, u32 number) {
    u32 *counts = reinterpret_cast<u32 *>(p.counts);
    if (threadIdx.x == 0) counts[blockIdx.x] = number / 2;
    if (blockIdx.x > 0) return;
    for (u32 b = gridDim.x + threadIdx.x; b < BLOCKS; b += blockDim.x) counts[b] = number / 2;
}

// As engraft_core::numerics::tree_of_ranks.
template <u32 N>
DEVICE float tree_of(const float (&node)[N]) {
    if constexpr (N == 2) return add(node[0], node[1]);
    if constexpr (N == 4) return add(add(node[0], node[1]), add(node[2], node[3]));
    if constexpr (N == 8) return tree(node[0], node[1], node[2], node[3], node[4], node[5], node[6], node[7]);
}

struct Reduce {
    u64 x;
    u32 count;
    // This rank adds zeros, whatever stands in x.
    u32 adds_nothing;
    Peers peers;
};

// Calls f(first element, how many of 4 there are) for the units [from, to) of 4 elements.
template <typename F>
DEVICE void units(u32 from, u32 to, u32 count, F f) {
    for (u32 i = from + threadIdx.x; i < to; i += blockDim.x) f(4 * i, least(4u, count - 4 * i));
}

DEVICE float4 read_unit(const float *x, u32 at, u32 n, bool wide) {
    if (wide && n == 4) return *reinterpret_cast<const float4 *>(x + at);
    float4 v = {x[at], 0.0f, 0.0f, 0.0f};
    if (n > 1) v.y = x[at + 1];
    if (n > 2) v.z = x[at + 2];
    if (n > 3) v.w = x[at + 3];
    return v;
}

DEVICE void write_unit(float *x, u32 at, u32 n, bool wide, float4 v) {
    if (wide && n == 4) {
        *reinterpret_cast<float4 *>(x + at) = v;
        return;
    }
    x[at] = v.x;
    if (n > 1) x[at + 1] = v.y;
    if (n > 2) x[at + 2] = v.z;
    if (n > 3) x[at + 3] = v.w;
}

// The sum of four elements over ranks.
template <u32 N>
DEVICE float4 sum_at(const Peers &p, u32 e, u32 at) {
    float x[N], y[N], z[N], w[N];
#pragma unroll
    for (u32 rank = 0; rank < N; rank++) {
        float4 v = *reinterpret_cast<const float4 *>(part(p, rank, e) + at);
        x[rank] = v.x, y[rank] = v.y, z[rank] = v.z, w[rank] = v.w;
    }
    return {tree_of(x), tree_of(y), tree_of(z), tree_of(w)};
}

// SHARED: every rank sums its own 1/n of a block's elements, where its part stood, and all read the sums.
template <u32 N, bool SHARED>
DEVICE void reduce(const Reduce &p) {
    wait_for_dependencies();
    const Peers &peers = p.peers;
    float *x = reinterpret_cast<float *>(p.x);
    bool wide = (p.x & 15) == 0;
    u32 e = number(peers), all = over(p.count, 4u), each = over(all, gridDim.x);
    u32 from = least(all, blockIdx.x * each), to = least(all, from + each);
    float *own = part(peers, peers.rank, e);
    units(from, to, p.count, [&](u32 at, u32 n) {
        float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
        if (!p.adds_nothing) v = read_unit(x, at, n, wide);
        *reinterpret_cast<float4 *>(own + at) = v;
    });
    if constexpr (!SHARED) {
        if (!exchange_flags(peers, e)) return;
        launch_dependents();
        units(from, to, p.count, [&](u32 at, u32 n) { write_unit(x, at, n, wide, sum_at<N>(peers, e, at)); });
    } else {
        if (!exchange_flags(peers, e - 1)) return;
        u32 share = over(to - from, N);
        u32 mine = least(to, from + peers.rank * share);
        units(mine, least(to, mine + share), p.count, [&](u32 at, u32) {
            *reinterpret_cast<float4 *>(own + at) = sum_at<N>(peers, e, at);
        });
        if (!exchange_flags(peers, e)) return;
        launch_dependents();
        units(from, to, p.count, [&](u32 at, u32 n) {
            float4 v = *reinterpret_cast<const float4 *>(part(peers, (at / 4 - from) / share, e) + at);
            write_unit(x, at, n, wide, v);
        });
    }
    finish(peers, e);
}

#define REDUCE(NAME, N, SHARED)                                                                             \
    extern "C" __global__ void __launch_bounds__(256) exchange_##NAME##_w##N(const __grid_constant__ Reduce p) { \
        reduce<N, SHARED>(p);                                                                              \
    }
REDUCE(reduce, 2, false)
REDUCE(reduce, 4, false)
REDUCE(reduce, 8, false)
// Of two ranks each would read as much.
REDUCE(shared, 4, true)
REDUCE(shared, 8, true)

struct Gather {
    u64 x;
    u32 rows;
    u32 cols;
    // By rank: its columns.
    u32 first[RANKS];
    u32 width[RANKS];
    Peers peers;
};

// Calls f(row, column) for this block's elements of [rows, width]: the same ones for the same width on every
// rank.
template <typename F>
DEVICE void cells(u32 rows, u32 width, F f) {
    u32 all = rows * width, each = over(all, gridDim.x);
    u32 from = least(all, blockIdx.x * each), to = least(all, from + each);
    for (u32 i = from + threadIdx.x; i < to; i += blockDim.x) f(i / width, i % width, i);
}

extern "C" __global__ void __launch_bounds__(256) exchange_gather(const __grid_constant__ Gather p) {
    wait_for_dependencies();
    float *x = reinterpret_cast<float *>(p.x);
    u32 e = number(p.peers), rank = p.peers.rank;
    float *own = part(p.peers, rank, e);
    cells(p.rows, p.width[rank], [&](u32 r, u32 c, u32 i) { own[i] = x[(u64)r * p.cols + p.first[rank] + c]; });
    if (!exchange_flags(p.peers, e)) return;
    launch_dependents();
    for (u32 other = 0; other < p.peers.world; other++) {
        if (other == rank) continue;
        const float *theirs = part(p.peers, other, e);
        cells(p.rows, p.width[other], [&](u32 r, u32 c, u32 i) { x[(u64)r * p.cols + p.first[other] + c] = theirs[i]; });
    }
    finish(p.peers, e);
}
