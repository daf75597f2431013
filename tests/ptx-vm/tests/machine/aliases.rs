//! `.alias`: another name of a function, called, taken the address of, linked, and refused where ptxas would.

use ptx_vm::link::{Input, link};
use ptx_vm::{Module, Options};

use crate::harness::{Arg, Bench, module};

const FUNCTIONS: &str = "
.visible .func (.param .b32 r) next(.param .b32 x);
.visible .func (.param .b32 r) more(.param .b32 x);
.func (.param .b32 r) add_one(.param .b32 x) {
  .reg .b32 %r<2>; ld.param.u32 %r1, [x]; add.u32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }
.func (.param .b32 r) add_ten(.param .b32 x) {
  .reg .b32 %r<2>; ld.param.u32 %r1, [x]; add.u32 %r1, %r1, 10; st.param.b32 [r], %r1; ret; }
.alias next, add_one;
.alias more, add_ten;
";

const KERNEL: &str = "
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<2>; .param .b32 x; .param .b32 r;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, 5; st.param.b32 [x], %r1; call (r), next, (x);
  ld.param.u32 %r1, [r]; st.param.b32 [x], %r1; mov.u64 %rd2, more;
  one: .callprototype (.param .b32 _) _ (.param .b32 _);
  call (r), %rd2, (x), one; ld.param.u32 %r1, [r]; mov.u64 %rd3, add_ten;
  setp.eq.u64 %p1, %rd2, %rd3; selp.u32 %r2, 100, 0, %p1; add.u32 %r1, %r1, %r2;
  st.global.u32 [%rd1], %r1; ret; }";

fn run(text: &str) -> u32 {
    let mut bench = Bench::new(text);
    let out = bench.empty(4);
    let launch = bench.launch("k", [1; 3], [1; 3], &[Arg::U64(out)]);
    bench.run("k", &launch, &Options::default()).unwrap();
    bench.download::<u32>(out, 1)[0]
}

#[test]
fn an_alias_is_the_function_it_names() {
    assert_eq!(run(&module(&format!("{FUNCTIONS}{KERNEL}"))), 5 + 1 + 10 + 100);
    // The order of the directives does not matter.
    let first = FUNCTIONS.replace(".alias next, add_one;\n", "");
    assert_eq!(run(&module(&format!(".alias next, add_one;{first}{KERNEL}"))), 116);
}

/// Another text calls the alias; the function behind it is each text's own.
#[test]
fn an_alias_is_linked_under_its_own_name() {
    let declared = "
.extern .func (.param .b32 r) next(.param .b32 x);
.extern .func (.param .b32 r) more(.param .b32 x);
.func (.param .b32 r) add_one(.param .b32 x) {
  .reg .b32 %r<2>; mov.u32 %r1, 7777; st.param.b32 [r], %r1; ret; }
.func (.param .b32 r) add_ten(.param .b32 x) {
  .reg .b32 %r<2>; mov.u32 %r1, 7777; st.param.b32 [r], %r1; ret; }";
    let (uses, defines) = (module(&format!("{declared}{KERNEL}")), module(FUNCTIONS));
    let [uses, defines] = [Input { name: "uses", text: &uses }, Input { name: "defines", text: &defines }];
    for inputs in [[uses, defines], [defines, uses]] {
        // Two functions of the name `add_ten`: their addresses differ.
        assert_eq!(run(&link(&inputs).unwrap()), 16);
    }
    let said = link(&[uses]).unwrap_err().to_string();
    assert!(said.contains("`next`") && said.contains("`more`"), "{said}");
    let twice = module(".visible .func (.param .b32 r) next(.param .b32 x) { ret; }");
    let said = link(&[uses, defines, Input { name: "again", text: &twice }]).unwrap_err().to_string();
    assert!(said.contains("`next` is defined in `defines` and in `again`"), "{said}");
}

#[test]
fn what_is_no_function_has_no_alias() {
    let body = ".func f() { ret; } .visible .entry e() { ret; }";
    for (text, words) in [
        (format!("{body} .alias a, f;"), &["`a`", "declaration"][..]),
        (format!("{body} .func a(); .alias a, b;"), &["`b`", "no body"]),
        (format!("{body} .func a(); .func b(); .alias a, f; .alias b, a;"), &["`a`", "no body"]),
        (format!("{body} .func a(); .alias a, e;"), &["`e` is a kernel"]),
        (format!("{body} .func a() {{ ret; }} .alias a, f;"), &["`a` is defined twice"]),
        (format!("{body} .func a(); .alias a, f; .alias a, f;"), &["`a` is defined twice"]),
        (format!("{body} .extern .func a(); .alias a, f;"), &["`a` is `.extern`"]),
        (format!("{body} .func a(.param .b32 x); .alias a, f;"), &["parameters of `a`", "`f`"]),
        (".weak .func f() { ret; } .func a(); .alias a, f;".into(), &["`f` is `.weak`"]),
        (format!("{body} .func a(); .alias a f;"), &["expected `,`"]),
    ] {
        let said = Module::parse(&module(&text)).map(|_| ()).unwrap_err().to_string();
        assert!(words.iter().all(|word| said.contains(word)) && said.contains("line 5"), "{text}: {said}");
    }
    let old = module(&format!("{body} .func a(); .alias a, f;")).replace(".version 8.7", ".version 6.2");
    let said = Module::parse(&old).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("6.3") && said.contains("6.2"), "{said}");
    let calls = ".func a(); .func f() { call a; ret; } .alias a, f; .visible .entry e() { call a; ret; }";
    let said = Module::parse(&module(calls)).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("`f` is recursive"), "{said}");
}
