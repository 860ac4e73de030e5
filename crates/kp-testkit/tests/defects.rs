//! The suite judges a backend that is right, and finds every defect of one that is not.

mod fake;

use fake::{Defect, Fake, kernels};
use kp_hal::{
    Backend, Device, DeviceInfo, ErrorKind, Kernels, Variant,
    op::{Gemm, GemmProblem},
};
use kp_testkit::{Depth, Failure, FillKind, Report, Suite};
use std::sync::Arc;

fn backend(defect: Defect) -> &'static dyn Backend {
    Box::leak(Box::new(Fake(kernels(&[defect]))))
}

/// What the suite prints; the exit code says no more than its last line.
fn output(suite: Suite, args: &[&str]) -> String {
    let mut out = Vec::new();
    let _ = suite.depth(Depth::Quick).run_with(args, &mut out);
    String::from_utf8(out).expect("names and messages are text")
}

fn judge(defect: Defect) -> String {
    output(Suite::new(backend(defect)), &["fake/gemm/loops", "--skip", "vector"])
}

#[track_caller]
fn caught(defect: Defect, message: &str) {
    let text = judge(defect);
    assert!(text.contains("test result: FAILED."), "{defect:?} was not caught");
    assert!(
        text.contains(message),
        "{defect:?} is reported otherwise:\n{}",
        &text[text.find("failures:").unwrap_or(0)..]
    );
}

/// A backend without a device.
struct Absent;

impl Backend for Absent {
    fn name(&self) -> &'static str {
        "absent"
    }

    fn devices(&self) -> kp_hal::Result<Vec<DeviceInfo>> {
        Err(ErrorKind::Unavailable { what: "absent", why: "nobody made one".into() }.into())
    }

    fn open(&self, _: u32) -> kp_hal::Result<Arc<dyn Device>> {
        unreachable!("no device was listed")
    }

    fn kernels(&self) -> &'static Kernels {
        &Kernels::NONE
    }
}

#[test]
fn no_device_is_a_skip_unless_every_machine_has_one() {
    let skipped = output(Suite::new(&Absent), &[]);
    assert!(skipped.contains("nobody made one") && skipped.contains("test result: ok. 0 passed"), "{skipped}");
    let failed = output(Suite::new(&Absent).always_there(), &[]);
    assert!(failed.contains("every machine has one, but absent unavailable: nobody made one"), "{failed}");
    assert!(failed.contains("test result: FAILED."), "{failed}");
}

#[test]
fn a_right_kernel_passes_every_case() {
    let text = judge(Defect::Nothing);
    assert!(text.contains("test result: ok."), "{text}");
    assert!(text.matches("... ok").count() > 15, "{text}");
}

#[test]
fn the_golden_vectors_pass_too() {
    let text = output(Suite::new(backend(Defect::Nothing)), &["vector"]);
    assert!(text.contains("test result: ok.") && text.contains("fake/gemm/loops#0/vector "), "{text}");
}

#[test]
fn every_chapter_passes() {
    for chapter in ["devices", "memory", "queues", "capture", "threads"] {
        let text = output(Suite::new(backend(Defect::Nothing)), &[&format!("fake/{chapter}/")]);
        assert!(text.contains("test result: ok.") && !text.contains(" 0 passed"), "{text}");
    }
}

#[test]
fn a_wrong_element_is_caught() {
    caught(Defect::OneElement, "elements are wrong, the first: d[");
}

#[test]
fn an_element_left_out_is_caught() {
    caught(Defect::LastElementLeftOut, "elements are wrong, the first: d[");
}

#[test]
fn writing_outside_is_caught() {
    caught(Defect::WritesPastTheEnd, "byte 12 past the end of d was written");
    caught(Defect::WritesBeforeTheStart, "bytes before d were written");
    caught(Defect::WritesPadding, "padding that held 0x7fc00000 was written");
    caught(Defect::WritesInput, "of the input a was written");
}

#[test]
fn reading_padding_is_caught() {
    caught(Defect::ReadsPadding, "got NaN");
}

#[test]
fn bits_that_change_are_caught() {
    caught(Defect::Nondeterministic, "two runs differ in byte");
    caught(Defect::DependsOnOtherRows, "when only the rows of gemm");
}

#[test]
fn kernels_that_promise_the_same_bits_and_differ_are_caught() {
    let judge = |defects| {
        let backend: &'static dyn Backend = Box::leak(Box::new(Fake(kernels(defects))));
        output(Suite::new(backend), &["fake/gemm/agreed/"])
    };
    let text = judge(&[Defect::Nothing, Defect::SumsBackwards]);
    assert!(text.contains("loops#0 and loops#0 both promise batch invariance, and differ in byte "), "{text}");
    let text = judge(&[Defect::SumsBackwards, Defect::SumsBackwards]);
    assert!(text.contains("test result: ok. ") && !text.contains(" 0 passed"), "{text}");
    assert!(judge(&[Defect::SumsBackwards]).contains("running 0 tests"), "one alone has nobody to agree with");
}

#[test]
fn coarse_sums_are_caught() {
    caught(Defect::SumsInBf16, "elements are wrong, the first: d[");
}

#[test]
fn dirty_scratch_is_caught() {
    caught(Defect::ReadsScratch, "got NaN");
}

