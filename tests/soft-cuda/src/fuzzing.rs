//! What programs hand to the driver as code, for the fuzzer of this repository: no part of the interface.

use crate::link::{self, texts};
use crate::module;

/// Reads an image as a linker and as a module; whether both have found PTX in it that this driver compiles.
pub fn image(bytes: &[u8]) -> bool {
    let (mut log, mut linked) = (String::new(), String::new());
    let module = module::parse(&module::classify(bytes), &mut log);
    let texts = texts::read(texts::Kind::Any, "an image", bytes, &mut linked);
    assert!(module.is_ok() || !log.is_empty(), "a refusal without a reason");
    assert!(texts.is_ok() || !linked.is_empty(), "a refusal without a reason");
    let joined = texts.as_ref().is_ok_and(|all| texts::join(all, None, &mut linked).is_ok());
    module.is_ok() || joined
}

/// A container of the linker.
pub fn container(texts: &[String]) -> Vec<u8> {
    link::seal(texts).into_vec()
}
