// Keys and values in eight bits: a head's row at a position is codes with one scale, bit for bit what
// `engraft_core::quant::kv_row` makes of it (docs/numerics.md, 3). Shared by kv.cu and attention.cu.
//
// Codes lie where elements of one byte would (paged.cuh). Behind all codes of a slab, from the next multiple
// of 16 bytes on, lie all scales, f32 `[page][kv_head][position]`: rows of codes are as far apart as they are
// wide, so that those of 16 columns are read 16 bytes at a time, and a row has one number for both.
#pragma once
#include "paged.cuh"

// What keys and values may be next to the `ELEM_*` of activations, as `Elem` on the host.
constexpr u32 ELEM_INT8 = 3;
constexpr u32 ELEM_FP8 = 4;

DEVICE bool is_coded(u32 elem) { return elem >= ELEM_INT8; }
// Bytes of an element or a code.
DEVICE u32 kept_bytes(u32 elem) { return is_coded(elem) ? 1 : elem_bytes(elem); }
// Where the scales of a slab of codes begin.
DEVICE u64 scales_of(const KvView &kv, bool is_key) {
    u64 codes = (u64)kv.pages * kv.kv_heads * kv.page_size * (is_key ? kv.k_dim : kv.v_dim);
    return (is_key ? kv.keys : kv.values) + (codes + 15) / 16 * 16;
}
// The number of a head's row at a position, in a slab.
DEVICE u64 row_number(const KvView &kv, u32 page, u32 head, u32 offset) {
    return ((u64)page * kv.kv_heads + head) * kv.page_size + offset;
}

// Scales below 2^-100 count as zero; beyond 2^100 the row is NaN.
constexpr float LEAST_SCALE = 0x1p-100f;
constexpr float MOST_SCALE = 0x1p100f;

// A row's scale, and what its values are multiplied by: 0 where all codes are.
struct RowScale {
    float scale;
    float inverse;
};

// Of a row whose largest magnitude has the bits `top`: 16 significant bits, so that a code times it is exact.
DEVICE RowScale scale_of_row(u32 elem, u32 top) {
    float exact = mul(float_of(top), elem == ELEM_INT8 ? 1.0f / 127.0f : 1.0f / 448.0f);
    if (is_nan(exact)) return RowScale{float_of(0x7fc00000u), 0.0f};
    float scale = float_of((bits_of(exact) + 0x80u) & 0xffffff00u);
    if (scale < LEAST_SCALE) return RowScale{0.0f, 0.0f};
    if (scale <= MOST_SCALE) return RowScale{scale, div(1.0f, scale)};
    return RowScale{float_of(0x7fc00000u), 0.0f};
}

// The nearest e4m3, ties to even, at most 448. Below 2^-6 codes are 2^-9 apart, as f32 is at 2^14.
DEVICE u32 e4m3_of(float v) {
    u32 size = bits_of(v) & 0x7fffffffu, sign = bits_of(v) >> 24 & 0x80u, code;
    if (size < (127 - 6) << 23) {
        code = bits_of(add(float_of(size), 16384.0f)) - bits_of(16384.0f);
    } else {
        code = ((size + 0x7ffffu + (size >> 20 & 1)) >> 20) - (120 << 3);
    }
    return sign | least(code, 0x7eu);
}

// The code of a value. Not multiplied where all codes are zero: of a row that is not finite `v * 0` is not
// either.
DEVICE u32 code_of(u32 elem, float v, float inverse) {
    if (inverse == 0.0f) return 0;
    float x = mul(v, inverse);
    return elem == ELEM_INT8 ? (u32)__float2int_rn(x) & 0xffu : e4m3_of(x);
}

// The value of a code without its scale: byte `i` of a word. Codes that no append writes (NaN of e4m3) give
// some number.
template <u32 ELEM>
DEVICE float code_value(u32 word, u32 i) {
    if (ELEM == ELEM_INT8) return sub(float_of(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7650u + i)), 8388736.0f);
    u32 code = word >> 8 * i;
    return mul(float_of((code & 0x80u) << 24 | (code & 0x7fu) << 20), 0x1p120f);
}
DEVICE float code_value(u32 elem, u32 word, u32 i) {
    return elem == ELEM_INT8 ? code_value<ELEM_INT8>(word, i) : code_value<ELEM_FP8>(word, i);
}

// Rounds a row of `width` values, value(d), to codes and a scale; by a warp.
template <typename F>
DEVICE void put_codes(u32 elem, u64 codes, float *scale, u32 width, F value) {
    u32 lane = threadIdx.x % 32, top = 0;
    // Magnitudes order as their bits do; a NaN is above all.
    for (u32 d = lane; d < width; d += 32) top = most(top, bits_of(value(d)) & 0x7fffffffu);
#pragma unroll
    for (u32 span = 16; span > 0; span /= 2) top = most(top, __shfl_xor_sync(0xffffffffu, top, span));
    RowScale row = scale_of_row(elem, top);
    if (width % 4 == 0) {
        for (u32 d = lane * 4; d < width; d += 128) {
            u32 word = 0;
#pragma unroll 1
            for (u32 i = 0; i < 4; i++) word |= code_of(elem, value(d + i), row.inverse) << 8 * i;
            *reinterpret_cast<u32 *>(codes + d) = word;
        }
    } else {
        for (u32 d = lane; d < width; d += 32) reinterpret_cast<u8 *>(codes)[d] = (u8)code_of(elem, value(d), row.inverse);
    }
    // No columns, no scale.
    if (lane == 0 && width != 0) *scale = row.scale;
}
