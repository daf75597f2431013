use super::*;
use crate::{Instance, Launch, Memory, Module, Options};
use std::sync::Arc;

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

fn linked(texts: &[(&str, &str)]) -> Result<String, Error> {
    let whole: Vec<String> = texts.iter().map(|(_, text)| format!("{HEAD}{text}")).collect();
    let inputs: Vec<Input<'_>> =
        texts.iter().zip(&whole).map(|((name, _), text)| Input { name, text }).collect();
    link(&inputs)
}

/// What kernel `k` writes into its first word.
fn run(text: &str) -> u32 {
    let module = Module::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory = Memory::new();
    let instance = Instance::load(Arc::new(module), &mut memory, 0).unwrap();
    let out = memory.allocate(0, 4).unwrap();
    let launch = Launch::new([1; 3], [1; 3]).with_params(out.to_le_bytes().to_vec());
    crate::launch(&instance, "k", &launch, &mut memory, &Options::default()).unwrap();
    let mut bytes = [0; 4];
    memory.read(out, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

/// A kernel that writes `f(own) + shared_number`, with names of its own that others have too.
const MAIN: &str = "
.file 1 \"main.cu\"
.extern .func (.param .b32 r) f(.param .b32 x);
.extern .func (.param .b32 r) unused(.param .b32 x);
.extern .global .align 4 .u32 shared_number;
.global .align 4 .u32 own = 5;
.func (.param .b32 r) helper() { .reg .b32 %r<2>; mov.u32 %r1, 1000; st.param.b32 [r], %r1; ret; }
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<6>; .reg .b64 %rd<3>; .param .b32 x; .param .b32 r; ld.param.u64 %rd1, [out];
  .loc 1 7 0
  ld.global.u32 %r1, [own]; st.param.b32 [x], %r1; call (r), f, (x); ld.param.u32 %r2, [r];
  call (r), helper; ld.param.u32 %r3, [r]; add.u32 %r2, %r2, %r3; ld.global.u32 %r3, [shared_number];
  add.u32 %r2, %r2, %r3; st.global.u32 [%rd1], %r2; ret; }";

/// `f(x) = helper() + 2 own`, where `own` and `helper` are its own.
const OTHER: &str = "
.file 1 \"other.cu\"
.file 2 \"header.h\"
.global .align 4 .u32 own = 30;
.visible .global .align 4 .u32 shared_number = 20000;
.func (.param .b32 r) helper();
.visible .func (.param .b32 r) f(.param .b32 x) {
  .reg .b32 %r<4>; .param .b32 h;
  .loc 2 9 0, function_name $L__info, inlined_at 1 4 2
  call (h), helper; ld.param.u32 %r1, [h]; ld.global.u32 %r2, [own]; ld.param.u32 %r3, [x];
  add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; st.param.b32 [r], %r1; ret; }
.func (.param .b32 r) helper() { .reg .b32 %r<2>; mov.u32 %r1, 100; st.param.b32 [r], %r1; ret; }";

#[test]
fn names_are_bound_and_what_is_local_stays_apart() {
    for texts in [[("main", MAIN), ("other", OTHER)], [("other", OTHER), ("main", MAIN)]] {
        let text = linked(&texts).unwrap();
        assert_eq!(run(&text), 5 + 100 + 30 + 1000 + 20000, "{text}");
        assert!(!text.contains("unused"), "{text}");
        // Lines of the source keep their files.
        let numbers = if texts[0].0 == "main" { (1, 3, 2) } else { (3, 2, 1) };
        assert!(text.contains(&format!(".loc {} 7 0", numbers.0)), "{text}");
        assert!(text.contains(&format!(".loc {} 9 0", numbers.1)), "{text}");
        assert!(text.contains(&format!("inlined_at {} 4 2", numbers.2)), "{text}");
        for (number, name) in [(numbers.0, "main.cu"), (numbers.1, "header.h"), (numbers.2, "other.cu")] {
            assert!(text.contains(&format!(".file {number} \"{name}\"")), "{text}");
        }
    }
}

#[test]
fn weak_and_common_definitions_are_kept_once() {
    let weak = |n: u32| {
        format!(
            ".weak .func (.param .b32 r) f(.param .b32 x) {{ .reg .b32 %r<2>; mov.u32 %r1, {n}; st.param.b32 [r], %r1; ret; }}"
        )
    };
    let number = |bytes: u32| format!(".common .global .align 4 .b8 shared_number[{bytes}];");
    let (one, two) = (weak(1) + &number(4), weak(2) + &number(400));
    let main = MAIN.replace(".align 4 .u32 shared_number", ".align 4 .b8 shared_number[]");
    let text = linked(&[("main", &main), ("one", &one), ("two", &two)]).unwrap();
    assert_eq!(run(&text), 1 + 1000, "{text}");
    assert!(text.contains("shared_number[400]") && !text.contains("shared_number[4]"), "{text}");
    let strong = weak(7).replace(".weak", ".visible");
    let text = linked(&[("main", &main), ("one", &one), ("strong", &strong)]).unwrap();
    assert_eq!(run(&text), 7 + 1000);
}

#[test]
fn dynamic_shared_memory_is_declared_once_with_the_largest_alignment() {
    let uses = |align: u32, f: &str| {
        format!(
            ".extern .shared .align {align} .b8 s[]; .visible .func {f}() {{ .reg .b32 %r<2>; mov.u32 %r1, s; ret; }}"
        )
    };
    let text = linked(&[("a", &uses(4, "f")), ("b", &uses(16, "g")), ("c", &uses(8, "h"))]).unwrap();
    assert_eq!(text.matches(".extern .shared").count(), 1);
    assert!(text.contains(".align 16 .b8 s[]"), "{text}");
}

#[test]
fn what_does_not_fit_is_named() {
    let twice = OTHER.replace(".visible .global .align 4 .u32 shared_number = 20000;", "");
    let wider =
        OTHER.replace("(.param .b32 x)", "(.param .b64 x)").replace("ld.param.u32 %r3", "ld.param.b32 %r3");
    let larger = OTHER.replace(".u32 shared_number", ".u64 shared_number");
    for (texts, words) in [
        (vec![("main", MAIN)], &["`f`", "`shared_number`", "`main`", "no text"][..]),
        (vec![("main", MAIN), ("a", OTHER), ("b", &twice)], &["`f` is defined in `a` and in `b`"]),
        (vec![("main", MAIN), ("b", &wider)], &["`f`", "(4) bytes", "(8) bytes", "`main`", "`b`"]),
        (vec![("main", MAIN), ("b", &larger)], &["`shared_number`", "4 bytes", "8 bytes"]),
        (vec![("main", MAIN), ("other", OTHER), ("again", MAIN)], &["`k`", "`again`"]),
        (vec![("main", MAIN), ("broken", ".visible .func (")], &["`broken`", "line 4"]),
    ] {
        let said = linked(&texts).unwrap_err().to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    assert_eq!(undefined(&format!("{HEAD}{MAIN}")).unwrap(), ["shared_number", "f"]);
    assert_eq!(undefined(&format!("{HEAD}{OTHER}")).unwrap(), [""; 0]);
    let own = format!("{HEAD}.visible .func a() {{ ret; }}").replace("sm_80", "sm_90a");
    let new = format!("{HEAD}.visible .func b() {{ ret; }}").replace("sm_80", "sm_100");
    let said = link(&[Input { name: "own", text: &own }, Input { name: "new", text: &new }]).unwrap_err();
    assert!(said.to_string().contains("sm_90a"), "{said}");
}

/// Registers are bounded where the text does not do so itself, and no line moves.
#[test]
fn registers_are_bounded_by_an_option() {
    let own = ".visible .entry own()\n.maxnreg 20\n{ ret; }\n.visible .entry block() .maxntid 32 { ret; }";
    let text = format!("{HEAD}{MAIN}\n{own}");
    let limited = limit_registers(&text, 38).unwrap();
    assert_eq!(limited.replace(".maxnreg 38 ", ""), text);
    let module =
        Module::parse(&limit_registers(&format!("{HEAD}{own}\n.entry k()\n{{ ret; }}"), 38).unwrap());
    let most = |name: &str| module.as_ref().unwrap().kernel(name).unwrap().max_registers;
    assert_eq!([most("own"), most("block"), most("k")], [Some(20), None, Some(38)]);
    assert!(limit_registers(&format!("{HEAD}.visible .entry k("), 38).is_err());
}

/// A text that needs nothing stays as it is, so that lines in messages are its own.
#[test]
fn one_text_stays_as_it_is() {
    let text = format!("{HEAD}// a comment\n{OTHER}");
    assert_eq!(link(&[Input { name: "a", text: &text }]).unwrap(), text);
}

/// Several variables of one declaration are one text, which is kept or left out as a whole.
#[test]
fn variables_are_declared_together() {
    let pair = ".visible .global .u32 shared_number = 20000, other_number = 7;";
    let texts = |pair: &str| OTHER.replace(".visible .global .align 4 .u32 shared_number = 20000;", pair);
    let text = linked(&[("main", MAIN), ("other", &texts(pair))]).unwrap();
    assert_eq!(run(&text), 5 + 100 + 30 + 1000 + 20000, "{text}");
    assert_eq!(text.matches("other_number").count(), 1, "{text}");
    // Names that a text keeps to itself are renamed there, too.
    let own = OTHER.replace(".global .align 4 .u32 own = 30;", ".global .u32 own = 30, more = 1;");
    assert_eq!(run(&linked(&[("main", MAIN), ("other", &own)]).unwrap()), 5 + 100 + 30 + 1000 + 20000);
    // Of common variables the largest is kept: one of these, and not the other.
    let common = |a: u32, b: u32| format!(".common .global .align 4 .b8 a[{a}], b[{b}];");
    assert!(linked(&[("x", &common(4, 8)), ("y", &common(2, 4))]).unwrap().contains("a[4], b[8]"));
    let said = linked(&[("x", &common(4, 2)), ("y", &common(2, 4))]).unwrap_err().to_string();
    assert!(said.contains("several variables") && said.contains("`x`"), "{said}");
    assert!(
        linked(&[("x", ".global .u32 1st;"), ("y", "")]).unwrap_err().to_string().contains("expected a name")
    );
}

/// What nothing uses is wanted by nobody, however often it is declared: to compare each declaration with each
/// pair of others would take minutes here, where a pass takes milliseconds.
#[test]
fn declarations_without_use_cost_a_pass() {
    let declared = format!("{HEAD}{}", ".extern .func f();\n".repeat(8_000));
    let inputs = [Input { name: "a", text: &declared }, Input { name: "b", text: HEAD }];
    let start = std::time::Instant::now();
    assert!(!link(&inputs).unwrap().contains("func"));
    assert_eq!(undefined(&declared).unwrap(), [""; 0]);
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
}
