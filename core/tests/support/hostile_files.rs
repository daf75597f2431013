//! Files of tensors that mean ill, with words of their refusals: for tests of the readers and as seeds of the
//! fuzzer.
#![allow(dead_code, reason = "each program that includes this uses a part of it")]

use crate::samples::safetensors as file;
use engraft_core::checkpoint::gguf::{Array, Numbers, Strings, Value, write::Writer};

/// What it is, the file, and words that its refusal has.
pub type Case = (&'static str, Vec<u8>, &'static [&'static str]);

fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

fn one(dtype: &str, shape: &str, offsets: &str, data: usize) -> Vec<u8> {
    file(&format!("{{{}}}", entry("w", dtype, shape, offsets)), &vec![0; data])
}

/// Headers of safetensors.
pub fn safetensors() -> Vec<Case> {
    let two = |b: &str| file(&format!("{{{},{b}}}", entry("a", "F32", "[2]", "[0,8]")), &[0; 12]);
    let huge = |n: u64| [&n.to_le_bytes()[..], b"{}"].concat();
    let max = usize::MAX;
    vec![
        ("empty file", vec![], &["0 bytes", "at least 8"]),
        ("seven bytes", vec![1; 7], &["7 bytes"]),
        ("header length 2^64 - 1", huge(u64::MAX), &["header length", "18446744073709551615"]),
        ("header length 2^63", huge(1 << 63), &["header length"]),
        ("header length of the limit", huge(100_000_000), &["100000000", "truncated"]),
        ("header one too long", huge(3), &["header length is 3", "only 2"]),
        ("header of no bytes", file("", &[]), &["header is not valid"]),
        ("not UTF-8", [&2u64.to_le_bytes()[..], &[b'{', 0xff]].concat(), &["not UTF-8", "byte 9"]),
        ("not JSON", file("{\"a\":", &[]), &["header is not valid"]),
        ("a list", file("[]", &[]), &["header is not valid", "object"]),
        ("deep nesting", file(&format!("{{\"w\":{}", "[".repeat(50_000)), &[]), &["`w`"]),
        (
            "deep metadata",
            file(&format!("{{\"__metadata__\":{}", "[".repeat(50_000)), &[]),
            &["header is not valid"],
        ),
        ("name twice", two(&entry("a", "F32", "[1]", "[8,12]")), &["`a`", "twice"]),
        ("overlap", two(&entry("b", "F32", "[2]", "[4,12]")), &["`b`", "overlap", "`a`"]),
        ("same bytes", two(&entry("b", "F32", "[2]", "[0,8]")), &["overlap"]),
        ("hole", two(&entry("b", "U8", "[2]", "[10,12]")), &["`b`", "belong to no tensor"]),
        ("trailing bytes", one("F32", "[2]", "[0,8]", 9), &["tensors end", "the file has"]),
        ("beyond the file", one("F32", "[2]", "[0,8]", 7), &["`w`", "[0, 8]", "7 bytes"]),
        (
            "far beyond",
            one("F32", "[2]", "[18446744073709551600,18446744073709551608]", 8),
            &["`w`", "data_offsets"],
        ),
        ("backwards", one("F32", "[2]", "[8,0]", 8), &["`w`", "[8, 0]"]),
        ("negative offset", one("F32", "[2]", "[-8,0]", 8), &["`w`", "-8"]),
        ("three offsets", one("F32", "[2]", "[0,8,16]", 8), &["`w`"]),
        (
            "shape overflow",
            one("F32", "[4294967296,4294967296,4294967296]", "[0,8]", 8),
            &["`w`", "overflows"],
        ),
        ("size overflow", one("F32", &format!("[{max}]"), "[0,8]", 8), &["`w`", "overflows"]),
        ("dimension beyond usize", one("F32", "[18446744073709551616]", "[0,8]", 8), &["`w`"]),
        ("negative dimension", one("F32", "[-2]", "[0,8]", 8), &["`w`", "-2"]),
        ("fraction", one("F32", "[2.5]", "[0,8]", 8), &["`w`", "2.5"]),
        ("rank 10", one("U8", "[1,1,1,1,1,1,1,1,1,8]", "[0,8]", 8), &["`w`", "8 dimensions"]),
        (
            "a million dimensions",
            one("U8", &format!("[{}1]", "1,".repeat(999_999)), "[0,8]", 8),
            &["dimensions"],
        ),
        ("unknown dtype", one("F31", "[2]", "[0,8]", 8), &["`w`", "F31"]),
        (
            "unsupported dtype",
            one("F8_E8M0", "[8]", "[0,8]", 8),
            &["`w`", "F8_E8M0", "F8_E4M3, F8_E5M2, I64"],
        ),
        ("dtype that lies", one("F64", "[2]", "[0,8]", 8), &["`w`", "needs 16 bytes", "hold 8"]),
        ("empty shape that lies", one("F32", "[0]", "[0,8]", 8), &["`w`", "needs 0 bytes"]),
        ("shape missing", file(r#"{"w":{"dtype":"F32","data_offsets":[0,8]}}"#, &[0; 8]), &["`w`", "shape"]),
        ("entry is null", file(r#"{"w":null}"#, &[]), &["`w`"]),
    ]
}

/// The front of a GGUF file: version, tensor count, pair count, then `rest`.
fn front(version: u32, tensors: u64, pairs: u64, rest: &[&[u8]]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(version.to_le_bytes());
    out.extend(tensors.to_le_bytes());
    out.extend(pairs.to_le_bytes());
    out.extend(rest.concat());
    out
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat()
}

/// A file with one pair of key `k`.
fn pair(kind: u32, value: &[u8]) -> Vec<u8> {
    front(3, 0, 1, &[&text("k"), &kind.to_le_bytes(), value])
}

fn list(kind: u32, n: u64, rest: &[u8]) -> Vec<u8> {
    pair(9, &[&kind.to_le_bytes()[..], &n.to_le_bytes(), rest].concat())
}

fn alignment(kind: u32, value: &[u8]) -> Vec<u8> {
    front(3, 0, 1, &[&text("general.alignment"), &kind.to_le_bytes(), value])
}

/// Tensor descriptions `(name, dims, type, offset)` and `data` bytes behind them.
fn tensors(all: &[(&str, &[u64], u32, u64)], data: usize) -> Vec<u8> {
    let mut out = front(3, all.len() as u64, 0, &[]);
    for (name, dims, kind, offset) in all {
        out.extend(text(name));
        out.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(32) + data, 0);
    out
}

/// Headers of GGUF files.
pub fn gguf() -> Vec<Case> {
    let big = 1u64 << 60;
    vec![
        ("empty", vec![], &["truncated", "magic"]),
        ("other magic", b"GGML\x03\0\0\0".to_vec(), &["GGUF"]),
        ("version 1", front(1, 0, 0, &[]), &["version 1", "supported: 2 and 3"]),
        ("version 4", front(4, 0, 0, &[]), &["version 4"]),
        ("big-endian", front(3u32.swap_bytes(), 0, 0, &[]), &["big-endian"]),
        ("2^60 tensors", front(3, big, 0, &[]), &["tensor count", "1152921504606846976", "65536"]),
        ("2^60 pairs", front(3, 0, big, &[]), &["metadata count", "16384"]),
        ("more tensors than bytes", front(3, 60_000, 0, &[]), &["tensor count", "60000", "too many"]),
        ("more pairs than bytes", front(3, 0, 16_000, &[]), &["metadata count", "too many"]),
        ("2^60 byte key", front(3, 0, 1, &[&big.to_le_bytes(), &[0; 8]]), &["key", "65536"]),
        ("2^60 byte string", pair(8, &big.to_le_bytes()), &["`k`", "16777216"]),
        ("string longer than the file", pair(8, &1000u64.to_le_bytes()), &["`k`", "truncated"]),
        ("string not UTF-8", pair(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]), &["`k`", "not UTF-8"]),
        ("2^60 numbers", list(4, big, &[]), &["`k`", "16777216"]),
        ("2^60 strings", list(8, big, &[]), &["`k`", "16777216"]),
        ("more numbers than bytes", list(12, 1 << 24, &[0; 64]), &["`k`", "too many", "64 bytes"]),
        ("more strings than bytes", list(8, 1 << 20, &[0; 64]), &["`k`", "too many"]),
        ("nested list", list(9, 1, &[0; 12]), &["`k`", "list of lists"]),
        ("unknown value type", pair(13, &[0; 8]), &["`k`", "type 13"]),
        ("unknown element type", list(99, 1, &[0; 8]), &["`k`", "type 99"]),
        ("boolean 2", pair(7, &[2]), &["`k`", "boolean"]),
        ("list with boolean 2", list(7, 2, &[1, 2]), &["`k`", "boolean"]),
        (
            "key twice",
            front(3, 0, 2, &[&text("k"), &0u32.to_le_bytes(), &[1], &text("k"), &0u32.to_le_bytes(), &[1]]),
            &["`k`", "twice"],
        ),
        ("alignment 0", alignment(4, &0u32.to_le_bytes()), &["general.alignment", "0", "power of two"]),
        ("alignment 48", alignment(4, &48u32.to_le_bytes()), &["general.alignment", "48"]),
        ("alignment 2^40", alignment(10, &(1u64 << 40).to_le_bytes()), &["general.alignment"]),
        ("alignment of text", alignment(8, &text("32")), &["general.alignment"]),
        ("rank 5", tensors(&[("w", &[1; 5], 0, 0)], 64), &["`w`", "5 dimensions"]),
        ("rank 2^32 - 1", front(3, 1, 0, &[&text("w"), &[0xff; 4], &[0; 12]]), &["`w`", "4294967295"]),
        ("shape overflow", tensors(&[("w", &[1 << 32, 1 << 32], 0, 0)], 64), &["`w`", "overflow"]),
        ("block size overflow", tensors(&[("w", &[1 << 59, 31], 8, 0)], 64), &["`w`", "overflow"]),
        ("offset overflow", tensors(&[("w", &[8], 0, u64::MAX - 31)], 64), &["`w`"]),
        ("end behind 2^64", tensors(&[("w", &[64], 0, u64::MAX - 31)], 64), &["`w`", "overflow"]),
        ("offset beyond the file", tensors(&[("w", &[8], 0, 64)], 64), &["`w`", "the file has 64"]),
        ("size beyond the file", tensors(&[("w", &[17], 0, 0)], 64), &["`w`", "68", "64"]),
        ("offset not aligned", tensors(&[("w", &[1], 0, 4)], 64), &["`w`", "multiple of the alignment 32"]),
        ("overlap", tensors(&[("a", &[16], 0, 0), ("b", &[8], 0, 32)], 64), &["`b`", "overlap", "`a`"]),
        ("name twice", tensors(&[("a", &[8], 0, 0), ("a", &[8], 0, 32)], 64), &["`a`", "twice"]),
        ("K-quant of a part", tensors(&[("w", &[128], 12, 0)], 256), &["`w`", "128", "blocks of 256"]),
        ("I-quant", tensors(&[("w", &[256], 16, 0)], 256), &["`w`", "IQ2_XXS is not supported yet", "Q8_0"]),
        ("type 77", tensors(&[("w", &[8], 77, 0)], 64), &["`w`", "77"]),
        ("rows that split a block", tensors(&[("w", &[48, 2], 8, 0)], 256), &["`w`", "48", "32"]),
    ]
}

/// GGUF files whose metadata is of another type than its key asks for.
pub fn gguf_metadata() -> Vec<Case> {
    let llama = || Writer::new().text("general.architecture", "llama");
    let tokens = || Value::Array(Array::Strings(["a", "b"].into_iter().collect::<Strings>()));
    vec![
        ("no architecture", Writer::new().finish(), &["general.architecture", "missing"]),
        ("layers as text", llama().text("llama.block_count", "2").finish(), &["llama.block_count", "\"2\""]),
        (
            "negative",
            llama().pair("llama.block_count", &Value::I32(-1)).finish(),
            &["llama.block_count", "-1"],
        ),
        (
            "NaN",
            llama().pair("llama.rope.freq_base", &Value::F32(f32::NAN)).finish(),
            &["rope.freq_base", "NaN"],
        ),
        (
            "layers differ",
            llama()
                .pair(
                    "llama.attention.head_count_kv",
                    &Value::Array(Array::Numbers(Numbers::from_i32(&[1, 2]))),
                )
                .finish(),
            &["head_count_kv", "all layers"],
        ),
        ("tokens as text", llama().text("tokenizer.ggml.tokens", "a").finish(), &["tokenizer.ggml.tokens"]),
        (
            "too few scores",
            llama()
                .pair("tokenizer.ggml.tokens", &tokens())
                .pair("tokenizer.ggml.scores", &Value::Array(Array::Numbers(Numbers::from_f32(&[1.0]))))
                .finish(),
            &["scores", "1 entries", "2"],
        ),
        ("split", llama().pair("split.count", &Value::U16(3)).finish(), &["3 parts", "merge"]),
    ]
}

/// Indexes of shards.
pub fn indexes() -> Vec<(&'static str, String, &'static [&'static str])> {
    let at = |shard: &str| format!(r#"{{"weight_map":{{"w":"{shard}"}}}}"#);
    let many: Vec<String> = (0..5000).map(|i| format!(r#""t{i}":"s{i}""#)).collect();
    vec![
        ("empty", String::new(), &["not a valid index"]),
        ("no weight_map", "{}".into(), &["weight_map"]),
        ("weight_map is a list", r#"{"weight_map":[]}"#.into(), &["weight_map"]),
        ("no tensor", r#"{"weight_map":{}}"#.into(), &["no tensor"]),
        ("shard is a number", r#"{"weight_map":{"w":3}}"#.into(), &["`w`"]),
        ("tensor twice", r#"{"weight_map":{"w":"a","w":"b"}}"#.into(), &["`w`", "twice"]),
        ("parent", at("../secret.safetensors"), &["../secret.safetensors", "plain file names"]),
        ("absolute", at("/etc/passwd"), &["/etc/passwd"]),
        ("backslash", at(r"..\\secret"), &["secret"]),
        ("drive", at("c:x"), &["c:x"]),
        ("dots", at(".."), &["\"..\""]),
        ("no name", at(""), &["\"\""]),
        ("5000 shards", format!(r#"{{"weight_map":{{{}}}}}"#, many.join(",")), &["5000", "4096"]),
        ("nesting", format!(r#"{{"weight_map":{}"#, "[".repeat(10_000)), &["not a valid index"]),
    ]
}
