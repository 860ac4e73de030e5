//! The program from outside: what it prints and writes.

mod common;

use common::{Folder, GEMM, json, kp, run, stderr, stdout};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::Stdio,
};

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

/// Every `kp` line of the README is one that works: its problems parse, its suites and models are there.
#[test]
fn the_readme_shows_lines_that_work() {
    let readme = include_str!("../../../README.md");
    let terminal =
        readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it has such lines");
    let lines: Vec<&str> = terminal.lines().filter_map(|line| line.strip_prefix("kp ")).collect();
    assert!(lines.len() > 5, "{lines:?}");
    for line in &lines {
        // Words in quotes are one; two blanks end the command, what follows is a remark.
        let command = line.split_once('"').and_then(|(head, rest)| Some((head, rest.split_once('"')?.0)));
        let (head, problem) = command.map_or((*line, None), |(head, problem)| (head, Some(problem)));
        let words = head.trim().split("  ").next().unwrap_or_default().split(' ');
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        if let Some(problem) = problem {
            assert!(run(&["explain", problem]).status.success(), "{line}");
        }
        let read = match words[..] {
            ["bench", ref model @ .., "--report", _] => run(&[&["bench", "--list"], model].concat()),
            ["tune", suite, "--budget", _] => run(&["bench", "--list", suite]),
            [command, ..] => run(&[command, "--help"]),
            [] => panic!("no command: {line}"),
        };
        assert!(read.status.success(), "{line}: {}", stderr(&read));
    }
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
fn a_quiet_verification_says_how_it_ended() {
    let said = stdout(&run(&["verify", "-q", "cpu/rope/floor"]));
    assert!(said.starts_with("test result: ok. ") && said.trim_end().lines().count() == 1, "{said}");
    let said = stdout(&run(&["verify", "-q", "--list", "cpu/rope/floor"]));
    assert!(said.starts_with("cpu/rope/floor/"), "a list is the result: {said}");
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
fn another_program_takes_turns() {
    let folder = Folder::new("turns");
    let record = folder.path("");
    let args = [
        "bench", "-q", "--budget", "20ms", "--turns", "4", "--kernel", "packed#1", GEMM, "--record", &record, "--yield",
    ];
    let mut child = kp(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("kp starts");
    let mut answers = child.stdin.take().expect("it is piped");
    let mut turns = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("it is piped")).lines() {
        let line = line.expect("it is text");
        if line.starts_with('{') {
            turns.push(serde_json::from_str::<Value>(&line).expect("it is JSON"));
            writeln!(answers).expect("kp listens");
        }
    }
    assert!(child.wait().expect("it ends").success());
    assert_eq!(turns.len(), 5);
    assert_eq!(turns[0], serde_json::json!({}));
    for turn in &turns[1..] {
        assert!(turn["packed#1"].as_f64().is_some_and(|ns| ns > 0.0), "{turn}");
    }
    // Nobody who answers: no record of half a row.
    let output = run(&args);
    assert!(stderr(&output).contains("nothing was measured"), "{}", stderr(&output));
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
