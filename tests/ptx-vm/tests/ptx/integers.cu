// arch: compute_90
#include "gpu.h"
// Quantized dot products, warp reductions of integers, ballots, histograms, fp8.
struct q4_block { u16 scale; u8 q[16]; };
KERNEL void q4_dot(const q4_block* w, const float* x, float* y, int blocks) {
  int row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  float s = 0.f;
  for (int b = lane; b < blocks; b += 32) {
    const q4_block& q = w[(size_t)row * blocks + b];
    float d, t = 0.f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(q.scale));
    #pragma unroll
    for (int i = 0; i < 16; i++) {
      t = fmaf((float)((q.q[i] & 15) - 8), x[b * 32 + i], t);
      t = fmaf((float)((q.q[i] >> 4) - 8), x[b * 32 + 16 + i], t);
    }
    s = fmaf(d, t, s);
  }
  s = warp_sum(s);
  if (lane == 0) y[row] = s;
}
KERNEL void i8_dot(const int* a, const int* b, int* y, int n) {
  int s = 0;
  for (int i = threadIdx.x; i < n; i += 32) s = __dp4a(a[blockIdx.x * n + i], b[i], s);
  s = __reduce_add_sync(0xffffffffu, s);
  if (threadIdx.x == 0) y[blockIdx.x] = s;
}
KERNEL void compact(const int* x, int* y, int* count, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
  bool keep = i < n && x[i] % 3 == 0;
  u32 m = __ballot_sync(0xffffffffu, keep);
  int base = 0;
  if (lane == 0) base = atomicAdd(count, __popc(m));
  base = __shfl_sync(0xffffffffu, base, 0);
  if (keep) y[base + __popc(m & ((1u << lane) - 1))] = x[i];
}
KERNEL void histogram(const u8* x, u32* bins, int n) {
  __shared__ u32 local[64];
  if (threadIdx.x < 64) local[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i] & 63], 1u);
  __syncthreads();
  if (threadIdx.x < 64) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}
KERNEL void fp8(const float* x, u16* codes, float* back, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i * 2 >= n) return;
  u16 c; u32 h; float lo, hi;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(c) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
  codes[i] = c;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(c));
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(lo), "=f"(hi) : "r"(h));
  back[2 * i] = lo; back[2 * i + 1] = hi;
}
KERNEL void block_votes(const int* x, int* y) {
  int v = x[threadIdx.x];
  y[threadIdx.x] = __syncthreads_count(v > 0) * 4 + __syncthreads_and(v > -100) * 2 + __syncthreads_or(v == 12345);
}
__device__ __noinline__ u32 collatz(u32 n, u32* longest) {
  u32 steps = 0;
  while (n != 1) { n = n & 1 ? 3 * n + 1 : n / 2; steps++; }
  if (steps > *longest) *longest = steps;
  return steps;
}
KERNEL void calls(u32* y) {
  u32 longest = 5, i = blockIdx.x * blockDim.x + threadIdx.x;
  u32 s = collatz(i + 1, &longest) + collatz(2 * i + 1, &longest);
  y[2 * i] = s; y[2 * i + 1] = longest;
}
