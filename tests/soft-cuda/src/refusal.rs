//! What is not here is named on standard error, once: an error code alone does not say what a program asked
//! for.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::code::Code;
use crate::device::NAME;

static SAID: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

/// `CUDA_ERROR_NOT_SUPPORTED` for what the text names.
pub fn unsupported(what: &'static str) -> Code {
    refused(what, Code::NOT_SUPPORTED)
}

/// The code for what the text names.
pub fn refused(what: &'static str, code: Code) -> Code {
    if SAID.lock().insert(what) {
        let name = code.describe().map_or(String::new(), |(name, _)| name.to_string_lossy().into_owned());
        eprintln!("[{NAME}] {what} is not supported: {name}");
    }
    code
}
