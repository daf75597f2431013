// Linear layers with 16-bit weights on Hopper: bulk copies, mbarriers and wgmma. Modes `Invariant` and
// `Fast`.
//
//   leaf[r, n] = one chain of wgmma m64nNk16 from +0, 16 values of k each, ascending
//
// and from there as in gemm.cuh: the same leaves, added in the same order. A chain of wgmma has the bits of
// a chain of mma.sync m16n8k16, whatever its N (measured on an H200: docs/numerics.md), so a row has the
// bits that the kernels of gemm.cu give it. n256 alone, in mode `Fast`, is one chain for all of K: it has
// no registers for a leaf next to the whole.
//
// x [rows, k], rows at multiples of 16 bytes; packed w [n, k] (gemm.cuh: the layout that all kernels share,
// so a weight lies in memory once); bias [n] f32; out [rows, n] (gate: [rows, n / 2]) in x's type or f32.
// Bytes: 2 n k for every N rows and 2 rows k for every 128 outputs, nearly all from L2: blocks run in groups
// of 8 row blocks, columns after rows, so that those on the device at one time share both operands. Then out.
//
// A block has 128 outputs (8 packed tiles) by N rows of x. Warp 8 copies: one thread, a ring of stages of 64
// values of k, each with an mbarrier that says full (the bytes of its copies) and one that says empty (an
// arrival of each of the 8 other warps). Warps 0-7 are two warpgroups that multiply, A and B from shared
// memory, and hand a stage back once the matmuls of the next have been issued and its own have ended.
//
// Where few outputs would leave most of a device idle, a cluster of SPLIT blocks shares a tile: each has 8 /
// SPLIT of the leaves. It hands every leaf's sums to the block that ends their rows, N / SPLIT of the tile's
// each, which adds them in the order of a block that has all.
//
// Both operands come through tensor maps, one copy each a stage. Those of weights lie as they are packed:
// 8 x 8 matrices in the order of a descriptor without swizzle (leading 128 bytes from matrix to matrix along
// k, stride 2048 from tile to tile), every bank once. Each warpgroup takes one half of every tile: its row
// 16w + g is row g of tile 2w, 16w + 8 + g that of tile 2w + 1. x lies in a 128-byte swizzle. A map says
// where an operand is and is made on the host for every launch, which is arithmetic without the driver's
// state; it travels in the parameters, so a captured launch keeps its own. What lies beyond an operand
// arrives as zeros.
//
// | entry | rows | ring: stages of 64 values | blocks of an SM | registers at most |
// | --- | --- | --- | --- | --- |
// | n16, n16_split4 | 16 | 6, 108 KiB | 2 | 112 |
// | n32, n32_split4, n32_split8 | 32 | 5, 100 KiB | 2 | 112 |
// | n64, n64_split4, n64_split8 | 64 | 4, 96 KiB | 2 | 112 |
// | n128 | 128 | 5, 160 KiB | 1 | 168 |
// | n256 | 256 | 4, 192 KiB | 1 | 168 |
//
// Measured on an H200 (bench/runs/2026-11-26-h200/matmuls.txt, there as exp_*; us; k = 4096; gu: 28,672
// outputs with a gate; down: k = 14,336, 4,096 outputs with a sum). The floor is the weight at 4.2 TB/s, or
// 800 Tflop/s:
//
// | matmul, rows | floor | gemm.cu | here |
// | --- | --- | --- | --- |
// | gu, 64 | 55.9 | 121.5 | n64 68.9 |
// | gu, 4096 | 1203 | 3688 | n128 1790, n256 1535 |
// | qkv (6,144 outputs), 4096 | 258 | 757 | n128 333, n256 278 |
// | down, 64 | 28.0 | 82.5 | n64_split4 51.5 |
// | down, 256 | 37.6 | 181.9 | n128 83.8 |
// | down, 4096 | 601 | 1767 | n128 819, n256 621 |
//
// What was tried: weights by 8 bulk copies of 2 KiB a stage (n128 2239 and 992 us at 4096 rows of gu and
// down); two or four blocks of a cluster that copy parts of what they share for each other (multicast): 1.9
// and 2.7 times as long as alone.
#include "gemm.cuh"
#include "wgmma.cuh"

extern __shared__ __align__(1024) u8 memory[];

// As `params::gemm::Boxed`.
struct alignas(64) Boxed {
    // Tensor maps, zeros outside. x: boxes of N rows by 64 values, 128-byte swizzle.
    u64 x[16];
    // The weight: [tile, unit, 16, 64], boxes of a unit of 8 tiles.
    u64 weight[16];
    Gemm gemm;
};

// ---- The kernel -------------------------------------------------------------------------------------------

