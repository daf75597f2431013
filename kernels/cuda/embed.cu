// Rows of a table by id: out[t] = table[ids[t]], or out[t] = round(out[t] + round(table[ids[t]])).
//
// ids [tokens] u32, table [vocab, cols] in any weight format, out [tokens, cols]. An id beyond the table
// counts as a row of zeros. Bytes: a table row read and an output row written per token (read as well where
// it is added to). Launch: a thread takes 8 columns of a token; blocks of [columns / 8, tokens], at most 256
// threads.
#include "weight.cuh"

struct Embed {
    u64 ids;
    WeightView table;
    MatView out;
    u32 elem;
    // 1: added to what the output holds.
    u32 add;
};

template <typename W>
DEVICE void rows(const Embed &p) {
    begin();
    u32 cols = p.out.cols;
    u32 c = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (c >= cols) return;
    bool wide = aligned_any(p.out, p.elem) && c + 8 <= cols;
    const u32 *ids = reinterpret_cast<const u32 *>(p.ids);
    for (u32 t = blockIdx.y * blockDim.y + threadIdx.y; t < p.out.rows; t += gridDim.y * blockDim.y) {
        float v[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) v[i] = 0.0f;
        u32 id = ids[t];
        if (id < p.table.rows) {
            const u8 *row = reinterpret_cast<const u8 *>(p.table.ptr) + id * p.table.row_bytes;
            if (c + 8 <= cols) {
                W::eight(p.table, row, c, v);
            } else {
                fill(v, [&](u32 i) { return c + i < cols ? W::at(p.table, row, c + i) : 0.0f; });
            }
        }
        u64 at = (u64)t * p.out.pitch + c;
        if (p.add) {
            float old[8];
            load_any_part(p.out.ptr, at, cols - c, wide, p.elem, old);
#pragma unroll
            for (u32 i = 0; i < 8; i++) v[i] = add(rounded(v[i], p.elem), old[i]);
        }
        store_any_part(p.out.ptr, at, cols - c, wide, p.elem, v);
    }
}

#define ENTRY(W, NAME)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) embed_rows_##NAME(const __grid_constant__ Embed p) { rows<W>(p); }
EVERY_FORMAT(ENTRY)
