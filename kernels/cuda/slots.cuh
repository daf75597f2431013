// Slots by expert, as moe.cu's group leaves them: which of them a block takes.
#pragma once
#include "device.cuh"

// Slots of one expert: entries `from` to `from + count` of the list. Without any there is no such tile.
struct SlotTile {
    u32 expert;
    u32 from;
    u32 count;
};

// Tile `tile` of ROWS slots: experts' tiles lie one after the other, `own` experts from `bounds` on. A whole
// warp finds it: each lane counts the tiles of neighbouring experts, so that all bounds are on their way at
// once; every lane gets it.
template <u32 ROWS>
DEVICE SlotTile slot_tile(const u32 *bounds, u32 own, u32 slots, u32 tile, u32 lane) {
    // Bounds beyond the slots count as their number.
    auto begin = [&](u32 e) { return least(bounds[e], slots); };
    auto size = [&](u32 e) {
        u32 a = begin(e), b = begin(e + 1);
        return b > a ? b - a : 0;
    };
    u32 each = over(own, 32), tiles = 0;
    for (u32 e = lane * each; e < own && e < (lane + 1) * each; e++) tiles += over(size(e), ROWS);
    u32 sum = tiles;
#pragma unroll
    for (u32 span = 1; span < 32; span *= 2) {
        u32 other = __shfl_up_sync(0xffffffffu, sum, span);
        if (lane >= span) sum += other;
    }
    u32 hits = __ballot_sync(0xffffffffu, sum > tile);
    if (hits == 0) return {0, 0, 0};
    u32 at = __ffs(hits) - 1, left = tile - __shfl_sync(0xffffffffu, sum - tiles, at), e = at * each;
    for (; left >= over(size(e), ROWS); e++) left -= over(size(e), ROWS);
    return {e, begin(e) + left * ROWS, least(size(e) - left * ROWS, ROWS)};
}
