//! Models of pictures against what the reference computes in f64.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden;

use engraft_core::backend::block_on;
use engraft_core::checkpoint::{Access, open};
use engraft_core::mem::Float;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::graph::Grid;
use engraft_diffusion::nets::Conditions;
use engraft_diffusion::{Transformer, TransformerInput, Unet, UnetInput, Vae};
use golden::{Golden, folder};

fn unet(name: &str, dtype: Float, relative: f64) {
    let golden = Golden::component(name);
    let files = open(&folder("components").join(name), Access::default()).unwrap();
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    let mut model = Unet::load(backend, &files, dtype).unwrap();
    let (sample, items, size) = golden.picture("in.sample");
    let (_, times) = golden.get("in.timestep");
    let (shape, text) = golden.get("in.encoder_hidden_states");
    let narrow = |values: Vec<f64>| values.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
    let text = narrow(text);
    let mask = golden
        .find("in.encoder_attention_mask")
        .map(|(_, m)| m.iter().map(|x| *x != 0.0).collect::<Vec<_>>());
    let class = golden.find("in.class_labels").map(|(_, values)| narrow(values));
    let added = golden.find("in.text_embeds").map(|(_, embeds)| {
        let (_, sizes) = golden.get("in.time_ids");
        model.spec().added(items, &narrow(embeds), &sizes).unwrap()
    });
    let input = UnetInput {
        text: &text,
        mask: mask.as_deref(),
        class: class.as_deref(),
        added: added.as_deref(),
        ..UnetInput::default()
    };
    model.begin(Conditions { items, size, tokens: shape[1] }, &input).unwrap();
    let got = block_on(model.step(&sample, &times)).unwrap();
    golden.judge("out.out", &got, &golden.wanted("out.out"), relative);
    let again = block_on(model.step(&sample, &times)).unwrap();
    assert_eq!(got, again, "a second step of the same sample");
}

fn vae(name: &str, dtype: Float, relative: f64) {
    let golden = Golden::component(name);
    let files = open(&folder("components").join(name), Access::default()).unwrap();
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    let mut model = Vae::load(backend, &files, dtype).unwrap();
    let first =
        |names: [&str; 2]| names.into_iter().find(|name| golden.find(name).is_some()).unwrap().to_string();
    let (image, items, size) = golden.picture(&first(["in.sample", "in.image"]));
    let moments = block_on(model.encode(&image, items, size)).unwrap();
    let channels = model.spec().latent_channels;
    let part = |first: usize| {
        moments
            .chunks_exact(2 * channels)
            .flat_map(|row| row[first..first + channels].to_vec())
            .collect::<Vec<f32>>()
    };
    golden.judge("out.encode.mean", &part(0), &golden.wanted("out.encode.mean"), relative);
    let logarithms: Vec<f32> = part(channels).iter().map(|x| x.clamp(-30.0, 20.0)).collect();
    golden.judge("out.encode.logvar", &logarithms, &golden.wanted("out.encode.logvar"), relative);
    let (latents, items, size) = golden.picture(&first(["in.latent", "in.latents"]));
    let picture = block_on(model.decode(&latents, items, size)).unwrap();
    golden.judge("out.decode", &picture, &golden.wanted("out.decode"), relative);
}

/// Sizes that a picture has as it is packed: `img_ids` are lines and columns.
fn packed(golden: &Golden) -> Grid {
    let (shape, ids) = golden.get("in.img_ids");
    let most = |axis: usize| ids.chunks(shape[1]).map(|id| id[axis] as usize).max().unwrap() + 1;
    let grid = Grid { height: most(1), width: most(2) };
    let own = (0..grid.height).flat_map(|y| (0..grid.width).map(move |x| [0.0, y as f64, x as f64]));
    assert_eq!(own.flatten().collect::<Vec<_>>(), ids, "{}", golden.name);
    grid
}

fn transformer(name: &str, dtype: Float, relative: f64) {
    let golden = Golden::component(name);
    let files = open(&folder("components").join(name), Access::default()).unwrap();
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    let mut model = Transformer::load(backend, &files, dtype).unwrap();
    let narrow = |values: Vec<f64>| values.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
    let (shape, sample) = golden.get("in.hidden_states");
    let (_, mut times) = golden.get("in.timestep");
    let rows = shape.len() == 3;
    let (sample, items, size) = match rows {
        true => (narrow(sample), shape[0], packed(&golden)),
        false => golden.picture("in.hidden_states"),
    };
    // FLUX divides by what it multiplies with inside.
    times.iter_mut().filter(|_| rows).for_each(|time| *time *= 1000.0);
    let (shape, text) = golden.get("in.encoder_hidden_states");
    let text = narrow(text);
    let mask = golden.find("in.encoder_attention_mask");
    let mask = mask.map(|(_, mask)| mask.iter().map(|seen| *seen != 0.0).collect::<Vec<_>>());
    let pooled = golden.find("in.pooled_projections").map(|(_, pooled)| narrow(pooled));
    let guidance = golden.find("in.guidance").map(|(_, guidance)| guidance);
    let sizes = golden.find("in.resolution").map(|(_, sizes)| {
        let (_, aspects) = golden.get("in.aspect_ratio");
        sizes.chunks(2).zip(aspects).map(|(size, aspect)| [size[0], size[1], aspect]).collect::<Vec<_>>()
    });
    let input = TransformerInput {
        text: &text,
        mask: mask.as_deref(),
        pooled: pooled.as_deref(),
        guidance: guidance.as_deref(),
        sizes: sizes.as_deref(),
    };
    model.begin(Conditions { items, size, tokens: shape[1] }, &input).unwrap();
    let got = block_on(model.step(&sample, &times)).unwrap();
    let want = if rows { golden.get("out.out").1 } else { golden.wanted("out.out") };
    golden.judge("out.out", &got, &want, relative);
    let again = block_on(model.step(&sample, &times)).unwrap();
    assert_eq!(got, again, "a second step of the same sample");
}

