// Element by element: sum, activation, gated activation, modulation, scaling, conversion.
//
//   add       acc += x                                       reads 2, writes 1 element per element
//   activate  x = act(x)                                     reads 1, writes 1
//   xielu     x = xielu(x) of four constants                 reads 1, writes 1
//   gate      out = act(g) * u of [g | u], rounded once      reads 2, writes 1 per output
//             clamped: (clamp(u) + shift) * (g' * sigmoid(slope * g')), g' = min(g, limit)
//   modulate  x[r] = (base + scale[rows[r]]) * x[r] + shift[rows[r]]  reads 3, writes 1
//   limit     x = max(min(x, limit), -limit)                 reads 1, writes 1
//   scale     y = factor * x, then cap * tanh(y / cap)       reads 1, writes 1
//   convert   out = x, or x + bias, in another element type  reads 1, writes 1
//
// Matrices are [rows, cols] with pitch. A thread takes 16 bytes of a row (convert: 8 elements) where rows
// begin at multiples of 16 bytes, single elements otherwise and at the end of a row.
// Launch: blocks of [columns in units, rows], at most 256 threads; grid [columns, rows], rows in strides of
// the grid.
#include "device.cuh"

// Calls f(row, first column, whether all N columns exist and are aligned) for this thread's share of [rows,
// cols].
template <u32 N, typename F>
DEVICE void each(u32 rows, u32 cols, bool wide, F f) {
    u32 c = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (c >= cols) return;
    bool whole = wide && c + N <= cols;
    for (u32 r = blockIdx.y * blockDim.y + threadIdx.y; r < rows; r += gridDim.y * blockDim.y) f(r, c, whole);
}

struct Add {
    MatView acc;
    MatView x;
    u32 elem;
    u32 reserved;
};

template <typename T>
DEVICE void sum(const Add &p) {
    constexpr u32 N = Wide<T>::N;
    begin();
    each<N>(p.acc.rows, p.acc.cols, aligned<T>(p.acc) && aligned<T>(p.x), [&](u32 r, u32 c, bool whole) {
        float a[N], b[N];
        load_part(row_of<T>(p.acc, r), c, p.acc.cols, whole, a);
        load_part(row_of<T>(p.x, r), c, p.acc.cols, whole, b);
#pragma unroll
        for (u32 i = 0; i < N; i++) a[i] = add(a[i], b[i]);
        store_part(row_of<T>(p.acc, r), c, p.acc.cols, whole, a);
    });
}

struct Activate {
    MatView x;
    u32 elem;
    u32 act;
};

template <typename T>
DEVICE void activated(const Activate &p) {
    constexpr u32 N = Wide<T>::N;
    begin();
    each<N>(p.x.rows, p.x.cols, aligned<T>(p.x), [&](u32 r, u32 c, bool whole) {
        float v[N];
        load_part(row_of<T>(p.x, r), c, p.x.cols, whole, v);
        act_all(p.act, v);
        store_part(row_of<T>(p.x, r), c, p.x.cols, whole, v);
    });
}

struct Xielu {
    MatView x;
    const float *constants;
    u32 elem;
    u32 reserved;
};

// engraft_core::math::exp_remainder.
DEVICE float exp_remainder(float x) {
    float q = madd(x, 1.9790347e-4f, 1.394466e-3f);
    q = madd(x, q, 8.333497e-3f);
    q = madd(x, q, 4.1666295e-2f);
    q = madd(x, q, 0.16666666f);
    q = madd(x, q, 0.5f);
    float near = mul(mul(x, x), q);
    float far = sub(sub(exp_of(x), 1.0f), x);
    return x > -0.34375f ? near : far;
}

template <typename T>
DEVICE void xielu(const Xielu &p) {
    constexpr u32 N = Wide<T>::N;
    begin();
    float rise = p.constants[0], fall = p.constants[1], line = p.constants[2], eps = p.constants[3];
    each<N>(p.x.rows, p.x.cols, aligned<T>(p.x), [&](u32 r, u32 c, bool whole) {
        float v[N];
        load_part(row_of<T>(p.x, r), c, p.x.cols, whole, v);
        walk(v, [&](float x) {
            float m = x < eps ? x : eps;
            float straight = mul(line, x);
            float below = madd(fall, add(exp_remainder(m), sub(m, x)), straight);
            return x > 0.0f ? madd(mul(rise, x), x, straight) : below;
        });
        store_part(row_of<T>(p.x, r), c, p.x.cols, whole, v);
    });
}

struct Gate {
    MatView gate_up;
    MatView out;
    u32 elem;
    u32 act;
    // A limit of 0: none of these.
    float slope;
    float limit;
    float shift;
    u32 reserved;
};

template <typename T>
DEVICE void gated(const Gate &p) {
    constexpr u32 N = Wide<T>::N;
    begin();
    MatView up = p.gate_up;
    up.ptr += (u64)p.out.cols * sizeof(T);
    bool wide = aligned<T>(p.gate_up) && aligned<T>(up) && aligned<T>(p.out);
    each<N>(p.out.rows, p.out.cols, wide, [&](u32 r, u32 c, bool whole) {
        float g[N], u[N];
        load_part(row_of<T>(p.gate_up, r), c, p.out.cols, whole, g);
        load_part(row_of<T>(up, r), c, p.out.cols, whole, u);
        if (p.limit != 0.0f) {
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                g[i] = g[i] > p.limit ? p.limit : g[i];
                u[i] = u[i] > p.limit ? p.limit : u[i];
                u[i] = add(u[i] < -p.limit ? -p.limit : u[i], p.shift);
            }
            walk(g, [&](float x) { return mul(x, sigmoid_of(mul(p.slope, x))); });
        } else {
            act_all(p.act, g);
        }
#pragma unroll
        for (u32 i = 0; i < N; i++) g[i] = mul(g[i], u[i]);
        store_part(row_of<T>(p.out, r), c, p.out.cols, whole, g);
    });
}