#[test]
fn a_panic_is_the_failure_of_one_test() {
    let text = judge(Defect::Panics);
    assert!(text.contains("this kernel panics") && text.contains("test result: FAILED. "), "{text}");
    assert!(text.matches("... FAILED").count() > 5, "the other tests run on");
}

#[test]
fn answers_that_make_no_sense_are_caught() {
    caught(Defect::NoEstimate, "estimate is 18446744073709551615 ns");
    // Whether the impure kernel is asked at a lucky moment decides which tests there are, but some are made.
    let text = output(Suite::new(backend(Defect::ImpureSupport)), &["fake/gemm"]);
    assert!(text.contains("supports is not pure"), "{text}");
}

#[test]
fn a_floor_that_nothing_runs_fails() {
    let text = output(Suite::new(backend(Defect::Nothing)), &["fake/gemm/floor"]);
    assert!(text.contains("no kernel runs it: loops: a cannot be bf16"), "{text}");
    assert!(text.contains("test fake/gemm/floor/gemm 1x64x64x64 f32:f32:f32 ... ok"), "{text}");
}

#[test]
fn expected_failures_excuse_and_expire() {
    let entry = |pattern: &str| format!("[[failure]]\npattern = \"{pattern}\"\nreason = \"known\"\n");
    let name = "fake/gemm/loops#0/gemm 1x64x64x64 f32:f32:f32";
    let run = |defect, toml: &str| output(Suite::new(backend(defect)).expect_failures(toml), &["--exact", name]);
    let excused = run(Defect::OneElement, &entry(name));
    assert!(excused.contains("expected to fail: known ... ok") && excused.contains("ok. 1 passed"), "{excused}");
    let passed = run(Defect::Nothing, &entry(name));
    assert!(passed.contains("passed, but was expected to fail: known"), "{passed}");
    let unused = output(Suite::new(none()).expect_failures(&entry("nothing/of/this/name")), &[]);
    assert!(unused.contains("fits no test") && unused.contains("1 failed"), "{unused}");
    assert!(output(Suite::new(none()).expect_failures("[["), &[]).starts_with("error: expected failures"));
}

/// A backend without any kernel.
fn none() -> &'static dyn Backend {
    Box::leak(Box::new(Fake(&Kernels::NONE)))
}

#[test]
fn it_prints_as_libtest_does() {
    let suite = || Suite::new(backend(Defect::Nothing));
    let name = "fake/gemm/loops#0/gemm 1x1x1x1 f32:f32:f32";
    let text = output(suite(), &["--exact", name, "--test-threads=1", "--nocapture"]);
    let expected =
        format!("\nrunning 1 test\ntest {name} ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; ");
    assert!(text.starts_with(&expected), "{text}");
    let list = output(suite(), &["--list", "fake/gemm/loops#0/gemm 1x1x1x1 f32:f32:f32"]);
    assert!(list.contains(&format!("{name}: test\n")) && list.contains("tests, 0 benchmarks\n"), "{list}");
    let quiet = output(suite(), &["-q", "--exact", name]);
    assert!(quiet.contains("\nrunning 1 test\n.\n\ntest result: ok."), "{quiet}");
    let nothing = output(suite(), &["no such test"]);
    assert!(nothing.contains("running 0 tests") && nothing.contains("ok. 0 passed; 0 failed"), "{nothing}");
    let ignored = output(suite(), &["--ignored", "--list", "--format", "terse"]);
    assert_eq!(ignored, "");
}

fn check(defect: Defect, text: &str) -> Result<Report, Failure> {
    let problem: GemmProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    let device = backend(defect).open(0).expect("the host is there");
    let kernel = kernels(&[defect]).gemm[0];
    kp_testkit::check::<Gemm>(&device, kernel, Variant(0), &problem, FillKind::Normal, 7)
}

#[test]
fn a_report_says_how_far_off_a_kernel_is() {
    let text = "gemm 1x30x40x50 f32:f32:f32";
    let right = check(Defect::Nothing, text).expect("it runs");
    assert!(right.passed() && right.checked == 1200 && right.wrong == 0, "{right:?}");
    assert!(
        right.max_error > 0.0 && right.max_error < 1e-4 && right.max_share > 0.0 && right.max_share < 1.0,
        "{right:?}"
    );
    let wrong = check(Defect::OneElement, text).expect("it runs");
    assert!(!wrong.passed() && wrong.wrong == 1 && wrong.max_error > 1e4, "{wrong:?}");
    let outside = check(Defect::WritesPastTheEnd, text).expect_err("it writes outside");
    assert!(outside.to_string().contains("past the end of d"), "{outside}");
}

#[test]
fn what_is_too_large_for_the_reference_is_judged_by_law() {
    let text = "gemm 1x530x512x500 f32:f32:f32";
    assert!(check(Defect::Nothing, text).expect("it runs").passed());
    let failure = check(Defect::OneElement, text).expect("it runs").failure.expect("a wrong element breaks the law");
    assert!(failure.to_string().contains("violates `D times a vector"), "{failure}");
}

#[test]
fn inputs_are_the_same_for_the_same_seed() {
    let problem: GemmProblem = "gemm 1x3x4x5 f32:f32:f32 bias=f32".parse().expect("a problem");
    let bytes = |seed| {
        let operands = kp_testkit::inputs::<Gemm>(&problem, seed).expect("gemm has a judge");
        (operands.codes("a").bytes.to_vec(), operands.codes("bias").bytes.to_vec())
    };
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1).0, bytes(2).0);
}
