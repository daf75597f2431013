// 1 to 64 rows: the kernel behind the entries n8 to n64 of gemm.cu and gemmq.cu.
//
// A block has MT tiles of outputs and 8 NT rows; each of its warps has 8 / WARPS leaves, one after the other,
// and a ring of its own that only it fills and reads: no barrier until the leaves are added. Weights are on
// their way before the wait for earlier launches. Whatever a stage needs is a running pointer: next to the
// mma and the decoding there is little else.
#pragma once
#include "gemm.cuh"

template <typename T, typename F, u32 WARPS, u32 MT, u32 NT, u32 STAGES, typename R = OneWeight>
struct Skinny {
    static constexpr u32 OWN = 8 / WARPS, ROWS = 8 * NT, HALVES = F::HALVES;
    // Stages of a unit.
    static constexpr u32 PER_UNIT = 2 / HALVES;
    static constexpr u32 W = HALVES * F::HALF, S = HALVES * F::SCALES, X = HALVES * ROWS * 64;
    static constexpr u32 STAGE = MT * (W + S) + X;
    static constexpr u32 RING = WARPS * STAGES * STAGE;
    static constexpr u32 BOARD = 8 * ROWS * Board<MT>::PITCH * 4;
    static constexpr u32 SHARED = RING > BOARD ? RING : BOARD;

    const Gemm &p;
    R rows;
    u32 lane, tile;
    // The ring and its end; where this lane's part of the next stage's weights and rows goes.
    u32 ring, ring_end, w_to, x_to;
    // From there to this lane's place among the rows.
    u32 x_place;
    // What they are read from: this lane's 16 bytes, and the way to the next tile and the next eight rows; of
    // listed rows that from the first to each other one.
    u64 w_from, s_from, x_from, w_pitch, s_pitch, x_pitch;
    u64 x_step[R::LISTED && NT > 1 ? NT - 1 : 1];
    // Weight stages copied, that of the next group.
    u32 copied, fresh;
    // Stages of all, of the first leaf, of the first group, of a whole group; 0 for groups of 32.
    u32 total, turn, group_first, group_stages;
    // Values of x from this lane's on; eights of rows that have one for this lane.
    int left;
    u32 eights;
    u32 wide;

    DEVICE Skinny(const Gemm &p, const R &rows, u32 memory, u32 first, u32 middle, u32 end) : p(p), rows(rows) {
        lane = pinned(threadIdx.x % 32), tile = blockIdx.x * MT;
        ring = pinned(memory + threadIdx.x / 32 * (STAGES * STAGE) + lane * 16);
        ring_end = pinned(ring + STAGES * STAGE);
        w_to = x_to = ring;
        x_place = pinned(place_of_piece(lane) - lane * 16);
        total = pinned((end - first) * PER_UNIT), turn = pinned((middle - first) * PER_UNIT);
        // A block's last tile may not exist: then it is the one before.
        bool all = tile + MT <= over(p.n, 16);
        w_pitch = all ? (u64)p.units * (2 * F::HALF) : 0;
        w_from = rows.template weight<F>() + ((u64)tile * p.units + first) * (2 * F::HALF) + lane * 16;
        copied = fresh = 0;
        if constexpr (F::SCALES > 0) {
            bool small = p.group_units == 0;
            u32 group = small ? 2 * first : first / p.group_units;
            group_stages = pinned(p.group_units * PER_UNIT);
            group_first = pinned(small ? 0 : ((group + 1) * p.group_units - first) * PER_UNIT);
            s_pitch = all ? (u64)p.groups * F::SCALES : 0;
            s_from = rows.template scales<F>() + ((u64)tile * p.groups + group) * F::SCALES + lane * 16;
        }
        eights = pinned(over(rows.left(lane / 4), 8));
        left = (int)p.k - (int)(first * 64 + lane % 4 * 8);
        wide = pinned(wide_rows<T>(p));
        x_pitch = p.x.pitch * (8 * sizeof(T));
        u32 row = eights > 0 ? rows.from(lane / 4) : 0;
        if constexpr (R::LISTED) {
#pragma unroll
            for (u32 j = 1; j < NT; j++) {
                u64 other = j < eights ? rows.from(lane / 4 + j * 8) : row;
                x_step[j - 1] = (other - row) * (p.x.pitch * sizeof(T));
            }
        }
        x_from = p.x.ptr + ((u64)row * p.x.pitch + first * 64 + lane % 4 * 8) * sizeof(T);
    }

    DEVICE u32 after(u32 slot) const { return slot + STAGE == ring_end ? ring : slot + STAGE; }

    DEVICE void copy_weights() {
#pragma unroll
        for (u32 m = 0; m < MT; m++) {
#pragma unroll
            for (u32 c = 0; c < W; c += 512) {
                copy16(w_to + m * W + c, reinterpret_cast<const u8 *>(w_from + m * w_pitch + c));
            }
        }
        if constexpr (F::SCALES > 0) {
            bool small = group_stages == 0;
            if (small || copied == fresh) {
                u32 bytes = small ? S : F::SCALES;
                if (lane * 16 < bytes) {
#pragma unroll
                    for (u32 m = 0; m < MT; m++) {
                        copy16(w_to + MT * W + m * S, reinterpret_cast<const u8 *>(s_from + m * s_pitch));
                    }
                }
                s_from += bytes;
                fresh = copied == 0 ? group_first : fresh + group_stages;
            }
        }
        copied++;
        w_from += W;
        w_to = after(w_to);
    }

