{#- Division and square root with bits of their own: to nearest, ties to even, subnormal numbers and infinities
as IEEE 754 has them. WGSL lets a driver's division be wrong by 2.5 units in the last place, its square root by
more, and each of them in every kernel by something else.

Mantissas and exponents are integers. From a seed made of the bits three steps of Newton's rule give a quotient
or a root of 25 bits that is wrong by some 7 units. What it leaves over is exact modulo 2^32, and is less than
2^31 while a quotient is wrong by less than 127 units and a root by less than 31. It corrects what was wrong, and
decides how the last bit is rounded. So no bit depends on how a driver rounds, contracts or reassociates on the
way. -#}

{#- `divide(a, b)`. -#}
{%- macro division() -%}
// The mantissa of a magnitude, from 2^23 on, and the biased exponent, below 1 of subnormal numbers.
fn mantissa_of(bits: u32) -> u32 {
    if (bits >= 0x800000u) {
        return (bits & 0x7fffffu) | 0x800000u;
    }
    return bits << ((countLeadingZeros(bits) - 8u) & 31u);
}

fn exponent_of(bits: u32) -> i32 {
    if (bits >= 0x800000u) {
        return i32(bits >> 23u);
    }
    return 9i - i32(countLeadingZeros(bits));
}

// Of a mantissa of 25 bits, which is exact or a little less than the number, to a magnitude.
fn rounded(mantissa: u32, inexact: bool, exponent: i32) -> u32 {
    let shift = u32(clamp(2i - exponent, 1i, 27i));
    let kept = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let tie = 1u << (shift - 1u);
    let up = rest > tie || (rest == tie && (inexact || (kept & 1u) == 1u));
    let bits = (u32(max(exponent, 1i) - 1i) << 23u) + kept + select(0u, 1u, up);
    return select(min(bits, 0x7f800000u), 0x7f800000u, exponent >= 255i);
}

fn divide(a: f32, b: f32) -> f32 {
    let size_a = bitcast<u32>(a) & 0x7fffffffu;
    let size_b = bitcast<u32>(b) & 0x7fffffffu;
    let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    let m = mantissa_of(size_a);
    let d = mantissa_of(size_b);
    let less = m < d;
    // Both from 1 to 2.
    let x = bitcast<f32>(m | 0x3f800000u);
    let y = bitcast<f32>(d | 0x3f800000u);
    var r = bitcast<f32>(0x7ef311c7u - bitcast<u32>(y));
    r = r * (2.0 - y * r);
    r = r * (2.0 - y * r);
    r = r * (2.0 - y * r);
    let shift = select(24u, 25u, less);
    var q = u32(x * r * f32(1u << shift));
    var rest = bitcast<i32>((m << shift) - q * d);
    let off = i32(f32(rest) * r * 1.1920929e-7);
    q += bitcast<u32>(off);
    rest -= off * i32(d);
    if (rest < 0i) {
        q -= 1u;
        rest += i32(d);
    } else if (rest >= i32(d)) {
        q += 1u;
        rest -= i32(d);
    }
    let exponent = exponent_of(size_a) - exponent_of(size_b) + select(127i, 126i, less);
    var bits = sign | rounded(q, rest != 0i, exponent);
    if (size_a == 0u || size_b == 0x7f800000u) {
        bits = sign;
    }
    if (size_b == 0u || size_a == 0x7f800000u) {
        bits = sign | 0x7f800000u;
    }
    let neither = size_a == size_b && (size_a == 0u || size_a == 0x7f800000u);
    if (neither || max(size_a, size_b) > 0x7f800000u) {
        bits = 0x7fc00000u;
    }
    return bitcast<f32>(bits);
}
{%- endmacro -%}

{#- `root(v)`, in kernels that have `divide`. -#}
{%- macro root() -%}
fn root(v: f32) -> f32 {
    let whole = bitcast<u32>(v);
    let size = whole & 0x7fffffffu;
    let m = mantissa_of(size);
    let exponent = exponent_of(size) - 127i;
    let odd = u32(exponent & 1i);
    // From 1 to 4.
    let x = bitcast<f32>((m & 0x7fffffu) | (0x3f800000u + (odd << 23u)));
    var r = bitcast<f32>(0x5f3759dfu - (bitcast<u32>(x) >> 1u));
    r = r * (1.5 - 0.5 * x * r * r);
    r = r * (1.5 - 0.5 * x * r * r);
    r = r * (1.5 - 0.5 * x * r * r);
    let square = m << (25u + odd);
    var q = u32(x * r * 16777216.0);
    q += bitcast<u32>(i32(f32(bitcast<i32>(square - q * q)) * r * 2.9802322e-8));
    let rest = bitcast<i32>(square - q * q);
    if (rest < 0i) {
        q -= 1u;
    } else if (rest > bitcast<i32>(q + q)) {
        q += 1u;
    }
    var bits = rounded(q, square != q * q, (exponent >> 1u) + 127i);
    if (size == 0u || whole == 0x7f800000u) {
        bits = whole;
    } else if (whole > 0x7f800000u) {
        bits = 0x7fc00000u;
    }
    return bitcast<f32>(bits);
}
{%- endmacro -%}
