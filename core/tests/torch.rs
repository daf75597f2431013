//! PyTorch files: what is read, bit for bit, and what is refused by name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/hostile_torch.rs"]
mod hostile_torch;
#[path = "support/meter.rs"]
mod meter;
#[path = "support/torch.rs"]
mod torch;

use engraft_core::checkpoint::{self, Access, Source};
use engraft_core::mem::Stored;
use hostile_torch::call;
use std::path::{Path, PathBuf};
use torch::{Pickler, Tensor, archive, floats, legacy, small, state_dict};

#[global_allocator]
static METER: meter::Meter = meter::Meter;

fn folder(name: &str, files: &[(&str, &[u8])]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("torch-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    for (file, bytes) in files.iter().chain([&("config.json", &b"{}"[..])]) {
        std::fs::write(path.join(file), bytes).unwrap();
    }
    path
}

fn values(source: &dyn Source, name: &str) -> Vec<f32> {
    let info = source.find(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(info.stored, Stored::F32);
    let bytes = source.bytes(name).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn windows_on_storages() {
    let path = folder("windows", &[("pytorch_model.bin", &small())]);
    for access in [Access::Read, Access::default()] {
        let model = checkpoint::open(&path, access).unwrap();
        let source = &*model.source;
        assert_eq!(values(source, "a"), [0., 1., 2., 3., 4., 5.]);
        assert_eq!(values(source, "a.transposed"), [0., 3., 1., 4., 2., 5.]);
        assert_eq!(values(source, "a.last"), [3., 4., 5.]);
        assert_eq!(source.find("a.transposed").unwrap().shape, [3, 2]);
        assert_eq!(source.bytes("ids").unwrap().as_ref(), [7; 16]);
        assert_eq!(source.total_bytes(), 24 + 24 + 12 + 16);
        source.release("a.transposed");
        assert_eq!(values(source, "a.transposed"), [0., 3., 1., 4., 2., 5.]);
    }
}

#[test]
fn every_stride_pattern_against_the_formula() {
    let data = floats((0..120).map(|i| i as f32));
    for (shape, strides, offset) in [
        (&[2i64, 3, 4][..], &[12i64, 4, 1][..], 0i64),
        (&[4, 3, 2], &[1, 4, 12], 0),
        (&[3, 4], &[2, 7], 5),
        (&[1, 5, 1], &[99, 2, 99], 1),
        (&[], &[], 17),
        (&[0, 4], &[4, 1], 0),
        (&[2, 2, 2, 2, 2], &[1, 2, 4, 8, 16], 3),
    ] {
        let t = Tensor { count: 120, offset, shape, strides, ..Tensor::f32("t", "0", &[1], &[1]) };
        let file = archive(&state_dict(Pickler::new(), &[t]).end(), &[("0", &data)]);
        let path = folder("strides", &[("pytorch_model.bin", &file)]);
        let model = checkpoint::open(&path, Access::Read).unwrap();
        let mut want = vec![offset];
        for (n, stride) in shape.iter().zip(strides) {
            want = want.iter().flat_map(|at| (0..*n).map(move |i| at + i * stride)).collect();
        }
        assert_eq!(
            values(&*model.source, "t"),
            want.iter().map(|i| *i as f32).collect::<Vec<_>>(),
            "{shape:?}"
        );
    }
}

#[test]
fn wrappers_shards_parameters_and_the_older_format() {
    let t = [Tensor::f32("layer.weight", "0", &[2], &[1])];
    let data = floats([1.5, -2.0]);
    // A training program's file: weights under a key, with things of other kinds next to them.
    let wrapped = Pickler::new().op(b"}(").text("iteration").int(1 << 40).text("model");
    let wrapped = state_dict(wrapped, &t).text("args").global("argparse", "Namespace").op(b")\x81}(");
    let wrapped = wrapped.text("hidden_size").int(64).op(b"ub").text("none").op(b"Nu").end();
    let path =
        folder("wrapped", &[("weights.pt", &archive(&wrapped, &[("0", &data)])), ("optimizer.pt", b"x")]);
    let model = checkpoint::open(&path, Access::Read).unwrap();
    assert_eq!(values(&*model.source, "layer.weight"), [1.5, -2.0]);

    let old = legacy(&state_dict(Pickler::new(), &t).end(), &[("0", 2, &data)]);
    let path = folder("legacy", &[("pytorch_model.bin", &old)]);
    assert_eq!(
        values(&*checkpoint::open(&path, Access::default()).unwrap().source, "layer.weight"),
        [1.5, -2.0]
    );

    // A parameter is its tensor; dictionaries nest by dots.
    let nested = Pickler::new().op(b"}").text("layer").op(b"}(").text("weight");
    let nested = nested.global("torch._utils", "_rebuild_parameter").op(b"(").tensor(&t[0]).op(b"\x88}tR");
    let nested = nested.op(b"us").end();
    let index = br#"{"weight_map":{"layer.weight":"one.bin","b":"two.bin"}}"#;
    let two = archive(&state_dict(Pickler::new(), &[Tensor { name: "b", ..t[0] }]).end(), &[("0", &data)]);
    let files: [(&str, &[u8]); 3] = [
        ("pytorch_model.bin.index.json", index),
        ("one.bin", &archive(&nested, &[("0", &data)])),
        ("two.bin", &two),
    ];
    let model = checkpoint::open(&folder("index", &files), Access::Read).unwrap();
    assert_eq!(values(&*model.source, "layer.weight"), [1.5, -2.0]);
    assert_eq!(values(&*model.source, "b"), [1.5, -2.0]);
}

fn refused(what: &str, file: &[u8], words: &[&str]) {
    // Tests run side by side.
    let place = format!("refused-{}", std::thread::current().name().unwrap_or("main"));
    let path = folder(&place, &[("pytorch_model.bin", file)]);
    let (result, peak) =
        meter::peak(|| checkpoint::open(&path, Access::Read).map(|_| ()).map_err(|e| e.to_string()));
    let message = result.err().unwrap_or_else(|| panic!("{what}: was accepted"));
    // The machine's stack may take a megabyte, and twice that while it grows.
    assert!(peak <= 2 * file.len() + (3 << 20), "{what}: {peak} bytes for a file of {}", file.len());
    assert!(message.contains("pytorch_model.bin"), "{what}: \"{message}\" does not name the file");
    for word in words {
        assert!(message.contains(word), "{what}: \"{message}\" does not say \"{word}\"");
    }
}

#[test]
fn no_code_runs() {
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("__builtin__", "exec"),
        ("subprocess", "Popen"),
        ("torch.hub", "load"),
        ("torch", "load"),
        ("torch.serialization", "load"),
        ("collections", "defaultdict"),
        ("copyreg", "_reconstructor"),
        ("torch", "ComplexFloatStorage"),
        ("torch", "QInt8Storage"),
        ("torch", "float8_e4m3fn"),
    ] {
        let file = archive(&call(module, name), &[]);
        refused(name, &file, &[&format!("`{module}.{name}`"), "not allowed", "safetensors"]);
    }
    // By the stack, and as the class of an instance.
    let stack = Pickler::new().text("os").text("system").op(&[0x93]).op(b")\x81.").0;
    refused("by stack", &archive(&stack, &[]), &["`os.system`"]);
    for (op, name) in
        [(b'i', "0x69"), (b'o', "0x6f"), (0x82, "0x82"), (0x84, "0x84"), (b'P', "0x50"), (0x92, "0x92")]
    {
        let file = archive(&Pickler::new().op(b"(").op(&[op, 1, 2, 3, 4]).end(), &[]);
        refused("an opcode that makes objects", &file, &[name, "not allowed"]);
    }
}

#[test]
fn hostile_pickles() {
    let cases = hostile_torch::pickles();
    for (what, file, words) in cases {
        refused(what, &file, words);
    }
    // Wide but flat: the same dictionary again and again is stopped by its budget, not by depth.
    let one = state_dict(Pickler::new(), &[Tensor::f32(&"n".repeat(2000), "0", &[1], &[1])]).op(b"q\0");
    let one = Pickler::new().op(b"}(").text("a").op(&one.0[2..]);
    let wide = (0..200).fold(one, |p, i| p.text(&format!("k{i}")).op(b"h\0")).op(b"u").end();
    refused("wide", &archive(&wide, &[("0", &[0; 4])]), &["unfold"]);
}

#[test]
fn hostile_tensors() {
    let cases = hostile_torch::tensors();
    for (what, file, words) in cases {
        refused(what, &file, words);
    }
    let t = [Tensor::f32("w", "0", &[1], &[1])];
    let pickle = state_dict(Pickler::new(), &t).end();
    refused("no storage", &archive(&pickle, &[]), &["no storage 0"]);
    refused(
        "name twice",
        &archive(&state_dict(Pickler::new(), &[t[0], t[0]]).end(), &[("0", &[0; 4])]),
        &["`w`", "twice"],
    );
    let both = state_dict(Pickler::new().op(b"}(").text("model"), &t).text("module");
    refused(
        "two wrappers",
        &archive(&state_dict(both, &t).op(b"u").end(), &[("0", &[0; 4])]),
        &["module, model"],
    );
}

#[test]
fn hostile_archives() {
    let cases = hostile_torch::archives();
    for (what, file, words) in cases {
        refused(what, &file, words);
    }
}

#[test]
fn hostile_older_files() {
    let t = [Tensor::f32("w", "0", &[2], &[1])];
    let object = state_dict(Pickler::new(), &t).end();
    let good = legacy(&object, &[("0", 2, &[0; 8])]);
    for len in 15..good.len() {
        refused("truncated", &good[..len], &["truncated"]);
    }
    for (what, file, words) in hostile_torch::older() {
        refused(what, &file, words);
    }
}
