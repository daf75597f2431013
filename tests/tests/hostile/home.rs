//! Operands moved into memory of their own, one of them changed on the way.

use super::change::{ALL, Change, PLAN, SLOPES, SPAN, Value};
use super::ground::{Ground, Spans};
use conformance::dice::Dice;
use conformance::lawful::Field;
use engraft_core::backend::{AttnPlan, Backend, Mem, Stream, Weight as WeightOf};
use engraft_core::mem::{
    Buf, BufMut, BufRef, Device, DeviceMem, HostWeight, KvLayout, MatLayout, MatMut, MatRef, Slab, StepShape,
    WeightInfo,
};
use engraft_core::ops::{AttentionOp, Op, Operand};
use engraft_core::params::{Relative, Scores};
use engraft_core::sample::SampleRow;
use engraft_core::{Error, Result};

/// The kind of device of a ground.
type Kind<G> = <<G as Ground>::Inner as Backend>::Device;
/// Its memory.
type Memory<G> = Mem<<G as Ground>::Inner>;

/// What an operand is, without its memory, and what it holds.
pub enum Held {
    /// A matrix without a lead: its bytes are those from its first element to its last.
    Mat(MatLayout, Vec<u8>),
    /// Elements of so many bytes.
    Buf(usize, Vec<u8>),
    /// Keys and values.
    Kv(KvLayout, [Vec<u8>; 2]),
    /// Weights stay where they are, unless they are changed.
    Weight,
    /// So do sizes.
    Size,
}

impl Held {
    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        match self {
            Held::Mat(_, bytes) | Held::Buf(_, bytes) => bytes.len(),
            Held::Kv(_, [k, v]) => k.len() + v.len(),
            Held::Weight | Held::Size => 0,
        }
    }
}

/// Memory for one operand.
pub enum Home<G: Ground> {
    /// Of a matrix.
    Mem(Memory<G>),
    /// Of words.
    Buf(Buf<Memory<G>, u8>),
    /// Of keys and values.
    Slab(Slab<Memory<G>>),
    /// A weight in the place of another.
    Weight(WeightOf<G::Inner>),
    /// A schedule in the place of another.
    Plan(Box<AttnPlan<G::Inner>>),
    /// Scores in the place of others.
    Scores(Scores),
    /// Nothing.
    None,
}

/// Bytes that a matrix at the start of its memory takes.
fn span(at: MatLayout) -> usize {
    if at.rows == 0 { 0 } else { ((at.rows - 1) * at.pitch + at.cols) * at.dtype.bytes() }
}

/// What every operand is and holds.
pub fn held<G: Ground>(ground: &G, op: &mut Op<'_, Kind<G>>) -> Vec<Held> {
    let mat = |m: MatRef<'_, Memory<G>>| {
        let at = MatLayout { offset: 0, ..m.layout() };
        let first = m.offset() * at.dtype.bytes();
        Held::Mat(at, ground.read(m.mem(), first..first + span(at)))
    };
    fn words<G: Ground, T>(ground: &G, w: BufRef<'_, Memory<G>, T>) -> Held {
        let size = size_of::<T>();
        Held::Buf(size, ground.read(w.mem(), w.offset() * size..(w.offset() + w.len()) * size))
    }
    let hold = |(_, operand)| match operand {
        Operand::Mat(m) => mat(*m),
        Operand::MatMut(m) => mat(m.as_ref()),
        Operand::Words(w) => words(ground, *w),
        Operand::Slots(w) => words(ground, *w),
        Operand::Floats(w) => words(ground, *w),
        Operand::Samples(w) => words(ground, *w),
        Operand::WordsMut(w) => words(ground, w.as_ref()),
        Operand::Kv(kv) => {
            let all = [kv.k(), kv.v()].map(|mem| ground.read(mem, 0..mem.bytes()));
            Held::Kv(kv.layout(), all)
        }
        Operand::KvMut(kv) => {
            let kv = kv.as_ref();
            let all = [kv.k(), kv.v()].map(|mem| ground.read(mem, 0..mem.bytes()));
            Held::Kv(kv.layout(), all)
        }
        Operand::Weight(_) => Held::Weight,
        Operand::Size(_) => Held::Size,
    };
    op.operands().into_iter().map(hold).collect()
}

/// Memory of these bytes; with room behind them, it is as many again and some.
fn filled<G: Ground>(ground: &G, bytes: &[u8], loose: bool) -> Result<Memory<G>> {
    let room = if loose { 4 * bytes.len() + 4096 } else { bytes.len() };
    let mut mem = ground.room(room)?;
    ground.write(&mut mem, bytes);
    Ok(mem)
}

