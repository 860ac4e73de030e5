//! Structures of extensions that came after the headers which ash was made from.
//!
//! Field by field as the Vulkan registry has them (`VkPhysicalDeviceShaderBfloat16FeaturesKHR` and the two of
//! `VK_NV_cooperative_matrix2`), with their numbers.

use ash::vk;
use std::{ffi::CStr, marker::PhantomData, ptr};

pub(super) const BFLOAT16: &CStr = c"VK_KHR_shader_bfloat16";
pub(super) const COOPERATIVE_MATRIX_2: &CStr = c"VK_NV_cooperative_matrix2";

/// `VK_COMPONENT_TYPE_BFLOAT16_KHR`.
pub(super) const COMPONENT_BFLOAT16: i32 = 1_000_141_000;

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Bfloat16Features<'a> {
    s_type: vk::StructureType,
    p_next: *mut std::ffi::c_void,
    pub(super) shader_bfloat16_type: vk::Bool32,
    pub(super) shader_bfloat16_dot_product: vk::Bool32,
    pub(super) shader_bfloat16_cooperative_matrix: vk::Bool32,
    marker: PhantomData<&'a ()>,
}

impl Default for Bfloat16Features<'_> {
    fn default() -> Self {
        Self {
            s_type: vk::StructureType::from_raw(1_000_141_000),
            p_next: ptr::null_mut(),
            shader_bfloat16_type: 0,
            shader_bfloat16_dot_product: 0,
            shader_bfloat16_cooperative_matrix: 0,
            marker: PhantomData,
        }
    }
}

// SAFETY: the registry lists the structure as extending both.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Bfloat16Features<'_> {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Bfloat16Features<'_> {}

/// `VkPhysicalDeviceCooperativeMatrix2FeaturesNV`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CooperativeMatrix2Features<'a> {
    s_type: vk::StructureType,
    p_next: *mut std::ffi::c_void,
    pub(super) workgroup_scope: vk::Bool32,
    pub(super) flexible_dimensions: vk::Bool32,
    pub(super) reductions: vk::Bool32,
    pub(super) conversions: vk::Bool32,
    pub(super) per_element_operations: vk::Bool32,
    pub(super) tensor_addressing: vk::Bool32,
    pub(super) block_loads: vk::Bool32,
    marker: PhantomData<&'a ()>,
}

impl Default for CooperativeMatrix2Features<'_> {
    fn default() -> Self {
        Self {
            s_type: vk::StructureType::from_raw(1_000_593_000),
            p_next: ptr::null_mut(),
            workgroup_scope: 0,
            flexible_dimensions: 0,
            reductions: 0,
            conversions: 0,
            per_element_operations: 0,
            tensor_addressing: 0,
            block_loads: 0,
            marker: PhantomData,
        }
    }
}

// SAFETY: the registry lists the structure as extending it.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for CooperativeMatrix2Features<'_> {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for CooperativeMatrix2Features<'_> {}
