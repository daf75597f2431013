//! `wmma`: every shape, type and layout against a plain matmul, and what `nvcc` makes of `nvcuda::wmma`.

use ptx_vm::number::half;
use ptx_vm::{FaultKind, Module, Options};

use crate::harness::{Arg, Bench, Dice, module, schedules};

const PTX: &str = include_str!("../nvcc/wmma.ptx");

/// Shape, type of a and b, of c, of d, registers of a, b, c and d.
type Case = (&'static str, &'static str, &'static str, &'static str, [usize; 4]);

const CASES: [Case; 22] = [
    ("m16n16k16", "f16", "f32", "f32", [8, 8, 8, 8]),
    ("m16n16k16", "f16", "f16", "f16", [8, 8, 4, 4]),
    ("m16n16k16", "f16", "f16", "f32", [8, 8, 4, 8]),
    ("m16n16k16", "f16", "f32", "f16", [8, 8, 8, 4]),
    ("m8n32k16", "f16", "f32", "f32", [8, 8, 8, 8]),
    ("m8n32k16", "f16", "f16", "f16", [8, 8, 4, 4]),
    ("m32n8k16", "f16", "f32", "f32", [8, 8, 8, 8]),
    ("m32n8k16", "f16", "f16", "f32", [8, 8, 4, 8]),
    ("m16n16k16", "bf16", "f32", "f32", [4, 4, 8, 8]),
    ("m8n32k16", "bf16", "f32", "f32", [2, 8, 8, 8]),
    ("m32n8k16", "bf16", "f32", "f32", [8, 2, 8, 8]),
    ("m16n16k16", "s8", "s32", "s32", [2, 2, 8, 8]),
    ("m8n32k16", "s8", "s32", "s32", [1, 4, 8, 8]),
    ("m32n8k16", "s8", "s32", "s32", [4, 1, 8, 8]),
    ("m16n16k16", "u8", "s32", "s32", [2, 2, 8, 8]),
    ("m8n32k16", "u8", "s32", "s32", [1, 4, 8, 8]),
    ("m32n8k16", "u8", "s32", "s32", [4, 1, 8, 8]),
    ("m16n16k8", "tf32", "f32", "f32", [4, 4, 8, 8]),
    ("m8n8k4", "f64", "f64", "f64", [1, 1, 2, 2]),
    ("m8n8k32", "s4", "s32", "s32", [1, 1, 2, 2]),
    ("m8n8k32", "u4", "s32", "s32", [1, 1, 2, 2]),
    ("m8n8k128", "b1", "s32", "s32", [1, 1, 2, 2]),
];

/// Bits of an element.
fn size(ty: &str) -> usize {
    match ty {
        "b1" => 1,
        "s4" | "u4" => 4,
        "s8" | "u8" => 8,
        "f16" | "bf16" => 16,
        "f64" => 64,
        _ => 32,
    }
}

fn encode(ty: &str, x: i32) -> Vec<u8> {
    let f = x as f32;
    match ty {
        "b1" | "s4" | "u4" | "s8" | "u8" => vec![x as u8],
        "f16" => half::f16_from_f32(f).to_le_bytes().to_vec(),
        "bf16" => ((f.to_bits() >> 16) as u16).to_le_bytes().to_vec(),
        "f64" => f64::from(x).to_le_bytes().to_vec(),
        "s32" => x.to_le_bytes().to_vec(),
        _ => f.to_le_bytes().to_vec(),
    }
}

/// A matrix in memory: by rows or columns, with a stride in elements.
struct Plane {
    values: Vec<Vec<i32>>,
    by_rows: bool,
    stride: usize,
    ty: &'static str,
}

