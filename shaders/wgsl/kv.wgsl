{#- Paged keys and values: append, copy, read.

A page of the key slab is `[kv_head][d][position]`, of the value slab `[kv_head][position][d]`: scores run
over positions side by side, outputs over value columns. Of codes (`coded`) see `codes.wgsl`. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "codes.wgsl" as codes -%}
{%- if how == "append" %}
{{ it.params(carrier, [
    "tokens", "kv_heads", "k_dim", "v_dim", "page_size", "pages", "k_offset", "k_pitch", "v_offset",
    "v_pitch", "slots_offset",
]) }}
{{ it.reads(0, "k", x) }}
{{ it.reads(1, "v", x) }}
@group(0) @binding(2) var<storage, read> slots: array<i32>;
{%- if coded %}
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> values: array<u32>;
{{ codes.values(kv) }}
{{ codes.rounding(kv) }}
{%- else %}
{{ it.writes(3, "keys", kv) }}
{{ it.writes(4, "values", kv) }}
{%- endif %}
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
{%- if coded %}
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
{{ codes.values(kv) }}
{%- else %}
{{ it.reads(1, "keys", kv) }}
{{ it.reads(2, "values", kv) }}
{%- endif %}
{{ it.writes(3, "k", x) }}
{{ it.writes(4, "v", x) }}
{%- endif %}

{%- if how != "copy" %}
{%- set k_places = "words_of(p.k_dim)" if coded else "p.k_dim" %}
{%- set v_places = "words_of(p.v_dim)" if coded else "p.v_dim" %}
fn key_index(page: u32, head: u32, offset: u32, d: u32) -> u32 {
    return ((page * p.kv_heads + head) * {{ k_places }} + d) * p.page_size + offset;
}
fn value_index(page: u32, head: u32, offset: u32, d: u32) -> u32 {
    return ((page * p.kv_heads + head) * p.page_size + offset) * {{ v_places }} + d;
}
{%- endif %}
{%- if coded and how == "append" %}

// Column `d` of a row that is appended.
fn appended(is_key: bool, row: u32, head: u32, d: u32) -> f32 {
    if (is_key) {
        return k_at(p.k_offset + row * p.k_pitch + head * p.k_dim + d);
    }
    return v_at(p.v_offset + row * p.v_pitch + head * p.v_dim + d);
}

// The bits of the largest magnitude of a row; those of what is no number are above all others.
var<workgroup> most: atomic<u32>;

// A workgroup takes the key or the value of a head of a row.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) v: u32,
) {
    for (var unit = group.x; unit < p.tokens * p.kv_heads * 2u; unit += groups.x) {
        let is_key = unit % 2u == 0u;
        let head = unit / 2u % p.kv_heads;
        let row = unit / 2u / p.kv_heads;
        let width = select(p.v_dim, p.k_dim, is_key);
        if (v == 0u) {
            atomicStore(&most, 0u);
        }
        workgroupBarrier();
        var own = 0u;
        for (var d = v; d < width; d += 64u) {
            own = max(own, bitcast<u32>(appended(is_key, row, head, d)) & 0x7fffffffu);
        }
        atomicMax(&most, own);
        workgroupBarrier();
        let scale = row_scale(atomicLoad(&most));
        let inverse = divide(1.0, bitcast<f32>(select(scale.bits, 0x3f800000u, scale.empty)));
        let slot = slots[p.slots_offset + row];
        let stored = slot >= 0 && u32(slot) < p.pages * p.page_size && width > 0u;
        let page = u32(max(slot, 0)) / p.page_size;
        let offset = u32(max(slot, 0)) % p.page_size;
        for (var w = v; stored && w <= scale_place(width); w += 64u) {
            var word = scale.bits;
            if (w < scale_place(width)) {
                word = 0u;
                for (var i = 0u; i < 4u; i += 1u) {
                    let d = 4u * w + i;
                    if (d < width && !scale.empty) {
                        word |= code_of(appended(is_key, row, head, d), inverse) << (8u * i);
                    }
                }
            }
            if (is_key) {
                keys[key_index(page, head, offset, w)] = word;
            } else {
                values[value_index(page, head, offset, w)] = word;
            }
        }
        workgroupBarrier();
    }
}
{%- else %}
{%- if coded %}

fn key_of(page: u32, head: u32, offset: u32, d: u32) -> f32 {
    let scale = bitcast<f32>(keys[key_index(page, head, offset, scale_place(p.k_dim))]);
    return code_value(keys[key_index(page, head, offset, d / 4u)], d, scale);
}
fn value_of(page: u32, head: u32, offset: u32, d: u32) -> f32 {
    let scale = bitcast<f32>(values[value_index(page, head, offset, scale_place(p.v_dim))]);
    return code_value(values[value_index(page, head, offset, d / 4u)], d, scale);
}
{%- elif how == "read" %}

fn key_of(page: u32, head: u32, offset: u32, d: u32) -> f32 {
    return keys_at(key_index(page, head, offset, d));
}
fn value_of(page: u32, head: u32, offset: u32, d: u32) -> f32 {
    return values_at(value_index(page, head, offset, d));
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
            k_put(p.k_offset + row * p.k_pitch + head * p.k_dim + d, key_of(page, head, offset, d));
        } else {
            let e = d - p.k_dim;
            v_put(p.v_offset + row * p.v_pitch + head * p.v_dim + e, value_of(page, head, offset, e));
        }
{%- endif %}
    }
{%- endif %}
}
{%- endif %}
