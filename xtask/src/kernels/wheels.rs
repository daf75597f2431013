//! The pinned compilers, from their wheels.

use super::Outcome;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler of everything checked in: PTX ISA 8.7, which drivers from 570 on take.
pub const NVRTC: &str = "nvidia-cuda-nvrtc-cu12==12.8.93";
/// The assembler that reports registers and spills.
pub const PTXAS: &str = "nvidia-cuda-nvcc==13.0.88";
/// Where wheels are installed; git ignores it.
const FOLDER: &str = ".cuda";

/// The folder with the libraries of NVRTC: in `given`, in the ignored folder, or installed there now.
pub fn nvrtc(given: Option<&Path>) -> Outcome<PathBuf> {
    find(given, "nvrtc", NVRTC, "nvidia/cuda_nvrtc/lib")
}

/// The program `ptxas`, found in the same way.
pub fn ptxas(given: Option<&Path>) -> Outcome<PathBuf> {
    find(given, "nvcc", PTXAS, "nvidia/cu13/bin/ptxas")
}

fn find(given: Option<&Path>, name: &str, package: &str, inside: &str) -> Outcome<PathBuf> {
    let own = Path::new(FOLDER).join(name);
    let places = given.into_iter().flat_map(|dir| [dir.to_path_buf(), dir.join(name)]).chain([own.clone()]);
    if let Some(found) = places.map(|place| place.join(inside)).find(|path| path.exists()) {
        return Ok(found);
    }
    eprintln!("installing {package} into {}", own.display());
    let status = Command::new("pip")
        .args(["install", "--quiet", "--no-deps", "--target"])
        .arg(&own)
        .arg(package)
        .status()
        .map_err(|e| format!("pip, to install {package}: {e}"))?;
    let path = own.join(inside);
    match status.success() && path.exists() {
        true => Ok(path),
        false => Err(format!("{package} could not be installed into {}", own.display())),
    }
}
