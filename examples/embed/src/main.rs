//! Embeds sentences, or checks the embeddings of a hundred against PyTorch's, or times them.

use anyhow::{Result, ensure};
use clap::Parser;
use kp_core::Engine;
use kp_embed::{
    check::{check, cosine},
    model::{MiniLm, Precision, default_dir},
    time::time,
};
use std::{path::PathBuf, process::ExitCode, time::Instant};

/// Sentence embeddings by all-MiniLM-L6-v2, every layer through kp-core.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The sentences; with more than one, how alike each two are.
    #[arg(required_unless_present_any = ["check", "time"])]
    sentences: Vec<String>,
    /// What the matrices of the layers are stored as: f32, bf16, int8, int8q8, w8a8, int4, or a format with scales,
    /// such as e2m1@nv or i4@g32/f16 (with --check and --time: only this one, not the six).
    #[arg(long)]
    weights: Option<Precision>,
    /// The device, as KP_DEVICE names it: a backend, `backend:index`, or part of a device's name.
    #[arg(long)]
    device: Option<String>,
    /// Where `cargo xtask model minilm` put the model.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Compare with PyTorch's embeddings of a hundred sentences; fails below the bars.
    #[arg(long, conflicts_with = "sentences")]
    check: bool,
    /// Print how many of those sentences a second, one by one and all at once.
    #[arg(long, conflicts_with_all = ["sentences", "check"])]
    time: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let builder = Engine::builder();
    let engine = match &args.device {
        Some(device) => builder.device(device).open()?,
        None => builder.open()?,
    };
    let dir = args.model.clone().unwrap_or_else(default_dir);
    println!("{} ({})", engine.info().name, engine.backend().name());
    let precisions = args.weights.map_or(Precision::ALL.to_vec(), |one| vec![one]);
    if args.time {
        return precisions.into_iter().try_for_each(|precision| {
            println!("{}", time(&engine, &dir, precision)?);
            Ok(())
        });
    }
    if args.check {
        let mut failed = Vec::new();
        for precision in precisions {
            let report = check(&engine, &dir, precision)?;
            println!("{report}");
            if !report.passes() {
                failed.push(precision.to_string());
            }
        }
        ensure!(failed.is_empty(), "below the bar: {}", failed.join(", "));
        return Ok(());
    }
    let model = MiniLm::open(&engine, &dir, args.weights.unwrap_or(Precision::F32))?;
    let start = Instant::now();
    let embedded = model.embed(&args.sentences)?;
    let numbers = embedded.rows.to_vec::<f32>()?;
    let time = start.elapsed();
    let rows: Vec<&[f32]> = numbers.chunks(embedded.rows.shape()[1]).collect();
    for (i, (sentence, row)) in args.sentences.iter().zip(&rows).enumerate() {
        let first: Vec<String> = row.iter().take(4).map(|x| format!("{x:7.4}")).collect();
        let alike: Vec<String> = rows[..i].iter().map(|other| format!("{:6.3}", cosine(row, other))).collect();
        let alike = if i == 0 { String::new() } else { format!("  cosines {}", alike.join(" ")) };
        println!("{:2}  [{} …]  {sentence}{alike}", i + 1, first.join(" "));
    }
    println!("{} tokens in {time:.1?} by {}", embedded.tokens, embedded.product);
    Ok(())
}
