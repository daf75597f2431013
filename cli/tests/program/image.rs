//! `engraft image` as a script uses it.

use crate::support::{engraft, fails, folder, manifest, misused, stderr, stdout};
use engraft::engraft_diffusion::engraft_image::{Picture, PictureLimits, decode, encode_png};
use safetensors::{Dtype, tensor::TensorView};
use std::fs;
use std::path::{Path, PathBuf};

fn model(name: &str) -> String {
    manifest().join("../tests/golden-image/pipelines").join(name).to_str().unwrap().to_string()
}

fn picture(path: impl AsRef<Path>) -> Picture {
    decode(&fs::read(path).unwrap(), PictureLimits::default()).unwrap()
}

/// A pipeline's folder that may be broken.
fn copy(name: &str) -> PathBuf {
    copy_of("sd1", name)
}

fn copy_of(pipeline: &str, name: &str) -> PathBuf {
    fn all(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let to = to.join(entry.file_name());
            match entry.path().is_dir() {
                true => all(&entry.path(), &to),
                false => drop(fs::copy(entry.path(), to).unwrap()),
            }
        }
    }
    let to = folder(name);
    all(Path::new(&model(pipeline)), &to);
    to
}

#[test]
fn pictures_are_written_and_are_those_that_they_are_alone() {
    let (place, model) = (folder("pictures"), model("sd1"));
    let file = |name: &str| place.join(name).to_str().unwrap().to_string();
    let run = |prompts: &[&str], seed: &str, out: &str| {
        let out = file(out);
        let mut args =
            vec!["image", "-m", &model, "--size", "40x32", "--steps", "3", "--seed", seed, "-o", &out];
        prompts.iter().for_each(|prompt| args.extend(["-p", prompt]));
        let output = engraft(&args);
        let said = stderr(&output);
        assert!(said.contains(&format!("40 x 32, 3 steps, seed {seed}, ")), "{said}");
        assert!(said.contains(" s a step, ") && said.ends_with(" s to decode)\n"), "{said}");
        stdout(&output)
    };
    assert_eq!(
        run(&["a fox", "a dog"], "5", "both.png"),
        format!("{}\n{}\n", file("both-1.png"), file("both-2.png"))
    );
    assert_eq!(run(&["a dog"], "6", "dog.png"), format!("{}\n", file("dog.png")));
    let (fox, dog) = (picture(file("both-1.png")), picture(file("both-2.png")));
    assert_eq!((fox.width, fox.height), (40, 32));
    assert_eq!(dog.rgb, picture(file("dog.png")).rgb);
    assert_ne!(fox.rgb, dog.rgb);
    run(&["a dog"], "7", "other.png");
    assert_ne!(dog.rgb, picture(file("other.png")).rgb, "another seed");
}

/// Nor on how many threads there are, on how files are read, and on whether steps are captured.
#[test]
fn bits_do_not_depend_on_how_a_picture_is_made() {
    let (place, model) = (folder("ways"), model("sd1"));
    let run = |more: &[&str]| {
        let out = place.join("one.png").to_str().unwrap().to_string();
        let args = ["image", "-m", &model, "-p", "a fox", "--size", "40x32", "--steps", "2", "--seed", "5"];
        stdout(&engraft(&[&args[..], &["-o", &out], more].concat()));
        fs::read(out).unwrap()
    };
    let plain = run(&[]);
    for more in [&["--threads", "1"][..], &["--threads", "3"], &["--no-mmap"], &["--no-graphs"]] {
        assert!(run(more) == plain, "{more:?}");
    }
}

