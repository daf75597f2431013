// Many rows: the kernel behind the entries small and wide of gemm.cu and gemmq.cu.
//
// A block has MW x NW warps of MT tiles by 8 NT rows each and walks all of K in units, through a ring that
// all fill and all read: one barrier a unit. Leaves are added as they end, from the first to the last or,
// where ranks share the sum, by the tree. Reads of both operands take every bank once.
#pragma once
#include "gemm.cuh"

template <typename T, typename F, u32 MW, u32 NW, u32 MT, u32 NT, u32 STAGES, typename R = OneWeight>
struct Dense {
    static constexpr u32 TILES = MW * MT, ROWS = NW * NT * 8, THREADS = MW * NW * 32;
    static constexpr u32 W = 2 * F::HALF, S = 2 * F::SCALES, X = ROWS * 128, STAGE = TILES * (W + S) + X;
    static constexpr u32 RING = STAGES * STAGE, BOARD = ROWS * Board<TILES>::PITCH * 4;
    static constexpr u32 SHARED = RING > BOARD ? RING : BOARD;
    // Sums of a thread.
    static constexpr u32 SUMS = MT * NT * 4;
    // 16-byte pieces of a unit that a thread copies: of weights, of x. x lies in two halves of 32 values.
    static constexpr u32 WN = TILES * W / 16 / THREADS, XN = ROWS * 8 / THREADS;
    static_assert(WN * THREADS * 16 == TILES * W && XN * THREADS == ROWS * 8 && ROWS * 4 % THREADS == 0, "whole pieces");

    // Different rows among the pieces of x.
    static constexpr u32 OWN_ROWS = ROWS * 4 / THREADS;

    const Gemm &p;
    R rows;
    u32 tile;
    // The ring and its end; where this thread's part of the next unit goes.
    u32 ring, ring_end, w_to, x_to;
    // This thread's place in a stage's rows.
    u32 x_place;
    // This thread's pieces: of the unit at hand, and from the first tile or row to that of piece i.
    u64 w_from, x_from;
    u32 w_step[WN];
    u64 x_pitch;
    // Of listed rows the way from this thread's first to each other one of its own.
    u64 x_step[R::LISTED && OWN_ROWS > 1 ? OWN_ROWS - 1 : 1];
    // Which of this thread's rows exist.
    u32 rows_there;
    // Scales: whether this thread copies any, from where.
    u64 s_from;
    u32 units, fresh;
    int left;
    u32 wide, all, group_units;

    DEVICE static u32 row_of_piece(u32 i) { return threadIdx.x / 4 + i * THREADS % (ROWS * 4) / 4; }

    DEVICE Dense(const Gemm &p, const R &rows, u32 memory) : p(p), rows(rows) {
        tile = blockIdx.x * TILES;
        ring = pinned(memory), ring_end = pinned(memory + STAGES * STAGE);
        w_to = ring + threadIdx.x * 16;
        x_place = pinned(place_of_piece(threadIdx.x));
        x_to = ring + x_place;
        all = pinned(p.units), group_units = pinned(p.group_units);
        u32 last = over(p.n, 16) - 1 - tile;
        w_from = rows.template weight<F>() + (u64)tile * p.units * W;
#pragma unroll
        for (u32 i = 0; i < WN; i++) {
            u32 piece = threadIdx.x + i * THREADS;
            w_step[i] = least(piece / (W / 16), last) * p.units * W + piece % (W / 16) * 16;
        }
        units = fresh = 0;
        if constexpr (F::SCALES > 0) {
            u32 t = threadIdx.x / (S / 16);
            s_from = rows.template scales<F>() + (u64)(tile + least(t, last)) * p.groups * F::SCALES + threadIdx.x % (S / 16) * 16;
        }
        left = (int)p.k - (int)(threadIdx.x % 4 * 8);
        wide = pinned(wide_rows<T>(p));
        x_pitch = p.x.pitch * sizeof(T);
        rows_there = 0;
#pragma unroll
        for (u32 i = 0; i < XN; i++) rows_there |= (u32)rows.has(row_of_piece(i)) << i;
        rows_there = pinned(rows_there);
        u32 row = rows.from(0);
        if constexpr (R::LISTED) {
            row = rows_there & 1 ? rows.from(row_of_piece(0)) : 0;
#pragma unroll
            for (u32 i = 1; i < OWN_ROWS; i++) {
                u64 other = rows_there >> i & 1 ? rows.from(row_of_piece(i)) : row;
                x_step[i - 1] = (other - row) * x_pitch;
            }
        }
        x_from = p.x.ptr + row * x_pitch + threadIdx.x % 4 * 16;
    }

