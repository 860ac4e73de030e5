//! `kp report`: records as one HTML page, or their roofline as a picture.

use crate::{
    files,
    output::Output,
    record::Record,
    report::{self, Run},
    suites::{SUITES, Suite},
};
use anyhow::{Result, ensure};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Records of one device
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// The page; if its name ends in .svg, the roofline alone
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

/// Writes the page or the picture.
///
/// # Errors
/// A record that cannot be read, records of several devices, a page that cannot be written.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<bool> {
    files::check_writable(&args.output)?;
    let records = args.records.iter().map(|path| Record::read(path)).collect::<Result<Vec<_>>>()?;
    let first = &records[0].header;
    for record in &records {
        let class = &record.header.class;
        ensure!(*class == first.class, "the records are of {} and {class}: one page shows one device", first.class);
    }
    let runs: Vec<Run> = records
        .into_iter()
        .map(|record| {
            let text = SUITES.iter().find(|(name, _)| *name == record.header.suite).map(|(_, text)| text);
            let suite = text.map(|text| Suite::parse(&record.header.suite, text)).transpose()?;
            Ok(Run { record, suite })
        })
        .collect::<Result<_>>()?;
    let svg = args.output.extension().is_some_and(|extension| extension == "svg");
    let text = if svg { report::picture(&runs)? } else { report::page(&runs, 0)? };
    files::write(&args.output, &text)?;
    out.remark(&format!("wrote {}", args.output.display()));
    Ok(true)
}
