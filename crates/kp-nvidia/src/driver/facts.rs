//! What the driver says of a device, without a context.

use super::Api;
use crate::caps::Facts;
use cudarc::driver::sys::{CUdevice, CUdevice_attribute as A, CUuuid};
use kp_hal::{PciAddress, Result};
use std::ffi::{CStr, c_char};

/// Devices this process may use.
///
/// # Errors
/// `Driver`.
pub(crate) fn count(api: &Api) -> Result<u32> {
    let mut count = 0;
    // SAFETY: the driver is initialised.
    unsafe { api.cuDeviceGetCount(&mut count) }.ok()?;
    Ok(count.max(0) as u32)
}

/// The handle of device `index`.
///
/// # Errors
/// `Driver`.
pub(crate) fn device(api: &Api, index: u32) -> Result<CUdevice> {
    let mut device = 0;
    // SAFETY: the driver is initialised.
    unsafe { api.cuDeviceGet(&mut device, index as i32) }.ok()?;
    Ok(device)
}

/// Everything that `Caps` is made of.
///
/// # Errors
/// `Driver`.
pub(crate) fn facts(api: &Api, device: CUdevice) -> Result<Facts> {
    let mut name = [0 as c_char; 256];
    // SAFETY: the driver writes at most that many bytes, the last of them 0.
    unsafe { api.cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) }.ok()?;
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut memory_bytes = 0;
    // SAFETY: `device` came from the driver.
    unsafe { api.cuDeviceTotalMem_v2(&mut memory_bytes, device) }.ok()?;
    let number = |attribute| attribute_of(api, device, attribute);
    Ok(Facts {
        name,
        major: number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        units: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        max_threads: number(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        registers: number(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        shared_bytes: number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        l2_bytes: number(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        memory_bytes: memory_bytes as u64,
        clock_khz: number(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_khz: number(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bus_bits: number(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        integrated: number(A::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
        clusters: number(A::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)? != 0,
        tensor_maps: number(A::CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED)? != 0,
        pools: number(A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
        untried: std::env::var_os("KP_UNTRIED").is_some_and(|value| value == "1"),
    })
}

/// Place on the bus.
///
/// # Errors
/// `Driver`.
pub(crate) fn pci(api: &Api, device: CUdevice) -> Result<PciAddress> {
    let number = |attribute| attribute_of(api, device, attribute);
    Ok(PciAddress {
        domain: number(A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        bus: number(A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)? as u8,
        device: number(A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)? as u8,
        // The driver speaks of graphics functions only, and they are the first of their card.
        function: 0,
    })
}

/// The driver's identifier.
///
/// # Errors
/// `Driver`.
pub(crate) fn uuid(api: &Api, device: CUdevice) -> Result<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: `device` came from the driver.
    unsafe { api.cuDeviceGetUuid_v2(&mut uuid, device) }.ok()?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

fn attribute_of(api: &Api, device: CUdevice, attribute: A) -> Result<u32> {
    let mut value = 0;
    // SAFETY: `device` came from the driver.
    unsafe { api.cuDeviceGetAttribute(&mut value, attribute, device) }.ok()?;
    Ok(value.max(0) as u32)
}
