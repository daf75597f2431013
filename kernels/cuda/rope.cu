// Rotary embedding in place: a' = madd(a, cos, -(b sin)), b' = madd(b, cos, a sin) for every pair (a, b) of
// every head.
//
// x [tokens, heads * width]; row t turns by the angles of positions[t]. table: cos [positions, pairs], then
// sin, f32; the first 2 * pairs columns of a head turn. Pairs are (i, i + pairs), or (2 i, 2 i + 1) where
// interleaved. A position beyond the table leaves its row as it is. Bytes: the rotated columns read and
// written once, a row of the table read per token. Launch: a thread per pair; blocks of [pairs of all heads,
// tokens].
#include "rotate.cuh"

struct Rope {
    MatView x;
    u64 positions;
    u64 table;
    u32 table_positions;
    u32 pairs;
    u32 heads;
    u32 width;
    u32 interleaved;
    u32 elem;
};

template <typename T>
DEVICE void rope(const Rope &p) {
    begin();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.heads * p.pairs) return;
    u32 head = i / p.pairs, pair = i % p.pairs;
    const u32 *positions = reinterpret_cast<const u32 *>(p.positions);
    const float *cos = reinterpret_cast<const float *>(p.table);
    const float *sin = cos + (u64)p.table_positions * p.pairs;
    u32 first = p.interleaved ? 2 * pair : pair;
    u32 second = p.interleaved ? first + 1 : pair + p.pairs;
    for (u32 t = blockIdx.y * blockDim.y + threadIdx.y; t < p.x.rows; t += gridDim.y * blockDim.y) {
        u32 position = positions[t];
        if (position >= p.table_positions) continue;
        T *x = row_of<T>(p.x, t) + (u64)head * p.width;
        u64 at = (u64)position * p.pairs + pair;
        float a = widen(x[first]), b = widen(x[second]);
        rotate(a, b, cos[at], sin[at]);
        x[first] = narrow<T>(a);
        x[second] = narrow<T>(b);
    }
}

#define ENTRY(T, NAME)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) rope_heads_##NAME(const __grid_constant__ Rope p) { rope<T>(p); }
ENTRY(float, f32)
ENTRY(f16, f16)
ENTRY(bf16, bf16)
