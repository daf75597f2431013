//! A warp-specialised kernel, as production kernels are built: one warp loads tiles by tensor copies, four
//! warps multiply them, and one thread of any of the four gives the buffer back.

use super::ptx::{Argument, HEAD, fault_of, options, run};
use super::*;
use crate::tensor::{self, Swizzle, TensorMap};
use crate::{FaultKind, Launch, Schedule};

/// Depth of a tile: 64 bf16 in rows of 128 bytes.
const TILE: usize = 64;
/// Tiles, through two buffers.
const TILES: usize = 5;
/// Columns of B.
const N: usize = 32;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bug {
    None,
    /// The producer does not wait for its buffer.
    NoEmpty,
    /// The buffer is given back before the matmuls are done.
    EarlyRelease,
    /// Only the first of the four warps waits for the data.
    OneWaits,
    /// Three of four matmuls per tile are waited for.
    WeakWait,
}

/// Two buffers of A (64 x 64, 8 KiB) and B (32 x 64, 4 KiB), full and empty barriers, 160 threads.
fn text(bug: Bug, releaser: usize) -> String {
    let d: Vec<String> = (0..N / 2).map(|i| format!("%d{i}")).collect();
    let mut t = format!(
        "{HEAD}.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pd, .param .align 64 .b8 ma[128], .param .align 64 .b8 mb[128])
{{
.reg .b32 %r<24>; .reg .f32 %d<16>; .reg .b64 %p<12>; .reg .pred %q<8>;
.shared .align 1024 .b8 room[24576];
.shared .align 8 .b64 bars[4];
mov.u32 %r0, %tid.x;
mov.u32 %r1, room;
mov.u32 %r2, bars;
setp.ne.u32 %q0, %r0, 0;
@%q0 bra READY;
mbarrier.init.shared::cta.b64 [%r2], 1;
mbarrier.init.shared::cta.b64 [%r2+8], 1;
mbarrier.init.shared::cta.b64 [%r2+16], 1;
mbarrier.init.shared::cta.b64 [%r2+24], 1;
fence.mbarrier_init.release.cluster;
READY:
bar.sync 0;
mov.u32 %r3, 0;
shr.u32 %r4, %r0, 5;
setp.ne.u32 %q1, %r4, 4;
@%q1 bra CONSUMER;
setp.ne.u32 %q2, %r0, 128;
@%q2 bra END;
mov.b64 %p0, ma;
cvta.param.u64 %p0, %p0;
mov.b64 %p1, mb;
cvta.param.u64 %p1, %p1;
LOAD:
// Buffer t % 2; its phase is t / 2 % 2.
and.b32 %r5, %r3, 1;
shl.b32 %r6, %r5, 3;
add.s32 %r6, %r2, %r6;
shr.u32 %r7, %r3, 1;
and.b32 %r7, %r7, 1;
xor.b32 %r8, %r7, 1;
"
    );
    if bug != Bug::NoEmpty {
        // The first round passes at once: the phase before the first one counts as complete.
        t += "EMPTY:
mbarrier.try_wait.parity.shared::cta.b64 %q3, [%r6+16], %r8;
@!%q3 bra EMPTY;
";
    }
    t += "mad.lo.u32 %r9, %r5, 12288, %r1;
add.s32 %r10, %r9, 8192;
shl.b32 %r11, %r3, 6;
mov.u32 %r12, 0;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6], 12288;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r9], [%p0, {%r11, %r12}], [%r6];
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%p1, {%r11, %r12}], [%r6];
add.s32 %r3, %r3, 1;
setp.lt.u32 %q4, %r3, 5;
@%q4 bra LOAD;
bra END;
CONSUMER:
";
    d.iter().for_each(|d| t += &format!("mov.f32 {d}, 0f00000000;\n"));
    t += "MULTIPLY:
and.b32 %r5, %r3, 1;
shl.b32 %r6, %r5, 3;
add.s32 %r6, %r2, %r6;
shr.u32 %r7, %r3, 1;
and.b32 %r7, %r7, 1;
";
    if bug == Bug::OneWaits {
        t += "setp.ne.u32 %q5, %r4, 0;\n@%q5 bra FILLED;\n";
    }
    t += "FULL:
