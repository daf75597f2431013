//! Bulk and tensor copies in PTX text, through the whole machine, in every schedule.

use super::*;
use crate::matrix::tests::ptx::{Argument, HEAD, fault, fault_of, run_all};
use crate::{FaultKind, Launch};

/// Bytes of shared memory the kernels here work in.
const ROOM: usize = 16384;

/// What surrounds the copies: shared memory filled from `seed` (or left), the body, shared memory stored to
/// `out`.
fn kernel(parameters: &str, body: &str, fill: bool) -> String {
    let fill = if fill {
        "mov.u32 %r1, %tid.x;
shl.b32 %r1, %r1, 4;
FILL:
setp.ge.u32 %q0, %r1, 16384;
@%q0 bra FILLED;
cvt.u64.u32 %p3, %r1;
add.s64 %p3, %p1, %p3;
add.s32 %r3, %r0, %r1;
ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%p3];
st.shared.v4.u32 [%r3], {%a0, %a1, %a2, %a3};
add.s32 %r1, %r1, %r9;
bra FILL;
FILLED:
fence.proxy.async.shared::cta;
bar.sync 0;
"
    } else {
        ""
    };
    format!(
        "{HEAD}.visible .entry k(.param .u64 seed, .param .u64 out{parameters})
{{
.reg .b32 %r<16>; .reg .b32 %a<4>; .reg .b64 %p<8>; .reg .pred %q<4>; .reg .b16 %h<2>;
.shared .align 1024 .b8 room[16384];
.shared .align 8 .b64 bar;
ld.param.u64 %p1, [seed];
ld.param.u64 %p2, [out];
mov.u32 %r0, room;
mov.u32 %r8, bar;
mov.u32 %r9, %ntid.x;
shl.b32 %r9, %r9, 4;
mov.u32 %r10, %tid.x;
setp.eq.u32 %q1, %r10, 0;
{fill}{body}
mov.u32 %r1, %tid.x;
shl.b32 %r1, %r1, 4;
// Each block of a cluster has a part of its own in `out`.
mov.u32 %r4, %ctaid.x;
mul.wide.u32 %p4, %r4, 16384;
add.s64 %p2, %p2, %p4;
OUT:
setp.ge.u32 %q0, %r1, 16384;
@%q0 bra END;
cvt.u64.u32 %p3, %r1;
add.s64 %p3, %p2, %p3;
add.s32 %r3, %r0, %r1;
ld.shared.v4.u32 {{%a0, %a1, %a2, %a3}}, [%r3];
st.global.v4.u32 [%p3], {{%a0, %a1, %a2, %a3}};
add.s32 %r1, %r1, %r9;
bra OUT;
END:
ret;
}}
"
    )
}

const INIT: &str = "@%q1 mbarrier.init.shared::cta.b64 [%r8], 1;
@%q1 fence.mbarrier_init.release.cluster;
bar.sync 0;
";

const WAIT: &str = "WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %q2, [%r8], 0;
@!%q2 bra WAIT;
";

fn noise(numbers: &mut Numbers, bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8)).flat_map(|_| numbers.next().to_le_bytes()).take(bytes).collect()
}

/// Bytes of global memory a map reaches.
fn extent(map: &TensorMap) -> usize {
    let rank = map.rank as usize;
    let outer: u64 = (1..rank).map(|i| (map.dims[i] - 1) * map.strides[i - 1]).sum();
    (outer + map.dims[0] * u64::from(map.data_type.bytes())) as usize
}

/// A random map that fits the room, with coordinates and a place in shared memory.
fn case(numbers: &mut Numbers) -> (TensorMap, Vec<i32>, usize) {
    loop {
        let map = random_map(numbers);
        let coordinates: Vec<i32> =
            (0..map.rank as usize).map(|i| numbers.between(-3, map.dims[i] as i64) as i32).collect();
        let shared = 128 * numbers.between(0, 3) as usize;
        if shared + map.shared_bytes() as usize <= ROOM {
            return (map, coordinates, shared);
        }
    }
}

