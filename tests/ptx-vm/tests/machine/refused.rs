//! What is not supported is refused when the module is loaded, with its line.

use ptx_vm::{Error, Module};

use crate::harness::module;

#[test]
fn unknown_opcodes_variants_and_operands() {
    for text in [
        "frobnicate.u32 %r1, %r2;",
        "add.u13 %r1, %r2, %r3;",
        "add.sideways.u32 %r1, %r2, %r3;",
        "add.u32 %r1, %r2;",
        "add.u32 %r1, %r2, %rd1;",
        "add.u64 %r1, %rd2, %rd3;",
        "add.u32 %missing, %r2, %r3;",
        "add.f32 %f1, %f2, 3;",
        "div.f32 %f1, %f2, %f3;",
        "shfl.bfly.b32 %r1, %r2, 1, 31;",
        "atom.global.cas.f32 %f1, [%rd1], %f2, %f3;",
        "atom.global.min.f64 %fd1, [%rd1], %fd2;",
        "ld.global.v2.u32 %r1, [%rd1];",
        "ld.global.u32 %r1, [missing];",
        "bra nowhere;",
        "call missing, ();",
        "mma.sync.aligned.m16n8k7.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r1,%r2}, {%f1,%f2,%f3,%f4};",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3}, {%r1,%r2}, {%f1,%f2,%f3,%f4};",
        "cp.async.ca.shared.global [%r1], [%rd1], 5;",
        "setp.lo.s32 %p1, %r1, %r2;",
        "lop3.b32 %r1, %r2, %r3, %r1, 300;",
        "tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [t, {%f1,%f2}];",
        "cvt.rn.satfinite.e2m1x2.f32 %h1, %f1, %f2;",
        "sub.u16x2 %r1, %r2, %r3;",
        "max.relu.u16x2 %r1, %r2, %r3;",
        "add.relu.s32 %r1, %r2, %r3;",
    ] {
        let ptx = module(&format!(
            ".visible .entry k() {{\n.reg .b16 %h<4>; .reg .b32 %r<5>; .reg .f32 %f<5>; .reg .b64 %rd<5>; .reg .f64 %fd<4>; .reg .pred %p<3>;\n{text}\nret; }}"
        ));
        match Module::parse(&ptx) {
            Err(Error::Unsupported { line, .. }) => assert_eq!(line, 7, "{text}"),
            other => panic!("{text}: {:?}", other.map(|m| m.kernels().len())),
        }
    }
}

#[test]
fn recursion_and_foreign_variables() {
    let recursive = module(
        ".func f(.param .b32 f0) { .param .b32 p; .reg .b32 %r<2>; ld.param.u32 %r1, [f0]; st.param.b32 [p], %r1; call f, (p); ret; }
         .visible .entry k() { .param .b32 p; call f, (p); ret; }",
    );
    assert!(matches!(Module::parse(&recursive), Err(Error::Unsupported { .. })));
    assert!(Module::parse(&module(".extern .global .u32 elsewhere;")).is_err());
    assert!(Module::parse(&module(".global .u32 p = generic(missing);")).is_err());
    let managed = module(".visible .global .attribute(.managed) .align 4 .u32 m;");
    let said = Module::parse(&managed).err().map(|e| e.to_string()).unwrap_or_default();
    assert_eq!(said, "line 5: `.attribute(.managed)` is not supported: modules have no managed variables");
    assert!(Module::parse(&module(".global .attribute(.unified(19, 95)) .align 4 .u32 u;")).is_ok());
    let large = module(".visible .entry k() { .shared .b8 a[99999999999]; ret; }");
    assert!(Module::parse(&large).is_err());
}

/// Calls are inlined, so a few lines can stand for any number of instructions, or for none and any number of
/// calls: a text that comes to too much is refused, and by listings as well, which go on behind an error.
#[test]
fn what_inlining_makes_of_a_text_is_bounded() {
    let doubling = |levels: usize, body: &str| {
        let one = |i| format!(".func f{i}() {{ call f{n}; call f{n}; {body} }}", n = i + 1);
        (0..levels).map(one).collect::<String>()
    };
    let kernels = |count| {
        let one = |i| format!(".visible .entry k{i}() {{ call f0; ret; }}");
        (0..count).map(one).collect::<String>()
    };
    let leaf = |levels: usize, body: &str| format!(".func f{levels}() {{ {body} }}");
    for text in [
        // Calls alone emit nothing.
        doubling(30, "") + &leaf(30, "") + &kernels(1),
        doubling(30, "") + &leaf(30, "frob;") + &kernels(1),
        // Each kernel is within its limit.
        doubling(18, "ret;") + &leaf(18, "ret;") + &kernels(200),
        ".func f0() { .reg .pred %p<65536>; }".to_owned()
            + &format!(".visible .entry k() {{ {} }}", "call f0;".repeat(5000)),
    ] {
        let text = module(&text);
        let limit = |said: &str| said.contains("calls inlined") || said.contains("2^18 registers");
        let said = Module::parse(&text).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(limit(&said) || said.contains("this opcode is unknown"), "{said}");
        let listed = Module::refusals(&text).unwrap();
        assert!(listed.iter().any(|e| limit(&e.to_string())), "{listed:?}");
    }
}

/// However often a function is inlined, what it has stands in the listing once.
#[test]
fn listings_name_an_inlined_instruction_once() {
    let text = module(
        ".func f() { frob; ret; } .visible .entry k() { call f; call f; { nope; } ret; } .visible .entry l() { call f; ret; }",
    );
    let said: Vec<_> = Module::refusals(&text).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 3, "{said:?}");
}