template <typename T, u32 N, u32 STAGES, u32 SPLIT>
struct Block {
    static constexpr u32 TILES = 8, THREADS = 288, PRODUCER = 8;
    static constexpr u32 X = N * 128, W = TILES * 2048, STAGE = X + W, RING = STAGES * STAGE;
    // Leaves of a block; rows that it ends.
    static constexpr u32 OWN = 8 / SPLIT, SLICE = N / SPLIT, SUMS = N / 2;
    static constexpr u32 PITCH = Board<TILES>::PITCH;
    static_assert((SPLIT > 1 ? 8 : 1) * SLICE * PITCH * 4 <= RING, "sums take the ring's place");
    // One chain for all of K.
    static constexpr bool CHAIN = N == 256;
    // Row blocks that run side by side.
    static constexpr u32 GROUP = 8;

    const Boxed &boxed;
    const Gemm &p;
    // First tile and row of the block, its first leaf; the ring, the barriers of its stages (full, then
    // empty).
    u32 tile, row, leaf, ring, full, empty;

    DEVICE Block(const Boxed &boxed, u32 at) : boxed(boxed), p(boxed.gemm) {
        // A swizzle goes by addresses.
        ring = (at + 1023) / 1024 * 1024, full = ring + RING, empty = full + STAGES * 8;
        u32 columns = over(over(p.n, 16), TILES), rows = over(p.x.rows, N), block = blockIdx.x / SPLIT;
        u32 group = block / (GROUP * columns), within = block % (GROUP * columns);
        u32 high = least(GROUP, rows - group * GROUP);
        row = (group * GROUP + within % high) * N, tile = within / high * TILES;
        leaf = blockIdx.x % SPLIT * OWN;
    }

    DEVICE void copy_weights(u32 unit, u32 slot) {
        copy_tiles(ring + slot * STAGE + X, boxed.weight, unit, tile, full + slot * 8);
    }
    DEVICE void copy_rows(u32 unit, u32 slot) { copy_box(ring + slot * STAGE, boxed.x, unit * 64, row, full + slot * 8); }

    // The copying thread. Weights are nobody's output: the first are in flight before the wait for earlier
    // launches.
    DEVICE void copy() {
        u32 first = p.leaves[leaf], end = p.leaves[leaf + OWN], ahead = least(STAGES, end - first);
#pragma unroll 1
        for (u32 i = 0; i < ahead; i++) {
            barrier_arrive_expect(full + i * 8, STAGE);
            copy_weights(first + i, i);
        }
        wait_for_dependencies();
#pragma unroll 1
        for (u32 i = 0; i < ahead; i++) copy_rows(first + i, i);
        u32 slot = 0, phase = 0;
#pragma unroll 1
        for (u32 unit = first + ahead; unit < end; unit++) {
            barrier_wait(empty + slot * 8, phase);
            barrier_arrive_expect(full + slot * 8, STAGE);
            copy_weights(unit, slot);
            copy_rows(unit, slot);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            phase ^= slot == 0;
        }
    }

    // Where a warpgroup stands in the ring.
    u32 slot = 0, phase = 0;

