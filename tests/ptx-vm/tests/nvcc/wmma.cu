// nvcc 13.0: -ptx -arch=compute_90
#include <mma.h>
using namespace nvcuda;

// d = 2 (a b + c): b by columns with padding, c padded, d by columns; elements of fragments are touched.
extern "C" __global__ void halves(float* d, const half* a, const half* b, const float* c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 24);
  wmma::load_matrix_sync(fc, c, 20, wmma::mem_row_major);
  for (int i = 0; i < fa.num_elements; i++) fa.x[i] = fa.x[i] * __float2half(2.f);
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] *= 2.f;
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(d, fc, 16, wmma::mem_col_major);
}
// Through shared memory, two steps in k.
extern "C" __global__ void bytes(int* d, const signed char* a, const signed char* b) {
  __shared__ alignas(32) signed char left[8 * 32], right[32 * 32];
  for (int i = threadIdx.x; i < 8 * 32; i += 32) left[i] = a[i];
  for (int i = threadIdx.x; i < 32 * 32; i += 32) right[i] = b[i];
#ifndef NO_BARRIER
  __syncthreads();
#endif
  wmma::fragment<wmma::accumulator, 8, 32, 16, int> fc;
  wmma::fill_fragment(fc, 7);
  for (int k = 0; k < 32; k += 16) {
    wmma::fragment<wmma::matrix_a, 8, 32, 16, signed char, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 8, 32, 16, signed char, wmma::row_major> fb;
    wmma::load_matrix_sync(fa, left + k, 32);
    wmma::load_matrix_sync(fb, right + 32 * k, 32);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  wmma::store_matrix_sync(d, fc, 32, wmma::mem_row_major);
}
