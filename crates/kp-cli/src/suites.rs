//! Lists of problems: files of `benches/suites`, which the program carries, files of the user's, and single problems.

use crate::{models::Model, usage};
use anyhow::{Context, Result, bail};
use kp_hal::{
    AnyProblem, Caps, Nanos,
    op::{Op, OpVisitor, Problem, Spec},
};
use std::{fs, path::Path};

/// One problem of a suite.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// What is asked.
    pub(crate) problem: AnyProblem,
    /// The problem's one spelling.
    pub(crate) text: String,
    /// How often one step of a model runs it; 1 elsewhere.
    pub(crate) count: u32,
    /// What it is, if the suite says.
    pub(crate) label: String,
}

impl Line {
    /// A line that says nothing but its problem.
    pub(crate) fn of(problem: AnyProblem) -> Self {
        Self { problem, text: problem.to_string(), count: 1, label: String::new() }
    }
}

/// What the roofline needs to know of a problem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Arithmetic operations, a multiply-add counting two.
    pub(crate) flops: f64,
    /// Bytes that must cross main memory.
    pub(crate) bytes: u64,
    /// The type whose arithmetic rate bounds the work.
    pub(crate) rate: kp_hal::DType,
}

impl Facts {
    /// Time at a device's peak arithmetic, and at its peak bandwidth.
    pub(crate) fn floors(&self, caps: &Caps) -> (Nanos, Nanos) {
        let compute = self.flops / caps.rates.get(self.rate);
        (Nanos::from_secs(compute), Nanos::from_secs(self.bytes as f64 / caps.bytes_per_s))
    }
}

/// Work and traffic of a problem of any op.
pub(crate) fn facts(problem: &AnyProblem) -> Facts {
    struct Ask;
    impl OpVisitor for Ask {
        type Out = Facts;
        fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Facts {
            Facts { flops: problem.flops(), bytes: problem.bytes(), rate: problem.rate_dtype() }
        }
    }
    problem.visit(Ask)
}

/// Problems that are measured and reported together.
#[derive(Clone, Debug)]
pub(crate) struct Suite {
    /// Its file's stem, a model's name, or `problems`.
    pub(crate) name: String,
    /// Sections in order; a suite without headings has one without a title.
    pub(crate) sections: Vec<crate::models::Section>,
}

impl Suite {
    /// Reads a suite: a problem a line, `#` starts a comment, `## ` a section, and a comment `N× what` after a problem
    /// says how often a step of a model runs it.
    ///
    /// # Errors
    /// The first line that is no problem, with its number.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self> {
        let mut sections = vec![crate::models::Section { title: String::new(), lines: Vec::new() }];
        for (at, line) in text.lines().enumerate() {
            if let Some(title) = line.strip_prefix("## ") {
                sections.push(crate::models::Section { title: title.trim().to_owned(), lines: Vec::new() });
                continue;
            }
            let (problem, comment) = line.split_once('#').unwrap_or((line, ""));
            if problem.trim().is_empty() {
                continue;
            }
            let problem = problem.parse().with_context(|| format!("{name}:{}", at + 1))?;
            let (count, label) = repeated(comment.trim());
            let last = sections.last_mut().expect("there is always one section");
            last.lines.push(Line { count, label: label.to_owned(), ..Line::of(problem) });
        }
        sections.retain(|section| !section.lines.is_empty());
        Ok(Self { name: name.to_owned(), sections })
    }

    /// A suite of single problems.
    pub(crate) fn of(problems: Vec<AnyProblem>) -> Self {
        let lines = problems.into_iter().map(Line::of).collect();
        Self { name: "problems".to_owned(), sections: vec![crate::models::Section { title: String::new(), lines }] }
    }

    /// The suite as a file would hold it, after a head of comments.
    pub(crate) fn text(&self, head: &str) -> String {
        self.sections.iter().fold(head.to_owned(), |text, section| text + &section.to_string())
    }

    /// Its problems in order.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.sections.iter().flat_map(|section| &section.lines)
    }

    /// How many problems it has.
    pub(crate) fn len(&self) -> usize {
        self.lines().count()
    }
}

