// Matmuls with packed weights on tensor cores: out = x w^T and what follows it. No entry is here: gemm.cu has
// those for plain weights, gemmq.cu for quantized ones. Mode `Invariant`.
//
//   sum[r, n]  = l0 + l1 + .. + l7, from +0, one after the other: the leaves of K
//   leaf       = a chain of mma.sync m16n8k16 from +0, 16 values of k each, ascending
//   quantized  : a chain ends with its group (or leaf) and joins the leaf as  leaf = d * chain + leaf,
//                with an offset  leaf = m * (chain over x alone) + that
//   y          = round(sum + bias), then one of: y; round(act(y)); round(out + y); round(act(y_gate) * y_up)
//
// The order depends on K and on where the leaves begin (`Gemm::leaves`, made by the host from K alone): every
// kernel here, whatever its tiles, gives a row the same bits, alone or in any batch. d and m never touch the
// weight itself: |q| <= 128 is exact in both 16-bit types and every product is exact in f32, so a sum is as
// good as one over decoded weights. So are small floats, which are decoded into either type or into a power of
// two of it that their scale makes up for.
//
// **Weights** come packed by `kernels/src/pack.rs`. A *tile* is 16 outputs, a *unit* 64 values of k, zeros
// beyond n and k. The bytes of (tile, unit) stand at (tile * units + unit) * unit bytes, in two *halves* of
// 32 values:
//   plain      1024 bytes a half: [rows 0-7, rows 8-15][8 values of k, 4 times][row][8 values]: 8x8 matrices
//   bytes       512 bytes a half: [lane][16 codes]         code + 128
//   nibbles     256 bytes a half: [lane][16 codes]         code + 8, or as the format numbers them
// so that a warp's loads (ldmatrix, 16 bytes a lane) are one run. Codes stand where mma's A operand wants
// them: lane (g, t) has k = 16s + 2t + {0, 1} of step s as the low and 8 more as the high columns. Which
// products share an mma is the same in every kernel here, and that is all the order needs.
// Scales: [tile][group][g] of 16-bit numbers of row g and of row g + 8, by turns: what a format has of them is
// said at `Halves` and those after it. Groups are 32 values or a whole number of units. Codes of five and six
// bits are nibbles, and their upper bits stand behind their group's scales: [lane] of 8 low columns' bits, 8
// high columns' bits, 2 or 4 bytes.
// A tile of a *gated* weight holds 8 gate rows and the 8 up rows that go with them.
//
// x is read 16 bytes at a time where its rows allow it, element by element otherwise; what lies beyond k
// counts as zero. In shared memory it lies in eights of rows by 32 values, piece c (8 values) of row r at 64
// r + 16 (c ^ r / 2 % 4): each ldmatrix, which gives B of two steps, takes every bank once.
#pragma once
#include "tensor.cuh"

// As `params::gemm::Gemm`.
struct Gemm {
    MatView x;
    MatView out;
    u64 weight;
    u64 scales;
    u64 bias;
    // Rows of the weight, its inputs, units of 64 of them.
    u32 n;
    u32 k;
    u32 units;
    // Units of a group; 0: groups of 32.
    u32 group_units;
    // Groups of a tile.
    u32 groups;
    u32 encoding;
    u32 elem;
    u32 elem_out;
    // Whether tiles hold gate and up rows.
    u32 gated;
    u32 then;
    u32 act;
    // Which leaves are this rank's, a bit each; those of others begin at -0, the identity of addition.
    u32 own;
    // Whether leaves are added by the balanced tree, as ranks share it; else from the first to the last.
    u32 tree;
    // First unit of every leaf, and the end.
    u32 leaves[9];

    DEVICE float zero(u32 leaf) const { return own >> leaf & 1 ? 0.0f : -0.0f; }
};

// What a block multiplies with and which rows: one weight, rows from `first` on as they lie. grouped.cuh has
// another, of experts.
struct OneWeight {
    // Whether rows are looked up in a list.
    static constexpr bool LISTED = false;
    const Gemm &p;
    u32 first;

    // Row r of the block: whether there is one, the row of x that it reads, whether it is written, and where.
    DEVICE bool has(u32 r) const { return first + r < p.x.rows; }
    DEVICE u32 from(u32 r) const { return first + r; }
    DEVICE bool writes(u32 r) const { return has(r); }
    DEVICE u32 to(u32 r) const { return first + r; }
    // Rows from row r of the block on.
    DEVICE u32 left(u32 r) const { return has(r) ? p.x.rows - (first + r) : 0; }
    template <typename F>
    DEVICE u64 weight() const { return p.weight; }
    template <typename F>
    DEVICE u64 scales() const { return p.scales; }
    DEVICE u64 bias() const { return p.bias; }
};

