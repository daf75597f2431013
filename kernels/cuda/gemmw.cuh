// Matmuls on Hopper: the kernel behind the entries of gemmw.90a.cu (16-bit weights) and gemmwq.90a.cu
// (quantized ones).
//
//   leaf[r, n] = one chain of wgmma m64nNk16 from +0, 16 values of k each, ascending; quantized: chains of
//                groups, which join it as gemm.cuh says
//
// and from there as in gemm.cuh: the same leaves, added in the same order. A chain of wgmma has the bits of
// a chain of mma.sync m16n8k16, whatever its N (measured on an H200: docs/numerics.md), so a row has the
// bits that the kernels of gemm.cu and gemmq.cu give it.
//
// A block has 128 outputs (8 packed tiles) by N rows of x. Warps 0-7 are two warpgroups that multiply. One
// thread copies, of a warp 8 or (quantized) of warp 0: a ring of stages of 64 values of k, each with an
// mbarrier that says full (the bytes of its copies) and one that says empty (an arrival of each multiplying
// warp). Blocks run in groups of
// 8 row blocks, columns after rows, so that those on the device at one time share both operands.
//
// Where few outputs would leave most of a device idle, a cluster of SPLIT blocks shares a tile: each has 8 /
// SPLIT of the leaves. It hands every leaf's sums to the block that ends their rows, N / SPLIT of the tile's
// each, which adds them in the order of a block that has all.
//
// Operands come by tensor maps, one copy each a stage. A map says where an operand is and is made on the
// host for every launch, which is arithmetic without the driver's state; it travels in the parameters, so a
// captured launch keeps its own. What lies beyond an operand arrives as zeros. x lies in a 128-byte swizzle.
//
// Plain weights are multiplied from shared memory: 8 x 8 matrices in the order of a descriptor without
// swizzle (leading 128 bytes from matrix to matrix along k, stride 2048 from tile to tile), every bank once.
// Each warpgroup takes one half of every tile: its row 16w + g is row g of tile 2w, 16w + 8 + g that of tile
// 2w + 1. A stage is handed back once the matmuls of the next have been issued and its own have ended.
//
// Quantized weights are decoded in registers, which wgmma takes as its A: a warp has one tile of its own,
// whose codes lie as its lanes want them. Sums of x alone, which offsets multiply, are chains of mma.sync,
// each warp's for some of the rows, and go round by shared memory.
#pragma once
#include "gemm.cuh"
#include "wgmma.cuh"

// As `params::gemm::Boxed`.
struct alignas(64) Boxed {
    // Tensor maps, zeros outside. x: boxes of N rows by 64 values, 128-byte swizzle.
    u64 x[16];
    // The weight: [tile, unit, bytes / 128, 64], boxes of a unit of 8 tiles.
    u64 weight[16];
    // Scales: [tile, group, 1, values], boxes of the groups of a unit, or of one, of 8 tiles.
    u64 scales[16];
    Gemm gemm;
};

// Bytes of a stage: x, weights, scales. It begins at a multiple of 1024, as a swizzle wants.
template <typename F, u32 N>
constexpr u32 STAGE_BYTES = (N * 128 + 8 * 2 * (F::HALF + F::SCALES) + 1023) / 1024 * 1024;

template <typename T, typename F, u32 N, u32 STAGES, u32 SPLIT>
struct Block {
    static constexpr bool SCALED = F::SCALES > 0;
    // Where weights take registers the first of the multiplying threads copies: a ninth warp would cost the
    // others a sixth of theirs.
    static constexpr u32 TILES = 8, MULTIPLY = 8, PRODUCER = SCALED ? 0 : MULTIPLY, THREADS = (SCALED ? 8 : 9) * 32;
    static constexpr u32 X = N * 128, UNIT = 2 * F::HALF, W = TILES * UNIT, STAGE = STAGE_BYTES<F, N>, RING = STAGES * STAGE;
    // Leaves of a block; rows that it ends.
    static constexpr u32 OWN = 8 / SPLIT, SLICE = N / SPLIT, SUMS = N / 2;
    // Eights of rows whose sums without weights a warp takes.
    static constexpr u32 EIGHTS = (N / 8 + 7) / 8;
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

    // What a stage's copies bring: the scales of one group, or of both groups of 32.
    DEVICE u32 bytes_of_stage() const { return X + W + TILES * (p.group_units == 0 ? 2 : 1) * F::SCALES; }
    DEVICE void copy_weights(u32 unit, u32 slot) {
        u32 to = ring + slot * STAGE + X, bar = full + slot * 8;
        copy_tiles(to, boxed.weight, unit, tile, bar);
        if constexpr (SCALED) copy_tiles(to + W, boxed.scales, p.group_units == 0 ? 2 * unit : unit / p.group_units, tile, bar);
    }
    DEVICE void copy_rows(u32 unit, u32 slot) { copy_box(ring + slot * STAGE, boxed.x, unit * 64, row, full + slot * 8); }

