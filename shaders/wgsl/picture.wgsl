{#- Convolutions in groups of columns (`conv`), and attention that is linear in the rows: sums of an item's keys and
values (`sums`), then what queries make of them (`read`).

All sums have the contract's eight leaves (docs/numerics.md, 1). An invocation makes an output; of sums it makes
one leaf of one, and a workgroup 32 sums. A row number beyond `x` is a row of zeros; bounds beyond the rows end
there. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "division.wgsl" as exact -%}
{%- if how == "conv" %}
{{ it.params(carrier, [
    "rows", "cols", "x_rows", "groups", "taps", "inputs", "outputs", "x_offset", "x_pitch", "rows_offset",
    "out_offset", "out_pitch", "biased",
]) }}
{{ it.reads(0, "x", x) }}
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
{{ it.writes(4, "out", x) }}
{%- elif how == "sums" %}
{{ it.params(carrier, [
    "items", "heads", "width", "step", "rows", "bounds_offset", "k_offset", "k_pitch", "v_offset", "v_pitch",
    "sums_offset", "sums_pitch",
]) }}
{{ it.reads(0, "k", x) }}
{{ it.reads(1, "v", x) }}
@group(0) @binding(2) var<storage, read> bounds: array<u32>;
{{ it.writes(3, "sums", "f32") }}

var<workgroup> leaf: array<f32, 256>;
{%- else %}
{{ it.params(carrier, [
    "items", "heads", "width", "step", "rows", "bounds_offset", "q_offset", "q_pitch", "sums_offset", "sums_pitch",
    "out_offset", "out_pitch", "eps",
]) }}
{{ it.reads(0, "q", x) }}
@group(0) @binding(1) var<storage, read> bounds: array<u32>;
{{ it.reads(2, "sums", "f32") }}
{{ it.writes(3, "out", x) }}
{{ exact.division() }}
{%- endif %}
{{ it.leaves() }}

fn relu(x: f32) -> f32 {
    return select(x, 0.0, x < 0.0);
}

@compute @workgroup_size(256)
{%- if how == "conv" %}
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let total = p.rows * p.cols;
    let terms = p.taps * p.inputs;
    for (var i = id.x; i < total; i += groups.x * 256u) {
        let r = i / p.cols;
        let c = i % p.cols;
        let first = p.x_offset + c / p.outputs % p.groups * p.inputs;
        let of_row = p.rows_offset + r * p.taps;
        var leaf: array<f32, 8>;
        var k = 0u;
        for (var l = 0u; l < 8u; l += 1u) {
            var acc = 0.0;
            for (let end = leaf_start(terms, 1u, l + 1u); k < end; k += 1u) {
                let row = rows[of_row + k / p.inputs];
                var value = 0.0;
                if (row < p.x_rows) {
                    value = x_at(first + row * p.x_pitch + k % p.inputs);
                }
                acc = og(madd(value, weight[k * p.cols + c], acc));
            }
            leaf[l] = acc;
        }
        var y = tree(leaf[0], leaf[1], leaf[2], leaf[3], leaf[4], leaf[5], leaf[6], leaf[7]);
        if (p.biased != 0u) {
            y = og(y + bias[c]);
        }
        out_put(p.out_offset + r * p.out_pitch + c, y);
    }
}
{%- elif how == "sums" %}
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) v_index: u32,
) {
    let own = v_index / 32u;
    let lane = v_index % 32u;
    let columns = p.width + 1u;
    let tiles = (p.width * columns + 31u) / 32u;
    let all = p.items * p.heads * tiles;
    for (var at = group.x; at < all; at += groups.x) {
        let head = at / tiles;
        let of_head = at % tiles * 32u + lane;
        let d = of_head / columns;
        let c = of_head % columns;
        let item = p.bounds_offset + head / p.heads;
        let first = head % p.heads * p.step;
        let start = min(bounds[item], p.rows);
        let count = max(min(bounds[item + 1u], p.rows), start) - start;
        var acc = 0.0;
        if (d < p.width) {
            let end = start + leaf_start(count, 1u, own + 1u);
            for (var row = start + leaf_start(count, 1u, own); row < end; row += 1u) {
                let key = relu(k_at(p.k_offset + row * p.k_pitch + first + d));
                var value = 1.0;
                if (c < p.width) {
                    value = v_at(p.v_offset + row * p.v_pitch + first + c);
                }
                acc = og(madd(key, value, acc));
            }
        }
        leaf[v_index] = acc;
        workgroupBarrier();
        if (own == 0u && d < p.width) {
            let sum = tree(
                leaf[lane], leaf[lane + 32u], leaf[lane + 64u], leaf[lane + 96u],
                leaf[lane + 128u], leaf[lane + 160u], leaf[lane + 192u], leaf[lane + 224u],
            );
            sums_put(p.sums_offset + (head * p.width + d) * p.sums_pitch + c, sum);
        }
        workgroupBarrier();
    }
}
{%- else %}
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let cols = p.heads * p.width;
    let total = p.rows * cols;
    for (var i = id.x; i < total; i += groups.x * 256u) {
        let r = i / cols;
        let c = i % cols;
        let head = c / p.width;
        let column = c % p.width;
        // The last item that begins at or before the row.
        var item = 0u;
        var beyond = p.items;
        while (item + 1u < beyond) {
            let middle = (item + beyond) / 2u;
            if (bounds[p.bounds_offset + middle] <= r) {
                item = middle;
            } else {
                beyond = middle;
            }
        }
        if (r < bounds[p.bounds_offset + item] || r >= bounds[p.bounds_offset + item + 1u]) {
            continue;
        }
        let q = p.q_offset + r * p.q_pitch + head * p.step;
        let row = p.sums_offset + (item * p.heads + head) * p.width * p.sums_pitch;
        var above: array<f32, 8>;
        var below: array<f32, 8>;
        var d = 0u;
        for (var l = 0u; l < 8u; l += 1u) {
            var a = 0.0;
            var b = 0.0;
            for (let end = leaf_start(p.width, 1u, l + 1u); d < end; d += 1u) {
                let x = relu(q_at(q + d));
                a = og(madd(x, sums_at(row + d * p.sums_pitch + column), a));
                b = og(madd(x, sums_at(row + d * p.sums_pitch + p.width), b));
            }
            above[l] = a;
            below[l] = b;
        }
        let made = tree(above[0], above[1], above[2], above[3], above[4], above[5], above[6], above[7]);
        let by = tree(below[0], below[1], below[2], below[3], below[4], below[5], below[6], below[7]);
        out_put(p.out_offset + r * p.out_pitch + c, divide(made, og(by + p.eps)));
    }
}
{%- endif %}
