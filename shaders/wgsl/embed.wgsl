{#- Rows of a table by id, out of packed panels; `add`: added to what the output holds. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "packed.wgsl" as packed -%}
{{ it.params(carrier, [
    "tokens", "cols", "ids_offset", "out_offset", "out_pitch", "first_row", "end_row", "all_rows",
    "block",
]) }}
{{ packed.weight(0, weight) }}
@group(0) @binding(2) var<storage, read> ids: array<u32>;
{{ it.writes(3, "out", out) }}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let total = p.tokens * p.cols;
    for (var i = id.x; i < total; i += groups.x * 256u) {
        let token = i / p.cols;
        let k = i % p.cols;
        let row = ids[p.ids_offset + token];
        // A table that spans several bindings is read in as many calls; the first also answers for unknown
        // ids.
        let here = row >= p.first_row && row < p.end_row;
        let nowhere = p.first_row == 0u && row >= p.all_rows;
        if (!here && !nowhere) {
            continue;
        }
        var v = 0.0;
        if (here) {
            let r = row - p.first_row;
            v = weight_at(r / 32u, r % 32u, k);
        }
        let to = p.out_offset + token * p.out_pitch + k;
{%- if add %}
        out_put(to, out_at(to) + out_round(v));
{%- else %}
        out_put(to, v);
{%- endif %}
    }
}