/// A picture goes to standard output, or to a file whose name says what it is.
#[test]
fn places_of_pictures_are_honoured_or_warned_of() {
    let (place, model) = (folder("places"), model("sd1"));
    let run = |out: &str, more: &[&str]| {
        let args = ["image", "-m", &model, "-p", "a fox", "--size", "16x16", "--seed", "5", "-o", out];
        let args: Vec<&str> =
            args.iter().chain(&["--steps", "1", "--scheduler", "ddim"]).chain(more).copied().collect();
        crate::support::in_folder(&place, &args, "")
    };
    let piped = run("-", &[]);
    assert!(piped.status.success() && !place.join("-").exists(), "{}", stderr(&piped));
    assert!(
        !stderr(&piped).contains("warning") && stderr(&piped).contains(", 1 step, "),
        "{}",
        stderr(&piped)
    );
    let named = run("x.jpg", &[]);
    assert_eq!(stdout(&named), "x.jpg\n");
    assert!(stderr(&named).contains("warning: x.jpg does not end in .png"), "{}", stderr(&named));
    assert_eq!(piped.stdout, fs::read(place.join("x.jpg")).unwrap());
    let several = run("-", &["-p", "a dog"]);
    assert_eq!(several.status.code(), Some(2), "{}", stderr(&several));
    assert!(stderr(&several).contains("--out -: ") && several.stdout.is_empty(), "{}", stderr(&several));
}

/// PNDM calls the model once more than there are steps, also where it begins in their middle.
#[test]
fn steps_are_those_that_were_asked_for() {
    let (place, model) = (folder("steps"), model("sd1"));
    let file = |name: &str| place.join(name).to_str().unwrap().to_string();
    let first = file("first.png");
    let run = |out: &str, more: &[&str]| {
        let args = ["image", "-m", &model, "-p", "a fox", "--size", "16x16", "--seed", "5", "-o", out];
        stderr(&engraft(&args.iter().chain(more).copied().collect::<Vec<_>>()))
    };
    let said = run(&first, &["--steps", "2"]);
    assert!(said.contains(", 2 steps, "), "{said}");
    let again = ["--steps", "4", "--init", &first, "--strength", "0.5"];
    for scheduler in ["pndm", "ddim"] {
        let said = run(&file("second.png"), &[&again[..], &["--scheduler", scheduler]].concat());
        assert!(said.contains(", 2 steps, "), "{scheduler}: {said}");
    }
}

#[test]
fn transformers_make_pictures_with_and_without_their_largest_encoder() {
    let place = folder("transformers");
    let run = |name: &str, more: &[&str], out: &str| {
        let (model, out) = (model(name), place.join(out).to_str().unwrap().to_string());
        let args = ["image", "-m", &model, "-p", "a fox", "--size", "24x16", "--steps", "2", "--seed", "5"];
        let args = [&args[..], &["--text-tokens", "9", "-o", &out], more].concat();
        assert!(stderr(&engraft(&args)).contains("24 x 16, 2 steps, seed 5, "));
        picture(out)
    };
    let schnell = run("flux_schnell", &[], "schnell.png");
    assert_eq!((schnell.width, schnell.height), (24, 16));
    let with = run("sd3", &["--negative", "a dog"], "with.png");
    let without = run("sd3", &["--negative", "a dog", "--without", "text_encoder_3"], "without.png");
    assert_ne!(with.rgb, without.rgb);
    let out = place.join("none.png").to_str().unwrap().to_string();
    let flux = model("flux");
    let args = ["image", "-m", &flux, "-p", "a", "--size", "20x16", "-o", &out];
    fails(&args, &["width", "a multiple of 8"]);
}

#[test]
fn large_pictures_are_made_in_tiles_where_that_is_asked_for() {
    let (place, model) = (folder("tiled"), model("sd1"));
    let run = |width: &str, more: &[&str], out: &str| {
        let out = place.join(out).to_str().unwrap().to_string();
        let size = format!("{width}x32");
        let args = ["image", "-m", &model, "-p", "a fox", "-p", "a dog", "--size", &size, "--steps", "2"];
        let output = engraft(&[&args[..], &["--seed", "5", "-o", &out], more].concat());
        stdout(&output).lines().map(|line| picture(line).rgb).collect::<Vec<_>>()
    };
    // A tile of this folder is 32 pixels wide.
    let whole = run("48", &[], "whole.png");
    assert_ne!(run("48", &["--vae-tiling"], "tiled.png"), whole);
    assert_eq!(run("48", &["--vae-slicing"], "sliced.png"), whole);
    assert_eq!(run("32", &["--vae-tiling"], "one.png"), run("32", &[], "small.png"));
    let odd = copy("odd-tiles");
    replace(&odd.join("vae/config.json"), "\"sample_size\": 32", "\"sample_size\": 20");
    let (odd, out) = (odd.to_str().unwrap(), place.join("x.png"));
    let args = ["image", "-m", odd, "-p", "a fox", "-o", out.to_str().unwrap()];
    fails(&[&args[..], &["--vae-tiling"]].concat(), &["sample_size", "20", "whole latents"]);
    assert!(!out.exists());
}