constexpr u32 THEN_NOTHING = 0;
constexpr u32 THEN_ACT = 1;
constexpr u32 THEN_ADD = 2;
constexpr u32 THEN_GATE = 3;

// ---- Scales of a group -----------------------------------------------------------------------------------

// What rows g and g + 8 of a tile (`row` 0 and 1) multiply a group's chain by, and a chain over x alone. BYTES:
// of both in a tile; `of`: of step `step`, where a group has a scale for each.

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

// Those of 3 and 6 bits, and IQ4_XS: f16 d, and for each step a byte s, a whole number from -128 on.
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
// have m; STEPS: scales of 32 values; HALVES: of a ring's stage in the skinny kernel; POWER: what a code is
// multiplied by in `fragment`, A of both steps of a half that lies at `half`, whose group's scales lie at
// `scales`.
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
template <bool M, typename S = Halves<M>, u32 N = 1>
struct Nibbles : Packed<256, S> {
    static constexpr u32 STEPS = N;
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

// Places in IQ4's table of whole numbers from -127 to 113.
template <typename S>
struct Places : Packed<256, S> {
    // The values of four nibbles, 128 more.
    static DEVICE u32 four(u32 v) {
        u32 lower = __byte_perm(0x3f2d1801u, 0x766a5d4fu, v), upper = __byte_perm(0xa6998d81u, 0xf1d9c5b5u, v);
        return __byte_perm(lower, upper, masked_or<0x4444u>(v >> 1, 0x3210u));
    }
    template <typename T>
    static DEVICE void fragment(u32 (&a)[2][4], u32 half, u32 scales, u32 lane) {
        u32 v[2];
        load_nibbles(v, half, lane);
#pragma unroll
        for (u32 s = 0; s < 2; s++) {
            u32 low = four(v[s]), high = four(v[s] >> 16);
#pragma unroll
            for (u32 i = 0; i < 4; i += 2) {
                u32 pairs = __byte_perm(low, high, i == 0 ? 0x5140u : 0x7362u);
                a[s][i] = Half<T>::bytes(pairs, 0);
                a[s][i + 1] = Half<T>::bytes(pairs, 2);
            }
        }
    }
};

// Nibbles 0 and 4 of v with the bits of UPPER from `high` on top of them, less ZERO, half of all codes: first 128 (bf16) or 1024 (f16) more.
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

// Where piece i of an eight of rows of x lies: its row is i / 4, its 8 values are i % 4.
DEVICE u32 place_of_piece(u32 i) { return i / 4 * 64 + (i % 4 ^ i / 8 % 4) * 16; }

// What a chain over codes is multiplied by: the scale, and what codes were too small by.
template <typename T, typename F>
DEVICE float scale_of(const typename F::Scale &scale, u32 row, u32 step) {
    float d = scale.of(row, step);
    if constexpr (F::template POWER<T> != 1.0f) d = mul(d, F::template POWER<T>);
    return d;
}

// ---- A warp's sums ----------------------------------------------------------------------------------------

// MT tiles by 8 NT rows.
template <typename T, typename F, u32 MT, u32 NT>
struct Sums {
    static constexpr bool SCALED = F::SCALES > 0, OFFSET = F::OFFSET;
    // The leaf, and in quantized encodings the group's chain and that of x alone.
    float leaf[MT][NT][4];
    float chain[SCALED ? MT : 1][SCALED ? NT : 1][4];
    float ones[OFFSET ? NT : 1][4];
    typename F::Scale scale[MT];

