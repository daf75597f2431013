//! Several PTX texts into one, as a device linker does it with machine code.
//!
//! A name that one text takes from another (`.extern`) is bound to the definition that another makes visible;
//! one that nobody defines, and one that two define, is an error that names it and the texts. Of weak
//! definitions one is kept, of common variables the largest. Names that a text keeps to itself stay apart.
//!
//! ```
//! use ptx_vm::link::{Input, link};
//!
//! let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
//! let uses = format!("{head}.extern .func f();\n.visible .entry k() {{ call f; ret; }}");
//! let defines = format!("{head}.visible .func f() {{ ret; }}");
//! let inputs = [Input { name: "uses", text: &uses }, Input { name: "defines", text: &defines }];
//! let module = ptx_vm::Module::parse(&link(&inputs)?)?;
//! assert_eq!(module.kernels()[0].name, "k");
//! let alone = link(&inputs[..1]).unwrap_err().to_string();
//! assert!(alone.contains("`f`") && alone.contains("uses"), "{alone}");
//! # Ok::<(), ptx_vm::Error>(())
//! ```

mod resolve;
mod unit;
mod write;

use crate::Error;
use crate::text::parser;
use crate::text::syntax::Function;
use resolve::resolve;
use unit::Unit;

/// A text with the name that messages give it.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The name.
    pub name: &'a str,
    /// The text.
    pub text: &'a str,
}

/// Links texts. One that needs nothing of another stays as it is.
///
/// # Errors
/// [`Error::Input`] where a text is none, [`Error::Link`] with everything that is undefined, defined twice or
/// declared otherwise than it is defined.
pub fn link(inputs: &[Input<'_>]) -> Result<String, Error> {
    let units = inputs.iter().enumerate().map(|(i, input)| Unit::read(i, *input));
    let units = units.collect::<Result<Vec<_>, _>>()?;
    let plan = resolve(&units)?;
    match inputs {
        [one] => Ok(one.text.into()),
        _ => write::write(&units, &plan),
    }
}

/// Bounds the registers per thread of a text's kernels, as the option `-maxrregcount` of compilers does:
/// those that bound their registers or their blocks themselves are left as they are, and lines keep their
/// numbers.
///
/// # Errors
/// [`Error::Syntax`] where it is no PTX.
pub fn limit_registers(text: &str, most: u32) -> Result<String, Error> {
    const OWN: [&str; 4] = [".maxnreg", ".maxntid", ".reqntid", ".minnctapersm"];
    let file = parser::parse(text)?;
    let bounded = |f: &Function| f.directives.iter().any(|d| OWN.contains(&&*d.0));
    let (mut out, mut at) = (String::new(), 0);
    for kernel in file.functions.iter().filter(|f| f.entry && f.body.is_some() && !bounded(f)) {
        out.push_str(&text[at..kernel.head.end]);
        out.push_str(&format!(".maxnreg {most} "));
        at = kernel.head.end;
    }
    out.push_str(&text[at..]);
    Ok(out)
}

/// What a text takes from others: names of functions and variables that it uses and does not define.
///
/// # Errors
/// [`Error::Input`] where it is no PTX.
pub fn undefined(text: &str) -> Result<Vec<String>, Error> {
    let unit = Unit::read(0, Input { name: "the text", text })?;
    Ok(unit.wanted().map(|symbol| symbol.name.to_owned()).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
