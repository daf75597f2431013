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
@group(0) @binding(3) var<storage, read> x: array<vec4<{{ "f32" if x == "f32" else "u32" }}>>;
{%- if x == "f32" %}
fn x_at(i: u32) -> f32 {
    return x[i >> 2u][i & 3u];
}
{%- else %}
fn x_at(i: u32) -> f32 {
    return {{ x }}_value((x[i >> 3u][(i >> 1u) & 3u] >> ((i & 1u) * 16u)) & 0xffffu);
}
{%- endif %}
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
    let words = (p.cols + PER_WORD - 1u) / PER_WORD;
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
                // One by one to a multiple of 8 and behind the last; eights in between.
                if ((k & 7u) != 0u || k + 8u > to_k) {
                    let w = weight_at(panel, lane, k);
{%- for r in range(rows) %}
                    acc{{ r }} = madd(x_at(x{{ r }} + k), w, acc{{ r }});
{%- endfor %}
                    k += 1u;
                    continue;
                }
                let at = (panel * words + k / PER_WORD) * 32u + lane;
{%- if weight not in ["f32", "f16", "bf16"] %}
                let block = (panel * (p.cols / 32u) + k / 32u) * 32u + lane;
                {{ packed.scale(weight) }}
                {{ packed.high(weight) }}
{%- endif %}
{%- if weight == "f32" %}
{%- for e in range(8) %}
                let w{{ e }} = codes[at + {{ e * 32 }}u];
{%- endfor %}
{%- elif weight in ["f16", "bf16"] %}
{%- for j in range(4) %}
                let word{{ j }} = codes[at + {{ j * 32 }}u];
                let w{{ 2 * j }} = {{ weight }}_value(word{{ j }} & 0xffffu);
                let w{{ 2 * j + 1 }} = {{ weight }}_value(word{{ j }} >> 16u);
{%- endfor %}
{%- else %}
{%- set per = 4 if weight == "q8_0" else 8 %}
                var word = codes[at];
{%- for e in range(8) %}
{%- if e > 0 and e % per == 0 %}
                word = codes[at + {{ e // per * 32 }}u];
{%- endif %}
                let w{{ e }} = {{ packed.decoded(weight, (e % per) ~ "u", "k % 32u + " ~ e ~ "u") }};
{%- endfor %}
{%- endif %}
{%- for r in range(rows) %}
{%- if vector and x == "f32" %}
                let a{{ r }} = x[(x{{ r }} + k) >> 2u];
                let b{{ r }} = x[((x{{ r }} + k) >> 2u) + 1u];
{%- for e in range(8) %}
                acc{{ r }} = madd({{ "a" if e < 4 else "b" }}{{ r }}[{{ e % 4 }}], w{{ e }}, acc{{ r }});
{%- endfor %}
{%- elif vector %}
                let a{{ r }} = x[(x{{ r }} + k) >> 3u];
{%- for e in range(8) %}
                acc{{ r }} = madd({{ x }}_value((a{{ r }}[{{ e // 2 }}] >> {{ e % 2 * 16 }}u) & 0xffffu), w{{ e }}, acc{{ r }});
{%- endfor %}
{%- else %}
{%- for e in range(8) %}
                acc{{ r }} = madd(x_at(x{{ r }} + k + {{ e }}u), w{{ e }}, acc{{ r }});
{%- endfor %}
{%- endif %}
{%- endfor %}
                k += 8u;
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
