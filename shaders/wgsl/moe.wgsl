{#- Experts: choosing them (`route`, `route_by_score`), sorting slots by expert (`group`), adding up what
they gave (`combine`; `combine_node` for a rank's part, in f32). Leaves of that sum go by expert number.

A slot is one of the pairs of a token and an expert, `token * top_k + choice`. Logits are compared as
integers: NaN counts as the smallest number, and the two zeros are equal, whatever a driver does with
them. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "math.wgsl" as math -%}
{%- if how in ["route", "route_by_score"] %}
{%- set by_score = how == "route_by_score" %}
{{ it.params(carrier, [
    "tokens", "experts", "top_k", "flags", "factor", "near", "x_offset", "x_pitch", "experts_offset",
    "weights_offset", "weights_pitch",
] + (["groups", "open_groups"] if by_score else [])) }}
{{ it.leaves() }}
{{ math.functions() }}
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> experts: array<u32>;
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;
{%- if by_score %}
@group(0) @binding(3) var<storage, read> bias: array<f32>;
{%- endif %}

const SIGMOID = 1u;
const RENORMALISE = 2u;
{%- if not by_score %}
const ONE_BY_ONE = 16u;
{%- endif %}
{%- if by_score %}
const BIAS = 4u;
const BEST_TWO = 8u;
{%- endif %}
// `Router::MAX_TOP_K`.
const MOST = 64u;

// The chosen by falling logit, and in ascending order; their scores; leaves of the sum over all.
var<workgroup> ranked: array<u32, 64>;
var<workgroup> chosen: array<u32, 64>;
var<workgroup> scores: array<f32, 64>;
var<workgroup> leaf: array<f32, 8>;
{%- if by_score %}
// What experts are chosen by (`Router::MAX_BY_SCORE`), what groups are ranked by, and which are the best.
var<workgroup> keys: array<u32, 1024>;
var<workgroup> ranks: array<u32, 32>;
var<workgroup> best: array<u32, 32>;
{%- endif %}

// Grows with the number; NaN gives that of minus infinity.
fn key_of(v: f32) -> u32 {
    if (is_nan(v)) {
        return 0x007fffffu;
    }
    let bits = bitcast<u32>(v);
    if ((bits & 0x7fffffffu) == 0u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn value_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) == 1u));
}

fn key(at: u32) -> u32 {
    return key_of(logits[at]);
}

fn score_of(v: f32, max: f32) -> f32 {
    if ((p.flags & SIGMOID) != 0u) {
        return og(sigmoid_of(v));
    }
    return og(exp_of(og(v - max)));
}

// A leaf of the sum of all scores.
fn leaf_of_scores(base: u32, max: f32, l: u32) -> f32 {
    var acc = 0.0;
    let end = leaf_start(p.experts, 1u, l + 1u);
    for (var i = leaf_start(p.experts, 1u, l); i < end; i += 1u) {
        acc = og(acc + score_of(logits[base + i], max));
    }
    return acc;
}
{%- if not by_score %}

// The sum of a softmax over the logits that are left when expert `c` is chosen, and near its own.
fn left(base: u32, c: u32) -> f32 {
    let best = logits[base + c];
    let own = key(base + c);
    var sums = array<f32, 8>();
    for (var l = 0u; l < 8u; l += 1u) {
        var acc = 0.0;
        let end = leaf_start(p.experts, 1u, l + 1u);
        for (var i = leaf_start(p.experts, 1u, l); i < end; i += 1u) {
            let s = logits[base + i];
            let other = key(base + i);
            let before = other > own || (other == own && i < c);
            let size = magnitude(s);
            if (!(before || og(best - s) > og(p.near * select(best, size, size > best)))) {
                acc = og(acc + og(exp_of(og(s - best))));
            }
        }
        sums[l] = acc;
    }
    return tree(sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]);
}
{%- endif %}
{%- if by_score %}

