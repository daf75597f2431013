//! A pipeline that runs, and which requests it takes.

use crate::error::ApiError;
use crate::images::tables::{EDITED, GENERATIONS};
use engraft::engraft_diffusion::{ImageRequest, Init};
use engraft::{Error, ImageHandle, Result};

/// The side of pictures of a pipeline whose files say none.
const SIDE: usize = 512;

/// The route of pictures that are made of a text alone.
pub const OF_TEXTS: &str = "/v1/images/generations";
/// The route of pictures that begin with another one.
pub const OF_PICTURES: &str = "/v1/images/edits";

/// A pipeline that runs.
#[derive(Debug)]
pub struct Pictures {
    /// The pipeline, on its thread.
    pub model: ImageHandle,
    /// How often it has been loaded before.
    pub generation: u64,
    takes: Takes,
}

/// Whether a pipeline takes requests, or why it does not.
#[derive(Debug)]
struct Takes {
    /// Those without a picture.
    texts: std::result::Result<(), ApiError>,
    /// Those with a picture.
    pictures: std::result::Result<(), ApiError>,
    /// Those with a picture and a mask.
    masks: std::result::Result<(), ApiError>,
}

impl Pictures {
    /// A pipeline that takes some requests.
    ///
    /// # Errors
    /// `Architecture` where it needs what no request has.
    pub fn of(model: ImageHandle, generation: u64) -> Result<Self> {
        let side = side(&model, usize::MAX);
        let plain = ImageRequest { width: side, height: side, ..ImageRequest::new("") };
        let texts = model.check(plain);
        // What is given is looked at as far as its size.
        let small = model.info().factor.max(1);
        let check = |mask: Option<Vec<f32>>| {
            let init = Init { rgb: vec![0.0; small * small * 3], strength: 1.0, mask };
            let given =
                ImageRequest { width: small, height: small, init: Some(init), ..ImageRequest::new("") };
            model.check(given).map_err(of_library)
        };
        let (pictures, masks) = (check(None), check(Some(vec![1.0; small * small])));
        if let (Err(reason), true, true) = (&texts, pictures.is_err(), masks.is_err()) {
            let arch = model.info().name.clone();
            return Err(Error::Architecture { op: "/v1/images".into(), arch, reason: reason.to_string() });
        }
        let takes = Takes { texts: texts.map_err(of_library), pictures, masks };
        Ok(Self { model, generation, takes })
    }

    /// The side of pictures of which no size is said: that which the pipeline was trained with, as far as so
    /// many pixels allow it.
    pub fn side(&self, most_pixels: usize) -> usize {
        side(&self.model, most_pixels)
    }

    /// Whether it takes requests of a text alone.
    ///
    /// # Errors
    /// 400, naming what is missing.
    pub fn takes_texts(&self) -> std::result::Result<(), ApiError> {
        self.takes.texts.clone()
    }

    /// Whether it takes requests with a picture, and with a mask if there is one.
    ///
    /// # Errors
    /// 400, naming what is missing or too much.
    pub fn takes_pictures(&self, masked: bool) -> std::result::Result<(), ApiError> {
        if masked { self.takes.masks.clone() } else { self.takes.pictures.clone() }
    }

    /// The routes that it answers.
    pub fn routes(&self) -> Vec<&'static str> {
        let Takes { texts, pictures, masks } = &self.takes;
        let all = [(OF_TEXTS, texts.is_ok()), (OF_PICTURES, pictures.is_ok() || masks.is_ok())];
        all.into_iter().filter(|(_, takes)| *takes).map(|(route, _)| route).collect()
    }
}

fn side(model: &ImageHandle, most_pixels: usize) -> usize {
    let info = model.info();
    let side = info.side.unwrap_or(SIDE).min(most_pixels.isqrt());
    side / info.factor.max(1) * info.factor
}

/// An error of the library, by the names that fields of requests have.
pub fn of_library(error: Error) -> ApiError {
    match error {
        Error::Config { ref field, ref got, ref allowed } => match named(field) {
            Some(name) => ApiError::field(name, format!("is {got}; allowed: {allowed}")),
            None => ApiError::bad(error.to_string()),
        },
        // Of this request alone: others run on what is loaded again.
        Error::Internal { .. } => ApiError::internal(error.to_string()),
        other => other.into(),
    }
}

/// The field of a request by the library's name.
fn named(field: &str) -> Option<&'static str> {
    let all = GENERATIONS.iter().chain(&EDITED).copied().flatten();
    match field {
        "width" | "height" | "size" => Some("size"),
        "init" => Some("image"),
        "guidance" => Some("guidance_scale"),
        "true_guidance" => Some("true_cfg_scale"),
        "the number of steps" => Some("num_inference_steps"),
        _ => all.map(|known| known.name).find(|name| *name == field),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[test]
    fn errors_of_the_library_name_fields_of_requests() {
        for (field, name) in [
            ("height", Some("size")),
            ("guidance", Some("guidance_scale")),
            ("the number of steps", Some("num_inference_steps")),
            ("clip_skip", Some("clip_skip")),
            ("init", Some("image")),
            ("strength", Some("strength")),
            ("joint_attention_dim", None),
        ] {
            let error = of_library(Error::config(field, 7, "8"));
            assert_eq!((error.status, error.param.as_deref()), (StatusCode::BAD_REQUEST, name), "{field}");
            let said = format!("`{}` is 7; allowed: 8", name.unwrap_or(field));
            assert_eq!(error.message, said);
        }
        let panicked = of_library(Error::internal("making pictures panicked"));
        assert_eq!(panicked.status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
