//! What a driver says of one physical device.

use super::{
    Loader, OPEN_BYTES,
    newer::{self, Bfloat16Features, CooperativeMatrix2Features},
    status::{Status, checked},
    text,
};
use crate::caps::{Can, Facts, Kind};
use ash::{khr, vk};
use kp_hal::{
    DType, PciAddress,
    caps::{MmaScope, MmaShape},
};
use std::ffi::CStr;

/// A physical device, what is known of it, and what opening it wants to know.
pub(crate) struct Seen {
    pub(crate) raw: vk::PhysicalDevice,
    pub(crate) facts: Facts,
    pub(crate) family: u32,
    /// Queues of that family.
    pub(crate) queues: u32,
    /// Bits of a timestamp; 0 for none.
    pub(crate) timestamp_bits: u32,
    /// Nanoseconds of one of its ticks.
    pub(crate) timestamp_period: f64,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    /// Names the driver's compiler and its output: what a pipeline cache belongs to.
    pub(crate) cache_uuid: [u8; 16],
    /// Extensions to enable, of those that the device has.
    pub(crate) extensions: Vec<&'static CStr>,
    /// Bytes of arguments that kernels may be pushed.
    pub(crate) push_bytes: u32,
}

impl Seen {
    /// Whether shaders run in their open form: see [`crate::shaders::Open`].
    pub(crate) fn is_open(&self) -> bool {
        self.facts.kind == Kind::Cpu && self.push_bytes >= OPEN_BYTES
    }
}

/// Every physical device, each once, in the loader's order.
///
/// # Errors
/// What the driver refuses.
pub(crate) fn look(loader: &Loader) -> Result<Vec<Seen>, Status> {
    // SAFETY: the instance is alive.
    let devices = unsafe { loader.instance.enumerate_physical_devices() };
    let mut seen: Vec<Seen> = Vec::new();
    for raw in checked("vkEnumeratePhysicalDevices", devices)? {
        let one = see(loader, raw)?;
        // A card that two drivers offer has one UUID in both only if they agree on it; what one driver lists twice has.
        if !seen.iter().any(|other| other.facts.uuid == one.facts.uuid && other.facts.driver == one.facts.driver) {
            seen.push(one);
        }
    }
    Ok(seen)
}

