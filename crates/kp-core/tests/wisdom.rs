//! Wisdom: what is kept, what is refused, and that nothing breaks it.

mod common;

use common::{Folder, ODD, SLOW_CODE, engine, problem};
use kp_core::{
    Engine, Error, Tune,
    hal::{AnyProblem, Label, Nanos, Variant},
    tune::Outcome,
    wisdom::{Fact, Machine, Wisdom, store::Store},
};
use proptest::prelude::*;
use std::{fs, sync::atomic::Ordering, time::Duration};

const GOOD: &str = "\
kp-wisdom 1
device null null \"Null \\\"Device\\\"\" driver \"a\\a;b\"
gemm 1x64x4096x4096 bf16:bf16:bf16 = null_tiled#1 41234 code 9f3c1a5500d1e2b7
softmax 4x8 f32:f32 = null_any#0 12 code 0000000000000001
";

fn open(path: &std::path::Path) -> Engine {
    Engine::builder().only(kp_null::BACKEND).device("null").wisdom(path).open().expect("wisdom never hinders opening")
}

fn label(kernel: &'static str, variant: u8) -> Label {
    Label { kernel, variant: Variant(variant) }
}

fn line(text: &str) -> AnyProblem {
    text.parse().expect(text)
}

/// The hash of a null kernel's source, as this build has it.
fn code_of(engine: &Engine, kernel: &str) -> u64 {
    let found = engine.candidates(&problem("gemm 1x64x4096x4096 bf16:bf16:bf16"));
    found.accepted.iter().find(|c| c.kernel.name() == kernel).expect(kernel).kernel.code()
}

#[test]
fn text_round_trips() {
    let (wisdom, warnings) = Wisdom::parse(GOOD.as_bytes()).expect("a good file");
    assert_eq!((warnings.count, wisdom.len()), (0, 2));
    assert_eq!(wisdom.to_string(), GOOD);
    let machine = wisdom.machines().next().expect("one machine");
    assert_eq!((&*machine.name, &*machine.driver), ("Null \"Device\"", "a\nb"));
    let facts = wisdom.facts(machine, line("gemm 1x64x4096x4096 bf16:bf16:bf16")).expect("measured");
    assert_eq!(facts[&("null_tiled".to_owned(), 1)], Fact { time: Nanos(41234), code: 0x9f3c_1a55_00d1_e2b7 });
    assert_eq!(Wisdom::parse(b"").expect("empty is none").0, Wisdom::default());
}

#[test]
fn each_bad_line_is_named_and_the_others_are_kept() {
    let bad = [
        ("gemm 1x2x3 bf16:bf16:bf16 = k#0 1 code 0000000000000000", "dims must be BATCHxMxNxK"),
        ("gemm 1x2x3x4 bf16:bf16:bf16 = k#64 1 code 0000000000000000", "a variant is 0 to 63"),
        ("gemm 1x2x3x4 bf16:bf16:bf16 = k#0 0 code 0000000000000000", "a time is a whole number"),
        ("gemm 1x2x3x4 bf16:bf16:bf16 = k#0 -1 code 0000000000000000", "a time is a whole number"),
        ("gemm 1x2x3x4 bf16:bf16:bf16 = k#0 1 code 00", "a hash is 16 digits"),
        ("gemm 1x2x3x4 bf16:bf16:bf16 = k#0 1 code 000000000000000g", "a hash is 16 digits"),
        ("gemm 1x2x3x4 bf16:bf16:bf16 = k 1 code 0000000000000000", "expected PROBLEM = KERNEL#VARIANT"),
        ("gemm 1x2x3x4 bf16:bf16:bf16", "expected PROBLEM = KERNEL#VARIANT"),
        ("matmul 1 = k#0 1 code 0000000000000000", "op must be one of"),
        ("\u{1b}[31m", "expected PROBLEM = KERNEL#VARIANT"),
    ];
    for (line, why) in bad {
        let text = format!("{GOOD}{line}\ngemm 1x1x1x1 f32:f32:f32 = k#0 5 code 0000000000000002\n");
        let (wisdom, warnings) = Wisdom::parse(text.as_bytes()).expect("the file is wisdom");
        assert_eq!((wisdom.len(), warnings.count), (3, 1), "{line}");
        let warning = &warnings.shown[0];
        assert_eq!(warning.line, 5, "{line}");
        assert!(warning.why.contains(why), "{line}: {warning}");
        assert!(!warning.to_string().contains(char::is_control), "{warning}");
    }
    // Facts below a device that cannot be read belong to nobody.
    let text = format!("{GOOD}device null null \"x driver\ngemm 1x1x1x1 f32:f32:f32 = k#0 5 code 0000000000000002\n");
    let (wisdom, warnings) = Wisdom::parse(text.as_bytes()).expect("the file is wisdom");
    assert_eq!((wisdom.len(), warnings.count), (2, 2));
    // A flood is counted, not kept.
    let text = format!("kp-wisdom 1\n{}", "nonsense\n".repeat(1000));
    let (_, warnings) = Wisdom::parse(text.as_bytes()).expect("the file is wisdom");
    assert_eq!((warnings.count, warnings.shown.len()), (1000, 64));
}

