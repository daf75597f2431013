// Paged keys and values: where an element lies. Shared by kv.cu, attention.cu and whoever reads pages.
//
// Both slabs are `[page][kv_head][position in the page][d]`: a key and a value are a row each, so an append writes whole
// rows, and a tile of keys is the right operand of a tensor-core product as it lies.
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

// Element index of d = 0 of a key, of a value.
DEVICE u64 key_index(const KvView &kv, u32 page, u32 head, u32 offset) {
    return (((u64)page * kv.kv_heads + head) * kv.page_size + offset) * kv.k_dim;
}
DEVICE u64 value_index(const KvView &kv, u32 page, u32 head, u32 offset) {
    return (((u64)page * kv.kv_heads + head) * kv.page_size + offset) * kv.v_dim;
}
