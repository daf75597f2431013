{#- The matmuls of `linear.wgsl` for few rows, in the wide order (`parts` in matmul.wgsl): where a row alone
would leave a GPU idle, a sum is split over 32 invocations instead of 8.

A workgroup makes 8 outputs: of invocation v the lowest three bits are the output, so that neighbours read
neighbours, the next two the part of a leaf, the upper three the leaf. Parts are added within subgroups as far
as these reach (from 16 wide on), leaves in workgroup memory. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "packed.wgsl" as packed -%}
{%- import "matmul.wgsl" as matmul -%}
{%- import "math.wgsl" as math -%}
{{ it.params(carrier, matmul.fields) }}
{{ it.leaves() }}
{{ it.slices() }}
{{ matmul.parts() }}
{%- if act %}
{{ math.functions() }}
{%- endif %}
{{ packed.weight(0, weight) }}
@group(0) @binding(2) var<storage, read> bias: array<f32>;
{{ matmul.inputs(3, x, true) }}
{{ it.writes(4, "out", out) }}
{%- set halves = 2 if gate else 1 %}

const ROWS = {{ rows }}u;

var<workgroup> swap: array<f32, {{ rows * 256 }}>;
// [half][leaf][row][output]
var<workgroup> sums: array<f32, {{ halves * 8 * rows * 8 }}>;

fn sum_of(half: u32, at: u32) -> f32 {
    let b = half * {{ 8 * rows * 8 }}u + at;
    let s = {{ rows * 8 }}u;
    return tree(
        sums[b], sums[b + s], sums[b + 2u * s], sums[b + 3u * s],
        sums[b + 4u * s], sums[b + 5u * s], sums[b + 6u * s], sums[b + 7u * s],
    );
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    {{ it.numbering(subgroups) }}
) {
    {{- it.number(subgroups) }}
    let column = along(0u, group.x);
    let part = (v / 8u) % 4u;
    let leaf = v / 32u;
    let lane = (column % 4u) * 8u + v % 8u;
    let leaf_from = leaf_at(leaf);
    let leaf_to = leaf_at(leaf + 1u);
    let from_k = part_start(leaf_from, leaf_to, part, 4u);
    let to_k = part_start(leaf_from, leaf_to, part + 1u, 4u);
    let units = (p.cols + UNIT - 1u) / UNIT;
    for (var tile = along(1u, group.y); tile * ROWS < p.rows; tile += groups.y * slice_step(1u)) {
{%- for r in range(rows) %}
        let x{{ r }} = p.x_offset + min(tile * ROWS + {{ r }}u, p.rows - 1u) * p.x_pitch;
{%- endfor %}
        for (var half = 0u; half < {{ halves }}u; half += 1u) {
            let panel = (column / 4u) * {{ halves }}u + half;
            var k = from_k;
{%- for r in range(rows) %}
            var acc{{ r }} = 0.0;
{%- endfor %}
            {{ matmul.chain(weight, rows, true) }}
{%- for r in range(rows) %}
            acc{{ r }} = og(acc{{ r }});
{%- endfor %}
            {{- it.reduce(["acc0", "acc1", "acc2", "acc3"][:rows], [8, 16], 256, subgroups) }}
            if (part == 0u) {
                let to_sums = half * {{ 8 * rows * 8 }}u + leaf * {{ rows * 8 }}u + v % 8u;
{%- for r in range(rows) %}
                sums[to_sums + {{ r * 8 }}u] = own_leaf(leaf, acc{{ r }});
{%- endfor %}
            }
        }
        workgroupBarrier();
        let row = tile * ROWS + v / 8u;
        let n = p.first_out + (column / 4u) * 32u + lane;
        if (v < {{ rows * 8 }}u && row < p.rows && n < p.end_out) {
            let to = p.out_offset + row * p.out_pitch + n;
            var y = sum_of(0u, v);
{%- if gate %}
            var up = sum_of(1u, v);
{%- endif %}
            {{- matmul.finish(gate, act, false) }}
        }
        workgroupBarrier();
    }
}
