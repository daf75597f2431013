// What models of pictures have besides: convolutions in groups of columns, attention that is linear in rows.
//
//   conv  out[r, c] = bias[c] + sum_(t, i) x[rows[r, t], g(c), i] w[t, i, c]   reads taps * inputs an output
//   sums  s[d] = sum_t max(k[t, d], 0) [v[t], 1] of an item's rows             reads k and v width / 8 times
//   read  out[t] = (q' . s[.., ..width]) / (q' . s[.., width] + eps)           reads s from cache, q once
//
// All sums have the contract's 8 leaves in every mode: over the terms of an output, the rows of an item, the
// columns of a head. A row number beyond x is a row of zeros; bounds beyond the rows end there.
// Launch: conv and read as elementwise.cu, an output a thread; sums: a block of 256 threads for 8 keys and 32
// value columns of a head of an item, a warp a leaf, a value column a lane; the sum of the keys goes with the
// first value columns.
#include "device.cuh"

struct Conv {
    MatView x;
    MatView out;
    // Which rows of x an output row reads.
    const u32 *rows;
    const float *weight;
    // None: 0.
    const float *bias;
    u32 taps;
    u32 inputs;
    u32 outputs;
    u32 elem;
};

template <typename T>
DEVICE void conv(const Conv &p) {
    begin();
    u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= p.out.cols) return;
    u32 groups = p.x.cols / p.inputs, terms = p.taps * p.inputs;
    u32 first = c / p.outputs % groups * p.inputs;
    for (u32 r = blockIdx.y * blockDim.y + threadIdx.y; r < p.out.rows; r += gridDim.y * blockDim.y) {
        const u32 *rows = p.rows + (u64)r * p.taps;
        const float *weight = p.weight + c;
        float leaf[LEAVES];
        u32 k = 0, tap = 0, input = 0;
#pragma unroll
        for (u32 l = 0; l < LEAVES; l++) {
            float acc = 0.0f;
            for (u32 end = leaf_start(terms, 1, l + 1); k < end; k++) {
                u32 row = rows[tap];
                float v = row < p.x.rows ? widen(row_of<T>(p.x, row)[first + input]) : 0.0f;
                acc = madd(v, *weight, acc);
                weight += p.out.cols;
                input++;
                if (input == p.inputs) {
                    input = 0;
                    tap++;
                }
            }
            leaf[l] = acc;
        }
        float sum = tree(leaf[0], leaf[1], leaf[2], leaf[3], leaf[4], leaf[5], leaf[6], leaf[7]);
        if (p.bias) sum = add(sum, p.bias[c]);
        row_of<T>(p.out, r)[c] = narrow<T>(sum);
    }
}

struct Linear {
    MatView q;
    MatView k;
    MatView v;
    // f32, a row of every key column of every head of every item.
    MatView sums;
    MatView out;
    const u32 *bounds;
    u32 items;
    u32 heads;
    u32 width;
    u32 step;
    float eps;
    u32 elem;
};

constexpr u32 KEYS = 8, VALUES = 32;

// The row where an item begins, and the one behind its last.
DEVICE void rows_of(const Linear &p, u32 item, u32 &from, u32 &to) {
    from = least(p.bounds[item], p.q.rows);
    to = most(least(p.bounds[item + 1], p.q.rows), from);
}

