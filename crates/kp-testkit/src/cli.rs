//! The command line of libtest, as far as a suite made at run time can follow it.

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    /// Only tests whose names contain one of these; all if there are none.
    pub(crate) filters: Vec<String>,
    /// Not those whose names contain one of these.
    pub(crate) skip: Vec<String>,
    /// Filters are whole names.
    pub(crate) exact: bool,
    /// Print names, run nothing.
    pub(crate) list: bool,
    /// Dots instead of lines.
    pub(crate) quiet: bool,
    /// Run nothing: this suite has no ignored tests.
    pub(crate) only_ignored: bool,
    /// Threads, if given.
    pub(crate) threads: Option<usize>,
    /// Print the usage.
    pub(crate) help: bool,
}

/// What `--help` prints.
pub(crate) const USAGE: &str = "\
Usage: [OPTIONS] [FILTERS...]

Options:
        --list              print the names of all tests
        --exact             filters are whole names, not parts of them
        --skip FILTER       leave out tests whose names contain FILTER
    -q, --quiet             one character per test
        --test-threads N    threads that run tests; one unless the backend is a CPU
        --format FORMAT     pretty or terse (the same as --quiet)
        --nocapture, --show-output, --include-ignored, --color WHEN
                            accepted and without effect

Environment:
    KP_REQUIRE=NAME,..      backends whose absence is a failure
    KP_DEPTH=quick|full     how many problems: a minute or two, or half an hour unoptimised; quick unless said
    KP_SEED=N               other random numbers
    KP_RANDOM=N             how many random problems of each op, for tests of them; prints each before it runs
    KP_DEVICE_INDEX=N       which device of the backend";

impl Options {
    /// Reads arguments without the program's name.
    pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let (key, inline) = match arg.split_once('=') {
                Some((key, value)) if key.starts_with("--") => (key.to_owned(), Some(value.to_owned())),
                _ => (arg.clone(), None),
            };
            let mut value = || inline.clone().or_else(|| args.next()).ok_or_else(|| format!("{key} needs a value"));
            match key.as_str() {
                "--list" => options.list = true,
                "--exact" => options.exact = true,
                "--quiet" | "-q" => options.quiet = true,
                "--ignored" => options.only_ignored = true,
                "--help" | "-h" => options.help = true,
                "--skip" => options.skip.push(value()?),
                "--format" => match value()?.as_str() {
                    "terse" => options.quiet = true,
                    "pretty" => {}
                    other => return Err(format!("--format must be pretty or terse, got `{other}`")),
                },
                "--test-threads" => {
                    let text = value()?;
                    let threads = text.parse().ok().filter(|n| *n > 0);
                    options.threads = Some(threads.ok_or(format!("--test-threads must be at least 1, got `{text}`"))?);
                }
                "--color" | "--logfile" | "--shuffle-seed" | "-Z" => drop(value()?),
                "--nocapture"
                | "--no-capture"
                | "--show-output"
                | "--include-ignored"
                | "--test"
                | "--bench"
                | "--shuffle"
                | "--report-time"
                | "--force-run-in-process"
                | "--exclude-should-panic" => {}
                _ if key.starts_with('-') => return Err(format!("unknown option `{arg}`")),
                _ => options.filters.push(arg),
            }
        }
        Ok(options)
    }

    /// Whether a test of this name is asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let matches = |filter: &String| if self.exact { name == filter } else { name.contains(filter.as_str()) };
        let skipped = self.skip.iter().any(|s| if self.exact { name == s } else { name.contains(s.as_str()) });
        !self.only_ignored && !skipped && (self.filters.is_empty() || self.filters.iter().any(matches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_cargo_passes_is_understood() {
        let options =
            parse("gemm --test-threads=1 --nocapture --skip f16 --format terse --color always").expect("known");
        assert_eq!((options.filters.as_slice(), options.skip.as_slice()), (&["gemm".into()][..], &["f16".into()][..]));
        assert_eq!((options.threads, options.quiet), (Some(1), true));
        assert!(options.wants("cpu/gemm/x/f32") && !options.wants("cpu/gemm/x/f16") && !options.wants("cpu/norm"));
        assert!(parse("--ignored").is_ok_and(|o| !o.wants("cpu/gemm")));
    }

    #[test]
    fn a_problem_with_equals_signs_is_a_filter() {
        let name = "cpu/gemm/a#0/gemm 1x1x1x1 f32:f32:f32 b=col";
        let options = Options::parse(["--exact".into(), name.into()]).expect("known");
        assert!(options.wants(name) && !options.wants("cpu/gemm/a#0/gemm 1x1x1x1 f32:f32:f32 b=col c=d"));
    }

    #[test]
    fn nonsense_is_refused() {
        for (text, message) in [
            ("--speed", "unknown option `--speed`"),
            ("--test-threads 0", "--test-threads must be at least 1, got `0`"),
            ("--skip", "--skip needs a value"),
            ("--format xml", "--format must be pretty or terse, got `xml`"),
        ] {
            assert_eq!(parse(text), Err(message.into()));
        }
    }
}
