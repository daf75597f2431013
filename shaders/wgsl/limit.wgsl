{#- What a device can do at most, to compare models with: `read` takes `count` vectors of 16 bytes
in, invocation after invocation side by side; `multiply` runs `count` rounds of eight chains of four
multiply-adds, 64 operations a round, which a driver may fuse. Each of `invocations` writes a word, so
that nothing can be left out. -#}
{%- import "prelude.wgsl" as it -%}
{{ it.params(carrier, ["count", "invocations"]) }}
{%- if how == "read" %}
@group(0) @binding(0) var<storage, read> data: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> results: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var all = vec4<u32>(0u);
    for (var i = id.x; i < p.count; i += p.invocations) {
        all = all ^ data[i];
    }
    results[id.x] = all.x ^ all.y ^ all.z ^ all.w;
}
{%- else %}
@group(0) @binding(0) var<storage, read_write> results: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    // Neither one nor zero to a compiler: products and sums stay.
    let factor = vec4<f32>(bitcast<f32>(0x3f7fff00u ^ p.zero));
    let term = vec4<f32>(bitcast<f32>(0x33800000u ^ p.zero));
{%- for chain in range(8) %}
    var x{{ chain }} = vec4<f32>(f32(id.x + {{ chain }}u));
{%- endfor %}
    for (var round = 0u; round < p.count; round += 1u) {
{%- for chain in range(8) %}
        x{{ chain }} = x{{ chain }} * factor + term;
{%- endfor %}
    }
    let all = ((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7));
    if (id.x < p.invocations) {
        results[id.x] = bitcast<u32>((all.x + all.y) + (all.z + all.w));
    }
}
{%- endif %}
