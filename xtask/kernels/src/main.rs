//! Compiles every device kernel without a device: to check it, or to make the pack that a program embeds.
//!
//! `cargo xtask kernels` runs it. A program of its own, because it needs the backends to compile, and the other tasks
//! should not.

mod compile;
mod cover;
mod judge;
mod table;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use kp_nvidia::compile::{ARCHS, Key, Listed, Nvrtc, Store, builds, pack};
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Instant,
};

/// Compile device kernels for every architecture.
#[derive(Parser)]
#[command(name = "cargo xtask kernels", bin_name = "cargo xtask kernels")]
struct Args {
    /// Words: only builds whose label contains them all, such as `gemm/sm90_bf16 GATE=1`.
    words: Vec<String>,
    /// Judge only, and write no pack.
    #[arg(long)]
    check: bool,
    /// Architectures, separated by commas. If none are named: for a pack all; for a check of each build the oldest, and of a
    /// sample one more, and without words not of all builds, but of every variant, and of every two macros that go together.
    #[arg(long, value_delimiter = ',', value_parser = ARCHS.to_vec())]
    arch: Vec<String>,
    /// Where the pack goes.
    #[arg(long, value_name = "FILE", default_value = "target/kernels/nvidia.pack")]
    out: PathBuf,
    /// A line for each build, with the place of its cubin.
    #[arg(long, short)]
    verbose: bool,
    /// Compilers at work at the same time; one for each core if not given.
    #[arg(long)]
    jobs: Option<usize>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every build passed the check; without one, whether all compiled and the pack is written.
fn run(args: &Args) -> Result<bool> {
    let start = Instant::now();
    let nvrtc = Nvrtc::get()?;
    let (major, minor) = nvrtc.version();
    // Beside other build output, so that `cargo clean` cleans it.
    let folder = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from).join("kernels/cubin");
    let store = Store::open(&folder).with_context(|| format!("cannot keep cubins in {}", folder.display()))?;
    let tasks = tasks(args);
    ensure!(!tasks.is_empty() || args.words.is_empty(), "no build's label contains {}", args.words.join(" and "));
    let cores = args.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    println!("{} builds with NVRTC {major}.{minor}, {}, on {cores} cores", tasks.len(), nvrtc.library());

    let done = compile::all(tasks, &store, cores);
    if args.verbose {
        done.iter().for_each(|done| println!("{}", done.line(&folder)));
    }
    print!("{}", table::by_kernel(&done));
    let mut faults: Vec<String> = done.iter().flat_map(compile::Done::faults).collect();
    if args.arch.is_empty() && args.words.is_empty() && !args.check {
        let used = done.iter().map(|done| (&done.task.listed, done.report.leaves_registers()));
        faults.extend(judge::stale_reasons(used));
    }
    faults.iter().for_each(|fault| println!("{fault}"));
    println!("{} builds, {} faults, {:.1} s", done.len(), faults.len(), start.elapsed().as_secs_f64());
    if args.check {
        return Ok(faults.is_empty());
    }
    // Another NVRTC than the one we check with may spill here and there; what it made is right all the same.
    if done.iter().any(|done| done.compiled.is_none()) {
        return Ok(false);
    }
    let cubins: BTreeMap<Key, Vec<u8>> =
        done.into_iter().filter_map(|done| Some((done.task.key, done.compiled?.cubin))).collect();
    write(&args.out, &cubins)?;
    Ok(true)
}

/// One build for one architecture.
pub(crate) struct Task {
    pub(crate) listed: Listed,
    pub(crate) arch: &'static str,
    pub(crate) key: Key,
}

/// What the arguments ask for, each cubin once.
fn tasks(args: &Args) -> Vec<Task> {
    let mut tasks = BTreeMap::new();
    let all = listed();
    let all = if args.check && args.words.is_empty() && args.arch.is_empty() { covered(all) } else { all };
    for (listed, archs) in all {
        let label = listed.to_string();
        let wanted = args.words.iter().all(|word| label.contains(&**word));
        let archs = match (&args.arch[..], args.check) {
            _ if !wanted => Vec::new(),
            ([], true) => checked(&listed, &archs),
            ([], false) => archs,
            (asked, _) => archs.into_iter().filter(|arch| asked.iter().any(|asked| asked == arch)).collect(),
        };
        for arch in archs {
            let key = Key::new(&listed.build, arch);
            tasks.entry(key).or_insert_with(|| Task { listed: listed.clone(), arch, key });
        }
    }
    let mut tasks: Vec<Task> = tasks.into_values().collect();
    tasks.sort_by_cached_key(|task| (task.listed.to_string(), ARCHS.iter().position(|&arch| arch == task.arch)));
    tasks
}