#[test]
fn a_measurement_beats_every_estimate_until_the_kernel_changes() {
    let engine = engine();
    let problem = problem("gemm 1x64x4096x4096 bf16:bf16:bf16");
    assert_eq!(engine.plan(&problem).expect("planned").label(), label("null_tiled", 0));
    let code = code_of(&engine, "null_any");
    engine.record(&problem.into(), label("null_any", 0), Fact { time: Nanos(1 << 40), code });
    engine.record(&problem.into(), label("null_tiled", 2), Fact { time: Nanos(1), code: code ^ 1 });
    engine.forget_plans();
    assert_eq!(engine.plan(&problem).expect("planned").label(), label("null_any", 0));
    let found = engine.candidates(&problem);
    let order: Vec<String> = found.accepted.iter().map(|c| c.label().to_string()).collect();
    assert_eq!(order, ["null_any#0", "null_tiled#0", "null_tiled#1", "null_tiled#2"]);
}

#[test]
fn saved_wisdom_is_read_by_the_next_engine_and_merged_with_others() {
    let folder = Folder::new();
    let path = folder.0.join("deep").join("er").join("wisdom");
    let (one, other) = (open(&path), open(&path));
    let code = code_of(&one, "null_any");
    let fact = |time| Fact { time: Nanos(time), code };
    one.record(&line("gemm 1x1x1x1 f32:f32:f32"), label("null_any", 0), fact(11));
    other.record(&line("gemm 1x2x2x2 f32:f32:f32"), label("null_any", 0), fact(22));
    one.save_wisdom().expect("the folder is writable");
    other.save_wisdom().expect("the folder is writable");
    let third = open(&path);
    assert_eq!(third.wisdom().len(), 2);
    assert_eq!(other.wisdom().len(), 2, "saving takes over what others saved");
    // What was saved once is not written again over newer facts.
    third.record(&line("gemm 1x1x1x1 f32:f32:f32"), label("null_any", 0), fact(33));
    third.save_wisdom().expect("the folder is writable");
    one.save_wisdom().expect("the folder is writable");
    let facts = open(&path).wisdom();
    let facts = facts.facts(third.machine(), line("gemm 1x1x1x1 f32:f32:f32")).expect("measured");
    assert_eq!(facts[&("null_any".to_owned(), 0)].time, Nanos(33));
    let left: Vec<_> = fs::read_dir(path.parent().expect("a folder")).expect("readable").flatten().collect();
    assert_eq!(left.len(), 2, "the file and its lock: {left:?}");
}

#[test]
fn many_savers_lose_nothing() {
    let folder = Folder::new();
    let path = folder.file();
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let path = &path;
            scope.spawn(move || {
                let engine = open(path);
                let code = code_of(&engine, "null_any");
                for i in 0..10 {
                    let problem = line(&format!("gemm 1x{}x{}x1 f32:f32:f32", thread + 1, i + 1));
                    engine.record(&problem, label("null_any", 0), Fact { time: Nanos(5), code });
                    engine.save_wisdom().expect("the folder is writable");
                }
            });
        }
    });
    let (wisdom, warnings) = Store::new(&path).load().expect("a good file");
    assert_eq!((wisdom.len(), warnings.count), (80, 0));
}

