// What both kernels of attention on tensor cores share: parameters, rows of work and what they see, scores
// from dot products
//, weights from scores. No entry is here: flash.cu, flashw.90a.cu.
#pragma once
#include "paged.cuh"
#include "tensor.cuh"

// Keys of a chunk, of a span.
constexpr u32 CHUNK = 64, SPAN = 256;
constexpr u32 WINDOW = 2, CAPPED = 4, CHUNKED = 8;
constexpr float LOWEST = -3.40282347e38f;
constexpr float LOG2E = 1.44269504088896340736f;

struct Scores {
    u64 slopes;
    float scale;
    float cap;
    u32 window;
    u32 flags;
    // [heads] f32: scores without a key or a value; or 0.
    u64 sinks;
    u32 ahead;
    u32 bias_behind;
    // [heads, bias_behind + 1 + bias_ahead] f32: a bias for every distance; or 0.
    u64 bias;
    u32 bias_ahead;
    u32 reserved;
};

struct Flash {
    MatView q;
    MatView out;
    KvView kv;
    // Elements from row to row, where page_size is 0.
    u64 k_pitch;
    u64 v_pitch;
    Scores scores;
    u64 bounds;
    u64 table_rows;
    u64 kv_lens;
    PageTable table;
    // [seqs, heads, few, spans, 2 + v_dim] f32.
    u64 parts;
    u32 seqs;
    u32 heads;
    u32 elem;
    u32 few;
    u32 spans;
    // Tiles of 16 rows that few queries of a group fill.
    u32 tiles;
};

DEVICE float exp_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(mul(x, LOG2E)));
    return r;
}

// A sequence's part of the step: rows that q has, keys that there are pages and (where any sequence is split)
// scratch for, whatever bounds and lengths say.
struct Seq {
    u32 first, queries, len;
};
DEVICE Seq sequence(const Flash &p, u32 s) {
    const u32 *bounds = reinterpret_cast<const u32 *>(p.bounds);
    u32 first = least(bounds[s], p.q.rows), queries = most(least(bounds[s + 1], p.q.rows), first) - first;
    if (!p.kv_lens) return Seq{first, queries, queries};
    u32 len = least(reinterpret_cast<const u32 *>(p.kv_lens)[s], p.table.keys);
    return Seq{first, queries, p.few ? least(len, p.spans * SPAN) : len};
}

// A row of work: where it stands and the keys lo..hi that it sees.
struct Row {
    u32 query, position, lo, hi;
};
DEVICE Row row_at(const Flash &p, const Seq &seq, u32 query) {
    // The position behind the row's; 0 where there are fewer keys than queries.
    u32 next = most(seq.len + query + 1, seq.queries) - seq.queries;
    // 0 keys ahead for a causal mask.
    u32 hi = next + least(p.scores.ahead, seq.len - next);
    u32 lo = p.scores.flags & WINDOW ? least(next - least(p.scores.window, next), hi) : 0;
    // The chunk's first position; of a row without a position 0.
    if (p.scores.flags & CHUNKED) lo = least((next - least(next, 1u)) / p.scores.window * p.scores.window, hi);
    return Row{query, next - 1, lo, hi};
}

// Keys that all of some rows see, whose bounds ascend: what the first sees to its end, the last from its
// beginning.
struct Common {
    u32 lo, hi;
};
DEVICE Common common_of(const Flash &p, const Seq &seq, u32 group, u32 first, u32 end) {
    if (first >= end) return Common{0, ~0u};
    return Common{row_at(p, seq, (end - 1) / group).lo, row_at(p, seq, first / group).hi};
}
// Whether some of the rows do not see all of a chunk's keys lo..hi.
DEVICE bool is_partial(const Common &common, u32 chunk, u32 lo, u32 hi) {
    return most(chunk, lo) < common.lo || least(chunk + CHUNK, hi) > common.hi;
}

