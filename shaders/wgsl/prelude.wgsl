{#- What every kernel begins with: parameters, the guard, elements of 16 bits.

`params(carrier, fields)`: the template that calls it is the one place that names a kernel's parameters;
`eps`, `factor`, `near`, `cap`, `inverse`, `slope`, `limit` and `shift` are f32, all others u32.

The guard `og` makes a value opaque: an or with a parameter that is always zero. A compiler that may
reassociate or contract cannot see through it, so a product stays a product and a sum a sum (docs/numerics.md,
2). Not an exclusive or: compilers know that two of them are none, and values may be guarded twice. `strict` is
the dialect's, for all templates. -#}
{%- macro params(carrier, fields) -%}
struct Params {
    zero: u32,
{%- for field in fields %}
    {{ field }}: {{ "f32" if field in ["eps", "factor", "near", "cap", "inverse", "slope", "limit", "shift"] else "u32" }},
{%- endfor %}
}
{%- if carrier == "immediate" %}
var<immediate> p: Params;
{%- else %}
@group(1) @binding(0) var<uniform> p: Params;
{%- endif %}

fn og(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) | p.zero);
}

// Multiply and add, each rounded: the contract's separate multiply-add.
fn madd(a: f32, b: f32, c: f32) -> f32 {
    return og(a * b) + c;
}

// The next sum of a chain of products; opaque as the product is, where kernels are strict.
fn chained(a: f32, b: f32, sum: f32) -> f32 {
    return {{ "og(madd(a, b, sum))" if strict else "madd(a, b, sum)" }};
}

fn bf16_value(bits: u32) -> f32 {
    return bitcast<f32>(bits << 16u);
}

fn f16_value(bits: u32) -> f32 {
    return unpack2x16float(bits).x;
}

// To nearest, ties to even, in integers: drivers differ in their own conversions.
fn bf16_bits(v: f32) -> u32 {
    let x = bitcast<u32>(v);
    if ((x & 0x7fffffffu) > 0x7f800000u) {
        return (x >> 16u) | 0x40u;
    }
    return (x + 0x7fffu + ((x >> 16u) & 1u)) >> 16u;
}

