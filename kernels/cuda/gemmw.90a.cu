// Linear layers of many rows with 16-bit weights on Hopper: bulk copies, mbarriers and wgmma. Mode `Fast`
// alone.
//
//   sum[r, n] = one chain of wgmma m64nNk16 from +0, 16 values of k each, ascending
//   y         = round(sum + bias), then one of: y; round(act(y)); round(out + y); round(act(y_gate) * y_up)
//
// The order is not that of gemm.cuh (one chain for all of K, no leaves), hence `Fast`; what follows the sum
// is.
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
// Weights come by plain bulk copies, 2 KiB a tile and stage: 8 x 8 matrices lie in the order of a descriptor
// without swizzle (leading 128 bytes from matrix to matrix along k, stride 2048 from tile to tile), every
// bank once. Each warpgroup takes one half of every tile: its row 16w + g is row g of tile 2w, 16w + 8 + g
// that of tile 2w + 1. x comes through a tensor map in a 128-byte swizzle. It says where x is and is made on
// the host for every launch, which is arithmetic without the driver's state; it travels in the parameters, so
// a captured launch keeps its own. Rows and values beyond x arrive as zeros, tiles beyond n are the last one
// again.
//
// | entry | block | tile of outputs x rows | ring | registers at most |
// | --- | --- | --- | --- | --- |
// | n128 | 9 warps | 128 x 128 | 5 stages of 64 values, 160 KiB | 160 |
// | n256 | 9 warps | 128 x 256 | 4 stages of 64 values, 192 KiB | 224 |
//
// A stage of n256 is 1024 clocks of an SM's tensor cores (2048 multiply-adds a clock) for 48 KiB; the matmuls
// read 80 of the 128 bytes that shared memory gives in a clock. One block an SM: nothing overlaps its last
// matmuls and its epilogue.
#include "gemm.cuh"
#include "wgmma.cuh"

extern __shared__ __align__(1024) u8 memory[];

// As `params::gemm::Boxed`.
struct alignas(64) Boxed {
    // A tensor map of x: boxes of N rows by 64 values, 128-byte swizzle, zeros outside.
    u64 map[16];
    Gemm gemm;
};

// ---- The kernel -------------------------------------------------------------------------------------------

template <typename T, u32 N, u32 STAGES>
struct Block {
    static constexpr u32 TILES = 8, THREADS = 288, PRODUCER = 8;
    static constexpr u32 X = N * 128, W = TILES * 2048, STAGE = X + W, RING = STAGES * STAGE;
    static_assert(N * Board<TILES>::PITCH * 4 <= RING, "sums take the ring's place");
    // Row blocks that run side by side.
    static constexpr u32 GROUP = 8;

    const Boxed &boxed;
    const Gemm &p;
    // First tile and row of the block; the ring, the barriers of its stages (full, then empty).
    u32 tile, row, ring, full, empty;

    DEVICE Block(const Boxed &boxed, u32 at) : boxed(boxed), p(boxed.gemm) {
        // A swizzle goes by addresses.
        ring = (at + 1023) / 1024 * 1024, full = ring + RING, empty = full + STAGES * 8;
        u32 columns = over(over(p.n, 16), TILES), rows = over(p.x.rows, N);
        u32 group = blockIdx.x / (GROUP * columns), within = blockIdx.x % (GROUP * columns);
        u32 high = least(GROUP, rows - group * GROUP);
        row = (group * GROUP + within % high) * N, tile = within / high * TILES;
    }

    DEVICE void copy_weights(u32 unit, u32 slot) {
        u32 last = over(p.n, 16) - 1, to = ring + slot * STAGE + X;
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            u64 from = p.weight + ((u64)least(tile + i, last) * p.units + unit) * 2048;
            copy_bulk(to + i * 2048, from, 2048, full + slot * 8);
        }
    }
    DEVICE void copy_rows(u32 unit, u32 slot) { copy_box(ring + slot * STAGE, boxed.map, unit * 64, row, full + slot * 8); }

    // The copying thread. Weights are nobody's output: the first are in flight before the wait for earlier
    // launches.
    DEVICE void copy() {
        u32 ahead = least(STAGES, p.units);
#pragma unroll 1
        for (u32 unit = 0; unit < ahead; unit++) {
            barrier_arrive_expect(full + unit * 8, STAGE);
            copy_weights(unit, unit);
        }
        wait_for_dependencies();
#pragma unroll 1
        for (u32 unit = 0; unit < ahead; unit++) copy_rows(unit, unit);
        u32 slot = 0, phase = 0;
#pragma unroll 1
        for (u32 unit = ahead; unit < p.units; unit++) {
            barrier_wait(empty + slot * 8, phase);
            barrier_arrive_expect(full + slot * 8, STAGE);
            copy_weights(unit, slot);
            copy_rows(unit, slot);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            phase ^= slot == 0;
        }
    }

    // A warpgroup's matmuls with its halves of the tiles.
    DEVICE void sum(float (&d)[N / 2], u32 half) {
        u32 slot = 0, phase = 0, done = 0;
#pragma unroll 1
        for (u32 unit = 0; unit < p.units; unit++) {
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
        }
        wgmma_wait<0>();
        settled(d);
    }

    DEVICE void run(float *board) {
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp / 4;
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < STAGES; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, PRODUCER);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
        float d[N / 2];
        if (warp == PRODUCER) {
            if (lane == 0) copy();
            __syncwarp();
            begin();
        } else {
            begin();
#pragma unroll
            for (u32 i = 0; i < N / 2; i++) d[i] = 0.0f;
            sum(d, half);
        }
        // All matmuls have read what they needed.
        __syncthreads();
        if (warp < PRODUCER) {
            float *to = board + lane % 4 * 2 * Board<TILES>::PITCH + warp % 4 * 32 + half * 8 + lane / 4;
#pragma unroll
            for (u32 i = 0; i < N / 2; i++) to[(i / 4 * 8 + i % 2) * Board<TILES>::PITCH + i % 4 / 2 * 16] = d[i];
        }
        __syncthreads();
        finish_all<T, 8, TILES, N>(p, tile, row, board, 1, THREADS);
    }
};

// An entry; a launch's shared memory is RING, the barriers, and 1 KiB to begin at a multiple of one.
#define WIDE(NAME, T, N, STAGES)                                                                                       \
    extern "C" __global__ void __launch_bounds__(288, 1) gemmw_##NAME(const __grid_constant__ Boxed p) {                \
        Block<T, N, STAGES> block(p, shared_address(memory));                                                          \
        block.run(reinterpret_cast<float *>(memory + (block.ring - shared_address(memory))));                          \
    }
WIDE(n128_bf16, bf16, 128, 5)
WIDE(n256_bf16, bf16, 256, 4)
WIDE(n128_f16, f16, 128, 5)
WIDE(n256_f16, f16, 256, 4)
