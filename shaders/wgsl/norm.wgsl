{#- Row norms: alone, after the residual sum (`add`), and over every head in place (`heads`).

One workgroup norms one part of a row. Eight invocations hold a leaf each (docs/numerics.md, 1), all write. -#}
{%- import "prelude.wgsl" as it -%}
{{ it.params(carrier, fields) }}
{{ it.leaves() }}
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

var<workgroup> leaf: array<f32, 8>;

fn of_leaves() -> f32 {
    return tree(leaf[0], leaf[1], leaf[2], leaf[3], leaf[4], leaf[5], leaf[6], leaf[7]);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let n = p.width;
    let items = p.rows * p.parts;
    for (var item = group.x; item < items; item += groups.x) {
        let row = item / p.parts;
        let col = (item % p.parts) * n;
        let base = p.x_offset + row * p.x_pitch + col;
        let to = p.out_offset + row * p.out_pitch + col;
{%- if how == "add" %}
        let other = p.add_offset + row * p.add_pitch + col;
        for (var c = t; c < n; c += 64u) {
            x_put(base + c, x_at(base + c) + addend_at(other + c));
        }
        storageBarrier();
{%- endif %}
        var mean = 0.0;
        if ((p.flags & RMS) == 0u) {
            if (t < 8u) {
                var acc = 0.0;
                let end = leaf_start(n, 1u, t + 1u);
                for (var c = leaf_start(n, 1u, t); c < end; c += 1u) {
                    acc = og(acc + {{ at }}(base + c));
                }
                leaf[t] = acc;
            }
            workgroupBarrier();
            mean = og(of_leaves() / f32(n));
            workgroupBarrier();
        }
        if (t < 8u) {
            var acc = 0.0;
            let end = leaf_start(n, 1u, t + 1u);
            for (var c = leaf_start(n, 1u, t); c < end; c += 1u) {
                let v = og({{ at }}(base + c) - mean);
                acc = og(madd(v, v, acc));
            }
            leaf[t] = acc;
        }
        workgroupBarrier();
        let r = og(1.0 / og(sqrt(og(og(of_leaves() / f32(n)) + p.eps))));
        for (var c = t; c < n; c += 64u) {
            var v = og(og({{ at }}(base + c) - mean) * r);
            if ((p.flags & WEIGHT) != 0u) {
                let w = weight[c];
                v = og(v * select(w, og(1.0 + w), (p.flags & PLUS_ONE) != 0u));
            }
            if ((p.flags & BIAS) != 0u) {
                v = v + bias[c];
            }
            out_put(to + c, v);
        }
        workgroupBarrier();
    }
}
