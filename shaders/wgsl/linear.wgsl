{#- `out = x w^T + bias`, then nothing, an activation, a sum with what the output holds, or (gate weights) `act(g) * u`.

A workgroup makes 32 outputs of a few rows: invocation (leaf, output) runs one leaf's chain per row, the leaves meet
in workgroup memory and are added by the tree. So the order depends on k and the grain alone. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "packed.wgsl" as packed -%}
{%- import "math.wgsl" as math -%}
{{ it.params(carrier, fields) }}
{{ it.leaves() }}
{%- if act %}
{{ math.functions() }}
{%- endif %}
{{ packed.weight(0, weight) }}
@group(0) @binding(2) var<storage, read> bias: array<f32>;
{%- if vector %}
// Rows begin at multiples of four elements.
@group(0) @binding(3) var<storage, read> x: array<{{ "vec4<f32>" if x == "f32" else "vec2<u32>" }}>;
fn x_four(i: u32) -> vec4<f32> {
{%- if x == "f32" %}
    return x[i >> 2u];
{%- else %}
    let w = x[i >> 2u];
    return vec4<f32>(
        {{ x }}_value(w.x & 0xffffu), {{ x }}_value(w.x >> 16u), {{ x }}_value(w.y & 0xffffu), {{ x }}_value(w.y >> 16u),
    );
{%- endif %}
}
fn x_at(i: u32) -> f32 {
    return x_four(i)[i & 3u];
}
{%- else %}
{{ it.reads(3, "x", x) }}
{%- endif %}
{{ it.writes(4, "out", out) }}
{%- set halves = 2 if gate else 1 %}

const ROWS = {{ rows }}u;

// [half][leaf][row][output]
var<workgroup> sums: array<f32, {{ halves * 8 * rows * 32 }}>;

fn sum_of(half: u32, at: u32) -> f32 {
    let b = half * {{ 8 * rows * 32 }}u + at;
    let s = {{ rows * 32 }}u;
    return tree(
        sums[b], sums[b + s], sums[b + 2u * s], sums[b + 3u * s],
        sums[b + 4u * s], sums[b + 5u * s], sums[b + 6u * s], sums[b + 7u * s],
    );
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let lane = t % 32u;
    let leaf = t / 32u;
    let from_k = leaf_start(p.cols, p.grain, leaf);
    let to_k = leaf_start(p.cols, p.grain, leaf + 1u);
{%- if vector %}
    let units = (p.cols + UNIT - 1u) / UNIT;
{%- endif %}
    for (var tile = group.y; tile * ROWS < p.rows; tile += groups.y) {
{%- for r in range(rows) %}
{%- if r > 0 %}
        // Rows beyond the last repeat it and are not written.
        let x{{ r }} = p.x_offset + min(tile * ROWS + {{ r }}u, p.rows - 1u) * p.x_pitch;
{%- else %}
        let x0 = p.x_offset + tile * ROWS * p.x_pitch;
{%- endif %}
{%- endfor %}
        for (var half = 0u; half < {{ halves }}u; half += 1u) {
            let panel = group.x * {{ halves }}u + half;
{%- for r in range(rows) %}
            var acc{{ r }} = 0.0;
{%- endfor %}
            var k = from_k;
            while (k < to_k) {
{%- if vector %}
                // Whole units; values one by one before the first and behind the last.
                if ((k % UNIT) == 0u && k + UNIT <= to_k) {
                    let word = codes[(panel * units + k / UNIT) * 32u + lane];
{%- if weight == "f32" %}
                    let w0 = word;
{%- elif weight in ["f16", "bf16"] %}
                    let w0 = vec4<f32>(
                        {{ weight }}_value(word.x & 0xffffu), {{ weight }}_value(word.x >> 16u),
                        {{ weight }}_value(word.y & 0xffffu), {{ weight }}_value(word.y >> 16u),
                    );
{%- else %}
                    let block = (panel * (p.cols / 32u) + k / 32u) * 32u + lane;
                    {{ packed.scale(weight) }}
                    {{ packed.high(weight) }}
{%- for f in range(1 if weight == "q8_0" else 2) %}
                    let w{{ f }} = vec4<f32>(
{%- for e in range(4) %}
                        {{ packed.decoded(weight, (f * 4 + e) ~ "u", "k % 32u + " ~ (f * 4 + e) ~ "u") }},
{%- endfor %}
                    );
{%- endfor %}
{%- endif %}
{%- for f in range(1 if weight in ["f32", "f16", "bf16", "q8_0"] else 2) %}
{%- for r in range(rows) %}
                    {
                        let a = x_four(x{{ r }} + k + {{ f * 4 }}u);
{%- for e in range(4) %}
                        acc{{ r }} = madd(a[{{ e }}], w{{ f }}[{{ e }}], acc{{ r }});
{%- endfor %}
                    }
{%- endfor %}
{%- endfor %}
                    k += UNIT;
                    continue;
                }
{%- endif %}
                let w = weight_at(panel, lane, k);
{%- for r in range(rows) %}
                acc{{ r }} = madd(x_at(x{{ r }} + k), w, acc{{ r }});
{%- endfor %}
                k += 1u;
            }
            let to_sums = half * {{ 8 * rows * 32 }}u + leaf * {{ rows * 32 }}u + lane;
{%- for r in range(rows) %}
            sums[to_sums + {{ r * 32 }}u] = acc{{ r }};
{%- endfor %}
        }
        workgroupBarrier();
        let row = tile * ROWS + leaf;
        let n = p.first_out + group.x * 32u + lane;
        if (leaf < ROWS && row < p.rows && n < p.end_out) {
            let at = leaf * 32u + lane;
            let to = p.out_offset + row * p.out_pitch + n;
            var y = sum_of(0u, at);
{%- if gate %}
            var up = sum_of(1u, at);
            if (p.has_bias != 0u) {
                y = og(y + bias[n]);
                up = og(up + bias[p.inner + n]);
            }
{%- if act %}
            out_put(to, og(act_of(p.act, out_round(y))) * out_round(up));
{%- else %}
            // As a plain product a gate weight gives [gate | up].
            out_put(to, y);
            out_put(to + p.inner, up);
{%- endif %}
{%- else %}
            if (p.has_bias != 0u) {
                y = og(y + bias[n]);
            }
{%- if act %}
            y = act_of(p.act, out_round(y));
{%- else %}
            if (p.add != 0u) {
                y = out_at(to) + out_round(y);
            }
{%- endif %}
            out_put(to, y);
{%- endif %}
        }
        workgroupBarrier();
    }
}
