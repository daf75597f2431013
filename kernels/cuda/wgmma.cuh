// Hopper's own instructions as thin wrappers over inline PTX: mbarriers, bulk copies, wgmma. No kernel is
// here.
//
// wgmma: a warpgroup's matmul, 64 by N by 16 values, f32 sums. Warp w has rows 16w to 16w + 15 of A and of
// the sums, in which a lane holds what it holds of mma.sync's: d[4 j + e] is (g + 8 (e / 2), 8 j + 2 t + e %
// 2). Matmuls are issued between
// `wgmma_fence` and `wgmma_commit`, which makes them a group; `wgmma_wait<n>` leaves at most n groups in
// flight.
//
// Barriers: whoever waits for a parity sees everything that was copied or done before the phase of that
// parity ended.
#pragma once
#include "tensor.cuh"

// ---- Barriers and copies ----------------------------------------------------------------------------------

DEVICE void barrier_init(u32 bar, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
DEVICE void barrier_arrive_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEVICE void barrier_wait(u32 bar, u32 phase) {
    u32 passed;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(passed)
                     : "r"(bar), "r"(phase)
                     : "memory");
    } while (passed == 0);
}
DEVICE void copy_box(u32 to, const u64 *map, u32 k, u32 row, u32 bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(k), "r"(row)
                 : "memory");
}
// Tiles of a packed weight from number `tile` on, a unit of each.
DEVICE void copy_tiles(u32 to, const u64 *map, u32 unit, u32 tile, u32 bar) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3, %4, %5}], "
                 "[%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(0), "r"(unit), "r"(tile)
                 : "memory");
}

// ---- Blocks of a cluster ----------------------------------------------------------------------------------

// All threads of a cluster's blocks meet; what was stored before is seen behind.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// What lies at `at` in this block's shared memory, in that of another block.
DEVICE u32 address_in(u32 at, u32 block) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
    return there;
}
DEVICE void store_in(u32 to, float v) { asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory"); }

// ---- wgmma ------------------------------------------------------------------------------------------------

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// A matrix in shared memory, as a wgmma descriptor says: bytes between 8 x 8 matrices along k and across;
// SWIZZLE 1: 128 bytes.
template <u64 LEADING, u64 STRIDE, u64 SWIZZLE>
DEVICE u64 operand(u32 at) {
    return (u64)((at & 0x3ffffu) >> 4) | LEADING >> 4 << 16 | STRIDE >> 4 << 32 | SWIZZLE << 62;
}

#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)
#define SUMS_ALL_8 SUMS_4(0), SUMS_4(4)
#define SUMS_ALL_16 SUMS_16(0)
#define SUMS_ALL_32 SUMS_32(0)
#define SUMS_ALL_64 SUMS_32(0), SUMS_32(32)
#define SUMS_ALL_128 SUMS_ALL_64, SUMS_32(64), SUMS_32(96)
#define NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d += a b, 64 by N, 16 values of k: both K-major in shared memory. `multiply_first` does not read d.
template <typename T, u32 N>
DEVICE void multiply(float (&d)[N / 2], u64 a, u64 b);
template <typename T, u32 N>
DEVICE void multiply_first(float (&d)[N / 2], u64 a, u64 b);
// The same with a in registers, laid out as mma.sync's A.
template <typename T, u32 N>
DEVICE void multiply_registers(float (&d)[N / 2], const u32 (&a)[4], u64 b);
// And a b whose N runs along its rows.
template <typename T, u32 N>
DEVICE void multiply_transposed(float (&d)[N / 2], const u32 (&a)[4], u64 b);
#define WGMMA(T, TYPE, N, COUNT, FUNCTION, READS, A, B)                                                                 \
    template <>                                                                                                        \
    DEVICE void FUNCTION<T, N>(float (&d)[N / 2], u64 a, u64 b) {                                                      \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES_##COUNT "}, " A ", " B \
                     ", " READS ", 1, 1, 0, 0;"                                                                        \
                     : SUMS_ALL_##COUNT                                                                                \
                     : "l"(a), "l"(b));                                                                                \
    }
#define WGMMA_REGISTERS(T, TYPE, N, COUNT, FUNCTION, TRANSPOSED, A, B)                                                  \
    template <>                                                                                                        \
    DEVICE void FUNCTION<T, N>(float (&d)[N / 2], const u32 (&a)[4], u64 b) {                                          \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES_##COUNT "}, {" A       \
                     "}, " B ", 1, 1, 1, " TRANSPOSED ";"                                                              \
                     : SUMS_ALL_##COUNT                                                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }
#define ALL_SHAPES(T, TYPE)                                                                                             \
    WGMMA(T, TYPE, 16, 8, multiply, "1", "%8", "%9")                                                                    \
    WGMMA(T, TYPE, 32, 16, multiply, "1", "%16", "%17")                                                                 \
    WGMMA(T, TYPE, 64, 32, multiply, "1", "%32", "%33")                                                                 \
    WGMMA(T, TYPE, 64, 32, multiply_first, "0", "%32", "%33")                                                           \
    WGMMA(T, TYPE, 128, 64, multiply, "1", "%64", "%65")                                                                \
    WGMMA(T, TYPE, 256, 128, multiply, "1", "%128", "%129")                                                             \
    WGMMA_REGISTERS(T, TYPE, 32, 16, multiply_registers, "0", "%16, %17, %18, %19", "%20")                              \
    WGMMA_REGISTERS(T, TYPE, 64, 32, multiply_registers, "0", "%32, %33, %34, %35", "%36")                              \
    WGMMA_REGISTERS(T, TYPE, 128, 64, multiply_registers, "0", "%64, %65, %66, %67", "%68")                             \
    WGMMA_REGISTERS(T, TYPE, 64, 32, multiply_transposed, "1", "%32, %33, %34, %35", "%36")                             \
    WGMMA_REGISTERS(T, TYPE, 128, 64, multiply_transposed, "1", "%64, %65, %66, %67", "%68")
ALL_SHAPES(bf16, "bf16")
ALL_SHAPES(f16, "f16")

// Registers of finished matmuls, which nothing may have read before, or of ones to come, which nothing may
// write after the fence.
template <u32 N>
DEVICE void settled(float (&d)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
