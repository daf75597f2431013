//! `bind MODULE.wasm FOLDER`: writes the module's JavaScript side and what is left of the module.

use std::process::ExitCode;
use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(module), Some(folder)) = (args.next(), args.next()) else {
        eprintln!("usage: bind MODULE.wasm FOLDER");
        return ExitCode::from(2);
    };
    let mut bind = Bindgen::new();
    // Names are for debuggers; every visitor would fetch them.
    bind.input_path(&module).typescript(false).remove_name_section(true).remove_producers_section(true);
    let made = bind.web(true).and_then(|b| b.generate(&folder));
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{module}: {e:#}");
            ExitCode::FAILURE
        }
    }
}
