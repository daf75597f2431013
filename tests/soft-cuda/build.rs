//! Gives the shared library the name that CUDA programs look for: a library loaded by path under this SONAME
//! answers every later `dlopen("libcuda.so")` of the process.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
