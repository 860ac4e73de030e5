//! How the program fails: what it says, with which code, and what it leaves behind.

mod common;

use common::{Folder, GEMM, json, kp, run, stderr, stdout};
use serde_json::Value;
use std::{
    fs,
    process::{Command, Stdio},
};

/// Every mistake is one line that says what was expected, and no panic.
#[test]
fn mistakes_get_one_line_and_a_code() {
    let cases: &[(&[&str], i32, &str)] = &[
        (&["explain", "gemm 1x1"], 2, "`gemm 1x1`: dims must be BATCHxMxNxK, got `1x1`"),
        (&["explain", "gem 1x1x1x1 f32:f32:f32"], 2, "op must be one of activation, "),
        (&["run", "gemm", "1x1x1x1", "f32:f32:f33"], 2, "D must be one of f64 f32 "),
        (&["bench", "nonsense"], 2, "`nonsense` is no suite, no problem and no .txt file; suites: "),
        (&["bench", "gemm 1x1"], 2, "dims must be BATCHxMxNxK"),
        (&["bench", "/no/such.txt"], 1, "cannot read /no/such.txt"),
        (&["bench", "--model", "gpt-2"], 2, "model must be one of llama-3-8b, "),
        (&["bench", "--model", "bert-base", "--phase", "decode"], 2, "bert-base is an encoder"),
        (&["bench", "--model", "llama-3-8b", "--weights", "int3"], 2, "weights must be one of bf16, "),
        (&["bench", GEMM, "--report", "/no/such/x.html"], 1, "cannot write /no/such/x.html: /no/such is no folder"),
        (&["bench", GEMM, "--peers", "/no/such.jsonl"], 1, "cannot read /no/such.jsonl"),
        (&["bench", GEMM, "--against", "/no/such.jsonl"], 1, "cannot read /no/such.jsonl"),
        (&["run", "gemm 1x200000x200000x100000 f32:f32:f32"], 1, "needs 640 GB on the host, "),
        (&["bench", GEMM, "--against", "x", "--threshold", "0.5"], 2, "--threshold must be at least 1, got 0.5"),
        (&["--json"], 2, "--json needs a command"),
        (&["tune", "nonsense"], 2, "`nonsense` is no suite"),
        (&["report", "/no/such.jsonl"], 1, "cannot read /no/such.jsonl"),
        (&["info", "--device", "toaster"], 2, "no device \"toaster\": there is "),
        (&["run", GEMM, "--device", "toaster"], 2, "no device \"toaster\": there is "),
        (&["verify", "--list", "no-such-test"], 2, "no test's name contains no-such-test"),
    ];
    for (args, code, message) in cases {
        let output = run(args);
        let said = stderr(&output);
        let line = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{args:?}: {said}"));
        assert!(line.contains(message), "{args:?}: {line}");
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {said}");
        // A backend that finds no device here says so, and that is no part of the mistake.
        let others = said.lines().filter(|other| !other.starts_with("skipped: ") && *other != line);
        assert_eq!(others.count(), 0, "{args:?}: {said}");
    }
    for args in [&["bench", "--budget", "fast"][..], &["bench", "--batch", "1"], &["explain"], &["bench", "--speed"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).starts_with("error: "), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn hostile_problems_neither_panic_nor_hang() {
    let long = "9".repeat(100_000);
    for problem in
        [long.as_str(), "gemm \u{1b}[31m", "gemm 4294967295x4294967295x4294967295x1 f64:f64:f64", "", "=", "\u{feff}"]
    {
        let output = run(&["explain", problem]);
        assert_eq!(output.status.code(), Some(2), "{:?}", problem.get(..20));
        assert!(output.stderr.len() < 1000 && !output.stderr.contains(&0x1b), "{}", stderr(&output));
    }
}

/// What is not used is said: a setting that names nothing, a file that is something else.
#[test]
fn settings_that_do_not_work_are_named() {
    let with = |args: &[&str], name: &str, value: &str| kp(args).env(name, value).output().expect("kp runs");
    let info = with(&["info"], "KP_DEVICE", "toaster");
    assert!(
        info.status.success() && stdout(&info).contains("KP_DEVICE=\"toaster\" names no device"),
        "{}",
        stdout(&info)
    );
    assert!(!stdout(&info).contains("kp uses this one"), "{}", stdout(&info));
    assert!(stdout(&run(&["info"])).contains("(KP_DEVICE chooses this one)"));
    assert!(stdout(&with(&["info"], "KP_DEVICE", "")).contains("(kp uses this one unless told otherwise)"));
    assert_eq!(json(&["info", "--json"])["usual"], "cpu:0");

    let verify = ["verify", "-q", "--list", "rope"];
    for (name, value, code, says) in [
        ("KP_DEVICE", "toaster", 2, "no device \"toaster\": there is "),
        ("KP_DEPTH", "deep", 2, "KP_DEPTH must be quick or full, got `deep`"),
        ("KP_REQUIRE", "cpu,nvidai", 2, "KP_REQUIRE asks for `nvidai`; backends of this build: "),
        ("KP_THREADS", "two", 1, "cpu (KP_THREADS must be a number from 1 to 1024, got \"two\")"),
        ("KP_CPU_WITHOUT", "avx-512", 1, "cpu (KP_CPU_WITHOUT must list beginnings of "),
    ] {
        let args: &[&str] = if code == 2 { &verify } else { &["run", GEMM] };
        let output = with(args, name, value);
        let said = stderr(&output);
        assert!(said.starts_with("error: ") && said.contains(says), "{said}");
        assert_eq!((output.status.code(), said.lines().count()), (Some(code), 1), "{said}");
    }
    assert!(with(&verify, "KP_REQUIRE", "cpu").status.success());
    // A name is as wrong in a variable as in an option.
    for command in [&["run", GEMM, "-q"][..], &["explain", GEMM, "-q"], &verify] {
        let option = kp(command).args(["--device", "toaster"]).output().expect("kp runs");
        let variable = with(command, "KP_DEVICE", "toaster");
        assert_eq!((option.status.code(), stderr(&option)), (Some(2), stderr(&variable)), "{command:?}");
        assert_eq!(variable.status.code(), Some(2), "{command:?}");
    }

    let folder = Folder::new("settings");
    let (file, damaged) = (folder.path("no-wisdom"), folder.path("damaged"));
    fs::write(&file, "something else\n").expect("it can be written");
    fs::write(&damaged, format!("kp-wisdom 1\n{}", "nonsense\n".repeat(5))).expect("it can be written");
    let explained = with(&["explain", GEMM], "KP_WISDOM", &file);
    let said =
        format!("wisdom: cannot read wisdom {file}: the first line must be `kp-wisdom 1`, got `something else`\n");
    assert!(explained.status.success());
    assert_eq!(stderr(&explained), said);
    assert_eq!(stderr(&with(&["explain", GEMM, "-q"], "KP_WISDOM", &file)), "");
    let explained = stderr(&with(&["explain", GEMM], "KP_WISDOM", &damaged));
    assert!(
        explained.starts_with("wisdom: line 2: expected ") && explained.ends_with("and 2 more lines\n"),
        "{explained}"
    );
    let tuned = stderr(&with(&["tune", GEMM, "-q"], "KP_WISDOM", &file));
    assert_eq!(tuned.matches("the first line must be").count(), 1, "{tuned}");
}

#[test]
fn a_bench_of_nothing_fails() {
    let output = run(&["bench", "--budget", "20ms", GEMM, "--kernel", "no-such"]);
    assert_eq!(output.status.code(), Some(1));
    let said = "error: nothing was measured: no kernel whose name contains `no-such`\n";
    assert!(stderr(&output).ends_with(said), "{}", stderr(&output));
    let output = run(&["bench", "--budget", "20ms", "gemm 1x200000x200000x100000 f32:f32:f32"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).ends_with("error: nothing was measured\n"), "{}", stderr(&output));
}

/// A row says why; what was known before is no failure.
#[test]
fn tuning_that_finds_nothing_fails() {
    let folder = Folder::new("tune-nothing");
    let wisdom = folder.path("wisdom");
    let tune = |args: &[&str]| kp(args).env("KP_WISDOM", &wisdom).output().expect("kp runs");
    let output = tune(&["tune", "--budget", "0.000001ms", GEMM]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).ends_with("error: nothing was measured\n"), "{}", stderr(&output));
    assert!(stdout(&output).contains("skipped: "), "{}", stdout(&output));
    let output = tune(&["tune", "--json", "--budget", "0.000001ms", GEMM]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let rows: Value = serde_json::from_slice(&output.stdout).expect("it is printed all the same");
    assert_eq!(rows["measurements"][0]["outcome"], "skipped", "{rows}");
    assert!(tune(&["tune", "--budget", "5s", GEMM]).status.success());
    let output = tune(&["tune", "--budget", "0.000001ms", GEMM]);
    assert!(output.status.success() && stderr(&output).contains("0 times measured"), "{}", stderr(&output));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = kp(&["bench", "--list", "--model", "deepseek-v3"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kp runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("kp ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
}

/// The suite goes on without a reader: its verdict is the exit code.
#[test]
fn a_reader_that_goes_away_does_not_change_the_verdict() {
    let mut child =
        kp(&["verify", "-q", "cpu/rope"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kp runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("kp ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
}

/// Every write to /dev/full fails as on a full disk.
#[cfg(target_os = "linux")]
#[test]
fn results_that_are_lost_are_an_error() {
    for args in [&["info"][..], &["verify", "-q", "--list", "rope"]] {
        let full = fs::File::options().write(true).open("/dev/full").expect("there is one on Linux");
        let output = kp(args).stdout(full).output().expect("kp runs");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).contains("No space left on device"), "{args:?}: {}", stderr(&output));
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_bench_leaves_no_broken_file() {
    let folder = Folder::new("interrupt");
    let (report, record) = (folder.path("report.html"), folder.path("record"));
    let mut child = kp(&["bench", "smoke", "--report", &report, "--record", &record])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("kp runs");
    // Interrupt it once rows are being written.
    let part = || folder.files().into_iter().find(|name| name.ends_with(".part"));
    let lines = |name: &str| fs::read_to_string(folder.path(name)).map_or(0, |text| text.lines().count());
    let is_there = |name: &str| fs::exists(folder.path(name)).expect("it can be asked");
    while part().is_none_or(|name| lines(&name) < 2) || !is_there("report.html") {
        assert!(child.try_wait().expect("it can be asked").is_none(), "kp ended before it was interrupted");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // kp catches neither, so TERM does what Ctrl-C does, but for one thing: whoever runs tests in the background may
    // have told all its children to ignore INT. The shell's own `kill`, because a bare system has no other.
    let sent = Command::new("sh").args(["-c", &format!("kill -TERM {}", child.id())]).status().expect("sh runs");
    assert!(sent.success() && !child.wait().expect("kp ends").success());
    let files = folder.files();
    let [record, page] = &files[..] else { panic!("{files:?}") };
    assert!(record.ends_with(".jsonl.part") && page == "report.html", "{files:?}");
    // What was measured is kept, and said to be a part.
    let html = fs::read_to_string(&report).expect("it is there");
    assert!(html.ends_with("</html>\n") && html.contains("problems not measured yet"), "{html}");
    assert!(html.contains("<tr data-row"), "{html}");
    let text = fs::read_to_string(folder.path(record)).expect("it is there");
    assert!(text.ends_with('\n') && text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
}
