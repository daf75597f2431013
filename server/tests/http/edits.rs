//! `/v1/images/edits`: held against the library's own pictures of the same files.

use crate::common::{Answer, Running, config, eventually, metric, start};
use crate::pictures::{alike, files, library, made, own, serving};
use engraft::engraft_diffusion::engraft_image::{PictureLimits, decode, decode_mask, encode_png};
use engraft::engraft_diffusion::{ImageRequest, Init};
use engraft::named_scheduler;
use engraft_server::ServerConfig;
use serde_json::json;
use std::io::Write;

const PATH: &str = "/v1/images/edits";

/// A picture of these pixels.
fn png(width: usize, height: usize, of: impl Fn(usize, usize) -> u8) -> Vec<u8> {
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
    let rgb: Vec<u8> = pixels.flat_map(|(y, x)| [of(y, x); 3]).collect();
    encode_png(&rgb, width, height).unwrap()
}

fn image() -> Vec<u8> {
    png(40, 32, |y, x| (5 * y + 2 * x) as u8)
}

/// The left half is white.
fn mask() -> Vec<u8> {
    png(40, 32, |_, x| if x < 20 { 255 } else { 0 })
}

/// A multipart body of texts and files.
fn multipart(texts: &[(&str, &str)], files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut all = Vec::new();
    for (name, text) in texts {
        write!(all, "--line\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n").unwrap();
    }
    for (name, file) in files {
        let head = format!("Content-Disposition: form-data; name=\"{name}\"; filename=\"{name}.png\"");
        write!(all, "--line\r\n{head}\r\nContent-Type: image/png\r\n\r\n").unwrap();
        all.extend(*file);
        all.extend(b"\r\n");
    }
    all.extend(b"--line--\r\n");
    all
}

fn head(length: usize) -> String {
    format!(
        "POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: multipart/form-data; boundary=line\r\nContent-Length: {length}\r\n\r\n"
    )
}

fn post(server: &Running, texts: &[(&str, &str)], files: &[(&str, &[u8])]) -> Answer {
    let body = multipart(texts, files);
    server.raw(&[head(body.len()).as_bytes(), &body].concat())
}

/// What `engraft image --init --mask` reads.
fn init(image: &[u8], mask: Option<&[u8]>, strength: f64) -> Init {
    let limits = PictureLimits::default();
    let mask = mask.map(|mask| decode_mask(mask, limits).unwrap().values);
    Init { rgb: decode(image, limits).unwrap().rgb, strength, mask }
}

#[test]
fn pictures_are_those_of_the_library() {
    let (mut model, image, mask) = (library("sd1"), image(), mask());
    let of = |init: Init| ImageRequest {
        prompts: vec!["a fox".into(); 2],
        width: 40,
        height: 32,
        steps: Some(4),
        init: Some(init),
        ..ImageRequest::new("")
    };
    let server = serving("sd1", own());
    let plain = [("prompt", "a fox"), ("n", "2"), ("seed", "11"), ("num_inference_steps", "4")];
    // The strength of `engraft image`.
    let want = files(&mut model, &of(init(&image, None, 0.8)), 11);
    let answer = post(&server, &plain, &[("image", &image)]);
    alike(&made(&answer), &want, "other pictures than the library's");
    assert_eq!(answer.json()["size"], "40x32");
    assert_eq!(answer.header("x-engraft-seed").unwrap(), "11");
    assert_eq!(metric(&server, "engraft:images_total"), 2.0);
    // Everything at once, one picture after the other, named as lists.
    let all = ImageRequest {
        negative: Some(vec!["fog".into()]),
        guidance: Some(5.0),
        guidance_rescale: 0.5,
        clip_skip: 1,
        scheduler: Some(named_scheduler(model.scheduler(), "ddim").unwrap()),
        ..of(init(&image, Some(&mask), 0.6))
    };
    let want = files(&mut model, &all, 11);
    let more = [
        ("strength", "0.6"),
        ("negative_prompt", "fog"),
        ("guidance_scale", "5"),
        ("guidance_rescale", "0.5"),
        ("clip_skip", "1"),
        ("scheduler", "ddim"),
        ("size", "40x32"),
        ("response_format", "b64_json"),
        ("output_format", "png"),
        ("quality", "auto"),
        ("background", "auto"),
        ("input_fidelity", "low"),
        ("stream", "false"),
        ("partial_images", "0"),
        ("model", "demo"),
        ("user", "someone"),
    ];
    let few = serving("sd1", ServerConfig { max_image_pixels: 40 * 32, ..own() });
    let answer = post(&few, &[&plain[..], &more].concat(), &[("image[]", &image), ("mask", &mask)]);
    alike(&made(&answer), &want, "other pictures with a mask");
    assert_ne!(want, files(&mut model, &ImageRequest { init: Some(init(&image, None, 0.6)), ..all }, 11));
    // Steps are those that the strength leaves.
    assert_eq!(metric(&few, "engraft:image_steps_total"), 4.0);
}

