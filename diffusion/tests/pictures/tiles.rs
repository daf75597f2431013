//! Autoencoders in tiles: against the reference's loops written down again, in f64, over what the tiles are
//! one by one; what memory they take; slices of a batch.

use engraft_core::backend::block_on;
use engraft_core::checkpoint::{Access, open};
use engraft_core::mem::Float;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::graph::Grid;
use engraft_diffusion::{
    ImageRequest, Init, Noise as _, Pipeline, PipelineOptions, Progress, Purpose, Seeded, Vae,
};
use image_goldens::folder;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

fn load(place: &Path) -> Vae<Cpu> {
    let files = open(place, Access::default()).unwrap();
    Vae::load(Cpu::new(CpuConfig::default()).unwrap(), &files, Float::F32).unwrap()
}

fn component(name: &str) -> Vae<Cpu> {
    load(&folder("components").join(name))
}

fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Seeded(seed).fill(Purpose::Latents, 0, &mut values).unwrap();
    values
}

/// `[channel][line][column]`, as the reference has them.
type Planes = Vec<Vec<Vec<f64>>>;

fn planes(rows: &[f32], size: Grid) -> Planes {
    let channels = rows.len() / size.pixels();
    let at = |c: usize, y: usize, x: usize| f64::from(rows[(y * size.width + x) * channels + c]);
    let line = |c, y| (0..size.width).map(|x| at(c, y, x)).collect();
    (0..channels).map(|c| (0..size.height).map(|y| line(c, y)).collect()).collect()
}

/// Lines and columns of all planes.
fn part(of: &Planes, y: std::ops::Range<usize>, x: std::ops::Range<usize>) -> Planes {
    let within = |range: &std::ops::Range<usize>, most: usize| range.start.min(most)..range.end.min(most);
    let lines = |plane: &Vec<Vec<f64>>| {
        let lines = &plane[within(&y, plane.len())];
        lines.iter().map(|line| line[within(&x, line.len())].to_vec()).collect()
    };
    of.iter().map(lines).collect()
}

fn rows(of: &Planes) -> (Vec<f32>, Grid) {
    let size = Grid { height: of[0].len(), width: of[0][0].len() };
    let pixels = (0..size.height).flat_map(|y| (0..size.width).map(move |x| (y, x)));
    (pixels.flat_map(|(y, x)| of.iter().map(move |plane| plane[y][x] as f32)).collect(), size)
}

fn blend_v(a: &Planes, b: &mut Planes, extent: usize) {
    let extent = extent.min(a[0].len()).min(b[0].len());
    for (a, b) in a.iter().zip(b) {
        for y in 0..extent {
            for x in 0..b[y].len() {
                let share = y as f64 / extent as f64;
                b[y][x] = a[a.len() - extent + y][x] * (1.0 - share) + b[y][x] * share;
            }
        }
    }
}

fn blend_h(a: &Planes, b: &mut Planes, extent: usize) {
    let extent = extent.min(a[0][0].len()).min(b[0][0].len());
    for (a, b) in a.iter().zip(b) {
        for (a, b) in a.iter().zip(b) {
            for x in 0..extent {
                let share = x as f64 / extent as f64;
                b[x] = a[a.len() - extent + x] * (1.0 - share) + b[x] * share;
            }
        }
    }
}

/// `tiled_encode` and `tiled_decode` of `AutoencoderKL` and `AutoencoderDC`.
fn blended(
    whole: &Planes,
    (tile, step): (usize, usize),
    (blend, limit): (usize, usize),
    model: &mut dyn FnMut(&Planes) -> Planes,
) -> Planes {
    let (height, width) = (whole[0].len(), whole[0][0].len());
    let mut all: Vec<Vec<Planes>> = Vec::new();
    for i in (0..height).step_by(step) {
        let row = (0..width).step_by(step).map(|j| model(&part(whole, i..i + tile, j..j + tile)));
        all.push(row.collect());
    }
    let mut result: Planes = vec![Vec::new(); all[0][0].len()];
    for i in 0..all.len() {
        let mut lines: Planes = Vec::new();
        for j in 0..all[i].len() {
            let mut own = all[i][j].clone();
            if i > 0 {
                blend_v(&all[i - 1][j], &mut own, blend);
            }
            if j > 0 {
                blend_h(&all[i][j - 1], &mut own, blend);
            }
            all[i][j] = own.clone();
            let kept = part(&own, 0..limit, 0..limit);
            if lines.is_empty() {
                lines = kept;
            } else {
                let planes = lines.iter_mut().zip(kept);
                planes.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| to.extend(from)));
            }
        }
        result.iter_mut().zip(lines).for_each(|(to, from)| to.extend(from));
    }
    result
}

