// Matmuls of `w8a8`: rows of x become bytes with a scale for every 32 values, products of bytes are summed as
// integers.
//
//   sum_b  = sum over a block's 32 k of codes_x codes_w                     exact
//   leaf   = the chain  acc = madd(dx_b dw_b, sum_b, acc)  over its blocks  (the grain is a multiple of 32)
//   out    = the tree of 8 leaves + bias, and what follows, as in linear.cu
//
// Integers have no order, so tensor cores and dp4a give the same bits: those of the CPU, in every mode.
// x [rows, k], w [n, k] as codes [n, k] and, behind them, scales [n, k / 32 rounded up to 8] f16; out [rows,
// n].
//
// few    up to 15 rows. As the strict matmul: a warp is a leaf, a lane an output. A warp quantizes the block
// of x at hand
//        itself, a few shuffles next to the 32 outputs' 32 bytes. Bytes: w once per 4 rows.
// rows   quantizes rows for `dense`: a block per row. Where a norm stands before the matmul it has done that
// (norm.cu). dense  mma.sync m16n8k32, tile of 64 rows x 128 outputs (a gate: 64 of both halves), 8 warps of
// 32 x 32, a ring of 3
//        stages of 128 k: 78 KiB. A fragment of sums begins at 1.5 * 2^23 as an integer, which makes its bits
//        those of the float 1.5 * 2^23 + sum: a subtraction instead of a conversion, exact up to 2^22 (a sum
//        is at most 32 * 127 * 128). Three f32 instructions per sum of 32 products bound it: 1365 products a
//        clock of an H100's SM, as bf16 through mma.sync (gemm.cu; arithmetic, not measured). Registers: leaf
//        sums 32, waiting ones of the tree 96.
// Launch: few as linear.cu; rows [rows], 256; dense [outputs / 128 (64), rows / 64], 256.
#include "int8.cuh"
#include "strict.cuh"
#include "tensor.cuh"

extern __shared__ __align__(128) u8 memory[];

// A weight's codes and scales.
struct Bytes {
    // Scales of a row.
    static DEVICE u32 pitch(u32 cols) { return over(cols / SPAN, 8) * 8; }
    static DEVICE const u8 *codes(const WeightView &w, u64 n) { return reinterpret_cast<const u8 *>(w.ptr) + n * w.cols; }
    static DEVICE const f16 *scales(const WeightView &w, u64 n) {
        return reinterpret_cast<const f16 *>(w.ptr + (u64)w.rows * w.cols) + n * pitch(w.cols);
    }
};

// The codes of a block, four to a word, in every lane, and their scale; `v` is this lane's value.
DEVICE float shared_codes(float v, u32 (&codes)[8]) {
    u32 top = magnitude(v);
#pragma unroll
    for (u32 span = 16; span > 0; span /= 2) top = most(top, __shfl_xor_sync(0xffffffffu, top, span));
    u32 q = code_of(v, factor_of(top), top) << threadIdx.x % 4 * 8;
    q |= __shfl_xor_sync(0xffffffffu, q, 1);
    q |= __shfl_xor_sync(0xffffffffu, q, 2);
#pragma unroll
    for (u32 i = 0; i < 8; i++) codes[i] = __shfl_sync(0xffffffffu, q, 4 * i);
    return scale_of(top);
}