/// Clones of one engine on several threads: what is being saved by one stays known when another's save is done.
#[test]
fn savers_of_one_engine_forget_nothing() {
    let folder = Folder::new();
    let engine = open(&folder.file());
    let code = code_of(&engine, "null_any");
    let save = |thread: u32| {
        for i in 1..=25 {
            let problem = line(&format!("gemm 1x{thread}x{i}x1 f32:f32:f32"));
            engine.record(&problem, label("null_any", 0), Fact { time: Nanos(1), code });
            engine.save_wisdom().expect("writable");
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=4)
            .map(|thread| {
                scope.spawn({
                    let save = &save;
                    move || save(thread)
                })
            })
            .collect();
        let mut known = 0;
        while !threads.iter().all(|thread| thread.is_finished()) {
            let now = engine.wisdom().len();
            assert!(now >= known, "{known} facts became {now}");
            known = now;
        }
    });
    assert_eq!((engine.wisdom().len(), open(&folder.file()).wisdom().len()), (100, 100));
}

#[test]
fn stale_facts_are_ignored_and_forgotten_on_save() {
    let folder = Folder::new();
    let open = || Engine::builder().only(&ODD).wisdom(folder.file()).device("odd").open().expect("the device opens");
    let problem = line("gemm 1x8x8x1000 f32:f32:f32");
    let engine = open();
    engine.record(&problem, label("slow", 0), Fact { time: Nanos(1), code: SLOW_CODE.load(Ordering::SeqCst) });
    engine.record(&problem, label("gone", 0), Fact { time: Nanos(1), code: 5 });
    engine.save_wisdom().expect("the folder is writable");
    let count = || open().wisdom().len();
    assert_eq!(count(), 2);
    SLOW_CODE.fetch_add(1, Ordering::SeqCst);
    let engine = open();
    let AnyProblem::Gemm(gemm) = problem else { unreachable!("parsed as gemm") };
    assert!(engine.candidates(&gemm).accepted.iter().all(|c| c.measured.is_none()));
    engine.save_wisdom().expect("the folder is writable");
    assert_eq!(count(), 1, "the kernel this build does not have keeps its fact");
}

#[test]
fn what_is_no_wisdom_is_reported_and_left_alone() {
    let folder = Folder::new();
    for content in ["kp-wisdom 2\nfrom the future\n", "export PATH=/bin\n", "\n", "kp-wisdom 1 \n"] {
        fs::write(folder.file(), content).expect("writable");
        let engine = open(&folder.file());
        let warnings = engine.wisdom_warnings();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].to_string().contains("the first line must be `kp-wisdom 1`"), "{}", warnings[0]);
        engine.record(&line("gemm 1x1x1x1 f32:f32:f32"), label("null_any", 0), Fact { time: Nanos(1), code: 1 });
        assert!(matches!(engine.save_wisdom(), Err(Error::Wisdom { act: "read", .. })));
        assert_eq!(fs::read_to_string(folder.file()).expect("readable"), content);
        assert_eq!(engine.wisdom().len(), 1, "still known in memory");
    }
}

#[test]
fn corrupt_lines_are_reported_when_opening_and_gone_after_saving() {
    let folder = Folder::new();
    fs::write(folder.file(), format!("{GOOD}rubbish\n")).expect("writable");
    let engine = open(&folder.file());
    assert_eq!(engine.wisdom_warnings().len(), 1);
    assert_eq!(engine.wisdom().len(), 2);
    let warnings = engine.save_wisdom().expect("writable");
    assert_eq!(warnings.len(), 1);
    assert_eq!(fs::read_to_string(folder.file()).expect("readable"), GOOD);
}