    // Beginnings of slots alone may be compared: `offset` is this thread's place in one.
    DEVICE u32 after(u32 slot, u32 offset) const { return slot + STAGE == ring_end + offset ? ring + offset : slot + STAGE; }

    DEVICE void copy_weights() {
#pragma unroll
        for (u32 i = 0; i < WN; i++) {
            copy16(w_to + i * THREADS * 16, reinterpret_cast<const u8 *>(w_from + w_step[i]));
        }
        if constexpr (F::SCALES > 0) {
            bool small = group_units == 0;
            if (small || units == fresh) {
                u32 bytes = small ? S : F::SCALES, piece = threadIdx.x % (S / 16) * 16;
                if (threadIdx.x < TILES * (S / 16) && piece < bytes) {
                    copy16(w_to - threadIdx.x * 16 + TILES * W + threadIdx.x / (S / 16) * S + piece, reinterpret_cast<const u8 *>(s_from));
                }
                s_from += bytes;
                fresh += group_units;
            }
        }
        units++;
        w_from += W;
        w_to = after(w_to, threadIdx.x * 16);
    }

    DEVICE void copy_rows() {
        u32 to = x_to + TILES * (W + S);
        if (wide) {
#pragma unroll
            for (u32 i = 0; i < XN; i++) {
                u32 h = i * THREADS / (ROWS * 4);
                bool there = rows_there >> i & 1;
                u64 step = there ? row_of_piece(i) * x_pitch : 0;
                if constexpr (R::LISTED) step = i % OWN_ROWS == 0 ? 0 : x_step[i % OWN_ROWS == 0 ? 0 : i % OWN_ROWS - 1];
                const u8 *from = reinterpret_cast<const u8 *>(x_from + step + h * 64);
                copy16_or_zero(to + i * THREADS * 16, from, there && left > (int)(h * 32));
            }
        } else {
#pragma unroll 1
            for (u32 i = 0; i < XN; i++) {
                u32 k = (u32)((int)p.k - left) + i * THREADS / (ROWS * 4) * 32;
                copy_single<T>(p, rows, row_of_piece(i), k, to + i * THREADS * 16);
            }
        }
        x_from += 128;
        left -= 64;
        x_to = after(x_to, x_place);
    }

    // The tree, leaf by leaf: an even leaf waits in `total`, and so does the whole sum at the end. Sums of
    // two and of four leaves wait in memory of the thread: they are touched six times a tile, and registers
    // would not hold two sets more.
    DEVICE static void node(
        const float (&sums)[MT][NT][4], float (&total)[MT][NT][4], volatile float (&saved)[2 * SUMS], u32 leaf
    ) {
        if (leaf % 2 == 0) {
#pragma unroll
            for (u32 e = 0; e < SUMS; e++) total[e / 4 / NT][e / 4 % NT][e % 4] = sums[e / 4 / NT][e / 4 % NT][e % 4];
            return;
        }
#pragma unroll
        for (u32 e = 0; e < SUMS; e++) {
            float &value = total[e / 4 / NT][e / 4 % NT][e % 4];
            value = add(value, sums[e / 4 / NT][e / 4 % NT][e % 4]);
        }
        if (leaf % 4 == 1) {
#pragma unroll
            for (u32 e = 0; e < SUMS; e++) saved[e] = total[e / 4 / NT][e / 4 % NT][e % 4];
            return;
        }
#pragma unroll
        for (u32 e = 0; e < SUMS; e++) {
            float &value = total[e / 4 / NT][e / 4 % NT][e % 4];
            value = add(saved[e], value);
        }
        if (leaf == 3) {
#pragma unroll
            for (u32 e = 0; e < SUMS; e++) saved[SUMS + e] = total[e / 4 / NT][e / 4 % NT][e % 4];
        } else {
#pragma unroll
            for (u32 e = 0; e < SUMS; e++) {
                float &value = total[e / 4 / NT][e / 4 % NT][e % 4];
                value = add(saved[SUMS + e], value);
            }
        }
    }