/// The map as an argument: it describes the buffer number `buffer`.
fn argument(map: TensorMap, buffer: usize) -> Argument {
    Argument::Bytes(Box::new(move |addresses| {
        TensorMap { address: addresses[buffer], ..map }.encode().unwrap().to_vec()
    }))
}

fn corner(coordinates: &[i32]) -> String {
    let list: Vec<String> = coordinates.iter().map(i32::to_string).collect();
    format!("{{{}}}", list.join(", "))
}

/// Where shared memory starts: the swizzle goes by addresses, and the room is aligned to 1024.
const START: usize = 1024;

#[test]
fn tensor_loads_of_every_rank_with_fill_and_swizzle() {
    let mut numbers = Numbers(31);
    for round in 0..40 {
        let (map, coordinates, shared) = case(&mut numbers);
        let (rank, bytes) = (map.rank, map.box_bytes());
        let body = format!(
            "mov.b64 %p5, map;
cvta.param.u64 %p5, %p5;
add.s32 %r5, %r0, {shared};
{INIT}@%q1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], {bytes};
@%q1 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r5], [%p5, {}], [%r8];
{WAIT}",
            corner(&coordinates)
        );
        let text = kernel(", .param .align 64 .b8 map[128]", &body, true);
        let (seed, data) = (noise(&mut numbers, ROOM), noise(&mut numbers, extent(&map)));
        let arguments = [Argument::Buffer(seed.clone()), Argument::Buffer(vec![0; ROOM]), argument(map, 2)];
        // The tensor's buffer is only reached through the map, so it stands before it as a parameter that is
        // not read.
        let text = text.replace("out, .param .align 64", "out, .param .u64 tensor, .param .align 64");
        let [seed_argument, out, map_argument] = arguments;
        let arguments = [seed_argument, out, Argument::Buffer(data.clone()), map_argument];
        let threads = if round % 2 == 0 { 32 } else { 96 };
        let got = &run_all(&text, &Launch::new([1, 1, 1], [threads, 1, 1]), &arguments)[1];
        let mut want = seed;
        let element = map.fill_element();
        let base = TensorMap { address: 0, ..map };
        for place in model(&base, &coordinates, shared + START) {
            for (i, at) in place.shared.iter().enumerate() {
                want[at - START] = place.global.map_or(element[i], |g| data[g as usize + i]);
            }
        }
        assert!(*got == want, "{map:?} at {coordinates:?}");
    }
}

#[test]
fn tensor_stores_and_reductions_write_what_lies_inside() {
    let mut numbers = Numbers(32);
    for round in 0..40 {
        let (map, coordinates, shared) = case(&mut numbers);
        let rank = map.rank;
        // Sums of small integers: in the other types the bits are what they are.
        let reduce = round % 2 == 1 && map.data_type == DataType::S32;
        let instruction = if reduce {
            format!("cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.tile.bulk_group")
        } else {
            format!("cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group")
        };
        let body = format!(
            "mov.b64 %p5, map;
cvta.param.u64 %p5, %p5;
add.s32 %r5, %r0, {shared};
@%q1 {instruction} [%p5, {}], [%r5];
@%q1 cp.async.bulk.commit_group;
@%q1 cp.async.bulk.wait_group.read 0;
@%q1 cp.async.bulk.wait_group 0;
",
            corner(&coordinates)
        );
        let text = kernel(", .param .u64 tensor, .param .align 64 .b8 map[128]", &body, true);
        let (seed, data) = (noise(&mut numbers, ROOM), noise(&mut numbers, extent(&map)));
        let arguments = [
            Argument::Buffer(seed.clone()),
            Argument::Buffer(vec![0; ROOM]),
            Argument::Buffer(data.clone()),
            argument(map, 2),
        ];
        let got = &run_all(&text, &Launch::new([1, 1, 1], [64, 1, 1]), &arguments)[2];
        let mut want = data;
        for place in model(&TensorMap { address: 0, ..map }, &coordinates, shared + START) {
            let Some(at) = place.global.map(|g| g as usize) else { continue };
            let new: Vec<u8> = place.shared.iter().map(|s| seed[s - START]).collect();
            if reduce {
                let word = |b: &[u8]| i32::from_le_bytes(b.try_into().unwrap());
                let sum = word(&want[at..at + 4]).wrapping_add(word(&new));
                want[at..at + 4].copy_from_slice(&sum.to_le_bytes());
            } else {
                want[at..at + new.len()].copy_from_slice(&new);
            }
        }
        assert!(*got == want, "{map:?} at {coordinates:?}");
    }
}