#[test]
fn odd_files_and_folders_give_one_clear_error() {
    let folder = Folder::new();
    let fact = Fact { time: Nanos(1), code: 1 };
    let refused = |path: &std::path::Path, act: &str, words: &str| {
        let engine = open(path);
        engine.record(&line("gemm 1x1x1x1 f32:f32:f32"), label("null_any", 0), fact);
        let error = engine.save_wisdom().expect_err("cannot be saved");
        let text = error.to_string();
        assert!(text.starts_with(&format!("cannot {act} wisdom {}: ", path.display())), "{text}");
        assert!(text.contains(words), "{text}");
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(cause.is_empty() || !text.contains(&cause), "a chain of causes would say {cause:?} twice");
        let measured = engine.tune(&[line("gemm 1x1x1x1 f32:f32:f32")], Tune::default());
        assert!(matches!(measured, Err(Error::Wisdom { .. })), "seen before anything is measured");
        assert!(engine.plan(&problem("gemm 1x1x1x1 f32:f32:f32")).is_ok(), "the engine goes on");
        assert_eq!(engine.wisdom().len(), 1);
    };
    refused(&folder.0, "read", "not a regular file");
    fs::write(folder.0.join("file"), "").expect("writable");
    refused(&folder.0.join("file").join("wisdom"), "lock", "");
    let large = folder.0.join("large");
    fs::File::create(&large).and_then(|file| file.set_len((16 << 20) + 1)).expect("writable");
    refused(&large, "read", "it may have 16777216 bytes, and has more");
    assert_eq!(fs::metadata(&large).expect("still there").len(), (16 << 20) + 1);
}

/// Root may write anywhere, so a folder that even root may not write stands in for a read-only one.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_cannot_be_written_is_an_error_and_no_end() {
    let engine = open(std::path::Path::new("/proc/kp/wisdom"));
    let error = engine.save_wisdom().expect_err("nobody writes to /proc");
    assert!(error.to_string().starts_with("cannot lock wisdom /proc/kp/wisdom: "), "{error}");
    assert!(engine.plan(&problem("gemm 1x1x1x1 f32:f32:f32")).is_ok());
}

/// Every write to /dev/full fails as on a full disk, so the file that is written first is made a link to it.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    let folder = Folder::new();
    fs::write(folder.file(), GOOD).expect("writable");
    let engine = open(&folder.file());
    let code = code_of(&engine, "null_any");
    engine.record(&line("gemm 1x1x1x1 f32:f32:f32"), label("null_any", 0), Fact { time: Nanos(1), code });
    let temporary = folder.0.join(format!("wisdom.{}.tmp", std::process::id()));
    std::os::unix::fs::symlink("/dev/full", &temporary).expect("links exist");
    let error = engine.save_wisdom().expect_err("the disk is full").to_string();
    assert!(error.starts_with("cannot write wisdom ") && error.contains("No space left"), "{error}");
    assert_eq!(fs::read_to_string(folder.file()).expect("readable"), GOOD);
    // With room again, what could not be saved then is saved now.
    engine.save_wisdom().expect("writable");
    assert_eq!(open(&folder.file()).wisdom().len(), 3);
}

#[cfg(unix)]
#[test]
fn a_device_in_place_of_a_file_is_refused() {
    let engine = open(std::path::Path::new("/dev/null"));
    assert!(engine.wisdom_warnings()[0].to_string().contains("not a regular file"));
}

#[cfg(unix)]
#[test]
fn a_link_to_wisdom_stays_a_link() {
    let folder = Folder::new();
    let (real, link) = (folder.0.join("real"), folder.file());
    fs::write(&real, GOOD).expect("writable");
    std::os::unix::fs::symlink(&real, &link).expect("links exist");
    open(&link).save_wisdom().expect("writable");
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(fs::read_to_string(&real).expect("readable"), GOOD);

    // Also before there is a file, and by way of another link.
    let (first, second) = (folder.0.join("first"), folder.0.join("second"));
    std::os::unix::fs::symlink("second", &first).expect("links exist");
    std::os::unix::fs::symlink("below/wisdom", &second).expect("links exist");
    open(&first).save_wisdom().expect("writable");
    assert!([first, second].iter().all(|link| fs::symlink_metadata(link).expect("there").is_symlink()));
    assert!(folder.0.join("below/wisdom").is_file());
}