// Whether a chunk's values, in rows of PIECES times 16 bytes, have an infinity or NaN among them: times the
// weight 0 of a row that does not see its position that would be NaN. Asked of partial chunks alone.
template <typename T, u32 PIECES, u32 PITCH>
DEVICE bool any_wild(u32 at) {
    // The bits of an exponent: all set in what is no number.
    constexpr u32 LOW = Half<T>::WIDE ? 0x7f80u : 0x7c00u, HIGH = LOW << 16;
    bool wild = false;
#pragma unroll 1
    for (u32 i = threadIdx.x % 32; i < CHUNK * PIECES; i += 32) {
        Words piece = load16(at + i / PIECES * PITCH + i % PIECES * 16);
#pragma unroll
        for (u32 w = 0; w < 4; w++) wild |= (piece.w[w] & LOW) == LOW || (piece.w[w] & HIGH) == HIGH;
    }
    return __any_sync(0xffffffffu, wild);
}

// From dot products of two rows (g and g + 8 of a tile) to scores; what a row does not see becomes LOWEST.
// Returns in `top` the largest of each row among this quad's columns. Biases by distance lie in memory: where
// there are none, the branch is all that runs.
template <u32 N>
DEVICE void score(const Flash &p, float (&s)[N][4], const Row (&rows)[2], const u32 (&head)[2], const float (&slope)[2], u32 chunk,
                  float (&top)[2]) {
    u32 lane = threadIdx.x % 32;
    top[0] = top[1] = LOWEST;
#pragma unroll
    for (u32 n = 0; n < N; n++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) s[n][e] = mul(s[n][e], p.scores.scale);
    }
    if (p.scores.flags & CAPPED) {
        float inverse = div(1.0f, p.scores.cap);
        walk(reinterpret_cast<float(&)[N * 4]>(s), [&](float v) { return mul(p.scores.cap, tanh_of(mul(v, inverse))); });
    }
    if (p.scores.slopes) {
#pragma unroll
        for (u32 n = 0; n < N; n++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                u32 j = chunk + n * 8 + lane % 4 * 2 + e % 2;
                s[n][e] = madd(slope[e / 2], sub((float)j, (float)rows[e / 2].position), s[n][e]);
            }
        }
    }
    if (p.scores.bias) {
        int behind = -(int)p.scores.bias_behind, ahead = (int)p.scores.bias_ahead;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            // The bias of distance 0.
            u64 zero = (u64)head[i] * (ahead - behind + 1) - behind;
            const float *bias = reinterpret_cast<const float *>(p.scores.bias) + zero;
            int first = (int)(chunk + lane % 4 * 2 - rows[i].position);
#pragma unroll
            for (u32 n = 0; n < N; n++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    int distance = most(least(first + (int)(n * 8 + e), ahead), behind);
                    s[n][2 * i + e] = add(s[n][2 * i + e], bias[distance]);
                }
            }
        }
    }
#pragma unroll
    for (u32 n = 0; n < N; n++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            u32 j = chunk + n * 8 + lane % 4 * 2 + e % 2;
            const Row &row = rows[e / 2];
            s[n][e] = j >= row.lo && j < row.hi ? s[n][e] : LOWEST;
            top[e / 2] = fmaxf(top[e / 2], s[n][e]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 2));
    }
}

// exp(s - m), times 2^15 for f16; nothing where a row does not see.
template <typename T>
DEVICE float weight(float s, float m) {
    float e = s == LOWEST ? 0.0f : exp_fast(sub(s, m));
    return Half<T>::WIDE ? e : mul(e, 32768.0f);
}

// A sink is a key without a value before the first that a row sees: the maximum and the sum to begin with.
template <typename T>
DEVICE void sink_of(const Scores &scores, u32 head, float &m, float &l) {
    m = reinterpret_cast<const float *>(scores.sinks)[head];
    l = Half<T>::WIDE ? 1.0f : 32768.0f;
}

// Two weights as two 16-bit parts each.
template <typename T>
DEVICE void parts_of(float a, float b, u32 &high, u32 &low) {
    high = Half<T>::pack(a, b);
    low = Half<T>::pack(sub(a, Half<T>::low(high)), sub(b, Half<T>::high(high)));
}

// Two neighbouring outputs.
template <typename T>
DEVICE void write(const Flash &p, u32 token, u32 col, float a, float b) {
    T *to = row_of<T>(p.out, token) + col;
    if (((u64)to & 3) == 0) {
        *reinterpret_cast<u32 *>(to) = Half<T>::pack(a, b);
    } else {
        to[0] = narrow<T>(a), to[1] = narrow<T>(b);
    }
}