#[test]
fn plain_bulk_copies_there_and_back() {
    let body = format!(
        "{INIT}@%q1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], 4096;
add.s64 %p5, %p1, 256;
@%q1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%p5], 4096, [%r8];
{WAIT}add.s32 %r5, %r0, 1024;
add.s64 %p6, %p2, 512;
@%q1 cp.async.bulk.global.shared::cta.bulk_group [%p6], [%r5], 2048;
@%q1 cp.async.bulk.commit_group;
@%q1 cp.async.bulk.wait_group 0;
ret;
"
    );
    let mut numbers = Numbers(33);
    let data = noise(&mut numbers, 8192);
    let arguments = [Argument::Buffer(data.clone()), Argument::Buffer(vec![0; ROOM])];
    let text = kernel("", &body, false);
    let got = &run_all(&text, &Launch::new([1, 1, 1], [64, 1, 1]), &arguments)[1];
    assert_eq!(got[512..2560], data[256 + 1024..256 + 1024 + 2048]);
    assert!(got[..512].iter().chain(&got[2560..]).all(|&b| b == 0));
    // Integer and float reductions on the way back.
    for (operation, ty, a, b, want) in [
        ("add", "u32", 7u32, 5u32, 12u32),
        ("min", "s32", (-7i32) as u32, 5, (-7i32) as u32),
        ("max", "u32", 7, 5, 7),
        ("xor", "b32", 0b1100, 0b1010, 0b0110),
        ("inc", "u32", 4, 4, 0),
        ("add.noftz", "f16", 0x3c00_4000, 0x3c00_3c00, 0x4000_4200),
        ("add.noftz", "bf16", 0x3f80_4000, 0x3f80_3f80, 0x4000_4040),
        ("add", "f32", 1.5f32.to_bits(), 2.25f32.to_bits(), 3.75f32.to_bits()),
    ] {
        let text = text.replace(
            "@%q1 cp.async.bulk.global.shared::cta.bulk_group",
            &format!("@%q1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}.{ty}"),
        );
        let source = b.to_le_bytes().repeat(2048);
        let arguments = [Argument::Buffer(source), Argument::Buffer(a.to_le_bytes().repeat(ROOM / 4))];
        let got = &run_all(&text, &Launch::new([1, 1, 1], [32, 1, 1]), &arguments)[1];
        let words: Vec<u32> =
            got.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        assert!(words[128..640].iter().all(|&w| w == want), "{operation}.{ty}: {:#x}", words[128]);
        assert!(words[..128].iter().chain(&words[640..]).all(|&w| w == a), "{operation}.{ty}");
    }
}

