// The strict product of a few rows with 32 rows of a weight, and what happens to finished sums: shared by linear.cu and
// moe.cu.
//
// A block of 256 threads is 8 leaves times 32 outputs: warp l runs the chains of leaf l, lane n those of output n, one
// chain per row of x. Rows of x come through shared memory as f32, 128 values of every leaf at a time; weights are decoded
// eight at a time in registers. The leaves meet in shared memory and are added by the tree. So the order is that of
// docs/numerics.md: it knows k and the grain, and nothing of rows or blocks.
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

struct Linear {
    MatView x;
    WeightView weight;
    MatView out;
    // [weight.rows] f32, or 0.
    u64 bias;
    u32 grain;
    u32 x_elem;
    u32 out_elem;
    u32 then;
    u32 act;
    u32 reserved;
};

constexpr u32 TILE_ROWS = 4;
constexpr u32 TILE_OUTPUTS = 32;
// Values of a leaf that are staged at a time.
constexpr u32 WINDOW = 128;

struct ProductShared {
    float x[LEAVES][TILE_ROWS][WINDOW];
    // [gate or up][leaf][row][output]
    float sums[2][LEAVES][TILE_ROWS][TILE_OUTPUTS];
};

// N eights of a weight row from k on: all are on their way before the first is used. Row r of x lies r * WINDOW behind x.
template <typename W, u32 N>
DEVICE void several(const WeightView &w, const u8 *row, u32 k, const float *x, u32 count, float (&acc)[TILE_ROWS]) {
    float v[N][8];
#pragma unroll
    for (u32 i = 0; i < N; i++) W::eight(w, row, k + 8 * i, v[i]);
#pragma unroll
    for (u32 r = 0; r < TILE_ROWS; r++) {
        if (r < count) {
            float s = acc[r];
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                float4 a = *reinterpret_cast<const float4 *>(x + r * WINDOW + 8 * i);
                float4 b = *reinterpret_cast<const float4 *>(x + r * WINDOW + 8 * i + 4);
                s = madd(a.x, v[i][0], s), s = madd(a.y, v[i][1], s), s = madd(a.z, v[i][2], s), s = madd(a.w, v[i][3], s);
                s = madd(b.x, v[i][4], s), s = madd(b.y, v[i][5], s), s = madd(b.z, v[i][6], s), s = madd(b.w, v[i][7], s);
            }
            acc[r] = s;
        }
    }
}

// Sums of `count` rows (`x_row(i)` numbers them) with weight rows first.. (this lane's is `first + lane`, those below `limit`
// exist) into `sums[leaf][row][lane]`.
template <typename W, typename R>
DEVICE void product(const MatView &x, u32 x_elem, const WeightView &w, u32 grain, u32 count, R x_row, u64 first, u64 limit,
                    float (&staged)[LEAVES][TILE_ROWS][WINDOW], float (&sums)[LEAVES][TILE_ROWS][TILE_OUTPUTS]) {
    u32 lane = threadIdx.x % 32, leaf = threadIdx.x / 32;
    u32 cols = w.cols;
    u32 from = leaf_start(cols, grain, leaf), to = leaf_start(cols, grain, leaf + 1);
    // Windows begin at multiples of 8, so that eights do. The widest leaf is the first or (tail) the last.
    u32 base = from / 8 * 8;
    u32 widest = most(leaf_start(cols, grain, 1), cols - leaf_start(cols, grain, LEAVES - 1));
    u32 windows = over(widest + 7, WINDOW);
    u64 n = least(first + lane, limit - 1);
    const u8 *row = reinterpret_cast<const u8 *>(w.ptr) + n * w.row_bytes;
    float acc[TILE_ROWS];
#pragma unroll
    for (u32 r = 0; r < TILE_ROWS; r++) acc[r] = 0.0f;
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
                if (k < end) staged[leaf][r][i + lane] = load_any(x.ptr, at + k, x_elem);
            }
        }
        __syncthreads();
        // Single values up to the first whole eight and behind the last, eights between.
        auto single = [&](u32 a, u32 b) {
            for (u32 k = a; k < b; k++) {
                float v = W::at(w, row, k);
#pragma unroll
                for (u32 r = 0; r < TILE_ROWS; r++) {
                    if (r < count) acc[r] = madd(staged[leaf][r][k - start], v, acc[r]);
                }
            }
        };
        u32 begin = most(start, from);
        u32 eights = least(over(begin, 8) * 8, most(end, begin));
        single(begin, eights);
        u32 k = eights;
        for (; k + 8 * W::AHEAD <= end; k += 8 * W::AHEAD) several<W, W::AHEAD>(w, row, k, &staged[leaf][0][k - start], count, acc);
        if (W::AHEAD > 1) {
            for (; k + 8 <= end; k += 8) several<W, 1>(w, row, k, &staged[leaf][0][k - start], count, acc);
        }
        single(k, end);
    }
#pragma unroll
    for (u32 r = 0; r < TILE_ROWS; r++) sums[leaf][r][lane] = acc[r];
}

// The finished sum of a row and output.
DEVICE float whole(const float (&sums)[LEAVES][TILE_ROWS][TILE_OUTPUTS], u32 r, u32 n) {
    return tree(sums[0][r][n], sums[1][r][n], sums[2][r][n], sums[3][r][n], sums[4][r][n], sums[5][r][n], sums[6][r][n],
                sums[7][r][n]);
}
