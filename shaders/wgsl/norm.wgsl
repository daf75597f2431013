{#- Row norms: alone, after the residual sum (`add`), and over every head in place (`heads`).

One workgroup norms one part of a row, and all invocations write. Sums by `reduce`:

- `leaves`: eight invocations hold a leaf each, the contract's order (docs/numerics.md, 1);
- `shared`, `subgroups`: all 64 sum the elements v, v + 64, ... and meet (`meet` in the prelude). Both give the same bits. -#}
{%- import "prelude.wgsl" as it -%}
{{ it.params(carrier, fields) }}
{%- set wide = reduce != "leaves" %}
{%- set subgroups = reduce == "subgroups" %}
{%- if not wide %}
{{ it.leaves() }}
{%- endif %}
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

const RMS = 1u;
const WEIGHT = 2u;
const BIAS = 4u;
const PLUS_ONE = 8u;

{%- if wide %}

var<workgroup> swap: array<f32, 64>;
{%- else %}

var<workgroup> leaf: array<f32, 8>;

fn of_leaves() -> f32 {
    return tree(leaf[0], leaf[1], leaf[2], leaf[3], leaf[4], leaf[5], leaf[6], leaf[7]);
}
{%- endif %}

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
        var mean = 0.0;
        if ((p.flags & RMS) == 0u) {
{%- if wide %}
            var acc = 0.0;
            for (var c = v; c < n; c += 64u) {
                acc = og(acc + {{ at }}(base + c));
            }
            {{- it.meet(["acc"], [1, 2, 4, 8, 16, 32], 64, subgroups) }}
            mean = og(acc / f32(n));
{%- else %}
            if (v < 8u) {
                var acc = 0.0;
                let end = leaf_start(n, 1u, v + 1u);
                for (var c = leaf_start(n, 1u, v); c < end; c += 1u) {
                    acc = og(acc + {{ at }}(base + c));
                }
                leaf[v] = acc;
            }
            workgroupBarrier();
            mean = og(of_leaves() / f32(n));
            workgroupBarrier();
{%- endif %}
        }
{%- if wide %}
        var squares = 0.0;
        for (var c = v; c < n; c += 64u) {
            let d = og({{ at }}(base + c) - mean);
            squares = og(madd(d, d, squares));
        }
        {{- it.meet(["squares"], [1, 2, 4, 8, 16, 32], 64, subgroups) }}
        let r = og(1.0 / og(sqrt(og(og(squares / f32(n)) + p.eps))));
{%- else %}
        if (v < 8u) {
            var acc = 0.0;
            let end = leaf_start(n, 1u, v + 1u);
            for (var c = leaf_start(n, 1u, v); c < end; c += 1u) {
                let d = og({{ at }}(base + c) - mean);
                acc = og(madd(d, d, acc));
            }
            leaf[v] = acc;
        }
        workgroupBarrier();
        let r = og(1.0 / og(sqrt(og(og(of_leaves() / f32(n)) + p.eps))));
{%- endif %}
        for (var c = v; c < n; c += 64u) {
            var y = og(og({{ at }}(base + c) - mean) * r);
            if ((p.flags & WEIGHT) != 0u) {
                let w = weight[c];
                y = og(y * select(w, og(1.0 + w), (p.flags & PLUS_ONE) != 0u));
            }
            if ((p.flags & BIAS) != 0u) {
                y = y + bias[c];
            }
            out_put(to + c, y);
        }
{%- if not wide %}
        workgroupBarrier();
{%- endif %}
    }
}
