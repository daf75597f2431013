//! PyTorch files made in memory: a writer of pickles, of stored zip archives and of the older format.
#![allow(dead_code, reason = "each program that includes this uses a part of it")]

/// A pickle in the making, opcode by opcode.
#[derive(Default, Clone)]
pub struct Pickler(pub Vec<u8>);

impl Pickler {
    /// Protocol 2.
    pub fn new() -> Self {
        Self(vec![0x80, 2])
    }

    /// Bare opcodes.
    pub fn op(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn global(self, module: &str, name: &str) -> Self {
        self.op(format!("c{module}\n{name}\n").as_bytes())
    }

    pub fn text(self, text: &str) -> Self {
        self.op(b"X").op(&(text.len() as u32).to_le_bytes()).op(text.as_bytes())
    }

    /// 64 bits where 31 are too few, as Python writes them.
    pub fn int(self, n: i64) -> Self {
        match i32::try_from(n) {
            Ok(n) => self.op(b"J").op(&n.to_le_bytes()),
            Err(_) => self.op(&[0x8a, 8]).op(&n.to_le_bytes()),
        }
    }

    pub fn tuple(self, items: &[i64]) -> Self {
        items.iter().fold(self.op(b"("), |p, n| p.int(*n)).op(b"t")
    }

    /// A tensor on storage `key`.
    pub fn tensor(self, t: &Tensor) -> Self {
        self.global("torch._utils", "_rebuild_tensor_v2")
            .op(b"((")
            .text("storage")
            .global("torch", t.kind)
            .text(t.key)
            .text("cpu")
            .int(t.count)
            .op(b"tQ")
            .int(t.offset)
            .tuple(t.shape)
            .tuple(t.strides)
            .op(&[0x89])
            .global("collections", "OrderedDict")
            .op(b")RtR")
    }

    pub fn end(self) -> Vec<u8> {
        self.op(b".").0
    }
}

/// A window on a storage, in elements.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub name: &'a str,
    pub kind: &'a str,
    pub key: &'a str,
    pub count: i64,
    pub offset: i64,
    pub shape: &'a [i64],
    pub strides: &'a [i64],
}

impl<'a> Tensor<'a> {
    /// A whole f32 storage with this shape.
    pub fn f32(name: &'a str, key: &'a str, shape: &'a [i64], strides: &'a [i64]) -> Self {
        let count = shape.iter().product();
        Self { name, kind: "FloatStorage", key, count, offset: 0, shape, strides }
    }
}

/// A dictionary of tensors.
pub fn state_dict(pickler: Pickler, tensors: &[Tensor]) -> Pickler {
    tensors.iter().fold(pickler.op(b"}("), |p, t| p.text(t.name).tensor(t)).op(b"u")
}

/// An archive of stored members; the checksums, which are not read, are left out.
pub fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in members {
        let at = out.len() as u32;
        let size = (data.len() as u32).to_le_bytes();
        let names = (name.len() as u16).to_le_bytes();
        out.extend_from_slice(b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0");
        out.extend([size, size].concat());
        // An extra field pads the local header, as torch does to align storages.
        out.extend([names, 6u16.to_le_bytes()].concat());
        out.extend(name.as_bytes());
        out.extend([b'F', b'B', 2, 0, 0, 0]);
        out.extend_from_slice(data);
        directory.extend_from_slice(b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0");
        directory.extend([size, size].concat());
        directory.extend(names);
        directory.extend([0; 12]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, size) = (out.len() as u32, directory.len() as u32);
    let count = (members.len() as u16).to_le_bytes();
    out.extend(directory);
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    out.extend([count, count].concat());
    out.extend([size.to_le_bytes(), start.to_le_bytes()].concat());
    out.extend([0, 0]);
    out
}

/// An archive as `torch.save` writes it.
pub fn archive(pickle: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    let names: Vec<String> = storages.iter().map(|(key, _)| format!("archive/data/{key}")).collect();
    let mut members: Vec<(&str, &[u8])> =
        vec![("archive/data.pkl", pickle), ("archive/byteorder", b"little")];
    members.extend(names.iter().zip(storages).map(|(name, (_, data))| (name.as_str(), *data)));
    zip(&members)
}

/// The format before version 1.6; storages come with their element counts.
pub fn legacy(object: &[u8], storages: &[(&str, i64, &[u8])]) -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    let mut out = magic.to_vec();
    out.extend(Pickler::new().int(1001).end());
    out.extend(Pickler::new().op(b"}(").text("little_endian").op(&[0x88]).op(b"u").end());
    out.extend_from_slice(object);
    let keys = storages.iter().fold(Pickler::new().op(b"]("), |p, (key, ..)| p.text(key)).op(b"e");
    out.extend(keys.end());
    for (_, count, data) in storages {
        out.extend(count.to_le_bytes());
        out.extend_from_slice(data);
    }
    out
}

/// Little-endian f32.
pub fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Contiguous, transposed, offset and shared tensors of two types.
pub fn small() -> Vec<u8> {
    let tensors = [
        Tensor::f32("a", "0", &[2, 3], &[3, 1]),
        Tensor { shape: &[3, 2], strides: &[1, 3], ..Tensor::f32("a.transposed", "0", &[2, 3], &[3, 1]) },
        Tensor { offset: 3, shape: &[3], strides: &[1], ..Tensor::f32("a.last", "0", &[2, 3], &[3, 1]) },
        Tensor { kind: "LongStorage", ..Tensor::f32("ids", "1", &[2], &[1]) },
    ];
    let pickle = state_dict(Pickler::new(), &tensors).end();
    archive(&pickle, &[("0", &floats((0..6).map(|i| i as f32))), ("1", &[7; 16])])
}
