//! The whole way with a real compiler, where this machine has one; and what the tests of this folder share.

use super::{find::Places, *};
use kp_hal::ErrorKind;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
};

/// A folder that goes when it is dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("kp-nvidia-{name}-{}", process::id()));
        fs::create_dir_all(&path).expect("temporary folders can be made");
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The compiler of this machine, or why the test is skipped.
pub(super) fn nvrtc() -> Option<&'static Nvrtc> {
    match Nvrtc::get() {
        Ok(nvrtc) => Some(nvrtc),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

static DOUBLE: Source = Source {
    name: "kernels/tests/double.cu",
    text: "#include \"factor.cuh\"\n\
           extern \"C\" __global__ void twice(float* x) { x[threadIdx.x] = factor() * x[threadIdx.x]; }\n",
    headers: &[("factor.cuh", "__device__ float factor() { return FACTOR; }\n")],
};

fn double(factor: &str) -> Build {
    Build { source: &DOUBLE, entry: "twice", defines: vec![("FACTOR", factor.to_owned())] }
}

#[test]
fn sources_become_cubins() {
    let Some(nvrtc) = nvrtc() else { return };
    let compiled = nvrtc.compile(&double("2.0f"), "sm_90a").expect("the source is good");
    assert!(compiled.cubin.starts_with(b"\x7fELF"), "{} bytes", compiled.cubin.len());
    let report = Report::of(&compiled.log, "twice").unwrap_or_else(|| panic!("no account: {}", compiled.log));
    assert!((1..=32).contains(&report.registers) && !report.leaves_registers(), "{report}");
    assert_eq!(warnings(&compiled.log).count(), 0, "{}", compiled.log);
    let other = nvrtc.compile(&double("3.0f"), "sm_90a").expect("the source is good");
    assert_ne!(other.cubin, compiled.cubin, "a macro reaches the code");
}

/// What the check of all kernels hangs on: the compiler says it, and it is understood.
#[test]
fn slow_code_is_noticed() {
    static SPILLS: Source = Source {
        name: "spills.cu",
        text: "extern \"C\" __global__ void __launch_bounds__(1024, 2) spills(float* x) {\n\
               float a[96];\n\
               for (int i = 0; i < 96; i++) a[i] = x[i * 1024 + threadIdx.x];\n\
               for (int j = 0; j < 96; j++) for (int i = 0; i < 96; i++) a[i] = a[i] * a[(i + 7) % 96] + j;\n\
               for (int i = 0; i < 96; i++) x[i * 1024 + threadIdx.x] = a[i]; }\n",
        headers: &[],
    };
    static IGNORED: Source = Source {
        name: "ignored.cu",
        text: "extern \"C\" __global__ void ignored(float* x) {\n\
               asm volatile(\"setmaxnreg.dec.sync.aligned.u32 40;\"); x[threadIdx.x] = 1; }\n",
        headers: &[],
    };
    static SERIAL: Source = Source {
        name: "serial.cu",
        text: r#"extern "C" __global__ void __launch_bounds__(128) serial(float* x, long a, long b, int n) {
            float d[4] = {};
            for (int i = 0; i < n; i++) {
                asm volatile("wgmma.fence.sync.aligned;");
                asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3},%4,%5,1,1,1,0,0;"
                    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
                asm volatile("wgmma.commit_group.sync.aligned;");
                d[1] *= 2;
                asm volatile("wgmma.wait_group.sync.aligned 0;");
            }
            x[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
        }"#,
        headers: &[],
    };
    let Some(nvrtc) = nvrtc() else { return };
    let compile = |source, entry| {
        nvrtc.compile(&Build { source, entry, defines: Vec::new() }, "sm_90a").expect("slow code is code")
    };
    let spills = compile(&SPILLS, "spills");
    let report = Report::of(&spills.log, "spills").expect("it is accounted for");
    assert!(report.spill_store_bytes > 0 && report.spill_load_bytes > 0, "{report}");
    assert_eq!(warnings(&spills.log).count(), 0, "spills are numbers, not remarks: {}", spills.log);
    for (source, entry, remark) in [(&IGNORED, "ignored", "C7508"), (&SERIAL, "serial", "serialized")] {
        let compiled = compile(source, entry);
        assert!(warnings(&compiled.log).any(|line| line.contains(remark)), "no {remark} in {}", compiled.log);
    }
}

#[test]
fn refusals_say_what_and_where() {
    let Some(nvrtc) = nvrtc() else { return };
    let bad = nvrtc.compile(&double("undeclared"), "sm_90a").expect_err("no such name");
    let ErrorKind::Driver(refusal) = bad.kind() else { panic!("{bad}") };
    assert_eq!((refusal.call, refusal.code), ("nvrtcCompileProgram", 6));
    let text =
        "kernels/tests/double.cu for sm_90a with FACTOR=undeclared: NVRTC_ERROR_COMPILATION: factor.cuh(1): error: ";
    assert!(refusal.text.starts_with(text), "{}", refusal.text);

    static HEADER: Source = Source { name: "header.cu", text: "#include <cuda_fp16.h>\n", headers: &[] };
    let absent = nvrtc.compile(&Build { source: &HEADER, entry: "k", defines: Vec::new() }, "sm_90a");
    assert!(absent.expect_err("only headers that are given").to_string().contains("cuda_fp16.h"));

    let old = nvrtc.compile(&double("2.0f"), "sm_30").expect_err("no NVRTC of today compiles for it");
    assert!(old.is_unavailable() && old.to_string().contains("and not for sm_30"), "{old}");
}

#[test]
fn a_missing_compiler_is_an_answer() {
    let places = Places::new(|name| (name == "KP_NVRTC").then(|| "/nowhere/libnvrtc.so".into()));
    let error = Nvrtc::open(&places).err().expect("there is none");
    assert!(error.is_unavailable());
    let text = error.to_string();
    assert!(
        text.starts_with("nvrtc unavailable: KP_NVRTC names /nowhere/libnvrtc.so; /nowhere/libnvrtc.so: "),
        "{text}"
    );
    assert!(text.ends_with("or build kp-nvidia with its feature `pack`"), "{text}");

    let scratch = Scratch::new("no-nvrtc");
    fs::write(scratch.path().join("libnvrtc.so"), "no library").expect("the folder is ours");
    let places = Places::new(|name| (name == "KP_NVRTC").then(|| scratch.path().into()));
    assert!(Nvrtc::open(&places).is_err_and(|error| error.is_unavailable()), "a file that is no library is no panic");
}

/// A kept kernel is not compiled again: the store's copy is altered where it may be, and the alteration comes back.
#[test]
fn the_store_comes_before_the_compiler() {
    let Some(nvrtc) = nvrtc() else { return };
    let scratch = Scratch::new("store-first");
    let store = Store::open(&scratch.path().join("cubin")).expect("the folder is ours");
    let build = double("5.0f");
    let compiled = compile(&build, "sm_80", Some(&store)).expect("the source is good");
    let key = Key::new(&build, "sm_80").by(nvrtc.version());
    assert_eq!(store.read(&key), Some(compiled.clone()));
    let marked = Compiled { cubin: b"marked".to_vec(), ..compiled.clone() };
    store.write(&key, &marked);
    assert!(compile(&build, "sm_80", Some(&store)).is_ok_and(|kept| kept == marked));
    // The log holds times, the cubin nothing of the kind.
    assert!(
        compile(&build, "sm_80", None).is_ok_and(|again| again.cubin == compiled.cubin),
        "without a store it compiles"
    );
}
