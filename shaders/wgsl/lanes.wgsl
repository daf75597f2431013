{#- How a workgroup of 256 falls into subgroups: an invocation writes to the place of its number that
number (from 1 on), the width, and the numbers of its partners at distance 1 and at half the width. Places
left empty, or partners that are not there, show that the variants for subgroups cannot be used. -#}
{%- import "prelude.wgsl" as it -%}
{{ it.params(carrier, ["count"]) }}
@group(0) @binding(0) var<storage, read_write> results: array<u32>;

@compute @workgroup_size(256)
fn main({{ it.numbering(true) }}) {
    {{- it.number(true) }}
    if (v < p.count) {
        results[v * 4u] = v + 1u;
        results[v * 4u + 1u] = size;
    }
    let near = subgroupShuffleXor(v, 1u);
    let far = subgroupShuffleXor(v, size / 2u);
    if (v < p.count) {
        results[v * 4u + 2u] = near;
        results[v * 4u + 3u] = far;
    }
}
