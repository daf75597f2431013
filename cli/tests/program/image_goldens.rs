//! Pictures that `engraft image` writes against those of the reference: every run of the golden pipelines
//! that a command line can ask for, with the noise that the reference took, as PNG files.

use crate::support::{engraft, folder, manifest, stderr, stdout};
use engraft::engraft_diffusion::engraft_image::{PictureLimits, decode, encode_png};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Runs of the golden pipelines, and those of them that no command line asks for: of twelve six have an
/// argument without a flag, and six a picture that no PNG file of 8 bits holds.
const RUNS: usize = 52;
const LEFT_OUT: usize = 12;

/// Arguments that have no flag: texts for one encoder alone, sizes that XL reads, a ControlNet's share of the
/// steps and its guess mode.
const WITHOUT_FLAGS: [&str; 7] = [
    "prompt_2",
    "prompt_3",
    "original_size",
    "negative_original_size",
    "control_guidance_start",
    "control_guidance_end",
    "guess_mode",
];

/// Flags of arguments that are numbers.
const NUMBERS: [(&str, &str); 8] = [
    ("num_inference_steps", "--steps"),
    ("guidance_scale", "--guidance"),
    ("true_cfg_scale", "--true-guidance"),
    ("max_sequence_length", "--text-tokens"),
    ("guidance_rescale", "--guidance-rescale"),
    ("clip_skip", "--clip-skip"),
    ("strength", "--strength"),
    ("controlnet_conditioning_scale", "--control-scale"),
];

/// One run, and where its files go.
struct Run<'a> {
    pipeline: &'a Path,
    name: &'a str,
    said: &'a Value,
    tensors: SafeTensors<'a>,
    place: &'a Path,
}

fn all_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => all_files(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(one) => vec![one.clone()],
        Value::Array(all) => all.iter().map(|text| text.as_str().unwrap().to_string()).collect(),
        _ => Vec::new(),
    }
}

