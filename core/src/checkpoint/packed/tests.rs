//! Packed matrices of every kind against their formulas, and what is refused.

use super::*;
use crate::checkpoint::{TokenizerFiles, open_bytes};
use crate::mem::{Block, GroupBits, Groups, WeightFormat};
use crate::quant::{decode_rows, small_float};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;

/// Stored tensors.
#[derive(Default, Clone)]
pub(super) struct File(Vec<(String, Dtype, Vec<usize>, Vec<u8>)>);

impl File {
    pub(super) fn with(mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        self.0.retain(|tensor| tensor.0 != name);
        self.0.push((name.into(), dtype, shape.to_vec(), bytes));
        self
    }

    fn words(self, name: &str, shape: &[usize], words: impl IntoIterator<Item = u32>) -> Self {
        self.with(name, Dtype::I32, shape, words.into_iter().flat_map(u32::to_le_bytes).collect())
    }

    fn halves(self, name: &str, shape: &[usize], values: impl IntoIterator<Item = f32>) -> Self {
        let bytes = values.into_iter().flat_map(|v| f16::from_f32(v).to_le_bytes()).collect();
        self.with(name, Dtype::F16, shape, bytes)
    }

    fn floats(self, name: &str, shape: &[usize], values: impl IntoIterator<Item = f32>) -> Self {
        self.with(name, Dtype::F32, shape, values.into_iter().flat_map(f32::to_le_bytes).collect())
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.0.retain(|tensor| tensor.0 != name);
        self
    }

