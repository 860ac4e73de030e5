//! `libcublasLt`: where it lies, its functions, and what they describe a product with.

use crate::{
    device::NvidiaDevice,
    driver::{
        Context,
        table::{self, table},
    },
};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulDescOpaque_t, cublasLtMatmulHeuristicResult_t,
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatmulPreferenceOpaque_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, cublasLtMatrixLayoutOpaque_t, cublasLtReductionScheme_t,
    cublasStatus_t, cudaDataType, cudaStream_t,
};
use kp_hal::{DriverError, ErrorKind, Result};
use std::{
    borrow::Cow,
    env,
    ffi::{c_int, c_void},
    fs,
    path::{Path, PathBuf},
    ptr,
    sync::{Arc, OnceLock},
};

table! {
    /// `libcublasLt`.
    pub(super) struct Api: Status of sys, cublasStatus_t;
    fn cublasLtCreate(handle: *mut cublasLtHandle_t);
    fn cublasLtDestroy(handle: cublasLtHandle_t);
    fn cublasLtMatmulDescInit_internal(desc: cublasLtMatmulDesc_t, bytes: usize, compute: cublasComputeType_t, scale: cudaDataType);
    fn cublasLtMatmulDescSetAttribute(
        desc: cublasLtMatmulDesc_t,
        attribute: cublasLtMatmulDescAttributes_t,
        value: *const c_void,
        bytes: usize,
    );
    fn cublasLtMatrixLayoutInit_internal(
        layout: cublasLtMatrixLayout_t,
        bytes: usize,
        element: cudaDataType,
        rows: u64,
        cols: u64,
        ld: i64,
    );
    fn cublasLtMatrixLayoutSetAttribute(
        layout: cublasLtMatrixLayout_t,
        attribute: cublasLtMatrixLayoutAttribute_t,
        value: *const c_void,
        bytes: usize,
    );
    fn cublasLtMatmulPreferenceInit_internal(preference: cublasLtMatmulPreference_t, bytes: usize);
    fn cublasLtMatmulPreferenceSetAttribute(
        preference: cublasLtMatmulPreference_t,
        attribute: cublasLtMatmulPreferenceAttributes_t,
        value: *const c_void,
        bytes: usize,
    );
    fn cublasLtMatmulAlgoGetHeuristic(
        handle: cublasLtHandle_t,
        desc: cublasLtMatmulDesc_t,
        a: cublasLtMatrixLayout_t,
        b: cublasLtMatrixLayout_t,
        c: cublasLtMatrixLayout_t,
        d: cublasLtMatrixLayout_t,
        preference: cublasLtMatmulPreference_t,
        asked: c_int,
        results: *mut cublasLtMatmulHeuristicResult_t,
        found: *mut c_int,
    );
    fn cublasLtMatmul(
        handle: cublasLtHandle_t,
        desc: cublasLtMatmulDesc_t,
        alpha: *const c_void,
        a: *const c_void,
        a_layout: cublasLtMatrixLayout_t,
        b: *const c_void,
        b_layout: cublasLtMatrixLayout_t,
        beta: *const c_void,
        c: *const c_void,
        c_layout: cublasLtMatrixLayout_t,
        d: *mut c_void,
        d_layout: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: cudaStream_t,
    );
}

/// A call and its `cublasStatus_t`.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Status {
    call: &'static str,
    code: i32,
}

impl Status {
    pub(super) fn ok(self) -> Result<()> {
        if self.code == 0 { Ok(()) } else { Err(self.error().into()) }
    }

    #[cold]
    fn error(self) -> DriverError {
        let text = match self.code {
            1 => "not initialized",
            3 => "out of memory",
            7 => "invalid value",
            8 => "needs another architecture",
            13 => "execution failed",
            14 => "internal error",
            15 => "not supported",
            _ => "unknown status",
        };
        DriverError { call: self.call, code: self.code.into(), text: Cow::Borrowed(text) }
    }
}

/// Names of the library, newest first.
#[cfg(not(windows))]
const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];
#[cfg(windows)]
const NAMES: [&str; 2] = ["cublasLt64_13.dll", "cublasLt64_12.dll"];

