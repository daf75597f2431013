{#- An index of keys: `scores` of the keys that a query sees, and the `choose`ing of the best.

A score is a chain of madd over the heads of `factor * max(scale * dot, 0)`, a dot one over the columns; a
key is the row of `low`, then that of `high`, at its page slot. Of rows that see no more than `count` keys no
score is computed, and all of them are chosen.

scores: an invocation takes a key, eight heads at a time. choose: a workgroup takes a row. The least chosen
score is found by its bits, 8 at a time, from counts of scores by their next byte; then keys go by in the
order of positions. -#}
{%- import "prelude.wgsl" as it -%}
{%- set lists = [
    "rows", "keys", "seqs", "bounds_offset", "rows_offset", "lens_offset", "table_offset", "first",
] %}
{%- if how == "scores" %}
{{ it.params(carrier, lists + [
    "q_offset", "factors_offset", "low_offset", "high_offset", "out_offset", "out_pitch", "slice",
]) }}
{{ it.slices() }}
{{ it.reads(0, "q", x) }}
{{ it.reads(1, "factors", x) }}
{{ it.reads(2, "low", kv) }}
{{ it.reads(3, "high", kv) }}
@group(0) @binding(4) var<storage, read> sequences: array<u32>;
@group(0) @binding(5) var<storage, read> pages: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<storage, read> fixed: array<u32>;
{%- else %}
{{ it.params(carrier, lists + ["scores_offset", "scores_pitch", "chosen_offset", "counts_offset"]) }}
@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read> sequences: array<u32>;
@group(0) @binding(2) var<storage, read> pages: array<u32>;
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(4) var<storage, read_write> counts: array<u32>;
@group(0) @binding(5) var<storage, read> fixed: array<u32>;
{%- endif %}

// What is the same in every step, which there are more of than parameters (`FIXED` in the backend's file).
const TABLE_ROWS = 0u;
const TABLE_STRIDE = 1u;
const PAGE_SIZE = 2u;
const COUNT = 3u;
const HEADS = 4u;
const SCALE = 5u;
const SLOTS = 6u;
const LOW_COLS = 7u;
const HIGH_COLS = 8u;
const Q_PITCH = 9u;
const FACTORS_PITCH = 10u;
const LOW_PITCH = 11u;
const HIGH_PITCH = 12u;

// Where a query's row of the page table begins, and the keys that it sees.
struct Own {
    pages: u32,
    keys: u32,
}

{{ it.sequence_of() }}

fn keys_of(token: u32) -> Own {
    var own = Own(p.table_offset, 0u);
    if (p.seqs == 0u || fixed[TABLE_ROWS] == 0u) {
        return own;
    }
    let lo = sequence_of(token);
    let end = sequences[p.bounds_offset + lo + 1u];
    if (token < sequences[p.bounds_offset + lo] || token >= end) {
        return own;
    }
    let len = sequences[p.lens_offset + lo];
    let row = min(sequences[p.rows_offset + lo], fixed[TABLE_ROWS] - 1u);
    // The last of the sequence's queries sees all of its keys.
    own.keys = min(min(len - min(len, end - token - 1u), p.keys), fixed[TABLE_STRIDE] * fixed[PAGE_SIZE]);
    own.pages += row * fixed[TABLE_STRIDE];
    return own;
}

fn slot_of(own: Own, key: u32) -> u32 {
    return pages[own.pages + key / fixed[PAGE_SIZE]] * fixed[PAGE_SIZE] + key % fixed[PAGE_SIZE];
}
{%- if how == "scores" %}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) v: u32,
) {
    let width = fixed[LOW_COLS] + fixed[HIGH_COLS];
    let across = groups.x * slice_step(0u);
    for (var r = along(1u, group.y); r < p.rows; r += groups.y * slice_step(1u)) {
        let token = p.first + r;
        let own = keys_of(token);
        if (own.keys <= fixed[COUNT]) {
            continue;
        }
        for (var j = along(0u, group.x) * 64u + v; j < own.keys; j += across * 64u) {
            let slot = slot_of(own, j);
            if (slot >= fixed[SLOTS]) {
                out[p.out_offset + r * p.out_pitch + j] = 0.0;
                continue;
            }
            var score = 0.0;
            for (var h = 0u; h < fixed[HEADS]; h += 8u) {
                let heads = min(fixed[HEADS] - h, 8u);
                var sums: array<f32, 8>;
                let from_ = p.q_offset + token * fixed[Q_PITCH] + h * width;
                for (var d = 0u; d < width; d += 1u) {
                    var key: f32;
                    if (d < fixed[LOW_COLS]) {
                        key = low_at(p.low_offset + slot * fixed[LOW_PITCH] + d);
                    } else {
                        key = high_at(p.high_offset + slot * fixed[HIGH_PITCH] + d - fixed[LOW_COLS]);
                    }
                    for (var i = 0u; i < heads; i += 1u) {
                        sums[i] = chained(q_at(from_ + i * width + d), key, sums[i]);
                    }
                }
                for (var i = 0u; i < heads; i += 1u) {
                    let dot = og(sums[i] * bitcast<f32>(fixed[SCALE]));
                    let weight = factors_at(p.factors_offset + token * fixed[FACTORS_PITCH] + h + i);
                    score = chained(weight, select(dot, 0.0, dot < 0.0), score);
                }
            }
            out[p.out_offset + r * p.out_pitch + j] = score;
        }
    }
}
{%- else %}