    DEVICE void copy_rows() {
        u32 to = x_to + MT * (W + S) + x_place;
        if (wide) {
#pragma unroll
            for (u32 h = 0; h < HALVES; h++) {
#pragma unroll
                for (u32 j = 0; j < NT; j++) {
                    u64 step = !R::LISTED ? j * x_pitch : j == 0 ? 0 : x_step[R::LISTED && j > 0 ? j - 1 : 0];
                    const u8 *from = reinterpret_cast<const u8 *>(x_from + step + h * 64);
                    if (j < eights) copy16_or_zero(to + (h * NT + j) * 512, from, left > (int)(h * 32));
                }
            }
        } else {
#pragma unroll 1
            for (u32 part = 0; part < HALVES * NT; part++) {
                u32 k = (u32)((int)p.k - left) + part / NT * 32;
                if (part % NT < eights) copy_single<T>(p, rows, lane / 4 + part % NT * 8, k, to + part * 512);
            }
        }
        x_from += HALVES * 64;
        left -= (int)(HALVES * 32);
        x_to = after(x_to);
    }

    // Rows beyond x are zero in every stage, once.
    DEVICE void clear_rows() {
#pragma unroll 1
        for (u32 i = 0; i < STAGES * HALVES * NT; i++) {
            u32 part = i % (HALVES * NT);
            if (part % NT >= eights) {
                store16(ring + i / (HALVES * NT) * STAGE + MT * (W + S) + part * 512, Words{{0, 0, 0, 0}});
            }
        }
    }

    DEVICE void run(float *board) {
        clear_rows();
#pragma unroll 1
        for (u32 i = 0; i < STAGES - 1 && i < total; i++) copy_weights();
        // Where rows are listed, reading the list has waited.
        if constexpr (!R::LISTED) begin();
#pragma unroll 1
        for (u32 i = 0; i < STAGES - 1; i++) {
            if (i < total) copy_rows();
            copy_commit();
        }
        Sums<T, F, MT, NT> sums;
        float before[MT][NT][4];
        u32 leaf = threadIdx.x / 32 * OWN;
        // The second leaf begins at once where the first has no unit.
        float zero = p.zero(leaf), last = p.zero(leaf + OWN - 1);
        sums.clear_leaf(turn == 0 ? last : zero);
        sums.clear_chain();
#pragma unroll
        for (u32 e = 0; e < MT * NT * 4; e++) before[e / 4 / NT][e / 4 % NT][e % 4] = zero;
        // Stage of the next group.
        u32 next = 0, at = ring, lane_bytes = lane * 16;
#pragma unroll 1
        for (u32 i = 0; i < total; i++) {
            copy_wait<STAGES - 2>();
            __syncwarp();
            if (copied < total) {
                copy_weights();
                copy_rows();
            }
            copy_commit();
            // Of the stage, not of this lane.
            u32 stage = at - lane_bytes;
            bool small = F::SCALES > 0 && group_stages == 0;
            if (F::SCALES > 0 && !small && i == next) {
                sums.scales(stage + MT * W, S, lane);
                next = i == 0 ? group_first : next + group_stages;
            }
#pragma unroll
            for (u32 h = 0; h < HALVES; h++) {
                if (small) sums.scales(stage + MT * W + h * F::SCALES, S, lane);
                u32 scale = stage + MT * W + h * F::SCALES, x = stage + MT * (W + S) + h * NT * 512;
                sums.half(stage + h * F::HALF, W, scale, S, x, lane);
                if (F::SCALES > 0 && (small || (h == HALVES - 1 && (i + 1 == next || i + 1 == turn || i + 1 == total)))) {
                    sums.join();
                }
            }
            if (OWN > 1 && i + 1 == turn) {
#pragma unroll
                for (u32 e = 0; e < MT * NT * 4; e++) {
                    before[e / 4 / NT][e / 4 % NT][e % 4] = sums.leaf[e / 4 / NT][e / 4 % NT][e % 4];
                }
                sums.clear_leaf(last);
            }
            at = after(at);
        }
        // Groups still in flight are empty: the last turn waited for the last tile.
        __syncthreads();
        if constexpr (OWN > 1) Board<MT>::put(board, leaf, ROWS, 0, 0, before, lane);
        Board<MT>::put(board, leaf + OWN - 1, ROWS, 0, 0, sums.leaf, lane);
        __syncthreads();
        finish_all<T, 1, MT, ROWS>(p, rows, tile, board, 8, WARPS * 32);
    }
};

// An entry; a launch's shared memory is SHARED, as `params/gemm.rs` knows.
#define SKINNY(FAMILY, NAME, T, F, WARPS, MT, NT, STAGES)                                                              \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) FAMILY##_##NAME(const __grid_constant__ Gemm p) {         \
        using Kernel = Skinny<T, F, WARPS, MT, NT, STAGES>;                                                            \
        static_assert(Kernel::SHARED <= 98304, "96 KiB");                                                              \
        u32 leaf = threadIdx.x / 32 * Kernel::OWN;                                                                     \
        OneWeight rows{p, blockIdx.y * Kernel::ROWS};                                                                  \
        Kernel kernel(p, rows, shared_address(memory), p.leaves[leaf], p.leaves[leaf + 1], p.leaves[leaf + Kernel::OWN]); \
        kernel.run(reinterpret_cast<float *>(memory));                                                                 \
    }
