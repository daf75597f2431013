#include "gpu.h"
// Row-wise and element-wise kernels of a transformer, in f32.
KERNEL void softmax(const float* x, float* y, int n) {
  __shared__ float red[32];
  const float* r = x + (size_t)blockIdx.x * n;
  float m = __int_as_float(0xff800000);
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, r[i]);
  m = warp_max(m);
  if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = m;
  __syncthreads();
  m = red[0];
  for (int i = 1; i < blockDim.x >> 5; i++) m = fmaxf(m, red[i]);
  __syncthreads();
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += expf(r[i] - m);
  s = warp_sum(s);
  if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = s;
  __syncthreads();
  s = 0.f;
  for (int i = 0; i < blockDim.x >> 5; i++) s += red[i];
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[(size_t)blockIdx.x * n + i] = expf(r[i] - m) / s;
}
KERNEL void rope(float* x, const int* pos, int heads, int dim, float base) {
  int half = dim / 2, pair = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y;
  if (pair >= heads * half) return;
  int h = pair / half, i = pair % half;
  float s, c;
  sincosf((float)pos[token] * powf(base, -2.0f * i / dim), &s, &c);
  float* p = x + ((size_t)token * heads + h) * dim + i;
  float a = p[0], b = p[half];
  p[0] = a * c - b * s;
  p[half] = a * s + b * c;
}
KERNEL void activations(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  y[i] = v / (1.f + expf(-v));
  y[n + i] = 0.5f * v * (1.f + erff(v * 0.70710678f));
  y[2 * n + i] = 0.5f * v * (1.f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
  y[3 * n + i] = log1pf(expf(-fabsf(v))) + fmaxf(v, 0.f);
  y[4 * n + i] = __expf(v) * __frcp_rn(1.f + v * v) + rsqrtf(1.f + v * v);
}
KERNEL void double_sum(const double* x, double* y, int n) {
  double s = 0;
  for (int i = threadIdx.x; i < n; i += 32) s += exp(x[i]) * sqrt(x[i] + 2.0);
  for (int o = 16; o; o >>= 1) s += __shfl_down_sync(0xffffffffu, s, o);
  if (threadIdx.x == 0) y[0] = s;
}