#[test]
fn tuning_measures_every_candidate_and_says_so() {
    let folder = Folder::new();
    let engine = open(&folder.file());
    let problems = [line("gemm 1x64x64x64 bf16:bf16:bf16"), line("softmax 4x8 f32:f32")];
    let mut told = Vec::new();
    let mut progress = |p: kp_core::Progress<'_>| {
        told.push(format!("{}/{} {} {}", p.problems.0, p.problems.1, p.label, p.outcome.is_some()));
    };
    let tune = Tune { budget: Duration::from_millis(200), progress: Some(&mut progress), ..Tune::default() };
    let start = std::time::Instant::now();
    let tuned = engine.tune(&problems, tune).expect("the folder is writable");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(tuned.measurements.len(), 5);
    for m in &tuned.measurements {
        assert!(matches!(m.outcome, Outcome::Measured(Nanos(1..))), "{m:?}");
    }
    assert_eq!(told.len(), 10);
    assert_eq!((&*told[0], &*told[9]), ("0/2 null_tiled#0 false", "1/2 null_any#0 true"));
    assert_eq!(open(&folder.file()).wisdom().len(), 5);
    // Known times are not taken again unless asked for.
    let again = engine.tune(&problems, Tune::default()).expect("writable");
    assert!(again.measurements.iter().all(|m| matches!(m.outcome, Outcome::Known(_))));
    let found = engine.explain(&problem("gemm 1x64x64x64 bf16:bf16:bf16"));
    assert!(found.candidates.iter().all(|row| row.measured));
}

#[test]
fn what_was_measured_is_on_disk_before_the_problem_is_done() {
    let folder = Folder::new();
    let engine = open(&folder.file());
    let mut known = Vec::new();
    let mut progress = |p: kp_core::Progress<'_>| {
        if p.outcome.is_none() {
            known.push(open(&folder.file()).wisdom().len());
        }
    };
    let tune = Tune { budget: Duration::from_secs(2), progress: Some(&mut progress), ..Tune::default() };
    engine.tune(&[line("gemm 1x64x64x64 bf16:bf16:bf16")], tune).expect("the folder is writable");
    // The first is saved at once, the others if saving took less than a twentieth of what measuring did.
    assert_eq!(known[..2], [0, 1]);
    assert!(known.is_sorted());
}

#[test]
fn tuning_records_failures_and_keeps_to_its_budget() {
    let engine = Engine::builder().only(&ODD).memory_only().device("odd").open().expect("the device opens");
    let problems =
        [line("gemm 1x8x8x8 f32:f32:f32"), line("softmax 4x8 f32:f32"), line("gemm 1x40000x40000x8 f32:f32:f32")];
    let tuned =
        engine.tune(&problems, Tune { budget: Duration::from_millis(100), ..Tune::default() }).expect("no file");
    let outcomes: Vec<String> = tuned
        .measurements
        .iter()
        .map(|m| format!("{} {}", m.label.map(|l| l.to_string()).unwrap_or_default(), m.outcome))
        .collect();
    assert_eq!(outcomes[0], "unplannable#0 failed: out of memory: wanted 7 bytes, 3 of 5 are free");
    assert!(matches!(tuned.measurements[1].outcome, Outcome::Measured(Nanos(200_000..))), "{outcomes:?}");
    assert_eq!(outcomes[2], " failed: unsupported: the backend has no kernel of this op");
    assert!(outcomes[3].contains("out of memory: wanted 6402560000 bytes"), "{outcomes:?}");
    let tuned =
        engine.tune(&problems[..1], Tune { budget: Duration::ZERO, again: true, ..Tune::default() }).expect("no file");
    assert!(tuned.measurements.iter().all(|m| matches!(m.outcome, Outcome::Skipped(_))), "{tuned:?}");
}

#[test]
fn a_panic_of_the_progress_closure_keeps_what_was_measured() {
    let engine = engine();
    let problems = [line("gemm 1x64x64x64 bf16:bf16:bf16")];
    let mut calls = 0;
    let mut progress = |_: kp_core::Progress<'_>| {
        calls += 1;
        assert!(calls < 4, "of a user");
    };
    let tune = Tune { budget: Duration::from_millis(100), progress: Some(&mut progress), ..Tune::default() };
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.tune(&problems, tune)));
    assert!(panicked.is_err());
    assert_eq!(engine.wisdom().len(), 2);
    assert!(engine.plan(&problem("gemm 1x64x64x64 bf16:bf16:bf16")).is_ok());
    assert!(engine.tune(&problems, Tune::default()).is_ok());
}

