// The kernel behind the entries of linear.cu and int8.cu for few rows: sums of 32 outputs by 8 leaves, and
// what follows them.
#pragma once
#include "matmul.cuh"

// The sums of a format's matmuls.
template <typename W>
struct Sums {
    template <u32 ROWS, typename R>
    static DEVICE void of(const Linear &p, u32 count, R x_row, u64 first, u64 limit, MatmulShared<ROWS> &shared) {
        matmul<W>(p.x, p.x_elem, p.weight, p.leaves, count, x_row, first, limit, shared);
    }
};

// Stores output n of a row: its finished sum with the bias, and behind a gate that of its other half. Where
// the composed ops would store, this rounds to the output's element type, so that fused equals composed.
DEVICE void put(const Linear &p, u32 row, u32 n, float sum, float up) {
    u64 at = (u64)row * p.out.pitch + n;
    bool gate = p.then == THEN_GATE;
    float v = sum;
    if (p.then != THEN_NOTHING) v = rounded(v, p.out_elem);
    if (p.then == THEN_ADD) v = add(load_any(p.out.ptr, at, p.out_elem), v);
    if (p.then == THEN_ACTIVATE || gate) v = act_of(p.act, v);
    if (gate) v = mul(v, rounded(up, p.out_elem));
    store_any(p.out.ptr, at, p.out_elem, v);
}

template <typename W, u32 ROWS>
DEVICE void strict(const Linear &p) {
    constexpr u32 PARTS = (ROWS + 7) / 8;
    __shared__ MatmulShared<ROWS> shared;
    begin();
    bool gate = p.then == THEN_GATE;
    u32 outputs = p.out.cols;
    u32 first = blockIdx.y * TILE_OUTPUTS;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 n = first + lane;
    const float *bias = reinterpret_cast<const float *>(p.bias);
    u32 tile = blockIdx.x * ROWS;
    u32 count = least(p.x.rows - tile, ROWS);
    // Sums with their bias, of rows warp, warp + 8, ...
    float y[PARTS], up[PARTS];
    for (u32 half = 0; half < (gate ? 2u : 1u); half++) {
        u64 begin = (u64)half * outputs;
        Sums<W>::of(p, count, [=](u32 i) { return tile + i; }, begin + first, begin + outputs, shared);
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < PARTS; i++) {
            float sum = 0.0f;
            if (warp + 8 * i < count && n < outputs) {
                sum = shared.whole(warp + 8 * i, lane);
                if (bias) sum = add(sum, bias[begin + n]);
            }
            (half == 0 ? y[i] : up[i]) = sum;
        }
    }
#pragma unroll
    for (u32 i = 0; i < PARTS; i++) {
        u32 r = warp + 8 * i;
        if (r < count && n < outputs) put(p, tile + r, n, y[i], up[i]);
    }
}