// What group `g` is ranked by.
fn rank_of(g: u32) -> u32 {
    let size = p.experts / p.groups;
    var first = 0u;
    var second = 0u;
    for (var e = g * size; e < (g + 1u) * size; e += 1u) {
        let own = keys[e];
        if (own > first) {
            second = first;
            first = own;
        } else if (own > second) {
            second = own;
        }
    }
    if ((p.flags & BEST_TWO) != 0u && size > 1u) {
        return key_of(og(value_of(first) + value_of(second)));
    }
    return first;
}
{%- endif %}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let n = p.experts;
    for (var token = group.x; token < p.tokens; token += groups.x) {
        let base = p.x_offset + token * p.x_pitch;
{%- if by_score %}
        // Computed by all alike.
        var highest = 0u;
        for (var i = 0u; i < n; i += 1u) {
            highest = max(highest, key(base + i));
        }
        let largest = value_of(highest);
        if (t < 8u) {
            leaf[t] = leaf_of_scores(base, largest, t);
        }
        workgroupBarrier();
        var whole = 1.0;
        if ((p.flags & SIGMOID) == 0u) {
            whole = tree(leaf[0], leaf[1], leaf[2], leaf[3], leaf[4], leaf[5], leaf[6], leaf[7]);
        }
        for (var i = t; i < n; i += 64u) {
            var s = og(divide(score_of(logits[base + i], largest), whole));
            if ((p.flags & BIAS) != 0u) {
                s = og(s + bias[i]);
            }
            keys[i] = key_of(s);
        }
        workgroupBarrier();
        if (t < p.groups) {
            ranks[t] = rank_of(t);
        }
        workgroupBarrier();
        if (t < p.groups) {
            var rank = 0u;
            for (var g = 0u; g < p.groups; g += 1u) {
                rank += select(0u, 1u, ranks[g] > ranks[t] || (ranks[g] == ranks[t] && g < t));
            }
            best[t] = select(0u, 1u, rank < p.open_groups);
        }
        workgroupBarrier();
        let size = n / p.groups;
        for (var i = t; i < n; i += 64u) {
            let own = keys[i];
            var rank = 0u;
            for (var j = 0u; j < n; j += 1u) {
                let before = keys[j] > own || (keys[j] == own && j < i);
                rank += select(0u, 1u, before && best[j / size] == 1u);
            }
            if (best[i / size] == 1u && rank < p.top_k) {
                ranked[rank] = i;
            }
        }
{%- else %}
        for (var i = t; i < n; i += 64u) {
            let own = key(base + i);
            var rank = 0u;
            for (var j = 0u; j < n; j += 1u) {
                let other = key(base + j);
                rank += select(0u, 1u, other > own || (other == own && j < i));
            }
            if (rank < p.top_k) {
                ranked[rank] = i;
            }
        }
{%- endif %}
        workgroupBarrier();
        if (t < p.top_k) {
            let own = ranked[t];
            var place = 0u;
            for (var j = 0u; j < p.top_k; j += 1u) {
                place += select(0u, 1u, ranked[j] < own);
            }
            chosen[place] = own;
        }
{%- if not by_score %}
        // Computed by all alike: the largest logit is the first in rank.
        let largest = value_of(key(base + ranked[0]));
{%- endif %}
        workgroupBarrier();
        if (t < p.top_k) {
            scores[t] = score_of(logits[base + chosen[t]], largest);
        }
{%- if not by_score %}
        if (p.flags == 0u && t < 8u) {
            leaf[t] = leaf_of_scores(base, largest, t);
        }
{%- endif %}
        workgroupBarrier();
        if (t < p.top_k) {
            var total = 1.0;
            if ((p.flags & RENORMALISE) != 0u) {
                total = 0.0;
                for (var j = 0u; j < p.top_k; j += 1u) {
                    total = og(total + scores[j]);
                }
            } else if ((p.flags & SIGMOID) == 0u) {
                total = tree(leaf[0], leaf[1], leaf[2], leaf[3], leaf[4], leaf[5], leaf[6], leaf[7]);
            }
            if ((bitcast<u32>(total) & 0x7fffffffu) == 0u) {
                total = 1.0;
            }
            experts[p.experts_offset + token * p.top_k + t] = chosen[t];
            var weight = og(divide(scores[t], total)) * p.factor;
{%- if not by_score %}
            if ((p.flags & ONE_BY_ONE) != 0u) {
                weight = divide(p.factor, left(base, chosen[t]));
            }
{%- endif %}
            weights[p.weights_offset + token * p.weights_pitch + t] = weight;
        }
        workgroupBarrier();
    }
}
{%- elif how == "group" %}
{{ it.params(carrier, ["slots", "count", "experts_offset", "groups_offset"]) }}
@group(0) @binding(0) var<storage, read> experts: array<u32>;
@group(0) @binding(1) var<storage, read_write> groups_out: array<u32>;

// Experts that a workgroup counts slots of.
const BINS = 1024u;

// How many slots an expert has, then where the next one goes; slots of experts before these; of four experts.
var<workgroup> bins: array<atomic<u32>, 1024>;
var<workgroup> before: atomic<u32>;
var<workgroup> fours: array<u32, 256>;
// The bins of 256 slots; `BINS` for those of other workgroups.
var<workgroup> tile: array<u32, 256>;

