{#- Rows to bytes: `engraft_core::quant::activation`, step by step. One invocation takes a block of 32
values and writes 8 words of codes and the scale. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "division.wgsl" as exact -%}
{{ it.params(carrier, ["rows", "blocks", "x_offset", "x_pitch"]) }}
{{ exact.division() }}
{{ it.reads(0, "x", x) }}
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

// 2^-100 as bits: below it a block counts as zero.
const LEAST = 0x0d800000u;
const INFINITE = 0x7f800000u;
// 1.5 * 2^23: a sum with it has the nearest integer, ties to even, in its lowest bits.
const SHIFT = 12582912.0;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var block = id.x; block < p.rows * p.blocks; block += groups.x * 64u) {
        let from_ = p.x_offset + (block / p.blocks) * p.x_pitch + (block % p.blocks) * 32u;
        // Magnitudes order as their bits do; a NaN is above all.
        var top = 0u;
        for (var i = 0u; i < 32u; i += 1u) {
            top = max(top, bitcast<u32>(x_at(from_ + i)) & 0x7fffffffu);
        }
        let zero = top < LEAST;
        let codeless = zero || top >= INFINITE;
        let largest = bitcast<f32>(select(top, 0x3f800000u, codeless));
        let factor = og(divide(127.0, largest));
        for (var w = 0u; w < 8u; w += 1u) {
            var word = 0u;
            for (var e = 0u; e < 4u; e += 1u) {
                let rounded = og(og(x_at(from_ + 4u * w + e) * factor) + SHIFT);
                word |= (bitcast<u32>(rounded) & 255u) << (8u * e);
            }
            out[block * 9u + w] = select(word, 0u, codeless);
        }
        let scale = bitcast<u32>(og(bitcast<f32>(top) * 0.007874015718698502));
        // What is not finite shows in the scale.
        out[block * 9u + 8u] = select(select(scale, 0x7fc00000u, top >= INFINITE), 0u, zero);
    }
}