#[test]
fn multicast_and_copies_between_blocks() {
    // Block 0 sends 2048 bytes to both blocks; block 1 then sends its second kilobyte to block 0's third.
    let body = format!(
        "{INIT}barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
mov.u32 %r11, %cluster_ctarank;
setp.eq.u32 %q3, %r11, 0;
@%q1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], 2048;
and.pred %q3, %q3, %q1;
mov.b16 %h0, 3;
@%q3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%p1], 2048, [%r8], %h0;
{WAIT}
// Both have their data; the second phase of block 0's barrier counts what block 1 sends.
setp.eq.u32 %q3, %r11, 0;
and.pred %q3, %q3, %q1;
@%q3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], 1024;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
setp.eq.u32 %q3, %r11, 1;
and.pred %q3, %q3, %q1;
add.s32 %r5, %r0, 2048;
mapa.shared::cluster.u32 %r5, %r5, 0;
mapa.shared::cluster.u32 %r6, %r8, 0;
add.s32 %r7, %r0, 1024;
@%q3 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r5], [%r7], 1024, [%r6];
setp.ne.u32 %q3, %r11, 0;
@%q3 bra SENT;
AGAIN:
mbarrier.try_wait.parity.shared::cta.b64 %q2, [%r8], 1;
@!%q2 bra AGAIN;
SENT:
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
// What was copied goes out.
mov.u32 %r1, %tid.x;
shl.b32 %r1, %r1, 4;
mul.wide.u32 %p4, %r11, 4096;
add.s64 %p2, %p2, %p4;
sub.s32 %r12, 3072, 0;
@%q3 mov.u32 %r12, 2048;
COPY:
setp.ge.u32 %q0, %r1, %r12;
@%q0 bra COPIED;
cvt.u64.u32 %p3, %r1;
add.s64 %p3, %p2, %p3;
add.s32 %r3, %r0, %r1;
ld.shared.v4.u32 {{%a0, %a1, %a2, %a3}}, [%r3];
st.global.v4.u32 [%p3], {{%a0, %a1, %a2, %a3}};
add.s32 %r1, %r1, %r9;
bra COPY;
COPIED:
ret;
"
    );
    let data = noise(&mut Numbers(34), 2048);
    let launch = Launch { cluster: [2, 1, 1], ..Launch::new([2, 1, 1], [64, 1, 1]) };
    let arguments = || [Argument::Buffer(data.clone()), Argument::Buffer(vec![0; 8192])];
    let text = kernel("", &body, false);
    let got = &run_all(&text, &launch, &arguments())[1];
    assert_eq!(got[..2048], data[..]);
    assert_eq!(got[2048..3072], data[1024..]);
    assert_eq!(got[4096..6144], data[..]);
    let no_consumer = text.replace("mov.b16 %h0, 3", "mov.b16 %h0, 4");
    let stop = fault(&no_consumer, &launch, &arguments(), FaultKind::Operand);
    assert!(stop.detail.contains("names block 2"), "{stop}");
}

#[test]
fn broken_copies_are_caught_in_every_schedule() {
    let map = TensorMap {
        swizzle: Swizzle::Bytes128,
        ..TensorMap::tiled(DataType::Bf16, 0, &[64, 64], &[128], &[64, 16])
    };
    let bytes = map.box_bytes();
    let body = |expect: u32, at: &str, wait: &str, after: &str| {
        format!(
            "mov.b64 %p5, map;
cvta.param.u64 %p5, %p5;
add.s32 %r5, %r0, {at};
{INIT}@%q1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], {expect};
@%q1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%p5, {{0, 8}}], [%r8];
{after}{wait}"
        )
    };
    let launch = Launch::new([1, 1, 1], [64, 1, 1]);
    let arguments = |map: TensorMap, size: usize| {
        [
            Argument::Buffer(vec![1; ROOM]),
            Argument::Buffer(vec![0; ROOM]),
            Argument::Buffer(vec![2; size]),
            argument(map, 2),
        ]
    };
    let text = |body: &str| kernel(", .param .u64 tensor, .param .align 64 .b8 map[128]", body, true);
    let good = text(&body(bytes, "0", WAIT, ""));
    run_all(&good, &launch, &arguments(map, 8192));
    let case = |text: &str, kind: FaultKind| fault(text, &launch, &arguments(map, 8192), kind);
    // Reading without waiting (a warp that runs ahead races with the copy), and writing where the copy is
    // about to.
    let early = [FaultKind::MissingWait, FaultKind::SharedRace];
    fault_of(&text(&body(bytes, "0", "", "")), &launch, &arguments(map, 8192), &early);
    case(&text(&body(bytes, "0", WAIT, "@%q1 st.shared.u32 [%r0], %r0;\n")), FaultKind::MissingWait);
    // Waiting for too many bytes never ends.
    case(&text(&body(bytes + 16, "0", WAIT, "")), FaultKind::Deadlock);
    // A box off its boundary, a map that is none, and a tensor larger than its memory.
    case(&text(&body(bytes, "64", WAIT, "")), FaultKind::Operand);
    let moved =
        |by: i32| good.replace("mov.b64 %p5, map;", &format!("mov.b64 %p5, map;\nadd.s64 %p5, %p5, {by};"));
    let other = case(&moved(-64), FaultKind::Operand);
    assert!(other.detail.contains("not a tensor map"), "{other}");
    case(&moved(64), FaultKind::OutOfBounds);
    case(&moved(16), FaultKind::Misaligned);
    fault(&good, &launch, &arguments(map, 2048), FaultKind::OutOfBounds);
    // Too few bytes expected: somebody reads what has not landed, or the count goes wrong, whatever the
    // order.
    let few = text(&body(bytes - 16, "0", WAIT, ""));
    let kinds = [FaultKind::MissingWait, FaultKind::Barrier, FaultKind::Deadlock, FaultKind::SharedRace];
    fault_of(&few, &launch, &arguments(map, 8192), &kinds);
}

