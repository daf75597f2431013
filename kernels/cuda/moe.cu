// Experts: chosen, grouped, multiplied with, added up.
//
//   route    logits [tokens, experts] f32 -> the top_k largest of a row (ties to the lowest, NaN as
//            the smallest), ascending, and their weights: softmax e / s or sigmoid, renormalised or not,
//            times a scale; or one after the other, each by the softmax of those left and near it. By
//            score: the largest s + bias, of the experts of the best groups. A warp per token; a lane ranks
//            a group.
//   group    slots (token * top_k + choice) by expert: bounds [experts + 1], then the slots of each expert,
//            ascending. A warp per expert looks through all slots twice: no atomics, so the order is what it
//            must be.
//   linear   every slot's matmul with its expert's weight [experts * n, k], in the order of the
//            contract: blocks of 32 outputs by 4 slots (or 16) of one expert (slots.cuh); on tensor cores
//            grouped.cu and groupedq.cu.
//   combine  out[t] = sum over j of weights[t, j] y[t top_k + j], added to out[t] where asked. Leaves go by
//            expert number, each a chain of madd; a rank adds those of its own experts and reads no other
//            slot. Without experts one chain.
//
// Bytes: linear reads an expert's weight once per 4 (16) of its slots; combine reads y once and writes out
// once.
#include "matmul.cuh"
#include "slots.cuh"

constexpr u32 MOST_CHOSEN = 64;

struct Route {
    MatView logits;
    MatView weights;
    u64 experts;
    u32 top_k;
    // 1: sigmoid, 0: softmax.
    u32 sigmoid;
    u32 renormalise;
    float scale;
    // [experts] f32, added to scores for the choice alone; 0: none.
    u64 bias;
    // 1: chosen by score, 0: by logit.
    u32 by_score;
    // Groups of experts, how many are chosen, and whether the sum of their two best ranks them.
    u32 groups;
    u32 open_groups;
    u32 best_two;
    // 1: one after the other, each weighed among the logits left and as near as this.
    u32 one_by_one;
    float near;
};

