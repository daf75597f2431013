// Weights in their file layouts, decoded to f32: one value, or eight from a multiple of eight.
//
// A weight lies row after row exactly as checkpoints hold it (`engraft_core::quant` has the tables):
//
//   f32, f16, bf16                        elements
//   q4_0 q4_1 q5_0 q5_1 q8_0              GGUF blocks of 32 values: d, perhaps m, perhaps fifth bits, codes
//   q2_k q3_k q4_k q5_k q6_k              GGUF blocks of 256 values in parts of 16 with small scales
//   iq4_nl iq4_xs                         GGUF blocks of 32 and 256 values: d (and small scales), places
//   int8 int8a int4 int4a                 own groups: d, perhaps m, codes; a row's last group may be short
//   fp8 fp8_e5m2 fp6 fp4 nf4 mxfp4        own groups of small floats, or places in a table: d in f32
//                                         (mxfp4: a power of two), codes
//   columns                               f32, packed for warps (`engraft_kernels::columns`): never in files
//
// Values are `d q`, `d q + m` or `(d s) q - (e t)`: every product is exact in f32, so the one rounding is
// that of the final sum, and a fused multiply-add gives the CPU's bits.
//
// Blocks are read two bytes at a time, groups byte by byte: rows begin at even addresses (blocks) or at any
// (groups).
#pragma once
#include "device.cuh"

DEVICE float half_at(const u8 *p) {
    return widen(f16{(u16)(p[0] | (u32)p[1] << 8)});
}
DEVICE float half_even(const u8 *p) { return widen(f16{*reinterpret_cast<const u16 *>(p)}); }

// ---- Plain elements ---------------------------------------------------------------------------------------

template <typename T>
struct Plain {
    // Eights whose loads a loop may have on their way: more for what only these kernels multiply.
    static constexpr u32 AHEAD = 4;
    static DEVICE float at(const WeightView &, const u8 *row, u32 k) { return widen(reinterpret_cast<const T *>(row)[k]); }
    static DEVICE void eight(const WeightView &w, const u8 *row, u32 k, float (&v)[8]) {
        const T *p = reinterpret_cast<const T *>(row) + k;
        if (((w.ptr | w.row_bytes) & 15) == 0) {
            load_wide(p, v);
        } else {
#pragma unroll
            for (u32 i = 0; i < 8; i++) v[i] = widen(p[i]);
        }
    }
};

// f32 with the outputs of a warp side by side, `[outputs / 32][k][32]`; `row_bytes` are those of a tile.
struct Columns {
    static constexpr u32 AHEAD = 4;
    static DEVICE float at(const WeightView &, const u8 *row, u32 k) {
        return reinterpret_cast<const float *>(row)[(u64)k * 32];
    }
    static DEVICE void eight(const WeightView &w, const u8 *row, u32 k, float (&v)[8]) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) v[i] = at(w, row, k + i);
    }
};

// Where output n's values begin.
template <typename W>
DEVICE const u8 *row_of(const WeightView &w, u64 n) {
    return reinterpret_cast<const u8 *>(w.ptr) + n * w.row_bytes;
}
template <>
DEVICE const u8 *row_of<Columns>(const WeightView &w, u64 n) {
    return reinterpret_cast<const u8 *>(w.ptr) + n / 32 * w.row_bytes + n % 32 * 4;
}

// ---- Blocks of 32 -----------------------------------------------------------------------------------------

