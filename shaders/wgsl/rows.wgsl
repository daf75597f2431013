{#- Rows and words moved: each macro is the kernel of that name, with `x` one per element type. -#}
{%- import "prelude.wgsl" as it -%}

{%- macro gather(x) -%}
{{ it.params(carrier, [
    "rows", "cols", "x_rows", "x_offset", "x_pitch", "rows_offset", "out_offset", "out_pitch",
]) }}
{{ it.reads_bits(0, "x", x) }}
@group(0) @binding(1) var<storage, read> rows: array<u32>;
{{ it.writes_bits(2, "out", x) }}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let total = p.rows * p.cols;
    for (var i = id.x; i < total; i += groups.x * 256u) {
        let r = i / p.cols;
        let c = i % p.cols;
        let from_ = rows[p.rows_offset + r];
        var v = {{ "f16(0.0)" if x == "h16" else "0u" }};
        if (from_ < p.x_rows) {
            v = x_at(p.x_offset + from_ * p.x_pitch + c);
        }
        out_put(p.out_offset + r * p.out_pitch + c, v);
    }
}
{%- endmacro -%}

{%- macro scatter() -%}
{{ it.params(carrier, ["pairs", "pairs_offset", "table_offset", "len"]) }}
@group(0) @binding(0) var<storage, read> pairs: array<u32>;
@group(0) @binding(1) var<storage, read_write> table: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < p.pairs; i += groups.x * 64u) {
        let index = pairs[p.pairs_offset + 2u * i];
        if (index >= p.len) {
            continue;
        }
        // Of several values for one entry the last counts.
        var last = true;
        for (var j = i + 1u; j < p.pairs; j += 1u) {
            last = last && pairs[p.pairs_offset + 2u * j] != index;
        }
        if (last) {
            table[p.table_offset + index] = pairs[p.pairs_offset + 2u * i + 1u];
        }
    }
}
{%- endmacro -%}

{%- macro mark_seen() -%}
{{ it.params(carrier, ["ids", "ids_offset", "seen_offset", "words"]) }}
@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read_write> seen: array<atomic<u32>>;

// One workgroup: clear, then set.
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) t: u32) {
    for (var w = t; w < p.words; w += 256u) {
        atomicStore(&seen[p.seen_offset + w], 0u);
    }
    storageBarrier();
    for (var i = t; i < p.ids; i += 256u) {
        let token = ids[p.ids_offset + i];
        if (token / 32u < p.words) {
            atomicOr(&seen[p.seen_offset + token / 32u], 1u << (token % 32u));
        }
    }
}
{%- endmacro -%}

{%- macro feed_tokens() -%}
{{ it.params(carrier, ["tokens", "ids_offset", "feeds_offset", "last_offset", "last_rows", "out_offset"]) }}
@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read> feeds: array<u32>;
@group(0) @binding(2) var<storage, read> last: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var t = id.x; t < p.tokens; t += groups.x * 64u) {
        let row = feeds[p.feeds_offset + t];
        if (row < p.last_rows) {
            out[p.out_offset + t] = last[p.last_offset + row];
        } else {
            out[p.out_offset + t] = ids[p.ids_offset + t];
        }
    }
}
{%- endmacro -%}