/// Random words of the sizes that hurt: neighbours of the op's own sizes, the ends of types, anything.
fn data(bytes: usize, seed: u64, sizes: &[usize]) -> Vec<u8> {
    let mut dice = Dice::new(seed ^ 0x0DD_B175);
    let whole = [0, u32::MAX, 0x7fff_ffff, 0x8000_0000, 1];
    let word = |_: usize| match (seed as usize, dice.below(4)) {
        (n, _) if n < whole.len() => whole[n],
        (5, _) | (_, 0) => dice.bits() as u32,
        (_, 1) => (dice.pick(sizes) as u32).wrapping_add(dice.below(3) as u32).wrapping_sub(1),
        (_, 2) => dice.below(6) as u32,
        _ => dice.pick(&[0, u32::MAX, u32::MAX - 1, 0x7fff_ffff, 0x8000_0000, 0x7f80_0000, 0xff80_0000]),
    };
    let words: Vec<u32> = (0..bytes.div_ceil(4)).map(word).collect();
    let all: &[u8] = bytemuck::cast_slice(&words);
    all[..bytes].to_vec()
}

/// Memory for every operand, with a changed one's as it needs it.
pub fn homes<G: Ground>(
    ground: &G,
    stream: &mut <G::Inner as Backend>::Stream,
    all: &[Held],
    change: &Change,
) -> Result<Vec<Home<G>>> {
    let sizes: Vec<usize> = all.iter().flat_map(numbers).chain([1, 31, 64]).collect();
    let mut homes = Vec::with_capacity(all.len() + 1);
    for (index, held) in all.iter().enumerate() {
        let own = change.index == index;
        let loose = own && change.loose;
        let content = |bytes: &[u8]| match change.to {
            Value::Data(seed) if own => data(bytes.len(), seed, &sizes),
            // Another one for every operand, and none of those that hold one word alone.
            Value::Data(seed) if change.index == ALL => {
                data(bytes.len(), 6 + seed + 977 * index as u64, &sizes)
            }
            _ => bytes.to_vec(),
        };
        homes.push(match held {
            Held::Mat(_, bytes) => Home::Mem(filled(ground, &content(bytes), loose)?),
            Held::Buf(_, bytes) => {
                let mem = filled(ground, &content(bytes), loose)?;
                let len = mem.bytes();
                Home::Buf(Buf::new(mem, len)?)
            }
            Held::Kv(layout, [k, v]) => {
                let (k, v) = (filled(ground, &content(k), loose)?, filled(ground, &content(v), loose)?);
                Home::Slab(Slab::new::<Kind<G>>(k, v, *layout)?)
            }
            Held::Weight => match &change.to {
                Value::Weight(info) if own => Home::Weight(weight(ground, info)?),
                _ => Home::None,
            },
            Held::Size => Home::None,
        });
    }
    homes.push(other(ground, stream, change)?);
    Ok(homes)
}

/// Sizes that data may speak of.
fn numbers(held: &Held) -> Vec<usize> {
    match held {
        Held::Mat(at, _) => vec![at.rows, at.cols],
        Held::Buf(size, bytes) => vec![bytes.len() / size],
        Held::Kv(at, _) => vec![at.pages, at.page_size, at.slots()],
        Held::Weight | Held::Size => Vec::new(),
    }
}

/// A weight of zeros.
pub fn weight<G: Ground>(ground: &G, info: &WeightInfo) -> Result<WeightOf<G::Inner>> {
    // What no memory holds is described without it.
    let sane = info.rows.checked_mul(info.cols).is_some_and(|n| n < 1 << 24);
    let bytes = if sane { vec![0; info.format.bytes(info.rows, info.cols)] } else { Vec::new() };
    ground.pack(HostWeight::new(info.clone(), vec![bytes.into()])?)
}

/// What is no operand: a schedule for another step, other slopes, other distances.
fn other<G: Ground>(
    ground: &G,
    stream: &mut <G::Inner as Backend>::Stream,
    change: &Change,
) -> Result<Home<G>> {
    let Value::Number(n) = change.to else { return Ok(Home::None) };
    match change.operand {
        PLAN if n > 1 << 16 => {
            Err(Error::internal("a schedule of more sequences than tests have memory for"))
        }
        PLAN => {
            let shape = StepShape { tokens: n, seqs: n, max_query: 1, max_keys: n, ..StepShape::default() };
            let mut plan = ground.inner().attention_plan(shape)?;
            stream.plan_attention(shape, &mut plan)?;
            Ok(Home::Plan(Box::new(plan)))
        }
        SLOPES if n > 1 << 16 => Err(Error::internal("more slopes than tests have memory for")),
        SPAN => match n.checked_sub(1).map(u32::try_from).transpose() {
            Err(_) => Err(Error::internal("more distances than scores can name")),
            Ok(behind) => {
                let relative = behind.map(|behind| Relative { behind, ahead: 0 });
                Ok(Home::Scores(Scores { relative, ..Scores::causal(1.0) }))
            }
        },
        SLOPES => Ok(Home::Scores(Scores { alibi: Some(vec![0.5; n].into()), ..Scores::causal(1.0) })),
        _ => Ok(Home::None),
    }
}

