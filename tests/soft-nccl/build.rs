//! Gives the shared library the name that NCCL has: once it is loaded by path, it answers to
//! `dlopen("libnccl.so.2")`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
}
