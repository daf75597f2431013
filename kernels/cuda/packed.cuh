// Packed weights that are decoded in registers (formats: gemmq.cu), with the types of activations that each
// is compiled for, and the stages of the rings of its tiles of 8 and of 32 rows.
#pragma once

#define EACH_PACKED(EACH)                                                                                              \
    EACH(bf16, bf16_int8, Bytes<false>, 8, 6)                                                                          \
    EACH(bf16, bf16_int8a, Bytes<true>, 8, 6)                                                                          \
    EACH(bf16, bf16_int4, Nibbles<false>, 6, 4)                                                                        \
    EACH(bf16, bf16_int4a, Nibbles<true>, 6, 4)                                                                        \
    EACH(f16, f16_int8, Bytes<false>, 8, 6)                                                                            \
    EACH(f16, f16_int8a, Bytes<true>, 8, 6)                                                                            \
    EACH(f16, f16_int4, Nibbles<false>, 6, 4)                                                                          \
    EACH(f16, f16_int4a, Nibbles<true>, 6, 4)                                                                          \
    EACH(bf16, bf16_int5, Fives<false>, 6, 4)                                                                          \
    EACH(bf16, bf16_int5a, Fives<true>, 6, 4)                                                                          \
    EACH(f16, f16_int5, Fives<false>, 6, 4)                                                                            \
    EACH(f16, f16_int5a, Fives<true>, 6, 4)