/// `_tiled_encode` and `_tiled_decode` of `AutoencoderTiny`; `scale` is that of the result.
fn ramped(
    whole: &Planes,
    (tile, step): (usize, usize),
    (ramp, scale): (usize, f64),
    (height, width, channels): (usize, usize, usize),
    model: &mut dyn FnMut(&Planes) -> Planes,
) -> Planes {
    let mut out = vec![vec![vec![0.0; width]; height]; channels];
    let share = |first: bool, at: usize| {
        if first { 1.0 } else { (at as f64 / (ramp as f64 - 1.0)).clamp(0.0, 1.0) }
    };
    for i in (0..whole[0].len()).step_by(step) {
        for j in (0..whole[0][0].len()).step_by(step) {
            let own = model(&part(whole, i..i + tile, j..j + tile));
            let (top, left) = ((i as f64 * scale) as usize, (j as f64 * scale) as usize);
            for (c, plane) in own.iter().enumerate() {
                for (y, line) in plane.iter().enumerate() {
                    for (x, value) in line.iter().enumerate() {
                        let mask = share(i == 0, y) * share(j == 0, x);
                        let there = &mut out[c][top + y][left + x];
                        *there = mask * value + (1.0 - mask) * *there;
                    }
                }
            }
        }
    }
    out
}

/// The largest difference, as a share of the largest value.
fn differs(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let most = want.iter().fold(1.0f32, |most, x| most.max(x.abs()));
    got.iter().zip(want).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs())) / most
}

fn decode(vae: &mut Vae<Cpu>, latents: &[f32], size: Grid) -> Vec<f32> {
    block_on(vae.decode(latents, 1, size)).unwrap()
}

#[test]
fn tiles_of_a_trained_size_are_blended_as_the_reference_does() {
    // Of 32 pixels, and so 4 and 8 latents, of which a quarter overlaps.
    for (name, factor, sizes) in
        [("vae_sd1", 8, [(9, 5), (4, 6), (7, 7)]), ("vae_sd3", 4, [(9, 17), (16, 8), (13, 12)])]
    {
        let (mut plain, mut tiled) = (component(name), component(name));
        tiled.enable_tiling().unwrap();
        let (channels, latents) = (plain.spec().latent_channels, 32 / factor);
        for (height, width) in sizes {
            let size = Grid { height, width };
            let given = noise(size.pixels() * channels, 3);
            let mut model = |tile: &Planes| {
                let (rows, size) = rows(tile);
                let out = Grid { height: size.height * factor, width: size.width * factor };
                planes(&decode(&mut plain, &rows, size), out)
            };
            let steps = (latents, latents * 3 / 4);
            let (want, _) = rows(&blended(&planes(&given, size), steps, (8, 24), &mut model));
            let got = decode(&mut tiled, &given, size);
            let off = differs(&got, &want);
            assert!(off < 1e-6, "{name} {height} x {width}: {off}");
            let far = differs(&got, &decode(&mut plain, &given, size));
            assert!(far > 1e-3, "{name} {height} x {width}: in tiles it is another picture, {far}");

            let size = Grid { height: height * factor, width: width * factor };
            let given = noise(size.pixels() * 3, 4);
            let mut model = |tile: &Planes| {
                let (rows, size) = rows(tile);
                let out = Grid { height: size.height / factor, width: size.width / factor };
                planes(&block_on(plain.encode(&rows, 1, size)).unwrap(), out)
            };
            let keep = (latents / 4, latents * 3 / 4);
            let (want, _) = rows(&blended(&planes(&given, size), (32, 24), keep, &mut model));
            let off = differs(&block_on(tiled.encode(&given, 1, size)).unwrap(), &want);
            assert!(off < 1e-6, "{name} encodes {height} x {width}: {off}");
        }
        // What is as large as a tile is one.
        let size = Grid { height: latents, width: latents };
        let given = noise(size.pixels() * channels, 5);
        assert_eq!(decode(&mut tiled, &given, size), decode(&mut plain, &given, size), "{name}");
    }
}

#[test]
fn tiles_of_512_pixels_are_blended_as_the_reference_does() {
    let (mut plain, mut tiled) = (component("vae_tiny"), component("vae_tiny"));
    tiled.enable_tiling().unwrap();
    let (factor, channels) = (plain.spec().factor(), plain.spec().latent_channels);
    // One tile wide, and a second one of few latents below; a side of a tile has a second one, too.
    let size = Grid { height: 512 / factor, width: 5 };
    let given = noise(size.pixels() * channels, 6);
    let out = Grid { height: size.height * factor, width: size.width * factor };
    let whole = decode(&mut plain, &given, size);
    let mut model = |tile: &Planes| {
        let (rows, size) = rows(tile);
        let out = Grid { height: size.height * factor, width: size.width * factor };
        planes(&decode(&mut plain, &rows, size), out)
    };
    let shape = (out.height, out.width, 3);
    let steps = (512 / factor, 448 / factor);
    let (want, _) = rows(&ramped(&planes(&given, size), steps, (64, factor as f64), shape, &mut model));
    let got = decode(&mut tiled, &given, size);
    assert!(differs(&got, &want) < 1e-6);
    assert!(differs(&got, &whole) > 1e-4);

    let (mut plain, mut tiled) = (component("vae_dc"), component("vae_dc"));
    tiled.enable_tiling().unwrap();
    let (factor, channels) = (plain.spec().factor(), plain.spec().latent_channels);
    let size = Grid { height: 1, width: 520 / factor };
    let given = noise(size.pixels() * channels, 7);
    let mut model = |tile: &Planes| {
        let (rows, size) = rows(tile);
        let out = Grid { height: size.height * factor, width: size.width * factor };
        planes(&decode(&mut plain, &rows, size), out)
    };
    let steps = (512 / factor, 448 / factor);
    let (want, _) = rows(&blended(&planes(&given, size), steps, (64, 448), &mut model));
    assert!(differs(&decode(&mut tiled, &given, size), &want) < 1e-6);
}

