//! `kp report`: records as one HTML page.

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
    /// The page
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

/// Writes the page.
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
    files::write(&args.output, &report::page(&runs)?)?;
    out.remark(&format!("wrote {}", args.output.display()));
    Ok(true)
}
