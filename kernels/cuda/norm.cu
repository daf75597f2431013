// Row norms, alone, after a residual sum, and over every head of a row; norms of groups of columns over all
// rows, and rows by their own moments (at the end of this file):
//
//   rms     y = ((x r) w)                 r = 1 / sqrt(sum(x^2) / n + eps)   (1 + w where asked)
//   layer   y = madd((x - mean) r, w, b)  mean = sum(x) / n, r = 1 / sqrt(sum((x - mean)^2) / n + eps)
//   add     x = round(x + add) is stored first, and the norm reads what was stored
//   codes   y as stored, quantized row by row for the matmul of `w8a8` that follows (int8.cuh): optional
//
// x, add, out [rows, parts * width]: every part of `width` columns is normed for itself (a head, or the row).
// weight and bias [width] f32. `out` may be the memory of `x`. Bytes: a row read once and written once from
// memory (read again from L1), with the sum read twice and written twice.
//
// `strict`: sums have the contract's 8 leaves, one chain each, by 8 lanes of a warp; the rest of the block
// moves data. The chain of width / 8 steps is the kernel's time (width 4096: about 512 multiply-adds, 1.2
// microseconds).
// `fast` (wide parts only: the chain of a narrow one is short): every thread sums its columns, the threads'
// sums go through a tree. The order depends on `width` alone.
// Launch: `wide`: a block of 256 threads per part; `narrow` (width at most 512): a warp per part, 4 warps a
// block.
#include "int8.cuh"

struct Norm {
    MatView x;
    // No pointer: nothing is added.
    MatView add;
    MatView out;
    u64 weight;
    u64 bias;
    u32 width;
    u32 parts;
    float eps;
    u32 layer;
    u32 plus_one;
    u32 elem;
    u32 strict;
    u32 reserved;
    // Where the rows of out go as bytes, too, for the matmul of `w8a8` that follows: one part, width a
    // multiple of 32.
    Codes codes;
};

// A group of threads that norms one part: a warp, or the block.
template <bool NARROW>
struct Group {
    static constexpr u32 THREADS = NARROW ? 32 : 256;
    static constexpr u32 GROUPS = NARROW ? 4 : 1;
    static DEVICE u32 own() { return NARROW ? threadIdx.x % 32 : threadIdx.x; }
    static DEVICE u32 number() { return NARROW ? threadIdx.x / 32 : 0; }
    static DEVICE void sync() {
        if (NARROW) {
            __syncwarp();
        } else {
            __syncthreads();
        }
    }
};

// One chain over columns from..to of a row, ascending, from zero: acc = step(acc, x[k]).
template <typename T, typename F>
DEVICE float chain(const T *row, u32 from, u32 to, bool wide, F step) {
    constexpr u32 N = Wide<T>::N;
    float acc = 0.0f;
    u32 k = from;
    if (wide && from % N == 0) {
#pragma unroll 2
        for (; k + N <= to; k += N) {
            float v[N];
            load_wide(row + k, v);
#pragma unroll
            for (u32 i = 0; i < N; i++) acc = step(acc, v[i]);
        }
    }
    for (; k < to; k++) acc = step(acc, widen(row[k]));
    return acc;
}

// The sum of step over a part, in every thread of the group.
template <typename T, bool STRICT, bool NARROW, typename F>
DEVICE float total(const T *row, u32 width, bool wide, float *scratch, F step) {
    constexpr u32 N = Wide<T>::N;
    u32 t = Group<NARROW>::own();
    if (STRICT) {
        if (t < 32) {
            // Lanes of a leaf's number run its chain; lanes beyond 7 have nothing and only take part in the
            // exchange.
            float acc = 0.0f;
            if (t < LEAVES) acc = chain(row, leaf_start(width, 1, t), leaf_start(width, 1, t + 1), wide, step);
            acc = tree_of_lanes(acc);
            if (t == 0) scratch[0] = acc;
        }
    } else {
        float acc = 0.0f;
        for (u32 c = t * N; c < width; c += Group<NARROW>::THREADS * N) {
            if (wide && c + N <= width) {
                float v[N];
                load_wide(row + c, v);
#pragma unroll
                for (u32 i = 0; i < N; i++) acc = step(acc, v[i]);
            } else {
                for (u32 k = c; k < least(c + N, width); k++) acc = step(acc, widen(row[k]));
            }
        }
#pragma unroll
        for (u32 span = 16; span > 0; span /= 2) acc = add(acc, __shfl_xor_sync(0xffffffffu, acc, span));
        if (t % 32 == 0) scratch[1 + t / 32] = acc;
        __syncthreads();
        if (t < 32) {
            float sum = t < 8 ? scratch[1 + t] : 0.0f;
            sum = tree_of_lanes(sum);
            if (t == 0) scratch[0] = sum;
        }
    }
    Group<NARROW>::sync();
    float sum = scratch[0];
    Group<NARROW>::sync();
    return sum;
}

