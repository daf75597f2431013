//! `wmma`: one warp's matmul over fragments whose layout the manual leaves open.
//!
//! Here a fragment is what `mma` takes: tiles of 16 rows (8 where the shape has no more) and 8 columns,
//! each in the order of the table in [`super`], tile after tile; those of C and D by rows of tiles. So
//! `wmma.mma` is a handful of [`Mma`]s, as it is on hardware, and its sums are theirs. Fragments of f16
//! have eight registers whatever their shape: the upper ones repeat the lower.

use super::bits::BitOp;
use super::element::{Accumulator, Element};
use super::mma::{MOST, Mma, N};
use super::sum::Summation;
use crate::Row;
use crate::number::half;

/// Registers of an operand at most.
pub const REGISTERS: usize = 8;

/// Rows of A, columns of B, depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of A and D.
    pub m: usize,
    /// Columns of B and D.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
}

/// Shapes of 16-bit and 8-bit elements.
const LARGE: [(usize, usize, usize); 3] = [(16, 16, 16), (8, 32, 16), (32, 8, 16)];
/// Those of other elements: tf32, f64, 4-bit integers, single bits.
const OTHERS: [(usize, usize, usize); 4] = [(16, 16, 8), (8, 8, 4), (8, 8, 32), (8, 8, 128)];

impl Shape {
    /// Reads a name such as `m16n16k16`.
    pub fn parse(name: &str) -> Option<Self> {
        let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        let shape = (m.parse().ok()?, n.parse().ok()?, k.parse().ok()?);
        let known = LARGE.contains(&shape) || OTHERS.contains(&shape);
        known.then_some(Shape { m: shape.0, n: shape.1, k: shape.2 })
    }

    /// Rows of a tile.
    fn rows(&self) -> usize {
        self.m.min(16)
    }

    fn has(&self, element: Element) -> bool {
        let own = (self.m, self.n, self.k);
        match element {
            Element::F16 | Element::Bf16 | Element::S8 | Element::U8 => LARGE.contains(&own),
            Element::Tf32 => own == (16, 16, 8),
            Element::F64 => own == (8, 8, 4),
            Element::S4 | Element::U4 => own == (8, 8, 32),
            Element::B1 => own == (8, 8, 128),
            Element::E4m3 | Element::E5m2 => false,
        }
    }
}

/// The matrix a fragment belongs to, with the type of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// The left one, `m` by `k`.
    A(Element),
    /// The right one, `k` by `n`.
    B(Element),
    /// C or D, `m` by `n`.
    C(Accumulator),
}

impl Matrix {
    /// The matrix of a letter and a type's name, in a shape that has it.
    pub fn parse(letter: &str, ty: &str, shape: &Shape) -> Option<Self> {
        let element = || Element::parse(ty).filter(|e| shape.has(*e));
        Some(match letter {
            "a" => Matrix::A(element()?),
            "b" => Matrix::B(element()?),
            _ => {
                let kind = Accumulator::parse(ty)?;
                let fits = match kind {
                    Accumulator::F64 => shape.k == 4,
                    Accumulator::F32 => matches!(shape.k, 8 | 16),
                    Accumulator::F16 => shape.k == 16,
                    Accumulator::S32 => shape.k >= 16,
                };
                fits.then_some(Matrix::C(kind))?
            }
        })
    }

    /// Bits of an element.
    pub fn bits(self) -> usize {
        match self {
            Matrix::A(e) | Matrix::B(e) => e.bits(),
            Matrix::C(Accumulator::F16) => 16,
            Matrix::C(Accumulator::F64) => 64,
            Matrix::C(_) => 32,
        }
    }

    /// Elements of a register.
    pub fn per_register(self) -> usize {
        (32 / self.bits()).max(1)
    }

    /// Whether the matrix can lie in memory by rows, or by columns: one whose elements are smaller than a
    /// byte lies along the depth of the matmul.
    pub fn can_lie(self, by_rows: bool) -> bool {
        match self {
            Matrix::A(e) => by_rows || e.bits() >= 8,
            Matrix::B(e) => !by_rows || e.bits() >= 8,
            Matrix::C(_) => true,
        }
    }

