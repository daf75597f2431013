// The product of `w8a8`: rows of x become bytes on the way in, products of bytes are summed as integers.
//
// As in product.cuh a warp is a leaf and a lane an output. Per block of 32 k the lanes first share the quantization of a
// row of x: each takes one value, the maximum and the codes go round by shuffles. Then each adds its output's 32 products,
// four at a time. A leaf is the chain `acc = (dx * dw) * sum + acc` over its blocks; leaves are whole blocks (the grain is a
// multiple of 32), so a warp's lanes are always in step.
//
// The norm before a product does not write bytes: a row's codes depend on nothing but its block of 32, each warp forms those of
// its leaf in a few shuffles, and no buffer of codes has to live between two kernels.
#pragma once
#include "product.cuh"

// Stored as q8_0: blocks of d and 32 codes.
struct W8A8 {
    static constexpr u32 BYTES = 34;
};

// Magnitudes below 2^-100 count as zero.
constexpr u32 LEAST_TOP = (127 - 100) << 23;

// The codes of a row's block, four to a word, and their scale; `v` is this lane's value.
DEVICE float quantized(float v, u32 (&codes)[8]) {
    // Magnitudes order as their bits do; a NaN is above all.
    u32 top = bits_of(v) & 0x7fffffffu;
#pragma unroll
    for (u32 span = 16; span > 0; span /= 2) top = most(top, __shfl_xor_sync(0xffffffffu, top, span));
    u32 q = 0;
    if (top >= LEAST_TOP) q = (u32)__float2int_rn(mul(v, div(127.0f, float_of(top)))) & 0xffu;
    q <<= threadIdx.x % 4 * 8;
    q |= __shfl_xor_sync(0xffffffffu, q, 1);
    q |= __shfl_xor_sync(0xffffffffu, q, 2);
#pragma unroll
    for (u32 i = 0; i < 8; i++) codes[i] = __shfl_sync(0xffffffffu, q, 4 * i);
    return top >= LEAST_TOP ? mul(float_of(top), 1.0f / 127.0f) : 0.0f;
}

// As `product`.
template <u32 ROWS, typename R>
DEVICE void product_int8(const MatView &x, u32 x_elem, const WeightView &w, u32 grain, u32 count, R x_row, u64 first,
                         u64 limit, ProductShared<ROWS> &shared) {
    u32 lane = threadIdx.x % 32, leaf = threadIdx.x / 32;
    u32 from = leaf_start(w.cols, grain, leaf), to = leaf_start(w.cols, grain, leaf + 1);
    u64 n = least(first + lane, limit - 1);
    const u8 *row = reinterpret_cast<const u8 *>(w.ptr) + n * w.row_bytes;
    float acc[ROWS];
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) acc[r] = 0.0f;
    for (u32 k = from; k < to; k += 32) {
        const u16 *block = reinterpret_cast<const u16 *>(row + k / 32 * W8A8::BYTES);
        float dw = widen(f16{block[0]});
        int weights[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) weights[i] = (int)(block[1 + 2 * i] | (u32)block[2 + 2 * i] << 16);
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            if (r < count) {
                u32 codes[8];
                float dx = quantized(load_any(x.ptr, (u64)x_row(r) * x.pitch + k + lane, x_elem), codes);
                int sum = 0;
#pragma unroll
                for (u32 i = 0; i < 8; i++) sum = __dp4a(weights[i], (int)codes[i], sum);
                acc[r] = madd(mul(dx, dw), (float)sum, acc[r]);
            }
        }
    }
    // What an earlier half put there has been read.
    __syncthreads();
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) shared.sums[leaf][r][lane] = acc[r];
}