template <typename T, bool STRICT, bool NARROW>
DEVICE void norm(const Norm &p) {
    constexpr u32 N = Wide<T>::N;
    using G = Group<NARROW>;
    __shared__ float shared[NARROW ? 4 : 12];
    float *scratch = shared + G::number();
    begin();
    u32 width = p.width;
    const float *weight = reinterpret_cast<const float *>(p.weight);
    const float *bias = reinterpret_cast<const float *>(p.bias);
    // Parts begin at multiples of 16 bytes where rows and widths do.
    bool even = width * sizeof(T) % 16 == 0;
    bool wide = even && aligned<T>(p.x);
    bool wide_add = wide && aligned<T>(p.add);
    bool wide_out = wide && aligned<T>(p.out);
    bool wide_vectors = ((p.weight | p.bias) & 15) == 0;
    u64 total_parts = (u64)p.x.rows * p.parts;
    for (u64 at = (u64)blockIdx.x * G::GROUPS + G::number(); at < total_parts; at += (u64)gridDim.x * G::GROUPS) {
        u32 r = (u32)(at / p.parts), part = (u32)(at % p.parts);
        T *row = row_of<T>(p.x, r) + (u64)part * width;
        if (p.add.ptr != 0) {
            const T *other = row_of<T>(p.add, r) + (u64)part * width;
            for (u32 c = G::own() * N; c < width; c += G::THREADS * N) {
                float a[N], b[N];
                bool whole = wide_add && c + N <= width;
                load_part(row, c, width, whole, a);
                load_part(other, c, width, whole, b);
#pragma unroll
                for (u32 i = 0; i < N; i++) a[i] = add(a[i], b[i]);
                store_part(row, c, width, whole, a);
            }
            G::sync();
        }
        float n = (float)width;
        float mean = 0.0f;
        if (p.layer) {
            mean = div(total<T, STRICT, NARROW>(row, width, wide, scratch, [](float acc, float v) { return add(acc, v); }), n);
        }
        bool layer = p.layer != 0;
        float squares = total<T, STRICT, NARROW>(row, width, wide, scratch, [=](float acc, float v) {
            float d = layer ? sub(v, mean) : v;
            return madd(d, d, acc);
        });
        float scale = rsqrt_of(add(div(squares, n), p.eps));
        T *to = row_of<T>(p.out, r) + (u64)part * width;
        for (u32 c = G::own() * N; c < width; c += G::THREADS * N) {
            float v[N], w[N], b[N];
            bool whole = wide_out && c + N <= width;
            load_part(row, c, width, whole, v);
            if (weight) load_part(weight, c, width, whole && wide_vectors, w);
            if (bias) load_part(bias, c, width, whole && wide_vectors, b);
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                float y = mul(layer ? sub(v[i], mean) : v[i], scale);
                if (weight && p.plus_one) w[i] = add(1.0f, w[i]);
                if (weight && bias) {
                    y = madd(y, w[i], b[i]);
                } else if (weight) {
                    y = mul(y, w[i]);
                } else if (bias) {
                    y = add(y, b[i]);
                }
                v[i] = y;
            }
            store_part(to, c, width, whole, v);
            if (p.codes.ptr != 0) {
                // What was stored is what is quantized.
#pragma unroll
                for (u32 i = 0; i < N; i++) v[i] = rounded<T>(v[i]);
                quantize(p.codes, width, r, c, v);
            }
        }
        if (p.codes.ptr != 0) quantize_end(p.codes, width, r, G::own());
    }
}

#define ENTRIES(T, NAME)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256, 2) norm_strict_wide_##NAME(const __grid_constant__ Norm p) {     \
        norm<T, true, false>(p);                                                                                       \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 4) norm_strict_narrow_##NAME(const __grid_constant__ Norm p) {   \
        norm<T, true, true>(p);                                                                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) norm_fast_wide_##NAME(const __grid_constant__ Norm p) {       \
        norm<T, false, false>(p);                                                                                      \
    }