/// The library's file, if one is found. It is only looked for: opening half a gigabyte takes longer than opening a device.
pub(crate) fn file() -> Option<&'static Path> {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let folders = folders(|name| env::var_os(name).map(PathBuf::from));
        let files = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        files.into_iter().find(|file| file.exists())
    };
    FILE.get_or_init(find).as_deref()
}

/// Where the loader, toolkits and Python packages keep libraries.
fn folders(var: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let paths = |name: &str| var(name).map(|value| env::split_paths(&value).collect::<Vec<_>>()).unwrap_or_default();
    let mut folders = paths(if cfg!(windows) { "PATH" } else { "LD_LIBRARY_PATH" });
    let toolkits = ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"].into_iter().filter_map(&var);
    let toolkits = toolkits.chain(["/usr/local/cuda".into(), "/opt/cuda".into()]);
    folders.extend(toolkits.flat_map(|root| ["lib64", "lib", "bin"].map(|folder| root.join(folder))));
    folders.extend(
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from),
    );
    let pythons = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(&var);
    for root in pythons.chain(["/usr/local".into(), "/usr".into()]) {
        let libraries = fs::read_dir(root.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
        let python =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"));
        let sites =
            libraries.filter(python).flat_map(|path| ["site-packages", "dist-packages"].map(|site| path.join(site)));
        folders.extend(sites.flat_map(|site| ["nvidia/cu13/lib", "nvidia/cublas/lib"].map(|folder| site.join(folder))));
    }
    folders
}

/// A device's handle, shared by its plans.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) api: &'static Api,
    pub(super) raw: cublasLtHandle_t,
    context: Arc<Context>,
}

// SAFETY: a handle may be used by any thread, and by several at a time.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// The handle of `device`. Kept as long as the device, because destroying one waits for the whole context, which ends
    /// the recordings of other threads.
    ///
    /// # Errors
    /// `Unavailable` if the library cannot be opened, `Driver` if it refuses the device.
    pub(super) fn of(device: &NvidiaDevice) -> Result<Arc<Self>> {
        device.keep(|| {
            let (api, context) = (api()?, device.context().clone());
            context.enter()?;
            let mut raw = ptr::null_mut();
            // SAFETY: the device's context is current.
            unsafe { api.cublasLtCreate(&mut raw) }.ok()?;
            Ok(Self { api, raw, context })
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `of`, destroyed once.
            let _ = unsafe { self.api.cublasLtDestroy(self.raw) };
        }
    }
}

fn api() -> Result<&'static Api> {
    static API: OnceLock<Result<Api>> = OnceLock::new();
    let load = || {
        let missing =
            || ErrorKind::Unavailable { what: "cublaslt", why: format!("looked for {}", NAMES.join(", ")).into() };
        let file = file().ok_or_else(missing)?;
        Api::load("cublaslt", table::open("cublaslt", &[file])?)
    };
    API.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// What is computed: a descriptor that may be copied, since it is plain words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation(pub(super) cublasLtMatmulDescOpaque_t);

impl Operation {
    pub(super) fn new(api: &Api, compute: cublasComputeType_t, scale: cudaDataType) -> Result<Self> {
        let mut this = Self(cublasLtMatmulDescOpaque_t { data: [0; 32] });
        // SAFETY: the descriptor has that size.
        unsafe { api.cublasLtMatmulDescInit_internal(&mut this.0, size_of_val(&this.0), compute, scale) }.ok()?;
        Ok(this)
    }

    #[inline]
    pub(super) fn set<T: Copy>(
        &mut self,
        api: &Api,
        attribute: cublasLtMatmulDescAttributes_t,
        value: T,
    ) -> Result<()> {
        // SAFETY: the library compares the size with the attribute's and copies the value.
        unsafe { api.cublasLtMatmulDescSetAttribute(&mut self.0, attribute, (&raw const value).cast(), size_of::<T>()) }
            .ok()
    }
}

/// A matrix whose columns are contiguous, as the library sees all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout(pub(super) cublasLtMatrixLayoutOpaque_t);

