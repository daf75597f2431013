{#- Row norms: alone, after the residual sum (`add`), and over every head in place (`heads`).

One workgroup norms one part of a row, and all invocations write. Sums by `reduce`:

- `leaves`: eight invocations hold a leaf each, the contract's order (docs/numerics.md, 1);
- `shared`, `subgroups`: all 64 sum the elements v, v + 64, ... and reduce (`reduce` in the prelude). Both
  give the same bits. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "moments.wgsl" as moments -%}
{{ it.params(carrier, [
    "rows", "parts", "width", "x_offset", "x_pitch", "out_offset", "out_pitch", "add_offset",
    "add_pitch", "flags", "eps",
]) }}
{%- set wide = reduce != "leaves" %}
{%- set subgroups = reduce == "subgroups" %}
@group(0) @binding(0) var<storage, read> weight: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
{{ it.writes(2, "out", x) }}
{%- if how == "alone" %}
{{ it.reads(3, "x", x) }}
{%- set at = "x_at" %}
{%- elif how == "add" %}
{{ it.reads(3, "addend", x) }}
{{ it.writes(4, "x", x) }}
{%- set at = "x_at" %}
{%- else %}
{%- set at = "out_at" %}
{%- endif %}

{{ moments.shared(wide) }}

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
        let col = (item % p.parts) * n;
        let base = p.x_offset + row * p.x_pitch + col;
        let to = p.out_offset + row * p.out_pitch + col;
{%- if how == "add" %}
        let other = p.add_offset + row * p.add_pitch + col;
        for (var c = v; c < n; c += 64u) {
            x_put(base + c, x_at(base + c) + addend_at(other + c));
        }
{%- if not wide %}
        storageBarrier();
{%- endif %}
{%- endif %}
        {{- moments.moments(at ~ "(base + c)", wide, subgroups) }}
        for (var c = v; c < n; c += 64u) {
            var y = og(og({{ at }}(base + c) - mean) * r);
            if ((p.flags & WEIGHT) != 0u) {
                let w = weight[c];
                y = og(y * select(w, og(1.0 + w), (p.flags & PLUS_ONE) != 0u));
            }
            if ((p.flags & BIAS) != 0u) {
                y = og(y + bias[c]);
            }
            out_put(to + c, y);
        }
{%- if not wide %}
        workgroupBarrier();
{%- endif %}
    }
}
