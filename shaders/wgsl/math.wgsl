{#- Own elementary functions: every step of `engraft_core::math`, with separate multiply-add. -#}
{%- import "division.wgsl" as exact -%}
{%- macro functions() -%}
{{ exact.division() }}

fn clamp_to(v: f32, lo: f32, hi: f32) -> f32 {
    let w = select(v, lo, v < lo);
    return select(w, hi, w > hi);
}

fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(bitcast<u32>(n + 127) << 23u);
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn exp_of(x: f32) -> f32 {
    let xc = clamp_to(x, -87.33654, 88.72);
    let shifted = og(madd(xc, 1.44269504088896340736, 12582912.0));
    let n = og(shifted - 12582912.0);
    let r = og(madd(n, -1.4286068e-6, og(madd(n, -0.69314575, xc))));
    var q = madd(r, 1.9790347e-4, 1.394466e-3);
    q = madd(r, q, 8.333497e-3);
    q = madd(r, q, 4.1666295e-2);
    q = madd(r, q, 0.16666666);
    q = madd(r, q, 0.5);
    let e = 1.0 + og(madd(og(r * r), q, r));
    let steps = bitcast<i32>(shifted) - 1262485504;
    let half = steps >> 1u;
    let scaled = og(og(og(e) * power_of_two(half)) * power_of_two(steps - half));
    let v = select(scaled, 0.0, x < -87.33654);
    return select(v, x, is_nan(x));
}

fn with_sign_of(v: f32, s: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(v) & 0x7fffffffu) | (bitcast<u32>(s) & 0x80000000u));
}

fn magnitude(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0x7fffffffu);
}

// tanh and erf in two halves, what goes into the exponential and what is made of it: an activation then needs
// one exponential and one division whichever it is, which drivers compile several times faster. tanh is made
// of 2 / (e + 1).
fn tanh_power(x: f32) -> f32 {
    let b = magnitude(x);
    let a = select(b, 10.0, b > 10.0);
    return a + a;
}

fn tanh_from(x: f32, quotient: f32) -> f32 {
    let b = magnitude(x);
    let a = select(b, 10.0, b > 10.0);
    let u = og(a * a);
    var q = madd(u, 2.147537e-3, -8.182674e-3);
    q = madd(u, q, 2.1702968e-2);
    q = madd(u, q, -5.3947203e-2);
    q = madd(u, q, 0.1333321);
    q = madd(u, q, -0.3333333);
    let small = madd(og(a * u), q, a);
    let large = 1.0 - og(quotient);
    return with_sign_of(select(large, small, a < 0.625), x);
}

fn tanh_of(x: f32) -> f32 {
    let e = og(exp_of(tanh_power(x)));
    return tanh_from(x, divide(2.0, og(e + 1.0)));
}

fn erf_power(x: f32) -> f32 {
    let b = magnitude(x);
    let a = select(b, 4.0, b > 4.0);
    var q = madd(a, 2.0828618e-5, -4.3139356e-4);
    q = madd(a, q, 4.1562547e-3);
    q = madd(a, q, -2.5080616e-2);
    q = madd(a, q, 0.10822038);
    q = madd(a, q, 0.63340086);
    q = madd(a, q, 1.1294883);
    q = madd(a, q, -1.6920512e-4);
    return -og(q);
}

fn erf_from(x: f32, e: f32) -> f32 {
    let b = magnitude(x);
    let a = select(b, 4.0, b > 4.0);
    let u = og(a * a);
    var s = madd(u, 8.409921e-5, -8.152628e-4);
    s = madd(u, s, 5.2019604e-3);
    s = madd(u, s, -2.68598e-2);
    s = madd(u, s, 0.11283703);
    s = madd(u, s, -0.37612635);
    let small = madd(a, og(madd(u, s, 0.12837917)), a);
    let large = 1.0 - og(e);
    return with_sign_of(select(large, small, a < 0.9), x);
}

fn erf_of(x: f32) -> f32 {
    return erf_from(x, exp_of(erf_power(x)));
}

// -x, its exponential being finite.
fn sigmoid_power(x: f32) -> f32 {
    return -(select(x, -87.0, x < -87.0));
}

fn sigmoid_of(x: f32) -> f32 {
    return divide(1.0, og(1.0 + og(exp_of(sigmoid_power(x)))));
}

// ln(1 + e^x), from z = e / (2 + e) of e = e^-|x|.
fn softplus_from(x: f32, z: f32) -> f32 {
    let u = og(z * z);
    var s = madd(u, 1.0 / 15.0, 1.0 / 13.0);
    s = madd(u, s, 1.0 / 11.0);
    s = madd(u, s, 1.0 / 9.0);
    s = madd(u, s, 1.0 / 7.0);
    s = madd(u, s, 0.2);
    s = madd(u, s, 1.0 / 3.0);
    let half = og(madd(og(z * u), s, z));
    return select(0.0, x, x > 0.0) + og(half + half);
}

// The numbers are those of `Act` in the crate's root.
fn act_of(act: u32, x: f32) -> f32 {
    // What the function of the middle takes.
    var y = x;
    if (act == 2u) {
        y = og(x * 0.70710678118654752440);
    } else if (act == 3u) {
        let c = clamp_to(x, -10.0, 10.0);
        y = og(og(madd(og(og(c * c) * 0.044715), c, c)) * 0.7978846);
    } else if (act == 4u) {
        y = og(1.702 * x);
    }
    var power = sigmoid_power(y);
    if (act == 2u) {
        power = erf_power(y);
    } else if (act == 3u || act == 5u) {
        power = tanh_power(y);
    }
    if (act == 8u) {
        power = -magnitude(x);
    }
    let e = og(exp_of(power));
    var above = 1.0;
    var beyond = 1.0;
    if (act == 1u) {
        above = x;
    } else if (act == 3u || act == 5u) {
        above = 2.0;
    } else if (act == 8u) {
        above = e;
        beyond = 2.0;
    }
    let quotient = og(divide(above, og(beyond + e)));
    switch (act) {
        case 0u: {
            return select(x, 0.0, x < 0.0);
        }
        case 1u: {
            return quotient;
        }
        case 2u: {
            return og(0.5 * x) * og(1.0 + og(erf_from(y, e)));
        }
        case 3u: {
            return og(0.5 * x) * og(1.0 + og(tanh_from(y, quotient)));
        }
        case 4u: {
            return x * quotient;
        }
        case 6u: {
            let positive = select(x, 0.0, x < 0.0);
            return positive * positive;
        }
        case 7u: {
            return quotient;
        }
        case 8u: {
            return softplus_from(x, quotient);
        }
        default: {
            return tanh_from(y, quotient);
        }
    }
}
{%- endmacro -%}
