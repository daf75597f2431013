//! The instructions in PTX text, through the whole machine, in every schedule.

use std::fmt::Write as _;
use std::sync::Arc;

use super::mma::{all, fragments, result};
use super::*;
use crate::matrix::BitOp;
use crate::matrix::mma::Mma;
use crate::{Fault, FaultKind, Instance, Launch, Memory, Module, Options, Row, Schedule};

/// The schedules every kernel here runs in.
pub const SCHEDULES: [Schedule; 4] =
    [Schedule::Forward, Schedule::Reverse, Schedule::Random(1), Schedule::Random(99)];

/// Makes the bytes of an argument from the addresses of the buffers before it.
pub type Make = Box<dyn Fn(&[u64]) -> Vec<u8>>;

/// An argument of a kernel.
pub enum Argument {
    /// The address of a buffer with these bytes.
    Buffer(Vec<u8>),
    /// Bytes handed over as they are; told the addresses of the buffers before it.
    Bytes(Make),
}

/// Runs the only kernel of a text; the buffers afterwards.
pub fn run(
    text: &str,
    launch: Launch,
    arguments: &[Argument],
    options: &Options,
) -> Result<Vec<Vec<u8>>, Fault> {
    let module = Arc::new(Module::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}")));
    let mut memory = Memory::new();
    let instance = Instance::load(module.clone(), &mut memory, 0).unwrap();
    let kernel = &module.kernels()[0];
    let (mut addresses, mut values) = (Vec::new(), Vec::new());
    for argument in arguments {
        match argument {
            Argument::Buffer(bytes) => {
                let address = memory.allocate(0, bytes.len() as u64).unwrap();
                memory.write(address, bytes).unwrap();
                addresses.push((address, bytes.len()));
                values.push(address.to_le_bytes().to_vec());
            }
            Argument::Bytes(make) => {
                let known: Vec<u64> = addresses.iter().map(|a| a.0).collect();
                values.push(make(&known));
            }
        }
    }
    let parts: Vec<&[u8]> = values.iter().map(|v| &v[..]).collect();
    let launch = launch.with_params(kernel.pack(&parts).unwrap());
    crate::launch(&instance, &kernel.name, &launch, &mut memory, options)?;
    let read = |&(address, bytes): &(u64, usize)| {
        let mut out = vec![0; bytes];
        memory.read(address, &mut out).unwrap();
        out
    };
    Ok(addresses.iter().map(read).collect())
}

pub fn options(schedule: Schedule) -> Options {
    Options { schedule, budget: 10_000_000, ..Options::default() }
}

/// Runs in every schedule; all must end alike, and the buffers are those of the first.
pub fn run_all(text: &str, launch: &Launch, arguments: &[Argument]) -> Vec<Vec<u8>> {
    let mut first = None;
    for schedule in SCHEDULES {
        let got = run(text, launch.clone(), arguments, &options(schedule))
            .unwrap_or_else(|fault| panic!("{schedule:?}: {fault}\n{text}"));
        assert_eq!(*first.get_or_insert_with(|| got.clone()), got, "{schedule:?}");
    }
    first.unwrap()
}

/// The fault of a broken kernel, which must be of that kind in every schedule.
pub fn fault(text: &str, launch: &Launch, arguments: &[Argument], kind: FaultKind) -> Fault {
    fault_of(text, launch, arguments, &[kind])
}

/// The same where the schedule decides which of several faults comes first.
pub fn fault_of(text: &str, launch: &Launch, arguments: &[Argument], kinds: &[FaultKind]) -> Fault {
    let faults = SCHEDULES
        .map(|s| run(text, launch.clone(), arguments, &options(s)).expect_err("the kernel is broken"));
    for fault in &faults {
        assert!(kinds.contains(&fault.kind), "{fault}");
    }
    faults.into_iter().next().unwrap()
}

pub const HEAD: &str = ".version 8.7\n.target sm_90a\n.address_size 64\n";