    DEVICE u32 first_unit() const { return p.leaves[leaf]; }
    DEVICE u32 end_unit() const { return p.leaves[leaf + OWN]; }
    DEVICE void copy_unit(u32 unit, u32 slot) {
        barrier_arrive_expect(full + slot * 8, bytes_of_stage());
        copy_weights(unit, slot);
        copy_rows(unit, slot);
    }

    // The first stages. Weights are no launch's output: they are in flight before the wait for earlier
    // launches.
    DEVICE void begin_copies(u32 ahead) {
#pragma unroll 1
        for (u32 i = 0; i < ahead; i++) {
            barrier_arrive_expect(full + i * 8, bytes_of_stage());
            copy_weights(first_unit() + i, i);
        }
        wait_for_dependencies();
#pragma unroll 1
        for (u32 i = 0; i < ahead; i++) copy_rows(first_unit() + i, i);
    }

    // The copying thread.
    DEVICE void copy() {
        u32 ahead = least(STAGES, end_unit() - first_unit());
        begin_copies(ahead);
        // Others of its warp multiply with it: it goes on in `refill`.
        if constexpr (SCALED) return;
        u32 slot = 0, phase = 0;
#pragma unroll 1
        for (u32 unit = first_unit() + ahead; unit < end_unit(); unit++) {
            barrier_wait(empty + slot * 8, phase);
            copy_unit(unit, slot);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            phase ^= slot == 0;
        }
    }
    // Of the thread that copies and multiplies: the stage of the unit before the last, which every warp has
    // most likely handed back.
    DEVICE void refill(u32 unit) {
        if (threadIdx.x == 0 && unit >= first_unit() + 2 && unit - 2 + STAGES < end_unit()) {
            u32 at = slot >= 2 ? slot - 2 : slot + STAGES - 2;
            barrier_wait(empty + at * 8, slot >= 2 ? phase : phase ^ 1);
            copy_unit(unit - 2 + STAGES, at);
        }
        __syncwarp();
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

    // ---- Quantized weights: A from registers

    // Sums of x alone, where scales have offsets: of two groups by turns, whoever reads one while the other
    // is written. Behind the barriers.
    DEVICE u32 ones_at(u32 turn) const { return empty + STAGES * 8 + turn * N * 4; }

    // 32 values of x alone: warp w has eights of rows w, w + 8.
    DEVICE static void sum_ones(float (&ones)[EIGHTS][4], u32 x, u32 half) {
        const u32 one[4] = {Half<T>::ONES, Half<T>::ONES, Half<T>::ONES, Half<T>::ONES};
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (u32 i = 0; i < EIGHTS; i++) {
            if (warp >= N / 8) continue;
            u32 b[4];
            load_matrices(b, x + ((warp + i * 8) * 8 + lane % 8) * 128 + ((half * 4 + lane / 8) ^ lane % 8) * 16);
            Half<T>::mma(ones[i], one, b[0], b[1]);
            Half<T>::mma(ones[i], one, b[2], b[3]);
        }
    }

    // A group's chain, and that of x alone, join the leaf, by the scales of this warp's tile.
    DEVICE void join(float (&leaf)[SUMS], float (&chain)[SUMS], float (&ones)[EIGHTS][4], const typename F::Scale &scale, u32 step) {
        u32 lane = threadIdx.x % 32;
        float by[2] = {scale_of<T, F>(scale, 0, step), scale_of<T, F>(scale, 1, step)};
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) {
            leaf[i] = madd(by[i % 4 / 2], chain[i], leaf[i]);
            chain[i] = 0.0f;
        }
        if constexpr (F::OFFSET) {
            u32 warp = threadIdx.x / 32;
#pragma unroll
            for (u32 i = 0; i < EIGHTS; i++) {
                // All rows of A are ones: so are those of the sums alike.
                if (warp < N / 8 && lane < 4) store_two(ones_at(turn) + ((warp + i * 8) * 8 + lane * 2) * 4, ones[i][0], ones[i][1]);
                ones[i][0] = ones[i][1] = ones[i][2] = ones[i][3] = 0.0f;
            }
            asm volatile("bar.sync 1, 256;" ::: "memory");
            float offset[2] = {madd(F::SHIFT, by[0], scale.offset(0)), madd(F::SHIFT, by[1], scale.offset(1))};
#pragma unroll
            for (u32 j = 0; j < N / 8; j++) {
                float two[2];
                load_two(two, ones_at(turn) + (j * 8 + lane % 4 * 2) * 4);
#pragma unroll
                for (u32 e = 0; e < 4; e++) leaf[j * 4 + e] = madd(offset[e / 2], two[e % 2], leaf[j * 4 + e]);
            }
            turn ^= 1;
        }
    }
    // Which of the two sums of x is next.
    u32 turn = 0;