// HEAD: bytes before the codes; ZERO is subtracted from a code; MINIMUM: there is an m; FIFTH: there are
// fifth bits.
template <u32 BYTES, u32 HEAD, int ZERO, bool MINIMUM, bool FIFTH>
struct Nibbles {
    static constexpr u32 AHEAD = FIFTH ? 4 : 1;
    static DEVICE float value(float d, float m, u32 q) {
        float c = (float)((int)q - ZERO);
        return MINIMUM ? madd(d, c, m) : mul(d, c);
    }
    static DEVICE float at(const WeightView &, const u8 *row, u32 k) {
        const u8 *raw = row + k / 32 * BYTES;
        u32 i = k % 32;
        u32 q = raw[HEAD + i % 16] >> (i / 16 * 4) & 15;
        if (FIFTH) q |= (u32)(raw[HEAD - 4 + i / 8] >> (i % 8) & 1) << 4;
        return value(half_even(raw), MINIMUM ? half_even(raw + 2) : 0.0f, q);
    }
    static DEVICE void eight(const WeightView &, const u8 *row, u32 k, float (&v)[8]) {
        const u8 *raw = row + k / 32 * BYTES;
        float d = half_even(raw);
        float m = MINIMUM ? half_even(raw + 2) : 0.0f;
        u32 i = k % 32;
        u32 shift = i / 16 * 4;
        u32 fifth = FIFTH ? raw[HEAD - 4 + i / 8] : 0;
        const u16 *codes = reinterpret_cast<const u16 *>(raw + HEAD + i % 16);
#pragma unroll
        for (u32 j = 0; j < 8; j += 2) {
            u32 two = codes[j / 2] >> shift;
            u32 a = two & 15;
            u32 b = two >> 8 & 15;
            if (FIFTH) {
                a |= (fifth >> j & 1) << 4;
                b |= (fifth >> (j + 1) & 1) << 4;
            }
            v[j] = value(d, m, a);
            v[j + 1] = value(d, m, b);
        }
    }
};
struct Q4_0 : Nibbles<18, 2, 8, false, false> {};
struct Q4_1 : Nibbles<20, 4, 0, true, false> {};
struct Q5_0 : Nibbles<22, 6, 16, false, true> {};
struct Q5_1 : Nibbles<24, 8, 0, true, true> {};

struct Q8_0 {
    static constexpr u32 AHEAD = 1;
    static DEVICE float at(const WeightView &, const u8 *row, u32 k) {
        const u8 *raw = row + k / 32 * 34;
        return mul(half_even(raw), (float)(i8)raw[2 + k % 32]);
    }
    static DEVICE void eight(const WeightView &, const u8 *row, u32 k, float (&v)[8]) {
        const u8 *raw = row + k / 32 * 34;
        float d = half_even(raw);
        const u16 *codes = reinterpret_cast<const u16 *>(raw + 2 + k % 32);
#pragma unroll
        for (u32 j = 0; j < 8; j += 2) {
            u32 two = codes[j / 2];
            v[j] = mul(d, (float)(i8)two);
            v[j + 1] = mul(d, (float)(i8)(two >> 8));
        }
    }
};

// ---- Blocks of 256 ----------------------------------------------------------------------------------------

// Eight neighbouring bytes from an even address.
struct Eight {
    u32 low;
    u32 high;
};
DEVICE Eight eight_bytes(const u8 *p) {
    const u16 *h = reinterpret_cast<const u16 *>(p);
    return Eight{h[0] | (u32)h[1] << 16, h[2] | (u32)h[3] << 16};
}
// Of every byte the bits of `mask` (the same in each) above `shift`, moved up by `to`.
DEVICE Eight part(Eight v, u32 shift, u32 mask, u32 to) {
    return Eight{(v.low >> shift & mask) << to, (v.high >> shift & mask) << to};
}
DEVICE Eight both(Eight a, Eight b) { return Eight{a.low | b.low, a.high | b.high}; }

// A layout says factor and minimum of part p of 16 values, and the stored codes of eight values from i on, i
// a multiple of 8.
template <typename F>
struct Large {
    static constexpr u32 AHEAD = 4;
    static DEVICE float at(const WeightView &, const u8 *row, u32 k) {
        const u8 *raw = row + k / 256 * F::BYTES;
        float d, m;
        F::scale(raw, k % 256 / 16, d, m);
        Eight codes = F::codes(raw, k % 256 / 8 * 8);
        u32 q = (k & 4 ? codes.high : codes.low) >> (k % 4 * 8) & 255;
        return madd(d, (float)((int)q - F::ZERO), -m);
    }
    static DEVICE void eight(const WeightView &, const u8 *row, u32 k, float (&v)[8]) {
        const u8 *raw = row + k / 256 * F::BYTES;
        float d, m;
        F::scale(raw, k % 256 / 16, d, m);
        Eight codes = F::codes(raw, k % 256);
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            u32 q = (j < 4 ? codes.low : codes.high) >> (j % 4 * 8) & 255;
            v[j] = madd(d, (float)((int)q - F::ZERO), -m);
        }
    }
};

