// Experts' matmuls with 16-bit weights on tensor cores (which slots a block takes: grouped.cuh; the order of
// sums, the packed weights and all arithmetic: gemm.cuh).
//
// x [tokens or slots, k], packed w [experts, n, k], bias [experts, n] f32, out [slots, n] in x's type or f32.
// Bytes: an expert's weight once for each of its tiles of slots, 2 k a slot for every tile of outputs, out.
//
// | entry | block | tile of outputs x slots | ring | registers at most |
// | --- | --- | --- | --- | --- |
// | n8 | 8 warps, a leaf each | 16 x 8 | 8 stages of 32 values, 96 KiB | 64 |
// | n16 | 8 warps, a leaf each | 16 x 16 | 6 stages, 96 KiB | 64 |
// | n32 | 4 warps, two leaves each | 32 x 32 | 6 stages, 96 KiB | 144 |
// | small | 4 warps of 32 x 32 | 64 x 64 | 4 stages of 64 values, 64 KiB | 144 |
// | wide | 8 warps of 64 x 32 | 128 x 128 | 3 stages of 64 values, 96 KiB | 232 |
#include "grouped.cuh"

extern __shared__ __align__(128) u8 memory[];

#define EACH(T, NAME)                                                                                                  \
    GROUPED_SKINNY(grouped, n8_##NAME, T, Plain, 8, 1, 1, 8)                                                           \
    GROUPED_SKINNY(grouped, n16_##NAME, T, Plain, 8, 1, 2, 6)                                                          \
    GROUPED_SKINNY(grouped, n32_##NAME, T, Plain, 4, 2, 4, 6)                                                          \
    GROUPED_DENSE(grouped, small_##NAME, T, Plain, 2, 2, 2, 4, 4)                                                      \
    GROUPED_DENSE(grouped, wide_##NAME, T, Plain, 2, 4, 4, 4, 3)
EACH(bf16, bf16)
EACH(f16, f16)