fn see(loader: &Loader, raw: vk::PhysicalDevice) -> Result<Seen, Status> {
    let instance = &loader.instance;
    // SAFETY: the device came from this instance.
    let listed = unsafe { instance.enumerate_device_extension_properties(raw) };
    let listed = checked("vkEnumerateDeviceExtensionProperties", listed)?;
    let offers = |name: &CStr| listed.iter().any(|one| one.extension_name_as_c_str() == Ok(name));
    let api = {
        // SAFETY: as above.
        let properties = unsafe { instance.get_physical_device_properties(raw) };
        properties.api_version
    };
    // Structures that came with 1.3 are known to older drivers by their extensions.
    let since_13 = |name: &CStr| offers(name) || api >= vk::API_VERSION_1_3;
    let (has_size_control, has_dot) =
        (since_13(ash::ext::subgroup_size_control::NAME), since_13(khr::shader_integer_dot_product::NAME));
    let has_limit = since_13(khr::maintenance4::NAME);
    let (has_coopmat, has_bf16) = (offers(khr::cooperative_matrix::NAME), offers(newer::BFLOAT16));

    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
    let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
    let mut third = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut fourth = vk::PhysicalDeviceMaintenance4Properties::default();
    let mut dots = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
    let mut pci = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
    let mut nvidia_units = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut amd_units = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
    let mut properties = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut driver)
        .push_next(&mut ids)
        .push_next(&mut subgroup)
        .push_next(&mut third);
    if has_size_control {
        properties = properties.push_next(&mut sizes);
    }
    if has_limit {
        properties = properties.push_next(&mut fourth);
    }
    if has_dot {
        properties = properties.push_next(&mut dots);
    }
    if offers(ash::ext::pci_bus_info::NAME) {
        properties = properties.push_next(&mut pci);
    }
    if offers(ash::nv::shader_sm_builtins::NAME) {
        properties = properties.push_next(&mut nvidia_units);
    }
    if offers(ash::amd::shader_core_properties2::NAME) {
        properties = properties.push_next(&mut amd_units);
    }
    // SAFETY: every structure in the chain is one that this device knows.
    unsafe { instance.get_physical_device_properties2(raw, &mut properties) };
    let general = properties.properties;

    let mut eleven = vk::PhysicalDeviceVulkan11Features::default();
    let mut twelve = vk::PhysicalDeviceVulkan12Features::default();
    let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
    let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
    let mut coopmat = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut bf16 = Bfloat16Features::default();
    let mut coopmat2 = CooperativeMatrix2Features::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut eleven).push_next(&mut twelve);
    if has_size_control {
        features = features.push_next(&mut control);
    }
    if has_dot {
        features = features.push_next(&mut dot);
    }
    if has_coopmat {
        features = features.push_next(&mut coopmat);
    }
    if has_bf16 {
        features = features.push_next(&mut bf16);
    }
    if offers(newer::COOPERATIVE_MATRIX_2) {
        features = features.push_next(&mut coopmat2);
    }
    // SAFETY: as above.
    unsafe { instance.get_physical_device_features2(raw, &mut features) };
    let base = features.features;

    // SAFETY: the device came from this instance.
    let memory = unsafe { instance.get_physical_device_memory_properties(raw) };
    // SAFETY: as above.
    let families = unsafe { instance.get_physical_device_queue_family_properties(raw) };
    let (family, chosen) = compute_family(&families).unzip();
    let chosen = chosen.unwrap_or_default();
    let heaps = &memory.memory_heaps[..memory.memory_heap_count as usize];
    let own = heaps.iter().filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let memory_bytes = own.map(|heap| heap.size).max().unwrap_or(0);

    let needed = [
        (api >= vk::API_VERSION_1_2, "Vulkan 1.2"),
        (family.is_some(), "a compute queue"),
        (twelve.buffer_device_address != 0, "bufferDeviceAddress"),
        (twelve.timeline_semaphore != 0, "timelineSemaphore"),
        (twelve.storage_buffer8_bit_access != 0, "storageBuffer8BitAccess"),
        (eleven.storage_buffer16_bit_access != 0, "storageBuffer16BitAccess"),
        (base.shader_int64 != 0, "shaderInt64"),
        (subgroup.supported_operations.contains(SUBGROUP_OPERATIONS), "sums and shuffles of subgroups"),
        (memory_bytes > 0, "memory of its own"),
    ];
    // Shaders with matrices are of the newer memory model; that one enabled, atomics of the others are the device's by a feature.
    let has_model = twelve.vulkan_memory_model != 0 && twelve.vulkan_memory_model_device_scope != 0;
    let can_coopmat = coopmat.cooperative_matrix != 0 && has_model && twelve.shader_float16 != 0;
    let can = Can {
        f16: twelve.shader_float16 != 0,
        f64: base.shader_float64 != 0,
        i8: twelve.shader_int8 != 0,
        bf16: bf16.shader_bfloat16_type != 0,
        dot8: dot.shader_integer_dot_product != 0,
        fast_dot8: [
            dots.integer_dot_product4x8_bit_packed_signed_accelerated,
            dots.integer_dot_product4x8_bit_packed_unsigned_accelerated,
            dots.integer_dot_product4x8_bit_packed_mixed_signedness_accelerated,
        ]
        .map(|fast| fast != 0),
        coopmat: can_coopmat,
        bf16_coopmat: can_coopmat && bf16.shader_bfloat16_cooperative_matrix != 0,
        coopmat2: can_coopmat
            && coopmat2.reductions != 0
            && coopmat2.conversions != 0
            && coopmat2.per_element_operations != 0,
        subgroup_size: control.subgroup_size_control != 0
            && sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE),
        memory_budget: offers(ash::ext::memory_budget::NAME),
    };
    let limits = general.limits;
    let largest = if has_limit {
        third.max_memory_allocation_size.min(fourth.max_buffer_size)
    } else {
        third.max_memory_allocation_size
    };
    let usual = subgroup.subgroup_size;
    let facts = Facts {
        name: text(&general.device_name),
        kind: match general.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => Kind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => Kind::Integrated,
            vk::PhysicalDeviceType::CPU => Kind::Cpu,
            _ => Kind::Other,
        },
        api: (vk::api_version_major(api), vk::api_version_minor(api)),
        driver: format!("{} {}", text(&driver.driver_name), text(&driver.driver_info)).trim().to_owned(),
        pci: offers(ash::ext::pci_bus_info::NAME).then_some(PciAddress {
            domain: pci.pci_domain,
            bus: pci.pci_bus as u8,
            device: pci.pci_device as u8,
            function: pci.pci_function as u8,
        }),
        uuid: ids.device_uuid,
        lacks: needed.into_iter().filter_map(|(has, name)| (!has).then_some(name)).collect(),
        subgroup: if has_size_control {
            (sizes.min_subgroup_size, usual, sizes.max_subgroup_size)
        } else {
            (usual, usual, usual)
        },
        max_threads: limits.max_compute_work_group_invocations.min(limits.max_compute_work_group_size[0]),
        shared_bytes: limits.max_compute_shared_memory_size,
        max_groups: limits.max_compute_work_group_count[0],
        units: nvidia_units.shader_sm_count.max(amd_units.active_compute_unit_count),
        memory_bytes,
        // Blocks start on a boundary of kp's, which may cost as much again.
        max_buffer_bytes: largest.min(memory_bytes).saturating_sub(crate::memory::ALIGN),
        can,
        shapes: if can_coopmat { shapes(loader, raw, can.bf16_coopmat)? } else { Vec::new() },
    };
    let wanted = [
        (can.coopmat, khr::cooperative_matrix::NAME),
        (can.coopmat2, newer::COOPERATIVE_MATRIX_2),
        (can.bf16, newer::BFLOAT16),
        (can.memory_budget, ash::ext::memory_budget::NAME),
        (can.subgroup_size && offers(ash::ext::subgroup_size_control::NAME), ash::ext::subgroup_size_control::NAME),
        (can.dot8 && offers(khr::shader_integer_dot_product::NAME), khr::shader_integer_dot_product::NAME),
    ];
    Ok(Seen {
        raw,
        facts,
        family: family.unwrap_or(0),
        queues: chosen.queue_count,
        timestamp_bits: chosen.timestamp_valid_bits,
        timestamp_period: limits.timestamp_period.into(),
        memory,
        cache_uuid: general.pipeline_cache_uuid,
        extensions: wanted.into_iter().filter_map(|(has, name)| has.then_some(name)).collect(),
        push_bytes: limits.max_push_constants_size,
    })
}