#[test]
fn a_model_that_fills_in_pictures_needs_a_mask() {
    let (mut model, image, mask) = (library("sd1_inpaint"), image(), mask());
    let server = serving("sd1_inpaint", own());
    let request = ImageRequest {
        width: 40,
        height: 32,
        steps: Some(2),
        init: Some(init(&image, Some(&mask), 1.0)),
        ..ImageRequest::new("a fox")
    };
    let texts = [("prompt", "a fox"), ("seed", "3"), ("num_inference_steps", "2"), ("strength", "1")];
    let answer = post(&server, &texts, &[("mask", &mask), ("image", &image)]);
    alike(&made(&answer), &files(&mut model, &request, 3), "other pictures than the library's");
    let error = post(&server, &texts, &[("image", &image)]).error(400);
    assert_eq!(error["param"], "mask", "{error}");
    assert!(error["message"].as_str().unwrap().contains("fills in pictures"), "{error}");
    let error = server.post("/v1/images/generations", &json!({"prompt": "a fox"})).error(400);
    assert_eq!(error["param"], "mask", "{error}");
    let error = server.post("/v1/completions", &json!({"prompt": "x"})).error(400);
    let said = error["message"].as_str().unwrap();
    assert!(said.contains(PATH) && !said.contains("generations"), "{error}");
    // The reference has no pipeline of PixArt that begins with a picture.
    let error = post(&serving("pixart_sigma", own()), &texts, &[("image", &image)]).error(400);
    assert_eq!(error["param"], "image", "{error}");
    assert!(error["message"].as_str().unwrap().contains("this model reads none"), "{error}");
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let server =
        serving("sd1", ServerConfig { max_body_bytes: 64 << 10, max_image_pixels: 64 * 64, ..own() });
    let (image, mask) = (image(), mask());
    let plain = [("prompt", "a fox"), ("num_inference_steps", "2")];
    let refused = |texts: &[(&str, &str)], files: &[(&str, &[u8])], param: &str, what: &str| {
        let error = post(&server, texts, files).error(400);
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(what), "{error}");
    };
    refused(&plain, &[], "image", "is missing");
    refused(&plain[1..], &[("image", &image)], "prompt", "is missing");
    refused(&plain, &[("image", &image), ("image", &image)], "image", "given twice");
    refused(&plain, &[("image", b"no picture")], "image", "neither PNG nor JPEG");
    refused(&plain, &[("image", &image), ("mask", b"")], "mask", "neither PNG nor JPEG");
    let small = png(36, 32, |_, _| 0);
    refused(&plain, &[("image", &image), ("mask", &small)], "mask", "is 36 x 32; allowed: 40 x 32");
    refused(&plain, &[("image", &png(41, 32, |_, _| 0))], "image", "41 x 32; allowed: both a multiple of 4");
    // A small file of many pixels.
    refused(&plain, &[("image", &png(128, 64, |_, _| 0))], "image", "allowed: 1 to 4096 pixels");
    // Damaged behind its head: found in its turn.
    refused(&plain, &[("image", &image[..image.len() - 40])], "image", "cannot be decoded");
    refused(&plain, &[("image", &image), ("mask", &mask[..mask.len() - 20])], "mask", "cannot be decoded");
    for (field, value, what) in [
        ("size", "36x32", "is 36x32; allowed: auto, 40x32"),
        ("size", "large", "large"),
        ("strength", "1.5", "from 0 to 1"),
        ("strength", "much", "a number"),
        ("strength", "0", "one of 2 steps"),
        ("input_fidelity", "high", "strength"),
        ("style", "vivid", "not a field"),
        ("response_format", "url", "nothing is stored"),
        ("stream", "true", "does not have it"),
        ("n", "11", "is 11"),
        ("lora", "x", "--lora"),
        ("steps", "2", "num_inference_steps says it"),
    ] {
        refused(&[&plain[..], &[(field, value)]].concat(), &[("image", &image)], field, what);
    }
    let large = vec![0; 65 << 10];
    assert_eq!(post(&server, &plain, &[("image", &large)]).status, 413);
    assert_eq!(server.post(PATH, &json!({"prompt": "a fox"})).status, 415);
    assert_eq!(metric(&server, "engraft:image_steps_total"), 0.0);
    // Nothing of all this was kept.
    eventually("an empty server", || server.get("/load").json()["server_load"] == 0);
    assert_eq!(made(&post(&server, &plain, &[("image", &image)])).len(), 1);
    let described = server.get("/openapi.json").json()["paths"][PATH]["post"].clone();
    let fields = &described["requestBody"]["content"]["multipart/form-data"]["schema"];
    assert_eq!(fields["required"], json!(["image", "prompt"]));
    assert_eq!(fields["properties"]["mask"]["anyOf"][0]["format"], "binary");
    let types = described["responses"]["200"]["content"].as_object().unwrap();
    assert_eq!(types.keys().collect::<Vec<_>>(), ["application/json"]);
    // A model of texts makes no pictures.
    let error = post(&start(config()), &plain, &[("image", &image)]).error(400);
    assert!(error["message"].as_str().unwrap().contains("model_index.json"), "{error}");
}
