{#- Element by element: sum, activation, xIELU, gated activation, modulation, limit, scale and cap, conversion (with a
bias). -#}
{%- import "prelude.wgsl" as it -%}
{%- import "math.wgsl" as math -%}
{%- if how == "scale" %}
{{ it.params(carrier, ["rows", "cols", "out_offset", "out_pitch", "factor", "capped", "cap", "inverse"]) }}
{%- elif how == "modulate" %}
{{ it.params(carrier, [
    "rows", "cols", "out_offset", "out_pitch", "items", "scale_offset", "scale_pitch", "shift_offset", "shift_pitch",
    "rows_offset", "plus_one", "shifted",
]) }}
{%- else %}
{{ it.params(carrier, ["rows", "cols", "x_offset", "x_pitch", "out_offset", "out_pitch", "limit" if how == "limit" else "act"] + (
    ["slope", "limit", "shift"] if how == "gate" else []
)) }}
{%- endif %}
{%- if how in ["activate", "xielu", "gate", "limit", "scale"] %}
{{ math.functions() }}
{%- endif %}
{%- if how in ["activate", "xielu", "modulate", "limit", "scale"] %}
{{ it.writes(0, "out", out) }}
{%- else %}
{{ it.reads(0, "x", x) }}
{{ it.writes(1, "out", out) }}
{%- endif %}
{%- if how == "xielu" %}
@group(0) @binding(1) var<storage, read> constants: array<f32>;

fn exp_remainder(x: f32) -> f32 {
    var q = madd(x, 1.9790347e-4, 1.394466e-3);
    q = madd(x, q, 8.333497e-3);
    q = madd(x, q, 4.1666295e-2);
    q = madd(x, q, 0.16666666);
    q = madd(x, q, 0.5);
    let near = og(x * x) * q;
    let far = og(og(exp_of(x)) - 1.0) - x;
    return select(far, near, x > -0.34375);
}

fn xielu_of(x: f32) -> f32 {
    let m = select(constants[3], x, x < constants[3]);
    let straight = og(constants[2] * x);
    let below = madd(constants[1], og(og(exp_remainder(m)) + og(m - x)), straight);
    return select(below, madd(og(constants[0] * x), x, straight), x > 0.0);
}
{%- endif %}
{%- if how == "modulate" %}
{{ it.reads(1, "scale", x) }}
{{ it.reads(2, "added", x) }}
@group(0) @binding(3) var<storage, read> rows: array<u32>;
{%- endif %}
{%- if how == "add_bias" %}
@group(0) @binding(2) var<storage, read> bias: array<f32>;
{%- endif %}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let total = p.rows * p.cols;
    for (var i = id.x; i < total; i += groups.x * 256u) {
        let row = i / p.cols;
        let col = i % p.cols;
        let to = p.out_offset + row * p.out_pitch + col;
{%- if how == "activate" %}
        out_put(to, act_of(p.act, out_at(to)));
{%- elif how == "xielu" %}
        out_put(to, xielu_of(out_at(to)));
{%- elif how == "modulate" %}
        let item = rows[p.rows_offset + row];
        if (item < p.items) {
            var f = scale_at(p.scale_offset + item * p.scale_pitch + col);
            if (p.plus_one != 0u) {
                f = og(f + 1.0);
            }
            var y = f * out_at(to);
            if (p.shifted != 0u) {
                y = og(y) + added_at(p.shift_offset + item * p.shift_pitch + col);
            }
            out_put(to, y);
        }
{%- elif how == "limit" %}
        out_put(to, clamp_to(out_at(to), -p.limit, p.limit));
{%- elif how == "scale" %}
        var y = og(out_at(to) * p.factor);
        if (p.capped != 0u) {
            y = p.cap * og(tanh_of(og(y * p.inverse)));
        }
        out_put(to, y);
{%- else %}
        let from_ = p.x_offset + row * p.x_pitch + col;
{%- if how == "add" %}
        out_put(to, out_at(to) + x_at(from_));
{%- elif how == "gate" %}
        var g = x_at(from_);
        var u = x_at(from_ + p.cols);
        // A limit of 0: no clamp.
        if (p.limit != 0.0) {
            g = select(g, p.limit, g > p.limit);
            u = select(u, p.limit, u > p.limit);
            u = og(select(u, -p.limit, u < -p.limit) + p.shift);
            g = og(g * og(sigmoid_of(og(p.slope * g))));
        } else {
            g = og(act_of(p.act, g));
        }
        out_put(to, g * u);
{%- elif how == "add_bias" %}
        out_put(to, x_at(from_) + bias[col]);
{%- else %}
        out_put(to, x_at(from_));
{%- endif %}
{%- endif %}
    }
}