    DEVICE void clear_leaf(float zero) {
#pragma unroll
        for (u32 i = 0; i < MT; i++) {
#pragma unroll
            for (u32 j = 0; j < NT; j++) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) leaf[i][j][e] = zero;
            }
        }
    }
    DEVICE void clear_chain() {
        if constexpr (SCALED) {
#pragma unroll
            for (u32 j = 0; j < NT; j++) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    if constexpr (OFFSET) ones[j][e] = 0.0f;
#pragma unroll
                    for (u32 i = 0; i < MT; i++) chain[i][j][e] = 0.0f;
                }
            }
        }
    }

    // 32 values of k: weights of tile i at `w + i * w_pitch`, their group's scales at `s_at + i * s_pitch`,
    // the first eight of rows of x at `x`.
    DEVICE void half(u32 w, u32 w_pitch, u32 s_at, u32 s_pitch, u32 x, u32 lane) {
        u32 b[NT][4];
        x += place_of_piece(lane % 8 * 4 + lane / 8);
#pragma unroll
        for (u32 j = 0; j < NT; j++) load_matrices(b[j], x + j * 512);
#pragma unroll
        for (u32 i = 0; i < MT; i++) {
            u32 a[2][4];
            F::template fragment<T>(a, w + i * w_pitch, s_at + i * s_pitch, lane);
#pragma unroll
            for (u32 s = 0; s < 2; s++) {
#pragma unroll
                for (u32 j = 0; j < NT; j++) {
                    Half<T>::mma(SCALED ? chain[SCALED ? i : 0][SCALED ? j : 0] : leaf[i][j], a[s], b[j][2 * s],
                                 b[j][2 * s + 1]);
                }
                if constexpr (SCALED) {
                    if (s + 1 < F::STEPS) join_tile(i, s);
                }
            }
        }
        if constexpr (OFFSET) {
            const u32 one[4] = {Half<T>::ONES, Half<T>::ONES, Half<T>::ONES, Half<T>::ONES};
#pragma unroll
            for (u32 s = 0; s < 2; s++) {
#pragma unroll
                for (u32 j = 0; j < NT; j++) Half<T>::mma(ones[j], one, b[j][2 * s], b[j][2 * s + 1]);
            }
        }
    }

    // Scales of a group: those of tile i at `s + i * pitch`.
    DEVICE void scales(u32 s, u32 pitch, u32 lane) {
        if constexpr (SCALED) {
#pragma unroll
            for (u32 i = 0; i < MT; i++) scale[i].load(s + i * pitch + lane / 4 * F::Scale::BYTES);
        }
    }

    // The chain of tile i joins the leaf, by the scale of a step.
    DEVICE void join_tile(u32 i, u32 step) {
        float by[2] = {scale_of<T, F>(scale[i], 0, step), scale_of<T, F>(scale[i], 1, step)};
#pragma unroll
        for (u32 j = 0; j < NT; j++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                leaf[i][j][e] = madd(by[e / 2], chain[i][j][e], leaf[i][j][e]);
                chain[i][j][e] = 0.0f;
            }
        }
        if constexpr (OFFSET) {
            float offset[2] = {madd(F::SHIFT, by[0], scale[i].offset(0)), madd(F::SHIFT, by[1], scale[i].offset(1))};
#pragma unroll
            for (u32 j = 0; j < NT; j++) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) leaf[i][j][e] = madd(offset[e / 2], ones[j][e], leaf[i][j][e]);
            }
        }
    }

    // The group's chain joins the leaf.
    DEVICE void join() {
        if constexpr (SCALED) {
#pragma unroll
            for (u32 i = 0; i < MT; i++) join_tile(i, F::STEPS - 1);
            if constexpr (OFFSET) {
#pragma unroll
                for (u32 j = 0; j < NT; j++) ones[j][0] = ones[j][1] = ones[j][2] = ones[j][3] = 0.0f;
            }
        }
    }
};

// ---- Copies -----------------------------------------------------------------------------------------------

// 8 values of x from (row r of the block, k) to shared memory where rows do not begin at multiples of 16
// bytes; beyond the matrix zeros.
template <typename T, typename R>
DEVICE void copy_single(const Gemm &p, const R &rows, u32 r, u32 k, u32 to) {
    u32 count = rows.has(r) && k < p.k ? least(p.k - k, 8u) : 0;
    const T *from = row_of<T>(p.x, count > 0 ? rows.from(r) : 0) + k;
#pragma unroll 1
    for (u32 i = 0; i < 8; i++) {
        u16 v = i < count ? from[i].raw : 0;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + i * 2), "h"(v) : "memory");
    }
}

// Whether x can be read 16 bytes at a time: then 8 values from a multiple of 8 exist, or none does.
template <typename T>
DEVICE bool wide_rows(const Gemm &p) {
    return aligned<T>(p.x) && p.k % 8 == 0;
}

// ---- After the sum ----------------------------------------------------------------------------------------

