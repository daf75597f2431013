//! Lists `ptx/*.ptx.gz` as a table in the crate: which modules there are is what lies in that folder and
//! nothing else, so that a new kernel needs no second place.

use std::fmt::Write;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx");
    println!("cargo::rerun-if-changed=ptx");
    let mut names: Vec<String> = std::fs::read_dir(&folder)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".ptx.gz"))
        .collect();
    names.sort();
    let mut table = format!("static TABLE: [Module; {}] = [\n", names.len());
    for name in names {
        // `<stem>.<arch>.ptx.gz`
        let mut parts = name.split('.');
        let (Some(stem), Some(arch)) = (parts.next(), parts.next()) else { continue };
        let path = folder.join(&name);
        let _ = writeln!(
            table,
            "    Module::new({stem:?}, {arch:?}, include_bytes!({:?})),",
            path.display().to_string()
        );
    }
    table.push_str("];\n");
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    std::fs::write(Path::new(&out).join("modules.rs"), table)
}