    // A warpgroup's chain of so many units, with its halves of the tiles.
    DEVICE void sum(float (&d)[SUMS], float zero, u32 units) {
        u32 half = threadIdx.x / 128, done = 0;
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) d[i] = zero;
        // No path around the matmuls leads to their wait: they would be made to wait for each other.
        if (units == 0) return;
        u32 unit = 0;
#pragma unroll 1
        do {
            barrier_wait(full + slot * 8, phase);
            u64 b = operand<16, 1024, 1>(ring + slot * STAGE);
            u64 a = operand<128, 2048, 0>(ring + slot * STAGE + X + half * 512);
            wgmma_fence();
#pragma unroll
            for (u32 s = 0; s < 4; s++) multiply<T, N>(d, a + (s / 2 * 1024 + s % 2 * 256) / 16, b + s * 2);
            wgmma_commit();
            // Those of the unit before have ended.
            wgmma_wait<1>();
            if (unit > 0 && threadIdx.x % 32 == 0) barrier_arrive(empty + done * 8);
            done = slot;
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            phase ^= slot == 0;
        } while (++unit < units);
        wgmma_wait<0>();
        settled(d);
        if (threadIdx.x % 32 == 0) barrier_arrive(empty + done * 8);
    }

    DEVICE void sum_leaf(float (&d)[SUMS], u32 number) { sum(d, p.zero(number), p.leaves[number + 1] - p.leaves[number]); }

    // The tree, leaf by leaf: an even leaf waits in `total`, and so does the whole sum at the end. Sums of
    // two and of four leaves wait in memory of the thread, which is touched six times a tile.
    DEVICE static void node(const float (&d)[SUMS], float (&total)[SUMS], volatile float (&saved)[2 * SUMS], u32 leaf) {
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) total[i] = leaf % 2 == 0 ? d[i] : add(total[i], d[i]);
        if (leaf % 2 == 0) return;
        if (leaf % 4 == 1) {
#pragma unroll
            for (u32 i = 0; i < SUMS; i++) saved[i] = total[i];
            return;
        }
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) total[i] = add(saved[i], total[i]);
        if (leaf == 3) {
#pragma unroll
            for (u32 i = 0; i < SUMS; i++) saved[SUMS + i] = total[i];
        } else {
#pragma unroll
            for (u32 i = 0; i < SUMS; i++) total[i] = add(saved[SUMS + i], total[i]);
        }
    }

    // Where sum i of this thread stands on a board: its row of the tile, its output.
    DEVICE static u32 row_of_sum(u32 i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }
    DEVICE static u32 output_of_sum(u32 i) {
        return threadIdx.x / 32 % 4 * 32 + threadIdx.x / 128 * 8 + threadIdx.x % 32 / 4 + i % 4 / 2 * 16;
    }

    // All leaves, one after the other.
    DEVICE void sum_leaves(float (&total)[SUMS]) {
        float d[SUMS];
        volatile float saved[2 * SUMS];
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) total[i] = 0.0f;
#pragma unroll 1
        for (u32 i = 0; i < 8; i++) {
            sum_leaf(d, i);
            if (p.tree) {
                node(d, total, saved, i);
            } else {
#pragma unroll
                for (u32 e = 0; e < SUMS; e++) total[e] = add(total[e], d[e]);
            }
        }
    }

    DEVICE void sum_all(float *board) {
        float total[SUMS];
        bool multiplies = threadIdx.x < PRODUCER * 32;
        if (multiplies) {
            if constexpr (CHAIN) {
                sum(total, 0.0f, p.units);
            } else {
                sum_leaves(total);
            }
        }
        // All matmuls have read what they needed.
        __syncthreads();
        if (multiplies) {
#pragma unroll
            for (u32 i = 0; i < SUMS; i++) board[row_of_sum(i) * PITCH + output_of_sum(i)] = total[i];
        }
        __syncthreads();
        finish_all<T, 8, TILES, N>(p, tile, row, board, 1, THREADS);
    }

    // This block's leaves, then all leaves of its rows.
    DEVICE void sum_own(float *board) {
        float d[OWN][SUMS];
        if (threadIdx.x < PRODUCER * 32) {
#pragma unroll
            for (u32 i = 0; i < OWN; i++) sum_leaf(d[i], leaf + i);
        }
        // No block of the cluster reads its ring any more.
        cluster_arrive();
        cluster_wait();
        if (threadIdx.x < PRODUCER * 32) {
#pragma unroll
            for (u32 i = 0; i < SUMS; i++) {
                u32 r = row_of_sum(i), at = ring + (r % SLICE * PITCH + output_of_sum(i)) * 4;
                u32 to = address_in(at + leaf * (SLICE * PITCH * 4), r / SLICE);
#pragma unroll
                for (u32 j = 0; j < OWN; j++) store_in(to + j * (SLICE * PITCH * 4), d[j][i]);
            }
        }
        cluster_arrive();
        cluster_wait();
        finish_all<T, 8, TILES, SLICE>(p, tile, row + leaf / OWN * SLICE, board, 8, THREADS);
    }

    DEVICE void run(float *board) {
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < STAGES; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, PRODUCER);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
        if (threadIdx.x == PRODUCER * 32) copy();
        __syncwarp();
        begin();
        if constexpr (SPLIT == 1) {
            sum_all(board);
        } else {
            sum_own(board);
        }
    }
};

// An entry; a launch's shared memory is RING, the barriers, and 1 KiB to begin at a multiple of one.
#define ENTRY(NAME, T, N, STAGES, SPLIT, BLOCKS, CLUSTER)                                                              \
    extern "C" __global__ void CLUSTER __launch_bounds__(288, BLOCKS) gemmw_##NAME(const __grid_constant__ Boxed p) {  \
        Block<T, N, STAGES, SPLIT> block(p, shared_address(memory));                                                   \
        block.run(reinterpret_cast<float *>(memory + (block.ring - shared_address(memory))));                          \
    }
#define ALONE(NAME, T, N, STAGES, BLOCKS) ENTRY(n##N##_##NAME, T, N, STAGES, 1, BLOCKS, )
#define SPLIT(NAME, T, N, STAGES, COUNT)                                                                               \
    ENTRY(n##N##_split##COUNT##_##NAME, T, N, STAGES, COUNT, 2, __cluster_dims__(COUNT, 1, 1))
#define EACH(NAME, T)                                                                                                  \
    ALONE(NAME, T, 16, 6, 2)                                                                                           \
    ALONE(NAME, T, 32, 5, 2)                                                                                           \
    ALONE(NAME, T, 64, 4, 2)                                                                                           \
    ALONE(NAME, T, 128, 5, 1)                                                                                          \
    ALONE(NAME, T, 256, 4, 1)                                                                                          \
    SPLIT(NAME, T, 16, 6, 4)                                                                                           \
    SPLIT(NAME, T, 32, 5, 4)                                                                                           \
    SPLIT(NAME, T, 32, 5, 8)                                                                                           \
    SPLIT(NAME, T, 64, 4, 4)                                                                                           \
    SPLIT(NAME, T, 64, 4, 8)
EACH(bf16, bf16)
EACH(f16, f16)