#[test]
fn activations_are_those_of_one_tile() {
    let (mut plain, mut tiled) = (component("vae_sd3"), component("vae_sd3"));
    tiled.enable_tiling().unwrap();
    let channels = plain.spec().latent_channels;
    let bytes = |vae: &mut Vae<Cpu>, side: usize| {
        let size = Grid { height: side, width: side };
        decode(vae, &noise(size.pixels() * channels, 8), size);
        vae.bytes().1
    };
    let (tile, large) = (bytes(&mut plain, 8), bytes(&mut plain, 38));
    // Six steps and a whole tile along each side.
    let in_tiles = bytes(&mut tiled, 38);
    assert!(in_tiles <= tile && large > 10 * tile, "{in_tiles} of {tile} for a tile, {large}");
}

#[test]
fn slices_change_no_bit_and_take_memory_for_one() {
    let (mut plain, mut sliced) = (component("vae_sd3"), component("vae_sd3"));
    sliced.enable_slicing();
    let size = Grid { height: 7, width: 9 };
    let given = noise(3 * size.pixels() * plain.spec().latent_channels, 9);
    let want = block_on(plain.decode(&given, 3, size)).unwrap();
    assert_eq!(block_on(sliced.decode(&given, 3, size)).unwrap(), want);
    let (all, one) = (plain.bytes().1, sliced.bytes().1);
    assert!(2 * one < all, "{one} and {all} bytes");
    let image = noise(2 * 12 * 16 * 3, 10);
    let size = Grid { height: 12, width: 16 };
    let want = block_on(plain.encode(&image, 2, size)).unwrap();
    assert_eq!(block_on(sliced.encode(&image, 2, size)).unwrap(), want);
    // A batch in tiles is its pictures in tiles.
    let mut tiled = component("vae_sd3");
    tiled.enable_tiling().unwrap();
    let size = Grid { height: 9, width: 10 };
    let given = noise(2 * size.pixels() * tiled.spec().latent_channels, 11);
    let both = block_on(tiled.decode(&given, 2, size)).unwrap();
    assert_eq!(both[both.len() / 2..], decode(&mut tiled, &given[given.len() / 2..], size));
    let error = block_on(tiled.decode(&given[1..], 2, size)).unwrap_err().to_string();
    assert!(error.contains("latents"), "{error}");
}

#[test]
fn pipelines_take_tiles_and_refuse_sizes_that_have_none() {
    let (cpu, path) = (Cpu::new(CpuConfig::default()).unwrap(), folder("pipelines").join("sd1"));
    let run = |vae_tiling: bool, width: usize, init: bool| {
        let options = PipelineOptions { vae_tiling, ..PipelineOptions::default() };
        let mut pipeline = Pipeline::load(&cpu, &path, &options).unwrap();
        let init = init.then(|| Init { rgb: noise(width * 32 * 3, 12), strength: 0.5, mask: None });
        let prompts = vec!["a fox".to_string(), "a dog".to_string()];
        let request =
            ImageRequest { prompts, width, height: 32, steps: Some(2), init, ..ImageRequest::new("") };
        let all = &mut |_: Progress| ControlFlow::Continue(());
        block_on(pipeline.run(&request, &mut Seeded(1), all)).unwrap().unwrap()
    };
    // A tile is 32 pixels wide.
    assert_eq!(run(true, 32, false).decoded, run(false, 32, false).decoded);
    let (tiled, whole) = (run(true, 48, false), run(false, 48, false));
    assert_eq!(tiled.latents, whole.latents);
    assert_ne!(tiled.decoded, whole.decoded);
    assert_ne!(run(true, 48, true).latents, run(false, 48, true).latents, "what is encoded is another");

    let place = tempfile::tempdir().unwrap();
    let from = folder("components").join("vae_sd3");
    for side in [serde_json::json!(20), serde_json::json!([32, 32]), serde_json::json!(0)] {
        for entry in fs::read_dir(&from).unwrap().map(Result::unwrap) {
            fs::copy(entry.path(), place.path().join(entry.file_name())).unwrap();
        }
        let config = place.path().join("config.json");
        let mut said: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        said["sample_size"] = side.clone();
        fs::write(&config, said.to_string()).unwrap();
        let mut vae = load(place.path());
        let error = vae.enable_tiling().unwrap_err().to_string();
        assert!(error.contains("sample_size") && error.contains(&side.to_string()), "{error}");
        let size = Grid { height: 9, width: 9 };
        assert!(block_on(vae.decode(&noise(81 * 16, 13), 1, size)).is_ok(), "without tiles it runs");
    }
}