impl Plane {
    /// Numbers from -3 to 3, or 0 to 6 for `u8` and `u4`: every type holds them and their sums. Elements
    /// smaller than a byte lie along the larger side.
    fn new(dice: &mut Dice, rows: usize, columns: usize, ty: &'static str) -> Self {
        let by_rows = if size(ty) < 8 { columns > rows } else { dice.below(2) == 0 };
        let (low, count) = match ty {
            "b1" => (0, 2),
            "u4" | "u8" => (0, 7),
            _ => (3, 7),
        };
        let mut value = || dice.below(count) as i32 - low;
        let values = (0..rows).map(|_| (0..columns).map(|_| value()).collect()).collect();
        let near = if by_rows { columns } else { rows };
        let step = 128 / size(ty);
        let stride = near.next_multiple_of(step) + step * dice.below(3) as usize;
        Plane { values, by_rows, stride, ty }
    }

    /// The first bit of an element.
    fn at(&self, row: usize, column: usize) -> usize {
        let (far, near) = if self.by_rows { (row, column) } else { (column, row) };
        (far * self.stride + near) * size(self.ty)
    }

    fn far(&self) -> usize {
        if self.by_rows { self.values.len() } else { self.values[0].len() }
    }

    fn bytes(&self) -> Vec<u8> {
        let size = size(self.ty);
        let mut out = vec![0xEE; self.far() * self.stride * size / 8];
        for (row, values) in self.values.iter().enumerate() {
            for (column, &value) in values.iter().enumerate() {
                let (at, code) = (self.at(row, column), encode(self.ty, value));
                if size < 8 {
                    let (mask, shift) = ((1u8 << size) - 1, at % 8);
                    out[at / 8] = out[at / 8] & !(mask << shift) | (code[0] & mask) << shift;
                } else {
                    out[at / 8..][..code.len()].copy_from_slice(&code);
                }
            }
        }
        out
    }

    fn layout(&self) -> &'static str {
        if self.by_rows { "row" } else { "col" }
    }
}

fn list(class: &str, count: usize) -> String {
    format!("{{{}}}", (0..count).map(|i| format!("%{class}{i}")).collect::<Vec<_>>().join(", "))
}

fn text(case: &Case, planes: &[Plane; 4], space: &str, op: &str) -> String {
    let (shape, ab, c, d, counts) = case;
    let wide = if *ab == "f64" { "b64" } else { "b32" };
    let [la, lb, lc, ld] = [&planes[0], &planes[1], &planes[2], &planes[3]].map(Plane::layout);
    let [sa, sb, sc, sd] = [&planes[0], &planes[1], &planes[2], &planes[3]].map(|p| p.stride);
    let types = if *ab == "f16" { format!("{d}.{c}") } else { format!("{d}.{ab}.{ab}.{c}") };
    let [a_list, b_list] = [list("a", counts[0]), list("b", counts[1])];
    let [c_list, d_list] = [list("c", counts[2]), list("d", counts[3])];
    format!(
        ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {{
         .reg .{wide} %a<9>, %b<9>, %c<9>, %d<9>; .reg .b64 %rd<5>; .reg .b32 %r<2>;
         ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb]; ld.param.u64 %rd3, [pc]; ld.param.u64 %rd4, [pd];
         mov.u32 %r1, {sb};
         wmma.load.a.sync.aligned.{la}.{shape}{space}.{ab} {a_list}, [%rd1], {sa};
         wmma.load.b.sync.aligned.{lb}.{shape}{space}.{ab} {b_list}, [%rd2], %r1;
         wmma.load.c.sync.aligned.{lc}.{shape}{space}.{c} {c_list}, [%rd3], {sc};
         wmma.mma{op}.sync.aligned.{la}.{lb}.{shape}.{types} {d_list}, {a_list}, {b_list}, {c_list};
         wmma.store.d.sync.aligned.{ld}.{shape}{space}.{d} [%rd4], {d_list}, {sd}; ret; }}"
    )
}

