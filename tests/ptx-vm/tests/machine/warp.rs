//! Collectives of a warp, divergence, loops, calls.

use crate::harness::{Arg, Bench, Dice, module, results, schedules};
use ptx_vm::FaultKind;

/// 32 lanes of operands and what a text makes of them.
fn lanes(text: &str, kind: char, a: impl Fn(u64) -> [u64; 3]) -> Vec<u64> {
    let operands: Vec<[u64; 3]> = (0..32).map(&a).collect();
    results(text, kind, &operands)
}

#[test]
fn shuffles_follow_the_manual() {
    // The manual's pseudo code.
    let model = |mode: &str, lane: i64, b: i64, c: i64| -> (i64, bool) {
        let (segment, clamp) = (c >> 8 & 31, c & 31);
        let max = (lane & segment) | (clamp & !segment);
        let min = lane & segment;
        let (j, p) = match mode {
            "up" => (lane - b, lane - b >= max),
            "down" => (lane + b, lane + b <= max),
            "bfly" => (lane ^ b, (lane ^ b) <= max),
            _ => (min | (b & !segment & 31), (min | (b & !segment & 31)) <= max),
        };
        (if p { j } else { lane }, p)
    };
    for mode in ["up", "down", "bfly", "idx"] {
        for width in [32i64, 16, 8] {
            for b in [0i64, 1, 3, 8, 17, 31] {
                let c = (32 - width) << 8 | if mode == "up" { 0 } else { 31 };
                let got = lanes(
                    &format!(
                        "shfl.sync.{mode}.b32 %r3|%p1, %r0, {b}, {c}, -1; selp.u32 %r4, 1, 0, %p1; mov.b64 %rd10, {{%r3, %r4}};"
                    ),
                    'd',
                    |l| [l * 10 + 5, 0, 0],
                );
                for lane in 0..32 {
                    let (j, p) = model(mode, lane, b, c);
                    assert_eq!(
                        got[lane as usize],
                        (j * 10 + 5) as u64 | u64::from(p) << 32,
                        "{mode} width {width} b {b} lane {lane}"
                    );
                }
            }
        }
    }
}

#[test]
fn votes_matches_reductions() {
    let mut dice = Dice(4);
    let values: Vec<u64> = (0..32).map(|_| dice.below(3)).collect();
    let of = |l: u64| [values[l as usize], 0, 0];
    let odd = (0..32).filter(|&l| values[l] == 1).fold(0u64, |m, l| m | 1 << l);
    let p = "setp.eq.u32 %p2, %r0, 1;";
    assert_eq!(lanes(&format!("{p} vote.sync.ballot.b32 %r10, %p2, -1;"), 'r', of), vec![odd; 32]);
    assert_eq!(
        lanes(&format!("{p} vote.sync.ballot.b32 %r10, !%p2, -1;"), 'r', of),
        vec![!odd & 0xffff_ffff; 32]
    );
    assert_eq!(lanes(&format!("{p} vote.sync.any.pred %p1, %p2, -1;"), 'p', of), vec![1; 32]);
    assert_eq!(lanes(&format!("{p} vote.sync.all.pred %p1, %p2, -1;"), 'p', of), vec![0; 32]);
    assert_eq!(lanes("setp.lt.u32 %p2, %r0, 9; vote.sync.all.pred %p1, %p2, -1;", 'p', of), vec![1; 32]);
    assert_eq!(lanes("setp.gt.u32 %p2, %r0, 9; vote.sync.uni.pred %p1, %p2, -1;", 'p', of), vec![1; 32]);
    assert_eq!(lanes(&format!("{p} vote.sync.uni.pred %p1, %p2, -1;"), 'p', of), vec![0; 32]);
    let same = |l: usize| (0..32).filter(|&k| values[k] == values[l]).fold(0u64, |m, k| m | 1 << k);
    assert_eq!(lanes("match.any.sync.b32 %r10, %r0, -1;", 'r', of), (0..32).map(same).collect::<Vec<_>>());
    assert_eq!(lanes("match.any.sync.b64 %r10, %rd0, -1;", 'r', of), (0..32).map(same).collect::<Vec<_>>());
    assert_eq!(lanes("match.all.sync.b32 %r10|%p1, %r1, -1;", 'r', of), vec![0xffff_ffff; 32]);
    assert_eq!(lanes("match.all.sync.b32 %r10|%p1, %r0, -1;", 'p', of), vec![0; 32]);
    let any: Vec<u64> = (0..32).map(|_| dice.next() & 0xffff_ffff).collect();
    let of = |l: u64| [any[l as usize], 0, 0];
    let fold = |f: fn(u64, u64) -> u64| vec![any.iter().copied().reduce(f).unwrap() & 0xffff_ffff; 32];
    let signed = |x: &u64| *x as u32 as i32;
    assert_eq!(lanes("redux.sync.add.s32 %r10, %r0, -1;", 'r', of), fold(|a, b| (a + b) & 0xffff_ffff));
    assert_eq!(lanes("redux.sync.add.u32 %r10, %r0, -1;", 'r', of), fold(|a, b| (a + b) & 0xffff_ffff));
    assert_eq!(lanes("redux.sync.min.u32 %r10, %r0, -1;", 'r', of), fold(u64::min));
    assert_eq!(lanes("redux.sync.max.u32 %r10, %r0, -1;", 'r', of), fold(u64::max));
    assert_eq!(
        lanes("redux.sync.min.s32 %r10, %r0, -1;", 'r', of),
        vec![any.iter().map(signed).min().unwrap() as u32 as u64; 32]
    );
    assert_eq!(
        lanes("redux.sync.max.s32 %r10, %r0, -1;", 'r', of),
        vec![any.iter().map(signed).max().unwrap() as u32 as u64; 32]
    );
    assert_eq!(lanes("redux.sync.and.b32 %r10, %r0, -1;", 'r', of), fold(|a, b| a & b));
    assert_eq!(lanes("redux.sync.or.b32 %r10, %r0, -1;", 'r', of), fold(|a, b| a | b));
    assert_eq!(lanes("redux.sync.xor.b32 %r10, %r0, -1;", 'r', of), fold(|a, b| a ^ b));
    assert_eq!(lanes("activemask.b32 %r10;", 'r', of), vec![0xffff_ffff; 32]);
    let elected = lanes("elect.sync %r3|%p1, -1;", 'p', of);
    assert_eq!(elected.iter().sum::<u64>(), 1);
}