    pub(super) fn open(&self, said: Value) -> Result<Box<dyn Source>> {
        let views = self.0.iter().map(|(name, dtype, shape, bytes)| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let bytes = serialize(views, None).unwrap();
        let config = json!({"model_type": "llama", "quantization_config": said}).to_string();
        let files = open_bytes(config.as_bytes(), None, bytes.into(), TokenizerFiles::none())?;
        // What is unpacked is not said to be packed any more.
        assert!(files.config.get("quantization_config").is_none());
        Ok(files.source)
    }

    pub(super) fn error(&self, said: Value) -> String {
        self.open(said).map(|_| ()).unwrap_err().to_string()
    }
}

/// What a source hands out as `a.weight`.
fn weight(source: &dyn Source) -> (Stored, [usize; 2], Vec<f32>) {
    let info = source.find("a.weight").unwrap();
    let [rows, cols] = info.shape[..] else { panic!("{:?}", info.shape) };
    let format = match info.stored {
        Stored::F32 => WeightFormat::Plain(crate::mem::Float::F32),
        Stored::Block(block) => WeightFormat::Block(block),
        Stored::Group(groups, of) if of as usize == cols => WeightFormat::Group(groups),
        other => panic!("{other}"),
    };
    let mut values = vec![0.0; rows * cols];
    decode_rows(format, cols, &source.bytes("a.weight").unwrap(), &mut values).unwrap();
    (info.stored, [rows, cols], values)
}

/// Numbers that look like anything.
fn noise(i: usize) -> u32 {
    (i as u32).wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(2_246_822_519) >> 4
}

/// Codes of `bits`, so many to a word, the lowest first; `at` says where in a word each stands.
fn words(codes: &[u32], bits: u32, at: impl Fn(usize) -> usize) -> Vec<u32> {
    let word = |codes: &[u32]| {
        let shifted = codes.iter().enumerate().map(|(i, code)| code << (bits as usize * at(i)));
        shifted.fold(0, |word, code| word | code)
    };
    codes.chunks((32 / bits) as usize).map(word).collect()
}

const ROWS: usize = 72;
const COLS: usize = 96;
const GROUP: usize = 32;
const GROUPS: usize = COLS / GROUP;

/// The codes of row `r`, column `c`; zeros and scales of row `r`, group `g`.
fn code(bits: u32, r: usize, c: usize) -> u32 {
    noise(r * COLS + c) & ((1 << bits) - 1)
}
fn zero(bits: u32, r: usize, g: usize) -> u32 {
    // Never all ones: one more would carry into the next.
    noise(7 * r + 1000 * g + 5) % ((1 << bits) - 1)
}
fn scale(r: usize, g: usize) -> f32 {
    f16::from_f32((noise(3 * r + g) % 1000) as f32 / 30_000.0 + 0.001).to_f32()
}

fn gptq(bits: u32, zero: impl Fn(usize, usize) -> u32, of: Option<&dyn Fn(usize) -> usize>) -> File {
    let per = (32 / bits) as usize;
    let mut codes = vec![0; COLS / per * ROWS];
    for r in 0..ROWS {
        let row: Vec<u32> = (0..COLS).map(|c| code(bits, r, c)).collect();
        words(&row, bits, |i| i).into_iter().enumerate().for_each(|(i, word)| codes[i * ROWS + r] = word);
    }
    let zeros = (0..GROUPS).flat_map(|g| {
        let all: Vec<u32> = (0..ROWS).map(|r| zero(r, g)).collect();
        words(&all, bits, |i| i)
    });
    let file = File::default()
        .words("a.qweight", &[COLS / per, ROWS], codes)
        .words("a.qzeros", &[GROUPS, ROWS.div_ceil(per)], zeros)
        .halves("a.scales", &[GROUPS, ROWS], (0..GROUPS).flat_map(|g| (0..ROWS).map(move |r| scale(r, g))));
    match of {
        Some(of) => file.words("a.g_idx", &[COLS], (0..COLS).map(|c| of(c) as u32)),
        None => file,
    }
}

fn formula(bits: u32, zero: impl Fn(usize, usize) -> i64, of: impl Fn(usize) -> usize) -> Vec<f32> {
    let value = |r: usize, c: usize| {
        (f64::from(code(bits, r, c)) - zero(r, of(c)) as f64) * f64::from(scale(r, of(c)))
    };
    (0..ROWS).flat_map(|r| (0..COLS).map(move |c| (r, c))).map(|(r, c)| value(r, c) as f32).collect()
}

/// What is stored of a zero point minus one, where no neighbour's carry meets it.
fn wrapped(bits: u32, stored: u32) -> i64 {
    i64::from((stored + 1) % (1 << bits))
}

fn said_gptq(bits: u32) -> Value {
    json!({"quant_method": "gptq", "bits": bits})
}

#[test]
fn gptq_becomes_the_smallest_block_that_holds_its_values() {
    for (bits, fixed, want) in [
        (4, Some(7), Stored::Block(Block::Q4_0)),
        (4, None, Stored::Block(Block::Q5_0)),
        (2, None, Stored::Block(Block::Q4_0)),
        (8, Some(127), Stored::Block(Block::Q8_0)),
        (8, None, Stored::F32),
    ] {
        let zero = |r, g| fixed.unwrap_or_else(|| zero(bits, r, g));
        let source = gptq(bits, zero, None).open(said_gptq(bits)).unwrap();
        let got = weight(source.as_ref());
        // Zero points are stored minus one.
        let values = formula(bits, |r, g| wrapped(bits, zero(r, g)), |c| c / GROUP);
        assert_eq!(got, (want, [ROWS, COLS], values), "{bits} bits");
        assert_eq!(source.tensors().len(), 1);
        let f32 = want == Stored::F32;
        assert_eq!(source.notes()[0].contains("f32: no kernel"), f32, "{:?}", source.notes());
        assert!(f32 || source.notes()[0].ends_with("the same values"), "{:?}", source.notes());
    }
    let newer = json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"});
    let source = gptq(4, |r, g| zero(4, r, g), None).open(newer).unwrap();
    assert_eq!(weight(source.as_ref()).2, formula(4, |r, g| zero(4, r, g).into(), |c| c / GROUP));
}

#[test]
fn inputs_in_the_order_of_their_importance_keep_their_groups() {
    // Runs of whole blocks in another order are blocks still.
    let swapped = |c: usize| GROUPS - 1 - c / GROUP;
    let scattered = |c: usize| c * 7 % GROUPS;
    let cases: [(&dyn Fn(usize) -> usize, Stored); 2] =
        [(&swapped, Stored::Block(Block::Q5_0)), (&scattered, Stored::F32)];
    for (of, want) in cases {
        let source = gptq(4, |r, g| zero(4, r, g), Some(of)).open(said_gptq(4)).unwrap();
        let values = formula(4, |r, g| wrapped(4, zero(4, r, g)), of);
        assert_eq!(weight(source.as_ref()), (want, [ROWS, COLS], values));
    }
}

#[test]
fn zero_points_minus_one_are_so_as_whole_words() {
    // The smallest zero point borrows from its neighbour; one more gives both back.
    let wanted: Vec<u32> = (0..ROWS as u32).map(|r| r * 5 % 16).collect();
    let stored: Vec<u32> =
        words(&wanted, 4, |i| i).iter().map(|word| word.wrapping_sub(0x1111_1111)).collect();
    let all = (0..GROUPS).flat_map(|_| stored.clone());
    let file = gptq(4, |_, _| 0, None).words("a.qzeros", &[GROUPS, ROWS / 8], all);
    let got = weight(file.open(said_gptq(4)).unwrap().as_ref()).2;
    assert_eq!(got, formula(4, |r, _| wanted[r].into(), |c| c / GROUP));
}

#[test]
fn an_order_of_inputs_that_says_nothing_is_none() {
    let minus_one = (-1i32).cast_unsigned();
    for nothing in [0, minus_one] {
        let file = gptq(4, |r, g| zero(4, r, g), None).words("a.g_idx", &[COLS], vec![nothing; COLS]);
        let got = weight(file.open(said_gptq(4)).unwrap().as_ref()).2;
        assert_eq!(got, formula(4, |r, g| wrapped(4, zero(4, r, g)), |c| c / GROUP));
    }
}

#[test]
fn one_matrix_may_have_bits_of_its_own_and_a_bias_of_zeros() {
    let file = gptq(8, |_, _| 127, Some(&|c| c / GROUP)).halves("a.bias", &[ROWS], vec![0.0; ROWS]);
    let source = file.open(said_gptq(4)).unwrap();
    let values = formula(8, |_, _| 128, |c| c / GROUP);
    assert_eq!(weight(source.as_ref()), (Stored::Block(Block::Q8_0), [ROWS, COLS], values));
    assert!(source.find("a.bias").is_none());
    let biased = gptq(4, |_, _| 7, None).halves("a.bias", &[ROWS], vec![0.5; ROWS]);
    assert!(biased.open(said_gptq(4)).unwrap().find("a.bias").is_some());
}

#[test]
fn scales_of_activations_and_of_the_cache_are_left_out_and_said() {
    let file = compressed(false).floats("a.input_zero_point", &[1], [0.0]).floats("b.k_scale", &[1], [0.5]);
    let source = file.open(said_compressed()).unwrap();
    assert_eq!(source.tensors().len(), 1);
    assert!(source.notes().iter().any(|note| note.contains("1 scales of keys and values")));
}

#[test]
fn awq_takes_its_columns_apart() {
    let order = [0, 4, 1, 5, 2, 6, 3, 7];
    let codes = (0..COLS).flat_map(|c| {
        let column: Vec<u32> = (0..ROWS).map(|r| code(4, r, c)).collect();
        words(&column, 4, |i| order[i])
    });
    let zeros = (0..GROUPS).flat_map(|g| {
        let all: Vec<u32> = (0..ROWS).map(|r| zero(4, r, g)).collect();
        words(&all, 4, |i| order[i])
    });
    let scales = (0..GROUPS).flat_map(|g| (0..ROWS).map(move |r| scale(r, g)));
    let file = File::default()
        .words("a.qweight", &[COLS, ROWS / 8], codes)
        .words("a.qzeros", &[GROUPS, ROWS / 8], zeros)
        .halves("a.scales", &[GROUPS, ROWS], scales);
    let source = file.open(json!({"quant_method": "awq", "bits": 4, "version": "gemm"})).unwrap();
    let values = formula(4, |r, g| zero(4, r, g).into(), |c| c / GROUP);
    assert_eq!(weight(source.as_ref()), (Stored::Block(Block::Q5_0), [ROWS, COLS], values));
}

fn compressed(zeros: bool) -> File {
    let codes = (0..ROWS).flat_map(|r| {
        let row: Vec<u32> = (0..COLS).map(|c| code(4, r, c)).collect();
        words(&row, 4, |i| i)
    });
    let scales = (0..ROWS).flat_map(|r| (0..GROUPS).map(move |g| scale(r, g)));
    let shape = [ROWS as i64, COLS as i64].into_iter().flat_map(i64::to_le_bytes).collect();
    let file = File::default()
        .words("a.weight_packed", &[ROWS, COLS / 8], codes)
        .halves("a.weight_scale", &[ROWS, GROUPS], scales)
        .with("a.weight_shape", Dtype::I64, &[2], shape);
    let words = (0..ROWS / 8).flat_map(|i| {
        (0..GROUPS).flat_map(move |g| {
            let all: Vec<u32> = (0..8).map(|r| zero(4, 8 * i + r, g)).collect();
            words(&all, 4, |i| i)
        })
    });
    if zeros { file.words("a.weight_zero_point", &[ROWS / 8, GROUPS], words) } else { file }
}

fn said_compressed() -> Value {
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized"})
}

#[test]
fn compressed_tensors_have_zeros_of_their_own_or_the_middle() {
    let source = compressed(false).open(said_compressed()).unwrap();
    let values = formula(4, |_, _| 8, |c| c / GROUP);
    assert_eq!(weight(source.as_ref()), (Stored::Block(Block::Q4_0), [ROWS, COLS], values));
    let source = compressed(true).open(said_compressed()).unwrap();
    let values = formula(4, |r, g| zero(4, r, g).into(), |c| c / GROUP);
    assert_eq!(weight(source.as_ref()), (Stored::Block(Block::Q5_0), [ROWS, COLS], values));
}

#[test]
fn scales_that_f16_does_not_hold_are_kept_in_f32() {
    let scales: Vec<f32> = (0..ROWS * GROUPS).map(|i| 0.1 + i as f32 * 1e-7).collect();
    let file = compressed(false).floats("a.weight_scale", &[ROWS, GROUPS], scales.clone());
    let source = file.open(said_compressed()).unwrap();
    let (stored, _, got) = weight(source.as_ref());
    assert_eq!(stored, Stored::F32);
    for (i, got) in got.iter().enumerate() {
        let (r, c) = (i / COLS, i % COLS);
        assert_eq!(*got, (code(4, r, c) as f32 - 8.0) * scales[r * GROUPS + c / GROUP]);
    }
}

#[test]
fn bytes_have_a_scale_of_every_row() {
    let byte = |r: usize, c: usize| code(8, r, c) as u8;
    let bytes = (0..ROWS).flat_map(|r| (0..COLS).map(move |c| byte(r, c))).collect();
    let file = File::default().with("a.weight", Dtype::I8, &[ROWS, COLS], bytes).halves(
        "a.weight_scale",
        &[ROWS, 1],
        (0..ROWS).map(|r| scale(r, 0)),
    );
    let source = file.open(said_compressed()).unwrap();
    let (stored, _, got) = weight(source.as_ref());
    assert_eq!(stored, Stored::Block(Block::Q8_0));
    for (i, got) in got.iter().enumerate() {
        let (r, c) = (i / COLS, i % COLS);
        assert_eq!(*got, f32::from(byte(r, c) as i8) * scale(r, 0));
    }
}

#[test]
fn eight_bit_floats_have_factors_of_blocks_rows_or_all() {
    let byte = |r: usize, c: usize| (code(8, r, c) as u8) & 0xbf;
    let bytes: Vec<u8> = (0..ROWS).flat_map(|r| (0..COLS).map(move |c| byte(r, c))).collect();
    let file = || File::default().with("a.weight", Dtype::F8_E4M3, &[ROWS, COLS], bytes.clone());
    // Blocks of 32 x 40: the last ones are smaller.
    let said = |block: Value| json!({"quant_method": "fp8", "weight_block_size": block});
    type Factor = fn(usize, usize) -> f32;
    let group = |size| Stored::Group(Groups::floats(GroupBits::E4m3, size), COLS as u32);
    let cases: [(File, Value, Stored, Factor); 5] = [
        (
            file().floats("a.weight_scale_inv", &[3, 3], (0..9).map(|i| 0.5 + i as f32)),
            said(json!([32, 40])),
            // No kernel has groups of 40.
            Stored::F32,
            |r, c| 0.5 + (r / 32 * 3 + c / 40) as f32,
        ),
        (
            file().halves("a.weight_scale", &[ROWS, 1], (0..ROWS).map(|r| scale(r, 1))),
            said_compressed(),
            group(0),
            |r, _| scale(r, 1),
        ),
        (
            file().floats("a.weight_scale_inv", &[5, 2], (0..10).map(|i| 0.5 - i as f32)),
            said(json!([16, 64])),
            group(64),
            |r, c| 0.5 - (r / 16 * 2 + c / 64) as f32,
        ),
        (file().floats("a.weight_scale", &[1], [0.75]), said(Value::Null), group(0), |_, _| 0.75),
        // Beyond the scales that groups have.
        (file().floats("a.weight_scale", &[1], [1e-35]), said(Value::Null), Stored::F32, |_, _| 1e-35),
    ];
    for (file, said, want, factor) in cases {
        let source = file.floats("a.input_scale", &[1], [3.0]).open(said).unwrap();
        let (stored, _, got) = weight(source.as_ref());
        assert_eq!((stored, source.tensors().len()), (want, 1));
        assert_eq!(source.notes()[0].ends_with("the same values"), want != Stored::F32);
        for (i, got) in got.iter().enumerate() {
            let (r, c) = (i / COLS, i % COLS);
            assert_eq!(*got, small_float::e4m3(byte(r, c)) * factor(r, c), "{r}, {c}");
        }
    }
}

#[test]
fn four_bit_floats_have_two_factors() {
    let codes: Vec<u8> = (0..ROWS * COLS / 2).map(|i| noise(i) as u8).collect();
    let scales: Vec<u8> = (0..ROWS * COLS / 16).map(|i| noise(i + 9) as u8 & 0x77).collect();
    let file = File::default()
        .with("a.weight_packed", Dtype::U8, &[ROWS, COLS / 2], codes.clone())
        .with("a.weight_scale", Dtype::F8_E4M3, &[ROWS, COLS / 16], scales.clone())
        .floats("a.weight_global_scale", &[1], [3.0]);
    let source = file.open(json!({"quant_method": "compressed-tensors"})).unwrap();
    let (stored, _, got) = weight(source.as_ref());
    assert_eq!(stored, Stored::Group(Groups::floats(GroupBits::E2m1, 16), COLS as u32));
    for (i, got) in got.iter().enumerate() {
        let code = codes[i / 2] >> (4 * (i % 2)) & 15;
        assert_eq!(*got, small_float::E2M1[usize::from(code)] * (small_float::e4m3(scales[i / 16]) / 3.0));
    }
    let wrong =
        file_with_scales(&codes, &[ROWS, COLS / 32]).error(json!({"quant_method": "compressed-tensors"}));
    assert!(wrong.contains("a.weight_scale") && wrong.contains("[72, 6] and one are expected"), "{wrong}");
}

fn file_with_scales(codes: &[u8], shape: &[usize]) -> File {
    File::default()
        .with("a.weight_packed", Dtype::U8, &[ROWS, COLS / 2], codes.to_vec())
        .with("a.weight_scale", Dtype::F8_E4M3, shape, vec![0x38; shape.iter().product()])
        .floats("a.weight_global_scale", &[1], [3.0])
}

#[test]
fn what_is_no_number_is_refused_by_its_place() {
    for (dtype, codes) in [(Dtype::F8_E4M3, &[0x7f, 0xff][..]), (Dtype::F8_E5M2, &[0x7c, 0xfc, 0x7d, 0xff])] {
        for code in codes {
            let mut bytes = vec![0x30; ROWS * COLS];
            bytes[5 * COLS + 7] = *code;
            let file = File::default().with("a.weight", dtype, &[ROWS, COLS], bytes);
            let file = file.floats("a.weight_scale", &[1], [0.75]);
            let source = file.open(json!({"quant_method": "fp8"})).unwrap();
            let error = source.bytes("a.weight").unwrap_err().to_string();
            assert!(error.contains("a.weight") && error.contains("row 5, column 7: not a number"), "{error}");
        }
    }
}

/// The same where no group has such blocks, or such a factor, and values are multiplied out.
#[test]
fn what_is_no_number_is_refused_where_values_are_multiplied_out() {
    let blocks = json!({"quant_method": "fp8", "weight_block_size": [128, 48]});
    let one = json!({"quant_method": "fp8"});
    for (dtype, code) in [(Dtype::F8_E4M3, 0x7f), (Dtype::F8_E4M3, 0xff), (Dtype::F8_E5M2, 0x7c)] {
        let file = |code: u8| {
            let mut bytes = vec![0x30; ROWS * COLS];
            bytes[5 * COLS + 7] = code;
            File::default().with("a.weight", dtype, &[ROWS, COLS], bytes)
        };
        for (said, name, shape, scales) in [
            (&blocks, "a.weight_scale_inv", &[1, 2][..], vec![0.5, 0.75]),
            (&one, "a.weight_scale", &[1][..], vec![1e-35]),
        ] {
            let source = file(code).floats(name, shape, scales.clone()).open(said.clone()).unwrap();
            assert_eq!(source.find("a.weight").unwrap().stored, Stored::F32);
            let error = source.bytes("a.weight").unwrap_err().to_string();
            assert!(error.contains("a.weight") && error.contains("row 5, column 7: not a number"), "{error}");
        }
        for factor in [f32::NAN, f32::INFINITY] {
            let file = file(0x30).floats("a.weight_scale_inv", &[1, 2], [0.5, factor]);
            let error = file.open(blocks.clone()).unwrap().bytes("a.weight").unwrap_err().to_string();
            let place = format!("a factor of {factor} at row 0, column 48");
            assert!(error.contains("a.weight_scale_inv") && error.contains(&place), "{error}");
        }
    }
}

/// Multiplied out, a weight of NVFP4 is what a group of its codes would give: its code times the rounded
/// quotient.
#[test]
fn four_bit_floats_have_one_rule() {
    let codes: Vec<u8> = (0..ROWS * COLS / 2).map(|i| noise(i) as u8).collect();
    let scales: Vec<u8> = (0..ROWS * COLS / 16).map(|i| noise(i + 9) as u8 & 0x77).collect();
    let global = 3e33;
    let file = File::default()
        .with("a.weight_packed", Dtype::U8, &[ROWS, COLS / 2], codes.clone())
        .with("a.weight_scale", Dtype::F8_E4M3, &[ROWS, COLS / 16], scales.clone())
        .floats("a.weight_global_scale", &[1], [global]);
    let source = file.open(json!({"quant_method": "compressed-tensors"})).unwrap();
    let (stored, _, got) = weight(source.as_ref());
    assert_eq!(stored, Stored::F32);
    for (i, got) in got.iter().enumerate() {
        let code = codes[i / 2] >> (4 * (i % 2)) & 15;
        let want = small_float::E2M1[usize::from(code)] * (small_float::e4m3(scales[i / 16]) / global);
        assert_eq!(got.to_bits(), want.to_bits(), "{i}");
    }
}

/// Rows of whole blocks of NF4's own table stay as they are; of rows of 96 a block of 64 is in two.
#[test]
fn whole_blocks_of_nf4_stay_groups() {
    let blocks = ROWS * COLS / 32;
    let absmax: Vec<f32> = (0..blocks).map(|i| 0.25 + i as f32 / 8.0).collect();
    let said = json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
    for (block, groups) in [(32, true), (64, false)] {
        let file = table(json!({"blocksize": block, "shape": [ROWS, COLS], "quant_type": "nf4"}))
            .floats("a.weight.quant_map", &[16], small_float::NF4)
            .floats("a.weight.absmax", &[ROWS * COLS / block], absmax[..ROWS * COLS / block].to_vec());
        let (stored, _, got) = weight(file.open(said.clone()).unwrap().as_ref());
        let want = Stored::Group(Groups::floats(GroupBits::Nf4, 32), COLS as u32);
        assert_eq!(stored, if groups { want } else { Stored::F32 });
        for (i, got) in got.iter().enumerate() {
            let code = noise(i / 2) as u8 >> (4 * (1 - i % 2)) & 15;
            assert_eq!(*got, small_float::NF4[usize::from(code)] * absmax[i / block]);
        }
    }
}

fn table(state: Value) -> File {
    let map = (0..16).map(|i| (i as f32 - 7.0) / 8.0);
    File::default()
        .with(
            "a.weight",
            Dtype::U8,
            &[ROWS * COLS / 2, 1],
            (0..ROWS * COLS / 2).map(|i| noise(i) as u8).collect(),
        )
        .floats("a.weight.quant_map", &[16], map)
        .with(
            "a.weight.quant_state.bitsandbytes__nf4",
            Dtype::U8,
            &[state.to_string().len()],
            state.to_string().into_bytes(),
        )
}

#[test]
fn tables_of_sixteen_values_have_a_largest_value_of_every_block() {
    let blocks = ROWS * COLS / 64;
    let value = |i: usize| f64::from(((noise(i / 2) as u8) >> (4 * (1 - i % 2)) & 15) as i32 - 7) / 8.0;
    let absmax: Vec<f32> = (0..blocks).map(|i| 0.25 + i as f32 / 8.0).collect();
    let plain = table(json!({"blocksize": 64, "shape": [ROWS, COLS], "quant_type": "nf4"})).floats(
        "a.weight.absmax",
        &[blocks],
        absmax.clone(),
    );
    let said = json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
    let (stored, _, got) = weight(plain.open(said.clone()).unwrap().as_ref());
    assert_eq!(stored, Stored::F32);
    for (i, got) in got.iter().enumerate() {
        assert_eq!(*got, (value(i) * f64::from(absmax[i / 64])) as f32);
    }
    let state =
        json!({"blocksize": 64, "shape": [ROWS, COLS], "nested_blocksize": 100, "nested_offset": 0.5});
    let nested = table(state)
        .with("a.weight.absmax", Dtype::U8, &[blocks], (0..blocks).map(|i| noise(i) as u8).collect())
        .floats("a.weight.nested_quant_map", &[256], (0..256).map(|i| i as f32 / 256.0))
        .floats("a.weight.nested_absmax", &[blocks.div_ceil(100)], [2.0, 4.0]);
    let (_, _, got) = weight(nested.open(said).unwrap().as_ref());
    for (i, got) in got.iter().enumerate() {
        let block = i / 64;
        let absmax = f64::from(noise(block) as u8) / 256.0 * [2.0, 4.0][block / 100] + 0.5;
        assert_eq!(*got, (value(i) * absmax) as f32);
    }
}

#[test]
fn parts_that_do_not_go_together_are_refused_by_name() {
    let whole = || gptq(4, |r, g| zero(4, r, g), Some(&|c| c / GROUP));
    let plain = bf16::from_f32(1.0).to_le_bytes().repeat(4);
    for (file, name, what) in [
        (whole().without("a.qzeros"), "a.qzeros", "is missing"),
        (whole().without("a.scales"), "a.scales", "is missing"),
        (whole().words("a.g_idx", &[COLS], vec![3; COLS]), "a.g_idx", "an input's group is 3; there are 3"),
        (whole().words("a.g_idx", &[4], vec![0; 4]), "a.g_idx", "4 groups of 96 inputs"),
        (
            whole().with("a.qzeros", Dtype::I8, &[3, 9], vec![0; 27]),
            "a.qzeros",
            "27 elements of i8; 27 of i32",
        ),
        (whole().with("a.scales", Dtype::I8, &[3, 72], vec![0; 216]), "a.scales", "element type i8"),
        (whole().words("a.qzeros", &[2, 9], vec![0; 18]), "a.qzeros", "18 elements of i32; 27"),
        (whole().halves("a.scales", &[5], vec![1.0; 5]), "a.scales", "5 scales for 72 outputs"),
        (
            whole().floats("a.qweight", &[COLS / 8, ROWS], vec![0.0; 864]),
            "a.qweight",
            "element type f32; allowed: i32",
        ),
        (whole().words("a.qweight", &[0, ROWS], []), "a.qweight", "without values"),
        (whole().words("a.qweight", &[ROWS], vec![0; ROWS]), "a.qweight", "a matrix is expected"),
        (whole().with("a.weight", Dtype::BF16, &[2, 2], plain), "a.weight", "both packed and plain"),
    ] {
        let error = file.error(said_gptq(4));
        assert!(error.contains(&format!("`{name}`")) && error.contains(what), "{error}");
    }
    let short = compressed(false).with("a.weight_shape", Dtype::I64, &[2], vec![1; 16]);
    assert!(short.error(said_compressed()).contains("for words [72, 12] of four or eight bits"));
    let fp8 = File::default().with("a.weight", Dtype::F8_E4M3, &[4, 4], vec![0; 16]);
    let said = json!({"quant_method": "fp8"});
    assert!(fp8.error(said.clone()).contains("`a.weight_scale`"));
    let wrong = fp8.floats("a.weight_scale_inv", &[2, 3], [1.0; 6]).error(said);
    assert!(wrong.contains("shape [2, 3] of factors for [4, 4]"), "{wrong}");
    let zero = json!({"quant_method": "fp8", "weight_block_size": [0, 128]});
    assert!(File::default().error(zero).contains("weight_block_size"));
    for (state, what) in [
        (json!({"blocksize": 0, "shape": [ROWS, COLS]}), "blocksize is 0"),
        (json!({"blocksize": 64}), "shape is null"),
        (json!({"blocksize": 64, "shape": [ROWS, COLS + 2]}), "bytes of codes for [72, 98]"),
        (json!({"blocksize": 32, "shape": [ROWS, COLS]}), "108 elements; 216 are expected"),
    ] {
        let file = table(state).floats("a.weight.absmax", &[108], [1.0; 108]);
        let error = file.error(json!({"quant_method": "bitsandbytes"}));
        assert!(error.contains(what), "{error}");
    }
}

/// Weights that it says are packed would be read as if they were not.
#[test]
fn a_configuration_that_is_no_object_is_refused() {
    for said in [json!("gptq"), json!([{"quant_method": "gptq"}]), json!(4), json!(true)] {
        let error = File::default().error(said.clone());
        assert!(error.contains(&format!("`quantization_config` is {said}; allowed: an object")), "{error}");
    }
}

#[test]
fn a_configuration_without_packed_tensors_changes_nothing() {
    let plain = File::default().floats("a.weight", &[2, 2], [1.0; 4]);
    let views = [("a.weight", TensorView::new(Dtype::F32, vec![2, 2], &plain.0[0].3).unwrap())];
    let bytes = serialize(views, None).unwrap();
    let config = json!({"quantization_config": {"quant_method": "fp8"}}).to_string();
    let files = open_bytes(config.as_bytes(), None, bytes.into(), TokenizerFiles::none()).unwrap();
    assert!(files.config.get("quantization_config").is_some() && files.source.notes().is_empty());
}
