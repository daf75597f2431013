// nvcc 13.0: -ptx -arch=compute_90
#include <cstdio>

extern "C" __global__ void hello(int* taken, const char* word, float step) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  taken[i] = printf("%d %5.2f|%-6s|%c %lld %p\n", i, step * i, word, 'a' + i, (long long)i << 40, (void*)(size_t)i);
  if (i & 1) printf("odd\n");
}

extern "C" __global__ void no_format(int* taken, const char* format) {
  taken[threadIdx.x] = printf(format, 1);
}
