// What every kernel shares: element types, views, exact arithmetic, own functions, the order of sums.
//
// No vendor header is included: 16-bit conversions and the ordering of dependent launches are a few lines of
// inline PTX. Here is no kernel and nothing of tensor cores (tensor.cuh).
//
// Invariants. Arithmetic is spelled: `add`, `sub`, `mul`, `madd`, `div`, `root` round once each, to nearest,
// and keep subnormals, whatever the compiler is told; nothing is contracted, nothing is approximate. `exp_of`
// and its family repeat `engraft_core::math` operation by operation (fused multiply-add), sums repeat
// docs/numerics.md. So a strict kernel gives the CPU's bits.
//
// Structs here are those of `kernels/src/params/mod.rs`, byte for byte.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__

// A matrix `[rows, cols]` of elements the kernel knows; `pitch` elements from row to row.
struct MatView {
    u64 ptr;
    u64 pitch;
    u32 rows;
    u32 cols;
};

// A weight `[rows, cols]` in its file layout, row after row of `row_bytes`; `group`: values of a group (group
// formats).
struct WeightView {
    u64 ptr;
    u64 row_bytes;
    u32 rows;
    u32 cols;
    u32 group;
    u32 reserved;
};

// Element types by number, as `Elem` on the host.
constexpr u32 ELEM_F32 = 0;
constexpr u32 ELEM_F16 = 1;
constexpr u32 ELEM_BF16 = 2;

// ---- Arithmetic -------------------------------------------------------------------------------------------

DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float sub(float a, float b) { return __fsub_rn(a, b); }
DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
DEVICE float madd(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float div(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float root(float a) { return __fsqrt_rn(a); }

DEVICE u32 bits_of(float v) { return __float_as_uint(v); }
DEVICE float float_of(u32 v) { return __uint_as_float(v); }
DEVICE bool is_nan(float v) { return (bits_of(v) & 0x7fffffffu) > 0x7f800000u; }

template <typename T>
DEVICE T least(T a, T b) {
    return a < b ? a : b;
}
template <typename T>
DEVICE T most(T a, T b) {
    return a > b ? a : b;
}
DEVICE u32 over(u32 n, u32 by) { return (n + by - 1) / by; }

// ---- Element types ----------------------------------------------------------------------------------------

struct f16 {
    u16 raw;
};
struct bf16 {
    u16 raw;
};

DEVICE float widen(float v) { return v; }
DEVICE float widen(f16 v) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.raw));
    return r;
}
DEVICE float widen(bf16 v) { return float_of((u32)v.raw << 16); }

template <typename T>
DEVICE T narrow(float v);
template <>
DEVICE float narrow<float>(float v) {
    return v;
}
template <>
DEVICE f16 narrow<f16>(float v) {
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.raw) : "f"(v));
    return r;
}
template <>
DEVICE bf16 narrow<bf16>(float v) {
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.raw) : "f"(v));
    return r;
}

// `v` rounded to what T holds.
template <typename T>
DEVICE float rounded(float v) {
    return widen(narrow<T>(v));
}

// The same for an element type known at run time.
DEVICE float rounded(float v, u32 elem) {
    return elem == ELEM_F32 ? v : elem == ELEM_F16 ? rounded<f16>(v) : rounded<bf16>(v);
}
DEVICE float load_any(u64 base, u64 i, u32 elem) {
    if (elem == ELEM_F32) return reinterpret_cast<const float *>(base)[i];
    if (elem == ELEM_F16) return widen(reinterpret_cast<const f16 *>(base)[i]);
    return widen(reinterpret_cast<const bf16 *>(base)[i]);
}
DEVICE void store_any(u64 base, u64 i, u32 elem, float v) {
    if (elem == ELEM_F32) {
        reinterpret_cast<float *>(base)[i] = v;
    } else if (elem == ELEM_F16) {
        reinterpret_cast<f16 *>(base)[i] = narrow<f16>(v);
    } else {
        reinterpret_cast<bf16 *>(base)[i] = narrow<bf16>(v);
    }
}
DEVICE u32 elem_bytes(u32 elem) { return elem == ELEM_F32 ? 4 : 2; }

// Elements that fill 16 bytes.
template <typename T>
struct Wide {
    static constexpr u32 N = 16 / sizeof(T);
};

// Whether rows of a view begin at multiples of 16 bytes.
template <typename T>
DEVICE bool aligned(const MatView &m) {
    return ((m.ptr | m.pitch * sizeof(T)) & 15) == 0;
}
DEVICE bool aligned_any(const MatView &m, u32 elem) { return ((m.ptr | m.pitch * elem_bytes(elem)) & 15) == 0; }