impl Layout {
    pub(super) fn new(
        api: &Api,
        element: cudaDataType,
        (rows, cols): (u32, u32),
        ld: u32,
        (batch, stride): (u32, u64),
    ) -> Result<Self> {
        use cublasLtMatrixLayoutAttribute_t as A;
        let mut this = Self(cublasLtMatrixLayoutOpaque_t { data: [0; 8] });
        let (rows, cols, ld, bytes) = (rows.into(), cols.into(), ld.into(), size_of_val(&this.0));
        // SAFETY: the descriptor has that size.
        unsafe { api.cublasLtMatrixLayoutInit_internal(&mut this.0, bytes, element, rows, cols, ld) }.ok()?;
        let (batch, stride) = (batch as i32, stride as i64);
        // SAFETY: both attributes are numbers of that size.
        unsafe {
            let count = A::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
            api.cublasLtMatrixLayoutSetAttribute(&mut this.0, count, (&raw const batch).cast(), 4).ok()?;
            let offset = A::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
            api.cublasLtMatrixLayoutSetAttribute(&mut this.0, offset, (&raw const stride).cast(), 8).ok()?;
        }
        Ok(this)
    }
}

/// The algorithms for a product that the library thinks best, at most `N`, best first.
///
/// # Errors
/// `Driver` if it knows none.
pub(super) fn heuristics<const N: usize>(
    handle: &Handle,
    mut operation: Operation,
    [mut a, mut b, mut c, mut d]: [Layout; 4],
    workspace_bytes: u64,
    align: u32,
) -> Result<Vec<cublasLtMatmulHeuristicResult_t>> {
    use cublasLtMatmulPreferenceAttributes_t as P;
    let api = handle.api;
    let mut preference = cublasLtMatmulPreferenceOpaque_t { data: [0; 8] };
    // SAFETY: all-zero bytes are an algorithm that was never asked for, and a status of success.
    let mut results: [cublasLtMatmulHeuristicResult_t; N] = unsafe { std::mem::zeroed() };
    let mut found = 0;
    // SAFETY: descriptors have their sizes, numbers theirs, and there is room for `N` results.
    unsafe {
        api.cublasLtMatmulPreferenceInit_internal(&mut preference, size_of_val(&preference)).ok()?;
        let most = P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        api.cublasLtMatmulPreferenceSetAttribute(&mut preference, most, (&raw const workspace_bytes).cast(), 8).ok()?;
        // Parts of k are added in the accumulator's type, not in D's.
        let reduction = cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        let schemes = P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
        api.cublasLtMatmulPreferenceSetAttribute(&mut preference, schemes, (&raw const reduction).cast(), 4).ok()?;
        for operand in [
            P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            api.cublasLtMatmulPreferenceSetAttribute(&mut preference, operand, (&raw const align).cast(), 4).ok()?;
        }
        let (preference, results) = (&mut preference, results.as_mut_ptr());
        let (a, b, c, d) = (&mut a.0, &mut b.0, &mut c.0, &mut d.0);
        let asked = N as c_int;
        api.cublasLtMatmulAlgoGetHeuristic(
            handle.raw,
            &mut operation.0,
            a,
            b,
            c,
            d,
            preference,
            asked,
            results,
            &mut found,
        )
        .ok()?;
    }
    let usable = |result: &&cublasLtMatmulHeuristicResult_t| result.state == cublasStatus_t::CUBLAS_STATUS_SUCCESS;
    let results: Vec<_> = results[..found.max(0) as usize].iter().filter(usable).copied().collect();
    if results.is_empty() {
        return Err(Status { call: "cublasLtMatmulAlgoGetHeuristic", code: 15 }.error().into());
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_environment_come_first() {
        let folders = folders(|name| match name {
            "LD_LIBRARY_PATH" | "PATH" => Some(env::join_paths(["/first", "/second"]).expect("no separators").into()),
            "CUDA_HOME" => Some("/toolkit".into()),
            _ => None,
        });
        assert_eq!(folders[..3], ["/first", "/second", "/toolkit/lib64"].map(PathBuf::from));
    }
}