    /// Rows and columns.
    pub fn size(self, shape: &Shape) -> (usize, usize) {
        match self {
            Matrix::A(_) => (shape.m, shape.k),
            Matrix::B(_) => (shape.k, shape.n),
            Matrix::C(_) => (shape.m, shape.n),
        }
    }

    /// Registers that hold the matrix once.
    fn held(self, shape: &Shape) -> usize {
        let (rows, columns) = self.size(shape);
        rows * columns / 32 / self.per_register()
    }

    /// Registers of the instruction's operand.
    pub fn registers(self, shape: &Shape) -> usize {
        if matches!(self, Matrix::A(Element::F16) | Matrix::B(Element::F16)) {
            REGISTERS
        } else {
            self.held(shape)
        }
    }

    /// Row and column of element `i` of a register in a lane.
    pub fn place(self, shape: &Shape, register: usize, lane: usize, i: usize) -> (usize, usize) {
        let (g, t, e) = (lane / 4, lane % 4, self.per_register());
        let (register, down) = (register % self.held(shape), shape.rows() / 8);
        match self {
            Matrix::A(_) => {
                let per = down * shape.k / (4 * e);
                let (tile, j) = (register / per, register % per);
                (shape.rows() * tile + g + 8 * (j % down), 4 * e * (j / down) + e * t + i)
            }
            Matrix::B(_) => {
                let per = shape.k / (4 * e);
                let (tile, j) = (register / per, register % per);
                (4 * e * j + e * t + i, N * tile + g)
            }
            Matrix::C(_) => {
                // Two registers hold eight rows of an element each, or one of two elements each.
                let per = down * 2 / e;
                let (tile, j) = (register / per, register % per);
                let (across, j) = (shape.n / N, j * e + i);
                (shape.rows() * (tile / across) + g + 8 * (j / 2), N * (tile % across) + 2 * t + j % 2)
            }
        }
    }
}

/// `wmma.mma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wmma {
    /// Its shape.
    pub shape: Shape,
    /// Elements of A.
    pub a: Element,
    /// Elements of B.
    pub b: Element,
    /// Elements of C.
    pub c: Accumulator,
    /// Elements of D.
    pub d: Accumulator,
    /// `.satfinite`.
    pub saturate: bool,
    /// How single bits are combined; none for all other elements.
    pub bit_op: Option<BitOp>,
}

impl Wmma {
    /// Reads the types of an opcode: `d c` for f16, `d a b c` for others; `bit_op` is what stands before them
    /// for single bits.
    ///
    /// # Errors
    /// A sentence that says what is not there.
    pub fn parse(
        shape: Shape,
        types: &[&str],
        saturate: bool,
        bit_op: Option<BitOp>,
    ) -> Result<Self, String> {
        let (d, a, b, c) = match types {
            [d, c] => (*d, "f16", "f16", *c),
            [d, a, b, c] => (*d, *a, *b, *c),
            _ => {
                return Err(format!(
                    "the types `{}`; d and c, or d, a, b and c are expected",
                    types.join(".")
                ));
            }
        };
        let parts = (Element::parse(a), Element::parse(b), Accumulator::parse(c), Accumulator::parse(d));
        let (Some(a), Some(b), Some(c), Some(d)) = parts else {
            return Err(format!("one of the types `{}` is unknown", types.join(".")));
        };
        let sums = |to: Accumulator| match a {
            Element::F16 => matches!(to, Accumulator::F16 | Accumulator::F32),
            Element::F64 => to == Accumulator::F64,
            _ if a.is_integer() => to == Accumulator::S32,
            _ => to == Accumulator::F32,
        };
        // Deprecated for f16, where it clamps what is not finite; nothing emits that.
        let bits = a == Element::B1;
        let saturates = !saturate || a.is_integer() && !bits;
        if bits != bit_op.is_some() {
            return Err("single bits, and no other elements, take `.xor.popc` or `.and.popc`".into());
        }
        if a != b || !shape.has(a) || !sums(c) || !sums(d) || !saturates {
            let Shape { m, n, k } = shape;
            return Err(format!("`{}` is no combination of types that m{m}n{n}k{k} has", types.join(".")));
        }
        Ok(Wmma { shape, a, b, c, d, saturate, bit_op })
    }

