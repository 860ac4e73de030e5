//! Cubins loaded into a device, each once.

use crate::{
    compile::Build,
    driver::{Context, Status},
    launch::{Function, Resources},
};
use cudarc::driver::sys::{CUfunction, CUfunction_attribute as A, CUmodule};
use kp_hal::Result;
use std::{
    collections::HashMap,
    ffi::CString,
    fmt, ptr,
    sync::{Arc, Mutex, PoisonError},
};

/// The modules of one device, kept for as long as it is open.
pub(crate) struct Modules {
    context: Arc<Context>,
    limits: Limits,
    made: Mutex<HashMap<Key, Arc<Mutex<Option<Loaded>>>>>,
    brought: Mutex<Vec<Loaded>>,
}

/// What a block and a cluster of the device may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Shared memory of a block, in bytes, with leave.
    pub(crate) shared_bytes: u32,
    /// Whether there are clusters.
    pub(crate) clusters: bool,
}

/// What makes two builds the same: names of sources are unique.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    source: &'static str,
    entry: &'static str,
    defines: Vec<(&'static str, String)>,
}

struct Loaded {
    context: Arc<Context>,
    module: CUmodule,
    function: Function,
}

// SAFETY: a module is a handle that the driver lets any thread use.
unsafe impl Send for Loaded {}

impl Modules {
    pub(crate) fn new(context: Arc<Context>, limits: Limits) -> Self {
        Self { context, limits, made: Mutex::default(), brought: Mutex::default() }
    }

    /// The function of `build`, whose cubin `make` makes if it is not loaded yet.
    ///
    /// # Errors
    /// Those of `make`, which the next call tries again; `Driver` if the driver refuses the cubin.
    pub(crate) fn function(&self, build: &Build, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Function> {
        let key = Key { source: build.source.name, entry: build.entry, defines: build.defines.clone() };
        // Two locks, so that only those who want the same kernel wait for its compiler.
        let place = self.made.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = &*place {
            return Ok(loaded.function);
        }
        // SAFETY: a cubin is an ELF file, which says its own length.
        let loaded = unsafe { Loaded::new(&self.context, self.limits, &make()?, build.entry) }?;
        Ok(place.insert(loaded).function)
    }

    /// The function `entry` of a module that a program brings.
    ///
    /// # Errors
    /// `Driver` if the driver refuses it, or has no such function.
    ///
    /// # Safety
    /// `image` is a complete cubin or fat binary, or PTX that ends with NUL.
    pub(crate) unsafe fn load(&self, image: &[u8], entry: &str) -> Result<Function> {
        // SAFETY: the caller's promise.
        let loaded = unsafe { Loaded::new(&self.context, self.limits, image, entry) }?;
        let function = loaded.function;
        self.brought.lock().unwrap_or_else(PoisonError::into_inner).push(loaded);
        Ok(function)
    }
}

impl Loaded {
    /// # Safety
    /// `image` is one that `cuModuleLoadData` reads to its end and no further.
    unsafe fn new(context: &Arc<Context>, limits: Limits, image: &[u8], entry: &str) -> Result<Self> {
        context.enter()?;
        let api = context.api();
        let mut module = ptr::null_mut();
        // SAFETY: the caller's promise.
        unsafe { api.cuModuleLoadData(&mut module, image.as_ptr().cast()) }.ok()?;
        // From here on `drop` unloads it, whatever fails.
        let empty = Function { raw: ptr::null_mut(), resources: Resources::default() };
        let mut loaded = Self { context: context.clone(), module, function: empty };
        let name = CString::new(entry).expect("names of kernels hold no NUL");
        let mut raw: CUfunction = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with NUL.
        unsafe { api.cuModuleGetFunction(&mut raw, module, name.as_ptr()) }.ok()?;
        let ask = |attribute| -> Result<u32> {
            let mut value = 0;
            // SAFETY: the function belongs to a loaded module.
            unsafe { api.cuFuncGetAttribute(&mut value, attribute, raw) }.ok()?;
            Ok(value.max(0) as u32)
        };
        let resources = Resources {
            registers: ask(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            static_shared_bytes: ask(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local_bytes: ask(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            max_threads: ask(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        };
        loaded.function = Function { raw, resources };
        loaded.allow_all(limits)?;
        Ok(loaded)
    }

    /// Lifts the limits that a launch has unless asked: 48 KiB of shared memory, 8 blocks in a cluster.
    fn allow_all(&self, limits: Limits) -> Result<()> {
        let set = |attribute, value: u32| -> Status {
            // SAFETY: the function belongs to a loaded module.
            unsafe { self.context.api().cuFuncSetAttribute(self.function.raw, attribute, value as i32) }
        };
        let dynamic = limits.shared_bytes.saturating_sub(self.function.resources.static_shared_bytes);
        set(A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic).ok()?;
        if limits.clusters {
            set(A::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1).ok()?;
        }
        Ok(())
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // The thread that drops the device may never have had its context.
        let _ = self.context.enter();
        // SAFETY: loaded by `new`, unloaded once, with the device: no queue of it is left to launch from.
        let _ = unsafe { self.context.api().cuModuleUnload(self.module) };
    }
}

impl fmt::Debug for Modules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "{} kernels", made.len())
    }
}