pub fn bytes_of(rows: &[Row]) -> Vec<u8> {
    rows.iter().flatten().flat_map(|w| w.to_le_bytes()).collect()
}

pub fn rows_of(bytes: &[u8]) -> Vec<Row> {
    let words: Vec<u32> =
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    words.chunks_exact(32).map(|row| std::array::from_fn(|lane| row[lane])).collect()
}

pub fn name(kind: Element) -> &'static str {
    match kind {
        Element::F16 => "f16",
        Element::Bf16 => "bf16",
        Element::Tf32 => "tf32",
        Element::E4m3 => "e4m3",
        Element::E5m2 => "e5m2",
        Element::S8 => "s8",
        Element::U8 => "u8",
        Element::S4 => "s4",
        Element::U4 => "u4",
        Element::B1 => "b1",
        Element::F64 => "f64",
    }
}

pub fn sums_name(kind: Accumulator) -> &'static str {
    match kind {
        Accumulator::F32 => "f32",
        Accumulator::F16 => "f16",
        Accumulator::S32 => "s32",
        Accumulator::F64 => "f64",
    }
}

/// `{%x0, %x1, ...}`
pub fn list(prefix: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|i| format!("{prefix}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Loads or stores `count` registers, register by register, at 128 bytes each (256 for 64 bits), lane by
/// lane.
pub fn moves(text: &mut String, op: &str, ty: &str, prefix: &str, count: usize, base: &str) {
    let pitch = if ty == "f64" { 256 } else { 128 };
    for i in 0..count {
        let at = i * pitch;
        match op {
            "ld" => writeln!(text, "ld.global.{ty} {prefix}{i}, [{base}+{at}];").unwrap(),
            _ => writeln!(text, "st.global.{ty} [{base}+{at}], {prefix}{i};").unwrap(),
        }
    }
}

/// A kernel of one warp that loads fragments, multiplies, stores.
pub fn mma_text(mma: &Mma) -> String {
    let (a, b, d) = (name(mma.a), name(mma.b), sums_name(mma.accumulator));
    let operand = if mma.a == Element::F64 { "f64" } else { "b32" };
    let sum = if matches!(mma.accumulator, Accumulator::F32 | Accumulator::F64) { d } else { "b32" };
    let (na, nb, nc) = (mma.a_registers(), mma.b_registers(), mma.c_registers());
    let mut t = format!(
        "{HEAD}.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)\n{{\n"
    );
    let shift = if mma.a == Element::F64 { 8 } else { 4 };
    writeln!(
        t,
        ".reg .{operand} %a<{na}>;\n.reg .{operand} %b<{nb}>;\n.reg .{sum} %c<{nc}>;\n.reg .{sum} %d<{nc}>;"
    )
    .unwrap();
    writeln!(t, ".reg .b32 %r<2>;\n.reg .b64 %p<6>;\nmov.u32 %r0, %tid.x;\nmul.wide.u32 %p4, %r0, {shift};")
        .unwrap();
    for (i, parameter) in ["pa", "pb", "pc", "pd"].iter().enumerate() {
        writeln!(t, "ld.param.u64 %p{i}, [{parameter}];\nadd.s64 %p{i}, %p{i}, %p4;").unwrap();
    }
    moves(&mut t, "ld", operand, "%a", na, "%p0");
    moves(&mut t, "ld", operand, "%b", nb, "%p1");
    moves(&mut t, "ld", sum, "%c", nc, "%p2");
    let (ra, rb, rc, rd) = (list("%a", na), list("%b", nb), list("%c", nc), list("%d", nc));
    let sat = if mma.saturate { ".satfinite" } else { "" };
    let bits = match mma.bit_op {
        Some(BitOp::Xor) => ".xor.popc",
        Some(BitOp::And) => ".and.popc",
        None => "",
    };
    writeln!(
        t,
        "mma.sync.aligned.m{}n8k{}.row.col{sat}.{d}.{a}.{b}.{d}{bits} {rd}, {ra}, {rb}, {rc};",
        mma.m, mma.k
    )
    .unwrap();
    moves(&mut t, "st", sum, "%d", nc, "%p3");
    t + "ret;\n}\n"
}

#[test]
fn mma_of_every_shape_in_ptx() {
    let mut numbers = Numbers(21);
    for mma in all() {
        let (a, b) = (numbers.integers(mma.a, mma.m, mma.k), numbers.integers(mma.b, mma.k, 8));
        let c = numbers.integers(Element::S4, mma.m, 8);
        let f = fragments(&mma, &a, &b, &c);
        let arguments = [&f.a, &f.b, &f.c, &f.c].map(|rows| Argument::Buffer(bytes_of(rows)));
        let text = mma_text(&mma);
        let buffers = run_all(&text, &Launch::new([1, 1, 1], [32, 1, 1]), &arguments);
        assert_eq!(result(&mma, &rows_of(&buffers[3])), matmul(&a, &b, &c), "{mma:?}");
    }
}

#[test]
fn mma_of_f64_in_ptx() {
    let mma = Mma::parse(&["m8n8k4", "row", "col", "f64", "f64", "f64", "f64"]).unwrap();
    // A = 1..32 by rows, B the identity of 4x4 twice, C = 0.5: D repeats A's rows.
    let wide = |f: &dyn Fn(usize) -> f64| {
        (0..32).flat_map(|lane| f(lane).to_bits().to_le_bytes()).collect::<Vec<u8>>()
    };
    let a = wide(&|lane| lane as f64);
    let b = wide(&|lane| if lane % 4 == lane / 4 % 4 { 1.0 } else { 0.0 });
    let c = [wide(&|_| 0.5), wide(&|_| 0.5)].concat();
    let arguments = [a, b, c.clone(), c].map(Argument::Buffer);
    let buffers = run_all(&mma_text(&mma), &Launch::new([1, 1, 1], [32, 1, 1]), &arguments);
    for j in 0..2 {
        for lane in 0..32 {
            let at = (j * 32 + lane) * 8;
            let got = f64::from_le_bytes(buffers[3][at..at + 8].try_into().unwrap());
            assert_eq!(got, (lane / 4 * 4 + (2 * (lane % 4) + j) % 4) as f64 + 0.5);
        }
    }
}

#[test]
fn mma_needs_the_whole_warp() {
    let mma = Mma::parse(&["m16n8k8", "row", "col", "f32", "bf16", "bf16", "f32"]).unwrap();
    let arguments = [mma.a_registers(), mma.b_registers(), 4, 4].map(|n| Argument::Buffer(vec![0; n * 128]));
    let text = mma_text(&mma);
    let half = fault(&text, &Launch::new([1, 1, 1], [16, 1, 1]), &arguments, FaultKind::Divergence);
    assert!(half.detail.contains("0xffff0000"), "{half}");
    let guarded = text
        .replace("mma.sync", "setp.lt.u32 %q, %r0, 31;\n@%q mma.sync")
        .replace("{\n.reg", "{\n.reg .pred %q;\n.reg");
    let guard = fault(&guarded, &Launch::new([1, 1, 1], [32, 1, 1]), &arguments, FaultKind::Divergence);
    assert!(guard.detail.contains("guard"), "{guard}");
}

/// Stores a 16x16 tile of b16 from global to shared memory row by row, loads matrices from it, stores the
/// registers.
fn ldmatrix_text(count: usize, transpose: bool, extra: &str) -> String {
    let trans = if transpose { ".trans" } else { "" };
    let registers = list("%r1", count).replace("%r1", "%m");
    let mut t = format!(
        "{HEAD}.visible .entry k(.param .u64 in, .param .u64 out)
{{
.reg .b32 %r<8>; .reg .b32 %m<4>; .reg .b64 %p<4>; .reg .pred %q;
.shared .align 16 .b8 tile[512];
ld.param.u64 %p0, [in];
ld.param.u64 %p1, [out];
mov.u32 %r0, %tid.x;
mul.wide.u32 %p2, %r0, 16;
add.s64 %p0, %p0, %p2;
mov.u32 %r1, tile;
shl.b32 %r2, %r0, 4;
add.s32 %r2, %r1, %r2;
ld.global.v4.u32 {{%r3, %r4, %r5, %r6}}, [%p0];
st.shared.v4.u32 [%r2], {{%r3, %r4, %r5, %r6}};
{extra}
// Rows of 32 bytes: lane l points to row l % 16, its left half for l < 16.
and.b32 %r3, %r0, 15;
shl.b32 %r3, %r3, 5;
and.b32 %r4, %r0, 16;
add.s32 %r3, %r3, %r4;
add.s32 %r3, %r1, %r3;
ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {registers}, [%r3];
mul.wide.u32 %p2, %r0, 4;
add.s64 %p1, %p1, %p2;
"
    );
    moves(&mut t, "st", "b32", "%m", count, "%p1");
    t + "ret;\n}\n"
}

#[test]
fn ldmatrix_in_ptx() {
    let tile: Vec<u16> = (0..256).map(|i| 1000 + i).collect();
    let bytes: Vec<u8> = tile.iter().flat_map(|v| v.to_le_bytes()).collect();
    let warp = Launch::new([1, 1, 1], [32, 1, 1]);
    for count in [1, 2, 4] {
        for transpose in [false, true] {
            let text = ldmatrix_text(count, transpose, "bar.warp.sync -1;");
            let arguments = [Argument::Buffer(bytes.clone()), Argument::Buffer(vec![0; 128 * count])];
            let rows = rows_of(&run_all(&text, &warp, &arguments)[1]);
            for (matrix, row) in rows.iter().enumerate() {
                // Lanes 0-7, 8-15, ... point to rows 0-7 and 8-15 of the left half, then of the right.
                let (down, across) = (matrix % 2 * 8, matrix / 2 * 8);
                for (lane, &word) in row.iter().enumerate() {
                    let (g, t) = (lane / 4, 2 * (lane % 4));
                    let at = |i: usize, j: usize| u32::from(tile[(down + i) * 16 + across + j]);
                    let pair = if transpose { (at(t, g), at(t + 1, g)) } else { (at(g, t), at(g, t + 1)) };
                    assert_eq!(
                        word,
                        pair.0 | pair.1 << 16,
                        "x{count} {transpose} matrix {matrix} lane {lane}"
                    );
                }
            }
        }
    }
    // Without the barrier, lanes read what other lanes have just written.
    let arguments = || [Argument::Buffer(bytes.clone()), Argument::Buffer(vec![0; 512])];
    let race = fault(&ldmatrix_text(4, false, ""), &warp, &arguments(), FaultKind::SharedRace);
    assert!(race.text.contains("ldmatrix"), "{race}");
    let misaligned = ldmatrix_text(4, false, "bar.warp.sync -1; add.s32 %r1, %r1, 8;");
    fault(&misaligned, &warp, &arguments(), FaultKind::Misaligned);
    let outside = ldmatrix_text(4, false, "bar.warp.sync -1; add.s32 %r1, %r1, 16;");
    fault(&outside, &warp, &arguments(), FaultKind::OutOfBounds);
}

#[test]
fn stmatrix_and_movmatrix_in_ptx() {
    for count in [1usize, 2, 4] {
        for transpose in [false, true] {
            let trans = if transpose { ".trans" } else { "" };
            let registers = list("%m", count);
            let mut t = format!(
                "{HEAD}.visible .entry k(.param .u64 in, .param .u64 out, .param .u64 moved)
{{
.reg .b32 %r<8>; .reg .b32 %m<4>; .reg .b64 %p<5>;
.shared .align 16 .b8 tile[512];
ld.param.u64 %p0, [in];
ld.param.u64 %p1, [out];
ld.param.u64 %p3, [moved];
mov.u32 %r0, %tid.x;
mul.wide.u32 %p2, %r0, 4;
add.s64 %p0, %p0, %p2;
add.s64 %p3, %p3, %p2;
"
            );
            moves(&mut t, "ld", "b32", "%m", count, "%p0");
            // Every lane has a row of its own, matrices one after another; all of the tile is written first.
            write!(
                t,
                "mov.u32 %r1, tile;
shl.b32 %r2, %r0, 4;
add.s32 %r2, %r1, %r2;
mov.u32 %r3, 0;
st.shared.v4.u32 [%r2], {{%r3, %r3, %r3, %r3}};
bar.sync 0;
stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r2], {registers};
movmatrix.sync.aligned.m8n8.trans.b16 %r7, %m0;
st.global.u32 [%p3], %r7;
bar.sync 0;
ld.shared.v4.u32 {{%r3, %r4, %r5, %r6}}, [%r2];
mul.wide.u32 %p2, %r0, 16;
add.s64 %p1, %p1, %p2;
st.global.v4.u32 [%p1], {{%r3, %r4, %r5, %r6}};
ret;
}}
"
            )
            .unwrap();
            // Register j of lane l: elements (l / 4, 2 (l % 4)) and its right neighbour of matrix j.
            let value = |j: usize, i: usize, k: usize| (j * 64 + i * 8 + k + 7) as u32;
            let rows: Vec<Row> = (0..count)
                .map(|j| {
                    std::array::from_fn(|l| {
                        value(j, l / 4, 2 * (l % 4)) | value(j, l / 4, 2 * (l % 4) + 1) << 16
                    })
                })
                .collect();
            let arguments = [
                Argument::Buffer(bytes_of(&rows)),
                Argument::Buffer(vec![0; 512]),
                Argument::Buffer(vec![0; 128]),
            ];
            let buffers = run_all(&t, &Launch::new([1, 1, 1], [32, 1, 1]), &arguments);
            let stored: Vec<u16> =
                buffers[1].chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
            for j in 0..4 {
                for i in 0..8 {
                    for k in 0..8 {
                        let want = match (j < count, transpose) {
                            (false, _) => 0,
                            (true, false) => value(j, i, k),
                            (true, true) => value(j, k, i),
                        };
                        assert_eq!(
                            u32::from(stored[j * 64 + i * 8 + k]),
                            want,
                            "x{count} {transpose} ({j}, {i}, {k})"
                        );
                    }
                }
            }
            let moved = rows_of(&buffers[2])[0];
            for (l, word) in moved.iter().enumerate() {
                let (g, t) = (l / 4, 2 * (l % 4));
                assert_eq!(*word, value(0, t, g) | value(0, t + 1, g) << 16);
            }
        }
    }
}

#[test]
fn unknown_matrix_opcodes_are_errors_at_load_time() {
    let refuse = |instruction: &str| {
        let text = format!(
            "{HEAD}.visible .entry k()\n{{\n.reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %p<4>;\n{instruction}\nret;\n}}\n"
        );
        Module::parse(&text).unwrap_err().to_string()
    };
    for (instruction, word) in [
        (
            "mma.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%f0,%f1,%f2,%f3};",
            "not an instruction",
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0,%f1}, {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%f0,%f1,%f2,%f3};",
            "registers",
        ),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0,%r1}, [%r2];", "registers"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0,%r1}, [%r2];", "m8n8"),
        ("wgmma.wait_group.sync.aligned 9;", "0 to 7"),
        (
            "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%f0,%f1,%f2,%f3}, %p0, %p1, 1, 1, 1, 0, 0;",
            "sparse",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0,%f1,%f2,%f3}, %p0, %p1, 1, 2, 1, 0, 0;",
            "1 or -1",
        ),
    ] {
        let error = refuse(instruction);
        assert!(error.contains(word), "{instruction}: {error}");
    }
}
