{#- Keys and values in bytes: a head's row at a position has codes and a scale (`engraft_core::quant::kv_row`).

A row lies in words of its own: four codes in one, in ascending columns from the lowest byte, the last perhaps in
part; then a word with the scale's bits. So no word belongs to two rows, and rows are written without a look at
their neighbours. Pages are those of f32 with so many columns (`words_of`): `[kv_head][word][position]` of keys,
`[kv_head][position][word]` of values. -#}
{%- import "packed.wgsl" as packed -%}
{%- import "division.wgsl" as exact -%}

{#- Words of a row, and what a byte stands for; `code_value` is exact, guarded against being multiplied in another
order. -#}
{%- macro values(code) -%}
// The place of the scale among a row's words.
fn scale_place(width: u32) -> u32 {
    return (width + 3u) / 4u;
}
fn words_of(width: u32) -> u32 {
    return scale_place(width) + 1u;
}
{%- if code == "fp8" %}
{{ packed.small_float("e4m3") }}
{%- endif %}

// Column `d` of a row, of the word that has it.
fn code_value(word: u32, d: u32, scale: f32) -> f32 {
{%- if code == "fp8" %}
    return og(small_float(extractBits(word, (d & 3u) * 8u, 8u)) * scale);
{%- else %}
    return og(f32(extractBits(bitcast<i32>(word), (d & 3u) * 8u, 8u)) * scale);
{%- endif %}
}
{%- endmacro -%}

{#- From values to codes: `row_scale(most)`, of the bits of the largest magnitude, and `code_of(value, inverse)`.
In integers but for two multiplications and one division, whose bits are the contract's: whether a driver rounds a
conversion as it should, and what it makes of infinities, is not asked. -#}
{%- macro rounding(code) -%}
{{ exact.division() }}

// 1 / {{ 448 if code == "fp8" else 127 }}.
const STEP = {{ "0.002232143" if code == "fp8" else "0.007874016" }};
// 2^-100 and 2^100; what stands for a row that is no number.
const LEAST = 0x0d800000u;
const MOST = 0x71800000u;
const NO_NUMBER = 0x7fc00000u;

// The bits of a scale, and whether codes are zero whatever the values.
struct RowScale {
    bits: u32,
    empty: bool,
}
fn row_scale(most: u32) -> RowScale {
    // To 16 significant bits, of two the larger.
    let bits = (bitcast<u32>(og(bitcast<f32>(most) * STEP)) + 0x80u) & 0xffffff00u;
    if (most >= 0x7f800000u || bits > MOST) {
        return RowScale(NO_NUMBER, true);
    }
    if (bits < LEAST) {
        return RowScale(0u, true);
    }
    return RowScale(bits, false);
}

// The integer nearest to the float with these bits, times 2^(150 - base), of two the even one.
fn nearest(size: u32, base: u32) -> u32 {
    let shift = base - min(size >> 23u, base);
    if (shift > 24u) {
        return 0u;
    }
    let man = (size & 0x7fffffu) | 0x800000u;
    let half = (1u << shift) >> 1u;
    let rest = man & ((1u << shift) - 1u);
    let whole = man >> shift;
    return whole + select(0u, 1u, rest > half || (rest == half && (whole & 1u) == 1u));
}

fn code_of(value: f32, inverse: f32) -> u32 {
    let bits = bitcast<u32>(value);
    // Without the sign, which drivers may lose with what is too small.
    let size = bitcast<u32>(og(bitcast<f32>(bits & 0x7fffffffu) * inverse));
{%- if code == "fp8" %}
    var found = nearest(size, 141u);
    if (size >= 0x3c800000u) {
        let r = size - 0x3c000000u;
        found = (r + 0x7ffffu + ((r >> 20u) & 1u)) >> 20u;
    }
    return min(found, 0x7eu) | ((bits >> 24u) & 0x80u);
{%- else %}
    let found = nearest(size, 150u);
    return select(found, 0u - found, (bits >> 31u) == 1u) & 0xffu;
{%- endif %}
}
{%- endmacro -%}
