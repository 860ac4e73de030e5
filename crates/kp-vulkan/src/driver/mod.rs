//! The Vulkan loader, opened when the program runs, and the one instance made of it.

mod facts;
mod logical;
mod newer;
mod status;

pub(crate) use facts::{Seen, look};
pub(crate) use logical::{Logical, OPEN_BYTES, OPEN_NUMBERS, PUSH_BYTES};
pub(crate) use status::{Status, checked};

use crate::NAME;
use ash::{Entry, Instance, vk};
use kp_hal::{Error, ErrorKind, Result};
use std::{
    env,
    ffi::{CStr, c_char, c_void},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// The loader and its instance; never closed, since devices may outlive whoever opened them first.
pub(crate) struct Loader {
    pub(crate) instance: Instance,
    /// The loader's functions must stay for as long as the instance.
    pub(crate) entry: Entry,
}

const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

/// The process's loader.
///
/// # Errors
/// `Unavailable`, naming what was looked for.
pub(crate) fn loader() -> Result<&'static Loader> {
    static LOADER: OnceLock<std::result::Result<Loader, String>> = OnceLock::new();
    let unavailable = |why: &String| Error::from(ErrorKind::Unavailable { what: NAME, why: why.clone().into() });
    LOADER.get_or_init(open).as_ref().map_err(unavailable)
}

fn open() -> std::result::Result<Loader, String> {
    // SAFETY: the library that the system calls its Vulkan loader is one; loading it runs its initialisers.
    let entry = unsafe { Entry::load() }
        .map_err(|why| format!("the loader (libvulkan.so.1, vulkan-1.dll) does not open: {why}"))?;
    let said = |call: &str, why: vk::Result| format!("{call} returned {}: {why}", why.as_raw());
    // SAFETY: the entry is complete.
    let version = unsafe { entry.try_enumerate_instance_version() }
        .map_err(|why| said("vkEnumerateInstanceVersion", why))?
        .unwrap_or(vk::API_VERSION_1_0);
    if version < vk::API_VERSION_1_2 {
        let (major, minor) = (vk::api_version_major(version), vk::api_version_minor(version));
        return Err(format!("the loader is of Vulkan {major}.{minor}, and 1.2 is needed"));
    }
    let validated = env::var_os("KP_VULKAN_VALIDATION").is_some_and(|value| !value.is_empty() && value != "0");
    let (mut layers, mut extensions) = (Vec::new(), Vec::new());
    if validated {
        // SAFETY: the entry is complete.
        let there = unsafe { entry.enumerate_instance_layer_properties() }
            .map_err(|why| said("vkEnumerateInstanceLayerProperties", why))?;
        if !there.iter().any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION)) {
            return Err("KP_VULKAN_VALIDATION is set, and VK_LAYER_KHRONOS_validation is not installed".into());
        }
        layers.push(VALIDATION.as_ptr());
        extensions.push(ash::ext::debug_utils::NAME.as_ptr());
    }
    let application = vk::ApplicationInfo::default().engine_name(c"kp").api_version(vk::API_VERSION_1_2);
    let mut told = messenger();
    let mut info = vk::InstanceCreateInfo::default()
        .application_info(&application)
        .enabled_layer_names(&layers)
        .enabled_extension_names(&extensions);
    if validated {
        info = info.push_next(&mut told);
    }
    // SAFETY: every name and structure outlives the call.
    let instance = unsafe { entry.create_instance(&info, None) }.map_err(|why| said("vkCreateInstance", why))?;
    if validated {
        let utils = ash::ext::debug_utils::Instance::new(&entry, &instance);
        // SAFETY: the extension is enabled; the messenger lives as long as the instance, which is never destroyed.
        unsafe { utils.create_debug_utils_messenger(&messenger(), None) }
            .map_err(|why| said("vkCreateDebugUtilsMessengerEXT", why))?;
    }
    Ok(Loader { instance, entry })
}

fn messenger() -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    use vk::{DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Type};
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(Severity::ERROR | Severity::WARNING)
        .message_type(Type::VALIDATION)
        .pfn_user_callback(Some(heard))
}

/// The validation layer's first error, for [`complaint`].
static COMPLAINT: Mutex<Option<String>> = Mutex::new(None);
/// Whether there is one, so that a queue looks at no lock.
static COMPLAINED: AtomicBool = AtomicBool::new(false);

/// # Safety
/// - `data` is what the driver documents for such a callback.
unsafe extern "system" fn heard(
    severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    _: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the loader passes a complete structure.
    let data = unsafe { &*data };
    // SAFETY: its message ends with NUL.
    let message = unsafe { data.message_as_c_str() }.map_or("no message".into(), CStr::to_string_lossy);
    if severity.contains(vk::DebugUtilsMessageSeverityFlagsEXT::ERROR) {
        tracing::error!(%message, "Vulkan validation");
        COMPLAINT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| message.into_owned());
        COMPLAINED.store(true, Ordering::Release);
    } else {
        tracing::warn!(%message, "Vulkan validation");
    }
    vk::FALSE
}

/// The error that stands for the validation layer's first one, which is kp's own bug and ends whatever is run to find such.
pub(crate) fn complaint() -> Result<()> {
    if !COMPLAINED.load(Ordering::Acquire) {
        return Ok(());
    }
    let text = COMPLAINT.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
    Err(kp_hal::DriverError { call: "VK_LAYER_KHRONOS_validation", code: -1, text: text.into() }.into())
}

/// A name in an array that a driver filled.
pub(crate) fn text(name: &[c_char]) -> String {
    let bytes = name.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect::<Vec<_>>();
    String::from_utf8_lossy(&bytes).into_owned()
}
