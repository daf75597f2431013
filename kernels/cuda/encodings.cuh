// Encodings of packed weights (what lies where: gemm.cuh): their scales, and their codes as operands of mma.
//
// A struct per encoding says how many bytes it has and makes the operand of 16 outputs by 32 values in
// registers; no decoded weight is ever stored. Codes are exact in both 16-bit types, small floats up to a
// power of two that their scale makes up for.
#pragma once
#include "tensor.cuh"

// ---- Scales of a group -----------------------------------------------------------------------------------

// What rows g and g + 8 of a tile (`row` 0 and 1) multiply a group's chain by, and a chain over x alone.
// BYTES: of both in a tile; `of`: of step `step`, where a group has a scale for each.

// f16: d, perhaps m.
template <bool M>
struct Halves {
    static constexpr u32 BYTES = M ? 8 : 4;
    u32 d, m;
    DEVICE void load(u32 at) {
        if constexpr (M) {
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(d), "=r"(m) : "r"(at) : "memory");
        } else {
            d = load4(at);
        }
    }
    DEVICE float of(u32 row, u32) const { return widen(f16{(u16)(d >> 16 * row)}); }
    DEVICE float offset(u32 row) const { return widen(f16{(u16)(m >> 16 * row)}); }
};

// An exponent: the upper half of a f32, whose other bits are zero.
struct Powers {
    static constexpr u32 BYTES = 4;
    u32 d;
    DEVICE void load(u32 at) { d = load4(at); }
    DEVICE float of(u32 row, u32) const { return float_of(row == 0 ? d << 16 : d & 0xffff0000u); }
};

// f32, its lower half first; STEPS of them, each of 16 values.
template <u32 STEPS>
struct Singles {
    static constexpr u32 BYTES = 8 * STEPS;
    u32 low[STEPS], high[STEPS];
    DEVICE void load(u32 at) {
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(low[i]), "=r"(high[i]) : "r"(at + 8 * i) : "memory");
        }
    }
    DEVICE float of(u32 row, u32 step) const {
        return float_of(__byte_perm(low[step], high[step], row == 0 ? 0x5410u : 0x7632u));
    }
};

// Byte `i` of v.
DEVICE float byte_of(u32 v, u32 i) { return sub(float_of(__byte_perm(v, 0x4b000000u, 0x7650u + i)), 8388608.0f); }

// K-quants of 4 and 5 bits: f16 d and e, bytes s and t; a value is (d s) q - (e t).
struct Parts {
    static constexpr u32 BYTES = 12;
    u32 d, e, small;
    DEVICE void load(u32 at) { d = load4(at), e = load4(at + 4), small = load4(at + 8); }
    DEVICE float of(u32 row, u32) const { return mul(widen(f16{(u16)(d >> 16 * row)}), byte_of(small, 2 * row)); }
    DEVICE float offset(u32 row) const { return -mul(widen(f16{(u16)(e >> 16 * row)}), byte_of(small, 2 * row + 1)); }
};

// Those of 6 bits: f16 d, and for each step a byte s, a whole number from -128 on.
struct SignedParts {
    static constexpr u32 BYTES = 8;
    u32 d, small;
    DEVICE void load(u32 at) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(d), "=r"(small) : "r"(at) : "memory");
    }
    DEVICE float of(u32 row, u32 step) const {
        return mul(widen(f16{(u16)(d >> 16 * row)}), sub(byte_of(small ^ 0x80808080u, 2 * row + step), 128.0f));
    }
};

// ---- Weight encodings -------------------------------------------------------------------------------------

// HALF: bytes of 32 values of k in a tile; SCALES: bytes of a group's scales in a tile; OFFSET: whether those
// have m; STEPS: scales of 32 values; HALVES: of a ring's stage in the skinny kernel; `fragment`: A of both
// steps of a half that lies at `half`, whose group's scales lie at `scales`; POWER: what its values are too
// small by.
struct Plain {
    static constexpr u32 HALF = 1024, SCALES = 0, HALVES = 1;
    static constexpr bool OFFSET = false;
    struct Scale {};
    template <typename T>
    static DEVICE void fragment(u32 (&a)[2][4], u32 half, u32 scales, u32 lane) {
        half += lane / 8 % 2 * 512 + lane / 16 * 128 + lane % 8 * 16;
        load_matrices(a[0], half);
        load_matrices(a[1], half + 256);
    }
};

// UPPER: bytes of codes' upper bits behind the scales.
template <u32 BYTES_OF_CODES, typename S, u32 UPPER = 0>
struct Packed {
    using Scale = S;
    static constexpr u32 HALF = BYTES_OF_CODES, SCALES = 8 * S::BYTES + UPPER, HALVES = HALF == 256 ? 2 : 1;
    static constexpr u32 STEPS = 1;
    static constexpr bool OFFSET = false;
    static constexpr float SHIFT = 0.0f;
    template <typename T>
    static constexpr float POWER = 1.0f;
};
// Nibbles of a lane, 8 low and 8 high columns'.
DEVICE void load_nibbles(u32 (&v)[2], u32 half, u32 lane) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(half + lane * 8) : "memory");
}

template <bool M>
struct Bytes : Packed<512, Halves<M>> {
    static constexpr bool OFFSET = M;
    template <typename T>
    static DEVICE void fragment(u32 (&a)[2][4], u32 half, u32 scales, u32 lane) {
        Words v = load16(half + lane * 16);
#pragma unroll
        for (u32 i = 0; i < 8; i++) a[i / 4][i % 4] = Half<T>::bytes(v.w[i / 2], i % 2 * 2);
    }
};