#[test]
fn every_shape_type_and_layout_is_a_plain_matmul() {
    let mut dice = Dice(3);
    for (case, round) in CASES.iter().flat_map(|case| (0..6).map(move |round| (case, round))) {
        let (shape, ab, c, d, _) = *case;
        let numbers: Vec<usize> = shape.split(['m', 'n', 'k']).filter_map(|n| n.parse().ok()).collect();
        let [m, n, k] = numbers[..] else { panic!("{shape}") };
        let op = match (ab, round % 2) {
            ("b1", 0) => ".xor.popc",
            ("b1", _) => ".and.popc",
            _ => "",
        };
        let mut plane = |rows, columns, ty| Plane::new(&mut dice, rows, columns, ty);
        let (a, b, c, mut to) = (plane(m, k, ab), plane(k, n, ab), plane(m, n, c), plane(m, n, d));
        for row in 0..m {
            for column in 0..n {
                let term = |(a, b): (i32, i32)| if op == ".xor.popc" { a ^ b } else { a * b };
                let sum: i32 = (0..k).map(|i| term((a.values[row][i], b.values[i][column]))).sum();
                to.values[row][column] = c.values[row][column] + sum;
            }
        }
        let planes = [a, b, c, to];
        let body = text(case, &planes, if round < 3 { ".global" } else { "" }, op);
        let mut bench = Bench::new(&module(&body));
        let [pa, pb, pc] = [0, 1, 2].map(|i| bench.upload(&planes[i].bytes()));
        let wanted = planes[3].bytes();
        let pd = bench.upload(&vec![0xEEu8; wanted.len()]);
        let launch = bench.launch("k", [1; 3], [32, 1, 1], &[pa, pb, pc, pd].map(Arg::U64));
        let options = Options { tensor_core_sums: round % 3 == 0, ..Options::default() };
        bench.run("k", &launch, &options).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        assert_eq!(bench.download::<u8>(pd, wanted.len()), wanted, "{case:?} {body}");
    }
}

/// What the compiler makes of fragments: elements may be scaled one by one, twice where a fragment holds them
/// twice.
#[test]
fn fragments_of_cuda_code() {
    let mut dice = Dice(5);
    let mut bench = Bench::new(PTX);
    let mut numbers = |n: usize| -> Vec<f32> { (0..n).map(|_| dice.below(9) as f32 - 4.0).collect() };
    let (a, b, c) = (numbers(16 * 16), numbers(16 * 24), numbers(16 * 20));
    let halves = |x: &[f32]| -> Vec<u16> { x.iter().map(|&x| half::f16_from_f32(x)).collect() };
    let args =
        [bench.empty(16 * 16 * 4), bench.upload(&halves(&a)), bench.upload(&halves(&b)), bench.upload(&c)];
    let launch = bench.launch("halves", [1; 3], [32, 1, 1], &args.map(Arg::U64));
    bench.run("halves", &launch, &Options::default()).unwrap();
    let got: Vec<f32> = bench.download(args[0], 256);
    for (row, column) in (0..16).flat_map(|row| (0..16).map(move |column| (row, column))) {
        let sum: f32 = (0..16).map(|k| a[row * 16 + k] * b[column * 24 + k]).sum();
        assert_eq!(got[column * 16 + row], 2.0 * (sum + c[row * 20 + column]), "{row} {column}");
    }
}

#[test]
fn bytes_by_shared_memory_and_without_their_barrier() {
    let mut dice = Dice(6);
    let left: Vec<i8> = (0..8 * 32).map(|_| dice.next() as i8).collect();
    let right: Vec<i8> = (0..32 * 32).map(|_| dice.next() as i8).collect();
    for options in schedules(3) {
        let run = |ptx: &str| {
            let mut bench = Bench::new(ptx);
            let args = [bench.empty(8 * 32 * 4), bench.upload(&left), bench.upload(&right)];
            let launch = bench.launch("bytes", [1; 3], [32, 1, 1], &args.map(Arg::U64));
            bench.run("bytes", &launch, &options).map(|_| bench.download::<i32>(args[0], 256))
        };
        let got = run(PTX).unwrap();
        for (row, column) in (0..8).flat_map(|row| (0..32).map(move |column| (row, column))) {
            let element = |k: usize| i32::from(left[row * 32 + k]) * i32::from(right[k * 32 + column]);
            assert_eq!(got[row * 32 + column], 7 + (0..32).map(element).sum::<i32>());
        }
        // Within one warp too: `wmma.load` orders nothing.
        let fault = run(include_str!("../nvcc/wmma.no_barrier.ptx")).unwrap_err();
        assert!(fault.kind == FaultKind::SharedRace && fault.text.starts_with("wmma.load"), "{fault}");
    }
}