// Sums in shared memory, for what comes after them: [part][row][feature], `PITCH` floats a row. Parts are
// leaves, in order.
template <u32 TILES>
struct Board {
    static constexpr u32 PITCH = 16 * TILES + 4;
    // A warp's sums of tiles from `tile` and rows from `row` on.
    template <u32 MT, u32 NT>
    static DEVICE void put(float *board, u32 part, u32 rows, u32 tile, u32 row, const float (&v)[MT][NT][4], u32 lane) {
        float *at = board + ((u64)part * rows + row + lane % 4 * 2) * PITCH + tile * 16 + lane / 4;
#pragma unroll
        for (u32 i = 0; i < MT; i++) {
#pragma unroll
            for (u32 j = 0; j < NT; j++) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) at[(j * 8 + e % 2) * PITCH + i * 16 + e / 2 * 8] = v[i][j][e];
            }
        }
    }
};

// One copy of all activations in a module: inlined, they would be half of every kernel's text.
static __device__ __noinline__ float act_one(u32 act, float x) { return act_of(act, x); }

// Four at a time: one value's chain of operations would leave most of a multiprocessor idle.
struct Four {
    float v[4];
};
template <typename F>
DEVICE Four each(Four x, F f) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) x.v[i] = f(x.v[i]);
    return x;
}
static __device__ __noinline__ Four act_four(u32 act, Four x) {
    switch (act) {
    case ACT_RELU: return each(x, relu_of);
    case ACT_SILU: return each(x, silu_of);
    case ACT_GELU: return each(x, gelu_of);
    case ACT_GELU_TANH: return each(x, gelu_tanh_of);
    case ACT_QUICK_GELU: return each(x, quick_gelu_of);
    case ACT_TANH: return each(x, tanh_of);
    case ACT_RELU_SQUARED: return each(x, relu_squared_of);
    case ACT_SIGMOID: return each(x, sigmoid_of);
    case ACT_SOFTPLUS: return each(x, softplus_of);
    default: return x;
    }
}
template <u32 V>
DEVICE void activate(u32 act, float (&v)[V]) {
    if constexpr (V % 4 == 0) {
#pragma unroll
        for (u32 i = 0; i < V; i += 4) {
            Four y = act_four(act, Four{{v[i], v[i + 1], v[i + 2], v[i + 3]}});
#pragma unroll
            for (u32 j = 0; j < 4; j++) v[i + j] = y.v[j];
        }
    } else {
        walk(v, [&](float x) { return act_one(act, x); });
    }
}

// Where an output of a tile stands: its column as the bias counts them, in a gated weight's half; how many
// there are from it on.
DEVICE u32 column_of(const Gemm &p, u32 tile, u32 within) { return p.gated ? tile * 8 + within % 8 : tile * 16 + within; }
DEVICE u32 columns_from(const Gemm &p, u32 col) {
    u32 limit = p.gated ? p.n / 2 : p.n;
    return col < limit ? limit - col : 0;
}
DEVICE u32 output_at(const Gemm &p, u32 col, u32 within) { return col + (p.gated && within >= 8 ? p.n / 2 : 0); }

