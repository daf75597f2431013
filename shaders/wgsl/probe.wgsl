{#- Arithmetic as this device does it, on `count` pairs (a, b): results are compared with the host's, bit for
bit.

Nine words per pair: own a / b and sqrt |a|, a b + a, (a + b) - a, exp, tanh and erf of b, a product below
2^-126, and the chain of eight products from this pair on, as sums over k are: a compiler may unroll it,
and must not turn it into a tree. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "math.wgsl" as math -%}
{%- import "division.wgsl" as exact -%}
{{ it.params(carrier, ["count"]) }}
{{ math.functions() }}
{{ exact.root() }}
@group(0) @binding(0) var<storage, read> pairs: array<f32>;
@group(0) @binding(1) var<storage, read_write> results: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if (i >= p.count) {
        return;
    }
    let a = pairs[2u * i];
    let b = pairs[2u * i + 1u];
    let to = i * 9u;
    results[to] = divide(a, b);
    results[to + 1u] = root(magnitude(a));
    results[to + 2u] = madd(a, b, a);
    results[to + 3u] = og(a + b) - a;
    results[to + 4u] = exp_of(b);
    results[to + 5u] = tanh_of(b);
    results[to + 6u] = erf_of(b);
    results[to + 7u] = og(a * 7.888609052210118e-31) * 1.3234889e-23;
    var acc = 0.0;
    for (var k = 0u; k < 8u; k += 1u) {
        let at = 2u * ((i + k) % p.count);
        acc = chained(pairs[at], pairs[at + 1u], acc);
    }
    results[to + 8u] = acc;
}