struct LayoutQ2K {
    static constexpr u32 BYTES = 84;
    static constexpr int ZERO = 0;
    static DEVICE void scale(const u8 *raw, u32 p, float &d, float &m) {
        d = mul(half_even(raw + 80), (float)(raw[p] & 15));
        m = mul(half_even(raw + 82), (float)(raw[p] >> 4));
    }
    static DEVICE Eight codes(const u8 *raw, u32 i) {
        return part(eight_bytes(raw + 16 + i / 128 * 32 + i % 32), i / 32 % 4 * 2, 0x03030303, 0);
    }
};
struct LayoutQ3K {
    static constexpr u32 BYTES = 110;
    static constexpr int ZERO = 4;
    static DEVICE void scale(const u8 *raw, u32 p, float &d, float &m) {
        const u8 *s = raw + 96;
        u32 low = p < 8 ? s[p] & 15 : s[p - 8] >> 4;
        u32 high = s[8 + p % 4] >> (p / 4 * 2) & 3;
        d = mul(half_even(raw + 108), (float)((int)(low | high << 4) - 32));
        m = 0.0f;
    }
    static DEVICE Eight codes(const u8 *raw, u32 i) {
        Eight low = part(eight_bytes(raw + 32 + i / 128 * 32 + i % 32), i / 32 % 4 * 2, 0x03030303, 0);
        return both(low, part(eight_bytes(raw + i % 32), i / 32, 0x01010101, 2));
    }
};
// 6-bit scales and minima of Q4_K and Q5_K, part p of 16 values.
DEVICE void six_bits(const u8 *raw, u32 p, float &d, float &m) {
    const u8 *s = raw + 4;
    u32 j = p / 2;
    u32 scale, least;
    if (j < 4) {
        scale = s[j] & 63;
        least = s[j + 4] & 63;
    } else {
        scale = (s[j + 4] & 15) | (u32)(s[j - 4] >> 6) << 4;
        least = (u32)(s[j + 4] >> 4) | (u32)(s[j] >> 6) << 4;
    }
    d = mul(half_even(raw), (float)scale);
    m = mul(half_even(raw + 2), (float)least);
}
struct LayoutQ4K {
    static constexpr u32 BYTES = 144;
    static constexpr int ZERO = 0;
    static DEVICE void scale(const u8 *raw, u32 p, float &d, float &m) { six_bits(raw, p, d, m); }
    static DEVICE Eight codes(const u8 *raw, u32 i) {
        return part(eight_bytes(raw + 16 + i / 64 * 32 + i % 32), i / 32 % 2 * 4, 0x0f0f0f0f, 0);
    }
};
struct LayoutQ5K {
    static constexpr u32 BYTES = 176;
    static constexpr int ZERO = 0;
    static DEVICE void scale(const u8 *raw, u32 p, float &d, float &m) { six_bits(raw, p, d, m); }
    static DEVICE Eight codes(const u8 *raw, u32 i) {
        Eight low = part(eight_bytes(raw + 48 + i / 64 * 32 + i % 32), i / 32 % 2 * 4, 0x0f0f0f0f, 0);
        return both(low, part(eight_bytes(raw + 16 + i % 32), i / 32, 0x01010101, 4));
    }
};
struct LayoutQ6K {
    static constexpr u32 BYTES = 210;
    static constexpr int ZERO = 32;
    static DEVICE void scale(const u8 *raw, u32 p, float &d, float &m) {
        d = mul(half_even(raw + 208), (float)(i8)raw[192 + p]);
        m = 0.0f;
    }
    static DEVICE Eight codes(const u8 *raw, u32 i) {
        u32 half = i / 128, run = i / 32 % 4, l = i % 32;
        Eight low = part(eight_bytes(raw + half * 64 + run % 2 * 32 + l), run / 2 * 4, 0x0f0f0f0f, 0);
        return both(low, part(eight_bytes(raw + 128 + half * 32 + l), run * 2, 0x03030303, 4));
    }
};
struct Q2_K : Large<LayoutQ2K> {};
struct Q3_K : Large<LayoutQ3K> {};
struct Q4_K : Large<LayoutQ4K> {};
struct Q5_K : Large<LayoutQ5K> {};
struct Q6_K : Large<LayoutQ6K> {};

// ---- Places in the table of IQ4 ---------------------------------------------------------------------------