template <typename T>
DEVICE void sums(const Linear &p) {
    // Of a leaf and a key; behind the value columns the sum of the keys.
    __shared__ float chains[LEAVES][KEYS][VALUES + 1];
    begin();
    u32 leaf = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 keys = over(p.width, KEYS), values = over(p.width, VALUES);
    u64 all = (u64)p.items * p.heads * keys * values;
    for (u64 at = blockIdx.x; at < all; at += gridDim.x) {
        u32 value = (u32)(at % values), key = (u32)(at / values % keys) * KEYS;
        u64 of = at / values / keys;
        u32 column = value * VALUES + lane, first = (u32)(of % p.heads) * p.step;
        u32 from, to;
        rows_of(p, (u32)(of / p.heads), from, to);
        u32 end = from + leaf_start(to - from, 1, leaf + 1);
        float acc[KEYS] = {}, ones[KEYS] = {};
        for (u32 row = from + leaf_start(to - from, 1, leaf); row < end; row++) {
            const T *k = row_of<T>(p.k, row) + first + key;
            float v = column < p.width ? widen(row_of<T>(p.v, row)[first + column]) : 0.0f;
#pragma unroll
            for (u32 i = 0; i < KEYS; i++) {
                float x = key + i < p.width ? relu_of(widen(k[i])) : 0.0f;
                acc[i] = madd(x, v, acc[i]);
                ones[i] = add(ones[i], x);
            }
        }
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            chains[leaf][i][lane] = acc[i];
            if (lane == 0) chains[leaf][i][VALUES] = ones[i];
        }
        __syncthreads();
        // Warp i joins the leaves of key i; its first lane those of the key itself, too.
        u32 i = leaf;
        if (key + i < p.width) {
            float *row = row_of<float>(p.sums, (u32)(of * p.width) + key + i);
            for (u32 c = lane; c <= VALUES; c += 32) {
                float sum = tree(chains[0][i][c], chains[1][i][c], chains[2][i][c], chains[3][i][c], chains[4][i][c],
                                 chains[5][i][c], chains[6][i][c], chains[7][i][c]);
                if (c == VALUES) {
                    if (value == 0) row[p.width] = sum;
                } else if (column < p.width) {
                    row[column] = sum;
                }
            }
        }
        __syncthreads();
    }
}

template <typename T>
DEVICE void read(const Linear &p) {
    begin();
    u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= p.out.cols) return;
    u32 head = c / p.width, column = c % p.width;
    for (u32 r = blockIdx.y * blockDim.y + threadIdx.y; r < p.out.rows; r += gridDim.y * blockDim.y) {
        // The last item that begins at or before the row.
        u32 item = 0, beyond = p.items;
        while (item + 1 < beyond) {
            u32 middle = (item + beyond) / 2;
            if (p.bounds[middle] <= r) {
                item = middle;
            } else {
                beyond = middle;
            }
        }
        u32 from, to;
        rows_of(p, item, from, to);
        if (r < from || r >= to) continue;
        const T *q = row_of<T>(p.q, r) + (u64)head * p.step;
        u32 row = (item * p.heads + head) * p.width, d = 0;
        float made[LEAVES], by[LEAVES];
#pragma unroll
        for (u32 l = 0; l < LEAVES; l++) {
            float a = 0.0f, b = 0.0f;
            for (u32 end = leaf_start(p.width, 1, l + 1); d < end; d++) {
                const float *sums = row_of<float>(p.sums, row + d);
                float x = relu_of(widen(q[d]));
                a = madd(x, sums[column], a);
                b = madd(x, sums[p.width], b);
            }
            made[l] = a;
            by[l] = b;
        }
        float above = tree(made[0], made[1], made[2], made[3], made[4], made[5], made[6], made[7]);
        float below = tree(by[0], by[1], by[2], by[3], by[4], by[5], by[6], by[7]);
        row_of<T>(p.out, r)[c] = narrow<T>(div(above, add(below, p.eps)));
    }
}

#define ENTRIES(T, NAME)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256) picture_conv_##NAME(const __grid_constant__ Conv p) {            \
        conv<T>(p);                                                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) picture_sums_##NAME(const __grid_constant__ Linear p) {          \
        sums<T>(p);                                                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) picture_read_##NAME(const __grid_constant__ Linear p) {          \
        read<T>(p);                                                                                                    \
    }
ENTRIES(float, f32)
ENTRIES(f16, f16)
ENTRIES(bf16, bf16)
