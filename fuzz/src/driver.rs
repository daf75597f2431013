//! What the software CUDA driver reads: PTX, and images of code (fat binaries, containers of its linker,
//! objects and archives, machine code).

use engraft_core::{Error, Result};
use ptx_vm::{
    Instance, Memory, Module,
    link::{Input, limit_registers, link, undefined},
};
use std::{path::Path, sync::Arc};

/// Bytes of a device's memory.
const CAPACITY: u64 = 1 << 20;

pub const PTX: &[&str] = &[
    ".version 8.0\n",
    ".target sm_90a\n",
    ".address_size 64\n",
    ".visible .entry k(",
    ".func f(",
    ".extern .func f();",
    ".weak ",
    ".common ",
    ".alias a, b;",
    ".param .u64 p",
    ".param .align 16 .b8 p[16]",
    ".reg .b32 %r<4294967295>;",
    ".reg .pred %p<2>;",
    ".shared .align 16 .b8 s[4096];",
    ".extern .shared .b8 d[];",
    ".local .b8 l[9223372036854775807];",
    ".global .u32 g[4] = {1, 2};",
    ".const .u64 c = generic(g);",
    ".maxntid 1024, 1, 1",
    ".reqnctapercluster 2",
    ".pragma \"nounroll\";",
    ".loc 1 1 1",
    "mov.u32 %r1, %tid.x;",
    "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+16];",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 ",
    "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 ",
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes ",
    "@%p1 bra $L1;",
    "$L1:",
    "call.uni (r), f, (p);",
    "brx.idx %r1, ts;",
    "ts: .branchtargets $L1;",
    "bar.sync 0;",
    "0f7F800000",
    "0dFFF0000000000000",
    "18446744073709551615",
    "{",
    "}",
    "(",
    ")",
    ";",
    ",",
    "/*",
    "//",
];
pub const CODE: &[&str] = &[
    "engraft-softlink",
    "!<arch>\n",
    "\u{7f}ELF\u{2}\u{1}\u{1}",
    ".version 8.0\n.target sm_90\n",
    "\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}",
    "\u{1}\u{0}\u{1}\u{1}",
    "\u{0} \u{0}\u{0}",
    "(\u{b5}/\u{fd}",
];

fn file(path: &str) -> Result<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests").join(path);
    std::fs::read(&path).map_err(|e| Error::io(&path, e))
}

/// Texts that a compiler made.
pub fn texts() -> Result<Vec<Vec<u8>>> {
    let names = [
        "nvcc/cooperative",
        "nvcc/printf",
        "nvcc/pointers",
        "nvcc/wmma",
        "ptx/rmsnorm",
        "ptx/grid",
        "ptx/wgmma",
    ];
    names.into_iter().map(|name| file(&format!("ptx-vm/tests/{name}.ptx"))).collect()
}

