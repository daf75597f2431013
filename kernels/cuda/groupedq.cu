// Experts' matmuls with quantized weights on tensor cores (which slots a block takes: grouped.cuh; formats:
// gemmq.cu; the order of sums, the packed weights and all arithmetic: gemm.cuh).
//
// x [tokens or slots, k], packed w [experts, n, k], bias [experts, n] f32, out [slots, n] in x's type or f32.
// Bytes: an expert's weight once for each of its tiles of slots, 2 k a slot for every tile of outputs, out.
//
// | entry | block | tile of outputs x slots | ring | registers at most |
// | --- | --- | --- | --- | --- |
// | n8 | 8 warps, a leaf each | 16 x 8 | 8 stages of 32 values (nibbles: 6 of 64), 66 to 90 KiB | 80 |
// | n32 | 4 warps, two leaves each | 32 x 32 | 6 stages of 32 values (nibbles: 4 of 64), 73 to 92 KiB | 208 |
// | wide | 8 warps of 32 x 32 | 128 x 64 | 4 stages of 64 values, 50 to 68 KiB | 192 |
#include "grouped.cuh"
#include "packed.cuh"

extern __shared__ __align__(128) u8 memory[];

#define EACH(T, NAME, F, SHORT8, SHORT32)                                                                              \
    GROUPED_SKINNY(groupedq, n8_##NAME, T, F, 8, 1, 1, SHORT8)                                                         \
    GROUPED_SKINNY(groupedq, n32_##NAME, T, F, 4, 2, 4, SHORT32)                                                       \
    GROUPED_DENSE(groupedq, wide_##NAME, T, F, 4, 2, 2, 4, 4)
EACH_PACKED(EACH)
