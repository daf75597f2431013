//! Features of sound against the reference's, which are computed in f64.
#![allow(clippy::unwrap_used, clippy::panic)]

use engraft_audio::{Extractor, Limits, Sound, decode};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read(dir: &Path, file: &str) -> Vec<u8> {
    std::fs::read(dir.join(file)).unwrap_or_else(|e| panic!("{}: {e}", dir.join(file).display()))
}

fn sound(dir: &Path, file: &str) -> Sound {
    decode(read(dir, file), Limits::default()).unwrap()
}

fn floats(tensors: &SafeTensors<'_>, name: &str) -> (Vec<usize>, Vec<f32>) {
    let tensor = tensors.tensor(name).unwrap();
    let values = tensor.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    (tensor.shape().to_vec(), values)
}

fn whole_numbers(tensors: &SafeTensors<'_>, name: &str) -> Vec<usize> {
    tensors
        .tensor(name)
        .unwrap()
        .data()
        .as_chunks()
        .0
        .iter()
        .map(|b| i64::from_le_bytes(*b) as usize)
        .collect()
}

fn extractor(dir: &Path, name: &str) -> Extractor {
    let text = read(dir, &format!("{name}/preprocessor_config.json"));
    Extractor::from_json(std::str::from_utf8(&text).unwrap()).unwrap()
}

#[test]
fn log_mel_energies() {
    let dir = folder("whisper_features");
    let (golden, bytes) = (read(&dir, "golden.json"), read(&dir, "golden.safetensors"));
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let (tensors, mut worst, mut compared) = (SafeTensors::deserialize(&bytes).unwrap(), 0.0f32, 0);
    for run in golden["runs"].as_array().unwrap() {
        let name = run["run"].as_str().unwrap();
        let Extractor::LogMel(mel) = extractor(&dir, name.split('.').next().unwrap()) else { panic!() };
        let inputs = run["inputs"].as_array().unwrap().iter().map(|input| {
            let samples = sound(&dir, input["file"].as_str().unwrap()).samples;
            let end = input["to"].as_u64().map_or(samples.len(), |to| to as usize);
            samples[input["from"].as_u64().unwrap() as usize..end].to_vec()
        });
        let inputs: Vec<Vec<f32>> = inputs.collect();
        let longest = inputs.iter().map(Vec::len).max().unwrap();
        let samples = if run["arguments"]["padding"] == "longest" { longest } else { mel.config().samples() };
        let frames = whole_numbers(&tensors, &format!("{name}.frames"));
        let (shape, want) = floats(&tensors, &format!("{name}.features"));
        let (_, mean) = floats(&tensors, &format!("{name}.mean"));
        let bands = mel.config().feature_size;
        for (i, input) in inputs.iter().enumerate() {
            let got = mel.features(input, samples);
            assert_eq!(got.len() / bands, run["shape"][2].as_u64().unwrap() as usize, "{name}");
            for band in 0..bands {
                for (j, frame) in frames.iter().enumerate() {
                    let want = want[(i * bands + band) * shape[2] + j];
                    worst = worst.max((got[frame * bands + band] - want).abs());
                    compared += 1;
                }
                let all = got.iter().skip(band).step_by(bands);
                let own = all.map(|x| f64::from(*x)).sum::<f64>() / (got.len() / bands) as f64;
                worst = worst.max((own as f32 - mean[i * bands + band]).abs());
            }
        }
    }
    println!("{compared} values, worst {worst:e}");
    // The reference's f64 rounded to f32; its own tolerance is 2e-4.
    assert!(compared > 10_000 && worst < 2e-6, "{compared} values, worst {worst:e}");
}

#[test]
fn another_rate() {
    let dir = folder("whisper_features");
    let bytes = read(&dir, "golden.safetensors");
    let (_, want) = floats(&SafeTensors::deserialize(&bytes).unwrap(), "stereo44k.resampled");
    let stereo = sound(&dir, "stereo44k.wav");
    assert_eq!(stereo.rate, 44_100);
    let got = stereo.at(16_000).unwrap().samples;
    let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(got.len() == want.len() && worst < 1e-5, "{} and {}: {worst:e}", got.len(), want.len());
}

#[test]
fn raw_samples() {
    let dir = folder("raw_waveform");
    let (golden, bytes) = (read(&dir, "golden.json"), read(&dir, "golden.safetensors"));
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let runs = golden["runs"].as_array().unwrap();
    for run in runs {
        let name = run["run"].as_str().unwrap();
        let Extractor::Waveform(raw) = extractor(&dir, name.split('.').next().unwrap()) else { panic!() };
        let (shape, want) = floats(&tensors, &format!("{name}.input_values"));
        for (i, file) in run["inputs"].as_array().unwrap().iter().enumerate() {
            let mut samples = sound(&dir, file.as_str().unwrap()).samples;
            if run["arguments"]["truncation"] == true {
                samples.truncate(shape[1]);
            }
            let got = raw.features(&samples, shape[1]).unwrap();
            let want = &want[i * shape[1]..][..shape[1]];
            let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 2e-5, "{name}: {worst:e}");
        }
    }
    assert!(runs.len() > 5);
    let Extractor::Waveform(raw) = extractor(&dir, "moonshine") else { panic!() };
    assert!(raw.features(&[0.0; 5], 4).unwrap_err().to_string().contains("is 5"));
}