struct Modulate {
    MatView x;
    MatView scale;
    MatView shift;
    const u32 *rows;
    u32 elem;
    // 0: nothing is added.
    u32 shifted;
    float base;
    u32 reserved;
};

template <typename T>
DEVICE void modulated(const Modulate &p) {
    constexpr u32 N = Wide<T>::N;
    begin();
    bool wide = aligned<T>(p.x) && aligned<T>(p.scale) && aligned<T>(p.shift);
    each<N>(p.x.rows, p.x.cols, wide, [&](u32 r, u32 c, bool whole) {
        u32 from = p.rows[r];
        if (from >= p.scale.rows) return;
        float v[N], f[N], s[N];
        load_part(row_of<T>(p.x, r), c, p.x.cols, whole, v);
        load_part(row_of<T>(p.scale, from), c, p.x.cols, whole, f);
        if (p.base != 0.0f) {
#pragma unroll
            for (u32 i = 0; i < N; i++) f[i] = add(f[i], p.base);
        }
        if (p.shifted) {
            load_part(row_of<T>(p.shift, from), c, p.x.cols, whole, s);
#pragma unroll
            for (u32 i = 0; i < N; i++) v[i] = madd(f[i], v[i], s[i]);
        } else {
#pragma unroll
            for (u32 i = 0; i < N; i++) v[i] = mul(f[i], v[i]);
        }
        store_part(row_of<T>(p.x, r), c, p.x.cols, whole, v);
    });
}

struct Limit {
    MatView x;
    u32 elem;
    float limit;
};

template <typename T>
DEVICE void limited(const Limit &p) {
    constexpr u32 N = Wide<T>::N;
    begin();
    each<N>(p.x.rows, p.x.cols, aligned<T>(p.x), [&](u32 r, u32 c, bool whole) {
        float v[N];
        load_part(row_of<T>(p.x, r), c, p.x.cols, whole, v);
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            float low = v[i] < -p.limit ? -p.limit : v[i];
            v[i] = low > p.limit ? p.limit : low;
        }
        store_part(row_of<T>(p.x, r), c, p.x.cols, whole, v);
    });
}

struct Scale {
    MatView x;
    u32 elem;
    float factor;
    // 0 for none.
    u32 capped;
    float cap;
};

template <typename T>
DEVICE void scaled(const Scale &p) {
    constexpr u32 N = Wide<T>::N;
    begin();
    float inverse = div(1.0f, p.cap);
    each<N>(p.x.rows, p.x.cols, aligned<T>(p.x), [&](u32 r, u32 c, bool whole) {
        float v[N];
        load_part(row_of<T>(p.x, r), c, p.x.cols, whole, v);
#pragma unroll
        for (u32 i = 0; i < N; i++) v[i] = mul(v[i], p.factor);
        if (p.capped) {
            walk(v, [&](float x) { return mul(p.cap, tanh_of(mul(x, inverse))); });
        }
        store_part(row_of<T>(p.x, r), c, p.x.cols, whole, v);
    });
}

struct Convert {
    MatView x;
    MatView out;
    const float *bias;
    u32 from;
    u32 to;
};

template <typename A, typename B>
DEVICE void converted(const Convert &p) {
    constexpr u32 N = 8;
    begin();
    each<N>(p.x.rows, p.x.cols, aligned<A>(p.x) && aligned<B>(p.out), [&](u32 r, u32 c, bool whole) {
        float v[N];
        load_part(row_of<A>(p.x, r), c, p.x.cols, whole, v);
        if (p.bias) {
            float b[N];
            load_part(p.bias, c, p.x.cols, false, b);
#pragma unroll
            for (u32 i = 0; i < N; i++) v[i] = add(v[i], b[i]);
        }
        store_part(row_of<B>(p.out, r), c, p.x.cols, whole, v);
    });
}

#define EACH(T, NAME)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) elementwise_add_##NAME(const __grid_constant__ Add p) {          \
        sum<T>(p);                                                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) elementwise_activate_##NAME(const __grid_constant__ Activate p) {\
        activated<T>(p);                                                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) elementwise_xielu_##NAME(const __grid_constant__ Xielu p) {      \
        xielu<T>(p);                                                                                                   \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) elementwise_gate_##NAME(const __grid_constant__ Gate p) {        \
        gated<T>(p);                                                                                                   \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) elementwise_modulate_##NAME(const __grid_constant__ Modulate p) {\
        modulated<T>(p);                                                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) elementwise_limit_##NAME(const __grid_constant__ Limit p) {      \
        limited<T>(p);                                                                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) elementwise_scale_##NAME(const __grid_constant__ Scale p) {      \
        scaled<T>(p);                                                                                                  \
    }
EACH(float, f32)
EACH(f16, f16)
EACH(bf16, bf16)

#define PAIR(A, B, NAME)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256) elementwise_convert_##NAME(const __grid_constant__ Convert p) {  \
        converted<A, B>(p);                                                                                            \
    }
PAIR(float, float, f32_f32)
PAIR(float, f16, f32_f16)
PAIR(float, bf16, f32_bf16)
PAIR(f16, float, f16_f32)
PAIR(f16, f16, f16_f16)
PAIR(f16, bf16, f16_bf16)
PAIR(bf16, float, bf16_f32)
PAIR(bf16, f16, bf16_f16)
PAIR(bf16, bf16, bf16_bf16)
