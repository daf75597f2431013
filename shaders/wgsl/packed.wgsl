{#- Packed weights: panels of 32 outputs, `[panel][unit along k][output]`, so that neighbours read neighbours.

A unit holds 4 values of one output in ascending k (f32: four words, f16, h16 where shaders know that type,
and bf16: two, 8-bit codes: one) or 8 (codes of up to 6 bits: the low four in one word). What a block of
values shares lies in a plane of its own, `[panel][block][word][output]`:

- own formats of small floats and tables, and GGUF's IQ4_NL and IQ4_XS: the scale in f32 (of IQ4_XS the product for each
  32 values); codes of six bits lie in bytes;
- formats of GGUF with 32 values and the own integer formats (`p.block` values): d in the low, m in the high half
  of the first word; fifth bits follow as a second word;
- K-quants, 256 values: d and e in the first word, sixteen bytes of the parts' small scales in four, then fifth
  bits (q5_k: a word for each 32 values) or fifth and sixth bits (q6_k: a word for each 16).

Values are decoded as `engraft_core::quant` does: products of scale and code are exact, the minimum is
added in one rounding. -#}
{#- A finite float of eight or six bits. -#}
{%- macro small_float(format) -%}
{%- set mantissa = {"e4m3": 3, "e5m2": 2, "e3m2": 2}[format] %}
{%- set low = {"e4m3": 127, "e5m2": 127, "e3m2": 31}[format] %}
{%- set bias = {"e4m3": 7, "e5m2": 15, "e3m2": 3}[format] %}

// A finite float of {{ format }}. Codes below the least exponent are counted, not shifted: drivers may flush
// what would be subnormal on the way.
fn small_float(code: u32) -> f32 {
    let size = code & {{ low }}u;
    let normal = bitcast<f32>((size << {{ 23 - mantissa }}u) + {{ (127 - bias) * 8388608 }}u);
    let least = f32(size) * {{ {"e4m3": 0.001953125, "e5m2": 0.0000152587890625, "e3m2": 0.0625}[format] }};
    let value = select(normal, least, size < {{ {"e4m3": 8, "e5m2": 4, "e3m2": 4}[format] }}u);
    return select(value, -value, code > {{ low }}u);
}
{%- endmacro -%}

{%- macro weight(slot, format) -%}
@group(0) @binding({{ slot }}) var<storage, read> codes: array<{{ {"f32": "vec4<f32>", "h16": "vec4<f16>", "f16": "vec2<u32>", "bf16": "vec2<u32>"}[format] or "u32" }}>;
@group(0) @binding({{ slot + 1 }}) var<storage, read> scales: array<u32>;

const UNIT = {{ unit(format) }}u;
{%- if format in ["e4m3", "e5m2", "e3m2"] %}
{{ small_float(format) }}
{%- elif format == "e2m1" %}
const PLACES = array<f32, 16>(
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
);
{%- elif format == "iq4" %}
const PLACES = array<f32, 16>(
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
);
{%- elif format == "nf4" %}
const PLACES = array<f32, 16>(
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
);
{%- endif %}

// Value `k` of output `lane` of a panel.
fn weight_at(panel: u32, lane: u32, k: u32) -> f32 {
    let units = (p.cols + UNIT - 1u) / UNIT;
    let word = codes[(panel * units + k / UNIT) * 32u + lane];
{%- if format == "f32" %}
    return word[k & 3u];
{%- elif format == "h16" %}
    return f32(word[k & 3u]);
{%- elif format in ["f16", "bf16"] %}
    return {{ format }}_value((word[(k >> 1u) & 1u] >> ((k & 1u) * 16u)) & 0xffffu);
{%- else %}
    {{ shared(format) }}
    return {{ decoded(format, "k % UNIT", "k") }};
{%- endif %}
}
{%- endmacro -%}

{%- macro unit(format) -%}
{{ {"f32": 4, "f16": 4, "h16": 4, "bf16": 4, "q8_0": 4, "q8_1": 4, "e4m3": 4, "e5m2": 4, "e3m2": 4}[format] or 8 }}
{%- endmacro -%}

{#- Words that a block shares. -#}
{%- macro words(format) -%}
{{ {"q5_0": 2, "q5_1": 2, "q2_k": 5, "q3_k": 5, "q4_k": 5, "q5_k": 13, "q6_k": 21}[format] or 1 }}
{%- endmacro -%}

{#- What the block of value `k` shares: `dm`, scale and minimum, and `high`, upper bits of its codes. -#}
{%- macro shared(format) -%}
{%- if format in ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"] -%}
let block = (panel * (p.cols / 256u) + k / 256u) * {{ 32 * words(format)|int }}u + lane;
    let de = unpack2x16float(scales[block]);
    let part = (k % 256u) / 16u;
{%- if format == "q2_k" %}
    let st = extractBits(scales[block + (1u + part / 4u) * 32u], (part % 4u) * 8u, 8u);
    let dm = vec2<f32>(og(de.x * f32(st & 15u)), og(de.y * f32(st >> 4u)));
{%- elif format in ["q4_k", "q5_k"] %}
    let of_part = ((part / 2u) % 4u) * 8u;
    let s = extractBits(scales[block + (1u + part / 8u) * 32u], of_part, 8u);
    let t = extractBits(scales[block + (3u + part / 8u) * 32u], of_part, 8u);
    let dm = vec2<f32>(og(de.x * f32(s)), og(de.y * f32(t)));
{%- else %}
    let s = extractBits(bitcast<i32>(scales[block + (1u + part / 4u) * 32u]), (part % 4u) * 8u, 8u);
    let dm = vec2<f32>(og(de.x * f32(s)), 0.0);
{%- endif %}
{%- if format == "q5_k" %}
    let high = scales[block + (5u + part / 2u) * 32u];
{%- elif format == "q6_k" %}
    let high = scales[block + (5u + part) * 32u];
{%- endif %}
{%- else -%}
let block = (panel * ((p.cols + p.block - 1u) / p.block) + k / p.block) * {{ 32 * words(format)|int }}u + lane;
{%- if format in ["e4m3", "e5m2", "e3m2", "e2m1", "nf4", "iq4"] %}
    let dm = vec2<f32>(bitcast<f32>(scales[block]), 0.0);
{%- else %}
    let dm = unpack2x16float(scales[block]);
{%- endif %}
{%- if format in ["q5_0", "q5_1"] %}
    let high = scales[block + 32u];
{%- endif %}
{%- endif -%}
{%- endmacro -%}

{#- Value of code `e` of `word`, the code being that of value `k`. -#}
{%- macro decoded(format, e, k) -%}
{%- if format in ["e4m3", "e5m2", "e3m2"] -%}
og(dm.x * small_float((word >> (({{ e }}) * 8u)) & 255u))
{%- elif format in ["e2m1", "nf4", "iq4"] -%}
og(dm.x * PLACES[(word >> (({{ e }}) * 4u)) & 15u])
{%- else -%}
{{ of_integer(format, e, k) }}
{%- endif -%}
{%- endmacro -%}

{%- macro of_integer(format, e, k) -%}
{%- set code -%}
{%- if format in ["q8_0", "q8_1"] -%}
extractBits(bitcast<i32>(word), ({{ e }}) * 8u, 8u)
{%- elif format in ["q5_0", "q5_1", "q5_k"] -%}
i32(((word >> (({{ e }}) * 4u)) & 15u) | (((high >> (({{ k }}) % 32u)) & 1u) << 4u))
{%- elif format == "q6_k" -%}
i32(((word >> (({{ e }}) * 4u)) & 15u) | (((high >> ((({{ k }}) % 16u) * 2u)) & 3u) << 4u))
{%- else -%}
i32((word >> (({{ e }}) * 4u)) & 15u)
{%- endif -%}
{%- endset -%}
{%- set zero = {"q4_0": 8, "q5_0": 16, "q3_k": 4, "q6_k": 32}[format] or 0 -%}
{%- if format in ["q4_1", "q5_1", "q8_1"] -%}
og(og(dm.x * f32({{ code }})) + dm.y)
{%- elif format in ["q2_k", "q4_k", "q5_k"] -%}
og(og(dm.x * f32({{ code }})) - dm.y)
{%- elif zero > 0 -%}
og(dm.x * f32({{ code }} - {{ zero }}))
{%- else -%}
og(dm.x * f32({{ code }}))
{%- endif -%}
{%- endmacro -%}