#[test]
fn transformers_begin_with_pictures_and_read_loras() {
    let (place, model) = (folder("begun"), model("flux"));
    let file = |name: &str| place.join(name).to_str().unwrap().to_string();
    let write = |name: &str, of: &dyn Fn(usize, usize) -> u8| {
        let rgb = (0..16).flat_map(|y| (0..24).flat_map(move |x| [(y, x); 3]));
        let rgb: Vec<u8> = rgb.map(|(y, x)| of(y, x)).collect();
        fs::write(file(name), encode_png(&rgb, 24, 16).unwrap()).unwrap();
    };
    write("init.png", &|y, x| (9 * y + 4 * x) as u8);
    write("mask.png", &|_, x| if x < 8 { 255 } else { 0 });
    let (init, mask, lora) = (file("init.png"), file("mask.png"), model.clone() + "/lora_kohya.safetensors");
    let run = |out: &str, more: &[&str]| {
        let out = file(out);
        let args =
            ["image", "-m", &model, "-p", "a fox", "--seed", "5", "--steps", "4", "--text-tokens", "9"];
        let output =
            engraft(&[&args[..], &["-o", &out, "--init", &init, "--strength", "0.6"], more].concat());
        assert!(stderr(&output).contains("24 x 16, 3 steps, seed 5, "), "{}", stderr(&output));
        picture(out)
    };
    let free = run("free.png", &[]);
    let masked = run("masked.png", &["--mask", &mask]);
    assert_ne!(free.rgb, masked.rgb);
    let half = format!("{lora}@0.5");
    let [all, half] = [&lora, &half].map(|lora| run("lora.png", &["--lora", lora]));
    assert!(all.rgb != free.rgb && half.rgb != free.rgb && all.rgb != half.rgb);
}

#[test]
fn what_a_mask_hides_stays() {
    let (place, model) = (folder("masked"), model("sd1"));
    let file = |name: &str| place.join(name).to_str().unwrap().to_string();
    let write = |name: &str, of: &dyn Fn(usize, usize) -> u8| {
        let rgb: Vec<u8> =
            (0..32).flat_map(|y| (0..40).flat_map(move |x| [(y, x); 3])).map(|(y, x)| of(y, x)).collect();
        fs::write(file(name), encode_png(&rgb, 40, 32).unwrap()).unwrap();
    };
    write("init.png", &|y, x| (5 * y + 2 * x) as u8);
    write("mask.png", &|_, x| if x < 20 { 255 } else { 0 });
    let run = |out: &str, more: &[&str]| {
        let (out, init) = (file(out), file("init.png"));
        let args = [
            "image", "-m", &model, "-p", "a fox", "--init", &init, "--seed", "1", "--steps", "4", "-o", &out,
        ];
        stdout(&engraft(&[&args[..], more].concat()));
        picture(out)
    };
    let mask = file("mask.png");
    let (free, masked) = (
        run("free.png", &["--scheduler", "ddim"]),
        run("masked.png", &["--scheduler", "ddim", "--mask", &mask]),
    );
    assert_eq!((free.width, free.height), (40, 32));
    assert_ne!(free.rgb, masked.rgb);
    // The same latents come out where the mask is black, whatever the prompt.
    let other = {
        let (out, init) = (file("other.png"), file("init.png"));
        let args = [
            "image", "-m", &model, "-p", "lamps", "--init", &init, "--seed", "1", "--steps", "4", "-o", &out,
        ];
        stdout(&engraft(&[&args[..], &["--scheduler", "ddim", "--mask", &mask]].concat()));
        picture(out)
    };
    let differs = |a: &Picture, b: &Picture, columns: std::ops::Range<usize>| -> f32 {
        let at = |p: &Picture, y: usize, x: usize| p.rgb[(y * 40 + x) * 3];
        let all = (0..32).flat_map(|y| columns.clone().map(move |x| (y, x)));
        let sum: f32 = all.map(|(y, x)| (at(a, y, x) - at(b, y, x)).abs()).sum();
        sum / (32 * columns.len()) as f32
    };
    assert!(differs(&masked, &other, 36..40) < 0.5 * differs(&masked, &other, 0..16));
}

