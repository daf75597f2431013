{#- Between the fused q | k | v matmul and attention, in one go: rotates queries and keys in place, and
writes keys and values into their pages. One invocation owns a pair of a head, an element of a key behind its
pairs, or an element of a value. Rounding is that of `rope.wgsl` followed by `kv.wgsl`: a rotated key is
rounded to the rows' type before it is stored.

Bytes moved: 2 (q + k) read and written + v read + k + v written, per row. -#}
{%- import "prelude.wgsl" as it -%}
{{ it.params(carrier, [
    "tokens", "heads", "kv_heads", "k_dim", "v_dim", "pairs", "x_offset", "x_pitch",
    "positions_offset", "table_offset", "table_positions", "interleaved", "slots_offset", "page_size",
    "pages",
]) }}
{{ it.writes(0, "x", x) }}
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> angles: array<f32>;
@group(0) @binding(3) var<storage, read> slots: array<i32>;
{{ it.writes(4, "keys", kv) }}
{{ it.writes(5, "values", kv) }}

// A pair after its rotation, rounded; as it is where the table does not reach.
fn rotated(row: u32, pair: u32, first: u32, second: u32) -> vec2<f32> {
    let a = x_at(first);
    let b = x_at(second);
    let position = positions[p.positions_offset + row];
    if (position >= p.table_positions) {
        return vec2<f32>(a, b);
    }
    let at = p.table_offset + position * p.pairs + pair;
    let c = angles[at];
    let s = angles[at + p.table_positions * p.pairs];
    let rotated = vec2<f32>(x_round(og(a * c) - og(b * s)), x_round(og(b * c) + og(a * s)));
    x_put(first, rotated.x);
    x_put(second, rotated.y);
    return rotated;
}

// The places of a pair among a head's elements.
fn places(pair: u32) -> vec2<u32> {
    if (p.interleaved != 0u) {
        return vec2<u32>(2u * pair, 2u * pair + 1u);
    }
    return vec2<u32>(pair, pair + p.pairs);
}

fn key_index(page: u32, head: u32, offset: u32, d: u32) -> u32 {
    return ((page * p.kv_heads + head) * p.k_dim + d) * p.page_size + offset;
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let queries = p.heads * p.pairs;
    let key_units = p.k_dim - p.pairs;
    let keys_here = p.kv_heads * key_units;
    let per_row = queries + keys_here + p.kv_heads * p.v_dim;
    let total = p.tokens * per_row;
    for (var i = id.x; i < total; i += groups.x * 256u) {
        let row = i / per_row;
        let base = p.x_offset + row * p.x_pitch;
        var unit = i % per_row;
        if (unit < queries) {
            let at = places(unit % p.pairs) + vec2<u32>(base + (unit / p.pairs) * p.k_dim);
            rotated(row, unit % p.pairs, at.x, at.y);
            continue;
        }
        unit -= queries;
        let slot = slots[p.slots_offset + row];
        let stored = slot >= 0 && u32(slot) < p.pages * p.page_size;
        let page = u32(max(slot, 0)) / p.page_size;
        let offset = u32(max(slot, 0)) % p.page_size;
        let k_base = base + p.heads * p.k_dim;
        if (unit < keys_here) {
            let head = unit / key_units;
            let r = unit % key_units;
            if (r < p.pairs) {
                let at = places(r);
                let from_ = k_base + head * p.k_dim;
                let key = rotated(row, r, from_ + at.x, from_ + at.y);
                if (stored) {
                    keys_put(key_index(page, head, offset, at.x), key.x);
                    keys_put(key_index(page, head, offset, at.y), key.y);
                }
            } else if (stored) {
                let d = r + p.pairs;
                keys_put(key_index(page, head, offset, d), x_at(k_base + head * p.k_dim + d));
            }
        } else if (stored) {
            unit -= keys_here;
            let head = unit / p.v_dim;
            let d = unit % p.v_dim;
            let value = x_at(k_base + p.kv_heads * p.k_dim + unit);
            values_put(((page * p.kv_heads + head) * p.page_size + offset) * p.v_dim + d, value);
        }
    }
}
