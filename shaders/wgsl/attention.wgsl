{#- Attention over pages, or over plain rows (`dense`), in the order of docs/numerics.md, 3.

A workgroup serves one query row and head. Per chunk of 64 absolute positions, invocation v computes the score of
key v; then it carries value columns v, v + 64, ... through the chunk. Every sum is one ascending chain. Keys
lie side by side, so a score needs no exchange; the largest score, which has no order, is found within
subgroups where there are any (`subgroups`): the bits are the same.

With `distances` (over plain rows, a key head for every query head) a score has two more chains, of the query and
the key of a distance, and of the key and the query of a distance; either may be missing.

Keys and values in codes (`coded`, over pages) are widened on the way, exactly: the bits are those of pages of f32
with the same values.

Bounds and lengths that no step has are clamped to the rows and pages that there are, so that loops end; only
rows that a workgroup takes by its own number are written. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "math.wgsl" as math -%}
{%- import "codes.wgsl" as codes -%}
{%- set places = [
    "k_offset", "v_offset", "kv_pitches", "of_q_offset", "of_k_offset", "of_pitches",
] if distances else ["k_offset", "k_pitch", "v_offset", "v_pitch", "slice"] if dense else [
    "rows_offset", "lens_offset", "table_offset", "table_stride", "page_size", "slice",
] %}
{{ it.params(carrier, [
    "tokens", "seqs", "dims", "heads", "q_offset", "q_pitch", "out_offset", "out_pitch",
    "bounds_offset",
] + places) }}
{{ math.functions() }}
{%- if not distances %}
{{ it.slices() }}
{%- endif %}
{{ it.reads(0, "q", x) }}
{%- if coded %}
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
{{ codes.values(kv) }}
{%- else %}
{{ it.reads(1, "keys", kv) }}
{{ it.reads(2, "values", kv) }}
{%- endif %}
// Bounds of the sequences' query rows; with pages also their rows of the table and their lengths.
@group(0) @binding(3) var<storage, read> sequences: array<u32>;
// Scale, soft cap and its reciprocal, window or chunk, flags, ahead, how far behind a query and ahead of it
// distances have a bias of their own (bits), then a slope per head.
@group(0) @binding(4) var<storage, read> scores: array<f32>;
{{ it.writes(5, "out", x) }}
{%- if not dense %}
@group(0) @binding(6) var<storage, read> pages: array<u32>;
{%- endif %}
{%- if distances %}
{{ it.reads(6, "of_q", x) }}
{{ it.reads(7, "of_k", x) }}
{%- else %}
// A score without a key or a value for every head, where `SINKS` is set in `p.slice`; then biases by
// distance, head by head. One binding for both: with pages there are seven others, and adapters have eight.
@group(0) @binding({{ 6 if dense else 7 }}) var<storage, read> of_heads: array<f32>;
{%- endif %}

const CHUNK = 64u;
const COLUMNS = {{ columns }}u;
const CAUSAL = 1u;
const WINDOW = 2u;
const SLOPES = 4u;
const AHEAD = 8u;
const RELATIVE = 16u;
const CHUNKED = 32u;
{%- if not distances %}
const SINKS = 0x4000000u;
{%- endif %}

{%- if subgroups %}
// The largest score of every subgroup: at most 16.
var<workgroup> largest: array<f32, 64>;
{%- else %}
var<workgroup> shared_s: array<f32, 64>;
{%- endif %}
var<workgroup> shared_e: array<f32, 64>;

{{ it.sequence_of() }}