    /// The matmul of one tile.
    fn tile(&self, accumulator: Accumulator) -> Mma {
        let Wmma { shape, a, b, saturate, bit_op, .. } = *self;
        Mma { m: shape.rows(), k: shape.k, a, b, accumulator, saturate, bit_op }
    }

    /// One warp's matmul into `d`; f64 goes through [`Wmma::run_f64`].
    pub(crate) fn run(&self, d: &mut [Row], a: &[&Row], b: &[&Row], c: &[&Row], how: Summation) {
        // Mixed types are summed in f32 and rounded once.
        let mixed = self.c != self.d;
        let wide: Vec<Row> = match (mixed, self.c) {
            (true, Accumulator::F16) => c.iter().flat_map(|row| widened(row)).collect(),
            _ => c.iter().map(|row| **row).collect(),
        };
        let mma = self.tile(if mixed { Accumulator::F32 } else { self.c });
        let (na, nb, nc) = (mma.a_registers(), mma.b_registers(), mma.c_registers());
        let across = self.shape.n / N;
        let mut sums = vec![[0; 32]; wide.len()];
        let tiles = sums.chunks_exact_mut(nc).zip(wide.chunks_exact(nc)).enumerate();
        for (at, (sums, c)) in tiles {
            let (down, right) = (at / across, at % across);
            let c: Vec<&Row> = c.iter().collect();
            let (a, b) = (&a[na * down..na * (down + 1)], &b[nb * right..nb * (right + 1)]);
            let mut out = [[0; 32]; MOST];
            mma.run_rows(&mut out[..nc], a, b, &c, how);
            sums.copy_from_slice(&out[..nc]);
        }
        if mixed && self.d == Accumulator::F16 {
            sums = sums.chunks_exact(2).map(|pair| narrowed(&pair[0], &pair[1])).collect();
        }
        d.copy_from_slice(&sums);
    }

    /// [`Wmma::run`] for f64, whose only shape is one tile.
    pub(crate) fn run_f64(&self, d: &mut [[u64; 32]], a: &[[u64; 32]], b: &[[u64; 32]], c: &[[u64; 32]]) {
        self.tile(Accumulator::F64).run_f64(d, a, b, c);
    }
}

/// A register of two f16 as two of f32.
fn widened(row: &Row) -> [Row; 2] {
    [
        row.map(|x| half::f32_from_f16(x as u16).to_bits()),
        row.map(|x| half::f32_from_f16((x >> 16) as u16).to_bits()),
    ]
}

/// Two registers of f32 as one of two f16.
fn narrowed(low: &Row, high: &Row) -> Row {
    let half = |bits: u32| u32::from(half::f16_from_f32(f32::from_bits(bits)));
    std::array::from_fn(|lane| half(low[lane]) | half(high[lane]) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_one_place() {
        for (name, types) in [
            ("m16n16k16", &["f16", "bf16", "s8", "u8"][..]),
            ("m8n32k16", &["f16", "bf16", "s8", "u8"]),
            ("m32n8k16", &["f16", "bf16", "s8", "u8"]),
            ("m16n16k8", &["tf32"]),
            ("m8n8k4", &["f64"]),
            ("m8n8k32", &["s4", "u4"]),
            ("m8n8k128", &["b1"]),
        ] {
            let shape = Shape::parse(name).unwrap_or(Shape { m: 0, n: 0, k: 0 });
            let inputs = types.iter().flat_map(|ty| ["a", "b"].map(|letter| (letter, *ty)));
            let outputs = ["f16", "f32", "s32", "f64"].map(|ty| ("c", ty));
            for (letter, ty) in inputs.chain(outputs) {
                let Some(matrix) = Matrix::parse(letter, ty, &shape) else {
                    assert_eq!(letter, "c", "{name} {ty}");
                    continue;
                };
                let (rows, columns) = matrix.size(&shape);
                let mut seen = vec![0; rows * columns];
                for register in 0..matrix.held(&shape) {
                    for (lane, i) in (0..32).flat_map(|l| (0..matrix.per_register()).map(move |i| (l, i))) {
                        let (row, column) = matrix.place(&shape, register, lane, i);
                        seen[row * columns + column] += 1;
                    }
                }
                assert!(seen.iter().all(|&n| n == 1), "{name} {letter} {ty}");
                assert!(matrix.registers(&shape) <= REGISTERS);
            }
        }
    }
}
