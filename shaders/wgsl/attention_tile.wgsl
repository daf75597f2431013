{#- Attention over pages for several queries that read the same keys: consecutive rows of a sequence, heads
that share keys and values (so many as `p.slice` says from bit 27 on), {{ slots }} in all. Each keeps the chains of
`attention.wgsl`, chunk by chunk in the same order, so the bits are the same; a key and a value are read once
for all of them.

A workgroup takes a tile of rows for some heads. Where the tile's rows belong to several sequences it goes
through them one after the other. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "math.wgsl" as math -%}
{%- import "codes.wgsl" as codes -%}
{{ it.params(carrier, [
    "tokens", "seqs", "dims", "heads", "q_offset", "q_pitch", "out_offset", "out_pitch",
    "bounds_offset", "rows_offset", "lens_offset", "table_offset", "table_stride", "page_size",
    "slice",
]) }}
{{ math.functions() }}
{{ it.slices() }}
{{ it.reads(0, "q", x) }}
{%- if coded %}
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
{{ codes.values(kv) }}
{%- else %}
{{ it.reads(1, "keys", kv) }}
{{ it.reads(2, "values", kv) }}
{%- endif %}
// Bounds of the sequences' query rows, their rows of the table, their lengths.
@group(0) @binding(3) var<storage, read> sequences: array<u32>;
// As in attention.wgsl.
@group(0) @binding(4) var<storage, read> scores: array<f32>;
{{ it.writes(5, "out", x) }}
@group(0) @binding(6) var<storage, read> pages: array<u32>;
@group(0) @binding(7) var<storage, read> of_heads: array<f32>;

const CHUNK = 64u;
const COLUMNS = {{ columns }}u;
const CAUSAL = 1u;
const WINDOW = 2u;
const SLOPES = 4u;
const AHEAD = 8u;
const RELATIVE = 16u;
const CHUNKED = 32u;
const SINKS = 0x4000000u;

// [slot][key]
var<workgroup> shared_s: array<f32, {{ slots * 64 }}>;
var<workgroup> shared_e: array<f32, {{ slots * 64 }}>;

{{ it.sequence_of() }}

// From the first key that the query at `position` sees to behind the last, of `len`; an empty range behind
// all for a slot without a query.
fn seen(position: u32, len: u32, flags: u32, used: bool) -> vec2<u32> {
    if (!used) {
        return vec2<u32>(0u, 0u);
    }
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
    return vec2<u32>(lo, hi);
}

