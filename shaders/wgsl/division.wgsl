{#- Division and square root with bits of their own where operands and results are normal numbers: to nearest,
ties to even. WGSL lets a driver's division be wrong by 2.5 units in the last place, its square root by more, and
each of them in every kernel by something else.

The driver's own is the seed: of mantissas, which are never near the ends of the range, it gives a quotient or a
root of 24 bits that is wrong by a few units. What that leaves over is exact modulo 2^32 in integers, and is less
than 2^31 while a quotient is wrong by less than 127 units and a root by less than 63. It corrects what was wrong,
and decides the last bit. So no bit depends on how a driver rounds, contracts or reassociates on the way.

Zeros, subnormal numbers, infinities and what is no number are left to the driver: the promise leaves out what is
below 2^-126, and the others have one answer. -#}

{#- `divide(a, b)`. -#}
{%- macro division() -%}
fn divide(a: f32, b: f32) -> f32 {
    let of_a = bitcast<u32>(a);
    let of_b = bitcast<u32>(b);
    let d = (of_b & 0x7fffffu) | 0x800000u;
    let single = (of_a & 0x7fffffu) | 0x800000u;
    let less = single < d;
    // The mantissa, doubled where the quotient would be below 1.
    let m = select(single, single + single, less);
    let r = 1.0 / f32(d);
    var q = u32(f32(m) * (r * 8388608.0));
    let first = bitcast<i32>((m << 23u) - q * d);
    let off = i32(f32(first) * r);
    let twice = 2i * (first - off * i32(d));
    q = q + bitcast<u32>(off) + select(0u, 1u, twice > i32(d)) - select(0u, 1u, twice < -i32(d));
    let biased_a = (of_a >> 23u) & 0xffu;
    let biased_b = (of_b >> 23u) & 0xffu;
    // Less by one, which the mantissa's highest bit adds.
    let below = biased_a - biased_b + select(126u, 125u, less);
    let bits = ((of_a ^ of_b) & 0x80000000u) | ((below << 23u) + q);
    let normal = max(max(biased_a, biased_b) - 1u, below) < 254u && min(biased_a, biased_b) > 0u;
    return select(a / b, bitcast<f32>(bits), normal);
}
{%- endmacro -%}

{#- `root(v)`. -#}
{%- macro root() -%}
fn root(v: f32) -> f32 {
    let whole = bitcast<u32>(v);
    // From 1 to 4; the exponent is even where that of the number is, the bias being odd.
    let odd = ((whole >> 23u) & 1u) ^ 1u;
    let x = bitcast<f32>((whole & 0x7fffffu) | (0x3f800000u + (odd << 23u)));
    let seed = sqrt(x);
    let square = ((whole & 0x7fffffu) | 0x800000u) << (23u + odd);
    var q = u32(seed * 8388608.0);
    let first = bitcast<i32>(square - q * q);
    q = q + bitcast<u32>(i32(f32(first) / (seed * 16777216.0)));
    let rest = bitcast<i32>(square - q * q);
    let near = bitcast<i32>(q);
    q = q + select(0u, 1u, rest > near) - select(0u, 1u, rest <= -near);
    let bits = ((((whole >> 23u) + 127u) >> 1u) << 23u) + (q & 0x7fffffu);
    return select(sqrt(v), bitcast<f32>(bits), whole - 0x800000u < 0x7f000000u);
}
{%- endmacro -%}
