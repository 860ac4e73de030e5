//! Weights from files: what is read, and what is refused without a panic.

#![cfg(feature = "safetensors")]

use kp_core::Engine;
use std::{fs, path::PathBuf};

fn engine() -> Engine {
    Engine::builder().only(kp_null::BACKEND).device("null").memory_only().open().expect("it is always there")
}

/// A file that goes when the test ends.
struct File(PathBuf);

impl File {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("kp-weights-{}-{name}", std::process::id()));
        fs::write(&path, bytes).expect("there is a place for temporary files");
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // What is left behind is small and in a temporary folder.
        let _ = fs::remove_file(&self.0);
    }
}

/// The format: the header's length in 8 bytes, the header as JSON, the tensors' bytes.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

const GOOD: &str = r#"{"__metadata__":{"of":"a test"},
    "b":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},
    "a.i":{"dtype":"I64","shape":[1],"data_offsets":[16,24]},
    "s":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}}"#;

fn good() -> Vec<u8> {
    let numbers: Vec<u8> = [1.0_f32, 2.0, 3.0, -4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    file(GOOD, &[&numbers[..], &7_i64.to_le_bytes(), &[0x80, 0x3f]].concat())
}

#[test]
fn tensors_of_a_file_have_names_shapes_and_types() {
    let e = engine();
    let path = File::new("good", &good());
    let weights = e.load(&path.0).expect("the file is good");
    assert_eq!(weights.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a.i", "b", "s"]);
    let b = weights.get("b").expect("it is there");
    assert_eq!((b.shape(), b.to_vec::<f32>().expect("f32")), (&[2, 2][..], vec![1.0, 2.0, 3.0, -4.0]));
    assert_eq!(weights.get("a.i").and_then(|i| i.item::<i64>()).expect("i64"), 7);
    #[cfg(feature = "half")]
    assert_eq!(weights.get("s").and_then(|s| s.item::<half::bf16>()).expect("bf16").to_f32(), 1.0);
    let none = weights.get("c").expect_err("there is no c");
    assert_eq!(none.to_string(), "a weight unavailable: no c among 3 tensors: a.i, b, s");
}

#[test]
fn bad_files_are_refused_by_name() {
    let e = engine();
    let absent = e.load("/nowhere/model.safetensors").expect_err("there is no such folder");
    assert!(absent.to_string().starts_with("weights unavailable: /nowhere/model.safetensors: "), "{absent}");
    let odd = GOOD.replace("BF16", "BOOL").replace("[24,26]", "[24,25]");
    let cases: [(&str, Vec<u8>); 6] = [
        ("empty", Vec::new()),
        ("cut", good()[..40].to_vec()),
        ("short", good()[..good().len() - 1].to_vec()),
        ("huge", [u64::MAX.to_le_bytes().to_vec(), good()].concat()),
        ("overlap", file(&GOOD.replace("[16,24]", "[8,16]"), &[0; 26])),
        ("type", file(&odd, &[0; 25])),
    ];
    for (name, bytes) in cases {
        let path = File::new(name, &bytes);
        let error = e.load(&path.0).expect_err(name);
        assert!(error.is_unavailable() && error.to_string().contains(name), "{name}: {error}");
    }
}
