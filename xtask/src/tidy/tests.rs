//! Each check finds what it is for, and nothing in the repository as it is.

use super::*;
use crate::root;

/// The repository is tidy: the same checks as `cargo xtask tidy`.
#[test]
fn tidy() {
    assert_eq!(report(&root()).expect("the repository can be read"), 0, "see the findings above");
}

/// One bad tree: the check that must find it, its files, and where and what it finds.
struct Bad {
    check: &'static str,
    files: &'static [(&'static str, &'static str)],
    found: &'static str,
}

/// Each of these trees has exactly one finding, so that no check is satisfied with everything or with nothing.
const BAD: &[Bad] = &[
    Bad {
        check: "arrows",
        files: &[(
            "crates/kp-hal/Cargo.toml",
            "[package]\nname = \"kp-hal\"\n[dependencies]\nhalf.workspace = true\nlibc.workspace = true\n",
        )],
        found: "crates/kp-hal/Cargo.toml:5: kp-hal may not depend on libc: only half and serde from outside",
    },
    Bad {
        check: "arrows",
        files: &[(
            "crates/kp-hal/Cargo.toml",
            "[package]\nname = \"kp-hal\"\n[dependencies]\nserde.workspace = true\n",
        )],
        found: "crates/kp-hal/Cargo.toml:4: kp-hal may not depend on serde: serde must be optional",
    },
    Bad {
        check: "arrows",
        files: &[(
            "crates/kp-cpu/Cargo.toml",
            "[package]\nname = \"kp-cpu\"\n[dependencies]\nkp-hal.workspace = true\nkp-null.workspace = true\n",
        )],
        found: "crates/kp-cpu/Cargo.toml:5: kp-cpu may not depend on kp-null: a backend may know kp-hal",
    },
    Bad {
        check: "arrows",
        files: &[(
            "crates/kp-cpu/Cargo.toml",
            "[package]\nname = \"kp-cpu\"\n[dev-dependencies]\nkp-testkit.workspace = true\nkp-core.workspace = true\n",
        )],
        found: "crates/kp-cpu/Cargo.toml:5: kp-cpu may not depend on kp-core: a backend may know kp-hal",
    },
    Bad {
        check: "arrows",
        files: &[(
            "crates/kp-testkit/Cargo.toml",
            "[package]\nname = \"kp-testkit\"\n[target.'cfg(unix)'.dependencies]\nkp-core.workspace = true\n",
        )],
        found: "crates/kp-testkit/Cargo.toml:4: kp-testkit may not depend on kp-core: kp-testkit may know kp-hal",
    },
    Bad {
        check: "backend-names",
        files: &[
            ("crates/kp-cpu/Cargo.toml", "[package]\nname = \"kp-cpu\"\n"),
            ("crates/kp-core/src/backends.rs", "use kp_cpu::BACKEND;\n"),
            ("crates/kp-core/src/engine.rs", "//! kp_cpu is fine in a comment.\nuse kp_cpu::BACKEND;\n"),
        ],
        found: "crates/kp-core/src/engine.rs:2: names kp_cpu; only backends.rs knows backends",
    },
    Bad {
        check: "backend-names",
        files: &[
            ("crates/kp-core/Cargo.toml", "[dependencies]\nkp-amd = { workspace = true, optional = true }\n"),
            ("crates/kp-core/src/backends.rs", "// kp_amd\n"),
        ],
        found: "crates/kp-core/Cargo.toml:2: kp-amd has no row in crates/kp-core/src/backends.rs",
    },
    Bad {
        check: "backend-names",
        files: &[
            ("crates/kp-core/Cargo.toml", "[dependencies]\nkp-amd = { workspace = true }\n"),
            ("crates/kp-core/src/backends.rs", "use kp_amd::BACKEND;\n"),
        ],
        found: "crates/kp-core/Cargo.toml:2: kp-amd must be optional, turned on by a feature",
    },
    Bad {
        check: "manifests",
        files: &[(
            "xtask/Cargo.toml",
            "[package]\nname = \"xtask\"\nversion = \"1.0.0\"\nedition.workspace = true\nrust-version.workspace = true\n\
             license.workspace = true\n[lints]\nworkspace = true\n",
        )],
        found: "xtask/Cargo.toml:3: expected version.workspace = true",
    },
    Bad {
        check: "manifests",
        files: &[(
            "xtask/Cargo.toml",
            "[package]\nname = \"xtask\"\nversion.workspace = true\nedition.workspace = true\nrust-version.workspace = true\n\
             license.workspace = true\n[lints]\nworkspace = true\n[dependencies]\nanyhow = \"1\"\n",
        )],
        found: "xtask/Cargo.toml:10: anyhow must come from the workspace: workspace = true",
    },
    Bad {
        check: "manifests",
        files: &[("Cargo.toml", "[workspace]\nmembers = [\n")],
        found: "Cargo.toml:2: unclosed array, expected `]`",
    },
    Bad {
        check: "dependencies",
        files: &[
            ("Cargo.toml", "[workspace.dependencies]\nkp-hal = { path = \"x\" }\nhalf = \"2\"\n"),
            ("xtask/Cargo.toml", "[package]\nname = \"xtask\"\n[dependencies]\nhalf.workspace = true\n"),
            ("docs/dependencies.md", "| crate | used by | reason |\n|---|---|---|\n"),
        ],
        found: "Cargo.toml:3: docs/dependencies.md has no row for half, used by xtask",
    },
    Bad {
        check: "dependencies",
        files: &[
            ("Cargo.toml", "[workspace.dependencies]\nhalf = \"2\"\n"),
            ("xtask/Cargo.toml", "[package]\nname = \"xtask\"\n[dependencies]\nhalf.workspace = true\n"),
            ("docs/dependencies.md", "| `half` | kp-hal | 16-bit floats |\n"),
        ],
        found: "docs/dependencies.md:1: half is used by xtask; the row says kp-hal",
    },
    Bad {
        check: "dependencies",
        files: &[
            ("Cargo.toml", "[workspace.dependencies]\nhalf = \"2\"\n"),
            (
                "a/Cargo.toml",
                "[package]\nname = \"a\"\n[dependencies]\nhalf.workspace = true\n[dev-dependencies]\nhalf.workspace = true\n",
            ),
            ("b/Cargo.toml", "[package]\nname = \"b\"\n[dev-dependencies]\nhalf.workspace = true\n"),
            ("docs/dependencies.md", "| `half` | a, b | 16-bit floats |\n"),
        ],
        found: "docs/dependencies.md:1: half is used by a, b (tests); the row says a, b",
    },
    Bad {
        check: "dependencies",
        files: &[
            ("Cargo.toml", "[workspace.dependencies]\n"),
            ("docs/dependencies.md", "| `half` | kp-hal | 16-bit floats |\n"),
        ],
        found: "docs/dependencies.md:1: half is no dependency of the workspace",
    },
    Bad {
        check: "dependencies",
        files: &[
            ("Cargo.toml", "[workspace.dependencies]\nhalf = \"2\"\n"),
            ("docs/dependencies.md", "| `half` | kp-hal | x |\n"),
        ],
        found: "Cargo.toml:2: no crate uses half",
    },
    Bad {
        check: "rust-version",
        files: &[("Cargo.toml", "[workspace.package]\nrust-version = \"1.95\"\n"), ("README.md", "Needs Rust 1.94.\n")],
        found: "README.md:1: says Rust 1.94., but rust-version is 1.95",
    },
    Bad {
        check: "rust-version",
        files: &[("Cargo.toml", "[workspace.package]\nrust-version = \"1.95\"\n"), ("README.md", "kp\n")],
        found: "README.md:1: must say which compiler it needs: Rust 1.95",
    },
    Bad {
        check: "backend-files",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/lib.rs", "pub static BACKEND: Backend = 1;\npub static KERNELS: Kernels = 2;\n"),
            ("crates/kp-x/src/caps.rs", ""),
            ("crates/kp-x/src/device.rs", ""),
            ("crates/kp-x/src/memory.rs", ""),
        ],
        found: "crates/kp-x/Cargo.toml:1: kp-x lacks src/queue.rs, which every backend has",
    },
    Bad {
        check: "backend-files",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/lib.rs", "pub static BACKEND: Backend = 1;\n// pub static KERNELS: Kernels\n"),
            ("crates/kp-x/src/caps.rs", ""),
            ("crates/kp-x/src/device.rs", ""),
            ("crates/kp-x/src/memory.rs", ""),
            ("crates/kp-x/src/queue.rs", ""),
        ],
        found: "crates/kp-x/src/lib.rs:1: must declare `pub static KERNELS`",
    },
    Bad {
        check: "stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/gemm/mod.rs", "pub const LIST: L = &[&SIMT];\n"),
            (
                "crates/kp-x/src/gemm/simt.rs",
                "pub const SIMT: Simt = Simt;\nimpl Kernel<Gemm> for Simt {\n    fn name(&self) -> &'static str { \"simd\" }\n}\n",
            ),
        ],
        found: "crates/kp-x/src/gemm/simt.rs:3: kernel \"simd\" stands in simt.rs",
    },
    Bad {
        check: "stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/gemm/mod.rs", "pub const LIST: L = &[&SIMD];\n"),
            (
                "crates/kp-x/src/gemm/simt.rs",
                "pub const SIMT: Simt = Simt;\nimpl Kernel<Gemm> for Simt {\n    fn name(&self) -> &'static str { NAME }\n}\nconst NAME: &str = \"simt\";\n",
            ),
        ],
        found: "crates/kp-x/src/gemm/simt.rs:1: SIMT is not in the list of crates/kp-x/src/gemm/mod.rs",
    },
    Bad {
        check: "stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/gemm/mod.rs", "mod simt;\n"),
            (
                "crates/kp-x/src/gemm/simt.rs",
                "impl<O: Op> kp_hal::Kernel<O> for Simt<O> {\n    fn name(&self) -> &'static str { \"simt\" }\n}\n",
            ),
        ],
        found: "crates/kp-x/src/gemm/simt.rs:1: Simt is not in the list of crates/kp-x/src/gemm/mod.rs",
    },
    Bad {
        check: "stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/gemm/mod.rs", "pub const LIST: L = &[&wide::KERNEL];\n"),
            (
                "crates/kp-x/src/gemm/tiles.rs",
                "impl Kernel<Gemm> for Tiles {\n    fn name(&self) -> &'static str {\n        self.name\n    }\n}\n",
            ),
            ("crates/kp-x/src/gemm/wide.rs", "pub const KERNEL: Tiles = Tiles { name: \"narrow\", tiles: &[] };\n"),
        ],
        found: "crates/kp-x/src/gemm/wide.rs:1: kernel \"narrow\" stands in wide.rs",
    },
    Bad {
        check: "stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/gemm/mod.rs", "pub const LIST: L = &[&narrow::KERNEL];\n"),
            (
                "crates/kp-x/src/gemm/tiles.rs",
                "impl Kernel<Gemm> for Tiles {\n    fn name(&self) -> &'static str {\n        self.name\n    }\n}\n",
            ),
            ("crates/kp-x/src/gemm/wide.rs", "pub const KERNEL: Tiles = Tiles { name: \"wide\", tiles: &[] };\n"),
        ],
        found: "crates/kp-x/src/gemm/wide.rs:1: KERNEL is not in the list of crates/kp-x/src/gemm/mod.rs",
    },
    Bad {
        check: "stems",
        files: &[("crates/kp-x/Cargo.toml", ""), ("crates/kp-x/src/simt.rs", "impl Kernel<Gemm> for Simt {}\n")],
        found: "crates/kp-x/src/simt.rs:1: a kernel of one op stands in its folder: src/<op>/<stem>.rs",
    },
    Bad {
        check: "stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/gemm/mod.rs", "mod fast_v2;\nuse A;\n"),
            ("crates/kp-x/src/gemm/simd_v2.rs", "const NAME: &str = \"simd_v2\";\nimpl Kernel<Gemm> for A {}\n"),
        ],
        found: "crates/kp-x/src/gemm/simd_v2.rs:1: v2 in a kernel's name; it says what it needs, its types, its idea",
    },
    Bad {
        check: "stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/gemm/mod.rs", "use A;\n"),
            (
                "crates/kp-x/src/gemm/simd.rs",
                "const NAME: &str = \"simd\";\nimpl Kernel<Gemm> for A {\n    f(include_bytes!(\"simt.rs\"))\n}\n",
            ),
        ],
        found: "crates/kp-x/src/gemm/simd.rs:3: hashes simt, not simd: measurements would outlive changes",
    },
    Bad {
        check: "stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/any.rs", "impl<O> Kernel<O> for Any<O> {\n    const NAME: &str = \"any\";\n}\n"),
            ("crates/kp-x/src/cast/any.rs", "include_bytes!(\"any.rs\")\n"),
            ("crates/kp-x/src/cast/mod.rs", "&Any::<Cast>::KERNEL\n"),
            ("crates/kp-x/src/gemm/mod.rs", "\n&Any::<Gemm>::KERNEL\n"),
        ],
        found: "crates/kp-x/src/gemm/mod.rs:2: lists Any, but crates/kp-x/src/gemm/any.rs is missing",
    },
    Bad {
        check: "stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/any.rs", "impl<O> Kernel<O> for Any<O> {\n    const NAME: &str = \"any\";\n}\n"),
            ("crates/kp-x/src/cast/any.rs", ""),
            ("crates/kp-x/src/cast/mod.rs", "mod any;\n"),
            ("crates/kp-x/src/gemm/any.rs", "const NAME: &str = \"any\";\nimpl Kernel<Gemm> for Own {}\n"),
            ("crates/kp-x/src/gemm/mod.rs", "&any::Own\n"),
        ],
        found: "crates/kp-x/src/cast/any.rs:1: its kernel is not in the list of crates/kp-x/src/cast/mod.rs",
    },
    Bad {
        check: "stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/any.rs", "impl<O> Kernel<O> for Any<O> {\n    const NAME: &str = \"any\";\n}\n"),
            ("crates/kp-x/src/cast/any.rs", "include_bytes!(\"simd.rs\")\n"),
            ("crates/kp-x/src/cast/mod.rs", "&Any::<Cast>::KERNEL\n"),
        ],
        found: "crates/kp-x/src/cast/any.rs:1: hashes simd, not any: measurements would outlive changes",
    },
    Bad {
        check: "unsafe-places",
        files: &[("crates/kp-x/src/rows.rs", "unsafe { f() }\n"), ("crates/kp-x/src/caps.rs", "unsafe { f() }\n")],
        found: "crates/kp-x/src/caps.rs:1: unsafe may not stand in this file; move it to a driver file, memory.rs or a kernel",
    },
    Bad {
        check: "device-stems",
        files: &[
            ("crates/kp-x/Cargo.toml", ""),
            ("crates/kp-x/src/gemm/simt_f32.rs", ""),
            ("kernels/gemm/cuda/simt_f32.cu", ""),
            ("kernels/gemm/cuda/sm80_bf16.cu", ""),
        ],
        found: "kernels/gemm/cuda/sm80_bf16.cu:1: no backend has a host file src/gemm/sm80_bf16.rs",
    },
    Bad {
        check: "unsafe-places",
        files: &[
            ("crates/kp-x/src/memory.rs", "unsafe { f() }\n"),
            ("crates/kp-x/src/gemm/simt.rs", "unsafe { f() }\n"),
            ("crates/kp-core/tests/alloc.rs", "unsafe impl GlobalAlloc for A {}\n"),
            ("crates/kp-core/src/engine.rs", "// unsafe {\nlet f: unsafe fn();\nunsafe { f() }\n"),
        ],
        found: "crates/kp-core/src/engine.rs:3: unsafe may not stand in this file; move it to a driver file, memory.rs or a kernel",
    },
    Bad {
        check: "unsafe-places",
        files: &[("crates/kp-core/tests/env.rs", "unsafe { set_var() }\n")],
        found: "crates/kp-core/tests/env.rs:1: unsafe may not stand in this file; move it to a driver file, memory.rs or a kernel",
    },
    Bad {
        check: "safety-comments",
        files: &[(
            "a.rs",
            "// SAFETY: far away\n\n\n\n\n\n\n\n\nlet a = unsafe { f() };\n// SAFETY: near\nlet b = unsafe { f() };\n",
        )],
        found: "a.rs:10: this unsafe block has no SAFETY comment",
    },
    Bad {
        check: "safety-comments",
        files: &[("a.rs", "\"SAFETY:\";\nunsafe impl Send for A {}\n")],
        found: "a.rs:2: this unsafe impl has no SAFETY comment",
    },
    Bad {
        check: "safety-comments",
        files: &[(
            "a.rs",
            "impl A for B {\n    unsafe fn f() {}\n}\n/// # Safety\n/// None.\n#[inline]\npub unsafe fn g() {}\nimpl A {\n    /// F.\n    unsafe fn f() {}\n}\n",
        )],
        found: "a.rs:10: its documentation lacks a # Safety section",
    },
    Bad {
        check: "unfinished",
        files: &[("a.rs", "f(\"todo!()\");\ntodo!();\n")],
        found: "a.rs:2: todo!(..) may not be committed",
    },
    Bad {
        check: "unfinished",
        files: &[("a.rs", "let a = \"TODO\"; // never a TODOIST\n/* FIXME: later */\n")],
        found: "a.rs:2: FIXME in a comment; do it, or say why not",
    },
    Bad {
        check: "unfinished",
        files: &[("a.cu", "int a;\n# if 0\n#endif\n")],
        found: "a.cu:2: #if 0: delete the alternative",
    },
    Bad {
        check: "unfinished",
        files: &[("kernels/old/a.md", "")],
        found: "kernels/old/a.md:1: a folder of old code; version control remembers it",
    },
    Bad {
        check: "reasons",
        files: &[("a.rs", "#[allow(dead_code, reason = \"x\")]\n#[allow(\n    dead_code\n)]\nfn f() {}\n")],
        found: "a.rs:2: this attribute needs a reason = \"..\"",
    },
    Bad {
        check: "reasons",
        files: &[("a.rs", "#![expect(dead_code)]\n")],
        found: "a.rs:1: this attribute needs a reason = \"..\"",
    },
    Bad {
        check: "reasons",
        files: &[("a.rs", "#[ignore = \"slow\"]\n#[test]\nfn f() {}\n#[ignore]\n#[test]\nfn g() {}\n")],
        found: "a.rs:4: an ignored test says why: #[ignore = \"..\"]",
    },
    Bad {
        check: "names",
        files: &[("a.rs", "fn get() {}\nfn get_a() {}\nfn get_mut() {}\n")],
        found: "a.rs:2: get_a: name it after what it returns, without get_",
    },
    Bad { check: "whitespace", files: &[("a.rs", "fn f() {} \n")], found: "a.rs:1: blanks at the end of the line" },
    Bad { check: "whitespace", files: &[("a.rs", "\tfn f() {}\n")], found: "a.rs:1: a tab; four spaces are meant" },
    Bad { check: "whitespace", files: &[("a.md", "a\nb")], found: "a.md:2: no newline at the end of the file" },
    Bad { check: "whitespace", files: &[("a.md", "a\n\n")], found: "a.md:2: empty lines at the end of the file" },
    Bad {
        check: "openings",
        files: &[("a/src/a.rs", "//! A.\n"), ("a/src/b.rs", "// B.\n"), ("a/tests/c.rs", "")],
        found: "a/src/b.rs:1: must open with //! and what this file is",
    },
    Bad {
        check: "messages",
        files: &[("a.rs", "#[error(\"K must be {0}\")]\nbail!(\"no file, {x} ..\");\nx.expect(\n    \"It is.\",\n)\n")],
        found: "a.rs:3: \"It is.\" must be lower case, without a full stop",
    },
    Bad {
        check: "messages",
        files: &[("a.rs", "#[error(\"cannot read it.\")]\n")],
        found: "a.rs:1: \"cannot read it.\" must be lower case, without a full stop",
    },
    Bad {
        check: "unwraps",
        files: &[("a/src/a.rs", "a.unwrap();\n#[cfg(test)]\nb.unwrap();\n"), ("a/tests/a.rs", "a.unwrap();\n")],
        found: "a/src/a.rs:1: name the invariant: .expect(\"..\")",
    },
    Bad {
        check: "links",
        files: &[("docs/a.md", "[a](b.md) `[x](y.md)` [c](https://c)\n```\n[z](z.md)\n```\n"), ("b.md", "")],
        found: "docs/a.md:1: b.md leads nowhere: docs/b.md is missing",
    },
    Bad {
        check: "links",
        files: &[("docs/a.md", "# An a!\n[a](#an-a) [b](../b.md#to-b) [c](../b.md#c)\n"), ("b.md", "## To B\n")],
        found: "docs/a.md:2: b.md has no heading #c",
    },
    Bad {
        check: "links",
        files: &[("a.md", "\n[a]: ../b.md\n")],
        found: "a.md:2: ../b.md leads out of the repository",
    },
    Bad {
        check: "commands",
        files: &[("README.md", "# kp\n```sh\ncargo test\n```\n"), (".ci/run", "<!-- ci: test -->\n")],
        found: "README.md:1: expected <!-- ci: test -->, then one fenced line with cargo test",
    },
    Bad {
        check: "commands",
        files: &[("README.md", "<!-- ci: test -->\n```sh\ncargo test\n```\n"), (".ci/run", "cargo test\n")],
        found: ".ci/run:1: must take its test command from <!-- ci: test --> in the README",
    },
    Bad {
        check: "ci-features",
        files: &[
            ("crates/kp-core/Cargo.toml", "[features]\ndefault = [\"cpu\"]\ncpu = []\namd = []\n"),
            ("ci/check.sh", "amd\nfeatures=(\n    cpu  # kp-cpu\n)\n"),
        ],
        found: "ci/check.sh:2: lacks the feature amd of kp-core",
    },
];