#[test]
fn halves_of_a_warp_vote_apart_and_branches_reconverge() {
    // Lanes below 12 and the rest take different branches with their own masks; an odd-even loop count per
    // lane follows.
    let text = "
      mov.u32 %r5, %laneid; setp.lt.u32 %p2, %r5, 12; setp.eq.u32 %p3, %r0, 1;
      @%p2 bra LOW;
      vote.sync.ballot.b32 %r10, %p3, 0xfffff000; bra MEET;
      LOW: vote.sync.ballot.b32 %r10, %p3, 0xfff;
      MEET: mov.u32 %r6, 0;
      LOOP: add.s32 %r6, %r6, 1; setp.lt.u32 %p4, %r6, %r5; @%p4 bra LOOP;
      bar.warp.sync -1; shl.b32 %r6, %r6, 24; xor.b32 %r10, %r10, %r6;";
    let bits = |l: u64| (l * 0x9e37 >> 4) & 1;
    let got = lanes(text, 'r', |l| [bits(l), 0, 0]);
    for (l, got) in got.into_iter().enumerate() {
        let range = if l < 12 { 0..12 } else { 12..32 };
        let ballot = range.filter(|&k| bits(k) == 1).fold(0u64, |m, k| m | 1 << k);
        assert_eq!(got, ballot ^ (l.max(1) as u64) << 24 & 0xffff_ffff, "lane {l}");
    }
}

#[test]
fn jump_tables_and_calls() {
    let body = "
.func (.param .b32 result) twice_plus(.param .b32 twice_plus_0, .param .b64 twice_plus_1)
{
  .reg .b32 %r<4>; .reg .b64 %rd<2>; .reg .pred %p<2>;
  ld.param.u32 %r1, [twice_plus_0]; ld.param.u64 %rd1, [twice_plus_1];
  setp.gt.s32 %p1, %r1, 100;
  @%p1 bra BIG;
  cvt.u32.u64 %r2, %rd1; mad.lo.s32 %r3, %r1, 2, %r2; st.param.b32 [result+0], %r3; ret;
BIG: st.param.b32 [result+0], %r1; ret;
}
.visible .entry k(.param .u64 out)
{
  .reg .b32 %r<10>; .reg .b64 %rd<6>; .reg .pred %p<3>;
  mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; mov.u32 %r3, 0;
  table: .branchtargets A, B, C, A;
  brx.idx %r2, table;
A: add.s32 %r3, %r3, 1; bra DONE;
B: mov.u32 %r3, 50; bra DONE;
C: mov.u32 %r3, 101;
DONE:
  mov.u64 %rd1, 7;
  {
  .param .b32 p0; .param .b64 p1; .param .b32 back;
  st.param.b32 [p0+0], %r3; st.param.b64 [p1+0], %rd1;
  call.uni (back), twice_plus, (p0, p1);
  ld.param.b32 %r4, [back+0];
  }
  setp.lt.u32 %p2, %r1, 16;
  {
  .param .b32 p0; .param .b64 p1; .param .b32 back;
  st.param.b32 [p0+0], %r4; st.param.b64 [p1+0], %rd1; st.param.b32 [back+0], %r4;
  @%p2 call (back), twice_plus, (p0, p1);
  ld.param.b32 %r4, [back+0];
  }
  ld.param.u64 %rd2, [out]; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd2, %rd2, %rd3; st.global.u32 [%rd2], %r4; ret;
}";
    let f = |x: u32| if x > 100 { x } else { 2 * x + 7 };
    for options in schedules(2) {
        let mut b = Bench::new(&module(body));
        let out = b.empty(32 * 4);
        let launch = b.launch("k", [1, 1, 1], [32, 1, 1], &[Arg::U64(out)]);
        b.run("k", &launch, &options).unwrap();
        for (t, got) in b.download::<u32>(out, 32).into_iter().enumerate() {
            let first = f([1, 50, 101, 1][t % 4]);
            assert_eq!(got, if t < 16 { f(first) } else { first }, "thread {t}");
        }
    }
}