/// What kernels do across a subgroup; no driver with the rest is known to lack one.
const SUBGROUP_OPERATIONS: vk::SubgroupFeatureFlags = vk::SubgroupFeatureFlags::from_raw(
    vk::SubgroupFeatureFlags::BASIC.as_raw()
        | vk::SubgroupFeatureFlags::ARITHMETIC.as_raw()
        | vk::SubgroupFeatureFlags::SHUFFLE.as_raw(),
);

/// The family for kernels: one without graphics if there is one, since it runs beside what is drawn.
fn compute_family(families: &[vk::QueueFamilyProperties]) -> Option<(u32, vk::QueueFamilyProperties)> {
    let computes = |family: &vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::COMPUTE);
    let draws = |family: &vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::GRAPHICS);
    let all = || families.iter().copied().zip(0..).map(|(family, index)| (index, family));
    let alone = all().find(|(_, family)| computes(family) && !draws(family));
    alone.or_else(|| all().find(|(_, family)| computes(family)))
}

/// The matrix unit's shapes, of those whose types kp knows. A driver without the extension would not refuse a shader that
/// uses one, it would compute something else; so nothing is assumed that is not listed.
fn shapes(loader: &Loader, raw: vk::PhysicalDevice, bf16: bool) -> Result<Vec<MmaShape>, Status> {
    let functions = khr::cooperative_matrix::Instance::new(&loader.entry, &loader.instance);
    // SAFETY: the device offers the extension.
    let listed = unsafe { functions.get_physical_device_cooperative_matrix_properties(raw) };
    let listed = checked("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", listed)?;
    Ok(listed.iter().filter(|one| one.saturating_accumulation == 0).filter_map(|one| shape(one, bf16)).collect())
}

