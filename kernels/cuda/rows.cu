// Rows and words moved.
//
//   gather  out[r] = x[rows[r]], bits as they are; a row number beyond x gives zeros
//   scatter dst[index] = value for every (index, value); indices beyond dst do nothing; of several the last
//           counts
//   seen    one row of the seen bits cleared, then the bits of ids set
//   feed    out[t] = last[feeds[t]]; for a row beyond last, ids[t]
//
// Launch: gather: a thread takes 16 bytes (or an element) of a row; scatter: a thread per pair; seen: one
// block of 1024; feed: a thread per id.
#include "device.cuh"

struct Gather {
    MatView x;
    MatView out;
    u64 rows;
    u32 elem;
    u32 reserved;
};

// U: 16 bytes or one element.
template <typename U>
DEVICE void gather(const Gather &p) {
    begin();
    u32 per = sizeof(U) / elem_bytes(p.elem);
    u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= p.out.cols / per) return;
    const u32 *rows = reinterpret_cast<const u32 *>(p.rows);
    for (u32 r = blockIdx.y * blockDim.y + threadIdx.y; r < p.out.rows; r += gridDim.y * blockDim.y) {
        u32 from = rows[r];
        U v{};
        if (from < p.x.rows) v = reinterpret_cast<const U *>(p.x.ptr)[from * (p.x.pitch / per) + c];
        reinterpret_cast<U *>(p.out.ptr)[r * (p.out.pitch / per) + c] = v;
    }
}

extern "C" __global__ void __launch_bounds__(256) rows_gather_wide(const __grid_constant__ Gather p) { gather<uint4>(p); }
extern "C" __global__ void __launch_bounds__(256) rows_gather_words(const __grid_constant__ Gather p) { gather<u32>(p); }
extern "C" __global__ void __launch_bounds__(256) rows_gather_halves(const __grid_constant__ Gather p) { gather<u16>(p); }

struct Scatter {
    u64 pairs;
    u64 dst;
    u32 count;
    u32 len;
};

extern "C" __global__ void __launch_bounds__(256) rows_scatter(const __grid_constant__ Scatter p) {
    begin();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    const u32 *pairs = reinterpret_cast<const u32 *>(p.pairs);
    u32 index = pairs[2 * i];
    if (index >= p.len) return;
    for (u32 j = i + 1; j < p.count; j++) {
        if (pairs[2 * j] == index) return;
    }
    reinterpret_cast<u32 *>(p.dst)[index] = pairs[2 * i + 1];
}

struct Seen {
    u64 ids;
    u64 seen;
    u32 count;
    u32 words;
};

extern "C" __global__ void __launch_bounds__(1024) rows_seen(const __grid_constant__ Seen p) {
    begin();
    const u32 *ids = reinterpret_cast<const u32 *>(p.ids);
    u32 *seen = reinterpret_cast<u32 *>(p.seen);
    for (u32 w = threadIdx.x; w < p.words; w += blockDim.x) seen[w] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < p.count; i += blockDim.x) {
        u32 id = ids[i];
        if (id / 32 < p.words) atomicOr(seen + id / 32, 1u << id % 32);
    }
}

struct Feed {
    u64 ids;
    u64 feeds;
    u64 last;
    u64 out;
    u32 count;
    u32 rows;
};

extern "C" __global__ void __launch_bounds__(256) rows_feed(const __grid_constant__ Feed p) {
    begin();
    u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= p.count) return;
    u32 row = reinterpret_cast<const u32 *>(p.feeds)[t];
    const u32 *from = reinterpret_cast<const u32 *>(row < p.rows ? p.last : p.ids);
    reinterpret_cast<u32 *>(p.out)[t] = from[row < p.rows ? row : t];
}
