//! Prints every variant as one JSON array `[label, dialect, text]` per line, for checks by other compilers
//! (`shaders/tint.mjs`). Halves by their own type come with uniform parameters, as browsers take them.
#![allow(clippy::print_stdout)]

use engraft_shaders::{Carrier, Dialect, Kernel, RenderError, source};

/// Value columns that attention's variants carry at most.
const COLUMNS: u32 = 8;

fn main() -> Result<(), RenderError> {
    for kernel in Kernel::all(COLUMNS) {
        let [plain, uniform] = [Carrier::Immediate, Carrier::Uniform].map(|carrier| Dialect {
            carrier,
            f16: false,
            dot: true,
            strict: true,
        });
        let others = [Dialect { f16: true, dot: false, ..uniform }, Dialect { dot: false, ..uniform }];
        for dialect in [plain, uniform].into_iter().chain(others) {
            let text = source(&kernel, dialect)?.text;
            if dialect.f16 && !text.starts_with("enable f16;") || !dialect.dot && !kernel.of_bytes() {
                continue;
            }
            // Demanded by the standard; naga has subgroups without it and refuses the line.
            let text = if kernel.subgroups() { format!("enable subgroups;\n{text}") } else { text };
            let dialect = format!("{dialect:?}");
            println!("[{:?},{dialect:?},{}]", kernel.label(), quoted(&text));
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
