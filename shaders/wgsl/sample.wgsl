{#- From a row of logits to a token: `engraft_core::sample::reference`, bit for bit.

Weights are integers below 2^30, so sums have no order. They are kept as two words; products with
thresholds take three. The worst-ranked token that top-k and top-p keep is found digit by digit (8 bits of
the 64-bit ranking key at a time): per digit the tokens' number and weight are counted in 256 bins. -#}
{%- import "prelude.wgsl" as it -%}
{%- import "math.wgsl" as math -%}
{{ it.params(carrier, [
    "rows", "cols", "x_offset", "x_pitch", "out_offset", "table_offset", "table_rows", "slots_offset",
    "positions_offset", "seen_offset", "seen_words", "seen_rows",
]) }}
{{ math.functions() }}
{{ it.reads(0, "logits", "f32") }}

const NEGATIVE_INFINITY = 0xff800000u;

// A float's place in ascending order; NaN counts as -infinity, -0 as +0.
fn ascending(v: f32) -> u32 {
    let raw = bitcast<u32>(v);
    let number = select(raw, NEGATIVE_INFINITY, (raw & 0x7fffffffu) > 0x7f800000u);
    let bits = select(number, 0u, number == 0x80000000u);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn from_ascending(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) == 1u));
}

const LOWEST = 0x007fffffu;

var<workgroup> best_key: array<u32, 256>;
var<workgroup> best_index: array<u32, 256>;

// The invocation's best (key, index) in, the workgroup's best out: the largest key, then the lowest index.
fn best_of(t: u32, key: u32, index: u32) -> vec2<u32> {
    best_key[t] = key;
    best_index[t] = index;
    workgroupBarrier();
    for (var span = 128u; span > 0u; span = span >> 1u) {
        if (t < span) {
            let k = best_key[t + span];
            let i = best_index[t + span];
            if (k > best_key[t] || (k == best_key[t] && i < best_index[t])) {
                best_key[t] = k;
                best_index[t] = i;
            }
        }
        workgroupBarrier();
    }
    let best = vec2<u32>(workgroupUniformLoad(&best_key[0]), workgroupUniformLoad(&best_index[0]));
    return best;
}
@group(0) @binding(1) var<storage, read> table: array<u32>;
@group(0) @binding(2) var<storage, read> slots: array<u32>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read_write> seen: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read_write> out: array<u32>;

const ROW_WORDS = 12u;
const TOP_P_OFF = 0x1000000u;

// What a row of the sampling table says.
struct Row {
    inv_temperature: f32,
    penalty: f32,
    inv_penalty: f32,
    top_k: u32,
    top_p: u32,
    min_weight: u32,
    seen: i32,
}

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let lo = a.x + b.x;
    return vec2<u32>(lo, a.y + b.y + select(0u, 1u, lo < a.x));
}

fn mul32(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let mid = al * bh + (low >> 16u);
    let mid2 = ah * bl + (mid & 0xffffu);
    return vec2<u32>((mid2 << 16u) | (low & 0xffffu), ah * bh + (mid >> 16u) + (mid2 >> 16u));
}

// a * b in three words.
fn mul96(a: vec2<u32>, b: u32) -> vec3<u32> {
    let low = mul32(a.x, b);
    let high = add64(mul32(a.y, b), vec2<u32>(low.y, 0u));
    return vec3<u32>(low.x, high.x, high.y);
}

fn less96(a: vec3<u32>, b: vec3<u32>) -> bool {
    if (a.z != b.z) {
        return a.z < b.z;
    }
    if (a.y != b.y) {
        return a.y < b.y;
    }
    return a.x < b.x;
}

fn less64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// The high 64 bits of a * b.
fn mul64_high(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = mul96(a, b.x);
    let high = mul96(a, b.y);
    let mid = add64(vec2<u32>(low.y, low.z), vec2<u32>(high.x, high.y));
    let carry = less64(mid, vec2<u32>(low.y, low.z));
    return vec2<u32>(mid.y, high.z + select(0u, 1u, carry));
}

