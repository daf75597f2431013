// Experts' matmuls on tensor cores: the kernels of gemm_skinny.cuh and gemm_dense.cuh over the slots of one
// expert a block. No entry is here: grouped.cu has those for 16-bit weights, groupedq.cu for quantized ones.
//
// Slots are grouped by expert on the device (moe_group); block row y is the y-th tile of slots, counted over
// the experts whose weights are here (slots.cuh), and blocks behind the last tile have nothing to do. The
// host knows slots and experts alone: tiles are at most slots / rows + experts. Row r of a tile is the slot
// that the list names: x is read at its token (or its own row), out is written at the slot. Each expert's
// weight is packed by itself, its last tile with zeros beyond its outputs.
//
// A slot's sum is made as gemm.cuh says of every row: its bits are those of the matmul of that row alone with
// that expert's weight, whatever else is in its tile. No block adds to what another has written.
#pragma once
#include "gemm_dense.cuh"
#include "gemm_skinny.cuh"
#include "slots.cuh"

// As `params::grouped::Grouped`.
struct Grouped {
    // x [tokens, k] or [slots, k], out [slots, n]; n, k and bias [own * n] of one expert after the other.
    Gemm gemm;
    u64 groups;
    // Experts in all; the first whose weight is here, and how many are.
    u32 count;
    u32 first;
    u32 own;
    u32 reserved;
};

// One expert's weight, and some of its slots; in place of `OneWeight`.
struct OneExpert {
    static constexpr bool LISTED = true;
    const Grouped &all;
    const Gemm &p;
    SlotTile tile;

    template <u32 ROWS>
    static DEVICE OneExpert of(const Grouped &p) {
        const u32 *groups = reinterpret_cast<const u32 *>(p.groups);
        u32 slots = p.gemm.out.rows;
        SlotTile tile = slot_tile<ROWS>(groups + p.first, p.own, slots, blockIdx.y, threadIdx.x % 32);
        return {p, p.gemm, tile};
    }

    DEVICE bool has(u32 r) const { return r < tile.count; }
    // Slots that share a row of x have it in their order. Numbers beyond the slots are none that a route
    // writes: they read the last and write nothing.
    DEVICE u32 from(u32 r) const { return least(to(r), p.out.rows - 1) / (p.out.rows / p.x.rows); }
    DEVICE bool writes(u32 r) const { return has(r) && to(r) < p.out.rows; }
    DEVICE u32 to(u32 r) const { return reinterpret_cast<const u32 *>(all.groups)[all.count + 1 + tile.from + r]; }
    DEVICE u32 left(u32 r) const { return has(r) ? tile.count - r : 0; }
    DEVICE u64 tiles() const { return (u64)tile.expert * over(p.n, 16); }
    template <typename F>
    DEVICE u64 weight() const { return p.weight + tiles() * p.units * (2 * F::HALF); }
    template <typename F>
    DEVICE u64 scales() const { return p.scales + tiles() * p.groups * F::SCALES; }
    DEVICE u64 bias() const { return p.bias == 0 ? 0 : p.bias + (u64)tile.expert * p.n * sizeof(float); }
};

#define GROUPED_SKINNY(FAMILY, NAME, T, F, WARPS, MT, NT, STAGES)                                                      \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) FAMILY##_##NAME(const __grid_constant__ Grouped p) {   \
        using Kernel = Skinny<T, F, WARPS, MT, NT, STAGES, OneExpert>;                                                 \
        static_assert(Kernel::SHARED <= 98304, "96 KiB");                                                              \
        begin();                                                                                                       \
        OneExpert rows = OneExpert::of<Kernel::ROWS>(p);                                                               \
        if (rows.tile.count == 0) return;                                                                              \
        u32 leaf = threadIdx.x / 32 * Kernel::OWN;                                                                     \
        const u32 *leaves = p.gemm.leaves;                                                                             \
        Kernel kernel(p.gemm, rows, shared_address(memory), leaves[leaf], leaves[leaf + 1], leaves[leaf + Kernel::OWN]); \
        kernel.run(reinterpret_cast<float *>(memory));                                                                 \
    }

#define GROUPED_DENSE(FAMILY, NAME, T, F, MW, NW, MT, NT, STAGES)                                                      \
    extern "C" __global__ void __launch_bounds__(MW * NW * 32, 1) FAMILY##_##NAME(const __grid_constant__ Grouped p) { \
        using Kernel = Dense<T, F, MW, NW, MT, NT, STAGES, OneExpert>;                                                 \
        static_assert(Kernel::SHARED <= 98304, "96 KiB");                                                              \
        begin();                                                                                                       \
        OneExpert rows = OneExpert::of<Kernel::ROWS>(p);                                                               \
        if (rows.tile.count == 0) return;                                                                              \
        Kernel kernel(p.gemm, rows, shared_address(memory));                                                           \
        kernel.run(reinterpret_cast<float *>(memory));                                                                 \
    }