ENTRIES(float, f32)
ENTRIES(f16, f16)
ENTRIES(bf16, bf16)

// A norm of groups of `width` columns over all rows, as `norm` without `add` and `codes`:
//
//   strand s    rows s, s + 64, ...: a chain for each column, the chains added by ascending columns
//   sum         the 64 strands by a tree: neighbours, then neighbouring pairs, ...
//
// In every mode: 64 strands are work enough. Bytes: x read three times and out written once.
// Launch: a block of 256 threads per group, four a strand, which read 32 columns of a row side by side.
struct GroupNorm {
    MatView x;
    MatView out;
    u64 weight;
    u64 bias;
    u32 width;
    u32 groups;
    float eps;
    u32 layer;
    u32 plus_one;
    u32 elem;
};

constexpr u32 STRANDS = 64;
// Columns that the threads of a strand have at a time, and each of them.
constexpr u32 TILE = 32, SHARE = 8;

struct GroupShared {
    // Chains of a tile, a column more than it has against bank conflicts.
    float chains[STRANDS][TILE + 1];
    float strands[STRANDS];
    float sum;
};

// The sum of step over a group, in every thread of the block.
template <typename T, typename F>
DEVICE float total_of_group(const GroupNorm &p, u32 first, GroupShared &shared, F step) {
    u32 t = threadIdx.x, strand = t / 4, share = t % 4 * SHARE;
    float sum = 0.0f;
    for (u32 tile = 0; tile < p.width; tile += TILE) {
        u32 begin = tile + share, count = begin < p.width ? least(p.width - begin, SHARE) : 0;
        float acc[SHARE] = {};
        for (u32 r = strand; count > 0 && r < p.x.rows; r += STRANDS) {
            const T *row = row_of<T>(p.x, r) + first + begin;
#pragma unroll
            for (u32 i = 0; i < SHARE; i++) {
                if (i < count) acc[i] = step(acc[i], widen(row[i]));
            }
        }
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) shared.chains[strand][share + i] = acc[i];
        __syncthreads();
        if (t < STRANDS) {
            u32 columns = least(p.width - tile, TILE);
            for (u32 c = 0; c < columns; c++) sum = add(sum, shared.chains[t][c]);
        }
        __syncthreads();
    }
    if (t < STRANDS) shared.strands[t] = sum;
    __syncthreads();
    if (t < 32) {
        float pair = add(shared.strands[2 * t], shared.strands[2 * t + 1]);
#pragma unroll
        for (u32 span = 1; span < 32; span *= 2) pair = add(pair, __shfl_xor_sync(0xffffffffu, pair, span));
        if (t == 0) shared.sum = pair;
    }
    __syncthreads();
    float all = shared.sum;
    __syncthreads();
    return all;
}

template <typename T>
DEVICE void group_norm(const GroupNorm &p) {
    __shared__ GroupShared shared;
    begin();
    const float *weight = reinterpret_cast<const float *>(p.weight);
    const float *bias = reinterpret_cast<const float *>(p.bias);
    float n = (float)((u64)p.x.rows * p.width);
    for (u32 group = blockIdx.x; group < p.groups; group += gridDim.x) {
        u32 first = group * p.width;
        float mean = 0.0f;
        if (p.layer) {
            mean = div(total_of_group<T>(p, first, shared, [](float acc, float v) { return add(acc, v); }), n);
        }
        float squares = total_of_group<T>(p, first, shared, [=](float acc, float v) {
            float d = sub(v, mean);
            return madd(d, d, acc);
        });
        float scale = rsqrt_of(add(div(squares, n), p.eps));
        u64 values = (u64)p.x.rows * p.width;
        for (u64 at = threadIdx.x; at < values; at += 256) {
            u32 r = (u32)(at / p.width), c = first + (u32)(at % p.width);
            float y = mul(sub(widen(row_of<T>(p.x, r)[c]), mean), scale);
            float w = weight ? weight[c] : 1.0f;
            if (weight && p.plus_one) w = add(1.0f, w);
            if (weight && bias) {
                y = madd(y, w, bias[c]);
            } else if (weight) {
                y = mul(y, w);
            } else if (bias) {
                y = add(y, bias[c]);
            }
            row_of<T>(p.out, r)[c] = narrow<T>(y);
        }
    }
}