// Codes of the encodings with an offset count from 0: d q + m = d (q - 8) + (m + 8 d).
template <bool M, typename S = Halves<M>>
struct Nibbles : Packed<256, S> {
    static constexpr bool OFFSET = M;
    static constexpr float SHIFT = 8.0f;
    template <typename T>
    static DEVICE void fragment(u32 (&a)[2][4], u32 half, u32 scales, u32 lane) {
        u32 v[2];
        load_nibbles(v, half, lane);
#pragma unroll
        for (u32 i = 0; i < 8; i++) a[i / 4][i % 4] = Half<T>::nibbles(v[i / 4] >> (i % 4 * 4));
    }
};

// Nibbles 0 and 4 of v with the bits of UPPER from `high` on top of them, less ZERO, half of all codes: first
// 128 (bf16) or 1024 (f16) more.
template <typename T, u32 UPPER, u32 ZERO>
DEVICE u32 upper_bits(u32 v, u32 high) {
    constexpr u32 MORE = same_type<T, bf16> ? 0x43004300u : 0x64006400u;
    u32 r, biased = masked_or<UPPER>(high, masked_or<0x000f000fu>(v, MORE));
    if constexpr (same_type<T, bf16>) {
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(biased), "r"(0x3f803f80u), "r"(0xc300c300u + ZERO * 0x10001u));
    } else {
        asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(biased), "r"(0x64006400u + ZERO * 0x10001u));
    }
    return r;
}

template <bool M, typename S = Halves<M>>
struct Fives : Packed<256, S, 64> {
    static constexpr bool OFFSET = M;
    static constexpr float SHIFT = 16.0f;
    template <typename T>
    static DEVICE void fragment(u32 (&a)[2][4], u32 half, u32 scales, u32 lane) {
        u32 v[2];
        u16 fifths;
        load_nibbles(v, half, lane);
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(fifths) : "r"(scales + 8 * S::BYTES + lane * 2) : "memory");
        // Bits 0 to 7 and 16 to 23.
        u32 high = __byte_perm(fifths, 0, 0x4140u);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 at = i < 4 ? high << (4 - i) : high >> (i - 4);
            a[i / 4][i % 4] = upper_bits<T, 0x00100010u, 16>(v[i / 4] >> (i % 4 * 4), at);
        }
    }
};

// A scale for each step.
struct Sixes : Packed<256, SignedParts, 128> {
    static constexpr u32 STEPS = 2;
    template <typename T>
    static DEVICE void fragment(u32 (&a)[2][4], u32 half, u32 scales, u32 lane) {
        u32 v[2], high = load4(scales + 8 * SignedParts::BYTES + lane * 4);
        load_nibbles(v, half, lane);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 at = i < 2 ? high << (4 - 2 * i) : high >> (2 * i - 4);
            a[i / 4][i % 4] = upper_bits<T, 0x00300030u, 32>(v[i / 4] >> (i % 4 * 4), at);
        }
    }
};

// Bits of floats whose exponents have fewer bits than those of T, twice: what they are times a power of two
// is what they stand for. In bf16 multiplied by it, as the products would vanish; f16's are far from that.
template <typename T, u32 POWER>
DEVICE u32 grown(u32 v) {
    if constexpr (same_type<T, f16>) return v;
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(v), "r"(POWER * 0x10001u), "r"(0x80008000u));
    return r;
}

// e4m3: its bias is 7, those of f16 and bf16 are 15 and 127.
struct E4m3 : Packed<512, Singles<1>> {
    template <typename T>
    static constexpr float POWER = same_type<T, f16> ? 0x1p8f : 1.0f;
    template <typename T>
    static DEVICE void fragment(u32 (&a)[2][4], u32 half, u32 scales, u32 lane) {
        Words v = load16(half + lane * 16);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 two = __byte_perm(v.w[i / 2], 0, 0x1404u + i % 2 * 0x2020u);
            u32 size = same_type<T, f16> ? two >> 1 & 0x3f803f80u : two >> 4 & 0x07f007f0u;
            a[i / 4][i % 4] = grown<T, 0x7b80u>(masked_or<0x80008000u>(two, size)); // 2^120
        }
    }
};

// e2m1: its bias is 1.
template <typename S, u32 N = 1>
struct E2m1 : Packed<256, S> {
    static constexpr u32 STEPS = N;
    template <typename T>
    static constexpr float POWER = same_type<T, f16> ? 0x1p14f : 1.0f;
    template <typename T>
    static DEVICE void fragment(u32 (&a)[2][4], u32 half, u32 scales, u32 lane) {
        constexpr u32 AT = same_type<T, f16> ? 9 : 6;
        u32 v[2];
        load_nibbles(v, half, lane);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 shift = i % 4 * 4, size = shift < AT ? v[i / 4] << (AT - shift) : v[i / 4] >> (shift - AT);
            u32 two = masked_or<0x80008000u>(v[i / 4] << (12 - shift), size & (0x00070007u << AT));
            a[i / 4][i % 4] = grown<T, 0x7e80u>(two); // 2^126
        }
    }
};

// What a chain over codes is multiplied by: the scale, and what codes were too small by.
template <typename T, typename F>
DEVICE float scale_of(const typename F::Scale &scale, u32 row, u32 step) {
    float d = scale.of(row, step);
    if constexpr (F::template POWER<T> != 1.0f) d = mul(d, F::template POWER<T>);
    return d;
}
