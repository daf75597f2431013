{#- Packed weights: panels of 32 outputs, `[panel][unit along k][output]`, so that neighbours read neighbours.

A unit holds 4 values of one output in ascending k (f32: four words, f16 and bf16: two, 8-bit codes: one) or 8 (4-bit codes:
one word). Scales of blocks lie in a plane of their own, `[panel][block][output]`: d in the low, m in the high half; a
fifth bit per code follows as a second word. Values are decoded as `engraft_core::quant::block` does. -#}
{%- macro weight(slot, format) -%}
@group(0) @binding({{ slot }}) var<storage, read> codes: array<{{ {"f32": "vec4<f32>", "f16": "vec2<u32>", "bf16": "vec2<u32>"}[format] or "u32" }}>;
@group(0) @binding({{ slot + 1 }}) var<storage, read> scales: array<u32>;

const UNIT = {{ unit(format) }}u;

// Value `k` of output `lane` of a panel.
fn weight_at(panel: u32, lane: u32, k: u32) -> f32 {
    let units = (p.cols + UNIT - 1u) / UNIT;
    let word = codes[(panel * units + k / UNIT) * 32u + lane];
{%- if format == "f32" %}
    return word[k & 3u];
{%- elif format in ["f16", "bf16"] %}
    return {{ format }}_value((word[(k >> 1u) & 1u] >> ((k & 1u) * 16u)) & 0xffffu);
{%- else %}
    let block = (panel * (p.cols / 32u) + k / 32u) * 32u + lane;
    {{ scale(format) }}
    {{ high(format) }}
    let e = k % UNIT;
    return {{ decoded(format, "e", "k % 32u") }};
{%- endif %}
}
{%- endmacro -%}

{%- macro unit(format) -%}
{{ {"f32": 4, "f16": 4, "bf16": 4, "q8_0": 4}[format] or 8 }}
{%- endmacro -%}

{#- Scale (and minimum) of block `block`, as `d` and `m`. -#}
{%- macro scale(format) -%}
{%- if format in ["q5_0", "q5_1"] -%}
let dm = unpack2x16float(scales[block * 2u]);
{%- else -%}
let dm = unpack2x16float(scales[block]);
{%- endif -%}
{%- endmacro -%}

{#- Fifth bits of block `block`. -#}
{%- macro high(format) -%}
{%- if format in ["q5_0", "q5_1"] -%}
let fifth = scales[block * 2u + 1u];
{%- endif -%}
{%- endmacro -%}

{#- Value of code `e` of `word`, the code being number `place` in its block. -#}
{%- macro decoded(format, e, place) -%}
{%- if format == "q8_0" -%}
og(dm.x * f32(extractBits(bitcast<i32>(word), ({{ e }}) * 8u, 8u)))
{%- elif format == "q4_0" -%}
og(dm.x * f32(i32((word >> (({{ e }}) * 4u)) & 15u) - 8))
{%- elif format == "q4_1" -%}
og(og(dm.x * f32((word >> (({{ e }}) * 4u)) & 15u)) + dm.y)
{%- elif format == "q5_0" -%}
og(dm.x * f32(i32(((word >> (({{ e }}) * 4u)) & 15u) | (((fifth >> ({{ place }})) & 1u) << 4u)) - 16))
{%- elif format == "q5_1" -%}
og(og(dm.x * f32(((word >> (({{ e }}) * 4u)) & 15u) | (((fifth >> ({{ place }})) & 1u) << 4u))) + dm.y)
{%- endif -%}
{%- endmacro -%}
