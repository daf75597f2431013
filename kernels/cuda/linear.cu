// out = x w^T + bias, strict: x [rows, k], w [n, k] in any format (quantized activations: int8.cu), out
// [rows, n]; then nothing, an activation, a sum with what the output holds, or (w [gate | up]) act(gate) * up
// into out [rows, n / 2].
//
// Bytes: the weight once per 4 rows of x, or 16, x once per 32 outputs. Weights in file order are read 32
// rows apart (whole sectors over a few steps, not coalesced: these kernels are for bits, gemm.cu is for
// speed); `columns` are f32 weights packed so that a warp reads whole lines.
// Launch: blocks of 256 = 8 leaves x 32 outputs; grid [rows / 4 (or 16: `many`), outputs / 32], so that
// blocks that run side by side share the weight.
#include "strict.cuh"

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
ENTRY_MANY(Fp8, fp8)
ENTRY_MANY(Fp8E5m2, fp8_e5m2)
ENTRY_MANY(Fp6, fp6)
ENTRY_MANY(Fp4, fp4)
ENTRY_MANY(Mxfp4, mxfp4)
ENTRY_MANY(Nf4, nf4)
ENTRY_MANY(Iq4Nl, iq4_nl)
ENTRY_MANY(Iq4Xs, iq4_xs)

// f32 weights outside of mode Reference: the same bits, and every step of a warp reads a whole line.
extern "C" __global__ void __launch_bounds__(256, 2) linear_columns_f32(const __grid_constant__ Linear p) {
    strict<Columns, FEW>(p);
}
extern "C" __global__ void __launch_bounds__(256, 2) linear_columns_many_f32(const __grid_constant__ Linear p) {
    strict<Columns, MANY>(p);
}
