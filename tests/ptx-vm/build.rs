//! Says whether the page of this repository that the tests run is there: a package has its own files alone.

use std::path::Path;

fn main() {
    let page = "../../docs/cuda_without_a_gpu.md";
    println!("cargo:rustc-check-cfg=cfg(in_repository)");
    println!("cargo:rerun-if-changed=build.rs");
    if Path::new(page).is_file() {
        println!("cargo:rustc-cfg=in_repository");
        println!("cargo:rerun-if-changed={page}");
    }
}
