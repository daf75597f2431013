// Quantized activations: how 32 consecutive values of a row become signed bytes and a scale
// (`quant::activation`), and how rows of them lie in memory. Shared by int8.cu and norm.cu, whose rows may be
// quantized as they are stored.
#pragma once
#include "device.cuh"

// Values that share a scale.
constexpr u32 SPAN = 32;
// Blocks in a piece of scales: 16 bytes.
constexpr u32 SCALES = 4;
// Magnitudes below 2^-100 count as zero.
constexpr u32 LEAST_TOP = (127 - 100) << 23;

// Quantized rows: codes [rows, cols], scales [rows, cols / 32 rounded up to 4] f32, zero behind the last.
struct Codes {
    // 0: none.
    u64 ptr;
    u64 scales;

    static DEVICE u32 pitch(u32 cols) { return over(cols / SPAN, SCALES) * SCALES; }
};

// Magnitudes order as their bits do; a NaN is above all.
DEVICE u32 magnitude(float v) { return bits_of(v) & 0x7fffffffu; }
// What a block's values are multiplied by, and what its codes are.
DEVICE float factor_of(u32 top) { return top >= LEAST_TOP ? div(127.0f, float_of(top)) : 0.0f; }
DEVICE float scale_of(u32 top) { return top >= LEAST_TOP ? mul(float_of(top), 1.0f / 127.0f) : 0.0f; }
// The code of a value, ties to even; 0 where the block counts as zero.
DEVICE u32 code_of(float v, float factor, u32 top) {
    return top >= LEAST_TOP ? (u32)__float2int_rn(mul(v, factor)) & 0xffu : 0u;
}

// Quantizes N values of a row from column c on: a multiple of N, as many blocks as the row has. 32 / N
// neighbouring lanes come here together, with the values of one block.
template <u32 N>
DEVICE void quantize(const Codes &to, u32 cols, u32 row, u32 c, const float (&v)[N]) {
    constexpr u32 LANES = SPAN / N;
    u32 together = (LANES == 32 ? 0xffffffffu : (1u << LANES % 32) - 1) << (threadIdx.x % 32 / LANES * LANES);
    u32 top = 0;
#pragma unroll
    for (u32 i = 0; i < N; i++) top = most(top, magnitude(v[i]));
#pragma unroll
    for (u32 span = LANES / 2; span > 0; span /= 2) top = most(top, __shfl_xor_sync(together, top, span));
    float factor = factor_of(top);
    u32 *codes = reinterpret_cast<u32 *>(to.ptr + (u64)row * cols + c);
#pragma unroll
    for (u32 w = 0; w < N / 4; w++) {
        u32 word = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) word |= code_of(v[4 * w + i], factor, top) << 8 * i;
        codes[w] = word;
    }
    if (c % SPAN == 0) reinterpret_cast<float *>(to.scales)[(u64)row * Codes::pitch(cols) + c / SPAN] = scale_of(top);
}
// The scales behind a row's last; by a group of threads, `own` numbers them.
DEVICE void quantize_end(const Codes &to, u32 cols, u32 row, u32 own) {
    u32 pitch = Codes::pitch(cols), at = cols / SPAN + own;
    if (at < pitch) reinterpret_cast<float *>(to.scales)[(u64)row * pitch + at] = 0.0f;
}
