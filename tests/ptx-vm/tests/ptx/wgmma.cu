// arch: compute_90a
#include "gpu.h"
// sm_90a: one warpgroup, TMA 2-D loads (128B swizzle), m64n128k16 bf16 wgmma, 2 stages, mbarriers
#ifndef SHORT
#define SHORT 0
#endif
#ifndef PARITY
#define PARITY 0
#endif
#ifndef STEP
#define STEP 2
#endif
struct alignas(64) TMap { u64 opaque[16]; };
DEV void mbar_init(u64* b, u32 n){ asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(smem_u32(b)), "r"(n)); }
DEV void mbar_expect(u64* b, u32 bytes){ asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(smem_u32(b)), "r"(bytes) : "memory"); }
DEV void mbar_wait(u64* b, u32 ph){ asm volatile("{\n.reg .pred p;\nL1:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra L2;\nbra L1;\nL2:\n}" :: "r"(smem_u32(b)), "r"(ph) : "memory"); }
DEV void tma2d(void* s, const TMap* m, int x, int y, u64* b){ asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" :: "r"(smem_u32(s)), "l"(m), "r"(smem_u32(b)), "r"(x), "r"(y) : "memory"); }
DEV u64 desc(const void* p){ u64 a = (smem_u32(p) & 0x3ffff) >> 4; return a | (1ull<<16) | ((u64)(1024>>4) << 32) | (1ull << 62); }
DEV void wg_fence(){ asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wg_commit(){ asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template<int N> DEV void wg_wait(){ asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
DEV void wgmma_m64n64(float (&d)[32], u64 da, u64 db){
  asm volatile("{\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;\n}"
  : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),
    "+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) : "l"(da), "l"(db)); }
KERNEL void LAUNCH_BOUNDS(128,1) gemm_wgmma(const __grid_constant__ TMap ta, const __grid_constant__ TMap tb, float* __restrict__ C, int N, int K){
  DYN_SMEM(sm); __shared__ u64 full[2];
  bf16* sa[2] = { (bf16*)sm, (bf16*)(sm + 8192) }; bf16* sb[2] = { (bf16*)(sm + 16384), (bf16*)(sm + 24576) };
  int m0 = blockIdx.y*64, n0 = blockIdx.x*64, nk = K/64;
  if (threadIdx.x == 0){ mbar_init(&full[0],1); mbar_init(&full[1],1); asm volatile("fence.mbarrier_init.release.cluster;"); }
  __syncthreads();
  auto load = [&](int s, int kt){ if (threadIdx.x == 0){ mbar_expect(&full[s], 16384 - SHORT); tma2d(sa[s], &ta, kt*64, m0, &full[s]); tma2d(sb[s], &tb, kt*64, n0, &full[s]); } };
  load(0,0);
  float d[32];
  #pragma unroll
  for (int i=0;i<32;i++) d[i]=0.f;
  for (int kt=0; kt<nk; kt++){
    int s = kt&1; if (kt+1<nk) load(s^1, kt+1);
    #ifndef NO_WAIT
    mbar_wait(&full[s], ((kt>>1)&1) ^ PARITY);
    #endif
    wg_fence();
    #pragma unroll
    for (int k=0;k<4;k++) wgmma_m64n64(d, desc(sa[s]) + k*STEP, desc(sb[s]) + k*2);
    wg_commit();
    #ifndef NO_WGMMA_WAIT
    wg_wait<0>();
    #endif
    #ifndef NO_BARRIER_AFTER
    __syncthreads();
    #endif
  }
  int w = threadIdx.x>>5, l = threadIdx.x&31, r = m0 + w*16 + (l>>2), c = n0 + (l&3)*2;
  #pragma unroll
  for (int j=0;j<8;j++){ *(float2*)(C + (size_t)r*N + c + j*8) = make_float2(d[j*4],d[j*4+1]); *(float2*)(C + (size_t)(r+8)*N + c + j*8) = make_float2(d[j*4+2],d[j*4+3]); }
}
