//! `wgmma` in PTX text, through the whole machine, in every schedule.

use std::fmt::Write as _;

use super::ptx::{
    Argument, HEAD, bytes_of, fault_of, list, moves, name, options, rows_of, run, run_all, sums_name,
};
use super::wgmma::Case;
use super::*;
use crate::matrix::wgmma::Wgmma;
use crate::{FaultKind, Launch, Row, Schedule};

/// What a wgmma kernel does wrong.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    NoWait,
    WeakWait,
    NoBarrier,
    Overwrite,
    Disagree,
    OneWarp,
    BadDescriptor,
}

/// A kernel of one warp group: copies an image into shared memory, issues one matmul (two with `steps`),
/// stores D.
fn wgmma_text(w: &Wgmma, descriptors: (u64, u64), registers: bool, scale_d: bool, bug: Bug) -> String {
    let (n, k) = (w.d_registers(), w.k());
    let d = sums_name(w.accumulator);
    let ty = if w.accumulator == Accumulator::F32 { "f32" } else { "b32" };
    let mut t = format!(
        "{HEAD}.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 image, .param .u64 pa, .param .u64 pd, .param .u32 bytes)
{{
.reg .b32 %r<8>; .reg .b32 %a<4>; .reg .{ty} %d<{n}>; .reg .b64 %p<8>; .reg .pred %q<4>;
ld.param.u64 %p0, [image];
ld.param.u64 %p1, [pa];
ld.param.u64 %p2, [pd];
ld.param.u32 %r5, [bytes];
mov.u32 %r0, %tid.x;
shl.b32 %r1, %r0, 4;
mov.u32 %r2, smem;
LOOP:
setp.ge.u32 %q0, %r1, %r5;
@%q0 bra DONE;
cvt.u64.u32 %p3, %r1;
add.s64 %p3, %p0, %p3;
add.s32 %r3, %r2, %r1;
ld.global.v4.u32 {{%a0, %a1, %a2, %a3}}, [%p3];
st.shared.v4.u32 [%r3], {{%a0, %a1, %a2, %a3}};
add.s32 %r1, %r1, 2048;
bra LOOP;
DONE:
"
    );
    if bug != Bug::NoBarrier {
        t += "fence.proxy.async.shared::cta;\nbar.sync 0;\n";
    }
    // Fragments lie register by register for each warp: warp w, register j, lane l at ((w * registers) + j) *
    // 32 + l words.
    writeln!(t, "shr.u32 %r1, %r0, 5;\nand.b32 %r3, %r0, 31;").unwrap();
    for (base, count) in [("%p1", 4), ("%p2", n)] {
        writeln!(
            t,
            "mad.lo.u32 %r4, %r1, {}, %r3;\nmul.wide.u32 %p4, %r4, 4;\nadd.s64 {base}, {base}, %p4;",
            count * 32
        )
        .unwrap();
    }
    moves(&mut t, "ld", "b32", "%a", 4, "%p1");
    moves(&mut t, "ld", ty, "%d", n, "%p2");
    // The descriptors were made for a window that starts at zero; the start of shared memory is added in
    // units of 16 bytes.
    let (da, db) = descriptors;
    writeln!(
        t,
        "shr.u32 %r4, %r2, 4;\ncvt.u64.u32 %p5, %r4;\nadd.s64 %p6, %p5, {};\nadd.s64 %p7, %p5, {};",
        da as i64, db as i64
    )
    .unwrap();
    if bug == Bug::Disagree {
        t += "setp.eq.u32 %q1, %r1, 2;\n@%q1 add.s64 %p7, %p7, 8;\n";
    }
    if bug == Bug::BadDescriptor {
        t += "or.b64 %p7, %p7, 16384;\n";
    }
    if bug == Bug::OneWarp {
        t += "setp.ne.u32 %q2, %r1, 3;\n@!%q2 bra OUT;\n";
    }
    writeln!(t, "setp.ne.u32 %q3, 0, {};\nwgmma.fence.sync.aligned;", u32::from(scale_d)).unwrap();
    let left = if registers { list("%a", 4) } else { "%p6".into() };
    let mut immediates = String::new();
    if !w.a.is_integer() {
        let sign = |negative| if negative { "-1" } else { "1" };
        write!(immediates, ", {}, {}", sign(w.negate_a), sign(w.negate_b)).unwrap();
    }
    let trans = |m: crate::matrix::Major| u32::from(m == crate::matrix::Major::Mn);
    if w.a.bits() == 16 {
        if !registers {
            write!(immediates, ", {}", trans(w.a_major)).unwrap();
        }
        write!(immediates, ", {}", trans(w.b_major)).unwrap();
    }
    let (a, b) = (name(w.a), name(w.b));
    writeln!(
        t,
        "wgmma.mma_async.sync.aligned.m64n{}k{k}.{d}.{a}.{b} {}, {left}, %p7, %q3{immediates};",
        w.n,
        list("%d", n)
    )
    .unwrap();
    t += "wgmma.commit_group.sync.aligned;\n";
    if bug == Bug::Overwrite {
        t += "st.shared.u32 [%r2+32768], %r0;\n";
    }
    match bug {
        Bug::NoWait => {}
        Bug::WeakWait => t += "wgmma.wait_group.sync.aligned 1;\n",
        _ => t += "wgmma.wait_group.sync.aligned 0;\n",
    }
    t += "OUT:\n";
    moves(&mut t, "st", ty, "%d", n, "%p2");
    t + "ret;\n}\n"
}

fn wgmma_arguments(case: &Case, image: &[u8], registers: bool) -> Vec<Argument> {
    let fragments: Vec<Row> =
        (0..4).flat_map(|w| if registers { case.fragment(w) } else { vec![[0; 32]; 4] }).collect();
    let accumulators: Vec<Row> = case.accumulators().into_iter().flatten().collect();
    let bytes = image.len() as u32;
    vec![
        Argument::Buffer(image.to_vec()),
        Argument::Buffer(bytes_of(&fragments)),
        Argument::Buffer(bytes_of(&accumulators)),
        Argument::Bytes(Box::new(move |_| bytes.to_le_bytes().to_vec())),
    ]
}

fn group() -> Launch {
    Launch { dynamic_shared: 65536, ..Launch::new([1, 1, 1], [128, 1, 1]) }
}

fn check_wgmma(case: &Case, widths: (u32, u32), registers: bool, scale_d: bool) {
    let (image, descriptors) = case.image(widths.0, widths.1);
    let text = wgmma_text(&case.wgmma, descriptors, registers, scale_d, Bug::None);
    let buffers = run_all(&text, &group(), &wgmma_arguments(case, &image, registers));
    let d: Vec<Vec<Row>> =
        rows_of(&buffers[2]).chunks(case.wgmma.d_registers()).map(<[Row]>::to_vec).collect();
    case.compare(&d, scale_d, &format!("{:?} {widths:?}", case.wgmma));
}

#[test]
fn wgmma_of_every_type_in_ptx() {
    let kinds = [
        (16, "f32", "bf16", "bf16"),
        (16, "f16", "f16", "f16"),
        (8, "f32", "tf32", "tf32"),
        (32, "s32", "s8", "u8"),
        (32, "f32", "e4m3", "e5m2"),
    ];
    for (seed, (k, d, a, b)) in kinds.into_iter().enumerate() {
        for (n, width) in [(8, 16), (32, 32), (64, 64), (128, 128)] {
            let case = Case::new(super::wgmma::parse(n, k, d, a, b), seed as u64);
            check_wgmma(&case, (width, width), false, true);
            check_wgmma(&case, (width, width), true, false);
        }
    }
}

#[test]
fn wgmma_signs_and_transpositions_in_ptx() {
    use crate::matrix::Major;
    for (a_major, b_major, negate_a, negate_b) in [
        (Major::Mn, Major::K, true, false),
        (Major::K, Major::Mn, false, true),
        (Major::Mn, Major::Mn, true, true),
    ] {
        let w = Wgmma {
            a_major,
            b_major,
            negate_a,
            negate_b,
            ..super::wgmma::parse(64, 16, "f32", "bf16", "bf16")
        };
        check_wgmma(&Case::new(w, 11), (64, 128), false, true);
    }
    let w = Wgmma { b_major: Major::Mn, negate_a: true, ..super::wgmma::parse(64, 16, "f32", "f16", "f16") };
    check_wgmma(&Case::new(w, 12), (128, 32), true, true);
}

#[test]
fn wgmma_bugs_are_caught_in_every_schedule() {
    let case = Case::new(super::wgmma::parse(32, 16, "f32", "bf16", "bf16"), 5);
    let (image, descriptors) = case.image(128, 128);
    let text = |bug| wgmma_text(&case.wgmma, descriptors, false, true, bug);
    let arguments = || wgmma_arguments(&case, &image, false);
    use FaultKind::{Deadlock, Divergence, MissingWait, Operand, SharedRace, Uninitialised};
    for (bug, kinds, word) in [
        (Bug::NoWait, &[MissingWait][..], "wgmma"),
        (Bug::WeakWait, &[MissingWait], "wgmma"),
        // Without the barrier some schedules read bytes that are not written yet.
        (Bug::NoBarrier, &[SharedRace, Uninitialised], "operand"),
        // A warp that runs ahead writes before the first one has issued anything.
        (Bug::Overwrite, &[MissingWait, SharedRace], ""),
        (Bug::Disagree, &[Divergence], "different"),
        (Bug::OneWarp, &[Deadlock], "wgmma.wait_group"),
        (Bug::BadDescriptor, &[Operand], "reserved"),
    ] {
        let fault = fault_of(&text(bug), &group(), &arguments(), kinds);
        assert!(fault.detail.contains(word), "{fault}");
    }
    // Three warps are no warp group.
    let few = Launch { dynamic_shared: 65536, ..Launch::new([1, 1, 1], [96, 1, 1]) };
    let short = run(&text(Bug::None), few, &arguments(), &options(Schedule::Forward)).unwrap_err();
    assert!(matches!(short.kind, FaultKind::Divergence | FaultKind::Uninitialised), "{short}");
}