#[test]
fn what_cannot_be_done_is_said() {
    let (place, own) = (folder("refusing"), model("sd1"));
    let out = place.join("x.png").to_str().unwrap().to_string();
    let args = |more: &[&'static str]| {
        [&["image", "-p", "a fox", "-o"][..], &[Box::leak(out.clone().into_boxed_str())], more].concat()
    };
    let with = |more: &[&'static str]| {
        let model: &'static str = Box::leak(own.clone().into_boxed_str());
        args(&[&["-m", model][..], more].concat())
    };
    fails(&with(&["--size", "41x32"]), &["width", "41", "multiple of 4"]);
    fails(&with(&["--size", "0x32"]), &["width", "0"]);
    fails(&with(&["--steps", "5000"]), &["5000"]);
    fails(&with(&["--clip-skip", "9"]), &["clip_skip", "9"]);
    fails(&with(&["--init", "/no/such.png"]), &["/no/such.png"]);
    fails(&args(&["-m", "/no/such"]), &["/no/such"]);
    fails(&with(&["--lora", "/no/such.safetensors"]), &["/no/such.safetensors"]);
    let other = model("sdxl") + "/lora_kohya_sgm.safetensors";
    let other: &'static str = Box::leak(other.into_boxed_str());
    fails(&with(&["--lora", other]), &["input_blocks_3_1", "for a weight"]);
    let absent = place.join("absent.safetensors");
    let rank = TensorView::new(Dtype::F32, vec![1, 2], &[0; 8]).unwrap();
    let both =
        ["lora_down", "lora_up"].map(|part| (format!("lora_te2_elsewhere.{part}.weight"), rank.clone()));
    safetensors::serialize_to_file(both, None, &absent).unwrap();
    let absent: &'static str = Box::leak(absent.to_str().unwrap().to_string().into_boxed_str());
    fails(&with(&["--lora", absent]), &["no component has these modules", "text_encoder_2 elsewhere"]);
    misused(&with(&["--lora", "x.safetensors@much"]), &["number"]);
    misused(&with(&["--scheduler", "magic"]), &["--scheduler magic"]);
    misused(&with(&["--size", "big"]), &["512x768"]);
    misused(&with(&["--mask", "m.png"]), &["--init"]);
    misused(&["image", "-p", "a fox", "-m", &own, "-o", "/no/such/x.png"], &["no such folder"]);
    misused(&["image", "-m", &own, "-o", "x.png"], &["--prompt"]);
    for args in
        [&["generate", "a", "-m", &own][..], &["bench", "-m", &own], &["convert", &own, "--out", &out]]
    {
        misused(args, &[&own, "pipeline that makes pictures", "engraft image -m"]);
    }
    assert!(!Path::new(&out).exists());
    for (name, broken, words) in [
        (
            "no-vae",
            &(|p: &Path| fs::remove_dir_all(p.join("vae")).unwrap()) as &dyn Fn(&Path),
            &["vae", "no folder"][..],
        ),
        (
            "class",
            &|p| replace(&p.join("model_index.json"), "StableDiffusionPipeline", "KandinskyPipeline"),
            &["_class_name", "KandinskyPipeline"],
        ),
        (
            "field",
            &|p| {
                replace(
                    &p.join("unet/config.json"),
                    "\"act_fn\"",
                    "\"dual_cross_attention\": true, \"act_fn\"",
                )
            },
            &["dual_cross_attention", "true"],
        ),
        (
            "block",
            &|p| replace(&p.join("unet/config.json"), "CrossAttnDownBlock2D", "AttnDownBlock2D"),
            &["down_block_types", "AttnDownBlock2D"],
        ),
        (
            "heads",
            &|p| {
                replace(&p.join("unet/config.json"), "\"attention_head_dim\": 4", "\"attention_head_dim\": 3")
            },
            &["3 heads", "attn1"],
        ),
        (
            "shape",
            &|p| replace(&p.join("unet/config.json"), "\"in_channels\": 4", "\"in_channels\": 5"),
            &["conv_in.weight", "5"],
        ),
        (
            "attention",
            &|p| {
                let (from, to) = ("\"in_channels\"", "\"mid_block_add_attention\": false, \"in_channels\"");
                replace(&p.join("vae/config.json"), from, to);
            },
            &["left over", "mid_block.attentions.0"],
        ),
        (
            "scheduler",
            &|p| replace(&p.join("scheduler/scheduler_config.json"), "PNDMScheduler", "OddScheduler"),
            &["OddScheduler"],
        ),
    ] {
        let place = copy(name);
        broken(&place);
        let model: &'static str = Box::leak(place.to_str().unwrap().to_string().into_boxed_str());
        fails(&args(&["-m", model]), words);
    }
}