template <>
struct Sums<Bytes> {
    // Leaves are whole blocks, so a warp's lanes are always in step.
    template <u32 ROWS, typename R>
    static DEVICE void of(const Linear &p, u32 count, R x_row, u64 first, u64 limit, MatmulShared<ROWS> &shared) {
        u32 lane = threadIdx.x % 32, leaf = threadIdx.x / 32;
        u32 from = p.leaves.at[leaf], to = p.leaves.at[leaf + 1];
        u64 n = least(first + lane, limit - 1);
        const u8 *codes = Bytes::codes(p.weight, n);
        const f16 *scales = Bytes::scales(p.weight, n);
        float acc[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) acc[r] = p.leaves.zero(leaf);
        for (u32 k = from; k < to; k += SPAN) {
            const uint4 *block = reinterpret_cast<const uint4 *>(codes + k);
            uint4 low = block[0], high = block[1];
            u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            float dw = widen(scales[k / SPAN]);
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                if (r < count) {
                    u32 x[8];
                    float dx = shared_codes(load_any(p.x.ptr, (u64)x_row(r) * p.x.pitch + k + lane, p.x_elem), x);
                    int sum = 0;
#pragma unroll
                    for (u32 i = 0; i < 8; i++) sum = __dp4a((int)w[i], (int)x[i], sum);
                    acc[r] = madd(mul(dx, dw), (float)sum, acc[r]);
                }
            }
        }
        // What an earlier half put there has been read.
        __syncthreads();
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) shared.sums[leaf][r][lane] = acc[r];
    }
};

extern "C" __global__ void __launch_bounds__(256, 2) int8_few(const __grid_constant__ Linear p) { strict<Bytes, FEW>(p); }

struct Quantize {
    MatView x;
    Codes to;
    u32 x_elem;
    u32 reserved;
};

extern "C" __global__ void __launch_bounds__(256, 4) int8_rows(const __grid_constant__ Quantize p) {
    begin();
    u32 row = blockIdx.x, cols = p.x.cols;
    for (u32 c = threadIdx.x * 4; c < cols; c += 256 * 4) {
        float v[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) v[i] = load_any(p.x.ptr, row * p.x.pitch + c + i, p.x_elem);
        quantize(p.to, cols, row, c, v);
    }
    quantize_end(p.to, cols, row, threadIdx.x);
}

// x's values are not read: its codes are.
struct Dense {
    Linear linear;
    Codes x;
};

// 8 bytes.
DEVICE void copy8(u32 to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

// c = a b, as integers, each sum with the bits of the float ZERO + sum.
constexpr u32 ZERO_BITS = 0x4b400000u;
constexpr float ZERO = 12582912.0f;
DEVICE void mma_bytes(u32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%10, %10, %10, %10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(ZERO_BITS));
}

constexpr u32 UNIT = 128, UNIT_BLOCKS = UNIT / SPAN, STAGES = 3;
constexpr u32 TILE_ROWS = 64, TILE_N = 128, MT = 2, NT = 4;
// A stage: codes of x and of w in rows of 128 bytes, pieces of 16 at their number xor the row's; scales.
constexpr u32 X_AT = 0, W_AT = X_AT + TILE_ROWS * UNIT, DX_AT = W_AT + TILE_N * UNIT, DW_AT = DX_AT + TILE_ROWS * 16;
constexpr u32 STAGE = DW_AT + TILE_N * 8;
constexpr u32 BOARD_PITCH = TILE_N + 4;
static_assert(UNIT_BLOCKS == SCALES, "a unit's scales of x are a piece");
static_assert(TILE_ROWS * BOARD_PITCH * 4 <= STAGES * STAGE, "the board lies where the ring was");

// Sums of a warp's 32 x 32 outputs: of the leaf at hand, and those that wait in the tree.
struct Tree {
    float leaf[MT][NT][4], pair[MT][NT][4], left[MT][NT][4], right[MT][NT][4];