#[test]
fn stores_must_be_waited_for() {
    let body = |wait: &str, after: &str| {
        format!(
            "@%q1 cp.async.bulk.global.shared::cta.bulk_group [%p2], [%r0], 1024;
@%q1 cp.async.bulk.commit_group;
{wait}{after}ret;
"
        )
    };
    let launch = Launch::new([1, 1, 1], [32, 1, 1]);
    let arguments = || [Argument::Buffer(vec![1; ROOM]), Argument::Buffer(vec![0; ROOM])];
    let text = |wait: &str, after: &str| kernel("", &body(wait, after), true);
    let read = "@%q1 cp.async.bulk.wait_group.read 0;\n";
    let overwrite = "@%q1 st.shared.u32 [%r0], %r0;\n";
    // Once the source has been read it may be written, and the kernel may end.
    let got = &run_all(&text(read, overwrite), &launch, &arguments())[1];
    assert!(got[..1024].iter().all(|&b| b == 1));
    fault(&text("", overwrite), &launch, &arguments(), FaultKind::MissingWait);
    fault(&text("", ""), &launch, &arguments(), FaultKind::MissingWait);
    fault(
        &text("@%q1 cp.async.bulk.wait_group.read 1;\n", overwrite),
        &launch,
        &arguments(),
        FaultKind::MissingWait,
    );
}

#[test]
fn unknown_copies_are_errors_at_load_time() {
    let refuse = |instruction: &str| {
        let text = format!(
            "{HEAD}.visible .entry k()\n{{\n.reg .b32 %r<8>; .reg .b64 %p<4>;\n{instruction}\nret;\n}}\n"
        );
        crate::Module::parse(&text).unwrap_err().to_string()
    };
    for (instruction, word) in [
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r0], [%p0, {%r1, %r2}], [%r3];",
            "im2col",
        ),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%p0, {%r1}], [%r3];",
            "coordinates",
        ),
        (
            "cp.async.bulk.tensor.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%p0, {%r1}], [%r3];",
            ".1d",
        ),
        ("cp.async.bulk.shared::cluster.global.bulk_group [%r0], [%p0], 16;", "completion"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u8 [%p0], [%r0], 16;", "add"),
        ("tensormap.replace.tile.global_address.global.b1024.b64 [%p0], %p1;", "tensor maps"),
    ] {
        let error = refuse(instruction);
        assert!(error.contains(word), "{instruction}: {error}");
    }
}
