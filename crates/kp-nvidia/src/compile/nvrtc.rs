//! NVRTC, NVIDIA's run-time compiler, opened while the program runs: a table of eleven functions.

use super::{
    Build, Compiled,
    find::{self, Places},
};
use kp_hal::{DriverError, Error, ErrorKind, Result};
use libloading::Library;
use std::{
    borrow::Cow,
    env,
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::Path,
    ptr,
    sync::OnceLock,
};

/// An NVRTC that was found.
pub struct Nvrtc {
    functions: Functions,
    version: (u32, u32),
    /// Compute capabilities it compiles for: 90 is 9.0.
    archs: Vec<u32>,
    library: String,
}

macro_rules! functions {
    ($($field:ident: $name:literal ($($argument:ty),*) -> $result:ty,)*) => {
        /// The functions in use, by what they do.
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// Takes the functions from `library`, which stays loaded for good; a missing one is named in the error.
            fn new(library: Library) -> std::result::Result<Self, String> {
                $(
                    // SAFETY: the type is that of the function of this name in NVRTC's documentation, the same since
                    // CUDA 11.2; the library is never unloaded, so the pointer stays good.
                    let $field = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> $result>($name) };
                    let $field = *$field.map_err(|error| error.to_string())?;
                )*
                std::mem::forget(library);
                Ok(Self { $($field),* })
            }
        }
    };
}

functions! {
    version: b"nvrtcVersion\0" (*mut c_int, *mut c_int) -> c_int,
    arch_count: b"nvrtcGetNumSupportedArchs\0" (*mut c_int) -> c_int,
    archs: b"nvrtcGetSupportedArchs\0" (*mut c_int) -> c_int,
    error_text: b"nvrtcGetErrorString\0" (c_int) -> *const c_char,
    create: b"nvrtcCreateProgram\0" (
        *mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    ) -> c_int,
    destroy: b"nvrtcDestroyProgram\0" (*mut *mut c_void) -> c_int,
    compile: b"nvrtcCompileProgram\0" (*mut c_void, c_int, *const *const c_char) -> c_int,
    cubin_size: b"nvrtcGetCUBINSize\0" (*mut c_void, *mut usize) -> c_int,
    cubin: b"nvrtcGetCUBIN\0" (*mut c_void, *mut c_char) -> c_int,
    log_size: b"nvrtcGetProgramLogSize\0" (*mut c_void, *mut usize) -> c_int,
    log: b"nvrtcGetProgramLog\0" (*mut c_void, *mut c_char) -> c_int,
}

impl Nvrtc {
    /// The one of this process, looked for at the first call.
    ///
    /// # Errors
    /// `Unavailable` with all that was looked for and the ways out.
    pub fn get() -> Result<&'static Self> {
        static NVRTC: OnceLock<Result<Nvrtc>> = OnceLock::new();
        NVRTC.get_or_init(|| Self::open(&Places::new(|name| env::var_os(name)))).as_ref().map_err(Clone::clone)
    }

    pub(super) fn open(places: &Places) -> Result<Self> {
        let mut refusals = Vec::new();
        for name in places.names {
            // A name that the loader does not know is the common case and says nothing that the list of names does not.
            if let Ok(library) = load(Path::new(name)) {
                match Self::new(library, (*name).to_owned()) {
                    Ok(nvrtc) => return Ok(nvrtc),
                    Err(why) => refusals.push(format!("{name}: {why}")),
                }
            }
        }
        for path in places.files() {
            for builtins in find::builtins(&path) {
                // Stays loaded, for NVRTC to find. If it cannot be loaded, compiling will say so.
                load(&builtins).map(std::mem::forget).unwrap_or_default();
            }
            let opened = load(&path).and_then(|library| Self::new(library, path.display().to_string()));
            match opened {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(why) => refusals.push(format!("{}: {why}", path.display())),
            }
        }
        let mut why = places.describe();
        for refusal in refusals {
            why += "; ";
            why += &refusal;
        }
        why += "; install the CUDA toolkit or the Python package nvidia-cuda-nvrtc, name the library in KP_NVRTC, \
                or build kp-nvidia with its feature `pack`";
        Err(unavailable(why))
    }

    fn new(library: Library, name: String) -> std::result::Result<Self, String> {
        let functions = Functions::new(library)?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: each pointer is to an integer for one result.
        let status = unsafe { (functions.version)(&mut major, &mut minor).max((functions.arch_count)(&mut count)) };
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the array has room for as many numbers as were just announced.
        let status = status.max(unsafe { (functions.archs)(archs.as_mut_ptr()) });
        if status != 0 {
            return Err(format!("it answers no question about itself: status {status}"));
        }
        let number = |value: c_int| u32::try_from(value).unwrap_or(0);
        let version = (number(major), number(minor));
        tracing::debug!(library = %name, major, minor, "NVRTC opened");
        Ok(Self { functions, version, archs: archs.into_iter().map(number).collect(), library: name })
    }

    /// Major and minor version of the CUDA release it belongs to.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The name or path under which it was found.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// Compiles for one architecture, spelt as in `sm_90a`. Takes 0.05 s to several seconds; calls of several threads run
    /// at the same time.
    ///
    /// # Errors
    /// `Unavailable` for an architecture this NVRTC does not know, `Driver` with the compiler's log for bad source.
    pub fn compile(&self, build: &Build, arch: &str) -> Result<Compiled> {
        self.knows(arch)?;
        let program = Program::new(self, build)?;
        let options: Vec<CString> = options(build, arch).map(|option| c_string(&option)).collect::<Result<_>>()?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive; the pointers are to as many strings as the count says, alive until the end of
        // this function.
        let status = unsafe { (self.functions.compile)(program.handle, options.len() as c_int, options.as_ptr()) };
        let log = self.bytes(&program, "nvrtcGetProgramLog", self.functions.log_size, self.functions.log)?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        if status != 0 {
            let text = format!("{}: {}: {}", describe(build, arch), self.error_text(status), log.trim());
            return Err(DriverError { call: "nvrtcCompileProgram", code: status.into(), text: text.into() }.into());
        }
        let cubin = self.bytes(&program, "nvrtcGetCUBIN", self.functions.cubin_size, self.functions.cubin)?;
        Ok(Compiled { cubin, log })
    }

    fn knows(&self, arch: &str) -> Result<()> {
        let digits: String = arch.chars().filter(char::is_ascii_digit).collect();
        if digits.parse().is_ok_and(|number: u32| self.archs.contains(&number)) {
            return Ok(());
        }
        let (major, minor) = self.version;
        let known: Vec<String> = self.archs.iter().map(|arch| format!("sm_{arch}")).collect();
        let known = known.join(" ");
        Err(unavailable(format!(
            "{} is NVRTC {major}.{minor}, which compiles for {known} and not for {arch}; name another in KP_NVRTC",
            self.library
        )))
    }

    /// One of a program's two results: its size is asked for first.
    fn bytes(
        &self,
        program: &Program<'_>,
        call: &'static str,
        size: unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int,
        read: unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program is alive; the pointer is to one integer.
        self.check(call, unsafe { size(program.handle, &mut bytes) })?;
        let mut result = vec![0; bytes];
        // SAFETY: the program is alive; the buffer has the size just asked for.
        self.check(call, unsafe { read(program.handle, result.as_mut_ptr().cast()) })?;
        Ok(result)
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<()> {
        match status {
            0 => Ok(()),
            code => Err(DriverError { call, code: code.into(), text: self.error_text(code) }.into()),
        }
    }

    fn error_text(&self, status: c_int) -> Cow<'static, str> {
        // SAFETY: any status is allowed; the result is a string constant of NVRTC's, ended by 0.
        let text = unsafe { CStr::from_ptr((self.functions.error_text)(status)) };
        text.to_string_lossy()
    }
}

