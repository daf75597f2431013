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
// good as one over decoded weights. So it is of small floats, up to a power of two that their scale makes up
// for. With an offset it is as good as two sums, over d (q - 8) and over m + 8 d: where these cancel, what is
// left has the error of both.
//
// **Weights** come packed by `kernels/src/pack`. A *tile* is 16 outputs, a *unit* 64 values of k, zeros
// beyond n and k. The bytes of (tile, unit) stand at (tile * units + unit) * unit bytes, in two *halves* of
// 32 values:
//   plain      1024 bytes a half: [rows 0-7, rows 8-15][8 values of k, 4 times][row][8 values]: 8x8 matrices
//   bytes       512 bytes a half: [lane][16 codes]         code + 128
//   nibbles     256 bytes a half: [lane][16 codes]         code + 8, or as the format numbers them
// so that a warp's loads (ldmatrix, 16 bytes a lane) are one run. Codes stand where mma's A operand wants
// them: lane (g, t) has k = 16s + 2t + {0, 1} of step s as the low and 8 more as the high columns. Which
// products share an mma is the same in every kernel here, and that is all the order needs.
// Scales: [tile][group][g] of 16-bit numbers of row g and of row g + 8, by turns: what a format has of them
// is said in encodings.cuh. Groups are 32 values or a whole number of units. Codes of five and six bits are
// nibbles, and their upper bits stand behind their group's scales: [lane] of 8 low columns' bits, 8 high
// columns' bits, 2 or 4 bytes.
// A tile of a *gated* weight holds 8 gate rows and the 8 up rows that go with them.
//
// x is read 16 bytes at a time where its rows allow it, element by element otherwise; what lies beyond k
// counts as zero. In shared memory it lies in eights of rows by 32 values, piece c (8 values) of row r at 64
// r + 16 (c ^ r / 2 % 4): each ldmatrix, which gives B of two steps, takes every bank once.
#pragma once
#include "encodings.cuh"

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

// Where piece i of an eight of rows of x lies: its row is i / 4, its 8 values are i % 4.
DEVICE u32 place_of_piece(u32 i) { return i / 4 * 64 + (i % 4 ^ i / 8 % 4) * 16; }

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
