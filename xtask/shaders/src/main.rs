//! `cargo xtask shaders`: compiles every GLSL kernel of `kernels/` to SPIR-V, which is committed and embedded.
//!
//! A workspace of its own, because the compiler is C++: nobody who builds, tests or uses kp needs it, only who changes a
//! shader.

#[path = "../../../crates/kp-vulkan/src/shaders/source.rs"]
mod source;

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use glslang::{
    Compiler, CompilerOptions, Program, Shader, ShaderInput, ShaderMessage, ShaderSource, ShaderStage, SourceLanguage,
    SpirvVersion, Target, VulkanVersion,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// Compiles `kernels/*/glsl/*.comp`.
#[derive(Parser)]
#[command(name = "cargo xtask shaders", bin_name = "cargo xtask shaders")]
struct Cli {
    /// Writes nothing: fails if a committed shader is not what its source compiles to.
    #[arg(long)]
    check: bool,
    /// Asks this `spirv-val` about every shader.
    #[arg(long, value_name = "PATH")]
    validator: Option<PathBuf>,
    /// Prints a line for each shader.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Compiles; whether all was well.
///
/// # Errors
/// A source that does not compile; a file that cannot be read or written.
fn run(cli: &Cli) -> Result<bool> {
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR").context("run by cargo")?).join("../..").canonicalize()?;
    let out = root.join("crates/kp-vulkan/src/spirv");
    let (mut stale, mut names) = (Vec::new(), Vec::new());
    let mut list = String::new();
    for path in sources(&root.join("kernels"))? {
        let text = source::expanded(&path, &|path| fs::read_to_string(root.join("kernels").join(path)).ok())
            .map_err(|why| anyhow!(why))?;
        for (suffix, defines) in source::forms(&text) {
            let name = source::name(&path, &suffix);
            let words = compiled(&source::defined(&text, &defines)).with_context(|| format!("{path}, as {name}"))?;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let file = out.join(format!("{name}.spv"));
            if fs::read(&file).ok().as_deref() != Some(&bytes) {
                stale.push(name.clone());
                if !cli.check {
                    fs::create_dir_all(&out)?;
                    fs::write(&file, &bytes).with_context(|| format!("cannot write {}", file.display()))?;
                }
            }
            if let Some(validator) = &cli.validator {
                let status = Command::new(validator).args(["--target-env", "vulkan1.3"]).arg(&file).status();
                if !status.with_context(|| format!("cannot run {}", validator.display()))?.success() {
                    bail!("{name} is not valid");
                }
            }
            if cli.verbose {
                println!("{name}: {} bytes", bytes.len());
            }
            list += &format!("{name} {:016x}\n", source::hash(source::defined(&text, &defines).as_bytes()));
            names.push(name);
        }
    }
    let listed = out.join("sources.txt");
    if fs::read_to_string(&listed).ok().as_deref() != Some(&list) {
        stale.push("sources.txt".into());
        if !cli.check {
            fs::write(&listed, &list)?;
        }
    }
    for entry in fs::read_dir(&out)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|kind| kind == "spv") && !names.contains(&stem) {
            stale.push(format!("{stem}, which has no source"));
            if !cli.check {
                fs::remove_file(&path)?;
            }
        }
    }
    println!("{} shaders, {} of them {}", names.len(), stale.len(), if cli.check { "stale" } else { "written" });
    if cli.check && !stale.is_empty() {
        println!("stale: {}; run cargo xtask shaders", stale.join(", "));
        return Ok(false);
    }
    Ok(true)
}

/// Every kernel, by its path below `kernels/`, in order.
fn sources(kernels: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for op in fs::read_dir(kernels)? {
        let folder = op?.path().join("glsl");
        for file in fs::read_dir(&folder).into_iter().flatten() {
            let path = file?.path();
            if path.extension().is_some_and(|kind| kind == "comp") {
                found.push(path.strip_prefix(kernels)?.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Compiles one source to SPIR-V 1.5, which every driver of Vulkan 1.2 takes; to 1.6 where an extension's functions are no part of
/// less, since drivers that have it are of Vulkan 1.3.
fn compiled(text: &str) -> Result<Vec<u32>> {
    let compiler = Compiler::acquire().context("glslang does not start")?;
    let (version, spirv_version) = if text.contains("GL_NV_cooperative_matrix2") {
        (VulkanVersion::Vulkan1_3, SpirvVersion::SPIRV1_6)
    } else {
        (VulkanVersion::Vulkan1_2, SpirvVersion::SPIRV1_5)
    };
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan { version, spirv_version },
        version_profile: None,
        messages: ShaderMessage::DEFAULT,
    };
    let source = ShaderSource::from(text);
    let input = ShaderInput::new(&source, ShaderStage::Compute, &options, None::<&[(&str, Option<&str>)]>, None)
        .map_err(|error| anyhow!("{error}"))?;
    let shader: Shader<'_> = compiler.create_shader(input).map_err(|error| anyhow!("{error}"))?;
    let mut program = Program::new(compiler);
    program.add_shader(&shader);
    program.compile(ShaderStage::Compute).map_err(|error| anyhow!("{error}"))
}