    template <typename F>
    DEVICE void each(F f) {
#pragma unroll
        for (u32 e = 0; e < MT * NT * 4; e++) f(e / 4 / NT, e / 4 % NT, e % 4);
    }
    DEVICE void clear() {
        each([this](u32 m, u32 n, u32 i) { leaf[m][n][i] = 0.0f; });
    }
    // Leaf `number` has ended. After the last, `left` is the sum of all.
    DEVICE void end(u32 number, const Leaves &leaves) {
        if (!(leaves.own >> number & 1)) each([this](u32 m, u32 n, u32 i) { leaf[m][n][i] = -0.0f; });
        if (number % 2 == 0) {
            each([this](u32 m, u32 n, u32 i) { pair[m][n][i] = leaf[m][n][i]; });
        } else {
            each([this](u32 m, u32 n, u32 i) { pair[m][n][i] = add(pair[m][n][i], leaf[m][n][i]); });
            if (number == 1) {
                each([this](u32 m, u32 n, u32 i) { left[m][n][i] = pair[m][n][i]; });
            } else if (number == 3) {
                each([this](u32 m, u32 n, u32 i) { left[m][n][i] = add(left[m][n][i], pair[m][n][i]); });
            } else if (number == 5) {
                each([this](u32 m, u32 n, u32 i) { right[m][n][i] = pair[m][n][i]; });
            } else {
                each([this](u32 m, u32 n, u32 i) {
                    left[m][n][i] = add(left[m][n][i], add(right[m][n][i], pair[m][n][i]));
                });
            }
        }
        clear();
    }
};

// This thread's part of the copies of a unit. Rows and outputs that do not exist are others' once more.
struct Copies {
    const u8 *x[2], *w[4], *dx, *dw;
    u32 x_to[2], w_to[4];
    // Columns that are still to come.
    u32 x_left, w_left;

    DEVICE Copies(const Dense &p, u32 row, u32 first, u32 half) {
        u32 cols = p.linear.weight.cols, outputs = p.linear.out.cols, last = p.linear.x.rows - 1;
        u32 piece = threadIdx.x % 8;
        auto output = [=](u32 j) { return (u64)(j < half ? 0 : outputs) + least(first + j % half, outputs - 1); };
        auto place = [=](u32 r) { return r * UNIT + (piece ^ r % 8) * 16; };
        x_left = w_left = cols;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 r = threadIdx.x / 8 + i * 32;
            x[i] = reinterpret_cast<const u8 *>(p.x.ptr) + (u64)least(row + r, last) * cols + piece * 16;
            x_to[i] = X_AT + place(r);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 j = threadIdx.x / 8 + i * 32;
            w[i] = Bytes::codes(p.linear.weight, output(j)) + piece * 16;
            w_to[i] = W_AT + place(j);
        }
        dx = reinterpret_cast<const u8 *>(p.x.scales) + (u64)least(row + threadIdx.x % TILE_ROWS, last) * Codes::pitch(cols) * 4;
        dw = reinterpret_cast<const u8 *>(Bytes::scales(p.linear.weight, output(threadIdx.x % TILE_N)));
    }

    DEVICE void weights(u32 stage) {
        bool there = threadIdx.x % 8 * 16 < w_left;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (there) copy16(stage + w_to[i], w[i]);
            w[i] += UNIT;
        }
        if (threadIdx.x < TILE_N) copy8(stage + DW_AT + threadIdx.x * 8, dw);
        dw += UNIT_BLOCKS * 2;
        w_left = w_left > UNIT ? w_left - UNIT : 0;
    }
    DEVICE void rows(u32 stage) {
        bool there = threadIdx.x % 8 * 16 < x_left;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (there) copy16(stage + x_to[i], x[i]);
            x[i] += UNIT;
        }
        if (threadIdx.x >= 256 - TILE_ROWS) copy16(stage + DX_AT + threadIdx.x % TILE_ROWS * 16, dx);
        dx += UNIT_BLOCKS * 4;
        x_left = x_left > UNIT ? x_left - UNIT : 0;
    }
};

