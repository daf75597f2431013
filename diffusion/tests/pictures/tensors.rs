//! Files of tensors that a test reads, changes and writes.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A tensor.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Elements.
    pub values: Vec<f32>,
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// The value of an f16 that is finite.
fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from((bits >> 10) & 31), f32::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2f32.powi(-24),
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    };
    if bits >> 15 == 0 { size } else { -size }
}

/// All tensors of a file, of f16 or f32.
pub fn read(file: &Path) -> Tensors {
    let all = fs::read(file).unwrap();
    let len = u64::from_le_bytes(all[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&all[8..8 + len]).unwrap();
    let body = &all[8 + len..];
    let tensor = |said: &Value| {
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        let bytes = &body[number(&said["data_offsets"][0])..number(&said["data_offsets"][1])];
        let values = match said["dtype"].as_str().unwrap() {
            "F16" => bytes.chunks(2).map(|b| half(u16::from_le_bytes([b[0], b[1]]))).collect(),
            "F32" => bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            other => panic!("elements of type {other}"),
        };
        Tensor { shape: said["shape"].as_array().unwrap().iter().map(number).collect(), values }
    };
    let named = header.iter().filter(|(name, _)| *name != "__metadata__");
    named.map(|(name, said)| (name.clone(), tensor(said))).collect()
}

/// A file of these tensors, in f32.
pub fn write(file: &Path, tensors: &Tensors) {
    let (mut header, mut body) = (Map::new(), Vec::new());
    for (name, Tensor { shape, values }) in tensors {
        let start = body.len();
        body.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        let said = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, body.len()] });
        header.insert(name.clone(), said);
    }
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize(text.len().next_multiple_of(8), b' ');
    fs::write(file, [&(text.len() as u64).to_le_bytes()[..], &text, &body].concat()).unwrap();
}

/// Changes fields of a JSON file.
pub fn configured(file: &Path, fields: &[(&str, Value)]) {
    let mut said: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    for (field, value) in fields {
        said[*field] = value.clone();
    }
    fs::write(file, said.to_string()).unwrap();
}

/// The largest difference of two lists as long, as a share of 1 or of the largest value expected.
pub fn off(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let most = want.iter().fold(1.0f64, |most, x| most.max(x.abs()));
    let one = |(got, want): (&f32, &f64)| (f64::from(*got) - want).abs();
    got.iter().zip(want).map(one).fold(0.0, |a: f64, b| if b.is_nan() { f64::INFINITY } else { a.max(b) })
        / most
}
