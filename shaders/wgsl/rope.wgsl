{#- Rotary embedding in place: `a' = a cos - b sin`, `b' = b cos + a sin` for every pair of every head. -#}
{%- import "prelude.wgsl" as it -%}
{{ it.params(carrier, [
    "tokens", "heads", "width", "pairs", "x_offset", "x_pitch", "positions_offset", "table_offset",
    "table_positions", "interleaved",
]) }}
{{ it.writes(0, "x", x) }}
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> angles: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let per_row = p.heads * p.pairs;
    let total = p.tokens * per_row;
    for (var i = id.x; i < total; i += groups.x * 256u) {
        let row = i / per_row;
        let head = (i % per_row) / p.pairs;
        let pair = i % p.pairs;
        let position = positions[p.positions_offset + row];
        if (position >= p.table_positions) {
            continue;
        }
        let base = p.x_offset + row * p.x_pitch + head * p.width;
        var first = base + pair;
        var second = first + p.pairs;
        if (p.interleaved != 0u) {
            first = base + 2u * pair;
            second = first + 1u;
        }
        let at = p.table_offset + position * p.pairs + pair;
        let c = angles[at];
        let s = angles[at + p.table_positions * p.pairs];
        let a = x_at(first);
        let b = x_at(second);
        x_put(first, og(a * c) - og(b * s));
        x_put(second, og(b * c) + og(a * s));
    }
}