/// Scopes, expressions and lists without end, variables and registers of any size, functions that call each
/// other.
pub fn hostile_texts() -> Vec<Vec<u8>> {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let kernel = |body: &str| format!("{head}.visible .entry k() {{ {body} ret; }}");
    let many = |what: &dyn Fn(usize) -> String, count: usize| (0..count).map(what).collect::<String>();
    [
        kernel(&"{".repeat(100_000)),
        kernel(&format!("{}{}", "{".repeat(20_000), "}".repeat(20_000))),
        kernel(&format!(".reg .b32 %r<2>; mov.u32 %r1, {}1{};", "(".repeat(50_000), ")".repeat(50_000))),
        kernel(&format!(".reg .b32 %r<2>; mov.u32 %r1, {}1;", "-".repeat(50_000))),
        kernel(".reg .b32 %r<4294967295>;"),
        kernel(".reg .b32 %r<18446744073709551616>;"),
        kernel(".shared .b8 s[4294967296];"),
        kernel(".local .b8 l[9223372036854775807]; .local .b8 m[9223372036854775807];"),
        kernel(&many(&|i| format!("$L{i}: bra $L{};", i + 1), 5_000)),
        kernel(&many(&|i| format!(".reg .b32 %a{i};"), 5_000)),
        kernel(&format!("ld.global.u32 {{{}}}, [0];", "%r,".repeat(20_000))),
        format!("{head}.global .b8 g[18446744073709551615];"),
        format!("{head}.global .align 18446744073709551615 .b8 g[2];"),
        format!("{head}.global .u64 g[2] = {{{}1}};", "1,".repeat(50_000)),
        format!("{head}.global .u32 g[65536][65536][65536];"),
        format!("{head}.global .u64 g = generic(g)+9223372036854775807;"),
        format!("{head}.func f() {{ call f; ret; }} .visible .entry k() {{ call f; ret; }}"),
        format!(
            "{head}{}.visible .entry k() {{ call f0; ret; }}",
            many(&|i| format!(".func f{i}() {{ call f{}; call f{}; ret; }}", i + 1, i + 1), 40)
        ),
        // Nothing is emitted; many kernels; instructions that nobody knows, inlined.
        format!(
            "{head}{}.visible .entry k() {{ call f0; ret; }}",
            many(&|i| format!(".func f{i}() {{ {} }}", format!("call f{};", i + 1).repeat(4)), 30)
        ),
        format!(
            "{head}{}.func f20() {{ ret; }}{}",
            many(&|i| format!(".func f{i}() {{ call f{}; call f{}; ret; }}", i + 1, i + 1), 20),
            many(&|i| format!(".visible .entry k{i}() {{ call f0; ret; }}"), 500)
        ),
        format!(
            "{head}{}.func f16() {{ frob /*{}*/; ret; }}.visible .entry k() {{ call f0; ret; }}",
            many(&|i| format!(".func f{i}() {{ call f{}; call f{}; ret; }}", i + 1, i + 1), 16),
            "a".repeat(50_000)
        ),
        format!("{head}{}", ".extern .func f();".repeat(8_000)),
        format!("{head}{}", ".extern .global .u32 g;".repeat(8_000)),
        format!(
            "{head}.func f() {{ .reg .pred %p<65536>; }} .visible .entry k() {{ {} }}",
            "call f;".repeat(9_000)
        ),
        format!(
            "{head}.visible .entry k({}.param .u64 p) {{ ret; }}",
            many(&|i| format!(".param .u64 p{i},"), 5_000)
        ),
        format!("{head}.alias a, b; .alias b, a;"),
        format!("{head}/*{}", "/*".repeat(50_000)),
        ".version 4294967296.4294967296\n.target sm_4294967296\n".into(),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect()
}

pub fn read_text(input: Vec<u8>) -> bool {
    let Ok(text) = std::str::from_utf8(&input) else { return false };
    let module = Module::parse(text);
    let (opcodes, refusals) = (Module::opcodes(text), Module::refusals(text));
    assert_eq!(opcodes.is_ok(), refusals.is_ok(), "both ask whether it is PTX");
    let wanted = undefined(text);
    let inputs = [Input { name: "a", text }, Input { name: "b", text: ".version 8.0\n.target sm_80\n" }];
    let _ = (link(&inputs), limit_registers(text, 32));
    let Ok(module) = module else { return false };
    assert!(opcodes.is_ok(), "a module of what is no PTX");
    assert!(wanted.is_ok(), "a module that no linker reads");
    let mut memory = Memory::new();
    memory.set_capacity(0, CAPACITY);
    if let Ok(instance) = Instance::load(Arc::new(module), &mut memory, 0) {
        assert!(instance.unload(&mut memory).is_ok(), "what was loaded is not there");
    }
    true
}

/// Fat binaries in every compression, a container, an archive.
pub fn images() -> Result<Vec<Vec<u8>>> {
    let fat = |name: &str| file(&format!("soft-cuda/tests/common/{name}.fatbin"));
    let text = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n".to_vec();
    let (plain, lz4, zstd) = (fat("kernels.plain")?, fat("kernels.lz4")?, fat("kernels.zstd")?);
    let mut archive = b"!<arch>\nmember  ".to_vec();
    archive.extend(&zstd);
    let container = soft_cuda::fuzzing::container(&[String::from_utf8_lossy(&text).into_owned()]);
    Ok(vec![plain, lz4, zstd, fat("several")?, archive, container, text])
}

/// Entries that lie elsewhere or in each other, sizes that nothing has, texts that unfold to gigabytes.
pub fn hostile_images() -> Vec<Vec<u8>> {
    let entry = |flags: u64, head: u32, packed: u32, whole: u64, stored: &[u8]| {
        let mut entry = [0u8; 80];
        entry[..2].copy_from_slice(&1u16.to_le_bytes());
        entry[4..8].copy_from_slice(&head.to_le_bytes());
        entry[8..16].copy_from_slice(&(stored.len() as u64).to_le_bytes());
        entry[16..20].copy_from_slice(&packed.to_le_bytes());
        entry[28..32].copy_from_slice(&80u32.to_le_bytes());
        entry[40..48].copy_from_slice(&flags.to_le_bytes());
        entry[56..64].copy_from_slice(&whole.to_le_bytes());
        let body = [&entry[..], stored].concat();
        let front = [0xBA55_ED50u32.to_le_bytes(), 0x0010_0001u32.to_le_bytes()].concat();
        [&front[..], &(body.len() as u64).to_le_bytes(), &body].concat()
    };
    // A block of LZ4: one letter, and a match of itself as long as the bytes that follow say.
    let run = [&b"\x1fa\x01\0"[..], &[0xff; 60_000], b"\0"].concat();
    // A frame of Zstandard: blocks of one letter, 128 KB each, and a window of the largest size.
    let block = (128u32 << 10) << 3 | 1 << 1;
    let letters = [&block.to_le_bytes()[..3], b"a"].concat();
    let frame = [&b"\x28\xb5\x2f\xfd\x00\x58"[..], &letters.repeat(2000)].concat();
    let window = [&b"\x28\xb5\x2f\xfd\x00\xff"[..], &letters].concat();
    let lz4 = |whole| entry(0x2000, 80, run.len() as u32, whole, &run);
    let mut sealed = soft_cuda::fuzzing::container(&[String::new()]);
    sealed[16..24].fill(0xff);
    vec![
        entry(0, 0, 0, 8, b"a"),
        entry(0, u32::MAX, u32::MAX, u64::MAX, b"a"),
        lz4(1 << 28),
        lz4(16 << 20),
        lz4(u64::MAX),
        entry(0x8000, 80, frame.len() as u32, 1, &frame),
        entry(0x8000, 80, window.len() as u32, 1, &window),
        entry(0x8000, 80, 4, 1 << 28, b"\x28\xb5\x2f\xfd"),
        [&b"!<arch>\n"[..], &0xBA55_ED50u32.to_le_bytes().repeat(20_000)].concat(),
        [&b"\x7fELF\x02\x01\x01"[..], &[0xff; 200]].concat(),
        [&b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0"[..], &[0; 64]].concat(),
        [&0x4662_43B1u32.to_le_bytes()[..], &[1; 20]].concat(),
        sealed,
    ]
}

pub fn read_image(input: Vec<u8>) -> bool {
    soft_cuda::fuzzing::image(&input)
}
