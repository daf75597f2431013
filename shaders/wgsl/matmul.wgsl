{#- What every matmul is made of: the input, a chain along k, what follows the sum. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "packed.wgsl" as packed -%}

{#- Parameters of a matmul that is not of experts. -#}
{%- set fields = [
    "rows", "cols", "grain", "x_offset", "x_pitch", "out_offset", "out_pitch", "first_out", "end_out", "inner",
    "flags", "slice", "act", "block", "group",
] -%}

{#- Parts of leaves. In the contract's order a leaf is one chain; in the wide one it is split into four of
whole units of 8 values (the last takes what is left), added as (0 + 1) + (2 + 3). Either way the order
depends on where the leaves begin alone.

A rank's part of a sum has no bias. With the flag `SHARE` that buffer says where the leaves of its columns begin
and which of them it has (1, else 0): those of other ranks are -0, which changes no sum. -#}
{%- macro parts(experts=false) -%}
const BIAS = 1u;
{%- if experts %}
const SHARE = 2u;
{%- else %}
const WIDE = 2u;
const SHARE = 4u;
const ADD = 8u;
{%- endif %}

fn leaf_at(leaf: u32) -> u32 {
    if ((p.flags & SHARE) != 0u) {
        return u32(bias[leaf]);
    }
    return leaf_start_of_groups(p.cols, p.grain, {{ "1u" if experts else "p.group" }}, leaf);
}

fn own_leaf(leaf: u32, sum: f32) -> f32 {
    if ((p.flags & SHARE) != 0u && bias[9u + leaf] == 0.0) {
        return bitcast<f32>(0x80000000u | p.zero);
    }
    return sum;
}

fn part_start(from_k: u32, to_k: u32, part: u32, parts: u32) -> u32 {
    if (part >= parts) {
        return to_k;
    }
    let units = (to_k - from_k) / 8u;
    return from_k + 8u * min(part * ((units + parts - 1u) / parts), units);
}
{%- endmacro -%}

{#- Rows that are bytes (quantize.wgsl): 32 codes in eight words, then their scale. -#}
{%- macro byte_inputs(slot, dot) -%}
@group(0) @binding({{ slot }}) var<storage, read> x: array<u32>;

// The sum of the products of four signed bytes, exact.
fn dot_bytes(a: u32, b: u32) -> i32 {
{%- if dot %}
    return dot4I8Packed(a, b);
{%- else %}
    let s = bitcast<i32>(a);
    let t = bitcast<i32>(b);
    return ((s << 24u) >> 24u) * ((t << 24u) >> 24u) + ((s << 16u) >> 24u) * ((t << 16u) >> 24u)
        + ((s << 8u) >> 24u) * ((t << 8u) >> 24u) + (s >> 24u) * (t >> 24u);
{%- endif %}
}
{%- endmacro -%}

{#- As `chain`, block by block, of rows that are bytes; leaves end at blocks. -#}
{%- macro byte_chain(rows) -%}
while (k < to_k) {
    let b = k / 32u;
    let d = unpack2x16float(scales[(panel * ((p.cols + p.block - 1u) / p.block) + b) * 32u + lane]).x;
    let word = (panel * units + k / UNIT) * 32u + lane;
{%- for r in range(rows) %}
    var sum{{ r }} = 0i;
{%- endfor %}
    for (var i = 0u; i < 8u; i += 1u) {
        let w = codes[word + i * 32u];
{%- for r in range(rows) %}
        sum{{ r }} += dot_bytes(w, x[x{{ r }} + b * 9u + i]);
{%- endfor %}
    }
{%- for r in range(rows) %}
    acc{{ r }} = chained(og(bitcast<f32>(x[x{{ r }} + b * 9u + 8u]) * d), f32(sum{{ r }}), acc{{ r }});
{%- endfor %}
    k += 32u;
}
{%- endmacro -%}

{#- The input, from row to row: `x_at(i)`, and `x_four(i)` where rows begin at multiples of four elements. -#}
{%- macro inputs(slot, x, vector) -%}
{%- if vector %}
// Rows begin at multiples of four elements.
@group(0) @binding({{ slot }}) var<storage, read> x: array<{{ {"f32": "vec4<f32>", "h16": "vec4<f16>"}[x] or "vec2<u32>" }}>;
fn x_four(i: u32) -> vec4<f32> {
{%- if x == "f32" %}
    return x[i >> 2u];
{%- elif x == "h16" %}
    return vec4<f32>(x[i >> 2u]);
{%- else %}
    let w = x[i >> 2u];
    return vec4<f32>(
        {{ x }}_value(w.x & 0xffffu), {{ x }}_value(w.x >> 16u), {{ x }}_value(w.y & 0xffffu), {{ x }}_value(w.y >> 16u),
    );
{%- endif %}
}
fn x_at(i: u32) -> f32 {
    return x_four(i)[i & 3u];
}
{%- else %}
{{ it.reads(slot, "x", x) }}
{%- endif %}
{%- endmacro -%}

{#- Chains `acc0`, `acc1`, ... of rows that begin at `x0`, `x1`, ..., with output `lane` of panel `panel`,
k from `k` to `to_k`. -#}
{%- macro chain(weight, rows, vector) -%}
while (k < to_k) {
{%- if vector %}
    // Whole units; values one by one before the first and behind the last.
    if ((k % UNIT) == 0u && k + UNIT <= to_k) {
        let word = codes[(panel * units + k / UNIT) * 32u + lane];
{%- if weight == "f32" %}
        let w0 = word;
{%- elif weight == "h16" %}
        let w0 = vec4<f32>(word);
{%- elif weight in ["f16", "bf16"] %}
        let w0 = vec4<f32>(
            {{ weight }}_value(word.x & 0xffffu), {{ weight }}_value(word.x >> 16u),
            {{ weight }}_value(word.y & 0xffffu), {{ weight }}_value(word.y >> 16u),
        );
{%- else %}
        {{ packed.shared(weight) }}
{%- for f in range(packed.unit(weight)|int // 4) %}
        let w{{ f }} = vec4<f32>(
{%- for e in range(4) %}
            {{ packed.decoded(weight, (f * 4 + e) ~ "u", "k + " ~ (f * 4 + e) ~ "u") }},
{%- endfor %}
        );
{%- endfor %}
{%- endif %}
{%- for f in range(packed.unit(weight)|int // 4) %}
{%- for r in range(rows) %}
        {
            let a = x_four(x{{ r }} + k + {{ f * 4 }}u);
{%- for e in range(4) %}
            acc{{ r }} = chained(a[{{ e }}], w{{ f }}[{{ e }}], acc{{ r }});
{%- endfor %}
        }
{%- endfor %}
{%- endfor %}
        k += UNIT;
        continue;
    }
{%- endif %}
    let w = weight_at(panel, lane, k);
{%- for r in range(rows) %}
    acc{{ r }} = chained(x_at(x{{ r }} + k), w, acc{{ r }});
{%- endfor %}
    k += 1u;
}
{%- endmacro -%}

{#- From the sum `y` (and `up` of a gate weight) of output `n` to the element `to`. -#}
{%- macro finish(gate, act, experts) -%}
{%- if gate %}
if ((p.flags & BIAS) != 0u) {
    y = og(y + bias[n]);
    up = og(up + bias[p.inner + n]);
}
{%- if act %}
out_put(to, og(act_of(p.act, out_round(y))) * out_round(up));
{%- else %}
// As a plain matmul a gate weight gives [gate | up].
out_put(to, y);
out_put(to + p.inner, up);
{%- endif %}
{%- else %}
if ((p.flags & BIAS) != 0u) {
    y = og(y + bias[{{ "(expert - (p.flags >> 2u)) * p.inner + n" if experts else "n" }}]);
}
{%- if act %}
y = og(act_of(p.act, out_round(y)));
{%- elif not experts %}
if ((p.flags & ADD) != 0u) {
    y = og(out_at(to) + out_round(y));
}
{%- endif %}
out_put(to, y);
{%- endif %}
{%- endmacro -%}