/// `32× qkv` is 32 times what `qkv` names; anything else is a name.
fn repeated(comment: &str) -> (u32, &str) {
    let parts = comment.split_once('×').and_then(|(count, label)| Some((count.trim().parse().ok()?, label.trim())));
    parts.unwrap_or((1, comment))
}

macro_rules! suites {
    ($($name:literal,)*) => {
        /// The suites that the program carries, by name.
        pub(crate) const SUITES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../benches/suites/", $name, ".txt"))),)*];
    };
}
suites! {
    "tour",
    "smoke",
    "gemm-squares",
    "gemm-small",
    "attention",
    "quantize",
    "rowwise",
    "dispatch",
    "llama-3-8b",
    "llama-3-70b",
    "deepseek-v3",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
    "bert-base",
}

/// What a command line means by `words`: the name of a suite, a file that ends in `.txt`, or a problem. A problem may be
/// one word or several, since a shell takes its quotes away.
///
/// # Errors
/// The suites there are, if a word is none of those; the problem's mistake if it starts like a problem.
pub(crate) fn resolve(words: &[String]) -> Result<Vec<Suite>> {
    let (mut suites, mut problems) = (Vec::new(), Vec::new());
    let mut rest = words;
    while let [word, more @ ..] = rest {
        rest = more;
        let first = word.split_whitespace().next().unwrap_or_default();
        if AnyProblem::OPS.contains(&first) {
            // `kp run gemm 1x64x64x64 f32:f32:f32`: the words up to the next op or suite are one problem.
            let ends = |next: &&String| AnyProblem::OPS.contains(&&***next) || suite_text(next).is_some();
            let taken = if word.contains(' ') { 0 } else { rest.iter().take_while(|next| !ends(next)).count() };
            let (own, others) = rest.split_at(taken);
            let text = std::iter::once(word).chain(own).map(String::as_str).collect::<Vec<_>>().join(" ");
            problems.push(text.parse::<AnyProblem>().map_err(|bad| usage(format!("`{text}`: {bad}")))?);
            rest = others;
        } else if let Some(text) = suite_text(word) {
            suites.push(Suite::parse(word, text)?);
        } else if word.ends_with(".txt") {
            let text = fs::read_to_string(word).with_context(|| format!("cannot read {word}"))?;
            let stem = Path::new(word).file_stem().and_then(|stem| stem.to_str()).unwrap_or("suite");
            suites.push(Suite::parse(stem, &text)?);
        } else {
            let names: Vec<&str> = SUITES.iter().map(|(name, _)| *name).collect();
            bail!(usage(format!(
                "`{}` is no suite, no problem and no .txt file; suites: {}; a problem starts with {}",
                clip(word),
                names.join(", "),
                AnyProblem::OPS.join(", "),
            )));
        }
    }
    if !problems.is_empty() {
        suites.push(Suite::of(problems));
    }
    Ok(suites)
}

/// The one problem that `words` spell.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn problem(words: &[String]) -> Result<AnyProblem> {
    let text = words.join(" ");
    text.parse().map_err(|bad| usage(format!("`{}`: {bad}", clip(&text))))
}

/// As much of `word` as a message can take.
fn clip(word: &str) -> String {
    let short: String = word.chars().map(|c| if c.is_control() { '?' } else { c }).take(80).collect();
    if word.chars().count() > 80 { format!("{short}…") } else { short }
}

fn suite_text(name: &str) -> Option<&'static str> {
    SUITES.iter().find(|(suite, _)| *suite == name).map(|(_, text)| *text)
}

