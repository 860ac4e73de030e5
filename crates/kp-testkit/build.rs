//! Embeds the golden vectors: a conformance binary runs on machines that have no source tree.

use std::{fmt::Write, fs, io, path::Path};

fn main() -> io::Result<()> {
    let root = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("vectors");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut list = String::from("&[\n");
    for op in sorted(&root)?.into_iter().filter(|path| path.is_dir()) {
        println!("cargo::rerun-if-changed={}", op.display());
        for file in sorted(&op)?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "json")) {
            let (op, name) = (op.file_name().expect("a folder"), file.file_stem().expect("a file"));
            writeln!(list, "    ({op:?}, {name:?}, include_str!({file:?})),").expect("a string takes all");
        }
    }
    list.push_str("]\n");
    let out = std::env::var_os("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("vectors.rs"), list)
}

fn sorted(folder: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let mut paths: Vec<_> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}
