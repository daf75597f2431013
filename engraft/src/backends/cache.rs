//! Where compiled kernels are kept unless the user says otherwise.

use std::path::PathBuf;

/// `engraft/kernels` in the user's cache folder, where there is one.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub fn kernel_cache() -> Option<PathBuf> {
    dirs::cache_dir().map(|cache| cache.join("engraft").join("kernels"))
}

/// Nothing is compiled.
#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
pub fn kernel_cache() -> Option<PathBuf> {
    None
}
