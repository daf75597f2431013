// Thin wrappers over inline PTX; no vendor header is needed, with NVRTC or with nvcc.
#pragma once
typedef unsigned int u32; typedef unsigned short u16; typedef unsigned long long u64; typedef unsigned char u8; typedef signed char i8;
#define DEV __device__ __forceinline__
#define KERNEL extern "C" __global__
#define LAUNCH_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#define DYN_SMEM(name) extern __shared__ __align__(1024) u8 name[]
struct bf16 { u16 x; };
DEV float to_f32(bf16 v) { return __uint_as_float((u32)v.x << 16); }
DEV bf16 to_bf16(float f) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.x) : "f"(f)); return r; }
DEV u32 pack_bf16(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
DEV u32 smem_u32(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV void ldmatrix_x4(u32 (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_u32(p)) : "memory");
}
DEV void mma_bf16_16816(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void cp_async16(void* s, const void* g, bool p = true) {
  int n = p ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(smem_u32(s)), "l"(g), "r"(n) : "memory");
}
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
DEV float warp_sum(float s) {
  #pragma unroll
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
  return s;
}
DEV float warp_max(float s) {
  #pragma unroll
  for (int o = 16; o; o >>= 1) s = fmaxf(s, __shfl_xor_sync(0xffffffffu, s, o));
  return s;
}