// The bias of a head for the distance of key j; behind `first` values of another kind.
fn bias_of(first: u32, head: u32, j: u32, position: u32) -> f32 {
    let behind = bitcast<u32>(scores[6]);
    let ahead = bitcast<u32>(scores[7]);
    let near = min(j, position);
    let distance = behind + min(j - near, ahead) - min(position - near, behind);
    return of_heads[first + head * (behind + 1u + ahead) + distance];
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) v: u32,
) {
    let k_dim = p.dims & 0xffffu;
    let v_dim = p.dims >> 16u;
    let kv_heads = p.heads & 0xffffu;
    let share = p.heads >> 16u;
    // How many heads share a tile.
    let tile_heads = p.slice >> 27u;
    let tiles_of_head = (share + tile_heads - 1u) / tile_heads;
    let of_heads_tile = along(1u, group.y);
    let kv_head = of_heads_tile / tiles_of_head;
    let first_head = (of_heads_tile % tiles_of_head) * tile_heads;
    let tile_rows = {{ slots }}u / tile_heads;
    let scale = scores[0];
    let flags = bitcast<u32>(scores[4]);
    let sinks = select(0u, kv_heads * share, (p.slice & SINKS) != 0u);
    for (var tile = along(0u, group.x); tile * tile_rows < p.tokens; tile += groups.x * slice_step(0u)) {
        let tile_end = min((tile + 1u) * tile_rows, p.tokens);
        var token = tile * tile_rows;
        while (token < tile_end) {
            let seq = sequence_of(token);
            let first = sequences[p.bounds_offset + seq];
            let end = min(sequences[p.bounds_offset + seq + 1u], p.tokens);
            if (token < first || token >= end) {
                token += 1u;
                continue;
            }
            let stop = min(tile_end, end);
            let len = min(sequences[p.lens_offset + seq], p.table_stride * p.page_size);
            let row = p.table_offset + sequences[p.rows_offset + seq] * p.table_stride;
{%- for s in range(slots) %}
            let row{{ s }} = token + {{ s }}u / tile_heads;
            let of_share{{ s }} = first_head + {{ s }}u % tile_heads;
            let used{{ s }} = row{{ s }} < stop && of_share{{ s }} < share;
            let head{{ s }} = kv_head * share + min(of_share{{ s }}, share - 1u);
            let position{{ s }} = len - (end - min(row{{ s }}, end - 1u));
            let range{{ s }} = seen(position{{ s }}, len, flags, used{{ s }});
            let q{{ s }} = p.q_offset + min(row{{ s }}, stop - 1u) * p.q_pitch + head{{ s }} * k_dim;
            var o{{ s }}: array<f32, {{ columns }}>;
            for (var c = 0u; c < COLUMNS; c += 1u) {
                o{{ s }}[c] = 0.0;
            }
            var top{{ s }} = 0.0;
            var sum{{ s }} = 0.0;
            var any{{ s }} = false;
{%- endfor %}
            // The first slot has a query; every later one sees from there or from further on.
            let lo = range0.x;
            var hi = range0.y;
{%- for s in range(1, slots) %}
            hi = max(hi, range{{ s }}.y);
{%- endfor %}
            for (var chunk = lo / CHUNK * CHUNK; chunk < hi; chunk += CHUNK) {
                let j = chunk + v;
                if (j >= lo && j < hi) {
                    let page = pages[row + j / p.page_size];
{%- if coded %}
                    let k_base = (page * kv_heads + kv_head) * words_of(k_dim) * p.page_size + j % p.page_size;
                    let k_scale = bitcast<f32>(keys[k_base + scale_place(k_dim) * p.page_size]);
                    var word = 0u;
{%- else %}
                    let k_base = (page * kv_heads + kv_head) * k_dim * p.page_size + j % p.page_size;
{%- endif %}
{%- for s in range(slots) %}
                    var acc{{ s }} = 0.0;
{%- endfor %}
                    for (var d = 0u; d < k_dim; d += 1u) {
{%- if coded %}
                        if ((d & 3u) == 0u) {
                            word = keys[k_base + (d >> 2u) * p.page_size];
                        }
                        let key = code_value(word, d, k_scale);
{%- else %}
                        let key = keys_at(k_base + d * p.page_size);
{%- endif %}
{%- for s in range(slots) %}
                        acc{{ s }} = chained(q_at(q{{ s }} + d), key, acc{{ s }});
{%- endfor %}
                    }
{%- for s in range(slots) %}
                    var s{{ s }} = og(og(acc{{ s }}) * scale);
{%- if capped %}
                    s{{ s }} = og(scores[1] * tanh_of(og(s{{ s }} * scores[2])));
{%- endif %}
                    if ((flags & SLOPES) != 0u) {
                        s{{ s }} = chained(scores[8u + head{{ s }}], og(f32(j) - f32(position{{ s }})), s{{ s }});
                    }
                    if ((flags & RELATIVE) != 0u) {
                        s{{ s }} = og(s{{ s }}) + bias_of(sinks, head{{ s }}, j, position{{ s }});
                    }
                    shared_s[v + {{ s * 64 }}u] = og(s{{ s }});
{%- endfor %}
                }
                workgroupBarrier();
{%- for s in range(slots) %}
                let a{{ s }} = max(range{{ s }}.x, chunk) - chunk;
                let b{{ s }} = clamp(range{{ s }}.y, chunk, chunk + CHUNK) - chunk;
                var m{{ s }} = shared_s[min(a{{ s }}, 63u) + {{ s * 64 }}u];
                for (var i = a{{ s }} + 1u; i < b{{ s }}; i += 1u) {
                    let other = shared_s[i + {{ s * 64 }}u];
                    m{{ s }} = select(m{{ s }}, other, other > m{{ s }});
                }
                if (v >= a{{ s }} && v < b{{ s }}) {
                    shared_e[v + {{ s * 64 }}u] = exp_of(og(shared_s[v + {{ s * 64 }}u] - m{{ s }}));
                }
{%- endfor %}
                workgroupBarrier();
                let from_ = max(lo, chunk) - chunk;
                let to = min(hi - chunk, CHUNK);
{%- for s in range(slots) %}
                let here{{ s }} = a{{ s }} < b{{ s }};
                let new_top{{ s }} = select(top{{ s }}, m{{ s }}, here{{ s }} && (!any{{ s }} || m{{ s }} > top{{ s }}));
                let keep{{ s }} = exp_of(og(top{{ s }} - new_top{{ s }}));
                let take{{ s }} = exp_of(og(select(new_top{{ s }}, m{{ s }}, here{{ s }}) - new_top{{ s }}));
                var l{{ s }} = 0.0;
{%- endfor %}
                for (var c = 0u; c < COLUMNS; c += 1u) {
                    let d = c * 64u + v;
                    if (d < v_dim) {
{%- for s in range(slots) %}
                        var acc{{ s }} = 0.0;
                        l{{ s }} = 0.0;
{%- endfor %}
                        for (var i = from_; i < to; i += 1u) {
                            let at = chunk + i;
                            let page = pages[row + at / p.page_size];
{%- if coded %}
                            let v_base =
                                ((page * kv_heads + kv_head) * p.page_size + at % p.page_size) * words_of(v_dim);
                            let v_scale = bitcast<f32>(values[v_base + scale_place(v_dim)]);
                            let value = code_value(values[v_base + (d >> 2u)], d, v_scale);
{%- else %}
                            let value =
                                values_at(((page * kv_heads + kv_head) * p.page_size + at % p.page_size) * v_dim + d);
{%- endif %}
{%- for s in range(slots) %}
                            if (i >= a{{ s }} && i < b{{ s }}) {
                                let e = shared_e[i + {{ s * 64 }}u];
                                l{{ s }} = og(l{{ s }} + e);
                                acc{{ s }} = chained(e, value, acc{{ s }});
                            }
{%- endfor %}
                        }
{%- for s in range(slots) %}
                        if (here{{ s }}) {
                            acc{{ s }} = og(acc{{ s }});
                            let merged = og(og(o{{ s }}[c] * keep{{ s }}) + og(acc{{ s }} * take{{ s }}));
                            o{{ s }}[c] = select(acc{{ s }}, merged, any{{ s }});
                        }
{%- endfor %}
                    }
                }
{%- for s in range(slots) %}
                if (here{{ s }}) {
                    sum{{ s }} = og(select(l{{ s }}, og(sum{{ s }} * keep{{ s }}) + og(l{{ s }} * take{{ s }}), any{{ s }}));
                    top{{ s }} = new_top{{ s }};
                    any{{ s }} = true;
                }
{%- endfor %}
                workgroupBarrier();
            }
{%- for s in range(slots) %}
            if (used{{ s }}) {
                var keep{{ s }} = 1.0;
                if (any{{ s }} && (p.slice & SINKS) != 0u) {
                    let sink = of_heads[head{{ s }}];
                    let new_top = select(top{{ s }}, sink, sink > top{{ s }});
                    keep{{ s }} = exp_of(og(top{{ s }} - new_top));
                    sum{{ s }} = og(og(sum{{ s }} * keep{{ s }}) + exp_of(og(sink - new_top)));
                }
                let to{{ s }} = p.out_offset + row{{ s }} * p.out_pitch + head{{ s }} * v_dim;
                for (var c = 0u; c < COLUMNS; c += 1u) {
                    let d = c * 64u + v;
                    if (d < v_dim) {
                        out_put(to{{ s }} + d, select(0.0, divide(og(o{{ s }}[c] * keep{{ s }}), sum{{ s }}), any{{ s }}));
                    }
                }
            }
{%- endfor %}
            token = stop;
        }
    }
}
