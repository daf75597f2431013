// The strict matmul of a few rows with 32 rows of a weight, and what happens to finished sums: shared by
// linear.cu and moe.cu.
//
// A block of 256 threads is 8 leaves times 32 outputs: warp l runs the chains of leaf l, lane n those of
// output n, one chain per row of x (up to 4, or up to 16). Rows of x come through shared memory as f32, a
// window of every leaf at a time; weights are decoded
// eight at a time in registers. The leaves are combined in shared memory and are added by the tree. So the
// order is that of docs/numerics.md: it knows where the leaves begin, and nothing of rows or blocks.
#pragma once
#include "weight.cuh"

// What follows a sum.
constexpr u32 THEN_NOTHING = 0;
// round(act(round(sum + bias))).
constexpr u32 THEN_ACTIVATE = 1;
// round(out + round(sum + bias)).
constexpr u32 THEN_ADD = 2;
// Weight rows [gate | up]: round(act(round(gate)) * round(up)), half as many outputs.
constexpr u32 THEN_GATE = 3;

// Where the leaves of a sum begin, and its end; which of them this sum has (a bit each); values of the
// widest. What another rank has is an empty leaf of -0, which changes no sum that it is added to:
// engraft_core::numerics::Share.
struct Leaves {
    u32 at[LEAVES + 1];
    u32 own;
    u32 widest;

    DEVICE float zero(u32 leaf) const { return own >> leaf & 1 ? 0.0f : -0.0f; }
};

struct Linear {
    MatView x;
    WeightView weight;
    MatView out;
    // [weight.rows] f32, or 0.
    u64 bias;
    Leaves leaves;
    u32 x_elem;
    u32 out_elem;
    u32 then;
    u32 act;
    u32 reserved;
};

constexpr u32 TILE_OUTPUTS = 32;
constexpr u32 FEW = 4;
constexpr u32 MANY = 16;

// Values of a leaf that are staged at a time.
template <u32 ROWS>
struct Window {
    static constexpr u32 N = ROWS == FEW ? 128 : 64;
};

// Rows of x while chains run, their sums afterwards.
template <u32 ROWS>
union MatmulShared {
    float x[LEAVES][ROWS][Window<ROWS>::N];
    float sums[LEAVES][ROWS][TILE_OUTPUTS];

    // The finished sum of a row and output.
    DEVICE float whole(u32 r, u32 n) const {
        return tree(sums[0][r][n], sums[1][r][n], sums[2][r][n], sums[3][r][n], sums[4][r][n], sums[5][r][n], sums[6][r][n],
                    sums[7][r][n]);
    }
};

// N eights of a weight row from k on: all are on their way before the first is used. Row r of x lies r
// windows behind x.
template <typename W, u32 N, u32 ROWS>
DEVICE void several(const WeightView &w, const u8 *row, u32 k, const float *x, u32 count, float (&acc)[ROWS]) {
    float v[N][8];
#pragma unroll
    for (u32 i = 0; i < N; i++) W::eight(w, row, k + 8 * i, v[i]);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        if (r < count) {
            float s = acc[r];
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                float4 a = *reinterpret_cast<const float4 *>(x + r * Window<ROWS>::N + 8 * i);
                float4 b = *reinterpret_cast<const float4 *>(x + r * Window<ROWS>::N + 8 * i + 4);
                s = madd(a.x, v[i][0], s), s = madd(a.y, v[i][1], s), s = madd(a.z, v[i][2], s), s = madd(a.w, v[i][3], s);
                s = madd(b.x, v[i][4], s), s = madd(b.y, v[i][5], s), s = madd(b.z, v[i][6], s), s = madd(b.w, v[i][7], s);
            }
            acc[r] = s;
        }
    }
}

// Sums of `count` rows (`x_row(i)` numbers them) with weight rows from `first` on (this lane's is
// `first + lane`; those below
// `limit` exist): they lie in `shared.sums` behind the next barrier. Begins with a barrier itself.
template <typename W, u32 ROWS, typename R>
DEVICE void matmul(const MatView &x, u32 x_elem, const WeightView &w, const Leaves &leaves, u32 count, R x_row, u64 first,
                    u64 limit, MatmulShared<ROWS> &shared) {
    constexpr u32 WINDOW = Window<ROWS>::N;
    constexpr u32 AHEAD = ROWS == FEW ? W::AHEAD : 1;
    u32 lane = threadIdx.x % 32, leaf = threadIdx.x / 32;
    u32 from = leaves.at[leaf], to = leaves.at[leaf + 1];
    // Windows begin at multiples of 8, so that eights do.
    u32 base = from / 8 * 8;
    u32 windows = over(leaves.widest + 7, WINDOW);
    u64 n = least(first + lane, limit - 1);
    const u8 *row = row_of<W>(w, n);
    float acc[ROWS];
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) acc[r] = leaves.zero(leaf);
    for (u32 window = 0; window < windows; window++) {
        u32 start = base + window * WINDOW;
        u32 end = least(start + WINDOW, to);
        __syncthreads();
        // Every warp brings its own leaf's values.
        for (u32 r = 0; r < count; r++) {
            u64 at = (u64)x_row(r) * x.pitch;
#pragma unroll
            for (u32 i = 0; i < WINDOW; i += 32) {
                u32 k = start + i + lane;
                if (k < end) shared.x[leaf][r][i + lane] = load_any(x.ptr, at + k, x_elem);
            }
        }
        __syncthreads();
        // Whole eights where they are, single values before the first and behind the last.
        for (u32 k = most(start, from); k < end;) {
            const float *staged = &shared.x[leaf][0][k - start];
            if (k % 8 == 0 && k + 8 * AHEAD <= end) {
                several<W, AHEAD>(w, row, k, staged, count, acc);
                k += 8 * AHEAD;
            } else if (AHEAD > 1 && k % 8 == 0 && k + 8 <= end) {
                several<W, 1>(w, row, k, staged, count, acc);
                k += 8;
            } else {
                float v = W::at(w, row, k);
#pragma unroll
                for (u32 r = 0; r < ROWS; r++) {
                    if (r < count) acc[r] = madd(staged[r * WINDOW], v, acc[r]);
                }
                k++;
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) shared.sums[leaf][r][lane] = acc[r];
}