#[test]
fn special_registers() {
    let body = "
.visible .entry k(.param .u64 out)
{
  .reg .b32 %r<40>; .reg .b64 %rd<6>;
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x; mov.u32 %r4, %ctaid.z; mov.u32 %r5, %nctaid.z;
  mov.u32 %r6, %laneid; mov.u32 %r7, %warpid; mov.u32 %r8, %lanemask_lt; mov.u32 %r9, %nwarpid;
  mad.lo.s32 %r10, %r2, %r3, %r1; mov.u32 %r12, %ntid.y; mul.lo.s32 %r13, %r12, %r3; mad.lo.s32 %r10, %r4, %r13, %r10;
  ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r10, 32; add.s64 %rd1, %rd1, %rd2;
  st.global.v4.u32 [%rd1], {%r1, %r2, %r4, %r5}; st.global.v4.u32 [%rd1+16], {%r6, %r7, %r8, %r9};
  mov.u64 %rd3, %clock64; mov.u32 %r20, %clock; mov.u64 %rd4, %globaltimer; nanosleep.u32 20; ret;
}";
    let mut b = Bench::new(&module(body));
    let out = b.empty(24 * 3 * 2 * 32);
    let launch = b.launch("k", [1, 1, 2], [24, 3, 1], &[Arg::U64(out)]);
    b.run("k", &launch, &schedules(0)[0]).unwrap();
    let got = b.download::<u32>(out, 24 * 3 * 2 * 8);
    for (i, v) in got.chunks(8).enumerate() {
        let (z, t) = (i / 72, i % 72);
        let lane = t % 32;
        assert_eq!(
            v,
            [
                (t % 24) as u32,
                (t / 24) as u32,
                z as u32,
                2,
                lane as u32,
                (t / 32) as u32,
                (1u32 << lane) - 1,
                3
            ]
        );
    }
}

#[test]
fn lanes_that_cannot_reconverge_are_a_fault() {
    let texts = [
        // A shuffle for all lanes that lane 31 does not reach.
        "mov.u32 %r5, %laneid; setp.lt.u32 %p2, %r5, 31; @!%p2 bra OVER; shfl.sync.bfly.b32 %r10, %r0, 1, 31, -1; OVER: mov.u32 %r10, 0; bar.warp.sync -1;",
        // A guard where the mask names all.
        "mov.u32 %r5, %laneid; setp.lt.u32 %p2, %r5, 31; @%p2 vote.sync.ballot.b32 %r10, %p2, -1;",
        // A caller that its mask leaves out.
        "vote.sync.ballot.b32 %r10, %p0, 0xffff;",
        // A block barrier in a divergent branch.
        "mov.u32 %r5, %laneid; setp.lt.u32 %p2, %r5, 8; @%p2 bar.sync 0;",
    ];
    for text in texts {
        for options in schedules(2) {
            let mut b = Bench::new(&module(&format!(
                ".visible .entry k() {{ .reg .pred %p<8>; .reg .b32 %r<20>; mov.u32 %r0, 1; setp.ne.u32 %p0, %r0, 0; {text} ret; }}"
            )));
            let launch = b.launch("k", [1, 1, 1], [32, 1, 1], &[]);
            let fault = b.run("k", &launch, &options).unwrap_err();
            assert_eq!(fault.kind, FaultKind::Divergence, "{text}: {fault}");
            assert!(fault.line > 0 && !fault.text.is_empty());
        }
    }
}

#[test]
fn exited_lanes_are_not_waited_for() {
    let body = "
.visible .entry k(.param .u64 out) {
  .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %rd<4>;
  mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 40; @%p1 exit;
  bar.sync 0; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; bar.sync 0;
  ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r2; ret; }";
    for options in schedules(3) {
        let mut b = Bench::new(&module(body));
        let out = b.empty(160);
        let launch = b.launch("k", [1, 1, 1], [96, 1, 1], &[Arg::U64(out)]);
        let options = ptx_vm::Options { barriers: ptx_vm::Barriers::Ended, ..options };
        b.run("k", &launch, &options).unwrap();
        let want: Vec<u32> = (0..40).map(|t| t / 32 * 32).collect();
        assert_eq!(b.download::<u32>(out, 40), want);
    }
}
