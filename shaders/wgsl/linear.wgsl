{#- `out = x w^T + bias`, then nothing, an activation, a sum with what the output holds, or (gate weights) `act(g) * u`.

A workgroup makes 32 outputs of a few rows: invocation (leaf, output) runs one leaf's chain per row, the leaves meet
in workgroup memory and are added by the tree. So the order depends on k and the grain alone.

`experts`: rows are slots (pairs of a token and an expert), each multiplied with its expert's panels. `slot`: a workgroup
takes one slot after the other and looks up its expert; `group`: it takes tiles of the slots of expert `group.z`. -#}
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
{%- if experts == "slot" %}
// The expert of every slot.
@group(0) @binding(5) var<storage, read> which: array<u32>;
{%- elif experts == "group" %}
// Bounds of the experts' slots, then the slots by expert.
@group(0) @binding(5) var<storage, read> which: array<u32>;
{%- endif %}
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
{%- if experts == "slot" %}
    for (var tile = group.y; tile < p.rows; tile += groups.y) {
        let expert = which[p.which_offset + tile];
        let first = expert * ((p.inner + 31u) / 32u) + group.x;
        // An expert's panels may lie in another binding: that call makes these outputs.
        if (first < p.first_panel || first >= p.end_panel) {
            continue;
        }
        let x0 = p.x_offset + (tile / p.per_row) * p.x_pitch;
{%- elif experts == "group" %}
    let expert = group.z;
    let first = expert * ((p.inner + 31u) / 32u) + group.x;
    if (first < p.first_panel || first >= p.end_panel) {
        return;
    }
    let begin = which[p.which_offset + expert];
    let end = which[p.which_offset + expert + 1u];
    let order = p.which_offset + p.count + 1u;
    for (var tile = group.y; begin + tile * ROWS < end; tile += groups.y) {
{%- for r in range(rows) %}
        let x{{ r }} = p.x_offset + (which[order + min(begin + tile * ROWS + {{ r }}u, end - 1u)] / p.per_row) * p.x_pitch;
{%- endfor %}
{%- else %}
    for (var tile = group.y; tile * ROWS < p.rows; tile += groups.y) {
{%- for r in range(rows) %}
{%- if r > 0 %}
        // Rows beyond the last repeat it and are not written.
        let x{{ r }} = p.x_offset + min(tile * ROWS + {{ r }}u, p.rows - 1u) * p.x_pitch;
{%- else %}
        let x0 = p.x_offset + tile * ROWS * p.x_pitch;
{%- endif %}
{%- endfor %}
{%- endif %}
        for (var half = 0u; half < {{ halves }}u; half += 1u) {
            let panel = {{ "first - p.first_panel" if experts else "group.x * " ~ halves ~ "u + half" }};
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
                    {{ packed.shared(weight) }}
{%- for f in range(packed.unit(weight)|int // 4) %}
                    let w{{ f }} = vec4<f32>(
{%- for e in range(4) %}
                        {{ packed.decoded(weight, (f * 4 + e) ~ "u", "k + " ~ (f * 4 + e) ~ "u") }},
{%- endfor %}
                    );
{%- endfor %}
{%- endif %}
{%- for f in range(packed.unit(weight)|int // 4) %}
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
{%- if experts %}
        let n = group.x * 32u + lane;
        if (leaf < ROWS && {{ "n < p.inner" if experts == "slot" else "begin + tile * ROWS + leaf < end && n < p.inner" }}) {
            let at = leaf * 32u + lane;
            let row = {{ "tile" if experts == "slot" else "which[order + begin + tile * ROWS + leaf]" }};
            let to = p.out_offset + row * p.out_pitch + n;
            var y = sum_of(0u, at);
{%- else %}
        let row = tile * ROWS + leaf;
        let n = p.first_out + group.x * 32u + lane;
        if (leaf < ROWS && row < p.rows && n < p.end_out) {
            let at = leaf * 32u + lane;
            let to = p.out_offset + row * p.out_pitch + n;
            var y = sum_of(0u, at);
{%- endif %}
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
                y = og(y + bias[{{ "expert * p.inner + n" if experts else "n" }}]);
            }
{%- if act %}
            y = act_of(p.act, out_round(y));
{%- elif not experts %}
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
