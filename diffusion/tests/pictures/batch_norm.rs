//! Deep-compression autoencoders whose decoder has batch norms, by the definition in f64: no golden has one.

use super::tensors::{Tensor, Tensors, off, write};
use engraft_core::Error;
use engraft_core::backend::block_on;
use engraft_core::checkpoint::{Access, open};
use engraft_core::mem::Float;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::graph::Grid;
use engraft_diffusion::{Noise, Purpose, Seeded, Vae};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Channels of latents, of everything between, and of pictures.
const LATENTS: usize = 4;
const INNER: usize = 8;
const COLORS: usize = 3;
/// Latents.
const SIZE: Grid = Grid { height: 2, width: 3 };

fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut all = vec![0.0; count];
    Seeded(seed).fill(Purpose::Latents, 0, &mut all).unwrap();
    all
}

/// Tensors with values of a seed for each.
#[derive(Default)]
struct Made(Tensors);

impl Made {
    fn add(&mut self, name: &str, shape: &[usize], value: impl Fn(f32) -> f32) {
        let count = shape.iter().product();
        let made = values(self.0.len() as u64, count).into_iter().map(value).collect();
        self.0.insert(name.into(), Tensor { shape: shape.to_vec(), values: made });
    }

    fn conv(&mut self, name: &str, (outputs, inputs): (usize, usize), biased: bool) {
        self.add(&format!("{name}.weight"), &[outputs, inputs, 3, 3], |x| 0.2 * x);
        if biased {
            self.add(&format!("{name}.bias"), &[outputs], |x| 0.3 * x);
        }
    }

    fn norm(&mut self, name: &str, is_of_batches: bool) {
        self.add(&format!("{name}.weight"), &[INNER], |x| 1.0 + 0.3 * x);
        self.add(&format!("{name}.bias"), &[INNER], |x| 0.3 * x);
        if is_of_batches {
            self.add(&format!("{name}.running_mean"), &[INNER], |x| 0.02 * x);
            // So small that what is added to them counts.
            self.add(&format!("{name}.running_var"), &[INNER], |x| 1e-5 + 1e-3 * x * x);
            self.add(&format!("{name}.num_batches_tracked"), &[], |_| 9.0);
        }
    }

    fn residual(&mut self, name: &str, is_of_batches: bool) {
        self.conv(&format!("{name}.conv1"), (INNER, INNER), true);
        self.conv(&format!("{name}.conv2"), (INNER, INNER), false);
        self.norm(&format!("{name}.norm"), is_of_batches);
    }

    /// A block of attention of which both parts give nothing in front of their norms, of which the second
    /// one's has no bias.
    fn attention(&mut self, name: &str) {
        for part in ["to_q", "to_k", "to_v"] {
            self.add(&format!("{name}.attn.{part}.weight"), &[INNER, INNER], |x| 0.3 * x);
        }
        self.add(&format!("{name}.attn.to_out.weight"), &[INNER, INNER], |_| 0.0);
        self.norm(&format!("{name}.attn.norm_out"), true);
        let name = format!("{name}.conv_out");
        self.add(&format!("{name}.conv_inverted.weight"), &[4 * INNER, INNER, 1, 1], |x| x);
        self.add(&format!("{name}.conv_inverted.bias"), &[4 * INNER], |x| x);
        self.add(&format!("{name}.conv_depth.weight"), &[4 * INNER, 1, 3, 3], |x| x);
        self.add(&format!("{name}.conv_depth.bias"), &[4 * INNER], |x| x);
        self.add(&format!("{name}.conv_point.weight"), &[INNER, 2 * INNER, 1, 1], |_| 0.0);
        self.add(&format!("{name}.norm.weight"), &[INNER], |x| x);
        self.add(&format!("{name}.norm.bias"), &[INNER], |_| 0.0);
    }

    fn autoencoder() -> Self {
        let mut all = Self::default();
        all.conv("encoder.conv_in", (INNER, COLORS), true);
        all.residual("encoder.down_blocks.0.0", false);
        all.conv("encoder.down_blocks.0.1.conv", (INNER, INNER), true);
        all.residual("encoder.down_blocks.1.0", false);
        all.conv("encoder.conv_out", (LATENTS, INNER), true);
        all.conv("decoder.conv_in", (INNER, LATENTS), true);
        all.attention("decoder.up_blocks.1.0");
        all.conv("decoder.up_blocks.0.0.conv", (INNER, INNER), true);
        all.residual("decoder.up_blocks.0.1", true);
        all.norm("decoder.norm_out", false);
        all.conv("decoder.conv_out", (COLORS, INNER), true);
        all
    }

    fn get(&self, name: &str) -> &[f32] {
        &self.0[name].values
    }

    /// A convolution of three by three, `[pixels, columns]`.
    fn convolved(&self, x: &[f64], size: Grid, name: &str) -> Vec<f64> {
        let Tensor { shape, values } = &self.0[&format!("{name}.weight")];
        let bias = self.0.get(&format!("{name}.bias"));
        let (outputs, inputs, mut out) = (shape[0], shape[1], Vec::new());
        for (y, x0) in (0..size.height).flat_map(|y| (0..size.width).map(move |x| (y, x))) {
            for output in 0..outputs {
                let mut sum = bias.map_or(0.0, |bias| f64::from(bias.values[output]));
                for (line, column) in (0..3).flat_map(|line| (0..3).map(move |column| (line, column))) {
                    let (from, at) = (y + line, x0 + column);
                    if (1..=size.height).contains(&from) && (1..=size.width).contains(&at) {
                        let pixel = (from - 1) * size.width + at - 1;
                        for input in 0..inputs {
                            let weight = values[((output * inputs + input) * 3 + line) * 3 + column];
                            sum += f64::from(weight) * x[pixel * inputs + input];
                        }
                    }
                }
                out.push(sum);
            }
        }
        out
    }

