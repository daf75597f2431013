{#- Paged keys and values: append, copy, read.

A page of the key slab is `[kv_head][d][position]`, of the value slab `[kv_head][position][d]`: scores run
over positions side by side, outputs over value columns. -#}
{%- import "prelude.wgsl" as it -%}
{%- if how == "append" %}
{{ it.params(carrier, [
    "tokens", "kv_heads", "k_dim", "v_dim", "page_size", "pages", "k_offset", "k_pitch", "v_offset",
    "v_pitch", "slots_offset",
]) }}
{{ it.reads(0, "k", x) }}
{{ it.reads(1, "v", x) }}
@group(0) @binding(2) var<storage, read> slots: array<i32>;
{{ it.writes(3, "keys", kv) }}
{{ it.writes(4, "values", kv) }}
{%- elif how == "copy" %}
{{ it.params(carrier, ["pairs", "pairs_offset", "page_keys", "page_values", "pages"]) }}
@group(0) @binding(0) var<storage, read> pairs: array<u32>;
{{ it.writes_bits(1, "keys", kv) }}
{{ it.writes_bits(2, "values", kv) }}
{%- else %}
{{ it.params(carrier, [
    "tokens", "kv_heads", "k_dim", "v_dim", "page_size", "pages", "k_offset", "k_pitch", "v_offset",
    "v_pitch", "pages_offset",
]) }}
@group(0) @binding(0) var<storage, read> pages: array<u32>;
{{ it.reads(1, "keys", kv) }}
{{ it.reads(2, "values", kv) }}
{{ it.writes(3, "k", x) }}
{{ it.writes(4, "v", x) }}
{%- endif %}

{%- if how != "copy" %}
fn key_index(page: u32, head: u32, offset: u32, d: u32) -> u32 {
    return ((page * p.kv_heads + head) * p.k_dim + d) * p.page_size + offset;
}
fn value_index(page: u32, head: u32, offset: u32, d: u32) -> u32 {
    return ((page * p.kv_heads + head) * p.page_size + offset) * p.v_dim + d;
}
{%- endif %}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
{%- if how == "copy" %}
    // Pairs in order within one element, elements side by side.
    let total = p.page_keys + p.page_values;
    for (var i = id.x; i < total; i += groups.x * 256u) {
        for (var pair = 0u; pair < p.pairs; pair += 1u) {
            let from_ = pairs[p.pairs_offset + 2u * pair];
            let to = pairs[p.pairs_offset + 2u * pair + 1u];
            if (from_ == to || from_ >= p.pages || to >= p.pages) {
                continue;
            }
            if (i < p.page_keys) {
                keys_put(to * p.page_keys + i, keys_at(from_ * p.page_keys + i));
            } else {
                let j = i - p.page_keys;
                values_put(to * p.page_values + j, values_at(from_ * p.page_values + j));
            }
        }
    }
{%- else %}
    let width = p.k_dim + p.v_dim;
    let per_row = p.kv_heads * width;
    let total = p.tokens * per_row;
    for (var i = id.x; i < total; i += groups.x * 256u) {
        let row = i / per_row;
        let head = (i % per_row) / width;
        let d = i % width;
{%- if how == "append" %}
        let slot = slots[p.slots_offset + row];
        if (slot < 0 || u32(slot) >= p.pages * p.page_size) {
            continue;
        }
        let page = u32(slot) / p.page_size;
        let offset = u32(slot) % p.page_size;
        if (d < p.k_dim) {
            keys_put(key_index(page, head, offset, d), k_at(p.k_offset + row * p.k_pitch + head * p.k_dim + d));
        } else {
            let e = d - p.k_dim;
            values_put(value_index(page, head, offset, e), v_at(p.v_offset + row * p.v_pitch + head * p.v_dim + e));
        }
{%- else %}
        let page = pages[p.pages_offset + row / p.page_size];
        if (page >= p.pages) {
            continue;
        }
        let offset = row % p.page_size;
        if (d < p.k_dim) {
            k_put(p.k_offset + row * p.k_pitch + head * p.k_dim + d, keys_at(key_index(page, head, offset, d)));
        } else {
            let e = d - p.k_dim;
            v_put(p.v_offset + row * p.v_pitch + head * p.v_dim + e, values_at(value_index(page, head, offset, e)));
        }
{%- endif %}
    }
{%- endif %}
}
