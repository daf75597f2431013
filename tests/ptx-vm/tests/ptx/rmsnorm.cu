#include "gpu.h"
#ifndef OVER
#define OVER 0
#endif
#ifndef LANES
#define LANES 32
#endif
KERNEL void LAUNCH_BOUNDS(256) rmsnorm_bf16(const bf16* __restrict__ x, const bf16* __restrict__ w, bf16* __restrict__ y, int n, float eps){
  __shared__ float red[32];
  const bf16* xr = x + (size_t)blockIdx.x * n;
  float s = 0.f;
  for (int i = threadIdx.x; i < n + OVER; i += blockDim.x){ float v = to_f32(xr[i]); s = fmaf(v, v, s); }
  s = warp_sum(s);
  if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = s;
  #ifndef NO_BARRIER
  __syncthreads();
  #endif
  if (threadIdx.x < LANES){
    s = threadIdx.x < (blockDim.x >> 5) ? red[threadIdx.x] : 0.f;
    s = warp_sum(s);
    if (threadIdx.x == 0) red[0] = s;
  }
  __syncthreads();
  float r = rsqrtf(red[0] / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    y[(size_t)blockIdx.x * n + i] = to_bf16(to_f32(xr[i]) * r * to_f32(w[i]));
}