impl Run<'_> {
    /// Columns, lines and bytes of a picture of the golden; none for one that no PNG file holds.
    fn picture(&self, name: &str) -> Option<(usize, usize, Vec<u8>)> {
        let tensor = self.tensors.tensor(name).unwrap();
        let [_, channels, height, width] = tensor.shape()[..] else { panic!("{name}") };
        let values: Vec<f32> =
            tensor.data().as_chunks().0.iter().map(|four| 255.0 * f32::from_le_bytes(*four)).collect();
        let at = |i: usize| values[(i % 3).min(channels - 1) * height * width + i / 3].round() as u8;
        let whole = values.iter().all(|x| (x - x.round()).abs() < 1e-3);
        whole.then(|| (width, height, (0..height * width * 3).map(at).collect()))
    }

    /// A PNG file of a picture of the golden.
    fn png(&self, name: &str) -> Option<String> {
        let (width, height, rgb) = self.picture(name)?;
        let file = self.place.join(format!("{name}.png"));
        fs::write(&file, encode_png(&rgb, width, height).unwrap()).unwrap();
        Some(file.to_str().unwrap().to_string())
    }

    /// The noise that the reference took, as `--noise` reads it.
    fn noise(&self) -> String {
        let file = self.place.join("noise.safetensors");
        let mut all: Vec<(String, TensorView<'_>)> = Vec::new();
        for name in self.tensors.names() {
            let to = match name.strip_prefix("in.") {
                Some("latents" | "noise.latents.0") => "latents".to_string(),
                Some("step_noise") => "step".to_string(),
                Some(other) => match other.strip_prefix("noise.") {
                    Some(posterior) => posterior.to_string(),
                    None => continue,
                },
                None => continue,
            };
            let from = self.tensors.tensor(name).unwrap();
            all.push((to, TensorView::new(Dtype::F32, from.shape().to_vec(), from.data()).unwrap()));
        }
        safetensors::serialize_to_file(all, None, &file).unwrap();
        file.to_str().unwrap().to_string()
    }

    /// The model: a copy with another scheduler's settings where the run has some.
    fn model(&self) -> PathBuf {
        if self.said["scheduler"].is_null() {
            return self.pipeline.to_owned();
        }
        let place = self.place.join("model");
        all_files(self.pipeline, &place);
        fs::write(place.join("scheduler/scheduler_config.json"), self.said["scheduler"].to_string()).unwrap();
        place
    }

    /// The command line; none where there is none for it.
    fn args(&self) -> Option<Vec<String>> {
        let call = &self.said["call"];
        if WITHOUT_FLAGS.iter().any(|name| !call[*name].is_null()) {
            return None;
        }
        let mut args: Vec<String> = vec!["image".into(), "-m".into(), self.model().display().to_string()];
        let mut add = |flag: &str, value: String| args.extend([flag.to_string(), value]);
        texts(&call["prompt"]).into_iter().for_each(|text| add("--prompt", text));
        texts(&call["negative_prompt"]).into_iter().for_each(|text| add("--negative", text));
        for (name, flag) in NUMBERS.iter().filter(|(name, _)| call[*name].is_number()) {
            add(flag, call[*name].to_string());
        }
        if let (Some(width), Some(height)) = (call["width"].as_u64(), call["height"].as_u64()) {
            add("--size", format!("{width}x{height}"));
        }
        if let Some(lora) = self.said["lora"].as_str() {
            let scale = call["cross_attention_kwargs"]["scale"].as_f64();
            let scale = scale.map_or(String::new(), |scale| format!("@{scale}"));
            add("--lora", format!("{}{scale}", self.pipeline.join(lora).display()));
        }
        texts(&self.said["dropped"]).into_iter().for_each(|name| add("--without", name));
        let there = |name: &str| self.tensors.names().contains(&name);
        let controlled = self.said["pipeline_class"] == "StableDiffusionControlNetPipeline";
        if there("in.image") {
            add(if controlled { "--control" } else { "--init" }, self.png("in.image")?);
        }
        if there("in.mask_image") {
            add("--mask", self.png("in.mask_image")?);
        }
        add("--noise", self.noise());
        add("--out", self.place.join("out.png").display().to_string());
        Some(args)
    }

    /// Whether the command line has words for it; the pictures it writes are compared then.
    fn holds(&self) -> bool {
        let what = format!("{} {}", self.pipeline.file_name().unwrap().display(), self.name);
        let Some(args) = self.args() else {
            println!("{what}: left out: no flags for it, or pictures of more than 8 bits");
            return false;
        };
        let output = engraft(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(output.status.success(), "{what}: {args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("noise.safetensors, "), "{}", stderr(&output));
        let want = self.tensors.tensor("image").unwrap();
        let [count, height, width, 3] = want.shape()[..] else { panic!("{what}") };
        let files: Vec<String> = stdout(&output).lines().map(str::to_string).collect();
        assert_eq!(files.len(), count, "{what}: {files:?}");
        let mut worst = 0;
        for (file, want) in files.iter().zip(want.data().chunks(height * width * 3)) {
            let got = decode(&fs::read(file).unwrap(), PictureLimits::default()).unwrap();
            assert_eq!((got.width, got.height), (width, height), "{what}");
            let got = got.rgb.iter().map(|x| (255.0 * x).round() as i32);
            let off = got.zip(want).map(|(got, want)| (got - i32::from(*want)).abs());
            worst = worst.max(off.max().unwrap());
        }
        println!("{what}: {count} of {width} x {height}, bytes differ by {worst} at most");
        assert!(worst <= 1, "{what}: a byte differs by {worst}");
        true
    }
}

#[test]
fn png_files_are_the_pictures_of_the_reference() {
    let all = manifest().join("../tests/golden-image/pipelines");
    let mut pipelines: Vec<PathBuf> = fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect();
    pipelines.sort();
    let (mut count, mut left_out) = (0, 0);
    for pipeline in &pipelines {
        let said: Value = serde_json::from_slice(&fs::read(pipeline.join("golden.json")).unwrap()).unwrap();
        for (name, said) in said["runs"].as_object().unwrap() {
            let place = folder(&format!("golden-{}-{name}", pipeline.file_name().unwrap().display()));
            let bytes = fs::read(pipeline.join(format!("golden.{name}.safetensors"))).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let run = Run { pipeline, name, said, tensors, place: &place };
            left_out += usize::from(!run.holds());
            count += 1;
            fs::remove_dir_all(&place).unwrap();
        }
    }
    assert_eq!((count, left_out), (RUNS, LEFT_OUT), "runs, and those that are left out");
}

/// What a file of noise lacks is said, and nothing is written.
#[test]
fn noise_that_does_not_fit_is_refused_by_name() {
    let place = folder("odd-noise");
    let (file, out) = (place.join("noise.safetensors"), place.join("x.png"));
    let values: Vec<u8> = (0..4 * 8 * 10).flat_map(|i| (0.01 * i as f32).to_le_bytes()).collect();
    let write = |name: &str| {
        let tensor = TensorView::new(Dtype::F32, vec![1, 4, 8, 10], &values).unwrap();
        safetensors::serialize_to_file([(name, tensor)], None, &file).unwrap();
    };
    let model = manifest().join("../tests/golden-image/pipelines/sd1");
    let args = |more: &[&str]| -> Vec<String> {
        let [model, file, out] = [&model, &file, &out].map(|path| path.display().to_string());
        let own = ["image", "-m", &model, "-p", "a fox", "--steps", "1", "--noise", &file, "-o", &out];
        own.iter().chain(more).map(|arg| arg.to_string()).collect()
    };
    let said = |more: &[&str]| {
        let output = engraft(&args(more).iter().map(String::as_str).collect::<Vec<_>>());
        (output.status.code(), stderr(&output))
    };
    write("latents");
    assert_eq!(said(&["--size", "40x32"]).0, Some(0));
    fs::remove_file(&out).unwrap();
    for (more, words) in [
        (&["--size", "32x32"][..], ["`latents`", "[1, 4, 8, 10]"]),
        (&["--size", "40x32", "--scheduler", "euler-a"], ["`step`", "is not in"]),
        (&["--size", "40x32", "-p", "a dog"], ["`latents`", "picture 2"]),
    ] {
        let (code, said) = said(more);
        assert!(code == Some(1) && words.iter().all(|word| said.contains(word)), "{more:?}: {said}");
    }
    write("sample");
    assert!(said(&["--size", "40x32"]).1.contains("`sample`"));
    let (code, text) = said(&["--size", "40x32", "--seed", "3"]);
    assert!(code == Some(2) && text.contains("--seed"), "{text}");
    assert!(!out.exists());
}
