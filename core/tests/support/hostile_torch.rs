//! PyTorch files that mean ill, with words of their refusals: for tests of the reader and as seeds of the
//! fuzzer.
#![allow(dead_code, reason = "each program that includes this uses a part of it")]

use crate::torch::{Pickler, Tensor, archive, legacy, small, state_dict, zip};

/// What it is, the file, and words that its refusal has.
pub type Case = (&'static str, Vec<u8>, &'static [&'static str]);

pub fn call(module: &str, name: &str) -> Vec<u8> {
    Pickler::new().op(b"}").text("a").global(module, name).op(b"(").text("echo").op(b"tRs").end()
}

fn window(count: i64, offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    let t = Tensor { count, offset, shape, strides, ..Tensor::f32("w", "0", &[1], &[1]) };
    archive(&state_dict(Pickler::new(), &[t]).end(), &[("0", &[0; 64])])
}

/// Pickles that ask for much, or for nothing that there is.
pub fn pickles() -> Vec<Case> {
    let long = |op: &[u8], n: usize| archive(&Pickler::new().op(&op.repeat(n)).end(), &[]);
    let deep = (0..40).fold(Pickler::new(), |p, _| p.op(b"}").text("k")).op(b"}").op(&b"s".repeat(40)).end();
    // d1 = {a: d0, b: d0}, d2 = {a: d1, b: d1}, ...: 2^30 names.
    let laughs = (0..30u8)
        .fold(state_dict(Pickler::new(), &[Tensor::f32("x", "0", &[1], &[1])]).op(b"q\0"), |p, i| {
            p.op(b"}(").text("a").op(&[b'h', i]).text("b").op(&[b'h', i]).op(b"u").op(&[b'q', i + 1])
        });
    let circle = Pickler::new().op(b"}q\0").text("k").op(b"h\0s").end();
    let huge = [&b"\x80\x02X\xff\xff\xff\xff"[..], b"abc."].concat();
    vec![
        ("no stop", archive(b"\x80\x02}", &[]), &["truncated"]),
        ("empty", archive(b"", &[]), &["truncated"]),
        ("a list", archive(&Pickler::new().op(b"]").end(), &[]), &["no dictionary"]),
        ("no tensor", archive(&Pickler::new().op(b"}").end(), &[]), &["no tensor"]),
        ("text of 4 GB", archive(&huge, &[]), &["truncated"]),
        (
            "text of 2^63",
            archive(&[&b"\x80\x04\x8d"[..], &(1u64 << 63).to_le_bytes()].concat(), &[]),
            &["truncated"],
        ),
        ("protocol 9", archive(b"\x80\x09.", &[]), &["protocol 9"]),
        ("a hundred thousand values", long(b"N", 100_000), &["values on the stack"]),
        ("a hundred thousand lists", long(b"]0", 100_000), &["pickle"]),
        ("marks", long(b"(", 100_000), &["marks"]),
        ("pop of nothing", long(b"0", 1), &["missing"]),
        ("pop through a mark", archive(&Pickler::new().op(b"N(0.").0, &[]), &["missing"]),
        ("memo far away", archive(&Pickler::new().op(b"Nr\xff\xff\xff\x7f.").0, &[]), &["memo place"]),
        ("memo empty", archive(&Pickler::new().op(b"h\x05.").0, &[]), &["memo place 5"]),
        ("odd pairs", archive(&Pickler::new().op(b"}(NNNu.").0, &[]), &["key without a value"]),
        ("append to a number", archive(&Pickler::new().op(b"K\x01Na.").0, &[]), &["no list"]),
        ("call of a text", archive(&Pickler::new().text("x").op(b")R.").0, &[]), &["no known constructor"]),
        ("nesting", archive(&deep, &[]), &["nested"]),
        ("unfolding", archive(&laughs.end(), &[("0", &[0; 4])]), &["nested"]),
        ("circle", archive(&circle, &[]), &["nested"]),
        (
            "a name without end",
            archive(&Pickler::new().op(b"c").op(&[b'a'; 5000]).end(), &[]),
            &["does not end"],
        ),
    ]
}

/// Tensors that leave their storages.
pub fn tensors() -> Vec<Case> {
    vec![
        ("beyond the storage", window(16, 1, &[16], &[1]), &["`w`", "leaves its storage of 16"]),
        ("by strides", window(16, 0, &[2, 2], &[15, 1]), &["leaves"]),
        ("storage beyond its member", window(17, 0, &[17], &[1]), &["`w`", "64 bytes"]),
        ("storage of 2^62", window(1 << 62, 0, &[1], &[1]), &["`w`"]),
        ("expanded", window(16, 0, &[1000, 1000], &[0, 0]), &["`w`", "repeats"]),
        ("overlapping rows", window(16, 0, &[8, 8], &[1, 1]), &["repeats"]),
        ("shape overflow", window(16, 0, &[1 << 40, 1 << 40], &[0, 0]), &["overflow"]),
        ("stride overflow", window(16, 0, &[3], &[i64::MAX]), &["leaves"]),
        ("offset overflow", window(16, i64::MAX, &[1], &[1]), &["leaves"]),
        ("negative offset", window(16, -1, &[1], &[1]), &["negative"]),
        ("negative shape", window(16, 0, &[-1], &[1]), &["negative"]),
        ("negative stride", window(16, 0, &[2], &[-1]), &["negative"]),
        ("negative count", window(-16, 0, &[2], &[1]), &["-16"]),
        ("rank 9", window(16, 0, &[1; 9], &[1; 9]), &["9 dimensions"]),
        ("strides missing", window(16, 0, &[4, 4], &[1]), &["2 dimensions with 1 strides"]),
    ]
}

/// Archives that are none.
pub fn archives() -> Vec<Case> {
    let good = small();
    let put = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let end = good.len() - 22;
    let directory = u32::from_le_bytes(good[end + 16..end + 20].try_into().unwrap_or_default()) as usize;
    let big = zip(&[("archive/data.pkl", &b"}."[..]), ("archive/byteorder", b"big")]);
    let script = zip(&[("m/data.pkl", &b"}."[..]), ("m/constants.pkl", b"")]);
    vec![
        ("truncated", good[..good.len() / 2].to_vec(), &["truncated"]),
        ("end record gone", good[..end].to_vec(), &["truncated"]),
        ("no data.pkl", zip(&[("a", &b""[..])]), &["data.pkl"]),
        ("two data.pkl", zip(&[("a/data.pkl", &b""[..]), ("b/data.pkl", b"")]), &["data.pkl"]),
        ("member twice", zip(&[("a/data.pkl", &b""[..]), ("a/data.pkl", b"")]), &["two members"]),
        ("big-endian", big, &["big-endian"]),
        ("TorchScript", script, &["TorchScript"]),
        ("compressed", put(directory + 10, &[8, 0]), &["compressed", "method 8"]),
        ("encrypted", put(directory + 8, &[1, 0]), &["encrypted"]),
        ("sizes differ", put(directory + 20, &[1, 0, 0, 0]), &["sizes"]),
        ("member beyond", put(directory + 42, &[0xf0, 0xff, 0xff, 0x7f]), &["beyond the end"]),
        ("member elsewhere", put(directory + 42, &[7, 0, 0, 0]), &["no header"]),
        (
            "member too long",
            put(directory + 20, &[0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]),
            &["truncated"],
        ),
        ("zip64 without sizes", put(directory + 24, &[0xff; 4]), &["zip64"]),
        ("directory beyond", put(end + 16, &[0xff, 0xff, 0xff, 0x7f]), &["directory"]),
        ("many members", put(end + 10, &[0xff, 0xff]), &["member"]),
        ("not a directory", put(directory, &[0]), &["member 0"]),
        ("several disks", put(end + 4, &[1, 0]), &["disk"]),
        ("text", b"hello, this is no model".to_vec(), &["no PyTorch file"]),
    ]
}

/// Files of the format before version 1.6.
pub fn older() -> Vec<Case> {
    let t = [Tensor::f32("w", "0", &[2], &[1])];
    let object = state_dict(Pickler::new(), &t).end();
    vec![
        ("count beyond", legacy(&object, &[("0", i64::MAX, &[0; 8])]), &["truncated at storage 0"]),
        ("foreign storage", legacy(&object, &[("1", 2, &[0; 8])]), &["storage 1"]),
        ("too few", legacy(&object, &[("0", 1, &[0; 8])]), &["`w`"]),
        ("code", legacy(&call("os", "system"), &[]), &["`os.system`"]),
    ]
}
