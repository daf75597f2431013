// Linear layers with 16-bit weights on Hopper: bulk copies, mbarriers and wgmma. Modes `Invariant` and
// `Fast`. The kernel, its order of sums and what lies where: gemmw.cuh.
//
// n256 alone, in mode `Fast`, is one chain for all of K: it has no registers for a leaf next to the whole.
//
// x [rows, k], rows at multiples of 16 bytes; packed w [n, k] (gemm.cuh: the layout that all kernels share,
// so a weight lies in memory once); bias [n] f32; out [rows, n] (gate: [rows, n / 2]) in x's type or f32.
// Bytes: 2 n k for every N rows and 2 rows k for every 128 outputs, nearly all from L2. Then out.
//
// | entry | rows | ring: stages of 64 values | blocks of an SM | registers at most |
// | --- | --- | --- | --- | --- |
// | n16, n16_split4 | 16 | 6, 108 KiB | 2 | 112 |
// | n32, n32_split4, n32_split8 | 32 | 5, 100 KiB | 2 | 112 |
// | n64, n64_split4, n64_split8 | 64 | 4, 96 KiB | 2 | 112 |
// | n128 | 128 | 5, 160 KiB | 1 | 168 |
// | n256 | 256 | 4, 192 KiB | 1 | 168 |
//
// Measured on an H200 (bench/runs/2026-11-26-h200/matmuls.txt, there as exp_*; us; k = 4096; gu: 28,672
// outputs with a gate; down: k = 14,336, 4,096 outputs with a sum). The floor is the weight at 4.2 TB/s, or
// 800 Tflop/s:
//
// | matmul, rows | floor | gemm.cu | here |
// | --- | --- | --- | --- |
// | gu, 64 | 55.9 | 121.5 | n64 68.9 |
// | gu, 4096 | 1203 | 3688 | n128 1790, n256 1535 |
// | qkv (6,144 outputs), 4096 | 258 | 757 | n128 333, n256 278 |
// | down, 64 | 28.0 | 82.5 | n64_split4 51.5 |
// | down, 256 | 37.6 | 181.9 | n128 83.8 |
// | down, 4096 | 601 | 1767 | n128 819, n256 621 |
//
// What was tried: weights by 8 bulk copies of 2 KiB a stage (n128 2239 and 992 us at 4096 rows of gu and
// down); two or four blocks of a cluster that copy parts of what they share for each other (multicast): 1.9
// and 2.7 times as long as alone.
#include "gemmw.cuh"

extern __shared__ __align__(1024) u8 memory[];

// An entry; a launch's shared memory is RING, the barriers, and 1 KiB to begin at a multiple of one.
#define ENTRY(NAME, T, N, STAGES, SPLIT, BLOCKS, CLUSTER)                                                              \
    extern "C" __global__ void CLUSTER __launch_bounds__(288, BLOCKS) gemmw_##NAME(const __grid_constant__ Boxed p) {  \
        Block<T, Plain, N, STAGES, SPLIT> block(p, shared_address(memory));                                            \
        block.run(reinterpret_cast<float *>(memory + (block.ring - shared_address(memory))));                          \
    }
#define ALONE(NAME, T, N, STAGES, BLOCKS) ENTRY(n##N##_##NAME, T, N, STAGES, 1, BLOCKS, )
#define SPLIT(NAME, T, N, STAGES, COUNT)                                                                               \
    ENTRY(n##N##_split##COUNT##_##NAME, T, N, STAGES, COUNT, 2, __cluster_dims__(COUNT, 1, 1))
#define EACH(NAME, T)                                                                                                  \
    ALONE(NAME, T, 16, 6, 2)                                                                                           \
    ALONE(NAME, T, 32, 5, 2)                                                                                           \
    ALONE(NAME, T, 64, 4, 2)                                                                                           \
    ALONE(NAME, T, 128, 5, 1)                                                                                          \
    ALONE(NAME, T, 256, 4, 1)                                                                                          \
    SPLIT(NAME, T, 16, 6, 4)                                                                                           \
    SPLIT(NAME, T, 32, 5, 4)                                                                                           \
    SPLIT(NAME, T, 32, 5, 8)                                                                                           \
    SPLIT(NAME, T, 64, 4, 4)                                                                                           \
    SPLIT(NAME, T, 64, 4, 8)
EACH(bf16, bf16)
EACH(f16, f16)