mbarrier.try_wait.parity.shared::cta.b64 %q3, [%r6], %r7;
@!%q3 bra FULL;
FILLED:
mad.lo.u32 %r9, %r5, 12288, %r1;
add.s32 %r10, %r9, 8192;
shr.u32 %r9, %r9, 4;
shr.u32 %r10, %r10, 4;
cvt.u64.u32 %p2, %r9;
cvt.u64.u32 %p3, %r10;
// 128-byte swizzle, 1024 bytes from eight rows to the next.
or.b64 %p2, %p2, 0x4000004000010000;
or.b64 %p3, %p3, 0x4000004000010000;
wgmma.fence.sync.aligned;
";
    for step in 0..4 {
        let list = d.join(", ");
        t += &format!(
            "add.s64 %p4, %p2, {0};\nadd.s64 %p5, %p3, {0};
wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {{{list}}}, %p4, %p5, 1, 1, 1, 0, 0;\n",
            2 * step
        );
        if bug == Bug::WeakWait {
            t += "wgmma.commit_group.sync.aligned;\n";
        }
    }
    let release =
        format!("setp.eq.u32 %q6, %r0, {releaser};\n@%q6 mbarrier.arrive.shared::cta.b64 _, [%r6+16];\n");
    if bug == Bug::EarlyRelease {
        t += &release;
    }
    t += match bug {
        Bug::WeakWait => "wgmma.wait_group.sync.aligned 1;\n",
        _ => "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n",
    };
    if bug != Bug::EarlyRelease {
        t += &release;
    }
    t += "add.s32 %r3, %r3, 1;
setp.lt.u32 %q4, %r3, 5;
@%q4 bra MULTIPLY;
";
    if bug == Bug::WeakWait {
        t += "wgmma.wait_group.sync.aligned 0;\n";
    }
    // D is stored register by register, 128 threads in a row.
    t += "ld.param.u64 %p6, [pd];\nmul.wide.u32 %p7, %r0, 4;\nadd.s64 %p6, %p6, %p7;\n";
    d.iter().enumerate().for_each(|(i, d)| t += &format!("st.global.f32 [%p6+{}], {d};\n", i * 512));
    t + "END:\nret;\n}\n"
}

fn map(rows: usize, buffer: usize) -> Argument {
    Argument::Bytes(Box::new(move |addresses| {
        let dims = [(TILE * TILES) as u64, rows as u64];
        let pitch = 2 * (TILE * TILES) as u64;
        let mut map =
            TensorMap::tiled(tensor::DataType::Bf16, addresses[buffer], &dims, &[pitch], &[64, rows as u32]);
        map.swizzle = Swizzle::Bytes128;
        map.encode().unwrap().to_vec()
    }))
}

fn bytes(matrix: &[Vec<f64>]) -> Vec<u8> {
    matrix.iter().flatten().flat_map(|&x| (encode(Element::Bf16, x) as u16).to_le_bytes()).collect()
}

fn arguments(a: &[Vec<f64>], columns: &[Vec<f64>]) -> [Argument; 5] {
    let out = Argument::Buffer(vec![0; 64 * N * 4]);
    [Argument::Buffer(bytes(a)), Argument::Buffer(bytes(columns)), out, map(64, 0), map(N, 1)]
}

#[test]
fn any_thread_that_has_waited_may_give_the_buffer_back() {
    let mut numbers = Numbers(41);
    let depth = TILE * TILES;
    // B is stored by columns: row n holds the depth of column n.
    let (a, columns) =
        (numbers.integers(Element::Bf16, 64, depth), numbers.integers(Element::Bf16, N, depth));
    let b: Vec<Vec<f64>> = (0..depth).map(|k| columns.iter().map(|c| c[k]).collect()).collect();
    let want = matmul(&a, &b, &vec![vec![0.0; N]; 64]);
    let launch = Launch::new([1, 1, 1], [160, 1, 1]);
    let schedules = [Schedule::Forward, Schedule::Reverse].into_iter().chain((0..12).map(Schedule::Random));
    for (round, schedule) in schedules.enumerate() {
        let releaser = [0, 40, 64, 127][round % 4];
        let text = text(Bug::None, releaser);
        let got = run(&text, launch.clone(), &arguments(&a, &columns), &options(schedule))
            .unwrap_or_else(|fault| panic!("{schedule:?}, thread {releaser} releases: {fault}"));
        for (row, values) in want.iter().enumerate() {
            for (column, &value) in values.iter().enumerate() {
                let thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
                let register = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
                let at = (register * 128 + thread) * 4;
                let bits = u32::from_le_bytes(got[2][at..at + 4].try_into().unwrap());
                assert_eq!(f64::from(f32::from_bits(bits)), value, "{schedule:?} element ({row}, {column})");
            }
        }
    }
}

#[test]
fn pipeline_bugs_are_caught_in_every_schedule() {
    let mut numbers = Numbers(42);
    let depth = TILE * TILES;
    let (a, columns) =
        (numbers.integers(Element::Bf16, 64, depth), numbers.integers(Element::Bf16, N, depth));
    let launch = Launch::new([1, 1, 1], [160, 1, 1]);
    use FaultKind::{Barrier, Deadlock, MissingWait, SharedRace, Uninitialised};
    for (bug, kinds) in [
        (Bug::NoEmpty, &[MissingWait, SharedRace, Barrier][..]),
        (Bug::EarlyRelease, &[MissingWait, SharedRace]),
        (Bug::OneWaits, &[MissingWait, SharedRace, Uninitialised]),
        (Bug::WeakWait, &[MissingWait, SharedRace, Deadlock]),
    ] {
        for releaser in [0, 96] {
            fault_of(&text(bug, releaser), &launch, &arguments(&a, &columns), kinds);
        }
    }
}
