{#- Norms of groups of columns over all rows: a workgroup per group.

Invocation v has strand v, rows v, v + 64, ...: a chain for each column, the chains added by ascending columns.
The strands go through a tree (`reduce` in the prelude): the contract's order (docs/numerics.md, 1). -#}
{%- import "prelude.wgsl" as it -%}
{%- import "moments.wgsl" as moments -%}
{{ it.params(carrier, [
    "rows", "groups", "width", "x_offset", "x_pitch", "out_offset", "out_pitch", "flags", "eps",
]) }}
@group(0) @binding(0) var<storage, read> weight: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
{{ it.writes(2, "out", x) }}
{{ it.reads(3, "x", x) }}

{{ moments.shared(true) }}

{%- macro strand(element) %}
acc = 0.0;
for (var c = first; c < first + p.width; c += 1u) {
    var chain = 0.0;
    for (var row = v; row < p.rows; row += 64u) {
        let at = p.x_offset + row * p.x_pitch + c;
        {{ element }}
    }
    acc = og(acc + chain);
}
{{- it.reduce(["acc"], [1, 2, 4, 8, 16, 32], 64, false) }}
{%- endmacro %}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    {{ it.numbering(false) }}
) {
    {{- it.number(false) }}
    let n = f32(p.rows * p.width);
    for (var item = group.x; item < p.groups; item += groups.x) {
        let first = item * p.width;
        var mean = 0.0;
        var acc = 0.0;
        if ((p.flags & RMS) == 0u) {
            {{- strand("chain = og(chain + x_at(at));") }}
            mean = og(divide(acc, n));
        }
        {{- strand("let d = og(x_at(at) - mean); chain = og(madd(d, d, chain));") }}
        let r = og(divide(1.0, og(root(og(og(divide(acc, n)) + p.eps)))));
        for (var row = v; row < p.rows; row += 64u) {
            for (var c = first; c < first + p.width; c += 1u) {
                var y = og(og(x_at(p.x_offset + row * p.x_pitch + c) - mean) * r);
                if ((p.flags & WEIGHT) != 0u) {
                    let w = weight[c];
                    y = og(y * select(w, og(1.0 + w), (p.flags & PLUS_ONE) != 0u));
                }
                if ((p.flags & BIAS) != 0u) {
                    y = og(y + bias[c]);
                }
                out_put(p.out_offset + row * p.out_pitch + c, y);
            }
        }
    }
}