/// Every build once, with the architectures that run it, oldest first.
fn listed() -> Vec<(Listed, Vec<&'static str>)> {
    let mut all: BTreeMap<Key, (Listed, Vec<&'static str>)> = BTreeMap::new();
    for (&arch, listed) in ARCHS.iter().flat_map(|arch| builds(arch).into_iter().map(move |listed| (arch, listed))) {
        let (_, archs) = all.entry(Key::new(&listed.build, "")).or_insert((listed, Vec::new()));
        if archs.last() != Some(&arch) {
            archs.push(arch);
        }
    }
    all.into_values().collect()
}

/// Of `all`, few that have each variant of each kernel, and each two macros that go together: see [`cover`].
fn covered(mut all: Vec<(Listed, Vec<&'static str>)>) -> Vec<(Listed, Vec<&'static str>)> {
    all.sort_by_cached_key(|(listed, _)| listed.to_string());
    let of_kernels = all.chunk_by(|(a, _), (b, _)| a.kernel == b.kernel);
    let covers = of_kernels.flat_map(|builds| {
        let listed: Vec<&Listed> = builds.iter().map(|(listed, _)| listed).collect();
        cover::cover(&listed).into_iter().map(|place| builds[place].clone())
    });
    covers.collect()
}

/// Of `archs`, those that a check compiles for.
///
/// A build that compiles for the oldest architecture that runs it compiles for later ones too. What may differ there is how registers
/// are given out, where matrix units take fragments in other sizes; of that a sample is taken, spread over builds and architectures:
/// one later architecture of each build, but for those that the oldest device of all runs.
fn checked(listed: &Listed, archs: &[&'static str]) -> Vec<&'static str> {
    let (oldest, later) = archs.split_first().expect("a build is listed for some architecture");
    // Of the build, not of its place among others, so that a cubin that is kept serves the next check.
    let spread = Key::new(&listed.build, "").to_string().bytes().fold(0_usize, |sum, byte| sum + usize::from(byte));
    let sample = later.get(spread % later.len().max(1)).filter(|_| oldest != &ARCHS[0]);
    [oldest].into_iter().chain(sample).copied().collect()
}

fn write(out: &Path, cubins: &BTreeMap<Key, Vec<u8>>) -> Result<()> {
    let bytes = pack(cubins);
    if let Some(folder) = out.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(out, &bytes).with_context(|| format!("cannot write {}", out.display()))?;
    let raw: usize = cubins.values().map(Vec::len).sum();
    let path = fs::canonicalize(out)?;
    println!(
        "{} cubins, {:.1} MB, in {:.1} MB; to embed them: KP_NVIDIA_PACK={} and kp-nvidia's feature `pack`",
        cubins.len(),
        raw as f64 / 1e6,
        bytes.len() as f64 / 1e6,
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_check_leaves_no_variant_and_no_architecture_out() {
        let mut seen = BTreeSet::new();
        let variants = |of: &[(Listed, _)]| of.iter().map(|(l, _)| (l.kernel, l.variant)).collect::<BTreeSet<_>>();
        let (all, few) = (listed(), covered(listed()));
        assert!(variants(&all) == variants(&few) && few.len() < all.len() * 3 / 4, "{} of {}", few.len(), all.len());
        for (listed, archs) in few {
            let checked = checked(&listed, &archs);
            assert!(checked[0] == archs[0] && checked.len() <= 2, "{listed}: {checked:?}");
            assert!(
                !archs[0].ends_with('a') || checked.len() == archs.len().min(2),
                "{listed} has instructions of {archs:?}: {checked:?}"
            );
            seen.extend(checked.iter().map(|&arch| (listed.kernel, arch)));
        }
        let of = |kernel| seen.iter().filter(|(of, _)| *of == kernel).count();
        assert!(of("gemm/sm80") > 5 && of("gemm/sm80_skinny") > 5, "a sample is of many devices");
        for (kernel, archs) in
            [("gemm/sm100", &["sm_100a", "sm_103a", "sm_110a"][..]), ("gemm/sm120", &["sm_120a", "sm_121a"])]
        {
            assert!(archs.iter().all(|&arch| seen.contains(&(kernel, arch))), "{kernel}");
        }
    }
}
