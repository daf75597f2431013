//! Attention: near f64 over every mask and width; the same bits alone and in a batch, in one step and in
//! several, over any pages, by either kernel.

use crate::bias::Bias;
use crate::machine::{Device, Dice, Type, U, schedules};
use engraft_kernels::params::MatView;
use engraft_kernels::params::attention::Scores;
use engraft_kernels::params::flash::{Flash, WIDTHS, supports};
use engraft_kernels::params::kv::{KvView, PageTable};
use ptx_vm::Options;
use sample::some;

const OLD: f32 = 0.375;

/// One model's heads and masks.
#[derive(Clone)]
pub struct Heads {
    pub ty: Type,
    pub heads: usize,
    pub kv_heads: usize,
    pub width: usize,
    pub causal: bool,
    pub window: Option<u32>,
    pub chunk: Option<u32>,
    pub cap: Option<f32>,
    pub slopes: Option<Vec<f32>>,
    pub sinks: Option<Vec<f32>>,
    pub ahead: Option<u32>,
    pub bias: Option<Bias>,
}

pub fn heads(ty: Type, heads: usize, kv_heads: usize, width: usize) -> Heads {
    Heads {
        ty,
        heads,
        kv_heads,
        width,
        causal: true,
        window: None,
        chunk: None,
        cap: None,
        slopes: None,
        sinks: None,
        ahead: None,
        bias: None,
    }
}

/// A sequence: queries, keys and values of all its positions.
#[derive(Clone)]
pub struct Text {
    pub len: usize,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

pub fn text(h: &Heads, len: usize, seed: u64) -> Text {
    let mut dice = Dice(seed);
    let mut some = |n: usize| (0..n).map(|_| h.ty.round(dice.unit() * 1.5)).collect::<Vec<f32>>();
    let (q, k) = (some(len * h.heads * h.width), some(len * h.kv_heads * h.width));
    // Chunks of alternating sign nearly cancel, which brings the last bits of the sums to the front of the
    // outputs.
    let mut v = some(len * h.kv_heads * h.width);
    for (j, row) in v.chunks_mut(h.kv_heads * h.width).enumerate() {
        row.iter_mut().for_each(|v| *v = h.ty.round(*v / 8.0 + if j / 64 % 2 == 0 { 8.0 } else { -8.0 }));
    }
    Text { len, q, k, v }
}

/// What a step asks of a sequence: its last `queries` positions of the first `len`.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub text: &'a Text,
    pub len: usize,
    pub queries: usize,
}

/// How a step is run.
#[derive(Clone, Copy)]
pub struct How {
    pub page_size: usize,
    /// Pages lie in another order.
    pub mixed: bool,
    pub few: u32,
    /// By Hopper's own kernel.
    pub hopper: bool,
    /// Elements that are skipped before q, and more in a row of it.
    pub skew: usize,
    pub options: Options,
}

pub fn how(options: Options) -> How {
    How { page_size: 16, mixed: false, few: 0, hopper: false, skew: 0, options }
}

impl Heads {
    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    /// Whether query position `p` of a sequence of `len` sees key `j`.
    pub fn sees(&self, p: usize, j: usize) -> bool {
        (!self.causal || j <= p)
            && self.ahead.is_none_or(|ahead| self.causal || j <= p + ahead as usize)
            && self.window.is_none_or(|w| j + w as usize > p)
            && self.chunk.is_none_or(|size| j >= p / size as usize * size as usize)
    }

    fn params(&self, device: &mut Device) -> Scores {
        let (bias, bias_behind, bias_ahead) = self.bias.as_ref().map_or((0, 0, 0), |b| b.put(device));
        let flags = [
            (self.window.is_some(), Scores::WINDOW),
            (self.chunk.is_some(), Scores::CHUNKED),
            (self.cap.is_some(), Scores::CAPPED),
        ];
        Scores {
            slopes: self.slopes.as_ref().map_or(0, |s| device.put(&Type::F32.write(s))),
            sinks: self.sinks.as_ref().map_or(0, |s| device.put(&Type::F32.write(s))),
            ahead: if self.causal { 0 } else { self.ahead.unwrap_or(Scores::ALL) },
            bias,
            bias_behind,
            bias_ahead,
            reserved: 0,
            scale: self.scale(),
            cap: self.cap.unwrap_or(1.0),
            window: self.window.or(self.chunk).unwrap_or(0),
            flags: flags.iter().map(|(on, flag)| if *on { *flag } else { 0 }).sum(),
        }
    }

