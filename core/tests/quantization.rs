//! What a format costs and loses on normal weights: the table of docs/quantization.md. Blocks of 256 values
//! next to llama.cpp's: `fixtures/k_searched.safetensors` has what its `ggml_quantize_chunk` (without an
//! importance matrix) makes of the first row.
#![allow(clippy::unwrap_used, clippy::panic)]

use engraft_core::checkpoint::{TokenizerFiles, open_bytes};
use engraft_core::mem::{Block, WeightFormat};
use engraft_core::quant::{decode_rows, encode_rows};

const ROWS: usize = 16;
const COLS: usize = 4096;

/// Values of a standard normal distribution, by Box and Muller, and of splitmix64.
fn normal() -> Vec<f32> {
    let mut state = 7u64;
    let mut uniform = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ z >> 31) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let value = || {
        let (radius, turn) = ((-2.0 * uniform().ln()).sqrt(), uniform());
        (radius * (turn * std::f64::consts::TAU).cos()) as f32
    };
    std::iter::repeat_with(value).take(ROWS * COLS).collect()
}

/// Bits per weight, and the root-mean-square error relative to that of the weights, in percent.
fn measured(format: WeightFormat, values: &[f32]) -> (f64, f64) {
    let mut bytes = vec![0; format.bytes(ROWS, COLS)];
    encode_rows(format, COLS, values, &mut bytes);
    (8.0 * bytes.len() as f64 / values.len() as f64, error(format, &bytes, values))
}

/// The root-mean-square error of packed rows relative to the values that they were made of, in percent.
fn error(format: WeightFormat, bytes: &[u8], values: &[f32]) -> f64 {
    let mut got = vec![f32::NAN; values.len()];
    assert!(decode_rows(format, COLS, bytes, &mut got).is_ok());
    let sum = |of: &dyn Fn(usize) -> f32| (0..got.len()).map(|i| f64::from(of(i)).powi(2)).sum::<f64>();
    100.0 * (sum(&|i| got[i] - values[i]) / sum(&|i| values[i])).sqrt()
}

/// The rows of the table, as the document has them.
fn documented() -> Vec<(String, f64, f64)> {
    let text = include_str!("../../docs/quantization.md");
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_owned(), cells.get(2)?.parse().ok()?, cells.get(3)?.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn the_documents_table_is_what_is_measured() {
    let (values, rows) = (normal(), documented());
    let mut wrong = Vec::new();
    for (name, bits, error) in &rows {
        let format: WeightFormat = match name.parse() {
            Ok(format) => format,
            Err(error) => panic!("{name}: {error}"),
        };
        let (got_bits, got_error) = measured(format, &values);
        if (got_bits - bits).abs() > 0.005 || (got_error - error).abs() > 0.02 * error + 0.0005 {
            wrong.push(format!("| `{name}` | {got_bits:.2} | {got_error:.3} |"));
        }
    }
    assert!(wrong.is_empty(), "measured:\n{}", wrong.join("\n"));
    assert!(rows.len() >= 16, "{} rows", rows.len());
}

#[test]
fn a_search_for_scales_is_as_good_as_llama_cpps() {
    const FILE: &[u8] = include_bytes!("fixtures/k_searched.safetensors");
    let tokenizer = TokenizerFiles::from_bytes(None, None, None).unwrap();
    let file = open_bytes(b"{}", None, FILE.into(), tokenizer).unwrap();
    let row = &normal()[..COLS];
    for block in Block::ALL.into_iter().filter(|block| block.is_large()) {
        let format = WeightFormat::Block(block);
        let mut own = vec![0; format.bytes(1, COLS)];
        encode_rows(format, COLS, row, &mut own);
        let theirs = file.source.bytes(block.name()).unwrap();
        let [own, theirs] = [&own[..], &theirs[..]].map(|bytes| error(format, bytes, row));
        println!("{format}: {own:.3} %, llama.cpp {theirs:.3} %");
        assert!(own <= 1.005 * theirs, "{format}: {own} %, llama.cpp {theirs} %");
    }
}
