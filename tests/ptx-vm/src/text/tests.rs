//! Whole modules, and broken ones.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::parser::parse;
use super::syntax::{Initial, Item, Linkage, Operand};
use crate::Error;

const TEXT: &str = "
.version 8.7
.target sm_90a
.address_size 64
.const .align 4 .b8 table[8] = {1, 2, 3, 4, 0xFF, 6};
.global .align 8 .u64 there = generic(table)+4;
.extern .shared .align 16 .b8 dyn[];
.visible .entry k(
	.param .u64 .ptr .global .align 16 k_param_0,
	.param .align 64 .b8 k_param_1[128]
)
.maxntid 128, 1, 1
.minnctapersm 1
{
	.reg .pred %p<3>;
	.reg .b32 %r<4>, tmp;
	.shared .align 8 .b8 s[16];
	mov.u32 %r1, %tid.x;
$L_1:
	@!%p1 bra $L_1;
	{
	.reg .b32 x;
	mov.b32 {x, _}, 0f3F800000;
	}
	st.shared.v2.f32 [s+-8], {%r1, -1};
	cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [k_param_1, {%r2, %r3}], [%r1];
	setp.lt.and.s32 %p1|%p2, %r1, 5, !%p2;
	ret;
}";

#[test]
fn a_module_with_everything() {
    let file = parse(TEXT).unwrap();
    assert_eq!((file.version, &file.target[..]), ([8, 7], "sm_90a"));
    assert_eq!(file.variables[1].initial, [Initial::Address("table".into(), 4)]);
    assert_eq!((file.variables[2].elements, file.variables[2].linkage), (None, Linkage::Extern));
    let f = &file.functions[0];
    assert_eq!(f.parameters[1].bytes(), 128);
    assert_eq!(f.directives[0], (".maxntid".into(), vec![128, 1, 1]));
    let body = f.body.as_ref().unwrap();
    let Item::Instruction(bra) = &body[5] else { panic!() };
    assert_eq!(
        (bra.guard.clone(), bra.line, &bra.text[..]),
        (Some(("%p1".into(), true)), 20, "@!%p1 bra $L_1;")
    );
    let Item::Instruction(tma) = &body[8] else { panic!() };
    assert!(matches!(&tma.operands[1], Operand::Address { coordinates, .. } if coordinates.len() == 2));
    let Item::Instruction(store) = &body[7] else { panic!() };
    assert!(matches!(&store.operands[0], Operand::Address { offset: -8, .. }));
    assert_eq!(
        store.operands[1],
        Operand::Vector(vec![Operand::Name("%r1".into(), 0), Operand::Integer(u64::MAX)])
    );
}

#[test]
fn broken_texts_name_their_line() {
    for (text, line) in [
        ("", 1),
        (".version 8.7\n.foo", 2),
        (".version 8.7\n.visible .entry k()\n{ add.s32 %r1 %r2; }", 3),
        (".version 8.7\n.visible .entry k() { ret;", 2),
        (".version 8.7\n.visible .entry k() { .reg .b32 %r<99999999>; }", 2),
    ] {
        match parse(text) {
            Err(Error::Syntax { line: got, .. }) => assert_eq!(got, line, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    let deep = format!(".version 8.7\n.visible .entry k() {}", "{".repeat(100_000));
    assert!(parse(&deep).is_err());
    let deep = format!(".version 8.7\n.visible .entry k() {{ mov.b32 {} }}", "-".repeat(100_000));
    assert!(parse(&deep).is_err());
}