/// A part of a PNG file.
fn chunk(name: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let bit = |sum: u32| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    let byte = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), |sum, _| bit(sum));
    let named = [&name[..], data].concat();
    let sum: u32 = !named.iter().fold(!0, byte);
    [&(data.len() as u32).to_be_bytes()[..], &named, &sum.to_be_bytes()].concat()
}

/// The beginning of a PNG file of so many pixels.
fn head(width: u32, height: u32) -> Vec<u8> {
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    let head = chunk(b"IHDR", &[&size[..], &[8, 2, 0, 0, 0]].concat());
    [&b"\x89PNG\r\n\x1a\n"[..], &head, &chunk(b"IDAT", &[0x78, 0x9c])].concat()
}

/// Pictures are read before a model is: this one is not there.
#[test]
fn pictures_that_cannot_be_read_are_refused_by_name() {
    let (place, model) = (folder("odd-pictures"), "/no/such/model");
    let file = |name: &str| place.join(name).to_str().unwrap().to_string();
    let png = encode_png(&[7; 16 * 16 * 3], 16, 16).unwrap();
    fs::write(file("good.png"), &png).unwrap();
    fs::write(file("text.png"), "a fox").unwrap();
    fs::write(file("half.png"), &png[..png.len() / 2]).unwrap();
    fs::write(file("large.png"), head(70_000, 1000)).unwrap();
    let (good, out) = (file("good.png"), file("x.png"));
    for (name, words) in [
        ("text.png", &["text.png", "cannot be decoded", "neither PNG nor JPEG"][..]),
        ("half.png", &["half.png", "cannot be decoded"]),
        ("large.png", &["large.png", "70000 x 1000", "pixels"]),
        ("none.png", &["none.png"]),
    ] {
        let odd = file(name);
        let args = ["image", "-m", model, "-p", "a fox", "-o", &out];
        for flags in [&["--init", &odd][..], &["--init", &good, "--mask", &odd], &["--control", &odd]] {
            fails(&[&args[..], flags].concat(), words);
        }
    }
    fails(&["image", "-m", model, "-p", "a fox", "-o", &out, "--init", &good], &[model]);
    assert!(!Path::new(&out).exists());
}