DEVICE u32 ascending(float v) {
    u32 bits = bits_of(v);
    if (is_nan(v)) bits = 0xff800000u;
    if (bits == 0x80000000u) bits = 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEVICE float from_ascending(u32 key) { return float_of(key >> 31 ? key & 0x7fffffffu : ~key); }

// Largest over a warp.
DEVICE u64 largest(u64 v) {
#pragma unroll
    for (u32 span = 16; span > 0; span /= 2) v = most(v, __shfl_xor_sync(0xffffffffu, v, span));
    return v;
}

// A row of logits and what its experts are chosen by.
struct Choice {
    const float *row;
    const float *bias;
    float max;
    // Sum over all experts that a softmax's scores are divided by; 1 for sigmoids.
    float whole;
    u32 experts;
    bool sigmoid;
    bool by_score;

    DEVICE float score(u32 e) const { return sigmoid ? sigmoid_of(row[e]) : exp_of(sub(row[e], max)); }
    DEVICE u32 key(u32 e) const {
        if (!by_score) return ascending(row[e]);
        float s = div(score(e), whole);
        return ascending(bias ? add(s, bias[e]) : s);
    }

    // Sum of all scores in the contract's order, in every lane.
    DEVICE float sum(u32 lane) const {
        float leaf = 0.0f;
        if (lane < LEAVES) {
            for (u32 e = leaf_start(experts, 1, lane); e < leaf_start(experts, 1, lane + 1); e++) leaf = add(leaf, score(e));
        }
        return __shfl_sync(0xffffffffu, tree_of_lanes(leaf), 0);
    }

    // Sum of a softmax over the logits that are left when expert c is chosen, and near its own; in every
    // lane.
    DEVICE float left(u32 c, float near, u32 lane) const {
        float best = row[c], leaf = 0.0f;
        u64 own = (u64)ascending(best) << 32 | (u32)~c;
        if (lane < LEAVES) {
            for (u32 e = leaf_start(experts, 1, lane); e < leaf_start(experts, 1, lane + 1); e++) {
                float s = row[e], size = float_of(bits_of(s) & 0x7fffffffu);
                bool before = ((u64)ascending(s) << 32 | (u32)~e) > own;
                bool out = before || sub(best, s) > mul(near, size > best ? size : best);
                if (!out) leaf = add(leaf, exp_of(sub(s, best)));
            }
        }
        return __shfl_sync(0xffffffffu, tree_of_lanes(leaf), 0);
    }

    // The best groups, a bit each; a lane has a group.
    DEVICE u32 open(const Route &p, u32 lane) const {
        u32 size = experts / p.groups, first = 0, second = 0;
        if (lane < p.groups) {
            for (u32 e = lane * size; e < (lane + 1) * size; e++) {
                u32 k = key(e);
                if (k > first) {
                    second = first;
                    first = k;
                } else if (k > second) {
                    second = k;
                }
            }
        }
        u32 rank = first;
        if (p.best_two && size > 1) rank = ascending(add(from_ascending(first), from_ascending(second)));
        u64 own = lane < p.groups ? (u64)rank << 32 | (u32)~lane : 0, before = ~0ull;
        u32 found = 0;
        for (u32 j = 0; j < p.open_groups; j++) {
            before = largest(own < before ? own : 0);
            found |= 1u << ~(u32)before;
        }
        return found;
    }
};

extern "C" __global__ void __launch_bounds__(128) moe_route(const __grid_constant__ Route p) {
    __shared__ u32 all[4][MOST_CHOSEN];
    begin();
    u32 lane = threadIdx.x % 32, token = blockIdx.x * 4 + threadIdx.x / 32;
    if (token >= p.logits.rows) return;
    u32 *chosen = all[threadIdx.x / 32];
    u32 experts = p.logits.cols;
    Choice row = {row_of<float>(p.logits, token), reinterpret_cast<const float *>(p.bias), 0.0f, 1.0f, experts, p.sigmoid != 0,
                  p.by_score != 0};
    u64 highest = 0;
    for (u32 e = lane; e < experts; e += 32) highest = most(highest, (u64)ascending(row.row[e]));
    row.max = from_ascending((u32)largest(highest));
    if (!row.sigmoid && (row.by_score || !p.renormalise && !p.one_by_one)) row.whole = row.sum(lane);
    u32 size = experts, open = 1;
    if (p.groups) {
        size = experts / p.groups;
        open = row.open(p, lane);
    }
    u64 before = ~0ull;
    for (u32 j = 0; j < p.top_k; j++) {
        // The largest (key, lowest number) below the one before.
        u64 best = 0;
        for (u32 e = lane; e < experts; e += 32) {
            if (!(open >> (e / size) & 1)) continue;
            u64 key = (u64)row.key(e) << 32 | (u32)~e;
            if (key < before) best = most(best, key);
        }
        before = largest(best);
        if (lane == 0) chosen[j] = ~(u32)before;
    }
    __syncwarp();
    // Ascending: a lane's choices go where as many smaller ones are.
    u32 mine[MOST_CHOSEN / 32], place[MOST_CHOSEN / 32];
#pragma unroll
    for (u32 i = 0; i < MOST_CHOSEN / 32; i++) {
        u32 j = i * 32 + lane;
        mine[i] = j < p.top_k ? chosen[j] : 0;
        place[i] = 0;
        for (u32 other = 0; other < p.top_k; other++) place[i] += chosen[other] < mine[i];
    }
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < MOST_CHOSEN / 32; i++) {
        if (i * 32 + lane < p.top_k) chosen[place[i]] = mine[i];
    }
    __syncwarp();
    if (p.one_by_one) {
        for (u32 j = 0; j < p.top_k; j++) {
            u32 e = chosen[j];
            float sum = row.left(e, p.near, lane);
            if (lane == 0) {
                reinterpret_cast<u32 *>(p.experts)[(u64)token * p.top_k + j] = e;
                row_of<float>(p.weights, token)[j] = div(p.scale, sum);
            }
        }
        return;
    }
    float total = row.whole;
    if (p.renormalise) {
        total = 0.0f;
        for (u32 j = 0; j < p.top_k; j++) total = add(total, row.score(chosen[j]));
    }
    total = total == 0.0f ? 1.0f : total;
    for (u32 j = lane; j < p.top_k; j += 32) {
        u32 e = chosen[j];
        reinterpret_cast<u32 *>(p.experts)[(u64)token * p.top_k + j] = e;
        row_of<float>(p.weights, token)[j] = mul(div(row.score(e), total), p.scale);
    }
}