/// Whether views or weights of a change cannot even be made; `None` where they can, or where there are none.
pub fn refused<G: Ground>(ground: &G, held: &[Held], change: &Change) -> Result<Option<Error>> {
    let Some(held) = held.get(change.index) else { return Ok(None) };
    let made = match held {
        Held::Mat(at, bytes) => {
            let Some(to) = changed_mat(*at, change) else { return Ok(None) };
            let mut mem = filled(ground, bytes, change.loose)?;
            let shared = MatRef::new(&mem, to).map(|_| ());
            let exclusive = MatMut::new(&mut mem, *at)?.at(to).map(|_| ());
            if shared.is_ok() != exclusive.is_ok() {
                return Err(Error::internal("views to read and to write disagree"));
            }
            shared
        }
        Held::Buf(size, bytes) => {
            let Some((from, to)) = changed_range(bytes.len() / size, change) else { return Ok(None) };
            let mem = filled(ground, bytes, change.loose)?;
            let len = mem.bytes();
            let buffer = Buf::<_, u8>::new(mem, len)?;
            sized(buffer.view(), *size, from..to)
        }
        Held::Kv(layout, [k, v]) => {
            let Value::Kv(to) = change.to else { return Ok(None) };
            let (k, v) = (filled(ground, k, change.loose)?, filled(ground, v, change.loose)?);
            let slab = Slab::new::<Kind<G>>(k, v, *layout)?;
            slab.view().at::<Kind<G>>(to).map(|_| ())
        }
        Held::Weight => match &change.to {
            Value::Weight(info) => weight(ground, info).map(|_| ()),
            _ => Ok(()),
        },
        Held::Size => Ok(()),
    };
    Ok(made.err())
}

/// A view of elements of `size` bytes.
fn sized<M: DeviceMem>(view: BufRef<'_, M, u8>, size: usize, range: std::ops::Range<usize>) -> Result<()> {
    match size {
        4 => view.of_allocation::<u32>(range).map(|_| ()),
        _ => view.of_allocation::<SampleRow>(range).map(|_| ()),
    }
}

/// The place of a changed matrix.
fn changed_mat(at: MatLayout, change: &Change) -> Option<MatLayout> {
    Some(match (change.field, &change.to) {
        (Field::Offset, Value::Number(n)) => MatLayout { offset: *n, ..at },
        (Field::Rows, Value::Number(n)) => MatLayout { rows: *n, ..at },
        (Field::Cols, Value::Number(n)) => MatLayout { cols: *n, ..at },
        (Field::Pitch, Value::Number(n)) => MatLayout { pitch: *n, ..at },
        (_, Value::Dtype(dtype)) => MatLayout { dtype: *dtype, ..at },
        (_, Value::Mat(to)) => *to,
        _ => return None,
    })
}

/// First and last element of a changed buffer of `len` elements; the last may wrap.
fn changed_range(len: usize, change: &Change) -> Option<(usize, usize)> {
    match (change.field, &change.to) {
        (Field::Offset, Value::Number(n)) => Some((*n, n.wrapping_add(len))),
        (Field::Len, Value::Number(n)) => Some((0, *n)),
        _ => None,
    }
}

/// Puts every operand of `op` into its home, changed where it is the one.
pub fn move_in<'h, G: Ground>(
    op: &mut Op<'h, Kind<G>>,
    homes: &'h mut [Home<G>],
    all: &[Held],
    change: &Change,
) -> Result<()> {
    let Some((last, homes)) = homes.split_last_mut() else { return Ok(()) };
    for (index, ((_, operand), home)) in op.operands().into_iter().zip(homes).enumerate() {
        let own = (change.index == index).then_some(change);
        one(operand, home, &all[index], own)?;
    }
    set_other::<G>(op, last);
    Ok(())
}

