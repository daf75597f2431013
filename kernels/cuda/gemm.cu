// Linear layers with 16-bit weights on tensor cores (the order of sums, the packed weights and all
// arithmetic: gemm.cuh).
//
//   skinny   1 to 64 rows, bound by the bytes of the weight: each is read once per block row, x once per tile
//            from L2
//   dense    many rows, bound by mma.sync (Hopper takes gemmw.90a.cu, also for 9 rows and more)
//
// x [rows, k], packed w [n, k], bias [n] f32, out [rows, n] (gate: [rows, n / 2]) in x's type or f32.
// Bytes: 2 n k (padded to 16 by 64) + 2 rows k for every tile of outputs + out.
//
// | entry | block | tile of outputs x rows | ring | registers at most |
// | --- | --- | --- | --- | --- |
// | n8 | 8 warps, a leaf each | 16 x 8 | 8 stages of 32 values, 96 KiB | 64 |
// | n16 | 8 warps, a leaf each | 16 x 16 | 6 stages, 96 KiB | 64 |
// | n32 | 4 warps, two leaves each | 32 x 32 | 6 stages, 96 KiB | 128 |
// | n64 | 4 warps, two leaves each | 32 x 64 | 4 stages, 96 KiB | 224 |
// | small | 4 warps of 32 x 32 | 64 x 64 | 4 stages of 64 values, 64 KiB | 136 |
// | wide | 8 warps of 64 x 32 | 128 x 128 | 3 stages of 64 values, 96 KiB | 224 |
//
// The tree of sums that ranks share keeps two more sets of sums, in 256 (small) and 512 (wide) bytes of
// each thread's own memory: 128 KiB a block of wide, written and read three times a tile, where the
// operands have 2 MiB at k = 4096. Above 170 registers one block of wide runs on an SM, with 208 as with 224.
//
// 96 KiB let a block run on every device from compute_80 on, and two on one SM of an H100: 84 to 72 KiB each
// are on their way while a stage of a skinny kernel is multiplied (an H100 wants 23 KiB per SM at least).
// `wide` reads 6 KiB of shared memory for 32 mma: at 128 bytes a clock that feeds 1365 of the 2048
// multiply-adds of an H100's SM, what mma.sync reaches.
#include "gemm_dense.cuh"
#include "gemm_skinny.cuh"

extern __shared__ __align__(128) u8 memory[];

#define EACH(T, NAME)                                                                                                  \
    SKINNY(gemm, n8_##NAME, T, Plain, 8, 1, 1, 8)                                                                      \
    SKINNY(gemm, n16_##NAME, T, Plain, 8, 1, 2, 6)                                                                     \
    SKINNY(gemm, n32_##NAME, T, Plain, 4, 2, 4, 6)                                                                     \
    SKINNY(gemm, n64_##NAME, T, Plain, 4, 2, 8, 4)                                                                     \
    DENSE(gemm, small_##NAME, T, Plain, 2, 2, 2, 4, 4)                                                                 \
    DENSE(gemm, wide_##NAME, T, Plain, 2, 4, 4, 4, 3)
EACH(bf16, bf16)
EACH(f16, f16)
