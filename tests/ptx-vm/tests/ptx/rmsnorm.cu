#include "gpu.h"
DEV float warp_sum(float s){
  #pragma unroll
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
  return s;
}
KERNEL void LAUNCH_BOUNDS(256) rmsnorm_bf16(const bf16* __restrict__ x, const bf16* __restrict__ w, bf16* __restrict__ y, int n, float eps){
  __shared__ float red[32];
  const bf16* xr = x + (size_t)blockIdx.x * n;
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x){ float v = to_f32(xr[i]); s = fmaf(v, v, s); }
  s = warp_sum(s);
  if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = s;
  __syncthreads();
  if (threadIdx.x < 32){
    s = threadIdx.x < (blockDim.x >> 5) ? red[threadIdx.x] : 0.f;
    s = warp_sum(s);
    if (threadIdx.x == 0) red[0] = s;
  }
  __syncthreads();
  float r = rsqrtf(red[0] / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    y[(size_t)blockIdx.x * n + i] = to_bf16(to_f32(xr[i]) * r * to_f32(w[i]));
}
