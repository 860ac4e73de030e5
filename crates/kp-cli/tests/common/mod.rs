//! The program as a test runs it: on the CPU, without a wisdom file, requiring nothing.
#![allow(dead_code, reason = "each test binary uses its part")]

use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, Output, Stdio},
};

pub(crate) const GEMM: &str = "gemm 1x8x16x32 f32:f32:f32";

pub(crate) fn kp(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kp"));
    command.args(args).env("KP_DEVICE", "cpu").env("KP_WISDOM", "").env_remove("KP_REQUIRE").stdin(Stdio::null());
    command
}

pub(crate) fn run(args: &[&str]) -> Output {
    kp(args).output().expect("kp runs")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("kp prints UTF-8")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("kp prints UTF-8")
}

pub(crate) fn json(args: &[&str]) -> Value {
    let output = run(args);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", stderr(&output)))
}

/// A folder of this test's own, removed when the test passes.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("kp-cli-{}-{name}", process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be made");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a temporary path is UTF-8").to_owned()
    }

    pub(crate) fn files(&self) -> Vec<String> {
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
