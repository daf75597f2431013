//! The program `engraft`.
fn main() {}
