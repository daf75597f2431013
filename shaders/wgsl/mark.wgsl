{#- A mark behind work: its number, where the mark before it was noted, too, and the number of the last upload
stands. A command buffer that a driver gave up leaves its marks out, and so do all behind it; one with an
upload leaves the number of an earlier one. -#}
{%- import "prelude.wgsl" as it -%}
{{ it.params(carrier, ["number", "uploads"]) }}
@group(0) @binding(0) var<storage, read_write> noted: array<u32>;

@compute @workgroup_size(1)
fn main() {
    if (noted[0] + 1u == p.number && noted[1] == p.uploads) {
        noted[0] = p.number;
    }
}
