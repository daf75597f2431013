{#- Mean and reciprocal deviation of `n` elements by a workgroup of 64, in the contract's order or the
wide one. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "division.wgsl" as exact -%}

{#- What `moments` needs outside `main`. -#}
{%- macro shared(wide) -%}
const RMS = 1u;
const WEIGHT = 2u;
const BIAS = 4u;
const PLUS_ONE = 8u;

{{ exact.division() }}

{{ exact.root() }}
{%- if wide %}

var<workgroup> swap: array<f32, 64>;
{%- else %}
{{ it.leaves() }}
var<workgroup> leaf: array<f32, 8>;

fn of_leaves() -> f32 {
    return tree(leaf[0], leaf[1], leaf[2], leaf[3], leaf[4], leaf[5], leaf[6], leaf[7]);
}
{%- endif %}
{%- endmacro -%}

{#- `mean` (0 of an RMS norm) and `r`, of the elements that `element` names by `c`, with `p.flags` and
`p.eps`. -#}
{%- macro moments(element, wide, subgroups) %}
var mean = 0.0;
if ((p.flags & RMS) == 0u) {
{%- if wide %}
    var acc = 0.0;
    for (var c = v; c < n; c += 64u) {
        acc = og(acc + {{ element }});
    }
    {{- it.reduce(["acc"], [1, 2, 4, 8, 16, 32], 64, subgroups) }}
    mean = og(divide(acc, f32(n)));
{%- else %}
    if (v < 8u) {
        var acc = 0.0;
        let end = leaf_start(n, 1u, v + 1u);
        for (var c = leaf_start(n, 1u, v); c < end; c += 1u) {
            acc = og(acc + {{ element }});
        }
        leaf[v] = acc;
    }
    workgroupBarrier();
    mean = og(divide(of_leaves(), f32(n)));
    workgroupBarrier();
{%- endif %}
}
{%- if wide %}
var squares = 0.0;
for (var c = v; c < n; c += 64u) {
    let d = og({{ element }} - mean);
    squares = og(madd(d, d, squares));
}
{{- it.reduce(["squares"], [1, 2, 4, 8, 16, 32], 64, subgroups) }}
let r = og(divide(1.0, og(root(og(og(divide(squares, f32(n))) + p.eps)))));
{%- else %}
if (v < 8u) {
    var acc = 0.0;
    let end = leaf_start(n, 1u, v + 1u);
    for (var c = leaf_start(n, 1u, v); c < end; c += 1u) {
        let d = og({{ element }} - mean);
        acc = og(madd(d, d, acc));
    }
    leaf[v] = acc;
}
workgroupBarrier();
let r = og(divide(1.0, og(root(og(og(divide(of_leaves(), f32(n))) + p.eps)))));
{%- endif %}
{%- endmacro -%}
