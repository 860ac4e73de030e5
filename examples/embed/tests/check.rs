//! The embeddings of a hundred sentences, each of them, are PyTorch's in every precision of the weights.

use kp_core::Engine;
use kp_embed::{
    check::check,
    model::{Precision, default_dir, missing},
};

#[test]
fn embeddings_are_those_of_pytorch() {
    let dir = default_dir();
    let absent = missing(&dir);
    if !absent.is_empty() {
        let why = format!("{} is not in {}: cargo xtask model minilm", absent.join(" and "), dir.display());
        let required = std::env::var("KP_REQUIRE").is_ok_and(|list| list.split(',').any(|name| name == "minilm"));
        assert!(!required, "KP_REQUIRE asks for minilm, but {why}");
        eprintln!("skipped: {why}");
        return;
    }
    let engine = Engine::builder().device("cpu").memory_only().open().expect("the CPU backend is compiled in");
    for precision in Precision::ALL {
        let report = check(&engine, &dir, precision).unwrap_or_else(|error| panic!("{precision}: {error:#}"));
        println!("{report}");
        assert!(report.passes(), "{report}");
    }
}

#[test]
fn no_sentence_is_both_judged_and_calibrated_with() {
    let plain = |line: &str| line.trim().to_lowercase();
    let judged: Vec<String> = include_str!("../reference/sentences.txt").lines().map(plain).collect();
    let both: Vec<&str> = include_str!("../calibration.txt").lines().filter(|s| judged.contains(&plain(s))).collect();
    assert!(both.is_empty(), "{both:?}");
}