fn loads(line: &str, threads: u32) -> ptx_vm::Fault {
    let mut bench = Bench::new(&module(&format!(
        ".visible .entry k(.param .u64 p) {{ .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p1;
         ld.param.u64 %rd1, [p]; mov.u32 %r8, %tid.x; cvt.u64.u32 %rd2, %r8; shl.b64 %rd2, %rd2, 4;
         add.s64 %rd2, %rd2, %rd1; setp.lt.u32 %p1, %r8, 20; {line} ret; }}"
    )));
    let p = bench.upload(&[0u8; 1024]);
    let launch = bench.launch("k", [1; 3], [threads, 1, 1], &[Arg::U64(p)]);
    bench.run("k", &launch, &Options::default()).unwrap_err()
}

#[test]
fn mistakes_are_named() {
    let load = "wmma.load.a.sync.aligned.row.m16n16k16.bf16 {%r0, %r1, %r2, %r3}";
    for (line, threads, kind, word) in [
        (format!("{load}, [%rd1+2], 16;"), 32, FaultKind::Misaligned, "multiples of 16"),
        (format!("{load}, [%rd1], 17;"), 32, FaultKind::Misaligned, "34 bytes"),
        (format!("{load}, [%rd1], 64;"), 32, FaultKind::OutOfBounds, "read of"),
        (
            "wmma.load.a.sync.aligned.row.m8n8k128.b1 %r0, [%rd1], 192;".into(),
            32,
            FaultKind::Misaligned,
            "24 bytes",
        ),
        (format!("{load}, [%rd2], 16;"), 32, FaultKind::Operand, "address"),
        (format!("{load}, [%rd1], %r8;"), 32, FaultKind::Operand, "stride"),
        (format!("{load}, [%rd1], 16;"), 31, FaultKind::Divergence, "wmma"),
        (format!("@%p1 {load}, [%rd1], 16;"), 32, FaultKind::Divergence, ""),
    ] {
        let fault = loads(&line, threads);
        assert!(fault.kind == kind && fault.detail.contains(word), "{line}: {fault}");
    }
    for (line, word) in [
        ("wmma.load.a.sync.aligned.row.m16n16k8.f16 {%r0, %r1, %r2, %r3}, [%rd1];", "f16"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r0, %r1, %r2, %r3}, [%rd1];", "it has 8"),
        ("wmma.load.a.sync.aligned.m16n16k16.f16 {%r0, %r1, %r2, %r3}, [%rd1];", ".row"),
        ("wmma.load.a.sync.aligned.row.m4n4k4.f16 {%r0}, [%rd1];", "m16n16k16"),
        ("wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f32 %rd1, %rd1, %rd1, %rd1;", "f64.f64.f64.f32"),
        ("wmma.mma.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 %r0, %r0, %r0, %r0;", ".xor.popc"),
        ("wmma.mma.xor.popc.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 %r0, %r0, %r0, %r0;", ".xor.popc"),
        ("wmma.mma.and.popc.sync.aligned.row.row.m8n8k128.s32.b1.b1.s32 %r0, %r0, %r0, %r0;", ".col in b"),
        ("wmma.load.a.sync.aligned.col.m8n8k32.s4 %r0, [%rd1];", "cannot lie by .col"),
        ("wmma.load.b.sync.aligned.col.m8n8k32.b1 %r0, [%rd1];", "`b1`"),
    ] {
        let text = format!(".visible .entry k() {{ .reg .b32 %r<9>; .reg .b64 %rd<9>; {line} ret; }}");
        let said = Module::parse(&module(&text)).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    }
}