var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> found: array<u32, 2>;
var<workgroup> ranks: array<u32, 256>;

// Numbers in the order of scores; NaN is 0, zeros are one number.
fn ordered(at: u32) -> u32 {
    let bits = bitcast<u32>(scores[at]);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0u;
    }
    if ((bits & 0x7fffffffu) == 0u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// Of the workgroup's flags those up to invocation v's own, which `ranks` has of all when it returns.
fn count_up_to(flag: u32, v: u32) -> u32 {
    ranks[v] = flag;
    workgroupBarrier();
    for (var reach = 1u; reach < 256u; reach = reach * 2u) {
        var more = 0u;
        if (v >= reach) {
            more = ranks[v - reach];
        }
        workgroupBarrier();
        ranks[v] += more;
        workgroupBarrier();
    }
    return ranks[v];
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) v: u32,
) {
    for (var r = group.x; r < p.rows; r += groups.x) {
        let own = keys_of(p.first + r);
        let row = p.scores_offset + r * p.scores_pitch;
        let to = p.chosen_offset + r * fixed[COUNT];
        let taken = min(own.keys, fixed[COUNT]);
        if (v == 0u) {
            counts[p.counts_offset + r] = taken;
        }
        for (var i = taken + v; i < fixed[COUNT]; i += 256u) {
            chosen[to + i] = 0u;
        }
        if (own.keys <= fixed[COUNT]) {
            for (var i = v; i < taken; i += 256u) {
                chosen[to + i] = slot_of(own, i);
            }
            continue;
        }
        var known = 0u;
        var left = fixed[COUNT];
        for (var byte = 0u; byte < 4u; byte += 1u) {
            let shift = 24u - 8u * byte;
            atomicStore(&bins[v], 0u);
            workgroupBarrier();
            for (var j = v; j < own.keys; j += 256u) {
                let number = ordered(row + j);
                // All bits above those that are looked at.
                if (byte == 0u || ((number ^ known) >> min(shift + 8u, 31u)) == 0u) {
                    atomicAdd(&bins[(number >> shift) & 255u], 1u);
                }
            }
            workgroupBarrier();
            if (v == 0u) {
                var above = 0u;
                var bin = 255u;
                while (bin > 0u && above + atomicLoad(&bins[bin]) < left) {
                    above += atomicLoad(&bins[bin]);
                    bin -= 1u;
                }
                found[0] = known | (bin << shift);
                found[1] = left - above;
            }
            workgroupBarrier();
            known = found[0];
            left = found[1];
        }
        var place = 0u;
        var seen = 0u;
        for (var base = 0u; base < own.keys; base += 256u) {
            let j = base + v;
            var number = 0u;
            if (j < own.keys) {
                number = ordered(row + j);
            }
            let same = u32(j < own.keys && number == known);
            let rank = seen + count_up_to(same, v);
            seen += ranks[255];
            workgroupBarrier();
            let is = u32((j < own.keys && number > known) || (same == 1u && rank <= left));
            let at = place + count_up_to(is, v);
            place += ranks[255];
            workgroupBarrier();
            if (is == 1u) {
                chosen[to + at - 1u] = slot_of(own, j);
            }
        }
    }
}
{%- endif %}
