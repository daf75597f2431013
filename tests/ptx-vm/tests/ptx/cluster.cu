// arch: compute_90a
#include "gpu.h"
// Clusters: sums through distributed shared memory, bulk copies with mbarriers and a producer warp, bulk
// stores.
DEV u32 cluster_rank() { u32 r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
DEV void cluster_sync() { asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEV u32 mapa(u32 a, u32 rank) { u32 r; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(rank)); return r; }
#ifndef LAST_SYNC
#define LAST_SYNC cluster_sync()
#endif
KERNEL void cluster_sum(const float* x, float* y) {
  __shared__ float mine[32];
  int i = blockIdx.x * 32 + threadIdx.x;
  mine[threadIdx.x] = x[i];
  cluster_sync();
  float s = 0.f;
  for (int r = 0; r < 4; r++) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(mapa(smem_u32(&mine[threadIdx.x]), (cluster_rank() + r) & 3)));
    s += v;
  }
  LAST_SYNC;
  y[i] = s;
}
DEV void mbar_init(u64* b, u32 n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(smem_u32(b)), "r"(n)); }
DEV void mbar_arrive(u64* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(smem_u32(b)) : "memory"); }
DEV void mbar_expect(u64* b, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(smem_u32(b)), "r"(bytes) : "memory"); }
DEV void mbar_wait(u64* b, u32 phase) {
  asm volatile("{\n.reg .pred p;\nTRY:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra TRY;\nDONE:\n}" :: "r"(smem_u32(b)), "r"(phase) : "memory");
}
DEV void bulk_load(void* s, const void* g, u32 bytes, u64* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(smem_u32(s)), "l"(g), "r"(bytes), "r"(smem_u32(b)) : "memory");
}
#ifndef FREE_WAIT
#define FREE_WAIT mbar_wait(&empty[s], ((t >> 1) & 1) ^ 1)
#endif
// Warp 4 loads tiles of 512 floats into two stages, warps 0-3 scale them and add them up; the sums leave by a
// bulk store.
KERNEL void LAUNCH_BOUNDS(160) pipeline(const float* x, float* y, int tiles, float scale) {
  __shared__ __align__(128) float stage[2][512]; __shared__ __align__(128) float out[128];
  __shared__ u64 full[2], empty[2];
  int warp = threadIdx.x >> 5;
  if (threadIdx.x == 0) { for (int i = 0; i < 2; i++) { mbar_init(&full[i], 1); mbar_init(&empty[i], 128); } asm volatile("fence.mbarrier_init.release.cluster;"); }
  __syncthreads();
  const float* base = x + (size_t)blockIdx.x * tiles * 512;
  if (warp == 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if ((threadIdx.x & 31) == 0)
      for (int t = 0; t < tiles; t++) {
        int s = t & 1;
        FREE_WAIT;
        mbar_expect(&full[s], 2048);
        bulk_load(stage[s], base + t * 512, 2048, &full[s]);
      }
  } else {
    float acc = 0.f;
    for (int t = 0; t < tiles; t++) {
      int s = t & 1;
      mbar_wait(&full[s], (t >> 1) & 1);
      for (int j = 0; j < 4; j++) acc = fmaf(stage[s][threadIdx.x + 128 * j], scale, acc);
      mbar_arrive(&empty[s]);
    }
    out[threadIdx.x] = acc;
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" :: "l"(y + blockIdx.x * 128), "r"(smem_u32(out)) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
