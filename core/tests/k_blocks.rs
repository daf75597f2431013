//! K-quants against ggml's own Python package: `fixtures/k_blocks.safetensors` holds random blocks and what
//! `gguf.quants.dequantize` (gguf 0.19.0) makes of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engraft_core::checkpoint::gguf::{parse, write::Writer};
use engraft_core::checkpoint::{TokenizerFiles, open_bytes};
use engraft_core::mem::{Block, Stored};
use engraft_core::quant::{block, plain};

const FILE: &[u8] = include_bytes!("fixtures/k_blocks.safetensors");
const FORMATS: [Block; 5] = [Block::Q2K, Block::Q3K, Block::Q4K, Block::Q5K, Block::Q6K];

#[test]
fn decoded_as_ggml_does() {
    let tokenizer = TokenizerFiles::from_bytes(None, None, None).unwrap();
    let model = open_bytes(b"{}", None, FILE.into(), tokenizer).unwrap();
    for format in FORMATS {
        let name = format.name();
        let blocks = model.source.bytes(&format!("{name}.blocks")).unwrap();
        let bytes = model.source.bytes(&format!("{name}.values")).unwrap();
        let mut want = vec![0.0; bytes.len() / 4];
        plain::to_f32(Stored::F32, &bytes, &mut want).unwrap();
        let mut got = vec![f32::NAN; want.len()];
        block::decode(format, &blocks, &mut got);
        assert_eq!(got.len(), 768);
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            // ggml's Python rounds `d s q` in another order where a minimum follows: half a unit of the
            // larger term.
            let near = (g - w).abs() <= w.abs().max(g.abs()).max(1e-3) * 1e-6;
            assert!(near, "{name} value {i}: {g}, ggml has {w}");
        }
    }
}

#[test]
fn read_from_a_gguf_file() {
    let mut file = Writer::new();
    for format in FORMATS {
        file = file
            .tensor(format.name(), &[2, 256], Stored::Block(format), &vec![0x11; 2 * format.bytes()])
            .unwrap();
    }
    let header = parse("k.gguf", &file.finish()).unwrap();
    for (tensor, format) in header.tensors.iter().zip(FORMATS) {
        assert_eq!(
            (tensor.info.stored, tensor.info.shape.as_slice()),
            (Stored::Block(format), &[2, 256][..])
        );
        assert_eq!(tensor.end - tensor.start, 2 * format.bytes() as u64);
    }
}