/// One operand.
fn one<'h, G: Ground>(
    operand: Operand<'_, 'h, Kind<G>>,
    home: &'h mut Home<G>,
    held: &Held,
    change: Option<&Change>,
) -> Result<()> {
    match (operand, home, held) {
        (Operand::Mat(m), Home::Mem(mem), Held::Mat(at, _)) => {
            *m = MatRef::new(mem, change.and_then(|c| changed_mat(*at, c)).unwrap_or(*at))?;
        }
        (Operand::MatMut(m), Home::Mem(mem), Held::Mat(at, _)) => {
            let to = change.and_then(|c| changed_mat(*at, c)).unwrap_or(*at);
            *m = MatMut::new(mem, *at)?.at(to)?;
        }
        (Operand::Words(w), Home::Buf(buf), held) => *w = buffer(buf, held, change)?,
        (Operand::Slots(w), Home::Buf(buf), held) => *w = buffer(buf, held, change)?,
        (Operand::Floats(w), Home::Buf(buf), held) => *w = buffer(buf, held, change)?,
        (Operand::Samples(w), Home::Buf(buf), held) => *w = buffer(buf, held, change)?,
        (Operand::WordsMut(w), Home::Buf(buf), held) => *w = buffer_mut(buf, held, change)?,
        (Operand::Kv(kv), Home::Slab(slab), _) => {
            *kv = match change.map(|c| &c.to) {
                Some(Value::Kv(to)) => slab.view().at::<Kind<G>>(*to)?,
                _ => slab.view(),
            };
        }
        (Operand::KvMut(kv), Home::Slab(slab), _) => {
            *kv = match change.map(|c| &c.to) {
                Some(Value::Kv(to)) => slab.view_mut().at::<Kind<G>>(*to)?,
                _ => slab.view_mut(),
            };
        }
        (Operand::Weight(w), Home::Weight(other), _) => *w = other,
        (Operand::Weight(_), ..) => {}
        (Operand::Size(n), ..) => {
            if let Some(Value::Number(to)) = change.map(|c| &c.to) {
                *n = *to;
            }
        }
        _ => return Err(Error::internal("an operand without its home")),
    }
    Ok(())
}

/// Elements that are held, or those that a change makes of them.
fn range(held: &Held, change: Option<&Change>) -> std::ops::Range<usize> {
    let Held::Buf(size, bytes) = held else { return 0..0 };
    let len = bytes.len() / size;
    let (from, to) = change.and_then(|c| changed_range(len, c)).unwrap_or((0, len));
    from..to
}

fn buffer<'h, M: DeviceMem, T>(
    buf: &'h Buf<M, u8>,
    held: &Held,
    change: Option<&Change>,
) -> Result<BufRef<'h, M, T>> {
    buf.view().of_allocation(range(held, change))
}

fn buffer_mut<'h, M: DeviceMem, T>(
    buf: &'h mut Buf<M, u8>,
    held: &Held,
    change: Option<&Change>,
) -> Result<BufMut<'h, M, T>> {
    buf.view_mut().of_allocation(range(held, change))
}

/// Other slopes or other distances, all else as it was.
fn with_others<'h>(other: &'h mut Scores, was: &Scores) -> &'h Scores {
    let relative = if other.alibi.is_some() { was.relative } else { other.relative };
    let alibi = other.alibi.take().or_else(|| was.alibi.clone());
    *other = Scores { alibi, relative, ..was.clone() };
    other
}

/// Puts what is no operand into its place.
fn set_other<'h, G: Ground>(op: &mut Op<'h, Kind<G>>, home: &'h mut Home<G>) {
    match (op, home) {
        (Op::Attention(AttentionOp::Attend(op)), Home::Plan(plan)) => op.plan = plan,
        (Op::Attention(AttentionOp::Attend(op)), Home::Scores(scores)) => {
            op.scores = with_others(scores, op.scores)
        }
        (Op::Attention(AttentionOp::AttendDense(op)), Home::Scores(scores)) => {
            op.scores = with_others(scores, op.scores);
        }
        (Op::Attention(AttentionOp::AttendDisentangled(op)), Home::Scores(scores)) => {
            op.scores = with_others(scores, op.scores);
        }
        _ => {}
    }
}

/// The addresses of an op's outputs.
pub fn outputs<G: Ground>(ground: &G, op: &mut Op<'_, Kind<G>>) -> Spans {
    let mut spans = Spans::new();
    for (_, operand) in op.operands() {
        match operand {
            Operand::MatMut(m) => {
                let (size, at, start) = (m.dtype().bytes(), m.layout(), ground.address(m.as_ref().mem()));
                let row = |r: usize| start + (at.offset + r * at.pitch) * size;
                spans.extend((0..at.rows).map(|r| row(r)..row(r) + at.cols * size));
            }
            Operand::WordsMut(w) => {
                let (len, w) = (w.len(), w.as_ref());
                let start = ground.address(w.mem()) + 4 * w.offset();
                spans.push(start..start + 4 * len);
            }
            Operand::KvMut(kv) => {
                let kv = kv.as_ref();
                let (k, v) = <Kind<G> as Device>::kv_bytes(&kv.layout());
                for (mem, bytes) in [(kv.k(), k), (kv.v(), v)] {
                    spans.push(ground.address(mem)..ground.address(mem) + bytes);
                }
            }
            _ => {}
        }
    }
    spans
}
