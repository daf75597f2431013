{#- `rope_append.wgsl` for models that norm every query and key head first: norm, rotation and pages in one
go.

A workgroup takes a head of a row, holds it in workgroup memory, and does what `norm.wgsl` (over heads),
`rope.wgsl` and `kv.wgsl` do one after the other: it is rounded to the rows' type after the norm and after
the rotation. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "moments.wgsl" as moments -%}
{{ it.params(carrier, [
    "tokens", "heads", "kv_heads", "dims", "pairs", "x_offset", "x_pitch", "positions_offset",
    "table_offset", "table_positions", "flags", "eps", "slots_offset", "page_size", "pages",
]) }}
{%- set wide = reduce != "leaves" %}
{%- set subgroups = reduce == "subgroups" %}
{{ it.writes(0, "x", x) }}
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> angles: array<f32>;
@group(0) @binding(3) var<storage, read> slots: array<i32>;
{{ it.writes(4, "keys", kv) }}
{{ it.writes(5, "values", kv) }}
@group(0) @binding(6) var<storage, read> q_weight: array<f32>;
@group(0) @binding(7) var<storage, read> k_weight: array<f32>;

const INTERLEAVED = 16u;
{{ moments.shared(wide) }}

var<workgroup> head: array<f32, 512>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    {{ it.numbering(subgroups) }}
) {
    {{- it.number(subgroups) }}
    let n = p.dims & 0xffffu;
    let v_dim = p.dims >> 16u;
    let normed = p.heads + p.kv_heads;
    let units = normed + p.kv_heads;
    for (var item = group.x; item < p.tokens * units; item += groups.x) {
        let row = item / units;
        let unit = item % units;
        let base = p.x_offset + row * p.x_pitch;
        let slot = slots[p.slots_offset + row];
        let stored = slot >= 0 && u32(slot) < p.pages * p.page_size;
        let page = u32(max(slot, 0)) / p.page_size;
        let offset = u32(max(slot, 0)) % p.page_size;
        if (unit >= normed) {
            let of_head = unit - normed;
            for (var d = v; stored && d < v_dim; d += 64u) {
                let value = x_at(base + normed * n + of_head * v_dim + d);
                values_put(((page * p.kv_heads + of_head) * p.page_size + offset) * v_dim + d, value);
            }
            continue;
        }
        let is_key = unit >= p.heads;
        let from_ = base + unit * n;
        for (var c = v; c < n; c += 64u) {
            head[c] = x_at(from_ + c);
        }
        workgroupBarrier();
        {{- moments.moments("head[c]", wide, subgroups) }}
        for (var c = v; c < n; c += 64u) {
            var y = og(og(head[c] - mean) * r);
            if ((p.flags & WEIGHT) != 0u) {
                let w = select(q_weight[c], k_weight[c], is_key);
                y = og(y * select(w, og(1.0 + w), (p.flags & PLUS_ONE) != 0u));
            }
            head[c] = x_round(y);
        }
        workgroupBarrier();
        let position = positions[p.positions_offset + row];
        // What is not rotated counts as pairs of its own, behind the others.
        for (var i = v; i < n - p.pairs; i += 64u) {
            var places = vec2<u32>(i + p.pairs);
            if (i < p.pairs) {
                let apart = vec2<u32>(i, i + p.pairs);
                places = select(apart, vec2<u32>(2u * i, 2u * i + 1u), (p.flags & INTERLEAVED) != 0u);
            }
            var a = head[places.x];
            var b = head[places.y];
            if (i < p.pairs && position < p.table_positions) {
                let at = p.table_offset + position * p.pairs + i;
                let c = angles[at];
                let s = angles[at + p.table_positions * p.pairs];
                let rotated = vec2<f32>(x_round(og(a * c) - og(b * s)), x_round(og(b * c) + og(a * s)));
                a = rotated.x;
                b = rotated.y;
            }
            x_put(from_ + places.x, a);
            x_put(from_ + places.y, b);
            if (is_key && stored) {
                let to = (page * p.kv_heads + unit - p.heads) * n;
                keys_put((to + places.x) * p.page_size + offset, a);
                keys_put((to + places.y) * p.page_size + offset, b);
            }
        }
        workgroupBarrier();
    }
}
