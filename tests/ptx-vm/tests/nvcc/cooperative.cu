// nvcc 13.0: -ptx -arch=compute_90
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Each thread adds its neighbour's number, step by step; the grid waits between steps.
extern "C" __global__ void steps(unsigned* a, unsigned* b, int count) {
  cg::grid_group grid = cg::this_grid();
  unsigned i = grid.thread_rank(), n = grid.size();
  for (int s = 0; s < count; s++) {
    b[i] = a[i] + a[(i + 1) % n];
#ifndef NO_SYNC
    grid.sync();
#endif
    unsigned* t = a;
    a = b;
    b = t;
  }
}
