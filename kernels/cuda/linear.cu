// out = x w^T + bias, strict: x [rows, k], w [n, k] in any format, out [rows, n]; then nothing, an activation, a sum with what
// the output holds, or (w [gate | up]) act(gate) * up into out [rows, n / 2].
//
// Where the composed ops would store, this rounds to the output's element type, so that fused equals composed.
// Bytes: the weight once per 4 rows of x (reads of a warp are 32 rows apart: whole sectors over a few steps, not coalesced;
// this kernel is for bits, gemm.cu is for speed), x once per 32 outputs.
// Launch: blocks of 256 = 8 leaves x 32 outputs; grid [outputs / 32, rows / 4], rows in strides of the grid.
#include "product.cuh"

template <typename W>
DEVICE void strict(const Linear &p) {
    __shared__ ProductShared s;
    begin();
    bool gate = p.then == THEN_GATE;
    u32 outputs = p.out.cols;
    u32 first = blockIdx.x * TILE_OUTPUTS;
    u32 lane = threadIdx.x % 32, r = threadIdx.x / 32;
    const float *bias = reinterpret_cast<const float *>(p.bias);
    for (u32 tile = blockIdx.y * TILE_ROWS; tile < p.x.rows; tile += gridDim.y * TILE_ROWS) {
        u32 count = least(p.x.rows - tile, TILE_ROWS);
        for (u32 half = 0; half < (gate ? 2u : 1u); half++) {
            u64 begin = (u64)half * outputs;
            product<W>(p.x, p.x_elem, p.weight, p.grain, count, [=](u32 i) { return tile + i; }, begin + first,
                       begin + outputs, s.x, s.sums[half]);
        }
        __syncthreads();
        u32 n = first + lane;
        if (r < count && n < outputs) {
            float y = whole(s.sums[0], r, lane);
            if (bias) y = add(y, bias[n]);
            u64 at = (u64)(tile + r) * p.out.pitch + n;
            if (p.then != THEN_NOTHING) y = rounded(y, p.out_elem);
            if (p.then == THEN_ADD) y = add(load_any(p.out.ptr, at, p.out_elem), y);
            if (p.then == THEN_ACTIVATE || gate) y = act_of(p.act, y);
            if (gate) {
                float up = whole(s.sums[1], r, lane);
                if (bias) up = add(up, bias[outputs + n]);
                y = mul(y, rounded(up, p.out_elem));
            }
            store_any(p.out.ptr, at, p.out_elem, y);
        }
        __syncthreads();
    }
}

#define ENTRY(W, NAME)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_strict_##NAME(const __grid_constant__ Linear p) {         \
        strict<W>(p);                                                                                                  \
    }
EVERY_FORMAT(ENTRY)