// Slots are read twice, however many experts there are: to count them, and to put each behind those before
// it.
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let order = p.groups_offset + p.count + 1u;
    for (var first = group.x * BINS; first <= p.count; first += groups.x * BINS) {
        for (var i = t; i < BINS; i += 256u) {
            atomicStore(&bins[i], 0u);
        }
        if (t == 0u) {
            atomicStore(&before, 0u);
        }
        workgroupBarrier();
        for (var s = t; s < p.slots; s += 256u) {
            let expert = experts[p.experts_offset + s];
            if (expert < first) {
                atomicAdd(&before, 1u);
            } else if (expert - first < BINS) {
                atomicAdd(&bins[expert - first], 1u);
            }
        }
        workgroupBarrier();
        var four = 0u;
        for (var i = 0u; i < 4u; i += 1u) {
            four += atomicLoad(&bins[t * 4u + i]);
        }
        fours[t] = four;
        workgroupBarrier();
        var begin = atomicLoad(&before);
        for (var i = 0u; i < t; i += 1u) {
            begin += fours[i];
        }
        for (var i = 0u; i < 4u; i += 1u) {
            let bin = t * 4u + i;
            let count = atomicLoad(&bins[bin]);
            atomicStore(&bins[bin], begin);
            if (first + bin <= p.count) {
                groups_out[p.groups_offset + first + bin] = begin;
            }
            begin += count;
        }
        workgroupBarrier();
        for (var from_ = 0u; from_ < p.slots; from_ += 256u) {
            let s = from_ + t;
            var bin = BINS;
            if (s < p.slots) {
                let expert = experts[p.experts_offset + s];
                // Below zero is far above.
                bin = select(BINS, min(expert - first, BINS), expert <= p.count);
            }
            tile[t] = bin;
            workgroupBarrier();
            if (bin < BINS) {
                var at = order + atomicLoad(&bins[bin]);
                for (var i = 0u; i < t; i += 1u) {
                    at += select(0u, 1u, tile[i] == bin);
                }
                groups_out[at] = s;
            }
            workgroupBarrier();
            if (bin < BINS) {
                atomicAdd(&bins[bin], 1u);
            }
            workgroupBarrier();
        }
    }
}
{%- else %}
{{ it.params(carrier, [
    "rows", "cols", "top_k", "add", "y_offset", "y_pitch", "weights_offset", "weights_pitch",
    "out_offset", "out_pitch", "count", "own", "experts_offset",
]) }}
{{ it.leaves() }}
{{ it.reads(0, "y", x) }}
@group(0) @binding(1) var<storage, read> weights: array<f32>;
{{ it.writes(2, "out", "f32" if how == "combine_node" else x) }}
@group(0) @binding(3) var<storage, read> experts: array<u32>;

// The slots of token t up to the first whose expert is `end` or above: from `j` on, the next at the end.
// Those of other ranks are passed over, they hold nothing.
fn leaf_of(t: u32, c: u32, from_j: u32, end: u32, own: bool, next: ptr<function, u32>) -> f32 {
    var acc = 0.0;
    var j = from_j;
    for (; j < p.top_k; j += 1u) {
        if (p.count != 0u && experts[p.experts_offset + t * p.top_k + j] >= end) {
            break;
        }
        if (own) {
            let w = weights[p.weights_offset + t * p.weights_pitch + j];
            acc = chained(w, y_at(p.y_offset + (t * p.top_k + j) * p.y_pitch + c), acc);
        }
    }
    *next = j;
    return og(acc);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let total = p.rows * p.cols;
    for (var i = id.x; i < total; i += groups.x * 256u) {
        let t = i / p.cols;
        let c = i % p.cols;
        var acc = 0.0;
        var j = 0u;
        if (p.count == 0u) {
            acc = leaf_of(t, c, 0u, 0u, true, &j);
        } else {
{%- for l in range(8) %}
            let leaf{{ l }} = leaf_of(t, c, j, leaf_start(p.count, 1u, {{ l + 1 }}u), ((p.own >> {{ l }}u) & 1u) != 0u, &j);
{%- endfor %}
            acc = tree(leaf0, leaf1, leaf2, leaf3, leaf4, leaf5, leaf6, leaf7);
        }
        let to = p.out_offset + t * p.out_pitch + c;
        if (p.add != 0u) {
            acc = og(acc) + out_at(to);
        }
        out_put(to, acc);
    }
}
{%- endif %}