    /// Outputs of all asked rows, over pages.
    pub fn run(&self, asks: &[Ask<'_>], how: How) -> Vec<f32> {
        supports(self.ty.elem(), self.ty.elem(), self.width as u32, self.width as u32).unwrap();
        let mut device = Device::new();
        let words = |v: &[u32]| v.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let stride = asks.iter().map(|a| a.len.div_ceil(how.page_size)).max().unwrap() + 1;
        let pages: usize = asks.iter().map(|a| a.len.div_ceil(how.page_size)).sum();
        let (mut table, mut used) = (vec![u32::MAX; asks.len() * stride], 0);
        let page = self.kv_heads * how.page_size * self.width;
        // Positions that were not written stay NaN, which shows where they are read.
        let (mut keys, mut values) = (vec![f32::NAN; pages * page], vec![f32::NAN; pages * page]);
        for (s, ask) in asks.iter().enumerate() {
            for entry in 0..ask.len.div_ceil(how.page_size) {
                let at = if how.mixed { pages - 1 - used } else { used };
                (table[s * stride + entry], used) = (at as u32, used + 1);
            }
            for j in 0..ask.len {
                let at = table[s * stride + j / how.page_size] as usize;
                for head in 0..self.kv_heads {
                    let to = ((at * self.kv_heads + head) * how.page_size + j % how.page_size) * self.width;
                    let from = (j * self.kv_heads + head) * self.width;
                    keys[to..to + self.width].copy_from_slice(&ask.text.k[from..from + self.width]);
                    values[to..to + self.width].copy_from_slice(&ask.text.v[from..from + self.width]);
                }
            }
        }
        let kv = KvView {
            keys: device.put(&self.ty.write(&keys)),
            values: device.put(&self.ty.write(&values)),
            pages: pages as u32,
            page_size: how.page_size as u32,
            kv_heads: self.kv_heads as u32,
            k_dim: self.width as u32,
            v_dim: self.width as u32,
            elem: self.ty.elem(),
        };
        let lens: Vec<u32> = asks.iter().map(|a| a.len as u32).collect();
        let rows: Vec<u32> = (0..asks.len() as u32).collect();
        let mut p: Flash = bytemuck::Zeroable::zeroed();
        p.kv = kv;
        p.kv_lens = device.put(&words(&lens));
        p.table_rows = device.put(&words(&rows));
        p.table = PageTable::new(device.put(&words(&table)), asks.len() as u32, stride as u32, &kv);
        self.finish(&mut device, p, asks, how)
    }

    /// Outputs of all rows of sequences without pages.
    pub fn run_rows(&self, asks: &[Ask<'_>], how: How) -> Vec<f32> {
        let mut device = Device::new();
        let pitch = self.kv_heads * self.width + how.skew;
        let mut rows = |of: fn(&Text) -> &Vec<f32>| {
            let mut all = vec![f32::NAN; how.skew];
            for ask in asks {
                for row in
                    of(ask.text)[..ask.len * self.kv_heads * self.width].chunks(self.kv_heads * self.width)
                {
                    all.extend(row);
                    all.extend(vec![f32::NAN; how.skew]);
                }
            }
            device.put(&self.ty.write(&all)) + (how.skew * 2) as u64
        };
        let (keys, values) = (rows(|t| &t.k), rows(|t| &t.v));
        let width = self.width as u32;
        let kv = KvView {
            keys,
            values,
            pages: 0,
            page_size: 0,
            kv_heads: self.kv_heads as u32,
            k_dim: width,
            v_dim: width,
            elem: self.ty.elem(),
        };
        let p = Flash { kv, k_pitch: pitch as u64, v_pitch: pitch as u64, ..bytemuck::Zeroable::zeroed() };
        self.finish(&mut device, p, asks, how)
    }

    /// Fills in what both kinds share, launches, and reads the outputs; two token rows at the end belong to
    /// no sequence.
    fn finish(&self, device: &mut Device, mut p: Flash, asks: &[Ask<'_>], how: How) -> Vec<f32> {
        let cols = self.heads * self.width;
        let tokens: usize = asks.iter().map(|a| a.queries).sum();
        let (q_pitch, out_pitch) = (cols + how.skew, cols + 8 - how.skew % 2);
        let mut q = vec![f32::NAN; how.skew + (tokens + 2) * q_pitch];
        let mut bounds = vec![0u32];
        let mut row = 0;
        for ask in asks {
            for i in 0..ask.queries {
                let from = (ask.len - ask.queries + i) * cols;
                q[how.skew + row * q_pitch..][..cols].copy_from_slice(&ask.text.q[from..from + cols]);
                row += 1;
            }
            bounds.push(row as u32);
        }
        let old = self.ty.write(&vec![OLD; (tokens + 2) * out_pitch]);
        let view = |ptr, pitch: usize| MatView {
            ptr,
            pitch: pitch as u64,
            rows: (tokens + 2) as u32,
            cols: cols as u32,
        };
        p.q = view(device.put(&self.ty.write(&q)) + (how.skew * 2) as u64, q_pitch);
        p.out = view(device.put(&old), out_pitch);
        p.scores = self.params(device);
        p.bounds = device.put(&bounds.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>());
        (p.seqs, p.heads, p.elem) = (asks.len() as u32, self.heads as u32, self.ty.elem());
        let most = |f: fn(&Ask<'_>) -> usize| asks.iter().map(f).max().unwrap() as u32;
        let mut p = p.with_few(how.few, most(|a| a.len));
        if how.few > 0 {
            p.parts = device.memory.allocate(0, p.parts_bytes()).unwrap();
        }
        let bytes = bytemuck::bytes_of(&p).to_vec();
        let whole = match how.hopper {
            true => p.whole_on_hopper(most(|a| a.queries)).unwrap(),
            false => p.whole(most(|a| a.queries)),
        };
        device.run(&whole, &bytes, &how.options);
        if how.few > 0 {
            device.run(&p.split(), &bytes, &how.options);
            if let Some(merge) = p.merge() {
                device.run(&merge, &bytes, &how.options);
            }
        }
        let got = self.ty.read(&device.get(p.out.ptr, old.len()));
        let kept = |(i, v): (usize, &f32)| (i % out_pitch < cols && i / out_pitch < tokens) || *v == OLD;
        assert!(got.iter().enumerate().all(kept), "something else was written");
        got.chunks(out_pitch).take(tokens).flat_map(|row| &row[..cols]).copied().collect()
    }

    /// One row's outputs of one head, in f64, and what f32 arithmetic may cost each.
    fn want(&self, text: &Text, len: usize, p: usize, head: usize) -> Vec<(f64, f64)> {
        let (w, kv_head) = (self.width, head / (self.heads / self.kv_heads));
        let q = &text.q[(p * self.heads + head) * w..][..w];
        let key = |j: usize| (j * self.kv_heads + kv_head) * w;
        let mut off = 0.0f64;
        let scores: Vec<(usize, f64)> = (0..len)
            .filter(|j| self.sees(p, *j))
            .map(|j| {
                let terms = q.iter().zip(&text.k[key(j)..][..w]).map(|(a, b)| f64::from(*a) * f64::from(*b));
                let (dot, condition) = terms.fold((0.0, 0.0), |(s, c), t| (s + t, c + f64::abs(t)));
                let mut s = dot * f64::from(self.scale());
                let mut e = (8.0 * condition * f64::from(self.scale()) + 2.0 * s.abs()) * U;
                if let Some(cap) = self.cap {
                    s = f64::from(cap) * (s / f64::from(cap)).tanh();
                    e += 13.0 * U * s.abs();
                }
                if let Some(slopes) = &self.slopes {
                    s += f64::from(slopes[head]) * (j as f64 - p as f64);
                    e += U * (s.abs() + f64::from(slopes[head]) * (p as f64 - j as f64).abs());
                }
                if let Some(bias) = &self.bias {
                    s += f64::from(bias.of(head, j as i64 - p as i64));
                    e += U * s.abs();
                }
                off = off.max(e);
                (j, s)
            })
            .collect();
        let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
        let top = scores.iter().map(|(_, s)| *s).chain(sink).fold(f64::MIN, f64::max);
        let sum: f64 = scores.iter().map(|(_, s)| *s).chain(sink).map(|s| (s - top).exp()).sum();
        // Scaling the argument of the exponential rounds once more than a plain one.
        off += scores.iter().fold(0.0f64, |m, (_, s)| m.max((top - s) * (s - top).exp())) * 2.0 * U;
        // Weights in two parts of the type: 2^-18 (bf16) of them is left out, 2^-24 (f16; below 2^-16 an
        // absolute 2^-40, which these outputs cannot show).
        let parts = if self.ty == Type::Bf16 { 64.0 * U } else { U };
        (0..w)
            .map(|d| {
                let part = |(j, s): &(usize, f64)| (s - top).exp() / sum * f64::from(text.v[key(*j) + d]);
                let value = scores.iter().map(part).sum();
                let weighted: f64 = scores.iter().map(|t| part(t).abs()).sum();
                (value, (2.0 * off + 32.0 * U + parts) * weighted)
            })
            .collect()
    }

    /// Outputs of the row at `position`.
    pub fn check_row(&self, ask: &Ask<'_>, position: usize, row: &[f32]) {
        for head in 0..self.heads {
            for (d, (want, slack)) in self.want(ask.text, ask.len, position, head).into_iter().enumerate() {
                let v = row[head * self.width + d];
                let most = slack + self.ty.half_ulp(want);
                assert!(
                    (f64::from(v) - want).abs() <= most,
                    "{:?} width {} position {position} of {} head {head} d {d}: {v}, not {want} (within {most:e})",
                    self.ty,
                    self.width,
                    ask.len
                );
            }
        }
    }

    pub fn check(&self, asks: &[Ask<'_>], got: &[f32]) {
        let mut rows = got.chunks(self.heads * self.width);
        for ask in asks {
            for i in 0..ask.queries {
                self.check_row(ask, ask.len - ask.queries + i, rows.next().unwrap());
            }
        }
        assert!(rows.next().is_none());
    }

    /// Near f64 and the same bits by every kernel and schedule.
    fn prove(&self, asks: &[Ask<'_>]) {
        let [forward, reverse, cores] = schedules();
        let got = self.run(asks, how(forward));
        self.check(asks, &got);
        for few in [1, 3] {
            assert_eq!(got, self.run(asks, How { few, ..how(reverse) }), "few {few}");
        }
        let got = self.run(asks, how(cores));
        self.check(asks, &got);
        assert_eq!(got, self.run(asks, How { few: 3, mixed: true, page_size: 32, ..how(cores) }));
    }
}

/// By Hopper's own kernel: near f64 under all schedules, whatever the pages; equal bits where sums are
/// modelled alike, also where sequences of few queries are left to the other.
fn prove_on_hopper(h: &Heads, asks: &[Ask<'_>]) {
    let [forward, reverse, cores] = schedules();
    let on = |options| How { hopper: true, ..how(options) };
    let got = h.run(asks, on(forward));
    h.check(asks, &got);
    assert_eq!(got, h.run(asks, How { mixed: true, page_size: 48, ..on(reverse) }));
    h.check(asks, &h.run(asks, How { few: 2, page_size: 1, ..on(cores) }));
}

pub fn all(text: &Text) -> Ask<'_> {
    last(text, text.len)
}
pub fn last(text: &Text, queries: usize) -> Ask<'_> {
    Ask { text, len: text.len, queries }
}

#[test]
fn widths_and_groups() {
    let sizes = [(64, 4, 2), (80, 2, 2), (96, 3, 1), (112, 2, 1), (128, 8, 2), (192, 2, 1), (256, 2, 1)];
    assert_eq!(sizes.map(|(width, ..)| width as u32), WIDTHS, "every width has a case");
    for (width, heads_n, kv) in some(sizes) {
        for ty in [Type::Bf16, Type::F16] {
            let h = heads(ty, heads_n, kv, width);
            let (a, b, c) = (text(&h, 21, 1), text(&h, 70, 2), text(&h, 3, 3));
            h.prove(&[last(&a, 1), last(&b, 20), last(&b, 2), all(&c)]);
        }
    }
}

#[test]
fn masks() {
    let base = heads(Type::F16, 4, 2, 64);
    for h in some([
        Heads { causal: false, ..base.clone() },
        Heads { window: Some(10), ..base.clone() },
        Heads { window: Some(0), ..base.clone() },
        Heads { chunk: Some(70), ..base.clone() },
        Heads { window: Some(70), cap: Some(3.0), ..base.clone() },
        Heads { slopes: Some(vec![0.5, 0.25, 0.0625, 1.0]), ..base.clone() },
        Heads { sinks: Some(vec![-2.0, 0.5, 3.0, 20.0]), ..base.clone() },
        Heads { causal: false, window: Some(20), ahead: Some(70), ..base.clone() },
        Heads { causal: false, slopes: Some(vec![-0.5, 0.25, 0.0, 1.0]), cap: Some(2.0), ..base.clone() },
        Heads { causal: false, bias: Bias::new(4, 5, 70), ..base.clone() },
        Heads { window: Some(100), sinks: Some(vec![0.5; 4]), bias: Bias::new(4, 66, 0), ..base.clone() },
    ]) {
        let (a, b) = (text(&h, 40, 5), text(&h, 150, 6));
        h.prove(&[all(&a), last(&b, 2), last(&b, 30)]);
    }
}

/// The first key's weight is 1 and its value nothing: outputs are made of weights from 2^-21 down to 2^-28
/// alone, which f16 holds with three bits or none.
#[test]
fn small_weights_count() {
    for ty in [Type::F16, Type::Bf16] {
        let h = Heads { causal: false, ..heads(ty, 1, 1, 64) };
        let mut a = text(&h, 300, 41);
        for (j, (k, v)) in a.k.chunks_mut(64).zip(a.v.chunks_mut(64)).enumerate() {
            k.fill(0.0);
            k[0] = if j == 0 { 0.0 } else { -15.0 - (j % 5) as f32 };
            v.iter_mut().for_each(|v| *v = if j == 0 { 0.0 } else { v.abs() });
        }
        a.q.chunks_mut(64).for_each(|q| q[0] = 8.0);
        h.prove(&[last(&a, 1), last(&a, 2)]);
    }
}

#[test]
fn several_spans() {
    for h in some([
        heads(Type::F16, 2, 1, 64),
        Heads { window: Some(300), sinks: Some(vec![1.0, -0.5]), ..heads(Type::F16, 2, 2, 64) },
        Heads { causal: false, ..heads(Type::Bf16, 1, 1, 128) },
        Heads { window: Some(0), ..heads(Type::Bf16, 2, 1, 64) },
    ]) {
        let (a, b, c) = (text(&h, 700, 7), text(&h, 256, 8), text(&h, 257, 9));
        h.prove(&[last(&a, 1), last(&b, 3), last(&c, 2), last(&c, 20)]);
    }
}

#[test]
fn many_heads_in_a_group_take_several_tiles() {
    let h = heads(Type::Bf16, 20, 1, 64);
    let a = text(&h, 300, 11);
    h.prove(&[last(&a, 1), last(&a, 5)]);
}

#[test]
fn a_row_has_the_same_bits_alone_in_a_batch_and_in_chunks() {
    for (h, len) in some([
        (heads(Type::Bf16, 4, 2, 64), 330),
        (Heads { window: Some(90), cap: Some(5.0), ..heads(Type::F16, 2, 1, 80) }, 290),
    ]) {
        let (a, b) = (text(&h, len, 21), text(&h, 33, 22));
        let options = schedules()[2];
        let whole = h.run(&[all(&a)], how(options));
        let cols = h.heads * h.width;
        // Among others, in chunks, over pages of other sizes and orders.
        let mut done = 0;
        for (chunk, page_size, few) in
            [(7, 16, 0), (130, 8, 1), (64, 64, 0), (1, 16, 1), (2, 128, 4), (len, 32, 0)]
        {
            let upto = (done + chunk).min(len);
            let ask = Ask { text: &a, len: upto, queries: upto - done };
            let how = How { page_size, mixed: chunk % 2 == 0, few, ..how(options) };
            let got = h.run(&[last(&b, 1), ask, all(&b)], how);
            assert_eq!(
                got[cols..][..(upto - done) * cols],
                whole[done * cols..upto * cols],
                "{done}..{upto}"
            );
            done = upto;
        }
        assert_eq!(done, len);
        // Every position as it would be decoded.
        for p in (0..len).step_by(37) {
            let ask = Ask { text: &a, len: p + 1, queries: 1 };
            let got = h.run(&[ask], How { few: 1, page_size: 48, ..how(options) });
            assert_eq!(got, whole[p * cols..(p + 1) * cols], "position {p}");
        }
    }
}

/// A text whose values at some positions are no numbers, and whether the row at a position sees one of them.
fn dirtied(h: &Heads, clean: &Text) -> (Text, impl Fn(usize) -> bool) {
    let (mut dirty, cols) = (clean.clone(), h.kv_heads * h.width);
    // An early one leaves none but those whose window has left it behind.
    let at = match h.window {
        None => vec![(clean.len - 2, f32::NAN)],
        Some(_) => vec![(clean.len - 2, f32::NAN), (clean.len - 50, f32::NEG_INFINITY), (3, f32::INFINITY)],
    };
    for (i, (j, wild)) in at.iter().enumerate() {
        // One column; of a later position all.
        let columns = if i == 0 { j * cols..(j + 1) * cols } else { j * cols + 5..j * cols + 6 };
        dirty.v[columns].fill(*wild);
    }
    let h = h.clone();
    (dirty, move |p| at.iter().any(|(j, _)| h.sees(p, *j)))
}

#[test]
fn values_that_a_row_does_not_see_cannot_reach_it() {
    for h in [
        heads(Type::Bf16, 4, 2, 64),
        Heads { window: Some(30), ..heads(Type::F16, 2, 1, 128) },
        heads(Type::F16, 2, 1, 192),
    ] {
        let clean = text(&h, 90, 51);
        let ((dirty, seen), cols) = (dirtied(&h, &clean), h.heads * h.width);
        for options in some(schedules()) {
            // A prompt, a chunk of it, a few queries by `split`.
            for (queries, few) in [(90, 0), (40, 0), (4, 4)] {
                let run = |text| h.run(&[last(text, queries)], How { few, ..how(options) });
                let (want, got) = (run(&clean), run(&dirty));
                let mut kept = 0;
                for (i, (want, got)) in want.chunks(cols).zip(got.chunks(cols)).enumerate() {
                    match seen(90 - queries + i) {
                        true => assert!(got.iter().any(|v| !v.is_finite()), "row {i} of {queries}"),
                        false => kept += usize::from(got == want),
                    }
                }
                let unseen = (90 - queries..90).filter(|p| !seen(*p)).count();
                assert!(unseen > 0, "{queries} queries");
                assert_eq!(kept, unseen, "{:?} {queries} queries, few {few}", h.ty);
            }
        }
    }
}

#[test]
fn values_that_a_row_does_not_see_cannot_reach_it_on_hopper() {
    for h in [heads(Type::Bf16, 4, 2, 64), Heads { window: Some(30), ..heads(Type::F16, 2, 1, 128) }] {
        let clean = text(&h, 150, 51);
        let (dirty, seen) = dirtied(&h, &clean);
        for options in schedules() {
            let got = h.run(&[all(&dirty)], How { hopper: true, ..how(options) });
            for (p, row) in got.chunks(h.heads * h.width).enumerate() {
                match seen(p) {
                    true => assert!(row.iter().any(|v| !v.is_finite()), "position {p}"),
                    false => h.check_row(&all(&clean), p, row),
                }
            }
        }
    }
}

#[test]
fn rows_without_pages_at_any_address() {
    for (i, width) in some(WIDTHS.into_iter().chain(WIDTHS).enumerate()) {
        let (ty, skew) = ([Type::Bf16, Type::F16][i / WIDTHS.len()], [0, 8, 3][i % 3]);
        let h = Heads { causal: skew == 8, ..heads(ty, 4, 2, width as usize) };
        let (a, b) = (text(&h, 30, 31), text(&h, 66, 32));
        let asks = [all(&a), all(&b)];
        let rows = h.run_rows(&asks, How { skew, ..how(schedules()[0]) });
        h.check(&asks, &rows);
        assert_eq!(rows, h.run(&asks, how(schedules()[1])), "pages give the same bits");
    }
}

#[test]
fn hopper_widths_and_groups() {
    for (width, heads_n, kv) in some([(64, 4, 2), (128, 3, 1), (128, 2, 2)]) {
        for ty in [Type::Bf16, Type::F16] {
            let h = heads(ty, heads_n, kv, width);
            let (a, b, c) = (text(&h, 21, 1), text(&h, 150, 2), text(&h, 3, 3));
            prove_on_hopper(&h, &[last(&a, 1), last(&b, 60), last(&b, 2), all(&c)]);
        }
    }
}

#[test]
fn hopper_masks() {
    let base = heads(Type::F16, 2, 1, 64);
    for h in some([
        Heads { causal: false, ..base.clone() },
        Heads { window: Some(70), cap: Some(3.0), sinks: Some(vec![2.0, -1.0]), ..base.clone() },
        Heads { chunk: Some(33), ..base.clone() },
        Heads { window: Some(10), slopes: Some(vec![0.5, 0.0625]), ..base.clone() },
        Heads { causal: false, window: Some(33), ahead: Some(64), ..base.clone() },
        Heads { causal: false, bias: Bias::new(2, 3, 70), ..base.clone() },
        Heads { slopes: Some(vec![0.5, 0.0625]), bias: Bias::new(2, 128, 128), ..base.clone() },
    ]) {
        let (a, b) = (text(&h, 40, 5), text(&h, 200, 6));
        prove_on_hopper(&h, &[all(&a), last(&b, 90)]);
    }
}

#[test]
fn hopper_goes_round_its_ring_and_reads_rows_at_any_address() {
    for (width, ty) in some([(64, Type::Bf16), (64, Type::F16), (128, Type::Bf16), (128, Type::F16)]) {
        let h = heads(ty, 1, 1, width);
        prove_on_hopper(&h, &[last(&text(&h, 700, 7), 9)]);
    }
    for (skew, causal) in [(8, true), (3, false)] {
        let h = Heads { causal, ..heads(Type::F16, 2, 1, 64) };
        let (a, b) = (text(&h, 30, 31), text(&h, 66, 32));
        let asks = [all(&a), all(&b)];
        h.check(&asks, &h.run_rows(&asks, How { skew, hopper: true, ..how(schedules()[0]) }));
    }
}

#[test]
fn what_cannot_be_taken_is_refused_with_a_reason() {
    let (half, full) = (Type::F16.elem(), Type::F32.elem());
    assert!(supports(full, full, 64, 64).unwrap_err().contains("f32"));
    assert!(supports(half, full, 64, 64).unwrap_err().contains("type"));
    assert!(supports(half, half, 64, 128).unwrap_err().contains("one width"));
    assert!(supports(half, half, 72, 72).unwrap_err().contains("wide"));
}