// Words 0 and 1 of Philox4x32-10 at (subsequence, position, index, 0).
fn random_bits(key: vec2<u32>, subsequence: u32, position: u32, index: u32) -> vec2<u32> {
    var c = vec4<u32>(subsequence, position, index, 0u);
    var k = key;
    for (var round = 0u; round < 10u; round += 1u) {
        let p0 = mul32(0xd2511f53u, c.x);
        let p1 = mul32(0xcd9e8d57u, c.z);
        c = vec4<u32>(p1.y ^ c.y ^ k.x, p1.x, p0.y ^ c.w ^ k.y, p0.x);
        k = k + vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return c.xy;
}

fn penalised(row: Row, base: u32, i: u32) -> f32 {
    let raw = logits_at(base + i);
    // As it is: what is no number stays none, whatever a compiler takes for granted.
    if (row.seen >= 0 && !is_nan(raw)) {
        let bits = atomicLoad(&seen[p.seen_offset + u32(row.seen) * p.seen_words + i / 32u]);
        if (((bits >> (i % 32u)) & 1u) == 1u) {
            return og(raw * select(row.penalty, row.inv_penalty, raw > 0.0));
        }
    }
    return raw;
}

// The place of z in ascending order, z at most the largest finite f32; what is no number has the lowest.
fn key_of(row: Row, base: u32, i: u32) -> u32 {
    let l = penalised(row, base, i);
    let key = min(ascending(og(l * row.inv_temperature)), 0xff7fffffu);
    return select(key, LOWEST, is_nan(l));
}

fn weight_of(key: u32, zmax: f32) -> u32 {
    if (key <= LOWEST) {
        return 0u;
    }
    let d = og(from_ascending(key) - zmax);
    if (d >= -21.0) {
        return u32(og(exp_of(d)) * 1073741824.0);
    }
    return 0u;
}

// Weights in three parts of 10 bits: a bin of 2^22 tokens cannot overflow.
var<workgroup> bin_count: array<atomic<u32>, 256>;
var<workgroup> bin_parts: array<atomic<u32>, 768>;
var<workgroup> chosen: array<u32, 8>;

fn bin_weight(b: u32) -> vec2<u32> {
    let low = vec2<u32>(atomicLoad(&bin_parts[b]), 0u);
    let mid = atomicLoad(&bin_parts[256u + b]);
    let high = atomicLoad(&bin_parts[512u + b]);
    return add64(low, add64(vec2<u32>(mid << 10u, mid >> 22u), vec2<u32>(high << 20u, high >> 12u)));
}

// Digit `level` (0 is the highest) of a ranking key, (not ascending, index).
fn digit(rank: u32, index: u32, level: u32) -> u32 {
    let word = select(index, rank, level < 4u);
    return (word >> (24u - (level & 3u) * 8u)) & 0xffu;
}

// Whether the digits above `level` are those of `prefix`.
fn under(rank: u32, index: u32, prefix: vec2<u32>, level: u32) -> bool {
    if (level == 0u) {
        return true;
    }
    if (level <= 4u) {
        let shift = 32u - level * 8u;
        return (rank >> shift) == (prefix.x >> shift) || (level == 4u && rank == prefix.x);
    }
    let shift = 32u - (level - 4u) * 8u;
    return rank == prefix.x && (index >> shift) == (prefix.y >> shift);
}

// Whether a ranking key is at or before `last`.
fn kept(rank: u32, index: u32, last: vec2<u32>) -> bool {
    return rank < last.x || (rank == last.x && index <= last.y);
}

// The key of the last token that is kept: the k-th (`count` > 0), or the last one before which less than the
// share `top_p` of `total` lies. Only tokens at or before `last` of weight above 0 take part; without any,
// `last`.
fn last_kept(
    t: u32,
    row: Row,
    base: u32,
    zmax: f32,
    last: vec2<u32>,
    count: u32,
    bound: vec3<u32>,
) -> vec2<u32> {
    var prefix = vec2<u32>(0u, 0u);
    var before_count = 0u;
    var before = vec2<u32>(0u, 0u);
    for (var level = 0u; level < 8u; level += 1u) {
        atomicStore(&bin_count[t], 0u);
        atomicStore(&bin_parts[t], 0u);
        atomicStore(&bin_parts[256u + t], 0u);
        atomicStore(&bin_parts[512u + t], 0u);
        workgroupBarrier();
        for (var i = t; i < p.cols; i += 256u) {
            let key = key_of(row, base, i);
            let w = weight_of(key, zmax);
            if (w > 0u && kept(~key, i, last) && under(~key, i, prefix, level)) {
                let b = digit(~key, i, level);
                atomicAdd(&bin_count[b], 1u);
                atomicAdd(&bin_parts[b], w & 1023u);
                atomicAdd(&bin_parts[256u + b], (w >> 10u) & 1023u);
                atomicAdd(&bin_parts[512u + b], w >> 20u);
            }
        }
        workgroupBarrier();
        if (t == 0u) {
            var n = before_count;
            var sum = before;
            var found = 256u;
            for (var b = 0u; b < 256u; b += 1u) {
                let here = atomicLoad(&bin_count[b]);
                if (here == 0u) {
                    continue;
                }
                let share = mul96(sum, TOP_P_OFF);
                let inside = select(less96(share, bound), (n < count), (count > 0u));
                if (!inside) {
                    break;
                }
                found = b;
                chosen[1] = n;
                chosen[2] = sum.x;
                chosen[3] = sum.y;
                n += here;
                sum = add64(sum, bin_weight(b));
            }
            chosen[0] = found;
        }
        workgroupBarrier();
        let found = workgroupUniformLoad(&chosen[0]);
        if (found == 256u) {
            return last;
        }
        before_count = chosen[1];
        before = vec2<u32>(chosen[2], chosen[3]);
        if (level < 4u) {
            prefix.x |= found << (24u - level * 8u);
        } else {
            prefix.y |= found << (24u - (level - 4u) * 8u);
        }
        workgroupBarrier();
    }
    return prefix;
}

var<workgroup> share_low: array<u32, 256>;
var<workgroup> share_high: array<u32, 256>;

// The sum over the workgroup of each invocation's `own`, and in `share_*` what lies before each.
fn scan(t: u32, own: vec2<u32>) -> vec2<u32> {
    share_low[t] = own.x;
    share_high[t] = own.y;
    workgroupBarrier();
    if (t == 0u) {
        var sum = vec2<u32>(0u, 0u);
        for (var i = 0u; i < 256u; i += 1u) {
            let here = vec2<u32>(share_low[i], share_high[i]);
            share_low[i] = sum.x;
            share_high[i] = sum.y;
            sum = add64(sum, here);
        }
        chosen[4] = sum.x;
        chosen[5] = sum.y;
    }
    workgroupBarrier();
    return vec2<u32>(chosen[4], chosen[5]);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    for (var r = group.x; r < p.rows; r += groups.x) {
        let slot = slots[p.slots_offset + r];
        if (slot >= p.table_rows) {
            if (t == 0u) {
                out[p.out_offset + r] = 0xffffffffu;
            }
            continue;
        }
        let at = p.table_offset + slot * ROW_WORDS;
        // A row of seen bits that is not there counts as none.
        let seen_row = select(-1, bitcast<i32>(table[at + 11u]), table[at + 11u] < p.seen_rows);
        let row = Row(
            bitcast<f32>(table[at]), bitcast<f32>(table[at + 1u]), bitcast<f32>(table[at + 2u]),
            table[at + 3u], table[at + 4u], table[at + 5u], seen_row,
        );
        let base = p.x_offset + r * p.x_pitch;
        let greedy = (table[at] & 0x7fffffffu) == 0u;
        var key = LOWEST;
        // Nothing above -infinity: no token.
        var index = 0xffffffffu;
        for (var i = t; i < p.cols; i += 256u) {
            var k = 0u;
            if (greedy) {
                k = ascending(penalised(row, base, i));
            } else {
                k = key_of(row, base, i);
            }
            if (k > key) {
                key = k;
                index = i;
            }
        }
        let best = best_of(t, key, index);
        var token = best.y;
        if (!greedy && best.x > LOWEST) {
            let zmax = from_ascending(best.x);
            var last = vec2<u32>(0xffffffffu, 0xffffffffu);
            // Each invocation sums a stretch of its own, so that stretches ascend.
            let stretch = (p.cols + 255u) / 256u;
            let from_i = min(t * stretch, p.cols);
            let end_i = min(from_i + stretch, p.cols);
            var own = vec2<u32>(0u, 0u);
            var total = vec2<u32>(0u, 0u);
            var least = 1u;
            // Top-k, then top-p, then the sum of what is left with min-p.
            for (var stage = 0u; stage < 3u; stage += 1u) {
                if ((stage == 0u && row.top_k == 0u) || (stage == 1u && row.top_p >= TOP_P_OFF)) {
                    continue;
                }
                if (stage > 0u) {
                    least = select(1u, max(row.min_weight, 1u), stage == 2u);
                    own = vec2<u32>(0u, 0u);
                    for (var i = from_i; i < end_i; i += 1u) {
                        let k = key_of(row, base, i);
                        let w = weight_of(k, zmax);
                        if (w >= least && kept(~k, i, last)) {
                            own = add64(own, vec2<u32>(w, 0u));
                        }
                    }
                    total = scan(t, own);
                }
                if (stage < 2u) {
                    let count = select(0u, row.top_k, stage == 0u);
                    last = last_kept(t, row, base, zmax, last, count, mul96(total, row.top_p));
                }
            }
            let bits = random_bits(
                vec2<u32>(table[at + 6u], table[at + 7u]), table[at + 8u],
                positions[p.positions_offset + r], table[at + 10u],
            );
            let target_sum = mul64_high(bits, total);
            var running = vec2<u32>(share_low[t], share_high[t]);
            if (t == 0u) {
                chosen[6] = best.y;
            }
            workgroupBarrier();
            if (!less64(target_sum, running) && less64(target_sum, add64(running, own))) {
                for (var i = from_i; i < end_i; i += 1u) {
                    let k = key_of(row, base, i);
                    let w = weight_of(k, zmax);
                    if (w >= least && kept(~k, i, last)) {
                        running = add64(running, vec2<u32>(w, 0u));
                        if (less64(target_sum, running)) {
                            chosen[6] = i;
                            break;
                        }
                    }
                }
            }
            workgroupBarrier();
            token = chosen[6];
            workgroupBarrier();
        }
        if (t == 0u) {
            out[p.out_offset + r] = token;
            if (row.seen >= 0 && token / 32u < p.seen_words) {
                atomicOr(&seen[p.seen_offset + u32(row.seen) * p.seen_words + token / 32u], 1u << (token % 32u));
            }
        }
        storageBarrier();
    }
}