fn shape(one: &vk::CooperativeMatrixPropertiesKHR<'_>, bf16: bool) -> Option<MmaShape> {
    let dtype = |kind: vk::ComponentTypeKHR| match kind {
        vk::ComponentTypeKHR::FLOAT16 => Some(DType::F16),
        vk::ComponentTypeKHR::FLOAT32 => Some(DType::F32),
        vk::ComponentTypeKHR::FLOAT64 => Some(DType::F64),
        vk::ComponentTypeKHR::SINT8 => Some(DType::I8),
        vk::ComponentTypeKHR::UINT8 => Some(DType::U8),
        vk::ComponentTypeKHR::SINT32 => Some(DType::I32),
        other if bf16 && other.as_raw() == newer::COMPONENT_BFLOAT16 => Some(DType::Bf16),
        _ => None,
    };
    let scope = match one.scope {
        vk::ScopeKHR::SUBGROUP => MmaScope::Subgroup,
        vk::ScopeKHR::WORKGROUP => MmaScope::Workgroup,
        _ => return None,
    };
    let (a, b, c, d) = (dtype(one.a_type)?, dtype(one.b_type)?, dtype(one.c_type)?, dtype(one.result_type)?);
    (c == d).then_some(MmaShape { m: one.m_size, n: one.n_size, k: one.k_size, a, b, d, scope })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_run_beside_what_is_drawn_if_they_can() {
        let family = |flags| vk::QueueFamilyProperties { queue_flags: flags, ..Default::default() };
        let (all, compute, copy) = (
            family(vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER),
            family(vk::QueueFlags::COMPUTE),
            family(vk::QueueFlags::TRANSFER),
        );
        let chosen = |list: &[vk::QueueFamilyProperties]| compute_family(list).map(|(index, _)| index);
        assert_eq!(chosen(&[all, copy, compute]), Some(2));
        assert_eq!(chosen(&[copy, all]), Some(1));
        assert_eq!(chosen(&[copy]), None);
    }

    #[test]
    fn shapes_of_unknown_types_are_left_out() {
        let one = vk::CooperativeMatrixPropertiesKHR::default()
            .m_size(16)
            .n_size(8)
            .k_size(16)
            .a_type(vk::ComponentTypeKHR::FLOAT16)
            .b_type(vk::ComponentTypeKHR::FLOAT16)
            .c_type(vk::ComponentTypeKHR::FLOAT32)
            .result_type(vk::ComponentTypeKHR::FLOAT32)
            .scope(vk::ScopeKHR::SUBGROUP);
        let shape_16 = shape(&one, false).expect("known types");
        assert_eq!((shape_16.m, shape_16.n, shape_16.k, shape_16.d), (16, 8, 16, DType::F32));
        let fp8 = one.a_type(vk::ComponentTypeKHR::from_raw(1_000_491_002));
        assert_eq!(shape(&fp8, true), None);
        let bf16 = vk::ComponentTypeKHR::from_raw(newer::COMPONENT_BFLOAT16);
        let bf16 = one.a_type(bf16).b_type(bf16);
        assert_eq!(shape(&bf16, true).map(|shape| shape.a), Some(DType::Bf16));
        assert_eq!(shape(&bf16, false), None, "listed, but the type cannot be named in a shader");
    }
}