DEVICE float iq4(u32 q) {
    // -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113.
    u32 four = q & 8 ? (q & 4 ? 0x71594535u : 0x26190d01u) : (q & 4 ? 0xf6eaddcfu : 0xbfad9881u);
    return (float)(i8)(four >> (q % 4 * 8));
}
// LARGE: 256 values in runs of 32, each with a small scale.
template <bool LARGE>
struct Iq4 {
    static constexpr u32 AHEAD = 1;
    // Where the nibbles of value k's run begin, and its scale.
    static DEVICE const u8 *run(const u8 *row, u32 k, float &d) {
        if (!LARGE) {
            const u8 *raw = row + k / 32 * 18;
            d = half_even(raw);
            return raw + 2;
        }
        const u8 *raw = row + k / 256 * 136;
        u32 r = k % 256 / 32;
        u32 low = raw[4 + r / 2] >> (r % 2 * 4) & 15;
        u32 high = raw[2 + r / 4] >> (r % 4 * 2) & 3;
        d = mul(half_even(raw), (float)((int)(low | high << 4) - 32));
        return raw + 8 + r * 16;
    }
    static DEVICE float at(const WeightView &, const u8 *row, u32 k) {
        float d;
        const u8 *codes = run(row, k, d);
        return mul(d, iq4(codes[k % 16] >> (k % 32 / 16 * 4) & 15));
    }
    static DEVICE void eight(const WeightView &, const u8 *row, u32 k, float (&v)[8]) {
        float d;
        const u8 *codes = run(row, k, d) + k % 16;
        u32 shift = k % 32 / 16 * 4;
#pragma unroll
        for (u32 j = 0; j < 8; j++) v[j] = mul(d, iq4(codes[j] >> shift & 15));
    }
};
struct Iq4Nl : Iq4<false> {};
struct Iq4Xs : Iq4<true> {};

// ---- Own groups -------------------------------------------------------------------------------------------

// Groups begin at multiples of `w.group` (a multiple of 32, or the whole row), so eight values from a
// multiple of eight share one.
template <u32 BITS, bool OFFSET>
struct Grouped {
    static constexpr u32 AHEAD = 1;
    static constexpr u32 HEAD = OFFSET ? 4 : 2;
    static DEVICE const u8 *group(const WeightView &w, const u8 *row, u32 k) {
        u64 bytes = HEAD + (BITS == 8 ? w.group : (w.group + 1) / 2);
        return row + k / w.group * bytes;
    }
    static DEVICE float value(const u8 *codes, u32 i, float d, float m) {
        int q = BITS == 8 ? (int)(i8)codes[i] : (int)(codes[i / 2] >> (i % 2 * 4) & 15) - (OFFSET ? 0 : 8);
        return OFFSET ? madd(d, (float)q, m) : mul(d, (float)q);
    }
    static DEVICE float at(const WeightView &w, const u8 *row, u32 k) {
        const u8 *raw = group(w, row, k);
        return value(raw + HEAD, k % w.group, half_at(raw), OFFSET ? half_at(raw + 2) : 0.0f);
    }
    static DEVICE void eight(const WeightView &w, const u8 *row, u32 k, float (&v)[8]) {
        const u8 *raw = group(w, row, k);
        float d = half_at(raw);
        float m = OFFSET ? half_at(raw + 2) : 0.0f;
        u32 i = k % w.group;
#pragma unroll
        for (u32 j = 0; j < 8; j++) v[j] = value(raw + HEAD, i + j, d, m);
    }
};
struct Int8 : Grouped<8, false> {};
struct Int8a : Grouped<8, true> {};
struct Int4 : Grouped<4, false> {};
struct Int4a : Grouped<4, true> {};

// ---- Own groups of small floats ---------------------------------------------------------------------------

DEVICE float f32_at(const u8 *p) {
    return __uint_as_float(p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24);
}

// Codes widen as f16 does; the power of two between the two is exact, for d as well.
struct E4M3 {
    static constexpr u32 BITS = 8;
    static DEVICE float scale(float d) { return mul(d, 256.0f); }
    static DEVICE float value(u32 q) { return widen(f16{(u16)((q & 128) << 8 | (q & 127) << 7)}); }
};
struct E5M2 {
    static constexpr u32 BITS = 8;
    static DEVICE float scale(float d) { return d; }
    static DEVICE float value(u32 q) { return widen(f16{(u16)(q << 8)}); }
};
struct E3M2 {
    static constexpr u32 BITS = 6;
    static DEVICE float scale(float d) { return mul(d, 4096.0f); }
    static DEVICE float value(u32 q) { return widen(f16{(u16)((q & 32) << 10 | (q & 31) << 8)}); }
};
struct E2M1 {
    static constexpr u32 BITS = 4;
    static DEVICE float scale(float d) { return mul(d, 16384.0f); }
    static DEVICE float value(u32 q) { return widen(f16{(u16)((q & 8) << 12 | (q & 7) << 9)}); }
};
// QLoRA's table.
struct NF4 {
    static constexpr u32 BITS = 4;
    static DEVICE float scale(float d) { return d; }
    static DEVICE float value(u32 q) {
        bool a = q & 1, b = q & 2, c = q & 4;
        float n0 = a ? -0.6961928f : -1.0f, n1 = a ? -0.3949175f : -0.52507305f;
        float n2 = a ? -0.18477343f : -0.28444138f, n3 = a ? 0.0f : -0.091050036f;
        float p0 = a ? 0.1609302f : 0.0795803f, p1 = a ? 0.33791524f : 0.2461123f;
        float p2 = a ? 0.562617f : 0.44070983f, p3 = a ? 1.0f : 0.72295684f;
        float n = c ? (b ? n3 : n2) : (b ? n1 : n0);
        float p = c ? (b ? p3 : p2) : (b ? p1 : p0);
        return q & 8 ? p : n;
    }
};

