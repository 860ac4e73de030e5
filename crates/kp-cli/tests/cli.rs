//! The program from outside: what it prints, how it fails, what it leaves behind.

use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, Output, Stdio},
};

const GEMM: &str = "gemm 1x8x16x32 f32:f32:f32";

fn kp(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kp"));
    command.args(args).env("KP_DEVICE", "cpu").env("KP_WISDOM", "").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    kp(args).output().expect("kp runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("kp prints UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("kp prints UTF-8")
}

fn json(args: &[&str]) -> Value {
    let output = run(args);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", stderr(&output)))
}

/// A folder of this test's own, removed when the test passes.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("kp-cli-{}-{name}", process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be made");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a temporary path is UTF-8").to_owned()
    }

    fn files(&self) -> Vec<String> {
        fn list(folder: &Path, below: &Path, files: &mut Vec<String>) {
            for entry in fs::read_dir(folder).expect("it can be listed") {
                let path = entry.expect("it can be listed").path();
                if path.is_dir() {
                    list(&path, below, files);
                } else {
                    files.push(path.strip_prefix(below).expect("it is below").to_string_lossy().into_owned());
                }
            }
        }
        let mut files = Vec::new();
        list(&self.0, &self.0, &mut files);
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Left behind, it would only be litter.
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[test]
fn help_names_every_command() {
    let help = run(&["--help"]);
    assert!(help.status.success());
    for command in ["info", "explain", "run", "verify", "bench", "report", "tune"] {
        assert!(stdout(&help).contains(&format!("\n  {command} ")), "{command} in {}", stdout(&help));
        assert!(run(&[command, "--help"]).status.success(), "{command}");
    }
    assert_eq!(run(&["dance"]).status.code(), Some(2));
    assert!(stdout(&run(&["--version"])).starts_with("kp "));
}

/// Every mistake is one line that says what was expected, and no panic.
#[test]
fn mistakes_get_one_line_and_a_code() {
    let cases: &[(&[&str], i32, &str)] = &[
        (&["explain", "gemm 1x1"], 2, "`gemm 1x1`: dims must be BATCHxMxNxK, got `1x1`"),
        (&["explain", "gem 1x1x1x1 f32:f32:f32"], 2, "op must be one of activation, "),
        (&["run", "gemm", "1x1x1x1", "f32:f32:f33"], 2, "types must be A:B:D"),
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

#[test]
fn info_tells_what_there_is() {
    let info = json(&["info", "--json"]);
    let device = &info["devices"][0];
    assert_eq!(device["backend"], "cpu");
    for field in ["memory_bytes", "units", "bytes_per_s"] {
        assert!(device[field].as_f64().is_some_and(|n| n > 0.0), "{field}: {device}");
    }
    assert!(device["kernels"]["gemm"].as_u64().is_some_and(|n| n > 0));
    assert!(device["class"].as_str().is_some_and(|class| class.ends_with('c')), "{device}");
    let text = stdout(&run(&["info"]));
    assert!(text.starts_with("cpu:0  ") && text.contains("\n  kernels "), "{text}");
}

#[test]
fn explain_ranks_and_run_runs_the_winner() {
    let explained = json(&["explain", "--json", GEMM]);
    let first = &explained["candidates"][0]["kernel"];
    assert_eq!((&explained["winner"], &explained["problem"]), (first, &Value::from(GEMM)));
    let text = stdout(&run(&["explain", "gemm", "1x8x16x32", "f32:f32:f32"]));
    assert!(text.contains("floor ") && text.contains(first.as_str().expect("a name")), "{text}");

    let ran = json(&["run", "--json", GEMM]);
    assert_eq!(ran["kernel"], format!("cpu/gemm/{}", first.as_str().expect("a name")));
    assert_eq!(ran["wrong"], 0);
    assert!(ran["median_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{ran}");
    let text = stdout(&run(&["run", GEMM]));
    for field in ["kernel", "time", "rate", "roofline", "error"] {
        assert!(text.contains(&format!("\n  {field} ")), "{field} in {text}");
    }
}

#[test]
fn bench_times_the_best_as_it_is_told() {
    let bench = |more: &[&str]| json(&[&["bench", "--json", "--budget", "20ms", "--best", "1", GEMM], more].concat());
    let first = json(&["explain", "--json", GEMM])["candidates"][0]["kernel"].clone();
    for (method, says, cold) in
        [("rotate", "rotated", None), ("repeat", "same operands", Some(false)), ("flush", "overwritten", Some(true))]
    {
        let done = bench(&["--method", method]);
        let suite = &done["suites"][0];
        let rows = suite["rows"].as_array().expect("rows");
        let label = |row: &Value| Some(format!("{}#{}", row["kernel"].as_str()?, row["variant"]));
        assert!(rows.len() == 1 && label(&rows[0]).as_deref() == first.as_str(), "{rows:?}");
        assert!(cold.is_none_or(|cold| rows[0]["cold"] == cold), "{rows:?}");
        assert!(suite["header"]["method"].as_str().is_some_and(|method| method.contains(says)), "{suite}");
    }
    // A backend without graphs is told apart from one that is slow: no row, and the reason.
    let done = bench(&["--method", "graph"]);
    let suite = &done["suites"][0];
    assert!(suite["rows"].as_array().is_some_and(Vec::is_empty), "{suite}");
    assert!(suite["skipped"].to_string().contains("cannot be captured"), "{suite}");
}

#[test]
fn bench_times_every_candidate_and_writes_whole_files() {
    let folder = Folder::new("bench");
    let (report, record) = (folder.path("report.html"), folder.path("record"));
    let done = json(&["bench", "--json", "--budget", "20ms", GEMM, "--report", &report, "--record", &record]);
    let suite = &done["suites"][0];
    let rows = suite["rows"].as_array().expect("rows");
    let candidates = json(&["explain", "--json", GEMM])["candidates"].as_array().expect("candidates").len();
    assert_eq!(rows.len(), candidates);
    let times: Vec<f64> = rows.iter().map(|row| row["median_ns"].as_f64().expect("a time")).collect();
    assert!(times.is_sorted() && times[0] > 0.0, "{times:?}");
    assert!(rows.iter().all(|row| row["max_error"].as_f64().is_some_and(|error| error <= 1.0)), "{rows:?}");

    let html = fs::read_to_string(&report).expect("the report is there");
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n") && html.contains(GEMM));
    let files = folder.files();
    assert_eq!(files.len(), 2, "nothing temporary is left: {files:?}");

    // The record draws the same rows again, and compares with itself.
    let record_file = folder.path(&files[0]);
    assert!(record_file.ends_with("-problems.jsonl"), "{files:?}");
    let again = folder.path("again.html");
    assert!(run(&["report", &record_file, "-o", &again]).status.success());
    assert!(fs::read_to_string(&again).expect("it is there").contains(GEMM));
    let same = run(&["bench", "--budget", "20ms", GEMM, "--against", &record, "--threshold", "1000"]);
    assert!(same.status.success(), "{}", stderr(&same));
    assert!(stdout(&same).contains(&format!("{candidates} rows compared: 0 slower")), "{}", stdout(&same));

    // Nor is what is recorded now what it is compared with.
    let empty = folder.path("empty");
    fs::create_dir(&empty).expect("it can be made");
    let first = run(&["bench", "--budget", "20ms", GEMM, "--record", &empty, "--against", &empty]);
    assert!(first.status.success() && stderr(&first).contains("no record of problems"), "{}", stderr(&first));

    // A past that was a million times faster fails the run.
    let fast: String = fs::read_to_string(&record_file)
        .expect("it is there")
        .lines()
        .map(|line| {
            let mut line: Value = serde_json::from_str(line).expect("a line is JSON");
            if let Some(ns) = line["median_ns"].as_f64() {
                line["median_ns"] = (ns / 1e6).into();
            }
            format!("{line}\n")
        })
        .collect();
    fs::write(&record_file, fast).expect("it can be written");
    let slower = run(&["bench", "--budget", "20ms", GEMM, "--against", &record_file]);
    assert_eq!(slower.status.code(), Some(1));
    assert!(stdout(&slower).contains("× slower") && stderr(&slower).contains("suspicious rows once more"));
}

#[test]
fn without_a_record_it_says_how_to_make_one() {
    let folder = Folder::new("none");
    let output = run(&["bench", "--budget", "20ms", GEMM, "--against", &folder.path("")]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("no record of problems for machines of class ")
            && stderr(&output).contains("--record")
    );
}

#[test]
fn rivals_are_set_beside_the_winner() {
    let folder = Folder::new("peers");
    let peers = folder.path("peers.jsonl");
    let line = format!("{{\"problem\":\"{GEMM} acc=f32\",\"peer\":\"slow\",\"peer_ns\":1e12}}\n");
    fs::write(&peers, line).expect("it can be written");
    let done = json(&["bench", "--json", "--budget", "20ms", GEMM, "--peers", &peers]);
    let row = &done["suites"][0]["rows"][0];
    assert_eq!((&row["peer"], &row["peer_ns"]), (&Value::from("slow"), &Value::from(1e12)));
    assert!(row["ratio"].as_f64().is_some_and(|ratio| ratio > 1000.0), "{row}");
}

#[test]
fn a_model_is_a_list_of_problems() {
    let text = stdout(&run(&["bench", "--model", "llama-3-8b", "--list"]));
    assert_eq!(text, include_str!("../../../benches/suites/llama-3-8b.txt"));
    let text = stdout(&run(&[
        "bench",
        "--model",
        "llama-3-8b",
        "--batch",
        "2",
        "--context",
        "77",
        "--weights",
        "int4",
        "--list",
    ]));
    assert!(
        text.contains("attention 2x32:8x1:77x128") && text.contains("gemm 1x2x6144x4096 bf16:i4@g128/f16:bf16"),
        "{text}"
    );
    assert_eq!(text.matches("\n## ").count(), 1, "{text}");
    let both =
        stdout(&run(&["bench", "--model", "llama-3-8b", "--batch", "1,64", "--phase", "decode,prefill", "--list"]));
    assert_eq!(both.matches("\n## decode").count(), 2);
    assert_eq!(both.matches("\n## prefill").count(), 2);
}

#[test]
fn tune_remembers_and_explain_knows() {
    let folder = Folder::new("tune");
    let wisdom = folder.path("wisdom");
    let with = |args: &[&str]| kp(args).env("KP_WISDOM", &wisdom).output().expect("kp runs");
    let tuned = with(&["tune", "--json", "--budget", "5s", GEMM]);
    let tuned: Value = serde_json::from_slice(&tuned.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&tuned)));
    assert_eq!(tuned["measurements"][0]["outcome"], "measured", "{tuned}");
    let explained: Value = serde_json::from_slice(&with(&["explain", "--json", GEMM]).stdout).expect("JSON");
    assert_eq!(explained["candidates"][0]["measured"], true, "{explained}");
}

#[test]
fn verify_runs_the_suite() {
    let listed = json(&["verify", "--json", "--list", "gemm"]);
    let tests = listed["backends"][0]["tests"].as_array().expect("tests");
    assert!(tests.iter().all(|name| name.as_str().is_some_and(|name| name.contains("gemm"))) && tests.len() > 10);
    let name = tests[0].as_str().expect("a name");
    let ran = json(&["verify", "--json", name]);
    assert_eq!(ran["backends"][0]["failed"], serde_json::json!([]), "{ran}");
    assert!(ran["backends"][0]["passed"].as_u64().is_some_and(|n| n > 0), "{ran}");
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
    while part().is_none_or(|name| lines(&name) < 2) {
        assert!(child.try_wait().expect("it can be asked").is_none(), "kp ended before it was interrupted");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // kp catches neither, so TERM does what Ctrl-C does, but for one thing: whoever runs tests in the background may
    // have told all its children to ignore INT. The shell's own `kill`, because a bare system has no other.
    let sent = Command::new("sh").args(["-c", &format!("kill -TERM {}", child.id())]).status().expect("sh runs");
    assert!(sent.success() && !child.wait().expect("kp ends").success());
    let files = folder.files();
    assert!(files.len() == 1 && files[0].ends_with(".jsonl.part"), "{files:?}");
    let text = fs::read_to_string(folder.path(&files[0])).expect("it is there");
    assert!(text.ends_with('\n') && text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
}