/// A name, how a folder is broken, and words of the error.
type Broken<'a> = (&'a str, &'a dyn Fn(&Path), &'a [&'a str]);

#[test]
fn components_and_settings_that_no_pipeline_has_are_refused_by_name() {
    let out = folder("odd-settings").join("x.png").to_str().unwrap().to_string();
    let index = |p: &Path| p.join("model_index.json");
    let gone = |p: &Path, name: &str| fs::remove_dir_all(p.join(name)).unwrap();
    let scheduler = |p: &Path, more: &str| {
        let file = p.join("scheduler/scheduler_config.json");
        replace(&file, "\"steps_offset\"", &format!("{more}, \"steps_offset\""));
    };
    let unnamed = |p: &Path, name: &str| {
        let mut said: serde_json::Value = serde_json::from_slice(&fs::read(index(p)).unwrap()).unwrap();
        said[name] = serde_json::json!([null, null]);
        fs::write(index(p), said.to_string()).unwrap();
    };
    let cases: [Broken<'_>; 11] = [
        ("unet", &|p| gone(p, "unet"), &["no folder `unet`", "model_index.json names"]),
        ("text_encoder", &|p| gone(p, "text_encoder"), &["no folder `text_encoder`"]),
        ("tokenizer", &|p| gone(p, "tokenizer"), &["no folder `tokenizer`"]),
        ("scheduler", &|p| gone(p, "scheduler"), &["no folder `scheduler`"]),
        ("unnamed", &|p| unnamed(p, "vae"), &["has no `vae`", "StableDiffusionPipeline needs"]),
        ("index", &|p| fs::remove_file(index(p)).unwrap(), &["model_index.json"]),
        (
            "prediction",
            &|p| scheduler(p, "\"prediction_type\": \"velocity\""),
            &["prediction_type", "velocity", "v_prediction"],
        ),
        (
            "spacing",
            &|p| scheduler(p, "\"timestep_spacing\": \"backwards\""),
            &["timestep_spacing", "backwards", "trailing"],
        ),
        (
            "latents",
            &|p| replace(&p.join("vae/config.json"), "\"latent_channels\": 4", "\"latent_channels\": 5"),
            &["latent_channels", "10", "8"],
        ),
        (
            "texts",
            &|p| replace(&p.join("text_encoder/config.json"), "\"hidden_size\": 24", "\"hidden_size\": 48"),
            &["48"],
        ),
        ("weights", &|p| drop(fs::write(p.join("vae/config.json"), "{}")), &["_class_name"]),
    ];
    for (name, broken, words) in cases {
        let place = copy(&format!("odd-{name}"));
        broken(&place);
        fails(&["image", "-m", place.to_str().unwrap(), "-p", "a fox", "-o", &out], words);
    }
    assert!(!Path::new(&out).exists());
}

#[test]
fn a_picture_is_followed() {
    let place = folder("followed");
    let file = |name: &str| place.join(name).to_str().unwrap().to_string();
    let rgb: Vec<u8> = (0..24 * 32).flat_map(|at| [if at % 24 < 9 { 255 } else { 30 }; 3]).collect();
    fs::write(file("edges.png"), encode_png(&rgb, 24, 32).unwrap()).unwrap();
    let (own, plain, edges) = (model("sd1_controlnet"), model("sd1"), file("edges.png"));
    let run = |out: &str, more: &[&str]| {
        let out = file(out);
        let args =
            ["image", "-m", &own, "-p", "a fox", "--control", &edges, "--seed", "1", "--steps", "2", "-o"];
        let output = engraft(&[&args[..], &[&out], more].concat());
        assert!(stdout(&output).contains(&out));
        (picture(&out), stderr(&output))
    };
    let (full, said) = run("full.png", &[]);
    assert_eq!((full.width, full.height), (24, 32));
    assert!(!said.contains("warning"), "{said}");
    assert_ne!(run("half.png", &["--control-scale", "0.5"]).0.rgb, full.rgb);
    assert_eq!(run("other.png", &["--controlnet", &format!("{own}/controlnet")]).0.rgb, full.rgb);
    let (_, said) = run("free.png", &["--guidance", "1", "--negative", "rain"]);
    assert!(said.contains("warning: negative_prompt counts for nothing without guidance"), "{said}");
    let out = file("x.png");
    let begin = ["image", "-p", "a fox", "-o", &out];
    let with = |more: &[&'static str]| {
        let all: Vec<&'static str> = begin.iter().map(|arg| &*arg.to_string().leak()).collect();
        [&all[..], more].concat()
    };
    let [own, plain, edges]: [&'static str; 3] = [own, plain, edges].map(|text| &*text.leak());
    fails(&with(&["-m", plain, "--control", edges]), &["control", "no ControlNet"]);
    fails(&with(&["-m", own]), &["control", "has a ControlNet"]);
    misused(&with(&["-m", own, "--control", edges, "--size", "32x32"]), &["--control is 24 x 32"]);
    misused(&with(&["-m", own, "--control-scale", "0.5"]), &["--control"]);
    // Two text encoders have to read as far.
    let short = copy_of("sdxl", "short");
    let config = short.join("tokenizer_2/tokenizer_config.json");
    let mut said: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    said["model_max_length"] = 7.into();
    fs::write(&config, said.to_string()).unwrap();
    let short: &'static str = short.to_str().unwrap().to_string().leak();
    fails(&with(&["-m", short]), &["model_max_length", "7", "other text encoder"]);
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{}: {from}", path.display());
    fs::write(path, text.replace(from, to)).unwrap();
}
