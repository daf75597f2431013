#include "gpu.h"
// C[M,N] (bf16) = A[M,K] * B[N,K]^T, 64x64x32 block tile, 4 warps of 32x32, double-buffered cp.async, xor
// swizzle.
#ifndef GUARD
#define GUARD r < M && c + 1 < N
#endif
#ifndef SWAP
#define SWAP 0
#endif
#ifndef WEAK
#define WEAK 0
#endif
constexpr int BM=64, BN=64, BK=32;
DEV int swz(int row, int chunk){ return row*BK + ((chunk ^ ((row>>1)&3)) << 3); }   // in bf16 elements, chunk = 8 elements
KERNEL void LAUNCH_BOUNDS(128) gemm_bf16(const bf16* __restrict__ A, const bf16* __restrict__ B, bf16* __restrict__ C, int M, int N, int K){
  __shared__ __align__(128) bf16 sa[2][BM*BK], sb[2][BN*BK];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  const int wm = (warp >> 1) * 32, wn = (warp & 1) * 32;
  float acc[2][4][4] = {};
  auto load = [&](int st, int k0){
    #pragma unroll
    for (int i = 0; i < 2; i++){
      int c = tid + i*128, row = c >> 2, ch = c & 3;
      bool pa = m0+row < M && k0 + ch*8 < K, pb = n0+row < N && k0 + ch*8 < K;
      cp_async16(&sa[st][swz(row,ch)], A + (size_t)(pa ? m0+row : 0)*K + (pa ? k0+ch*8 : 0), pa);
      cp_async16(&sb[st][swz(row,ch)], B + (size_t)(pb ? n0+row : 0)*K + (pb ? k0+ch*8 : 0), pb);
    }
    cp_async_commit();
  };
  load(0, 0);
  const int nk = (K + BK - 1) / BK;
  for (int kt = 0; kt < nk; kt++){
    if (kt + 1 < nk){ load((kt+1)&1, (kt+1)*BK); cp_async_wait<1 + WEAK>(); } else cp_async_wait<0>();
    #ifndef NO_BARRIER_BEFORE
    __syncthreads();
    #endif
    const bf16* a = sa[kt&1]; const bf16* b = sb[kt&1];
    #pragma unroll
    for (int kk = 0; kk < BK; kk += 16){
      u32 ra[2][4], rb[2][4];
      #pragma unroll
      for (int i = 0; i < 2; i++) ldmatrix_x4(ra[i], a + swz(wm + i*16 + (lane & 15), (kk>>3) + (lane >> 4)));
      #pragma unroll
      for (int j = 0; j < 2; j++) ldmatrix_x4(rb[j], b + swz(wn + j*16 + (lane & 7) + ((lane >> 4) << 3), (kk>>3) + ((lane >> 3) & 1)));
      #pragma unroll
      for (int i = 0; i < 2; i++)
        #pragma unroll
        for (int j = 0; j < 4; j++){ u32 bb[2] = { rb[j>>1][(j&1)*2+SWAP], rb[j>>1][(j&1)*2+1-SWAP] }; mma_bf16_16816(acc[i][j], ra[i], bb); }
    }
    #ifndef NO_BARRIER_AFTER
    __syncthreads();
    #endif
  }
  #pragma unroll
  for (int i = 0; i < 2; i++)
    #pragma unroll
    for (int j = 0; j < 4; j++)
      #pragma unroll
      for (int h = 0; h < 2; h++){
        int r = m0 + wm + i*16 + (lane >> 2) + h*8, c = n0 + wn + j*8 + (lane & 3)*2;
        if (GUARD) *(u32*)(C + (size_t)r*N + c) = pack_bf16(acc[i][j][h*2], acc[i][j][h*2+1]);
      }
}
