{#- Packed weights: panels of 32 outputs, `[panel][word along k][output]`, so that neighbours read neighbours.

A word holds 1 (f32), 2 (f16, bf16), 4 (8-bit codes) or 8 (4-bit codes) values of one output in ascending k. Scales of
blocks lie in a plane of their own, `[panel][block][output]`: d in the low, m in the high half; a fifth bit per code
follows as a second word. Values are decoded as `engraft_core::quant::block` does. -#}
{%- macro weight(slot, format) -%}
{%- if format == "f32" %}
@group(0) @binding({{ slot }}) var<storage, read> codes: array<f32>;
{%- else %}
@group(0) @binding({{ slot }}) var<storage, read> codes: array<u32>;
{%- endif %}
@group(0) @binding({{ slot + 1 }}) var<storage, read> scales: array<u32>;

const PER_WORD = {{ per_word(format) }}u;

// Value `k` of output `lane` of a panel.
fn weight_at(panel: u32, lane: u32, k: u32) -> f32 {
    let words = (p.cols + PER_WORD - 1u) / PER_WORD;
    let word = codes[(panel * words + k / PER_WORD) * 32u + lane];
{%- if format == "f32" %}
    return word;
{%- elif format in ["f16", "bf16"] %}
    return {{ format }}_value((word >> ((k & 1u) * 16u)) & 0xffffu);
{%- else %}
    let block = (panel * (p.cols / 32u) + k / 32u) * 32u + lane;
    {{ scale(format) }}
    {{ high(format) }}
    let e = k % PER_WORD;
    return {{ decoded(format, "e", "k % 32u") }};
{%- endif %}
}
{%- endmacro -%}

{%- macro per_word(format) -%}
{{ {"f32": 1, "f16": 2, "bf16": 2, "q8_0": 4}[format] or 8 }}
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
