{#- Rows by their own moments, in place: cut off at some deviations above the mean (`topk`), or with the root of
the mean square of other rows (`match`), every part of `width` columns.

One workgroup has one part of a row. Sums by `reduce`, as in `norm.wgsl`. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "moments.wgsl" as moments -%}
{{ it.params(carrier, [
    "rows", "parts", "width", "x_offset", "x_pitch", "like_offset", "like_pitch", "limit",
]) }}
{%- set wide = reduce != "leaves" %}
{%- set subgroups = reduce == "subgroups" %}
{{ it.writes(0, "x", x) }}
{%- if how == "match" %}
{{ it.reads(1, "like", x) }}
{%- endif %}

{{ moments.shared(wide) }}

{#- `name`: the mean over a part of what `step` adds to `acc`. -#}
{%- macro mean_of(name, step) %}
var {{ name }} = 0.0;
{
    var acc = 0.0;
{%- if wide %}
    for (var c = v; c < n; c += 64u) {
        {{ step }}
    }
    {{- it.reduce(["acc"], [1, 2, 4, 8, 16, 32], 64, subgroups) }}
    {{ name }} = og(divide(acc, f32(n)));
{%- else %}
    if (v < 8u) {
        let end = leaf_start(n, 1u, v + 1u);
        for (var c = leaf_start(n, 1u, v); c < end; c += 1u) {
            {{ step }}
        }
        leaf[v] = acc;
    }
    workgroupBarrier();
    {{ name }} = og(divide(of_leaves(), f32(n)));
    workgroupBarrier();
{%- endif %}
}
{%- endmacro %}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    {{ it.numbering(subgroups) }}
) {
    {{- it.number(subgroups) }}
    let n = p.width;
    let items = p.rows * p.parts;
    for (var item = group.x; item < items; item += groups.x) {
        let row = item / p.parts;
        let base = p.x_offset + row * p.x_pitch + (item % p.parts) * n;
{%- if how == "topk" %}
        {{- mean_of("mean", "acc = og(acc + x_at(base + c));") }}
        {{- mean_of("variance", "let d = og(x_at(base + c) - mean); acc = og(madd(d, d, acc));") }}
        let cutoff = og(madd(p.limit, og(root(variance)), mean));
        for (var c = v; c < n; c += 64u) {
            let above = og(x_at(base + c) - cutoff);
            x_put(base + c, select(above, 0.0, above < 0.0));
        }
{%- else %}
        let other = p.like_offset + row * p.like_pitch;
        {{- mean_of("wanted", "let d = like_at(other + c); acc = og(madd(d, d, acc));") }}
        {{- mean_of("own", "let d = x_at(base + c); acc = og(madd(d, d, acc));") }}
        let least = select(own, p.limit, own < p.limit);
        let factor = og(divide(og(root(wanted)), og(root(least))));
        for (var c = v; c < n; c += 64u) {
            x_put(base + c, og(x_at(base + c) * factor));
        }
{%- endif %}
    }
}
