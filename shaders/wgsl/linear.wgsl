{#- `out = x w^T + bias`, then nothing, an activation, a sum with what the output holds, or (gate weights)
`act(g) * u`.

A workgroup makes 32 outputs of a few rows: invocation (leaf, output) runs one leaf's chain per row, the
leaves are combined in workgroup memory and are added by the tree. So the order depends on k and the grain alone. With
the flag `WIDE` a leaf is four chains, one after the other: the order of `linear_lanes.wgsl`, which serves few
rows.

`bytes`: the input's rows are bytes, each block's products are summed as integers (docs/numerics.md, 4).

`experts`: rows are slots (pairs of a token and an expert), each multiplied with its expert's panels.
`slot`: a workgroup takes one slot after the other and looks up its expert; `group`: it takes tiles of the
slots of expert number z. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "packed.wgsl" as packed -%}
{%- import "matmul.wgsl" as matmul -%}
{%- import "math.wgsl" as math -%}
{%- set of_experts = [
    "rows", "cols", "grain", "x_offset", "x_pitch", "out_offset", "out_pitch", "inner", "flags",
    "block", "slice", "which_offset", "counts", "first_panel", "end_panel",
] %}
{{ it.params(carrier, of_experts if experts else matmul.fields) }}
{{ it.leaves() }}
{{ it.slices() }}
{%- if experts %}
// Flags; above the two is the number of the first expert whose weight is here. Counts: of experts, and above
// 16 bits of slots that read one row.
{%- endif %}
{{ matmul.parts(experts) }}
{%- if act %}
{{ math.functions() }}
{%- endif %}
{{ packed.weight(0, weight) }}
@group(0) @binding(2) var<storage, read> bias: array<f32>;
{%- if bytes %}
{{ matmul.byte_inputs(3, dot) }}
{%- else %}
{{ matmul.inputs(3, x, vector) }}
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
    let column = along(0u, group.x);
    let first_tile = along(1u, group.y);
    let tile_step = groups.y * slice_step(1u);
    let lane = t % 32u;
    let leaf = t / 32u;
    let leaf_from = leaf_at(leaf);
    let leaf_to = leaf_at(leaf + 1u);
{%- if not experts %}
    let parts = select(1u, 4u, (p.flags & WIDE) != 0u);
{%- endif %}
{%- if vector or bytes %}
    let units = (p.cols + UNIT - 1u) / UNIT;
{%- endif %}
{%- if experts == "slot" %}
    let per_row = p.counts >> 16u;
    for (var tile = first_tile; tile < p.rows; tile += tile_step) {
        let expert = which[p.which_offset + tile];
        let first = expert * ((p.inner + 31u) / 32u) + column;
        // An expert's panels may lie in another binding: that call makes these outputs.
        if (first < p.first_panel || first >= p.end_panel) {
            continue;
        }
        let x0 = p.x_offset + (tile / per_row) * p.x_pitch;
{%- elif experts == "group" %}
    let per_row = p.counts >> 16u;
    let expert = along(2u, group.z) + (p.flags >> 2u);
    let first = expert * ((p.inner + 31u) / 32u) + column;
    if (first < p.first_panel || first >= p.end_panel) {
        return;
    }
    // Groups that no routing wrote must not lead beyond the rows.
    let end = min(which[p.which_offset + expert + 1u], p.rows);
    let begin = min(which[p.which_offset + expert], end);
    let order = p.which_offset + (p.counts & 0xffffu) + 1u;
    for (var tile = first_tile; begin + tile * ROWS < end; tile += tile_step) {
{%- for r in range(rows) %}
        let x{{ r }} = p.x_offset + (which[order + min(begin + tile * ROWS + {{ r }}u, end - 1u)] / per_row) * p.x_pitch;
{%- endfor %}
{%- else %}
    for (var tile = first_tile; tile * ROWS < p.rows; tile += tile_step) {
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
            let panel = {{ "first - p.first_panel" if experts else "column * " ~ halves ~ "u + half" }};
{%- for r in range(rows) %}
            var acc{{ r }} = 0.0;
{%- endfor %}
{%- if experts %}
            var k = leaf_from;
            let to_k = leaf_to;
            {{ matmul.byte_chain(rows) if bytes else matmul.chain(weight, rows, vector) }}
{%- else %}
{%- for r in range(rows) %}
            var low{{ r }} = 0.0;
            var high{{ r }} = 0.0;
{%- endfor %}
            for (var part = 0u; part < parts; part += 1u) {
{%- for r in range(rows) %}
                acc{{ r }} = 0.0;
{%- endfor %}
                var k = part_start(leaf_from, leaf_to, part, parts);
                let to_k = part_start(leaf_from, leaf_to, part + 1u, parts);
                {{ matmul.byte_chain(rows) if bytes else matmul.chain(weight, rows, vector) }}
                switch (part) {
                    case 0u: {
{%- for r in range(rows) %}
                        low{{ r }} = og(acc{{ r }});
{%- endfor %}
                    }
                    case 1u: {
{%- for r in range(rows) %}
                        low{{ r }} = og(low{{ r }} + og(acc{{ r }}));
{%- endfor %}
                    }
                    case 2u: {
{%- for r in range(rows) %}
                        high{{ r }} = og(acc{{ r }});
{%- endfor %}
                    }
                    default: {
{%- for r in range(rows) %}
                        acc{{ r }} = og(low{{ r }} + og(high{{ r }} + og(acc{{ r }})));
{%- endfor %}
                    }
                }
            }
{%- endif %}
            let to_sums = half * {{ 8 * rows * 32 }}u + leaf * {{ rows * 32 }}u + lane;
{%- for r in range(rows) %}
            sums[to_sums + {{ r * 32 }}u] = own_leaf(leaf, acc{{ r }});
{%- endfor %}
        }
        workgroupBarrier();
{%- if experts %}
        let n = column * 32u + lane;
{%- if experts == "slot" %}
        let row = tile;
{%- else %}
        // Read where there is one only; beyond the rows otherwise.
        let slot = begin + tile * ROWS + leaf;
        let row = select(p.rows, which[order + min(slot, end - 1u)], slot < end);
{%- endif %}
        if (leaf < ROWS && row < p.rows && n < p.inner) {
            let at = leaf * 32u + lane;
            let to = p.out_offset + row * p.out_pitch + n;
            var y = sum_of(0u, at);
{%- else %}
        let row = tile * ROWS + leaf;
        let n = p.first_out + column * 32u + lane;
        if (leaf < ROWS && row < p.rows && n < p.end_out) {
            let at = leaf * 32u + lane;
            let to = p.out_offset + row * p.out_pitch + n;
            var y = sum_of(0u, at);
{%- endif %}
{%- if gate %}
            var up = sum_of(1u, at);
{%- endif %}
            {{- matmul.finish(gate, act, experts) }}
        }
        workgroupBarrier();
    }
}
