// Tensor-core instructions and asynchronous copies, as thin wrappers over inline PTX. No kernel is here.
//
// mma.sync m16n8k16, f32 accumulators, 16-bit operands. Lane (g, t) = (lane / 4, lane % 4) holds
//   A (16 x 16, 4 registers): (g, 2t..) (g + 8, 2t..) (g, 2t + 8..) (g + 8, 2t + 8..), two values each
//   B (16 x 8, 2 registers):  (2t.., g) (2t + 8.., g)
//   C (16 x 8, 4 values):     (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
//
// cp.async: `copy_wait<N>()` leaves at most N groups in flight, for the calling thread alone; others see what
// landed after a barrier.
#pragma once
#include "device.cuh"

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// 16 bytes.
DEVICE void copy16(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// v, as something that the compiler cannot compute again: what a loop needs in every turn stays in a
// register, instead of being read from parameters or derived from the thread's number each time.
DEVICE u32 pinned(u32 v) { return __shfl_sync(0xffffffffu, v, threadIdx.x % 32); }

struct Words {
    u32 w[4];
};
DEVICE Words load16(u32 from) {
    Words r;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3])
                 : "r"(from)
                 : "memory");
    return r;
}
DEVICE void store16(u32 to, const Words &v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}
// 16 bytes where `there`, else zeros: a plain store then, since partial copies cost a handful of instructions
// each.
DEVICE void copy16_or_zero(u32 to, const void *from, bool there) {
    if (there) {
        copy16(to, from);
    } else {
        store16(to, Words{{0, 0, 0, 0}});
    }
}
DEVICE u32 load4(u32 from) {
    u32 r;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(from) : "memory");
    return r;
}
DEVICE void store_two(u32 to, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
}
DEVICE void load_two(float (&v)[2], u32 from) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(from) : "memory");
}

// Four 8 x 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void load_matrices(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
DEVICE void load_matrices_transposed(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

// (v & mask) | bits, in one instruction.
template <u32 MASK>
DEVICE u32 masked_or(u32 v, u32 bits) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "n"(MASK), "r"(bits));
    return r;
}

template <typename A, typename B>
constexpr bool same_type = false;
template <typename A>
constexpr bool same_type<A, A> = true;

// What depends on the 16-bit type.
template <typename T>
struct Half;

template <>
struct Half<bf16> {
    static constexpr u32 ONES = 0x3f803f80u;
    // Whether its exponents are those of f32.
    static constexpr bool WIDE = true;
    // c += a b
    static DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    static DEVICE u32 pack(float low, float high) {
        u32 r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
    static DEVICE float low(u32 v) { return float_of(v << 16); }
    static DEVICE float high(u32 v) { return float_of(v & 0xffff0000u); }
    // Nibbles 0 and 4 of v, less 8.
    static DEVICE u32 nibbles(u32 v) {
        u32 biased = masked_or<0x000f000fu>(v, 0x43004300u); // 128 + q
        u32 r;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(biased), "r"(0x3f803f80u), "r"(0xc308c308u)); // - 136
        return r;
    }
    // Bytes `at` and `at + 1` of v, less 128.
    static DEVICE u32 bytes(u32 v, u32 at) {
        float a = float_of(__byte_perm(v, 0x4b000000u, 0x7650u + at)) - 8388736.0f;
        float b = float_of(__byte_perm(v, 0x4b000000u, 0x7651u + at)) - 8388736.0f;
        return __byte_perm(bits_of(a), bits_of(b), 0x7632u);
    }
};

template <>
struct Half<f16> {
    static constexpr u32 ONES = 0x3c003c00u;
    static constexpr bool WIDE = false;
    static DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    static DEVICE u32 pack(float low, float high) {
        u32 r;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
    static DEVICE float low(u32 v) { return widen(f16{(u16)v}); }
    static DEVICE float high(u32 v) { return widen(f16{(u16)(v >> 16)}); }
    static DEVICE u32 nibbles(u32 v) {
        u32 biased = masked_or<0x000f000fu>(v, 0x64006400u); // 1024 + q
        u32 r;
        asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(biased), "r"(0x64086408u)); // - 1032
        return r;
    }
    static DEVICE u32 bytes(u32 v, u32 at) {
        u32 biased = __byte_perm(v, 0x64646464u, 0x4140u + at * 0x101u); // 1024 + u
        u32 r;
        asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(biased), "r"(0x64806480u)); // - 1152
        return r;
    }
};