    // A leaf of units first..end: warp w of warpgroup g has tile 4 g + w.
    DEVICE void sum_scaled(float (&leaf)[SUMS], float zero, u32 first, u32 end) {
        float chain[SUMS], ones[EIGHTS][4];
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) leaf[i] = zero, chain[i] = 0.0f;
#pragma unroll
        for (u32 i = 0; i < EIGHTS * 4; i++) ones[i / 4][i % 4] = 0.0f;
        if (first == end) return;
        u32 lane = threadIdx.x % 32, own = threadIdx.x / 32, unit = first;
        bool small = p.group_units == 0;
        u32 pitch = small ? 2 * F::SCALES : F::SCALES;
        u32 next = small ? 0 : (first / p.group_units + 1) * p.group_units;
#pragma unroll 1
        do {
            refill(unit);
            barrier_wait(full + slot * 8, phase);
            u32 x = ring + slot * STAGE, w = x + X + own * UNIT, s = x + X + W + own * pitch;
#pragma unroll 1
            for (u32 h = 0; h < 2; h++) {
                u32 a[2][4];
                F::template fragment<T>(a, w + h * F::HALF, s + h * F::SCALES, lane);
                typename F::Scale scale;
                if constexpr (F::STEPS > 1) scale.load(s + h * F::SCALES + lane / 4 * F::Scale::BYTES);
                wgmma_fence();
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    multiply_registers<T, N>(chain, a[i], operand<16, 1024, 1>(x) + (h * 2 + i) * 2);
                    if constexpr (F::STEPS > 1) {
                        if (i > 0) continue;
                        wgmma_commit();
                        wgmma_wait<0>();
                        settled(chain);
                        join(leaf, chain, ones, scale, 0);
                        settled(chain);
                        wgmma_fence();
                    }
                }
                wgmma_commit();
                if constexpr (F::OFFSET) sum_ones(ones, x, h);
                wgmma_wait<0>();
                settled(chain);
                if (small || (h == 1 && (unit + 1 == next || unit + 1 == end))) {
                    if constexpr (F::STEPS == 1) scale.load(s + (small ? h * F::SCALES : 0) + lane / 4 * F::Scale::BYTES);
                    join(leaf, chain, ones, scale, F::STEPS - 1);
                }
            }
            if (lane == 0) barrier_arrive(empty + slot * 8);
            next = unit + 1 == next ? next + p.group_units : next;
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            phase ^= slot == 0;
        } while (++unit < end);
    }

    DEVICE void sum_leaf(float (&d)[SUMS], u32 number) {
        u32 first = p.leaves[number], end = p.leaves[number + 1];
        if constexpr (SCALED) {
            sum_scaled(d, p.zero(number), first, end);
        } else {
            sum(d, p.zero(number), end - first);
        }
    }

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
        if constexpr (SCALED) return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i % 4 / 2 * 8;
        return threadIdx.x / 32 % 4 * 32 + threadIdx.x / 128 * 8 + threadIdx.x % 32 / 4 + i % 4 / 2 * 16;
    }

    // All leaves, one after the other.
    DEVICE void sum_leaves(float (&total)[SUMS]) {
        float d[SUMS];
        // Next to chains and leaves there are no registers for the whole.
        volatile float saved[2 * SUMS], whole[SCALED ? SUMS : 1];
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) total[i] = 0.0f;
#pragma unroll 1
        for (u32 i = 0; i < 8; i++) {
            sum_leaf(d, i);
            if constexpr (SCALED) {
#pragma unroll
                for (u32 e = 0; e < SUMS; e++) total[e] = i == 0 ? 0.0f : whole[e];
            }
            if (p.tree) {
                node(d, total, saved, i);
            } else {
#pragma unroll
                for (u32 e = 0; e < SUMS; e++) total[e] = add(total[e], d[e]);
            }
            if constexpr (SCALED) {
#pragma unroll
                for (u32 e = 0; e < SUMS; e++) whole[e] = total[e];
            }
        }
    }

    DEVICE void sum_all(float *board) {
        float total[SUMS];
        bool multiplies = threadIdx.x < MULTIPLY * 32;
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
        finish_all<T, 8, TILES, N>(p, OneWeight{p, row}, tile, board, 1, THREADS);
    }

    // This block's leaves, then all leaves of its rows.
    DEVICE void sum_own(float *board) {
        float d[OWN][SUMS];
        if (threadIdx.x < MULTIPLY * 32) {
            if constexpr (SCALED) {
                volatile float saved[OWN * SUMS];
#pragma unroll 1
                for (u32 i = 0; i < OWN; i++) {
                    sum_leaf(d[0], leaf + i);
#pragma unroll
                    for (u32 e = 0; e < SUMS; e++) saved[i * SUMS + e] = d[0][e];
                }
#pragma unroll
                for (u32 e = 0; e < OWN * SUMS; e++) d[e / SUMS][e % SUMS] = saved[e];
            } else {
#pragma unroll
                for (u32 i = 0; i < OWN; i++) sum_leaf(d[i], leaf + i);
            }
        }
        // No block of the cluster reads its ring any more.
        cluster_arrive();
        cluster_wait();
        if (threadIdx.x < MULTIPLY * 32) {
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
        finish_all<T, 8, TILES, SLICE>(p, OneWeight{p, row + leaf / OWN * SLICE}, tile, board, 8, THREADS);
    }

    DEVICE void run(float *board) {
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < STAGES; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, MULTIPLY);
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