    /// `(x - mean) / sqrt(variance + 1e-5) * weight + bias`.
    fn of_batches(&self, x: &[f64], name: &str) -> Vec<f64> {
        let of = |part: &str, i: usize| f64::from(self.get(&format!("{name}.{part}"))[i % INNER]);
        let one = |(i, x): (usize, &f64)| {
            let deviation = (of("running_var", i) + 1e-5).sqrt();
            (x - of("running_mean", i)) / deviation * of("weight", i) + of("bias", i)
        };
        x.iter().enumerate().map(one).collect()
    }

    fn rms(&self, x: &[f64], name: &str) -> Vec<f64> {
        let (weight, bias) = (self.get(&format!("{name}.weight")), self.get(&format!("{name}.bias")));
        let row = |row: &[f64]| {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / INNER as f64;
            let by = |i: usize| row[i] / (mean + 1e-5).sqrt() * f64::from(weight[i]) + f64::from(bias[i]);
            (0..INNER).map(by).collect::<Vec<f64>>()
        };
        x.chunks(INNER).flat_map(row).collect()
    }

    fn decoded(&self, latents: &[f64]) -> Vec<f64> {
        let plus = |a: Vec<f64>, b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f64>>();
        let relu = |x: Vec<f64>| x.into_iter().map(|x| x.max(0.0)).collect::<Vec<f64>>();
        let twice: Vec<f64> = latents.iter().flat_map(|x| [*x, *x]).collect();
        let x = plus(self.convolved(latents, SIZE, "decoder.conv_in"), &twice);
        let nothing = vec![0.0; x.len()];
        let x = plus(self.of_batches(&nothing, "decoder.up_blocks.1.0.attn.norm_out"), &x);
        let large = SIZE.doubled();
        let mut near = Vec::new();
        for (y, column) in (0..large.height).flat_map(|y| (0..large.width).map(move |x| (y, x))) {
            let pixel = y / 2 * SIZE.width + column / 2;
            near.extend(&x[pixel * INNER..(pixel + 1) * INNER]);
        }
        let x = plus(self.convolved(&near, large, "decoder.up_blocks.0.0.conv"), &near);
        let p = "decoder.up_blocks.0.1";
        let h = relu(self.convolved(&x, large, &format!("{p}.conv1")));
        let h = self.convolved(&h, large, &format!("{p}.conv2"));
        let x = plus(self.of_batches(&h, &format!("{p}.norm")), &x);
        let x = relu(self.rms(&x, "decoder.norm_out"));
        self.convolved(&x, large, "decoder.conv_out")
    }
}

fn loaded(place: &Path, made: &Made, norms: Value) -> Result<Vae<Cpu>, Error> {
    let config = json!({
        "_class_name": "AutoencoderDC",
        "latent_channels": LATENTS,
        "attention_head_dim": INNER / 2,
        "decoder_block_types": ["ResBlock", "EfficientViTBlock"],
        "encoder_block_out_channels": [INNER, INNER],
        "decoder_block_out_channels": [INNER, INNER],
        "encoder_layers_per_block": [1, 1],
        "decoder_layers_per_block": [1, 1],
        "encoder_qkv_multiscales": [[], []],
        "decoder_qkv_multiscales": [[], []],
        "upsample_block_type": "interpolate",
        "downsample_block_type": "conv",
        "decoder_norm_types": norms,
        "decoder_act_fns": ["relu", "silu"],
    });
    fs::write(place.join("config.json"), config.to_string()).unwrap();
    write(&place.join("diffusion_pytorch_model.safetensors"), &made.0);
    let files = open(place, Access::default()).unwrap();
    Vae::load(Cpu::new(CpuConfig::default()).unwrap(), &files, Float::F32)
}

#[test]
fn every_column_is_normed_by_mean_and_variance_of_training() {
    let (place, made) = (tempfile::tempdir().unwrap(), Made::autoencoder());
    let mut vae = loaded(place.path(), &made, json!("batch_norm")).unwrap();
    let latents = values(99, 2 * SIZE.pixels() * LATENTS);
    let got = block_on(vae.decode(&latents, 2, SIZE)).unwrap();
    let wide: Vec<f64> = latents.iter().map(|x| f64::from(*x)).collect();
    let want: Vec<f64> = wide.chunks(wide.len() / 2).flat_map(|own| made.decoded(own)).collect();
    let off = off(&got, &want);
    assert!(off < 2e-5, "{off}");
}

#[test]
fn norms_that_cannot_be_are_refused_by_name() {
    let (place, mut made) = (tempfile::tempdir().unwrap(), Made::autoencoder());
    let refused = |made: &Made, norms: Value, words: [&str; 2]| {
        let error = loaded(place.path(), made, norms).err().unwrap().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    refused(&made, json!("layer_norm"), ["decoder_norm_types", "rms_norm, batch_norm"]);
    // Without the norm the mean and the variance are left over.
    refused(&made, json!("rms_norm"), ["left over", "running_var"]);
    let name = "decoder.up_blocks.0.1.norm.running_var";
    let own = made.0.get_mut(name).unwrap();
    own.values[5] = -0.5;
    refused(&made, json!(["batch_norm", "batch_norm"]), [name, "-0.5"]);
    made.0.remove(name);
    refused(&made, json!("batch_norm"), [name, "is not in"]);
}
