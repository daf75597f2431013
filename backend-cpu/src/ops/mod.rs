//! tmp naive ops
use crate::mem::{Rows, Words};
use crate::sum;
use crate::{Cpu, CpuMem, CpuPlan, CpuStream, CpuWeight};
use engraft_core::backend::*;
use engraft_core::math::{self, FusedMadd as F};
use engraft_core::mem::{BufMut, BufRef, Float, MatMut, MatRef, StepShape};
use engraft_core::numerics::leaf_bounds;
use engraft_core::ops::{Act, Heads, NormKind, RopeStyle, Scores};
use engraft_core::Result;

pub(crate) fn coverage(op: Op, _: &Signature) -> Coverage { Coverage::Native(format!("naive_{}", op.name())) }

fn load(m: &Rows, r: usize) -> Vec<f32> {
    let p = m.row(r);
    (0..m.cols).map(|i| unsafe { match m.dtype {
        Float::F32 => *p.cast::<f32>().add(i),
        Float::F16 => (*p.cast::<half::f16>().add(i)).to_f32(),
        Float::Bf16 => (*p.cast::<half::bf16>().add(i)).to_f32(),
    } }).collect()
}
fn store(m: &Rows, r: usize, v: &[f32]) {
    let p = m.row(r);
    for (i, x) in v.iter().enumerate() { unsafe { match m.dtype {
        Float::F32 => *p.cast::<f32>().add(i) = *x,
        Float::F16 => *p.cast::<half::f16>().add(i) = half::f16::from_f32(*x),
        Float::Bf16 => *p.cast::<half::bf16>().add(i) = half::bf16::from_f32(*x),
    } } }
}
fn act(a: Act, x: f32) -> f32 { match a {
    Act::Relu => math::relu(x), Act::Silu => math::silu::<F>(x), Act::Gelu => math::gelu_erf::<F>(x),
    Act::GeluTanh => math::gelu_tanh::<F>(x), Act::QuickGelu => math::quick_gelu::<F>(x), Act::Tanh => math::tanh::<F>(x), _ => x } }