extern "C" __global__ void __launch_bounds__(256) int8_dense(const __grid_constant__ Dense p) {
    u32 half = p.linear.then == THEN_GATE ? TILE_N / 2 : TILE_N;
    u32 row = blockIdx.y * TILE_ROWS, first = blockIdx.x * half;
    u32 cols = p.linear.weight.cols, units = over(cols, UNIT), blocks = cols / SPAN;
    u32 ring = shared_address(memory);
    Copies copies(p, row, first, half);
#pragma unroll 1
    for (u32 i = 0; i < STAGES - 1 && i < units; i++) copies.weights(ring + i * STAGE);
    wait_for_dependencies();
    launch_dependents();
#pragma unroll 1
    for (u32 i = 0; i < STAGES - 1; i++) {
        if (i < units) copies.rows(ring + i * STAGE);
        copy_commit();
    }
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    u32 wm = threadIdx.x / 32 % 2 * 32, wn = threadIdx.x / 64 * 32;
    // Rows of this lane's addresses of matrices, and the half of a block.
    u32 a_row = (wm + lane % 16) * UNIT, a_half = lane / 16;
    u32 b_row = (wn + lane / 16 * 8 + lane % 8) * UNIT, b_half = lane / 8 % 2;
    Tree tree;
    tree.clear();
    u32 leaf = 0, leaf_end = p.linear.leaves.at[1] / SPAN, done = 0;
    auto leaves = [&] {
        while (leaf < LEAVES && done == leaf_end) {
            tree.end(leaf++, p.linear.leaves);
            leaf_end = p.linear.leaves.at[least(leaf + 1, LEAVES)] / SPAN;
        }
    };
    leaves();
#pragma unroll 1
    for (u32 unit = 0; unit < units; unit++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (unit + STAGES - 1 < units) {
            u32 to = ring + (unit + STAGES - 1) % STAGES * STAGE;
            copies.weights(to);
            copies.rows(to);
        }
        copy_commit();
        u32 at = unit % STAGES * STAGE;
        u32 here = least(blocks - done, UNIT_BLOCKS);
#pragma unroll 1
        for (u32 b = 0; b < here; b++) {
            u32 x[MT][4], w[NT / 2][4];
            float dx[MT][2], dw[NT][2];
#pragma unroll
            for (u32 m = 0; m < MT; m++) {
                load_matrices(x[m], ring + at + X_AT + a_row + m * 16 * UNIT + ((2 * b + a_half) ^ lane % 8) * 16);
#pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    dx[m][h] = float_of(load4(ring + at + DX_AT + (wm + m * 16 + h * 8 + g) * 16 + b * 4));
                }
            }
#pragma unroll
            for (u32 n = 0; n < NT / 2; n++) {
                load_matrices(w[n], ring + at + W_AT + b_row + n * 16 * UNIT + ((2 * b + b_half) ^ lane % 8) * 16);
            }
#pragma unroll
            for (u32 n = 0; n < NT; n++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    dw[n][e] = widen(*reinterpret_cast<const f16 *>(memory + at + DW_AT + (wn + n * 8 + 2 * t + e) * 8 + b * 2));
                }
            }
#pragma unroll
            for (u32 m = 0; m < MT; m++) {
#pragma unroll
                for (u32 n = 0; n < NT; n++) {
                    u32 sums[4];
                    mma_bytes(sums, x[m], w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        float &acc = tree.leaf[m][n][i];
                        acc = madd(mul(dx[m][i / 2], dw[n][i % 2]), sub(float_of(sums[i]), ZERO), acc);
                    }
                }
            }
            done++;
            leaves();
        }
    }
    // Groups still in flight are empty: the last turn waited for the last tile.
    __syncthreads();
    float *board = reinterpret_cast<float *>(memory);
    tree.each([&](u32 m, u32 n, u32 i) {
        board[(wm + m * 16 + i / 2 * 8 + g) * BOARD_PITCH + wn + n * 8 + 2 * t + i % 2] = tree.left[m][n][i];
    });
    __syncthreads();
    const float *bias = reinterpret_cast<const float *>(p.linear.bias);
    u32 outputs = p.linear.out.cols, count = least(p.linear.x.rows - row, TILE_ROWS);
    for (u32 i = threadIdx.x; i < count * half; i += 256) {
        u32 r = i / half, n = i % half;
        if (first + n >= outputs) continue;
        float sum = board[r * BOARD_PITCH + n], up = half < TILE_N ? board[r * BOARD_PITCH + half + n] : 0.0f;
        if (bias) {
            sum = add(sum, bias[first + n]);
            if (half < TILE_N) up = add(up, bias[outputs + first + n]);
        }
        put(p.linear, row + r, first + n, sum, up);
    }
}
