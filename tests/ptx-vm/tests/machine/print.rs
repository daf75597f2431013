//! `printf` in kernels that `nvcc` has compiled: the text, its order, the number of arguments, the buffer.

use ptx_vm::{FaultKind, Options};

use crate::harness::{Arg, Bench, module, schedules};

const PTX: &str = include_str!("../nvcc/printf.ptx");

fn hello(options: &Options) -> (String, Vec<i32>) {
    let mut b = Bench::new(PTX);
    let (taken, word) = (b.empty(8 * 4), b.upload(b"sums\0"));
    let launch = b.launch("hello", [2, 1, 1], [4, 1, 1], &[Arg::U64(taken), Arg::U64(word), Arg::F32(0.25)]);
    b.run("hello", &launch, options).unwrap();
    let said = String::from_utf8(b.memory.take_printed()).unwrap();
    assert!(b.memory.take_printed().is_empty(), "it is taken once");
    (said, b.download(taken, 8))
}

fn line(i: i64) -> String {
    let pointer = if i == 0 { "(nil)".into() } else { format!("{i:#x}") };
    let letter = char::from(b'a' + i as u8);
    format!("{i} {:5.2}|sums  |{letter} {} {pointer}\n", 0.25 * i as f64, i << 40)
}

#[test]
fn every_thread_prints_in_the_order_of_its_program() {
    let mut wanted: Vec<String> = (0..8).map(line).collect();
    wanted.sort();
    for options in schedules(5) {
        for threads in [1, 4] {
            let (said, taken) = hello(&Options { threads, ..options });
            assert_eq!(taken, [6; 8]);
            let (odd, mut lines): (Vec<&str>, Vec<&str>) =
                said.split_inclusive('\n').partition(|l| *l == "odd\n");
            lines.sort_unstable();
            assert_eq!((odd.len(), lines), (4, wanted.iter().map(|l| &l[..]).collect()), "{options:?}");
            // The same on every run, however many threads there are.
            assert_eq!(said, hello(&options).0);
        }
    }
    let (said, _) = hello(&Options::default());
    assert!(said.starts_with(&(line(0) + &line(1) + &line(2) + &line(3) + "odd\nodd\n")), "{said}");
}

#[test]
fn a_full_buffer_loses_its_oldest_calls() {
    let whole = hello(&Options::default()).0;
    let (said, taken) = hello(&Options { print_bytes: 100, ..Options::default() });
    assert!(said.len() <= 100 && said.len() > 60 && whole.ends_with(&said), "{said}");
    assert_eq!(taken, [6; 8], "the kernel does not see it");
}

#[test]
fn without_a_format_and_with_a_bad_one() {
    let mut b = Bench::new(PTX);
    let taken = b.empty(4);
    for (format, want) in [(0, -1), (b.upload(b"%d%%\n\0"), 1), (b.upload(b"no argument\0"), 0)] {
        let launch = b.launch("no_format", [1; 3], [1; 3], &[Arg::U64(taken), Arg::U64(format)]);
        b.run("no_format", &launch, &Options::default()).unwrap();
        assert_eq!(b.download::<i32>(taken, 1), [want]);
    }
    assert_eq!(b.memory.take_printed(), b"1%\nno argument");
    // No end, and a string at the address that the number 1 is.
    for text in [&b"endless"[..], b"%s\0"] {
        let format = b.upload(text);
        let launch = b.launch("no_format", [1; 3], [1; 3], &[Arg::U64(taken), Arg::U64(format)]);
        let fault = b.run("no_format", &launch, &Options::default()).unwrap_err();
        assert!(fault.kind == FaultKind::OutOfBounds && fault.text.contains("vprintf"), "{fault}");
    }
}

#[test]
fn a_call_of_another_shape_is_refused() {
    let text = module(
        ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
         .visible .entry k() { .param .b64 p; call vprintf, (p); ret; }",
    );
    let said = ptx_vm::Module::parse(&text).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("vprintf") && said.contains("format"), "{said}");
}