#[test]
fn each_bad_tree_has_its_one_finding() {
    for bad in BAD {
        let check = CHECKS.iter().find(|check| check.name == bad.check).expect("BAD names a check");
        let found: Vec<String> = (check.run)(&Tree::of(bad.files)).iter().map(ToString::to_string).collect();
        assert_eq!(found, [bad.found], "{}", bad.check);
    }
}

#[test]
fn files_may_be_as_long_as_the_limit() {
    let (fits, long) = ("\n".repeat(500), "\n".repeat(501));
    let tree = Tree::of(&[("fits.rs", &fits), ("long.rs", &long), ("long.cu", &long), ("long.md", &long)]);
    let found: Vec<String> = text::lengths(&tree).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["long.rs:501: 501 lines, at most 500: look for the seam"]);
}

#[test]
fn generated_files_are_compared() {
    let list = [generated::Generated { path: "a.txt", command: "cargo xtask a", make: |_| "1\n2\n".to_owned() }];
    let found = |text| {
        generated::stale(&list, &Tree::of(&[("a.txt", text)])).iter().map(|found| found.line).collect::<Vec<_>>()
    };
    assert_eq!((found("1\n2\n"), found("1\n3\n"), found("1\n"), found("")), (vec![], vec![2], vec![2], vec![1]));
}

#[test]
fn every_check_is_tested() {
    let elsewhere = ["lengths", "generated"];
    for check in CHECKS {
        let tested = elsewhere.contains(&check.name) || BAD.iter().any(|bad| bad.check == check.name);
        assert!(tested, "{} has no bad tree", check.name);
    }
}