#[derive(Clone)]
struct N { kind: NormKind, eps: f32, w: Option<CpuWeight>, b: Option<CpuWeight>, plus: bool }
fn n(c: NormCall<'_, CpuWeight>) -> N { N { kind: c.kind, eps: c.eps, w: c.weight.cloned(), b: c.bias.cloned(), plus: c.plus_one } }
fn norm_row(x: &mut [f32], n: &N) {
    let b = leaf_bounds(x.len(), 1);
    let len = x.len() as f32;
    if n.kind == NormKind::Layer { let m = sum::sum_ref(x, &b) / len; for v in x.iter_mut() { *v -= m; } }
    let r = math::rsqrt(sum::square_sum_ref::<F>(x, &b) / len + n.eps);
    for (i, v) in x.iter_mut().enumerate() {
        let mut y = *v * r;
        if let Some(w) = &n.w { y *= w.0.w[i] + if n.plus { 1.0 } else { 0.0 }; }
        if let Some(b) = &n.b { y += b.0.w[i]; }
        *v = y;
    }
}
impl FusedOps<Cpu> for CpuStream {}
type M = CpuMem; type W = CpuWeight;
impl PrimitiveOps<Cpu> for CpuStream {
    fn embed(&mut self, ids: BufRef<'_, M, u32>, t: &W, out: MatMut<'_, M>) -> Result<()> {
        let (ids, t, out) = (Words::from(ids), t.clone(), Rows::from(out));
        self.run(move |_| { for (r, id) in unsafe { ids.slice() }.iter().enumerate() {
            let c = t.0.cols; let i = *id as usize;
            if i < t.0.rows { store(&out, r, &t.0.w[i * c..(i + 1) * c]) } else { store(&out, r, &vec![0.0; c]) } } Ok(()) })
    }
    fn linear(&mut self, x: MatRef<'_, M>, w: &W, bias: Option<&W>, out: MatMut<'_, M>) -> Result<()> {
        let (x, w, bias, out) = (Rows::from(x), w.clone(), bias.cloned(), Rows::from(out));
        self.run(move |_| { let b = leaf_bounds(w.0.cols, w.0.grain); for r in 0..x.rows { let xr = load(&x, r);
            let y: Vec<f32> = (0..w.0.rows).map(|i| { let s = sum::dot_ref::<F>(&xr, &w.0.w[i * w.0.cols..(i + 1) * w.0.cols], &b);
                match &bias { Some(b) => s + b.0.w[i], None => s } }).collect(); store(&out, r, &y); } Ok(()) })
    }
    fn norm(&mut self, x: MatRef<'_, M>, c: NormCall<'_, W>, out: MatMut<'_, M>) -> Result<()> {
        let (x, n, out) = (Rows::from(x), n(c), Rows::from(out));
        self.run(move |_| { for r in 0..x.rows { let mut v = load(&x, r); norm_row(&mut v, &n); store(&out, r, &v); } Ok(()) })
    }
    fn add(&mut self, acc: MatMut<'_, M>, x: MatRef<'_, M>) -> Result<()> {
        let (acc, x) = (Rows::from(acc), Rows::from(x));
        self.run(move |_| { for r in 0..x.rows { let mut a = load(&acc, r); for (a, b) in a.iter_mut().zip(load(&x, r)) { *a += b; } store(&acc, r, &a); } Ok(()) })
    }
    fn activate(&mut self, x: MatMut<'_, M>, a: Act) -> Result<()> {
        let x = Rows::from(x);
        self.run(move |_| { for r in 0..x.rows { let v: Vec<f32> = load(&x, r).into_iter().map(|v| act(a, v)).collect(); store(&x, r, &v); } Ok(()) })
    }
    fn gate(&mut self, g: MatRef<'_, M>, a: Act, out: MatMut<'_, M>) -> Result<()> {
        let (g, out) = (Rows::from(g), Rows::from(out));
        self.run(move |_| { for r in 0..g.rows { let v = load(&g, r); let h = v.len() / 2;
            let y: Vec<f32> = (0..h).map(|i| act(a, v[i]) * v[h + i]).collect(); store(&out, r, &y); } Ok(()) })
    }
    fn head_norm(&mut self, x: MatMut<'_, M>, width: usize, c: NormCall<'_, W>) -> Result<()> {
        let (x, n) = (Rows::from(x), n(c));
        self.run(move |_| { for r in 0..x.rows { let mut v = load(&x, r); for h in v.chunks_mut(width) { norm_row(h, &n); } store(&x, r, &v); } Ok(()) })
    }
    fn rope(&mut self, x: MatMut<'_, M>, width: usize, pos: BufRef<'_, M, u32>, rope: RopeView<'_, M>) -> Result<()> {
        let (x, pos, t) = (Rows::from(x), Words::from(pos), Words::from(rope.table));
        let (pairs, positions, style) = (rope.pairs, rope.positions, rope.style);
        self.run(move |_| { let (pos, t) = unsafe { (pos.slice(), t.slice()) }; for r in 0..x.rows { let mut v = load(&x, r); let p = pos[r] as usize;
            for h in v.chunks_mut(width) { for i in 0..pairs {
                let (a, b) = match style { RopeStyle::Half => (i, i + pairs), RopeStyle::Interleaved => (2 * i, 2 * i + 1) };
                let (c, s) = (t[p * pairs + i], t[(positions + p) * pairs + i]);
                let (x0, x1) = (h[a], h[b]);
                h[a] = x0.mul_add(c, -(x1 * s)); h[b] = x1.mul_add(c, x0 * s); } }
            store(&x, r, &v); } Ok(()) })
    }
    fn kv_append(&mut self, k: MatRef<'_, M>, v: MatRef<'_, M>, slots: BufRef<'_, M, i32>, kv: KvView<'_, M>) -> Result<()> {
        let (k, v, slots, kr, vr) = (Rows::from(k), Rows::from(v), Words::from(slots), kv_rows(kv).0, kv_rows(kv).1);
        self.run(move |_| { for (t, s) in unsafe { slots.slice() }.iter().enumerate() { if *s >= 0 { store(&kr, *s as usize, &load(&k, t)); store(&vr, *s as usize, &load(&v, t)); } } Ok(()) })
    }
    fn kv_copy_pages(&mut self, pairs: BufRef<'_, M, u32>, kv: KvView<'_, M>) -> Result<()> {
        let (pairs, (kr, vr), ps) = (Words::from(pairs), kv_rows(kv), kv.layout.page_size);
        self.run(move |_| { for p in unsafe { pairs.slice() }.chunks(2) { for i in 0..ps { for m in [&kr, &vr] { store(m, p[1] as usize * ps + i, &load(m, p[0] as usize * ps + i)); } } } Ok(()) })
    }
    fn plan_attention(&mut self, shape: StepShape, plan: &mut CpuPlan) -> Result<()> { debug_assert!(shape.fits(&plan.bound)); let _ = &plan.bound; Ok(()) }
    fn attend(&mut self, _: &CpuPlan, q: MatRef<'_, M>, kv: KvView<'_, M>, c: AttnCall<'_, M>, out: MatMut<'_, M>) -> Result<()> {
        let (q, (kr, vr), out, ps) = (Rows::from(q), kv_rows(kv), Rows::from(out), kv.layout.page_size);
        let (bounds, rows, lens, pages) = (Words::from(c.step.bounds), Words::from(c.step.table_rows), Words::from(c.step.kv_lens), Words::from(c.table.pages));
        let (stride, heads, scores) = (c.table.stride, c.heads, c.scores.clone());
        self.run(move |_| { let (bounds, rows, lens, pages) = unsafe { (bounds.slice(), rows.slice(), lens.slice(), pages.slice()) };
            for s in 0..rows.len() { let (a, b) = (bounds[s] as usize, bounds[s + 1] as usize); let len = lens[s] as usize;
                for t in a..b { let p = len - (b - a) + (t - a);
                    let slot = |j: usize| pages[rows[s] as usize * stride + j / ps] as usize * ps + j % ps;
                    attend_row(&q, t, p, len, heads, &scores, &|j| load(&kr, slot(j)), &|j| load(&vr, slot(j)), &out); } } Ok(()) })
    }
    fn attend_dense(&mut self, q: MatRef<'_, M>, k: MatRef<'_, M>, v: MatRef<'_, M>, bounds: BufRef<'_, M, u32>, _: usize, heads: Heads, scores: &Scores, out: MatMut<'_, M>) -> Result<()> {
        let (q, k, v, out, bounds, scores) = (Rows::from(q), Rows::from(k), Rows::from(v), Rows::from(out), Words::from(bounds), scores.clone());
        self.run(move |_| { let bounds = unsafe { bounds.slice() }; for w in bounds.windows(2) { let (a, b) = (w[0] as usize, w[1] as usize);
            for t in a..b { attend_row(&q, t, t - a, b - a, heads, &scores, &|j| load(&k, a + j), &|j| load(&v, a + j), &out); } } Ok(()) })
    }
    fn gather_rows(&mut self, x: MatRef<'_, M>, rows: BufRef<'_, M, u32>, out: MatMut<'_, M>) -> Result<()> {
        let (x, rows, out) = (Rows::from(x), Words::from(rows), Rows::from(out));
        self.run(move |_| { for (i, r) in unsafe { rows.slice() }.iter().enumerate() { if (*r as usize) < x.rows { store(&out, i, &load(&x, *r as usize)) } else { store(&out, i, &vec![0.0; x.cols]) } } Ok(()) })
    }
    fn convert(&mut self, x: MatRef<'_, M>, out: MatMut<'_, M>) -> Result<()> {
        let (x, out) = (Rows::from(x), Rows::from(out));
        self.run(move |_| { for r in 0..x.rows { store(&out, r, &load(&x, r)); } Ok(()) })
    }
    fn patch(&mut self, pairs: BufRef<'_, M, u32>, dst: BufMut<'_, M, u32>) -> Result<()> {
        let (pairs, dst) = (Words::from(pairs), Words::from(dst));
        self.run(move |_| { let d = unsafe { dst.slice_mut() }; for p in unsafe { pairs.slice() }.chunks(2) { if let Some(x) = d.get_mut(p[0] as usize) { *x = p[1]; } } Ok(()) })
    }
    fn mark_seen(&mut self, ids: BufRef<'_, M, u32>, slot: usize, words: usize, seen: BufMut<'_, M, u32>) -> Result<()> {
        let (ids, seen) = (Words::from(ids), Words::from(seen.slice(slot * words..(slot + 1) * words)?));
        self.run(move |_| { let s = unsafe { seen.slice_mut() }; s.fill(0); for id in unsafe { ids.slice() } { engraft_core::sample::mark_seen(s, *id); } Ok(()) })
    }
    fn argmax(&mut self, x: MatRef<'_, M>, out: BufMut<'_, M, u32>) -> Result<()> {
        let (x, out) = (Rows::from(x), Words::from(out));
        self.run(move |_| { let o = unsafe { out.slice_mut() }; for r in 0..x.rows { let v = load(&x, r); let mut b = 0; for i in 0..v.len() { if v[i] > v[b] { b = i; } } o[r] = b as u32; } Ok(()) })
    }
    fn sample(&mut self, l: MatRef<'_, M>, c: SampleCall<'_, M>, out: BufMut<'_, M, u32>) -> Result<()> {
        let (l, table, slots, pos, seen, out, words) = (Rows::from(l), Words::from(c.table), Words::from(c.slots), Words::from(c.positions), Words::from(c.seen), Words::from(out), c.seen_words);
        self.run(move |_| { let (o, seen) = unsafe { (out.slice_mut(), seen.slice_mut()) }; let (table, slots, pos) = unsafe { (table.slice(), slots.slice(), pos.slice()) };
            let mut scratch = engraft_core::sample::Scratch::new(l.cols);
            for r in 0..l.rows { if slots[r] as usize >= table.len() { o[r] = u32::MAX; continue; }
                let mut row = table[slots[r] as usize]; row.position = pos[r];
                let v = load(&l, r); let seen_row = (row.seen_slot >= 0).then(|| &mut seen[row.seen_slot as usize * words..][..words]);
                o[r] = engraft_core::sample::sample_row(&v, seen_row.as_deref(), &row, math::exp::<F>, &mut scratch);
                if let Some(s) = seen_row { engraft_core::sample::mark_seen(s, o[r]); } } Ok(()) })
    }
    fn kv_read(&mut self, kv: KvView<'_, M>, table: Table<'_, M>, row: usize, ok: MatMut<'_, M>, ov: MatMut<'_, M>) -> Result<()> {
        let ((kr, vr), pages, ok, ov, ps, stride) = (kv_rows(kv), Words::from(table.pages), Rows::from(ok), Rows::from(ov), kv.layout.page_size, table.stride);
        self.run(move |_| { let pages = unsafe { pages.slice() }; for p in 0..ok.rows { let s = pages[row * stride + p / ps] as usize * ps + p % ps; store(&ok, p, &load(&kr, s)); store(&ov, p, &load(&vr, s)); } Ok(()) })
    }
}
fn kv_rows(kv: KvView<'_, M>) -> (Rows, Rows) {
    let l = kv.layout; let rows = l.pages * l.page_size;
    let m = |mem, cols| Rows::from(MatRef { mem, offset: 0, rows, cols, pitch: cols, dtype: l.dtype });
    (m(kv.k, l.kv_heads * l.k_dim), m(kv.v, l.kv_heads * l.v_dim))
}
fn attend_row(q: &Rows, t: usize, p: usize, len: usize, h: Heads, s: &Scores, k: &dyn Fn(usize) -> Vec<f32>, v: &dyn Fn(usize) -> Vec<f32>, out: &Rows) {
    let qr = load(q, t); let mut y = vec![0.0; h.out_cols()];
    let hi = if s.causal { (p + 1).min(len) } else { len };
    let lo = s.window.map_or(0, |w| (p + 1).saturating_sub(w as usize));
    for head in 0..h.heads { let g = head / (h.heads / h.kv_heads); let qh = &qr[head * h.k_dim..(head + 1) * h.k_dim];
        let (mut m, mut l, mut o) = (0.0f32, 0.0f32, vec![0.0f32; h.v_dim]); let mut first = true; let mut c = lo / 64;
        while c * 64 < hi { let (a, b) = ((c * 64).max(lo), ((c + 1) * 64).min(hi));
            let sc: Vec<f32> = (a..b).map(|j| { let kj = k(j); let kh = &kj[g * h.k_dim..(g + 1) * h.k_dim]; let mut acc = 0.0f32; for d in 0..h.k_dim { acc = qh[d].mul_add(kh[d], acc); }
                let mut x = acc * s.scale; if let Some(cap) = s.soft_cap { x = cap * math::tanh::<F>(x / cap); } if let Some(al) = &s.alibi { x = al[head].mul_add(j as f32 - p as f32, x); } x }).collect();
            let cm = sc.iter().copied().fold(f32::MIN, f32::max); let (mut cl, mut co) = (0.0f32, vec![0.0f32; h.v_dim]);
            for (i, j) in (a..b).enumerate() { let e = math::exp::<F>(sc[i] - cm); cl += e; let vj = v(j); for d in 0..h.v_dim { co[d] = e.mul_add(vj[g * h.v_dim + d], co[d]); } }
            if first { m = cm; l = cl; o = co; first = false; } else { let nm = m.max(cm); let (x, y) = (math::exp::<F>(m - nm), math::exp::<F>(cm - nm)); l = l.mul_add(x, cl * y); for d in 0..h.v_dim { o[d] = o[d].mul_add(x, co[d] * y); } m = nm; }
            c += 1; }
        if !first { for d in 0..h.v_dim { y[head * h.v_dim + d] = o[d] / l; } } }
    store(out, t, &y);
}
