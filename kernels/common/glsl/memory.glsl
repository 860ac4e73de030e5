// Memory by address: every operand is one, as kp knows it. Sizes and indices of elements are 64-bit.

#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_control_flow_attributes : require

layout(buffer_reference, std430, buffer_reference_align = 1) buffer Byte { uint8_t v; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Half { uint16_t v; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Word { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quad { uvec4 v; };