fn f16_bits(v: f32) -> u32 {
    let x = bitcast<u32>(v);
    let sign = (x >> 16u) & 0x8000u;
    let a = x & 0x7fffffffu;
    if (a > 0x7f800000u) {
        return sign | 0x7e00u | ((a >> 13u) & 0x3ffu);
    }
    if (a >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    if (a < 0x38800000u) {
        if (a < 0x33000000u) {
            return sign;
        }
        let man = (a & 0x7fffffu) | 0x800000u;
        let shift = 126u - (a >> 23u);
        let half = 1u << (shift - 1u);
        let rest = man & ((1u << shift) - 1u);
        let truncated = man >> shift;
        let up = rest > half || (rest == half && (truncated & 1u) == 1u);
        return sign | (truncated + select(0u, 1u, up));
    }
    let r = a - 0x38000000u;
    return sign | ((r + 0xfffu + ((r >> 13u) & 1u)) >> 13u);
}
{%- endmacro -%}

{#- Of kernels with the parameter `slice`: which of a grid's workgroups a dispatch has. All of them (0), or every
n-th along one axis from the i-th on: 12 bits of i, 12 of n - 1, two of the axis; the upper six are the kernel's
own. A workgroup's number along an axis is `along(axis, its number in the dispatch)`; a loop over an axis takes
steps of `slice_step(axis)` times what the dispatch has along it. -#}
{%- macro slices() -%}
fn slice_step(axis: u32) -> u32 {
    return select(1u, ((p.slice >> 12u) & 0xfffu) + 1u, ((p.slice >> 24u) & 3u) == axis);
}
fn along(axis: u32, number: u32) -> u32 {
    let first = select(0u, p.slice & 0xfffu, ((p.slice >> 24u) & 3u) == axis);
    return first + slice_step(axis) * number;
}
{%- endmacro -%}

{#- A matrix or slab of floats to read: `name_at(i)`. An element `h16` is an f16 where shaders know that
type. -#}
{%- macro reads(slot, name, elem) -%}
{%- if elem == "f32" %}
@group(0) @binding({{ slot }}) var<storage, read> {{ name }}: array<f32>;
fn {{ name }}_at(i: u32) -> f32 {
    return {{ name }}[i];
}
{%- elif elem == "h16" %}
@group(0) @binding({{ slot }}) var<storage, read> {{ name }}: array<f16>;
fn {{ name }}_at(i: u32) -> f32 {
    return f32({{ name }}[i]);
}
{%- else %}
@group(0) @binding({{ slot }}) var<storage, read> {{ name }}: array<u32>;
fn {{ name }}_at(i: u32) -> f32 {
    return {{ elem }}_value(({{ name }}[i >> 1u] >> ((i & 1u) * 16u)) & 0xffffu);
}
{%- endif %}
{%- endmacro -%}

{#- A matrix or slab of floats to read and write: `name_at(i)`, `name_put(i, v)`. Two elements of 16 bits
share a word, and neighbours may belong to other invocations: clearing and setting one's own half touches
nothing else. -#}
{%- macro writes(slot, name, elem) -%}
{%- if elem == "f32" %}
@group(0) @binding({{ slot }}) var<storage, read_write> {{ name }}: array<f32>;
fn {{ name }}_at(i: u32) -> f32 {
    return {{ name }}[i];
}
fn {{ name }}_put(i: u32, value: f32) {
    {{ name }}[i] = value;
}
fn {{ name }}_round(v: f32) -> f32 {
    return v;
}
{%- elif elem == "h16" %}
@group(0) @binding({{ slot }}) var<storage, read_write> {{ name }}: array<f16>;
fn {{ name }}_at(i: u32) -> f32 {
    return f32({{ name }}[i]);
}
// Rounded in integers, since WGSL leaves the direction of its own conversion open; what is a half has none.
fn {{ name }}_put(i: u32, value: f32) {
    {{ name }}[i] = f16(f16_value(f16_bits(value)));
}
fn {{ name }}_round(v: f32) -> f32 {
    return f16_value(f16_bits(v));
}
{%- else %}
@group(0) @binding({{ slot }}) var<storage, read_write> {{ name }}: array<atomic<u32>>;
fn {{ name }}_at(i: u32) -> f32 {
    return {{ elem }}_value((atomicLoad(&{{ name }}[i >> 1u]) >> ((i & 1u) * 16u)) & 0xffffu);
}
fn {{ name }}_put(i: u32, value: f32) {
    let shift = (i & 1u) * 16u;
    atomicAnd(&{{ name }}[i >> 1u], ~(0xffffu << shift));
    atomicOr(&{{ name }}[i >> 1u], {{ elem }}_bits(value) << shift);
}
fn {{ name }}_round(v: f32) -> f32 {
    return {{ elem }}_value({{ elem }}_bits(v));
}
{%- endif %}
{%- endmacro -%}

{#- The same without interpretation, for copies: elements of 32 or 16 bits. -#}
{%- macro reads_bits(slot, name, elem) -%}
{%- if elem == "h16" %}
@group(0) @binding({{ slot }}) var<storage, read> {{ name }}: array<f16>;
fn {{ name }}_at(i: u32) -> f16 {
    return {{ name }}[i];
}
{%- else %}
@group(0) @binding({{ slot }}) var<storage, read> {{ name }}: array<u32>;
fn {{ name }}_at(i: u32) -> u32 {
{%- if elem == "f32" %}
    return {{ name }}[i];
{%- else %}
    return ({{ name }}[i >> 1u] >> ((i & 1u) * 16u)) & 0xffffu;
{%- endif %}
}
{%- endif %}
{%- endmacro -%}

{%- macro writes_bits(slot, name, elem) -%}
{%- if elem == "f32" %}
@group(0) @binding({{ slot }}) var<storage, read_write> {{ name }}: array<u32>;
fn {{ name }}_at(i: u32) -> u32 {
    return {{ name }}[i];
}
fn {{ name }}_put(i: u32, value: u32) {
    {{ name }}[i] = value;
}
{%- elif elem == "h16" %}
@group(0) @binding({{ slot }}) var<storage, read_write> {{ name }}: array<f16>;
fn {{ name }}_at(i: u32) -> f16 {
    return {{ name }}[i];
}
fn {{ name }}_put(i: u32, value: f16) {
    {{ name }}[i] = value;
}
{%- else %}
@group(0) @binding({{ slot }}) var<storage, read_write> {{ name }}: array<atomic<u32>>;
fn {{ name }}_at(i: u32) -> u32 {
    return (atomicLoad(&{{ name }}[i >> 1u]) >> ((i & 1u) * 16u)) & 0xffffu;
}
fn {{ name }}_put(i: u32, value: u32) {
    let shift = (i & 1u) * 16u;
    atomicAnd(&{{ name }}[i >> 1u], ~(0xffffu << shift));
    atomicOr(&{{ name }}[i >> 1u], value << shift);
}
{%- endif %}
{%- endmacro -%}

{#- Leaves of a sum: where leaf `l` of `k` terms begins (core's `numerics::leaf_bounds_of_groups`), and the
tree over 8. -#}
{%- macro leaves() -%}
fn leaf_start_of_groups(k: u32, grain: u32, group: u32, l: u32) -> u32 {
    if (l >= 8u) {
        return k;
    }
    var groups = k / (grain * group);
    var grains = group;
    var start = 0u;
    for (var bit = 4u; bit > 0u; bit = bit >> 1u) {
        let right = (l & bit) != 0u;
        if (groups == 1u) {
            let first = (grains + 1u) / 2u;
            start += select(0u, first, right);
            groups = select(1u, min(grains - first, 1u), right);
            grains = select(first, grains - first, right);
        } else {
            let first = (groups + 1u) / 2u;
            start += select(0u, first * grains, right);
            groups = select(first, groups - first, right);
        }
    }
    return start * grain;
}
fn leaf_start(k: u32, grain: u32, l: u32) -> u32 {
    return leaf_start_of_groups(k, grain, 1u, l);
}
fn tree(a: f32, b: f32, c: f32, d: f32, e: f32, f: f32, g: f32, h: f32) -> f32 {
    return og(og(og(a + b) + og(c + d)) + og(og(e + f) + og(g + h)));
}
{%- endmacro -%}

{#- The last sequence that begins at or before row `token`, of `p.seqs`, by bounds in `sequences`. -#}
{%- macro sequence_of() -%}
fn sequence_of(token: u32) -> u32 {
    var lo = 0u;
    var hi = p.seqs;
    while (lo + 1u < hi) {
        let mid = (lo + hi) / 2u;
        if (sequences[p.bounds_offset + mid] <= token) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return lo;
}
{%- endmacro -%}

{#- The parameters of `main` that number a workgroup's invocations, and the numbers made of them: `v`, and
`size`, the invocations of a subgroup. Nothing says which of the local indices share a subgroup, so with
subgroups they are not used. -#}
{%- macro numbering(subgroups) -%}
{%- if subgroups -%}
@builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_invocation_id) place: u32,
{%- else -%}
@builtin(local_invocation_index) v: u32,
{%- endif -%}
{%- endmacro -%}
{%- macro number(subgroups) -%}
{%- if subgroups %}
    let v = subgroup * size + place;
{%- endif %}
{%- endmacro -%}

{#- `values` (names of variables) of invocations whose numbers differ in one of the bits `bits` are added, bit
by bit, and every one gets the sum: the order depends on the numbers alone, not on the width of subgroups.
Bits within a subgroup are exchanged directly, the others through `swap`, workgroup memory of `stride`
words per value. -#}
{%- macro reduce(values, bits, stride, subgroups) -%}
{%- for bit in bits %}
{%- if subgroups %}
    if (size > {{ bit }}u) {
{%- for x in values %}
        {{ x }} = og({{ x }} + subgroupShuffleXor({{ x }}, {{ bit }}u));
{%- endfor %}
    } else {
{%- else %}
    {
{%- endif %}
{%- for x in values %}
        swap[v + {{ loop.index0 * stride }}u] = {{ x }};
{%- endfor %}
        workgroupBarrier();
{%- for x in values %}
        {{ x }} = og({{ x }} + swap[(v ^ {{ bit }}u) + {{ loop.index0 * stride }}u]);
{%- endfor %}
        workgroupBarrier();
    }
{%- endfor %}
{%- endmacro -%}