#[test]
fn inputs_can_come_from_the_caller() {
    let engine = engine();
    let mut names = Vec::new();
    let mut fill = |_: &AnyProblem, name: &str, need: &kp_core::hal::op::Need, bytes: &mut [u8]| {
        assert_eq!(need.bytes, bytes.len() as u64);
        names.push(name.to_owned());
    };
    let tune = Tune { budget: Duration::from_millis(50), fill: Some(&mut fill), ..Tune::default() };
    engine.tune(&[line("gemm 1x8x8x8 f32:e4m3@1x8:f32 bias=f32")], tune).expect("no file");
    assert_eq!(names, ["a", "b", "b_scale", "bias"]);
}

fn machine() -> impl Strategy<Value = Machine> {
    let word = "[a-z0-9_]{1,12}";
    (word, word, any::<String>(), any::<String>()).prop_map(|(backend, arch, name, driver)| Machine {
        backend,
        arch,
        name,
        driver,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = Wisdom::parse(&bytes);
        let mut below = b"kp-wisdom 1\n".to_vec();
        below.extend(bytes);
        prop_assert!(Wisdom::parse(&below).is_ok());
    }

    #[test]
    fn damage_hurts_only_where_it_is(at in 12..GOOD.len(), with in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = GOOD.as_bytes().to_vec();
        if cut { bytes.truncate(at) } else { bytes[at] = with }
        let (wisdom, warnings) = Wisdom::parse(&bytes).expect("the first line is whole");
        prop_assert!(wisdom.len() <= 3 && warnings.count <= 4);
        // What was read can be written and read again.
        prop_assert_eq!(Wisdom::parse(wisdom.to_string().as_bytes()).expect("our own").0, wisdom);
    }

    #[test]
    fn any_machine_round_trips(machine in machine(), time in 1_u64.., code: u64, variant in 0_u8..64) {
        let mut wisdom = Wisdom::default();
        let fact = Fact { time: Nanos(time), code };
        wisdom.record(&machine, &"gemm 1x1x1x1 f32:f32:f32".parse().expect("well formed"), label("k", variant), fact);
        let (read, warnings) = Wisdom::parse(wisdom.to_string().as_bytes()).expect("our own");
        prop_assert_eq!(warnings.count, 0);
        prop_assert_eq!(read, wisdom);
    }
}

#[test]
fn explanations_compare_with_peaks_that_were_measured() {
    let folder = Folder::new();
    const TEXT: &str = "gemm 1x1x1000x1000 f32:f32:f32";
    let problem = problem(TEXT);
    let before = open(&folder.file());
    let stated = before.explain(&problem);
    assert!(!stated.measured_peaks && stated.to_string().contains("stated peaks"));
    // The null device cannot measure itself, and says nothing rather than what it states.
    let caps = before.measure_peaks().expect("it answers");
    assert_eq!((caps, before.peaks()), (before.caps().clone(), None));
    // Half of the bandwidth that it states.
    let text = format!("kp-wisdom 1\n{}\npeaks memory 50000000000 f32 1000000000000\n", before.machine());
    fs::write(folder.file(), &text).expect("the folder is writable");
    let after = open(&folder.file());
    assert!(after.wisdom_warnings().is_empty(), "{:?}", after.wisdom_warnings());
    assert_eq!(after.wisdom().to_string(), text);
    let measured = after.explain(&problem);
    assert!(measured.measured_peaks && measured.to_string().contains("measured peaks"));
    assert!(measured.floor.0.abs_diff(2 * stated.floor.0) <= 1, "{} and {}", measured.floor, stated.floor);
    assert_eq!(measured.bytes_per_s, 5e10);
    // Estimates are made of stated peaks, and are compared with those.
    assert_eq!(measured.candidates[0].of_floor, stated.candidates[0].of_floor);
    let fact = Fact { time: Nanos(200_000), code: code_of(&after, "null_any") };
    after.record(&line(TEXT), label("null_any", 0), fact);
    let known = after.explain(&problem);
    assert!(known.candidates[0].measured);
    assert!((known.candidates[0].of_floor - measured.floor.0 as f64 / 200_000.0).abs() < 1e-9);
    // Saving keeps them, and so does merging into what others saved.
    after.save_wisdom().expect("writable");
    assert_eq!(open(&folder.file()).peaks(), after.peaks());
}
