//! What is refused before a weight is read, and that none is read by then.

use super::control::copy;
use engraft_core::Error;
use engraft_core::checkpoint::Access;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_diffusion::{ImageRequest, Outline, Pipeline, PipelineOptions};
use image_goldens::{folder, json};
use std::fs;
use std::path::{Path, PathBuf};

/// Weights are read from files, not mapped: a file that has ended early is an error.
fn load(place: &Path, ahead: &mut dyn FnMut(&Outline) -> Result<(), Error>) -> Result<Pipeline<Cpu>, Error> {
    let options = PipelineOptions { access: Access::Read, ..PipelineOptions::default() };
    Pipeline::load_for(&Cpu::new(CpuConfig::default()).unwrap(), place, &options, ahead)
}

/// Files with the weights of a component.
fn weights(place: &Path, component: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(place.join(component)).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|end| end == "safetensors")).collect()
}

/// Weights whose files lose their ends once the outline is known cannot have been read before.
#[test]
fn no_weight_is_read_before_a_request_can_be_refused() {
    for (case, components) in [
        ("sd1", &["unet", "vae", "text_encoder"][..]),
        ("sd1_controlnet", &["controlnet"]),
        ("sdxl", &["text_encoder_2"]),
        ("sd3", &["transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3"]),
    ] {
        for component in components {
            let place = tempfile::tempdir().unwrap();
            copy(&folder("pipelines").join(case), place.path());
            let halve = || {
                for file in weights(place.path(), component) {
                    let length = fs::metadata(&file).unwrap().len();
                    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(length / 2).unwrap();
                }
            };
            let odd = ImageRequest { width: 42, ..ImageRequest::new("a fox") };
            let refused = load(place.path(), &mut |outline| outline.check(&odd)).err().unwrap().to_string();
            assert!(refused.contains("`width` is 42"), "{case}: {refused}");
            let mut asked = 0;
            let error = load(place.path(), &mut |_| {
                asked += 1;
                halve();
                Ok(())
            });
            let error = error.err().unwrap_or_else(|| panic!("{case}: {component} was read before"));
            assert!(asked == 1 && error.to_string().contains(*component), "{case}, {component}: {error}");
        }
    }
}

#[test]
fn the_outline_is_that_of_the_pipeline() {
    for (case, factor) in [("sd1", 4), ("sdxl", 4), ("sd3", 8), ("flux", 8), ("pixart_sigma", 8)] {
        let mut seen = None;
        let ahead = &mut |outline: &Outline| -> Result<(), Error> {
            seen = Some(outline.clone());
            Ok(())
        };
        let pipeline = load(&folder("pipelines").join(case), ahead).unwrap();
        let outline = seen.unwrap();
        assert_eq!((outline.factor, &outline), (factor, pipeline.outline()), "{case}");
        let sized = |width, height| {
            let request = ImageRequest { width, height, ..ImageRequest::new("a fox") };
            outline.check(&request).map_err(|error| error.to_string())
        };
        assert_eq!(sized(3 * factor, 2 * factor), Ok(()), "{case}");
        for (width, height, field) in
            [(3 * factor + 1, factor, "width"), (factor, 0, "height"), (factor, 1 << 15, "height")]
        {
            let error = sized(width, height).unwrap_err();
            assert!(error.contains(field) && error.contains(&format!("a multiple of {factor}")), "{error}");
        }
    }
}

/// An autoencoder of other channels, of which no tensor has a shape that the other's has not.
#[test]
fn components_that_do_not_fit_each_other_are_refused_before_a_weight_is_read() {
    for (case, other, words) in [
        ("sd1", "sd3", ["in_channels", "16 or 33"]),
        ("sd3", "sd1", ["in_channels", "4, of the autoencoder"]),
    ] {
        let place = tempfile::tempdir().unwrap();
        copy(&folder("pipelines").join(case), place.path());
        fs::remove_dir_all(place.path().join("vae")).unwrap();
        copy(&folder("pipelines").join(other).join("vae"), &place.path().join("vae"));
        let error = load(place.path(), &mut |_| panic!("{case}: it is asked"));
        let error = error.err().unwrap().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{case}: {error}");
    }
}

/// The second text encoder's tensors are looked at before the first one's are read.
#[test]
fn tensors_of_other_shapes_are_refused_before_a_weight_is_read() {
    for (case, component, field, words) in [
        ("sdxl", "text_encoder_2", "intermediate_size", "fc1"),
        ("sd3", "text_encoder_3", "d_ff", "wi_0"),
        ("sdxl", "unet", "in_channels", "conv_in"),
    ] {
        let place = tempfile::tempdir().unwrap();
        copy(&folder("pipelines").join(case), place.path());
        let file = place.path().join(component).join("config.json");
        let mut said = json(&file).unwrap();
        said[field] = (said[field].as_u64().unwrap() + 1).into();
        fs::write(&file, said.to_string()).unwrap();
        let error = load(place.path(), &mut |_| panic!("{case}: it is asked")).err().unwrap().to_string();
        assert!(error.contains(words), "{case}, {component}: {error}");
    }
}