{%- if not distances %}
// The bias of a head for the distance of key j; behind `first` values of another kind.
fn bias_of(first: u32, head: u32, j: u32, position: u32) -> f32 {
    let behind = bitcast<u32>(scores[6]);
    let ahead = bitcast<u32>(scores[7]);
    let near = min(j, position);
    let distance = behind + min(j - near, ahead) - min(position - near, behind);
    return of_heads[first + head * (behind + 1u + ahead) + distance];
}
{%- endif %}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    {{ it.numbering(subgroups) }}
) {
    {{- it.number(subgroups) }}
    let k_dim = p.dims & 0xffffu;
    let v_dim = p.dims >> 16u;
    let kv_heads = p.heads & 0xffffu;
{%- if distances %}
    let share = 1u;
    let reach = p.heads >> 16u;
    let k_pitch = p.kv_pitches & 0xffffu;
    let v_pitch = p.kv_pitches >> 16u;
    // 0: there is no such term.
    let of_q_pitch = p.of_pitches & 0xffffu;
    let of_k_pitch = p.of_pitches >> 16u;
{%- else %}
    let share = p.heads >> 16u;
{%- if dense %}
    let k_pitch = p.k_pitch;
    let v_pitch = p.v_pitch;
{%- endif %}
{%- endif %}
{%- if distances %}
    let head = group.y;
    let first_token = group.x;
    let token_step = groups.x;
{%- else %}
    let head = along(1u, group.y);
    let first_token = along(0u, group.x);
    let token_step = groups.x * slice_step(0u);
{%- endif %}
    let kv_head = head / share;
    let scale = scores[0];
    let flags = bitcast<u32>(scores[4]);
{%- if not distances %}
    let sinks = select(0u, kv_heads * share, (p.slice & SINKS) != 0u);
{%- endif %}
    for (var token = first_token; token < p.tokens; token += token_step) {
        let seq = sequence_of(token);
        let first = sequences[p.bounds_offset + seq];
        let end = min(sequences[p.bounds_offset + seq + 1u], p.tokens);
        if (token < first || token >= end) {
            continue;
        }
{%- if dense %}
        let len = end - first;
        let position = token - first;
{%- else %}
        let len = min(sequences[p.lens_offset + seq], p.table_stride * p.page_size);
        let position = len - (end - token);
        let row = p.table_offset + sequences[p.rows_offset + seq] * p.table_stride;
{%- endif %}
        var hi = len;
        if ((flags & CAUSAL) != 0u) {
            hi = min(position + 1u, len);
        } else if ((flags & AHEAD) != 0u && position + 1u < len) {
            hi = position + 1u + min(bitcast<u32>(scores[5]), len - position - 1u);
        }
        var lo = 0u;
        if ((flags & WINDOW) != 0u) {
            let window = bitcast<u32>(scores[3]);
            lo = min(position + 1u - min(window, position + 1u), hi);
        }
        if ((flags & CHUNKED) != 0u) {
            // The chunk's first position; of a row without a position 0.
            let size = bitcast<u32>(scores[3]);
            lo = min((max(position + 1u, 1u) - 1u) / size * size, hi);
        }
        let q_base = p.q_offset + token * p.q_pitch + head * k_dim;
        var o: array<f32, {{ columns }}>;
        for (var c = 0u; c < COLUMNS; c += 1u) {
            o[c] = 0.0;
        }
        var top = 0.0;
        var sum = 0.0;
        var any = false;
        // A row that sees nothing has no chunk, wherever in one its bounds meet.
        for (var chunk = select(hi, lo / CHUNK * CHUNK, lo < hi); chunk < hi; chunk += CHUNK) {
            let a = max(lo, chunk) - chunk;
            let b = min(hi - chunk, CHUNK);
            let j = chunk + v;
            // The least number, not an infinity: compilers may take it that there are none.
            var mine = bitcast<f32>(0xff7fffffu ^ p.zero);
            if (v >= a && v < b) {
                var acc = 0.0;
{%- if dense %}
                let k_base = p.k_offset + (first + j) * k_pitch + kv_head * k_dim;
                for (var d = 0u; d < k_dim; d += 1u) {
                    acc = chained(q_at(q_base + d), keys_at(k_base + d), acc);
                }
{%- if distances %}
                let near = min(j, position);
                let at = reach + min(j - near, reach) - min(position - near, reach);
                if (of_k_pitch != 0u) {
                    let base = p.of_k_offset + at * of_k_pitch + head * k_dim;
                    var term = 0.0;
                    for (var d = 0u; d < k_dim; d += 1u) {
                        term = chained(q_at(q_base + d), of_k_at(base + d), term);
                    }
                    acc = og(og(acc) + og(term));
                }
                if (of_q_pitch != 0u) {
                    let base = p.of_q_offset + at * of_q_pitch + head * k_dim;
                    var term = 0.0;
                    for (var d = 0u; d < k_dim; d += 1u) {
                        term = chained(keys_at(k_base + d), of_q_at(base + d), term);
                    }
                    acc = og(og(acc) + og(term));
                }
{%- endif %}
{%- else %}
                let page = pages[row + j / p.page_size];
{%- if coded %}
                let k_base = (page * kv_heads + kv_head) * words_of(k_dim) * p.page_size + j % p.page_size;
                let k_scale = bitcast<f32>(keys[k_base + scale_place(k_dim) * p.page_size]);
                var word = 0u;
                for (var d = 0u; d < k_dim; d += 1u) {
                    if ((d & 3u) == 0u) {
                        word = keys[k_base + (d >> 2u) * p.page_size];
                    }
                    acc = chained(q_at(q_base + d), code_value(word, d, k_scale), acc);
                }
{%- else %}
                let k_base = (page * kv_heads + kv_head) * k_dim * p.page_size + j % p.page_size;
                for (var d = 0u; d < k_dim; d += 1u) {
                    acc = chained(q_at(q_base + d), keys_at(k_base + d * p.page_size), acc);
                }
{%- endif %}
{%- endif %}
                var s = og(og(acc) * scale);
{%- if capped %}
                s = og(scores[1] * tanh_of(og(s * scores[2])));
{%- endif %}
                if ((flags & SLOPES) != 0u) {
                    s = chained(scores[8u + head], og(f32(j) - f32(position)), s);
                }
{%- if not distances %}
                if ((flags & RELATIVE) != 0u) {
                    s = og(s) + bias_of(sinks, head, j, position);
                }
{%- endif %}
                mine = og(s);
            }
{%- if subgroups %}
            let of_subgroup = subgroupMax(mine);
            if (place == 0u) {
                largest[subgroup] = of_subgroup;
            }
            workgroupBarrier();
            var m = largest[0];
            for (var i = 1u; i * size < 64u; i += 1u) {
                m = select(m, largest[i], largest[i] > m);
            }
{%- else %}
            shared_s[v] = mine;
            workgroupBarrier();
            var m = shared_s[a];
            for (var i = a + 1u; i < b; i += 1u) {
                m = select(m, shared_s[i], shared_s[i] > m);
            }
{%- endif %}
            if (v >= a && v < b) {
                shared_e[v] = exp_of(og(mine - m));
            }
            workgroupBarrier();
            let new_top = select(top, m, !any || m > top);
            let keep = exp_of(og(top - new_top));
            let take = exp_of(og(m - new_top));
            // Summed on the way through the values: who has no column needs none.
            var l = 0.0;
            for (var c = 0u; c < COLUMNS; c += 1u) {
                let d = c * 64u + v;
                if (d < v_dim) {
                    var acc = 0.0;
                    l = 0.0;
                    for (var i = a; i < b; i += 1u) {
{%- if dense %}
                        let value = values_at(p.v_offset + (first + chunk + i) * v_pitch + kv_head * v_dim + d);
{%- else %}
                        let at = chunk + i;
                        let page = pages[row + at / p.page_size];
{%- if coded %}
                        let v_base =
                            ((page * kv_heads + kv_head) * p.page_size + at % p.page_size) * words_of(v_dim);
                        let v_scale = bitcast<f32>(values[v_base + scale_place(v_dim)]);
                        let value = code_value(values[v_base + (d >> 2u)], d, v_scale);
{%- else %}
                        let value = values_at(((page * kv_heads + kv_head) * p.page_size + at % p.page_size) * v_dim + d);
{%- endif %}
{%- endif %}
                        let e = shared_e[i];
                        l = og(l + e);
                        acc = chained(e, value, acc);
                    }
                    acc = og(acc);
                    o[c] = og(select(og(o[c] * keep) + og(acc * take), acc, !any));
                }
            }
            sum = og(select(og(sum * keep) + og(l * take), l, !any));
            top = new_top;
            any = true;
            workgroupBarrier();
        }
        // A sink joins the sum last, as a key without a value.
        var keep = 1.0;
{%- if not distances %}
        if (any && (p.slice & SINKS) != 0u) {
            let sink = of_heads[head];
            let new_top = select(top, sink, sink > top);
            keep = exp_of(og(top - new_top));
            sum = og(og(sum * keep) + exp_of(og(sink - new_top)));
        }
{%- endif %}
        let to = p.out_offset + token * p.out_pitch + head * v_dim;
        for (var c = 0u; c < COLUMNS; c += 1u) {
            let d = c * 64u + v;
            if (d < v_dim) {
                out_put(to + d, select(0.0, divide(og(o[c] * keep), sum), any));
            }
        }
    }
}