// POWER: scales are one byte, 2^(byte - 127), all normal where codes are not zero.
template <typename C, bool POWER>
struct Floats {
    static constexpr u32 AHEAD = 1;
    static constexpr u32 HEAD = POWER ? 1 : 4;
    static DEVICE const u8 *group(const WeightView &w, const u8 *row, u32 k) {
        u64 bytes = HEAD + ((u64)w.group * C::BITS + 7) / 8;
        return row + k / w.group * bytes;
    }
    static DEVICE float scale(const u8 *raw) {
        float d = POWER ? __uint_as_float(raw[0] == 0 ? 1u << 22 : (u32)raw[0] << 23) : f32_at(raw);
        return C::scale(d);
    }
    static DEVICE u32 code(const u8 *codes, u32 i) {
        if (C::BITS == 8) return codes[i];
        if (C::BITS == 4) return codes[i / 2] >> (i % 2 * 4) & 15;
        // Four codes in three bytes: of the first and the last no byte behind them is read.
        const u8 *three = codes + i / 4 * 3;
        switch (i % 4) {
            case 0: return three[0] & 63;
            case 1: return three[0] >> 6 | (three[1] & 15) << 2;
            case 2: return three[1] >> 4 | (three[2] & 3) << 4;
            default: return three[2] >> 2;
        }
    }
    static DEVICE float at(const WeightView &w, const u8 *row, u32 k) {
        const u8 *raw = group(w, row, k);
        return mul(scale(raw), C::value(code(raw + HEAD, k % w.group)));
    }
    static DEVICE void eight(const WeightView &w, const u8 *row, u32 k, float (&v)[8]) {
        const u8 *raw = group(w, row, k);
        float d = scale(raw);
        u32 i = k % w.group;
#pragma unroll
        for (u32 j = 0; j < 8; j++) v[j] = mul(d, C::value(code(raw + HEAD, i + j)));
    }
};
struct Fp8 : Floats<E4M3, false> {};
struct Fp8E5m2 : Floats<E5M2, false> {};
struct Fp6 : Floats<E3M2, false> {};
struct Fp4 : Floats<E2M1, false> {};
struct Mxfp4 : Floats<E2M1, true> {};
struct Nf4 : Floats<NF4, false> {};

// Calls MACRO(struct, name) for every format.
#define EVERY_FORMAT(MACRO)                                                                                            \
    MACRO(Plain<float>, f32)                                                                                           \
    MACRO(Plain<f16>, f16)                                                                                             \
    MACRO(Plain<bf16>, bf16)                                                                                           \
    MACRO(Q4_0, q4_0)                                                                                                  \
    MACRO(Q4_1, q4_1)                                                                                                  \
    MACRO(Q5_0, q5_0)                                                                                                  \
    MACRO(Q5_1, q5_1)                                                                                                  \
    MACRO(Q8_0, q8_0)                                                                                                  \
    MACRO(Q2_K, q2_k)                                                                                                  \
    MACRO(Q3_K, q3_k)                                                                                                  \
    MACRO(Q4_K, q4_k)                                                                                                  \
    MACRO(Q5_K, q5_k)                                                                                                  \
    MACRO(Q6_K, q6_k)                                                                                                  \
    MACRO(Int8, int8)                                                                                                  \
    MACRO(Int8a, int8a)                                                                                                \
    MACRO(Int4, int4)                                                                                                  \
    MACRO(Int4a, int4a)                                                                                                \
    MACRO(Fp8, fp8)                                                                                                    \
    MACRO(Fp8E5m2, fp8_e5m2)                                                                                           \
    MACRO(Fp6, fp6)                                                                                                    \
    MACRO(Fp4, fp4)                                                                                                    \
    MACRO(Mxfp4, mxfp4)                                                                                                \
    MACRO(Nf4, nf4)                                                                                                    \
    MACRO(Iq4Nl, iq4_nl)                                                                                               \
    MACRO(Iq4Xs, iq4_xs)