struct Group {
    u64 experts;
    // [count + 1], then [slots].
    u64 groups;
    u32 count;
    u32 slots;
};

extern "C" __global__ void __launch_bounds__(32) moe_group(const __grid_constant__ Group p) {
    begin();
    u32 lane = threadIdx.x, expert = blockIdx.x;
    const u32 *experts = reinterpret_cast<const u32 *>(p.experts);
    u32 *bounds = reinterpret_cast<u32 *>(p.groups), *order = bounds + p.count + 1;
    u32 next = 0;
    for (u32 s = 0; s < p.slots; s += 32) {
        u32 e = s + lane < p.slots ? experts[s + lane] : 0xffffffffu;
        next += __popc(__ballot_sync(0xffffffffu, e < expert));
    }
    if (lane == 0) bounds[expert] = next;
    for (u32 s = 0; s < p.slots; s += 32) {
        u32 e = s + lane < p.slots ? experts[s + lane] : 0xffffffffu;
        u32 hits = __ballot_sync(0xffffffffu, e == expert);
        if (e == expert) order[next + __popc(hits & ((1u << lane) - 1))] = s + lane;
        next += __popc(hits);
    }
    if (lane == 0 && expert + 1 == p.count) bounds[p.count] = next;
}

struct ExpertLinear {
    // [slots, k], or a row per token.
    MatView x;
    // [count * n, k]
    WeightView weight;
    // [slots, n]
    MatView out;
    u64 bias;
    u64 groups;
    Leaves leaves;
    // Experts in all; the first whose weight is here, and how many are.
    u32 count;
    u32 first;
    u32 own;
    u32 elem;
    u32 elem_out;
};

template <typename W, u32 ROWS>
DEVICE void experts(const ExpertLinear &p) {
    __shared__ MatmulShared<ROWS> shared;
    begin();
    const u32 *groups = reinterpret_cast<const u32 *>(p.groups), *order = groups + p.count + 1;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, slots = p.out.rows;
    SlotTile tile = slot_tile<ROWS>(groups + p.first, p.own, slots, blockIdx.x, lane);
    if (tile.count == 0) return;
    u32 from = tile.from, count = tile.count, outputs = p.out.cols, per_row = slots / p.x.rows;
    u64 begin = (u64)tile.expert * outputs;
    u32 first = blockIdx.y * TILE_OUTPUTS, n = first + lane;
    matmul<W>(p.x, p.elem, p.weight, p.leaves, count, [=](u32 i) { return least(order[from + i], slots - 1) / per_row; }, begin + first,
               begin + outputs, shared);
    __syncthreads();
    for (u32 r = warp; r < count; r += 8) {
        u32 slot = order[from + r];
        if (n < outputs && slot < slots) {
            float y = shared.whole(r, lane);
            if (p.bias) y = add(y, reinterpret_cast<const float *>(p.bias)[begin + n]);
            store_any(p.out.ptr, (u64)slot * p.out.pitch + n, p.elem_out, y);
        }
    }
}

#define ENTRY(W, NAME)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 2) moe_linear_##NAME(const __grid_constant__ ExpertLinear p) {   \
        experts<W, FEW>(p);                                                                                            \
    }
EVERY_FORMAT(ENTRY)

