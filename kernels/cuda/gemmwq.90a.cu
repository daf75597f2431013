// Linear layers with quantized weights on Hopper: 33 to 128 rows, and prompts of 1,024 and more, by wgmma,
// weights decoded in registers.
// Mode `Invariant`, and so `Fast`. The kernel, its order of sums and what lies where: gemmw.cuh; the formats:
// gemmq.cu, whose bits a row has here, too.
//
// x [rows, k], rows at multiples of 16 bytes; packed w [n, k], its scales; bias [n] f32; out [rows, n] (gate:
// [rows, n / 2]) in x's type or f32. Bytes: weight and scales for every N rows and 2 rows k for every 128
// outputs, nearly all from L2. Then out.
//
// | entry | rows | ring | blocks of an SM | registers at most |
// | --- | --- | --- | --- | --- |
// | n64, n64_split4 | 64 | as many stages as 104 KiB hold | 2 | 128 |
// | n128 | 128 | as many stages as 160 KiB hold | 1 | 255 |
//
// Measured on an H200 (bench/runs/2026-11-27-h200/packed.txt), whole models, decode of so many rows and
// prompts of 128 tokens in chunks of 1,024 and more, tokens/s by gemmq.cu and by these:
//
// | model | 32 | 64 | 128 | 256 | prompts |
// | --- | --- | --- | --- | --- | --- |
// | 1B q8_0 | 14697, 13550 | 14611, 19212 | 23851, 30575 | 34914, 33482 | 63322, 68082 |
// | 1B q4_0 | 17445, 14523 | 15757, 20329 | 25676, 31841 | 37558, 35046 | 68071, 70438 |
// | 1B q4_1 | 15395, 12700 | 12799, 17132 | 20826, 26193 | 30585, 28876 | 54762, 54928 |
// | 8B q8_0 | 3924, 3718 | 3815, 5610 | | 7858, 6650 | 9737, 11028 |
// | 8B q4_0 | 4807, 4015 | 4129, 5899 | | 8485, 6987 | 10582, 11475 |
// | 1B int8, a group a row | | 17415, 23668 | | | 73001, 83001 |
//
// So rows up to 32 and from 129 to 1,023 go to gemmq.cu. What bounds it is not the memory but the joining of
// groups of 32 values: 64 rows of 8B's gate and up take 125 us where the weight's bytes take 28. A kernel for
// 32 rows was slower than gemmq.cu's and is not here.
#include "gemmw.cuh"
#include "packed.cuh"

extern __shared__ __align__(1024) u8 memory[];

// As `params::gemm` knows.
template <typename F, u32 N>
constexpr u32 STAGES = (N == 128 ? 163840 : 106496) / STAGE_BYTES<F, N>;

// An entry; a launch's shared memory is RING, the barriers, two sums of x for every row, and 1 KiB to begin
// at a multiple of one.
#define ENTRY(NAME, T, F, N, SPLIT, BLOCKS, CLUSTER)                                                                   \
    extern "C" __global__ void CLUSTER __launch_bounds__(256, BLOCKS) gemmwq_##NAME(const __grid_constant__ Boxed p) { \
        Block<T, F, N, STAGES<F, N>, SPLIT> block(p, shared_address(memory));                                          \
        block.run(reinterpret_cast<float *>(memory + (block.ring - shared_address(memory))));                          \
    }
#define EACH(T, NAME, F, SHORT8, SHORT32)                                                                              \
    ENTRY(n64_##NAME, T, F, 64, 1, 2, )                                                                                \
    ENTRY(n64_split4_##NAME, T, F, 64, 4, 2, __cluster_dims__(4, 1, 1))                                                \
    ENTRY(n128_##NAME, T, F, 128, 1, 1, )
EACH_PACKED(EACH)
