// Linear layers with quantized weights on tensor cores, decoded in registers (the order of sums, the packed
// weights, how scales and offsets join in and all arithmetic: gemm.cuh).
//
//   int8    d q            Q8_0, int8         bytes of 1 + 2 / group per weight
//   int8a   d q + m        int8a              1 + 4 / group
//   int4    d (q - 8)      Q4_0, int4         1/2 + 2 / group
//   int4a   d q + m        Q4_1, int4a        1/2 + 4 / group
//   int5    d (q - 16)     Q5_0               11/16
//   int5a   d q + m        Q5_1               3/4
//   fp8     d e4m3         fp8                1 + 4 / group
//   fp4     d e2m1         fp4, groups of 16  3/4
//   mxfp4   d e2m1         mxfp4, d = 2^e     9/16; a file's 17/32
//   q4_k    (d s) q - e t  Q4_K               11/16; a file's 9/16, as d and e stand by every 32 values
//   q5_k    (d s) q - e t  Q5_K               13/16; 11/16
//   q6_k    (d s) (q - 32) Q6_K               7/8; 105/128
//
// x [rows, k], packed w [n, k], bias [n] f32, out [rows, n] (gate: [rows, n / 2]) in x's type or f32. Bytes:
// the weight once for each block row, 2 rows k for each 16 (n32: 32, wide: 128) outputs, out.
// Logic operations a weight: 2.5 (bytes to bf16), 1 (bytes to f16), 1.25 (nibbles), 2.4 (five and six bits),
// 2.5 (small floats to bf16), 2 (to f16).
//
// | entry | block | tile of outputs x rows | ring | registers at most |
// | --- | --- | --- | --- | --- |
// | n8 | 8 warps, a leaf each | 16 x 8 | 8 stages of 32 values (nibbles: 6 of 64), 66 to 90 KiB | 64 |
// | n32 | 4 warps, two leaves each | 32 x 32 | 6 stages of 32 values (nibbles: 4 of 64), 73 to 92 KiB | 200 |
// | wide | 8 warps of 32 x 32 | 128 x 64 | 4 stages of 64 values, 50 to 68 KiB | 184 |
#include "gemm_dense.cuh"
#include "gemm_skinny.cuh"
#include "packed.cuh"

extern __shared__ __align__(128) u8 memory[];

#define EACH(T, NAME, F, SHORT8, SHORT32)                                                                              \
    SKINNY(gemmq, n8_##NAME, T, F, 8, 1, 1, SHORT8)                                                                    \
    SKINNY(gemmq, n32_##NAME, T, F, 4, 2, 4, SHORT32)                                                                  \
    DENSE(gemmq, wide_##NAME, T, F, 4, 2, 2, 4, 4)
EACH_PACKED(EACH)