// Many slots to an expert.
#define ENTRY_MANY(W, NAME)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, 2) moe_linear_many_##NAME(const __grid_constant__ ExpertLinear p) { \
        experts<W, MANY>(p);                                                                                           \
    }
ENTRY_MANY(Plain<float>, f32)
ENTRY_MANY(Plain<f16>, f16)
ENTRY_MANY(Plain<bf16>, bf16)

struct Combine {
    MatView y;
    // [tokens, top_k] f32
    MatView weights;
    MatView out;
    // [tokens * top_k], ascending within a token; 0: one chain.
    u64 experts;
    // First expert of every leaf, and their number; which leaves are added here.
    u32 leaves[LEAVES + 1];
    u32 own;
    u32 elem;
    u32 elem_out;
    u32 add;
    u32 reserved;
};

// The slots of token t: j is the first of a leaf, the first behind it when this returns.
template <typename T, u32 N>
DEVICE void combine_leaf(const Combine &p, u32 t, u32 c, bool whole, u32 &j, u32 leaf, float (&acc)[N]) {
    u32 top_k = p.weights.cols;
    const u32 *experts = reinterpret_cast<const u32 *>(p.experts) + (u64)t * top_k;
    const float *weights = row_of<float>(p.weights, t);
    float v[N];
#pragma unroll
    for (u32 i = 0; i < N; i++) acc[i] = 0.0f;
    for (; j < top_k && (p.experts == 0 || experts[j] < p.leaves[leaf + 1]); j++) {
        // Slots of other ranks hold nothing.
        if (!(p.own >> leaf & 1)) continue;
        load_part(row_of<T>(p.y, t * top_k + j), c, p.out.cols, whole, v);
        float w = weights[j];
#pragma unroll
        for (u32 i = 0; i < N; i++) acc[i] = madd(w, v[i], acc[i]);
    }
}

template <typename T>
DEVICE void combine(const Combine &p) {
    constexpr u32 N = Wide<T>::N;
    begin();
    u32 cols = p.out.cols;
    u32 c = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (c >= cols) return;
    bool whole = aligned<T>(p.y) && c + N <= cols, node = p.elem_out != p.elem;
    bool whole_out = (node ? aligned<float>(p.out) : aligned<T>(p.out)) && c + N <= cols;
    for (u32 t = blockIdx.y * blockDim.y + threadIdx.y; t < p.out.rows; t += gridDim.y * blockDim.y) {
        // Sums of 1, 2 and 4 leaves: the tree, leaf by leaf.
        float acc[N], pair[N], quad[N], half[N];
        u32 j = 0;
#pragma unroll
        for (u32 leaf = 0; leaf < LEAVES; leaf++) {
            combine_leaf<T>(p, t, c, whole, j, leaf, acc);
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                if (leaf % 2 == 0) pair[i] = acc[i];
                if (leaf % 2 == 1) pair[i] = add(pair[i], acc[i]);
                if (leaf % 4 == 1) quad[i] = pair[i];
                if (leaf % 4 == 3) quad[i] = add(quad[i], pair[i]);
                if (leaf == 3) half[i] = quad[i];
                if (leaf == 7) acc[i] = add(half[i], quad[i]);
            }
            if (p.experts == 0) break;
        }
        if (p.add) {
            float v[N];
            load_part(row_of<T>(p.out, t), c, cols, whole_out, v);
#pragma unroll
            for (u32 i = 0; i < N; i++) acc[i] = add(acc[i], v[i]);
        }
        if (node) {
            store_part(row_of<float>(p.out, t), c, cols, whole_out, acc);
        } else {
            store_part(row_of<T>(p.out, t), c, cols, whole_out, acc);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) moe_combine_f32(const __grid_constant__ Combine p) { combine<float>(p); }
extern "C" __global__ void __launch_bounds__(256) moe_combine_f16(const __grid_constant__ Combine p) { combine<f16>(p); }
extern "C" __global__ void __launch_bounds__(256) moe_combine_bf16(const __grid_constant__ Combine p) { combine<bf16>(p); }
