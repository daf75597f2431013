// out = x w^T + bias, strict: x [rows, k], w [n, k] in any format (w8a8: x quantized on the way in), out [rows, n]; then nothing, an activation, a sum with what
// the output holds, or (w [gate | up]) act(gate) * up into out [rows, n / 2].
//
// Where the composed ops would store, this rounds to the output's element type, so that fused equals composed.
// Bytes: the weight once per 4 rows of x, or 16, x once per 32 outputs. Weights in file order are read 32 rows apart (whole
// sectors over a few steps, not coalesced: these kernels are for bits, gemm.cu is for speed); `columns` are f32 weights
// packed so that a warp reads whole lines.
// Launch: blocks of 256 = 8 leaves x 32 outputs; grid [rows / 4 (or 16: `many`), outputs / 32], so that blocks that run side
// by side share the weight.
#include "int8.cuh"
#include "product.cuh"

// The sums of a format's products.
template <typename W>
struct Sums {
    template <u32 ROWS, typename R>
    static DEVICE void of(const Linear &p, u32 count, R x_row, u64 first, u64 limit, ProductShared<ROWS> &shared) {
        product<W>(p.x, p.x_elem, p.weight, p.grain, count, x_row, first, limit, shared);
    }
};
template <>
struct Sums<W8A8> {
    template <u32 ROWS, typename R>
    static DEVICE void of(const Linear &p, u32 count, R x_row, u64 first, u64 limit, ProductShared<ROWS> &shared) {
        product_int8(p.x, p.x_elem, p.weight, p.grain, count, x_row, first, limit, shared);
    }
};

template <typename W, u32 ROWS>
DEVICE void strict(const Linear &p) {
    constexpr u32 PARTS = (ROWS + 7) / 8;
    __shared__ ProductShared<ROWS> shared;
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
        if (r < count && n < outputs) {
            u64 at = (u64)(tile + r) * p.out.pitch + n;
            float v = y[i];
            if (p.then != THEN_NOTHING) v = rounded(v, p.out_elem);
            if (p.then == THEN_ADD) v = add(load_any(p.out.ptr, at, p.out_elem), v);
            if (p.then == THEN_ACTIVATE || gate) v = act_of(p.act, v);
            if (gate) v = mul(v, rounded(up[i], p.out_elem));
            store_any(p.out.ptr, at, p.out_elem, v);
        }
    }
}

#define ENTRY(W, NAME)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_strict_##NAME(const __grid_constant__ Linear p) {      \
        strict<W, FEW>(p);                                                                                             \
    }
EVERY_FORMAT(ENTRY)

// What no tensor-core kernel multiplies comes here for long prompts, too.
#define ENTRY_MANY(W, NAME)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_strict_many_##NAME(const __grid_constant__ Linear p) {        \
        strict<W, MANY>(p);                                                                                            \
    }
ENTRY_MANY(Plain<float>, f32)
ENTRY_MANY(Q5_0, q5_0)
ENTRY_MANY(Q5_1, q5_1)
ENTRY_MANY(Q2_K, q2_k)
ENTRY_MANY(Q3_K, q3_k)
ENTRY_MANY(Q4_K, q4_k)
ENTRY_MANY(Q5_K, q5_k)
ENTRY_MANY(Q6_K, q6_k)

// f32 weights outside of mode Reference: the same bits, and every step of a warp reads a whole line.
extern "C" __global__ void __launch_bounds__(256, 2) linear_columns_f32(const __grid_constant__ Linear p) {
    strict<Columns, FEW>(p);
}
extern "C" __global__ void __launch_bounds__(256, 2) linear_columns_many_f32(const __grid_constant__ Linear p) {
    strict<Columns, MANY>(p);
}

extern "C" __global__ void __launch_bounds__(256, 2) linear_w8a8(const __grid_constant__ Linear p) { strict<W8A8, FEW>(p); }