/// Cases of transformers.
const TRANSFORMERS: [&str; 5] = [
    "sd3_transformer",
    "sd35_transformer",
    "flux_transformer",
    "flux_transformer_schnell",
    "pixart_alpha_transformer",
];

#[test]
fn transformers() {
    for name in TRANSFORMERS {
        transformer(name, Float::F32, 2e-5);
    }
}

#[test]
fn unets() {
    for name in ["unet_sd1", "unet_sd2", "unet_sdxl"] {
        unet(name, Float::F32, 2e-5);
    }
}

#[test]
fn autoencoders() {
    for name in ["vae", "vae_old_names", "vae_sd1", "vae_odd_size", "vae_no_mid_attention", "vae_sd3"] {
        vae(name, Float::F32, 2e-5);
    }
}

#[test]
fn sixteen_bits() {
    for (dtype, relative) in [(Float::F16, 2e-2), (Float::Bf16, 5e-2)] {
        unet("unet_sdxl", dtype, relative);
        for name in ["sd35_transformer", "flux_transformer_schnell", "pixart_alpha_transformer"] {
            transformer(name, dtype, relative);
        }
        vae("vae_sd3", dtype, relative);
    }
}

/// A UNet's golden, to run in parts.
struct Parts {
    model: Unet<Cpu>,
    sample: Vec<f32>,
    times: Vec<f64>,
    text: Vec<f32>,
    items: usize,
    size: Grid,
    tokens: usize,
}

impl Parts {
    fn open(name: &str) -> Self {
        let golden = Golden::component(name);
        let files = open(&folder("components").join(name), Access::default()).unwrap();
        let model = Unet::load(Cpu::new(CpuConfig::default()).unwrap(), &files, Float::F32).unwrap();
        let (sample, items, size) = golden.picture("in.sample");
        let (shape, text) = golden.get("in.encoder_hidden_states");
        let text = text.into_iter().map(|x| x as f32).collect();
        Self { model, sample, times: golden.get("in.timestep").1, text, items, size, tokens: shape[1] }
    }

    /// What comes out for some of the pictures, of texts as they are given.
    fn run(&mut self, items: std::ops::Range<usize>, text: &[f32], mask: Option<&[bool]>) -> Vec<f32> {
        let each = self.sample.len() / self.items;
        let tokens = text.len() / items.len() / self.model.spec().text_width().unwrap();
        let input = UnetInput { text, mask, ..UnetInput::default() };
        self.model.begin(Conditions { items: items.len(), size: self.size, tokens }, &input).unwrap();
        let sample = &self.sample[items.start * each..items.end * each];
        block_on(self.model.step(sample, &self.times[items])).unwrap()
    }
}

#[test]
fn pictures_of_a_batch_are_those_that_they_are_alone() {
    let mut parts = Parts::open("unet_sd1");
    let (text, items) = (parts.text.clone(), parts.items);
    let both = parts.run(0..items, &text, None);
    for item in 0..items {
        let (own, out) = (text.len() / items, both.len() / items);
        let alone = parts.run(item..item + 1, &text[item * own..(item + 1) * own], None);
        assert_eq!(alone, both[item * out..(item + 1) * out], "picture {item}");
    }
    assert_eq!(parts.run(0..items, &text, None), both, "after other sizes");
}

#[test]
fn hidden_tokens_do_not_matter_wherever_they_are() {
    let mut parts = Parts::open("unet_sd1");
    let (tokens, width) = (parts.tokens, parts.text.len() / parts.items / parts.tokens);
    let text = parts.text[..tokens * width].to_vec();
    let mask: Vec<bool> = (0..tokens).map(|token| token % 3 != 1).collect();
    let seen: Vec<f32> =
        text.chunks(width).zip(&mask).filter(|(_, seen)| **seen).flat_map(|(row, _)| row.to_vec()).collect();
    let mut odd = text.clone();
    odd.chunks_mut(width).zip(&mask).filter(|(_, seen)| !**seen).for_each(|(row, _)| row.fill(9.0));
    let want = parts.run(0..1, &seen, None);
    assert_eq!(parts.run(0..1, &text, Some(&mask)), want);
    assert_eq!(parts.run(0..1, &odd, Some(&mask)), want);
    assert_ne!(parts.run(0..1, &text, None), want);
    let error = parts.model.begin(
        Conditions { items: 1, size: parts.size, tokens },
        &UnetInput { text: &text, mask: Some(&mask[1..]), ..UnetInput::default() },
    );
    assert!(error.unwrap_err().to_string().contains("encoder_attention_mask"));
}
