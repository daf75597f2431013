//! What tests of pictures share: pipelines as servers and as the library, and their files.

use crate::common::{Answer, Running, config, start_with};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engraft::engraft_diffusion::ImageRequest;
use engraft::engraft_diffusion::engraft_image::encode_png;
use engraft::{ImageGenerator, ImageHandle, ImageOptions};
use engraft_server::ServerConfig;
use std::path::{Path, PathBuf};

pub fn pipeline(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden-image/pipelines").join(name)
}

/// A configuration for pictures: no chat, one name.
pub fn own() -> ServerConfig {
    ServerConfig { chat_template: None, ..config() }
}

pub fn serving(name: &str, config: ServerConfig) -> Running {
    let folder = pipeline(name);
    start_with(config, move || ImageHandle::open(&folder, &ImageOptions::default()))
}

pub fn library(name: &str) -> ImageGenerator {
    ImageGenerator::open(pipeline(name), &ImageOptions::default()).unwrap()
}

/// The library's files.
pub fn files(model: &mut ImageGenerator, request: &ImageRequest, seed: u64) -> Vec<Vec<u8>> {
    let images = model.generate(request, seed, |_| {}).unwrap();
    images.rgb.iter().map(|rgb| encode_png(rgb, request.width, request.height).unwrap()).collect()
}

/// Whether files are those that are wanted; it names the first byte that is not.
pub fn alike(got: &[Vec<u8>], want: &[Vec<u8>], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: files");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let at = got.iter().zip(want).position(|(got, want)| got != want);
        let values = at.map(|at| (at, got[at], want[at]));
        let sizes = [got.len(), want.len()];
        assert!(
            got == want,
            "{what}: file {i} of {sizes:?} bytes, first other byte (at, got, want) {values:?}"
        );
    }
}

/// The files of an answer.
pub fn made(answer: &Answer) -> Vec<Vec<u8>> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let all = answer.json()["data"].as_array().unwrap().clone();
    all.iter().map(|one| STANDARD.decode(one["b64_json"].as_str().unwrap()).unwrap()).collect()
}