/// A program of NVRTC's, destroyed when dropped.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: *mut c_void,
}

impl<'a> Program<'a> {
    fn new(nvrtc: &'a Nvrtc, build: &Build) -> Result<Self> {
        let source = build.source;
        let (text, name) = (c_string(source.text)?, c_string(source.name)?);
        let strings = |pick: fn(&(&'static str, &'static str)) -> &'static str| -> Result<Vec<CString>> {
            source.headers.iter().map(|header| c_string(pick(header))).collect()
        };
        let (names, texts) = (strings(|header| header.0)?, strings(|header| header.1)?);
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let (names, texts, count) = (pointers(&names), pointers(&texts), names.len() as c_int);
        let mut handle = ptr::null_mut();
        // SAFETY: all strings end with 0 and live until the end of this function, by when NVRTC has copied them; both
        // arrays have `count` pointers; the handle is written before it is used.
        let status = unsafe {
            (nvrtc.functions.create)(&mut handle, text.as_ptr(), name.as_ptr(), count, texts.as_ptr(), names.as_ptr())
        };
        nvrtc.check("nvrtcCreateProgram", status)?;
        Ok(Self { nvrtc, handle })
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is from nvrtcCreateProgram and is destroyed once.
        unsafe { (self.nvrtc.functions.destroy)(&mut self.handle) };
    }
}

/// The compiler's options, all of them part of the cache's key.
pub(super) fn options(build: &Build, arch: &str) -> impl Iterator<Item = String> {
    let fixed = [
        "-std=c++17".to_owned(),
        "-default-device".to_owned(),
        format!("--gpu-architecture={arch}"),
        "--ptxas-options=-v".to_owned(),
    ];
    fixed.into_iter().chain(build.defines.iter().map(|(name, value)| format!("--define-macro={name}={value}")))
}

/// `kernels/gemm/cuda/simt_f32.cu for sm_90a with TILE_M=128 TILE_N=64`.
fn describe(build: &Build, arch: &str) -> String {
    let mut text = format!("{} for {arch}", build.source.name);
    for (i, (name, value)) in build.defines.iter().enumerate() {
        text += if i == 0 { " with " } else { " " };
        text += &format!("{name}={value}");
    }
    text
}

fn load(path: &Path) -> std::result::Result<Library, String> {
    // SAFETY: NVRTC's initialisers only set up tables of its own; the name or the place says that it is NVRTC.
    unsafe { Library::new(path) }.map_err(|error| error.to_string())
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|error| {
        let text = format!("a zero byte at {} of {} bytes", error.nul_position(), text.len());
        DriverError { call: "nvrtcCreateProgram", code: 3, text: text.into() }.into()
    })
}

fn unavailable(why: String) -> Error {
    ErrorKind::Unavailable { what: "nvrtc", why: why.into() }.into()
}