#define GROUP_ENTRY(T, NAME)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256, 2) norm_groups_##NAME(const __grid_constant__ GroupNorm p) {      \
        group_norm<T>(p);                                                                                              \
    }
GROUP_ENTRY(float, f32)
GROUP_ENTRY(f16, f16)
GROUP_ENTRY(bf16, bf16)

// Rows by their own moments, in place:
//
//   topk    x = max(x - c, 0)              c = madd(value, sqrt(sum((x - mean)^2) / n), mean)
//   match   x = x (sqrt(sum(like^2) / n) / sqrt(max(sum(x^2) / n, value)))     every part of `width` columns
//
// x [rows, parts * width] (topk: one part), like [rows, width]. NaN stays NaN. Sums and bytes as of `norm`.
// Launch: a block of 256 threads per part.
struct Rescale {
    MatView x;
    // No pointer: topk.
    MatView like;
    u32 width;
    u32 parts;
    // Standard deviations, or the least mean square.
    float value;
    u32 elem;
    u32 strict;
    u32 reserved;
};

template <typename T, bool STRICT>
DEVICE void topk(const Rescale &p) {
    constexpr u32 N = Wide<T>::N;
    __shared__ float scratch[12];
    begin();
    u32 width = p.width;
    bool wide = aligned<T>(p.x);
    float n = (float)width;
    for (u32 r = blockIdx.x; r < p.x.rows; r += gridDim.x) {
        T *row = row_of<T>(p.x, r);
        float mean =
            div(total<T, STRICT, false>(row, width, wide, scratch, [](float acc, float v) { return add(acc, v); }), n);
        float squares = total<T, STRICT, false>(row, width, wide, scratch, [=](float acc, float v) {
            float d = sub(v, mean);
            return madd(d, d, acc);
        });
        float cutoff = madd(p.value, root(div(squares, n)), mean);
        for (u32 c = threadIdx.x * N; c < width; c += 256 * N) {
            float v[N];
            bool whole = wide && c + N <= width;
            load_part(row, c, width, whole, v);
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                float above = sub(v[i], cutoff);
                v[i] = above < 0.0f ? 0.0f : above;
            }
            store_part(row, c, width, whole, v);
        }
    }
}

template <typename T, bool STRICT>
DEVICE void match(const Rescale &p) {
    constexpr u32 N = Wide<T>::N;
    __shared__ float scratch[12];
    begin();
    u32 width = p.width;
    bool wide = width * sizeof(T) % 16 == 0 && aligned<T>(p.x);
    bool wide_like = aligned<T>(p.like);
    float n = (float)width;
    auto square = [](float acc, float v) { return madd(v, v, acc); };
    u64 total_parts = (u64)p.x.rows * p.parts;
    for (u64 at = blockIdx.x; at < total_parts; at += gridDim.x) {
        u32 r = (u32)(at / p.parts), part = (u32)(at % p.parts);
        T *row = row_of<T>(p.x, r) + (u64)part * width;
        const T *like = row_of<T>(p.like, r);
        float target = div(total<T, STRICT, false>(like, width, wide_like, scratch, square), n);
        float own = div(total<T, STRICT, false>(row, width, wide, scratch, square), n);
        own = own < p.value ? p.value : own;
        float factor = div(root(target), root(own));
        for (u32 c = threadIdx.x * N; c < width; c += 256 * N) {
            float v[N];
            bool whole = wide && c + N <= width;
            load_part(row, c, width, whole, v);
#pragma unroll
            for (u32 i = 0; i < N; i++) v[i] = mul(v[i], factor);
            store_part(row, c, width, whole, v);
        }
    }
}

#define RESCALE_ENTRIES(T, NAME)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, 2) norm_topk_strict_##NAME(const __grid_constant__ Rescale p) {  \
        topk<T, true>(p);                                                                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) norm_topk_fast_##NAME(const __grid_constant__ Rescale p) {    \
        topk<T, false>(p);                                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) norm_match_strict_##NAME(const __grid_constant__ Rescale p) { \
        match<T, true>(p);                                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) norm_match_fast_##NAME(const __grid_constant__ Rescale p) {   \
        match<T, false>(p);                                                                                            \
    }
RESCALE_ENTRIES(float, f32)
RESCALE_ENTRIES(f16, f16)
RESCALE_ENTRIES(bf16, bf16)