/// Suites of models, by the models' own phases or those asked for.
pub(crate) fn of_model(
    model: &Model,
    phases: &[crate::models::Phase],
    weights: Option<crate::models::Linear>,
) -> Result<Suite> {
    let sections = phases.iter().map(|&phase| model.section(phase, weights)).collect::<Result<_>>();
    Ok(Suite { name: model.name.to_owned(), sections: sections.with_context(|| model.name)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::MODELS;
    use std::{collections::BTreeSet, env, path::PathBuf};

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/suites")
    }

    #[test]
    fn every_suite_of_the_folder_is_carried_and_parses() {
        let listed = fs::read_dir(folder()).expect("the suites are there");
        let files: BTreeSet<String> = listed
            .map(|file| {
                file.expect("it can be listed").path().file_stem().expect("a stem").to_string_lossy().into_owned()
            })
            .collect();
        assert_eq!(files, SUITES.iter().map(|(name, _)| (*name).to_owned()).collect());
        for (name, text) in SUITES {
            let suite = Suite::parse(name, text).unwrap_or_else(|e| panic!("{e:#}"));
            assert!(suite.len() > 0, "{name} is empty");
            for line in suite.sections.iter().flat_map(|section| &section.lines) {
                assert!(text.contains(&line.text), "{name} does not spell `{}` so", line.text);
            }
        }
    }

    #[test]
    fn no_section_asks_the_same_twice() {
        for (name, text) in SUITES {
            for section in Suite::parse(name, text).expect("it parses").sections {
                let unique: BTreeSet<&str> = section.lines.iter().map(|line| &*line.text).collect();
                assert_eq!(unique.len(), section.lines.len(), "{name}: {}", section.title);
            }
        }
    }

    /// `KP_BLESS=1` writes the files instead of comparing them.
    #[test]
    fn the_suites_of_models_are_what_their_models_make() {
        for model in MODELS {
            let suite = of_model(model, &model.phases(), None).unwrap_or_else(|e| panic!("{e:#}"));
            let made = suite.text(&model.head());
            let path = folder().join(format!("{}.txt", model.name));
            if env::var_os("KP_BLESS").is_some() {
                fs::write(&path, &made).expect("the suite can be written");
            }
            let committed = fs::read_to_string(&path).unwrap_or_default();
            assert!(committed == made, "{} is stale: KP_BLESS=1 cargo test -p kp-cli writes it", path.display());
        }
    }

    #[test]
    fn counts_are_read_from_comments() {
        let suite =
            Suite::parse("x", "# head\ngemm 1x1x1x1 f32:f32:f32  # 32× up\n\n## two\nsoftmax 1x1 f32:f32 # plain\n")
                .expect("it parses");
        let seen: Vec<_> = suite.sections.iter().flat_map(|s| &s.lines).map(|l| (l.count, &*l.label)).collect();
        assert_eq!(seen, [(32, "up"), (1, "plain")]);
        assert_eq!(suite.sections[1].title, "two");
        let error = Suite::parse("x", "\ngemm 1x1 f32").expect_err("no problem");
        assert_eq!(format!("{error:#}"), "x:2: dims must be BATCHxMxNxK, got `1x1`");
    }

    #[test]
    fn words_are_suites_or_problems_quoted_or_not() {
        let words = |text: &str| text.split('|').map(str::to_owned).collect::<Vec<_>>();
        let names = |text: &str| {
            let suites = resolve(&words(text)).unwrap_or_else(|e| panic!("{e:#}"));
            suites.iter().map(|s| (s.name.clone(), s.len())).collect::<Vec<_>>()
        };
        assert_eq!(names("gemm 1x1x1x1 f32:f32:f32|softmax|1x1|f32:f32"), [("problems".to_owned(), 2)]);
        assert_eq!(names("softmax|1x1|f32:f32|dispatch")[1], ("problems".to_owned(), 1));
        for (text, message) in [
            ("nonsense", "`nonsense` is no suite, no problem and no .txt file; suites: "),
            ("gemm|1x1", "`gemm 1x1`: dims must be BATCHxMxNxK, got `1x1`"),
        ] {
            let error = resolve(&words(text)).expect_err(text).to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