    DEVICE void run(float *board) {
        u32 lane = pinned(threadIdx.x % 32), warp = threadIdx.x / 32, wm = warp % MW, wn = warp / MW;
#pragma unroll 1
        for (u32 i = 0; i < STAGES - 1 && i < all; i++) copy_weights();
        // Where rows are listed, reading the list has waited.
        if constexpr (!R::LISTED) begin();
#pragma unroll 1
        for (u32 i = 0; i < STAGES - 1; i++) {
            if (i < all) copy_rows();
            copy_commit();
        }
        u32 w_own = pinned(wm * MT * W), x_own = pinned(TILES * (W + S) + wn * NT * 512);
        Sums<T, F, MT, NT> sums;
        float total[MT][NT][4];
        volatile float saved[2 * SUMS];
        sums.clear_leaf(p.zero(0));
        sums.clear_chain();
#pragma unroll
        for (u32 e = 0; e < SUMS; e++) total[e / 4 / NT][e / 4 % NT][e % 4] = 0.0f;
        u32 leaf = 0, leaf_end = p.leaves[1], next = 0, at = ring;
#pragma unroll 1
        for (u32 unit = 0;; unit++) {
            if (p.tree) {
                // Leaves without a unit end where the one before them does, the first of another rank at 0.
#pragma unroll 1
                while (leaf < 8 && leaf_end == unit) {
                    node(sums.leaf, total, saved, leaf);
                    sums.clear_leaf(p.zero(++leaf));
                    leaf_end = leaf < 8 ? p.leaves[leaf + 1] : 0;
                }
            } else if (unit == leaf_end) {
#pragma unroll
                for (u32 e = 0; e < SUMS; e++) {
                    total[e / 4 / NT][e / 4 % NT][e % 4] =
                        add(total[e / 4 / NT][e / 4 % NT][e % 4], sums.leaf[e / 4 / NT][e / 4 % NT][e % 4]);
                }
                sums.clear_leaf(0.0f);
                // Empty leaves are +0 and change nothing.
                while (leaf < 7 && leaf_end == unit) leaf_end = p.leaves[++leaf + 1];
            }
            if (unit == all) break;
            copy_wait<STAGES - 2>();
            __syncthreads();
            if (units < all) {
                copy_weights();
                copy_rows();
            }
            copy_commit();
            u32 w = at + w_own, scale = at + TILES * W + wm * MT * S, x = at + x_own;
            bool small = F::SCALES > 0 && group_units == 0;
            if (F::SCALES > 0 && !small && unit == next) {
                sums.scales(scale, S, lane);
                next += group_units;
            }
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                if (small) sums.scales(scale + h * F::SCALES, S, lane);
                sums.half(w + h * F::HALF, W, scale + h * F::SCALES, S, x + h * ROWS * 64, lane);
                if (F::SCALES > 0 && (small || (h == 1 && (unit + 1 == leaf_end || unit + 1 == next)))) sums.join();
            }
            at = after(at, 0);
        }
        // Groups still in flight are empty: the last turn waited for the last tile.
        __syncthreads();
        Board<TILES>::put(board, 0, ROWS, wm * MT, wn * NT * 8, total, lane);
        __syncthreads();
        finish_all<T, 8, TILES, ROWS>(p, rows, tile, board, 1, THREADS);
    }
};

// An entry; a launch's shared memory is SHARED, as `params/gemm.rs` knows.
#define DENSE(FAMILY, NAME, T, F, MW, NW, MT, NT, STAGES)                                                              \
    extern "C" __global__ void __launch_bounds__(MW * NW * 32, 1) FAMILY##_##NAME(const __grid_constant__ Gemm p) {    \
        using Kernel = Dense<T, F, MW, NW, MT, NT, STAGES>;                                                            \
        static_assert(Kernel::SHARED <= 98304, "96 KiB");                                                              \
        OneWeight rows{p, blockIdx.y * Kernel::ROWS};                                                                  \
        Kernel kernel(p, rows, shared_address(memory));                                                                \
        kernel.run(reinterpret_cast<float *>(memory));                                                                 \
    }