template <typename T>
DEVICE T *row_of(const MatView &m, u32 row) {
    return reinterpret_cast<T *>(m.ptr) + (u64)row * m.pitch;
}

// N elements (a multiple of 16 bytes) from an address that is a multiple of 16.
template <u32 N>
DEVICE void load_wide(const float *p, float (&v)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i += 4) {
        float4 w = *reinterpret_cast<const float4 *>(p + i);
        v[i] = w.x, v[i + 1] = w.y, v[i + 2] = w.z, v[i + 3] = w.w;
    }
}
// Eight elements, from v[i] on.
template <typename T, u32 N>
DEVICE void widen_words(uint4 w, float (&v)[N], u32 i) {
    u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        v[i + 2 * j] = widen(T{(u16)words[j]});
        v[i + 2 * j + 1] = widen(T{(u16)(words[j] >> 16)});
    }
}
template <typename T, u32 N>
DEVICE void load_wide(const T *p, float (&v)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i += 8) {
        widen_words<T>(*reinterpret_cast<const uint4 *>(p + i), v, i);
    }
}
template <u32 N>
DEVICE void store_wide(float *p, const float (&v)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i += 4) {
        *reinterpret_cast<float4 *>(p + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    }
}
template <typename T, u32 N>
DEVICE void store_wide(T *p, const float (&v)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i += 8) {
        u32 words[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            words[j] = (u32)narrow<T>(v[i + 2 * j]).raw | (u32)narrow<T>(v[i + 2 * j + 1]).raw << 16;
        }
        *reinterpret_cast<uint4 *>(p + i) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// v[i] = f(i), in a loop that stays one: for what is rare and would be long.
template <u32 N, typename F>
DEVICE void fill(float (&v)[N], F f) {
#pragma unroll 1
    for (u32 i = 0; i < N; i++) {
        float a = f(i);
#pragma unroll
        for (u32 j = 0; j + 1 < N; j++) v[j] = v[j + 1];
        v[N - 1] = a;
    }
}

// f(i, v[i]) for i below n, likewise.
template <u32 N, typename F>
DEVICE void drain(const float (&v)[N], u32 n, F f) {
    float w[N];
#pragma unroll
    for (u32 i = 0; i < N; i++) w[i] = v[i];
#pragma unroll 1
    for (u32 i = 0; i < least(n, N); i++) {
        f(i, w[0]);
#pragma unroll
        for (u32 j = 0; j + 1 < N; j++) w[j] = w[j + 1];
    }
}

// N elements from column c of a row; `wide`: the address is a multiple of 16 and all N exist, else those
// below `cols` are taken and the rest are zero.
template <typename T, u32 N>
DEVICE void load_part(const T *row, u32 c, u32 cols, bool wide, float (&v)[N]) {
    if (wide) {
        load_wide(row + c, v);
    } else {
        fill(v, [&](u32 i) { return c + i < cols ? widen(row[c + i]) : 0.0f; });
    }
}
template <typename T, u32 N>
DEVICE void store_part(T *row, u32 c, u32 cols, bool wide, const float (&v)[N]) {
    if (wide) {
        store_wide(row + c, v);
    } else {
        drain(v, cols - c, [&](u32 i, float value) { row[c + i] = narrow<T>(value); });
    }
}

// The same for an element type known at run time: 8 elements from element `at` on, of which `left` exist.
DEVICE void load_any_part(u64 base, u64 at, u32 left, bool wide, u32 elem, float (&v)[8]) {
    if (wide && elem == ELEM_F32) return load_wide(reinterpret_cast<const float *>(base) + at, v);
    if (wide && elem == ELEM_F16) return load_wide(reinterpret_cast<const f16 *>(base) + at, v);
    if (wide) return load_wide(reinterpret_cast<const bf16 *>(base) + at, v);
    fill(v, [&](u32 i) { return i < left ? load_any(base, at + i, elem) : 0.0f; });
}
DEVICE void store_any_part(u64 base, u64 at, u32 left, bool wide, u32 elem, const float (&v)[8]) {
    if (wide && elem == ELEM_F32) return store_wide(reinterpret_cast<float *>(base) + at, v);
    if (wide && elem == ELEM_F16) return store_wide(reinterpret_cast<f16 *>(base) + at, v);
    if (wide) return store_wide(reinterpret_cast<bf16 *>(base) + at, v);
    drain(v, left, [&](u32 i, float value) { store_any(base, at + i, elem, value); });
}

// ---- Functions: engraft_core::math, fused multiply-add ----------------------------------------------------

constexpr float EXP_MIN = -87.33654f;

DEVICE float exp_of(float x) {
    constexpr float ROUND = 12582912.0f;
    float xc = x < EXP_MIN ? EXP_MIN : x;
    xc = xc > 88.72f ? 88.72f : xc;
    float shifted = madd(xc, 1.44269504088896340736f, ROUND);
    float n = sub(shifted, ROUND);
    float r = madd(n, -1.4286068e-6f, madd(n, -0.69314575f, xc));
    float q = madd(r, 1.9790347e-4f, 1.394466e-3f);
    q = madd(r, q, 8.333497e-3f);
    q = madd(r, q, 4.1666295e-2f);
    q = madd(r, q, 0.16666666f);
    q = madd(r, q, 0.5f);
    float p = add(1.0f, madd(mul(r, r), q, r));
    int whole = (int)(bits_of(shifted) - bits_of(ROUND));
    int half = whole >> 1;
    float e = mul(mul(p, float_of((u32)(half + 127) << 23)), float_of((u32)(whole - half + 127) << 23));
    e = x < EXP_MIN ? 0.0f : e;
    return is_nan(x) ? x : e;
}

DEVICE float with_sign(float v, float sign) { return float_of((bits_of(v) & 0x7fffffffu) | (bits_of(sign) & 0x80000000u)); }

DEVICE float tanh_of(float x) {
    float a = float_of(bits_of(x) & 0x7fffffffu);
    a = a > 10.0f ? 10.0f : a;
    float u = mul(a, a);
    float p = madd(u, 2.147537e-3f, -8.182674e-3f);
    p = madd(u, p, 2.1702968e-2f);
    p = madd(u, p, -5.3947203e-2f);
    p = madd(u, p, 0.1333321f);
    p = madd(u, p, -0.3333333f);
    float small = madd(mul(a, u), p, a);
    float large = sub(1.0f, div(2.0f, add(exp_of(add(a, a)), 1.0f)));
    return with_sign(a < 0.625f ? small : large, x);
}

DEVICE float erf_of(float x) {
    float a = float_of(bits_of(x) & 0x7fffffffu);
    a = a > 4.0f ? 4.0f : a;
    float u = mul(a, a);
    float s = madd(u, 8.409921e-5f, -8.152628e-4f);
    s = madd(u, s, 5.2019604e-3f);
    s = madd(u, s, -2.68598e-2f);
    s = madd(u, s, 0.11283703f);
    s = madd(u, s, -0.37612635f);
    float small = madd(a, madd(u, s, 0.12837917f), a);
    float p = madd(a, 2.0828618e-5f, -4.3139356e-4f);
    p = madd(a, p, 4.1562547e-3f);
    p = madd(a, p, -2.5080616e-2f);
    p = madd(a, p, 0.10822038f);
    p = madd(a, p, 0.63340086f);
    p = madd(a, p, 1.1294883f);
    p = madd(a, p, -1.6920512e-4f);
    float large = sub(1.0f, exp_of(-p));
    return with_sign(a < 0.9f ? small : large, x);
}

DEVICE float rsqrt_of(float x) { return div(1.0f, root(x)); }

DEVICE float above_of(float x) { return exp_of(-(x < -87.0f ? -87.0f : x)); }
DEVICE float sigmoid_of(float x) { return div(1.0f, add(1.0f, above_of(x))); }
DEVICE float softplus_of(float x) {
    float e = exp_of(-float_of(bits_of(x) & 0x7fffffffu));
    float z = div(e, add(2.0f, e)), u = mul(z, z);
    float s = madd(u, 1.0f / 15.0f, 1.0f / 13.0f);
    s = madd(u, s, 1.0f / 11.0f);
    s = madd(u, s, 1.0f / 9.0f);
    s = madd(u, s, 1.0f / 7.0f);
    s = madd(u, s, 0.2f);
    s = madd(u, s, 1.0f / 3.0f);
    float half = madd(mul(z, u), s, z);
    return add(x > 0.0f ? x : 0.0f, add(half, half));
}
DEVICE float silu_of(float x) { return div(x, add(1.0f, above_of(x))); }
DEVICE float gelu_of(float x) { return mul(mul(0.5f, x), add(1.0f, erf_of(mul(x, 0.707106781186547524400f)))); }
DEVICE float gelu_tanh_of(float x) {
    float c = x < -10.0f ? -10.0f : x;
    c = c > 10.0f ? 10.0f : c;
    float t = mul(madd(mul(mul(c, c), 0.044715f), c, c), 0.7978846f);
    return mul(mul(0.5f, x), add(1.0f, tanh_of(t)));
}
DEVICE float quick_gelu_of(float x) { return mul(x, sigmoid_of(mul(1.702f, x))); }
DEVICE float relu_of(float x) { return x < 0.0f ? 0.0f : x; }
DEVICE float relu_squared_of(float x) { return mul(relu_of(x), relu_of(x)); }

// Activations by number, as `Act` on the host.
constexpr u32 ACT_RELU = 0;
constexpr u32 ACT_SILU = 1;
constexpr u32 ACT_GELU = 2;
constexpr u32 ACT_GELU_TANH = 3;
constexpr u32 ACT_QUICK_GELU = 4;
constexpr u32 ACT_TANH = 5;
constexpr u32 ACT_RELU_SQUARED = 7;
constexpr u32 ACT_SIGMOID = 8;
constexpr u32 ACT_SOFTPLUS = 9;

DEVICE float act_of(u32 act, float x) {
    switch (act) {
    case ACT_RELU: return relu_of(x);
    case ACT_SILU: return silu_of(x);
    case ACT_GELU: return gelu_of(x);
    case ACT_GELU_TANH: return gelu_tanh_of(x);
    case ACT_QUICK_GELU: return quick_gelu_of(x);
    case ACT_TANH: return tanh_of(x);
    case ACT_RELU_SQUARED: return relu_squared_of(x);
    case ACT_SIGMOID: return sigmoid_of(x);
    case ACT_SOFTPLUS: return softplus_of(x);
    default: return x;
    }
}

// f of every value, one after the other in a loop that stays one: the values walk past in registers.
// (Unrolled, the functions below are ten times the rest of a kernel.)
template <u32 N, typename F>
DEVICE void walk(float (&v)[N], F f) {
#pragma unroll 1
    for (u32 i = 0; i < N; i++) {
        float a = f(v[0]);
#pragma unroll
        for (u32 j = 0; j + 1 < N; j++) v[j] = v[j + 1];
        v[N - 1] = a;
    }
}

// `act` of every value; the choice is made once, not per value.
template <u32 N>
DEVICE void act_all(u32 act, float (&v)[N]) {
    switch (act) {
    case ACT_RELU: return walk(v, relu_of);
    case ACT_SILU: return walk(v, silu_of);
    case ACT_GELU: return walk(v, gelu_of);
    case ACT_GELU_TANH: return walk(v, gelu_tanh_of);
    case ACT_QUICK_GELU: return walk(v, quick_gelu_of);
    case ACT_TANH: return walk(v, tanh_of);
    case ACT_RELU_SQUARED: return walk(v, relu_squared_of);
    case ACT_SIGMOID: return walk(v, sigmoid_of);
    case ACT_SOFTPLUS: return walk(v, softplus_of);
    default: return;
    }
}

// ---- Sums -------------------------------------------------------------------------------------------------

constexpr u32 LEAVES = 8;

// Start of leaf `leaf` (0 to 8) of a sum over k in whole grains: engraft_core::numerics::leaf_bounds.
DEVICE u32 leaf_start(u32 k, u32 grain, u32 leaf) {
    if (leaf >= LEAVES) return k;
    grain = grain == 0 ? 1 : grain;
    u32 start = 0;
    u32 units = k / grain;
#pragma unroll
    for (u32 span = LEAVES / 2; span > 0; span /= 2) {
        u32 first = (units + 1) / 2;
        if (leaf & span) {
            start += first;
            units -= first;
        } else {
            units = first;
        }
    }
    return start * grain;
}

// The balanced tree over the leaves.
DEVICE float tree(float a, float b, float c, float d, float e, float f, float g, float h) {
    return add(add(add(a, b), add(c, d)), add(add(e, f), add(g, h)));
}

// The tree over the 8 sums that neighbouring lanes hold, the lanes numbered by leaf; every one of them gets
// it. Addition commutes, so each pair may add in its own order.
DEVICE float tree_of_lanes(float v) {
    v = add(v, __shfl_xor_sync(0xffffffffu, v, 1));
    v = add(v, __shfl_xor_sync(0xffffffffu, v, 2));
    return add(v, __shfl_xor_sync(0xffffffffu, v, 4));
}

// ---- Order between launches -------------------------------------------------------------------------------

// Waits for what earlier launches write (programmatic dependent launch; elsewhere launches are in order
// anyway). Every kernel calls it before its first access to what others write.
DEVICE void wait_for_dependencies() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next launch begin its prologue; it waits in turn until this one has ended.
DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Both: how a kernel without a prologue begins.
DEVICE void begin() {
    wait_for_dependencies();
    launch_dependents();
}
