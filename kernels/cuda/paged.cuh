// Paged keys and values: where an element lies. Shared by kv.cu, attention.cu and whoever reads pages.
//
// Both slabs are `[page][kv_head][position in the page][d]`: a key and a value are a row each, so an append
// writes whole rows, and a tile of keys is the right operand of a tensor-core matmul as it lies.
#pragma once
#include "device.cuh"

struct KvView {
    u64 keys;
    u64 values;
    u32 pages;
    u32 page_size;
    u32 kv_heads;
    u32 k_dim;
    u32 v_dim;
    u32 elem;
};

// The page table, [rows, stride] page numbers. `keys`: positions that a row has pages for (0: there is no
// page, or no row); whoever looks for a page asks for none beyond.
struct PageTable {
    u64 numbers;
    u32 rows;
    u32 stride;
    u32 keys;
    u32 reserved;
};

// The page of a position below `keys`. Numbers of rows and pages come from device memory: those beyond the
// table or the slab count as the last one, so nothing outside is read.
DEVICE u32 page_of(const KvView &kv, const PageTable &table, u32 row, u32 position) {
    u64 entry = (u64)least(row, table.rows - 1) * table.stride + position / kv.page_size;
    return least(reinterpret_cast<const u32 *>(table.numbers)[entry], kv.pages - 1);
}

// Element index of d = 0 of a key, of a value.
DEVICE u64 key_index(const KvView &kv, u32 page, u32 head, u32 offset) {
    return (((u64)page * kv.kv_heads + head) * kv.page_size + offset) * kv.k_dim;
}
DEVICE u64 value_index(const KvView &kv, u32 page, u32 head, u32 offset) {
    return (((u64)page * kv.kv_heads + head) * kv.page_size + offset) * kv.v_dim;
}
