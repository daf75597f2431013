//! Prints every variant as one JSON string `[label, carrier, text]` per line, for checks by other compilers
//! (`shaders/tint.mjs`).
#![allow(clippy::print_stdout)]

use engraft_shaders::{Carrier, Kernel, RenderError, source};

/// Value columns that attention's variants carry at most.
const COLUMNS: u32 = 8;

fn main() -> Result<(), RenderError> {
    for kernel in Kernel::all(COLUMNS) {
        for carrier in [Carrier::Immediate, Carrier::Uniform] {
            // Demanded by the standard; naga has subgroups without it and refuses the line.
            let enable = if kernel.subgroups() { "enable subgroups;\n" } else { "" };
            let text = enable.to_string() + &source(&kernel, carrier)?;
            println!("[{:?},{:?},{}]", kernel.label(), carrier.name(), quoted(&text));
        }
    }
    Ok(())
}

/// A JSON string; shaders are ASCII.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