// V neighbouring outputs of a row, from their sums to memory. `read`: what is added to has been read,
// `words`.
template <typename T, u32 V>
DEVICE void finish(
    const Gemm &p, u64 biases, u32 tile, u32 within, u32 row, const float *sums, u32 part_pitch, u32 parts, bool wide,
    bool read, uint4 words
) {
    bool gate = p.then == THEN_GATE;
    u32 inner = p.n / 2;
    u32 col = column_of(p, tile, within), count = least(columns_from(p, col), V);
    if (count == 0) return;
    float v[V];
    float up[V];
    auto gather = [&](float (&v)[V], const float *from, u32 bias) {
        if (parts == 1) {
#pragma unroll
            for (u32 i = 0; i < V; i++) v[i] = from[i];
        } else if (p.tree) {
#pragma unroll
            for (u32 i = 0; i < V; i++) {
                float pair[4];
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    pair[j] = add(from[2 * j * part_pitch + i], from[(2 * j + 1) * part_pitch + i]);
                }
                v[i] = add(add(pair[0], pair[1]), add(pair[2], pair[3]));
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < V; i++) v[i] = 0.0f;
            for (u32 part = 0; part < parts; part++) {
#pragma unroll
                for (u32 i = 0; i < V; i++) v[i] = add(v[i], from[part * part_pitch + i]);
            }
        }
        if (biases != 0) {
            const float *b = reinterpret_cast<const float *>(biases) + bias;
#pragma unroll
            for (u32 i = 0; i < V; i++) v[i] = add(v[i], i < count ? b[i] : 0.0f);
        }
        if (p.then != THEN_NOTHING) {
#pragma unroll
            for (u32 i = 0; i < V; i++) v[i] = rounded(v[i], p.elem_out);
        }
    };
    u32 at = output_at(p, col, within);
    gather(v, sums, at);
    if (gate) gather(up, sums + 8, inner + col);
    if (p.then == THEN_ACT || gate) {
        activate(p.act, v);
    }
    u64 first = (u64)row * p.out.pitch + at;
    bool whole = wide && count == V;
    if (p.elem_out == ELEM_F32) {
        float *to = reinterpret_cast<float *>(p.out.ptr) + first;
        if (gate) {
#pragma unroll
            for (u32 i = 0; i < V; i++) v[i] = mul(v[i], up[i]);
        } else if (p.then == THEN_ADD) {
#pragma unroll
            for (u32 i = 0; i < V; i++) v[i] = add(i < count ? to[i] : 0.0f, v[i]);
        }
#pragma unroll
        for (u32 i = 0; i < V; i++) {
            if (i < count) to[i] = v[i];
        }
        return;
    }
    T *to = reinterpret_cast<T *>(p.out.ptr) + first;
    if (gate) {
#pragma unroll
        for (u32 i = 0; i < V; i++) v[i] = mul(v[i], up[i]);
    } else if (p.then == THEN_ADD) {
        float old[V];
        if constexpr (V == 8) {
            if (read) {
                widen_words<T>(words, old, 0);
            } else {
                load_part(to, 0, count, whole, old);
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < V; i++) old[i] = i < count ? widen(to[i]) : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < V; i++) v[i] = add(old[i], v[i]);
    }
    if constexpr (V == 8) {
        store_part(to, 0, count, whole, v);
    } else {
#pragma unroll
        for (u32 i = 0; i < V; i++) {
            if (i < count) to[i] = narrow<T>(v[i]);
        }
    }
}

// All outputs of a block: tiles from `tile` on.
template <typename T, u32 V, u32 TILES, u32 ROWS, typename R>
DEVICE void finish_all(const Gemm &p, const R &rows, u32 tile, const float *board, u32 parts, u32 threads) {
    constexpr u32 PITCH = Board<TILES>::PITCH;
    // Pieces of a thread whose old values are on their way at one time.
    constexpr u32 SIDE = V == 8 ? 4 : 1;
    bool gate = p.then == THEN_GATE;
    // With a gate the second half of a tile goes with the first.
    u32 pieces = (gate ? 8 : 16) * TILES / V;
    bool wide = V == 8 && ((p.out.ptr | p.out.pitch * 2) & 15) == 0 && (p.gated ? p.n % 16 == 0 : true);
    bool reads = wide && p.then == THEN_ADD && p.elem_out != ELEM_F32;
    // The row and the first feature of a piece.
    auto place = [&](u32 i, u32 &r, u32 &f) {
        r = i / pieces, f = i % pieces * V;
        if (gate) f = f / 8 * 16 + f % 8;
        return i < pieces * ROWS && rows.writes(r);
    };
    for (u32 i = threadIdx.x; i < pieces * ROWS; i += threads * SIDE) {
        uint4 old[SIDE] = {};
        u32 read = 0, r, f;
        if constexpr (V == 8) {
#pragma unroll
            for (u32 j = 0; j < SIDE; j++) {
                if (!reads || !place(i + j * threads, r, f)) continue;
                u32 col = column_of(p, tile + f / 16, f % 16);
                if (columns_from(p, col) < V) continue;
                u64 at = (u64)rows.to(r) * p.out.pitch + output_at(p, col, f % 16);
                old[j] = *reinterpret_cast<const uint4 *>(reinterpret_cast<const T *>(p.out.ptr) + at);
                read |= 1u << j;
            }
        }
        // One copy of what follows; the old values walk past in registers.
#pragma unroll 1
        for (u32 j = 0; j < SIDE; j++, read >>= 1) {
            if (place(i + j * threads, r, f)) {
                const float *sums = board + r * PITCH + f;
                finish<T, V>(p, rows.bias(), tile + f / 16, f % 16, rows.to(r), sums, ROWS * PITCH, parts, wide, read & 1, old[0]);
            }
#pragma unroll
            for (u32 e = 0; e + 1 < SIDE; e++) old[e] = old[e + 1];
        }
    }
}
