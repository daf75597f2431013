// Packed weights that are decoded in registers (formats: gemmq.cu), with the types of activations that each
// is compiled for, and the stages of the rings of its tiles of 8 and of 32 rows.
#pragma once
#include "gemm.cuh"

using Mxfp4 = E2m1<Powers>;
using Fp4 = E2m1<Singles<2>, 2>;
using K4 = Nibbles<true, Parts>;
using K5 = Fives<true, Parts>;

#define EACH_FORMAT(EACH, T)                                                                                           \
    EACH(T, T##_int8, Bytes<false>, 8, 6)                                                                              \
    EACH(T, T##_int8a, Bytes<true>, 8, 6)                                                                              \
    EACH(T, T##_int4, Nibbles<false>, 6, 4)                                                                            \
    EACH(T, T##_int4a, Nibbles<true>, 6, 4)                                                                            \
    EACH(T, T##_int5, Fives<false>, 6, 4)                                                                              \
    EACH(T, T##_int5a, Fives<true>, 6, 4)                                                                              \
    EACH(T, T##_fp8, E4m3, 8, 6)                                                                                       \
    EACH(T, T##_fp4, Fp4, 6, 4)                                                                                        \
    EACH(T, T##_mxfp4, Mxfp4, 6, 4)                                                                                    \
    EACH(T, T##_q4_k, K4, 6, 4)                                                                                        \
    EACH(T, T##_q5_k, K5, 6, 4)                                                                                        \
    EACH(T, T##_q6_k, Sixes, 6, 4)
#define EACH_PACKED(EACH)                                                                                              \
    EACH_FORMAT(EACH, bf16)                                                                                            \
    EACH_FORMAT(EACH, f16)
